//! What this host gives and lacks for making sandboxes, with the command that mends it.
//!
//! Seeing and judging are apart: an [`Observation`] is plain data, and [`judge`] turns any observation, of this host or
//! recorded on another, into [`Probe`]s. [`explain`] does the same for one step that failed in a running engine.

mod attempt;
mod cause;
mod judge;
mod observation;
mod surroundings;
#[cfg(test)]
mod tests;

pub use attempt::{Attempt, Attempts};
pub use cause::{Explanation, explain};
pub use judge::{REDUCED, judge};
pub use observation::{Observation, Place};
pub use surroundings::{Container, Surroundings};

/// One thing that the host gives or lacks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Probe {
    pub name: &'static str,
    pub available: bool,
    /// Without it no sandbox with default options can be made.
    pub needed: bool,
    pub detail: String,
    /// The command that mends it; none: nothing is to be mended.
    pub mend: Option<String>,
}

impl Probe {
    /// Whether sandboxes fail for want of this.
    #[must_use]
    pub fn is_obstacle(&self) -> bool {
        self.needed && !self.available
    }
}

/// Looks at this host by trying. To be called before any thread exists: the trials are forked.
#[must_use]
pub fn host(scratch: &Place) -> Vec<Probe> {
    judge(&Observation::of_this_host(scratch))
}
