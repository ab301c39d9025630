//! Helpers: they wait for the disk in place of a loop (Flash, section 3.4).
//!
//! Each loop has its own. Helpers are started when tasks wait and none is idle, up to a limit; a few idle ones are kept
//! in reserve, the others exit. Tasks wait in one bounded queue: when it is full, the loop gets an error at once and sheds
//! the request, since a queue that only grows turns a slow disk into a slow server.
//!
//! Tasks and results are plain data and descriptors, so helpers are [`threads`] of the server or [`processes`]
//! beside it, as in Flash. Clients see no difference. Threads share the memory of the loop, so nothing is copied. A
//! process that dies, or is killed, loses only its task, which is retried.

pub mod fork_server;
mod link;
pub mod processes;
pub mod threads;

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use amped_core::event::{Delay, Found, Lane, Trouble, Work};
use amped_core::file::{Content, Stored};
use amped_sys::epoll::Epoll;
use amped_units::Time;

use crate::config_snapshot::ConfigSnapshot;
use crate::counters::HelperCounts;
use crate::disk::{Disk, Effort};
use crate::open_file::OpenFile;
use crate::token::Token;

/// The helpers of one loop.
pub trait Helpers {
    /// Queues a task.
    ///
    /// # Errors
    /// [`Busy`] when the queue is full, or no helper can be started at all.
    fn ask(&mut self, task: Task) -> Result<(), Busy>;

    /// Applies another configuration; tasks in progress finish first.
    fn renew(&mut self, generation: &ConfigSnapshot);

    /// Returns the statistics.
    fn counts(&self) -> HelperCounts;

    /// Adds the helpers to the loop's epoll set under this number.
    ///
    /// # Errors
    /// Those of [`Epoll::add`].
    fn register(&mut self, _: &Epoll, _token: u64) -> io::Result<()> {
        Ok(())
    }

    /// Handles their messages; appends completed tasks to `done`.
    fn ready(&mut self, _done: &mut Vec<Done>) {}

    /// Returns when [`take_due`](Helpers::take_due) has something to do.
    fn next_due(&self) -> Time {
        Time::NEVER
    }

    /// Does what was deferred until now.
    fn take_due(&mut self, _now: Time) {}
}

/// A task that may wait for the disk.
#[derive(Debug)]
pub enum Task {
    /// Perform a connection's lookup, with [`Effort::Defer`] or [`Effort::Accept`].
    Work(Arc<Disk>, Work, Effort),
    /// Read a range of a file into memory, for the lane of a connection that sends it.
    Warm((Token, Lane), Arc<Content<OpenFile>>, Range<u64>),
    /// Fetch the window of an object that has this byte. Only threads do so.
    Fetch(Arc<Content<OpenFile>>, u64),
}

/// The result of a task.
#[derive(Debug)]
pub enum Done {
    /// The result of the lookup.
    Work(Work, Found<OpenFile>),
    /// The file of the lookup is being written; a helper that waited for it would delay other lookups.
    Changing(Work),
    /// The range is in memory, or cannot be read; sending it will show.
    Warm((Token, Lane)),
    /// Helpers died while reading it. The loop must not try what they could not.
    Failed((Token, Lane)),
    /// The window of an object that has this byte is there, or cannot be fetched.
    Fetched(Arc<Content<OpenFile>>, u64, io::Result<()>),
}

/// Fetches a window of an object, in a helper. A panic is an error, as for a lookup.
fn fetch(content: &Content<OpenFile>, offset: u64) -> io::Result<()> {
    match &content.store {
        Stored::File(file) => catch_unwind(AssertUnwindSafe(|| file.fetch(offset)))
            .unwrap_or_else(|_| Err(io::Error::other("a bug in amped"))),
        Stored::Memory(_) => Ok(()),
    }
}

/// The queue is full.
#[derive(Debug)]
pub struct Busy;

/// Performs a lookup, in a helper; `None`: the file is being written. Every lookup gets a result, even after a bug: a
/// panic is reported on standard error and answered with 500.
fn perform(disk: &Disk, work: &Work, effort: Effort) -> Option<Found<OpenFile>> {
    match catch_unwind(AssertUnwindSafe(|| disk.perform(work, effort))) {
        Ok(Ok(found)) => Some(found),
        Ok(Err(Delay::Change)) => None,
        Ok(Err(Delay::Disk)) | Err(_) => Some(Found::Trouble(Trouble::Failed)),
    }
}
