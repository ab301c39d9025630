//! The state that the two threads of an S-Client share: the table of connections that are not established yet, and the
//! handler's epoll set; and for each thread, how it opens a connection and the CPU time it used.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use amped_measure::Failure;
use amped_sys::clock::{self, Clock};
use amped_sys::epoll::Epoll;
use amped_units::Time;

use super::settings::Target;
use super::source::Sources;
use crate::tally::{Fault, Tally, Used};

/// Real-time priority of the handler; the establisher has the next higher one. The handler must not be an ordinary
/// thread: it shares locks with the establisher, including those of the kernel's epoll set, and a lock holder that
/// waits for a core makes the establisher wait too, for tens of milliseconds on a busy machine.
pub(super) const PRIORITY: u8 = 10;

/// The state that the two threads of an S-Client share.
pub(super) struct Lane {
    pub(super) slots: Vec<Slot>,
    /// Slots of closed connections, for the establisher to reuse.
    pub(super) returned: Mutex<Vec<u32>>,
    /// The handler's epoll set.
    pub(super) poll: Epoll,
    /// Connections that the handler has taken.
    pub(super) taken: AtomicU64,
    /// Set when the establisher has begun or expired all its arrivals.
    pub(super) over: AtomicBool,
}

/// The slot of a connection that is not established. The thread that takes it out owns it: the handler when it is
/// established, or the establisher when it expires.
type Slot = Mutex<Option<Pending>>;

/// A connection that is not established.
pub(super) struct Pending {
    /// Number of uses of the slot: identifies events of an earlier connection.
    pub(super) generation: u32,
    pub(super) socket: OwnedFd,
    /// Arrival number in the run.
    pub(super) number: u64,
    pub(super) planned: Time,
}

impl Lane {
    pub(super) fn new(slots: usize) -> Result<Lane, Failure> {
        Ok(Lane {
            slots: (0..slots).map(|_| Mutex::new(None)).collect(),
            returned: Mutex::new(Vec::with_capacity(slots)),
            poll: Epoll::new().map_err(Failure::io("create an epoll instance"))?,
            taken: AtomicU64::new(0),
            over: AtomicBool::new(false),
        })
    }

    /// Puts a new connection into a slot, and registers it with the handler.
    pub(super) fn put(&self, slot: u32, pending: Pending) -> io::Result<()> {
        let token = u64::from(pending.generation) << 32 | u64::from(slot);
        let mut place = lock(&self.slots[slot as usize]);
        // The slot is locked: the handler may receive the event before the slot is filled, and then waits for the lock.
        self.poll.add(&pending.socket, token, amped_sys::epoll::Interest::Connection)?;
        *place = Some(pending);
        Ok(())
    }

    /// Takes the connection of this generation out of a slot, if it is still there.
    pub(super) fn take(&self, slot: u32, generation: u32) -> Option<Pending> {
        lock(&self.slots[slot as usize]).take_if(|pending| pending.generation == generation)
    }
}

/// A thread that panicked with the lock held leaves plain data; joining it passes the panic on.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens connections from ports of our own.
pub(super) struct Connector<'a> {
    pub(super) target: &'a Target,
    pub(super) sources: Sources,
}

impl Connector<'_> {
    /// Opens a connection that was planned for `planned`.
    pub(super) fn begin(&mut self, clock: Clock, planned: Time, tally: &mut Tally) -> Result<OwnedFd, Fault> {
        /// Ports in use are skipped, up to a limit.
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
                        // The server refused: the connection was started.
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

/// Classifies a socket error.
pub(super) fn fault(error: &io::Error) -> Fault {
    use io::ErrorKind as Kind;
    match error.kind() {
        // A Unix socket fails with WouldBlock where TCP would time out: the listen queue is full.
        Kind::ConnectionRefused | Kind::NotFound | Kind::WouldBlock => Fault::Refused,
        Kind::HostUnreachable | Kind::NetworkUnreachable => Fault::Refused,
        Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted => Fault::Reset,
        Kind::TimedOut => Fault::TimedOut,
        _ => Fault::Local,
    }
}

/// Measures a thread's resource use, from here to [`Meter::read`].
pub(super) struct Meter {
    pub(super) clock: Clock,
    began: Time,
    cpu: Duration,
    queued_ns: u64,
    /// Time spent polling the clock.
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

/// Time that this thread was runnable but waited for a core; 0 if the kernel does not count it.
fn queued_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|figure| figure.parse().ok()).unwrap_or(0)
}
