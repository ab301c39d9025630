//! How far a host's clock is ahead of this machine's, and how well that is known.
//!
//! A question goes there and an answer with the host's time comes back. Whatever part of the way there took, the answer was
//! written between the two moments at which this machine sent and received: with the host's time taken for that of their middle,
//! the error is half of the round trip at most. Of several exchanges the one with the shortest round trip is taken, as the clock
//! filter of NTP does (RFC 5905, section 10). It is done before a run and after it; what is stated holds both, so that a clock
//! that drifts or is set meanwhile makes the bound wide, and no figure wrong.
//!
//! Pure: the moments are arguments.

use crate::archive::Offset;

/// A question and its answer, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    /// When it was sent, by this machine's clock.
    pub(crate) sent_s: f64,
    /// When it was answered, by the host's.
    pub(crate) answered_s: f64,
    /// When the answer came, by this machine's.
    pub(crate) received_s: f64,
}

impl Offset {
    /// By the shortest of these exchanges; `None` if there is none.
    pub(crate) fn of(exchanges: &[Exchange]) -> Option<Offset> {
        let trip_s = |exchange: &Exchange| exchange.received_s - exchange.sent_s;
        let shortest = exchanges.iter().min_by(|a, b| trip_s(a).total_cmp(&trip_s(b)))?;
        let middle_s = f64::midpoint(shortest.sent_s, shortest.received_s);
        // A clock that was set back within an exchange says nothing.
        Some(Offset { offset_s: shortest.answered_s - middle_s, bound_s: trip_s(shortest).abs() / 2.0 })
    }

    /// What holds both: of the same clock at two times.
    pub(crate) fn and(self, other: Offset) -> Offset {
        let low = (self.offset_s - self.bound_s).min(other.offset_s - other.bound_s);
        let high = (self.offset_s + self.bound_s).max(other.offset_s + other.bound_s);
        Offset { offset_s: f64::midpoint(low, high), bound_s: (high - low) / 2.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn true_offset_is_within_bound(
            ahead_s in -1e5..1e5_f64,
            ways in prop::collection::vec((0.0..0.5_f64, 0.0..0.5_f64), 1..20),
            drift in -1e-4..1e-4_f64,
        ) {
            let mut at_s = 1.7e9;
            let mut measured = |from: usize, ahead_s: f64| {
                let exchanges: Vec<Exchange> = ways.iter().skip(from).step_by(2).map(|(there_s, back_s)| {
                    let sent_s = at_s;
                    at_s += there_s + back_s;
                    Exchange { sent_s, answered_s: sent_s + there_s + ahead_s, received_s: at_s }
                }).collect();
                Offset::of(&exchanges)
            };
            // Numbers near 1.7e9 have steps of a quarter of a microsecond.
            let holds = |offset: Offset, ahead_s: f64| (offset.offset_s - ahead_s).abs() <= offset.bound_s + 1e-6;
            let before = measured(0, ahead_s).expect("there is one at least");
            prop_assert!(holds(before, ahead_s), "{before} of {ahead_s}");
            let shortest = ways.iter().step_by(2).map(|(there, back)| there + back).fold(f64::MAX, f64::min);
            prop_assert!((before.bound_s - shortest / 2.0).abs() < 1e-6);
            if let Some(after) = measured(1, ahead_s + drift) {
                let both = before.and(after);
                prop_assert!(holds(both, ahead_s) && holds(both, ahead_s + drift), "{both} of {ahead_s} and {drift} more");
            }
        }
    }

    #[test]
    fn offset_is_reported_in_milliseconds() {
        assert_eq!(Offset { offset_s: -0.0125, bound_s: 0.0002 }.to_string(), "-12.500 ms, to within 0.200 ms");
        assert!(Offset::of(&[]).is_none());
    }
}
