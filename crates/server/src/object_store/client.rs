//! Requests to a store that speaks S3, and what its responses mean. Every function waits: only helpers call them.
//!
//! One agent has the connections of a process, which are kept open between requests. `sign` authenticates requests; `mod` decides when
//! one is made, and `mirror` keeps what it brings.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use amped_core::file::ObjectHead;
use amped_core::forms::is_value;
use amped_http::date;
use rustls::crypto::aws_lc_rs::default_provider;
use ureq::http::{HeaderMap, Response};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::list::{self, Page};
use super::settings::StoreSettings;
use super::sign::{self, Unsigned, encode};
use crate::clock;
use crate::config::settings::AddressStyle;

/// Connections that are kept open between requests.
const IDLE_MAX: usize = 64;

/// Maximum bytes of a page of a listing: 1000 keys of 1024 bytes, each encoded, with their elements.
const PAGE_MAX: u64 = 8 * 1024 * 1024;

/// Maximum bytes of an error that are read.
const ERROR_MAX: u64 = 64 * 1024;

/// Asks a store.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    settings: Arc<StoreSettings>,
}

/// What a store says about an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The fields that clients get.
    pub head: ObjectHead,
    /// Last-Modified, seconds since 1970.
    pub modified_seconds: Option<i64>,
}

/// The answer to a request for an object.
#[derive(Debug)]
pub enum Answer {
    /// The object: its metadata and its length, if the store says it, and its bytes.
    Object(Metadata, Option<u64>, Body),
    /// A part of the object.
    Part(Part),
    /// It is still the known one.
    NotModified(Metadata),
    /// The object ends before the requested range, as an empty one does before any.
    OutOfRange,
}

/// A part of an object, from the beginning of the requested range to its end, or that of the object.
#[derive(Debug)]
pub struct Part {
    /// The metadata of the object.
    pub metadata: Metadata,
    /// The range.
    pub range: Range<u64>,
    /// The length of the object, bytes.
    pub total: u64,
    /// Its bytes.
    pub body: Body,
}

/// What is requested of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Nothing, if it still has this entity tag.
    pub unless: Option<&'a str>,
    /// Only if it still has this entity tag.
    pub only: Option<&'a str>,
    /// This range; a store may send all of it instead.
    pub range: Option<Range<u64>>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum StoreError {
    /// No object has this key.
    Absent,
    /// These credentials, or clients without any, may not read it.
    Denied,
    /// The store, or the way to it, failed; it may succeed later.
    Unavailable(String),
    /// It refuses every such request until something is corrected: the message, and what to do.
    Refused(String, String),
    /// Another version has taken the place of the known one, or none has.
    Replaced,
    /// The object has more than the configured bytes.
    TooLarge(u64),
    /// Objects that are being fetched fill the local cache directory.
    Full,
    /// The local cache directory failed.
    Local(io::Error),
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> StoreError {
        StoreError::Local(error)
    }
}

impl Client {
    /// Creates a client without connections.
    pub fn new(settings: Arc<StoreSettings>) -> Client {
        let roots: Vec<_> = settings.authorities.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(roots)))
            .unversioned_rustls_crypto_provider(Arc::new(default_provider()))
            .build();
        let timeout = Some(settings.keys.timeout);
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("amped/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_connect(timeout)
            .timeout_recv_response(timeout)
            // A body may take long, but not stand still.
            .timeout_per_read(timeout)
            .timeout_per_write(timeout)
            .max_idle_connections(IDLE_MAX)
            .max_idle_connections_per_host(IDLE_MAX)
            .tls_config(tls)
            .build()
            .new_agent();
        Client { agent, settings }
    }

    /// Requests an object, or a part of it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn get(&self, bucket: &str, key: &[u8], wanted: &Wanted<'_>) -> Result<Answer, StoreError> {
        let mut response = self.send(bucket, key, "", wanted)?;
        let metadata = metadata(response.headers());
        let length = number(response.headers(), "content-length");
        let is_chunked = response.headers().contains_key("transfer-encoding");
        match (response.status().as_u16(), &wanted.range) {
            // The end of such a body looks like that of a broken connection.
            (200 | 206, _) if length.is_none() && !is_chunked => {
                Err(StoreError::Unavailable("the store sends an object without its length".to_owned()))
            }
            (200, _) => Ok(Answer::Object(metadata, length, response.into_body())),
            (206, Some(wanted)) => {
                let range = text(response.headers(), "content-range");
                let (range, total) = range.and_then(|text| content_range(&text)).unwrap_or_default();
                if range != (wanted.start..wanted.end.min(total)) || range.is_empty() {
                    return Err(StoreError::Unavailable(
                        "the store sends another range than the requested one".to_owned(),
                    ));
                }
                Ok(Answer::Part(Part { metadata, range, total, body: response.into_body() }))
            }
            (304, _) => Ok(Answer::NotModified(metadata)),
            (412, _) if wanted.only.is_some() => Err(StoreError::Replaced),
            (416, Some(_)) => Ok(Answer::OutOfRange),
            _ => Err(self.refusal(bucket, &mut response)),
        }
    }

    /// Requests a page of the keys that begin with `prefix`; `token`: that of the page before.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn list(&self, bucket: &str, prefix: &[u8], max: usize, token: Option<&str>) -> Result<Page, StoreError> {
        let max = max.to_string();
        let mut pairs: Vec<(&str, &[u8])> = Vec::with_capacity(6);
        pairs.extend(token.map(|token| ("continuation-token", token.as_bytes())));
        pairs.extend([("delimiter", &b"/"[..]), ("encoding-type", b"url"), ("list-type", b"2")]);
        pairs.extend([("max-keys", max.as_bytes()), ("prefix", prefix)]);
        let mut response = self.send(bucket, b"", &sign::query(&pairs), &Wanted::default())?;
        if response.status().as_u16() != 200 {
            return Err(match self.refusal(bucket, &mut response) {
                // Of no store that speaks S3.
                StoreError::Absent => self.no_listing(),
                error => error,
            });
        }
        let text = response.body_mut().with_config().limit(PAGE_MAX).read_to_string();
        let text = text.map_err(|error| unavailable(&error))?;
        Page::read(&text).ok_or_else(|| self.no_listing())
    }

    fn no_listing(&self) -> StoreError {
        let help = "correct `endpoint`: this server does not speak S3 there".to_owned();
        StoreError::Refused(format!("{} does not answer with a listing", self.settings.endpoint()), help)
    }

    /// Sends a signed GET for a key of a bucket, or without a key for the bucket itself.
    fn send(&self, bucket: &str, key: &[u8], query: &str, wanted: &Wanted<'_>) -> Result<Response<Body>, StoreError> {
        let StoreSettings { keys, credentials, scheme, authority, .. } = &*self.settings;
        let key = encode(key, false);
        let (host, path) = match keys.style {
            AddressStyle::Path if key.is_empty() => (authority.clone(), format!("/{bucket}")),
            AddressStyle::Path => (authority.clone(), format!("/{bucket}/{key}")),
            AddressStyle::Host => (format!("{bucket}.{authority}"), format!("/{key}")),
        };
        let question = if query.is_empty() { "" } else { "?" };
        let mut request = self.agent.get(format!("{scheme}://{host}{path}{question}{query}"));
        for (name, etag) in [("if-none-match", wanted.unless), ("if-match", wanted.only)] {
            if let Some(etag) = etag {
                request = request.header(name, etag);
            }
        }
        if let Some(range) = &wanted.range {
            request = request.header("range", format!("bytes={}-{}", range.start, range.end - 1));
        }
        if let Some(credentials) = credentials {
            let now_seconds = i64::try_from(clock::since_1970().as_secs()).unwrap_or(i64::MAX);
            let unsigned = Unsigned { host: &host, path: &path, query, region: &keys.region, now_seconds };
            for (name, value) in sign::fields(&unsigned, credentials) {
                request = request.header(name, value);
            }
        }
        request.call().map_err(|error| unavailable(&error))
    }

    /// Returns what a response that is neither 200 nor 304 means.
    fn refusal(&self, bucket: &str, response: &mut Response<Body>) -> StoreError {
        let status = response.status().as_u16();
        let region = text(response.headers(), "x-amz-bucket-region");
        let body = response.body_mut().with_config().limit(ERROR_MAX).lossy_utf8(true).read_to_string();
        let (code, message) = body.ok().and_then(|body| list::error(&body)).unwrap_or_default();
        let help = match (&*code, status) {
            ("NoSuchBucket", _) => {
                let help = "create it, or correct the name in `root`".to_owned();
                return StoreError::Refused(format!("the bucket {bucket} does not exist"), help);
            }
            ("InvalidAccessKeyId", _) => "the store does not know this access key: check the credentials",
            ("SignatureDoesNotMatch", _) => "the secret key is wrong, or `region` is: check the credentials",
            ("RequestTimeTooSkewed", _) => "the clock of this machine is wrong: synchronise it (NTP)",
            ("ExpiredToken" | "InvalidToken", _) => "the session token has expired: write new credentials, and reload",
            ("PermanentRedirect" | "AuthorizationHeaderMalformed" | "TemporaryRedirect", _) | (_, 301 | 307) => {
                let of = region.map_or("of the bucket".to_owned(), |region| format!("of the bucket, {region}"));
                let help = format!("set `region` to that {of}, and `endpoint` to that of the region");
                return StoreError::Refused(format!("the bucket {bucket} is elsewhere (HTTP {status} {code})"), help);
            }
            (_, 404) => return StoreError::Absent,
            (_, 403) => return StoreError::Denied,
            (_, 401) => "set `credentials`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            (_, 429 | 500..) => return StoreError::Unavailable(format!("the store answers {status} {code}")),
            _ => "is `endpoint` the address of a server that speaks S3?",
        };
        StoreError::Refused(format!("the store answers {status} {code}: {message}"), help.to_owned())
    }
}

/// Reads a body that ends where its length says.
///
/// # Errors
/// `Unavailable`: it ends early, or its connection fails; `TooLarge`; `Local`: an error of `write`.
pub fn read_body(
    body: Body,
    length: Option<u64>,
    bytes_max: u64,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<u64, StoreError> {
    let mut reader = body.into_with_config().limit(u64::MAX).reader();
    let (mut buffer, mut count) = (vec![0; 64 * 1024], 0);
    loop {
        let read = match reader.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(StoreError::Unavailable(format!("an object ends after {count} bytes: {error}"))),
        };
        if read == 0 {
            break;
        }
        count += read as u64;
        if count > bytes_max {
            return Err(StoreError::TooLarge(bytes_max));
        }
        write(&buffer[..read]).map_err(StoreError::Local)?;
    }
    match length {
        Some(length) if length != count => {
            Err(StoreError::Unavailable(format!("an object ends after {count} of {length} bytes")))
        }
        _ => Ok(count),
    }
}

fn metadata(fields: &HeaderMap) -> Metadata {
    // Some clients store the coding of their upload, which the store has removed.
    let codings = text(fields, "content-encoding").unwrap_or_default();
    let codings = codings.split(',').map(str::trim).filter(|one| !matches!(*one, "" | "aws-chunked" | "identity"));
    let encoding = codings.collect::<Vec<_>>().join(", ");
    // What stores use if the uploader did not know the type.
    let is_unknown = |kind: &str| matches!(kind, "binary/octet-stream" | "application/octet-stream");
    let now = i64::try_from(clock::since_1970().as_secs()).unwrap_or(i64::MAX);
    Metadata {
        head: ObjectHead {
            etag: text(fields, "etag").filter(|etag| etag.ends_with('"')),
            media_type: text(fields, "content-type").filter(|kind| !is_unknown(kind)),
            encoding: (!encoding.is_empty()).then(|| encoding.into()),
            cache_control: text(fields, "cache-control"),
        },
        modified_seconds: text(fields, "last-modified").and_then(|text| date::parse(text.as_bytes(), now)),
    }
}

/// Returns the value of a field that may be sent to clients.
fn text(fields: &HeaderMap, name: &str) -> Option<Box<str>> {
    let value = fields.get(name)?.to_str().ok()?.trim();
    (!value.is_empty() && is_value(value)).then(|| value.into())
}

/// Reads the value of Content-Range: the range, and the length of all (RFC 9110, 14.4).
fn content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, total): (u64, u64, u64) = (first.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
    (first <= last && last < total).then(|| (first..last + 1, total))
}

fn number(fields: &HeaderMap, name: &str) -> Option<u64> {
    fields.get(name)?.to_str().ok()?.parse().ok()
}

/// Returns an error of the way to the store.
fn unavailable(error: &ureq::Error) -> StoreError {
    let text = error.to_string();
    let help = match error {
        ureq::Error::HostNotFound => "its host name is unknown: correct `endpoint`",
        ureq::Error::Timeout(_) => "it does not answer in time (`timeout`)",
        // getaddrinfo(3) has errors of its own, which have no kind.
        ureq::Error::Io(error) if error.to_string().contains("lookup address") => {
            "its host name is unknown: correct `endpoint`"
        }
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            "no server listens there: correct `endpoint`, or start the store"
        }
        ureq::Error::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
            "name the CA of the store in `ca`, or correct `endpoint`"
        }
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => "name the CA of the store in `ca`, or correct `endpoint`",
        _ => return StoreError::Unavailable(text),
    };
    StoreError::Unavailable(format!("{text}; {help}"))
}

/// Returns how long an object with this Cache-Control may be used before the store is asked again (RFC 9111, 5.2.2 and 4.2.1).
pub fn lifetime(cache_control: Option<&str>, default: Duration) -> Duration {
    let directives = cache_control.unwrap_or_default().to_ascii_lowercase();
    let directives = || directives.split(',').map(str::trim);
    if directives().any(|one| matches!(one, "no-cache" | "no-store")) {
        return Duration::ZERO;
    }
    let seconds = |name: &str| {
        let value = directives().find_map(|one| one.strip_prefix(name)?.strip_prefix('='))?;
        // RFC 9111, 1.2.2: too large a value is the largest; ten years are.
        Some(value.trim_matches('"').parse().unwrap_or(u64::MAX).min(10 * 365 * 86_400))
    };
    seconds("s-maxage").or_else(|| seconds("max-age")).map_or(default, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_range_is_read() {
        let check = |text: &str, expected| assert_eq!(content_range(text), expected, "{text:?}");
        check("bytes 0-0/1", Some((0..1, 1)));
        check("bytes 100-199/5000000000000", Some((100..200, 5_000_000_000_000)));
        for text in [
            "",
            "bytes */7",
            "bytes 0-9/*",
            "bytes 5-4/10",
            "bytes 0-10/10",
            "0-1/2",
            "bytes -1/2",
            "bytes 0-18446744073709551615/3",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn lifetime_follows_cache_control() {
        let check = |value: Option<&str>, seconds: u64| {
            assert_eq!(lifetime(value, Duration::from_secs(7)).as_secs(), seconds, "{value:?}");
        };
        check(None, 7);
        check(Some("public"), 7);
        check(Some("public, Max-Age=60"), 60);
        check(Some("max-age=60, s-maxage=\"5\""), 5);
        check(Some("max-age=60, no-cache"), 0);
        check(Some("no-store"), 0);
        check(Some("max-age=99999999999999999999"), 315_360_000);
    }

    #[test]
    fn metadata_of_unknown_type_and_of_upload_is_ignored() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("etag", "\"abc\""),
            ("content-type", "binary/octet-stream"),
            ("content-encoding", "aws-chunked,gzip"),
            ("cache-control", "max-age=5"),
            ("last-modified", "Wed, 12 Oct 2009 17:50:00 GMT"),
        ] {
            fields.insert(name, value.parse().unwrap());
        }
        let found = metadata(&fields);
        assert_eq!(found.head.etag.as_deref(), Some("\"abc\""));
        assert_eq!((found.head.media_type, found.head.encoding.as_deref()), (None, Some("gzip")));
        assert_eq!(found.head.cache_control.as_deref(), Some("max-age=5"));
        assert!(found.modified_seconds.is_some());
        fields.insert("etag", "abc".parse().unwrap());
        fields.insert("content-type", "text/css".parse().unwrap());
        fields.insert("content-encoding", "aws-chunked".parse().unwrap());
        let found = metadata(&fields).head;
        assert_eq!((found.etag, found.media_type.as_deref(), found.encoding), (None, Some("text/css"), None));
    }
}
