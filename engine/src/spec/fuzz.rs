//! Profiles and options as anybody could write them.

use std::path::{Path, PathBuf};

use super::mount::{Host, HostAccess, HostPlaces, Observed, SourceKind, Unobservable};
use super::request::SpecRequest;
use super::{
    Device, DeviceRefusal, ProfileFile, ProfileFileError, SandboxSpec, Violation, parse_spec,
};

/// A host on which everything is there, with one profile file.
#[derive(Debug, Default)]
pub struct Plain {
    places: HostPlaces,
    profiles: Option<String>,
}

impl Host for Plain {
    fn observe(&self, source: &Path, _: bool) -> Result<Observed, Unobservable> {
        Ok(Observed {
            path: source.into(),
            identity: Some((7, 8)),
            kind: SourceKind::Dir,
        })
    }
    fn find_socket(&self, _: &Observed) -> Option<PathBuf> {
        None
    }
    fn places(&self) -> &HostPlaces {
        &self.places
    }
    fn profiles(&self) -> Result<ProfileFile, ProfileFileError> {
        let path = PathBuf::from("/home/u/stepbox.toml");
        match &self.profiles {
            Some(text) => Ok(ProfileFile {
                path,
                text: text.clone(),
            }),
            None => Err(ProfileFileError::Missing(path)),
        }
    }
    fn device(&self, path: &Path) -> Result<Device, DeviceRefusal> {
        Ok(Device {
            path: path.into(),
            major: 1,
            minor: 3,
        })
    }
}

/// What must hold for a request whoever wrote it, and for what is made of it.
pub fn judged(parsed: &Result<SandboxSpec, Vec<Violation>>) {
    match parsed {
        Ok(spec) => {
            assert!(spec.timeout.as_secs() <= 604_800 && !spec.timeout.is_zero());
            assert!(spec.max_output <= 1 << 30);
            for (name, value) in &spec.env {
                assert!(!name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
            }
            let targets = spec.mounts.iter().map(|mount| &mount.target);
            for target in targets.chain(spec.tmpfs.iter().map(|tmpfs| &tmpfs.target)) {
                assert!(
                    target.is_absolute() && target.components().count() > 1,
                    "{target:?}"
                );
                let up = |part| matches!(part, std::path::Component::ParentDir);
                assert!(!target.components().any(up), "{target:?}");
            }
        }
        Err(violations) => {
            assert!(!violations.is_empty());
            for violation in violations {
                assert!(!violation.description.is_empty());
                assert!(
                    !violation.description.chars().any(char::is_control),
                    "{violation:?}"
                );
            }
        }
    }
}

/// The text of a profile file.
pub fn profiles(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let host = Plain {
        profiles: Some(text.to_owned()),
        ..Plain::default()
    };
    let names = ["vcpu:a", "vdisk:a", "vgpio:a"];
    let request = SpecRequest {
        profiles: names.map(str::to_owned).to_vec(),
        ..SpecRequest::default()
    };
    judged(&parse_spec(request, &host, &HostAccess::Own));
}
