//! The differences between two samples.
//!
//! Pure. A counter that decreased (another kernel in a record, a reused thread number) counts as zero growth rather
//! than as a huge number. A figure that one of the samples lacks is `None`, never 0.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};

use amped_sys::sock_diag::TcpState;
use serde::Serialize;

use crate::figure::{Figures, figures};
use crate::published::{Class, Module};
use crate::sample::{Census, Listener, Own, Sample};
use crate::source::{
    Cpu, Disk, Group, GroupDisk, Interface, Memory, Paging, Pressure, Process, SOFTIRQS, System, Tcp, Thread,
};

/// The interval between two samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tick {
    /// End of the tick, in milliseconds since 1970 (UTC).
    pub wall_ms: u64,
    /// End of the tick, in seconds since the monitor began.
    pub at_s: f64,
    /// Length in seconds.
    pub interval_s: f64,
    /// All processors together, as shares of their total time, which add up to 1.
    pub cpu: CpuShare<f64>,
    /// Each processor.
    pub cores: Vec<CpuShare<f64>>,
    /// Non-idle share of the busiest processor.
    pub busiest_core: f64,
    /// Soft interrupts per second, by kind; kinds without any are omitted.
    pub softirqs_per_s: BTreeMap<String, f64>,
    /// Interrupts and tasks.
    pub system: System<f64>,
    /// Memory in use.
    pub memory: Memory<f64>,
    /// Paging.
    pub paging: Paging<f64>,
    /// Disks that exist.
    pub disks: Vec<Disk<f64>>,
    /// Pressure.
    pub pressure: Pressure<f64>,
    /// TCP in the server's network namespace.
    pub tcp: Tcp<f64>,
    /// The interfaces of that namespace.
    pub interfaces: Vec<Interface<f64>>,
    /// The server: its processes and their descendants.
    pub server: ServerUse<f64>,
    /// Its processes.
    pub processes: Vec<Process<f64>>,
    /// Its threads, busiest first.
    pub threads: Vec<Thread<f64>>,
    /// Control groups that limit the server.
    pub groups: Vec<Group<f64>>,
    /// The disk limits of these groups.
    pub group_disks: Vec<GroupDisk<f64>>,
    /// The server's listeners.
    pub listeners: Vec<Listener<f64>>,
    /// The last census of its connections.
    pub census: Option<Census<f64>>,
    /// Figures that the server publishes, if any.
    pub module: Option<ModuleRate>,
    /// The monitor itself.
    pub own: Own<f64>,
    /// The monitor's CPU use since it began, as a share of one processor.
    pub own_cpu_so_far: f64,
}

figures! {
    /// Shares of processor time.
    CpuShare "cpu"
    /// User code.
    user: N => Gauge Ratio,
    /// The kernel on behalf of a process.
    system: N => Gauge Ratio,
    /// Interrupts.
    interrupt: N => Gauge Ratio,
    /// Soft interrupts.
    softirq: N => Gauge Ratio,
    /// Stolen for another virtual machine.
    steal: N => Gauge Ratio,
    /// Idle while a process waited for a disk.
    iowait: N => Gauge Ratio,
    /// Idle.
    idle: N => Gauge Ratio,
}

figures! {
    /// Resources that a server used since the monitor began, including threads and children that have ended.
    ServerUse "server"
    /// User time of the server.
    user: N => Counter Seconds,
    /// System time of the server: system calls and page faults.
    system: N => Counter Seconds,
    /// Time that its listed threads waited for a processor, in total.
    wait: N => Counter Seconds,
    /// Processes of the server.
    processes: N => Gauge Things,
    /// Threads of the server.
    threads: N => Gauge Things,
}

/// Figures that a server publishes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ModuleRate {
    /// Counters since its start, by the names of [`Module`](crate::Module).
    pub counters: BTreeMap<String, u64>,
    /// The counters per second.
    pub per_s: BTreeMap<String, f64>,
    /// The gauges at the end of the tick.
    pub gauges: BTreeMap<String, u64>,
    /// Requests by class; classes without any since the server's start are omitted.
    pub classes: Vec<ClassRate>,
}

/// The requests of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassRate {
    /// Range of body sizes.
    pub size: String,
    /// Static or dynamic.
    pub kind: String,
    /// Replies since the server's start.
    pub replies: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
    /// Replies per second.
    pub replies_per_s: f64,
    /// Bytes of bodies per second.
    pub body_bytes_per_s: f64,
    /// Timed replies in this tick.
    pub timed: u64,
    /// Their phases; empty if there are none.
    pub phases: Vec<PhaseTime>,
}

/// A phase of the timed requests of a tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PhaseTime {
    /// Its name.
    pub name: String,
    /// Mean elapsed time per request, in microseconds.
    pub elapsed_us: f64,
    /// Mean CPU time per request, in microseconds.
    pub cpu_us: f64,
    /// Upper bound of the median, in microseconds, to within a factor of two; `None` if it is in the last bucket.
    pub p50_us_max: Option<f64>,
    /// Likewise of the 99th percentile.
    pub p99_us_max: Option<f64>,
}

impl Tick {
    /// The tick from one sample to a later one; `None` if it is not later.
    pub fn between(from: &Sample, to: &Sample) -> Option<Tick> {
        let micros = to.at_us.checked_sub(from.at_us).filter(|micros| *micros > 0)?;
        let seconds = micros as f64 / 1e6;
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
        let mut tick = Tick {
            wall_ms: to.wall_ms,
            at_s: to.at_us as f64 / 1e6,
            interval_s: seconds,
            cpu: CpuShare::of(&to.host.cpu.since(&from.host.cpu)),
            cores: from.host.cores.iter().zip(&to.host.cores).map(|(from, to)| CpuShare::of(&to.since(from))).collect(),
            system: to.host.system.since(Some(&from.host.system), seconds),
            memory: to.memory.since(None, seconds),
            paging: to.paging.since(Some(&from.paging), seconds),
            pressure: to.pressure.since(Some(&from.pressure), seconds),
            tcp: to.tcp.since(Some(&from.tcp), seconds),
            census: to.census.as_ref().map(Census::in_tick),
            module: to.module.as_ref().map(|to| ModuleRate::between(from.module.as_ref(), to, rate)),
            own: to.own.since(Some(&from.own), seconds),
            own_cpu_so_far: to.own.cpu as f64 / 1e3 / to.at_us.max(1) as f64,
            ..Tick::default()
        };
        tick.busiest_core = tick.cores.iter().map(CpuShare::busy).fold(0.0, f64::max);
        for ((name, from), to) in SOFTIRQS.iter().zip(&from.host.softirqs).zip(&to.host.softirqs) {
            if to > from {
                tick.softirqs_per_s.insert((*name).to_owned(), rate(*from, *to));
            }
        }
        // A new device has no known start.
        tick.disks = Vec::from_iter(to.disks.iter().filter_map(|to| {
            let from = from.disks.iter().find(|from| from.device == to.device)?;
            Some(to.since(Some(from), seconds))
        }));
        tick.interfaces = Vec::from_iter(to.interfaces.iter().filter_map(|to| {
            let from = from.interfaces.iter().find(|from| from.device == to.device)?;
            Some(to.since(Some(from), seconds))
        }));
        tick.add_server(from, to, seconds);
        Some(tick)
    }

    fn add_server(&mut self, from: &Sample, to: &Sample, seconds: f64) {
        let earlier: HashMap<u32, _> = from.threads.iter().map(|thread| (thread.tid, thread)).collect();
        let (mut user_of_threads, mut system_of_threads) = (0.0, 0.0);
        for to in &to.threads {
            let is_same = |from: &&Thread| from.pid == to.pid && from.run <= to.run;
            let known = earlier.get(&to.tid).copied().filter(is_same);
            // A thread that was listed after its first tick is shown with its mean since it began: all of its time in
            // this tick would be more than a core.
            let began_s = to.age.filter(|_| known.is_none()).map_or(0.0, |age| age as f64 / 1e9);
            let thread = to.since(known, seconds.max(began_s));
            // A short tick may have no unit of either; then the split is that of the thread's whole life.
            let (user, system) = if thread.user + thread.system > 0.0 {
                (thread.user, thread.system)
            } else {
                (to.user as f64, to.system as f64)
            };
            let share = if user + system > 0.0 { user / (user + system) } else { 0.0 };
            user_of_threads += thread.run * share;
            system_of_threads += thread.run * (1.0 - share);
            self.server.wait += thread.wait;
            self.threads.push(thread);
        }
        (self.server.user, self.server.system) = match (from.server.unwrap_or_default(), to.server) {
            (from, Some(to)) => (
                to.user_ns.saturating_sub(from.user_ns) as f64 / 1e9 / seconds,
                to.system_ns.saturating_sub(from.system_ns) as f64 / 1e9 / seconds,
            ),
            // A record of a monitor that did not count threads that have ended.
            (_, None) => (user_of_threads, system_of_threads),
        };
        self.threads.sort_by(|a, b| b.run.total_cmp(&a.run).then(a.tid.cmp(&b.tid)));
        let process = |to: &Process| to.since(from.processes.iter().find(|from| from.pid == to.pid), seconds);
        self.processes = to.processes.iter().map(process).collect();
        (self.server.processes, self.server.threads) = (self.processes.len() as f64, to.thread_count() as f64);
        let group = |to: &Group| to.since(from.groups.iter().find(|from| from.path == to.path), seconds);
        self.groups = to.groups.iter().map(group).collect();
        self.group_disks = Vec::from_iter(to.group_disks.iter().map(|to| {
            let is_same = |from: &&GroupDisk| (&from.path, &from.device) == (&to.path, &to.device);
            to.since(from.group_disks.iter().find(is_same), seconds)
        }));
        for to in &to.listeners {
            let from = from.listeners.iter().find(|from| from.inode == to.inode);
            self.listeners.push(Listener { drops_total: to.drops, ..to.since(from, seconds) });
        }
    }

    /// Calls `each` with the name and value of every single-valued figure. For
    /// several things, such as disks, it is the sum.
    pub fn each_figure(&self, each: impl FnMut(Name, Option<f64>)) {
        let mut to = Each(each);
        to.named("", "at_s", "Time since the monitor started.", Some(self.at_s));
        to.named("", "interval_s", "Time since the previous sample.", Some(self.interval_s));
        to.one(&self.cpu);
        to.named("", "busiest_core", "Time that the busiest processor was not idle.", Some(self.busiest_core));
        to.one(&self.system);
        to.one(&self.memory);
        to.one(&self.paging);
        to.one(&self.pressure);
        to.all(&self.disks);
        to.all(&self.interfaces);
        to.one(&self.tcp);
        to.one(&self.server);
        to.all(&self.processes);
        to.all(&self.listeners);
        for state in connection_states() {
            let count = self.connections(state).map(f64::from);
            to.named("connections", state, "Connections at the server's ports in this state.", count);
        }
        to.all(self.census.as_ref().map(|census| &census.limits).as_slice());
        let rate = |key: &str| self.module.as_ref()?.per_s.get(key).copied();
        to.named("module", "requests_per_s", "Requests that the server has read.", rate("requests"));
        to.named("module", "sent_bytes_per_s", "Bytes that the server has sent.", rate("sent_bytes"));
        to.named("module", "loop_busy", "Time that its loops were busy.", rate("loop_busy_ns").map(|ns| ns / 1e9));
        to.named("module", "loop_stalls_per_s", "Stalls of its loops.", rate("loop_stalls"));
        let queue = self.module.as_ref().and_then(|module| module.gauges.get("helper_queue"));
        to.named("module", "helper_queue", "Tasks that wait for a helper.", queue.map(|n| *n as f64));
        to.one(&self.own);
    }

    /// The server's CPU use, user and system, in processors.
    pub fn server_cpu(&self) -> f64 {
        self.server.user + self.server.system
    }

    /// Number of connections in this state, by the last census.
    pub fn connections(&self, state: &str) -> Option<u32> {
        Some(self.census.as_ref()?.states.get(state).copied().unwrap_or(0))
    }
}

/// The states of a connection.
pub(crate) fn connection_states() -> impl Iterator<Item = &'static str> {
    let states = TcpState::ALL.into_iter().filter(|(state, _)| !matches!(state, TcpState::Listen | TcpState::Close));
    states.map(|(_, name)| name)
}

/// The name of a tick's figure, with its unit: `tcp_retransmits_per_s`.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    prefix: &'static str,
    name: &'static str,
    /// Help text, one sentence.
    pub help: &'static str,
}

impl Name {
    /// The figure of this name, if there is one.
    pub fn of(text: &str) -> Option<Name> {
        let mut found = None;
        Tick::default().each_figure(|name, _| found = found.or(Some(name).filter(|name| name.is(text))));
        found
    }

    /// Its unit, for plots.
    pub fn unit(&self) -> &'static str {
        let units = [("_bytes_per_s", "B/s"), ("_per_s", "1/s"), ("_bytes", "B"), ("_s", "s")];
        units.iter().find(|(end, _)| self.name.ends_with(end)).map_or("", |(_, unit)| unit)
    }

    /// Its help text, for use within a sentence.
    pub fn words(&self) -> String {
        let (first, rest) = self.help.trim_end_matches('.').split_at(1);
        first.to_lowercase() + rest
    }

    fn is(&self, text: &str) -> bool {
        let name = text.strip_suffix(self.name).and_then(|rest| rest.strip_prefix(self.prefix));
        name.is_some_and(|between| between == if self.prefix.is_empty() { "" } else { "_" })
    }
}

impl Display for Name {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let Name { prefix, name, .. } = self;
        if prefix.is_empty() { to.write_str(name) } else { write!(to, "{prefix}_{name}") }
    }
}

/// Receives the figures of a tick, one by one.
struct Each<F>(F);

impl<F: FnMut(Name, Option<f64>)> Each<F> {
    fn named(&mut self, prefix: &'static str, name: &'static str, help: &'static str, value: Option<f64>) {
        self.0(Name { prefix, name, help }, value);
    }

    fn one<T: Figures<f64>>(&mut self, of: &T) {
        self.all(&[of]);
    }

    /// Reports their sums, where all values are known.
    fn all<T: Figures<f64>>(&mut self, of: &[T]) {
        let mut values: Vec<_> = of.iter().map(T::values).collect();
        for figure in T::FIGURES {
            // Advance every iterator: a sum would stop at the first unknown value, and from
            // then on add different figures.
            let of_figure: Vec<Option<f64>> = values.iter_mut().map(|values| values.next().flatten()).collect();
            let sum = of_figure.into_iter().sum::<Option<f64>>();
            self.named(T::PREFIX, figure.tick_name, figure.help, sum.filter(|_| !of.is_empty()));
        }
    }
}

impl ModuleRate {
    /// Rates are unknown, and 0, if the server published nothing before.
    fn between(from: Option<&Module>, to: &Module, rate: impl Fn(u64, u64) -> f64) -> ModuleRate {
        let from = from.unwrap_or(to);
        let before = |key: &str, now: u64| from.counters.get(key).copied().unwrap_or(now);
        let per_s = to.counters.iter().map(|(key, now)| (key.clone(), rate(before(key, *now), *now))).collect();
        let seen = to.classes.iter().enumerate().filter(|(_, class)| class.replies > 0 || class.body_bytes > 0);
        let classes = seen.map(|(number, to_class)| {
            let same = |class: &&Class| (&class.size, &class.kind) == (&to_class.size, &to_class.kind);
            let from_class = from.classes.get(number).filter(same).unwrap_or(to_class);
            ClassRate::between(from_class, to_class, to.first_bucket_bits, &rate)
        });
        let classes = classes.collect();
        ModuleRate { counters: to.counters.clone(), per_s, gauges: to.gauges.clone(), classes }
    }
}

impl ClassRate {
    fn between(from: &Class, to: &Class, first_bucket_bits: u32, rate: impl Fn(u64, u64) -> f64) -> ClassRate {
        let timed = to.timed.saturating_sub(from.timed);
        let phases = from.phases.iter().zip(&to.phases).filter(|(from, to)| timed > 0 && from.name == to.name);
        let phases = phases.map(|(from, to)| {
            let mean = |from: u64, to: u64| to.saturating_sub(from) as f64 / timed as f64 / 1e3;
            // A class that was not timed before has no buckets there.
            let before = from.buckets.iter().copied().chain(std::iter::repeat(0));
            let buckets: Vec<u64> = to.buckets.iter().zip(before).map(|(to, from)| to.saturating_sub(from)).collect();
            PhaseTime {
                name: to.name.clone(),
                elapsed_us: mean(from.elapsed_ns, to.elapsed_ns),
                cpu_us: mean(from.cpu_ns, to.cpu_ns),
                p50_us_max: quantile_us(&buckets, 0.5, first_bucket_bits),
                p99_us_max: quantile_us(&buckets, 0.99, first_bucket_bits),
            }
        });
        ClassRate {
            size: to.size.clone(),
            kind: to.kind.clone(),
            replies: to.replies,
            body_bytes: to.body_bytes,
            replies_per_s: rate(from.replies, to.replies),
            body_bytes_per_s: rate(from.body_bytes, to.body_bytes),
            timed,
            phases: phases.collect(),
        }
    }

    /// Mean time of its requests over all phases, in microseconds: elapsed and CPU time; `None` if none was timed.
    pub fn whole_us(&self) -> Option<(f64, f64)> {
        let sum = |of: fn(&PhaseTime) -> f64| self.phases.iter().map(of).sum();
        (!self.phases.is_empty()).then(|| (sum(|phase| phase.elapsed_us), sum(|phase| phase.cpu_us)))
    }
}

/// Upper end of the bucket that contains this quantile, in microseconds; `None`
/// for the last bucket, which is unbounded.
fn quantile_us(buckets: &[u64], share: f64, first_bucket_bits: u32) -> Option<f64> {
    let rank = (share * buckets.iter().map(|bucket| *bucket as f64).sum::<f64>()).ceil().max(1.0);
    let mut sum = 0.0;
    let number = buckets.iter().position(|bucket| {
        sum += *bucket as f64;
        sum >= rank
    })?;
    (number + 1 < buckets.len()).then(|| 2f64.powi(first_bucket_bits as i32 + number as i32) / 1e3)
}

impl CpuShare<f64> {
    fn of(cpu: &Cpu) -> CpuShare<f64> {
        let share = |part: u64| part as f64 / cpu.total().max(1) as f64;
        CpuShare {
            user: share(cpu.user),
            system: share(cpu.system),
            interrupt: share(cpu.interrupt),
            softirq: share(cpu.softirq),
            steal: share(cpu.steal),
            iowait: share(cpu.iowait),
            // The whole of a tick that was too short for a unit of time.
            idle: if cpu.total() == 0 { 1.0 } else { share(cpu.idle) },
        }
    }

    /// All but idle time.
    pub fn busy(&self) -> f64 {
        1.0 - self.idle - self.iowait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::Phase;
    use crate::source::Host;
    use amped_measure::account::CpuTime;

    fn thread(tid: u32, run_ms: u64, wait_ms: u64, user: u64, system: u64) -> Thread {
        let (run, wait) = (run_ms * 1_000_000, wait_ms * 1_000_000);
        let [user, system] = [user, system].map(|ticks| ticks * 10_000_000);
        Thread { pid: 1, tid, run, wait, user, system, state: 'S', ..Thread::default() }
    }

    fn later(by_us: u64) -> Sample {
        Sample { at_us: 1_000_000 + by_us, ..Sample::default() }
    }

    #[test]
    fn rates_require_advancing_clock() {
        assert_eq!(Tick::between(&later(0), &later(0)), None);
        assert_eq!(Tick::between(&later(1), &later(0)), None);
        let tick = Tick::between(&later(0), &later(2_000_000)).unwrap();
        assert_eq!((tick.interval_s, tick.at_s, tick.cpu.idle), (2.0, 3.0, 1.0));
        assert_eq!((tick.memory, tick.tcp, tick.census), (Memory::default(), Tcp::default(), None));
    }

    #[test]
    fn server_figures_become_rates() {
        let class = |size: &str, replies, timed, elapsed_ns, buckets: &[u64]| Class {
            size: size.to_owned(),
            kind: "static".to_owned(),
            replies,
            body_bytes: 1000 * replies,
            timed,
            phases: vec![Phase {
                name: "parsing".to_owned(),
                elapsed_ns,
                cpu_ns: elapsed_ns / 2,
                buckets: buckets.to_vec(),
            }],
        };
        let module = |requests, waiting, classes| Module {
            counters: [("requests".to_owned(), requests)].into(),
            gauges: [("helper_queue".to_owned(), waiting)].into(),
            classes,
            first_bucket_bits: 10,
        };
        let from = module(100, 9, vec![class("<1K", 0, 0, 0, &[]), class("<10K", 5, 1, 7000, &[1, 0, 0])]);
        let to = module(300, 2, vec![class("<1K", 0, 0, 0, &[]), class("<10K", 25, 5, 15_000, &[2, 3, 0])]);
        let tick = |from: Option<Module>, to: Option<Module>| {
            let (mut first, mut second) = (later(0), later(2_000_000));
            (first.module, second.module) = (from, to);
            Tick::between(&first, &second).unwrap().module
        };
        let found = tick(Some(from.clone()), Some(to.clone())).unwrap();
        assert_eq!(
            (found.counters["requests"], found.per_s["requests"], found.gauges["helper_queue"]),
            (300, 100.0, 2)
        );
        let [one] = &found.classes[..] else { panic!("{found:?}") };
        assert_eq!((one.replies, one.replies_per_s, one.body_bytes_per_s, one.timed), (25, 10.0, 10_000.0, 4));
        // 8 us for 4 requests, one of which was in the first bucket.
        let expected = PhaseTime {
            name: "parsing".to_owned(),
            elapsed_us: 2.0,
            cpu_us: 1.0,
            p50_us_max: Some(2.048),
            p99_us_max: Some(2.048),
        };
        assert_eq!(one.phases, [expected]);
        assert_eq!(one.whole_us(), Some((2.0, 1.0)));
        // A server that has just started to publish has totals and no rates; another server counts from zero.
        let begun = tick(None, Some(to.clone())).unwrap();
        assert_eq!((begun.counters["requests"], begun.per_s["requests"], begun.classes[0].phases.len()), (300, 0.0, 0));
        assert_eq!(tick(Some(to.clone()), Some(from)).unwrap().per_s["requests"], 0.0);
        assert_eq!(tick(Some(to), None), None);
    }

    #[test]
    fn quantiles_are_bucket_bounds() {
        let check = |buckets: &[u64], share: f64, expected: Option<f64>| {
            assert_eq!(quantile_us(buckets, share, 10), expected, "{buckets:?} {share}");
        };
        check(&[1, 1, 0], 0.5, Some(1.024));
        check(&[1, 2, 0], 0.5, Some(2.048));
        check(&[99, 0, 1, 0], 0.99, Some(1.024));
        check(&[98, 0, 2, 0], 0.99, Some(4.096));
        check(&[0, 0, 5], 0.5, None);
        check(&[0, 0, 0], 0.5, None);
        check(&[], 0.5, None);
    }

    #[test]
    fn cpu_shares_are_computed_per_core() {
        let cpu = |user, system, idle| Cpu { user, system, idle, ..Cpu::default() };
        let host = |cores: Vec<Cpu>| {
            let cpu = cores.iter().fold(Cpu::default(), |sum, core| {
                cpu(sum.user + core.user, sum.system + core.system, sum.idle + core.idle)
            });
            Host { cpu, cores, softirqs: vec![0; 10], ..Host::default() }
        };
        let (mut from, mut to) = (later(0), later(1_000_000));
        from.host = host(vec![cpu(0, 0, 0), cpu(100, 0, 0)]);
        to.host = host(vec![cpu(75, 25, 0), cpu(100, 0, 100)]);
        to.host.softirqs[3] = 500;
        let tick = Tick::between(&from, &to).unwrap();
        assert_eq!((tick.cpu.user, tick.cpu.system, tick.cpu.idle), (0.375, 0.125, 0.5));
        assert_eq!(tick.busiest_core, 1.0);
        assert_eq!(tick.softirqs_per_s, BTreeMap::from([("net_rx".to_owned(), 500.0)]));
    }

    #[test]
    fn server_is_sum_of_its_threads() {
        let (mut from, mut to) = (later(0), later(2_000_000));
        from.threads = vec![thread(1, 500, 0, 10, 10), thread(2, 100, 100, 1, 0), thread(3, 900, 0, 5, 5)];
        // The third has ended, the fourth is new, the fifth reuses the number of a thread of another process.
        to.threads = vec![thread(1, 1500, 200, 10 + 75, 10 + 25), thread(2, 100, 100, 1, 0), thread(4, 200, 0, 0, 0)];
        from.threads.push(Thread { pid: 99, ..thread(5, 7000, 0, 9, 9) });
        to.threads.push(thread(5, 400, 0, 10, 30));
        let tick = Tick::between(&from, &to).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(tick.server_cpu(), 0.5 + 0.1 + 0.2);
        near(tick.server.user, 0.5 * 0.75 + 0.2 * 0.25);
        near(tick.server.wait, 0.1);
        assert_eq!(tick.threads.iter().map(|one| one.tid).collect::<Vec<_>>(), [1, 5, 4, 2]);
    }

    #[test]
    fn server_time_includes_ended_threads() {
        let sample = |by_us, user_ms: u64, system_ms: u64| {
            let used = CpuTime { user_ns: user_ms * 1_000_000, system_ns: system_ms * 1_000_000 };
            let process = |pid, threads| Process { pid, threads: Some(threads), ..Process::default() };
            let (threads, processes) = (vec![thread(1, 500, 0, 10, 10)], vec![process(1, 600), process(2, 3)]);
            Sample { server: Some(used), threads, processes, ..later(by_us) }
        };
        let tick = Tick::between(&sample(0, 100, 40), &sample(500_000, 300, 90)).unwrap();
        let ServerUse { user, system, processes, threads, .. } = tick.server;
        assert_eq!((user, system, processes, threads), (0.4, 0.1, 2.0, 603.0));
    }

    #[test]
    fn thread_that_is_listed_late_has_its_mean() {
        let age = |ms: u64| Some(ms * 1_000_000);
        let (from, mut to) = (later(0), later(50_000));
        // The first began 800 ms ago and ran for 600 ms; the second began in this tick.
        to.threads = vec![Thread { age: age(800), ..thread(1, 600, 200, 0, 0) }, thread(2, 25, 0, 0, 0)];
        to.threads[1].age = age(30);
        let tick = Tick::between(&from, &to).unwrap();
        let found: Vec<_> =
            tick.threads.iter().map(|one| [one.run, one.wait].map(|share| (share * 1e6).round())).collect();
        assert_eq!(found, [[750_000.0, 250_000.0], [500_000.0, 0.0]]);
    }

    #[test]
    fn counters_become_rates_per_second() {
        let (mut from, mut to) = (later(0), later(500_000));
        let paging = |pages| Paging { major_page_faults: Some(pages), ..Paging::default() };
        (from.paging, to.paging) = (paging(10), paging(20));
        let pressure = |us: u64| Pressure { cpu_some: Some(us * 1000), memory_some: Some(7), ..Pressure::default() };
        (from.pressure, to.pressure) = (pressure(0), pressure(250_000));
        let disk = |reads| Disk {
            device: "vda".into(),
            reads,
            read: reads * 4096,
            busy: reads * 4_000_000,
            in_flight: reads,
            ..Disk::default()
        };
        (from.disks, to.disks) = (vec![disk(0)], vec![disk(100), Disk { device: "new".into(), ..Disk::default() }]);
        (from.tcp.listen_drops, to.tcp.listen_drops, to.tcp.retransmits) = (Some(50), Some(60), Some(1));
        (from.tcp.resets, to.tcp.resets, to.tcp.time_wait) = (Some(50), Some(40), Some(3));
        let interface = |received| Interface { device: "lo".into(), received, ..Interface::default() };
        (from.interfaces, to.interfaces) = (vec![interface(50)], vec![interface(60)]);
        let process = |bytes| Process { pid: 4, read: Some(bytes), ..Process::default() };
        (from.processes, to.processes) = (vec![process(0)], vec![process(1 << 20)]);
        to.own = Own { cpu: 1_000_000, interval: 100_000_000, ..Own::default() };
        let tick = Tick::between(&from, &to).unwrap();
        assert_eq!(tick.paging.major_page_faults, Some(20.0));
        let Pressure { cpu_some, memory_some, io_full, .. } = tick.pressure;
        assert_eq!((cpu_some, memory_some, io_full), (Some(0.5), Some(0.0), None));
        assert_eq!(tick.disks.len(), 1);
        assert_eq!((tick.disks[0].read, tick.disks[0].busy, tick.disks[0].in_flight), (819_200.0, 0.8, 100.0));
        // A figure that was unknown before has no rate, and a counter that decreased counts as zero growth.
        let Tcp { listen_drops, retransmits, resets, time_wait, .. } = tick.tcp;
        assert_eq!((listen_drops, retransmits, resets, time_wait), (Some(20.0), None, Some(0.0), Some(3.0)));
        assert_eq!((tick.interfaces[0].received, tick.processes[0].read), (20.0, Some(2.0 * 1_048_576.0)));
        assert_eq!(((tick.own.cpu * 1e6).round(), tick.own.interval), (2000.0, 0.1));
        let text = serde_json::to_string(&tick).unwrap();
        for part in [
            r#""device":"vda","reads_per_s":200.0,"read_bytes_per_s":819200.0"#,
            r#""in_flight":100,"busy":0.8"#,
            r#""tcp":{"resets_per_s":0.0,"listen_drops_per_s":20.0,"time_wait":3}"#,
            r#""own":{"cpu":0.002,"interval_s":0.1,"#,
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn drops_are_matched_by_socket() {
        let listener = |inode, drops| Listener { inode, drops, ..Listener::default() };
        let (mut from, mut to) = (later(0), later(2_000_000));
        from.listeners = vec![listener(1, Some(5)), listener(2, Some(9))];
        to.listeners = vec![listener(1, Some(8)), listener(2, Some(9)), listener(3, Some(9)), listener(4, None)];
        let tick = Tick::between(&from, &to).unwrap();
        let found: Vec<_> = tick.listeners.iter().map(|one| (one.drops, one.drops_total)).collect();
        assert_eq!(found, [(Some(1.5), Some(8)), (Some(0.0), Some(9)), (None, Some(9)), (None, None)]);
    }
}
