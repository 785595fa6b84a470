//! Shared buckets: one limit for many processes (a state file) and many hosts (Redis or Valkey).
//!
//! - [`reservation`]: the arithmetic, pure: one state, the TAT, and one operation on it.
//! - [`ledger`]: what one process does with it: batches, one ahead; outages; what is late; what is given back. Pure, time
//!   passed in; [`grant`] has its arithmetic.
//! - [`client`]: drives a ledger synchronously, for the gate.
//! - [`background`]: the thread that makes a leaker's blocking calls.
//! - [`mod@file`], [`mod@redis`]: where the state lives. Each is a [`Store`].
//!
//! A store answers with spans from *its* now; the client places them on its own clock at the moment the answer arrived,
//! which is never early. That clock should go on during a suspend (`CLOCK_BOOTTIME`), as those of the stores do.

pub mod background;
pub mod client;
pub mod file;
pub mod grant;
pub mod ledger;
#[cfg(feature = "redis")]
pub mod redis;
pub mod reservation;

use ledger::{OnOutage, Settings};
use reservation::{Moment, Pace, Terms};
use std::ffi::OsString;
use std::fmt;

/// The variable a server's password may be given in, instead of in the URL.
pub const PASSWORD_VARIABLE: &str = "LEAKY_REDIS_PASSWORD";

/// A reservation to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whose bucket: empty without `--key`.
    pub key: Vec<u8>,
    /// How many units.
    pub units: u64,
    /// How many units early the first may leave: [`Terms::credit`] of its cost.
    pub credit: u64,
    /// Take nothing if the first would have to wait longer than this.
    pub max_wait_ns: Option<u64>,
    /// Where this client's last reservation ended, in the store's time; zero if it has none.
    pub floor: Moment,
}

/// A store's answer to a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The units are reserved.
    Granted {
        /// The store's clock.
        now_us: u64,
        /// Where the first unit stands in the store's time, `now_us` or later; the k-th stands kT after it.
        base: Moment,
        /// The state was beyond belief or damaged, and the bucket begun afresh: worth a warning.
        reset: bool,
        /// How long ago `now_us` may have been: from sending the call to its answer. Longer than the time-outs, and this
        /// process was stopped meanwhile.
        age_ns: u64,
    },
    /// Nothing was taken: the first unit would have to wait this long, more than `max_wait_ns`.
    TooFar {
        /// The wait, rounded up.
        wait_ns: u64,
    },
}

/// Units that will not be used, at the end of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returned {
    /// Whose bucket.
    pub key: Vec<u8>,
    /// Where the reservation ended, in the store's time.
    pub end: Moment,
    /// How much of it comes back.
    pub back: Moment,
}

/// How full a shared bucket is, seen without taking a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// How long an arrival would wait without a burst: TAT - now, rounded up.
    pub ahead_ns: u64,
    /// The rate the bucket is in use at; None when it is at rest.
    pub pace: Option<Pace>,
}

impl Level {
    /// The level in units, fractions counting.
    pub fn units(&self) -> f64 {
        self.pace.map_or(0.0, |pace| self.ahead_ns as f64 / 1000.0 * pace.n() as f64 / pace.p_us() as f64)
    }
}

/// Where a shared bucket lives. Calls block, for as long as the store's time-outs let them, and are never repeated by the
/// store once the server may have acted on them.
pub trait Store {
    /// Reserves units in one atomic operation.
    fn reserve(&mut self, request: &Request) -> Result<Reply, StoreError>;
    /// Gives units back; false (and nothing done) if anybody reserved after.
    fn give_back(&mut self, returned: &Returned) -> Result<bool, StoreError>;
    /// Looks without taking a turn.
    fn peek(&mut self, key: &[u8]) -> Result<Level, StoreError>;
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn reserve(&mut self, request: &Request) -> Result<Reply, StoreError> {
        (**self).reserve(request)
    }
    fn give_back(&mut self, returned: &Returned) -> Result<bool, StoreError> {
        (**self).give_back(returned)
    }
    fn peek(&mut self, key: &[u8]) -> Result<Level, StoreError> {
        (**self).peek(key)
    }
}

/// Why a store did not do as it was asked: one line that says what was given, what is wrong and what would do. Passwords
/// are never in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It may pass: no server, a time-out, a server that is loading. `--on-outage` decides.
    Outage(String),
    /// It will not: another rate, a file that is no bucket, a wrong password.
    Refused(String),
}

impl StoreError {
    /// Whether trying again may help.
    pub fn is_outage(&self) -> bool {
        matches!(self, StoreError::Outage(_))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (StoreError::Outage(text) | StoreError::Refused(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for StoreError {}

/// What of the environment says where a bucket is. `config` reads it; nothing here does.
#[derive(Clone, Default)]
pub struct Environment {
    /// `XDG_STATE_HOME`
    pub state_home: Option<OsString>,
    /// `HOME`
    pub home: Option<OsString>,
    /// [`PASSWORD_VARIABLE`]
    pub password: Option<String>,
}

/// Says that there is a password, and not which.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("state_home", &self.state_home)
            .field("home", &self.home)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .finish()
    }
}

/// Which bucket is shared, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// A URL, a path or a bare name.
    pub place: OsString,
    /// The bucket's name on a server.
    pub bucket: String,
    /// What is asked of it.
    pub terms: Terms,
    /// What to do while it is away.
    pub on_outage: OnOutage,
    /// What of the environment says where it is.
    pub environment: Environment,
}

impl Config {
    /// Opens the bucket. Servers are connected to on the first call, files opened at once.
    ///
    /// # Errors
    /// What is wrong with the place.
    pub fn open(&self) -> Result<Box<dyn Store + Send>, StoreError> {
        open(&self.place, &self.bucket, self.terms, &self.environment)
    }

    /// For a ledger that makes lateness up to `catch_up_ns` up.
    pub fn settings(&self, catch_up_ns: u64) -> Settings {
        // Retries need only differ between those who lost the same server.
        let seed = u64::from(std::process::id()) ^ crate::clock::boottime();
        Settings { terms: self.terms, catch_up_ns, on_outage: self.on_outage, seed }
    }
}

/// The place, without a password.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.to_string_lossy();
        match is_url(&place) {
            true => write!(f, "{}, bucket {}", without_secrets(&place), one_line(&self.bucket)),
            false => f.write_str(&one_line(&place)),
        }
    }
}

/// Opens the bucket of `--shared place --bucket bucket`: a URL, a path or a bare name. Servers are connected to on the
/// first call, files opened at once.
pub fn open(
    place: &std::ffi::OsStr,
    bucket: &str,
    terms: Terms,
    environment: &Environment,
) -> Result<Box<dyn Store + Send>, StoreError> {
    match place.to_str() {
        Some(url) if is_url(url) => open_url(url, bucket, terms, environment),
        _ => {
            let path = file::locate(place, environment)?;
            Ok(Box::new(file::FileStore::open(path, terms.pace)?))
        }
    }
}

/// Whether a place is a server's URL and not a path.
pub fn is_url(place: &str) -> bool {
    place.contains("://")
}

#[cfg(feature = "redis")]
fn open_url(url: &str, bucket: &str, terms: Terms, env: &Environment) -> Result<Box<dyn Store + Send>, StoreError> {
    let store = redis::RedisStore::new(url, env.password.as_deref(), bucket, terms.pace)?;
    Ok(Box::new(store))
}

#[cfg(not(feature = "redis"))]
fn open_url(_: &str, _: &str, _: Terms, _: &Environment) -> Result<Box<dyn Store + Send>, StoreError> {
    Err(StoreError::Refused(
        "--shared with a URL: this leaky was built without Redis; name a state file, or build it with the feature redis".into(),
    ))
}

/// Text from elsewhere, fit for one line of a terminal and not longer than a message should be.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(200));
    for c in text.chars().take(200) {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

/// A URL that may not even be one, without what may be a user and a password or options.
pub(crate) fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.rsplit('@').next().unwrap_or_default();
    let host = host.split(['?', '#']).next().unwrap_or_default();
    one_line(&format!("{scheme}://{}{host}", if rest.contains('@') { "…@" } else { "" }))
}

/// Why a reservation beyond the horizon is not made.
pub(crate) fn too_dear(pace: &Pace, units: u64) -> String {
    let days = pace.horizon_us() / 86_400_000_000;
    format!(
        "{units} at {pace} would be paid for only beyond {days} {} from now, further than a shared bucket looks ahead; ask for \
         less, or wait until it is emptier",
        if days == 1 { "day" } else { "days" }
    )
}
