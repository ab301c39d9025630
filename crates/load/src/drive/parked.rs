//! Connections held open beside a load: the many clients of a wide-area network that are idle or read slowly, while a
//! few are active (Banga and Druschel, section 2; Pai, Druschel and Zwaenepoel, section 6.4).
//!
//! They have a thread and an epoll set of their own, so that they share only the machine with the measured load. They
//! are opened before the load, a few at a time, and kept: a connection that the server closes is counted and reopened,
//! after a pause and from the same address and port. Bytes read are counted but not parsed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use amped_measure::Failure;
use amped_sys::clock::Clock;
use amped_sys::epoll::{Epoll, Events, Interest, Ready};
use amped_sys::{local, process, socket};
use amped_units::Time;
use serde::{Deserialize, Serialize};

use super::lane::lock;
use super::settings::{RESERVE, Settings, Stop, Target};
use super::source::Sources;
use crate::client::{Connection, Plan};

/// The behaviour of a parked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::EnumString)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum IdleMode {
    /// Sends one request, reads the reply at full speed, and stays silent: a keep-alive connection.
    Idle,
    /// Sends a request and reads 16 bytes of the reply per second, with the smallest receive window that the kernel
    /// allows; at the end of the replies it sends a request again.
    SlowRead,
}

/// A requested number of connections of a mode: `1000` or `1000:idle`, `50:slow-read`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Number of connections.
    pub count: usize,
    /// Their mode.
    pub mode: IdleMode,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        let (count, mode) = text.split_once(':').unwrap_or((text, "idle"));
        let mode = mode.trim().parse().ok();
        let count = count.trim().parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
        match (count, mode) {
            (Some(count), Some(mode)) => Ok(Wanted { count, mode }),
            _ => Err(format!(
                "invalid number of parked connections {text:?}: write 1000, 1000:idle or 50:slow-read, at most {COUNT_MAX}"
            )),
        }
    }
}

/// Maximum number of parked connections.
const COUNT_MAX: usize = 10_000_000;

/// The results of the parked connections of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    /// Their mode.
    pub mode: IdleMode,
    /// Requested number.
    pub target: usize,
    /// Number open at the start of the run.
    pub open_at_start: usize,
    /// Lowest number open during the run.
    pub open_least: usize,
    /// Number open at the end of the run.
    pub open_at_end: usize,
    /// Connections that the server closed or reset.
    pub closed: u64,
    /// Connections opened to replace those.
    pub reopened: u64,
    /// Failed attempts to open a connection.
    pub failed: u64,
    /// Bytes received, including heads.
    pub received_bytes: u64,
}

impl Parked {
    fn new(Wanted { count, mode }: Wanted) -> Parked {
        let (target, open_at_start, open_least, open_at_end) = (count, 0, 0, 0);
        let (closed, reopened, failed, received_bytes) = (0, 0, 0, 0);
        Parked { mode, target, open_at_start, open_least, open_at_end, closed, reopened, failed, received_bytes }
    }

    /// Resets the counters for the next interval.
    fn anew(self) -> Parked {
        let open = self.open_at_end;
        let wanted = Wanted { count: self.target, mode: self.mode };
        Parked { open_at_start: open, open_least: open, open_at_end: open, ..Parked::new(wanted) }
    }
}

impl fmt::Display for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parked { mode, target, open_at_start, open_least, open_at_end, closed, reopened, failed, .. } = self;
        write!(
            f,
            "{target} {mode}: {open_at_start} open at the start, at least {open_least} during the run, {open_at_end} at \
             the end"
        )?;
        if *closed > 0 {
            write!(f, "; the server closed {closed}, {reopened} were reopened")?;
        }
        if *failed > 0 {
            write!(f, "; {failed} attempts failed")?;
        }
        Ok(())
    }
}

/// Holds parked connections open until dropped.
#[derive(Debug)]
pub struct IdlePool {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    counts: Mutex<Counts>,
    stop: Stop,
}

#[derive(Debug)]
struct Counts {
    /// One per requested mode. `open_at_end` is the number open now.
    parked: Vec<Parked>,
    /// Connections that reached their state: an idle one has received a reply.
    settled: usize,
}

impl IdlePool {
    /// Opens the connections, and waits until all are open and the idle ones have received
    /// their replies; or until `settings.timeout` passes without progress, in which case
    /// the counters show how many are missing. They send the first request of `plan`.
    ///
    /// # Errors
    /// When the process cannot have as many descriptors or ports; the text has the number.
    pub fn open(settings: &Settings, plan: &Plan, wanted: &[Wanted], stop: &Stop) -> Result<IdlePool, Failure> {
        let count: usize = wanted.iter().map(|wanted| wanted.count).sum();
        let needed = (count + RESERVE) as u64;
        let limit = process::raise_descriptor_limit_to(needed);
        if limit < needed {
            return Err(Failure::failed(format!(
                "{count} parked connections need {needed} descriptors, and the limit is {limit}; raise it (ulimit -n \
                 {needed}), or lower --parked"
            )));
        }
        process::make_room_for_descriptors(needed);
        let mut request = Vec::new();
        Connection::new(Time::START, plan).ask(Time::START, 0, plan, &mut request);
        let parked = wanted.iter().copied().map(Parked::new).collect();
        let shared = Shared { counts: Mutex::new(Counts { parked, settled: 0 }), stop: Stop::default() };
        let shared = Arc::new(shared);
        let spots = wanted.iter().enumerate().flat_map(|(class, wanted)| {
            (0..wanted.count).map(move |_| Spot {
                class,
                mode: wanted.mode,
                from: None,
                generation: 0,
                was_open: false,
                state: State::Vacant,
            })
        });
        let keeper = Keeper {
            target: settings.target.clone(),
            timeout: settings.timeout,
            request,
            sources: Sources::parked(&settings.target, count)?,
            spots: spots.collect(),
            vacant: (0..count as u32).collect(),
            opening: 0,
            agenda: BinaryHeap::new(),
            poll: Epoll::new().map_err(Failure::io("create an epoll instance"))?,
            clock: Clock::start(),
            buffer: vec![0; BUFFER],
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new().name("parked".to_owned()).spawn(move || keeper.run());
        let pool = IdlePool { shared, thread: Some(thread.map_err(Failure::io("start a thread"))?) };
        pool.fill(count, settings.timeout, stop);
        Ok(pool)
    }

    /// Waits until `count` connections are settled, as long as there is progress.
    fn fill(&self, count: usize, patience: Duration, stop: &Stop) {
        let (mut most, mut since) = (0, Instant::now());
        while most < count && since.elapsed() < patience && !stop.is_stopped() {
            thread::sleep(Duration::from_millis(5));
            let settled = lock(&self.shared.counts).settled;
            if settled > most {
                (most, since) = (settled, Instant::now());
            }
        }
    }

    /// Takes the results since the last call: once before a run, to reset them, and once after it.
    pub fn take(&self) -> Vec<Parked> {
        let mut counts = lock(&self.shared.counts);
        let taken = counts.parked.clone();
        counts.parked.iter_mut().for_each(|parked| *parked = parked.anew());
        taken
    }
}

impl Drop for IdlePool {
    fn drop(&mut self) {
        self.shared.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connections being established at once: fewer than the smallest common listen backlog (128).
const OPENING_MAX: usize = 64;

/// Pause before a closed or failed connection is retried: a server that refuses connections is not flooded.
const PAUSE: Duration = Duration::from_secs(1);

/// Bytes that a slow reader reads at once, and the interval.
const SIP: usize = 16;
const SIP_PERIOD: Duration = Duration::from_secs(1);

/// The kernel raises it to its minimum (`SOCK_MIN_RCVBUF`, 2,304 bytes and more).
const SMALL_WINDOW: usize = 1;

const BUFFER: usize = 64 * 1024;

/// Maximum wait, so that the thread can be stopped.
const NAP: Duration = Duration::from_millis(20);

/// The slot of a connection.
struct Spot {
    /// Index of its mode among those requested.
    class: usize,
    mode: IdleMode,
    /// Its address and port, once assigned.
    from: Option<SocketAddr>,
    /// Number of state changes: identifies events of an earlier connection.
    generation: u32,
    /// Whether it had a connection before.
    was_open: bool,
    state: State,
}

enum State {
    /// No connection: waits for its turn, or for a timer.
    Vacant,
    /// A connection is being established.
    Opening { socket: OwnedFd },
    /// Parked. `heard`: bytes have arrived since the request; `settled`:
    /// it has been counted; `sip_at`: the next read of a slow reader.
    Open { socket: OwnedFd, heard: bool, settled: bool, sip_at: Time },
}

/// The thread that holds the connections.
struct Keeper {
    target: Target,
    timeout: Duration,
    request: Vec<u8>,
    sources: Sources,
    spots: Vec<Spot>,
    /// Slots that may open a connection now.
    vacant: VecDeque<u32>,
    opening: usize,
    /// Timers, each with slot and generation: becoming vacant, a connect timeout, or a slow read.
    agenda: BinaryHeap<Reverse<(Time, u32, u32)>>,
    poll: Epoll,
    clock: Clock,
    buffer: Vec<u8>,
    shared: Arc<Shared>,
}

impl Keeper {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while !self.shared.stop.is_stopped() {
            while self.opening < OPENING_MAX
                && let Some(spot) = self.vacant.pop_front()
            {
                self.open(spot);
            }
            let next = self.agenda.peek().map_or(NAP, |Reverse((at, ..))| (*at - self.clock.now()).min(NAP));
            // The set and the descriptors are ours: waiting cannot fail.
            if self.poll.wait(&mut events, Some(next)).is_err() {
                return;
            }
            for ready in events.iter() {
                self.handle(ready);
            }
            let now = self.clock.now();
            while let Some(Reverse((at, spot, generation))) = self.agenda.peek().copied()
                && at <= now
            {
                self.agenda.pop();
                if self.spots[spot as usize].generation == generation {
                    self.due(spot, at);
                }
            }
        }
    }

    fn open(&mut self, number: u32) {
        let generation = self.change(number, State::Vacant);
        let begun = self.begin(number).and_then(|socket| {
            let token = u64::from(generation) << 32 | u64::from(number);
            self.poll.add(&socket, token, Interest::Connection)?;
            Ok(socket)
        });
        let spot = &mut self.spots[number as usize];
        match begun {
            Ok(socket) => {
                spot.state = State::Opening { socket };
                self.opening += 1;
                self.agenda.push(Reverse((self.clock.now() + self.timeout, number, generation)));
            }
            Err(_) => {
                lock(&self.shared.counts).parked[spot.class].failed += 1;
                self.agenda.push(Reverse((self.clock.now() + PAUSE, number, generation)));
            }
        }
    }

    /// Opens a connection from this slot's pair of address and port, or from the next free pair.
    fn begin(&mut self, number: u32) -> io::Result<OwnedFd> {
        /// Pairs in use are skipped, up to a limit.
        const TRIES: usize = 100;
        let to = match &self.target {
            Target::Unix(path) => return local::connect_now(path),
            Target::Tcp(to) => *to,
        };
        let spot = &mut self.spots[number as usize];
        let mut last = None;
        for _ in 0..TRIES {
            let from = *spot.from.get_or_insert_with(|| self.sources.next());
            let begun = socket::outgoing(Some(from), to).and_then(|socket| {
                if spot.mode == IdleMode::SlowRead {
                    socket::set_receive_buffer(&socket, SMALL_WINDOW)?;
                }
                socket::begin_connect(&socket, to).map(|()| socket)
            });
            match begun {
                Err(error) if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {
                    (spot.from, last) = (None, Some(error));
                }
                ended => return ended,
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }

    /// Handles an event on a socket.
    fn handle(&mut self, ready: Ready) {
        let (number, generation) = (ready.token as u32, (ready.token >> 32) as u32);
        let spot = &mut self.spots[number as usize];
        if spot.generation != generation {
            return;
        }
        match &mut spot.state {
            State::Vacant => {}
            State::Opening { socket } => {
                if ready.ended && socket::failed(&*socket).is_some() {
                    return self.give_up(number);
                }
                self.park(number);
                // Edge-triggered: bytes that arrived with this event are reported again only if more arrive.
                self.read(number, ready);
            }
            State::Open { .. } => self.read(number, ready),
        }
    }

    /// Handles an established connection: sends its request.
    fn park(&mut self, number: u32) {
        let spot = &mut self.spots[number as usize];
        let generation = spot.generation;
        let State::Opening { socket } = std::mem::replace(&mut spot.state, State::Vacant) else { return };
        self.opening -= 1;
        // The send buffer is empty, so a request fits; if the server has closed the connection, the read fails.
        let _ = socket::send(&socket, &self.request, false);
        // A slow reader is settled at once; an idle connection when its reply has arrived.
        let settled = spot.mode == IdleMode::SlowRead;
        let sip_at = self.clock.now() + SIP_PERIOD;
        spot.state = State::Open { socket, heard: false, settled, sip_at };
        let mut counts = lock(&self.shared.counts);
        let parked = &mut counts.parked[spot.class];
        parked.open_at_end += 1;
        parked.reopened += u64::from(std::mem::replace(&mut spot.was_open, true));
        counts.settled += usize::from(settled);
        if settled {
            self.agenda.push(Reverse((sip_at, number, generation)));
        }
    }

    /// Reads from an idle connection; from a slow one only if it has ended.
    fn read(&mut self, number: u32, ready: Ready) {
        let spot = &mut self.spots[number as usize];
        let State::Open { socket, settled, .. } = &mut spot.state else { return };
        if spot.mode == IdleMode::SlowRead {
            if ready.ended {
                self.closed(number);
            }
            return;
        }
        if !ready.readable {
            return;
        }
        loop {
            match socket::receive(&*socket, &mut self.buffer) {
                Ok(count @ 1..) => {
                    let mut counts = lock(&self.shared.counts);
                    counts.parked[spot.class].received_bytes += count as u64;
                    if !std::mem::replace(settled, true) {
                        counts.settled += 1;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(0) | Err(_) => return self.closed(number),
            }
        }
    }

    /// Handles a timer of a slot.
    fn due(&mut self, number: u32, at: Time) {
        let spot = &mut self.spots[number as usize];
        match &mut spot.state {
            State::Vacant => self.vacant.push_back(number),
            State::Opening { .. } => self.give_up(number),
            // Any other timer is the connect timeout.
            State::Open { socket, heard, sip_at, .. } if spot.mode == IdleMode::SlowRead && at == *sip_at => {
                match socket::receive(&*socket, &mut self.buffer[..SIP]) {
                    Ok(count @ 1..) => {
                        *heard = true;
                        lock(&self.shared.counts).parked[spot.class].received_bytes += count as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if std::mem::replace(heard, false) {
                            let _ = socket::send(&*socket, &self.request, false);
                        }
                    }
                    Ok(0) | Err(_) => return self.closed(number),
                }
                *sip_at = self.clock.now() + SIP_PERIOD;
                self.agenda.push(Reverse((*sip_at, number, spot.generation)));
            }
            State::Open { .. } => {}
        }
    }

    /// Handles a failed attempt to connect.
    fn give_up(&mut self, number: u32) {
        self.opening -= 1;
        self.vacate(number);
        lock(&self.shared.counts).parked[self.spots[number as usize].class].failed += 1;
    }

    /// Handles a connection that the server closed or reset.
    fn closed(&mut self, number: u32) {
        let was_settled = matches!(self.spots[number as usize].state, State::Open { settled: true, .. });
        self.vacate(number);
        let mut counts = lock(&self.shared.counts);
        counts.settled -= usize::from(was_settled);
        let parked = &mut counts.parked[self.spots[number as usize].class];
        parked.open_at_end -= 1;
        parked.open_least = parked.open_least.min(parked.open_at_end);
        parked.closed += 1;
    }

    /// Leaves a slot vacant for a pause.
    fn vacate(&mut self, number: u32) {
        let generation = self.change(number, State::Vacant);
        self.agenda.push(Reverse((self.clock.now() + PAUSE, number, generation)));
    }

    fn change(&mut self, number: u32, state: State) -> u32 {
        let spot = &mut self.spots[number as usize];
        spot.state = state;
        spot.generation = spot.generation.wrapping_add(1);
        spot.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parked_count_and_mode_are_parsed() {
        let check = |text: &str, expected: Option<(usize, IdleMode)>| {
            let found = text.parse::<Wanted>().ok().map(|wanted| (wanted.count, wanted.mode));
            assert_eq!(found, expected, "{text:?}");
        };
        check("1000", Some((1000, IdleMode::Idle)));
        check("1000:idle", Some((1000, IdleMode::Idle)));
        check(" 50 : slow-read", Some((50, IdleMode::SlowRead)));
        for bad in ["", "0", "-1", "1:", ":idle", "1:slow", "1:idle:2", "99999999999"] {
            check(bad, None);
        }
    }
}
