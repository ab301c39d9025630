//! A load generator that does not slow down when the server does.
//!
//! `workload` defines the requests and `schedule` their instants. `client` is one connection as a state machine;
//! `drive` runs connections over sockets, and `tls` encrypts them (`no_tls` without that feature). `tally` counts,
//! `handshake` has the figures of TLS handshakes, `window` computes the offered and the completed load and whether the
//! server fell behind, and `outcome` is the result with its verdict. `slice` and `parts` divide a plan among several
//! generators and merge their results. `condition` checks `--fail-if`, `knee` finds the rate that a server sustains, and
//! `null` is a server for calibration.
//!
//! Nothing here prints or parses a command line.
#![forbid(unsafe_code)]

pub mod client;
pub mod condition;
pub mod drive;
pub mod handshake;
pub mod knee;
pub mod null;
pub mod outcome;
pub mod parts;
pub mod schedule;
pub mod slice;
pub mod tally;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub mod tls;
pub mod url;
pub mod window;
pub mod workload;

pub use amped_http::h1::request::Version;

/// Formats a time in seconds since 1970 (UTC) as an HTTP date (RFC 9110, 5.6.7).
pub fn date(unix_s: f64) -> String {
    String::from_utf8_lossy(&amped_http::date::format(unix_s as i64)).into_owned()
}
