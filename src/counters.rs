//! What has been counted, for those who look on.
//!
//! Whoever changes the bucket publishes its accounts, once for each batch; whoever shows them takes a snapshot. Nobody
//! waits: a snapshot that a publication runs into is taken again (a sequence lock).

use crate::bucket::Accounts;
use crate::config::Config;
use crate::rate::{Rate, Unit};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// What is asked for at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The rates that hold at once; none: unlimited.
    pub rates: Vec<Rate>,
    /// Nothing may leave.
    pub paused: bool,
    /// The highest level.
    pub capacity: u64,
    /// What the level counts.
    pub capacity_unit: Unit,
}

impl Pace {
    /// What `config` asks for.
    pub fn of(config: &Config) -> Pace {
        Pace {
            rates: config.rates.clone(),
            paused: config.bucket.pacer.is_paused(),
            capacity: config.bucket.capacity,
            capacity_unit: config.bucket.capacity_unit,
        }
    }
}

/// The published accounts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Odd while a publication is under way.
    version: AtomicU64,
    fields: [AtomicU64; FIELDS],
}

impl Counters {
    /// Publishes `accounts`. Only one thread may do so at a time: the one that holds the bucket.
    pub fn publish(&self, accounts: &Accounts) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (field, value) in self.fields.iter().zip(pack(accounts)) {
            field.store(value, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    /// The accounts as they were published last, all of one moment.
    pub fn snapshot(&self) -> Accounts {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let fields = std::array::from_fn(|i| self.fields[i].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return unpack(fields);
            }
            std::hint::spin_loop();
        }
    }
}

/// Names every field of the accounts once, for both ways.
macro_rules! fields {
    ($($field:ident),* $(,)?) => {
        const FIELDS: usize = [$(stringify!($field)),*].len();

        fn pack(accounts: &Accounts) -> [u64; FIELDS] {
            let Accounts { $($field),* } = *accounts;
            [$($field),*]
        }

        fn unpack([$($field),*]: [u64; FIELDS]) -> Accounts {
            Accounts { $($field),* }
        }
    };
}

fields!(
    read,
    emitted,
    dropped,
    expired,
    bytes_read,
    bytes_emitted,
    bytes_held,
    cost_emitted,
    emitted_at,
    forgiven,
    level_max,
    level,
    level_waiting,
    level_at,
    level_until,
    keys,
    late_stamps,
    blocked_ns,
    blocked_since,
);

/// How late items left, as a histogram whose buckets are an eighth of a power of two wide.
#[derive(Clone, Debug)]
pub struct Lateness {
    buckets: Vec<u64>,
    count: u64,
    longest: u64,
}

const STEPS: u32 = 8;

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness { buckets: vec![0; (64 * STEPS) as usize], count: 0, longest: 0 }
    }
}

impl Lateness {
    /// Counts `count` items, of which the first was `first` nanoseconds late and each further one `step` less.
    pub fn record(&mut self, count: u64, first: u64, step: u64) {
        // A few of a batch stand for all: it is one write, and how late its items were is a straight line.
        const SAMPLES: u64 = 8;
        let samples = count.min(SAMPLES);
        for sample in 0..samples {
            let share = count / samples + u64::from(sample < count % samples);
            let late = first.saturating_sub(step.saturating_mul((sample * count + count / 2) / samples));
            self.buckets[Self::bucket(late)] += share;
        }
        self.count += count;
        self.longest = self.longest.max(first);
    }

    /// The lateness that `percent` of the items did not exceed, in nanoseconds, to within an eighth.
    pub fn percentile(&self, percent: u64) -> u64 {
        let mut left = (u128::from(self.count) * u128::from(percent)).div_ceil(100);
        for (bucket, count) in self.buckets.iter().enumerate() {
            if u128::from(*count) >= left {
                return Self::upper(bucket).min(self.longest);
            }
            left -= u128::from(*count);
        }
        self.longest
    }

    /// The longest, in nanoseconds.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    fn bucket(late: u64) -> usize {
        if late < u64::from(STEPS) {
            return late as usize;
        }
        let power = late.ilog2();
        let step = (late >> (power - 3)) as u32 & (STEPS - 1);
        ((power - 2) * STEPS + step) as usize
    }

    fn upper(bucket: usize) -> u64 {
        let (group, step) = (bucket as u32 / STEPS, bucket as u64 % u64::from(STEPS));
        if group == 0 { step } else { ((u64::from(STEPS) + step + 1) << (group - 1)) - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_what_was_published() {
        let counters = Counters::default();
        let accounts = Accounts { read: 7, emitted: 4, dropped: 2, late_stamps: 9, ..Accounts::default() };
        counters.publish(&accounts);
        assert_eq!(counters.snapshot(), accounts);
        assert_eq!(counters.snapshot().held(), 1);
    }

    #[test]
    fn percentiles_are_right_to_an_eighth() {
        let mut lateness = Lateness::default();
        (1..=1000).for_each(|us| lateness.record(1, us * 1000, 0));
        for percent in [1, 50, 90, 99, 100] {
            let exact = percent * 10_000;
            let got = lateness.percentile(percent);
            assert!(got >= exact && got <= exact + exact / 8, "{percent} %: {got} for {exact}");
        }
    }

    #[test]
    fn a_batch_counts_all_its_items() {
        let mut lateness = Lateness::default();
        lateness.record(1003, 1_000_000, 1000);
        assert_eq!(lateness.count, 1003);
        assert_eq!(lateness.buckets.iter().sum::<u64>(), 1003);
        assert!(lateness.percentile(50) < 600_000);
    }
}
