//! The sink: what comes out of a tool, and when.

use crate::meter::{now, sleep_until};
use crate::source::{NUMBER, STAMP};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{self, Read};

/// How to look at what comes out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Sink {
    /// Bytes are thrown away unseen, by splice(2): as cheaply as can be.
    Drain,
    /// Bytes are counted at each read.
    Bytes,
    /// Lines are counted at each read, and their numbers looked at.
    Lines(Lines),
}

/// How to look at lines.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Lines {
    /// All are so long.
    pub length: usize,
    /// They say when they were written.
    pub stamped: bool,
    /// To read nothing for so many seconds, so many seconds after the first.
    pub stall: Option<(f64, f64)>,
    /// To leave after so many.
    pub most: Option<u64>,
}

/// What the sink saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// When each read returned, and how much it brought. `Drain` tells the first and the sum of the others only.
    pub arrivals: Vec<(u64, u64)>,
    /// How long stamped lines took, in nanoseconds.
    pub latencies: Vec<u64>,
    /// When it read again after its stall.
    pub resumed: u64,
    /// When there was no more.
    pub ended: u64,
    /// What was wrong with what came out.
    pub fault: Option<String>,
}

impl Sink {
    /// Lines of one length.
    pub fn lines(length: usize) -> Sink {
        Sink::Lines(Lines { length, ..Lines::default() })
    }

    /// Reads all of stdin.
    pub fn run(&self) -> io::Result<Report> {
        let mut report = Report::default();
        match self {
            Sink::Drain => drain(&mut report)?,
            Sink::Bytes => {
                let mut buffer = vec![0; 1 << 20];
                loop {
                    let bytes = io::stdin().read(&mut buffer)?;
                    if bytes == 0 {
                        break;
                    }
                    report.arrivals.push((now(), bytes as u64));
                }
            }
            Sink::Lines(lines) => lines.read(&mut report)?,
        }
        report.ended = now();
        Ok(report)
    }
}

fn drain(report: &mut Report) -> io::Result<()> {
    let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
    let (mut last, mut sum) = (0, 0);
    loop {
        match splice(io::stdin(), None, &nowhere, None, 1 << 20, SpliceFlags::empty()) {
            Ok(0) => break,
            Ok(bytes) if report.arrivals.is_empty() => report.arrivals.push((now(), bytes as u64)),
            Ok(bytes) => (last, sum) = (now(), sum + bytes as u64),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if sum > 0 {
        report.arrivals.push((last, sum));
    }
    Ok(())
}

impl Lines {
    fn read(&self, report: &mut Report) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        // What is left of a line that has come in part.
        let mut kept = 0;
        let mut number = 0;
        let mut stall = self.stall;
        while self.most.is_none_or(|most| number < most) {
            let bytes = io::stdin().read(&mut buffer[kept..])?;
            let at = now();
            if bytes == 0 {
                break;
            }
            let whole = (kept + bytes) / self.length;
            for line in buffer[..whole * self.length].chunks_exact(self.length) {
                if self.stamped {
                    report.latencies.push(at.saturating_sub(parsed(&line[STAMP.0..STAMP.0 + STAMP.1])));
                }
            }
            if whole > 0 {
                report.arrivals.push((at, whole as u64));
                // If the last is the one that it should be, none before it is missing.
                let last = parsed(&buffer[(whole - 1) * self.length..][..NUMBER]);
                number += whole as u64;
                if last + 1 != number && report.fault.is_none() {
                    report.fault = Some(format!("line {last} came as the {number}th from 1"));
                }
            }
            buffer.copy_within(whole * self.length..kept + bytes, 0);
            kept = (kept + bytes) % self.length;
            if let (Some((after, lasts)), Some((first, _))) = (stall, report.arrivals.first())
                && at >= first + (after * 1e9) as u64
            {
                sleep_until(at + (lasts * 1e9) as u64);
                report.resumed = now();
                stall = None;
            }
        }
        Ok(())
    }
}

fn parsed(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit.wrapping_sub(b'0')))
}
