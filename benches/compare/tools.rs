//! The tools, and how each is asked for the same work, in the way that serves it best.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

/// A tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tool {
    Leaky,
    Pv,
    Cat,
    Cstream,
    Mbuffer,
    Parallel,
    Sleep,
}

/// All of them, in the order of the table.
pub const ALL: [Tool; 7] =
    [Tool::Leaky, Tool::Pv, Tool::Cat, Tool::Cstream, Tool::Mbuffer, Tool::Parallel, Tool::Sleep];

/// What is asked of a tool.
#[derive(Clone, Copy, Debug)]
pub enum Task {
    /// Lines, all of this length, at so many a second.
    Lines { rate: u64, length: usize },
    /// Bytes, so many a second.
    Bytes { rate: u64 },
    /// Lines as fast as they go.
    AllLines,
    /// Bytes as fast as they go.
    AllBytes,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tool::Leaky => "leaky",
            Tool::Sleep => "sleep loop",
            _ => self.program(),
        })
    }
}

impl Tool {
    /// The program.
    fn program(self) -> &'static str {
        match self {
            Tool::Leaky => env!("CARGO_BIN_EXE_leaky"),
            Tool::Pv => "pv",
            Tool::Cat => "cat",
            Tool::Cstream => "cstream",
            Tool::Mbuffer => "mbuffer",
            Tool::Parallel => "parallel",
            Tool::Sleep => "bash",
        }
    }

    /// The package that brings it, on Debian.
    pub fn package(self) -> &'static str {
        if self == Tool::Cat { "coreutils" } else { self.program() }
    }

    /// Where it is, if it is installed.
    pub fn path(self) -> Option<PathBuf> {
        let paths = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&paths).map(|path| path.join(self.program())).find(|path| path.is_file())
    }

    /// What it calls itself: the first line in which there is a number.
    pub fn version(self) -> String {
        let flag = if self == Tool::Cstream { "-V" } else { "--version" };
        let Ok(told) = Command::new(self.program()).arg(flag).output() else { return String::new() };
        let text = String::from_utf8_lossy(&[told.stdout, told.stderr].concat()).into_owned();
        let word = |word: &&str| {
            let digits = word.trim_start_matches('R');
            digits.starts_with(|c: char| c.is_ascii_digit())
        };
        text.lines().next().and_then(|line| line.split_whitespace().find(word)).unwrap_or("?").into()
    }

    /// The command for a task, if the tool can be asked for it.
    pub fn command(self, task: Task) -> Option<Command> {
        let mut command = Command::new(self.program());
        match (self, task) {
            (Tool::Leaky, Task::Lines { rate, .. }) => command.args(["--rate", &format!("{rate}/s")]),
            (Tool::Leaky, Task::Bytes { rate }) => command.args(["--rate", &format!("{rate}B/s")]),
            (Tool::Leaky, Task::AllLines) => command.args(["--rate", "unlimited"]),
            (Tool::Leaky, Task::AllBytes) => command.args(["--rate", "unlimited", "--bytes"]),
            (Tool::Pv, Task::Lines { rate, .. }) => command.args(["-q", "-l", "-L", &rate.to_string()]),
            (Tool::Pv, Task::Bytes { rate }) => command.args(["-q", "-L", &rate.to_string()]),
            (Tool::Pv, Task::AllLines) => command.args(["-q", "-l"]),
            (Tool::Pv, Task::AllBytes) => command.arg("-q"),
            (Tool::Cat, Task::AllLines | Task::AllBytes) => &mut command,
            // It knows bytes only, but of lines that are all as long that is as good; a block is what is due in 10 ms.
            (Tool::Cstream, Task::Lines { rate, length }) => {
                let block = (rate as usize / 100).clamp(1, (64 << 10) / length) * length;
                command.args(["-b", &block.to_string(), "-t", &(rate * length as u64).to_string()])
            }
            (Tool::Cstream, Task::Bytes { rate }) => {
                let block = (rate / 100).clamp(1, 64 << 10);
                command.args(["-b", &block.to_string(), "-t", &rate.to_string()])
            }
            (Tool::Cstream, Task::AllBytes) => command.args(["-b", "65536"]),
            (Tool::Mbuffer, Task::Bytes { rate }) => {
                let block = (rate / 100).clamp(512, 1 << 20);
                command.args(["-q", "-s", &block.to_string(), "-b", "64", "-R", &rate.to_string()])
            }
            (Tool::Mbuffer, Task::AllBytes) => command.arg("-q"),
            (Tool::Parallel, Task::Lines { rate, .. }) => {
                let delay = (1.0 / rate as f64).to_string();
                command.args(["--will-cite", "-j1", "--delay", &delay, "--line-buffer", "echo"])
            }
            (Tool::Sleep, Task::Lines { rate, .. }) => {
                let script = r#"while IFS= read -r line; do printf '%s\n' "$line"; sleep "$0"; done"#;
                command.args(["-c", script, &(1.0 / rate as f64).to_string()])
            }
            _ => return None,
        };
        Some(command)
    }
}

/// leaky, asked for something that no other tool can do.
pub fn leaky(words: &str) -> Command {
    let mut command = Command::new(Tool::Leaky.program());
    command.args(words.split_whitespace());
    command
}
