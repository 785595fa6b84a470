//! What the reader and the leaker share, and the run that joins them.
//!
//! The bucket is locked once for each block that is read and once for each time the leaker wakes. Blocks that are
//! written go back to the reader through a bounded channel. The leaker sleeps in a poll and is called by a bell; the
//! reader waits for room on a condition.

use crate::bucket::{Accounts, Bucket, Notice};
use crate::clock::{Clock as _, Monotonic};
use crate::config::{Config, Follow};
use crate::counters::{Counters, Lateness, Pace};
use crate::exit::Exit;
use crate::fd::{self, Bell, Ear, Input, Output};
use crate::intake::{Faults, Intake};
use crate::leaker::Leaker;
use crate::progress::{self, Look, Progress};
use crate::reader::Reader;
use crate::report::Report;
use crate::run::Slice;
use crate::shared::ledger::{self, OnOutage};
use crate::{clock, follow, metrics, signals};
use anyhow::Context;
use signal_hook::consts::SIGHUP;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Why a run ends before the last item is out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// This signal came.
    Signal(i32),
    /// The reader of stdout has gone.
    ReaderGone,
    /// The bucket overflowed under `Overflow::Fail`.
    Overflow,
    /// Something could not be done.
    Failed(String),
}

/// Time in which the asked rate could have been reached: something waited, and the output did not block.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy {
    /// How long, in nanoseconds.
    pub ns: u64,
    /// What was emitted in it.
    pub items: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its cost.
    pub cost: u64,
}

/// What both threads work on, under one lock.
#[derive(Debug)]
pub struct Core {
    /// The bucket.
    pub bucket: Bucket,
    /// All input has been read.
    pub ended: bool,
    /// The run is to end at once.
    pub stop: Option<Stop>,
    /// The leaker sleeps until then and wants to be called if something comes earlier.
    pub asleep_until: Option<u64>,
    /// The reader waits for room.
    pub reader_waits: bool,
    /// The reader has gone home, leaving the beginning of an item.
    pub reader_left: Option<Vec<u8>>,
    /// What was wrong with the input.
    pub faults: Faults,
    /// How late items left.
    pub lateness: Lateness,
    /// How long stdout took nothing, in nanoseconds.
    pub blocked_ns: u64,
    /// Since when it takes nothing; 0 while it does.
    pub blocked_since: u64,
    /// When the rate last changed: what was before does not count for the rate reached.
    pub changed_at: u64,
    /// What counts for the rate reached.
    pub busy: Busy,
    /// The accounts when that was looked at last.
    pub accounted: Accounts,
    /// When the leaker last let something out.
    pub last_batch: u64,
    /// What falls due within so many nanoseconds of that may wait for each other.
    pub tick: u64,
}

/// What both threads share.
#[derive(Debug)]
pub struct Shared {
    core: Mutex<Core>,
    /// There is room, or the run ends.
    pub room: Condvar,
    /// The accounts for those who look on.
    pub counters: Counters,
    /// Calls the leaker.
    pub leaker_bell: Bell,
    /// Ends the reader's wait for input.
    pub reader_bell: Bell,
    /// Where what is not emitted goes.
    dropped: Option<Dropped>,
}

impl Shared {
    /// What the threads of a run of `config` share before it begins.
    pub fn new(config: &Config, dropped: Option<Dropped>, leaker_bell: Bell, reader_bell: Bell) -> Shared {
        let core = Core {
            bucket: Bucket::new(config.bucket.clone(), dropped.is_some()),
            ended: false,
            stop: None,
            asleep_until: None,
            reader_waits: false,
            reader_left: None,
            faults: Faults::default(),
            lateness: Lateness::default(),
            blocked_ns: 0,
            blocked_since: 0,
            changed_at: 0,
            busy: Busy::default(),
            accounted: Accounts::default(),
            last_batch: 0,
            tick: config.tick,
        };
        Shared {
            core: Mutex::new(core),
            room: Condvar::new(),
            counters: Counters::default(),
            leaker_bell,
            reader_bell,
            dropped,
        }
    }

    /// The lock. What a thread that panicked left behind is still accounted for.
    pub fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the run, unless it is ending already.
    pub fn stop(&self, stop: Stop) {
        let mut core = self.lock();
        if core.stop.is_none() {
            core.stop = Some(stop);
            self.leaker_bell.ring();
        }
        self.room.notify_all();
    }

    /// Publishes the accounts and notices of `core`.
    pub fn publish(&self, core: &mut Core) {
        core.bucket.look();
        let (blocked_ns, blocked_since) = (core.blocked_ns, core.blocked_since);
        self.counters.publish(&Accounts { blocked_ns, blocked_since, ..core.bucket.accounts() });
    }

    /// Writes dropped and expired items away. To be called without the lock.
    pub fn put_away(&self, slices: &mut Vec<Slice>) {
        if let Some(dropped) = &self.dropped
            && !slices.is_empty()
            && let Err(error) = dropped.append(slices)
        {
            self.stop(Stop::Failed(format!("{error:#}")));
        }
        slices.clear();
    }
}

/// The file of `--dropped`.
#[derive(Debug)]
pub struct Dropped {
    path: PathBuf,
    file: Mutex<File>,
}

impl Dropped {
    /// Opens `path` to append to it.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: PathBuf) -> anyhow::Result<Dropped> {
        let file = File::options().append(true).create(true).open(&path);
        let file = file.with_context(|| format!("could not open --dropped '{}'", path.display()))?;
        Ok(Dropped { path, file: Mutex::new(file) })
    }

    /// Appends `slices`.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn append(&self, slices: &[Slice]) -> anyhow::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut joined = Vec::new();
        let written = slices.iter().try_for_each(|slice| {
            if slice.len() > fd::PIPE_BUF {
                file.write_all(&joined)?;
                joined.clear();
                return file.write_all(slice.bytes());
            }
            joined.extend_from_slice(slice.bytes());
            Ok(())
        });
        let written = written.and_then(|()| file.write_all(&joined));
        written.with_context(|| format!("could not write to --dropped '{}'", self.path.display()))
    }
}

/// Says what there is to say about the run, one line each.
#[derive(Clone, Debug)]
pub struct Voice {
    quiet: bool,
}

impl Voice {
    /// A voice that is silent about everything but errors if `quiet`.
    pub fn new(quiet: bool) -> Voice {
        Voice { quiet }
    }

    /// Warns.
    pub fn warn(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            self.say(text);
        }
    }

    /// Says so, quiet or not. Nothing can be done about a stderr that takes nothing.
    pub fn say(&self, text: impl std::fmt::Display) {
        progress::aside(&format!("leaky: {text}"));
    }

    /// Says what was wrong with the input.
    pub fn notice_faults(&self, faults: &Faults) {
        let all = [
            (faults.key, "key", "its key is the empty one"),
            (faults.cost, "cost", "it costs 1"),
            (faults.time, "time", "it arrives with the one before"),
        ];
        for (unreadable, what, instead) in all {
            if unreadable.count > 0 {
                let (first, count) = (unreadable.first, unreadable.count);
                self.warn(format!("item {first} has no readable {what}, so {instead}; {count} in all"));
            }
        }
    }

    /// Says what the bucket has noticed.
    pub fn notice(&self, notices: Vec<Notice>) {
        for notice in notices {
            self.warn(match notice {
                Notice::MemoryFull => "64 MiB are held, which is overflow like any other; give --capacity in bytes for more",
                Notice::NothingToEvict => {
                    "--overflow drop-oldest: nothing waits that could be dropped instead of an arrival; say --capacity 2 or more"
                }
                Notice::KeyBlocks => "--overflow block: one full key makes all others wait; say --overflow drop to drop its items",
                Notice::KeysFull => "the table of keys is full; say a higher --max-keys",
            });
        }
    }

    /// Says what there is to say about a shared bucket.
    pub fn notice_shared(&self, notice: &ledger::Notice, on_outage: OnOutage) {
        match (notice, on_outage) {
            // An own bucket is not what was agreed on, so this is not to be missed.
            (ledger::Notice::Outage(error), OnOutage::Local(own)) => {
                self.say(format!("{error}; going on by myself at {} until it is back", own.pace));
            }
            (ledger::Notice::Outage(error), _) => self.warn(format!("{error}; holding until it is back")),
            (ledger::Notice::Back, _) => self.warn("--shared: it is back"),
            (ledger::Notice::Reset, _) => {
                self.warn("--shared: the bucket's state was damaged or beyond belief, and is begun afresh");
            }
            (ledger::Notice::TooFar { .. }, _) => {}
        }
    }
}

/// Lets stdin out onto stdout.
///
/// # Errors
/// If the run cannot begin.
pub fn run(mut config: Config) -> anyhow::Result<Exit> {
    let clock = Monotonic::start();
    let began = clock::utc();
    config.bucket.pacer.begin_at(began);
    let voice = Voice::new(config.quiet);
    let dropped = config.dropped.clone().map(Dropped::open).transpose()?;
    let (leaker_bell, leaker_ear) = fd::bell().context("could not make a pipe")?;
    let (reader_bell, reader_ear) = fd::bell().context("could not make a pipe")?;
    let (output, input) = (Output::open(leaker_ear), Input::open(reader_ear));
    if config.lockstep {
        output
            .cut_to_a_page()
            .context("--lockstep: stdout must be a pipe that can be cut to a page; pipe it into a reader")?;
    }
    if config.grow {
        output.grow();
        input.grow();
    }
    let shared = Arc::new(Shared::new(&config, dropped, leaker_bell, reader_bell));
    let report = Report::new(&config, clock);
    let (at_signal, asked) = (Arc::clone(&shared), report.clone());
    let for_signals = Arc::clone(&shared);
    let (reread, ear) = match &config.follow {
        Some(_) => fd::bell().map(|(bell, ear)| (Some(bell), Some(ear))).context("could not make a pipe")?,
        None => (None, None),
    };
    let summary = move || {
        // Nobody waits for a stderr that takes nothing.
        let summary = asked.summary(&at_signal.lock());
        progress::aside(&summary);
    };
    let signalled = move |signal| match &reread {
        Some(bell) if signal == SIGHUP => bell.ring(),
        _ => for_signals.stop(Stop::Signal(signal)),
    };
    signals::listen(summary, signalled).context("could not listen to signals")?;
    let look = Look { shared: Arc::clone(&shared), report: report.clone(), clock };
    let progress = progress::start(&config, &look).context("could not start a thread")?;
    let metrics = config.metrics.clone().map(|path| metrics::start(path, look, &config)).transpose()?;

    // Used blocks go back to be filled again.
    let (used, spare) = crossbeam_channel::bounded(4);
    let intake = Intake::new(config.intake.clone(), clock::utc());
    let reader = Reader::new(Arc::clone(&shared), clock, input, intake, spare, &config);
    let reader =
        thread::Builder::new().name("reader".into()).spawn(move || reader.run()).context("could not start a thread")?;
    let leaker = Leaker::new(Arc::clone(&shared), clock, output, used, &config);
    let leaker =
        thread::Builder::new().name("leaker".into()).spawn(move || leaker.run()).context("could not start a thread")?;
    if let Some(ear) = ear {
        let (shared, report) = (Arc::clone(&shared), report.clone());
        let follow = move || follow_rate(config, began, clock, &ear, &shared, &report);
        thread::Builder::new().name("follow".into()).spawn(follow).context("could not start a thread")?;
    }
    if leaker.join().is_err() {
        shared.stop(Stop::Failed("the leaker thread has panicked; please report this".into()));
    }
    let exit = end(&shared, &voice, reader, progress);
    if let Some(metrics) = metrics {
        metrics.finish(&voice);
    }
    let core = shared.lock();
    voice.notice_faults(&core.faults);
    report.conclude(&core, &voice);
    Ok(exit)
}

/// Follows the rate in the file for as long as the process lives.
fn follow_rate(mut config: Config, began: i128, clock: Monotonic, ear: &Ear, shared: &Shared, report: &Report) {
    let voice = Voice::new(config.quiet);
    let Some(Follow { path, text, .. }) = config.follow.clone() else { return };
    let given = format!("--rate '@{}'", path.display());
    let change = |text: &str| {
        let Some(mut next) = config.after(text).map_err(|why| why.to_string())? else { return Ok(()) };
        next.bucket.pacer.begin_at(began);
        let mut core = shared.lock();
        let now = clock.now();
        core.bucket.change_rate(now, &next.bucket);
        (core.tick, core.changed_at, core.busy) = (next.tick, now, Busy::default());
        core.accounted = core.bucket.accounts();
        report.set_pace(Pace::of(&next));
        shared.publish(&mut core);
        // Both may have something to do now.
        core.reader_waits = false;
        shared.room.notify_all();
        if core.asleep_until.take().is_some() {
            shared.leaker_bell.ring();
        }
        drop(core);
        if next.understood.is_some() {
            voice.say(format!("{given}: the rate is {text} from now on"));
        }
        config = next;
        Ok(())
    };
    follow::follow(&path, text, ear, change, |why| voice.warn(format!("{given}: {why}; the rate stays as it was")));
}

/// Brings a run to its end: accounts for everything that has been read.
fn end(shared: &Shared, voice: &Voice, reader: thread::JoinHandle<()>, progress: Option<Progress>) -> Exit {
    let finish = || {
        if let Some(progress) = &progress {
            progress.finish();
        }
    };
    shared.reader_bell.ring();
    shared.room.notify_all();
    let mut core = shared.lock();
    if core.stop.is_none() && core.ended {
        drop(core);
        // It has nothing left to do but to return.
        let _ = reader.join();
        finish();
        return Exit::Done;
    }
    // The reader may be stuck in a read that somebody else has won; then it holds nothing.
    let waited = shared.room.wait_timeout_while(core, Duration::from_millis(200), |core| core.reader_left.is_none());
    core = waited.unwrap_or_else(PoisonError::into_inner).0;
    let rest = core.reader_left.take().unwrap_or_default();
    let stop = core.stop.clone();
    let mut leftover = core.bucket.leftover();
    if !rest.is_empty() {
        core.bucket.read_rest(rest.len() as u64);
        leftover.push(Slice::new(rest));
    }
    let held = core.bucket.accounts().held();
    shared.publish(&mut core);
    drop(core);
    finish();
    let exit = match &stop {
        Some(Stop::Signal(signal)) => Exit::Signal(*signal),
        Some(Stop::ReaderGone) => Exit::READER_GONE,
        Some(Stop::Overflow) => Exit::Overflow,
        Some(Stop::Failed(_)) | None => Exit::Failed,
    };
    if let Some(Stop::Failed(why)) = &stop {
        voice.say(why);
    }
    match &shared.dropped {
        Some(dropped) => {
            if let Err(error) = dropped.append(&leftover) {
                voice.say(format!("{error:#}; {held} were read and not written"));
                return Exit::Failed;
            }
        }
        None if stop == Some(Stop::ReaderGone) => {}
        None if stop == Some(Stop::Overflow) => {
            voice.say(format!("the bucket is full; {held} were read and not written; --dropped FILE would keep them"));
        }
        None if held > 0 => voice.warn(format!("{held} were read and not written; --dropped FILE would keep them")),
        None => {}
    }
    exit
}
