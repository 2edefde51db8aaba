//! `SandboxSpec` of the wire to [`SpecRequest`].

use crate::api::pb;
use crate::spec::request::{
    Cap, Choice, InterpreterRequest, IsolationChoice, MountRequest, NetworkChoice, ProfileChoice,
    SpecRequest, TmpfsRequest,
};

use super::path;

/// The session as it was asked for; a missing message is one with nothing said.
#[must_use]
pub fn request(spec: Option<pb::SandboxSpec>) -> SpecRequest {
    let pb::SandboxSpec {
        image,
        setup,
        workspace,
        memory_mb,
        cpus,
        pids,
        timeout_s,
        network,
        egress_allow,
        egress_allow_set,
        mounts,
        tmpfs,
        tmpfs_set,
        env,
        max_output_bytes,
        deps_readonly,
        enforce_limits,
        track_files,
        prewarm,
        preload,
        security_profile,
        cap_drop,
        cap_drop_set,
        user,
        workspace_max_bytes,
        workspace_max_files,
        profiles,
        name,
        resident,
        ttl_s,
        file_diffs,
        labels,
        setup_network,
        packages,
        npm_packages,
        egress_credentials,
        isolation_mode,
        protect,
        protect_set,
        allow_sockets,
        interpreter,
        host_packages,
        devices,
    } = spec.unwrap_or_default();
    SpecRequest {
        image: (!image.is_empty()).then_some(image),
        setup,
        workspace: workspace.map(path),
        memory_mb: cap(memory_mb),
        cpus,
        pids: cap(pids),
        timeout_s,
        network: self::network(network),
        egress_allow: given(egress_allow, egress_allow_set),
        mounts: mounts.into_iter().map(mount).collect(),
        tmpfs: given(tmpfs, tmpfs_set).map(|all| all.into_iter().map(tmpfs_request).collect()),
        env: env.into_iter().collect(),
        max_output_bytes,
        deps_readonly,
        enforce_limits,
        track_files,
        prewarm,
        preload,
        security_profile: profile(security_profile),
        cap_drop: given(cap_drop, cap_drop_set),
        user,
        workspace_max_bytes: cap(workspace_max_bytes),
        workspace_max_files: cap(workspace_max_files),
        profiles,
        name,
        resident,
        ttl_s,
        file_diffs,
        labels: labels.into_iter().collect(),
        setup_network,
        packages,
        npm_packages,
        egress_credentials: egress_credentials.into_iter().collect(),
        isolation_mode: isolation(isolation_mode),
        protect: given(protect, protect_set),
        allow_sockets,
        interpreter: interpreter.map(interpreter_request),
        host_packages: host_packages.into_iter().map(path).collect(),
        devices: devices.into_iter().collect(),
    }
}

/// A list that says of itself whether an empty one was meant.
fn given<T>(list: Vec<T>, set: bool) -> Option<Vec<T>> {
    (set || !list.is_empty()).then_some(list)
}

/// A cap of the wire. One that is left out, or says `uncapped: false`, takes the default.
pub(super) fn cap(cap: Option<pb::Cap>) -> Cap {
    let Some(pb::Cap { cap }) = cap else {
        return Cap::Default;
    };
    match cap {
        None | Some(pb::cap::Cap::Uncapped(false)) => Cap::Default,
        Some(pb::cap::Cap::Uncapped(true)) => Cap::Uncapped,
        Some(pb::cap::Cap::Max(max)) => Cap::Max(max),
    }
}

fn network(number: i32) -> Choice<NetworkChoice> {
    match pb::Network::try_from(number) {
        Ok(pb::Network::Unspecified) => Choice::Default,
        Ok(pb::Network::None) => Choice::Named(NetworkChoice::None),
        Ok(pb::Network::Host) => Choice::Named(NetworkChoice::Host),
        Ok(pb::Network::Internet) => Choice::Named(NetworkChoice::Internet),
        Err(_) => Choice::Unknown(number),
    }
}

fn profile(number: i32) -> Choice<ProfileChoice> {
    match pb::SecurityProfile::try_from(number) {
        Ok(pb::SecurityProfile::Unspecified) => Choice::Default,
        Ok(pb::SecurityProfile::Default) => Choice::Named(ProfileChoice::Default),
        Ok(pb::SecurityProfile::Untrusted) => Choice::Named(ProfileChoice::Untrusted),
        Err(_) => Choice::Unknown(number),
    }
}

fn isolation(number: i32) -> Choice<IsolationChoice> {
    match pb::IsolationMode::try_from(number) {
        Ok(pb::IsolationMode::Unspecified) => Choice::Default,
        Ok(pb::IsolationMode::Full) => Choice::Named(IsolationChoice::Full),
        Ok(pb::IsolationMode::Reduced) => Choice::Named(IsolationChoice::Reduced),
        Err(_) => Choice::Unknown(number),
    }
}

fn mount(mount: pb::Mount) -> MountRequest {
    let pb::Mount {
        source,
        target,
        read_only,
        allow_sockets,
    } = mount;
    MountRequest {
        source: path(source),
        target: path(target),
        read_only,
        allow_sockets,
    }
}

fn tmpfs_request(tmpfs: pb::Tmpfs) -> TmpfsRequest {
    let pb::Tmpfs { target, size } = tmpfs;
    TmpfsRequest {
        target: path(target),
        size,
    }
}

fn interpreter_request(interpreter: pb::Interpreter) -> InterpreterRequest {
    let pb::Interpreter {
        executable,
        prefixes,
        version,
    } = interpreter;
    InterpreterRequest {
        executable: path(executable),
        prefixes: prefixes.into_iter().map(path).collect(),
        version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_spec_is_one_with_nothing_said() {
        assert_eq!(request(None), SpecRequest::default());
        assert_eq!(
            request(Some(pb::SandboxSpec::default())),
            SpecRequest::default()
        );
    }

    #[test]
    fn an_empty_list_is_told_from_none() {
        let spec = pb::SandboxSpec {
            tmpfs_set: true,
            egress_allow_set: true,
            cap_drop_set: true,
            protect_set: true,
            ..pb::SandboxSpec::default()
        };
        let asked = request(Some(spec));
        assert_eq!(asked.tmpfs, Some(vec![]));
        assert_eq!(asked.egress_allow, Some(vec![]));
        assert_eq!(asked.cap_drop, Some(vec![]));
        assert_eq!(asked.protect, Some(vec![]));
    }

    #[test]
    fn uncapped_default_and_a_number_are_told_apart() {
        let wire = |cap| Some(pb::Cap { cap });
        assert_eq!(cap(None), Cap::Default);
        assert_eq!(cap(wire(None)), Cap::Default);
        assert_eq!(cap(wire(Some(pb::cap::Cap::Uncapped(false)))), Cap::Default);
        assert_eq!(cap(wire(Some(pb::cap::Cap::Uncapped(true)))), Cap::Uncapped);
        assert_eq!(cap(wire(Some(pb::cap::Cap::Max(0)))), Cap::Max(0));
    }

    #[test]
    fn a_number_without_a_word_is_kept_to_be_refused() {
        let spec = pb::SandboxSpec {
            network: 99,
            security_profile: -1,
            isolation_mode: 7,
            ..pb::SandboxSpec::default()
        };
        let asked = request(Some(spec));
        assert_eq!(asked.network, Choice::Unknown(99));
        assert_eq!(asked.security_profile, Choice::Unknown(-1));
        assert_eq!(asked.isolation_mode, Choice::Unknown(7));
    }

    #[test]
    fn paths_keep_bytes_that_are_not_text() {
        let spec = pb::SandboxSpec {
            workspace: Some(bytes::Bytes::from_static(b"/a/\xff")),
            ..pb::SandboxSpec::default()
        };
        let workspace = request(Some(spec)).workspace.expect("given");
        assert_eq!(
            std::os::unix::ffi::OsStrExt::as_bytes(workspace.as_os_str()),
            b"/a/\xff"
        );
    }
}
