//! Which link is to be looked at next, and when: the one timing structure of the router.
//!
//! A heap with at most a few entries a link, however many packets are on their way, since a link knows the order of its own.
//! An entry that no longer holds is not searched for: it is passed over when its time comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use amped_units::Time;

/// The times of links, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
    /// When each link is next looked at; [`Time::NEVER`] for one that has nothing to do.
    due: Vec<Time>,
}

impl Agenda {
    /// For so many links.
    pub(crate) fn new(links: usize) -> Agenda {
        Agenda { heap: BinaryHeap::with_capacity(links), due: vec![Time::NEVER; links] }
    }

    /// Looks at a link no later than at `due`.
    pub(crate) fn remind(&mut self, link: u32, due: Time) {
        let known = &mut self.due[link as usize];
        if due < *known {
            *known = due;
            self.heap.push(Reverse((due, link)));
        }
    }

    /// The link that is to be looked at by `now`, the earliest first; it is then forgotten.
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

    /// When [`Agenda::next`] is to be asked again; [`Time::NEVER`] while nobody has anything to do.
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
