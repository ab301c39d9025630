//! The use of each resource in each window: its utilisation, and whether it was saturated.
//!
//! A window is the time between two samples of the monitor, 50 to 100 ms: means over seconds hide resources that
//! saturate in turns (Malkowski, Hedwig, Pu 2009). Utilisation is the share of the capacity. Saturation is a fact of
//! its own if the kernel reports it (a throttled quota, a queue that refused a connection), else a utilisation near 1.
//!
//! Counters report hard resources. Soft ones, pools and locks, appear only in the states of threads: a thread runs,
//! waits for a disk, sleeps where it is idle, or sleeps elsewhere, which means that it waits in the middle of a
//! request. `rest` finds the idle place of each pool.

use std::collections::{BTreeMap, BTreeSet};

use ammeter_monitor::Tick;
use ammeter_monitor::source::Thread;
use serde::Serialize;

/// Kinds of resources, in the order of causes: an earlier one, when saturated, fills up the later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The CPU quota of a control group.
    Quota,
    /// The disk bandwidth limit of a control group.
    DiskLimit,
    /// A disk.
    Disk,
    /// Memory.
    Memory,
    /// A thread that can use a full core.
    Thread,
    /// A service that the server calls: an application by FastCGI, another server, a database.
    Backend,
    /// A lock that one thread at a time can hold.
    Lock,
    /// A pool of threads.
    Pool,
    /// The load generator.
    Client,
    /// A core.
    Core,
    /// A core's time in soft interrupts.
    Softirq,
    /// The network between server and clients, or the clients' receive windows.
    Network,
    /// File descriptors.
    Descriptors,
    /// The queue of connections that wait for accept.
    AcceptQueue,
    /// Requests that the server has read and not answered, without any of the above as the reason: they wait in its own
    /// code, for a lock or a pool that the kernel does not see.
    Inside,
}

/// A resource: its kind and its name.
pub(crate) type Resource = (Kind, String);

/// The use of a resource in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Use {
    /// Utilisation; `None` if the capacity is unknown.
    pub(crate) share: Option<f64>,
    /// Share of the window in which it was saturated, mostly 0 or 1.
    pub(crate) full: f64,
}

/// The name under which only the fullest process or listener of the server is reported.
const OF_SERVER: &str = "of the server";

/// Utilisation that counts as saturated.
const FULL: f64 = 0.9;

/// The pool of a thread: its name without the trailing number.
pub(crate) fn pool_of(thread: &Thread<f64>) -> String {
    let name = thread.name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '-' | '_' | '#' | ':' | '/'));
    if name.is_empty() { thread.name.clone() } else { name.to_owned() }
}

/// The kernel function in which the idle threads of each pool sleep.
pub(crate) type Rest = BTreeMap<String, String>;

/// Finds where the threads of each pool mostly sleep without requests (`idle` windows); for pools that do not exist
/// then, in the windows with the lowest load (`light`). Threads outside `active` are ignored: nginx's master has the
/// name of its workers, and sleeps elsewhere.
pub(crate) fn rest<'a>(
    idle: impl Iterator<Item = &'a Tick>,
    light: impl Iterator<Item = &'a Tick>,
    active: &BTreeSet<u32>,
) -> Rest {
    let places = |ticks: &mut dyn Iterator<Item = &'a Tick>| {
        let mut places: BTreeMap<String, BTreeMap<String, u32>> = BTreeMap::new();
        for thread in ticks.flat_map(|tick| &tick.threads).filter(|thread| active.contains(&thread.tid)) {
            if let ('S', Some(place)) = (thread.state, &thread.sleeps_in) {
                *places.entry(pool_of(thread)).or_default().entry(place.clone()).or_default() += 1;
            }
        }
        let most =
            |places: BTreeMap<String, u32>| places.into_iter().max_by_key(|(_, count)| *count).map(|most| most.0);
        places.into_iter().filter_map(|(pool, places)| Some((pool, most(places)?))).collect::<Rest>()
    };
    let (mut idle, mut light) = (idle, light);
    let mut rest = places(&mut light);
    rest.extend(places(&mut idle));
    rest
}

/// The state of a thread at the end of a window.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doing {
    /// Idle.
    Nothing,
    /// Running or runnable.
    Running,
    /// Waiting for a disk.
    Disk,
    /// Sleeping in this kernel function.
    Asleep(String),
}

/// The state of this thread.
pub(crate) fn doing(thread: &Thread<f64>, rest: &Rest) -> Doing {
    match (thread.state, &thread.sleeps_in) {
        ('R', _) => Doing::Running,
        ('D', _) => Doing::Disk,
        ('S', Some(place)) if rest.get(&pool_of(thread)) != Some(place) => Doing::Asleep(place.clone()),
        _ => Doing::Nothing,
    }
}

/// Whether threads wait for each other in this kernel function.
pub(crate) fn is_lock(place: &str) -> bool {
    ["futex", "semtimedop", "flock", "posix_lock"].iter().any(|lock| place.contains(lock))
}

/// Labels of a run's threads, by thread id.
pub(crate) type Labels = BTreeMap<u32, String>;

/// Labels the active threads of a run by name, and threads with the same name by number. The labels identify the
/// threads across runs, even if the server was restarted in between.
pub(crate) fn labels(under: &[Tick]) -> Labels {
    let threads = under.iter().flat_map(|tick| &tick.threads).filter(|thread| thread.run > 0.0);
    let active: BTreeMap<u32, &str> = threads.map(|thread| (thread.tid, &thread.name[..])).collect();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut label = |name| {
        let count = counts.entry(name).or_default();
        *count += 1;
        if *count == 1 { name.to_owned() } else { format!("{name} #{count}") }
    };
    active.into_iter().map(|(tid, name)| (tid, label(name))).collect()
}

/// The name of a control group without trailing digits, which often number one group per run.
pub(crate) fn group_name(path: &str) -> &str {
    path.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-')
}

/// The load from which a core counts as full: no idle time, to within a tick of the kernel's clock.
const CORE_FULL: f64 = 0.95;

/// The cores on which the server may run, if it leaves none of them idle time: it waits for a core even if no listed
/// thread does, for example because its threads end before they are listed.
fn filled_cores(tick: &Tick) -> BTreeSet<usize> {
    let allowed: BTreeSet<usize> =
        tick.processes.iter().flat_map(|process| &process.cores).map(|core| *core as usize).collect();
    let are_full = allowed.iter().all(|number| tick.cores.get(*number).is_some_and(|core| core.busy() >= CORE_FULL));
    let is_its_work = tick.server_cpu() >= 0.75 * allowed.len() as f64;
    if are_full && is_its_work { allowed } else { BTreeSet::new() }
}

/// The use of every resource in this window. `labels` are the [`labels`] of the run's threads.
pub(crate) fn uses(tick: &Tick, rest: &Rest, labels: &Labels) -> BTreeMap<Resource, Use> {
    let mut uses: BTreeMap<Resource, Use> = BTreeMap::new();
    let mut add = |kind, name: &str, share: Option<f64>, full: f64| {
        // Among several resources with one name, the fullest counts.
        let known = uses.entry((kind, name.to_owned())).or_default();
        known.share = if known.share > share { known.share } else { share };
        known.full = known.full.max(full);
    };
    let is = |holds: bool| f64::from(u8::from(holds));
    // A thread that is always runnable is saturated, even if other programs take its core for a part of the time. If
    // more such threads exist than cores, the cores are saturated instead.
    let wants_all = |thread: &Thread<f64>| thread.run + thread.wait >= 0.95 && thread.run >= 0.1;
    let wanting = tick.threads.iter().filter(|thread| wants_all(thread)).count();
    for thread in &tick.threads {
        let Some(name) = labels.get(&thread.tid) else { continue };
        let is_full = thread.run >= FULL || (wants_all(thread) && wanting <= tick.cores.len().max(1));
        add(Kind::Thread, name, Some(thread.run), is(is_full));
    }
    // A core that other programs saturate does not limit a server that needs little CPU.
    let wants = tick.server_cpu() + tick.server.wait;
    let waits = wants >= 0.8 && tick.server.wait >= 0.2 * wants;
    let filled = filled_cores(tick);
    for (number, core) in tick.cores.iter().enumerate() {
        let is_full = core.busy() >= CORE_FULL && (waits || filled.contains(&number));
        add(Kind::Core, &number.to_string(), Some(core.busy()), is(is_full));
        add(Kind::Softirq, &number.to_string(), Some(core.softirq), is(core.softirq >= FULL));
    }
    let on_disk = tick.threads.iter().filter(|thread| thread.state == 'D').count();
    let read: f64 = tick.processes.iter().filter_map(|process| process.read).sum();
    let written: f64 = tick.processes.iter().filter_map(|process| process.written).sum();
    for group in &tick.groups {
        if let Some(cores) = group.cores_max() {
            let full = group.throttled_periods.unwrap_or(0.0) / group.periods.unwrap_or(0.0).max(1e-9);
            add(Kind::Quota, group_name(&group.path), Some(tick.server_cpu() / cores.max(1e-9)), full.min(1.0));
        }
    }
    for disk in &tick.group_disks {
        // Prefer the group's count, which is taken at the throttle; the processes' own count is for kernels without it.
        let limits = [
            ("reads", disk.read_max, disk.read.or(Some(read))),
            ("writes", disk.written_max, disk.written.or(Some(written))),
            ("the number of reads", disk.reads_max, disk.reads),
            ("the number of writes", disk.writes_max, disk.writes),
        ];
        for (what, limit, had) in limits {
            let (Some(limit), Some(had)) = (limit.filter(|limit| *limit > 0.0), had) else { continue };
            let share = had / limit;
            let name = format!("{what} of {} in {}", disk.device, group_name(&disk.path));
            // The throttle releases a large read once in several windows; meanwhile threads wait and no bytes are read.
            // The mean share shows that the limit is the cause, not a slow disk.
            add(Kind::DiskLimit, &name, Some(share), is(share >= FULL || on_disk > 0));
        }
    }
    for disk in &tick.disks {
        add(Kind::Disk, &disk.device, Some(disk.busy), is(disk.busy >= FULL && on_disk > 0));
    }
    if let Some(some) = tick.pressure.memory_some {
        add(Kind::Memory, "of the machine", Some(some), is(some >= 0.5));
    }
    if let Some(limits) = tick.census.as_ref().map(|census| &census.limits) {
        let (server, client) = (limits.waiting_for_server, limits.waiting_for_client);
        add(Kind::Network, "to the clients", None, is(client >= 2.0 && client > 2.0 * server));
    }
    for process in &tick.processes {
        if let (Some(open), Some(max)) = (process.descriptors, process.descriptors_max) {
            let share = open / max.max(1.0);
            add(Kind::Descriptors, OF_SERVER, Some(share), is(open + 2.0 >= max || share >= 0.97));
        }
    }
    for listener in &tick.listeners {
        let is_full = listener.depth >= listener.limit || listener.drops.is_some_and(|drops| drops > 0.0);
        let share = listener.depth / listener.limit.max(1.0);
        add(Kind::AcceptQueue, OF_SERVER, Some(share.min(1.0)), is(is_full));
    }
    let mut pools: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let (mut locked, mut holding) = (0, 0);
    for thread in tick.threads.iter().filter(|thread| labels.contains_key(&thread.tid)) {
        let (size, busy) = pools.entry(pool_of(thread)).or_default();
        *size += 1;
        match doing(thread, rest) {
            Doing::Nothing => {}
            Doing::Asleep(place) if is_lock(&place) => {
                *busy += 1;
                locked += 1;
            }
            Doing::Running | Doing::Disk | Doing::Asleep(_) => {
                *busy += 1;
                holding += 1;
            }
        }
    }
    for (pool, (size, busy)) in pools {
        add(Kind::Pool, &pool, Some(busy as f64 / size as f64), is(busy == size));
    }
    add(Kind::Lock, "among its threads", None, is(locked >= 1 && holding <= 1));
    uses
}

#[cfg(test)]
mod tests {
    use super::*;
    use ammeter_monitor::source::{Group, GroupDisk, Process};
    use ammeter_monitor::{Census, CensusLimits, CpuShare, Listener, ServerUse};

    pub(crate) fn thread(name: &str, tid: u32, state: char, place: Option<&str>, run: f64) -> Thread<f64> {
        let sleeps_in = place.map(str::to_owned);
        Thread { name: name.to_owned(), pid: 1, tid, state, sleeps_in, run, ..Thread::default() }
    }

    #[test]
    fn pool_name_has_no_number() {
        for (name, expected) in [("worker-12", "worker"), ("nginx", "nginx"), ("kworker/0:1", "kworker"), ("77", "77")]
        {
            assert_eq!(pool_of(&thread(name, 1, 'S', None, 0.0)), expected);
        }
    }

    #[test]
    fn threads_and_cgroups_are_matched_across_restarts() {
        let run = |first: u32| {
            let names = [("nginx", 0.1), ("nginx", 0.0), ("nginx", 0.2), ("log", 0.1)];
            let threads = (first..).zip(names).map(|(tid, (name, run))| thread(name, tid, 'S', None, run)).collect();
            labels(&[Tick { threads, ..Tick::default() }])
        };
        assert_eq!(
            run(10).into_iter().collect::<Vec<_>>(),
            [(10, "nginx".into()), (12, "nginx #2".into()), (13, "log".into())]
        );
        assert_eq!(run(10).into_values().collect::<Vec<_>>(), run(77).into_values().collect::<Vec<_>>());
        assert_eq!(group_name("/sys/fs/cgroup/cpu/ammeter-run-10789-6447080-13"), "/sys/fs/cgroup/cpu/ammeter-run");
    }

    #[test]
    fn idle_wait_channel_is_most_common_sleep_at_rest() {
        let tick = |place: &str| Tick {
            threads: vec![
                thread("a1", 1, 'S', Some(place), 0.0),
                thread("b", 2, 'R', None, 1.0),
                // A thread that is never active.
                thread("a", 3, 'S', Some("sigsuspend"), 0.0),
            ],
            ..Tick::default()
        };
        let active = BTreeSet::from([1, 2]);
        let (idle, light) = ([tick("ep_poll"), tick("ep_poll"), tick("pipe")], [tick("futex")]);
        let found = rest(idle.iter(), light.iter(), &active);
        assert_eq!(found, Rest::from([("a".to_owned(), "ep_poll".to_owned())]));
        assert_eq!(rest([].iter(), light.iter(), &active)["a"], "futex");
        let check = |thread: Thread<f64>, expected: Doing| assert_eq!(doing(&thread, &found), expected);
        check(thread("a9", 9, 'S', Some("ep_poll"), 0.0), Doing::Nothing);
        check(thread("a9", 9, 'S', Some("futex"), 0.0), Doing::Asleep("futex".to_owned()));
        check(thread("a9", 9, 'S', None, 0.0), Doing::Nothing);
        check(thread("a9", 9, 'D', Some("folio_wait"), 0.0), Doing::Disk);
        check(thread("a9", 9, 'R', None, 0.0), Doing::Running);
    }

    #[test]
    fn each_resource_reports_saturation() {
        let all: BTreeMap<u32, String> = (1..10).map(|tid| (tid, format!("w{tid}"))).collect();
        let full = |tick: &Tick, kind: Kind| {
            let uses = uses(tick, &Rest::from([("w".to_owned(), "accept".to_owned())]), &all);
            uses.iter().filter(|((of, _), _)| *of == kind).map(|(_, one)| one.full).fold(0.0, f64::max)
        };
        let check =
            |kind: Kind, tick: Tick, expected: f64| assert_eq!(full(&tick, kind), expected, "{kind:?} {tick:?}");
        let threads = |threads: Vec<Thread<f64>>| Tick { threads, ..Tick::default() };
        check(Kind::Thread, threads(vec![thread("w", 1, 'R', None, 0.95)]), 1.0);
        check(Kind::Thread, threads(vec![Thread { wait: 0.6, ..thread("w", 1, 'R', None, 0.4) }]), 1.0);
        let wanting = |tid| Thread { wait: 0.6, ..thread("w", tid, 'R', None, 0.4) };
        check(Kind::Thread, threads(vec![wanting(1), wanting(2)]), 0.0);
        check(Kind::Thread, threads(vec![Thread { wait: 0.3, ..thread("w", 1, 'R', None, 0.4) }]), 0.0);
        let resting = || thread("w", 1, 'S', Some("accept"), 0.0);
        let asleep = |tid, place| thread("w", tid, 'S', Some(place), 0.0);
        check(Kind::Pool, threads(vec![asleep(2, "nanosleep"), asleep(3, "nanosleep")]), 1.0);
        check(Kind::Pool, threads(vec![asleep(2, "nanosleep"), resting()]), 0.0);
        check(Kind::Lock, threads(vec![asleep(2, "nanosleep"), asleep(3, "futex_do_wait")]), 1.0);
        check(
            Kind::Lock,
            threads(vec![asleep(2, "nanosleep"), asleep(3, "nanosleep"), asleep(4, "futex_do_wait")]),
            0.0,
        );
        check(Kind::Lock, threads(vec![asleep(2, "nanosleep"), resting()]), 0.0);
        let group = Group {
            quota: Some(0.02),
            period: Some(0.1),
            periods: Some(4.0),
            throttled_periods: Some(3.0),
            ..Group::default()
        };
        check(Kind::Quota, Tick { groups: vec![group], ..Tick::default() }, 0.75);
        let core = |system, idle| CpuShare { system, idle, ..CpuShare::default() };
        let cores = |user, wait| Tick {
            cores: vec![core(1.0, 0.0)],
            server: ServerUse { user, wait, ..ServerUse::default() },
            ..Tick::default()
        };
        check(Kind::Core, cores(0.5, 0.5), 1.0);
        check(Kind::Core, cores(0.5, 0.01), 0.0);
        check(Kind::Core, cores(0.01, 0.1), 0.0);
        // It may run on one core only, or on another one too.
        let pinned = |user, allowed: &[u32]| {
            let process = Process { cores: allowed.to_vec(), ..Process::default() };
            Tick { processes: vec![process], ..cores(user, 0.0) }
        };
        check(Kind::Core, pinned(0.8, &[0]), 1.0);
        check(Kind::Core, pinned(0.5, &[0]), 0.0);
        check(Kind::Core, pinned(0.9, &[0, 1]), 0.0);
        let process =
            |open| Process { pid: 1, descriptors: Some(open), descriptors_max: Some(64.0), ..Process::default() };
        check(Kind::Descriptors, Tick { processes: vec![process(63.0)], ..Tick::default() }, 1.0);
        check(Kind::Descriptors, Tick { processes: vec![process(40.0)], ..Tick::default() }, 0.0);
        let listener = |depth, drops| Listener { depth, limit: 8.0, drops, ..Listener::default() };
        let queue =
            |depth, drops| Tick { listeners: vec![listener(0.0, None), listener(depth, drops)], ..Tick::default() };
        check(Kind::AcceptQueue, queue(9.0, None), 1.0);
        check(Kind::AcceptQueue, queue(1.0, Some(3.0)), 1.0);
        check(Kind::AcceptQueue, queue(1.0, Some(0.0)), 0.0);
        let census = |waiting_for_client, waiting_for_server| Tick {
            census: Some(Census {
                limits: CensusLimits { waiting_for_client, waiting_for_server, ..CensusLimits::default() },
                ..Census::default()
            }),
            ..Tick::default()
        };
        check(Kind::Network, census(10.0, 1.0), 1.0);
        check(Kind::Network, census(10.0, 9.0), 0.0);
    }

    #[test]
    fn disk_limit_saturates_by_bytes_or_waiting_thread() {
        let disk =
            GroupDisk { path: "/g".into(), device: "8:0".into(), read_max: Some(1000.0), ..GroupDisk::default() };
        let tick = |bytes, state| Tick {
            group_disks: vec![disk.clone()],
            processes: vec![Process { pid: 1, read: Some(bytes), ..Process::default() }],
            threads: vec![thread("w", 1, state, None, 0.0)],
            ..Tick::default()
        };
        let found = |tick: &Tick| {
            uses(tick, &Rest::new(), &BTreeMap::from([(1, "w".to_owned())]))
                [&(Kind::DiskLimit, "reads of 8:0 in /g".to_owned())]
        };
        assert_eq!(found(&tick(500.0, 'S')), Use { share: Some(0.5), full: 0.0 });
        assert_eq!(found(&tick(500.0, 'D')), Use { share: Some(0.5), full: 1.0 });
        assert_eq!(found(&tick(950.0, 'S')).full, 1.0);
    }
}
