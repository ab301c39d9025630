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
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use amped_sys::file;
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

    /// Returns how many descriptors the program gets: one for each given stream, and one for its file if that is given.
    /// A successor gets any number.
    fn descriptors(&self) -> usize {
        let streams = self.streams.iter().filter(|stream| **stream == Stream::Given).count();
        streams + usize::from(self.file == ProgramFile::Given)
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

/// EPERM and ESTALE, errno(3): numbers, since they are sent to another process.
const NOT_PERMITTED: i32 = 1;
const STALE: i32 = 116;

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

    /// Tests whether this program may be started with these descriptors.
    ///
    /// # Errors
    /// `EPERM`: it may not. `ESTALE`: its file was replaced since it was opened.
    pub(super) fn permits(&self, launch: &Launch, descriptors: &[OwnedFd]) -> io::Result<()> {
        let is_own = |(name, value): &(OsString, OsString)| std::env::var_os(name).as_ref() == Some(value);
        let program = launch.program();
        let is_permitted = match launch.life {
            Life::Successor => {
                let mut others = launch.variables.iter().filter(|(name, _)| name != DESCRIPTOR_NAMES);
                (program, &launch.arguments) == (&self.successor.0, &self.successor.1) && others.all(is_own)
            }
            Life::Server => {
                program == self.acme
                    && descriptors.len() == launch.descriptors()
                    && launch.user.is_none()
                    && launch.file == ProgramFile::Named
                    && launch.arguments.is_empty()
                    && launch.variables.iter().all(is_own)
            }
            Life::Request => {
                // With one more, the last one would not be the one that `start` executes.
                descriptors.len() == launch.descriptors()
                    && self.permits_file(launch, descriptors.last())?
                    && launch.user.as_ref().is_none_or(|user| self.user(user).is_some())
                    && launch.arguments.is_empty()
                    && launch.variables.iter().all(|variable| self.is_variable(variable))
            }
        };
        if is_permitted { Ok(()) } else { Err(io::Error::from_raw_os_error(NOT_PERMITTED)) }
    }

    /// Returns whether the file of a script is below the roots, and its name as well, by which a shell or the
    /// script's interpreter opens it again.
    fn permits_file(&self, launch: &Launch, given: Option<&OwnedFd>) -> io::Result<bool> {
        let program = launch.program();
        let folder = program.parent().unwrap_or(Path::new("/"));
        // Only the folder of the name is resolved: the name itself may refer to another file, or to none, by now.
        let is_named_below = || folder.canonicalize().is_ok_and(|folder| self.is_below(&folder));
        let is_file_below = match (launch.file, given) {
            (ProgramFile::Expected { .. }, _) => program.canonicalize().is_ok_and(|file| self.is_below(&file)),
            (ProgramFile::Given, Some(file)) => self.is_opened_below(file)?,
            (ProgramFile::Named, _) | (ProgramFile::Given, None) => false,
        };
        Ok(is_file_below
            && program.is_absolute()
            && launch.folder.as_deref() == Some(folder.as_os_str())
            && is_named_below())
    }

    /// Returns whether this open file is below the roots.
    fn is_opened_below(&self, file: &OwnedFd) -> io::Result<bool> {
        let opened = file::status(file)?;
        if opened.links == 0 {
            return Err(io::Error::from_raw_os_error(STALE));
        }
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return Ok(false) };
        // In another mount namespace, anybody's file may have this name.
        let is_here = || path.metadata().is_ok_and(|found| (found.dev(), found.ino()) == (opened.device, opened.inode));
        Ok(self.is_below(&path) && is_here())
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

    /// A directory with an executable file `script`, and what is permitted with this root.
    fn place() -> (tempfile::TempDir, PathBuf, Permitted) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("script"), "").unwrap();
        let permitted = Permitted { scripts: vec![root.clone()], ..Permitted::default() };
        (folder, root, permitted)
    }

    #[test]
    fn file_of_another_mount_namespace_is_not_permitted() {
        let (_folder, root, permitted) = place();
        let path = root.join("script");
        let mut launch = Launch::new(&path, Life::Request);
        (launch.folder, launch.file) = (Some(root.clone().into()), ProgramFile::Given);
        let error = |file: &Path| {
            let permitted = permitted.permits(&launch, &[fs::File::open(file).unwrap().into()]);
            permitted.err().and_then(|error| error.raw_os_error())
        };
        assert_eq!(error(&path), None);
        let mut other = Command::new("unshare");
        other.args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-ec",
            "mount -t tmpfs none \"$0\"; cp /bin/sh \"$0/script\"; echo; read end",
        ]);
        let mut other = other.arg(&root).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut [0]).expect("a mount in a namespace of its own");
        // In that namespace its name is that of the script.
        let intruder = PathBuf::from(format!("/proc/{}/root{}", other.id(), path.display()));
        assert_eq!(error(&intruder), Some(NOT_PERMITTED));
        drop(other.stdin.take());
        other.wait().unwrap();
        // A file that was replaced since it was opened must be looked up again.
        let old: OwnedFd = fs::File::open(&path).unwrap().into();
        fs::write(root.join("next"), "").unwrap();
        fs::rename(root.join("next"), &path).unwrap();
        let replaced = permitted.permits(&launch, &[old]).unwrap_err();
        assert_eq!((replaced.raw_os_error(), replaced.kind()), (Some(STALE), io::ErrorKind::StaleNetworkFileHandle));
    }

    #[test]
    fn only_configured_programs_are_permitted() {
        let (_folder, root, permitted) = place();
        symlink("/bin/sh", root.join("link")).unwrap();
        let permitted = Permitted {
            variables: vec![variable(b"OWN", b"1")],
            acme: "/usr/bin/amped-acme".into(),
            successor: ("/usr/bin/amped".into(), vec!["serve".into()]),
            users: vec![("daemon".into(), None)],
            ..permitted
        };
        let script = |name: &str| {
            let mut launch = Launch::new(&root.join(name), Life::Request);
            (launch.folder, launch.file) = (Some(root.clone().into()), ProgramFile::Expected { device: 0, inode: 0 });
            launch.variables =
                vec![variable(b"HTTP_HOST", b"a"), variable(b"OWN", b"1"), variable(b"PATH", PATH.as_bytes())];
            launch
        };
        let permits_with = |launch: &Launch, files: &[&str]| {
            let files = files.iter().map(|file| fs::File::open(file).unwrap().into());
            permitted.permits(launch, &files.collect::<Vec<_>>()).is_ok()
        };
        let permits = |launch: &Launch, file: Option<&str>| permits_with(launch, file.as_slice());
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

        // The file that is checked must be the one that `start` executes: the next after those of the streams.
        let script_file = root.join("script").display().to_string();
        given.streams[1] = Stream::Given;
        assert!(permits_with(&given, &["/dev/null", &script_file]));
        assert!(!permits_with(&given, &["/dev/null", "/bin/sh", &script_file]) && !permits(&given, Some(&script_file)));
        let mut surplus = script("script");
        assert!(!permits(&surplus, Some(&script_file)));
        surplus.streams[1] = Stream::Given;
        assert!(permits(&surplus, Some("/dev/null")) && !permits(&surplus, None));
        // A file is executed under its own name, which a shell may open again.
        given.streams[1] = Stream::Null;
        for name in ["/bin/sh", "sh"] {
            (given.program, given.folder) = (name.into(), Some(if name == "sh" { "" } else { "/bin" }.into()));
            assert!(!permits(&given, Some(&script_file)), "{name}");
        }

        let own = |program: &str, life: Life| Launch::new(Path::new(program), life);
        assert!(
            permits(&own("/usr/bin/amped-acme", Life::Server), None) && !permits(&own("/bin/sh", Life::Server), None)
        );
        let mut acme = own("/usr/bin/amped-acme", Life::Server);
        acme.user = Some("daemon".into());
        assert!(!permits(&acme, None));
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
