//! The pacer says when the next item may leave. It is pure: it has no clock and waits for nobody.
//!
//! Time is counted in ticks. A tick is a nanosecond over `ticks_per_ns`, which is chosen so that the T of every rate is
//! a whole number of ticks; nothing is ever rounded, so 3/s is three in every second for ever. Only an instant that
//! somebody waits for is rounded, up, to a nanosecond.
//!
//! Each algorithm has a file of its own and answers the same questions about one rate:
//!
//! - `due`: from when on may an item of so many units leave, if nothing else leaves before it? Never, for the time
//!   being, where that hangs on a write that has not ended.
//! - `leave`: it leaves then.
//! - `ended`: its write ended. Bursts and windows are promised to the reader of the output, so there an item counts
//!   when it has got there. The leaky bucket has bucket time for that instead (see `bucket`).
//! - `rest`: how much of what left is not paid for yet, which is part of the level.
//! - `fresh_at`: from when on is the state that of a bucket nobody has used?
//!
//! An item has to please all rates at once, and the state of none changes before it leaves.

mod fixed_window;
mod leaky_bucket;
mod sliding_window;
mod token_bucket;
mod warm_up;

use crate::rate::{Rate, Unit};
use crate::run::Weight;
use smallvec::SmallVec;
use std::num::NonZeroU64;
use std::ops::{Deref, DerefMut};

pub use fixed_window::Align;
use fixed_window::FixedWindow;
use leaky_bucket::LeakyBucket;
pub use leaky_bucket::div;
use sliding_window::SlidingWindow;
use token_bucket::TokenBucket;
use warm_up::WarmUp;

/// An instant or a length of time in ticks.
pub type Ticks = u128;

/// Units of `unit` that an item of weight `weight` counts.
pub fn units(unit: Unit, weight: Weight) -> u64 {
    match unit {
        Unit::Items => 1,
        Unit::Bytes => weight.len,
        Unit::Bits => weight.len.saturating_mul(8),
        Unit::Cost => weight.cost,
    }
}

/// How a pacer is to pace.
#[derive(Clone, Debug)]
pub enum Algorithm {
    /// One after the other, T apart.
    LeakyBucket,
    /// At most so many units back to back.
    TokenBucket {
        /// The units of each rate that may leave at once after idling, at least 1.
        bursts: Vec<u64>,
    },
    /// n in each window.
    FixedWindow(Align),
    /// n in any window.
    SlidingWindow,
    /// A leaky bucket that starts slowly after idling.
    WarmUp {
        /// How long it takes to reach the rate, in nanoseconds.
        duration: NonZeroU64,
    },
}

/// Why a pacer cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impossible {
    /// These rates have no common tick that is long enough.
    NoCommonTick,
    /// A sliding window remembers each item, so n has a bound.
    WindowTooLarge,
}

/// The most items a sliding window remembers.
pub const LARGEST_WINDOW: u64 = 1_000_000;

/// The rates that hold at once, and the algorithm that keeps them.
#[derive(Clone, Debug)]
pub struct Pacer {
    ticks_per_ns: u64,
    limits: SmallVec<[Limit; 1]>,
    /// There is no slot for anybody.
    paused: bool,
    /// Another pacer may take over, so a state remembers when the last item left.
    follows: bool,
}

#[derive(Clone, Debug)]
struct Limit {
    unit: Unit,
    /// T: ticks for one unit.
    period: Ticks,
    kind: Kind,
    /// It comes from a file and may become another one.
    followed: bool,
}

#[derive(Clone, Debug)]
enum Kind {
    Leaky(LeakyBucket),
    Token(TokenBucket),
    WarmUp(WarmUp),
    Fixed(FixedWindow),
    Sliding(SlidingWindow),
}

/// What a pacer remembers; one for each key.
#[derive(Clone, Debug)]
pub struct State {
    memory: Memories,
    /// When the last item left, and its weight: from there a new rate goes on, if there can be one.
    last: Option<Box<(Ticks, Weight)>>,
}

/// A memory for each rate; for one rate, which is the rule, without a detour.
#[derive(Clone, Debug)]
enum Memories {
    One(Memory),
    Several(Box<[Memory]>),
}

impl Deref for Memories {
    type Target = [Memory];

    fn deref(&self) -> &[Memory] {
        match self {
            Memories::One(memory) => std::slice::from_ref(memory),
            Memories::Several(memories) => memories,
        }
    }
}

impl DerefMut for Memories {
    fn deref_mut(&mut self) -> &mut [Memory] {
        match self {
            Memories::One(memory) => std::slice::from_mut(memory),
            Memories::Several(memories) => memories,
        }
    }
}

impl FromIterator<Memory> for Memories {
    fn from_iter<T: IntoIterator<Item = Memory>>(memories: T) -> Memories {
        let mut memories: SmallVec<[Memory; 1]> = memories.into_iter().collect();
        match (memories.pop(), memories.is_empty()) {
            (Some(memory), true) => Memories::One(memory),
            (last, _) => Memories::Several(memories.into_iter().chain(last).collect()),
        }
    }
}

/// What one rate remembers.
#[derive(Clone, Debug)]
enum Memory {
    /// S: when the schedule lets the next item leave.
    Slot(Ticks),
    Token(token_bucket::Memory),
    WarmUp(Box<warm_up::Memory>),
    Fixed(Box<fixed_window::Memory>),
    Sliding(Box<sliding_window::Memory>),
}

/// Items of equal weight that leave one after the other: the first at `due`, each further one `step` later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// How many.
    pub count: u64,
    /// When the first leaves, in ticks.
    pub due: Ticks,
    /// Ticks between them.
    pub step: Ticks,
}

impl Pacer {
    /// A pacer that keeps every one of `rates`; without any it holds nothing back.
    ///
    /// # Errors
    /// `Impossible`, where the rates cannot be kept exactly.
    pub fn new(rates: &[Rate], algorithm: &Algorithm) -> Result<Pacer, Impossible> {
        let in_windows = matches!(algorithm, Algorithm::FixedWindow(_) | Algorithm::SlidingWindow);
        // Windows begin and end at whole nanoseconds; elsewhere T has to be a whole number of ticks.
        let needs = rates.iter().map(|rate| if in_windows { 1 } else { rate.n() / gcd(rate.n(), rate.p()) });
        let ticks_per_ns = needs.into_iter().try_fold(1, lcm).ok_or(Impossible::NoCommonTick)?;
        let bursts = if let Algorithm::TokenBucket { bursts } = algorithm { &bursts[..] } else { &[] };
        let bursts = if bursts.iter().all(|burst| *burst <= 1) { &[] } else { bursts };
        let limits = rates.iter().enumerate().map(|(i, rate)| {
            let period = (u128::from(ticks_per_ns) * u128::from(rate.p())) / u128::from(rate.n());
            let kind = match algorithm {
                Algorithm::LeakyBucket | Algorithm::TokenBucket { .. } => match bursts.get(i) {
                    None => Kind::Leaky(LeakyBucket { period }),
                    Some(burst) => Kind::Token(TokenBucket { period, burst: (*burst).max(1) }),
                },
                Algorithm::WarmUp { duration } => {
                    let duration = u128::from(duration.get()) * u128::from(ticks_per_ns);
                    Kind::WarmUp(WarmUp::new(period, duration).ok_or(Impossible::NoCommonTick)?)
                }
                Algorithm::FixedWindow(align) => Kind::Fixed(FixedWindow::new(rate.n(), rate.p(), *align)),
                Algorithm::SlidingWindow if rate.n() > LARGEST_WINDOW => return Err(Impossible::WindowTooLarge),
                Algorithm::SlidingWindow => Kind::Sliding(SlidingWindow { n: rate.n(), p: rate.p() }),
            };
            Ok(Limit { unit: rate.unit(), period, kind, followed: false })
        });
        Ok(Pacer { ticks_per_ns, limits: limits.collect::<Result<_, _>>()?, paused: false, follows: false })
    }

    /// The pacer whose rate number `index` comes from a file, if that has one; `paused` gives nobody a slot.
    pub fn follow(mut self, algorithm: &Algorithm, index: Option<usize>, paused: bool) -> Pacer {
        // The burst may become larger, and then the state has to be that of a token bucket.
        if let Algorithm::TokenBucket { .. } = algorithm {
            for limit in &mut self.limits {
                if let Kind::Leaky(LeakyBucket { period }) = limit.kind {
                    limit.kind = Kind::Token(TokenBucket { period, burst: 1 });
                }
            }
        }
        if let Some(limit) = index.and_then(|index| self.limits.get_mut(index)) {
            limit.followed = true;
        }
        self.paused = paused;
        self.follows = true;
        self
    }

    /// Whether there is no slot for anybody.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The state that follows from `state`, one of the pacer `old`, when this pacer takes over at `now` (bucket time).
    ///
    /// A rate that is followed carries over neither debt nor credit: from a pacer of slots the next item may leave at
    /// max(now, last departure + cost x new T), be the old rate ever so slow, and without a burst saved up. A window
    /// goes on counting what it has seen, since its promise is about that, but owes no more than one window.
    pub fn take_over(&self, old: &Pacer, state: &State, now: u64) -> State {
        let last = state.last.as_deref().map(|(at, weight)| (self.rescale(*at, old), *weight));
        let (mut followed, mut others) = (None, Vec::new());
        for (limit, memory) in old.limits.iter().zip(&*state.memory) {
            if limit.followed {
                followed = Some(memory);
            } else {
                others.push(memory);
            }
        }
        let mut others = others.into_iter();
        let memory = self.limits.iter().map(|limit| {
            let before = if limit.followed { followed } else { others.next() };
            let slot = last.map_or(0, |(at, weight)| {
                at.saturating_add(limit.period.saturating_mul(u128::from(units(limit.unit, weight))))
            });
            let slot = slot.max(self.ticks(now));
            match (&limit.kind, before) {
                (Kind::Leaky(_), _) => Memory::Slot(slot),
                (Kind::WarmUp(warm_up), before) => {
                    let rescaled = |before: &warm_up::Memory| before.rescaled(|ticks| self.rescale(ticks, old));
                    let before = match before {
                        Some(Memory::WarmUp(before)) => rescaled(before),
                        _ => warm_up.fresh(),
                    };
                    Memory::WarmUp(Box::new(if limit.followed { before.with_slot(slot) } else { before }))
                }
                (Kind::Token(token), before) => {
                    let before = match before {
                        Some(Memory::Token(before)) => before.rescaled(|ticks| self.rescale(ticks, old)),
                        _ => token_bucket::Memory::default(),
                    };
                    let changed = limit.followed && last.is_some();
                    Memory::Token(if changed { token.emptied(before, slot) } else { before })
                }
                (Kind::Fixed(window), Some(Memory::Fixed(before))) if limit.followed => {
                    Memory::Fixed(Box::new(window.take_over(before, now, last.map(|(at, _)| self.floor_ns(at)))))
                }
                (Kind::Sliding(window), Some(Memory::Sliding(before))) if limit.followed => {
                    Memory::Sliding(Box::new(window.take_over(before)))
                }
                (Kind::Fixed(_) | Kind::Sliding(_), Some(before)) => before.clone(),
                (Kind::Fixed(_), None) => Memory::Fixed(Box::default()),
                (Kind::Sliding(_), None) => Memory::Sliding(Box::default()),
            }
        });
        State { memory: memory.collect(), last: last.map(Box::new) }
    }

    /// Ticks of the pacer `old` in ticks of this one, rounded up.
    pub fn rescale(&self, ticks: Ticks, old: &Pacer) -> Ticks {
        let (from, to) = (u128::from(old.ticks_per_ns), u128::from(self.ticks_per_ns));
        if from == to {
            return ticks;
        }
        // The whole nanoseconds apart from the rest, so that nothing overflows.
        let (whole, rest) = (ticks / from, ticks % from);
        whole.saturating_mul(to).saturating_add((rest * to).div_ceil(from))
    }

    /// Whether nothing is held back.
    pub fn is_unlimited(&self) -> bool {
        self.limits.is_empty()
    }

    /// Whether the rates hold in windows.
    pub fn in_windows(&self) -> bool {
        self.limits.iter().any(|limit| matches!(limit.kind, Kind::Fixed(_) | Kind::Sliding(_)))
    }

    /// Whether lateness is made up by the algorithm itself, so that bucket time is real time.
    pub fn keeps_real_time(&self) -> bool {
        let own = |limit: &Limit| !matches!(limit.kind, Kind::Leaky(_) | Kind::WarmUp(_));
        self.is_unlimited() || self.limits.iter().any(own)
    }

    /// Whether it starts slowly.
    pub fn warms_up(&self) -> bool {
        self.limits.iter().any(|limit| matches!(limit.kind, Kind::WarmUp(_)))
    }

    /// Says when in UTC the clock begins (nanoseconds since the epoch), for windows on the UTC grid.
    pub fn begin_at(&mut self, utc: i128) {
        for limit in &mut self.limits {
            if let Kind::Fixed(window) = &mut limit.kind {
                window.begin_at(utc);
            }
        }
    }

    /// What may leave at once after idling, in nanoseconds of the rate that allows for least; 0 where nothing may.
    pub fn shortest_burst(&self) -> u64 {
        let burst = |limit: &Limit| match &limit.kind {
            Kind::Token(token) => self.floor_ns(token.period.saturating_mul(u128::from(token.burst - 1))),
            _ => 0,
        };
        self.limits.iter().map(burst).min().unwrap_or(0)
    }

    /// The T of the strictest rate in nanoseconds, rounded down; 0 without rates.
    pub fn longest_period(&self) -> u64 {
        let longest = self.limits.iter().map(|limit| limit.period).max().unwrap_or(0);
        self.floor_ns(longest)
    }

    /// The state of a bucket that nobody has used.
    pub fn fresh(&self) -> State {
        let memory = self.limits.iter().map(|limit| match &limit.kind {
            Kind::Leaky(_) => Memory::Slot(0),
            Kind::Token(_) => Memory::Token(token_bucket::Memory::default()),
            Kind::WarmUp(warm_up) => Memory::WarmUp(Box::new(warm_up.fresh())),
            Kind::Fixed(_) => Memory::Fixed(Box::default()),
            Kind::Sliding(_) => Memory::Sliding(Box::default()),
        });
        State { memory: memory.collect(), last: None }
    }

    /// From when on an item of weight `weight`, admitted at `admitted`, may leave; `None` until a write ends or a pause
    /// is over.
    pub fn due(&self, state: &State, admitted: Ticks, weight: Weight) -> Option<Ticks> {
        if self.paused {
            return None;
        }
        self.limits.iter().zip(&*state.memory).try_fold(admitted, |due, (limit, memory)| {
            let units = units(limit.unit, weight);
            let own = match (&limit.kind, memory) {
                (Kind::Leaky(_), Memory::Slot(slot)) => Some(*slot),
                (Kind::Token(token), Memory::Token(memory)) => token.due(memory, units),
                (Kind::WarmUp(_), Memory::WarmUp(memory)) => Some(memory.slot()),
                // Windows have ticks of a nanosecond.
                (Kind::Fixed(window), Memory::Fixed(memory)) => window.due(memory, ns(due), units).map(u128::from),
                (Kind::Sliding(window), Memory::Sliding(memory)) => window.due(memory, ns(due), units).map(u128::from),
                _ => unreachable!("a state is made by its pacer"),
            };
            Some(due.max(own?))
        })
    }

    /// Lets up to `count` items of weight `weight` leave, of which the first is due at `due`, as far as they are due by
    /// `until`. At least one leaves.
    pub fn leave(&self, state: &mut State, due: Ticks, weight: Weight, count: u64, until: Ticks) -> Departure {
        if let ([Limit { kind: Kind::Leaky(leaky), unit, .. }], [Memory::Slot(slot)]) =
            (&self.limits[..], &mut state.memory[..])
        {
            let departure = leaky.leave_many(slot, due, units(*unit, weight), count, until);
            let further = departure.step.saturating_mul(u128::from(departure.count - 1));
            self.note(state, due.saturating_add(further), weight);
            return departure;
        }
        self.note(state, due, weight);
        if self.limits.is_empty() {
            return Departure { count, due, step: 0 };
        }
        for (limit, memory) in self.limits.iter().zip(&mut *state.memory) {
            let units = units(limit.unit, weight);
            match (&limit.kind, memory) {
                (Kind::Leaky(leaky), Memory::Slot(slot)) => leaky.leave(slot, due, units),
                (Kind::Token(token), Memory::Token(memory)) => token.leave(memory, due, units),
                (Kind::WarmUp(warm_up), Memory::WarmUp(memory)) => warm_up.leave(memory, due, units),
                (Kind::Fixed(_), Memory::Fixed(memory)) => memory.leave(units),
                (Kind::Sliding(_), Memory::Sliding(memory)) => memory.leave(units),
                _ => unreachable!("a state is made by its pacer"),
            }
        }
        Departure { count: 1, due, step: 0 }
    }

    fn note(&self, state: &mut State, at: Ticks, weight: Weight) {
        if self.follows {
            state.last = Some(Box::new((at, weight)));
        }
    }

    /// The write of `count` items of weight `weight` that had left at `due` ended at `at` (nanoseconds).
    pub fn ended(&self, state: &mut State, due: Ticks, at: u64, weight: Weight, count: u64) {
        // An item that is written at the very nanosecond it was due for was not late by what that was rounded up.
        let ended = if at <= self.ceil_ns(due) { due } else { self.ticks(at) };
        for (limit, memory) in self.limits.iter().zip(&mut *state.memory) {
            let units = units(limit.unit, weight).saturating_mul(count);
            match (&limit.kind, memory) {
                (Kind::Leaky(_) | Kind::WarmUp(_), _) => {}
                (Kind::Token(token), Memory::Token(memory)) => token.ended(memory, ended, units),
                (Kind::Fixed(window), Memory::Fixed(memory)) => window.ended(memory, at, units),
                (Kind::Sliding(window), Memory::Sliding(memory)) => window.ended(memory, at, units),
                _ => unreachable!("a state is made by its pacer"),
            }
        }
    }

    /// `count` items of weight `weight` had left and will not be written: to a window they have not been there.
    pub fn withdraw(&self, state: &mut State, weight: Weight, count: u64) {
        for (limit, memory) in self.limits.iter().zip(&mut *state.memory) {
            let units = units(limit.unit, weight).saturating_mul(count);
            match memory {
                Memory::Slot(_) | Memory::WarmUp(_) => {}
                Memory::Token(memory) => memory.withdraw(units),
                Memory::Fixed(memory) => memory.withdraw(units),
                Memory::Sliding(memory) => memory.withdraw(units),
            }
        }
    }

    /// More of an item that has left already has turned up: it costs `weight` more. Only what is charged by length or
    /// cost changes.
    pub fn charge(&self, state: &mut State, weight: Weight) {
        if let Some((_, last)) = state.last.as_deref_mut() {
            last.len = last.len.saturating_add(weight.len);
            last.cost = last.cost.saturating_add(weight.cost);
        }
        for (limit, memory) in self.limits.iter().zip(&mut *state.memory) {
            let units = if limit.unit == Unit::Items { 0 } else { units(limit.unit, weight) };
            match (&limit.kind, memory) {
                (Kind::Leaky(leaky), Memory::Slot(slot)) => leaky.leave(slot, 0, units),
                (Kind::Token(token), Memory::Token(memory)) => token.leave(memory, 0, units),
                (Kind::WarmUp(warm_up), Memory::WarmUp(memory)) => warm_up.leave(memory, 0, units),
                (Kind::Fixed(_), Memory::Fixed(memory)) => memory.leave(units),
                (Kind::Sliding(_), Memory::Sliding(memory)) => memory.leave(units),
                _ => unreachable!("a state is made by its pacer"),
            }
        }
    }

    /// For each rate what is not paid for, seen by an item of weight `weight`.
    pub fn rests<'a>(&'a self, state: &'a State, weight: Weight) -> impl Iterator<Item = Rest> + 'a {
        self.limits.iter().zip(&*state.memory).map(move |(limit, memory)| {
            let (paid, slot) = match (&limit.kind, memory) {
                (_, Memory::Slot(slot)) => (*slot, *slot),
                (Kind::Token(token), Memory::Token(memory)) => {
                    (memory.tat(), token.slot(memory, units(limit.unit, weight)))
                }
                (_, Memory::WarmUp(memory)) => (memory.slot(), memory.slot()),
                _ => (0, 0),
            };
            let burst = if let Kind::Token(token) = &limit.kind { token.burst } else { 1 };
            Rest { unit: limit.unit, period: limit.period, burst, paid, slot }
        })
    }

    /// From elsewhere it is known that all will be paid for at `paid`.
    pub fn set_paid(&self, state: &mut State, paid: Ticks) {
        for memory in &mut *state.memory {
            match memory {
                Memory::Slot(slot) => *slot = paid,
                Memory::Token(memory) => memory.set_tat(paid),
                Memory::WarmUp(_) | Memory::Fixed(_) | Memory::Sliding(_) => {}
            }
        }
    }

    /// Ticks that the strictest rate has an item of weight `weight` take.
    pub fn step(&self, weight: Weight) -> Ticks {
        let step = |limit: &Limit| limit.period.saturating_mul(u128::from(units(limit.unit, weight)));
        self.limits.iter().map(step).max().unwrap_or(0)
    }

    /// From when on `state` is that of a bucket nobody has used; `None` until a write ends.
    pub fn fresh_at(&self, state: &State) -> Option<Ticks> {
        self.limits.iter().zip(&*state.memory).try_fold(0, |at, (limit, memory)| {
            let own = match (&limit.kind, memory) {
                (Kind::Leaky(_), Memory::Slot(slot)) => *slot,
                (Kind::Token(_), Memory::Token(memory)) => memory.tat(),
                (Kind::WarmUp(warm_up), Memory::WarmUp(memory)) => warm_up.fresh_at(memory),
                (Kind::Fixed(window), Memory::Fixed(memory)) => window.fresh_at(memory)?.into(),
                (Kind::Sliding(window), Memory::Sliding(memory)) => window.fresh_at(memory)?.into(),
                _ => unreachable!("a state is made by its pacer"),
            };
            Some(at.max(own))
        })
    }

    /// `ns` nanoseconds in ticks.
    pub fn ticks(&self, ns: u64) -> Ticks {
        u128::from(ns) * u128::from(self.ticks_per_ns)
    }

    /// The first nanosecond that is not before `ticks`.
    pub fn ceil_ns(&self, ticks: Ticks) -> u64 {
        ns(div(ticks.saturating_add(u128::from(self.ticks_per_ns) - 1), self.ticks_per_ns))
    }

    /// The last nanosecond that is not after `ticks`.
    pub fn floor_ns(&self, ticks: Ticks) -> u64 {
        ns(div(ticks, self.ticks_per_ns))
    }
}

/// What is not paid for yet of one rate.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// What the rate counts.
    pub unit: Unit,
    /// Its T in ticks.
    pub period: Ticks,
    /// Its burst; 1 where there is none.
    pub burst: u64,
    /// When all is paid for.
    pub paid: Ticks,
    /// From when on that item may leave.
    pub slot: Ticks,
}

/// An instant beyond 584 years is as good as never.
fn ns(instant: u128) -> u64 {
    u64::try_from(instant).unwrap_or(u64::MAX)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u64, b: u64) -> Option<u64> {
    (a / gcd(a, b)).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Weight = Weight { len: 10, cost: 1 };
    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;

    fn pacer(rate: &str, algorithm: &Algorithm) -> Pacer {
        let rates: Vec<Rate> = if rate == "unlimited" { Vec::new() } else { vec![rate.parse().unwrap()] };
        Pacer::new(&rates, algorithm).unwrap().follow(algorithm, Some(0), rate.starts_with('0'))
    }

    fn token(burst: u64) -> Algorithm {
        Algorithm::TokenBucket { bursts: vec![burst] }
    }

    /// Lets items arrive at `at`, leave as soon as they may and be written at once until `count` have, and says when
    /// the last did.
    fn leave(pacer: &Pacer, state: &mut State, at: u64, count: u64) -> u64 {
        let mut last = 0;
        for _ in 0..count {
            let due = pacer.due(state, pacer.ticks(at), ONE).unwrap();
            pacer.leave(state, due, ONE, 1, due);
            last = pacer.ceil_ns(due);
            pacer.ended(state, due, last, ONE, 1);
        }
        last
    }

    fn due(pacer: &Pacer, state: &State, at: u64) -> Option<u64> {
        pacer.due(state, pacer.ticks(at), ONE).map(|due| pacer.ceil_ns(due))
    }

    #[test]
    fn a_new_rate_counts_from_the_last_departure_and_not_from_the_old_slot() {
        let (slow, fast) = (pacer("1/h", &Algorithm::LeakyBucket), pacer("50/s", &Algorithm::LeakyBucket));
        let mut state = slow.fresh();
        leave(&slow, &mut state, 0, 1);
        let early = fast.take_over(&slow, &state, 5 * MS);
        assert_eq!(due(&fast, &early, 0), Some(20 * MS), "last departure + cost x new T");
        let late = fast.take_over(&slow, &state, 10 * S);
        assert_eq!(due(&fast, &late, 0), Some(10 * S), "not before the change, so without a credit");
        let back = slow.take_over(&fast, &late, 11 * S);
        assert_eq!(due(&slow, &back, 0), Some(3600 * S), "a change there and back changes nothing");
    }

    #[test]
    fn the_cost_of_what_left_last_is_charged_at_the_new_rate() {
        let (slow, fast) = (pacer("1B/s", &Algorithm::LeakyBucket), pacer("10B/s", &Algorithm::LeakyBucket));
        let mut state = slow.fresh();
        leave(&slow, &mut state, 0, 1);
        slow.charge(&mut state, Weight { len: 5, cost: 0 });
        assert_eq!(due(&slow, &state, 0), Some(15 * S));
        assert_eq!(due(&fast, &fast.take_over(&slow, &state, 1), 0), Some(1500 * MS));
    }

    #[test]
    fn a_pause_has_no_slot_and_a_rate_ends_it() {
        let rate = pacer("2/s", &Algorithm::LeakyBucket);
        let paused = pacer("2/s", &Algorithm::LeakyBucket).follow(&Algorithm::LeakyBucket, Some(0), true);
        let mut state = rate.fresh();
        leave(&rate, &mut state, 0, 1);
        let state = paused.take_over(&rate, &state, MS);
        assert_eq!(due(&paused, &state, 0), None);
        assert_eq!(due(&rate, &rate.take_over(&paused, &state, 2 * MS), 0), Some(500 * MS));
        assert_eq!(due(&rate, &rate.take_over(&paused, &state, 60 * S), 0), Some(60 * S));
    }

    #[test]
    fn no_burst_is_carried_over() {
        let (slow, fast) = (pacer("1/s", &token(5)), pacer("10/s", &token(5)));
        let mut state = slow.fresh();
        assert_eq!(leave(&slow, &mut state, 0, 5), 0);
        let mut state = fast.take_over(&slow, &state, 100 * S);
        assert_eq!(leave(&fast, &mut state, 100 * S, 3), 100 * S + 200 * MS);
        // But idling earns a new one.
        assert_eq!(leave(&fast, &mut state, 200 * S, 5), 200 * S);
    }

    #[test]
    fn a_burst_of_one_may_grow() {
        let (one, ten) = (pacer("1/s", &token(1)), pacer("10/s", &token(10)));
        assert!(one.keeps_real_time());
        let mut state = one.fresh();
        leave(&one, &mut state, 0, 2);
        let mut state = ten.take_over(&one, &state, 2 * S);
        leave(&ten, &mut state, 2 * S, 1);
        assert_eq!(leave(&ten, &mut state, 10 * S, 10), 10 * S);
    }

    #[test]
    fn a_window_counts_what_it_has_seen_but_owes_one_at_most() {
        for algorithm in [Algorithm::SlidingWindow, Algorithm::FixedWindow(Align::First)] {
            let (hour, second, one) = (pacer("100/h", &algorithm), pacer("50/s", &algorithm), pacer("1/s", &algorithm));
            let mut state = hour.fresh();
            leave(&hour, &mut state, 0, 100);
            assert_eq!(due(&hour, &state, S), Some(3600 * S));
            assert_eq!(due(&second, &second.take_over(&hour, &state, 10 * S), 10 * S), Some(10 * S));
            assert_eq!(
                due(&second, &second.take_over(&hour, &state, MS), MS),
                Some(S),
                "50 in the first second already"
            );
            assert_eq!(due(&one, &one.take_over(&hour, &state, MS), MS), Some(S), "no windows of debt");
        }
    }

    #[test]
    fn windows_on_the_clock_lie_on_it_after_a_change() {
        let algorithm = Algorithm::FixedWindow(Align::Clock);
        let (mut minute, mut second) = (pacer("2/min", &algorithm), pacer("2/s", &algorithm));
        for pacer in [&mut minute, &mut second] {
            // Half a second past the minute.
            pacer.begin_at(i128::from(60 * S + 500 * MS));
        }
        let mut state = minute.fresh();
        leave(&minute, &mut state, 0, 2);
        assert_eq!(due(&minute, &state, MS), Some(59_500 * MS));
        assert_eq!(due(&second, &second.take_over(&minute, &state, MS), MS), Some(500 * MS));
        assert_eq!(due(&second, &second.take_over(&minute, &state, S), S), Some(S));
    }

    #[test]
    fn another_rate_is_left_alone() {
        let algorithm = token(3);
        let both = |rate: &str, burst| {
            let rates: Vec<Rate> = [rate, "1/min"].map(|rate| rate.parse().unwrap()).into();
            let bursts = vec![burst, 3];
            Pacer::new(&rates, &Algorithm::TokenBucket { bursts }).unwrap().follow(&algorithm, Some(0), false)
        };
        let (slow, fast) = (both("7/s", 3), both("11/s", 3));
        let mut state = slow.fresh();
        leave(&slow, &mut state, 0, 2);
        // One of three is left of the minute, whatever becomes of the seconds.
        let mut state = fast.take_over(&slow, &state, 2 * S);
        assert_eq!(leave(&fast, &mut state, 2 * S, 1), 2 * S);
        assert_eq!(due(&fast, &state, 3 * S), Some(60 * S));
    }

    #[test]
    fn no_limit_may_come_and_go() {
        let (none, rate) = (pacer("unlimited", &Algorithm::LeakyBucket), pacer("2/s", &Algorithm::LeakyBucket));
        let mut state = none.fresh();
        leave(&none, &mut state, 7 * S, 5);
        let mut state = rate.take_over(&none, &state, 7 * S + MS);
        assert_eq!(leave(&rate, &mut state, 7 * S, 2), 8 * S);
        assert_eq!(due(&none, &none.take_over(&rate, &state, 9 * S), 9 * S), Some(9 * S));
    }

    #[test]
    fn a_thousand_changes_do_not_drift() {
        let rates: Vec<Pacer> =
            ["3/s", "7/s", "1/h", "999983/s"].map(|rate| pacer(rate, &Algorithm::LeakyBucket)).into();
        let mut state = rates[0].fresh();
        leave(&rates[0], &mut state, 0, 4);
        for turn in 0..1000 {
            state = rates[(turn + 1) % 4].take_over(&rates[turn % 4], &state, S);
        }
        let wanted = S + S.div_ceil(3);
        let due = due(&rates[0], &state, 0).unwrap();
        assert!((wanted..wanted + 1000).contains(&due), "a nanosecond a change at most: {due}");
    }
}
