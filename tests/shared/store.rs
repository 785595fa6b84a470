//! Shared buckets with real files, real processes and a real server: several at once, killed, stopped, refused.
//!
//! Where redis-server is absent its tests say that they were skipped; with CI=true they fail.

use leaky::rate::{Rate, Unit};
use leaky::shared::client::{Client, Timer, Turn};
use leaky::shared::ledger::{OnOutage, Settings};
use leaky::shared::reservation::{Moment, Terms};
use leaky::shared::{self, Environment, Reply, Request, Store, StoreError};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

fn terms(n: u64) -> Terms {
    Terms::new(&Rate::new(n, S, Unit::Items).unwrap(), 1).unwrap()
}

fn open(place: impl AsRef<Path>, n: u64) -> Result<Box<dyn Store + Send>, StoreError> {
    shared::open(place.as_ref().as_os_str(), "default", terms(n), &Environment::default())
}

fn request(units: u64) -> Request {
    Request { key: vec![], units, credit: 0, max_wait_ns: None, floor: Moment::default() }
}

/// Reserves; how long the first unit waits.
fn wait_us(store: &mut dyn Store, units: u64) -> Result<u64, StoreError> {
    match store.reserve(&request(units))? {
        Reply::Granted { now_us, base, .. } => Ok(base.us - now_us),
        Reply::TooFar { wait_ns } => panic!("too far: {wait_ns}"),
    }
}

struct Real;

impl Timer for Real {
    fn now_ns(&mut self) -> u64 {
        leaky::clock::boottime()
    }
    fn wait_until(&mut self, ns: u64) -> bool {
        std::thread::sleep(Duration::from_nanos(ns.saturating_sub(self.now_ns())));
        true
    }
}

/// Not a test: what the processes of the tests do. Takes turns and says when each began.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn child() {
    let Ok(place) = std::env::var("CHILD_PLACE") else {
        return;
    };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (n, turns) = (number("CHILD_RATE"), number("CHILD_TURNS"));
    let environment = Environment { password: std::env::var(shared::PASSWORD_VARIABLE).ok(), ..Environment::default() };
    let store = shared::open(place.as_ref(), "default", terms(n), &environment);
    let store = store.unwrap_or_else(|error| panic!("{error}"));
    let on_outage = OnOutage::Block;
    let settings = Settings { terms: terms(n), catch_up_ns: 50 * MS, on_outage, seed: std::process::id().into() };
    let (mut client, mut timer) = (Client::new(store, settings), Real);
    for _ in 0..turns {
        let turn = client.turn(b"", 1, None, &mut timer, &mut |notice| eprintln!("notice {notice:?}"));
        assert_eq!(turn, Ok(Turn::Go));
        println!("went {}", timer.now_ns());
    }
}

fn start(place: impl AsRef<Path>, n: u64, turns: u64) -> Child {
    start_into(Stdio::piped(), place, n, turns)
}

fn start_into(stdout: Stdio, place: impl AsRef<Path>, n: u64, turns: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::child", "--ignored", "--nocapture"])
        .env("CHILD_PLACE", place.as_ref())
        .env("CHILD_RATE", n.to_string())
        .env("CHILD_TURNS", turns.to_string())
        .stdout(stdout)
        .spawn()
        .unwrap()
}

/// Until it ends: when its turns began.
fn times(child: &mut Child) -> Vec<u64> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let times = lines.map_while(Result::ok).filter_map(|line| line.split_once("went ")?.1.parse().ok()).collect();
    child.wait().unwrap();
    times
}

/// Takes turns in many processes at once; all times, in order.
fn together(place: &Path, processes: usize, n: u64, turns: u64, meanwhile: impl FnOnce(&mut [Child])) -> Vec<u64> {
    let mut children: Vec<_> = (0..processes).map(|_| start(place, n, turns)).collect();
    meanwhile(&mut children);
    let mut all: Vec<_> = children.iter_mut().flat_map(times).collect();
    all.sort_unstable();
    all
}

/// No turn is earlier after any turn before it than the rate allows, but for `late_ns` and `units`.
fn check(times: &[u64], n: u64, late_ns: u64, units: u64) {
    let (mut highest, t) = (i128::MIN, i128::from(S / n));
    for (i, at) in times.iter().enumerate() {
        let x = i128::from(*at) - t * i as i128;
        let most = i128::from(late_ns) + t * i128::from(units);
        assert!(highest == i128::MIN || x >= highest - most, "turn {i} is {} us too early", (highest - x) / 1000);
        highest = highest.max(x);
    }
}

fn span(times: &[u64]) -> f64 {
    (times[times.len() - 1] - times[0]) as f64 / S as f64
}

#[test]
fn eight_processes_share_a_file_exactly() {
    let directory = tempfile::tempdir().unwrap();
    let times = together(&directory.path().join("f"), 8, 200, 25, |_| {});
    assert_eq!(times.len(), 200);
    check(&times, 200, 60 * MS, 0);
    assert!(span(&times) > 0.93, "{}", span(&times));
}

#[test]
#[ignore = "it measures: run it alone, with --release and --nocapture"]
fn file_operations_per_second() {
    for threads in [1u32, 8] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let work = || {
            // As many open files as there would be in as many processes.
            let mut store = open(&path, 1_000_000_000).unwrap();
            let (began, mut count) = (Instant::now(), 0u32);
            while began.elapsed() < Duration::from_secs(2) {
                wait_us(&mut *store, 1).unwrap();
                count += 1;
            }
            count
        };
        let all = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u32>()
        });
        println!("{threads} at once: {} operations a second", all / 2);
    }
}

#[test]
fn a_killed_process_blocks_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    // As fast as it goes, so that they are often killed while they hold the lock.
    let mut children: Vec<_> = (0..4).map(|_| start_into(Stdio::null(), &path, 1_000_000, u64::MAX)).collect();
    let mut store = open(&path, 1_000_000).unwrap();
    let mut waits = Vec::new();
    for round in 0..50 {
        std::thread::sleep(Duration::from_millis(round % 7));
        let child = &mut children[round as usize % 4];
        child.kill().unwrap();
        child.wait().unwrap();
        let began = Instant::now();
        let reply = store.reserve(&request(1)).unwrap();
        waits.push(began.elapsed());
        assert!(matches!(reply, Reply::Granted { reset: false, .. }), "the state is whole");
        children[round as usize % 4] = start_into(Stdio::null(), &path, 1_000_000, u64::MAX);
    }
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Within 100 ms, mostly: a machine busy with other things is late. Whoever is blocked waits for ever.
    waits.sort_unstable();
    assert!(waits[25] < Duration::from_millis(100) && waits[49] < Duration::from_secs(5), "{waits:?}");
}

#[test]
fn removing_the_file_in_mid_run_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    let times = together(&path, 4, 100, 50, |_| {
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(100));
            let _ = std::fs::remove_file(&path);
        }
    });
    assert_eq!(times.len(), 200);
    // A process that opens the file just after its removal knows nothing of the one before it.
    check(&times, 100, 60 * MS, 4);
}

#[test]
fn a_stopped_process_bursts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let times = together(&directory.path().join("f"), 3, 100, 100, |children| {
        let pid = rustix::process::Pid::from_child(&children[0]);
        std::thread::sleep(Duration::from_millis(300));
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    });
    assert_eq!(times.len(), 300);
    check(&times, 100, 60 * MS, 1);
}

#[test]
fn full_and_read_only_file_systems_are_said() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let options = std::ffi::CString::new("size=8k,mode=700").unwrap();
    if let Err(error) = mount("tmpfs", at, "tmpfs", MountFlags::empty(), options.as_c_str()) {
        eprintln!("skipped: no tmpfs can be mounted here ({error})");
        return;
    }
    let mut kept = open(at.join("kept"), 10).unwrap();
    let before = wait_us(&mut kept, 1);
    let filled = std::fs::write(at.join("rest"), [0; 16384]);
    let full = open(at.join("full"), 10).and_then(|mut store| wait_us(&mut store, 1));
    // A record that is there can be written over on a full disk.
    let still = wait_us(&mut kept, 1);
    drop(kept);
    let remounted = mount_remount(at, MountFlags::RDONLY, c"");
    let read_only = open(at.join("new"), 10).map(|_| ());
    unmount(at, UnmountFlags::DETACH).unwrap();
    assert_eq!((before, filled.is_err()), (Ok(0), true));
    assert!(full.as_ref().is_err_and(|error| error.to_string().contains("no room for the state")), "{full:?}");
    assert!(still.as_ref().is_ok_and(|wait| *wait > 0), "{still:?}");
    let error = read_only.unwrap_err();
    assert!(remounted.is_err() || error.to_string().contains("cannot be read and written"), "{error}");
}

#[cfg(feature = "redis")]
mod with_a_server {
    use super::*;
    use crate::server::{Server, free_port, server, spawn};
    use leaky::shared::background::Background;
    use leaky::shared::ledger::{Ask, Ledger, Need};
    use leaky::shared::redis::RedisStore;
    use leaky::shared::reservation::{self, Order, Pace, State, Verdict};
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    /// The message of what must fail.
    fn said<T: std::fmt::Debug>(result: Result<T, StoreError>, outage: bool) -> String {
        let error = result.unwrap_err();
        assert_eq!((error.is_outage(), error.to_string().lines().count()), (outage, 1), "{error}");
        error.to_string()
    }

    #[test]
    fn eight_processes_share_a_server_exactly() {
        let server = server!();
        let times = together(server.url().as_ref(), 8, 200, 25, |_| {});
        assert_eq!(times.len(), 200);
        check(&times, 200, 60 * MS, 0);
        assert!(span(&times) > 0.93, "{}", span(&times));
    }

    #[test]
    fn the_script_reckons_as_the_core_does() {
        let server = server!();
        let mut connection = server.connection();
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 16) % below
        };
        let paces =
            [(3, S), (7, 13 * S), (999_999_999_989, 3600 * S), (1 << 52, 1000), (1, 86_400 * S), (1_000_003, 7_001)];
        let (mut granted, mut refused) = (0, 0);
        for (n, p_ns) in paces {
            let pace = Pace::new(&Rate::new(n, p_ns, Unit::Items).unwrap()).unwrap();
            let url = server.url();
            let mut store = RedisStore::new(&url, None, &format!("{n}"), pace).unwrap();
            let key = format!("leaky:{n}");
            let per_ms = (u128::from(pace.n()) * 1000 / u128::from(pace.p_us())).clamp(1, 1 << 40) as u64;
            let mut floor = Moment::default();
            for _ in 0..200 {
                let value: Option<String> = redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
                let state = value.map(|value| {
                    let words: Vec<u64> = value.split(' ').filter_map(|word| word.parse().ok()).collect();
                    State { pace, tat: Moment { us: words[2], rem: words[3] } }
                });
                let (units, credit) = (1 + next(3 * per_ms), next(2 * per_ms));
                let max_wait_ns = (next(2) == 0).then(|| next(5 * MS));
                let asked = Request { key: vec![], units, credit, max_wait_ns, floor };
                let order = Order::new(&pace, units, credit, max_wait_ns, floor).unwrap();
                match store.reserve(&asked) {
                    Ok(Reply::Granted { now_us, base, .. }) => {
                        let Verdict::Granted { base: ours, state, .. } =
                            reservation::reserve(&pace, state, now_us, &order)
                        else {
                            panic!("granted there, not here: {asked:?}")
                        };
                        assert_eq!(base, ours);
                        let value: String = redis::cmd("GET").arg(&key).query(&mut connection).unwrap_or_default();
                        let tat = format!(" {} {}", state.tat.us, state.tat.rem);
                        assert!(value.ends_with(&tat) || value.is_empty(), "{value:?} {tat:?}");
                        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
                        let ahead = (state.tat.us - now_us) as i64 / 1000;
                        assert!((ahead - 50..=ahead + 3).contains(&ttl) || ttl < 0, "{ttl} {ahead}");
                        (granted, floor) = (granted + 1, state.tat);
                    }
                    Ok(Reply::TooFar { wait_ns }) => {
                        assert!(max_wait_ns.is_some_and(|most| wait_ns > most));
                        refused += 1;
                    }
                    Err(error) => {
                        // The far horizon: a day, or 10^5 T.
                        assert!(error.to_string().contains("looks ahead"), "{error}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(granted > 300 && refused > 50, "{granted} {refused}");
    }

    #[test]
    fn units_come_back_if_nobody_came_after() {
        let server = server!();
        let (mut one, mut other) = (open(server.url(), 10).unwrap(), open(server.url(), 10).unwrap());
        let Reply::Granted { base, .. } = one.reserve(&request(20)).unwrap() else { panic!() };
        let (end, back) = (Moment::whole(base.us + 2_000_000), Moment::whole(1_500_000));
        let returned = shared::Returned { key: vec![], end, back };
        assert_eq!(one.give_back(&returned), Ok(true));
        assert_eq!(one.give_back(&returned), Ok(false));
        let level = other.peek(b"").unwrap();
        assert!((4.0..=5.0).contains(&level.units()), "{level:?}");
        assert!(wait_us(&mut other, 1).unwrap() <= 500_000);
        let end = Moment::whole(base.us + 500_000);
        assert_eq!(one.give_back(&shared::Returned { key: vec![], end, back }), Ok(false));
        let keyed = Request { key: b"a".to_vec(), ..request(1) };
        assert!(matches!(one.reserve(&keyed), Ok(Reply::Granted { now_us, base, .. }) if base.us == now_us));
        assert_eq!(server.run::<Vec<String>>(&["KEYS", "*:a"]), ["leaky:default:a"]);
    }

    #[test]
    fn refusals_are_told_apart_and_change_nothing() {
        let server = server!("--requirepass", "hunter2");
        let place = format!("127.0.0.1:{}", server.port);
        let text = said(wait_us(&mut open(format!("redis://{place}"), 10).unwrap(), 1), false);
        assert!(text.contains("wants a password") && text.contains(shared::PASSWORD_VARIABLE), "{text}");
        let text = said(wait_us(&mut open(format!("redis://:wr0ng@{place}"), 10).unwrap(), 1), false);
        assert!(text.contains("does not take this user and password") && !text.contains("wr0ng"), "{text}");
        let environment = Environment { password: Some("hunter2".into()), ..Environment::default() };
        let url = format!("redis://{place}/3");
        let mut given = shared::open(url.as_ref(), "default", terms(10), &environment).unwrap();
        assert_eq!(wait_us(&mut given, 5), Ok(0));

        let client = redis::Client::open(format!("redis://:hunter2@{place}/3")).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut run =
            |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut connection).unwrap();
        let text = said(wait_us(&mut open(format!("redis://:hunter2@{place}/3"), 20).unwrap(), 1), false);
        assert!(text.contains("in use at 10/s, not at 20/s") && text.contains("DEL leaky:default"), "{text}");
        run(&["SCRIPT", "FLUSH"]);
        assert!(wait_us(&mut given, 1).is_ok(), "a script that is gone is sent again");
        for (make, look, kept) in [
            (["RPUSH", "leaky:default", "mine"], ["LINDEX", "leaky:default", "0"].as_slice(), "mine"),
            (["SET", "leaky:default", "Dear diary"], &["GET", "leaky:default"], "Dear diary"),
        ] {
            run(&["DEL", "leaky:default"]);
            run(&make);
            assert!(said(wait_us(&mut given, 1), false).contains("leaky:default holds something that is not leaky's"));
            assert!(said(given.peek(b"").map(|_| ()), false).contains("not leaky's"));
            assert_eq!(run(look), redis::Value::BulkString(kept.into()));
        }
        run(&["DEL", "leaky:default"]);
        run(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(said(wait_us(&mut given, 1), true).contains("out of memory"));
        run(&["CONFIG", "SET", "maxmemory", "0"]);
        run(&["REPLICAOF", "127.0.0.1", "1"]);
        assert!(said(wait_us(&mut given, 1), true).contains("read-only replica"));
        run(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(wait_us(&mut given, 1), Ok(0), "an outage passes");
        run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        said(wait_us(&mut given, 1), true);
        assert!(wait_us(&mut given, 1).is_ok(), "and the next call connects anew");
    }

    #[test]
    fn no_server_and_one_that_hangs() {
        let port = free_port();
        let text = said(wait_us(&mut open(format!("redis://127.0.0.1:{port}"), 10).unwrap(), 1), true);
        assert!(text.contains("no server is listening"), "{text}");
        let text = said(wait_us(&mut open("unix:///nowhere/redis.sock", 10).unwrap(), 1), true);
        assert!(text.contains("no server is listening"), "{text}");
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        for scheme in ["redis", "rediss"] {
            let url = format!("{scheme}://127.0.0.1:{}", silent.local_addr().unwrap().port());
            let began = Instant::now();
            let text = said(wait_us(&mut open(&url, 10).unwrap(), 1), true);
            assert!(text.contains("does not answer"), "{text}");
            assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        }
        let talks = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = talks.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for peer in talks.incoming().take(2) {
                use std::io::{Read, Write};
                let mut peer = peer.unwrap();
                let _ = peer.read(&mut [0; 1024]);
                let _ = peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        });
        let text = said(wait_us(&mut open(format!("redis://127.0.0.1:{port}"), 10).unwrap(), 1), false);
        assert!(text.contains("not Redis or Valkey"), "{text}");
        let text = said(wait_us(&mut open(format!("rediss://127.0.0.1:{port}"), 10).unwrap(), 1), false);
        assert!(text.contains("no secure connection"), "{text}");
    }

    #[test]
    fn a_server_killed_and_restarted_in_mid_run() {
        let mut server = server!();
        let url = server.url();
        let times = together(url.as_ref(), 3, 100, 100, |_| {
            std::thread::sleep(Duration::from_millis(700));
            server.kill();
            std::thread::sleep(Duration::from_millis(500));
            server.restart();
        });
        assert_eq!(times.len(), 300);
        // What was in hand when the state was lost, and no more.
        check(&times, 100, 60 * MS, 3);
    }

    #[test]
    fn a_unix_socket_and_a_leaker_with_its_calls_in_the_background() {
        let server = server!();
        let socket = server.directory.path().join("s");
        // Given at run time, as the directory is not known before.
        let mut process =
            spawn(0, server.directory.path(), &["--unixsocket".into(), socket.to_string_lossy().into_owned()]);
        while !socket.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let store = open(format!("unix://{}", socket.display()), 1000).unwrap();
        let (wake, woken) = channel();
        let wake = move || wake.send(()).unwrap_or_default();
        let background = Background::start(store, || Real.now_ns(), wake).unwrap();
        let settings = Settings { terms: terms(1000), catch_up_ns: 50 * MS, on_outage: OnOutage::Block, seed: 1 };
        let (mut ledger, mut left, mut calls) = (Ledger::new(settings), Vec::new(), 0);
        while left.len() < 500 {
            let now = Real.now_ns();
            let waiting = 500 - left.len() as u64;
            if let Ask::Call(request) = ledger.ask(b"", Need { cost: 1, waiting, max_wait_ns: None }, now) {
                assert!(background.call(request));
                calls += 1;
            }
            match ledger.slot(b"", 1, now) {
                Some(at) if at <= now => {
                    ledger.take(b"", 1);
                    left.push(now);
                }
                Some(at) => assert!(Real.wait_until(at)),
                None => woken.recv_timeout(Duration::from_secs(5)).unwrap(),
            }
            while let Some(answer) = background.answer() {
                ledger.answered(answer).unwrap();
            }
        }
        background.finish(ledger.finish(), Duration::from_secs(1));
        process.kill().unwrap();
        process.wait().unwrap();
        check(&left, 1000, 60 * MS, 0);
        assert!(span(&left) < 0.7 && calls <= 60, "{} s, {calls} calls", span(&left));
    }

    #[test]
    fn a_cluster_sends_the_call_to_the_server_of_the_key() {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let (Some(one), Some(two)) = (Server::start(&options), Server::start(&options)) else {
            return;
        };
        one.run::<String>(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
        two.run::<String>(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
        one.run::<String>(&["CLUSTER", "MEET", "127.0.0.1", &two.port.to_string()]);
        let settled = |server: &Server| server.run::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        let began = Instant::now();
        while !(settled(&one) && settled(&two)) {
            assert!(began.elapsed() < Duration::from_secs(20), "the cluster does not settle");
            std::thread::sleep(Duration::from_millis(50));
        }
        let (mut a, mut b) = (open(one.url(), 10).unwrap(), open(two.url(), 10).unwrap());
        for key in [b"".as_slice(), b"a", b"b", b"c", b"d", b"e"] {
            let ask =
                |store: &mut dyn Store| match store.reserve(&Request { key: key.to_vec(), ..request(10) }).unwrap() {
                    Reply::Granted { now_us, base, .. } => base.us - now_us,
                    reply => panic!("{reply:?}"),
                };
            assert_eq!(ask(&mut a), 0);
            assert!(ask(&mut b) > 800_000 && ask(&mut a) > 1_800_000);
        }
        let keys = |server: &Server| server.run::<i64>(&["DBSIZE"]);
        assert!(keys(&one) > 0 && keys(&two) > 0 && keys(&one) + keys(&two) == 6);
    }

    #[test]
    fn certificates_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let made = Command::new("openssl")
            .args("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=leaky -keyout key -out cert".split(' '))
            .args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"])
            .current_dir(directory.path())
            .stderr(Stdio::null())
            .status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("skipped: openssl is not installed");
            return;
        }
        let at = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
        let (cert, key) = (at("cert"), at("key"));
        let files = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-auth-clients", "no"];
        // The plain port moves elsewhere: the last one given counts.
        let Some(server) = Server::start(&[&["--port", "0", "--tls-port", "PORT"], files.as_slice()].concat()) else {
            return;
        };
        let url = format!("rediss://127.0.0.1:{}", server.port);
        let text = said(wait_us(&mut open(&url, 10).unwrap(), 1), false);
        assert!(text.contains("no secure connection") || text.contains("no connection can be made"), "{text}");
        let text = said(wait_us(&mut open(url.replace("rediss", "redis"), 10).unwrap(), 1), true);
        assert!(text.contains("the connection fails"), "{text}");
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::child", "--ignored", "--nocapture"])
            .envs([
                ("CHILD_PLACE", url.as_str()),
                ("CHILD_RATE", "100"),
                ("CHILD_TURNS", "3"),
                ("SSL_CERT_FILE", &cert),
            ])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).matches("went ").count(), 3, "{output:?}");
    }
}
