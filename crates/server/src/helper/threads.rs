//! Helpers that are threads of the server. Completed tasks reach the loop through its mailbox.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use amped_core::file::Stored;

use super::{Busy, Done, Helpers, Task, fetch, perform};
use crate::config::settings::HelperSettings;
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::HelperCounts;
use crate::disk;
use crate::mailbox::Mailbox;
use crate::message::Message;
use crate::say;

/// The helpers of one loop.
#[derive(Debug)]
pub struct Threads {
    shared: Arc<Shared>,
}

/// Stack of a helper, bytes: enough for the TLS handshake with an object store. The kernel allocates what is used.
const STACK: usize = 1024 * 1024;

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    mailbox: Arc<Mailbox<Message>>,
}

#[derive(Debug)]
struct State {
    settings: HelperSettings,
    /// `queue.len() <= settings.max_queue`
    queue: VecDeque<Task>,
    /// `idle <= threads <= settings.max`
    threads: usize,
    idle: usize,
    /// Maximum threads so far.
    peak: usize,
    stopping: bool,
    /// No helper could be started; reported once.
    cannot_start: bool,
}

impl Threads {
    /// Creates helpers that put completed tasks into `mailbox`. None is started yet.
    pub fn new(settings: HelperSettings, mailbox: Arc<Mailbox<Message>>) -> Threads {
        let state = State {
            settings,
            queue: VecDeque::new(),
            threads: 0,
            idle: 0,
            peak: 0,
            stopping: false,
            cannot_start: false,
        };
        let shared = Shared { state: Mutex::new(state), wake: Condvar::new(), mailbox };
        Threads { shared: Arc::new(shared) }
    }
}

impl Helpers for Threads {
    fn ask(&mut self, task: Task) -> Result<(), Busy> {
        let mut state = self.shared.lock();
        if state.queue.len() >= state.settings.max_queue {
            return Err(Busy);
        }
        state.queue.push_back(task);
        if state.queue.len() > state.idle && state.threads < state.settings.max {
            state.threads += 1;
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new().name("helper".to_owned()).stack_size(STACK);
            if let Err(error) = started.spawn(move || shared.help()) {
                state.threads -= 1;
                if state.threads == 0 {
                    // No helper would ever take it.
                    state.queue.pop_back();
                    if !std::mem::replace(&mut state.cannot_start, true) {
                        say!("cannot start a helper: {error}; requests that need the disk get 503");
                    }
                    return Err(Busy);
                }
            }
            state.peak = state.peak.max(state.threads);
        }
        self.shared.wake.notify_one();
        Ok(())
    }

    fn renew(&mut self, generation: &ConfigSnapshot) {
        self.shared.lock().settings = generation.settings.helpers.clone();
        self.shared.wake.notify_all();
    }

    fn counts(&self) -> HelperCounts {
        let state = self.shared.lock();
        let [threads, peak, waiting] = [state.threads, state.peak, state.queue.len()].map(|count| count as u64);
        HelperCounts { threads, peak, waiting, ..HelperCounts::default() }
    }
}

impl Drop for Threads {
    /// Makes them exit. They are not joined: one may hang on a dead disk.
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The main loop of a helper.
    fn help(&self) {
        while let Some(task) = self.next_task() {
            let done = match task {
                Task::Work(disk, work, effort) => match perform(&disk, &work, effort) {
                    Some(found) => Done::Work(work, found),
                    None => Done::Changing(work),
                },
                Task::Warm(token, content, range) => {
                    if let Stored::File(file) = &content.store {
                        // Errors are found when the window is sent.
                        let _ = disk::warm(file, range.start, range.end - range.start);
                    }
                    Done::Warm(token)
                }
                Task::Fetch(content, offset) => {
                    let fetched = fetch(&content, offset);
                    Done::Fetched(content, offset, fetched)
                }
            };
            self.mailbox.put(Message::Done(done));
        }
    }

    /// Waits for a task. Returns `None` if this helper is surplus and has been
    /// idle for too long, or the loop has ended.
    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.stopping {
                state.threads -= 1;
                return None;
            }
            if let Some(task) = state.queue.pop_front() {
                return Some(task);
            }
            state.idle += 1;
            let idle_timeout = state.settings.idle_timeout;
            let waited = self.wake.wait_timeout(state, idle_timeout);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() && state.threads > state.settings.min_spare {
                state.threads -= 1;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::HelperKind;
    use crate::config::{cli, load};
    use crate::disk::{Disk, Effort, Rules};
    use amped_core::event::{ListWork, Work};
    use amped_core::listing::{ListForm, ListOrder};
    use std::time::{Duration, Instant};

    fn helpers(settings: HelperSettings) -> (Threads, Arc<Mailbox<Message>>, Task) {
        let folder = tempfile::tempdir().unwrap();
        let flags = cli::Serve { dir: Some(folder.path().into()), ..cli::Serve::default() };
        let settings_of_all = load(&flags).unwrap();
        let disk = Disk::open(settings_of_all.sites, &settings_of_all.roots, Rules::default(), None).unwrap();
        let (order, form) = (ListOrder::of(None), ListForm::Json);
        let work = Work::List(ListWork { generation: 0, site: 0, path: b"/"[..].into(), edition: 0, order, form });
        let mailbox = Arc::new(Mailbox::new().unwrap());
        (Threads::new(settings, Arc::clone(&mailbox)), mailbox, Task::Work(Arc::new(disk), work, Effort::Defer))
    }

    fn again(task: &Task) -> Task {
        match task {
            Task::Work(disk, work, effort) => Task::Work(Arc::clone(disk), work.clone(), *effort),
            Task::Warm(token, content, range) => Task::Warm(*token, Arc::clone(content), range.clone()),
            Task::Fetch(content, offset) => Task::Fetch(Arc::clone(content), *offset),
        }
    }

    fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(20), "timed out waiting for {what}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn helpers_start_on_demand_and_some_stay_in_reserve() {
        let idle_timeout = Duration::from_millis(30);
        let (mut helpers, mailbox, task) =
            helpers(HelperSettings { kind: HelperKind::Threads, max: 4, min_spare: 2, max_queue: 1000, idle_timeout });
        assert_eq!(helpers.counts(), HelperCounts::default());
        (0..500).for_each(|_| helpers.ask(again(&task)).unwrap());
        let (mut done, mut messages) = (0, Vec::new());
        wait_until("all tasks to complete", || {
            mailbox.take(&mut messages);
            done += messages.drain(..).filter(|message| matches!(message, Message::Done(Done::Work(..)))).count();
            done == 500
        });
        let peak = helpers.counts().peak;
        assert!((1..=4).contains(&peak), "{peak}");
        wait_until("the helpers beyond the reserve to end", || helpers.counts().threads <= 2);
        thread::sleep(idle_timeout * 3);
        assert_eq!(helpers.counts().threads, peak.min(2), "the reserve stays");
    }

    #[test]
    fn full_queue_rejects_request_at_once() {
        let idle_timeout = Duration::from_secs(10);
        let (mut helpers, _mailbox, task) =
            helpers(HelperSettings { kind: HelperKind::Threads, max: 1, min_spare: 0, max_queue: 3, idle_timeout });
        // The one helper may take some in the meantime, but not thousands before this loop is done.
        let refused = (0..10_000).filter(|_| helpers.ask(again(&task)).is_err()).count();
        assert!(refused > 0);
        assert!(helpers.counts().waiting <= 3);
        assert_eq!(helpers.counts().peak, 1);
    }
}
