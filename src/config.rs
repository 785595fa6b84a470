//! What the options mean: every rule between them stands here, and nowhere else.

mod shared;

use crate::bucket::{self, Overflow};
use crate::cli::Cli;
use crate::clock::{MILLISECOND, SECOND};
use crate::fd;
use crate::follow::{self, Wanted};
use crate::frame::{self, Framing};
use crate::gate;
use crate::intake;
use crate::pacer::{Algorithm, Align, Impossible, LARGEST_WINDOW, Pacer};
use crate::rate::{self, Amount, AmountError, Asked, Rate, RateError, Size, Unit};
use crate::replay;
use crate::select::{Selector, Separator};
use std::env;
use std::fmt;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// Everything a run needs to know, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The rates that hold at once; none: unlimited.
    pub rates: Vec<Rate>,
    /// The rate that is read from a file.
    pub follow: Option<Follow>,
    /// From bytes to arrivals.
    pub intake: intake::Config,
    /// From arrivals to departures.
    pub bucket: bucket::Config,
    /// What falls due within so many nanoseconds may leave together.
    pub tick: u64,
    /// One item at a time, and only once the reader has taken the one before.
    pub lockstep: bool,
    /// Whether the rate is so high that pipes may be grown for it.
    pub grow: bool,
    /// Whether nobody needs to see the bytes, so that they may pass by.
    pub unseen: bool,
    /// Whether pieces are so slow that reading far ahead would only hide them from the producer.
    pub slow: bool,
    /// On a virtual clock, without waiting.
    pub simulate: bool,
    /// Where the bucket is shared.
    pub shared: Option<crate::shared::Config>,
    /// A turn for a command instead of for items.
    pub gate: Option<gate::Config>,
    /// Where what is not emitted goes.
    pub dropped: Option<PathBuf>,
    /// Whether and how to print a summary.
    pub stats: Option<Format>,
    /// A live line on stderr.
    pub progress: bool,
    /// Where the counters are written to.
    pub metrics: Option<PathBuf>,
    /// No warnings.
    pub quiet: bool,
    /// How the options were understood, to be printed.
    pub understood: Option<String>,
    /// What is odd about the options, to be said before the run.
    pub warnings: Vec<String>,
}

/// A rate that is read from a file and followed.
#[derive(Clone, Debug)]
pub struct Follow {
    /// The file.
    pub path: PathBuf,
    /// What it said at the start.
    pub text: String,
    /// The rate it asks for, or asked for before it said 0.
    pub asked: Asked,
    /// It says 0.
    pub paused: bool,
    /// All that was typed, since much hangs on the rate.
    cli: Box<Cli>,
}

/// How a summary is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One line of JSON.
    Json,
}

/// What is wrong with the command line: what was given, what is wrong with it and what would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint(String);

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Complaint {}

/// Bytes held at most where the capacity does not count bytes.
const MOST_HELD: u64 = 64 << 20;

fn wrong<T>(given: impl fmt::Display, why: impl fmt::Display) -> Result<T, Complaint> {
    Err(Complaint(format!("{given}: {why}")))
}

/// An option with its value, as messages name it.
fn given(option: &str, value: &str) -> String {
    // A message is one line whatever was given.
    format!(
        "{option} '{}'",
        value.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"").replace("\\\\", "\\")
    )
}

fn duration(option: &str, value: &Option<String>) -> Result<Option<u64>, Complaint> {
    let Some(text) = value else { return Ok(None) };
    rate::duration(text).map(Some).or_else(|why| wrong(given(option, text), why))
}

fn amount(option: &str, text: &str) -> Result<Amount, Complaint> {
    text.parse().or_else(|why: AmountError| wrong(given(option, text), why))
}

fn size(option: &str, text: &str) -> Result<u64, Complaint> {
    rate::parse_size(text, true).map(|size| size.0).or_else(|why| wrong(given(option, text), why))
}

impl TryFrom<Cli> for Config {
    type Error = Complaint;

    fn try_from(cli: Cli) -> Result<Config, Complaint> {
        shared::fit_for_gate(&cli)?;
        let follow = follow(&cli)?;
        let mut config = Config::build(&cli, follow)?;
        // Once: a rate that is followed builds the rest anew for every change.
        files_apart(&cli)?;
        if let Some(follow) = &mut config.follow {
            // What began as bytes goes on as bytes, also without a limit.
            follow.cli.bytes |= config.bucket.count_bytes;
        }
        Ok(config)
    }
}

impl Config {
    /// The configuration that follows from this one when the file that is followed says `text`; `None` if it stays
    /// as it is.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn after(&self, text: &str) -> Result<Option<Config>, Complaint> {
        let Some(follow) = &self.follow else { return Ok(None) };
        let wanted = text.parse::<Wanted>().map_err(|why| Complaint(format!("'{}': {why}", text.escape_debug())))?;
        let (asked, paused) = match wanted {
            Wanted::Rate(asked) => (asked, false),
            Wanted::Pause(_) if follow.asked != Asked::Unlimited => (follow.asked, true),
            Wanted::Pause(_) => (stand_in(if self.bucket.count_bytes { Unit::Bytes } else { Unit::Items }), true),
        };
        if (asked, paused) == (follow.asked, follow.paused) {
            return Ok(None);
        }
        let next = Config::build(&follow.cli, Some(Follow { asked, paused, ..follow.clone() }))?;
        let (old, new) = (&self.bucket, &next.bucket);
        let other = old.count_bytes != new.count_bytes || old.capacity_unit != new.capacity_unit;
        if other || (next.intake.by_length && !self.intake.by_length) {
            return wrong(
                format!("'{text}'"),
                "it counts something else than the rate before, for which leaky has to be started again",
            );
        }
        Ok(Some(next))
    }

    fn build(cli: &Cli, follow: Option<Follow>) -> Result<Config, Complaint> {
        // A gate's cost is a number.
        let turn_cost = if cli.command.is_empty() { None } else { cli.cost.clone() };
        let cli = &Cli { cost: cli.cost.clone().filter(|_| turn_cost.is_none()), ..cli.clone() };
        let (rates, followed) = rates(cli, follow.as_ref())?;
        let framing = framing(cli, &rates)?;
        let chunks = matches!(framing, Framing::Chunks(_));
        let algorithm = algorithm(cli, &rates)?;
        let pacer = Pacer::new(&rates, &algorithm).or_else(|why| match why {
            Impossible::WindowTooLarge => wrong(
                "--algorithm 'sliding-window'",
                format!("it remembers every item of a window, at most {LARGEST_WINDOW}; for more say fixed-window"),
            ),
            Impossible::NoCommonTick => wrong(
                "--rate",
                "these rates cannot be kept exactly together with each other or the warm-up; say rounder ones",
            ),
        })?;
        let pacer = match &follow {
            None => pacer,
            Some(follow) if cli.simulate => {
                return wrong(
                    given("--rate", &format!("@{}", follow.path.display())),
                    "a simulation is over before a file could change; say the rate itself",
                );
            }
            Some(follow) => pacer.follow(&algorithm, followed, follow.paused),
        };
        let (key, cost, replay) = selectors(cli, &rates, chunks)?;
        let catch_up = catch_up(cli, &pacer)?;
        let (capacity, capacity_unit) = capacity(cli, &rates, chunks)?;
        let framing = match framing {
            // A piece that does not fit would have to wait for an empty bucket.
            Framing::Chunks(size) => {
                let most = usize::try_from(capacity).unwrap_or(usize::MAX);
                Framing::Chunks(if capacity_unit == Unit::Bytes { size.min(most) } else { size })
            }
            framing => framing,
        };
        let overflow = overflow(cli)?;
        let timeout = duration("--timeout", &cli.timeout)?;
        if let (Some(text), Overflow::Block | Overflow::DropOldest) = (&cli.timeout, overflow) {
            return wrong(
                given("--timeout", text),
                "nothing is dropped for want of room there; say --overflow drop or fail",
            );
        }
        let max_keys = max_keys(cli)?;
        let while_running =
            [(cli.progress, "--progress"), (cli.metrics.is_some(), "--metrics"), (cli.stats.is_some(), "--stats")];
        if let (Some((_, option)), true) = (while_running.iter().find(|(given, _)| *given), cli.simulate) {
            return wrong(option, "a simulation is over at once; leave one of the two out");
        }
        if let Some(name) = cli.metrics.as_ref().and_then(|path| path.to_str())
            && name.trim_start_matches(':').bytes().all(|byte| byte.is_ascii_digit())
        {
            return wrong(given("--metrics", name), "no port is opened; say the file to write, such as ./leaky.prom");
        }
        let shared = shared::shared(cli, &rates, &algorithm)?;
        let gate = match (&shared, rates.first()) {
            (Some(shared), Some(rate)) if !cli.command.is_empty() => {
                Some(shared::gate(cli, turn_cost.as_deref(), rate, overflow, catch_up, shared.clone())?)
            }
            _ => None,
        };
        if cli.lockstep && cli.simulate {
            return wrong("--lockstep", "a simulation has no reader to keep step with; leave one of the two out");
        }
        let by_length = !chunks
            && !matches!(framing, Framing::Records(_))
            && (capacity_unit == Unit::Bytes
                || rates.iter().any(|rate| matches!(rate.unit(), Unit::Bytes | Unit::Bits)));
        let max_held = if capacity_unit == Unit::Bytes { capacity.saturating_add(MOST_HELD) } else { MOST_HELD };
        let tick = tick(cli, &pacer, catch_up, &framing, &rates, capacity);
        // A rate of which a default pipe holds less than two milliseconds is one of a machine, not of a person.
        let fast = |rate: &Rate| match rate.unit() {
            Unit::Bytes => rate.units_in(MILLISECOND) > 32 << 10,
            Unit::Bits => rate.units_in(MILLISECOND) > 256 << 10,
            Unit::Items => rate.units_in(MILLISECOND) >= 500,
            Unit::Cost => false,
        };
        let slow = rates
            .iter()
            .any(|rate| matches!(rate.unit(), Unit::Items | Unit::Cost) && rate.nanos_for(1) > 10 * MILLISECOND);
        let grow = rates.iter().all(fast) && !cli.lockstep;
        let max_age = duration("--max-age", &cli.max_age)?;
        // Bytes that are never dropped leave in the order in which they came.
        let kept = overflow == Overflow::Block && max_age.is_none();
        let may_pass = chunks && kept && !cli.lockstep && !cli.simulate && capacity <= fd::CONDUIT;
        let unseen = splice()?.unwrap_or(grow) && may_pass;
        let mut config = Config {
            grow,
            unseen,
            slow,
            intake: intake::Config { framing: framing.clone(), by_length, key, cost, replay },
            bucket: bucket::Config {
                pacer,
                catch_up,
                capacity,
                capacity_unit,
                overflow,
                timeout,
                max_age,
                max_held,
                layout: framing.layout(),
                max_keys,
                count_bytes: chunks,
                replays: cli.replay.is_some(),
                trace: cli.simulate,
                shared: shared.as_ref().map(|shared| shared.settings(catch_up)),
            },
            tick,
            lockstep: cli.lockstep,
            simulate: cli.simulate,
            shared,
            gate,
            dropped: cli.dropped.clone(),
            stats: stats(cli)?,
            progress: cli.progress,
            metrics: cli.metrics.clone(),
            quiet: cli.quiet,
            understood: None,
            warnings: Vec::new(),
            follow,
            rates,
        };
        for text in cli.rates.iter().filter(|text| text.ends_with(['M', 'G', 'T']) && !chunks) {
            // Elsewhere that is bytes.
            let warning =
                format!("{} is a rate of items; for bytes say {text}iB/s or {text}B/s", given("--rate", text));
            config.warnings.push(warning);
        }
        if cli.cost.is_none() && config.gate.is_none() && config.rates.iter().any(|rate| rate.unit() == Unit::Cost) {
            config.warnings.push("a rate of cost without --cost: every item costs 1".into());
        }
        if cli.verbose {
            config.understood = Some(understood(&config, &algorithm));
        }
        Ok(config)
    }
}

/// Whether bytes that nobody needs to see are to be spliced, if the environment says.
fn splice() -> Result<Option<bool>, Complaint> {
    const SPLICE: &str = "LEAKY_SPLICE";
    let Some(text) = env::var_os(SPLICE) else { return Ok(None) };
    match text.to_str() {
        Some("always") => Ok(Some(true)),
        Some("never") => Ok(Some(false)),
        Some("" | "auto") => Ok(None),
        _ => wrong(given(SPLICE, &text.to_string_lossy()), "there are auto, always and never"),
    }
}

/// Reads the rate that is to be followed, if there is one.
fn follow(cli: &Cli) -> Result<Option<Follow>, Complaint> {
    let mut files = cli.rates.iter().filter_map(|text| text.strip_prefix('@'));
    let Some(name) = files.next() else { return Ok(None) };
    let given = given("--rate", &format!("@{name}"));
    if files.next().is_some() {
        return wrong(given, "only one rate can be followed; say the others themselves");
    }
    if name.is_empty() {
        return wrong(given, "the name of a file goes after the @, as in @rate.txt");
    }
    let path = PathBuf::from(name);
    let text = follow::read(&path).or_else(|why| wrong(&given, format!("{why}; it should hold a rate such as 2/s")))?;
    let (asked, paused) = match text.parse() {
        Ok(Wanted::Rate(asked)) => (asked, false),
        Ok(Wanted::Pause(unit)) => (stand_in(unit), true),
        Err(why) => {
            // Who gives another file by mistake does not want to see it printed.
            let beginning: String = text.chars().take(20).collect();
            let more = if beginning.len() < text.len() { "..." } else { "" };
            return wrong(given, format!("it says '{}{more}': {}", beginning.escape_debug(), why as RateError));
        }
    };
    Ok(Some(Follow { path, text, asked, paused, cli: Box::new(cli.clone()) }))
}

/// No file may serve two ends, or one would destroy the other.
fn files_apart(cli: &Cli) -> Result<(), Complaint> {
    use std::os::unix::fs::MetadataExt;
    let followed = cli.rates.iter().find_map(|text| text.strip_prefix('@')).map(Path::new);
    let shared = cli.shared.as_deref().map(Path::new).filter(|path| path.components().nth(1).is_some());
    let named = [
        ("--rate", followed),
        ("--shared", shared),
        ("--dropped", cli.dropped.as_deref()),
        ("--metrics", cli.metrics.as_deref()),
    ];
    // What it serves as, where it is, and which file that is.
    type End = (&'static str, PathBuf, Option<(u64, u64)>);
    let mut seen: Vec<End> = Vec::new();
    for (name, identity) in [("stdin", fd::Input::identity()), ("stdout", fd::Output::identity())] {
        if identity.is_none() || cli.simulate || !cli.command.is_empty() {
            continue;
        }
        if seen.iter().any(|(_, _, other)| *other == identity) {
            return wrong(name, "that file is stdin already; write to another one");
        }
        seen.push((name, PathBuf::new(), identity));
    }
    for (option, path) in named {
        let Some(path) = path else { continue };
        let identity = path.metadata().ok().filter(|file| file.is_file()).map(|file| (file.dev(), file.ino()));
        let place =
            follow::directory(path).canonicalize().unwrap_or_default().join(path.file_name().unwrap_or_default());
        let same = |(_, other, id): &&End| *other == place || (identity.is_some() && *id == identity);
        if let Some((other, ..)) = seen.iter().find(same) {
            let at = if option == "--rate" { "@" } else { "" };
            return wrong(
                given(option, &format!("{at}{}", path.to_string_lossy())),
                format!("that file is {other} already; name another one"),
            );
        }
        seen.push((option, place, identity));
    }
    Ok(())
}

fn is_followed(cli: &Cli) -> bool {
    cli.rates.iter().any(|text| text.starts_with('@'))
}

/// A rate for as long as none is known, since it is paused.
fn stand_in(unit: Unit) -> Asked {
    Rate::new(1, SECOND, unit).map_or(Asked::Unlimited, Asked::Per)
}

/// The rates, and which of them is followed.
fn rates(cli: &Cli, follow: Option<&Follow>) -> Result<(Vec<Rate>, Option<usize>), Complaint> {
    if cli.rates.is_empty() && cli.replay.is_none() {
        return wrong("--rate", "how fast? Say --rate 2/s, 300/min, 10MiB/s or, for no limit, unlimited");
    }
    let (mut rates, mut followed) = (Vec::new(), None);
    for text in &cli.rates {
        let asked = match follow {
            Some(follow) if text.starts_with('@') => {
                followed = Some(rates.len()).filter(|_| follow.asked != Asked::Unlimited);
                follow.asked
            }
            _ => text.parse().or_else(|why: RateError| match Path::new(text).is_file() {
                true => wrong(given("--rate", text), format!("to follow the rate in that file say --rate '@{text}'")),
                false => wrong(given("--rate", text), why),
            })?,
        };
        if let Asked::Per(rate) = asked {
            rates.push(rate);
        }
    }
    Ok((rates, followed))
}

fn framing(cli: &Cli, rates: &[Rate]) -> Result<Framing, Complaint> {
    let chosen = [
        (cli.lines, "--lines"),
        (cli.null, "--null"),
        (cli.delimiter.is_some(), "--delimiter"),
        (cli.record_size.is_some(), "--record-size"),
        (cli.bytes, "--bytes"),
    ];
    let mut chosen = chosen.iter().filter(|(chosen, _)| *chosen).map(|(_, name)| *name);
    if let (Some(one), Some(other)) = (chosen.next(), chosen.next()) {
        return wrong(format!("{one} {other}"), "items are framed in one way; leave one of the two out");
    }
    let of_bytes = |rate: &Rate| matches!(rate.unit(), Unit::Bytes | Unit::Bits);
    let unframed = !(cli.lines || cli.null || cli.delimiter.is_some() || cli.record_size.is_some());
    let bytes = cli.bytes || (unframed && !rates.is_empty() && rates.iter().all(of_bytes));
    let framing = if cli.null {
        Framing::Delimited(vec![0])
    } else if let Some(text) = &cli.delimiter {
        Framing::Delimited(frame::delimiter(text).or_else(|why| wrong(given("--delimiter", text), why))?)
    } else if let Some(text) = &cli.record_size {
        let bytes = size("--record-size", text)?;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= isize::MAX as usize);
        Framing::Records(match bytes {
            Some(bytes) => bytes,
            None => {
                return wrong(given("--record-size", text), "that is more than this machine can address");
            }
        })
    } else if bytes {
        Framing::Chunks(chunk(cli, rates)?)
    } else {
        Framing::Delimited(vec![b'\n'])
    };
    match (&cli.chunk, &framing) {
        (Some(text), framing) if !matches!(framing, Framing::Chunks(_)) => wrong(
            given("--chunk", text),
            "only --bytes has chunks; say --bytes, or --record-size for items of one length",
        ),
        _ => Ok(framing),
    }
}

/// What becomes due at once under `--bytes`: 10 ms of the rate, unless told.
fn chunk(cli: &Cli, rates: &[Rate]) -> Result<usize, Complaint> {
    const MOST: u64 = 64 << 10;
    if let Some(text) = &cli.chunk {
        return Ok(usize::try_from(size("--chunk", text)?).unwrap_or(usize::MAX));
    }
    let mut chunk = MOST;
    for rate in rates {
        chunk = chunk.min(match rate.unit() {
            Unit::Bytes => rate.units_in(10 * MILLISECOND),
            Unit::Bits => rate.units_in(10 * MILLISECOND) / 8,
            Unit::Items | Unit::Cost => {
                return wrong("--bytes", "a rate of items needs to know how many bytes are one; say --chunk SIZE too");
            }
        });
    }
    Ok(chunk.clamp(1, MOST) as usize)
}

fn algorithm(cli: &Cli, rates: &[Rate]) -> Result<Algorithm, Complaint> {
    let name = match (cli.algorithm.as_deref(), &cli.burst) {
        (Some(name), _) => name,
        (None, Some(_)) => "token-bucket",
        (None, None) => "leaky-bucket",
    };
    let in_windows = matches!(name, "fixed-window" | "sliding-window");
    if rates.is_empty() && !is_followed(cli) {
        let needs = [
            (cli.algorithm.as_ref().filter(|name| *name != "leaky-bucket"), "--algorithm"),
            (cli.burst.as_ref(), "--burst"),
            (cli.warm_up.as_ref(), "--warm-up"),
            (cli.align.as_ref(), "--align"),
        ];
        if let Some((Some(text), option)) = needs.iter().find(|(value, _)| value.is_some()) {
            return wrong(given(option, text), "without a limit there is nothing to pace; say a --rate such as 2/s");
        }
    }
    if let (Some(text), true) = (&cli.burst, name != "token-bucket") {
        return wrong(given("--burst", text), format!("a {name} has none; say --algorithm token-bucket"));
    }
    if let (Some(text), true) = (&cli.align, name != "fixed-window") {
        return wrong(
            given("--align", text),
            format!("a {name} has no windows to align; say --algorithm fixed-window"),
        );
    }
    if let (Some(text), true) = (&cli.warm_up, name != "leaky-bucket") {
        return wrong(
            given("--warm-up", text),
            format!("a {name} does not warm up; leave --algorithm and --burst out"),
        );
    }
    match name {
        "leaky-bucket" => match duration("--warm-up", &cli.warm_up)? {
            None => Ok(Algorithm::LeakyBucket),
            Some(ns) => match NonZeroU64::new(ns) {
                Some(duration) => Ok(Algorithm::WarmUp { duration }),
                None => wrong("--warm-up '0'", "it must last; leave it out for none"),
            },
        },
        "token-bucket" => Ok(Algorithm::TokenBucket { bursts: bursts(cli, rates)? }),
        "fixed-window" => match cli.align.as_deref() {
            None | Some("first") => Ok(Algorithm::FixedWindow(Align::First)),
            Some("clock") => Ok(Algorithm::FixedWindow(Align::Clock)),
            Some(text) => {
                let near = nearest(text, &["first", "clock"]);
                wrong(given("--align", text), format!("{near}windows are aligned to first or to clock"))
            }
        },
        "sliding-window" => Ok(Algorithm::SlidingWindow),
        _ => {
            debug_assert!(!in_windows);
            let names = ["leaky-bucket", "token-bucket", "fixed-window", "sliding-window"];
            wrong(given("--algorithm", name), format!("{}there are {}", nearest(name, &names), names.join(", ")))
        }
    }
}

/// A word for which of `names` was probably meant.
fn nearest(text: &str, names: &[&str]) -> String {
    let typed = text.to_ascii_lowercase().replace('_', "-");
    // One slip for each three letters, or the beginning of one name alone.
    let slips = |name: &&&str| edits(&typed, name);
    let alike = names.iter().min_by_key(slips).filter(|name| slips(name) <= name.len().div_ceil(3));
    let parts =
        |name: &&&str| typed.len() > 1 && (name.starts_with(&typed) || name.split('-').any(|part| part == typed));
    let begun = names.iter().find(parts);
    begun.or(alike).map_or(String::new(), |name| format!("did you mean {name}? "))
}

/// How many letters must be inserted, left out, replaced or swapped to get from `a` to `b`.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(40).collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

fn bursts(cli: &Cli, rates: &[Rate]) -> Result<Vec<u64>, Complaint> {
    let Some(text) = &cli.burst else {
        return Ok(rates.iter().map(Rate::count_as_written).collect());
    };
    let amount = amount("--burst", text)?;
    let burst = |rate: &Rate| match (amount, rate.unit()) {
        (Amount::Count(count), _) => Ok(count),
        (Amount::Size(bytes), Unit::Bytes) => Ok(bytes),
        (Amount::Size(bytes), Unit::Bits) => Ok(bytes.saturating_mul(8)),
        (Amount::Size(_), _) => wrong(given("--burst", text), format!("{rate} does not count bytes; say a number")),
        (Amount::Duration(_), _) => {
            wrong(given("--burst", text), "a burst is how much may leave at once; say a number, or bytes as in 64KiB")
        }
    };
    rates.iter().map(burst).collect()
}

fn catch_up(cli: &Cli, pacer: &Pacer) -> Result<u64, Complaint> {
    let text = match (&cli.catch_up, cli.strict) {
        (Some(text), true) => {
            return wrong(
                format!("--strict --catch-up '{text}'"),
                "--strict is a catch-up of 0; leave one of the two out",
            );
        }
        (Some(text), false) => given("--catch-up", text),
        (None, true) => "--strict".to_string(),
        (None, false) => {
            let far_apart = pacer.longest_period() >= 50 * MILLISECOND;
            return Ok(if far_apart { 10 * MILLISECOND } else { 50 * MILLISECOND });
        }
    };
    if pacer.keeps_real_time() && !pacer.is_unlimited() {
        return wrong(text, "windows and bursts above 1 make lateness up by themselves; leave it out");
    }
    Ok(duration("--catch-up", &cli.catch_up)?.unwrap_or(0))
}

fn capacity(cli: &Cli, rates: &[Rate], chunks: bool) -> Result<(u64, Unit), Complaint> {
    let Some(text) = &cli.capacity else {
        return Ok(if chunks { (1 << 20, Unit::Bytes) } else { (1024, Unit::Items) });
    };
    let parsed = text.parse().or_else(|why| match why {
        AmountError::Zero => wrong(
            given("--capacity", text),
            "it must be at least 1, which lets nobody wait; to hold nothing back say --rate unlimited",
        ),
        why => wrong(given("--capacity", text), why),
    })?;
    match parsed {
        Amount::Size(bytes) => Ok((bytes, Unit::Bytes)),
        Amount::Count(bytes) if chunks => Ok((bytes, Unit::Bytes)),
        Amount::Count(cost) if !rates.is_empty() && rates.iter().all(|rate| rate.unit() == Unit::Cost) => {
            Ok((cost, Unit::Cost))
        }
        Amount::Count(items) => Ok((items, Unit::Items)),
        Amount::Duration(ns) => match rates.iter().min_by(|a, b| a.cmp_speed(b)) {
            // Until there is a limit it does not matter.
            None if is_followed(cli) => Ok((1024, if chunks { Unit::Bytes } else { Unit::Items })),
            None => {
                wrong(given("--capacity", text), "without a limit nobody waits; say a number, or bytes as in 10MiB")
            }
            Some(rate) => Ok(match rate.unit() {
                Unit::Bits => ((rate.units_in(ns) / 8).max(1), Unit::Bytes),
                unit => (rate.units_in(ns).max(1), unit),
            }),
        },
    }
}

fn overflow(cli: &Cli) -> Result<Overflow, Complaint> {
    match (cli.overflow.as_deref(), &cli.timeout) {
        (None, None) => Ok(Overflow::Block),
        (None, Some(_)) => Ok(Overflow::DropNewest),
        (Some("block"), _) => Ok(Overflow::Block),
        (Some("drop" | "drop-newest"), _) => Ok(Overflow::DropNewest),
        (Some("drop-oldest"), _) => Ok(Overflow::DropOldest),
        (Some("fail"), _) => Ok(Overflow::Fail),
        (Some(text), _) => {
            let names = ["block", "drop-newest", "drop-oldest", "fail"];
            let near = nearest(text, &["block", "drop", "drop-newest", "drop-oldest", "fail"]);
            wrong(given("--overflow", text), format!("{}there are {}", near, names.join(", ")))
        }
    }
}

fn max_keys(cli: &Cli) -> Result<Option<usize>, Complaint> {
    let Some(text) = &cli.max_keys else {
        return Ok(cli.key.is_some().then_some(100_000));
    };
    if cli.key.is_none() {
        return wrong(given("--max-keys", text), "without keys there is one bucket; say --key SELECTOR too");
    }
    match amount("--max-keys", text)? {
        Amount::Count(count) if u32::try_from(count).is_ok() => Ok(Some(count as usize)),
        Amount::Count(_) => wrong(given("--max-keys", text), format!("there may be {} at most", u32::MAX)),
        _ => wrong(given("--max-keys", text), "it is a number, as in 100000"),
    }
}

type Selectors = (Option<Selector>, Option<Selector>, Option<replay::Config>);

fn selectors(cli: &Cli, rates: &[Rate], chunks: bool) -> Result<Selectors, Complaint> {
    let separator = match &cli.field_separator {
        None => None,
        Some(text) => {
            let field = [&cli.key, &cli.cost, &cli.replay].into_iter().flatten().any(|text| text.starts_with("field:"));
            if !field {
                return wrong(given("--field-separator", text), "no selector is of the kind field:N; leave it out");
            }
            let separator = text.parse::<Separator>();
            Some(separator.or_else(|why| wrong(given("--field-separator", text), why))?)
        }
    };
    let selector = |option: &str, value: &Option<String>| -> Result<Option<Selector>, Complaint> {
        let Some(text) = value else { return Ok(None) };
        if chunks {
            return wrong(given(option, text), "chunks of bytes have nothing in them to select; say --lines");
        }
        let kind = text.split(':').next().unwrap_or_default();
        let kinds = ["field", "regex", "json"];
        let near = if kinds.contains(&kind) { String::new() } else { nearest(kind, &kinds) };
        Selector::parse(text, separator.as_ref())
            .map(Some)
            .or_else(|why| wrong(given(option, text), format!("{near}{why}")))
    };
    if let Some(text) = &cli.cost
        && !rates.iter().any(|rate| rate.unit() == Unit::Cost)
    {
        return wrong(given("--cost", text), "no rate counts cost; say a --rate such as 100cost/s");
    }
    let replay = selector("--replay", &cli.replay)?;
    if replay.is_none() {
        let needs = [(&cli.speed, "--speed"), (&cli.max_gap, "--max-gap")];
        if let Some((Some(text), option)) = needs.into_iter().find(|(value, _)| value.is_some()) {
            return wrong(given(option, text), "that is for a replay; say --replay SELECTOR too");
        }
    }
    let speed = match &cli.speed {
        None => replay::Speed::default(),
        Some(text) => text.parse().or_else(|why: anyhow::Error| wrong(given("--speed", text), why))?,
    };
    let max_gap = duration("--max-gap", &cli.max_gap)?;
    let replay = replay.map(|selector| replay::Config { selector, speed, max_gap });
    Ok((selector("--key", &cli.key)?, selector("--cost", &cli.cost)?, replay))
}

fn stats(cli: &Cli) -> Result<Option<Format>, Complaint> {
    match cli.stats.as_deref() {
        None => Ok(None),
        Some("text") => Ok(Some(Format::Text)),
        Some("json") => Ok(Some(Format::Json)),
        Some(text) => {
            let near = nearest(text, &["text", "json"]);
            wrong(given("--stats", text), format!("{near}there are --stats=text and --stats=json"))
        }
    }
}

/// Above 1000 items a second waking for each one would cost a whole core.
fn tick(cli: &Cli, pacer: &Pacer, catch_up: u64, framing: &Framing, rates: &[Rate], capacity: u64) -> u64 {
    let takes = |bytes: u64| {
        let times = rates.iter().map(|rate| match rate.unit() {
            Unit::Bits => rate.nanos_for(bytes.saturating_mul(8)),
            Unit::Bytes => rate.nanos_for(bytes),
            Unit::Items | Unit::Cost => rate.nanos_for(1),
        });
        times.max().unwrap_or(u64::MAX)
    };
    let (piece, full) = match framing {
        Framing::Chunks(size) => (*size as u64, takes(capacity)),
        _ => (1, u64::MAX),
    };
    if cli.strict || takes(piece) >= MILLISECOND {
        return 0;
    }
    // Not so long that it uses up what lateness may be made up for.
    let made_up = if pacer.keeps_real_time() { pacer.shortest_burst() } else { catch_up };
    let made_up = if pacer.in_windows() { MILLISECOND } else { made_up / 2 };
    // Nor so long that a full bucket of bytes would be empty before it is over.
    MILLISECOND.min(made_up).min(full / 4)
}

/// A duration for people, to a hundredth or so.
fn rounded(ns: u64) -> String {
    let digit = 10_u64.pow(ns.max(1).ilog10().saturating_sub(2)).min(SECOND);
    time(ns / digit * digit)
}

/// One paragraph about what will happen, in plain words.
fn understood(config: &Config, algorithm: &Algorithm) -> String {
    if let Some(gate) = &config.gate {
        return gate.to_string();
    }
    let bucket = &config.bucket;
    let chunk = match &config.intake.framing {
        Framing::Chunks(size) => Some(*size as u64),
        _ => None,
    };
    let mut parts = Vec::new();
    if let Some(Follow { path, paused, .. }) = &config.follow {
        let path = path.display();
        let pause = format!("paused until '{path}' says a rate");
        parts.push(if *paused { pause } else { format!("the rate is followed in '{path}'") });
    }
    if !bucket.pacer.is_paused() {
        let rates: Vec<String> = config.rates.iter().map(|rate| in_words(rate, algorithm, chunk)).collect();
        parts.push(if rates.is_empty() { "no limit".into() } else { rates.join(", and at once ") });
    }
    let paced = &config.rates.first().map(|rate| Amounts(rate.unit()));
    parts.extend(match (algorithm, paced) {
        (_, None) => None,
        (Algorithm::LeakyBucket, _) => None,
        (Algorithm::WarmUp { duration }, _) => {
            Some(format!("after idling a third of that at first, reaching it within {}", time(duration.get())))
        }
        (Algorithm::TokenBucket { bursts }, Some(unit)) => {
            let bursts: Vec<String> = bursts.iter().map(|burst| unit.of(*burst)).collect();
            Some(format!("after idling {} may leave back to back", bursts.join(" and ")))
        }
        (Algorithm::FixedWindow(Align::First), _) => {
            Some("they leave as they come; a period begins with the first item outside any".into())
        }
        (Algorithm::FixedWindow(Align::Clock), _) => {
            Some("they leave as they come; periods lie on the UTC grid".into())
        }
        (Algorithm::SlidingWindow, _) => {
            Some("they leave as they come, and no period, wherever it begins, has more".into())
        }
    });
    parts.push(match &config.intake.framing {
        Framing::Delimited(delimiter) if delimiter == b"\n" => "items are lines".into(),
        Framing::Delimited(delimiter) if delimiter == b"\0" => "items end with a NUL byte".into(),
        Framing::Delimited(delimiter) => format!("items end with {:?}", String::from_utf8_lossy(delimiter)),
        Framing::Records(size) => format!("items are records of {size} bytes"),
        Framing::Chunks(size) => format!("bytes leave in chunks of {} at most", Size(*size as u64)),
    });
    if let Some(most) = bucket.max_keys {
        parts.push(format!("each key has a bucket of its own, {most} keys at most"));
    }
    let unit = Amounts(bucket.capacity_unit);
    let further = if unit.0 == Unit::Items { "further ones" } else { "what comes on top" };
    let wait = match (unit.0, bucket.capacity - 1) {
        (Unit::Items, 0) => "nobody waits".into(),
        (Unit::Items, most) => format!("{most} may wait"),
        _ => format!("{} may be in the bucket", unit.of(bucket.capacity)),
    };
    let late = |timeout: u64| format!("wait {} for room and", time(timeout));
    parts.push(match (bucket.overflow, bucket.timeout) {
        (Overflow::Block, _) if bucket.capacity == 1 => format!("{wait} but the producer"),
        (Overflow::Block, _) => format!("{wait}, then the producer has to"),
        (Overflow::DropNewest, None) if unit.0 == Unit::Items => format!("{wait}, {further} are dropped"),
        (Overflow::DropNewest, None) => format!("{wait}, {further} is dropped"),
        (Overflow::DropNewest, Some(timeout)) => format!("{wait}, further ones {} are dropped then", late(timeout)),
        (Overflow::DropOldest, _) => format!("{wait}, {further} displace what has waited longest, which is dropped"),
        (Overflow::Fail, None) => format!("{wait}, one more ends the run with status 3"),
        (Overflow::Fail, Some(timeout)) => format!("{wait}, further ones {} end the run then", late(timeout)),
    });
    if let ([rate], Unit::Items, 2..) = (&config.rates[..], unit.0, bucket.capacity)
        && rate.unit() == Unit::Items
        && bucket.overflow != Overflow::Block
        && !bucket.pacer.is_paused()
    {
        // What is dropped only behind a thousand others may come as a surprise.
        parts.push(format!("a full bucket is a wait of {}", rounded(rate.nanos_for(bucket.capacity - 1))));
    }
    parts.extend(bucket.max_age.map(|age| format!("what has waited longer than {} expires", time(age))));
    if !bucket.pacer.is_unlimited() && !bucket.pacer.keeps_real_time() && !bucket.pacer.is_paused() {
        parts.push(match bucket.catch_up {
            0 => "lateness is never made up".into(),
            ns => format!("lateness up to {} is made up", time(ns)),
        });
    }
    if let Some(shared) = &config.shared {
        parts.push(format!("the rate is shared at {shared}"));
    }
    if config.intake.replay.is_some() {
        parts.push("items arrive at their recorded times".into());
    }
    if config.lockstep {
        parts.push("each waits until the reader has taken the one before".into());
    }
    if !bucket.pacer.is_paused() {
        parts.push("the first leaves at once".into());
    }
    parts.join("; ")
}

/// `2 items per second, one every 500ms`.
fn in_words(rate: &Rate, algorithm: &Algorithm, chunk: Option<u64>) -> String {
    let text = rate.to_string();
    let (amount, period) = text.split_once('/').unwrap_or((&text, "s"));
    let split = amount.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(amount.len());
    let amount = match (amount.split_at(split), rate.unit()) {
        ((count, _), Unit::Items) => format!("{count} item{}", if count == "1" { "" } else { "s" }),
        ((count, prefix), Unit::Cost) => format!("{count}{} of cost", prefix.trim_end_matches("cost")),
        ((count, unit), Unit::Bytes | Unit::Bits) => format!("{count} {unit}"),
    };
    let period = match period {
        "ms" => "millisecond",
        "s" => "second",
        "min" => "minute",
        "h" => "hour",
        "d" => "day",
        other => other,
    };
    let spaced = matches!(algorithm, Algorithm::LeakyBucket | Algorithm::WarmUp { .. });
    let apart = match (rate.unit(), chunk) {
        _ if !spaced => String::new(),
        // Nobody reads nanoseconds.
        (Unit::Items, _) if rate.nanos_for(1) < 10_000 => String::new(),
        (Unit::Items, _) => format!(", one every {}", time(rate.nanos_for(1))),
        (Unit::Bytes, Some(size)) => format!(", a chunk every {}", time(rate.nanos_for(size))),
        (Unit::Bits, Some(size)) => format!(", a chunk every {}", time(rate.nanos_for(size.saturating_mul(8)))),
        (Unit::Bytes, None) => format!(", so 100 bytes take {}", time(rate.nanos_for(100))),
        (Unit::Bits, None) => format!(", so 100 bytes take {}", time(rate.nanos_for(800))),
        (Unit::Cost, _) => String::new(),
    };
    format!("{amount} per {period}{apart}")
}

/// A duration, of which what is too short to matter beside the rest is left out.
fn time(ns: u64) -> String {
    if ns >= SECOND {
        let ms = std::time::Duration::from_millis(ns / 1_000_000);
        return humantime::format_duration(ms).to_string();
    }
    let (unit, name) =
        [(1_000_000, "ms"), (1000, "us"), (1, "ns")].into_iter().find(|(unit, _)| ns >= *unit).unwrap_or((1, "ns"));
    let value = ns as f64 / unit as f64;
    let text = format!("{:.*}", 4 - value.max(1.0).log10() as usize, value);
    format!("{}{name}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Amounts of what a rate or a capacity counts.
struct Amounts(Unit);

impl Amounts {
    fn of(&self, amount: u64) -> String {
        match self.0 {
            Unit::Items if amount == 1 => "1 item".into(),
            Unit::Items => format!("{amount} items"),
            Unit::Cost => format!("{amount} of cost"),
            Unit::Bytes => Size(amount).to_string(),
            Unit::Bits => Size(amount / 8).to_string(),
        }
    }
}
