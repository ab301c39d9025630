//! inotify(7): reports changes in directories.
//!
//! A watch applies to what was opened, not to what a name refers to by now: the
//! path is that of a descriptor in `/proc`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// A set of watches, and their pending events.
#[derive(Debug)]
pub struct Inotify {
    fd: OwnedFd,
}

/// A watch: the same for all descriptors of one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Watch(i32);

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The watch that it belongs to.
    pub watch: Watch,
    /// The name in the directory; empty: the directory or file itself.
    pub name: &'a [u8],
    /// What happened.
    pub what: What,
    /// Whether it concerns a directory.
    pub is_folder: bool,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Events of any watch were lost.
    Overflow,
    /// The watch was removed.
    Ended,
    /// A writer has closed the file.
    Written,
    /// Mode, owner, times or number of links have changed.
    Status,
    /// A name was added or removed, or refers to another file.
    Name,
}

impl Inotify {
    /// Creates a set without watches.
    ///
    /// # Errors
    /// Those of inotify_init1(2), `EMFILE` if the user has too many.
    pub fn new() -> io::Result<Inotify> {
        Ok(Inotify { fd: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)? })
    }

    /// Watches a directory and the names in it. May wait for the disk.
    ///
    /// # Errors
    /// Those of inotify_add_watch(2): see [`is_full`]; without permission to read the directory; without `/proc`.
    pub fn watch_folder(&self, folder: impl AsFd) -> io::Result<Watch> {
        let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
        self.watch(folder, names | OF_ITSELF | WatchFlags::ONLYDIR)
    }

    /// Watches a file under all its names. May wait for the disk.
    ///
    /// # Errors
    /// Those of [`watch_folder`](Inotify::watch_folder).
    pub fn watch_file(&self, file: impl AsFd) -> io::Result<Watch> {
        self.watch(file, OF_ITSELF)
    }

    fn watch(&self, fd: impl AsFd, flags: WatchFlags) -> io::Result<Watch> {
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        Ok(Watch(inotify::add_watch(&self.fd, path, flags)?))
    }

    /// Removes a watch. It is not an error if it has ended already.
    pub fn remove(&self, watch: Watch) {
        let _ = inotify::remove_watch(&self.fd, watch.0);
    }

    /// Takes pending events, up to a limit.
    pub fn take(&self, mut f: impl FnMut(Event<'_>)) {
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = Reader::new(&self.fd, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let flags = event.events();
                    let what = if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                        What::Overflow
                    } else if flags.contains(ReadFlags::IGNORED) {
                        What::Ended
                    } else if flags.contains(ReadFlags::CLOSE_WRITE) {
                        What::Written
                    } else if flags.contains(ReadFlags::ATTRIB) {
                        What::Status
                    } else {
                        What::Name
                    };
                    let name = event.file_name().map_or(&b""[..], |name| name.to_bytes());
                    f(Event { watch: Watch(event.wd()), name, what, is_folder: flags.contains(ReadFlags::ISDIR) });
                }
                Err(Errno::INTR) => {}
                // No event is pending.
                Err(_) => return,
            }
            if reader.is_buffer_empty() {
                return;
            }
        }
    }
}

const OF_ITSELF: WatchFlags =
    WatchFlags::CLOSE_WRITE.union(WatchFlags::ATTRIB).union(WatchFlags::DELETE_SELF).union(WatchFlags::MOVE_SELF);

/// Returns whether an error means that the user has reached the limit on watches (fs.inotify.max_user_watches).
pub fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOSPC.raw_os_error())
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn events_report_names() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("target"), "x").expect("written");
        let inotify = Inotify::new().expect("made");
        let opened = File::open(folder.path()).expect("opened");
        let watch = inotify.watch_folder(&opened).expect("watched");
        let again = File::open(folder.path().join(".")).expect("opened");
        assert_eq!(inotify.watch_folder(&again).expect("watched"), watch);
        let events = || {
            let mut all = Vec::new();
            inotify.take(|Event { watch: at, name, what, is_folder }| {
                assert_eq!(at, watch);
                all.push((String::from_utf8_lossy(name).into_owned(), what, is_folder));
            });
            all
        };
        let event = |name: &str, what| (name.to_owned(), what, false);
        assert_eq!(events(), []);
        fs::write(path("a"), "x").expect("written");
        assert_eq!(events(), [event("a", What::Name), event("a", What::Written)]);
        fs::rename(path("a"), path("b")).expect("renamed");
        assert_eq!(events(), [event("a", What::Name), event("b", What::Name)]);
        fs::create_dir(path("c")).expect("made");
        assert_eq!(events(), [("c".to_owned(), What::Name, true)]);
        fs::set_permissions(path("b"), fs::metadata(path("b")).expect("there").permissions()).expect("set");
        assert_eq!(events(), [event("b", What::Status)]);
        fs::remove_dir(path("c")).expect("removed");
        assert_eq!(events(), [("c".to_owned(), What::Name, true)]);
        inotify.remove(watch);
        assert_eq!(events(), [event("", What::Ended)]);
        inotify.remove(watch);
        // A file is watched under all its names.
        let watch = inotify.watch_file(File::open(path("target")).expect("opened")).expect("watched");
        fs::rename(path("b"), path("target")).expect("replaced");
        let mut all = Vec::new();
        inotify.take(|event| all.push((event.watch, event.what)));
        assert_eq!(all[0], (watch, What::Status), "a name was removed");
    }
}
