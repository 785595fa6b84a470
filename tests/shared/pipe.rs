//! Pipes that share a state file.

use super::*;
use rustix::process::Signal;

#[test]
fn four_pipes_share_200_a_second() {
    let directory = tempfile::tempdir().unwrap();
    check_shares(&share(directory.path(), "./f", 200, 4, ms(6000)), 200);
}

#[test]
fn eight_pipes_share_1000_a_second() {
    let directory = tempfile::tempdir().unwrap();
    check_shares(&share(directory.path(), "./f", 1000, 8, ms(6000)), 1000);
}

#[test]
fn pipes_and_gates_share_alike() {
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let pipe = Pipe::start(directory.path(), &["-r", "20/s", "-s", "./f"], began);
    thread::sleep(ms(300));
    let mut turns = Vec::new();
    for _ in 0..10 {
        let ended = run(directory.path(), &["-r", "20/s", "-s", "./f", "--", "echo", "ran"], "");
        assert_eq!(ended.stdout, "ran\n", "{ended:?}");
        turns.push(began.elapsed());
    }
    let (times, said) = pipe.end();
    assert_eq!(said, "");
    check_bound(&[times, turns], 20, ms(100), 2);
}

#[test]
fn one_that_is_killed_holds_up_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let (began, words) = (Instant::now(), ["-r", "2000/s", "-s", "./f"]);
    let survivor = Pipe::start(directory.path(), &words, began);
    let mut killed = Vec::new();
    for round in 0..50 {
        let pipe = Pipe::start(directory.path(), &words, began);
        thread::sleep(ms(5 + round % 7 * 3));
        killed.push(pipe.end().0);
    }
    let (times, said) = survivor.end();
    assert_eq!(said, "", "the state is whole");
    let mut gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    // Within 100 ms; a machine busy with other things may be late now and then.
    assert!(gaps[10] < ms(100) && gaps[0] < ms(5000), "{:?}", &gaps[..12]);
    killed.push(times);
    check_bound(&killed, 2000, ms(100), 2 * 20);
}

#[test]
fn one_that_is_stopped_bursts_nothing_after() {
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let pipes: Vec<_> = (0..3).map(|_| Pipe::start(directory.path(), &["-r", "100/s", "-s", "./f"], began)).collect();
    thread::sleep(ms(500));
    pipes[0].signal(Signal::STOP);
    thread::sleep(ms(2000));
    pipes[0].signal(Signal::CONT);
    thread::sleep(ms(700));
    let times: Vec<_> = pipes.into_iter().map(|pipe| pipe.end().0).collect();
    let after = times[0].iter().filter(|at| **at > ms(2550)).count();
    assert!(after > 5, "it goes on: {after}");
    check_bound(&times, 100, ms(100), 3);
}

#[test]
fn a_file_that_is_removed_in_mid_run_is_made_again_and_the_limit_holds() {
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let pipes: Vec<_> = (0..4).map(|_| Pipe::start(directory.path(), &["-r", "100/s", "-s", "./f"], began)).collect();
    for _ in 0..8 {
        thread::sleep(ms(200));
        std::fs::remove_file(directory.path().join("f")).unwrap();
    }
    thread::sleep(ms(200));
    let times: Vec<_> = pipes.into_iter().map(|pipe| pipe.end().0).collect();
    let all = check_bound(&times, 100, ms(100), 8);
    assert!(all.len() > 140, "{}", all.len());
    assert!(directory.path().join("f").exists());
}

#[test]
fn a_stalled_reader_reserves_nothing_and_finds_no_burst() {
    let directory = tempfile::tempdir().unwrap();
    let (at, words) = (directory.path(), ["-r", "100/s", "-s", "./f"]);
    let mut yes = Command::new("yes").arg("1".repeat(4000)).stdout(Stdio::piped()).spawn().unwrap();
    let mut stalled = Command::new(LEAKY);
    let stalled = stalled.args(words).current_dir(at).stdin(yes.stdout.take().unwrap()).stdout(Stdio::piped());
    let mut stalled = stalled.spawn().unwrap();
    // Its pipe takes 16 lines of 4001 bytes, which is soon full.
    thread::sleep(ms(1500));
    let began = Instant::now();
    let pipe = Pipe::start(at, &words, began);
    thread::sleep(ms(2000));
    let (times, _) = pipe.end();
    let reached = (times.len() - 1) as f64 / (times[times.len() - 1] - times[0]).as_secs_f64();
    assert!(reached > 80.0, "the whole rate is there to be had, not half of it: {reached}/s");
    let mut lines = BufReader::new(stalled.stdout.take().unwrap()).lines();
    let times: Vec<_> = (0..150).map(|_| lines.next().unwrap().map(|_| began.elapsed()).unwrap()).collect();
    stalled.kill().unwrap();
    stalled.wait().unwrap();
    yes.kill().unwrap();
    yes.wait().unwrap();
    // What was in the pipe, what hung half-way into it, and a batch; two more seconds' worth is what a burst would be.
    check_bound(&[times], 100, ms(100), 16 + 1 + 1);
}

#[test]
fn overflow_policies_work_with_a_shared_rate() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = |name: &str, options: &[&str], items: u64| {
        let words = [&["-r", "20/s", "-q", "-s", name, "--stats=json"], options].concat();
        let ended = run(directory.path(), &words, &seq(items));
        let stats: serde_json::Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
        let count = |name: &str| stats[name].as_u64().unwrap();
        assert_eq!(count("read"), count("emitted") + count("dropped") + count("expired") + count("held"), "{stats}");
        (ended, count("dropped"), count("expired"), count("held"))
    };
    let (ended, dropped, ..) = pipe("./a", &["-c", "10", "-o", "drop"], 100);
    assert_eq!((ended.status, ended.stdout, dropped), (Some(0), seq(10), 90));
    let (ended, dropped, ..) = pipe("./b", &["-c", "10", "-o", "drop-oldest"], 100);
    assert_eq!((ended.stdout.lines().count(), dropped), (10, 90));
    assert!(ended.stdout.ends_with("98\n99\n100\n"), "{ended:?}");
    let (ended, _, _, held) = pipe("./c", &["-c", "10", "-o", "fail", "--dropped", "rest"], 100);
    let rest = std::fs::read_to_string(directory.path().join("rest")).unwrap();
    assert_eq!((ended.status, format!("{}{rest}", ended.stdout)), (Some(3), seq(100)));
    assert_eq!(held, rest.lines().count() as u64);
    let (ended, _, expired, _) = pipe("./d", &["--max-age", "320ms"], 100);
    assert!((2..=8).contains(&ended.stdout.lines().count()) && expired > 90, "{ended:?}");
    // Room comes every 50 ms, so every other one waits for it in vain.
    let (ended, dropped, ..) = pipe("./e", &["-c", "1", "--timeout", "30ms"], 40);
    assert!((10..=30).contains(&dropped), "{ended:?}");
}

#[test]
fn where_others_fill_the_bucket_arrivals_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let gate = ["-r", "1/s", "-s", "./f", "--cost", "30", "--", "true"];
    assert_eq!(run(directory.path(), &gate, "").status, Some(0));
    let ended = run(directory.path(), &["-r", "1/s", "-s", "./f", "-o", "drop", "-c", "20"], "a\nb\n");
    assert_eq!((ended.status, ended.stdout.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.stderr.contains("of 2 items 2 were dropped") && ended.took < ms(5000), "{ended:?}");
}

#[test]
fn bytes_are_shared_and_a_long_line_is_paid_for() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = "x".repeat(400_000);
    let ended = run(directory.path(), &["-r", "500kB/s", "-s", "./f"], &bytes);
    assert_eq!((ended.stdout.len(), ended.status), (400_000, Some(0)));
    assert!((ms(750)..ms(3000)).contains(&ended.took), "{:?}", ended.took);
    let line = "x".repeat(3_000_000) + "\n";
    let ended = run(directory.path(), &["-r", "1MB/s", "-l", "-s", "./g"], &line);
    assert!(ended.stdout == line && ended.status == Some(0));
    let level = run(directory.path(), &["-r", "1MB/s", "-s", "./g", "--stats=json"], "");
    let level: serde_json::Value = serde_json::from_str(&level.stderr).unwrap();
    let wait = level["shared"]["wait_ns"].as_u64().unwrap();
    assert!((1_000_000_000..=3_000_001_000).contains(&wait), "{level}");
}

#[test]
fn a_burst_is_shared() {
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let words = ["-r", "10/s", "-b", "5", "-s", "./f"];
    let ended = run(directory.path(), &words, &seq(11));
    assert_eq!((ended.stdout, ended.status), (seq(11), Some(0)));
    assert!((ms(590)..ms(3000)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[test]
fn a_reader_that_goes_away_ends_it_at_once_and_what_is_reserved_goes_back() {
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let mut shell = Command::new("sh");
    let script = r#"yes | "$0" -r 1/h -s ./f | head -n 1"#;
    let ended = finish(
        {
            shell.args(["-c", script, LEAKY]).current_dir(&directory);
            shell
        },
        "",
    );
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("y\n", ""));
    assert!(began.elapsed() < ms(1000));
    let look = run(directory.path(), &["-r", "1/h", "-s", "./f", "--stats"], "");
    assert!(look.stderr.contains("the shared bucket has level 1.000"), "{look:?}");
}

#[test]
fn stats_without_input_say_how_full_it_is_and_take_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let look = |format: &str| run(directory.path(), &["-r", "10/min", "-s", "./f", format], "");
    assert!(look("--stats").stderr.contains("the shared bucket has level 0.000; an arrival would wait 0.000 s"));
    let gate = ["-r", "10/min", "-s", "./f", "--cost", "5", "--", "true"];
    assert_eq!(run(directory.path(), &gate, "").status, Some(0));
    let before = std::fs::read(directory.path().join("f")).unwrap();
    let ended = look("--stats=json");
    assert_eq!((ended.status, ended.stdout.as_str()), (Some(0), ""));
    let stats: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
    let (level, wait) = (stats["shared"]["level"].as_f64().unwrap(), stats["shared"]["wait_ns"].as_u64().unwrap());
    assert!((4.0..=5.0).contains(&level) && (wait as f64 / 6e9 - level).abs() < 1e-3, "{stats}");
    assert!(look("--stats=text").stderr.contains("the shared bucket has level 4.9"));
    assert_eq!(std::fs::read(directory.path().join("f")).unwrap(), before);
}
