//! Warm-up: a leaky bucket that is cold after idling and gets up to its rate little by little.
//!
//! The curve is that of Guava's `SmoothWarmingUp` with a cold factor of 3. Measured in time instead of permits it is
//! short. Idling makes the bucket colder by the time it lasts, up to the whole duration W. An item takes T of coldness
//! away per unit, and costs the integral of 1 + (4/W) max(0, x - W/2) over the coldness x that it takes; whatever it
//! cannot take, because the bucket is warm, costs T a unit as always. So an item costs 3T at first, less and less until
//! the coldness is down to W/2, and T from there on. The sum over the whole way from W to W/2 is W, the duration.
//!
//! With a = 2x - W, or 0 below, what is above T a unit is (a^2 - b^2) / 2W from a down to b. The remainder of that division is kept, so nothing is lost.

use super::Ticks;

#[derive(Clone, Debug)]
pub(super) struct WarmUp {
    /// T: ticks for one unit, at least 1.
    period: Ticks,
    /// W: the duration, in ticks, small enough for its square.
    duration: Ticks,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// S is `slot` + `remainder` / 2W ticks.
    slot: Ticks,
    remainder: Ticks,
    /// x, from 0 to W.
    coldness: Ticks,
}

impl Memory {
    pub fn slot(&self) -> Ticks {
        self.slot.saturating_add(u128::from(self.remainder > 0))
    }

    /// The same in other ticks.
    pub fn rescaled(&self, rescale: impl Fn(Ticks) -> Ticks) -> Memory {
        // Less than a tick is left over, and goes.
        Memory { slot: rescale(self.slot()), remainder: 0, coldness: rescale(self.coldness) }
    }

    /// As cold as this, but with another slot.
    pub fn with_slot(self, slot: Ticks) -> Memory {
        Memory { slot, remainder: 0, ..self }
    }
}

impl WarmUp {
    /// `None` if the duration is too long to be squared.
    pub fn new(period: Ticks, duration: Ticks) -> Option<WarmUp> {
        duration.checked_mul(duration)?.checked_mul(2)?;
        Some(WarmUp { period, duration })
    }

    pub fn fresh(&self) -> Memory {
        Memory { slot: 0, remainder: 0, coldness: self.duration }
    }

    pub fn leave(&self, memory: &mut Memory, due: Ticks, units: u64) {
        if due > memory.slot() {
            let idle = due - memory.slot();
            memory.coldness = memory.coldness.saturating_add(idle).min(self.duration);
            (memory.slot, memory.remainder) = (due, 0);
        }
        let whole = self.period.saturating_mul(u128::from(units));
        let before = memory.coldness;
        memory.coldness = before.saturating_sub(whole);
        let above = |x: Ticks| (2 * x).saturating_sub(self.duration);
        let (a, b) = (above(before), above(memory.coldness));
        let extra = a * a - b * b + memory.remainder;
        memory.slot = memory.slot.saturating_add(whole).saturating_add(extra / (2 * self.duration));
        memory.remainder = extra % (2 * self.duration);
    }

    pub fn fresh_at(&self, memory: &Memory) -> Ticks {
        memory.slot().saturating_add(self.duration - memory.coldness)
    }
}
