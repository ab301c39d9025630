//! A sample of all figures at one instant, and the sampler that takes them repeatedly.
//!
//! One thread; files are opened once and read in place. The order of a tick: the machine, the network, the server's
//! threads, its listeners. The census of connections, whose cost grows with their number, has intervals of its own,
//! each with its census at a different phase. Threads are listed again every second, and the server's processes every
//! five seconds or when all have ended; `tasks` counts the CPU time of those that are not listed.
//!
//! A figure that cannot be read is `None` in the sample, and reported once in [`Sampler::missing`].

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use amped_measure::Failure;
use amped_measure::account::CpuTime;
use amped_sys::sock_diag::{Question, TcpState};
use amped_sys::{clock, process};
use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::figure::{Number, figures};
use crate::published::{Module, Published};
use crate::server::{Backend, Server, Target};
use crate::source::{
    Disk, GROUP_FILES, Group, GroupDisk, Host, Interface, Limits, Memory, Paging, Pressure, Process, Reader, Tcp,
    Thread, group_folders,
};
use crate::stop::Stop;
use crate::tasks::{THREADS_MAX, TaskFigures, Tasks};

/// The settings of a sampler.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The monitored server.
    pub target: Target,
    /// Minimum interval between samples.
    pub interval: Duration,
    /// Minimum interval between censuses of connections: one per interval, at varying phases. A
    /// periodic process, such as a server whose CPU quota is exhausted twenty times per second,
    /// would otherwise always be seen in the same state.
    pub census_interval: Duration,
    /// The monitor's share of one processor: 0.005 is 0.5 %.
    pub budget: f64,
    /// The file in which the server publishes its counters. `None` finds one that it has mapped, if any.
    pub server_file: Option<PathBuf>,
}

/// All figures at one instant. Counters are since the start of the machine, the namespace or the thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Microseconds since the sampler began.
    pub at_us: u64,
    /// Milliseconds since 1970, UTC.
    pub wall_ms: u64,
    /// Processors.
    pub host: Host,
    /// Memory.
    pub memory: Memory,
    /// Paging.
    pub paging: Paging,
    /// Disks.
    pub disks: Vec<Disk>,
    /// Pressure.
    pub pressure: Pressure,
    /// TCP in the server's network namespace.
    pub tcp: Tcp,
    /// The interfaces of that namespace.
    pub interfaces: Vec<Interface>,
    /// The server's processes.
    pub processes: Vec<Process>,
    /// The server's threads: at most 512, listed once a second.
    pub threads: Vec<Thread>,
    /// CPU time of the server's processes and their descendants since the sampler began, including threads and children
    /// that have ended. `None` if they cannot be seen, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<CpuTime>,
    /// Control groups that limit the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// The disk limits of these groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group_disks: Vec<GroupDisk>,
    /// The server's listeners.
    pub listeners: Vec<Listener>,
    /// The last census of its connections.
    pub census: Option<Census>,
    /// Figures that the server publishes, if any.
    pub module: Option<Module>,
    /// The monitor itself.
    pub own: Own,
}

impl Sample {
    /// The number of the server's threads; in older records, of those that are listed.
    pub fn thread_count(&self) -> usize {
        let counted = self.processes.iter().map(|process| process.threads).sum::<Option<u64>>();
        counted.map_or(0, |count| count as usize).max(self.threads.len())
    }
}

figures! {
    /// A listening socket.
    Listener "listen_queue" {
        /// Address and port.
        address: String,
        /// Inode of the socket, as several may share an address (`SO_REUSEPORT`).
        inode: u32,
    } [
        /// In a tick: connections dropped since the listener was opened.
        drops_total: Option<u64>,
    ]
    /// Connections in the accept queue.
    depth: N => Gauge Things,
    /// Limit of the accept queue; the kernel admits one more.
    limit: N => Gauge Things,
    /// Connections dropped by this listener.
    ///
    /// `None` if the kernel does not report it. With `TCP_DEFER_ACCEPT` (which Apache sets) each connection adds one:
    /// the kernel drops the bare ACK of its handshake, and counts that (Linux 6.18).
    drops: Option<N> => Counter Things,
}

/// The connections at the server's ports (the paper's table 3).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(serialize = "N: Number", deserialize = "N: Default + Deserialize<'de>"))]
pub struct Census<N = u64> {
    /// When they were counted, in microseconds since the sampler began.
    pub at_us: u64,
    /// Connections by state; states without any are omitted.
    pub states: BTreeMap<String, u32>,
    /// The limits of established connections.
    pub limits: CensusLimits<N>,
    /// The server's own outgoing connections: a FastCGI application, another server, a database.
    #[serde(default)]
    pub backends: Vec<Backend>,
}

impl Census {
    /// The census as part of a tick.
    pub(crate) fn in_tick(&self) -> Census<f64> {
        let Census { at_us, states, limits, backends } = self;
        Census { at_us: *at_us, states: states.clone(), limits: limits.since(None, 1.0), backends: backends.clone() }
    }
}

figures! {
    /// The limits of the currently established connections, each since it began.
    CensusLimits "open"
    /// Open connections that the kernel reported.
    connections: N => Gauge Things,
    /// Time in which open connections had data to send or to be acknowledged, in total.
    busy: N => Gauge Seconds,
    /// The part of it in which the client's receive window was closed.
    window_closed: N => Gauge Seconds,
    /// The part of it in which the server's send buffer was too small.
    buffer_full: N => Gauge Seconds,
    /// Open connections limited by the application's data.
    by_application: N => Gauge Things,
    /// Segments of open connections retransmitted.
    retransmits: N => Gauge Things,
    /// The longest smoothed round-trip time.
    round_trip_max: N => Gauge Seconds,
    /// Bytes received that the server has not read.
    unread: N => Gauge Bytes,
    /// Bytes that the server wrote and clients have not acknowledged.
    unacknowledged: N => Gauge Bytes,
    /// Connections in any state with bytes that the server has not read: they wait for the server.
    waiting_for_server: N => Gauge Things,
    /// Connections in any state with unacknowledged bytes: they wait for the network or the client.
    waiting_for_client: N => Gauge Things,
}

figures! {
    /// The monitor's own CPU use since the sampler began, and its intervals.
    Own "own"
    /// CPU time that the monitor used.
    cpu: N => Counter Seconds,
    /// Interval between samples: the requested one, or longer to stay within the budget.
    interval: N => Gauge Seconds,
    /// Interval between censuses of connections.
    census_interval: N => Gauge Seconds,
}

/// The result of [`Sampler::next`].
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// A sample.
    Sample(Box<Sample>),
    /// No sample: it is not due, and the timeout has passed.
    Waiting,
    /// The user stopped the sampler.
    Stopped,
    /// The server has ended.
    Ended,
}

/// The CPU time and work of a server so far, see [`Sampler::used`].
#[cfg(feature = "profile")]
#[derive(Clone, Debug)]
pub(crate) struct Used {
    pub(crate) run_ns: u64,
    /// Unit and amount of work.
    pub(crate) work: (Unit, u64),
}

/// The unit of a server's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Requests counted by the server.
    Requests,
    /// Segments with data that were sent in the server's network namespace, by any process: on one machine the requests
    /// and the replies. They are proportional to requests as long as the load is uniform and there is no other traffic.
    Segments,
}

#[cfg(feature = "profile")]
impl Used {
    /// The CPU time in nanoseconds and the work in this unit since `earlier`; `None` if
    /// either is zero, or is not known in this unit.
    pub(crate) fn since(&self, earlier: &Used, unit: Unit) -> Option<(u64, u64)> {
        let ran = self.run_ns.saturating_sub(earlier.run_ns);
        let count = |work: (Unit, u64)| (work.0 == unit).then_some(work.1);
        let work = count(self.work)?.saturating_sub(count(earlier.work)?);
        (work > 0 && ran > 0).then_some((ran, work))
    }
}

/// Takes samples repeatedly.
#[derive(Debug)]
pub struct Sampler {
    settings: Settings,
    budget: Budget,
    server: Server,
    files: Files,
    tasks: Tasks,
    groups: BTreeMap<PathBuf, Vec<(usize, Reader)>>,
    missing: Vec<String>,
    has_reported_threads: bool,
    begun: Instant,
    due: Instant,
    cpu_at_start: Duration,
    /// CPU time at the start of the last tick, without the cost of its census.
    cpu_at_tick: Option<Duration>,
    threads_due: Instant,
    server_due: Instant,
    moments: Moments,
    census: Option<Census>,
    published: Option<Published>,
}

/// The times of censuses: one per interval, at varying phases.
#[derive(Debug)]
struct Moments {
    /// Start of the next interval, and the time of its census.
    from: Instant,
    due: Instant,
    /// Its phase within the interval, from 0 to 1.
    phase: f64,
}

impl Moments {
    /// The golden ratio minus one, whose multiples are spread most evenly over an interval (Knuth, The Art of Computer
    /// Programming, volume 3, section 6.4).
    const STEP: f64 = 0.618_033_988_749_895;

    /// Advances after a census to the next interval, of this length.
    fn go_on(&mut self, now: Instant, interval: Duration) {
        self.from = (self.from + interval).max(now);
        self.phase = (self.phase + Self::STEP).fract();
        self.due = self.from + interval.mul_f64(self.phase);
    }
}

/// The files of the machine and of the network namespace.
#[derive(Debug)]
struct Files {
    stat: Reader,
    /// The readable ones of [`FILES`].
    others: Vec<(Reader, Take)>,
    /// Names in `/sys/block`; if it cannot be read, `None`, and every device counts as a whole disk.
    whole_disks: Option<Vec<String>>,
}

/// Maximum number of control groups sampled; the first ones.
const GROUPS_MAX: usize = 32;
/// Interval between listings of threads.
const THREADS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between searches for the server's processes.
const SERVER_INTERVAL: Duration = Duration::from_secs(5);

impl Sampler {
    /// Finds the server, and opens all files.
    ///
    /// # Errors
    /// Those of [`Server::find`]; when `/proc/stat` cannot be read.
    pub fn begin(settings: Settings) -> Result<Sampler, Failure> {
        // The cost of starting is not charged: it occurs once. Each thread needs three descriptors.
        process::raise_descriptor_limit();
        let tasks = Tasks::begin();
        let server = Server::find(settings.target)?;
        let mut missing = server.missing().to_vec();
        let files = Files::open(server.network(), &mut missing)?;
        let now = Instant::now();
        let mut sampler = Sampler {
            budget: Budget::new(settings.budget),
            settings,
            server,
            files,
            tasks,
            groups: BTreeMap::new(),
            missing,
            has_reported_threads: false,
            begun: now,
            due: now,
            cpu_at_start: Duration::ZERO,
            cpu_at_tick: None,
            threads_due: now + THREADS_INTERVAL,
            server_due: now + SERVER_INTERVAL,
            moments: Moments { from: now, due: now, phase: 0.0 },
            census: None,
            published: None,
        };
        if let Some(path) = &sampler.settings.server_file {
            sampler.published = Some(Published::open(path)?);
        }
        sampler.find_published();
        sampler.list_tasks();
        sampler.list_groups();
        sampler.cpu_at_start = process::cpu_time();
        Ok(sampler)
    }

    /// The sources that cannot be read, and what to do, one line each.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// The server as found last.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Waits until the next sample is due, at most for `patience`, and takes it.
    ///
    /// # Errors
    /// When `/proc/stat` or sock_diag fails later on.
    pub fn next(&mut self, stop: &Stop, patience: Duration) -> Result<Next, Failure> {
        // The cost of a tick includes all CPU time since the previous one, so that display and recording are charged
        // too. Other threads are not: clients of an endpoint have a part of the budget of their own.
        if let Some(before) = self.cpu_at_tick.take() {
            self.budget.pay_for_tick(clock::cpu_time().saturating_sub(before));
            let interval = self.budget.tick_interval(self.settings.interval);
            self.due = (self.due + interval).max(Instant::now());
        }
        loop {
            let left = self.due.min(self.moments.due).saturating_duration_since(Instant::now());
            if stop.wait(left.min(patience)) {
                return Ok(Next::Stopped);
            }
            if left > patience {
                return Ok(Next::Waiting);
            }
            if self.due <= self.moments.due {
                return Ok(self.look()?.map_or(Next::Ended, Next::Sample));
            }
            self.take_census()?;
        }
    }

    /// Takes a sample at once, regardless of the budget; `None` if the server has ended.
    pub(crate) fn look(&mut self) -> Result<Option<Box<Sample>>, Failure> {
        if Instant::now() >= self.moments.due {
            self.take_census()?;
        }
        let before = clock::cpu_time();
        let Some(mut sample) = self.take()? else { return Ok(None) };
        self.cpu_at_tick = Some(before);
        sample.census = self.census.clone();
        sample.own = Own {
            cpu: nanos(process::cpu_time().saturating_sub(self.cpu_at_start)),
            interval: nanos(self.budget.tick_interval(self.settings.interval)),
            census_interval: nanos(self.budget.census_interval(self.settings.census_interval)),
        };
        Ok(Some(sample))
    }

    /// Counts the connections, and schedules the next census.
    fn take_census(&mut self) -> Result<(), Failure> {
        let begun = clock::cpu_time();
        self.count()?;
        self.budget.pay_for_census(clock::cpu_time().saturating_sub(begun));
        self.moments.go_on(Instant::now(), self.budget.census_interval(self.settings.census_interval));
        Ok(())
    }

    /// Takes a sample; `None` if the server has ended.
    fn take(&mut self) -> Result<Option<Box<Sample>>, Failure> {
        let now = Instant::now();
        if now >= self.server_due {
            self.server.look_again()?;
            self.find_published();
            self.list_groups();
            self.server_due = now + SERVER_INTERVAL;
            self.threads_due = now;
        }
        if now >= self.threads_due {
            self.list_tasks();
            self.threads_due = now + THREADS_INTERVAL;
        }
        let mut sample = Box::new(Sample { at_us: micros(self.begun.elapsed()), ..Sample::default() });
        sample.wall_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        self.files.read(&mut sample)?;
        sample.module = self.published.as_ref().map(Published::read);
        let was_seen = !self.tasks.is_empty();
        self.read_tasks(&mut sample);
        self.read_groups(&mut sample);
        if sample.threads.is_empty() && was_seen {
            // All known threads have exited: other processes may have taken over.
            self.server.look_again()?;
            self.list_tasks();
            self.read_tasks(&mut sample);
            if sample.threads.is_empty() {
                return Ok(None);
            }
        }
        let listeners = &mut sample.listeners;
        self.server.sockets(Question::Listeners, |socket| {
            listeners.push(Listener {
                address: socket.local.to_string(),
                inode: socket.inode,
                depth: socket.receive_queue.into(),
                limit: socket.send_queue.into(),
                drops: socket.drops.map(u64::from),
                drops_total: None,
            });
        })?;
        if !was_seen && sample.listeners.is_empty() {
            return Ok(None);
        }
        Ok(Some(sample))
    }

    /// Finds the file that the server publishes, if it is unknown or another server's.
    fn find_published(&mut self) {
        if self.published.as_ref().is_some_and(Published::is_current) {
            return;
        }
        self.published = match &self.settings.server_file {
            // Until there is a new one, the old one has the final counts.
            Some(path) => Published::open(path).ok().or(self.published.take()),
            None => Published::find(self.server.pids()),
        };
    }

    /// CPU time of the server in nanoseconds, and the work done: requests if the server publishes how many it
    /// has read, otherwise the kernel's counters.
    ///
    /// # Errors
    /// When the kernel's counters cannot be read, and the server has none.
    #[cfg(feature = "profile")]
    pub(crate) fn used(&mut self) -> Result<Used, Failure> {
        let mut sample = Sample::default();
        self.read_tasks(&mut sample);
        let run_ns = sample.server.map_or(0, |used| used.all_ns());
        let requests = self.published.as_ref().and_then(|file| file.read().counters.get("requests").copied());
        if let Some(requests) = requests {
            return Ok(Used { run_ns, work: (Unit::Requests, requests) });
        }
        self.files.read(&mut sample)?;
        let segments = sample.tcp.data_segments_out.ok_or_else(|| {
            Failure::failed(
                "the server does not publish its requests (amped: --metrics-file), and its network counters cannot be \
                 read, so its work cannot be measured",
            )
        })?;
        Ok(Used { run_ns, work: (Unit::Segments, segments) })
    }

    fn read_tasks(&mut self, sample: &mut Sample) {
        let TaskFigures { processes, threads, used } = self.tasks.read();
        (sample.processes, sample.threads, sample.server) = (processes, threads, used);
    }

    fn list_tasks(&mut self) {
        self.tasks.list(&self.server);
        if self.tasks.has_more() && !self.has_reported_threads {
            self.has_reported_threads = true;
            self.missing.push(format!(
                "the server has more than {THREADS_MAX} threads: its CPU time and their number include all, but only \
                 the first {THREADS_MAX} are listed and have their waiting time counted; `top -H` shows the others"
            ));
        }
    }

    /// Finds the control groups of the server's processes.
    fn list_groups(&mut self) {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let of =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).map(|text| group_folders(&text, &mounts));
        let folders: BTreeSet<PathBuf> = self.server.pids().iter().filter_map(|pid| of(pid).ok()).flatten().collect();
        self.groups.retain(|folder, _| folders.contains(folder));
        for folder in folders {
            if self.groups.len() >= GROUPS_MAX {
                break;
            }
            self.groups.entry(folder).or_insert_with_key(|folder| {
                let names = GROUP_FILES.iter().enumerate();
                names.filter_map(|(at, (name, _))| Some((at, Reader::open(folder.join(name)).ok()?))).collect()
            });
        }
    }

    /// Reads the current limits.
    fn read_groups(&mut self, sample: &mut Sample) {
        for (folder, files) in &mut self.groups {
            let mut limits = Limits::of(folder);
            for (at, file) in files {
                GROUP_FILES[*at].1(&mut limits, &text_of(file));
            }
            if limits.is_limited() {
                sample.groups.push(limits.group);
                sample.group_disks.append(&mut limits.disks);
            }
        }
    }

    fn count(&mut self) -> Result<(), Failure> {
        let mut census: Census = Census { at_us: micros(self.begun.elapsed()), ..Census::default() };
        let limits = &mut census.limits;
        let mut states = [0_u32; 16];
        self.server.sockets(Question::Connections { limits: true }, |socket| {
            states[socket.state as usize & 15] += 1;
            limits.unread += u64::from(socket.receive_queue);
            limits.unacknowledged += u64::from(socket.send_queue);
            // On a connection that is closing the one byte is the FIN.
            limits.waiting_for_server += u64::from(socket.receive_queue > 1);
            limits.waiting_for_client += u64::from(socket.send_queue > 1);
            if let (TcpState::Established, Some(of)) = (socket.state, socket.limits) {
                limits.connections += 1;
                limits.busy += of.busy_us * 1000;
                limits.window_closed += of.receive_window_us * 1000;
                limits.buffer_full += of.send_buffer_us * 1000;
                limits.by_application += u64::from(of.by_application);
                limits.retransmits += u64::from(of.retransmitted_segments);
                limits.round_trip_max = limits.round_trip_max.max(u64::from(of.round_trip_us) * 1000);
            }
        })?;
        census.backends = self.server.backends();
        let counted = TcpState::ALL.into_iter().map(|(state, name)| (name.to_owned(), states[state as usize & 15]));
        census.states = counted.filter(|(_, count)| *count > 0).collect();
        self.census = Some(census);
        Ok(())
    }
}

/// Parses a file into a sample.
type Take = fn(&mut Sample, &str);

/// Files that a kernel may lack: path, relative to the directory of the network namespace unless absolute; the figures
/// that are missing without it, and how to get them; the parser.
const FILES: [(&str, &str, &str, Take); 10] = [
    ("/proc/meminfo", "memory", "", |sample, text| sample.memory = Memory::parse(text)),
    ("/proc/vmstat", "paging", "", |sample, text| sample.paging = Paging::parse(text)),
    ("/proc/diskstats", "disks", "", |sample, text| sample.disks = Disk::parse(text, |_| true)),
    ("/proc/pressure/cpu", "pressure", PRESSURE, |sample, text| sample.pressure.take_file("cpu", text)),
    ("/proc/pressure/memory", "pressure", PRESSURE, |sample, text| sample.pressure.take_file("memory", text)),
    ("/proc/pressure/io", "pressure", PRESSURE, |sample, text| sample.pressure.take_file("io", text)),
    ("snmp", "network", "", |sample, text| sample.tcp.take_table("Tcp:", text)),
    ("netstat", "network", "", |sample, text| sample.tcp.take_table("TcpExt:", text)),
    ("sockstat", "network", "", |sample, text| sample.tcp.take_sockets(text)),
    ("dev", "network", "", |sample, text| sample.interfaces = Interface::parse(text)),
];
const PRESSURE: &str = " (CONFIG_PSI, or psi=1 on the kernel's command line)";

impl Files {
    fn open(network: &Path, missing: &mut Vec<String>) -> Result<Files, Failure> {
        let stat = Reader::open("/proc/stat").map_err(|error| {
            Failure::failed(format!("cannot open /proc/stat: {error}; is /proc mounted (mount -t proc proc /proc)?"))
        })?;
        let (mut others, mut lacks) = (Vec::new(), "");
        for (path, what, way, take) in FILES {
            let path = network.join(path);
            match Reader::open(&path) {
                Ok(reader) => others.push((reader, take)),
                // One line for several files of a kind.
                Err(_) if lacks == what => {}
                Err(error) => {
                    lacks = what;
                    missing.push(format!("no {what}: {}: {error}{way}", path.display()));
                }
            }
        }
        let blocks = fs::read_dir("/sys/block").ok();
        let whole_disks =
            blocks.map(|names| names.filter_map(|name| name.ok()?.file_name().into_string().ok()).collect());
        Ok(Files { stat, others, whole_disks })
    }

    fn read(&mut self, sample: &mut Sample) -> Result<(), Failure> {
        let text = self.stat.read().map_err(Failure::io("read /proc/stat"))?;
        sample.host = Host::parse(&text).ok_or_else(|| {
            Failure::failed("/proc/stat does not have the format of proc_stat(5); is this a container?")
        })?;
        self.others.iter_mut().for_each(|(file, take)| take(sample, &text_of(file)));
        if let Some(names) = &self.whole_disks {
            sample.disks.retain(|disk| names.contains(&disk.device));
        }
        Ok(())
    }
}

/// The current content; empty if it cannot be read.
fn text_of(file: &mut Reader) -> Cow<'_, str> {
    file.read().unwrap_or_default()
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aperiodic_sampling_sees_periodic_event_at_its_true_rate() {
        let begin = Instant::now();
        for (period_ms, share) in [(1, 0.5), (10, 0.2), (50, 0.1), (100, 0.4), (200, 0.5), (300, 0.7)] {
            let mut moments = Moments { from: begin, due: begin, phase: 0.0 };
            let is_there =
                |at: Instant| (at - begin).as_secs_f64() * 1e3 % f64::from(period_ms) < f64::from(period_ms) * share;
            let count = 600;
            let seen = (0..count).filter(|_| {
                moments.go_on(moments.due, Duration::from_millis(100));
                is_there(moments.due)
            });
            let found = seen.count() as f64 / f64::from(count);
            assert!((found - share).abs() < 0.03, "each {period_ms} ms for {share} of it: seen in {found}");
        }
    }
}
