//! What one process does with a shared bucket, pure: a [`Ledger`] says what to ask the store, is told what came of it, and
//! knows when the next item may leave. It never reads a clock and never calls a store, so it runs on a virtual clock.
//! [`super::client::Client`] drives one synchronously, for the gate; a leaker drives one through
//! [`super::background::Background`].
//!
//! The leaker's round, for the item at the head of a key's queue: [`Ledger::ask`] (make the call it hands out), then
//! [`Ledger::slot`]; nothing known yet: wait for the answer, or until [`Ledger::retry_at`]; else wait until the slot,
//! look again (what is too late by then is no longer valid), [`Ledger::take`] it and write.
//!
//! - Batches of 10 ms of the rate, one batch ahead, and never more than what waits here: what is not needed is others'.
//! - Units whose moment has passed by more than the catch-up are void: a client that was stopped reserves again.
//! - An item dearer than what is left of a batch leaves once all of its units are reserved, at the moment from which
//!   they would have been paid in one go.
//! - A call is never repeated; one whose answer was lost may have taken units, and they are spent.

pub use super::grant::Need;
use super::grant::{Grant, LATE_WAKE_NS, Lane};
use super::reservation::Terms;
use super::{Reply, Request, Returned, StoreError};
use std::collections::HashMap;

const MS: u64 = 1_000_000;
/// An answer that took longer than the time-outs let it found this process stopped: it can no longer be placed in time.
const OLD_ANSWER_NS: u64 = 1_100 * MS;
const FIRST_RETRY_NS: u64 = 50 * MS;
const LAST_RETRY_NS: u64 = 2_000 * MS;

/// `--on-outage`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOutage {
    /// Hold, and retry with backoff.
    Block,
    /// The outage is an error.
    Exit,
    /// Go on with an own bucket of these terms until the store is back.
    Local(Terms),
}

/// What a ledger is set up with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The shared rate and the burst.
    pub terms: Terms,
    /// `--catch-up`: units later than this are reserved again.
    pub catch_up_ns: u64,
    /// What to do while the store is away.
    pub on_outage: OnOutage,
    /// Anything that differs between processes: it spreads their retries.
    pub seed: u64,
}

/// What to do before looking for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Make this call, and hand the [`Answer`] to [`Ledger::answered`].
    Call(Request),
    /// The own bucket of an outage would make the head wait longer than it may.
    TooFar {
        /// The wait it would take.
        wait_ns: u64,
    },
    /// Nothing: all is reserved or asked for.
    Nothing,
    /// Nothing yet: the store is away. Ask again at [`Ledger::retry_at`], or when the call that tries it is answered.
    Later,
}

/// A call's outcome.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What was asked.
    pub request: Request,
    /// When it returned, on the caller's clock.
    pub came_ns: u64,
    /// What it returned.
    pub result: Result<Reply, StoreError>,
}

/// What a user may want to be told, or a gate to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An outage begins.
    Outage(StoreError),
    /// It is over.
    Back,
    /// The bucket's state was beyond belief, and it was begun afresh.
    Reset,
    /// Nothing was taken: the head would have to wait longer than it may.
    TooFar {
        /// The wait it would take.
        wait_ns: u64,
    },
}

/// The pure part of the client. Keys are independent buckets; without `--key` there is one, the empty key.
#[derive(Debug)]
pub struct Ledger {
    settings: Settings,
    batch: u64,
    lanes: HashMap<Vec<u8>, Lane>,
    in_flight: usize,
    /// What has become void and can go back.
    voided: Vec<Returned>,
    backoff: Backoff,
    retry_at: Option<u64>,
}

impl Ledger {
    /// A client that has reserved nothing.
    pub fn new(settings: Settings) -> Self {
        Ledger {
            batch: settings.terms.batch(),
            backoff: Backoff::new(settings.seed),
            settings,
            lanes: HashMap::new(),
            in_flight: 0,
            voided: Vec::new(),
            retry_at: None,
        }
    }

    /// When the store is tried again; None while it is not away.
    pub fn retry_at(&self) -> Option<u64> {
        self.retry_at
    }

    /// Whether a call is under way.
    pub fn calling(&self) -> bool {
        self.in_flight > 0
    }

    /// Whether one is for this key.
    pub fn has_asked(&self, key: &[u8]) -> bool {
        self.lanes.get(key).is_some_and(|lane| lane.asked)
    }

    /// What to ask now, so that the head has a slot and a batch is ahead. A call handed out counts as asked.
    pub fn ask(&mut self, key: &[u8], need: Need, now: u64) -> Ask {
        let head = need.cost.max(1);
        let lane = lane_of(&mut self.lanes, key);
        drop_void(lane, key, &mut self.voided, self.settings.catch_up_ns, now);
        let reserved = lane.reserved();
        let waiting = need.waiting.max(head).saturating_sub(reserved);
        let units = match head.saturating_sub(reserved) {
            0 if lane.grants.len() > 1 => 0,
            missing => missing.max(waiting.min(self.batch)),
        };
        if units == 0 {
            return Ask::Nothing;
        }
        if let (Some(_), OnOutage::Local(terms)) = (self.retry_at, self.settings.on_outage)
            && reserved < head
            && let Some(wait_ns) = lane.reserve_own(terms, units, need, now)
        {
            return Ask::TooFar { wait_ns };
        }
        // While the store is away one call at a time finds out whether it is back.
        if lane.asked {
            return Ask::Nothing;
        }
        if self.retry_at.is_some_and(|at| now < at || self.in_flight > 0) {
            return Ask::Later;
        }
        lane.asked = true;
        self.in_flight += 1;
        Ask::Call(Request {
            key: key.to_vec(),
            units,
            credit: self.settings.terms.credit(need.cost),
            max_wait_ns: need.max_wait_ns,
            floor: lane.floor,
        })
    }

    /// What has become void and may be of use to others: calls to be made before any that was asked for since.
    pub fn take_void(&mut self) -> Vec<Returned> {
        std::mem::take(&mut self.voided)
    }

    /// Takes an answer in. An error is final: it is no outage, or outages are to end the run.
    pub fn answered(&mut self, answer: Answer) -> Result<Vec<Notice>, StoreError> {
        let Answer { request, came_ns, result } = answer;
        let lane = lane_of(&mut self.lanes, &request.key);
        lane.asked = false;
        self.in_flight = self.in_flight.saturating_sub(1);
        let mut notices = Vec::new();
        let reply = match result {
            Ok(reply) => reply,
            Err(error) if !error.is_outage() || self.settings.on_outage == OnOutage::Exit => return Err(error),
            Err(error) => {
                if self.retry_at.is_none() {
                    notices.push(Notice::Outage(error));
                }
                self.retry_at = Some(came_ns.saturating_add(self.backoff.next_ns()));
                return Ok(notices);
            }
        };
        self.backoff.reset();
        if self.retry_at.take().is_some() {
            notices.push(Notice::Back);
        }
        match reply {
            Reply::TooFar { wait_ns } => notices.push(Notice::TooFar { wait_ns }),
            Reply::Granted { now_us, base, reset, age_ns } => {
                if reset {
                    notices.push(Notice::Reset);
                }
                let grant = Grant::new(self.settings.terms, came_ns, now_us, base, request.units);
                match age_ns > OLD_ANSWER_NS {
                    true => lane.floor = grant.end(),
                    false => lane.place(grant),
                }
            }
        }
        Ok(notices)
    }

    /// When an item of this cost may leave; None if its units are not all reserved.
    pub fn slot(&mut self, key: &[u8], cost: u64, now: u64) -> Option<u64> {
        let lane = self.lanes.get_mut(key)?;
        drop_void(lane, key, &mut self.voided, self.settings.catch_up_ns, now);
        lane.stands(cost, |terms| terms.credit(cost))
    }

    /// The latest the write of an item of this cost that leaves now may end on the units it takes: the catch-up after its
    /// place, which is later than its slot by what it has of the burst. Without a burst that is never asked.
    pub fn spent(&self, key: &[u8], cost: u64, now: u64) -> u64 {
        let lane = self.lanes.get(key).filter(|_| self.settings.terms.burst() > 1);
        let place = lane.and_then(|lane| lane.stands(cost, |_| 0));
        let catch_up_ns = self.settings.catch_up_ns.max(LATE_WAKE_NS);
        place.map_or(u64::MAX, |place| place.max(now).saturating_add(catch_up_ns))
    }

    /// How many units in a row may leave by now, for items that cost 1.
    pub fn due(&mut self, key: &[u8], now: u64) -> u64 {
        let Some(lane) = self.lanes.get_mut(key) else { return 0 };
        drop_void(lane, key, &mut self.voided, self.settings.catch_up_ns, now);
        let mut due = 0;
        for grant in &lane.grants {
            let passed = grant.passed(now, grant.terms.credit(1));
            due = u64::saturating_add(due, passed);
            if passed < grant.left() {
                break;
            }
        }
        due
    }

    /// How many items of this cost may leave in a row by `until`, the first of which may anyway; not more than are known
    /// to be one T apart each.
    pub fn ready(&self, key: &[u8], cost: u64, until: u64) -> u64 {
        let grant = self.lanes.get(key).and_then(|lane| lane.grants.front());
        match grant {
            Some(grant) if cost > 0 && !grant.local && grant.terms.burst() == 1 => {
                grant.passed(until, 0).div_ceil(cost).min(grant.left() / cost).max(1)
            }
            _ => 1,
        }
    }

    /// Uses up the units of an item that leaves.
    pub fn take(&mut self, key: &[u8], cost: u64) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.voided = 0;
        let mut missing = cost;
        while let Some(grant) = lane.grants.front_mut() {
            let part = missing.min(grant.left());
            grant.used += part;
            missing -= part;
            if grant.left() > 0 {
                break;
            }
            lane.grants.pop_front();
        }
    }

    /// How far ahead of now the shared TAT was when last heard of: level = what waits without a reservation + this / T.
    pub fn ahead_ns(&self, key: &[u8], now: u64) -> u64 {
        self.lanes.get(key).map_or(0, |lane| lane.tat_ns.saturating_sub(now))
    }

    /// When all would be paid for if nothing were reserved here, as far as is known.
    pub fn paid_ns(&self, key: &[u8]) -> u64 {
        let Some(lane) = self.lanes.get(key) else { return 0 };
        let reserved = lane.grants.iter().map(|grant| grant.terms.pace.span_ns(grant.left()));
        reserved.fold(lane.tat_ns, u64::saturating_sub)
    }

    /// Somebody has looked: the shared TAT is `ahead_ns` ahead of `now`.
    pub fn heard(&mut self, key: &[u8], ahead_ns: u64, now: u64) {
        lane_of(&mut self.lanes, key).tat_ns = now.saturating_add(ahead_ns);
    }

    /// How many units are reserved and unused.
    pub fn reserved(&self, key: &[u8]) -> u64 {
        self.lanes.get(key).map_or(0, Lane::reserved)
    }

    /// Gives up what is reserved for a key: the calls to make, in this order.
    pub fn give_back(&mut self, key: &[u8]) -> Vec<Returned> {
        let Some(lane) = self.lanes.get_mut(key) else {
            return Vec::new();
        };
        let mut back = Vec::new();
        while let Some(grant) = lane.grants.pop_back() {
            lane.take_back(key, &grant, &mut back);
        }
        back
    }

    /// Gives up a key that is at rest, or every key at the end.
    pub fn forget(&mut self, key: &[u8]) -> Vec<Returned> {
        let back = self.give_back(key);
        self.lanes.remove(key);
        back
    }

    /// Gives up everything: the run ends.
    pub fn finish(&mut self) -> Vec<Returned> {
        let keys: Vec<_> = self.lanes.keys().cloned().collect();
        keys.iter().flat_map(|key| self.forget(key)).collect()
    }
}

fn drop_void(lane: &mut Lane, key: &[u8], voided: &mut Vec<Returned>, catch_up_ns: u64, now: u64) {
    for grant in lane.drop_void(catch_up_ns, now).iter().rev() {
        lane.take_back(key, grant, voided);
    }
}

fn lane_of<'a>(lanes: &'a mut HashMap<Vec<u8>, Lane>, key: &[u8]) -> &'a mut Lane {
    // An empty key costs no allocation.
    lanes.entry(key.to_vec()).or_default()
}

/// Waits between tries: 50 ms to 2 s, each anywhere up to twice the one before it could be.
#[derive(Debug)]
struct Backoff {
    random: u64,
    most_ns: u64,
}

impl Backoff {
    fn new(seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Backoff { random, most_ns: 2 * FIRST_RETRY_NS }
    }

    fn reset(&mut self) {
        self.most_ns = 2 * FIRST_RETRY_NS;
    }

    fn next_ns(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let wait = FIRST_RETRY_NS + self.random % (self.most_ns - FIRST_RETRY_NS + 1);
        self.most_ns = (2 * self.most_ns).min(LAST_RETRY_NS);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::super::reservation::{self, Moment, Order, Pace, State, Verdict};
    use super::*;
    use crate::rate::{Rate, Unit};
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    const S: u64 = 1_000 * MS;

    fn terms(n: u64, p_ns: u64, burst: u64) -> Terms {
        Terms::new(&Rate::new(n, p_ns, Unit::Items).unwrap(), burst).unwrap()
    }

    fn settings(terms: Terms, on_outage: OnOutage, seed: u64) -> Settings {
        Settings { terms, catch_up_ns: 50 * MS, on_outage, seed }
    }

    /// A server in a few lines: a state and a clock.
    struct Server {
        pace: Pace,
        state: Option<State>,
        ahead_us: u64,
    }

    impl Server {
        fn new(terms: Terms) -> Self {
            Server { pace: terms.pace, state: None, ahead_us: 1 << 50 }
        }

        fn reserve(&mut self, request: &Request, at: u64) -> Result<Reply, StoreError> {
            let now_us = self.ahead_us + at / 1000;
            let Request { units, credit, max_wait_ns, floor, .. } = *request;
            let order = Order::new(&self.pace, units, credit, max_wait_ns, floor).unwrap();
            match reservation::reserve(&self.pace, self.state, now_us, &order) {
                Verdict::Granted { base, state, reset } => {
                    self.state = Some(state);
                    Ok(Reply::Granted { now_us, base, reset, age_ns: 0 })
                }
                Verdict::TooFar(wait) => Ok(Reply::TooFar { wait_ns: self.pace.ns(wait) }),
                verdict => Err(StoreError::Refused(format!("{verdict:?}"))),
            }
        }
    }

    fn need(cost: u64, waiting: u64) -> Need {
        Need { cost, waiting, max_wait_ns: None }
    }

    fn call(ask: Ask) -> Request {
        match ask {
            Ask::Call(request) => request,
            ask => panic!("a call was expected, not {ask:?}"),
        }
    }

    /// Calls at once, without latency.
    fn served(ledger: &mut Ledger, server: &mut Server, waiting: Need, now: u64) -> Vec<Notice> {
        let mut told = Vec::new();
        while let Ask::Call(request) = ledger.ask(b"", waiting, now) {
            let result = server.reserve(&request, now);
            told.extend(ledger.answered(Answer { request, came_ns: now, result }).unwrap());
        }
        told
    }

    enum Event {
        Wake,
        Arrive(Request),
        Answer(Request, Result<Reply, StoreError>),
    }

    /// Several clients, always with something to send, and one server far away.
    struct World {
        terms: Terms,
        server: Server,
        clients: Vec<Ledger>,
        events: BinaryHeap<Reverse<(u64, usize, usize)>>,
        what: Vec<Option<Event>>,
        random: u64,
        latency_ns: u64,
        /// One message in so many is lost, either way.
        loss: u64,
        down: std::ops::Range<u64>,
        /// Client 0 does nothing meanwhile.
        stopped: std::ops::Range<u64>,
        /// When each is to wake next; other wake-ups are of no interest any more.
        wakes: Vec<u64>,
        left: Vec<u64>,
        by: Vec<u64>,
        calls: u64,
    }

    impl World {
        fn new(terms: Terms, clients: usize) -> Self {
            let ledger = |seed| Ledger::new(settings(terms, OnOutage::Block, seed as u64));
            World {
                terms,
                server: Server::new(terms),
                clients: (0..clients).map(ledger).collect(),
                events: BinaryHeap::new(),
                what: Vec::new(),
                random: 42,
                latency_ns: 2 * MS,
                loss: 0,
                down: 0..0,
                stopped: 0..0,
                wakes: vec![0; clients],
                left: Vec::new(),
                by: vec![0; clients],
                calls: 0,
            }
        }

        fn random(&mut self, below: u64) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.random >> 20) % below.max(1)
        }

        fn later(&mut self, at: u64, client: usize, event: Event) {
            if matches!(event, Event::Wake) {
                self.wakes[client] = at;
            }
            self.events.push(Reverse((at, self.what.len(), client)));
            self.what.push(Some(event));
        }

        fn leg(&mut self) -> u64 {
            let most = self.latency_ns;
            self.random(most)
        }

        fn lost(&mut self) -> bool {
            let one_in = self.loss;
            one_in > 0 && self.random(one_in) == 0
        }

        fn run(&mut self, until: u64, mut each: impl FnMut(&mut Server, u64)) {
            for client in 0..self.clients.len() {
                let start = self.random(10 * MS);
                self.later(start, client, Event::Wake);
            }
            while let Some(Reverse((now, index, client))) = self.events.pop() {
                if now > until {
                    return;
                }
                each(&mut self.server, now);
                let event = self.what[index].take().unwrap();
                if client == 0 && self.stopped.contains(&now) && !matches!(event, Event::Arrive(_)) {
                    let end = self.stopped.end;
                    self.later(end, client, event);
                    continue;
                }
                match event {
                    Event::Wake if self.wakes[client] != now => {}
                    Event::Wake => self.turn(client, now),
                    Event::Arrive(request) => {
                        self.calls += 1;
                        let up = !self.down.contains(&now);
                        let result = match up && !self.lost() {
                            true => self.server.reserve(&request, now),
                            false => Err(StoreError::Outage("lost".into())),
                        };
                        // A lost answer is found out by the time-out.
                        let (at, result) = match result.is_ok() && !self.lost() {
                            true => (now + self.leg(), result),
                            false => (now + S, Err(StoreError::Outage("lost".into()))),
                        };
                        self.later(at, client, Event::Answer(request, result));
                    }
                    Event::Answer(request, result) => {
                        self.clients[client].answered(Answer { request, came_ns: now, result }).unwrap();
                        self.turn(client, now);
                    }
                }
            }
        }

        fn turn(&mut self, client: usize, now: u64) {
            loop {
                if let Ask::Call(request) = self.clients[client].ask(b"", need(1, u64::MAX), now) {
                    let at = now + self.leg();
                    self.later(at, client, Event::Arrive(request));
                }
                let ledger = &mut self.clients[client];
                match ledger.slot(b"", 1, now) {
                    Some(at) if at <= now => {
                        ledger.take(b"", 1);
                        self.left.push(now);
                        self.by[client] += 1;
                    }
                    Some(at) => {
                        let late = self.random(MS / 5);
                        return self.later(at + late, client, Event::Wake);
                    }
                    None => {
                        if let Some(at) = ledger.retry_at().filter(|at| *at > now) {
                            self.later(at, client, Event::Wake);
                        }
                        return;
                    }
                }
            }
        }

        /// Item j leaves no more than `late_ns` and `units` too early after any item i before it.
        fn check(&self, late_ns: u64, units: u64) {
            let t = |k: u64| i128::from(self.terms.pace.span_ns(k));
            let (mut highest, most) = (i128::MIN, i128::from(late_ns) + t(units));
            for (i, at) in self.left.iter().enumerate() {
                let x = i128::from(*at) - t(i as u64);
                assert!(highest == i128::MIN || x >= highest - most, "item {i} at {at}: {} ns too early", highest - x);
                highest = highest.max(x);
            }
        }
    }

    #[test]
    fn never_61_of_60_whatever_the_number_of_clients_and_the_latency() {
        for clients in 2..=8 {
            for (n, p_ns) in [(60, S), (1000, S), (7, S), (300, 60 * S)] {
                for latency_ns in [MS / 10, 5 * MS, 80 * MS] {
                    let mut world = World::new(terms(n, p_ns, 1), clients);
                    world.latency_ns = latency_ns;
                    world.run(20 * S, |_, _| {});
                    world.check(latency_ns + MS, 0);
                    let most = 20 * S * n / p_ns + 1;
                    let sent = world.left.len() as u64;
                    assert!(sent <= most, "{sent} of {most}");
                    if latency_ns <= 5 * MS {
                        assert!(sent * 100 >= most * 98 - 200, "{clients} clients at {n}/{p_ns}: {sent} of {most}");
                        let share = sent / clients as u64;
                        assert!(world.by.iter().all(|by| by.abs_diff(share) * 10 <= share + 40), "{:?}", world.by);
                    }
                }
            }
        }
    }

    #[test]
    fn calls_are_one_a_batch() {
        let mut world = World::new(terms(100_000, S, 1), 2);
        world.latency_ns = MS;
        world.run(2 * S, |_, _| {});
        assert!(world.calls <= 2 * 100 + 8, "{} calls", world.calls);
        assert!(world.left.len() as u64 >= 196_000, "{}", world.left.len());
    }

    #[test]
    fn what_is_lost_is_spent_and_never_sent_twice() {
        let mut world = World::new(terms(200, S, 1), 4);
        world.loss = 50;
        world.run(60 * S, |_, _| {});
        world.check(2 * MS + MS, 0);
        assert!(world.left.len() > 7_000, "{}", world.left.len());
    }

    #[test]
    fn a_restart_that_loses_the_state_gives_no_more_than_what_was_in_hand() {
        let mut world = World::new(terms(1000, S, 1), 8);
        world.down = 3 * S..5 * S;
        world.run(12 * S, |server, now| {
            if (3 * S..5 * S).contains(&now) {
                server.state = None;
            }
        });
        world.check(3 * MS, 2 * 8 * 10);
        let after = world.left.iter().filter(|at| **at > 8 * S).count();
        assert!((3_900..=4_004).contains(&after), "{after} in the last 4 s");
        assert!(!world.left.iter().any(|at| (4 * S..5 * S).contains(at)), "it holds while the server is away");
    }

    #[test]
    fn a_server_whose_clock_steps_grants_nothing_twice() {
        for step_us in [5_000_000i64, -5_000_000] {
            let mut world = World::new(terms(100, S, 1), 3);
            let mut stepped = false;
            world.run(20 * S, |server, now| {
                if now > 4 * S && !stepped {
                    stepped = true;
                    server.ahead_us = server.ahead_us.saturating_add_signed(step_us);
                }
            });
            // Forward, the next reservation stands at the new now while those in hand are still to come.
            world.check(3 * MS, if step_us > 0 { 6 } else { 0 });
            assert!(world.left.iter().any(|at| *at > 19 * S));
        }
    }

    #[test]
    fn a_client_stopped_for_two_seconds_bursts_nothing() {
        for n in [10, 1000] {
            let terms = terms(n, S, 1);
            let mut world = World::new(terms, 3);
            world.stopped = 3 * S..5 * S;
            world.run(10 * S, |_, _| {});
            world.check(3 * MS, terms.batch());
            let after = world.left.iter().filter(|at| (5 * S..6 * S).contains(*at)).count() as u64;
            assert!(after <= n + terms.batch() + 1, "{after} in the second after it");
        }
    }

    #[test]
    fn one_batch_is_ahead_and_no_more_than_waits() {
        let terms = terms(1000, S, 1);
        let (mut ledger, mut server) = (Ledger::new(settings(terms, OnOutage::Block, 1)), Server::new(terms));
        served(&mut ledger, &mut server, need(1, 3), 0);
        assert_eq!(ledger.reserved(b""), 3);
        served(&mut ledger, &mut server, need(1, 500), 0);
        assert_eq!(ledger.reserved(b""), 13, "a batch is ahead");
        for k in 0..3 {
            assert_eq!(ledger.ask(b"", need(1, 497), 0), Ask::Nothing);
            assert_eq!(ledger.slot(b"", 1, 0), Some(k * MS));
            ledger.take(b"", 1);
        }
        assert_eq!(call(ledger.ask(b"", need(1, 497), 3 * MS)).units, 10);
        assert_eq!(ledger.ask(b"", need(1, 497), 3 * MS), Ask::Nothing, "one call at a time");
        assert_eq!(ledger.ahead_ns(b"", 3 * MS), 10 * MS);
    }

    #[test]
    fn due_counts_what_may_leave_now() {
        let terms = terms(1000, S, 1);
        let (mut ledger, mut server) = (Ledger::new(settings(terms, OnOutage::Block, 1)), Server::new(terms));
        served(&mut ledger, &mut server, need(1, 100), 0);
        assert_eq!(ledger.due(b"", 0), 1);
        assert_eq!(ledger.due(b"", 13 * MS - 1), 13);
        assert_eq!(ledger.due(b"", 13 * MS), 14);
        ledger.take(b"", 14);
        assert_eq!((ledger.due(b"", 13 * MS), ledger.slot(b"", 1, 13 * MS)), (0, Some(14 * MS)));
    }

    #[test]
    fn a_dear_item_leaves_once_all_of_it_is_reserved() {
        let terms = terms(10, S, 1);
        let (mut ledger, mut server) = (Ledger::new(settings(terms, OnOutage::Block, 1)), Server::new(terms));
        served(&mut ledger, &mut server, need(1, 1), 0);
        // Somebody else's, between what is in hand and what is still missing.
        let other = Request { key: vec![], units: 5, credit: 0, max_wait_ns: None, floor: Moment::default() };
        server.reserve(&other, 0).unwrap();
        assert_eq!(ledger.slot(b"", 3, 0), None);
        served(&mut ledger, &mut server, need(3, 3), 0);
        assert_eq!(ledger.slot(b"", 3, 0), Some(500 * MS), "two units from 0.6 s on, and the one in hand before them");
        ledger.take(b"", 3);
        assert_eq!(ledger.reserved(b""), 0);
    }

    #[test]
    fn what_is_too_late_is_void_and_patience_grows() {
        let terms = terms(100, S, 1);
        let (mut ledger, mut server) = (Ledger::new(settings(terms, OnOutage::Block, 1)), Server::new(terms));
        served(&mut ledger, &mut server, need(1, 1), 0);
        assert_eq!(ledger.slot(b"", 1, 50 * MS), Some(0), "the catch-up is made up");
        assert_eq!(ledger.slot(b"", 1, 50 * MS + 1), None);
        served(&mut ledger, &mut server, need(1, 1), 51 * MS);
        assert_eq!(ledger.slot(b"", 1, 150 * MS), Some(51 * MS), "twice the catch-up, after one void");
        ledger.take(b"", 1);
        served(&mut ledger, &mut server, need(1, 1), 200 * MS);
        assert_eq!(ledger.slot(b"", 1, 251 * MS), None, "and no longer, once one has left");
    }

    #[test]
    fn an_answer_older_than_the_time_outs_is_not_used() {
        let terms = terms(100, S, 1);
        let mut ledger = Ledger::new(settings(terms, OnOutage::Block, 1));
        let request = call(ledger.ask(b"", need(1, 1), 0));
        let base = Moment::whole(1 << 50);
        let result = Ok(Reply::Granted { now_us: base.us, base, reset: false, age_ns: 2 * S });
        ledger.answered(Answer { request, came_ns: 2 * S, result }).unwrap();
        assert_eq!(ledger.slot(b"", 1, 2 * S), None);
        assert_eq!(call(ledger.ask(b"", need(1, 1), 2 * S)).floor, Moment::whole(base.us + 10_000));
    }

    #[test]
    fn unused_units_go_back_newest_first() {
        let terms = terms(300, S, 1);
        let (mut ledger, mut server) = (Ledger::new(settings(terms, OnOutage::Block, 1)), Server::new(terms));
        served(&mut ledger, &mut server, need(1, 100), 0);
        ledger.take(b"", 1);
        for returned in ledger.finish() {
            let Returned { end, back, .. } = returned;
            server.state =
                Some(reservation::give_back(&server.pace, server.state, end, back).expect("nobody came after"));
        }
        let (now, one) = (Moment::whole(server.ahead_us), terms.pace.span(1).unwrap());
        assert_eq!(server.state.unwrap().tat, now.plus(one, terms.pace.n()));
    }

    #[test]
    fn outages_back_off_and_are_said_once() {
        let terms = terms(100, S, 1);
        let mut ledger = Ledger::new(settings(terms, OnOutage::Block, 7));
        let gone = StoreError::Outage("gone".into());
        let (mut now, mut waits) = (0, Vec::new());
        for round in 0..12 {
            let request = call(ledger.ask(b"", need(1, 1), now));
            let answer = Answer { request, came_ns: now, result: Err(gone.clone()) };
            let told = ledger.answered(answer).unwrap();
            assert_eq!(told.is_empty(), round > 0, "{told:?}");
            let at = ledger.retry_at().unwrap();
            assert_eq!(ledger.ask(b"", need(1, 1), at - 1), Ask::Later);
            waits.push(at - now);
            now = at;
        }
        assert!(waits.iter().all(|wait| (50 * MS..=2 * S).contains(wait)), "{waits:?}");
        assert!(waits[0] <= 100 * MS && waits.iter().any(|wait| *wait > S), "{waits:?}");
        let mut server = Server::new(terms);
        assert_eq!(served(&mut ledger, &mut server, need(1, 1), now), [Notice::Back]);
        assert_eq!((ledger.retry_at(), ledger.slot(b"", 1, now)), (None, Some(now)));
    }

    #[test]
    fn exit_ends_with_the_outage_and_a_refusal_ends_always() {
        let terms = terms(100, S, 1);
        for (on_outage, error) in [
            (OnOutage::Exit, StoreError::Outage("gone".into())),
            (OnOutage::Block, StoreError::Refused("wrong password".into())),
        ] {
            let mut ledger = Ledger::new(settings(terms, on_outage, 7));
            let request = call(ledger.ask(b"", need(1, 1), 0));
            let answer = Answer { request, came_ns: 0, result: Err(error.clone()) };
            assert_eq!(ledger.answered(answer), Err(error));
        }
    }

    #[test]
    fn local_goes_on_at_its_own_rate_and_comes_back() {
        let (shared, own) = (terms(100, S, 1), terms(10, S, 1));
        let mut ledger = Ledger::new(settings(shared, OnOutage::Local(own), 7));
        let request = call(ledger.ask(b"", need(1, 1), 0));
        let gone = StoreError::Outage("gone".into());
        ledger.answered(Answer { request, came_ns: S, result: Err(gone) }).unwrap();
        let mut slots = Vec::new();
        for _ in 0..3 {
            assert_eq!(ledger.ask(b"", need(1, 1), S), Ask::Later);
            slots.push(ledger.slot(b"", 1, S).unwrap());
            ledger.take(b"", 1);
        }
        assert_eq!(slots, [S, S + 100 * MS, S + 200 * MS]);
        let now = ledger.retry_at().unwrap();
        let request = call(ledger.ask(b"", need(1, 1), now));
        assert!(ledger.slot(b"", 1, now).is_some(), "the own bucket goes on while the store is tried");
        let result = Server::new(shared).reserve(&request, now);
        assert_eq!(ledger.answered(Answer { request, came_ns: now, result }), Ok(vec![Notice::Back]));
        let back = ledger.finish();
        assert_eq!(back.len(), 1, "only what is the store's goes back");
    }

    #[test]
    fn keys_are_buckets_of_their_own_and_the_empty_key_is_one() {
        let terms = terms(1, S, 1);
        let mut ledger = Ledger::new(settings(terms, OnOutage::Block, 1));
        for key in [b"".as_slice(), b"a", b"b"] {
            let request = call(ledger.ask(key, need(1, 1), 0));
            assert_eq!(request.key, key);
            let result = Server::new(terms).reserve(&request, 0);
            ledger.answered(Answer { request, came_ns: 0, result }).unwrap();
            assert_eq!(ledger.slot(key, 1, 0), Some(0));
        }
        assert_eq!(ledger.forget(b"a").len(), 1);
        assert_eq!((ledger.slot(b"a", 1, 0), ledger.slot(b"b", 1, 0)), (None, Some(0)));
    }
}
