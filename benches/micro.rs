//! `cargo bench --bench micro`: what the rooms of the data path cost, each for itself, per item.
//!
//! Threads, pipes and clocks are left out; `compare` has them in.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use leaky::bucket::{self, Arrival, Bucket, Overflow, Part};
use leaky::frame::{Framer, Framing};
use leaky::pacer::{Algorithm, Align, Pacer};
use leaky::rate::{Rate, Unit};
use leaky::run::{Layout, Run, Slice, Weight};
use leaky::select::Selector;
use std::num::NonZeroU64;

fn main() {
    divan::main();
}

const SECOND: u64 = 1_000_000_000;
const ONE: Weight = Weight { len: 100, cost: 1 };

/// Lines of 100 bytes.
fn lines(count: usize) -> Vec<u8> {
    let mut line = vec![b'x'; 99];
    line.push(b'\n');
    line.repeat(count)
}

fn rate(n: u64) -> Rate {
    Rate::new(n, SECOND, Unit::Items).expect("a rate")
}

/// From bytes to items: blocks of 64 KiB are cut into pieces.
mod frame {
    use super::*;

    fn cut(bencher: Bencher, framing: &Framing, singly: bool, block: &[u8]) {
        let items = framing.layout().count(block).0;
        bencher.counter(ItemsCount::new(items)).counter(BytesCount::new(block.len())).bench_local(|| {
            let mut framer = Framer::new(framing.clone(), singly);
            let mut at = 0;
            while let Some(piece) = framer.next(black_box(&block[at..]), false) {
                at += piece.len;
            }
            at
        });
    }

    /// Runs of lines, counted only.
    #[divan::bench(args = [10, 100, 1000])]
    fn lines_together(bencher: Bencher, length: usize) {
        let line = [vec![b'x'; length - 1], vec![b'\n']].concat();
        cut(bencher, &Framing::Delimited(b"\n".to_vec()), false, &line.repeat((64 << 10) / length));
    }

    /// Line by line, as costs and keys need them.
    #[divan::bench(args = [10, 100, 1000])]
    fn lines_singly(bencher: Bencher, length: usize) {
        let line = [vec![b'x'; length - 1], vec![b'\n']].concat();
        cut(bencher, &Framing::Delimited(b"\n".to_vec()), true, &line.repeat((64 << 10) / length));
    }

    #[divan::bench]
    fn delimiter_of_two_bytes(bencher: Bencher) {
        cut(bencher, &Framing::Delimited(b"x\n".to_vec()), false, &lines(655));
    }

    #[divan::bench]
    fn records(bencher: Bencher) {
        cut(bencher, &Framing::Records(100), true, &lines(655));
    }

    #[divan::bench]
    fn chunks(bencher: Bencher) {
        cut(bencher, &Framing::Chunks(1000), true, &lines(655));
    }
}

/// Runs: where the k-th item ends.
mod run {
    use super::*;

    /// What leaves in a millisecond at 100k/s is split off its run.
    #[divan::bench]
    fn split_100_of_655(bencher: Bencher) {
        let (slice, layout) = (Slice::new(lines(655)), Layout::Byte(b'\n'));
        let whole = Run { slice, count: 655, weight: ONE, number: 1, arrival: 0 };
        bencher.counter(ItemsCount::new(100u32)).bench_local(|| black_box(whole.clone()).split_to(100, &layout));
    }
}

/// When the next item may leave, and that it does.
mod pacer {
    use super::*;

    const ITEMS: u64 = 1000;

    fn pace(bencher: Bencher, rates: &[Rate], algorithm: &Algorithm) {
        let pacer = Pacer::new(rates, algorithm).expect("a pacer");
        bencher.counter(ItemsCount::new(ITEMS)).bench_local(|| {
            let mut state = pacer.fresh();
            let mut at = 0;
            for _ in 0..ITEMS {
                let due = pacer.due(&state, at, ONE).expect("not paused");
                at = pacer.leave(&mut state, due, ONE, 1, due).due;
                pacer.ended(&mut state, at, pacer.ceil_ns(at), ONE, 1);
            }
            at
        });
    }

    #[divan::bench]
    fn leaky_bucket(bencher: Bencher) {
        pace(bencher, &[rate(1000)], &Algorithm::LeakyBucket);
    }

    /// All that is due at once: arithmetic for one item serves them all.
    #[divan::bench]
    fn leaky_bucket_together(bencher: Bencher) {
        let pacer = Pacer::new(&[rate(1000)], &Algorithm::LeakyBucket).expect("a pacer");
        let until = pacer.ticks(SECOND);
        bencher.counter(ItemsCount::new(ITEMS)).bench_local(|| {
            let mut state = pacer.fresh();
            pacer.leave(&mut state, 0, ONE, ITEMS, black_box(until))
        });
    }

    #[divan::bench]
    fn two_rates(bencher: Bencher) {
        pace(bencher, &[rate(1000), rate(7)], &Algorithm::LeakyBucket);
    }

    #[divan::bench]
    fn token_bucket(bencher: Bencher) {
        pace(bencher, &[rate(1000)], &Algorithm::TokenBucket { bursts: vec![100] });
    }

    #[divan::bench]
    fn fixed_window(bencher: Bencher) {
        pace(bencher, &[rate(100)], &Algorithm::FixedWindow(Align::First));
    }

    #[divan::bench(args = [100, 10_000])]
    fn sliding_window(bencher: Bencher, n: u64) {
        pace(bencher, &[rate(n)], &Algorithm::SlidingWindow);
    }

    #[divan::bench]
    fn warm_up(bencher: Bencher) {
        let duration = NonZeroU64::new(10 * SECOND).expect("not zero");
        pace(bencher, &[rate(1000)], &Algorithm::WarmUp { duration });
    }
}

/// Who gets in, who waits, who leaves: the bucket from arrival to departure, without I/O.
mod admission {
    use super::*;

    const ITEMS: u64 = 10_000;

    fn config(capacity: u64, overflow: Overflow, keyed: bool) -> bucket::Config {
        bucket::Config {
            pacer: Pacer::new(&[rate(1000)], &Algorithm::LeakyBucket).expect("a pacer"),
            catch_up: 0,
            capacity,
            capacity_unit: Unit::Items,
            overflow,
            timeout: None,
            max_age: None,
            max_held: 64 << 20,
            layout: Layout::Byte(b'\n'),
            max_keys: keyed.then_some(1_000_000),
            count_bytes: false,
            replays: false,
            trace: false,
            shared: None,
        }
    }

    /// `ITEMS` lines, so many to a run, with so many keys.
    fn arrivals(each: u64, keys: Option<u64>) -> Vec<Arrival> {
        let slice = Slice::new(lines(each as usize));
        let arrival = |i: u64| Arrival {
            run: Run { slice: slice.clone(), count: each, weight: ONE, number: i * each + 1, arrival: 0 },
            part: Part::Whole,
            key: keys.map(|keys| (i % keys).to_string().as_bytes().into()),
            recorded: None,
        };
        (0..ITEMS / each).map(arrival).collect()
    }

    /// Lets all arrive at once, and then everything happen that still will.
    fn pass(mut bucket: Bucket, arrivals: Vec<Arrival>) -> Bucket {
        let mut slices = Vec::new();
        let mut write = |bucket: &mut Bucket, now| {
            slices.clear();
            bucket.leaving(&mut slices, usize::MAX);
            bucket.wrote(slices.iter().map(Slice::len).sum(), now, |_, _, _| {});
        };
        for arrival in arrivals {
            bucket.arrive(0, arrival);
            write(&mut bucket, 0);
        }
        while let Some(next) = bucket.next_event() {
            bucket.advance(next);
            write(&mut bucket, next);
        }
        bucket
    }

    fn admit(bencher: Bencher, config: &bucket::Config, each: u64, keys: Option<u64>) {
        let input = || (Bucket::new(config.clone(), false), arrivals(each, keys));
        bencher
            .counter(ItemsCount::new(ITEMS))
            .with_inputs(input)
            .bench_local_values(|(bucket, arrivals)| pass(bucket, arrivals));
    }

    /// One wake-up an item: what a slow rate asks for.
    #[divan::bench(args = [1, 100])]
    fn block(bencher: Bencher, each: u64) {
        admit(bencher, &config(1024, Overflow::Block, false), each, None);
    }

    #[divan::bench(args = [1, 100])]
    fn drop_newest(bencher: Bencher, each: u64) {
        admit(bencher, &config(10, Overflow::DropNewest, false), each, None);
    }

    /// Every arrival evicts another one: whatever the capacity, at the same cost.
    #[divan::bench(args = [10, 1000, 5000])]
    fn drop_oldest(bencher: Bencher, capacity: u64) {
        admit(bencher, &config(capacity, Overflow::DropOldest, false), 1, None);
    }

    #[divan::bench(args = [1, 100, 10_000])]
    fn keys(bencher: Bencher, keys: u64) {
        admit(bencher, &config(ITEMS, Overflow::DropNewest, true), 1, Some(keys));
    }
}

/// What is read out of an item.
mod select {
    use super::*;

    const ITEM: &[u8] = br#"198.51.100.4 - - [10/Oct/2026:13:55:36 +0000] "GET /api/items?id=7 HTTP/1.1" 200 2326"#;
    const JSON: &[u8] =
        br#"{"model":"large","messages":[{"role":"user","content":"How long is a line?"}],"tokens":1234}"#;

    fn find(bencher: Bencher, selector: &str, item: &[u8]) {
        let selector = Selector::parse(selector, None).expect("a selector");
        assert!(selector.find(item).is_some());
        let bencher = bencher.counter(ItemsCount::new(1u32)).counter(BytesCount::new(item.len()));
        bencher.bench_local(|| selector.find(black_box(item)).map(|found| found.len()));
    }

    #[divan::bench(args = ["field:1", "field:7", r"regex:\[(.*?)\]", r"regex:\b\d{3}\b"])]
    fn line(bencher: Bencher, selector: &str) {
        find(bencher, selector, ITEM);
    }

    #[divan::bench(args = ["json:/tokens", "json:/messages/0/role"])]
    fn json(bencher: Bencher, selector: &str) {
        find(bencher, selector, JSON);
    }
}
