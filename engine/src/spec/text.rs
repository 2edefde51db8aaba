//! How a caller's own words are shown back: short, on one line, without control bytes.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is shown of a word that is longer.
const SHOWN: usize = 120;

/// A word in quotes, escaped and clipped.
#[must_use]
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => format!("{text:?}"),
        Some((at, _)) => format!("{:?}…", &text[..at]),
    }
}

/// A path in quotes, escaped and clipped.
#[must_use]
pub fn shown_path(path: &Path) -> String {
    shown(&path.to_string_lossy())
}

/// A path of the engine's own choice in quotes, escaped and whole: to be found again.
#[must_use]
pub(super) fn whole_path(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}

/// Which of `known`, of which there is one at least, is most like a word.
pub(super) fn nearest(word: &str, known: impl IntoIterator<Item = &'static str>) -> &'static str {
    let word: Vec<char> = word.chars().take(SHOWN).collect();
    let distance = |other: &&str| edits(&word, &other.chars().collect::<Vec<_>>());
    known.into_iter().min_by_key(distance).unwrap_or_default()
}

/// How many letters are to be added, left out, changed or exchanged with the next to make one word the other.
fn edits(one: &[char], other: &[char]) -> usize {
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut least = (rows[i][j] + usize::from(a != b))
                .min(rows[i][j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

/// Whether a path holds a NUL byte, which no system call can carry.
#[must_use]
pub(super) fn holds_nul(path: &Path) -> bool {
    path.as_os_str().as_bytes().contains(&0)
}
