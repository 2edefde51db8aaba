//! What is kept of a stream: everything up to the cap, past it the head and the tail, each half of the cap.

use crate::outcome::Output;

#[derive(Debug)]
pub(super) struct Capture {
    cap: usize,
    head: Vec<u8>,
    /// The last bytes, once the cap was passed: a ring that starts at `next`.
    tail: Vec<u8>,
    next: usize,
    total: u64,
}

impl Capture {
    pub(super) fn new(cap: u64) -> Self {
        Self {
            cap: usize::try_from(cap).unwrap_or(usize::MAX),
            head: Vec::new(),
            tail: Vec::new(),
            next: 0,
            total: 0,
        }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        let overflowed = self.total > self.cap as u64;
        self.total += bytes.len() as u64;
        if !overflowed {
            let room = self.cap - self.head.len();
            let (fits, rest) = bytes.split_at(room.min(bytes.len()));
            self.head.extend_from_slice(fits);
            if rest.is_empty() {
                return;
            }
            self.tail = self.head.split_off(self.cap - self.cap / 2);
            bytes = rest;
        }
        self.wrap(bytes);
    }

    /// Overwrites the oldest bytes of the tail.
    fn wrap(&mut self, bytes: &[u8]) {
        let size = self.tail.len();
        if size == 0 {
            return;
        }
        let skipped = bytes.len().saturating_sub(size);
        self.next = (self.next + skipped) % size;
        for part in bytes[skipped..].chunks(size) {
            let until_end = part.len().min(size - self.next);
            let (first, second) = part.split_at(until_end);
            self.tail[self.next..self.next + first.len()].copy_from_slice(first);
            self.tail[..second.len()].copy_from_slice(second);
            self.next = (self.next + part.len()) % size;
        }
    }

    pub(super) fn finish(mut self) -> Output {
        let head = self.head.len() as u64;
        let mut kept = self.head;
        self.tail.rotate_left(self.next);
        kept.append(&mut self.tail);
        Output {
            kept,
            total: self.total,
            head,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(cap: usize, chunks: &[Vec<u8>]) -> Output {
        let mut capture = Capture::new(cap as u64);
        for chunk in chunks {
            capture.push(chunk);
        }
        capture.finish()
    }

    #[test]
    fn up_to_the_cap_all_is_kept() {
        for size in [0, 9, 10] {
            let output = kept(10, &[vec![b'a'; size]]);
            assert_eq!(output.kept, vec![b'a'; size]);
            assert!(!output.truncated());
        }
    }

    #[test]
    fn past_the_cap_exactly_the_cap_is_kept_from_both_ends() {
        let output = kept(10, &[b"0123456789abc".to_vec()]);
        assert_eq!(output.kept, b"0123489abc");
        assert_eq!((output.total, output.head), (13, 5));
        assert!(output.truncated());
    }

    proptest! {
        #[test]
        fn the_kept_bytes_do_not_depend_on_how_the_stream_was_cut(
            cap in 1_usize..40,
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..30), 0..12),
        ) {
            let whole = chunks.concat();
            let expected = if whole.len() <= cap {
                whole.clone()
            } else {
                let half = cap / 2;
                [&whole[..cap - half], &whole[whole.len() - half..]].concat()
            };
            let output = kept(cap, &chunks);
            prop_assert_eq!(output.kept, expected);
            prop_assert_eq!(output.total, whole.len() as u64);
        }
    }
}
