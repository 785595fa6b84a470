//! The token bucket: what was not used while idling may leave at once later, up to a burst of b units.
//!
//! The memory is the theoretical arrival time, TAT: when the bucket would be full again. An item of k units may leave
//! from D = TAT - (b - min(k, b)) T on; then TAT = max(TAT, D) + k T. TAT lies at most b T ahead when an item of cost 1
//! has left, so any half-open window W holds at most floor(W/T) + b of cost 1. (Turner's bucket as GCRA, ITU-T I.371.)
//!
//! The promise is about what the reader gets, so an item counts when its write has ended: TAT then becomes what it
//! would be had it left at that moment, and no more than b units may be on their way. So a reader that stalls, or a
//! stopped process, finds a burst afterwards and no more. A late wake-up costs nothing as long as it is shorter than
//! (b - 1) T, for TAT does not move while tokens are there.

use super::Ticks;

#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    /// T: ticks for one unit, at least 1.
    pub period: Ticks,
    /// b: units that may leave back to back, at least 1.
    pub burst: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// The TAT in two halves, which need no alignment of 16: there may be millions of these.
    tat: [u64; 2],
    /// Units that have left and whose write has not ended.
    leaving: u64,
}

impl Memory {
    /// When the bucket is full again.
    pub fn tat(&self) -> Ticks {
        u128::from(self.tat[0]) << 64 | u128::from(self.tat[1])
    }

    pub fn set_tat(&mut self, tat: Ticks) {
        self.tat = [(tat >> 64) as u64, tat as u64];
    }

    pub fn withdraw(&mut self, units: u64) {
        self.leaving = self.leaving.saturating_sub(units);
    }

    /// The same in other ticks.
    pub fn rescaled(mut self, rescale: impl Fn(Ticks) -> Ticks) -> Memory {
        self.set_tat(rescale(self.tat()));
        self
    }
}

impl TokenBucket {
    /// A bucket out of which the next unit may leave at `slot`, with no burst saved up behind it.
    pub fn emptied(&self, mut memory: Memory, slot: Ticks) -> Memory {
        memory.set_tat(slot.saturating_add(self.cost(self.burst - 1)));
        memory
    }

    pub fn due(&self, memory: &Memory, units: u64) -> Option<Ticks> {
        let fits = memory.leaving == 0 || memory.leaving.saturating_add(units) <= self.burst;
        fits.then(|| self.slot(memory, units))
    }

    /// From when on the tokens are there for an item of so many units.
    pub fn slot(&self, memory: &Memory, units: u64) -> Ticks {
        memory.tat().saturating_sub(self.cost(self.burst.saturating_sub(units)))
    }

    pub fn leave(&self, memory: &mut Memory, due: Ticks, units: u64) {
        memory.set_tat(memory.tat().max(due).saturating_add(self.cost(units)));
        memory.leaving = memory.leaving.saturating_add(units);
    }

    pub fn ended(&self, memory: &mut Memory, at: Ticks, units: u64) {
        memory.set_tat(memory.tat().max(at.saturating_add(self.cost(memory.leaving))));
        memory.leaving = memory.leaving.saturating_sub(units);
    }

    fn cost(&self, units: u64) -> Ticks {
        self.period.saturating_mul(u128::from(units))
    }
}
