//! `--simulate` and `--replay`: the same machine on a virtual clock, and recorded times.

use crate::cases::told;
use crate::harness::{Dir, Outcome, leaky, ms, seq};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::time::Duration;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

#[track_caller]
fn simulate(args: &str, input: impl Into<Vec<u8>>) -> Outcome {
    let outcome = leaky(&format!("--simulate {args}")).stdin(input).run();
    outcome.exits(0);
    outcome
}

fn numbers(told: &[Value], name: &str) -> Vec<Option<u64>> {
    told.iter().map(|told| told[name].as_u64()).collect()
}

/// When each item leaves, in nanoseconds.
#[track_caller]
fn departures(args: &str, input: impl Into<Vec<u8>>) -> Vec<Option<u64>> {
    numbers(&told(&simulate(args, input)), "departure_ns")
}

#[track_caller]
fn arrivals(args: &str, input: &str) -> Vec<u64> {
    numbers(&told(&simulate(args, input)), "arrival_ns").into_iter().map(Option::unwrap).collect()
}

fn seconds(times: &[u64]) -> Vec<u64> {
    times.iter().map(|time| time * SECOND).collect()
}

// ---- It agrees with a real run ----

#[test]
fn a_real_run_does_what_the_simulated_one_says() {
    for args in [
        "-r 20/s -c 6 -o drop",
        "-r 20/s -c 6 -o drop-oldest",
        "-r 20/s",
        "-r 20/s -b 4 -c 5 -o drop",
        "-r 20/s -b 4 -c 5 -o drop-oldest",
        "-r 4/200ms -a fixed-window -c 7 -o drop",
        "-r 4/200ms -a sliding-window -c 7 -o drop-oldest",
        "-r 30/s -r 3/200ms -c 6 -o drop",
        "-r 40cost/s --cost regex:.$ -c 20 -o drop",
        "-r 20/s -k regex:.$ -c 2 -o drop",
        "-r 20/s --warm-up 200ms -c 5 -o drop",
        "-r 200B/s -l -c 40B -o drop",
    ] {
        let dir = Dir::new();
        let input = seq(1..=14);
        let simulated = told(&simulate(args, input.clone()));
        let stdin = File::open(dir.put("stdin", &input)).unwrap();
        let real = leaky(&format!("-q {args}")).stdin_from(stdin, "a file").run();
        real.exits(0);
        let mut expected: Vec<(u64, u64)> = simulated
            .iter()
            .filter_map(|told| Some((told["departure_ns"].as_u64()?, told["item"].as_u64().unwrap())))
            .collect();
        expected.sort();
        let items: Vec<u64> = expected.iter().map(|(_, item)| *item).collect();
        real.check(real.numbers() == items, &format!("the simulation says {items:?}"));
        for ((departure, item), at) in expected.into_iter().zip(real.line_times()) {
            let departure = Duration::from_nanos(departure);
            let close = at >= departure && at < departure + ms(1500);
            real.check(close, &format!("item {item} should be out at {departure:?}, is at {at:?}"));
        }
    }
}

#[test]
fn twenty_at_50_ms_lose_nine() {
    let input: String = (0..20).map(|i| format!("{}.{:03}\n", i * 50 / 1000, i * 50 % 1000)).collect();
    let gone: Vec<Option<u64>> = departures("--replay field:1 -r 2/s -c 10 -o drop", input);
    assert_eq!(gone[..11], (0..11).map(|i| Some(i * 500 * MS)).collect::<Vec<_>>());
    assert!(gone[11..].iter().all(Option::is_none), "{gone:?}");
}

#[test]
fn every_item_is_told_of_once_in_the_order_of_the_input() {
    let outcome = simulate("-r 1/s -c 2 -o drop-oldest -k field:1", "a\nb\na\na\nb\na\n");
    let text = r#"{"item":1,"key":"a","cost":1,"arrival_ns":0,"departure_ns":0,"outcome":"emitted"}
{"item":2,"key":"b","cost":1,"arrival_ns":0,"departure_ns":0,"outcome":"emitted"}
{"item":3,"key":"a","cost":1,"arrival_ns":0,"departure_ns":null,"outcome":"dropped"}
{"item":4,"key":"a","cost":1,"arrival_ns":0,"departure_ns":null,"outcome":"dropped"}
{"item":5,"key":"b","cost":1,"arrival_ns":0,"departure_ns":1000000000,"outcome":"emitted"}
{"item":6,"key":"a","cost":1,"arrival_ns":0,"departure_ns":1000000000,"outcome":"emitted"}
"#;
    outcome.writes(text);
}

#[test]
fn what_expires_is_told_of() {
    let told = told(&simulate("-r 1/s --max-age 1500ms", seq(1..=4)));
    let outcomes: Vec<&Value> = told.iter().map(|told| &told["outcome"]).collect();
    assert_eq!(outcomes, ["emitted", "emitted", "expired", "expired"]);
    assert_eq!(numbers(&told, "departure_ns"), [Some(0), Some(SECOND), None, None]);
}

#[test]
fn fail_ends_a_simulation_too() {
    let outcome = leaky("--simulate -r 1/s -c 3 -o fail").stdin(seq(1..=9)).run();
    outcome.exits(3);
    assert_eq!(told(&outcome).len(), 1, "what was held has no outcome");
}

#[test]
fn a_simulation_whose_reader_goes_away_is_sigpipe() {
    leaky("--simulate -r 1/s").stdin(seq(1..=100_000)).reader_leaves_after(10).run().dies_of(Signal::PIPE).is_silent();
}

#[test]
fn a_simulation_touches_no_file() {
    let dir = Dir::new();
    let outcome = leaky("--simulate -r 1/s -c 2 -o drop --dropped").arg(dir.path("d")).stdin(seq(1..=5)).run();
    outcome.exits(0);
    assert!(!dir.path("d").exists());
}

#[test]
fn what_has_no_outcome_is_told_of() {
    let outcome = leaky("--simulate -r 1/2000000h").stdin(seq(1..=5)).run();
    outcome.exits(1).says("2 items have no outcome");
    assert_eq!(outcome.lines().len(), 3);
    leaky("--simulate -r 1/s -c 2 -o fail").stdin(seq(1..=5)).run().exits(3).says("the bucket is full; ");
}

// ---- Limits ----

#[test]
fn several_rates_hold_to_the_nanosecond() {
    // Twenty a second, but five in two seconds by the stricter one, which is an even 2.5/s here.
    let gone = departures("-r 20/s -r 5/2s", seq(1..=6));
    assert_eq!(gone, (0..6).map(|i| Some(i * 400 * MS)).collect::<Vec<_>>());
    // With bursts both show: five at once by the second, then one every 400 ms.
    let gone = departures("-a token-bucket -r 20/s -r 5/2s", seq(1..=8));
    assert_eq!(gone, [0, 0, 0, 0, 0, 400, 800, 1200].map(|ms| Some(ms * MS)));
    let gone = departures("-a sliding-window -r 2/s -r 3/10s", seq(1..=6));
    assert_eq!(gone, [0, 0, 1, 10, 10, 11].map(|s| Some(s * SECOND)));
}

#[test]
fn requests_and_tokens_are_both_limited() {
    let input = "{\"tokens\":50000}\n{\"tokens\":50000}\n{\"tokens\":1}\n{\"tokens\":0}\n{\"a\":1}\n";
    let outcome = simulate("--cost json:/tokens -r 60/min -r 100000cost/min", input);
    let told = told(&outcome);
    assert_eq!(numbers(&told, "cost"), [50_000, 50_000, 1, 0, 1].map(Some));
    assert_eq!(numbers(&told, "departure_ns"), [0, 30, 60, 61, 62].map(|s| Some(s * SECOND)));
    outcome.says("item 5 has no readable cost");
}

#[test]
fn what_costs_nothing_does_not_overtake() {
    for algorithm in ["fixed-window", "sliding-window"] {
        let gone = departures(&format!("-a {algorithm} -r 2cost/s --cost field:1"), "2\n2\n0\n");
        assert_eq!(gone, [0, 1, 1].map(|s| Some(s * SECOND)), "{algorithm}");
    }
}

#[test]
fn a_sliding_window_of_300_a_minute_is_that_in_any_minute() {
    let input: String = (0..1000).map(|i| format!("{}.{:03}\n", i * 77 / 1000, i * 77 % 1000)).collect();
    let gone = departures("-a sliding-window -r 300/min --replay field:1", input);
    let gone: Vec<u64> = gone.into_iter().map(Option::unwrap).collect();
    assert!(gone.windows(301).all(|two| two[300] - two[0] >= 60 * SECOND));
    assert_eq!(gone[299], 299 * 77 * MS);
    assert_eq!(gone[300], 60 * SECOND);
}

#[test]
fn a_fixed_window_on_the_clock_begins_with_the_minute() {
    let input = "2024-01-01T00:00:58Z\n2024-01-01T00:00:59Z\n2024-01-01T00:00:59Z\n2024-01-01T00:01:00Z\n";
    let gone = departures("-a fixed-window --align clock -r 2/min -c 1 -o drop --replay field:1", input);
    assert_eq!(gone, [Some(0), Some(SECOND), None, Some(2 * SECOND)]);
}

#[test]
fn many_arrivals_within_one_slot_fill_each_key_exactly() {
    let dir = Dir::new();
    let input: String = (0..6000).map(|i| format!("key{} {i}\n", i % 3)).collect();
    let args = "-k field:1 -r 2/s -c 20 -o drop";
    let told = told(&simulate(args, input.clone()));
    let emitted = told.iter().filter(|told| told["outcome"] == "emitted").count();
    assert_eq!(emitted, 60);
    // In a real run the file is read at once, all of it within the first slot.
    assert!(input.len() < 64 << 10);
    let stdin = File::open(dir.put("stdin", &input)).unwrap();
    let outcome = leaky(&format!("-q -r 100/s {}", &args.replace("-r 2/s", ""))).stdin_from(stdin, "a file").run();
    outcome.exits(0);
    for key in ["key0", "key1", "key2"] {
        let count = outcome.lines().iter().filter(|line| line.starts_with(key)).count();
        outcome.check(count == 20, &format!("{key}: {count}"));
    }
}

#[test]
fn many_keys_need_little_memory() {
    let feed = |to: &mut dyn std::io::Write| {
        let mut block = Vec::new();
        for i in 0..100_000_u64 {
            block.extend_from_slice(format!("{i:x} some text that is not kept\n").as_bytes());
        }
        to.write_all(&block)?;
        std::thread::sleep(ms(300));
        to.write_all(b"last\n")
    };
    let mut run = leaky("-q --stats=json -r 1k/s -c 1 -k field:1 --max-keys 1000 -o drop").producer(feed).start();
    run.until("most has gone through", |run| run.stdout_len() > 20_000);
    let peak = run.peak_kib();
    let outcome = run.wait();
    outcome.exits(0);
    let stats = outcome.stats();
    stats.balance();
    assert!(stats.get("emitted") >= 1000, "{stats:?}");
    assert!(peak < 48 << 10, "{peak} KiB");
    // Each key came once, so whoever was let in left at once, and eviction granted nobody a second turn.
    let mut lines = outcome.lines();
    let count = lines.len();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), count);
}

#[test]
fn an_evicted_key_gains_nothing() {
    // The table holds one key. While a is not at rest b finds no place, and a comes back to the state it left.
    let input = "0 a\n0.5 b\n0.9 a\n1 b\n1.5 a\n2 a\n";
    let gone = departures("--replay field:1 -k field:2 --max-keys 1 -r 1/s -c 1 -o drop", input);
    let ns = |tenths: u64| Some(tenths * 100 * MS);
    assert_eq!(gone, [ns(0), None, None, ns(10), None, ns(20)]);
}

#[test]
fn the_empty_key_is_a_key() {
    let gone = departures("-k field:1 -r 1/s", "\na\n\n");
    assert_eq!(gone, [0, 0, 1].map(|s| Some(s * SECOND)));
}

#[test]
fn a_million_lines_do_not_take_for_ever() {
    let outcome = simulate("-r 1k/s -c 100 -o drop", seq(1..=200_000));
    assert_eq!(outcome.stdout.iter().filter(|byte| **byte == b'\n').count(), 200_000);
}

// ---- Recorded times ----

#[test]
fn every_format_of_time_is_understood() {
    for (name, args, input) in [
        (
            "common log",
            "regex:\\[(.*?)\\]",
            "::1 - - [10/Oct/2000:13:55:36 -0700] \"GET /\"\n::1 - - [10/Oct/2000:13:55:37 -0700] \"GET /\"\n\
             ::1 - - [10/Oct/2000:20:55:40 +0000] \"GET /\"\n",
        ),
        ("RFC 3339", "field:1", "2024-02-28T23:59:59Z\n2024-02-29T00:00:00.000Z\n2024-02-29T01:00:03+01:00\n"),
        ("syslog", "regex:^\\w+ +\\d+ \\S+", "Dec 31 23:59:58 h a\nDec 31 23:59:59 h b\nJan  1 00:00:02 h c\n"),
        (
            "log4j",
            "regex:^\\S+.\\S+",
            "2024-12-31 23:59:58,500 x\n2024-12-31 23:59:59,500 x\n2025-01-01 00:00:02.500 x\n",
        ),
        ("epoch s", "field:1", "1700000000\n1700000001\n1700000004\n"),
        ("epoch ms", "field:1", "1700000000000\n1700000001000\n1700000004000\n"),
        ("epoch us", "field:1", "1700000000000000\n1700000001000000\n1700000004000000\n"),
        ("epoch ns", "field:1", "1700000000000000000\n1700000001000000000\n1700000004000000000\n"),
        ("decimal", "field:1", "1700000000.25\n1700000001.25\n1700000004.250000000\n"),
        ("JSON", "json:/t", "{\"t\":1700000000}\n{\"t\":1700000001}\n{\"t\":\"1700000004\"}\n"),
    ] {
        let outcome = leaky("--simulate --replay").arg(args).stdin(input).run();
        outcome.exits(0);
        let arrivals: Vec<Option<u64>> = numbers(&told(&outcome), "arrival_ns");
        outcome.check(arrivals == [0, 1, 4].map(|s| Some(s * SECOND)), name).is_silent();
    }
}

#[test]
fn speed_divides_every_gap_exactly() {
    assert_eq!(arrivals("--replay field:1", "0\n5\n6\n"), seconds(&[0, 5, 6]));
    assert_eq!(arrivals("--replay field:1 --speed 2", "0\n5\n6\n"), [0, 2500 * MS, 3 * SECOND]);
    assert_eq!(arrivals("--replay field:1 --speed 1000", "0\n5\n6\n"), [0, 5 * MS, 6 * MS]);
    assert_eq!(arrivals("--replay field:1 --speed 0.5", "0\n5\n6\n"), seconds(&[0, 10, 12]));
    // What a division leaves over does not add up.
    let thirds = arrivals("--replay field:1 --speed 3", "0\n1\n2\n3\n");
    assert_eq!(thirds, [0, 333_333_334, 666_666_667, SECOND]);
}

#[test]
fn long_gaps_are_cut_after_the_speed() {
    assert_eq!(arrivals("--replay field:1 --max-gap 5s", "0\n3\n100\n102\n"), seconds(&[0, 3, 8, 10]));
    assert_eq!(arrivals("--replay field:1 --max-gap 5s --speed 10", "0\n30\n1000\n1020\n"), seconds(&[0, 3, 8, 10]));
}

#[test]
fn a_late_stamp_leaves_at_once_and_stretches_nothing() {
    let outcome = simulate("--replay field:1", "10\n12\n11\n10\n13\n13\n");
    let told = told(&outcome);
    assert_eq!(numbers(&told, "departure_ns"), [0, 2, 2, 2, 3, 3].map(|s| Some(s * SECOND)));
}

#[test]
fn an_unreadable_stamp_arrives_with_the_one_before_and_is_told_of() {
    let outcome = simulate("--replay field:1", "10\nnever\n12\n");
    assert_eq!(numbers(&told(&outcome), "arrival_ns"), [0, 0, 2].map(|s| Some(s * SECOND)));
    outcome.says("item 2 has no readable time");
}

#[test]
fn a_rate_is_a_ceiling_over_a_replay() {
    let gone = departures("--replay field:1 -r 1/s", "0\n0.5\n0.6\n9\n");
    assert_eq!(gone, [0, 1, 2, 9].map(|s| Some(s * SECOND)));
}

#[test]
fn a_real_replay_keeps_to_the_recorded_times() {
    let outcome = leaky("--replay field:1 --stats=json").stdin("100.0\n100.3\n100.1\n100.4\n100.4\n100.7").run();
    outcome.exits(0).writes("100.0\n100.3\n100.1\n100.4\n100.4\n100.7");
    for (at, recorded) in outcome.line_times().into_iter().zip([0, 300, 300, 400, 400]) {
        outcome.check(at >= ms(recorded) && at < ms(recorded + 1500), &format!("{at:?} for {recorded} ms"));
    }
    let last = outcome.time_of(outcome.stdout.len());
    outcome.check(last >= ms(700), "the total is last - first");
    assert_eq!(outcome.stats().get("late_stamps"), 1);
    let quick = leaky("--replay field:1 --speed 1000").stdin("0\n100\n50\n300\n").run();
    quick.exits(0).writes("0\n100\n50\n300\n").check(quick.elapsed >= ms(300) && quick.elapsed < ms(3000), "0.3 s");
}

#[test]
fn a_stop_shifts_a_replay_and_bursts_nothing() {
    let input: String = (0..12).map(|i| format!("{}.{:02}\n", i / 10, i % 10 * 10)).collect();
    let mut run = leaky("--replay field:1").stdin(input.clone()).start();
    run.until_out(10);
    run.signal(Signal::STOP);
    std::thread::sleep(ms(600));
    let from = run.start.elapsed();
    run.signal(Signal::CONT);
    let outcome = run.wait();
    outcome.exits(0).writes(input);
    let after: Vec<Duration> = outcome.line_times().into_iter().filter(|at| *at >= from).collect();
    outcome.check(after.len() > 4, "most come after the stop");
    for (k, at) in (0..).zip(&after) {
        let slot = from + ms(100) * k;
        // One may have been due when it was stopped.
        let slot = slot.saturating_sub(ms(100) + ms(60));
        outcome.check(*at >= slot, &format!("item {k} of these came at {at:?}, before {slot:?}: {after:?}"));
    }
}
