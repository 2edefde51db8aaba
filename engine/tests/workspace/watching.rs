use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use stepbox_engine::workspace::{Told, Watch};

use super::{Place, set_mode};

/// A watch over a settled workspace: a directory with a file in it, looked at until nothing was new.
fn settled(place: &Place) -> Watch {
    fs::create_dir_all(place.path("d/below")).unwrap();
    fs::write(place.path("d/f"), "text").unwrap();
    let mut watch = Watch::new().unwrap();
    assert!(
        !look(&mut watch, place),
        "the first look is before the watches"
    );
    assert!(look(&mut watch, place));
    watch
}

fn look(watch: &mut Watch, place: &Place) -> bool {
    let _ = watch.hear();
    let snapshot = place.scan(None);
    let complete = watch.extend(&place.tree, &snapshot);
    // Its own reading.
    assert!(watch.hear() < Told::Touched);
    complete
}

fn is_touched(watch: &Watch) -> bool {
    let queue = watch.queue();
    let mut polled = [PollFd::new(&queue, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn whatever_changes_an_entry_is_told_and_listing_is_not() {
    let place = Place::new();
    let file = place.path("d/f");
    type Act<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let acts: Vec<Act<'_>> = vec![
        ("write", Box::new(|| fs::write(&file, "other").unwrap())),
        (
            "append",
            Box::new(|| {
                let mut opened = fs::OpenOptions::new().append(true).open(&file).unwrap();
                opened.write_all(b"x").unwrap();
            }),
        ),
        ("write through a mapping", Box::new(|| write_mapped(&file))),
        ("mode", Box::new(|| set_mode(&file, 0o600))),
        (
            "new file",
            Box::new(|| fs::write(place.path("d/below/n"), "").unwrap()),
        ),
        (
            "new directory",
            Box::new(|| fs::create_dir(place.path("d/new")).unwrap()),
        ),
        (
            "link",
            Box::new(|| symlink("f", place.path("d/l")).unwrap()),
        ),
        (
            "second name",
            Box::new(|| fs::hard_link(&file, place.path("second")).unwrap()),
        ),
        (
            "rename",
            Box::new(|| fs::rename(place.path("second"), place.path("third")).unwrap()),
        ),
        (
            "removal",
            Box::new(|| fs::remove_file(place.path("third")).unwrap()),
        ),
        (
            "removal of a directory",
            Box::new(|| fs::remove_dir(place.path("d/new")).unwrap()),
        ),
        (
            "mode of the root",
            Box::new(|| set_mode(&place.path(""), 0o711)),
        ),
    ];
    let mut watch = settled(&place);
    for (name, act) in &acts {
        assert!(!is_touched(&watch), "before: {name}");
        act();
        assert!(is_touched(&watch), "after: {name}");
        assert_eq!(watch.hear(), Told::Touched, "after: {name}");
        while !look(&mut watch, &place) {}
    }
    fs::metadata(&file).unwrap();
    assert!(!is_touched(&watch), "asking");
    fs::read_dir(place.path("d")).unwrap().count();
    fs::read_dir(place.path("")).unwrap().count();
    assert_eq!(watch.hear(), Told::Nothing, "listing");
}

#[test]
fn a_file_that_is_opened_is_told_before_it_is_closed_and_however_it_is_opened() {
    let place = Place::new();
    let watch = settled(&place);
    let file = place.path("d/f");
    for write in [true, false] {
        let opened = fs::OpenOptions::new().read(true).write(write).open(&file);
        assert_eq!(watch.hear(), Told::Opened);
        assert_eq!(watch.hear(), Told::Nothing);
        drop(opened.unwrap());
        let _ = watch.hear();
    }
}

/// The file is closed before the store, as programs do.
#[expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a mapping has no safe wrapper"
)]
fn write_mapped(path: &std::path::Path) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    // SAFETY: the kernel chooses the address, and the mapping is used within its length and removed here.
    unsafe {
        let mapped = mmap(
            std::ptr::null_mut(),
            1,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file.as_fd(),
            0,
        )
        .unwrap();
        drop(file);
        mapped.cast::<u8>().write(b'm');
        munmap(mapped, 1).unwrap();
    }
}

#[test]
fn a_directory_that_is_new_is_watched_before_it_counts_as_settled() {
    let place = Place::new();
    let mut watch = settled(&place);
    fs::create_dir_all(place.path("e/deep")).unwrap();
    assert!(!look(&mut watch, &place), "both were not watched yet");
    fs::write(place.path("e/deep/f"), "").unwrap();
    assert!(is_touched(&watch));
    assert!(look(&mut watch, &place));
    assert!(!is_touched(&watch));
}

#[test]
fn a_look_that_ended_at_its_budget_settles_nothing() {
    let place = Place::new();
    let mut watch = settled(&place);
    let mut budget = super::patient();
    budget.max_entries = 1;
    let _ = watch.hear();
    let snapshot = place.tree.scan(budget, None).unwrap();
    assert!(snapshot.truncated);
    assert!(!watch.extend(&place.tree, &snapshot));
}
