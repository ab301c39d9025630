//! Looked-up names, on their way from the threads that look them up to the watcher thread.
//!
//! `disk` adds a note for every name that it resolves; `watch` takes the notes and watches the directories on the path.
//! The counters of the watcher are here too, so that statistics need not depend on that thread.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use amped_sys::eventfd::EventFd;

use crate::counters::WatchCounts;

/// Maximum names remembered as noted; when it is exceeded all are noted again.
const SEEN_MAX: usize = 16 * 1024;

/// Maximum queued notes; a name beyond that is noted at its next lookup.
const NOTES_MAX: usize = 4096;

/// A site and a clean path: a directory if it ends in a slash, otherwise a file.
pub(crate) type Name = (u16, Arc<[u8]>);

/// The queue between the threads that look up names and the watcher.
#[derive(Debug)]
pub struct Notes {
    state: Mutex<State>,
    pub(crate) bell: EventFd,
    pub(crate) stopping: AtomicBool,
    pub(crate) folders: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) overflows: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Names that were noted and need not be again.
    pub(crate) seen: HashSet<Name>,
    pub(crate) queue: Vec<Name>,
}

impl Notes {
    pub(crate) fn new() -> io::Result<Notes> {
        let [folders, events, overflows] = [const { AtomicU64::new(0) }; 3];
        let (state, stopping) = (Mutex::default(), AtomicBool::new(false));
        Ok(Notes { state, bell: EventFd::new()?, stopping, folders, events, overflows })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a name that is about to be cached.
    pub fn note(&self, site: u16, path: &Arc<[u8]>) {
        let name = (site, Arc::clone(path));
        let mut state = self.lock();
        if state.seen.contains(&name) || state.queue.len() >= NOTES_MAX {
            return;
        }
        if state.seen.len() >= SEEN_MAX {
            state.seen.clear();
        }
        state.seen.insert(name.clone());
        state.queue.push(name);
        self.bell.ring();
    }

    /// Makes the thread exit. It is not joined: it may hang on a dead disk.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    /// Returns the statistics.
    pub fn counts(&self) -> WatchCounts {
        let [directories, events, overflows] =
            [&self.folders, &self.events, &self.overflows].map(|count| count.load(Ordering::Relaxed));
        WatchCounts { directories, events, overflows }
    }
}
