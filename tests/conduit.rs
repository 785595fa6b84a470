//! Bytes that nobody needs to see pass from pipe to pipe without being copied. Whatever way they take, bytes, order and
//! accounts are the same.

use crate::harness::{Dir, Leaky, Outcome, leaky, ms, noise, seq};
use rustix::process::Signal;
use std::fs::File;
use std::io::Write;
use std::thread;

/// Read and written, and passed on.
const WAYS: [&str; 2] = ["never", "always"];

fn bytes_by(way: &str, args: &str) -> Leaky {
    leaky(args).env("LEAKY_SPLICE", way)
}

/// Bytes that came in by read(2), as far as the kernel says.
fn read_in(pid: u32) -> Option<u64> {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}

/// A producer that writes pieces of all sizes, now and then with a pause.
fn in_pieces(bytes: Vec<u8>) -> impl FnOnce(&mut dyn Write) -> std::io::Result<()> + Send + 'static {
    move |to| {
        let (mut rest, mut size) = (&bytes[..], 1);
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(size.min(rest.len()));
            to.write_all(piece)?;
            (rest, size) = (more, size * 7 % 9973 + 1);
            if size % 50 == 0 {
                thread::sleep(ms(1));
            }
        }
        Ok(())
    }
}

#[track_caller]
fn balanced(outcome: &Outcome, read: usize, emitted: usize) {
    let stats = outcome.stats();
    stats.balance();
    assert_eq!((stats.get("read"), stats.get("emitted")), (read as u64, emitted as u64));
}

#[test]
fn bytes_that_nobody_needs_to_see_are_not_read() {
    const SIZE: usize = 4 << 20;
    for (way, args, reads) in [
        ("auto", "-B -r unlimited", false),
        ("auto", "-r 1GiB/s", false),
        ("auto", "-r 1GiB/s -c 2MiB", true),
        ("auto", "-r 20MiB/s", true),
        ("auto", "-r 1GiB/s -o drop -c 64MiB", true),
        ("auto", "-r 1GiB/s --max-age 1h", true),
        ("auto", "-r unlimited", true),
        ("never", "-B -r unlimited", true),
        ("always", "-r 20MiB/s", false),
    ] {
        let mut run = bytes_by(way, args).live().start();
        run.give(noise(SIZE, 1));
        // An unterminated line may follow.
        run.until_out(SIZE / 4 * 3);
        let Some(read) = read_in(run.pid()) else { return };
        assert_eq!(read > SIZE as u64 / 2, reads, "{way} {args}: {read} bytes were read in");
        run.wait().exits(0).writes(noise(SIZE, 1));
    }
}

#[test]
fn bytes_in_pieces_of_all_sizes_come_out_the_same() {
    let bytes = noise(1_000_017, 7);
    for way in WAYS {
        for args in
            ["-B -r unlimited", "-r 200MiB/s", "-B -r unlimited -c 5000", "-r 100MB/s -c 1B", "-r 50MiB/s --chunk 777"]
        {
            // One byte at a time takes its time.
            let bytes = if args.contains("1B") { bytes[..10_000].to_vec() } else { bytes.clone() };
            let outcome = bytes_by(way, &format!("{args} --stats=json")).producer(in_pieces(bytes.clone())).run();
            outcome.exits(0).writes(&bytes);
            balanced(&outcome, bytes.len(), bytes.len());
        }
    }
}

#[test]
fn no_byte_comes_before_its_time() {
    for way in WAYS {
        // 200 KiB/s in chunks of 2 KiB, of which the first leaves at once.
        let outcome = bytes_by(way, "-r 200KiB/s").stdin(noise(100 << 10, 3)).run();
        outcome.exits(0).writes(noise(100 << 10, 3));
        for part in [25, 50, 75, 100] {
            let (at, due) = (outcome.time_of(part << 10), ms(5 * part as u64 - 10));
            outcome.check(at >= due, &format!("{way}: {part} KiB were out at {at:?}, before {due:?}"));
        }
    }
}

#[test]
fn a_reader_that_stalls_finds_no_more_than_the_pipe_holds() {
    for way in WAYS {
        let mut run = bytes_by(way, "-r 100KiB/s -c 50KiB").live().pipe_size(4096).held().start();
        let (size, before) = (60 << 10, std::time::Instant::now());
        run.give(noise(size, 5));
        thread::sleep(ms(800));
        run.open();
        let opened = before.elapsed();
        let outcome = run.wait();
        outcome.exits(0).writes(noise(size, 5));
        // What the pipe held is there at once, and the rest at the rate.
        let (at, due) = (outcome.time_of(size) + ms(1), opened + ms(10 * (60 - 8 - 2) - 50));
        outcome.check(at >= due, &format!("{way}: all was out at {at:?}, before {due:?}"));
    }
}

#[test]
fn what_is_held_when_a_signal_comes_is_kept() {
    let bytes = noise(300_000, 11);
    for way in WAYS {
        let dir = Dir::new();
        let mut run = bytes_by(way, "-r 100KiB/s --stats=json --dropped").arg(dir.path("d")).live().start();
        run.give(&bytes);
        run.until_out(10_000);
        run.signal(Signal::TERM);
        let outcome = run.wait();
        outcome.dies_of(Signal::TERM);
        let kept = [&outcome.stdout[..], &dir.get("d")].concat();
        outcome.check(kept == bytes, &format!("{way}: emitted and kept are what was read, in order"));
        balanced(&outcome, bytes.len(), outcome.stdout.len());
    }
}

#[test]
fn what_is_held_when_the_reader_leaves_is_kept_and_nothing_is_said() {
    let bytes = noise(8 << 20, 13);
    for way in WAYS {
        for args in ["-r 100KiB/s", "-B -r unlimited"] {
            let dir = Dir::new();
            let run = bytes_by(way, &format!("{args} --dropped")).arg(dir.path("d"));
            let given = bytes.clone();
            let outcome = run.producer(move |to| to.write_all(&given)).reader_leaves_after(5_000).run();
            outcome.dies_of(Signal::PIPE).is_silent();
            // What the pipe had taken is nobody's any more.
            let (got, kept) = (outcome.stdout.len(), dir.get("d"));
            let at = (got..=bytes.len()).find(|at| bytes[*at..].starts_with(&kept));
            outcome.check(at.is_some(), &format!("{way} {args}: what is kept is a stretch of the input"));
        }
    }
}

#[test]
fn a_file_is_read_and_written_as_ever() {
    let dir = Dir::new();
    let bytes = noise(1 << 20, 17);
    let file = File::open(dir.put("in", &bytes)).expect("stdin");
    bytes_by("always", "-B -r unlimited").stdin_from(file, "a file").run().exits(0).writes(&bytes);
    let out = File::create(dir.path("out")).expect("stdout");
    bytes_by("always", "-B -r unlimited").stdin(bytes.clone()).stdout_to(out).run().exits(0);
    assert_eq!(dir.get("out"), bytes);
}

#[test]
fn a_rate_that_is_followed_may_become_slow() {
    for way in WAYS {
        let dir = Dir::new();
        let file = dir.put("rate", "1GiB/s");
        let mut run = bytes_by(way, "--stats=json -r").arg(format!("@{}", file.display())).live().start();
        run.give(noise(5 << 20, 19));
        run.until_out(5 << 20);
        dir.put("rate", "100KiB/s\n");
        thread::sleep(ms(300));
        run.give(noise(40 << 10, 23));
        let outcome = run.wait();
        outcome.exits(0).writes([noise(5 << 20, 19), noise(40 << 10, 23)].concat());
        let took = outcome.time_of((5 << 20) + (40 << 10)) - outcome.time_of((5 << 20) + 1);
        outcome.check(took >= ms(380), &format!("{way}: 40 KiB at 100 KiB a second took {took:?}"));
        balanced(&outcome, (5 << 20) + (40 << 10), (5 << 20) + (40 << 10));
    }
}

#[test]
fn a_word_that_is_not_known_is_answered() {
    let outcome = bytes_by("yes", "-r 5/s").stdin(seq(1..=1)).run();
    outcome.exits(2).says("LEAKY_SPLICE 'yes': there are auto, always and never");
}
