//! Limits on the resources that one client may use: `[limits]`, each key with its default and the reason for it.

use core::time::Duration;

use amped_http::h1::request::{self, HeadLimits};
use amped_units::{Bytes, Count, Positive, PositiveBytes, PositiveSeconds, Seconds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

/// Limits on the resources that one client may use
///
/// The defaults suit a public server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Limits {
    /// Maximum connections of the whole server
    ///
    /// Without it, as many as the limit on open files allows (`ulimit -n`). A full server closes an idle connection for a new
    /// one.
    #[serde(with = "Positive")]
    #[schemars(example = 10_000)]
    pub max_connections: Option<usize>,
    /// Maximum connections per client address; further ones are closed at once; 0: no limit
    ///
    /// Of IPv6, a /64 counts as one address. With the PROXY protocol the address is that of the client; connections of other
    /// `trusted_proxies` are not limited. Without a limit by default, because thousands of people may share an address
    /// (carrier-grade NAT), and each browser opens several connections.
    #[schemars(example = 100)]
    pub max_connections_per_client: u32,
    /// Maximum request line; a longer one gets 414
    ///
    /// Includes the line end. RFC 9112, 3 recommends at least 8000 bytes.
    #[serde(with = "PositiveBytes")]
    #[default(Bytes::kib(8))]
    pub max_request_line_bytes: Bytes,
    /// Maximum request line and header fields together; a longer one gets 431
    ///
    /// Cookies of a dozen applications on one host reach 16 KiB in practice.
    #[serde(with = "PositiveBytes")]
    #[default(Bytes::kib(32))]
    pub max_header_bytes: Bytes,
    /// Maximum header fields; a request with more gets 431
    ///
    /// Browsers send about 20.
    #[serde(with = "Count::<1, 256>")]
    #[default(100)]
    pub max_header_fields: usize,
    /// Maximum request body that is read and discarded; a longer one gets 413
    ///
    /// The body of a request that no application handles is read up to this size to keep the connection; that is cheaper than a
    /// new one.
    #[default(Bytes::mib(1))]
    pub max_body_bytes: Bytes,
    /// Time to receive the request header; then 408
    ///
    /// Counted from its first byte, and for the first request of a connection from accept(2). Slow phones need a few seconds.
    #[serde(with = "PositiveSeconds")]
    #[default(Duration::from_secs(20))]
    pub header_timeout: Duration,
    /// Maximum pause in a request body; then 408
    ///
    /// Data resets it only at `min_body_rate`.
    #[serde(with = "PositiveSeconds")]
    #[default(Duration::from_secs(30))]
    pub body_timeout: Duration,
    /// Minimum bytes per second of a body, averaged over `body_timeout`; 0: any rate
    ///
    /// At 500 B/s a megabyte takes half an hour; it is the default of Apache's mod_reqtimeout.
    #[default(Bytes(500))]
    pub min_body_rate: Bytes,
    /// Time to receive a whole body, however fast it arrives; then 408
    ///
    /// 10 GB at 4 Mbit/s take 6 hours.
    #[serde(with = "PositiveSeconds")]
    #[default(Duration::from_secs(6 * 60 * 60))]
    pub body_total_timeout: Duration,
    /// Time after which an idle connection is closed
    ///
    /// Browsers typically request the next page within a minute.
    #[serde(with = "PositiveSeconds")]
    #[default(Duration::from_secs(60))]
    pub idle_timeout: Duration,
    /// Time after which a client that receives nothing is disconnected
    ///
    /// What it receives resets it only at `min_send_rate`.
    #[serde(with = "PositiveSeconds")]
    #[default(Duration::from_secs(60))]
    pub send_timeout: Duration,
    /// Minimum bytes per second that a client receives of what is sent, averaged over `send_timeout`; 0: any rate
    ///
    /// What counts is what its system has acknowledged, while something is on its way. There is no limit on the whole time, so that
    /// even at 4 kbit/s a download of any size completes. The same as `min_body_rate`: slow phones have ten times as much.
    #[default(Bytes(500))]
    pub min_send_rate: Bytes,
    /// Maximum time to wait for the disk; then the request fails with 503
    ///
    /// A download in progress is cut off. A working disk answers within seconds, even one that has to spin up.
    #[serde(with = "PositiveSeconds")]
    #[default(Duration::from_secs(60))]
    pub disk_timeout: Duration,
    /// Lingering close: wait for a refused client to stop sending, 30 s at most
    ///
    /// Data that arrives meanwhile is discarded, so that a reset does not destroy the response (RFC 9112, 9.6). "0s" closes at
    /// once.
    #[serde(with = "Seconds")]
    #[default(Duration::from_secs(2))]
    pub linger_timeout: Duration,
    /// Maximum requests per connection
    ///
    /// Then the connection is closed, so that clients are distributed over the workers again.
    #[serde(with = "Positive")]
    #[default(100_000)]
    pub max_requests: usize,
    /// Maximum failed logins per address and minute; further ones get 429; 0: no limit
    ///
    /// Of IPv6, a /64 counts as one address.
    #[default(20)]
    pub max_password_attempts: u32,
    /// Maximum ranges per request; with more, the whole file is sent
    ///
    /// Requests for many ranges are a known attack (RFC 9110, 14.2). 0 ignores the Range field.
    #[default(16)]
    pub max_ranges: usize,
    /// Maximum concurrent requests of an HTTP/2 connection
    ///
    /// Further ones are refused, and repeated by browsers; RFC 9113, 6.5.2 recommends at least 100.
    #[serde(with = "Positive")]
    #[default(128)]
    pub max_concurrent_streams: usize,
    /// Maximum pipelined responses per turn of the event loop
    #[serde(with = "Positive")]
    #[default(32)]
    pub max_pipelined: usize,
}

impl Limits {
    /// The limits of a request head. `secure`: the transport is encrypted (TLS).
    pub(crate) fn head(&self, secure: bool) -> HeadLimits {
        HeadLimits {
            secure,
            request_line: self.max_request_line_bytes.as_usize(),
            head: self.max_header_bytes.as_usize(),
            fields: self.max_header_fields.min(request::FIELDS_MAX),
        }
    }
}
