//! Watches the directories of cached names, so that a change is noticed when it happens.
//!
//! This is a separate thread, because adding a watch may wait for the disk; one for all workers that are threads of
//! a process. A lookup leaves a note of its name (`disk`, [`Disk::learn`]); the thread watches each directory on
//! its path, from the root on, so that it also notices a directory that is renamed or created. A file behind a link
//! is watched itself. Events make workers drop names; names that are not watched, for whatever reason, are
//! revalidated after `revalidate` like all others.
//!
//! A directory is watched a moment after a name in it was looked up. Changes in between are not reported: so cached
//! names beneath a directory are dropped when its watch begins.
//!
//! Not noticed: changes in directories that a link only passes through on the way to its target, and in those that the
//! root's own path passes through; the creation of a link's target; and writes to a file that stays open.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use amped_core::cache::{Budgets, Caches, Change, SharedCaches};
use amped_sys::inotify::{self, Event, Inotify, Watch, What};
use amped_sys::poll;
use amped_units::Time;

use crate::disk::Disk;
use crate::mailbox::Mailbox;
use crate::message::{Invalidation, Message};
use crate::notes::{Name, Notes};
use crate::open_file::OpenFile;
use crate::say;

/// Maximum watches. Each pins an inode, about 1 KiB of kernel memory, and counts towards the
/// user's limit (fs.inotify.max_user_watches).
const WATCHES_MAX: usize = 4096;

/// Events are collected for this long, so that a busy directory costs workers at most a hundred messages a second.
const GATHER: Duration = Duration::from_millis(10);

/// With more changes at once everything is dropped: looking up that many would keep a loop busy for longer.
const CHANGES_MAX: usize = 256;

/// The same for changes that must be compared with all names.
const BENEATH_MAX: usize = 16;

/// The caches that drop names.
pub enum Audience {
    /// Workers, each with its own caches.
    Workers(Vec<Arc<Mailbox<Message>>>),
    /// Caches that threads share.
    Shared(SharedCaches<OpenFile>),
}

impl Audience {
    fn notify(&self, disk: &Disk, invalidation: Invalidation) {
        match self {
            Audience::Workers(mailboxes) => {
                let invalidation = Arc::new(invalidation);
                mailboxes.iter().for_each(|mailbox| mailbox.put(Message::Invalidate(Arc::clone(&invalidation))));
            }
            Audience::Shared(shared) => {
                // The time matters only to processes that receive invalidations from others; threads do not.
                invalidation.carry_out(Time::START, &mut Caches::shared(shared, Budgets::default(), 0), disk.sites());
            }
        }
    }
}

/// Starts watching for this disk side. If that fails, it is reported, and the server runs without it.
pub fn start(disk: &Arc<Disk>, audience: Audience) {
    let begin = || {
        let notes = Arc::new(Notes::new()?);
        let (folders, watches) = (HashMap::new(), HashMap::new());
        let (disk, inotify) = (Arc::clone(disk), Inotify::new()?);
        let watcher = Watcher { notes: Arc::clone(&notes), disk, inotify, folders, watches, full: false };
        let thread = thread::Builder::new().name("watch".to_owned()).stack_size(256 * 1024);
        thread.spawn(move || watcher.run(&audience))?;
        io::Result::Ok(notes)
    };
    match begin() {
        Ok(notes) => disk.set_notes(notes),
        Err(error) => say!(
            "cannot watch directories: {error}; changes are noticed after `revalidate` (fs.inotify.max_user_instances limits \
             the watchers: amped, sped and mt need one, mp one for each worker)"
        ),
    }
}

/// The state of the watcher thread.
struct Watcher {
    notes: Arc<Notes>,
    disk: Arc<Disk>,
    inotify: Inotify,
    /// Watched directories; `None`: cannot be watched. `folders.len() <= WATCHES_MAX`
    folders: HashMap<Name, Option<Watch>>,
    /// The names of each watch. A directory has several if links lead to it. `watches.len() <= WATCHES_MAX`
    watches: HashMap<Watch, Vec<Name>>,
    /// The limit was reached; reported once.
    full: bool,
}

/// Changes to report, and whether names below them have changed too.
type Changes = BTreeMap<Name, bool>;

impl Watcher {
    fn run(mut self, audience: &Audience) {
        loop {
            let descriptors = [self.inotify.as_fd(), self.notes.bell.as_fd()];
            let Ok(ready) = poll::wait_readable(&descriptors, Duration::MAX) else {
                // Out of memory, temporarily or permanently.
                thread::sleep(GATHER);
                continue;
            };
            if self.notes.stopping.load(Ordering::Relaxed) {
                return;
            }
            let mut changes = Changes::new();
            let mut all = false;
            if ready[1] {
                self.notes.bell.silence();
                let noted = std::mem::take(&mut self.notes.lock().queue);
                noted.into_iter().for_each(|name| self.watch_parents(&name, &mut changes));
            }
            if ready[0] {
                all = self.listen(&mut changes);
            }
            self.notes.folders.store(self.watches.len() as u64, Ordering::Relaxed);
            if let Some(invalidation) = invalidation(changes, all) {
                audience.notify(&self.disk, invalidation);
            }
            if ready[0] {
                thread::sleep(GATHER);
            }
        }
    }

    /// Watches the directories that lead to a name.
    fn watch_parents(&mut self, (site, path): &Name, changes: &mut Changes) {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut is_new = false;
        for folder in slashes.map(|(at, _)| &path[..=at]) {
            let folder: Name = (*site, folder.into());
            if self.folders.contains_key(&folder) {
                continue;
            }
            // The directory above reports its creation. One below may exist: that of an alias.
            let Ok(opened) = self.disk.folder(folder.0, &folder.1) else { continue };
            let Some(watch) = self.watch(&folder, |inotify| inotify.watch_folder(&opened)) else { return };
            if watch.is_some() && !std::mem::replace(&mut is_new, true) {
                changes.insert(folder.clone(), true);
            }
            self.folders.insert(folder, watch);
        }
        for file in self.disk.files_of(*site, path) {
            if let Some(opened) = self.disk.behind_link(*site, &file) {
                let file: Name = (*site, file);
                if let Some(Some(_)) = self.watch(&file, |inotify| inotify.watch_file(&opened)) {
                    changes.entry(file).or_default();
                }
            }
        }
    }

    /// Watches a file or directory under this name. Returns `None` if there is no room,
    /// and `Some(None)` if it cannot be watched.
    fn watch(&mut self, name: &Name, ask: impl FnOnce(&Inotify) -> io::Result<Watch>) -> Option<Option<Watch>> {
        let no_room = self.watches.len().max(self.folders.len()) >= WATCHES_MAX;
        let asked = if no_room { Err(None) } else { ask(&self.inotify).map_err(Some) };
        match asked {
            Ok(watch) => {
                let names = self.watches.entry(watch).or_default();
                if !names.contains(name) {
                    names.push(name.clone());
                }
                Some(Some(watch))
            }
            Err(Some(error)) if !inotify::is_full(&error) => Some(None),
            Err(_) => {
                if !std::mem::replace(&mut self.full, true) {
                    say!(
                        "watch limit reached with {} directories; changes in others are noticed after `revalidate` \
                         (fs.inotify.max_user_watches, and {WATCHES_MAX} at most)",
                        self.watches.len()
                    );
                }
                None
            }
        }
    }

    /// Reads all events. Returns `true` if no cached name can be relied on.
    fn listen(&mut self, changes: &mut Changes) -> bool {
        let mut events = Vec::new();
        self.inotify.take(|event| events.push((Event { name: b"", ..event }, event.name.to_vec())));
        let mut all = false;
        for (event, name) in &events {
            all |= self.handle_event(Event { name, ..*event }, changes);
        }
        all
    }

    /// Handles an event. Returns `true` if no cached name can be relied on.
    fn handle_event(&mut self, event: Event<'_>, changes: &mut Changes) -> bool {
        let Event { watch, name, what, is_folder } = event;
        self.notes.events.fetch_add(1, Ordering::Relaxed);
        if what == What::Overflow {
            self.notes.overflows.fetch_add(1, Ordering::Relaxed);
            // Names may lead to other directories now. All are watched again when their names are looked up.
            self.watches.drain().for_each(|(watch, _)| self.inotify.remove(watch));
            self.folders.clear();
            self.notes.lock().seen.clear();
            return true;
        }
        let Some(names) = self.watches.get(&watch).cloned() else { return false };
        if what == What::Ended {
            self.watches.remove(&watch);
            self.folders.retain(|name, _| !names.contains(name));
        }
        for (site, of) in names {
            let is_file = !of.ends_with(b"/");
            let path: Arc<[u8]> = if name.is_empty() { of } else { [&of, name].concat().into() };
            // A name may have started or stopped leading to a directory without being one, as a link.
            let beneath = !is_file && (is_folder || name.is_empty() || what == What::Name);
            *changes.entry((site, Arc::clone(&path))).or_default() |= beneath;
            if is_file || (beneath && what != What::Status) {
                self.unwatch(site, &path);
            }
        }
        false
    }

    /// Stops watching a file, or a directory and everything beneath it, under this name, which may lead elsewhere
    /// now. The next lookup notes the names again.
    fn unwatch(&mut self, site: u16, path: &[u8]) {
        let folder = [path.strip_suffix(b"/").unwrap_or(path), b"/"].concat();
        let matches = |(of, name): &Name| *of == site && (**name == *path || name.starts_with(&folder));
        self.folders.retain(|name, _| !matches(name));
        self.watches.retain(|watch, names| {
            names.retain(|name| !matches(name));
            if names.is_empty() {
                self.inotify.remove(*watch);
            }
            !names.is_empty()
        });
        self.notes.lock().seen.clear();
    }
}

/// Returns what to drop after these changes; `None`: nothing has changed.
fn invalidation(changes: Changes, all: bool) -> Option<Invalidation> {
    let beneath = changes.values().filter(|beneath| **beneath).count();
    if all || changes.len() > CHANGES_MAX || beneath > BENEATH_MAX {
        return Some(Invalidation::All);
    }
    let changes = changes.into_iter().map(|((site, path), beneath)| Change { site, path, beneath });
    let changes: Vec<Change> = changes.collect();
    (!changes.is_empty()).then_some(Invalidation::Changes(changes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{cli, load};
    use crate::disk::Rules;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn watcher(folder: &std::path::Path) -> Watcher {
        let settings = load(&cli::Serve { dir: Some(folder.into()), ..cli::Serve::default() }).unwrap();
        let disk = Arc::new(Disk::open(settings.sites, &settings.roots, Rules::default(), None).unwrap());
        let (notes, inotify) = (Arc::new(Notes::new().unwrap()), Inotify::new().unwrap());
        Watcher { notes, disk, inotify, folders: HashMap::new(), watches: HashMap::new(), full: false }
    }

    /// Notes a name as looked up; returns the names that are dropped as a result.
    fn learn(watcher: &mut Watcher, path: &str) -> Vec<String> {
        watcher.notes.note(0, &path.as_bytes().into());
        let noted = std::mem::take(&mut watcher.notes.lock().queue);
        let mut changes = Changes::new();
        noted.into_iter().for_each(|name| watcher.watch_parents(&name, &mut changes));
        shown(changes)
    }

    fn dropped(watcher: &mut Watcher) -> Vec<String> {
        let mut changes = Changes::new();
        assert!(!watcher.listen(&mut changes));
        shown(changes)
    }

    fn shown(changes: Changes) -> Vec<String> {
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        changes.into_iter().map(|((_, path), beneath)| text(&path) + if beneath { " *" } else { "" }).collect()
    }

    #[test]
    fn changes_along_path_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/c"), "x").unwrap();
        let mut watcher = watcher(folder.path());
        // Names cached beneath a new watch may have changed before.
        assert_eq!(learn(&mut watcher, "/a/b/c"), ["/ *"]);
        assert_eq!(learn(&mut watcher, "/a/b/c"), [""; 0], "the change is recorded");
        assert_eq!(learn(&mut watcher, "/a/b/d"), [""; 0], "its folder is watched");
        assert_eq!(learn(&mut watcher, "/x/y/z"), [""; 0]);
        assert_eq!(watcher.watches.len(), 3);
        fs::write(at("a/b/c"), "changed").unwrap();
        assert_eq!(dropped(&mut watcher), ["/a/b/c"]);
        fs::create_dir(at("x")).unwrap();
        assert_eq!(dropped(&mut watcher), ["/x *"]);
        assert_eq!(learn(&mut watcher, "/x/y/z"), ["/x/ *"], "it has to be noted again");
        // A renamed directory is no longer watched under its old name.
        fs::rename(at("a"), at("z")).unwrap();
        assert_eq!(dropped(&mut watcher), ["/a *", "/z *"]);
        assert!(watcher.folders.keys().all(|(_, path)| !path.starts_with(b"/a/")), "{:?}", watcher.folders);
        fs::write(at("z/b/c"), "x").unwrap();
        assert_eq!(dropped(&mut watcher), [""; 0]);
        assert_eq!(learn(&mut watcher, "/z/b/c"), ["/z/ *"]);
        fs::remove_dir_all(at("z")).unwrap();
        let dropped_names = dropped(&mut watcher);
        assert!(
            ["/z *", "/z/ *", "/z/b *", "/z/b/c *"].iter().all(|path| dropped_names.contains(&(*path).to_owned())),
            "{dropped_names:?}"
        );
        assert_eq!(watcher.watches.len(), 2, "the root and x");
    }

    #[test]
    fn links_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("elsewhere")).unwrap();
        fs::write(at("elsewhere/c"), "x").unwrap();
        symlink("elsewhere", at("folder")).unwrap();
        symlink("elsewhere/c", at("index.html")).unwrap();
        let mut watcher = watcher(folder.path());
        learn(&mut watcher, "/folder/c");
        learn(&mut watcher, "/elsewhere/c");
        assert_eq!(watcher.watches.len(), 2, "one folder has two names");
        fs::write(at("elsewhere/c"), "changed").unwrap();
        assert_eq!(dropped(&mut watcher), ["/elsewhere/c", "/folder/c"]);
        // The index page of the root is a link.
        assert_eq!(learn(&mut watcher, "/"), ["/index.html"]);
        fs::write(at("elsewhere/c"), "again").unwrap();
        assert_eq!(dropped(&mut watcher), ["/elsewhere/c", "/folder/c", "/index.html"]);
        assert_eq!(learn(&mut watcher, "/"), ["/index.html"], "watched again");
        fs::write(at("new"), "another").unwrap();
        fs::rename(at("new"), at("elsewhere/c")).unwrap();
        assert!(dropped(&mut watcher).contains(&"/index.html".to_owned()));
    }

    #[test]
    fn lost_events_invalidate_everything() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::write(at("0"), "x").unwrap();
        let mut watcher = watcher(folder.path());
        learn(&mut watcher, "/0");
        let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let limit: usize = limit.trim().parse().unwrap();
        // Two events each.
        for n in 0..=limit / 2 {
            fs::rename(at(&n.to_string()), at(&(n + 1).to_string())).unwrap();
        }
        let mut changes = Changes::new();
        let mut all = false;
        while !all {
            let events = watcher.notes.counts().events;
            all = watcher.listen(&mut changes);
            assert!(watcher.notes.counts().events > events, "neither events nor an overflow");
        }
        assert!(matches!(invalidation(changes, all), Some(Invalidation::All)));
        assert_eq!(watcher.notes.counts().overflows, 1);
        assert_eq!((watcher.watches.len(), watcher.folders.len()), (0, 0));
        assert_eq!(learn(&mut watcher, "/0"), ["/ *"], "and watched again");
    }

    #[test]
    fn too_many_changes_invalidate_everything() {
        let changes = |count: usize, beneath: bool| -> Changes {
            (0..count).map(|n| ((0, format!("/{n}").into_bytes().into()), beneath)).collect()
        };
        assert!(invalidation(changes(0, false), false).is_none());
        assert!(
            matches!(invalidation(changes(CHANGES_MAX, false), false), Some(Invalidation::Changes(all)) if all.len() == CHANGES_MAX)
        );
        assert!(matches!(invalidation(changes(CHANGES_MAX + 1, false), false), Some(Invalidation::All)));
        assert!(matches!(invalidation(changes(BENEATH_MAX, true), false), Some(Invalidation::Changes(_))));
        assert!(matches!(invalidation(changes(BENEATH_MAX + 1, true), false), Some(Invalidation::All)));
    }
}
