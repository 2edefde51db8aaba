//! Where the file system cannot translate owners.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::in_own_mounts;
use crate::place::{CALLER, OTHER, Place, give, not_owned_by, owner, trace};
use crate::run::{Waiting, command, run, says, told};

const IN_PLACE: &str = "owners: changed in place and given back at close";

/// All but what is another's from the start.
fn assert_is_the_caller_s(place: &Place) {
    assert_eq!(
        not_owned_by(&place.workspace(), CALLER),
        [place.path("their-own")]
    );
    assert_eq!(owner(&place.path("their-own")), OTHER);
}

#[test]
fn the_code_has_the_caller_s_files_and_all_that_it_leaves_is_the_caller_s() {
    if !in_own_mounts(
        "in_place::the_code_has_the_caller_s_files_and_all_that_it_leaves_is_the_caller_s",
    ) {
        return;
    }
    let place = Place::on_overlay();
    let result = run(
        &place,
        "import os
assert open('read').read() == 'read'
open('written', 'a').write(' more')
os.remove('deleted')
os.makedirs('new/directory')
open('new/directory/file', 'w').close()
os.symlink('/etc/passwd', 'new/link')
os.link('written', 'second-name')
os.chmod('below', 0o000)
assert os.stat('written').st_uid == os.getuid()",
    );
    assert!(says(&result, IN_PLACE), "{result}");
    assert_is_the_caller_s(&place);
    assert_eq!(fs::read(place.path("written")).unwrap(), b"written more");
    assert!(!place.path("deleted").exists());
    assert!(place.path("new/directory/file").is_file());
    assert!(place.path("new/link").is_symlink());
    assert!(
        fs::read_dir(place.engines().join("stepbox-0"))
            .unwrap()
            .next()
            .is_none()
    );
}

#[test]
fn what_a_link_names_outside_and_files_with_names_outside_are_left_alone() {
    if !in_own_mounts(
        "in_place::what_a_link_names_outside_and_files_with_names_outside_are_left_alone",
    ) {
        return;
    }
    let place = Place::on_overlay();
    let left_alone = [
        place.outside("canary"),
        place.outside("two-names"),
        place.path("set-id"),
        place.path("their-own"),
    ];
    let before = left_alone.each_ref().map(|path| trace(path));
    let result = run(&place, "");
    assert!(says(&result, IN_PLACE), "{result}");
    assert_eq!(left_alone.each_ref().map(|path| trace(path)), before);
    let mode = fs::metadata(place.path("set-id"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o4755);
    assert_is_the_caller_s(&place);
}

#[test]
fn the_launcher_gives_everything_back_when_the_engine_is_killed() {
    if !in_own_mounts("in_place::the_launcher_gives_everything_back_when_the_engine_is_killed") {
        return;
    }
    let place = Place::on_overlay();
    let waiting = Waiting::start(&place);
    assert_ne!(owner(&place.path("made")), CALLER);
    assert_ne!(owner(&place.path("read")), CALLER);
    waiting.kill_engine();
    assert!(place.path("made").is_file());
    assert_is_the_caller_s(&place);
}

#[test]
fn the_engine_gives_everything_back_when_the_launcher_is_killed() {
    if !in_own_mounts("in_place::the_engine_gives_everything_back_when_the_launcher_is_killed") {
        return;
    }
    let place = Place::on_overlay();
    Waiting::start(&place).kill_launcher();
    assert!(place.path("made").is_file());
    assert_is_the_caller_s(&place);
}

#[test]
fn the_next_engine_gives_everything_back_when_engine_and_launcher_are_killed() {
    if !in_own_mounts(
        "in_place::the_next_engine_gives_everything_back_when_engine_and_launcher_are_killed",
    ) {
        return;
    }
    let place = Place::on_overlay();
    Waiting::start(&place).kill_both();
    assert_ne!(owner(&place.path("made")), CALLER);
    // In a workspace of another file system, so that it is the sweep that gives back.
    let elsewhere = Place::on_disk();
    let next = command(&place, &elsewhere.workspace(), "")
        .output()
        .unwrap();
    assert!(next.status.success(), "{}", told(&next));
    assert!(place.path("made").is_file());
    assert_is_the_caller_s(&place);
    assert!(
        fs::read_dir(place.engines().join("stepbox-0"))
            .unwrap()
            .next()
            .is_none()
    );
}

#[test]
fn a_tree_that_another_session_has_is_refused_and_what_was_taken_by_then_is_given_back() {
    if !in_own_mounts(
        "in_place::a_tree_that_another_session_has_is_refused_and_what_was_taken_by_then_is_given_back",
    ) {
        return;
    }
    let place = Place::on_overlay();
    let free = place.outside("free");
    fs::create_dir(&free).unwrap();
    fs::write(free.join("file"), "").unwrap();
    give(&free, CALLER);
    let waiting = Waiting::start(&place);
    let borrowed = owner(&place.path("read"));
    let refused = command(&place, &free, "")
        .arg("--mount")
        .arg(format!("{}:/mnt/below:rw", place.path("below").display()))
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(125), "{}", told(&refused));
    assert!(
        told(&refused).contains("another session has it"),
        "{}",
        told(&refused)
    );
    assert!(not_owned_by(&free, CALLER).is_empty());
    assert_eq!(owner(&place.path("read")), borrowed);
    waiting.finish();
    assert_is_the_caller_s(&place);
}
