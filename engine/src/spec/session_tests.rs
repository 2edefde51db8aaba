use std::collections::BTreeMap;

use super::super::mount::{HostPlaces, SourceKind, Unobservable};
use super::super::request::TmpfsRequest;
use super::*;

/// A host on which every path that does not start with `/missing` is a directory.
#[derive(Default)]
struct Plain {
    places: HostPlaces,
}

impl Host for Plain {
    fn observe(&self, source: &Path, may_be_missing: bool) -> Result<Observed, Unobservable> {
        let missing = source.starts_with("/missing");
        if missing && !may_be_missing {
            return Err(Unobservable::Missing);
        }
        Ok(Observed {
            path: source.into(),
            identity: (!missing).then_some((7, 8)),
            kind: if source.ends_with("file") {
                SourceKind::File
            } else {
                SourceKind::Dir
            },
        })
    }
    fn find_socket(&self, observed: &Observed) -> Option<PathBuf> {
        let path = &observed.path;
        path.ends_with("sockets").then(|| path.join("s"))
    }
    fn places(&self) -> &HostPlaces {
        &self.places
    }
}

fn parsed(request: SpecRequest) -> Result<SandboxSpec, Vec<Violation>> {
    parse_spec(request, &Plain::default(), &HostAccess::Own)
}

fn said(request: SpecRequest) -> Vec<(String, bool)> {
    let violations = parsed(request).expect_err("refused");
    let each = violations.into_iter();
    each.map(|violation| (violation.field, violation.mount_refused))
        .collect()
}

fn bind(source: &str, target: &str) -> MountRequest {
    MountRequest {
        source: source.into(),
        target: target.into(),
        ..MountRequest::default()
    }
}

#[test]
fn nothing_said_is_the_defaults() {
    let spec = parsed(SpecRequest::default()).expect("defaults");
    assert_eq!(
        spec.limits,
        Limits {
            memory: Some(512 << 20),
            pids: Some(256),
            cpu: None
        }
    );
    assert_eq!(spec.timeout, Duration::from_secs(30));
    assert_eq!(spec.max_output, 64 << 20);
    assert_eq!(spec.workspace, WorkspaceSource::Private);
    assert!(spec.enforce_limits && spec.track_files && spec.file_diffs);
    assert_eq!(spec.tmpfs.len(), 1);
    assert!(spec.protect.contains(&".git/hooks".to_owned()));
}

#[test]
fn numbers_out_of_range_are_refused_by_field() {
    let base = SpecRequest::default;
    let table: Vec<(&str, SpecRequest)> = vec![
        (
            "memory_mb",
            SpecRequest {
                memory_mb: Cap::Max(15),
                ..base()
            },
        ),
        (
            "memory_mb",
            SpecRequest {
                memory_mb: Cap::Max(u64::MAX),
                ..base()
            },
        ),
        (
            "pids",
            SpecRequest {
                pids: Cap::Max(0),
                ..base()
            },
        ),
        (
            "pids",
            SpecRequest {
                pids: Cap::Max(1),
                ..base()
            },
        ),
        (
            "cpus",
            SpecRequest {
                cpus: Some(0.0),
                ..base()
            },
        ),
        (
            "cpus",
            SpecRequest {
                cpus: Some(-1.0),
                ..base()
            },
        ),
        (
            "cpus",
            SpecRequest {
                cpus: Some(f64::NAN),
                ..base()
            },
        ),
        (
            "cpus",
            SpecRequest {
                cpus: Some(f64::INFINITY),
                ..base()
            },
        ),
        (
            "timeout_s",
            SpecRequest {
                timeout_s: Some(0.0),
                ..base()
            },
        ),
        (
            "timeout_s",
            SpecRequest {
                timeout_s: Some(-1.0),
                ..base()
            },
        ),
        (
            "timeout_s",
            SpecRequest {
                timeout_s: Some(f64::NAN),
                ..base()
            },
        ),
        (
            "timeout_s",
            SpecRequest {
                timeout_s: Some(f64::INFINITY),
                ..base()
            },
        ),
        (
            "timeout_s",
            SpecRequest {
                timeout_s: Some(1e300),
                ..base()
            },
        ),
        (
            "ttl_s",
            SpecRequest {
                ttl_s: Some(0.0),
                ..base()
            },
        ),
        (
            "max_output_bytes",
            SpecRequest {
                max_output_bytes: Some(u64::MAX),
                ..base()
            },
        ),
        (
            "image",
            SpecRequest {
                image: Some("python:3.12".into()),
                ..base()
            },
        ),
        (
            "name",
            SpecRequest {
                name: Some("a b".into()),
                ..base()
            },
        ),
    ];
    for (field, request) in table {
        assert_eq!(said(request), [(field.to_owned(), false)]);
    }
}

#[test]
fn uncapped_is_kept_as_said() {
    let spec = parsed(SpecRequest {
        memory_mb: Cap::Uncapped,
        pids: Cap::Uncapped,
        cpus: Some(0.5),
        ..SpecRequest::default()
    })
    .expect("parsed");
    assert_eq!(
        spec.limits,
        Limits {
            memory: None,
            pids: None,
            cpu: Some(500)
        }
    );
}

#[test]
fn refused_mounts_are_marked_and_other_mistakes_are_not() {
    let request = SpecRequest {
        workspace: Some("/etc".into()),
        mounts: vec![
            bind("/data", "/in"),
            bind("data", "/a"),
            bind("/missing", "/b"),
            bind("/root", "/c"),
            bind("/data", "/proc/x"),
            bind("/other/sockets", "/d"),
            bind("/more", "/in/"),
        ],
        env: BTreeMap::from([(String::new(), String::new())]),
        timeout_s: Some(0.0),
        ..SpecRequest::default()
    };
    let expected = [
        ("timeout_s", false),
        ("env[\"\"]", false),
        ("workspace", true),
        ("mounts[\"data\"]", true),
        ("mounts[\"/missing\"]", true),
        ("mounts[\"/root\"]", true),
        ("mounts[\"/data\"]", true),
        ("mounts[\"/other/sockets\"]", true),
        ("mounts[\"/more\"]", false),
    ];
    assert_eq!(
        said(request),
        expected.map(|(field, mount)| (field.to_owned(), mount))
    );
}

#[test]
fn a_workspace_may_be_missing_but_must_be_a_directory() {
    let spec = parsed(SpecRequest {
        workspace: Some("/missing/project".into()),
        ..SpecRequest::default()
    })
    .expect("parsed");
    assert_eq!(
        spec.workspace,
        WorkspaceSource::Given {
            path: "/missing/project".into(),
            allow_sockets: false
        }
    );
    for path in ["/data/file", "relative", "", "/data/sockets"] {
        let request = SpecRequest {
            workspace: Some(path.into()),
            ..SpecRequest::default()
        };
        assert_eq!(said(request), [("workspace".to_owned(), true)], "{path}");
    }
}

#[test]
fn a_bind_at_tmp_takes_the_place_of_the_default() {
    let spec = parsed(SpecRequest {
        mounts: vec![bind("/data", "/tmp")],
        ..SpecRequest::default()
    })
    .expect("parsed");
    assert_eq!(spec.tmpfs, []);
    assert_eq!(spec.mounts[0].identity, (7, 8));
    let covering = SpecRequest {
        mounts: vec![bind("/data", "/a/b")],
        tmpfs: Some(vec![TmpfsRequest {
            target: "/a".into(),
            size: "1m".into(),
        }]),
        ..SpecRequest::default()
    };
    assert_eq!(said(covering), [("tmpfs[\"/a\"]".to_owned(), false)]);
}

#[test]
fn an_interpreter_of_a_home_is_refused_and_its_prefixes_are_kept_once() {
    let interpreter = |prefixes: &[&str]| SpecRequest {
        interpreter: Some(InterpreterRequest {
            executable: "/opt/venv/bin/python".into(),
            prefixes: prefixes.iter().map(PathBuf::from).collect(),
            version: "3.11.7".into(),
        }),
        ..SpecRequest::default()
    };
    let spec = parsed(interpreter(&["/opt/venv", "/usr", "/opt/venv/", "/usr"])).expect("parsed");
    let kept = spec.interpreter.expect("kept");
    assert_eq!(kept.prefixes, [Path::new("/opt/venv"), Path::new("/usr")]);
    for prefix in ["/", "/root", "relative", "/missing", "/opt/../etc"] {
        assert_eq!(
            said(interpreter(&[prefix])),
            [("interpreter.prefixes".to_owned(), true)],
            "{prefix}"
        );
    }
}

#[test]
fn a_caller_from_afar_names_no_host_path() {
    let request = SpecRequest {
        workspace: Some("/data/a".into()),
        mounts: vec![bind("/data/b", "/b"), bind("/allowed/c", "/c")],
        interpreter: Some(InterpreterRequest {
            executable: "/opt/python".into(),
            ..InterpreterRequest::default()
        }),
        ..SpecRequest::default()
    };
    let access = HostAccess::Below(vec!["/allowed".into()]);
    let violations = parse_spec(request, &Plain::default(), &access).expect_err("refused");
    let fields: Vec<_> = violations
        .iter()
        .map(|violation| violation.field.as_str())
        .collect();
    assert_eq!(
        fields,
        ["workspace", "mounts[\"/data/b\"]", "interpreter.executable"]
    );
    assert!(
        violations
            .iter()
            .all(|violation| violation.description.contains("--allow-host-path"))
    );
}

#[test]
fn protected_names_stay_in_the_workspace() {
    let protect = |names: &[&str]| SpecRequest {
        protect: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..SpecRequest::default()
    };
    assert_eq!(
        parsed(protect(&[])).expect("none").protect,
        Vec::<String>::new()
    );
    assert_eq!(
        parsed(protect(&[".git/hooks", "x"]))
            .expect("two")
            .protect
            .len(),
        2
    );
    for name in ["", "/etc", "..", "a/../b", "a\0"] {
        assert_eq!(said(protect(&[name])).len(), 1, "{name:?}");
    }
}
