//! Parse, run, exit.

use clap::Parser;
use leaky::cli::{self, Cli};
use leaky::config::Config;
use leaky::exit::Exit;
use leaky::voice::Voice;
use std::process::ExitCode;

fn main() -> ExitCode {
    let exit = match Cli::try_parse() {
        Err(error) => cli::answer(&error),
        Ok(typed) if typed.completions.is_some() => cli::complete(&typed),
        Ok(typed) if cli::lacks_command(&typed) => {
            cli::complain("--: no COMMAND follows; say one, or leave the -- out")
        }
        Ok(typed) => match Config::try_from(typed) {
            Err(complaint) => cli::complain(complaint),
            Ok(config) => leaky::run(config).unwrap_or_else(|error| {
                Voice::new(false).say(format_args!("{error:#}"));
                Exit::Failed
            }),
        },
    };
    ExitCode::from(exit.status())
}
