//! Runs a plan against a server: S-Clients (Banga and Druschel, section 4), or clients in a closed loop.
//!
//! An S-Client is two threads. The *establisher* (`establisher.rs`) begins connections at planned instants and gives up what
//! is not connected in time; it waits for the clock alone, so the server cannot slow it down. The *handler* (`handler.rs`)
//! asks and reads on what is connected. Between them lie a table of [`Slot`]s and the handler's epoll set: the kernel is the
//! queue, so no connection costs a message. In a closed loop the handler begins connections itself.
//!
//! ```text
//!   schedule --> establisher --socket, bind, connect--> slot + epoll set --connected--> handler --> tally
//!                     '---- T is over: reset, Abandoned ----'
//! ```

mod establisher;
mod handler;
pub mod parked;
mod seconds;
#[cfg(test)]
pub(crate) use seconds::place as second_at;
mod source;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use amped_measure::Failure;
use amped_measure::host::{Machine, stolen_ns};
use amped_sys::clock::{self, Clock};
use amped_sys::epoll::Epoll;
use amped_sys::process;
use amped_sys::signal::{Signal, Signals};
use amped_units::Time;

use crate::client::Plan;
use crate::outcome::{Loop, Outcome, Ran};
use crate::schedule::Schedule;
use crate::tally::{Fault, Interval, Tally, Used};
use crate::tls::Tls;
use seconds::Cutter;

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket with a name in the file system (unix(7)).
    Unix(PathBuf),
}

/// What does not depend on whether the loop is open.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whom to connect to.
    pub target: Target,
    /// TLS on each connection; `None`: there is none.
    pub tls: Option<Tls>,
    /// How long a connection may take to be established, from its planned instant (T of the paper).
    pub connect_timeout: Duration,
    /// How long a reply may take, from the planned instant of its request, a handshake before it included.
    pub timeout: Duration,
    /// How long before an instant the clock is watched in place of sleeping.
    pub spin: Duration,
    /// S-Clients, each with its part of the schedule; or threads of a closed loop, each with its part of the clients.
    pub lanes: usize,
    /// Connections that a [`parked::Lot`] holds beside the run: they have descriptors and ports of their own.
    pub parked: usize,
    /// Asked when all is ready: when the first instant is to be. `None`: at once.
    pub start: Option<fn() -> Result<SystemTime, Failure>>,
}

/// Ends a run before its time.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the runs that were given this one.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it has been said.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// One that SIGINT, SIGTERM and SIGHUP say; the second of them ends the program with status 130, after `clean_up`. Call it
    /// before any thread is started.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn on_signals(clean_up: fn()) -> Result<Stop, Failure> {
        let signals = Signals::block().map_err(Failure::io("take signals"))?;
        let stop = Stop::default();
        let said = stop.clone();
        let wait = thread::Builder::new().name("signals".to_owned()).spawn(move || said.obey(signals, clean_up));
        wait.map_err(Failure::io("start a thread"))?;
        Ok(stop)
    }

    fn obey(&self, signals: Signals, clean_up: fn()) {
        loop {
            if matches!(signals.wait(), Signal::Interrupt | Signal::Terminate | Signal::HangUp) {
                if self.is_stopped() {
                    clean_up();
                    std::process::exit(130);
                }
                self.stop();
            }
        }
    }
}

/// Hears of each second when it is over, in a thread that measures nothing: it may take its time.
pub type OnSecond<'a> = &'a (dyn Fn(&Interval) + Sync);

/// Runs S-Clients: connections begin when the schedule says so.
///
/// # Errors
/// When this process cannot have the descriptors that the schedule needs; the text has the number.
pub fn open(
    settings: &Settings,
    plan: &Plan,
    schedule: &Schedule,
    asked: Loop,
    stop: &Stop,
    on_second: OnSecond<'_>,
) -> Result<Outcome, Failure> {
    let lanes = settings.lanes.max(1);
    // Only those that are not connected yet have a bound that the schedule knows. As many again as may be answered slowly are
    // had where the limit is higher anyway.
    let needed = schedule.most_within(settings.connect_timeout) + 64;
    let wanted = schedule.most_within(settings.connect_timeout + settings.timeout) + 64;
    let (parked, reserve) = (settings.parked, settings.parked + RESERVE);
    let limit = process::raise_descriptor_limit_to((needed + reserve) as u64);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(reserve);
    if limit < needed {
        let beside = if parked > 0 { format!(" beside {parked} that are parked") } else { String::new() };
        return Err(Failure::failed(format!(
            "this schedule may have {needed} sockets at once (its peak rate times the connect timeout){beside}, and the limit \
             on descriptors is {}; raise it (ulimit -n {}), or lower --rate or --connect-timeout",
            limit + reserve,
            needed + reserve
        )));
    }
    let slots = wanted.min(limit).div_ceil(lanes);
    process::make_room_for_descriptors((needed.max(wanted.min(limit)) + reserve) as u64);
    let beginning = Beginning::of(settings)?;
    let Beginning { clock, start, .. } = beginning;
    let window = schedule.duration();
    let ran = run_lanes(lanes, beginning, window, on_second, |lane, [begun, ended]| {
        let shared = Lane::new(slots)?;
        let sources = source::Sources::new(&settings.target, lane, lanes, settings.parked)?;
        let tally = || Tally::over(classes(plan), start, window);
        Ok(thread::scope(|scope| {
            let establish = || {
                let connector = Connector { target: &settings.target, sources };
                let establisher = establisher::Establisher::new(&shared, settings, connector, clock, begun, tally());
                // Every lanes-th arrival, so that all lanes have the same shape.
                let arrivals = schedule.arrivals().skip(lane).step_by(lanes);
                let arrivals = arrivals.map(|(number, at)| (number, start + Duration::from_nanos(at)));
                let ended = establisher.run(arrivals, stop);
                shared.over.store(true, Ordering::Release);
                ended
            };
            let establisher = scope.spawn(establish);
            let handler = handler::Handler::new(&shared, settings, plan, clock, start, tally());
            let handled = handler.run(ended, stop);
            let established = establisher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ended { established: Some(established), handled }
        }))
    })?;
    finish(ran, plan, asked, window, lanes, stop)
}

/// Runs clients in a closed loop: each asks, waits for its reply, thinks, and asks again, for so long.
///
/// # Errors
/// When this process cannot have a descriptor for each client.
pub fn closed(
    settings: &Settings,
    plan: &Plan,
    clients: usize,
    think: Duration,
    duration: Duration,
    stop: &Stop,
    on_second: OnSecond<'_>,
) -> Result<Outcome, Failure> {
    let lanes = settings.lanes.clamp(1, clients.max(1));
    let needed = clients + settings.parked + RESERVE;
    let limit = usize::try_from(process::raise_descriptor_limit_to(needed as u64)).unwrap_or(usize::MAX);
    if limit < needed {
        let beside =
            if settings.parked > 0 { format!(" and {} parked connections", settings.parked) } else { String::new() };
        return Err(Failure::failed(format!(
            "{clients} clients{beside} need {needed} descriptors, and the limit is {limit}; raise it (ulimit -n {needed}), or \
             lower --clients"
        )));
    }
    process::make_room_for_descriptors(needed as u64);
    let beginning = Beginning::of(settings)?;
    let Beginning { clock, start, .. } = beginning;
    let next = AtomicU64::new(0);
    let ran = run_lanes(lanes, beginning, duration, on_second, |lane, [cutter]| {
        let ours = (lane..clients).step_by(lanes).count();
        let shared = Lane::new(ours)?;
        let sources = source::Sources::new(&settings.target, lane, lanes, settings.parked)?;
        let connector = Connector { target: &settings.target, sources };
        let tally = Tally::over(classes(plan), start, duration);
        let handler = handler::Handler::new(&shared, settings, plan, clock, start, tally);
        let handler = handler.closed(connector, think, start + duration, &next);
        Ok(Ended { established: None, handled: handler.run(cutter, stop) })
    })?;
    let asked = Loop::Closed { clients, think_ms: think.as_secs_f64() * 1e3 };
    finish(ran, plan, asked, duration, lanes, stop)
}

/// Descriptors that are not for connections.
const RESERVE: usize = 32;

/// Priority of the handler among threads that run first; the establisher has the next one. It must not be an ordinary thread:
/// it shares locks with the establisher, in the kernel's epoll set as well, and one that holds such a lock and has to wait for
/// a core makes the establisher wait with it, for tens of milliseconds on a busy machine.
const PRIORITY: u8 = 10;

/// From the start of the threads to the first planned instant: until then all of them wait.
const LEAD: Duration = Duration::from_millis(50);

fn classes(plan: &Plan) -> usize {
    plan.requests().table().iter().map(|request| usize::from(request.class) + 1).max().unwrap_or(1)
}

/// When a run begins, by both clocks.
#[derive(Clone, Copy)]
struct Beginning {
    clock: Clock,
    /// Its first instant.
    start: Time,
    /// The same in seconds since 1970.
    unix_s: f64,
}

impl Beginning {
    /// As it is asked for: at an instant that somebody says, or now.
    fn of(settings: &Settings) -> Result<Beginning, Failure> {
        let Some(ask) = settings.start else { return Ok(Beginning::now()) };
        let at = ask()?;
        let left = |from: SystemTime| at.duration_since(from).ok();
        match left(SystemTime::now()).and_then(|left| left.checked_sub(LEAD)) {
            Some(left) => thread::sleep(left),
            None => {
                return Err(Failure::failed(format!(
                    "the load is to begin at an instant that is over, or less than {LEAD:?} away: say it earlier"
                )));
            }
        }
        let (clock, left) = (Clock::start(), left(SystemTime::now()).unwrap_or_default());
        let unix_s = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Ok(Beginning { clock, start: Time::START + left, unix_s })
    }

    fn now() -> Beginning {
        let clock = Clock::start();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Beginning { clock, start: Time::START + LEAD, unix_s: (now + LEAD).as_secs_f64() }
    }
}

/// What a lane came to.
struct Ended {
    established: Option<establisher::Established>,
    handled: handler::Handled,
}

/// What all lanes came to.
struct Run {
    lanes: Vec<Ended>,
    told: seconds::Told,
    start: Time,
    began_s: f64,
    stolen_s: f64,
}

/// Runs each lane, which has `N` threads that measure, and beside them the thread that tells.
fn run_lanes<const N: usize>(
    lanes: usize,
    beginning: Beginning,
    window: Duration,
    on_second: OnSecond<'_>,
    lane: impl Fn(usize, [Cutter; N]) -> Result<Ended, Failure> + Sync,
) -> Result<Run, Failure> {
    let stolen_before = stolen_ns()?;
    let (cutters, seconds) = seconds::seconds(lanes * N, beginning.start, window, beginning.unix_s);
    let mut cutters = cutters.into_iter();
    thread::scope(|scope| {
        let lane = &lane;
        let teller = scope.spawn(move || seconds.gather(on_second));
        let mut start = |number: usize| {
            let cutters = std::array::from_fn(|_| cutters.next().expect("there are N for each lane"));
            scope.spawn(move || lane(number, cutters))
        };
        let threads: Vec<_> = (0..lanes).map(&mut start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Ended, Failure>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let lanes = threads.into_iter().map(join).collect::<Result<_, _>>()?;
        let told = teller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let stolen_s = stolen_ns()?.saturating_sub(stolen_before) as f64 / 1e9;
        Ok(Run { lanes, told, start: beginning.start, began_s: beginning.unix_s, stolen_s })
    })
}

fn finish(
    run: Run,
    plan: &Plan,
    asked: Loop,
    duration: Duration,
    lanes: usize,
    stop: &Stop,
) -> Result<Outcome, Failure> {
    let mut tally: Option<Tally> = None;
    let mut add = |other: Tally| match &mut tally {
        Some(all) => all.merge(other),
        none => *none = Some(other),
    };
    let (mut establisher, mut handler) = (Used::default(), Used::default());
    let (mut planned, mut real_time) = (0, true);
    let mean = |all: &mut Used, one: Used| {
        let part = 1.0 / lanes as f64;
        all.cpu_s += one.cpu_s * part;
        all.spun_s += one.spun_s * part;
        all.queued_s += one.queued_s * part;
        all.elapsed_s += one.elapsed_s * part;
    };
    let Run { lanes: ended, told: seconds::Told { series, clocks }, start, began_s, stolen_s } = run;
    for Ended { established, handled } in ended {
        if let Some(established) = established {
            planned += established.planned;
            real_time &= established.real_time;
            mean(&mut establisher, established.used);
            add(established.tally);
        } else {
            real_time = false;
        }
        mean(&mut handler, handled.used);
        add(handled.tally);
    }
    let interrupted = stop.is_stopped();
    // A run at a rate is as long as was asked, also where its last arrival comes earlier. One that was interrupted, or whose
    // clients had nothing left to ask, ended with its last second.
    let may_end = interrupted || matches!(asked, Loop::Closed { .. });
    let ended_s = series.last().map_or(0.0, |last| last.at_s + last.length_s);
    let seconds = if may_end { duration.as_secs_f64().min(ended_s) } else { duration.as_secs_f64() };
    let tally = tally.unwrap_or_else(|| Tally::new(1));
    let machine = Machine::this()?;
    let classes = (0..classes(plan)).map(|class| plan.requests().class(class)).collect();
    let ran = Ran {
        asked,
        began_s,
        planned,
        start,
        seconds,
        requests: plan.per_connection(),
        establisher,
        handler,
        lanes,
        real_time,
        stolen_s,
        interrupted,
        series,
        clocks,
        machine,
        classes,
    };
    Ok(Outcome::new(&tally, ran))
}

/// What the two threads of an S-Client share.
struct Lane {
    slots: Vec<Slot>,
    /// Slots whose connections are over, for the establisher to use again.
    returned: Mutex<Vec<u32>>,
    /// In which the handler waits.
    poll: Epoll,
    /// The establisher has begun, and given up, what there was.
    over: AtomicBool,
}

/// A place for a connection that is not established. Whoever takes it out has it: the handler, when it is connected, or the
/// establisher, when its time is over.
type Slot = Mutex<Option<Pending>>;

/// A connection that is not established.
struct Pending {
    /// How often the slot has been used: tells an event of its last connection from one of this.
    generation: u32,
    socket: OwnedFd,
    /// Which arrival of the run it is.
    number: u64,
    planned: Time,
}

impl Lane {
    fn new(slots: usize) -> Result<Lane, Failure> {
        Ok(Lane {
            slots: (0..slots).map(|_| Mutex::new(None)).collect(),
            returned: Mutex::new(Vec::with_capacity(slots)),
            poll: Epoll::new().map_err(Failure::io("make an epoll set"))?,
            over: AtomicBool::new(false),
        })
    }

    /// Puts a connection that has begun into a slot, and has the handler hear of it.
    fn put(&self, slot: u32, pending: Pending) -> io::Result<()> {
        let token = u64::from(pending.generation) << 32 | u64::from(slot);
        let mut place = lock(&self.slots[slot as usize]);
        // With the place locked: the handler may hear of it before it is in there, and then waits for a moment.
        self.poll.add(&pending.socket, token, amped_sys::epoll::Interest::Connection)?;
        *place = Some(pending);
        Ok(())
    }

    /// Takes the connection of this generation out of a slot, if it is still there.
    fn take(&self, slot: u32, generation: u32) -> Option<Pending> {
        lock(&self.slots[slot as usize]).take_if(|pending| pending.generation == generation)
    }
}

/// A thread that panicked with the lock has left plain data, and its panic is passed on when it is joined.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins connections from ports of our own.
struct Connector<'a> {
    target: &'a Target,
    sources: source::Sources,
}

impl Connector<'_> {
    /// Begins one that was planned for `planned`.
    fn begin(&mut self, clock: Clock, planned: Time, tally: &mut Tally) -> Result<OwnedFd, Fault> {
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
fn fault(error: &io::Error) -> Fault {
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
struct Meter {
    clock: Clock,
    began: Time,
    cpu: Duration,
    queued_ns: u64,
    /// Time in which the clock was watched.
    spun: Duration,
}

impl Meter {
    fn start(clock: Clock) -> Meter {
        Meter { clock, began: clock.now(), cpu: clock::cpu_time(), queued_ns: queued_ns(), spun: Duration::ZERO }
    }

    fn read(&self) -> Used {
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

#[cfg(test)]
mod tests;
