//! Pipes and gates that share a server.

use super::*;
use crate::server::{Server, free_port, server};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;

fn nowhere() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn four_pipes_share_200_a_second() {
    let server = server!();
    check_shares(&share(nowhere().path(), &server.url(), 200, 4, ms(6000)), 200);
}

#[test]
fn eight_pipes_share_1000_a_second() {
    let server = server!();
    check_shares(&share(nowhere().path(), &server.url(), 1000, 8, ms(6000)), 1000);
}

#[test]
fn calls_are_a_hundred_a_second_at_most() {
    let server = server!();
    let url = server.url();
    for (rate, most) in [("10/s", 25), ("1000/s", 230), ("100k/s", 230)] {
        server.run::<String>(&["CONFIG", "RESETSTAT"]);
        let pipe = Pipe::start(nowhere().path(), &["-r", rate, "-s", &url, "--bucket", rate], Instant::now());
        thread::sleep(ms(2000));
        let (times, said) = pipe.end();
        assert_eq!(said, "");
        let stats: String = server.run(&["INFO", "commandstats"]);
        let calls = stats.split("evalsha:calls=").nth(1).unwrap().split(',').next().unwrap();
        let calls: usize = calls.parse().unwrap();
        println!("{rate}: {} items, {calls} calls in 2 s", times.len());
        assert!(calls <= most && times.len() > 10, "{rate}: {calls} calls for {} items", times.len());
    }
}

#[test]
fn each_key_has_the_whole_rate() {
    let server = server!();
    let url = server.url();
    let began = Instant::now();
    let input: String = (0..15).flat_map(|i| ["a", "b", ""].map(|key| format!("{key},{i}\n"))).collect();
    let words = ["-r", "10/s", "-s", &url, "--bucket", "x", "-k", "field:1", "-t", ","];
    let ended = run(nowhere().path(), &words, &input);
    assert_eq!((ended.status, ended.stdout.lines().count()), (Some(0), 45), "{ended:?}");
    let took = began.elapsed();
    assert!((ms(1390)..ms(4000)).contains(&took), "{took:?}");
    for key in ["a,", "b,", ","] {
        let of_key: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with(key)).collect();
        let want: Vec<_> = (0..15).map(|i| format!("{key}{i}")).collect();
        assert_eq!(of_key, want);
    }
    // Two runs share a key's bucket, and each has but the one.
    let words = ["-r", "1/min", "-s", &url, "--bucket", "y", "-k", "field:1", "-o", "drop", "-c", "1"];
    let ended = run(nowhere().path(), &words, "a\nb\na\n");
    // Whoever has its slot first is first.
    assert!(["a\nb\n", "b\na\n"].contains(&ended.stdout.as_str()), "{ended:?}");
    let mut names: Vec<String> = server.run(&["KEYS", "leaky:y*"]);
    names.sort();
    assert_eq!(names, ["leaky:y:a", "leaky:y:b"]);
}

#[test]
fn ten_thousand_keys_cost_a_call_each() {
    let server = server!();
    let url = server.url();
    let input: String = (0..10_000).map(|i| format!("{i}\n")).collect();
    let words = ["-r", "1/min", "-s", &url, "-k", "field:1", "-o", "drop", "-c", "1"];
    let ended = run(nowhere().path(), &words, &input);
    assert_eq!((ended.status, ended.stdout.lines().count()), (Some(0), 10_000), "{}", ended.stderr);
}

#[test]
fn what_is_wrong_with_a_server_is_said_in_a_line() {
    let server = server!("--requirepass", "hunter2");
    let place = format!("127.0.0.1:{}", server.port);
    let at = nowhere();
    let turn = |url: &str, password: Option<&str>| {
        let mut gate = leaky(at.path(), &["-r", "1/min", "-s", url, "--on-outage", "exit", "--", "echo", "ran"]);
        if let Some(password) = password {
            gate.env("LEAKY_REDIS_PASSWORD", password);
        }
        finish(gate, "")
    };
    turn(&format!("redis://{place}"), None).refused(1, "wants a password");
    let wrong = turn(&format!("redis://:wr0ng@{place}"), None);
    wrong.refused(1, "does not take this user and password");
    assert!(!wrong.stderr.contains("wr0ng"));
    turn(&format!("redis://{place}"), Some("wr0ng")).refused(1, "does not take this user and password");
    assert_eq!(turn(&format!("redis://{place}"), Some("hunter2")).stdout, "ran\n");
    let other = leaky(at.path(), &["-r", "2/min", "-s", &format!("redis://:hunter2@{place}"), "--", "echo", "ran"]);
    finish(other, "").refused(1, "in use at 1/min, not at 1/30s");
    let url = format!("redis://:hunter2@{place}");
    let client = redis::Client::open(url.as_str()).unwrap();
    let mut connection = client.get_connection().unwrap();
    redis::cmd("DEL").arg("leaky:default").exec(&mut connection).unwrap();
    redis::cmd("RPUSH").arg("leaky:default").arg("mine").exec(&mut connection).unwrap();
    turn(&url, None).refused(1, "leaky:default holds something that is not leaky's");
    run(at.path(), &["-r", "1/min", "-s", &url, "-q"], "a\n").refused(1, "not leaky's");
}

#[test]
fn without_a_server_it_holds_exits_or_goes_on_by_itself() {
    let (at, port) = (nowhere(), free_port());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let hangs = format!("redis://127.0.0.1:{}", silent.local_addr().unwrap().port());
    for (url, says) in [(format!("redis://127.0.0.1:{port}"), "no server is listening"), (hangs, "does not answer")] {
        let pipe = |options: &[&str], items: u64| {
            let words = [&["-r", "100/s", "-s", &url, "--dropped", "rest"], options].concat();
            let _ = std::fs::remove_file(at.path().join("rest"));
            let ended = run(at.path(), &words, &seq(items));
            (ended, std::fs::read_to_string(at.path().join("rest")).unwrap())
        };
        let (ended, rest) = pipe(&["--on-outage", "exit"], 5);
        ended.refused(75, says);
        assert!(rest == seq(5) && ended.took < ms(5000), "{ended:?}");
        let gate = ["-r", "100/s", "-s", &url, "--on-outage", "exit", "--", "echo", "ran"];
        run(at.path(), &gate, "").refused(75, says);
        let began = Instant::now();
        let (ended, rest) = pipe(&["--on-outage", "local=10/s"], 8);
        assert_eq!((ended.status, ended.stdout.as_str(), rest.as_str()), (Some(0), seq(8).as_str(), ""), "{ended:?}");
        assert!(ended.stderr.contains("going on by myself at 10/s") && began.elapsed() > ms(690), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
        // It holds whatever comes, and dies of the signal without losing any of it.
        let mut held = Command::new(LEAKY);
        held.args(["-r", "100/s", "-s", &url, "--dropped", "held"]).current_dir(&at);
        let mut held = held.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        held.stdin.take().unwrap().write_all(seq(5).as_bytes()).unwrap();
        thread::sleep(ms(1500));
        kill_process(Pid::from_child(&held), Signal::TERM).unwrap();
        let output = held.wait_with_output().unwrap();
        assert_eq!((output.status.signal(), output.stdout.len()), (Some(15), 0), "{output:?}");
        let ended: Ended = (output, began).into();
        assert!(ended.stderr.contains(says) && ended.stderr.contains("holding until it is back"), "{ended:?}");
        assert_eq!(std::fs::read_to_string(at.path().join("held")).unwrap(), seq(5));
        std::fs::remove_file(at.path().join("held")).unwrap();
    }
}

#[test]
fn a_server_killed_and_restarted_is_waited_for_and_the_rate_goes_on() {
    let mut server = server!();
    let url = server.url();
    let at = nowhere();
    let began = Instant::now();
    let pipes: Vec<_> = (0..3).map(|_| Pipe::start(at.path(), &["-r", "100/s", "-s", &url], began)).collect();
    thread::sleep(ms(1000));
    server.kill();
    thread::sleep(ms(1000));
    let (still, restarted) = (began.elapsed(), {
        server.restart();
        began.elapsed()
    });
    thread::sleep(ms(4000));
    let ended: Vec<_> = pipes.into_iter().map(Pipe::end).collect();
    for (times, said) in &ended {
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines.len() == 2 && lines[0].ends_with("holding until it is back"), "{said}");
        assert!(lines[1].contains("it is back"), "{said}");
        assert!(times.iter().filter(|at| (ms(1200)..still).contains(*at)).count() == 0, "it holds");
        assert!(times.iter().filter(|at| **at > restarted).count() > 20, "and goes on");
    }
    let times: Vec<_> = ended.into_iter().map(|(times, _)| times).collect();
    check_bound(&times, 100, ms(100), 6);
}

#[test]
fn a_server_that_hangs_in_mid_run_is_waited_for_and_nothing_is_lost() {
    let server = server!();
    let (at, url) = (nowhere(), server.url());
    let began = Instant::now();
    let words = ["-r", "100/s", "-s", &url, "--stats=json"];
    let (run, counted) = thread::scope(|scope| {
        let run = scope.spawn(|| run(at.path(), &words, &seq(300)));
        let other = Pipe::start(at.path(), &["-r", "100/s", "-s", &url], began);
        thread::sleep(ms(1000));
        server.signal(Signal::STOP);
        thread::sleep(ms(2500));
        server.signal(Signal::CONT);
        thread::sleep(ms(3000));
        let (times, said) = other.end();
        assert!(said.contains("does not answer within 1 s") && said.contains("it is back"), "{said}");
        assert!(!times.iter().any(|at| (ms(1300)..ms(3500)).contains(at)), "it holds");
        (run.join().unwrap(), times)
    });
    assert_eq!((run.status, run.stdout.as_str()), (Some(0), seq(300).as_str()), "{run:?}");
    // What was reserved before the server hung may leave late with what is reserved after it.
    check_bound(&[counted], 100, ms(100), 6);
}

#[test]
fn clients_whose_clocks_differ_keep_one_limit() {
    let server = server!();
    let url = server.url();
    let at = nowhere();
    let began = Instant::now();
    let ahead = ["-T", "--boottime", "5", "--monotonic", "5", LEAKY];
    let supported = Command::new("unshare").args(["-T", "--boottime", "5", "true"]).stderr(Stdio::null()).status();
    if !supported.is_ok_and(|status| status.success()) {
        println!("skipped: no process can have a clock of its own here");
        return;
    }
    let words = ["-r", "100/s", "-s", &url];
    let mut unshare = Command::new("unshare");
    unshare.args(ahead);
    let pipes = [Pipe::start(at.path(), &words, began), Pipe::start_as(unshare, at.path(), &words, began)];
    thread::sleep(ms(4000));
    let times: Vec<_> = pipes.into_iter().map(|pipe| pipe.end().0).collect();
    check_shares(&times, 100);
}

#[test]
fn a_password_in_the_url_is_never_shown() {
    let at = nowhere();
    let url = format!("redis://user:hunter2@127.0.0.1:{}", free_port());
    for words in [
        &["-r", "1/s", "-v", "-s", &url, "--on-outage", "exit"][..],
        &["-r", "1/s", "-v", "-s", &url, "--on-outage", "exit", "--", "true"],
    ] {
        let ended = run(at.path(), words, "a\n");
        assert!(ended.status == Some(75) && !ended.stderr.contains("hunter2"), "{ended:?}");
    }
}
