//! The result of a slice with its histograms, so that the results of several generators can be merged.
//!
//! Counts are summed, histograms are added bucket by bucket, and seconds are matched by number, as all generators began
//! at one instant; rates are over the common window. Percentiles are never averaged: they are read from the merged
//! histograms. The verdict of the whole is that of its worst part, and each line of evidence names its generator.
//!
//! Parts come from other machines, as JSON: inconsistent input is rejected.

use std::time::Duration;

use amped_measure::{Validity, Verdict};
use serde::{Deserialize, Serialize};

use crate::handshake::{Handshakes, SessionCounts};
use crate::outcome::{Loop, Outcome};
use crate::tally::{
    Clocks, Counts, Distribution, Fault, HandshakeTimes, Interval, Part, Spread, Used, coarse, counts, restore,
};
use crate::window::{Course, Second};

/// The clocks of a second, in the order of [`Clocks::each`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded([Counts; 5]);

impl Recorded {
    /// Records these clocks.
    pub fn of(clocks: &Clocks) -> Recorded {
        Recorded(clocks.each().map(|(_, clock)| counts(clock)))
    }

    /// Restores the clocks.
    pub fn clocks(&self) -> Clocks {
        let mut clocks = Clocks::default();
        clocks.each_mut().into_iter().zip(&self.0).for_each(|(clock, counts)| restore(clock, counts));
        clocks
    }
}

/// The result of one generator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Parts {
    /// Its result as reported.
    pub outcome: Outcome,
    /// The backlog over its window.
    course: Course,
    /// The clocks of each second of its series.
    seconds: Vec<Recorded>,
    /// The latencies of each class, if known.
    classes: Vec<Option<Counts>>,
    /// The times of full and of resumed TLS handshakes.
    #[serde(default)]
    handshakes: [Counts; 2],
}

/// Maximum spread of the generators' start times, in seconds: beyond it, their seconds do not match.
const APART_MAX_S: f64 = 0.1;

impl Parts {
    /// A result, and the clocks of each of its seconds.
    pub fn new(outcome: &Outcome, seconds: Vec<Recorded>) -> Parts {
        let classes = outcome.classes.iter().map(|class| class.times.as_ref().map(counts)).collect();
        let (course, handshakes) = (outcome.course.clone(), outcome.handshakes.times.clone());
        Parts { outcome: outcome.clone(), course, seconds, classes, handshakes }
    }

    /// Parses the JSON of a generator.
    ///
    /// # Errors
    /// When the text is not the result of a generator.
    pub fn read(text: &str) -> Result<Parts, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Merges the parts of a plan, each with the name of its generator. Their start times are by one clock.
    ///
    /// # Errors
    /// When they are not parts of one plan; the text has no remedy.
    pub fn merge(parts: &[(String, Parts)]) -> Result<Outcome, String> {
        let mut rest = parts.iter();
        let Some((first_name, first)) = rest.next() else { return Err("no parts given".to_owned()) };
        let mut all = first.outcome.clone();
        all.verdict = Verdict::valid();
        judge(&mut all.verdict, first_name, &first.outcome.verdict);
        let [mut began_first_s, mut began_last_s] = [all.began_s; 2];
        let (mut seconds, mut drain_s, mut course) = (all.window.seconds, all.window.drain_s, first.course.clone());
        for (name, Parts { outcome: other, course: theirs, .. }) in rest {
            all.load = load(&all.load, &other.load)
                .ok_or_else(|| format!("{name} and {first_name} are not parts of the same load"))?;
            if all.classes.len() != other.classes.len()
                || all.classes.iter().zip(&other.classes).any(|(mine, theirs)| mine.class != theirs.class)
            {
                return Err(format!("{name} has other request classes than {first_name}"));
            }
            for (mine, theirs) in [
                (&mut all.planned, other.planned),
                (&mut all.started, other.started),
                (&mut all.established, other.established),
                (&mut all.ok, other.ok),
                (&mut all.unsent, other.unsent),
                (&mut all.stray, other.stray),
                (&mut all.received_bytes, other.received_bytes),
            ] {
                *mine = mine.saturating_add(theirs);
            }
            all.statuses.iter_mut().zip(other.statuses).for_each(|(mine, theirs)| *mine = mine.saturating_add(theirs));
            for (mine, theirs) in all.classes.iter_mut().zip(&other.classes) {
                mine.ok = mine.ok.saturating_add(theirs.ok);
                mine.failed = mine.failed.saturating_add(theirs.failed);
            }
            let failed = |fault: Fault| all.failed_by(fault).saturating_add(other.failed_by(fault));
            let failures = Fault::ALL.iter().map(|fault| (*fault, failed(*fault)));
            all.failures = failures.filter(|(_, n)| *n > 0).collect();
            all.tls = all.tls.take().or_else(|| other.tls.clone());
            all.streams = all.streams.into_iter().chain(other.streams).min();
            seconds = seconds.max(other.window.seconds);
            drain_s = drain_s.max(other.window.drain_s);
            course.add(theirs);
            for (status, count) in &other.status_codes {
                let mine = all.status_codes.entry(*status).or_default();
                *mine = mine.saturating_add(*count);
            }
            all.real_time &= other.real_time;
            all.interrupted |= other.interrupted;
            all.stolen_s += other.stolen_s;
            add(&mut all.establisher, other.establisher);
            add(&mut all.handler, other.handler);
            all.parked.extend(&other.parked);
            (began_first_s, began_last_s) = (began_first_s.min(other.began_s), began_last_s.max(other.began_s));
            judge(&mut all.verdict, name, &other.verdict);
        }
        all.began_s = began_first_s;
        let apart_s = began_last_s - began_first_s;
        if !(0.0..=APART_MAX_S).contains(&apart_s) {
            let apart = format!("the generators began {apart_s:.3} s apart, so their seconds are not the same");
            all.verdict.weaken(Validity::ClientBound, apart);
        }
        for (at, class) in all.classes.iter_mut().enumerate() {
            // Known for all parts or for none: it depends on the number of classes, which is the same.
            let known: Option<Vec<&Counts>> = parts.iter().map(|(_, part)| part.classes.get(at)?.as_ref()).collect();
            class.times = known.map(|known| {
                let mut times = coarse();
                known.into_iter().for_each(|counts| restore(&mut times, counts));
                times
            });
            class.latency = class.times.as_ref().map(Spread::of);
        }
        all.handshakes = handshakes(parts.iter().map(|(_, part)| part));
        if let Some((name, part)) = parts.iter().find(|(_, part)| part.outcome.series.len() != part.seconds.len()) {
            let (counted, heard) = (part.outcome.series.len(), part.seconds.len());
            return Err(format!("{name} has {counted} seconds of counts and {heard} of latencies"));
        }
        let mut clocks = Clocks::default();
        all.series.clear();
        for interval in Parts::intervals(parts) {
            clocks.add(&interval.clocks);
            all.series.push(interval.second);
        }
        let requests = all.window.requests_per_connection.unwrap_or(u64::MAX);
        all.set_window(seconds, seconds + drain_s, requests, course);
        all.latency = Spread::of(&clocks.latency);
        all.first_byte = Spread::of(&clocks.first_byte);
        all.connected = Spread::of(&clocks.connected);
        all.secured = Spread::of(&clocks.secured);
        all.lateness = Spread::of(&clocks.lateness);
        all.distribution = Distribution::of(&clocks);
        Ok(all)
    }

    /// Merges the seconds of all parts, one at a time, as the clocks of each take a megabyte.
    pub fn intervals(parts: &[(String, Parts)]) -> impl Iterator<Item = Interval> {
        let began_s = parts.iter().map(|(_, part)| part.outcome.began_s).fold(f64::INFINITY, f64::min);
        let longest = parts.iter().map(|(_, part)| part.seconds.len()).max().unwrap_or(0);
        let mut backlog = 0;
        (0..longest).map(move |at| {
            let (mut sum, mut begin, mut length) = (Part::default(), Duration::ZERO, Duration::ZERO);
            for (_, Parts { outcome, seconds, .. }) in parts {
                if let (Some(second), Some(recorded)) = (outcome.series.get(at), seconds.get(at)) {
                    let Second { at_s, length_s, started, ended, ok, failed, received_bytes, .. } = *second;
                    sum.add(&Part { started, ended, ok, failed, received_bytes, clocks: recorded.clocks() });
                    begin = begin.max(Duration::from_secs_f64(at_s.clamp(0.0, 1e9)));
                    length = length.max(Duration::from_secs_f64(length_s.clamp(0.0, 1.0)));
                }
            }
            let second = sum.second(begin, length, backlog);
            backlog = second.backlog;
            Interval { began_s, second, clocks: sum.clocks }
        })
    }
}

/// The handshakes of all parts.
fn handshakes<'a>(parts: impl Iterator<Item = &'a Parts>) -> Handshakes {
    let (mut times, mut sessions) = (HandshakeTimes::default(), SessionCounts::default());
    for Parts { outcome, handshakes: [full, resumed], .. } in parts {
        restore(&mut times.full, full);
        restore(&mut times.resumed, resumed);
        times.wanted = times.wanted.saturating_add(outcome.handshakes.wanted);
        let SessionCounts { requested_share, issued, offered } = outcome.handshakes.sessions();
        // The same for all parts of a plan.
        sessions.requested_share = requested_share;
        sessions.issued = sessions.issued.saturating_add(issued);
        sessions.offered = sessions.offered.saturating_add(offered);
    }
    Handshakes::of(&times, sessions)
}

/// The merged load of both; `None` if they belong to different plans.
fn load(mine: &Loop, theirs: &Loop) -> Option<Loop> {
    match (mine, theirs) {
        (Loop::Open { arrivals, rate, seed, shape }, Loop::Open { arrivals: a, rate: r, seed: s, shape: h })
            if (arrivals, seed, shape) == (a, s, h) =>
        {
            Some(Loop::Open { arrivals: arrivals.clone(), rate: rate + r, seed: *seed, shape: shape.clone() })
        }
        (Loop::Closed { clients, think_ms }, Loop::Closed { clients: c, think_ms: t }) if think_ms == t => {
            Some(Loop::Closed { clients: clients.saturating_add(*c), think_ms: *think_ms })
        }
        _ => None,
    }
}

/// Weakens the merged verdict by that of a part.
fn judge(all: &mut Verdict, name: &str, part: &Verdict) {
    if part.validity != Validity::Valid && part.evidence.is_empty() {
        all.weaken(part.validity, format!("{name}: {}", part.validity));
    }
    part.evidence.iter().for_each(|line| all.weaken(part.validity, format!("{name}: {line}")));
    all.broken.extend(part.broken.iter().map(|line| format!("{name}: {line}")));
}

/// Adds the resource use of threads on several machines.
fn add(all: &mut Used, one: Used) {
    all.cpu_s += one.cpu_s;
    all.spun_s += one.spun_s;
    all.queued_s += one.queued_s;
    all.elapsed_s += one.elapsed_s;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::ran;
    use crate::tally::Handshake;
    use crate::tally::Tally;
    use amped_units::Time;
    use proptest::prelude::*;

    /// An event at one generator: its second, its class, and its latency in microseconds; or a failure.
    type Event = (usize, u16, Option<u64>);

    fn tallied(events: &[Event], seconds: usize) -> Parts {
        let mut tally = Tally::new(3);
        let (mut series, mut recorded, mut clocks) = (Vec::new(), Vec::new(), Clocks::default());
        for at in 0..seconds {
            for (_, class, us) in events.iter().filter(|event| event.0 == at) {
                let planned = Time::START;
                tally.sent(planned, planned + Duration::from_micros(us.unwrap_or(7) / 3));
                match us {
                    Some(us) => {
                        let last = planned + Duration::from_micros(*us);
                        tally.connected(planned, planned + Duration::from_micros(us / 2));
                        let began = planned + Duration::from_micros(us / 2);
                        tally.secured(planned, Handshake { began, wanted: *class > 0, resumed: *class > 1 }, last);
                        tally.reply(*class, planned, planned + Duration::from_micros(us - us / 4), last);
                        tally.received += us;
                    }
                    None => tally.fail(Fault::Reset, *class),
                }
            }
            let part = tally.cut(Clocks::default());
            let backlog = series.last().map_or(0, |last: &Second| last.backlog);
            series.push(part.second(Duration::from_secs(at as u64), Duration::from_secs(1), backlog));
            clocks.add(&part.clocks);
            recorded.push(Recorded::of(&part.clocks));
        }
        let classes = ["a", "b", "c"].map(str::to_owned).to_vec();
        let ran = crate::outcome::Ran { series, clocks, classes, ..ran(100.0) };
        Parts::new(&Outcome::new(&tally, ran), recorded)
    }

    /// The part as another machine receives it.
    fn sent(parts: &Parts) -> Parts {
        Parts::read(&serde_json::to_string(parts).unwrap()).unwrap()
    }

    proptest! {
        // Clocks have room for an hour at three digits: clearing and comparing them takes most of the time.
        #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 100, ..ProptestConfig::default() })]

        #[test]
        fn merged_slices_equal_whole_run(
            events in prop::collection::vec((0..2_usize, 0..3_u16, prop::option::weighted(0.9, 1..50_000_000_u64)), 0..100),
            of in 1..4_usize,
        ) {
            let whole = tallied(&events, 2);
            let slice = |index: usize| -> Vec<Event> { events.iter().skip(index).step_by(of).copied().collect() };
            let parts: Vec<(String, Parts)> =
                (0..of).map(|index| (format!("host {index}"), sent(&tallied(&slice(index), 2)))).collect();
            let (merged, intervals) = (Parts::merge(&parts).unwrap(), Parts::intervals(&parts));
            let (Loop::Open { rate, .. }, Loop::Open { rate: one, .. }) = (&merged.load, &whole.outcome.load) else {
                panic!("{merged:?}")
            };
            prop_assert!((rate - one * of as f64).abs() < 1e-6);
            // All figures except those of a single machine.
            let alike = |outcome: &Outcome| {
                let mut outcome = outcome.clone();
                outcome.load = whole.outcome.load.clone();
                (outcome.planned, outcome.establisher, outcome.handler) = (0, Used::default(), Used::default());
                outcome.verdict = Verdict::valid();
                serde_json::to_value(outcome).unwrap()
            };
            prop_assert_eq!(alike(&merged), alike(&whole.outcome));
            // The histograms too, of the seconds and of the classes.
            for (interval, recorded) in intervals.zip(&whole.seconds) {
                for ((name, mine), (_, theirs)) in interval.clocks.each().into_iter().zip(recorded.clocks().each()) {
                    prop_assert_eq!(mine, theirs, "{}", name);
                }
            }
            for (mine, theirs) in merged.classes.iter().zip(&whole.classes) {
                prop_assert_eq!(mine.times.as_ref().map(counts), theirs.clone());
            }
            prop_assert_eq!(&merged.handshakes.times, &whole.handshakes);
        }

        #[test]
        fn corrupt_parts_do_not_panic(at in any::<prop::sample::Index>(), with in "[0-9a-z\\[\\]{},:.\"-]{0,3}") {
            let text = serde_json::to_string(&tallied(&[(0, 1, Some(900)), (1, 2, None)], 2)).unwrap();
            let at = at.index(text.len());
            let strange = format!("{}{with}{}", &text[..at], &text[(at + with.len()).min(text.len())..]);
            if let Ok(parts) = Parts::read(&strange) {
                let other = tallied(&[(0, 0, Some(5))], 2);
                let _ = Parts::merge(&[("a".to_owned(), parts), ("b".to_owned(), other)]);
            }
        }
    }

    #[test]
    fn worst_part_determines_validity() {
        let good = tallied(&[(0, 0, Some(10))], 1);
        let mut late = good.clone();
        late.outcome.verdict.weaken(Validity::ClientBound, "1 % began late");
        let named = |name: &str, parts: &Parts| (name.to_owned(), parts.clone());
        let merged = Parts::merge(&[named("one", &good), named("two", &late)]).unwrap();
        assert_eq!(merged.verdict.to_string(), "client-bound: two: 1 % began late");
        assert_eq!((merged.seconds, merged.rate), (2.0, 1.0), "over the common window");
        // Generators that began too far apart, or parts of another plan, do not merge.
        let mut early = good.clone();
        early.outcome.began_s -= 3.0;
        let merged = Parts::merge(&[named("one", &good), named("two", &early)]).unwrap();
        assert!(merged.verdict.to_string().contains("began 3.000 s apart"), "{}", merged.verdict);
        let mut other = good.clone();
        other.outcome.load = Loop::Closed { clients: 1, think_ms: 0.0 };
        let why = Parts::merge(&[named("one", &good), named("two", &other)]).unwrap_err();
        assert!(why.contains("two") && why.contains("not parts of the same load"), "{why}");
        let mut cut = good.clone();
        cut.seconds.pop();
        assert!(Parts::merge(&[named("one", &cut)]).unwrap_err().contains("one has 1 seconds"));
        assert!(Parts::merge(&[]).is_err());
    }
}
