//! What leaky promises, as sentences. One binary, so that linking is paid for once.

mod cases;
mod cli;
mod conduit;
mod harness;
mod pipe;
mod properties;
mod show;
mod signals;
mod simulate;
mod units;
