//! `--rate @FILE`: a rate that is read from a file and followed while leaky runs.
//!
//! The file may be rewritten in place or replaced by another one, so it is its directory that is watched. What a
//! writer has not finished must not count: an end of writing or a rename is acted upon at once, a mere write after a
//! moment of quiet, and what makes no sense is looked at once more before it is complained about. Where the system
//! cannot tell of changes, as with files of other machines, the file is read ten times a second.

use crate::fd::{Ear, poll_for};
use crate::rate::{self, Asked, RateError, Unit};
use rustix::event::{PollFd, PollFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What a file asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// This rate.
    Rate(Asked),
    /// A pause; what the zero counts.
    Pause(Unit),
}

impl std::str::FromStr for Wanted {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Wanted, RateError> {
        match text.parse() {
            Ok(asked) => Ok(Wanted::Rate(asked)),
            Err(RateError::Zero) => rate::zero_of(text).map(Wanted::Pause).ok_or(RateError::Zero),
            Err(why) => Err(why),
        }
    }
}

/// Reads the text of a rate, without the white space around it.
///
/// # Errors
/// Why it cannot be read, for the user.
pub fn read(path: &Path) -> Result<String, String> {
    const MOST: u64 = 4096;
    let text = || -> io::Result<String> {
        // Whatever it is now, it need not be a file any more: opening a pipe would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut text = String::new();
        File::open(path)?.take(MOST).read_to_string(&mut text)?;
        Ok(text)
    };
    match text() {
        Ok(text) => Ok(text.trim_ascii().to_string()),
        Err(error) => Err(format!("could not read it: {error}")),
    }
}

/// A moment, in nanoseconds.
const QUIET: u64 = 20_000_000;
/// How long what makes no sense is given to be finished.
const SETTLE: u64 = 50_000_000;
/// How often a file is read of which nobody tells.
const POLL: u64 = 100_000_000;

/// Follows the file at `path`, which said `text`, and calls `change` with each new text; what that refuses, or why the
/// text cannot be read, goes to `complain`, once for each change. A ring of `ear`'s bell reads the file again.
pub fn follow(
    path: &Path,
    text: String,
    ear: &Ear,
    mut change: impl FnMut(&str) -> Result<(), String>,
    mut complain: impl FnMut(String),
) {
    let mut watch = Watch::new(path);
    let mut last = Ok(text);
    let mut doubtful = None;
    loop {
        let timeout = if doubtful.is_some() { Some(SETTLE) } else { watch.is_none().then_some(POLL) };
        wait(&mut watch, ear, timeout);
        let (text, written) = (read(path), written(path));
        if text == last {
            doubtful = None;
            continue;
        }
        let changed = text.clone().and_then(|text| change(&text));
        match changed {
            Err(why) if doubtful.as_ref() == Some(&(text.clone(), written)) => complain(why),
            // Whoever writes in place empties the file first, and may do so time and again.
            Err(_) => {
                doubtful = Some((text, written));
                continue;
            }
            Ok(()) => {}
        }
        (last, doubtful) = (text, None);
    }
}

/// When the file was last written.
fn written(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// Waits until the file should be read again.
fn wait(watch: &mut Option<Watch>, ear: &Ear, mut timeout: Option<u64>) {
    // A writer that never pauses is not waited for.
    for _ in 0..3 {
        let mut fds = vec![PollFd::new(ear, PollFlags::IN)];
        if let Some(watch) = watch {
            fds.push(PollFd::new(&watch.inotify, PollFlags::IN));
        }
        // A failure is nothing to be done about, and the next one is as well ignored.
        let _ = poll_for(&mut fds, timeout);
        let rung = !fds[0].revents().is_empty();
        let news = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if rung {
            ear.clear();
            return;
        }
        match watch.as_mut().filter(|_| news).map(Watch::news) {
            Some(News::Others) => {}
            Some(News::Written) => timeout = Some(QUIET),
            Some(News::Lost) => {
                *watch = None;
                return;
            }
            Some(News::Finished) | None => return,
        }
    }
}

/// What the system has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum News {
    /// It was about other files.
    Others,
    /// Something has been written, and more may follow.
    Written,
    /// The file is another one, or whoever wrote it is done.
    Finished,
    /// There will be no more news.
    Lost,
}

/// Watches a file by way of its directory.
#[derive(Debug)]
struct Watch {
    inotify: OwnedFd,
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    name: Vec<u8>,
}

#[cfg(target_os = "linux")]
impl Watch {
    /// `None` where changes are not told of.
    fn new(path: &Path) -> Option<Watch> {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        use std::os::unix::ffi::OsStrExt;
        // Nobody tells of what a link leads to, nor of what other machines do.
        const ELSEWHERE: [u64; 5] = [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x0102_1997];
        let remote = rustix::fs::statfs(path).is_ok_and(|fs| ELSEWHERE.contains(&(fs.f_type as u64)));
        if remote || std::fs::symlink_metadata(path).is_ok_and(|file| file.is_symlink()) {
            return None;
        }
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
        add_watch(&inotify, directory(path), flags).ok()?;
        Some(Watch { inotify, name: path.file_name()?.as_bytes().to_vec() })
    }

    fn news(&mut self) -> News {
        use rustix::fs::inotify::{ReadFlags, Reader};
        use rustix::io::Errno;
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut news = News::Others;
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => return news,
                Err(_) => return News::Lost,
            };
            let flags = event.events();
            let ours = event.file_name().is_some_and(|name| name.to_bytes() == self.name);
            news = news.max(match () {
                () if flags.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT) => News::Lost,
                () if event.file_name().is_none() && flags.intersects(ReadFlags::MOVE_SELF) => News::Lost,
                () if flags.intersects(ReadFlags::QUEUE_OVERFLOW) => News::Finished,
                () if !ours => News::Others,
                () if flags.intersects(ReadFlags::MODIFY) => News::Written,
                () => News::Finished,
            });
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Watch {
    fn new(_: &Path) -> Option<Watch> {
        None
    }

    fn news(&mut self) -> News {
        News::Lost
    }
}

/// The directory that a path leads to the last part of.
pub fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}
