//! `cargo bench --bench compare`: leaky beside what people use today, on the same work, in one run.
//!
//! - `meter`, `source`, `sink`: the instrument. It measures any tool between a source and a sink of its own.
//! - `tools`: how each tool is asked for the same work.
//! - `rows`, `store`: what is measured; `figures`: how figures come of arrivals.
//! - `table`, `plot`, `picture`, `svg`: how it is shown.
//! - `machine`: what else went on.
//!
//! It asserts nothing about speed. Tools take turns, so that what changes in the machine meets all alike.

mod figures;
mod machine;
mod meter;
mod picture;
mod plot;
mod rows;
mod sink;
mod source;
mod store;
mod svg;
mod table;
mod tools;

use anyhow::{Context, ensure};
use clap::Parser;
use machine::Load;
use rows::{Extent, Row};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use table::Outcome;
use tools::Tool;

/// Measures leaky beside the tools that people use today.
#[derive(Parser)]
#[command(name = "cargo bench --bench compare --")]
struct Options {
    /// Only the rows whose names begin with one of these, or have it in them
    rows: Vec<String>,
    /// Once, and briefly
    #[arg(long)]
    quick: bool,
    /// Up to 10^8 lines for the cost of a line
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// How often each tool does each work [default: 3; 1 with --quick]
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Where the table and the plots go [default: compare in the target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Names the rows, and measures nothing
    #[arg(long)]
    list: bool,
    /// Only the picture of the README, into this file
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).take(2).collect();
    match &words[..] {
        [role, work] if role == meter::SOURCE => {
            meter::end_with_parent()?;
            // It ends when nobody reads it any more.
            let _ = serde_json::from_str::<source::Source>(work)?.run();
            Ok(())
        }
        [role, work] if role == meter::SINK => {
            meter::end_with_parent()?;
            let report = serde_json::from_str::<sink::Sink>(work)?.run()?;
            Ok(serde_json::to_writer(io::stdout(), &report)?)
        }
        _ => compare(&Options::parse()),
    }
}

fn compare(options: &Options) -> anyhow::Result<()> {
    if let Some(path) = &options.picture {
        return write(path, &picture::measure_and_draw()?);
    }
    let rows = rows::all(Extent { quick: options.quick, long: options.long });
    let rows: Vec<Row> = rows.into_iter().filter(|row| options.wants(&row.name)).collect();
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    ensure!(!rows.is_empty(), "no row is called {}; --list names all", options.rows.join(" or "));
    let (tools, facts) = tools_for(&rows);
    let mut page = format!("{facts}\n{}", table::head(&tools));
    print!("{page}");
    let mut outcomes = Vec::new();
    for row in &rows {
        let outcome = run(row, &tools, options)?;
        let lines = outcome.lines(&tools);
        print!("{lines}");
        io::stdout().flush()?;
        page += &lines;
        outcomes.push(outcome);
    }
    page = format!("{page}\n{}", table::NOTES);
    println!("\n{}", table::NOTES);

    let out = options.out.clone().unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("compare"));
    fs::create_dir_all(&out).with_context(|| format!("could not make {}", out.display()))?;
    write(&out.join("table.md"), &page)?;
    if let Some(plot) = plot::smoothness(&outcomes) {
        write(&out.join("smoothness.svg"), &plot)?;
    }
    if let Some(plot) = plot::cost(&outcomes) {
        write(&out.join("cost.svg"), &plot)?;
    }
    Ok(())
}

impl Options {
    fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|name| row.contains(name))
    }
}

/// The tools of these rows that are installed, and a text that says which those are and on what machine.
fn tools_for(rows: &[Row]) -> (Vec<Tool>, String) {
    let wanted = tools::ALL.into_iter().filter(|tool| rows.iter().any(|row| row.tools.contains(tool)));
    let (there, absent): (Vec<Tool>, Vec<Tool>) = wanted.partition(|tool| tool.path().is_some());
    let versions: Vec<String> = there.iter().map(|tool| format!("{tool} {}", tool.version())).collect();
    let mut facts = format!("{}\n{}\n", machine::facts(), versions.join(", "));
    for tool in absent {
        facts += &format!("{tool} is not here: apt-get install {} brings it\n", tool.package());
    }
    (there, facts)
}

/// All runs of a row: one of each tool, then again.
fn run(row: &Row, tools: &[Tool], options: &Options) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new(row);
    let runs = if row.once { 1 } else { options.runs.unwrap_or(if options.quick { 1 } else { 3 }) };
    let (load, began, own) = (Load::now(), meter::now(), machine::own_cpu());
    let mut cpu = 0.0;
    let mut failures = BTreeSet::new();
    for _ in 0..runs {
        for tool in row.tools.iter().filter(|tool| tools.contains(tool)) {
            match (row.run)(*tool) {
                Ok(sample) => {
                    cpu += sample.cpu;
                    outcome.add(*tool, sample.figures);
                }
                // The others may fare better.
                Err(error) => {
                    failures.insert(format!("{}: {tool}: {error:#}", row.name));
                }
            }
        }
    }
    for failure in failures {
        eprintln!("{failure}");
    }
    let wall = meter::seconds(began, meter::now());
    outcome.elsewhere = load.elsewhere(cpu + machine::own_cpu() - own, wall);
    Ok(outcome)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("could not write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}
