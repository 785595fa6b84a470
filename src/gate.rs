//! The gate: wait for one turn of a shared bucket, then become the command.
//!
//! The command takes the place of leaky: the same process with the same stdin, stdout, environment and ignored signals.
//! Until then a signal ends the wait, gives the turn back and is died of. The turn is taken in a thread of its own, which
//! may be stuck in a call: a server can hang, and whoever holds the lock of a file can be stopped.

use crate::clock::{Clock, Monotonic, SECOND};
use crate::exit::Exit;
use crate::fd::{self, Ear};
use crate::shared;
use crate::shared::StoreError;
use crate::shared::client::{Client, Timer, Turn};
use crate::signals;
use crate::voice::Voice;
use anyhow::{Context, bail};
use signal_hook::consts::SIGUSR1;
use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

/// One turn, and what to do with it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
    /// What the turn costs.
    pub cost: u64,
    /// How long it may be waited for at most, in nanoseconds.
    pub max_wait: Option<u64>,
    /// A turn later than this is taken anew, in nanoseconds.
    pub catch_up: u64,
    /// Whose turn it is.
    pub shared: shared::Config,
}

/// What will happen, for people.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { command, cost, max_wait, shared, .. } = self;
        let command = command.first().map_or("".into(), |command| command.to_string_lossy());
        write!(
            f,
            "{} starts at a turn of cost {cost} at {}, burst {}",
            command.escape_debug(),
            shared.terms.pace,
            shared.terms.burst()
        )?;
        write!(f, ", shared at {shared}; it waits ")?;
        match max_wait {
            Some(0) => write!(f, "for nothing, and is not run if that is not now"),
            Some(ns) => write!(f, "{} at most", humantime::format_duration(Duration::from_nanos(*ns))),
            None => write!(f, "as long as that takes"),
        }
    }
}

/// How long the end waits for a turn to be given back.
const FAREWELL: Duration = Duration::from_millis(500);

/// A wait does not notice that the machine sleeps; the clock does.
const NAP: u64 = 60 * SECOND;

/// The machine's clock, and a wait that a signal ends.
struct Patience {
    clock: Monotonic,
    ear: Ear,
    signal: Arc<AtomicI32>,
}

impl Timer for Patience {
    fn now_ns(&mut self) -> u64 {
        self.clock.now()
    }

    fn wait_until(&mut self, ns: u64) -> bool {
        loop {
            let left = ns.saturating_sub(self.clock.now());
            match self.signal.load(Ordering::SeqCst) {
                0 if left == 0 => return true,
                // Not longer at once than a machine that has slept may be late for its turn.
                0 if self.ear.wait(Some(left.min(NAP))).is_ok() => {}
                _ => return false,
            }
        }
    }
}

/// Waits for the turn and becomes the command; returns only if that does not come about.
///
/// # Errors
/// If the system refuses what a wait takes.
pub fn run(gate: &Config, voice: &Voice) -> anyhow::Result<Exit> {
    let (bell, ear) = fd::bell().context("could not make a pipe")?;
    let signal = Arc::new(AtomicI32::new(0));
    let (said, heard) = channel();
    let end = {
        let (signal, said) = (Arc::clone(&signal), said.clone());
        move |number| {
            if signal.swap(number, Ordering::SeqCst) == 0 {
                bell.ring();
                // Nobody listens any more once it is known how the turn ends.
                let _ = said.send(None);
            }
        }
    };
    let end = Arc::new(end);
    let asked = Arc::clone(&end);
    signals::listen(move || asked(SIGUSR1), move |number| end(number)).context("could not listen to signals")?;
    let mut patience = Patience { clock: Monotonic::sleepless(), ear, signal: Arc::clone(&signal) };
    let (taken, tells) = (gate.clone(), voice.clone());
    let taking = move || {
        let said = Last(said);
        let Config { shared, cost, max_wait, catch_up, .. } = taken;
        let mut tell = |notice: &_| tells.notice_shared(notice, shared.on_outage);
        let turn = shared.open().and_then(|store| {
            let mut client = Client::new(store, shared.settings(catch_up));
            client.turn(b"", cost, max_wait, &mut patience, &mut tell)
        });
        said.say(Some(turn));
    };
    thread::Builder::new().name("turn".into()).spawn(taking).context("could not start a thread")?;
    let turn = match heard.recv() {
        Ok(Some(turn)) => turn,
        _ if signal.load(Ordering::SeqCst) == 0 => bail!("the thread of the turn has panicked; please report this"),
        // It says once more that it is interrupted, unless it is stuck.
        _ => heard.recv_timeout(FAREWELL).ok().flatten().unwrap_or(Ok(Turn::Interrupted)),
    };
    match turn {
        Ok(Turn::TooFar { wait_ns }) => {
            let wait = humantime::format_duration(Duration::from_nanos(wait_ns));
            voice.warn(format!("no turn in time, it would take {wait}; the command was not run"));
            return Ok(Exit::NoTurn);
        }
        Err(error) => {
            return Ok(voice.refuse(&error));
        }
        Ok(Turn::Go | Turn::Interrupted) => {}
    }
    match signal.load(Ordering::SeqCst) {
        0 if turn == Ok(Turn::Interrupted) => bail!("could not wait for the turn"),
        0 => Ok(become_command(&gate.command, voice)),
        number => Ok(Exit::Signal(number)),
    }
}

/// Says what became of the turn, and at its own end nothing: whoever listens does not wait for ever.
struct Last(Sender<Option<Result<Turn, StoreError>>>);

impl Last {
    fn say(&self, turn: Option<Result<Turn, StoreError>>) {
        // Nobody listens any more once it is known how it ends.
        let _ = self.0.send(turn);
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        self.say(None);
    }
}

fn become_command(command: &[OsString], voice: &Voice) -> Exit {
    let Some((name, arguments)) = command.split_first() else { return Exit::Usage };
    let error = Command::new(name).args(arguments).exec();
    let name = name.to_string_lossy();
    let name = name.escape_debug();
    if error.kind() == ErrorKind::NotFound {
        voice.say(format!("-- '{name}': there is no such command; give its path"));
        return Exit::NotFound;
    }
    voice.say(format!("-- '{name}': cannot be run: {error}"));
    Exit::CannotRun
}
