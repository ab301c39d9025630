//! A process for each request (CGI/1.1, RFC 3875): how one is started, what it is told, and how it comes to its end.
//!
//! It leads a process group of its own, so that what it starts can be ended with it, and has three pipes and nothing else of
//! the server's: no descriptor, no variable. There is no shell between: the script's file is what is executed.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use amped_core::app::{AppTrouble, AppWork};
use amped_core::event::Ticket;
use amped_http::cgi::{Variables, decimal};
use amped_sys::pipe::{self, Pipe};
use amped_sys::{file, poll, process};

use super::fastcgi::{Backend, Talk};
use super::gate::Pass;
use crate::disk::Disk;
use crate::say;
use crate::worker::Token;

/// Where a script finds programs, which the standard leaves to the server (RFC 3875, 7.2).
const PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// A process that is to be started.
pub struct Job {
    /// Who asked, and under which ticket.
    pub token: Token,
    /// The same.
    pub ticket: Ticket,
    /// What is asked.
    pub work: Box<AppWork>,
    /// What only the server knows of the request.
    pub place: Place,
    /// The place that it takes.
    pub pass: Pass,
    /// A connection that the place has been used with.
    pub kept: Option<OwnedFd>,
}

/// Where a request was made, by whom, and under which rules.
#[derive(Clone, Debug)]
pub struct Place {
    /// The client.
    pub peer: Option<SocketAddr>,
    /// Our end of its connection.
    pub local: Option<SocketAddr>,
    /// By which what a script complains of is told apart.
    pub id: String,
    /// What the rule adds to the variables.
    pub env: Arc<[(Box<str>, Box<str>)]>,
    /// Where scripts are found.
    pub disk: Arc<Disk>,
    /// The application that lives on; `None`: each request has a process of its own.
    pub backend: Option<Arc<Backend>>,
}

/// What came of it.
#[derive(Debug)]
pub struct Started {
    /// Who asked, and under which ticket.
    pub token: Token,
    /// The same.
    pub ticket: Ticket,
    /// The process or the connection, or why there is none.
    pub result: Result<Begun, AppTrouble>,
}

/// How a request was begun.
#[derive(Debug)]
pub enum Begun {
    /// By a process of its own.
    Runs(Running),
    /// On a connection to an application that lives on.
    Talks(Box<Talk>),
}

/// A process that runs, and our ends of its pipes.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub process: Process,
    /// It reads from this; `None` once it has been given everything, or wants no more.
    pub stdin: Option<OwnedFd>,
    /// It answers here; `None` at its end.
    pub stdout: Option<OwnedFd>,
    /// It complains here.
    pub stderr: Option<OwnedFd>,
}

impl Job {
    /// Starts the process. Waits for the disk.
    pub fn perform(self) -> Started {
        let Job { token, ticket, work, place, pass, kept } = self;
        if let Some(backend) = place.backend.clone() {
            let result = backend.begin((work, place), pass, kept).map(|talk| Begun::Talks(Box::new(talk)));
            return Started { token, ticket, result };
        }
        let result = place.disk.script(work.site, &work.path, &work.ends).and_then(|(end, script)| {
            let variables = variables(&work, &place, end, &script);
            start(&script, &variables, work.has_body, pass).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => AppTrouble::Forbidden,
                _ if file::is_exhaustion(&error) || error.kind() == io::ErrorKind::WouldBlock => {
                    say!("{} cannot start {}: {error}", place.id, script.display());
                    AppTrouble::Busy
                }
                _ => {
                    let hint = match error.kind() {
                        io::ErrorKind::NotFound => {
                            " (the program in its first line is not there, or the line ends in CR LF)"
                        }
                        _ => "",
                    };
                    say!("{} cannot start {}: {error}{hint}", place.id, script.display());
                    AppTrouble::Failed
                }
            })
        });
        Started { token, ticket, result: result.map(Begun::Runs) }
    }
}

/// All meta-variables of a request, by the script's name and what is behind it in the path.
pub fn variables(work: &AppWork, place: &Place, end: usize, script: &Path) -> Variables {
    let root = place.disk.root_of(work.site).unwrap_or(Path::new("/"));
    let mut variables = work.variables.clone();
    let mut put = |name: &str, value: &[u8]| {
        variables.retain(|(known, _)| known != name.as_bytes());
        variables.push((name.into(), value.to_vec()));
    };
    put("PATH", PATH);
    put("DOCUMENT_ROOT", root.as_os_str().as_bytes());
    put("SCRIPT_NAME", &work.path[..end]);
    put("SCRIPT_FILENAME", script.as_os_str().as_bytes());
    // RFC 3875, 4.1.5 and 4.1.6: both, or neither.
    if end < work.path.len() {
        put("PATH_INFO", &work.path[end..]);
        put("PATH_TRANSLATED", &[root.as_os_str().as_bytes(), &work.path[end..]].concat());
    }
    if let Some(peer) = place.peer {
        put("REMOTE_ADDR", peer.ip().to_canonical().to_string().as_bytes());
        put("REMOTE_PORT", &decimal(peer.port().into()));
    }
    if let Some(local) = place.local {
        let address = local.ip().to_canonical().to_string();
        put("SERVER_ADDR", address.as_bytes());
        put("SERVER_PORT", &decimal(local.port().into()));
        // 4.1.14: never without a value.
        if !work.variables.iter().any(|(name, _)| name == b"SERVER_NAME") {
            put("SERVER_NAME", address.as_bytes());
        }
    }
    put("UNIQUE_ID", place.id.as_bytes());
    for (name, value) in &*place.env {
        put(name, value.as_bytes());
    }
    variables
}

fn start(script: &Path, variables: &Variables, has_body: bool, pass: Pass) -> io::Result<Running> {
    let stdin = if has_body { Some(pipe::to_program()?) } else { None };
    let (stdout, stderr) = (pipe::from_program()?, pipe::from_program()?);
    let mut command = Command::new(script);
    command.env_clear();
    command.envs(variables.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))));
    // RFC 3875, 7.2: the script's own folder.
    command.current_dir(script.parent().unwrap_or(Path::new("/"))).process_group(0);
    let (stdin, theirs) = stdin.map_or((None, Stdio::null()), |Pipe { ours, theirs }| (Some(ours), theirs.into()));
    command.stdin(theirs).stdout(stdout.theirs).stderr(stderr.theirs);
    process::end_with_this_thread(&mut command);
    process::keep_descriptors_from(&mut command);
    let pid = command.spawn()?.id();
    let process = Process::new(pid, Some(pass))?;
    Ok(Running { process, stdin, stdout: Some(stdout.ours), stderr: Some(stderr.ours) })
}

/// A process that was started, and its group. Dropped before it has ended, it is ended.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    /// Readable when it has ended.
    pub watch: OwnedFd,
    /// How it has ended, once it was waited for.
    ending: Option<process::Ending>,
    _pass: Option<Pass>,
}

impl Process {
    /// The process of this number, a child that leads a group, and the place that it takes.
    ///
    /// # Errors
    /// When it cannot be watched; then it is ended.
    pub fn new(pid: u32, pass: Option<Pass>) -> io::Result<Process> {
        match process::watch(pid) {
            Ok(watch) => Ok(Process { pid, watch, ending: None, _pass: pass }),
            Err(error) => {
                process::kill_group(pid);
                let _ = process::wait_for(pid);
                Err(error)
            }
        }
    }

    /// How it has ended, if it has. What it has left in its group is ended with it: as long as it was not waited for, the
    /// group is sure to be its own.
    pub fn ended(&mut self) -> Option<process::Ending> {
        if self.ending.is_none()
            && poll::wait_readable(&[self.watch.as_fd()], Duration::ZERO).is_ok_and(|readable| readable[0])
        {
            process::kill_group(self.pid);
            self.ending = process::has_ended(self.pid);
        }
        self.ending
    }

    /// Ends it, with its group, at once. It is still to be waited for.
    pub fn kill(&self) {
        if self.ending.is_none() {
            process::kill_group(self.pid);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ending.is_none() {
            self.kill();
            // SIGKILL is obeyed at once but by who waits for a disk; the server is about to end in any case.
            let _ = process::wait_for(self.pid);
        }
    }
}

/// A clean path without its slash in front: relative to a root.
pub fn relative(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))
}

/// The script's file and its name, for people.
pub fn shown(work: &AppWork) -> String {
    String::from_utf8_lossy(&work.path).escape_debug().to_string()
}
