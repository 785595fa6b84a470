//! What a bucket does otherwise when its rate is shared.
//!
//! The slots come from a ledger instead of the pacer: the head of a lane is due at the next slot that is reserved for it,
//! and never while none is. So asking is one more event. Its calls are handed out by `take_calls`; what comes of them is
//! told to `answered`. The pacer's state mirrors what is unpaid of what left and of what others have reserved, so that
//! level and admission are reckoned as ever.
//!
//! Bucket time stands still while the hole is plugged, but no lateness is forgiven: what was reserved and is late by more
//! than the catch-up is void and reserved anew, after whatever others have reserved meanwhile. A burst may be plugged as a
//! whole, and its reader would find another one behind it; so what has left in one and is written too late is reserved
//! anew, too, before anything else may leave. Without a burst no more than the catch-up holds is ever on its way.

use super::{Bucket, Key, Lane};
use crate::pacer;
use crate::rate::Unit;
use crate::run::Weight;
use crate::shared::ledger::{Answer, Ask, Ledger, Need, Notice, Settings};
use crate::shared::{Request, Returned, StoreError};

/// What a bucket knows of the one it shares.
#[derive(Debug)]
pub(super) struct Sharing {
    pub ledger: Ledger,
    /// What the rate counts.
    pub unit: Unit,
    batch: u64,
    /// Lanes to ask for.
    asking: Vec<u32>,
    /// Lanes to ask for again when the store may be back.
    held: Vec<u32>,
    calls: Vec<Request>,
    returned: Vec<Returned>,
}

impl Sharing {
    pub fn new(settings: Settings) -> Sharing {
        Sharing {
            ledger: Ledger::new(settings),
            unit: settings.terms.pace.unit(),
            batch: settings.terms.batch(),
            asking: Vec::new(),
            held: Vec::new(),
            calls: Vec::new(),
            returned: Vec::new(),
        }
    }

    /// From when on the head of `lane` may leave, as far as slots go; `None` while it has none.
    pub fn slot(&mut self, lane: &Lane, now: u64) -> Option<u64> {
        let head = lane.line.waiting.front().filter(|_| lane.line.owed == 0)?;
        self.ledger.slot(&lane.key, pacer::units(self.unit, head.run.weight), now)
    }

    /// When there is something to ask; at once where that is 0.
    pub fn next_ask(&self) -> Option<u64> {
        match (self.asking.is_empty(), self.held.is_empty() || self.ledger.calling()) {
            (false, _) => Some(0),
            (true, false) => Some(self.ledger.retry_at().unwrap_or(0)),
            (true, true) => None,
        }
    }

    /// What is reserved for nobody goes back.
    pub fn give_back(&mut self, key: &[u8]) {
        if self.ledger.reserved(key) > 0 {
            self.returned.append(&mut self.ledger.give_back(key));
        }
    }

    pub fn forget(&mut self, key: &[u8]) {
        self.returned.append(&mut self.ledger.forget(key));
    }

    /// Cost of the head, and of as much of what waits as anybody would ask for.
    fn need(&self, lane: &Lane) -> Option<Need> {
        let head = lane.line.waiting.front().map(|head| pacer::units(self.unit, head.run.weight));
        if lane.line.owed > 0 {
            return Some(Need { cost: lane.line.owed, waiting: lane.line.owed, max_wait_ns: None });
        }
        let cost = head?;
        let enough = cost.saturating_add(self.ledger.reserved(&lane.key)).saturating_add(self.batch.saturating_mul(2));
        let mut waiting = 0u64;
        for next in &lane.line.waiting {
            if waiting >= enough {
                break;
            }
            let units = pacer::units(self.unit, next.run.weight);
            waiting = waiting.saturating_add(units.saturating_mul(next.run.count));
        }
        Some(Need { cost, waiting, max_wait_ns: None })
    }
}

impl Bucket {
    /// What others have reserved is paid for only in `ahead` nanoseconds.
    pub fn heard(&mut self, ahead: u64, now: u64) {
        if let Some(sharing) = &mut self.sharing {
            sharing.ledger.heard(&[], ahead, now);
        }
        self.refresh(0);
    }

    /// Whether there are calls to be made.
    pub fn has_calls(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| !sharing.calls.is_empty() || !sharing.returned.is_empty())
    }

    /// Whether a call is under way.
    pub fn is_asking(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| sharing.ledger.calling())
    }

    /// Whether something has left that is still to be reserved, with others listening.
    pub fn owes(&self) -> bool {
        let Some(sharing) = &self.sharing else { return false };
        let unsettled = !sharing.asking.is_empty() || sharing.ledger.calling();
        unsettled && sharing.ledger.retry_at().is_none()
    }

    /// The calls to be made, and what is to be given back.
    pub fn take_calls(&mut self) -> (Vec<Request>, Vec<Returned>) {
        let taken = self.sharing.as_mut();
        taken
            .map(|sharing| (std::mem::take(&mut sharing.calls), std::mem::take(&mut sharing.returned)))
            .unwrap_or_default()
    }

    /// A call was answered.
    ///
    /// # Errors
    /// What ends the run.
    pub fn answered(&mut self, answer: Answer) -> Result<Vec<Notice>, StoreError> {
        let key: Option<Key> = self.keyed().then(|| answer.request.key.as_slice().into());
        let lane = self.find_lane(&key);
        let Some(sharing) = &mut self.sharing else { return Ok(Vec::new()) };
        let notices = sharing.ledger.answered(answer)?;
        let held = std::mem::take(&mut sharing.held);
        if let (None, Some(key)) = (lane, key) {
            sharing.forget(&key);
        }
        for id in held.into_iter().chain(lane) {
            self.lanes[id as usize].line.held = false;
            self.pay(id);
            self.refresh(id);
        }
        Ok(notices)
    }

    /// The run ends: all that is reserved goes back.
    pub fn give_up(&mut self) -> Vec<Returned> {
        let Some(sharing) = &mut self.sharing else { return Vec::new() };
        let mut returned = std::mem::take(&mut sharing.returned);
        returned.append(&mut sharing.ledger.finish());
        returned
    }

    /// The write of `count` items has ended, at `at`: later than their units hold, and they need others.
    pub(super) fn reserve_anew(&mut self, id: u32, spent: u64, weight: Weight, count: u64, at: u64) {
        if let Some(sharing) = self.sharing.as_ref().filter(|_| at > spent) {
            let units = pacer::units(sharing.unit, weight).saturating_mul(count);
            let line = &mut self.lanes[id as usize].line;
            line.owed = line.owed.saturating_add(units);
            self.will_ask(id);
        }
    }

    /// Something has changed that may need a reservation.
    pub(super) fn will_ask(&mut self, id: u32) {
        let Some(sharing) = &mut self.sharing else { return };
        let lane = &mut self.lanes[id as usize];
        if !lane.line.asking && (lane.line.owed > 0 || !lane.line.waiting.is_empty()) {
            lane.line.asking = true;
            sharing.asking.push(id);
        }
    }

    /// Asks for all who need it.
    pub(super) fn ask(&mut self) {
        let Some(sharing) = &mut self.sharing else { return };
        if !sharing.ledger.calling() && sharing.ledger.retry_at().is_none_or(|at| at <= self.at) {
            for id in std::mem::take(&mut sharing.held) {
                self.lanes[id as usize].line.held = false;
                sharing.asking.push(id);
            }
        }
        for id in std::mem::take(&mut sharing.asking) {
            let Some(sharing) = &mut self.sharing else { return };
            let lane = &mut self.lanes[id as usize];
            lane.line.asking = false;
            let Some(need) = sharing.need(lane) else { continue };
            match sharing.ledger.ask(&lane.key, need, self.now) {
                Ask::Call(request) => sharing.calls.push(request),
                Ask::Later if !lane.line.held => {
                    lane.line.held = true;
                    sharing.held.push(id);
                }
                Ask::Later | Ask::Nothing | Ask::TooFar { .. } => {}
            }
            sharing.returned.append(&mut sharing.ledger.take_void());
            // The own bucket of an outage answers at once.
            self.pay(id);
            self.place(id);
        }
    }

    /// What is owed for more of an item that has left is paid first, out of what is reserved.
    fn pay(&mut self, id: u32) {
        let Some(sharing) = &mut self.sharing else { return };
        let lane = &mut self.lanes[id as usize];
        if lane.line.owed > 0 {
            let paid = lane.line.owed.min(sharing.ledger.reserved(&lane.key));
            sharing.ledger.take(&lane.key, paid);
            lane.line.owed -= paid;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arrival, Config, Overflow, Part};
    use super::*;
    use crate::pacer::{Algorithm, Pacer};
    use crate::rate::Rate;
    use crate::run::{Layout, Run, Slice};
    use crate::shared::Reply;
    use crate::shared::ledger::OnOutage;
    use crate::shared::reservation::{self, Order, State, Terms, Verdict};

    const MS: u64 = 1_000_000;

    fn rate(n: u64) -> Rate {
        Rate::new(n, 1000 * MS, Unit::Items).unwrap()
    }

    fn bucket(n: u64, change: impl FnOnce(&mut Config)) -> Bucket {
        let (terms, catch_up) = (Terms::new(&rate(n), 1).unwrap(), 10 * MS);
        let settings = Settings { terms, catch_up_ns: catch_up, on_outage: OnOutage::Block, seed: 1 };
        let mut config = Config {
            pacer: Pacer::new(&[rate(n)], &Algorithm::LeakyBucket).unwrap(),
            catch_up,
            capacity: 1024,
            capacity_unit: Unit::Items,
            overflow: Overflow::Block,
            timeout: None,
            max_age: None,
            max_held: 64 << 20,
            layout: Layout::Byte(b'\n'),
            max_keys: None,
            count_bytes: false,
            replays: false,
            trace: false,
            shared: Some(settings),
        };
        change(&mut config);
        Bucket::new(config, false)
    }

    fn lines(bucket: &mut Bucket, count: u64, now: u64) {
        let slice = Slice::new(b"\n".repeat(count as usize));
        let run = Run { slice, count, weight: Weight { len: 1, cost: 1 }, number: 1, arrival: now };
        bucket.arrive(now, Arrival { run, part: Part::Whole, key: None, recorded: None });
    }

    /// A server, some buckets with something to let out, and a clock.
    struct World {
        buckets: Vec<Bucket>,
        state: Option<State>,
        away: std::ops::Range<u64>,
        now: u64,
        /// When each item left, and whose it was.
        left: Vec<(u64, usize)>,
        calls: usize,
    }

    impl World {
        fn new(buckets: Vec<Bucket>) -> World {
            World { buckets, state: None, away: 0..0, now: 0, left: Vec::new(), calls: 0 }
        }

        fn serve(&mut self, request: &Request, terms: Terms) -> Result<Reply, StoreError> {
            let now_us = self.now / 1000;
            if self.away.contains(&self.now) {
                return Err(StoreError::Outage("gone".into()));
            }
            let order = Order::new(&terms.pace, request.units, request.credit, None, request.floor).unwrap();
            match reservation::reserve(&terms.pace, self.state, now_us, &order) {
                Verdict::Granted { base, state, reset } => {
                    self.state = Some(state);
                    Ok(Reply::Granted { now_us, base, reset, age_ns: 0 })
                }
                verdict => Err(StoreError::Refused(format!("{verdict:?}"))),
            }
        }

        /// Lets a bucket do what it has to by now; answers come at once.
        fn settle(&mut self, id: usize) {
            self.buckets[id].advance(self.now);
            while self.buckets[id].has_calls() {
                let terms = self.buckets[id].config.shared.unwrap().terms;
                let (calls, returned) = self.buckets[id].take_calls();
                for back in returned {
                    let after = reservation::give_back(&terms.pace, self.state, back.end, back.back);
                    self.state = after.or(self.state);
                }
                for request in calls {
                    self.calls += 1;
                    let result = self.serve(&request, terms);
                    self.buckets[id].answered(Answer { request, came_ns: self.now, result }).unwrap();
                }
                self.buckets[id].advance(self.now);
            }
        }

        /// What has left is written now; how many items that was.
        fn write(&mut self, id: usize) -> usize {
            let mut slices = Vec::new();
            self.buckets[id].leaving(&mut slices, usize::MAX);
            let bytes = slices.iter().map(Slice::len).sum();
            self.left.extend(std::iter::repeat_n((self.now, id), bytes));
            self.buckets[id].wrote(bytes, self.now, |_, _, _| {});
            bytes
        }

        /// Lets everything happen up to `until`; what leaves is written in no time.
        fn run(&mut self, until: u64) {
            loop {
                for id in 0..self.buckets.len() {
                    self.settle(id);
                    self.write(id);
                }
                let next = self.buckets.iter().filter_map(Bucket::next_event).min();
                match next.filter(|next| *next <= until) {
                    Some(next) => self.now = self.now.max(next),
                    None => {
                        self.now = until;
                        return;
                    }
                }
            }
        }
    }

    #[test]
    fn slots_are_exact_and_calls_are_one_a_batch() {
        let mut world = World::new(vec![bucket(1000, |_| {})]);
        lines(&mut world.buckets[0], 500, 0);
        world.run(1000 * MS);
        let times: Vec<u64> = world.left.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, (0..500).map(|k| k * MS).collect::<Vec<_>>());
        assert!(world.calls <= 51, "{}", world.calls);
        assert!(world.buckets[0].is_empty());
    }

    #[test]
    fn two_take_turns() {
        let mut world = World::new(vec![bucket(10, |_| {}), bucket(10, |_| {})]);
        lines(&mut world.buckets[0], 20, 0);
        lines(&mut world.buckets[1], 20, 0);
        world.run(10_000 * MS);
        let times: Vec<u64> = world.left.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, (0..40).map(|k| k * 100 * MS).collect::<Vec<_>>());
        let mine = world.left[..20].iter().filter(|(_, id)| *id == 0).count();
        assert!((9..=11).contains(&mine), "{mine}");
    }

    #[test]
    fn drop_lets_in_as_many_as_without_sharing() {
        let mut world = World::new(vec![bucket(2, |config| {
            (config.overflow, config.capacity) = (Overflow::DropNewest, 20);
        })]);
        lines(&mut world.buckets[0], 100_000, 0);
        world.run(100 * MS);
        lines(&mut world.buckets[0], 100_000, 100 * MS);
        world.run(60_000 * MS);
        assert_eq!((world.left.len(), world.buckets[0].accounts().dropped), (20, 199_980));
    }

    #[test]
    fn what_others_have_reserved_fills_the_bucket() {
        let mut world = World::new(vec![bucket(2, |config| {
            (config.overflow, config.capacity) = (Overflow::DropNewest, 20);
        })]);
        world.buckets[0].heard(5000 * MS, 0);
        lines(&mut world.buckets[0], 100, 0);
        assert_eq!(world.buckets[0].accounts().dropped, 90);
    }

    #[test]
    fn what_expires_gives_its_slot_back() {
        let mut world = World::new(vec![bucket(1, |config| config.max_age = Some(500 * MS))]);
        lines(&mut world.buckets[0], 3, 0);
        world.run(900 * MS);
        assert_eq!((world.left.len(), world.buckets[0].accounts().expired), (1, 2));
        assert_eq!(world.state.unwrap().tat.us, 1_000_000);
    }

    #[test]
    fn a_plugged_hole_reserves_nothing_and_what_is_late_is_reserved_anew() {
        let mut world = World::new(vec![bucket(100, |_| {})]);
        lines(&mut world.buckets[0], 300, 0);
        world.run(500 * MS);
        let before = (world.left.len(), world.calls);
        assert_eq!(before.0, 51);
        world.buckets[0].blocked(true);
        world.now = 1500 * MS;
        world.buckets[0].advance(world.now);
        assert!(!world.buckets[0].has_calls());
        world.buckets[0].blocked(false);
        world.run(1600 * MS);
        let after = world.left.len() - before.0;
        assert!((10..=12).contains(&after), "{after}");
    }

    /// A burst hangs in a write for `stall`; how many items there are at its end, and in the second after it.
    fn after_a_stall(stall: u64) -> (usize, usize) {
        let mut world = World::new(vec![bucket(10, |config| {
            let settings = config.shared.as_mut().unwrap();
            settings.terms = Terms::new(&rate(10), 5).unwrap();
            config.pacer = Pacer::new(&[rate(10)], &Algorithm::TokenBucket { bursts: vec![5] }).unwrap();
        })]);
        lines(&mut world.buckets[0], 100, 0);
        world.settle(0);
        world.buckets[0].blocked(true);
        world.now = stall;
        world.settle(0);
        world.buckets[0].blocked(false);
        world.run(stall);
        let at_once = world.left.len();
        world.run(stall + 1000 * MS);
        (at_once, world.left.len() - at_once)
    }

    #[test]
    fn a_stalled_reader_finds_one_burst_and_not_a_second_one() {
        // After 5 ms the units hold, as their places are yet to come; later ever more of them are spent.
        for stall in [5, 300, 600, 2000, 60_000] {
            assert_eq!(after_a_stall(stall * MS), (5, 10), "after {stall} ms");
        }
    }

    #[test]
    fn an_outage_is_tried_again_and_not_without_end() {
        for local in [false, true] {
            let own = if local { OnOutage::Local(Terms::new(&rate(5), 1).unwrap()) } else { OnOutage::Block };
            let mut world = World::new(vec![bucket(100, |config| config.shared.as_mut().unwrap().on_outage = own)]);
            world.away = 1000 * MS..6000 * MS;
            lines(&mut world.buckets[0], 1000, 0);
            world.run(6000 * MS);
            let meanwhile = world.left.iter().filter(|(at, _)| *at > 1100 * MS).count();
            assert!(if local { (23..=26).contains(&meanwhile) } else { meanwhile == 0 }, "{meanwhile}");
            assert!(world.calls < 150, "{}", world.calls);
            world.run(9000 * MS);
            let after = world.left.len();
            world.run(10_000 * MS);
            assert!((99..=101).contains(&(world.left.len() - after)));
        }
    }
}
