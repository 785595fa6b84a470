//! What an operation on a shared bucket costs: units are reserved one by one, where leaky would reserve 10 ms at once.

use crate::meter::{now, seconds};
use crate::rows::Sample;
use anyhow::{Context, ensure};
use leaky::rate::{Rate, Unit};
use leaky::shared::reservation::{Moment, Terms};
use leaky::shared::{self, Environment, Request};
use std::ffi::OsStr;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use wait4::Wait4;

/// In a state file.
pub fn file(time: f64) -> anyhow::Result<Sample> {
    let directory = tempfile::tempdir()?;
    let figures = vec![operations(directory.path().join("bucket").as_os_str(), time)?];
    // The work was this process's, whose time nobody takes for another's.
    Ok(Sample { figures, cpu: 0.0 })
}

/// At a server of our own.
pub fn redis(time: f64) -> anyhow::Result<Sample> {
    let directory = tempfile::tempdir()?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut server = Server(Some(
        Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(directory.path())
            .stdout(Stdio::null())
            .spawn()
            .context("apt-get install redis-server brings it")?,
    ));
    let began = now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(seconds(began, now()) < 5.0, "redis-server has not started");
        thread::sleep(Duration::from_millis(5));
    }
    let figures = vec![operations(OsStr::new(&format!("redis://127.0.0.1:{port}")), time)?];
    Ok(Sample { figures, cpu: server.end() })
}

struct Server(Option<Child>);

impl Server {
    /// Ends it; its CPU seconds.
    fn end(&mut self) -> f64 {
        let Some(mut child) = self.0.take() else { return 0.0 };
        let _ = child.kill();
        child.wait4().map_or(0.0, |used| (used.rusage.utime + used.rusage.stime).as_secs_f64())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn operations(place: &OsStr, time: f64) -> anyhow::Result<f64> {
    let rate = Rate::new(1_000_000_000, 1_000_000_000, Unit::Items).context("a rate")?;
    let terms = Terms::new(&rate, 1)?;
    let mut store = shared::open(place, "default", terms, &Environment::default())?;
    let request = Request { key: Vec::new(), units: 1, credit: 0, max_wait_ns: None, floor: Moment::default() };
    store.reserve(&request)?;
    let (began, mut count) = (now(), 0u32);
    while seconds(began, now()) < time {
        store.reserve(&request)?;
        count += 1;
    }
    Ok(f64::from(count) / seconds(began, now()))
}
