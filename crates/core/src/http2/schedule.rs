//! Which stream sends next (RFC 9218, 10).
//!
//! The most urgent streams come first. Among equally urgent ones, incremental streams share by bytes, and the others
//! are sent one after another, oldest first; if there are both, they alternate. A stream without a window, whose next
//! bytes are not in memory, or which has used up its bandwidth, is passed over, so it delays no other.

use amped_http::h2::frame::FRAME_BYTES;
use amped_http::priority::Priority;

/// A stream's place in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Its priority.
    pub(super) priority: Priority,
    /// Bytes of body that its client accepts; negative after the client has reduced its initial window (RFC 9113, 6.9.2).
    pub(super) window: i64,
    /// Whether it has something to send.
    pub(super) state: SendState,
    /// Bytes of body sent, by which incremental streams share; of one that joined later, counted from what they had then.
    pub(super) sent: u64,
    /// Bytes of body that its bandwidth permits now.
    pub(super) allowance: u64,
}

/// What a stream has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// Nothing, until there is more of its response.
    Empty,
    /// A head or an end, which need no window.
    Unlimited,
    /// Bytes of a body, as many as its window permits.
    Body,
    /// Bytes that are not in memory: they are being fetched.
    Cold,
}

impl Slot {
    /// The slot of a new stream.
    pub(super) fn new(priority: Priority, window: i64) -> Slot {
        Slot { priority, window, state: SendState::Empty, sent: 0, allowance: u64::MAX }
    }

    /// It has something to send again: it shares with the others from now on, and not for the time before.
    pub(super) fn join(&mut self, virtual_time: u64) {
        self.sent = self.sent.max(virtual_time);
    }

    /// Its window is enlarged, or reduced.
    pub(super) fn join_if_opened(&mut self, increment: i64, virtual_time: u64) {
        if self.window <= 0 && self.window + increment > 0 {
            self.join(virtual_time);
        }
        self.window += increment;
    }

    fn may_send(&self, connection_window: i64) -> bool {
        match self.state {
            SendState::Empty | SendState::Cold => false,
            SendState::Unlimited => true,
            SendState::Body => self.window > 0 && connection_window > 0 && self.allowance > 0,
        }
    }

    /// The most bytes of body in its next frames.
    pub(super) fn room(&self, connection_window: i64, frames: usize) -> usize {
        let window = self.window.min(connection_window).max(0) as u64;
        usize::try_from(window.min(self.allowance)).unwrap_or(usize::MAX).min(frames * FRAME_BYTES)
    }
}

/// Frames of a stream in a row that shares with no other.
const FRAMES: usize = 4;

/// Chooses the next stream of these, oldest first. `connection_window`: bytes that the client accepts on the whole connection.
/// `alternate`: whether an incremental stream goes before one that is not. `is_uniform`: whether all have the default
/// priority. Returns its index, and the most bytes of body that may be sent: a frame if it shares with others, else four.
pub(super) fn next<'a>(
    slots: impl Iterator<Item = &'a Slot>,
    connection_window: i64,
    alternate: bool,
    is_uniform: bool,
) -> Option<(usize, usize)> {
    let mut ready = slots.enumerate().filter(|(_, slot)| slot.may_send(connection_window));
    if is_uniform {
        return ready.next().map(|(index, slot)| (index, slot.room(connection_window, FRAMES)));
    }
    let mut best: [Option<(usize, &Slot)>; 2] = [None, None];
    for (index, slot) in ready {
        let kind = usize::from(slot.priority.incremental);
        let precedes = |other: &Slot| {
            let key = |slot: &Slot| (slot.priority.urgency, if slot.priority.incremental { slot.sent } else { 0 });
            // Streams are in the order of their age.
            key(slot) < key(other)
        };
        if best[kind].is_none_or(|(_, other)| precedes(other)) {
            best[kind] = Some((index, slot));
        }
    }
    let is_alone = matches!(best, [Some(_), None]);
    let (index, slot) = match best {
        [Some(one), Some(incremental)] => match one.1.priority.urgency.cmp(&incremental.1.priority.urgency) {
            core::cmp::Ordering::Less => one,
            core::cmp::Ordering::Greater => incremental,
            core::cmp::Ordering::Equal => {
                if alternate {
                    incremental
                } else {
                    one
                }
            }
        },
        [one, incremental] => one.or(incremental)?,
    };
    Some((index, slot.room(connection_window, if is_alone { FRAMES } else { 1 })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    /// The next stream; the same if they are known to be uniform.
    fn next(slots: &[Slot], connection_window: i64, alternate: bool) -> Option<(usize, usize)> {
        let chosen = super::next(slots.iter(), connection_window, alternate, false);
        if slots.iter().all(|slot| slot.priority == Priority::default()) {
            assert_eq!(super::next(slots.iter(), connection_window, alternate, true), chosen);
        }
        chosen
    }

    /// Sends from these slots until nothing may be sent; returns the streams in order. Each has this many bytes.
    fn order(slots: &mut [Slot], mut left: Vec<usize>, mut connection_window: i64) -> Vec<usize> {
        let mut chosen = Vec::new();
        let mut alternate = false;
        while let Some((index, most)) = next(slots, connection_window, alternate) {
            alternate = !alternate;
            let count = most.min(left[index]);
            left[index] -= count;
            slots[index].window -= count as i64;
            slots[index].sent += count as u64;
            connection_window -= count as i64;
            slots[index].state = if left[index] == 0 { SendState::Empty } else { SendState::Body };
            chosen.push(index);
        }
        chosen
    }

    fn slot(urgency: u8, incremental: bool) -> Slot {
        let slot = Slot::new(Priority { urgency, incremental }, 1 << 20);
        Slot { state: SendState::Body, ..slot }
    }

    #[test]
    fn urgent_streams_come_first_and_others_in_their_order() {
        let mut slots = [slot(3, false), slot(5, false), slot(0, false), slot(3, false)];
        let left = vec![2 * FRAME_BYTES, 10, FRAME_BYTES + 1, 10];
        assert_eq!(order(&mut slots, left, 1 << 20), [2, 0, 3, 1]);
        // So that a more urgent one is not delayed, a stream has a few frames at a time.
        let left = vec![9 * FRAME_BYTES, 0, 0, 0];
        let mut slots = [slot(3, false), Slot::new(Priority::default(), 0), slot(3, false), slot(3, false)];
        assert_eq!(order(&mut slots, left, 1 << 20)[..3], [0, 0, 0]);
    }

    #[test]
    fn incremental_streams_share_by_bytes() {
        let mut slots = [slot(3, true), slot(3, true), slot(3, true)];
        let left = vec![3 * FRAME_BYTES, 2 * FRAME_BYTES, FRAME_BYTES];
        assert_eq!(order(&mut slots, left, 1 << 20), [0, 1, 2, 0, 1, 0]);
        // With streams that are not incremental they alternate.
        let mut slots = [slot(3, false), slot(3, false), slot(3, true)];
        let left = vec![FRAME_BYTES, FRAME_BYTES, 2 * FRAME_BYTES];
        assert_eq!(order(&mut slots, left, 1 << 20), [0, 2, 1, 2]);
    }

    #[test]
    fn stream_sends_what_its_bandwidth_permits_and_delays_no_other() {
        let mut slots = [slot(0, false), slot(3, false)];
        slots[0].allowance = 1000;
        assert_eq!(next(&slots, 1 << 20, false), Some((0, 1000)));
        slots[0].allowance = 0;
        assert_eq!(next(&slots, 1 << 20, false), Some((1, FRAMES * FRAME_BYTES)));
        // Its head and its end are not limited.
        slots[0].state = SendState::Unlimited;
        assert_eq!(next(&slots, 1 << 20, false), Some((0, 0)));
    }

    #[test]
    fn streams_that_cannot_send_delay_no_other() {
        let mut slots = [slot(0, false), slot(1, false), slot(2, false), slot(3, false)];
        slots[0].window = 0;
        slots[1].state = SendState::Cold;
        slots[2].state = SendState::Empty;
        assert_eq!(next(&slots, 1 << 20, false), Some((3, FRAMES * FRAME_BYTES)));
        assert_eq!(next(&slots, 5, false), Some((3, 5)));
        assert_eq!(next(&slots, 0, false), None);
        // A head needs no window.
        slots[0].state = SendState::Unlimited;
        assert_eq!(next(&slots, -5, false), Some((0, 0)));
    }
}
