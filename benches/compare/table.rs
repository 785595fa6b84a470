//! The table: medians, and in brackets how many times leaky's figure they are.

use crate::figures::median;
use crate::machine::BUSY;
use crate::rows::{Measure, Row};
use crate::tools::Tool;
use std::collections::HashMap;
use std::fmt::Write;

/// What came of a row: for each tool and measure the figures of all runs.
pub struct Outcome {
    pub row: String,
    pub measures: Vec<Measure>,
    pub figures: HashMap<Tool, Vec<Vec<f64>>>,
    /// The share of the machine that other things had meanwhile.
    pub elsewhere: f64,
}

impl Outcome {
    pub fn new(row: &Row) -> Outcome {
        let (row, measures) = (row.name.clone(), row.measures.clone());
        Outcome { row, measures, figures: HashMap::new(), elsewhere: 0.0 }
    }

    /// The figures of one run.
    pub fn add(&mut self, tool: Tool, figures: Vec<f64>) {
        let all = self.figures.entry(tool).or_insert_with(|| vec![Vec::new(); figures.len()]);
        for (all, figure) in all.iter_mut().zip(figures) {
            all.push(figure);
        }
    }

    /// The median of a tool's figures; NaN if there are none.
    pub fn median(&self, tool: Tool, measure: usize) -> f64 {
        self.figures.get(&tool).map_or(f64::NAN, |figures| median(figures[measure].iter().copied()))
    }

    /// The median of the ratios to leaky's figure of the same run.
    fn ratio(&self, tool: Tool, measure: usize) -> f64 {
        let (Some(own), Some(leaky)) = (self.figures.get(&tool), self.figures.get(&Tool::Leaky)) else {
            return f64::NAN;
        };
        let pairs = own[measure].iter().zip(&leaky[measure]);
        median(pairs.map(|(own, leaky)| own / leaky).filter(|ratio| ratio.is_finite()))
    }

    fn cell(&self, tool: Tool, measure: usize) -> String {
        let figure = self.median(tool, measure);
        let ratio = self.ratio(tool, measure);
        match self.measures[measure].ratio {
            _ if figure.is_nan() => String::new(),
            true if tool != Tool::Leaky && !ratio.is_nan() => format!("{} (× {})", short(figure), short(ratio)),
            true => short(figure),
            // A figure that has a sign.
            false if figure > 0.0 => format!("+{}", short(figure)),
            false => short(figure),
        }
    }

    /// A line of the table for each measure.
    pub fn lines(&self, tools: &[Tool]) -> String {
        let mut lines = String::new();
        for (i, measure) in self.measures.iter().enumerate() {
            let star = if self.elsewhere > BUSY { "*" } else { "" };
            let first = [format!("{}{star}", self.row), measure.name.clone()];
            let cells = tools.iter().map(|tool| self.cell(*tool, i));
            let last = [format!("{:.0} %", self.elsewhere * 100.0)];
            line(&mut lines, first.into_iter().chain(cells).chain(last));
        }
        lines
    }
}

/// The first two lines.
pub fn head(tools: &[Tool]) -> String {
    let mut head = String::new();
    let tools: Vec<String> = tools.iter().map(Tool::to_string).collect();
    let first = ["work", "measure"].map(String::from);
    line(&mut head, first.into_iter().chain(tools.iter().cloned()).chain(["elsewhere".into()]));
    line(&mut head, (0..tools.len() + 3).map(|i| if i < 2 { "---" } else { "--:" }.into()));
    head
}

/// What the table means.
pub const NOTES: &str = "\
Medians; in brackets the median of what it is, run by run, as a multiple of leaky's figure. The schedule begins with the
first line. The largest lump is the burst that a token bucket of the rate must have to let it pass. `elsewhere` is the
share of the machine that other things had meanwhile, stolen time included; * marks rows in which that was too much for
the figures to be trusted.
";

/// A line, wide enough to be read in a terminal too.
fn line(into: &mut String, cells: impl Iterator<Item = String>) {
    for (i, cell) in cells.enumerate() {
        let width = [32, 37].get(i).copied().unwrap_or(15);
        let _ = if i < 2 { write!(into, "| {cell:width$} ") } else { write!(into, "| {cell:>width$} ") };
    }
    into.push_str("|\n");
}

/// Three digits that count.
fn short(figure: f64) -> String {
    let size = figure.abs();
    match size {
        _ if size == 0.0 => "0".into(),
        _ if size >= 99.95 => format!("{figure:.0}"),
        _ if size >= 9.995 => format!("{figure:.1}"),
        _ if size >= 0.9995 => format!("{figure:.2}"),
        _ if size >= 0.09995 => format!("{figure:.3}"),
        _ => format!("{figure:.4}"),
    }
}
