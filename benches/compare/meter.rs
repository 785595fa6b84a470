//! The instrument: `source | tool | sink`, each a process of its own, and what the tool used meanwhile.
//!
//! The source and the sink are this program once more: its first argument is then `@source` or `@sink`, its second what
//! to do, as JSON. They share the monotonic clock with the program that started them, so all instants compare.

use crate::sink::{Report, Sink};
use crate::source::Source;
use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::Serialize;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};
use wait4::{ResUse, Wait4};

/// The argument that makes this program a source.
pub const SOURCE: &str = "@source";
/// The argument that makes this program a sink.
pub const SINK: &str = "@sink";

/// When a run is over.
#[derive(Clone, Copy)]
pub enum Until {
    /// After this long.
    Time(f64),
    /// When all has passed; it is an error if that takes longer than this.
    End(f64),
    /// When the tool has left after the sink has; if it does not within this time it is ended.
    ToolGone(f64),
}

/// What to measure.
pub struct Work {
    /// What goes in.
    pub source: Source,
    /// What comes out, and how to look at it.
    pub sink: Sink,
    /// The size of the pipe after the tool, if not the default.
    pub pipe: Option<usize>,
    /// SIGSTOP after so many seconds, for so many seconds.
    pub stop: Option<(f64, f64)>,
    /// When it is over.
    pub until: Until,
}

/// What was measured.
pub struct Measured {
    /// When the tool was started, in nanoseconds.
    pub began: u64,
    /// When it went on after a stop.
    pub resumed: u64,
    /// When it was found to have ended, or was ended.
    pub ended: u64,
    /// What the sink saw.
    pub report: Report,
    /// CPU seconds of the tool and of what it has waited for.
    pub cpu: f64,
    /// CPU seconds of all three.
    pub all_cpu: f64,
    /// The most memory the tool ever had, in bytes; not below that of this program, from which it was started.
    pub largest: u64,
    /// The same, read from the tool while it was running: also where it is small. 0 if it had ended.
    pub resident: u64,
}

impl Measured {
    /// From the start of the tool to the end of its output, in seconds.
    pub fn wall(&self) -> f64 {
        seconds(self.began, self.report.ended)
    }

    /// CPU seconds of the tool in each second it ran, as a percentage.
    pub fn cpu_percent(&self) -> f64 {
        self.cpu / seconds(self.began, self.ended) * 100.0
    }
}

/// The monotonic clock, in nanoseconds.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// From one instant to another, in seconds.
pub fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}

/// Sleeps until an instant.
pub fn sleep_until(at: u64) {
    thread::sleep(Duration::from_nanos(at.saturating_sub(now())));
}

/// Runs the tool on the work.
pub fn measure(work: &Work, mut tool: Command) -> anyhow::Result<Measured> {
    let (tool_in, source_out) = io::pipe()?;
    let (sink_in, tool_out) = io::pipe()?;
    if let Some(size) = work.pipe {
        rustix::pipe::fcntl_setpipe_size(&tool_out, size)?;
    }
    let mut sink = itself(SINK, &work.sink)?.stdin(sink_in).stdout(Stdio::piped()).spawn()?;
    let source = itself(SOURCE, &work.source)?.stdin(Stdio::null()).stdout(source_out).spawn()?;
    tool.stdin(tool_in).stdout(tool_out).stderr(Stdio::null()).process_group(0);
    let began = now();
    let child = tool.spawn().with_context(|| format!("could not run {:?}", tool.get_program()))?;
    // It holds our ends of the pipes.
    drop(tool);

    let mut resumed = began;
    if let Some((after, lasts)) = work.stop {
        sleep_until(began + nanos(after));
        signal_group(&child, Signal::STOP);
        sleep_until(began + nanos(after + lasts));
        resumed = now();
        signal_group(&child, Signal::CONT);
    }
    let mut told = sink.stdout.take().context("a sink has a stdout")?;
    let (Until::Time(limit) | Until::End(limit) | Until::ToolGone(limit)) = work.until;
    let in_time = readable(&told, (began + nanos(limit)).saturating_sub(now()))?;
    let mut resident = resident(&child);
    let mut ended = now();
    if let Until::ToolGone(limit) = work.until {
        let process = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        readable(&process, nanos(limit))?;
        ended = now();
    }
    if !(in_time && matches!(work.until, Until::End(_))) {
        signal_group(&child, Signal::KILL);
    }
    // A source whose reader has gone ends by itself, unless it sleeps.
    signal_group(&source, Signal::KILL);
    let mut json = String::new();
    told.read_to_string(&mut json)?;
    let (tool, source, sink) = (child.wait4()?, source.wait4()?, sink.wait4()?);
    ensure!(in_time || !matches!(work.until, Until::End(_)), "not done within {limit} s");
    let report: Report = serde_json::from_str(&json).context("the sink has not reported")?;
    if let Some(fault) = &report.fault {
        anyhow::bail!("{fault}");
    }
    if let Until::End(_) = work.until {
        ensure!(tool.status.success(), "it ended with {}", tool.status);
        resident = 0;
        ended = report.ended;
    }
    let all_cpu = cpu(&tool) + cpu(&source) + cpu(&sink);
    let largest = tool.rusage.maxrss;
    Ok(Measured { began, resumed, ended, report, cpu: cpu(&tool), all_cpu, largest, resident })
}

/// Runs the tool on no input at all; how long it takes, and how much CPU.
pub fn start_up(mut tool: Command) -> anyhow::Result<(f64, f64)> {
    tool.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let began = now();
    let used = tool.spawn()?.wait4()?;
    Ok((seconds(began, now()), cpu(&used)))
}

fn itself(role: &str, work: &impl Serialize) -> anyhow::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    // A group of its own: no signal meant for the tool, and none from the keyboard, which ends the parent and by that it.
    command.arg(role).arg(serde_json::to_string(work)?).process_group(0);
    Ok(command)
}

/// For a source and a sink: they never outlive the program that started them.
pub fn end_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// CPU seconds of a process that has been waited for.
fn cpu(used: &ResUse) -> f64 {
    (used.rusage.utime + used.rusage.stime).as_secs_f64()
}

fn signal_group(child: &Child, signal: Signal) {
    // It may have ended: then there is nobody to be told.
    let _ = rustix::process::kill_process_group(Pid::from_child(child), signal);
}

/// Waits until there is something to be read; whether there is.
fn readable(file: &impl AsFd, ns: u64) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    Ok(poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&timeout))? > 0)
}

/// The most memory a running process has had, in bytes.
fn resident(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}
