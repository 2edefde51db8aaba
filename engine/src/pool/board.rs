//! The memory in which an interpreter leaves what its code shows. The code can write to it as it likes: what is read is a
//! copy, within bounds, and says nothing but what the code showed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, SealFlags};

use crate::sys::datagram;

#[path = "../../template/src/board.rs"]
mod layout;

/// Results of a step at most.
pub const MOST_RESULTS: usize = layout::MOST_RECORDS;

/// Past this what was shown is given back to the system at once.
const KEPT: u64 = 64 << 10;

/// All words of a board.
const WORDS: usize = layout::LOST + 8;

#[derive(Debug)]
pub struct Board(OwnedFd);

/// What is on a board.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Shown {
    pub records: Vec<u8>,
    /// There was more.
    pub lost: bool,
}

impl Board {
    /// It takes no memory before something is shown, and then that of the step.
    pub fn make() -> io::Result<Self> {
        let fd = datagram::memory_file("results")?;
        rustix::fs::ftruncate(&fd, layout::SIZE as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(Self(fd))
    }

    /// One with these bytes on it, from the first word on.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn holding(bytes: &[u8]) -> io::Result<Self> {
        let board = Self::make()?;
        let (words, records) = bytes.split_at(bytes.len().min(WORDS));
        rustix::io::pwrite(&board, words, 0)?;
        rustix::io::pwrite(&board, records, layout::AREA as u64)?;
        Ok(board)
    }

    /// All that is on it.
    pub fn read(&self) -> io::Result<Shown> {
        let [length, count, lost] = self.words()?;
        // As long as nothing was shown, there is nothing to read.
        if length == 0 && lost == 0 {
            return Ok(Shown::default());
        }
        let most = usize::try_from(length).unwrap_or(usize::MAX);
        let mut records = vec![0; most.min(layout::MOST)];
        self.read_at(&mut records, layout::AREA as u64)?;
        Ok(Shown {
            records,
            lost: lost != 0 || most > layout::MOST || count > layout::MOST_RECORDS as u64,
        })
    }

    /// Takes all off it.
    pub fn clear(&self) -> io::Result<()> {
        let words = self.words()?;
        if words == [0; 3] {
            return Ok(());
        }
        if words[0] > KEPT {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            return Ok(rustix::fs::fallocate(&self.0, how, 0, layout::SIZE as u64)?);
        }
        rustix::io::pwrite(&self.0, &[0; WORDS], 0)?;
        Ok(())
    }

    fn words(&self) -> io::Result<[u64; 3]> {
        let mut bytes = [0; WORDS];
        self.read_at(&mut bytes, 0)?;
        let word = |offset: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[offset..offset + 8]);
            u64::from_ne_bytes(word)
        };
        Ok([layout::LENGTH, layout::COUNT, layout::LOST].map(word))
    }

    fn read_at(&self, bytes: &mut [u8], start: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = start + done as u64;
            match rustix::io::retry_on_intr(|| rustix::io::pread(&self.0, &mut bytes[done..], at))?
            {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }
}

impl AsFd for Board {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(words: [u64; 3], records: &[u8]) -> Board {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Board::holding(&[&words, records].concat()).expect("written")
    }

    #[test]
    fn nothing_is_on_a_new_board_and_all_that_was_written_is_on_it() {
        let board = Board::make().expect("board");
        assert_eq!(board.read().expect("read"), Shown::default());
        let shown = written([3, 1, 0], b"abcdef").read().expect("read");
        assert_eq!((shown.records.as_slice(), shown.lost), (&b"abc"[..], false));
    }

    #[test]
    fn no_words_lead_past_the_end() {
        for length in [layout::MOST as u64 + 1, u64::MAX] {
            let shown = written([length, u64::MAX, 0], b"x").read().expect("read");
            assert_eq!(shown.records.len(), layout::MOST);
            assert!(shown.lost);
        }
        assert!(written([0, 0, 7], b"").read().expect("read").lost);
    }

    #[test]
    fn a_board_that_was_cleared_is_as_new() {
        for length in [1, KEPT + 1] {
            let board = written([length, 1, 1], b"x");
            board.clear().expect("cleared");
            assert_eq!(board.read().expect("read"), Shown::default());
        }
    }

    #[test]
    fn the_other_side_cannot_make_it_smaller() {
        let board = Board::make().expect("board");
        assert!(rustix::fs::ftruncate(&board, 0).is_err());
    }
}
