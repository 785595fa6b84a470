//! One limit for many: shared buckets with real files, real processes and a real server.

mod gate;
mod pipe;
#[cfg(feature = "redis")]
mod server;
#[cfg(feature = "redis")]
mod servers;
mod store;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const LEAKY: &str = env!("CARGO_BIN_EXE_leaky");

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Leaky with these words, in `directory`, ended after 60 s whatever happens.
fn leaky(directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "60", LEAKY]).args(words).current_dir(directory).env_remove("LEAKY_REDIS_PASSWORD");
    command
}

/// What became of a run.
#[derive(Debug)]
struct Ended {
    status: Option<i32>,
    stdout: String,
    stderr: String,
    took: Duration,
}

impl From<(Output, Instant)> for Ended {
    fn from((output, began): (Output, Instant)) -> Ended {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let status = output.status.code();
        Ended { status, stdout: text(output.stdout), stderr: text(output.stderr), took: began.elapsed() }
    }
}

impl Ended {
    /// It ended with this status and one line that says this, and wrote nothing.
    #[track_caller]
    fn refused(&self, status: i32, says: &str) {
        assert_eq!((self.status, self.stdout.as_str()), (Some(status), ""), "{self:?}");
        assert!(self.stderr.starts_with("leaky: ") && self.stderr.contains(says), "{says}: {self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
    }
}

/// Runs leaky to its end.
fn run(directory: &Path, words: &[&str], stdin: &str) -> Ended {
    finish(leaky(directory, words), stdin)
}

fn finish(mut command: Command, stdin: &str) -> Ended {
    let began = Instant::now();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut into, stdin) = (child.stdin.take().unwrap(), stdin.to_string());
    // Who does not read its input may be gone before it is written.
    let writer = thread::spawn(move || drop(into.write_all(stdin.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    (output, began).into()
}

fn seq(last: u64) -> String {
    (1..=last).map(|number| format!("{number}\n")).collect()
}

/// A pipe with always something to let out, each line of which is timed.
struct Pipe {
    child: Child,
    times: JoinHandle<Vec<Duration>>,
    stderr: JoinHandle<String>,
}

impl Pipe {
    /// Starts it; times are counted from `began`.
    fn start(directory: &Path, words: &[impl AsRef<OsStr>], began: Instant) -> Pipe {
        Pipe::start_as(Command::new(LEAKY), directory, words, began)
    }

    fn start_as(mut leaky: Command, directory: &Path, words: &[impl AsRef<OsStr>], began: Instant) -> Pipe {
        let mut yes = Command::new("yes").stdout(Stdio::piped()).spawn().unwrap();
        let stdin = yes.stdout.take().unwrap();
        // It ends with its reader.
        thread::spawn(move || yes.wait());
        let leaky = leaky.args(words).current_dir(directory).stdin(stdin);
        let mut child = leaky.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let times = thread::spawn(move || lines.map_while(Result::ok).map(|_| began.elapsed()).collect());
        let mut from = child.stderr.take().unwrap();
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            from.read_to_string(&mut text).unwrap();
            text
        });
        Pipe { child, times, stderr }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it; when its lines came, and what it said.
    fn end(mut self) -> (Vec<Duration>, String) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.times.join().unwrap(), self.stderr.join().unwrap())
    }
}

/// Pipes that share a rate of `n` a second for a while; when the lines of each came.
fn share(directory: &Path, place: &str, n: u64, pipes: usize, lasting: Duration) -> Vec<Vec<Duration>> {
    let (began, rate) = (Instant::now(), format!("{n}/s"));
    let pipes: Vec<_> = (0..pipes).map(|_| Pipe::start(directory, &["-r", &rate, "-s", place], began)).collect();
    thread::sleep(lasting);
    let mut all = Vec::new();
    for pipe in pipes {
        let (times, said) = pipe.end();
        assert_eq!(said, "");
        all.push(times);
    }
    all
}

/// In all at most the rate, and no more than `late` and `units` too early after any before it.
#[track_caller]
fn check_bound(times: &[Vec<Duration>], n: u64, late: Duration, units: u64) -> Vec<Duration> {
    let mut all: Vec<_> = times.concat();
    all.sort_unstable();
    let t = 1_000_000_000 / i128::from(n);
    let mut latest = None;
    for (i, at) in all.iter().enumerate() {
        let slack = at.as_nanos() as i128 - t * i as i128;
        let most = latest.unwrap_or(slack).max(slack);
        let early = most - slack - late.as_nanos() as i128 - t * i128::from(units);
        assert!(early <= 0, "item {i} of {} is {early} ns too early", all.len());
        latest = Some(most);
    }
    all
}

/// In all at most the rate and a batch of each more, and while all run the rate but for 2 % and shares within 10 % of each
/// other.
///
/// Whoever starts first has the whole rate until the others have started, and a busy machine takes a quarter of a second
/// to start eight; so shares begin when the last one has its first item.
#[track_caller]
fn check_shares(times: &[Vec<Duration>], n: u64) {
    check_bound(times, n, ms(100), times.len() as u64 * (n / 100).max(1));
    let from = times.iter().map(|times| times[0]).max().unwrap();
    let until = times.iter().map(|times| times[times.len() - 1]).min().unwrap();
    let count = |times: &Vec<Duration>| times.iter().filter(|at| (from..until).contains(at)).count();
    let counts: Vec<_> = times.iter().map(count).collect();
    let reached = counts.iter().sum::<usize>() as f64 / (until - from).as_secs_f64();
    println!("{reached:.2}/s of {n}/s in {:?}: {counts:?}", until - from);
    assert!((reached / n as f64 - 1.0).abs() <= 0.02, "{reached}/s of {n}/s: {counts:?}");
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    // Where the time begins and ends in the midst of somebody's batches, two of them may stand in a row.
    let edge = 2 * (n as usize / 100).max(1);
    assert!((most - edge) * 100 <= least * 110, "{counts:?} in {:?}", until - from);
}
