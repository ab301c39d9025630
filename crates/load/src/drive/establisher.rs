//! The thread that begins connections: it has a schedule and a clock, and does not see replies.
//!
//! All connections have the same connect timeout T, so pending ones form a queue whose first is due first, and expiring
//! them costs the same however many there are. The thread sleeps until shortly before the next instant and then polls
//! the clock, as a sleeping thread wakes up late.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use amped_sys::clock::{self, Clock};
use amped_sys::socket;
use amped_units::Time;

use super::lane::{Connector, Lane, Meter, PRIORITY, Pending, lock};
use super::seconds::Cutter;
use super::settings::{Settings, Stop};
use crate::tally::{Fault, Tally, Used};

/// The result of the thread.
pub(super) struct Established {
    pub(super) tally: Tally,
    pub(super) used: Used,
    /// Arrivals whose instant came.
    pub(super) planned: u64,
    pub(super) real_time: bool,
}

pub(super) struct Establisher<'a> {
    lane: &'a Lane,
    settings: &'a Settings,
    connector: Connector<'a>,
    clock: Clock,
    tally: Tally,
    cutter: Cutter,
    /// Free slots.
    free: Vec<u32>,
    /// Pending connections with their deadlines, including those that the handler has taken.
    waiting: VecDeque<(Time, u32, u32)>,
    generation: u32,
}

/// Maximum sleep, so that a run can be stopped.
const NAP: Duration = Duration::from_millis(50);

impl<'a> Establisher<'a> {
    pub(super) fn new(
        lane: &'a Lane,
        settings: &'a Settings,
        connector: Connector<'a>,
        clock: Clock,
        cutter: Cutter,
        tally: Tally,
    ) -> Establisher<'a> {
        let free: Vec<u32> = (0..lane.slots.len() as u32).rev().collect();
        let waiting = VecDeque::with_capacity(free.len());
        Establisher { lane, settings, connector, clock, tally, cutter, free, waiting, generation: 0 }
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
        Established { tally: self.tally, used: meter.read(), planned: count, real_time }
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

    /// Begins a connection.
    fn begin(&mut self, number: u64, planned: Time) {
        let due = planned + self.settings.connect_timeout;
        if self.clock.now() >= due {
            // Its connect timeout has passed. Beginning it now would change the planned arrival.
            return self.fail(Fault::Unsent);
        }
        if self.free.is_empty() {
            mem::swap(&mut self.free, &mut *lock(&self.lane.returned));
        }
        let Some(slot) = self.free.pop() else {
            return self.fail(Fault::Local);
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
                self.fail(fault);
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
                self.fail(Fault::Abandoned);
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
                    self.fail(Fault::Abandoned);
                    self.tally.ended(pending.planned, self.clock.now(), false);
                }
            }
        }
    }

    fn fail(&mut self, fault: Fault) {
        self.tally.fail_connection(fault);
    }

    fn is_pending(&self, slot: u32, generation: u32) -> bool {
        lock(&self.lane.slots[slot as usize]).as_ref().is_some_and(|pending| pending.generation == generation)
    }
}
