//! Real runs: bytes in, bytes out, when, and what becomes of the rest.

use crate::harness::{Dir, Leaky, Outcome, Running, leaky, ms, noise, seq};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const POLICIES: [&str; 4] = ["block", "drop-newest", "drop-oldest", "fail"];

impl Leaky {
    /// Stdin is a file: a read returns as much as was asked for, so what arrives together does not depend on threads.
    fn stdin_file(self, dir: &Dir, bytes: &[u8]) -> Leaky {
        self.stdin_from(File::open(dir.put("stdin", bytes)).expect("stdin"), "a file")
    }
}

fn sorted_lines(bytes: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    lines.sort();
    lines
}

/// Item k (from 0) was not seen before `from` + k T - `allowance`.
#[track_caller]
fn never_early(outcome: &Outcome, times: &[Duration], from: Duration, period: Duration, allowance: Duration) {
    for (k, at) in (0..).zip(times) {
        let slot = (from + period * k).saturating_sub(allowance);
        outcome.check(*at >= slot, &format!("item {k} of these was out at {at:?}, before {slot:?}; all: {times:?}"));
    }
}

// ---- Overflow ----

#[test]
fn drop_newest_keeps_the_first() {
    let dir = Dir::new();
    let outcome = leaky("-r 20/s -c 8 -o drop").stdin_file(&dir, &seq(1..=10_000)).run();
    outcome.exits(0).writes(seq(1..=8)).says("9992 were dropped");
    never_early(&outcome, &outcome.line_times(), ms(0), ms(50), ms(0));
}

#[test]
fn drop_newest_keeps_the_first_of_a_pipe_too() {
    leaky("-r 1/s -c 2 -o drop").stdin(seq(1..=100_000)).run().exits(0).writes(seq(1..=2));
}

#[test]
fn drop_oldest_keeps_the_first_and_the_last() {
    let dir = Dir::new();
    let outcome = leaky("-r 20/s -c 8 -o drop-oldest").stdin_file(&dir, &seq(1..=10_000)).run();
    outcome.exits(0).writes(seq([1].into_iter().chain(9994..=10_000)));
}

#[test]
fn drop_oldest_without_a_place_to_wait_drops_the_arrival_and_says_so() {
    let outcome = leaky("-r 20/s -c 1 -o drop-oldest").stdin("1\n2\n3\n").run();
    outcome.exits(0).writes("1\n").says("--capacity 2");
}

#[test]
fn the_last_line_always_comes_out_of_drop_oldest() {
    let outcome = leaky("-r 4/s -c 2 -o drop-oldest").stdin(seq(1..=20_000)).run();
    outcome.exits(0).check(outcome.numbers().last() == Some(&20_000), "the newest counts");
}

#[test]
fn fail_stops_at_once_and_keeps_what_it_held() {
    let dir = Dir::new();
    let file = dir.path("dropped");
    let outcome = leaky("-r 1/h -c 3 -o fail --stats=json --dropped").arg(&file).stdin_file(&dir, &seq(1..=5)).run();
    outcome.exits(3).writes("1\n");
    assert_eq!(String::from_utf8_lossy(&dir.get("dropped")), "2\n3\n4\n5\n");
    let stats = outcome.stats();
    stats.balance();
    assert_eq!((stats.get("emitted"), stats.get("held"), stats.get("dropped")), (1, 4, 0));
}

#[test]
fn fail_has_nothing_to_say_about_what_fits() {
    leaky("-r 100/s -c 5 -o fail").stdin(seq(1..=5)).run().exits(0).writes(seq(1..=5)).is_silent();
}

#[test]
fn dropping_never_stalls_the_producer() {
    let done = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&done);
    let feed = move |to: &mut dyn Write| {
        let block = seq(1..=10_000);
        (0..200).try_for_each(|_| to.write_all(&block))?;
        told.store(true, Ordering::SeqCst);
        Ok(())
    };
    let mut run = leaky("-r 1000/s -c 10 -o drop --stats=json").producer(feed).held().start();
    run.until("all is swallowed while nobody reads", |_| done.load(Ordering::SeqCst));
    run.open();
    let outcome = run.wait();
    outcome.exits(0);
    let stats = outcome.stats();
    stats.balance();
    assert_eq!(stats.get("read"), 2_000_000);
    assert_eq!(stats.get("held"), 0);
}

#[test]
fn an_arrival_waits_for_room_until_its_time_out() {
    let dir = Dir::new();
    let run = |more: &str, bytes: &[u8]| {
        leaky(&format!("-r 1/800ms -c 1 --timeout 500ms --stats=json {more}")).stdin_file(&dir, bytes).run()
    };
    // The second gives up after 500 ms, and only then is the third offered: it finds room after 300 ms.
    let outcome = run("", b"1\n2\n3\n4\n");
    outcome.exits(0).writes("1\n3\n");
    outcome.stats().balance();
    run("-o fail", b"1\n2\n").exits(3).writes("1\n");
}

#[test]
fn what_waits_for_longer_than_the_maximal_age_expires() {
    let dir = Dir::new();
    let file = dir.path("dropped");
    let outcome =
        leaky("-r 1/400ms --max-age 1s --stats=json --dropped").arg(&file).stdin_file(&dir, &seq(1..=10)).run();
    outcome.exits(0).writes(seq(1..=3));
    assert_eq!(dir.get("dropped"), seq(4..=10));
    outcome.check(outcome.elapsed < ms(2500), "it does not wait for the slots of what has expired");
    let stats = outcome.stats();
    stats.balance();
    assert_eq!(stats.get("expired"), 7);
}

#[test]
fn items_expire_while_stdout_is_stalled() {
    let line = [vec![b'x'; 3999], vec![b'\n']].concat();
    let run = leaky("-r 100/s --max-age 300ms --stats=json").stdin(line.repeat(10)).pipe_size(4096).held().start();
    let outcome = run.wait();
    // The first is in the pipe of the kernel; leaky does not wait for a reader once the others have expired.
    outcome.exits(0).writes(&line);
    let stats = outcome.stats();
    stats.balance();
    assert_eq!((stats.get("emitted"), stats.get("expired")), (1, 9));
}

#[test]
fn items_expire_at_a_blocked_mouth() {
    let dir = Dir::new();
    let outcome = leaky("-r 1/s -c 1 --max-age 300ms --stats=json").stdin_file(&dir, &seq(1..=4)).run();
    outcome.exits(0).writes("1\n").check(outcome.elapsed < ms(900), "their slots are not waited for");
    assert_eq!(outcome.stats().get("expired"), 3);
}

#[test]
fn every_byte_is_in_stdout_or_in_dropped() {
    for policy in POLICIES {
        let dir = Dir::new();
        let input = seq(1..=3000);
        let outcome = leaky("-r 500/s -c 50 --max-age 200ms --stats=json -o")
            .arg(policy)
            .arg("--dropped")
            .arg(dir.path("dropped"))
            .stdin_file(&dir, &input)
            .run();
        outcome.check(outcome.status.is_some_and(|status| matches!(status.code(), Some(0 | 3))), policy);
        outcome.stats().balance();
        let all = [&outcome.stdout[..], &dir.get("dropped")].concat();
        // Under fail the rest was never read.
        let read = if policy == "fail" { all.len() } else { input.len() };
        outcome.check(sorted_lines(&all) == sorted_lines(&input[..read]), policy);
    }
}

#[test]
fn every_byte_that_was_read_is_in_stdout_or_in_dropped_after_a_signal() {
    for policy in &POLICIES[..3] {
        let dir = Dir::new();
        let input = seq(1..=30_000);
        let mut stdin = File::open(dir.put("stdin", &input)).expect("stdin");
        let mut run = leaky("-r 50/s -c 20 --stats=json -o")
            .arg(policy)
            .arg("--dropped")
            .arg(dir.path("dropped"))
            .stdin_from(stdin.try_clone().expect("stdin"), "a file")
            .start();
        run.until_out(6);
        run.signal(Signal::TERM);
        let outcome = run.wait();
        outcome.dies_of(Signal::TERM);
        let stats = outcome.stats();
        stats.balance();
        // The offset of the open file is shared, so it tells how much leaky has read.
        let read = stdin.stream_position().expect("its position") as usize;
        let dropped = dir.get("dropped");
        let all = [&outcome.stdout[..], &dropped].concat();
        outcome.check(all.len() == read, &format!("{policy}: {read} bytes were read, {} are there", all.len()));
        outcome.check(sorted_lines(&all) == sorted_lines(&input[..read]), policy);
        if *policy == "block" {
            outcome.check(all == input[..read], "and in order");
        }
    }
}

#[test]
fn without_dropped_it_says_how_much_it_held() {
    let mut run = leaky("-r 1/h").stdin(seq(1..=5)).start();
    run.until_out(2);
    run.signal(Signal::TERM);
    run.wait().dies_of(Signal::TERM).says("4 were read and not written").says("--dropped");
}

#[test]
fn a_dropped_file_that_cannot_be_written_ends_the_run() {
    let dir = Dir::new();
    let nowhere = dir.path("missing/file");
    let outcome = leaky("-r 1/s --dropped").arg(&nowhere).stdin("1\n").run();
    outcome.exits(1).writes("").says("missing/file");
    let outcome = leaky("-r 1/h -c 1 -o drop --dropped /dev/full").stdin(seq(1..=100)).run();
    outcome.exits(1).says("/dev/full").says("No space left");
    let outcome = leaky("-r 1/h -c 3 -o fail --dropped /dev/full").stdin(seq(1..=10)).run();
    outcome.exits(1).says("/dev/full");
}

// ---- Whole ----

#[test]
fn every_framing_passes_every_byte() {
    let bytes = noise(5_000_000, 1);
    let framings: [&[&str]; 11] = [
        &["-r", "unlimited"],
        &["-r", "10M/s"],
        &["-r", "50MiB/s", "-l"],
        &["-r", "unlimited", "-0"],
        &["-r", "10M/s", "-d", "\\xff\\x00"],
        &["-r", "unlimited", "-d", "a"],
        &["-r", "10M/s", "-d", "\\n\\n"],
        &["-r", "unlimited", "-d", "no such text anywhere"],
        &["-r", "1M/s", "--record-size", "777"],
        &["-r", "50MiB/s"],
        &["-r", "unlimited", "-B"],
    ];
    for framing in framings {
        // A busy machine may miss these rates, and says so.
        let leaky = framing.iter().fold(leaky("-q"), |leaky, arg| leaky.arg(arg));
        leaky.stdin(bytes.clone()).run().exits(0).is_silent().writes(&bytes);
    }
}

#[test]
fn odd_delimiters_part_items_where_they_are_found_first() {
    for (delimiter, input, parts) in [
        ("ab", "xababyab", vec!["xab", "ab", "yab"]),
        ("aa", "aaaaab", vec!["aa", "aa", "ab"]),
        ("é", "1é2é", vec!["1é", "2é"]),
        ("\\x0d\\n", "1\r\n2\n\r\n3", vec!["1\r\n", "2\n\r\n", "3"]),
        ("-", "-a--b", vec!["-", "a-", "-", "b"]),
    ] {
        let outcome = leaky("-r 20/s --lockstep -d").arg(delimiter).stdin(input).run();
        outcome.exits(0).writes(input);
        let ends: Vec<usize> = outcome.reads.iter().map(|read| read.1).collect();
        let wanted: Vec<usize> = parts
            .iter()
            .scan(0, |end, part| {
                *end += part.len();
                Some(*end)
            })
            .collect();
        outcome.check(ends == wanted, &format!("items should end at {wanted:?}, end at {ends:?}"));
    }
}

#[test]
fn blank_lines_and_a_missing_last_newline_are_kept() {
    leaky("-r 100/s --stats=json").stdin("a\n\n\r\nb").run().exits(0).writes("a\n\n\r\nb");
    let stats = leaky("-r 100/s --stats=json").stdin("\n\n\n").run();
    assert_eq!(stats.writes("\n\n\n").stats().get("emitted"), 3);
    leaky("-r 100/s").stdin("x").run().exits(0).writes("x");
    leaky("-r 100/s").stdin("").run().exits(0).writes("").is_silent();
}

#[test]
fn a_line_of_100_mib_passes_whole_in_bounded_memory() {
    const MIB: usize = 100;
    let feed = |to: &mut dyn Write| {
        let block = noise(1 << 20, 7).iter().map(|byte| if *byte == b'\n' { b'.' } else { *byte }).collect::<Vec<u8>>();
        (0..MIB).try_for_each(|_| to.write_all(&block))?;
        to.write_all(b"end\n")?;
        // Not the end of input, so that it can still be asked how much memory it uses.
        thread::sleep(ms(500));
        to.write_all(b"2\n")
    };
    let mut run = leaky("-r 10/s --stats=json").producer(feed).limit(Duration::from_secs(60)).start();
    run.until_out((MIB << 20) + 4);
    let peak = run.peak_kib();
    let outcome = run.wait();
    outcome.exits(0).check(outcome.stdout.ends_with(b"end\n2\n"), "the end of it, and the next");
    outcome.check(outcome.stdout.len() == (MIB << 20) + 6, "its length");
    let stats = outcome.stats();
    stats.balance();
    assert_eq!(stats.get("emitted"), 2, "it is one item");
    assert!(peak < 32 << 10, "{peak} KiB were used");
}

#[test]
fn a_long_item_is_dropped_whole() {
    let long = [noise(3 << 20, 5).iter().map(|byte| byte | 0x80).collect(), b"\n".to_vec()].concat();
    let input = [b"1\n".as_slice(), &long, b"3\n"].concat();
    let dir = Dir::new();
    let outcome = leaky("-r 1/h -c 1 -o drop --stats=json --dropped").arg(dir.path("d")).stdin(input.clone()).run();
    outcome.exits(0).writes("1\n");
    assert!(dir.get("d") == input[2..], "it is in the file, whole");
    assert_eq!(outcome.stats().get("dropped"), 2);
}

#[test]
fn a_trickling_producer_changes_nothing() {
    let text = "one\n\ntwo and more\nlast";
    let feed = move |to: &mut dyn Write| {
        text.bytes().try_for_each(|byte| {
            thread::sleep(ms(2));
            to.write_all(&[byte])
        })
    };
    let outcome = leaky("-r 200/s --stats=json").producer(feed).run();
    outcome.exits(0).writes(text);
    assert_eq!(outcome.stats().get("emitted"), 4);
}

#[test]
fn a_delimiter_that_comes_in_two_reads_is_one() {
    let long = vec![b'x'; 3 << 19];
    let given = long.clone();
    let feed = move |to: &mut dyn Write| {
        [&b"1a"[..], b"b2", b"a", b"b", &given, b"a", b"b3ab"].iter().try_for_each(|piece| {
            thread::sleep(ms(20));
            to.write_all(piece)
        })
    };
    let outcome = leaky("-r 100/s -d ab --stats=json").producer(feed).run();
    outcome.exits(0).writes([b"1ab2ab", &long[..], b"ab3ab"].concat());
    assert_eq!(outcome.stats().get("emitted"), 4);
}

#[test]
fn a_slow_reader_gets_everything() {
    let bytes = noise(400_000, 3);
    let run = leaky("-r unlimited").stdin(bytes.clone()).pipe_size(4096).held().start();
    for _ in 0..10 {
        run.open();
        thread::sleep(ms(5));
        run.shut();
    }
    run.open();
    run.wait().exits(0).writes(&bytes);
}

// ---- Exact ----

#[test]
fn idling_earns_no_credit() {
    let mut run = leaky("-r 20/s").live().start();
    thread::sleep(ms(600));
    let from = run.start.elapsed();
    run.give(seq(1..=10));
    let outcome = run.wait();
    outcome.exits(0).writes(seq(1..=10));
    never_early(&outcome, &outcome.line_times(), from, ms(50), ms(0));
}

#[test]
fn the_first_item_leaves_at_once_and_the_run_ends_with_the_last() {
    let outcome = leaky("-r 1/90s").stdin("x\n").run();
    outcome.exits(0).writes("x\n").check(outcome.elapsed < ms(3000), "at once");
}

#[test]
fn a_stop_is_not_made_up_for() {
    let mut run = leaky("-r 20/s --stats=json").stdin(seq(1..=22)).start();
    run.until_out(4);
    run.signal(Signal::STOP);
    thread::sleep(ms(700));
    let before = run.stdout_len();
    let from = run.start.elapsed();
    run.signal(Signal::CONT);
    let outcome = run.wait();
    outcome.exits(0).writes(seq(1..=22));
    let after: Vec<Duration> = outcome.line_times().into_iter().filter(|at| *at >= from).collect();
    outcome.check(before < outcome.stdout.len() && after.len() > 5, "most come after the stop");
    never_early(&outcome, &after, from, ms(50), ms(10));
    outcome.check(outcome.stats().get("forgiven_ns") > 400_000_000, "the lateness is forgiven");
}

#[test]
fn a_stalled_reader_is_not_made_up_for() {
    let line = [vec![b'x'; 3999], vec![b'\n']].concat();
    let input = line.repeat(20);
    let mut run = leaky("-r 20/s").stdin(input.clone()).pipe_size(4096).start();
    run.until_out(3 * 4000);
    run.shut();
    thread::sleep(ms(700));
    let (before, from) = (run.stdout_len() / 4000, run.start.elapsed());
    run.open();
    let outcome = run.wait();
    outcome.exits(0).writes(&input);
    // The first of these has been waiting in the pipe of the kernel, which is beyond leaky.
    let after = &outcome.line_times()[before + 1..];
    outcome.check(after.len() > 5, "most come after the stall");
    never_early(&outcome, after, from, ms(50), ms(10));
}

#[test]
fn no_byte_of_a_line_is_out_before_its_time() {
    let line = [vec![b'y'; 49_999], vec![b'\n']].concat();
    let outcome = leaky("-r 10/s").stdin(line.repeat(5)).run();
    outcome.exits(0).writes(line.repeat(5));
    for k in 0..5 {
        let first = outcome.time_of(k * line.len() + 1);
        outcome.check(first >= ms(100) * k as u32, &format!("item {k} begins at {first:?}"));
    }
}

#[test]
fn bytes_leave_in_chunks() {
    let outcome = leaky("-B --chunk 1 -r 100B/s").stdin("0123456789").run();
    outcome.exits(0).writes("0123456789");
    let times: Vec<Duration> = (1..=10).map(|bytes| outcome.time_of(bytes)).collect();
    never_early(&outcome, &times, ms(0), ms(10), ms(0));
    let outcome = leaky("-r 100kB/s").stdin(noise(30_000, 9)).run();
    outcome.exits(0).writes(noise(30_000, 9));
    let times: Vec<Duration> = (0..30).map(|chunk| outcome.time_of(chunk * 1000 + 1)).collect();
    never_early(&outcome, &times, ms(0), ms(10), ms(0));
}

#[test]
fn a_token_bucket_lets_a_burst_out_and_then_keeps_its_rate() {
    let outcome = leaky("-r 20/s -b 5").stdin(seq(1..=12)).run();
    outcome.exits(0).writes(seq(1..=12));
    never_early(&outcome, &outcome.line_times()[4..], ms(0), ms(50), ms(0));
}

#[test]
fn windows_hold_what_they_may() {
    for algorithm in ["fixed-window", "sliding-window"] {
        let outcome = leaky("-r 4/300ms -a").arg(algorithm).stdin(seq(1..=12)).run();
        outcome.exits(0).writes(seq(1..=12));
        for (group, at) in outcome.line_times().iter().step_by(4).enumerate() {
            let opens = ms(300) * group as u32;
            outcome.check(*at >= opens, &format!("{algorithm}: group {group} came at {at:?}"));
        }
    }
}

#[test]
fn a_noisy_key_delays_no_other() {
    let dir = Dir::new();
    let flood = [b"a x\n".repeat(3000), b"b 1\n".to_vec()].concat();
    let outcome = leaky("-r 1/s -c 2 -k field:1 -o drop").stdin_file(&dir, &flood).run();
    outcome.exits(0).writes("a x\nb 1\na x\n").says("'a' 2998");
}

// ---- The reader goes ----

#[test]
fn a_reader_that_goes_away_ends_the_run_at_once() {
    let yes = |to: &mut dyn Write| {
        loop {
            to.write_all(b"y\n")?;
        }
    };
    for policy in ["block", "drop"] {
        let outcome = leaky("-r 1/h -o").arg(policy).producer(yes).reader_leaves_after(2).run();
        outcome.dies_of(Signal::PIPE).writes("y\n").check(outcome.elapsed < ms(2000), "at once");
        if policy == "block" {
            outcome.is_silent();
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_noticed_while_nothing_is_written() {
    let mut run = leaky("-r 1/h").live().start();
    run.give("1\n2\n");
    run.until_out(2);
    run.leave();
    run.until("it has ended, its stdin still open", Running::ended);
    run.wait().dies_of(Signal::PIPE).is_silent();
}

#[test]
fn a_reader_that_goes_away_leaves_the_rest_in_dropped() {
    let dir = Dir::new();
    let outcome =
        leaky("-r 1/h --dropped").arg(dir.path("d")).stdin_file(&dir, &seq(1..=9)).reader_leaves_after(2).run();
    outcome.dies_of(Signal::PIPE).is_silent().writes("1\n");
    assert_eq!(dir.get("d"), seq(2..=9));
}

// ---- Lockstep ----

#[test]
fn in_lockstep_there_is_one_item_in_the_pipe_at_most() {
    let outcome = leaky("-r 1000/s --lockstep").stdin(seq(100..=160)).run();
    outcome.exits(0).writes(seq(100..=160));
    outcome.check(outcome.reads.iter().all(|read| read.1 % 4 == 0), "items come whole");
    outcome.check(outcome.reads.len() == 61, "each read returns one item");
}

#[test]
fn in_lockstep_a_stalled_reader_holds_everything_back() {
    let mut run = leaky("-r 100/s --lockstep --stats=json").live().held().start();
    run.give(seq(1..=9));
    thread::sleep(ms(300));
    run.signal(Signal::USR1);
    run.until("the summary is there", |run| run.stderr().ends_with("}\n"));
    let stats: serde_json::Value = serde_json::from_str(run.stderr().trim_end()).expect("JSON");
    // What the reader has not taken is not emitted.
    assert_eq!((&stats["emitted"], &stats["held"]), (&0.into(), &9.into()), "{stats}");
    run.open();
    run.wait().exits(0).writes(seq(1..=9));
}

#[test]
fn lockstep_is_refused_where_stdout_is_no_pipe() {
    let dir = Dir::new();
    let file = File::create(dir.path("out")).expect("a file");
    let outcome = leaky("-r 1/s --lockstep").stdin("1\n").stdout_to(file).run();
    outcome.exits(1).says("--lockstep");
    assert!(dir.get("out").is_empty());
}

// ---- What stdin and stdout may be ----

#[test]
fn stdin_may_be_anything_that_can_be_read() {
    let dir = Dir::new();
    leaky("-r 100/s").stdin_file(&dir, b"a\nb\n").run().exits(0).writes("a\nb\n");
    leaky("-r 100/s").stdin_from(File::open("/dev/null").unwrap(), "/dev/null").run().exits(0).writes("");
    leaky("-r 100/s").through("exec \"$@\" <&-").run().exits(0).writes("").is_silent();

    let (ours, theirs) = UnixStream::pair().expect("sockets");
    (&ours).write_all(b"s\nt\n").unwrap();
    drop(ours);
    leaky("-r 100/s").stdin_from(OwnedFd::from(theirs), "a socket").run().exits(0).writes("s\nt\n");

    let outcome = leaky("-r 100/s").stdin_from(File::open("/").unwrap(), "a directory").run();
    outcome.exits(1).writes("").says("leaky: could not read stdin: ");
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

#[test]
fn stdout_may_be_anything_that_can_be_written() {
    let dir = Dir::new();
    let file = File::create(dir.path("out")).expect("a file");
    leaky("-r 100/s").stdin(seq(1..=5)).stdout_to(file).run().exits(0).is_silent();
    assert_eq!(dir.get("out"), seq(1..=5));
    // As `>>` does.
    let file = File::options().append(true).open(dir.path("out")).expect("a file");
    leaky("-r 100/s").stdin("6\n").stdout_to(file).run().exits(0);
    assert_eq!(dir.get("out"), seq(1..=6));

    let null = File::options().write(true).open("/dev/null").unwrap();
    leaky("-r 100/s").stdin("1\n").stdout_to(null).run().exits(0).is_silent();
    leaky("-r 100/s").through("exec \"$@\" >&-").stdin("1\n").run().exits(0).is_silent();

    let full = File::options().write(true).open("/dev/full").unwrap();
    let outcome = leaky("-r 100/s").stdin("1\n").stdout_to(full).run();
    outcome.exits(1).says("leaky: could not write to stdout: No space left on device");
}

#[test]
fn a_socket_takes_everything_however_slowly_it_is_read() {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let bytes = noise(2_000_000, 4);
    let run = leaky("-r unlimited").stdin(bytes.clone()).stdout_to(OwnedFd::from(theirs)).start();
    thread::sleep(ms(100));
    let mut got = Vec::new();
    (&ours).read_to_end(&mut got).unwrap();
    run.wait().exits(0).is_silent();
    assert!(got == bytes, "{} bytes of {}", got.len(), bytes.len());
}

#[test]
fn a_socket_whose_reader_goes_away_is_sigpipe() {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let mut run = leaky("-r 1/h").live().stdout_to(OwnedFd::from(theirs)).start();
    run.give("1\n2\n");
    let mut some = [0; 2];
    (&ours).read_exact(&mut some).unwrap();
    drop(ours);
    run.until("it has ended, its stdin still open", Running::ended);
    run.wait().dies_of(Signal::PIPE).is_silent();
}

/// A terminal: our side, and theirs, which passes bytes on as they are.
fn terminal() -> (File, File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs =
        rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, rustix::fs::Mode::empty()).unwrap();
    let mut mode = tcgetattr(&theirs).unwrap();
    mode.output_modes -= rustix::termios::OutputModes::OPOST;
    mode.local_modes -= rustix::termios::LocalModes::ECHO;
    tcsetattr(&theirs, OptionalActions::Now, &mode).unwrap();
    (ours.into(), theirs.into())
}

#[test]
fn stdin_may_be_a_terminal() {
    let (mut ours, theirs) = terminal();
    let mut run = leaky("-r 100/s").stdin_from(theirs, "a terminal").start();
    ours.write_all(b"typed\n").unwrap();
    run.until_out(6);
    ours.write_all(b"more\n\x04").unwrap();
    run.wait().exits(0).writes("typed\nmore\n").says("Ctrl-D");
}

#[test]
fn stdout_may_be_a_terminal() {
    let (mut ours, theirs) = terminal();
    let run = leaky("-r 100/s").stdin(seq(1..=9)).stdout_to(theirs).start();
    let mut got = Vec::new();
    let mut some = [0; 64];
    // When nobody has the other side any more, a read fails.
    while let Ok(count @ 1..) = ours.read(&mut some) {
        got.extend_from_slice(&some[..count]);
    }
    run.wait().exits(0).is_silent();
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&seq(1..=9)));
}

#[test]
fn a_neighbour_that_set_o_nonblock_does_no_harm_and_suffers_none() {
    for nonblocking in [false, true] {
        let (stdin, mut feed) = io::pipe().unwrap();
        let (mut out, stdout) = io::pipe().unwrap();
        if nonblocking {
            for end in [OwnedFd::from(stdin.try_clone().unwrap()), OwnedFd::from(stdout.try_clone().unwrap())] {
                fcntl_setfl(&end, fcntl_getfl(&end).unwrap() | OFlags::NONBLOCK).unwrap();
            }
        }
        let before = (fcntl_getfl(&stdin).unwrap(), fcntl_getfl(&stdout).unwrap());
        let bytes = noise(300_000, 6);
        let run = leaky("-r unlimited").stdin_from(stdin.try_clone().unwrap(), "a pipe of the test");
        let run = run.stdout_to(stdout.try_clone().unwrap()).start();
        let given = bytes.clone();
        let feeder = thread::spawn(move || {
            thread::sleep(ms(100));
            feed.write_all(&given).unwrap();
        });
        thread::sleep(ms(300));
        let during = (fcntl_getfl(&stdin).unwrap(), fcntl_getfl(&stdout).unwrap());
        assert_eq!(during, before, "the open files are shared, so their flags are none of leaky's");
        drop(stdout);
        let mut got = Vec::new();
        out.read_to_end(&mut got).unwrap();
        feeder.join().unwrap();
        run.wait().exits(0).is_silent();
        assert!(got == bytes, "nonblocking: {nonblocking}");
        assert_eq!(fcntl_getfl(&stdin).unwrap(), before.0);
    }
}

// ---- Accounts ----

#[test]
fn the_accounts_balance_under_every_policy() {
    for policy in POLICIES {
        let dir = Dir::new();
        let outcome = leaky("-r 200/s -c 10 --stats=json -o").arg(policy).stdin_file(&dir, &seq(1..=100)).run();
        let stats = outcome.stats();
        stats.balance();
        assert_eq!(stats.get("emitted"), outcome.lines().len() as u64, "{policy}");
        assert_eq!(stats.get("bytes"), outcome.stdout.len() as u64, "{policy}");
        assert_eq!(stats.get("read"), 100, "{policy}");
        let (dropped, held) = (stats.get("dropped"), stats.get("held"));
        match policy {
            "block" => assert_eq!((dropped, held), (0, 0)),
            "fail" => assert_eq!((dropped, held), (0, 99)),
            _ => assert_eq!((dropped, held), (90, 0), "{policy}"),
        }
    }
}

#[test]
fn accounts_under_bytes_count_bytes() {
    let outcome = leaky("-r 100kB/s --stats=json").stdin(noise(12_345, 2)).run();
    let stats = outcome.stats();
    stats.balance();
    assert_eq!((stats.get("read"), stats.get("emitted")), (12_345, 12_345));
}

#[test]
fn sigusr1_prints_a_summary_that_balances_and_goes_on() {
    for policy in ["block", "drop", "drop-oldest"] {
        let mut run = leaky("-r 50/s -c 20 --stats=json -o").arg(policy).stdin(seq(1..=30)).start();
        run.until_out(6);
        run.signal(Signal::USR1);
        run.until("a summary is there", |run| run.stderr().lines().any(|line| line.starts_with('{')));
        let outcome = run.wait();
        outcome.exits(0);
        let summaries: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with('{')).collect();
        outcome.check(summaries.len() == 2, "one when asked, one at the end");
        let first = crate::harness::Stats(serde_json::from_str(summaries[0]).unwrap());
        first.balance();
        outcome.stats().balance();
        outcome.check(first.get("emitted") >= 3, "what was out when it was asked");
        assert_eq!(outcome.stats().get("held"), 0);
    }
}

#[test]
fn the_text_summary_is_for_people() {
    let outcome = leaky("-r 100/s --stats").stdin(seq(1..=3)).run();
    outcome.exits(0).says("3 items read, 3 emitted, 0 dropped, 0 expired, 0 held");
    leaky("-r 100/s -c 1 -o drop -q").stdin(seq(1..=3)).run().exits(0).is_silent();
}

#[test]
fn to_a_reader_that_has_gone_nothing_is_said_of_what_was_dropped() {
    let endless = |to: &mut dyn Write| loop {
        to.write_all(&[b'\n'; 4096])?;
    };
    leaky("-r 1/h -c 2 -o drop").producer(endless).reader_leaves_after(1).run().dies_of(Signal::PIPE).is_silent();
}

#[test]
fn a_message_is_one_line_whatever_a_file_is_called() {
    let dir = Dir::new();
    let name = dir.path("no\n\u{1b}[2J/such");
    let outcome = leaky("-r 1/s --dropped").arg(&name).run();
    outcome.exits(1).says(r"no\n\u{1b}[2J/such");
    outcome.check(outcome.stderr.lines().count() == 1, "one line");
}

#[test]
fn a_stderr_that_takes_nothing_changes_no_exit_status() {
    leaky("-r 1/s --dropped /no/such/file").through("exec \"$@\" 2>/dev/full").run().exits(1);
    leaky("-r 1/x").through("exec \"$@\" 2>/dev/full").run().exits(2);
    leaky("-r 1/s -v --stats").stdin("1\n").through("exec \"$@\" 2>/dev/full").run().exits(0).writes("1\n");
}

#[test]
fn with_keys_a_last_item_without_a_delimiter_leaves_last() {
    for (args, input, output) in [
        ("-r 20/s -k field:1", "a 1\na 2\na 3\nb last", "a 1\na 2\na 3\nb last"),
        ("-r 20/s -0 -k field:1", "a 1\0a 2\0b 3", "a 1\0a 2\0b 3"),
        ("-r 20/s --record-size 4B -k regex:^(.)", "aaaAbbbBaaaCzz", "aaaAbbbBaaaCzz"),
        ("-r 20/s -k field:1", "a 1\na 2\na last", "a 1\na 2\na last"),
        ("-r 20/s -k field:1 -c 1 -o drop", "a 1\na 2\nb last", "a 1\nb last"),
        ("-r unlimited -k field:1", "a 1\na 2\nb last", "a 1\na 2\nb last"),
    ] {
        let outcome = leaky(args).stdin(input).run();
        outcome.exits(0).writes(output);
    }
}

#[test]
fn no_file_serves_two_ends() {
    let dir = Dir::new();
    let file = dir.put("file", "5/s\n");
    let name = file.display();
    for args in [
        format!("-r 5/s -o drop --dropped {name} --metrics {name}"),
        format!("-r @{name} --metrics {name}"),
        format!("-r @{name} -o drop --dropped {name}"),
        format!("-r 5/s --dropped {name} --metrics {}/./file", dir.path("").display()),
    ] {
        leaky(&args).run().exits(2).says("name another one");
    }
    leaky(&format!("-r 5/s -o drop --shared {name} --dropped {name}"))
        .run()
        .exits(2)
        .says("that file is --shared already");
    let open = || File::options().read(true).append(true).open(&file).expect("a file");
    leaky(&format!("-r 5/s --dropped {name}"))
        .stdin_from(open(), "it")
        .run()
        .exits(2)
        .says("that file is stdin already");
    leaky("-r 5/s").stdin_from(open(), "it").stdout_to(open()).run().exits(2).says("that file is stdin already");
    leaky(&format!("-r 5/s --metrics {name}")).stdout_to(open()).run().exits(2).says("that file is stdout already");
    assert_eq!(dir.get("file"), b"5/s\n");
}

#[test]
fn a_stdout_that_is_open_for_reading_only_is_an_error() {
    for args in ["-r 5/s", "-r 5/s --simulate"] {
        let outcome = leaky(args).stdin(seq(1..=3)).stdout_to(File::open("/dev/null").expect("it")).run();
        outcome.exits(1).says("could not write to stdout");
    }
}

#[test]
fn a_file_for_what_is_dropped_that_fills_up_is_told_of_in_one_line_with_what_is_missing() {
    let outcome = leaky("-r 1/h -c 2 -o drop --dropped /dev/full").stdin(seq(1..=9)).run();
    outcome
        .exits(1)
        .says("could not write to --dropped '/dev/full'")
        .says("bytes that were read are neither there nor written");
    outcome.check(outcome.stderr.lines().count() == 1, "one line");
}

#[test]
fn an_output_that_fails_is_told_of_in_one_line_with_what_is_held() {
    let full = File::options().write(true).open("/dev/full").expect("it");
    let outcome = leaky("-r 5/s").stdin(seq(1..=3)).stdout_to(full).run();
    outcome
        .exits(1)
        .says("could not write to stdout: No space left on device (os error 28); 3 were read and not written");
    outcome.check(outcome.stderr.lines().count() == 1, "one line");
}

#[test]
fn the_rate_reached_does_not_count_what_did_not_wait() {
    let outcome = leaky("-r 20/s --stats=json").stdin(seq(1..=100)).reader_leaves_after(12).run();
    let reached = outcome.stats().0["rate_reached"][0].as_f64();
    outcome.check(reached.is_some_and(|reached| (15.0..=20.5).contains(&reached)), "5 items in 4 slots are no 25/s");
}
