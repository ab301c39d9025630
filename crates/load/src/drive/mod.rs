//! Runs a plan against a server: S-Clients (Banga and Druschel, section 4), or clients in a closed loop.
//!
//! An S-Client is two threads. The *establisher* (`establisher.rs`) opens connections at scheduled times and aborts
//! those that are not established in time; it waits for the clock alone, so the server cannot slow it down. The
//! *handler* (`handler.rs`) sends requests and reads replies on established connections. They share a table of slots
//! (`lane.rs`) and the handler's epoll set: the kernel is the queue, so no connection costs a message. In a closed loop
//! the handler opens connections itself.
//!
//! ```text
//!   schedule --> establisher --socket, bind, connect--> slot + epoll set --connected--> handler --> tally
//!                     '---- T is over: reset, Abandoned ----'
//! ```

mod establisher;
mod handler;
mod lane;
pub mod parked;
mod seconds;
#[cfg(test)]
pub(crate) use seconds::place as second_at;
mod settings;
mod source;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use amped_measure::Failure;
use amped_measure::host::{Machine, stolen_ns};
use amped_sys::clock::Clock;
use amped_sys::process;
use amped_units::Time;

use crate::client::Plan;
use crate::outcome::{Loop, Outcome, Ran};
use crate::schedule::Schedule;
use crate::tally::{Interval, Tally, Used};
use crate::tls::Tls;
use lane::{Connector, Lane};
use seconds::Cutter;
use settings::RESERVE;
pub use settings::{Settings, Stop, Target};

/// Slots for connections that the server accepts beyond the rate of the descriptors.
const ACCEPTED_MAX: usize = 16_384;

/// Receives each completed second, in a thread that does not measure and may block.
pub type OnSecond<'a> = &'a (dyn Fn(&Interval) + Sync);

/// Runs S-Clients: connections start as scheduled, or as descriptors become free.
///
/// # Errors
/// When the process cannot open as many descriptors as the schedule needs; the text has the number.
pub fn open(
    settings: &Settings,
    plan: &Plan,
    schedule: &Schedule,
    load: Loop,
    stop: &Stop,
    on_second: OnSecond<'_>,
) -> Result<Outcome, Failure> {
    let lanes = settings.lanes.max(1);
    // The schedule bounds only connections that are not established yet. As many again may wait for slow replies; they
    // are available if the hard limit is higher.
    let needed = schedule.most_within(settings.connect_timeout) + 64;
    let mut wanted = schedule.most_within(settings.connect_timeout + settings.timeout) + 64;
    if schedule.descriptors(settings.connect_timeout).is_some() {
        wanted += ACCEPTED_MAX;
    }
    let (parked, reserve) = (settings.parked, settings.parked + RESERVE);
    let limit = process::raise_descriptor_limit_to((needed + reserve) as u64);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(reserve);
    if limit < needed {
        let beside = if parked > 0 { format!(" in addition to {parked} parked ones") } else { String::new() };
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
    settings.tls.iter().for_each(Tls::forget_sessions);
    let window = schedule.duration();
    let ran = run_lanes(lanes, beginning, window, on_second, |lane, [begun, ended]| {
        let shared = Lane::new(slots)?;
        let sources = source::Sources::new(&settings.target, lane, lanes, settings.parked)?;
        let tally = || Tally::over(classes(plan), start, window);
        Ok(thread::scope(|scope| {
            let establish = || {
                let connector = Connector { target: &settings.target, sources };
                let establisher =
                    establisher::Establisher::new(&shared, settings, plan, connector, clock, begun, tally());
                let ended = match schedule.descriptors(settings.connect_timeout) {
                    Some(all) => {
                        let number = |n: u64| schedule.number(n * lanes as u64 + lane as u64);
                        establisher.keep((lane..all).step_by(lanes).count(), [start, start + window], number, stop)
                    }
                    None => {
                        // Every `lanes`-th arrival, so that all lanes have the same burstiness.
                        let arrivals = schedule.arrivals().skip(lane).step_by(lanes);
                        let arrivals = arrivals.map(|(number, at)| (number, start + Duration::from_nanos(at)));
                        establisher.run(arrivals, stop)
                    }
                };
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
    finish(ran, settings, plan, load, window, lanes, stop)
}

/// Runs clients in a closed loop for a given time: each sends a request, waits for its reply, pauses, and repeats.
///
/// # Errors
/// When the process cannot open a descriptor for each client.
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
    settings.tls.iter().for_each(Tls::forget_sessions);
    let (requests, connections) = (AtomicU64::new(0), AtomicU64::new(0));
    let ran = run_lanes(lanes, beginning, duration, on_second, |lane, [cutter]| {
        let ours = (lane..clients).step_by(lanes).count();
        let shared = Lane::new(ours)?;
        let sources = source::Sources::new(&settings.target, lane, lanes, settings.parked)?;
        let connector = Connector { target: &settings.target, sources };
        let tally = Tally::over(classes(plan), start, duration);
        let handler = handler::Handler::new(&shared, settings, plan, clock, start, tally);
        let handler = handler.closed(connector, think, start + duration, &requests, &connections);
        Ok(Ended { established: None, handled: handler.run(cutter, stop) })
    })?;
    let load = Loop::Closed { clients, think_ms: think.as_secs_f64() * 1e3 };
    finish(ran, settings, plan, load, duration, lanes, stop)
}

/// Time from the start of the threads to the first scheduled time; all threads wait until then.
const LEAD: Duration = Duration::from_millis(50);

fn classes(plan: &Plan) -> usize {
    plan.requests().table().iter().map(|request| usize::from(request.class) + 1).max().unwrap_or(1)
}

/// The start of a run, by both clocks.
#[derive(Clone, Copy)]
struct Beginning {
    clock: Clock,
    /// The first instant.
    start: Time,
    /// The same in seconds since 1970 (UTC).
    unix_s: f64,
}

/// The error of a load that received its start time too late.
pub const TOO_LATE: &str = "the start time arrived too late";

impl Beginning {
    /// The requested start: a given instant, or now.
    fn of(settings: &Settings) -> Result<Beginning, Failure> {
        let Some(ask) = settings.start else { return Ok(Beginning::now()) };
        let at = ask()?;
        let left = |from: SystemTime| at.duration_since(from).ok();
        match left(SystemTime::now()).and_then(|left| left.checked_sub(LEAD)) {
            Some(left) => thread::sleep(left),
            None => {
                return Err(Failure::failed(format!("{TOO_LATE}: it has passed, or is less than {LEAD:?} ahead")));
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

/// The result of a lane.
struct Ended {
    established: Option<establisher::Established>,
    handled: handler::Handled,
}

/// The result of all lanes.
struct Run {
    lanes: Vec<Ended>,
    summed: seconds::LoadSeconds,
    start: Time,
    began_s: f64,
    stolen_s: f64,
}

/// Runs each lane, which has `N` measuring threads, and the thread that reports seconds.
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
        let summed = teller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let stolen_s = stolen_ns()?.saturating_sub(stolen_before) as f64 / 1e9;
        Ok(Run { lanes, summed, start: beginning.start, began_s: beginning.unix_s, stolen_s })
    })
}

fn finish(
    run: Run,
    settings: &Settings,
    plan: &Plan,
    load: Loop,
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
    let (mut planned, mut requests, mut real_time) = (0, 0, true);
    let mean = |all: &mut Used, one: Used| {
        let part = 1.0 / lanes as f64;
        all.cpu_s += one.cpu_s * part;
        all.spun_s += one.spun_s * part;
        all.queued_s += one.queued_s * part;
        all.elapsed_s += one.elapsed_s * part;
    };
    let Run { lanes: ended, summed: seconds::LoadSeconds { series, clocks }, start, began_s, stolen_s } = run;
    for Ended { established, handled } in ended {
        if let Some(established) = established {
            planned += established.planned;
            requests = established.requests.saturating_add(requests);
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
    // An open-loop run has the requested length even if its last arrival comes earlier. A run that was interrupted, or
    // whose clients ran out of requests, ended with its last second.
    let may_end = interrupted || matches!(load, Loop::Closed { .. });
    let ended_s = series.last().map_or(0.0, |last| last.at_s + last.length_s);
    let seconds = if may_end { duration.as_secs_f64().min(ended_s) } else { duration.as_secs_f64() };
    let tally = tally.unwrap_or_else(|| Tally::new(1));
    let counted = (tally.ok() + tally.all_failed()).saturating_add(tally.unsent);
    debug_assert!(interrupted || planned == 0 || counted == requests, "{counted} of {requests} planned requests");
    let machine = Machine::this()?;
    let classes = (0..classes(plan)).map(|class| plan.requests().class(class)).collect();
    let ran = Ran {
        load,
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
        sessions: settings.tls.as_ref().map(Tls::sessions).unwrap_or_default(),
        series,
        clocks,
        machine,
        classes,
    };
    Ok(Outcome::new(&tally, ran))
}

#[cfg(test)]
mod accounting;
#[cfg(test)]
mod tests;
