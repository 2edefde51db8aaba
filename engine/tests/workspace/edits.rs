//! Text that is replaced in a file.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use stepbox_engine::workspace::FileReason;

use super::{Place, parse, set_mode};

/// The number of places, and the diff.
fn edit(
    place: &Place,
    path: &str,
    (old, new): (&str, &str),
    all: bool,
) -> Result<(u64, Option<String>), FileReason> {
    let texts = (old.as_bytes(), new.as_bytes());
    let edit = place
        .tree
        .edit(&parse(path), texts, all)
        .map_err(|error| error.reason)?;
    let size = edit.size;
    let stat = edit.write.commit().map_err(|error| error.reason)?;
    assert_eq!(stat.size, size);
    Ok((edit.replacements, edit.diff))
}

#[test]
fn one_place_is_replaced_or_all_and_the_rest_stays_as_it_is() {
    let place = Place::new();
    for (before, texts, all, after) in [
        ("a b c\n", ("b", "x"), false, "a x c\n"),
        ("a a a\n", ("a", "xx"), true, "xx xx xx\n"),
        ("a\r\nb\r\nc", ("b\r\n", ""), false, "a\r\nc"),
        ("no end", ("end", "END"), false, "no END"),
        ("aaa", ("aa", "b"), false, "ba"),
        ("é", ("é", "e"), false, "e"),
    ] {
        fs::write(place.path("f"), before).unwrap();
        set_mode(&place.path("f"), 0o750);
        edit(&place, "f", texts, all).unwrap();
        assert_eq!(place.read("f").unwrap(), after.as_bytes());
        let mode = fs::metadata(place.path("f")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o750);
    }
    fs::write(place.path("f"), "a\nb\n").unwrap();
    let (_, diff) = edit(&place, "f", ("b", "c"), false).unwrap();
    let expected = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n";
    assert_eq!(diff.as_deref(), Some(expected));
    fs::write(place.path("f"), b"a\xff\0b").unwrap();
    assert_eq!(edit(&place, "f", ("b", "c"), false).unwrap(), (1, None));
    assert_eq!(place.read("f").unwrap(), b"a\xff\0c");
}

#[test]
fn an_edit_that_cannot_be_leaves_the_file_and_nothing_else() {
    let place = Place::new();
    fs::write(place.path("f"), "a\r\na\r\n").unwrap();
    fs::create_dir(place.path("d")).unwrap();
    symlink(place.outside().join("canary"), place.path("out")).unwrap();
    symlink("f", place.path("link")).unwrap();
    let large = fs::File::create(place.path("large")).unwrap();
    large.set_len((16 << 20) + 1).unwrap();
    for (path, texts, reason) in [
        ("f", ("q", "x"), FileReason::NoMatch),
        ("f", ("a", "x"), FileReason::SeveralMatches { count: 2 }),
        ("none", ("a", "x"), FileReason::NotFound),
        ("none/deep", ("a", "x"), FileReason::NotFound),
        ("d", ("a", "x"), FileReason::IsDirectory),
        ("out", ("outside", "x"), FileReason::InvalidPath),
        ("large", ("a", "x"), FileReason::TooLarge),
    ] {
        assert_eq!(edit(&place, path, texts, false), Err(reason), "{path}");
    }
    let error = place
        .tree
        .edit(&parse("f"), (b"a\na\n", b"x"), false)
        .unwrap_err();
    assert!(error.message.contains("CRLF"), "{error}");
    fs::write(place.path("many"), "a".repeat(1 << 20)).unwrap();
    let grown = edit(&place, "many", ("a", &"x".repeat(100)), true);
    assert_eq!(grown, Err(FileReason::TooLarge));
    assert_eq!(place.read("f").unwrap(), b"a\r\na\r\n");
    assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 6);
    place.assert_outside_is_untouched();

    fs::write(place.path("f"), "once\n").unwrap();
    edit(&place, "link", ("once", "twice"), false).unwrap();
    assert!(place.path("link").is_symlink());
    assert_eq!(place.read("f").unwrap(), b"twice\n");
}

#[test]
fn a_file_that_somebody_wrote_to_meanwhile_is_not_replaced() {
    let place = Place::new();
    type Act = fn(&Place);
    let acts: [Act; 3] = [
        |place| fs::write(place.path("f"), "theirs, longer\n").unwrap(),
        |place| {
            fs::write(place.path("g"), "theirs").unwrap();
            fs::rename(place.path("g"), place.path("f")).unwrap();
        },
        |place| fs::remove_file(place.path("f")).unwrap(),
    ];
    for act in acts {
        fs::write(place.path("f"), "mine\n").unwrap();
        let edit = place
            .tree
            .edit(&parse("f"), (b"mine", b"new"), false)
            .unwrap();
        act(&place);
        assert_eq!(edit.write.commit().unwrap_err().reason, FileReason::Changed);
        let content = fs::read_to_string(place.path("f")).unwrap_or_else(|_| "theirs".into());
        assert!(content.starts_with("theirs"));
    }
    fs::write(place.path("f"), "mine\n").unwrap();
    set_mode(&place.path("f"), 0o400);
    let refused = place
        .tree
        .edit(&parse("f"), (b"mine", b"new"), false)
        .unwrap_err();
    assert_eq!(refused.reason, FileReason::PermissionDenied);
}
