//! A file system in memory with a history, so that a test can ask which file a name referred to during a request.
//!
//! A file that is replaced gets a new inode, and a descriptor of the old one reads the old bytes. A file that is
//! changed in place keeps its inode, and a descriptor reads its current bytes: [`FakeFile`] is such a descriptor.
//! Unlike in a real file system, timestamps distinguish all changes: two states never look alike.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use amped_core::event::{Found, Missing, Opened, Work};
use amped_core::file::{FileHandle, FileVersion, Stored};
use amped_core::listing::{self, Listing};
use amped_http::negotiate::Coding;
use amped_units::Time;

/// The start of the simulation, seconds since 1970.
pub(crate) const WALL_START: i64 = 1_795_219_200;

/// The meaning of a path from some time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Absent,
    Forbidden,
    Directory,
    File(Rc<Vec<u8>>),
}

/// A file's inode.
#[derive(Debug)]
struct Inode {
    number: u64,
    bytes: RefCell<Rc<Vec<u8>>>,
    changed_ns: RefCell<i64>,
}

impl Inode {
    fn version(self: &Rc<Inode>) -> FileVersion {
        let (size, changed_ns) = (self.bytes.borrow().len() as u64, *self.changed_ns.borrow());
        FileVersion {
            device: 1,
            inode: self.number,
            size,
            mtime_ns: changed_ns,
            ctime_ns: changed_ns,
            is_changing: false,
            is_unpacked: false,
        }
    }

    fn content(self: &Rc<Inode>, in_memory_max: u64) -> Stored<FakeFile> {
        let bytes = self.bytes.borrow();
        match bytes.len() as u64 <= in_memory_max {
            true => Stored::Memory(bytes.as_slice().into()),
            false => Stored::File(FakeFile(Rc::clone(self))),
        }
    }
}

/// An opened file.
#[derive(Clone, Debug)]
pub(crate) struct FakeFile(Rc<Inode>);

impl FakeFile {
    /// The current bytes in this range; `None` if the file has become too short.
    pub(crate) fn read(&self, range: Range<u64>) -> Option<Vec<u8>> {
        self.0.bytes.borrow().get(range.start as usize..range.end as usize).map(<[u8]>::to_vec)
    }
}

impl FileHandle for FakeFile {
    fn has_bytes_of(&self, version: &FileVersion) -> bool {
        *self.0.changed_ns.borrow() == version.mtime_ns
    }
}

#[derive(Clone, Debug)]
enum Node {
    Directory,
    File(Rc<Inode>),
    Forbidden,
}

/// The file system.
#[derive(Debug, Default)]
pub(crate) struct Files {
    nodes: BTreeMap<String, Node>,
    past: BTreeMap<String, Vec<(Time, State)>>,
    /// When names in a directory were last added or removed.
    folders: BTreeMap<String, i64>,
    changes: u64,
}

impl Files {
    /// Creates a file, or replaces one, as `mv` does.
    pub(crate) fn replace(&mut self, now: Time, path: &str, bytes: impl Into<Vec<u8>>) {
        self.changes += 1;
        let bytes = Rc::new(bytes.into());
        let number = self.changes;
        let inode = Inode { number, bytes: RefCell::default(), changed_ns: RefCell::default() };
        self.nodes.insert(path.into(), Node::File(Rc::new(inode)));
        self.touch_folder(now, path);
        self.change(now, path, |_| bytes);
    }

    /// Changes a file in place.
    pub(crate) fn change(&mut self, now: Time, path: &str, to: impl FnOnce(&[u8]) -> Rc<Vec<u8>>) {
        let Some(Node::File(inode)) = self.nodes.get(path) else {
            return;
        };
        self.changes += 1;
        let bytes = to(&inode.bytes.borrow());
        *inode.changed_ns.borrow_mut() = WALL_START * 1_000_000_000 + now.as_nanos() as i64 + self.changes as i64;
        *inode.bytes.borrow_mut() = Rc::clone(&bytes);
        self.note(now, path, State::File(bytes));
    }

    /// Truncates a file in place.
    pub(crate) fn truncate(&mut self, now: Time, path: &str, length: usize) {
        self.change(now, path, |old| Rc::new(old[..length.min(old.len())].to_vec()));
    }

    /// Appends to a file in place.
    pub(crate) fn append(&mut self, now: Time, path: &str, more: &[u8]) {
        self.change(now, path, |old| Rc::new([old, more].concat()));
    }

    /// Removes a name.
    pub(crate) fn delete(&mut self, now: Time, path: &str) {
        self.nodes.remove(path);
        self.touch_folder(now, path);
        self.note(now, path, State::Absent);
    }

    /// Creates an unreadable file.
    pub(crate) fn forbid(&mut self, now: Time, path: &str) {
        self.nodes.insert(path.into(), Node::Forbidden);
        self.note(now, path, State::Forbidden);
    }

    /// Creates a directory; its path has no final slash.
    pub(crate) fn directory(&mut self, now: Time, path: &str) {
        self.nodes.insert(path.into(), Node::Directory);
        self.touch_folder(now, path);
        self.note(now, path, State::Directory);
    }

    fn touch_folder(&mut self, now: Time, path: &str) {
        self.changes += 1;
        let at = WALL_START * 1_000_000_000 + now.as_nanos() as i64 + self.changes as i64;
        self.folders.insert(path[..path.rfind('/').unwrap_or(0)].into(), at);
    }

    fn folder_version(&self, path: &str) -> FileVersion {
        let at = self.folders.get(path.trim_end_matches('/')).copied().unwrap_or_default();
        FileVersion { device: 1, inode: 0, size: 0, mtime_ns: at, ctime_ns: at, is_changing: false, is_unpacked: false }
    }

    /// The current meaning of a path.
    pub(crate) fn bytes(&self, path: &str) -> Option<Rc<Vec<u8>>> {
        match self.nodes.get(path) {
            Some(Node::File(inode)) => Some(Rc::clone(&inode.bytes.borrow())),
            _ => None,
        }
    }

    fn note(&mut self, now: Time, path: &str, state: State) {
        self.past.entry(path.into()).or_default().push((now, state));
    }

    /// All meanings of a path between two times.
    pub(crate) fn states(&self, path: &str, from: Time, to: Time) -> Vec<State> {
        let past = self.past.get(path).map_or(&[][..], Vec::as_slice);
        let before =
            past.iter().rev().find(|(since, _)| *since < from).map_or(State::Absent, |(_, state)| state.clone());
        let within = past.iter().filter(|(since, _)| (from..=to).contains(since)).map(|(_, state)| state.clone());
        std::iter::once(before).chain(within).collect()
    }

    /// Does a server's disk work, below `root`.
    pub(crate) fn look(&self, root: &str, work: &Work, in_memory_max: u64) -> Found<FakeFile> {
        match work {
            Work::Name(work) => {
                if let Some(Missing { name, coding, version }) = &work.missing {
                    let name = format!("{root}{}{}", String::from_utf8_lossy(name), coding.suffix());
                    if let Some(Node::File(inode)) = self.nodes.get(&name)
                        && inode.version() == *version
                    {
                        let content = Some(inode.content(in_memory_max));
                        return Found::Missing(Opened { coding: *coding, version: *version, object: None, content });
                    }
                }
                let path = std::str::from_utf8(&work.path).map(|path| format!("{root}{path}"));
                let Ok(path) = path else { return Found::Absent };
                let name = match (path.strip_suffix('/'), self.nodes.get(path.trim_end_matches('/'))) {
                    (None, Some(Node::Directory)) => return Found::NeedsSlash,
                    (Some(_), Some(Node::Directory)) => {
                        let index = format!("{path}index.html");
                        match self.nodes.contains_key(&index) {
                            true => index,
                            false => return Found::Directory(self.folder_version(&path)),
                        }
                    }
                    (Some(_), _) => return Found::Absent,
                    (None, _) => path,
                };
                let mut files = Vec::new();
                for coding in [Coding::Identity, Coding::Brotli, Coding::Gzip] {
                    match self.nodes.get(&format!("{name}{}", coding.suffix())) {
                        Some(Node::File(inode)) => {
                            let version = inode.version();
                            let known = work.known.contains(&version);
                            let content = (!known).then(|| inode.content(in_memory_max));
                            files.push(Opened { coding, version, object: None, content });
                        }
                        Some(Node::Forbidden) if files.is_empty() => return Found::Forbidden,
                        _ if files.is_empty() => return Found::Absent,
                        _ => {}
                    }
                }
                Found::File { name: name.as_bytes()[root.len()..].into(), files, not_unpacked: None }
            }
            Work::List(work) => {
                let path = format!("{root}{}", String::from_utf8_lossy(&work.path));
                if !matches!(self.nodes.get(path.trim_end_matches('/')), Some(Node::Directory)) {
                    return Found::Absent;
                }
                let inside = self.nodes.iter().filter_map(|(name, node)| Some((name.strip_prefix(&path)?, node)));
                let entries = inside.filter(|(name, _)| !name.is_empty() && !name.contains('/')).map(|(name, node)| {
                    let is_directory = matches!(node, Node::Directory);
                    listing::Entry { name: name.as_bytes().to_vec(), is_directory, size: 1, modified_seconds: 1 }
                });
                let page = listing::render(&work.path, entries.collect(), work.order, work.form);
                let version = self.folder_version(&path);
                Found::Listing(Listing::new(page, version.ctime_ns, Some(version)))
            }
        }
    }
}
