//! Below the command line, on a virtual clock: a leaker that wakes late or writes slowly, chunks, warm-up.

use crate::harness::shared;
use clap::Parser;
use leaky::bucket::{Arrival, Bucket, Part};
use leaky::cli::Cli;
use leaky::clock::{Clock, Virtual};
use leaky::config::Config;
use leaky::counters::Lateness;
use leaky::fd::{self, Hole, Woken};
use leaky::frame::Framing;
use leaky::hub::Shared;
use leaky::leaker::Leaker;
use leaky::pacer::Pacer;
use leaky::run::{Run, Slice, Weight};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

/// What `leaky` makes of these arguments.
pub fn config(args: &str) -> Config {
    let cli = Cli::try_parse_from(["leaky"].into_iter().chain(args.split_whitespace())).expect("options");
    Config::try_from(cli).unwrap_or_else(|why| panic!("{args}: {why}"))
}

/// A hole through which time passes: waking up may take longer than asked, and so may a write.
struct Fake {
    shared: Arc<Shared>,
    clock: Virtual,
    /// When items arrive; the run ends after them.
    arrivals: VecDeque<u64>,
    arrived: u64,
    /// By item: how much later than asked the leaker wakes for it, and how long it takes to write it.
    late: Vec<u64>,
    write: Vec<u64>,
    /// How many items go into each of the first writes at most.
    most: VecDeque<usize>,
    departures: Arc<Mutex<Vec<u64>>>,
}

impl Fake {
    /// What has arrived by `until`; whether something has.
    fn arrive(&mut self, until: u64) -> bool {
        let mut any = false;
        while let Some(at) = self.arrivals.front().copied().filter(|at| *at <= until) {
            self.arrivals.pop_front();
            self.arrived += 1;
            self.clock.advance(at);
            let slice = Slice::new(format!("{}\n", self.arrived).into_bytes());
            let weight = Weight { len: slice.len() as u64, cost: 1 };
            let run = Run { slice, count: 1, weight, number: self.arrived, arrival: at };
            let mut core = self.shared.lock();
            core.bucket.arrive(at, Arrival { run, part: Part::Whole, key: None, recorded: None });
            core.ended = self.arrivals.is_empty();
            any = true;
        }
        any
    }
}

impl Hole for Fake {
    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let most = self.most.pop_front().unwrap_or(usize::MAX);
        let (mut items, mut bytes) = (0, 0);
        for byte in slices.iter().flat_map(|slice| slice.iter()) {
            if items == most {
                break;
            }
            bytes += 1;
            if *byte == b'\n' {
                items += 1;
                let mut departures = self.departures.lock().unwrap();
                departures.push(self.clock.now());
                let took = self.write.get(departures.len() - 1).copied().unwrap_or(0);
                self.clock.advance(self.clock.now() + took);
            }
        }
        Ok(bytes)
    }

    fn wait(&mut self, timeout: Option<u64>, _: bool) -> io::Result<Woken> {
        let until = timeout.map_or(u64::MAX, |timeout| self.clock.now() + timeout);
        if !self.arrivals.is_empty() && self.arrivals[0] <= until {
            let at = self.arrivals[0];
            self.arrive(at);
            return Ok(Woken::Called);
        }
        if timeout.is_none() {
            return Err(io::Error::other("it would wait for ever"));
        }
        let item = self.departures.lock().unwrap().len();
        let late = self.late.get_mut(item).map(std::mem::take).unwrap_or(0);
        self.clock.advance(until + late);
        Ok(Woken::Called)
    }
}

/// When the writes of items begin that arrive then.
fn departures(args: &str, arrivals: &[u64], late: &[u64], write: &[u64]) -> Vec<u64> {
    leak(args, arrivals, late, write, &[]).0
}

/// The same where the first writes take so many items at most, and how late items were.
fn leak(args: &str, arrivals: &[u64], late: &[u64], write: &[u64], most: &[usize]) -> (Vec<u64>, Lateness) {
    let config = config(args);
    let ((leaker_bell, _ear), (reader_bell, _other)) = (fd::bell().unwrap(), fd::bell().unwrap());
    let shared =
        Arc::new(Shared::new(&config, Bucket::new(config.bucket.clone(), false), None, leaker_bell, reader_bell));
    let (clock, departures) = (Virtual::default(), Arc::new(Mutex::new(Vec::new())));
    let mut hole = Fake {
        shared: Arc::clone(&shared),
        clock: clock.clone(),
        arrivals: arrivals.iter().copied().collect(),
        arrived: 0,
        late: late.to_vec(),
        write: write.to_vec(),
        most: most.iter().copied().collect(),
        departures: Arc::clone(&departures),
    };
    hole.arrive(0);
    let (used, _spare) = crossbeam_channel::bounded(4);
    Leaker::new(Arc::clone(&shared), clock, hole, used, &config).run();
    assert_eq!(shared.lock().stop, None, "{args}");
    let departures = departures.lock().unwrap().clone();
    assert_eq!(departures.len(), arrivals.len());
    let lateness = shared.lock().lateness.clone();
    (departures, lateness)
}

fn instants(value: &Value) -> Vec<u64> {
    value.as_array().map_or(Vec::new(), |list| list.iter().map(|instant| instant.as_u64().unwrap()).collect())
}

const MS: u64 = 1_000_000;

#[test]
fn the_unit_cases_that_stand_beside_the_project() {
    let Some(text) = shared("unit-cases.json") else { return };
    let cases: Value = serde_json::from_str(&text).expect("JSON");
    let mut count = 0;
    for case in cases["vectors"].as_array().unwrap() {
        let id = case["id"].as_str().unwrap();
        let (rate, options, expect) = (&case["rate"], &case["options"], &case["expect"]);
        let rate = format!("{}/{}ns", rate["n"], rate["per_ns"]);
        match case["algorithm"].as_str().unwrap() {
            "leaker" => {
                let args = format!("-r {rate} --catch-up {}ns", options["catch_up_ns"]);
                let (late, write) = (instants(&options["late"]), instants(&options["write"]));
                let got = departures(&args, &instants(&case["arrivals"]), &late, &write);
                assert_eq!(got, instants(expect), "{id}");
            }
            "chunks" => {
                let rate = rate.replace('/', "B/");
                let quantum = case["burst_or_capacity"].as_u64();
                let chunk = quantum.map_or(String::new(), |quantum| format!("--chunk {quantum}"));
                let config = config(&format!("-r {rate} {chunk}"));
                let Framing::Chunks(size) = config.intake.framing else { panic!("{id}: no chunks") };
                if case["expect_kind"] == "quantum" {
                    assert_eq!(size as u64, expect[0].as_u64().unwrap(), "{id}");
                } else {
                    let pieces = chunk_departures(&config, size as u64, options["total"].as_u64().unwrap());
                    let ends = [pieces[0], pieces[pieces.len() - 1]];
                    let wanted = [&expect[0], &expect[1]].map(|piece| (piece[0].as_u64(), piece[1].as_u64()));
                    assert_eq!(ends.map(|piece| (Some(piece.0), Some(piece.1))), wanted, "{id}");
                }
            }
            "warmup" => {
                let args = format!("-r {rate} --warm-up {}ns", options["warmup_ns"]);
                let waits = waits(&config(&args).bucket.pacer, case["arrivals"].as_array().unwrap().len());
                assert_eq!(waits, instants(expect), "{id}");
            }
            // Shared buckets have tests of their own.
            _ => continue,
        }
        count += 1;
    }
    assert!(count >= 11, "{count} cases");
}

/// When each chunk of so many bytes leaves, and how long it is.
fn chunk_departures(config: &Config, size: u64, total: u64) -> Vec<(u64, u64)> {
    let pacer = &config.bucket.pacer;
    let mut state = pacer.fresh();
    let mut pieces = Vec::new();
    let mut left = total;
    while left > 0 {
        let weight = Weight { len: left.min(size), cost: 1 };
        let due = pacer.due(&state, 0, weight).expect("a slot");
        pacer.leave(&mut state, due, weight, 1, due);
        pieces.push((pacer.ceil_ns(due), weight.len));
        left -= weight.len;
    }
    pieces
}

/// How long after the item before each one leaves when all are there.
fn waits(pacer: &Pacer, count: usize) -> Vec<u64> {
    let weight = Weight { len: 1, cost: 1 };
    let mut state = pacer.fresh();
    let mut last = 0;
    let wait = |_| {
        let due = pacer.due(&state, 0, weight).expect("a slot");
        pacer.leave(&mut state, due, weight, 1, due);
        let wait = pacer.ceil_ns(due) - last;
        last = pacer.ceil_ns(due);
        wait
    };
    (0..count).map(wait).collect()
}

#[test]
fn a_late_wake_up_within_the_catch_up_is_made_up_for() {
    let got = departures("-r 10/s --catch-up 10ms", &[0; 4], &[0, 5 * MS], &[]);
    assert_eq!(got, [0, 105 * MS, 200 * MS, 300 * MS]);
}

#[test]
fn strict_keeps_every_gap() {
    let got = departures("-r 10/s --strict", &[0; 4], &[0, 5 * MS, 0, 7 * MS], &[0, 1, 0, 0]);
    assert_eq!(got, [0, 105 * MS, 205 * MS + 1, 312 * MS + 1]);
}

#[test]
fn a_stall_is_forgiven_but_for_the_catch_up() {
    let got = departures("-r 10/s --catch-up 10ms", &[0; 5], &[], &[0, 3000 * MS]);
    assert_eq!(got, [0, 100 * MS, 3190 * MS, 3290 * MS, 3390 * MS]);
}

#[test]
fn writes_slower_than_the_rate_set_the_pace() {
    let got = departures("-r 10/s --strict", &[0; 4], &[], &[150 * MS; 4]);
    assert_eq!(got, [0, 250 * MS, 500 * MS, 750 * MS]);
}

#[test]
fn after_idling_the_first_leaves_at_once_and_the_next_a_slot_later() {
    let got = departures("-r 10/s", &[0, 1000 * MS, 1000 * MS], &[], &[]);
    assert_eq!(got, [0, 1000 * MS, 1100 * MS]);
}

#[test]
fn a_token_bucket_that_was_stopped_holds_one_burst() {
    let got = departures("-r 10/s -b 3", &[0; 8], &[0, 0, 0, 2000 * MS], &[]);
    assert_eq!(got[..3], [0, 0, 0]);
    // The burst is saved up during the stop: three leave at its end.
    assert_eq!(got[3..], [2100, 2100, 2100, 2200, 2300].map(|ms| ms * MS));
}

#[test]
fn what_falls_due_while_a_write_hangs_was_due_then() {
    // Three leave at once, of which the first write takes two and the second 250 ms. Meanwhile the fourth falls due.
    let (got, lateness) = leak("-r 10/s -b 3", &[0; 4], &[], &[0, 0, 250 * MS], &[2, 1]);
    assert_eq!(got, [0, 0, 0, 250 * MS]);
    let late = lateness.percentile(75);
    assert!((150 * MS..170 * MS).contains(&late), "it was due at 100 ms, so it was 150 ms late, not {late} ns");
}

#[test]
fn the_warm_up_follows_guavas_curve_and_cools_down_while_idle() {
    let pacer = config("-r 2/s --warm-up 4s").bucket.pacer;
    let want = [0, 1375, 1125, 875, 625, 500, 500, 500].map(|ms| ms * MS);
    assert_eq!(waits(&pacer, 8), want);
}

#[test]
fn chunks_are_ten_milliseconds_of_the_rate() {
    for (rate, size) in [("100B/s", 1), ("1MB/s", 10_000), ("1GB/s", 65_536), ("64KiB/s", 655), ("8Mbit/s", 10_000)] {
        assert_eq!(config(&format!("-r {rate}")).intake.framing, Framing::Chunks(size), "{rate}");
    }
    let slow = config("-r 100B/s");
    let pieces = chunk_departures(&slow, 1, 102);
    assert_eq!((pieces[0], pieces[101]), ((0, 1), (1010 * MS, 1)));
}

#[test]
fn what_expires_unwritten_counts_in_no_window() {
    for algorithm in ["fixed-window", "sliding-window"] {
        let config = config(&format!("-a {algorithm} -r 2/700ms -c 3 -o drop --max-age 150ms"));
        let mut bucket = Bucket::new(config.bucket, false);
        let line = |number| {
            let run = Run {
                slice: Slice::new(b"x\n".to_vec()),
                count: 1,
                weight: Weight { len: 2, cost: 1 },
                number,
                arrival: if number < 3 { 0 } else { 300 * MS },
            };
            Arrival { run, part: Part::Whole, key: None, recorded: None }
        };
        bucket.blocked(true);
        (1..=2).for_each(|number| bucket.arrive(0, line(number)));
        bucket.advance(300 * MS);
        assert_eq!(bucket.accounts().expired, 2, "{algorithm}");
        bucket.blocked(false);
        (3..=4).for_each(|number| bucket.arrive(300 * MS, line(number)));
        bucket.advance(300 * MS);
        let mut slices = Vec::new();
        bucket.leaving(&mut slices, 9);
        assert_eq!(slices.len(), 2, "{algorithm}: the window has both its places");
    }
}
