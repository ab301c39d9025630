//! Several hosts in place of one machine: the server on one, load from others, each reached by the user's own ssh.
//!
//! ```text
//!   ammeter run --- ssh --- agent on the server's host: server, monitor, profile, in a group of their own       channel, agent
//!              \--- ssh --- agent on each client: ammeter load, its slice of the plan
//! ```
//!
//! A run: the server is started until it answers; every client has a generator ready; all clocks are measured (`clock.rs`); the
//! generators are told one instant, each by its own clock; when all have ended the clocks are measured again, the server's side
//! ends, and its files come here. The slices' histograms are added up (`ammeter_load::parts`), and what is made of it is what is made
//! of a run on one machine (`run.rs`).
//!
//! Nothing stays on a host: the agent ends with the connection, and all that it started with it (`agent.rs`). A host that is gone
//! makes its run invalid; before the next it is reached anew, or the experiment ends there.

pub(crate) mod agent;
mod channel;
pub(crate) mod clock;
mod words;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use ammeter_load::outcome::Outcome;
use ammeter_load::parts::Parts;
use amped_measure::Failure;
use serde::Deserialize;
use serde_json::Value;

use self::agent::takes_root;
use self::channel::{Channel, decoded};
use self::words::{Ask, Began, Begin, Ended, LoadOrder, Loaded, Programs, Who};
use crate::archive::{self, Block, Host, HostRun, Hosts, Offset, Program, Rules, Run, SliceRun, Step, name};
use crate::command::load::hlog;
use crate::environment::{Site, interrupted};
use crate::experiment::Settings;
use crate::run::{Order, judge, load_words, now_s, patience, refused};
use crate::say;
use crate::subject::{self, Subject};

/// The hosts of an experiment, all of them reached.
pub(crate) struct Fleet {
    spec: Hosts,
    own: Program,
    address: IpAddr,
    /// The server's first, then the clients' in their order.
    channels: Vec<Channel>,
    /// What each is.
    who: Vec<Who>,
    /// How many clients have a generator ready.
    loading: usize,
}

/// How long a host may take for what takes a moment.
const SOON: Duration = Duration::from_secs(60);

/// How long a server may take to start, with what it serves being made before.
const START: Duration = Duration::from_secs(600);

/// How long before its first instant a load is told of it, at least.
const NOTICE: Duration = Duration::from_millis(300);

impl Fleet {
    /// Reaches all hosts, brings them this program where they have not got it, and looks whether they allow what these settings ask.
    ///
    /// # Errors
    /// The first host that cannot be reached or has not what it takes, with the way out; an interrupt.
    pub(crate) fn reach(spec: &Hosts, own: &Path, settings: &[Settings], stop: &Stop) -> Result<Fleet, Failure> {
        let own = subject::identity(own, "--version");
        // All at once: who is not there takes ten seconds to be so.
        let names = [&spec.server].into_iter().chain(&spec.clients);
        let mut channels =
            names.map(|name| Channel::open(name, &spec.ssh)).collect::<Result<Vec<Channel>, Failure>>()?;
        let who = meet(&mut channels, &own, stop)?;
        let address = spec.address.or(who[0].address).ok_or_else(|| {
            Failure::usage(format!(
                "ssh does not tell by which address it reaches {}; name the one for clients: [hosts] address = \"...\"",
                spec.server
            ))
        })?;
        if !who[0].is_root && settings.iter().any(|settings| takes_root(&settings.limits)) {
            return Err(Failure::usage(format!(
                "limits of memory, disk or CPU take root, and {} is another user's; name root there: [hosts] server = \"root@...\"",
                spec.server
            )));
        }
        Ok(Fleet { spec: spec.clone(), own, address, channels, who, loading: 0 })
    }

    /// Reaches again who was lost.
    fn revive(&mut self, stop: &Stop) -> Result<(), Failure> {
        for at in 0..self.channels.len() {
            if self.channels[at].is_gone() {
                let mut fresh = vec![Channel::open(&self.channels[at].name, &self.spec.ssh)?];
                let who = meet(&mut fresh, &self.own, stop)?;
                self.channels.splice(at..=at, fresh);
                self.who.splice(at..=at, who);
            }
        }
        Ok(())
    }

    /// The machines, for the archive.
    pub(crate) fn host(&self) -> Host {
        let clients = self.spec.clients.iter().zip(&self.who[1..]);
        Host {
            clients: clients.map(|(name, who)| (name.clone(), who.host.clone())).collect(),
            ..self.who[0].host.clone()
        }
    }

    /// The programs of the subjects, as they are on the server's host, and the `ammeter` of each host.
    ///
    /// # Errors
    /// When one is not there.
    pub(crate) fn programs(&mut self, settings: &[Settings]) -> Result<Programs, Failure> {
        let mut subjects: Vec<Subject> = Vec::new();
        for Settings { subject, .. } in settings {
            if subjects.iter().all(|known| known.name != subject.name) {
                subjects.push(subject.clone());
            }
        }
        let mut programs: Programs = self.server(&Ask::Programs(subjects), SOON, &Stop::default())?;
        for (channel, who) in self.channels.iter().zip(&self.who) {
            // A copy lies somewhere else each time, and is the same.
            let own = Program { path: PathBuf::from("ammeter"), ..who.program.clone() };
            programs.insert(format!("ammeter on {}", channel.name), own);
        }
        Ok(programs)
    }

    /// Looks at all hosts while nothing is asked of any of them.
    ///
    /// # Errors
    /// A host that is gone; an interrupt.
    pub(crate) fn look_at_rest(&mut self, rules: &Rules, stop: &Stop) -> Result<Block, Failure> {
        self.revive(stop)?;
        let all = self.channels.len();
        for channel in &mut self.channels {
            channel.ask(&Ask::Rest(rules.clone()))?;
        }
        let blocks: Vec<Block> = self.gather(0..all, SOON, stop)?;
        let names = self.channels.iter().map(|channel| channel.name.clone());
        let hosts = names.clone().zip(blocks.iter().map(|block| block.busy)).collect();
        let busiest = names.zip(blocks).max_by(|a, b| a.1.busy.total_cmp(&b.1.busy));
        let Some((name, mut block)) = busiest else { return Err(Failure::failed("there are no hosts")) };
        for (program, _) in &mut block.busiest {
            *program = format!("{name}: {program}");
        }
        Ok(Block { hosts, ..block })
    }

    /// Makes a run. Whatever goes wrong on a host is its result.
    ///
    /// # Errors
    /// A host that was lost before and cannot be reached again; an interrupt.
    pub(crate) fn work(&mut self, order: &Order, stop: &Stop) -> Result<Run, Failure> {
        self.revive(stop)?;
        let run = Run::begun(order.planned.clone(), now_s());
        let made = self.make(run.clone(), order, stop);
        if made.is_err() {
            self.settle();
        }
        match made {
            Err(_) if stop.is_stopped() => Err(interrupted()),
            Err(failure) => Ok(refused(run, "hosts", &failure.to_string())),
            made => made,
        }
    }

    fn make(&mut self, mut run: Run, order: &Order, stop: &Stop) -> Result<Run, Failure> {
        let Order { settings, planned, into, .. } = order;
        let ready = match self.begin(settings, order.seed, order.interval, stop)? {
            Ok(ready) => ready,
            Err(why) => return Ok(refused(run, "server", &why)),
        };
        if !settings.load.warm_up.is_zero() {
            self.prepare(settings, &ready, planned.step, settings.load.warm_up, planned.seed ^ 1, stop)?;
            let made = self.go(settings, settings.load.warm_up, stop)?;
            let warm_up = Parts::merge(&self.parts(&made)?).map_err(Failure::failed)?;
            archive::write_bytes(&into.join(name::WARM_UP), say::as_json(&warm_up)?.as_bytes())?;
        }
        self.prepare(settings, &ready, planned.step, settings.load.duration, planned.seed, stop)?;
        self.server::<()>(&Ask::Calm, SOON, stop)?;
        self.server::<()>(&Ask::Measure, SOON, stop)?;
        let made = self.go(settings, settings.load.duration, stop)?;
        run.load_ended_s = now_s();
        self.channels[0].take_files(Some(into));
        let watched: Ended = self.server(&Ask::End, patience(settings, settings.load.duration), stop)?;
        self.channels[0].take_files(None);

        let parts = match self.parts(&made) {
            Ok(parts) => parts,
            Err(failure) => return Ok(refused(run, "client", &failure.to_string())),
        };
        let Made { loads, clocks } = made;
        let mut hosts = vec![HostRun {
            host: self.spec.server.clone(),
            role: "server".to_owned(),
            clock: clocks[0],
            busy: watched.spell.shares(self.who[0].host.machine.cores, None).0,
            ..HostRun::default()
        }];
        let count = loads.len();
        for (at, (Loaded { parts: text, spell, .. }, (host, part))) in loads.iter().zip(&parts).enumerate() {
            let text = text.as_deref().unwrap_or_default();
            archive::write_bytes(&into.join(format!("load-{}.json", at + 1)), text.as_bytes())?;
            let (busy, others) = spell.shares(self.who[at + 1].host.machine.cores, Some(0.0));
            let outcome = &part.outcome;
            let load = SliceRun {
                offered_rate: outcome.window.offered_rate,
                rate: outcome.window.completed_rate,
                lateness_p99_ms: outcome.lateness.p99_ms,
                verdict: outcome.verdict.clone(),
            };
            let (host, role) = (host.clone(), format!("load {}/{count}", at + 1));
            hosts.push(HostRun { host, role, clock: clocks[at + 1], busy, others, load: Some(load) });
        }
        archive::write(&into.join(name::HOSTS), &hosts)?;
        let outcome = Parts::merge(&parts).map_err(Failure::failed)?;
        archive::write_bytes(&into.join(name::LOAD), say::as_json(&outcome)?.as_bytes())?;
        let about = format!("{} on {count} hosts", planned.id);
        hlog::write(&into.join(name::HLOG), &about, outcome.began_s, Parts::intervals(&parts))?;
        // A host of its own: its network is to be nobody else's.
        judge(run, order, &outcome, &watched, true, &hosts)
    }

    /// Tries the clients against a server that does nothing; who cannot make such a load says why.
    ///
    /// # Errors
    /// A host that is gone; an interrupt.
    pub(crate) fn trial(
        &mut self,
        settings: &Settings,
        step: Step,
        duration: Duration,
        seed: u64,
        stop: &Stop,
    ) -> Result<Result<Outcome, String>, Failure> {
        self.revive(stop)?;
        let tried = self.try_once(settings, step, duration, seed, stop);
        self.settle();
        match tried {
            Err(_) if stop.is_stopped() => Err(interrupted()),
            Err(failure) if self.channels.iter().any(Channel::is_gone) => Err(failure),
            Err(failure) => Ok(Err(failure.to_string())),
            Ok(told) => Ok(Ok(told)),
        }
    }

    fn try_once(
        &mut self,
        settings: &Settings,
        step: Step,
        duration: Duration,
        seed: u64,
        stop: &Stop,
    ) -> Result<Outcome, Failure> {
        let ready = self.begin(settings, seed, Duration::ZERO, stop)?.map_err(Failure::failed)?;
        self.prepare(settings, &ready, step, duration, seed, stop)?;
        let made = self.go(settings, duration, stop)?;
        Parts::merge(&self.parts(&made)?).map_err(Failure::failed)
    }

    /// What the clients made, each with its name, by the clock of this machine.
    fn parts(&self, made: &Made) -> Result<Vec<(String, Parts)>, Failure> {
        let of = |((Loaded { parts, said, .. }, clock), host): ((&Loaded, &Offset), &String)| {
            let text = parts.as_ref().ok_or_else(|| Failure::failed(format!("{host}: {said}")))?;
            let mut parts = Parts::read(text)
                .map_err(|error| Failure::failed(format!("{host}: its result cannot be read: {error}")))?;
            parts.outcome.began_s -= clock.offset_s;
            Ok((host.clone(), parts))
        };
        made.loads.iter().zip(&made.clocks[1..]).zip(&self.spec.clients).map(of).collect()
    }

    /// Starts the server; what is said of one that cannot be run.
    fn begin(
        &mut self,
        settings: &Settings,
        seed: u64,
        interval: Duration,
        stop: &Stop,
    ) -> Result<Result<Ready, String>, Failure> {
        let begin = Begin { settings: settings.clone(), seed, interval, address: self.address };
        Ok(match self.server(&Ask::Begin(Box::new(begin)), START, stop)? {
            Began::Ready { address, target, manifest } => Ok(Ready { address, target, manifest }),
            Began::Refused(why) => Err(why),
        })
    }

    /// How many clients have a part: in a closed loop no more than it has clients.
    fn slices(&self, step: Step) -> usize {
        let hosts = self.spec.clients.len();
        match step {
            Step::Rate(_) => hosts,
            Step::Clients(clients) => hosts.min(clients as usize),
        }
    }

    /// Has each client start a generator that waits to begin.
    fn prepare(
        &mut self,
        settings: &Settings,
        ready: &Ready,
        step: Step,
        duration: Duration,
        seed: u64,
        stop: &Stop,
    ) -> Result<(), Failure> {
        let site = Site { folder: PathBuf::new(), target: ready.target.clone(), manifest: None };
        let mut words = load_words(settings, &site, step, ready.address, duration, seed);
        let count = self.slices(step);
        words.push("--slice".to_owned());
        for (at, channel) in self.channels[1..=count].iter_mut().enumerate() {
            let mut words = words.clone();
            words.push(format!("{}/{count}", at + 1));
            let order = LoadOrder {
                words,
                cores: settings.cores.clients.clone(),
                manifest: ready.manifest.clone(),
                server: ready.address,
                patience: patience(settings, duration),
            };
            channel.ask(&Ask::Load(Box::new(order)))?;
        }
        self.loading = count;
        self.gather::<()>(1..=count, SOON * 3, stop).map(drop)
    }

    /// Has all generators begin at one instant, and waits for their ends.
    fn go(&mut self, settings: &Settings, duration: Duration, stop: &Stop) -> Result<Made, Failure> {
        let before = self.channels.iter_mut().map(Channel::clock).collect::<Result<Vec<Offset>, Failure>>()?;
        let farthest_s = before.iter().map(|clock| clock.bound_s).fold(0.0, f64::max);
        let at_s = now_s() + NOTICE.as_secs_f64() + farthest_s * 4.0;
        let count = self.loading;
        for (channel, clock) in self.channels[1..=count].iter_mut().zip(&before[1..]) {
            channel.ask(&Ask::Go(at_s + clock.offset_s))?;
        }
        let loads = self.gather(1..=count, patience(settings, duration) + SOON, stop)?;
        let after = self.channels.iter_mut().map(Channel::clock).collect::<Result<Vec<Offset>, Failure>>()?;
        let clocks = before.into_iter().zip(after).map(|(before, after)| before.and(after)).collect();
        Ok(Made { loads, clocks })
    }

    /// Asks the server's host, and waits for the answer.
    fn server<T: for<'de> Deserialize<'de>>(
        &mut self,
        ask: &Ask,
        patience: Duration,
        stop: &Stop,
    ) -> Result<T, Failure> {
        self.channels[0].ask(ask)?;
        let mut answers = self.gather(0..1, patience, stop)?;
        answers.pop().ok_or_else(|| Failure::failed("there is no answer"))
    }

    /// Waits for an answer of each of these hosts. One of the others that is gone ends that too.
    fn gather<T: for<'de> Deserialize<'de>>(
        &mut self,
        of: impl std::ops::RangeBounds<usize>,
        patience: Duration,
        stop: &Stop,
    ) -> Result<Vec<T>, Failure> {
        gather(&mut self.channels, of, patience, stop)
    }

    /// Has every host give up and remove what there is of a run.
    fn settle(&mut self) {
        self.channels.iter_mut().for_each(Channel::settle);
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // All are told before any is waited for.
        self.channels.iter().for_each(Channel::end);
    }
}

/// A server that answers.
struct Ready {
    address: std::net::SocketAddr,
    target: String,
    manifest: Option<String>,
}

/// What the clients made, and how far clocks were ahead: the server's first.
struct Made {
    loads: Vec<Loaded>,
    clocks: Vec<Offset>,
}

/// Has each say who it is, once it runs this program.
fn meet(channels: &mut [Channel], own: &Program, stop: &Stop) -> Result<Vec<Who>, Failure> {
    for channel in &mut *channels {
        channel.greet(own, stop)?;
        channel.ask(&Ask::Who)?;
    }
    let all = channels.len();
    gather(channels, 0..all, SOON, stop)
}

fn gather<T: for<'de> Deserialize<'de>>(
    channels: &mut [Channel],
    of: impl std::ops::RangeBounds<usize>,
    patience: Duration,
    stop: &Stop,
) -> Result<Vec<T>, Failure> {
    let begin = Instant::now();
    let mut answers: Vec<Option<Value>> = channels.iter().map(|_| None).collect();
    loop {
        for (answer, channel) in answers.iter_mut().zip(&mut *channels) {
            if let Some(value) = channel.poll()? {
                *answer = Some(value);
            }
        }
        let mut late = channels.iter().zip(&answers).enumerate();
        let late = late.find(|(at, (_, answer))| of.contains(at) && answer.is_none());
        let Some((_, (channel, _))) = late else { break };
        if stop.is_stopped() {
            return Err(interrupted());
        }
        if begin.elapsed() > patience {
            return Err(Failure::failed(format!("{} did not answer within {patience:?}", channel.name)));
        }
        thread::sleep(Duration::from_millis(1));
    }
    let named = channels.iter().zip(answers).enumerate().filter(|(at, _)| of.contains(at));
    named.filter_map(|(_, (channel, answer))| Some(decoded(&channel.name, answer?))).collect()
}
