//! The queue before a wire: it holds packets while another is sent, and decides which are dropped.
//!
//! Two disciplines. Droptail drops arriving packets when the queue is full; CoDel also drops at the head those that have
//! waited too long. `link.rs` asks for the next packet whenever the wire becomes free, and passes the time.

use std::collections::VecDeque;
use std::time::Duration;

use amped_units::{Bytes, Time};

/// The settings of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSettings {
    /// Its capacity, besides the packet that is being sent.
    pub limit: Limit,
    /// Its drop discipline.
    pub discipline: Discipline,
}

/// The capacity of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// In packets.
    Packets(u64),
    /// In bytes, as the link counts them.
    Bytes(Bytes),
    /// Unlimited.
    Unlimited,
}

/// The drop discipline of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// Drops arriving packets when full.
    DropTail,
    /// Drops packets that have waited too long: CoDel (RFC 8289).
    CoDel(CoDel),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The wire lost it.
    Loss,
    /// The queue was full.
    QueueFull,
    /// It had waited too long.
    CoDel,
}

/// A dropped packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped<T> {
    /// When it was dropped.
    pub at: Time,
    /// Why.
    pub cause: Cause,
    /// Its size, as the link counts it.
    pub bytes: u32,
    /// The packet.
    pub item: T,
}

/// The two parameters of CoDel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoDel {
    /// Acceptable standing delay (TARGET).
    pub target: Duration,
    /// How long the delay may exceed it (INTERVAL): about a round trip.
    pub interval: Duration,
}

impl Default for CoDel {
    /// RFC 8289, 4.2 and 4.3: 5 ms, and 100 ms for the Internet at large.
    fn default() -> CoDel {
        CoDel { target: Duration::from_millis(5), interval: Duration::from_millis(100) }
    }
}

/// A queue of packets.
#[derive(Clone, Debug)]
pub(crate) struct Queue<T> {
    limit: Limit,
    codel: Option<CoDelState>,
    waiting: VecDeque<Waiting<T>>,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct Waiting<T> {
    since: Time,
    bytes: u32,
    item: T,
}

impl<T> Queue<T> {
    pub(crate) fn new(settings: &QueueSettings) -> Queue<T> {
        let codel = match settings.discipline {
            Discipline::DropTail => None,
            Discipline::CoDel(settings) => Some(CoDelState::new(settings)),
        };
        Queue { limit: settings.limit, codel, waiting: VecDeque::new(), bytes: 0 }
    }

    /// Appends a packet, or returns it if the queue is full.
    pub(crate) fn push(&mut self, now: Time, bytes: u32, item: T) -> Result<(), T> {
        let is_full = match self.limit {
            Limit::Packets(limit) => self.packets() >= limit,
            Limit::Bytes(limit) => self.bytes + u64::from(bytes) > limit.0,
            Limit::Unlimited => false,
        };
        if is_full {
            return Err(item);
        }
        self.bytes += u64::from(bytes);
        self.waiting.push_back(Waiting { since: now, bytes, item });
        Ok(())
    }

    /// The next packet to send, with its size. Packets that CoDel drops go to `dropped`.
    pub(crate) fn pop(&mut self, now: Time, dropped: &mut Vec<Dropped<T>>) -> Option<(u32, T)> {
        let mut drop = |packet: Waiting<T>| {
            dropped.push(Dropped { at: now, cause: Cause::CoDel, bytes: packet.bytes, item: packet.item });
        };
        let packet = match &mut self.codel {
            Some(codel) => codel.pop(now, &mut self.waiting, &mut self.bytes, &mut drop),
            None => take(&mut self.waiting, &mut self.bytes),
        };
        packet.map(|packet| (packet.bytes, packet.item))
    }

    /// Number of packets in the queue.
    pub(crate) fn packets(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Number of bytes in the queue.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn take<T>(waiting: &mut VecDeque<Waiting<T>>, bytes: &mut u64) -> Option<Waiting<T>> {
    let packet = waiting.pop_front()?;
    *bytes -= u64::from(packet.bytes);
    Some(packet)
}

/// The state of CoDel, by the names of RFC 8289, 5.
#[derive(Clone, Debug)]
struct CoDelState {
    settings: CoDel,
    first_above: Option<Time>,
    drop_next: Time,
    count: u32,
    last_count: u32,
    is_dropping: bool,
}

/// RFC 8289, 5.1: at most one packet of maximum size is no standing queue.
const MAX_PACKET_BYTES: u64 = 1500;

impl CoDelState {
    fn new(settings: CoDel) -> CoDelState {
        CoDelState { settings, first_above: None, drop_next: Time::START, count: 0, last_count: 0, is_dropping: false }
    }

    /// RFC 8289, 5.6, `deque`.
    fn pop<T>(
        &mut self,
        now: Time,
        waiting: &mut VecDeque<Waiting<T>>,
        bytes: &mut u64,
        drop: &mut impl FnMut(Waiting<T>),
    ) -> Option<Waiting<T>> {
        let (mut packet, mut may_drop) = self.take(now, waiting, bytes);
        if self.is_dropping {
            self.is_dropping = may_drop;
            while self.is_dropping && now >= self.drop_next {
                packet.into_iter().for_each(&mut *drop);
                self.count += 1;
                (packet, may_drop) = self.take(now, waiting, bytes);
                self.is_dropping = may_drop;
                if may_drop {
                    self.drop_next = self.control_law(self.drop_next);
                }
            }
        } else if may_drop {
            packet.into_iter().for_each(&mut *drop);
            (packet, _) = self.take(now, waiting, bytes);
            self.is_dropping = true;
            // Soon after the last dropping state it resumes at the rate that was sufficient then.
            let delta = self.count - self.last_count;
            let recent = now - self.drop_next < self.settings.interval * 16;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next = self.control_law(now);
            self.last_count = self.count;
        }
        packet
    }

    /// RFC 8289, 5.5, `dodequeue`: the packet at the head, and whether it may be dropped.
    fn take<T>(
        &mut self,
        now: Time,
        waiting: &mut VecDeque<Waiting<T>>,
        bytes: &mut u64,
    ) -> (Option<Waiting<T>>, bool) {
        let Some(packet) = take(waiting, bytes) else {
            self.first_above = None;
            return (None, false);
        };
        if now - packet.since < self.settings.target || *bytes <= MAX_PACKET_BYTES {
            self.first_above = None;
            return (Some(packet), false);
        }
        let first_above = *self.first_above.get_or_insert(now + self.settings.interval);
        (Some(packet), now >= first_above)
    }

    /// RFC 8289, 5.3: the interval between drops shrinks with the square root of their number.
    fn control_law(&self, from: Time) -> Time {
        from + self.settings.interval.div_f64(f64::from(self.count.max(1)).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn queue(limit: Limit, discipline: Discipline) -> Queue<u64> {
        Queue::new(&QueueSettings { limit, discipline })
    }

    #[test]
    fn droptail_drops_packets_without_room() {
        let check = |limit: Limit, sizes: &[u32], taken: &[bool]| {
            let mut queue = queue(limit, Discipline::DropTail);
            let got: Vec<bool> = sizes.iter().map(|&size| queue.push(Time::START, size, 0).is_ok()).collect();
            assert_eq!(got, taken, "{limit:?} {sizes:?}");
        };
        check(Limit::Packets(2), &[1500, 40, 40], &[true, true, false]);
        check(Limit::Packets(0), &[40], &[false]);
        // A small packet still fits where a large one did not.
        check(Limit::Bytes(Bytes(1600)), &[1500, 1500, 100, 1], &[true, false, true, false]);
        check(Limit::Unlimited, &[65_000; 100], &[true; 100]);
    }

    #[test]
    fn fifo_keeps_order() {
        let mut queue = queue(Limit::Unlimited, Discipline::DropTail);
        for n in 0..5 {
            queue.push(Time::START, 100, n).expect("room");
        }
        let mut none = Vec::new();
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop(Time::START, &mut none)).map(|(_, n)| n).collect();
        assert_eq!((order, queue.bytes(), none.len()), (vec![0, 1, 2, 3, 4], 0, 0));
    }

    /// Packets of 1000 bytes arrive every `gap_ns` and leave every
    /// millisecond, for ten seconds. Returns the times of drops.
    fn codel(gap_ns: u64) -> (Vec<Time>, Duration) {
        let mut queue = queue(Limit::Unlimited, Discipline::CoDel(CoDel::default()));
        let (mut drops, mut next, mut longest) = (Vec::new(), 0, Duration::ZERO);
        for tick in 0..10_000 {
            let now = Time::from_nanos(tick * MS);
            while next <= now.as_nanos() {
                queue.push(Time::from_nanos(next), 1000, next).expect("no limit");
                next += gap_ns;
            }
            if let Some((_, since)) = queue.pop(now, &mut drops) {
                longest = longest.max(now - Time::from_nanos(since));
            }
        }
        (drops.iter().map(|drop| drop.at).collect(), longest)
    }

    #[test]
    fn codel_does_not_drop_from_draining_queue() {
        let (drops, longest) = codel(MS + MS / 10);
        assert_eq!(drops.len(), 0);
        assert!(longest < Duration::from_millis(5), "{longest:?}");
    }

    #[test]
    fn codel_follows_its_control_law() {
        // 2 % overload: above 5 ms from about 250 ms on, first drop
        // 100 ms later, the next after 100 / sqrt(1), 100 / sqrt(2), ...
        let (drops, longest) = codel(MS * 100 / 102);
        assert!(drops.len() > 5, "{} drops", drops.len());
        assert!(drops[0] > Time::from_millis(300) && drops[0] < Time::from_millis(450), "{:?}", drops[0]);
        for (n, pair) in drops.windows(2).take(4).enumerate() {
            let gap = (pair[1] - pair[0]).as_secs_f64() * 1e3;
            let law = 100.0 / ((n + 1) as f64).sqrt();
            // Drops fall on ticks of a millisecond.
            assert!((gap - law).abs() <= 2.0, "gap {n}: {gap} ms, {law} by the law");
        }
        assert!(longest < Duration::from_millis(60), "{longest:?}");
    }
}
