//! `--progress`: one line on stderr that says how it goes.
//!
//! A thread of its own draws it a few times a second out of snapshots of the counters, so nothing on the data path
//! waits for a terminal. What else is written to stderr goes through `voice::aside`, which takes the line away and puts it
//! back. indicatif keeps the line; how it gets onto the terminal is decided here, since a line that is not filled up
//! with blanks survives a change of the terminal's width, and a dumb terminal knows no escape sequences.

use crate::bucket::Accounts;
use crate::clock::{Clock, MILLISECOND, Monotonic, SECOND};
use crate::config::Config;
use crate::counters::Pace;
use crate::fd::{Input, Output};
use crate::hub::Shared;
use crate::pacer;
use crate::rate::{Rate, Unit};
use crate::report::Report;
use crate::run::Weight;
use crate::voice::{in_foreground, line};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What onlookers look at.
#[derive(Clone, Debug)]
pub struct Look {
    /// Of this only the counters.
    pub shared: Arc<Shared>,
    /// What is asked.
    pub report: Report,
    /// The clock of the counters.
    pub clock: Monotonic,
}

impl Look {
    /// The accounts, and what time it is.
    pub fn snapshot(&self) -> (Accounts, u64) {
        // In this order what is counted never lies in the future.
        let accounts = self.shared.counters.snapshot();
        (accounts, self.clock.now())
    }
}

const TICK: Duration = Duration::from_millis(250);
/// A run that is over at once need not flicker.
const FIRST: Duration = Duration::from_millis(100);

/// Draws the line until told to finish.
#[derive(Debug)]
pub struct Progress {
    finish: Sender<()>,
    finished: Receiver<()>,
}

/// Starts to draw the line, if one is asked for and there is a terminal to draw it on.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(config: &Config, look: &Look) -> io::Result<Option<Progress>> {
    let terminal = rustix::termios::isatty(rustix::stdio::stderr());
    if !config.progress || !terminal || Output::is_terminal() {
        return Ok(None);
    }
    let screen = Screen::of_stderr();
    let color = screen.color;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::term_like(Box::new(screen)));
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        bar.set_style(style);
    }
    *line() = Some(bar.clone());
    let (finish, told) = crossbeam_channel::bounded(1);
    let (done, finished) = crossbeam_channel::bounded(1);
    let mut view = View::new(config, look.clone(), Input::position());
    thread::Builder::new().name("progress".into()).spawn(move || {
        let mut wait = FIRST;
        while told.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            view.look();
            if in_foreground() {
                bar.set_message(view.line(width(), color));
            }
            wait = TICK;
        }
        view.ended = true;
        view.look();
        *line() = None;
        if in_foreground() {
            bar.abandon_with_message(view.line(width(), color));
            let _ = io::stderr().write_all(b"\n");
        }
        let _ = done.send(());
    })?;
    Ok(Some(Progress { finish, finished }))
}

impl Progress {
    /// Draws the line for the last time and leaves it there.
    pub fn finish(&self) {
        let _ = self.finish.try_send(());
        // A terminal that has been stopped keeps nobody from ending.
        let _ = self.finished.recv_timeout(Duration::from_millis(500));
    }
}

/// The columns of stderr's terminal.
fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    let told = || std::env::var("COLUMNS").ok()?.parse().ok();
    if columns > 0 { columns } else { told().unwrap_or(80) }
}

/// How the line gets onto the terminal.
#[derive(Debug)]
struct Screen {
    /// No escape sequences are understood.
    dumb: bool,
    color: bool,
    /// Lines are wrapped anew when the terminal gets narrower.
    reflows: bool,
    /// What is not written yet, and how many columns the line on the screen has.
    state: Mutex<(String, usize)>,
}

impl Screen {
    fn of_stderr() -> Screen {
        let var = |name| std::env::var(name).unwrap_or_default();
        let term = var("TERM");
        let dumb = term.is_empty() || term == "dumb";
        let inside = !var("TMUX").is_empty();
        let rigid = term.starts_with("linux") || term.starts_with("screen") || !var("XTERM_VERSION").is_empty();
        Screen {
            dumb,
            color: !dumb && var("NO_COLOR").is_empty(),
            reflows: !dumb && (inside || !rigid),
            state: Mutex::new((String::new(), 0)),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, (String, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        u16::try_from(width()).unwrap_or(u16::MAX)
    }

    // There is only one line, so the cursor stays in it.
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)?;
        self.state().0.push('\n');
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        // indicatif fills the line up with blanks, which would be wrapped when the terminal gets narrower.
        if text.bytes().any(|byte| byte != b' ') {
            let (pending, shown) = &mut *self.state();
            pending.push_str(text);
            *shown += columns(text);
        }
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        let (pending, shown) = &mut *self.state();
        let rows = shown.div_ceil(width().max(1));
        pending.push('\r');
        if self.dumb {
            pending.push_str(&" ".repeat(*shown));
            pending.push('\r');
        } else if rows > 1 && self.reflows {
            // The terminal has become narrower and has wrapped what was one line.
            pending.push_str(&format!("\x1b[{}A\x1b[J", rows - 1));
        } else {
            pending.push_str("\x1b[K");
        }
        *shown = 0;
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.state().0);
        // A terminal that has gone is no reason to end.
        let _ = io::stderr().write_all(pending.as_bytes());
        Ok(())
    }
}

/// How many columns `text` takes: it is ASCII, but for the sequences that colour it.
fn columns(text: &str) -> usize {
    let (mut columns, mut escape) = (0, false);
    for c in text.chars() {
        match c {
            '\x1b' => escape = true,
            'm' if escape => escape = false,
            _ => columns += usize::from(!escape),
        }
    }
    columns
}

/// What counted at some moment.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at: u64,
    emitted_at: u64,
    weight: Weights,
    /// Bytes of the input that are dealt with.
    dealt: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Weights {
    items: u64,
    bytes: u64,
    cost: u64,
}

/// What the line says.
#[derive(Debug)]
struct View {
    look: Look,
    count_bytes: bool,
    keyed: bool,
    /// Where stdin stood at the start, if its size is known.
    begin: Option<u64>,
    shown: Shown,
    samples: VecDeque<Sample>,
    /// The first sample at which something had been emitted.
    first: Option<Sample>,
    ended: bool,
}

/// The same without whatever has to be looked up.
#[derive(Clone, Debug)]
struct Shown {
    accounts: Accounts,
    now: u64,
    pace: Pace,
    count_bytes: bool,
    keyed: bool,
    ended: bool,
    /// How far the input is dealt with: so many bytes of so many.
    done: Option<(u64, u64)>,
    left: Option<u64>,
    /// What was emitted in so many nanoseconds.
    reached: Option<(Weights, u64)>,
    turn: usize,
}

impl View {
    fn new(config: &Config, look: Look, begin: Option<u64>) -> View {
        let (accounts, now) = look.snapshot();
        let (count_bytes, keyed) = (config.bucket.count_bytes, config.bucket.max_keys.is_some());
        let shown = Shown {
            accounts,
            now,
            pace: look.report.pace(),
            count_bytes,
            keyed,
            ended: false,
            done: None,
            left: None,
            reached: None,
            turn: 0,
        };
        View { look, count_bytes, keyed, begin, shown, samples: VecDeque::new(), first: None, ended: false }
    }

    /// Looks at the counters.
    fn look(&mut self) {
        let (accounts, now) = self.look.snapshot();
        let pace = self.look.report.pace();
        if pace != self.shown.pace {
            // What another rate has let out says nothing about this one.
            self.samples.clear();
        }
        let size = self.begin.and_then(|begin| Some(Input::size()?.saturating_sub(begin)));
        let dealt = accounts.bytes_read.saturating_sub(accounts.bytes_held);
        let items = if self.count_bytes { 0 } else { accounts.emitted };
        let weight = Weights { items, bytes: accounts.bytes_emitted, cost: accounts.cost_emitted };
        let sample = Sample { at: now, emitted_at: accounts.emitted_at, weight, dealt };
        let reached = self.reached(&pace, sample);
        let left = size.and_then(|size| self.left(size.saturating_sub(dealt), sample));
        self.shown = Shown {
            accounts,
            now,
            pace,
            count_bytes: self.count_bytes,
            keyed: self.keyed,
            ended: self.ended,
            done: size.filter(|size| *size > 0).map(|size| (dealt.min(size), size)),
            left,
            reached,
            turn: self.shown.turn + 1,
        };
        self.samples.push_back(sample);
        self.first = self.first.or((sample.weight.bytes > 0).then_some(sample));
        // Ten seconds will do, but of a slow rate it takes some items to tell.
        let apart = self.apart();
        let window = (10 * SECOND).max(apart.saturating_mul(10));
        while self.samples.len() > 2 && self.samples[1].at < now.saturating_sub(window) {
            self.samples.pop_front();
        }
        // So a window of hours does not hold a sample for each tick.
        if self.samples.len() > 400 {
            let mut turn = 0;
            self.samples.retain(|_| {
                turn += 1;
                turn % 2 == 1
            });
        }
    }

    /// The T of the slowest rate of items.
    fn apart(&self) -> u64 {
        let items = self.shown.pace.rates.iter().filter(|rate| matches!(rate.unit(), Unit::Items));
        items.map(|rate| rate.nanos_for(1)).max().unwrap_or(0)
    }

    /// What was emitted between the first sample at which anything was and this one. Both ends are taken at a
    /// departure, or a rate of 2/s would swing by a tenth.
    fn reached(&self, pace: &Pace, now: Sample) -> Option<(Weights, u64)> {
        let recent = self.samples.iter().find(|sample| sample.weight.bytes > 0);
        // What stays when the run is over is about all of it.
        let first = if self.ended { self.first.as_ref() } else { recent }?;
        let apart = pace.rates.iter().map(|rate| rate.nanos_for(1)).max().unwrap_or(0).max(10 * MILLISECOND);
        let end = if self.ended { now.emitted_at } else { now.emitted_at.max(now.at.saturating_sub(apart)) };
        let (a, b) = (first.weight, now.weight);
        let weights = Weights { items: b.items - a.items, bytes: b.bytes - a.bytes, cost: b.cost - a.cost };
        let span = end.saturating_sub(first.emitted_at);
        (span >= apart && span > 0).then_some((weights, span))
    }

    /// How long the `rest` of the input will take at the pace of late.
    fn left(&self, rest: u64, now: Sample) -> Option<u64> {
        let first = self.samples.front()?;
        let (dealt, span) = (now.dealt - first.dealt, now.at - first.at);
        if rest == 0 || dealt == 0 || span < SECOND / 2 {
            return None;
        }
        u64::try_from(u128::from(rest) * u128::from(span) / u128::from(dealt)).ok()
    }

    fn line(&self, width: usize, color: bool) -> String {
        self.shown.line(width, color)
    }
}

impl Shown {
    /// The line for a terminal of `width` columns. It never reaches the last one, where terminals differ.
    fn line(&self, width: usize, color: bool) -> String {
        let width = width.saturating_sub(1);
        let narrow = width < 72;
        let gap = if narrow { 1 } else { 2 };
        let mut parts = self.parts(narrow, width >= 120);
        // The most important parts first, each if it still fits; a gauge takes what is left then.
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|i| parts[*i].rank);
        let mut free = width + gap;
        for i in order {
            let needs = parts[i].text.len() + gap;
            parts[i].fits = needs <= free && needs > gap;
            if parts[i].fits {
                free -= needs;
            }
        }
        if let Some((level, capacity)) = self.gauge() {
            let most = if width < 120 { 12 } else { 32 };
            let inner = free.saturating_sub(gap + 2).min(most);
            if inner >= 5 {
                let full = ((u128::from(level) * inner as u128).div_ceil(u128::from(capacity)) as usize).min(inner);
                let bar = format!("[{}{}]", "#".repeat(full), "-".repeat(inner - full));
                if let Some(gauge) = parts.iter_mut().find(|part| part.rank == Rank::Gauge) {
                    (gauge.text, gauge.fits) = (bar, true);
                }
            }
        }
        let parts = parts.iter().filter(|part| part.fits).map(|part| match part.rank {
            Rank::Dropped if color => format!("\x1b[31m{}\x1b[0m", part.text),
            _ => part.text.clone(),
        });
        parts.collect::<Vec<_>>().join(&" ".repeat(gap))
    }

    fn parts(&self, narrow: bool, wide: bool) -> Vec<Part> {
        let a = &self.accounts;
        let count = |count| if self.count_bytes { size(count) } else { number(count, narrow) };
        let items = if self.count_bytes { String::new() } else { format!("{} items", number(a.emitted, narrow)) };
        let turn = if self.ended { "=" } else { ["|", "/", "-", "\\"][self.turn % 4] };
        let lost = |lost: u64, what: &str| if lost == 0 { String::new() } else { format!("{} {what}", count(lost)) };
        let part = |rank, text: String| Part { rank, text, fits: false };
        let percent = self.done.map(|(done, size)| format!("{} %", u128::from(done) * 100 / u128::from(size)));
        let left = self.left.filter(|_| !self.ended && !self.pace.paused);
        let blocked = a.blocked_since > 0 && self.now.saturating_sub(a.blocked_since) > SECOND / 2;
        vec![
            part(Rank::Turn, turn.into()),
            part(Rank::Items, items),
            part(if self.count_bytes { Rank::Items } else { Rank::Bytes }, size(a.bytes_emitted)),
            part(Rank::Rate, self.rate()),
            part(Rank::Gauge, String::new()),
            part(Rank::Level, self.level(narrow, wide)),
            part(Rank::Dropped, lost(a.dropped, "dropped")),
            part(Rank::Dropped, lost(a.expired, "expired")),
            part(Rank::Blocked, if blocked && !self.ended { "stdout is full".into() } else { String::new() }),
            part(Rank::Percent, percent.unwrap_or_default()),
            part(Rank::Left, left.map_or(String::new(), |ns| format!("{} left", clock(ns.saturating_add(SECOND - 1))))),
            part(Rank::Elapsed, clock(self.now)),
        ]
    }

    /// The rate reached of the rate asked.
    fn rate(&self) -> String {
        if self.pace.paused && !self.ended {
            return "paused".into();
        }
        let of = |rate: &Rate| match self.reached {
            Some((weights, ns)) if !(self.count_bytes && rate.unit() == Unit::Items) => {
                let weight = Weight { len: weights.bytes, cost: weights.cost };
                let units = if rate.unit() == Unit::Items { weights.items } else { pacer::units(rate.unit(), weight) };
                // Each key has the whole rate.
                let joined = if self.keyed { format!(", {rate} a key") } else { format!(" of {rate}") };
                format!("{}{joined}", rate.reached(units, ns))
            }
            _ => format!("{rate} asked"),
        };
        if self.pace.rates.is_empty() {
            let reached = self.reached.map(|(weights, ns)| {
                let count = if self.count_bytes { weights.bytes } else { weights.items };
                let count = (u128::from(count) * u128::from(SECOND) / u128::from(ns)) as u64;
                if self.count_bytes { format!("{}/s", size(count)) } else { format!("{}/s", number(count, true)) }
            });
            return reached.unwrap_or_else(|| "unlimited".into());
        }
        self.pace.rates.iter().map(of).collect::<Vec<_>>().join(" and ")
    }

    /// Level and capacity in thousandths, where there is one bucket.
    fn gauge(&self) -> Option<(u64, u64)> {
        let capacity = self.pace.capacity.saturating_mul(1000);
        (!self.keyed && !self.pace.rates.is_empty()).then(|| (self.accounts.level_at(self.now).min(capacity), capacity))
    }

    fn level(&self, narrow: bool, wide: bool) -> String {
        let Some((level, _)) = self.gauge() else {
            let held = self.accounts.held();
            let held = if self.count_bytes { size(held) } else { number(held, narrow) };
            let keys =
                if self.keyed { format!(" by {} keys", number(self.accounts.keys, narrow)) } else { String::new() };
            return format!("{held} held{keys}");
        };
        let (level, capacity) = (level.div_ceil(1000), self.pace.capacity);
        let (level, capacity) = match self.pace.capacity_unit {
            Unit::Bytes | Unit::Bits => (size(level), size(capacity)),
            Unit::Items | Unit::Cost => (number(level, narrow), number(capacity, narrow)),
        };
        if wide { format!("level {level} of {capacity}") } else { format!("{level}/{capacity}") }
    }
}

/// A part of the line.
#[derive(Debug)]
struct Part {
    rank: Rank,
    text: String,
    fits: bool,
}

/// What goes first where not all fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Dropped,
    Items,
    Rate,
    Level,
    Turn,
    Percent,
    Elapsed,
    Left,
    Blocked,
    Bytes,
    Gauge,
}

/// A number in full, or in four characters where there is little room.
fn number(count: u64, short: bool) -> String {
    if !short || count < 10_000 {
        return count.to_string();
    }
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 999.5 && unit < 4 {
        value /= 1000.0;
        unit += 1;
    }
    three(value, ["", "k", "M", "G", "T"][unit])
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 999.5 && unit < 5 {
        value /= 1024.0;
        unit += 1;
    }
    three(value, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit])
}

/// Three digits at least, and no zeros after the point where it is whole.
fn three(value: f64, unit: &str) -> String {
    let places = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    let text = format!("{value:.places$}");
    let text = if places > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// Hours, minutes and seconds.
fn clock(ns: u64) -> String {
    let seconds = ns / SECOND;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let days = if days > 0 { format!("{days}d ") } else { String::new() };
    format!("{days}{hours}:{minutes:02}:{:02}", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> Shown {
        let accounts = Accounts {
            read: 1250,
            emitted: 1234,
            dropped: 12,
            bytes_emitted: 57_650,
            level: 4000,
            level_waiting: 4000,
            ..Accounts::default()
        };
        Shown {
            accounts,
            now: 3725 * SECOND,
            pace: Pace { rates: vec!["2/s".parse().unwrap()], paused: false, capacity: 10, capacity_unit: Unit::Items },
            count_bytes: false,
            keyed: false,
            ended: false,
            done: Some((50, 200)),
            left: Some(100 * SECOND),
            reached: Some((Weights { items: 20, bytes: 1000, cost: 20 }, 10 * SECOND)),
            turn: 0,
        }
    }

    #[test]
    fn the_line_says_most_in_a_wide_terminal() {
        assert_eq!(
            shown().line(200, false),
            "|  1234 items  56.3KiB  2.00 of 2/s  [#############-------------------]  level 4 of 10  \
             12 dropped  25 %  0:01:40 left  1:02:05"
        );
    }

    #[test]
    fn the_line_says_less_in_a_narrow_one() {
        assert_eq!(
            shown().line(80, false),
            "|  1234 items  2.00 of 2/s  4/10  12 dropped  25 %  0:01:40 left  1:02:05"
        );
        assert_eq!(shown().line(40, false), "1234 items 2.00 of 2/s 4/10 12 dropped");
        for width in 0..300 {
            let line = shown().line(width, true);
            assert!(columns(&line) < width.max(1), "{width}: {line}");
        }
    }

    #[test]
    fn what_is_dropped_is_red_and_always_seen() {
        assert!(shown().line(40, true).contains("\x1b[31m12 dropped\x1b[0m"));
        assert!(!shown().line(40, false).contains('\x1b'));
        assert_eq!(shown().line(14, false), "| 12 dropped");
        let none = Shown { accounts: Accounts { dropped: 0, ..shown().accounts }, ..shown() };
        assert!(!none.line(200, true).contains("dropped"));
    }

    #[test]
    fn numbers_are_short() {
        for (count, text) in [(9999, "9999"), (10_000, "10k"), (12_345, "12.3k"), (999_999, "1M"), (1 << 40, "1.1T")] {
            assert_eq!(number(count, true), text);
        }
        for (bytes, text) in [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (1536, "1.5KiB"), (1 << 20, "1MiB")] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(clock(90_061 * SECOND), "1d 1:01:01");
    }
}
