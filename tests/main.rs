//! What leaky promises, as sentences. One binary, so that linking is paid for once.

mod cases;
mod harness;
mod pipe;
mod show;
