//! What the two threads of an S-Client have in common: the table of connections that are not established yet and the handler's
//! epoll set, between them; and for each of them how it begins a connection, and what it has used.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use amped_measure::Failure;
use amped_sys::clock::{self, Clock};
use amped_sys::epoll::Epoll;
use amped_units::Time;

use super::settings::Target;
use super::source::Sources;
use crate::tally::{Fault, Tally, Used};

/// Priority of the handler among threads that run first; the establisher has the next one. It must not be an ordinary thread:
/// it shares locks with the establisher, in the kernel's epoll set as well, and one that holds such a lock and has to wait for
/// a core makes the establisher wait with it, for tens of milliseconds on a busy machine.
pub(super) const PRIORITY: u8 = 10;

/// What the two threads of an S-Client share.
pub(super) struct Lane {
    pub(super) slots: Vec<Slot>,
    /// Slots whose connections are over, for the establisher to use again.
    pub(super) returned: Mutex<Vec<u32>>,
    /// In which the handler waits.
    pub(super) poll: Epoll,
    /// The establisher has begun, and given up, what there was.
    pub(super) over: AtomicBool,
}

/// A place for a connection that is not established. Whoever takes it out has it: the handler, when it is connected, or the
/// establisher, when its time is over.
type Slot = Mutex<Option<Pending>>;

/// A connection that is not established.
pub(super) struct Pending {
    /// How often the slot has been used: tells an event of its last connection from one of this.
    pub(super) generation: u32,
    pub(super) socket: OwnedFd,
    /// Which arrival of the run it is.
    pub(super) number: u64,
    pub(super) planned: Time,
}

impl Lane {
    pub(super) fn new(slots: usize) -> Result<Lane, Failure> {
        Ok(Lane {
            slots: (0..slots).map(|_| Mutex::new(None)).collect(),
            returned: Mutex::new(Vec::with_capacity(slots)),
            poll: Epoll::new().map_err(Failure::io("make an epoll set"))?,
            over: AtomicBool::new(false),
        })
    }

    /// Puts a connection that has begun into a slot, and has the handler hear of it.
    pub(super) fn put(&self, slot: u32, pending: Pending) -> io::Result<()> {
        let token = u64::from(pending.generation) << 32 | u64::from(slot);
        let mut place = lock(&self.slots[slot as usize]);
        // With the place locked: the handler may hear of it before it is in there, and then waits for a moment.
        self.poll.add(&pending.socket, token, amped_sys::epoll::Interest::Connection)?;
        *place = Some(pending);
        Ok(())
    }

    /// Takes the connection of this generation out of a slot, if it is still there.
    pub(super) fn take(&self, slot: u32, generation: u32) -> Option<Pending> {
        lock(&self.slots[slot as usize]).take_if(|pending| pending.generation == generation)
    }
}

/// A thread that panicked with the lock has left plain data, and its panic is passed on when it is joined.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins connections from ports of our own.
pub(super) struct Connector<'a> {
    pub(super) target: &'a Target,
    pub(super) sources: Sources,
}

impl Connector<'_> {
    /// Begins one that was planned for `planned`.
    pub(super) fn begin(&mut self, clock: Clock, planned: Time, tally: &mut Tally) -> Result<OwnedFd, Fault> {
        /// Ports that others have are passed over, but not for ever.
        const TRIES: usize = 100;
        let to = match self.target {
            Target::Unix(path) => {
                tally.sent(planned, clock.now());
                return amped_sys::local::connect_now(path).map_err(|error| {
                    tally.ended(planned, clock.now(), false);
                    fault(&error)
                });
            }
            Target::Tcp(to) => *to,
        };
        for _ in 0..TRIES {
            let begun = amped_sys::socket::outgoing(Some(self.sources.next()), to).and_then(|socket| {
                let sent = clock.now();
                amped_sys::socket::begin_connect(&socket, to).map(|()| (socket, sent))
            });
            match begun {
                Ok((socket, sent)) => {
                    tally.sent(planned, sent);
                    return Ok(socket);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {}
                Err(error) => {
                    let fault = fault(&error);
                    if fault != Fault::Local {
                        // The server's answer: it was asked.
                        let now = clock.now();
                        tally.sent(planned, now);
                        tally.ended(planned, now, false);
                    }
                    return Err(fault);
                }
            }
        }
        Err(Fault::Local)
    }
}

/// Whose fault an error of a socket is.
pub(super) fn fault(error: &io::Error) -> Fault {
    use io::ErrorKind as Kind;
    match error.kind() {
        // A local socket says WouldBlock where TCP would be silent: its queue is full.
        Kind::ConnectionRefused | Kind::NotFound | Kind::WouldBlock => Fault::Refused,
        Kind::HostUnreachable | Kind::NetworkUnreachable => Fault::Refused,
        Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted => Fault::Reset,
        Kind::TimedOut => Fault::TimedOut,
        _ => Fault::Local,
    }
}

/// What a thread uses, from here to [`Meter::read`].
pub(super) struct Meter {
    pub(super) clock: Clock,
    began: Time,
    cpu: Duration,
    queued_ns: u64,
    /// Time in which the clock was watched.
    pub(super) spun: Duration,
}

impl Meter {
    pub(super) fn start(clock: Clock) -> Meter {
        Meter { clock, began: clock.now(), cpu: clock::cpu_time(), queued_ns: queued_ns(), spun: Duration::ZERO }
    }

    pub(super) fn read(&self) -> Used {
        Used {
            cpu_s: (clock::cpu_time() - self.cpu).as_secs_f64(),
            spun_s: self.spun.as_secs_f64(),
            queued_s: queued_ns().saturating_sub(self.queued_ns) as f64 / 1e9,
            elapsed_s: (self.clock.now() - self.began).as_secs_f64(),
        }
    }
}

/// For how long this thread has waited for a core; 0 where the kernel does not count it.
fn queued_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|figure| figure.parse().ok()).unwrap_or(0)
}
