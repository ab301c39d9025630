//! The timer queue of the router: which link is due next, and when.
//!
//! A heap with at most a few entries per link, however many packets are in transit, since a link orders its own. Stale
//! entries are not removed: they are skipped when their time comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use amped_units::Time;

/// The due times of links, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
    /// When each link is due; [`Time::NEVER`] for an idle one.
    due: Vec<Time>,
}

impl Agenda {
    /// An agenda for `links` links.
    pub(crate) fn new(links: usize) -> Agenda {
        Agenda { heap: BinaryHeap::with_capacity(links), due: vec![Time::NEVER; links] }
    }

    /// Schedules a link no later than at `due`.
    pub(crate) fn remind(&mut self, link: u32, due: Time) {
        let known = &mut self.due[link as usize];
        if due < *known {
            *known = due;
            self.heap.push(Reverse((due, link)));
        }
    }

    /// Removes and returns the earliest link that is due by `now`.
    pub(crate) fn next(&mut self, now: Time) -> Option<u32> {
        while let Some(&Reverse((due, link))) = self.heap.peek()
            && due <= now
        {
            self.heap.pop();
            if self.due[link as usize] == due {
                self.due[link as usize] = Time::NEVER;
                return Some(link);
            }
        }
        None
    }

    /// When to call [`Agenda::next`] again; [`Time::NEVER`] while all links are idle.
    pub(crate) fn next_due(&self) -> Time {
        self.heap.peek().map_or(Time::NEVER, |Reverse((due, _))| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_link_is_due_in_order(reminders in prop::collection::vec((0..5u32, 0..100u64), 0..60)) {
            let mut agenda = Agenda::new(5);
            let mut plain = [u64::MAX; 5];
            for (step, (link, due)) in reminders.into_iter().enumerate() {
                agenda.remind(link, Time::from_nanos(due));
                plain[link as usize] = plain[link as usize].min(due);
                if step % 3 == 0 {
                    let now = due / 2;
                    prop_assert!(agenda.next_due().as_nanos() <= *plain.iter().min().expect("five"));
                    let mut last = 0;
                    while let Some(link) = agenda.next(Time::from_nanos(now)) {
                        let due = std::mem::replace(&mut plain[link as usize], u64::MAX);
                        prop_assert!(last <= due && due <= now);
                        last = due;
                    }
                    prop_assert!(plain.iter().all(|due| *due > now));
                }
            }
        }
    }
}
