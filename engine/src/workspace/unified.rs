//! The difference of two texts as `diff -u` and git write it: pure, and bounded whatever the texts are.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::Instant;

use similar::algorithms::{Capture, Replace, diff_slices_deadline};
use similar::{Algorithm, DiffTag};

use super::error::is_invisible;

/// Unchanged lines shown around a change.
const CONTEXT: usize = 3;
const NO_NEWLINE: &str = "\\ No newline at end of file\n";

/// One side of a difference. Without a name there was nothing, or is nothing any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side<'a> {
    /// Relative to the workspace.
    pub(super) path: Option<&'a [u8]>,
    pub(super) text: &'a str,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Unified {
    pub(super) text: String,
    /// It ends early, at the end of a line.
    pub(super) truncated: bool,
}

/// The difference, in at most `most` bytes; none when the texts are equal. What is not found by the deadline is shown as
/// removed and added whole: the result is right all the same, and longer than it had to be.
pub(super) fn unified(
    old: Side<'_>,
    new: Side<'_>,
    most: usize,
    deadline: Instant,
) -> Option<Unified> {
    if old.text == new.text {
        return None;
    }
    let (before, after) = (lines(old.text), lines(new.text));
    let mut page = Page {
        text: String::new(),
        most,
    };
    let complete = page.add(&format!("--- {}\n", header("a/", old.path)))
        && page.add(&format!("+++ {}\n", header("b/", new.path)))
        && hunks(&changes(&before, &after, deadline))
            .iter()
            .all(|hunk| page.hunk(hunk, &before, &after));
    Some(Unified {
        text: page.text,
        truncated: !complete,
    })
}

/// With their ends: only a line feed ends a line, as for every tool that reads a difference.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

type Change = (Range<usize>, Range<usize>);

/// What was replaced by what, in order.
fn changes(before: &[&str], after: &[&str], deadline: Instant) -> Vec<Change> {
    let equal = |(a, b): &(&&str, &&str)| a == b;
    let head = before.iter().zip(after).take_while(equal).count();
    let tail = before[head..]
        .iter()
        .rev()
        .zip(after[head..].iter().rev())
        .take_while(equal)
        .count();
    // Lines as numbers: they are compared many times, and may be long and nearly alike.
    let mut numbers = HashMap::new();
    let mut numbered = |lines: &[&str]| -> Vec<usize> {
        let number = |line: &&str| {
            let next = numbers.len();
            *numbers.entry((*line).to_owned()).or_insert(next)
        };
        lines.iter().map(number).collect()
    };
    let old = numbered(&before[head..before.len() - tail]);
    let new = numbered(&after[head..after.len() - tail]);
    let mut found = Replace::new(Capture::new());
    let ended = diff_slices_deadline(Algorithm::Myers, &mut found, &old, &new, Some(deadline));
    let mut changes: Vec<Change> = Vec::new();
    if ended.is_err() {
        return vec![(head..before.len() - tail, head..after.len() - tail)];
    }
    for op in found.into_inner().into_ops() {
        if op.tag() == DiffTag::Equal {
            continue;
        }
        let shift = |range: Range<usize>| range.start + head..range.end + head;
        let (old, new) = (shift(op.old_range()), shift(op.new_range()));
        match changes.last_mut() {
            Some(last) if last.0.end == old.start && last.1.end == new.start => {
                last.0.end = old.end;
                last.1.end = new.end;
            }
            _ => changes.push((old, new)),
        }
    }
    changes
}

/// Changes that are so near that their surroundings touch belong together.
fn hunks(changes: &[Change]) -> Vec<&[Change]> {
    let near = |a: &Change, b: &Change| b.0.start - a.0.end <= 2 * CONTEXT;
    changes.chunk_by(near).collect()
}

struct Page {
    text: String,
    most: usize,
}

impl Page {
    /// False: it does not fit.
    fn add(&mut self, text: &str) -> bool {
        let fits = self.text.len() + text.len() <= self.most;
        if fits {
            self.text.push_str(text);
        }
        fits
    }

    fn line(&mut self, mark: char, line: &str) -> bool {
        let whole = line.ends_with('\n');
        let end = if whole { 0 } else { 1 + NO_NEWLINE.len() };
        if self.text.len() + 1 + line.len() + end > self.most {
            return false;
        }
        self.text.push(mark);
        self.text.push_str(line);
        if !whole {
            self.text.push('\n');
            self.text.push_str(NO_NEWLINE);
        }
        true
    }

    fn hunk(&mut self, changes: &[Change], before: &[&str], after: &[&str]) -> bool {
        let (Some(first), Some(last)) = (changes.first(), changes.last()) else {
            return true;
        };
        let lead = first.0.start.min(CONTEXT);
        let trail = (before.len() - last.0.end).min(CONTEXT);
        let old = first.0.start - lead..last.0.end + trail;
        let new = first.1.start - lead..last.1.end + trail;
        if !self.add(&format!("@@ -{} +{} @@\n", span(&old), span(&new))) {
            return false;
        }
        let mut at = old.start;
        for (removed, added) in changes {
            let whole = self.lines(' ', &before[at..removed.start])
                && self.lines('-', &before[removed.clone()])
                && self.lines('+', &after[added.clone()]);
            if !whole {
                return false;
            }
            at = removed.end;
        }
        self.lines(' ', &before[at..old.end])
    }

    fn lines(&mut self, mark: char, lines: &[&str]) -> bool {
        lines.iter().all(|line| self.line(mark, line))
    }
}

/// Of no lines, the line behind which they would be.
fn span(range: &Range<usize>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => format!("{}", range.start + 1),
        count => format!("{},{count}", range.start + 1),
    }
}

/// A name as git writes it: what could end the line or deceive who reads it is escaped, in quotes then.
fn header(side: &str, path: Option<&[u8]>) -> String {
    let Some(path) = path else {
        return "/dev/null".to_owned();
    };
    let mut text = side.to_owned();
    let mut quoted = false;
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '"' || c == '\\' {
                quoted = true;
                text.extend(['\\', c]);
            } else if c.is_control() || is_invisible(c) {
                quoted = true;
                octal(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(c);
            }
        }
        quoted |= !chunk.invalid().is_empty();
        octal(&mut text, chunk.invalid());
    }
    if quoted {
        format!("\"{text}\"")
    } else if text.contains(' ') {
        // What ends the name for tools to which a blank would.
        format!("{text}\t")
    } else {
        text
    }
}

fn octal(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let written = write!(text, "\\{byte:03o}");
        debug_assert!(written.is_ok(), "a string takes everything");
    }
}

#[cfg(test)]
#[path = "unified_tests.rs"]
mod tests;
