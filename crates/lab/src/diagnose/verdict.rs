//! Turns the analysis of all resources into a diagnosis: the bottleneck, the evidence for it, and what would refute it.
//!
//! The order of `Kind` is that of causes: a server with a saturated disk also has helpers that all wait for it,
//! exhausted descriptors and an overflowing listen queue. The answer is the first resource that is saturated above the
//! knee and was not below; later ones are its consequences. If the client was saturated and nothing of the server was,
//! the answer is the client. If nothing was, the answer says so.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};

use crate::analyse::use_of::{Kind, is_lock};
use crate::analyse::{Analysis, Found, Pool};

/// The outcome of a diagnosis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// A resource of the server limits it.
    Bottleneck,
    /// The load generator was saturated first.
    ClientBound,
    /// The server sustained the whole load.
    Borne,
    /// Throughput is limited, and no known resource is saturated.
    NotFound,
}

/// How strong the evidence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Confidence {
    /// No evidence.
    None,
    /// The resource was saturated, but others may be too.
    Likely,
    /// The resource was saturated nearly always, and the plateau agrees with
    /// the ceiling predicted from below the knee, if one could be predicted.
    Strong,
    /// An intervention changed the resource's capacity, and throughput followed.
    Confirmed,
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Confidence::None => "none",
            Confidence::Likely => "likely",
            Confidence::Strong => "strong",
            Confidence::Confirmed => "confirmed",
        })
    }
}

/// The result of an intervention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// Description of the change.
    pub(crate) what: String,
    /// Whether it changed the suspected resource.
    pub(crate) is_suspect: bool,
    /// Capacity after the change, as a ratio to that before.
    pub(crate) capacity: f64,
    /// Throughput after the change, as a ratio to that before, for each pair of runs.
    pub(crate) throughputs: Vec<f64>,
    /// The logarithm of the throughput ratio over that of the capacity ratio: 1 for a bottleneck, 0 otherwise.
    pub(crate) elasticity: f64,
    /// Lower end of its interval.
    pub(crate) low: f64,
    /// Upper end of its interval.
    pub(crate) high: f64,
}

/// The diagnosis of a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Diagnosis {
    /// The label of the arm, if an archive has several.
    pub(crate) arm: String,
    /// The outcome.
    pub(crate) answer: Answer,
    /// The kind of resource, if one was found.
    pub(crate) kind: Option<Kind>,
    /// The name of the resource.
    pub(crate) resource: Option<String>,
    /// The answer as a sentence.
    pub(crate) sentence: String,
    /// How strong the evidence is.
    pub(crate) confidence: Confidence,
    /// The share of the machine's CPU time that other processes used in each run in which it is known.
    pub(crate) others: Vec<f64>,
    /// The evidence, a line each.
    pub(crate) evidence: Vec<String>,
    /// Other saturated resources, which are consequences.
    pub(crate) follows: Vec<String>,
    /// Observations that would refute the answer, or what to try if there is none.
    pub(crate) refuted_by: Vec<String>,
    /// The interventions.
    pub(crate) trials: Vec<Trial>,
    /// The analysis behind the answer.
    pub(crate) analysis: Analysis,
}

/// Whether a resource was saturated above the knee, and not below it.
fn is_at_its_end(found: &Found, pools: &[Pool], is_client_bound: bool) -> bool {
    // A queue overflows in bursts, and refused connections are counted.
    let enough = if found.kind == Kind::AcceptQueue { 0.2 } else { 0.5 };
    let fits = match found.kind {
        Kind::DiskLimit => found.share_above.is_some_and(|share| share >= 0.5),
        // A pool is not exhausted if its threads run, or if it grows with the connections. A pool whose threads wait
        // for other threads or for the network is not the cause of that wait.
        Kind::Pool => pools.iter().find(|pool| pool.name == found.name).is_some_and(|pool| {
            let place = pool.asleep.first().map_or("", |(place, _)| place);
            pool.is_fixed
                && pool.running <= 0.5 * (pool.threads - pool.resting)
                && !is_lock(place)
                && !place.contains("sk_stream_wait")
                // Threads that wait in receive wait for clients that send no request.
                && !(is_client_bound && ["wait_woken", "sk_wait_data"].contains(&place))
        }),
        _ => true,
    };
    // A thread that waits for a descriptor sleeps as well.
    let is_first = !matches!(found.kind, Kind::Lock | Kind::Pool) || found.full_without_descriptors >= 0.2;
    fits && is_first && found.full_above >= enough && found.full_below <= found.full_above / 2.0
}

/// Diagnoses a server.
pub(crate) fn judge(arm: &str, analysis: Analysis) -> Diagnosis {
    let bound = |is_certain: bool| {
        let said = analysis.client_bound.iter().filter(|bound| bound.is_certain || !is_certain);
        analysis.above > 0 && 2 * said.count() >= analysis.above
    };
    let resources = analysis.resources.iter();
    let mut at_end: Vec<&Found> =
        resources.filter(|found| is_at_its_end(found, &analysis.pools, bound(true))).collect();
    at_end.sort_by(|a, b| a.kind.cmp(&b.kind).then(b.full_above.total_cmp(&a.full_above)));
    let first = at_end.first().copied().filter(|_| analysis.is_limited);
    // A lack of load outranks cores and the network. A generator that was only late
    // is the answer if throughput is limited and nothing else explains it.
    let is_client = match first {
        Some(found) => bound(true) && found.kind > Kind::Client,
        None => bound(true) || (bound(false) && analysis.is_limited),
    };
    let mut evidence = vec![knee_line(&analysis)];
    evidence.extend(behind_line(&analysis));
    let plain = |answer, sentence: String, refuted_by: &[&str], evidence: Vec<String>, kind: Option<Kind>| Diagnosis {
        arm: arm.to_owned(),
        answer,
        kind,
        resource: None,
        sentence,
        confidence: match kind {
            Some(_) if bound(true) => Confidence::Strong,
            Some(_) => Confidence::Likely,
            None => Confidence::None,
        },
        others: Vec::new(),
        evidence,
        follows: Vec::new(),
        refuted_by: refuted_by.iter().map(|&line| line.to_owned()).collect(),
        trials: Vec::new(),
        analysis: analysis.clone(),
    };
    if is_client {
        let mut why: Vec<String> = analysis.client_bound.iter().map(|bound| bound.why.clone()).collect();
        why.dedup();
        evidence.extend(why);
        return plain(
            Answer::ClientBound,
            format!(
                "client-bound: the load generator was saturated before the server, which completes at least {:.0}/s",
                analysis.plateau
            ),
            &[
                "a second generator (--generators 2), another machine for the clients, or lower rates: if throughput does not \
               change, the server is the limit",
            ],
            evidence,
            Some(Kind::Client),
        );
    }
    let Some(found) = first else {
        evidence.extend(fullest_line(&analysis));
        evidence.extend(waiting_line(&analysis));
        return if !analysis.is_limited {
            plain(
                Answer::Borne,
                format!(
                    "no bottleneck at these loads: the server sustains every offered load, up to {:.0}/s",
                    analysis.plateau
                ),
                &["higher rates (--rates): where throughput stops following, some resource is saturated"],
                evidence,
                None,
            )
        } else {
            plain(
                Answer::NotFound,
                format!(
                    "not found: throughput is limited to {:.0}/s, and no known resource is saturated",
                    analysis.plateau
                ),
                &[
                    "longer runs: --duration 10s --repeat 5, and smaller steps around the knee",
                    "root, which is needed to see where threads sleep",
                    "an intervention, which changes a resource and measures the effect: --intervene, with --start and --setting for settings of the server",
                    "a profile of its CPU time: ammeter profile --port PORT; and services on other hosts that it may \
                     wait for: a database, a name server, an upstream",
                ],
                evidence,
                None,
            )
        };
    };
    evidence.push(use_line(found, &analysis));
    evidence.extend(demand_line(found, &analysis));
    evidence.extend(waiting_line(&analysis));
    evidence.extend(analysis.pools.iter().filter(|pool| pool.threads - pool.resting >= 0.5).map(pool_line));
    let rivals = at_end.iter().skip(1).filter(|other| other.kind < Kind::Lock && other.kind != found.kind);
    let agrees = found.demand.is_none_or(|demand| demand.ceiling.is_none() || demand.allows(analysis.plateau, 0.2));
    // An answer for lack of any other explanation is weaker.
    let is_strong = found.kind != Kind::Inside
        && analysis.knee.is_some()
        && found.full_above >= 0.8
        && agrees
        && rivals.count() == 0;
    // Requests that wait for the bottleneck stay in the server meanwhile, so `Inside` is not listed.
    let follows = at_end.iter().skip(1).filter(|other| other.kind != Kind::Inside);
    Diagnosis {
        arm: arm.to_owned(),
        answer: Answer::Bottleneck,
        kind: Some(match found.kind {
            Kind::Inside if is_one_at_a_time(&analysis) => Kind::Lock,
            kind => kind,
        }),
        resource: Some(found.name.clone()),
        sentence: sentence(found, &analysis),
        confidence: if is_strong { Confidence::Strong } else { Confidence::Likely },
        others: Vec::new(),
        evidence,
        follows: follows
            .map(|other| format!("{}, {:.0} % of the time", thing(other), other.full_above * 100.0))
            .collect(),
        refuted_by: refuted_by(found.kind),
        trials: Vec::new(),
        analysis: analysis.clone(),
    }
}

impl Diagnosis {
    /// Lowers the confidence for this reason.
    pub(crate) fn doubt(&mut self, why: String) {
        self.confidence = self.confidence.min(Confidence::Likely);
        self.evidence.push(why);
    }

    /// Records the share of the machine's CPU time that other processes used in each run; up to `max` is allowed. A
    /// share that they used in every run weakens any answer. One that they used in part of the runs weakens all but
    /// [`Kind::Backend`]: a backend on this machine that still works off an overload counts as another process.
    pub(crate) fn share_with(&mut self, others: Vec<f64>, max: f64) {
        let over = others.iter().filter(|share| **share > max).count();
        let (least, most) =
            others.iter().fold((f64::MAX, 0.0_f64), |(least, most), &share| (least.min(share), most.max(share)));
        let way_out =
            format!("the limit is {}; they may be the cause; stop them and repeat the diagnosis", percent(max));
        if over > 0 && over == others.len() {
            self.doubt(format!(
                "other processes used {} or more of the machine's CPU time in every run; {way_out}",
                percent(least)
            ));
        } else if over > 0 && self.kind != Some(Kind::Backend) {
            self.doubt(format!(
                "other processes used up to {} of the machine's CPU time in {over} of {} runs; {way_out}",
                percent(most),
                others.len()
            ));
        }
        self.others = others;
    }

    /// Applies the results of the interventions: they confirm the answer, weaken it, or supply one if none was found.
    pub(crate) fn try_it(&mut self, trials: Vec<Trial>) {
        for trial in &trials {
            self.evidence.push(format!(
                "with {}, throughput is {} of what it was: elasticity {:.2} [{:.2}, {:.2}]",
                trial.what,
                trial.throughputs.iter().map(|part| format!("{part:.2}")).collect::<Vec<_>>().join(", "),
                trial.elasticity,
                trial.low,
                trial.high
            ));
        }
        if let Some(trial) = trials.iter().find(|trial| trial.is_suspect) {
            if trial.elasticity >= 0.5 && trial.low > 0.0 {
                self.confidence = Confidence::Confirmed;
            } else if trial.high < 0.3 {
                self.confidence = Confidence::Likely;
                self.evidence.push("the change had little effect: another resource may limit as well".to_owned());
            }
        } else if self.answer == Answer::NotFound
            && let Some(trial) = trials.iter().filter(|trial| trial.low > 0.2).max_by(|a, b| a.low.total_cmp(&b.low))
        {
            self.answer = Answer::Bottleneck;
            self.confidence = Confidence::Confirmed;
            self.sentence = format!("throughput follows the change: with {}, it changes as well", trial.what);
        }
        self.trials = trials;
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Describes a resource.
fn thing(found: &Found) -> String {
    let name = &found.name;
    match found.kind {
        Kind::Quota => format!("the CPU quota of the control group {name}"),
        Kind::DiskLimit => format!("the limit of the control group on {name}"),
        Kind::Disk => format!("the disk {name}"),
        Kind::Memory => format!("memory {name}"),
        Kind::Thread => format!("the thread {name}"),
        Kind::Lock => format!("a lock {name}"),
        Kind::Pool => format!("the threads {name}"),
        Kind::Client => "the client".to_owned(),
        Kind::Core => format!("core {name}"),
        Kind::Softirq => format!("soft interrupts on core {name}"),
        Kind::Network => format!("the network {name}"),
        Kind::Descriptors => format!("descriptors {name}"),
        Kind::AcceptQueue => format!("the accept queue {name}"),
        Kind::Backend => format!("the backend {name}"),
        Kind::Inside => "the server's own code".to_owned(),
    }
}

/// Number of requests that the server works on at a time, if known.
fn at_a_time(analysis: &Analysis) -> Option<f64> {
    analysis.at_a_time.filter(|count| *count >= 0.5)
}

/// Whether the server works on one request at a time, which makes it a lock, whatever the program calls it.
fn is_one_at_a_time(analysis: &Analysis) -> bool {
    let is_a_core = (0.85..1.15).contains(&analysis.waiting.server_cpu);
    is_a_core || at_a_time(analysis).is_some_and(|count| count < 1.8)
}

fn sentence(found: &Found, analysis: &Analysis) -> String {
    let plateau = format!("{:.0} requests/s", analysis.plateau);
    let full = percent(found.full_above);
    let pool = analysis.pools.iter().find(|pool| pool.name == found.name);
    let waits = match found.kind {
        Kind::Quota => format!("it is used up in {full} of its periods"),
        Kind::DiskLimit => "the server waits for it".to_owned(),
        Kind::Disk => {
            format!("it is busy {} of the time and the server waits for it", percent(found.share_above.unwrap_or(0.0)))
        }
        Kind::Memory => "threads wait for pages that were evicted".to_owned(),
        Kind::Thread => {
            format!("it runs {} of the time, and is runnable for longer", percent(found.share_above.unwrap_or(0.0)))
        }
        Kind::Lock => {
            let sleeper = sleeper(analysis);
            let place = sleeper.map_or_else(|| "works".to_owned(), |place| format!("sleeps in {place}"));
            format!("one thread at a time {place} while others wait for it: the server blocks itself")
        }
        Kind::Pool => {
            let place = pool.and_then(|pool| pool.asleep.first()).map_or("wait", |(place, _)| place);
            match pool {
                Some(pool) if pool.on_disk > 0.5 * pool.threads => format!("all {:.0} wait for a disk", pool.threads),
                Some(pool) => format!("all {:.0} are in use, mostly asleep in {place}", pool.threads),
                None => "all of them are in use".to_owned(),
            }
        }
        Kind::Client => "it is saturated".to_owned(),
        Kind::Core => "it has no idle time, and the server waits for it".to_owned(),
        Kind::Softirq => "it is busy all of the time".to_owned(),
        Kind::Network => {
            let waiting = &analysis.waiting;
            let by = if waiting.receive_window >= 0.5 {
                "the clients' windows are closed"
            } else if waiting.send_buffer >= 0.5 {
                "the server's send buffers are too small"
            } else {
                "the path is full"
            };
            format!(
                "{:.0} connections have bytes in flight, clients receive {:.1} Mbit/s, and {by}",
                waiting.sending,
                waiting.received_bytes_per_s * 8.0 / 1e6
            )
        }
        Kind::Descriptors => "the limit is reached".to_owned(),
        Kind::AcceptQueue => "connections are dropped while the server has idle time".to_owned(),
        Kind::Backend => {
            let waiting = analysis.waiting.backends.iter().find(|(name, _)| *name == found.name);
            let count = waiting.map_or(0.0, |(_, count)| *count);
            let long = match analysis.plateau {
                plateau if plateau > 0.0 => format!(", {:.0} ms each", 1e3 * count / plateau),
                _ => String::new(),
            };
            format!(
                "{count:.0} requests wait for its answer{long}, while the server itself uses {:.2} cores",
                analysis.waiting.server_cpu
            )
        }
        Kind::Inside => return inside_sentence(analysis),
    };
    let same = analysis.resources.iter().filter(|other| other.kind == Kind::Core && other.full_above >= 0.5).count();
    if found.kind == Kind::Core && same > 1 {
        return format!(
            "the cores, {same} of them, limit the server to {plateau}: they have no idle time, and the server waits \
             for them"
        );
    }
    let limits = if matches!(found.kind, Kind::Pool | Kind::Softirq | Kind::Descriptors) { "limit" } else { "limits" };
    format!("{} {limits} the server to {plateau}: {waits}", thing(found))
}

/// The sentence for requests that wait inside the server while no thread, descriptor or kernel queue is saturated.
fn inside_sentence(analysis: &Analysis) -> String {
    let Analysis { plateau, waiting, .. } = analysis;
    let (inside, cpu) = (waiting.inside, waiting.server_cpu);
    let waits = format!(
        "{inside:.0} requests have been read and wait in it, but not for a disk, the network or a \
         backend"
    );
    if is_one_at_a_time(analysis) {
        let each = match plateau {
            plateau if *plateau > 0.0 => format!(" ({:.1} ms each)", 1e3 / plateau),
            _ => String::new(),
        };
        return format!(
            "a lock (mutex) in the server's own code limits it to {plateau:.0} requests/s: it serves one request at a \
             time{each} and uses {cpu:.2} cores, while {waits}"
        );
    }
    let count = at_a_time(analysis)
        .map_or(String::new(), |count| format!("it serves about {count:.0} requests at a time and "));
    format!(
        "the server's own code limits it to {plateau:.0} requests/s: {count}uses {cpu:.2} cores, while {waits}: a \
         pool, a semaphore or a lock of its own is exhausted"
    )
}

/// The place where the holder of a lock sleeps.
fn sleeper(analysis: &Analysis) -> Option<&str> {
    let places = analysis.pools.iter().flat_map(|pool| &pool.asleep);
    let holders = places.filter(|(place, _)| !is_lock(place));
    holders.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, count)| *count >= 0.4).map(|(place, _)| &place[..])
}

fn knee_line(analysis: &Analysis) -> String {
    let (low, high) = analysis.plateau_range;
    match analysis.knee {
        Some(knee) => format!(
            "throughput follows the offered load up to {:.0}/s [{:.0}, {:.0}]; above that it is {:.0}/s ({low:.0} to \
             {high:.0} in {} runs)",
            knee.throughput, knee.throughput_low, knee.throughput_high, analysis.plateau, analysis.above
        ),
        None if analysis.is_of_one_load => format!(
            "closed loop: clients offer as much as is completed: {:.0}/s ({low:.0} to {high:.0} in {} runs), at one \
             load",
            analysis.plateau, analysis.above
        ),
        None if analysis.is_limited => format!(
            "throughput is below the offered load, {:.0}/s ({low:.0} to {high:.0} in {} runs), but the knee is \
             unknown: runs differ too much, or even the lowest load exceeds the capacity",
            analysis.plateau, analysis.above
        ),
        None => format!("throughput follows the offered load at all rates, up to {:.0}/s", analysis.plateau),
    }
}

/// The loads at which the server fell behind, from the lowest.
fn behind_line(analysis: &Analysis) -> Option<String> {
    let mut behind = analysis.fell_behind.clone();
    behind.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (lowest, (highest, backlog)) = (behind.first()?.0, *behind.last()?);
    let runs = if behind.len() == 1 { "1 run".to_owned() } else { format!("{} runs", behind.len()) };
    Some(format!(
        "the server fell behind in {runs}, from {lowest:.0}/s on: a backlog of {backlog} connections was left at {highest:.0}/s"
    ))
}

fn use_line(found: &Found, analysis: &Analysis) -> String {
    let share = found.share_above.map_or(String::new(), |share| format!("; mean utilisation {}", percent(share)));
    let below = match analysis.is_of_one_load {
        true => String::new(),
        false => format!(" above the knee, in {} at the lowest load", percent(found.full_below)),
    };
    format!(
        "{} is saturated in {} of {} windows of {:.0} ms{below}{share}",
        thing(found),
        percent(found.full_above),
        analysis.windows,
        analysis.window_s * 1e3
    )
}

fn demand_line(found: &Found, analysis: &Analysis) -> Option<String> {
    let demand = found.demand.filter(|demand| demand.per_request_s > 0.0)?;
    let ceiling = demand.ceiling?;
    let end = |end: Option<f64>| end.map_or("unbounded".to_owned(), |end| format!("{end:.0}"));
    Some(format!(
        "a request demands {:.2} ms [{:.2}, {:.2}] of it below the knee, so saturation was predicted at {ceiling:.0}/s \
         [{}, {}]; measured: {:.0}/s",
        demand.per_request_s * 1e3,
        demand.low_s.max(0.0) * 1e3,
        demand.high_s * 1e3,
        end(demand.ceiling_low),
        end(demand.ceiling_high),
        analysis.plateau
    ))
}

fn waiting_line(analysis: &Analysis) -> Option<String> {
    let waiting = &analysis.waiting;
    let is_any = waiting.unread + waiting.sending + waiting.in_queue + waiting.established > 0.0;
    is_any.then(|| {
        format!(
            "of {:.1} connections {:.1} are not yet accepted, {:.1} hold requests that the server has not read, {:.1} \
             have bytes in flight to the client",
            waiting.established, waiting.in_queue, waiting.unread, waiting.sending
        )
    })
}

fn pool_line(pool: &Pool) -> String {
    let mut text = format!(
        "of {:.1} threads {} {:.1} are idle, {:.1} run or wait for a core, {:.1} wait for a disk",
        pool.threads, pool.name, pool.resting, pool.running, pool.on_disk
    );
    for (place, count) in pool.asleep.iter().take(3).filter(|(_, count)| *count >= 0.05) {
        // Writing to a String cannot fail.
        let _ = write!(text, ", {count:.1} sleep in {place}");
    }
    text
}

/// The fullest resource, for a server without a saturated one.
fn fullest_line(analysis: &Analysis) -> Option<String> {
    let shares = analysis.resources.iter().filter(|found| found.share_above.is_some());
    let fullest = shares.max_by(|a, b| a.share_above.unwrap_or(0.0).total_cmp(&b.share_above.unwrap_or(0.0)))?;
    Some(format!("the most used resource is {}, utilisation {}", thing(fullest), percent(fullest.share_above?)))
}

fn refuted_by(kind: Kind) -> Vec<String> {
    let line = match kind {
        Kind::Quota => "a quota 20 % larger (cpu.cfs_quota_us, cpu.max): throughput should rise by about as much",
        Kind::DiskLimit => {
            "a limit 20 % larger (blkio.throttle, io.max), or files in memory: throughput should rise by about as much"
        }
        Kind::Disk => "files in memory, or a disk that takes 20 % more: throughput should rise",
        Kind::Memory => "20 % more memory, or a smaller cache: waits for pages should end",
        Kind::Thread => {
            "80 % of a core for it (--intervene): throughput should fall by about as much; or a second such thread, with which it should rise"
        }
        Kind::Lock => {
            "a shorter critical section: half the sleep under the lock should double the throughput; more threads \
             should not change it"
        }
        Kind::Pool => {
            "more of these threads: with 20 % more, throughput should rise by about as much, unless the resource that \
             they wait for is saturated"
        }
        Kind::Client => "a second generator",
        Kind::Core => "another core, or clients on another machine: throughput should rise",
        Kind::Softirq => "receive steering to another core (rps_cpus): throughput should rise",
        Kind::Network => {
            "a path 20 % faster: throughput should rise by about as much; responses half as long should double the rate"
        }
        Kind::Descriptors => "a limit 20 % larger (ulimit -n): throughput should rise by about as much",
        Kind::Backend => {
            "a faster backend, or more of its processes (php-fpm: pm.max_children): throughput should rise; a static file of the same \
             server should be as fast as before"
        }
        Kind::Inside => {
            "a profile of the program's own (go tool pprof: mutex and block; py-spy) that names another place; a \
             shorter critical section, or a larger pool, with which throughput should rise"
        }
        Kind::AcceptQueue => {
            "a longer queue (the server's backlog, net.core.somaxconn): drops should end and throughput rise"
        }
    };
    vec![line.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::tests::ladder;
    use crate::analyse::{Bound, Observed, analyse};
    use ammeter_monitor::source::{Group, Interface, Process, Thread};
    use ammeter_monitor::{Backend, Census, CensusLimits, Listener, Tick};
    use std::collections::BTreeMap;

    /// Changes every window of a ladder; `load` is the offered load relative to the server's capacity.
    fn with(mut runs: Vec<Observed>, change: impl Fn(&mut Tick, f64)) -> Vec<Observed> {
        let end = runs.iter().map(|run| run.throughput).fold(0.0, f64::max);
        for run in &mut runs {
            let load = run.target_rate / end;
            run.under.iter_mut().for_each(|tick| change(tick, load));
        }
        runs
    }

    fn check(runs: &[Observed], answer: Answer, kind: Option<Kind>, says: &str) -> Diagnosis {
        let found = judge("", analyse(runs));
        assert_eq!((found.answer, found.kind), (answer, kind), "{found:#?}");
        assert!(found.sentence.contains(says), "{}", found.sentence);
        found
    }

    /// A server whose only wait is a sleep that the monitor cannot see.
    fn unseen() -> Vec<Observed> {
        with(ladder(0.0001, 0.005, 0.0, 3), |tick, _| {
            tick.threads.iter_mut().for_each(|thread| thread.sleeps_in = None)
        })
    }

    #[test]
    fn cpu_used_by_others_lowers_confidence() {
        let shared = |mut found: Diagnosis, others: &[f64]| {
            found.share_with(others.to_vec(), 0.1);
            assert_eq!(found.others, others);
            let says = found.evidence.iter().find(|line| line.starts_with("other processes used"));
            (found.confidence, says.map(|line| line.split_once(';').unwrap().0.to_owned()))
        };
        let thread = check(&ladder(0.005, 0.0, 0.0, 1), Answer::Bottleneck, Some(Kind::Thread), "");
        let backend = Diagnosis { kind: Some(Kind::Backend), ..thread.clone() };
        let always = "other processes used 40 % or more of the machine's CPU time in every run".to_owned();
        let at_times = "other processes used up to 90 % of the machine's CPU time in 2 of 3 runs".to_owned();
        for found in [&thread, &backend] {
            assert_eq!(shared(found.clone(), &[0.9, 0.4, 0.7]), (Confidence::Likely, Some(always.clone())));
            assert_eq!(shared(found.clone(), &[0.1, 0.05]), (Confidence::Strong, None));
            assert_eq!(shared(found.clone(), &[]), (Confidence::Strong, None));
        }
        assert_eq!(shared(thread, &[0.9, 0.05, 0.7]), (Confidence::Likely, Some(at_times)));
        assert_eq!(shared(backend, &[0.9, 0.05, 0.7]), (Confidence::Strong, None));
    }

    #[test]
    fn computing_thread_is_named() {
        let found =
            check(&ladder(0.005, 0.0, 0.0, 1), Answer::Bottleneck, Some(Kind::Thread), "the thread worker limits");
        assert_eq!(found.confidence, Confidence::Strong);
        assert!(found.evidence.iter().any(|line| line.contains("predicted at 200/s")), "{:?}", found.evidence);
        assert!(!found.refuted_by.is_empty());
    }

    #[test]
    fn consequence_is_not_named_as_bottleneck() {
        let runs = with(ladder(0.005, 0.0, 0.0, 1), |tick, load| {
            let is_over = load > 1.05;
            tick.listeners = vec![Listener {
                depth: if is_over { 9.0 } else { 0.0 },
                limit: 8.0,
                drops: Some(if is_over { 10.0 } else { 0.0 }),
                ..Listener::default()
            }];
            let open = if is_over { 64.0 } else { 9.0 };
            tick.processes =
                vec![Process { pid: 1, descriptors: Some(open), descriptors_max: Some(64.0), ..Process::default() }];
        });
        let found = check(&runs, Answer::Bottleneck, Some(Kind::Thread), "the thread");
        assert_eq!(found.follows.len(), 2, "{:?}", found.follows);
        // Without the computing thread, descriptors and the queue are the answer.
        let idle = |runs: Vec<Observed>| with(runs, |tick, _| tick.threads.clear());
        let found =
            check(&idle(runs.clone()), Answer::Bottleneck, Some(Kind::Descriptors), "descriptors of the server");
        assert_eq!(found.follows.len(), 1);
        let without = with(idle(runs), |tick, _| tick.processes.clear());
        check(&without, Answer::Bottleneck, Some(Kind::AcceptQueue), "connections are dropped");
    }

    #[test]
    fn thread_spinning_when_idle_is_not_named() {
        let runs = with(unseen(), |tick, _| tick.threads[0].run = 1.0);
        check(&runs, Answer::NotFound, None, "not found: throughput is limited to 196/s");
    }

    #[test]
    fn pool_sleeping_inside_requests_is_named() {
        check(&ladder(0.0001, 0.005, 0.0, 3), Answer::Bottleneck, Some(Kind::Pool), "asleep in hrtimer_nanosleep");
    }

    #[test]
    fn sleep_under_lock_is_named() {
        let runs = with(ladder(0.0001, 0.005, 0.0, 3), |tick, load| {
            let place = if load > 1.05 { "futex_do_wait" } else { "ep_poll" };
            let waiter = |tid| Thread {
                name: format!("worker-{tid}"),
                tid,
                pid: 1,
                state: 'S',
                sleeps_in: Some(place.to_owned()),
                run: 0.001,
                ..Thread::default()
            };
            tick.threads.extend((20..25).map(waiter));
        });
        check(&runs, Answer::Bottleneck, Some(Kind::Lock), "sleeps in hrtimer_nanosleep while others wait");
    }

    #[test]
    fn cpu_quota_is_named() {
        let runs = with(unseen(), |tick, load| {
            tick.groups = vec![Group {
                path: "/g".into(),
                quota: Some(0.02),
                period: Some(0.1),
                periods: Some(10.0),
                throttled_periods: Some(if load > 1.05 { 10.0 } else { 0.0 }),
                ..Group::default()
            }];
        });
        check(&runs, Answer::Bottleneck, Some(Kind::Quota), "quota of the control group /g");
    }

    /// Windows in which, at overload, the server has read requests of
    /// `inside` connections, and `asking` of them wait for a backend.
    fn waiting_elsewhere(inside: u32, asking: u32) -> Vec<Observed> {
        with(unseen(), |tick, load| {
            let of = |count: u32| if load > 1.05 { count } else { u32::from(load > 0.5 && count > 0) };
            tick.census = Some(Census {
                states: BTreeMap::from([("established".to_owned(), of(inside))]),
                backends: vec![Backend {
                    name: "unix:/run/php.sock".to_owned(),
                    connections: of(asking),
                    in_flight: of(asking),
                }],
                ..Census::default()
            });
        })
    }

    #[test]
    fn load_where_server_fell_behind_is_not_sustained() {
        let mut runs = ladder(0.005, 0.0, 0.0, 1);
        runs.truncate(4);
        runs[3].backlog = Some(77);
        let found = check(&runs, Answer::NotFound, None, "not found: throughput is limited to");
        let line = "the server fell behind in 1 run, from 160/s on: a backlog of 77 connections was left at 160/s";
        assert!(found.evidence.iter().any(|one| one == line), "{:?}", found.evidence);
    }

    #[test]
    fn slow_backend_is_named() {
        let found = check(
            &waiting_elsewhere(40, 40),
            Answer::Bottleneck,
            Some(Kind::Backend),
            "the backend unix:/run/php.sock limits the server to 196 requests/s: 40 requests wait for its answer, 204 ms each",
        );
        assert!(found.follows.is_empty(), "{:?}", found.follows);
        // A thread that computes all the time comes first. A single connection that is always open is no queue.
        let busy = with(waiting_elsewhere(40, 40), |tick, load| tick.threads[0].run = load.min(1.0));
        check(&busy, Answer::Bottleneck, Some(Kind::Thread), "the thread worker");
        check(&waiting_elsewhere(1, 1), Answer::NotFound, None, "not found");
    }

    #[test]
    fn requests_in_progress_indicate_lock_or_pool() {
        let found = check(
            &waiting_elsewhere(40, 0),
            Answer::Bottleneck,
            Some(Kind::Lock),
            "a lock (mutex) in the server's own code",
        );
        assert!(found.sentence.contains("one request at a time (5.1 ms each)"), "{}", found.sentence);
        assert_eq!(found.confidence, Confidence::Likely);
        let mut pool = waiting_elsewhere(40, 0);
        pool.iter_mut().for_each(|run| run.latency_s = Some(0.020));
        check(&pool, Answer::Bottleneck, Some(Kind::Inside), "it serves about 4 requests at a time");
        // Several threads that use exactly one core also work on one request at a time.
        let python = with(pool, |tick, _| tick.server.user = 1.0);
        check(&python, Answer::Bottleneck, Some(Kind::Lock), "one request at a time");
    }

    #[test]
    fn link_use_counts_only_client_traffic() {
        let runs = with(unseen(), |tick, load| {
            let waiting_for_client = if load > 1.05 { 9.0 } else { 0.0 };
            let limits = CensusLimits { waiting_for_client, ..CensusLimits::default() };
            tick.census = Some(Census { limits, ..Census::default() });
            // Other programs use the machine's network, too.
            tick.interfaces = vec![Interface { sent: 1e9, ..Interface::default() }];
        });
        check(&runs, Answer::Bottleneck, Some(Kind::Network), "clients receive 1.6 Mbit/s, and the path is full");
    }

    #[test]
    fn late_client_is_named_if_nothing_else_saturates() {
        let late = |mut runs: Vec<Observed>, is_certain| {
            for run in runs.iter_mut().skip(4) {
                run.client = Some(Bound { why: "late".to_owned(), is_certain });
            }
            runs
        };
        let found = check(&late(unseen(), false), Answer::ClientBound, Some(Kind::Client), "client-bound");
        assert!(found.evidence.iter().any(|line| line == "late"));
        check(&late(ladder(0.005, 0.0, 0.0, 1), false), Answer::Bottleneck, Some(Kind::Thread), "thread");
        check(&late(ladder(0.005, 0.0, 0.0, 1), true), Answer::Bottleneck, Some(Kind::Thread), "thread");
    }

    #[test]
    fn sustained_load_is_reported() {
        let all = ladder(0.005, 0.0, 0.0, 1);
        check(&all[..4], Answer::Borne, None, "up to 160/s");
        // A closed loop never offers more than the server answers: some resource is saturated, or the cause is unknown.
        let closed = |mut runs: Vec<Observed>| {
            runs[0].is_closed = true;
            runs
        };
        let found =
            check(&closed(all[7..].to_vec()), Answer::Bottleneck, Some(Kind::Thread), "the thread worker limits");
        assert!(
            found.confidence == Confidence::Likely && found.evidence[0].ends_with("in 1 runs), at one load"),
            "{found:?}"
        );
        check(&closed(all[..1].to_vec()), Answer::NotFound, None, "no known resource is saturated");
    }

    #[test]
    fn intervention_confirms_or_refutes() {
        let trial = |is_suspect, elasticity: f64| Trial {
            what: "a quota of 0.80".to_owned(),
            is_suspect,
            capacity: 0.8,
            throughputs: vec![0.8, 0.81],
            elasticity,
            low: elasticity - 0.1,
            high: elasticity + 0.1,
        };
        let tried = |runs: &[Observed], trials: Vec<Trial>| {
            let mut found = judge("", analyse(runs));
            found.try_it(trials);
            (found.answer, found.confidence)
        };
        let thread = ladder(0.005, 0.0, 0.02, 1);
        assert_eq!(tried(&thread, vec![trial(true, 0.95)]), (Answer::Bottleneck, Confidence::Confirmed));
        assert_eq!(tried(&thread, vec![trial(true, 0.05)]), (Answer::Bottleneck, Confidence::Likely));
        assert_eq!(tried(&thread, vec![trial(false, 0.05)]), (Answer::Bottleneck, Confidence::Strong));
        assert_eq!(tried(&unseen(), vec![trial(false, 0.9)]), (Answer::Bottleneck, Confidence::Confirmed));
        assert_eq!(tried(&unseen(), vec![trial(false, 0.1)]), (Answer::NotFound, Confidence::None));
    }
}
