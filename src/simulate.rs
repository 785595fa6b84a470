//! `--simulate`: the same intake and the same bucket on a virtual clock. Nothing waits and nothing is emitted; for each
//! item one line of JSON says what would have become of it, in the order of the input.

use crate::bucket::{Bucket, Fate, Outcome};
use crate::config::Config;
use crate::exit::Exit;
use crate::fd::{self, Input, Output};
use crate::intake::Intake;
use crate::rate::{Rate, Unit};
use crate::run::Slice;
use crate::voice::Voice;
use crate::{clock, pacer};
use anyhow::Context;
use serde::Serialize;
use std::collections::VecDeque;
use std::io;

/// What is known of an item so far.
#[derive(Debug, Serialize)]
struct Record {
    item: u64,
    key: Option<String>,
    cost: u64,
    arrival_ns: u64,
    departure_ns: Option<u64>,
    /// `None` while it is not decided.
    outcome: Option<&'static str>,
}

/// What is read, or written, at once.
const BLOCK: usize = 64 << 10;

struct Simulation {
    config: Config,
    bucket: Option<Bucket>,
    now: u64,
    records: VecDeque<Record>,
    /// The number of the first of `records`.
    first: u64,
    outcomes: Vec<Outcome>,
    slices: Vec<Slice>,
    output: Output,
    json: Vec<u8>,
    /// Items without an outcome at the end.
    held: usize,
}

/// Says what would become of each item of stdin.
///
/// # Errors
/// If the input cannot be read, or the output written.
pub fn run(mut config: Config) -> anyhow::Result<Exit> {
    // An item that is decided on by itself can be told of by itself.
    config.intake.by_length = true;
    let voice = Voice::new(config.quiet);
    let (_bell, ear) = fd::bell().context("could not make a pipe")?;
    let input = Input::open(ear);
    // Nobody rings: a simulation dies of signals like any other filter.
    let (_other_bell, ear) = fd::bell().context("could not make a pipe")?;
    let mut intake = Intake::new(config.intake.clone(), clock::utc());
    let mut simulation = Simulation {
        config,
        bucket: None,
        now: 0,
        records: VecDeque::new(),
        first: 1,
        outcomes: Vec::new(),
        slices: Vec::new(),
        output: Output::open(ear),
        json: Vec::new(),
        held: 0,
    };
    let (mut block, mut arrivals) = (Vec::new(), Vec::new());
    let mut ended = false;
    while !ended && !simulation.overflowed() {
        let begin = block.len();
        ended = input.read(&mut block, begin, BLOCK).context("could not read stdin")?.unwrap_or(0) == 0;
        intake.take(&mut block, ended, 0, &mut arrivals);
        for arrival in arrivals.drain(..) {
            match simulation.arrive(arrival, &intake) {
                Ok(()) => {}
                Err(error) if is_broken_pipe(&error) => return Ok(Exit::READER_GONE),
                Err(error) => return Err(error),
            }
            if simulation.overflowed() {
                break;
            }
        }
    }
    match simulation.finish() {
        Err(error) if is_broken_pipe(&error) => return Ok(Exit::READER_GONE),
        other => other?,
    }
    voice.notice_faults(&intake.faults());
    if let Some(bucket) = &mut simulation.bucket {
        voice.notice(bucket.take_notices());
    }
    Ok(match simulation.held {
        held if simulation.overflowed() => {
            voice.say(format_args!("the bucket is full; {held} items have no outcome"));
            Exit::Overflow
        }
        0 => Exit::Done,
        held => {
            voice.say(format!("{held} items have no outcome: the clock ends after 584 years"));
            Exit::Failed
        }
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

impl Simulation {
    fn overflowed(&self) -> bool {
        self.bucket.as_ref().is_some_and(Bucket::overflowed)
    }

    fn arrive(&mut self, arrival: crate::bucket::Arrival, intake: &Intake) -> anyhow::Result<()> {
        if self.bucket.is_none() {
            // Where the grid of windows lies is told by the recording.
            self.config.bucket.pacer.begin_at(intake.first_stamp().unwrap_or_default());
            self.bucket = Some(Bucket::new(self.config.bucket.clone(), false));
        }
        let unit = self.config.rates.iter().map(Rate::unit).max_by_key(|unit| *unit == Unit::Cost);
        // Bits count eight to a byte, but an item's cost is its length.
        let unit = unit.map(|unit| if unit == Unit::Bits { Unit::Bytes } else { unit });
        if arrival.run.count > 0 {
            self.records.push_back(Record {
                item: arrival.run.number,
                key: arrival.key.as_ref().map(|key| String::from_utf8_lossy(key).into_owned()),
                cost: unit.map_or(arrival.run.weight.cost, |unit| pacer::units(unit, arrival.run.weight)),
                arrival_ns: arrival.recorded.unwrap_or(0),
                departure_ns: None,
                outcome: None,
            });
        }
        // What stands at the mouth is decided on first, so that no more is remembered than the bucket holds.
        let busy = |bucket: &Bucket| bucket.may_read(1) == 0 || bucket.is_choosing();
        while self.bucket.as_ref().is_some_and(busy) && !self.overflowed() && self.step() {}
        if self.overflowed() {
            return Ok(());
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.arrive(self.now, arrival);
        }
        self.settle()
    }

    /// Goes on to the next event; false if there is none.
    fn step(&mut self) -> bool {
        let Some(bucket) = &mut self.bucket else { return false };
        let Some(next) = bucket.next_event() else { return false };
        self.now = next;
        bucket.advance(next);
        self.emit();
        true
    }

    /// What leaves is written in no time.
    fn emit(&mut self) {
        let Some(bucket) = &mut self.bucket else { return };
        self.slices.clear();
        bucket.leaving(&mut self.slices, usize::MAX);
        let bytes = self.slices.iter().map(Slice::len).sum();
        bucket.wrote(bytes, self.now, |_, _, _| {});
    }

    /// Tells of all that is decided.
    fn settle(&mut self) -> anyhow::Result<()> {
        self.emit();
        let Some(bucket) = &mut self.bucket else { return Ok(()) };
        bucket.take_outcomes(&mut self.outcomes);
        let pacer = &self.config.bucket.pacer;
        for outcome in self.outcomes.drain(..) {
            for i in 0..outcome.count {
                let index = usize::try_from(outcome.number + i - self.first).ok();
                let Some(record) = index.and_then(|index| self.records.get_mut(index)) else {
                    continue;
                };
                (record.outcome, record.departure_ns) = match outcome.fate {
                    Fate::Emitted(due, step) => {
                        (Some("emitted"), Some(pacer.ceil_ns(due.saturating_add(step.saturating_mul(u128::from(i))))))
                    }
                    Fate::Dropped => (Some("dropped"), None),
                    Fate::Expired => (Some("expired"), None),
                };
            }
        }
        while self.records.front().is_some_and(|record| record.outcome.is_some()) {
            self.tell()?;
        }
        Ok(())
    }

    fn tell(&mut self) -> anyhow::Result<()> {
        if let Some(record) = self.records.pop_front() {
            self.first += 1;
            serde_json::to_writer(&mut self.json, &record)?;
            self.json.push(b'\n');
            if self.json.len() >= BLOCK {
                self.write()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> anyhow::Result<()> {
        let written = self.output.write_all(&self.json);
        self.json.clear();
        written.context("could not write to stdout")
    }

    /// Lets everything happen that still will.
    fn finish(&mut self) -> anyhow::Result<()> {
        while !self.overflowed() && self.step() {
            self.settle()?;
        }
        self.settle()?;
        // What is held has no outcome: under fail, and where it would leave only after centuries.
        let told = self.records.len();
        self.records.retain(|record| record.outcome.is_some());
        self.held = told - self.records.len();
        while !self.records.is_empty() {
            self.tell()?;
        }
        self.write()
    }
}
