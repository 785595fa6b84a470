//! A shared bucket in Redis or Valkey: one script, one key, the server's clock.
//!
//! A call is EVALSHA, and EVAL once if the server does not know the script; both have time-outs. A call that failed on its
//! way is never repeated, since the server may have acted on it: the units are spent. Its connection is dropped, so that a
//! late answer is never taken for that of another call, and the next call connects anew. In a Cluster a call follows the
//! server's redirections, which say that nothing was done, and remembers them.
//!
//! The password is given to the server and to nobody else: no message and no `Debug` has it, or the URL it may be in.

use super::file::{unit_of, unit_word};
use super::reservation::{Moment, Order, Pace};
use super::{Level, PASSWORD_VARIABLE, Reply, Request, Returned, Store, StoreError, one_line, without_secrets};
use crate::clock::boottime;
use redis::{
    Client, Cmd, Connection, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError, Script,
};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(1);
/// A connection idle for longer is tried with a PING before a call that must not be repeated is sent over it.
const IDLE_NS: u64 = 10_000_000_000;
const REDIRECTIONS: usize = 4;
const SCRIPT: &str = include_str!("reserve.lua");

/// A bucket on a server.
pub struct RedisStore {
    home: ConnectionInfo,
    username: Option<String>,
    password: Option<String>,
    database: i64,
    /// What is said of the place in messages: the URL without user and password.
    shown: String,
    name: Vec<u8>,
    pace: Pace,
    script: Script,
    open: HashMap<String, Open>,
    /// Cluster: which server has a slot.
    routes: HashMap<u16, ConnectionAddr>,
}

struct Open {
    connection: Connection,
    used_ns: u64,
}

/// Shows where it is, and no password.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("place", &self.shown)
            .field("key", &String::from_utf8_lossy(&self.name))
            .field("pace", &self.pace)
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    /// The bucket `leaky:BUCKET` on the server of `url`; connects on the first call.
    pub fn new(url: &str, password: Option<&str>, bucket: &str, pace: Pace) -> Result<Self, StoreError> {
        let bad = |what: &str| {
            StoreError::Refused(format!(
                "--shared '{}': {what}; say redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH",
                without_secrets(url)
            ))
        };
        let url_read = redis::parse_redis_url(url).ok_or_else(|| bad("is not a URL of a Redis or Valkey server"))?;
        let scheme = url_read.scheme().to_string();
        if url_read.fragment().is_some() {
            return Err(bad("certificates are always checked, and nothing else can follow a #"));
        }
        // The crate's reasons name the part that is wrong and never a password; its details could.
        let info = url_read.into_connection_info().map_err(|error| match error.kind() {
            ErrorKind::InvalidClientConfig => bad("has a host, a port, a database or an option that cannot be"),
            _ => bad("cannot be understood"),
        })?;
        let settings = info.redis_settings();
        let (username, database) = (settings.username().map(str::to_string), settings.db());
        let password = settings.password().or(password).map(str::to_string);
        let host = match info.addr() {
            ConnectionAddr::Unix(path) => path.to_string_lossy().into_owned(),
            addr => addr.to_string(),
        };
        // Logging in and choosing the database are done by hand, to hear what the server says to it.
        let settings = redis::RedisConnectionInfo::default().set_skip_set_lib_name();
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        if scheme.ends_with("ss") || scheme.ends_with("keys") {
            // Chosen once a process; whoever was first chose the same or knew better.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(RedisStore {
            home: info.set_redis_settings(settings).set_tcp_settings(tcp),
            username,
            password,
            database,
            shown: one_line(&format!("{scheme}://{host}")),
            name: format!("leaky:{bucket}").into_bytes(),
            pace,
            script: Script::new(SCRIPT),
            open: HashMap::new(),
            routes: HashMap::new(),
        })
    }

    fn refused(&self, what: impl fmt::Display) -> StoreError {
        StoreError::Refused(format!("--shared '{}': {what}", self.shown))
    }

    fn outage(&self, what: impl fmt::Display) -> StoreError {
        StoreError::Outage(format!("--shared '{}': {what}", self.shown))
    }

    /// `leaky:NAME`, or `leaky:NAME:KEY`.
    fn key(&self, key: &[u8]) -> Vec<u8> {
        match key {
            [] => self.name.clone(),
            key => [&self.name, b":".as_slice(), key].concat(),
        }
    }

    /// Runs the script; how long that took in the end, and the words of the answer.
    fn call(
        &mut self,
        key: &[u8],
        op: &str,
        pairs: &[Moment],
        limit: Option<i64>,
    ) -> Result<(u64, String), StoreError> {
        let key = self.key(key);
        let mut words = vec![op.to_string(), self.pace.n().to_string(), self.pace.p_us().to_string()];
        words.push(unit_word(self.pace.unit()).to_string());
        for (i, Moment { us, rem }) in pairs.iter().enumerate() {
            match (i, limit) {
                (2, Some(none)) => words.extend([none.to_string(), "0".to_string()]),
                _ => words.extend([us.to_string(), rem.to_string()]),
            }
        }
        let slot = hash_slot(&key);
        let mut address = self.routes.get(&slot).unwrap_or(self.home.addr()).clone();
        let mut asking = false;
        for _ in 0..REDIRECTIONS {
            let error = match self.call_at(&address, asking, &key, &words) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let moved = error.redirect_node().and_then(|(to, _)| redirected(self.home.addr(), to));
            let Some(to) = moved else {
                let error = self.classify(&error, &key);
                if error.is_outage() {
                    self.open.remove(&address.to_string());
                    self.routes.clear();
                }
                return Err(error);
            };
            asking = error.code() == Some("ASK");
            if !asking {
                self.routes.insert(slot, to.clone());
            }
            address = to;
        }
        self.routes.clear();
        Err(self.outage("the servers of the cluster send each other the call; try again when it is settled"))
    }

    fn call_at(
        &mut self,
        address: &ConnectionAddr,
        asking: bool,
        key: &[u8],
        words: &[String],
    ) -> Result<(u64, String), RedisError> {
        let id = address.to_string();
        let mut open = match self.open.remove(&id) {
            Some(mut open) if boottime().saturating_sub(open.used_ns) > IDLE_NS => {
                match redis::cmd("PING").query::<String>(&mut open.connection) {
                    Ok(_) => open,
                    Err(_) => self.connect(address)?,
                }
            }
            Some(open) => open,
            None => self.connect(address)?,
        };
        let script = |name: &str, script: &str| {
            let mut cmd = redis::cmd(name);
            cmd.arg(script).arg(1).arg(key).arg(words);
            cmd
        };
        let mut run = |cmd: Cmd| {
            if asking {
                redis::cmd("ASKING").query::<()>(&mut open.connection)?;
            }
            let sent = boottime();
            let answer = cmd.query::<String>(&mut open.connection);
            answer.map(|answer| (boottime().saturating_sub(sent), answer))
        };
        let mut answer = run(script("EVALSHA", self.script.get_hash()));
        if answer.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) {
            answer = run(script("EVAL", SCRIPT));
        }
        // An answer of the server's, even an error, leaves the connection usable; anything else does not.
        let usable = match &answer {
            Ok(_) => true,
            Err(error) => error.code().is_some(),
        };
        if usable {
            open.used_ns = boottime();
            self.open.insert(id, open);
        }
        answer
    }

    fn connect(&self, address: &ConnectionAddr) -> Result<Open, RedisError> {
        let info = self.home.clone().set_addr(address.clone());
        let mut connection = Client::open(info)?.get_connection_with_timeout(CONNECT)?;
        connection.set_read_timeout(Some(ANSWER))?;
        connection.set_write_timeout(Some(ANSWER))?;
        if let Some(password) = &self.password {
            let mut auth = redis::cmd("AUTH");
            auth.arg(&self.username).arg(password);
            auth.query::<()>(&mut connection)?;
        }
        if self.database != 0 {
            redis::cmd("SELECT").arg(self.database).query::<()>(&mut connection)?;
        }
        Ok(Open { connection, used_ns: boottime() })
    }

    fn classify(&self, error: &RedisError, key: &[u8]) -> StoreError {
        let detail = one_line(error.detail().unwrap_or_default());
        let key = one_line(&String::from_utf8_lossy(key));
        match error.code() {
            Some("LOADING") => self.outage("the server is loading its data; it will be ready soon"),
            Some("BUSY") => self.outage("the server is busy with a script; end it there with SCRIPT KILL"),
            Some("READONLY") => self.outage("the server is a read-only replica; name the primary"),
            Some("OOM") => self.outage("the server is out of memory; give it more, or another maxmemory-policy"),
            Some(code @ ("CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "MISCONF" | "NOREPLICAS" | "MOVED" | "ASK")) => {
                self.outage(format_args!("the server cannot take writes now ({code} {detail}); mend it there"))
            }
            // A call as long as ours is not even looked at before there is a password (Redis 7 says it so).
            Some("NOAUTH" | "ERR") if error.code() == Some("NOAUTH") || detail.contains("unauthenticated") => {
                self.refused(format_args!("the server wants a password; give it in {PASSWORD_VARIABLE}"))
            }
            Some("WRONGPASS") => self.refused(format_args!(
                "the server does not take this user and password; give the right one in {PASSWORD_VARIABLE} or the URL"
            )),
            Some("NOPERM") => self.refused(format_args!(
                "the user may not do this ({detail}); allow it ~{key} +eval +evalsha +get +set +time +ping"
            )),
            Some("WRONGTYPE") => self.refused(format_args!(
                "the key {key} holds something that is not leaky's, and is left as it is; choose another --bucket"
            )),
            Some("ERR") if detail.contains("max number of clients") => {
                self.outage("the server has too many clients; raise its maxclients")
            }
            // Before Redis 6 this is what a wrong password, and an unneeded one, are answered with.
            Some("ERR") if detail.contains("invalid password") || detail.contains("AUTH") => {
                self.refused(format_args!(
                    "the server does not take this password ({detail}); give the right one, or none if it has none"
                ))
            }
            Some(code) => {
                self.refused(format_args!("the server answers {code} {detail}; it must be Redis 5 or later, or Valkey"))
            }
            None => self.classify_io(error),
        }
    }

    fn classify_io(&self, error: &RedisError) -> StoreError {
        // The crate keeps the cause in an Arc, which is itself the source.
        let source = std::error::Error::source(error);
        let shared = source.and_then(|source| source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>());
        let source = shared.and_then(|cause| cause.downcast_ref::<io::Error>());
        let Some(cause) = source else {
            return match error.kind() {
                ErrorKind::Io | ErrorKind::Client | ErrorKind::InvalidClientConfig => self.refused(format_args!(
                    "no connection can be made ({}); check the host and the certificates",
                    one_line(&error.to_string())
                )),
                _ => self.refused("what answers there is not Redis or Valkey; check the host and the port"),
            };
        };
        match cause.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                self.outage("the server does not answer within 1 s; check it")
            }
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                self.outage("no server is listening there; start it, or check the place")
            }
            io::ErrorKind::PermissionDenied => self.refused("may not be connected to; check the socket's permissions"),
            io::ErrorKind::InvalidData => self.refused(format_args!(
                "no secure connection can be made ({}); check the certificates, or say redis:// if it has none",
                one_line(&cause.to_string())
            )),
            _ => self.outage(format_args!("the connection fails ({}); check the server", one_line(&cause.to_string()))),
        }
    }

    fn nonsense(&self) -> StoreError {
        self.refused("the server's answer makes no sense; it must be Redis 5 or later, or Valkey")
    }
}

impl Store for RedisStore {
    fn reserve(&mut self, request: &Request) -> Result<Reply, StoreError> {
        let pace = self.pace;
        let order = Order::new(&pace, request.units, request.credit, request.max_wait_ns, request.floor)
            .ok_or_else(|| self.refused(super::too_dear(&pace, request.units)))?;
        let limit = order.max_wait.is_none().then_some(-1);
        let pairs = [order.span, order.credit, order.max_wait.unwrap_or_default(), order.floor];
        let (age_ns, answer) = self.call(&request.key, "reserve", &pairs, limit)?;
        let words: Vec<_> = answer.split(' ').collect();
        let number = |i: usize| words.get(i).and_then(|word| word.parse::<u64>().ok()).ok_or_else(|| self.nonsense());
        let moment = |i: usize| Ok(Moment { us: number(i)?, rem: number(i + 1)? });
        match number(0)? {
            0 => Ok(Reply::TooFar { wait_ns: pace.ns(moment(1)?) }),
            1 => Ok(Reply::Granted { now_us: number(1)?, base: moment(2)?, reset: number(4)? == 1, age_ns }),
            2 => {
                let theirs =
                    words.get(3).and_then(|word| Pace::restore(number(1).ok()?, number(2).ok()?, unit_of(word)?));
                let theirs = theirs.map_or_else(|| "another rate".to_string(), |theirs| theirs.to_string());
                let key = one_line(&String::from_utf8_lossy(&self.key(&request.key)));
                Err(self.refused(format_args!(
                    "the bucket is in use at {theirs}, not at {pace}; use the same rate, wait until it is at rest, or reset \
                     it with DEL {key}"
                )))
            }
            3 => Err(self.refused(super::too_dear(&pace, request.units))),
            4 => Err(self.foreign(&request.key)),
            _ => Err(self.nonsense()),
        }
    }

    fn give_back(&mut self, returned: &Returned) -> Result<bool, StoreError> {
        let (_, answer) = self.call(&returned.key, "return", &[returned.end, returned.back], None)?;
        Ok(answer == "1")
    }

    fn peek(&mut self, key: &[u8]) -> Result<Level, StoreError> {
        let (_, answer) = self.call(key, "peek", &[], None)?;
        let words: Vec<_> = answer.split(' ').collect();
        let number = |i: usize| words.get(i).and_then(|word| word.parse::<u64>().ok()).ok_or_else(|| self.nonsense());
        match (number(0)?, words.len()) {
            (1, 2) => Ok(Level { ahead_ns: 0, pace: None }),
            (1, 7) => {
                let unit = words.get(6).and_then(|word| unit_of(word)).ok_or_else(|| self.nonsense())?;
                let pace = Pace::restore(number(4)?, number(5)?, unit).ok_or_else(|| self.nonsense())?;
                let tat = Moment { us: number(2)?, rem: number(3)? };
                let ahead = tat.minus(Moment::whole(number(1)?), pace.n());
                Ok(Level { ahead_ns: pace.ns(ahead), pace: Some(pace) })
            }
            (4, _) => Err(self.foreign(key)),
            _ => Err(self.nonsense()),
        }
    }
}

impl RedisStore {
    fn foreign(&self, key: &[u8]) -> StoreError {
        self.refused(format_args!(
            "the key {} holds something that is not leaky's, and is left as it is; choose another --bucket",
            one_line(&String::from_utf8_lossy(&self.key(key)))
        ))
    }
}

/// Where a redirection leads: HOST:PORT, with the host left out if it is the one asked; the security is kept.
fn redirected(home: &ConnectionAddr, to: &str) -> Option<ConnectionAddr> {
    let (host, port) = to.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match home {
        ConnectionAddr::Tcp(same, _) => {
            let host = if host.is_empty() { same.as_str() } else { host };
            Some(ConnectionAddr::Tcp(host.to_string(), port))
        }
        ConnectionAddr::TcpTls { host: same, insecure, tls_params, .. } => Some(ConnectionAddr::TcpTls {
            host: if host.is_empty() { same.clone() } else { host.to_string() },
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        }),
        _ => None,
    }
}

/// The Cluster's slot of a key: CRC-16 (XMODEM) of what is between the first braces, or of the whole, modulo 16384.
fn hash_slot(key: &[u8]) -> u16 {
    let braced = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    });
    let crc = braced.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    });
    crc % 16384
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::{Rate, Unit};

    fn store(url: &str, password: Option<&str>) -> Result<RedisStore, StoreError> {
        let pace = Pace::new(&Rate::new(10, 1_000_000_000, Unit::Items).unwrap())?;
        RedisStore::new(url, password, "api", pace)
    }

    #[test]
    fn passwords_are_never_shown() {
        for url in [
            "redis://:hunter2@localhost:6379/0",
            "rediss://user:hunter2@localhost:6379",
            "unix:///run/redis.sock?pass=hunter2",
            "redis://:hunter2@localhost:port",
            "redis://:hun/hunter2@localhost",
            "redis://hunter2#x@localhost",
            "redis://:hunter2@localhost/x?protocol=hunter2",
            "redis://:hunter2@localhost?protocol=hunter2",
            "http://:hunter2@localhost",
        ] {
            let shown = match store(url, None) {
                Ok(store) => format!("{store:?} {:?}", store.classify_io(&RedisError::from(io::Error::other("x")))),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains("hunter2"), "{url}: {shown}");
        }
        let given = store("redis://localhost", Some("hunter2")).unwrap();
        assert_eq!(given.password.as_deref(), Some("hunter2"));
        assert!(!format!("{given:?}").contains("hunter2"));
        assert_eq!(store("redis://:url@localhost", Some("env")).unwrap().password.as_deref(), Some("url"));
    }

    #[test]
    fn one_key_for_a_bucket_and_one_for_each_key_of_it() {
        let store = store("redis://localhost", None).unwrap();
        assert_eq!((store.key(b""), store.key(b"a b")), (b"leaky:api".to_vec(), b"leaky:api:a b".to_vec()));
    }

    #[test]
    fn slots_are_the_clusters() {
        assert_eq!((hash_slot(b"123456789"), hash_slot(b"foo"), hash_slot(b"")), (12739, 12182, 0));
        assert_eq!(hash_slot(b"a{foo}b"), hash_slot(b"foo"));
        assert_ne!(hash_slot(b"a{}foo"), hash_slot(b"foo"));
    }

    #[test]
    fn redirections_keep_the_host_that_is_not_said() {
        let home = ConnectionAddr::Tcp("home".into(), 1);
        assert_eq!(redirected(&home, ":7001"), Some(ConnectionAddr::Tcp("home".into(), 7001)));
        assert_eq!(redirected(&home, "::1:7001"), Some(ConnectionAddr::Tcp("::1".into(), 7001)));
        assert_eq!((redirected(&home, "nonsense"), redirected(&home, "a:b")), (None, None));
    }
}
