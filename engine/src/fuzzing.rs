//! Every target of the fuzzer: a name, and a function that takes any bytes and panics when something that must hold does
//! not. The targets themselves are in the rooms whose parsers they try (`fuzz.rs` there). `fuzz/` runs them; what it found
//! and began from is in `fuzz/corpus`, and is run again by the tests of this file.

use crate::{api, bytecode, launcher, outcome, spec, supervise, workspace};

/// What is done with bytes.
pub type Target = fn(&[u8]);

pub const TARGETS: [(&str, Target); 16] = [
    ("messages", launcher::fuzz::messages),
    ("answers", launcher::fuzz::answers),
    ("results", supervise::fuzz::results),
    ("board", supervise::fuzz::board),
    ("system_calls", supervise::fuzz::system_calls),
    ("verdicts", outcome::fuzz::verdicts),
    ("output", supervise::fuzz::output),
    ("figures", supervise::fuzz::figures),
    ("paths", workspace::fuzz::paths),
    ("names", workspace::fuzz::names),
    ("links", workspace::fuzz::links),
    ("snapshots", workspace::fuzz::snapshots),
    ("trees", workspace::fuzz::trees),
    ("bytecode", bytecode::fuzz::archives),
    ("profiles", spec::fuzz::profiles),
    ("requests", api::fuzz::requests),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn corpus() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
    }

    fn names(directory: &Path) -> BTreeSet<PathBuf> {
        let entries = fs::read_dir(directory).expect("a directory");
        entries
            .map(|entry| entry.expect("an entry").path())
            .collect()
    }

    #[test]
    fn every_target_has_a_corpus_and_every_corpus_a_target() {
        let targets = TARGETS.iter().map(|(name, _)| corpus().join(name));
        assert_eq!(targets.collect::<BTreeSet<_>>(), names(&corpus()));
    }

    #[test]
    fn what_must_hold_holds_for_all_of_the_corpus() {
        for (name, target) in TARGETS {
            let files = names(&corpus().join(name));
            assert!(!files.is_empty(), "{name}");
            for file in files {
                let bytes = fs::read(&file).expect("a piece of the corpus");
                let done = std::panic::catch_unwind(|| target(&bytes));
                assert!(done.is_ok(), "{}", file.display());
            }
        }
    }

    #[test]
    fn what_must_hold_holds_for_no_bytes_and_for_many() {
        for (name, target) in TARGETS {
            for bytes in [&[][..], &[0; 64], &[0xff; 64], &[b'/'; 5000]] {
                let done = std::panic::catch_unwind(|| target(bytes));
                assert!(done.is_ok(), "{name}");
            }
        }
    }
}
