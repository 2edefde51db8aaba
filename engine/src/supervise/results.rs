//! What code showed, as its interpreter wrote it: bytes of an adversary, taken apart within bounds.

use std::collections::BTreeMap;

use crate::outcome::RichResult;
use crate::pool::{Board, MOST_RESULTS};

/// Kinds of a result.
const MOST_KINDS: usize = 32;
const LONGEST_KIND: usize = 128;

/// What code showed beside its output.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Results {
    pub results: Vec<RichResult>,
    /// Why these are not all.
    pub note: Option<&'static str>,
}

const TOO_MUCH: &str = "more was shown than the 4 MiB and 1,000 results that are kept of a step; the rest was left out";
const UNREADABLE: &str = "a part of what was shown could not be read, and was left out";

impl Results {
    /// What is on a board.
    #[must_use]
    pub fn read(board: &Board) -> Self {
        let Ok(shown) = board.read() else {
            return Self {
                results: Vec::new(),
                note: Some(UNREADABLE),
            };
        };
        let (results, whole) = parse(&shown.records);
        Self {
            results,
            note: match (shown.lost, whole) {
                (true, _) => Some(TOO_MUCH),
                (false, false) => Some(UNREADABLE),
                (false, true) => None,
            },
        }
    }
}

/// Takes results apart up to the first that is not what an interpreter of ours writes; and whether there is no such.
///
/// Each result is a byte that says whether it is the value of the last expression, and the number of its kinds; each kind is
/// a name and data, with their lengths before them. All numbers have four bytes, the lowest first.
pub(super) fn parse(bytes: &[u8]) -> (Vec<RichResult>, bool) {
    let mut rest = bytes;
    let mut results = Vec::new();
    while !rest.is_empty() {
        match one(&mut rest).filter(|_| results.len() < MOST_RESULTS) {
            Some(result) => results.push(result),
            None => return (results, false),
        }
    }
    (results, true)
}

fn one(rest: &mut &[u8]) -> Option<RichResult> {
    let (main, after) = rest.split_first()?;
    *rest = after;
    let kinds = number(rest)?;
    if *main > 1 || kinds == 0 || kinds > MOST_KINDS {
        return None;
    }
    let mut data = BTreeMap::new();
    for _ in 0..kinds {
        let kind = kind(sized(rest)?)?;
        data.insert(kind, sized(rest)?.to_vec());
    }
    Some(RichResult {
        main: *main == 1,
        data,
    })
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    let (number, after) = rest.split_first_chunk()?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*number)).ok()
}

fn sized<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = number(rest)?;
    let (data, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(data)
}

/// A name such as `text/plain`.
fn kind(name: &[u8]) -> Option<String> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/.+-;=_".contains(byte);
    let good = name.len() <= LONGEST_KIND && name.contains(&b'/') && name.iter().all(plain);
    good.then(|| name.iter().copied().map(char::from).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sized(data: &[u8]) -> Vec<u8> {
        let length = u32::try_from(data.len()).expect("short");
        [&length.to_le_bytes()[..], data].concat()
    }

    fn record(main: u8, kinds: u32, pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut bytes = vec![main];
        bytes.extend(kinds.to_le_bytes());
        for (kind, data) in pairs {
            bytes.extend([sized(kind), sized(data)].concat());
        }
        bytes
    }

    #[test]
    fn what_the_interpreter_writes_is_read_whole() {
        let first = record(1, 1, &[(b"text/plain", b"42")]);
        let second = record(0, 2, &[(b"image/png", b"\x89\xff"), (b"text/plain", b"")]);
        let (results, whole) = parse(&[first, second].concat());
        assert!(whole);
        assert_eq!(
            (results.len(), results[0].main, results[1].main),
            (2, true, false)
        );
        assert_eq!(results[0].data["text/plain"], b"42");
        assert_eq!(results[1].data["image/png"], b"\x89\xff");
        assert_eq!(parse(b""), (Vec::new(), true));
    }

    #[test]
    fn what_cannot_be_ends_what_is_read_and_takes_nothing_from_what_was_before() {
        let good = record(1, 1, &[(b"text/plain", b"x")]);
        for bytes in [
            vec![1],
            vec![1, 0, 0, 0],
            record(1, 0, &[]),
            record(2, 1, &[(b"text/plain", b"")]),
            record(1, u32::MAX, &[(b"text/plain", b"")]),
            record(1, 2, &[(b"text/plain", b"")]),
            [&[1, 1, 0, 0, 0][..], &u32::MAX.to_le_bytes(), b"text/plain"].concat(),
        ] {
            assert_eq!(parse(&bytes), (Vec::new(), false), "{bytes:?}");
            let (results, whole) = parse(&[&good[..], &bytes].concat());
            assert_eq!((results.len(), whole), (1, false), "{bytes:?}");
        }
        let many = record(0, 1, &[(b"text/plain", b"")]).repeat(MOST_RESULTS + 1);
        let (results, whole) = parse(&many);
        assert_eq!((results.len(), whole), (MOST_RESULTS, false));
    }

    #[test]
    fn kinds_are_plain_names() {
        for kind in [
            &b"\xff\xfe/x"[..],
            b"text",
            b"",
            b"a/b\n",
            &[b'/'; LONGEST_KIND + 1],
        ] {
            assert_eq!(parse(&record(1, 1, &[(kind, b"")])).0, [], "{kind:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (results, _) = parse(&bytes);
            prop_assert!(results.iter().all(|result| !result.data.is_empty()));
        }

        #[test]
        fn no_change_of_a_byte_does_harm(at in 0_usize..60, byte in any::<u8>()) {
            let mut bytes = record(1, 2, &[(b"text/plain", b"42"), (b"image/png", b"\x89\xff")]).repeat(2);
            bytes[at] = byte;
            let (results, _) = parse(&bytes);
            prop_assert!(results.len() <= bytes.len() / 5);
        }
    }
}
