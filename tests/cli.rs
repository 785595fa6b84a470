//! What is said about arguments, good and bad.

use crate::harness::{Dir, Outcome, leaky};
use clap::CommandFactory;
use leaky::cli::Cli;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Runs with arguments parted by `|`, so that they may hold blanks or nothing.
fn with(args: &str) -> Outcome {
    let args = args.split('|').filter(|_| !args.is_empty());
    args.fold(leaky(""), |leaky, arg| leaky.arg(arg)).stdin("x\n").run()
}

/// It is refused in one line that names `given`.
#[track_caller]
fn refuses(args: &str, given: &str) {
    let outcome = with(args);
    outcome.exits(2).writes("").says(given);
    is_one_line(&outcome);
}

#[track_caller]
fn is_one_line(outcome: &Outcome) {
    let line = outcome.stderr.strip_suffix('\n').unwrap_or("");
    outcome.check(line.starts_with("leaky: ") && !line.contains('\n'), "one line that begins with 'leaky: '");
    outcome.check(!line.contains("panicked") && line.len() > 20, "it says what is wrong and what would do");
    outcome.check(!line.contains(|c: char| c.is_control()), "nothing in it moves the cursor");
}

#[test]
fn a_bad_rate_is_refused_and_named() {
    refuses("", "--rate");
    for rate in [
        "0/s",
        "abc",
        "-1/s",
        "5/0s",
        "5/5",
        "1e400/s",
        "99999999999999999999999999/s",
        "5K/s",
        "",
        " ",
        "/",
        "5/",
        "5//s",
        "5/s/s",
        "nan",
        "inf",
        "+5/s",
        "1e3/s",
        "5.",
        "5./s",
        ".",
        "1_000/s",
        "0x10/s",
        "5/M",
        "5/month",
        "0B/s",
        "0.0/s",
        "5 /s x",
        "5XB/s",
        "٣/s",
        "5/é",
        "0",
        "@",
    ] {
        refuses(&format!("-r|{rate}"), &format!("--rate '{rate}'"));
    }
    refuses("--rate=0/s", "--rate '0/s': a rate must be above zero; for no limit say --rate unlimited");
    refuses("-r|5K/s", "k = 1000, KiB = 1024");
    refuses("-r|2/s|-r|0/s", "'0/s'");
}

#[test]
fn an_option_that_makes_no_sense_is_refused_and_named() {
    for (args, given) in [
        ("-c|0", "--capacity '0'"),
        ("-c|-1", "--capacity '-1'"),
        ("-c|1.5", "--capacity '1.5'"),
        ("-c|5K", "--capacity '5K'"),
        ("-c|99999999999999999999", "--capacity '99999999999999999999'"),
        ("-c|5 apples", "--capacity '5 apples'"),
        ("-o|dorp", "--overflow 'dorp'"),
        ("-o|", "--overflow ''"),
        ("-a|tokenbucket", "--algorithm 'tokenbucket'"),
        ("-a|gcra", "leaky-bucket"),
        ("-b|0", "--burst '0'"),
        ("-b|-3", "--burst '-3'"),
        ("-b|5s", "--burst '5s'"),
        ("-b|1KiB", "--burst '1KiB'"),
        ("--align|middle|-a|fixed-window", "--align 'middle'"),
        ("--warm-up|0", "--warm-up"),
        ("--warm-up|5", "--warm-up '5'"),
        ("--catch-up|-5ms", "--catch-up '-5ms'"),
        ("--catch-up|5", "--catch-up '5'"),
        ("--catch-up|1M", "M is refused"),
        ("--timeout|soon", "--timeout 'soon'"),
        ("--max-age|1", "--max-age '1'"),
        ("--max-age|99999999999d", "--max-age '99999999999d'"),
        ("-d|", "--delimiter ''"),
        ("-d|\\q", "--delimiter '\\q'"),
        ("-d|\\x1", "--delimiter '\\x1'"),
        ("--record-size|0", "--record-size '0'"),
        ("--record-size|5s", "--record-size '5s'"),
        ("-B|--chunk|0", "--chunk '0'"),
        ("-B|--chunk|big", "--chunk 'big'"),
        ("-k|field:0", "--key 'field:0'"),
        ("-k|field:", "--key 'field:'"),
        ("-k|field:-1", "--key 'field:-1'"),
        ("-k|regex:(", "--key 'regex:('"),
        ("-k|regex:", "--key 'regex:'"),
        ("-k|json:a", "--key 'json:a'"),
        ("-k|json:/~2", "--key 'json:/~2'"),
        ("-k|1", "--key '1'"),
        ("-k|", "--key ''"),
        ("-k|field:1|--max-keys|0", "--max-keys '0'"),
        ("-k|field:1|--max-keys|many", "--max-keys 'many'"),
        ("-k|field:1|--max-keys|5s", "--max-keys '5s'"),
        ("-k|field:1|-t|", "--field-separator ''"),
        ("--replay|never", "--replay 'never'"),
        ("--replay|field:1|--speed|0", "--speed '0'"),
        ("--replay|field:1|--speed|-1", "--speed '-1'"),
        ("--replay|field:1|--speed|NaN", "--speed 'NaN'"),
        ("--replay|field:1|--speed|inf", "--speed 'inf'"),
        ("--replay|field:1|--speed|1e3", "--speed '1e3'"),
        ("--replay|field:1|--speed|", "--speed ''"),
        ("--replay|field:1|--max-gap|5", "--max-gap '5'"),
        ("--stats=yaml", "--stats 'yaml'"),
        ("--stats=", "--stats"),
        ("--completions|tcsh", "--completions 'tcsh'"),
        ("--no-such-thing", "--no-such-thing"),
        ("--capactiy|5", "--capacity"),
        ("-Z", "-Z"),
        ("-c", "--capacity"),
        ("--lockstep=yes", "--lockstep"),
        ("-q|-q", "--quiet"),
        ("-c|1|-c|2", "--capacity"),
    ] {
        refuses(&format!("-r|5/s|{args}"), given);
    }
}

#[test]
fn options_that_need_others_or_exclude_each_other_say_so() {
    for (args, given) in [
        ("-r|5/s|--align|clock", "--align 'clock'"),
        ("-r|5/s|-a|fixed-window|-b|5", "--burst '5'"),
        ("-r|5/s|-a|sliding-window|--warm-up|5s", "--warm-up '5s'"),
        ("-r|5/s|-b|5|--warm-up|5s", "--warm-up '5s'"),
        ("-r|5/s|--strict|--catch-up|1ms", "--strict"),
        ("-r|5/s|-b|5|--strict", "--strict"),
        ("-r|5/s|-b|5|--catch-up|1ms", "--catch-up '1ms'"),
        ("-r|5/s|-a|fixed-window|--strict", "--strict"),
        ("-r|5/s|-a|sliding-window|--catch-up|1ms", "--catch-up '1ms'"),
        ("-r|5/s|--chunk|5", "--chunk '5'"),
        ("-r|5/s|-B", "--chunk"),
        ("-r|5/s|-0|-l", "--lines --null"),
        ("-r|5/s|-B|--chunk|1|-d|x", "--delimiter --bytes"),
        ("-r|5/s|--cost|field:1", "--cost 'field:1'"),
        ("-r|5B/s|-k|field:1", "--lines"),
        ("-r|5/s|--max-keys|5", "--key"),
        ("-r|5/s|-t|,", "--field-separator ','"),
        ("-r|5/s|--speed|2", "--replay"),
        ("-r|5/s|--max-gap|2s", "--replay"),
        ("-r|5/s|--timeout|1s|-o|block", "--timeout '1s'"),
        ("-r|5/s|--timeout|1s|-o|drop-oldest", "--timeout '1s'"),
        ("-r|unlimited|-c|5s", "--capacity '5s'"),
        ("-r|unlimited|-b|5", "--burst '5'"),
        ("-r|unlimited|-a|token-bucket", "--algorithm 'token-bucket'"),
        ("-r|unlimited|--warm-up|5s", "--warm-up '5s'"),
        ("-r|5/s|--lockstep|--simulate", "--lockstep"),
        ("-r|1000001/s|-a|sliding-window", "1000000"),
        ("-r|18446744073709551615/s|-r|18446744073709551614/s", "--rate"),
        ("-r|5/s|input.txt", "< input.txt"),
        ("5/s", "say --rate 5/s"),
    ] {
        refuses(args, given);
    }
}

#[test]
fn nothing_is_read_or_written_before_the_arguments_are_known_to_be_good() {
    let dir = Dir::new();
    let outcome = leaky("-r 0/s --dropped").arg(dir.path("d")).stdin("x\n").run();
    outcome.exits(2);
    assert!(!dir.path("d").exists());
}

/// Every option that takes a value, with values nobody had in mind: no panic, one line, exit 2, or it runs.
#[test]
fn no_argument_makes_it_panic() {
    let command = Cli::command();
    let with_value = command.get_arguments().filter(|arg| arg.get_num_args().is_none_or(|n| n.takes_values()));
    let names: Vec<String> = with_value.filter_map(|arg| arg.get_long()).map(|name| format!("--{name}")).collect();
    assert!(names.len() > 20, "{names:?}");
    let values =
        ["", "0", "-1", "999999999999999999999", "é", "\u{1b}[31m\n\t\"'\\{}%s", "--", "1/s", "field:1", "5ms"];
    let dir = Dir::new();
    for name in &names {
        for value in values {
            // A name of a file may be anything, and would leave one behind.
            if ["--dropped", "--metrics"].contains(&name.as_str()) && !value.is_empty() {
                continue;
            }
            let value = OsString::from(value);
            let arg = [OsString::from(format!("{name}=")), value].concat_os();
            let base = if name == "--rate" { "" } else { "-r 1000/s" };
            let script = format!("cd '{}' && exec \"$@\"", dir.path("").display());
            no_panic(leaky(base).arg(arg).through(&script).stdin("x\n").run());
        }
    }
}

trait ConcatOs {
    fn concat_os(self) -> OsString;
}

impl ConcatOs for [OsString; 2] {
    fn concat_os(self) -> OsString {
        let [mut one, two] = self;
        one.push(two);
        one
    }
}

#[track_caller]
fn no_panic(outcome: Outcome) {
    match outcome.status.and_then(|status| status.code()) {
        Some(0) => {
            outcome.check(!outcome.stderr.contains("panicked"), "no panic");
        }
        Some(1 | 2) => {
            is_one_line(&outcome);
            outcome.writes("");
        }
        _ => {
            outcome.check(false, "0, 1 or 2");
        }
    }
}

#[test]
fn arguments_that_are_not_utf8_are_refused_and_file_names_may_be_so() {
    let odd = || OsString::from_vec(b"\xff\xfe".to_vec());
    for option in ["--rate", "--capacity", "--key", "--delimiter", "--overflow", "--stats"] {
        let arg = [OsString::from(format!("{option}=")), odd()].concat_os();
        let outcome = leaky("-r 5/s").arg(arg).stdin("x\n").run();
        outcome.exits(2).writes("");
        is_one_line(&outcome);
    }
    no_panic(leaky("-r 5/s").arg(odd()).stdin("x\n").run());
    let dir = Dir::new();
    let file = dir.path("").join(odd());
    leaky("-r 1/h -c 1 -o drop -q --dropped").arg(&file).stdin("1\n2\n").run().exits(0);
    assert_eq!(std::fs::read(file).unwrap(), b"2\n");
}

#[test]
fn values_may_begin_with_a_hyphen() {
    leaky("-r 100/s -d -").stdin("a-b").run().exits(0).writes("a-b");
    leaky("-r 100/s -k regex:x -t -").stdin("x\n").run().exits(2);
    leaky("-r 100/s -k field:2 -t -").stdin("a-b\n").run().exits(0).writes("a-b\n");
}

#[test]
fn the_whole_grammar_is_understood_and_told() {
    for (args, told) in [
        ("-r 2/s", "2 items per second, one every 500ms"),
        ("-r 0.1/s", "1 item per 10s, one every 10s"),
        ("-r 6/m", "one every 10s"),
        ("-r 30/min", "one every 2s"),
        ("-r 5/15s", "5 items per 15s"),
        ("-r 1/90s", "one every 1m 30s"),
        ("-r 20/ms", "20 items per millisecond"),
        ("-r 7/13h", "7 items per 13h"),
        ("-r 100k/s", "100000 items"),
        ("-r 5", "5 items per second"),
        ("-r 10MiB/s", "10 MiB per second"),
        ("-r 1.5MB/s", "1500 kB per second"),
        ("-r 8Mbit/s", "8 Mbit per second"),
        ("-r 5/500ms", "5 items per 500ms"),
        ("-r 60cost/min", "60 of cost per minute"),
        ("-r 1/s -r 5/m", "1 item per second, one every 1s, and at once 5 items per minute, one every 12s"),
        ("-r unlimited", "no limit"),
        ("-r 2/s -c 3s", "5 may wait"),
        ("-r 2/s -c 2k", "1999 may wait"),
        ("-r 2/s -c 1KiB", "1KiB may be in the bucket"),
        ("-r 100B/s", "chunks of 1B at most"),
        ("-r 1MB/s", "chunks of 10kB at most"),
        ("-r 64KiB/s", "chunks of 655B at most"),
        ("-r 1GB/s", "chunks of 64KiB at most"),
        ("-r 1GB/s -c 100B", "chunks of 100B at most"),
        ("-r 5/s -b 3", "after idling 3 items may leave back to back"),
        ("-r 5/s -a token-bucket", "5 items may leave back to back"),
        ("-r 5/s -a fixed-window --align clock", "UTC grid"),
        ("-r 5/s --timeout 2s", "further ones wait 2s for room and are dropped then"),
        ("-r 5/s -o fail", "ends the run with status 3"),
    ] {
        let outcome = leaky(args).arg("-v").stdin("").run();
        outcome.exits(0).says(told);
    }
}

#[test]
fn help_version_and_completions_go_to_stdout() {
    for help in ["-h", "--help"] {
        let outcome = leaky(help).run();
        outcome.exits(0).is_silent();
        let text = String::from_utf8(outcome.stdout.clone()).expect("text");
        for name in ["--rate", "--capacity", "--overflow", "--dropped", "--lockstep"] {
            assert!(text.contains(name), "{help}: {name}");
        }
    }
    for version in ["-V", "--version"] {
        leaky(version).run().exits(0).is_silent().writes(format!("leaky {}\n", env!("CARGO_PKG_VERSION")));
    }
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let outcome = leaky("--completions").arg(shell).run();
        outcome.exits(0).is_silent();
        outcome.check(String::from_utf8_lossy(&outcome.stdout).contains("lockstep"), "it knows the options");
    }
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for args in ["--help", "--version", "--completions=bash"] {
        leaky(args).stdout_to(full()).run().exits(1).says("No space left");
    }
}

/// What is said of every option, so that no page forgets one.
fn every_option_is_in(page: &str, as_written: impl Fn(&str) -> String) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: there is no {page} yet");
        return;
    };
    let command = Cli::command();
    let missing: Vec<&str> = command
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .filter(|name| {
            let wanted = as_written(name);
            let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
            !text.match_indices(&wanted).any(|(at, _)| ends(&text[at + wanted.len()..]))
        })
        .collect();
    assert!(missing.is_empty(), "{page} does not tell of {missing:?}");
}

#[test]
fn the_manual_page_tells_of_every_option() {
    every_option_is_in("man/leaky.1", |name| format!("Fl -{name}"));
}

#[test]
fn the_readme_tells_of_every_option() {
    every_option_is_in("README.md", |name| format!("--{name}"));
}
