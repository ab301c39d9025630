//! Stop 8 of 10: a disk lookup, in the loop if that cannot block, otherwise in a helper.
//!
//! Before it, `core/decide` (stop 7) missed the caches; after it, `decide` continues with the result, and
//! `core/reply` (stop 9) builds the response.
//!
//! Loop and helper use one function with different [`Effort`]: with [`Effort::Now`] every step uses a system call that
//! fails rather than waits, and the first that would wait ends the attempt. A helper then repeats the whole step from
//! the start, with [`Effort::Defer`]: open, stat, siblings, and the first bytes, in one hand-off. It does not sleep while
//! a file is being written: the loop asks again, until it asks with [`Effort::Accept`].
//!
//! Whatever the name, the kernel confines the lookup to the site's root (`openat2`, `RESOLVE_BENEATH`), unless
//! `symlinks` permits otherwise; see `sys/links`.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use amped_core::app::AppTrouble;
use amped_core::event::{self, Delay, Found, ListWork, Missing, NameWork, Opened, Trouble, Work};
use amped_core::file::{FileHandle, FileVersion, NotUnpacked, ObjectHead, Stored};
use amped_core::listing::{self, Entry, Listing};
use amped_core::shared_state::SharedState;
use amped_core::site::{Site, Sites, Symlinks};
use amped_core::variants;
use amped_http::negotiate::Coding;
use amped_sys::file::{self, Kind, Patience};
use amped_sys::links::{self, Links, RefusedLink};
use amped_sys::mapping::Mapping;
use amped_sys::process;
use amped_units::{Bytes, Time};
use serde::{Deserialize, Serialize};

use crate::listings::Listings;
use crate::notes::Notes;
use crate::object_store::settings::Location;
use crate::object_store::{self, Bucket, ObjectFile, ObjectStore, ObjectWindows};
use crate::open_file::{MappedWindows, OpenFile, WINDOW, version_of};
use crate::residency::Residency;
use crate::say;
use crate::unpack;

/// The roots of all sites, and how to answer from them. Shared by loops and helpers.
#[derive(Debug)]
pub struct Disk {
    sites: Arc<Sites>,
    /// Those of the sites by number, then those of their aliases.
    roots: Vec<Root>,
    /// Users' directories that were looked up, by user name; `None`: there is no such user or directory.
    users: Mutex<HashMap<Vec<u8>, UserRoot>>,
    rules: Rules,
    residency: Arc<Residency>,
    mapped: MappedWindows,
    /// Roots and users' directories that were looked up before this moment are looked up again: nanoseconds since
    /// `start`.
    forgotten_ns: AtomicU64,
    start: Instant,
    /// Receives the names that become cached, if directories are watched.
    notes: OnceLock<Arc<Notes>>,
    /// The files that are never served; `None` before the first lookup.
    secrets: Mutex<Option<Secrets>>,
    /// Names already reported because their symbolic links were refused or they were not unpacked.
    refused: Mutex<HashSet<(u16, Box<[u8]>)>>,
    /// Listings that threads sharing this disk are creating.
    pub listings: Listings,
}

/// Settings of a [`Disk`] that apply to all sites.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Files that are never served, whatever name or link leads to them: passwords, private keys, and secrets.
    pub secrets: Vec<OsString>,
    /// Files up to this size are read whole, bytes.
    pub max_content_file_bytes: u64,
    /// Files that exist only compressed are unpacked up to this size, bytes.
    pub max_unpacked_file_bytes: u64,
    /// A root, or a user's directory, is looked up again after this time.
    pub revalidate: Duration,
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
    /// The content, if it is in an object store; then `current` is the directory of local copies, which never changes.
    bucket: Option<Bucket>,
    current: Mutex<CurrentRoot>,
}

#[derive(Debug)]
struct CurrentRoot {
    folder: Arc<OwnedFd>,
    /// `None`: not by this process.
    checked: Option<Instant>,
}

#[derive(Debug)]
struct UserRoot {
    folder: Option<Arc<OwnedFd>>,
    checked: Instant,
}

/// The files that are never served, as of their last check: device and inode.
#[derive(Debug)]
struct Secrets {
    checked: Instant,
    files: Vec<(u64, u64)>,
}

/// Interval between checks of these files: there may be several for each site.
const SECRETS_FRESH: Duration = Duration::from_secs(1);

/// Maximum refused links and files reported under one configuration.
const REFUSALS_MAX: usize = 200;

/// Maximum user names remembered; a client can request any number.
const USERS_MAX: usize = 1024;

/// The answer, or the reason why there is none.
type DiskResult<T> = Result<T, DiskError>;

enum DiskError {
    /// [`Effort::Now`] was not enough.
    WouldWait,
    /// The same, because the file changed a moment ago.
    Fresh,
    Io(io::Error),
}

/// How long to wait for an answer that is not available at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effort {
    /// Fail: wait neither for the disk nor for a writer.
    Now,
    /// Wait for the disk, but fail for a file that has just changed: waiting for a writer takes no disk time.
    Defer,
    /// Wait for the disk, and up to [`CHANGES_MAX`] until a file is stable.
    Wait,
    /// Wait for the disk, and accept a file that is not stable.
    Accept,
}

impl Effort {
    fn patience(self) -> Patience {
        match self {
            Effort::Now => Patience::Now,
            Effort::Defer | Effort::Wait | Effort::Accept => Patience::Wait,
        }
    }
}

/// A file that changed within this time may be in the middle of several writes, and the clock of its
/// timestamps may not have advanced: before Linux 6.13 it has the resolution of a tick, up to 10 ms. So its
/// state does not yet identify one sequence of bytes.
pub const STILL: Duration = Duration::from_millis(50);

/// Maximum total wait for an unstable file. After that it is served as it is, with a weak
/// entity tag, and nothing of it is cached.
pub const CHANGES_MAX: Duration = Duration::from_secs(1);

/// Maximum checks of a file whose timestamps do not show when it changed. It is stable much sooner, or never.
const ATTEMPTS_MAX: u32 = 64;

/// write(2) sets the timestamp at its start, so during a single long call a file looks stable while
/// half of it is missing. A file that changed within this time is read after
/// [`file::wait_for_writer`], which blocks, so never in a loop.
const CONFIRM: Duration = Duration::from_secs(10);

impl From<io::Error> for DiskError {
    fn from(error: io::Error) -> DiskError {
        if error.kind() == io::ErrorKind::WouldBlock { DiskError::WouldWait } else { DiskError::Io(error) }
    }
}

impl Disk {
    /// Opens the roots; those that are in an object store are in this one.
    ///
    /// # Errors
    /// The first root that cannot be opened, with its path.
    pub fn open(
        sites: Arc<Sites>,
        roots: &[PathBuf],
        rules: Rules,
        store: Option<&Arc<ObjectStore>>,
    ) -> Result<Disk, (PathBuf, io::Error)> {
        let open_folder = |root: &PathBuf| match file::open_root(root, Patience::Wait) {
            Ok(folder) => {
                if let Err(error) = file::can_open_without_waiting(folder.as_fd()) {
                    let why = format!(
                        "openat2 with RESOLVE_CACHED fails ({error}): Linux 5.12 or later is required, and a container \
                         must allow this call"
                    );
                    return Err((root.clone(), io::Error::other(why)));
                }
                let current = CurrentRoot { folder: Arc::new(folder), checked: Some(Instant::now()) };
                Ok(Root { path: root.clone(), bucket: None, current: Mutex::new(current) })
            }
            Err(error) => Err((root.clone(), error)),
        };
        let open = |root: &PathBuf| match (Location::of(root), store) {
            (Some(Ok(location)), Some(store)) => {
                let current = CurrentRoot { folder: Arc::clone(store.folder()), checked: None };
                let bucket = Some(Bucket::new(Arc::clone(store), location));
                Ok(Root { path: root.clone(), bucket, current: Mutex::new(current) })
            }
            _ => open_folder(root),
        };
        let roots = roots.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Disk::new(sites, roots, rules))
    }

    /// Creates a disk with open roots, empty caches and the default residency test.
    fn new(sites: Arc<Sites>, roots: Vec<Root>, rules: Rules) -> Disk {
        Disk {
            sites,
            roots,
            users: Mutex::default(),
            rules,
            residency: Arc::new(Residency::Nowait),
            mapped: MappedWindows::new(0),
            forgotten_ns: AtomicU64::new(0),
            start: Instant::now(),
            notes: OnceLock::new(),
            secrets: Mutex::default(),
            refused: Mutex::default(),
            listings: Listings::default(),
        }
    }

    /// Replaces the residency test, and sets the room for mapped windows.
    pub fn with(self, residency: Arc<Residency>, mapped: MappedWindows) -> Disk {
        Disk { residency, mapped, ..self }
    }

    /// Returns the residency test.
    pub fn residency(&self) -> &Arc<Residency> {
        &self.residency
    }

    /// Returns the mapped windows of files.
    pub fn mapped(&self) -> &MappedWindows {
        &self.mapped
    }

    /// Returns the roots of this process, where they are now, and the sites to which they belong, for
    /// [`of_parts`](Disk::of_parts). Those of aliases come last, without a site.
    pub fn parts(&self) -> impl Iterator<Item = (Option<&Site>, &Path, Arc<OwnedFd>)> {
        (0..).zip(&self.roots).map(|(number, root)| {
            let current = root.current.lock().unwrap_or_else(PoisonError::into_inner);
            (self.sites.get(number), &*root.path, Arc::clone(&current.folder))
        })
    }

    /// Returns the settings that apply to all sites.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Creates the same disk in another process, with empty caches. Returns `None` if there is no site.
    pub fn of_parts(rules: Rules, parts: Vec<(Option<Site>, PathBuf, OwnedFd)>) -> Option<Disk> {
        let (sites, roots): (Vec<Option<Site>>, _) = parts
            .into_iter()
            .map(|(site, path, folder)| {
                let current = CurrentRoot { folder: Arc::new(folder), checked: None };
                (site, Root { path, bucket: None, current: Mutex::new(current) })
            })
            .unzip();
        Some(Disk::new(Arc::new(Sites::new(sites.into_iter().flatten().collect())?), roots, rules))
    }

    /// Records that a helper process has read these files, so that they are in memory.
    pub fn was_brought(&self, found: &Found<OpenFile>) {
        for Opened { version, content, .. } in found.files() {
            let end = match content {
                Some(Stored::Memory(_)) if version.is_unpacked => continue,
                Some(Stored::Memory(_)) => version.size,
                Some(Stored::File(_)) => version.size.min(WINDOW),
                None => continue,
            };
            if end > 0 {
                self.residency.was_read(version, &(0..end));
            }
        }
    }

    /// Updates the caches with an answer, and has the directories on the path of the file watched.
    pub fn learn(
        &self,
        requested: Time,
        work: &Work,
        found: Found<OpenFile>,
        shared: &mut SharedState<OpenFile>,
    ) -> event::Answer<OpenFile> {
        // First: an event that follows from the note must not precede the entry.
        if let (Work::Name(name), Some(notes)) = (work, self.notes.get())
            && !self.is_remote(work)
        {
            notes.note(name.site, &name.path);
        }
        let sites = Arc::clone(&shared.sites);
        shared.caches.learn(requested, work, found, &sites)
    }

    /// Reports cached names to the watcher from now on.
    pub fn set_notes(&self, notes: Arc<Notes>) {
        // There is one for each disk side, created where the workers are started.
        let _ = self.notes.set(notes);
    }

    /// Returns where cached names are reported, if directories are watched.
    pub fn notes(&self) -> Option<&Notes> {
        self.notes.get().map(|notes| &**notes)
    }

    /// Returns the sites.
    pub fn sites(&self) -> &Sites {
        &self.sites
    }

    /// Opens a directory for watching. Waits for the disk.
    ///
    /// # Errors
    /// Those of openat2(2).
    pub fn folder(&self, site: u16, path: &[u8]) -> io::Result<OwnedFd> {
        let (root, path) = self.beneath(site, path)?;
        file::open_root_beneath(root.folder()?.as_fd(), if path.is_empty() { c"." } else { &path }, Patience::Wait)
    }

    /// Opens the file of this name, if the last component is a link. Waits for the disk.
    pub fn behind_link(&self, site: u16, path: &[u8]) -> Option<OwnedFd> {
        let (root, path) = self.beneath(site, path).ok()?;
        let status = file::status_at(root.folder().ok()?, &path).ok()?;
        let opened = (status.kind == Kind::Link).then(|| root.open(&path, Patience::Wait))?.ok()?;
        (file::status(&opened).ok()?.kind == Kind::Regular).then_some(opened)
    }

    /// Returns the files that this name may be served from: the file itself or a
    /// directory's index files, and their siblings.
    pub fn files_of(&self, site: u16, path: &[u8]) -> Vec<Arc<[u8]>> {
        let Some(site) = self.sites.get(site) else { return Vec::new() };
        let indexes = site.index.iter().map(|index| [path, index.as_bytes()].concat());
        let own = if path.ends_with(b"/") { indexes.collect() } else { vec![path.to_vec()] };
        let codings = [Coding::Identity].into_iter().chain(site.precompressed.iter().copied());
        let suffixes: Vec<&[u8]> = codings.map(|coding| coding.suffix().as_bytes()).collect();
        own.iter().flat_map(|file| suffixes.iter().map(move |suffix| [&**file, suffix].concat().into())).collect()
    }

    /// Finds the script of an application: the first of these prefixes of the path that is a file of the site. Users'
    /// directories have none: a user who may put a file there must not run it as the server's user. Waits for the disk.
    ///
    /// # Errors
    /// Why there is none.
    pub fn script(&self, site: u16, path: &[u8], ends: &[usize]) -> Result<Script, AppTrouble> {
        let Some(rules) = self.sites.get(site) else {
            return Err(AppTrouble::Absent);
        };
        if rules.user_dir.is_some() && path.starts_with(b"/~") {
            return Err(AppTrouble::Forbidden);
        }
        for &end in ends {
            let opened = self.beneath(site, &path[..end]).and_then(|(folder, name)| {
                let name = if name.is_empty() { c".".into() } else { name };
                let file = folder.open(&name, Patience::Wait)?;
                Ok((file::status(&file)?.kind, name, file))
            });
            match opened {
                Ok((Kind::Regular, name, file)) => {
                    let root = self.root_of(rules.place(&path[..end]).0).unwrap_or(Path::new("/"));
                    let path = root.join(OsStr::from_bytes(name.to_bytes()));
                    return Ok(Script { end, path, file });
                }
                Ok((Kind::Directory, ..)) => {}
                Ok(_) => return Err(AppTrouble::Forbidden),
                Err(error) if is_absence(&error) => return Err(AppTrouble::Absent),
                Err(error) if file::is_exhaustion(&error) => return Err(AppTrouble::Busy),
                Err(error) => {
                    self.note_refusal(site, path, &error);
                    return Err(AppTrouble::Forbidden);
                }
            }
        }
        Err(AppTrouble::Absent)
    }

    /// Returns the path of a root, by its number or that of its site.
    pub fn root_of(&self, site: u16) -> Option<&Path> {
        self.roots.get(usize::from(site)).map(|root| &*root.path)
    }

    fn beneath(&self, site: u16, path: &[u8]) -> io::Result<(Tree, CString)> {
        let absent = || io::Error::from(io::ErrorKind::NotFound);
        let site = self.sites.get(site).ok_or_else(absent)?;
        match self.place(site, path, Patience::Wait) {
            Ok(Some(Place { root, path: Some(path) })) => Ok((root, c_string(path)?)),
            Ok(_) | Err(DiskError::WouldWait | DiskError::Fresh) => Err(absent()),
            Err(DiskError::Io(error)) => Err(error),
        }
    }

    /// Returns the bucket that has the content of this path, and its path there, if it is in an object store.
    fn bucket<'a>(&self, site: u16, path: &'a [u8]) -> Option<(&Bucket, &'a [u8])> {
        let site = self.sites.get(site)?;
        if site.user_dir.is_some() && path.starts_with(b"/~") {
            return None;
        }
        let (number, path) = site.place(path);
        Some((self.roots.get(usize::from(number))?.bucket.as_ref()?, path.unwrap_or_default()))
    }

    /// Returns whether the work may have to wait for an object store, which takes longer than any disk.
    pub fn is_remote(&self, work: &Work) -> bool {
        let (Work::Name(NameWork { site, path, .. }) | Work::List(ListWork { site, path, .. })) = work;
        self.bucket(*site, path).is_some()
    }

    /// Makes the next look at the files of this name ask the object store, if they are in one.
    pub fn purge(&self, site: u16, path: &[u8]) {
        let names = self.files_of(site, path);
        for path in names.iter().map(|name| &**name).chain([path]) {
            if let Some((bucket, path)) = self.bucket(site, path) {
                bucket.purge(path);
            }
        }
    }

    /// Makes the next use of each root and user's directory look it up again.
    pub fn forget_folders(&self) {
        let since = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.forgotten_ns.fetch_max(since, Ordering::Relaxed);
    }

    /// Returns when that was last requested; it changes each time.
    pub fn folders_forgotten(&self) -> Duration {
        Duration::from_nanos(self.forgotten_ns.load(Ordering::Relaxed))
    }

    /// Returns whether a result that was looked up at this time is still valid.
    pub fn trusts(&self, checked: Instant) -> bool {
        checked >= self.start + self.folders_forgotten() && checked.elapsed() < self.rules.revalidate
    }

    /// Performs the work.
    ///
    /// # Errors
    /// Only with [`Effort::Now`] and [`Effort::Defer`]: what it would have had to wait for.
    pub fn perform(&self, work: &Work, effort: Effort) -> Result<Found<OpenFile>, Delay> {
        let found = match work {
            Work::Name(work) => self.name(work, effort),
            // No system call reads a directory without waiting.
            Work::List(_) if self.for_names(effort) == Patience::Now => Err(DiskError::WouldWait),
            Work::List(work) => self.list(work),
        };
        match found {
            Ok(found) => Ok(found),
            Err(DiskError::Io(error)) => {
                let (Work::Name(NameWork { site, path, .. }) | Work::List(ListWork { site, path, .. })) = work;
                self.note_refusal(*site, path, &error);
                Ok(explain(&error))
            }
            Err(DiskError::Fresh) => Err(Delay::Change),
            Err(DiskError::WouldWait) if effort == Effort::Now => Err(Delay::Disk),
            Err(DiskError::WouldWait) => Ok(Found::Trouble(Trouble::Failed)),
        }
    }

    /// Reports once for each name which symbolic link is not followed, and why.
    fn note_refusal(&self, site: u16, path: &[u8], error: &io::Error) {
        if let Some(why) = RefusedLink::of(error) {
            self.note_once(site, path, format_args!("is refused: {why} (see `symlinks`)"));
        }
    }

    /// Reports an event once for each name.
    fn note_once(&self, site: u16, path: &[u8], what: fmt::Arguments<'_>) {
        let mut noted = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        // A client can request any number of names beyond one link.
        if noted.len() < REFUSALS_MAX && noted.insert((site, path.into())) {
            drop(noted);
            let root = self.root_of(site).unwrap_or(Path::new("/")).display();
            let path = String::from_utf8_lossy(path);
            say!("{root}: {} {what}", path.escape_debug());
        }
    }

    /// Returns whether names may be waited for. Without a residency test they always are; only the pause for an
    /// unstable file is not made in the loop, because pausing is not work.
    fn for_names(&self, effort: Effort) -> Patience {
        if matches!(*self.residency, Residency::None) { Patience::Wait } else { effort.patience() }
    }

    fn name(&self, work: &NameWork, effort: Effort) -> DiskResult<Found<OpenFile>> {
        let names = self.for_names(effort);
        let Some(site) = self.sites.get(work.site) else {
            return Ok(Found::Absent);
        };
        if let Some(missing) = &work.missing
            && let Some(opened) = self.missing(site, missing, work.from, effort)?
        {
            return Ok(Found::Missing(opened));
        }
        let Some(Place { root, path }) = self.place(site, &work.path, names)? else {
            return Ok(Found::Absent);
        };
        let root = root.beginning_at(work.from);
        let Some(path) = path else {
            return Ok(Found::NeedsSlash);
        };
        if path.ends_with(b"/") || path.is_empty() {
            for index in &site.index {
                let index = index.as_bytes();
                match root.open_regular(&[path, index].concat(), names) {
                    Ok(Some(opened)) => {
                        let name = [&*work.path, index].concat();
                        return self.found(site, &root, &[path, index].concat(), name.into(), opened, work, effort);
                    }
                    Ok(None) => {}
                    Err(DiskError::Io(error)) if is_absence(&error) => {
                        if let Some(found) = self.variants(&root, (path, index), work, effort)? {
                            return Ok(found);
                        }
                        let name = [&*work.path, index].concat().into();
                        if let Some(found) = self.lone(site, &root, &[path, index].concat(), name, work, effort)? {
                            return Ok(found);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        let Tree::Folder(above, _) = &root else {
            return self.object(site, &root, path, work, effort);
        };
        let folder = if path.is_empty() { b"." } else { path };
        let folder = c_string(folder)?;
        let opened = match root.open(&folder, names) {
            // A directory may be searchable but not readable (mode 711, as homes have).
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && RefusedLink::of(&error).is_none()
                    && !path.ends_with(b"/")
                    && !path.is_empty() =>
            {
                return match file::is_directory_beneath(above.as_fd(), &folder, names)? {
                    true => Ok(Found::NeedsSlash),
                    false => Err(error.into()),
                };
            }
            Err(error) if is_absence(&error) && !path.ends_with(b"/") => {
                return self.other_form(site, &root, path, work, effort)?.ok_or(error.into());
            }
            opened => opened?,
        };
        let status = file::status(&opened)?;
        match status.kind {
            Kind::Regular => {
                let opened = Opening { file: opened, status, object: None, windows: None };
                self.found(site, &root, path, Arc::clone(&work.path), opened, work, effort)
            }
            Kind::Directory if path.ends_with(b"/") || path.is_empty() => Ok(Found::Directory(version_of(&status))),
            Kind::Directory => Ok(Found::NeedsSlash),
            Kind::Link | Kind::Other => Ok(Found::Forbidden),
        }
    }

    /// Looks an object up. A key may be both that of an object and the beginning of others.
    fn object(
        &self,
        site: &Site,
        root: &Tree,
        path: &[u8],
        work: &NameWork,
        effort: Effort,
    ) -> DiskResult<Found<OpenFile>> {
        let Tree::Objects(bucket, _) = root else { return Ok(Found::Absent) };
        let names = self.for_names(effort);
        if path.ends_with(b"/") || path.is_empty() {
            return Ok(bucket.prefix(path, names)?.map_or(Found::Absent, Found::Directory));
        }
        match root.open_regular(path, names) {
            Ok(Some(opened)) => return self.found(site, root, path, Arc::clone(&work.path), opened, work, effort),
            Err(DiskError::Io(error)) if is_absence(&error) => {}
            Ok(None) => {}
            Err(error) => return Err(error),
        }
        if let Some(found) = self.other_form(site, root, path, work, effort)? {
            return Ok(found);
        }
        match bucket.prefix(&[path, b"/"].concat(), names) {
            Ok(Some(_)) => Ok(Found::NeedsSlash),
            // Whether objects may be listed does not matter here.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error.into()),
            Ok(None) | Err(_) => Ok(Found::Absent),
        }
    }

    /// Returns the variants, or else the compressed sibling, of a missing file.
    fn other_form(
        &self,
        site: &Site,
        root: &Tree,
        path: &[u8],
        work: &NameWork,
        effort: Effort,
    ) -> DiskResult<Option<Found<OpenFile>>> {
        let (folder, requested) = path.split_at(path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1));
        match self.variants(root, (folder, requested), work, effort)? {
            None => self.lone(site, root, path, Arc::clone(&work.path), work, effort),
            found => Ok(found),
        }
    }

    /// Returns the files in a directory, whose path ends in a slash or is empty, that may be variants of a missing
    /// name; `None` if there are none, or negotiation is off.
    fn variants(
        &self,
        root: &Tree,
        (folder, requested): (&[u8], &[u8]),
        work: &NameWork,
        effort: Effort,
    ) -> DiskResult<Option<Found<OpenFile>>> {
        if !work.variants || requested.is_empty() {
            return Ok(None);
        }
        let names = self.for_names(effort);
        // No system call reads a directory without waiting.
        if names == Patience::Now {
            return Err(DiskError::WouldWait);
        }
        let all = match root.names(folder, requested, names) {
            Err(error) if is_absence(&error) => return Ok(None),
            all => all?,
        };
        let is_candidate = |name: &Vec<u8>| variants::may_be_variant(requested, name);
        let mut candidates: Vec<Vec<u8>> = all.into_iter().filter(is_candidate).collect();
        candidates.sort();
        // The document itself in a single other coding.
        if let [only] = &candidates[..]
            && only.strip_suffix(Coding::Gzip.suffix().as_bytes()) == Some(requested)
        {
            return Ok(None);
        }
        let above = work.path.len() - work.path.iter().rev().take_while(|&&byte| byte != b'/').count();
        let (mut paths, mut files): (Vec<Arc<[u8]>>, _) = (Vec::new(), Vec::new());
        let mut failed = None;
        for name in candidates.into_iter().take(variants::CANDIDATES_MAX) {
            match root.open_regular(&[folder, &name].concat(), names) {
                Ok(Some(opened)) => match self.load(Coding::Identity, opened, &work.known, effort) {
                    Ok(opened) => {
                        files.push(opened);
                        paths.push([&work.path[..above], &name].concat().into());
                    }
                    Err(DiskError::Io(error)) => failed = failed.or(Some(error)),
                    Err(wait) => return Err(wait),
                },
                Ok(None) => {}
                // The others serve; if there are none, an unreadable one is not the same as a missing one.
                Err(DiskError::Io(error)) => failed = failed.or((!is_absence(&error)).then_some(error)),
                Err(wait) => return Err(wait),
            }
        }
        match failed {
            Some(error) if files.is_empty() => Err(error.into()),
            _ => Ok((!files.is_empty()).then_some(Found::Variants { names: paths, files })),
        }
    }

    /// Returns the sibling that represents a missing file: compressed with gzip, which nearly all clients accept, and
    /// unpacked for the others. `None` if there is none either, or siblings are disabled.
    fn lone(
        &self,
        site: &Site,
        root: &Tree,
        path: &[u8],
        name: Arc<[u8]>,
        work: &NameWork,
        effort: Effort,
    ) -> DiskResult<Option<Found<OpenFile>>> {
        let coding = Coding::Gzip;
        if !site.precompressed.contains(&coding) {
            return Ok(None);
        }
        let opened = match root.open_regular(&[path, coding.suffix().as_bytes()].concat(), self.for_names(effort)) {
            Ok(opened) => opened,
            Err(DiskError::Io(error)) if is_absence(&error) => None,
            Err(error) => return Err(error),
        };
        let Some(opened) = opened else { return Ok(None) };
        let known = work.known.iter().find(|known| known.is_unpacked_of(&version_of(&opened.status)));
        if let Some(&version) = known {
            let packed = self.load(coding, opened, &work.known, effort)?;
            let unpacked = Opened { coding: Coding::Identity, version, object: None, content: None };
            // If it has just changed, the cached version is useless.
            let files = if version.is_unpacked_of(&packed.version) { vec![packed, unpacked] } else { vec![packed] };
            return Ok(Some(Found::File { name, files, not_unpacked: None }));
        }
        if !work.unpack {
            let files = vec![self.load(coding, opened, &work.known, effort)?];
            return Ok(Some(Found::File { name, files, not_unpacked: None }));
        }
        let packed = self.load_to_unpack(opened, effort)?;
        let (files, not_unpacked) = match self.unpack(&packed)? {
            Ok(unpacked) => (vec![packed, unpacked], None),
            Err(why) => {
                self.note_not_unpacked(work.site, &name, why);
                (vec![packed], Some(why))
            }
        };
        Ok(Some(Found::File { name, files, not_unpacked }))
    }

    /// Opens a compressed file and reads it, where waiting is allowed: unpacking takes time.
    fn load_to_unpack(&self, opened: Opening, effort: Effort) -> DiskResult<Opened<OpenFile>> {
        match effort {
            Effort::Now => Err(DiskError::WouldWait),
            Effort::Defer | Effort::Wait | Effort::Accept => self.load(Coding::Gzip, opened, &[], effort),
        }
    }

    /// Unpacks the content of a compressed file.
    fn unpack(&self, packed: &Opened<OpenFile>) -> DiskResult<Result<Opened<OpenFile>, NotUnpacked>> {
        let bytes_max = self.rules.max_unpacked_file_bytes;
        let bytes = match &packed.content {
            Some(Stored::Memory(bytes)) => unpack::gunzip(&**bytes, bytes_max)?,
            Some(Stored::File(_)) if packed.version.size > bytes_max => Err(NotUnpacked::TooLarge),
            Some(Stored::File(file)) => unpack::gunzip(file.reader(), bytes_max)?,
            None => return Err(io::Error::from(io::ErrorKind::NotFound).into()),
        };
        Ok(bytes.map(|bytes| {
            let mut version = packed.version.unpacked(bytes.len() as u64);
            if let Some(Stored::File(file)) = &packed.content {
                version.is_changing |= !file.has_bytes_of(&packed.version);
            }
            Opened { coding: Coding::Identity, version, object: None, content: Some(Stored::Memory(bytes)) }
        }))
    }

    fn note_not_unpacked(&self, site: u16, name: &[u8], why: NotUnpacked) {
        let suffix = Coding::Gzip.suffix();
        match why {
            NotUnpacked::TooLarge => {
                let max = Bytes(self.rules.max_unpacked_file_bytes);
                let what = format_args!(
                    "exists only as {suffix}, which unpacks to more than {max}: clients that do not accept \
                                         gzip get 406 (see `max_unpacked_file_bytes`)"
                );
                self.note_once(site, name, what);
            }
            NotUnpacked::Damaged => {
                let what = format_args!(
                    "exists only as {suffix}, which is damaged or truncated: clients that do not accept \
                                         gzip get 500; compress it again"
                );
                self.note_once(site, name, what);
            }
        }
    }

    /// Returns the content of a file whose version is known; `None` if the file has been replaced or removed.
    fn missing(
        &self,
        site: &Site,
        missing: &Missing,
        from: u64,
        effort: Effort,
    ) -> DiskResult<Option<Opened<OpenFile>>> {
        let names = self.for_names(effort);
        let Some(Place { root, path: Some(path) }) = self.place(site, &missing.name, names)? else {
            return Ok(None);
        };
        let root = root.beginning_at(from);
        let version = missing.version;
        let coding = if version.is_unpacked { Coding::Gzip } else { missing.coding };
        match root.open_regular(&[path, coding.suffix().as_bytes()].concat(), names) {
            Ok(Some(opened)) if version.is_unpacked_of(&version_of(&opened.status)) => {
                let packed = self.load_to_unpack(opened, effort)?;
                Ok(self.unpack(&packed)?.ok().filter(|unpacked| unpacked.version == version))
            }
            Ok(Some(opened)) if version_of(&opened.status) == missing.version => {
                let opened = self.load(missing.coding, opened, &[], effort)?;
                Ok((opened.version == missing.version).then_some(opened))
            }
            Ok(_) | Err(DiskError::Io(_)) => Ok(None),
            Err(wait) => Err(wait),
        }
    }

    /// Reads a file that was found, and its siblings.
    #[expect(clippy::too_many_arguments, reason = "a file is its root, its name and its descriptor")]
    fn found(
        &self,
        site: &Site,
        root: &Tree,
        path: &[u8],
        name: Arc<[u8]>,
        opened: Opening,
        work: &NameWork,
        effort: Effort,
    ) -> DiskResult<Found<OpenFile>> {
        let mut files = Vec::with_capacity(1 + site.precompressed.len());
        let mtime = opened.status.mtime_ns;
        files.push(self.load(Coding::Identity, opened, &work.known, effort)?);
        for &coding in &site.precompressed {
            let sibling = [path, coding.suffix().as_bytes()].concat();
            match root.open_sibling(&sibling, self.for_names(effort)) {
                // A sibling older than its original was created from an earlier version.
                Ok(Some(opened)) if opened.is_current(mtime) => match self.load(coding, opened, &work.known, effort) {
                    Ok(opened) => files.push(opened),
                    Err(DiskError::Io(_)) => {}
                    Err(wait) => return Err(wait),
                },
                // Unavailable, for whatever reason: the original serves.
                Ok(_) | Err(DiskError::Io(_)) => {}
                Err(wait) => return Err(wait),
            }
        }
        Ok(Found::File { name, files, not_unpacked: None })
    }

    /// Reads an open file: whole if it is small; otherwise its first window, into memory. Of a large object nothing is read: its windows
    /// are brought when they are about to be sent.
    ///
    /// Another process may be writing to the file, in one long call or in several. So it is read once it is stable, and
    /// the result is valid only if the state is the same before and after.
    fn load(
        &self,
        coding: Coding,
        opened: Opening,
        known: &[FileVersion],
        effort: Effort,
    ) -> DiskResult<Opened<OpenFile>> {
        let Opening { file: opened, status, object, windows } = opened;
        // The bytes of an object never change under the name of their file.
        let is_constant = object.is_some();
        if self.is_secret(&status, self.for_names(effort))? {
            return Err(DiskError::Io(io::ErrorKind::PermissionDenied.into()));
        }
        let began = Instant::now();
        let mut version = version_of(&status);
        for attempt in 0_u32.. {
            if known.contains(&version) {
                return Ok(Opened { coding, version, object, content: None });
            }
            if let Some(windows) = windows {
                let file = OpenFile::of_object(opened, windows);
                return Ok(Opened { coding, version, object, content: Some(Stored::File(file)) });
            }
            let moving_for =
                |still| if is_constant { Duration::ZERO } else { moving_for(&version, SystemTime::now(), still) };
            let moving = moving_for(STILL);
            let wait_max = CHANGES_MAX + grain(&version);
            match effort {
                _ if moving.is_zero() && attempt < ATTEMPTS_MAX => {}
                Effort::Now | Effort::Defer if !moving.is_zero() => return Err(DiskError::Fresh),
                Effort::Wait if !moving.is_zero() && began.elapsed() < wait_max => {
                    thread::sleep(moving);
                    version = version_of(&file::status(&opened)?);
                    continue;
                }
                // It is written to continuously, like a log.
                Effort::Now | Effort::Defer | Effort::Wait | Effort::Accept => {
                    version.is_changing = true;
                    break;
                }
            }
            let is_young = !moving_for(CONFIRM).is_zero();
            if is_young && effort == Effort::Now {
                return Err(DiskError::Fresh);
            }
            if is_young {
                file::wait_for_writer(&opened);
            }
            let is_small = version.size <= self.rules.max_content_file_bytes;
            let bytes = if is_small { self.read_whole(&opened, &version, effort.patience())? } else { None };
            if is_young || is_small {
                let now = version_of(&file::status(&opened)?);
                if now != version {
                    version = now;
                    continue;
                }
            }
            match bytes {
                Some(bytes) => return Ok(Opened { coding, version, object, content: Some(Stored::Memory(bytes)) }),
                None => break,
            }
        }
        if version.size > 0 {
            let first_page = || Mapping::new(&opened, 0, 1).map(Arc::new);
            match effort.patience() {
                Patience::Now if !self.residency.is_resident(&opened, &version, &(0..1), 0, first_page) => {
                    return Err(DiskError::WouldWait);
                }
                Patience::Now => {}
                Patience::Wait => {
                    let window = 0..WINDOW.min(version.size);
                    // Before the head is sent: without the first bytes the response is an error.
                    warm(&opened, 0, window.end)?;
                    self.residency.was_read(&version, &window);
                }
            }
        }
        let (file, version) = OpenFile::new(opened, version);
        Ok(Opened { coding, version, object, content: Some(Stored::File(file)) })
    }

    /// Returns whether a file in this state is never to be served. A hard link, or a link out of the root if those are
    /// followed, may lead to it under any name.
    fn is_secret(&self, status: &file::Status, patience: Patience) -> io::Result<bool> {
        if self.rules.secrets.is_empty() {
            return Ok(false);
        }
        let is_among = |files: &[(u64, u64)]| files.contains(&(status.device, status.inode));
        let is_fresh = |known: &&Secrets| known.checked.elapsed() < SECRETS_FRESH;
        if let Some(known) = self.lock_secrets().as_ref().filter(is_fresh) {
            return Ok(is_among(&known.files));
        }
        let checked = Instant::now();
        let mut files = Vec::new();
        for path in &self.rules.secrets {
            // Without the lock: a helper may wait here.
            match file::open_path(Path::new(path), patience).and_then(file::status) {
                Ok(secret) => files.push((secret.device, secret.inode)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => {}
            }
        }
        let is_secret = is_among(&files);
        *self.lock_secrets() = Some(Secrets { checked, files });
        Ok(is_secret)
    }

    fn lock_secrets(&self) -> MutexGuard<'_, Option<Secrets>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if the file is shorter than its version says.
    fn read_whole(&self, file: &OwnedFd, version: &FileVersion, patience: Patience) -> DiskResult<Option<Box<[u8]>>> {
        let mut bytes = vec![0; usize::try_from(version.size).map_err(io::Error::other)?];
        let mut at = 0;
        while at < bytes.len() {
            let map = || {
                let start = at as u64 / WINDOW * WINDOW;
                Mapping::new(file, start, (version.size - start) as usize).map(Arc::new)
            };
            match self.residency.read(file, version, (&mut bytes[at..], at as u64), patience, map)? {
                0 => return Ok(None),
                count => at += count,
            }
        }
        Ok(Some(bytes.into_boxed_slice()))
    }

    fn list(&self, work: &ListWork) -> DiskResult<Found<OpenFile>> {
        let Some(site) = self.sites.get(work.site) else {
            return Ok(Found::Absent);
        };
        let Some(Place { root, path: Some(path) }) = self.place(site, &work.path, Patience::Wait)? else {
            return Ok(Found::Absent);
        };
        if let Tree::Objects(bucket, _) = &root {
            return list_objects(site, bucket, path, work);
        }
        let folder = if path.is_empty() { b"." } else { path };
        let folder = root.open(&c_string(folder)?, Patience::Wait)?;
        // As for a file that is being written: the bytes read are of one state only if the file is stable.
        let started = SystemTime::now();
        let before = file::status(&folder)?;
        let mut changed_ns = before.ctime_ns;
        let mut entries = Vec::new();
        for name in file::names(&folder)? {
            let name = name?;
            if !site.dotfiles && name.starts_with(b".") {
                continue;
            }
            // A file that vanishes meanwhile, or a link that is dangling or leads out of the root, is
            // not listed: a request for it would fail.
            let c_name = c_string(&name)?;
            let mut status = file::status_at(&folder, &c_name);
            if matches!(&status, Ok(status) if status.kind == Kind::Link) {
                let inside = [path, &name].concat();
                status = root.open(&c_string(&inside)?, Patience::Wait).and_then(file::status);
            }
            let Ok(status) = status else { continue };
            let is_directory = match status.kind {
                Kind::Regular => false,
                Kind::Directory => true,
                Kind::Link | Kind::Other => continue,
            };
            // ctime cannot be set, so no change of what is shown leaves it as it was.
            changed_ns = changed_ns.max(status.ctime_ns);
            let modified_seconds = status.mtime_ns.div_euclid(1_000_000_000);
            entries.push(Entry { name, is_directory, size: status.size, modified_seconds });
        }
        let version = version_of(&before);
        let holds_still =
            moving_for(&version, started, STILL) == Duration::ZERO && version_of(&file::status(&folder)?) == version;
        let page = listing::render(&work.path, entries, work.order, work.form);
        Ok(Found::Listing(Listing::new(page, changed_ns, holds_still.then_some(version))))
    }

    /// Returns the root beneath which a path is opened, and the rest of the path; `None` if there is no such user.
    fn place<'a>(&self, site: &Site, path: &'a [u8], patience: Patience) -> DiskResult<Option<Place<'a>>> {
        let rest = path.strip_prefix(b"/").unwrap_or(path);
        if let Some(folder) = &site.user_dir
            && let Some(rest) = rest.strip_prefix(b"~")
        {
            let slash = rest.iter().position(|&b| b == b'/');
            let name = &rest[..slash.unwrap_or(rest.len())];
            let root = self.user_root(name, folder, patience)?;
            // A user may publish what is in that directory, and no other file that this process can read.
            let links = if site.symlinks == Symlinks::Any { Links::Within } else { links_of(site.symlinks) };
            return Ok(root.map(|folder| Place {
                root: Tree::Folder(folder, links),
                path: slash.map(|slash| &rest[slash + 1..]),
            }));
        }
        let (number, path) = site.place(path);
        let root = match &self.roots[usize::from(number)].bucket {
            Some(bucket) => Tree::Objects(bucket.clone(), 0),
            None => Tree::Folder(self.root(number, patience)?, links_of(site.symlinks)),
        };
        Ok(Some(Place { root, path }))
    }

    /// Returns the directory that the root's path names now. A path may come to name another directory, for instance
    /// when a link is switched from one release to the next; it is looked up as often as any other name.
    fn root(&self, number: u16, patience: Patience) -> DiskResult<Arc<OwnedFd>> {
        let root = &self.roots[usize::from(number)];
        // The lock is never held during disk access: a helper may wait for the
        // disk, and a loop would wait for the helper.
        let lock = || root.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, checked) = {
            let current = lock();
            (Arc::clone(&current.folder), current.checked)
        };
        if checked.is_some_and(|checked| self.trusts(checked)) {
            return Ok(known);
        }
        let requested = Instant::now();
        let mut folder = Arc::clone(&known);
        match file::open_root(&root.path, patience) {
            Ok(opened) => {
                let same = |a: &file::Status, b: &file::Status| (a.device, a.inode) == (b.device, b.inode);
                if !same(&file::status(&opened)?, &file::status(&*known)?) {
                    folder = Arc::new(opened);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(DiskError::WouldWait),
            // It cannot be looked up, because it was removed or permission is denied:
            // the previous directory continues to serve.
            Err(_) => {}
        }
        let mut current = lock();
        if current.checked < Some(requested) {
            *current = CurrentRoot { folder: Arc::clone(&folder), checked: Some(requested) };
        }
        Ok(folder)
    }

    /// Returns the directory in a user's home. Looking up a user may query a
    /// directory service, so only a helper does it.
    fn user_root(&self, name: &[u8], folder: &str, patience: Patience) -> DiskResult<Option<Arc<OwnedFd>>> {
        let lock = || self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(name)
            && self.trusts(known.checked)
        {
            return Ok(known.folder.clone());
        }
        if patience == Patience::Now {
            return Err(DiskError::WouldWait);
        }
        // The lock is not held during the query of the directory service, which may take seconds.
        let requested = Instant::now();
        let found = open_user_root(name, folder);
        let mut users = lock();
        if users.len() >= USERS_MAX {
            users.clear();
        }
        users.insert(name.to_vec(), UserRoot { folder: found.clone(), checked: requested });
        Ok(found)
    }
}

/// The file of a script.
#[derive(Debug)]
pub struct Script {
    /// Where its name ends in the path of the request.
    pub end: usize,
    /// Its absolute path.
    pub path: PathBuf,
    /// The file itself, as it was found beneath the root.
    pub file: OwnedFd,
}

/// Everything beneath a root.
enum Tree {
    /// A directory, and which links are followed there.
    Folder(Arc<OwnedFd>, Links),
    /// Objects whose keys begin alike, and the first byte that is needed of the one that is looked up.
    Objects(Bucket, u64),
}

/// An open file.
struct Opening {
    file: OwnedFd,
    status: file::Status,
    /// What an object store says about it, if it is the local copy of an object.
    object: Option<Arc<ObjectHead>>,
    /// Its windows, if that is a large one. Then `status` has the size and the times of the object: those of the file change with each
    /// window, and its bytes do not.
    windows: Option<ObjectWindows>,
}

impl Opening {
    /// Returns whether it was made after its original, which has this modification time.
    fn is_current(&self, mtime_ns: i64) -> bool {
        // The change of a local copy is not that of the object.
        let changed_ns = if self.object.is_some() { self.status.mtime_ns } else { self.status.ctime_ns };
        variants::is_current((self.status.mtime_ns, changed_ns), mtime_ns)
    }
}

/// How long it is believed that an object has no precompressed sibling. An object is asked for more often than once a second, and its
/// siblings with it.
const SIBLING_ABSENT: Duration = Duration::from_secs(60);

impl Tree {
    fn folder(&self) -> io::Result<&Arc<OwnedFd>> {
        match self {
            Tree::Folder(folder, _) => Ok(folder),
            Tree::Objects(..) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Opens a file or directory; in an object store there is none.
    fn open(&self, path: &CStr, patience: Patience) -> io::Result<OwnedFd> {
        match self {
            Tree::Folder(folder, links) => links::open(folder.as_fd(), path, *links, patience),
            Tree::Objects(..) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Returns the tree with objects of which the bytes from this one on are needed first.
    fn beginning_at(self, from: u64) -> Tree {
        match self {
            Tree::Objects(bucket, _) => Tree::Objects(bucket, from),
            folder @ Tree::Folder(..) => folder,
        }
    }

    /// Opens a file. Returns `None` if it is not a regular one.
    fn open_regular(&self, path: &[u8], patience: Patience) -> DiskResult<Option<Opening>> {
        let from = if let Tree::Objects(_, from) = self { *from } else { 0 };
        self.open_file(path, patience, object_store::ABSENT, from)
    }

    fn open_sibling(&self, path: &[u8], patience: Patience) -> DiskResult<Option<Opening>> {
        self.open_file(path, patience, SIBLING_ABSENT, 0)
    }

    fn open_file(
        &self,
        path: &[u8],
        patience: Patience,
        absent_for: Duration,
        from: u64,
    ) -> DiskResult<Option<Opening>> {
        let (file, object, windows) = match self {
            Tree::Folder(..) => (self.open(&c_string(path)?, patience)?, None, None),
            Tree::Objects(bucket, _) => {
                let ObjectFile { file, head, windows } = bucket.open(path, patience, absent_for, from)?;
                (file, Some(head), windows)
            }
        };
        let mut status = file::status(&file)?;
        if let Some(windows) = windows.as_ref().map(ObjectWindows::windows) {
            (status.size, (status.mtime_ns, status.ctime_ns)) = (windows.layout.size, windows.times_ns);
        }
        Ok((status.kind == Kind::Regular).then_some(Opening { file, status, object, windows }))
    }

    /// Returns the names in a directory, whose path ends in a slash or is empty, at least those with the stem of `start`.
    fn names(&self, folder: &[u8], start: &[u8], patience: Patience) -> io::Result<Vec<Vec<u8>>> {
        match self {
            Tree::Folder(..) => {
                let folder = self.open(&c_string(if folder.is_empty() { b"." } else { folder })?, patience)?;
                file::names(&folder)?.collect()
            }
            Tree::Objects(bucket, _) => {
                // Other extensions may precede the requested ones.
                let stem = start.iter().skip(1).position(|&byte| byte == b'.').map_or(start.len(), |dot| dot + 1);
                bucket.names(folder, &start[..stem])
            }
        }
    }
}

/// Lists what is directly below a path of a bucket.
fn list_objects(site: &Site, bucket: &Bucket, path: &[u8], work: &ListWork) -> DiskResult<Found<OpenFile>> {
    // First: what changes from now on belongs to the next version.
    let version = bucket.prefix(path, Patience::Wait)?;
    let mut entries = bucket.list(path)?;
    entries.retain(|entry| site.dotfiles || !entry.name.starts_with(b"."));
    let changed = entries.iter().map(|entry| entry.modified_seconds).max().unwrap_or(0);
    let page = listing::render(&work.path, entries, work.order, work.form);
    Ok(Found::Listing(Listing::new(page, changed.saturating_mul(1_000_000_000), version)))
}

struct Place<'a> {
    root: Tree,
    /// Relative to the root, without a leading slash; `None` for `/~user` and the directory of an alias, if it lacks its
    /// trailing slash.
    path: Option<&'a [u8]>,
}

fn links_of(symlinks: Symlinks) -> Links {
    match symlinks {
        Symlinks::Within => Links::Within,
        Symlinks::Owner => Links::Owner,
        Symlinks::Any => Links::Any,
        Symlinks::None => Links::None,
    }
}

/// `~user` is for people: system accounts, including root, have homes such as `/` that are not meant to be published.
const UID_MIN: u32 = 1000;

fn open_user_root(name: &[u8], folder: &str) -> Option<Arc<OwnedFd>> {
    let user = process::user(&process::c_string(name)?).ok()??;
    if user.uid < UID_MIN {
        return None;
    }
    let home = file::open_root(&user.home, Patience::Wait).ok()?;
    let root = file::open_root_beneath(home.as_fd(), &process::c_string(folder)?, Patience::Wait).ok()?;
    Some(Arc::new(root))
}

/// Makes a window of a file resident by reading it; called only by helpers.
///
/// # Errors
/// Those of pread(2), if not even the first bytes can be read; later errors are found when the window is sent.
pub fn warm(file: impl AsFd, start: u64, length: u64) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let (mut at, end) = (start, start + length);
    while at < end {
        let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        match file::read_at(&file, &mut buffer[..count], at, Patience::Wait) {
            Err(error) if at == start => return Err(error),
            Ok(0) | Err(_) => return Ok(()),
            Ok(count) => at += count as u64,
        }
    }
    Ok(())
}

/// Returns how long it takes until the last change of a file is `still` ago.
fn moving_for(version: &FileVersion, now: SystemTime, still: Duration) -> Duration {
    let changed = SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(version.ctime_ns).unwrap_or(0));
    // A change in the future comes from a file server with another clock, so its age is unknown.
    now.duration_since(changed).map_or(Duration::ZERO, |age| (still + grain(version)).saturating_sub(age))
}

/// Returns how much older a timestamp may be than [`STILL`] allows for: some file systems store whole seconds only.
fn grain(version: &FileVersion) -> Duration {
    if version.ctime_ns % 1_000_000_000 == 0 { Duration::from_secs(1) } else { Duration::ZERO }
}

fn c_string(path: &[u8]) -> io::Result<CString> {
    // `clean_path` rejects NUL.
    process::c_string(path).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::NotFound | Kind::NotADirectory | Kind::InvalidFilename) || file::is_link_loop(error)
}

/// Returns the result of a failed step for the client.
fn explain(error: &io::Error) -> Found<OpenFile> {
    if is_absence(error) {
        Found::Absent
    } else if error.kind() == io::ErrorKind::PermissionDenied || file::is_escape(error) || file::is_no_file(error) {
        Found::Forbidden
    } else if file::is_exhaustion(error) {
        Found::Trouble(Trouble::Exhausted)
    } else if object_store::is_unavailable(error) {
        Found::Trouble(Trouble::Unavailable)
    } else {
        Found::Trouble(Trouble::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_second_timestamp_settles_one_second_later() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let check = |ctime_ns: i64, expected_ms: u64| {
            let version = FileVersion { ctime_ns, ..FileVersion::default() };
            assert_eq!(moving_for(&version, now, STILL), Duration::from_millis(expected_ms), "{ctime_ns}");
        };
        check(999_990_000_000, 40);
        check(999_950_000_000, 0);
        check(999_000_000_000, 50);
        check(998_000_000_000, 0);
        // The clock of another machine.
        check(1_000_000_000_001, 0);
    }
}
