//! The results of a cell, as its interpreter wrote them: bytes of an adversary, taken apart within bounds.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use crate::outcome::RichResult;
use crate::sys::datagram;

/// Bytes of all results of a cell: they travel in one reply.
const MOST: usize = 4 << 20;
/// Results of a cell, and kinds of a result.
const MOST_RESULTS: usize = 1000;
const MOST_KINDS: usize = 32;
const LONGEST_KIND: usize = 128;

/// Reads them from a sealed memfd. None: there are more than a reply carries.
pub(super) fn read(fd: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let size = rustix::fs::fstat(fd)?.st_size;
    if usize::try_from(size).is_ok_and(|size| size <= MOST) {
        datagram::read_data(fd).map(Some)
    } else {
        Ok(None)
    }
}

/// None: this is not what a kernel's interpreter writes.
///
/// Each result is a byte that says whether it is the value of the cell's last expression, and the number of its kinds;
/// each kind is a name and data, with their lengths before them. All numbers have four bytes, the lowest first.
pub(super) fn parse(bytes: &[u8]) -> Option<Vec<RichResult>> {
    let mut rest = bytes;
    let mut results = Vec::new();
    while let Some((main, after)) = rest.split_first() {
        rest = after;
        if *main > 1 || results.len() >= MOST_RESULTS {
            return None;
        }
        let kinds = number(&mut rest)?;
        if kinds == 0 || kinds > MOST_KINDS {
            return None;
        }
        let mut data = BTreeMap::new();
        for _ in 0..kinds {
            let kind = kind(sized(&mut rest)?)?;
            data.insert(kind, sized(&mut rest)?.to_vec());
        }
        results.push(RichResult {
            main: *main == 1,
            data,
        });
    }
    Some(results)
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

    fn one(main: u8, kinds: u32, pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut bytes = vec![main];
        bytes.extend(kinds.to_le_bytes());
        for (kind, data) in pairs {
            bytes.extend([sized(kind), sized(data)].concat());
        }
        bytes
    }

    #[test]
    fn what_the_interpreter_writes_is_read_whole() {
        let first = one(1, 1, &[(b"text/plain", b"42")]);
        let second = one(0, 2, &[(b"image/png", b"\x89\xff"), (b"text/plain", b"")]);
        let results = parse(&[first, second].concat()).expect("results");
        assert_eq!(
            (results.len(), results[0].main, results[1].main),
            (2, true, false)
        );
        assert_eq!(results[0].data["text/plain"], b"42");
        assert_eq!(results[1].data["image/png"], b"\x89\xff");
        assert_eq!(parse(b""), Some(Vec::new()));
    }

    #[test]
    fn lengths_and_numbers_that_cannot_be_are_refused() {
        for bytes in [
            vec![1],
            vec![1, 0, 0, 0],
            one(1, 0, &[]),
            one(2, 1, &[(b"text/plain", b"")]),
            one(1, u32::MAX, &[(b"text/plain", b"")]),
            one(1, 2, &[(b"text/plain", b"")]),
            [&[1, 1, 0, 0, 0][..], &u32::MAX.to_le_bytes(), b"text/plain"].concat(),
            [&one(1, 1, &[(b"text/plain", b"x")])[..], &[0]].concat(),
            one(0, 1, &[(b"text/plain", b"")]).repeat(MOST_RESULTS + 1),
        ] {
            assert_eq!(parse(&bytes), None, "{bytes:?}");
        }
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
            assert_eq!(parse(&one(1, 1, &[(kind, b"")])), None, "{kind:?}");
        }
    }

    #[test]
    fn more_than_a_reply_carries_is_not_read() {
        let fits = datagram::data("test", &vec![0; MOST]).expect("data");
        assert_eq!(
            read(&fits).expect("read").map(|bytes| bytes.len()),
            Some(MOST)
        );
        let long = datagram::data("test", &vec![0; MOST + 1]).expect("data");
        assert_eq!(read(&long).expect("looked at"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(results) = parse(&bytes) {
                prop_assert!(results.iter().all(|result| !result.data.is_empty()));
            }
        }
    }
}
