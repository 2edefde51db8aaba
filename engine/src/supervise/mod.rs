//! One step from go to the death of its sandbox: output with caps, deadline, cancellation, kernel events. Yields
//! evidence; decides nothing.

mod alarm;
mod capture;
mod figures;
mod footprint;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod guard;
pub(crate) mod interpreter;
mod listener;
mod resident;
mod results;
mod step;
mod stream;
mod watchdog;

pub use alarm::Alarm;
pub(crate) use alarm::rings;
pub(crate) use guard::{Guard, OomBell, bite, ended};
pub use resident::{
    Commands as ResidentCommands, End as ResidentEnd, Orders as ResidentOrders, Resident,
    live as live_resident, resident,
};
pub use results::Results;
pub use step::{Observed, Orders, watch};
pub use stream::Events;
pub(crate) use stream::{Listeners, Stream, either};
pub(crate) use watchdog::Watchdog;
