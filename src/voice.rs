//! What is said on stderr: one line each, and never across the line of progress.

use crate::bucket::Notice;
use crate::exit::Exit;
use crate::intake::Faults;
use crate::shared::StoreError;
use crate::shared::ledger::{self, OnOutage};
use indicatif::ProgressBar;
use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};

/// The line that is drawn at the moment: stderr is one for the whole process, and so is the line on it.
static LINE: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// The line of progress, if there is one.
pub fn line() -> std::sync::MutexGuard<'static, Option<ProgressBar>> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes `text` and a newline to stderr, above the line if there is one.
pub fn aside(text: &str) {
    // Nothing can be done about a stderr that takes nothing.
    let write = || {
        let _ = writeln!(io::stderr(), "{text}");
    };
    let bar = line().clone();
    match bar {
        Some(bar) if in_foreground() => bar.suspend(write),
        _ => write(),
    }
}

/// Whether the terminal of stderr is ours at the moment. Who works in the background draws nothing onto it.
pub fn in_foreground() -> bool {
    let group = rustix::termios::tcgetpgrp(rustix::stdio::stderr());
    group.map_or(true, |group| group == rustix::process::getpgrp())
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

    /// Says so, quiet or not. A message is one line whatever was given, and moves no cursor. Nothing can be done about
    /// a stderr that takes nothing.
    pub fn say(&self, text: impl std::fmt::Display) {
        let shown = |c: char| match c {
            '\'' | '"' | '\\' => c.to_string(),
            // Nor may it turn the direction of what follows.
            _ => c.escape_debug().to_string(),
        };
        let text: String = text.to_string().chars().map(shown).collect();
        aside(&format!("leaky: {text}"));
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

    /// Says why a shared bucket cannot be had; how that ends the run.
    pub fn refuse(&self, error: &StoreError) -> Exit {
        self.say(error);
        if error.is_outage() { Exit::NoTurn } else { Exit::Failed }
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
