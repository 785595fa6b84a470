//! The options as typed. What they mean, and which go together, is for `config` to say.

use crate::exit::Exit;
use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;

/// What was typed.
#[derive(Parser, Clone, Debug, Default)]
#[command(
    name = "leaky",
    version,
    about = "Lets lines, records or bytes from stdin out onto stdout at an exact rate",
    override_usage = "leaky [OPTIONS] --rate RATE < INPUT > OUTPUT
       leaky [OPTIONS] --rate RATE --shared WHERE -- COMMAND [ARG...]",
    after_help = "Examples:
  cat urls.txt | leaky --rate 2/s --capacity 10 | while read -r u; do curl -s \"$u\" < /dev/null; done
  tail -F access.log | leaky --rate 2/s --capacity 20 --key field:1 --overflow drop
  xargs -a urls.txt -P8 -n1 leaky --rate 300/min --shared api -- curl -s
  leaky --rate 10MiB/s < backup.tar | ssh host 'cat > backup.tar'
  leaky --rate 5/s --capacity 20 --overflow drop --simulate --replay 'regex:\\[(.*?)\\]' < access.log

See leaky(1) for what every option promises.",
    disable_help_subcommand = true,
    allow_negative_numbers = true,
    next_line_help = false,
    term_width = 0,
    max_term_width = 100
)]
pub struct Cli {
    /// Let out so much per period: 2/s 300/min 5/15s 1/90s 100k/s 10MiB/s 8Mbit/s 60cost/min unlimited
    ///
    /// [COUNT][UNIT][/PERIOD]. COUNT is a decimal, 1 if left out, and may end in k, M, G or T (powers of 1000). UNIT is
    /// nothing for items, B kB MB GB TB, KiB MiB GiB TiB, bit kbit Mbit Gbit, or cost. PERIOD is a unit (ms s min m h d)
    /// or a duration such as 15s, and a second if left out. Every rate given holds at once.
    #[arg(short, long = "rate", value_name = "RATE", help_heading = "Rate", allow_hyphen_values = true)]
    pub rates: Vec<String>,

    /// How to keep the rate: leaky-bucket (default), token-bucket, fixed-window, sliding-window
    #[arg(short, long, value_name = "A", help_heading = "Rate", allow_hyphen_values = true)]
    pub algorithm: Option<String>,

    /// Let so much leave back to back after idling (token-bucket)
    #[arg(short, long, value_name = "N|SIZE", help_heading = "Rate", allow_hyphen_values = true)]
    pub burst: Option<String>,

    /// Where fixed windows begin: first (with the first item, default) or clock (on the UTC grid)
    #[arg(long, value_name = "first|clock", help_heading = "Rate", allow_hyphen_values = true)]
    pub align: Option<String>,

    /// Start slowly after idling and reach the rate within DURATION
    #[arg(long, value_name = "DURATION", help_heading = "Rate", allow_hyphen_values = true)]
    pub warm_up: Option<String>,

    /// Make up for lateness up to DURATION [default: 10ms where items are 50ms or more apart, else 50ms]
    #[arg(long, value_name = "DURATION", help_heading = "Rate", allow_hyphen_values = true)]
    pub catch_up: Option<String>,

    /// Make up for no lateness at all and write each item by itself
    #[arg(long, help_heading = "Rate")]
    pub strict: bool,

    /// Let an item leave only once the reader has taken the one before it
    #[arg(long, help_heading = "Rate")]
    pub lockstep: bool,

    /// Items are lines, also where every rate is in bytes or bits
    #[arg(short, long, help_heading = "Items")]
    pub lines: bool,

    /// Items end with a NUL byte
    #[arg(short = '0', long, help_heading = "Items")]
    pub null: bool,

    /// Items end with STR, which may hold \n \t \0 \xHH
    #[arg(short, long, value_name = "STR", help_heading = "Items", allow_hyphen_values = true)]
    pub delimiter: Option<String>,

    /// Items have SIZE bytes each
    #[arg(long, value_name = "SIZE", help_heading = "Items", allow_hyphen_values = true)]
    pub record_size: Option<String>,

    /// Items are chunks of whatever has been read
    #[arg(short = 'B', long, help_heading = "Items")]
    pub bytes: bool,

    /// How many bytes become due at once under --bytes [default: 10ms of the rate, 1B to 64KiB]
    #[arg(long, value_name = "SIZE", help_heading = "Items", allow_hyphen_values = true)]
    pub chunk: Option<String>,

    /// Read an item's cost out of it: field:N, regex:RE or json:/pointer
    #[arg(long, value_name = "SELECTOR", help_heading = "Items", allow_hyphen_values = true)]
    pub cost: Option<String>,

    /// Separates fields for field:N [default: runs of blanks]
    #[arg(short = 't', long, value_name = "C", help_heading = "Items", allow_hyphen_values = true)]
    pub field_separator: Option<String>,

    /// How much may be in the bucket: items, bytes (10MiB) or the longest wait (5s) [default: 1024]
    #[arg(short, long, value_name = "N|SIZE|DURATION", help_heading = "Bucket", allow_hyphen_values = true)]
    pub capacity: Option<String>,

    /// What becomes of an arrival that finds the bucket full: block (default), drop-newest, drop-oldest, fail
    #[arg(short, long, value_name = "P", help_heading = "Bucket", allow_hyphen_values = true)]
    pub overflow: Option<String>,

    /// Let an arrival wait so long for room before it is dropped
    #[arg(long, value_name = "DURATION", help_heading = "Bucket", allow_hyphen_values = true)]
    pub timeout: Option<String>,

    /// Expire what has waited longer
    #[arg(long, value_name = "DURATION", help_heading = "Bucket", allow_hyphen_values = true)]
    pub max_age: Option<String>,

    /// Append what is dropped, expired or left over to FILE
    #[arg(long, value_name = "FILE", help_heading = "Bucket")]
    pub dropped: Option<PathBuf>,

    /// A bucket for each key, read out of the item: field:N, regex:RE or json:/pointer
    #[arg(short, long, value_name = "SELECTOR", help_heading = "Keys", allow_hyphen_values = true)]
    pub key: Option<String>,

    /// How many keys may be in use at once [default: 100000]
    #[arg(long, value_name = "N", help_heading = "Keys", allow_hyphen_values = true)]
    pub max_keys: Option<String>,

    /// Share the bucket with others: a name, a path, redis://HOST, rediss://HOST or unix:///SOCKET
    ///
    /// A name is a state file in $XDG_STATE_HOME/leaky (~/.local/state/leaky), a path is one anywhere else. A password
    /// may be given in LEAKY_REDIS_PASSWORD instead of in the URL.
    #[arg(short, long, value_name = "WHERE", help_heading = "Sharing", allow_hyphen_values = true)]
    pub shared: Option<OsString>,

    /// Which bucket of the server to share [default: default]
    #[arg(long, value_name = "NAME", help_heading = "Sharing", allow_hyphen_values = true)]
    pub bucket: Option<String>,

    /// While the server is away: block (hold, the default), exit (with 75) or local=RATE (an own bucket)
    #[arg(long, value_name = "block|exit|local=RATE", help_heading = "Sharing", allow_hyphen_values = true)]
    pub on_outage: Option<String>,

    /// Wait for one turn of the shared bucket, then become COMMAND
    #[arg(last = true, value_name = "COMMAND", help_heading = "Sharing")]
    pub command: Vec<OsString>,

    /// Items arrive at their recorded times, read out by SELECTOR
    #[arg(long, value_name = "SELECTOR", help_heading = "Replay and simulation", allow_hyphen_values = true)]
    pub replay: Option<String>,

    /// Replay X times as fast
    #[arg(long, value_name = "X", help_heading = "Replay and simulation", allow_hyphen_values = true)]
    pub speed: Option<String>,

    /// Cut longer gaps of a replay to DURATION
    #[arg(long, value_name = "DURATION", help_heading = "Replay and simulation", allow_hyphen_values = true)]
    pub max_gap: Option<String>,

    /// Wait for nothing, and write what would become of each item as JSON
    #[arg(long, help_heading = "Replay and simulation")]
    pub simulate: bool,

    /// Draw a live line on stderr, where that is a terminal and stdout is none
    #[arg(short, long, help_heading = "Reporting")]
    pub progress: bool,

    /// Write counters to FILE as Prometheus text, every two seconds and at the end
    #[arg(long, value_name = "FILE", help_heading = "Reporting")]
    pub metrics: Option<PathBuf>,

    /// Print a summary on stderr at the end and on SIGUSR1, as text or json
    #[arg(
        long,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text",
        help_heading = "Reporting"
    )]
    pub stats: Option<String>,

    /// Print no warnings
    #[arg(short, long, help_heading = "Reporting")]
    pub quiet: bool,

    /// Print how the options were understood
    #[arg(short, long, help_heading = "Reporting")]
    pub verbose: bool,

    /// Print completions for SHELL: bash, elvish, fish, powershell or zsh
    #[arg(long, value_name = "SHELL", help_heading = "Reporting")]
    pub completions: Option<String>,
}

/// Prints what clap has to say: help and version on stdout, and what is wrong in one line on stderr.
pub fn answer(error: &clap::Error) -> Exit {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => show(error.render().to_string().as_bytes()),
        ErrorKind::UnknownArgument => {
            let stray = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
            if !stray.starts_with('-') {
                return complain(format!(
                    "'{stray}': leaky reads stdin; say `< {stray}`, or `-- {stray}` for a command that waits for its turn"
                ));
            }
            let meant = error.get(ContextKind::SuggestedArg).map(|meant| format!("did you mean {meant}? "));
            complain(format!("{stray}: there is no such option; {}see leaky --help", meant.unwrap_or_default()))
        }
        ErrorKind::InvalidUtf8 => complain("an argument is not UTF-8: only the name of a file may be anything else"),
        _ => {
            let text = error.render().to_string();
            let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string();
            complain(format!("{line}; see leaky --help"))
        }
    }
}

/// Prints what is wrong with the command line.
pub fn complain(complaint: impl Display) -> Exit {
    // A message is one line whatever was typed, and moves no cursor.
    let shown = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    let complaint: String = complaint.to_string().chars().map(shown).collect();
    // A stderr that takes nothing cannot be complained about either.
    let _ = writeln!(io::stderr(), "leaky: {complaint}");
    Exit::Usage
}

/// Prints the completions that `typed` asks for.
pub fn complete(typed: &Cli) -> Exit {
    let name = typed.completions.as_deref().unwrap_or_default();
    let Ok(shell) = name.parse::<Shell>() else {
        return complain(format!("--completions '{name}': there are bash, elvish, fish, powershell and zsh"));
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leaky", &mut script);
    show(&script)
}

fn show(text: &[u8]) -> Exit {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Ok(()) => Exit::Done,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::READER_GONE,
        Err(error) => {
            let _ = complain(format!("could not write to stdout: {error}"));
            Exit::Failed
        }
    }
}
