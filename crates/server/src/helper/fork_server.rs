//! The fork server: the process that forks helper processes, and the main loop of a helper.
//!
//! A process with threads cannot fork safely, so at the very start, before there is a second thread, a port or a
//! log, the server forks one that does nothing else: it has no descriptors except standard ones and a link to
//! each loop, and runs as the user that will serve. A loop that needs a helper creates a socket pair and sends
//! one end; the fork server forks a process that has this end and nothing else. It watches the helpers
//! (pidfd_open(2)), and reports how they ended.
//!
//! The alternative would be to execute the program again (`/proc/self/exe`) with its socket as an inherited descriptor.
//! That needs a program that the new user may still execute, a thread that waits until it is loaded, possibly from the
//! disk, and milliseconds for each helper instead of a fraction of one.
//!
//! Nothing here depends on the configuration: a loop sends a helper the sites before any task, so a reload concerns
//! only loops and helpers. All of these processes end when the other end of their link is closed, for whatever reason.
//! They ignore signals, which the server handles even if a terminal or a supervisor sends them to all processes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::exit;

use amped_core::event::{Found, Trouble, Work};
use amped_core::site::Site;
use amped_sys::epoll::{Epoll, Events, Interest};
use amped_sys::file::{self, Patience};
use amped_sys::process::{self, Ending, Fork, OomScore};
use amped_sys::signal::Signals;
use amped_sys::socket;
use serde::{Deserialize, Serialize};

use super::link::{Frame, Link};
use super::perform;
use crate::disk::{self, Disk, Effort, Rules};
use crate::open_file::OpenFile;
use crate::portable::{self, NO_DESCRIPTORS, PortableEnding};
use crate::say::die;

/// The server's handle of the fork server.
#[derive(Debug)]
pub struct ForkServer {
    /// Its process ID.
    pub pid: u32,
    /// The loops' ends of its links, one for each.
    pub links: Vec<OwnedFd>,
}

/// How much the out-of-memory killer prefers a helper to the server, in thousandths of all memory: a helper is small,
/// and the server has the caches. A process that uses more than half of the memory is still killed first.
const HELPER_OOM_SCORE: i32 = 500;

/// Starts the fork server, which first calls `give_up_rights`.
///
/// # Errors
/// If the process has other threads; those of fork(2).
pub fn start(
    loops: usize,
    signals: Signals,
    give_up_rights: impl FnOnce() -> Result<(), String>,
) -> io::Result<ForkServer> {
    let (ours, theirs): (Vec<_>, Vec<_>) =
        (0..loops).map(|_| socket::pair()).collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
    // Otherwise both processes would write buffered standard output.
    io::stdout().flush()?;
    if let Fork::Parent(pid) = process::fork()? {
        return Ok(ForkServer { pid, links: ours });
    }
    drop(ours);
    signals.leave_to_parent();
    process::set_name(c"fork-server");
    let oom_score = OomScore::open();
    give_up_rights().unwrap_or_else(|message| die(&message));
    let links = theirs.into_iter().map(|end| Some(Link::new(end))).collect();
    match (Supervisor { links, children: HashMap::new(), oom_score }).watch() {
        Ok(None) => exit(0),
        Ok(Some(socket)) => {
            process::set_name(c"helper");
            help(Link::new(socket))
        }
        Err(error) => die(&format!("the fork server failed: {error}")),
    }
}

/// How a helper has ended, as the fork server reports it to the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum HelperEnd {
    /// The process with this ID has ended.
    Ended(u32, #[serde(with = "PortableEnding")] Ending),
    /// No process was started, for this reason (errno(3)).
    NotStarted(i32),
}

/// A message from a loop to a helper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order<'a> {
    /// The sites of another configuration follow.
    Begin(Cow<'a, Rules>),
    /// Some of these sites, with the paths of their roots, whose descriptors are sent along; then roots of their aliases.
    Sites(Vec<(Option<Cow<'a, Site>>, Cow<'a, OsStr>)>),
    /// Perform this lookup; the answer is that of [`portable::pack`], or an empty frame if the file is being written.
    Work(Cow<'a, Work>, Effort),
    /// Read this range of a file, whose descriptor is sent along, into memory; the answer is an empty frame.
    Warm(u64, u64),
}

struct Supervisor {
    /// `None`: this loop has ended.
    links: Vec<Option<Link>>,
    /// By process ID.
    children: HashMap<u32, Child>,
    oom_score: Option<OomScore>,
}

struct Child {
    /// The loop that the helper belongs to, and its number there.
    whose: usize,
    number: u64,
    /// Readable once it has ended.
    _watch: OwnedFd,
}

impl Supervisor {
    /// Starts helpers until all loops have ended, and watches them. In a helper it returns the helper's socket; the
    /// descriptors of the fork server are closed by then.
    fn watch(mut self) -> io::Result<Option<OwnedFd>> {
        let epoll = Epoll::new()?;
        let children_from = self.links.len() as u64;
        for (n, link) in self.links.iter().flatten().enumerate() {
            epoll.add(link, n as u64, Interest::Readable)?;
        }
        let mut events = Events::with_capacity(64);
        while self.links.iter().any(Option::is_some) {
            epoll.wait(&mut events, None)?;
            for ready in events.iter() {
                if let Some(pid) = ready.token.checked_sub(children_from) {
                    self.ended(pid as u32)?;
                    continue;
                }
                let n = ready.token as usize;
                let Some(link) = &mut self.links[n] else {
                    continue;
                };
                if link.receive(Patience::Now).is_err() {
                    self.links[n] = None;
                }
                while let Some(order) = self.links[n].as_mut().and_then(Link::take) {
                    // The number of the helper to start, and its socket, unless this process was out of descriptors.
                    let number = portable::read(&order.bytes).map_err(io::Error::other)?;
                    let Some(socket) = order.descriptors.into_iter().next() else {
                        self.report_end(n, number, HelperEnd::NotStarted(NO_DESCRIPTORS));
                        continue;
                    };
                    // A helper can be replaced; the server cannot.
                    match OomScore::fork(self.oom_score.as_ref(), HELPER_OOM_SCORE) {
                        Ok(Fork::Child) => return Ok(Some(socket)),
                        Ok(Fork::Parent(pid)) => {
                            let watch = process::watch(pid).and_then(|watch| {
                                epoll.add(&watch, children_from + u64::from(pid), Interest::Readable)?;
                                Ok(watch)
                            });
                            match watch {
                                Ok(watch) => {
                                    self.children.insert(pid, Child { whose: n, number, _watch: watch });
                                }
                                Err(error) => {
                                    process::kill(pid);
                                    process::wait_for(pid)?;
                                    self.report_end(
                                        n,
                                        number,
                                        HelperEnd::NotStarted(error.raw_os_error().unwrap_or(0)),
                                    );
                                }
                            }
                        }
                        Err(error) => {
                            self.report_end(n, number, HelperEnd::NotStarted(error.raw_os_error().unwrap_or(0)))
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    fn ended(&mut self, pid: u32) -> io::Result<()> {
        if let Some(Child { whose, number, .. }) = self.children.remove(&pid) {
            let ending = process::wait_for(pid)?;
            self.report_end(whose, number, HelperEnd::Ended(pid, ending));
        }
        Ok(())
    }

    fn report_end(&self, n: usize, number: u64, end: HelperEnd) {
        if let Some(link) = &self.links[n] {
            // A loop that has ended receives nothing; its end is noticed.
            let _ = link.say(&portable::write(&(number, end)), &[]);
        }
    }
}

/// The main loop of a helper: one task after the other, until its loop closes the link.
fn help(mut link: Link) -> ! {
    let mut sites = Sites::default();
    loop {
        let Some(frame) = link.take() else {
            match link.receive(Patience::Wait) {
                Ok(_) => continue,
                Err(_) => exit(0),
            }
        };
        // Without a descriptor it would answer from the wrong sites.
        if frame.incomplete {
            die("a helper is out of file descriptors; raise the limit on open files");
        }
        match handle_frame(&link, &mut sites, frame) {
            Some(Ok(())) => {}
            // The loop does not wait for it any more.
            Some(Err(_)) => exit(0),
            None => die("a helper received an invalid message; this is a bug in amped"),
        }
    }
}

/// The sites that a helper answers from.
#[derive(Default)]
struct Sites {
    rules: Rules,
    parts: Vec<(Option<Site>, PathBuf, OwnedFd)>,
    /// Created from them for the first lookup.
    disk: Option<Disk>,
}

/// Handles a frame. Returns `None` if it is invalid.
fn handle_frame(link: &Link, sites: &mut Sites, Frame { bytes, descriptors, .. }: Frame) -> Option<io::Result<()>> {
    match portable::read(&bytes).ok()? {
        Order::Begin(rules) => *sites = Sites { rules: rules.into_owned(), ..Sites::default() },
        Order::Sites(more) => {
            let parts = more.into_iter().zip(descriptors);
            let part = |((site, path), folder): ((Option<Cow<'_, Site>>, Cow<'_, OsStr>), _)| {
                (site.map(Cow::into_owned), PathBuf::from(path.into_owned()), folder)
            };
            sites.parts.extend(parts.map(part));
        }
        Order::Work(work, effort) => {
            if sites.disk.is_none() {
                sites.disk = Some(Disk::of_parts(sites.rules.clone(), std::mem::take(&mut sites.parts))?);
            }
            let Some(found) = perform(sites.disk.as_ref()?, &work, effort) else {
                return Some(link.say(&[], &[]));
            };
            let (bytes, files) = portable::pack(&found);
            let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
            return Some(link.say(&bytes, &files).or_else(|error| match file::is_exhaustion(&error) {
                // Too many descriptors are in transit.
                true => link.say(&portable::pack(&Found::<OpenFile>::Trouble(Trouble::Exhausted)).0, &[]),
                false => Err(error),
            }));
        }
        Order::Warm(start, end) => {
            // Errors are found when the window is sent.
            let _ = disk::warm(descriptors.first()?, start, end.checked_sub(start)?);
            return Some(link.say(&[], &[]));
        }
    }
    Some(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_core::glob::Glob;
    use amped_core::site::{Alias, Symlinks};
    use amped_http::negotiate::Coding;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn orders_round_trip_with_any_file_name() {
        let name = OsStr::from_bytes(b"/srv/\xff");
        let rules = Rules { secrets: vec![name.to_owned()], max_content_file_bytes: 1, ..Rules::default() };
        let site = Site {
            index: vec!["a.html".into(), "b.html".into()],
            dotfiles: true,
            precompressed: vec![Coding::Brotli, Coding::Gzip],
            symlinks: Symlinks::Owner,
            user_dir: Some("public".into()),
            aliases: vec![Alias { pattern: Glob::new("/static/**"), root: 1, keep_prefix: false }],
            ..Site::default()
        };
        let sites = vec![(Some(Cow::Borrowed(&site)), Cow::Borrowed(name)), (None, Cow::Borrowed(name))];
        for order in [Order::Begin(Cow::Borrowed(&rules)), Order::Sites(sites), Order::Warm(3, 9)] {
            let bytes = portable::write(&order);
            let read = |end: usize| portable::read::<Order<'static>>(&bytes[..end]);
            assert_eq!(format!("{:?}", read(bytes.len())), format!("{:?}", Ok::<_, portable::Malformed>(&order)));
            assert!((0..bytes.len()).all(|end| read(end).is_err()), "{order:?}");
        }
    }
}
