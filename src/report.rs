//! The summary, for people and for machines, and the one warning about a rate that was not reached.

use crate::clock::{Clock, MILLISECOND, Monotonic, SECOND};
use crate::config::{Config, Format};
use crate::counters::Pace;
use crate::hub::Core;
use crate::pacer;
use crate::rate::{Rate, Unit};
use crate::run::Weight;
use crate::shared::{Config as Shared, Level};
use crate::voice::{self, Voice};
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};

/// Makes summaries.
#[derive(Clone, Debug)]
pub struct Report {
    format: Option<Format>,
    clock: Monotonic,
    /// What is asked, which may change while the run lasts.
    pace: Arc<Mutex<Pace>>,
    bytes: bool,
    keyed: bool,
    /// Warming up is slower than the rate on purpose, and so is a share of it: there is no telling whether it was reached.
    paced: bool,
    /// Lateness beyond the catch-up is forgiven.
    forgives: bool,
    /// How much earlier than at its place in the shared bucket something may leave, in nanoseconds.
    credit: u64,
}

impl Report {
    /// A report about a run of `config` that began with `clock`.
    pub fn new(config: &Config, clock: Monotonic) -> Report {
        Report {
            format: config.stats,
            clock,
            pace: Arc::new(Mutex::new(Pace::of(config))),
            bytes: config.bucket.count_bytes,
            keyed: config.bucket.max_keys.is_some(),
            forgives: !config.bucket.pacer.keeps_real_time(),
            paced: !config.bucket.pacer.warms_up() && config.shared.is_none(),
            credit: config.shared.as_ref().map_or(0, |Shared { terms, .. }| terms.pace.span_ns(terms.credit(1))),
        }
    }

    /// What is asked at the moment.
    pub fn pace(&self) -> Pace {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on that is asked.
    pub fn set_pace(&self, pace: Pace) {
        *self.pace.lock().unwrap_or_else(PoisonError::into_inner) = pace;
    }

    /// A summary of the run so far, with how full the shared bucket is if that is known.
    pub fn summary(&self, core: &Core, level: Option<Level>) -> String {
        match self.format {
            Some(Format::Json) => self.json(core, level),
            Some(Format::Text) | None => self.text(core, level),
        }
    }

    /// Says at the end what has to be said, and prints the summary if one was asked for.
    pub fn conclude(&self, core: &Core, level: Option<Level>, voice: &Voice) {
        let accounts = core.bucket.accounts();
        if let Some((rate, percent)) = self.shortfall(core) {
            voice.warn(format!(
                "{rate} was asked, {percent:.1} % less was reached although items waited; \
                 the machine was too busy, leaky was stopped, or --strict or a burst leaves no time to make up for it"
            ));
        }
        let gone = accounts.dropped + accounts.expired;
        if gone > 0 && self.format.is_none() {
            let unit = if self.bytes { "bytes" } else { "items" };
            let read = accounts.read;
            let lost = self.lost_most(core).into_iter().take(3).map(|(key, count)| format!("'{key}' {count}"));
            let lost: Vec<String> = lost.collect();
            let lost = if lost.is_empty() { String::new() } else { format!("; most by key: {}", lost.join(", ")) };
            voice.warn(format!(
                "of {read} {unit} {} were dropped and {} expired{lost}",
                accounts.dropped, accounts.expired
            ));
        }
        if self.format.is_some() {
            voice::aside(&self.summary(core, level));
        }
    }

    fn lost_most(&self, core: &Core) -> Vec<(String, u64)> {
        let lost = core.bucket.lost_most().into_iter().take(10);
        let name = |key: &[u8]| String::from_utf8_lossy(key).escape_debug().to_string();
        lost.map(|(key, count)| (name(key), count)).collect()
    }

    /// The rate that was missed by more than a hundredth while items waited and the output did not block, and by how
    /// many percent.
    fn shortfall(&self, core: &Core) -> Option<(Rate, f64)> {
        if self.keyed || !self.paced {
            return None;
        }
        // The strictest rate holds the others back, so none is missed if one is reached.
        let missed = self.pace().rates.into_iter().map(|rate| {
            let asked = rate.units_in(core.busy.ns);
            let reached = self.reached(&rate, core);
            // An item or two more or less is chance.
            let average = reached.checked_div(core.busy.items).unwrap_or(1).max(1);
            // And so is a wake-up that comes late just before the end.
            let chance = (2 * average).max(rate.units_in(10 * MILLISECOND));
            let short = asked.saturating_sub(reached.saturating_add(chance));
            (rate, if asked == 0 { 0.0 } else { short as f64 * 100.0 / asked as f64 })
        });
        let missed = missed.min_by(|a, b| a.1.total_cmp(&b.1))?;
        // A schedule that forgives loses only what it forgives, however little an item that is dear leaves to be seen.
        let lost =
            if self.forgives { core.busy.forgiven as f64 * 100.0 / core.busy.ns.max(1) as f64 } else { missed.1 };
        Some((missed.0, missed.1.min(lost))).filter(|(_, percent)| *percent > 1.0)
    }

    fn reached(&self, rate: &Rate, core: &Core) -> u64 {
        match rate.unit() {
            Unit::Items => core.busy.items,
            unit => pacer::units(unit, Weight { len: core.busy.bytes, cost: core.busy.cost }),
        }
    }

    /// How long an arrival of cost 1 would wait for its slot.
    fn wait(&self, level: Level) -> u64 {
        level.ahead_ns.saturating_sub(self.credit)
    }

    fn json(&self, core: &Core, level: Option<Level>) -> String {
        let accounts = core.bucket.accounts();
        let lateness = &core.lateness;
        let pace = self.pace();
        let rates: Vec<String> = pace.rates.iter().map(Rate::to_string).collect();
        let reached = |rate: &Rate| per_second(self.reached(rate, core), core.busy.ns);
        json!({
            "read": accounts.read,
            "emitted": accounts.emitted,
            "dropped": accounts.dropped,
            "expired": accounts.expired,
            "held": accounts.held(),
            "bytes": accounts.bytes_emitted,
            "bytes_read": accounts.bytes_read,
            "elapsed_ns": self.clock.now(),
            "rate_asked": rates,
            "paused": pace.paused,
            "rate_reached": pace.rates.iter().map(reached).collect::<Vec<_>>(),
            "rate_missed": self.shortfall(core).is_some(),
            "mean_per_second": per_second(accounts.emitted, self.clock.now()),
            "lateness_ns": {
                "p50": lateness.percentile(50),
                "p90": lateness.percentile(90),
                "p99": lateness.percentile(99),
                "max": lateness.longest(),
            },
            "forgiven_ns": accounts.forgiven,
            "shared": level.map(|level| json!({"level": level.units(), "wait_ns": self.wait(level)})),
            "level_max": accounts.level_max as f64 / 1000.0,
            "blocked_ns": core.blocked_ns,
            "late_stamps": core.faults.late,
            "unreadable": core.faults.key.count + core.faults.cost.count + core.faults.time.count,
            "lost_most": self.lost_most(core).into_iter().map(|(key, count)| json!({"key": key, "items": count})).collect::<Vec<_>>(),
        })
        .to_string()
    }

    fn text(&self, core: &Core, level: Option<Level>) -> String {
        let accounts = core.bucket.accounts();
        let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
        let seconds = |ns: u64| ns as f64 / SECOND as f64;
        let elapsed = self.clock.now();
        let lateness = &core.lateness;
        let unit = if self.bytes { "bytes" } else { "items" };
        let mut text = format!(
            "leaky: {} {unit} read, {} emitted, {} dropped, {} expired, {} held; {} bytes out in {:.3} s, {:.3} {unit}/s\n",
            accounts.read,
            accounts.emitted,
            accounts.dropped,
            accounts.expired,
            accounts.held(),
            accounts.bytes_emitted,
            seconds(elapsed),
            per_second(accounts.emitted, elapsed).unwrap_or(0.0),
        );
        for rate in &self.pace().rates {
            let reached = match per_second(self.reached(rate, core), core.busy.ns) {
                None => ", nothing had to wait".into(),
                // All keys together are faster than each may be, and a burst is on purpose.
                Some(_) if self.keyed => " for each key".into(),
                Some(_) if !self.forgives => String::new(),
                Some(reached) => format!(", {reached:.3}/s while items waited"),
            };
            text += &format!("leaky: {rate} asked{reached}\n");
        }
        if let Some(level) = level {
            text += &format!(
                "leaky: the shared bucket has level {:.3}; an arrival would wait {:.3} s\n",
                level.units(),
                seconds(self.wait(level)),
            );
        }
        text + &format!(
            "leaky: late by {} (median), {} (99 %), {} (most); level {} at most; output blocked {:.3} s",
            ms(lateness.percentile(50)),
            ms(lateness.percentile(99)),
            ms(lateness.longest()),
            accounts.level_max as f64 / 1000.0,
            seconds(core.blocked_ns),
        )
    }
}

fn per_second(count: u64, ns: u64) -> Option<f64> {
    (ns > 0).then(|| count as f64 * SECOND as f64 / ns as f64)
}
