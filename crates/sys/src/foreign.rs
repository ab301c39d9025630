//! Opens files, and gives sockets and directories away, as root at a path that another user may change.
//!
//! A server that is started as root opens its log before it becomes another user, in a directory that belongs to that
//! user, who must be able to reopen it. An attacker who controls that user could put a link there, and make root create
//! or append to any file. So only links that belong to root are followed, such as `/dev/stdout` and `/var/run`, and a
//! file with other names must be the user's own. Each directory is held open until the next one is open, so that
//! renaming one meanwhile has no effect.
//!
//! What root has created there, and gives to that user, may have been replaced meanwhile: by a link to a file of root, which
//! would be given away. So its owner is changed through a descriptor, after a check that it is still what root created.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

/// The user whose links are followed.
const ROOT: u32 = 0;

/// Maximum links in one path, as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Attempts to open a file that vanishes between two system calls.
const TRIES: usize = 16;

/// A name in an open directory, with all other links of the path resolved.
struct Place {
    directory: OwnedFd,
    name: OsString,
    /// A link of proc(5), such as `/proc/self/fd/1`, which only the kernel can follow.
    is_magic: bool,
}

/// Opens a file for appending, and creates it if it does not exist. `owner`: the user who may change its directory. Returns whether it was
/// created.
///
/// A named pipe is opened without waiting for its reader, and does not block later.
///
/// # Errors
/// Those of open(2); a link that does not belong to root; a file that has other names and is not the owner's.
pub fn append(path: &Path, owner: u32) -> io::Result<(File, bool)> {
    for _ in 0..TRIES {
        let place = find(path)?;
        if !place.is_magic {
            match place.open(OFlags::CREATE | OFlags::EXCL) {
                Ok(file) => return Ok((file.into(), true)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match place.open_existing(path, owner) {
            // Renamed, as by a rotation, or replaced by a link.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::LOOP)) => {}
            other => return Ok((other?.into(), false)),
        }
    }
    Err(Errno::LOOP.into())
}

/// Changes the owner of a socket or a directory that this process has created at this path. Of a socket it is the owner of
/// its name; the socket itself keeps its own.
///
/// # Errors
/// Those of open(2) and fchownat(2); a link that does not belong to root; something else has taken its place.
pub fn give_created(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let place = find(path)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let created = rustix::fs::openat(&place.directory, &place.name, flags, Mode::empty())?;
    let state = rustix::fs::fstat(&created)?;
    let is_own = state.st_uid == rustix::process::geteuid().as_raw();
    let is_sole = match FileType::from_raw_mode(state.st_mode) {
        FileType::Socket => state.st_nlink == 1,
        // A directory has no hard links, and is only in one place.
        FileType::Directory => true,
        _ => false,
    };
    if !is_own || !is_sole {
        let why = format!(
            "{} was replaced while it was created; its directory must be writable by root only",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(rustix::fs::chownat(&created, "", uid, gid, AtFlags::EMPTY_PATH)?)
}

impl Place {
    fn open(&self, more: OFlags) -> Result<OwnedFd, Errno> {
        self.open_for(OFlags::WRONLY | OFlags::APPEND | more)
    }

    fn open_for(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let no_link = if self.is_magic { OFlags::empty() } else { OFlags::NOFOLLOW };
        rustix::fs::openat(&self.directory, &self.name, flags | no_link | OFlags::CLOEXEC, Mode::from_raw_mode(0o666))
    }

    fn open_existing(&self, path: &Path, owner: u32) -> io::Result<OwnedFd> {
        let state = rustix::fs::fstat(self.open_for(OFlags::PATH)?)?;
        let is_pipe = FileType::from_raw_mode(state.st_mode) == FileType::Fifo;
        // Without a reader, open(2) would wait for one.
        let _reader = is_pipe.then(|| self.open_for(OFlags::RDWR | OFlags::NONBLOCK)).transpose()?;
        let file = self.open(if is_pipe { OFlags::NONBLOCK } else { OFlags::empty() })?;
        let state = rustix::fs::fstat(&file)?;
        let is_file = FileType::from_raw_mode(state.st_mode) == FileType::RegularFile;
        if is_file && state.st_nlink > 1 && state.st_uid != owner {
            let why = format!(
                "{} has other names (hard links), and belongs to user {}: remove all but one, or the file",
                path.display(),
                state.st_uid
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(file)
    }
}

/// Follows the links of root.
fn find(path: &Path) -> io::Result<Place> {
    let look_flags = OFlags::PATH | OFlags::CLOEXEC;
    let directory_flags = look_flags | OFlags::DIRECTORY;
    let mut directory = rustix::fs::openat(CWD, ".", directory_flags, Mode::empty())?;
    let mut seen = PathBuf::new();
    // In reverse: the next name is the last one.
    let mut rest = components(path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        seen.push(&name);
        let is_last = rest.is_empty();
        let found = match rustix::fs::openat(&directory, &name, look_flags | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::NOENT) if is_last => return Ok(Place { directory, name, is_magic: false }),
            found => found?,
        };
        let state = rustix::fs::fstat(&found)?;
        if FileType::from_raw_mode(state.st_mode) != FileType::Symlink {
            if is_last {
                return Ok(Place { directory, name, is_magic: false });
            }
            directory = found;
            continue;
        }
        links += 1;
        permit_link(&seen, &state, links)?;
        if rustix::fs::fstatfs(&found)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
            if is_last {
                return Ok(Place { directory, name, is_magic: true });
            }
            directory = rustix::fs::openat(&directory, &name, directory_flags, Mode::empty())?;
            continue;
        }
        let target = rustix::fs::readlinkat(&found, "", Vec::new())?.into_bytes();
        seen.pop();
        rest.extend(components(Path::new(OsStr::from_bytes(&target))));
    }
    Err(Errno::ISDIR.into())
}

fn permit_link(path: &Path, state: &Stat, links: usize) -> io::Result<()> {
    if links > LINKS_MAX {
        return Err(Errno::LOOP.into());
    }
    if state.st_uid == ROOT {
        return Ok(());
    }
    let why = format!(
        "{} is a symbolic link of user {}, which root does not follow; remove it, or `chown --no-dereference root` it",
        path.display(),
        state.st_uid
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Returns the names of a path, the last one first.
fn components(path: &Path) -> Vec<OsString> {
    let named = |component: &Component<'_>| *component != Component::CurDir;
    path.components().rev().filter(named).map(|component| component.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{lchown, symlink};

    const OWNER: u32 = 65534;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Folder {
            Folder(tempfile::tempdir().expect("a directory"))
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn file(&self, name: &str) -> PathBuf {
            std::fs::write(self.path(name), "").expect("written");
            self.path(name)
        }

        fn link(&self, name: &str, target: impl AsRef<Path>, owner: u32) -> PathBuf {
            symlink(target, self.path(name)).expect("linked");
            lchown(self.path(name), Some(owner), None).expect("this test must run as root");
            self.path(name)
        }
    }

    fn error(path: &Path) -> String {
        append(path, OWNER).expect_err("refused").to_string()
    }

    #[test]
    fn links_of_root_are_followed() {
        let folder = Folder::new();
        std::fs::create_dir(folder.path("real")).expect("created");
        let one = folder.link("one", "./real/../real", 0);
        let two = folder.link("two", one.join("log"), 0);
        let (mut file, created) = append(&two, OWNER).expect("created");
        assert!(created);
        file.write_all(b"a").expect("written");
        let (mut file, created) = append(&folder.path("real/log"), OWNER).expect("opened");
        assert!(!created);
        file.write_all(b"b").expect("written");
        assert_eq!(std::fs::read(folder.path("real/log")).expect("there"), b"ab");
        assert!(
            error(&folder.path("missing/log")).contains("No such file") && error(Path::new("/")).contains("directory")
        );
        let circle = folder.link("circle", "circle", 0);
        assert_eq!(append(&circle, OWNER).expect_err("a circle").raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn links_of_others_are_refused() {
        let folder = Folder::new();
        let secret = folder.file("secret");
        std::fs::create_dir(folder.path("real")).expect("created");
        let links = [
            folder.link("log", &secret, OWNER),
            folder.link("dangling", folder.path("new"), OWNER),
            folder.link("folder", folder.path("real"), OWNER).join("log"),
            // A link of root leads to a link of the other user.
            folder.link("outer", folder.path("log"), 0),
        ];
        for link in links {
            assert!(error(&link).contains("symbolic link of user 65534"), "{}", error(&link));
        }
        let created = ["new", "real/log"].map(|name| folder.path(name).exists());
        assert_eq!(created, [false, false]);
    }

    #[test]
    fn file_with_other_names_is_opened_only_if_it_is_the_owners() {
        let folder = Folder::new();
        let secret = folder.file("secret");
        assert!(append(&secret, OWNER).is_ok());
        std::fs::hard_link(&secret, folder.path("log")).expect("linked");
        assert!(error(&folder.path("log")).contains("hard links"));
        std::os::unix::fs::chown(&secret, Some(OWNER), None).expect("this test must run as root");
        assert!(append(&folder.path("log"), OWNER).is_ok());
    }

    #[test]
    fn only_what_was_created_is_given_away() {
        use std::os::unix::fs::MetadataExt;
        let folder = Folder::new();
        let owner = |name: &str| std::fs::symlink_metadata(folder.path(name)).expect("there").uid();
        let give = |name: &str| give_created(&folder.path(name), OWNER, OWNER);
        let _listener = crate::local::listen(&folder.path("socket")).expect("bound");
        std::fs::create_dir(folder.path("directory")).expect("created");
        for name in ["socket", "directory"] {
            give(name).expect("given");
            assert_eq!(owner(name), OWNER, "{name}");
        }
        // What its new owner could put into its place.
        folder.file("secret");
        let _other = crate::local::listen(&folder.path("other")).expect("bound");
        for (name, target) in [("file-link", "secret"), ("socket-link", "other")] {
            std::fs::hard_link(folder.path(target), folder.path(name)).expect("linked");
            assert!(give(name).expect_err("a hard link").to_string().contains("was replaced"), "{name}");
            assert_eq!(owner(target), 0, "{name}");
        }
        folder.link("link", folder.path("secret"), OWNER);
        assert!(give("link").expect_err("a link").to_string().contains("symbolic link of user 65534"));
        let linked = folder.link("folder", folder.0.path(), OWNER).join("secret");
        assert!(give_created(&linked, OWNER, OWNER).is_err());
        assert!(give("socket").is_err(), "it belongs to another user already");
        assert_eq!(owner("secret"), 0);
    }

    #[test]
    fn open_descriptors_and_pipes_are_opened() {
        let folder = Folder::new();
        let file = File::create(folder.path("file")).expect("created");
        // Like `/dev/stdout`.
        let link = folder.link("stdout", format!("/proc/self/fd/{}", file.as_raw_fd()), 0);
        let (mut log, created) = append(&link, OWNER).expect("opened");
        assert!(!created);
        log.write_all(b"a").expect("written");
        assert_eq!(std::fs::read(folder.path("file")).expect("there"), b"a");
        let (reader, writer) = io::pipe().expect("made");
        let link = folder.link("pipe", format!("/proc/self/fd/{}", writer.as_raw_fd()), 0);
        append(&link, OWNER).expect("opened").0.write_all(b"b").expect("written");
        drop((reader, writer));
        let named = folder.path("named");
        rustix::fs::mknodat(CWD, &named, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("made");
        let (mut log, created) = append(&named, OWNER).expect("opened without a reader");
        assert!(!created && log.write(b"c").is_err());
    }
}
