//! Selectors: how a key, a cost or a time is read out of an item.
//!
//! A selector is `field:N`, `regex:RE` or `json:/POINTER`. It answers with bytes, since items are bytes, and
//! borrows them from the item wherever they stand there as they are meant: only a JSON string with an escape in it
//! is copied. What cannot be found is `None`, whatever the reason; what that means is the caller's business.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use regex::bytes::Regex;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// How much of an item a selector sees: longer ones stream through and are never in memory as a whole.
const SEEN: usize = 1 << 20;

/// How a key, a cost or a time is read out of an item.
#[derive(Clone, Debug)]
pub struct Selector(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// The field after so many others. Runs of blanks part fields, as in awk, and a separator parts two wherever
    /// it stands, as in cut.
    Field { before: usize, separator: Option<Separator> },
    /// Group 1 of the first match, else the whole of it.
    Regex(Regex),
    /// The steps of a JSON pointer.
    Json(Vec<String>),
}

impl Selector {
    /// Reads `field:N` (from 1), `regex:RE` or `json:/POINTER` (RFC 6901; `json:` alone is the whole item). The
    /// separator serves `field:N` only.
    pub fn parse(text: &str, separator: Option<&Separator>) -> Result<Selector, SelectorError> {
        let kind = match text.split_once(':') {
            Some(("field", number)) => field(number, separator)?,
            Some(("regex", pattern)) => Kind::Regex(regex(pattern)?),
            Some(("json", pointer)) => Kind::Json(steps(pointer)?),
            _ => {
                return refuse("a selector is field:N, regex:RE or json:/POINTER; for one field say field:1");
            }
        };
        Ok(Selector(kind))
    }

    /// Whether this is a `field:N`, the only one a field separator serves.
    pub fn is_field(&self) -> bool {
        matches!(self.0, Kind::Field { .. })
    }

    /// Finds its part of an item, of which it sees the first MiB. The item comes without its delimiter: see
    /// [`content`].
    pub fn find<'a>(&self, item: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let item = first_mib(item);
        match &self.0 {
            Kind::Field { before, separator: None } => {
                let fields = item.split(|byte| matches!(byte, b' ' | b'\t'));
                fields.filter(|field| !field.is_empty()).nth(*before).map(Cow::Borrowed)
            }
            Kind::Field { before, separator: Some(separator) } => {
                let mut rest = item;
                for _ in 0..*before {
                    rest = &rest[separator.find(rest)? + separator.0.len()..];
                }
                let end = separator.find(rest).unwrap_or(rest.len());
                Some(Cow::Borrowed(&rest[..end]))
            }
            Kind::Regex(regex) => {
                let found = if regex.captures_len() == 1 {
                    regex.find(item)?
                } else {
                    let groups = regex.captures(item)?;
                    groups.get(1).or(groups.get(0))?
                };
                Some(Cow::Borrowed(found.as_bytes()))
            }
            Kind::Json(steps) => {
                let mut json = serde_json::Deserializer::from_slice(item);
                let found = Walk(steps).deserialize(&mut json).ok()?;
                json.end().ok()?;
                scalar(found?)
            }
        }
    }
}

/// What of an item selectors see: its first MiB, without the delimiter or a CR before it.
pub fn content<'a>(item: &'a [u8], delimiter: &[u8]) -> &'a [u8] {
    // A record of a fixed size has no delimiter, and a CR at its end is its own.
    let stripped = if delimiter.is_empty() { None } else { item.strip_suffix(delimiter) };
    first_mib(stripped.map_or(item, |item| item.strip_suffix(b"\r").unwrap_or(item)))
}

/// Reads a cost: a decimal integer from 0 that fits 64 bits, blanks around it allowed.
pub fn cost(text: &[u8]) -> Option<u64> {
    let mut digits = text;
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = digits {
        digits = rest;
    }
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |cost, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        cost.checked_mul(10)?.checked_add(digit)
    })
}

fn first_mib(item: &[u8]) -> &[u8] {
    &item[..item.len().min(SEEN)]
}

/// The one character that parts fields: any character, or `\t`, `\n`, `\0`, `\\` or `\xHH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Separator(Vec<u8>);

impl Separator {
    fn find(&self, text: &[u8]) -> Option<usize> {
        let first = *self.0.first()?;
        memchr::memchr_iter(first, text).find(|at| text[*at..].starts_with(&self.0))
    }
}

impl FromStr for Separator {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Separator, SelectorError> {
        let mut characters = text.chars();
        let byte = match (text, characters.next(), characters.next()) {
            ("", ..) => {
                return refuse("a field separator is one character; for runs of blanks leave it out");
            }
            (_, Some(_), None) => return Ok(Separator(text.as_bytes().to_vec())),
            (r"\t", ..) => b'\t',
            (r"\n", ..) => b'\n',
            (r"\0", ..) => b'\0',
            (r"\\", ..) => b'\\',
            _ => match text.strip_prefix(r"\x").and_then(hex_byte) {
                Some(byte) => byte,
                None => {
                    return refuse(r"a field separator is one character, or \t, \n, \0, \\, \xHH; for a tab say \t");
                }
            },
        };
        Ok(Separator(vec![byte]))
    }
}

fn hex_byte(digits: &str) -> Option<u8> {
    // from_str_radix would take "+f" too.
    let two = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if two { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// Why a text is no selector or separator, and what would do, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError(String);

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SelectorError {}

fn refuse<T>(why: impl Into<String>) -> Result<T, SelectorError> {
    Err(SelectorError(why.into()))
}

fn field(number: &str, separator: Option<&Separator>) -> Result<Kind, SelectorError> {
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return refuse("a field is told by its number; for the first say field:1");
    }
    // No item has that many fields, so a number beyond usize may as well be the largest.
    let number: usize = number.parse().unwrap_or(usize::MAX);
    let Some(before) = number.checked_sub(1) else {
        return refuse("fields count from 1; for the first say field:1");
    };
    Ok(Kind::Field { before, separator: separator.cloned() })
}

fn regex(pattern: &str) -> Result<Regex, SelectorError> {
    if pattern.is_empty() {
        return refuse(r"a regular expression is missing; say what to take, as in regex:'user=(\w+)'");
    }
    Regex::new(pattern).or_else(|error| {
        if let regex::Error::CompiledTooBig(_) = error {
            return refuse("the regular expression is too big; smaller {n,m} counts would do");
        }
        // The crate draws the expression over several lines and says what is wrong in the last.
        let drawn = error.to_string();
        let what = drawn.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or("it cannot be read");
        let instead = if what.contains("not supported") {
            r"group 1 is what is taken, as in regex:'user=(\w+)'"
        } else {
            r"a sign meant as it stands takes a backslash, as in \( or \["
        };
        refuse(format!("the regular expression is wrong: {what}; {instead}"))
    })
}

fn steps(pointer: &str) -> Result<Vec<String>, SelectorError> {
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let Some(steps) = pointer.strip_prefix('/') else {
        return refuse("a JSON pointer begins with a slash, as in json:/user/id");
    };
    let step = |step: &str| {
        if step.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
            return refuse("in a JSON pointer ~ stands before 0 or 1 only; write ~0 for ~ and ~1 for /");
        }
        // In this order, or ~01 would become a slash.
        Ok(step.replace("~1", "/").replace("~0", "~"))
    };
    steps.split('/').map(step).collect()
}

/// Walks a document along the steps of a pointer and ignores the rest of it, checking only that it is JSON. Of
/// members with the same name the last one counts, as everywhere. Ends with the value's text as it is written.
struct Walk<'p>(&'p [String]);

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        // A scalar with steps left to go is an error here: nothing could be found in it.
        if self.0.is_empty() { <&RawValue>::deserialize(value).map(Some) } else { value.deserialize_any(self) }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let Some((step, rest)) = self.0.split_first() else {
            return Ok(None);
        };
        let mut found = None;
        while let Some(wanted) = members.next_key_seed(Named(step))? {
            if wanted {
                found = members.next_value_seed(Walk(rest))?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let Some((step, rest)) = self.0.split_first() else {
            return Ok(None);
        };
        let Some(index) = index(step) else {
            return Err(A::Error::custom("no index"));
        };
        for _ in 0..index {
            if elements.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = elements.next_element_seed(Walk(rest))?.flatten();
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

/// An index of an array has no sign and no leading zeros (RFC 6901, section 4).
fn index(step: &str) -> Option<usize> {
    let plain = step == "0" || !step.starts_with(['0', '+']);
    if plain { step.parse().ok() } else { None }
}

/// Whether a member has this name; asked without copying the member's name.
struct Named<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for Named<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Named<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

/// A string's text, a number or a boolean as written. Null, arrays and objects name nothing.
fn scalar(value: &RawValue) -> Option<Cow<'_, [u8]>> {
    let text = value.get().as_bytes();
    match text {
        [b'n' | b'[' | b'{', ..] => None,
        [b'"', inner @ .., b'"'] if memchr::memchr(b'\\', inner).is_none() => Some(Cow::Borrowed(inner)),
        [b'"', ..] => serde_json::from_slice(text).ok().map(|text: String| Cow::Owned(text.into_bytes())),
        _ => Some(Cow::Borrowed(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn selector(text: &str, separator: Option<&str>) -> Selector {
        let separator = separator.map(|text| text.parse::<Separator>().unwrap());
        Selector::parse(text, separator.as_ref()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn found(text: &str, separator: Option<&str>, item: &[u8]) -> Option<Vec<u8>> {
        selector(text, separator).find(item).map(Cow::into_owned)
    }

    #[track_caller]
    fn check(text: &str, separator: Option<&str>, item: impl AsRef<[u8]>, wanted: Option<&str>) {
        let item = item.as_ref();
        let found = found(text, separator, item).map(|found| String::from_utf8_lossy(&found).into_owned());
        assert_eq!(found.as_deref(), wanted, "{text} -t {separator:?} in {:?}", String::from_utf8_lossy(item));
    }

    fn refusal(text: &str) -> String {
        Selector::parse(text, None).err().unwrap_or_else(|| panic!("{text:?} is taken")).to_string()
    }

    #[test]
    fn a_field_stands_between_runs_of_blanks() {
        for (text, item, wanted) in [
            ("field:1", "a b c", Some("a")),
            ("field:2", "a b c", Some("b")),
            ("field:3", "a b c", Some("c")),
            ("field:4", "a b c", None),
            ("field:2", "a \t  b", Some("b")),
            ("field:1", "  \ta b", Some("a")), // leading blanks part nothing
            ("field:3", "a b  ", None),        // nor do trailing ones
            ("field:1", "", None),
            ("field:1", " \t ", None),
            ("field:1", "a,b", Some("a,b")),
            ("field:2", "a\u{a0}b c", Some("c")), // only the blank and the tab are blanks
            ("field:01", "a b", Some("a")),
            ("field:18446744073709551616", "a b", None),
            ("field:99999999999999999999999999", "a b", None),
        ] {
            check(text, None, item, wanted);
        }
    }

    #[test]
    fn every_single_separator_parts_two_fields() {
        for (text, separator, item, wanted) in [
            ("field:1", ",", "a,b", Some("a")),
            ("field:2", ",", "a,b", Some("b")),
            ("field:3", ",", "a,b", None),
            ("field:2", ",", "a,,b", Some("")), // an empty field is a field
            ("field:1", ",", ",a", Some("")),
            ("field:2", ",", "a,", Some("")),
            ("field:1", ",", "", Some("")),
            ("field:2", ",", "", None),
            ("field:1", ",", "no separator", Some("no separator")),
            ("field:2", r"\t", "a\tb c", Some("b c")),
            ("field:2", r"\0", "a\0b", Some("b")),
            ("field:2", r"\x2c", "a,b", Some("b")),
            ("field:2", r"\", r"a\b", Some("b")),
            ("field:2", r"\\", r"a\b", Some("b")),
            ("field:2", " ", "a  b", Some("")),
            ("field:2", "→", "a→b→c", Some("b")),
            ("field:2", "→", "a←b→c", Some("c")), // they share their first two bytes
            ("field:99999999999999999999999999", ",", "a,b", None),
        ] {
            check(text, Some(separator), item, wanted);
        }
        assert_eq!(found("field:2", Some(r"\xff"), b"a\xffb"), Some(b"b".to_vec()));
    }

    #[test]
    fn a_separator_is_exactly_one_character() {
        for text in ["", "ab", "::", r"\q", r"\x", r"\x1", r"\x123", r"\x+f", r"\xgg", "é\u{301}", r"\\\\", r"\t\t"] {
            assert!(text.parse::<Separator>().is_err(), "{text:?}");
        }
        for text in [":", " ", "\t", "é", "😀", r"\", r"\n", r"\xFf"] {
            assert!(text.parse::<Separator>().is_ok(), "{text:?}");
        }
    }

    #[test]
    fn a_regular_expression_takes_group_1_else_the_whole() {
        for (text, item, wanted) in [
            ("regex:[0-9]+", "a 12 b 34", Some("12")),
            ("regex:user=(\\w+)", "x user=ann y", Some("ann")),
            ("regex:user=(\\w+)", "x", None),
            ("regex:user=(\\w+)|guest", "guest", Some("guest")), // group 1 took no part
            ("regex:(?:a|b)(c)(d)", "acd", Some("c")),
            ("regex:user=(?P<name>\\w*)", "user=", Some("")),
            ("regex:a:b", "xa:b", Some("a:b")), // the first colon alone is the selector's
            ("regex:(?i)É", "é", Some("é")),
            (r"regex:\[(.*?)\]", "1 [2] [3]", Some("2")),
        ] {
            check(text, None, item, wanted);
        }
        assert_eq!(found("regex:(?-u)=(.*)", None, b"a=\xff\xfe"), Some(b"\xff\xfe".to_vec()));
    }

    #[test]
    fn a_pointer_finds_a_string_a_number_or_a_boolean() {
        let document = r#" {"user":{"id":42,"name":"Ann","tags":["x",{"y":"z"}],"none":null,"on":true,"off":false},
            "a/b":1,"m~n":2,"":3,"~1":4,"esc":"a\tb\u00e9\"\\","2":"two","big":123456789012345678901234567890,
            "dec":1.10,"exp":1E+2,"neg":-0,"key\u0031":"k"} "#;
        for (text, wanted) in [
            ("json:/user/id", Some("42")),
            ("json:/user/name", Some("Ann")),
            ("json:/user/tags/0", Some("x")),
            ("json:/user/tags/1/y", Some("z")),
            ("json:/user/tags/2", None),
            ("json:/user/tags/00", None),
            ("json:/user/tags/01", None),
            ("json:/user/tags/+1", None),
            ("json:/user/tags/-", None),
            ("json:/user/tags/99999999999999999999999", None),
            ("json:/user/none", None),
            ("json:/user/tags", None),
            ("json:/user", None),
            ("json:", None),
            ("json:/user/on", Some("true")),
            ("json:/user/off", Some("false")),
            ("json:/user/id/x", None),
            ("json:/user/none/x", None),
            ("json:/missing", None),
            ("json:/a~1b", Some("1")),
            ("json:/m~0n", Some("2")),
            ("json:/", Some("3")),
            ("json:/~01", Some("4")),
            ("json:/esc", Some("a\tbé\"\\")),
            ("json:/2", Some("two")), // a number names a member of an object
            ("json:/key1", Some("k")),
            ("json:/big", Some("123456789012345678901234567890")), // numbers stand as written
            ("json:/dec", Some("1.10")),
            ("json:/exp", Some("1E+2")),
            ("json:/neg", Some("-0")),
        ] {
            check(text, None, document, wanted);
        }
        for (item, wanted) in [("17", Some("17")), ("\"a\"", Some("a")), ("\"\"", Some("")), (" true ", Some("true"))] {
            check("json:", None, item, wanted);
        }
    }

    #[test]
    fn what_is_not_json_has_nothing_to_find() {
        for item in [
            "",
            " ",
            "{",
            "x",
            r#"{"a":1"#,
            r#"{"a":1}}"#,
            r#"{"a":1} 2"#,
            r#"{"a":01}"#,
            r#"{"a":1,}"#,
            "{\"a\":\"\u{1}\"}",
        ] {
            check("json:/a", None, item, None);
        }
        check("json:/a", None, r#"{"a":"\ud800"}"#, None); // half a surrogate pair
        check("json:/a", None, b"{\"a\":\"\xff\"}", None);
        check("json:/a", None, "[".repeat(100_000) + &"]".repeat(100_000), None);
        check("json:/a", None, format!(r#"{{"b":{}{},"a":1}}"#, "[".repeat(9999), "]".repeat(9999)), Some("1"));
    }

    #[test]
    fn of_members_with_one_name_the_last_counts() {
        check("json:/a", None, r#"{"a":1,"a":2}"#, Some("2"));
        check("json:/a/b", None, r#"{"a":{"b":1},"a":{"c":2}}"#, None);
    }

    #[test]
    fn only_the_first_mib_is_seen() {
        let mut item = vec![b'a'; 1_048_575];
        item.extend(b"bc d");
        assert_eq!(found("field:1", None, &item).map(|found| found.len()), Some(1_048_576));
        check("field:2", None, &item, None);
        check("regex:b", None, &item, Some("b"));
        check("regex:c", None, &item, None);
        assert_eq!(content(&item, b"\n").len(), 1_048_576);
    }

    #[test]
    fn content_is_without_the_delimiter_and_a_cr_before_it() {
        for (item, delimiter, wanted) in [
            ("a\n", "\n", "a"),
            ("a\r\n", "\n", "a"),
            ("a\r\r\n", "\n", "a\r"),
            ("a\n\n", "\n", "a\n"),
            ("a", "\n", "a"),     // the last item may lack it,
            ("a\r", "\n", "a\r"), // and a CR before nothing is its own
            ("\r\n", "\n", ""),
            ("\n", "\n", ""),
            ("", "\n", ""),
            ("a\0", "\0", "a"),
            ("a--", "--", "a"),
            ("a\r\n", "\r\n", "a"),
            ("a\r", "", "a\r"),
        ] {
            assert_eq!(
                content(item.as_bytes(), delimiter.as_bytes()),
                wanted.as_bytes(),
                "{item:?} less {delimiter:?}"
            );
        }
    }

    #[test]
    fn a_cost_is_a_decimal_integer_from_zero() {
        for (text, wanted) in [
            ("0", Some(0)),
            ("17", Some(17)),
            (" \t17\t ", Some(17)),
            ("007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("99999999999999999999999", None),
            ("", None),
            (" ", None),
            ("-1", None),
            ("-0", None),
            ("+1", None),
            ("1.0", None),
            ("1e3", None),
            ("1 2", None),
            ("0x10", None),
            ("١", None),
        ] {
            assert_eq!(cost(text.as_bytes()), wanted, "{text:?}");
        }
    }

    #[test]
    fn a_refusal_is_one_line_that_says_what_would_do() {
        for (text, parts) in [
            ("", &["field:", "regex:", "json:"][..]),
            ("1", &["field:", "regex:", "json:"]),
            ("fields:1", &["field:", "regex:", "json:"]),
            ("Field:1", &["field:", "regex:", "json:"]),
            ("field:0", &["count from 1", "field:1"]),
            ("field:000", &["count from 1", "field:1"]),
            ("field:", &["number", "field:1"]),
            ("field:+1", &["number", "field:1"]),
            ("field:-1", &["number", "field:1"]),
            ("field:1,2", &["number", "field:1"]),
            ("regex:", &["missing", "regex:"]),
            ("regex:(", &["unclosed group", "backslash"]),
            ("regex:a\n(\nb", &["unclosed group", "backslash"]),
            ("regex:[", &["unclosed character class", "backslash"]),
            ("regex:*", &["repetition operator missing expression", "backslash"]),
            ("regex:(?=a)", &["look-around", "not supported", "group 1"]),
            (r"regex:(a)\1", &["backreferences are not supported", "group 1"]),
            ("regex:(\\w{1000}){1000}", &["too big"]),
            ("json:user", &["slash", "json:/user/id"]),
            ("json:/a~", &["~0", "~1"]),
            ("json:/a~2b", &["~0", "~1"]),
        ] {
            let said = refusal(text);
            assert!(!said.contains('\n'), "{text}: {said}");
            assert!(parts.iter().all(|part| said.contains(part)), "{text}: {said}");
        }
    }

    #[test]
    fn a_field_alone_is_served_by_a_separator() {
        assert!(selector("field:1", None).is_field() && selector("field:1", Some(",")).is_field());
        assert!(!selector("regex:a", Some(",")).is_field() && !selector("json:/a", None).is_field());
    }

    proptest! {
        #[test]
        fn no_item_makes_a_selector_panic(item in prop::collection::vec(any::<u8>(), 0..200)) {
            for text in ["field:1", "field:3", "regex:.", r"regex:(?i)\b(\w+)\b", "json:", "json:/a/0"] {
                selector(text, None).find(&item);
                selector(text, Some("é")).find(&item);
            }
            cost(&item);
            content(&item, b"\n");
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "(field:|regex:|json:)?\\PC*", separator in "\\PC{0,3}") {
            let separator = separator.parse::<Separator>().ok();
            let _ = Selector::parse(&text, separator.as_ref());
        }

        #[test]
        fn almost_json_makes_no_pointer_panic(item in "[\\[\\]{}\",:a0\\\\ .e-]{0,40}") {
            for text in ["json:", "json:/a", "json:/0", "json:/a/0/a"] {
                selector(text, None).find(item.as_bytes());
            }
        }

        #[test]
        fn joined_fields_are_found_again(fields in prop::collection::vec("[^,]*", 1..8)) {
            let item = fields.join(",");
            for (before, field) in fields.iter().enumerate() {
                let text = format!("field:{}", before + 1);
                prop_assert_eq!(found(&text, Some(","), item.as_bytes()), Some(field.clone().into_bytes()));
            }
        }

        #[test]
        fn any_member_is_found_under_its_name(name in any::<String>(), value in any::<String>(), number in any::<i64>()) {
            let pointer = name.replace('~', "~0").replace('/', "~1");
            let item = serde_json::json!({"other": [1, {"x": null}], name: [value, number]}).to_string();
            prop_assert_eq!(found(&format!("json:/{pointer}/0"), None, item.as_bytes()), Some(value.into_bytes()));
            prop_assert_eq!(found(&format!("json:/{pointer}/1"), None, item.as_bytes()), Some(number.to_string().into_bytes()));
        }

        #[test]
        fn every_cost_is_read_again(number in any::<u64>()) {
            prop_assert_eq!(cost(number.to_string().as_bytes()), Some(number));
        }
    }
}
