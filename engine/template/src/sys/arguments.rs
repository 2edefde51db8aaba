//! The arguments of this process, as other processes and tools see them.

use core::ffi::CStr;

use super::call::{call, number};
use super::{Answer, EINVAL, close, open};

/// The place of the arguments' address among the numbers of `/proc/self/stat` that follow the name.
const ADDRESS: usize = 45;

/// Puts another text of the same length in the place of the argument behind the program's name.
pub fn replace_first(text: &[u8]) -> Answer<()> {
    let place = address()? as *mut u8;
    // SAFETY: the kernel put the arguments there, one after the other and each with a NUL behind it.
    let program = unsafe { CStr::from_ptr(place.cast()) };
    // SAFETY: there are two arguments at least: who calls this was told so.
    let place = unsafe { place.add(program.count_bytes() + 1) };
    // SAFETY: as above.
    let first = unsafe { CStr::from_ptr(place.cast()) };
    if first.count_bytes() != text.len() {
        return Err(EINVAL);
    }
    // SAFETY: memory of the process's own that it may write to, as long as the text.
    unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), place, text.len()) };
    Ok(())
}

fn address() -> Answer<usize> {
    let mut room = [0_u8; 2048];
    let file = open(None, c"/proc/self/stat", 0, 0)?;
    // SAFETY: the pointer and the length are those of one buffer.
    let read = unsafe {
        call(
            number::READ,
            [file.0 as usize, room.as_mut_ptr() as usize, room.len()],
        )
    };
    close(file);
    let told = &room[..read?.min(room.len())];
    let name_ends = told.iter().rposition(|byte| *byte == b')').ok_or(EINVAL)?;
    let mut numbers = told
        .get(name_ends + 2..)
        .ok_or(EINVAL)?
        .split(|byte| *byte == b' ');
    let digits = numbers.nth(ADDRESS).ok_or(EINVAL)?;
    let address = digits.iter().try_fold(0_usize, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| usize::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    });
    address.filter(|address| *address != 0).ok_or(EINVAL)
}
