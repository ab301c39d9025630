//! The TLS handshakes of a run: how many were full and how many resumed a session, their times, and whether the server
//! resumed as many sessions as requested.
//!
//! The time of a handshake is from the established connection to the arrival of the bytes that complete it. It does not
//! include the time to connect or the generator's lateness, as `secured` does, which counts from the scheduled time.
//! `tls` makes handshakes, and `tally` counts them. [`Handshakes`] is the only definition of their figures.

use serde::{Deserialize, Serialize};

use crate::tally::{Counts, HandshakeTimes, Spread, counts};

/// The sessions of a run that can be resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SessionCounts {
    /// The share of connections that are to resume one, from 0 to 1.
    pub(crate) requested_share: f64,
    /// Sessions that the server issued.
    pub(crate) issued: u64,
    /// Sessions that connections offered to the server.
    pub(crate) offered: u64,
}

/// The completed TLS handshakes of a run; empty if the URL is not https.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Handshakes {
    /// Requested share of connections that resume a session, from 0 to 1.
    pub requested_share: f64,
    /// Resumed sessions as a share of all handshakes, from 0 to 1; `None` without handshakes.
    pub resumed_share: Option<f64>,
    /// Handshakes that were to resume a session.
    pub wanted: u64,
    /// Sessions that the server issued: tickets, or session identifiers of TLS 1.2. Counted only if some are to be
    /// resumed.
    pub issued: u64,
    /// Sessions that connections offered to the server.
    pub offered: u64,
    /// Times of all handshakes.
    pub all: Spread,
    /// Times of full handshakes.
    pub full: Spread,
    /// Times of handshakes that resumed a session.
    pub resumed: Spread,
    /// Why clearly fewer sessions were resumed than requested.
    pub warning: Option<String>,
    /// The histograms behind the times: full and resumed.
    #[serde(skip)]
    pub(crate) times: [Counts; 2],
}

impl Handshakes {
    pub(crate) fn of(times: &HandshakeTimes, sessions: SessionCounts) -> Handshakes {
        let SessionCounts { requested_share, issued, offered } = sessions;
        let [all, full, resumed] = [&times.all(), &times.full, &times.resumed].map(Spread::of);
        let mut found = Handshakes {
            requested_share,
            resumed_share: (all.count > 0).then(|| resumed.count as f64 / all.count as f64),
            wanted: times.wanted,
            issued,
            offered,
            all,
            full,
            resumed,
            warning: None,
            times: [&times.full, &times.resumed].map(counts),
        };
        found.warning = found.lack();
        found
    }

    /// The counts, restored from a result.
    pub(crate) fn sessions(&self) -> SessionCounts {
        let Handshakes { requested_share, issued, offered, .. } = *self;
        SessionCounts { requested_share, issued, offered }
    }

    /// Why the server resumed clearly fewer sessions than requested.
    fn lack(&self) -> Option<String> {
        /// Share of the requested sessions that may lack without a warning.
        const LACK: f64 = 0.1;
        /// Until the first handshakes end, there is no session to resume.
        const FIRST: f64 = 10.0;
        let Handshakes { wanted, issued, offered, resumed, .. } = self;
        let least = *wanted as f64 * (1.0 - LACK) - FIRST;
        if resumed.count as f64 >= least {
            return None;
        }
        let why = if *issued == 0 {
            "it issues no tickets; enable session tickets, or omit --tls-resume".to_owned()
        } else if (*offered as f64) < least {
            format!("it issued only {issued} tickets, of which {offered} were available in time")
        } else {
            format!(
                "it did not accept {} of {offered} tickets that it had issued",
                offered - resumed.count.min(*offered)
            )
        };
        let percent = 100.0 * resumed.count as f64 / (*wanted).max(1) as f64;
        Some(format!("the server resumed {percent:.0} % of the {wanted} sessions that were to be resumed: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::{Handshake, Tally};
    use amped_units::Time;
    use std::time::Duration;

    /// Full handshakes of 4 ms, and resumed ones of 1 ms, of connections established 7 ms after their scheduled time.
    fn handshakes(full: u64, wanted: u64, resumed: u64, sessions: SessionCounts) -> Handshakes {
        let mut tally = Tally::new(1);
        let (planned, began) = (Time::START, Time::from_millis(7));
        let mut add = |count, wanted, resumed, ms| {
            let handshake = Handshake { began, wanted, resumed };
            (0..count).for_each(|_| tally.secured(planned, handshake, began + Duration::from_millis(ms)));
        };
        add(full, false, false, 4);
        add(wanted - resumed, true, false, 4);
        add(resumed, true, true, 1);
        Handshakes::of(&tally.handshakes, sessions)
    }

    #[test]
    fn handshake_time_begins_with_connection_and_is_separate_by_kind() {
        let found = handshakes(30, 70, 60, SessionCounts { requested_share: 0.7, issued: 99, offered: 60 });
        assert_eq!((found.all.count, found.full.count, found.resumed.count, found.wanted), (100, 40, 60, 70));
        assert_eq!((found.resumed_share, found.warning), (Some(0.6), None));
        for (spread, mean_ms) in [(found.all, 2.2), (found.full, 4.0), (found.resumed, 1.0)] {
            assert!((spread.mean_ms / mean_ms - 1.0).abs() < 0.01, "{} ms, not {mean_ms}", spread.mean_ms);
        }
        let none = handshakes(0, 0, 0, SessionCounts::default());
        assert_eq!((none.resumed_share, none.all.count, none.warning), (None, 0, None));
    }

    #[test]
    fn lack_of_resumed_sessions_is_explained() {
        let check = |wanted, resumed, issued, offered, says: Option<&str>| {
            let found = handshakes(50, wanted, resumed, SessionCounts { requested_share: 0.5, issued, offered });
            match (&found.warning, says) {
                (Some(found), Some(says)) => assert!(found.contains(says), "{found:?} has no {says:?}"),
                (found, says) => assert_eq!(found.as_deref(), says, "{wanted} {resumed}"),
            }
        };
        check(100, 100, 200, 100, None);
        check(100, 85, 200, 85, None);
        // The first connections find no session.
        check(10, 0, 0, 0, None);
        check(
            20,
            0,
            0,
            0,
            Some("the server resumed 0 % of the 20 sessions that were to be resumed: it issues no tickets"),
        );
        check(
            100,
            50,
            52,
            52,
            Some("resumed 50 % of the 100 sessions that were to be resumed: it issued only 52 tickets"),
        );
        check(100, 30, 200, 95, Some("it did not accept 65 of 95 tickets"));
    }
}
