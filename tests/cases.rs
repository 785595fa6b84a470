//! What other limiters' tests, documents and issues say about admission and departures, through the binary.

use crate::harness::{Outcome, leaky, shared};
use serde_json::Value;
use std::fmt::Write;

/// One of what stands beside the project, or of our own.
#[track_caller]
fn case(case: &Value) {
    let id = case["id"].as_str().expect("an id");
    let items = case["items"].as_array().expect("items");
    let args: Vec<&str> = case["args"].as_array().expect("args").iter().map(|arg| arg.as_str().unwrap()).collect();
    let costs = items.iter().any(|item| !item["cost"].is_null());
    let mut input = String::new();
    for item in items {
        let at = item["at_ns"].as_u64().expect("at_ns");
        let cost = item["cost"].as_u64().unwrap_or(1);
        let key = item["key"].as_str().unwrap_or("-");
        writeln!(input, "{}.{:09} {cost} {key}", at / 1_000_000_000, at % 1_000_000_000).unwrap();
    }
    let cost = if costs { "--cost field:2" } else { "" };
    let line = format!("--simulate --replay field:1 {cost} {}", args.join(" "));
    let outcome = leaky(&line).stdin(input).run();
    outcome.exits(0);
    let told = told(&outcome);
    let check = |holds: bool, why: &str| {
        outcome.check(holds, &format!("{id}: {why}"));
    };
    check(told.len() == items.len(), "as many outcomes as items");
    for (i, (told, item)) in told.iter().zip(items).enumerate() {
        check(told["item"] == i as u64 + 1, "items are told of in the order of the input");
        check(told["arrival_ns"] == item["at_ns"], "an item arrives when it was recorded");
        check(told["cost"].as_u64() == item["cost"].as_u64().or(Some(1)), "its cost is what it costs");
        check(told["key"] == if line.contains("--key") { item["key"].clone() } else { Value::Null }, "its key");
    }
    let tolerance = case["tolerance_ns"].as_u64().unwrap_or(0);
    let close = |a: &Value, b: &Value| match (a.as_u64(), b.as_u64()) {
        (Some(a), Some(b)) => a.abs_diff(b) <= tolerance,
        (a, b) => a == b,
    };
    if let Some(outcomes) = case["outcomes"].as_array() {
        let got: Vec<&Value> = told.iter().map(|told| &told["outcome"]).collect();
        check(got == outcomes.iter().collect::<Vec<_>>(), &format!("outcomes should be {outcomes:?}, are {got:?}"));
    }
    let departures: Vec<&Value> = told.iter().map(|told| &told["departure_ns"]).collect();
    if let Some(wanted) = case["departures"].as_array() {
        let equal = departures.len() == wanted.len() && departures.iter().zip(wanted).all(|(a, b)| close(a, b));
        check(equal, &format!("departures should be {wanted:?}, are {departures:?}"));
    }
    let emitted: Vec<&Value> = departures.into_iter().filter(|departure| !departure.is_null()).collect();
    if let Some(count) = case["count"].as_u64() {
        check(emitted.len() as u64 == count, &format!("{count} should be emitted, {} are", emitted.len()));
    }
    if !case["last"].is_null() {
        let last = emitted.iter().max_by_key(|departure| departure.as_u64()).expect("a departure");
        check(close(last, &case["last"]), &format!("the last should leave at {}, leaves at {last}", case["last"]));
    }
}

/// What `--simulate` tells, a line each.
#[track_caller]
pub fn told(outcome: &Outcome) -> Vec<Value> {
    let parse = |line: &&str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{}", outcome.explain(line)));
    outcome.lines().iter().map(parse).collect()
}

#[test]
fn all_cases_that_stand_beside_the_project() {
    let Some(cases) = shared("cases.jsonl") else { return };
    let mut count = 0;
    for line in cases.lines().filter(|line| !line.is_empty()) {
        case(&serde_json::from_str(line).expect("a case"));
        count += 1;
    }
    assert!(count >= 57, "{count} cases");
}

/// A few of them, so that the project also tests alone.
#[test]
fn cases_of_our_own() {
    for line in include_str!("cases.jsonl").lines() {
        case(&serde_json::from_str(line).expect("a case"));
    }
}
