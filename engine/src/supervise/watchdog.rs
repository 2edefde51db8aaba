//! Watches the memory of a sandbox that no cgroup holds to its limit, and says when it holds more. What is taken and
//! given back between two looks is not seen; how far a sandbox can get past its limit is bounded by the time between.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::footprint::Footprint;

/// Bytes a second that no sandbox fills memory at, nearly: what is left to the limit says how long it can wait.
const FASTEST: u64 = 4 << 30;
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(100);
/// A pause is at least this many times as long as the look before it.
const SHARE: u32 = 3;

#[derive(Debug)]
pub(super) struct Watchdog {
    footprint: Footprint,
    max: u64,
    peak: Peak,
}

/// The most that a look has found so far; 0: none has.
#[derive(Clone, Debug, Default)]
pub(super) struct Peak(Arc<AtomicU64>);

impl Peak {
    pub(super) fn bytes(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    pub(super) fn raise(&self, bytes: u64) {
        self.0.fetch_max(bytes, Ordering::Relaxed);
    }
}

impl Watchdog {
    pub(super) fn new(windows: Vec<OwnedFd>, max: u64, peak: Peak) -> io::Result<Self> {
        Ok(Self {
            footprint: Footprint::new(windows)?,
            max,
            peak,
        })
    }

    /// Waits until the sandbox holds more than its limit, and gives how much. Dropping it ends the watch.
    pub(super) async fn bites(self) -> u64 {
        let Self {
            mut footprint,
            max,
            mut peak,
        } = self;
        let mut wait = pause(max, Duration::ZERO);
        // A step's peak is told by exact looks: one is made whenever a cheap one finds clearly more than any before it.
        let mut highest = 0;
        loop {
            tokio::time::sleep(wait).await;
            let looked = tokio::task::spawn_blocking(move || {
                let begun = Instant::now();
                let held = footprint.look(max);
                let mut used = held;
                if !held.exact && held.bytes > highest + max / 8 {
                    highest = held.bytes;
                    used = footprint.measure(0);
                }
                if used.exact {
                    peak.raise(used.bytes);
                }
                (footprint, peak, highest, held.bytes, begun.elapsed())
            });
            let Ok((print, most, found, bytes, took)) = looked.await else {
                // The runtime ends, and with it the sandbox.
                return std::future::pending().await;
            };
            (footprint, peak, highest) = (print, most, found);
            if bytes > max {
                return bytes;
            }
            wait = pause(max - bytes, took);
        }
    }
}

fn pause(left: u64, took: Duration) -> Duration {
    let until_full = Duration::from_micros(left / (FASTEST / 1_000_000));
    until_full.clamp(SHORTEST, LONGEST).max(took * SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_rare_far_from_the_limit_and_frequent_near_it() {
        assert_eq!(pause(8 << 30, Duration::ZERO), LONGEST);
        assert_eq!(pause(1 << 20, Duration::ZERO), SHORTEST);
        let between = pause(200 << 20, Duration::ZERO);
        assert!(between > SHORTEST && between < LONGEST, "{between:?}");
    }

    #[test]
    fn looks_take_a_quarter_of_the_time_at_most() {
        let took = Duration::from_millis(70);
        assert_eq!(pause(0, took), took * 3);
    }
}
