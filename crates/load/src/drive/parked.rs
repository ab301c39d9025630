//! Connections that are held open beside a load: the many clients of a wide-area network that have what they asked for, or
//! take it slowly, while a few ask (Banga and Druschel, section 2; Pai, Druschel and Zwaenepoel, section 6.4).
//!
//! A thread and an epoll set of their own, so that they share nothing with what is measured but the machine. They are opened
//! before the load, a few at a time, and kept: what the server closes is counted and opened anew, after a pause and from the
//! same address and port. What they read is counted in bytes and never looked into.

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

/// What a parked connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleMode {
    /// It asks once, reads the reply as fast as that comes, and is silent from then on: a connection kept alive.
    Idle,
    /// It asks, and takes 16 bytes of the reply a second, with a window as small as the kernel allows; when nothing
    /// is left, it asks again.
    SlowRead,
}

impl fmt::Display for IdleMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IdleMode::Idle => "idle",
            IdleMode::SlowRead => "slow-read",
        })
    }
}

/// So many connections of a mode, as they are asked for: `1000` or `1000:idle`, `50:slow-read`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How many.
    pub count: usize,
    /// What they do.
    pub mode: IdleMode,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        let (count, mode) = text.split_once(':').unwrap_or((text, "idle"));
        let mode = [IdleMode::Idle, IdleMode::SlowRead].into_iter().find(|known| known.to_string() == mode.trim());
        let count = count.trim().parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
        match (count, mode) {
            (Some(count), Some(mode)) => Ok(Wanted { count, mode }),
            _ => Err(format!(
                "invalid number of parked connections {text:?}: write 1000, 1000:idle or 50:slow-read, at most {COUNT_MAX}"
            )),
        }
    }
}

/// More than any machine holds.
const COUNT_MAX: usize = 10_000_000;

/// What became of the connections of a mode during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    /// What they did.
    pub mode: IdleMode,
    /// How many there were to be.
    pub asked: usize,
    /// How many were established when the run began, ...
    pub open_at_start: usize,
    /// ... at the worst moment of it, ...
    pub open_least: usize,
    /// ... and when it ended.
    pub open_at_end: usize,
    /// Connections that the server closed or broke off.
    pub closed: u64,
    /// Connections that were opened in place of those.
    pub reopened: u64,
    /// Attempts to open one that came to nothing.
    pub failed: u64,
    /// Bytes received, heads and all.
    pub received_bytes: u64,
}

impl Parked {
    fn new(Wanted { count, mode }: Wanted) -> Parked {
        let (asked, open_at_start, open_least, open_at_end) = (count, 0, 0, 0);
        let (closed, reopened, failed, received_bytes) = (0, 0, 0, 0);
        Parked { mode, asked, open_at_start, open_least, open_at_end, closed, reopened, failed, received_bytes }
    }

    /// From now on.
    fn anew(self) -> Parked {
        let open = self.open_at_end;
        let wanted = Wanted { count: self.asked, mode: self.mode };
        Parked { open_at_start: open, open_least: open, open_at_end: open, ..Parked::new(wanted) }
    }
}

impl fmt::Display for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parked { mode, asked, open_at_start, open_least, open_at_end, closed, reopened, failed, .. } = self;
        write!(
            f,
            "{asked} {mode}: {open_at_start} open at the start, {open_least} at the least, {open_at_end} at the end"
        )?;
        if *closed > 0 {
            write!(f, "; the server closed {closed}, {reopened} were opened anew")?;
        }
        if *failed > 0 {
            write!(f, "; {failed} attempts came to nothing")?;
        }
        Ok(())
    }
}

/// Where connections are parked, until it is dropped.
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
    /// For each that was wanted. What is open now is `open_at_end`.
    parked: Vec<Parked>,
    /// Connections that have come so far as they are to come: an idle one has heard from the server.
    settled: usize,
}

impl IdlePool {
    /// Opens the connections, and waits until all are open and the idle ones have been answered; or until
    /// `settings.timeout` has brought no further one, and it will be seen in the counts that some are missing. What
    /// they ask for is the first request of `plan`.
    ///
    /// # Errors
    /// When this process cannot have as many descriptors or ports; the text has the number.
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
        Connection::new(Time::START).ask(Time::START, 0, plan, &mut request);
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
            poll: Epoll::new().map_err(Failure::io("make an epoll set"))?,
            clock: Clock::start(),
            buffer: vec![0; BUFFER],
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new().name("parked".to_owned()).spawn(move || keeper.run());
        let lot = IdlePool { shared, thread: Some(thread.map_err(Failure::io("start a thread"))?) };
        lot.fill(count, settings.timeout, stop);
        Ok(lot)
    }

    /// Waits until `count` are settled, as long as more come.
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

    /// What became of them since this was last asked: before a run, to begin with it, and after it.
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

/// Connections that are being established at once: fewer than the shortest queue of a listener that is usual (128).
const OPENING_MAX: usize = 64;

/// From the end of a connection, or of an attempt, to the next one in its place: a server that wants none is
/// not asked in a loop.
const PAUSE: Duration = Duration::from_secs(1);

/// What a slow reader takes, and how often.
const SIP: usize = 16;
const SIP_PERIOD: Duration = Duration::from_secs(1);

/// The kernel makes its least of it (`SOCK_MIN_RCVBUF`, 2,304 bytes and more).
const SMALL_WINDOW: usize = 1;

const BUFFER: usize = 64 * 1024;

/// Nobody waits longer, so that it can be stopped.
const NAP: Duration = Duration::from_millis(20);

/// The place of a connection.
struct Spot {
    /// Which of those that were wanted.
    class: usize,
    mode: IdleMode,
    /// Its address and port, once it has some.
    from: Option<SocketAddr>,
    /// How often its state has changed: tells what was meant for an earlier connection.
    generation: u32,
    /// It had a connection before this one.
    was_open: bool,
    state: State,
}

enum State {
    /// No connection: it waits for its turn, or for its time on the agenda.
    Vacant,
    /// A connection is being established.
    Opening { socket: OwnedFd },
    /// Parked. `heard`: bytes have come since it asked; `settled`: it has counted as such; `sip_at`: when it
    /// reads, if it is slow.
    Open { socket: OwnedFd, heard: bool, settled: bool, sip_at: Time },
}

/// The thread.
struct Keeper {
    target: Target,
    timeout: Duration,
    request: Vec<u8>,
    sources: Sources,
    spots: Vec<Spot>,
    /// Spots that may open a connection now.
    vacant: VecDeque<u32>,
    opening: usize,
    /// What is due when, for which spot in which generation: to become vacant, to be given up, to take a sip.
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
            // The set and the descriptors are ours: there is nothing that could go wrong.
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

    /// Begins a connection from the pair that this spot has, or from the next that nobody has.
    fn begin(&mut self, number: u32) -> io::Result<OwnedFd> {
        /// Pairs of others are passed over, but not for ever.
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

    /// Takes what happened on a socket.
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
                // What came at once is told anew only where more comes.
                self.read(number, ready);
            }
            State::Open { .. } => self.read(number, ready),
        }
    }

    /// A connection is established: it asks.
    fn park(&mut self, number: u32) {
        let spot = &mut self.spots[number as usize];
        let generation = spot.generation;
        let State::Opening { socket } = std::mem::replace(&mut spot.state, State::Vacant) else { return };
        self.opening -= 1;
        // A request fits into the buffer of a socket that has sent nothing; if the server is gone, reading will tell.
        let _ = socket::send(&socket, &self.request, false);
        // A slow reader is where it is to come; an idle one when it has been answered.
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

    /// Reads what an idle connection has; of a slow one only that it has ended.
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

    /// The time of a spot has come.
    fn due(&mut self, number: u32, at: Time) {
        let spot = &mut self.spots[number as usize];
        match &mut spot.state {
            State::Vacant => self.vacant.push_back(number),
            State::Opening { .. } => self.give_up(number),
            // What is due otherwise is the end of the time in which it was to be established.
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

    /// No connection came about.
    fn give_up(&mut self, number: u32) {
        self.opening -= 1;
        self.vacate(number);
        lock(&self.shared.counts).parked[self.spots[number as usize].class].failed += 1;
    }

    /// The server has closed a connection, or broken it off.
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

    /// A spot has no connection for a while.
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
