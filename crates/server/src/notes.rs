//! Notes of looked-up names, from the threads that look them up to the thread that watches their folders.
//!
//! `disk` adds a note for every name that it resolves; `watch` takes the notes and watches the folders on the way. The
//! counters of the watching thread are here too, so that statistics need not know that thread.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use amped_sys::eventfd::EventFd;

use crate::counters::WatchCounts;

/// Names that are remembered to have been noted; beyond it all are noted again.
const SEEN_MAX: usize = 16 * 1024;

/// Notes that wait; a name beyond it is noted when it is looked up the next time.
const NOTES_MAX: usize = 4096;

/// A site and a clean path: with a slash at its end a folder, else a file.
pub(crate) type Name = (u16, Arc<[u8]>);

/// What lies between those who learn names and the thread that watches.
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
    /// Names that have been noted and need not be again.
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

    /// A name is about to be known.
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

    /// Lets the thread end. It is not waited for: it may hang on a dead disk.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    /// How it stands.
    pub fn counts(&self) -> WatchCounts {
        let [directories, events, overflows] =
            [&self.folders, &self.events, &self.overflows].map(|count| count.load(Ordering::Relaxed));
        WatchCounts { directories, events, overflows }
    }
}
