//! What machine this is, and how busy it is with other things: a figure is worth what its surroundings were.

use std::fs;
use std::thread;

/// Above this share of the machine spent on other things, a row is marked.
pub const BUSY: f64 = 0.05;

/// The CPU times of the whole machine since it was started, in ticks.
#[derive(Clone, Copy)]
pub struct Load {
    all: f64,
    busy: f64,
}

impl Load {
    /// The times up to now. What a hypervisor stole counts as busy.
    pub fn now() -> Load {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let first = stat.lines().next().unwrap_or_default();
        let ticks: Vec<f64> = first.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        let all = ticks.iter().sum::<f64>();
        let idle = ticks.get(3).unwrap_or(&0.0) + ticks.get(4).unwrap_or(&0.0);
        Load { all, busy: all - idle }
    }

    /// The share of the machine that was not idle since `self`, less the `own` CPU seconds of `wall` seconds.
    pub fn elsewhere(self, own: f64, wall: f64) -> f64 {
        let now = Load::now();
        let share = (now.busy - self.busy) / (now.all - self.all).max(1.0);
        (share - own / wall / cores() as f64).max(0.0)
    }
}

/// CPU seconds of this process itself.
pub fn own_cpu() -> f64 {
    let stat = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// How many CPUs there are.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The kernel.
pub fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into()
}

/// One line of facts.
pub fn facts() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{} × {}, Linux {}", cores(), model.map_or("unknown CPU", |(_, name)| name.trim()), kernel())
}
