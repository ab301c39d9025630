//! Figures per second: each thread of a run cuts its tally at the same instants, and a thread that does not measure
//! merges the parts, reports them, and keeps what the result needs. One of the instants is the end of the measured
//! window, so that each second belongs to the window or to the drain.
//!
//! A measuring thread only exchanges its histograms for empty ones: merging
//! them takes longer than a request, and a terminal or a disk may block.

use std::collections::VecDeque;
use std::mem;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use amped_units::Time;

use super::lane::lock;
use crate::tally::{Clocks, Interval, Part, Tally};
use crate::window::Second;

const SECOND: Duration = Duration::from_secs(1);

/// The start of second `number`, from the start of the run, and its
/// length. The last second of a window with a fraction is shorter.
pub(crate) fn place(number: usize, window: Duration) -> (Duration, Duration) {
    let (whole, rest) = (window.as_secs() as usize, Duration::from_nanos(window.subsec_nanos().into()));
    let seconds = |count: usize| SECOND.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    match number {
        _ if rest.is_zero() || number < whole => (seconds(number), SECOND),
        _ if number == whole => (seconds(number), rest),
        _ => (window.saturating_add(seconds(number - whole - 1)), SECOND),
    }
}

/// The side of a measuring thread.
pub(super) struct Cutter {
    start: Time,
    window: Duration,
    /// The current second, and its end.
    number: usize,
    end: Time,
    out: Sender<Cut>,
    spare: Spare,
}

/// Empty clocks with allocated memory.
type Spare = Arc<Mutex<Vec<Clocks>>>;

/// A part in transit.
struct Cut {
    number: usize,
    length: Duration,
    /// Whether it is the thread's last part.
    is_last: bool,
    part: Part,
}

impl Cutter {
    /// Cuts the tally if a second has ended.
    pub(super) fn tick(&mut self, now: Time, tally: &mut Tally) {
        while now >= self.end {
            self.cut(place(self.number, self.window).1, false, tally);
            self.number += 1;
            let (at, length) = place(self.number, self.window);
            self.end = self.start + at + length;
        }
    }

    /// Sends the rest.
    pub(super) fn finish(mut self, now: Time, tally: &mut Tally) {
        self.tick(now, tally);
        let (at, length) = place(self.number, self.window);
        self.cut((now.max(self.start) - self.start).saturating_sub(at).min(length), true, tally);
    }

    fn cut(&self, length: Duration, is_last: bool, tally: &mut Tally) {
        let empty = lock(&self.spare).pop().unwrap_or_default();
        let part = tally.cut(empty);
        // The receiver is dropped only if its thread panicked; joining it passes the panic on.
        let _ = self.out.send(Cut { number: self.number, length, is_last, part });
    }
}

/// The side that merges the parts.
pub(super) struct Seconds {
    input: Receiver<Cut>,
    spare: Spare,
    /// Number of measuring threads.
    threads: usize,
    window: Duration,
    began_s: f64,
}

/// The merged result.
pub(super) struct LoadSeconds {
    pub(super) series: Vec<Second>,
    /// The clocks of the whole run.
    pub(super) clocks: Clocks,
}

/// A second whose parts are incomplete.
#[derive(Default)]
struct Open {
    part: Option<Part>,
    length: Duration,
    parts: usize,
}

/// Both sides, for `threads` threads, of a run that begins at
/// `start` (`began_s` in seconds since 1970) and has this window.
pub(super) fn seconds(threads: usize, start: Time, window: Duration, began_s: f64) -> (Vec<Cutter>, Seconds) {
    let (out, input) = channel();
    // Two per thread: one to fill next, and one that is being read.
    let spare: Spare = Arc::new(Mutex::new((0..2 * threads).map(|_| Clocks::default()).collect()));
    let end = start + place(0, window).1;
    let cutter = |_| Cutter { start, window, number: 0, end, out: out.clone(), spare: Arc::clone(&spare) };
    let cutters = (0..threads).map(cutter).collect();
    (cutters, Seconds { input, spare, threads, window, began_s })
}

impl Seconds {
    /// Reports each second as soon as all threads have sent their part, until the last thread has ended.
    pub(super) fn gather(self, on_second: &dyn Fn(&Interval)) -> LoadSeconds {
        let mut summed = LoadSeconds { series: Vec::new(), clocks: Clocks::default() };
        let (mut open, mut ended): (VecDeque<Open>, Vec<usize>) = (VecDeque::new(), Vec::new());
        let mut backlog = 0;
        let mut tell = |at: usize, Open { part, length, .. }: Open| {
            let part = part.unwrap_or_default();
            summed.clocks.add(&part.clocks);
            let second = part.second(place(at, self.window).0, length, backlog);
            backlog = second.backlog;
            let interval = Interval { began_s: self.began_s, second, clocks: part.clocks };
            on_second(&interval);
            summed.series.push(second);
            self.give_back(interval.clocks);
        };
        let mut first = 0;
        while let Ok(Cut { number, length, is_last, part }) = self.input.recv() {
            while first + open.len() <= number {
                open.push_back(Open::default());
            }
            let place = &mut open[number - first];
            place.parts += 1;
            place.length = place.length.max(length);
            match &mut place.part {
                Some(all) => {
                    all.add(&part);
                    self.give_back(part.clocks);
                }
                none => *none = Some(part),
            }
            if is_last {
                ended.push(number);
            }
            while let Some(next) = open.front_mut()
                && next.parts + ended.iter().filter(|last| **last < first).count() == self.threads
                && ended.len() < self.threads
            {
                tell(first, mem::take(next));
                open.pop_front();
                first += 1;
            }
        }
        for rest in open {
            // Nothing ended after the last whole second: the rest is no second of its own.
            if !rest.length.is_zero() {
                tell(first, rest);
            }
            first += 1;
        }
        summed
    }

    fn give_back(&self, mut clocks: Clocks) {
        clocks.clear();
        lock(&self.spare).push(clocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn seconds_of_all_threads_are_merged_without_loss() {
        let start = Time::from_millis(50);
        let (cutters, seconds) = seconds(3, start, SECOND * 10, 7.0);
        let at = |ms: u64| start + Duration::from_millis(ms);
        // Replies of each thread by arrival time in milliseconds, then the thread's end.
        let script: [(&[u64], u64); 3] = [(&[10, 990, 1010, 3100], 3200), (&[20, 2500], 2600), (&[], 0)];
        let heard = Mutex::new(Vec::new());
        let summed = thread::scope(|scope| {
            for (mut cutter, (replies, end)) in cutters.into_iter().zip(script) {
                scope.spawn(move || {
                    let mut tally = Tally::new(1);
                    for reply in replies {
                        cutter.tick(at(*reply), &mut tally);
                        tally.reply(0, start, at(*reply), at(*reply));
                    }
                    cutter.finish(at(end), &mut tally);
                });
            }
            seconds.gather(&|interval| {
                assert_eq!((interval.began_s, interval.clocks.latency.len()), (7.0, interval.second.ok));
                lock(&heard).push(interval.second);
            })
        });
        let found: Vec<(f64, u64)> = summed.series.iter().map(|second| (second.at_s, second.ok)).collect();
        assert_eq!(found, [(0.0, 3), (1.0, 1), (2.0, 1), (3.0, 1)]);
        assert!((summed.series[3].length_s - 0.2).abs() < 1e-6, "{:?}", summed.series[3]);
        assert_eq!((summed.clocks.latency.len(), summed.series.len()), (6, lock(&heard).len()));
    }

    #[test]
    fn second_is_reported_as_soon_as_it_is_complete() {
        let (mut cutters, seconds) = seconds(2, Time::START, SECOND * 10, 0.0);
        let mut tallies = [Tally::new(1), Tally::new(1)];
        let (tell, moments) = channel();
        thread::scope(|scope| {
            scope.spawn(move || seconds.gather(&|interval| tell.send(interval.second.at_s).unwrap_or_default()));
            for (cutter, tally) in cutters.iter_mut().zip(&mut tallies) {
                cutter.tick(Time::from_millis(1001), tally);
            }
            // This would block forever if seconds were reported only after the threads end.
            assert_eq!(moments.recv(), Ok(0.0));
            // A thread that has ended is not waited for.
            let (mut other, one) = (cutters.pop().unwrap(), cutters.pop().unwrap());
            one.finish(Time::from_millis(1500), &mut tallies[0]);
            other.tick(Time::from_millis(3001), &mut tallies[1]);
            assert_eq!((moments.recv(), moments.recv()), (Ok(1.0), Ok(2.0)));
            other.finish(Time::from_millis(3001), &mut tallies[1]);
        });
    }
}
