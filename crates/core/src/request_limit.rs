//! Limits of requests by client: a token bucket for each client and rule, and a count of requests under way.
//!
//! The exchange asks once for each request of a client, before anything else is decided about it; if a limit counts users,
//! once it is certain which user the request has. The buckets are outside
//! the core ([`RequestLimiter`](crate::shared_state::RequestLimiter)), because all loops of a server share them; their
//! arithmetic is here. A bucket is one number: the time at which it is full again. Each request moves it by the interval
//! of the rate, so nothing has to be refilled, and a bucket whose time has passed is the same as none.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

use amped_http::h1::request::Request;
use amped_units::{Bytes, Count, Positive, Seconds, written_as_text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::glob::Glob;
use crate::pacer::Bandwidth;

/// Limit of the requests of a client by pattern; more get 429 with Retry-After
///
/// The first table whose `match` matches a path, or the beginning of one, applies. Of IPv6, a /64 counts as one address. Behind
/// `trusted_proxies` the address is that of the client. All workers count together.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct RequestLimit {
    /// Paths that the limit applies to, together; if a route rewrites a path, either of both
    #[serde(rename = "match")]
    #[schemars(example = "/login/**")]
    pub pattern: Glob,
    /// Requests that are counted; see "Conditions" above
    #[serde(default)]
    #[schemars(extend("examples" = [{ "methods": ["POST"] }]))]
    pub when: Option<Box<Condition>>,
    /// What tells clients apart
    ///
    /// A request without a verified user counts by its address, also one that is refused for a wrong password.
    #[serde(default)]
    pub key: LimitKey,
    /// Requests of a client by second, minute or hour: "10/s", "30/m", "100/h"
    #[schemars(example = "10/s")]
    pub requests: Option<Rate>,
    /// Requests that may come at once, after a pause
    #[serde(default = "one", with = "Count::<1, 1_000_000>")]
    pub burst: usize,
    /// Maximum time that a request waits until the rate permits it; "0s": further ones get 429 at once
    #[serde(default, with = "Seconds")]
    pub max_delay: Duration,
    /// Requests of a client under way at a time, each until its response is sent; more get 429
    ///
    /// Each stream of HTTP/2 counts, delayed requests do, and so does a WebSocket. A response counts until its client has
    /// received it, except for what the kernel buffers.
    #[serde(default, with = "Positive")]
    #[schemars(example = 10)]
    pub concurrent: Option<usize>,
    /// Maximum bandwidth of each response, bytes per second: "1MB/s", "500kB/s"
    ///
    /// Responses are sent in steps of an eighth of a second, and average the rate.
    #[schemars(example = "1MB/s")]
    pub rate: Option<ByteRate>,
    /// Bytes of each response that are sent at any speed, before `rate` applies
    #[serde(default)]
    #[schemars(example = "10MB")]
    pub rate_after: Bytes,
    /// Maximum bandwidth of a connection, bytes per second, for all its responses with this key together: "1MB/s"
    ///
    /// `rate` is for one response, and HTTP/2 has many at a time. Bodies count, sent in steps of an eighth of a second, and
    /// `rate_after` does not precede this limit. The responses of one connection that other tables limit with this key share
    /// its time.
    #[schemars(example = "1MB/s")]
    pub connection_rate: Option<ByteRate>,
    /// Its number among the limits of all sites, by which its buckets are found.
    #[serde(skip)]
    pub number: u16,
}

/// What tells the clients of a limit apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LimitKey {
    /// Their address
    #[default]
    Address,
    /// Their user, verified by a password (`[[site.auth]]`), an application (`user` in `[[site.authorize]]`) or a client certificate, in this order
    User,
}

/// The client that a limit counts.
#[derive(Clone, Copy, Debug)]
pub enum Requester<'a> {
    /// Its address, if that is known.
    Address(Option<IpAddr>),
    /// Its name, which was verified.
    User(&'a [u8]),
}

fn one() -> usize {
    1
}

/// Whether a request is within its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is.
    Now,
    /// It will be after this time.
    After(Duration),
    /// It is not; one after this time would be.
    Refused(Duration),
}

impl RequestLimit {
    /// Whether the limit applies to a path. A script is limited with all paths below it, which are its PATH_INFO.
    pub fn covers(&self, path: &[u8], request: &Request<'_>) -> bool {
        let slashes = memchr::memchr_iter(b'/', path).skip(1).take(DEPTH_MAX);
        (self.pattern.matches(path) || slashes.into_iter().any(|end| self.pattern.matches(&path[..end])))
            && self.when.as_ref().is_none_or(|when| when.holds(request))
    }

    /// Whether it counts by user.
    pub fn is_by_user(&self) -> bool {
        self.key == LimitKey::User
    }

    /// The bandwidth of each response, if it is limited.
    pub fn bandwidth(&self) -> Option<Bandwidth> {
        let bytes = |rate: ByteRate| rate.0.0;
        let (rate, connection_rate) = (self.rate.map(bytes), self.connection_rate.map(bytes));
        let is_limited = rate.is_some() || connection_rate.is_some();
        is_limited.then_some(Bandwidth { rate, after: self.rate_after.0, connection_rate })
    }

    /// Takes a request at `now_ns` from a bucket that is full again at `full_at_ns`; 0: it is full. Returns the new time,
    /// unless the request is refused, which costs the client nothing.
    pub fn take(&self, full_at_ns: u64, now_ns: u64) -> (Option<u64>, Admission) {
        let Some(Rate { interval_ns: interval, .. }) = self.requests else { return (None, Admission::Now) };
        let next = full_at_ns.max(now_ns).saturating_add(interval);
        let capacity = interval.saturating_mul(self.burst as u64);
        let excess = (next - now_ns).saturating_sub(capacity);
        let max_delay = u64::try_from(self.max_delay.as_nanos()).unwrap_or(u64::MAX);
        match excess {
            0 => (Some(next), Admission::Now),
            _ if excess <= max_delay => (Some(next), Admission::After(Duration::from_nanos(excess))),
            _ => (None, Admission::Refused(Duration::from_nanos(excess - max_delay))),
        }
    }
}

/// Two limits are equal if they have the same buckets, and change them in the same way.
impl PartialEq for RequestLimit {
    fn eq(&self, other: &RequestLimit) -> bool {
        let RequestLimit { pattern, when, key, requests, burst, max_delay, concurrent, number, .. } = other;
        self.pattern.as_str() == pattern.as_str()
            && (&self.when, self.key) == (when, *key)
            && (self.requests, self.burst, self.max_delay) == (*requests, *burst, *max_delay)
            && (self.concurrent, self.number) == (*concurrent, *number)
    }
}

/// Maximum directories of a path that may be the script; so many are compared.
const DEPTH_MAX: usize = 64;

/// A number of requests by second, minute or hour, written `10/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// `1 <= requests <= REQUESTS_MAX`
    requests: u32,
    unit: &'static str,
    /// The time between two requests at this rate.
    interval_ns: u64,
}

/// Seconds in each unit.
const UNITS: [(&str, u64); 3] = [("s", 1), ("m", 60), ("h", 3600)];

const REQUESTS_MAX: u32 = 1_000_000;

impl Rate {
    /// Reads `NUMBER/UNIT`.
    ///
    /// # Errors
    /// The problem and the remedy, in two lines.
    pub fn parse(text: &str) -> Result<Rate, String> {
        let bad = || format!("`{}` is not a rate of requests\n{HELP}", text.escape_debug());
        let (number, unit) = text.split_once('/').ok_or_else(bad)?;
        let (unit, seconds) = *UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let requests = is_number.then(|| number.parse().ok()).flatten();
        let requests: u32 = requests.filter(|number| (1..=REQUESTS_MAX).contains(number)).ok_or_else(bad)?;
        Ok(Rate { requests, unit, interval_ns: seconds * 1_000_000_000 / u64::from(requests) })
    }
}

const HELP: &str =
    "write a number from 1 to 1000000 by second, minute or hour, such as \"10/s\", \"30/m\" or \"100/h\"";

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.requests, self.unit)
    }
}

written_as_text!(Rate, Rate::parse, "format": "rate", "pattern": "^[0-9]+/[smh]$");

/// A bandwidth in bytes per second, written `1MB/s`. At least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate(Bytes);

impl ByteRate {
    /// Reads `AMOUNT/s`.
    ///
    /// # Errors
    /// The problem and the remedy, in two lines.
    pub fn parse(text: &str) -> Result<ByteRate, String> {
        let bytes = text.strip_suffix("/s").and_then(|amount| amount.parse::<Bytes>().ok());
        bytes.filter(|bytes| bytes.0 > 0).map(ByteRate).ok_or_else(|| {
            let shown = text.escape_debug();
            format!("`{shown}` is not a bandwidth\nwrite bytes per second such as \"1MB/s\" or \"500kB/s\"")
        })
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.0)
    }
}

written_as_text!(ByteRate, ByteRate::parse, "format": "bandwidth", "pattern": "^[0-9]+ *[a-zA-Z]*/s$");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::any_request;
    use alloc::string::ToString;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn limit(requests: &str, burst: usize, max_delay: Duration) -> RequestLimit {
        let requests = Some(Rate::parse(requests).expect("valid"));
        let (pattern, when, key, concurrent) = (Glob::new("/a/**"), None, LimitKey::Address, None);
        let (rate, rate_after, connection_rate, number) = (None, Bytes(0), None, 0);
        RequestLimit {
            pattern,
            when,
            key,
            requests,
            burst,
            max_delay,
            concurrent,
            rate,
            rate_after,
            connection_rate,
            number,
        }
    }

    /// What happens to requests at these times, in milliseconds: `+` at once, a delay in milliseconds, or `-`.
    fn check(limit: &RequestLimit, at_ms: &[u64], expected: &str) {
        let mut full_at = 0;
        let shown = at_ms.iter().map(|at| {
            let (next, admission) = limit.take(full_at, 10 * SECOND + at * 1_000_000);
            full_at = next.unwrap_or(full_at);
            match admission {
                Admission::Now => "+".to_string(),
                Admission::After(delay) => delay.as_millis().to_string(),
                Admission::Refused(_) => "-".to_string(),
            }
        });
        assert_eq!(shown.collect::<Vec<_>>().join(" "), expected, "{limit:?}");
    }

    #[test]
    fn burst_is_admitted_then_rate() {
        check(
            &limit("10/s", 3, Duration::ZERO),
            &[0, 0, 0, 0, 99, 100, 100, 1000, 1000, 1000, 1000],
            "+ + + - - + - + + + -",
        );
        check(&limit("1/m", 1, Duration::ZERO), &[0, 1, 59_999, 60_000], "+ - - +");
    }

    #[test]
    fn excess_is_delayed_to_the_rate_up_to_the_maximum() {
        let limit = limit("10/s", 1, Duration::from_millis(250));
        check(&limit, &[0, 0, 0, 0, 0, 100, 100, 2000], "+ 100 200 - - 200 - +");
        let (_, refused) = limit.take(20 * SECOND, 19 * SECOND);
        // 100 ms before the bucket is full, one more is free; 250 ms earlier one would be delayed.
        assert_eq!(refused, Admission::Refused(Duration::from_millis(750)));
    }

    #[test]
    fn script_is_limited_with_its_path_info() {
        let covers = |pattern: &str, path: &str| {
            let limit = RequestLimit { pattern: Glob::new(pattern), ..limit("1/s", 1, Duration::ZERO) };
            limit.covers(path.as_bytes(), &any_request())
        };
        assert!(covers("/login.php", "/login.php") && covers("/login.php", "/login.php/x/y"));
        assert!(covers("*.php", "/a/b.php/c") && covers("/a/**", "/a/") && covers("/a/**", "/a/b/c"));
        assert!(!covers("/login.php", "/login.phpx") && !covers("/a/**", "/b/a/") && !covers("*.php", "/a.txt"));
    }

    #[test]
    fn malformed_rates_are_rejected_with_remedy() {
        for text in ["", "10", "10/", "/s", "0/s", "+1/s", "1.5/s", "10/d", "10 /s", "1000001/s", "99999999999/s"] {
            let error = Rate::parse(text).expect_err(text);
            assert!(error.contains("is not a rate of requests\nwrite "), "{text}: {error}");
        }
        for text in ["1/s", "30/m", "1000000/h"] {
            assert_eq!(Rate::parse(text).map(|rate| rate.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn bandwidths_need_a_unit_of_time() {
        for text in ["", "1MB", "0B/s", "1MB/m", "/s", "-1MB/s", "1.5MB/s", "1mbit/s"] {
            let error = ByteRate::parse(text).expect_err(text);
            assert!(error.contains("is not a bandwidth\nwrite "), "{text}: {error}");
        }
        assert_eq!(ByteRate::parse("2MB/s"), Ok(ByteRate(Bytes(2_000_000))));
        assert_eq!(ByteRate::parse("64KiB/s").map(|rate| rate.to_string()).as_deref(), Ok("64KiB/s"));
    }

    proptest! {
        /// In any time, a client gets the burst and the rate, and no more; requests that come at the rate are all served.
        #[test]
        fn admitted_requests_stay_within_rate(
            pauses in prop::collection::vec(0_u64..400, 1..200),
            burst in 1_usize..20,
            delay in 0_u64..1000,
        ) {
            let limit = limit("10/s", burst, Duration::from_millis(delay));
            let (mut now, mut full_at, mut served) = (10 * SECOND, 0, Vec::new());
            for pause in pauses {
                now += pause * 1_000_000;
                let (next, admission) = limit.take(full_at, now);
                full_at = next.unwrap_or(full_at);
                match admission {
                    Admission::Now => served.push(now),
                    Admission::After(delay) => {
                        prop_assert!(delay <= limit.max_delay);
                        served.push(now + delay.as_nanos() as u64);
                    }
                    Admission::Refused(wait) => {
                        prop_assert!(limit.take(full_at, now + wait.as_nanos() as u64).0.is_some());
                        prop_assert!(limit.take(full_at, now + wait.as_nanos() as u64 - 1).0.is_none());
                    }
                }
            }
            prop_assert!(served.is_sorted());
            for (at, from) in served.iter().enumerate() {
                let within = served[at..].iter().filter(|time| **time < from + SECOND).count();
                prop_assert!(within <= burst + 10, "{} in a second", within);
            }
        }
    }
}
