//! The bucket: who gets in, who waits, who leaves and when. One pure value: no threads, no I/O, no clock of its own.
//!
//! Everything that happens in a bucket happens at an instant that follows from the arrivals, the pacer and the ends of
//! the writes. `advance` carries out in their order all such events up to an instant; it does not matter who calls it
//! or how often, so no decision depends on how far some thread happens to be.
//!
//! **Bucket time** is real time less all forgiven lateness. While what left last is not written, the hole is plugged,
//! and bucket time does not pass the instant at which that was due by more than the catch-up. When the write ends, the
//! lateness beyond the catch-up is forgiven: the whole schedule has moved, and there is nothing to make up. Late
//! wake-ups, blocked writes, a stopped process and a suspended machine are all the same here. The token bucket and the
//! windows make lateness up by themselves and keep real time; so does a bucket without a rate, unless it replays.
//!
//! **Events at one instant** come in this order: what has waited too long expires, what is due leaves, what has
//! arrived is offered. An item is *waiting* until it leaves, *leaving* until it is written. What has arrived and is not
//! decided on stands at the *mouth*.

mod sharing;

use crate::pacer::{self, Departure, Pacer, Rest, State, Ticks};
use crate::rate::Unit;
use crate::run::{Layout, Run, Slice, Weight};
use crate::shared::ledger::Settings;
use hashbrown::HashTable;
use sharing::Sharing;
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::{Deref, DerefMut};

/// What becomes of an arrival that finds the bucket full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// It waits at the mouth, and so does everything behind it.
    Block,
    /// It is dropped.
    DropNewest,
    /// The oldest that waits is dropped for it.
    DropOldest,
    /// The run stops.
    Fail,
}

/// What a bucket is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Says when items may leave.
    pub pacer: Pacer,
    /// Lateness up to this is made up, in nanoseconds. Of no meaning where the pacer keeps real time.
    pub catch_up: u64,
    /// The highest level, at least 1.
    pub capacity: u64,
    /// What the capacity counts; never bits.
    pub capacity_unit: Unit,
    /// What happens above it.
    pub overflow: Overflow,
    /// How long an arrival waits for room first, in nanoseconds.
    pub timeout: Option<u64>,
    /// How long an item may wait after its arrival, in nanoseconds.
    pub max_age: Option<u64>,
    /// Bytes held at most.
    pub max_held: u64,
    /// How items lie in their blocks.
    pub layout: Layout,
    /// The most keys, where every key has a bucket.
    pub max_keys: Option<usize>,
    /// Whether the accounts count bytes instead of items.
    pub count_bytes: bool,
    /// Whether items arrive at recorded times.
    pub replays: bool,
    /// Whether to remember what became of each item, for `take_outcomes`.
    pub trace: bool,
    /// Where the rate is shared: how slots are reserved.
    pub shared: Option<Settings>,
}

/// Which part of an item a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Whole items.
    Whole,
    /// The beginning of one item that is too long to be held in one piece.
    First,
    /// More of it.
    Middle,
    /// The end of it.
    Last,
}

/// What a reader brings.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The items.
    pub run: Run,
    /// What part of an item they are.
    pub part: Part,
    /// Their key.
    pub key: Option<Box<[u8]>>,
    /// For a replay: when they arrive, in bucket time.
    pub recorded: Option<u64>,
}

/// What became of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They left, the first at this tick, each further one so many ticks later.
    Emitted(Ticks, Ticks),
    /// The bucket was full.
    Dropped,
    /// They had waited too long.
    Expired,
}

/// What became of the `count` items from `number` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The first, from 1.
    pub number: u64,
    /// How many.
    pub count: u64,
    /// What became of them.
    pub fate: Fate,
}

/// The accounts. read = emitted + dropped + expired + held, at every instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Items read (bytes, where bytes are counted).
    pub read: u64,
    /// Wholly written.
    pub emitted: u64,
    /// Dropped.
    pub dropped: u64,
    /// Expired.
    pub expired: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_emitted: u64,
    /// Cost of what is wholly written.
    pub cost_emitted: u64,
    /// Lateness forgiven, in nanoseconds.
    pub forgiven: u64,
    /// The highest level so far, in thousandths.
    pub level_max: u64,
    /// The level when last looked at, in thousandths; with keys it would say little about all of them.
    pub level: u64,
    /// What of that waits; the rest is unpaid.
    pub level_waiting: u64,
    /// When it was looked at.
    pub level_at: u64,
    /// When all will be paid for.
    pub level_until: u64,
    /// Keys that have a bucket.
    pub keys: u64,
    /// Bytes read and not written, dropped or expired.
    pub bytes_held: u64,
    /// When something was last written.
    pub emitted_at: u64,
    /// Items whose recorded time lay before that of an earlier one.
    pub late_stamps: u64,
    /// How long stdout has taken nothing, as far as that is over. The bucket leaves it to those who wait for stdout.
    pub blocked_ns: u64,
    /// Since when stdout takes nothing; 0 while it does.
    pub blocked_since: u64,
}

impl Accounts {
    /// Read and not yet written, dropped or expired.
    pub fn held(&self) -> u64 {
        self.read.wrapping_sub(self.emitted).wrapping_sub(self.dropped).wrapping_sub(self.expired)
    }

    /// The level at `now`, in thousandths: what is unpaid gets less while nobody looks.
    pub fn level_at(&self, now: u64) -> u64 {
        let unpaid = u128::from(self.level.saturating_sub(self.level_waiting));
        let left = u128::from(self.level_until.saturating_sub(now.max(self.level_at)));
        let whole = u128::from(self.level_until.saturating_sub(self.level_at)).max(1);
        self.level_waiting.min(self.level) + (unpaid * left / whole) as u64
    }

    /// How long stdout has taken nothing until `now`, in nanoseconds.
    pub fn blocked(&self, now: u64) -> u64 {
        let lasting = if self.blocked_since == 0 { 0 } else { now.saturating_sub(self.blocked_since) };
        self.blocked_ns + lasting
    }
}

/// What the bucket has to say once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The bytes held have reached their bound.
    MemoryFull,
    /// An arrival was dropped although the policy is drop-oldest, since nothing waits that could go instead.
    NothingToEvict,
    /// One full key stops the reader for all.
    KeyBlocks,
    /// Every place in the table of keys is taken.
    KeysFull,
}

#[derive(Clone, Debug)]
struct Waiting {
    run: Run,
    part: Part,
    /// When it was admitted, in bucket time.
    admitted: Ticks,
}

#[derive(Clone, Debug)]
struct Leaving {
    run: Run,
    part: Part,
    lane: u32,
    due: Ticks,
    step: Ticks,
    /// Bytes of the run that are written; they do not reach the end of its first item.
    written: usize,
}

/// One bucket: all there is, or that of one key. There may be millions, most of them idle, so an idle one is small.
#[derive(Debug)]
struct Lane {
    state: State,
    line: Line,
    /// What the last item that left weighs, in units of the capacity.
    last: u64,
    /// With keys: when it is as good as new, in bucket time, if it is known to be idle; `BUSY` otherwise.
    fresh_at: u64,
    key: Box<[u8]>,
}

/// Those who wait in a lane; takes a pointer's room while there is nobody.
#[derive(Debug, Default)]
struct Line(Option<Box<Queue>>);

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Runs that are leaving.
    leaving: u32,
    /// What waits, in units of the capacity.
    units: u64,
    /// When the head may leave, in bucket time; `NEVER` without one.
    due: u64,
    /// With keys: number, arrival and due time of the head as they stand in the lists of the bucket.
    listed: Option<(u64, u64, u64)>,
    /// With a shared rate: what more has turned up of an item that has left, and is not reserved.
    owed: u64,
    /// It is to be asked for,
    asking: bool,
    /// or again when the store may be back.
    held: bool,
}

impl Queue {
    const fn new() -> Queue {
        Queue {
            waiting: VecDeque::new(),
            leaving: 0,
            units: 0,
            due: NEVER,
            listed: None,
            owed: 0,
            asking: false,
            held: false,
        }
    }
}

impl Deref for Line {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        static NOBODY: Queue = Queue::new();
        self.0.as_deref().unwrap_or(&NOBODY)
    }
}

impl DerefMut for Line {
    fn deref_mut(&mut self) -> &mut Queue {
        self.0.get_or_insert_with(|| Box::new(Queue::new()))
    }
}

/// What became of the item that is still being read.
#[derive(Clone, Copy, Debug)]
enum Open {
    Mouth,
    Waiting(u32),
    Leaving(u32, Ticks),
    Gone(Fate),
}

/// When there is room.
enum Room {
    /// For so many, since this instant: now, but for what that was rounded up.
    Now(u64, Ticks),
    /// Then (bucket time), if nothing happens before.
    At(u64),
    /// Not before something leaves or is written.
    Later,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Expire,
    Depart,
    Offer,
    Decide,
    Ask,
}

/// An item that nothing is known of.
const ONE: Weight = Weight { len: 1, cost: 1 };
const NEVER: u64 = u64::MAX;
/// Not idle.
const BUSY: u64 = u64::MAX - 1;
/// A reader that lags a hand-over behind must not cost slots, so it may run ahead of the level by this long.
const AHEAD_NS: u64 = 20_000_000;
/// What may be on its way to a stdout that takes it before the reader waits for the leaker.
const LEAVING_BYTES: u64 = 256 * 1024;
/// And in how many runs.
const LEAVING_RUNS: usize = 4096;

/// The bucket.
#[derive(Debug)]
pub struct Bucket {
    config: Config,
    lanes: Vec<Lane>,
    free: Vec<u32>,
    table: HashTable<u32>,
    hasher: RandomState,
    /// With keys: (due, number of the head, lane) of each lane in which something waits.
    departures: BTreeSet<(u64, u64, u32)>,
    /// With keys and a maximal age: (arrival, number of the head, lane) of the same lanes.
    oldest: BTreeSet<(u64, u64, u32)>,
    /// With keys: (fresh at, lane) of each lane in which nothing waits or leaves.
    idle: BTreeSet<(u64, u32)>,
    mouth: VecDeque<Arrival>,
    /// When the front of the mouth was offered, in real time.
    offered: Option<u64>,
    /// The last decision at the mouth, exactly, in bucket time: not before it is the next one offered.
    decided: Ticks,
    /// When something last left or was taken away, exactly, in bucket time: room that came by that was not there before.
    changed: Ticks,
    leaving: VecDeque<Leaving>,
    open: Option<Open>,
    /// Stdout takes nothing at the moment.
    blocked: bool,
    /// All events up to this instant have happened.
    at: u64,
    /// The latest instant that anybody has told of: what happens at `at` may be late.
    now: u64,
    /// Where slots come from if the rate is shared.
    sharing: Option<Box<Sharing>>,
    overflowed: bool,
    waiting_items: u64,
    waiting_bytes: u64,
    leaving_bytes: u64,
    mouth_bytes: u64,
    accounts: Accounts,
    cast_off: Vec<Slice>,
    keep_cast_off: bool,
    outcomes: Vec<Outcome>,
    notices: Vec<Notice>,
    noticed: HashSet<Notice>,
    /// What is leaving is being written just now.
    writing: bool,
    /// Of what is leaving only the next item is being written, and may be in the pipe already.
    in_step: bool,
    /// A lane that nobody has used.
    blank: Lane,
    lost: Vec<(Box<[u8]>, u64)>,
}

impl Bucket {
    /// An empty bucket. `keep_cast_off` keeps the bytes of dropped and expired items for `take_cast_off`.
    pub fn new(config: Config, keep_cast_off: bool) -> Bucket {
        let mut bucket = Bucket {
            lanes: Vec::new(),
            free: Vec::new(),
            table: HashTable::new(),
            hasher: RandomState::new(),
            departures: BTreeSet::new(),
            oldest: BTreeSet::new(),
            idle: BTreeSet::new(),
            mouth: VecDeque::new(),
            offered: None,
            decided: 0,
            changed: 0,
            leaving: VecDeque::new(),
            open: None,
            blocked: false,
            at: 0,
            now: 0,
            sharing: config.shared.map(|settings| Box::new(Sharing::new(settings))),
            overflowed: false,
            waiting_items: 0,
            waiting_bytes: 0,
            leaving_bytes: 0,
            mouth_bytes: 0,
            accounts: Accounts::default(),
            cast_off: Vec::new(),
            keep_cast_off,
            outcomes: Vec::new(),
            notices: Vec::new(),
            noticed: HashSet::new(),
            writing: false,
            in_step: false,
            blank: Lane::new(&config.pacer, Box::default()),
            lost: Vec::new(),
            config,
        };
        if !bucket.keyed() {
            bucket.new_lane(Box::default());
        }
        bucket
    }

    /// The accounts.
    pub fn accounts(&self) -> Accounts {
        self.accounts
    }

    /// Brings what the accounts say about the present up to date.
    pub fn look(&mut self) {
        self.accounts.bytes_held = self.held_bytes();
        self.accounts.keys = self.table.len() as u64;
        if !self.keyed() {
            self.note_level(0);
        }
    }

    /// Whether `Overflow::Fail` has come about.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.leaving.is_empty() && self.mouth.is_empty() && self.waiting_bytes == 0 && self.open.is_none()
    }

    /// Whether something stands at the mouth.
    pub fn is_choosing(&self) -> bool {
        !self.mouth.is_empty()
    }

    /// Whether something has left, and stdout would take it.
    pub fn wants_writing(&self) -> bool {
        !self.leaving.is_empty() && !self.blocked
    }

    /// Whether something waits for its slot; in a pause there is none.
    pub fn waits(&self) -> bool {
        self.waiting_items > 0 && !self.config.pacer.is_paused()
    }

    /// Bytes held.
    pub fn held_bytes(&self) -> u64 {
        self.waiting_bytes + self.leaving_bytes + self.mouth_bytes
    }

    /// Hands over the bytes of what was dropped or has expired since the last call.
    pub fn take_cast_off(&mut self, into: &mut Vec<Slice>) {
        into.append(&mut self.cast_off);
    }

    /// Hands over what became of items since the last call, if the configuration asks for it.
    pub fn take_outcomes(&mut self, into: &mut Vec<Outcome>) {
        into.append(&mut self.outcomes);
    }

    /// What there is to say for the first time.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// The keys that lost most, with how many items; approximate above a thousand keys.
    pub fn lost_most(&self) -> Vec<(&[u8], u64)> {
        let mut lost: Vec<(&[u8], u64)> = self.lost.iter().map(|(key, count)| (&key[..], *count)).collect();
        lost.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        lost
    }

    // ---- A change of rate ----

    /// Another rate takes over at `now` (real time): the pacer of `config` and what hangs on it. It counts from the
    /// next item on, so whoever waits is given a new slot.
    pub fn change_rate(&mut self, now: u64, config: &Config) {
        self.advance(now);
        let old = std::mem::replace(&mut self.config.pacer, config.pacer.clone());
        // Bucket time by the old pacer, and the new one must not turn it back.
        let at = now.saturating_sub(self.accounts.forgiven).min(match self.leaving.front() {
            Some(front) if !keeps_real_time(&old, self.config.replays) => {
                old.ceil_ns(front.due).saturating_add(self.config.catch_up)
            }
            _ => NEVER,
        });
        self.config.catch_up = config.catch_up;
        self.config.capacity = config.capacity;
        let pacer = &self.config.pacer;
        let ticks = pacer.ticks(at);
        let floor = pacer.ticks(at.saturating_sub(config.catch_up));
        for leaving in &mut self.leaving {
            leaving.due = pacer.rescale(leaving.due, &old).max(floor);
            leaving.step = pacer.rescale(leaving.step, &old);
        }
        if let Some(Open::Leaving(_, due)) = &mut self.open {
            *due = pacer.rescale(*due, &old).max(floor);
        }
        self.decided = pacer.rescale(self.decided, &old);
        // What room there is now was not there before.
        self.changed = ticks;
        self.blank = Lane::new(pacer, Box::default());
        let ids: Vec<u32> = if self.keyed() { self.table.iter().copied().collect() } else { vec![0] };
        for id in ids {
            let lane = &mut self.lanes[id as usize];
            lane.state = self.config.pacer.take_over(&old, &lane.state, at);
            for waiting in &mut lane.line.waiting {
                waiting.admitted = ticks;
            }
            if lane.fresh_at != BUSY {
                self.idle.remove(&(lane.fresh_at, id));
                lane.fresh_at = BUSY;
            }
            self.refresh(id);
        }
        if self.config.count_bytes {
            self.config.layout = config.layout.clone();
            for waiting in std::mem::take(&mut self.lanes[0].line.waiting) {
                self.waiting_items -= waiting.run.count;
                for run in self.recut(waiting.run) {
                    self.waiting_items += run.count;
                    self.lanes[0].line.waiting.push_back(Waiting { run, ..waiting });
                }
            }
            for arrival in std::mem::take(&mut self.mouth) {
                let pieces = self.recut(arrival.run);
                self.mouth.extend(pieces.into_iter().map(|run| Arrival { run, key: None, ..arrival }));
            }
            self.refresh(0);
        }
        self.advance(now);
    }

    /// The chunks of `run` cut again to the size they have now, after a change of rate.
    fn recut(&self, mut run: Run) -> SmallVec<[Run; 2]> {
        let Layout::Fixed(size) = self.config.layout else { return SmallVec::from_iter([run]) };
        let (len, size) = (run.slice.len() as u64, size as u64);
        if run.weight.len == size || len <= size.min(run.weight.len) {
            return SmallVec::from_iter([run]);
        }
        let whole = len / size;
        let head = run.slice.split_to((whole * size) as usize);
        let weight = Weight { len: size, ..run.weight };
        let head = Run { slice: head, count: whole, weight, ..run.clone() };
        let tail = Run { count: 1, weight: Weight { len: len - whole * size, ..run.weight }, ..run };
        [head, tail].into_iter().filter(|run| !run.slice.is_empty()).collect()
    }

    // ---- Time ----

    /// Bucket time at the instant `now`.
    pub fn bucket_time(&self, now: u64) -> u64 {
        now.saturating_sub(self.accounts.forgiven).min(self.plug())
    }

    /// What bucket time cannot pass until a write ends.
    fn plug(&self) -> u64 {
        let due = match (self.leaving.front(), self.open) {
            (Some(front), _) => front.due,
            (None, Some(Open::Leaving(_, due))) => due,
            _ => return NEVER,
        };
        self.plug_of(due)
    }

    fn plug_of(&self, due: Ticks) -> u64 {
        // What has left at a shared rate and is late cannot be made up for by any pacer.
        if keeps_real_time(&self.config.pacer, self.config.replays) && self.sharing.is_none() {
            return NEVER;
        }
        self.config.pacer.ceil_ns(due).saturating_add(self.config.catch_up)
    }

    /// The real time of an instant in bucket time, not before the present; `None` until a write ends.
    fn real(&self, instant: u64) -> Option<u64> {
        let reached = instant != NEVER && instant <= self.plug();
        reached.then(|| instant.saturating_add(self.accounts.forgiven).max(self.at))
    }

    /// When the next event comes, in real time; `None` if it takes an arrival or the end of a write.
    pub fn next_event(&self) -> Option<u64> {
        self.next().map(|(at, _)| at)
    }

    fn next(&self) -> Option<(u64, Event)> {
        let depart = self.next_departure().map(|at| (at, Event::Depart));
        // The usual case first: nothing can expire and nobody stands at the mouth.
        if self.config.max_age.is_none() && self.mouth.is_empty() && self.sharing.is_none() {
            return depart;
        }
        let expire = self.next_expiry().map(|at| (at, Event::Expire));
        [expire, depart, self.next_at_mouth(), self.next_ask()].into_iter().flatten().min()
    }

    /// Nothing is reserved while stdout takes nothing: it would be late, and others may need it.
    fn next_ask(&self) -> Option<(u64, Event)> {
        let sharing = self.sharing.as_ref().filter(|_| !self.blocked)?;
        sharing.next_ask().map(|at| (at.max(self.at), Event::Ask))
    }

    fn next_departure(&self) -> Option<u64> {
        let streams = matches!(self.open, Some(Open::Leaving(..)));
        if streams || (self.blocked && self.config.pacer.is_unlimited()) {
            return None;
        }
        self.real(if self.keyed() { self.departures.first()?.0 } else { self.lanes[0].line.due })
    }

    fn next_expiry(&self) -> Option<u64> {
        let age = self.config.max_age?;
        let waiting = if self.keyed() {
            self.oldest.first().map(|(arrival, ..)| *arrival)
        } else {
            self.lanes[0].line.waiting.front().map(|head| head.run.arrival)
        };
        let mouth = self.mouth.front().filter(|_| self.offered.is_some()).map(|front| front.run.arrival);
        let leaving = self.not_begun().map(|index| self.leaving[index].run.arrival);
        let oldest = [leaving, waiting, mouth].into_iter().flatten().min()?;
        // What has waited for just its age is still emitted.
        Some(oldest.saturating_add(age).saturating_add(1).max(self.at))
    }

    fn next_at_mouth(&self) -> Option<(u64, Event)> {
        let front = self.mouth.front()?;
        let Some(offered) = self.offered else {
            return Some((self.real(front.recorded.unwrap_or(0))?, Event::Offer));
        };
        let now = (self.at, Event::Decide);
        if self.overflowed {
            return None;
        }
        let room = match self.room(front, self.bucket_time(self.at)) {
            Room::Now(..) => return Some(now),
            Room::At(instant) => self.real(instant).map(|at| (at, Event::Decide)),
            Room::Later => None,
        };
        match (self.config.overflow, self.config.timeout) {
            (Overflow::Block, _) => room,
            (_, None) => Some(now),
            (_, Some(timeout)) => {
                let expiry = (offered.saturating_add(timeout).max(self.at), Event::Decide);
                Some(room.map_or(expiry, |room| room.min(expiry)))
            }
        }
    }

    /// Lets everything happen that happens up to `now` (real time).
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some((at, event)) = self.next().filter(|(at, _)| *at <= now) {
            self.at = at;
            match event {
                Event::Expire => self.expire(),
                Event::Depart => self.depart(now),
                Event::Offer => self.offer(),
                Event::Decide => self.decide(),
                Event::Ask => self.ask(),
            }
        }
        self.at = self.at.max(now);
    }

    // ---- Arrivals ----

    /// Items arrive at `now` (real time).
    pub fn arrive(&mut self, now: u64, arrival: Arrival) {
        if !self.config.count_bytes {
            return self.arrive_as_cut(now, arrival);
        }
        for run in self.recut(arrival.run) {
            self.arrive_as_cut(now, Arrival { run, key: arrival.key.clone(), ..arrival });
        }
    }

    fn arrive_as_cut(&mut self, now: u64, arrival: Arrival) {
        self.advance(now);
        let len = arrival.run.slice.len() as u64;
        self.accounts.bytes_read += len;
        self.accounts.read += self.counts(&arrival.run, arrival.part);
        match (arrival.part, self.open) {
            (Part::Middle | Part::Last, Some(open)) => self.more(open, arrival),
            _ => {
                if arrival.part == Part::First {
                    self.open = Some(Open::Mouth);
                }
                if self.holds_nothing_back() {
                    let admitted = self.config.pacer.ticks(self.bucket_time(now));
                    self.admit(0, arrival, admitted);
                } else {
                    self.mouth_bytes += len;
                    self.mouth.push_back(arrival);
                    self.front_of_mouth();
                }
            }
        }
        self.advance(now);
        if !self.keyed() {
            self.note_level(0);
        }
    }

    /// Where nobody else can be delayed by it, when block lets an item in changes nothing that can be seen: it leaves
    /// when its turn comes. So there nothing stands at the mouth, and `may_read` alone keeps the reader back.
    fn holds_nothing_back(&self) -> bool {
        self.config.overflow == Overflow::Block && !self.keyed() && !self.config.replays
    }

    /// How many bytes the reader may read now; 0: it has to wait. Never more than `most`.
    pub fn may_read(&self, most: usize) -> usize {
        let held = self.held_bytes();
        if self.overflowed || (held >= self.config.max_held && self.config.overflow == Overflow::Block) {
            return 0;
        }
        // A leaker that is writing gets time to; a stdout that takes nothing is waited for only where the policy says so.
        if !self.blocked && (self.leaving_bytes >= LEAVING_BYTES || self.leaving.len() >= LEAVING_RUNS) {
            return 0;
        }
        let room = match (self.open, self.config.overflow) {
            // While an item streams the reader waits for stdout under every policy.
            (Some(Open::Leaving(..)), _) => self.leaving_bytes < LEAVING_BYTES,
            (Some(Open::Gone(_)), _) => true,
            (Some(_), _) => true,
            (None, _) if self.holds_nothing_back() => return self.may_read_ahead(most),
            // A replay reads ahead of its own time, the others as soon as all is decided.
            (None, _) => self.mouth.is_empty() || (self.mouth_bytes < most as u64 && self.offered.is_none()),
        };
        if room { most } else { 0 }
    }

    fn may_read_ahead(&self, most: usize) -> usize {
        if self.config.pacer.is_unlimited() {
            return if self.held_bytes() < LEAVING_BYTES { most } else { 0 };
        }
        let lane = &self.lanes[0];
        let now = self.config.pacer.ticks(self.bucket_time(self.at));
        let level = self.level(lane, now) / 1000;
        if self.config.count_bytes {
            // Bytes can be cut anywhere, so no more is read than there is room for.
            let free = self.config.capacity.saturating_sub(self.held_bytes());
            let enough = (self.config.capacity / 4).clamp(1, most as u64);
            return if free >= enough { (free as usize).min(most) } else { 0 };
        }
        let free = self.config.capacity.saturating_sub(level);
        let ahead = self.config.pacer.rests(&lane.state, ONE).map(|rest| {
            let units = match rest.unit {
                Unit::Items => self.waiting_items,
                Unit::Bytes => self.waiting_bytes,
                Unit::Bits => self.waiting_bytes.saturating_mul(8),
                Unit::Cost => self.waiting_items,
            };
            rest.period.saturating_mul(u128::from(units))
        });
        let short = ahead.max().unwrap_or(0) < self.config.pacer.ticks(AHEAD_NS);
        if free > 0 || short { most } else { 0 }
    }

    /// More of the item that is being read.
    fn more(&mut self, open: Open, arrival: Arrival) {
        let len = arrival.run.slice.len() as u64;
        let full = self.held_bytes() + len > self.config.max_held && self.config.overflow != Overflow::Block;
        let last = arrival.part == Part::Last;
        match open {
            Open::Mouth => {
                self.mouth_bytes += len;
                self.mouth.push_back(arrival);
            }
            Open::Waiting(lane) => {
                let units = pacer::units(self.config.capacity_unit, arrival.run.weight);
                let charged = if self.config.capacity_unit == Unit::Items { 0 } else { units };
                self.waiting_bytes += len;
                let lane = &mut self.lanes[lane as usize];
                lane.line.units = lane.line.units.saturating_add(charged);
                lane.line.waiting.push_back(Waiting { run: arrival.run, part: arrival.part, admitted: 0 });
            }
            Open::Leaving(lane, due) => self.let_go(lane, arrival.run, arrival.part, due, 0),
            Open::Gone(fate) => self.account_gone(arrival.run, arrival.part, fate),
        }
        if full {
            self.give_up_open(open, last);
        }
        if last {
            self.open = None;
        }
    }

    /// An item that fills all memory before its turn comes is overflow.
    fn give_up_open(&mut self, open: Open, last: bool) {
        if matches!(open, Open::Leaving(..) | Open::Gone(_)) {
            return;
        }
        self.notice(Notice::MemoryFull);
        if self.config.overflow == Overflow::Fail {
            self.overflowed = true;
            return;
        }
        if let Open::Waiting(id) = open {
            let lane = &mut self.lanes[id as usize];
            let first = lane.line.waiting.iter().rposition(|waiting| waiting.part == Part::First).unwrap_or(0);
            for piece in lane.line.waiting.split_off(first) {
                self.account_left(id, &piece.run, piece.part);
                self.account_gone(piece.run, piece.part, Fate::Dropped);
            }
            self.refresh(id);
        } else if let Some(front) = self.take_front_of_mouth() {
            self.drop_arrival(front, Fate::Dropped);
        }
        self.open = (!last).then_some(Open::Gone(Fate::Dropped));
    }

    // ---- The mouth ----

    fn front_of_mouth(&mut self) {
        if self.offered.is_none() && self.mouth.front().is_some_and(|front| front.recorded.is_none()) {
            self.offered = Some(self.at);
        }
    }

    /// The recorded time of the front of the mouth has come.
    fn offer(&mut self) {
        let at = self.at;
        self.offered = Some(at);
        if let Some(front) = self.mouth.front_mut() {
            // It may have come while another one was still to be decided on.
            front.run.arrival = front.recorded.unwrap_or(at).saturating_add(self.accounts.forgiven).min(at);
        }
    }

    fn take_front_of_mouth(&mut self) -> Option<Arrival> {
        let front = self.mouth.pop_front()?;
        self.mouth_bytes -= front.run.slice.len() as u64;
        self.offered = None;
        Some(front)
    }

    /// The pieces at the mouth that belong to the item of which `part` was taken away.
    fn take_pieces(&mut self, part: Part) -> Vec<Arrival> {
        let belongs = |arrival: &&Arrival| matches!(arrival.part, Part::Middle | Part::Last);
        let count = if part == Part::First { self.mouth.iter().take_while(belongs).count() } else { 0 };
        let pieces: Vec<Arrival> = self.mouth.drain(..count).collect();
        self.mouth_bytes -= pieces.iter().map(|piece| piece.run.slice.len() as u64).sum::<u64>();
        pieces
    }

    /// Cuts `count` items off the front of the mouth, or takes all of it.
    fn cut_front(&mut self, mut front: Arrival, count: u64) -> Arrival {
        if count >= front.run.count {
            return front;
        }
        let run = front.run.split_to(count, &self.config.layout);
        let head = Arrival { run, part: front.part, key: front.key.clone(), recorded: front.recorded };
        self.mouth_bytes += front.run.slice.len() as u64;
        self.mouth.push_front(front);
        head
    }

    /// Decides on the front of the mouth, which has been offered.
    fn decide(&mut self) {
        let now = self.bucket_time(self.at);
        let Some(front) = self.mouth.front() else { return };
        let room = self.room(front, now);
        let (offered, waits) = (self.offered, self.config.timeout.is_some());
        // Recorded and real arrivals are whole nanoseconds; only a decision may lie between two.
        let arrived =
            front.recorded.unwrap_or_else(|| front.run.arrival.saturating_sub(self.accounts.forgiven)).min(now);
        let offer = self.decided.max(self.config.pacer.ticks(arrived));
        if let (Room::Now(count, since), Some(lane)) = (room, self.lane_for(now)) {
            let Some(front) = self.take_front_of_mouth() else { return };
            let head = self.cut_front(front, count);
            let now = offer.max(since).max(self.changed);
            self.decided = now;
            let pieces = self.take_pieces(head.part);
            self.admit(lane, head, now);
            for piece in pieces {
                if let Some(open) = self.open {
                    self.more(open, piece);
                }
            }
        } else {
            match self.config.overflow {
                Overflow::Block => return,
                Overflow::Fail => {
                    self.overflowed = true;
                    return;
                }
                Overflow::DropOldest => {
                    if self.evict(now) {
                        self.offered = offered;
                        return;
                    }
                    self.notice(Notice::NothingToEvict);
                }
                Overflow::DropNewest => {}
            }
            let Some(front) = self.take_front_of_mouth() else {
                return;
            };
            self.decided = self.config.pacer.ticks(now);
            // Where there is no room for one of a run there is none for the next; but each waits for it in its turn.
            let head = self.cut_front(front, if waits { 1 } else { u64::MAX });
            self.drop_arrival(head, Fate::Dropped);
        }
        self.front_of_mouth();
    }

    fn drop_arrival(&mut self, head: Arrival, fate: Fate) {
        let pieces = self.take_pieces(head.part);
        if head.part == Part::First && pieces.last().is_none_or(|piece| piece.part != Part::Last) {
            self.open = Some(Open::Gone(fate));
        }
        if let Some(key) = &head.key {
            lose(&mut self.lost, key, head.run.count);
        }
        self.account_gone(head.run, head.part, fate);
        for piece in pieces {
            self.account_gone(piece.run, piece.part, fate);
        }
    }

    /// Evicts the oldest that waits for the front of the mouth. False if that would not help.
    fn evict(&mut self, now: u64) -> bool {
        let Some(front) = self.mouth.front() else { return false };
        let Some(id) = self.find_lane(&front.key) else {
            return false;
        };
        let lane = &self.lanes[id as usize];
        let waiting: u64 = lane.line.waiting.iter().map(|waiting| waiting.run.count).sum();
        let memory = self.waiting_bytes + self.leaving_bytes + front.run.weight.len > self.config.max_held;
        if waiting == 0 || !(memory || matches!(self.room_in(lane, 0, front.run.weight, now), Room::Now(..))) {
            return false;
        }
        // A run holds more than one item only where all are alike. Then each that arrives costs one that waits, and
        // those of the run that would be evicted by later ones need not get in first.
        let needed = if memory { 1 } else { front.run.count };
        if needed > waiting
            && let Some(front) = self.take_front_of_mouth()
        {
            let passing = self.cut_front(front, needed - waiting);
            self.drop_arrival(passing, Fate::Dropped);
        }
        self.remove_oldest(id, needed, Fate::Dropped);
        true
    }

    /// Takes the `count` oldest items of a lane away.
    fn remove_oldest(&mut self, id: u32, mut count: u64, fate: Fate) {
        while count > 0
            && let Some(mut head) = self.lanes[id as usize].line.waiting.pop_front()
        {
            if head.run.count > count {
                let run = head.run.split_to(count, &self.config.layout);
                let rest = std::mem::replace(&mut head.run, run);
                self.lanes[id as usize].line.waiting.push_front(Waiting { run: rest, ..head.clone() });
            }
            count -= head.run.count;
            let streams = head.part == Part::First;
            if self.keyed() {
                lose(&mut self.lost, &self.lanes[id as usize].key, head.run.count);
            }
            self.account_left(id, &head.run, head.part);
            self.account_gone(head.run, head.part, fate);
            if streams {
                self.remove_pieces(id, fate);
            }
        }
        // Whoever comes to the head by that may be due already, but could not leave before.
        let now = self.config.pacer.ticks(self.bucket_time(self.at));
        self.changed = now;
        if let Some(head) = self.lanes[id as usize].line.waiting.front_mut() {
            head.admitted = head.admitted.max(now);
        }
        self.refresh(id);
    }

    /// Takes the further pieces at the head of a lane away.
    fn remove_pieces(&mut self, id: u32, fate: Fate) {
        while let Some(piece) = self.pop_piece(id) {
            let last = piece.part == Part::Last;
            self.account_left(id, &piece.run, piece.part);
            self.account_gone(piece.run, piece.part, fate);
            if last {
                return;
            }
        }
        self.open = Some(Open::Gone(fate));
    }

    fn pop_piece(&mut self, id: u32) -> Option<Waiting> {
        let lane = &mut self.lanes[id as usize];
        let piece = lane.line.waiting.front().is_some_and(|head| matches!(head.part, Part::Middle | Part::Last));
        if piece { lane.line.waiting.pop_front() } else { None }
    }

    // ---- Admission ----

    /// Whether there is room for the front of the mouth at `now` (bucket time), and if not, when.
    fn room(&self, front: &Arrival, now: u64) -> Room {
        let run = &front.run;
        let mut rested = 0;
        let lane = match self.find_lane(&front.key) {
            Some(id) => &self.lanes[id as usize],
            None if self.table.len() < self.config.max_keys.unwrap_or(usize::MAX) => &self.blank,
            None => match self.idle.first() {
                Some((at, id)) if *at <= now => {
                    rested = self.config.pacer.fresh_at(&self.lanes[*id as usize].state).unwrap_or(0);
                    &self.blank
                }
                Some((at, _)) => return Room::At(*at),
                None => return Room::Later,
            },
        };
        let free = self.config.max_held.saturating_sub(self.waiting_bytes + self.leaving_bytes);
        let held = run.slice.len() as u64;
        match self.room_in(lane, lane.line.units, run.weight, now) {
            // Something always gets in, be it ever so large.
            Room::Now(count, _) if held > free && (count > 1 || self.waiting_bytes + self.leaving_bytes > 0) => {
                let bytes = &run.slice.bytes()[..free.min(held) as usize];
                match self.config.layout.count(bytes).0.min(count) {
                    0 => Room::Later,
                    fitting => Room::Now(fitting, self.config.pacer.ticks(now)),
                }
            }
            Room::Now(count, since) => Room::Now(count, since.max(rested)),
            room => room,
        }
    }

    /// Room in a lane in which `waiting` units wait.
    fn room_in(&self, lane: &Lane, waiting: u64, weight: Weight, now: u64) -> Room {
        let pacer = &self.config.pacer;
        let units = pacer::units(self.config.capacity_unit, weight);
        if pacer.in_windows() {
            return self.room_beside_window(lane, waiting, units, weight, now);
        }
        let capacity = self.config.capacity;
        if pacer.is_unlimited() {
            let free = capacity.saturating_sub(waiting);
            return match free.checked_div(units) {
                // What finds the hole open leaves at once and never waits.
                _ if waiting == 0 && !self.blocked => Room::Now(u64::MAX, 0),
                None => Room::Now(u64::MAX, 0),
                Some(0) if waiting == 0 => Room::Now(1, 0),
                Some(0) => Room::Later,
                Some(count) => Room::Now(count, 0),
            };
        }
        let ticks = pacer.ticks(now);
        // The capacity in units of the rate, if both count the same, and how many of these are one of the capacity.
        let limit = |rest: &Rest| {
            let scale = per_unit(rest.unit, self.config.capacity_unit)?;
            Some((scale, u128::from(capacity) + u128::from((rest.burst - 1) / scale)))
        };
        let dear = pacer
            .rests(&lane.state, weight)
            .any(|rest| u128::from(units) > limit(&rest).map_or(u128::from(capacity), |limit| limit.1));
        // What leaves while it warms up has more to pay than what waits, so each is decided on by itself.
        let (mut count, mut since) = (if pacer.warms_up() { 1 } else { u64::MAX }, 0);
        for rest in pacer.rests(&lane.state, weight) {
            let own = match limit(&rest) {
                _ if dear && waiting > 0 => return Room::Later,
                // What is dearer than the capacity needs level 0, and enters alone.
                Some(_) if dear => (1, rest.paid),
                None if dear => (1, rest.slot),
                Some((scale, capacity)) => {
                    let unit = rest.period.saturating_mul(u128::from(scale));
                    let step = unit.saturating_mul(u128::from(units));
                    // Level and cost may come to the capacity: what left last may still have so much to pay.
                    let free = capacity.saturating_sub(u128::from(waiting)).saturating_mul(unit);
                    let Some(unpaid) = free.checked_sub(step) else { return Room::Later };
                    let since = rest.paid.saturating_sub(unpaid);
                    let further = (free.saturating_sub(rest.paid.saturating_sub(ticks))).checked_div(step);
                    (further.map_or(u64::MAX, |count| u64::try_from(count).unwrap_or(u64::MAX)), since)
                }
                None => {
                    // The last item counts whole until its slot ends.
                    let free = capacity.saturating_sub(waiting);
                    let ended = rest.slot <= ticks;
                    let beside = free.saturating_sub(if ended { 0 } else { lane.last });
                    match (beside.checked_div(units), free.checked_div(units)) {
                        (Some(0), Some(0)) => return Room::Later,
                        (Some(0), _) => (1, rest.slot),
                        (count, _) => (count.unwrap_or(u64::MAX), if ended { rest.slot.min(ticks) } else { 0 }),
                    }
                }
            };
            count = count.min(own.0);
            since = since.max(own.1);
        }
        let at = pacer.ceil_ns(since);
        if at <= now { Room::Now(count.max(1), since) } else { Room::At(at) }
    }

    /// Under a window, what may leave at once gets in, and capacity - 1 may wait.
    fn room_beside_window(&self, lane: &Lane, waiting: u64, units: u64, weight: Weight, now: u64) -> Room {
        let ticks = self.config.pacer.ticks(now);
        let free = (self.config.capacity - 1).saturating_sub(waiting);
        let may_wait = free.checked_div(units).unwrap_or(u64::MAX);
        let due = if lane.line.waiting.is_empty() { self.config.pacer.due(&lane.state, ticks, weight) } else { None };
        match due.map(|due| self.config.pacer.ceil_ns(due)) {
            // Windows begin and end at whole nanoseconds.
            Some(due) if due <= now => Room::Now(1, ticks),
            _ if may_wait > 0 => Room::Now(may_wait, ticks),
            Some(due) => Room::At(due),
            None => Room::Later,
        }
    }

    /// Admits items at `at` (bucket time).
    fn admit(&mut self, id: u32, arrival: Arrival, at: Ticks) {
        let run = arrival.run;
        let units = pacer::units(self.config.capacity_unit, run.weight);
        if arrival.part == Part::First {
            self.open = Some(Open::Waiting(id));
        }
        self.waiting_items += run.count;
        self.waiting_bytes += run.slice.len() as u64;
        let lane = &mut self.lanes[id as usize];
        lane.line.units = lane.line.units.saturating_add(units.saturating_mul(run.count));
        if lane.fresh_at != BUSY {
            self.idle.remove(&(lane.fresh_at, id));
            lane.fresh_at = BUSY;
        }
        let alone = lane.line.waiting.is_empty();
        lane.line.waiting.push_back(Waiting { run, part: arrival.part, admitted: at });
        if alone {
            self.refresh(id);
        } else {
            self.will_ask(id);
        }
        if self.keyed() {
            self.note_level(id);
        }
    }

    // ---- Lanes ----

    fn keyed(&self) -> bool {
        self.config.max_keys.is_some()
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    fn find_lane(&self, key: &Option<Box<[u8]>>) -> Option<u32> {
        let Some(key) = key else {
            return (!self.keyed()).then_some(0);
        };
        self.table.find(self.hash(key), |id| self.lanes[*id as usize].key == *key).copied()
    }

    /// The lane for the front of the mouth, made for it if need be; `None` if the table of keys is full.
    fn lane_for(&mut self, now: u64) -> Option<u32> {
        let key = &self.mouth.front()?.key;
        if let Some(id) = self.find_lane(key) {
            return Some(id);
        }
        let key = key.clone()?;
        // A key that is as good as new needs no state: it is forgotten, and nothing is granted by that.
        while let Some(&(fresh_at, id)) = self.idle.first()
            && fresh_at <= now
        {
            self.idle.pop_first();
            if let Some(sharing) = &mut self.sharing {
                sharing.forget(&self.lanes[id as usize].key);
            }
            let hash = self.hash(&self.lanes[id as usize].key);
            if let Ok(entry) = self.table.find_entry(hash, |other| *other == id) {
                entry.remove();
            }
            self.free.push(id);
        }
        if self.table.len() >= self.config.max_keys? {
            self.notice(Notice::KeysFull);
            return None;
        }
        let hash = self.hash(&key);
        let id = self.new_lane(key);
        let (lanes, hasher) = (&self.lanes, &self.hasher);
        self.table.insert_unique(hash, id, |id| hasher.hash_one(&lanes[*id as usize].key));
        Some(id)
    }

    fn new_lane(&mut self, key: Box<[u8]>) -> u32 {
        let lane = Lane::new(&self.config.pacer, key);
        match self.free.pop() {
            Some(id) => {
                self.lanes[id as usize] = lane;
                id
            }
            None => {
                // Doubling would leave half of a large table empty.
                if self.lanes.len() == self.lanes.capacity() {
                    self.lanes.reserve_exact(self.lanes.len() / 8 + 16);
                }
                self.lanes.push(lane);
                u32::try_from(self.lanes.len() - 1).unwrap_or(u32::MAX)
            }
        }
    }

    /// Works out anew when the head of a lane may leave, after the head or the pacer's state has changed.
    fn refresh(&mut self, id: u32) {
        self.place(id);
        self.will_ask(id);
    }

    /// From when on the head of a lane may leave; `None` if there is none, until a write ends, or until a slot is
    /// reserved.
    fn due(&mut self, id: u32) -> Option<Ticks> {
        let (pacer, lane) = (&self.config.pacer, &self.lanes[id as usize]);
        let head = lane.line.waiting.front()?;
        match &mut self.sharing {
            None => pacer.due(&lane.state, head.admitted, head.run.weight),
            Some(sharing) => Some(pacer.ticks(sharing.slot(lane, self.now)?).max(head.admitted)),
        }
    }

    fn place(&mut self, id: u32) {
        let keyed = self.keyed();
        let due = self.due(id);
        let pacer = &self.config.pacer;
        let lane = &mut self.lanes[id as usize];
        let due = due.map(|due| pacer.ceil_ns(due));
        let mut settled = true;
        if let Some(sharing) = &mut self.sharing {
            if lane.line.waiting.is_empty() && lane.line.owed == 0 {
                sharing.give_back(&lane.key);
            }
            pacer.set_paid(&mut lane.state, pacer.ticks(sharing.ledger.paid_ns(&lane.key)));
            settled = lane.line.owed == 0 && !sharing.ledger.has_asked(&lane.key);
        }
        let head = lane.line.waiting.front().map(|head| (head.run.number, head.run.arrival));
        if keyed {
            if let Some((number, arrival, due)) = lane.line.listed {
                lane.line.listed = None;
                self.departures.remove(&(due, number, id));
                self.oldest.remove(&(arrival, number, id));
            }
            if let Some((number, arrival)) = head {
                let due = due.unwrap_or(NEVER);
                lane.line.listed = Some((number, arrival, due));
                self.departures.insert((due, number, id));
                if self.config.max_age.is_some() {
                    self.oldest.insert((arrival, number, id));
                }
            } else if lane.line.leaving == 0 {
                if !(lane.line.owed > 0 || lane.line.asking || lane.line.held) {
                    lane.line = Line::default();
                }
                let fresh_at = pacer.fresh_at(&lane.state).filter(|_| settled);
                let fresh_at = fresh_at.map_or(NEVER, |fresh_at| pacer.ceil_ns(fresh_at));
                if lane.fresh_at != BUSY {
                    self.idle.remove(&(lane.fresh_at, id));
                }
                lane.fresh_at = fresh_at;
                self.idle.insert((fresh_at, id));
                return;
            }
        }
        lane.line.due = due.unwrap_or(NEVER);
    }

    // ---- Departure ----

    /// Lets the next item leave, and with it those behind it that are due by `now` (real time), if nothing else
    /// happens before.
    fn depart(&mut self, now: u64) {
        let id = if self.keyed() { self.departures.first().map_or(0, |first| first.2) } else { 0 };
        let due = self.due(id);
        let reached = self.bucket_time(self.at);
        if self.sharing.is_some() && due.is_none_or(|due| self.config.pacer.ceil_ns(due) > reached) {
            // What was reserved is void by now.
            return self.refresh(id);
        }
        let due = due.unwrap_or_default();
        let pacer = &self.config.pacer;
        let lane = &mut self.lanes[id as usize];
        let Some(mut head) = lane.line.waiting.pop_front() else {
            return;
        };
        let until = if self.config.max_keys.is_some() || !self.mouth.is_empty() {
            due
        } else {
            let oldest = self.config.max_age.map_or(NEVER, |age| head.run.arrival.saturating_add(age).max(self.at));
            let real = now.min(oldest).saturating_sub(self.accounts.forgiven);
            let plug = self.leaving.front().map_or(due, |front| front.due);
            let plug = match keeps_real_time(pacer, self.config.replays) && self.sharing.is_none() {
                true => NEVER,
                false => pacer.ceil_ns(plug).saturating_add(self.config.catch_up),
            };
            pacer.ticks(real.min(plug))
        };
        let departure = match &mut self.sharing {
            None => pacer.leave(&mut lane.state, due, head.run.weight, head.run.count, until),
            Some(sharing) => {
                let units = pacer::units(sharing.unit, head.run.weight);
                // What waited for nothing but its slot leaves slot by slot, what comes after it all at once.
                let on_time = pacer.ticks(sharing.ledger.slot(&lane.key, units, self.now).unwrap_or(0)) == due;
                let (until, step) = if on_time { (until, pacer.step(head.run.weight)) } else { (due, 0) };
                let count = sharing.ledger.ready(&lane.key, units, pacer.floor_ns(until)).min(head.run.count);
                sharing.ledger.take(&lane.key, units.saturating_mul(count));
                Departure { count, due, step }
            }
        };
        lane.last = pacer::units(self.config.capacity_unit, head.run.weight);
        if departure.count < head.run.count {
            let run = head.run.split_to(departure.count, &self.config.layout);
            let rest = std::mem::replace(&mut head.run, run);
            lane.line.waiting.push_front(Waiting { run: rest, ..head.clone() });
        }
        if self.config.trace {
            let fate = Fate::Emitted(due, departure.step);
            self.outcomes.push(Outcome { number: head.run.number, count: departure.count, fate });
        }
        let last = due.saturating_add(departure.step.saturating_mul(u128::from(departure.count - 1)));
        self.changed = last;
        if let Some(next) = lane.line.waiting.front_mut() {
            // First in, first out, also where the next one is cheaper.
            next.admitted = next.admitted.max(last);
        }
        self.account_left(id, &head.run, head.part);
        let streams = head.part == Part::First;
        self.let_go(id, head.run, head.part, due, departure.step);
        if streams {
            self.open_leaving(id, due);
        }
        self.refresh(id);
    }

    /// The first part of an item has left: what has been read of it follows, and what comes later, too.
    fn open_leaving(&mut self, id: u32, due: Ticks) {
        while let Some(piece) = self.pop_piece(id) {
            let last = piece.part == Part::Last;
            self.account_left(id, &piece.run, piece.part);
            self.let_go(id, piece.run, piece.part, due, 0);
            if last {
                return;
            }
        }
        self.open = Some(Open::Leaving(id, due));
    }

    fn let_go(&mut self, id: u32, run: Run, part: Part, due: Ticks, step: Ticks) {
        let lane = &mut self.lanes[id as usize];
        if matches!(part, Part::Middle | Part::Last) {
            match &self.sharing {
                None => self.config.pacer.charge(&mut lane.state, run.weight),
                Some(sharing) if sharing.unit == Unit::Items => {}
                Some(sharing) => lane.line.owed = lane.line.owed.saturating_add(pacer::units(sharing.unit, run.weight)),
            }
        }
        lane.line.leaving += 1;
        self.leaving_bytes += run.slice.len() as u64;
        self.leaving.push_back(Leaving { run, part, lane: id, due, step, written: 0 });
        self.will_ask(id);
    }

    /// Appends to `slices` what has left and is not written, oldest first, up to `most` slices. While they are being
    /// written nothing of it expires.
    pub fn leaving(&mut self, slices: &mut Vec<Slice>, most: usize) {
        let rest = |leaving: &Leaving| leaving.run.slice.range(leaving.written, leaving.run.slice.len());
        slices.extend(self.leaving.iter().take(most).map(rest));
        self.writing = !slices.is_empty();
    }

    /// Appends to `slices` only the next item that has left and is not written.
    pub fn leaving_item(&mut self, slices: &mut Vec<Slice>) {
        if let Some(front) = self.leaving.front() {
            let end = match front.part {
                Part::Whole => self.config.layout.nth_end(front.run.slice.bytes(), 1),
                _ => front.run.slice.len(),
            };
            slices.push(front.run.slice.range(front.written, end));
            self.in_step = true;
        }
        self.writing = !slices.is_empty();
    }

    /// `bytes` of what had left are written, at `at` (real time). For each stretch of items whose write has ended,
    /// `late` is told how many they are, how late the first was written, and by how much less each further one was.
    pub fn wrote(&mut self, mut bytes: usize, at: u64, mut late: impl FnMut(u64, u64, u64)) {
        self.writing = false;
        self.in_step &= bytes == 0;
        self.accounts.bytes_emitted += bytes as u64;
        self.leaving_bytes -= bytes as u64;
        if bytes > 0 {
            self.accounts.emitted_at = at;
        }
        while let Some(front) = self.leaving.front_mut() {
            let rest = front.run.slice.len() - front.written;
            let whole = bytes >= rest;
            let ended = if whole {
                bytes -= rest;
                front.run.count
            } else if bytes == 0 {
                return;
            } else {
                front.written += bytes;
                bytes = 0;
                match front.part {
                    // After a change of rate chunks may be smaller than when these left.
                    Part::Whole => {
                        let ended = self.config.layout.count(&front.run.slice.bytes()[..front.written]).0;
                        ended.min(front.run.count - 1)
                    }
                    _ => 0,
                }
            };
            let (part, lane, due, step, weight) = (front.part, front.lane, front.due, front.step, front.run.weight);
            let mut written = front.run.slice.len();
            if !whole && ended > 0 {
                let head = front.run.split_to(ended, &self.config.layout);
                written = head.slice.len();
                front.written -= written;
                front.due = due.saturating_add(step.saturating_mul(u128::from(ended)));
            }
            if ended > 0 || part == Part::Last {
                let pacer = &self.config.pacer;
                let first = at.saturating_sub(pacer.ceil_ns(due)).saturating_sub(self.accounts.forgiven);
                late(ended.max(1), first, pacer.ceil_ns(step));
                self.forgive(due, at);
                self.accounts.emitted += match part {
                    Part::Whole if self.config.count_bytes => written as u64,
                    Part::Whole => ended,
                    Part::Last => 1,
                    Part::First | Part::Middle => 0,
                };
            }
            self.accounts.cost_emitted += weight.cost.saturating_mul(ended.max(u64::from(part == Part::First)));
            // What streams is charged piece by piece, but counts as one item.
            let counted = if part == Part::Whole { ended } else { 1 };
            let whole_or_ended = whole || (part == Part::Whole && ended > 0);
            if whole_or_ended {
                self.config.pacer.ended(&mut self.lanes[lane as usize].state, due, at, weight, counted);
            }
            if whole {
                self.leaving.pop_front();
                self.lanes[lane as usize].line.leaving -= 1;
            }
            if whole_or_ended && (self.keyed() || self.config.pacer.keeps_real_time()) {
                self.refresh(lane);
            }
            if !whole {
                return;
            }
        }
    }

    /// Forgives what the write that ended at `at` was late by beyond the catch-up.
    fn forgive(&mut self, due: Ticks, at: u64) {
        if self.sharing.is_some() {
            return;
        }
        let plug = self.plug_of(due);
        self.accounts.forgiven += at.saturating_sub(self.accounts.forgiven).saturating_sub(plug);
    }

    /// Says whether stdout takes nothing at the moment. Without a rate, what has left and could not be written then
    /// waits again, unless its writing has begun.
    pub fn blocked(&mut self, blocked: bool) {
        self.writing = false;
        self.blocked = blocked;
        if !blocked || !self.config.pacer.is_unlimited() || self.config.overflow == Overflow::Block {
            return;
        }
        while let Some(mut back) = self.leaving.pop_back() {
            let (id, due) = (back.lane, back.due);
            let begun = back.written > 0 || (self.in_step && self.leaving.is_empty());
            if back.part != Part::Whole || (begun && back.run.count == 1) {
                self.leaving.push_back(back);
                return;
            }
            let mut run = back.run.clone();
            if begun {
                back.run = run.split_to(1, &self.config.layout);
                self.leaving.push_back(back);
            } else {
                self.lanes[id as usize].line.leaving -= 1;
            }
            let bytes = run.slice.len() as u64;
            self.leaving_bytes -= bytes;
            self.waiting_bytes += bytes;
            self.waiting_items += run.count;
            let units = pacer::units(self.config.capacity_unit, run.weight).saturating_mul(run.count);
            let lane = &mut self.lanes[id as usize];
            lane.line.units = lane.line.units.saturating_add(units);
            lane.line.waiting.push_front(Waiting { run, part: Part::Whole, admitted: due });
            self.refresh(id);
            if begun {
                return;
            }
        }
    }

    // ---- Age ----

    /// The first of what is leaving whose writing has not begun.
    fn not_begun(&self) -> Option<usize> {
        if self.writing {
            return None;
        }
        let begun = |leaving: &Leaving| (leaving.written > 0 || self.in_step) && leaving.run.count == 1;
        let from = usize::from(self.leaving.front().is_some_and(begun));
        self.leaving.get(from).filter(|leaving| leaving.part == Part::Whole).map(|_| from)
    }

    /// Takes away what has waited for longer than the maximal age at this instant.
    fn expire(&mut self) {
        let Some(age) = self.config.max_age else { return };
        let at = self.at;
        let old = |arrival: u64| arrival.saturating_add(age) < at;
        while let Some(index) = self.not_begun()
            && old(self.leaving[index].run.arrival)
        {
            let Some(mut gone) = self.leaving.remove(index) else {
                break;
            };
            let lane = gone.lane;
            if gone.written > 0 || (self.in_step && index == 0) {
                let begun = gone.run.split_to(1, &self.config.layout);
                let rest = std::mem::replace(&mut gone.run, begun);
                self.leaving.insert(index, gone.clone());
                gone.run = rest;
            } else {
                self.lanes[lane as usize].line.leaving -= 1;
            }
            self.leaving_bytes -= gone.run.slice.len() as u64;
            self.config.pacer.ended(
                &mut self.lanes[lane as usize].state,
                gone.due,
                at,
                gone.run.weight,
                gone.run.count,
            );
            self.account_gone(gone.run, Part::Whole, Fate::Expired);
            self.refresh(lane);
        }
        loop {
            let id = if self.keyed() { self.oldest.first().map(|oldest| oldest.2) } else { Some(0) };
            let head = id.and_then(|id| Some((id, self.lanes[id as usize].line.waiting.front()?)));
            match head.filter(|(_, head)| old(head.run.arrival)).map(|(id, head)| (id, head.run.count)) {
                Some((id, count)) => self.remove_oldest(id, count, Fate::Expired),
                None => break,
            }
        }
        if self.offered.is_some()
            && self.mouth.front().is_some_and(|front| old(front.run.arrival))
            && let Some(front) = self.take_front_of_mouth()
        {
            self.decided = self.config.pacer.ticks(self.bucket_time(at));
            self.drop_arrival(front, Fate::Expired);
            self.front_of_mouth();
        }
    }

    // ---- The end ----

    /// An item has begun when the run ends: `bytes` of it have been read, and it is held.
    pub fn read_rest(&mut self, bytes: u64) {
        self.accounts.read += match (self.open, self.config.count_bytes) {
            // It counts already.
            (Some(_), _) => 0,
            (None, true) => bytes,
            (None, false) => 1,
        };
        self.accounts.bytes_read += bytes;
    }

    /// What has been read and not written, in the order in which it was read, the rest of a half-written item first.
    pub fn leftover(&self) -> Vec<Slice> {
        let rest = |leaving: &Leaving| leaving.run.slice.range(leaving.written, leaving.run.slice.len());
        let mut leftover: Vec<Slice> = self.leaving.iter().map(rest).collect();
        let mut waiting: Vec<&Run> =
            self.lanes.iter().flat_map(|lane| &lane.line.waiting).map(|waiting| &waiting.run).collect();
        if self.keyed() {
            waiting.sort_by_key(|run| run.number);
        }
        leftover.extend(waiting.into_iter().map(|run| run.slice.clone()));
        leftover.extend(self.mouth.iter().map(|arrival| arrival.run.slice.clone()));
        leftover
    }

    // ---- Accounts ----

    /// What `run` counts in the accounts; an item in pieces counts with its first.
    fn counts(&self, run: &Run, part: Part) -> u64 {
        match part {
            Part::Whole if self.config.count_bytes => run.slice.len() as u64,
            Part::Whole | Part::First => run.count,
            Part::Middle | Part::Last => 0,
        }
    }

    /// `run` does not wait any more.
    fn account_left(&mut self, id: u32, run: &Run, part: Part) {
        let units = pacer::units(self.config.capacity_unit, run.weight);
        let count = if matches!(part, Part::Middle | Part::Last) && self.config.capacity_unit != Unit::Items {
            1
        } else {
            run.count
        };
        let lane = &mut self.lanes[id as usize];
        lane.line.units = lane.line.units.saturating_sub(units.saturating_mul(count));
        self.waiting_items -= run.count;
        self.waiting_bytes -= run.slice.len() as u64;
    }

    /// `run` will never be written.
    fn account_gone(&mut self, run: Run, part: Part, fate: Fate) {
        let count = self.counts(&run, part);
        match fate {
            Fate::Expired => self.accounts.expired += count,
            _ => self.accounts.dropped += count,
        }
        if self.config.trace && run.count > 0 {
            self.outcomes.push(Outcome { number: run.number, count: run.count, fate });
        }
        if self.keep_cast_off {
            self.cast_off.push(run.slice);
        }
    }

    fn notice(&mut self, notice: Notice) {
        if self.noticed.insert(notice) {
            self.notices.push(notice);
        }
    }

    /// The level of a lane at `now`, in thousandths of a unit of the capacity.
    fn level(&self, lane: &Lane, now: Ticks) -> u64 {
        let rest = self.config.pacer.rests(&lane.state, ONE).map(|rest| {
            let unpaid = rest.paid.saturating_sub(now);
            match per_unit(rest.unit, self.config.capacity_unit) {
                _ if unpaid == 0 => 0,
                Some(scale) => pacer::div(unpaid.saturating_mul(1000), rest.period.saturating_mul(u128::from(scale))),
                None => u128::from(lane.last) * 1000,
            }
        });
        let rest = u64::try_from(rest.max().unwrap_or(0)).unwrap_or(u64::MAX);
        lane.line.units.saturating_mul(1000).saturating_add(rest)
    }

    /// With block the capacity is what counts as the level, whatever the reader has read ahead.
    fn note_level(&mut self, id: u32) {
        let now = self.config.pacer.ticks(self.bucket_time(self.at));
        let lane = &self.lanes[id as usize];
        let mut level = self.level(lane, now);
        let paid = self.config.pacer.rests(&lane.state, ONE).map(|rest| rest.paid).max().unwrap_or(0);
        self.accounts.level_waiting = lane.line.units.saturating_mul(1000);
        self.accounts.level_at = self.at;
        self.accounts.level_until = self.config.pacer.ceil_ns(paid).saturating_add(self.accounts.forgiven);
        if self.config.overflow == Overflow::Block {
            level = level.min(self.config.capacity.saturating_mul(1000));
        }
        self.accounts.level = level;
        self.accounts.level_max = self.accounts.level_max.max(level);
    }
}

impl Lane {
    fn new(pacer: &Pacer, key: Box<[u8]>) -> Lane {
        Lane { state: pacer.fresh(), line: Line::default(), last: 0, fresh_at: BUSY, key }
    }
}

/// Whether bucket time is real time. A replay without a rate has a schedule of its own, and a stop shifts the rest of it.
fn keeps_real_time(pacer: &Pacer, replays: bool) -> bool {
    pacer.keeps_real_time() && !(replays && pacer.is_unlimited())
}

/// How many units of a rate make one of the capacity; `None` if they count different things.
fn per_unit(rate: Unit, capacity: Unit) -> Option<u64> {
    match (rate, capacity) {
        (Unit::Bits, Unit::Bytes) => Some(8),
        _ if rate == capacity => Some(1),
        _ => None,
    }
}

/// Counts losses by key in a bounded list: a key that is not in a full one takes the place and the count of the one
/// that lost least, so that whoever lost most is never missing (Metwally's space-saving).
fn lose(lost: &mut Vec<(Box<[u8]>, u64)>, key: &[u8], count: u64) {
    const KEYS: usize = 100;
    if let Some(entry) = lost.iter_mut().find(|entry| *entry.0 == *key) {
        entry.1 += count;
    } else if lost.len() < KEYS {
        lost.push((key.into(), count));
    } else if let Some(least) = lost.iter_mut().min_by_key(|entry| entry.1) {
        *least = (key.into(), least.1 + count);
    }
}
