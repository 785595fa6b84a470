//! Reserved units and when they may leave, on the caller's clock: exact, in 128 bits. Pure.

use super::Returned;
use super::reservation::{self, Moment, Order, State, Terms, Verdict};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// What waits, when a ledger is asked what to ask.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Cost of the item at the head.
    pub cost: u64,
    /// Cost of all that waits, the head included.
    pub waiting: u64,
    /// Take nothing if the head would have to wait longer than this.
    pub max_wait_ns: Option<u64>,
}

/// Wake-ups are late by this much on a busy machine: it does not count as having been stopped.
pub(super) const LATE_WAKE_NS: u64 = 10_000_000;

/// Reserved units, on the caller's clock.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub(super) terms: Terms,
    /// When the answer arrived: the store's now, placed never too early.
    anchor_ns: u64,
    /// From the store's now to the first unit's place.
    lead: Moment,
    base: Moment,
    units: u64,
    pub(super) used: u64,
    /// From the own bucket of `--on-outage local`: not the store's to take back.
    pub(super) local: bool,
}

impl Grant {
    /// Units from `base` on, answered at `anchor_ns` by a store whose clock said `now_us`.
    pub fn new(terms: Terms, anchor_ns: u64, now_us: u64, base: Moment, units: u64) -> Self {
        let lead = base.minus(Moment::whole(now_us), terms.pace.n());
        Grant { terms, anchor_ns, lead, base, units, used: 0, local: false }
    }

    /// How many units are left.
    pub fn left(&self) -> u64 {
        self.units - self.used
    }

    /// The place of unit `used + offset`, in 1/n us after the anchor. Spans are below 2^51 us and n at most 2^52: the
    /// bounds here are never met.
    pub(super) fn place(&self, offset: u64) -> i128 {
        let pace = &self.terms.pace;
        let lead = u128::from(self.lead.us) * u128::from(pace.n()) + u128::from(self.lead.rem);
        let ahead = u128::from(self.used) + u128::from(offset);
        lead.saturating_add(ahead.saturating_mul(u128::from(pace.p_us()))).min(1 << 116) as i128
    }

    /// Ticks after the anchor as an instant, rounded up to a nanosecond and not before the anchor.
    pub(super) fn instant(&self, ticks: i128) -> u64 {
        let ns = (ticks.max(0) as u128 * 1000).div_ceil(u128::from(self.terms.pace.n()));
        self.anchor_ns.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// When an item of this cost may leave if the `offset` next units go to items before it: exact, rounded up.
    pub fn slot(&self, offset: u64, cost: u64) -> u64 {
        self.instant(self.place(offset.min(self.left())) - self.ticks(self.terms.credit(cost)))
    }

    pub(super) fn ticks(&self, units: u64) -> i128 {
        (u128::from(units) * u128::from(self.terms.pace.p_us())).min(1 << 112) as i128
    }

    /// How many of the units left have their place at `ns` or before, each taken `early` units early.
    pub(super) fn passed(&self, ns: u64, early: u64) -> u64 {
        let Some(since) = ns.checked_sub(self.anchor_ns) else {
            return 0;
        };
        let since = (u128::from(since) * u128::from(self.terms.pace.n())) as i128;
        let first = (self.place(0) - self.ticks(early)) * 1000;
        if since < first {
            return 0;
        }
        let passed = (since - first) / (self.ticks(1) * 1000) + 1;
        u64::try_from(passed).unwrap_or(u64::MAX).min(self.left())
    }

    /// Where the reservation ends in the store's time.
    pub(super) fn end(&self) -> Moment {
        let pace = &self.terms.pace;
        let span = pace.span(self.units).unwrap_or_default();
        self.base.plus(span, pace.n())
    }
}

/// One bucket as this client knows it.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) grants: VecDeque<Grant>,
    pub(super) asked: bool,
    /// Where this client's last reservation ended, in the store's time; and on the caller's clock.
    pub(super) floor: Moment,
    pub(super) tat_ns: u64,
    pub(super) local: Option<State>,
    /// Times in a row that units were void when their turn came. Each doubles what is forgiven, so that a machine on
    /// which every wake-up is late gets its items out all the same.
    pub(super) voided: u32,
}

impl Lane {
    pub(super) fn reserved(&self) -> u64 {
        self.grants.iter().fold(0, |sum, grant| sum.saturating_add(grant.left()))
    }

    /// When an item of this cost may leave, taken `early` units early; None if its units are not all reserved.
    pub(super) fn stands(&self, cost: u64, early: impl Fn(&Terms) -> u64) -> Option<u64> {
        let (mut missing, mut taken, mut due) = (cost.max(1), 0, 0);
        for grant in &self.grants {
            // Counted back to where the item would stand if its units were in one piece: the last piece decides.
            let start = grant.place(0) - grant.ticks(taken) - grant.ticks(early(&grant.terms));
            due = due.max(grant.instant(start));
            let part = missing.min(grant.left());
            (missing, taken) = (missing - part, taken + part);
            if missing == 0 {
                return Some(due);
            }
        }
        None
    }

    /// Drops what has passed by too much. All that was left of the grants is returned, as they were, if no valid one
    /// comes after them: what comes before a valid one cannot go back.
    pub(super) fn drop_void(&mut self, catch_up_ns: u64, now: u64) -> SmallVec<[Grant; 2]> {
        let forgiven = catch_up_ns.max(LATE_WAKE_NS).saturating_mul(1 << self.voided.min(7)).min(u64::MAX - 1);
        let mut voided = SmallVec::new();
        let mut some = false;
        while let Some(grant) = self.grants.front_mut() {
            // Until time 0 nothing has passed.
            let void = now.checked_sub(forgiven + 1).map_or(0, |then| grant.passed(then, 0));
            some |= void > 0;
            if void < grant.left() {
                grant.used += void;
                break;
            }
            voided.extend(self.grants.pop_front());
        }
        if some {
            self.voided = self.voided.saturating_add(1);
        }
        if !self.grants.is_empty() {
            voided.clear();
        }
        voided
    }

    /// What is left of a grant is given up: it goes back, unless it is of our own.
    pub(super) fn take_back(&mut self, key: &[u8], grant: &Grant, back: &mut Vec<Returned>) {
        let pace = &grant.terms.pace;
        if let Some(span) = pace.span(grant.left()).filter(|span| !grant.local && *span > Moment::default()) {
            let end = grant.end();
            self.floor = end.minus(span, pace.n());
            self.tat_ns = self.tat_ns.saturating_sub(pace.ns(span));
            back.push(Returned { key: key.to_vec(), end, back: span });
        }
    }

    pub(super) fn place(&mut self, grant: Grant) {
        let span = grant.terms.pace.span(grant.units).unwrap_or_default();
        let n = grant.terms.pace.n();
        let end_ns = grant.terms.pace.ns(grant.lead.plus(span, n));
        self.tat_ns = grant.anchor_ns.saturating_add(end_ns);
        if !grant.local {
            self.floor = grant.end();
        }
        self.grants.push_back(grant);
    }

    /// Reserves from the own bucket of an outage; the wait if that is too long.
    pub(super) fn reserve_own(&mut self, terms: Terms, units: u64, need: Need, now: u64) -> Option<u64> {
        let (pace, now_us) = (terms.pace, now / 1000);
        let order = Order::new(&pace, units, terms.credit(need.cost), need.max_wait_ns, Moment::default())?;
        match reservation::reserve(&pace, self.local, now_us, &order) {
            Verdict::TooFar(wait) => Some(pace.ns(wait)),
            Verdict::Granted { base, state, .. } => {
                self.local = Some(state);
                let mut grant = Grant::new(terms, now, now_us, base, units);
                grant.local = true;
                self.place(grant);
                None
            }
            Verdict::OtherRate(_) | Verdict::Beyond => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::{Rate, Unit};

    const S: u64 = 1_000_000_000;

    fn terms(n: u64, p_ns: u64, burst: u64) -> Terms {
        Terms::new(&Rate::new(n, p_ns, Unit::Items).unwrap(), burst).unwrap()
    }

    #[test]
    fn slots_are_exact_and_rounded_up() {
        let grant = Grant::new(terms(3, S, 1), 1000, 50, Moment { us: 50, rem: 1 }, 4);
        let slots: Vec<_> = (0..4).map(|k| grant.slot(k, 1)).collect();
        // The lead is a third of a microsecond.
        assert_eq!(slots, [1334, 333_334_667, 666_668_000, 1_000_001_334]);
    }

    #[test]
    fn a_burst_is_never_before_the_answer() {
        let grant = Grant::new(terms(10, S, 3), 1000, 50, Moment::whole(50), 5);
        let slots: Vec<_> = (0..5).map(|k| grant.slot(k, 1)).collect();
        assert_eq!(slots, [1000, 1000, 1000, 100_001_000, 200_001_000]);
    }

    #[test]
    fn passed_counts_what_slot_says() {
        for (n, p_ns, burst) in [(3, S, 1), (7, 1000, 1), (1_000_000_007, S, 1), (10, S, 4), (LARGEST, 1000, 2)] {
            let terms = terms(n, p_ns, burst);
            let grant = Grant::new(terms, 777, 50, Moment { us: 52, rem: 1 }, 20);
            for now in (0..20).map(|k| grant.slot(k, 1)).flat_map(|at| [at - 1, at, at + 1]) {
                let due = (0..20).filter(|k| grant.slot(*k, 1) <= now).count() as u64;
                assert_eq!(grant.passed(now, terms.credit(1)), due, "{n}/{p_ns} ns at {now}");
            }
        }
    }
    const LARGEST: u64 = reservation::LARGEST_N;

    #[test]
    fn the_dearest_grants_do_not_overflow() {
        let terms = terms(1, 3_600_000_000_000 * 5000, 3);
        let grant = Grant::new(terms, u64::MAX, 0, Moment::whole(1 << 51), 100);
        assert_eq!(grant.slot(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(grant.passed(u64::MAX, u64::MAX), 100);
    }
}
