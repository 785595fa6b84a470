//! Recorded times: reads the stamps that logs bear into nanoseconds since the epoch.
//!
//! Every stamp that can be read alone is read alone. Two kinds cannot, so [`Timestamps`] remembers what the first
//! one decided: the unit of integers, and the year of syslog stamps. The digits are taken apart by hand, as
//! millions of them go through; the calendar is jiff's, asked once a day of the log.

use jiff::civil::Date;
use jiff::tz::Offset;

const SECOND: i64 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND as i128;

/// Reads recorded times; remembers what the first one decided.
#[derive(Clone, Debug)]
pub struct Timestamps {
    now: i128,
    /// Nanoseconds in one of the integers' units.
    unit: Option<i128>,
    /// Where the last stamp without a year was put.
    last: Option<Placed>,
    /// The last date asked for and its midnight: nearly every stamp has the date of the one before.
    cached: Option<((i16, i16, i16), i128)>,
}

impl Timestamps {
    /// Takes the present time, in nanoseconds since the epoch: the first stamp without a year is put in the year
    /// that makes it the latest one not more than a day after it.
    pub fn new(now_unix_ns: i128) -> Timestamps {
        Timestamps { now: now_unix_ns, unit: None, last: None, cached: None }
    }

    /// Reads a stamp into nanoseconds since the epoch. Blanks, quotes and brackets around it are overlooked. A
    /// stamp without a zone is UTC.
    pub fn read(&mut self, text: &[u8]) -> Option<i128> {
        let mut text = text;
        while let [b' ' | b'\t' | b'"' | b'[' | b']', rest @ ..] | [rest @ .., b' ' | b'\t' | b'"' | b'[' | b']'] = text
        {
            text = rest;
        }
        match text {
            [_, _, _, _, b'-', ..] => self.dated(Text(text)),
            [_, _, b'/', ..] => self.common_log(Text(text)),
            [b'A'..=b'Z' | b'a'..=b'z', ..] => self.syslog(Text(text)),
            _ => self.epoch(text),
        }
    }

    /// `1700000000`, `1700000000123`, `1700000000.123456`, `-1.5`.
    fn epoch(&mut self, text: &[u8]) -> Option<i128> {
        let (sign, text) = match text {
            [b'-', rest @ ..] => (-1, rest),
            _ => (1, text),
        };
        let mut text = Text(text);
        let whole = text.digits();
        let number = whole
            .iter()
            .try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?;
        let ns = match text.0 {
            [] if whole.is_empty() => return None,
            [] => i128::from(number) * *self.unit.get_or_insert_with(|| unit(number)),
            [b'.', ..] => {
                text.eat(b'.')?;
                let fraction = text.digits();
                if !text.0.is_empty() || whole.len() + fraction.len() == 0 {
                    return None;
                }
                i128::from(number) * i128::from(SECOND) + i128::from(nanoseconds(fraction))
            }
            _ => return None,
        };
        Some(sign * ns)
    }

    /// `2000-10-10T13:55:36.123+02:00`, `2000-10-10 13:55:36,123`.
    fn dated(&mut self, mut text: Text) -> Option<i128> {
        let year = text.number(4)?;
        text.eat(b'-')?;
        let month = text.number(2)?;
        text.eat(b'-')?;
        let day = text.number(2)?;
        text.eat(b'T').or_else(|| text.eat(b't')).or_else(|| text.eat(b' '))?;
        let time = text.time()?;
        Some(self.midnight(year, month, day)? + time)
    }

    /// `10/Oct/2000:13:55:36 -0700`.
    fn common_log(&mut self, mut text: Text) -> Option<i128> {
        let day = text.number(2)?;
        text.eat(b'/')?;
        let month = text.month()?;
        text.eat(b'/')?;
        let year = text.number(4)?;
        text.eat(b':')?;
        let time = text.time()?;
        Some(self.midnight(year, month, day)? + time)
    }

    /// `Oct  5 03:04:05`.
    fn syslog(&mut self, mut text: Text) -> Option<i128> {
        let month = text.month()?;
        text.blanks()?;
        let day = text.number(2).or_else(|| text.number(1))?;
        text.blanks()?;
        let placed = self.place(Yearless { month, day, time: text.time()? })?;
        self.last = Some(placed);
        Some(placed.at + placed.shift)
    }

    /// Finds a year for a stamp that has none: the first is recent, and each later one is as near as can be to the
    /// one before it, so that New Year is passed in either direction.
    fn place(&mut self, stamp: Yearless) -> Option<Placed> {
        let Some(last) = self.last else {
            let now = jiff::Timestamp::from_nanosecond(self.now).unwrap_or_default();
            let year = Offset::UTC.to_datetime(now).year();
            let latest = self.now.saturating_add(DAY);
            // There are up to eight years from one February 29 to the next.
            let mut years = (year - 8..=year + 1).rev();
            return years.find_map(|year| {
                let at = self.midnight_in(year, stamp)?;
                (at <= latest).then_some(Placed { stamp, year, at, shift: 0 })
            });
        };
        if (stamp.month, stamp.day) == (last.stamp.month, last.stamp.day) {
            let at = self.midnight_in(last.year, stamp)?;
            return Some(Placed { stamp, at, ..last });
        }
        match self.nearest(stamp, last.year, last.at) {
            Some((year, at)) if at.abs_diff(last.at) <= 183 * DAY.unsigned_abs() => {
                Some(Placed { stamp, year, at, ..last })
            }
            // Only a February 29 has no year within half a year: the log is of a leap year, and the first stamp
            // was put in another. What has been told stays, and what follows is told as far from it as it was.
            _ => {
                let (year, at) =
                    (last.year - 8..=last.year).rev().find_map(|year| Some((year, self.midnight_in(year, stamp)?)))?;
                let (_, last_at) = self.nearest(last.stamp, year, at)?;
                Some(Placed { stamp, year, at, shift: last.shift + last.at - last_at })
            }
        }
    }

    /// The year, out of one and its neighbours, that puts the stamp nearest to `to`, and the time it then is.
    fn nearest(&mut self, stamp: Yearless, year: i16, to: i128) -> Option<(i16, i128)> {
        let years = [year, year + 1, year - 1].into_iter();
        let times = years.filter_map(|year| Some((year, self.midnight_in(year, stamp)?)));
        times.min_by_key(|(_, at)| at.abs_diff(to))
    }

    fn midnight_in(&mut self, year: i16, stamp: Yearless) -> Option<i128> {
        Some(self.midnight(year, stamp.month, stamp.day)? + stamp.time)
    }

    /// When a date begins in UTC; `None` if there is no such date.
    fn midnight(&mut self, year: i16, month: i16, day: i16) -> Option<i128> {
        let asked = (year, month, day);
        if let Some((date, midnight)) = self.cached
            && date == asked
        {
            return Some(midnight);
        }
        let date = Date::new(year, month.try_into().ok()?, day.try_into().ok()?).ok()?;
        let midnight = date.duration_since(Date::constant(1970, 1, 1)).as_nanos();
        self.cached = Some((asked, midnight));
        Some(midnight)
    }
}

/// A syslog stamp; `time` counts from the date's midnight in UTC.
#[derive(Clone, Copy, Debug)]
struct Yearless {
    month: i16,
    day: i16,
    time: i128,
}

/// A syslog stamp in the year chosen for it, and how far from there it is told to be (see `place`).
#[derive(Clone, Copy, Debug)]
struct Placed {
    stamp: Yearless,
    year: i16,
    at: i128,
    shift: i128,
}

/// The unit of integers, in nanoseconds, by the size of the first: seconds until the year 5138, and anything finer
/// since 1973.
fn unit(first: u64) -> i128 {
    match first {
        0..100_000_000_000 => 1_000_000_000,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    }
}

/// The digits after a decimal point in nanoseconds; those beyond the ninth are dropped.
fn nanoseconds(fraction: &[u8]) -> i64 {
    let (mut ns, mut place) = (0, SECOND);
    for digit in fraction.iter().take(9) {
        place /= 10;
        ns += i64::from(digit - b'0') * place;
    }
    ns
}

/// What is left of a stamp to be read.
struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    fn eat(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    /// At least one blank.
    fn blanks(&mut self) -> Option<()> {
        self.eat(b' ')?;
        while self.eat(b' ').is_some() {}
        Some(())
    }

    /// All the digits up to something else, which may be none.
    fn digits(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(end);
        self.0 = rest;
        digits
    }

    /// A number of exactly so many digits, at most four; takes nothing where there are fewer.
    fn number(&mut self, digits: usize) -> Option<i16> {
        let (digits, rest) = self.0.split_at_checked(digits)?;
        let number = digits
            .iter()
            .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + i16::from(byte - b'0')))?;
        self.0 = rest;
        Some(number)
    }

    /// A number of two digits, below a limit.
    fn below(&mut self, limit: i16) -> Option<i64> {
        self.number(2).filter(|number| *number < limit).map(i64::from)
    }

    fn month(&mut self) -> Option<i16> {
        const NAMES: [&[u8; 3]; 12] =
            [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
        let (name, rest) = self.0.split_first_chunk::<3>()?;
        self.0 = rest;
        (1..).zip(NAMES).find(|(_, month)| name.eq_ignore_ascii_case(*month)).map(|(number, _)| number)
    }

    /// `13:55:36`, perhaps with a fraction, perhaps with a zone, and then nothing more: nanoseconds since the
    /// date's midnight in UTC. A leap second is the first one of the next minute.
    fn time(&mut self) -> Option<i128> {
        let hours = self.below(24)?;
        self.eat(b':')?;
        let minutes = self.below(60)?;
        self.eat(b':')?;
        let seconds = self.below(61)?;
        let mut fraction = 0;
        if self.eat(b'.').or_else(|| self.eat(b',')).is_some() {
            let digits = self.digits();
            if digits.is_empty() {
                return None;
            }
            fraction = nanoseconds(digits);
        }
        let seconds = (hours * 60 + minutes) * 60 + seconds - self.offset()?;
        Some(i128::from(seconds * SECOND + fraction))
    }

    /// The zone that ends a stamp, in seconds east of UTC: `Z`, `UTC`, `+02:00`, `+0200`, `+02`, or none.
    fn offset(&mut self) -> Option<i64> {
        while self.eat(b' ').is_some() {}
        let sign = match self.0 {
            [] | b"Z" | b"z" | b"UTC" => return Some(0),
            [b'+', ..] => 1,
            [b'-', ..] => -1,
            _ => return None,
        };
        self.0 = &self.0[1..];
        let hours = self.below(24)?;
        let minutes = if self.0.is_empty() {
            0
        } else {
            let _colon = self.eat(b':');
            self.below(60)?
        };
        self.0.is_empty().then_some(sign * (hours * 60 + minutes) * 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Nanoseconds since the epoch of a time that jiff can read.
    fn ns(rfc3339: &str) -> i128 {
        rfc3339.parse::<jiff::Timestamp>().unwrap().as_nanosecond()
    }

    fn at(now: &str) -> Timestamps {
        Timestamps::new(ns(now))
    }

    fn told(ns: i128) -> String {
        jiff::Timestamp::from_nanosecond(ns).map_or_else(|_| ns.to_string(), |time| time.to_string())
    }

    /// Each stamp is read by a reader of its own.
    #[track_caller]
    fn check(stamps: &[&str], wanted: &str) {
        for stamp in stamps {
            let read = at("2026-11-30T12:00:00Z").read(stamp.as_bytes());
            assert_eq!(read.map(told).as_deref(), Some(told(ns(wanted)).as_str()), "{stamp:?}");
        }
    }

    /// The stamps are read by one reader, one after the other.
    #[track_caller]
    fn follow(now: &str, stamps: &[(&str, &str)]) {
        let mut timestamps = at(now);
        for (stamp, wanted) in stamps {
            let read = timestamps.read(stamp.as_bytes()).map(told);
            assert_eq!(read.as_deref(), Some(told(ns(wanted)).as_str()), "{stamp:?}, now {now}, of {stamps:?}");
        }
    }

    #[test]
    fn the_first_integer_decides_the_unit() {
        for (first, wanted) in [
            (0, 0),
            (1, 1_000_000_000),
            (99_999_999_999, 99_999_999_999_000_000_000),
            (100_000_000_000, 100_000_000_000_000_000),
            (99_999_999_999_999, 99_999_999_999_999_000_000),
            (100_000_000_000_000, 100_000_000_000_000_000),
            (99_999_999_999_999_999, 99_999_999_999_999_999_000),
            (100_000_000_000_000_000, 100_000_000_000_000_000),
            (u64::MAX, i128::from(u64::MAX)),
        ] {
            for (sign, factor) in [("", 1), ("-", -1)] {
                let read = Timestamps::new(0).read(format!("{sign}{first}").as_bytes());
                assert_eq!(read, Some(factor * wanted), "{sign}{first}");
            }
        }
    }

    #[test]
    fn later_integers_keep_the_unit_and_decimals_are_seconds() {
        let mut timestamps = Timestamps::new(0);
        for (stamp, wanted) in [
            ("x", None),                    // decides nothing
            ("99999999999999999999", None), // nor does what does not fit
            ("1.5", Some(1_500_000_000)),   // nor a decimal
            ("1700000000000", Some(1_700_000_000_000_000_000)),
            ("5", Some(5_000_000)),
            ("-5", Some(-5_000_000)),
            ("100000000000000000", Some(100_000_000_000_000_000_000_000)),
            ("5.0", Some(5_000_000_000)),
        ] {
            assert_eq!(timestamps.read(stamp.as_bytes()), wanted, "{stamp}");
        }
    }

    #[test]
    fn a_decimal_is_exact_to_the_nanosecond() {
        for (stamp, wanted) in [
            ("1700000000.123456789", 1_700_000_000_123_456_789),
            ("1700000000.1", 1_700_000_000_100_000_000),
            ("1700000000.1234567899", 1_700_000_000_123_456_789),
            ("0.000000001", 1),
            ("0.0000000009", 0),
            ("-0.000000001", -1),
            ("-1.5", -1_500_000_000),
            ("5.", 5_000_000_000),
            (".5", 500_000_000),
            ("-.5", -500_000_000),
            ("1700000000000.5", 1_700_000_000_000_500_000_000),
            ("00000000000000000000000000001.5", 1_500_000_000),
        ] {
            assert_eq!(Timestamps::new(0).read(stamp.as_bytes()), Some(wanted), "{stamp}");
        }
        let long = format!("1.{}", "9".repeat(100_000));
        assert_eq!(Timestamps::new(0).read(long.as_bytes()), Some(1_999_999_999));
    }

    #[test]
    fn dates_are_read_in_every_way_they_are_written() {
        check(
            &[
                "2000-10-10T13:55:36Z",
                "2000-10-10t13:55:36z",
                "2000-10-10 13:55:36Z",
                "2000-10-10 13:55:36",
                "2000-10-10T13:55:36",
                "2000-10-10 13:55:36 UTC",
                "2000-10-10T13:55:36.0Z",
                "2000-10-10 13:55:36,000",
                "2000-10-10T13:55:36+00:00",
                "2000-10-10T13:55:36-00:00",
                "2000-10-10T15:55:36+02:00",
                "2000-10-10T15:55:36+0200",
                "2000-10-10 15:55:36 +0200",
                "2000-10-10 15:55:36+02",
                "2000-10-10T08:25:36-05:30",
                "2000-10-11T00:55:36+11:00",
                "2000-10-09T14:55:36-23:00",
                "10/Oct/2000:13:55:36 +0000",
                "10/Oct/2000:06:55:36 -0700",
                "[10/Oct/2000:06:55:36 -0700]",
                "[10/Oct/2000:13:55:36",
                "10/oct/2000:13:55:36",
                "\"2000-10-10T13:55:36Z\"",
                "[2000-10-10 13:55:36]",
                " \t[ \"2000-10-10 13:55:36\" ] \t",
            ],
            "2000-10-10T13:55:36Z",
        );
        check(
            &["2000-10-10T13:55:36.123Z", "2000-10-10 13:55:36,123", "2000-10-10T15:55:36.123000000999+02:00"],
            "2000-10-10T13:55:36.123Z",
        );
        check(&["1969-12-31T23:59:59.999999999Z"], "1969-12-31T23:59:59.999999999Z");
        check(&["2024-02-29T00:00:00Z"], "2024-02-29T00:00:00Z");
        check(&["0000-01-01T00:00:00Z"], "0000-01-01T00:00:00Z");
        check(
            &["2026-10-05T03:04:05Z", "Oct  5 03:04:05", "Oct 05 03:04:05", "Oct 5 03:04:05", "OCT  5 03:04:05"],
            "2026-10-05T03:04:05Z",
        );
        check(&["Oct  5 03:04:05.678"], "2026-10-05T03:04:05.678Z");
    }

    #[test]
    fn a_leap_second_is_the_first_of_the_next_minute() {
        check(&["2016-12-31T23:59:60Z", "2016-12-31 23:59:60", "31/Dec/2016:18:59:60 -0500"], "2017-01-01T00:00:00Z");
        check(&["2016-12-31T23:59:60.5Z"], "2017-01-01T00:00:00.5Z");
    }

    #[test]
    fn brackets_around_a_number_are_overlooked() {
        for stamp in ["[    1.500000]", "\"1.5\"", " 1.5\t", "[1.5", "[[1.5]]"] {
            assert_eq!(Timestamps::new(0).read(stamp.as_bytes()), Some(1_500_000_000), "{stamp}");
        }
    }

    #[test]
    fn what_is_no_time_is_unreadable() {
        for stamp in [
            "",
            " ",
            "[]",
            "\"",
            "-",
            ".",
            "-.",
            "+5",
            "--5",
            "1e9",
            "1.5.5",
            "1,5",
            "1 5",
            "0x10",
            "1.5s",
            "NaN",
            "now",
            "١",
            "18446744073709551616",
            "18446744073709551616.5",
            "2000-10-10",
            "2000-10-10T",
            "2000-10-10T13:55",
            "2000-10-10T13:55:36.",
            "2000-10-10T13:55:36.Z",
            "2000-10-10T13:55:36X",
            "2000-10-10T13:55:36Zx",
            "2000-10-10T13:55:36+",
            "2000-10-10T13:55:36+2",
            "2000-10-10T13:55:36+02:",
            "2000-10-10T13:55:36+02:60",
            "2000-10-10T13:55:36+24:00",
            "2000-10-10T13:55:36+02000",
            "2000-10-10T24:00:00Z",
            "2000-10-10T13:60:00Z",
            "2000-10-10T13:55:61Z",
            "2000-13-10T13:55:36Z",
            "2000-00-10T13:55:36Z",
            "2000-10-00T13:55:36Z",
            "2000-10-32T13:55:36Z",
            "2001-02-29T00:00:00Z",
            "2000-10-10T1:55:36Z",
            "2000-10-10_13:55:36",
            "2000-1-10T13:55:36Z",
            "-2000-10-10T13:55:36Z",
            "10/Okt/2000:13:55:36",
            "10/10/2000:13:55:36",
            "10/Oct/2000 13:55:36",
            "30/Feb/2000:13:55:36 +0000",
            "Oct  5",
            "Oct",
            "Oct5 03:04:05",
            "Oct  5 03:04",
            "Oct 005 03:04:05",
            "Oct  0 03:04:05",
            "Oct 32 03:04:05",
            "Feb 30 03:04:05",
            "October  5 03:04:05",
            "Thu Oct  5 03:04:05",
        ] {
            assert_eq!(at("2026-11-30T12:00:00Z").read(stamp.as_bytes()), None, "{stamp:?}");
            // A reader that has seen others does not read it either, and is none the worse for it.
            let mut timestamps = at("2026-11-30T12:00:00Z");
            timestamps.read(b"Oct  5 03:04:05");
            timestamps.read(b"5");
            assert_eq!(timestamps.read(stamp.as_bytes()).filter(|_| stamp.len() < 18), None, "{stamp:?}");
            assert_eq!(timestamps.read(b"Oct  6 03:04:05"), Some(ns("2026-10-06T03:04:05Z")), "{stamp:?}");
        }
    }

    #[test]
    fn the_first_stamp_without_a_year_is_the_latest_up_to_a_day_from_now() {
        for (now, stamp, wanted) in [
            ("2026-11-30T12:00:00Z", "Nov 30 12:00:00", "2026-11-30T12:00:00Z"),
            ("2026-11-30T12:00:00Z", "Dec  1 12:00:00", "2026-12-01T12:00:00Z"), // a day ahead: a zone, a clock
            ("2026-11-30T12:00:00Z", "Dec  1 12:00:01", "2025-12-01T12:00:01Z"),
            ("2026-11-30T12:00:00Z", "Jan  1 00:00:00", "2026-01-01T00:00:00Z"),
            ("2026-12-31T23:00:00Z", "Jan  1 05:00:00", "2027-01-01T05:00:00Z"),
            ("2026-01-01T01:00:00Z", "Dec 31 23:00:00", "2025-12-31T23:00:00Z"),
            ("2026-11-30T12:00:00Z", "Feb 29 01:02:03", "2024-02-29T01:02:03Z"),
            ("2024-02-28T12:00:00Z", "Feb 29 01:02:03", "2024-02-29T01:02:03Z"),
            ("1904-02-20T00:00:00Z", "Feb 29 01:02:03", "1896-02-29T01:02:03Z"), // 1900 was no leap year
        ] {
            follow(now, &[(stamp, wanted)]);
        }
    }

    #[test]
    fn stamps_without_a_year_pass_new_year_both_ways() {
        follow(
            "2026-06-01T00:00:00Z",
            &[
                ("Dec 31 23:59:58", "2025-12-31T23:59:58Z"),
                ("Dec 31 23:59:59", "2025-12-31T23:59:59Z"),
                ("Jan  1 00:00:00", "2026-01-01T00:00:00Z"),
                ("Dec 31 23:59:59", "2025-12-31T23:59:59Z"), // a little late
                ("Jan  1 00:00:01", "2026-01-01T00:00:01Z"),
                ("Jun  1 00:00:00", "2026-06-01T00:00:00Z"),
                ("Nov  1 00:00:00", "2026-11-01T00:00:00Z"),
                ("Feb  1 00:00:00", "2027-02-01T00:00:00Z"), // beyond now: the log knows better
            ],
        );
    }

    #[test]
    fn a_year_is_passed_for_each_new_year_in_the_log() {
        let mut timestamps = at("2026-11-30T12:00:00Z");
        let first = timestamps.read(b"Mar  1 00:00:00").unwrap();
        for _ in 0..3 {
            for month in ["Jun", "Sep", "Dec", "Mar"] {
                timestamps.read(format!("{month}  1 00:00:00").as_bytes()).unwrap();
            }
        }
        let last = timestamps.read(b"Mar  1 00:00:00").unwrap();
        assert_eq!((last - first) / DAY, 3 * 365 + 1); // 2028 among them
    }

    #[test]
    fn a_leap_day_amid_a_log_put_in_another_year_keeps_every_gap() {
        // The log is of 2024, but that shows only at its February 29.
        follow(
            "2026-11-30T12:00:00Z",
            &[
                ("Feb 28 23:59:59", "2026-02-28T23:59:59Z"),
                ("Feb 29 00:00:00", "2026-03-01T00:00:00Z"),
                ("Feb 28 23:59:59", "2026-02-28T23:59:59Z"),
                ("Feb 29 12:00:00", "2026-03-01T12:00:00Z"),
                ("Mar  1 00:00:00", "2026-03-02T00:00:00Z"),
            ],
        );
        follow(
            "2027-01-10T00:00:00Z",
            &[("Dec 30 00:00:00", "2026-12-30T00:00:00Z"), ("Feb 29 00:00:00", "2027-03-01T00:00:00Z")],
        );
        // 176 days on, though the February 29 of the year that the log was put in is only 190 days back.
        follow(
            "2024-11-30T00:00:00Z",
            &[("Sep  6 00:00:00", "2024-09-06T00:00:00Z"), ("Feb 29 00:00:00", "2025-03-01T00:00:00Z")],
        );
    }

    #[test]
    fn no_present_time_is_too_strange() {
        for now in [i128::MIN, i128::MAX, 0] {
            let mut timestamps = Timestamps::new(now);
            for stamp in ["Oct  5 03:04:05", "Feb 29 00:00:00", "Dec 31 23:59:60"] {
                timestamps.read(stamp.as_bytes());
            }
        }
        let mut timestamps = at("9999-12-30T00:00:00Z");
        for stamp in ["Dec 30 00:00:00", "Jan  1 00:00:00", "Feb 29 00:00:00", "Jun  1 00:00:00", "Dec  1 00:00:00"] {
            assert!(timestamps.read(stamp.as_bytes()).is_some(), "{stamp}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(stamps in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..4)) {
            let mut timestamps = Timestamps::new(0);
            for stamp in stamps {
                timestamps.read(&stamp);
            }
        }

        #[test]
        fn almost_times_do_not_make_it_panic(
            now in any::<i128>(),
            stamps in prop::collection::vec(
                "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]?[0-9:.,]{0,12}[Zz+-]?[0-9:]{0,5}\
                |[0-9]{2}/(Jan|Feb|Dec)/[0-9]{4}:[0-9:]{0,9} ?[+-]?[0-9]{0,4}\
                |(Jan|Feb|Jun|Nov|Dec) [ 0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-6][0-9]\
                |-?[0-9]{0,30}[.]?[0-9]{0,30}",
                0..20,
            ),
        ) {
            let mut timestamps = Timestamps::new(now);
            for stamp in stamps {
                timestamps.read(stamp.as_bytes());
            }
        }

        #[test]
        fn every_nanosecond_is_read_again(
            ns in -60_000_000_000_000_000_000_i128..253_000_000_000_000_000_000,
            minutes in -14 * 60..=14 * 60,
        ) {
            let time = jiff::Timestamp::from_nanosecond(ns).unwrap();
            let mut timestamps = Timestamps::new(0);
            prop_assert_eq!(timestamps.read(time.to_string().as_bytes()), Some(ns));
            let offset = Offset::from_seconds(minutes * 60).unwrap();
            let zoned = time.display_with_offset(offset).to_string();
            prop_assert_eq!(timestamps.read(zoned.as_bytes()), Some(ns), "{}", zoned);
            let civil = Offset::UTC.to_datetime(time);
            prop_assert_eq!(timestamps.read(civil.to_string().as_bytes()), Some(ns));
            let common = civil.strftime("[%d/%b/%Y:%H:%M:%S +0000]").to_string();
            prop_assert_eq!(timestamps.read(common.as_bytes()), Some(ns - ns.rem_euclid(i128::from(SECOND))));
            let (sign, size) = (if ns < 0 { "-" } else { "" }, ns.unsigned_abs());
            let decimal = format!("{sign}{}.{:09}", size / 1_000_000_000, size % 1_000_000_000);
            prop_assert_eq!(timestamps.read(decimal.as_bytes()), Some(ns));
        }

        #[test]
        fn a_syslog_in_order_keeps_every_gap_but_for_a_leap_day(
            start in 0_i128..4_000_000_000,
            later in 0_i128..1_000_000_000,
            gaps in prop::collection::vec(0_i128..180 * 86_400, 1..40),
        ) {
            // Where the first stamp is put in another year than it is of, a gap may hide a February 29, or gain one.
            let mut timestamps = Timestamps::new((start + later) * i128::from(SECOND));
            let mut seconds = start;
            let mut told: Option<(i128, i128)> = None;
            for gap in gaps {
                seconds += gap;
                let time = jiff::Timestamp::from_second(seconds as i64).unwrap();
                let stamp = Offset::UTC.to_datetime(time).strftime("%b %e %H:%M:%S").to_string();
                let read = timestamps.read(stamp.as_bytes()).unwrap();
                if let Some((before, read_before)) = told {
                    let off = ((read - read_before) / i128::from(SECOND) - (seconds - before)).abs();
                    prop_assert!(off == 0 || off == 86_400, "{} is {} s off", stamp, off);
                }
                told = Some((seconds, read));
            }
        }
    }
}
