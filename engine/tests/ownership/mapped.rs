//! Where the file system translates owners, and what the code cannot leave there for the host.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::is_root;
use crate::place::{CALLER, Place, owner, trace};
use crate::run::{run, says};

/// A place whose file system translates owners, or none with the reason said.
fn translating(result: &serde_json::Value) -> bool {
    let translates = says(result, "owners: mapped");
    if !translates {
        eprintln!("skipped: the file system of temporary files has no idmapped mounts");
    }
    translates
}

#[test]
fn files_that_the_code_does_not_touch_are_not_touched_by_the_session() {
    if !is_root() {
        return;
    }
    let place = Place::on_disk();
    let untouched = [
        "read",
        "written",
        "set-id",
        "two-names",
        "their-own",
        "link",
        "below/deep/kept",
        "below/deep",
    ]
    .map(|name| place.path(name));
    let before = untouched.each_ref().map(|path| trace(path));
    let result = run(
        &place,
        "assert open('read').read() == 'read'\nopen('made', 'w').close()",
    );
    if translating(&result) {
        assert_eq!(untouched.each_ref().map(|path| trace(path)), before);
        assert_eq!(owner(&place.path("made")), CALLER);
    }
}

#[test]
fn the_code_leaves_no_file_capabilities_and_no_set_id_bits() {
    if !is_root() {
        return;
    }
    let place = Place::on_disk();
    let result = run(
        &place,
        "import errno, os, struct
def attempt(name, act):
    try:
        act()
        print(name, 'done')
    except OSError as error:
        print(name, errno.errorcode[error.errno])
every = (0xffffffff, 0xffffffff) * 2
second = struct.pack('<I4I', 0x02000001, *every)
third = struct.pack('<I4II', 0x03000001, *every, 1000)
def xattr(name, value):
    return lambda: os.setxattr('written', name, value)
attempt('capabilities', xattr('security.capability', second))
attempt('namespaced', xattr('security.capability', third))
attempt('label', xattr('security.label', b'x'))
attempt('user', xattr('user.note', b'x'))
def mode(bits):
    return lambda: os.chmod('written', bits)
attempt('set-uid', mode(0o4777))
attempt('set-gid', mode(0o2777))
attempt('both', mode(0o6777))
attempt('plain', mode(0o755))
attempt('made', lambda: os.close(os.open('made', os.O_CREAT | os.O_WRONLY, 0o6777)))
attempt('directory', lambda: os.mkdir('directory', 0o2777))
",
    );
    let said: Vec<_> = result["stdout"].as_str().unwrap().lines().collect();
    let user = said.iter().find(|line| line.starts_with("user ")).unwrap();
    assert!(["user done", "user ENOTSUP"].contains(user), "{user}");
    assert_eq!(
        said.iter()
            .filter(|line| !line.starts_with("user "))
            .collect::<Vec<_>>(),
        [
            &"capabilities EPERM",
            &"namespaced EPERM",
            &"label EPERM",
            &"set-uid EPERM",
            &"set-gid EPERM",
            &"both EPERM",
            &"plain done",
            &"made EPERM",
            &"directory EPERM",
        ]
    );
    let mode = fs::metadata(place.path("written"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o755);
    for name in ["security.capability", "security.label"] {
        let left = rustix::fs::lgetxattr(place.path("written"), name, &mut [0; 64]);
        assert!(left.is_err(), "{name}");
    }
    assert!(!place.path("made").exists());
    assert!(!place.path("directory").exists());
}
