//! What one client may cost: each limit with the reason for its default.

use core::time::Duration;

use amped_units::Bytes;

/// The limits on a connection and on a request. The server's own (how many connections) are with its listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Longest request line, with its line end; a longer one is answered 414. RFC 9112, 3 asks for 8000 octets at least.
    pub max_request_line_bytes: Bytes,
    /// Longest request head, request line included; a longer one is answered 431. Cookies of a dozen applications on
    /// one host reach 16 KiB in practice; beyond twice that somebody is mistaken or hostile.
    pub max_header_bytes: Bytes,
    /// Most header fields; more are answered 431. Browsers send about 20.
    pub max_header_fields: usize,
    /// Longest request body that is read and thrown away to keep the connection; a longer one is answered 413 and the
    /// connection is closed. Reading this much is cheaper than a new connection, reading more is not.
    pub max_body_bytes: Bytes,
    /// A head must be complete this long after its first byte (after the connection, for the first), else 408. Slow
    /// phones need a few seconds; someone who sends a byte now and then to hold a connection gets this long.
    pub header_timeout: Duration,
    /// A client may send nothing of a body for this long, else 408. What it sends renews this only at `min_body_rate`.
    pub body_timeout: Duration,
    /// Bytes of a body that a client must send each second on average, 0: any number. A client of 500 B/s needs half an hour
    /// for a megabyte; the default of Apache's mod_reqtimeout.
    pub min_body_rate: Bytes,
    /// A body must be complete after this, however fast it comes, else 408. 10 GB at 4 Mbit/s take 6 hours.
    pub body_total_timeout: Duration,
    /// A connection with no request on it is closed after this. Browsers come back for the next page within a minute.
    pub idle_timeout: Duration,
    /// A reply whose receiver takes nothing for this long is given up. Every byte taken starts it anew, so that a slow
    /// but honest download of any size lives.
    pub send_timeout: Duration,
    /// A request whose answer is on the disk is answered 503 if the disk does not answer for this long, and a download is
    /// given up. Disks that are alive answer within seconds, even old ones that have to spin up.
    pub disk_timeout: Duration,
    /// After a refusal, the connection is closed when the client has sent nothing for this long, or after 30 s: what it still
    /// sends is read and dropped, so that the reply is not lost to a reset (RFC 9112, 9.6).
    pub linger_timeout: Duration,
    /// Requests on one connection before it is closed, so that clients spread anew over the workers.
    pub max_requests: u32,
    /// Most ranges in one request; more, and the whole file is sent instead (RFC 9110, 14.2 on abuse).
    pub max_ranges: usize,
    /// Replies that one turn prepares for one pipelining client before others have theirs.
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
