//! How a run ends, for whoever started it.

use signal_hook::consts::SIGPIPE;
use std::os::raw::c_int;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything was done: 0.
    Done,
    /// Input, output or something else failed: 1.
    Failed,
    /// The command line makes no sense: 2.
    Usage,
    /// The bucket overflowed under `--overflow fail`: 3.
    Overflow,
    /// No turn came in time, or the shared bucket is away under `--on-outage exit`: 75.
    NoTurn,
    /// The command of a gate cannot be run: 126.
    CannotRun,
    /// The command of a gate is not found: 127.
    NotFound,
    /// This signal ended it: 128 + its number, really dying of it.
    Signal(c_int),
}

impl Exit {
    /// The reader has gone away.
    pub const READER_GONE: Exit = Exit::Signal(SIGPIPE);

    /// The status for the parent. Does not return where a signal is to be died of.
    pub fn status(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Overflow => 3,
            Exit::NoTurn => 75,
            Exit::CannotRun => 126,
            Exit::NotFound => 127,
            Exit::Signal(signal) => {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
                // It takes SIGIO for one that does nothing by default. A program begins with the default, and is the
                // same process.
                let _ = Command::new("/bin/sh").args(["-c", &format!("kill -{signal} $$")]).exec();
                u8::try_from(128 + signal).unwrap_or(u8::MAX)
            }
        }
    }
}
