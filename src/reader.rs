//! The reader thread: read, frame, select, admit.

use crate::bucket::Overflow;
use crate::clock::Clock;
use crate::config::Config;
use crate::fd::{self, Conduit, Input};
use crate::hub::{Shared, Stop};
use crate::intake::Intake;
use crate::run::Slice;
use crossbeam_channel::Receiver;
use std::io;
use std::sync::{Arc, PoisonError};

/// What is read at once: as much as a default pipe holds.
const BLOCK: usize = 64 << 10;
/// And where pipes are grown: so much that a hand-over costs little beside it.
const LARGE_BLOCK: usize = 256 << 10;
/// And where a block would hold back the producer's items for long.
const SMALL_BLOCK: usize = 4 << 10;

/// Brings items to the bucket.
#[derive(Debug)]
pub struct Reader<C> {
    shared: Arc<Shared>,
    clock: C,
    input: Input,
    intake: Intake,
    spare: Receiver<Vec<u8>>,
    conduit: Option<Arc<Conduit>>,
    most: usize,
    replays: bool,
}

impl<C: Clock> Reader<C> {
    /// A reader of `input` that fills `spare` blocks first, or moves what comes into a `conduit`.
    pub fn new(
        shared: Arc<Shared>,
        clock: C,
        input: Input,
        intake: Intake,
        spare: Receiver<Vec<u8>>,
        conduit: Option<Arc<Conduit>>,
        config: &Config,
    ) -> Reader<C> {
        let most = match config.grow {
            _ if conduit.is_some() => fd::CONDUIT as usize,
            true => LARGE_BLOCK,
            false if config.slow && config.bucket.overflow == Overflow::Block => SMALL_BLOCK,
            false => BLOCK,
        };
        Reader { shared, clock, input, intake, spare, conduit, most, replays: config.intake.replay.is_some() }
    }

    /// Reads until the input or the run ends.
    pub fn run(mut self) {
        let mut block = Vec::new();
        self.read_all(&mut block);
        let mut core = self.shared.lock();
        core.reader_left = Some(block);
        drop(core);
        self.shared.room.notify_all();
    }

    fn read_all(&mut self, block: &mut Vec<u8>) {
        let mut arrivals = Vec::new();
        let mut cast_off: Vec<Slice> = Vec::new();
        let mut anchor = None;
        loop {
            let Some(most) = self.wait_for_room() else { return };
            let read = match &self.conduit {
                Some(conduit) => self.input.pass(conduit, most),
                None => self.read(block, most),
            };
            let read = match read {
                Ok(Some(read)) => read,
                Ok(None) => return,
                Err(error) => {
                    self.shared.stop(Stop::Failed(format!("could not read stdin: {error}")));
                    return;
                }
            };
            let now = self.clock.now();
            match self.conduit {
                Some(_) => self.intake.pass(read, now, &mut arrivals),
                None => self.intake.take(block, read == 0, now, &mut arrivals),
            }
            let mut core = self.shared.lock();
            if core.stop.is_some() {
                // Too late to be decided on, but not lost. What stands in the conduit is found there.
                block.splice(0..0, arrivals.drain(..).flat_map(|arrival| arrival.run.slice.bytes().to_vec()));
                return;
            }
            for mut arrival in arrivals.drain(..) {
                if self.replays {
                    // The replay's clock is bucket time, and begins with the first item.
                    let anchor = *anchor.get_or_insert_with(|| core.bucket.bucket_time(now));
                    arrival.recorded = arrival.recorded.map(|after| after.saturating_add(anchor));
                }
                core.bucket.arrive(now, arrival);
            }
            core.ended = read == 0;
            core.faults = self.intake.faults();
            core.bucket.take_cast_off(&mut cast_off);
            if core.bucket.overflowed() && core.stop.is_none() {
                core.stop = Some(Stop::Overflow);
            }
            self.shared.publish(&mut core);
            // The leaker is called only if this changes when it has something to do.
            let next = core.next_wake();
            let ended = core.ended || core.stop.is_some();
            if core.asleep_until.is_some_and(|until| ended || next.is_some_and(|next| next < until)) {
                core.asleep_until = None;
                self.shared.leaker_bell.ring();
            }
            drop(core);
            self.shared.put_away(&mut cast_off);
            if ended {
                return;
            }
        }
    }

    fn read(&self, block: &mut Vec<u8>, most: usize) -> io::Result<Option<usize>> {
        let begin = block.len();
        if block.capacity() < begin + most {
            // The rest of the last block goes in front. So does room for it, which is what makes a block worth recycling.
            let mut larger = match self.spare.try_recv() {
                Ok(spare) if spare.capacity() >= begin + most => spare,
                _ => Vec::with_capacity(begin.max(SMALL_BLOCK) + self.most),
            };
            larger.resize(larger.len().max(begin), 0);
            larger[..begin].copy_from_slice(block);
            *block = larger;
        }
        let read = self.input.read(block, begin, most);
        if read.is_err() {
            block.truncate(begin);
        }
        read
    }

    /// Waits until the bucket lets more be read; `None` if the run ends.
    fn wait_for_room(&self) -> Option<usize> {
        let mut core = self.shared.lock();
        loop {
            if core.stop.is_some() {
                return None;
            }
            match core.bucket.may_read(self.most) {
                0 => core.reader_waits = self.most,
                most => return Some(most),
            }
            core = self.shared.room.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
