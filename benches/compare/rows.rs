//! The rows: what each does with a tool, and what it reports.

use crate::figures::{above_ideal, deviation, lump, median, most_within, quantile, rate, rate_error};
use crate::meter::{Measured, Until, Work, measure, start_up};
use crate::sink::{Lines, Sink};
use crate::source::{Block, Source};
use crate::store;
use crate::tools::{ALL, Task, Tool, leaky};
use anyhow::Context;
use std::process::Command;

/// What a row reports.
#[derive(Clone, Debug)]
pub struct Measure {
    pub name: String,
    /// Whether a tool's figure divided by leaky's says something.
    pub ratio: bool,
}

/// What one run of a tool gave: a figure for each measure, and the CPU seconds of all that ran for it.
pub struct Sample {
    pub figures: Vec<f64>,
    pub cpu: f64,
}

/// A row.
pub struct Row {
    /// What it is chosen by and called.
    pub name: String,
    pub tools: Vec<Tool>,
    pub measures: Vec<Measure>,
    /// More runs would show the same.
    pub once: bool,
    pub run: Box<dyn Fn(Tool) -> anyhow::Result<Sample>>,
}

/// How long things take.
#[derive(Clone, Copy)]
pub struct Extent {
    pub quick: bool,
    pub long: bool,
}

impl Extent {
    fn pick<T>(self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// Lines are so long where their length is of no matter.
const LENGTH: usize = 100;
/// Nothing that ends by itself takes longer than this.
const PATIENCE: f64 = 120.0;

/// All rows, in the order of the table.
pub fn all(extent: Extent) -> Vec<Row> {
    let mut rows = Vec::new();
    smooth(&mut rows, extent);
    bytes(&mut rows, extent);
    unlimited(&mut rows, extent);
    stops(&mut rows, extent);
    small(&mut rows, extent);
    keys_and_stores(&mut rows, extent);
    costs(&mut rows, extent);
    rows
}

fn row(
    name: impl Into<String>,
    tools: &[Tool],
    measures: &[(&str, bool)],
    run: impl Fn(Tool) -> anyhow::Result<Sample> + 'static,
) -> Row {
    let measures = measures.iter().map(|(name, ratio)| Measure { name: (*name).into(), ratio: *ratio }).collect();
    Row { name: name.into(), tools: tools.to_vec(), measures, once: false, run: Box::new(run) }
}

fn asked(tool: Tool, task: Task) -> anyhow::Result<Command> {
    tool.command(task).context("it cannot be asked for this")
}

fn sample(measured: &Measured, figures: Vec<f64>) -> Sample {
    Sample { figures, cpu: measured.all_cpu }
}

fn pour() -> Source {
    Source::Lines { length: LENGTH, after: 0.0 }
}

/// Input that is there before the tool is, through default pipes.
fn work(source: Source, sink: Sink, until: Until) -> Work {
    Work { source, sink, pipe: None, stop: None, until }
}

fn smooth(rows: &mut Vec<Row>, extent: Extent) {
    let measures = [
        ("RMS deviation from the schedule, ms", true),
        ("mean rate error, %", false),
        ("most lines above the ideal in 10 ms", true),
        ("CPU, %", true),
    ];
    for (rate, name) in
        [(1, "1"), (10, "10"), (100, "100"), (1_000, "1k"), (10_000, "10k"), (100_000, "100k"), (1_000_000, "1M")]
    {
        // Nobody would start a process for each of so many.
        let fit = |tool: &Tool| match tool {
            Tool::Parallel => rate <= 100,
            Tool::Sleep => rate <= 1000,
            _ => tool.command(Task::Lines { rate, length: LENGTH }).is_some(),
        };
        let tools: Vec<Tool> = ALL.into_iter().filter(fit).collect();
        let time = match rate {
            1 => extent.pick(2.3, 4.3),
            10 => extent.pick(1.5, 4.2),
            _ => extent.pick(1.0, 4.2),
        };
        rows.push(row(format!("smooth {name}/s"), &tools, &measures, move |tool| {
            let command = asked(tool, Task::Lines { rate, length: LENGTH })?;
            let measured = measure(&work(pour(), Sink::lines(LENGTH), Until::Time(time)), command)?;
            let (arrivals, rate) = (&measured.report.arrivals, rate as f64);
            let figures = vec![
                deviation(arrivals, rate),
                rate_error(arrivals, rate),
                above_ideal(arrivals, rate),
                measured.cpu_percent(),
            ];
            Ok(sample(&measured, figures))
        }));
    }
}

fn bytes(rows: &mut Vec<Row>, extent: Extent) {
    let tools = [Tool::Leaky, Tool::Pv, Tool::Cstream, Tool::Mbuffer];
    let time = extent.pick(1.0, 2.7);
    let measures = [("largest lump, ms of the rate", true), ("mean rate error, %", false), ("CPU, %", true)];
    for (per_second, name) in [(10 << 10, "10 KiB/s"), (1 << 20, "1 MiB/s"), (100 << 20, "100 MiB/s")] {
        rows.push(row(format!("bytes {name}"), &tools, &measures, move |tool| {
            let command = asked(tool, Task::Bytes { rate: per_second })?;
            let source = Source::pour(Block::of(LENGTH));
            let measured = measure(&work(source, Sink::Bytes, Until::Time(time)), command)?;
            let (arrivals, wanted) = (&measured.report.arrivals, per_second as f64);
            let figures = vec![lump(arrivals, wanted), rate_error(arrivals, wanted), measured.cpu_percent()];
            Ok(sample(&measured, figures))
        }));
    }
    rows.push(row("bytes 1 GiB/s", &tools, &[("mean rate error, %", false), ("CPU, %", true)], move |tool| {
        let command = asked(tool, Task::Bytes { rate: 1 << 30 })?;
        let source = Source::pour(Block::of(LENGTH));
        let measured = measure(&work(source, Sink::Drain, Until::Time(time)), command)?;
        let error = rate_error(&measured.report.arrivals, (1u64 << 30) as f64);
        Ok(sample(&measured, vec![error, measured.cpu_percent()]))
    }));
}

/// What goes through without a limit in a second: GB/s, CPU seconds for a GB, and millions of lines.
fn flood(block: Block, command: Command, time: f64) -> anyhow::Result<Sample> {
    let measured = measure(&work(Source::pour(block), Sink::Drain, Until::Time(time)), command)?;
    let gigabytes = measured.report.arrivals.iter().map(|(_, bytes)| bytes).sum::<u64>() as f64 / 1e9;
    let gigabytes_per_second = rate(&measured.report.arrivals) / 1e9;
    let bytes_a_line = block.text().len() as f64 / block.lines as f64;
    let figures = vec![gigabytes_per_second, measured.cpu / gigabytes, gigabytes_per_second * 1e3 / bytes_a_line];
    Ok(sample(&measured, figures))
}

fn unlimited(rows: &mut Vec<Row>, extent: Extent) {
    let time = extent.pick(0.6, 1.5);
    let measures = [("GB/s", true), ("CPU s/GB", true), ("M lines/s", true)];
    let tools = [Tool::Leaky, Tool::Pv, Tool::Cat, Tool::Cstream, Tool::Mbuffer];
    rows.push(row("bytes unlimited", &tools, &measures[..2], move |tool| {
        let mut sample = flood(Block::of(LENGTH), asked(tool, Task::AllBytes)?, time)?;
        sample.figures.truncate(2);
        Ok(sample)
    }));
    let tools = [Tool::Leaky, Tool::Pv, Tool::Cat];
    for (name, block) in [
        ("10 B", Block::of(10)),
        ("100 B", Block::of(100)),
        ("1000 B", Block::of(1000)),
        ("30-500 B", Block { lines: 4000, length: (30, 500), keys: None }),
    ] {
        rows.push(row(format!("lines {name}"), &tools, &measures, move |tool| {
            flood(block, asked(tool, Task::AllLines)?, time)
        }));
    }
    for capacity in [10, 1024, 65_536] {
        rows.push(row(format!("lines capacity {capacity}"), &[Tool::Leaky, Tool::Cat], &measures, move |tool| {
            let command = match tool {
                Tool::Leaky => leaky(&format!("--rate unlimited --capacity {capacity}")),
                _ => asked(tool, Task::AllLines)?,
            };
            flood(Block::of(LENGTH), command, time)
        }));
    }
}

fn stops(rows: &mut Vec<Row>, extent: Extent) {
    let tools = [Tool::Leaky, Tool::Pv, Tool::Cstream, Tool::Parallel, Tool::Sleep];
    let (before, stopped) = (extent.pick(0.5, 2.0), 2.0);
    let until = Until::Time(before + stopped + 1.15);
    let measures = [("most lines in 1 s after it", true)];
    let task = |length| Task::Lines { rate: 100, length };
    let after = |measured: &Measured, resumed: u64| {
        let arrivals = &measured.report.arrivals;
        let from = arrivals.partition_point(|(at, _)| *at < resumed);
        sample(measured, vec![most_within(&arrivals[from..], 1.0) as f64])
    };
    rows.push(row("stop of 2 s at 100/s", &tools, &measures, move |tool| {
        let work = Work { stop: Some((before, stopped)), ..work(pour(), Sink::lines(LENGTH), until) };
        let measured = measure(&work, asked(tool, task(LENGTH))?)?;
        Ok(after(&measured, measured.resumed))
    }));
    // A pipe that holds one line hides nothing of a stalled reader.
    rows.push(row("stalled reader for 2 s at 100/s", &tools, &measures, move |tool| {
        let length = 4000;
        let sink = Sink::Lines(Lines { length, stall: Some((before, stopped)), ..Lines::default() });
        let work = Work { pipe: Some(4096), ..work(Source::Lines { length, after: 0.0 }, sink, until) };
        let measured = measure(&work, asked(tool, task(length))?)?;
        Ok(after(&measured, measured.report.resumed))
    }));
}

fn small(rows: &mut Vec<Row>, extent: Extent) {
    let tools = [Tool::Leaky, Tool::Pv, Tool::Cat, Tool::Cstream];
    let lines = |tool: Tool, rate| match tool {
        Tool::Cat => asked(tool, Task::AllLines),
        _ => asked(tool, Task::Lines { rate, length: LENGTH }),
    };
    let time = extent.pick(1.5, 10.0);
    let used = format!("CPU in {time} s, ms");
    let mut idle = row("idle", &tools, &[(&used, true)], move |tool| {
        let work = work(Source::Nothing, Sink::lines(LENGTH), Until::Time(time));
        let measured = measure(&work, lines(tool, 1)?)?;
        Ok(sample(&measured, vec![measured.cpu * 1e3]))
    });
    idle.once = true;
    rows.push(idle);
    let tools_with_rate = [Tool::Leaky, Tool::Pv, Tool::Cstream, Tool::Sleep];
    let mut slow = row("one line a second", &tools_with_rate, &[(&used, true)], move |tool| {
        let work = work(pour(), Sink::lines(LENGTH), Until::Time(time));
        let measured = measure(&work, lines(tool, 1)?)?;
        Ok(sample(&measured, vec![measured.cpu * 1e3]))
    });
    slow.once = true;
    rows.push(slow);

    rows.push(row("latency of a lone line", &tools, &[("p50, us", true), ("p99, us", true)], move |tool| {
        let source = Source::Stamped { length: LENGTH, per_second: 50.0 };
        let sink = Sink::Lines(Lines { length: LENGTH, stamped: true, ..Lines::default() });
        let measured = measure(&work(source, sink, Until::Time(extent.pick(1.5, 5.0))), lines(tool, 1000)?)?;
        let of = |share| quantile(measured.report.latencies.iter().map(|ns| *ns as f64 / 1e3), share);
        Ok(sample(&measured, vec![of(0.5), of(0.99)]))
    }));

    let starts = extent.pick(15, 50);
    let tools = [Tool::Leaky, Tool::Pv, Tool::Cat, Tool::Cstream, Tool::Mbuffer, Tool::Sleep];
    rows.push(row("start-up", &tools, &[("wall, ms", true), ("CPU, ms", true)], move |tool| {
        let task = if tool == Tool::Mbuffer { Task::AllBytes } else { Task::Lines { rate: 1000, length: LENGTH } };
        let task = if tool == Tool::Cat { Task::AllLines } else { task };
        let run = |_| start_up(asked(tool, task)?);
        let times = (0..starts).map(run).collect::<anyhow::Result<Vec<_>>>()?;
        let wall = median(times.iter().map(|time| time.0 * 1e3));
        let cpu = times.iter().map(|time| time.1).sum();
        Ok(Sample { figures: vec![wall, cpu / f64::from(starts) * 1e3], cpu })
    }));

    let tools = [Tool::Leaky, Tool::Pv, Tool::Cat, Tool::Cstream, Tool::Mbuffer];
    rows.push(row("resident memory", &tools, &[("MiB", true)], move |tool| {
        let command = match tool {
            Tool::Mbuffer => asked(tool, Task::AllBytes),
            _ => lines(tool, 10_000),
        };
        let measured = measure(&work(pour(), Sink::lines(LENGTH), Until::Time(0.7)), command?)?;
        Ok(sample(&measured, vec![measured.resident as f64 / f64::from(1 << 20)]))
    }));

    let tools = [Tool::Leaky, Tool::Pv, Tool::Cstream, Tool::Parallel, Tool::Sleep];
    let patience = extent.pick(2.5, 30.0);
    let measure_gone = format!("until it has left, ms (at most {patience} s)");
    let mut gone = row("reader gone at 1/s", &tools, &[("first line after, ms", true), (&measure_gone, true)], {
        move |tool| {
            let sink = Sink::Lines(Lines { length: LENGTH, most: Some(1), ..Lines::default() });
            let measured = measure(&work(pour(), sink, Until::ToolGone(patience)), lines(tool, 1)?)?;
            let left = measured.report.ended;
            let milliseconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
            Ok(sample(&measured, vec![milliseconds(measured.began, left), milliseconds(left, measured.ended)]))
        }
    });
    gone.once = true;
    rows.push(gone);
}

/// Seconds until a tool has done a block so many times, and the run.
fn all_of(block: Block, times: u64, command: Command) -> anyhow::Result<Measured> {
    measure(&work(Source::Block { block, times }, Sink::Drain, Until::End(PATIENCE)), command)
}

/// The block of lines with so many keys, and how often it makes at least so many lines.
fn keyed(keys: u64, items: u64) -> (Block, u64) {
    let lines = keys.max(100_000);
    (Block { lines, length: (20, 20), keys: Some(keys) }, items.div_ceil(lines))
}

/// A bucket for each key, whose burst holds nobody up; at a rate so slow that no key that has come is ever forgotten.
fn with_keys() -> Command {
    leaky("--rate 1/h --burst 1G --key field:1 --max-keys 2M")
}

fn keys_and_stores(rows: &mut Vec<Row>, extent: Extent) {
    let only = [Tool::Leaky];
    rows.push(row("simulate 1M lines", &only, &[("M lines/s", true)], move |_| {
        let block = Block { lines: 10_000, length: (LENGTH, LENGTH), keys: None };
        let measured = all_of(block, 100, leaky("--simulate --rate 1k/s"))?;
        Ok(sample(&measured, vec![1.0 / measured.wall()]))
    }));
    let items = extent.pick(1_000_000, 3_000_000);
    for (keys, name) in [(10, "10"), (10_000, "10k"), (1_000_000, "1M")] {
        let measures = [("M lines/s", true), ("bytes a key", true)];
        // Of fewer the rest of the memory hides them.
        let all = keys == 1_000_000;
        let measures = if all { &measures[..] } else { &measures[..1] };
        rows.push(row(format!("keys {name}"), &only, measures, move |_| {
            let (block, times) = keyed(keys, items);
            let measured = all_of(block, times, with_keys())?;
            let mut figures = vec![block.lines as f64 * times as f64 / 1e6 / measured.wall()];
            let mut cpu = measured.all_cpu;
            if all {
                let (block, times) = keyed(1, items);
                let single = all_of(block, times, with_keys())?;
                cpu += single.all_cpu;
                figures.push(measured.largest.saturating_sub(single.largest) as f64 / keys as f64);
            }
            Ok(Sample { figures, cpu })
        }));
    }
    let time = extent.pick(0.5, 2.0);
    let operations = [("operations/s", true)];
    rows.push(row("shared file", &only, &operations, move |_| store::file(time)));
    rows.push(row("shared Redis", &only, &operations, move |_| store::redis(time)));
}

/// Cost against n: nanoseconds an item, less what it takes to start.
fn costs(rows: &mut Vec<Row>, extent: Extent) {
    let line = |lines| Block { lines, length: (LENGTH, LENGTH), keys: None };
    let most = match extent {
        Extent { long: true, .. } => 8,
        Extent { quick: true, .. } => 6,
        _ => 7,
    };
    let items: Vec<u64> = (3..=most).map(|power| 10u64.pow(power)).collect();
    let of_items = move |command: fn(Tool) -> anyhow::Result<Command>, most: u64| {
        move |tool: Tool, n: &u64| {
            if *n > most {
                return Ok(Sample { figures: vec![f64::NAN], cpu: 0.0 });
            }
            per_item(line(1000), n / 1000, || command(tool), extent)
        }
    };
    let through = |tool| asked(tool, Task::AllLines);
    let simulated = |_| Ok(leaky("--simulate --rate 1k/s"));
    let tools = [Tool::Leaky, Tool::Pv, Tool::Cat];
    rows.push(curve("cost items", &tools, "lines", &items, of_items(through, u64::MAX)));
    // What is written of an item is longer than the item.
    let most = extent.pick(1_000_000, 10_000_000);
    rows.push(curve("cost items simulated", &[Tool::Leaky], "lines", &items, of_items(simulated, most)));

    let powers: Vec<u64> = (1..=6).map(|power| 10u64.pow(power)).collect();
    let n = extent.pick(300_000, 3_000_000);
    rows.push(curve("cost keys", &[Tool::Leaky], "keys", &powers, move |_, keys| {
        let (block, times) = keyed(*keys, n);
        per_item(block, times, || Ok(with_keys()), extent)
    }));
    rows.push(curve("cost capacity", &[Tool::Leaky], "capacity", &powers, move |_, capacity| {
        let command = || Ok(leaky(&format!("--rate unlimited --capacity {capacity}")));
        per_item(line(10_000), n / 10_000, command, extent)
    }));
    // Every arrival finds the bucket full and has another one thrown out of it.
    rows.push(curve("cost capacity simulated", &[Tool::Leaky], "capacity", &powers, move |_, capacity| {
        let command = || Ok(leaky(&format!("--simulate --rate 1/s --capacity {capacity} --overflow drop-oldest")));
        per_item(line(10_000), n / 10_000, command, extent)
    }));
}

fn curve(
    name: &str,
    tools: &[Tool],
    what: &str,
    at: &[u64],
    point: impl Fn(Tool, &u64) -> anyhow::Result<Sample> + 'static,
) -> Row {
    let names: Vec<String> = at.iter().map(|n| format!("ns a line, {what} 10^{}", n.ilog10())).collect();
    let measures: Vec<(&str, bool)> = names.iter().map(|name| (&name[..], true)).collect();
    let at = at.to_vec();
    row(name, tools, &measures, move |tool| {
        let points = at.iter().map(|n| point(tool, n)).collect::<anyhow::Result<Vec<_>>>()?;
        let cpu = points.iter().map(|point| point.cpu).sum();
        Ok(Sample { figures: points.into_iter().flat_map(|point| point.figures).collect(), cpu })
    })
}

/// Nanoseconds for a line of a block that comes so many times. Starting takes as long as it takes without any lines; of
/// few lines it is the better part, so it and they are measured several times.
fn per_item(
    block: Block,
    times: u64,
    command: impl Fn() -> anyhow::Result<Command>,
    extent: Extent,
) -> anyhow::Result<Sample> {
    let lines = block.lines * times;
    let runs = if lines <= 100_000 { extent.pick(3, 15) } else { 1 };
    let mut cpu = 0.0;
    let mut wall = |times, runs| {
        let mut run = |_| {
            let measured = all_of(block, times, command()?)?;
            cpu += measured.all_cpu;
            Ok(measured.wall())
        };
        Ok::<f64, anyhow::Error>(median((0..runs).map(&mut run).collect::<anyhow::Result<Vec<_>>>()?))
    };
    let (whole, start) = (wall(times, runs)?, wall(0, runs.max(3))?);
    let cost = (whole - start) / lines as f64 * 1e9;
    Ok(Sample { figures: vec![if cost > 0.0 { cost } else { f64::NAN }], cpu })
}
