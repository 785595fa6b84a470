//! The rules of `--shared`, and of the gate that comes with it.

use super::{Complaint, duration, given, wrong};
use crate::bucket::Overflow;
use crate::cli::Cli;
use crate::pacer::Algorithm;
use crate::rate::{Amount, Asked, Rate, Unit};
use crate::shared::ledger::OnOutage;
use crate::shared::reservation::Terms;
use crate::shared::{self, Environment, PASSWORD_VARIABLE};
use crate::{gate, rate};
use std::env;

/// Where the bucket is shared, if it is.
pub(super) fn shared(cli: &Cli, rates: &[Rate], algorithm: &Algorithm) -> Result<Option<shared::Config>, Complaint> {
    let Some(place) = cli.shared.clone() else {
        if let Some(text) = &cli.bucket {
            return wrong(given("--bucket", text), "only a shared bucket has a name; say --shared URL too");
        }
        if let Some(text) = &cli.on_outage {
            return wrong(given("--on-outage", text), "only a shared bucket can be away; say --shared WHERE too");
        }
        return Ok(None);
    };
    let shown = place.to_string_lossy();
    let url = place.to_str().is_some_and(shared::is_url);
    let rate = match rates {
        _ if cli.rates.iter().any(|text| text.starts_with('@')) => {
            return wrong("--rate @FILE", "all who share a bucket keep one rate; say the rate itself");
        }
        [] => return wrong("--rate", "a shared bucket has a limit; say --rate 2/s, 300/min or 10MiB/s"),
        [rate] => rate,
        _ => return wrong("--rate --rate", "a shared bucket has one rate; leave the others out"),
    };
    if cli.simulate {
        return wrong("--simulate", "what others will do cannot be simulated; leave --shared out");
    }
    let burst = match algorithm {
        Algorithm::LeakyBucket => 1,
        Algorithm::TokenBucket { bursts } => bursts.first().copied().unwrap_or(1),
        Algorithm::WarmUp { .. } => {
            let text = cli.warm_up.as_deref().unwrap_or_default();
            return wrong(given("--warm-up", text), "a shared bucket does not warm up; leave it out");
        }
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindow => {
            let text = cli.algorithm.as_deref().unwrap_or_default();
            return wrong(given("--algorithm", text), "only leaky-bucket and token-bucket can be shared");
        }
    };
    if shown.is_empty() {
        return wrong("--shared ''", "say where: a name, a path or a URL such as redis://localhost");
    }
    if !url && shown.contains(':') && !shown.contains('/') {
        let why = format!("say redis://{shown} for a server, or ./{shown} for a state file of that name");
        return wrong(given("--shared", &shown), why);
    }
    match (&cli.key, &cli.bucket) {
        (Some(text), _) if !url => {
            return wrong(given("--key", text), "a state file is one bucket; share over Redis for one for each key");
        }
        (_, Some(text)) if !url => {
            return wrong(given("--bucket", text), "a state file is one bucket; say another file with --shared");
        }
        _ if !url && cli.on_outage.is_some() => {
            let text = cli.on_outage.as_deref().unwrap_or_default();
            return wrong(given("--on-outage", text), "only a server can be away, a state file cannot; leave it out");
        }
        (_, Some(text)) if text.is_empty() => return wrong("--bucket ''", "say a name, or leave it out for default"),
        _ => {}
    }
    let terms = Terms::new(rate, burst).map_err(|why| Complaint(format!("--rate '{}': {why}", cli.rates[0])))?;
    let on_outage = match cli.on_outage.as_deref() {
        None | Some("block") => OnOutage::Block,
        Some("exit") => OnOutage::Exit,
        Some(text) => match text.strip_prefix("local=").map(str::parse) {
            Some(Ok(Asked::Per(own))) if own.unit() == rate.unit() => OnOutage::Local(
                Terms::new(&own, burst).map_err(|why| Complaint(format!("--on-outage '{text}': {why}")))?,
            ),
            Some(Ok(Asked::Per(_))) => return wrong(given("--on-outage", text), "it must count what --rate counts"),
            Some(Ok(Asked::Unlimited)) => {
                return wrong(
                    given("--on-outage", text),
                    "without a limit there is nothing to keep; say a rate such as local=1/s",
                );
            }
            Some(Err(why)) => return wrong(given("--on-outage", text), why as rate::RateError),
            None => return wrong(given("--on-outage", text), "there are block, exit and local=RATE"),
        },
    };
    let environment = Environment {
        state_home: env::var_os("XDG_STATE_HOME"),
        home: env::var_os("HOME"),
        password: env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty()),
    };
    let bucket = cli.bucket.clone().unwrap_or_else(|| "default".into());
    let shared = shared::Config { place, bucket, terms, on_outage, environment };
    if url {
        // Nothing is connected to yet: this only tells whether it can be understood.
        shared.open().map_err(|why| Complaint(why.to_string()))?;
    }
    Ok(Some(shared))
}

/// Refuses what a gate cannot use. To be asked before anything else is made of the options.
pub(super) fn fit_for_gate(cli: &Cli) -> Result<(), Complaint> {
    if cli.command.is_empty() {
        return Ok(());
    }
    if cli.shared.is_none() {
        let command = cli.command[0].to_string_lossy();
        return wrong(
            format!("-- {}", command.escape_debug()),
            "one turn is only worth waiting for if others take turns too; say --shared WHERE, such as --shared api",
        );
    }
    if let Some(text) = &cli.key {
        return wrong(given("--key", text), "a gate has no items to read a key out of; say --bucket NAME");
    }
    let useless = [
        (cli.lines, "--lines"),
        (cli.null, "--null"),
        (cli.delimiter.is_some(), "--delimiter"),
        (cli.record_size.is_some(), "--record-size"),
        (cli.bytes, "--bytes"),
        (cli.chunk.is_some(), "--chunk"),
        (cli.field_separator.is_some(), "--field-separator"),
        (cli.max_age.is_some(), "--max-age"),
        (cli.dropped.is_some(), "--dropped"),
        (cli.max_keys.is_some(), "--max-keys"),
        (cli.replay.is_some(), "--replay"),
        (cli.speed.is_some(), "--speed"),
        (cli.max_gap.is_some(), "--max-gap"),
        (cli.simulate, "--simulate"),
        (cli.lockstep, "--lockstep"),
        (cli.stats.is_some(), "--stats"),
        (cli.progress, "--progress"),
        (cli.metrics.is_some(), "--metrics"),
    ];
    match useless.iter().find(|(given, _)| *given) {
        Some((_, option)) => wrong(option, "a gate passes no items, it waits for one turn; leave it out"),
        None => Ok(()),
    }
}

/// The gate, if there is a command to become; `cost` is its `--cost`.
pub(super) fn gate(
    cli: &Cli,
    cost: Option<&str>,
    rate: &Rate,
    overflow: Overflow,
    catch_up: u64,
    shared: shared::Config,
) -> Result<gate::Config, Complaint> {
    let cost = match cost {
        Some(text) => match text.parse::<u64>() {
            Ok(cost) if cost > 0 => cost,
            _ => return wrong(given("--cost", text), "the cost of a turn is a whole number, 1 or more"),
        },
        None if matches!(rate.unit(), Unit::Bytes | Unit::Bits) => {
            let unit = if rate.unit() == Unit::Bits { "bits" } else { "bytes" };
            return wrong(given("--rate", &cli.rates[0]), format!("how many {unit} is a turn? Say --cost N too"));
        }
        None => 1,
    };
    let room = match (overflow, &cli.capacity) {
        (Overflow::DropOldest, _) => {
            return wrong("--overflow 'drop-oldest'", "nothing waits at a gate but itself; say drop or fail");
        }
        (Overflow::Block, Some(text)) => {
            return wrong(given("--capacity", text), "with block a gate waits however long; say --overflow drop too");
        }
        (Overflow::Block, None) => None,
        (_, None) => Some(1),
        (_, Some(text)) => Some(capacity(text, rate)?),
    };
    // Level and cost may come to the capacity, and to burst - 1 more; what is dearer needs level 0.
    let burst = shared.terms.burst();
    let wait =
        room.map(|room| shared.terms.pace.span_ns(room.saturating_sub(1).saturating_sub(cost - cost.min(burst))));
    let timeout = duration("--timeout", &cli.timeout)?.unwrap_or(0);
    Ok(gate::Config {
        command: cli.command.clone(),
        cost,
        max_wait: wait.map(|wait| wait.saturating_add(timeout)),
        catch_up,
        shared,
    })
}

fn capacity(text: &str, rate: &Rate) -> Result<u64, Complaint> {
    let no_bytes =
        || wrong(given("--capacity", text), "the rate does not count bytes; say a number, or a duration as in 5s");
    match super::amount("--capacity", text)? {
        Amount::Count(units) => Ok(units),
        Amount::Duration(ns) => Ok(rate.units_in(ns).max(1)),
        Amount::Size(bytes) => match rate.unit() {
            Unit::Bytes => Ok(bytes),
            Unit::Bits => Ok(bytes.saturating_mul(8)),
            Unit::Items | Unit::Cost => no_bytes(),
        },
    }
}
