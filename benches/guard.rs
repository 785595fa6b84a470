//! Guards what an item costs: instructions, counted by callgrind, and allocations, of fixed runs on a virtual clock. Both
//! are the same from run to run on a machine however busy, so what is committed in `guard.txt` can be compared with.
//!
//!     cargo bench --profile guard --no-default-features --bench guard             compares
//!     cargo bench --profile guard --no-default-features --bench guard -- bless    writes guard.txt anew
//!
//! A processor with other vector instructions, or another compiler, may need its own numbers: bless them then.

use allocation_counter::measure;
use clap::Parser;
use leaky::bucket::Bucket;
use leaky::cli::Cli;
use leaky::config::Config;
use leaky::fd::MOST_SLICES;
use leaky::intake::Intake;
use leaky::run::Slice;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io};

/// One fixed run: its name, the options, what is read again and again, and how often each block comes, in nanoseconds.
struct Fixed {
    name: &'static str,
    options: &'static str,
    input: Input,
    every: u64,
}

#[derive(Clone, Copy)]
enum Input {
    /// Lines of 100 bytes, 655 to a block of 64 KiB.
    Lines,
    /// Log lines of as many addresses.
    Addresses(usize),
    /// JSON with a number of tokens.
    Json,
    /// 64 KiB of bytes that are read.
    Bytes,
    /// And of such as pass by.
    Passing,
}

const MS: u64 = 1_000_000;

const RUNS: [Fixed; 13] = [
    Fixed { name: "unlimited", options: "-r unlimited", input: Input::Lines, every: MS },
    Fixed { name: "a million a second", options: "-r 1M/s", input: Input::Lines, every: MS },
    Fixed { name: "bytes of lines", options: "-l -r 1GiB/s", input: Input::Lines, every: MS },
    Fixed { name: "dropping", options: "-r 1k/s -o drop", input: Input::Lines, every: MS },
    Fixed { name: "dropping the oldest", options: "-r 1k/s -o drop-oldest", input: Input::Lines, every: MS },
    Fixed {
        name: "the oldest of many",
        options: "-l -r 100KiB/s -c 20k -o drop-oldest",
        input: Input::Lines,
        every: MS,
    },
    Fixed { name: "token bucket", options: "-r 1M/s -b 1000", input: Input::Lines, every: MS },
    Fixed { name: "fixed window", options: "-r 100k/100ms -a fixed-window", input: Input::Lines, every: MS },
    Fixed { name: "sliding window", options: "-r 100k/100ms -a sliding-window", input: Input::Lines, every: MS },
    Fixed { name: "keys", options: "-r 1/s -k field:1 -o drop -c 5", input: Input::Addresses(1000), every: MS },
    Fixed { name: "cost out of JSON", options: "-r 1Gcost/s --cost json:/tokens", input: Input::Json, every: MS },
    Fixed { name: "bytes", options: "-r 1GiB/s", input: Input::Bytes, every: MS },
    Fixed { name: "bytes passing", options: "-r 1GiB/s", input: Input::Passing, every: MS },
];

/// Blocks before anything is counted, and while it is.
const WARM_UP: usize = 50;
const COUNTED: usize = 50;
/// By how much an item may cost more than what is committed, in percent.
const MARGIN: f64 = 10.0;

fn main() -> ExitCode {
    let mut words = env::args().skip(1).filter(|word| word != "--bench");
    match (words.next().as_deref(), words.next(), words.next()) {
        (Some("run"), Some(name), Some(blocks)) => {
            let fixed = RUNS.iter().find(|fixed| fixed.name == name).expect("a run of that name");
            World::new(fixed).pass(blocks.parse().expect("how many blocks"));
            ExitCode::SUCCESS
        }
        (Some("bless"), ..) => guard(true),
        _ => guard(false),
    }
}

fn guard(bless: bool) -> ExitCode {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/guard.txt");
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let counts = callgrind("unlimited", 0).is_some();
    if !counts {
        println!("valgrind is not installed (Debian: valgrind): instructions are not counted");
        if env::var_os("CI").is_some() {
            return ExitCode::FAILURE;
        }
    }
    let mut text = String::from("# instructions and allocations for each item\n");
    let mut failed = false;
    println!("{:<22}{:>14}{:>14}{:>14}{:>14}", "", "instructions", "committed", "allocations", "committed");
    for fixed in &RUNS {
        let mut world = World::new(fixed);
        world.pass(WARM_UP);
        let before = world.items();
        let allocations = measure(|| world.pass(COUNTED)).count_total;
        let items = (world.items() - before) as f64;
        let each = |count: u64| count as f64 / items;
        let instructions = counts.then(|| {
            let [warm, all] = [WARM_UP, WARM_UP + COUNTED].map(|blocks| callgrind(fixed.name, blocks).unwrap_or(0));
            each(all - warm)
        });
        let now = (instructions.unwrap_or(0.0), each(allocations));
        let then = find(&committed, fixed.name);
        println!("{:<22}{:>14.3}{:>14.3}{:>14.4}{:>14.4}", fixed.name, now.0, then.0, now.1, then.1);
        let _ = writeln!(text, "{}: {:.3} {:.4}", fixed.name, now.0, now.1);
        // A thousandth of an allocation for each item is one for a whole block of them.
        if counts && now.0 > then.0 * (1.0 + MARGIN / 100.0) || now.1 > then.1 + 0.001 {
            println!("    more than is committed in {}", path.display());
            failed = true;
        } else if counts && now.0 < then.0 * (1.0 - MARGIN / 100.0) {
            println!("    much less than is committed: bless it");
        }
    }
    if bless {
        return match fs::write(&path, text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("could not write {}: {error}", path.display());
                ExitCode::FAILURE
            }
        };
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What is committed for the run of that name.
fn find(committed: &str, name: &str) -> (f64, f64) {
    let mut lines = committed.lines().filter_map(|line| line.split_once(": "));
    let numbers = lines.find_map(|(of, numbers)| (of == name).then_some(numbers)).unwrap_or_default();
    let mut numbers = numbers.split(' ').map(|number| number.parse().unwrap_or(0.0));
    (numbers.next().unwrap_or(0.0), numbers.next().unwrap_or(0.0))
}

/// Instructions of a whole run; `None` without valgrind.
fn callgrind(name: &str, blocks: usize) -> Option<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(env::current_exe().ok()?);
    command.args(["run", name, &blocks.to_string()]).stdout(Stdio::null());
    let said = match command.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        said => said.expect("valgrind"),
    };
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    Some(collected.unwrap_or_else(|| panic!("{said}")).1.trim().parse().expect("a number"))
}

/// A run without threads and without a clock: what the reader and the leaker do with one block after the other.
struct World {
    bucket: Bucket,
    intake: Intake,
    input: Vec<u8>,
    passing: bool,
    every: u64,
    now: u64,
    spare: Vec<Vec<u8>>,
}

impl World {
    fn new(fixed: &Fixed) -> World {
        let words = ["leaky"].into_iter().chain(fixed.options.split(' '));
        let config = Config::try_from(Cli::try_parse_from(words).expect("options")).expect("options");
        World {
            bucket: Bucket::new(config.bucket, false),
            intake: Intake::new(config.intake, 0),
            input: fixed.input.block(),
            passing: matches!(fixed.input, Input::Passing),
            every: fixed.every,
            now: 0,
            spare: Vec::new(),
        }
    }

    /// Whatever has been read; without framing that is blocks.
    fn items(&self) -> u64 {
        let read = self.bucket.accounts();
        if read.read == read.bytes_read { read.read / (64 << 10) } else { read.read }
    }

    fn pass(&mut self, blocks: usize) {
        let (mut arrivals, mut slices) = (Vec::with_capacity(1024), Vec::with_capacity(MOST_SLICES));
        for _ in 0..blocks {
            self.now += self.every;
            if self.passing {
                self.intake.pass(self.input.len(), self.now, &mut arrivals);
            } else {
                let mut block = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(64 << 10));
                block.extend_from_slice(&self.input);
                self.intake.take(&mut block, false, self.now, &mut arrivals);
            }
            for arrival in arrivals.drain(..) {
                self.bucket.arrive(self.now, arrival);
            }
            loop {
                self.bucket.leaving(&mut slices, MOST_SLICES);
                if slices.is_empty() {
                    break;
                }
                let written = slices.iter().map(Slice::len).sum();
                self.bucket.wrote(written, self.now, |_, _, _| {});
                for slice in slices.drain(..) {
                    if let Some(mut block) = slice.into_block() {
                        block.clear();
                        self.spare.push(block);
                    }
                }
            }
        }
    }
}

impl Input {
    fn block(self) -> Vec<u8> {
        const LINES: usize = (64 << 10) / 100;
        let lines = |line: &dyn Fn(usize) -> String| (0..LINES).map(line).collect::<String>().into_bytes();
        match self {
            Input::Lines => lines(&|i| format!("{i:<99}\n")),
            Input::Addresses(count) => {
                lines(&|i| format!("10.0.{}.{} {:<85}\n", i * 7 % count / 256, i * 7 % count % 256, "GET / 200"))
            }
            Input::Json => lines(&|i| format!("{{\"model\":\"m\",\"tokens\":{i},\"text\":{:>60}}}\n", "\"words\"")),
            Input::Bytes | Input::Passing => vec![b'x'; 64 << 10],
        }
    }
}
