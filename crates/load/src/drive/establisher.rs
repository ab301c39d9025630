//! The thread that opens connections: it has a schedule and a clock, and does not see replies.
//!
//! All connections have the same connect timeout T, so pending ones form a queue whose first is due first, and expiring
//! them costs the same however many there are. Instead of a schedule it may have a number of descriptors to keep in
//! use, as the paper's S-Client has; then a connection starts when another is established or expires. The thread sleeps
//! until shortly before the next instant and then polls the clock, as a sleeping thread wakes up late.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering;
use std::time::Duration;

use amped_sys::clock::{self, Clock};
use amped_sys::socket;
use amped_units::Time;

use super::lane::{Connector, Lane, Meter, PRIORITY, Pending, lock};
use super::seconds::Cutter;
use super::settings::{Settings, Stop};
use crate::client::Plan;
use crate::tally::{Fault, Tally, Used};

/// The result of the thread.
pub(super) struct Established {
    pub(super) tally: Tally,
    pub(super) used: Used,
    /// Arrivals that became due, and the requests that they were to carry.
    pub(super) planned: u64,
    pub(super) requests: u64,
    pub(super) real_time: bool,
}

pub(super) struct Establisher<'a> {
    lane: &'a Lane,
    settings: &'a Settings,
    plan: &'a Plan,
    connector: Connector<'a>,
    clock: Clock,
    tally: Tally,
    cutter: Cutter,
    /// Free slots.
    free: Vec<u32>,
    /// Pending connections with their deadlines, including those that the handler has taken.
    waiting: VecDeque<(Time, u32, u32)>,
    generation: u32,
    /// Connections that failed here.
    failed: u64,
    /// Requests of the arrivals that became due.
    requests: u64,
}

/// Maximum sleep, so that a run can be stopped.
const NAP: Duration = Duration::from_millis(50);

impl<'a> Establisher<'a> {
    pub(super) fn new(
        lane: &'a Lane,
        settings: &'a Settings,
        plan: &'a Plan,
        connector: Connector<'a>,
        clock: Clock,
        cutter: Cutter,
        tally: Tally,
    ) -> Establisher<'a> {
        let free: Vec<u32> = (0..lane.slots.len() as u32).rev().collect();
        let waiting = VecDeque::with_capacity(free.len());
        let (generation, failed, requests) = (0, 0, 0);
        Establisher {
            lane,
            settings,
            plan,
            connector,
            clock,
            tally,
            cutter,
            free,
            waiting,
            generation,
            failed,
            requests,
        }
    }

    /// Begins each arrival at its instant.
    pub(super) fn run(mut self, arrivals: impl Iterator<Item = (u64, Time)>, stop: &Stop) -> Established {
        clock::exact_timers();
        let real_time = clock::run_first(PRIORITY + 1).is_ok();
        let mut meter = Meter::start(self.clock);
        let mut count = 0;
        for (number, planned) in arrivals {
            if !self.wait_until(planned, &mut meter, stop) {
                break;
            }
            self.begin(number, planned);
            count += 1;
        }
        self.end(stop);
        self.cutter.finish(self.clock.now(), &mut self.tally);
        Established { tally: self.tally, used: meter.read(), planned: count, requests: self.requests, real_time }
    }

    /// Keeps this number of descriptors trying to establish a connection until an instant (Banga and Druschel, section
    /// 4.2): each opens its next connection as soon as one is established, or T has passed. The first ones are spaced
    /// out over T. `number` is the number in the plan of the n-th connection.
    pub(super) fn keep(
        mut self,
        descriptors: usize,
        [start, end]: [Time; 2],
        number: impl Fn(u64) -> u64,
        stop: &Stop,
    ) -> Established {
        /// Interval at which the descriptors are checked.
        const LOOK: Duration = Duration::from_millis(1);
        clock::exact_timers();
        let real_time = clock::run_first(PRIORITY + 1).is_ok();
        let mut meter = Meter::start(self.clock);
        let spacing = self.settings.connect_timeout.as_secs_f64() / descriptors as f64;
        let mut count = 0;
        let mut instant = start;
        while instant < end && self.wait_until(instant, &mut meter, stop) {
            let now = self.clock.now();
            let allowed = (((now - start).as_secs_f64() / spacing) as u64 + 1).min(descriptors as u64);
            let taken = self.lane.taken.load(Ordering::Relaxed);
            // One that the handler has just taken is seen at the next check.
            for _ in (count - self.failed).saturating_sub(taken)..allowed {
                self.begin(number(count), now);
                count += 1;
            }
            instant = now + LOOK;
        }
        self.end(stop);
        self.cutter.finish(self.clock.now(), &mut self.tally);
        Established { tally: self.tally, used: meter.read(), planned: count, requests: self.requests, real_time }
    }

    /// Waits for an instant, and expires connections that are due before it; `false` if the run must end.
    fn wait_until(&mut self, instant: Time, meter: &mut Meter, stop: &Stop) -> bool {
        loop {
            let now = self.clock.now();
            self.cutter.tick(now, &mut self.tally);
            self.give_up(now);
            if now >= instant {
                return !stop.is_stopped();
            }
            let next = self.waiting.front().map_or(instant, |(due, ..)| instant.min(*due));
            let left = next - now;
            if left > self.settings.spin {
                if stop.is_stopped() {
                    return false;
                }
                self.clock.sleep_until(now + (left - self.settings.spin).min(NAP));
            } else {
                let mut watched = self.clock.now();
                while watched < next {
                    std::hint::spin_loop();
                    watched = self.clock.now();
                }
                meter.spun += watched - now;
            }
        }
    }

    /// Opens a connection.
    fn begin(&mut self, number: u64, planned: Time) {
        let due = planned + self.settings.connect_timeout;
        self.requests = self.requests.saturating_add(self.plan.requests_of(number));
        if self.clock.now() >= due {
            // Its connect timeout has passed. Beginning it now would change the planned arrival.
            return self.fail(Fault::Unsent, number);
        }
        if self.free.is_empty() {
            mem::swap(&mut self.free, &mut *lock(&self.lane.returned));
        }
        let Some(slot) = self.free.pop() else {
            return self.fail(Fault::Local, number);
        };
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let begun = self.connector.begin(self.clock, planned, &mut self.tally).and_then(|socket| {
            let pending = Pending { generation, socket, number, planned };
            self.lane.put(slot, pending).map_err(|_| {
                self.tally.ended(planned, self.clock.now(), false);
                Fault::Local
            })
        });
        match begun {
            Ok(()) => self.waiting.push_back((due, slot, generation)),
            Err(fault) => {
                self.fail(fault, number);
                self.free.push(slot);
            }
        }
    }

    /// Expires connections that are due and not established.
    fn give_up(&mut self, now: Time) {
        while let Some((_, slot, generation)) = self.waiting.pop_front_if(|(due, ..)| *due <= now) {
            if let Some(pending) = self.lane.take(slot, generation) {
                // The server may have accepted at this moment, or its last segment may have been lost.
                socket::reset_on_close(&pending.socket);
                self.fail(Fault::Abandoned, pending.number);
                self.tally.ended(pending.planned, now, false);
                self.free.push(slot);
            }
        }
    }

    /// After the last arrival: waits until each connection is established or expired.
    fn end(&mut self, stop: &Stop) {
        while let Some((due, slot, generation)) = self.waiting.pop_front() {
            while !stop.is_stopped() && self.clock.now() < due && self.is_pending(slot, generation) {
                self.clock.sleep_until(due.min(self.clock.now() + Duration::from_millis(5)));
                self.cutter.tick(self.clock.now(), &mut self.tally);
            }
            if let Some(pending) = self.lane.take(slot, generation) {
                socket::reset_on_close(&pending.socket);
                // Connections that a signal ended did not have their full timeout.
                if !stop.is_stopped() {
                    self.fail(Fault::Abandoned, pending.number);
                    self.tally.ended(pending.planned, self.clock.now(), false);
                }
            }
        }
    }

    fn fail(&mut self, fault: Fault, number: u64) {
        self.failed += 1;
        self.tally.fail_connection(fault, self.plan.requests_of(number));
    }

    fn is_pending(&self, slot: u32, generation: u32) -> bool {
        lock(&self.lane.slots[slot as usize]).as_ref().is_some_and(|pending| pending.generation == generation)
    }
}
