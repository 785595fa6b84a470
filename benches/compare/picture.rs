//! The picture of the README: when lines leave under leaky and under pv, and when they should.

use crate::machine::{cores, kernel};
use crate::meter::{Until, Work, measure, seconds};
use crate::plot::colour;
use crate::sink::Sink;
use crate::source::Source;
use crate::svg::{Anchor, Axis, Chart, Place, Svg};
use crate::tools::{Task, Tool};
use anyhow::Context;

const LENGTH: usize = 100;
const IDEAL: &str = r##"stroke="#24292f" stroke-width="1" stroke-dasharray="4 3""##;
const FAINT: &str = r##"font-size="12" fill="#57606a""##;
const PV: &str = r##"fill="#B84F00" font-weight="bold""##;
const LEAKY: &str = r##"fill="#0072B2" font-weight="bold""##;

/// A panel: a rate, and how long it is looked at from which instant on.
struct Panel {
    rate: u64,
    /// Nothing comes for so many seconds.
    idle: f64,
    from: f64,
    to: f64,
}

/// Measures both tools and draws them.
pub fn measure_and_draw() -> anyhow::Result<String> {
    let mut svg = Svg::new(880.0, 462.0);
    let bold = r#"font-size="17" font-weight="bold""#;
    svg.text((26.0, 34.0), Anchor::Start, bold, "When lines leave: leaky, pv, and the ideal schedule");

    let after_idling = Panel { rate: 10, idle: 9.0, from: 7.0, to: 14.0 };
    let chart = after_idling.chart("10 lines/s, input begins after 9 s", 62.0, 1.0, (160.0, 20.0));
    svg.shade(chart.place((7.0, 160.0)), chart.place((9.0, 0.0)));
    let pv = after_idling.draw(&mut svg, &chart)?;
    svg.text(chart.place((8.0, 76.0)), Anchor::Middle, FAINT, "no input");
    // What it writes within 50 ms, in which half a line is due.
    let burst = pv.iter().take_while(|(at, _)| *at < 9.05).last().map_or(0.0, |(_, sum)| *sum);
    svg.text(chart.place((9.2, burst + 45.0)), Anchor::Start, PV, &format!("pv: {burst} lines at once"));
    name_leaky(&mut svg, &chart, (11.3, 14.0));

    let pouring = Panel { rate: 1000, idle: 0.0, from: 0.0, to: 0.5 };
    let chart = pouring.chart("1000 lines/s", 502.0, 0.1, (600.0, 100.0));
    pouring.draw(&mut svg, &chart)?;
    svg.text(chart.place((0.345, 405.0)), Anchor::End, PV, "pv: in lumps");
    name_leaky(&mut svg, &chart, (0.345, 225.0));

    let (leaky, pv) = (Tool::Leaky.version(), Tool::Pv.version());
    let how =
        format!("Measured with leaky {leaky} and pv {pv} (pv -q -l -L RATE) on Linux {}, {} CPUs.", kernel(), cores());
    svg.text((26.0, 428.0), Anchor::Start, FAINT, &how);
    let again = "To measure it again: cargo bench --bench compare -- --picture FILE";
    svg.text((26.0, 445.0), Anchor::Start, FAINT, again);
    Ok(svg.finish())
}

fn name_leaky(svg: &mut Svg, chart: &Chart, at: Place) {
    let (x, y) = chart.place(at);
    svg.text((x, y), Anchor::Start, LEAKY, "leaky: on the");
    svg.text((x, y + 16.0), Anchor::Start, LEAKY, "ideal (dashed)");
}

impl Panel {
    fn chart(&self, title: &'static str, left: f64, step: f64, (most, lines): Place) -> Chart<'static> {
        Chart {
            title,
            left_top: (left, 106.0),
            right_bottom: (left + 346.0, 360.0),
            x: Axis { name: "time since the start, s", from: self.from, to: self.to, step: Some(step) },
            y: Axis { name: "lines out", from: 0.0, to: most, step: Some(lines) },
        }
    }

    /// Measures and draws; how many lines pv had let out when.
    fn draw(&self, svg: &mut Svg, chart: &Chart) -> anyhow::Result<Vec<Place>> {
        let (leaky, pv) = (self.lines_out(Tool::Leaky)?, self.lines_out(Tool::Pv)?);
        chart.draw(svg);
        let line = |tool, width| format!(r#"stroke="{}" stroke-width="{width}""#, colour(tool));
        svg.path(&self.stairs(chart, &pv), &line(Tool::Pv, 2.5));
        svg.path(&self.stairs(chart, &leaky), &line(Tool::Leaky, 2.5));
        // A line each period, from the first that can be had.
        let began = leaky.first().map_or(self.idle, |(at, _)| *at);
        let due = (0..).map(|i| (began + f64::from(i) / self.rate as f64, f64::from(i + 1)));
        let ideal: Vec<Place> = due.take_while(|(at, _)| *at <= self.to).collect();
        svg.path(&self.stairs(chart, &ideal), IDEAL);
        Ok(pv)
    }

    /// How many lines were out when: seconds since the start, and the sum.
    fn lines_out(&self, tool: Tool) -> anyhow::Result<Vec<Place>> {
        let work = Work {
            source: Source::Lines { length: LENGTH, after: self.idle },
            sink: Sink::lines(LENGTH),
            pipe: None,
            stop: None,
            until: Until::Time(self.to + 0.1),
        };
        let command = tool.command(Task::Lines { rate: self.rate, length: LENGTH }).context("it limits lines")?;
        let measured = measure(&work, command).with_context(|| format!("{tool}"))?;
        let mut sum = 0;
        let out = measured.report.arrivals.iter().map(|(at, lines)| {
            sum += lines;
            (seconds(measured.began, *at), sum as f64)
        });
        Ok(out.collect())
    }

    /// As steps, on the drawing.
    fn stairs(&self, chart: &Chart, out: &[Place]) -> Vec<Place> {
        let mut level = 0.0;
        let mut stairs = vec![chart.place((self.from, 0.0))];
        for (at, sum) in out.iter().filter(|(at, _)| *at <= self.to) {
            stairs.extend([chart.place((*at, level)), chart.place((*at, *sum))]);
            level = *sum;
        }
        stairs.push(chart.place((self.to, level)));
        stairs
    }
}
