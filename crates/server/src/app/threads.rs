//! Threads that wait in the place of a loop that must not, as AMPED's: to start a process a script has to be found, which may
//! take a disk, and the call that makes a program of it returns when that was read; and a body that is stored (`spool`) is
//! written and read again. Where a loop does the disk's work itself, it does this too.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::mailbox::Post;

/// Threads at most: so many tasks that wait for a slow disk delay no others.
const THREADS: usize = 4;

/// What a thread does.
pub(super) trait Task: Send + 'static {
    /// What the loop is told of it.
    type Message: 'static;

    /// Does it. The message, if there is one, goes to the loop.
    fn perform(self) -> Option<Self::Message>;
}

/// The way to the threads. They end when it is dropped, and every [`Sender`] that it has given out.
pub(super) struct Threads<T: Task> {
    name: &'static str,
    tasks: Sender<T>,
    queue: Arc<Mutex<Receiver<T>>>,
    mailbox: Arc<dyn Post<T::Message>>,
    threads: usize,
}

impl<T: Task> Threads<T> {
    /// Without a thread so far. What comes of the tasks is told to this mailbox.
    pub(super) fn new(name: &'static str, mailbox: Arc<dyn Post<T::Message>>) -> Threads<T> {
        let (tasks, queue) = channel();
        Threads { name, tasks, queue: Arc::new(Mutex::new(queue)), mailbox, threads: 0 }
    }

    /// Has a task done.
    ///
    /// # Errors
    /// The task, if there is no thread and none can be made.
    pub(super) fn start(&mut self, task: T) -> Result<(), T> {
        if self.threads < THREADS && self.add().is_ok() {
            self.threads += 1;
        }
        if self.threads == 0 {
            return Err(task);
        }
        self.tasks.send(task).map_err(|unsent| unsent.0)
    }

    /// A way to the threads that there are.
    pub(super) fn sender(&self) -> Sender<T> {
        self.tasks.clone()
    }

    fn add(&self) -> std::io::Result<()> {
        let (queue, mailbox) = (Arc::clone(&self.queue), Arc::clone(&self.mailbox));
        let work = move || {
            loop {
                // Held by the one that waits for the next task, and by nobody while it is done.
                let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(task) = task else { return };
                if let Some(message) = task.perform() {
                    mailbox.post(message);
                }
            }
        };
        thread::Builder::new().name(self.name.to_owned()).stack_size(256 * 1024).spawn(work).map(|_| ())
    }
}
