//! Signals: it dies of them as cat does, in good order, unless they were ignored when it was started.

use crate::harness::{Dir, Leaky, Running, leaky, ms, seq};
use rustix::process::Signal;
use std::fs::File;
use std::io::Seek;
use std::thread;

const FATAL: [(&str, Signal); 11] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("TERM", Signal::TERM),
    ("ALRM", Signal::ALARM),
    ("USR2", Signal::USR2),
    ("VTALRM", Signal::VTALARM),
    ("PROF", Signal::PROF),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
    ("IO", Signal::IO),
];

impl Leaky {
    /// With every signal as a shell in the foreground leaves it, whatever the tests themselves were started with, and
    /// without a core file.
    fn in_the_foreground(self) -> Leaky {
        self.through("ulimit -c 0; exec env --default-signal \"$@\"")
    }
}

impl Running {
    /// Whether it has got so far as to handle signals.
    fn listens(&self) -> bool {
        let caught = u64::from_str_radix(&self.status("SigCgt"), 16).expect("a mask");
        caught >> (Signal::TERM.as_raw() - 1) & 1 == 1
    }
}

#[test]
fn it_dies_of_every_signal_that_ends_a_process() {
    for (name, signal) in FATAL {
        let dir = Dir::new();
        let mut run =
            leaky("-r 1/h --stats=json --dropped").arg(dir.path("d")).stdin(seq(1..=4)).in_the_foreground().start();
        run.until_out(2);
        run.signal(signal);
        let outcome = run.wait();
        outcome.dies_of(signal).writes("1\n");
        outcome.stats().balance();
        assert_eq!(dir.get("d"), seq(2..=4), "SIG{name}");
    }
}

#[test]
fn it_dies_of_a_signal_before_anything_has_come() {
    let mut run = leaky("-r 1/h").live().in_the_foreground().start();
    run.until("it listens", |run| run.listens());
    run.signal(Signal::INT);
    run.until("it has ended, its stdin still open", Running::ended);
    run.wait().dies_of(Signal::INT).writes("").is_silent();
}

#[test]
fn a_signal_that_was_ignored_at_start_stays_ignored() {
    for (name, signal) in FATAL {
        let script = format!("trap '' {name}; exec \"$@\"");
        let mut run = leaky("-r 50/s").live().through(&script).start();
        run.give("1\n");
        run.until_out(2);
        run.signal(signal);
        thread::sleep(ms(50));
        run.give("2\n");
        run.until_out(4);
        run.wait().exits(0).writes("1\n2\n").is_silent();
    }
}

#[test]
fn sigusr1_ignored_at_start_stays_ignored() {
    let mut run = leaky("-r 50/s --stats=json").live().through("trap '' USR1; exec \"$@\"").start();
    run.give("1\n");
    run.until_out(2);
    run.signal(Signal::USR1);
    thread::sleep(ms(50));
    let outcome = run.wait();
    outcome.exits(0).check(outcome.stderr.lines().count() == 1, "only the summary at the end");
}

#[test]
fn a_signal_ends_a_blocked_write() {
    let dir = Dir::new();
    let line = [vec![b'x'; 2999], vec![b'\n']].concat();
    let input = line.repeat(20);
    let mut stdin = File::open(dir.put("stdin", &input)).unwrap();
    let mut run = leaky("-r 1000/s --dropped")
        .arg(dir.path("d"))
        .stdin_from(stdin.try_clone().unwrap(), "a file")
        .pipe_size(4096)
        .held()
        .in_the_foreground()
        .start();
    // It is blocked once it has read and cannot write.
    let mut offset = stdin.try_clone().unwrap();
    run.until("something is read", |_| offset.stream_position().unwrap() > 0);
    thread::sleep(ms(150));
    run.signal(Signal::TERM);
    let outcome = run.wait();
    outcome.dies_of(Signal::TERM);
    let read = stdin.stream_position().unwrap() as usize;
    let all = [&outcome.stdout[..], &dir.get("d")].concat();
    outcome.check(all == input[..read], "stdout and the file hold what was read, in order");
}

#[test]
fn at_whatever_moment_it_comes_nothing_is_lost() {
    let input = seq(1..=40_000);
    for moment in 0..30_u64 {
        let dir = Dir::new();
        let mut stdin = File::open(dir.put("stdin", &input)).unwrap();
        let args =
            ["-r unlimited", "-r 20k/s", "-r 1k/s", "-r 1MB/s", "-r 200/s -b 50", "-r 100/100ms -a fixed-window"];
        let mut run = leaky(args[moment as usize % args.len()])
            .arg("--dropped")
            .arg(dir.path("d"))
            .stdin_from(stdin.try_clone().unwrap(), "a file")
            .pipe_size(4096)
            .held()
            .in_the_foreground()
            .start();
        // Before the signals are listened to, it dies without having read anything.
        run.until("it listens", |run| run.listens());
        if moment % 3 > 0 {
            run.open();
        }
        thread::sleep(std::time::Duration::from_micros(moment * moment * 100));
        if run.ended() {
            run.wait().exits(0).writes(&input);
            continue;
        }
        run.signal(Signal::TERM);
        let outcome = run.wait();
        outcome.check(outcome.status.is_some_and(|status| status.code().is_none_or(|code| code == 0)), "SIGTERM");
        let read = stdin.stream_position().unwrap() as usize;
        let all = [&outcome.stdout[..], &dir.get("d")].concat();
        let why = format!("moment {moment}: {read} bytes were read, {} are there", all.len());
        outcome.check(all == input[..read], &why);
    }
}

#[test]
fn a_second_signal_changes_nothing() {
    let mut run = leaky("-r 1/h").stdin(seq(1..=4)).in_the_foreground().start();
    run.until_out(2);
    run.signal(Signal::TERM);
    run.signal(Signal::TERM);
    run.wait().dies_of(Signal::TERM).writes("1\n");
}
