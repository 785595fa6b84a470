//! The gate.

use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;

#[test]
fn twenty_starts_by_eight_jobs_are_spaced() {
    let directory = tempfile::tempdir().unwrap();
    let mut xargs = Command::new("xargs");
    xargs.args(["-P8", "-I{}", LEAKY, "-r", "10/s", "-s", "./f", "--", "date", "+%s.%N"]).current_dir(&directory);
    let ended = finish(xargs, &seq(20));
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let mut starts: Vec<f64> = ended.stdout.lines().map(|line| line.parse().unwrap()).collect();
    starts.sort_by(f64::total_cmp);
    assert_eq!(starts.len(), 20);
    let span = starts[19] - starts[0];
    // On a busy machine turns come too late, and are taken anew.
    assert!((1.85..10.0).contains(&span), "{span}");
    // A turn may be as late as it takes to start a process here; then the next one is not late with it.
    for from in 0..20 {
        let within = starts[from..].iter().filter(|at| **at < starts[from] + 0.95).count();
        assert!(within <= 11, "{within} from {from} on: {starts:?}");
    }
}

#[test]
fn the_second_start_waits_for_the_rest_of_the_first_and_not_after_a_reboot() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let turn = || run(at, &["-r", "1/1500ms", "--shared", "./f", "--", "true"], "");
    let began = Instant::now();
    let first = turn();
    assert!(first.status == Some(0) && first.took < ms(1000), "{first:?}");
    thread::sleep(ms(500));
    let second = turn();
    let waited = began.elapsed();
    assert!(second.status == Some(0) && waited >= ms(1500) && second.took < ms(1300), "{first:?} {second:?}");
    let record = std::fs::read_to_string(at.join("f")).unwrap();
    let words: Vec<&str> = record.split_whitespace().collect();
    let text = [&["leaky1", "00000000-0000-4000-8000-000000000000"], &words[2..7]].concat().join(" ");
    let sum =
        text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    std::fs::write(at.join("f"), format!("{:<191}\n", format!("{text} {sum:016x}"))).unwrap();
    let third = turn();
    assert!(third.status == Some(0) && third.stderr.is_empty() && third.took < ms(1000), "{third:?}");
}

#[test]
fn a_turn_that_cannot_be_had_in_time_is_not_taken() {
    let directory = tempfile::tempdir().unwrap();
    let gate = |options: &[&str]| {
        let words = [&["-r", "1/min", "-s", "./f"], options, &["--", "echo", "ran"]].concat();
        run(directory.path(), &words, "")
    };
    assert_eq!(gate(&["-o", "drop"]).stdout, "ran\n");
    let before = std::fs::read(directory.path().join("f")).unwrap();
    for options in [
        &["-o", "drop"][..],
        &["-o", "drop-newest"],
        &["-o", "fail"],
        &["--timeout", "2s"],
        &["-o", "fail", "--timeout", "2s"],
        &["-o", "drop", "-c", "1"],
        &["-o", "drop", "-c", "3", "--cost", "3"],
    ] {
        let ended = gate(options);
        ended.refused(75, "no turn in time");
        assert!(ended.took < ms(1500), "it is known at once: {ended:?}");
    }
    assert_eq!(std::fs::read(directory.path().join("f")).unwrap(), before);
    assert_eq!(gate(&["-o", "drop", "-q"]).stderr, "");
}

#[test]
fn a_time_out_and_a_capacity_let_a_gate_wait() {
    let directory = tempfile::tempdir().unwrap();
    for options in [&["--timeout", "5s"][..], &["-o", "drop", "-c", "5"], &["-o", "fail", "-c", "1s"], &[]] {
        let words = [&["-r", "5/s", "-s", "./f"], options, &["--", "echo", "ran"]].concat();
        assert_eq!(run(directory.path(), &words, "").stdout, "ran\n");
        assert_eq!(run(directory.path(), &words, "").stdout, "ran\n");
    }
}

#[test]
fn a_dearer_turn_makes_the_next_one_wait() {
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    for cost in ["4", "1"] {
        let words = ["-r", "5/s", "-s", "./f", "--cost", cost, "--", "true"];
        assert_eq!(run(directory.path(), &words, "").status, Some(0));
    }
    assert!(began.elapsed() >= ms(790), "{:?}", began.elapsed());
}

#[test]
fn a_burst_of_turns_goes_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut codes = Vec::new();
    for _ in 0..5 {
        let words = ["-r", "3/min", "-b", "3", "-o", "drop", "-s", "./f", "--", "true"];
        codes.push(run(directory.path(), &words, "").status.unwrap());
    }
    assert_eq!(codes, [0, 0, 0, 75, 75]);
}

#[test]
fn the_command_has_leakys_place() {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"trap "" INT HUP; export SAID="a b"; exec "$0" -r 1000/s -s ./f -- sh -c 'echo "$SAID $1 $PPID"; grep SigIgn /proc/self/status; cat' sh ''"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, LEAKY]).current_dir(&directory);
    let ended = finish(shell, "from stdin\n");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!((ended.status, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert_eq!(lines[0], format!("a b  {}", std::process::id()), "no process between");
    let ignored = u64::from_str_radix(lines[1].rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(ignored & 0x1fff, 0b11, "INT and HUP, and nothing else: {ended:?}");
    assert_eq!(lines[2], "from stdin");
}

#[test]
fn statuses_are_the_commands_or_say_why_not() {
    let directory = tempfile::tempdir().unwrap();
    let gate = |command: &[&str]| run(directory.path(), &[&["-r", "1000/s", "-s", "./f", "--"], command].concat(), "");
    assert_eq!(gate(&["sh", "-c", "exit 9"]).status, Some(9));
    gate(&["no-such-command"]).refused(127, "-- 'no-such-command': there is no such command");
    gate(&["./f"]).refused(126, "-- './f': cannot be run");
}

#[test]
fn a_signal_gives_the_turn_back_and_is_died_of() {
    let directory = tempfile::tempdir().unwrap();
    let words = ["-r", "1/min", "-s", "./f", "--", "echo", "ran"];
    assert_eq!(run(directory.path(), &words, "").stdout, "ran\n");
    let before = std::fs::read(directory.path().join("f")).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        let mut gate = Command::new(LEAKY);
        let gate = gate.args(words).current_dir(&directory).stdout(Stdio::piped()).spawn().unwrap();
        let began = Instant::now();
        while std::fs::read(directory.path().join("f")).unwrap() == before {
            assert!(began.elapsed() < ms(10_000), "it never reserves");
            thread::sleep(ms(1));
        }
        kill_process(Pid::from_child(&gate), signal).unwrap();
        let output = gate.wait_with_output().unwrap();
        assert_eq!((output.status.signal(), output.stdout.len()), (Some(signal.as_raw()), 0));
        let began = Instant::now();
        assert_eq!(std::fs::read(directory.path().join("f")).unwrap(), before, "{signal:?}");
        assert!(began.elapsed() < ms(1000));
    }
}

#[test]
fn a_lock_that_is_held_holds_up_the_turn_but_not_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let words = ["-r", "1000/s", "-s", "./f", "--", "echo", "ran"];
    assert_eq!(run(directory.path(), &words, "").stdout, "ran\n");
    // As by a process that was stopped just when it had the lock.
    let file = std::fs::File::open(directory.path().join("f")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let start = |words: &[&str]| {
        let mut leaky = Command::new(LEAKY);
        leaky.args(words).current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::piped());
        leaky.spawn().unwrap()
    };
    let (gate, killed) = (start(&words), start(&words));
    thread::sleep(ms(500));
    let began = Instant::now();
    kill_process(Pid::from_child(&killed), Signal::TERM).unwrap();
    let killed = killed.wait_with_output().unwrap();
    assert_eq!((killed.status.signal(), killed.stdout.len()), (Some(15), 0));
    assert!(began.elapsed() < ms(5000), "{:?}", began.elapsed());
    drop(file);
    assert_eq!(gate.wait_with_output().unwrap().stdout, b"ran\n");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let url = "redis://localhost:1";
    for (words, says) in [
        (&["--", "true"][..], "say --shared WHERE"),
        (&["true"], "say `< true`, or `-- true`"),
        (&["--bucket", "x"], "only a shared bucket has a name"),
        (&["--on-outage", "exit"], "only a shared bucket can be away"),
        (&["-s", ""], "say where"),
        (&["-s", "./f", "--bucket", "x"], "a state file is one bucket"),
        (&["-s", "./f", "-k", "field:1"], "a state file is one bucket"),
        (&["-s", "./f", "-r", "2/s"], "has one rate"),
        (&["-s", "./f", "-a", "fixed-window"], "only leaky-bucket and token-bucket"),
        (&["-s", "./f", "-a", "sliding-window"], "only leaky-bucket and token-bucket"),
        (&["-s", "./f", "--warm-up", "1s"], "does not warm up"),
        (&["-s", "./f", "--simulate"], "cannot be simulated"),
        (&["-s", "./f", "--on-outage", "exit"], "only a server can be away"),
        (&["-s", "./f", "--on-outage", "block", "--", "true"], "only a server can be away"),
        (&["-s", url, "--on-outage", "sleep"], "there are block, exit and local=RATE"),
        (&["-s", url, "--on-outage", "local=0/s"], "above zero"),
        (&["-s", url, "--on-outage", "local=1MB/s"], "must count what --rate counts"),
        (&["-s", url, "--on-outage", "local=unlimited"], "nothing to keep"),
        (&["-s", "./f", "-k", "field:1", "--", "true"], "say --bucket NAME"),
        (&["-s", "./f", "--cost", "field:1", "--", "true"], "whole number"),
        (&["-s", "./f", "--cost", "0", "--", "true"], "whole number"),
        (&["-s", "./f", "-l", "--", "true"], "--lines: a gate passes no items"),
        (&["-s", "./f", "--stats", "--", "true"], "--stats: a gate passes no items"),
        (&["-s", "./f", "--dropped", "x", "--", "true"], "--dropped: a gate passes no items"),
        (&["-s", "./f", "--max-age", "1s", "--", "true"], "--max-age: a gate passes no items"),
        (&["-s", "./f", "-o", "drop-oldest", "--", "true"], "say drop or fail"),
        (&["-s", "./f", "-c", "5", "--", "true"], "with block a gate waits however long"),
        (&["-s", "./f", "-o", "drop", "-c", "5KiB", "--", "true"], "does not count bytes"),
        (&["-s", "http://localhost"], "say redis://HOST:PORT"),
        (&["-s", url, "--bucket", "", "--", "true"], "say a name"),
    ] {
        if says.contains("redis://") && cfg!(not(feature = "redis")) {
            continue;
        }
        run(directory.path(), &[&["-r", "1/s"], words].concat(), "").refused(2, says);
    }
    run(directory.path(), &["-r", "unlimited", "-s", "./f"], "").refused(2, "a shared bucket has a limit");
    run(directory.path(), &["-r", "1MiB/s", "-s", "./f", "--", "true"], "").refused(2, "how many bytes is a turn?");
    run(directory.path(), &["-r", "18446744073709551615/s", "-s", "./f"], "").refused(2, "cannot be kept exactly");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn a_bare_name_is_kept_in_the_users_state_directory() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home");
    for (variable, kept) in [("XDG_STATE_HOME", "home/leaky/api"), ("HOME", "home/.local/state/leaky/api")] {
        let mut gate = leaky(directory.path(), &["-r", "10/s", "-s", "api", "--", "true"]);
        gate.env_remove("XDG_STATE_HOME").env(variable, &home);
        assert_eq!(finish(gate, "").status, Some(0));
        let mode = std::fs::metadata(directory.path().join(kept)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let mut gate = leaky(directory.path(), &["-r", "10/s", "-s", "api", "--", "true"]);
    gate.env_remove("XDG_STATE_HOME").env_remove("HOME");
    finish(gate, "").refused(1, "say --shared ./api");
}

#[test]
fn what_is_in_the_way_is_said_and_left_alone() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::write(at.join("diary"), "Dear diary").unwrap();
    symlink("diary", at.join("link")).unwrap();
    std::fs::create_dir(at.join("sub")).unwrap();
    assert_eq!(run(at, &["-r", "1/h", "-s", "./used", "--", "true"], "").status, Some(0));
    for (place, says) in [
        ("./diary", "not leaky's"),
        ("./link", "is a symbolic link"),
        ("./sub", "is a directory"),
        ("./none/f", "its directory does not exist"),
        ("/dev/null", "is not a regular file"),
        ("./used", "is in use at 1/h, not at 1/min; use the same rate, wait until it is at rest, or remove the file"),
    ] {
        run(at, &["-r", "1/min", "-s", place, "--", "echo", "ran"], "").refused(1, says);
        let pipe = run(at, &["-r", "1/min", "-s", place, "-q"], "a\nb\n");
        pipe.refused(1, says);
    }
    assert_eq!(std::fs::read_to_string(at.join("diary")).unwrap(), "Dear diary");
}
