//! A program to start: a script, the ACME process, or the successor of this server.
//!
//! [`start`] executes it as a child of the process that calls it. Usually that is the one that needs it. A server that is
//! confined (`confine`) may not execute programs, and they would inherit its confinement; then the process manager, which was
//! forked before, starts it (`manager`), and everything about a program crosses a socket. It starts only what the configuration of the
//! start names ([`Permitted`]): code that an intruder runs in the server must find no way around its limits there.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use amped_sys::process::{self, Identity};
use serde::{Deserialize, Serialize};

/// A program with everything that it gets, except descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub struct Launch {
    program: OsString,
    /// Its arguments, without its name.
    pub arguments: Vec<OsString>,
    /// All its variables.
    pub variables: Vec<(OsString, OsString)>,
    /// Its working directory; `None`: the server's.
    pub folder: Option<OsString>,
    /// Its standard input, output and error.
    pub streams: [Stream; 3],
    /// Which file is executed.
    pub file: ProgramFile,
    /// How long it runs.
    pub life: Life,
    /// The user that it runs as; `None`: the server's.
    pub user: Option<Box<str>>,
}

/// A standard stream of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// It reads nothing, or its output is dropped.
    Null,
    /// The server's own.
    Inherited,
    /// The next of the descriptors that are given.
    Given,
}

/// Which file is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramFile {
    /// The one with this name.
    Named,
    /// The one with this name if it is still this one.
    Expected {
        /// The device.
        device: u64,
        /// The inode.
        inode: u64,
    },
    /// The last of the descriptors that are given.
    Given,
}

/// How long a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    /// It leads a process group, which ends when nobody waits for it any more.
    Request,
    /// It ends with the server.
    Server,
    /// It outlives the server, and inherits the descriptors that are given as its listeners.
    Successor,
}

impl Launch {
    /// Describes a program without arguments, variables and streams.
    pub fn new(program: &Path, life: Life) -> Launch {
        Launch {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            folder: None,
            streams: [Stream::Null, Stream::Null, Stream::Inherited],
            file: ProgramFile::Named,
            life,
            user: None,
        }
    }

    /// Returns the path of the program.
    pub fn program(&self) -> &Path {
        Path::new(&self.program)
    }
}

/// Starts a program with these descriptors as a child of this thread, as this user if there is one. Returns its process ID.
///
/// # Errors
/// Those of execve(2): it does not exist, or may not be executed. `ESTALE`: it is another file by now.
pub(super) fn start(launch: &Launch, descriptors: Vec<OwnedFd>, user: Option<&Identity>) -> io::Result<u32> {
    if launch.user.is_some() && user.is_none() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut command = Command::new(&launch.program);
    command.args(&launch.arguments);
    let texts = || {
        let text = |(name, value): &(OsString, OsString)| {
            CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
        };
        launch.variables.iter().filter_map(text).collect::<Vec<_>>()
    };
    if launch.life == Life::Successor {
        let given: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        process::hand_over(&mut command, &given, texts())?;
        return Ok(command.spawn()?.id());
    }
    command.env_clear().envs(launch.variables.iter().map(|(name, value)| (name, value)));
    if let Some(folder) = &launch.folder {
        command.current_dir(folder);
    }
    let mut given = descriptors.into_iter();
    let mut next = || given.next().ok_or(io::ErrorKind::InvalidInput);
    let mut stream = |stream: Stream| {
        Ok::<_, io::ErrorKind>(match stream {
            Stream::Null => Stdio::null(),
            Stream::Inherited => Stdio::inherit(),
            Stream::Given => next()?.into(),
        })
    };
    let [stdin, stdout, stderr] = launch.streams;
    command.stdin(stream(stdin)?).stdout(stream(stdout)?).stderr(stream(stderr)?);
    if launch.life == Life::Request {
        command.process_group(0);
    }
    if let Some(user) = user {
        process::run_as(&mut command, user);
    }
    process::end_with_this_thread(&mut command);
    process::keep_descriptors_from(&mut command);
    match launch.file {
        ProgramFile::Named => {}
        ProgramFile::Expected { device, inode } => process::expect_file(&mut command, device, inode),
        ProgramFile::Given => process::execute_file(&mut command, next()?, texts()),
    }
    Ok(command.spawn()?.id())
}

/// The programs that a confined server may start.
#[derive(Clone, Debug, Default)]
pub struct Permitted {
    /// Directories below which every file may be executed as a script.
    pub scripts: Vec<PathBuf>,
    /// Variables of scripts beside those of CGI.
    pub variables: Vec<(OsString, OsString)>,
    /// Persistent applications: their commands, and their variables.
    pub applications: Vec<Application>,
    /// The program that obtains certificates.
    pub acme: PathBuf,
    /// The server itself, with its arguments.
    pub successor: (PathBuf, Vec<OsString>),
    /// The users that scripts may run as.
    pub users: Vec<(Box<str>, Option<Identity>)>,
}

/// The command of a persistent application, and its variables.
pub type Application = (Vec<String>, Vec<(Box<str>, Box<str>)>);

/// The variable with the names of descriptors, the only one that a successor does not have from its predecessor.
const DESCRIPTOR_NAMES: &str = "LISTEN_FDNAMES";

/// How the names of CGI's variables begin, standard and other ones. None of them changes how a program is loaded or interpreted.
const CGI_NAMES: [&str; 15] = [
    "HTTP_",
    "REQUEST_",
    "SERVER_",
    "REMOTE_",
    "CONTENT_",
    "SCRIPT_",
    "PATH_",
    "SSL_",
    "AUTH_TYPE",
    "DOCUMENT_",
    "GATEWAY_INTERFACE",
    "HTTPS",
    "QUERY_STRING",
    "REDIRECT_",
    "UNIQUE_ID",
];

/// The search path of programs, which RFC 3875, 7.2 leaves to the server.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

impl Permitted {
    /// Returns whether all that `other` permits is among this.
    pub fn includes(&self, other: &Permitted) -> bool {
        other.scripts.iter().all(|folder| self.is_below(folder))
            && other.variables.iter().all(|variable| self.variables.contains(variable))
            && other.users.iter().all(|(name, _)| self.users.iter().any(|(known, _)| known == name))
            && other.applications.iter().all(|application| self.applications.contains(application))
    }

    /// Returns the user of this name, if scripts may run as that.
    pub(super) fn user(&self, name: &str) -> Option<&Identity> {
        self.users.iter().find(|(known, _)| &**known == name)?.1.as_ref()
    }

    /// Returns whether this program may be started with these descriptors.
    pub(super) fn permits(&self, launch: &Launch, descriptors: &[OwnedFd]) -> bool {
        let is_own = |(name, value): &(OsString, OsString)| std::env::var_os(name).as_ref() == Some(value);
        let program = launch.program();
        match launch.life {
            Life::Successor => {
                let mut others = launch.variables.iter().filter(|(name, _)| name != DESCRIPTOR_NAMES);
                (program, &launch.arguments) == (&self.successor.0, &self.successor.1) && others.all(is_own)
            }
            Life::Server => {
                program == self.acme
                    && launch.file == ProgramFile::Named
                    && launch.arguments.is_empty()
                    && launch.variables.iter().all(is_own)
            }
            Life::Request => {
                let file = match launch.file {
                    ProgramFile::Named => None,
                    ProgramFile::Expected { .. } => program.canonicalize().ok(),
                    ProgramFile::Given => {
                        let link = descriptors.last().map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()));
                        link.and_then(|link| std::fs::read_link(link).ok())
                    }
                };
                let folder = program.parent().unwrap_or(Path::new("/"));
                file.is_some_and(|file| self.is_below(&file))
                    && launch.user.as_ref().is_none_or(|user| self.user(user).is_some())
                    && launch.folder.as_deref() == Some(folder.as_os_str())
                    && launch.arguments.is_empty()
                    && launch.variables.iter().all(|variable| self.is_variable(variable))
            }
        }
    }

    fn is_below(&self, path: &Path) -> bool {
        self.scripts.iter().any(|folder| path.starts_with(folder))
    }

    fn is_variable(&self, variable: &(OsString, OsString)) -> bool {
        let (name, value) = variable;
        let is_of_cgi = CGI_NAMES.iter().any(|known| name.as_bytes().starts_with(known.as_bytes()));
        is_of_cgi || (name == "PATH" && value == PATH) || self.variables.contains(variable)
    }
}

/// Returns a name and a value that are bytes as a variable.
pub fn variable(name: &[u8], value: &[u8]) -> (OsString, OsString) {
    (OsString::from_vec(name.to_vec()), OsStr::from_bytes(value).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_configured_programs_are_permitted() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("script"), "").unwrap();
        symlink("/bin/sh", root.join("link")).unwrap();
        let permitted = Permitted {
            scripts: vec![root.clone()],
            variables: vec![variable(b"OWN", b"1")],
            applications: Vec::new(),
            acme: "/usr/bin/amped-acme".into(),
            successor: ("/usr/bin/amped".into(), vec!["serve".into()]),
            users: Vec::new(),
        };
        let script = |name: &str| {
            let mut launch = Launch::new(&root.join(name), Life::Request);
            (launch.folder, launch.file) = (Some(root.clone().into()), ProgramFile::Expected { device: 0, inode: 0 });
            launch.variables =
                vec![variable(b"HTTP_HOST", b"a"), variable(b"OWN", b"1"), variable(b"PATH", PATH.as_bytes())];
            launch
        };
        let permits = |launch: &Launch, file: Option<&str>| {
            let file = file.map(|file| fs::File::open(file).unwrap().into());
            permitted.permits(launch, &file.into_iter().collect::<Vec<_>>())
        };
        assert!(permits(&script("script"), None));
        assert!(!permits(&script("link"), None) && !permits(&script("../other"), None));
        let changed = |change: fn(&mut Launch)| {
            let mut launch = script("script");
            change(&mut launch);
            permits(&launch, None)
        };
        assert!(!changed(|launch| launch.variables.push(variable(b"LD_PRELOAD", b"/tmp/x"))));
        assert!(!changed(|launch| launch.variables.push(variable(b"OWN", b"2"))));
        assert!(!changed(|launch| launch.variables.push(variable(b"PATH", b"/tmp"))));
        assert!(!changed(|launch| launch.arguments.push("-c".into())));
        assert!(!changed(|launch| launch.folder = Some("/tmp".into())));
        assert!(!changed(|launch| launch.file = ProgramFile::Named));
        assert!(!changed(|launch| launch.user = Some("root".into())));
        let mut given = script("script");
        given.file = ProgramFile::Given;
        assert!(
            permits(&given, root.join("script").to_str())
                && !permits(&given, Some("/bin/sh"))
                && !permits(&given, None)
        );

        let own = |program: &str, life: Life| Launch::new(Path::new(program), life);
        assert!(
            permits(&own("/usr/bin/amped-acme", Life::Server), None) && !permits(&own("/bin/sh", Life::Server), None)
        );
        let mut successor = own("/usr/bin/amped", Life::Successor);
        assert!(!permits(&successor, None));
        successor.arguments = vec!["serve".into()];
        successor.variables =
            vec![("PATH".into(), std::env::var_os("PATH").unwrap()), variable(b"LISTEN_FDNAMES", b"a")];
        assert!(permits(&successor, None));
        successor.variables.push(variable(b"LD_PRELOAD", b"/tmp/x"));
        assert!(!permits(&successor, None));
    }
}
