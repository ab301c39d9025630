//! Helpers that are processes, from the loop's side (Flash, section 5.1).
//!
//! Each has a socket, and one task at a time; the queue stays here. Their messages are awaited in a separate epoll set,
//! which the loop's epoll set contains, so that the loop need not know how many there are. Nothing here blocks, neither
//! on a helper nor on the [`fork_server`](super::fork_server) that starts them. A helper that was just ordered can be
//! given a task at once, since the loop has its end of the socket before the process exists.
//!
//! When the fork server reports that a helper has ended, the helper's task is retried once, and abandoned if another
//! helper dies of it.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use amped_core::event::{Found, Trouble, Work};
use amped_sys::epoll::{Epoll, Events, Interest, Ready};
use amped_sys::file::Patience;
use amped_sys::socket;
use amped_units::Time;

use super::fork_server::{HelperEnd, Order};
use super::link::{Attachment, Link};
use super::{Busy, Done, Helpers, Task};
use crate::clock::Clock;
use crate::config::settings::HelperSettings;
use crate::config_snapshot::ConfigSnapshot;
use crate::counters::HelperCounts;
use crate::disk::Disk;
use crate::open_file::OpenFile;
use crate::portable;
use crate::say;

/// The helpers of one loop.
pub struct Processes {
    settings: HelperSettings,
    /// The current disk: idle helpers must switch to it, so that they keep no root that is no longer served.
    disk: Weak<Disk>,
    fork_server: Link,
    /// The fork server has ended; the server is about to.
    fork_server_ended: bool,
    clock: Clock,
    /// Waits for the fork server and all helpers.
    epoll: Epoll,
    events: Events,
    /// `queue.len() <= settings.max_queue`, except for retried tasks.
    queue: VecDeque<Job>,
    /// By number, counted from the first. `helpers.len() <= settings.max`, except for a moment after `max` was lowered.
    helpers: BTreeMap<u64, Helper>,
    next: u64,
    /// Maximum at once so far.
    peak: usize,
    died: u64,
    /// When to try again, if no helper could be started.
    retry_at: Option<Time>,
    /// The failure was reported.
    cannot_start: bool,
}

/// A task, and whether a helper has died of it.
#[derive(Debug)]
struct Job {
    task: Task,
    again: bool,
}

#[derive(Debug)]
struct Helper {
    link: Link,
    job: Option<Job>,
    /// The disk whose sites it has received,
    disk: Weak<Disk>,
    /// and the last time at which directories were invalidated that it has been notified of.
    forgotten: Duration,
    /// Since when it is idle, if it is.
    idle_since: Time,
    /// The link is closed. The fork server will report how the process ended.
    ended: bool,
}

/// The fork server's number among the helpers'.
const FORK_SERVER: u64 = u64::MAX;

/// Delay before trying again when no helper can be started.
const START_AGAIN: Duration = Duration::from_millis(100);

impl Processes {
    /// Creates the helpers that the fork server behind `link` starts. None is started yet.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new(generation: &ConfigSnapshot, link: OwnedFd, clock: Clock) -> io::Result<Processes> {
        let epoll = Epoll::new()?;
        epoll.add(&link, FORK_SERVER, Interest::Readable)?;
        Ok(Processes {
            settings: generation.settings.helpers.clone(),
            disk: Arc::downgrade(&generation.disk),
            fork_server: Link::new(link),
            fork_server_ended: false,
            clock,
            epoll,
            events: Events::with_capacity(64),
            queue: VecDeque::new(),
            helpers: BTreeMap::new(),
            next: 0,
            peak: 0,
            died: 0,
            retry_at: None,
            cannot_start: false,
        })
    }

    /// Gives queued tasks to idle helpers, and starts others as far as allowed.
    fn assign(&mut self) {
        while !self.queue.is_empty() {
            let Some(number) = self.idle().or_else(|| self.start()) else {
                return;
            };
            if let (Some(helper), Some(job)) = (self.helpers.get_mut(&number), self.queue.pop_front())
                && helper.give(job, number, &self.epoll).is_err()
            {
                // It had ended before, so it did not die of this task.
                helper.job.take().into_iter().for_each(|job| self.queue.push_front(job));
                self.close_link(number);
            }
        }
    }

    /// Returns the helper that was idle for the shortest time, so that the others reach their timeout.
    fn idle(&self) -> Option<u64> {
        let idle = self.helpers.iter().filter(|(_, helper)| helper.is_idle());
        idle.max_by_key(|(_, helper)| helper.idle_since).map(|(number, _)| *number)
    }

    /// Starts a helper, if the limit allows.
    fn start(&mut self) -> Option<u64> {
        if self.helpers.len() >= self.settings.max || self.retry_at.is_some() {
            return None;
        }
        let number = self.next;
        let started =
            if self.fork_server_ended { Err(io::ErrorKind::BrokenPipe.into()) } else { self.try_start(number) };
        match started {
            Ok(link) => {
                let (job, disk, idle_since) = (None, Weak::new(), self.clock.now());
                self.helpers
                    .insert(number, Helper { link, job, disk, forgotten: Duration::ZERO, idle_since, ended: false });
                self.next += 1;
                self.peak = self.peak.max(self.helpers.len());
                Some(number)
            }
            Err(error) => {
                self.cannot_start(&error);
                None
            }
        }
    }

    fn try_start(&mut self, number: u64) -> io::Result<Link> {
        let (ours, theirs) = socket::pair()?;
        self.epoll.add(&ours, number, Interest::Readable)?;
        let theirs = vec![Attachment::Descriptor(Arc::new(theirs))];
        self.fork_server.put(&portable::write(&number), theirs);
        self.fork_server.flush(&self.epoll, FORK_SERVER)?;
        Ok(Link::new(ours))
    }

    fn cannot_start(&mut self, error: &io::Error) {
        self.retry_at = Some(self.clock.now() + START_AGAIN);
        if !std::mem::replace(&mut self.cannot_start, true) {
            say!("cannot start a helper: {error}; until one starts, requests that need the disk get 503");
        }
    }

    /// Closes the link to a helper.
    fn close_link(&mut self, number: u64) {
        if let Some(helper) = self.helpers.get_mut(&number)
            && !std::mem::replace(&mut helper.ended, true)
        {
            helper.link.end();
            // Otherwise epoll would report it forever.
            let _ = self.epoll.remove(&helper.link);
        }
    }

    /// Handles a helper whose socket is readable or writable.
    fn receive(&mut self, number: u64, ready: Ready, done: &mut Vec<Done>) {
        let Some(helper) = self.helpers.get_mut(&number).filter(|helper| !helper.ended) else {
            return;
        };
        let flushed = if ready.writable { helper.link.flush(&self.epoll, number) } else { Ok(()) };
        // Once, so that a large answer does not keep the loop from other connections.
        let received = if ready.readable { helper.link.receive(Patience::Now) } else { Ok(false) };
        self.take_answer(number, done);
        if flushed.and(received).is_err() {
            self.close_link(number);
        }
    }

    /// Takes a helper's answer, if it is complete.
    fn take_answer(&mut self, number: u64, done: &mut Vec<Done>) {
        let Some(helper) = self.helpers.get_mut(&number) else {
            return;
        };
        let Some(frame) = helper.link.take() else {
            return;
        };
        let job = helper.job.take();
        let came = match &job {
            Some(Job { task: Task::Work(_, work, _), .. }) if frame.bytes.is_empty() => {
                Ok(Done::Changing(work.clone()))
            }
            Some(Job { task: Task::Work(disk, work, _), .. }) => match frame.incomplete {
                true => Ok(Found::Trouble(Trouble::Exhausted)),
                false => portable::unpack(&frame.bytes, frame.descriptors, OpenFile::new),
            }
            .map(|found| {
                disk.was_brought(&found);
                Done::Work(work.clone(), found)
            }),
            Some(Job { task: Task::Warm(token, ..), .. }) if frame.bytes.is_empty() => Ok(Done::Warm(*token)),
            _ => Err(portable::Malformed),
        };
        match came {
            Ok(came) => {
                helper.idle_since = self.clock.now();
                done.push(came);
            }
            Err(error) => {
                say!("a helper sent an invalid message ({error}); this is a bug in amped");
                helper.job = job;
                self.close_link(number);
            }
        }
    }

    /// Handles the fork server's reports of how helpers ended.
    fn receive_from_fork_server(&mut self, ready: Ready, done: &mut Vec<Done>) {
        let flushed = if ready.writable { self.fork_server.flush(&self.epoll, FORK_SERVER) } else { Ok(()) };
        let received = if ready.readable { self.fork_server.receive(Patience::Now) } else { Ok(false) };
        while let Some(frame) = self.fork_server.take() {
            if let Ok((number, end)) = portable::read(&frame.bytes) {
                self.remove_ended(number, end, done);
            }
        }
        if flushed.and(received).is_err() {
            self.fork_server_ended = true;
            let _ = self.epoll.remove(&self.fork_server);
        }
    }

    /// Removes a helper that has ended. One that was released is already unknown.
    fn remove_ended(&mut self, number: u64, end: HelperEnd, done: &mut Vec<Done>) {
        // It may have answered before.
        while let Some(helper) = self.helpers.get_mut(&number)
            && !helper.ended
            && matches!(helper.link.receive(Patience::Now), Ok(true))
        {}
        self.take_answer(number, done);
        let Some(Helper { job, .. }) = self.helpers.remove(&number) else {
            return;
        };
        let (pid, ending) = match end {
            HelperEnd::Ended(pid, ending) => (pid, ending),
            HelperEnd::NotStarted(error) => {
                job.into_iter().for_each(|job| self.queue.push_front(job));
                return self.cannot_start(&io::Error::from_raw_os_error(error));
            }
        };
        self.died += 1;
        match job {
            None => say!("helper {pid} {ending} while idle"),
            Some(Job { task, again: false }) => {
                say!("helper {pid} {ending} during a task ({}); retrying it once", name_of(&task));
                self.queue.push_front(Job { task, again: true });
            }
            Some(Job { task, again: true }) => {
                say!("helper {pid} {ending} during the retried task ({}); giving up", name_of(&task));
                done.push(match task {
                    Task::Work(_, work, _) => Done::Work(work, Found::Trouble(Trouble::Failed)),
                    Task::Warm(token, ..) => Done::Failed(token),
                    Task::Fetch(content, offset) => {
                        Done::Fetched(content, offset, Err(io::ErrorKind::Unsupported.into()))
                    }
                });
            }
        }
    }

    /// Sends the current configuration to idle helpers.
    fn send_configuration(&mut self) {
        let Some(disk) = self.disk.upgrade() else {
            return;
        };
        let mut lost = Vec::new();
        for (&number, helper) in self.helpers.iter_mut().filter(|(_, helper)| helper.is_idle()) {
            helper.update_sites(&disk);
            if helper.link.flush(&self.epoll, number).is_err() {
                lost.push(number);
            }
        }
        lost.into_iter().for_each(|number| self.close_link(number));
    }

    /// Returns when the next surplus helper will have been idle for long enough, and which it is.
    fn next_surplus(&self) -> Option<(Time, u64)> {
        let idle = self.helpers.iter().filter(|(_, helper)| helper.is_idle());
        let first = idle.map(|(&number, helper)| (helper.idle_since + self.settings.idle_timeout, number)).min();
        first.filter(|_| self.helpers.len() > self.settings.min_spare)
    }
}

impl Helpers for Processes {
    fn ask(&mut self, task: Task) -> Result<(), Busy> {
        // Processes know no object store.
        if self.queue.len() >= self.settings.max_queue || matches!(task, Task::Fetch(..)) {
            return Err(Busy);
        }
        self.queue.push_back(Job { task, again: false });
        self.assign();
        if self.helpers.is_empty() {
            // No helper would ever take it.
            self.queue.pop_back();
            return Err(Busy);
        }
        Ok(())
    }

    fn renew(&mut self, generation: &ConfigSnapshot) {
        self.settings = generation.settings.helpers.clone();
        self.disk = Arc::downgrade(&generation.disk);
        self.send_configuration();
        self.assign();
    }

    fn counts(&self) -> HelperCounts {
        let [processes, peak, waiting] = [self.helpers.len(), self.peak, self.queue.len()].map(|count| count as u64);
        HelperCounts { threads: 0, processes, peak, waiting, died: self.died }
    }

    fn register(&mut self, epoll: &Epoll, token: u64) -> io::Result<()> {
        epoll.add(&self.epoll, token, Interest::Readable)
    }

    fn ready(&mut self, done: &mut Vec<Done>) {
        if self.epoll.wait(&mut self.events, Some(Duration::ZERO)).is_err() {
            return;
        }
        let ready: Vec<Ready> = self.events.iter().collect();
        for ready in ready {
            match ready.token {
                FORK_SERVER => self.receive_from_fork_server(ready, done),
                number => self.receive(number, ready, done),
            }
        }
        self.assign();
        self.send_configuration();
    }

    fn next_due(&self) -> Time {
        self.next_surplus().map_or(Time::NEVER, |(due, _)| due).min(self.retry_at.unwrap_or(Time::NEVER))
    }

    fn take_due(&mut self, now: Time) {
        self.retry_at = self.retry_at.filter(|until| *until > now);
        self.assign();
        while let Some((due, number)) = self.next_surplus()
            && due <= now
        {
            // The helper exits when its socket is closed.
            self.helpers.remove(&number);
        }
    }
}

impl Helper {
    fn is_idle(&self) -> bool {
        self.job.is_none() && !self.ended
    }

    /// Gives it a task.
    ///
    /// # Errors
    /// It has ended.
    fn give(&mut self, job: Job, number: u64, epoll: &Epoll) -> io::Result<()> {
        match &job.task {
            Task::Work(disk, work, effort) => {
                self.update_sites(disk);
                self.put(&Order::Work(Cow::Borrowed(work), *effort), Vec::new());
            }
            Task::Warm(_, content, range) => {
                self.put(&Order::Warm(range.start, range.end), vec![Attachment::Content(Arc::clone(content))]);
            }
            Task::Fetch(..) => {}
        }
        self.job = Some(job);
        self.link.flush(epoll, number)
    }

    /// Ensures that it uses this configuration.
    fn update_sites(&mut self, disk: &Arc<Disk>) {
        let disk_of_it = Arc::downgrade(disk);
        let forgotten = disk.folders_forgotten();
        if Weak::ptr_eq(&self.disk, &disk_of_it) && self.forgotten == forgotten {
            return;
        }
        (self.disk, self.forgotten) = (disk_of_it, forgotten);
        self.put(&Order::Begin(Cow::Borrowed(disk.rules())), Vec::new());
        let parts: Vec<_> = disk.parts().collect();
        for parts in parts.chunks(socket::DESCRIPTORS_MAX) {
            let sites = parts.iter().map(|(site, root, _)| (site.map(Cow::Borrowed), Cow::Borrowed(root.as_os_str())));
            let sites = sites.collect();
            let roots = parts.iter().map(|(_, _, folder)| Attachment::Descriptor(Arc::clone(folder))).collect();
            self.put(&Order::Sites(sites), roots);
        }
    }

    fn put(&mut self, order: &Order<'_>, attachments: Vec<Attachment>) {
        self.link.put(&portable::write(order), attachments);
    }
}

fn name_of(task: &Task) -> String {
    match task {
        Task::Work(_, Work::Name(work), _) => String::from_utf8_lossy(&work.path).escape_debug().to_string(),
        Task::Work(_, Work::List(work), _) => format!("listing {}", String::from_utf8_lossy(&work.path).escape_debug()),
        Task::Warm(_, content, range) => {
            format!("reading bytes {} to {} of inode {}", range.start, range.end, content.version.inode)
        }
        Task::Fetch(content, offset) => format!("fetching byte {offset} of inode {}", content.version.inode),
    }
}
