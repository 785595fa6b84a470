//! What is shown while leaky runs, and how it is steered: the line of progress in a real terminal, a rate that is
//! followed in a file, metrics, and help.

use leaky::bucket::{Arrival, Bucket, Part};
use leaky::cli::Cli;
use leaky::config::Config;
use leaky::frame::Framing;
use leaky::run::{Run, Slice, Weight};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LEAKY: &str = env!("CARGO_BIN_EXE_leaky");

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Asks again until `what` holds; false if it does not within five seconds.
fn eventually(mut what: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        if what() {
            return true;
        }
        sleep(ms(5));
    }
    false
}

fn kill(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Ends with the test, whatever becomes of that.
struct Leaky(Child);

impl Drop for Leaky {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Leaky {
    fn end(&mut self) -> ExitStatus {
        let mut status = None;
        assert!(eventually(|| {
            status = self.0.try_wait().unwrap();
            status.is_some()
        }));
        status.unwrap()
    }
}

// ---- The line of progress ----

/// A terminal and what it shows. It knows no more than the line needs, and it does not wrap anew when it is resized.
struct Terminal {
    master: Arc<OwnedFd>,
    slave: Option<OwnedFd>,
    raw: Arc<Mutex<Vec<u8>>>,
    columns: usize,
}

impl Terminal {
    fn new(columns: usize) -> Terminal {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let slave = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty()).unwrap();
        let (master, raw) = (Arc::new(master), Arc::new(Mutex::new(Vec::new())));
        let (from, into) = (Arc::clone(&master), Arc::clone(&raw));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = rustix::io::read(&*from, &mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        let mut terminal = Terminal { master, slave: Some(slave), raw, columns };
        terminal.resize(columns);
        terminal
    }

    fn resize(&mut self, columns: usize) {
        self.columns = columns;
        let size = rustix::termios::Winsize { ws_col: columns as u16, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&*self.master, size).unwrap();
    }

    fn stdio(&self) -> Stdio {
        self.slave.as_ref().unwrap().try_clone().unwrap().into()
    }

    fn raw(&self) -> String {
        String::from_utf8(self.raw.lock().unwrap().clone()).unwrap()
    }

    /// The rows that are not empty, without colours.
    fn rows(&self) -> Vec<String> {
        let mut rows: Vec<Vec<char>> = vec![Vec::new()];
        let (mut row, mut column) = (0, 0);
        let raw = self.raw();
        let mut chars = raw.chars();
        while let Some(c) = chars.next() {
            match c {
                '\r' => column = 0,
                '\n' => row += 1,
                '\x1b' => {
                    assert_eq!(chars.next(), Some('['));
                    let mut number = String::new();
                    let letter = chars.find(|c| {
                        number.extend(c.is_ascii_digit().then_some(*c));
                        c.is_ascii_alphabetic()
                    });
                    match letter.unwrap() {
                        'm' => {}
                        'K' => rows[row].truncate(column),
                        'J' => {
                            rows[row].truncate(column);
                            rows.truncate(row + 1);
                        }
                        'A' => row -= number.parse::<usize>().unwrap_or(1).min(row),
                        other => panic!("the line has no use for {other}"),
                    }
                }
                c => {
                    if column == self.columns {
                        (row, column) = (row + 1, 0);
                    }
                    rows.resize_with(rows.len().max(row + 1), Vec::new);
                    let length = rows[row].len().max(column + 1);
                    rows[row].resize(length, ' ');
                    rows[row][column] = c;
                    column += 1;
                }
            }
            rows.resize_with(rows.len().max(row + 1), Vec::new);
        }
        let rows = rows.into_iter().map(|row| row.into_iter().collect::<String>().trim_end().to_string());
        rows.filter(|row| !row.is_empty()).collect()
    }

    /// The rows once one of them has all of `words`.
    fn rows_with(&self, words: &[&str]) -> Vec<String> {
        let has_all = |row: &String| words.iter().all(|word| row.contains(word));
        let seen = eventually(|| self.rows().iter().any(has_all));
        assert!(seen, "no row with {words:?} in\n{}", self.rows().join("\n"));
        self.rows()
    }
}

/// leaky with its stderr on `terminal` and its stdout in a pipe that somebody reads.
fn in_terminal(terminal: &Terminal, arguments: &str, stdin: Stdio, environment: &[(&str, &str)]) -> Leaky {
    let mut command = Command::new(LEAKY);
    command.args(arguments.split_whitespace()).env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command.envs(environment.iter().copied()).env_remove("TMUX").env_remove("XTERM_VERSION");
    let mut child = command.stdin(stdin).stdout(Stdio::piped()).stderr(terminal.stdio()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    Leaky(child)
}

fn lines(count: usize) -> Vec<u8> {
    (1..=count).map(|i| format!("{i}\n")).collect::<String>().into_bytes()
}

#[test]
fn the_line_is_right_idle_dropping_full_and_finished_at_any_width() {
    for width in [40, 80, 200] {
        let terminal = Terminal::new(width);
        let mut leaky = in_terminal(&terminal, "-p -r 100/s -c 20 -o drop", Stdio::piped(), &[]);
        let mut stdin = leaky.0.stdin.take().unwrap();
        let rows = terminal
            .rows_with(&["0 items", "0/20"].map(|word| if width == 200 { word.trim_end_matches("/20") } else { word }));
        assert_eq!(rows.len(), 1, "idle: {rows:?}");
        stdin.write_all(&lines(300)).unwrap();
        let rows = terminal.rows_with(&["20 items", "of 100/s", "280 dropped"]);
        assert_eq!(rows.len(), 1, "dropping: {rows:?}");
        assert!(terminal.raw().contains("\x1b[31m280 dropped\x1b["), "in red");
        drop(stdin);
        assert!(leaky.end().success());
        let rows = terminal.rows_with(&["leaky: of 300 items 280 were dropped"].map(|text| &text[..width.min(36)]));
        let last = &rows[0];
        assert!(last.contains("20 items") && last.contains("280 dropped"), "finished: {rows:?}");
        assert_eq!(last.contains("[----"), width > 40, "the gauge: {rows:?}");
        assert_eq!(last.contains("level 0 of 20"), width == 200, "{rows:?}");
        assert!(rows.iter().all(|row| row.len() <= width));
        assert_eq!(rows[1..].concat(), "leaky: of 300 items 280 were dropped and 0 expired");
    }
}

#[test]
fn the_line_is_right_while_the_bucket_is_full() {
    let terminal = Terminal::new(80);
    let mut leaky = in_terminal(&terminal, "-p -r 50/s -c 10", Stdio::piped(), &[]);
    let mut stdin = leaky.0.stdin.take().unwrap();
    thread::spawn(move || stdin.write_all(&lines(100_000)));
    let rows = terminal.rows_with(&["50.0 of 50/s", "[############]", "10/10"]);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(!terminal.raw().contains("dropped"));
}

#[test]
fn where_the_size_is_known_percent_and_time_left_are_told() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("input");
    fs::write(&path, lines(9999)).unwrap();
    let terminal = Terminal::new(100);
    let mut leaky = in_terminal(&terminal, "-p -r 5000/s -c 10", fs::File::open(&path).unwrap().into(), &[]);
    terminal.rows_with(&["5000 of 5000/s", " %", "0:00:01 left"]);
    assert!(leaky.end().success());
    let rows = terminal.rows_with(&["9999 items", "100 %"]);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(!rows[0].contains("left"), "{rows:?}");
}

#[test]
fn the_line_gets_shorter_with_the_terminal() {
    let mut terminal = Terminal::new(200);
    let mut leaky = in_terminal(&terminal, "-p -r 50/s", Stdio::piped(), &[("XTERM_VERSION", "XTerm(1)")]);
    let stdin = leaky.0.stdin.take().unwrap();
    terminal.rows_with(&["level 0 of 1024"]);
    terminal.raw.lock().unwrap().clear();
    terminal.resize(40);
    let rows = terminal.rows_with(&["0/1024"]);
    assert_eq!(rows.len(), 1, "{rows:?}");
    drop(stdin);
    assert!(leaky.end().success());
}

#[test]
fn a_dumb_terminal_gets_no_escape_sequences_and_no_color_no_color() {
    for (variable, value, escapes) in [("TERM", "dumb", false), ("NO_COLOR", "1", true)] {
        let terminal = Terminal::new(80);
        let mut leaky = in_terminal(&terminal, "-p -r 50/s -c 5 -o drop -q", Stdio::piped(), &[(variable, value)]);
        let mut stdin = leaky.0.stdin.take().unwrap();
        stdin.write_all(&lines(20)).unwrap();
        terminal.rows_with(&["5 items", "15 dropped"]);
        drop(stdin);
        assert!(leaky.end().success());
        let rows = terminal.rows_with(&["=  5 items", "15 dropped"]);
        assert_eq!(rows.len(), 1, "{variable}: {rows:?}");
        assert_eq!(terminal.raw().contains('\x1b'), escapes, "{variable}");
        assert!(!terminal.raw().contains("\x1b[31m"), "{variable}");
    }
}

#[test]
fn what_else_is_said_stands_whole_above_the_line() {
    let terminal = Terminal::new(120);
    let mut leaky = in_terminal(&terminal, "-p -r 20/s --stats=json", Stdio::piped(), &[]);
    let mut stdin = leaky.0.stdin.take().unwrap();
    stdin.write_all(&lines(10)).unwrap();
    terminal.rows_with(&["10 items"]);
    kill(&leaky.0, rustix::process::Signal::USR1);
    terminal.rows_with(&["{\"blocked_ns\""]);
    sleep(ms(600));
    let rows = terminal.rows();
    let text = rows[..rows.len() - 1].concat();
    let stats: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {rows:?}"));
    assert_eq!(stats["emitted"], 10);
    assert!(rows[rows.len() - 1].contains("10 items"), "{rows:?}");
    drop(stdin);
    assert!(leaky.end().success());
}

#[test]
fn nothing_is_drawn_where_it_would_disturb() {
    let mut child = Command::new(LEAKY);
    child.args(["-p", "-r", "20/s"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&lines(10)).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "stderr is no terminal: {:?}", String::from_utf8_lossy(&output.stderr));

    let terminal = Terminal::new(80);
    let mut command = Command::new(LEAKY);
    command.args(["-p", "-r", "20/s"]).stdin(Stdio::piped()).stdout(terminal.stdio()).stderr(terminal.stdio());
    let mut leaky = Leaky(command.spawn().unwrap());
    leaky.0.stdin.take().unwrap().write_all(&lines(10)).unwrap();
    assert!(leaky.end().success());
    assert!(eventually(|| terminal.raw().ends_with("10\r\n")));
    assert_eq!(terminal.raw().replace('\r', "").as_bytes(), lines(10), "stdout is a terminal");
}

#[test]
fn looking_costs_next_to_nothing() {
    let terminal = Terminal::new(80);
    let mut leaky = in_terminal(&terminal, "-p -r 20/s", Stdio::piped(), &[]);
    let mut stdin = leaky.0.stdin.take().unwrap();
    stdin.write_all(&lines(1000)).unwrap();
    sleep(ms(500));
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", leaky.0.id())).unwrap();
        let fields: Vec<u64> =
            stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2).map(|n| n.parse().unwrap()).collect();
        fields[0] + fields[1]
    };
    let before = ticks();
    sleep(ms(3000));
    // A hundredth of a second each; the items take some of it.
    assert!(ticks() - before <= 4, "{} ticks in 3 s", ticks() - before);
}

#[test]
fn who_reads_from_a_terminal_is_told() {
    for (arguments, told) in [("-r 5/s", true), ("-r 5/s -q", false)] {
        let terminal = Terminal::new(80);
        let mut command = Command::new(LEAKY);
        command.args(arguments.split_whitespace()).stdin(terminal.stdio()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut leaky = Leaky(command.spawn().unwrap());
        sleep(ms(200));
        // Ctrl-D, at the beginning of a line, is the end of it.
        rustix::io::write(&*terminal.master, b"\x04").unwrap();
        assert!(leaky.end().success());
        let mut said = String::new();
        leaky.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let wanted = if told { "leaky: reading from the terminal; end with Ctrl-D\n" } else { "" };
        assert_eq!(said, wanted);
    }
}

// ---- A rate in a file ----

/// leaky that follows a file, with its stdout and stderr a line at a time.
struct Follower {
    leaky: Leaky,
    directory: TempDir,
    out: Receiver<(Instant, String)>,
    err: Receiver<(Instant, String)>,
}

fn read_lines(from: impl Read + Send + 'static) -> Receiver<(Instant, String)> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send((Instant::now(), line)).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Follower {
    /// The file says `text`; stdin is held open behind `items` lines.
    fn new(text: &str, items: usize, arguments: &str) -> Follower {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("rate"), text).unwrap();
        Follower::within(directory, items, arguments)
    }

    fn within(directory: TempDir, items: usize, arguments: &str) -> Follower {
        let mut command = Command::new(LEAKY);
        command.args(["-r", "@rate"]).args(arguments.split_whitespace()).current_dir(directory.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (out, err) = (read_lines(child.stdout.take().unwrap()), read_lines(child.stderr.take().unwrap()));
        let mut stdin = child.stdin.take().unwrap();
        thread::spawn(move || {
            let _ = stdin.write_all(&lines(items));
            sleep(Duration::from_secs(30));
        });
        let follower = Follower { leaky: Leaky(child), directory, out, err };
        // It has to be up before anything is changed.
        sleep(ms(150));
        follower
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("rate")
    }

    /// As `echo text > rate`.
    fn say(&self, text: &str) -> Instant {
        let now = Instant::now();
        fs::write(self.path(), text).unwrap();
        now
    }

    fn next(&self) -> (Instant, String) {
        self.out.recv_timeout(Duration::from_secs(5)).expect("another item")
    }

    fn nothing_for(&self, time: Duration) {
        if let Ok((_, line)) = self.out.recv_timeout(time) {
            panic!("{line} has left");
        }
    }

    fn complaint(&self) -> String {
        self.err.recv_timeout(Duration::from_secs(5)).expect("a complaint").1
    }

    fn no_complaint(&self) {
        if let Ok((_, line)) = self.err.recv_timeout(ms(300)) {
            panic!("it said: {line}");
        }
    }
}

#[test]
fn a_new_rate_ends_a_wait_of_an_hour() {
    for arguments in
        ["", "-a token-bucket -b 1", "-a fixed-window", "-a sliding-window", "-k regex:$", "-r 1000/s", "-o drop"]
    {
        let follower = Follower::new("1/h\n", 100, arguments);
        assert_eq!(follower.next().1, "1", "{arguments}");
        follower.nothing_for(ms(100));
        let begin = follower.say("50/s\n");
        let (at, item) = follower.next();
        assert!(at - begin < ms(1000), "{arguments}: {item} came after {:?}", at - begin);
        let mut last = at;
        for _ in 0..10 {
            last = follower.next().0;
        }
        assert!(last - begin < ms(2000), "{arguments}: 11 items took {:?}", last - begin);
        follower.no_complaint();
    }
}

#[test]
fn a_file_may_be_replaced_removed_and_made_again() {
    let follower = Follower::new("1/h", 100, "");
    follower.next();
    let other = follower.directory.path().join("other");
    fs::write(&other, "20/s").unwrap();
    fs::rename(&other, follower.path()).unwrap();
    follower.next();
    fs::remove_file(follower.path()).unwrap();
    assert!(follower.complaint().contains("could not read it"));
    follower.next();
    follower.say("unlimited");
    assert!(eventually(|| follower.out.try_iter().any(|(_, item)| item == "100")));
    follower.no_complaint();
}

#[test]
fn nobody_tells_of_what_a_link_leads_to_and_yet_it_is_followed() {
    let directory = TempDir::new().unwrap();
    let elsewhere = TempDir::new().unwrap();
    fs::write(elsewhere.path().join("real"), "1/h").unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("real"), directory.path().join("rate")).unwrap();
    let follower = Follower::within(directory, 10, "");
    follower.next();
    let begin = follower.say("50/s");
    let (at, _) = follower.next();
    assert!(at - begin < ms(1000), "{:?}", at - begin);
}

#[test]
fn zero_pauses_and_a_rate_resumes_without_a_burst() {
    let follower = Follower::new("0/s", 100, "-v");
    assert!(follower.complaint().contains("paused until 'rate' says a rate"), "at the start");
    follower.nothing_for(ms(300));
    follower.say("20/s");
    let (first, _) = follower.next();
    for _ in 0..5 {
        follower.next();
    }
    follower.say("0");
    sleep(ms(200));
    let left = follower.out.try_iter().count();
    assert!(left <= 3, "{left} left after the pause");
    follower.nothing_for(ms(500));
    let begin = follower.say("20/s");
    let times: Vec<Instant> = (0..6).map(|_| follower.next().0).collect();
    assert!(
        times[0] > begin && times[5] - times[0] > ms(200),
        "six take a quarter of a second, not {:?}",
        times[5] - times[0]
    );
    assert!(first < begin);
}

#[test]
fn what_is_no_rate_changes_nothing_and_is_told_once() {
    let follower = Follower::new("20/s", 1000, "");
    follower.next();
    for (text, why) in [("", "a rate is missing"), ("fast", "no such unit"), ("10MiB/s", "counts something else")] {
        follower.say(text);
        let said = follower.complaint();
        assert!(said.contains("--rate '@rate'") && said.contains(why) && said.ends_with("stays as it was"), "{said}");
        follower.say(text);
        follower.no_complaint();
        // It goes on at the old rate.
        follower.out.try_iter().count();
        let times: Vec<Instant> = (0..6).map(|_| follower.next().0).collect();
        assert!(times[5] - times[0] > ms(200), "{text}");
    }
    follower.say("500/s");
    follower.no_complaint();
}

#[test]
fn writing_in_place_is_no_empty_text() {
    let follower = Follower::new("100/s", 10_000, "");
    // Far enough apart for a busy machine: who reads only when the next writer has begun finds a file that is empty.
    for turn in 0..20 {
        follower.say(if turn % 2 == 0 { "200/s\n" } else { "100/s\n" });
        sleep(ms(100));
    }
    follower.no_complaint();
}

#[test]
fn hanging_up_reads_the_file_again_and_without_one_ends_the_run() {
    let mut follower = Follower::new("1/h", 10, "");
    follower.next();
    kill(&follower.leaky.0, rustix::process::Signal::HUP);
    follower.nothing_for(ms(200));
    assert!(follower.leaky.0.try_wait().unwrap().is_none());
    follower.say("unlimited");
    follower.next();
    kill(&follower.leaky.0, rustix::process::Signal::TERM);
    assert_eq!(follower.leaky.end().signal(), Some(15));

    let mut command = Command::new(LEAKY);
    command.args(["-r", "1/h", "-q"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut leaky = Leaky(command.spawn().unwrap());
    let _stdin = leaky.0.stdin.take();
    sleep(ms(150));
    kill(&leaky.0, rustix::process::Signal::HUP);
    assert_eq!(leaky.end().signal(), Some(1));
}

#[test]
fn a_hundred_changes_a_second_keep_every_bound() {
    let follower = Follower::new("200/s", 100_000, "");
    let begin = follower.next().0;
    let rates = ["1000/s", "200/s", "500/s", "7/s"];
    let mut turn = 0;
    while begin.elapsed() < ms(3000) {
        follower.say(rates[turn % 4]);
        turn += 1;
        sleep(ms(10));
    }
    let elapsed = begin.elapsed();
    let times: Vec<Instant> = follower.out.try_iter().map(|(at, _)| at).collect();
    // The mean of the rates at most; that 7/s lasts for less than its T leaves at least a slot every four turns.
    let (count, seconds) = (times.len() as f64, elapsed.as_secs_f64());
    assert!(count < 1000.0 * seconds, "{count} in {seconds} s");
    assert!(count > turn as f64 / 4.0, "{count} in {turn} changes");
    // The fastest of them bounds every window; the reader may be late here by whatever the machine is.
    for (i, &from) in times.iter().enumerate() {
        let until = times.partition_point(|at| *at < from + ms(100));
        assert!(until - i <= 100 + 50 + 1 + 50, "{} in 100 ms", until - i);
    }
    follower.no_complaint();
}

#[test]
fn a_rate_that_cannot_be_followed_is_refused() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("good"), "5/s\n").unwrap();
    fs::write(directory.path().join("bad"), "quick\n").unwrap();
    fs::write(directory.path().join("empty"), "").unwrap();
    let cases: [(&[&str], &str); 7] = [
        (&["-r", "@none"], "leaky: --rate '@none': could not read it"),
        (&["-r", "@bad"], "leaky: --rate '@bad': it says 'quick': no such unit"),
        (&["-r", "@empty"], "leaky: --rate '@empty': it says '': a rate is missing"),
        (&["-r", "@."], "leaky: --rate '@.': could not read it: it is no regular file"),
        (&["-r", "@"], "leaky: --rate '@': the name of a file"),
        (&["-r", "@good", "-r", "@good"], "leaky: --rate '@good': only one rate can be followed"),
        (&["-r", "@good", "--simulate"], "leaky: --rate '@good': a simulation is over before"),
    ];
    for (arguments, wanted) in cases {
        let output = Command::new(LEAKY).args(arguments).current_dir(&directory).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(said.starts_with(wanted) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
}

/// What happens to a bucket from outside.
#[derive(Clone, Debug)]
enum Outside {
    Arrive(u64),
    Say(&'static str),
}

/// Instants in nanoseconds and what happens then.
fn outside() -> impl Strategy<Value = Vec<(u64, Outside)>> {
    let text = prop::sample::select(vec!["1/s", "3/s", "7/s", "10/s", "1000/s", "7/13s", "unlimited", "0/s", "0"]);
    let what = prop_oneof![(1..20_u64).prop_map(Outside::Arrive), text.prop_map(Outside::Say)];
    prop::collection::vec((0..2_000_000_000_u64, what), 1..60).prop_map(|gaps| {
        let mut at = 0;
        let advance = |(gap, what)| {
            at += gap;
            (at, what)
        };
        gaps.into_iter().map(advance).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn after_a_change_an_item_leaves_when_the_last_departure_and_the_new_rate_say(mut script in outside()) {
        // In the end everything leaves.
        let end = script.last().map_or(0, |(at, _)| *at);
        script.push((end + 1, Outside::Say("1000/s")));
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("rate");
        fs::write(&path, "2/s").unwrap();
        let cli = Cli {
            rates: vec![format!("@{}", path.display())],
            capacity: Some("1M".into()),
            overflow: Some("drop".into()),
            ..Cli::default()
        };
        let mut config = Config::try_from(cli).unwrap();
        let mut bucket = Bucket::new(config.bucket.clone(), false);
        let (mut number, mut changes, mut changed) = (1, 0, 0);
        let mut arrivals = VecDeque::new();
        let mut last: Option<u64> = None;
        let mut script = VecDeque::from(script);
        loop {
            let next = script.front().map(|(at, _)| *at);
            let event = bucket.next_event();
            let Some(now) = [next, event].into_iter().flatten().min() else { break };
            if event == Some(now) {
                bucket.advance(now);
            } else if let Some((_, what)) = script.pop_front() {
                match what {
                    Outside::Arrive(count) => {
                        let slice = Slice::new(b"\n".repeat(count as usize));
                        let run = Run { slice, count, weight: Weight { len: 1, cost: 1 }, number, arrival: now };
                        number += count;
                        arrivals.extend(std::iter::repeat_n(now, count as usize));
                        bucket.arrive(now, Arrival { run, part: Part::Whole, key: None, recorded: None });
                    }
                    Outside::Say(text) => if let Some(next) = config.after(text).unwrap() {
                        bucket.change_rate(now, &next.bucket);
                        (config, changed) = (next, now);
                        changes += 1;
                    }
                }
            }
            let mut slices = Vec::new();
            bucket.leaving(&mut slices, usize::MAX);
            let bytes: usize = slices.iter().map(Slice::len).sum();
            bucket.wrote(bytes, now, |_, _, _| {});
            for _ in 0..bytes {
                let arrival: u64 = arrivals.pop_front().unwrap();
                let apart = config.rates.first().map_or(0, |rate| rate.nanos_for(1));
                prop_assert!(!config.bucket.pacer.is_paused());
                let slot = last.map_or(0, |last| last + apart);
                let wanted = arrival.max(slot).max(if arrival < changed { changed } else { 0 });
                // An instant is rounded to a nanosecond when an item leaves, and at each change.
                prop_assert!(now + 2 >= wanted && now <= wanted + 2 + changes, "{now} instead of {wanted}");
                last = Some(now);
            }
        }
        prop_assert!(arrivals.is_empty() && bucket.is_empty());
        let accounts = bucket.accounts();
        prop_assert_eq!((accounts.read, accounts.emitted, accounts.dropped), (number - 1, number - 1, 0));
    }

    #[test]
    fn whatever_the_changes_every_byte_comes_out_once_and_in_order(script in outside(), chunk in 1..500_u64) {
        let texts = |text: &str| match text {
            "unlimited" | "0" => text.to_string(),
            _ => text.replacen('/', &format!("{}B/", "0".repeat(1 + chunk as usize % 4)), 1),
        };
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("rate");
        fs::write(&path, "100B/s").unwrap();
        let cli = Cli { rates: vec![format!("@{}", path.display())], capacity: Some("100MB".into()), ..Cli::default() };
        let mut config = Config::try_from(cli).unwrap();
        let mut bucket = Bucket::new(config.bucket.clone(), false);
        let (mut number, mut byte, mut out) = (1, 0_u64, Vec::new());
        let mut script = VecDeque::from(script);
        let end = script.back().map_or(0, |(at, _)| *at);
        script.push_back((end + 1, Outside::Say("unlimited")));
        loop {
            let next = script.front().map(|(at, _)| *at);
            let event = bucket.next_event();
            let Some(now) = [next, event].into_iter().flatten().min() else { break };
            if event == Some(now) {
                bucket.advance(now);
            } else if let Some((_, what)) = script.pop_front() {
                match what {
                    Outside::Arrive(count) => {
                        let Framing::Chunks(size) = config.intake.framing else { panic!("bytes are chunks") };
                        let bytes: Vec<u8> = (0..count * chunk).map(|i| ((byte + i) % 251) as u8).collect();
                        byte += bytes.len() as u64;
                        for piece in bytes.chunks(size) {
                            let weight = Weight { len: piece.len() as u64, cost: 1 };
                            let run = Run { slice: Slice::new(piece.to_vec()), count: 1, weight, number, arrival: now };
                            number += 1;
                            bucket.arrive(now, Arrival { run, part: Part::Whole, key: None, recorded: None });
                        }
                    }
                    Outside::Say(text) => if let Some(next) = config.after(&texts(text)).unwrap() {
                        bucket.change_rate(now, &next.bucket);
                        config = next;
                    }
                }
            }
            let mut slices = Vec::new();
            bucket.leaving(&mut slices, 64);
            // A pipe takes a part at a time.
            let some = slices.iter().map(Slice::len).sum::<usize>().min(1 + chunk as usize);
            out.extend(slices.iter().flat_map(|slice| slice.bytes().to_vec()).take(some));
            bucket.wrote(some, now, |_, _, _| {});
        }
        let mut slices = Vec::new();
        bucket.leaving(&mut slices, usize::MAX);
        out.extend(slices.iter().flat_map(|slice| slice.bytes().to_vec()));
        out.extend(bucket.leftover().iter().skip(slices.len()).flat_map(|slice| slice.bytes().to_vec()));
        prop_assert_eq!(out.len() as u64, byte);
        prop_assert!(out.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8));
    }
}

// ---- Metrics ----

fn metrics(text: &str) -> std::collections::HashMap<String, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_string(), value.parse().unwrap())
        })
        .collect()
}

fn promtool(text: &str) {
    let Ok(mut child) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        return;
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn metrics_add_up_at_every_moment_and_are_replaced_as_a_whole() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("leaky.prom");
    let mut command = Command::new(LEAKY);
    command.args(["-r", "100/s", "-c", "50", "-o", "drop", "-q", "--metrics"]).arg(&path);
    let mut leaky = Leaky(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    let mut stdin = leaky.0.stdin.take().unwrap();
    assert!(eventually(|| path.exists()));
    let mut seen = 0;
    for _ in 0..25 {
        stdin.write_all(&lines(20)).unwrap();
        sleep(ms(100));
        let now = metrics(&fs::read_to_string(&path).unwrap());
        let of = |name: &str| now[&format!("leaky_items_{name}")] as u64;
        let sum = of("emitted_total") + of("dropped_total") + of("expired_total") + of("held");
        assert_eq!(of("read_total"), sum);
        assert_eq!(now["leaky_running"], 1.0);
        assert!(now["leaky_level{unit=\"items\"}"] <= 50.0);
        seen = seen.max(of("read_total"));
    }
    assert!(seen > 100, "they are written while it runs");
    drop(stdin);
    assert!(leaky.end().success());
    let text = fs::read_to_string(&path).unwrap();
    promtool(&text);
    let end = metrics(&text);
    assert_eq!(end["leaky_items_read_total"], 500.0);
    assert_eq!(end["leaky_items_held"], 0.0);
    assert_eq!(end["leaky_items_emitted_total"] + end["leaky_items_dropped_total"], 500.0);
    assert_eq!(end["leaky_bytes_read_total"], 25.0 * lines(20).len() as f64);
    assert_eq!(end["leaky_running"], 0.0);
    assert_eq!(end["leaky_capacity{unit=\"items\"}"], 50.0);
    assert_eq!(end["leaky_rate_asked{rate=\"1\",unit=\"items\"}"], 100.0);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing else is left there");
}

#[test]
fn metrics_are_clean_whatever_is_asked() {
    let directory = TempDir::new().unwrap();
    for arguments in ["-r unlimited", "-r 1MiB/s", "-r 1000/s -r 60000cost/min", "-r 500/s -k field:1", "-r 8Mbit/s"] {
        let path = directory.path().join("leaky.prom");
        let mut command = Command::new(LEAKY);
        command.args(arguments.split_whitespace()).arg("--metrics").arg(&path).arg("-q");
        let mut leaky = Leaky(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
        leaky.0.stdin.take().unwrap().write_all(&lines(100)).unwrap();
        assert!(leaky.end().success());
        let text = fs::read_to_string(&path).unwrap();
        promtool(&text);
        assert_eq!(metrics(&text)["leaky_bytes_emitted_total"], lines(100).len() as f64, "{arguments}");
    }
}

#[test]
fn metrics_that_cannot_be_written_are_told_of() {
    let directory = TempDir::new().unwrap();
    for path in [directory.path().join("no/such/file"), directory.path().to_path_buf(), Path::new("/dev/null").into()] {
        let mut command = Command::new(LEAKY);
        command.args(["-r", "5/s", "--metrics"]).arg(&path).stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with(&format!("leaky: could not write --metrics '{}': ", path.display())), "{said}");
    }
    // Later on it is a warning, once.
    let inner = directory.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let mut command = Command::new(LEAKY);
    command.args(["-r", "5/s", "--metrics"]).arg(inner.join("leaky.prom")).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut leaky = Leaky(command.spawn().unwrap());
    let stdin = leaky.0.stdin.take();
    assert!(eventually(|| inner.join("leaky.prom").exists()));
    fs::remove_dir_all(&inner).unwrap();
    sleep(ms(2200));
    drop(stdin);
    assert!(leaky.end().success());
    let mut said = String::new();
    leaky.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn the_manual_names_every_metric() {
    let manual = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/man/leaky.1")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("leaky.prom");
    for arguments in ["-r unlimited", "-r 1MiB/s", "-r 500/s -k field:1"] {
        let words = arguments.split(' ').chain(["--metrics", path.to_str().unwrap()]);
        assert!(Command::new(LEAKY).args(words).stdin(Stdio::null()).output().unwrap().status.success());
        for line in fs::read_to_string(&path).unwrap().lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let entry = |line: &str| line.starts_with(".It Li ") && line.split([' ', ',']).any(|word| word == name);
            assert!(manual.lines().any(entry), "{arguments}: {name}");
        }
    }
}

// ---- Help ----

fn said(arguments: &[&str]) -> (String, String) {
    let output = Command::new(LEAKY).args(arguments).stdin(Stdio::null()).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn the_short_help_fits_a_screen_and_the_long_one_teaches() {
    let (short, _) = said(&["-h"]);
    assert!(short.lines().count() <= 50, "{} lines", short.lines().count());
    for line in short.lines() {
        assert!(line.len() <= 84, "{line}");
    }
    let (long, _) = said(&["--help"]);
    assert!(long.len() > 2 * short.len());
    let option = |line: &&str| line.trim_start().starts_with('-');
    for line in short.lines().filter(option) {
        let name = line.split_whitespace().find(|word| word.starts_with("--")).unwrap();
        let name = name.split('[').next().unwrap();
        assert!(long.contains(name), "{name}");
    }
    for heading in ["Rate:", "Items:", "Bucket:", "Replay and simulation:", "Reporting:"] {
        assert!(short.lines().any(|line| line == heading) && long.lines().any(|line| line == heading), "{heading}");
    }
}

#[test]
fn a_slip_is_answered_with_what_was_probably_meant() {
    let cases = [
        ("-r 1/s -a leakybucket", "did you mean leaky-bucket?"),
        ("-r 1/s -a tokn-bukcet", "did you mean token-bucket?"),
        ("-r 1/s -a sliding", "did you mean sliding-window?"),
        ("-r 1/s -o dorp", "did you mean drop?"),
        ("-r 1/s -o oldest", "did you mean drop-oldest?"),
        ("-r 1/s -o Drop_Newest", "did you mean drop-newest?"),
        ("-r 1/s --stats=jsno", "did you mean json?"),
        ("-r 1/s -a fixed-window --align clok", "did you mean clock?"),
        ("-r 1/s -k feild:1", "did you mean field?"),
        ("-r 1/s --capcity 5", "did you mean --capacity?"),
        ("-r 5kib/s", "did you mean KiB?"),
        ("-r 5 MB/s", "without a blank"),
        ("5/s", "say --rate 5/s"),
        ("-r 300rpm", "300/min"),
        ("-r 90ktokens/min", "90000cost/min"),
        ("-r 1/s --drop", "say --overflow drop"),
        ("-r 1/s --dry-run", "say --simulate"),
        ("-r Cargo.toml", "--rate '@Cargo.toml'"),
        ("-r 1/s --shared localhost:6379", "say redis://localhost:6379"),
        ("-r 1/s --metrics :9100", "no port is opened"),
        ("--replay --speed 4", "a value is required for '--replay"),
    ];
    for (arguments, wanted) in cases {
        let (out, err) = said(&arguments.split_whitespace().collect::<Vec<_>>());
        assert!(err.contains(wanted) && err.lines().count() == 1 && out.is_empty(), "{arguments}: {err}");
    }
    let (_, err) = said(&["-r", "1/s", "-o", "xyzzy"]);
    assert!(!err.contains("did you mean"), "{err}");
}

#[test]
fn verbose_tells_in_plain_words_what_will_happen() {
    let cases = [
        (
            "-r 2/s -c 11 -o drop",
            "2 items per second, one every 500ms; items are lines; 10 may wait, further ones are dropped; ",
        ),
        (
            "-r 1/90s --strict",
            "1 item per 90s, one every 1m 30s; items are lines; 1023 may wait, then the producer has to; lateness is never made up; ",
        ),
        (
            "-r 10MiB/s",
            "10 MiB per second, a chunk every 6.25ms; bytes leave in chunks of 64KiB at most; 1MiB may be in the bucket, ",
        ),
        ("-r 3/s -b 5", "3 items per second; after idling 5 items may leave back to back; "),
        ("-r unlimited", "no limit; items are lines; "),
    ];
    for (arguments, wanted) in cases {
        let (_, err) = said(&[&arguments.split_whitespace().collect::<Vec<_>>()[..], &["-v"]].concat());
        assert!(err.starts_with(&format!("leaky: {wanted}")), "{arguments}: {err}");
        assert!(err.trim_end().ends_with("the first leaves at once") && err.lines().count() == 1, "{err}");
    }
}
