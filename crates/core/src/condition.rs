//! Conditions on requests, which rules have besides their pattern of paths: `when`.
//!
//! A rule without conditions is decided by the path alone. The heads of files are cached by name, so a site whose rules
//! have conditions makes those heads anew that depend on them (`reply`), and names the request fields in `Vary`.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use amped_http::h1::request::{self, Request};
use amped_http::uri;
use amped_units::{Form as _, parse_text};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::forms::Token;
use crate::glob::{self, Glob};

/// Conditions on a request, which must all hold
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Condition {
    /// The method is one of these
    #[serde(deserialize_with = "Token::list", skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<Box<str>>,
    /// The host, without its port and in lower case, matches one of these patterns
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<TextPattern>,
    /// The decoded value of each of these parameters of the query matches its pattern; `""`: missing or empty
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<Box<str>, TextPattern>,
    /// The value of each of these header fields matches its pattern; `""`: missing or empty
    #[serde(deserialize_with = "field_patterns", skip_serializing_if = "BTreeMap::is_empty")]
    pub header: BTreeMap<Box<str>, TextPattern>,
    /// The scheme of the request
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// None of these conditions, each with its own keys, holds
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub not: Vec<Condition>,
}

/// A schema that does not contain itself.
fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "object" } })
}

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Without TLS
    Http,
    /// With TLS, to this server or to a proxy that it trusts
    Https,
}

impl Condition {
    /// Whether all conditions hold for this request.
    pub fn holds(&self, request: &Request<'_>) -> bool {
        let Condition { methods, hosts, query, header, scheme, not } = self;
        scheme.is_none_or(|scheme| (scheme == Scheme::Https) == request.secure)
            && (methods.is_empty() || methods.iter().any(|method| method.as_bytes() == request.method_text))
            && (hosts.is_empty() || {
                let host = request.host.to_ascii_lowercase();
                hosts.iter().any(|pattern| pattern.matches(&host))
            })
            && query.iter().all(|(name, pattern)| pattern.matches_any(parameters(request, name.as_bytes())))
            && header.iter().all(|(name, pattern)| {
                let fields = request::fields(request.head);
                let fields = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
                pattern.matches_any(fields.map(|(_, value)| value))
            })
            && !not.iter().any(|condition| condition.holds(request))
    }

    /// The names of the header fields that it depends on.
    pub(crate) fn add_fields<'a>(&'a self, names: &mut BTreeSet<&'a str>) {
        names.extend(self.header.keys().map(|name| &**name));
        self.not.iter().for_each(|condition| condition.add_fields(names));
    }
}

/// The decoded values of a parameter of the query.
fn parameters<'a>(request: &Request<'a>, name: &'a [u8]) -> impl Iterator<Item = Cow<'a, [u8]>> {
    let pairs = request.target.query().unwrap_or_default().split(|&byte| byte == b'&');
    pairs.filter_map(move |pair| {
        let equals = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        (*uri::decode_query(&pair[..equals]) == *name)
            .then(|| uri::decode_query(pair.get(equals + 1..).unwrap_or_default()))
    })
}

fn field_patterns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<Box<str>, TextPattern>, D::Error> {
    // The names are checked as those of methods are: both are tokens.
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    struct Name(Box<str>);
    impl<'de> Deserialize<'de> for Name {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
            parse_text(deserializer, Token::parse).map(Name)
        }
    }
    let named = BTreeMap::<Name, TextPattern>::deserialize(deserializer)?;
    Ok(named.into_iter().map(|(Name(name), pattern)| (name, pattern)).collect())
}

/// A pattern of any text, in which `*` also matches slashes; the empty one matches the empty text only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPattern(Glob);

impl TextPattern {
    /// Whether the whole text matches.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.0.matches(text)
    }

    /// Whether it matches any of these, or the empty text if there are none.
    fn matches_any<T: AsRef<[u8]>>(&self, texts: impl Iterator<Item = T>) -> bool {
        let mut is_missing = true;
        let matches = texts.into_iter().any(|text| {
            is_missing = false;
            self.matches(text.as_ref())
        });
        matches || (is_missing && self.0.as_str().is_empty())
    }
}

impl Serialize for TextPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TextPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TextPattern, D::Error> {
        parse_text(deserializer, |text| match Glob::of_text(text) {
            Ok(glob) => Ok(TextPattern(glob)),
            Err(why) => Err(glob::invalid(text, &why)),
        })
    }
}

impl JsonSchema for TextPattern {
    fn schema_name() -> Cow<'static, str> {
        "TextPattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// A request for tests of rules without conditions.
#[cfg(test)]
pub(crate) fn any_request() -> Request<'static> {
    let limits = request::HeadLimits::unlimited(false);
    request::parse(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", &limits).expect("good").expect("whole").0
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use amped_http::h1::request::HeadLimits;

    fn text(pattern: &str) -> TextPattern {
        TextPattern(Glob::of_text(pattern).expect("valid"))
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<Box<str>, TextPattern> {
        pairs.iter().map(|&(name, pattern)| (name.into(), text(pattern))).collect()
    }

    #[track_caller]
    fn check(condition: &Condition, lines: &str, expected: bool) {
        for secure in [false, true] {
            let head = [&lines.replace('\n', "\r\n"), "\r\n\r\n"].concat();
            let limits = HeadLimits { request_line: 1000, head: 1000, fields: 10, secure };
            let (request, _) = request::parse(head.as_bytes(), &limits).expect("good").expect("whole");
            let of_scheme = condition.scheme.is_none_or(|scheme| (scheme == Scheme::Https) == secure);
            assert_eq!(condition.holds(&request), expected && of_scheme, "{condition:?} {lines} {secure}");
        }
    }

    #[test]
    fn condition_holds_if_every_part_does() {
        let any = Condition::default();
        check(&any, "GET /a HTTP/1.1\nHost: h", true);
        for scheme in [Scheme::Http, Scheme::Https] {
            check(&Condition { scheme: Some(scheme), ..any.clone() }, "GET /a HTTP/1.1\nHost: h", true);
        }
        let methods = Condition { methods: ["POST", "PURGE"].map(Box::from).into(), ..any.clone() };
        check(&methods, "POST /a HTTP/1.1\nHost: h", true);
        check(&methods, "PURGE /a HTTP/1.1\nHost: h", true);
        check(&methods, "GET /a HTTP/1.1\nHost: h", false);
        check(&methods, "post /a HTTP/1.1\nHost: h", false);
        let hosts = Condition { hosts: ["www.*", "a.example"].map(text).into(), ..any.clone() };
        check(&hosts, "GET /a HTTP/1.1\nHost: WWW.b.example:8080", true);
        check(&hosts, "GET /a HTTP/1.1\nHost: a.example", true);
        check(&hosts, "GET /a HTTP/1.1\nHost: b.example", false);
        let query = Condition { query: map(&[("action", "register"), ("debug", "")]), ..any.clone() };
        check(&query, "GET /a?x=1&action=register HTTP/1.1\nHost: h", true);
        check(&query, "GET /a?%61ction=%72egister&debug HTTP/1.1\nHost: h", true);
        check(&query, "GET /a?action=b&action=register HTTP/1.1\nHost: h", true);
        check(&query, "GET /a?action=register&debug=1 HTTP/1.1\nHost: h", false);
        check(&query, "GET /a?action=registered HTTP/1.1\nHost: h", false);
        check(&query, "GET /a HTTP/1.1\nHost: h", false);
        let spaced = Condition { query: map(&[("q", "a b/*")]), ..any.clone() };
        check(&spaced, "GET /a?q=a+b%2Fc/d HTTP/1.1\nHost: h", true);
        let header = Condition { header: map(&[("User-Agent", "*bot*"), ("cookie", "")]), ..any.clone() };
        check(&header, "GET /a HTTP/1.1\nHost: h\nuser-agent: a/robot/1", true);
        check(&header, "GET /a HTTP/1.1\nHost: h\nUser-Agent: a robot\nCookie:", true);
        check(&header, "GET /a HTTP/1.1\nHost: h\nUser-Agent: a robot\nCookie: a=b", false);
        check(&header, "GET /a HTTP/1.1\nHost: h\nUser-Agent: x", false);
        check(&header, "GET /a HTTP/1.1\nHost: h", false);
        let not = Condition { not: vec![hosts, methods.clone()], header: map(&[("x", "y")]), ..Condition::default() };
        check(&not, "GET /a HTTP/1.1\nHost: h\nX: y", true);
        check(&not, "GET /a HTTP/1.1\nHost: h", false);
        check(&not, "GET /a HTTP/1.1\nHost: www.h\nX: y", false);
        check(&not, "POST /a HTTP/1.1\nHost: h\nX: y", false);
        check(&Condition { not: vec![not.clone()], ..methods }, "POST /a HTTP/1.1\nHost: h\nX: y", true);
        let mut names = BTreeSet::new();
        let both = Condition { not: vec![not, header], ..Condition::default() };
        both.add_fields(&mut names);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["User-Agent", "cookie", "x"]);
    }
}
