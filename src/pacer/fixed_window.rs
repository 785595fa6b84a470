//! The fixed window: n units in each window of p.
//!
//! Windows are half open. Either they lie on the UTC grid, or one opens with the first item to leave outside any. Each
//! holds n at most, so some window W that lies across an edge may hold 2n: that is what a fixed window is.
//!
//! An item counts in the window in which its write ended. Until then it counts in every window, so a write that hangs
//! over an edge can push neither window over n. An item dearer than n leaves alone in an empty window and fills that
//! and the next ones until it is paid for.

use std::num::NonZeroU64;

/// Where windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// With the first item to leave outside any window.
    First,
    /// On the UTC grid.
    Clock,
}

#[derive(Clone, Debug)]
pub(super) struct FixedWindow {
    n: u64,
    p: NonZeroU64,
    align: Align,
    /// How much of a window of the UTC grid had passed when the clock began, in nanoseconds.
    begun: i128,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// When the window of `used` began. On the grid it may lie before the clock began.
    start: i128,
    /// Whether an item has opened it; on the grid all are open.
    open: bool,
    /// Units whose write ended since `start`; more than n where a dear item fills the windows after it.
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

impl FixedWindow {
    pub fn new(n: u64, p: u64, align: Align) -> FixedWindow {
        FixedWindow { n, p: NonZeroU64::new(p).unwrap_or(NonZeroU64::MIN), align, begun: 0 }
    }

    pub fn begin_at(&mut self, utc: i128) {
        self.begun = utc.rem_euclid(i128::from(self.p.get()));
    }

    /// What to remember when this window takes over at `now` from another one; the last item left at `last`.
    pub fn take_over(&self, before: &Memory, now: u64, last: Option<u64>) -> Memory {
        let mut memory = Memory { used: before.used.min(self.n), ..*before };
        if self.align == Align::Clock {
            let (now, p) = (i128::from(now), i128::from(self.p.get()));
            memory.start = now - (now + self.begun) % p;
            if last.is_none_or(|last| i128::from(last) < memory.start) {
                memory.used = 0;
            }
        }
        memory
    }

    pub fn due(&self, memory: &Memory, from: u64, units: u64) -> Option<u64> {
        let full = if units <= self.n {
            let wanted = memory.leaving.checked_add(units).filter(|wanted| *wanted <= self.n)?;
            // Windows until what was used leaves room for that. A dear item fills them, and nothing always fits.
            if wanted == 0 { 0 } else { memory.used.saturating_sub(self.n - wanted).div_ceil(self.n) }
        } else if memory.leaving == 0 {
            memory.used.div_ceil(self.n)
        } else {
            return None;
        };
        let free = if full == 0 { 0 } else { self.edge(memory, full) };
        Some(from.max(free))
    }

    pub fn ended(&self, memory: &mut Memory, at: u64, units: u64) {
        self.roll(memory, at);
        memory.leaving = memory.leaving.saturating_sub(units);
        memory.used = memory.used.saturating_add(units);
    }

    pub fn fresh_at(&self, memory: &Memory) -> Option<u64> {
        let windows = memory.used.div_ceil(self.n).max(u64::from(memory.open));
        (memory.leaving == 0).then(|| if windows == 0 { 0 } else { self.edge(memory, windows) })
    }

    /// When the window that comes `windows` after that of the memory begins.
    fn edge(&self, memory: &Memory, windows: u64) -> u64 {
        let offset = i128::from(windows) * i128::from(self.p.get());
        u64::try_from(memory.start.saturating_add(offset)).unwrap_or(u64::MAX)
    }

    /// Brings the memory to the window that holds `at`.
    fn roll(&self, memory: &mut Memory, at: u64) {
        let (at, p) = (i128::from(at), i128::from(self.p.get()));
        let passed = ((at - memory.start) / p).max(0);
        let paid = u64::try_from(passed).unwrap_or(u64::MAX).saturating_mul(self.n);
        memory.used = memory.used.saturating_sub(paid);
        match self.align {
            Align::Clock => memory.start = at - (at + self.begun) % p,
            Align::First if memory.open && (memory.used > 0 || passed == 0) => memory.start += passed * p,
            Align::First => (memory.start, memory.open) = (at, true),
        }
    }
}
