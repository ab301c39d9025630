//! CGI: one process per request (CGI/1.1, RFC 3875). Starts it, passes the request's variables, and handles its end.
//!
//! The process leads its own process group, so that its children can be ended with it. It gets three pipes and nothing
//! else from the server: no descriptors, no variables. No shell is involved: the script file is executed directly.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use amped_core::app::{AppTrouble, AppWork};
use amped_core::event::Ticket;
use amped_http::cgi::decimal;
use amped_http::h1::request_fields::{ClientConnection, ClientSession};
use amped_http::proxy_header::ProxiedEnds;
use amped_http::status::Status;
use amped_sys::file::Patience;
use amped_sys::pipe::{self, Pipe};
use amped_sys::{file, socket};

use super::backend::Backend;
use super::connection::BackendConnection;
use super::launch::{Launch, Life, PATH, ProgramFile, Stream, variable};
use super::manager::{ProcessManager, start_program};
use super::process::Process;
use super::scripts::Found;
use super::semaphore::Permit;
use super::upstream::Upstream;
use crate::counters::{HttpCounts, Negotiated};
use crate::disk::{Disk, Script};
use crate::say;
use crate::token::Token;

/// The name and value of a meta-variable.
pub type Variable<'a> = (&'a [u8], Cow<'a, [u8]>);

/// A request that needs the disk before it can start.
#[derive(Debug)]
pub struct Job {
    /// The connection.
    pub token: Token,
    /// The ticket of its request.
    pub ticket: Ticket,
    /// The request.
    pub work: Box<AppWork>,
    /// Properties of the request that the core does not have: addresses and file locations.
    pub place: Place,
    /// The permit that it holds.
    pub permit: Permit,
    /// An open connection that the permit was used with before.
    pub kept: Option<BackendConnection>,
    /// When the job was created.
    pub created: Instant,
}

/// The name of a request, unique on this machine.
#[derive(Clone, Debug, Default)]
pub struct RequestName {
    /// The process ID and loop.
    pub of_loop: Arc<str>,
    /// Its number in the loop.
    pub number: u64,
}

impl fmt::Display for RequestName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{:x}", self.of_loop, self.number)
    }
}

/// The connection, rule and disk of a request.
#[derive(Clone, Debug)]
pub struct Place {
    /// The addresses of the client's connection.
    pub ends: Arc<Ends>,
    /// Identifies the request in messages about its script; the lowest number in a loop is served first.
    pub id: RequestName,
    /// The user that its script runs as; `None`: the server's.
    pub user: Option<Box<str>>,
    /// Variables that the rule adds.
    pub env: Arc<[(Box<str>, Box<str>)]>,
    /// Where scripts are looked up.
    pub disk: Arc<Disk>,
    /// The process that starts them, if this one may not.
    pub launcher: Option<Arc<ProcessManager>>,
    /// The persistent application; `None`: each request has its own process.
    pub backend: Option<Arc<Backend>>,
    /// The backends of a forwarded request, of which `backend` is one.
    pub upstream: Option<Arc<Upstream>>,
    /// The number of `backend` among them.
    pub member: usize,
    /// Those that were tried without success, as a set of bits.
    pub tried: u64,
    /// Scripts are files of the site; otherwise the application finds its own.
    pub files: bool,
    /// The backend in the last `Output::Started`, if the request has waited for room in an application's queue.
    pub reported: Option<usize>,
}

impl Place {
    /// Chooses the backend of a forwarded request. Returns `false` if all were tried.
    pub(super) fn choose(&mut self, work: &AppWork) -> bool {
        let Some(upstream) = &self.upstream else { return true };
        let field = upstream.settings().hash_field.as_deref();
        let value = field.and_then(|field| Some(work.forward.as_ref()?.field(field)));
        let client = work.client.map(|client| client.to_string());
        let client = client.as_deref().or(self.ends.peer()).map(str::as_bytes);
        let key = value.filter(|value| !value.is_empty()).or(client);
        let Some(member) = upstream.pick(self.tried, key.unwrap_or_default()) else { return false };
        (self.backend, self.member) = (Some(Arc::clone(upstream.backend(member))), member);
        true
    }

    /// The backend of a forwarded request has failed: counts that, and chooses another. Returns `false` if there is none.
    pub(super) fn try_another(&mut self, work: &AppWork, counts: &mut HttpCounts) -> bool {
        let Some(upstream) = &self.upstream else { return false };
        counts.failures += 1;
        counts.outages += u64::from(upstream.note_failure(self.member));
        self.leave(work)
    }

    /// Chooses another backend for a forwarded request. Returns `false` if there is none.
    pub(super) fn leave(&mut self, work: &AppWork) -> bool {
        self.tried |= 1 << self.member;
        self.choose(work)
    }

    /// Returns whether a response with this status is a failure of the backend.
    pub(super) fn is_failure(&self, status: Status) -> bool {
        self.upstream.as_ref().is_some_and(|upstream| upstream.settings().is_failure(status))
    }
}

/// The two addresses of a connection and its TLS session, for applications. Determined once per connection.
#[derive(Clone, Debug)]
pub struct Ends {
    /// The other end's address and port.
    peer: Option<(String, Vec<u8>)>,
    /// The server's address and port.
    local: Option<(String, Vec<u8>)>,
    tls: Option<Negotiated>,
}

impl Ends {
    /// Reads the addresses of a socket, unless a proxy has named those of its client's connection.
    pub fn of(socket: BorrowedFd<'_>, proxied: Option<ProxiedEnds>, tls: Option<Negotiated>) -> Ends {
        let text = |address: SocketAddr| (address.ip().to_canonical().to_string(), decimal(address.port().into()));
        let (peer, local) = match proxied {
            Some(ends) => (Some(ends.client), Some(ends.server)),
            None => (socket::peer_address(socket).ok(), socket::local_address(socket).ok()),
        };
        Ends { peer: peer.map(text), local: local.map(text), tls }
    }

    /// Returns the address of the connection's other end, without its port: the client's, or a proxy's that names the
    /// client of each request.
    pub fn peer(&self) -> Option<&str> {
        self.peer.as_ref().map(|(address, _)| address.as_str())
    }

    /// Returns the connection as fields of forwarded requests show it.
    pub fn connection(&self) -> ClientConnection<'_> {
        let port = self.local.as_ref().and_then(|(_, port)| std::str::from_utf8(port).ok()?.parse().ok());
        let tls = self.tls.as_ref().map(|tls| ClientSession {
            version: tls.version.as_protocol(),
            cipher: tls.suite,
            subject: tls.subject.as_deref(),
        });
        ClientConnection { peer: self.peer(), port, tls }
    }

    /// Returns the same, without the subject of the client's certificate.
    pub fn without_subject(&self) -> Ends {
        let tls = self.tls.clone().map(|tls| Negotiated { subject: None, ..tls });
        Ends { tls, ..self.clone() }
    }
}

/// The result of a job.
#[derive(Debug)]
pub struct Started {
    /// The connection.
    pub token: Token,
    /// The ticket of its request.
    pub ticket: Ticket,
    /// The process or the connection, or the error.
    pub result: Result<AppStart, AppTrouble>,
}

/// How a request was started.
#[derive(Debug)]
pub enum AppStart {
    /// By its own process.
    Runs(Running),
    /// Not yet: its script was found, and the persistent application can be called.
    Found(Box<Job>, Found),
}

/// A running process and the server's ends of its pipes.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub process: Process,
    /// Its standard input; `None` once the body is complete, or the process has closed it.
    pub stdin: Option<OwnedFd>,
    /// Its standard output; `None` after its end.
    pub stdout: Option<OwnedFd>,
    /// Its standard error.
    pub stderr: Option<OwnedFd>,
}

impl Job {
    /// Finds the script, and starts its process if it has its own. Waits for the disk.
    pub fn perform(self) -> Started {
        let (token, ticket) = (self.token, self.ticket);
        if let Some(backend) = self.place.backend.clone() {
            let found = self.find(&backend);
            let result = found.map(|found| AppStart::Found(Box::new(self), found));
            return Started { token, ticket, result };
        }
        let Job { work, place, permit, .. } = self;
        let (mut tries, mut permit) = (0, Some(permit));
        let result = loop {
            let script = match place.disk.script(work.site, &work.path, &work.ends) {
                Ok(script) => script,
                Err(trouble) => break Err(trouble),
            };
            let path = script.path.clone();
            let variables = variables(&work, &place, script.end, &path);
            match start(script, &variables, work.has_body, &place, &mut permit) {
                // The script was replaced at this moment.
                Err(error) if error.kind() == io::ErrorKind::StaleNetworkFileHandle && tries < TRIES => tries += 1,
                result => break result.map_err(|error| trouble_of(&error, &place.id, &path)),
            }
        };
        Started { token, ticket, result: result.map(AppStart::Runs) }
    }

    fn find(&self, backend: &Backend) -> Result<Found, AppTrouble> {
        let Job { work, place, .. } = self;
        let found = match place.files {
            true => {
                let script = place.disk.script(work.site, &work.path, &work.ends)?;
                (script.end, script.path.into())
            }
            false => {
                let root = place.disk.root_of(work.site).unwrap_or(Path::new("/"));
                (work.ends[0], root.join(relative(&work.path[..work.ends[0]])).into())
            }
        };
        if self.kept.is_none() {
            backend.prepare(&self.permit);
        }
        Ok(found)
    }
}

/// Attempts to start a script that is being replaced.
const TRIES: usize = 10;

/// Returns the error for a request whose script cannot be started.
fn trouble_of(error: &io::Error, id: &RequestName, script: &Path) -> AppTrouble {
    match error.kind() {
        io::ErrorKind::PermissionDenied => AppTrouble::Forbidden,
        _ if file::is_exhaustion(error) || error.kind() == io::ErrorKind::WouldBlock => {
            say!("{id} cannot start {}: {error}", script.display());
            AppTrouble::Busy
        }
        _ => {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => " (the interpreter in its first line does not exist, or it ends in CR LF)",
                _ => "",
            };
            say!("{id} cannot start {}: {error}{hint}", script.display());
            AppTrouble::Unreachable
        }
    }
}

/// Returns all meta-variables of a request. `script` and `end` are the script's name and where it ends in the path.
pub fn variables<'a>(work: &'a AppWork, place: &'a Place, end: usize, script: &'a Path) -> Vec<Variable<'a>> {
    let root = place.disk.root_of(work.site).unwrap_or(Path::new("/"));
    let of_head = work.variables.iter().map(|(name, value)| (&name[..], Cow::from(value)));
    let mut variables = Vec::with_capacity(work.variables.len() + VARIABLES_MAX + place.env.len());
    variables.extend(of_head);
    // No variable derived from the head has one of these names, except SERVER_NAME.
    let mut put = |name: &'static str, value: &'a [u8]| variables.push((name.as_bytes(), Cow::from(value)));
    put("PATH", PATH.as_bytes());
    put("DOCUMENT_ROOT", root.as_os_str().as_bytes());
    put("SCRIPT_NAME", &work.path[..end]);
    put("SCRIPT_FILENAME", script.as_os_str().as_bytes());
    // The port of a client that a proxy has named is unknown.
    if let (None, Some((address, port))) = (work.client, &place.ends.peer) {
        put("REMOTE_ADDR", address.as_bytes());
        put("REMOTE_PORT", port);
    }
    if let Some((address, port)) = &place.ends.local {
        put("SERVER_ADDR", address.as_bytes());
        put("SERVER_PORT", port);
        // 4.1.14: never empty.
        if !work.variables.iter().any(|(name, _)| name == b"SERVER_NAME") {
            put("SERVER_NAME", address.as_bytes());
        }
    }
    // The names of Apache's mod_ssl.
    if let Some(tls) = &place.ends.tls {
        put("SSL_PROTOCOL", tls.version.as_protocol().as_bytes());
        put("SSL_CIPHER", tls.suite.as_bytes());
        put("SSL_CLIENT_VERIFY", if tls.subject.is_some() { b"SUCCESS" } else { b"NONE" });
        put("SSL_CLIENT_S_DN", tls.subject.as_deref().unwrap_or_default().as_bytes());
    }
    variables.push((b"UNIQUE_ID", place.id.to_string().into_bytes().into()));
    if let Some(client) = work.client {
        variables.push((b"REMOTE_ADDR", client.to_string().into_bytes().into()));
    }
    // RFC 3875, 4.1.5 and 4.1.6: both, or neither.
    if end < work.path.len() {
        let translated = [root.as_os_str().as_bytes(), &work.path[end..]].concat();
        variables.push((b"PATH_INFO", work.path[end..].into()));
        variables.push((b"PATH_TRANSLATED", translated.into()));
    }
    for (name, value) in &*place.env {
        variables.retain(|(known, _)| *known != name.as_bytes());
        variables.push((name.as_bytes(), value.as_bytes().into()));
    }
    variables
}

/// Maximum variables not derived from the head.
const VARIABLES_MAX: usize = 16;

/// Starts a script. The file that was found is executed, whatever its name refers to by then. The interpreter of a `#!`
/// script opens it once more by name, so what the name refers to is compared at the last moment.
fn start(
    script: Script,
    variables: &[Variable<'_>],
    has_body: bool,
    place: &Place,
    permit: &mut Option<Permit>,
) -> io::Result<Running> {
    let stdin = if has_body { Some(pipe::to_program()?) } else { None };
    let (stdout, stderr) = (pipe::from_program()?, pipe::from_program()?);
    let Script { path: script, file, .. } = script;
    let mut launch = Launch::new(&script, Life::Request);
    launch.user = place.user.clone();
    launch.variables = variables.iter().map(|(name, value)| variable(name, value)).collect();
    // RFC 3875, 7.2: the script's own directory.
    launch.folder = Some(script.parent().unwrap_or(Path::new("/")).into());
    launch.streams = [if has_body { Stream::Given } else { Stream::Null }, Stream::Given, Stream::Given];
    let (stdin, its_stdin) = stdin.map_or((None, None), |Pipe { ours, theirs }| (Some(ours), Some(theirs)));
    let mut descriptors: Vec<OwnedFd> = its_stdin.into_iter().chain([stdout.theirs, stderr.theirs]).collect();
    let mut beginning = [0; 2];
    let is_interpreted = file::read_at(&file, &mut beginning, 0, Patience::Wait)? == 2 && beginning == *b"#!";
    launch.file = if is_interpreted {
        let state = file::status(&file)?;
        ProgramFile::Expected { device: state.device, inode: state.inode }
    } else {
        descriptors.push(file);
        ProgramFile::Given
    };
    let process = start_program(place.launcher.as_deref(), &launch, descriptors, permit)?;
    Ok(Running { process, stdin, stdout: Some(stdout.ours), stderr: Some(stderr.ours) })
}

/// Returns a clean path without its leading slash, relative to a root.
pub fn relative(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))
}
