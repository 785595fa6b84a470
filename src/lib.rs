//! leaky
pub mod bucket;
pub mod cli;
pub mod clock;
pub mod config;
pub mod counters;
pub mod exit;
pub mod fd;
pub mod frame;
pub mod gate;
pub mod intake;
pub mod leaker;
pub mod pacer;
pub mod pipeline;
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

use config::Config;
use exit::Exit;

/// Does what `config` says.
///
/// # Errors
/// What ended it early, for the user.
pub fn run(config: Config) -> anyhow::Result<Exit> {
    if let Some(gate) = config.gate {
        return gate::run(&gate, &pipeline::Voice::new(config.quiet));
    }
    if config.simulate { simulate::run(config) } else { pipeline::run(config) }
}
