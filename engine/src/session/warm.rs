//! What the steps of a session are forked from, where they are.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::environment::{self, WORKSPACE};
use crate::launcher::message::RealmId;
use crate::pool::{Booted, Slot, Template, TemplateKey, Templates};
use crate::sandbox::rootfs::RootSpec;
use crate::sandbox::template::Program;
use crate::spec::{DEPS, Limits, Profile, SandboxSpec};

/// A session's part of a template: which one, and what to expect of a step.
#[derive(Debug)]
pub(super) struct Warm {
    templates: Templates,
    key: TemplateKey,
    program: Program,
    /// The variables of a step that adds none: in a slot without bytecode of the store, and in one with it.
    environments: [Vec<(String, String)>; 2],
    /// Asked for with the session, not found out by its use.
    pub(super) at_once: bool,
}

impl Warm {
    /// None: each step of the session starts an interpreter of its own.
    pub(super) fn new(
        templates: Templates,
        spec: &SandboxSpec,
        (realm, session): (RealmId, &str),
        root: &RootSpec,
    ) -> Option<Self> {
        let interpreter = root.interpreter.as_ref()?;
        if spec.prewarm == Some(0) || !is_forkable(&spec.env) {
            return None;
        }
        let build = |limits: &Limits, given: &BTreeMap<String, String>, bytecode| {
            environment::build(
                Some(interpreter),
                limits,
                (&spec.user, spec.profile),
                environment::Python {
                    bytecode,
                    deps: spec.deps().is_some(),
                },
                Path::new(WORKSPACE),
                given,
                &BTreeMap::new(),
            )
        };
        // What code can write to is not imported into what other code is forked from.
        let deps = spec
            .deps()
            .filter(|mount| mount.read_only && !spec.preload.is_empty());
        // A template is shared by sessions of other limits; one thread is what can be forked.
        let usual = build(&Limits::default(), &BTreeMap::new(), false);
        let mut booted: BTreeMap<_, _> = usual.iter().cloned().collect();
        match deps {
            Some(_) => booted.insert("PYTHONPATH".to_owned(), DEPS.to_owned()),
            None => booted.remove("PYTHONPATH"),
        };
        if !spec.preload.is_empty() {
            booted.extend(environment::one_thread());
        }
        let mut prefixes = interpreter.prefixes.clone();
        prefixes.sort();
        prefixes.dedup_by(|later, earlier| later.starts_with(&*earlier));
        Some(Self {
            templates,
            key: TemplateKey {
                realm,
                root: root.clone(),
                session: (spec.profile == Profile::Untrusted).then(|| session.to_owned()),
                preload: spec.preload.clone(),
                deps: deps.map(|mount| (mount.source.clone(), mount.identity)),
            },
            program: Program {
                executable: interpreter.executable.clone(),
                prefixes,
                environment: booted.into_iter().collect(),
                usual,
                deps: deps.map(|mount| mount.target.clone()),
            },
            environments: [false, true].map(|bytecode| build(&spec.limits, &spec.env, bytecode)),
            at_once: !spec.preload.is_empty() || spec.prewarm.is_some(),
        })
    }

    /// The template as far as it is now; the first to ask has it booted.
    pub(super) fn get(&self) -> Booted {
        self.templates.get(&self.key, &self.program)
    }

    /// What the environment of a step in this slot will most likely be.
    pub(super) fn environment(&self, slot: &Slot) -> Vec<(String, String)> {
        self.environments[usize::from(slot.bytecode == Some(true))].clone()
    }

    pub(super) async fn wait(&self) -> Option<Arc<Template>> {
        match self.templates.wait(&self.key).await {
            Booted::Ready(template, _) => Some(template),
            _ => None,
        }
    }

    /// What the caller should know of its preload.
    pub(super) fn notes(&self) -> Vec<String> {
        if self.key.preload.is_empty() {
            return Vec::new();
        }
        match self.get() {
            Booted::Ready(_, notes) => notes.to_vec(),
            Booted::Never(why) => vec![format!("preload: nothing is imported ahead: {why}")],
            Booted::Booting => Vec::new(),
        }
    }
}

/// Whether an interpreter that was started without these variables is what it would have been with them.
pub(super) fn is_forkable(variables: &BTreeMap<String, String>) -> bool {
    !variables
        .keys()
        .any(|name| name != "PYTHONPATH" && shapes_interpreter(name))
}

/// Read when an interpreter, its loader or its libraries start, and not again.
fn shapes_interpreter(name: &str) -> bool {
    const NAMES: &[&str] = &["GLIBC_TUNABLES", "LANG", "LANGUAGE", "LOCPATH"];
    const BEGINNINGS: &[&str] = &["PYTHON", "LD_", "LC_", "MALLOC_", "OPENSSL_"];
    NAMES.contains(&name)
        || BEGINNINGS
            .iter()
            .any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forkable(name: &str) -> bool {
        is_forkable(&BTreeMap::from([(name.to_owned(), "1".to_owned())]))
    }

    #[test]
    fn a_variable_that_an_interpreter_reads_at_its_start_is_given_to_one_of_its_own() {
        for name in [
            "PYTHONHASHSEED",
            "PYTHONUTF8",
            "LD_PRELOAD",
            "LC_ALL",
            "LANG",
        ] {
            assert!(!forkable(name), "{name}");
        }
        for name in [
            "PYTHONPATH",
            "HOME",
            "TZ",
            "OMP_NUM_THREADS",
            "LANGSMITH_KEY",
        ] {
            assert!(forkable(name), "{name}");
        }
    }
}
