//! Limits on the resources of one client, each with the reason for its default.

use core::time::Duration;

use amped_units::Bytes;

/// The limits on a connection and on a request. Limits of the server
/// itself (the number of connections) are with its listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Maximum length of the request line, including its line end;
    /// beyond it 414. RFC 9112, 3 recommends at least 8000 octets.
    pub max_request_line_bytes: Bytes,
    /// Maximum length of a request head, including the request line; beyond it 431. Cookies of a dozen applications on
    /// one host reach 16 KiB in practice; twice that is an error or an attack.
    pub max_header_bytes: Bytes,
    /// Maximum number of header fields; beyond it 431. Browsers send about 20.
    pub max_header_fields: usize,
    /// Maximum length of a request body that is read and discarded to keep the connection; beyond it 413, and the
    /// connection closes. Up to this length, reading is cheaper than a new connection.
    pub max_body_bytes: Bytes,
    /// Timeout for a complete head, from its first byte (for the first head, from the start of the connection), else
    /// 408. Slow phones need a few seconds; a client that trickles bytes to hold a connection gets no more.
    pub header_timeout: Duration,
    /// Timeout between two reads of a body, else 408. Received bytes extend it only at the rate of `min_body_rate`.
    pub body_timeout: Duration,
    /// Minimum average rate of a body in bytes per second; 0: no minimum. At 500
    /// B/s a megabyte takes half an hour; the default of Apache's mod_reqtimeout.
    pub min_body_rate: Bytes,
    /// Timeout for a complete body, at any rate, else 408. 10 GB at 4 Mbit/s take 6 hours.
    pub body_total_timeout: Duration,
    /// Timeout for a connection without a request. Browsers request the next page within a minute.
    pub idle_timeout: Duration,
    /// Timeout between two writes of a response, after which it is aborted. Every byte that the client accepts restarts
    /// it, so that a slow but steady download of any size completes.
    pub send_timeout: Duration,
    /// Timeout for the disk: a waiting request gets 503, and a download is aborted.
    /// A working disk responds within seconds, even if it has to spin up.
    pub disk_timeout: Duration,
    /// After an error response, the connection closes once the client has sent nothing for this long, or after 30 s:
    /// until then its input is read and dropped, so that the response is not lost to a reset (RFC 9112, 9.6).
    pub linger_timeout: Duration,
    /// Maximum requests on one connection, so that clients are redistributed over the workers.
    pub max_requests: u32,
    /// Maximum ranges of one request; beyond it the whole file is sent (RFC 9110, 14.2 on abuse).
    pub max_ranges: usize,
    /// Maximum pipelined responses per turn of one client.
    pub max_pipelined: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_request_line_bytes: Bytes::kib(8),
            max_header_bytes: Bytes::kib(32),
            max_header_fields: 100,
            max_body_bytes: Bytes::mib(1),
            header_timeout: Duration::from_secs(20),
            body_timeout: Duration::from_secs(30),
            min_body_rate: Bytes(500),
            body_total_timeout: Duration::from_secs(6 * 60 * 60),
            idle_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(60),
            disk_timeout: Duration::from_secs(60),
            linger_timeout: Duration::from_secs(2),
            max_requests: 100_000,
            max_ranges: 16,
            max_pipelined: 32,
        }
    }
}
