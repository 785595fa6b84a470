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

mod accounts;
mod change;
mod departure;
mod lanes;
mod mouth;
mod room;

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

/// A key; most are so short that they need no memory of their own.
pub type Key = SmallVec<[u8; 16]>;

/// What a reader brings.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The items.
    pub run: Run,
    /// What part of an item they are.
    pub part: Part,
    /// Their key.
    pub key: Option<Key>,
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
    /// With a shared burst: when its units are spent, in real time; `NEVER` otherwise.
    spent: u64,
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
/// What may be on its way to a stdout that takes it before the reader waits for the leaker. A wake-up takes as long as
/// copying 200 KiB, so with a quarter of this the two would mostly wait for each other.
const LEAVING_BYTES: u64 = 1024 * 1024;
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
    /// With keys: the number of the last item of the input, if it lacks its delimiter. Whatever left behind it would
    /// become a part of it, so it leaves last.
    unterminated: Option<u64>,
    /// What is leaving is being written just now.
    writing: bool,
    /// Of what is leaving only the next item is being written, and may be in the pipe already.
    in_step: bool,
    /// A lane that nobody has used.
    blank: Lane,
    /// The keys that lost most: hash, key and count.
    lost: Vec<(u64, Key, u64)>,
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
            unterminated: None,
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

    /// The keys that lost most, with how many items; approximate above a hundred keys.
    pub fn lost_most(&self) -> Vec<(&[u8], u64)> {
        let mut lost: Vec<(&[u8], u64)> = self.lost.iter().map(|(_, key, count)| (&key[..], *count)).collect();
        lost.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        lost
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
fn lose(lost: &mut Vec<(u64, Key, u64)>, hash: u64, key: &[u8], count: u64) {
    const KEYS: usize = 100;
    if let Some(entry) = lost.iter_mut().find(|entry| entry.0 == hash && *entry.1 == *key) {
        entry.2 += count;
    } else if lost.len() < KEYS {
        lost.push((hash, key.into(), count));
    } else if let Some(least) = lost.iter_mut().min_by_key(|entry| entry.2) {
        *least = (hash, key.into(), least.2 + count);
    }
}
