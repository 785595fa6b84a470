//! The guarantees, for any arrivals, any lateness and any stalls, on a virtual clock against the bucket itself.
//!
//! A `World` is what a run is, without threads: items arrive when the script says, the leaker wakes late, is blocked,
//! writes slowly or only in part. Bounds are asked of the instants at which writes ended, as the reader sees them.

use crate::units::config;
use leaky::bucket::{Arrival, Bucket, Fate, Outcome};
use leaky::config::Config;
use leaky::intake::Intake;
use leaky::run::{Slice, Weight};
use proptest::prelude::*;
use std::collections::HashMap;

const MS: u64 = 1_000_000;

/// What the leaker does at one wake-up.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// So much later than it wanted it wakes.
    late: u64,
    /// Stdout takes nothing for so long first.
    blocked: u64,
    /// So long the write takes.
    writing: u64,
    /// Only so many of 4 parts of the bytes are written.
    quarters: usize,
}

const PROMPT: Turn = Turn { late: 0, blocked: 0, writing: 0, quarters: 4 };

/// Somebody who acts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Act {
    Poke,
    Arrive,
    Leak,
}

enum Leaker {
    /// It has wanted to wake since then.
    Idle {
        wanted: Option<u64>,
    },
    Blocked {
        until: u64,
        turn: Turn,
    },
    Writing {
        until: u64,
        bytes: usize,
    },
}

struct World {
    bucket: Bucket,
    intake: Intake,
    /// When items arrive, and their text.
    arrivals: std::collections::VecDeque<(u64, Vec<u8>)>,
    turns: Vec<Turn>,
    /// Instants at which somebody looks, and so has all happen that is to happen.
    pokes: Vec<u64>,
    now: u64,
    /// When a replay began, in bucket time.
    anchor: Option<u64>,
    read: Vec<u8>,
    written: Vec<u8>,
    cast_off: Vec<u8>,
    /// Items that are wholly written, and when that was.
    ends: Vec<(Vec<u8>, u64)>,
    outcomes: Vec<Outcome>,
}

impl World {
    fn new(args: &str, arrivals: &[(u64, Vec<u8>)], turns: &[Turn], pokes: &[u64]) -> World {
        let mut config: Config = config(&format!("-q {args}"));
        config.bucket.trace = true;
        let mut pokes = pokes.to_vec();
        pokes.sort();
        pokes.reverse();
        World {
            bucket: Bucket::new(config.bucket.clone(), true),
            intake: Intake::new(config.intake, 0),
            arrivals: arrivals.iter().cloned().collect(),
            turns: turns.iter().rev().copied().collect(),
            pokes,
            now: 0,
            anchor: None,
            read: Vec::new(),
            written: Vec::new(),
            cast_off: Vec::new(),
            ends: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// The reader waits for room where the bucket asks it to.
    fn run(args: &str, arrivals: &[(u64, Vec<u8>)], turns: &[Turn], pokes: &[u64]) -> World {
        World::run_with(args, arrivals, turns, pokes, true)
    }

    fn run_with(args: &str, arrivals: &[(u64, Vec<u8>)], turns: &[Turn], pokes: &[u64], polite: bool) -> World {
        let mut world = World::new(args, arrivals, turns, pokes);
        let mut leaker = Leaker::Idle { wanted: None };
        for step in 0.. {
            assert!(step < 200_000, "{args}: it never ends");
            // Whoever acts first; at one instant the leaker after the others.
            let arrive = world.arrivals.front().map(|(at, _)| (*at).max(world.now));
            let arrive = arrive.filter(|_| !polite || world.bucket.may_read(1) > 0);
            let poke = world.pokes.last().map(|at| (*at).max(world.now));
            let turn = world.turns.last().copied().unwrap_or(PROMPT);
            let next = world.bucket.next_event();
            let leak = match &mut leaker {
                Leaker::Idle { wanted } => {
                    let now = world.bucket.wants_writing().then_some(world.now);
                    // Nobody who looks meanwhile may put it off.
                    *wanted = [*wanted, now, next.map(|next| next.max(world.now))].into_iter().flatten().min();
                    wanted.map(|wanted| (wanted + turn.late).max(world.now))
                }
                Leaker::Blocked { until, .. } => Some(next.map_or(*until, |next| next.max(world.now).min(*until))),
                Leaker::Writing { until, .. } => Some(*until),
            };
            let acts = [(poke, Act::Poke), (arrive, Act::Arrive), (leak, Act::Leak)];
            let acts = acts.into_iter().filter_map(|(at, act)| Some((at?, act)));
            let Some((at, act)) = acts.min() else { break };
            assert!(at >= world.now, "{args}: time runs backwards");
            world.now = at;
            match act {
                Act::Poke => {
                    world.pokes.pop();
                    world.bucket.advance(at);
                }
                Act::Arrive => world.arrive(),
                Act::Leak => leaker = world.leak(leaker, turn),
            }
            world.balance(args);
        }
        assert!(world.bucket.overflowed() || world.bucket.is_empty(), "{args}: something is left: {:?}", world.bucket);
        world
    }

    fn arrive(&mut self) {
        let Some((_, mut text)) = self.arrivals.pop_front() else { return };
        self.read.extend_from_slice(&text);
        let mut arrivals: Vec<Arrival> = Vec::new();
        self.intake.take(&mut text, false, self.now, &mut arrivals);
        for mut arrival in arrivals {
            if let Some(recorded) = &mut arrival.recorded {
                *recorded += *self.anchor.get_or_insert(self.bucket.bucket_time(self.now));
            }
            self.bucket.arrive(self.now, arrival);
        }
    }

    fn leak(&mut self, leaker: Leaker, turn: Turn) -> Leaker {
        self.bucket.advance(self.now);
        match leaker {
            Leaker::Idle { .. } => {
                if !self.bucket.wants_writing() {
                    return Leaker::Idle { wanted: None };
                }
                self.turns.pop();
                if turn.blocked > 0 {
                    self.bucket.blocked(true);
                    return Leaker::Blocked { until: self.now + turn.blocked, turn };
                }
                self.begin(turn)
            }
            Leaker::Blocked { until, turn } if self.now < until => Leaker::Blocked { until, turn },
            Leaker::Blocked { turn, .. } => {
                self.bucket.blocked(false);
                self.bucket.wrote(0, self.now, |_, _, _| {});
                self.bucket.advance(self.now);
                self.begin(turn)
            }
            Leaker::Writing { bytes, .. } => {
                self.bucket.blocked(false);
                self.bucket.wrote(bytes, self.now, |_, _, _| {});
                let begun = self.ends.iter().map(|(item, _)| item.len()).sum::<usize>();
                let mut begin = begun;
                for end in (begun..self.written.len()).filter(|at| self.written[*at] == b'\n') {
                    self.ends.push((self.written[begin..=end].to_vec(), self.now));
                    begin = end + 1;
                }
                self.bucket.advance(self.now);
                Leaker::Idle { wanted: None }
            }
        }
    }

    fn begin(&mut self, turn: Turn) -> Leaker {
        let mut slices = Vec::new();
        self.bucket.leaving(&mut slices, 64);
        let bytes: Vec<u8> = slices.iter().flat_map(Slice::bytes).copied().collect();
        if bytes.is_empty() {
            return Leaker::Idle { wanted: None };
        }
        let count = (bytes.len() * turn.quarters / 4).max(1);
        self.written.extend_from_slice(&bytes[..count]);
        Leaker::Writing { until: self.now + turn.writing, bytes: count }
    }

    /// read = emitted + dropped + expired + held, each counted by itself.
    fn balance(&mut self, args: &str) {
        let mut slices = Vec::new();
        self.bucket.take_cast_off(&mut slices);
        self.cast_off.extend(slices.iter().flat_map(Slice::bytes));
        self.bucket.take_outcomes(&mut self.outcomes);
        let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let accounts = self.bucket.accounts();
        let held: u64 = self.bucket.leftover().iter().map(|slice| lines(slice.bytes())).sum();
        let counted = [lines(&self.read), self.ends.len() as u64, lines(&self.cast_off), held];
        let told = [accounts.read, accounts.emitted, accounts.dropped + accounts.expired, accounts.held()];
        assert_eq!(told, counted, "{args}: read, emitted, gone, held at {}", self.now);
    }

    /// By item, what became of it: when it left, rounded up, or how it was lost.
    fn fates(&self, args: &str) -> Vec<Result<u64, Fate>> {
        let pacer = config(args).bucket.pacer;
        let mut fates = HashMap::new();
        for outcome in &self.outcomes {
            for i in 0..outcome.count {
                let fate = match outcome.fate {
                    Fate::Emitted(due, step) => Ok(pacer.ceil_ns(due + step * u128::from(i))),
                    fate => Err(fate),
                };
                let before = fates.insert(outcome.number + i, fate);
                // What has left and is not written may still expire.
                let once = matches!((before, fate), (None, _) | (Some(Ok(_)), Err(Fate::Expired)));
                assert!(once, "item {} twice", outcome.number + i);
            }
        }
        (1..=fates.len() as u64).map(|number| fates[&number]).collect()
    }

    fn end_times(&self) -> Vec<u64> {
        self.ends.iter().map(|(_, at)| *at).collect()
    }
}

/// Items `number\n`, each group at one instant.
fn plain(groups: &[(u64, u8)]) -> Vec<(u64, Vec<u8>)> {
    let (mut at, mut number) = (0, 0_u64);
    let group = |(gap, count): &(u64, u8)| {
        at += gap;
        let mut item = |_| {
            number += 1;
            format!("{number}\n").into_bytes()
        };
        (at, (0..*count).flat_map(&mut item).collect())
    };
    groups.iter().map(group).collect()
}

/// One item an arrival.
fn singles(groups: &[(u64, u8)]) -> Vec<u64> {
    let mut at = 0;
    let mut times = Vec::new();
    for (gap, count) in groups {
        at += gap;
        times.extend(std::iter::repeat_n(at, usize::from(*count)));
    }
    times
}

/// Any half-open window of length W holds at most floor((W + allowed) n / p) + more.
fn bounded(ends: &[u64], n: u64, p: u64, allowed: u64, more: u64) -> Result<(), TestCaseError> {
    for (i, from) in ends.iter().enumerate() {
        for (j, to) in ends.iter().enumerate().skip(i) {
            // The shortest window that holds both.
            let window = u128::from(to - from + 1 + allowed);
            let most = window * u128::from(n) / u128::from(p) + u128::from(more);
            let held = (j - i + 1) as u128;
            prop_assert!(held <= most, "{held} in {} ns, {most} are allowed: {ends:?}", to - from + 1);
        }
    }
    Ok(())
}

fn in_order(world: &World) -> Result<(), TestCaseError> {
    let numbers: Vec<u64> =
        world.ends.iter().map(|(item, _)| String::from_utf8_lossy(item).trim().parse().unwrap()).collect();
    prop_assert!(numbers.windows(2).all(|two| two[0] < two[1]), "not in order: {numbers:?}");
    let sorted = |bytes: &[u8]| {
        let mut lines: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort();
        lines
    };
    if !world.bucket.overflowed() {
        prop_assert_eq!(sorted(&[&world.written[..], &world.cast_off].concat()), sorted(&world.read), "whole");
    }
    Ok(())
}

fn groups() -> impl Strategy<Value = Vec<(u64, u8)>> {
    let gap = prop_oneof![Just(0), 0..3 * MS, 0..200 * MS, 0..2000 * MS];
    prop::collection::vec((gap, 1_u8..9), 1..20)
}

/// n in p, as numbers and as written.
fn rate() -> impl Strategy<Value = (u64, u64, String)> {
    let period = prop_oneof![Just(1000), Just(700), 1_u64..3000];
    (1_u64..60, period).prop_map(|(n, ms)| (n, ms * MS, format!("{n}/{ms}ms")))
}

fn policy() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("-o block"),
        Just("-o drop-newest"),
        Just("-o drop-oldest"),
        Just("-o fail"),
        Just("--timeout 70ms"),
        Just("-o drop --max-age 150ms"),
        Just("-o block --max-age 400ms"),
        Just("-o drop-oldest --max-age 90ms"),
    ]
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let some = || prop_oneof![3 => Just(0), 2 => 0..2 * MS, 1 => 0..60 * MS, 1 => 0..900 * MS];
    let turn = (some(), some(), some(), 0_usize..=4);
    let turn = turn.prop_map(|(late, blocked, writing, quarters)| Turn { late, blocked, writing, quarters });
    prop::collection::vec(turn, 0..40)
}

/// So many cases, or as many as PROPTEST_CASES says.
fn few(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(cases), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(few(300))]

    /// 4.2, 4.4 and the accounts: whatever comes, however late the leaker is.
    #[test]
    fn a_leaky_bucket_holds_its_bound_its_order_and_its_accounts(
        (n, p, rate) in rate(), groups in groups(), turns in turns(), policy in policy(), capacity in 1_u64..20,
        catch_up in 0_u64..120,
    ) {
        let args = format!("-r {rate} -c {capacity} {policy} --catch-up {catch_up}ms");
        let world = World::run(&args, &plain(&groups), &turns, &[]);
        bounded(&world.end_times(), n, p, catch_up * MS, 1)?;
        in_order(&world)?;
    }

    /// 4.2: a token bucket counts when a write has ended.
    #[test]
    fn a_token_bucket_holds_its_bound(
        (n, p, rate) in rate(), groups in groups(), turns in turns(), policy in policy(), burst in 2_u64..12,
        capacity in 1_u64..20,
    ) {
        let args = format!("-r {rate} -b {burst} -c {capacity} {policy}");
        let world = World::run(&args, &plain(&groups), &turns, &[]);
        bounded(&world.end_times(), n, p, 0, burst)?;
        in_order(&world)?;
    }

    /// 4.2: n in any window, exactly.
    #[test]
    fn a_sliding_window_holds_n_in_any_window(
        (n, p, rate) in rate(), groups in groups(), turns in turns(), policy in policy(), capacity in 1_u64..20,
    ) {
        let args = format!("-a sliding-window -r {rate} -c {capacity} {policy}");
        let world = World::run(&args, &plain(&groups), &turns, &[]);
        let ends = world.end_times();
        for two in ends.windows(n as usize + 1) {
            prop_assert!(two[n as usize] - two[0] >= p, "{} in a window of {} ns: {:?}", n + 1, p, two);
        }
        in_order(&world)?;
    }

    /// 4.2: n in each window, be it on the grid or opened by the first item.
    #[test]
    fn a_fixed_window_holds_n_in_each_window(
        (n, p, rate) in rate(), groups in groups(), turns in turns(), policy in policy(), capacity in 1_u64..20,
        clock: bool,
    ) {
        // What left and expires unwritten opens a window, too, and the reader cannot see which.
        let clock = clock || policy.contains("max-age");
        let align = if clock { "clock" } else { "first" };
        let args = format!("-a fixed-window --align {align} -r {rate} -c {capacity} {policy}");
        let world = World::run(&args, &plain(&groups), &turns, &[]);
        let (mut start, mut held) = (0, 0);
        for (i, end) in world.end_times().into_iter().enumerate() {
            let begun = if clock { end / p * p } else if i == 0 || end >= start + p { end } else { start };
            held = if i > 0 && begun == start { held + 1 } else { 1 };
            start = begun;
            prop_assert!(held <= n, "{} in the window that begins at {}: {:?}", held, start, world.end_times());
        }
        in_order(&world)?;
    }

    /// Several rates at once: each holds, in any window.
    #[test]
    fn several_rates_hold_at_once(
        (n, p, one) in rate(), (m, q, other) in rate(), groups in groups(), turns in turns(), burst in 1_u64..4,
    ) {
        let (more, allowed) = if burst > 1 { (format!("-b {burst}"), 0) } else { ("--catch-up 20ms".into(), 20 * MS) };
        let args = format!("-r {one} -r {other} {more}");
        let world = World::run(&args, &plain(&groups), &turns, &[]);
        let ends = world.end_times();
        prop_assert_eq!(ends.len(), singles(&groups).len());
        bounded(&ends, n, p, allowed, burst)?;
        bounded(&ends, m, q, allowed, burst)?;
    }

    /// Keys: each has the whole rate, keeps its order, and an evicted one gains nothing by it.
    #[test]
    fn each_key_holds_its_bound_however_few_there_may_be(
        (n, p, rate) in rate(), items in prop::collection::vec((0..40 * MS, 0_u8..6), 1..80), turns in turns(),
        policy in policy(), max_keys in 1_u64..7, capacity in 1_u64..5,
    ) {
        let mut at = 0;
        let arrivals: Vec<(u64, Vec<u8>)> = items.iter().enumerate().map(|(i, (gap, key))| {
            at += gap;
            (at, format!("{key} {i}\n").into_bytes())
        }).collect();
        let args = format!("-k field:1 --max-keys {max_keys} -c {capacity} -r {rate} --catch-up 30ms {policy}");
        let world = World::run(&args, &arrivals, &turns, &[]);
        for key in 0_u8..6 {
            let of_key = world.ends.iter().filter(|(item, _)| item[0] == b'0' + key);
            let numbers: Vec<u64> = of_key.clone()
                .map(|(item, _)| String::from_utf8_lossy(&item[2..]).trim().parse().unwrap()).collect();
            prop_assert!(numbers.windows(2).all(|two| two[0] < two[1]), "key {} is not in order: {:?}", key, numbers);
            let ends: Vec<u64> = of_key.map(|(_, at)| *at).collect();
            bounded(&ends, n, p, 30 * MS, 1)?;
        }
    }

    /// 4.10: stamps are never early, and lateness shifts the rest but for the catch-up, with a rate or without.
    #[test]
    fn a_replay_is_shifted_by_lateness_and_bursts_nothing(
        gaps in prop::collection::vec(0..400_u64, 1..30), turns in turns(), rated: bool,
        policy in prop_oneof![Just("block"), Just("drop"), Just("drop-oldest")],
    ) {
        let mut stamps = vec![0];
        gaps.iter().for_each(|gap| stamps.push(stamps[stamps.len() - 1] + gap));
        let text: String = stamps.iter().enumerate().map(|(i, ms)| format!("{i} {}.{:03}\n", ms / 1000, ms % 1000)).collect();
        let rate = if rated { "-r 100/s" } else { "" };
        let args = format!("--replay field:2 --catch-up 20ms -o {policy} {rate}");
        let world = World::run(&args, &[(7 * MS, text.into_bytes())], &turns, &[]);
        let stamped = |item: &[u8]| {
            let number = String::from_utf8_lossy(item).split(' ').next().unwrap().parse::<usize>().unwrap();
            stamps[number] * MS
        };
        prop_assert_eq!(world.ends.len(), stamps.len());
        for (i, (one, from)) in world.ends.iter().enumerate() {
            prop_assert!(*from >= 7 * MS + stamped(one));
            // A rate may hold the first of two back.
            for (other, to) in world.ends[i..].iter().filter(|_| !rated) {
                let recorded = stamped(other) - stamped(one);
                prop_assert!(to - from + 20 * MS >= recorded, "{} ns apart instead of {}", to - from, recorded);
            }
        }
        if rated {
            bounded(&world.end_times(), 100, 1000 * MS, 20 * MS, 1)?;
        }
    }

    /// 4.3: outcomes do not depend on who looks when.
    #[test]
    fn looking_changes_nothing(
        (_, _, rate) in rate(), groups in groups(), turns in turns(), policy in policy(), capacity in 1_u64..20,
        algorithm in prop_oneof![
            Just(""), Just("-b 4"), Just("-a fixed-window"), Just("-a sliding-window"), Just("-r 7/s"),
            Just("--warm-up 1s"),
        ],
        pokes in prop::collection::vec(0..8000 * MS, 0..60),
    ) {
        let args = format!("-r {rate} -c {capacity} {policy} {algorithm}");
        // When a reader that waits for room reads on depends on who looks, so here the arrivals are given.
        let alone = World::run_with(&args, &plain(&groups), &turns, &[], false);
        let watched = World::run_with(&args, &plain(&groups), &turns, &pokes, false);
        prop_assert_eq!(&alone.ends, &watched.ends);
        prop_assert_eq!(alone.fates(&args), watched.fates(&args));
    }

    /// 4.1, 4.3: lateness within the catch-up changes neither who gets in nor the schedule.
    #[test]
    fn lateness_that_is_made_up_for_changes_nothing(
        n in 1_u64..20, groups in groups(), lates in prop::collection::vec((0..10 * MS, 0..10 * MS), 0..40),
        policy in prop_oneof![Just("block"), Just("drop-newest"), Just("drop-oldest")], capacity in 1_u64..20,
    ) {
        let args = format!("-r {n}/s -c {capacity} -o {policy} --catch-up 20ms");
        let turn = |(late, writing): &(u64, u64)| Turn { late: *late, writing: *writing, ..PROMPT };
        let turns: Vec<Turn> = lates.iter().map(turn).collect();
        let prompt = World::run(&args, &plain(&groups), &[], &[]);
        let late = World::run(&args, &plain(&groups), &turns, &[]);
        prop_assert_eq!(prompt.fates(&args), late.fates(&args));
        prop_assert_eq!(late.bucket.accounts().forgiven, 0);
    }

    /// 4.1, 4.3, 4.4 against a model that knows nothing of the bucket's: exact fractions, one item at a time.
    #[test]
    fn admission_and_schedule_are_those_of_a_model(
        (n, p, rate) in rate(), groups in groups(), capacity in 1_u64..20,
        policy in prop_oneof![Just("block"), Just("drop-newest"), Just("drop-oldest")],
    ) {
        let args = format!("-r {rate} -c {capacity} -o {policy}");
        let world = World::run(&args, &plain(&groups), &[], &[]);
        let model = model(n, p, capacity, policy, &singles(&groups));
        let fates: Vec<Option<u64>> = world.fates(&args).into_iter().map(Result::ok).collect();
        prop_assert_eq!(&fates, &model, "{}", args);
        let ends: Vec<u64> = model.into_iter().flatten().collect();
        prop_assert_eq!(world.end_times(), ends);
    }

    /// The same with costs: an item of cost k takes k slots, and one dearer than the capacity needs level 0.
    #[test]
    fn costs_are_those_of_a_model(
        (n, p, rate) in rate(), items in prop::collection::vec((0..900 * MS, 0_u64..9), 1..30), capacity in 1_u64..12,
    ) {
        let args = format!("-r {} --cost field:1 -c {capacity} -o drop", rate.replace('/', "cost/"));
        let mut at = 0;
        let arrivals: Vec<(u64, u64)> = items.iter().map(|(gap, cost)| { at += gap; (at, *cost) }).collect();
        let texts: Vec<(u64, Vec<u8>)> = arrivals.iter().map(|(at, cost)| (*at, format!("{cost}\n").into_bytes())).collect();
        let world = World::run(&args, &texts, &[], &[]);
        // In ticks of 1/n ns: when all that was admitted is paid for.
        let (n, p) = (u128::from(n), u128::from(p));
        let mut paid = 0;
        let model: Vec<Option<u64>> = arrivals.iter().map(|(at, cost)| {
            let (at, cost) = (u128::from(*at) * n, u128::from(*cost));
            let room = paid.max(at) + cost * p <= at + u128::from(capacity) * p || paid <= at;
            room.then(|| {
                let due = paid.max(at);
                paid = due + cost * p;
                due.div_ceil(n) as u64
            })
        }).collect();
        let fates: Vec<Option<u64>> = world.fates(&args).into_iter().map(Result::ok).collect();
        prop_assert_eq!(fates, model, "{}: {:?}", args, arrivals);
    }
}

/// When each item leaves, if it does. In ticks of 1/n ns, in which T is p.
fn model(n: u64, p: u64, capacity: u64, policy: &str, arrivals: &[u64]) -> Vec<Option<u64>> {
    let (n, p) = (u128::from(n), u128::from(p));
    let mut fates = vec![None; arrivals.len()];
    let mut waiting: std::collections::VecDeque<(usize, u128)> = std::collections::VecDeque::new();
    let mut slot = 0_u128;
    let leave =
        |waiting: &mut std::collections::VecDeque<(usize, u128)>, slot: &mut u128, until: u128, fates: &mut [_]| {
            while let Some((item, admitted)) = waiting.front().copied().filter(|(_, at)| (*at).max(*slot) <= until) {
                waiting.pop_front();
                let due: u128 = admitted.max(*slot);
                fates[item] = Some(due.div_ceil(n) as u64);
                *slot = due + p;
            }
        };
    for (item, at) in arrivals.iter().enumerate() {
        let at = u128::from(*at) * n;
        leave(&mut waiting, &mut slot, at, &mut fates);
        let fits =
            |waiting: usize, slot: u128| waiting as u128 * p + slot.saturating_sub(at) + p <= u128::from(capacity) * p;
        let admitted = policy == "block" || fits(waiting.len(), slot) || {
            let evicts = policy == "drop-oldest" && !waiting.is_empty() && fits(0, slot);
            while evicts && !fits(waiting.len(), slot) {
                waiting.pop_front();
            }
            evicts
        };
        if admitted {
            waiting.push_back((item, at));
            leave(&mut waiting, &mut slot, at, &mut fates);
        }
    }
    leave(&mut waiting, &mut slot, u128::MAX, &mut fates);
    fates
}

// ---- For ever ----

#[test]
fn after_ten_years_or_10_to_the_12_items_no_slot_is_off_by_a_nanosecond() {
    const TEN_YEARS: u128 = 10 * 365 * 86_400 * 1_000_000_000;
    let weight = Weight { len: 1, cost: 1 };
    for rate in [
        "1/1000000s",
        "0.001/s",
        "0.1/s",
        "1/90s",
        "1/s",
        "3/s",
        "7/13h",
        "6/m",
        "997/s",
        "44100/s",
        "150000/s",
        "1000003/s",
        "999999937/s",
        "1G/s",
    ] {
        let config = config(&format!("-r {rate}"));
        let (n, p) = (u128::from(config.rates[0].n()), u128::from(config.rates[0].p()));
        let pacer = &config.bucket.pacer;
        let mut state = pacer.fresh();
        let mut item = 0_u128;
        let mut step = 1;
        loop {
            let due = pacer.due(&state, 0, weight).expect("a slot");
            let exact = (item * p).div_ceil(n);
            assert_eq!(u128::from(pacer.ceil_ns(due)), exact, "{rate}: item {item}");
            if item >= 1_000_000_000_000 || exact >= TEN_YEARS {
                break;
            }
            // One by one, then in strides that share no factor with anything.
            step = if item < 1000 { 1 } else { step * 3 + 1 };
            let left = pacer.leave(&mut state, due, weight, step, u128::MAX);
            assert_eq!(left.count, step);
            item += u128::from(left.count);
        }
        assert!(item >= 300, "{rate}: {item}");
    }
}

#[test]
fn three_a_second_are_three_in_every_second() {
    let args = "-r 3/s";
    let world = World::run(args, &plain(&[(0, 200), (0, 200)]), &[], &[]);
    for (item, at) in (0_u64..).zip(world.end_times()) {
        assert_eq!(at, (item * 1_000_000_000).div_ceil(3));
    }
}

#[test]
fn an_odd_rate_of_bits_is_not_rounded() {
    let config = config("-r 9000900bit/s");
    let leaky::frame::Framing::Chunks(size) = config.intake.framing else { panic!("chunks") };
    let weight = Weight { len: size as u64, cost: 1 };
    let pacer = &config.bucket.pacer;
    let mut state = pacer.fresh();
    let mut bytes = 0;
    loop {
        let due = pacer.due(&state, 0, weight).expect("a slot");
        if pacer.ceil_ns(due) >= 60_000_000_000 {
            break;
        }
        bytes += weight.len;
        pacer.leave(&mut state, due, weight, 1, due);
    }
    let exact = 9_000_900.0 / 8.0 * 60.0;
    let error = (bytes as f64 - exact) / exact;
    // One chunk of 10 ms is 0.017 % of a minute, and the last one is under way.
    assert!((0.0..0.0002).contains(&error), "{bytes} bytes, {:.4} % off", error * 100.0);
    let chunks = bytes / weight.len;
    let due = pacer.ceil_ns(pacer.due(&state, 0, weight).unwrap());
    assert_eq!(u128::from(due), (u128::from(chunks * weight.len) * 8 * 1_000_000_000).div_ceil(9_000_900));
}

#[test]
fn two_rates_that_share_no_tick_stay_exact() {
    let config = config("-r 7/s -r 1000/143s");
    let pacer = &config.bucket.pacer;
    let weight = Weight { len: 1, cost: 1 };
    let mut state = pacer.fresh();
    for item in 0..100_000_u128 {
        let due = pacer.due(&state, 0, weight).unwrap();
        assert_eq!(u128::from(pacer.ceil_ns(due)), item * 143_000_000, "item {item}");
        pacer.leave(&mut state, due, weight, 1, due);
    }
}

#[test]
fn many_items_in_one_slot_are_counted_one_by_one() {
    let world = World::run("-r 2/s -c 20 -o drop", &plain(&[(0, 200)]), &[], &[]);
    assert_eq!(world.ends.len(), 20);
    let world = World::run("-r 2/s -c 20 -o drop-oldest", &plain(&[(0, 200)]), &[], &[]);
    let kept: Vec<String> = world.ends.iter().map(|(item, _)| String::from_utf8_lossy(item).trim().into()).collect();
    assert_eq!(kept, [1].into_iter().chain(182..=200).map(|n: u64| n.to_string()).collect::<Vec<_>>());
}
