//! What the reader and the leaker share, and everybody's voice.
//!
//! The bucket is locked once for each block that is read and once for each time the leaker wakes. The leaker sleeps in a
//! poll and is called by a bell; the reader waits for room on a condition.

use crate::bucket::{Accounts, Bucket};
use crate::config::Config;
use crate::counters::{Counters, Lateness};
use crate::fd::{self, Bell};
use crate::intake::Faults;
use crate::run::Slice;
use anyhow::Context;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Why a run ends before the last item is out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// This signal came.
    Signal(i32),
    /// The reader of stdout has gone.
    ReaderGone,
    /// The bucket overflowed under `Overflow::Fail`.
    Overflow,
    /// The shared bucket is away, and that is to end the run.
    NoStore(String),
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
    /// The lateness that was forgiven in it, in nanoseconds.
    pub forgiven: u64,
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
    /// The reader waits for room, and would read so many bytes; 0: it does not wait.
    pub reader_waits: usize,
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
    /// Nothing has left since: that wait was a part of both rates, and counts for none.
    pub changing: bool,
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
    /// Calls for slots of a shared rate are answered, and the leaker has been called for that.
    pub answered: AtomicBool,
    /// Where what is not emitted goes.
    pub dropped: Option<Dropped>,
}

impl Shared {
    /// What the threads of a run of `config` share before it begins.
    pub fn new(
        config: &Config,
        bucket: Bucket,
        dropped: Option<Dropped>,
        leaker_bell: Bell,
        reader_bell: Bell,
    ) -> Shared {
        let core = Core {
            bucket,
            ended: false,
            stop: None,
            asleep_until: None,
            reader_waits: 0,
            reader_left: None,
            faults: Faults::default(),
            lateness: Lateness::default(),
            blocked_ns: 0,
            blocked_since: 0,
            changed_at: 0,
            changing: false,
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
            answered: AtomicBool::new(false),
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
    /// Bytes that should be there and could not be written.
    missing: AtomicU64,
}

impl Dropped {
    /// Opens `path` to append to it.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: PathBuf) -> anyhow::Result<Dropped> {
        let file = File::options().append(true).create(true).open(&path);
        let file = file.with_context(|| format!("could not open --dropped '{}'", path.display()))?;
        Ok(Dropped { path, file: Mutex::new(file), missing: AtomicU64::new(0) })
    }

    /// How many bytes should be there and could not be written.
    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// So many bytes more should be there, and will not be.
    pub fn miss(&self, bytes: u64) {
        self.missing.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether all could be written so far.
    pub fn is_whole(&self) -> bool {
        self.missing() == 0
    }

    /// Appends `slices`.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn append(&self, slices: &[Slice]) -> anyhow::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        let mut write = |bytes: &[u8]| {
            let mut rest = bytes;
            while !rest.is_empty() {
                match file.write(rest) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => {
                        left -= written as u64;
                        rest = &rest[written..];
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        let mut joined = Vec::new();
        let written = slices.iter().try_for_each(|slice| {
            if slice.len() > fd::PIPE_BUF {
                write(&joined)?;
                joined.clear();
                return write(slice.bytes());
            }
            joined.extend_from_slice(slice.bytes());
            Ok(())
        });
        let written = written.and_then(|()| write(&joined));
        self.missing.fetch_add(left, Ordering::Relaxed);
        written.with_context(|| format!("could not write to --dropped '{}'", self.path.display()))
    }
}
