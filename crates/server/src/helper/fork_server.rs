//! The fork server: the process that helper processes come from, and what a helper does there.
//!
//! A process with threads cannot be split, so at the very start, before there is a second thread, a port or a log, the
//! server splits off one that does nothing else: it has no descriptors but standard ones and a link to each loop, and is
//! the user who will serve. A loop that needs a helper makes a pair of sockets and sends one end; the fork server splits off
//! a process that has this end and nothing else. It watches over them (pidfd_open(2)), and says how they ended.
//!
//! The other way would have been to start the program anew (`/proc/self/exe`) with its socket as an inherited descriptor.
//! That takes a program that the new user may still execute, a thread that waits until it is loaded, since it may have to
//! come from the disk, and milliseconds for each helper in place of a fraction of one.
//!
//! Nothing here knows a configuration: a loop sends a helper the sites before it asks, so a reload is theirs alone. All
//! of these processes end when the other end of their link does, however that came about, and leave signals to the
//! server: what a terminal or a supervisor sends to all is meant for it.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::exit;

use amped_core::event::{Found, Trouble};
use amped_core::site::Site;
use amped_sys::epoll::{Epoll, Events, Interest};
use amped_sys::file::{self, Patience};
use amped_sys::process::{self, Ending, Fork};
use amped_sys::signal::Signals;
use amped_sys::socket;
use serde::{Deserialize, Serialize};

use super::link::{Frame, Kind, Link};
use super::perform;
use crate::disk::{self, Disk, Rules};
use crate::open_file::OpenFile;
use crate::portable;
use crate::say::die;

/// The fork server, as the server knows it.
#[derive(Debug)]
pub struct ForkServer {
    /// Its process.
    pub pid: u32,
    /// The loops' ends of its links, one for each.
    pub links: Vec<OwnedFd>,
}

/// By how much the out-of-memory killer prefers a helper to the server, in thousandths of all memory: a helper is small, and
/// the server has the caches. What uses more than half of the memory still goes first.
const HELPER_OOM_SCORE: i32 = 500;

/// Starts the fork server, which first does `become_user`.
///
/// # Errors
/// When there are other threads, or as fork(2).
pub fn start(
    loops: usize,
    signals: Signals,
    become_user: impl FnOnce() -> Result<(), String>,
) -> io::Result<ForkServer> {
    let (ours, theirs): (Vec<_>, Vec<_>) =
        (0..loops).map(|_| socket::pair()).collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
    // What is on its way to standard output would else be written by both.
    io::stdout().flush()?;
    if let Fork::Parent(pid) = process::fork()? {
        return Ok(ForkServer { pid, links: ours });
    }
    drop(ours);
    signals.leave_to_parent();
    process::set_name(c"fork-server");
    become_user().unwrap_or_else(|message| die(&message));
    match (Keeper { links: theirs.into_iter().map(|end| Some(Link::new(end))).collect(), children: HashMap::new() })
        .watch()
    {
        Ok(None) => exit(0),
        Ok(Some(socket)) => {
            process::set_name(c"helper");
            // Another takes its place; nobody takes the server's.
            process::offer_to_memory_killer(HELPER_OOM_SCORE);
            help(Link::new(socket))
        }
        Err(error) => die(&format!("the process that helpers come from cannot go on: {error}")),
    }
}

/// How a helper has ended, as the fork server tells the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Fate {
    /// The process of this number has ended.
    Ended(u32, #[serde(with = "PortableEnding")] Ending),
    /// There has been none, for this reason (errno(3)).
    NotStarted(i32),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Ending")]
enum PortableEnding {
    Status(i32),
    Signal(i32),
}

struct Keeper {
    /// `None`: this loop has ended.
    links: Vec<Option<Link>>,
    /// By process.
    children: HashMap<u32, Child>,
}

struct Child {
    /// The loop whose helper it is, and the number it has there.
    whose: usize,
    number: u64,
    /// Readable once it has ended.
    _watch: OwnedFd,
}

impl Keeper {
    /// Starts helpers until all loops have ended, and looks after them. In a helper it returns, with its socket; what the
    /// fork server had is closed by then.
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
                    let Some((number, socket)) = read_order(order) else {
                        return Err(io::Error::other("it was told what it cannot read; this is a bug of amped's"));
                    };
                    let Some(socket) = socket else {
                        self.tell(n, number, Fate::NotStarted(NO_DESCRIPTORS));
                        continue;
                    };
                    match process::fork() {
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
                                    self.tell(n, number, Fate::NotStarted(error.raw_os_error().unwrap_or(0)));
                                }
                            }
                        }
                        Err(error) => self.tell(n, number, Fate::NotStarted(error.raw_os_error().unwrap_or(0))),
                    }
                }
            }
        }
        Ok(None)
    }

    fn ended(&mut self, pid: u32) -> io::Result<()> {
        if let Some(Child { whose, number, .. }) = self.children.remove(&pid) {
            let ending = process::wait_for(pid)?;
            self.tell(whose, number, Fate::Ended(pid, ending));
        }
        Ok(())
    }

    fn tell(&self, n: usize, number: u64, fate: Fate) {
        if let Some(link) = &self.links[n] {
            // A loop that has ended hears nothing, and is seen to have.
            let _ = link.say(Kind::Ended, &portable::write(&(number, fate)), &[]);
        }
    }
}

/// EMFILE, errno(3).
const NO_DESCRIPTORS: i32 = 24;

/// The number of the helper to start, and its socket, unless this process had no room for it.
fn read_order(order: Frame) -> Option<(u64, Option<OwnedFd>)> {
    let number = portable::read(&order.bytes).ok()?;
    (order.kind == Some(Kind::Start)).then(|| (number, order.descriptors.into_iter().next()))
}

/// A helper's life: one task after the other, until its loop lets it go.
fn help(mut link: Link) -> ! {
    let mut sites = Sites::default();
    loop {
        let Some(frame) = link.take() else {
            match link.receive(Patience::Wait) {
                Ok(_) => continue,
                Err(_) => exit(0),
            }
        };
        // It would answer from other sites than it was asked about.
        if frame.incomplete {
            die("a helper has no room for the descriptors it is sent; raise the limit on open files");
        }
        match obey(&link, &mut sites, frame) {
            Some(Ok(())) => {}
            // The loop does not wait for it any more.
            Some(Err(_)) => exit(0),
            None => die("a helper was told what it cannot read; this is a bug of amped's"),
        }
    }
}

/// The sites that a helper answers from.
#[derive(Default)]
struct Sites {
    rules: Rules,
    parts: Vec<(Site, PathBuf, OwnedFd)>,
    /// Made of them when the first question comes.
    disk: Option<Disk>,
}

/// `None`: it cannot be read.
fn obey(link: &Link, sites: &mut Sites, frame: Frame) -> Option<io::Result<()>> {
    let Frame { kind, bytes, descriptors, .. } = frame;
    match kind? {
        Kind::Begin => {
            *sites = Sites { rules: portable::read_rules(&bytes).ok()?, ..Sites::default() };
            Some(Ok(()))
        }
        Kind::Sites => {
            let read = portable::read_sites(&bytes).ok()?;
            sites.parts.extend(read.into_iter().zip(descriptors).map(|((site, path), folder)| (site, path, folder)));
            Some(Ok(()))
        }
        Kind::Work => {
            let work = portable::read_work(&bytes).ok()?;
            if sites.disk.is_none() {
                sites.disk = Some(Disk::of_parts(sites.rules.clone(), std::mem::take(&mut sites.parts))?);
            }
            let found = perform(sites.disk.as_ref()?, &work);
            let (bytes, files) = portable::pack(&found);
            let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
            Some(link.say(Kind::Answer, &bytes, &files).or_else(|error| match file::is_exhaustion(&error) {
                // Too many descriptors are on their way.
                true => {
                    let (bytes, _) = portable::pack(&Found::<OpenFile>::Trouble(Trouble::Exhausted));
                    link.say(Kind::Answer, &bytes, &[])
                }
                false => Err(error),
            }))
        }
        Kind::Warm => {
            let (start, end): (u64, u64) = portable::read(&bytes).ok()?;
            // Who sends it will see.
            let _ = disk::warm(descriptors.first()?, start, end.checked_sub(start)?);
            Some(link.say(Kind::Warmed, &[], &[]))
        }
        Kind::Start | Kind::Ended | Kind::Answer | Kind::Warmed => None,
    }
}
