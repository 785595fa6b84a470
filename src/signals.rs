//! Signals.
//!
//! Each signal that would end a process ends the run in good order first. One that was ignored when leaky was started
//! stays ignored, as nohup and `trap ''` want it; for SIGPIPE that cannot be told, since Rust ignores it by itself.

use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::Signals;
use std::io;
use std::os::raw::c_int;

/// Calls `report` at each SIGUSR1 and `end` at each signal that is to end the run, in a thread of its own.
///
/// # Errors
/// If the system refuses.
pub fn listen(
    mut report: impl FnMut() + Send + 'static,
    mut end: impl FnMut(c_int) + Send + 'static,
) -> io::Result<()> {
    let all =
        [SIGUSR1, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGALRM, SIGUSR2, SIGVTALRM, SIGPROF, SIGXCPU, SIGXFSZ, SIGIO];
    let ignored = ignored();
    let mut signals = Signals::new(all.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0))?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 { report() } else { end(signal) }
        }
    })?;
    Ok(())
}

/// The signals that are ignored, a bit each. The disposition cannot be asked for in safe Rust, but Linux writes it down.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
