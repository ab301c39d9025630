//! Helpers: they wait for the disk in a loop's place (Flash, section 3.4).
//!
//! Each loop has its own. They are started when work is waiting and none is idle, up to a limit; a few are kept in
//! reserve when there is nothing to do, the others end. Work waits in one bounded queue: when that is full, the loop is
//! told so at once and sheds the request, since a queue that only grows turns a slow disk into a slow server.
//!
//! What they are told and what they answer is plain data and descriptors, so they are [`threads`] of the server or
//! [`processes`] beside it, as those of Flash were. The choice changes nothing that a client sees. Threads share the
//! memory of the loop, so that nothing is copied. A process that dies, or is killed, takes nothing with it but its task,
//! and that is asked again.

pub mod fork_server;
mod link;
pub mod processes;
pub mod threads;

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use amped_core::event::{Found, Trouble, Work};
use amped_core::file::Content;
use amped_sys::epoll::Epoll;
use amped_units::Time;

use crate::config_snapshot::ConfigSnapshot;
use crate::counters::HelperCounts;
use crate::disk::{Disk, Effort};
use crate::open_file::OpenFile;
use crate::token::Token;

/// The helpers of one loop.
pub trait Helpers {
    /// Gives them a task.
    ///
    /// # Errors
    /// [`Busy`] when the queue is full, or no helper can be started at all.
    fn ask(&mut self, task: Task) -> Result<(), Busy>;

    /// Another configuration comes into force; those that are at work finish first.
    fn renew(&mut self, generation: &ConfigSnapshot);

    /// How they stand.
    fn counts(&self) -> HelperCounts;

    /// Has what they say waited for in the loop, under this number.
    ///
    /// # Errors
    /// As [`Epoll::add`].
    fn register(&mut self, _: &Epoll, _token: u64) -> io::Result<()> {
        Ok(())
    }

    /// They have said something: what they have done goes behind `done`.
    fn ready(&mut self, _done: &mut Vec<Done>) {}

    /// When [`take_due`](Helpers::take_due) has something to do.
    fn next_due(&self) -> Time {
        Time::NEVER
    }

    /// Does what was put off until now.
    fn take_due(&mut self, _now: Time) {}
}

/// Something to do that may wait for the disk.
#[derive(Debug)]
pub enum Task {
    /// Answer a connection's question.
    Work(Arc<Disk>, Work),
    /// Bring a range of a file into memory, for the connection that sends it.
    Warm(Token, Arc<Content<OpenFile>>, Range<u64>),
}

/// What came of a task.
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one")]
#[derive(Debug)]
pub enum Done {
    /// The answer to the question.
    Work(Work, Found<OpenFile>),
    /// The range is in memory, or cannot be brought there: whoever sends it will see.
    Warm(Token),
    /// Helpers died of bringing it there. The loop must not try what they could not.
    Failed(Token),
}

/// The queue is full.
#[derive(Debug)]
pub struct Busy;

/// Answers a question, in a helper. Whoever asked must hear something, even of a bug: a panic is told on standard error
/// and answered 500.
fn perform(disk: &Disk, work: &Work) -> Found<OpenFile> {
    let found = catch_unwind(AssertUnwindSafe(|| disk.perform(work, Effort::Wait)));
    found.ok().and_then(Result::ok).unwrap_or(Found::Trouble(Trouble::Failed))
}
