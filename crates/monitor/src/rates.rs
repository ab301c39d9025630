//! What happened between two samples.
//!
//! Pure. A counter that has gone back (another kernel in a record, a thread whose number was given again) counts as nothing
//! rather than as a huge number. What one of the samples lacks is `None`, never 0.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::published::{Class, Module};
use crate::sample::{Census, Sample};
use crate::source::{Cpu, DiskCount, DiskLimit, Group, Memory, SOFTIRQS, Stall};

/// One step of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tick {
    /// Milliseconds since 1970, UTC, at its end.
    pub wall_ms: u64,
    /// Seconds since the monitor began, at its end.
    pub at_s: f64,
    /// Its length in seconds.
    pub interval_s: f64,
    /// All processors together; shares of all their time, which add up to 1.
    pub cpu: CpuShare,
    /// Each processor.
    pub cores: Vec<CpuShare>,
    /// The busiest processor's share of time that was not idle.
    pub busiest_core: f64,
    /// Interrupts a second.
    pub interrupts_per_s: f64,
    /// Soft interrupts a second, by kind; kinds without any are left out.
    pub softirqs_per_s: BTreeMap<String, f64>,
    /// Switches of tasks a second.
    pub context_switches_per_s: f64,
    /// What memory holds.
    pub memory: Option<Memory>,
    /// Paging.
    pub paging: Option<PagingRate>,
    /// Disks that are there.
    pub disks: Vec<DiskRate>,
    /// Pressure.
    pub pressure: Option<PressureShare>,
    /// The network.
    pub network: Option<NetworkRate>,
    /// The server's processors' worth of user time: 1 is one processor all the time.
    pub server_user: f64,
    /// Likewise in the kernel, system calls and faults.
    pub server_system: f64,
    /// Likewise waiting for a processor, all threads together.
    pub server_wait: f64,
    /// The server's processes.
    pub processes: Vec<ProcessRate>,
    /// The server's threads, the busiest first.
    pub threads: Vec<ThreadRate>,
    /// Control groups that limit the server.
    pub groups: Vec<GroupRate>,
    /// The server's listeners.
    pub listeners: Vec<ListenerRate>,
    /// Its connections, as they were counted last.
    pub census: Option<Census>,
    /// What it tells of itself, if it does.
    pub module: Option<ModuleRate>,
    /// What the monitor used itself, as a share of one processor.
    pub own_cpu: f64,
    /// Likewise since it began.
    pub own_cpu_so_far: f64,
    /// How long after this tick the next one is planned, in seconds.
    pub next_interval_s: f64,
}

/// Shares of processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuShare {
    /// User code.
    pub user: f64,
    /// The kernel for a process.
    pub system: f64,
    /// Interrupts.
    pub interrupt: f64,
    /// Soft interrupts.
    pub softirq: f64,
    /// Another virtual machine.
    pub steal: f64,
    /// Nothing, while a process waited for a disk.
    pub iowait: f64,
    /// Nothing.
    pub idle: f64,
}

/// Paging, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PagingRate {
    /// Bytes from block devices.
    pub in_bytes_per_s: f64,
    /// Bytes to them.
    pub out_bytes_per_s: f64,
    /// Pages from and to swap.
    pub swap_pages_per_s: f64,
    /// Faults.
    pub faults_per_s: f64,
    /// Faults that waited for a disk.
    pub major_faults_per_s: f64,
}

/// One disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiskRate {
    /// Its name.
    pub name: String,
    /// Reads a second.
    pub reads_per_s: f64,
    /// Bytes read a second.
    pub read_bytes_per_s: f64,
    /// Writes a second.
    pub writes_per_s: f64,
    /// Bytes written a second.
    pub write_bytes_per_s: f64,
    /// How long a read took, in milliseconds; `None` without one.
    pub read_ms: Option<f64>,
    /// The share of time with something under way.
    pub busy: f64,
    /// Under way at the end.
    pub in_flight: u64,
}

/// Shares of time in which work waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PressureShare {
    /// Some for a processor.
    pub cpu_some: f64,
    /// Some for memory.
    pub memory_some: f64,
    /// All for memory.
    pub memory_full: f64,
    /// Some for a disk.
    pub io_some: f64,
    /// All for a disk.
    pub io_full: f64,
}

/// The network, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NetworkRate {
    /// Bytes received, all interfaces together.
    pub in_bytes_per_s: f64,
    /// Bytes sent.
    pub out_bytes_per_s: f64,
    /// Packets received.
    pub in_packets_per_s: f64,
    /// Packets sent.
    pub out_packets_per_s: f64,
    /// Packets dropped, in and out.
    pub drops_per_s: f64,
    /// TCP segments received.
    pub segments_in_per_s: f64,
    /// TCP segments sent.
    pub segments_out_per_s: f64,
    /// TCP segments sent again.
    pub segments_again_per_s: f64,
    /// Connections that others began.
    pub passive_opens_per_s: f64,
    /// Connections that were reset.
    pub resets_per_s: f64,
    /// Times that some listener's queue was full.
    pub listen_overflows_per_s: f64,
    /// Connections that some listener turned away.
    pub listen_drops_per_s: f64,
    /// Sockets in `TIME_WAIT` at the end.
    pub time_wait_now: u64,
}

/// One process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ProcessRate {
    /// Its number.
    pub pid: u32,
    /// Memory that is there, in bytes; what processes share counts for each.
    pub resident_bytes: u64,
    /// Bytes that it had read from disks, a second; `None` if that may not be seen.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes that it had written.
    pub write_bytes_per_s: Option<f64>,
    /// Descriptors that it has open.
    pub descriptors: Option<u64>,
    /// How many it may have.
    pub descriptors_max: Option<u64>,
}

/// What a control group had of a disk, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DiskUse {
    /// Bytes read.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes written.
    pub write_bytes_per_s: Option<f64>,
    /// Reads.
    pub reads_per_s: Option<f64>,
    /// Writes.
    pub writes_per_s: Option<f64>,
}

/// A control group that limits the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupRate {
    /// Its folder.
    pub path: String,
    /// Processors' worth of time that its members may use.
    pub cores_max: Option<f64>,
    /// Periods of the quota in which a member wanted to run.
    pub periods: u64,
    /// Of those, in which they had used up what they may.
    pub throttled_periods: u64,
    /// What they may have of disks.
    pub disks: Vec<DiskLimit>,
    /// What they had of these, a second: in the same order, `None` where the kernel does not count it.
    pub disk_use: Vec<DiskUse>,
    /// Bytes of memory that they may have.
    pub memory_max_bytes: Option<u64>,
    /// Bytes of memory that they have.
    pub memory_bytes: Option<u64>,
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ThreadRate {
    /// Its process.
    pub pid: u32,
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Its state at the end: R, S, D, T.
    pub state: char,
    /// The share of time that it ran.
    pub run: f64,
    /// The share of time that it could have run and waited for a processor.
    pub wait: f64,
    /// Page faults that waited for a disk, a second.
    pub major_faults_per_s: f64,
    /// The kernel's function in which it sleeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleeps_in: Option<String>,
}

/// What a server tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ModuleRate {
    /// What has happened since its start, by the names of [`Module`](crate::Module).
    pub counters: BTreeMap<String, u64>,
    /// The same, a second.
    pub per_s: BTreeMap<String, f64>,
    /// What there was at the end.
    pub gauges: BTreeMap<String, u64>,
    /// Requests by class; classes without any since the server's start are left out.
    pub classes: Vec<ClassRate>,
}

/// Requests of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassRate {
    /// The sizes of bodies.
    pub size: String,
    /// Static or dynamic.
    pub kind: String,
    /// Replies since the server's start.
    pub replies: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
    /// Replies a second.
    pub replies_per_s: f64,
    /// Bytes of bodies a second.
    pub body_bytes_per_s: f64,
    /// Replies of this tick that were timed.
    pub timed: u64,
    /// What these took; empty without one.
    pub phases: Vec<PhaseTime>,
}

/// A phase of the requests of a tick that were timed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PhaseTime {
    /// Its name.
    pub name: String,
    /// Elapsed time of a request, in microseconds, the mean.
    pub elapsed_us: f64,
    /// CPU time of a request, in microseconds, the mean.
    pub cpu_us: f64,
    /// Half of them took no longer than this, in microseconds, to within a factor of two; `None`: longer than is told.
    pub p50_us_max: Option<f64>,
    /// Likewise 99 of 100.
    pub p99_us_max: Option<f64>,
}

/// One listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListenerRate {
    /// Address and port.
    pub address: String,
    /// Connections that wait to be accepted.
    pub depth: u32,
    /// How many may wait.
    pub limit: u32,
    /// Turned away since it listens.
    pub drops: Option<u32>,
    /// Turned away in this tick; `None` for a listener that is new.
    pub new_drops: Option<u32>,
}

impl Tick {
    /// From one sample to a later one; `None` if it is not later.
    pub fn between(from: &Sample, to: &Sample) -> Option<Tick> {
        let micros = to.at_us.checked_sub(from.at_us).filter(|micros| *micros > 0)?;
        let seconds = micros as f64 / 1e6;
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
        let mut tick = Tick {
            wall_ms: to.wall_ms,
            at_s: to.at_us as f64 / 1e6,
            interval_s: seconds,
            cpu: CpuShare::of(to.host.cpu.since(&from.host.cpu)),
            interrupts_per_s: rate(from.host.interrupts, to.host.interrupts),
            context_switches_per_s: rate(from.host.context_switches, to.host.context_switches),
            memory: to.memory,
            census: to.census.clone(),
            own_cpu: rate(from.own.cpu_ns, to.own.cpu_ns) / 1e9,
            own_cpu_so_far: to.own.cpu_ns as f64 / 1e3 / to.at_us.max(1) as f64,
            next_interval_s: to.own.interval_us as f64 / 1e6,
            ..Tick::default()
        };
        let share = |(from, to): (&Cpu, &Cpu)| CpuShare::of(to.since(from));
        tick.cores = from.host.cores.iter().zip(&to.host.cores).map(share).collect();
        tick.busiest_core = tick.cores.iter().map(CpuShare::busy).fold(0.0, f64::max);
        for ((name, from), to) in SOFTIRQS.iter().zip(&from.host.softirqs).zip(&to.host.softirqs) {
            if to > from {
                tick.softirqs_per_s.insert((*name).to_owned(), rate(*from, *to));
            }
        }
        tick.paging = from.paging.zip(to.paging).map(|(from, to)| PagingRate {
            in_bytes_per_s: rate(from.in_bytes, to.in_bytes),
            out_bytes_per_s: rate(from.out_bytes, to.out_bytes),
            swap_pages_per_s: rate(from.swap_in_pages, to.swap_in_pages) + rate(from.swap_out_pages, to.swap_out_pages),
            faults_per_s: rate(from.faults, to.faults),
            major_faults_per_s: rate(from.major_faults, to.major_faults),
        });
        tick.disks = to
            .disks
            .iter()
            .filter_map(|to| {
                let from = from.disks.iter().find(|from| from.name == to.name)?;
                let reads = to.reads.saturating_sub(from.reads);
                Some(DiskRate {
                    name: to.name.clone(),
                    reads_per_s: rate(from.reads, to.reads),
                    read_bytes_per_s: rate(from.read_bytes, to.read_bytes),
                    writes_per_s: rate(from.writes, to.writes),
                    write_bytes_per_s: rate(from.write_bytes, to.write_bytes),
                    read_ms: (reads > 0).then(|| to.read_ms.saturating_sub(from.read_ms) as f64 / reads as f64),
                    busy: (rate(from.busy_ms, to.busy_ms) / 1e3).min(1.0),
                    in_flight: to.in_flight,
                })
            })
            .collect();
        tick.pressure = from.pressure.zip(to.pressure).map(|(from, to)| {
            let some = |from: Stall, to: Stall| rate(from.some_us, to.some_us) / 1e6;
            let full = |from: Stall, to: Stall| rate(from.full_us, to.full_us) / 1e6;
            PressureShare {
                cpu_some: some(from.cpu, to.cpu),
                memory_some: some(from.memory, to.memory),
                memory_full: full(from.memory, to.memory),
                io_some: some(from.io, to.io),
                io_full: full(from.io, to.io),
            }
        });
        tick.network = from.network.as_ref().zip(to.network.as_ref()).map(|(from, to)| {
            let mut network = NetworkRate {
                segments_in_per_s: rate(from.tcp.segments_in, to.tcp.segments_in),
                segments_out_per_s: rate(from.tcp.segments_out, to.tcp.segments_out),
                segments_again_per_s: rate(from.tcp.segments_again, to.tcp.segments_again),
                passive_opens_per_s: rate(from.tcp.passive_opens, to.tcp.passive_opens),
                resets_per_s: rate(from.tcp.resets, to.tcp.resets),
                listen_overflows_per_s: rate(from.tcp.listen_overflows, to.tcp.listen_overflows),
                listen_drops_per_s: rate(from.tcp.listen_drops, to.tcp.listen_drops),
                time_wait_now: to.tcp.time_wait_now,
                ..NetworkRate::default()
            };
            for to in &to.interfaces {
                let Some(from) = from.interfaces.iter().find(|from| from.name == to.name) else { continue };
                network.in_bytes_per_s += rate(from.in_bytes, to.in_bytes);
                network.out_bytes_per_s += rate(from.out_bytes, to.out_bytes);
                network.in_packets_per_s += rate(from.in_packets, to.in_packets);
                network.out_packets_per_s += rate(from.out_packets, to.out_packets);
                network.drops_per_s += rate(from.in_drops, to.in_drops) + rate(from.out_drops, to.out_drops);
            }
            network
        });
        tick.module = to.module.as_ref().map(|to| ModuleRate::between(from.module.as_ref(), to, rate));
        tick.add_server(from, to, rate);
        Some(tick)
    }

    fn add_server(&mut self, from: &Sample, to: &Sample, rate: impl Fn(u64, u64) -> f64) {
        let earlier: HashMap<u32, _> = from.threads.iter().map(|thread| (thread.tid, thread)).collect();
        for to in &to.threads {
            // One that is new began with nothing, in this tick.
            let from = earlier.get(&to.tid).filter(|from| from.pid == to.pid);
            let of = |field: fn(&crate::source::Thread) -> u64| rate(from.map_or(0, |from| field(from)), field(to));
            let run = of(|thread| thread.run_ns) / 1e9;
            let (user, system) = (of(|thread| thread.user_ticks), of(|thread| thread.system_ticks));
            // In a short tick there may be no unit of either; then as it was since the thread began.
            let (user, system) =
                if user + system > 0.0 { (user, system) } else { (to.user_ticks as f64, to.system_ticks as f64) };
            let share = if user + system > 0.0 { user / (user + system) } else { 0.0 };
            let thread = ThreadRate {
                pid: to.pid,
                tid: to.tid,
                name: to.name.clone(),
                state: to.state,
                run,
                wait: of(|thread| thread.wait_ns) / 1e9,
                major_faults_per_s: of(|thread| thread.major_faults),
                sleeps_in: to.sleeps_in.clone(),
            };
            self.server_user += run * share;
            self.server_system += run * (1.0 - share);
            self.server_wait += thread.wait;
            self.threads.push(thread);
        }
        self.threads.sort_by(|a, b| b.run.total_cmp(&a.run).then(a.tid.cmp(&b.tid)));
        for to in &to.processes {
            let from = from.processes.iter().find(|from| from.pid == to.pid);
            let of = |from: Option<u64>, to: Option<u64>| Some(rate(from?, to?));
            self.processes.push(ProcessRate {
                pid: to.pid,
                resident_bytes: to.resident_bytes,
                read_bytes_per_s: of(from.and_then(|from| from.read_bytes), to.read_bytes),
                write_bytes_per_s: of(from.and_then(|from| from.write_bytes), to.write_bytes),
                descriptors: to.descriptors,
                descriptors_max: to.descriptors_max,
            });
        }
        for to in &to.groups {
            let from = from.groups.iter().find(|from| from.path == to.path);
            let since = |of: fn(&Group) -> u64| of(to).saturating_sub(from.map_or(of(to), of));
            self.groups.push(GroupRate {
                path: to.path.clone(),
                cores_max: to.cores_max(),
                periods: since(|group| group.periods),
                throttled_periods: since(|group| group.throttled_periods),
                disk_use: to
                    .disks
                    .iter()
                    .map(|disk| {
                        let before = from.and_then(|from| from.disks.iter().find(|one| one.device == disk.device));
                        let of =
                            |count: fn(&DiskCount) -> Option<u64>| Some(rate(count(&before?.had)?, count(&disk.had)?));
                        DiskUse {
                            read_bytes_per_s: of(|had| had.read_bytes),
                            write_bytes_per_s: of(|had| had.write_bytes),
                            reads_per_s: of(|had| had.reads),
                            writes_per_s: of(|had| had.writes),
                        }
                    })
                    .collect(),
                disks: to.disks.clone(),
                memory_max_bytes: to.memory_max_bytes,
                memory_bytes: to.memory_bytes,
            });
        }
        for to in &to.listeners {
            let from = from.listeners.iter().find(|from| from.inode == to.inode);
            let drops = from.and_then(|from| from.drops).zip(to.drops);
            self.listeners.push(ListenerRate {
                address: to.address.clone(),
                depth: to.depth,
                limit: to.limit,
                drops: to.drops,
                new_drops: drops.map(|(from, to)| to.wrapping_sub(from)),
            });
        }
    }

    /// Processors' worth of what the server used, user and system.
    pub fn server_cpu(&self) -> f64 {
        self.server_user + self.server_system
    }

    /// How many connections were in this state, by the last census.
    pub fn connections(&self, state: &str) -> Option<u32> {
        Some(self.census.as_ref()?.states.get(state).copied().unwrap_or(0))
    }
}

impl ModuleRate {
    /// Of a server that told nothing before, rates are not known, and 0.
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
            // One that had not been timed before has no buckets there.
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

    /// What its requests took, all phases together, in microseconds: elapsed and CPU time; `None` if none was timed.
    pub fn whole_us(&self) -> Option<(f64, f64)> {
        let sum = |of: fn(&PhaseTime) -> f64| self.phases.iter().map(of).sum();
        (!self.phases.is_empty()).then(|| (sum(|phase| phase.elapsed_us), sum(|phase| phase.cpu_us)))
    }
}

/// Where the bucket ends in which this share of all is reached, in microseconds; `None` for the last, which has no end.
fn quantile_us(buckets: &[u64], share: f64, first_bucket_bits: u32) -> Option<f64> {
    let rank = (share * buckets.iter().map(|bucket| *bucket as f64).sum::<f64>()).ceil().max(1.0);
    let mut sum = 0.0;
    let number = buckets.iter().position(|bucket| {
        sum += *bucket as f64;
        sum >= rank
    })?;
    (number + 1 < buckets.len()).then(|| 2f64.powi(first_bucket_bits as i32 + number as i32) / 1e3)
}

impl CpuShare {
    fn of(cpu: Cpu) -> CpuShare {
        let share = |part: u64| part as f64 / cpu.total().max(1) as f64;
        CpuShare {
            user: share(cpu.user),
            system: share(cpu.system),
            interrupt: share(cpu.interrupt),
            softirq: share(cpu.softirq),
            steal: share(cpu.steal),
            iowait: share(cpu.iowait),
            // All of a tick that was too short for a unit of time.
            idle: if cpu.total() == 0 { 1.0 } else { share(cpu.idle) },
        }
    }

    /// All but idle.
    pub fn busy(&self) -> f64 {
        1.0 - self.idle - self.iowait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::Phase;
    use crate::sample::{Listener, Own};
    use crate::source::{Disk, Host, Interface, Network, Paging, Pressure, Process, Tcp, Thread};

    fn thread(tid: u32, run_ms: u64, wait_ms: u64, user: u64, system: u64) -> Thread {
        let (run_ns, wait_ns) = (run_ms * 1_000_000, wait_ms * 1_000_000);
        Thread { pid: 1, tid, run_ns, wait_ns, user_ticks: user, system_ticks: system, state: 'S', ..Thread::default() }
    }

    fn later(by_us: u64) -> Sample {
        Sample { at_us: 1_000_000 + by_us, ..Sample::default() }
    }

    #[test]
    fn only_forward() {
        assert_eq!(Tick::between(&later(0), &later(0)), None);
        assert_eq!(Tick::between(&later(1), &later(0)), None);
        let tick = Tick::between(&later(0), &later(2_000_000)).unwrap();
        assert_eq!((tick.interval_s, tick.at_s, tick.cpu.idle), (2.0, 3.0, 1.0));
        assert_eq!((tick.paging, tick.network, tick.pressure, tick.census), (None, None, None, None));
    }

    #[test]
    fn what_a_server_tells() {
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
        // 8 us of 4 requests, one of which was in the first bucket.
        let expected = PhaseTime {
            name: "parsing".to_owned(),
            elapsed_us: 2.0,
            cpu_us: 1.0,
            p50_us_max: Some(2.048),
            p99_us_max: Some(2.048),
        };
        assert_eq!(one.phases, [expected]);
        assert_eq!(one.whole_us(), Some((2.0, 1.0)));
        // A server that has just begun to tell has totals, and no rates; another one counts anew.
        let begun = tick(None, Some(to.clone())).unwrap();
        assert_eq!((begun.counters["requests"], begun.per_s["requests"], begun.classes[0].phases.len()), (300, 0.0, 0));
        assert_eq!(tick(Some(to.clone()), Some(from)).unwrap().per_s["requests"], 0.0);
        assert_eq!(tick(Some(to), None), None);
    }

    #[test]
    fn quantiles_are_the_ends_of_buckets() {
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
    fn processors() {
        let cpu = |user, system, idle| Cpu { user, system, idle, ..Cpu::default() };
        let host = |cores: Vec<Cpu>| {
            let cpu = cores.iter().fold(Cpu::default(), |sum, core| {
                cpu(sum.user + core.user, sum.system + core.system, sum.idle + core.idle)
            });
            Host { cpu, cores, interrupts: 0, softirqs: vec![0; 10], ..Host::default() }
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
    fn the_server_is_the_sum_of_its_threads() {
        let (mut from, mut to) = (later(0), later(2_000_000));
        from.threads = vec![thread(1, 500, 0, 10, 10), thread(2, 100, 100, 1, 0), thread(3, 900, 0, 5, 5)];
        // The third has ended, the fourth is new, the fifth got the number of one of another process.
        to.threads = vec![thread(1, 1500, 200, 10 + 75, 10 + 25), thread(2, 100, 100, 1, 0), thread(4, 200, 0, 0, 0)];
        from.threads.push(Thread { pid: 99, ..thread(5, 7000, 0, 9, 9) });
        to.threads.push(thread(5, 400, 0, 10, 30));
        let tick = Tick::between(&from, &to).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(tick.server_cpu(), 0.5 + 0.1 + 0.2);
        near(tick.server_user, 0.5 * 0.75 + 0.2 * 0.25);
        near(tick.server_wait, 0.1);
        assert_eq!(tick.threads.iter().map(|one| one.tid).collect::<Vec<_>>(), [1, 5, 4, 2]);
    }

    #[test]
    fn counters_a_second() {
        let (mut from, mut to) = (later(0), later(500_000));
        let paging = |pages| Paging { faults: pages, major_faults: pages, in_bytes: pages * 4096, ..Paging::default() };
        (from.paging, to.paging) = (Some(paging(10)), Some(paging(20)));
        let stall = |us| Stall { some_us: us, full_us: us / 2 };
        let pressure = |us| Pressure { cpu: stall(us), memory: stall(0), io: stall(us) };
        (from.pressure, to.pressure) = (Some(pressure(0)), Some(pressure(250_000)));
        let disk = |reads| Disk {
            name: "vda".into(),
            reads,
            read_bytes: reads * 4096,
            read_ms: reads * 3,
            busy_ms: reads * 900,
            ..Disk::default()
        };
        (from.disks, to.disks) = (vec![disk(0)], vec![disk(100), Disk { name: "new".into(), ..Disk::default() }]);
        let network = |n| Network {
            tcp: Tcp { segments_in: n, listen_drops: n, ..Tcp::default() },
            interfaces: vec![Interface { name: "lo".into(), in_bytes: n, ..Interface::default() }],
        };
        (from.network, to.network) = (Some(network(50)), Some(network(60)));
        let process = |bytes| Process { pid: 4, read_bytes: Some(bytes), ..Process::default() };
        (from.processes, to.processes) = (vec![process(0)], vec![process(1 << 20)]);
        to.own = Own { cpu_ns: 1_000_000, ..Own::default() };
        let tick = Tick::between(&from, &to).unwrap();
        assert_eq!(tick.paging.unwrap().major_faults_per_s, 20.0);
        let pressure = tick.pressure.unwrap();
        assert_eq!((pressure.cpu_some, pressure.io_full, pressure.memory_some), (0.5, 0.25, 0.0));
        assert_eq!(tick.disks.len(), 1);
        assert_eq!(
            (tick.disks[0].read_bytes_per_s, tick.disks[0].read_ms, tick.disks[0].busy),
            (819_200.0, Some(3.0), 1.0)
        );
        let network = tick.network.unwrap();
        assert_eq!((network.segments_in_per_s, network.listen_drops_per_s, network.in_bytes_per_s), (20.0, 20.0, 20.0));
        assert_eq!(tick.processes[0].read_bytes_per_s, Some(2.0 * 1_048_576.0));
        assert_eq!((tick.own_cpu * 1e6).round(), 2000.0);
    }

    #[test]
    fn drops_belong_to_one_socket() {
        let listener = |inode, drops| Listener { address: "0.0.0.0:80".into(), inode, depth: 1, limit: 2, drops };
        let (mut from, mut to) = (later(0), later(1_000_000));
        from.listeners = vec![listener(1, Some(5)), listener(2, Some(u32::MAX))];
        to.listeners = vec![listener(1, Some(8)), listener(2, Some(1)), listener(3, Some(9)), listener(4, None)];
        let tick = Tick::between(&from, &to).unwrap();
        let new: Vec<_> = tick.listeners.iter().map(|one| one.new_drops).collect();
        assert_eq!(new, [Some(3), Some(2), None, None]);
    }
}
