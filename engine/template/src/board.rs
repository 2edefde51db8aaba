//! The memory in which an interpreter leaves what its code shows, as both sides know it: offsets and sizes. The first page
//! holds words of eight bytes, the rest is records in a row.

/// Bytes of the records that are whole.
pub(crate) const LENGTH: usize = 0;
/// How many they are.
pub(crate) const COUNT: usize = 8;
/// Not 0: there was something that found no room.
pub(crate) const LOST: usize = 16;

pub(crate) const AREA: usize = 4096;
/// Bytes of all that a step shows: they travel in one reply.
pub(crate) const MOST: usize = 4 << 20;
pub(crate) const MOST_RECORDS: usize = 1000;
pub(crate) const SIZE: usize = AREA + MOST;
