use std::path::{Path, PathBuf};

use super::super::mount::{Host, HostAccess, HostPlaces, Observed, Unobservable};
use super::*;

const PATH: &str = "/home/u/.config/stepbox/stepbox.toml";

struct Fake {
    text: Option<String>,
    places: HostPlaces,
}

impl Host for Fake {
    fn observe(&self, _: &Path, _: bool) -> Result<Observed, Unobservable> {
        Err(Unobservable::Missing)
    }
    fn find_socket(&self, _: &Observed) -> Option<PathBuf> {
        None
    }
    fn places(&self) -> &HostPlaces {
        &self.places
    }
    fn profiles(&self) -> Result<ProfileFile, ProfileFileError> {
        let path = PathBuf::from(PATH);
        match &self.text {
            Some(text) => Ok(ProfileFile {
                path,
                text: text.clone(),
            }),
            None => Err(ProfileFileError::Missing(path)),
        }
    }
    fn device(&self, path: &Path) -> Result<Device, DeviceRefusal> {
        match path.to_str() {
            Some("/dev/gpiochip0") => Ok(Device {
                path: path.to_owned(),
                major: 254,
                minor: 0,
            }),
            Some("/dev/mem") => Err(DeviceRefusal::Kernel),
            _ => Err(DeviceRefusal::Missing),
        }
    }
}

fn applied(
    text: &str,
    mut request: SpecRequest,
    access: &HostAccess,
) -> (SpecRequest, Applied, Vec<String>) {
    let host = Fake {
        text: Some(text.to_owned()),
        places: HostPlaces::default(),
    };
    let mut violations = Violations::default();
    let applied = apply(&mut request, &host, access, &mut violations);
    let said = violations
        .into_vec()
        .into_iter()
        .map(|violation| format!("{}: {}", violation.field, violation.description))
        .collect();
    (request, applied, said)
}

fn asking(profiles: &[&str]) -> SpecRequest {
    SpecRequest {
        profiles: profiles.iter().map(|name| (*name).to_owned()).collect(),
        ..SpecRequest::default()
    }
}

const FILE: &str = r#"
[vcpu.small]
cpus = 0.5
memory = "256m"

[vcpu]
large = { cpus = 4, memory = "4g" }

[vdisk.work]
size = "2g"
path = "/srv/work"

[vgpio.relay]
devices = ["/dev/gpiochip0"]
"#;

#[test]
fn profiles_fill_in_what_the_request_leaves_open() {
    let request = asking(&["vcpu:small", "vdisk:work", "vgpio:relay"]);
    let (request, applied, said) = applied(FILE, request, &HostAccess::Own);
    assert_eq!(said, Vec::<String>::new());
    assert_eq!(request.cpus, Some(0.5));
    assert_eq!(request.memory_mb, Cap::Max(256));
    assert_eq!(request.workspace_max_bytes, Cap::Max(2 << 30));
    assert_eq!(request.workspace.as_deref(), Some(Path::new("/srv/work")));
    assert_eq!(applied.devices.len(), 1);
    assert!(
        applied
            .workspace
            .is_some_and(|origin| origin.place.contains(":11: vdisk.work.path"))
    );
}

#[test]
fn an_option_beats_a_profile_and_none_does_not() {
    let request = SpecRequest {
        memory_mb: Cap::Max(64),
        workspace_max_bytes: Cap::Uncapped,
        workspace: Some("/mine".into()),
        ..asking(&["vcpu:large", "vdisk:work"])
    };
    let (request, applied, said) = applied(FILE, request, &HostAccess::Own);
    assert_eq!(said, Vec::<String>::new());
    assert_eq!(request.memory_mb, Cap::Max(64));
    assert_eq!(request.cpus, Some(4.0));
    assert_eq!(request.workspace_max_bytes, Cap::Max(2 << 30));
    assert_eq!(request.workspace.as_deref(), Some(Path::new("/mine")));
    assert!(applied.workspace.is_none());
}

#[test]
fn a_mistake_names_the_file_the_line_and_the_key_and_what_is_right() {
    let table = [
        ("[vcpu.a]\nmemory = 256", ":2: vcpu.a.memory: ", "\"256m\""),
        (
            "[vcpu.a]\n\nmemory = \"1k\"",
            ":3: vcpu.a.memory: ",
            "mebibytes",
        ),
        (
            "[vcpu.a]\nmemory = \"8m\"",
            ":2: vcpu.a.memory: ",
            "at least 16",
        ),
        ("[vcpu.a]\ncpus = \"2\"", ":2: vcpu.a.cpus: ", "such as 0.5"),
        ("[vcpu.a]\ncpus = 0", ":2: vcpu.a.cpus: ", "above 0"),
        (
            "[vcpu.a]\nmem = \"1g\"",
            ":2: vcpu.a.mem: ",
            "write cpus or memory",
        ),
        ("[vcpu]\na = 3", ":2: vcpu.a: ", "write [vcpu.a]"),
        ("[vcpu.b]\n", " has no table [vcpu.a]", "\"vcpu:b\""),
        ("[vcpu.a\n", ":1: not TOML: ", ""),
    ];
    for (text, place, right) in table {
        let (_, _, said) = applied(text, asking(&["vcpu:a"]), &HostAccess::Own);
        assert_eq!(said.len(), 1, "{text}: {said:?}");
        assert!(said[0].starts_with("profiles"), "{said:?}");
        assert!(said[0].contains(&format!("{PATH}\"{place}")), "{said:?}");
        assert!(said[0].contains(right), "{text}: {said:?}");
    }
    let others = [
        ("vdisk:a", "[vdisk.a]\npath = \"~/x\"", ":2: vdisk.a.path: "),
        ("vdisk:a", "[vdisk.a]\nsize = \"1k\"", ":2: vdisk.a.size: "),
        (
            "vgpio:a",
            "[vgpio.a]\ndevices = \"/dev/gpiochip0\"",
            ":2: vgpio.a.devices: ",
        ),
        (
            "vgpio:a",
            "[vgpio.a]\ndevices = [\"/dev/mem\"]",
            ":2: vgpio.a.devices: ",
        ),
        (
            "vgpio:a",
            "[vgpio.a]\ndevices = [\"/dev/gpiochip9\"]",
            ":2: vgpio.a.devices: ",
        ),
    ];
    for (name, text, place) in others {
        let (_, _, said) = applied(text, asking(&[name]), &HostAccess::Own);
        assert_eq!(said.len(), 1, "{text}: {said:?}");
        assert!(said[0].contains(&format!("{PATH}\"{place}")), "{said:?}");
    }
}

#[test]
fn a_name_without_a_kind_and_a_key_that_two_give_are_refused() {
    for name in ["small", "cpu:small", "vcpu:", "vcpu:a.b", "vcpu:a b"] {
        let (_, _, said) = applied(FILE, asking(&[name]), &HostAccess::Own);
        assert_eq!(said.len(), 1, "{name}: {said:?}");
        assert!(said[0].contains("\"vcpu:NAME\""), "{said:?}");
    }
    let (_, _, said) = applied(
        FILE,
        asking(&["vcpu:small", "vcpu:large"]),
        &HostAccess::Own,
    );
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().all(|said| said.contains("name one of both")));
}

#[test]
fn over_tcp_the_file_must_lie_below_an_allowed_directory() {
    for (allowed, refused) in [("/srv", true), ("/home/u/.config/stepbox", false)] {
        let access = HostAccess::Below(vec![allowed.into()]);
        let (_, _, said) = applied(FILE, asking(&["vcpu:small"]), &access);
        assert_eq!(!said.is_empty(), refused, "{said:?}");
        assert!(!said.concat().contains("/home"), "{said:?}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let host = Fake {
        text: None,
        places: HostPlaces::default(),
    };
    let mut violations = Violations::default();
    apply(
        &mut asking(&["vcpu:a"]),
        &host,
        &HostAccess::Own,
        &mut violations,
    );
    assert!(violations.into_vec()[0].description.contains(PATH));
    let mut none = Violations::default();
    apply(&mut asking(&[]), &host, &HostAccess::Own, &mut none);
    assert!(
        none.is_empty(),
        "without profiles the file is not looked for"
    );
}
