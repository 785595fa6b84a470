//! The plots of the benchmark: smoothness against rate, cost against n. Both axes are logarithmic, so that what does not
//! depend on n is flat, and what is in proportion to it rises at 45 degrees if the decades are as long.

use crate::svg::{Axis, Chart, Series, Svg};
use crate::table::Outcome;
use crate::tools::{ALL, Tool};

/// A tool's colour.
pub fn colour(tool: Tool) -> &'static str {
    match tool {
        Tool::Leaky => "#0072B2",
        Tool::Pv => "#D55E00",
        Tool::Cat => "#6e7781",
        Tool::Cstream => "#009E73",
        Tool::Mbuffer => "#A8578A",
        Tool::Parallel => "#B07800",
        Tool::Sleep => "#2E9BD6",
    }
}

/// RMS deviation against rate; nothing if none was measured.
pub fn smoothness(outcomes: &[Outcome]) -> Option<String> {
    let rates =
        [("1/s", 1e0), ("10/s", 1e1), ("100/s", 1e2), ("1k/s", 1e3), ("10k/s", 1e4), ("100k/s", 1e5), ("1M/s", 1e6)];
    let all: Vec<Series> = ALL
        .into_iter()
        .filter_map(|tool| {
            let point = |(name, rate): &(&str, f64)| {
                let outcome = outcomes.iter().find(|outcome| outcome.row == format!("smooth {name}"))?;
                Some((*rate, outcome.median(tool, 0))).filter(|point| !point.1.is_nan())
            };
            let points: Vec<_> = rates.iter().filter_map(point).collect();
            (!points.is_empty()).then(|| Series { name: tool.to_string(), colour: colour(tool), points })
        })
        .collect();
    let chart = Chart {
        title: "How far lines leave from the ideal schedule",
        left_top: (70.0, 80.0),
        right_bottom: (620.0, 380.0),
        x: Axis { name: "rate asked for, lines/s", from: 1.0, to: 1e6, step: None },
        y: Axis { name: "RMS deviation, ms", from: 0.01, to: 10_000.0, step: None },
    };
    let mut svg = Svg::new(720.0, 435.0);
    chart.draw(&mut svg);
    chart.draw_series(&mut svg, &all);
    (!all.is_empty()).then(|| svg.finish())
}

/// What an item costs, against three things that it should not depend on; nothing if none was measured.
pub fn cost(outcomes: &[Outcome]) -> Option<String> {
    let series = |row: &str, tool: Tool, name: &str, colour, first: i32| {
        let outcome = outcomes.iter().find(|outcome| outcome.row == row)?;
        let point = |i| (10f64.powi(first + i as i32), outcome.median(tool, i));
        let points: Vec<_> = (0..outcome.measures.len()).map(point).filter(|point| !point.1.is_nan()).collect();
        Some(Series { name: name.into(), colour, points })
    };
    let (own, other) = (colour(Tool::Leaky), colour(Tool::Cstream));
    let panels = [
        (
            "A line's cost against lines in all",
            "lines in all",
            1e3,
            1e8,
            vec![
                series("cost items", Tool::Leaky, "leaky", own, 3),
                series("cost items", Tool::Pv, "pv", colour(Tool::Pv), 3),
                series("cost items", Tool::Cat, "cat", colour(Tool::Cat), 3),
                series("cost items simulated", Tool::Leaky, "--simulate", other, 3),
            ],
        ),
        ("A line's cost against keys", "keys", 1e1, 1e6, vec![series("cost keys", Tool::Leaky, "--key", own, 1)]),
        (
            "A line's cost against capacity",
            "--capacity",
            1e1,
            1e6,
            vec![
                series("cost capacity", Tool::Leaky, "unlimited", own, 1),
                series("cost capacity simulated", Tool::Leaky, "drop-oldest", other, 1),
            ],
        ),
    ];
    let mut svg = Svg::new(1160.0, 415.0);
    let mut empty = true;
    for (i, (title, x, from, to, all)) in panels.into_iter().enumerate() {
        let left = 70.0 + 370.0 * i as f64;
        let all: Vec<Series> = all.into_iter().flatten().collect();
        empty &= all.is_empty();
        let chart = Chart {
            title,
            left_top: (left, 80.0),
            right_bottom: (left + 240.0, 360.0),
            x: Axis { name: x, from, to, step: None },
            y: Axis { name: "ns, without start-up", from: 1.0, to: 10_000.0, step: None },
        };
        chart.draw(&mut svg);
        chart.draw_series(&mut svg, &all);
    }
    (!empty).then(|| svg.finish())
}
