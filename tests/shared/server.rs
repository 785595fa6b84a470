//! A real redis-server. Where it is absent its tests say that they were skipped; with CI=true they fail.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server of our own on a free port, ended with the test.
pub struct Server {
    process: Child,
    pub port: u16,
    pub directory: tempfile::TempDir,
    options: Vec<String>,
}

impl Server {
    pub fn start(options: &[&str]) -> Option<Self> {
        if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "redis-server is not installed");
            eprintln!("skipped: redis-server is not installed");
            return None;
        }
        let port = free_port();
        let options: Vec<_> = options.iter().map(|option| option.replace("PORT", &port.to_string())).collect();
        let directory = tempfile::tempdir().unwrap();
        let process = spawn(port, directory.path(), &options);
        let server = Server { process, port, directory, options };
        server.wait_for_it();
        Some(server)
    }

    fn wait_for_it(&self) {
        for _ in 0..500 {
            // With a password wanted, or TLS, that is what it answers, and it is there.
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server did not start");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), signal).unwrap();
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.process = spawn(self.port, self.directory.path(), &self.options);
        self.wait_for_it();
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    pub fn run<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]).query(&mut self.connection()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn free_port() -> u16 {
    // Below 55536: a Cluster's second port is 10000 higher.
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if port < 55_536 {
            return port;
        }
    }
}

pub fn spawn(port: u16, directory: &Path, options: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(directory)
        .args(options)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

macro_rules! server {
    ($($option:expr),*) => {
        match Server::start(&[$($option),*]) {
            Some(server) => server,
            None => return,
        }
    };
}

pub(crate) use server;
