//! Replay: recorded times become the times at which items arrive.
//!
//! The first stamp is the beginning; the gaps between the others are divided by the speed and cut at the largest gap
//! allowed. A stamp that lies before an earlier one is late: its item arrives at once. So nothing is reordered, and the
//! whole lasts from the earliest to the latest stamp whatever lies between.

use crate::select::Selector;
use crate::timestamp::Timestamps;
use anyhow::{Context, ensure};

/// A factor of time, kept exactly as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    numerator: u128,
    denominator: u128,
}

impl std::str::FromStr for Speed {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Speed> {
        let wanted = "a speed is a decimal above zero, as in 2 or 0.5";
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = [whole, fraction].concat();
        ensure!(!whole.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()), wanted);
        let numerator: u128 = digits.parse().ok().filter(|n| *n <= u128::from(u64::MAX)).context("it is too large")?;
        ensure!(numerator > 0, wanted);
        let denominator = u32::try_from(fraction.len()).ok().and_then(|places| 10u128.checked_pow(places));
        let denominator = denominator.filter(|n| *n <= u128::from(u64::MAX)).context("it has too many decimals")?;
        Ok(Speed { numerator, denominator })
    }
}

impl Default for Speed {
    fn default() -> Speed {
        Speed { numerator: 1, denominator: 1 }
    }
}

/// How a replay goes.
#[derive(Clone, Debug)]
pub struct Config {
    /// Reads the recorded time out of an item.
    pub selector: Selector,
    /// The factor by which the replay is faster than the recording.
    pub speed: Speed,
    /// The longest gap between two items, in nanoseconds of the replay.
    pub max_gap: Option<u64>,
}

/// Turns stamps into arrivals.
#[derive(Debug)]
pub struct Replay {
    config: Config,
    timestamps: Timestamps,
    /// The first stamp and the latest so far, in nanoseconds since the epoch.
    first: Option<i128>,
    latest: i128,
    /// What was cut off gaps so far, in nanoseconds of the replay.
    cut: u64,
    arrival: u64,
}

/// What a stamp says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// When the item arrives, in nanoseconds after the first.
    pub arrival: u64,
    /// It lay before an earlier one.
    pub late: bool,
    /// It could be read.
    pub readable: bool,
}

impl Replay {
    /// A replay; `utc` is the present in nanoseconds since the epoch.
    pub fn new(config: Config, utc: i128) -> Replay {
        Replay { config, timestamps: Timestamps::new(utc), first: None, latest: 0, cut: 0, arrival: 0 }
    }

    /// The first stamp, in nanoseconds since the epoch.
    pub fn first_stamp(&self) -> Option<i128> {
        self.first
    }

    /// When the item arrives of which `content` is what selectors see. One without a readable time arrives together
    /// with the one before it.
    pub fn stamp(&mut self, content: &[u8]) -> Stamped {
        let stamp = self.config.selector.find(content).and_then(|text| self.timestamps.read(&text));
        let Some(stamp) = stamp else {
            return Stamped { arrival: self.arrival, late: false, readable: false };
        };
        let first = *self.first.get_or_insert_with(|| {
            self.latest = stamp;
            stamp
        });
        let late = stamp < self.latest;
        self.latest = self.latest.max(stamp);
        let Speed { numerator, denominator } = self.config.speed;
        // Each stamp counts from the first one, so that what a division leaves over never adds up.
        let since = (self.latest - first).unsigned_abs();
        let since = since.saturating_mul(denominator).div_ceil(numerator);
        let since = u64::try_from(since).unwrap_or(u64::MAX).saturating_sub(self.cut);
        let gap = since.saturating_sub(self.arrival);
        let allowed = self.config.max_gap.map_or(gap, |most| gap.min(most));
        self.cut = self.cut.saturating_add(gap - allowed);
        self.arrival = self.arrival.saturating_add(allowed);
        Stamped { arrival: self.arrival, late, readable: true }
    }
}
