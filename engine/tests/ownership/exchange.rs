//! The exchange of owners itself, in trees that resist.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat, statat};
use stepbox_engine::workspace::ownership::{Owner, give_back, lend};

use crate::place::{CALLER, OTHER, Place, give, not_owned_by, owner, set, trace};
use crate::{in_own_mounts, is_root};

const BORROWER: Owner = Owner {
    uid: 4_000_001,
    gid: 4_000_001,
};

fn open(path: &Path) -> OwnedFd {
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn what_was_lent_and_what_was_made_since_is_given_back() {
    if !is_root() {
        return;
    }
    let place = Place::on_disk();
    let root = open(&place.workspace());
    lend(root.as_fd(), CALLER, BORROWER).unwrap();
    for lent in ["", "read", "link", "go", "below/deep", "below/deep/kept"] {
        assert_eq!(owner(&place.path(lent)), BORROWER, "{lent}");
    }
    fs::hard_link(place.path("read"), place.path("again")).unwrap();
    fs::write(place.path("below/made"), "").unwrap();
    set(&place.path("below/made"), BORROWER);
    give_back(root.as_fd(), BORROWER, CALLER).unwrap();
    assert_eq!(
        not_owned_by(&place.workspace(), CALLER),
        [place.path("their-own")]
    );
}

#[test]
fn files_with_several_names_set_id_files_devices_and_others_files_are_not_lent() {
    if !is_root() {
        return;
    }
    let place = Place::on_disk();
    let device = place.path("device");
    let made = mknodat(
        CWD,
        &device,
        FileType::CharacterDevice,
        Mode::RUSR,
        rustix::fs::makedev(1, 3),
    );
    let mut left_alone = vec!["two-names", "set-id", "their-own"];
    if made.is_ok() {
        set(&device, CALLER);
        left_alone.push("device");
    }
    let before: Vec<_> = left_alone
        .iter()
        .map(|name| trace(&place.path(name)))
        .collect();
    lend(open(&place.workspace()).as_fd(), CALLER, BORROWER).unwrap();
    let after: Vec<_> = left_alone
        .iter()
        .map(|name| trace(&place.path(name)))
        .collect();
    assert_eq!(after, before);
}

#[test]
fn nothing_is_given_back_with_set_id_bits() {
    if !is_root() {
        return;
    }
    let place = Place::on_disk();
    let planted = place.path("read");
    set(&planted, BORROWER);
    fs::set_permissions(&planted, fs::Permissions::from_mode(0o6777)).unwrap();
    give_back(open(&place.workspace()).as_fd(), BORROWER, CALLER).unwrap();
    assert_eq!(owner(&planted), CALLER);
    let mode = fs::metadata(&planted).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o777);
}

#[test]
fn a_group_that_is_not_the_lender_s_stays() {
    if !is_root() {
        return;
    }
    let place = Place::on_disk();
    let shared = Owner {
        gid: OTHER.gid,
        ..CALLER
    };
    set(&place.path("read"), shared);
    let root = open(&place.workspace());
    lend(root.as_fd(), CALLER, BORROWER).unwrap();
    assert_eq!(owner(&place.path("read")).uid, BORROWER.uid);
    assert_eq!(owner(&place.path("read")).gid, OTHER.gid);
    give_back(root.as_fd(), BORROWER, CALLER).unwrap();
    assert_eq!(owner(&place.path("read")), shared);
}

#[test]
fn a_file_is_lent_by_itself() {
    if !is_root() {
        return;
    }
    let place = Place::on_disk();
    let file = open(&place.path("read"));
    lend(file.as_fd(), CALLER, BORROWER).unwrap();
    assert_eq!(owner(&place.path("read")), BORROWER);
    give_back(file.as_fd(), BORROWER, CALLER).unwrap();
    assert_eq!(owner(&place.path("read")), CALLER);
}

#[test]
fn a_tree_deeper_than_any_path_is_given_back_to_its_end() {
    if !is_root() {
        return;
    }
    let place = Place::on_disk();
    let name = "d".repeat(200);
    let mut at = open(&place.workspace());
    let mut levels = Vec::new();
    for _ in 0..64 {
        mkdirat(&at, &name, Mode::RWXU).unwrap();
        let below = openat(&at, &name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        rustix::fs::chownat(
            &below,
            c"",
            Some(rustix::fs::Uid::from_raw(BORROWER.uid)),
            Some(rustix::fs::Gid::from_raw(BORROWER.gid)),
            AtFlags::EMPTY_PATH,
        )
        .unwrap();
        levels.push(std::mem::replace(&mut at, below));
    }
    give_back(open(&place.workspace()).as_fd(), BORROWER, CALLER).unwrap();
    for above in &levels {
        let stat = statat(above, &name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert_eq!((stat.st_uid, stat.st_gid), (CALLER.uid, CALLER.gid));
    }
}

#[test]
fn what_is_mounted_in_the_tree_is_not_of_it() {
    if !in_own_mounts("exchange::what_is_mounted_in_the_tree_is_not_of_it") {
        return;
    }
    let place = Place::on_disk();
    rustix::mount::mount_bind(place.outside(""), place.path("below")).unwrap();
    rustix::mount::mount_bind(place.outside("canary"), place.path("read")).unwrap();
    let before = [trace(&place.outside("")), trace(&place.outside("canary"))];
    lend(open(&place.workspace()).as_fd(), CALLER, BORROWER).unwrap();
    assert_eq!(
        [trace(&place.outside("")), trace(&place.outside("canary"))],
        before
    );
    assert_eq!(owner(&place.path("written")), BORROWER);
    for mounted in ["below", "read"] {
        rustix::mount::unmount(place.path(mounted), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn code_that_swaps_directories_for_links_leads_nowhere() {
    if !is_root() {
        return;
    }
    let place = Place::on_disk();
    // As if the code had the id of what lies outside.
    give(&place.outside(""), BORROWER);
    let before = [trace(&place.outside("")), trace(&place.outside("canary"))];
    let root = open(&place.workspace());
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let (real, spare, entry) =
                (place.path("real"), place.path("spare"), place.path("entry"));
            fs::create_dir(&real).unwrap();
            fs::write(real.join("canary"), "").unwrap();
            symlink("../outside", &spare).unwrap();
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&real, &entry).unwrap();
                fs::rename(&entry, &real).unwrap();
                fs::rename(&spare, &entry).unwrap();
                fs::rename(&entry, &spare).unwrap();
            }
        });
        for _ in 0..300 {
            lend(root.as_fd(), CALLER, BORROWER).unwrap();
            give_back(root.as_fd(), BORROWER, CALLER).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        [trace(&place.outside("")), trace(&place.outside("canary"))],
        before
    );
}
