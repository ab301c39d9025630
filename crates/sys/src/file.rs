//! Files, with or without waiting for the disk.
//!
//! Two probes keep an event loop off the disk, and both return EAGAIN instead of waiting (open(2), `openat2`;
//! preadv2(2)): `RESOLVE_CACHED` opens a name if all its parts are in the dentry cache, and `RWF_NOWAIT` reads what is
//! in the page cache. mincore(2), the probe of Flash, reports every page resident to a process that neither owns nor
//! may write the file (since Linux 5.2), so a web server that has dropped root cannot use it.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// Whether a call may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Wait as long as it takes.
    Wait,
    /// Fail with [`io::ErrorKind::WouldBlock`] rather than wait.
    Now,
}

/// Creates an unnamed file in this directory: for reading and writing, for its owner only, deleted with
/// its last descriptor. May wait for the disk.
///
/// # Errors
/// Those of open(2).
pub fn unnamed(directory: &Path) -> io::Result<File> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL, Mode::RUSR | Mode::WUSR);
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        Ok(file) => return Ok(File::from(file)),
        // A file system without unnamed files (open(2), O_TMPFILE): overlayfs before Linux 6.1, NFS.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {}
        Err(error) => return Err(error.into()),
    }
    loop {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let moment = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = directory.join(format!(".amped-{:x}-{count:x}-{moment:x}", std::process::id()));
        match rustix::fs::open(&name, flags | OFlags::CREATE | OFlags::NOFOLLOW, mode) {
            Ok(file) => {
                rustix::fs::unlink(&name)?;
                return Ok(File::from(file));
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The result of fstat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The type of the file.
    pub kind: Kind,
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size, bytes.
    pub size: u64,
    /// Last modification, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Last change, nanoseconds since 1970.
    pub ctime_ns: i64,
    /// Number of names; 0 once it is removed.
    pub links: u64,
    /// UID and GID of its owner.
    pub owner: (u32, u32),
    /// File type and permissions.
    pub mode: u32,
}

/// Types of files, as far as a web server distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link; only [`status_at`] returns this.
    Link,
    /// A pipe, a socket or a device.
    Other,
}

/// Opens a directory as the root of later [`open_beneath`]. Waits for the disk only if `patience` permits.
///
/// # Errors
/// Those of open(2).
pub fn open_root(path: &Path, patience: Patience) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve(patience, ResolveFlags::empty()))?)
}

/// Opens a file only to read its [`status`]. Waits for the disk only if `patience` permits.
///
/// # Errors
/// Those of open(2); [`io::ErrorKind::WouldBlock`] when it would have waited.
pub fn open_path(path: &Path, patience: Patience) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve(patience, ResolveFlags::empty()))?)
}

/// Opens a directory beneath `root` as another root.
///
/// # Errors
/// Those of [`open_beneath`].
pub fn open_root_beneath(root: BorrowedFd<'_>, path: &CStr, patience: Patience) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), resolve(patience, beneath()))?)
}

/// Opens `path`, relative to `root`, for reading. The kernel confines it to the root: neither `..` nor a symbolic link,
/// even one created at this moment, leads out (`RESOLVE_BENEATH`). A pipe is opened without waiting for its writer.
///
/// # Errors
/// Those of openat2(2); `EXDEV` when the name leads out of the root; [`io::ErrorKind::WouldBlock`] if it would block.
pub fn open_beneath(root: BorrowedFd<'_>, path: &CStr, patience: Patience) -> io::Result<OwnedFd> {
    open_at(root, path, beneath(), patience)
}

/// Like [`open_beneath`], for reading and writing.
///
/// # Errors
/// Those of [`open_beneath`].
pub fn open_beneath_for_update(root: BorrowedFd<'_>, path: &CStr, patience: Patience) -> io::Result<OwnedFd> {
    open_with(root, path, OFlags::RDWR, beneath(), patience)
}

/// Like [`open_beneath`], with another rule for resolving the name.
pub(crate) fn open_at(
    root: BorrowedFd<'_>,
    path: &CStr,
    rule: ResolveFlags,
    patience: Patience,
) -> io::Result<OwnedFd> {
    open_with(root, path, OFlags::RDONLY, rule, patience)
}

fn open_with(
    root: BorrowedFd<'_>,
    path: &CStr,
    access: OFlags,
    rule: ResolveFlags,
    patience: Patience,
) -> io::Result<OwnedFd> {
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = resolve(patience, rule | ResolveFlags::NO_MAGICLINKS);
    // A call that may wait can get EAGAIN too: for a rename elsewhere in the tree while `..` is resolved (openat2(2)),
    // and for a file with a lease, as a Samba or NFS server takes on behalf of a client, until its holder has given it
    // up (open(2), O_NONBLOCK). Retry after 1 ms, 2 ms and so on: half a second in total.
    for attempt in 0..10 {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if patience == Patience::Wait => {
                std::thread::sleep(Duration::from_millis(1 << attempt >> 1))
            }
            other => return Ok(other?),
        }
    }
    Err(Errno::IO.into())
}

/// Returns whether `path` is a directory, even one without read permission. Like [`open_beneath`], but needs no
/// permission for it beyond those for the lookup.
///
/// # Errors
/// Those of [`open_beneath`].
pub fn is_directory_beneath(root: BorrowedFd<'_>, path: &CStr, patience: Patience) -> io::Result<bool> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve(patience, beneath()))?;
    Ok(status(opened)?.kind == Kind::Directory)
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS
}

fn resolve(patience: Patience, flags: ResolveFlags) -> ResolveFlags {
    match patience {
        Patience::Wait => flags,
        Patience::Now => flags | ResolveFlags::CACHED,
    }
}

/// Returns the type and state of a file. Never waits for a local disk: an open file's inode is in memory.
///
/// # Errors
/// Those of fstat(2); none on local file systems.
pub fn status(fd: impl AsFd) -> io::Result<Status> {
    Ok(status_of(&rustix::fs::fstat(fd)?))
}

/// Returns the same for a name in a directory, without following a link. May wait for the disk.
///
/// # Errors
/// Those of fstatat(2).
pub fn status_at(directory: impl AsFd, name: &CStr) -> io::Result<Status> {
    Ok(status_of(&rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

/// The free space of a file system, see [`space`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its size, bytes.
    pub bytes_total: u64,
    /// Bytes available to users other than root.
    pub bytes_free: u64,
    /// Free inodes; `None` if they are created as needed.
    pub files_free: Option<u64>,
}

/// Returns the free space of the file system that contains `path`. May wait for the disk.
///
/// # Errors
/// Those of statvfs(3).
pub fn space(path: &Path) -> io::Result<Space> {
    let found = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Space {
        bytes_total: bytes(found.f_blocks),
        bytes_free: bytes(found.f_bavail),
        files_free: (found.f_files > 0).then_some(found.f_favail),
    })
}

/// Writes all changes of a file system to its disk, and waits for that. `file` is any file or directory on it.
///
/// # Errors
/// Those of syncfs(2).
pub fn sync_file_system(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

/// Releases the page cache of a range that will not be read soon: clean pages are dropped at once; dirty ones are
/// written out, and dropped by a later call (`POSIX_FADV_DONTNEED`, posix_fadvise(2)).
///
/// # Errors
/// When the file is not on a disk, such as a pipe.
pub fn let_go(file: impl AsFd, range: Range<u64>) -> io::Result<()> {
    let length = NonZeroU64::new(range.end.saturating_sub(range.start));
    // A length of zero would mean everything that follows.
    length.map_or(Ok(()), |length| {
        Ok(rustix::fs::fadvise(file, range.start, Some(length), rustix::fs::Advice::DontNeed)?)
    })
}

/// Frees the disk space of a range of a file, which then reads as zeros; its size stays the same (fallocate(2)).
///
/// # Errors
/// Those of fallocate(2); `Unsupported` if the file system has no holes.
pub fn punch_hole(file: impl AsFd, range: Range<u64>) -> io::Result<()> {
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, range.start, range.end - range.start)?)
}

fn status_of(stat: &rustix::fs::Stat) -> Status {
    let kind = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => Kind::Regular,
        rustix::fs::FileType::Directory => Kind::Directory,
        rustix::fs::FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    };
    let nanos = |seconds: i64, nanos: u64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos as i64);
    Status {
        kind,
        device: stat.st_dev,
        inode: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime_ns: nanos(stat.st_mtime, stat.st_mtime_nsec),
        ctime_ns: nanos(stat.st_ctime, stat.st_ctime_nsec),
        links: stat.st_nlink,
        owner: (stat.st_uid, stat.st_gid),
        mode: stat.st_mode,
    }
}

/// Reads at `offset` into `buffer`, once. With [`Patience::Now`], only what is in the page cache: fewer
/// bytes than requested if the rest is not.
///
/// # Errors
/// Those of preadv2(2); [`io::ErrorKind::WouldBlock`] when not even the first page is in memory.
pub fn read_at(fd: impl AsFd, buffer: &mut [u8], offset: u64, patience: Patience) -> io::Result<usize> {
    read_pieces_at(fd, &mut [io::IoSliceMut::new(buffer)], offset, patience)
}

/// As [`read_at`], into several buffers in turn.
///
/// # Errors
/// Those of [`read_at`].
pub fn read_pieces_at(
    fd: impl AsFd,
    buffers: &mut [io::IoSliceMut<'_>],
    offset: u64,
    patience: Patience,
) -> io::Result<usize> {
    let flags = match patience {
        Patience::Wait => ReadWriteFlags::empty(),
        Patience::Now => ReadWriteFlags::NOWAIT,
    };
    loop {
        match rustix::io::preadv2(&fd, buffers, offset, flags) {
            Err(Errno::INTR) => {}
            // The file system does not support the test. If it has no disk, there is nothing to wait for; otherwise the
            // caller must take the path that may wait.
            Err(Errno::OPNOTSUPP) if patience == Patience::Now => {
                if !is_in_memory(&fd) {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                return read_pieces_at(fd, buffers, offset, Patience::Wait);
            }
            other => return Ok(other?),
        }
    }
}

/// Returns whether a file is on a file system in memory: tmpfs or ramfs (statfs(2)).
pub(crate) fn is_in_memory(fd: impl AsFd) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    matches!(rustix::fs::fstatfs(fd), Ok(system) if [TMPFS_MAGIC, RAMFS_MAGIC].contains(&system.f_type))
}

/// Returns whether the byte at `offset` is in memory: the residency test. Returns `false` beyond the end of the file.
pub fn is_resident(fd: impl AsFd, offset: u64) -> bool {
    matches!(read_at(fd, &mut [0], offset, Patience::Now), Ok(1))
}

/// Sends `count` bytes at `offset` from `file` to `socket` without copying them, and advances `offset`.
/// Waits for the disk if they are not in memory.
///
/// # Errors
/// Those of sendfile(2). `Ok(0)` means that the file ends here.
pub fn send_file(socket: impl AsFd, file: impl AsFd, offset: &mut u64, count: usize) -> io::Result<usize> {
    Ok(rustix::fs::sendfile(socket, file, Some(offset), count)?)
}

/// Returns the path of an open file, with ` (deleted)` appended if it has no name any
/// more. Returns `None` if /proc is not mounted.
pub fn path(fd: impl AsFd) -> Option<PathBuf> {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    std::fs::read_link(link).ok()
}

/// The flag of open(2) that makes reads and writes of pipes fail rather than wait.
pub const NONBLOCKING: i32 = libc::O_NONBLOCK;

/// Writes to a pipe, a socket or a terminal as much as is possible without waiting for its reader.
/// A terminal that is stopped still blocks.
///
/// # Errors
/// Those of pwritev2(2); [`io::ErrorKind::WouldBlock`] if there is no room.
pub fn write_without_waiting(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    // The offset that means none, as for pipes and sockets.
    const NOWHERE: u64 = u64::MAX;
    match rustix::io::pwritev2(&fd, &[io::IoSlice::new(bytes)], NOWHERE, ReadWriteFlags::NOWAIT) {
        // A named pipe, or a terminal: if it is writable it accepts this many bytes (PIPE_BUF, pipe(7)).
        Err(Errno::OPNOTSUPP) if is_writable(&fd, Some(&Timespec::default()))? => {
            Ok(rustix::io::write(&fd, &bytes[..bytes.len().min(4096)])?)
        }
        Err(Errno::OPNOTSUPP) => Err(io::ErrorKind::WouldBlock.into()),
        other => Ok(other?),
    }
}

/// Waits until a pipe, a socket or a terminal has room.
///
/// # Errors
/// Those of poll(2).
pub fn wait_for_room(fd: impl AsFd) -> io::Result<()> {
    is_writable(fd, None).map(|_| ())
}

fn is_writable(fd: impl AsFd, patience: Option<&Timespec>) -> io::Result<bool> {
    let mut awaited = [PollFd::new(&fd, PollFlags::OUT)];
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut awaited, patience))? > 0)
}

/// Waits for a write(2) in progress, if the file system locks out this kind of reader meanwhile: ext4, XFS, Btrfs, F2FS
/// and tmpfs do. Later reads see every write completely that had updated the timestamps before this call.
///
/// lseek(2) with `SEEK_DATA` takes the lock that a write holds from its timestamp to its last
/// byte. The position of the descriptor changes.
pub fn wait_for_writer(fd: impl AsFd) {
    // An empty file has no data (ENXIO), and some file systems do not support
    // the call: nothing better is possible then.
    let _ = rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(0));
}

/// Returns the names in a directory, except `.` and `..`. Waits for the disk.
///
/// # Errors
/// Those of getdents(2).
pub fn names(directory: impl AsFd) -> io::Result<impl Iterator<Item = io::Result<Vec<u8>>>> {
    let entries = rustix::fs::Dir::read_from(directory)?;
    Ok(entries.filter_map(|entry| match entry {
        Ok(entry) => match entry.file_name().to_bytes() {
            b"." | b".." => None,
            name => Some(Ok(name.to_vec())),
        },
        Err(error) => Some(Err(error.into())),
    }))
}

/// Checks that the kernel can open a name without waiting: Linux 5.12 or later, and no sandbox that forbids openat2(2).
///
/// # Errors
/// Those of openat2(2), with the reason.
pub fn can_open_without_waiting(root: BorrowedFd<'_>) -> io::Result<()> {
    match open_root_beneath(root, c".", Patience::Now) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Returns whether an error means that the name leads out of the root.
pub fn is_escape(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::XDEV.raw_os_error())
}

/// Returns whether an error means that links form a loop.
pub fn is_link_loop(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

/// Returns whether an error means that the name is a socket or a device without a driver, which cannot be opened.
pub fn is_no_file(error: &io::Error) -> bool {
    [Errno::NXIO, Errno::NODEV].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Returns whether an error means that the process or the machine is out of descriptors or memory.
pub fn is_exhaustion(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::TOOMANYREFS]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn name(text: &str) -> CString {
        CString::new(text).expect("no NUL")
    }

    #[test]
    fn no_path_escapes_root() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let inside = folder.path().join("root");
        std::fs::create_dir(&inside).expect("made");
        std::fs::write(folder.path().join("secret"), "secret").expect("written");
        std::fs::write(inside.join("page"), "page").expect("written");
        for (link, target) in [("up", "../secret"), ("absolute", "/etc/passwd"), ("fine", "page")] {
            std::os::unix::fs::symlink(target, inside.join(link)).expect("linked");
        }
        let root = open_root(&inside, Patience::Wait).expect("opened");
        let open = |path: &str| open_beneath(root.as_fd(), &name(path), Patience::Wait);
        assert!(open("page").is_ok());
        assert!(open("fine").is_ok());
        for path in ["up", "absolute", "../secret", "/etc/passwd"] {
            assert!(is_escape(&open(path).expect_err(path)), "{path}");
        }
    }

    #[test]
    fn file_system_reports_free_space() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let found = space(folder.path()).expect("there");
        assert!(0 < found.bytes_free && found.bytes_free <= found.bytes_total, "{found:?}");
        assert!(space(Path::new("/nowhere")).is_err());
        assert_eq!(space(Path::new("/proc")).expect("mounted").bytes_total, 0, "it has no storage");
        sync_file_system(File::open(folder.path()).expect("opened")).expect("written out");
    }

    #[test]
    fn opening_pipe_does_not_block() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        let root = open_root(folder.path(), Patience::Wait).expect("opened");
        let pipe = open_beneath(root.as_fd(), &name("pipe"), Patience::Wait).expect("opened");
        assert_eq!(status(&pipe).expect("status").kind, Kind::Other);
    }

    #[test]
    fn open_waits_for_lease() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("file");
        std::fs::write(&path, "text").expect("written");
        let holder = File::options().read(true).write(true).open(&path).expect("opened");
        // The signal that requests the end of the lease would otherwise end this process.
        // SAFETY: both take plain numbers, the descriptor is open. JUSTIFICATION: rustix has neither call.
        let lease = |kind: libc::c_int| unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
            libc::fcntl(holder.as_raw_fd(), libc::F_SETLEASE, kind)
        };
        assert_eq!(lease(libc::F_WRLCK), 0, "a file system without leases: set TMPDIR to another");
        let root = open_root(folder.path(), Patience::Wait).expect("opened");
        let open = |patience| open_beneath(root.as_fd(), &name("file"), patience);
        assert_eq!(open(Patience::Now).expect_err("leased").kind(), io::ErrorKind::WouldBlock);
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| open(Patience::Wait));
            std::thread::sleep(Duration::from_millis(30));
            assert_eq!(lease(libc::F_UNLCK), 0);
            assert!(opened.join().expect("no panic").is_ok());
        });
    }

    #[test]
    fn nonresident_page_is_reported() {
        let folder = tempfile::tempdir_in(".").expect("a directory on a disk");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 1 << 20]).expect("written");
        let file = File::open(&path).expect("opened");
        assert!(is_resident(&file, 0));
        assert!(!is_resident(&file, 1 << 20), "beyond the end");
        file.sync_all().expect("synced");
        // On a busy machine other processes may hold pages for a moment, which are not evicted then.
        for _ in 0..1000 {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
            if !is_resident(&file, 0) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!is_resident(&file, 0), "evicted; if the build directory is not on a disk, build elsewhere");
        let mut buffer = [0; 100];
        let error = read_at(&file, &mut buffer, 0, Patience::Now).expect_err("not in memory");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(read_at(&file, &mut buffer, 0, Patience::Wait).expect("read"), 100);
        assert!(is_resident(&file, 0));
    }
}
