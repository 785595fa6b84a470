//! Rates, sizes, durations and amounts: what people write, and exactly what it means.
//!
//! Everything is read into whole numbers. A decimal is cleared by a power of ten (0.25/s is 25 per
//! 100 s), so no floating point comes near a schedule, and whatever does not fit 64 bits is refused
//! instead of rounded.
//!
//! A number is ASCII digits with at most one point, and a digit must follow the point: `.5` is 0.5,
//! `5.` is refused. There are no signs, exponents or separators. White space around a text is
//! ignored; within one it is refused, but for durations of several parts (`1h 30m`). An error says
//! what is wrong and what would do, on one line and without the text it is about: the caller knows
//! that, and which option it came from.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;

const KILO: u64 = 1_000;
const MEGA: u64 = 1_000_000;
const GIGA: u64 = 1_000_000_000;
const TERA: u64 = 1_000_000_000_000;

/// What is printed takes the first name that divides it, so the longest come first.
const TIMES: &[(u64, &str)] =
    &[(DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"), (MILLI, "ms"), (1_000, "us"), (1, "ns")];
const BYTES: &[(u64, &str)] = &[
    (1 << 40, "TiB"),
    (TERA, "TB"),
    (1 << 30, "GiB"),
    (GIGA, "GB"),
    (1 << 20, "MiB"),
    (MEGA, "MB"),
    (1 << 10, "KiB"),
    (KILO, "kB"),
    (1, "B"),
];
const BITS: &[(u64, &str)] = &[(GIGA, "Gbit"), (MEGA, "Mbit"), (KILO, "kbit"), (1, "bit")];

const ABOVE_ZERO: &str = "a rate must be above zero; for no limit say --rate unlimited";
const RATE_RANGE: &str = "too large or too fine: n units per p nanoseconds, n and p must each fit 64 bits";
const TIME_RANGE: &str = "a duration must be whole nanoseconds and fit 64 bits of them (584 years)";

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Lines, records or chunks, each of cost 1.
    Items,
    /// Bytes, delimiters included.
    Bytes,
    /// Eight to a byte.
    Bits,
    /// What `--cost` reads out of an item.
    Cost,
}

impl Unit {
    fn names(self) -> &'static [(u64, &'static str)] {
        match self {
            Unit::Items => &[(1, "")],
            Unit::Bytes => BYTES,
            Unit::Bits => BITS,
            Unit::Cost => &[(1, "cost")],
        }
    }
}

/// n units per period of p nanoseconds, both at least 1 and never reduced: to a window, `10/2s` is
/// not `5/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    n: u64,
    p: u64,
    unit: Unit,
    count: u64,
}

impl Rate {
    /// `n` units per `p` nanoseconds, as if COUNT had been written `n`; `None` if either is zero,
    /// as neither "nothing, ever" nor "at once" is a speed.
    pub const fn new(n: u64, p: u64, unit: Unit) -> Option<Rate> {
        if n == 0 || p == 0 {
            return None;
        }
        Some(Rate { n, p, unit, count: n })
    }

    /// Units per period, at least 1.
    pub const fn n(&self) -> u64 {
        self.n
    }

    /// The period in nanoseconds, at least 1.
    pub const fn p(&self) -> u64 {
        self.p
    }

    /// What n counts.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// COUNT as written, in units, rounded down but at least 1: the token bucket's default burst. n
    /// will not do for that, as clearing a decimal makes it larger: 2.5/s is 25 per 10 s, yet 2 may
    /// leave back to back.
    pub const fn count_as_written(&self) -> u64 {
        self.count
    }

    /// Orders by n/p without rounding, slowest first, so that the strictest of several rates is the
    /// minimum; eight bits are a byte. Between other units it compares the numbers.
    pub fn cmp_speed(&self, other: &Rate) -> Ordering {
        let cross = |a: &Rate, b: &Rate| {
            let per_byte = if a.unit == Unit::Bytes && b.unit == Unit::Bits { 8 } else { 1 };
            (u128::from(a.n) * u128::from(b.p)).saturating_mul(per_byte)
        };
        cross(self, other).cmp(&cross(other, self))
    }

    /// The decimals COUNT was written with, and ten to the power of that: only where it would otherwise be another one.
    fn decimals(&self) -> (usize, u64) {
        let (mut places, mut ten) = (0, 1);
        while places < 19 && (self.n / ten).max(1) != self.count {
            places += 1;
            ten *= 10;
        }
        (places, ten)
    }

    /// `units` in `ns` nanoseconds as COUNT and UNIT of a rate written like this one: `9.98MiB` beside `10MiB/s`.
    pub fn reached(&self, units: u64, ns: u64) -> String {
        let (places, ten) = self.decimals();
        let names = self.unit.names();
        let divides = |(size, _): &&(u64, &str)| places == 0 && self.n.is_multiple_of(*size);
        let (size, name) = names.iter().find(divides).or(names.last()).copied().unwrap_or((1, ""));
        let count = units as f64 / ns.max(1) as f64 * (self.p / ten) as f64 / size as f64;
        let places = if count < 9.995 { 2 } else { usize::from(count < 99.95) };
        format!("{count:.places$}{name}")
    }

    /// Whole units that `ns` nanoseconds pay for, rounded down so that a bound derived from it is
    /// never exceeded; saturates at `u64::MAX`.
    pub fn units_in(&self, ns: u64) -> u64 {
        let units = u128::from(self.n) * u128::from(ns) / u128::from(self.p);
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// Nanoseconds until `units` are paid for, rounded up so that nothing is early; saturates at
    /// `u64::MAX`. Not for summing up: a schedule built from rounded steps drifts.
    pub fn nanos_for(&self, units: u64) -> u64 {
        let ns = (u128::from(units) * u128::from(self.p)).div_ceil(u128::from(self.n));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// What `--rate` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    /// No limit.
    Unlimited,
    /// At most this.
    Per(Rate),
}

/// Why a text is no rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateError {
    /// A well-formed rate of zero: wrong on a command line, but a pause in a file that is followed.
    Zero,
    /// Anything else, explained.
    Unreadable(String),
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RateError::Zero => ABOVE_ZERO,
            RateError::Unreadable(why) => why,
        })
    }
}

impl std::error::Error for RateError {}

impl FromStr for Asked {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Asked, RateError> {
        match text.trim_ascii() {
            "unlimited" => Ok(Asked::Unlimited),
            rate => rate.parse().map(Asked::Per),
        }
    }
}

/// `[COUNT][UNIT][/PERIOD]`: COUNT is 1 if left out, PERIOD is a second, and one prefix serves both
/// COUNT and UNIT (`100kcost` but not `1kMB`). All can be left out but not at once: `/s` is 1/s.
impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        let rate = read_rate(text.trim_ascii()).map_err(RateError::Unreadable)?;
        rate.ok_or(RateError::Zero)
    }
}

/// What a rate of zero, as `0B/s`, would count; `None` if `text` is no such thing.
pub fn zero_of(text: &str) -> Option<Unit> {
    let text = text.trim_ascii();
    if read_rate(text) != Ok(None) {
        return None;
    }
    let amount = text.split('/').next().unwrap_or_default();
    Decimal::read(amount).ok().and_then(|(_, suffix)| read_unit(suffix)).map(|(_, unit)| unit)
}

/// `None` is a rate of zero.
fn read_rate(text: &str) -> Result<Option<Rate>, String> {
    if text.is_empty() {
        return Err("a rate is missing: say 2/s, 10MiB/s, 1/90s or unlimited".into());
    }
    if text.contains(|c: char| c.is_ascii_whitespace()) {
        return Err("a rate is written without blanks: 10MiB/s".into());
    }
    if text.starts_with('-') {
        return Err(ABOVE_ZERO.into());
    }
    let (amount, period) = match text.split_once('/') {
        Some((amount, period)) => (amount, read_period(period)?),
        None => (text, SECOND),
    };
    let (count, suffix) = Decimal::read(amount)?;
    let (scale, unit) = read_unit(suffix).ok_or_else(|| unit_hint(suffix))?;
    let (n, places) = count.unwrap_or(Decimal::ONE).times(scale).ok_or(RATE_RANGE)?;
    let ten = 10_u64.checked_pow(places).ok_or(RATE_RANGE)?;
    let p = period.checked_mul(ten).ok_or(RATE_RANGE)?;
    let count = (n / ten).max(1);
    Ok((n > 0).then_some(Rate { n, p, unit, count }))
}

/// A unit of time stands for one of it; everything else is a duration.
fn read_period(text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Err("a period follows the slash: 5/s or 5/15s".into());
    }
    if text.contains('/') {
        return Err("a rate has one slash: 5/15s".into());
    }
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err("a period needs a unit: 5/5s".into());
    }
    let ns = match text.as_bytes() {
        [b'0'..=b'9' | b'.' | b'+' | b'-', ..] => read_duration(text)?,
        _ => unit_of_time(text)?,
    };
    if ns == 0 {
        return Err("a period must be above zero: 5/s or 5/15s".into());
    }
    Ok(ns)
}

/// The factor and the unit that follow a COUNT.
fn read_unit(suffix: &str) -> Option<(u64, Unit)> {
    let (prefix, unit) = if let Some(prefix) = suffix.strip_suffix("cost") {
        (prefix, Unit::Cost)
    } else if let Some(prefix) = suffix.strip_suffix("bit") {
        (prefix, Unit::Bits)
    } else if let Some(prefix) = suffix.strip_suffix('B') {
        (prefix, Unit::Bytes)
    } else {
        (suffix, Unit::Items)
    };
    let scale = match prefix {
        "" => 1,
        "k" => KILO,
        "M" => MEGA,
        "G" => GIGA,
        "T" => TERA,
        "Ki" if unit == Unit::Bytes => 1 << 10,
        "Mi" if unit == Unit::Bytes => 1 << 20,
        "Gi" if unit == Unit::Bytes => 1 << 30,
        "Ti" if unit == Unit::Bytes => 1 << 40,
        _ => return None,
    };
    Some((scale, unit))
}

/// What was probably meant by a suffix that is no unit of a rate.
fn unit_hint(suffix: &str) -> String {
    let lower = suffix.to_ascii_lowercase();
    let hint = match lower.as_str() {
        "unlimited" | "inf" | "infinity" | "none" => "for no limit say unlimited",
        "item" | "items" | "line" | "lines" => "items have no unit: 5/s",
        "rps" | "qps" | "lps" => "items have no unit, and per second is written /s: 5/s",
        "rpm" | "qpm" => "items have no unit, and per minute is written /min: 300/min",
        _ if lower.ends_with("token") || lower.ends_with("tokens") => {
            "what is read out of items is cost: 90000cost/min with --cost SELECTOR"
        }
        "byte" | "bytes" => "bytes are written B: 4096B/s",
        "b" | "kb" | "mb" | "gb" | "tb" if suffix.ends_with('b') => {
            "b is no unit: say B for bytes, as in MB, or bit for bits, as in Mbit"
        }
        _ if suffix.ends_with("ps") => "per second is written /s: 10MB/s or 10Mbit/s",
        _ if unit_of_time(suffix).is_ok() => "a period follows a slash: 5/s",
        _ => {
            let known = BYTES.iter().chain(BITS).map(|(_, name)| *name);
            let near = |name: &&str| name.eq_ignore_ascii_case(lower.trim_end_matches('s'));
            return match known.chain(["cost", "G", "T"]).find(near) {
                Some(name) => format!("no such unit; did you mean {name}?"),
                None => "no such unit: none means items (k M G T allowed), others are \
                         B kB MB GB TB, KiB MiB GiB TiB, bit kbit Mbit Gbit and cost"
                    .into(),
            };
        }
    };
    hint.into()
}

/// Text that parses back to the same value, in the largest unit that divides it.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (places, ten) = self.decimals();
        if places == 0 {
            write_in(f, self.n, self.unit.names())?;
        } else {
            write!(f, "{}.{:0places$}", self.n / ten, self.n % ten)?;
            write_name(f, self.unit.names())?;
        }
        f.write_str("/")?;
        let period = self.p / ten;
        match TIMES.iter().find(|(length, _)| *length == period) {
            Some((_, name)) => f.write_str(name),
            None => write_in(f, period, TIMES),
        }
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Asked::Unlimited => f.write_str("unlimited"),
            Asked::Per(rate) => rate.fmt(f),
        }
    }
}

/// `value` in the first, so the largest, of `names` that divides it.
fn write_in(f: &mut fmt::Formatter<'_>, value: u64, names: &[(u64, &str)]) -> fmt::Result {
    let divides = |(size, _): &&(u64, &str)| value != 0 && value.is_multiple_of(*size);
    match names.iter().find(divides) {
        Some((size, name)) => write!(f, "{}{name}", value / size),
        None => write!(f, "{value}").and_then(|()| write_name(f, names)),
    }
}

/// The name of the unit that all others of `names` are multiples of.
fn write_name(f: &mut fmt::Formatter<'_>, names: &[(u64, &str)]) -> fmt::Result {
    f.write_str(names.last().map_or("", |(_, name)| name))
}

/// Bytes. Read from a whole number of them with a unit that ends in B (`4096B`, `1.5MB`, `64KiB`),
/// above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// What `--capacity` and `--burst` can be told in. Read from a text each is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Amount {
    /// A number, with k, M, G or T for powers of 1000.
    Count(u64),
    /// Bytes: a unit that ends in B.
    Size(u64),
    /// Nanoseconds: any other unit.
    Duration(u64),
}

/// Why a text is no [`Size`] or [`Amount`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AmountError {
    /// Zero in any unit; apart, because what would do instead depends on the option.
    Zero,
    /// Anything else, explained.
    Unreadable(String),
}

impl fmt::Display for AmountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AmountError::Zero => "it must be at least 1",
            AmountError::Unreadable(why) => why,
        })
    }
}

impl std::error::Error for AmountError {}

impl FromStr for Size {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Size, AmountError> {
        parse_size(text, false)
    }
}

/// A [`Size`]; with `plain` a bare number is bytes, for options that can mean nothing else by it.
pub fn parse_size(text: &str, plain: bool) -> Result<Size, AmountError> {
    match read_size(text.trim_ascii(), plain).map_err(AmountError::Unreadable)? {
        0 => Err(AmountError::Zero),
        bytes => Ok(Size(bytes)),
    }
}

fn read_size(text: &str, plain: bool) -> Result<u64, String> {
    let (number, suffix) = Decimal::read(text)?;
    let number = number.ok_or("a size is a number and a unit: 4096B, 64KiB or 1.5MB")?;
    match read_unit(suffix) {
        Some((scale, Unit::Bytes)) => number.whole_times(scale),
        Some((1, Unit::Items)) if plain => number.whole_times(1),
        Some((1, Unit::Items)) => Err("a size needs a unit: say 4096B".into()),
        _ => Err("a size ends, without a blank, in B kB MB GB TB or KiB MiB GiB TiB".into()),
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Amount, AmountError> {
        match read_amount(text.trim_ascii()).map_err(AmountError::Unreadable)? {
            Amount::Count(0) | Amount::Size(0) | Amount::Duration(0) => Err(AmountError::Zero),
            amount => Ok(amount),
        }
    }
}

fn read_amount(text: &str) -> Result<Amount, String> {
    let (number, suffix) = Decimal::read(text)?;
    let number = number.ok_or("a number is missing: say 10, 100k, 10MiB or 5s")?;
    match read_unit(suffix) {
        Some((scale, Unit::Items)) => number.whole_times(scale).map(Amount::Count),
        _ if suffix.ends_with('B') => read_size(text, false).map(Amount::Size),
        _ => match read_duration(text) {
            Ok(ns) => Ok(Amount::Duration(ns)),
            Err(why) => Err(format!("{why}; a count takes k, M, G or T, and a size ends in B")),
        },
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_in(f, self.0, BYTES)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Amount::Count(count) => write!(f, "{count}"),
            Amount::Size(bytes) => write_in(f, bytes, BYTES),
            Amount::Duration(ns) => write_in(f, ns, TIMES),
        }
    }
}

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurationError(String);

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DurationError {}

/// Nanoseconds: numbers with units, added up (`1.5s`, `1h30m`, `1h 30m`). Zero is allowed, also
/// without a unit.
///
/// humantime knows the units; the numbers are read here, because it loses decimals of hours and
/// days, joins `1 0s` to ten seconds, and panics on some sums of about 2^64 seconds.
pub fn duration(text: &str) -> Result<u64, DurationError> {
    read_duration(text).map_err(DurationError)
}

fn read_duration(text: &str) -> Result<u64, String> {
    let mut rest = text.trim_ascii();
    if rest.is_empty() {
        return Err("a duration is missing: say 5s, 5ms or 5min".into());
    }
    if rest.bytes().all(|b| b == b'0') {
        return Ok(0);
    }
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let (number, after) = Decimal::read(rest)?;
        let number = number.ok_or("a duration is a number and a unit: say 5s, 5ms or 5min")?;
        let after = after.trim_ascii_start();
        let ends_unit = |c: char| c.is_ascii_digit() || c.is_ascii_whitespace() || c == '.';
        let (unit, after) = after.split_at(after.find(ends_unit).unwrap_or(after.len()));
        let scale = match unit {
            "" => return Err("a duration needs a unit: say 5s, 5ms or 5min".into()),
            _ => unit_of_time(unit)?,
        };
        let Some((ns, 0)) = number.times(scale) else {
            return Err(TIME_RANGE.into());
        };
        sum = sum.checked_add(ns).ok_or(TIME_RANGE)?;
        rest = after.trim_ascii_start();
    }
    Ok(sum)
}

/// The length of a unit of time in nanoseconds, in humantime's words for them.
fn unit_of_time(unit: &str) -> Result<u64, String> {
    let length = match unit {
        "M" => return Err("m is a minute; M is refused: say 5m or 5min".into()),
        _ if unit.chars().all(|c| c.is_ascii_alphabetic() || c == 'µ') => {
            humantime::parse_duration(&format!("1{unit}")).ok()
        }
        _ => None,
    };
    if let Some(ns) = length.and_then(|length| u64::try_from(length.as_nanos()).ok()) {
        return match ns {
            ..=WEEK => Ok(ns),
            _ => Err("months and years vary in length: say 30d or 365d".into()),
        };
    }
    let mut names = TIMES.iter().map(|(_, name)| name);
    Err(match names.find(|name| name.eq_ignore_ascii_case(unit)) {
        Some(name) => format!("no such unit of time; did you mean {name}?"),
        None => "no such unit of time: say ns, us, ms, s, min, m, h or d".into(),
    })
}

/// A decimal as written, of any length.
#[derive(Clone, Copy)]
struct Decimal<'a> {
    whole: &'a str,
    fraction: &'a str,
}

impl<'a> Decimal<'a> {
    /// What COUNT is when it is left out.
    const ONE: Decimal<'static> = Decimal { whole: "1", fraction: "" };

    /// Splits the number off the front, if there is one, and refuses what looks like another way to
    /// write numbers.
    fn read(text: &'a str) -> Result<(Option<Decimal<'a>>, &'a str), String> {
        let digits = |text: &'a str| text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
        let (whole, mut rest) = digits(text);
        let mut fraction = "";
        if let Some(after_point) = rest.strip_prefix('.') {
            (fraction, rest) = digits(after_point);
            if fraction.is_empty() {
                return Err("a digit must follow the point: 5.0, or 5".into());
            }
        }
        let number = (!whole.is_empty() || !fraction.is_empty()).then_some(Decimal { whole, fraction });
        match (rest.as_bytes(), number) {
            ([b'+' | b'-', ..], None) => Err("a number has no sign here".into()),
            ([b'.' | b',' | b'_' | b'\'', ..], _) => Err("write the number plainly: 1000 or 1.5".into()),
            ([b'e' | b'E', b'+' | b'-' | b'0'..=b'9', ..], Some(_)) => {
                Err("a number has no exponent: write 1000 for 1e3".into())
            }
            ([b'K', next @ ..], _) if !next.starts_with(b"i") => Err("K is not a prefix: k = 1000, KiB = 1024".into()),
            _ => Ok((number, rest)),
        }
    }

    /// The number times `scale` as (n, places), meaning n / 10^places with the fewest places;
    /// `None` if too large.
    fn times(&self, scale: u64) -> Option<(u64, u32)> {
        let fraction = self.fraction.trim_end_matches('0');
        let mut digits = self.whole.bytes().chain(fraction.bytes()).map(|b| u128::from(b - b'0'));
        let written = digits.try_fold(0_u128, |n, digit| n.checked_mul(10)?.checked_add(digit))?;
        let mut n = written.checked_mul(u128::from(scale))?;
        if n == 0 {
            return Some((0, 0));
        }
        let mut places = fraction.len();
        while places > 0 && n.is_multiple_of(10) {
            n /= 10;
            places -= 1;
        }
        Some((u64::try_from(n).ok()?, u32::try_from(places).ok()?))
    }

    /// The number times `scale`, for what has no fractions.
    fn whole_times(&self, scale: u64) -> Result<u64, String> {
        match self.times(scale) {
            Some((value, 0)) => Ok(value),
            _ => Err("it must be a whole number that fits 64 bits".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = SECOND;

    fn rate(text: &str) -> Rate {
        match text.parse() {
            Ok(rate) => rate,
            Err(e) => panic!("{text:?} should be a rate: {e}"),
        }
    }

    fn rate_error(text: &str) -> RateError {
        match text.parse::<Rate>() {
            Ok(rate) => panic!("{text:?} should be refused, but is {rate:?}"),
            Err(e) => e,
        }
    }

    fn amount_error(text: &str) -> AmountError {
        match text.parse::<Amount>() {
            Ok(amount) => panic!("{text:?} should be refused, but is {amount:?}"),
            Err(e) => e,
        }
    }

    /// Every message is one line, says something that helps and leaves the given text to the caller.
    fn assert_says(given: &str, message: &dyn fmt::Display, part: &str) {
        let message = message.to_string();
        assert!(message.contains(part) && !message.contains('\n'), "{given:?}: {message:?} should hold {part:?}");
    }

    #[test]
    fn a_rate_is_kept_as_written() {
        use Unit::{Bits, Bytes, Cost, Items};
        #[rustfmt::skip]
        let table = [
            // text, n, p, unit, COUNT as written
            ("2/s", 2, S, Items, 2),                                // the plainest
            ("2", 2, S, Items, 2),                                  // a period left out is a second
            ("/s", 1, S, Items, 1),                                 // a count left out is 1
            ("B", 1, S, Bytes, 1),                                  // both left out
            ("MB/s", 1_000_000, S, Bytes, 1_000_000),               // 1 MB
            ("k", 1_000, S, Items, 1_000),                          // a bare prefix
            ("cost/min", 1, MINUTE, Cost, 1),
            (" \t2/s\r\n", 2, S, Items, 2),                         // as read from a file
            ("002/s", 2, S, Items, 2),                              // leading zeros mean nothing
            // periods
            ("300/min", 300, MINUTE, Items, 300),
            ("300/m", 300, MINUTE, Items, 300),                     // m is a minute
            ("6/1m", 6, MINUTE, Items, 6),
            ("20/ms", 20, MILLI, Items, 20),
            ("5/us", 5, 1_000, Items, 5),
            ("5/ns", 5, 1, Items, 5),
            ("1/h", 1, HOUR, Items, 1),
            ("1/d", 1, DAY, Items, 1),
            ("5/15s", 5, 15 * S, Items, 5),                         // not 1 per 3 s
            ("10/2s", 10, 2 * S, Items, 10),                        // nor 5/s
            ("1/90s", 1, 90 * S, Items, 1),
            ("7/13h", 7, 13 * HOUR, Items, 7),
            ("5/500ms", 5, 500 * MILLI, Items, 5),
            ("5/1h30m", 5, 90 * MINUTE, Items, 5),
            ("5/1.5s", 5, 1_500 * MILLI, Items, 5),                 // decimals in the period stay there
            ("1/0.5ms", 1, 500_000, Items, 1),
            ("5/1minute", 5, MINUTE, Items, 5),                     // humantime's longer words
            // prefixes and units
            ("100k/s", 100_000, S, Items, 100_000),                 // not 102400
            ("3M/h", 3_000_000, HOUR, Items, 3_000_000),
            ("2G/s", 2_000_000_000, S, Items, 2_000_000_000),
            ("2T/s", 2_000_000_000_000, S, Items, 2_000_000_000_000),
            ("7B/s", 7, S, Bytes, 7),
            ("7kB/s", 7_000, S, Bytes, 7_000),
            ("7GB/s", 7_000_000_000, S, Bytes, 7_000_000_000),
            ("7TB/s", 7_000_000_000_000, S, Bytes, 7_000_000_000_000),
            ("7KiB/s", 7_168, S, Bytes, 7_168),
            ("10MiB/s", 10_485_760, S, Bytes, 10_485_760),
            ("7GiB/s", 7_516_192_768, S, Bytes, 7_516_192_768),
            ("7TiB/s", 7_696_581_394_432, S, Bytes, 7_696_581_394_432),
            ("9bit/s", 9, S, Bits, 9),
            ("9000900bit/s", 9_000_900, S, Bits, 9_000_900),        // zeros within and behind are kept
            ("9kbit/s", 9_000, S, Bits, 9_000),
            ("8Mbit/s", 8_000_000, S, Bits, 8_000_000),
            ("9Gbit/s", 9_000_000_000, S, Bits, 9_000_000_000),
            ("100000cost/min", 100_000, MINUTE, Cost, 100_000),
            ("100kcost/min", 100_000, MINUTE, Cost, 100_000),       // COUNT's own prefix
            // decimals
            ("0.1/s", 1, 10 * S, Items, 1),                         // once became 1/s elsewhere
            ("0.5/s", 5, 10 * S, Items, 1),                         // COUNT as written is at least 1
            ("0.25/s", 25, 100 * S, Items, 1),                      // not reduced to 1 per 4 s
            ("2.5/s", 25, 10 * S, Items, 2),                        // and rounded down
            ("2.0/s", 2, S, Items, 2),                              // zeros behind are dropped
            ("20.50/s", 205, 10 * S, Items, 20),
            ("10.0/2s", 10, 2 * S, Items, 10),                      // those before the point are not
            (".5/s", 5, 10 * S, Items, 1),                          // nothing before the point is 0
            ("1.5MB/s", 1_500_000, S, Bytes, 1_500_000),            // cleared after the multiplier
            ("2.5KiB/s", 2_560, S, Bytes, 2_560),
            ("0.3KiB/s", 3_072, 10 * S, Bytes, 307),                // and only as far as needed
            ("0.1k/s", 100, S, Items, 100),
            ("0.000000001T/s", 1_000, S, Items, 1_000),
            ("1.0000000001/s", 10_000_000_001, 10_000_000_000 * S, Items, 1),
            // the ends of 64 bits
            ("18446744073709551615/ns", u64::MAX, 1, Items, u64::MAX),
            ("1/18446744073709551615ns", 1, u64::MAX, Items, 1),
            ("1844674407370955161.5/ns", u64::MAX, 10, Items, 1_844_674_407_370_955_161),
            ("0.0000000001/s", 1, 10_000_000_000 * S, Items, 1),    // one in 317 years
        ];
        for (text, n, p, unit, count) in table {
            let read = rate(text);
            let got = (read.n(), read.p(), read.unit(), read.count_as_written());
            assert_eq!(got, (n, p, unit, count), "{text:?}");
        }
    }

    #[test]
    fn zeros_without_end_change_nothing() {
        let zeros = "0".repeat(1_000_000);
        assert_eq!(rate(&format!("{zeros}2/s")), rate("2/s"));
        assert_eq!(rate(&format!("2.5{zeros}/s")), rate("2.5/s"));
        assert_eq!(rate_error(&format!("{zeros}.{zeros}/s")), RateError::Zero);
        assert_eq!(duration(&format!("{zeros}1.5{zeros}s")), Ok(1_500 * MILLI));
    }

    #[test]
    fn a_rate_of_zero_is_told_from_nonsense() {
        #[rustfmt::skip]
        let zeros = ["0/s", "0", " 0\n", "0.0/s", ".0", "0B/s", "0kbit/h", "0cost", "000.000T/15s"];
        for text in zeros {
            assert_eq!(rate_error(text), RateError::Zero, "{text:?}");
            assert_eq!(text.parse::<Asked>(), Err(RateError::Zero), "{text:?}");
        }
        #[rustfmt::skip]
        let nonsense = ["0/x", "0/0s", "0x/s", "-0/s", "0/", "0K/s", "", "o/s"];
        for text in nonsense {
            assert_ne!(rate_error(text), RateError::Zero, "{text:?}");
        }
        assert_eq!(RateError::Zero.to_string(), "a rate must be above zero; for no limit say --rate unlimited");
    }

    #[test]
    fn a_refused_rate_is_told_what_would_do() {
        let many = "9".repeat(1_000_000);
        let fine = format!("0.{}1/s", "0".repeat(1_000_000));
        #[rustfmt::skip]
        let table = [
            // nothing there
            ("", "a rate is missing"),
            (" \t\n", "a rate is missing"),
            ("/", "a period follows the slash"),
            ("5/", "a period follows the slash"),
            // numbers
            ("-5/s", "above zero"),                                  // no speed is negative
            ("-0/s", "above zero"),
            ("-inf", "above zero"),
            ("+5/s", "no sign"),
            ("5./s", "a digit must follow the point"),
            ("./s", "a digit must follow the point"),
            ("1..5/s", "a digit must follow the point"),
            ("1.2.3/s", "plainly"),
            ("1,000/s", "plainly"),
            ("1_000/s", "plainly"),
            ("1'000/s", "plainly"),
            ("1e3/s", "no exponent"),
            ("1e400/s", "no exponent"),
            ("1E-3/s", "no exponent"),
            ("1e+3/s", "no exponent"),
            ("nan", "no such unit"),
            ("NaN/s", "no such unit"),
            ("0x10/s", "no such unit"),
            ("inf", "say unlimited"),
            ("Infinity/s", "say unlimited"),
            ("unlimited", "say unlimited"),                          // of a Rate; Asked knows the word
            ("Unlimited", "say unlimited"),
            ("unlimited/s", "say unlimited"),
            ("\u{663}/s", "no such unit"),                           // an Arabic three
            ("½/s", "no such unit"),
            ("5 /s", "without blanks"),
            ("10 MiB/s", "without blanks"),
            ("5/ s", "without blanks"),
            ("5\u{a0}/s", "no such unit"),                           // a blank that is not ASCII
            // units
            ("100K/s", "k = 1000, KiB = 1024"),
            ("100K", "k = 1000, KiB = 1024"),
            ("5KB/s", "k = 1000, KiB = 1024"),
            ("5Kbit/s", "k = 1000, KiB = 1024"),
            ("K", "k = 1000, KiB = 1024"),
            ("5Kib/s", "did you mean KiB?"),
            ("5kiB/s", "did you mean KiB?"),
            ("5mib/s", "did you mean MiB?"),
            ("5mbit/s", "did you mean Mbit?"),
            ("5bits/s", "did you mean bit?"),
            ("5Cost/s", "did you mean cost?"),
            ("5g/s", "did you mean G?"),
            ("5b/s", "B for bytes"),
            ("5Mb/s", "Mbit"),
            ("5kb/s", "b is no unit"),
            ("5bytes/s", "written B"),
            ("5Mbps", "written /s"),
            ("5lines/s", "no unit"),
            ("5items/s", "no unit"),
            ("5x/s", "none means items"),
            ("1kMB/s", "none means items"),                          // one prefix, not two
            ("1kk/s", "none means items"),
            ("1Mibit/s", "none means items"),
            ("1Ki/s", "none means items"),
            ("5s", "a period follows a slash"),
            ("5min", "a period follows a slash"),
            ("5m/s", "a period follows a slash"),                    // not mega either
            // periods
            ("5/5", "a period needs a unit: 5/5s"),
            ("5/0", "a period needs a unit: 5/5s"),
            ("5/1.5", "a period needs a unit: 5/5s"),
            ("5/0s", "a period must be above zero"),
            ("5/0.0ms", "a period must be above zero"),
            ("5/-5s", "no sign"),
            ("5/5.s", "a digit must follow the point"),
            ("1//s", "one slash"),
            ("1/1/s", "one slash"),
            ("1/s/", "one slash"),
            ("5/M", "m is a minute; M is refused"),
            ("5/2M", "m is a minute; M is refused"),
            ("5/month", "say 30d"),
            ("5/y", "say 30d"),
            ("5/S", "did you mean s?"),
            ("5/MIN", "did you mean min?"),
            ("5/x", "no such unit of time"),
            ("5/h30m", "no such unit of time"),                      // a duration starts with a number
            ("5/1h30", "a duration needs a unit"),
            ("5/0.5ns", "whole nanoseconds"),
            ("5/600000d", "584 years"),
            // sizes
            ("99999999999999999999999999/s", "fit 64 bits"),
            ("18446744073709551616/s", "fit 64 bits"),
            ("18446744073709551615k/s", "fit 64 bits"),
            ("0.00000000001/s", "fit 64 bits"),                      // n does, p does not
            ("0.1/18446744073709551615ns", "fit 64 bits"),
            (many.as_str(), "fit 64 bits"),
            (fine.as_str(), "fit 64 bits"),
        ];
        for (text, part) in table {
            let error = rate_error(text);
            let shown = text.chars().take(40).collect::<String>();
            assert_ne!(error, RateError::Zero, "{shown:?}");
            assert_says(&shown, &error, part);
        }
    }

    #[test]
    fn unlimited_is_asked_for_by_its_name_alone() {
        assert_eq!("unlimited".parse(), Ok(Asked::Unlimited));
        assert_eq!(" unlimited\n".parse(), Ok(Asked::Unlimited));
        assert_eq!("2/s".parse(), Ok(Asked::Per(rate("2/s"))));
        assert_eq!(Asked::Unlimited.to_string(), "unlimited");
        assert_eq!(Asked::Per(rate("10/2s")).to_string(), "10/2s");
    }

    #[test]
    fn a_rate_prints_in_the_largest_unit_that_divides_it() {
        #[rustfmt::skip]
        let table = [
            ("2/s", "2/s"),
            ("2", "2/s"),
            ("/s", "1/s"),
            ("10/2s", "10/2s"),
            ("100k/s", "100000/s"),                                  // items are counted out
            ("10MiB/s", "10MiB/s"),
            ("10240KiB/s", "10MiB/s"),
            ("1.5MB/s", "1500kB/s"),
            ("1000B/s", "1kB/s"),
            ("1025B/s", "1025B/s"),
            ("8Mbit/s", "8Mbit/s"),
            ("100kcost/m", "100000cost/min"),
            ("7/13h", "7/13h"),
            ("1/90s", "1/90s"),
            ("5/60s", "5/min"),                                      // one of a unit needs no number
            ("5/500ms", "5/500ms"),
            ("5/1h30m", "5/90min"),
            ("20/ms", "20/ms"),
            ("1/7d", "1/7d"),
            ("0.1/s", "1/10s"),                                      // the same rate: COUNT is 1
            ("0.25/s", "0.25/s"),                                    // 25/100s is another: COUNT is 25
            ("25/100s", "25/100s"),
            ("2.05/min", "2.05/min"),
            ("0.3KiB/s", "307.2B/s"),
        ];
        for (text, printed) in table {
            assert_eq!(rate(text).to_string(), printed, "{text:?}");
            assert_eq!(rate(printed), rate(text), "{text:?} as {printed:?}");
        }
    }

    #[test]
    fn a_rate_that_is_built_has_neither_part_zero() {
        assert_eq!(Rate::new(0, 1, Unit::Items), None);
        assert_eq!(Rate::new(1, 0, Unit::Items), None);
        assert_eq!(Rate::new(10, 2 * S, Unit::Items), Some(rate("10/2s")));
        assert_ne!(Rate::new(25, 100 * S, Unit::Items), Some(rate("0.25/s")));
    }

    #[test]
    fn speeds_compare_without_rounding() {
        use Ordering::{Equal, Greater, Less};
        #[rustfmt::skip]
        let table = [
            ("5/s", "10/2s", Equal),                                 // one speed, two rates
            ("60/min", "1/s", Equal),
            ("2.5/s", "25/10s", Equal),
            ("1/90s", "1/89s", Less),
            ("100/h", "1/s", Less),
            ("18446744073709551615/ns", "18446744073709551614/ns", Greater),
            ("1/18446744073709551615ns", "1/18446744073709551614ns", Less),
            ("18446744073709551615/18446744073709551615ns", "1/ns", Equal),
        ];
        for (a, b, order) in table {
            assert_eq!(rate(a).cmp_speed(&rate(b)), order, "{a} to {b}");
            assert_eq!(rate(b).cmp_speed(&rate(a)), order.reverse(), "{b} to {a}");
        }
    }

    #[test]
    fn units_round_down_and_nanoseconds_round_up() {
        let third = rate("3/s");
        #[rustfmt::skip]
        let units = [
            (0, 0),
            (333_333_333, 0),                                        // a nanosecond short
            (333_333_334, 1),
            (S, 3),
            (3_600 * S - 1, 10_799),
        ];
        for (ns, expected) in units {
            assert_eq!(third.units_in(ns), expected, "{ns} ns");
        }
        #[rustfmt::skip]
        let times = [(0, 0), (1, 333_333_334), (2, 666_666_667), (3, S)];
        for (units, expected) in times {
            assert_eq!(third.nanos_for(units), expected, "{units} units");
        }
        // Nothing wraps at either end.
        assert_eq!(rate("18446744073709551615/ns").units_in(u64::MAX), u64::MAX);
        assert_eq!(rate("1/18446744073709551615ns").nanos_for(u64::MAX), u64::MAX);
        assert_eq!(rate("1/18446744073709551615ns").units_in(u64::MAX), 1);
    }

    #[test]
    fn an_amount_is_a_count_a_size_or_a_duration() {
        #[rustfmt::skip]
        let table = [
            ("10", Amount::Count(10), "10"),
            (" 1\n", Amount::Count(1), "1"),
            ("100k", Amount::Count(100_000), "100000"),
            ("1.5k", Amount::Count(1_500), "1500"),                  // whole in the end
            ("2.0", Amount::Count(2), "2"),
            ("5M", Amount::Count(5_000_000), "5000000"),             // mega; minutes are m
            ("5G", Amount::Count(5_000_000_000), "5000000000"),
            ("5T", Amount::Count(5_000_000_000_000), "5000000000000"),
            ("18446744073709551615", Amount::Count(u64::MAX), "18446744073709551615"),
            ("4096B", Amount::Size(4_096), "4KiB"),
            ("10MiB", Amount::Size(10_485_760), "10MiB"),
            ("1.5MB", Amount::Size(1_500_000), "1500kB"),
            ("5m", Amount::Duration(5 * MINUTE), "5min"),
            ("5s", Amount::Duration(5 * S), "5s"),
            ("1h30m", Amount::Duration(90 * MINUTE), "90min"),
            ("0.5ms", Amount::Duration(500_000), "500us"),
            ("1d", Amount::Duration(DAY), "1d"),
        ];
        for (text, amount, printed) in table {
            assert_eq!(text.parse(), Ok(amount), "{text:?}");
            assert_eq!(amount.to_string(), printed, "{text:?}");
            assert_eq!(printed.parse(), Ok(amount), "{printed:?}");
        }
    }

    #[test]
    fn a_refused_amount_is_told_what_would_do() {
        for text in ["0", "0.0", "0k", "0B", "0MiB", "0s", "0h 0m", "000"] {
            assert_eq!(amount_error(text), AmountError::Zero, "{text:?}");
        }
        assert_says("0", &AmountError::Zero, "must be at least 1");
        #[rustfmt::skip]
        let table = [
            ("", "a number is missing"),
            ("B", "a number is missing"),                            // 1 is left out of rates only
            ("s", "a number is missing"),
            ("-5", "no sign"),
            ("1e3", "no exponent"),
            ("1.5", "whole number"),
            ("0.0001k", "whole number"),
            ("0.5B", "whole number"),
            ("18446744073709551616", "fits 64 bits"),
            ("99999999999999999999999999T", "fits 64 bits"),
            ("16777216TiB", "fits 64 bits"),                         // 2^64
            ("10K", "k = 1000, KiB = 1024"),
            ("10KB", "k = 1000, KiB = 1024"),
            ("10kiB", "ends, without a blank, in B"),
            ("10 MiB", "ends, without a blank, in B"),
            ("10x", "a size ends in B"),
            ("10bit", "a size ends in B"),
            ("10cost", "a size ends in B"),
            ("5month", "say 30d"),
            ("1h30", "a duration needs a unit"),
            ("600000d", "584 years"),
        ];
        for (text, part) in table {
            let error = amount_error(text);
            assert_ne!(error, AmountError::Zero, "{text:?}");
            assert_says(text, &error, part);
        }
    }

    #[test]
    fn a_size_is_bytes_and_says_so() {
        #[rustfmt::skip]
        let table = [
            ("1B", 1, "1B"),
            ("4096B", 4_096, "4KiB"),
            ("64KiB", 65_536, "64KiB"),
            ("10MiB", 10_485_760, "10MiB"),
            ("1.5MB", 1_500_000, "1500kB"),
            ("0.5KiB", 512, "512B"),
            ("18446744073709551615B", u64::MAX, "18446744073709551615B"),
        ];
        for (text, bytes, printed) in table {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text:?}");
            assert_eq!(Size(bytes).to_string(), printed, "{text:?}");
            assert_eq!(parse_size(printed, true), Ok(Size(bytes)), "{printed:?}");
        }
        assert_eq!(Size(0).to_string(), "0B");
        assert_eq!(parse_size("4096", true), Ok(Size(4_096)));
        #[rustfmt::skip]
        let refused = [
            ("4096", "say 4096B"),
            ("10M", "ends, without a blank, in B"),                  // MB or MiB?
            ("10Mbit", "ends, without a blank, in B"),
            ("10KB", "k = 1000, KiB = 1024"),
            ("5s", "ends, without a blank, in B"),
            ("", "a number and a unit"),
            ("1.5B", "whole number"),
        ];
        for (text, part) in refused {
            match text.parse::<Size>() {
                Ok(size) => panic!("{text:?} should be refused, but is {size:?}"),
                Err(error) => assert_says(text, &error, part),
            }
        }
        assert_eq!("0B".parse::<Size>(), Err(AmountError::Zero));
        assert_eq!(parse_size("0", true), Err(AmountError::Zero));
    }

    #[test]
    fn a_duration_is_whole_nanoseconds() {
        #[rustfmt::skip]
        let table = [
            ("0", 0),                                                // the one number without a unit
            ("000", 0),
            ("0s", 0),
            ("5s", 5 * S),
            ("1ns", 1),
            ("5us", 5_000),
            ("5µs", 5_000),
            ("5ms", 5 * MILLI),
            ("5m", 5 * MINUTE),
            ("5min", 5 * MINUTE),
            ("13h", 13 * HOUR),
            ("2d", 2 * DAY),
            ("1w", WEEK),
            ("1h30m", 90 * MINUTE),
            (" 1h 30m\n", 90 * MINUTE),
            ("5 s", 5 * S),
            ("1.5s", 1_500 * MILLI),
            ("0.5ms", 500_000),
            (".5s", 500 * MILLI),
            ("0.001h", 3_600 * MILLI),                               // humantime refuses it
            ("1.5s0.5ms", 1_500_500_000),
            ("0.000000001s", 1),
            ("18446744073709551615ns", u64::MAX),
            ("18446744073s709551615ns", u64::MAX),
        ];
        for (text, ns) in table {
            assert_eq!(duration(text), Ok(ns), "{text:?}");
        }
        let fine = format!("0.{}1s", "0".repeat(100_000));
        #[rustfmt::skip]
        let refused = [
            ("", "a duration is missing"),
            ("5", "say 5s, 5ms or 5min"),
            ("0.5", "say 5s, 5ms or 5min"),
            ("1h30", "say 5s, 5ms or 5min"),
            ("0s0", "say 5s, 5ms or 5min"),
            ("1 0s", "say 5s, 5ms or 5min"),                         // ten seconds to humantime
            ("s", "a number and a unit"),
            ("5s, 3ms", "no such unit of time"),
            ("5M", "m is a minute; M is refused"),
            ("1h5M", "m is a minute; M is refused"),
            ("1month", "say 30d"),
            ("1years", "say 30d"),
            ("5S", "did you mean s?"),
            ("5Ms", "did you mean ms?"),
            ("5x", "say ns, us, ms, s, min, m, h or d"),
            ("5\u{a0}s", "no such unit of time"),
            ("-5s", "no sign"),
            ("1e3s", "no exponent"),
            ("5.s", "a digit must follow the point"),
            ("0.5ns", "whole nanoseconds"),
            ("0.0000000001s", "whole nanoseconds"),
            ("18446744073709551616ns", "fit 64 bits"),
            ("18446744073s709551616ns", "fit 64 bits"),
            ("18446744073709551615s", "fit 64 bits"),
            ("18446744073709551615s 1000000000ns", "fit 64 bits"),   // humantime panics
            ("99999999999999999999999999999999999999999s", "fit 64 bits"),
            (fine.as_str(), "whole nanoseconds"),
        ];
        for (text, part) in refused {
            match duration(text) {
                Ok(ns) => panic!("{text:?} should be refused, but is {ns} ns"),
                Err(error) => assert_says(text, &error, part),
            }
        }
    }

    /// Texts in the grammar, not all of which fit 64 bits.
    fn written_rate() -> impl Strategy<Value = String> {
        let count = prop_oneof!["[0-9]{1,20}", "[0-9]{0,10}\\.[0-9]{1,10}", Just(String::new())];
        let unit = "(|k|M|G|T|B|kB|MB|GB|TB|KiB|MiB|GiB|TiB|bit|kbit|Mbit|Gbit|cost|kcost)";
        let period = "(|/(|[1-9][0-9]{0,4})(ns|us|ms|s|min|m|h|d))";
        (count, unit, period).prop_map(|(count, unit, period)| count + &unit + &period)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn what_a_rate_prints_reads_back_the_same(text in written_rate()) {
            if let Ok(rate) = text.parse::<Rate>() {
                prop_assert_eq!(rate.to_string().parse(), Ok(rate), "{} as {}", text, rate);
                prop_assert_eq!(Asked::Per(rate).to_string().parse(), Ok(Asked::Per(rate)));
            }
        }

        #[test]
        fn any_rate_that_can_be_built_prints_and_reads_back(
            n in 1..=u64::MAX, p in 1..=u64::MAX, shift in 0..64_u32,
            unit in prop_oneof![
                Just(Unit::Items), Just(Unit::Bytes), Just(Unit::Bits), Just(Unit::Cost)
            ],
        ) {
            let rate = Rate::new((n >> shift).max(1), p, unit).unwrap();
            prop_assert_eq!(rate.to_string().parse(), Ok(rate), "{}", rate);
        }

        #[test]
        fn a_decimal_is_cleared_without_loss(
            whole in 0..1_000_000_u64, thousandths in 0..1_000_u64, p in 1..1_000_000_u64,
        ) {
            let text = format!("{whole}.{thousandths:03}/{p}us");
            let written = u128::from(whole * 1_000 + thousandths);
            match text.parse::<Rate>() {
                Ok(rate) => {
                    // n/p = written/1000 per p us, crosswise.
                    let left = u128::from(rate.n()) * u128::from(p * 1_000) * 1_000;
                    prop_assert_eq!(left, written * u128::from(rate.p()), "{}", text);
                    prop_assert_eq!(rate.count_as_written(), whole.max(1), "{}", text);
                }
                Err(e) => prop_assert!(written == 0 && e == RateError::Zero, "{}: {}", text, e),
            }
        }

        #[test]
        fn units_and_nanoseconds_bound_each_other(
            n in 1..=u64::MAX, p in 1..=u64::MAX, shifts in (0..64_u32, 0..64_u32), k in 0..1_u64 << 40,
        ) {
            let (n, p) = ((n >> shifts.0).max(1), (p >> shifts.1).max(1));
            let rate = Rate::new(n, p, Unit::Items).unwrap();
            let ns = rate.nanos_for(k);
            if ns < u64::MAX {
                prop_assert!(rate.units_in(ns) >= k);
                prop_assert!(ns == 0 || rate.units_in(ns - 1) < k);
            }
        }

        #[test]
        fn an_amount_prints_and_reads_back(value in 1..=u64::MAX, shift in 0..64_u32) {
            let value = (value >> shift).max(1);
            for amount in [Amount::Count(value), Amount::Size(value), Amount::Duration(value)] {
                prop_assert_eq!(amount.to_string().parse(), Ok(amount), "{}", amount);
            }
            prop_assert_eq!(Size(value).to_string().parse(), Ok(Size(value)));
        }

        #[test]
        fn durations_agree_with_humantime(
            text in "([0-9]{1,3}(\\.[0-9]{1,6})?(ns|us|µs|ms|msec|s|sec|m|min|h|hours|d|days|w) ?){1,4}"
        ) {
            if let Ok(expected) = humantime::parse_duration(&text) {
                prop_assert_eq!(duration(&text).map(u128::from), Ok(expected.as_nanos()), "{}", text);
            }
        }

        #[test]
        fn no_text_panics_and_every_error_is_one_line(
            text in prop_oneof![
                "\\PC{0,20}",
                any::<String>(),
                "[-+0-9./ kKMGTiBbtcosumhdnse]{0,16}",
                "[0-9]{0,60}\\.?[0-9]{0,60}[kMGT]?i?B?/?[0-9]{0,30}(s|ms|d|M|µs)?",
            ]
        ) {
            let errors = [
                text.parse::<Asked>().err().map(|e| e.to_string()),
                text.parse::<Size>().err().map(|e| e.to_string()),
                text.parse::<Amount>().err().map(|e| e.to_string()),
                parse_size(&text, true).err().map(|e| e.to_string()),
                duration(&text).err().map(|e| e.to_string()),
            ];
            for error in errors.into_iter().flatten() {
                prop_assert!(!error.is_empty() && error.lines().count() == 1, "{:?}", error);
            }
        }
    }
}
