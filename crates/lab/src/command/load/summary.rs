//! Formats the result of a run or of a sweep as text.

use std::fmt::Write;

use ammeter_load::handshake::Handshakes;
use ammeter_load::knee;
use ammeter_load::outcome::{ClassOutcome, Loop, Outcome};
use ammeter_load::tally::{Fault, Spread, Used};
use ammeter_load::window::{Pace, Second, UNSERVED_MAX};
use amped_measure::Verdict;
use serde::Serialize;

/// The result of a sweep.
#[derive(Serialize)]
pub(super) struct Swept {
    /// Each run, in order.
    pub(super) runs: Vec<Outcome>,
    /// The capacity, if requested.
    pub(super) capacity: Option<knee::Capacity>,
    pub(super) verdict: Verdict,
}

/// A second on one line of less than 80 columns: rates, latencies, open connections,
/// and a mark if the generator itself is late.
pub(super) fn line(second: &Second) -> String {
    let Second { at_s, length_s, p50_ms, p99_ms, lateness_p99_ms, backlog, .. } = second;
    let [begun, ok, failed] = [second.started, second.ok, second.failed].map(|count| short(second.rate(count).round()));
    let [p50, p99] = [p50_ms, p99_ms].map(|ms| short(*ms));
    format!(
        "{:>5}s offer {begun:>5} ok {ok:>5} fail {failed:>5}/s p50 {p50:>5} p99 {p99:>5} ms open {:>5}{}",
        short((at_s + length_s).round()),
        short(*backlog as f64),
        if *lateness_p99_ms > LATE_MS { " late" } else { "" }
    )
}

/// The p99 lateness from which the generator is marked as late, in milliseconds.
pub(super) const LATE_MS: f64 = 1.0;

/// A non-negative figure in at most five characters.
pub(super) fn short(value: f64) -> String {
    match value {
        value if !value.is_finite() => "-".to_owned(),
        value if value.fract() == 0.0 && value < 1e5 => format!("{value:.0}"),
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value if value < 99_999.5 => format!("{value:.0}"),
        value => {
            let units = [(1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G"), (1e15, 1e12, "T")];
            let unit = units.into_iter().find(|(end, scale, _)| value < end - scale / 2.0);
            unit.map_or_else(|| "huge".to_owned(), |(_, scale, name)| format!("{:.0}{name}", value / scale))
        }
    }
}

/// A result in a sentence: offered and completed load, and what the server did with the rest.
pub(super) fn headline(outcome: &Outcome) -> String {
    let window = &outcome.window;
    let mut text = String::new();
    if outcome.interrupted {
        let _ = write!(text, "Interrupted after {:.1} s. ", window.seconds);
    }
    let several = window.requests_per_connection.filter(|requests| *requests > 1);
    let completions = several.map_or("", |_| " requests");
    let _ = match &outcome.load {
        Loop::Open { .. } => {
            let (connections, each) = match several {
                Some(requests) => (" connections", format!(", {requests} requests each")),
                None => ("", String::new()),
            };
            let planned = outcome.planned as f64 / window.seconds.max(1e-9);
            let late = if window.offered_rate < 0.99 * planned && !outcome.interrupted {
                format!(" (planned: {}/s)", per_second(planned))
            } else {
                String::new()
            };
            let share = window.completed_share.unwrap_or(0.0) * 100.0;
            write!(
                text,
                "Offered {}{connections}/s{each}{late}. Completed {}{completions}/s ({} %)",
                per_second(window.offered_rate),
                per_second(window.completed_rate),
                if share > 0.0 && share < 9.95 { format!("{share:.1}") } else { format!("{share:.0}") },
            )
        }
        Loop::Closed { clients, .. } => {
            write!(text, "Completed {}/s with {clients} clients", per_second(window.completed_rate))
        }
    };
    if window.pace == Pace::FellBehind {
        let _ = write!(text, "; the server fell behind: backlog {} at the end", grouped(window.backlog));
    } else if window.pace == Pace::Failed && shed(outcome) {
        let _ = write!(text, "; the server shed load");
    } else if window.completed_share.is_some_and(|share| share < 0.95) && window.backlog > 1 {
        let _ = write!(text, "; backlog {} at the end", grouped(window.backlog));
    }
    if outcome.unserved_share() > UNSERVED_MAX {
        let _ = write!(text, "; {:.0} % failed ({})", outcome.unserved_share() * 100.0, failures(outcome));
    }
    text.push('.');
    if outcome.ok > 0 {
        let Spread { p50_ms, p99_ms, .. } = outcome.latency;
        let _ = write!(text, " Latency p50 {}, p99 {}", time(p50_ms), time(p99_ms));
    }
    text
}

/// Whether most failures were refusals for lack of capacity: no connection, or a status
/// that says so (RFC 9110, 15.6.4; RFC 6585, 4).
fn shed(outcome: &Outcome) -> bool {
    let refused: u64 = [Fault::Refused, Fault::Abandoned].into_iter().map(|fault| outcome.failed_by(fault)).sum();
    let busy: u64 = [429, 503].into_iter().filter_map(|status| outcome.status_codes.get(&status)).sum();
    2 * (refused + busy.min(outcome.failed_by(Fault::Status))) > outcome.failed()
}

/// Failures by kind, with incorrect statuses by number, and the requests that were not sent.
pub(super) fn failures(outcome: &Outcome) -> String {
    let kind = |(fault, count): &(Fault, u64)| match fault {
        Fault::Status => {
            let errors = outcome.status_codes.iter().filter(|(status, _)| **status >= 400);
            let errors: Vec<String> = errors.map(|(status, count)| format!("{status}: {}", grouped(*count))).collect();
            format!("status {} ({})", grouped(*count), errors.join(", "))
        }
        fault => format!("{} {}", fault.name(), grouped(*count)),
    };
    let unsent = (outcome.unserved() > outcome.failed()).then(|| format!("not sent {}", grouped(outcome.unsent)));
    outcome.failures.iter().map(kind).chain(unsent).collect::<Vec<_>>().join(", ")
}

/// A count with thousands separators.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate with three digits, or without fraction.
fn per_second(rate: f64) -> String {
    match rate {
        100.0.. => grouped(rate.round() as u64),
        10.0.. => format!("{rate:.1}"),
        _ => format!("{rate:.2}"),
    }
}

/// A time with two or three digits.
fn time(ms: f64) -> String {
    match ms {
        9950.0.. => format!("{:.1} s", ms / 1e3),
        1000.0.. => format!("{:.2} s", ms / 1e3),
        100.0.. => format!("{ms:.0} ms"),
        10.0.. => format!("{ms:.1} ms"),
        1.0.. => format!("{ms:.2} ms"),
        _ => format!("{ms:.3} ms"),
    }
}

/// A result in a few lines.
pub(super) fn summary(url: &str, outcome: &Outcome) -> String {
    let Outcome { planned, started, window, .. } = outcome;
    let mut text = headline(outcome);
    text.push('\n');
    // Writing to a string cannot fail.
    let _ = match &outcome.load {
        Loop::Open { arrivals, rate: target, seed, shape } => {
            let mut shape_text = String::new();
            for dispersion in &shape.dispersion {
                let _ = write!(shape_text, ", dispersion {:.2} at {} ms", dispersion.index, dispersion.window_ms);
            }
            if let Some(hurst) = shape.hurst {
                let _ = write!(shape_text, ", Hurst {hurst:.2}");
            }
            writeln!(
                text,
                "{url}  open loop, {arrivals}, seed {seed}{shape_text}\n\
                 offered     {}/s of {target:.1}/s: {started} of {planned} connections in {:.1} s",
                window.offered_rate, window.seconds
            )
        }
        Loop::Closed { clients, think_ms } => writeln!(
            text,
            "{url}  CLOSED loop, {clients} clients, think time {think_ms} ms: the server sets the pace, and latencies omit \
             the requests that an open loop would have sent meanwhile\n\
             connections {started} in {:.1} s",
            window.seconds
        ),
    };
    let _ = writeln!(
        text,
        "completed   {}/s: {} in the window of {:.1} s; received {:.2} MB/s",
        window.completed_rate,
        window.completed,
        window.seconds,
        window.received_mb_per_s()
    );
    if window.backlog > 0 || window.drain_completed > 0 || window.drain_failed > 0 {
        let growth = match window.backlog_growth_rate {
            Some(growth) => format!(", {growth:+}/s over the window"),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "backlog     {} connections at the end of the window{growth}\n\
             drain       {:.2} s: {} completed, {} failed",
            window.backlog, window.drain_s, window.drain_completed, window.drain_failed
        );
    }
    let kinds = if outcome.unserved() > 0 { format!(": {}", failures(outcome)) } else { String::new() };
    let _ = writeln!(text, "failed      {}{kinds}", outcome.unserved());
    if !outcome.status_codes.is_empty() {
        let codes: Vec<String> =
            outcome.status_codes.iter().map(|(status, count)| format!("{status} {count}")).collect();
        let _ = writeln!(text, "status      {}", codes.join(", "));
    }
    if outcome.unsent > 0 {
        let why = match outcome.planned {
            0 => "their connections ended early, and the clients went on with new ones",
            _ => "their connections failed or ended early",
        };
        let _ = writeln!(text, "not sent    {}: {why}", outcome.unsent);
    }
    if outcome.stray > 0 {
        let _ = writeln!(
            text,
            "stray       {} connections received more data than requested: are bodies longer than Content-Length?",
            outcome.stray
        );
    }
    for parked in &outcome.parked {
        let _ = writeln!(text, "parked      {parked}");
    }
    if let Some(streams) = outcome.streams {
        let _ = writeln!(text, "streams     the server allows {streams} per connection");
    }
    if let (Some(why), 1..) = (&outcome.tls, outcome.ok) {
        let _ = writeln!(text, "TLS         {why}");
    }
    let handshakes = &outcome.handshakes;
    if handshakes.all.count > 0 {
        let _ = writeln!(text, "handshakes  {}", counted(handshakes));
    }
    if let Some(why) = &handshakes.warning {
        let _ = writeln!(text, "warning     {why}");
    }
    let rows = [
        ("latency", &outcome.latency),
        ("first byte", &outcome.first_byte),
        ("connected", &outcome.connected),
        ("secured", &outcome.secured),
        ("lateness", &outcome.lateness),
    ];
    let rows = rows.into_iter().chain(handshake_rows(handshakes));
    let _ = writeln!(
        text,
        "{:<12}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}",
        "ms", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"
    );
    for (name, spread) in rows {
        let Spread { count, mean_ms, p50_ms, p90_ms, p95_ms, p99_ms, p999_ms, max_ms } = spread;
        if *count > 0 {
            let _ = writeln!(
                text,
                "{name:<12}{mean_ms:>9}{p50_ms:>9}{p90_ms:>9}{p95_ms:>9}{p99_ms:>9}{p999_ms:>9}{max_ms:>10}"
            );
        }
    }
    text += &class_lines(&outcome.classes);
    let share = |used: &Used| used.cpu_s / used.elapsed_s.max(1e-9) * 100.0;
    let establisher = match outcome.load {
        Loop::Open { .. } => format!(
            "opening connections took {:.0} % of a core{}, ",
            share(&outcome.establisher),
            if outcome.real_time {
                " (SCHED_FIFO)"
            } else {
                " (without SCHED_FIFO: run as root or grant CAP_SYS_NICE)"
            }
        ),
        Loop::Closed { .. } => String::new(),
    };
    let handler = share(&outcome.handler);
    let each = if outcome.ok > 0 { format!("{:.1} us of CPU per response; ", outcome.cpu_us()) } else { String::new() };
    let _ = writeln!(text, "client      {each}{establisher}handling connections took {handler:.0} % of a core");
    let _ = writeln!(text, "verdict     {}", outcome.verdict);
    text
}

/// The numbers of full handshakes and of resumed sessions.
pub(super) fn counted(handshakes: &Handshakes) -> String {
    let Handshakes { full, resumed, resumed_share, requested_share, .. } = handshakes;
    let percent = |share: f64| (share * 1e3).round() / 10.0;
    let requested = if *requested_share > 0.0 {
        format!(" ({} %; {} % requested)", percent(resumed_share.unwrap_or(0.0)), percent(*requested_share))
    } else {
        String::new()
    };
    format!("{} full, {} resumed{requested}", grouped(full.count), grouped(resumed.count))
}

/// The times of all handshakes, and if there are both kinds, of each.
pub(super) fn handshake_rows(handshakes: &Handshakes) -> impl Iterator<Item = (&'static str, &Spread)> {
    let Handshakes { all, full, resumed, .. } = handshakes;
    let are_both = full.count > 0 && resumed.count > 0;
    let kinds = [("  full", full), ("  resumed", resumed)];
    [("handshake", all)].into_iter().chain(kinds.into_iter().filter(move |_| are_both))
}

/// A line per class, for the first ones if there are many.
fn class_lines(classes: &[ClassOutcome]) -> String {
    const SHOWN: usize = 20;
    if classes.is_empty() {
        return String::new();
    }
    let width = classes.iter().take(SHOWN).map(|class| class.class.chars().count()).max().unwrap_or(0).clamp(12, 60);
    let mut text = format!("{:<width$} {:>9}{:>10}{:>10}{:>10}\n", "class", "correct", "failed", "p50 ms", "p99 ms");
    for ClassOutcome { class, ok, failed, latency, .. } in classes.iter().take(SHOWN) {
        let times = latency.as_ref().filter(|times| times.count > 0);
        let times = times.map(|times| format!("{:>10}{:>10}", times.p50_ms, times.p99_ms)).unwrap_or_default();
        text += &format!("{class:<width$} {ok:>9}{failed:>10}{times}\n");
    }
    if classes.len() > SHOWN {
        text += &format!("and {} more classes; --json lists all\n", classes.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_line_fits_eighty_columns() {
        for exponent in -3..=17 {
            for digits in [1.0, 4.99, 9.4, 9.996, 9.99996] {
                let amount = digits * 10f64.powi(exponent);
                let whole = amount as u64;
                assert!(short(amount).chars().count() <= 5, "{amount}: {}", short(amount));
                let second = Second {
                    at_s: amount,
                    length_s: 1.0,
                    started: whole,
                    ok: whole,
                    failed: whole,
                    backlog: whole,
                    p50_ms: amount,
                    p99_ms: amount,
                    lateness_p99_ms: amount,
                    ..Second::default()
                };
                assert!(line(&second).chars().count() < 80, "{}", line(&second));
            }
        }
        let second = Second {
            at_s: 4.0,
            length_s: 1.0,
            started: 1000,
            ok: 998,
            p50_ms: 0.123,
            p99_ms: 61.04,
            ..Second::default()
        };
        assert_eq!(line(&second), "    5s offer  1000 ok   998 fail     0/s p50  0.12 p99  61.0 ms open     0");
    }
}
