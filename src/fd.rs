//! Descriptors 0 and 1. Nothing else in leaky touches them.
//!
//! A write must never hang, or nothing could be dropped, expired or ended meanwhile. But O_NONBLOCK belongs to the open
//! file, which leaky shares with its neighbours, so it is not set there: a pipe or a terminal is opened once more by
//! way of /proc, and a socket is sent to without waiting. Where neither can be had, no more is written at once than a
//! pipe that polls as writable takes (PIPE_BUF).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What is guaranteed to fit into a pipe that polls as writable.
pub const PIPE_BUF: usize = 4096;
/// Slices that one call takes at most; Linux takes 1024.
pub const MOST_SLICES: usize = 256;
/// Pipes are grown to this where the rate asks for it, in bytes.
const LARGE_PIPE: usize = 1 << 20;

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The time was over, or somebody rang.
    Called,
    /// There is room in stdout.
    Room,
    /// Nobody will ever read what is written.
    ReaderGone,
}

/// A pipe of our own, in which bytes wait that nobody needs to see: they are moved in and out without being copied.
#[derive(Debug)]
pub struct Conduit {
    into: PipeWriter,
    from: PipeReader,
}

/// What a conduit is made to hold, in bytes. It may hold less, where they come in small pieces.
pub const CONDUIT: u64 = LARGE_PIPE as u64;

impl Conduit {
    /// A conduit from stdin to stdout, if both are pipes and a pipe can be had that is large enough.
    #[cfg(target_os = "linux")]
    pub fn open() -> Option<Conduit> {
        let is_pipe = |fd| file_type(fd) == FileType::Fifo;
        if !(is_pipe(rustix::stdio::stdin()) && is_pipe(rustix::stdio::stdout())) {
            return None;
        }
        let (from, into) = io::pipe().ok()?;
        let size = rustix::pipe::fcntl_setpipe_size(&into, LARGE_PIPE).ok()?;
        (size >= LARGE_PIPE).then_some(Conduit { into, from })
    }

    #[cfg(not(target_os = "linux"))]
    pub fn open() -> Option<Conduit> {
        None
    }

    /// All that stands in it. To be called when nobody uses it any more.
    ///
    /// # Errors
    /// As the system says.
    pub fn drain(&self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        let mut block = vec![0; LARGE_PIPE];
        // It is empty when it would have to be waited for.
        while rustix::io::ioctl_fionread(&self.from)? > 0 {
            let read = (&self.from).read(&mut block)?;
            rest.extend_from_slice(&block[..read]);
        }
        Ok(rest)
    }
}

#[cfg(target_os = "linux")]
fn splice(from: impl AsFd, into: impl AsFd, most: usize) -> rustix::io::Result<usize> {
    rustix::pipe::splice(
        from,
        None,
        into,
        None,
        most,
        rustix::pipe::SpliceFlags::NONBLOCK | rustix::pipe::SpliceFlags::MOVE,
    )
}

#[cfg(not(target_os = "linux"))]
fn splice(_: impl AsFd, _: impl AsFd, _: usize) -> rustix::io::Result<usize> {
    Err(Errno::NOSYS)
}

/// The hole of the bucket: stdout, or in tests something that can be late on purpose.
pub trait Hole {
    /// Writes some bytes of `slices` without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; `BrokenPipe` if the reader has gone; others as the system says.
    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Moves up to `bytes` bytes out of the conduit without waiting.
    ///
    /// # Errors
    /// As for `write`; `Unsupported` without a conduit.
    fn pass(&mut self, _bytes: usize) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits for the reader to go away, for a ring of the bell, for room if `room`, and for `timeout` nanoseconds, if
    /// any, whatever comes first.
    ///
    /// # Errors
    /// As the system says.
    fn wait(&mut self, timeout: Option<u64>, room: bool) -> io::Result<Woken>;
}

/// A bell that wakes whoever polls its other end.
#[derive(Debug)]
pub struct Bell(PipeWriter);

/// The end of a bell that is listened to.
#[derive(Debug)]
pub struct Ear(PipeReader);

/// A bell and its ear.
///
/// # Errors
/// If no pipe can be had.
pub fn bell() -> io::Result<(Bell, Ear)> {
    let (ear, bell) = io::pipe()?;
    Ok((Bell(bell), Ear(ear)))
}

impl Bell {
    /// Rings. To be called only if nobody has since the ear was last cleared, so that the pipe never fills.
    pub fn ring(&self) {
        // The only failure is an ear that has gone, and then nobody is left to be woken.
        let _ = (&self.0).write(&[0]);
    }
}

impl AsFd for Ear {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Ear {
    /// Waits for a ring, and for `timeout` nanoseconds at most, if any; whether somebody rang. It may end early.
    ///
    /// # Errors
    /// As the system says.
    pub fn wait(&self, timeout: Option<u64>) -> io::Result<bool> {
        let mut fds = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        poll_for(&mut fds, timeout)?;
        Ok(!fds[0].revents().is_empty())
    }

    /// Forgets the rings so far.
    pub fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 64]);
    }
}

/// Polls for `timeout` nanoseconds, or for ever. A signal ends it early.
///
/// The kernel lets a poll be late by a thousandth of its length: by no more than a wake-up takes where it is short, but
/// a long one is ended early and begun again.
///
/// # Errors
/// As the system says.
pub fn poll_for(fds: &mut [PollFd<'_>], timeout: Option<u64>) -> io::Result<()> {
    const EXACT: u64 = 20_000_000;
    let timeout = timeout.map(|ns| {
        let ns = if ns > EXACT { ns - (ns / 128).max(EXACT / 4) } else { ns };
        Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ }
    });
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Device and inode of a regular file.
fn identity(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(fd).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some((stat.st_dev, stat.st_ino))
}

fn file_type(fd: BorrowedFd<'_>) -> FileType {
    rustix::fs::fstat(fd).map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
}

#[derive(Debug)]
enum Way {
    /// An open file of our own that never blocks.
    Own(OwnedFd),
    /// Already non-blocking, or a file, for which nobody ever waits.
    Plain,
    Socket,
    /// A blocking descriptor of which no second open file can be had.
    Small,
}

/// Stdout.
#[derive(Debug)]
pub struct Output {
    way: Way,
    file_type: FileType,
    ear: Ear,
    conduit: Option<Arc<Conduit>>,
}

impl Output {
    /// Takes stdout over; `ear` ends its waits.
    pub fn open(ear: Ear) -> Output {
        let stdout = rustix::stdio::stdout();
        let file_type = file_type(stdout);
        let flags = rustix::fs::fcntl_getfl(stdout).unwrap_or(OFlags::empty());
        let nonblocking = flags.contains(OFlags::NONBLOCK);
        // What was opened for reading only is not to be written to by a detour.
        let writable = flags & OFlags::ACCMODE != OFlags::RDONLY;
        let way = match file_type {
            FileType::Socket => Way::Socket,
            FileType::Fifo | FileType::CharacterDevice if !nonblocking && writable => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                match rustix::fs::open("/proc/self/fd/1", flags, Mode::empty()) {
                    Ok(own) => Way::Own(own),
                    Err(_) if file_type == FileType::CharacterDevice && !rustix::termios::isatty(stdout) => Way::Plain,
                    Err(_) => Way::Small,
                }
            }
            _ => Way::Plain,
        };
        Output { way, file_type, ear, conduit: None }
    }

    /// Lets out what stands in `conduit`, if there is one.
    #[must_use]
    pub fn out_of(self, conduit: Option<Arc<Conduit>>) -> Output {
        Output { conduit, ..self }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Own(own) => own.as_fd(),
            _ => rustix::stdio::stdout(),
        }
    }

    /// Grows the pipe, if it is one: for rates at which nobody would mind what a stalled reader then finds in it.
    pub fn grow(&self) {
        grow(self.fd());
    }

    /// Cuts the pipe to a page, so that it has room only when it is empty.
    ///
    /// # Errors
    /// If stdout is no pipe that can be cut.
    pub fn cut_to_a_page(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if rustix::pipe::fcntl_setpipe_size(self.fd(), PIPE_BUF)? == PIPE_BUF {
            return Ok(());
        }
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    /// Writes all of `bytes`, waiting for room where it must.
    ///
    /// # Errors
    /// As for `write`.
    pub fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write(&[IoSlice::new(bytes)]) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.wait(None, true)? == Woken::ReaderGone {
                        return Err(io::ErrorKind::BrokenPipe.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Which regular file stdout is, if it is one.
    pub fn identity() -> Option<(u64, u64)> {
        identity(rustix::stdio::stdout())
    }

    /// Whether stdout is a terminal.
    pub fn is_terminal() -> bool {
        rustix::termios::isatty(rustix::stdio::stdout())
    }
}

impl Hole for Output {
    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let stdout = rustix::stdio::stdout();
        let written = match &self.way {
            Way::Own(own) => rustix::io::writev(own, slices),
            Way::Plain => rustix::io::writev(stdout, slices),
            Way::Socket => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                rustix::net::sendmsg(stdout, slices, &mut SendAncillaryBuffer::default(), flags)
            }
            Way::Small => {
                let mut fds = [PollFd::from_borrowed_fd(stdout, PollFlags::OUT)];
                poll(&mut fds, Some(&Timespec::default()))?;
                match slices.iter().find(|slice| !slice.is_empty()) {
                    _ if fds[0].revents().is_empty() => Err(Errno::AGAIN),
                    Some(slice) => rustix::io::write(stdout, &slice[..slice.len().min(PIPE_BUF)]),
                    None => Ok(0),
                }
            }
        };
        Ok(written?)
    }

    fn pass(&mut self, bytes: usize) -> io::Result<usize> {
        let Some(conduit) = &self.conduit else { return Err(io::ErrorKind::Unsupported.into()) };
        Ok(splice(&conduit.from, self.fd(), bytes)?)
    }

    fn wait(&mut self, timeout: Option<u64>, room: bool) -> io::Result<Woken> {
        let events = if room { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds =
            [PollFd::from_borrowed_fd(self.fd(), events), PollFd::from_borrowed_fd(self.ear.0.as_fd(), PollFlags::IN)];
        poll_for(&mut fds, timeout)?;
        let (stdout, ear) = (fds[0].revents(), fds[1].revents());
        if !ear.is_empty() {
            self.ear.clear();
        }
        let gone = stdout.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        match self.file_type {
            FileType::Fifo | FileType::Socket if gone => Ok(Woken::ReaderGone),
            // Anything else says by the error of a write what is wrong with it.
            _ if stdout.contains(PollFlags::OUT) || (gone && room) => Ok(Woken::Room),
            _ if gone => Err(Errno::IO.into()),
            _ => Ok(Woken::Called),
        }
    }
}

/// Stdin.
#[derive(Debug)]
pub struct Input {
    ear: Ear,
}

impl Input {
    /// Takes stdin over; a ring of `ear`'s bell ends it.
    pub fn open(ear: Ear) -> Input {
        Input { ear }
    }

    /// Grows the pipe, if it is one.
    pub fn grow(&self) {
        grow(rustix::stdio::stdin());
    }

    /// Which regular file stdin is, if it is one.
    pub fn identity() -> Option<(u64, u64)> {
        identity(rustix::stdio::stdin())
    }

    /// Whether stdin is a terminal.
    pub fn is_terminal() -> bool {
        rustix::termios::isatty(rustix::stdio::stdin())
    }

    /// Where in it stdin stands, if it is a regular file.
    pub fn position() -> Option<u64> {
        let stdin = rustix::stdio::stdin();
        let regular = file_type(stdin) == FileType::RegularFile;
        rustix::fs::tell(stdin).ok().filter(|_| regular)
    }

    /// Where stdin ends, if it is a regular file; that one may grow.
    pub fn size() -> Option<u64> {
        let stat = rustix::fs::fstat(rustix::stdio::stdin()).ok()?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        u64::try_from(stat.st_size).ok().filter(|_| regular)
    }

    /// Puts behind the first `begin` bytes of `block` what can be read, up to `most` bytes, waiting until there is
    /// something. Whatever stood there is lost, but it need not be cleared for a read. `None` if the bell has rung, 0 at
    /// the end of input.
    ///
    /// # Errors
    /// As the system says.
    pub fn read(&self, block: &mut Vec<u8>, begin: usize, most: usize) -> io::Result<Option<usize>> {
        let stdin = rustix::stdio::stdin();
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(stdin, PollFlags::IN),
                PollFd::from_borrowed_fd(self.ear.0.as_fd(), PollFlags::IN),
            ];
            poll_for(&mut fds, None)?;
            if !fds[1].revents().is_empty() {
                block.truncate(begin);
                return Ok(None);
            }
            if fds[0].revents().is_empty() {
                continue;
            }
            // The bound is exact: what one read returns arrives together.
            block.resize(begin + most, 0);
            let read = rustix::io::read(stdin, &mut block[begin..]);
            block.truncate(begin + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(count) => return Ok(Some(count)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Moves what can be read, up to `most` bytes, into `conduit`, waiting until there is something and room for it.
    /// `None` if the bell has rung, 0 at the end of input.
    ///
    /// # Errors
    /// As the system says.
    pub fn pass(&self, conduit: &Conduit, most: usize) -> io::Result<Option<usize>> {
        let stdin = rustix::stdio::stdin();
        // Of a full conduit no more is known than that it takes nothing, so it is asked for room only then.
        let mut full = false;
        loop {
            let (source, events) = if full { (conduit.into.as_fd(), PollFlags::OUT) } else { (stdin, PollFlags::IN) };
            let mut fds =
                [PollFd::from_borrowed_fd(source, events), PollFd::from_borrowed_fd(self.ear.0.as_fd(), PollFlags::IN)];
            poll_for(&mut fds, None)?;
            if !fds[1].revents().is_empty() {
                return Ok(None);
            }
            if fds[0].revents().is_empty() {
                continue;
            }
            match splice(stdin, &conduit.into, most) {
                Ok(count) => return Ok(Some(count)),
                Err(Errno::AGAIN) => full = !full,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(target_os = "linux")]
fn grow(fd: BorrowedFd<'_>) {
    // No matter if it is no pipe, or the user's allowance for pipes is used up.
    if rustix::pipe::fcntl_getpipe_size(fd).is_ok_and(|size| size < LARGE_PIPE) {
        let _ = rustix::pipe::fcntl_setpipe_size(fd, LARGE_PIPE);
    }
}

#[cfg(not(target_os = "linux"))]
fn grow(_: BorrowedFd<'_>) {}

/// Asks the kernel to wake this thread when it said, not up to 50 us later.
pub fn wake_me_exactly() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
