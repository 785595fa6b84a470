//! The state file: a shared bucket of one machine, one small record under `flock`.
//!
//! The record is one line of text of a fixed length, written by one `pwrite`. The kernel releases the lock of a holder
//! that is killed, and a write this small is done whole or not at all, so nobody is blocked and nothing is torn; were it
//! torn all the same, the checksum tells. A holder that is stopped does block the others, until it goes on or is killed:
//! nobody can take the lock away from it, and it would still write what it has reckoned. So nothing is done under the
//! lock but to read, to look whether the file is still the one, and to write: some ten microseconds.
//!
//! Time is `CLOCK_BOOTTIME`, which means nothing after a reboot, so the record names the boot it is from: one of another
//! boot is a fresh bucket, as is an empty file, whose owner and mode can thus be chosen beforehand. Whatever else is in
//! the file is somebody's, and is left alone.
//!
//! Removing the file resets the bucket for those who come new. Those who have it open notice after locking it, and take
//! its TAT along to the new file: the limit holds.

use super::reservation::{self, Moment, Order, Pace, State, Verdict};
use super::{Environment, Level, Reply, Request, Returned, Store, StoreError, one_line};
use crate::clock::boottime;
use crate::rate::Unit;
use rustix::fs::{self, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{self, Errno};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

const MAGIC: &str = "leaky1";
const RECORD: usize = 192;
/// A record is read with one byte more, to see whether the file is longer.
const LOOK: usize = RECORD + 1;
/// How often a file may be replaced under our hands before that is an error.
const REPLACED: usize = 16;
/// Locks on these do not reach, or do not reliably reach, the other hosts; and boots differ there. Magic numbers of
/// statfs(2): NFS, SMB (three), AFS (two), Coda, Ceph, Lustre, GPFS, BeeGFS, OCFS2, GFS2, 9p.
const NETWORK: [u64; 14] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x5346_414f,
    0x6b41_4653,
    0x7375_7245,
    0x00c3_6400,
    0x0bd0_0bd0,
    0x4750_4653,
    0x1983_0326,
    0x7461_636f,
    0x0116_1970,
    0x0102_1997,
];

/// The path a place stands for: a path as it is; a bare name in the user's state directory, which is made, for the user
/// alone.
pub fn locate(place: &OsStr, environment: &Environment) -> Result<PathBuf, StoreError> {
    let shown = one_line(&place.to_string_lossy());
    let bytes = place.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." {
        return Err(StoreError::Refused(format!("--shared '{shown}': no file can have this name; give another")));
    }
    if bytes.contains(&b'/') {
        return Ok(PathBuf::from(place));
    }
    // A relative $XDG_STATE_HOME is to be ignored, says its specification.
    let absolute = |value: &Option<_>| value.as_ref().map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute(&environment.state_home)
        .or_else(|| absolute(&environment.home).map(|home| home.join(".local/state")))
        .ok_or_else(|| {
            StoreError::Refused(format!(
                "--shared '{shown}': no directory for a bare name, as neither XDG_STATE_HOME nor HOME is an absolute path; \
                 say --shared ./{shown} for a file here"
            ))
        })?;
    let directory = state.join("leaky");
    match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory) {
        Ok(()) => Ok(directory.join(place)),
        Err(error) => Err(StoreError::Refused(format!(
            "--shared '{shown}': could not make the directory {}: {error}; give a path instead of a name",
            one_line(&directory.to_string_lossy())
        ))),
    }
}

/// A bucket in a file.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    pace: Pace,
    boot: String,
    file: Option<OwnedFd>,
}

/// What a record says.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    /// Nothing of this boot.
    Fresh,
    /// A state.
    Kept(State),
    /// It was a record, or was going to be one.
    Damaged,
    /// It is not ours.
    Foreign,
    /// It is of a leaky to come.
    Version,
}

impl FileStore {
    /// Opens the file, makes it if need be, and looks whether it can be a bucket.
    pub fn open(path: PathBuf, pace: Pace) -> Result<Self, StoreError> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.trim().to_string();
        if boot.is_empty() || boot.contains(char::is_whitespace) || boot.len() > 36 {
            let text = "--shared: the kernel does not tell which boot this is; mount /proc, or share over Redis";
            return Err(StoreError::Refused(text.into()));
        }
        let mut store = FileStore { path, pace, boot, file: None };
        store.locked(|_, _, _, _| ((), None))?;
        Ok(store)
    }

    fn refused(&self, what: impl std::fmt::Display) -> StoreError {
        StoreError::Refused(format!("--shared '{}': {what}", one_line(&self.path.to_string_lossy())))
    }

    fn open_file(&self) -> Result<OwnedFd, StoreError> {
        // Without O_CREAT first: with it, Linux refuses others' files in sticky directories (fs.protected_regular).
        // O_NONBLOCK has no effect on files, and does not wait for whatever a pipe or a device would wait for.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mode = Mode::RUSR | Mode::WUSR;
        let opened = match fs::open(&self.path, flags, mode) {
            Err(Errno::NOENT) => fs::open(&self.path, flags | OFlags::CREATE, mode),
            opened => opened,
        };
        let file = opened.map_err(|error| match error {
            Errno::LOOP => self.refused("is a symbolic link; name the file it points to"),
            Errno::NOENT | Errno::NOTDIR => self.refused("its directory does not exist; make it, or name another file"),
            Errno::ISDIR => self.refused("is a directory; name a file in it"),
            Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                self.refused(format_args!("cannot be read and written ({error}); name a file in a directory of yours"))
            }
            Errno::NOSPC | Errno::DQUOT => self.no_room(error),
            Errno::NXIO => self.refused("is not a regular file; name another"),
            _ => self.refused(format_args!("cannot be opened: {error}; name another file")),
        })?;
        let kind = fs::fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
        if !matches!(kind, Ok(FileType::RegularFile)) {
            return Err(self.refused("is not a regular file; name another"));
        }
        let system = fs::fstatfs(&file).map(|system| system.f_type as u64 & 0xffff_ffff);
        if system.is_ok_and(|magic| NETWORK.contains(&magic)) {
            return Err(
                self.refused("is on a network file system, where locks are not to be relied on; share over Redis")
            );
        }
        Ok(file)
    }

    fn no_room(&self, error: Errno) -> StoreError {
        self.refused(format_args!("no room for the state ({error}); free some, or name a file elsewhere"))
    }

    /// Whether the path still leads to this file.
    fn is_current(&self, file: &OwnedFd) -> Result<bool, Errno> {
        let ours = fs::fstat(file)?;
        match fs::lstat(&self.path) {
            Ok(there) => Ok(ours.st_nlink > 0 && (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Does `work` with the state, the TAT to take along from a removed file, whether the record was damaged, and now;
    /// and keeps the state it gives, if any.
    fn locked<T>(
        &mut self,
        work: impl FnOnce(Option<State>, Moment, bool, u64) -> (T, Option<State>),
    ) -> Result<T, StoreError> {
        let mut along = Moment::default();
        for _ in 0..REPLACED {
            let file = match self.file.take() {
                Some(file) => file,
                None => self.open_file()?,
            };
            io::retry_on_intr(|| fs::flock(&file, FlockOperation::LockExclusive))
                .map_err(|error| self.refused(format_args!("cannot be locked: {error}; name a file elsewhere")))?;
            let mut bytes = [0; LOOK];
            let length = io::retry_on_intr(|| io::pread(&file, &mut bytes, 0))
                .map_err(|error| self.refused(format_args!("cannot be read: {error}")))?;
            let read = parse(bytes.get(..length).unwrap_or_default(), &self.boot);
            let current = self.is_current(&file);
            if !current.map_err(|error| self.refused(format_args!("cannot be looked at: {error}")))? {
                if let Read::Kept(State { pace, tat }) = read
                    && pace == self.pace
                {
                    along = along.max(tat);
                }
                continue;
            }
            let (state, damaged) = match read {
                Read::Fresh => (None, false),
                Read::Damaged => (None, true),
                Read::Kept(state) => (Some(state), false),
                Read::Version => {
                    return Err(self.refused("was written by a newer leaky; use that one, or remove the file"));
                }
                Read::Foreign => {
                    return Err(
                        self.refused("holds something that is not leaky's, and is left as it is; name another file")
                    );
                }
            };
            let (result, write) = work(state, along, damaged, boottime() / 1000);
            if let Some(state) = write {
                let record = record(&state, &self.boot);
                let written = io::retry_on_intr(|| io::pwrite(&file, record.as_bytes(), 0));
                match written {
                    Ok(RECORD) => {}
                    Ok(_) => return Err(self.no_room(Errno::NOSPC)),
                    Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => return Err(self.no_room(error)),
                    Err(error) => return Err(self.refused(format_args!("cannot be written: {error}"))),
                }
            }
            fs::flock(&file, FlockOperation::Unlock)
                .map_err(|error| self.refused(format_args!("cannot be unlocked: {error}")))?;
            self.file = Some(file);
            return Ok(result);
        }
        Err(self.refused("is replaced again and again by another program; name another file"))
    }
}

impl Store for FileStore {
    fn reserve(&mut self, request: &Request) -> Result<Reply, StoreError> {
        let pace = self.pace;
        let order = Order::new(&pace, request.units, request.credit, request.max_wait_ns, request.floor)
            .ok_or_else(|| self.refused(super::too_dear(&pace, request.units)))?;
        let (verdict, damaged, now_us) = self.locked(|state, along, damaged, now_us| {
            let order = Order { floor: order.floor.max(along), ..order };
            let verdict = reservation::reserve(&pace, state, now_us, &order);
            let write = match verdict {
                Verdict::Granted { state, .. } => Some(state),
                _ => None,
            };
            ((verdict, damaged, now_us), write)
        })?;
        match verdict {
            Verdict::Granted { base, reset, .. } => Ok(Reply::Granted {
                now_us,
                base,
                reset: reset || damaged,
                age_ns: boottime().saturating_sub(now_us.saturating_mul(1000)),
            }),
            Verdict::TooFar(wait) => Ok(Reply::TooFar { wait_ns: pace.ns(wait) }),
            Verdict::OtherRate(theirs) => Err(self.refused(format_args!(
                "the bucket is in use at {theirs}, not at {pace}; use the same rate, wait until it is at rest, or remove \
                 the file to reset it"
            ))),
            Verdict::Beyond => Err(self.refused(super::too_dear(&pace, request.units))),
        }
    }

    fn give_back(&mut self, returned: &Returned) -> Result<bool, StoreError> {
        let pace = self.pace;
        self.locked(|state, _, _, _| {
            let after = reservation::give_back(&pace, state, returned.end, returned.back);
            (after.is_some(), after)
        })
    }

    fn peek(&mut self, _key: &[u8]) -> Result<Level, StoreError> {
        self.locked(|state, _, _, now_us| (level(state, now_us), None))
    }
}

/// How full a state is.
fn level(state: Option<State>, now_us: u64) -> Level {
    let now = Moment::whole(now_us);
    let far = |state: &State| state.tat.us.saturating_sub(now_us) > state.pace.horizon_us();
    match state.filter(|state| state.tat > now && !far(state)) {
        None => Level { ahead_ns: 0, pace: None },
        Some(State { pace, tat }) => Level { ahead_ns: pace.ns(tat.minus(now, pace.n())), pace: Some(pace) },
    }
}

/// A record, always [`RECORD`] bytes: `leaky1 BOOT N P_US UNIT TAT_US TAT_REM`, the checksum of that, blanks, newline.
fn record(state: &State, boot: &str) -> String {
    let State { pace, tat } = state;
    let (n, p_us, unit) = (pace.n(), pace.p_us(), unit_word(pace.unit()));
    let text = format!("{MAGIC} {boot} {n} {p_us} {unit} {} {}", tat.us, tat.rem);
    let line = format!("{text} {:016x}", checksum(&text));
    format!("{line:<width$}\n", width = RECORD - 1)
}

fn parse(bytes: &[u8], boot: &str) -> Read {
    if bytes.is_empty() {
        return Read::Fresh;
    }
    let text = str::from_utf8(bytes).unwrap_or_default();
    let mut words = text.split_ascii_whitespace();
    let ours = bytes.len() <= RECORD && words.next() == Some(MAGIC) && text.starts_with(MAGIC);
    if !ours {
        let version = text.strip_prefix("leaky").and_then(|rest| rest.split(' ').next());
        return match version.is_some_and(|digits| digits.parse::<u32>().is_ok()) && bytes.len() <= RECORD {
            true => Read::Version,
            // What a crash can leave where a record was being written.
            false if bytes.len() <= RECORD && bytes.iter().all(|byte| *byte == 0) => Read::Damaged,
            false => Read::Foreign,
        };
    }
    match state(words, text) {
        Some((from, state)) if from == boot => Read::Kept(state),
        Some(_) => Read::Fresh,
        None => Read::Damaged,
    }
}

fn state<'a>(mut words: impl Iterator<Item = &'a str>, text: &str) -> Option<(&'a str, State)> {
    let boot = words.next()?;
    let (n, p_us) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let unit = unit_of(words.next()?)?;
    let tat = Moment { us: words.next()?.parse().ok()?, rem: words.next()?.parse().ok()? };
    let sum = words.next()?;
    let signed = text.get(..text.find(&format!(" {sum}"))?)?;
    let whole = text.len() == RECORD && words.next().is_none() && format!("{:016x}", checksum(signed)) == sum;
    let pace = Pace::restore(n, p_us, unit).filter(|_| whole && tat.us < 1 << 53 && tat.rem < n)?;
    Some((boot, State { pace, tat }))
}

/// FNV-1a, 64 bits: against accidents, not against people.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// A unit's word in the state of a file or a server.
pub(super) fn unit_word(unit: Unit) -> &'static str {
    match unit {
        Unit::Items => "items",
        Unit::Bytes => "bytes",
        Unit::Bits => "bits",
        Unit::Cost => "cost",
    }
}

/// The unit of such a word.
pub(super) fn unit_of(word: &str) -> Option<Unit> {
    let units = [Unit::Items, Unit::Bytes, Unit::Bits, Unit::Cost];
    units.into_iter().find(|unit| unit_word(*unit) == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::Rate;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    const BOOT: &str = "b546fa06-9ea8-47d6-a8ba-f8199863762f";

    fn pace(n: u64) -> Pace {
        Pace::new(&Rate::new(n, 1_000_000_000, Unit::Items).unwrap()).unwrap()
    }

    fn request(units: u64) -> Request {
        Request { key: vec![], units, credit: 0, max_wait_ns: None, floor: Moment::default() }
    }

    fn wait_us(store: &mut FileStore, request: &Request) -> u64 {
        match store.reserve(request).unwrap() {
            Reply::Granted { now_us, base, .. } => base.us - now_us,
            reply => panic!("{reply:?}"),
        }
    }

    fn kept() -> State {
        let (us, rem) = ((1 << 53) - 1, reservation::LARGEST_N - 1);
        State {
            pace: Pace::restore(reservation::LARGEST_N, 999_999_999, Unit::Items).unwrap(),
            tat: Moment { us, rem },
        }
    }

    #[test]
    fn records_come_back_whole_or_are_known_to_be_torn() {
        let bytes = record(&kept(), BOOT).into_bytes();
        assert_eq!(bytes.len(), RECORD);
        assert_eq!(parse(&bytes, BOOT), Read::Kept(kept()));
        assert_eq!(parse(&bytes, "another-boot"), Read::Fresh);
        for length in MAGIC.len() + 1..RECORD {
            assert_eq!(parse(&bytes[..length], BOOT), Read::Damaged, "{length} bytes");
        }
        for at in MAGIC.len() + 1..RECORD {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            let read = parse(&torn, BOOT);
            // Between the checksum and the newline there is nothing to be damaged.
            assert!(matches!(read, Read::Damaged) || read == Read::Kept(kept()), "byte {at}: {read:?}");
        }
        assert_eq!(parse(&[0; RECORD], BOOT), Read::Damaged);
    }

    #[test]
    fn what_is_not_ours_is_known() {
        let mut longer = record(&kept(), BOOT).into_bytes();
        longer.push(b'\n');
        for foreign in [b"Dear diary,".as_slice(), b"\n", b"leaky", b" leaky1 x", b"\xff\xfe", &longer, &[0; LOOK]] {
            assert_eq!(parse(foreign, BOOT), Read::Foreign, "{foreign:?}");
        }
        assert_eq!(parse(b"leaky2 what shall be", BOOT), Read::Version);
        assert_eq!(parse(b"", BOOT), Read::Fresh);
    }

    #[test]
    fn a_bare_name_lives_in_the_state_directory() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("home");
        let at_home = Environment { home: Some(home.clone().into()), ..Environment::default() };
        assert_eq!(locate("api".as_ref(), &at_home).unwrap(), home.join(".local/state/leaky/api"));
        assert_eq!(home.join(".local/state/leaky").metadata().unwrap().mode() & 0o777, 0o700);
        let state_home = Some(directory.path().join("state").into());
        let environment = Environment { state_home, ..at_home.clone() };
        assert_eq!(locate("api".as_ref(), &environment).unwrap(), directory.path().join("state/leaky/api"));
        let relative = Environment { state_home: Some("x".into()), ..at_home };
        assert_eq!(locate("api".as_ref(), &relative).unwrap(), home.join(".local/state/leaky/api"));
        assert_eq!(locate("./api".as_ref(), &relative).unwrap(), PathBuf::from("./api"));
        for bad in ["", ".", ".."] {
            assert!(locate(bad.as_ref(), &relative).is_err());
        }
        assert!(locate("api".as_ref(), &Environment::default()).is_err());
    }

    #[test]
    fn a_new_file_is_for_the_user_alone_and_a_given_one_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let (new, given) = (directory.path().join("new"), directory.path().join("given"));
        std::fs::write(&given, "").unwrap();
        std::fs::set_permissions(&given, PermissionsExt::from_mode(0o660)).unwrap();
        for (path, mode) in [(&new, 0o600), (&given, 0o660)] {
            let mut store = FileStore::open(path.clone(), pace(10)).unwrap();
            assert_eq!(wait_us(&mut store, &request(1)), 0);
            assert_eq!(
                (path.metadata().unwrap().mode() & 0o777, path.metadata().unwrap().len()),
                (mode, RECORD as u64)
            );
        }
    }

    #[test]
    fn a_reboot_begins_afresh_and_damage_does_so_with_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mut store = FileStore::open(path.clone(), pace(1)).unwrap();
        wait_us(&mut store, &request(5));
        assert!(wait_us(&mut store, &request(1)) > 4_900_000);
        store.boot = "after-the-reboot".into();
        assert_eq!(wait_us(&mut store, &request(1)), 0);
        std::fs::write(&path, "leaky1 torn").unwrap();
        assert!(matches!(store.reserve(&request(1)), Ok(Reply::Granted { reset: true, .. })));
        assert!(matches!(store.reserve(&request(1)), Ok(Reply::Granted { reset: false, .. })));
    }

    #[test]
    fn a_removed_or_replaced_file_takes_the_tat_along() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let (mut one, mut other) =
            (FileStore::open(path.clone(), pace(10)).unwrap(), FileStore::open(path.clone(), pace(10)).unwrap());
        wait_us(&mut one, &request(10));
        wait_us(&mut other, &request(10));
        std::fs::remove_file(&path).unwrap();
        assert!(wait_us(&mut one, &request(1)) > 1_900_000, "also what the other reserved");
        assert!(wait_us(&mut other, &request(1)) > 2_000_000);
        let empty = directory.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        std::fs::rename(&empty, &path).unwrap();
        assert!(wait_us(&mut other, &request(1)) > 2_100_000);
        assert!(wait_us(&mut one, &request(1)) > 2_200_000);
    }

    #[test]
    fn refusals_leave_everything_as_it_is_and_say_what_would_do() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("diary"), "Dear diary,\ntoday I throttled a pipe.\n").unwrap();
        std::fs::write(at("target"), "").unwrap();
        symlink(at("target"), at("link")).unwrap();
        symlink("/dev/null/nowhere", at("dangling")).unwrap();
        for (path, says) in [
            (at("diary"), "left as it is"),
            (at("link"), "symbolic link"),
            (at("dangling"), "symbolic link"),
            (at(""), "is a directory"),
            (at("no/such"), "does not exist"),
            ("/dev/full".into(), "not a regular file"),
            ("/proc/leaky".into(), "does not exist"),
        ] {
            let error = FileStore::open(path.clone(), pace(10)).unwrap_err();
            assert!(!error.is_outage() && error.to_string().contains(says), "{path:?}: {error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
        assert_eq!(std::fs::read(at("diary")).unwrap(), b"Dear diary,\ntoday I throttled a pipe.\n");
        assert_eq!(std::fs::read(at("target")).unwrap(), b"");
        let odd = FileStore::open(at("two\nlines/x"), pace(10)).unwrap_err().to_string();
        assert!(odd.contains("two\\nlines"), "{odd}");
    }

    #[test]
    fn two_rates_and_a_look() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let (mut slow, mut fast) =
            (FileStore::open(path.clone(), pace(10)).unwrap(), FileStore::open(path.clone(), pace(20)).unwrap());
        assert_eq!(fast.peek(b"").unwrap(), Level { ahead_ns: 0, pace: None });
        wait_us(&mut slow, &request(20));
        let level = fast.peek(b"").unwrap();
        assert!(level.pace == Some(pace(10)) && (19.0..=20.0).contains(&level.units()), "{level:?}");
        let error = fast.reserve(&request(1)).unwrap_err().to_string();
        assert!(error.contains("in use at 10/s, not at 20/s") && error.contains("remove the file"), "{error}");
        let too_far = Request { max_wait_ns: Some(0), ..request(1) };
        assert!(matches!(slow.reserve(&too_far), Ok(Reply::TooFar { wait_ns }) if wait_ns > 1_900_000_000));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(wait_us(&mut fast, &request(1)), 0, "removing the file resets it for another rate");
    }
}
