//! The options as typed. What they mean, and which go together, is for `config` to say.

// What stands in brackets is help for people, no link.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::exit::Exit;
use crate::voice::Voice;
use clap::error::{ContextKind, ErrorKind};
use clap::{ArgAction, CommandFactory, Parser};
use clap_complete::Shell;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What was typed.
#[derive(Parser, Clone, Debug, Default)]
#[command(
    name = "leaky",
    version,
    about = "Lets lines, records or bytes from stdin out onto stdout at an exact rate",
    override_usage = "leaky [OPTIONS] --rate RATE < INPUT > OUTPUT
       leaky [OPTIONS] --rate RATE --shared WHERE -- COMMAND [ARG...]",
    after_help = "\
Examples:
  cat urls.txt | leaky -r 2/s | while read -r u; do curl -s \"$u\" < /dev/null; done
  xargs -a urls.txt -P8 -n1 leaky -r 300/min --shared api -- curl -s
  tail -F access.log | leaky -r 2/s --key field:1 -o drop -c 1
  leaky -r 10MiB/s --progress < backup.tar | ssh host 'cat > backup.tar'

All options, and what they mean: leaky --help. Everything: man leaky.",
    long_about = "\
Lets items (lines, records or chunks of bytes) from stdin out onto stdout at an exact rate.

Items pour into a bucket and leave through its hole, one each time the rate has a slot for it. What cannot leave yet \
waits in the bucket, up to its capacity. An arrival that finds the bucket full waits too, so that the producer has to \
(--overflow block), or it is dropped, or the run ends, as told. Nothing is lost without being counted.

With a COMMAND no items pass: leaky is a gate, waits for one turn of the rate that is shared, and becomes COMMAND.

Examples:
  Two requests a second, whatever the producer does:
    cat urls.txt | leaky --rate 2/s | while read -r u; do curl -s \"$u\" < /dev/null; done
  The same, where the loop may be slow and must not find two lines waiting in the pipe afterwards:
    cat urls.txt | leaky --rate 2/s --lockstep | while read -r u; do curl -s \"$u\" < /dev/null; done
  See what it would do, without waiting:
    seq 100 | leaky --rate 5/s --capacity 20 --overflow drop --simulate
  Sample a log, two lines a second for each client, and drop the rest; with --capacity 20 up to 19 would wait:
    tail -F access.log | leaky --rate 2/s --capacity 1 --key field:1 --overflow drop
  One limit for many processes: each takes a turn before it runs:
    xargs -a urls.txt -P8 -n1 leaky --rate 300/min --shared api -- curl -s
  A backup at 10 MiB a second, with a line that tells how it goes:
    leaky --rate 10MiB/s --progress < backup.tar | ssh host 'cat > backup.tar'
  Change the rate while it runs; 0 pauses:
    echo 5/s > rate; producer | leaky --rate @rate | consumer
    echo 50/s > rate
  60 requests and 90000 tokens a minute, where each line says how many tokens it is worth:
    leaky --rate 60/min --rate 90000cost/min --cost json:/tokens < prompts.jsonl | ./ask
  Replay a log four times as fast, but never above 500 lines a second:
    leaky --replay field:4 --speed 4 --rate 500/s < access.log | ./resend",
    after_long_help = "\
Exit status: 0 done, 1 failed, 2 a mistake on the command line, 3 overflow under --overflow fail, 75 no turn in \
time, 126 and 127 COMMAND cannot run or is not found, 128+n signal n.",
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true,
    next_line_help = false,
    max_term_width = 100
)]
pub struct Cli {
    /// 2/s 300/min 10MiB/s; @FILE follows FILE
    ///
    /// Written [COUNT][UNIT][/PERIOD]: 2/s 0.1/s 300/min 5/15s 1/90s 100k/s 10MiB/s 8Mbit/s 60cost/min.
    ///
    /// COUNT is a decimal, 1 if left out, and may end in k, M, G or T (powers of 1000). UNIT is nothing for items;
    /// B kB MB GB TB or KiB MiB GiB TiB for bytes; bit kbit Mbit Gbit; or cost. PERIOD is a unit (ms s min m h d) or a
    /// duration such as 15s, and a second if left out.
    ///
    /// Given more than once, every rate holds at once: -r 10/s -r 300/min. The word unlimited holds nothing back.
    /// @FILE reads the rate from FILE and follows it while leaky runs: a change counts at once, 0 pauses, and a text
    /// that is no rate leaves it as it was.
    #[arg(short, long = "rate", value_name = "RATE", help_heading = "Rate", allow_hyphen_values = true)]
    pub rates: Vec<String>,

    /// leaky-bucket, token-bucket, fixed- or sliding-window
    ///
    /// leaky-bucket (default): one after the other, evenly spaced; idling earns nothing.
    /// token-bucket: idling earns a burst of --burst, which may leave back to back.
    /// fixed-window: so many in each period, as soon as they come; up to twice that across the edge of two.
    /// sliding-window: so many in any period, exactly.
    #[arg(short, long, value_name = "A", help_heading = "Rate", allow_hyphen_values = true, verbatim_doc_comment)]
    pub algorithm: Option<String>,

    /// What may leave back to back after idling
    ///
    /// A number, or bytes such as 64KiB. Given alone it chooses the token bucket, whose burst is COUNT of the rate
    /// otherwise.
    #[arg(short, long, value_name = "N", help_heading = "Rate", allow_hyphen_values = true)]
    pub burst: Option<String>,

    /// Where fixed windows begin: first or clock
    ///
    /// first (default) opens a window with the first item to leave outside any; clock uses the UTC grid, so that with
    /// 100/h a window begins at each full hour.
    #[arg(long, value_name = "WHERE", help_heading = "Rate", allow_hyphen_values = true, hide_short_help = true)]
    pub align: Option<String>,

    /// Start slowly after idling
    ///
    /// After a long pause items leave at a third of the rate at first, and reach the rate within DURATION.
    #[arg(long, value_name = "DURATION", help_heading = "Rate", allow_hyphen_values = true, hide_short_help = true)]
    pub warm_up: Option<String>,

    /// Make up for lateness up to this
    ///
    /// If the machine or the reader of stdout is late by more, the schedule moves, and no burst follows. Default 10ms
    /// where items are 50ms or more apart, else 50ms.
    #[arg(long, value_name = "DURATION", help_heading = "Rate", allow_hyphen_values = true, hide_short_help = true)]
    pub catch_up: Option<String>,

    /// Never make up for lateness, and write items singly
    #[arg(long, help_heading = "Rate", hide_short_help = true)]
    pub strict: bool,

    /// Wait until the reader has taken each item
    ///
    /// An item leaves only once the one before it has been taken out of the pipe, so that none waits there unseen.
    /// stdout has to be a pipe.
    #[arg(long, help_heading = "Rate")]
    pub lockstep: bool,

    /// Items are lines (default)
    ///
    /// Also where every rate is in bytes or bits, which makes them chunks otherwise.
    #[arg(short, long, help_heading = "Items", hide_short_help = true)]
    pub lines: bool,

    /// Items end with a NUL byte
    ///
    /// As written by find -print0.
    #[arg(short = '0', long, help_heading = "Items")]
    pub null: bool,

    /// Items end with STR
    ///
    /// It may hold \n, \r, \t, \0 and \xHH.
    #[arg(short, long, value_name = "STR", help_heading = "Items", allow_hyphen_values = true, hide_short_help = true)]
    pub delimiter: Option<String>,

    /// Items have SIZE bytes each
    #[arg(long, value_name = "SIZE", help_heading = "Items", allow_hyphen_values = true, hide_short_help = true)]
    pub record_size: Option<String>,

    /// Items are chunks of whatever is read
    ///
    /// The default where every rate is in bytes or bits.
    #[arg(short = 'B', long, help_heading = "Items")]
    pub bytes: bool,

    /// The largest chunk under --bytes
    ///
    /// So many bytes leave together. Default 10ms of the rate, from 1B to 64KiB. A chunk never waits to be filled.
    #[arg(long, value_name = "SIZE", help_heading = "Items", allow_hyphen_values = true, hide_short_help = true)]
    pub chunk: Option<String>,

    /// Where an item's cost stands, for a rate of cost
    ///
    /// Such as the tokens of a request. An integer, read out of the item by field:N (from 1), regex:RE (group 1, else all
    /// of the match) or json:/pointer: --cost json:/tokens --rate 100kcost/min.
    #[arg(long, value_name = "SELECTOR", help_heading = "Items")]
    pub cost: Option<String>,

    /// Separates fields for field:N
    ///
    /// Default: runs of blanks.
    #[arg(
        short = 't',
        long,
        value_name = "C",
        help_heading = "Items",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    pub field_separator: Option<String>,

    /// How much may be in it [1024]; 1: nobody waits
    ///
    /// A number of items (bytes under --bytes, cost if every rate is of cost), bytes such as 10MiB, or a duration such
    /// as 5s: the longest wait. The item that left last counts until its slot ends, so with 1 nobody waits. Default
    /// 1024 items, or 1MiB under --bytes.
    #[arg(short, long, value_name = "N", help_heading = "Bucket", allow_hyphen_values = true)]
    pub capacity: Option<String>,

    /// When full: block, drop, drop-oldest or fail
    ///
    /// block (default): the arrival waits, and so does the producer.
    /// drop-newest, or drop: the arrival is dropped.
    /// drop-oldest: what has waited longest is dropped for it.
    /// fail: the run ends with status 3.
    /// Dropping begins when the bucket is full, so say --capacity 1 to keep two a second and drop the rest at once;
    /// with --algorithm fixed-window as well, the first two of each second are kept.
    #[arg(short, long, value_name = "P", help_heading = "Bucket", allow_hyphen_values = true, verbatim_doc_comment)]
    pub overflow: Option<String>,

    /// The longest wait for room, or for COMMAND's turn
    ///
    /// An arrival that finds no room within DURATION is dropped: given alone it chooses --overflow drop. If COMMAND
    /// cannot have its turn within DURATION, it is not run, and the status is 75 at once.
    #[arg(long, value_name = "DURATION", help_heading = "Bucket", allow_hyphen_values = true)]
    pub timeout: Option<String>,

    /// Expire what has waited longer
    ///
    /// An expired item takes no slot.
    #[arg(long, value_name = "DURATION", help_heading = "Bucket", allow_hyphen_values = true)]
    pub max_age: Option<String>,

    /// Append what is dropped or expired to FILE
    ///
    /// And whatever was read and not written when a run ends early, which under --overflow block is all there can be.
    #[arg(long, value_name = "FILE", help_heading = "Bucket")]
    pub dropped: Option<PathBuf>,

    /// A bucket for each key
    ///
    /// The key is read out of the item by field:N, regex:RE or json:/pointer. Each key has the whole rate and the whole
    /// capacity.
    #[arg(short, long, value_name = "SELECTOR", help_heading = "Bucket")]
    pub key: Option<String>,

    /// How many keys may be in use [100000]
    #[arg(long, value_name = "N", help_heading = "Bucket", allow_hyphen_values = true, hide_short_help = true)]
    pub max_keys: Option<String>,

    /// Share it: a name, a path or redis://HOST
    ///
    /// A name is a state file in $XDG_STATE_HOME/leaky (~/.local/state/leaky), a path is one anywhere else. With
    /// redis://HOST, rediss://HOST or unix:///SOCKET the bucket is in Redis or Valkey; a password may be given in
    /// LEAKY_REDIS_PASSWORD instead of in the URL.
    #[arg(short, long, value_name = "WHERE", help_heading = "Sharing", allow_hyphen_values = true)]
    pub shared: Option<OsString>,

    /// Which bucket of the server [default]
    #[arg(long, value_name = "NAME", help_heading = "Sharing", allow_hyphen_values = true, hide_short_help = true)]
    pub bucket: Option<String>,

    /// Server gone: block, exit or local=RATE
    ///
    /// block (default) holds everything until it is back, exit ends with status 75, and local=RATE goes on with a
    /// bucket of one's own.
    #[arg(long, value_name = "P", help_heading = "Sharing", allow_hyphen_values = true, hide_short_help = true)]
    pub on_outage: Option<String>,

    /// Wait for one turn, then become COMMAND
    #[arg(last = true, value_name = "COMMAND", help_heading = "Sharing")]
    pub command: Vec<OsString>,

    /// Items arrive at their recorded times
    ///
    /// The time is read out of the item by field:N, regex:RE or json:/pointer; field:4 in a
    /// common log. Epoch numbers, RFC 3339, common log, syslog and 2026-01-31 23:59:59.123 are understood. A rate is a
    /// ceiling over it, and may be left out.
    #[arg(long, value_name = "SELECTOR", help_heading = "Replay and simulation")]
    pub replay: Option<String>,

    /// Replay X times as fast
    #[arg(
        long,
        value_name = "X",
        help_heading = "Replay and simulation",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    pub speed: Option<String>,

    /// Cut longer gaps of a replay to this
    #[arg(
        long,
        value_name = "DURATION",
        help_heading = "Replay and simulation",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    pub max_gap: Option<String>,

    /// Only say what would become of each item
    ///
    /// Nothing waits: a line of JSON for each item says when it would leave, or that it would be dropped or expire, in
    /// nanoseconds from the first arrival. All arrive at 0, or at their recorded times with --replay.
    #[arg(long, help_heading = "Replay and simulation")]
    pub simulate: bool,

    /// A live line on stderr
    ///
    /// Items and bytes emitted, the rate reached of the rate asked, the level of the bucket, what is dropped, and how
    /// long it takes. Not drawn where stderr is no terminal, stdout is one, or leaky runs in the background.
    #[arg(short, long, help_heading = "Reporting")]
    pub progress: bool,

    /// A summary at the end and on SIGUSR1
    ///
    /// As text, or as one line of json.
    #[arg(
        long,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text",
        help_heading = "Reporting"
    )]
    pub stats: Option<String>,

    /// Keep counters in FILE for Prometheus
    ///
    /// The file is replaced every two seconds and at the end, so that the node exporter's collector of text files, which
    /// wants its name to end in .prom, can read it at any time.
    #[arg(long, value_name = "FILE", help_heading = "Reporting")]
    pub metrics: Option<PathBuf>,

    /// No warnings
    #[arg(short, long, help_heading = "Reporting", hide_short_help = true)]
    pub quiet: bool,

    /// Say first how the options are understood
    #[arg(short, long, help_heading = "Reporting")]
    pub verbose: bool,

    /// Completions for bash, elvish, fish, powershell or zsh
    #[arg(long, value_name = "SHELL", help_heading = "Reporting", hide_short_help = true)]
    pub completions: Option<String>,

    /// This, and with --help much more
    #[arg(short, long, action = ArgAction::Help, help_heading = "Reporting")]
    pub help: Option<bool>,

    /// The version
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = "Reporting", hide_short_help = true)]
    pub version: Option<bool>,
}

/// Prints what clap has to say: help and version on stdout, and what is wrong in one line on stderr.
pub fn answer(error: &clap::Error) -> Exit {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => show(error.render().to_string().as_bytes()),
        ErrorKind::UnknownArgument => {
            let stray = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
            if stray.starts_with(|c: char| c.is_ascii_digit()) && !Path::new(&stray).exists() {
                return complain(format!("'{stray}': if that is the rate, say --rate {stray}"));
            }
            if ["B", "bit", "B/s", "bit/s", "/s", "/min", "/h"].iter().any(|end| stray.ends_with(end)) {
                return complain(format!("'{stray}': a rate is written without a blank, as in 10MiB/s"));
            }
            if let Some((_, ours)) = FOREIGN.iter().find(|(theirs, _)| theirs.contains(&&*stray)) {
                let what = if stray.starts_with('-') { "option" } else { "command" };
                return complain(format!("{stray}: there is no such {what}; say {ours}"));
            }
            if stray == "json" || stray == "text" {
                return complain(format!("'{stray}': if that is for --stats, say --stats={stray}"));
            }
            if stray == "-" {
                return complain("'-': leaky always reads stdin; leave it out");
            }
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

/// Whether a command was announced by `--` that turned out to be none, as with an empty variable.
pub fn lacks_command(typed: &Cli) -> bool {
    typed.command.is_empty() && std::env::args_os().next_back().is_some_and(|last| last == "--")
}

/// What others call an option, and what leaky does.
const FOREIGN: [(&[&str], &str); 12] = [
    (&["--drop", "--drop-newest", "--drop-oldest"], "--overflow drop or --overflow drop-oldest"),
    (&["--dry-run", "-n"], "--simulate"),
    (&["--window", "--sliding-window", "--fixed-window", "--sliding"], "--algorithm sliding-window or fixed-window"),
    (&["--limit", "--rate-limit", "--qps", "--rps", "--lps", "-L"], "--rate RATE, as in --rate 5/s"),
    (&["--pause", "--control", "--rate-file"], "--rate @FILE, and write another rate or 0 into FILE"),
    (&["--zero", "--print0", "--null-data", "-z"], "--null"),
    (&["--prometheus"], "--metrics FILE"),
    (&["--redis"], "--shared redis://HOST"),
    (&["--line-mode", "--line-buffered"], "--lines"),
    (&["--buffer-size", "--queue", "--buffer"], "--capacity N"),
    (&["help"], "leaky --help"),
    (&["completions"], "leaky --completions SHELL"),
];

/// Prints what is wrong with the command line.
pub fn complain(complaint: impl Display) -> Exit {
    Voice::new(false).say(complaint);
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
