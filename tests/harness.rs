//! Runs leaky with real pipes and remembers what it did, so that a failure can show everything one needs.
//!
//! No run is waited for without a limit. Times are counted from just before the start of the process, so `leaky never
//! writes item k before its slot` can be asserted however busy the machine is; what depends on how fast the machine is
//! gets bounds that a busy one meets.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// So long a run may last, unless told otherwise.
const LIMIT: Duration = Duration::from_secs(20);

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// `1\n2\n...`, as `seq` prints them.
pub fn seq(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

/// Bytes that look random and are the same every time.
pub fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// What stands beside the project, if it does; says so if not.
pub fn shared(name: &str) -> Option<String> {
    let beside = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared"));
    let dir = std::env::var_os("LEAKY_SHARED").map_or_else(beside, PathBuf::from);
    match std::fs::read_to_string(dir.join(name)) {
        Ok(text) => Some(text),
        Err(error) => {
            println!("skipped: no {name} beside the project ({error})");
            None
        }
    }
}

/// A directory that goes away with the test.
pub struct Dir(tempfile::TempDir);

impl Dir {
    pub fn new() -> Dir {
        Dir(tempfile::tempdir().expect("a temporary directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("writing a file of the test");
        path
    }

    pub fn get(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

type Producer = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

enum From {
    Producer(Producer),
    Live,
    Other(Stdio),
}

enum To {
    Reader,
    Other(Stdio),
}

/// A run of leaky to be.
pub struct Leaky {
    through: Vec<OsString>,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    from: From,
    given: String,
    to: To,
    valve: Valve,
    pipe_size: Option<usize>,
    limit: Duration,
}

/// `leaky` with these arguments, parted by blanks.
pub fn leaky(args: &str) -> Leaky {
    Leaky {
        through: Vec::new(),
        args: args.split_whitespace().map(OsString::from).collect(),
        envs: Vec::new(),
        from: From::Other(Stdio::null()),
        given: "/dev/null".into(),
        to: To::Reader,
        valve: Valve::Open,
        pipe_size: None,
        limit: LIMIT,
    }
}

pub fn binary() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("leaky")
}

impl Leaky {
    pub fn arg(mut self, arg: impl Into<OsString>) -> Leaky {
        self.args.push(arg.into());
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Leaky {
        self.envs.push((name.into(), value.into()));
        self
    }

    /// A shell runs `script`, in which `exec "$@"` becomes leaky.
    pub fn through(mut self, script: &str) -> Leaky {
        self.through = ["sh", "-c", script, "sh"].map(OsString::from).into();
        self
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Leaky {
        let bytes = bytes.into();
        self.given = excerpt(&bytes);
        self.from = From::Producer(Box::new(move |to| to.write_all(&bytes)));
        self
    }

    /// Stdin is what `producer` writes, in a thread of its own.
    pub fn producer(mut self, producer: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static) -> Leaky {
        self.given = "(from a producer)".into();
        self.from = From::Producer(Box::new(producer));
        self
    }

    /// Stdin is a pipe into which the test writes while leaky runs: see `Running::give`.
    pub fn live(mut self) -> Leaky {
        self.given = "(live)".into();
        self.from = From::Live;
        self
    }

    pub fn stdin_from(mut self, file: impl Into<Stdio>, name: &str) -> Leaky {
        self.given = name.into();
        self.from = From::Other(file.into());
        self
    }

    pub fn stdout_to(mut self, file: impl Into<Stdio>) -> Leaky {
        self.to = To::Other(file.into());
        self
    }

    /// Nobody reads stdout before `Running::open`.
    pub fn held(mut self) -> Leaky {
        self.valve = Valve::Shut;
        self
    }

    /// The reader of stdout goes away once it has so many bytes or more.
    pub fn reader_leaves_after(mut self, bytes: usize) -> Leaky {
        self.valve = Valve::Until(bytes);
        self
    }

    /// Stdout is a pipe of this size.
    pub fn pipe_size(mut self, bytes: usize) -> Leaky {
        self.pipe_size = Some(bytes);
        self
    }

    pub fn limit(mut self, limit: Duration) -> Leaky {
        self.limit = limit;
        self
    }

    #[track_caller]
    pub fn run(self) -> Outcome {
        self.start().wait()
    }

    #[track_caller]
    pub fn start(self) -> Running {
        let words: Vec<&std::ffi::OsStr> =
            self.through.iter().map(AsRef::as_ref).chain([binary().as_os_str()]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(&self.args).envs(self.envs).stderr(Stdio::piped());
        let line = self.args.iter().map(|arg| format!(" {arg:?}")).collect::<String>();
        let line = match &self.through[..] {
            [] => format!("leaky{line}"),
            words => format!("{:?} leaky{line}", words[2]),
        };
        let mut piped = || {
            let (reader, writer) = io::pipe().expect("a pipe");
            command.stdin(reader);
            writer
        };
        let (input, producer) = match self.from {
            From::Live => (Some(piped()), None),
            From::Producer(write) => (None, Some((write, piped()))),
            From::Other(file) => {
                command.stdin(file);
                (None, None)
            }
        };
        let mut output = None;
        match self.to {
            To::Other(file) => {
                command.stdout(file);
            }
            To::Reader => {
                let (reader, writer) = io::pipe().expect("a pipe");
                if let Some(size) = self.pipe_size {
                    rustix::pipe::fcntl_setpipe_size(&reader, size).expect("a pipe of that size");
                }
                command.stdout(writer);
                output = Some(reader);
            }
        }
        let start = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{line}: {error}"));
        // The ends that are leaky's now.
        drop(command);
        let seen = Arc::new(Mutex::new(Seen { valve: self.valve, ..Seen::default() }));
        let stdout = output.map(|output| {
            let seen = Arc::clone(&seen);
            thread::spawn(move || read_stdout(output, &seen, start))
        });
        let stderr = child.stderr.take().map(|mut stderr| {
            let seen = Arc::clone(&seen);
            thread::spawn(move || {
                let mut some = [0; 4096];
                while let Ok(count @ 1..) = stderr.read(&mut some) {
                    seen.lock().unwrap().stderr.extend_from_slice(&some[..count]);
                }
            })
        });
        if let Some((write, mut into)) = producer {
            // Whoever writes to a leaky that has gone is none of the test's business.
            thread::spawn(move || write(&mut into));
        }
        Running {
            line,
            given: self.given,
            child,
            start,
            input,
            seen,
            readers: stdout.into_iter().chain(stderr).collect(),
            limit: self.limit,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Valve {
    #[default]
    Open,
    Shut,
    Until(usize),
    Gone,
}

/// What leaky has written so far.
#[derive(Default)]
struct Seen {
    valve: Valve,
    stdout: Vec<u8>,
    /// When each read ended, and how many bytes there were then.
    reads: Vec<(Duration, usize)>,
    stderr: Vec<u8>,
}

fn read_stdout(mut output: PipeReader, seen: &Mutex<Seen>, start: Instant) {
    let mut some = vec![0; 1 << 16];
    loop {
        let (valve, have) = {
            let seen = seen.lock().unwrap();
            (seen.valve, seen.stdout.len())
        };
        match valve {
            Valve::Gone => return,
            Valve::Until(bytes) if have >= bytes => return,
            Valve::Shut => {
                thread::sleep(ms(2));
                continue;
            }
            Valve::Open | Valve::Until(_) => {}
        }
        let mut fds = [PollFd::new(&output, PollFlags::IN)];
        let tenth = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        if poll(&mut fds, Some(&tenth)).is_ok_and(|ready| ready == 0) {
            continue;
        }
        match output.read(&mut some) {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                let mut seen = seen.lock().unwrap();
                let at = start.elapsed();
                seen.stdout.extend_from_slice(&some[..count]);
                let have = seen.stdout.len();
                seen.reads.push((at, have));
            }
        }
    }
}

/// Leaky at work.
pub struct Running {
    line: String,
    given: String,
    child: Child,
    pub start: Instant,
    input: Option<PipeWriter>,
    seen: Arc<Mutex<Seen>>,
    readers: Vec<JoinHandle<()>>,
    limit: Duration,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{}: {error}", self.line));
    }

    #[track_caller]
    pub fn give(&mut self, bytes: impl AsRef<[u8]>) {
        let input = self.input.as_mut().expect("stdin is live");
        input.write_all(bytes.as_ref()).unwrap_or_else(|error| panic!("{}: its stdin: {error}", self.line));
    }

    pub fn open(&self) {
        self.seen.lock().unwrap().valve = Valve::Open;
    }

    /// The reader stops reading, within a few milliseconds.
    pub fn shut(&self) {
        self.seen.lock().unwrap().valve = Valve::Shut;
        thread::sleep(ms(20));
    }

    /// The reader goes away.
    pub fn leave(&self) {
        self.seen.lock().unwrap().valve = Valve::Gone;
    }

    pub fn stdout_len(&self) -> usize {
        self.seen.lock().unwrap().stdout.len()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap().stderr).into_owned()
    }

    /// Waits until `done`, or fails.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Running) -> bool) {
        while !done(self) {
            if self.start.elapsed() > self.limit {
                let outcome = self.give_up();
                panic!("{}", outcome.explain(&format!("waited in vain until {what}")));
            }
            thread::sleep(ms(2));
        }
    }

    /// Waits until it has written so many bytes.
    #[track_caller]
    pub fn until_out(&mut self, bytes: usize) {
        self.until(&format!("{bytes} bytes are out"), |run| run.stdout_len() >= bytes);
    }

    /// A line of /proc/PID/status.
    pub fn status(&self, name: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{}: no {name} in /proc", self.line)).trim().to_string()
    }

    /// The most memory it has used so far, in KiB.
    pub fn peak_kib(&self) -> u64 {
        self.status("VmHWM").trim_end_matches(" kB").parse().expect("a number of kB")
    }

    pub fn ended(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_some()
    }

    /// Waits for its end, no longer than the limit, and for what it has written.
    #[track_caller]
    pub fn wait(mut self) -> Outcome {
        self.input = None;
        let mut pause = Duration::from_micros(500);
        let status = loop {
            match self.child.try_wait().expect("its status") {
                Some(status) => break status,
                None if self.start.elapsed() > self.limit => {
                    let outcome = self.give_up();
                    panic!("{}", outcome.explain(&format!("still running after {:?}", self.limit)));
                }
                None => thread::sleep(pause),
            }
            pause = (pause * 2).min(ms(5));
        };
        self.collect(Some(status))
    }

    fn give_up(&mut self) -> Outcome {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.collect(None)
    }

    fn collect(&mut self, status: Option<ExitStatus>) -> Outcome {
        let elapsed = self.start.elapsed();
        {
            let mut seen = self.seen.lock().unwrap();
            if seen.valve == Valve::Shut {
                seen.valve = Valve::Open;
            }
        }
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        Outcome {
            line: self.line.clone(),
            given: self.given.clone(),
            status,
            stdout: seen.stdout,
            reads: seen.reads,
            stderr: String::from_utf8_lossy(&seen.stderr).into_owned(),
            elapsed,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // No test leaves a process behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a run has done.
pub struct Outcome {
    line: String,
    given: String,
    /// `None` if it was killed because it did not end.
    pub status: Option<ExitStatus>,
    pub stdout: Vec<u8>,
    pub reads: Vec<(Duration, usize)>,
    pub stderr: String,
    pub elapsed: Duration,
}

impl Outcome {
    pub fn explain(&self, why: &str) -> String {
        let mut text = format!("{why}\n\n  command  {}\n  stdin    {}\n", self.line, self.given);
        let status = match self.status {
            None => "killed: it did not end".into(),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit {code}"),
                (_, signal) => format!("died of signal {}", signal.unwrap_or_default()),
            },
        };
        let _ = writeln!(text, "  status   {status}, after {:?}", self.elapsed);
        let _ = writeln!(text, "  stdout   {}", excerpt(&self.stdout));
        let _ = writeln!(text, "  stderr   {}", self.stderr.trim_end().replace('\n', "\n           "));
        text
    }

    #[track_caller]
    pub fn check(&self, holds: bool, why: &str) -> &Outcome {
        assert!(holds, "{}", self.explain(why));
        self
    }

    #[track_caller]
    pub fn exits(&self, code: i32) -> &Outcome {
        self.check(self.status.and_then(|status| status.code()) == Some(code), &format!("it should exit with {code}"))
    }

    #[track_caller]
    pub fn dies_of(&self, signal: Signal) -> &Outcome {
        let number = signal.as_raw();
        let died = self.status.and_then(|status| status.signal());
        self.check(died == Some(number), &format!("it should die of signal {number}"))
    }

    #[track_caller]
    pub fn writes(&self, bytes: impl AsRef<[u8]>) -> &Outcome {
        let bytes = bytes.as_ref();
        let same = self.stdout.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        self.check(
            self.stdout == bytes,
            &format!(
                "stdout should be {} bytes, {}\nit has {}, and differs from byte {same} on",
                bytes.len(),
                excerpt(bytes),
                self.stdout.len()
            ),
        )
    }

    #[track_caller]
    pub fn says(&self, text: &str) -> &Outcome {
        self.check(self.stderr.contains(text), &format!("stderr should hold {text:?}"))
    }

    #[track_caller]
    pub fn is_silent(&self) -> &Outcome {
        self.check(self.stderr.is_empty(), "stderr should be empty")
    }

    pub fn lines(&self) -> Vec<&str> {
        std::str::from_utf8(&self.stdout).unwrap_or_else(|_| panic!("{}", self.explain("not UTF-8"))).lines().collect()
    }

    /// Lines as numbers.
    #[track_caller]
    pub fn numbers(&self) -> Vec<u64> {
        let number = |line: &&str| line.parse().unwrap_or_else(|_| panic!("{}", self.explain("not a number")));
        self.lines().iter().map(number).collect()
    }

    /// When each byte `end` (exclusive) had come, for the end of each line.
    pub fn line_times(&self) -> Vec<Duration> {
        let ends = self.stdout.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        ends.map(|end| self.time_of(end)).collect()
    }

    /// When the first `bytes` had come.
    pub fn time_of(&self, bytes: usize) -> Duration {
        let read = self.reads.partition_point(|(_, have)| *have < bytes);
        self.reads[read].0
    }

    /// The JSON of `--stats=json`: the last line of stderr.
    #[track_caller]
    pub fn stats(&self) -> Stats {
        let last = self.stderr.lines().next_back().unwrap_or_default();
        let json = serde_json::from_str(last);
        Stats(
            json.unwrap_or_else(|error| panic!("{}", self.explain(&format!("no JSON at the end of stderr: {error}")))),
        )
    }
}

/// A summary.
#[derive(Debug)]
pub struct Stats(pub serde_json::Value);

impl Stats {
    #[track_caller]
    pub fn get(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {}", self.0))
    }

    /// read = emitted + dropped + expired + held.
    #[track_caller]
    pub fn balance(&self) {
        let sum: u64 = ["emitted", "dropped", "expired", "held"].iter().map(|name| self.get(name)).sum();
        assert_eq!(self.get("read"), sum, "the accounts do not balance: {}", self.0);
    }
}

/// The beginning and the end of `bytes`, readable.
pub fn excerpt(bytes: &[u8]) -> String {
    const MOST: usize = 300;
    if bytes.len() <= 2 * MOST {
        return format!("{:?}", String::from_utf8_lossy(bytes));
    }
    format!(
        "{:?} ... {:?} ({} bytes)",
        String::from_utf8_lossy(&bytes[..MOST]),
        String::from_utf8_lossy(&bytes[bytes.len() - MOST..]),
        bytes.len()
    )
}
