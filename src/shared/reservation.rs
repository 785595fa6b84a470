//! The arithmetic of a shared bucket, pure: one state, the TAT, and one operation on it.
//!
//! *Reserve k units, learn when the first may leave*: `base = max(TAT, now)`, `TAT = base + kT`. With a burst `b` an
//! item of cost `c` may leave `(b - min(c, b))T` before its place, but never before now; a burst of 1 is the leaky
//! bucket and gives no credit.
//!
//! T = p/n is never rounded. Moments are whole microseconds and a remainder in n-ths of one, so that the same sums can
//! be done in Lua, whose numbers are exact below 2^53 only: every product is made here, in 128 bits, and Redis is sent
//! pairs to add and to compare. What would not stay exact there is refused here.

use super::StoreError;
use crate::rate::{Rate, Unit};
use std::fmt;

/// No span of time is longer than this (71 years): with the server's clock below 2^52 us (the year 2112) all sums
/// then stay below 2^53.
pub const LONGEST_SPAN_US: u64 = 1 << 51;
/// n is at most this, so that two remainders can be added below 2^53.
pub const LARGEST_N: u64 = 1 << 52;
const DAY_US: u64 = 86_400_000_000;

/// An instant or a span: `us + rem/n` microseconds, with `rem < n` of the pace it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Whole microseconds.
    pub us: u64,
    /// The rest, in n-ths of a microsecond.
    pub rem: u64,
}

impl Moment {
    /// A whole number of microseconds.
    pub fn whole(us: u64) -> Self {
        Moment { us, rem: 0 }
    }

    pub(super) fn plus(self, span: Moment, n: u64) -> Self {
        let rem = self.rem.saturating_add(span.rem);
        let carry = u64::from(rem >= n);
        Moment { us: self.us.saturating_add(span.us).saturating_add(carry), rem: rem - carry * n }
    }

    /// The difference, or nothing at all where `span` is the larger.
    pub(super) fn minus(self, span: Moment, n: u64) -> Self {
        if self <= span {
            return Moment::default();
        }
        let borrow = u64::from(self.rem < span.rem);
        Moment { us: self.us - span.us - borrow, rem: self.rem + borrow * n - span.rem }
    }
}

/// A rate in lowest terms, its period in whole microseconds: what a state remembers of the rate it is kept at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    n: u64,
    p_us: u64,
    unit: Unit,
}

impl Pace {
    /// The pace of `rate`, or why a shared bucket cannot keep it exactly.
    pub fn new(rate: &Rate) -> Result<Self, StoreError> {
        let divisor = gcd(rate.n(), rate.p()).max(1);
        let (n, p_ns) = (rate.n() / divisor, rate.p() / divisor);
        // A period that is not whole in microseconds is taken as often as makes it so: 3/1500ns is 6/3us.
        let per_us = gcd(p_ns, 1000).max(1);
        let pace = n
            .checked_mul(1000 / per_us)
            .map(|n| Pace { n, p_us: p_ns / per_us, unit: rate.unit() })
            .filter(|pace| (1..=LARGEST_N).contains(&pace.n) && pace.p_us > 0 && pace.span(1).is_some());
        pace.ok_or_else(|| {
            StoreError::Refused(format!(
                "the rate of {} in {} ns cannot be kept exactly in a shared bucket; use rounder numbers",
                rate.n(),
                rate.p()
            ))
        })
    }

    /// A pace read back from a state; None where no pace can be so.
    pub fn restore(n: u64, p_us: u64, unit: Unit) -> Option<Self> {
        let pace = Pace { n, p_us, unit };
        ((1..=LARGEST_N).contains(&n) && p_us > 0 && pace.span(1).is_some()).then_some(pace)
    }

    /// Units per period, in lowest terms.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// The period in microseconds, in lowest terms.
    pub fn p_us(&self) -> u64 {
        self.p_us
    }

    /// What is counted.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// How long `units` take, exactly; None beyond [`LONGEST_SPAN_US`].
    pub fn span(&self, units: u64) -> Option<Moment> {
        let ticks = u128::from(units) * u128::from(self.p_us);
        let us = ticks / u128::from(self.n);
        (us < u128::from(LONGEST_SPAN_US)).then(|| Moment { us: us as u64, rem: (ticks % u128::from(self.n)) as u64 })
    }

    /// How long `units` take, rounded up to a nanosecond.
    pub fn span_ns(&self, units: u64) -> u64 {
        self.span(units).map_or(u64::MAX, |span| self.ns(span))
    }

    /// A span in nanoseconds, rounded up.
    pub fn ns(&self, span: Moment) -> u64 {
        let rest = (u128::from(span.rem) * 1000).div_ceil(u128::from(self.n)) as u64;
        span.us.saturating_mul(1000).saturating_add(rest)
    }

    /// The longest span of the pace's ticks that fits into `ns`.
    fn fitting(&self, ns: u64) -> Moment {
        let us = (ns / 1000).min(LONGEST_SPAN_US);
        let rem = u128::from(ns % 1000) * u128::from(self.n) / 1000;
        Moment { us, rem: rem as u64 }
    }

    /// A TAT further ahead than this is no reservation of anybody's: max(1 day, 10^5 T).
    pub fn horizon_us(&self) -> u64 {
        let far = u128::from(self.p_us) * 100_000 / u128::from(self.n);
        (far.min(u128::from(LONGEST_SPAN_US)) as u64).max(DAY_US)
    }
}

/// As one would write it after `--rate`, per second or in whole seconds and more.
impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = u128::from(1_000_000 / gcd(self.p_us, 1_000_000).max(1));
        let (n, seconds) = (u128::from(self.n) * up, u128::from(self.p_us) * up / 1_000_000);
        let unit = match self.unit {
            Unit::Items => "",
            Unit::Bytes => "B",
            Unit::Bits => "bit",
            Unit::Cost => "cost",
        };
        let names = [(86_400, "d"), (3_600, "h"), (60, "min")];
        let (size, name) = names.into_iter().find(|(size, _)| seconds % size == 0).unwrap_or((1, "s"));
        match seconds / size {
            1 => write!(f, "{n}{unit}/{name}"),
            periods => write!(f, "{n}{unit}/{periods}{name}"),
        }
    }
}

/// What a client asks of a shared bucket: its pace and its burst. The burst is the client's own; the state has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The rate all must agree on while the bucket is in use.
    pub pace: Pace,
    burst: u64,
}

impl Terms {
    /// `burst` 1 is the leaky bucket (0 is taken as 1); larger ones make a token bucket.
    pub fn new(rate: &Rate, burst: u64) -> Result<Self, StoreError> {
        let (pace, burst) = (Pace::new(rate)?, burst.max(1));
        match pace.span(burst) {
            Some(_) => Ok(Terms { pace, burst }),
            None => Err(StoreError::Refused(format!(
                "--burst {burst} at {pace} is more than 71 years' worth, too much to share; make it smaller"
            ))),
        }
    }

    /// How many units may leave back to back after idling.
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// How many units early an item of this cost may leave.
    pub fn credit(&self, cost: u64) -> u64 {
        match self.burst {
            0 | 1 => 0,
            burst => burst - cost.min(burst),
        }
    }

    /// How many units one reservation takes: 10 ms of the rate, at least 1.
    pub fn batch(&self) -> u64 {
        let units = u128::from(self.pace.n) * 10_000 / u128::from(self.pace.p_us);
        u64::try_from(units).unwrap_or(u64::MAX).max(1)
    }
}

/// The whole state of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The rate it is kept at until it is at rest.
    pub pace: Pace,
    /// The theoretical arrival time: when all that is reserved will have been paid for.
    pub tat: Moment,
}

/// A reservation in the numbers of a [`State`]: all multiplied out, only to be added and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// What the units take.
    pub span: Moment,
    /// How much earlier than its place the first may leave.
    pub credit: Moment,
    /// Reserve nothing if the first would have to wait longer than this.
    pub max_wait: Option<Moment>,
    /// The TAT after this client's last reservation: an intact state is never below it, but one that was lost (a server
    /// restarted, a file removed) is, and must not give the same time away twice.
    pub floor: Moment,
}

impl Order {
    /// None if the spans are beyond what can be kept.
    pub fn new(pace: &Pace, units: u64, credit: u64, max_wait_ns: Option<u64>, floor: Moment) -> Option<Self> {
        Some(Order {
            span: pace.span(units)?,
            credit: pace.span(credit)?,
            max_wait: max_wait_ns.map(|ns| pace.fitting(ns)),
            floor,
        })
    }
}

/// What became of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The units are taken.
    Granted {
        /// Where the first unit stands, not before now.
        base: Moment,
        /// The state after it.
        state: State,
        /// The TAT was absurdly far ahead, so the bucket was begun afresh.
        reset: bool,
    },
    /// Nothing was taken: the first would have to wait this long.
    TooFar(Moment),
    /// Nothing was taken: the bucket is in use at this rate.
    OtherRate(Pace),
    /// Nothing was taken: it would be paid for beyond the horizon, where others would take it for nonsense.
    Beyond,
}

/// The one operation. `reserve.lua` says the same in Lua, and a test holds the two together.
pub fn reserve(pace: &Pace, state: Option<State>, now_us: u64, order: &Order) -> Verdict {
    let now = Moment::whole(now_us);
    let (mut base, mut reset) = (now, false);
    if let Some(state) = state.filter(|state| state.tat > now) {
        if state.tat.us - now_us > state.pace.horizon_us() {
            reset = true;
        } else if state.pace != *pace {
            return Verdict::OtherRate(state.pace);
        } else {
            base = state.tat;
        }
    }
    if order.floor > base && order.floor.us - now_us <= pace.horizon_us() {
        base = order.floor;
    }
    let wait = base.minus(order.credit, pace.n).minus(now, pace.n);
    if order.max_wait.is_some_and(|most| wait > most) {
        return Verdict::TooFar(wait);
    }
    let tat = base.plus(order.span, pace.n);
    if tat.us - now_us > pace.horizon_us() {
        return Verdict::Beyond;
    }
    let state = State { pace: *pace, tat };
    Verdict::Granted { base, state, reset }
}

/// Takes `back` off a state that still ends where the giver's reservation did; None if anybody reserved after.
pub fn give_back(pace: &Pace, state: Option<State>, end: Moment, back: Moment) -> Option<State> {
    let state = state.filter(|state| state.pace == *pace && state.tat == end)?;
    let tat = state.tat.minus(back, pace.n);
    Some(State { tat, ..state })
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    /// A server's clock: microseconds since 1970.
    const NOW: u64 = 1_000_000_000_000_000;

    fn pace(n: u64, p_ns: u64) -> Pace {
        Pace::new(&Rate::new(n, p_ns, Unit::Items).unwrap()).unwrap()
    }

    fn order(pace: &Pace, units: u64) -> Order {
        Order::new(pace, units, 0, None, Moment::default()).unwrap()
    }

    /// Reserves and keeps; the wait in microseconds, rounded up, or what was answered instead.
    fn wait(pace: &Pace, state: &mut Option<State>, now_us: u64, order: &Order) -> Result<u64, Verdict> {
        match reserve(pace, *state, now_us, order) {
            Verdict::Granted { base, state: after, .. } => {
                *state = Some(after);
                let first = base.minus(order.credit, pace.n());
                Ok(pace.ns(first.minus(Moment::whole(now_us), pace.n())).div_ceil(1000))
            }
            verdict => Err(verdict),
        }
    }

    #[test]
    fn res_3_per_second_keeps_the_thirds() {
        let (pace, mut state) = (pace(3, S), None);
        let waits: Vec<_> = (0..4).map(|_| wait(&pace, &mut state, NOW, &order(&pace, 1)).unwrap()).collect();
        assert_eq!(waits, [0, 333_334, 666_667, 1_000_000]);
    }

    // "res-horizon" grants 3 of 10 units within 250 ms; design 5 has batches of whole units instead, and a longest wait
    // for the first of them. The second half of the case, refused with its wait, is the same.
    #[test]
    fn a_longest_wait_is_asked_and_taken_in_one() {
        let (pace, mut state) = (pace(10, S), None);
        let within = |ms: u64| Order::new(&pace, 1, 0, Some(ms * 1_000_000), Moment::default()).unwrap();
        for at in [0, 100_000, 200_000] {
            assert_eq!(wait(&pace, &mut state, NOW, &within(250)), Ok(at));
        }
        let before = state;
        assert_eq!(wait(&pace, &mut state, NOW, &within(250)), Err(Verdict::TooFar(Moment::whole(300_000))));
        assert_eq!(wait(&pace, &mut state, NOW + 50_000, &within(249)), Err(Verdict::TooFar(Moment::whole(250_000))));
        assert_eq!(state, before, "a refusal takes nothing");
        assert_eq!(wait(&pace, &mut state, NOW + 50_000, &within(250)), Ok(250_000), "exactly the longest wait counts");
    }

    // "res-clock-step-back" caps the wait at 1 s; design 5 knows no cap below the horizon of a day, so a server whose clock
    // goes back 5 s makes all wait for 5 s more, and nobody leaves early.
    #[test]
    fn a_clock_set_back_delays_and_a_day_ahead_is_begun_afresh() {
        let (pace, mut state) = (pace(10, S), None);
        assert_eq!(wait(&pace, &mut state, NOW, &order(&pace, 1)), Ok(0));
        assert_eq!(wait(&pace, &mut state, NOW - 5_000_000, &order(&pace, 1)), Ok(5_100_000));
        let verdict = reserve(&pace, state, NOW - 2 * DAY_US, &order(&pace, 1));
        assert!(
            matches!(verdict, Verdict::Granted { base, reset: true, .. } if base == Moment::whole(NOW - 2 * DAY_US))
        );
    }

    // "res-tolerance" makes up 50 ms after idling; design 5 makes nothing up between reservations, but has bursts: with
    // one of 6 the numbers are the case's.
    #[test]
    fn a_burst_leaves_at_once_after_idling() {
        let (pace, mut state) = (pace(100, S), None);
        let terms = Terms::new(&Rate::new(100, S, Unit::Items).unwrap(), 6).unwrap();
        let order = Order::new(&pace, 1, terms.credit(1), None, Moment::default()).unwrap();
        let waits: Vec<_> = (0..8).map(|_| wait(&pace, &mut state, NOW, &order).unwrap()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 10_000, 20_000]);
        assert_eq!((terms.credit(0), terms.credit(2), terms.credit(9)), (6, 4, 0));
    }

    #[test]
    fn another_rate_waits_until_the_bucket_is_at_rest() {
        let (slow, fast, mut state) = (pace(1, S), pace(5, S), None);
        wait(&slow, &mut state, NOW, &order(&slow, 1)).unwrap();
        assert_eq!(wait(&fast, &mut state, NOW + 999_999, &order(&fast, 1)), Err(Verdict::OtherRate(slow)));
        assert_eq!(wait(&fast, &mut state, NOW + 1_000_000, &order(&fast, 1)), Ok(0));
        let bytes = Pace { unit: Unit::Bytes, ..fast };
        assert_eq!(wait(&bytes, &mut state, NOW + 1_000_000, &order(&bytes, 1)), Err(Verdict::OtherRate(fast)));
        assert_eq!(pace(300, 60 * S), fast, "300/min is 5/s");
    }

    #[test]
    fn what_nobody_would_believe_is_not_reserved() {
        let (pace, mut state) = (pace(1, S), None);
        assert_eq!(wait(&pace, &mut state, NOW, &order(&pace, 100_001)), Err(Verdict::Beyond));
        assert_eq!(wait(&pace, &mut state, NOW, &order(&pace, 100_000)), Ok(0));
        assert_eq!(wait(&pace, &mut state, NOW, &order(&pace, 1)), Err(Verdict::Beyond));
        assert_eq!(wait(&pace, &mut state, NOW + 1_000_000, &order(&pace, 1)), Ok(99_999_000_000));
    }

    #[test]
    fn a_floor_outlives_a_lost_state() {
        let pace = pace(3, S);
        let end = Moment { us: NOW + 333_333, rem: 1 };
        let order = Order { floor: end, ..order(&pace, 1) };
        assert!(matches!(reserve(&pace, None, NOW, &order), Verdict::Granted { base, .. } if base == end));
        let later = end.us + 1;
        assert!(
            matches!(reserve(&pace, None, later, &order), Verdict::Granted { base, .. } if base == Moment::whole(later))
        );
    }

    #[test]
    fn give_back_only_if_nobody_reserved_after() {
        let (pace, mut state) = (pace(3, S), None);
        wait(&pace, &mut state, NOW, &order(&pace, 2)).unwrap();
        let (end, one) = (state.unwrap().tat, pace.span(1).unwrap());
        let back = give_back(&pace, state, end, one).unwrap();
        assert_eq!(back.tat, Moment { us: NOW + 333_333, rem: 1 });
        wait(&pace, &mut state, NOW, &order(&pace, 1)).unwrap();
        assert_eq!(give_back(&pace, state, end, one), None);
        assert_eq!(give_back(&pace, None, end, one), None);
    }

    #[test]
    fn three_a_second_is_three_in_every_second_for_ever() {
        let (pace, mut state) = (pace(3, S), None);
        for _ in 0..300_000 {
            wait(&pace, &mut state, NOW, &order(&pace, 1)).unwrap_or(0);
            if state.is_some_and(|state: State| state.tat.us - NOW > DAY_US - 1_000_000) {
                break;
            }
        }
        let tat = state.unwrap().tat;
        let thirds = (u128::from(tat.us - NOW) * 3 + u128::from(tat.rem)) / 1_000_000;
        assert_eq!(u128::from(tat.us - NOW) * 3 + u128::from(tat.rem), thirds * 1_000_000);
    }

    #[test]
    fn rates_are_taken_whole_in_microseconds_or_refused() {
        for (n, p_ns, reduced, text) in [
            (300, 60 * S, (1, 200_000), "5/s"),
            (7, 13 * 3600 * S, (7, 13 * 3600 * 1_000_000), "7/13h"),
            (1, 90 * S, (1, 90_000_000), "1/90s"),
            (20, 1_000_000, (1, 50), "20000/s"),
            (3, 1500, (2, 1), "2000000/s"),
            (7, 1500, (14, 3), "14000000/3s"),
            (25, 10 * S, (1, 400_000), "5/2s"),
        ] {
            let pace = pace(n, p_ns);
            assert_eq!((pace.n(), pace.p_us(), pace.to_string().as_str()), (reduced.0, reduced.1, text));
        }
        for (n, p_ns) in [(u64::MAX, S), (LARGEST_N + 1, 1000), (1, u64::MAX - 1)] {
            let refused = Pace::new(&Rate::new(n, p_ns, Unit::Items).unwrap());
            assert!(refused.is_err(), "{n} in {p_ns} ns: {refused:?}");
        }
        assert!(Terms::new(&Rate::new(1, S, Unit::Items).unwrap(), u64::MAX).is_err());
    }

    #[test]
    fn moments_add_and_subtract_with_the_remainder() {
        let mut random = 1u64;
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = 1 + (random >> 12) % LARGEST_N;
            let moment = |x: u64| Moment { us: x % LONGEST_SPAN_US, rem: (x >> 5) % n };
            let (a, b) = (moment(random), moment(random.rotate_left(23)));
            let ticks = |m: Moment| u128::from(m.us) * u128::from(n) + u128::from(m.rem);
            assert_eq!(ticks(a.plus(b, n)), ticks(a) + ticks(b));
            assert_eq!(ticks(a.minus(b, n)), ticks(a).saturating_sub(ticks(b)));
            assert!(a.plus(b, n).rem < n && a.minus(b, n).rem < n);
        }
    }

    #[test]
    fn a_batch_is_ten_milliseconds() {
        let batch = |n, p_ns| Terms::new(&Rate::new(n, p_ns, Unit::Items).unwrap(), 1).unwrap().batch();
        assert_eq!((batch(1, 90 * S), batch(200, S), batch(1000, S), batch(100_000, S)), (1, 2, 10, 1000));
    }
}
