//! The source: what goes into a tool, made as cheaply as it can be, so that the tool is what is measured.

use crate::meter::{now, sleep_until};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::thread;

/// Digits of a line's number, which it begins with.
pub const NUMBER: usize = 12;
/// Where the instant at which it was written stands, and how many digits it has.
pub const STAMP: (usize, usize) = (NUMBER + 1, 19);

/// What goes in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Source {
    /// Nothing, and it does not end.
    Nothing,
    /// Numbered lines without end, all of this length: as fast as they are taken, after so many seconds.
    Lines { length: usize, after: f64 },
    /// Numbered lines without end that say when they were written, so many a second.
    Stamped { length: usize, per_second: f64 },
    /// The same block over and over, by splice(2) from memory.
    Block { block: Block, times: u64 },
}

/// A block of lines.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Block {
    /// How many.
    pub lines: u64,
    /// How long, from and to.
    pub length: (usize, usize),
    /// Each begins with one of so many keys, all of them alike often, in no order.
    pub keys: Option<u64>,
}

impl Block {
    /// Lines of one length, enough for a block that is worth its splice(2).
    pub fn of(length: usize) -> Block {
        Block { lines: (1 << 20) / length as u64, length: (length, length), keys: None }
    }

    /// The block.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let (shortest, longest) = self.length;
        let mut random = 1u64;
        for i in 0..self.lines {
            let start = text.len();
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let length = shortest + ((random >> 33) as usize) % (longest - shortest + 1);
            if let Some(keys) = self.keys {
                // A prime steps through all keys.
                text.extend_from_slice(format!("{:07} ", i * 7_368_787 % keys).as_bytes());
            }
            text.resize(start + length - 1, b'x');
            text.push(b'\n');
        }
        text
    }
}

impl Source {
    /// The same block without end.
    pub fn pour(block: Block) -> Source {
        Source::Block { block, times: u64::MAX }
    }

    /// Writes it to stdout.
    pub fn run(&self) -> io::Result<()> {
        match self {
            Source::Nothing => loop {
                thread::park();
            },
            Source::Lines { length, after } => {
                sleep_until(now() + (after * 1e9) as u64);
                pour_lines(*length)
            }
            Source::Stamped { length, per_second } => drip(*length, *per_second),
            Source::Block { block, times } => splice_block(&block.text(), *times),
        }
    }
}

fn digits(into: &mut [u8], mut number: u64) {
    for digit in into.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn blank_line(length: usize) -> Vec<u8> {
    let mut line = vec![b'x'; length];
    line[NUMBER] = b' ';
    line[length - 1] = b'\n';
    line
}

fn pour_lines(length: usize) -> io::Result<()> {
    let mut block = blank_line(length).repeat((64 << 10) / length);
    let mut number = 0;
    loop {
        for line in block.chunks_exact_mut(length) {
            digits(&mut line[..NUMBER], number);
            number += 1;
        }
        io::stdout().write_all(&block)?;
    }
}

fn drip(length: usize, per_second: f64) -> io::Result<()> {
    let mut line = blank_line(length);
    let (at, long) = STAMP;
    line[at + long] = b' ';
    let began = now();
    for number in 0.. {
        // The first waits too: the tool has to start.
        sleep_until(began + ((number + 1) as f64 / per_second * 1e9) as u64);
        digits(&mut line[..NUMBER], number);
        digits(&mut line[at..at + long], now());
        io::stdout().write_all(&line)?;
    }
    Ok(())
}

fn splice_block(text: &[u8], times: u64) -> io::Result<()> {
    let mut memory = File::from(rustix::fs::memfd_create("block", MemfdFlags::CLOEXEC)?);
    memory.write_all(text)?;
    for _ in 0..times {
        let mut at = 0;
        while at < text.len() as u64 {
            let rest = text.len() - at as usize;
            match splice(&memory, Some(&mut at), io::stdout(), None, rest, SpliceFlags::empty()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
