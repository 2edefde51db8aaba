//! One step from go to the death of its sandbox: output with caps, deadline, cancellation, kernel events. Yields
//! evidence; decides nothing.

mod capture;
mod figures;
mod footprint;
mod listener;
mod step;
mod stream;
mod watchdog;

pub use step::{Observed, Orders, watch};
pub use stream::Events;
