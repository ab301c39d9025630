//! Threads that start processes for a loop that must not wait, as AMPED's: a script has to be found, which may take a disk,
//! and the call that makes a program of it returns when that was read. Where a loop does the disk's work itself, it does this
//! too.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::cgi::{Job, Started};
use crate::mailbox::{Mailbox, Message};

/// Threads at most: so many scripts that lie on a slow disk delay no others.
const THREADS: usize = 4;

/// The way to the threads. They end when it is dropped.
pub(super) struct Starter {
    jobs: Sender<Box<Job>>,
    queue: Arc<Mutex<Receiver<Box<Job>>>>,
    mailbox: Arc<Mailbox>,
    threads: usize,
}

impl Starter {
    /// Without a thread so far. What they have started is told to this mailbox.
    pub(super) fn new(mailbox: Arc<Mailbox>) -> Starter {
        let (jobs, queue) = channel();
        Starter { jobs, queue: Arc::new(Mutex::new(queue)), mailbox, threads: 0 }
    }

    /// Has a process started.
    ///
    /// # Errors
    /// The job, if there is no thread and none can be made.
    pub(super) fn start(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        if self.threads < THREADS && self.add().is_ok() {
            self.threads += 1;
        }
        if self.threads == 0 {
            return Err(job);
        }
        self.jobs.send(job).map_err(|unsent| unsent.0)
    }

    fn add(&self) -> std::io::Result<()> {
        let (queue, mailbox) = (Arc::clone(&self.queue), Arc::clone(&self.mailbox));
        let work = move || {
            loop {
                // Held by the one that waits for the next job, and by nobody while it is done.
                let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(job) = job else { return };
                let started: Started = job.perform();
                mailbox.put(Message::Started(Box::new(started)));
            }
        };
        thread::Builder::new().name("starter".to_owned()).stack_size(256 * 1024).spawn(work).map(|_| ())
    }
}
