//! The sliding window: n units in any half-open window of p, exactly.
//!
//! It remembers when each of the last n units left, so its memory grows with n (16 bytes an item, fewer where several
//! leave together), which is why n has a bound. An item may leave once so many of them are older than p that it fits.
//!
//! An item counts when its write ended; until then it counts always. An item dearer than n leaves alone in an empty
//! window and is paid for like n units at a time, a window after the other.

use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub(super) struct SlidingWindow {
    pub n: u64,
    /// Nanoseconds, at least 1.
    pub p: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// When units left and how many, oldest first. Only the first entry can be of more than n.
    log: VecDeque<(u64, u64)>,
    /// The sum of the log.
    used: u64,
    /// Units that have left and whose write has not ended.
    leaving: u64,
}

impl Memory {
    pub fn leave(&mut self, units: u64) {
        self.leaving = self.leaving.saturating_add(units);
    }

    pub fn withdraw(&mut self, units: u64) {
        self.leaving = self.leaving.saturating_sub(units);
    }
}

impl SlidingWindow {
    /// What to remember when this window takes over from another one: units that left at one moment were no dear item,
    /// and owe one window at most.
    pub fn take_over(&self, before: &Memory) -> Memory {
        let log: VecDeque<_> = before.log.iter().map(|(at, units)| (*at, (*units).min(self.n))).collect();
        Memory { used: log.iter().map(|(_, units)| units).sum(), log, leaving: before.leaving }
    }

    pub fn due(&self, memory: &Memory, from: u64, units: u64) -> Option<u64> {
        let mut excess = if units <= self.n {
            let wanted = memory.leaving.checked_add(units).filter(|wanted| *wanted <= self.n)?;
            // A dear item fills its windows, and nothing always fits.
            if wanted == 0 { 0 } else { memory.used.saturating_sub(self.n - wanted) }
        } else if memory.leaving == 0 {
            memory.used
        } else {
            return None;
        };
        let mut free = 0;
        for &(at, units) in &memory.log {
            if excess == 0 {
                break;
            }
            let windows = if units > self.n { excess.min(units).div_ceil(self.n) } else { 1 };
            free = at.saturating_add(self.p.saturating_mul(windows));
            excess = excess.saturating_sub(units);
        }
        Some(from.max(free))
    }

    pub fn ended(&self, memory: &mut Memory, at: u64, units: u64) {
        self.forget(memory, at);
        memory.leaving = memory.leaving.saturating_sub(units);
        if units == 0 {
            return;
        }
        memory.used = memory.used.saturating_add(units);
        match memory.log.back_mut() {
            Some((last, sum)) if *last == at => *sum += units,
            _ => memory.log.push_back((at, units)),
        }
    }

    pub fn fresh_at(&self, memory: &Memory) -> Option<u64> {
        let over = |&(at, units): &(u64, u64)| at.saturating_add(self.p.saturating_mul(units.div_ceil(self.n).max(1)));
        (memory.leaving == 0).then(|| memory.log.back().map_or(0, over))
    }

    /// Forgets what is older than p at `now`.
    fn forget(&self, memory: &mut Memory, now: u64) {
        while let Some((at, units)) = memory.log.front_mut() {
            let passed = now.saturating_sub(*at) / self.p;
            if passed == 0 {
                return;
            }
            let paid = passed.saturating_mul(self.n).min(*units);
            memory.used -= paid;
            if paid == *units {
                memory.log.pop_front();
            } else {
                *units -= paid;
                *at += passed * self.p;
                return;
            }
        }
    }
}
