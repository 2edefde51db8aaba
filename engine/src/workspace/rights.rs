//! With whose rights the keeper acts.
//!
//! The keeper holds capabilities over the tree so that it can see and delete what the code made unreadable. A file
//! operation asked for by a caller must not profit from them: it may do what the sandbox user may do. So each act
//! states its rights, absolutely: what an earlier one left in force does not matter.
//!
//! Capabilities belong to the thread; the keeper has one.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::{FileError, FileReason};

/// What looks past the modes of the tree: read and write anything, and chmod what another id owns.
const OVERRIDE: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER);

/// Runs `act` with no effective capability: as the sandbox user.
///
/// # Errors
/// Those of `act`, and [`FileReason::Other`] if the rights cannot be set, where `act` does not run.
pub fn with_user_rights<T>(act: impl FnOnce() -> Result<T, FileError>) -> Result<T, FileError> {
    with_effective(CapabilitySet::empty(), act)
}

/// Runs `act` with the capabilities that look past the modes of the tree, as far as the process was given them.
///
/// # Errors
/// As [`with_user_rights`].
pub fn with_override<T>(act: impl FnOnce() -> Result<T, FileError>) -> Result<T, FileError> {
    with_effective(OVERRIDE, act)
}

/// Runs `act` with those, and with what gives entries to other owners and takes capabilities from files.
///
/// # Errors
/// As [`with_user_rights`].
pub fn with_ownership<T>(act: impl FnOnce() -> Result<T, FileError>) -> Result<T, FileError> {
    with_effective(
        OVERRIDE | CapabilitySet::CHOWN | CapabilitySet::SETFCAP,
        act,
    )
}

/// Whether this thread may look past the modes of the tree at all.
#[must_use]
pub fn may_override() -> bool {
    capabilities(None).is_ok_and(|held| {
        held.permitted
            .intersects(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH)
    })
}

/// Puts the thread's effective set back, also when the act panics.
struct Restore(CapabilitySet);

impl Drop for Restore {
    fn drop(&mut self) {
        // It cannot fail for sets that were in force before; if it did, the next act states its own rights anyway.
        let _ = set_effective(self.0);
    }
}

fn with_effective<T>(
    wanted: CapabilitySet,
    act: impl FnOnce() -> Result<T, FileError>,
) -> Result<T, FileError> {
    let before = set_effective(wanted).map_err(|errno| {
        FileError::new(
            b"",
            FileReason::Other,
            format!("set capabilities {wanted:?}: {errno}"),
        )
    })?;
    let _restore = Restore(before);
    act()
}

/// Makes exactly the permitted part of `wanted` effective, and returns what was.
fn set_effective(wanted: CapabilitySet) -> Result<CapabilitySet, Errno> {
    let mut sets = capabilities(None)?;
    let before = sets.effective;
    let effective = sets.permitted & wanted;
    if effective != before {
        sets.effective = effective;
        set_capabilities(None, sets)?;
    }
    Ok(before)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn effective() -> CapabilitySet {
        capabilities(None).unwrap().effective
    }

    #[test]
    fn user_rights_hold_no_capability_and_the_old_ones_come_back() {
        let before = effective();
        let during = with_user_rights(|| Ok(effective())).unwrap();
        assert_eq!(during, CapabilitySet::empty());
        assert_eq!(effective(), before);
    }

    #[test]
    fn override_holds_only_what_looks_past_modes() {
        let during = with_override(|| Ok(effective())).unwrap();
        assert!(OVERRIDE.contains(during));
        assert_eq!(
            may_override(),
            during.intersects(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH)
        );
    }

    #[test]
    fn rights_come_back_after_a_panic() {
        let before = effective();
        let panicked = std::panic::catch_unwind(|| {
            let _: Result<(), FileError> = with_user_rights(|| panic!("on purpose"));
        });
        assert!(panicked.is_err());
        assert_eq!(effective(), before);
    }
}
