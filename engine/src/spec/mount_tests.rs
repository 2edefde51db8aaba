use super::*;

fn places() -> HostPlaces {
    HostPlaces {
        homes: vec![
            "/home/ada".into(),
            "/root".into(),
            "/var/lib/postgresql".into(),
        ],
        runtime: Some("/srv/runtime/1000".into()),
        engine: vec![
            "/home/ada/.cache/stepbox".into(),
            "/var/tmp/stepbox-1000".into(),
        ],
    }
}

fn dir(path: &str) -> Observed {
    Observed {
        path: path.into(),
        identity: Some((1, 2)),
        kind: SourceKind::Dir,
    }
}

fn judged(path: &str) -> Result<(), Refusal> {
    judge(&dir(path), &places(), &HostAccess::Own)
}

#[test]
fn what_people_mount_is_allowed() {
    for path in [
        "/home/ada/project",
        "/root/project",
        "/data",
        "/opt/tool",
        "/usr/share/dict",
        "/tmp/x",
        "/var/tmp/x",
        "/srv/runtime/1000/x",
        "/home/ada/.cargo",
        "/home/ada/.m2",
        "/home/ada/.gem",
        "/home/ada/.config/tool",
        "/home/ada/gh",
        "/home/ada/ssh",
        "/var/lib/other",
        "/etcetera",
        "/home/adam",
    ] {
        assert_eq!(judged(path), Ok(()), "{path}");
    }
}

#[test]
fn the_hosts_own_places_are_refused() {
    for path in [
        "/",
        "/boot",
        "/dev",
        "/etc",
        "/proc",
        "/root",
        "/sys",
        "/run",
        "/var/run",
        "/etc/ssl",
        "/proc/1",
        "/dev/shm",
        "/run/user/1000/x",
        "/tmp",
        "/var/tmp",
        "/var",
        "/home",
        "/home/ada",
        "/srv",
        "/srv/runtime",
        "/srv/runtime/1000",
        "/var/lib",
        "/var/lib/postgresql",
    ] {
        let refusal = judged(path).expect_err(path);
        assert!(refusal.to_string().contains(path), "{refusal}");
    }
}

#[test]
fn a_place_of_the_engine_is_refused_with_what_contains_it() {
    for path in [
        "/home/ada/.cache/stepbox",
        "/home/ada/.cache/stepbox/x",
        "/home/ada/.cache",
        "/var/tmp/stepbox-1000/y",
    ] {
        assert!(judged(path).is_err(), "{path}");
    }
}

#[test]
fn credentials_are_refused_at_any_depth() {
    for name in [
        ".ssh",
        ".aws",
        ".gnupg",
        ".kube",
        ".docker",
        ".azure",
        ".oci",
        ".terraform.d",
        ".password-store",
        ".netrc",
        ".git-credentials",
        ".pypirc",
        ".npmrc",
        ".databrickscfg",
        ".boto",
        ".s3cfg",
        ".rclone.conf",
        ".config/gcloud",
        ".config/gh",
        ".config/doctl",
        ".config/rclone",
    ] {
        for path in [format!("/home/ada/{name}"), format!("/data/{name}/deep/er")] {
            let refusal = judged(&path).expect_err(&path);
            assert!(
                matches!(&refusal, Refusal::Credentials { name: said, .. } if said == name),
                "{path}: {refusal}"
            );
        }
    }
}

#[test]
fn sockets_are_refused_unless_accepted_and_a_container_managers_always() {
    let plain = Path::new("/data/app/x.sock");
    assert!(matches!(
        judge_socket(plain, false),
        Err(Refusal::Socket(_))
    ));
    assert_eq!(judge_socket(plain, true), Ok(()));
    for name in CONTAINER_SOCKETS {
        let socket = Path::new("/data/app").join(name);
        assert!(
            matches!(
                judge_socket(&socket, true),
                Err(Refusal::ContainerSocket(_))
            ),
            "{name}"
        );
    }
}

#[test]
fn devices_and_pipes_are_refused() {
    let pipe = Observed {
        kind: SourceKind::Other,
        ..dir("/data/pipe")
    };
    assert!(matches!(
        judge(&pipe, &places(), &HostAccess::Own),
        Err(Refusal::Kind(_))
    ));
}

#[test]
fn a_caller_from_afar_sees_only_what_the_engine_allows() {
    let below = HostAccess::Below(vec!["/data".into()]);
    assert_eq!(judge(&dir("/data/x"), &places(), &below), Ok(()));
    assert!(matches!(
        judge(&dir("/database"), &places(), &below),
        Err(Refusal::NotAllowed(_))
    ));
    let none = HostAccess::Below(vec![]);
    assert!(matches!(
        judge(&dir("/data/x"), &places(), &none),
        Err(Refusal::NotAllowed(_))
    ));
}

#[test]
fn a_prefix_of_an_interpreter_may_contain_a_home_but_be_none() {
    for path in [
        "/usr",
        "/usr/local",
        "/home/ada/venv",
        "/opt/python",
        "/var/lib",
    ] {
        assert_eq!(
            judge_prefix(Path::new(path), &places(), &HostAccess::Own),
            Ok(()),
            "{path}"
        );
    }
    for path in [
        "/",
        "/home/ada",
        "/root",
        "/etc/python",
        "/home/ada/.ssh/venv",
    ] {
        assert!(
            judge_prefix(Path::new(path), &places(), &HostAccess::Own).is_err(),
            "{path}"
        );
    }
}

#[test]
fn targets_are_absolute_plain_and_not_the_sandboxs_own() {
    for (target, plain) in [
        ("/data", "/data"),
        ("/data//x/./y/", "/data/x/y"),
        ("/workspace/in", "/workspace/in"),
        ("/dev/shm", "/dev/shm"),
        ("/tmp", "/tmp"),
        ("/system", "/system"),
    ] {
        assert_eq!(
            parse_target(Path::new(target)),
            Ok(plain.into()),
            "{target}"
        );
    }
    for target in [
        "",
        "data",
        "./data",
        "/",
        "//",
        "/a/../b",
        "/..",
        "/proc",
        "/proc/x",
        "/sys",
        "/sys/fs",
        "/dev",
        "/dev/null",
        "/dev/shm/x",
        "/workspace",
        "/workspace/",
        "/run",
        "/run/stepbox/x",
        "/a\0b",
    ] {
        assert!(parse_target(Path::new(target)).is_err(), "{target:?}");
    }
}

#[test]
fn sources_are_absolute() {
    for source in ["", "x", "./x", "~/x", "/a\0"] {
        assert!(check_source(Path::new(source)).is_err(), "{source:?}");
    }
    assert_eq!(check_source(Path::new("/a/../b")), Ok(()));
}
