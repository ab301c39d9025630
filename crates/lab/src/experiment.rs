//! The experiment file: TOML, parsed into a base configuration, factors with levels, a ladder of load,
//! rules and figures. Everything is checked before anything starts; errors have file, line and column.
//!
//! Each key is one field: of a table here, of `Subject`, or of a type of the archive, with its default and its range
//! (`values.rs`). Only conditions between keys are checked afterwards; `place` finds the position of a key in the tree.
//!
//! Levels are substituted in the TOML tree before it is deserialized: an arm is the file with other values, each
//! of which keeps its position. An invalid level is therefore reported where it is written. serde's `flatten` loses
//! positions and is not used. The next steps: `plan.rs` orders the runs, `run.rs` executes them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ammeter_load::drive::parked::Wanted;
use ammeter_load::schedule::Arrivals;
use ammeter_load::tls::TlsVersion;
use ammeter_load::workload::Statuses;
use ammeter_load::workload::fileset::Scale;
use amped_measure::Failure;
use amped_units::Bytes;
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, Report};
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::archive::{
    Arm, At, Claim, Factor, Figure, Hosts, Needs, Planned, Resolved, Rules, SUBJECT, Step, Summary, Term,
};
use crate::certificate::KeyKind;
use crate::subject::{Kind, Subject, Template};
use crate::values::{
    Checked, CoreList, DAY, DurationText, HeaderField, Ladder, Setting, TargetPath, Time, scalars, some_bytes_per_s,
    some_share, within,
};

/// Command-line options that change an experiment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// Whether to run the short version.
    pub(crate) quick: bool,
    /// Replaces the file's seed.
    pub(crate) seed: Option<u64>,
}

/// A checked experiment.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    /// The archive's description of it, without programs and times.
    pub(crate) resolved: Resolved,
    /// Settings of each of its arms, in the same order.
    pub(crate) settings: Vec<Settings>,
}

impl Experiment {
    /// Returns the settings of a run's arm.
    ///
    /// # Errors
    /// If the plan belongs to another experiment.
    pub(crate) fn settings_of(&self, planned: &Planned) -> Result<&Settings, Failure> {
        let at = self.resolved.arms.iter().position(|arm| arm.id == planned.arm);
        at.and_then(|at| self.settings.get(at)).ok_or_else(|| {
            Failure::failed(format!("the plan has an arm {:?} that is not in the experiment", planned.arm))
        })
    }

    /// Restricts factors to these levels. A factor with none of its levels named keeps all.
    ///
    /// # Errors
    /// If a name is not a level.
    pub(crate) fn only(self, names: &[String]) -> Result<Experiment, Failure> {
        let factors = self.resolved.factors.clone();
        let is_known = |name: &String| factors.iter().any(|factor| factor.levels.contains(name));
        if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
            let levels = factors.iter().map(|factor| format!("{}: {}", factor.name, factor.levels.join(", ")));
            let levels = levels.collect::<Vec<_>>().join("; ");
            return Err(Failure::usage(format!("--only {unknown}: no factor has this level; known levels: {levels}")));
        }
        let has_any = |factor: &str| {
            factors.iter().any(|one| one.name == factor && one.levels.iter().any(|level| names.contains(level)))
        };
        Ok(self.retained(|factor, level| !has_any(factor) || names.iter().any(|name| name == level)))
    }

    /// Keeps the levels for which `is_kept` (factor, level) is true, and drops claims about others.
    pub(crate) fn retained(mut self, is_kept: impl Fn(&str, &str) -> bool) -> Experiment {
        let Resolved { factors, arms, claims, .. } = &mut self.resolved;
        // A claim's omitted factors refer to the baseline, which may change here.
        let baseline = arms.first().map(|arm| arm.levels.clone()).unwrap_or_default();
        let terms = |claim: &mut Claim| {
            for term in [Some(&mut claim.of), claim.against.as_mut()].into_iter().flatten() {
                let named = std::mem::replace(&mut term.levels, baseline.clone());
                term.levels.extend(named);
            }
        };
        claims.iter_mut().for_each(|claim| {
            terms(claim);
            claim.check.iter_mut().chain(&mut claim.evidence).for_each(terms);
        });
        let is_whole = |levels: &BTreeMap<String, String>| levels.iter().all(|(factor, level)| is_kept(factor, level));
        let is_told =
            |claim: &Claim| is_whole(&claim.of.levels) && claim.against.iter().all(|term| is_whole(&term.levels));
        claims.retain(|claim| is_told(claim) && claim.check.iter().all(is_told));
        claims.iter_mut().for_each(|claim| claim.evidence.retain(is_told));
        for factor in factors {
            factor.levels.retain(|level| is_kept(&factor.name, level));
        }
        let (kept, settings) =
            std::mem::take(arms).into_iter().zip(self.settings).filter(|(arm, _)| is_whole(&arm.levels)).unzip();
        (*arms, self.settings) = (kept, settings);
        self
    }
}

/// Settings of an arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) subject: Subject,
    pub(crate) workload: Workload,
    pub(crate) load: Load,
    /// Network path between client and server, or between server and origin; `None` for loopback.
    pub(crate) path: Option<PathTexts>,
    /// Resource limits of the server.
    pub(crate) limits: Limits,
    /// Cores of server and clients, as lists for taskset(1); empty leaves the choice to the kernel.
    pub(crate) cores: Cores,
    /// Sampling interval of the monitor; 0 disables it.
    #[serde(with = "Time::<0, DAY>")]
    pub(crate) interval: Duration,
    /// Whether to profile CPU time during the measured load.
    pub(crate) profile: bool,
}

impl Settings {
    /// Whether the server gets its files over the path, from an origin.
    pub(crate) fn has_origin(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.peer == Peer::Origin)
    }

    /// Whether both servers get the same workload and load, so that they can be interleaved.
    pub(crate) fn has_load_of(&self, other: &Settings) -> bool {
        self.workload == other.workload && self.load == other.load
    }
}

/// The requested files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// One file of this size.
    File(Bytes),
    /// SPECweb96's file set for this many operations per second.
    Specweb96(#[serde(deserialize_with = "within::<1, 1_000_000, _, _>")] u32),
    /// WebStone's file set at this scale.
    Webstone(Checked<Scale>),
    /// The files of an access log.
    Log(PathBuf),
    /// A user's directory; `load.path` is the path to request.
    Site(PathBuf),
}

impl Default for Workload {
    fn default() -> Workload {
        Workload::File(Bytes::kib(1))
    }
}

/// Load parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
pub(crate) struct Load {
    /// Open loop: connections to begin per second.
    pub(crate) rate: Option<Ladder>,
    /// Closed loop: number of clients.
    pub(crate) clients: Option<Ladder>,
    /// Duration of the measured load.
    #[serde(with = "Time::<200, DAY>")]
    pub(crate) duration: Duration,
    /// Duration of the warm-up load.
    #[serde(with = "Time::<0, DAY>")]
    pub(crate) warm_up: Duration,
    /// Arrival process, as `ammeter load --arrivals` takes it.
    pub(crate) arrivals: Checked<Arrivals>,
    /// See [`requests_per_connection`](Load::requests_per_connection).
    pub(crate) requests_per_connection: Option<u64>,
    /// Number of pipelined requests.
    #[serde(deserialize_with = "within::<1, 1000, _, _>")]
    pub(crate) pipeline: u64,
    /// Think time of a client in a closed loop, also of an additional one ([`beside`](Load::beside)).
    #[serde(with = "Time::<0, DAY>")]
    pub(crate) think_time: Duration,
    /// Timeout for connecting.
    #[serde(with = "Time::<1, DAY>")]
    pub(crate) connect_timeout: Duration,
    /// Timeout for a response.
    #[serde(with = "Time::<1, DAY>")]
    pub(crate) timeout: Duration,
    /// Number of thread pairs that generate load.
    #[serde(deserialize_with = "within::<1, 64, _, _>")]
    pub(crate) generators: u16,
    /// Idle connections to hold open, as `ammeter load --parked` takes them.
    pub(crate) parked: Vec<Checked<Wanted>>,
    /// Number of closed-loop clients that request one small file during the load; 0 for none.
    #[serde(deserialize_with = "within::<0, 10_000, _, _>")]
    pub(crate) beside: u32,
    /// Share of the requests for one small file, on the same connections as those for the files of a set; `None` for none.
    #[serde(deserialize_with = "some_share", skip_serializing_if = "Option::is_none")]
    pub(crate) cached_share: Option<f64>,
    /// Path to request instead of the workload's own file.
    pub(crate) path: Option<Checked<TargetPath>>,
    /// Header fields of each request; `@etag@` is replaced by the server's entity tag for the target.
    pub(crate) headers: Vec<Checked<HeaderField>>,
    /// Expected statuses, as `ammeter load --expect` takes them; `None` for all below 400.
    pub(crate) expect: Option<Checked<Statuses>>,
    /// The kind of the servers' key, if the clients use TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<KeyKind>,
    /// The only version of TLS, as `ammeter load --tls-version` takes it; `None` for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_version: Option<Checked<TlsVersion>>,
    /// The share of connections that resume a session; `None` for none.
    #[serde(deserialize_with = "some_share", skip_serializing_if = "Option::is_none")]
    pub(crate) tls_resume: Option<f64>,
    /// Whether the clients speak HTTP/2: by ALPN with TLS, by prior knowledge (h2c) without.
    pub(crate) http2: bool,
    /// Concurrent requests of a connection of HTTP/2, each on a stream.
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub(crate) streams: u64,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            rate: None,
            clients: None,
            duration: Duration::from_secs(10),
            warm_up: Duration::from_millis(500),
            arrivals: Checked::new("poisson"),
            requests_per_connection: None,
            pipeline: 1,
            think_time: Duration::ZERO,
            connect_timeout: Duration::from_millis(500),
            timeout: Duration::from_secs(10),
            generators: 1,
            parked: Vec::new(),
            beside: 0,
            cached_share: None,
            path: None,
            headers: Vec::new(),
            expect: None,
            tls: None,
            tls_version: None,
            tls_resume: None,
            http2: false,
            streams: 1,
        }
    }
}

impl Load {
    /// Requests per connection; 0 is unlimited, and valid only in a closed loop. By default a connection of an open loop
    /// uses each stream once.
    pub(crate) fn requests_per_connection(&self) -> u64 {
        self.requests_per_connection.unwrap_or(if self.clients.is_none() { self.streams } else { 0 })
    }

    /// Requests that a connection sends before their responses: pipelined, or on streams.
    pub(crate) fn at_once(&self) -> u64 {
        if self.http2 { self.streams } else { self.pipeline }
    }

    /// Number of idle connections to hold open.
    pub(crate) fn parked_count(&self) -> u64 {
        let count = |parked: &Checked<Wanted>| parked.parse::<Wanted>().map_or(0, |one| one.count);
        self.parked.iter().map(count).sum::<usize>() as u64
    }
}

/// A network path, in the syntax of `ammeter wan`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
pub(crate) struct PathTexts {
    /// The server's peer on this path.
    #[serde(skip_serializing_if = "Peer::is_clients")]
    pub(crate) peer: Peer,
    /// Name of a predefined network.
    pub(crate) profile: Option<String>,
    /// See `ammeter wan --help`, as for the next three.
    pub(crate) latency: Option<String>,
    pub(crate) bandwidth: Option<String>,
    pub(crate) loss: Option<String>,
    pub(crate) queue: Option<String>,
    /// TCP congestion control algorithm.
    pub(crate) congestion_control: Option<String>,
    /// Maximum lateness of packets at the 99th percentile for a valid run; `None`: [`LATE_MAX`](ammeter_wan::selftest::LATE_MAX).
    pub(crate) late_max: Option<Checked<DurationText>>,
}

/// A server's peer on an emulated network path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// The clients.
    #[default]
    Clients,
    /// An origin server of the same files, at `http://@origin@/bucket/`, which the server gets them from. The clients
    /// are on the server's side, and reach it by loopback.
    Origin,
}

impl Peer {
    fn is_clients(&self) -> bool {
        *self == Peer::Clients
    }
}

/// Resource limits of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
pub(crate) struct Limits {
    /// Memory including page cache, in bytes.
    pub(crate) memory: Option<Bytes>,
    /// Bytes per second read from the disk of the files.
    #[serde(deserialize_with = "some_bytes_per_s", skip_serializing_if = "Option::is_none")]
    pub(crate) disk: Option<Bytes>,
    /// Share of one core.
    #[serde(deserialize_with = "some_share", skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<f64>,
    /// Open file descriptors.
    pub(crate) descriptors: Option<u64>,
}

/// Lists of cores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
pub(crate) struct Cores {
    /// Cores of the server.
    pub(crate) server: Option<Checked<CoreList>>,
    /// Cores of clients and instruments.
    pub(crate) clients: Option<Checked<CoreList>>,
}

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct File {
    #[serde(default)]
    title: String,
    #[serde(default)]
    about: String,
    #[serde(default)]
    seed: u64,
    #[serde(default = "three", deserialize_with = "within::<1, 1000, _, _>")]
    repetitions: u32,
    /// Default: full if there are several subjects and one factor, otherwise one at a time.
    design: Option<Design>,
    again: Option<bool>,
    #[serde(default)]
    interleave: bool,
    #[serde(default)]
    subject: Vec<Subject>,
    #[serde(default, deserialize_with = "scalars")]
    server: BTreeMap<String, String>,
    #[serde(default)]
    workload: Workload,
    load: Load,
    path: Option<PathTexts>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    cores: Cores,
    hosts: Option<Hosts>,
    #[serde(default)]
    monitor: Monitor,
    #[serde(default)]
    validity: Rules,
    #[serde(default)]
    quick: Quick,
    #[serde(default)]
    factor: Vec<Spanned<FactorFile>>,
    #[serde(default)]
    figure: Vec<Figure>,
    #[serde(default)]
    claim: Vec<Spanned<ClaimFile>>,
    #[serde(default)]
    #[expect(dead_code, reason = "they are read by `exhibits.rs`, and are allowed in every file")]
    exhibits: BTreeMap<String, String>,
}

fn three() -> u32 {
    3
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Design {
    /// Each level of each factor combined with the baseline (Jain, The Art of Computer Systems
    /// Performance Analysis, 16.3).
    OneAtATime,
    Full,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
struct Monitor {
    /// 0 disables the monitor.
    #[serde(with = "Time::<0, DAY>")]
    interval: Duration,
    profile: bool,
}

impl Default for Monitor {
    fn default() -> Monitor {
        Monitor { interval: Duration::from_millis(100), profile: false }
    }
}

/// Limits of the short version. A ladder replaces the file's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
struct Quick {
    #[serde(deserialize_with = "within::<1, 1000, _, _>")]
    repetitions: u32,
    #[serde(with = "Time::<200, DAY>")]
    duration: Duration,
    rate: Option<Ladder>,
    clients: Option<Ladder>,
}

impl Default for Quick {
    fn default() -> Quick {
        Quick { repetitions: 2, duration: Duration::from_secs(2), rate: None, clients: None }
    }
}

/// A factor before its levels are substituted; the levels are read from the tree.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct FactorFile {
    name: Option<String>,
    set: Option<Spanned<String>>,
    #[expect(dead_code, reason = "serde checks only that it is a list; the levels are read from the tree")]
    levels: Vec<toml::Value>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct ClaimFile {
    #[serde(default)]
    says: String,
    metric: Spanned<String>,
    #[serde(default)]
    of: LevelsFile,
    at: Option<Spanned<At>>,
    against: Option<LevelsFile>,
    #[serde(default)]
    against_subjects: Vec<Spanned<Setting>>,
    against_at: Option<Spanned<At>>,
    against_metric: Option<Spanned<String>>,
    above: Option<f64>,
    below: Option<f64>,
    paper: Option<f64>,
    #[serde(default)]
    check: Vec<Spanned<ClaimFile>>,
    needs: Option<Needs>,
    #[serde(default)]
    no_longer: String,
    #[serde(default)]
    evidence: Vec<Spanned<ClaimFile>>,
    #[serde(default)]
    self_test: bool,
}

/// The levels of an arm that differ from the baseline's.
type LevelsFile = BTreeMap<Spanned<String>, Spanned<Setting>>;

/// An error and its position.
struct Wrong {
    at: Range<usize>,
    what: String,
    way_out: String,
}

fn wrong(at: Range<usize>, what: impl Into<String>, way_out: impl Into<String>) -> Wrong {
    Wrong { at, what: what.into(), way_out: way_out.into() }
}

impl From<toml::de::Error> for Wrong {
    fn from(error: toml::de::Error) -> Wrong {
        wrong(error.span().unwrap_or(0..0), error.message().to_owned(), "")
    }
}

/// Returns the position of a value, such as `load.rate` or `figure.0.x`, or of the closest table around it.
fn place(tree: &Spanned<DeTable<'_>>, path: &str) -> Range<usize> {
    let mut keys = path.split('.');
    let mut found = keys.next().and_then(|key| tree.get_ref().get(key));
    let mut at = 0..0;
    while let Some(value) = found {
        at = value.span();
        found = keys.next().and_then(|key| match value.get_ref() {
            DeValue::Table(table) => table.get(key),
            DeValue::Array(list) => list.get(key.parse::<usize>().ok()?),
            _ => None,
        });
    }
    at
}

/// Parses an experiment. `name` is the file name: it appears in errors, and determines the experiment's name.
///
/// # Errors
/// The first error, with line, column, the lines concerned and how to fix it.
pub(crate) fn parse(name: &str, text: &str, options: Options) -> Result<Experiment, Failure> {
    read(name, text, options).map_err(|wrong| Failure::Usage(drawn(name, text, wrong)))
}

/// Formats an error: `FILE:LINE:COLUMN: message` for tools, followed by the source lines.
fn drawn(name: &str, text: &str, wrong: Wrong) -> String {
    let Wrong { at, what, way_out } = wrong;
    let before = text.get(..at.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    let span = at.start.min(text.len())..at.end.max(at.start + 1).min(text.len());
    let mut diagnostic = MietteDiagnostic::new("").with_label(LabeledSpan::underline(span));
    if !way_out.is_empty() {
        diagnostic = diagnostic.with_help(way_out);
    }
    let report = Report::new(diagnostic).with_source_code(text.to_owned());
    let mut drawing = String::new();
    // Writing to a string does not fail; if it did, the first line would still have the error.
    let _ = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
        .with_width(100)
        .render_report(&mut drawing, report.as_ref());
    let drawing = drawing.split_once('\n').map_or("", |(_, rest)| rest);
    format!("{name}:{line}:{column}: {what}\n{}", drawing.trim_end())
}

/// Tables of the file in which a level may set a value.
const SETTABLE: &str = "server, workload, load, path, limits, cores or monitor";

/// A level as written in the file: its label, and the values that it substitutes.
#[derive(Clone)]
struct Level<'i> {
    label: String,
    values: Vec<(Vec<String>, Spanned<DeValue<'i>>)>,
}

fn read(name: &str, text: &str, options: Options) -> Result<Experiment, Wrong> {
    let tree = DeTable::parse(text)?;
    let file = File::read(&tree, options)?;
    let (factors, levels) = factors(&tree, &file)?;
    let mut arms: Vec<Arm> = Vec::new();
    let mut settings = Vec::new();
    // Two subjects and one factor: the user wants each server at each level.
    let is_full = factors.len() == 2 && factors.iter().any(|factor| factor.name == SUBJECT);
    let design = file.design.unwrap_or(if is_full { Design::Full } else { Design::OneAtATime });
    for combination in combinations(&levels, design) {
        let mut changed = tree.clone();
        for (level, factor) in combination.iter().zip(&levels) {
            for (path, value) in &factor[*level].values {
                put(changed.get_mut(), path, value);
            }
        }
        let words: Vec<&str> =
            combination.iter().zip(&factors).map(|(at, factor)| factor.levels[*at].as_str()).collect();
        let subject = factors.iter().position(|factor| factor.name == SUBJECT).map(|at| words[at]);
        let (arm, steps) = arm_settings(&changed, subject, options)?;
        arms.push(Arm {
            id: format!("a{}", arms.len()),
            label: String::new(),
            levels: factors.iter().zip(words).map(|(factor, word)| (factor.name.clone(), word.to_owned())).collect(),
            is_again: false,
            subject: arm.subject.name.clone(),
            steps,
            settings: alone(&changed, &arm.subject.name)?,
        });
        settings.push(arm);
    }
    let steps = all_steps(&mut arms);
    let is_interleaved = file.interleave;
    // Repeat the baseline: the noise is part of the result. Interleaved servers need one repetition per load.
    let mut again: Vec<usize> = vec![0];
    if is_interleaved {
        let is_first = |at: &usize| !settings[..*at].iter().any(|other| other.has_load_of(&settings[*at]));
        again = (0..settings.len()).filter(is_first).collect();
    }
    let is_repeated = file.again.unwrap_or(settings.len() > 1 || !file.claim.is_empty());
    for at in again.into_iter().filter(|_| is_repeated) {
        let id = if at == 0 { "aa".to_owned() } else { format!("aa{at}") };
        arms.push(Arm { id, is_again: true, ..arms[at].clone() });
        settings.push(settings[at].clone());
    }
    let load = &settings[0].load;
    let stem = own_name(name);
    let mut resolved =
        Resolved {
            form: crate::archive::FORM,
            title: if file.title.is_empty() { stem.clone() } else { file.title.clone() },
            name: stem,
            about: file.about.trim().to_owned(),
            quick: options.quick,
            seed: options.seed.unwrap_or(file.seed),
            repetitions: file.repetitions,
            duration_s: load.duration.as_secs_f64(),
            warm_up_s: load.warm_up.as_secs_f64(),
            mean_load_s: Some([|load: &Load| load.duration, |load: &Load| load.warm_up].map(|time| {
                settings.iter().map(|one| time(&one.load).as_secs_f64()).sum::<f64>() / settings.len() as f64
            })),
            interval_ms: settings[0].interval.as_secs_f64() * 1e3,
            is_interleaved,
            requests_per_connection: load.requests_per_connection(),
            rules: file.validity.clone(),
            figures: figures(&tree, &file, &factors, &steps)?,
            claims: claims(&file, &factors, &steps, &arms)?,
            hosts: file.hosts.clone(),
            factors,
            arms,
            steps,
            ..Resolved::default()
        };
    resolved.label_arms();
    let hashes: Vec<String> = resolved.claims.iter().map(|claim| resolved.claim_hash(claim)).collect();
    resolved.claims.iter_mut().zip(hashes).for_each(|(claim, hash)| claim.hash = hash);
    Ok(Experiment { resolved, settings })
}

/// Returns the experiment's name: the file name, or the directory name for files of `experiments/`.
fn own_name(file: &str) -> String {
    let mut parts = Path::new(file).iter().rev().map(|part| part.to_string_lossy());
    match (parts.next().as_deref(), parts.next(), parts.next().as_deref()) {
        (Some("experiment.toml"), Some(folder), Some("experiments")) => folder.into_owned(),
        (file, ..) => file.map_or("experiment", |file| file.strip_suffix(".toml").unwrap_or(file)).to_owned(),
    }
}

impl File {
    /// Reads a file, shortened if this is requested. Each subject has a name then.
    fn read(tree: &Spanned<DeTable<'_>>, options: Options) -> Result<File, Wrong> {
        let mut file = File::deserialize(toml::de::Deserializer::from(tree.clone()))?;
        for subject in &mut file.subject {
            if subject.name.is_empty() {
                subject.name = subject.kind.name().to_owned();
            }
        }
        if options.quick {
            let File { quick, load, repetitions, .. } = &mut file;
            *repetitions = quick.repetitions.min(*repetitions);
            load.duration = quick.duration.min(load.duration);
            if quick.rate.is_some() || quick.clients.is_some() {
                (load.rate, load.clients) = (quick.rate.take(), quick.clients.take());
            } else {
                load.rate.iter_mut().chain(&mut load.clients).for_each(|ladder| ladder.thin(QUICK_STEPS));
            }
        }
        Ok(file)
    }
}

/// Maximum number of steps of the short version.
const QUICK_STEPS: usize = 6;

/// Reads the factors of a file. Several subjects are a factor too, the first.
fn factors<'i>(tree: &Spanned<DeTable<'i>>, file: &File) -> Result<(Vec<Factor>, Vec<Vec<Level<'i>>>), Wrong> {
    let (mut factors, mut all) = (Vec::new(), Vec::new());
    let names: Vec<String> = file.subject.iter().map(|subject| subject.name.clone()).collect();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            let what = format!("duplicate subject name {name:?}");
            return Err(wrong(place(tree, &format!("subject.{at}")), what, "rename one of them: name = \"...\""));
        }
    }
    if names.len() > 1 {
        all.push(names.iter().map(|name| Level { label: name.clone(), values: Vec::new() }).collect());
        factors.push(Factor { name: SUBJECT.to_owned(), levels: names });
    }
    let tables = tree.get_ref().get("factor").and_then(|factors| factors.get_ref().as_array());
    let tables = tables.into_iter().flat_map(|array| array.iter()).filter_map(|table| table.get_ref().as_table());
    for (table, known) in tables.zip(&file.factor) {
        let FactorFile { name, set, .. } = known.get_ref();
        let place = set
            .as_ref()
            .map(|set| Ok::<_, Wrong>((dotted(set.get_ref(), set.span())?, set.get_ref().clone())))
            .transpose()?;
        let Some(name) = name.clone().or(place.as_ref().map(|(path, _)| path.last().cloned().unwrap_or_default()))
        else {
            return Err(wrong(
                known.span(),
                "a factor requires a name, or a key to set",
                "write, for example, set = \"server.log\"",
            ));
        };
        if factors.iter().any(|factor: &Factor| factor.name == name) || ["rate", "clients"].contains(&name.as_str()) {
            return Err(wrong(
                known.span(),
                format!("duplicate factor name {name:?}"),
                "rename the factor: name = \"...\"",
            ));
        }
        let values = table.get("levels").and_then(|levels| levels.get_ref().as_array());
        let values = values.into_iter().flat_map(|array| array.iter());
        let levels: Vec<Level<'i>> =
            values.map(|value| level(value, place.as_ref().map(|(path, _)| path))).collect::<Result<_, _>>()?;
        let labels: Vec<String> = levels.iter().map(|level| level.label.clone()).collect();
        if labels.len() < 2 || labels.iter().collect::<BTreeSet<_>>().len() < labels.len() {
            return Err(wrong(
                known.span(),
                format!("the factor {name:?} has levels {labels:?}"),
                "a factor requires at least two different levels; the first is the baseline",
            ));
        }
        factors.push(Factor { name, levels: labels });
        all.push(levels);
    }
    Ok((factors, all))
}

/// Reads one level: a value for the setting of the factor, or a table with a label and its own settings.
fn level<'i>(value: &Spanned<DeValue<'i>>, place: Option<&Vec<String>>) -> Result<Level<'i>, Wrong> {
    let at = value.span();
    match (value.get_ref(), place) {
        (DeValue::Table(table), _) => {
            let label = table.get("label").and_then(|label| label.get_ref().as_str());
            let label = label.ok_or_else(|| {
                wrong(
                    at.clone(),
                    "a level that is a table requires a label",
                    "write { label = \"static\", set = { ... } }",
                )
            })?;
            let mut values = Vec::new();
            for (key, value) in table.iter() {
                match (key.get_ref().as_ref(), value.get_ref().as_table(), place) {
                    ("label", _, _) => {}
                    ("value", _, Some(place)) => values.push((place.clone(), value.clone())),
                    ("set", Some(set), _) => {
                        for (path, value) in set.iter() {
                            values.push((dotted(path.get_ref(), path.span())?, value.clone()));
                        }
                    }
                    _ => {
                        let what = format!("a level has no key {:?}", key.get_ref());
                        let way =
                            "its keys are label, set = { \"server.log\" = true }, and value if its factor sets a key";
                        return Err(wrong(key.span(), what, way));
                    }
                }
            }
            Ok(Level { label: label.to_owned(), values })
        }
        (_, None) => Err(wrong(at, "a value without a key", "name the key that the factor sets: set = \"server.log\"")),
        (inner, Some(place)) => {
            let label = match inner {
                DeValue::String(text) => text.to_string(),
                DeValue::Boolean(true) => "on".to_owned(),
                DeValue::Boolean(false) => "off".to_owned(),
                DeValue::Integer(number) => number.to_string(),
                DeValue::Float(number) => number.as_str().to_owned(),
                DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                    return Err(wrong(at, "a level must be a string, a number, true, false, or a table", ""));
                }
            };
            Ok(Level { label, values: vec![(place.clone(), value.clone())] })
        }
    }
}

fn dotted(text: &str, at: Range<usize>) -> Result<Vec<String>, Wrong> {
    let path: Vec<String> = text.split('.').map(str::to_owned).collect();
    let known = SETTABLE.split([',', ' ']).any(|part| !part.is_empty() && part != "or" && path[0] == part);
    if !known || path.len() != 2 || path[1].is_empty() {
        return Err(wrong(
            at,
            format!("a level cannot set {text:?}"),
            format!("use a key of {SETTABLE}, such as \"server.log\""),
        ));
    }
    Ok(path)
}

fn put<'i>(tree: &mut DeTable<'i>, path: &[String], value: &Spanned<DeValue<'i>>) {
    let at = value.span();
    let [table, key] = path else { return };
    let missing = || Spanned::new(at.clone(), DeValue::Table(DeTable::new()));
    if tree.get(table.as_str()).is_none() {
        tree.insert(Spanned::new(at.clone(), table.clone().into()), missing());
    }
    let is_workload = table == "workload";
    if let Some(DeValue::Table(table)) = tree.get_mut(table.as_str()).map(Spanned::get_mut) {
        match is_workload {
            // A workload is of one kind.
            true => *table = DeTable::new(),
            false => drop(table.remove(key.as_str())),
        }
        table.insert(Spanned::new(at, key.clone().into()), value.clone());
    }
}

/// Returns the level index of each factor, for each arm; the first arm is the baseline.
fn combinations(levels: &[Vec<Level<'_>>], design: Design) -> Vec<Vec<usize>> {
    let baseline = vec![0; levels.len()];
    let mut all = vec![baseline.clone()];
    match design {
        Design::OneAtATime => {
            for (at, factor) in levels.iter().enumerate() {
                for level in 1..factor.len() {
                    let mut arm = baseline.clone();
                    arm[at] = level;
                    all.push(arm);
                }
            }
        }
        Design::Full => {
            for (at, factor) in levels.iter().enumerate() {
                let so_far = all.clone();
                for level in 1..factor.len() {
                    all.extend(so_far.iter().cloned().map(|mut arm| {
                        arm[at] = level;
                        arm
                    }));
                }
            }
        }
    }
    all
}

/// Returns an arm's tree as a file of its own, without keys that do not belong to an arm.
fn alone(tree: &Spanned<DeTable<'_>>, subject: &str) -> Result<String, Wrong> {
    let mut table = toml::Table::deserialize(toml::de::Deserializer::from(tree.clone()))?;
    for key in ["factor", "figure", "claim", "exhibits", "design", "again", "interleave", "quick", "about"] {
        table.remove(key);
    }
    if let Some(toml::Value::Array(subjects)) = table.get_mut("subject") {
        let named = |found: &toml::Value| {
            let name = found.get("name").or(found.get("kind")).and_then(toml::Value::as_str);
            name == Some(subject)
        };
        subjects.retain(named);
    }
    toml::to_string(&table).map_err(|error| wrong(0..0, error.to_string(), ""))
}

/// Returns the load steps of all arms, ascending. An arm with all of them needs none of its own.
fn all_steps(arms: &mut [Arm]) -> Vec<Step> {
    let mut all: Vec<Step> = arms.iter().flat_map(|arm| arm.steps.clone()).collect();
    all.sort_by(|one, other| one.value().total_cmp(&other.value()));
    all.dedup();
    arms.iter_mut().filter(|arm| arm.steps == all).for_each(|arm| arm.steps.clear());
    all
}

/// Returns the load steps of an arm.
fn steps(tree: &Spanned<DeTable<'_>>, file: &File) -> Result<Vec<Step>, Wrong> {
    match (&file.load.rate, &file.load.clients) {
        (Some(Ladder(rates)), None) => Ok(rates.iter().copied().map(Step::Rate).collect()),
        (None, Some(Ladder(clients))) if clients.iter().all(|count| count.fract() == 0.0) => {
            Ok(clients.iter().map(|count| Step::Clients(*count as u32)).collect())
        }
        (None, Some(_)) => Err(wrong(place(tree, "load.clients"), "clients are whole numbers: 1, 2, 10", "")),
        _ => {
            let way = "write rate = \"1000..8000/1000\" (connections per second), or clients = [1, 10, 50] (a closed \
                 loop)";
            Err(wrong(place(tree, "load"), "`rate` and `clients` are mutually exclusive", way))
        }
    }
}

/// Reads the settings and the load steps of an arm from its tree, and checks them against each other.
fn arm_settings(
    tree: &Spanned<DeTable<'_>>,
    subject: Option<&str>,
    options: Options,
) -> Result<(Settings, Vec<Step>), Wrong> {
    let file = File::read(tree, options)?;
    let steps = steps(tree, &file)?;
    check_interleaved(tree, &file)?;
    check_hosts(tree, &file)?;
    check_workload(tree, &file)?;
    check_cached_share(tree, &file)?;
    if file.load.requests_per_connection == Some(0) && file.load.clients.is_none() {
        let at = place(tree, "load.requests-per-connection");
        return Err(wrong(at, "0 (unlimited) requests per connection require a closed loop", "write 1 or more"));
    }
    let File { server, workload, load, path, limits, cores, monitor, interleave, .. } = file;
    let Some(at) = file.subject.iter().position(|found| subject.is_none_or(|name| found.name == name)) else {
        let way = "name a server: [[subject]], and below it kind = \"nginx\"";
        return Err(wrong(0..0, "the experiment has no subject", way));
    };
    let subject = arm_subject(tree, at, &file.subject[at], server)?;
    check_tls(tree, &load, &subject)?;
    check_origin(tree, path.as_ref(), &subject)?;
    check_http2(tree, &load, &subject)?;
    // Interleaved servers have no monitor: each is measured for less than a second at a time.
    let interval = if interleave { Duration::ZERO } else { monitor.interval };
    Ok((Settings { subject, workload, load, path, limits, cores, interval, profile: monitor.profile }, steps))
}

/// Rejects settings that interleaved servers cannot have: they share a machine and have no monitor.
fn check_interleaved(tree: &Spanned<DeTable<'_>>, file: &File) -> Result<(), Wrong> {
    let what = match () {
        () if !file.interleave => return Ok(()),
        () if file.hosts.is_some() => "[hosts]",
        () if file.path.is_some() => "[path]",
        () if file.monitor.profile => "a profile",
        () if file.load.rate.is_some() => "a rate",
        () if file.load.beside > 0 => "additional clients (load.beside)",
        () => return Ok(()),
    };
    let way_out = "omit one of them; servers are interleaved only in closed loops on this machine, without a monitor";
    Err(wrong(place(tree, "interleave"), format!("interleaved servers cannot have {what}"), way_out))
}

/// Rejects TLS for a server that has no place for a certificate, and settings of TLS without TLS.
fn check_tls(tree: &Spanned<DeTable<'_>>, load: &Load, subject: &Subject) -> Result<(), Wrong> {
    let without = [("load.tls-version", load.tls_version.is_some()), ("load.tls-resume", load.tls_resume.is_some())];
    let without = without.into_iter().find(|(_, is_set)| *is_set && load.tls.is_none());
    if let Some((key, _)) = without {
        return Err(wrong(place(tree, key), "the clients do not use TLS", "add tls = \"ecdsa\" to [load]"));
    }
    if load.tls_resume.is_some_and(|share| share > 1.0) {
        return Err(wrong(place(tree, "load.tls-resume"), "the share is above 100 %", "write, for example, \"80%\""));
    }
    if load.tls.is_none() || subject.has_tls() {
        return Ok(());
    }
    let what = format!("{} has no place for a certificate", subject.name);
    let way =
        "add @tls-certificate@, @tls-key@ and @tls-port@ to its configuration or its command line, or omit the server";
    Err(wrong(place(tree, "load.tls"), what, way))
}

/// Rejects a path to an origin for a server that has no place for its address, and a place for it without such a path.
fn check_origin(tree: &Spanned<DeTable<'_>>, path: Option<&PathTexts>, subject: &Subject) -> Result<(), Wrong> {
    match (path.is_some_and(|path| path.peer == Peer::Origin), subject.has_origin()) {
        (true, false) => {
            let what = format!("{} has no place for the address of the origin", subject.name);
            let way_out = "add @origin@ to its configuration or its command line, or omit the server";
            Err(wrong(place(tree, "path.peer"), what, way_out))
        }
        (false, true) => {
            let what = format!("{} gets its files from @origin@, and there is none", subject.name);
            Err(wrong(place(tree, "subject"), what, "add peer = \"origin\" to [path]"))
        }
        (true, true) | (false, false) => Ok(()),
    }
}

/// Rejects HTTP/2 for a server that is known not to speak it, and settings of the other version.
fn check_http2(tree: &Spanned<DeTable<'_>>, load: &Load, subject: &Subject) -> Result<(), Wrong> {
    let at = |key| place(tree, key);
    if !load.http2 {
        let way_out = "add http2 = true to [load]; HTTP/1.1 has pipeline = ...";
        return match load.streams {
            1 => Ok(()),
            _ => Err(wrong(at("load.streams"), "HTTP/1.1 has no streams", way_out)),
        };
    }
    if load.pipeline > 1 {
        return Err(wrong(at("load.pipeline"), "HTTP/2 has streams instead", "write streams = ..."));
    }
    if !load.parked.is_empty() {
        return Err(wrong(at("load.parked"), "parked connections do not support HTTP/2", "omit one of them"));
    }
    if subject.has_http2(load.tls.is_some()) {
        return Ok(());
    }
    let (what, way_out) = match subject.kind {
        Kind::Floor | Kind::Null => ("does not speak HTTP/2", "omit the server"),
        Kind::ApachePrefork => ("does not speak HTTP/2: mod_http2 requires threads", "write kind = \"apache-event\""),
        _ => ("has no port for HTTP/2 without TLS", "add @h2c-port@ to its configuration or command line, or add tls"),
    };
    Err(wrong(at("load.http2"), format!("{} {what}", subject.name), way_out))
}

/// In a header field, the server's entity tag for the target.
pub(crate) const ETAG: &str = "@etag@";

/// Rejects settings that several hosts cannot have, and invalid lists of hosts.
fn check_hosts(tree: &Spanned<DeTable<'_>>, file: &File) -> Result<(), Wrong> {
    let Some(Hosts { clients, .. }) = &file.hosts else { return Ok(()) };
    let names: BTreeSet<&str> = clients.iter().map(|name| &**name).collect();
    let at = |path| place(tree, path);
    if !(1..=100).contains(&clients.len()) {
        let way = "write them as for ssh: clients = [\"c1\", \"user@c2\"]";
        return Err(wrong(at("hosts.clients"), "the number of clients must be 1 to 100", way));
    }
    if names.len() < clients.len() {
        let way = "each generates one slice of the load; for more threads use load.generators";
        return Err(wrong(at("hosts.clients"), "duplicate client", way));
    }
    if file.path.as_ref().is_some_and(|path| path.peer == Peer::Origin) {
        let what = "a path to an origin is possible only without [hosts]";
        return Err(wrong(at("path.peer"), what, "omit [hosts]"));
    }
    if file.path.is_some() && file.load.headers.iter().any(|field| field.contains(ETAG)) {
        let what = format!("{ETAG} is unknown behind a [path] to other hosts");
        return Err(wrong(at("load.headers"), what, "write the entity tag itself, or omit [path]"));
    }
    if file.load.beside > 0 {
        return Err(wrong(at("load.beside"), "additional clients are possible only without [hosts]", ""));
    }
    Ok(())
}

/// Rejects a share of requests for the small file that is no share, or has no file set to be mixed with.
fn check_cached_share(tree: &Spanned<DeTable<'_>>, file: &File) -> Result<(), Wrong> {
    let Some(share) = file.load.cached_share else { return Ok(()) };
    let at = place(tree, "load.cached-share");
    if !(share > 0.0 && share < 1.0) {
        return Err(wrong(at, "the share must be above 0 and below 100 %", "write, for example, \"90%\""));
    }
    match &file.workload {
        _ if file.hosts.is_some() => {
            Err(wrong(at, "requests for the cached file are mixed in only without [hosts]", ""))
        }
        Workload::Specweb96(_) | Workload::Webstone(_) | Workload::Log(_) => Ok(()),
        Workload::File(_) | Workload::Site(_) => {
            Err(wrong(at, "there is no file set to mix it with", "write specweb96 = ... in [workload]"))
        }
    }
}

/// Checks that the workload's files exist. With hosts they are on the server's host, which reports it if they are missing.
fn check_workload(tree: &Spanned<DeTable<'_>>, file: &File) -> Result<(), Wrong> {
    let missing = match &file.workload {
        _ if file.hosts.is_some() => return Ok(()),
        Workload::Log(path) if !path.is_file() => format!("{} is not a file", path.display()),
        Workload::Site(folder) if !folder.is_dir() => format!("{} is not a directory", folder.display()),
        _ => return Ok(()),
    };
    let key = if matches!(file.workload, Workload::Log(_)) { "workload.log" } else { "workload.site" };
    Err(wrong(place(tree, key), missing, ""))
}

/// Completes a subject: reads its configuration, and checks its settings and those of all servers.
fn arm_subject(
    tree: &Spanned<DeTable<'_>>,
    number: usize,
    subject: &Subject,
    server: BTreeMap<String, String>,
) -> Result<Subject, Wrong> {
    let mut subject = subject.clone();
    let own = format!("subject.{number}");
    if !subject.config.is_empty() && !subject.config.contains('\n') {
        let path = &subject.config;
        subject.config = std::fs::read_to_string(path).map_err(|error| {
            wrong(place(tree, &format!("{own}.config")), format!("cannot read {path}: {error}"), "")
        })?;
    }
    if (subject.kind == Kind::Command) == subject.start.is_empty() {
        let what = "`start` is required for kind = \"command\", and allowed for no other kind";
        let way = "write kind = \"command\" and start = [\"prog\", \"--listen\", \"@address@:@port@\", \"@site@\"]";
        return Err(wrong(place(tree, &own), what, way));
    }
    let template = Template::of(subject.kind, &subject.config, &subject.start);
    let tables = [(format!("{own}.settings"), std::mem::take(&mut subject.settings)), ("server".to_owned(), server)];
    for (table, settings) in tables {
        for (key, value) in settings {
            template.check(&key).map_err(|way| {
                wrong(place(tree, &format!("{table}.{key}")), format!("{} has no setting {key:?}", subject.name), way)
            })?;
            subject.settings.insert(key, value);
        }
    }
    Ok(subject)
}

/// Reads the figures of the file, or returns the default: the paper's usual figure (Arlitt and
/// Williamson, figure 2), with latency and CPU time.
fn figures(tree: &Spanned<DeTable<'_>>, file: &File, factors: &[Factor], steps: &[Step]) -> Result<Vec<Figure>, Wrong> {
    let axis = steps[0].axis();
    let usual: [(&str, &[&str]); 3] = [
        ("Connections, requests and responses", &["offered-rate", "request-rate", "rate"]),
        ("Latency", &["p50", "p99"]),
        ("CPU time of the server per response", &["cpu-per-reply"]),
    ];
    let usual = usual.map(|(title, y)| Figure {
        title: title.to_owned(),
        y: y.iter().map(|&name| name.to_owned()).collect(),
        ..Figure::default()
    });
    let mut figures = if file.figure.is_empty() { usual.to_vec() } else { file.figure.clone() };
    for (number, figure) in figures.iter_mut().enumerate() {
        let at = |key: &str| place(tree, &format!("figure.{number}.{key}"));
        if figure.x.is_empty() {
            figure.x = axis.to_owned();
        }
        let known: Vec<&str> = [axis].into_iter().chain(factors.iter().map(|factor| factor.name.as_str())).collect();
        if !known.contains(&&figure.x[..]) {
            let way = format!("the axis must be one of: {}", known.join(", "));
            return Err(wrong(at("x"), format!("unknown axis {:?}", figure.x), way));
        }
        for (place, y) in figure.y.iter().enumerate() {
            metric(y, at(&format!("y.{place}")), file.monitor.profile)?;
        }
        check_step(figure.at, at("at"), steps)?;
    }
    Ok(figures)
}

/// Checks that a metric of this name exists.
fn metric(text: &str, at: Range<usize>, has_profile: bool) -> Result<(), Wrong> {
    match Summary::described(text) {
        Some(_) if has_profile || !Summary::is_of_profile(text) => Ok(()),
        Some(_) => Err(wrong(
            at,
            format!("{text:?} requires a profile, but none is recorded"),
            "write [monitor], profile = true",
        )),
        None => {
            let known: Vec<&str> = Summary::METRICS.iter().map(|(name, ..)| *name).collect();
            let shares: Vec<String> = Summary::SHARES.iter().map(|(whole, ..)| format!("{whole}:NAME")).collect();
            Err(wrong(
                at,
                format!("unknown metric {text:?}"),
                format!(
                    "known: {}; the columns of `ammeter monitor --csv`; and shares of totals: {}",
                    known.join(", "),
                    shares.join(", ")
                ),
            ))
        }
    }
}

/// Checks that a step is in the ladder.
fn check_step(chosen: At, at: Range<usize>, steps: &[Step]) -> Result<(), Wrong> {
    match chosen {
        At::Step(value) if !steps.iter().any(|step| step.value() == value) => {
            let known: Vec<String> = steps.iter().map(|step| step.value().to_string()).collect();
            Err(wrong(at, format!("the ladder has no step {value}"), format!("it has: {}", known.join(", "))))
        }
        _ => Ok(()),
    }
}

/// Reads the step of a claim.
fn at(at: Option<&Spanned<At>>, steps: &[Step]) -> Result<At, Wrong> {
    let Some(at) = at else { return Ok(At::default()) };
    check_step(*at.get_ref(), at.span(), steps).map(|()| *at.get_ref())
}

fn claims(file: &File, factors: &[Factor], steps: &[Step], arms: &[Arm]) -> Result<Vec<Claim>, Wrong> {
    let chosen = |levels: &LevelsFile, whole: &Range<usize>| {
        let mut chosen = BTreeMap::new();
        for (name, label) in levels {
            let Some(factor) = factors.iter().find(|factor| factor.name == *name.get_ref()) else {
                let known: Vec<&str> = factors.iter().map(|factor| factor.name.as_str()).collect();
                let what = format!("unknown factor {:?}", name.get_ref());
                return Err(wrong(name.span(), what, format!("known: {}", known.join(", "))));
            };
            let text = match label.get_ref().0.as_str() {
                "true" => "on",
                "false" => "off",
                text => text,
            };
            if !factor.levels.iter().any(|level| level == text) {
                let what = format!("{:?} has no level {text:?}", factor.name);
                return Err(wrong(label.span(), what, format!("it has: {}", factor.levels.join(", "))));
            }
            chosen.insert(factor.name.clone(), text.to_owned());
        }
        let mut all = arms[0].levels.clone();
        all.extend(chosen.clone());
        if !arms.iter().any(|arm| arm.levels == all) {
            let what = "no arm has this combination of levels";
            return Err(wrong(whole.clone(), what, "name levels of one factor, or write design = \"full\""));
        }
        Ok(chosen)
    };
    // A figure or ratio, without bounds.
    let figure = |claim: &Spanned<ClaimFile>| {
        let (whole, claim) = (claim.span(), claim.get_ref());
        metric(claim.metric.get_ref(), claim.metric.span(), file.monitor.profile)?;
        let of_at = at(claim.at.as_ref(), steps)?;
        let ClaimFile { against, against_at, against_metric, .. } = claim;
        let against = match (against, against_at, against_metric) {
            (None, None, None) => None,
            (levels, step, name) => {
                name.as_ref().map_or(Ok(()), |name| metric(name.get_ref(), name.span(), file.monitor.profile))?;
                Some(Term {
                    metric: name.as_ref().unwrap_or(&claim.metric).get_ref().clone(),
                    // Levels that it omits are those of the figure that it divides.
                    levels: chosen(levels.as_ref().unwrap_or(&claim.of), &whole)?,
                    at: if step.is_some() { at(step.as_ref(), steps)? } else { of_at },
                })
            }
        };
        let of = Term { metric: claim.metric.get_ref().clone(), levels: chosen(&claim.of, &whole)?, at: of_at };
        Ok(Claim { of, against, ..Claim::default() })
    };
    let bounded = |claim: &Spanned<ClaimFile>| {
        let ClaimFile { above, below, .. } = claim.get_ref();
        let is_sound = match (above, below) {
            (None, None) => false,
            (Some(above), Some(below)) => above < below,
            _ => true,
        };
        if !is_sound {
            let way_out = "write above = ..., below = ..., or both, with above smaller than below";
            return Err(wrong(claim.span(), "a claim requires a bound within which it holds", way_out));
        }
        Ok(Claim { above: *above, below: *below, ..figure(claim)? })
    };
    let of_file = |claim: &Spanned<ClaimFile>| {
        let (whole, ClaimFile { says, check, evidence, needs, no_longer, self_test, paper, .. }) =
            (claim.span(), claim.get_ref());
        if says.is_empty() {
            return Err(wrong(whole, "a claim requires a text", "write says = \"...\", the sentence for the report"));
        }
        if no_longer.is_empty() && !evidence.is_empty() {
            return Err(wrong(
                whole,
                "evidence requires a reason",
                "write no-longer = \"...\": why the claim no longer holds",
            ));
        }
        if let Some(inner) = check.iter().find(|inner| !inner.get_ref().check.is_empty()) {
            return Err(wrong(
                inner.span(),
                "a condition of `check` cannot contain `check`",
                "list all conditions in one `check`",
            ));
        }
        Ok(Claim {
            says: says.clone(),
            paper: *paper,
            check: check.iter().map(bounded).collect::<Result<_, Wrong>>()?,
            needs: needs.clone(),
            no_longer: no_longer.clone(),
            evidence: evidence.iter().map(figure).collect::<Result<_, Wrong>>()?,
            is_self_test: *self_test,
            ..bounded(claim)?
        })
    };
    let each: Vec<Spanned<ClaimFile>> = file.claim.iter().flat_map(against_each).collect();
    each.iter().map(of_file).collect()
}

/// Expands a claim against several subjects into one per subject; all other levels are those of the
/// figure that is divided.
fn against_each(claim: &Spanned<ClaimFile>) -> Vec<Spanned<ClaimFile>> {
    let (at, file) = (claim.span(), claim.get_ref());
    if file.against_subjects.is_empty() {
        return vec![claim.clone()];
    }
    let against = |subject: &Spanned<Setting>| {
        let mut levels = file.of.clone();
        let name = Spanned::new(subject.span(), SUBJECT.to_owned());
        levels.retain(|factor, _| *factor.get_ref() != SUBJECT);
        levels.insert(name, subject.clone());
        Spanned::new(at.clone(), ClaimFile { against: Some(levels), against_subjects: Vec::new(), ..file.clone() })
    };
    file.against_subjects.iter().map(against).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    const SHORT: &str = "title = \"Capacity of nginx\"\n\n[[subject]]\nkind = \"nginx\"\n\n[workload]\nfile = \"1KiB\"\n\n[load]\nrate = \"1000..3000/1000\"\n";

    fn parsed(text: &str, quick: bool) -> Experiment {
        parse("a/b.toml", text, Options { quick, seed: Some(7) }).unwrap_or_else(|failure| panic!("{failure}"))
    }

    #[test]
    fn ten_lines_are_a_valid_experiment() {
        assert_eq!(SHORT.lines().count(), 10);
        let Experiment { resolved, settings } = parsed(SHORT, false);
        assert_eq!((resolved.name.as_str(), resolved.seed, resolved.repetitions), ("b", 7, 3));
        assert_eq!(resolved.steps, [Step::Rate(1000.0), Step::Rate(2000.0), Step::Rate(3000.0)]);
        // With a single arm there is nothing to compare, and no repetition.
        let [arm] = &resolved.arms[..] else { panic!("{:?}", resolved.arms) };
        assert_eq!((arm.label.as_str(), arm.subject.as_str(), settings.len()), ("nginx", "nginx", 1));
        assert_eq!(settings[0].workload, Workload::File(Bytes::kib(1)));
        assert_eq!(resolved.figures[0].y, ["offered-rate", "request-rate", "rate"]);
        // An arm's settings can be parsed again, with the same result.
        let again = parsed(&arm.settings, false);
        assert_eq!(again.settings, settings);
    }

    #[test]
    fn expected_duration_includes_warm_up_of_levels() {
        let text = format!(
            "{SHORT}warm-up = \"1s\"\n[[factor]]\nname = \"speed\"\n\
             levels = [{{ label = \"full\", set = {{}} }}, {{ label = \"low\", set = {{ \"load.warm-up\" = \"61s\" }} }}]\n"
        );
        let resolved = parsed(&text, false).resolved;
        let [_, warm_up_s] = resolved.mean_load_s.unwrap();
        // Two arms, and the first of them again.
        assert_eq!(warm_up_s, 21.0);
        let shorter = Resolved { mean_load_s: None, ..resolved.clone() };
        assert_eq!(crate::plan::run_s(&resolved) - crate::plan::run_s(&shorter), 20.0);
    }

    #[test]
    fn factor_levels_override_values() {
        let text = format!(
            "{SHORT}pipeline = 2\n[[factor]]\nset = \"server.log\"\nlevels = [false, true]\n[[factor]]\nname = \"way\"\n\
             levels = [{{ label = \"one\", set = {{ \"load.pipeline\" = 1 }} }}, {{ label = \"four\", set = {{ \"load.pipeline\" = 4, \"limits.cpu\" = \"50%\" }} }}]\n"
        );
        let Experiment { resolved, settings } = parsed(&text, false);
        let labels: Vec<&str> = resolved.arms.iter().map(|arm| arm.label.as_str()).collect();
        assert_eq!(labels, ["log off, way one", "log on, way one", "log off, way four", "log off, way one, again"]);
        let of = |at: usize| {
            (settings[at].subject.settings["log"].as_str(), settings[at].load.pipeline, settings[at].limits.cpu)
        };
        assert_eq!(
            [of(0), of(1), of(2), of(3)],
            [("false", 1, None), ("true", 1, None), ("false", 4, Some(0.5)), ("false", 1, None)]
        );
        let full = parsed(&format!("design = \"full\"\nagain = false\n{text}"), false);
        let labels: Vec<&str> = full.resolved.arms.iter().map(|arm| arm.label.as_str()).collect();
        assert_eq!(labels, ["log off, way one", "log on, way one", "log off, way four", "log on, way four"]);
        // Two servers and one factor: each server at each level, unless the design says otherwise.
        let crossed = format!(
            "{SHORT}[[subject]]\nkind = \"lighttpd\"\n[[factor]]\nset = \"server.log\"\nlevels = [false, true]\n"
        );
        let labels = |text: &str| {
            let arms = parsed(text, false).resolved.arms;
            arms.into_iter().filter(|arm| !arm.is_again).map(|arm| arm.label).collect::<Vec<_>>()
        };
        let each = ["nginx, log off", "lighttpd, log off", "nginx, log on", "lighttpd, log on"];
        assert_eq!(labels(&crossed), each);
        assert_eq!(labels(&format!("design = \"one-at-a-time\"\n{crossed}")), each[..3]);
        // With three factors, a label has the subject and the levels that differ from the baseline.
        let three = format!("{crossed}[[factor]]\nset = \"load.pipeline\"\nlevels = [1, 4]\n");
        assert_eq!(labels(&three), ["nginx", "lighttpd", "nginx, log on", "nginx, pipeline 4"]);
        let subjects = parsed(&format!("{SHORT}[[subject]]\nkind = \"lighttpd\"\n"), false);
        let labels: Vec<&str> = subjects.resolved.arms.iter().map(|arm| arm.label.as_str()).collect();
        assert_eq!(labels, ["nginx", "lighttpd", "nginx, again"]);
    }

    #[test]
    fn level_may_set_loads_of_its_arms() {
        let text = format!(
            "{SHORT}[[factor]]\nname = \"load\"\nlevels = [{{ label = \"ladder\", set = {{}} }}, \
             {{ label = \"top\", set = {{ \"load.rate\" = [3000, 9000] }} }}]\n"
        );
        let resolved = parsed(&text, false).resolved;
        let values = |steps: &[Step]| steps.iter().map(|step| step.value()).collect::<Vec<_>>();
        assert_eq!(values(&resolved.steps), [1000.0, 2000.0, 3000.0, 9000.0]);
        let of: Vec<Vec<f64>> = resolved.arms.iter().map(|arm| values(resolved.steps_of(arm))).collect();
        assert_eq!(of, [vec![1000.0, 2000.0, 3000.0], vec![3000.0, 9000.0], vec![1000.0, 2000.0, 3000.0]]);
        let planned = crate::plan::plan(&resolved).runs;
        assert_eq!(planned.len(), resolved.repetitions as usize * 8);
        let is_own = |run: &Planned| {
            let arm = resolved.arms.iter().find(|arm| arm.id == run.arm).unwrap();
            resolved.steps_of(arm).contains(&run.step)
        };
        assert!(planned.iter().all(is_own), "{planned:?}");
        // All arms have the same kind of load.
        let both = text.replace("load.rate", "load.clients");
        assert!(parse("x.toml", &both, Options::default()).unwrap_err().to_string().contains("mutually exclusive"));
    }

    #[test]
    fn level_replaces_kind_of_workload_and_stops_monitor() {
        let text = format!(
            "{SHORT}[[factor]]\nname = \"as\"\nlevels = [{{ label = \"file\", set = {{ \"workload.file\" = \"1KiB\" }} }}, \
             {{ label = \"set\", set = {{ \"workload.webstone\" = \"1/4\", \"monitor.interval\" = \"0s\" }} }}]\n"
        );
        let settings = parsed(&text, false).settings;
        assert_eq!(settings[0].workload, Workload::File(Bytes::kib(1)));
        assert!(matches!(settings[1].workload, Workload::Webstone(_)), "{:?}", settings[1].workload);
        assert!(settings[1].interval.is_zero() && !settings[0].interval.is_zero());
    }

    #[test]
    fn example_has_every_key_with_default() {
        let text = include_str!("../../../examples/experiment.toml");
        let example =
            parse("examples/experiment.toml", text, Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!((example.resolved.name.as_str(), example.resolved.arms.len()), ("experiment", 5));
        // Every commented-out key is valid.
        let shown: String = text
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|key| is_key(key)).unwrap_or(line).to_owned() + "\n")
            .collect();
        let tree: toml::Table = shown
            .replace("specweb96 = 5", "x = 1")
            .replace("webstone = \"1\"", "y = 1")
            .parse()
            .unwrap_or_else(|error| panic!("{error}\n{shown}"));
        assert!(tree.contains_key("path") && tree["limits"].get("memory").is_some(), "{tree}");
        // The defaults shown are the actual defaults.
        let mut bare: toml::Table = text.parse().unwrap();
        for table in ["validity", "cores"] {
            bare.remove(table);
        }
        let load = bare["load"].as_table_mut().unwrap();
        load.retain(|key, _| key == "rate");
        let bare = parse("examples/experiment.toml", &bare.to_string(), Options::default())
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(bare.resolved.rules, example.resolved.rules);
        assert_eq!(bare.settings[0].load, example.settings[0].load);
    }

    fn is_key(line: &str) -> bool {
        line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains([' ', '.']))
    }

    proptest! {
        #[test]
        fn random_text_does_not_panic(at in any::<prop::sample::Index>(), with in "[\\PC\n]{0,4}", cut in 0..6_usize) {
            let text = include_str!("../../../examples/experiment.toml");
            let mut from = at.index(text.len());
            while !text.is_char_boundary(from) {
                from -= 1;
            }
            let mut to = (from + cut).min(text.len());
            while !text.is_char_boundary(to) {
                to += 1;
            }
            let strange = format!("{}{with}{}", &text[..from], &text[to..]);
            if let Err(failure) = parse("x.toml", &strange, Options { quick: cut % 2 == 0, seed: None }) {
                prop_assert!(failure.to_string().starts_with("x.toml:"), "{}", failure);
            }
        }
    }

    #[test]
    fn hosts_are_named_as_for_program_that_reaches_them() {
        assert_eq!(parsed(SHORT, false).resolved.hosts, None);
        let hosts = |text: &str| parsed(&format!("{SHORT}[hosts]\n{text}"), false).resolved.hosts.unwrap();
        let found = hosts("server = \"me@s\"\nclients = [\"a\", \"b\"]\n");
        assert_eq!((&*found.server, found.address, found.via()), ("me@s", None, "ssh {host}"));
        assert_eq!(found.clients, ["a", "b"].map(Checked::new));
        let found = hosts("server = \"s\"\nclients = [\"s\"]\naddress = \"fd00::1\"\nvia = \"ssh -F /x {host}\"\n");
        assert_eq!((found.address.unwrap().is_ipv6(), found.via()), (true, "ssh -F /x {host}"));
        let check = |text: &str, place: &str, says: &str| {
            let message =
                parse("x.toml", &format!("{SHORT}[hosts]\n{text}"), Options::default()).unwrap_err().to_string();
            assert!(message.starts_with(&format!("x.toml:{place}: ")) && message.contains(says), "{text}\n{message}");
        };
        check("server = \"-oProxyCommand=x\"\nclients = [\"a\"]\n", "12:10", "not a host");
        check("server = \"s\"\nclients = []\n", "13:11", "1 to 100");
        check("server = \"s\"\nclients = [\"a\", \"a\"]\n", "13:11", "duplicate client");
        check("server = \"s\"\n", "11:1", "clients");
        check("server = \"s\"\nclients = [\"a\"]\naddress = \"s\"\n", "14:11", "IP address");
        for via in ["", "ssh", "{host} ssh"] {
            check(&format!("server = \"s\"\nclients = [\"a\"]\nvia = \"{via}\"\n"), "14:7", "docker exec -i {host}");
        }
        check("server = \"s\"\nclients = [\"a\"]\n[path]\npeer = \"origin\"\n", "15:8", "only without [hosts]");
        let path = "[hosts]\nserver = \"s\"\nclients = [\"a\"]\n[path]\nlatency = \"1ms\"\n";
        parse("x.toml", &format!("{SHORT}{path}"), Options::default()).expect("a path to other hosts");
    }

    #[test]
    fn settings_round_trip_as_json() {
        let text = include_str!("../../../examples/experiment.toml").replace("file = \"1KiB\"", "file = \"3MiB\"");
        let text = text.replace("descriptors = 20000", "memory = \"64MiB\"\ncpu = \"50%\"");
        let experiment = parse("x.toml", &text, Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
        for settings in experiment.settings {
            let sent = serde_json::to_string(&settings).unwrap();
            assert_eq!(serde_json::from_str::<Settings>(&sent).unwrap(), settings, "{sent}");
        }
    }

    #[test]
    fn quick_version_is_shorter() {
        let long = SHORT.replace("3000/1000", "20000/1000");
        let Experiment { resolved, .. } = parsed(&long, true);
        let rates: Vec<f64> = resolved.steps.iter().map(|step| step.value()).collect();
        assert_eq!((rates.len(), rates[0], rates[5]), (6, 1000.0, 20000.0));
        assert_eq!((resolved.repetitions, resolved.duration_s), (2, 2.0));
        let own = parsed(&format!("{long}[quick]\nrate = [500, 700]\nrepetitions = 1\nduration = \"1s\"\n"), true);
        assert_eq!(own.resolved.steps, [Step::Rate(500.0), Step::Rate(700.0)]);
        assert_eq!((own.resolved.repetitions, own.resolved.duration_s), (1, 1.0));
    }

    #[test]
    fn invalid_values_are_reported_with_position() {
        let check = |text: &str, place: &str, says: &str| {
            let failure = parse("x.toml", text, Options::default()).expect_err(text);
            let message = failure.to_string();
            assert!(
                failure.exit_status() == 2 && message.starts_with(&format!("x.toml:{place}: ")),
                "{text}\n{message}"
            );
            assert!(message.contains(says), "{text}\n{message}");
        };
        check("titel = 1\n[load]\nrate = 1\n", "1:1", "titel");
        check("[load]\nrate = 1\n", "1:1", "[[subject]]");
        check(&SHORT.replace("nginx\"\n\n[w", "ngin\"\n\n[w"), "4:8", "apache-prefork");
        check(&SHORT.replace("1KiB", "1 apple"), "7:8", "apple");
        check(&SHORT.replace("1000..3000/1000", "3000..1000/1000"), "10:8", "FROM..TO/STEP");
        check(&SHORT.replace("\"1000..3000/1000\"", "[1, -1]"), "10:8", "above 0");
        check(&SHORT.replace("rate =", "clients = 3\nrate ="), "9:1", "mutually exclusive");
        check(&format!("{SHORT}duration = \"5\"\n"), "11:12", "not a duration");
        check(&format!("{SHORT}duration = \"1ms\"\n"), "11:12", "200 ms");
        check(&format!("{SHORT}arrivals = \"monday\"\n"), "11:12", "monday");
        check(&format!("{SHORT}[server]\nlogg = true\n"), "12:8", "log");
        check(&format!("{SHORT}[[factor]]\nset = \"figure.x\"\nlevels = [1, 2]\n"), "12:7", "server.log");
        check(&format!("{SHORT}[[factor]]\nset = \"server.log\"\nlevels = [true]\n"), "11:1", "at least two");
        check(&format!("{SHORT}[[factor]]\nset = \"load.pipeline\"\nlevels = [1, \"x\"]\n"), "13:14", "u64");
        check(&format!("{SHORT}[[factor]]\nset = \"load.pipeline\"\nlevels = [1, 5000]\n"), "13:14", "1000");
        check(&format!("{SHORT}[[factor]]\nname = \"a\"\nlevels = [1, 2]\n"), "13:11", "set =");
        check(&format!("{SHORT}[[figure]]\ntitle = \"a\"\nx = \"moon\"\ny = [\"rate\"]\n"), "13:5", "one of: rate");
        check(&format!("{SHORT}[[figure]]\ntitle = \"a\"\ny = [\"speed\"]\n"), "13:6", "cpu-per-reply");
        let claim = |rest: &str| format!("{SHORT}[[claim]]\nsays = \"a\"\nmetric = \"rate\"\n{rest}\n");
        check(&claim("above = 1\nof = { log = true }"), "15:8", "unknown factor");
        check(&claim("of = {}"), "11:1", "a bound within which it holds");
        check(&claim("above = 2\nbelow = 1"), "11:1", "with above smaller than below");
        check(&claim("above = 1\nat = 1500"), "15:6", "it has: 1000, 2000, 3000");
        check(&claim("above = 1\nagainst-at = \"top\""), "15:14", "or a load of the ladder");
        check(&claim("above = 1\nagainst-metric = \"context:user\""), "15:18", "profile = true");
        let two = "[[factor]]\nset = \"server.log\"\nlevels = [false, true]\n[[factor]]\nset = \"load.pipeline\"\nlevels = [1, 2]\n";
        let both = claim("above = 1\nof = { log = true, pipeline = 2 }") + two;
        check(&both, "11:1", "no arm has this combination of levels");
        check(&format!("{SHORT}[cores]\nserver = \"all\"\n"), "12:10", "not a list of cores");
        check(&format!("{SHORT}tls = \"dsa\"\n"), "11:7", "ecdsa");
        check(&format!("{SHORT}tls-resume = \"50%\"\n"), "11:14", "do not use TLS");
        check(&format!("{SHORT}tls = \"rsa\"\ntls-version = \"1.1\"\n"), "12:15", "1.2 or 1.3");
        check(&format!("{SHORT}tls = \"rsa\"\ntls-resume = \"150%\"\n"), "12:14", "above 100 %");
        check(
            &SHORT.replace("nginx\"\n\n[w", "null\"\n\n[w").replace("rate =", "tls = \"rsa\"\nrate ="),
            "10:7",
            "@tls-port@",
        );
        check(&format!("{SHORT}cached-share = \"90%\"\n"), "11:16", "no file set");
        let of_set = SHORT.replace("file = \"1KiB\"", "webstone = \"1\"");
        check(&format!("{of_set}cached-share = \"100%\"\n"), "11:16", "below 100 %");
        check(&format!("{SHORT}streams = 2\n"), "11:11", "add http2 = true");
        check(&format!("{SHORT}http2 = true\nstreams = 0\n"), "12:11", "1 to 10000");
        check(&format!("{SHORT}http2 = true\npipeline = 2\n"), "12:12", "streams = ...");
        check(&format!("{SHORT}http2 = true\nparked = [\"2:idle\"]\n"), "12:10", "parked connections");
        let without_http2 = |kind: &str| {
            SHORT.replace("nginx\"\n\n[w", &format!("{kind}\n\n[w")).replace("rate =", "http2 = true\nrate =")
        };
        check(&without_http2("null\""), "10:9", "null does not speak HTTP/2");
        check(&without_http2("apache-prefork\""), "10:9", "apache-event");
        check(&without_http2("command\"\nstart = [\"x\", \"@port@\"]"), "11:9", "@h2c-port@");
        check(&format!("repetitions = 0\n{SHORT}"), "1:15", "1 to 1000");
        check(&format!("{SHORT}[limits]\ncpu = \"x\"\n"), "12:7", "percent");
        check(&format!("{SHORT}[path]\nlate-max = \"9\"\n"), "12:12", "not a duration");
        check(&format!("{SHORT}[path]\npeer = \"origins\"\n"), "12:8", "`clients` or `origin`");
        check(&format!("{SHORT}[path]\npeer = \"origin\"\n"), "12:8", "add @origin@");
        let from_origin =
            SHORT.replace("kind = \"nginx\"", "kind = \"nginx\"\nconfig = '''\nproxy_pass http://@origin@;\n'''");
        assert_ne!(from_origin, SHORT);
        check(&from_origin, "3:1", "add peer = \"origin\"");
        check("a = \n", "1:5", "");
    }
}
