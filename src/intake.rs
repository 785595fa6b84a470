//! From bytes to arrivals: framing, then what the selectors read out of each item. The same for a real run and a
//! simulated one.

use crate::bucket::{Arrival, Key, Part};
use crate::frame::{Framer, Framing, Piece};
use crate::replay::{self, Replay};
use crate::run::{Run, Slice, Weight};
use crate::select::{self, Selector};

/// What is read out of items, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// How bytes become items.
    pub framing: Framing,
    /// Whether somebody asks for the length of each item.
    pub by_length: bool,
    /// Reads the key.
    pub key: Option<Selector>,
    /// Reads the cost.
    pub cost: Option<Selector>,
    /// Reads the recorded time.
    pub replay: Option<replay::Config>,
}

/// What could not be read out of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// The number of the first such item, and how many there were.
    pub first: u64,
    /// How many there were.
    pub count: u64,
}

impl Unreadable {
    fn note(&mut self, number: u64) {
        if self.count == 0 {
            self.first = number;
        }
        self.count += 1;
    }
}

/// What was wrong with the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Items without a readable key: theirs is the empty key.
    pub key: Unreadable,
    /// Items without a readable cost: theirs is 1.
    pub cost: Unreadable,
    /// Items without a readable time: theirs is that of the one before.
    pub time: Unreadable,
    /// Items whose time lies before that of an earlier one.
    pub late: u64,
}

/// Turns blocks of bytes into arrivals.
#[derive(Debug)]
pub struct Intake {
    framer: Framer,
    key: Option<Selector>,
    cost: Option<Selector>,
    replay: Option<Replay>,
    /// Items so far.
    number: u64,
    faults: Faults,
    /// What has been cut off the block at hand.
    pieces: Vec<(usize, Piece)>,
}

impl Intake {
    /// An intake; `utc` is the present in nanoseconds since the epoch.
    pub fn new(config: Config, utc: i128) -> Intake {
        let singly = config.by_length || config.key.is_some() || config.cost.is_some() || config.replay.is_some();
        Intake {
            framer: Framer::new(config.framing, singly),
            key: config.key,
            cost: config.cost,
            replay: config.replay.map(|replay| Replay::new(replay, utc)),
            number: 0,
            faults: Faults::default(),
            pieces: Vec::new(),
        }
    }

    /// What was wrong with the input so far.
    pub fn faults(&self) -> Faults {
        self.faults
    }

    /// The first recorded time, in nanoseconds since the epoch.
    pub fn first_stamp(&self) -> Option<i128> {
        self.replay.as_ref()?.first_stamp()
    }

    /// Takes what is complete off the front of `block`, which was read at `arrival`, and appends it to `arrivals`. At
    /// the `end` of input that is everything. Recorded times count from the first item.
    pub fn take(&mut self, block: &mut Vec<u8>, end: bool, arrival: u64, arrivals: &mut Vec<Arrival>) {
        let mut complete = 0;
        while let Some(piece) = self.framer.next(&block[complete..], end) {
            self.pieces.push((complete, piece));
            complete += piece.len;
        }
        if self.pieces.is_empty() {
            return;
        }
        // A block of which only a little is complete is kept to be filled further, or a trickle of lines would hold a
        // whole block for each.
        let slice = if complete < block.capacity() / 4 {
            let slice = Slice::new(block[..complete].to_vec());
            block.drain(..complete);
            slice
        } else {
            let rest = block[complete..].to_vec();
            Slice::new(std::mem::replace(block, rest))
        };
        let mut pieces = std::mem::take(&mut self.pieces);
        for (at, piece) in pieces.drain(..) {
            let slice = slice.range(at, at + piece.len);
            arrivals.push(self.arrival(slice, piece.count, piece.part, arrival));
        }
        self.pieces = pieces;
    }

    /// Takes `len` bytes that were passed into the conduit at `arrival`, and appends what they are to `arrivals`.
    pub fn pass(&mut self, len: usize, arrival: u64, arrivals: &mut Vec<Arrival>) {
        let slice = Slice::passing(len);
        let mut at = 0;
        while let Some(piece) = self.framer.next_unseen(len - at) {
            arrivals.push(self.arrival(slice.range(at, at + piece.len), piece.count, piece.part, arrival));
            at += piece.len;
        }
    }

    fn arrival(&mut self, slice: Slice, count: u64, part: Part, arrival: u64) -> Arrival {
        let number = self.number + 1;
        self.number += count;
        let mut weight = Weight { len: slice.len() as u64 / count.max(1), cost: count.min(1) };
        let (mut key, mut recorded) = (None, None);
        if count > 0 && (self.key.is_some() || self.cost.is_some() || self.replay.is_some()) {
            let content = select::content(slice.bytes(), self.framer.layout().delimiter_bytes());
            if let Some(selector) = &self.key {
                let found = selector.find(content);
                if found.is_none() {
                    self.faults.key.note(number);
                }
                key = Some(Key::from_slice(&found.unwrap_or_default()));
            }
            if let Some(selector) = &self.cost {
                match selector.find(content).and_then(|text| select::cost(&text)) {
                    Some(cost) => weight.cost = cost,
                    None => self.faults.cost.note(number),
                }
            }
            if let Some(replay) = &mut self.replay {
                let stamped = replay.stamp(content);
                self.faults.late += u64::from(stamped.late);
                if !stamped.readable {
                    self.faults.time.note(number);
                }
                recorded = Some(stamped.arrival);
            }
        }
        Arrival { run: Run { slice, count, weight, number, arrival }, part, key, recorded }
    }
}
