//! Watches the memory of a sandbox that no cgroup holds to its limit, and says when it holds more. What is taken and
//! given back between two looks is not seen; how far a sandbox can get past its limit is bounded by the time between.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};

use super::footprint::{ANSWERED, Footprint, Held};

/// Bytes a second that no sandbox fills memory at, nearly: what is left to the limit says how long it can wait.
const FASTEST: u64 = 4 << 30;
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(100);
/// A pause is this many times as long as the look before it, and no longer than the longest: code can make looks slow.
const SHARE: u32 = 3;

#[derive(Debug)]
pub(crate) struct Watchdog {
    footprint: Footprint,
    divider: Divider,
    max: u64,
    peak: Peak,
}

/// The most that a look has found so far; 0: none has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peak(Arc<AtomicU64>);

impl Peak {
    pub(crate) fn bytes(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    pub(crate) fn raise(&self, bytes: u64) {
        self.0.fetch_max(bytes, Ordering::Relaxed);
    }
}

impl Watchdog {
    pub(super) fn new(windows: Vec<OwnedFd>, max: u64, peak: Peak) -> io::Result<Self> {
        let footprint = Footprint::new(windows)?;
        Ok(Self {
            divider: Divider {
                idle: Some(footprint.another()),
                running: None,
            },
            footprint,
            max,
            peak,
        })
    }

    /// Waits until the sandbox holds more than its limit, and gives how much. Dropping it ends the watch.
    pub(super) async fn bites(self) -> u64 {
        let Self {
            mut footprint,
            mut divider,
            max,
            peak,
        } = self;
        let mut wait = pause(max, Duration::ZERO);
        // A step's peak is told by exact looks: one is made whenever a cheap one finds clearly more than any before it.
        let mut highest = 0;
        // Since when all looks, none of which divided pages, were past the limit.
        let mut past = None;
        loop {
            tokio::time::sleep(wait).await;
            let begun = Instant::now();
            let glanced = spawn_blocking(move || {
                let held = footprint.glance();
                (footprint, held)
            });
            let Ok((print, mut held)) = glanced.await else {
                // The runtime ends, and with it the sandbox.
                return std::future::pending().await;
            };
            footprint = print;
            if held.bytes > max {
                let until = *past.get_or_insert(begun) + ANSWERED;
                match tokio::time::timeout_at(until.into(), divider.look(max)).await {
                    Ok(divided) => held = divided,
                    // Whoever makes the kernel slow to divide pages is charged for all of them.
                    Err(_) if begun >= until => return held.bytes,
                    Err(_) => {
                        wait = SHORTEST;
                        continue;
                    }
                }
            }
            past = None;
            if held.exact {
                peak.raise(held.bytes);
            }
            if held.bytes > max {
                return held.bytes;
            }
            if !held.exact && held.bytes > highest + max / 8 && divider.measure(&peak).await {
                highest = held.bytes;
            }
            wait = pause(max - held.bytes, begun.elapsed());
        }
    }
}

/// Divides pages on a thread beside the watchdog's: the kernel may keep it waiting for as long as code likes.
#[derive(Debug)]
struct Divider {
    idle: Option<Footprint>,
    /// At most one, however long it takes. It answers with nothing if the watchdog did not ask.
    running: Option<JoinHandle<(Footprint, Option<Held>)>>,
}

impl Divider {
    /// What a whole look finds. Dropped before it is answered, the next one gets that answer.
    async fn look(&mut self, max: u64) -> Held {
        loop {
            if let Some(mut footprint) = self.idle.take() {
                self.running = Some(spawn_blocking(move || {
                    let held = footprint.look(max);
                    (footprint, Some(held))
                }));
            }
            let Some(running) = &mut self.running else {
                return std::future::pending().await;
            };
            let answer = running.await;
            self.running = None;
            let Ok((footprint, held)) = answer else {
                continue;
            };
            self.idle = Some(footprint);
            if let Some(held) = held {
                return held;
            }
        }
    }

    /// Starts to tell the peak by what there is now, unless it is at work.
    async fn measure(&mut self, peak: &Peak) -> bool {
        if let Some(running) = &mut self.running
            && running.is_finished()
        {
            let answer = running.await;
            self.running = None;
            self.idle = answer.ok().map(|(footprint, _)| footprint);
        }
        let Some(mut footprint) = self.idle.take() else {
            return false;
        };
        let peak = peak.clone();
        self.running = Some(spawn_blocking(move || {
            let held = footprint.measure();
            if held.exact {
                peak.raise(held.bytes);
            }
            (footprint, None)
        }));
        true
    }
}

fn pause(left: u64, took: Duration) -> Duration {
    let until_full = Duration::from_micros(left / (FASTEST / 1_000_000));
    until_full
        .clamp(SHORTEST, LONGEST)
        .max((took * SHARE).min(LONGEST))
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
    fn looks_take_a_quarter_of_the_time_until_the_pause_is_the_longest() {
        let took = Duration::from_millis(20);
        assert_eq!(pause(0, took), took * 3);
        assert_eq!(pause(0, took * 100), LONGEST);
    }
}
