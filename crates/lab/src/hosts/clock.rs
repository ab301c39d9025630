//! The offset between a host's clock and this machine's, with a bound on its error.
//!
//! A request goes to the host, and a response with the host's time comes back. The host wrote the response
//! between the two instants at which this machine sent and received. Taking the host's time for the midpoint of
//! these gives an error of at most half of the round trip, however asymmetric the path is. Of several exchanges
//! the one with the shortest round trip is used, as in the clock filter of NTP (RFC 5905, section 10). The
//! offset is measured before and after a run, and the stated interval covers both: a clock that drifts or is
//! set meanwhile widens the bound, but does not invalidate a figure.
//!
//! Pure: times are arguments.

use crate::archive::Offset;

/// A request and its response, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    /// Send time, by this machine's clock.
    pub(crate) sent_s: f64,
    /// Response time, by the host's clock.
    pub(crate) answered_s: f64,
    /// Receive time, by this machine's clock.
    pub(crate) received_s: f64,
}

impl Offset {
    /// The offset by the exchange with the shortest round trip; `None` without exchanges.
    pub(crate) fn of(exchanges: &[Exchange]) -> Option<Offset> {
        let trip_s = |exchange: &Exchange| exchange.received_s - exchange.sent_s;
        let shortest = exchanges.iter().min_by(|a, b| trip_s(a).total_cmp(&trip_s(b)))?;
        let middle_s = f64::midpoint(shortest.sent_s, shortest.received_s);
        // If the clock was set back during the exchange, the round trip is negative; the bound stays positive.
        Some(Offset { offset_s: shortest.answered_s - middle_s, bound_s: trip_s(shortest).abs() / 2.0 })
    }

    /// The smallest offset interval that covers both, of the same clock at two times.
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
            // An f64 near 1.7e9 has a resolution of about a quarter of a microsecond.
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
