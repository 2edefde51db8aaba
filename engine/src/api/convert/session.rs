//! Sessions, the engine and the host to the wire.

use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, UNIX_EPOCH};

use crate::api::host::{HostInfo, Probe};
use crate::api::pb;
use crate::session::{Live, SessionView, TemplateView};

use super::result::limit;

/// A session to the wire.
#[must_use]
pub fn session(view: SessionView) -> pb::Session {
    let SessionView {
        id,
        name,
        labels,
        workspace,
        steps_running,
        steps_done,
        created,
        image,
        image_digest,
        limits,
        isolation,
        timeout,
        resident,
        ttl,
        idle,
    } = view;
    let created = created.duration_since(UNIX_EPOCH).unwrap_or_default();
    pb::Session {
        session_id: id,
        name: name.unwrap_or_default(),
        labels: labels.into_iter().collect(),
        workspace: workspace
            .map(|path| path.into_os_string().into_vec())
            .unwrap_or_default()
            .into(),
        steps_running_count: steps_running,
        steps_done_count: steps_done,
        created_unix_ms: u64::try_from(created.as_millis()).unwrap_or(u64::MAX),
        image,
        image_digest,
        limits: limits.iter().map(limit).collect(),
        isolation,
        resident,
        ttl_ms: ttl.map(millis),
        idle_ms: idle.map(millis),
        timeout_ms: millis(timeout),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What `GetInfo` answers.
#[must_use]
pub fn info(host: &HostInfo, live: Live) -> pb::GetInfoResponse {
    let HostInfo {
        kernel,
        root,
        probes,
        limit_mechanisms,
    } = host;
    pb::GetInfoResponse {
        version: crate::VERSION.to_owned(),
        pid: rustix::process::getpid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs(),
        kernel: kernel.clone(),
        mode: if *root { "root" } else { "rootless" }.to_owned(),
        probes: probes.iter().map(probe).collect(),
        limit_mechanisms: limit_mechanisms.iter().map(limit).collect(),
        live: Some(self::live(live)),
    }
}

fn probe(probe: &Probe) -> pb::Probe {
    let Probe {
        name,
        available,
        detail,
        mend,
    } = probe;
    pb::Probe {
        name: name.clone(),
        available: *available,
        detail: detail.clone(),
        mend: mend.clone().unwrap_or_default(),
    }
}

fn live(live: Live) -> pb::Live {
    let Live {
        sessions,
        steps,
        slots,
        steps_done,
        templates,
    } = live;
    pb::Live {
        sessions_count: sessions,
        steps_count: steps,
        slots_count: slots,
        steps_done_count: steps_done,
        templates: templates.into_iter().map(template).collect(),
    }
}

fn template(template: TemplateView) -> pb::Template {
    let TemplateView {
        executable,
        preload,
        memory,
        forks,
        age,
    } = template;
    pb::Template {
        executable: executable.into_os_string().into_encoded_bytes().into(),
        preload,
        memory_bytes: memory,
        forks_count: forks,
        age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
    }
}
