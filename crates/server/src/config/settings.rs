//! The tables of the configuration file, each key with its description, default and range.
//!
//! A key is defined once: here, in `file`, or, for `[limits]`, `[cache]` and the rules of a site, in core, where its
//! value is used. Its type, or the form in `serde(with)`, parses, checks and prints it; the first paragraph of its
//! comment is its description in `--help`, `--print-config`, the example and the reference; `default(...)` is its
//! default. Checks between keys are in `checked`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use amped_core::cache::hostname::HostnameLimits;
use amped_core::forms::{FieldValue, HealthPath};
use amped_http::status::Status;
use amped_http::uri::host_of;
use amped_sys::seccomp::Refusal;
use amped_units::{Bytes, Count, Form as _, Positive, PositiveBytes, PositiveSeconds, Seconds, forms, written_as_text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::log_format::LogFormat;
use crate::backend_tls::BackendTls;

/// Server architecture: what waits for the network, and what for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// Event loops with helpers for disk access
    #[default]
    Amped,
    /// Event loops that wait for the disk themselves, which delays all their clients
    Sped,
    /// A pool of threads, one connection each
    Mt,
    /// A pool of processes, one connection each
    Mp,
}

/// The properties of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Default number of workers: loops, or the threads or processes of a pool.
    pub workers: usize,
    /// The name of a worker in messages.
    pub worker: &'static str,
    /// The workers are a pool: each has one connection at a time, and all accept from the same listeners.
    pub pool: bool,
    /// Workers are processes, under a parent that replaces those that die.
    pub processes: bool,
    /// Each worker has helpers that wait for the disk in its place.
    pub helpers: bool,
    /// All workers, which are threads, share one set of caches.
    pub shared_caches: bool,
}

/// Returns the properties of an architecture.
pub fn form(architecture: Architecture) -> Form {
    let base = Form { workers: 1, worker: "loop", pool: false, processes: false, helpers: false, shared_caches: false };
    let pool = Form { workers: 64, pool: true, ..base };
    match architecture {
        Architecture::Amped => Form { helpers: true, ..base },
        Architecture::Sped => base,
        Architecture::Mt => Form { worker: "thread", shared_caches: true, ..pool },
        Architecture::Mp => Form { worker: "process", processes: true, ..pool },
    }
}

/// The kind of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppKind {
    /// A process for each request.
    Cgi,
    /// A persistent one that listens on this socket.
    Unix(PathBuf),
    /// A persistent one that listens on this address.
    Tcp(SocketAddr),
    /// A persistent one that the server starts: the program, then its arguments.
    Command(Vec<String>),
    /// Servers to which requests are forwarded by HTTP.
    Http(Box<UpstreamSettings>),
}

/// The servers behind a rule, and how requests are forwarded to them.
#[derive(Clone, Debug, PartialEq, Eq, SmartDefault)]
pub struct UpstreamSettings {
    /// Those without a name; together with `names`, 1 to [`BACKENDS_MAX`].
    pub servers: Vec<BackendServer>,
    /// Those with a name.
    pub names: Vec<NamedServer>,
    /// The interval at which names are resolved again.
    #[default(Duration::from_secs(30))]
    pub resolve: Duration,
    /// Which of them gets a request.
    pub balance: Balance,
    /// The field of a request whose value is hashed; `None`, or a request without it: the client's address.
    pub hash_field: Option<Box<str>>,
    /// Timeout of connecting to one.
    #[default(Duration::from_secs(5))]
    pub connect_timeout: Duration,
    /// Failures in succession after which one gets no requests.
    #[default(3)]
    pub max_failures: u32,
    /// How long it gets none.
    #[default(Duration::from_secs(10))]
    pub failure_timeout: Duration,
    /// Statuses after which a request is retried on another one.
    pub retry_statuses: Vec<RetryStatus>,
    /// How they are checked without requests of clients.
    pub health: Option<HealthCheck>,
}

impl UpstreamSettings {
    /// Returns whether a request is retried after a response with this status.
    pub fn retries_after(&self, status: Status) -> bool {
        self.retry_statuses.iter().any(|retry| *retry == status)
    }

    /// Returns whether such a response is a failure of the backend. Those of clients are none.
    pub fn is_failure(&self, status: Status) -> bool {
        (status.0 >= 500 || status == Status::TOO_MANY_REQUESTS) && self.retries_after(status)
    }
}

/// A status after which a request is retried on another server, 400 to 599
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct RetryStatus(#[serde(with = "Count::<400, 599>")] usize);

impl PartialEq<Status> for RetryStatus {
    fn eq(&self, status: &Status) -> bool {
        self.0 == usize::from(status.0)
    }
}

/// Active checks of `http` servers
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct HealthCheck {
    /// Path, perhaps with a query, that each server must serve
    #[schemars(example = "/health")]
    #[serde(deserialize_with = "HealthPath::text")]
    pub path: Box<str>,
    /// Host of the requests; default: the server's address
    #[schemars(example = "app.internal")]
    #[serde(default, deserialize_with = "FieldValue::text")]
    pub host: Option<Box<str>>,
    /// Time between two checks of a server
    #[serde(default = "five_seconds", with = "PositiveSeconds")]
    pub interval: Duration,
    /// Maximum time of a check, at most `interval`
    #[serde(default = "two_seconds", with = "PositiveSeconds")]
    pub timeout: Duration,
    /// Successful checks in succession after which a server gets requests again
    #[serde(default = "two", with = "Count::<1, 1000>")]
    pub healthy: usize,
    /// Failed checks in succession after which it gets none
    #[serde(default = "three", with = "Count::<1, 1000>")]
    pub unhealthy: usize,
    /// Status that the response must have; default: 200 to 399
    #[schemars(example = 200)]
    #[serde(default, with = "Count::<200, 599>")]
    pub status: Option<usize>,
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

fn two_seconds() -> Duration {
    Duration::from_secs(2)
}

fn two() -> usize {
    2
}

fn three() -> usize {
    3
}

/// Maximum backends of a rule: a set of them is a word.
pub const BACKENDS_MAX: usize = 64;

/// A server behind this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendServer {
    /// Where it is.
    pub address: BackendAddress,
    /// Its share of the requests.
    pub share: Share,
}

/// Which part of the requests one of several servers gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// How many requests it gets in proportion to the others, 1 to [`WEIGHT_MAX`].
    pub weight: u16,
    /// It gets requests only while no other one is in service.
    pub is_backup: bool,
}

impl Default for Share {
    fn default() -> Share {
        Share { weight: 1, is_backup: false }
    }
}

/// Maximum weight of a server.
pub const WEIGHT_MAX: u16 = 1000;

impl Share {
    /// Splits an address of `http` from the words after it, such as `weight=2` and `backup`.
    pub fn split(text: &str) -> (&str, Share) {
        let (mut address, mut share) = (text.trim(), Share::default());
        while let Some((before, word)) = address.rsplit_once(' ') {
            // A word that stands twice remains, and so makes the address invalid.
            let (has_weight, has_backup) = (share.weight != 1, share.is_backup);
            let weight =
                word.strip_prefix("weight=").and_then(number).filter(|weight| (1..=WEIGHT_MAX).contains(weight));
            match weight {
                Some(weight) if !has_weight => share.weight = weight,
                None if word == "backup" && !has_backup => share.is_backup = true,
                _ => break,
            }
            address = before.trim_end();
        }
        (address, share)
    }
}

/// Appends the words that are not the default, as they follow an address.
impl fmt::Display for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.weight > 1 {
            write!(formatter, " weight={}", self.weight)?;
        }
        if self.is_backup { formatter.write_str(" backup") } else { Ok(()) }
    }
}

/// The address of a server behind this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendAddress {
    /// A socket.
    Unix(PathBuf),
    /// An address and port.
    Tcp(SocketAddr),
    /// The same, with TLS.
    Tls(SocketAddr, BackendTls),
}

/// A server whose address has a name.
#[derive(Clone, Debug)]
pub struct NamedServer {
    /// Name and port.
    pub at: Box<str>,
    /// How TLS sessions with it begin, if it uses TLS.
    pub tls: Option<BackendTls>,
    /// The share of each of its addresses.
    pub share: Share,
    /// Its addresses when the configuration was read; none if it could not be resolved.
    pub addresses: Vec<SocketAddr>,
}

impl NamedServer {
    /// Returns how one of its addresses is reached.
    pub fn reached_at(&self, address: SocketAddr) -> BackendServer {
        let address = match &self.tls {
            Some(tls) => BackendAddress::Tls(address, tls.clone()),
            None => BackendAddress::Tcp(address),
        };
        BackendServer { address, share: self.share }
    }

    /// Returns its addresses when the configuration was read.
    pub fn known(&self) -> impl Iterator<Item = BackendServer> {
        self.addresses.iter().map(|&address| self.reached_at(address))
    }
}

/// Two are the same server, whatever addresses it has at the moment.
impl PartialEq for NamedServer {
    fn eq(&self, other: &NamedServer) -> bool {
        (&self.at, &self.tls, self.share) == (&other.at, &other.tls, other.share)
    }
}

impl Eq for NamedServer {}

/// Which of several backends gets a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// Each in turn
    #[default]
    RoundRobin,
    /// The one with the fewest requests in progress
    LeastConnections,
    /// Always the same for a client's address, or for a value of `hash_field`
    Hash,
}

/// How the applications of a rule run. The paths, timeout and size limits of the rule are in core's `AppRule`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSettings {
    /// Their kind.
    pub kind: AppKind,
    /// Whether their scripts are files of the site, so that a path without a file gets 404; default for patterns with a
    /// star. Always true for CGI.
    pub files: bool,
    /// Idle processes of a command to keep (default 1), or idle connections to an application that the server did not
    /// start (default 0, because an idle connection may occupy a process that other clients need).
    /// `min_spare <= max_processes`
    pub min_spare: usize,
    /// Maximum concurrent requests across the whole server, at least 1; `None`: no limit, the default for an
    /// application that the server did not start, which has its own queue. The default for scripts and commands is 20:
    /// they share a few cores in any case, and each uses some MiB.
    pub max_processes: Option<usize>,
    /// Maximum requests that wait for a process; default 1000. Further ones get 503.
    pub max_queue: usize,
    /// Whether a request is received completely before the application gets it; default yes. A chunked one always is,
    /// because the application needs its length.
    pub buffer_request: bool,
    /// Whether responses are read ahead of their clients, so that a slow client holds no process; default yes.
    pub buffer_response: bool,
    /// User that scripts run as; `None`: the server's.
    pub user: Option<Box<str>>,
    /// Environment variables in addition to those of CGI; none are inherited.
    pub env: Vec<(Box<str>, Box<str>)>,
}

impl AppSettings {
    /// Returns whether both run in the same way, so that processes of one can serve the other.
    pub fn is_run_alike(&self, other: &AppSettings) -> bool {
        let (files, buffer_request, buffer_response) = (self.files, self.buffer_request, self.buffer_response);
        *self == AppSettings { files, buffer_request, buffer_response, ..other.clone() }
    }
}

/// Disk helpers of each event loop, in architecture amped
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct HelperSettings {
    /// Kind of helper
    pub kind: HelperKind,
    /// Maximum disk helpers per event loop
    ///
    /// Enough to keep the queue of a disk full, without contention for a core.
    #[serde(with = "Positive")]
    #[default(16)]
    pub max: usize,
    /// Minimum idle helpers, at most `max`
    #[default(2)]
    pub min_spare: usize,
    /// Maximum requests that wait for a helper; further ones get 503
    #[serde(with = "Positive")]
    #[default(512)]
    pub max_queue: usize,
    /// Time after which an idle helper exits
    #[serde(with = "PositiveSeconds")]
    #[default(Duration::from_secs(10))]
    pub idle_timeout: Duration,
}

/// Kind of helper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HelperKind {
    /// Threads of the server; no data is copied
    #[default]
    Threads,
    /// Separate processes, as in Flash: if one crashes, only its task is affected, and is retried
    Processes,
}

/// Access log
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct LogSettings {
    /// File, "-" for standard output, or "off"
    pub access: LogTarget,
    /// Line format
    ///
    /// Instead of a name it may be a template or a list of fields. A template is text with nginx's variables, such as `'$remote_addr [$time_local] "$request" $status $request_time'`; in it, quotes, backslashes
    /// and bytes that are not printable ASCII in values become `\xHH`, and a value that is missing is `-`. A list has their names, without `$`; each line is a JSON
    /// object with these fields. Names: `remote_addr`, `realip_remote_addr` (the proxy), `remote_user`, `time_local`,
    /// `time_iso8601`, `host`, `scheme`, `request`, `request_method`, `request_uri`, `server_protocol`, `status`, `body_bytes_sent`, `bytes_sent`, `request_time`
    /// (seconds), `http_referer`, `http_user_agent`, `ssl_protocol`, `ssl_cipher`, `ssl_client_s_dn`, `upstream_addr`, `upstream_header_time` (seconds), and
    /// `upstream_cache_status` (`cache` of `json`).
    pub format: LogFormat,
    /// Size of the line buffer
    #[serde(with = "PositiveBytes")]
    #[default(Bytes::kib(64))]
    pub buffer: Bytes,
    /// Maximum delay before lines are written
    #[serde(with = "PositiveSeconds")]
    #[default(Duration::from_secs(1))]
    pub flush: Duration,
    /// Log host names (forward-confirmed reverse DNS)
    ///
    /// Only the log line waits for the name, not the response.
    pub hostnames: bool,
    /// Maximum time that a line waits for the name; then the address is logged
    ///
    /// The default is one attempt of the C library (resolv.conf(5), `timeout`). "0s": only cached names.
    #[serde(with = "Seconds")]
    #[default(HostnameLimits::default().wait)]
    pub hostname_timeout: Duration,
    /// Maximum cached host names, per process; 0: none
    ///
    /// About 150 bytes each. Several hundred are enough (Hu, 5.3.1), since a client typically makes a dozen requests.
    #[default(HostnameLimits::default().entries)]
    pub hostname_entries: usize,
    /// Time that a host name is cached
    #[serde(with = "Seconds")]
    #[default(HostnameLimits::default().time)]
    pub hostname_ttl: Duration,
    /// Time that a failed lookup is cached
    ///
    /// RFC 2308, 7.1 allows 5 minutes where no name server answers.
    #[serde(with = "Seconds")]
    #[default(HostnameLimits::default().absent_time)]
    pub hostname_negative_ttl: Duration,
    /// Whether lines are buffered; otherwise the loop writes each at once.
    #[serde(skip)]
    #[default(true)]
    pub delayed: bool,
    /// Whether the formatted time and status are reused for the next line.
    #[serde(skip)]
    #[default(true)]
    pub string_caches: bool,
}

impl LogSettings {
    /// Returns the limits of the host name cache.
    pub fn hostname_limits(&self) -> HostnameLimits {
        HostnameLimits {
            entries: self.hostname_entries,
            wait: self.hostname_timeout,
            time: self.hostname_ttl,
            absent_time: self.hostname_negative_ttl,
        }
    }
}

/// Bodies of incomplete requests to applications, and of responses to slow clients
///
/// The first 64 KiB of each are kept in memory, the rest in files without names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct SpoolSettings {
    /// Directory of these files; default $TMPDIR, or else /var/tmp, or else /tmp
    ///
    /// It should be on a disk.
    #[schemars(example = "/var/tmp")]
    pub directory: Option<PathBuf>,
    /// Maximum bytes in these files, per process; then 503
    ///
    /// All responses may use a quarter of it, and then wait for their clients. In mp it applies to each worker. 0: memory
    /// only.
    #[default(Bytes::mib(4096))]
    pub max_bytes: Bytes,
}

impl SpoolSettings {
    /// Returns the directories to try, in their order.
    pub fn directories(&self) -> Vec<PathBuf> {
        if let Some(directory) = &self.directory {
            return vec![directory.clone()];
        }
        let default = std::env::var_os("TMPDIR").filter(|name| !name.is_empty()).map(PathBuf::from);
        // /tmp is often in memory.
        default.into_iter().chain(["/var/tmp", "/tmp"].map(PathBuf::from)).collect()
    }
}

/// TLS
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct TlsSettings {
    /// Where AMPED does TLS handshakes
    pub sign: Signing,
    /// Who holds the private keys of sites; changing it requires a restart
    ///
    /// With `"process"` an attacker who can read the memory of processes that talk to clients finds no key: another process reads
    /// certificates and keys, and makes the signature of each full handshake. That costs processor time for two context switches, and errors in
    /// these files have no line of the configuration. The keys of `tls_key`, for backends, are not included.
    pub keys: KeyHolder,
    /// CA certificates (PEM) to verify client certificates, which are then requested on all addresses with TLS
    #[schemars(example = "/etc/amped/clients.pem")]
    pub client_ca: Option<PathBuf>,
    /// Whether a client must have such a certificate
    pub client_certificate: ClientCertificate,
    /// CRLs (PEM) of the CAs in `client_ca` and below them, which list the certificates that they have revoked
    ///
    /// Each certificate that a client sends is checked. It is refused if it is revoked, and also if its issuer has no list
    /// in the file or an expired one: include a list of every CA that issues such certificates. A changed file is used
    /// some seconds later, and then no session is resumed that began before.
    #[schemars(example = "/etc/amped/clients.crl")]
    pub client_crl: Option<PathBuf>,
    /// File of at least 32 random bytes from which ticket keys are derived: hosts with the same file resume each other's sessions
    ///
    /// `openssl rand -out FILE 48` creates it. Without it a server resumes only its own sessions, and none after a restart. Anyone who
    /// obtains the file can decrypt recorded TLS 1.2 sessions that used its tickets, and impersonate the server to clients that
    /// hold some: replace the file regularly to limit what a thief can read. It is read again when it changes, and
    /// tickets of the old one stay valid for 6 to 12 hours. Cannot be combined with `client_ca`.
    #[schemars(example = "/etc/amped/tickets")]
    pub ticket_secret: Option<PathBuf>,
    /// Append session secrets to the file that the environment variable SSLKEYLOGFILE names
    ///
    /// For debugging, with Wireshark for instance: anyone who can read the file can decrypt the connections.
    pub key_log: bool,
    /// Certificates that the server obtains and renews itself, for sites with `acme = true`
    pub acme: AcmeSettings,
}

/// Certificates that the server obtains and renews itself (ACME, RFC 8555), for sites with `acme = true`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct AcmeSettings {
    /// Agree to the terms of service of the CA; required
    ///
    /// Those of Let's Encrypt: `https://letsencrypt.org/repository/`
    pub agree_to_terms: bool,
    /// Address to which the CA may send warnings
    #[schemars(example = "admin@example.org")]
    pub email: Option<String>,
    /// Use the staging directory of Let's Encrypt, whose limits are generous and whose certificates no browser trusts
    ///
    /// For experiments. Its certificates are kept apart from those of other directories, so nothing has to be removed afterwards.
    pub staging: bool,
    /// URL of the CA's directory; default: that of Let's Encrypt
    #[schemars(example = "https://acme.example.org/directory")]
    #[default("https://acme-v02.api.letsencrypt.org/directory".into())]
    pub directory: String,
    /// Root certificates (PEM) that verify the directory's own TLS, instead of the system's
    ///
    /// For a private CA.
    #[schemars(example = "/etc/amped/ca.pem")]
    pub directory_ca: Option<PathBuf>,
    /// Profile to request, if the CA has several, such as `shortlived`
    #[schemars(example = &"shortlived")]
    pub profile: Option<String>,
    /// How to prove control of the names
    pub challenge: AcmeChallenge,
    /// Directory of the account and the certificates, with their keys
    ///
    /// Created with mode 0700 for `user` at the start. Not for several servers at a time.
    #[default("/var/lib/amped/acme".into())]
    pub state: PathBuf,
}

/// How control of names is proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AcmeChallenge {
    /// http-01 if an address with port 80 has no TLS, otherwise tls-alpn-01
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// A response without TLS, on port 80 of the names
    #[serde(rename = "http-01")]
    Http01,
    /// A TLS handshake, on port 443 of the names
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
}

/// Whether a client must have a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificate {
    /// Clients without one are refused
    #[default]
    Required,
    /// Applications and the log know whether a client has one
    Optional,
}

/// Where TLS handshakes are done, whose signatures take up to milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Signing {
    /// In a thread of low priority for each event loop; without a spare processor in the loop, few per iteration
    #[default]
    Helper,
    /// In the event loop, as the other architectures do
    Loop,
}

/// Who holds the private keys of sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyHolder {
    /// Each process that serves clients
    #[default]
    Server,
    /// A process of its own, which makes the signatures of all others
    Process,
}

/// How files are sent
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct SendSettings {
    /// Large files unchanged for this long are sent without a copy (sendfile)
    ///
    /// A more recent file is copied, which costs more. An in-place edit changes data that sendfile has queued for a
    /// slow client, so keep this above the time between two edits. Files that are replaced by renaming, as rsync, git
    /// and most tools do, are safe with any value. "0s" sends every file without a copy.
    #[serde(with = "Seconds")]
    #[default(Duration::from_secs(60))]
    pub sendfile_min_age: Duration,
    /// How an event loop tests whether file data is in memory
    ///
    /// All but the first are for experiments. Changing it requires a restart.
    pub residency: Residency,
    /// Where bodies are sent from
    ///
    /// Changing it requires a restart.
    pub content: ContentMode,
    /// Maximum bytes of mapped files, per worker; changing it requires a restart
    // The default is that of `content_bytes`, so that the two can be compared.
    #[default(Bytes::mib(64))]
    pub mapped_bytes: Bytes,
}

/// Where bodies are sent from (Flash, section 5.4, and its outlook on copies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ContentMode {
    /// Small files from memory, large ones from the page cache
    #[default]
    Mixed,
    /// All through memory: small files are cached, large ones are copied in pieces
    Copy,
    /// All from mappings of files, as in Flash; nothing is kept in memory
    Mmap,
    /// All from the page cache by sendfile; nothing is kept in memory
    Sendfile,
}

impl ContentMode {
    /// Returns whether small bodies are cached in memory.
    pub fn keeps_bodies(self) -> bool {
        matches!(self, ContentMode::Mixed | ContentMode::Copy)
    }
}

/// How the loop tests whether content is in memory, so that it need not wait for the disk (Flash, section 5.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// preadv2(2) with RWF_NOWAIT
    #[default]
    Nowait,
    /// mincore(2) on mapped files, as in Flash; correct for their owner and root only
    Mincore,
    /// A model of the page cache, updated from page faults and disk reads
    Clock,
    /// No test: the loop waits for the disk
    None,
}

/// Object store (S3) of the sites whose `root` is `s3://BUCKET/PREFIX`; needs `disk` in `[cache]`
///
/// Credentials are in a file or in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), or are systemd's credential
/// `s3` (`LoadCredential=s3:FILE`), and read again at a reload. Without any, requests are anonymous. `amped check` tries each bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct ObjectStorageSettings {
    /// URL of the store, without a path; default: that of Amazon S3 in `region`
    #[schemars(example = "https://s3.example.org")]
    #[serde(deserialize_with = "StoreUrl::text")]
    pub endpoint: Option<Box<str>>,
    /// Region of the buckets
    ///
    /// Most stores other than Amazon's accept the default.
    #[serde(deserialize_with = "RegionName::text")]
    #[default("us-east-1".into())]
    pub region: Box<str>,
    /// Where the name of the bucket is in requests
    pub style: AddressStyle,
    /// File with `aws_access_key_id = ID` and `aws_secret_access_key = SECRET`, as ~/.aws/credentials has
    #[schemars(example = "/etc/amped/s3")]
    pub credentials: Option<PathBuf>,
    /// CA certificates (PEM) that verify the store, instead of the system's
    #[schemars(example = "/etc/amped/ca.pem")]
    pub ca: Option<PathBuf>,
    /// Maximum time of connecting, and without a byte from the store
    #[serde(with = "PositiveSeconds")]
    #[default(Duration::from_secs(10))]
    pub timeout: Duration,
    /// Time after which the store is asked whether an object is current, unless its Cache-Control says otherwise
    #[serde(with = "Seconds")]
    #[default(Duration::from_secs(10))]
    pub revalidate: Duration,
    /// Maximum time for which an object that is not current is served while the store fails; then 503
    #[serde(with = "Seconds")]
    #[default(Duration::from_secs(3600))]
    pub stale_max: Duration,
    /// Maximum size of an object; larger ones get 503
    #[serde(with = "PositiveBytes")]
    #[default(Bytes::mib(1024))]
    pub max_object: Bytes,
    /// Size of the parts in which larger objects are fetched, in whole 256 KiB
    ///
    /// The first byte is sent when the part that has it has arrived. Small parts arrive sooner, large ones need fewer requests.
    #[serde(with = "PositiveBytes")]
    #[default(Bytes::mib(4))]
    pub window: Bytes,
}

/// Where the name of a bucket is in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AddressStyle {
    /// In the path: `https://ENDPOINT/BUCKET/KEY`
    #[default]
    Path,
    /// In the host name: `https://BUCKET.ENDPOINT/KEY`
    Host,
}

forms! {
    /// URL of an object store.
    StoreUrl: |text| is_store_url(text) => text.trim_end_matches('/'),
        "is not the URL of a store",
        "write one without a path, such as `https://s3.example.org` or `http://127.0.0.1:9000`; the bucket belongs to `root`";

    /// Region of an object store.
    RegionName: |text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') => text,
        "is not a region",
        "write one such as `eu-central-1`, or remove the key";
}

fn is_store_url(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    host.map(|host| host.trim_end_matches('/')).is_some_and(|host| {
        !host.starts_with(':') && host_of(host.as_bytes()).is_some_and(|host| !host.name.is_empty())
    })
}

/// Control socket
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct ControlSettings {
    /// Socket for `amped preload` and `amped acme`; only the server's user and root may open it
    ///
    /// Its directory should belong to that user, so that the server can remove the socket at exit.
    #[schemars(example = "/run/amped/control")]
    pub socket: Option<PathBuf>,
}

/// Metrics of requests, caches, helpers and event loops; changing them requires a restart
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct MetricsSettings {
    /// File in memory, such as in /run, for `ammeter monitor`
    ///
    /// `ammeter monitor` finds it automatically. Event loops write it, so it must not be on a disk.
    #[schemars(example = "/run/amped/metrics")]
    pub file: Option<PathBuf>,
    /// Address that serves /metrics (OpenMetrics)
    #[schemars(example = "127.0.0.1:9145")]
    pub listen: Option<Address>,
    /// Serve metrics to other machines; otherwise `listen` must be a loopback address
    pub public: bool,
}

/// Shutdown and upgrade
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct StopSettings {
    /// Time for responses in progress to complete
    #[serde(with = "Seconds")]
    #[default(Duration::from_secs(10))]
    pub deadline: Duration,
    /// Time for the new process of an upgrade to start; then it is ended, and the old one goes on
    #[serde(with = "Seconds")]
    #[default(Duration::from_secs(60))]
    pub upgrade_timeout: Duration,
}

/// Limits on the server itself, so that a fault in it cannot be used against the machine; changing them requires a restart
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct ContainSettings {
    /// Ignore set-uid bits and file capabilities of programs that the server starts (`no_new_privs`)
    ///
    /// With `false`, scripts can call `sudo` or a set-uid `sendmail`.
    #[default(true)]
    pub no_new_privs: bool,
    /// Drop all capabilities once the ports are bound
    ///
    /// A server that serves as root then reads only what its owner or all may read, and a reload cannot add a port below 1024.
    #[default(true)]
    pub drop_capabilities: bool,
    /// Open only the files that the configuration names at the start, where the kernel has Landlock (Linux 5.13)
    ///
    /// A fault in the server then cannot read other files, write to sites or execute programs. Scripts and other programs that it starts are
    /// not limited. A reload that needs other files is refused, and of a root that was replaced by another directory all files are, until `amped upgrade`.
    pub landlock: bool,
    /// Answer to a system call that the server does not need, where the kernel has seccomp
    ///
    /// A fault in the server then cannot execute programs, create namespaces, trace processes or load code into the kernel. Scripts and other
    /// programs that it starts are not limited, but a reload that needs others is refused until `amped upgrade`.
    pub seccomp: Seccomp,
    /// Allow core dumps, which contain passwords and private keys, and debuggers of the same user
    pub core_dumps: bool,
}

/// The answer to a system call that the server does not need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Seccomp {
    /// It is executed: calls are not limited
    #[default]
    Off,
    /// It fails (EPERM), and the server goes on
    Refuse,
    /// The process ends (SIGSYS), and the kernel logs the call: to find out what is missing from the list
    Kill,
}

impl Seccomp {
    /// Returns what the kernel is to do; `None`: calls are not limited.
    pub fn refusal(self) -> Option<Refusal> {
        match self {
            Seccomp::Off => None,
            Seccomp::Refuse => Some(Refusal::Error),
            Seccomp::Kill => Some(Refusal::Kill),
        }
    }
}

/// The destination of the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("minLength" = 1))]
pub enum LogTarget {
    /// Nowhere.
    #[default]
    Off,
    /// Standard output.
    Stdout,
    /// This file, which is appended to.
    File(PathBuf),
}

impl TryFrom<String> for LogTarget {
    type Error = &'static str;

    /// Parses a target. A file named `off` or `-` must be written `./off` or `./-`.
    fn try_from(text: String) -> Result<LogTarget, &'static str> {
        match text.as_str() {
            "" => Err("`access` is empty\nwrite a file, \"-\" for standard output, or \"off\""),
            "off" => Ok(LogTarget::Off),
            "-" => Ok(LogTarget::Stdout),
            _ => Ok(LogTarget::File(text.into())),
        }
    }
}

impl From<LogTarget> for String {
    fn from(target: LogTarget) -> String {
        match target {
            LogTarget::Off => "off".to_owned(),
            LogTarget::Stdout => "-".to_owned(),
            LogTarget::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

/// An address and port to listen on, written `ADDR:PORT` or `*:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address(pub SocketAddr);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

written_as_text!(Address, |text| of_address(text, parse_listen(text.trim()).map(Address)), "format": "address");

/// Adds to the remedy of an address what the problem is.
fn of_address<T>(text: &str, parsed: Result<T, String>) -> Result<T, String> {
    parsed.map_err(|help| format!("`{text}` is not an address and port\n{help}"))
}

/// How connections begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnectionStart {
    /// With TLS.
    pub tls: bool,
    /// With a header of the PROXY protocol, which precedes TLS.
    pub proxy: bool,
}

/// An address and port of clients, written as an [`Address`], with ` tls` after it if they must use TLS, and ` proxy` if
/// a proxy sends the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listen {
    /// The address and port.
    pub address: SocketAddr,
    /// How connections begin.
    pub start: ConnectionStart,
}

impl Listen {
    /// Reads `ADDR:PORT`, followed by `tls`, `proxy`, or both.
    ///
    /// # Errors
    /// The remedy.
    pub fn parse(text: &str) -> Result<Listen, String> {
        let mut words = text.split_ascii_whitespace();
        let (address, mut start) = (words.next().unwrap_or_default(), ConnectionStart::default());
        for word in words {
            let option = match word {
                "tls" => &mut start.tls,
                "proxy" => &mut start.proxy,
                _ => return Err(format!("only `tls` and `proxy` may follow the port: `{address} tls`")),
            };
            if std::mem::replace(option, true) {
                return Err(format!("write `{word}` once"));
            }
        }
        parse_listen(address).map(|address| Listen { address, start })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConnectionStart { tls, proxy } = self.start;
        write!(f, "{}{}{}", self.address, if tls { " tls" } else { "" }, if proxy { " proxy" } else { "" })
    }
}

written_as_text!(Listen, |text| of_address(text, Listen::parse(text)), "format": "address");

/// Parses `ADDR:PORT`, with an IPv6 address in brackets, or `*:PORT` for every address. The error is the remedy.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix("*:").and_then(number) {
        return Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let port = text.strip_prefix(':').unwrap_or(text);
    Err(if let Some(port) = number(port) {
        format!("add the address: `*:{port}` for all addresses, `127.0.0.1:{port}` for this machine only")
    } else {
        match text.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => format!("add the port: `{address}:8080`"),
            Ok(IpAddr::V6(address)) => format!("add brackets and the port: `[{address}]:8080`"),
            Err(_) => "write an IP address and a port up to 65535: `127.0.0.1:8080`, `[::1]:8080`, or `*:8080` for \
                       all addresses"
                .to_owned(),
        }
    })
}

/// Parses a number of digits only; `parse` would accept a plus sign too.
pub(super) fn number(text: &str) -> Option<u16> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
