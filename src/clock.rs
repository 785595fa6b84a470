//! Time. Nothing else in leaky asks what time it is.
//!
//! An instant is a `u64` of nanoseconds since the clock began, which lasts for 584 years. The monotonic clock cannot
//! be set, so a wall clock that is moved changes nothing. The boot clock cannot either; it is the same for all processes
//! of a machine, and goes on while that sleeps.

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

/// A clock of the machine that is never set.
#[derive(Clone, Copy, Debug)]
pub enum Monotonic {
    /// It began when the run did.
    Run(Instant),
    /// It began so when the machine was started: the boot clock.
    Boot(u64),
}

impl Monotonic {
    /// A clock that begins now.
    pub fn start() -> Monotonic {
        Monotonic::Run(Instant::now())
    }

    /// A clock that begins now and goes on while the machine sleeps, as the clocks of shared buckets do.
    pub fn sleepless() -> Monotonic {
        Monotonic::Boot(boottime())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> u64 {
        match self {
            Monotonic::Run(began) => u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            Monotonic::Boot(began) => boottime().saturating_sub(*began),
        }
    }
}

/// The boot clock, in nanoseconds since the machine was started.
pub fn boottime() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, rest) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(SECOND).saturating_add(rest)
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
