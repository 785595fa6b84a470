//! The leaker thread: wait for the slot, write all that is due, account for it.

use crate::clock::Clock;
use crate::config::Config;
use crate::fd::{Hole, MOST_SLICES, Woken};
use crate::hub::{Core, Shared, Stop};
use crate::run::Slice;
use crate::shared::StoreError;
use crate::shared::background::Background;
use crate::shared::ledger::OnOutage;
use crate::voice::Voice;
use crossbeam_channel::Sender;
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Lets items out.
#[derive(Debug)]
pub struct Leaker<C, H> {
    shared: Arc<Shared>,
    clock: C,
    hole: H,
    used: Sender<Vec<u8>>,
    lockstep: bool,
    voice: Voice,
    store: Option<Store>,
}

/// Where the rate is shared.
#[derive(Debug)]
pub struct Store {
    /// Makes the calls.
    pub calls: Background,
    /// What to say of an outage.
    pub on_outage: OnOutage,
}

/// How long the end waits for units to be given back, each time that something comes of it.
const FAREWELL: Duration = Duration::from_millis(50);

/// What became of the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// So many bytes have been written since the bucket was told.
    Wrote(usize),
    /// Stdout takes nothing; in lockstep, what it has taken is not taken out of it.
    Blocked,
}

/// Lockstep: how far the next item has got.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    len: usize,
    /// Bytes of it that are written, and not known to be taken.
    in_pipe: usize,
}

impl Step {
    /// The reader has taken all that is in the pipe: the bytes of the item, if that was the whole of it.
    fn taken(&mut self) -> usize {
        if self.in_pipe == self.len { std::mem::take(&mut self.in_pipe) } else { 0 }
    }
}

impl<C: Clock, H: Hole> Leaker<C, H> {
    /// A leaker that lets items out through `hole` and sends back the blocks it has `used`.
    pub fn new(shared: Arc<Shared>, clock: C, hole: H, used: Sender<Vec<u8>>, config: &Config) -> Leaker<C, H> {
        Leaker { shared, clock, hole, used, lockstep: config.lockstep, voice: Voice::new(config.quiet), store: None }
    }

    /// Takes slots from `store`.
    #[must_use]
    pub fn share(self, store: Option<Store>) -> Leaker<C, H> {
        Leaker { store, ..self }
    }

    /// Lets items out until the run ends.
    pub fn run(mut self) {
        crate::fd::wake_me_exactly();
        if let Err(stop) = self.leak() {
            self.shared.stop(stop);
        }
        if let Some(Store { calls, .. }) = self.store.take() {
            // What is asked for and not answered yet goes back, too.
            let mut core = self.shared.lock();
            while core.bucket.is_asking()
                && let Some(answer) = calls.last_answer(FAREWELL)
            {
                // How the run ends is settled already.
                let _ = core.bucket.answered(answer);
            }
            let returned = core.bucket.give_up();
            drop(core);
            calls.finish(returned, FAREWELL);
        }
    }

    fn leak(&mut self) -> Result<(), Stop> {
        let shared = Arc::clone(&self.shared);
        let (mut slices, mut cast_off) = (Vec::new(), Vec::new());
        let mut progress = Progress::Wrote(0);
        let mut step = Step::default();
        // The last batch did not fit into one write.
        let mut unfinished = false;
        // How the time since `last` was spent: something waited for its slot, or everything for room.
        let (mut last, mut busy, mut no_room) = (self.clock.now(), false, false);
        // And whether that was so before what has been written was taken out of the bucket.
        let mut waited = false;
        loop {
            let now = self.clock.now();
            let mut core = shared.lock();
            core.tell(progress, now);
            core.account(last, now, no_room, busy, waited);
            self.hear(&mut core);
            core.bucket.advance(now);
            self.recycle(&mut slices);
            let blocked = progress == Progress::Blocked;
            // What has fallen due since a batch was written waits for the next tick.
            if !blocked && (unfinished || now >= core.last_batch.saturating_add(core.tick)) {
                if self.lockstep {
                    core.bucket.leaving_item(&mut slices);
                } else {
                    core.bucket.leaving(&mut slices, MOST_SLICES);
                }
            }
            if !slices.is_empty() && !unfinished {
                core.last_batch = now;
            }
            core.bucket.take_cast_off(&mut cast_off);
            let notices = core.bucket.take_notices();
            if core.bucket.overflowed() && core.stop.is_none() {
                core.stop = Some(Stop::Overflow);
            }
            if core.reader_waits > 0 && core.bucket.may_read(core.reader_waits) > 0 {
                core.reader_waits = 0;
                shared.room.notify_all();
            }
            waited = busy;
            (last, busy, no_room) = (now, core.bucket.waits(), blocked);
            core.blocked_since = if no_room { now } else { 0 };
            let until = core.next_wake();
            core.asleep_until = slices.is_empty().then_some(until.unwrap_or(u64::MAX));
            let calls = core.bucket.has_calls().then(|| core.bucket.take_calls());
            let stop = core.stop.clone();
            let drained = core.ended && core.bucket.is_empty() && !core.bucket.owes();
            shared.publish(&mut core);
            drop(core);
            self.voice.notice(notices);
            shared.put_away(&mut cast_off);
            match stop {
                Some(stop) => return self.stop(&stop, step.in_pipe),
                None if drained => return Ok(()),
                None => {}
            }
            if let (Some(store), Some((calls, returned))) = (&self.store, calls) {
                store.calls.give_back(returned);
                if !calls.into_iter().all(|call| store.calls.call(call)) {
                    return Err(Stop::Failed(
                        "the thread of the shared bucket has panicked; please report this".into(),
                    ));
                }
            }
            (progress, unfinished) = if slices.is_empty() {
                let progress = match self.wait(until, blocked)? {
                    Woken::Room => Progress::Wrote(step.taken()),
                    _ if blocked => Progress::Blocked,
                    _ => Progress::Wrote(0),
                };
                (progress, blocked)
            } else {
                step.len = slices.iter().map(Slice::len).sum();
                match self.write(&slices, step.in_pipe)? {
                    Progress::Wrote(bytes) if self.lockstep => {
                        step.in_pipe += bytes;
                        (Progress::Blocked, true)
                    }
                    Progress::Wrote(bytes) => (Progress::Wrote(bytes), bytes < step.len || slices.len() == MOST_SLICES),
                    Progress::Blocked => (Progress::Blocked, true),
                }
            };
        }
    }

    /// Tells the bucket what came of the calls for its slots.
    fn hear(&self, core: &mut Core) {
        let Some(store) = &self.store else { return };
        self.shared.answered.store(false, Ordering::SeqCst);
        while let Some(answer) = store.calls.answer() {
            match core.bucket.answered(answer) {
                Ok(notices) => notices.iter().for_each(|notice| self.voice.notice_shared(notice, store.on_outage)),
                Err(_) if core.stop.is_some() => {}
                Err(StoreError::Outage(why)) => core.stop = Some(Stop::NoStore(why)),
                Err(StoreError::Refused(why)) => core.stop = Some(Stop::Failed(why)),
            }
        }
    }

    fn write(&mut self, slices: &[Slice], skip: usize) -> Result<Progress, Stop> {
        let written = if slices.first().is_some_and(Slice::is_passing) {
            self.hole.pass(slices.iter().map(Slice::len).sum())
        } else {
            let mut bytes = [IoSlice::new(&[]); MOST_SLICES];
            for (into, slice) in bytes.iter_mut().zip(slices) {
                *into = IoSlice::new(slice.bytes());
            }
            let mut bytes = &mut bytes[..slices.len()];
            IoSlice::advance_slices(&mut bytes, skip);
            self.hole.write(bytes)
        };
        match written {
            Ok(written) => Ok(Progress::Wrote(written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Progress::Blocked),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Progress::Wrote(0)),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Stop::ReaderGone),
            Err(error) => Err(Stop::Failed(format!("could not write to stdout: {error}"))),
        }
    }

    fn wait(&mut self, until: Option<u64>, room: bool) -> Result<Woken, Stop> {
        let timeout = until.map(|until| until.saturating_sub(self.clock.now()));
        match self.hole.wait(timeout, room) {
            Ok(Woken::ReaderGone) => Err(Stop::ReaderGone),
            Ok(woken) => Ok(woken),
            Err(error) => Err(Stop::Failed(format!("could not wait for stdout: {error}"))),
        }
    }

    /// Ends the run. What was due when the bucket overflowed has left, so it is still written, if that takes no wait.
    fn stop(&mut self, stop: &Stop, in_pipe: usize) -> Result<(), Stop> {
        let shared = Arc::clone(&self.shared);
        let mut slices = Vec::new();
        let mut progress = Progress::Wrote(in_pipe);
        while let Progress::Wrote(bytes) = progress {
            let mut core = shared.lock();
            core.tell(Progress::Wrote(bytes), self.clock.now());
            slices.clear();
            core.bucket.leaving(&mut slices, MOST_SLICES);
            shared.publish(&mut core);
            if *stop != Stop::Overflow || slices.is_empty() || self.lockstep {
                return Ok(());
            }
            drop(core);
            progress = self.write(&slices, 0)?;
        }
        Ok(())
    }

    /// Sends back the blocks that nobody needs any more.
    fn recycle(&self, slices: &mut Vec<Slice>) {
        for slice in slices.drain(..) {
            if let Some(block) = slice.into_block() {
                // A full channel has enough of them.
                let _ = self.used.try_send(block);
            }
        }
    }
}

impl Core {
    fn tell(&mut self, progress: Progress, now: u64) {
        // What happened since the last time happened before this write had ended.
        self.bucket.advance(now);
        match progress {
            Progress::Wrote(bytes) => {
                self.bucket.blocked(false);
                let lateness = &mut self.lateness;
                self.bucket.wrote(bytes, now, |count, first, step| lateness.record(count, first, step));
            }
            Progress::Blocked => self.bucket.blocked(true),
        }
    }

    /// Accounts for the time since `last`, in which something waited if `busy`, and stdout had `no_room`; and for what
    /// has been written, if it `waited`: the first of those that come together does not.
    fn account(&mut self, last: u64, now: u64, no_room: bool, busy: bool, waited: bool) {
        let (accounts, before) = (self.bucket.accounts(), std::mem::take(&mut self.accounted));
        if no_room {
            self.blocked_ns += now - last;
        }
        if std::mem::take(&mut self.changing) {
            self.changing = accounts.emitted == before.emitted;
            (self.changed_at, self.accounted) = (now, accounts);
            return;
        }
        if busy && !no_room {
            self.busy.ns += now.saturating_sub(last.max(self.changed_at));
            self.busy.forgiven += accounts.forgiven - before.forgiven;
        }
        if waited {
            self.busy.items += accounts.emitted - before.emitted;
            self.busy.bytes += accounts.bytes_emitted - before.bytes_emitted;
            self.busy.cost += accounts.cost_emitted - before.cost_emitted;
        }
        self.accounted = accounts;
    }

    /// When the leaker has something to do, above 1000 items a second not before a tick after the last time.
    pub fn next_wake(&self) -> Option<u64> {
        let next =
            if self.bucket.wants_writing() || self.bucket.has_calls() { Some(0) } else { self.bucket.next_event() };
        Some(next?.max(self.last_batch.saturating_add(self.tick)))
    }
}
