//! The gate's client: a [`Ledger`] and a [`Store`], driven by a caller that may block. One reservation, one sleep.

use super::ledger::{Answer, Ask, Ledger, Need, Notice, Settings};
use super::{Level, Store, StoreError};

/// The caller's clock, and how it waits.
pub trait Timer {
    /// Nanoseconds on a clock that never goes back.
    fn now_ns(&mut self) -> u64;
    /// Waits until then; false if the wait was interrupted and is to end.
    fn wait_until(&mut self, ns: u64) -> bool;
}

/// What became of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is ours, now.
    Go,
    /// Not in time: nothing was taken.
    TooFar {
        /// How long it would have taken, as far as is known.
        wait_ns: u64,
    },
    /// The wait was interrupted, and what was reserved given back.
    Interrupted,
}

/// A ledger and its store, for a caller that may block: the gate.
#[derive(Debug)]
pub struct Client<S> {
    ledger: Ledger,
    store: S,
}

impl<S: Store> Client<S> {
    /// A client that has reserved nothing.
    pub fn new(store: S, settings: Settings) -> Self {
        Client { ledger: Ledger::new(settings), store }
    }

    /// Waits for one turn of this cost. With `max_wait_ns` (0 = now or not at all) a turn that cannot be had by then is
    /// not taken. One reservation, one sleep, unless the store is away or this process is stopped meanwhile.
    pub fn turn(
        &mut self,
        key: &[u8],
        cost: u64,
        max_wait_ns: Option<u64>,
        timer: &mut impl Timer,
        tell: &mut dyn FnMut(&Notice),
    ) -> Result<Turn, StoreError> {
        let mut now = timer.now_ns();
        let deadline = max_wait_ns.map(|most| now.saturating_add(most));
        loop {
            let left = deadline.map(|end| end.saturating_sub(now));
            let need = Need { cost, waiting: cost, max_wait_ns: left };
            match self.ledger.ask(key, need, now) {
                Ask::TooFar { wait_ns } => return Ok(Turn::TooFar { wait_ns }),
                Ask::Call(request) => {
                    for returned in self.ledger.take_void() {
                        // A failure costs others nothing but the units.
                        let _ = self.store.give_back(&returned);
                    }
                    let result = self.store.reserve(&request);
                    let came_ns = timer.now_ns();
                    let answer = Answer { request, came_ns, result };
                    now = came_ns;
                    for notice in self.ledger.answered(answer)? {
                        if let Notice::TooFar { wait_ns } = notice {
                            return Ok(Turn::TooFar { wait_ns });
                        }
                        tell(&notice);
                    }
                    continue;
                }
                Ask::Nothing | Ask::Later => {}
            }
            let slot = self.ledger.slot(key, cost, now);
            let until = match (slot, self.ledger.retry_at()) {
                (Some(at), _) if at <= now => {
                    self.ledger.take(key, cost);
                    return Ok(Turn::Go);
                }
                (Some(at), _) => at,
                (None, Some(at)) if deadline.is_some_and(|end| at > end) => {
                    return Ok(Turn::TooFar { wait_ns: at.saturating_sub(now) });
                }
                (None, Some(at)) => at,
                // Neither asked nor away: what was reserved has just become void. Ask again.
                (None, None) => now,
            };
            if until > now && !timer.wait_until(until) {
                self.finish();
                return Ok(Turn::Interrupted);
            }
            now = timer.now_ns();
        }
    }

    /// Looks at the bucket without taking a turn.
    pub fn peek(&mut self, key: &[u8]) -> Result<Level, StoreError> {
        self.store.peek(key)
    }

    /// Gives back what is reserved and unused, as far as the store can still take it.
    pub fn finish(&mut self) {
        for returned in self.ledger.finish() {
            if self.store.give_back(&returned).is_err() {
                break;
            }
        }
    }

    /// The ledger, to look at.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::OnOutage;
    use super::super::reservation::{self, Moment, Order, State, Terms, Verdict};
    use super::super::{Reply, Request, Returned};
    use super::*;
    use crate::rate::{Rate, Unit};
    use std::cell::{Cell, RefCell};

    const MS: u64 = 1_000_000;

    /// One clock and one bucket for all; each call takes 1 ms, and the first `failing` ones fail.
    #[derive(Default)]
    struct World {
        now: Cell<u64>,
        state: Cell<Option<State>>,
        failing: Cell<u32>,
        calls: Cell<u32>,
        sleeps: RefCell<Vec<u64>>,
        /// Waits end at once, unfinished, from then on.
        interrupt: Cell<Option<u64>>,
        /// The next wait takes this much longer.
        oversleep: Cell<u64>,
    }

    struct Far<'a>(&'a World, Terms);

    impl Store for Far<'_> {
        fn reserve(&mut self, request: &Request) -> Result<Reply, StoreError> {
            let Far(world, Terms { pace, .. }) = self;
            world.calls.set(world.calls.get() + 1);
            let now_us = world.now.get() / 1000;
            world.now.set(world.now.get() + MS);
            if world.failing.get() > 0 {
                world.failing.set(world.failing.get() - 1);
                return Err(StoreError::Outage("gone".into()));
            }
            let Request { units, credit, max_wait_ns, floor, .. } = *request;
            let order = Order::new(pace, units, credit, max_wait_ns, floor).unwrap();
            match reservation::reserve(pace, world.state.get(), now_us, &order) {
                Verdict::Granted { base, state, reset } => {
                    world.state.set(Some(state));
                    Ok(Reply::Granted { now_us, base, reset, age_ns: MS })
                }
                Verdict::TooFar(wait) => Ok(Reply::TooFar { wait_ns: pace.ns(wait) }),
                verdict => Err(StoreError::Refused(format!("{verdict:?}"))),
            }
        }
        fn give_back(&mut self, returned: &Returned) -> Result<bool, StoreError> {
            let after = reservation::give_back(&self.1.pace, self.0.state.get(), returned.end, returned.back);
            self.0.state.set(after.or(self.0.state.get()));
            Ok(after.is_some())
        }
        fn peek(&mut self, _: &[u8]) -> Result<Level, StoreError> {
            Ok(Level { ahead_ns: 0, pace: None })
        }
    }

    impl Timer for &World {
        fn now_ns(&mut self) -> u64 {
            self.now.get()
        }
        fn wait_until(&mut self, ns: u64) -> bool {
            if let Some(at) = self.interrupt.get().filter(|at| *at < ns) {
                self.now.set(at);
                return false;
            }
            self.sleeps.borrow_mut().push(ns - self.now.get());
            self.now.set(ns + self.oversleep.take());
            true
        }
    }

    fn gate<'a>(world: &'a World, n: u64, on_outage: OnOutage) -> Client<Far<'a>> {
        let terms = Terms::new(&Rate::new(n, 1000 * MS, Unit::Items).unwrap(), 1).unwrap();
        Client::new(Far(world, terms), Settings { terms, catch_up_ns: 10 * MS, on_outage, seed: 1 })
    }

    fn turn(world: &World, cost: u64, max_wait_ns: Option<u64>) -> Turn {
        let mut timer = world;
        let mut client = gate(world, 10, OnOutage::Block);
        client.turn(b"", cost, max_wait_ns, &mut timer, &mut |_| {}).unwrap()
    }

    #[test]
    fn gates_take_turns_with_one_call_and_one_sleep() {
        let world = World::default();
        let starts: Vec<_> = (0..4).map(|_| (turn(&world, 1, None), world.now.get() / MS).1).collect();
        // Placed when the answer came, 1 ms after the server's now.
        assert_eq!(starts, [1, 101, 201, 301]);
        assert_eq!((world.calls.get(), world.sleeps.borrow().len()), (4, 3));
    }

    #[test]
    fn now_or_not_at_all_takes_nothing_when_refused() {
        let world = World::default();
        assert_eq!(turn(&world, 1, Some(0)), Turn::Go);
        let state = world.state.get();
        assert_eq!(turn(&world, 1, Some(0)), Turn::TooFar { wait_ns: 99 * MS });
        assert_eq!(turn(&world, 1, Some(90 * MS)), Turn::TooFar { wait_ns: 98 * MS });
        assert_eq!(world.state.get(), state);
        assert_eq!(turn(&world, 1, Some(97 * MS)), Turn::Go, "room at exactly the time-out counts");
    }

    #[test]
    fn a_dearer_turn_goes_first_and_is_paid_for_after() {
        let world = World::default();
        assert_eq!((turn(&world, 10, None), world.now.get()), (Turn::Go, MS));
        assert_eq!((turn(&world, 1, None), world.now.get()), (Turn::Go, 1001 * MS));
    }

    #[test]
    fn an_interrupted_wait_gives_its_turn_back() {
        let world = World::default();
        turn(&world, 1, None);
        let state = world.state.get();
        world.interrupt.set(Some(50 * MS));
        assert_eq!((turn(&world, 1, None), world.now.get()), (Turn::Interrupted, 50 * MS));
        assert_eq!(world.state.get(), state);
    }

    #[test]
    fn a_gate_stopped_in_its_wait_gives_its_turn_back_and_takes_another() {
        let world = World::default();
        turn(&world, 1, None);
        world.oversleep.set(50 * MS);
        // Nobody came after it, so the next turn is now.
        assert_eq!((turn(&world, 1, None), world.now.get()), (Turn::Go, 152 * MS));
        assert_eq!((turn(&world, 1, None), world.now.get()), (Turn::Go, 252 * MS));
        assert_eq!(world.calls.get(), 4);
    }

    #[test]
    fn an_outage_is_waited_for_but_not_beyond_the_time_out() {
        let world = World::default();
        world.failing.set(3);
        assert_eq!((turn(&world, 1, None), world.calls.get()), (Turn::Go, 4));
        assert!(world.sleeps.borrow().iter().all(|slept| (50 * MS..=400 * MS).contains(slept)));
        world.failing.set(100);
        let before = world.now.get();
        assert!(matches!(turn(&world, 1, Some(300 * MS)), Turn::TooFar { .. }));
        assert!(world.now.get() - before <= 300 * MS);
    }

    #[test]
    fn the_first_local_turn_is_at_once() {
        let world = World::default();
        world.failing.set(1);
        let own = Terms::new(&Rate::new(1, 1000 * MS, Unit::Items).unwrap(), 1).unwrap();
        let (mut client, mut told) = (gate(&world, 10, OnOutage::Local(own)), Vec::new());
        let turn = client.turn(b"", 1, None, &mut &world, &mut |notice| told.push(notice.clone()));
        assert_eq!((turn, world.now.get()), (Ok(Turn::Go), MS));
        assert_eq!(told, [Notice::Outage(StoreError::Outage("gone".into()))]);
        assert_eq!(client.ledger().ahead_ns(b"", world.now.get()), 1000 * MS);
    }

    #[test]
    fn another_rate_is_an_error() {
        let world = World::default();
        turn(&world, 1, None);
        let mut client = gate(&world, 5, OnOutage::Block);
        assert!(client.turn(b"", 1, None, &mut &world, &mut |_| {}).is_err_and(|error| !error.is_outage()));
        assert_eq!(Moment::whole(100_000), world.state.get().unwrap().tat);
    }
}
