//! Validity of a run, checked after Arlitt and Williamson, 4.4: could the clients generate the
//! load, did other processes use the machine, was the run stationary, does Little's law hold, and
//! do the counts of client, server and network agree?
//!
//! Pure: figures in, checks and a status out. A check that cannot be passed gives the reason, and has
//! no effect. A limit of the clients makes a run a lower bound ("censored"); any other failed check
//! makes it invalid. A machine that was not idle before a block is reported but has no effect by
//! itself, since other processes during the run are detected in the run.
//!
//! An invalid run may be repeated, but repeating until the figures look right would bias the result.
//! Failures of the server itself are therefore not repeated ([`is_worth_another`]). Without being told to, `ammeter run`
//! repeats a run only if other processes used the machine, which does not depend on the measured figures ([`is_repeated`]). Experiments of
//! the papers repeat all invalid runs, once for each start of the command: without that run, the others of its block count for nothing.

use ammeter_load::tally::Fault;
use amped_measure::stats::median;
use amped_measure::{Validity, Verdict};

use crate::archive::{Check, ClientStep, HostRun, Rules, Run, RunStatus, Step, Summary};

/// Everything known about a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) step: Step,
    /// Think time of a client in a closed loop: from a response to its next request, in seconds.
    pub(crate) think_s: f64,
    /// Requests per connection; 0 is unlimited.
    pub(crate) requests_per_connection: u64,
    /// Requests that a client sends together, or keeps outstanding on streams: the fewest and the most. The server may allow
    /// fewer streams than requested, but the client learns this only after its first requests.
    pub(crate) at_once: [u64; 2],
    /// Whether the clients speak HTTP/2.
    pub(crate) is_http2: bool,
    /// Result of the clients at this step against the null server.
    pub(crate) clients: Option<&'a ClientStep>,
    /// Whether the machine was idle before the block, and its busy share.
    pub(crate) idle: Option<(bool, f64)>,
    /// The load generator's verdict on itself.
    pub(crate) client: &'a Verdict,
    pub(crate) summary: &'a Summary,
    /// Bytes per second sent by the server's namespace, per tick during the load.
    pub(crate) ticks: &'a [f64],
    /// Connections on the server's side between established and completely answered, counted repeatedly from
    /// the start of the load to the last response. Each count comes with the seconds since the one before.
    pub(crate) in_flight: &'a [(f64, f64)],
    /// Whether others than the clients of the load have connections there: additional clients, or the server itself to an origin.
    pub(crate) has_other_connections: bool,
    /// The router's verdict on itself; `None` without a router.
    pub(crate) path: Option<&'a Verdict>,
    /// Exit status of the server, if it exited early.
    pub(crate) server_ended: Option<&'a str>,
    /// Each host's part in the run, the server's first; empty if everything runs on this machine.
    pub(crate) hosts: &'a [HostRun],
}

/// Makes all checks, and returns them with the run's status and its reasons.
pub(crate) fn judge(evidence: &Evidence<'_>) -> (Vec<Check>, RunStatus, Vec<String>) {
    let mut checks = vec![
        clients(evidence),
        client(evidence),
        idle(evidence),
        others(evidence),
        stationary(evidence),
        little(evidence),
        counts(evidence),
        bytes(evidence),
        path(evidence),
        server(evidence),
    ];
    if evidence.is_http2 {
        checks.push(protocol(evidence));
    }
    if !evidence.hosts.is_empty() {
        checks.push(clocks(evidence.hosts));
    }
    let (mut status, mut why) = (RunStatus::Valid, Vec::new());
    for check in checks.iter().filter(|check| check.holds == Some(false)) {
        let found = match check.name.as_str() {
            "clients" | "client" => RunStatus::Censored,
            "idle" => continue,
            _ => RunStatus::Invalid,
        };
        if found as u8 > status as u8 {
            status = found;
        }
        why.push(format!("{}: {}", check.name, check.says));
    }
    (checks, status, why)
}

/// Whether a run is invalid, but not because the server exited early or gave no valid response.
pub(crate) fn is_worth_another(run: &Run) -> bool {
    run.status == RunStatus::Invalid && !is_broken(run, "server")
}

/// Whether a run is repeated at the end of its block, after this number of attempts: if other processes, or a hypervisor, used the machine
/// or, with `retry`, if it is invalid for any reason but the server. Once only: on a machine that others always disturb, it would never end.
pub(crate) fn is_repeated(retry: bool, attempts: usize, last: &Run) -> bool {
    attempts == 1 && is_worth_another(last) && (retry || is_broken(last, "others"))
}

fn is_broken(run: &Run, name: &str) -> bool {
    run.checks.iter().any(|check| check.name == name && check.holds == Some(false))
}

fn check(name: &str, holds: impl Into<Option<bool>>, says: impl Into<String>) -> Check {
    Check { name: name.to_owned(), holds: holds.into(), says: says.into() }
}

fn clients(evidence: &Evidence<'_>) -> Check {
    match evidence.clients {
        None => check("clients", None, "not measured against a null server"),
        Some(step) if step.is_kept => {
            let says = format!("the clients start {:.0} connections/s against a null server", step.offered_rate);
            check("clients", true, says)
        }
        Some(step) => {
            let why = if step.why.is_empty() { String::new() } else { format!(": {}", step.why.join("; ")) };
            let says = format!("the load generator reached only {:.0}/s against a null server{why}", step.rate);
            check("clients", false, says)
        }
    }
}

fn client(evidence: &Evidence<'_>) -> Check {
    let says = evidence.client.evidence.join("; ");
    match evidence.client.validity {
        Validity::Valid => {
            let late = evidence.summary.lateness.p99_ms;
            check("client", true, format!("the schedule was kept: p99 lateness {late} ms"))
        }
        Validity::AtLeast | Validity::Disturbed | Validity::ClientBound | Validity::PathBound => {
            check("client", false, says)
        }
    }
}

fn idle(evidence: &Evidence<'_>) -> Check {
    match evidence.idle {
        None => check("idle", None, "not measured"),
        Some((is_clean, busy)) => {
            let says = format!(
                "{:.1} % of the CPU time was used while idle; the limit is {:.0} %",
                busy * 100.0,
                evidence.rules.idle_max * 100.0
            );
            check("idle", is_clean, says)
        }
    }
}

fn others(evidence: &Evidence<'_>) -> Check {
    let max = evidence.rules.others_max;
    let clients = evidence.hosts.iter().skip(1).map(|host| (format!(" of {}", host.host), host.others));
    let server = evidence.hosts.first().map_or(String::new(), |host| format!(" of {}", host.host));
    let all: Vec<(String, Option<f64>)> = [(server, evidence.summary.host.others)].into_iter().chain(clients).collect();
    let known = all.iter().filter_map(|(host, share)| Some((host, (*share)?)));
    match known.max_by(|a, b| a.1.total_cmp(&b.1)) {
        None => check("others", None, "CPU time by process is unknown without control groups"),
        Some((host, share)) => {
            // Stolen time is included in the share of others.
            let stolen = match evidence.summary.host.stolen {
                stolen if stolen >= 0.001 => format!(", of which a hypervisor stole {:.1} %", stolen * 100.0),
                _ => String::new(),
            };
            let says = format!(
                "other processes used {:.1} % of the CPU time{host}{stolen}; the limit is {:.0} %",
                share * 100.0,
                max * 100.0
            );
            check("others", share <= max, says)
        }
    }
}

/// Merging per-second data of several hosts and the monitor's record requires clock errors well below one second.
fn clocks(hosts: &[HostRun]) -> Check {
    const BOUND_MAX_S: f64 = 0.05;
    let says: Vec<String> = hosts.iter().map(|host| format!("{} {}", host.host, host.clock)).collect();
    let worst_s = hosts.iter().map(|host| host.clock.bound_s).fold(0.0, f64::max);
    let says = format!(
        "offsets from the clock of this machine: {}; the maximum error is {:.0} ms",
        says.join("; "),
        BOUND_MAX_S * 1e3
    );
    check("clocks", worst_s <= BOUND_MAX_S, says)
}

/// Fails on a trend that is statistically significant (Kendall's rank correlation with time, Mann
/// 1945) and larger than the rules allow (median of all pairwise slopes, Sen 1968). Both are free
/// of assumptions about the noise distribution.
fn stationary(evidence: &Evidence<'_>) -> Check {
    /// Minimum sample for a verdict.
    const TICKS_MIN: usize = 12;
    /// Significance threshold in standard deviations: 1 in 500 by chance.
    const CHANCE: f64 = 3.09;
    let ticks = evidence.ticks;
    let n = ticks.len();
    if n < TICKS_MIN {
        return check("stationary", None, format!("too short: {n} samples, {TICKS_MIN} are required"));
    }
    let (mut score, mut slopes) = (0_i64, Vec::with_capacity(n * (n - 1) / 2));
    for later in 1..n {
        for earlier in 0..later {
            let rise = ticks[later] - ticks[earlier];
            score += i64::from(rise > 0.0) - i64::from(rise < 0.0);
            slopes.push(rise / (later - earlier) as f64);
        }
    }
    let middle = |values: &[f64]| median(values.iter().copied()).unwrap_or(0.0);
    let count = n as f64;
    let deviations = score as f64 / (count * (count - 1.0) * (2.0 * count + 5.0) / 18.0).sqrt();
    let drift = middle(&slopes) * count / middle(ticks).abs().max(1e-9);
    let max = evidence.rules.drift_max;
    // A line fitted through the ticks may end below 0; medians of thirds cannot.
    let third = n / 3;
    let part = |ticks: &[f64]| middle(ticks) / middle(evidence.ticks).abs().max(1e-9);
    let says = format!(
        "bytes sent: {:.2} of the median in the first third of the run and {:.2} in the last ({:.1} standard \
         deviations); the maximum trend is {:.0} %",
        part(&ticks[..third]),
        part(&ticks[n - third..]),
        deviations.abs(),
        max * 100.0
    );
    check("stationary", deviations.abs() <= CHANCE || drift.abs() <= max, says)
}

/// N = X R (Little 1961). In a closed loop, N is the number of clients, and R includes the think time. In an open
/// loop with one request per connection, N is the kernel's count of connections from established to acknowledged,
/// half a round trip after the client at both ends. R is the client's time between the two events, including the
/// time until the client reads the response; the null server shows how long that is. Over an interval that begins
/// and ends with no connections the law holds exactly, so an overload is counted until its last response.
fn little(evidence: &Evidence<'_>) -> Check {
    let Summary { latency, connected, failed, ok, .. } = evidence.summary;
    let rate = evidence.summary.window.completed_rate;
    let max = evidence.rules.little_max;
    if *failed * 100 > *ok {
        return check("little", None, "more than 1 % failed, and their durations are unknown");
    }
    match evidence.step {
        Step::Clients(clients) => {
            // Each client waits for all requests that it sent together; a connection may end before there are that many.
            let together = evidence.at_once.map(|count| match evidence.requests_per_connection {
                0 => count.max(1),
                requests => count.clamp(1, requests),
            });
            let xr = rate * (latency.mean_ms / 1e3 + evidence.think_s);
            let says = match together {
                [_, 1] => format!("{clients} clients, and X R = {xr:.2}"),
                [least, most] if least == most => {
                    format!("{clients} clients with {most} requests each, and X R = {xr:.2}")
                }
                [least, most] => format!("{clients} clients with {least} to {most} requests each, and X R = {xr:.2}"),
            };
            let [least, most] = together.map(|count| f64::from(clients) * count as f64);
            let allowed = |n: f64| max * n.max(xr) + 0.5;
            check("little", least - allowed(least) <= xr && xr <= most + allowed(most), says)
        }
        Step::Rate(_) if evidence.requests_per_connection != 1 => {
            check("little", None, "connections carry several requests, so the duration of each is unknown")
        }
        Step::Rate(_) if evidence.has_other_connections => {
            check("little", None, "connections of others than these clients are counted with theirs")
        }
        Step::Rate(_) => {
            let counted = evidence.in_flight;
            if counted.len() < 5 {
                return check(
                    "little",
                    None,
                    format!("connections were counted {} times, 5 are required", counted.len()),
                );
            }
            let count = counted.len() as f64;
            let mean = counted.iter().map(|(_, one)| one).sum::<f64>() / count;
            let variance = counted.iter().map(|(_, one)| (one - mean).powi(2)).sum::<f64>() / (count - 1.0);
            // Average over the time in which connections were started, to match X.
            let seconds = evidence.summary.seconds.max(1e-9);
            let n = counted.iter().fold(0.0, |sum, (s, one)| sum + s * one) / seconds;
            let error = (variance / count).sqrt() * counted.iter().map(|(s, _)| s).sum::<f64>() / seconds;
            let of = |ms: f64| evidence.summary.established_rate * ms.max(0.0) / 1e3;
            let xr = of(latency.mean_ms - connected.mean_ms);
            let own = evidence.clients.map_or(0.0, |step| of(step.own_ms)).min(xr);
            let says = format!(
                "{n:.2} connections were counted (standard error {error:.2}), and X R = {xr:.2}, of which at \
                 most {own:.2} is the clients' own"
            );
            let allowed = max * n.max(xr) + 4.0 * error + 0.5;
            check("little", xr - own - allowed <= n && n <= xr + allowed, says)
        }
    }
}

/// Compares connections (client and kernel) and responses (client and server).
fn counts(evidence: &Evidence<'_>) -> Check {
    let Summary { network, server, ok, failed, parked, beside, .. } = evidence.summary;
    if *parked > 0 {
        return check("counts", None, "connections were parked before the load began, with one request each");
    }
    let replies = ok + beside.map_or(0, |beside| beside.ok);
    let mut says = Vec::new();
    let mut holds = None;
    let mut compare = |what: &str, mine: u64, theirs: u64| {
        // A failed request may be counted by one side only, and so may a connection that is in flight.
        let allowed = (mine as f64 * evidence.rules.counts_max).max(2.0) as u64 + failed;
        says.push(format!("{what}: {mine} counted by the clients, {theirs} by the server's side"));
        holds = Some(holds != Some(false) && mine.abs_diff(theirs) <= allowed);
    };
    if network.is_private
        && let Some(opens) = network.passive_opens
        && beside.is_none()
    {
        let established = (evidence.summary.established_rate * evidence.summary.seconds).round() as u64;
        compare("connections", established, opens);
    }
    if let Some(counted) = server.replies {
        compare("replies", replies, counted);
    }
    match holds {
        None => check("counts", None, "the kernel's counters include other programs, and the server publishes none"),
        holds => check("counts", holds, says.join("; ")),
    }
}

/// Compares bytes (client and server; client and network). Header sizes are known to within a few bytes per segment.
fn bytes(evidence: &Evidence<'_>) -> Check {
    /// IP and TCP headers with all options, and the Ethernet header.
    const HEADS: u64 = 20 + 60 + 14;
    /// Maximum request header, sent in the other direction over the same loopback device.
    const REQUEST: u64 = 1000;
    let Summary { network, server, ok, failed, received_bytes: mine, .. } = evidence.summary;
    if evidence.summary.parked > 0 || evidence.summary.beside.is_some() {
        return check("bytes", None, "other clients received bytes as well");
    }
    let slack = (*mine as f64 * evidence.rules.counts_max) as u64;
    let (mut holds, mut says) = (None, Vec::new());
    if let (Some(sent), 0) = (server.sent_bytes, *failed) {
        says.push(format!("{mine} received, {sent} sent by the server's count"));
        holds = Some(mine.abs_diff(sent) <= slack.max(4096));
    }
    if let (true, Some(out), Some(segments)) = (network.is_private, network.out_bytes, network.segments_out) {
        let most = mine + slack + segments * HEADS + (ok + failed) * REQUEST + (64 << 10);
        says.push(format!("{mine} received, {out} on the wire with headers and requests"));
        // A failed response may be on the wire but not with the client; never the other way round.
        let fits = out + slack >= *mine && (out <= most || *failed > 0);
        holds = Some(holds != Some(false) && fits);
    }
    match holds {
        None => check("bytes", None, "only the clients count bytes"),
        holds => check("bytes", holds, says.join("; ")),
    }
}

fn path(evidence: &Evidence<'_>) -> Check {
    match evidence.path {
        None => check("path", None, "no path between client and server is emulated"),
        Some(verdict) if verdict.exit_status() == 0 => check("path", true, "packets left on time"),
        Some(verdict) => check("path", false, verdict.to_string()),
    }
}

fn server(evidence: &Evidence<'_>) -> Check {
    match (evidence.server_ended, evidence.summary.ok) {
        (Some(how), _) => check("server", false, format!("it exited during the run: {how}")),
        (None, 0) => check("server", false, "no correct response"),
        (None, ok) => check("server", true, format!("it sent {ok} correct responses and was running at the end")),
    }
}

/// Fails if the server answered nothing at all over HTTP/2: it does not speak it. The load generator says why.
fn protocol(evidence: &Evidence<'_>) -> Check {
    let Summary { ok, failures, .. } = evidence.summary;
    let answers = [Fault::Status, Fault::Length, Fault::Content];
    if *ok == 0 && !answers.iter().any(|fault| failures.contains_key(fault.name())) {
        return check(PROTOCOL, false, evidence.client.broken.join("; "));
    }
    check(PROTOCOL, true, format!("HTTP/2 with {} streams on each connection", evidence.at_once[0]))
}

/// The check whose failure says that the server does not speak the protocol of the load.
pub(crate) const PROTOCOL: &str = "protocol";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{NetworkUse, Planned, ServerUse};
    use ammeter_load::tally::Spread;
    use ammeter_load::window::Window;

    const RULES: Rules = Rules { others_max: 0.1, idle_max: 0.1, drift_max: 0.1, counts_max: 0.01, little_max: 0.05 };

    /// 1000 responses per second for ten seconds, 2 ms each; all counts agree.
    fn summary() -> Summary {
        let times = |mean_ms| Spread { count: 10_000, mean_ms, ..Spread::default() };
        Summary {
            seconds: 10.0,
            established_rate: 1000.0,
            window: Window { completed_rate: 1000.0, ..Window::default() },
            ok: 10_000,
            received_bytes: 12_000_000,
            latency: times(2.5),
            connected: times(0.5),
            server: ServerUse { replies: Some(10_000), sent_bytes: Some(12_000_000), ..ServerUse::default() },
            network: NetworkUse {
                is_private: true,
                passive_opens: Some(10_000),
                segments_out: Some(80_000),
                out_bytes: Some(18_000_000),
                ..NetworkUse::default()
            },
            ..Summary::default()
        }
    }

    /// Judges the valid run after one change.
    fn with(change: impl FnOnce(&mut Evidence<'_>, &mut Summary)) -> (Vec<Check>, RunStatus, Vec<String>) {
        let mut figures = summary();
        let valid = Verdict::valid();
        let (ticks, in_flight): (Vec<f64>, Vec<(f64, f64)>) = (
            (0..50).map(|at| 1e6 + f64::from(at * 7919 % 13) * 1e4).collect(),
            (0..50).map(|at| (0.2, f64::from(at % 5))).collect(),
        );
        let scratch = summary();
        let mut evidence = Evidence {
            rules: &RULES,
            step: Step::Rate(1000.0),
            think_s: 0.0,
            requests_per_connection: 1,
            at_once: [1, 1],
            is_http2: false,
            clients: None,
            idle: Some((true, 0.01)),
            client: &valid,
            summary: &scratch,
            ticks: &ticks,
            in_flight: &in_flight,
            has_other_connections: false,
            path: None,
            server_ended: None,
            hosts: &[],
        };
        change(&mut evidence, &mut figures);
        judge(&Evidence { summary: &figures, ..evidence })
    }

    #[test]
    fn correct_run_is_valid() {
        let (checks, status, why) = with(|_, _| {});
        assert_eq!((status, why), (RunStatus::Valid, Vec::new()), "{checks:?}");
        let passed: Vec<&str> =
            checks.iter().filter(|check| check.holds == Some(true)).map(|check| check.name.as_str()).collect();
        assert_eq!(passed, ["client", "idle", "stationary", "little", "counts", "bytes", "server"]);
    }

    #[test]
    fn each_fault_fails_its_check() {
        let check = |change: &dyn Fn(&mut Evidence<'_>, &mut Summary), expected: RunStatus, names: &[&str]| {
            let (checks, status, why) = with(change);
            let broken: Vec<&str> =
                checks.iter().filter(|check| check.holds == Some(false)).map(|check| check.name.as_str()).collect();
            assert_eq!((status, &broken[..]), (expected, names), "{why:?}");
        };
        use RunStatus::{Censored, Invalid, Valid};
        let mut late = Verdict::valid();
        late.weaken(Validity::ClientBound, "late");
        check(&|evidence, _| evidence.client = Box::leak(Box::new(late.clone())), Censored, &["client"]);
        let weak = ClientStep {
            step: Step::Rate(1.0),
            offered_rate: 1.0,
            rate: 1.0,
            lateness_p99_ms: 9.0,
            own_ms: 0.0,
            is_kept: false,
            why: Vec::new(),
        };
        check(&|evidence, _| evidence.clients = Some(Box::leak(Box::new(weak.clone()))), Censored, &["clients"]);
        check(&|evidence, _| evidence.idle = Some((false, 0.5)), Valid, &["idle"]);
        check(&|_, figures| figures.host.others = Some(0.2), Invalid, &["others"]);
        check(
            &|evidence, _| evidence.ticks = &[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.1, 2.2],
            Invalid,
            &["stationary"],
        );
        check(&|_, figures| figures.latency.mean_ms = 9.0, Invalid, &["little"]);
        check(&|_, figures| figures.network.passive_opens = Some(9_000), Invalid, &["counts"]);
        check(&|_, figures| figures.server.replies = Some(10_300), Invalid, &["counts"]);
        check(&|_, figures| figures.server.sent_bytes = Some(11_000_000), Invalid, &["bytes"]);
        check(&|_, figures| figures.network.out_bytes = Some(11_000_000), Invalid, &["bytes"]);
        check(&|_, figures| figures.network.out_bytes = Some(90_000_000), Invalid, &["bytes"]);
        check(&|evidence, _| evidence.server_ended = Some("by SIGSEGV"), Invalid, &["server"]);
        let mut slow = Verdict::valid();
        slow.weaken(Validity::PathBound, "late packets");
        check(&|evidence, _| evidence.path = Some(Box::leak(Box::new(slow.clone()))), Invalid, &["path"]);
        // The worst failed check decides.
        check(
            &|evidence, figures| {
                evidence.client = Box::leak(Box::new(late.clone()));
                figures.host.others = Some(0.2);
            },
            Invalid,
            &["client", "others"],
        );
    }

    #[test]
    fn server_that_answers_nothing_lacks_protocol() {
        let of = |is_http2: bool, ok: u64, failed: Fault| {
            let mut client = Verdict::valid();
            client.broken.push("it does not speak HTTP/2".to_owned());
            let (checks, ..) = with(|evidence, figures| {
                (evidence.is_http2, evidence.client) = (is_http2, Box::leak(Box::new(client)));
                (figures.ok, figures.failures) = (ok, [(failed.name().to_owned(), 5)].into());
            });
            checks.into_iter().find(|check| check.name == PROTOCOL).map(|check| (check.holds, check.says))
        };
        assert_eq!(of(true, 0, Fault::Tls), Some((Some(false), "it does not speak HTTP/2".to_owned())));
        assert_eq!(of(true, 0, Fault::Status).unwrap().0, Some(true));
        assert_eq!(of(true, 1, Fault::Tls).unwrap().0, Some(true));
        assert_eq!(of(false, 0, Fault::Tls), None);
    }

    /// Four clients that each wait for up to 16 requests at 1000 per second.
    #[test]
    fn requests_at_once_of_closed_loop_satisfy_littles_law() {
        let of = |requests, pipeline: [u64; 2], mean_ms| {
            let (checks, ..) = with(|evidence, figures| {
                evidence.step = Step::Clients(4);
                (evidence.requests_per_connection, evidence.at_once) = (requests, pipeline);
                figures.latency.mean_ms = mean_ms;
            });
            checks.into_iter().find(|check| check.name == "little").unwrap().holds
        };
        let [one, sixteen] = [[1, 1], [16, 16]];
        assert_eq!([of(0, one, 4.0), of(0, sixteen, 64.0), of(8, sixteen, 32.0), of(1, sixteen, 4.0)], [Some(true); 4]);
        assert_eq!([of(0, sixteen, 4.0), of(0, one, 64.0), of(8, sixteen, 64.0)], [Some(false); 3]);
        // The server allows 8 streams of 16.
        assert_eq!([of(0, [8, 16], 32.0), of(0, [8, 16], 64.0)], [Some(true); 2]);
        assert_eq!([of(0, [8, 16], 28.0), of(0, [8, 16], 72.0), of(4, [8, 16], 32.0)], [Some(false); 3]);
    }

    /// Requests of 2 ms at 1000 per second, half of it the clients' own time; and an overload, which
    /// ends with the last connection.
    #[test]
    fn client_overhead_and_remaining_overload_satisfy_littles_law() {
        let of = |own_ms: f64, counted: &[(f64, f64)], latency_ms: f64| {
            let step = ClientStep { is_kept: true, own_ms, ..ClientStep::of(Step::Rate(1000.0)) };
            let (checks, ..) = with(|evidence, figures| {
                evidence.clients = Some(Box::leak(Box::new(step)));
                evidence.in_flight = Box::leak(counted.to_vec().into_boxed_slice());
                figures.latency.mean_ms = latency_ms;
            });
            checks.into_iter().find(|check| check.name == "little").unwrap().holds
        };
        let steady = |n: f64| vec![(0.1, n); 100];
        assert_eq!((of(0.0, &steady(1.0), 2.5), of(1.0, &steady(1.0), 2.5)), (Some(false), Some(true)));
        assert_eq!((of(1.0, &steady(0.0), 2.5), of(9.0, &steady(3.0), 2.5)), (Some(false), Some(false)));
        // With connections that no request of these clients explains, the law says nothing.
        let (checks, ..) = with(|evidence, _| {
            evidence.in_flight = Box::leak(steady(9.0).into_boxed_slice());
            evidence.has_other_connections = true;
        });
        assert_eq!(checks.into_iter().find(|check| check.name == "little").unwrap().holds, None);
        // Rises for ten seconds and falls for ten: a mean of 100 over the ten seconds of arrivals, and 100 ms each.
        let overload: Vec<(f64, f64)> = (0..200).map(|at| (0.1, f64::from(at.min(200 - at)))).collect();
        assert_eq!((of(0.0, &overload, 100.5), of(0.0, &overload[..100], 100.5)), (Some(true), Some(false)));
    }

    #[test]
    fn only_disturbed_runs_are_repeated() {
        let check = |broken: &[&str], status, expected: (bool, bool)| {
            let planned = Planned { id: "1-a0-1".into(), block: 1, arm: "a0".into(), step: Step::Rate(1.0), seed: 1 };
            let checks = ["others", "counts", "server"].map(|name| check(name, !broken.contains(&name), ""));
            let run = Run { status, checks: checks.to_vec(), ..Run::begun(planned, 0.0) };
            let repeated = [1, 2].map(|attempts| [true, false].map(|retry| is_repeated(retry, attempts, &run)));
            assert_eq!((repeated[0][0], repeated[0][1]), expected, "{broken:?}");
            assert_eq!((is_worth_another(&run), repeated[1]), (expected.0, [false, false]), "{broken:?}");
        };
        check(&[], RunStatus::Valid, (false, false));
        check(&[], RunStatus::Censored, (false, false));
        check(&["counts"], RunStatus::Invalid, (true, false));
        check(&["others"], RunStatus::Invalid, (true, true));
        check(&["others", "counts"], RunStatus::Invalid, (true, true));
        check(&["server"], RunStatus::Invalid, (false, false));
        check(&["server", "others"], RunStatus::Invalid, (false, false));
        // One of the lab's own programs failed.
        check(&[], RunStatus::Invalid, (true, false));
    }

    #[test]
    fn worst_of_several_hosts_counts() {
        use crate::archive::Offset;
        let host = |name: &str, others: Option<f64>, bound_s: f64| HostRun {
            host: name.to_owned(),
            others,
            clock: Offset { offset_s: 3.0, bound_s },
            ..HostRun::default()
        };
        let of = |hosts: Vec<HostRun>| {
            let (checks, status, _) = with(|evidence, _| evidence.hosts = &*Box::leak(hosts.into_boxed_slice()));
            let of = |name: &str| checks.iter().find(|check| check.name == name).cloned().unwrap();
            (status, of("others"), of("clocks"))
        };
        let (status, others, clocks) = of(vec![host("s", None, 1e-4), host("a", Some(0.05), 1e-4)]);
        assert_eq!((status, others.holds, clocks.holds), (RunStatus::Valid, Some(true), Some(true)));
        assert!(clocks.says.contains("s +3000.000 ms, to within 0.100 ms"), "{}", clocks.says);
        let (status, others, _) =
            of(vec![host("s", None, 1e-4), host("a", Some(0.5), 1e-4), host("b", Some(0.01), 1e-4)]);
        assert!(status == RunStatus::Invalid && others.says.contains("50.0 % of the CPU time of a"), "{others:?}");
        let (status, _, clocks) = of(vec![host("s", None, 1e-4), host("a", None, 0.2)]);
        assert_eq!((status, clocks.holds), (RunStatus::Invalid, Some(false)));
    }

    #[test]
    fn closed_loop_concurrency_equals_clients() {
        let of = |clients: u32, think_s: f64| {
            let (checks, ..) = with(|evidence, _| {
                evidence.step = Step::Clients(clients);
                evidence.think_s = think_s;
            });
            checks.iter().find(|check| check.name == "little").unwrap().holds
        };
        // 1000 per second, 2.5 ms each.
        assert_eq!(
            (of(2, 0.0), of(3, 0.0), of(20, 0.0), of(102, 0.1)),
            (Some(true), Some(true), Some(false), Some(true))
        );
    }

    #[test]
    fn noise_is_no_trend() {
        // 200 series without a trend: almost none may be reported as having one.
        let mut random = amped_measure::stats::Random(1);
        let found = (0..200).filter(|_| {
            let ticks: Vec<f64> = (0..30).map(|_| 1.0 + random.fraction()).collect();
            let (checks, ..) = with(|evidence, _| evidence.ticks = &*Box::leak(ticks.into_boxed_slice()));
            checks.iter().any(|check| check.name == "stationary" && check.holds == Some(false))
        });
        assert!(found.count() <= 4);
    }
}
