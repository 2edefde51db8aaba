//! Results of a cell, as bytes that nobody vouches for.

use super::{life, results};
use crate::outcome::RichResult;
use crate::sys::datagram;

/// The bytes that say what was parsed. Kinds that were named twice are said once.
fn said(parsed: &[RichResult]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let number = |length: usize| u32::try_from(length).expect("short").to_le_bytes();
    for result in parsed {
        bytes.push(u8::from(result.main));
        bytes.extend(number(result.data.len()));
        for (kind, data) in &result.data {
            for part in [kind.as_bytes(), data] {
                bytes.extend(number(part.len()));
                bytes.extend(part);
            }
        }
    }
    bytes
}

/// The first byte chooses how they come: in the message, beside it, or not at all.
pub fn results(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else {
        return;
    };
    let parsed = results::parse(bytes);
    if let Some(parsed) = &parsed {
        let again = said(parsed);
        assert!(again.len() <= bytes.len());
        assert_eq!(results::parse(&again).as_ref(), Some(parsed));
        for result in parsed {
            assert!(!result.data.is_empty() && result.data.len() <= 32);
            let plain = |kind: &String| {
                kind.len() <= 128
                    && kind.contains('/')
                    && kind.bytes().all(|byte| byte.is_ascii_graphic())
            };
            assert!(result.data.keys().all(plain));
        }
    }
    let beside = (how & 1 != 0).then(|| datagram::data("results", bytes).expect("a memfd"));
    let inline = (how & 2 != 0).then(|| bytes.to_vec());
    let left_out = how & 4 != 0;
    let there = !left_out && (inline.is_some() || beside.is_some());
    let (taken, note) = life::taken(inline, beside.as_ref(), left_out);
    match parsed.filter(|_| there) {
        Some(parsed) => assert_eq!((taken, note), (parsed, None)),
        // What is left out is said, in words that are not the code's.
        None => assert!(taken.is_empty() && note.is_some()),
    }
}
