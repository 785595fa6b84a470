//! The leaky bucket: one after the other, T apart.
//!
//! The whole memory is S, the slot: the instant from which the schedule lets the next item leave. An item admitted at A
//! leaves at D = max(A, S), and then S = D + cost T. While items wait, D runs along 0, T, 2T, ... whatever anybody's
//! lateness; after idling S lies behind, max forgets it, and no credit is earned. As k items that leave one after the
//! other move S by at least k T, any half-open window W holds at most floor(W/T) + 1 of cost 1.
//!
//! This is the generic cell rate algorithm (ITU-T I.371) with a tolerance of nothing.

use super::{Departure, Ticks};

#[derive(Clone, Debug)]
pub(super) struct LeakyBucket {
    /// T: ticks for one unit, at least 1.
    pub period: Ticks,
}

impl LeakyBucket {
    pub fn leave(&self, slot: &mut Ticks, due: Ticks, units: u64) {
        *slot = due.max(*slot).saturating_add(self.period.saturating_mul(u128::from(units)));
    }

    /// As `leave` for up to `count` items of `units` each, the first at `due`, the others when their slots come if that
    /// is by `until`. Arithmetic for one item serves them all.
    pub fn leave_many(&self, slot: &mut Ticks, due: Ticks, units: u64, count: u64, until: Ticks) -> Departure {
        let step = self.period.saturating_mul(u128::from(units));
        let further = if step == 0 { u128::MAX } else { div(until.saturating_sub(due), step) };
        let count = super::ns(further.saturating_add(1)).min(count);
        *slot = due.saturating_add(step.saturating_mul(u128::from(count)));
        Departure { count, due, step }
    }
}

/// a / b rounded down. Division of 128 bits takes ten times as long as that of 64, and most fit.
pub fn div(a: Ticks, b: impl Into<Ticks>) -> Ticks {
    let b = b.into();
    match (u64::try_from(a), u64::try_from(b)) {
        (Ok(a), Ok(b)) => u128::from(a / b),
        _ => a / b,
    }
}
