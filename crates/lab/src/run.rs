//! The server's side of a run ([`Side`]), and its evaluation afterwards ([`judge`]).
//!
//! The server runs in a control group on its own cores. `ammeter monitor --record` and, if requested,
//! `ammeter profile` run beside it as separate processes of this program, on cores of their own. On one
//! machine the whole run happens in a network namespace of its own, which a dedicated thread enters
//! ([`apart`]). If the experiment has a network path, server and clients are in two namespaces, with the
//! router of `ammeter wan up` between them; or both are in one, and an [`Origin`] in the other. With several
//! hosts, the server's side runs in `ammeter agent` on one of them. `runner.rs` steps through a run, `generate.rs` generates the load, `validate.rs` judges it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ammeter_load::drive::Stop;
use ammeter_load::outcome::Outcome;
use ammeter_monitor::source::{Disk, Interface, Tcp};
use ammeter_monitor::{Sample, Tick};
use ammeter_wan::join::Invitation;
use ammeter_wan::place::{self, Mark};
use ammeter_wan::selftest::LATE_MAX;
use ammeter_wan::testbed;
use amped_measure::host::{self, Machine};
use amped_measure::others::Census;
use amped_measure::{Failure, Verdict};
use amped_units::parse_duration;
use serde::{Deserialize, Serialize};

use crate::archive::{
    self, Beside, Block, Check, ClientStep, HostRun, HostUse, Mixed, NetworkUse, Planned, Resolved, Rules, Run,
    ServerUse, Step, Summary, name,
};
use crate::certificate::{Certificate, tls_address};
use crate::environment::{Folder, Running, Site, Streams, TestEnvironment, free_address, interrupted};
use crate::experiment::{ETAG, Load, Settings};
use crate::group::{CpuTime, Group};
use crate::plan;
use crate::subject::{self, Answer, Kind, Place, Subject};
use crate::validate::{self, Evidence};
use crate::values::Checked;

/// Maximum time from the start of a server to its first response.
const START: Duration = Duration::from_secs(20);

/// Maximum time for a process to exit after SIGTERM.
pub(crate) const END: Duration = Duration::from_secs(5);

/// Returns the wall-clock time in seconds since 1970.
pub(crate) fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The parameters of a run.
#[derive(Clone)]
pub(crate) struct Order {
    pub(crate) settings: Settings,
    pub(crate) planned: Planned,
    pub(crate) rules: Rules,
    /// Seed of the file contents.
    pub(crate) seed: u64,
    pub(crate) interval: Duration,
    pub(crate) clients: Option<ClientStep>,
    pub(crate) idle: Option<(bool, f64)>,
    /// Directory of the run's files.
    pub(crate) into: PathBuf,
}

/// Runs `work` in a thread of its own, in a new network namespace if this machine allows one. Kills
/// every process that is left in the namespace when `work` returns.
pub(crate) fn apart<T: Send>(
    environment: &TestEnvironment,
    stop: &Stop,
    work: impl FnOnce(&TestEnvironment, &Stop) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let mark = Mark::own()?;
    let done = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if environment.is_private {
                place::unshare(mark)?;
            }
            work(environment, stop)
        });
        thread.join().unwrap_or_else(|_| Err(Failure::failed("the thread of a run panicked")))
    });
    if environment.is_private {
        mark.end_all();
    }
    done
}

/// Maximum time that a load of this duration may take.
pub(crate) fn patience(settings: &Settings, duration: Duration) -> Duration {
    duration + settings.load.timeout + Duration::from_secs(30)
}

/// Marks a run as failed: `whose` is the failed party, `why` the reason.
pub(crate) fn refused(mut run: Run, whose: &str, why: &str) -> Run {
    run.why = vec![format!("{whose}: {why}")];
    run.checks = vec![Check { name: whose.to_owned(), holds: Some(false), says: why.to_owned() }];
    run.ended_s = now_s();
    run
}

/// Evaluates a run from the client's outcome and the server's side; the monitor's record is among
/// the run's files. The server's host is the first of `hosts`.
pub(crate) fn judge(
    mut run: Run,
    order: &Order,
    outcome: &Outcome,
    watched: &Watched,
    is_private: bool,
    hosts: &[HostRun],
) -> Result<Run, Failure> {
    let Order { settings, planned, into, .. } = order;
    run.load_began_s = outcome.began_s;
    let beside: Option<Outcome> =
        (settings.load.beside > 0).then(|| archive::read(&into.join(name::BESIDE))).transpose()?;
    // The record is stamped by the clock of the server's host.
    let offset_s = hosts.first().map_or(0.0, |server| server.clock.offset_s);
    let beside_s = beside.as_ref().map(|beside| beside.began_s);
    let loaded = Loaded::by((outcome.began_s, outcome.seconds), beside_s, offset_s);
    let seen = match order.interval.is_zero() {
        true => Seen::default(),
        false => Seen::read(&into.join(name::MONITOR), &loaded)?,
    };
    let mut summary = Summary::of(outcome);
    summary.set_bytes = watched.set_bytes;
    summary.parked = settings.load.parked_count();
    summary.mixed = settings.load.cached_share.and_then(|_| Mixed::of(outcome));
    if settings.load.http2 {
        summary.streams = Some(settings.load.streams.min(outcome.streams.unwrap_or(u64::MAX)));
    }
    summary.beside = beside.map(|Outcome { ok, window, received_bytes, latency, .. }| Beside {
        ok,
        rate: window.completed_rate,
        received_bytes,
        latency,
    });
    summary.monitor = seen.figures();
    summary.network = seen.network(is_private);
    summary.server = seen.server();
    summary.server.memory_max_bytes = watched.memory_max_bytes.or(summary.server.memory_max_bytes);
    // The monitor finds new processes only after a while, and reads a limited number of them.
    summary.server.processes_max = summary.server.processes_max.max(watched.processes);
    summary.server.replies = watched.replies.or(summary.server.replies);
    summary.server.start_ms = watched.start_ms;
    if let Some(cpu) = watched.spell.server {
        summary.server.cpu_s = Some(cpu.all_ns as f64 / 1e9);
        summary.server.user_s = cpu.user_ns.map(|ns| ns as f64 / 1e9);
        summary.server.system_s =
            summary.server.cpu_s.zip(summary.server.user_s).map(|(all, user)| (all - user).max(0.0));
    }
    summary.host = seen.host(&watched.spell, &summary);
    let evidence = Evidence {
        rules: &order.rules,
        step: planned.step,
        think_s: settings.load.think_time.as_secs_f64(),
        requests_per_connection: settings.load.requests_per_connection(),
        at_once: [summary.streams.unwrap_or(settings.load.at_once()), settings.load.at_once()],
        is_http2: settings.load.http2,
        clients: order.clients.as_ref(),
        idle: order.idle,
        client: &outcome.verdict,
        summary: &summary,
        ticks: &seen.ticks,
        in_flight: &seen.in_flight,
        has_other_connections: settings.load.beside > 0 || settings.has_origin(),
        path: watched.path.as_ref(),
        server_ended: watched.server_ended.as_deref(),
        hosts,
    };
    (run.checks, run.status, run.why) = validate::judge(&evidence);
    run.summary = Some(summary);
    run.ended_s = now_s();
    Ok(run)
}

/// When a server was under load, in seconds since 1970.
pub(crate) struct Loaded {
    /// When the first clients began. The additional ones begin a few hundredths of a second before the others, and in that
    /// time they may get a large part of their responses: nobody competes with them.
    began_s: f64,
    /// Between which times the load was measured.
    from_s: f64,
    to_s: f64,
}

impl Loaded {
    /// Returns when all clients were at work, none before.
    pub(crate) fn between(from_s: f64, to_s: f64) -> Loaded {
        Loaded { began_s: from_s, from_s, to_s }
    }

    /// Returns when clients were at work that began at `from_s`, for `seconds`, beside those that began at `beside_s`, by
    /// a clock that is ahead of theirs by `offset_s`.
    fn by((from_s, seconds): (f64, f64), beside_s: Option<f64>, offset_s: f64) -> Loaded {
        let began_s = beside_s.map_or(from_s, |beside_s| from_s.min(beside_s)) + offset_s;
        Loaded { began_s, ..Loaded::between(from_s + offset_s, from_s + offset_s + seconds) }
    }
}

/// The server's side of a run: the server in its control group, monitor and profiler. Dropping it
/// ends and removes them.
pub(crate) struct Side {
    profile: Option<Running>,
    monitor: Option<Running>,
    server: Server,
    /// Declared before the path, in whose namespace it runs.
    _origin: Option<Origin>,
    path: Option<PathBetween>,
    /// Group of load generators and instruments, so that their CPU use is not attributed to other processes.
    instruments: Option<Group>,
    before: Option<Snapshot>,
    /// Command prefix that starts this program in the group of instruments and on the clients' cores.
    prefix: Vec<String>,
    settings: Settings,
    interval: Duration,
    set_bytes: Option<u64>,
    into: PathBuf,
    /// Declared last: dropped after everything that uses it.
    _folder: Folder,
}

/// The result of the server's side of a run, besides its files.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Watched {
    /// Exit status of the server, if it exited early.
    pub(crate) server_ended: Option<String>,
    /// The router's verdict on itself.
    pub(crate) path: Option<Verdict>,
    memory_max_bytes: Option<u64>,
    /// Processes of the server at the end of the load.
    processes: Option<u32>,
    /// Responses counted by the server.
    replies: Option<u64>,
    /// Total size of the file set, if there is one.
    set_bytes: Option<u64>,
    /// Time from server start to its first response, in milliseconds.
    start_ms: Option<f64>,
    pub(crate) spell: CpuUsage,
}

impl Side {
    /// Starts the server and waits for its first response, then starts the monitor unless `interval` is
    /// 0. The server listens on a free port of `address`, by default loopback. Files are written to `into`.
    /// Returns the reason if the server cannot run with these settings.
    ///
    /// # Errors
    /// If the failure is not the server's; an interrupt.
    pub(crate) fn begin(
        environment: &TestEnvironment,
        settings: &Settings,
        site: &Site,
        interval: Duration,
        address: Option<IpAddr>,
        into: &Path,
        stop: &Stop,
    ) -> Result<Result<Side, String>, Failure> {
        let folder = environment.folder()?;
        let instruments = if environment.has_groups { Some(Group::counter()?) } else { None };
        let joined = instruments.as_ref().map_or(Vec::new(), Group::prefix);
        let path = settings
            .path
            .as_ref()
            .map(|_| PathBetween::up(environment, settings, &folder, &joined, address))
            .transpose()?;
        let (origin, to_server) = match path.as_ref().filter(|_| settings.has_origin()) {
            Some(path) => {
                (Some(Origin::start(environment, settings, site, into, &folder, (path, &joined), stop)?), None)
            }
            None => (None, path.as_ref()),
        };
        let server = match Server::start(environment, settings, site, into, &folder, to_server, address, stop) {
            Ok(server) => server,
            Err(_) if stop.is_stopped() => return Err(interrupted()),
            Err(failure) => return Ok(Err(failure.to_string())),
        };
        let pin = pinned(environment.cores(&settings.cores).clients.as_deref());
        let prefix: Vec<String> =
            joined.into_iter().chain(pin).chain([environment.own.display().to_string()]).collect();
        let mut side = Side {
            profile: None,
            monitor: None,
            server,
            _origin: origin,
            path,
            instruments,
            before: None,
            prefix,
            settings: settings.clone(),
            interval,
            set_bytes: site.bytes(),
            into: into.to_owned(),
            _folder: folder,
        };
        if !interval.is_zero() {
            side.watch(stop)?;
        }
        Ok(Ok(side))
    }

    fn own(&self, words: &[&str]) -> Vec<String> {
        self.prefix.iter().cloned().chain(words.iter().map(|word| (*word).to_owned())).collect()
    }

    fn watch(&mut self, stop: &Stop) -> Result<(), Failure> {
        let mut target = vec!["--pid".to_owned(), self.server.pid().to_string()];
        if self.server.metrics.exists() {
            target.extend(["--server-file".to_owned(), self.server.metrics.display().to_string()]);
        }
        self.monitor = Some(monitor(self.prefix.clone(), &target, self.interval, "5%", &self.into)?);
        self.await_samples(stop)
    }

    fn await_samples(&mut self, stop: &Stop) -> Result<(), Failure> {
        let record = self.into.join(name::MONITOR);
        self.monitor.as_mut().map_or(Ok(()), |monitor| await_samples(&record, monitor, self.interval, stop))
    }

    /// Command prefix, ending with the program, that starts this program in the group where load is counted.
    pub(crate) fn prefix(&self) -> &[String] {
        &self.prefix
    }

    /// The server's listening address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// What clients on other hosts need to join its path, if it has one.
    ///
    /// # Errors
    /// When the path has ended.
    pub(crate) fn invitation(&self) -> Result<Option<Invitation>, Failure> {
        self.path.as_ref().map(|path| testbed::invitation(&path.socket, PathBetween::CLIENTS)).transpose()
    }

    /// Prepares for the measured load.
    ///
    /// # Errors
    /// An interrupt.
    pub(crate) fn calm(&mut self, stop: &Stop) -> Result<(), Failure> {
        self.server.replies_before = self.server.replies(&self.settings, 0);
        // Wait for a sample without load, from which counters are compared.
        self.await_samples(stop)
    }

    /// Marks the start of the measured load: takes a snapshot, and starts the profile if requested.
    ///
    /// # Errors
    /// If `/proc` is not mounted, or the profile cannot be started.
    pub(crate) fn measure(&mut self) -> Result<(), Failure> {
        self.before = Some(Snapshot::take(self.server.group.as_ref(), self.instruments.as_ref())?);
        if self.settings.profile {
            let (pid, duration) = (self.server.pid().to_string(), micros(self.settings.load.duration));
            let words = self.own(&["profile", "--pid", &pid, "--json", "--duration", &duration]);
            let streams = Streams::to(Some(&self.into.join(name::PROFILE)), &self.into.join("profile.log"))?;
            self.profile = Some(Running::start("the profile", &words, streams)?);
        }
        Ok(())
    }

    /// Returns the command line of the load generator.
    fn load_words(&self, order: &Order, site: &Site, duration: Duration, seed: u64) -> Vec<String> {
        let words = load_words(&order.settings, site, order.planned.step, self.address(), duration, seed);
        self.prefix.iter().cloned().chain(words).collect()
    }

    /// Generates the warm-up load, if there is one; it is not counted.
    ///
    /// # Errors
    /// If the load generator fails; an interrupt.
    pub(crate) fn warm_up(&self, order: &Order, site: &Site, stop: &Stop) -> Result<(), Failure> {
        let Order { settings, into, planned, .. } = order;
        let duration = settings.load.warm_up;
        if duration.is_zero() {
            return Ok(());
        }
        let streams = Streams::to(Some(&into.join(name::WARM_UP)), &into.join("warm-up.log"))?;
        // Connections are parked only during the measured load; otherwise their memory would be in use before it.
        let mut order = order.clone();
        order.settings.load.parked.clear();
        let words = self.load_words(&order, site, duration, planned.seed ^ 1);
        Running::start("the warm-up", &words, streams)?.wait(patience(settings, duration), stop).map(drop)
    }

    /// Starts the additional clients, if there are any.
    ///
    /// # Errors
    /// If their output files cannot be created.
    pub(crate) fn beside(&self, order: &Order, site: &Site) -> Result<Option<Running>, Failure> {
        let Order { settings, into, planned, .. } = order;
        if settings.load.beside == 0 {
            return Ok(None);
        }
        let mut settings = settings.clone();
        settings.load = Load {
            path: Some(Checked::new(crate::environment::BESIDE)),
            parked: Vec::new(),
            headers: Vec::new(),
            expect: None,
            requests_per_connection: Some(0),
            pipeline: 1,
            streams: 1,
            ..settings.load
        };
        let site = Site { manifest: None, ..site.clone() };
        let step = Step::Clients(settings.load.beside);
        let words = load_words(&settings, &site, step, self.address(), settings.load.duration, planned.seed);
        let words: Vec<String> = self.prefix.iter().cloned().chain(words).collect();
        let streams = Streams::to(Some(&into.join(name::BESIDE)), &into.join("beside.log"))?;
        Running::start("the additional clients", &words, streams).map(Some)
    }

    /// Generates one measured load and keeps the server running: for interleaved servers, without a monitor.
    ///
    /// # Errors
    /// If the load generator fails to start; an interrupt.
    pub(crate) fn window(
        &mut self,
        environment: &TestEnvironment,
        site: &Site,
        order: &Order,
        stop: &Stop,
    ) -> Result<Run, Failure> {
        let Order { planned, into, settings, .. } = order;
        let mut run = Run::begun(planned.clone(), now_s());
        let words = self.load_words(order, site, settings.load.duration, planned.seed);
        self.measure()?;
        let streams = Streams::to(Some(&into.join(name::LOAD)), &into.join("load.log"))?;
        let patience = patience(settings, settings.load.duration);
        let status = Running::start("the load", &words, streams)?.wait(patience, stop)?;
        let after = Snapshot::take(self.server.group.as_ref(), self.instruments.as_ref())?;
        run.load_ended_s = now_s();
        let watched = Watched {
            server_ended: self.server.running.ended().map(|status| status.to_string()),
            set_bytes: self.set_bytes,
            start_ms: Some(self.server.start_ms),
            spell: self.before.as_ref().map(|before| before.until(&after)).unwrap_or_default(),
            ..Watched::default()
        };
        let Ok(outcome) = archive::read::<Outcome>(&into.join(name::LOAD)) else {
            let said = fs::read_to_string(into.join("load.log")).unwrap_or_default();
            return Ok(refused(run, "client", &format!("`ammeter load` ended with {status}: {}", said.trim())));
        };
        judge(run, order, &outcome, &watched, environment.is_private, &[])
    }

    /// Ends the measured load: stops and removes server and instruments.
    ///
    /// # Errors
    /// An interrupt.
    pub(crate) fn end(mut self, stop: &Stop) -> Result<Watched, Failure> {
        let after = Snapshot::take(self.server.group.as_ref(), self.instruments.as_ref())?;
        let processes = self.server.group.as_ref().and_then(Group::processes);
        if let Some(profile) = self.profile.take() {
            profile.wait(patience(&self.settings, self.settings.load.duration), stop)?;
        }
        self.await_samples(stop)?;
        let server_ended = self.server.running.ended().map(|status| status.to_string());
        if let Some(monitor) = self.monitor.take() {
            monitor.end(END);
        }
        // The request of the first reading was counted too.
        let replies = self.server.replies(&self.settings, 1);
        let watched = Watched {
            server_ended,
            path: self.path.as_ref().map(PathBetween::verdict).transpose()?,
            memory_max_bytes: self.server.group.as_ref().and_then(Group::memory_max),
            processes,
            replies: self.server.replies_before.zip(replies).map(|(before, after)| after.saturating_sub(before)),
            set_bytes: self.set_bytes,
            start_ms: Some(self.server.start_ms),
            spell: self.before.as_ref().map(|before| before.until(&after)).unwrap_or_default(),
        };
        self.server.running.end(END);
        drop(self.server.group);
        Ok(watched)
    }
}

/// Starts `ammeter monitor` for the server that the flags `target` name, with its record and its errors in `into`.
/// `prefix` is the command that starts this program; the monitor may use at most `budget` of a core.
///
/// # Errors
/// If its files cannot be created.
pub(crate) fn monitor(
    prefix: Vec<String>,
    target: &[String],
    interval: Duration,
    budget: &str,
    into: &Path,
) -> Result<Running, Failure> {
    let (interval, record) = (micros(interval), into.join(name::MONITOR).display().to_string());
    let mut words = prefix;
    words.push("monitor".to_owned());
    words.extend(target.iter().cloned());
    let flags = ["--json", "--interval", &interval, "--census", &interval, "--budget", budget, "--record", &record];
    words.extend(flags.map(str::to_owned));
    Running::start("the monitor", &words, Streams::to(None, &into.join("monitor.log"))?)
}

/// Waits for two new samples: only the second is certain to have begun after the call. The
/// monitor's CPU budget may make it sample less often than requested.
pub(crate) fn await_samples(
    record: &Path,
    monitor: &mut Running,
    interval: Duration,
    stop: &Stop,
) -> Result<(), Failure> {
    let (begin, patience) = (Instant::now(), START + interval * 3);
    let length = || fs::metadata(record).map_or(0, |meta| meta.len());
    for _ in 0..2 {
        let before = length();
        // When the server exits, the monitor exits too; the caller reports that.
        while length() == before && monitor.ended().is_none() && begin.elapsed() < patience {
            if stop.is_stopped() {
                return Err(interrupted());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(())
}

/// Command prefix that pins a process to these cores.
pub(crate) fn pinned(cores: Option<&str>) -> Vec<String> {
    cores.map_or(Vec::new(), |cores| ["taskset", "-c", cores].map(str::to_owned).to_vec())
}

/// Formats a duration for the flags of this program.
pub(crate) fn micros(time: Duration) -> String {
    format!("{}us", time.as_micros())
}

/// Returns the arguments of `ammeter` for this load.
pub(crate) fn load_words(
    settings: &Settings,
    site: &Site,
    step: Step,
    server: SocketAddr,
    duration: Duration,
    seed: u64,
) -> Vec<String> {
    let Load { arrivals, think_time, connect_timeout, timeout, generators, parked, path, expect, .. } = &settings.load;
    let target = path.as_deref().unwrap_or(if site.manifest.is_some() { "/" } else { &site.target });
    let url = match (settings.load.tls, settings.load.http2) {
        (None, false) => format!("http://{server}{target}"),
        (None, true) => format!("http://{}{target}", tls_address(server)),
        (Some(_), _) => format!("https://{}{target}", tls_address(server)),
    };
    let mut words = vec!["load".to_owned(), url, "--json".to_owned()];
    if settings.load.tls.is_some() {
        // The certificate is the server's own.
        words.push("--insecure".to_owned());
    }
    if settings.load.http2 {
        words.push("--http2".to_owned());
    }
    let mut say = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
    match step {
        Step::Rate(rate) => {
            say("--rate", rate.to_string());
            say("--arrivals", arrivals.to_string());
        }
        Step::Clients(clients) => {
            say("--clients", clients.to_string());
            if !think_time.is_zero() {
                say("--think-time", micros(*think_time));
            }
        }
    }
    say("--duration", micros(duration));
    say("--seed", seed.to_string());
    say("--requests-per-connection", settings.load.requests_per_connection().to_string());
    say(if settings.load.http2 { "--streams" } else { "--pipeline" }, settings.load.at_once().to_string());
    say("--connect-timeout", micros(*connect_timeout));
    say("--timeout", micros(*timeout));
    // The server is already up. A probe would be one more connection that the kernel counts and the clients do not.
    say("--wait", micros(Duration::ZERO));
    say("--generators", generators.to_string());
    // Control groups measure this more precisely here.
    say("--others-max", "100%".to_owned());
    settings.load.tls_version.iter().for_each(|version| say("--tls-version", version.to_string()));
    settings.load.tls_resume.iter().for_each(|share| say("--tls-resume", format!("{}%", share * 100.0)));
    parked.iter().for_each(|parked| say("--parked", parked.to_string()));
    fields(settings, server, target).into_iter().for_each(|field| say("--header", field));
    expect.iter().for_each(|statuses| say("--expect", statuses.to_string()));
    site.manifest.iter().for_each(|manifest| say("--workload", manifest.display().to_string()));
    words
}

/// Returns the header fields of each request, with `@etag@` replaced by the server's entity tag for `target`.
pub(crate) fn fields(settings: &Settings, server: SocketAddr, target: &str) -> Vec<String> {
    let put = |field: &Checked<_>| {
        if !field.contains(ETAG) {
            return field.to_string();
        }
        let etag = Answer::fetch(server, target, &[]).and_then(|answer| answer.field("ETag"));
        field.replace(ETAG, &etag.unwrap_or_else(|| "\"none\"".to_owned()))
    };
    settings.load.headers.iter().map(put).collect()
}

/// A server that responds.
struct Server {
    running: Running,
    address: SocketAddr,
    group: Option<Group>,
    metrics: PathBuf,
    folder: PathBuf,
    start_ms: f64,
    /// Requests that it had counted before the load.
    replies_before: Option<u64>,
}

impl Server {
    #[allow(clippy::too_many_arguments, reason = "it is called once, and all of them are of different kinds")]
    fn start(
        environment: &TestEnvironment,
        settings: &Settings,
        site: &Site,
        into: &Path,
        folder: &Folder,
        path: Option<&PathBetween>,
        address: Option<IpAddr>,
        stop: &Stop,
    ) -> Result<Server, Failure> {
        let address = match path {
            None => free_address(address.unwrap_or(Ipv4Addr::LOCALHOST.into()))?,
            Some(_) => BEHIND_PATH,
        };
        let place = Place {
            address,
            site: site.folder.clone(),
            run: folder.path.clone(),
            metrics: folder.metrics.clone(),
            replies: site.replies.clone(),
            is_root: environment.is_root,
            tls: settings.load.tls.map(|kind| Certificate::create(kind, address.ip(), &folder.path)).transpose()?,
            http2: settings.load.http2,
            origin: settings.has_origin().then_some(Origin::ADDRESS),
        };
        let start = settings.subject.start(&place)?;
        if !start.config.is_empty() {
            for to in [folder.path.join("config"), into.join(name::SERVER_CONFIG)] {
                archive::write_bytes(&to, start.config.as_bytes())?;
            }
        }
        let group = environment.group(&settings.limits)?;
        let mut words = group.as_ref().map_or(Vec::new(), Group::prefix);
        words.extend(pinned(environment.cores(&settings.cores).server.as_deref()));
        if let Some(count) = settings.limits.descriptors {
            words.extend(["prlimit".to_owned(), format!("--nofile={count}:{count}"), "--".to_owned()]);
        }
        if let Some(path) = path {
            words.extend(path.exec(environment, testbed::SERVER));
        }
        words.extend(start.words);
        let log = into.join(name::SERVER_LOG);
        let streams = Streams::to(Some(&log), &into.join("server.err"))?;
        let began = Instant::now();
        let running = Running::start(&settings.subject.name, &words, streams)?;
        let mut server = Server {
            running,
            address,
            group,
            metrics: folder.metrics.clone(),
            folder: folder.path.clone(),
            start_ms: 0.0,
            replies_before: None,
        };
        server.await_answer(site, into, stop)?;
        server.start_ms = began.elapsed().as_secs_f64() * 1e3;
        Ok(server)
    }

    fn pid(&self) -> u32 {
        self.running.pid()
    }

    fn await_answer(&mut self, site: &Site, into: &Path, stop: &Stop) -> Result<(), Failure> {
        // For a file set any status below 500 will do: its root may not be a page. The floor server
        // replays recorded responses, which may be errors.
        let any = site.manifest.is_some() || site.replies.is_some();
        let is_right = |status: u16| if any { status < 500 } else { status == 200 };
        let logs = ["server.err", name::SERVER_LOG].map(|name| into.join(name));
        await_response(("it", &mut self.running), (self.address, &site.target), is_right, &logs, stop)
    }

    /// Returns the number of requests counted so far, if the server reports them by a way other than
    /// the monitor's. Subtracts the status `requests` of its own.
    fn replies(&self, settings: &Settings, requests: u64) -> Option<u64> {
        match settings.subject.kind {
            Kind::Nginx if settings.subject.config.is_empty() => {
                Some(subject::stub_status(self.address)?.saturating_sub(requests))
            }
            Kind::ApacheEvent | Kind::ApachePrefork | Kind::Lighttpd => {
                let is_logged = settings.subject.settings.get("log").is_some_and(|log| log == "true");
                let text = fs::read(self.folder.join("access.log"))
                    .ok()
                    .filter(|_| is_logged && !is_gathered(&settings.subject))?;
                Some(text.iter().filter(|byte| **byte == b'\n').count() as u64)
            }
            _ => None,
        }
    }
}

/// Waits until a server that was started gives a response that is right. Otherwise the error quotes its logs.
///
/// # Errors
/// It exits, does not respond in time, or gives a wrong response; an interrupt.
fn await_response(
    (name, running): (&str, &mut Running),
    (address, target): (SocketAddr, &str),
    is_right: impl Fn(u16) -> bool,
    logs: &[PathBuf],
    stop: &Stop,
) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut answered = None;
    let said = || {
        let text: String = logs.iter().map(|log| fs::read_to_string(log).unwrap_or_default()).collect();
        let lines: Vec<&str> = text.trim().lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    };
    while begin.elapsed() < START {
        if stop.is_stopped() {
            return Err(interrupted());
        }
        if let Some(status) = running.ended() {
            return Err(Failure::failed(format!("{name} exited before its first response ({status}): {}", said())));
        }
        answered = subject::ask(address, target).map(|(status, _)| status);
        if answered.is_some_and(&is_right) {
            return Ok(());
        }
        thread::sleep(Duration::from_micros(500));
    }
    Err(Failure::failed(match answered {
        Some(status) => format!("{name} responds to {target} with {status}: {}", said()),
        None => format!("{name} did not respond within {START:?}: {}", said()),
    }))
}

/// The address of a server at the other end of a path. In a private namespace every port is free.
const BEHIND_PATH: SocketAddr = SocketAddr::new(IpAddr::V4(ammeter_wan::behind::HOST4), 8080);

/// The server of the files that the measured server gets over the path: amped, counted as an instrument.
struct Origin {
    _running: Running,
}

impl Origin {
    const ADDRESS: SocketAddr = BEHIND_PATH;

    /// Its configuration: the files are in a bucket, as in an object store, whose listings are empty.
    const CONFIG: &str = "[[site]]
root = \"@site@\"
route = [
    { match = \"/bucket\", respond = \"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>\" },
    { match = \"/bucket/**\", rewrite = \"/$1\" },
]
";

    /// Starts it at the other end of the path, and waits for its first response.
    ///
    /// # Errors
    /// It cannot be started, or does not respond in time; an interrupt.
    fn start(
        environment: &TestEnvironment,
        settings: &Settings,
        site: &Site,
        into: &Path,
        folder: &Folder,
        (path, joined): (&PathBetween, &[String]),
        stop: &Stop,
    ) -> Result<Origin, Failure> {
        let run = folder.path.join("origin");
        fs::create_dir_all(&run).map_err(Failure::io(format_args!("create {}", run.display())))?;
        let place = Place {
            address: Origin::ADDRESS,
            site: site.folder.clone(),
            run: run.clone(),
            metrics: PathBuf::new(),
            replies: None,
            is_root: environment.is_root,
            tls: None,
            http2: false,
            origin: None,
        };
        let program = Subject::of(Kind::Amped).program()?.display().to_string();
        let words = [&program, "serve", "@site@", "--listen", "@address@:@port@", "--config", "@config@"];
        let (config, start) = (Origin::CONFIG.to_owned(), words.map(str::to_owned).to_vec());
        let start = Subject { config, start, ..Subject::of(Kind::Command) }.start(&place)?;
        archive::write_bytes(&run.join("config"), start.config.as_bytes())?;
        let pin = pinned(environment.cores(&settings.cores).clients.as_deref());
        let path = path.exec(environment, testbed::SERVER);
        let words: Vec<String> = joined.iter().cloned().chain(pin).chain(path).chain(start.words).collect();
        let log = into.join("origin.log");
        let mut running = Running::start("the origin", &words, Streams::to(None, &log)?)?;
        let target = format!("/bucket{}", site.target);
        await_response(("the origin", &mut running), (Origin::ADDRESS, &target), |_| true, &[log], stop)?;
        Ok(Origin { _running: running })
    }
}

/// Whether the server buffers its log, so that some lines may not be written yet.
fn is_gathered(subject: &Subject) -> bool {
    subject.kind == Kind::Lighttpd || subject.settings.get("log-buffered").is_some_and(|on| on == "true")
}

/// The router between the namespaces of server and clients.
struct PathBetween {
    running: Option<Running>,
    socket: PathBuf,
    /// Maximum lateness of packets at the 99th percentile.
    late_max: Duration,
}

impl PathBetween {
    /// The clients' class.
    const CLIENTS: &'static str = "clients";

    /// Starts the router, and moves the calling thread into the clients' namespace. `address`: where clients on other hosts join it.
    fn up(
        environment: &TestEnvironment,
        settings: &Settings,
        folder: &Folder,
        joined: &[String],
        address: Option<IpAddr>,
    ) -> Result<PathBetween, Failure> {
        let Some(texts) = &settings.path else { return Err(Failure::failed("there is no path")) };
        if !environment.is_root {
            return Err(Failure::failed(format!("a path between client and server: {}", place::NEEDS_ROOT)));
        }
        let mut net = String::new();
        net.extend(texts.congestion_control.iter().map(|name| format!("congestion-control = {name:?}\n")));
        net += &format!("[[class]]\nname = {:?}\nshared = true\n", Self::CLIENTS);
        net.extend(address.map(|address| format!("listen = \"{}\"\n", SocketAddr::new(address, 0))));
        for (key, text) in [
            ("profile", &texts.profile),
            ("latency", &texts.latency),
            ("bandwidth", &texts.bandwidth),
            ("loss", &texts.loss),
            ("queue", &texts.queue),
        ] {
            net.extend(text.iter().map(|text| format!("{key} = {text:?}\n")));
        }
        let (file, socket) = (folder.path.join("net.toml"), folder.path.join("wan.sock"));
        archive::write_bytes(&file, net.as_bytes())?;
        let words = [
            &environment.own,
            Path::new("wan"),
            Path::new("up"),
            &file,
            Path::new("--control"),
            &socket,
            Path::new("--foreground"),
        ];
        let words = words.into_iter().map(|word| word.display().to_string());
        let words: Vec<String> = joined.iter().cloned().chain(words).collect();
        let log = folder.path.join("wan.log");
        let err = fs::File::create(&log).map_err(Failure::io(format_args!("write {}", log.display())))?;
        let mut running = Running::start("the path", &words, Streams { out: Stdio::piped(), err: err.into() })?;
        let mut line = String::new();
        if let Some(output) = running.take_output() {
            BufReader::new(output).read_line(&mut line).map_err(Failure::io("wait for the path"))?;
        }
        if line.trim() != "up" {
            let said = fs::read_to_string(&log).unwrap_or_default();
            return Err(Failure::usage(format!("cannot set up the path: {}", said.trim())));
        }
        testbed::enter(&socket, Self::CLIENTS)?;
        let late_max = texts.late_max.as_ref().and_then(|text| parse_duration(text).ok()).unwrap_or(LATE_MAX);
        Ok(PathBetween { running: Some(running), socket, late_max })
    }

    /// Command prefix that runs a program in the namespace of a class.
    fn exec(&self, environment: &TestEnvironment, class: &str) -> Vec<String> {
        let (own, socket) = (environment.own.display().to_string(), self.socket.display().to_string());
        [&own, "wan", "exec", "--control", &socket, class, "--"].map(str::to_owned).to_vec()
    }

    /// Whether packets left on time.
    fn verdict(&self) -> Result<Verdict, Failure> {
        Ok(testbed::status(&self.socket)?.verdict(self.late_max))
    }
}

impl Drop for PathBetween {
    fn drop(&mut self) {
        let _ = testbed::down(&self.socket);
        if let Some(running) = self.running.take() {
            running.end(END);
        }
    }
}

/// CPU times at one moment.
pub(crate) struct Snapshot {
    at: Instant,
    cpu: Option<CpuTime>,
    /// CPU time of load generators and instruments.
    instruments: Option<CpuTime>,
    busy_ns: u64,
    stolen_ns: u64,
}

impl Snapshot {
    /// Reads the CPU times of the server's and the instruments' groups, if they exist, and of the machine.
    pub(crate) fn take(server: Option<&Group>, instruments: Option<&Group>) -> Result<Snapshot, Failure> {
        Ok(Snapshot {
            at: Instant::now(),
            cpu: server.and_then(Group::cpu),
            instruments: instruments.and_then(Group::cpu),
            busy_ns: host::busy_ns()?,
            stolen_ns: host::stolen_ns()?,
        })
    }

    /// Returns the CPU use from this snapshot to a later one.
    pub(crate) fn until(&self, later: &Snapshot) -> CpuUsage {
        let used = |(before, after): (CpuTime, CpuTime)| CpuTime {
            all_ns: after.all_ns.saturating_sub(before.all_ns),
            user_ns: before.user_ns.zip(after.user_ns).map(|(before, after)| after.saturating_sub(before)),
        };
        CpuUsage {
            elapsed_s: (later.at - self.at).as_secs_f64(),
            server: self.cpu.zip(later.cpu).map(used),
            instruments_ns: self.instruments.zip(later.instruments).map(|both| used(both).all_ns),
            busy_ns: later.busy_ns.saturating_sub(self.busy_ns),
            stolen_ns: later.stolen_ns.saturating_sub(self.stolen_ns),
        }
    }
}

/// CPU use between two snapshots.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CpuUsage {
    elapsed_s: f64,
    /// CPU time of the server's group.
    server: Option<CpuTime>,
    /// CPU time of the group of load generators and instruments.
    instruments_ns: Option<u64>,
    busy_ns: u64,
    stolen_ns: u64,
}

impl CpuUsage {
    /// Returns the share of all CPU time in use on `cores` cores, and the share used by processes other
    /// than server, load and instruments, if known. `server_s` is the server's CPU time in seconds.
    pub(crate) fn shares(&self, cores: usize, server_s: Option<f64>) -> (f64, Option<f64>) {
        let whole_s = self.elapsed_s.max(1e-9) * cores.max(1) as f64;
        let busy_s = self.busy_ns as f64 / 1e9;
        let ours_s = self.instruments_ns.zip(server_s).map(|(instruments, server)| instruments as f64 / 1e9 + server);
        ((busy_s / whole_s).min(1.0), ours_s.map(|ours| ((busy_s - ours) / whole_s).max(0.0)))
    }
}

/// The monitor's record: the last sample before the load, the last of all, and figures of those between.
#[derive(Default)]
pub(crate) struct Seen {
    first: Sample,
    last: Sample,
    processes_max: usize,
    threads_max: usize,
    resident_max: u64,
    /// Resident memory at the first sample.
    rest_bytes: Option<u64>,
    depth_max: Option<u64>,
    /// Bytes per second sent by the namespace, per tick during the load.
    ticks: Vec<f64>,
    /// Established connections, per census during the load.
    established: Vec<f64>,
    /// Established connections without those in the listen queue, likewise.
    accepted: Vec<f64>,
    /// Connections as in `in_flight`, likewise.
    open: Vec<f64>,
    /// Connections, including those whose last bytes are in flight (closed by the server, not fully
    /// acknowledged by the client), each count with the seconds since the census before, up to the last
    /// census. Without the latter connections, a server that closes each connection as soon as it has
    /// written the response would not be charged the time on the path.
    in_flight: Vec<(f64, f64)>,
}

/// The mean of counts; `None` without any.
fn mean(counts: &[f64]) -> Option<f64> {
    (!counts.is_empty()).then(|| counts.iter().sum::<f64>() / counts.len() as f64)
}

impl Seen {
    /// Reads a record.
    ///
    /// # Errors
    /// If the record is missing or unreadable.
    pub(crate) fn read(record: &Path, &Loaded { began_s, from_s, to_s }: &Loaded) -> Result<Seen, Failure> {
        let mut seen = Seen::default();
        let mut before: Option<Sample> = None;
        let mut counted_s = from_s;
        for sample in ammeter_monitor::replay(record)? {
            let at_s = sample.wall_ms as f64 / 1e3;
            let resident: u64 = sample.processes.iter().map(|one| one.resident).sum();
            if at_s <= began_s || before.is_none() {
                seen.first = sample.clone();
                // Later samples may include memory of the warm-up and of parked connections.
                seen.rest_bytes = seen.rest_bytes.or(Some(resident)).filter(|bytes| *bytes > 0);
            } else {
                seen.processes_max = seen.processes_max.max(sample.processes.len());
                seen.threads_max = seen.threads_max.max(sample.thread_count());
                seen.resident_max = seen.resident_max.max(resident);
                seen.depth_max = seen.depth_max.max(sample.listeners.iter().map(|one| one.depth).max());
            }
            if let Some(before) = &before
                && before.wall_ms as f64 / 1e3 >= from_s
                && at_s <= to_s
            {
                let seconds = (sample.at_us.saturating_sub(before.at_us)) as f64 / 1e6;
                if let (Some(from), Some(to)) = (out_bytes(before), out_bytes(&sample)) {
                    seen.ticks.push(to.saturating_sub(from) as f64 / seconds.max(1e-9));
                }
            }
            let is_new = |census: &&ammeter_monitor::Census| {
                let old = before.as_ref().and_then(|before| before.census.as_ref());
                old.is_none_or(|old| old.at_us < census.at_us)
            };
            if at_s > from_s
                && let Some(census) = sample.census.as_ref().filter(is_new)
            {
                let count = |names: &[&str]| -> u32 {
                    let counted = census.states.iter().filter(|(name, _)| names.contains(&name.as_str()));
                    counted.map(|(_, count)| *count).sum()
                };
                let open = f64::from(count(&["established", "fin_wait_1", "closing"]));
                if at_s <= to_s {
                    let established = f64::from(count(&["established"]));
                    let queued = sample.listeners.iter().map(|one| one.depth).sum::<u64>() as f64;
                    seen.established.push(established);
                    seen.accepted.push((established - queued).max(0.0));
                    seen.open.push(open);
                }
                seen.in_flight.push((at_s - counted_s, open));
                counted_s = at_s;
            }
            before = Some(sample);
        }
        seen.last = before.unwrap_or_default();
        Ok(seen)
    }

    /// Returns the resources that the server used.
    pub(crate) fn server(&self) -> ServerUse {
        let Seen { first, last, .. } = self;
        let ran = |sample: &Sample| -> BTreeMap<u32, u64> {
            sample.threads.iter().map(|thread| (thread.tid, thread.run)).collect()
        };
        let (from, to) = (ran(first), ran(last));
        // Older records count only the threads that lived until the end.
        let of_threads = || to.iter().map(|(tid, ns)| ns.saturating_sub(from.get(tid).copied().unwrap_or(0))).sum();
        let cpu_ns: u64 = match (first.server.unwrap_or_default(), last.server) {
            (from, Some(to)) => to.all_ns().saturating_sub(from.all_ns()),
            (_, None) => of_threads(),
        };
        let counter = |name: &str| {
            let of = |sample: &Sample| sample.module.as_ref()?.counters.get(name).copied();
            Some(of(last)?.saturating_sub(of(first)?))
        };
        ServerUse {
            cpu_s: (cpu_ns > 0).then_some(cpu_ns as f64 / 1e9),
            processes_max: (self.processes_max > 0).then_some(self.processes_max as u32),
            threads_max: (self.threads_max > 0).then_some(self.threads_max as u32),
            memory_max_bytes: (self.resident_max > 0).then_some(self.resident_max),
            resident_max_bytes: (self.resident_max > 0).then_some(self.resident_max),
            rest_bytes: self.rest_bytes,
            listen_depth_max: self.depth_max,
            page_cache_bytes: last
                .groups
                .iter()
                .filter(|group| group.memory_max.is_some())
                .filter_map(|group| group.page_cache)
                .min(),
            replies: counter("requests"),
            sent_bytes: counter("sent_bytes"),
            parsing_ms: self.phases_ms(&["waiting", "parsing"]),
            processing_ms: self.phases_ms(&["processing", "sending"]),
            logging_ms: self.phases_ms(&["logging"]),
            ..ServerUse::default()
        }
    }

    /// Returns the mean time of these phases over all requests that the server timed during the load, in milliseconds.
    fn phases_ms(&self, names: &[&str]) -> Option<f64> {
        // Elapsed nanoseconds of the phases, and the number of timed requests.
        let so_far = |sample: &Sample| {
            let classes = &sample.module.as_ref()?.classes;
            let phases =
                classes.iter().flat_map(|class| &class.phases).filter(|phase| names.contains(&&phase.name[..]));
            Some((
                phases.map(|phase| phase.elapsed_ns).sum::<u64>(),
                classes.iter().map(|class| class.timed).sum::<u64>(),
            ))
        };
        let ((from_ns, from), (to_ns, to)) = (so_far(&self.first)?, so_far(&self.last)?);
        (to > from).then(|| to_ns.saturating_sub(from_ns) as f64 / (to - from) as f64 / 1e6)
    }

    /// Returns all monitor columns, by name.
    pub(crate) fn figures(&self) -> BTreeMap<String, f64> {
        let mut figures = BTreeMap::new();
        if let Some(tick) = Tick::between(&self.first, &self.last) {
            tick.each_figure(|name, value| figures.extend(value.map(|value| (name.to_string(), value))));
        }
        figures
    }

    /// Returns the counters of the network namespace.
    pub(crate) fn network(&self, is_private: bool) -> NetworkUse {
        let tcp = |of: fn(&Tcp) -> Option<u64>| Some(of(&self.last.tcp)?.saturating_sub(of(&self.first.tcp)?));
        NetworkUse {
            is_private,
            passive_opens: tcp(|tcp| tcp.passive_opens),
            segments_out: tcp(|tcp| tcp.segments_out),
            out_bytes: out_bytes(&self.first).zip(out_bytes(&self.last)).map(|(from, to)| to.saturating_sub(from)),
            established: mean(&self.established),
            in_flight: mean(&self.open),
            accepted: mean(&self.accepted),
        }
    }

    /// Returns the CPU use of the machine.
    pub(crate) fn host(&self, spell: &CpuUsage, summary: &Summary) -> HostUse {
        let cores = match self.last.host.cores.len() {
            0 => thread::available_parallelism().map_or(1, |cores| cores.get()),
            cores => cores,
        };
        let (busy, others) = spell.shares(cores, summary.server.cpu_s);
        HostUse { busy, others, stolen: spell.stolen_ns as f64 / 1e9 / (spell.elapsed_s.max(1e-9) * cores as f64) }
    }
}

/// Bytes sent by all devices of the namespace; `None` if unknown.
fn out_bytes(sample: &Sample) -> Option<u64> {
    (!sample.interfaces.is_empty()).then(|| sample.interfaces.iter().map(|one| one.sent).sum())
}

/// Observes the idle machine for [`plan::IDLE_S`] seconds.
///
/// # Errors
/// If `/proc` is not mounted; an interrupt.
pub(crate) fn look_at_rest(stop: &Stop) -> Result<Block, Failure> {
    let (began_s, begin, from) = (now_s(), Instant::now(), Rest::read()?);
    while begin.elapsed().as_secs_f64() < plan::IDLE_S {
        if stop.is_stopped() {
            return Err(interrupted());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let (looked_s, to) = (begin.elapsed().as_secs_f64(), Rest::read()?);
    let cores = Machine::this()?.cores.max(1);
    let share = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9 / looked_s / cores as f64;
    let mut busiest = to.census.busiest(&from.census, |_| true);
    busiest.truncate(5);
    let busy = share(from.busy_ns, to.busy_ns);
    Ok(Block {
        block: 0,
        began_s,
        looked_s,
        busy,
        stolen: to.census.stolen(&from.census, cores),
        packets_per_s: to.packets.saturating_sub(from.packets) as f64 / looked_s,
        disk_bytes_per_s: to.disk_bytes.saturating_sub(from.disk_bytes) as f64 / looked_s,
        busiest,
        is_clean: true,
        hosts: BTreeMap::new(),
    })
}

/// Counters of the machine at one moment.
struct Rest {
    busy_ns: u64,
    packets: u64,
    disk_bytes: u64,
    census: Census,
}

impl Rest {
    fn read() -> Result<Rest, Failure> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        // Partitions and stacked devices would count the transfers of the underlying disk again.
        let is_whole = |name: &str| Path::new("/sys/block").join(name).join("device").exists();
        let disks = Disk::parse(&read("/proc/diskstats"), is_whole);
        Ok(Rest {
            busy_ns: host::busy_ns()?,
            packets: Interface::parse(&read("/proc/net/dev")).iter().map(|one| one.received_packets).sum(),
            disk_bytes: disks.iter().map(|disk| disk.read + disk.written).sum(),
            census: Census::take()?,
        })
    }
}

/// Checks that an archive belongs to the same experiment and programs; returns the reason if it cannot be resumed.
pub(crate) fn same(old: &Resolved, new: &Resolved) -> Result<(), String> {
    if !old.measures_as(new) {
        return Err("the archive belongs to another experiment, or to this one with other settings, --seed or --quick"
            .to_owned());
    }
    let changed: Vec<&str> = new
        .programs
        .iter()
        .filter(|(name, program)| old.programs.get(*name).is_none_or(|before| before.sha256 != program.sha256))
        .map(|(name, _)| name.as_str())
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} has changed since the archive was created, and runs of both versions would be mixed",
        changed.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ammeter_monitor::{Head, Module, Recorder};

    #[test]
    fn responses_before_the_other_clients_begin_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join(name::MONITOR);
        let mut recorder = Recorder::create(&record, &Head { version: Head::VERSION, ..Head::default() }).unwrap();
        // The additional clients begin at 100.02 s, and the others at 100.06 s.
        for (wall_ms, requests) in [(99_940, 1), (100_040, 401), (100_140, 1501), (101_140, 2501)] {
            let module = Module { counters: [("requests".to_owned(), requests)].into(), ..Module::default() };
            recorder.add(&Sample { wall_ms, module: Some(module), ..Sample::default() }).unwrap();
        }
        recorder.finish().unwrap();
        let counted = |beside_s: Option<f64>, offset_s: f64| {
            let loaded = Loaded::by((100.06 - offset_s, 1.0), beside_s, offset_s);
            Seen::read(&record, &loaded).unwrap().server().replies
        };
        assert_eq!(counted(None, 0.0), Some(2100));
        for offset_s in [0.0, 7.5] {
            assert_eq!(counted(Some(100.02 - offset_s), offset_s), Some(2500));
        }
    }
}
