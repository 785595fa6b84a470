//! The filter: the pipeline of reader, bucket and leaker, from its beginning to its end.
//!
//! Blocks that are written go back to the reader through a bounded channel.

use crate::bucket::{Bucket, Overflow};
use crate::clock::{Clock as _, Monotonic};
use crate::config::{Config, Follow};
use crate::counters::Pace;
use crate::exit::Exit;
use crate::fd::{self, Conduit, Ear, Input, Output};
use crate::hub::{Busy, Dropped, Shared, Stop};
use crate::intake::Intake;
use crate::leaker::{Leaker, Store};
use crate::progress::{self, Look, Progress};
use crate::reader::Reader;
use crate::report::Report;
use crate::run::Slice;
use crate::shared::background::Background;
use crate::shared::{self, StoreError};
use crate::voice::{self, Voice};
use crate::{clock, follow, metrics, signals};
use anyhow::Context;
use signal_hook::consts::SIGHUP;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

/// Lets stdin out onto stdout.
///
/// # Errors
/// If the run cannot begin.
pub fn run(mut config: Config) -> anyhow::Result<Exit> {
    let clock = if config.shared.is_some() { Monotonic::sleepless() } else { Monotonic::start() };
    let began = clock::utc();
    config.bucket.pacer.begin_at(began);
    let voice = Voice::new(config.quiet);
    let dropped = config.dropped.clone().map(Dropped::open).transpose()?;
    let (leaker_bell, leaker_ear) = fd::bell().context("could not make a pipe")?;
    let (reader_bell, reader_ear) = fd::bell().context("could not make a pipe")?;
    let conduit = config.unseen.then(Conduit::open).flatten().map(Arc::new);
    let (output, input) = (Output::open(leaker_ear).out_of(conduit.clone()), Input::open(reader_ear));
    if config.lockstep {
        output
            .cut_to_a_page()
            .context("--lockstep: stdout must be a pipe that can be cut to a page; pipe it into a reader")?;
    }
    if config.grow {
        output.grow();
        input.grow();
    }
    let mut bucket = Bucket::new(config.bucket.clone(), dropped.is_some());
    let store = match config.shared.as_ref().map(|shared| open(shared, &config, &mut bucket, clock)).transpose() {
        Ok(store) => store,
        Err(error) => return Ok(voice.refuse(&error)),
    };
    let shared = Arc::new(Shared::new(&config, bucket, dropped, leaker_bell, reader_bell));
    let report = Report::new(&config, clock);
    let (at_signal, asked) = (Arc::clone(&shared), report.clone());
    let for_signals = Arc::clone(&shared);
    let (reread, ear) = match &config.follow {
        Some(_) => fd::bell().map(|(bell, ear)| (Some(bell), Some(ear))).context("could not make a pipe")?,
        None => (None, None),
    };
    let summary = move || {
        // Nobody waits for a stderr that takes nothing.
        let summary = asked.summary(&at_signal.lock(), None);
        voice::aside(&summary);
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
    let reader = Reader::new(Arc::clone(&shared), clock, input, intake, spare, conduit.clone(), &config);
    let reader =
        thread::Builder::new().name("reader".into()).spawn(move || reader.run()).context("could not start a thread")?;
    let leaker = Leaker::new(Arc::clone(&shared), clock, output, used, &config);
    let leaker = leaker.share(match (store, &config.shared) {
        (Some(store), Some(shared::Config { on_outage, .. })) => {
            let ringer = Arc::clone(&shared);
            let wake = move || {
                if !ringer.answered.swap(true, Ordering::SeqCst) {
                    ringer.leaker_bell.ring();
                }
            };
            let calls = Background::start(store, move || clock.now(), wake).context("could not start a thread")?;
            Some(Store { calls, on_outage: *on_outage })
        }
        _ => None,
    });
    let leaker =
        thread::Builder::new().name("leaker".into()).spawn(move || leaker.run()).context("could not start a thread")?;
    if let Some(ear) = ear {
        let (shared, report) = (Arc::clone(&shared), report.clone());
        let config = config.clone();
        let follow = move || follow_rate(config, began, clock, &ear, &shared, &report);
        thread::Builder::new().name("follow".into()).spawn(follow).context("could not start a thread")?;
    }
    if leaker.join().is_err() {
        shared.stop(Stop::Failed("the leaker thread has panicked; please report this".into()));
    }
    let mut exit = end(&shared, conduit.as_deref(), &voice, reader, progress);
    if let Some(metrics) = metrics {
        metrics.finish(&voice);
    }
    let level = match config.shared.filter(|_| config.stats.is_some() && config.bucket.max_keys.is_none()) {
        Some(place) if exit == Exit::Done => match place.open().and_then(|mut store| store.peek(b"")) {
            Ok(level) => Some(level),
            // With nothing to let out, it was run to be told.
            Err(error) if shared.counters.snapshot().read == 0 => {
                exit = voice.refuse(&error);
                None
            }
            Err(error) => {
                voice.warn(&error);
                None
            }
        },
        _ => None,
    };
    let core = shared.lock();
    // To a reader that has gone nobody owes an explanation, and of what is missing has been told.
    let silent = exit == Exit::READER_GONE || shared.dropped.as_ref().is_some_and(|dropped| !dropped.is_whole());
    let voice = if silent { Voice::new(true) } else { voice };
    voice.notice_faults(&core.faults);
    report.conclude(&core, level, &voice);
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
        (core.tick, core.changed_at, core.changing, core.busy) = (next.tick, now, true, Busy::default());
        core.accounted = core.bucket.accounts();
        report.set_pace(Pace::of(&next));
        shared.publish(&mut core);
        // Both may have something to do now.
        core.reader_waits = 0;
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

/// Opens a shared bucket. Where an arrival may be dropped the level counts from the first one on, so it is looked at.
fn open(
    shared: &shared::Config,
    config: &Config,
    bucket: &mut Bucket,
    clock: Monotonic,
) -> Result<Box<dyn shared::Store + Send>, StoreError> {
    let mut store = shared.open()?;
    if config.bucket.overflow != Overflow::Block && config.bucket.max_keys.is_none() {
        match store.peek(b"") {
            Ok(level) => bucket.heard(level.ahead_ns, clock.now()),
            Err(error) if !error.is_outage() => return Err(error),
            // Whether that ends the run is told when a slot is needed.
            Err(_) => {}
        }
    }
    Ok(store)
}

/// Brings a run to its end: accounts for everything that has been read.
fn end(
    shared: &Shared,
    conduit: Option<&Conduit>,
    voice: &Voice,
    reader: thread::JoinHandle<()>,
    progress: Option<Progress>,
) -> Exit {
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
    let mut rest = core.reader_left.take().unwrap_or_default();
    let mut stop = core.stop.clone();
    let mut leftover = core.bucket.leftover();
    if let Some(conduit) = conduit {
        // It holds what the bucket knows of, and behind that what it was not told any more.
        match conduit.drain() {
            Ok(mut held) => {
                rest = held.split_off((core.bucket.held_bytes() as usize).min(held.len()));
                leftover = vec![Slice::new(held)];
            }
            Err(error) => stop = Some(Stop::Failed(format!("could not read what is held: {error}"))),
        }
    }
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
        Some(Stop::NoStore(_)) => Exit::NoTurn,
        Some(Stop::Failed(_)) | None => Exit::Failed,
    };
    let why = match &stop {
        Some(Stop::Failed(why) | Stop::NoStore(why)) => Some(&**why),
        Some(Stop::Overflow) if shared.dropped.is_none() => Some("the bucket is full"),
        _ => None,
    };
    // One fault is told of in one line.
    let kept = match &shared.dropped {
        Some(dropped) if dropped.is_whole() => dropped.append(&leftover).map_err(|error| format!("{error:#}")),
        Some(dropped) => {
            dropped.miss(leftover.iter().map(|slice| slice.len() as u64).sum());
            Err(why.unwrap_or_default().to_string())
        }
        None => Ok(()),
    };
    match (kept, why) {
        (Err(error), _) => {
            let missing = shared.dropped.as_ref().map_or(0, Dropped::missing);
            voice.say(format!("{error}; {missing} bytes that were read are neither there nor written"));
            return Exit::Failed;
        }
        (Ok(()), why) if shared.dropped.is_some() || held == 0 || stop == Some(Stop::ReaderGone) => {
            why.iter().for_each(|why| voice.say(why));
        }
        (Ok(()), Some(why)) => voice.say(format!("{why}; {}; --dropped FILE would keep it", left(held))),
        (Ok(()), None) => voice.warn(format!("{}; --dropped FILE would keep it", left(held))),
    }
    exit
}

/// How many were read and not written, in words.
fn left(held: u64) -> String {
    format!("{held} {} read and not written", if held == 1 { "was" } else { "were" })
}
