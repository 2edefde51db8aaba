//! The memory of a kernel, full of whatever the interpreter wrote.

use arbitrary::{Result, Unstructured};

use super::*;

thread_local! {
    /// A mapping lives as long as the process.
    static MEMORY: Shared = Shared::make("cells", layout::SIZE).expect("memory").0;
}

/// How a cell ended by the words of that memory: never more than the area holds, and only of the cell that was asked.
pub fn kernel_memory(bytes: &[u8]) {
    // Bytes that end early are zeros.
    let _ = told(Unstructured::new(bytes));
}

fn told(mut given: Unstructured<'_>) -> Result<()> {
    let memory = MEMORY.with(|memory| *memory);
    let (number, words): (u64, [u64; 8]) = given.arbitrary()?;
    for (index, word) in words.into_iter().enumerate() {
        memory.word(index * 8).store(word, Ordering::Relaxed);
    }
    let length = match given.int_in_range(0..=7)? {
        0 => words[6],
        1 => layout::AREA_SIZE as u64,
        2 => layout::AREA_SIZE as u64 + 1,
        3 => INLINE as u64 + 1,
        _ => given.int_in_range(0..=4 * INLINE as u64)?,
    };
    memory
        .word(layout::RESULTS_LENGTH)
        .store(length, Ordering::Relaxed);
    let exit_code: u64 = given.arbitrary()?;
    memory
        .word(layout::EXIT_CODE)
        .store(exit_code, Ordering::Relaxed);
    let content = given.take_rest();
    memory.write(layout::AREA, content);
    let (init, engine) = datagram::pair().expect("a pair");
    let children = datagram::memory_file("children").expect("a descriptor");
    let driver = Driver {
        engine: init.as_fd(),
        memory,
        children,
        main: 0,
        ended: None,
        alone: false,
    };
    driver.tell(number, 0).expect("told");
    let (heard, beside) = datagram::receive(engine.as_fd())
        .expect("heard")
        .expect("told");
    let FromInit::Answered {
        number: cell,
        exit_code: code,
        results,
        left_out,
    } = heard
    else {
        panic!("{heard:?}");
    };
    assert_eq!((cell, u64::from(code)), (number, exit_code & 0xff));
    assert_eq!(left_out, length > layout::AREA_SIZE as u64);
    let results = match results {
        Some(results) => results,
        None => datagram::read_data(&beside[0]).expect("a memfd"),
    };
    let kept = if left_out { 0 } else { length };
    assert_eq!(results.len() as u64, kept);
    let same = results.len().min(content.len());
    assert_eq!(results[..same], content[..same]);
    // Not for the next: it would find these.
    memory
        .forget(layout::AREA, layout::AREA_SIZE)
        .expect("forgotten");
    Ok(())
}
