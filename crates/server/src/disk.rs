//! Stop 6 of 8: the disk's answer to a question, in the loop if it can be had without waiting, in a helper if not.
//!
//! One function for both, told apart by [`Patience`]: with [`Patience::Now`] every step asks the kernel in a way that
//! fails rather than waits, and the first that would wait ends the attempt. A helper then does the whole step from the
//! start, with [`Patience::Wait`]: open, state, siblings, and the first bytes, in one hand-off.
//!
//! Whatever the name says, the kernel keeps it beneath the site's root (`openat2`, `RESOLVE_BENEATH`).

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use amped_core::app::AppTrouble;
use amped_core::desk::Desk;
use amped_core::event::{self, Delay, Found, ListWork, Missing, NameWork, Opened, Trouble, VerifyWork, Work};
use amped_core::file::{FileHandle, FileVersion, Stored};
use amped_core::listing::{self, Entry, Listing};
use amped_core::site::{Site, Sites};
use amped_core::variants;
use amped_http::negotiate::Coding;
use amped_sys::file::{self, Kind, Patience};
use amped_sys::mapping::Mapping;
use amped_sys::process;
use amped_units::Time;

use crate::accounts::AccountFiles;
use crate::config::SiteRoot;
use crate::listings::Listings;
use crate::mapped::MappedWindows;
use crate::residency::Residency;
use crate::say;
use crate::watch::Notes;

/// How far ahead of what is being sent the disk is asked for.
pub const WINDOW: u64 = 256 * 1024;

/// A file that is open for reading.
#[derive(Debug)]
pub struct OpenFile {
    /// `None` only while it is being dropped.
    descriptor: Option<OwnedFd>,
    /// Where windows of it are mapped, if any were, and the state in which it was opened.
    mapped: OnceLock<Box<(MappedWindows, FileVersion)>>,
    /// When each of the first windows was last seen to be in memory as a whole: milliseconds, from 1 on. Made when the first is.
    seen: OnceLock<Box<[AtomicU64]>>,
}

/// Windows of a file that are remembered to have been seen: all of one of 16 MiB, by half a KiB.
const SEEN_MAX: u64 = 64;

impl OpenFile {
    /// The file behind this descriptor.
    pub fn new(descriptor: OwnedFd) -> OpenFile {
        OpenFile { descriptor: Some(descriptor), mapped: OnceLock::new(), seen: OnceLock::new() }
    }

    /// Whether nobody has seen this window to be in memory; `false` for windows of which that is not remembered.
    pub fn is_new(&self, window: u64) -> bool {
        window < SEEN_MAX && self.last_seen(window).is_none()
    }

    /// When this window was last seen to be in memory, if it was and that is remembered.
    pub fn last_seen(&self, window: u64) -> Option<Time> {
        let note = self.seen.get()?.get(window as usize)?.load(Ordering::Relaxed);
        note.checked_sub(1).map(Time::from_millis)
    }

    /// All of this window, of a file of so many bytes, is in memory now.
    pub fn is_seen(&self, window: u64, size: u64, now: Time) {
        let windows = size.div_ceil(WINDOW).min(SEEN_MAX) as usize;
        let seen = self.seen.get_or_init(|| (0..windows).map(|_| AtomicU64::new(0)).collect());
        if let Some(note) = seen.get(window as usize) {
            note.store(now.as_nanos() / 1_000_000 + 1, Ordering::Relaxed);
        }
    }

    /// Windows of it are mapped there, in this state; they go with it.
    pub fn is_mapped_in(&self, windows: &MappedWindows, version: &FileVersion) {
        self.mapped.get_or_init(|| Box::new((windows.clone(), *version)));
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_ref().expect("not dropped yet").as_fd()
    }
}

impl FileHandle for OpenFile {
    /// The ctime included: before a reply begins there is time to ask again, and whoever puts an old mtime back is found
    /// out. Never waits.
    fn has_bytes_of(&self, version: &FileVersion) -> bool {
        file::status(self).is_ok_and(|status| version_of(&status) == *version)
    }
}

impl Drop for OpenFile {
    /// Closing the last descriptor of a file that was removed frees its blocks, which takes long for a large one, as does
    /// unmapping the last of it. So that is left to a thread of its own.
    fn drop(&mut self) {
        let Some(descriptor) = self.descriptor.take() else {
            return;
        };
        let mappings = self.mapped.take().map_or_else(Vec::new, |mapped| mapped.0.take(&mapped.1));
        if file::status(&descriptor).is_ok_and(|status| status.links == 0 && status.size >= CLOSED_ELSEWHERE_MIN)
            && let Some(closer) = closer()
        {
            // If that thread has ended, both come back in the error and go here.
            drop(closer.send((mappings, descriptor)));
        }
    }
}

/// Removed files of this size are closed in another thread.
const CLOSED_ELSEWHERE_MIN: u64 = 1024 * 1024;

/// What holds a file's blocks on the disk.
type Held = (Vec<Arc<Mapping>>, OwnedFd);

/// The way to the thread that closes; it is started when it is first needed.
fn closer() -> Option<&'static Sender<Held>> {
    static CLOSER: OnceLock<Option<Sender<Held>>> = OnceLock::new();
    let start = || {
        let (to, from) = channel::<Held>();
        let closing = thread::Builder::new().name("closer".to_owned()).stack_size(64 * 1024);
        closing.spawn(move || from.iter().for_each(drop)).ok().map(|_| to)
    };
    CLOSER.get_or_init(start).as_ref()
}

/// The roots of all sites, and how to answer from them. Shared by loops and helpers.
#[derive(Debug)]
pub struct Disk {
    sites: Arc<Sites>,
    roots: Vec<Root>,
    /// Homes' folders that have been asked for, by user name; `None`: there is no such user or folder.
    users: Mutex<HashMap<Vec<u8>, UserRoot>>,
    /// Files up to this size are read whole.
    content_file_max: u64,
    /// A root, or a user's folder, is looked up anew after this time,
    revalidate: Duration,
    residency: Arc<Residency>,
    mapped: MappedWindows,
    /// and if it was looked up before this moment: nanoseconds since `start`.
    forgotten_ns: AtomicU64,
    start: Instant,
    /// Whom to tell which names are known, if folders are watched.
    notes: OnceLock<Arc<Notes>>,
    accounts: AccountFiles,
    /// Those that threads which share this one are making.
    pub listings: Listings,
}

/// What a [`Disk`] goes by on all sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Where lists of accounts lie.
    pub accounts: Vec<PathBuf>,
    /// Files up to this size are read whole, bytes.
    pub content_file_max: u64,
    /// A root, or a user's folder, is looked up anew after this time.
    pub revalidate: Duration,
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
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

/// Names of users that are remembered; a client can ask for any number.
const USERS_MAX: usize = 1024;

/// The answer, or that it would have meant waiting.
type Answer<T> = Result<T, NoAnswer>;

enum NoAnswer {
    /// [`Patience::Now`] was not enough.
    WouldWait,
    /// The same, because the file has changed a moment ago.
    Fresh,
    Io(io::Error),
}

/// A file that changed within this time may be in the middle of being written: write(2) stamps it at the start, and what
/// it has not copied yet is not there. Read now, the half of it would pass for the whole, and stay in the cache, as the
/// stamp does not change again. Before Linux 6.13 stamps also have the grain of a tick, up to 10 ms, within which a second
/// write does not show. A single call that takes longer than this is not recognised.
const STILL: Duration = Duration::from_millis(50);

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> NoAnswer {
        if error.kind() == io::ErrorKind::WouldBlock { NoAnswer::WouldWait } else { NoAnswer::Io(error) }
    }
}

impl Disk {
    /// Opens the roots.
    ///
    /// # Errors
    /// The first root that cannot be opened, with its path.
    pub fn open(
        sites: Arc<Sites>,
        roots: &[SiteRoot],
        content_file_max: u64,
        revalidate: Duration,
    ) -> Result<Disk, (PathBuf, io::Error)> {
        let open = |root: &SiteRoot| match file::open_root(&root.path, Patience::Wait) {
            Ok(folder) => {
                if let Err(error) = file::can_open_without_waiting(folder.as_fd()) {
                    let why = format!(
                        "openat2 with RESOLVE_CACHED fails ({error}): Linux 5.12 or later is needed, and a container that \
                         allows this call"
                    );
                    return Err((root.path.clone(), io::Error::other(why)));
                }
                let current = CurrentRoot { folder: Arc::new(folder), checked: Some(Instant::now()) };
                Ok(Root { path: root.path.clone(), current: Mutex::new(current) })
            }
            Err(error) => Err((root.path.clone(), error)),
        };
        let roots = roots.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Disk::new(sites, roots, content_file_max, revalidate))
    }

    /// With what is open and nothing learnt, in which the residency test is the usual one and nobody needs a password.
    fn new(sites: Arc<Sites>, roots: Vec<Root>, content_file_max: u64, revalidate: Duration) -> Disk {
        Disk {
            sites,
            roots,
            users: Mutex::default(),
            content_file_max,
            revalidate,
            residency: Arc::new(Residency::Nowait),
            mapped: MappedWindows::new(0),
            forgotten_ns: AtomicU64::new(0),
            start: Instant::now(),
            notes: OnceLock::new(),
            accounts: AccountFiles::default(),
            listings: Listings::default(),
        }
    }

    /// With these lists of accounts.
    pub fn with_accounts(self, accounts: AccountFiles) -> Disk {
        Disk { accounts, ..self }
    }

    /// With another test of residency than `nowait`, and room for mapped windows.
    pub fn with(self, residency: Arc<Residency>, mapped: MappedWindows) -> Disk {
        Disk { residency, mapped, ..self }
    }

    /// How it is found out what is in memory.
    pub fn residency(&self) -> &Arc<Residency> {
        &self.residency
    }

    /// Windows of files that are mapped.
    pub fn mapped(&self) -> &MappedWindows {
        &self.mapped
    }

    /// The sites as this process knows them, and where their roots lie now, for [`of_parts`](Disk::of_parts).
    pub fn parts(&self) -> impl Iterator<Item = (&Site, &Path, Arc<OwnedFd>)> {
        let sites = (0..).map_while(|number| self.sites.get(number));
        sites.zip(&self.roots).map(|(site, root)| {
            let current = root.current.lock().unwrap_or_else(PoisonError::into_inner);
            (site, &*root.path, Arc::clone(&current.folder))
        })
    }

    /// What goes for all sites.
    pub fn rules(&self) -> Rules {
        let accounts = self.accounts.paths().to_vec();
        Rules { accounts, content_file_max: self.content_file_max, revalidate: self.revalidate }
    }

    /// The same in another process, without anything that was learnt. `None`: there is no site.
    pub fn of_parts(rules: Rules, parts: Vec<(Site, PathBuf, OwnedFd)>) -> Option<Disk> {
        let (sites, roots) = parts
            .into_iter()
            .map(|(site, path, folder)| {
                let current = CurrentRoot { folder: Arc::new(folder), checked: None };
                (site, Root { path, current: Mutex::new(current) })
            })
            .unzip();
        let Rules { accounts, content_file_max, revalidate } = rules;
        let accounts = AccountFiles::new(accounts, revalidate).ok()?;
        let disk = Disk::new(Arc::new(Sites::new(sites)?), roots, content_file_max, revalidate);
        Some(disk.with_accounts(accounts))
    }

    /// A helper of another process has brought this: what it read is in memory.
    pub fn was_brought(&self, found: &Found<OpenFile>) {
        for Opened { version, content, .. } in found.files() {
            let end = match content {
                Some(Stored::Memory(_)) => version.size,
                Some(Stored::File(_)) => version.size.min(WINDOW),
                None => continue,
            };
            if end > 0 {
                self.residency.was_read(version, &(0..end));
            }
        }
    }

    /// Has the caches take note of what was found, and the folders on the way to it watched.
    pub fn learn(
        &self,
        asked: Time,
        work: &Work,
        found: Found<OpenFile>,
        desk: &mut Desk<OpenFile>,
    ) -> event::Answer<OpenFile> {
        // Before: what comes of the note must not come before what it is about.
        if let (Work::Name(work), Some(notes)) = (work, self.notes.get()) {
            notes.note(work.site, &work.path);
        }
        let sites = Arc::clone(&desk.sites);
        desk.caches.learn(asked, work, found, &sites)
    }

    /// Those who watch are told from now on.
    pub fn set_notes(&self, notes: Arc<Notes>) {
        // There is one for each disk side, made by whoever starts the workers.
        let _ = self.notes.set(notes);
    }

    /// Whom to tell which names are known, if folders are watched.
    pub fn notes(&self) -> Option<&Notes> {
        self.notes.get().map(|notes| &**notes)
    }

    /// The sites.
    pub fn sites(&self) -> &Sites {
        &self.sites
    }

    /// The folder of this name, for watching it. Waits for the disk.
    ///
    /// # Errors
    /// As openat2(2).
    pub fn folder(&self, site: u16, path: &[u8]) -> io::Result<OwnedFd> {
        let (root, path) = self.beneath(site, path)?;
        file::open_root_beneath(root.as_fd(), if path.is_empty() { c"." } else { &path }, Patience::Wait)
    }

    /// The file of this name, if the last step to it is a link. Waits for the disk.
    pub fn behind_link(&self, site: u16, path: &[u8]) -> Option<OwnedFd> {
        let (root, path) = self.beneath(site, path).ok()?;
        let status = file::status_at(&root, &path).ok()?;
        let opened =
            (status.kind == Kind::Link).then(|| file::open_beneath(root.as_fd(), &path, Patience::Wait))?.ok()?;
        (file::status(&opened).ok()?.kind == Kind::Regular).then_some(opened)
    }

    /// The files that this name may be served from: its own, or a folder's index files; and their siblings.
    pub fn files_of(&self, site: u16, path: &[u8]) -> Vec<Arc<[u8]>> {
        let Some(site) = self.sites.get(site) else { return Vec::new() };
        let indexes = site.index.iter().map(|index| [path, index.as_bytes()].concat());
        let own = if path.ends_with(b"/") { indexes.collect() } else { vec![path.to_vec()] };
        let codings = [Coding::Identity].into_iter().chain(site.precompressed.iter().copied());
        let suffixes: Vec<&[u8]> = codings.map(|coding| coding.suffix().as_bytes()).collect();
        own.iter().flat_map(|file| suffixes.iter().map(move |suffix| [&**file, suffix].concat().into())).collect()
    }

    /// The script of an application: the first of these beginnings of the path that is a file of the site's, which end it
    /// is, and where that lies. Folders of users have none: who may put a file there is not to run it as this user. Waits for
    /// the disk.
    ///
    /// # Errors
    /// Why there is none.
    pub fn script(&self, site: u16, path: &[u8], ends: &[usize]) -> Result<(usize, PathBuf), AppTrouble> {
        let (Some(rules), Some(root)) = (self.sites.get(site), self.roots.get(usize::from(site))) else {
            return Err(AppTrouble::Absent);
        };
        if rules.user_dir.is_some() && path.starts_with(b"/~") {
            return Err(AppTrouble::Forbidden);
        }
        for &end in ends {
            let opened = self.beneath(site, &path[..end]).and_then(|(folder, name)| {
                let name = if name.is_empty() { c".".into() } else { name };
                Ok((file::status(file::open_beneath(folder.as_fd(), &name, Patience::Wait)?)?.kind, name))
            });
            match opened {
                Ok((Kind::Regular, name)) => return Ok((end, root.path.join(OsStr::from_bytes(name.to_bytes())))),
                Ok((Kind::Directory, _)) => {}
                Ok(_) => return Err(AppTrouble::Forbidden),
                Err(error) if is_absence(&error) => return Err(AppTrouble::Absent),
                Err(error) if file::is_exhaustion(&error) => return Err(AppTrouble::Busy),
                Err(_) => return Err(AppTrouble::Forbidden),
            }
        }
        Err(AppTrouble::Absent)
    }

    /// Where a site's files lie.
    pub fn root_of(&self, site: u16) -> Option<&Path> {
        self.roots.get(usize::from(site)).map(|root| &*root.path)
    }

    fn beneath(&self, site: u16, path: &[u8]) -> io::Result<(Arc<OwnedFd>, CString)> {
        let absent = || io::Error::from(io::ErrorKind::NotFound);
        let site = self.sites.get(site).ok_or_else(absent)?;
        match self.place(site, path, Patience::Wait) {
            Ok(Some(Place { root, path: Some(path) })) => Ok((root, c_string(path)?)),
            Ok(_) | Err(NoAnswer::WouldWait | NoAnswer::Fresh) => Err(absent()),
            Err(NoAnswer::Io(error)) => Err(error),
        }
    }

    /// From now on roots and users' folders are looked up anew, once.
    pub fn forget_folders(&self) {
        let since = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.forgotten_ns.fetch_max(since, Ordering::Relaxed);
    }

    /// When that was asked for last; it changes each time.
    pub fn folders_forgotten(&self) -> Duration {
        Duration::from_nanos(self.forgotten_ns.load(Ordering::Relaxed))
    }

    /// Whether what was looked up then is still believed.
    fn believes(&self, checked: Instant) -> bool {
        checked >= self.start + self.folders_forgotten() && checked.elapsed() < self.revalidate
    }

    /// Does the work.
    ///
    /// # Errors
    /// Only with [`Patience::Now`]: for what it would have had to wait.
    pub fn perform(&self, work: &Work, patience: Patience) -> Result<Found<OpenFile>, Delay> {
        let found = match work {
            Work::Name(work) => self.name(work, patience),
            // Reading a directory has no form that does not wait.
            Work::List(_) if self.for_names(patience) == Patience::Now => Err(NoAnswer::WouldWait),
            Work::List(work) => self.list(work),
            Work::Verify(work) => self.verify(work, patience),
        };
        match found {
            Ok(found) => Ok(found),
            Err(NoAnswer::Io(error)) => Ok(explain(&error)),
            Err(_) if patience == Patience::Wait => Ok(Found::Trouble(Trouble::Failed)),
            Err(NoAnswer::WouldWait) => Err(Delay::Disk),
            Err(NoAnswer::Fresh) => Err(Delay::Change),
        }
    }

    /// Whether names may be waited for. Where nothing is tested they are, too; only the pause that a file in motion takes is
    /// not made in the loop, for that is no work.
    fn for_names(&self, patience: Patience) -> Patience {
        if matches!(*self.residency, Residency::None) { Patience::Wait } else { patience }
    }

    fn name(&self, work: &NameWork, patience: Patience) -> Answer<Found<OpenFile>> {
        let names = self.for_names(patience);
        let Some(site) = self.sites.get(work.site) else {
            return Ok(Found::Absent);
        };
        if let Some(missing) = &work.missing
            && let Some(opened) = self.missing(site, missing, patience)?
        {
            return Ok(Found::Missing(opened));
        }
        let Some(Place { root, path }) = self.place(site, &work.path, names)? else {
            return Ok(Found::Absent);
        };
        let Some(path) = path else {
            return Ok(Found::NeedsSlash);
        };
        if path.ends_with(b"/") || path.is_empty() {
            for index in &site.index {
                let index = index.as_bytes();
                match open_regular(&root, &[path, index].concat(), names) {
                    Ok(Some(opened)) => {
                        let name = [&*work.path, index].concat();
                        return self.found(site, &root, &[path, index].concat(), name.into(), opened, work, patience);
                    }
                    Ok(None) => {}
                    Err(NoAnswer::Io(error)) if is_absence(&error) => {
                        if let Some(found) = self.variants(&root, (path, index), work, patience)? {
                            return Ok(found);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        let folder = if path.is_empty() { b"." } else { path };
        let folder = c_string(folder)?;
        let opened = match file::open_beneath(root.as_fd(), &folder, names) {
            // A folder may be open to those who know what is in it, and to no others (mode 711, as homes have).
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied && !path.ends_with(b"/") && !path.is_empty() =>
            {
                return match file::is_directory_beneath(root.as_fd(), &folder, names)? {
                    true => Ok(Found::NeedsSlash),
                    false => Err(error.into()),
                };
            }
            Err(error) if is_absence(&error) && !path.ends_with(b"/") => {
                let (folder, asked) = path.split_at(path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1));
                return self.variants(&root, (folder, asked), work, patience)?.ok_or(error.into());
            }
            opened => opened?,
        };
        let status = file::status(&opened)?;
        match status.kind {
            Kind::Regular => self.found(site, &root, path, Arc::clone(&work.path), (opened, status), work, patience),
            Kind::Directory if path.ends_with(b"/") || path.is_empty() => Ok(Found::Directory(version_of(&status))),
            Kind::Directory => Ok(Found::NeedsSlash),
            Kind::Link | Kind::Other => Ok(Found::Forbidden),
        }
    }

    /// The files in a folder, with its slash or empty, that may be variants of what is asked for there and is not there
    /// itself; `None` if there are none, or nobody wants them.
    fn variants(
        &self,
        root: &OwnedFd,
        (folder, asked): (&[u8], &[u8]),
        work: &NameWork,
        patience: Patience,
    ) -> Answer<Option<Found<OpenFile>>> {
        if !work.variants || asked.is_empty() {
            return Ok(None);
        }
        let names = self.for_names(patience);
        // Reading a directory has no form that does not wait.
        if names == Patience::Now {
            return Err(NoAnswer::WouldWait);
        }
        let opened = file::open_beneath(root.as_fd(), &c_string(if folder.is_empty() { b"." } else { folder })?, names);
        let opened = match opened {
            Err(error) if is_absence(&error) => return Ok(None),
            opened => opened?,
        };
        let mut candidates: Vec<Vec<u8>> = Vec::new();
        for name in file::names(&opened)? {
            let name = name?;
            if variants::stands_for(asked, &name) {
                candidates.push(name);
            }
        }
        candidates.sort();
        let above = work.path.len() - work.path.iter().rev().take_while(|&&byte| byte != b'/').count();
        let (mut paths, mut files): (Vec<Arc<[u8]>>, _) = (Vec::new(), Vec::new());
        for name in candidates.into_iter().take(variants::CANDIDATES_MAX) {
            match open_regular(root, &[folder, &name].concat(), names) {
                Ok(Some((opened, status))) => {
                    files.push(self.bring(Coding::Identity, opened, status, &work.known, patience)?);
                    paths.push([&work.path[..above], &name].concat().into());
                }
                // Not to be had, for whatever reason: the others serve.
                Ok(None) | Err(NoAnswer::Io(_)) => {}
                Err(wait) => return Err(wait),
            }
        }
        Ok((!files.is_empty()).then_some(Found::Variants { names: paths, files }))
    }

    /// The content of a file that is known; `None` if there is another one by now, or none.
    fn missing(&self, site: &Site, missing: &Missing, patience: Patience) -> Answer<Option<Opened<OpenFile>>> {
        let names = self.for_names(patience);
        let Some(Place { root, path: Some(path) }) = self.place(site, &missing.name, names)? else {
            return Ok(None);
        };
        match open_regular(&root, &[path, missing.coding.suffix().as_bytes()].concat(), names) {
            Ok(Some((opened, status))) if version_of(&status) == missing.version => {
                let opened = self.bring(missing.coding, opened, status, &[], patience)?;
                Ok((opened.version == missing.version).then_some(opened))
            }
            Ok(_) | Err(NoAnswer::Io(_)) => Ok(None),
            Err(wait) => Err(wait),
        }
    }

    /// A file was found: bring it, and its siblings.
    #[expect(clippy::too_many_arguments, reason = "a file is its root, its name and its descriptor")]
    fn found(
        &self,
        site: &Site,
        root: &OwnedFd,
        path: &[u8],
        name: Arc<[u8]>,
        (opened, status): (OwnedFd, file::Status),
        work: &NameWork,
        patience: Patience,
    ) -> Answer<Found<OpenFile>> {
        let mut files = Vec::with_capacity(1 + site.precompressed.len());
        let mtime = status.mtime_ns;
        files.push(self.bring(Coding::Identity, opened, status, &work.known, patience)?);
        for &coding in &site.precompressed {
            let sibling = [path, coding.suffix().as_bytes()].concat();
            match open_regular(root, &sibling, self.for_names(patience)) {
                // One that is older than its original was made from an earlier version of it.
                Ok(Some((opened, status))) if status.mtime_ns >= mtime => {
                    files.push(self.bring(coding, opened, status, &work.known, patience)?);
                }
                // Not to be had, for whatever reason: the original serves.
                Ok(_) | Err(NoAnswer::Io(_)) => {}
                Err(wait) => return Err(wait),
            }
        }
        Ok(Found::File { name, files })
    }

    /// The content of an opened file: read if it is small, its first window in memory if it is large.
    fn bring(
        &self,
        coding: Coding,
        opened: OwnedFd,
        mut status: file::Status,
        known: &[FileVersion],
        patience: Patience,
    ) -> Answer<Opened<OpenFile>> {
        // Somebody may be writing to it at this moment. What is read is good only if the file was in the same state
        // before and after; a file that does not hold still is left to the page cache.
        for attempt in 0..4 {
            let version = version_of(&status);
            if known.contains(&version) {
                return Ok(Opened { coding, version, content: None });
            }
            let moving = moving_for(&version, SystemTime::now());
            if moving > Duration::ZERO {
                match patience {
                    Patience::Now => return Err(NoAnswer::Fresh),
                    Patience::Wait if attempt == 0 => {
                        thread::sleep(moving);
                        status = file::status(&opened)?;
                        continue;
                    }
                    // It is written to all the time, as a log is.
                    Patience::Wait => break,
                }
            }
            if version.size > self.content_file_max {
                break;
            }
            let bytes = self.read_whole(&opened, &version, patience)?;
            status = file::status(&opened)?;
            if let Some(bytes) = bytes
                && version_of(&status) == version
            {
                return Ok(Opened { coding, version, content: Some(Stored::Memory(bytes)) });
            }
        }
        let version = version_of(&status);
        if version.size > 0 {
            let first_page = || Mapping::new(&opened, 0, 1).map(Arc::new);
            match patience {
                Patience::Now if !self.residency.is_resident(&opened, &version, &(0..1), 0, first_page) => {
                    return Err(NoAnswer::WouldWait);
                }
                Patience::Now => {}
                Patience::Wait => {
                    let window = 0..WINDOW.min(version.size);
                    warm(&opened, 0, window.end);
                    self.residency.was_read(&version, &window);
                }
            }
        }
        Ok(Opened { coding, version, content: Some(Stored::File(OpenFile::new(opened))) })
    }

    /// `None` if the file is shorter than it was said to be.
    fn read_whole(&self, file: &OwnedFd, version: &FileVersion, patience: Patience) -> Answer<Option<Box<[u8]>>> {
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

    /// An unreadable list is trouble: nobody gets in, and whoever serves is told.
    fn verify(&self, work: &VerifyWork, patience: Patience) -> Answer<Found<OpenFile>> {
        match self.accounts.verify(work.accounts, &work.credentials, self.for_names(patience)) {
            Ok(Some(good)) => Ok(Found::Verified(good)),
            Ok(None) => Err(NoAnswer::WouldWait),
            Err(error) => {
                let path = self.accounts.paths().get(usize::from(work.accounts));
                say!(
                    "cannot read the passwords in {}: {error}",
                    path.map_or_else(Default::default, |path| path.display().to_string())
                );
                Ok(Found::Trouble(Trouble::Failed))
            }
        }
    }

    fn list(&self, work: &ListWork) -> Answer<Found<OpenFile>> {
        let Some(site) = self.sites.get(work.site) else {
            return Ok(Found::Absent);
        };
        let Some(Place { root, path: Some(path) }) = self.place(site, &work.path, Patience::Wait)? else {
            return Ok(Found::Absent);
        };
        let folder = if path.is_empty() { b"." } else { path };
        let folder = file::open_beneath(root.as_fd(), &c_string(folder)?, Patience::Wait)?;
        // As for a file that is being written: what was read is that of one state only if that holds still.
        let started = SystemTime::now();
        let before = file::status(&folder)?;
        let mut changed_ns = before.ctime_ns;
        let mut entries = Vec::new();
        for name in file::names(&folder)? {
            let name = name?;
            if !site.dotfiles && name.starts_with(b".") {
                continue;
            }
            // A file that vanishes meanwhile, or a link that leads nowhere or out of the root, is not listed: a request
            // for it would fail.
            let c_name = c_string(&name)?;
            let mut status = file::status_at(&folder, &c_name);
            if matches!(&status, Ok(status) if status.kind == Kind::Link) {
                let inside = [path, &name].concat();
                status = file::open_beneath(root.as_fd(), &c_string(&inside)?, Patience::Wait).and_then(file::status);
            }
            let Ok(status) = status else { continue };
            let is_directory = match status.kind {
                Kind::Regular => false,
                Kind::Directory => true,
                Kind::Link | Kind::Other => continue,
            };
            // Nobody can set it, so none of what is shown changes and leaves it as it was.
            changed_ns = changed_ns.max(status.ctime_ns);
            let modified_seconds = status.mtime_ns.div_euclid(1_000_000_000);
            entries.push(Entry { name, is_directory, size: status.size, modified_seconds });
        }
        let version = version_of(&before);
        let holds_still =
            moving_for(&version, started) == Duration::ZERO && version_of(&file::status(&folder)?) == version;
        let page = listing::render(&work.path, entries, work.order, work.form);
        Ok(Found::Listing(Listing::new(page, changed_ns, holds_still.then_some(version))))
    }

    /// The root that a path is to be opened beneath, and the rest of the path. `None`: there is no such user.
    fn place<'a>(&self, site: &Site, path: &'a [u8], patience: Patience) -> Answer<Option<Place<'a>>> {
        let rest = path.strip_prefix(b"/").unwrap_or(path);
        if let Some(folder) = &site.user_dir
            && let Some(rest) = rest.strip_prefix(b"~")
        {
            let slash = rest.iter().position(|&b| b == b'/');
            let name = &rest[..slash.unwrap_or(rest.len())];
            let root = self.user_root(name, folder, patience)?;
            return Ok(root.map(|root| Place { root, path: slash.map(|slash| &rest[slash + 1..]) }));
        }
        let root = self.root(site.number, patience)?;
        Ok(Some(Place { root, path: Some(rest) }))
    }

    /// The folder that the root's path names now. A path may come to mean another folder, as where a link is switched
    /// from one release to the next; it is looked at again as often as any other name.
    fn root(&self, site: u16, patience: Patience) -> Answer<Arc<OwnedFd>> {
        let root = &self.roots[usize::from(site)];
        // The lock is never held while the disk is asked: a helper may wait for it, and a loop would wait for the helper.
        let lock = || root.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, checked) = {
            let current = lock();
            (Arc::clone(&current.folder), current.checked)
        };
        if checked.is_some_and(|checked| self.believes(checked)) {
            return Ok(known);
        }
        let asked = Instant::now();
        let mut folder = Arc::clone(&known);
        match file::open_root(&root.path, patience) {
            Ok(opened) => {
                let same = |a: &file::Status, b: &file::Status| (a.device, a.inode) == (b.device, b.inode);
                if !same(&file::status(&opened)?, &file::status(&*known)?) {
                    folder = Arc::new(opened);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(NoAnswer::WouldWait),
            // It cannot be looked at any more, because it is gone or because we may not: what was there serves on.
            Err(_) => {}
        }
        let mut current = lock();
        if current.checked < Some(asked) {
            *current = CurrentRoot { folder: Arc::clone(&folder), checked: Some(asked) };
        }
        Ok(folder)
    }

    /// The folder in a user's home. Looking users up may ask a directory service, so only a helper does it.
    fn user_root(&self, name: &[u8], folder: &str, patience: Patience) -> Answer<Option<Arc<OwnedFd>>> {
        let lock = || self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(name)
            && self.believes(known.checked)
        {
            return Ok(known.folder.clone());
        }
        if patience == Patience::Now {
            return Err(NoAnswer::WouldWait);
        }
        // The lock is not held while the directory service is asked: it may take seconds.
        let asked = Instant::now();
        let found = open_user_root(name, folder);
        let mut users = lock();
        if users.len() >= USERS_MAX {
            users.clear();
        }
        users.insert(name.to_vec(), UserRoot { folder: found.clone(), checked: asked });
        Ok(found)
    }
}

struct Place<'a> {
    root: Arc<OwnedFd>,
    /// Relative to the root, without a slash in front; `None` for `/~user`, which lacks its slash.
    path: Option<&'a [u8]>,
}

/// `~user` is for people: system accounts, root's among them, have homes such as `/` that nobody means to publish.
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

/// Makes a window of a file resident, by reading it; called by helpers alone. Errors are for whoever sends it.
pub fn warm(file: impl AsFd, start: u64, length: u64) {
    let mut buffer = vec![0; 64 * 1024];
    let (mut at, end) = (start, start + length);
    while at < end {
        let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        match file::read_at(&file, &mut buffer[..count], at, Patience::Wait) {
            Ok(0) | Err(_) => return,
            Ok(count) => at += count as u64,
        }
    }
}

/// For how long a file in this state may still be in motion.
fn moving_for(version: &FileVersion, now: SystemTime) -> Duration {
    let changed = SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(version.ctime_ns).unwrap_or(0));
    // A change in the future is that of a file server whose clock is another one: it tells nothing.
    now.duration_since(changed).map_or(Duration::ZERO, |age| STILL.saturating_sub(age))
}

/// The version of a file in this state.
pub fn version_of(status: &file::Status) -> FileVersion {
    FileVersion {
        device: status.device,
        inode: status.inode,
        size: status.size,
        mtime_ns: status.mtime_ns,
        ctime_ns: status.ctime_ns,
    }
}

/// `None` for something that is no regular file.
fn open_regular(root: &OwnedFd, path: &[u8], patience: Patience) -> Answer<Option<(OwnedFd, file::Status)>> {
    let opened = file::open_beneath(root.as_fd(), &c_string(path)?, patience)?;
    let status = file::status(&opened)?;
    Ok((status.kind == Kind::Regular).then_some((opened, status)))
}

fn c_string(path: &[u8]) -> io::Result<CString> {
    // `clean_path` lets no NUL through.
    process::c_string(path).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::NotFound | Kind::NotADirectory | Kind::InvalidFilename) || file::is_link_loop(error)
}

/// What a failed step means to a client.
fn explain(error: &io::Error) -> Found<OpenFile> {
    if is_absence(error) {
        Found::Absent
    } else if error.kind() == io::ErrorKind::PermissionDenied || file::is_escape(error) || file::is_no_file(error) {
        Found::Forbidden
    } else if file::is_exhaustion(error) {
        Found::Trouble(Trouble::Exhausted)
    } else {
        Found::Trouble(Trouble::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Descriptors of this process on removed files in this folder.
    fn removed_and_open(folder: &Path) -> usize {
        let links =
            fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.filter(|link| link.starts_with(folder) && link.to_string_lossy().ends_with(" (deleted)")).count()
    }

    #[test]
    fn it_is_remembered_when_a_window_was_seen() {
        let file = OpenFile::new(tempfile::tempfile().unwrap().into());
        let at = Time::from_millis;
        let size = 5 * WINDOW + 1;
        let seen = || [0, 1, 5, 6].map(|window| file.last_seen(window));
        assert_eq!(seen(), [None; 4]);
        assert_eq!([0, SEEN_MAX - 1, SEEN_MAX].map(|window| file.is_new(window)), [true, true, false]);
        file.is_seen(0, size, at(0));
        file.is_seen(5, size, at(101));
        file.is_seen(6, size, at(102));
        assert_eq!(seen(), [Some(at(0)), None, Some(at(101)), None]);
        file.is_seen(0, size, at(105));
        assert_eq!(file.last_seen(0), Some(at(105)));
        assert_eq!([0, 1].map(|window| file.is_new(window)), [false, true]);
    }

    #[test]
    fn a_large_removed_file_is_closed_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("large");
        fs::write(&path, vec![1; 2 << 20]).unwrap();
        let file = OpenFile::new(fs::File::open(&path).unwrap().into());
        let version = version_of(&file::status(&file).unwrap());
        assert!(file.has_bytes_of(&version));
        fs::remove_file(&path).unwrap();
        assert_eq!(removed_and_open(folder.path()), 1);
        drop(file);
        let start = Instant::now();
        while removed_and_open(folder.path()) > 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "it stays open");
            thread::sleep(Duration::from_millis(2));
        }
    }
}
