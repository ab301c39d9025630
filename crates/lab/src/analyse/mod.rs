//! Derives the use of a server's resources from runs at several loads.
//! Pure: figures in, figures out; no file, no clock, no text.
//!
//! ```text
//! knee     where throughput stops following the offered load         ammeter_load::knee::bend, shared with sweeps
//! use_of   the use of each resource in each window
//! demand   the demand of a request on a resource below the knee, and the predicted ceiling
//! ```
//!
//! [`analyse`] combines them: for each resource the demand, the ceiling, and the share of the windows in which it was
//! saturated below the knee and above it. `diagnose` decides which one is the bottleneck.

pub(crate) mod demand;
pub(crate) mod use_of;

use std::collections::{BTreeMap, BTreeSet};

use ammeter_load::knee::{Bend, bend};
use ammeter_monitor::source::Group;
use ammeter_monitor::{Census, Tick};
use amped_measure::stats::median;
use demand::{Demand, demand};
use serde::Serialize;
use use_of::{Doing, Kind, Labels, Resource, Rest, Use, doing, group_name, labels, pool_of, rest, uses};

/// A run at one load, with the figures of clients and monitor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// The requested load: connections per second, or clients of a closed loop.
    pub(crate) target_rate: f64,
    /// The offered load: connections opened per second, or clients.
    pub(crate) offered: f64,
    /// Whether the loop was closed: at most one request in progress per client.
    pub(crate) is_closed: bool,
    /// Correct responses per second while connections were being opened.
    pub(crate) throughput: f64,
    /// Bytes per second that clients received in those responses.
    pub(crate) received_bytes_per_s: f64,
    /// Connections still open at the end of the window, if the server fell behind.
    pub(crate) backlog: Option<u64>,
    /// Median latency of correct responses.
    pub(crate) latency_s: Option<f64>,
    /// Why the run is client-bound, if it is.
    pub(crate) client: Option<Bound>,
    /// Windows before the load, without requests.
    pub(crate) before: Vec<Tick>,
    /// Windows under load.
    pub(crate) under: Vec<Tick>,
}

/// Evidence that a run was client-bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Bound {
    /// The reason.
    pub(crate) why: String,
    /// Whether the client failed to offer the load. Otherwise it was late,
    /// which a server on the same machine may cause.
    pub(crate) is_certain: bool,
}

/// The use of a resource.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Found {
    /// Its kind.
    pub(crate) kind: Kind,
    /// Its name.
    pub(crate) name: String,
    /// The demand of a request; `None` if the resource's capacity is unknown, or there are too few runs.
    pub(crate) demand: Option<Demand>,
    /// Mean utilisation at the lowest load.
    pub(crate) share_below: Option<f64>,
    /// Mean utilisation above the knee, or at the highest load if there is no knee.
    pub(crate) share_above: Option<f64>,
    /// Share of all windows in which it was saturated, at the lowest load.
    pub(crate) full_below: f64,
    /// Share of all windows in which it was saturated, above the knee.
    pub(crate) full_above: f64,
    /// Share of the saturated windows in which descriptors were not exhausted as well. A thread that waits for a
    /// descriptor looks like one that makes others wait; only the order of events distinguishes them.
    pub(crate) full_without_descriptors: f64,
}

/// The states of a pool's threads above the knee.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Pool {
    /// The common name of its threads.
    pub(crate) name: String,
    /// Mean number of threads.
    pub(crate) threads: f64,
    /// Whether the same threads existed throughout.
    pub(crate) is_fixed: bool,
    /// Mean number of idle threads.
    pub(crate) resting: f64,
    /// Mean number of threads that ran or waited for a core.
    pub(crate) running: f64,
    /// Mean number of threads that waited for a disk.
    pub(crate) on_disk: f64,
    /// Threads that slept elsewhere: the kernel function and the mean number, largest first.
    pub(crate) asleep: Vec<(String, f64)>,
}

/// Where requests waited above the knee: mean counts of the last censuses.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Waiting {
    /// Connections not yet accepted.
    pub(crate) in_queue: f64,
    /// Connections with unread bytes, including those not yet accepted.
    pub(crate) unread: f64,
    /// Connections with bytes in flight to the client.
    pub(crate) sending: f64,
    /// All established connections.
    pub(crate) established: f64,
    /// Share of the sending time in which the client's window was closed.
    pub(crate) receive_window: f64,
    /// Share of the sending time in which the server's buffer was too small.
    pub(crate) send_buffer: f64,
    /// Requests that the server had read, and neither answered nor passed on.
    pub(crate) inside: f64,
    /// Connections to backends that waited for an answer, by name, largest first.
    pub(crate) backends: Vec<(String, f64)>,
    /// CPU time that the server used, in cores.
    pub(crate) server_cpu: f64,
    /// Bytes per second that clients received. The machine's network counters may include other traffic, and loopback.
    pub(crate) received_bytes_per_s: f64,
}

/// The analysis of all runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Analysis {
    /// The knee, if it lies within the loads.
    pub(crate) knee: Option<Bend>,
    /// Whether throughput stops following the offered load: there is a knee, or throughput is clearly behind at the
    /// highest load although the runs differ too much to show where that starts.
    pub(crate) is_limited: bool,
    /// Whether `is_limited` holds only because there is a single load, from
    /// a closed loop: its clients request as much as they get.
    pub(crate) is_of_one_load: bool,
    /// The loads at which the server fell behind, with the backlog left.
    pub(crate) fell_behind: Vec<(f64, u64)>,
    /// Mean correct responses per second above the knee; the highest at any load if there is no knee.
    pub(crate) plateau: f64,
    /// The lowest and the highest of these.
    pub(crate) plateau_range: (f64, f64),
    /// Number of runs above the knee, or at the highest load if there is no knee.
    pub(crate) above: usize,
    /// The client-bound runs among these.
    pub(crate) client_bound: Vec<Bound>,
    /// The resources.
    pub(crate) resources: Vec<Found>,
    /// The thread pools.
    pub(crate) pools: Vec<Pool>,
    /// Where requests waited.
    pub(crate) waiting: Waiting,
    /// Number of requests that the server works on at a time: throughput above the knee times the latency at the lowest
    /// load, where requests do not queue (Little 1961). `None` with a single load.
    pub(crate) at_a_time: Option<f64>,
    /// Number of windows above the knee.
    pub(crate) windows: usize,
    /// Their mean length, in seconds.
    pub(crate) window_s: f64,
}

/// Without a knee, a run is behind if its answered share is below this fraction of the best run's.
const BEHIND: f64 = 0.75;
/// Maximum number of threads listed one by one.
const THREADS_MAX: usize = 12;

/// Analyses all runs of one server.
pub(crate) fn analyse(runs: &[Observed]) -> Analysis {
    let points =
        |runs: &mut dyn Iterator<Item = &Observed>| runs.map(|run| (run.offered, run.throughput)).collect::<Vec<_>>();
    // Client-bound runs reveal little about the server; use them only if the others show no knee.
    let kept = points(&mut runs.iter().filter(|run| run.client.is_none()));
    let knee = bend(&kept).or_else(|| bend(&points(&mut runs.iter())));
    let highest = runs.iter().map(|run| run.target_rate).fold(0.0, f64::max);
    let lowest = runs.iter().map(|run| run.target_rate).fold(f64::INFINITY, f64::min);
    let part = |run: &Observed| run.throughput / run.offered.max(1e-9);
    let best = runs.iter().map(part).fold(0.0, f64::max);
    // A run at the knee belongs to neither side.
    let is_beyond = |run: &&Observed| match knee {
        Some(knee) => run.offered > 1.02 * knee.at,
        None => part(run) < BEHIND * best,
    };
    let mut above: Vec<&Observed> = runs.iter().filter(is_beyond).collect();
    let is_of_one_load = lowest >= highest && runs.iter().all(|run| run.is_closed) && !runs.is_empty();
    let fell_behind: Vec<(f64, u64)> = runs.iter().filter_map(|run| Some((run.target_rate, run.backlog?))).collect();
    let is_limited = knee.is_some()
        || fell_behind.iter().any(|(target_rate, _)| *target_rate >= highest)
        || above.iter().any(|run| run.target_rate >= highest)
        || is_of_one_load;
    if !is_limited || above.is_empty() {
        above = runs.iter().filter(|run| run.target_rate >= highest).collect();
    }
    let light: Vec<&Observed> = runs.iter().filter(|run| run.target_rate <= lowest && lowest < highest).collect();
    let throughputs = || above.iter().map(|run| run.throughput);
    let labels: Vec<Labels> = runs.iter().map(|run| labels(&run.under)).collect();
    let active = labels.iter().flat_map(Labels::keys).copied().collect();
    let rest = rest(
        runs.iter().flat_map(|run| &run.before),
        runs.iter().filter(|run| run.target_rate <= lowest).flat_map(|run| &run.under),
        &active,
    );

    let light_waits = Waits::of(light.iter().flat_map(|run| &run.under));
    // Computed once per run.
    let seen: Vec<BTreeMap<Resource, Mean>> =
        runs.iter().zip(&labels).map(|(run, labels)| means(run, &rest, labels, &light_waits)).collect();
    let of = |chosen: &dyn Fn(&Observed) -> bool, resource: &Resource| {
        let mut all = Mean::default();
        for (run, seen) in runs.iter().zip(&seen).filter(|(run, _)| chosen(run)) {
            all.windows += run.under.len() as f64;
            if let Some(one) = seen.get(resource) {
                all.full += one.full;
                all.alone += one.alone;
                all.share += one.share;
                all.shares += one.shares;
            }
        }
        all
    };
    let names: BTreeSet<&Resource> = seen.iter().flat_map(BTreeMap::keys).collect();
    let mut resources: Vec<Found> = names
        .into_iter()
        .map(|resource| {
            let (below_all, above_all) =
                (of(&|run| is_in(&light, run), resource), of(&|run| is_in(&above, run), resource));
            let line: Vec<(f64, f64)> = runs
                .iter()
                .zip(&seen)
                .filter(|(run, _)| knee.map_or(part(run) >= BEHIND * best, |knee| run.offered <= knee.at))
                .filter_map(|(run, seen)| Some((run.throughput, seen.get(resource)?.mean()?)))
                .collect();
            Found {
                kind: resource.0,
                name: resource.1.clone(),
                demand: demand(&line),
                share_below: below_all.mean(),
                share_above: above_all.mean(),
                full_below: below_all.full_part(),
                full_above: above_all.full_part(),
                full_without_descriptors: if above_all.full > 0.0 { above_all.alone / above_all.full } else { 0.0 },
            }
        })
        .collect();
    // Drop idle resources, such as most of a dozen disks.
    let share = |share: Option<f64>| share.unwrap_or(0.0) > 0.001;
    resources.retain(|one| share(one.share_above) || share(one.share_below) || one.full_above + one.full_below > 0.0);
    let mut busiest: Vec<f64> =
        resources.iter().filter(|one| one.kind == Kind::Thread).filter_map(|one| one.share_above).collect();
    busiest.sort_by(|a, b| b.total_cmp(a));
    let least = busiest.get(THREADS_MAX).copied().unwrap_or(0.0);
    resources.retain(|one| one.kind != Kind::Thread || one.share_above.is_some_and(|share| share > least.max(0.001)));

    let under: Vec<&Tick> = above.iter().flat_map(|run| &run.under).collect();
    let mean = throughputs().sum::<f64>() / above.len().max(1) as f64;
    Analysis {
        knee,
        is_limited,
        is_of_one_load,
        fell_behind,
        plateau: if is_limited { mean } else { runs.iter().map(|run| run.throughput).fold(0.0, f64::max) },
        plateau_range: throughputs().map(|x| (x, x)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or_default(),
        above: above.len(),
        client_bound: above.iter().filter_map(|run| run.client.clone()).collect(),
        resources,
        pools: pools(runs.iter().zip(&labels).filter(|(run, _)| is_in(&above, run)), &rest),
        waiting: Waiting {
            received_bytes_per_s: above.iter().map(|run| run.received_bytes_per_s).sum::<f64>()
                / above.len().max(1) as f64,
            ..waiting(&under)
        },
        windows: under.len(),
        window_s: under.iter().map(|tick| tick.interval_s).sum::<f64>() / under.len().max(1) as f64,
        at_a_time: median(light.iter().filter_map(|run| run.latency_s)).map(|latency_s| latency_s * mean),
    }
}

/// Mean number of requests that wait outside the server's threads.
#[derive(Clone, Debug, Default, PartialEq)]
struct Waits {
    /// Requests that wait for a backend's answer, by its name.
    backends: BTreeMap<String, f64>,
    /// See [`Kind::Inside`].
    inside: f64,
}

impl Waits {
    fn of<'a>(ticks: impl Iterator<Item = &'a Tick>) -> Waits {
        let (mut waits, mut count) = (Waits::default(), 0.0);
        for census in ticks.filter_map(|tick| tick.census.as_ref()) {
            count += 1.0;
            waits.inside += inside(census);
            for backend in &census.backends {
                *waits.backends.entry(backend.name.clone()).or_default() += f64::from(backend.in_flight);
            }
        }
        let count = f64::max(count, 1.0);
        waits.inside /= count;
        waits.backends.values_mut().for_each(|waiting| *waiting /= count);
        waits
    }
}

/// Connections whose request the server has read, with no response in flight and no backend request in progress.
fn inside(census: &Census<f64>) -> f64 {
    let asking: u32 = census.backends.iter().map(|backend| backend.in_flight).sum();
    let established = census.states.get("established").copied().unwrap_or(0);
    let limits = &census.limits;
    f64::from(established) - limits.waiting_for_server - limits.waiting_for_client - f64::from(asking)
}

fn is_in(these: &[&Observed], run: &Observed) -> bool {
    these.iter().any(|one| std::ptr::eq(*one, run))
}

/// Sums of a resource's use over windows.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    windows: f64,
    full: f64,
    /// The part of `full` in which descriptors were not exhausted.
    alone: f64,
    share: f64,
    shares: f64,
}

impl Mean {
    fn mean(&self) -> Option<f64> {
        (self.shares > 0.0).then(|| self.share / self.shares)
    }

    fn full_part(&self) -> f64 {
        if self.windows > 0.0 { self.full / self.windows } else { 0.0 }
    }
}

/// The use of each resource in a run. A quota counts its own periods, as a window may be shorter than one.
fn means(run: &Observed, rest: &Rest, labels: &Labels, light: &Waits) -> BTreeMap<Resource, Mean> {
    let mut means: BTreeMap<Resource, Mean> = BTreeMap::new();
    for tick in &run.under {
        let uses = uses(tick, rest, labels);
        let is_open = !uses.iter().any(|((kind, _), one)| *kind == Kind::Descriptors && one.full > 0.0);
        for (resource, Use { share, full }) in uses {
            let mean = means.entry(resource).or_default();
            mean.full += full;
            mean.alone += if is_open { full } else { 0.0 };
            mean.share += share.unwrap_or(0.0);
            mean.shares += f64::from(u8::from(share.is_some()));
        }
    }
    // A queue counts as saturated if it is longer than at the lowest load,
    // and at least one request waits behind another.
    let is_long = |waiting: f64, light: f64| f64::from(u8::from(waiting >= 2.0 && waiting >= 2.0 * light));
    for tick in &run.under {
        let Some(census) = &tick.census else { continue };
        let mut add = |kind, name: &str, full| {
            let mean = means.entry((kind, name.to_owned())).or_default();
            mean.full += full;
            mean.alone += full;
        };
        for backend in &census.backends {
            let light = light.backends.get(&backend.name).copied().unwrap_or(0.0);
            add(Kind::Backend, &backend.name, is_long(f64::from(backend.in_flight), light));
        }
        add(Kind::Inside, "the server", is_long(inside(census), light.inside));
    }
    let windows = run.under.len() as f64;
    for group in run.under.first().map_or(&[][..], |tick| &tick.groups) {
        let of = |rate: fn(&Group<f64>) -> Option<f64>| -> f64 {
            let of_tick = |tick: &Tick| {
                let group = tick.groups.iter().find(|one| one.path == group.path);
                group.and_then(rate).unwrap_or(0.0) * tick.interval_s
            };
            run.under.iter().map(of_tick).sum()
        };
        let (periods, throttled) = (of(|group| group.periods), of(|group| group.throttled_periods));
        if let Some(mean) = means.get_mut(&(Kind::Quota, group_name(&group.path).to_owned())) {
            mean.full = windows * throttled / periods.max(1.0);
        }
    }
    means
}

/// The states of each pool's threads in these runs.
fn pools<'a>(above: impl Iterator<Item = (&'a Observed, &'a Labels)> + Clone, rest: &Rest) -> Vec<Pool> {
    let mut pools: BTreeMap<String, Pool> = BTreeMap::new();
    let mut asleep: BTreeMap<(String, String), f64> = BTreeMap::new();
    let windows = above.clone().map(|(run, _)| run.under.len()).sum::<usize>().max(1) as f64;
    for (run, labels) in above {
        // A thread that is in both the first and the last window existed throughout.
        let ends = |tick: Option<&Tick>| -> BTreeSet<u32> {
            tick.map(|tick| tick.threads.iter().map(|thread| thread.tid).collect()).unwrap_or_default()
        };
        let (first, last) = (ends(run.under.first()), ends(run.under.last()));
        for thread in run.under.iter().flat_map(|tick| &tick.threads).filter(|thread| labels.contains_key(&thread.tid))
        {
            let name = pool_of(thread);
            let pool = pools.entry(name.clone()).or_insert_with(|| Pool {
                name: name.clone(),
                is_fixed: true,
                ..Pool::default()
            });
            pool.threads += 1.0 / windows;
            pool.is_fixed &= first.contains(&thread.tid) && last.contains(&thread.tid);
            match doing(thread, rest) {
                Doing::Nothing => pool.resting += 1.0 / windows,
                Doing::Running => pool.running += 1.0 / windows,
                Doing::Disk => pool.on_disk += 1.0 / windows,
                Doing::Asleep(place) => *asleep.entry((name, place)).or_default() += 1.0 / windows,
            }
        }
    }
    for ((name, place), count) in asleep {
        if let Some(pool) = pools.get_mut(&name) {
            pool.asleep.push((place, count));
        }
    }
    let mut pools: Vec<Pool> = pools.into_values().collect();
    pools.iter_mut().for_each(|pool| pool.asleep.sort_by(|a, b| b.1.total_cmp(&a.1)));
    pools
}

/// Where requests waited.
fn waiting(under: &[&Tick]) -> Waiting {
    let mut waiting = Waiting::default();
    let (mut counted, mut busy, mut receive, mut send) = (0.0, 0.0, 0.0, 0.0);
    let mut backends: BTreeMap<&str, f64> = BTreeMap::new();
    for tick in under {
        waiting.in_queue += tick.listeners.iter().map(|listener| listener.depth).sum::<f64>();
        if let Some(census) = &tick.census {
            let limits = &census.limits;
            counted += 1.0;
            waiting.unread += limits.waiting_for_server;
            waiting.sending += limits.waiting_for_client;
            waiting.established += tick.connections("established").map_or(0.0, f64::from);
            waiting.inside += inside(census).max(0.0);
            waiting.server_cpu += tick.server_cpu();
            for backend in &census.backends {
                *backends.entry(&backend.name).or_default() += f64::from(backend.in_flight);
            }
            busy += limits.busy;
            receive += limits.window_closed;
            send += limits.buffer_full;
        }
    }
    let windows = under.len().max(1) as f64;
    waiting.in_queue /= windows;
    let counted = f64::max(counted, 1.0);
    let Waiting { unread, sending, established, inside, server_cpu, .. } = &mut waiting;
    for count in [unread, sending, established, inside, server_cpu] {
        *count /= counted;
    }
    waiting.backends = backends.into_iter().map(|(name, waits)| (name.to_owned(), waits / counted)).collect();
    waiting.backends.sort_by(|a, b| b.1.total_cmp(&a.1));
    waiting.receive_window = receive / f64::max(busy, 1e-6);
    waiting.send_buffer = send / f64::max(busy, 1e-6);
    waiting
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ammeter_monitor::Listener;
    use ammeter_monitor::source::Thread;
    use amped_measure::stats::Random;
    use proptest::prelude::*;

    /// A ladder of eight rates against one thread that computes for `busy_s`
    /// and sleeps for `asleep_s` per request, one request at a time.
    pub(crate) fn ladder(busy_s: f64, asleep_s: f64, noise: f64, seed: u64) -> Vec<Observed> {
        let mut random = Random(seed);
        let capacity = 1.0 / (busy_s + asleep_s);
        (1..=8)
            .map(|step| {
                let rate = capacity * f64::from(step) / 5.0;
                let throughput = rate.min(capacity);
                let mut window = |throughput: f64| {
                    let off = 1.0 + noise * (2.0 * random.fraction() - 1.0);
                    let run = (throughput * busy_s * off).min(1.0);
                    let is_asleep = random.fraction() < throughput * asleep_s;
                    let place = if is_asleep { "hrtimer_nanosleep" } else { "ep_poll" };
                    let state = if run > 0.99 { 'R' } else { 'S' };
                    let thread = |tid, name: &str, state, run, place: &str| Thread {
                        pid: 1,
                        tid,
                        name: name.to_owned(),
                        state,
                        run,
                        sleeps_in: (state == 'S').then(|| place.to_owned()),
                        ..Thread::default()
                    };
                    Tick {
                        interval_s: 0.1,
                        threads: vec![thread(7, "worker", state, run, place), thread(8, "main", 'S', 0.0, "ep_poll")],
                        listeners: vec![Listener { limit: 128.0, ..Listener::default() }],
                        ..Tick::default()
                    }
                };
                Observed {
                    target_rate: rate,
                    offered: rate,
                    throughput,
                    is_closed: false,
                    client: None,
                    received_bytes_per_s: 1000.0 * throughput,
                    backlog: None,
                    latency_s: Some(busy_s + asleep_s),
                    before: (0..5).map(|_| window(0.0)).collect(),
                    under: (0..20).map(|_| window(throughput)).collect(),
                }
            })
            .collect()
    }

    fn resource(found: &Analysis, kind: Kind) -> &Found {
        found.resources.iter().find(|one| one.kind == kind).unwrap()
    }

    #[test]
    fn computing_thread_saturates_only_above_knee() {
        let found = analyse(&ladder(0.005, 0.0, 0.0, 1));
        let thread = resource(&found, Kind::Thread);
        assert_eq!((thread.full_below, thread.full_above), (0.0, 1.0), "{found:?}");
        assert!((found.plateau / 200.0 - 1.0).abs() < 0.02 && found.above == 3, "{found:?}");
        assert_eq!(found.resources.iter().filter(|one| one.kind == Kind::Thread).count(), 1, "the idle one is omitted");
        assert!(found.client_bound.is_empty() && found.windows == 60);
    }

    #[test]
    fn sleeping_thread_is_attributed_to_its_wait_channel() {
        let found = analyse(&ladder(0.0001, 0.005, 0.0, 1));
        assert!(resource(&found, Kind::Thread).full_above == 0.0);
        let pool = found.pools.iter().find(|pool| pool.name == "worker").unwrap();
        assert!(pool.is_fixed && pool.asleep[0].0 == "hrtimer_nanosleep" && pool.asleep[0].1 > 0.9, "{pool:?}");
        let found = resource(&found, Kind::Pool);
        assert!(found.full_above > 0.9 && found.full_below < 0.5, "{found:?}");
    }

    #[test]
    fn highest_load_is_analysed_without_knee() {
        let all = ladder(0.005, 0.0, 0.0, 1);
        let found = analyse(&all[..4]);
        assert!(
            found.knee.is_none() && !found.is_limited && found.above == 1 && (found.plateau - 160.0).abs() < 1e-6,
            "{found:?}"
        );
        assert_eq!(analyse(&[]), Analysis::default());
    }

    #[test]
    fn closed_loop_clients_saturate_server() {
        let mut all = ladder(0.005, 0.0, 0.0, 1).split_off(7);
        let found = analyse(&all);
        assert!(!found.is_limited && !found.is_of_one_load, "a sustained rate: {found:?}");
        all[0].is_closed = true;
        let found = analyse(&all);
        assert!(found.is_limited && found.is_of_one_load && found.knee.is_none(), "{found:?}");
        assert_eq!(resource(&found, Kind::Thread).full_above, 1.0, "{found:?}");
        let mut two = ladder(0.005, 0.0, 0.0, 1).split_off(6);
        two.iter_mut().for_each(|run| run.is_closed = true);
        assert!(!analyse(&two).is_of_one_load);
    }

    #[test]
    fn erratic_throughput_below_offer_is_limited() {
        let mut all = ladder(0.005, 0.0, 0.0, 1);
        for (run, throughput) in all.iter_mut().zip([39.0, 20.0, 33.0, 19.0, 37.0, 22.0, 35.0, 20.0]) {
            run.throughput = throughput;
        }
        let found = analyse(&all);
        assert!(found.is_limited && found.above >= 6 && found.plateau < 40.0, "{found:?}");
    }

    proptest! {
        #[test]
        fn planted_demand_is_recovered_through_windows(busy_us in 50.0..20_000.0_f64, seed in any::<u64>()) {
            let busy_s = busy_us / 1e6;
            let found = analyse(&ladder(busy_s, 0.0, 0.02, seed));
            let knee = found.knee.expect("a knee");
            prop_assert!((knee.throughput * busy_s - 1.0).abs() < 0.03, "{knee:?}");
            let demand = resource(&found, Kind::Thread).demand.expect("a demand");
            prop_assert!(demand.allows(1.0 / busy_s, 0.03), "{demand:?}");
            prop_assert!((demand.per_request_s / busy_s - 1.0).abs() < 0.1, "{demand:?}");
        }
    }
}
