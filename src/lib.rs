//! leaky: a pipe throttler. Items pour from stdin into a bounded bucket, and a leaker thread lets them out onto stdout at
//! an exact rate.
//!
//! ```text
//! stdin > reader: intake (frame, select, timestamp, replay) > bucket (pacer) > leaker > stdout
//!                                                               |
//!                                counters > report, progress, metrics: they look, and nobody waits for them
//! ```
//!
//! - In the middle, pure, with time passed in: `rate` and `pacer` say when, `bucket` who gets in and who leaves, `run` what
//!   an item is made of, `frame` and `select` how bytes become items.
//! - At the rim, threads and system calls: `fd`, `reader`, `leaker`, `hub` (what both threads share) and `pipeline`, which
//!   joins them; `signals`, `follow` (a rate read from a file), `voice` (stderr).
//! - Three other ways in: `simulate` runs the same bucket on a virtual clock, `replay` takes arrivals from recorded times,
//!   `gate` waits for one turn and becomes a command.
//! - `shared` holds buckets that many processes have in common: a state file, Redis.
//! - `cli` is what was typed, `config` what it means: every rule between options stands there.

pub mod bucket;
pub mod cli;
pub mod clock;
pub mod config;
pub mod counters;
pub mod exit;
pub mod fd;
pub mod follow;
pub mod frame;
pub mod gate;
pub mod hub;
pub mod intake;
pub mod leaker;
pub mod metrics;
pub mod pacer;
pub mod pipeline;
pub mod progress;
pub mod rate;
pub mod reader;
pub mod replay;
pub mod report;
pub mod run;
pub mod select;
pub mod shared;
pub mod signals;
pub mod simulate;
pub mod timestamp;
pub mod voice;

use config::Config;
use exit::Exit;
use voice::Voice;

/// Does what `config` says.
///
/// # Errors
/// What ended it early, for the user.
pub fn run(config: Config) -> anyhow::Result<Exit> {
    let voice = Voice::new(config.quiet);
    for warning in &config.warnings {
        voice.warn(warning);
    }
    if let Some(understood) = &config.understood {
        voice.say(understood);
    }
    if let Some(gate) = &config.gate {
        return gate::run(gate, &voice);
    }
    if fd::Input::is_terminal() {
        voice.warn("reading from the terminal; end with Ctrl-D");
    }
    if config.simulate { simulate::run(config) } else { pipeline::run(config) }
}
