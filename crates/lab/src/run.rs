//! Makes the runs of a plan, each from an empty folder to a finished one in the archive.
//!
//! 1 a network namespace of its own, by a thread that goes there and starts all that follows; 2 the server, in a control group
//! and on its cores, until it answers; 3 `ammeter monitor --record`; 4 load that is not counted; 5 `ammeter load`, beside it
//! `ammeter profile` where it was asked for; 6 all are ended; 7 `validate.rs` judges, and `run.json` says what came of it.
//!
//! Load, monitor and profile are programs of their own (this one, by its other commands), so that they have their own cores and
//! could as well be on another host. With a path in the experiment, server and clients are in two namespaces with the router of
//! `ammeter wan up` between them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ammeter_load::drive::Stop;
use ammeter_monitor::Sample;
use ammeter_wan::place::{self, Mark};
use ammeter_wan::selftest::LATE_MAX;
use ammeter_wan::testbed;
use amped_measure::host::{self, Machine};
use amped_measure::{Failure, Verdict, Worth};
use serde::Deserialize;

use crate::archive::{
    self, Block, Check, ClientStep, Clients, HostUse, NetworkUse, Planned, Resolved, Rules, Run, ServerUse, Step,
    Summary, Times, name,
};
use crate::bed::{Bed, Folder, Running, Site, Streams, free_address, interrupted};
use crate::experiment::{Load, Settings, Subject, Workload};
use crate::group::{CpuTime, Group};
use crate::plan;
use crate::subject::{self, Kind, Place};
use crate::validate::{self, Evidence};

/// How long a server may take until it answers.
const START: Duration = Duration::from_secs(20);

/// How long a program may take to end when it is asked to.
const END: Duration = Duration::from_secs(5);

/// Seconds since 1970.
pub(crate) fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// What a run is made of.
#[derive(Clone)]
struct Order {
    settings: Settings,
    planned: Planned,
    rules: Rules,
    interval: Duration,
    clients: Option<ClientStep>,
    idle: Option<(bool, f64)>,
    site: Site,
    /// Where its files go.
    into: PathBuf,
}

/// What all runs of an experiment have in common.
pub(crate) struct Lab<'a> {
    /// The place.
    pub(crate) bed: &'a Bed,
    /// The archive.
    pub(crate) dir: &'a Path,
    /// What was asked for.
    pub(crate) resolved: &'a Resolved,
    /// What the clients can do.
    pub(crate) clients: &'a Clients,
    /// Says when it is enough.
    pub(crate) stop: &'a Stop,
}

/// Makes one run: its directory is in the archive when this returns.
///
/// # Errors
/// When it could not be made at all: no program, no disk, an interrupt. A server that fails is a result, and no error.
pub(crate) fn make(
    Lab { bed, dir, resolved, clients, stop }: &Lab<'_>,
    settings: &Settings,
    planned: &Planned,
    block: &Block,
) -> Result<Run, Failure> {
    let runs = dir.join(name::RUNS);
    let into = runs.join(format!(".{}", planned.id));
    let _ = fs::remove_dir_all(&into);
    fs::create_dir_all(&into).map_err(Failure::io(format_args!("make {}", into.display())))?;
    let order = Order {
        settings: settings.clone(),
        planned: planned.clone(),
        rules: resolved.rules.clone(),
        interval: Duration::from_secs_f64(resolved.interval_ms / 1e3),
        clients: clients.steps.iter().find(|step| step.step == planned.step).cloned(),
        idle: Some((block.is_clean, block.busy)),
        site: bed.site(&settings.workload, resolved.seed)?,
        into: into.clone(),
    };
    if settings.limits.memory.is_some() || settings.limits.disk.is_some() {
        order.site.cool();
    }
    let run = apart(bed, stop, move |bed, stop| work(bed, &order, stop))?;
    archive::write(&into.join(name::RUN), &run)?;
    let to = runs.join(&planned.id);
    fs::rename(&into, &to).map_err(Failure::io(format_args!("name {}", to.display())))?;
    Ok(run)
}

/// Does `work` in a thread of its own, in a new network namespace where this machine allows that. Whoever is in there still
/// when it is done is ended.
fn apart<T: Send>(
    bed: &Bed,
    stop: &Stop,
    work: impl FnOnce(&Bed, &Stop) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let mark = Mark::own()?;
    let done = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if bed.is_private {
                place::unshare(mark)?;
            }
            work(bed, stop)
        });
        thread.join().unwrap_or_else(|_| Err(Failure::failed("the thread of a run has panicked")))
    });
    if bed.is_private {
        mark.end_all();
    }
    done
}

/// A run, in its namespace.
fn work(bed: &Bed, order: &Order, stop: &Stop) -> Result<Run, Failure> {
    let Order { settings, planned, into, interval, .. } = order;
    let folder = bed.folder()?;
    let mut run = Run::begun(planned.clone(), now_s());
    // What load and instruments use is no doing of others.
    let instruments = if bed.has_groups { Some(Group::counter()?) } else { None };
    let joined = instruments.as_ref().map_or(Vec::new(), Group::prefix);
    let path = settings.path.as_ref().map(|_| PathBetween::up(bed, settings, &folder, &joined)).transpose()?;
    let mut server = match Server::start(bed, settings, order, &folder, path.as_ref(), stop) {
        Ok(server) => server,
        Err(_) if stop.is_stopped() => return Err(interrupted()),
        Err(failure) => {
            // That is a result: this server cannot be run so.
            run.why = vec![format!("server: {failure}")];
            run.checks = vec![Check { name: "server".to_owned(), holds: Some(false), says: failure.to_string() }];
            run.ended_s = now_s();
            return Ok(run);
        }
    };
    let cores = bed.cores(&settings.cores);
    let pin = pinned(cores.clients.as_deref());
    let own = |words: &[&str]| -> Vec<String> {
        let words = words.iter().map(|word| (*word).to_owned());
        joined.iter().chain(&pin).cloned().chain([bed.own.display().to_string()]).chain(words).collect()
    };
    let pid = server.pid().to_string();
    let interval_text = micros(*interval);
    let record = into.join(name::MONITOR);
    let mut words =
        own(&["monitor", "--pid", &pid, "--json", "--interval", &interval_text, "--census", &interval_text]);
    words.extend(["--budget", "5%", "--record"].map(str::to_owned));
    words.push(record.display().to_string());
    if server.metrics.exists() {
        words.extend(["--server-file".to_owned(), server.metrics.display().to_string()]);
    }
    let mut monitor = Running::start("the monitor", &words, Streams::to(None, &into.join("monitor.log"))?)?;
    await_samples(&record, &mut monitor, *interval, stop)?;

    let load = |duration: Duration, seed: u64, hlog: Option<&Path>| {
        let mut words = own(&[]);
        words.extend(load_words(settings, &order.site, planned.step, server.address, duration, seed));
        words.extend(hlog.into_iter().flat_map(|path| ["--hlog".to_owned(), path.display().to_string()]));
        words
    };
    let patience = |duration: Duration| duration + settings.load.timeout + Duration::from_secs(30);
    if !settings.load.warm_up.is_zero() {
        let streams = Streams::to(Some(&into.join(name::WARM_UP)), &into.join("warm-up.log"))?;
        let words = load(settings.load.warm_up, planned.seed ^ 1, None);
        Running::start("the warm-up", &words, streams)?.wait(patience(settings.load.warm_up), stop)?;
    }
    server.replies_before = server.replies(settings, 0);
    // One in which nothing is asked: counters are compared from there.
    await_samples(&record, &mut monitor, *interval, stop)?;

    let before = Snapshot::take(server.group.as_ref(), instruments.as_ref())?;
    let profile = match settings.profile {
        false => None,
        true => {
            let words = own(&["profile", "--pid", &pid, "--json", "--duration", &micros(settings.load.duration)]);
            let streams = Streams::to(Some(&into.join(name::PROFILE)), &into.join("profile.log"))?;
            Some(Running::start("the profile", &words, streams)?)
        }
    };
    let streams = Streams::to(Some(&into.join(name::LOAD)), &into.join("load.log"))?;
    let words = load(settings.load.duration, planned.seed, Some(&into.join(name::HLOG)));
    let status = Running::start("the load", &words, streams)?.wait(patience(settings.load.duration), stop)?;
    let after = Snapshot::take(server.group.as_ref(), instruments.as_ref())?;
    run.load_ended_s = now_s();
    if let Some(profile) = profile {
        profile.wait(patience(settings.load.duration), stop)?;
    }
    await_samples(&record, &mut monitor, *interval, stop)?;
    let server_ended = server.running.ended().map(|status| status.to_string());
    monitor.end(END);
    // The question before was counted too.
    let replies = server.replies(settings, 1);
    let path_verdict = path.as_ref().map(PathBetween::verdict).transpose()?;
    let memory_max_bytes = server.group.as_ref().and_then(Group::memory_max);
    server.running.end(END);
    drop(server.group);
    drop(path);
    drop(instruments);

    let told: Told = match archive::read(&into.join(name::LOAD)) {
        Ok(told) => told,
        Err(_) => {
            let said = fs::read_to_string(into.join("load.log")).unwrap_or_default();
            let says = format!("the load ended with {status}: {}", said.trim());
            run.why = vec![format!("client: {says}")];
            run.checks = vec![Check { name: "client".to_owned(), holds: Some(false), says }];
            run.ended_s = now_s();
            return Ok(run);
        }
    };
    run.load_began_s = told.began_s;
    let seen = Seen::read(&record, told.began_s, told.began_s + told.seconds)?;
    let mut summary = told.summary(planned.step);
    summary.set_bytes = order.site.bytes();
    summary.network = seen.network(bed.is_private || path_verdict.is_some());
    summary.server = seen.server();
    summary.server.memory_max_bytes = memory_max_bytes.or(summary.server.memory_max_bytes);
    if let (Some(before), Some(after)) = (server.replies_before, replies) {
        summary.server.replies = Some(after.saturating_sub(before));
    }
    if let (Some(before), Some(after)) = (before.cpu, after.cpu) {
        let ns = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1e9;
        summary.server.cpu_s = Some(ns(before.all_ns, after.all_ns));
        summary.server.user_s = before.user_ns.zip(after.user_ns).map(|(before, after)| ns(before, after));
        summary.server.system_s =
            summary.server.cpu_s.zip(summary.server.user_s).map(|(all, user)| (all - user).max(0.0));
    }
    summary.host = seen.host(&before, &after, &summary);
    let evidence = Evidence {
        rules: &order.rules,
        step: planned.step,
        think_s: settings.load.think_time.as_secs_f64(),
        requests_per_connection: settings.load.requests_per_connection,
        clients: order.clients.as_ref(),
        idle: order.idle,
        client: &told.verdict,
        summary: &summary,
        ticks: &seen.ticks,
        in_flight: &seen.in_flight,
        path: path_verdict.as_ref(),
        server_ended: server_ended.as_deref(),
    };
    (run.checks, run.standing, run.why) = validate::judge(&evidence);
    run.summary = Some(summary);
    run.ended_s = now_s();
    Ok(run)
}

/// Waits until the monitor has looked twice: the second time is a look that was begun since. Its budget may have it look less
/// often than it was told.
fn await_samples(record: &Path, monitor: &mut Running, interval: Duration, stop: &Stop) -> Result<(), Failure> {
    let (begin, patience) = (Instant::now(), START + interval * 3);
    let length = || fs::metadata(record).map_or(0, |meta| meta.len());
    for _ in 0..2 {
        let before = length();
        // The server has ended where the monitor has; that is told elsewhere.
        while length() == before && monitor.ended().is_none() && begin.elapsed() < patience {
            if stop.is_stopped() {
                return Err(interrupted());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(())
}

/// Words before a program's own that keep it on these cores.
fn pinned(cores: Option<&str>) -> Vec<String> {
    cores.map_or(Vec::new(), |cores| ["taskset", "-c", cores].map(str::to_owned).to_vec())
}

fn micros(time: Duration) -> String {
    format!("{}us", time.as_micros())
}

/// What `ammeter` is told to make this load.
fn load_words(
    settings: &Settings,
    site: &Site,
    step: Step,
    server: SocketAddr,
    duration: Duration,
    seed: u64,
) -> Vec<String> {
    let Load {
        arrivals,
        requests_per_connection,
        pipeline,
        think_time,
        connect_timeout,
        timeout,
        generators,
        parked,
        ..
    } = &settings.load;
    let target = if site.manifest.is_some() { "/" } else { &site.target };
    let mut words = vec!["load".to_owned(), format!("http://{server}{target}"), "--json".to_owned()];
    let mut say = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
    match step {
        Step::Rate(rate) => {
            say("--rate", rate.to_string());
            say("--arrivals", arrivals.clone());
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
    say("--requests-per-connection", requests_per_connection.to_string());
    say("--pipeline", pipeline.to_string());
    say("--connect-timeout", micros(*connect_timeout));
    say("--timeout", micros(*timeout));
    // It was waited for, and one connection more would be one that the kernel counts and the clients do not.
    say("--wait", micros(Duration::ZERO));
    say("--generators", generators.to_string());
    parked.iter().for_each(|parked| say("--parked", parked.clone()));
    site.manifest.iter().for_each(|manifest| say("--workload", manifest.display().to_string()));
    words
}

/// A server that answers.
struct Server {
    running: Running,
    address: SocketAddr,
    group: Option<Group>,
    metrics: PathBuf,
    folder: PathBuf,
    /// Requests that it had counted before there was load.
    replies_before: Option<u64>,
}

impl Server {
    fn start(
        bed: &Bed,
        settings: &Settings,
        order: &Order,
        folder: &Folder,
        path: Option<&PathBetween>,
        stop: &Stop,
    ) -> Result<Server, Failure> {
        let address = match path {
            None => free_address(Ipv4Addr::LOCALHOST.into())?,
            // In a namespace of its own every port is free.
            Some(_) => SocketAddr::new(IpAddr::V4(ammeter_wan::behind::HOST4), 8080),
        };
        let place = Place {
            address,
            site: order.site.folder.clone(),
            run: folder.path.clone(),
            metrics: folder.metrics.clone(),
            is_root: bed.is_root,
        };
        let start = settings.subject.start(&place)?;
        if !start.config.is_empty() {
            for to in [folder.path.join("config"), order.into.join(name::SERVER_CONFIG)] {
                archive::write_bytes(&to, start.config.as_bytes())?;
            }
        }
        let group = bed.group(&settings.limits)?;
        let mut words = group.as_ref().map_or(Vec::new(), Group::prefix);
        words.extend(pinned(bed.cores(&settings.cores).server.as_deref()));
        if let Some(count) = settings.limits.descriptors {
            words.extend(["prlimit".to_owned(), format!("--nofile={count}:{count}"), "--".to_owned()]);
        }
        if let Some(path) = path {
            words.extend(path.exec(bed, testbed::SERVER));
        }
        words.extend(start.words);
        let log = order.into.join(name::SERVER_LOG);
        let streams = Streams::to(Some(&log), &order.into.join("server.err"))?;
        let running = Running::start(&settings.subject.name, &words, streams)?;
        let mut server = Server {
            running,
            address,
            group,
            metrics: folder.metrics.clone(),
            folder: folder.path.clone(),
            replies_before: None,
        };
        server.await_answer(&order.site, &order.into, stop)?;
        Ok(server)
    }

    fn pid(&self) -> u32 {
        self.running.pid()
    }

    fn await_answer(&mut self, site: &Site, into: &Path, stop: &Stop) -> Result<(), Failure> {
        let begin = Instant::now();
        let mut answered = None;
        let said = || {
            let text: String = ["server.err", name::SERVER_LOG]
                .iter()
                .map(|name| fs::read_to_string(into.join(name)).unwrap_or_default())
                .collect();
            let lines: Vec<&str> = text.trim().lines().collect();
            lines[lines.len().saturating_sub(5)..].join("\n")
        };
        // Of a set any answer will do: its root may be no page.
        let is_right = |status: u16| if site.manifest.is_some() { status < 500 } else { status == 200 };
        while begin.elapsed() < START && !stop.is_stopped() {
            if let Some(status) = self.running.ended() {
                return Err(Failure::failed(format!("it ended before it answered ({status}): {}", said())));
            }
            answered = subject::ask(self.address, &site.target).map(|(status, _)| status);
            if answered.is_some_and(is_right) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(Failure::failed(match answered {
            Some(status) => format!("it answers {} with {status}: {}", site.target, said()),
            None => format!("it did not answer within {START:?}: {}", said()),
        }))
    }

    /// Requests that it has counted so far, where there is a way to ask it that is none of the monitor's; without so many of
    /// those that asked.
    fn replies(&self, settings: &Settings, asked: u64) -> Option<u64> {
        match settings.subject.kind {
            Kind::Nginx if settings.subject.config.is_empty() => {
                Some(subject::stub_status(self.address)?.saturating_sub(asked))
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

/// Whether lines of its log are gathered: then some are not written yet.
fn is_gathered(subject: &Subject) -> bool {
    subject.kind == Kind::Lighttpd || subject.settings.get("log-buffered").is_some_and(|on| on == "true")
}

/// The router between two namespaces.
struct PathBetween {
    running: Option<Running>,
    socket: PathBuf,
}

impl PathBetween {
    /// The class of the clients.
    const CLIENTS: &'static str = "clients";

    /// Makes it, and moves the calling thread to the clients.
    fn up(bed: &Bed, settings: &Settings, folder: &Folder, joined: &[String]) -> Result<PathBetween, Failure> {
        let Some(texts) = &settings.path else { return Err(Failure::failed("there is no path")) };
        if !bed.is_root {
            return Err(Failure::failed(format!("a path between client and server: {}", place::NEEDS_ROOT)));
        }
        let mut net = String::new();
        net.extend(texts.congestion_control.iter().map(|name| format!("congestion-control = {name:?}\n")));
        net += &format!("[[class]]\nname = {:?}\nshared = true\n", Self::CLIENTS);
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
            &bed.own,
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
            return Err(Failure::usage(format!("no path could be made: {}", said.trim())));
        }
        testbed::enter(&socket, Self::CLIENTS)?;
        Ok(PathBetween { running: Some(running), socket })
    }

    /// Words before a program's own that have it run in the namespace of a class.
    fn exec(&self, bed: &Bed, class: &str) -> Vec<String> {
        let (own, socket) = (bed.own.display().to_string(), self.socket.display().to_string());
        [&own, "wan", "exec", "--control", &socket, class, "--"].map(str::to_owned).to_vec()
    }

    /// Whether packets left when they should have.
    fn verdict(&self) -> Result<Verdict, Failure> {
        Ok(testbed::status(&self.socket)?.verdict(LATE_MAX))
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

/// CPU times at a moment.
pub(crate) struct Snapshot {
    at: Instant,
    cpu: Option<CpuTime>,
    /// Of load and instruments.
    instruments: Option<CpuTime>,
    busy_ns: u64,
    stolen_ns: u64,
}

impl Snapshot {
    /// Now: what the groups of the server and of the instruments have used, where there are any, and the machine.
    pub(crate) fn take(server: Option<&Group>, instruments: Option<&Group>) -> Result<Snapshot, Failure> {
        Ok(Snapshot {
            at: Instant::now(),
            cpu: server.and_then(Group::cpu),
            instruments: instruments.and_then(Group::cpu),
            busy_ns: host::busy_ns()?,
            stolen_ns: host::stolen_ns()?,
        })
    }
}

/// What is read of the result of `ammeter load --json`.
#[derive(Deserialize)]
pub(crate) struct Told {
    pub(crate) began_s: f64,
    pub(crate) seconds: f64,
    established: u64,
    ok: u64,
    failures: Vec<(String, u64)>,
    offered_rate: f64,
    rate: f64,
    received_bytes: u64,
    latency: Times,
    connected: Times,
    lateness: Times,
    establisher: Spent,
    handler: Spent,
    pub(crate) verdict: Verdict,
}

#[derive(Deserialize)]
struct Spent {
    cpu_s: f64,
    spun_s: f64,
}

impl Told {
    /// What it says of the clients.
    pub(crate) fn summary(&self, step: Step) -> Summary {
        // What came to nothing before a request could be sent.
        const BEFORE: [&str; 5] = ["abandoned", "refused", "tls", "local", "unsent"];
        let failed = self.failures.iter().map(|(_, count)| count).sum();
        let after: u64 =
            self.failures.iter().filter(|(kind, _)| !BEFORE.contains(&kind.as_str())).map(|(_, count)| count).sum();
        let seconds = self.seconds.max(1e-9);
        let Told { establisher, handler, .. } = self;
        Summary {
            seconds: self.seconds,
            asked_rate: match step {
                Step::Rate(rate) => Some(rate),
                Step::Clients(_) => None,
            },
            offered_rate: self.offered_rate,
            established_rate: self.established as f64 / seconds,
            request_rate: (self.ok + after) as f64 / seconds,
            rate: self.rate,
            ok: self.ok,
            failed,
            failures: self.failures.iter().cloned().collect::<BTreeMap<_, _>>(),
            received_bytes: self.received_bytes,
            latency: self.latency,
            connected: self.connected,
            lateness: self.lateness,
            client_cpu_s: establisher.cpu_s + handler.cpu_s - establisher.spun_s - handler.spun_s,
            ..Summary::default()
        }
    }
}

/// What the monitor saw: the last sample before the load, the last of all, and what was in between.
#[derive(Default)]
pub(crate) struct Seen {
    first: Sample,
    last: Sample,
    processes_max: usize,
    threads_max: usize,
    resident_max: u64,
    depth_max: Option<u32>,
    /// Bytes a second that the namespace sent, tick by tick, while there was load.
    ticks: Vec<f64>,
    /// Connections that were established, census by census, while there was load.
    established: Vec<f64>,
    /// With those whose last bytes are on their way: the server has closed, and the client has not acknowledged all. A server
    /// that closes a connection as soon as it has written the reply would else have none of the time on the path. Until the last
    /// of all, each with the seconds since the one before.
    in_flight: Vec<(f64, f64)>,
}

impl Seen {
    /// Reads a record of which the load lasted from one time to the other.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn read(record: &Path, from_s: f64, to_s: f64) -> Result<Seen, Failure> {
        let mut seen = Seen::default();
        let mut before: Option<Sample> = None;
        let mut counted_s = from_s;
        for sample in ammeter_monitor::replay(record)? {
            let at_s = sample.wall_ms as f64 / 1e3;
            if at_s <= from_s || before.is_none() {
                seen.first = sample.clone();
            } else {
                seen.processes_max = seen.processes_max.max(sample.processes.len());
                seen.threads_max = seen.threads_max.max(sample.threads.len());
                seen.resident_max = seen.resident_max.max(sample.processes.iter().map(|one| one.resident_bytes).sum());
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
                if at_s <= to_s {
                    seen.established.push(f64::from(count(&["established"])));
                }
                seen.in_flight.push((at_s - counted_s, f64::from(count(&["established", "fin_wait_1", "closing"]))));
                counted_s = at_s;
            }
            before = Some(sample);
        }
        seen.last = before.unwrap_or_default();
        Ok(seen)
    }

    /// What the server used.
    pub(crate) fn server(&self) -> ServerUse {
        let Seen { first, last, .. } = self;
        let ran = |sample: &Sample| -> BTreeMap<u32, u64> {
            sample.threads.iter().map(|thread| (thread.tid, thread.run_ns)).collect()
        };
        let (from, to) = (ran(first), ran(last));
        // Of threads that lived through it: a lower bound for a server that starts and ends some.
        let cpu_ns: u64 = to.iter().map(|(tid, ns)| ns.saturating_sub(from.get(tid).copied().unwrap_or(0))).sum();
        let drops = |sample: &Sample| -> Option<u64> {
            sample.listeners.iter().map(|one| one.drops.map(u64::from)).sum::<Option<u64>>()
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
            listen_depth_max: self.depth_max,
            listen_drops: drops(last).zip(drops(first)).map(|(to, from)| to.saturating_sub(from)),
            replies: counter("requests"),
            sent_bytes: counter("sent_bytes"),
            parsing_ms: self.phases_ms(&["parsing"]),
            processing_ms: self.phases_ms(&["processing", "sending"]),
            logging_ms: self.phases_ms(&["logging"]),
            ..ServerUse::default()
        }
    }

    /// What these phases of a request took, the mean of all that the server timed while there was load, in milliseconds.
    fn phases_ms(&self, names: &[&str]) -> Option<f64> {
        // Elapsed nanoseconds of the phases, and how many requests were timed.
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

    /// What its network namespace counted.
    pub(crate) fn network(&self, is_private: bool) -> NetworkUse {
        let Some((from, to)) = self.first.network.as_ref().zip(self.last.network.as_ref()) else {
            return NetworkUse::default();
        };
        let since = |from: u64, to: u64| Some(to.saturating_sub(from));
        NetworkUse {
            is_private,
            passive_opens: since(from.tcp.passive_opens, to.tcp.passive_opens),
            segments_in: since(from.tcp.segments_in, to.tcp.segments_in),
            segments_out: since(from.tcp.segments_out, to.tcp.segments_out),
            segments_again: since(from.tcp.segments_again, to.tcp.segments_again),
            out_bytes: out_bytes(&self.first).zip(out_bytes(&self.last)).map(|(from, to)| to.saturating_sub(from)),
            listen_drops: since(from.tcp.listen_drops, to.tcp.listen_drops),
            established: (!self.established.is_empty())
                .then(|| self.established.iter().sum::<f64>() / self.established.len() as f64),
            time_wait: Some(to.tcp.time_wait_now),
        }
    }

    /// What the machine did.
    pub(crate) fn host(&self, before: &Snapshot, after: &Snapshot, summary: &Summary) -> HostUse {
        let cores = self.last.host.cores.len().max(1) as f64;
        let whole_s = (after.at - before.at).as_secs_f64().max(1e-9) * cores;
        let busy_s = after.busy_ns.saturating_sub(before.busy_ns) as f64 / 1e9;
        let stolen_s = after.stolen_ns.saturating_sub(before.stolen_ns) as f64 / 1e9;
        let used_s = |before: CpuTime, after: CpuTime| after.all_ns.saturating_sub(before.all_ns) as f64 / 1e9;
        let instruments_s = before.instruments.zip(after.instruments).map(|(before, after)| used_s(before, after));
        let ours_s = instruments_s.zip(summary.server.cpu_s).map(|(instruments, server)| instruments + server);
        let disks = |of: fn(&ammeter_monitor::source::Disk) -> u64| {
            let sum = |sample: &Sample| sample.disks.iter().map(of).sum::<u64>();
            Some(sum(&self.last).saturating_sub(sum(&self.first)))
        };
        HostUse {
            busy: (busy_s / whole_s).min(1.0),
            others: ours_s.map(|ours| ((busy_s - ours) / whole_s).max(0.0)),
            stolen: stolen_s / whole_s,
            disk_read_bytes: disks(|disk| disk.read_bytes),
            disk_written_bytes: disks(|disk| disk.write_bytes),
            disk_transfers: disks(|disk| disk.reads + disk.writes),
        }
    }
}

/// Bytes that left by all devices of the namespace; `None` where that is not known.
fn out_bytes(sample: &Sample) -> Option<u64> {
    Some(sample.network.as_ref()?.interfaces.iter().map(|one| one.out_bytes).sum())
}

/// Tries the clients at each step against a server that does nothing, and at half as much again as the highest.
///
/// # Errors
/// When such a server cannot be started; an interrupt.
pub(crate) fn try_clients(
    bed: &Bed,
    settings: &Settings,
    resolved: &Resolved,
    stop: &Stop,
) -> Result<Clients, Failure> {
    let steps = plan::client_steps(&resolved.steps);
    if steps.is_empty() {
        return Ok(Clients {
            steps: Vec::new(),
            skipped: Some("a closed loop has no schedule that could be missed".to_owned()),
        });
    }
    let mut settings = settings.clone();
    settings.subject = Subject {
        name: "null".to_owned(),
        kind: Kind::Null,
        program: None,
        start: Vec::new(),
        config: String::new(),
        settings: BTreeMap::new(),
    };
    // It takes each piece that it receives for a request, and answers it with two bytes.
    settings.load.pipeline = 1;
    settings.workload = Workload::File(amped_units::Bytes(2));
    settings.path = None;
    settings.limits = crate::experiment::Limits::default();
    settings.profile = false;
    let mut clients = Clients::default();
    for step in steps {
        let mut tried = try_step(bed, &settings, step, resolved.seed, stop)?;
        // A neighbour may have the machine for a moment: only a rate that is missed so often is too high.
        for _ in 1..ATTEMPTS {
            if tried.is_kept {
                break;
            }
            tried = try_step(bed, &settings, step, resolved.seed, stop)?;
        }
        clients.steps.push(tried);
    }
    Ok(clients)
}

/// How often clients are tried at a step, at most.
const ATTEMPTS: usize = 3;

fn try_step(bed: &Bed, settings: &Settings, step: Step, seed: u64, stop: &Stop) -> Result<ClientStep, Failure> {
    let site = bed.site(&settings.workload, seed)?;
    let tried = apart(bed, stop, move |bed, stop| {
        let folder = bed.folder()?;
        let order = Order {
            settings: settings.clone(),
            planned: Planned { id: String::new(), block: 0, arm: String::new(), step, seed },
            rules: Rules::default(),
            interval: Duration::ZERO,
            clients: None,
            idle: None,
            site,
            into: folder.path.clone(),
        };
        let server = Server::start(bed, settings, &order, &folder, None, stop)?;
        let mut words = pinned(bed.cores(&settings.cores).clients.as_deref());
        words.push(bed.own.display().to_string());
        let duration = Duration::from_secs_f64(plan::CLIENTS_S);
        words.extend(load_words(settings, &order.site, step, server.address, duration, seed));
        let out = folder.path.join(name::LOAD);
        let load = Running::start("the load", &words, Streams::to(Some(&out), &folder.path.join("load.log"))?)?;
        load.wait(duration + settings.load.timeout + Duration::from_secs(30), stop)?;
        // It says itself why it cannot make such a load at all.
        let said = fs::read_to_string(folder.path.join("load.log")).unwrap_or_default();
        Ok(archive::read::<Told>(&out).map_err(|_| said.trim().to_owned()))
    })?;
    let told = match tried {
        Ok(told) => told,
        Err(why) => return Ok(ClientStep { why: vec![why], ..ClientStep::of(step) }),
    };
    let mut why = told.verdict.evidence.clone();
    let lack = told.failures.iter().map(|(_, count)| count).sum::<u64>();
    if lack * 100 > told.ok {
        why.push(format!("{lack} of {} came to nothing", told.ok + lack));
    }
    let is_kept = told.verdict.worth == Worth::Valid && lack * 100 <= told.ok;
    let (offered_rate, rate, lateness_p99_ms) = (told.offered_rate, told.rate, told.lateness.p99_ms);
    let own_ms = (told.latency.mean_ms - told.connected.mean_ms).max(0.0);
    Ok(ClientStep { step, offered_rate, rate, lateness_p99_ms, own_ms, is_kept, why })
}

/// Looks at the machine while nothing is asked of it; again for a while, if it is not at rest.
///
/// # Errors
/// When `/proc` is not mounted; an interrupt.
pub(crate) fn look_at_rest(block: u32, rules: &Rules, stop: &Stop) -> Result<Block, Failure> {
    /// How often it is looked, at most.
    const LOOKS: u32 = 5;
    let mut found = Block::default();
    for _ in 0..LOOKS {
        let (began_s, begin, from) = (now_s(), Instant::now(), Rest::read()?);
        while begin.elapsed().as_secs_f64() < plan::IDLE_S {
            if stop.is_stopped() {
                return Err(interrupted());
            }
            thread::sleep(Duration::from_millis(10));
        }
        let (looked_s, to) = (begin.elapsed().as_secs_f64(), Rest::read()?);
        let cores = Machine::this()?.cores.max(1) as f64;
        let share = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9 / looked_s / cores;
        let mut busiest: Vec<(String, f64)> = to
            .programs
            .iter()
            .filter_map(|(pid, (name, ticks))| {
                let before = from.programs.get(pid).map_or(0, |(_, ticks)| *ticks);
                let cores =
                    ticks.saturating_sub(before) as f64 / amped_sys::process::ticks_per_second() as f64 / looked_s;
                (cores > 0.0).then(|| (name.clone(), cores))
            })
            .collect();
        busiest.sort_by(|a, b| b.1.total_cmp(&a.1));
        busiest.truncate(5);
        let busy = share(from.busy_ns, to.busy_ns);
        found = Block {
            block,
            began_s,
            looked_s,
            busy,
            stolen: share(from.stolen_ns, to.stolen_ns),
            packets_per_s: to.packets.saturating_sub(from.packets) as f64 / looked_s,
            disk_bytes_per_s: to.disk_bytes.saturating_sub(from.disk_bytes) as f64 / looked_s,
            busiest,
            is_clean: busy <= rules.idle_max,
        };
        if found.is_clean {
            break;
        }
    }
    Ok(found)
}

/// What the machine has done so far.
struct Rest {
    busy_ns: u64,
    stolen_ns: u64,
    packets: u64,
    disk_bytes: u64,
    /// Name and ticks of each process.
    programs: BTreeMap<u32, (String, u64)>,
}

impl Rest {
    fn read() -> Result<Rest, Failure> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        // proc_pid_net(5): received bytes and packets come first behind the colon.
        let packets = |line: &str| line.split_once(':')?.1.split_whitespace().nth(1)?.parse::<u64>().ok();
        // The kernel's iostats.rst: sectors of 512 bytes that were read are field 6, written ones field 10. Partitions and
        // devices upon devices count again what is on the disk below.
        let sectors = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_whole = Path::new("/sys/block").join(fields.get(2)?).join("device").exists();
            let (from, to): (u64, u64) = (fields.get(5)?.parse().ok()?, fields.get(9)?.parse().ok()?);
            is_whole.then_some(from + to)
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let program = |pid: u32| {
            let stat = read(&format!("/proc/{pid}/stat"));
            let (head, rest) = stat.rsplit_once(") ")?;
            let fields: Vec<&str> = rest.split(' ').collect();
            let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
            Some((pid, (head.split_once('(')?.1.to_owned(), ticks)))
        };
        Ok(Rest {
            busy_ns: host::busy_ns()?,
            stolen_ns: host::stolen_ns()?,
            packets: read("/proc/net/dev").lines().filter_map(packets).sum(),
            disk_bytes: read("/proc/diskstats").lines().filter_map(sectors).sum::<u64>() * 512,
            programs: processes.filter_map(|entry| program(entry.file_name().to_str()?.parse().ok()?)).collect(),
        })
    }
}

/// Whether an archive was begun by the same experiment; else why it cannot be gone on with.
pub(crate) fn same(old: &Resolved, new: &Resolved) -> Result<(), String> {
    if !old.measures_as(new) {
        return Err("another experiment was begun there, or this one with other settings, --seed or --quick".to_owned());
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
    Err(format!("{} is another program than when it was begun, and runs of both would be mixed", changed.join(", ")))
}
