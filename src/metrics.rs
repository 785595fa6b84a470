//! `--metrics FILE`: the counters as Prometheus text, for the node exporter's collector of text files.
//!
//! The file is replaced as a whole every few seconds and at the end, so that whoever reads it never sees half of it.

use crate::bucket::Accounts;
use crate::clock::{self, SECOND};
use crate::config::Config;
use crate::counters::Pace;
use crate::follow::directory;
use crate::progress::Look;
use crate::rate::{Rate, Unit};
use crate::voice::Voice;
use anyhow::{Context, bail};
use crossbeam_channel::{RecvTimeoutError, Sender};
use std::ffi::OsString;
use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(2);

/// Writes the metrics of a run.
#[derive(Debug)]
pub struct Metrics {
    finish: Sender<()>,
    thread: thread::JoinHandle<Writer>,
}

#[derive(Debug)]
struct Writer {
    path: PathBuf,
    look: Look,
    /// When the run began, in seconds since the epoch.
    began: f64,
    count_bytes: bool,
    keyed: bool,
    warned: bool,
}

/// Writes the metrics to `path` now and every few seconds.
///
/// # Errors
/// If they cannot be written.
pub fn start(path: PathBuf, look: Look, config: &Config) -> anyhow::Result<Metrics> {
    let (_, now) = look.snapshot();
    let began = (clock::utc() - i128::from(now)) as f64 / SECOND as f64;
    let (count_bytes, keyed) = (config.bucket.count_bytes, config.bucket.max_keys.is_some());
    let mut writer = Writer { path, look, began, count_bytes, keyed, warned: false };
    writer.write(true)?;
    let (finish, told) = crossbeam_channel::bounded(1);
    let voice = Voice::new(config.quiet);
    let thread = thread::Builder::new().name("metrics".into()).spawn(move || {
        while told.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            writer.write_or_warn(true, &voice);
        }
        writer
    });
    Ok(Metrics { finish, thread: thread.context("could not start a thread")? })
}

impl Metrics {
    /// Writes them for the last time.
    pub fn finish(self, voice: &Voice) {
        let _ = self.finish.try_send(());
        if let Ok(mut writer) = self.thread.join() {
            writer.write_or_warn(false, voice);
        }
    }
}

impl Writer {
    fn write_or_warn(&mut self, running: bool, voice: &Voice) {
        if let Err(error) = self.write(running)
            && !std::mem::replace(&mut self.warned, true)
        {
            voice.warn(format!("{error:#}"));
        }
    }

    fn write(&self, running: bool) -> anyhow::Result<()> {
        let (accounts, now) = self.look.snapshot();
        let text = self.text(&accounts, now, &self.look.report.pace(), running);
        replace(&self.path, &text).with_context(|| format!("could not write --metrics '{}'", self.path.display()))
    }

    fn text(&self, accounts: &Accounts, now: u64, pace: &Pace, running: bool) -> String {
        let mut page = Page::default();
        let a = accounts;
        let info = format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
        page.family("build_info", "gauge", "What is running.").sample(&info, 1);
        page.gauge("running", "Whether the run goes on.", u8::from(running));
        page.gauge("start_time_seconds", "When the run began, in seconds since the epoch.", self.began);
        if self.count_bytes {
            page.counter("bytes_dropped_total", "Bytes dropped because the bucket was full.", a.dropped);
            page.counter("bytes_expired_total", "Bytes that had waited too long.", a.expired);
        } else {
            page.counter("items_read_total", "Items read.", a.read);
            page.counter("items_emitted_total", "Items wholly written.", a.emitted);
            page.counter("items_dropped_total", "Items dropped because the bucket was full.", a.dropped);
            page.counter("items_expired_total", "Items that had waited too long.", a.expired);
            page.gauge("items_held", "Items read and not yet written, dropped or expired.", a.held());
        }
        page.counter("bytes_read_total", "Bytes read.", a.bytes_read);
        page.counter("bytes_emitted_total", "Bytes written.", a.bytes_emitted);
        page.gauge("bytes_held", "Bytes read and not yet written, dropped or expired.", a.bytes_held);
        page.counter("cost_emitted_total", "Cost of the items wholly written.", a.cost_emitted);
        let counts = format!("{{unit=\"{}\"}}", name(pace.capacity_unit));
        let thousandths = |level: u64| level as f64 / 1000.0;
        if self.keyed {
            page.gauge("keys", "Keys that have a bucket.", a.keys);
        } else {
            let help = "Cost of what waits and the unpaid rest of what left.";
            page.family("level", "gauge", help).sample(&counts, thousandths(a.level_at(now)));
        }
        let help = "The highest level so far.";
        page.family("level_max", "gauge", help).sample(&counts, thousandths(a.level_max));
        page.family("capacity", "gauge", "The highest level there may be.").sample(&counts, pace.capacity);
        let help = "Units per second that are asked for; +Inf without a limit, 0 in a pause.";
        let mut asked = page.family("rate_asked", "gauge", help);
        let per_second = |rate: &Rate| rate.n() as f64 * SECOND as f64 / rate.p() as f64;
        for (i, rate) in pace.rates.iter().enumerate() {
            let labels = format!("{{rate=\"{}\",unit=\"{}\"}}", i + 1, name(rate.unit()));
            asked.sample(&labels, if pace.paused { 0.0 } else { per_second(rate) });
        }
        if pace.rates.is_empty() {
            let unit = if self.count_bytes { Unit::Bytes } else { Unit::Items };
            asked.sample(&format!("{{rate=\"1\",unit=\"{}\"}}", name(unit)), "+Inf");
        }
        let seconds = |ns: u64| ns as f64 / SECOND as f64;
        let help = "Time in which stdout took nothing.";
        page.counter("output_blocked_seconds_total", help, seconds(a.blocked(now)));
        let help = "Lateness beyond the catch-up, by which the schedule was moved.";
        page.counter("forgiven_seconds_total", help, seconds(a.forgiven));
        page.counter(
            "late_stamps_total",
            "Items whose recorded time lay before that of an earlier one.",
            a.late_stamps,
        );
        page.0
    }
}

fn name(unit: Unit) -> &'static str {
    match unit {
        Unit::Items => "items",
        Unit::Bytes => "bytes",
        Unit::Bits => "bits",
        Unit::Cost => "cost",
    }
}

/// A page of metrics.
#[derive(Debug, Default)]
struct Page(String);

/// The samples of one metric.
struct Family<'a> {
    page: &'a mut String,
    name: &'static str,
}

impl Page {
    fn counter(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, "counter", help).sample("", value);
    }

    fn gauge(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, "gauge", help).sample("", value);
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        let _ = writeln!(self.0, "# HELP leaky_{name} {help}\n# TYPE leaky_{name} {kind}");
        Family { page: &mut self.0, name }
    }
}

impl Family<'_> {
    fn sample(&mut self, labels: &str, value: impl Display) -> &mut Self {
        let _ = writeln!(self.page, "leaky_{}{labels} {value}", self.name);
        self
    }
}

/// Puts a file that says `text` in the place of `path`.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let Some(name) = path.file_name() else { bail!("it is no file") };
    // What is no file must not become one.
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        bail!("it is no regular file");
    }
    // The collector takes whatever ends in .prom, so this must not.
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = directory(path).join(temporary);
    let replaced = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    Ok(replaced?)
}
