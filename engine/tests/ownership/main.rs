//! Whose files they are during a session and after it. For root: others have no second id to give files to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(
    clippy::disallowed_methods,
    reason = "runs the engine as its user does, and itself in mounts of its own"
)]

mod exchange;
mod in_place;
mod mapped;
mod place;
mod run;

/// Whether this test can mean something here.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root changes owners");
    }
    root
}

/// Whether this process may mount as it likes. If not, the test of this name is run again in one that may, with a mount
/// namespace of its own.
fn in_own_mounts(test: &str) -> bool {
    const MARK: &str = "STEPBOX_TEST_OWN_MOUNTS";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    if !is_root() {
        return false;
    }
    let in_own_mounts = || {
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private"]);
        unshare
    };
    if !in_own_mounts()
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("skipped: no mount namespace for this user");
        return false;
    }
    let again = in_own_mounts()
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(
        again.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&again.stderr)
    );
    false
}
