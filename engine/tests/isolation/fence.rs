//! The Landlock fence by itself, with no mount and no owner that would refuse anything.
//!
//! A fence belongs to a thread and to what that starts: each test puts its own up in a thread of its own.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::thread;

use stepbox_engine::sandbox::landlock::{Fence, enter};

/// Runs `attack` behind a fence around one directory. Nothing, where the kernel has no Landlock to use.
fn behind<T: Send>(inside: &Path, attack: impl FnOnce() -> T + Send) -> Option<T> {
    let Some(fence) = Fence::around(vec![inside.to_owned()]) else {
        assert_ne!(
            std::env::var("STEPBOX_TEST_REQUIRE").as_deref(),
            Ok("all"),
            "this kernel has no Landlock to use"
        );
        return None;
    };
    let rules = fence.rules(None).unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            enter(rules.as_fd(), fence.flags()).unwrap();
            attack()
        });
        Some(thread.join().unwrap())
    })
}

fn refused<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| {
        matches!(
            error.raw_os_error(),
            Some(libc::EACCES | libc::EXDEV | libc::EPERM)
        )
    })
}

#[test]
fn what_is_outside_can_be_read_and_not_changed_in_any_way() {
    let place = tempfile::tempdir().unwrap();
    let (inside, outside) = (place.path().join("inside"), place.path().join("outside"));
    for directory in [&inside, &outside] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("file"), "as it was").unwrap();
    }
    let canary = outside.join("file");
    // Whoever may write by name could do it through a link as well.
    symlink(&canary, inside.join("link")).unwrap();
    let held = fs::File::open(&canary).unwrap();
    behind(&inside, || {
        assert!(refused(fs::write(&canary, "x")));
        assert!(refused(fs::write(inside.join("link"), "x")));
        assert!(refused(fs::write(
            format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held)),
            "x"
        )));
        assert!(refused(fs::write(outside.join("new"), "x")));
        assert!(refused(fs::create_dir(outside.join("new"))));
        assert!(refused(symlink("x", outside.join("new"))));
        assert!(refused(UnixListener::bind(outside.join("new"))));
        assert!(refused(fs::remove_file(&canary)));
        assert!(refused(fs::rename(&canary, inside.join("taken"))));
        assert!(refused(fs::hard_link(&canary, inside.join("taken"))));
        assert!(refused(fs::rename(
            inside.join("file"),
            outside.join("new")
        )));
        assert!(refused(fs::rename(&outside, inside.join("taken"))));
        assert_eq!(fs::read_to_string(&canary).unwrap(), "as it was");

        fs::write(inside.join("file"), "changed").unwrap();
        fs::create_dir(inside.join("directory")).unwrap();
        fs::rename(inside.join("file"), inside.join("directory/file")).unwrap();
        fs::hard_link(inside.join("directory/file"), inside.join("again")).unwrap();
        symlink("again", inside.join("another")).unwrap();
        UnixListener::bind(inside.join("socket")).unwrap();
        fs::remove_file(inside.join("again")).unwrap();
        fs::write("/dev/null", "x").unwrap();
    });
    assert_eq!(fs::read_to_string(&canary).unwrap(), "as it was");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn nothing_is_mounted_behind_the_fence() {
    let place = tempfile::tempdir().unwrap();
    behind(place.path(), || {
        // Wherever mounting is allowed at all; a bind onto itself changes nothing where the fence is broken.
        let script = "unshare --user --map-root-user --mount sh -c 'mount --bind \"$0\" \"$0\" && echo mounted' .";
        let output = Command::new("sh")
            .args(["-c", script])
            .current_dir(place.path())
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"");
    });
}

#[test]
fn signals_and_abstract_sockets_stay_behind_the_fence() {
    if stepbox_engine::sys::landlock::abi().is_none_or(|abi| abi < 6) {
        return;
    }
    let name = |name: &str| {
        SocketAddr::from_abstract_name(format!("stepbox-{name}-{}", std::process::id())).unwrap()
    };
    let outside = UnixListener::bind_addr(&name("outside")).unwrap();
    let place = tempfile::tempdir().unwrap();
    behind(place.path(), || {
        let signal = |target: &str| {
            let script = format!("kill -0 {target} 2> /dev/null");
            Command::new("sh")
                .args(["-c", &script])
                .status()
                .unwrap()
                .success()
        };
        assert!(!signal(&std::process::id().to_string()));
        assert!(signal("$$"));
        assert!(refused(UnixStream::connect_addr(&name("outside"))));
        let own = UnixListener::bind_addr(&name("own")).unwrap();
        UnixStream::connect_addr(&name("own")).unwrap();
        own.accept().unwrap();
    });
    outside.set_nonblocking(true).unwrap();
    assert_eq!(
        outside.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    // It is there for everybody else.
    UnixStream::connect_addr(&name("outside")).unwrap();
}
