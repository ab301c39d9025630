//! Load that does not slow down when the server does: what is requested, when, and what came of it.
//!
//! `workload` says what is requested, `schedule` when, `client` is one connection as a state machine, `drive` runs them over
//! sockets, `tls` is what may lie between the two (`no_tls` without the feature of that name), `tally` counts, `outcome` judges,
//! `window` defines what was offered and completed, and whether the server fell behind,
//! `slice` and `parts` cut a plan for several generators and put their results together, `condition` checks what was demanded, `knee` finds the rate that a server sustains, and `null` is a server to calibrate by.
//! Nothing here prints, and nothing here knows a command line.
#![forbid(unsafe_code)]

pub mod client;
pub mod condition;
pub mod drive;
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
