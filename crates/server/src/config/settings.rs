//! The checked settings of a server: plain values that the rest of the crate reads.
//!
//! `checked` makes them from flags and file; nothing here knows where a value came from. A value of these types needs no
//! second check: an address can be bound, a root was a directory, a limit is in its range. Each field names its default.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use amped_core::cache::Budgets;
use amped_core::cache::hostname::HostnameLimits;
use amped_core::limits::Limits;
use amped_core::site::Sites;
use amped_units::Bytes;
use clap::ValueEnum;
use serde::Deserialize;

use super::optimise::Optimise;

/// Everything a server is told at its start. It does not change afterwards: a SIGHUP makes another one.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses to listen on, at least one; default 127.0.0.1:8080. `[::]` stands for all, IPv4 included.
    pub listen: Vec<SocketAddr>,
    /// Who waits for the network and who for the disk; default AMPED.
    pub architecture: Architecture,
    /// Event loops, 1 or more; default 1.
    pub workers: usize,
    /// Name of the user to become once the ports are open; default: stay who we are.
    pub user: Option<String>,
    /// Name of the group to become; default: the user's own.
    pub group: Option<String>,
    /// The helpers of each worker.
    pub helpers: HelperSettings,
    /// The access log.
    pub log: LogSettings,
    /// What one client may cost.
    pub limits: Limits,
    /// Most connections of the whole server; `None`: as many as the descriptor limit bears.
    pub connections: Option<usize>,
    /// What the caches of one worker may hold.
    pub budgets: Budgets,
    /// The cache that processes of MP have in common, if they are to have one.
    pub shared_cache: Option<SharedSettings>,
    /// The optimisations that are on.
    pub optimise: Optimise,
    /// How bodies are sent.
    pub send: SendSettings,
    /// Where bodies are stored.
    pub spool: SpoolSettings,
    /// How long replies under way may take once the server is told to stop; default 10 s.
    pub stop_deadline: Duration,
    /// Whether folders of known names are watched, so that a change is seen at once; default no: it costs a watch for each
    /// folder (in MP once more for each process), of which the system has only so many for a user, wakes workers for each
    /// change in a busy folder, and hears nothing of what is changed on other hosts. Without it a second is what it saves.
    pub watch: bool,
    /// The socket at which `amped preload` reaches the server, an absolute path; default none.
    pub control: Option<PathBuf>,
    /// What is told to whoever watches.
    pub metrics: MetricsSettings,
    /// The sites; the first is the default one.
    pub sites: Arc<Sites>,
    /// Where each site's files lie: `roots[site.number]`.
    pub roots: Vec<SiteRoot>,
    /// Files of names and passwords, absolute paths: those of a guard are at `accounts[guard.accounts]`.
    pub accounts: Vec<PathBuf>,
    /// Wrong passwords from one address within a minute, before more are refused unseen.
    pub max_password_attempts: Option<NonZeroU32>,
    /// How each site's applications run: `apps[site.number][rule]`, with the rules of the site.
    pub apps: Vec<Vec<AppSettings>>,
}

/// Who waits for the network, and who for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// One loop for the network, helpers for the disk
    #[default]
    Amped,
    /// One loop for both: all wait when one waits for the disk
    Sped,
    /// A thread for each connection, out of a pool
    Mt,
    /// A process for each connection, out of a pool
    Mp,
}

/// What an architecture is made of, and so what may be asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Workers, unless the operator says how many: loops, or the threads or processes of a pool.
    pub workers: usize,
    /// What a worker is called.
    pub worker: &'static str,
    /// The workers are a pool: each has one connection at a time, and all take them from the same listeners.
    pub pool: bool,
    /// Workers are processes, under a parent that replaces those that die.
    pub processes: bool,
    /// Each worker has helpers who wait for the disk in its place.
    pub helpers: bool,
    /// All workers share one set of caches, as threads can.
    pub shared_caches: bool,
}

/// The table of what goes with what.
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

/// What an application is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppKind {
    /// A process for each request.
    Cgi,
    /// One that lives on, and listens at this socket.
    Unix(PathBuf),
    /// One that lives on, and listens at this address.
    Tcp(SocketAddr),
    /// One that lives on, and is started here: program and arguments, at least the first.
    Command(Vec<String>),
}

/// How the applications of a rule run. When it is one's turn, and how much it may say, is core's `AppRule`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSettings {
    /// What they are.
    pub kind: AppKind,
    /// Whether their scripts are files of the site, and what is none is answered 404 here; default for patterns with a star.
    /// Always so for processes of their own.
    pub files: bool,
    /// Kept while there is nothing to do: processes of a command (default 1), or idle connections to an application that is
    /// not ours (default 0, since each idle connection takes a process of most applications away from others).
    /// `min_spare <= max_processes`
    pub min_spare: usize,
    /// Most requests that it has at a time, over the whole server, 1 or more; `None`: no limit, the default for an
    /// application that is not ours, which has a queue of its own. For scripts and commands 20: what they compute is shared
    /// among few cores in any case, and each holds some MiB.
    pub max_processes: Option<usize>,
    /// Requests that may wait for one; default 1000. Beyond it requests are answered 503.
    pub max_queue: usize,
    /// Whether requests are whole before it gets them; default yes. Those in chunks are in any case: it is told their length.
    pub buffer_request: bool,
    /// Whether responses are read further than clients have taken them, so that a slow client holds no process; default yes.
    pub buffer_response: bool,
    /// Variables that it gets besides those of CGI. It has no others: nothing is inherited.
    pub env: Vec<(Box<str>, Box<str>)>,
}

impl AppSettings {
    /// Whether these run as those do, so that what runs of one may serve the other.
    pub fn is_run_alike(&self, other: &AppSettings) -> bool {
        let (files, buffer_request, buffer_response) = (self.files, self.buffer_request, self.buffer_response);
        *self == AppSettings { files, buffer_request, buffer_response, ..other.clone() }
    }
}

/// Where a site's files lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteRoot {
    /// An absolute path. It was a folder that could be entered when the settings were made.
    pub path: PathBuf,
}

/// The helpers of one worker: they wait for the disk in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperSettings {
    /// What they are; default threads.
    pub kind: HelperKind,
    /// Most helpers, 1 or more; default 16. Enough to keep a disk's queue full, few enough not to crowd a core.
    pub max: usize,
    /// Helpers that are kept when there is nothing to do, so that the next cold request finds one; default 2.
    /// `min_spare <= max`
    pub min_spare: usize,
    /// Work that may wait for a helper, 1 or more; default 512. Beyond it requests are answered 503.
    pub max_queue: usize,
    /// A helper without work ends after this; default 10 s.
    pub idle_timeout: Duration,
}

/// What helpers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum HelperKind {
    /// Threads of the server: nothing is copied
    #[default]
    Threads,
    /// Processes beside it, as in Flash: one that dies takes only its task with it, which is asked again
    Processes,
}

/// What is told to whoever watches, see [`metrics`](crate::metrics). All of it is fixed at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsSettings {
    /// The file in which the loops publish what they count, an absolute path; default none.
    pub file: Option<PathBuf>,
    /// The address at which it is asked for; default none. A loopback address, unless `public`.
    pub listen: Option<SocketAddr>,
    /// Whether other machines may ask; default no.
    pub public: bool,
}

/// Bodies of applications' requests and responses that are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpoolSettings {
    /// The directory of the files, which have no names; default `$TMPDIR`, else /var/tmp, else /tmp.
    pub directory: Option<PathBuf>,
    /// Most bytes in them, of a process; default 4 GiB. A response takes a quarter of it at most, as nginx gives it 1 GiB.
    pub max_bytes: Bytes,
}

/// How bodies are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSettings {
    /// A large file that has been left alone for longer is lent to sockets (sendfile) instead of copied; default 60 s.
    /// While lent bytes wait for their client an edit in place still reaches them, and zero lends at once.
    pub sendfile_min_age: Duration,
    /// How the loop finds out what is in memory. Fixed at the start.
    pub residency: Residency,
    /// Where bodies are sent from. Fixed at the start.
    pub content: ContentMode,
    /// Bytes of files that each worker keeps mapped; default 64 MiB, as the bodies in memory have, so that the two can be
    /// compared. Zero unmaps at once. Fixed at the start.
    pub mapped_bytes: Bytes,
}

/// Where bodies are sent from (Flash, section 5.4, and its outlook on copies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ContentMode {
    /// Small files from memory, large ones from the page cache
    #[default]
    Mixed,
    /// All through memory: small files are kept there, large ones copied piece by piece
    Copy,
    /// All from mappings of files, as Flash does; nothing is kept in memory
    Mmap,
    /// All from the page cache by sendfile; nothing is kept in memory
    Sendfile,
}

impl ContentMode {
    /// Whether small bodies are kept in memory.
    pub fn keeps_bodies(self) -> bool {
        matches!(self, ContentMode::Mixed | ContentMode::Copy)
    }
}

/// How the loop finds out whether content is in memory, so that it need not wait for the disk (Flash, section 5.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// By preadv2(RWF_NOWAIT), which tells everybody the truth
    #[default]
    Nowait,
    /// By mincore(2) on mapped files, as Flash does; it tells the truth to their owner and to root alone
    Mincore,
    /// By a guess: a model of the page cache that learns from page faults and disk reads
    Clock,
    /// Not at all: the loop waits for the disk
    None,
}

/// What the cache that processes of MP share may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSettings {
    /// Bytes of entries, in whole blocks of 512. The tables that lead to them come on top: 8 bytes for each block and 72 for
    /// each entry.
    pub bytes: Bytes,
    /// Bodies up to this size are kept.
    pub file_max: Bytes,
    /// Names.
    pub entries: usize,
}

/// The access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Where it goes; default nowhere.
    pub access: LogTarget,
    /// The form of a line; default combined.
    pub format: LogFormat,
    /// Lines are gathered up to this many bytes before they are written; default 64 KiB.
    pub buffer: Bytes,
    /// Lines are gathered no longer than this; default 1 s.
    pub flush: Duration,
    /// Whether they are gathered at all; else the loop writes each.
    pub delayed: bool,
    /// Whether the texts of time and status are kept from one line to the next.
    pub string_caches: bool,
    /// Whether clients are called by their names in the DNS; default no.
    pub hostnames: bool,
    /// How long these are waited for and believed.
    pub hostname: HostnameLimits,
}

/// Where the access log goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    /// Nowhere.
    #[default]
    Off,
    /// To standard output.
    Stdout,
    /// To the end of this file.
    File(PathBuf),
}

impl From<&std::ffi::OsStr> for LogTarget {
    /// A file that is named `off` or `-` is written `./off`.
    fn from(text: &std::ffi::OsStr) -> LogTarget {
        match text.as_encoded_bytes() {
            b"off" => LogTarget::Off,
            b"-" => LogTarget::Stdout,
            _ => LogTarget::File(text.into()),
        }
    }
}

/// The form of a line of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Common Log Format
    Common,
    /// Common, and Referer and User-Agent
    #[default]
    Combined,
    /// One JSON object a line
    Json,
}

/// Reads `ADDR:PORT`, with an IPv6 address in brackets, or `*:PORT` for every address. The error is the way out.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix("*:").and_then(number) {
        return Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let port = text.strip_prefix(':').unwrap_or(text);
    Err(if let Some(port) = number(port) {
        format!("give the address too: `*:{port}` for every one, `127.0.0.1:{port}` for this machine alone")
    } else {
        match text.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => format!("give the port too: `{address}:8080`"),
            Ok(IpAddr::V6(address)) => format!("give the port too, and brackets: `[{address}]:8080`"),
            Err(_) => "write an address, not a name, and a port of at most 65535: `127.0.0.1:8080`, `[::1]:8080` or \
                       `*:8080` for every address"
                .to_owned(),
        }
    })
}

/// A number in digits alone; `parse` would take a plus sign too.
pub(super) fn number(text: &str) -> Option<u16> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
