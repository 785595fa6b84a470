//! Time. Nothing else in leaky asks what time it is.
//!
//! An instant is a `u64` of nanoseconds since the clock began, which lasts for 584 years. The monotonic clock cannot
//! be set, so a wall clock that is moved changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// Nanoseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000_000;

/// Says what time it is, in nanoseconds since it began.
pub trait Clock {
    /// The present instant.
    fn now(&self) -> u64;
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

impl Monotonic {
    /// A clock that begins now.
    pub fn start() -> Monotonic {
        Monotonic(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A clock that moves when told to; its copies show the same time.
#[derive(Clone, Debug, Default)]
pub struct Virtual(Arc<AtomicU64>);

impl Virtual {
    /// Moves the hands to `to`, never backwards.
    pub fn advance(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }
}

impl Clock for Virtual {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The wall clock, in nanoseconds since the epoch: only for what is counted in UTC.
pub fn utc() -> i128 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}
