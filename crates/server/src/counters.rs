//! Statistics: reported on SIGQUIT, and at exit as of the request to stop, and published (`metrics`). One table,
//! [`FIGURES`], defines them all.

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use amped_core::cache::Figures;
use amped_core::cache::hostname::HostnameCounts;
use amped_core::compress::Compressed;
use amped_core::event::{Delay, Work};
use amped_core::shared_state::Counts;
use amped_exporter::seconds;
use serde::{Deserialize, Serialize};

/// The statistics of one loop, or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Request counters.
    pub counts: Counts,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections open now.
    pub connections: u64,
    /// Memory of the server that these connections use, bytes, including their slots.
    pub connection_bytes: u64,
    /// Connections closed in the middle of a response: the file changed, or the client left or stopped reading.
    pub broken: u64,
    /// Connections reset because the client received too slowly, or nothing.
    pub slow: u64,
    /// Connections closed because of their header of the PROXY protocol: untrusted peer, none in time, or an invalid one.
    pub refused_proxies: u64,
    /// Connections closed at once because their client had too many.
    pub limited_connections: u64,
    /// Cache statistics.
    pub caches: Figures,
    /// Helper statistics.
    pub helpers: HelperCounts,
    /// File windows that were not in memory when they were to be sent.
    pub cold_windows: u64,
    /// Lookups that could not be answered without waiting.
    pub probes: ProbeCounts,
    /// Waits for helpers.
    pub waits: WaitCounts,
    /// Bytes of heads and bodies passed to sockets.
    pub sent_bytes: u64,
    /// Bytes of application request and response bodies written to files.
    pub spooled_bytes: u64,
    /// Requests forwarded by HTTP.
    pub http: HttpCounts,
    /// Event loop statistics.
    pub loops: LoopCounts,
    /// TLS handshakes.
    pub tls: TlsCounts,
    /// Compression on the fly.
    pub compression: CompressionCounts,
    /// Mapped windows of the whole process.
    pub mapped: MappedCounts,
    /// The page cache model of the whole process.
    pub model: ModelCounts,
    /// Statistics of watching for file changes.
    pub watch: WatchCounts,
    /// The object store of the whole process.
    pub store: StoreCounts,
    /// Access log lines that were lost.
    pub lost_lines: u64,
    /// Host name lookups for the access log.
    pub hostnames: HostnameCounts,
}

/// Lookups and reads that the loop could not have done without waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeCounts {
    /// Because of the disk: a name, or the first bytes of its file.
    pub names: u64,
    /// Because the file was being written to.
    pub changes: u64,
}

impl ProbeCounts {
    /// Counts one. A listing is not a miss: it is never tried without waiting.
    pub fn add(&mut self, work: &Work, why: Delay) {
        match (work, why) {
            (Work::List(_), _) => {}
            (Work::Name(_), Delay::Disk) => self.names += 1,
            (Work::Name(_), Delay::Change) => self.changes += 1,
        }
    }
}

/// Waits for helpers, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitCounts {
    /// Looking up and opening a name, and reading its first bytes.
    pub names: Waited,
    /// Listing a directory.
    pub lists: Waited,
    /// Verifying a password.
    pub passwords: Waited,
    /// Answering the hello of a TLS client.
    pub handshakes: Waited,
    /// Reading a window of a file into memory.
    pub windows: Waited,
    /// Waiting until a file that was being written is stable.
    pub changes: Waited,
}

/// Waits of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waited {
    /// Their number.
    pub tasks: u64,
    /// Total time from request to result, including the helpers' queue, in nanoseconds.
    pub ns: u64,
}

impl Waited {
    /// Counts one.
    pub fn add(&mut self, time: Duration) {
        self.tasks += 1;
        self.ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    }
}

/// Requests forwarded to backends by HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpCounts {
    /// Connections opened.
    pub connects: u64,
    /// Requests sent over a connection that was used before.
    pub reuses: u64,
    /// Requests sent again, over another connection or to another backend.
    pub retries: u64,
    /// Attempts that failed: no connection, no complete response, or a status after which the request is retried.
    pub failures: u64,
    /// Times that a backend was taken out of service.
    pub outages: u64,
    /// Times that one was taken back into service.
    pub recoveries: u64,
    /// Connections that have switched to WebSocket.
    pub tunnels: u64,
}

/// Helper statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperCounts {
    /// Helpers that are threads.
    pub threads: u64,
    /// Helpers that are processes.
    pub processes: u64,
    /// Maximum concurrent helpers so far.
    pub peak: u64,
    /// Tasks queued for a helper.
    pub waiting: u64,
    /// Helper processes that ended unexpectedly.
    pub died: u64,
}

/// TLS handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsCounts {
    /// Those completed with TLS 1.2.
    pub tls12: KindCounts,
    /// Those completed with TLS 1.3.
    pub tls13: KindCounts,
    /// Those completed, by cipher.
    pub ciphers: CipherCounts,
    /// Total time from accepting a connection to the end of its handshake, nanoseconds, of those completed.
    pub ns: u64,
    /// Those not completed, by reason.
    pub failures: FailureCounts,
}

/// Completed TLS handshakes of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindCounts {
    /// Those with a signature.
    pub full: u64,
    /// Those that resumed a session.
    pub resumed: u64,
}

/// Completed TLS handshakes by cipher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CipherCounts {
    /// AES-128-GCM.
    pub aes128: u64,
    /// AES-256-GCM.
    pub aes256: u64,
    /// ChaCha20-Poly1305.
    pub chacha20: u64,
}

/// TLS handshakes that were not completed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCounts {
    /// The client does not offer TLS 1.2 or 1.3.
    pub version: u64,
    /// No cipher suite, key exchange or signature algorithm in common.
    pub parameters: u64,
    /// No application protocol in common.
    pub alpn: u64,
    /// The client has sent an alert, for instance because it does not trust the certificate.
    pub rejected: u64,
    /// The client has no valid certificate, and needs one.
    pub certificate: u64,
    /// The client has broken the protocol.
    pub malformed: u64,
    /// The client has sent HTTP without TLS.
    pub plain: u64,
    /// The client took too long.
    pub timeout: u64,
    /// The client has left, or the server has stopped.
    pub closed: u64,
    /// The key process has not signed.
    pub key: u64,
}

/// The parameters of a TLS session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The version.
    pub version: TlsVersion,
    /// The name of the cipher suite (IANA).
    pub suite: &'static str,
    /// Its cipher.
    pub cipher: Cipher,
    /// The session was resumed.
    pub is_resumed: bool,
    /// The subject of the client's certificate, which was verified.
    pub subject: Option<Arc<str>>,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl TlsVersion {
    /// Returns its name in the variables of applications.
    pub fn as_protocol(self) -> &'static str {
        match self {
            TlsVersion::Tls12 => "TLSv1.2",
            TlsVersion::Tls13 => "TLSv1.3",
        }
    }

    /// Returns its number.
    pub fn as_str(self) -> &'static str {
        match self {
            TlsVersion::Tls12 => "1.2",
            TlsVersion::Tls13 => "1.3",
        }
    }
}

/// A cipher of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128,
    /// AES-256-GCM.
    Aes256,
    /// ChaCha20-Poly1305.
    ChaCha20,
}

/// Why a TLS handshake was not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// Counted in [`FailureCounts::version`].
    Version,
    /// Counted in [`FailureCounts::parameters`].
    Parameters,
    /// Counted in [`FailureCounts::alpn`].
    Alpn,
    /// Counted in [`FailureCounts::rejected`].
    Rejected,
    /// Counted in [`FailureCounts::certificate`].
    Certificate,
    /// Counted in [`FailureCounts::malformed`].
    Malformed,
    /// Counted in [`FailureCounts::plain`].
    Plain,
    /// Counted in [`FailureCounts::timeout`].
    Timeout,
    /// Counted in [`FailureCounts::closed`].
    Closed,
    /// Counted in [`FailureCounts::key`].
    Key,
}

impl TlsCounts {
    /// Counts a completed handshake, and its time.
    pub fn add(&mut self, negotiated: &Negotiated, time: Duration) {
        let kinds = match negotiated.version {
            TlsVersion::Tls12 => &mut self.tls12,
            TlsVersion::Tls13 => &mut self.tls13,
        };
        *(if negotiated.is_resumed { &mut kinds.resumed } else { &mut kinds.full }) += 1;
        let ciphers = &mut self.ciphers;
        *match negotiated.cipher {
            Cipher::Aes128 => &mut ciphers.aes128,
            Cipher::Aes256 => &mut ciphers.aes256,
            Cipher::ChaCha20 => &mut ciphers.chacha20,
        } += 1;
        self.ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Counts a handshake that was not completed.
    pub fn add_failure(&mut self, failure: HandshakeFailure) {
        let failures = &mut self.failures;
        *match failure {
            HandshakeFailure::Version => &mut failures.version,
            HandshakeFailure::Parameters => &mut failures.parameters,
            HandshakeFailure::Alpn => &mut failures.alpn,
            HandshakeFailure::Rejected => &mut failures.rejected,
            HandshakeFailure::Certificate => &mut failures.certificate,
            HandshakeFailure::Malformed => &mut failures.malformed,
            HandshakeFailure::Plain => &mut failures.plain,
            HandshakeFailure::Timeout => &mut failures.timeout,
            HandshakeFailure::Closed => &mut failures.closed,
            HandshakeFailure::Key => &mut failures.key,
        } += 1;
    }
}

/// Compression on the fly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressionCounts {
    /// Files compressed.
    pub compressed: u64,
    /// Files that did not become much smaller.
    pub not_worth_it: u64,
    /// Files that changed meanwhile, or could not be read.
    pub failed: u64,
    /// Files for which the queue had no room.
    pub refused: u64,
    /// The size of the compressed files before, bytes.
    pub in_bytes: u64,
    /// Their size afterwards, bytes.
    pub out_bytes: u64,
    /// The time that compression took, of all files, nanoseconds.
    pub ns: u64,
    /// Responses of applications.
    pub responses: ResponseCompressionCounts,
}

/// Compression of responses of applications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseCompressionCounts {
    /// Responses that were compressed to their end.
    pub compressed: u64,
    /// Bytes compressed.
    pub in_bytes: u64,
    /// Their size afterwards, bytes.
    pub out_bytes: u64,
    /// The time that it took, of all threads, nanoseconds.
    pub ns: u64,
}

impl ResponseCompressionCounts {
    /// Counts a piece of a response that was compressed.
    pub fn add(&mut self, in_bytes: usize, (out_bytes, is_end): (usize, bool), time: Duration) {
        self.compressed += u64::from(is_end);
        self.in_bytes += in_bytes as u64;
        self.out_bytes += out_bytes as u64;
        self.ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    }
}

impl CompressionCounts {
    /// Counts the result for a file of this size.
    pub fn add<F>(&mut self, size: u64, result: &Compressed<F>, time: Duration) {
        self.ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        match result {
            Compressed::Encoded(encoded) => {
                self.compressed += 1;
                self.in_bytes += size;
                self.out_bytes += encoded.content.version.size;
            }
            Compressed::NotWorthIt => self.not_worth_it += 1,
            Compressed::Failed => self.failed += 1,
        }
    }
}

/// Mapped windows of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedCounts {
    /// Windows mapped now: the chunks of Flash.
    pub chunks: u64,
    /// Their size, bytes, as their budget counts it.
    pub bytes: u64,
    /// Lookups that found a mapped window.
    pub hits: u64,
    /// Windows that had to be mapped.
    pub misses: u64,
    /// Windows unmapped.
    pub unmapped: u64,
}

/// Statistics of the page cache model; all zero if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCounts {
    /// Estimated maximum size of the page cache, bytes.
    pub estimate: u64,
    /// File data assumed to be in it, bytes.
    pub believed: u64,
    /// Mistakes of the model that caused a wait.
    pub faults: u64,
}

/// Access log statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Access log lines that were lost.
    pub lost_lines: u64,
    /// Host name lookups for the access log.
    pub hostnames: HostnameCounts,
}

/// Statistics of watching for changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchCounts {
    /// Directories watched, and files watched individually.
    pub directories: u64,
    /// Events received.
    pub events: u64,
    /// Times that events were lost.
    pub overflows: u64,
}

/// Statistics of a process about its object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCounts {
    /// Requests, of objects and listings, including those that were not made because the store had just failed.
    pub requests: u64,
    /// Those of them that failed, or were not made.
    pub failures: u64,
    /// Objects that the store has confirmed.
    pub confirmed: u64,
    /// Bytes of objects received.
    pub fetched_bytes: u64,
    /// Lookups answered with an object that was not current.
    pub stale: u64,
    /// Local copies removed to make room.
    pub evictions: u64,
}

/// A loop's iterations, from the return of epoll_wait until it waits again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopCounts {
    /// Their number.
    pub turns: u64,
    /// Their total time.
    pub busy_ns: u64,
    /// Iterations of [`STALL`] or longer: every other connection waited as long.
    pub stalls: u64,
    /// Their total time.
    pub stalled_ns: u64,
}

/// An iteration that takes this long counts as a stall. With the maximum number of events one takes 5 ms.
pub const STALL: Duration = Duration::from_millis(10);

impl LoopCounts {
    /// Counts one iteration.
    pub fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.turns += 1;
        self.busy_ns += ns;
        if time >= STALL {
            self.stalls += 1;
            self.stalled_ns += ns;
        }
    }
}

/// The description of one figure of a [`Snapshot`], as published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name of its family, as in OpenMetrics without prefix and suffix. Figures of a family are
    /// consecutive, and differ by their labels.
    pub name: &'static str,
    /// Its labels, as in OpenMetrics; empty for a family of one.
    pub labels: &'static str,
    /// Whether it can decrease.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// The help text.
    pub help: &'static str,
}

impl Figure {
    /// Returns how much to add to the total, modulo 2^64, when the value changes from `known` to
    /// `now`. A counter that is lower than before has been reset, as those of caches are when their
    /// budgets change: then its whole value is new.
    pub fn growth(&self, known: u64, now: u64) -> u64 {
        let has_begun_anew = self.kind == Kind::Counter && now < known;
        now.wrapping_sub(if has_begun_anew { 0 } else { known })
    }
}

/// Whether a figure can decrease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Events since the start.
    Counter,
    /// A current value; dropped when its process dies.
    Gauge,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    Things,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
}

/// Generates [`FIGURES`], and the fields that hold them, from one table, so that both have the same order.
macro_rules! figures {
    ($($($part:ident).+: $kind:ident $unit:ident $name:literal $labels:literal $help:literal,)*) => {
        /// All figures, in the order in which a snapshot is sent to another process and published.
        pub const FIGURES: &[Figure] = &[$(Figure {
            name: $name, labels: $labels, kind: Kind::$kind, unit: Unit::$unit, help: $help,
        },)*];

        impl Snapshot {
            /// Returns all figures, in the order of [`FIGURES`].
            pub fn fields(&mut self) -> [&mut u64; FIGURES.len()] {
                [$(&mut self.$($part).+,)*]
            }
        }
    };
}

// All fields are words, and none can be borrowed twice: with as many words as figures, none is missing.
const _: () = assert!(size_of::<Snapshot>() == FIGURES.len() * size_of::<u64>());

figures! {
    counts.requests: Counter Things "requests" "" "Requests whose head was parsed.",
    sent_bytes: Counter Bytes "sent" "" "Bytes of heads and bodies passed to sockets.",
    spooled_bytes: Counter Bytes "spooled" "" "Application request and response bodies written to files.",
    http.connects: Counter Things "backend_requests" "connection=\"new\"" "Requests forwarded to HTTP backends.",
    http.reuses: Counter Things "backend_requests" "connection=\"kept\"" "Requests forwarded to HTTP backends.",
    http.retries: Counter Things "backend_retries" "" "Requests sent to an HTTP backend again, or to another one.",
    http.failures: Counter Things "backend_failures" "" "Requests to which an HTTP backend did not respond completely.",
    http.outages: Counter Things "backend_changes" "state=\"out\"" "HTTP backends taken out of service, or back into service.",
    http.recoveries: Counter Things "backend_changes" "state=\"in\"" "HTTP backends taken out of service, or back into service.",
    http.tunnels: Counter Things "tunnels" "" "Connections switched to WebSocket.",
    counts.bad_requests: Counter Things "bad_requests" "" "Requests that were invalid or timed out.",
    counts.hits: Counter Things "request_hits" "" "Requests answered from the caches.",
    counts.stale_hits: Counter Things "request_stale_hits" "" "Requests answered from an expired entry.",
    counts.disk_questions: Counter Things "disk_questions" "" "Lookups passed to the disk side.",
    counts.shed: Counter Things "requests_shed" "" "Requests refused with 503 because the disk queue was full.",
    counts.limited: Counter Things "requests_limited" "" "Requests refused with 429 because their client exceeded a limit.",
    counts.delayed: Counter Things "requests_delayed" "" "Requests that waited until a limit of their client permitted them.",
    counts.page_collapsed: Counter Things "pages_shared" "" "Requests that waited for a page generated for another request.",
    counts.pages_stale_before_revalidation: Counter Things "pages_stale" "reason=\"revalidation\"" "Requests answered with a page that was not fresh.",
    counts.pages_stale_for_error: Counter Things "pages_stale" "reason=\"error\"" "Requests answered with a page that was not fresh.",
    counts.page_revalidations: Counter Things "page_revalidations" "" "Pages revalidated in the background.",
    counts.pages_confirmed: Counter Things "pages_confirmed" "" "Pages that applications have confirmed by 304.",
    counts.http2.connections: Counter Things "http2_connections" "" "Connections that began with HTTP/2.",
    counts.http2.streams: Counter Things "http2_streams" "" "Streams of HTTP/2 that clients have opened.",
    counts.http2.cancelled: Counter Things "http2_resets" "reason=\"cancelled\"" "Streams of HTTP/2 that were reset.",
    counts.http2.failed: Counter Things "http2_resets" "reason=\"error\"" "Streams of HTTP/2 that were reset.",
    counts.http2.refused: Counter Things "http2_resets" "reason=\"refused\"" "Streams of HTTP/2 that were reset.",
    counts.http2.connection_errors: Counter Things "http2_connection_errors" "reason=\"protocol\"" "Connections of HTTP/2 closed for an error of the client.",
    counts.http2.floods: Counter Things "http2_connection_errors" "reason=\"flood\"" "Connections of HTTP/2 closed for an error of the client.",
    accepted: Counter Things "connections_accepted" "" "Connections accepted.",
    broken: Counter Things "connections_broken" "" "Connections closed in the middle of a response.",
    slow: Counter Things "connections_slow" "" "Connections reset because the client received too slowly, or nothing.",
    refused_proxies: Counter Things "proxy_protocol_refused" "" "Connections closed because of their PROXY protocol header.",
    limited_connections: Counter Things "connections_limited" "" "Connections closed at once because their client had too many.",
    connections: Gauge Things "connections" "" "Open connections.",
    connection_bytes: Gauge Bytes "connection" "" "Memory used by connections, up to a second old.",
    loops.turns: Counter Things "loop_turns" "" "Event loop iterations.",
    loops.busy_ns: Counter Nanoseconds "loop_busy" "" "Time spent in event loop iterations.",
    loops.stalls: Counter Things "loop_stalls" "" "Event loop iterations of 10 ms or more.",
    loops.stalled_ns: Counter Nanoseconds "loop_stalled" "" "Time spent in event loop iterations of 10 ms or more.",
    tls.tls12.full: Counter Things "tls_handshakes" "kind=\"full\",version=\"1.2\"" "Completed TLS handshakes.",
    tls.tls12.resumed: Counter Things "tls_handshakes" "kind=\"resumed\",version=\"1.2\"" "Completed TLS handshakes.",
    tls.tls13.full: Counter Things "tls_handshakes" "kind=\"full\",version=\"1.3\"" "Completed TLS handshakes.",
    tls.tls13.resumed: Counter Things "tls_handshakes" "kind=\"resumed\",version=\"1.3\"" "Completed TLS handshakes.",
    tls.ciphers.aes128: Counter Things "tls_ciphers" "cipher=\"AES_128_GCM\"" "Completed TLS handshakes by cipher.",
    tls.ciphers.aes256: Counter Things "tls_ciphers" "cipher=\"AES_256_GCM\"" "Completed TLS handshakes by cipher.",
    tls.ciphers.chacha20: Counter Things "tls_ciphers" "cipher=\"CHACHA20_POLY1305\"" "Completed TLS handshakes by cipher.",
    tls.ns: Counter Nanoseconds "tls_handshake_time" "" "Time from accepting a connection to the end of its handshake, if it was completed.",
    tls.failures.version: Counter Things "tls_failures" "reason=\"version\"" "TLS handshakes that were not completed.",
    tls.failures.parameters: Counter Things "tls_failures" "reason=\"parameters\"" "TLS handshakes that were not completed.",
    tls.failures.alpn: Counter Things "tls_failures" "reason=\"alpn\"" "TLS handshakes that were not completed.",
    tls.failures.rejected: Counter Things "tls_failures" "reason=\"rejected\"" "TLS handshakes that were not completed.",
    tls.failures.certificate: Counter Things "tls_failures" "reason=\"certificate\"" "TLS handshakes that were not completed.",
    tls.failures.malformed: Counter Things "tls_failures" "reason=\"malformed\"" "TLS handshakes that were not completed.",
    tls.failures.plain: Counter Things "tls_failures" "reason=\"plain\"" "TLS handshakes that were not completed.",
    tls.failures.timeout: Counter Things "tls_failures" "reason=\"timeout\"" "TLS handshakes that were not completed.",
    tls.failures.closed: Counter Things "tls_failures" "reason=\"closed\"" "TLS handshakes that were not completed.",
    tls.failures.key: Counter Things "tls_failures" "reason=\"key\"" "TLS handshakes that were not completed.",
    compression.compressed: Counter Things "compressions" "result=\"compressed\"" "Files to compress on the fly.",
    compression.not_worth_it: Counter Things "compressions" "result=\"not_worth_it\"" "Files to compress on the fly.",
    compression.failed: Counter Things "compressions" "result=\"failed\"" "Files to compress on the fly.",
    compression.refused: Counter Things "compressions" "result=\"queue_full\"" "Files to compress on the fly.",
    compression.in_bytes: Counter Bytes "compression_input" "" "Size of compressed files before compression.",
    compression.out_bytes: Counter Bytes "compression_output" "" "Size of compressed files.",
    compression.ns: Counter Nanoseconds "compression_time" "" "Time spent compressing files, in a thread of its own.",
    compression.responses.compressed: Counter Things "app_compressions" "result=\"compressed\"" "Responses of applications to compress.",
    counts.streams_refused: Counter Things "app_compressions" "result=\"busy\"" "Responses of applications to compress.",
    compression.responses.in_bytes: Counter Bytes "app_compression_input" "" "Bytes of applications' responses before compression.",
    compression.responses.out_bytes: Counter Bytes "app_compression_output" "" "Bytes of applications' responses after compression.",
    compression.responses.ns: Counter Nanoseconds "app_compression_time" "" "Time spent compressing responses of applications, in threads of their own.",
    probes.names: Counter Things "probe_misses" "of=\"name\"" "Probes that would have had to wait.",
    cold_windows: Counter Things "probe_misses" "of=\"window\"" "Probes that would have had to wait.",
    probes.changes: Counter Things "probe_misses" "of=\"change\"" "Probes that would have had to wait.",
    waits.names.tasks: Counter Things "helper_tasks" "cause=\"name\"" "Tasks completed by helpers.",
    waits.lists.tasks: Counter Things "helper_tasks" "cause=\"list\"" "Tasks completed by helpers.",
    waits.windows.tasks: Counter Things "helper_tasks" "cause=\"window\"" "Tasks completed by helpers.",
    waits.passwords.tasks: Counter Things "helper_tasks" "cause=\"password\"" "Tasks completed by helpers.",
    waits.handshakes.tasks: Counter Things "helper_tasks" "cause=\"handshake\"" "Tasks completed by helpers.",
    waits.changes.tasks: Counter Things "helper_tasks" "cause=\"change\"" "Tasks completed by helpers.",
    waits.names.ns: Counter Nanoseconds "helper_wait" "cause=\"name\"" "Time from request to result, including the queue.",
    waits.lists.ns: Counter Nanoseconds "helper_wait" "cause=\"list\"" "Time from request to result, including the queue.",
    waits.windows.ns: Counter Nanoseconds "helper_wait" "cause=\"window\"" "Time from request to result, including the queue.",
    waits.passwords.ns: Counter Nanoseconds "helper_wait" "cause=\"password\"" "Time from request to result, including the queue.",
    waits.handshakes.ns: Counter Nanoseconds "helper_wait" "cause=\"handshake\"" "Time from request to result, including the queue.",
    waits.changes.ns: Counter Nanoseconds "helper_wait" "cause=\"change\"" "Time from request to result, including the queue.",
    helpers.waiting: Gauge Things "helper_queue" "" "Tasks queued for a helper.",
    helpers.threads: Gauge Things "helpers" "as=\"threads\"" "Helpers.",
    helpers.processes: Gauge Things "helpers" "as=\"processes\"" "Helpers.",
    helpers.peak: Gauge Things "helpers_peak" "" "Maximum concurrent helpers since the start.",
    helpers.died: Counter Things "helpers_died" "" "Helper processes that ended unexpectedly.",
    caches.uris.hits: Counter Things "cache_hits" "cache=\"uri\"" "Cache hits.",
    caches.negotiations.hits: Counter Things "cache_hits" "cache=\"choice\"" "Cache hits.",
    caches.paths.hits: Counter Things "cache_hits" "cache=\"path\"" "Cache hits.",
    caches.heads.hits: Counter Things "cache_hits" "cache=\"head\"" "Cache hits.",
    caches.bodies.hits: Counter Things "cache_hits" "cache=\"body\"" "Cache hits.",
    caches.files.hits: Counter Things "cache_hits" "cache=\"file\"" "Cache hits.",
    caches.encodings.hits: Counter Things "cache_hits" "cache=\"compressed\"" "Cache hits.",
    counts.page_hits: Counter Things "cache_hits" "cache=\"page\"" "Cache hits.",
    mapped.hits: Counter Things "cache_hits" "cache=\"mapped\"" "Cache hits.",
    hostnames.hits: Counter Things "cache_hits" "cache=\"hostname\"" "Cache hits.",
    caches.uris.misses: Counter Things "cache_misses" "cache=\"uri\"" "Cache misses.",
    caches.negotiations.misses: Counter Things "cache_misses" "cache=\"choice\"" "Cache misses.",
    caches.paths.misses: Counter Things "cache_misses" "cache=\"path\"" "Cache misses.",
    caches.heads.misses: Counter Things "cache_misses" "cache=\"head\"" "Cache misses.",
    caches.bodies.misses: Counter Things "cache_misses" "cache=\"body\"" "Cache misses.",
    caches.files.misses: Counter Things "cache_misses" "cache=\"file\"" "Cache misses.",
    caches.encodings.misses: Counter Things "cache_misses" "cache=\"compressed\"" "Cache misses.",
    counts.page_misses: Counter Things "cache_misses" "cache=\"page\"" "Cache misses.",
    mapped.misses: Counter Things "cache_misses" "cache=\"mapped\"" "Cache misses.",
    hostnames.misses: Counter Things "cache_misses" "cache=\"hostname\"" "Cache misses.",
    caches.uris.insertions: Counter Things "cache_insertions" "cache=\"uri\"" "Entries inserted.",
    caches.negotiations.insertions: Counter Things "cache_insertions" "cache=\"choice\"" "Entries inserted.",
    caches.paths.insertions: Counter Things "cache_insertions" "cache=\"path\"" "Entries inserted.",
    caches.heads.insertions: Counter Things "cache_insertions" "cache=\"head\"" "Entries inserted.",
    caches.bodies.insertions: Counter Things "cache_insertions" "cache=\"body\"" "Entries inserted.",
    caches.files.insertions: Counter Things "cache_insertions" "cache=\"file\"" "Entries inserted.",
    caches.encodings.insertions: Counter Things "cache_insertions" "cache=\"compressed\"" "Entries inserted.",
    caches.uris.evictions: Counter Things "cache_evictions" "cache=\"uri\"" "Entries evicted.",
    caches.negotiations.evictions: Counter Things "cache_evictions" "cache=\"choice\"" "Entries evicted.",
    caches.paths.evictions: Counter Things "cache_evictions" "cache=\"path\"" "Entries evicted.",
    caches.heads.evictions: Counter Things "cache_evictions" "cache=\"head\"" "Entries evicted.",
    caches.bodies.evictions: Counter Things "cache_evictions" "cache=\"body\"" "Entries evicted.",
    caches.files.evictions: Counter Things "cache_evictions" "cache=\"file\"" "Entries evicted.",
    caches.encodings.evictions: Counter Things "cache_evictions" "cache=\"compressed\"" "Entries evicted.",
    mapped.unmapped: Counter Things "cache_evictions" "cache=\"mapped\"" "Entries evicted.",
    caches.uris.refusals: Counter Things "cache_refusals" "cache=\"uri\"" "Entries not admitted.",
    caches.negotiations.refusals: Counter Things "cache_refusals" "cache=\"choice\"" "Entries not admitted.",
    caches.paths.refusals: Counter Things "cache_refusals" "cache=\"path\"" "Entries not admitted.",
    caches.heads.refusals: Counter Things "cache_refusals" "cache=\"head\"" "Entries not admitted.",
    caches.bodies.refusals: Counter Things "cache_refusals" "cache=\"body\"" "Entries not admitted.",
    caches.files.refusals: Counter Things "cache_refusals" "cache=\"file\"" "Entries not admitted.",
    caches.encodings.refusals: Counter Things "cache_refusals" "cache=\"compressed\"" "Entries not admitted.",
    caches.uri_entries: Gauge Things "cache_entries" "cache=\"uri\"" "Entries in the cache.",
    caches.negotiation_entries: Gauge Things "cache_entries" "cache=\"choice\"" "Entries in the cache.",
    caches.path_entries: Gauge Things "cache_entries" "cache=\"path\"" "Entries in the cache.",
    caches.open_files: Gauge Things "cache_entries" "cache=\"file\"" "Entries in the cache.",
    mapped.chunks: Gauge Things "cache_entries" "cache=\"mapped\"" "Entries in the cache.",
    hostnames.entries: Gauge Things "cache_entries" "cache=\"hostname\"" "Entries in the cache.",
    caches.head_bytes: Gauge Bytes "cache_held" "cache=\"head\"" "Bytes in the cache.",
    caches.body_bytes: Gauge Bytes "cache_held" "cache=\"body\"" "Bytes in the cache.",
    caches.encoding_bytes: Gauge Bytes "cache_held" "cache=\"compressed\"" "Bytes in the cache.",
    mapped.bytes: Gauge Bytes "cache_held" "cache=\"mapped\"" "Bytes in the cache.",
    model.estimate: Gauge Bytes "page_cache_estimate" "" "Estimated maximum size of the page cache.",
    model.believed: Gauge Bytes "page_cache_believed" "" "File data assumed to be in the page cache.",
    model.faults: Counter Things "page_cache_faults" "" "Wrong estimates of the page cache that caused a wait.",
    watch.directories: Gauge Things "watched_folders" "" "Watched directories.",
    watch.events: Counter Things "watch_events" "" "Events of watched directories.",
    watch.overflows: Counter Things "watch_overflows" "" "Times that watch events were lost.",
    store.requests: Counter Things "store_requests" "" "Requests to the object store, made or not.",
    store.failures: Counter Things "store_failures" "" "Requests to the object store that failed, or were not made because it had just failed.",
    store.confirmed: Counter Things "store_confirmed" "" "Objects that the object store has confirmed by 304.",
    store.fetched_bytes: Counter Bytes "store_fetched" "" "Bytes of objects received from the object store.",
    store.stale: Counter Things "store_stale" "" "Lookups answered with an object that was not current, because the object store failed.",
    store.evictions: Counter Things "store_evictions" "" "Local copies of objects removed to make room.",
    lost_lines: Counter Things "log_lines_lost" "" "Access log lines that were lost.",
    hostnames.lookups: Counter Things "hostname_lookups" "" "Host name lookups.",
    hostnames.failed: Counter Things "hostname_failures" "" "Host name lookups without a result.",
    hostnames.timed_out: Counter Things "hostname_timeouts" "" "Log lines whose host name lookup timed out.",
    hostnames.refused: Counter Things "hostname_refusals" "" "Log lines whose host name could not be looked up.",
}

impl Snapshot {
    /// Returns what remains of a worker that has ended: its counters, not its gauges.
    #[must_use]
    pub fn after_the_end(mut self) -> Snapshot {
        for (field, figure) in self.fields().into_iter().zip(FIGURES) {
            if figure.kind == Kind::Gauge {
                *field = 0;
            }
        }
        self
    }

    /// Adds the statistics of the access log; `None`: there is no log.
    #[must_use]
    pub fn with_log(self, log: Option<LogCounts>) -> Snapshot {
        let LogCounts { lost_lines, hostnames } = log.unwrap_or_default();
        Snapshot { lost_lines, hostnames, ..self }
    }

    /// Adds the statistics of watching; `None`: nothing is watched.
    #[must_use]
    pub fn with_watch(self, watch: Option<WatchCounts>) -> Snapshot {
        Snapshot { watch: watch.unwrap_or_default(), ..self }
    }

    /// Adds the statistics of the object store; `None`: there is none.
    #[must_use]
    pub fn with_store(self, store: Option<StoreCounts>) -> Snapshot {
        Snapshot { store: store.unwrap_or_default(), ..self }
    }
}

impl AddAssign<&Snapshot> for Snapshot {
    fn add_assign(&mut self, other: &Snapshot) {
        for (field, other) in self.fields().into_iter().zip(other.clone().fields()) {
            *field += *other;
        }
    }
}

impl fmt::Display for Snapshot {
    /// One line per family, `name: value` or `name: label=value ...`, under the names of OpenMetrics. Several labels are joined
    /// by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut snapshot = self.clone();
        let figures: Vec<_> = FIGURES.iter().zip(snapshot.fields()).collect();
        for family in figures.chunk_by(|(one, _), (next, _)| one.name == next.name) {
            let suffix = match family[0].0.unit {
                Unit::Things => "",
                Unit::Bytes => "_bytes",
                Unit::Nanoseconds => "_seconds",
            };
            write!(f, "{}{suffix}:", family[0].0.name)?;
            for (figure, value) in family {
                let labels: Vec<&str> = figure.labels.split('"').skip(1).step_by(2).collect();
                let label = if labels.is_empty() { String::new() } else { labels.join(",") + "=" };
                match figure.unit {
                    Unit::Things | Unit::Bytes => write!(f, " {label}{value}")?,
                    Unit::Nanoseconds => write!(f, " {label}{}", seconds(**value))?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_one_line_per_family() {
        let mut snapshot = Snapshot { sent_bytes: 5, spooled_bytes: 7, ..Snapshot::default() };
        (snapshot.helpers.processes, snapshot.loops.busy_ns) = (3, 1_500_000);
        let report = snapshot.to_string();
        for line in ["sent_bytes: 5", "spooled_bytes: 7", "helpers: threads=0 processes=3", "loop_busy_seconds: 0.0015"]
        {
            assert!(report.lines().any(|found| found == line), "{line} in {report}");
        }
    }

    #[test]
    fn snapshot_drops_gauges_at_exit() {
        let mut snapshot = Snapshot::default();
        (1..).zip(snapshot.fields()).for_each(|(number, field)| *field = number);
        for ((number, field), figure) in (1..).zip(snapshot.after_the_end().fields()).zip(FIGURES) {
            assert_eq!(*field, if figure.kind == Kind::Gauge { 0 } else { number }, "{figure:?}");
        }
    }

    #[test]
    fn counters_never_decrease() {
        let [counter, gauge] = [Kind::Counter, Kind::Gauge].map(|kind| Figure { kind, ..FIGURES[0] });
        let check = |figure: Figure, known: u64, now: u64, expected: i64| {
            assert_eq!(figure.growth(known, now), expected as u64, "{known} {now}");
        };
        check(counter, 5, 7, 2);
        check(counter, 7, 7, 0);
        check(counter, 7, 3, 3);
        check(gauge, 5, 7, 2);
        check(gauge, 7, 3, -4);
    }

    #[test]
    fn figures_of_one_family_are_adjacent_and_consistent() {
        let mut families: Vec<&Figure> = Vec::new();
        for figure in FIGURES {
            match families.last() {
                Some(last) if last.name == figure.name => {
                    assert_eq!(
                        (last.kind, last.unit, last.help),
                        (figure.kind, figure.unit, figure.help),
                        "{figure:?}"
                    );
                    assert!(last.labels != figure.labels && !figure.labels.is_empty(), "{figure:?}");
                }
                _ => {
                    assert!(families.iter().all(|known| known.name != figure.name), "{figure:?} is not adjacent");
                    families.push(figure);
                }
            }
            assert!(
                figure.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{figure:?}"
            );
            assert!(figure.help.ends_with('.'), "{figure:?}");
        }
    }

    #[test]
    fn turn_of_ten_milliseconds_counts_as_stall() {
        let mut loops = LoopCounts::default();
        [9_999, 10_000, 30_000].into_iter().for_each(|us| loops.add(Duration::from_micros(us)));
        let expected = LoopCounts { turns: 3, busy_ns: 49_999_000, stalls: 2, stalled_ns: 40_000_000 };
        assert_eq!(loops, expected);
    }
}
