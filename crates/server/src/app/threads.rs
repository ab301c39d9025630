//! Threads that block in place of a loop that must not, as in AMPED. To start a process, its script must be looked up,
//! which may need the disk, and execve returns only after the program was read; stored bodies (`spool`) are written and
//! read back. A loop that does disk work itself does this too.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::mailbox::Post;

/// Maximum threads: the number of tasks that can wait for a slow disk without delaying others.
const THREADS: usize = 4;

/// A task for a thread.
pub(super) trait Task: Send + 'static {
    /// The message that the loop gets.
    type Message: 'static;

    /// Performs the task. The message, if there is one, goes to the loop.
    fn perform(self) -> Option<Self::Message>;
}

/// A handle to the threads. They exit when it and all its [`Sender`]s are dropped.
pub(super) struct Threads<T: Task> {
    name: &'static str,
    tasks: Sender<T>,
    queue: Arc<Mutex<Receiver<T>>>,
    mailbox: Arc<dyn Post<T::Message>>,
    threads: usize,
}

impl<T: Task> Threads<T> {
    /// Creates a pool, without a thread so far. Results go to this mailbox.
    pub(super) fn new(name: &'static str, mailbox: Arc<dyn Post<T::Message>>) -> Threads<T> {
        let (tasks, queue) = channel();
        Threads { name, tasks, queue: Arc::new(Mutex::new(queue)), mailbox, threads: 0 }
    }

    /// Queues a task.
    ///
    /// # Errors
    /// The task, if there is no thread and none can be started.
    pub(super) fn start(&mut self, task: T) -> Result<(), T> {
        if self.threads < THREADS && self.add().is_ok() {
            self.threads += 1;
        }
        if self.threads == 0 {
            return Err(task);
        }
        self.tasks.send(task).map_err(|unsent| unsent.0)
    }

    /// Returns another handle to the threads, of which there is at least one then; `None`: none can be started.
    pub(super) fn one(&mut self) -> Option<Sender<T>> {
        if self.threads == 0 && self.add().is_ok() {
            self.threads = 1;
        }
        (self.threads > 0).then(|| self.sender())
    }

    /// Returns another handle to the existing threads.
    pub(super) fn sender(&self) -> Sender<T> {
        self.tasks.clone()
    }

    fn add(&self) -> std::io::Result<()> {
        let (queue, mailbox) = (Arc::clone(&self.queue), Arc::clone(&self.mailbox));
        let work = move || {
            loop {
                // Locked by the thread that waits for the next task, and never while a task is performed.
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
