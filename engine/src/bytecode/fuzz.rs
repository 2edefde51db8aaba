//! What a compile hands back, as bytes that nobody vouches for.

use std::fs;
use std::path::Path;

use super::Part;

/// Counts what is below, and looks at each.
fn made(directory: &Path) -> u64 {
    let mut count = 0;
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("its kind");
        count += 1;
        let bytecode = entry.file_name().as_encoded_bytes().ends_with(b".pyc");
        assert_eq!(bytecode, !kind.is_dir(), "{:?}", entry.path());
        assert!(kind.is_dir() || kind.is_file() || kind.is_symlink());
        if kind.is_dir() {
            count += made(&entry.path());
        }
    }
    count
}

/// Two rounds, cut where the first byte says. Nothing is made outside of the part, and all that is made is counted.
pub fn archives(bytes: &[u8]) {
    let Some((cut, bytes)) = bytes.split_first() else {
        return;
    };
    let place = tempfile::tempdir().expect("a directory");
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("part")).expect("made");
    fs::create_dir(at("outside")).expect("made");
    fs::write(at("outside/canary.pyc"), "canary").expect("written");
    let mut part = Part::default();
    let (first, second) = bytes.split_at(bytes.len() * usize::from(*cut) / 255);
    for round in [first, second] {
        let before = part;
        let done = part.unpack(&at("part"), round);
        assert!(part.files >= before.files && part.bytes >= before.bytes);
        assert!(part.bytes - before.bytes <= round.len() as u64);
        if done.is_err() {
            break;
        }
        assert!(made(&at("part")) <= part.files, "{part:?}");
        if part.complete {
            break;
        }
        assert!(
            part.next > before.next,
            "a round that does nothing is asked for again"
        );
    }
    made(&at("part"));
    assert_eq!(
        fs::read(at("outside/canary.pyc")).ok().as_deref(),
        Some(&b"canary"[..])
    );
    assert_eq!(fs::read_dir(at("outside")).expect("there").count(), 1);
    assert_eq!(fs::read_dir(place.path()).expect("there").count(), 2);
}
