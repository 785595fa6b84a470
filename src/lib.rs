//! leaky
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
