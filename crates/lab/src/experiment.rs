//! The experiment file: TOML, parsed into a base configuration, factors with levels, a ladder of load,
//! rules and figures. Everything is checked before anything starts; errors have file, line and column.
//!
//! Levels are substituted in the TOML tree before it is deserialized: an arm is the file with other values, each
//! of which keeps its position. An invalid level is therefore reported where it is written. serde's `flatten` and
//! `untagged` lose positions and are not used. The next steps: `plan.rs` orders the runs, `run.rs` executes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use amped_measure::Failure;
use amped_units::{Bytes, parse_duration};
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, Report};
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::archive::{
    Arm, At, Claim, Factor, Figure, Hosts, Needs, PaperCurve, Planned, Resolved, Rules, SUBJECT, Step, Summary, Term,
};
use crate::subject::{Kind, Subject, Template};

/// Command-line options that change an experiment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish {
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
            Failure::failed(format!("the plan has an arm {:?}, and the experiment has none", planned.arm))
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
            return Err(Failure::usage(format!("--only {unknown}: no factor has this level; there are {levels}")));
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
    /// Network path between client and server; `None` for loopback.
    pub(crate) path: Option<PathTexts>,
    /// Resource limits of the server.
    pub(crate) limits: Limits,
    /// Cores of server and clients, as lists for taskset(1); empty leaves the choice to the kernel.
    pub(crate) cores: Cores,
    /// Whether to profile CPU time during the measured load.
    pub(crate) profile: bool,
}

impl Settings {
    /// Whether both servers get the same workload and load, so that they can be measured in turns.
    pub(crate) fn is_asked_as(&self, other: &Settings) -> bool {
        self.workload == other.workload && self.load == other.load
    }
}

/// The requested files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Workload {
    /// One file of this size.
    File(#[serde(with = "whole")] Bytes),
    /// SPECweb96's file set for this many operations per second.
    Specweb96(u32),
    /// WebStone's file set at this scale.
    Webstone(String),
    /// The files of an access log.
    Log(PathBuf),
    /// A user's directory, and the path to request.
    Site(PathBuf, String),
}

/// Load parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Duration of the measured load.
    pub(crate) duration: Duration,
    /// Duration of the warm-up load.
    pub(crate) warm_up: Duration,
    /// Arrival process, as `ammeter load --arrivals` takes it.
    pub(crate) arrivals: String,
    /// Requests per connection; 0 is unlimited, and valid only in a closed loop.
    pub(crate) requests_per_connection: u64,
    /// Number of pipelined requests.
    pub(crate) pipeline: u64,
    /// Think time of a client in a closed loop.
    pub(crate) think_time: Duration,
    /// Timeout for connecting.
    pub(crate) connect_timeout: Duration,
    /// Timeout for a response.
    pub(crate) timeout: Duration,
    /// Number of thread pairs that generate load.
    pub(crate) generators: u16,
    /// Idle connections to hold open, as `ammeter load --parked` takes them.
    pub(crate) parked: Vec<String>,
    /// Number of closed-loop clients that request one small file beside the load; 0 for none.
    pub(crate) beside: u32,
    /// Path to request instead of the workload's own file.
    pub(crate) path: Option<String>,
    /// Header fields of each request; `@etag@` is replaced by the server's entity tag for the target.
    pub(crate) headers: Vec<String>,
    /// Expected statuses, as `ammeter load --expect` takes them; `None` for all below 400.
    pub(crate) expect: Option<String>,
}

impl Load {
    /// Number of idle connections to hold open.
    pub(crate) fn parked_count(&self) -> u64 {
        let count = |parked: &String| parked.parse::<ammeter_load::drive::parked::Wanted>().map_or(0, |one| one.count);
        self.parked.iter().map(count).sum::<usize>() as u64
    }
}

/// A network path, in the syntax of `ammeter wan`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
pub(crate) struct PathTexts {
    /// Name of a predefined network.
    pub(crate) profile: Option<String>,
    /// See `ammeter wan --help`, as for the next three.
    pub(crate) latency: Option<String>,
    pub(crate) bandwidth: Option<String>,
    pub(crate) loss: Option<String>,
    pub(crate) queue: Option<String>,
    /// TCP congestion control algorithm.
    pub(crate) congestion_control: Option<String>,
}

/// Resource limits of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// Memory including page cache, in bytes.
    #[serde(with = "perhaps")]
    pub(crate) memory: Option<Bytes>,
    /// Bytes per second read from the disk of the files.
    #[serde(with = "perhaps")]
    pub(crate) disk: Option<Bytes>,
    /// Share of one core.
    pub(crate) cpu: Option<f64>,
    /// Open file descriptors.
    pub(crate) descriptors: Option<u64>,
}

/// Lists of cores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cores {
    /// Cores of the server.
    pub(crate) server: Option<String>,
    /// Cores of clients and instruments.
    pub(crate) clients: Option<String>,
}

/// Serializes bytes as a number, for settings sent to another host.
mod whole {
    use super::{Bytes, Deserialize, Deserializer};
    use serde::Serializer;

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(bytes.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        u64::deserialize(from).map(Bytes)
    }
}

/// The same for optional values.
mod perhaps {
    use super::{Bytes, Deserialize, Deserializer};
    use serde::{Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
        bytes.map(|bytes| bytes.0).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Bytes))
    }
}

/// A value written as text: a duration, a size, a share.
#[derive(Clone, Debug)]
struct Text<T>(T);

impl<'de, T: FromText> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<T>, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<T: FromText> Visitor<'_> for Reader<T> {
            type Value = Text<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<T>, E> {
                T::from_text(text).map(Text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

trait FromText: Sized {
    const EXPECTED: &'static str;
    fn from_text(text: &str) -> Result<Self, String>;
}

impl FromText for Duration {
    const EXPECTED: &'static str = "a length of time, such as \"5s\"";
    fn from_text(text: &str) -> Result<Duration, String> {
        parse_duration(text).map_err(|error| format!("{text:?} is {error}"))
    }
}

impl FromText for Bytes {
    const EXPECTED: &'static str = "an amount of bytes, such as \"64KiB\"";
    fn from_text(text: &str) -> Result<Bytes, String> {
        let text = text.strip_suffix("/s").unwrap_or(text);
        Bytes::from_str(text).map_err(|error| format!("{text:?} is {error}"))
    }
}

/// A share, written in percent.
#[derive(Clone, Copy, Debug)]
struct Share(f64);

impl FromText for Share {
    const EXPECTED: &'static str = "a share, such as \"50%\"";
    fn from_text(text: &str) -> Result<Share, String> {
        let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        number
            .filter(|percent| *percent > 0.0 && *percent <= 10_000.0)
            .map(|percent| Share(percent / 100.0))
            .ok_or_else(|| format!("{text:?} is no share; write percent, such as \"50%\""))
    }
}

/// A number, a list of numbers, or `FROM..TO/STEP`.
#[derive(Clone, Debug, PartialEq)]
struct Ladder(Vec<f64>);

impl<'de> Deserialize<'de> for Ladder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ladder, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Ladder;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a list of numbers, or \"FROM..TO/STEP\"")
            }
            fn visit_i64<E>(self, value: i64) -> Result<Ladder, E> {
                Ok(Ladder(vec![value as f64]))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Ladder, E> {
                Ok(Ladder(vec![value]))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ladder, E> {
                let parts = || {
                    let (from, rest) = text.split_once("..")?;
                    let (to, step) = rest.split_once('/')?;
                    let [from, to, step] = [from, to, step].map(|part| part.trim().parse::<f64>().ok());
                    Some((from?, to?, step?))
                };
                let sound = parts().filter(|(from, to, step)| *from > 0.0 && to >= from && *step > 0.0);
                let Some((from, to, step)) = sound.filter(|(from, to, step)| (to - from) / step < 1000.0) else {
                    return Err(E::custom(format!(
                        "{text:?} is no ladder; write \"FROM..TO/STEP\", such as \"1000..8000/1000\", of at most 1000 steps"
                    )));
                };
                let steps = (0..).map(|n| from + f64::from(n) * step);
                Ok(Ladder(steps.take_while(|value| *value <= to * (1.0 + 1e-9)).collect()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ladder, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element::<f64>()? {
                    values.push(value);
                }
                Ok(Ladder(values))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// The step at which an arm is read: `peak`, `first`, `last`, or a value.
#[derive(Clone, Copy, Debug, Default)]
struct AtFile(At);

impl<'de> Deserialize<'de> for AtFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AtFile, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = AtFile;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"peak\", \"first\", \"last\", or a load of the ladder")
            }
            fn visit_i64<E>(self, value: i64) -> Result<AtFile, E> {
                Ok(AtFile(At::Step(value as f64)))
            }
            fn visit_f64<E>(self, value: f64) -> Result<AtFile, E> {
                Ok(AtFile(At::Step(value)))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<AtFile, E> {
                Ok(AtFile(match text {
                    "peak" => At::Peak,
                    "first" => At::First,
                    "last" => At::Last,
                    _ => return Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Value of a server setting: any scalar, substituted for its placeholder.
#[derive(Clone, Debug, PartialEq)]
struct Setting(String);

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Setting, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Setting;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number, true or false")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Setting, E> {
                Ok(Setting(value.to_string()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Setting, E> {
                Ok(Setting(value.to_string()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Setting, E> {
                Ok(Setting(value.to_string()))
            }
            fn visit_str<E>(self, value: &str) -> Result<Setting, E> {
                Ok(Setting(value.to_owned()))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

type SettingsFile = BTreeMap<Spanned<String>, Setting>;

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
    repetitions: Option<Spanned<u32>>,
    /// Default: full if there are several subjects and one factor, otherwise one at a time.
    design: Option<Design>,
    again: Option<bool>,
    interleave: Option<Spanned<bool>>,
    #[serde(default)]
    subject: Vec<Spanned<SubjectFile>>,
    #[serde(default)]
    server: SettingsFile,
    #[serde(default)]
    workload: WorkloadFile,
    load: Spanned<LoadFile>,
    path: Option<PathTexts>,
    #[serde(default)]
    limits: LimitsFile,
    #[serde(default)]
    cores: CoresFile,
    hosts: Option<Spanned<HostsFile>>,
    #[serde(default)]
    monitor: MonitorFile,
    #[serde(default)]
    validity: ValidityFile,
    #[serde(default)]
    quick: QuickFile,
    #[serde(default)]
    factor: Vec<Spanned<FactorFile>>,
    #[serde(default)]
    figure: Vec<FigureFile>,
    #[serde(default)]
    claim: Vec<Spanned<ClaimFile>>,
    #[serde(default)]
    #[expect(dead_code, reason = "they are read by `exhibits.rs`, and may stand in every file")]
    exhibits: BTreeMap<String, String>,
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
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct SubjectFile {
    name: Option<String>,
    kind: Kind,
    program: Option<PathBuf>,
    #[serde(default)]
    optional: bool,
    #[serde(default)]
    start: Vec<String>,
    config: Option<Spanned<String>>,
    #[serde(default)]
    settings: SettingsFile,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
struct WorkloadFile {
    file: Option<Text<Bytes>>,
    set: Option<Set>,
    ops: Option<Spanned<u32>>,
    scale: Option<Spanned<String>>,
    log: Option<Spanned<PathBuf>>,
    site: Option<Spanned<PathBuf>>,
    path: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Set {
    Specweb96,
    Webstone,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct LoadFile {
    rate: Option<Spanned<Ladder>>,
    clients: Option<Spanned<Ladder>>,
    duration: Option<Spanned<Text<Duration>>>,
    warm_up: Option<Text<Duration>>,
    arrivals: Option<Spanned<String>>,
    requests_per_connection: Option<Spanned<u64>>,
    pipeline: Option<Spanned<u64>>,
    think_time: Option<Text<Duration>>,
    connect_timeout: Option<Spanned<Text<Duration>>>,
    timeout: Option<Spanned<Text<Duration>>>,
    generators: Option<Spanned<u16>>,
    #[serde(default)]
    parked: Vec<String>,
    beside: Option<Spanned<u32>>,
    path: Option<Spanned<String>>,
    #[serde(default)]
    headers: Vec<Spanned<String>>,
    expect: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
struct LimitsFile {
    memory: Option<Text<Bytes>>,
    disk: Option<Text<Bytes>>,
    cpu: Option<Text<Share>>,
    descriptors: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
struct CoresFile {
    server: Option<Spanned<String>>,
    clients: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct HostsFile {
    server: Spanned<String>,
    clients: Spanned<Vec<String>>,
    address: Option<Spanned<String>>,
    ssh: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
struct MonitorFile {
    interval: Option<Spanned<Text<Duration>>>,
    #[serde(default)]
    profile: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
struct ValidityFile {
    others_max: Option<Text<Share>>,
    idle_max: Option<Text<Share>>,
    drift_max: Option<Text<Share>>,
    counts_max: Option<Text<Share>>,
    little_max: Option<Text<Share>>,
}

/// Overrides for the short version.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
struct QuickFile {
    repetitions: Option<Spanned<u32>>,
    duration: Option<Spanned<Text<Duration>>>,
    rate: Option<Spanned<Ladder>>,
    clients: Option<Spanned<Ladder>>,
}

/// A factor before its levels are substituted; the levels are read from the tree.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct FactorFile {
    name: Option<String>,
    set: Option<Spanned<String>>,
    #[expect(dead_code, reason = "that it is a list is all that serde is to check; the levels are read from the tree")]
    levels: Vec<toml::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct FigureFile {
    title: String,
    x: Option<Spanned<String>>,
    y: Vec<Spanned<String>>,
    at: Option<Spanned<AtFile>>,
    #[serde(default)]
    log_x: bool,
    #[serde(default)]
    log_y: bool,
    #[serde(default)]
    paper: Vec<PaperFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct PaperFile {
    name: String,
    points: Vec<[f64; 2]>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct ClaimFile {
    #[serde(default)]
    says: String,
    metric: Spanned<String>,
    #[serde(default)]
    of: LevelsFile,
    at: Option<Spanned<AtFile>>,
    against: Option<LevelsFile>,
    #[serde(default)]
    against_subjects: Vec<Spanned<Setting>>,
    against_at: Option<Spanned<AtFile>>,
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

/// Parses an experiment. `name` is the file name: it appears in errors, and determines the experiment's name.
///
/// # Errors
/// The first error, with line, column, the lines concerned and how to fix it.
pub(crate) fn parse(name: &str, text: &str, wish: Wish) -> Result<Experiment, Failure> {
    read(name, text, wish).map_err(|wrong| Failure::Usage(drawn(name, text, wrong)))
}

/// Formats an error: `FILE:LINE:COLUMN: message` for tools, followed by the lines for people.
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
const SETTABLE: &str = "server, workload, load, path, limits or cores";

/// A level as written in the file: its label, and the values that it substitutes.
#[derive(Clone)]
struct Level<'i> {
    label: String,
    values: Vec<(Vec<String>, Spanned<DeValue<'i>>)>,
}

fn read(name: &str, text: &str, wish: Wish) -> Result<Experiment, Wrong> {
    let tree = DeTable::parse(text)?;
    let file: File = deserialize(&tree)?;
    let (factors, levels) = factors(&tree, &file)?;
    let steps = steps(&file, wish.quick)?;
    let count = if wish.quick { file.quick.repetitions.as_ref() } else { None };
    let repetitions = count.or(file.repetitions.as_ref()).map_or(Ok(3), |count| match *count.get_ref() {
        count @ 1..=1000 => Ok(count),
        _ => Err(wrong(count.span(), "repetitions are 1 to 1000", "")),
    })?;
    let repetitions = if wish.quick && count.is_none() { repetitions.min(2) } else { repetitions };

    let mut arms = Vec::new();
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
        let arm_file: File = deserialize(&changed)?;
        let arm = arm_settings(&arm_file, subject, wish)?;
        arms.push(Arm {
            id: format!("a{}", arms.len()),
            label: String::new(),
            levels: factors.iter().zip(words).map(|(factor, word)| (factor.name.clone(), word.to_owned())).collect(),
            is_again: false,
            subject: arm.subject.name.clone(),
            settings: alone(&changed, &arm.subject.name)?,
        });
        settings.push(arm);
    }
    let is_interleaved = file.interleave.as_ref().is_some_and(|interleave| *interleave.get_ref());
    // Repeat the baseline: the noise is part of the result. Interleaved servers need one repetition per load.
    let mut again: Vec<usize> = vec![0];
    if is_interleaved {
        let is_first = |at: &usize| !settings[..*at].iter().any(|other| other.is_asked_as(&settings[*at]));
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
    let rule = |share: &Option<Text<Share>>, usual: f64| share.as_ref().map_or(usual, |Text(Share(share))| *share);
    let interval = match &file.monitor.interval {
        None => Duration::from_millis(100),
        Some(interval) if interval.get_ref().0 >= Duration::from_millis(10) => interval.get_ref().0,
        Some(interval) => return Err(wrong(interval.span(), "shorter than 10ms no monitor looks", "write \"100ms\"")),
    };
    let validity = &file.validity;
    let mut resolved = Resolved {
        form: crate::archive::FORM,
        title: if file.title.is_empty() { stem.clone() } else { file.title.clone() },
        name: stem,
        about: file.about.trim().to_owned(),
        quick: wish.quick,
        seed: wish.seed.unwrap_or(file.seed),
        repetitions,
        duration_s: load.duration.as_secs_f64(),
        warm_up_s: load.warm_up.as_secs_f64(),
        // Interleaved servers have no monitor: each is measured for less than a second at a time.
        interval_ms: if is_interleaved { 0.0 } else { interval.as_secs_f64() * 1e3 },
        is_interleaved,
        requests_per_connection: load.requests_per_connection,
        rules: Rules {
            others_max: rule(&validity.others_max, Rules::USUAL.others_max),
            idle_max: rule(&validity.idle_max, Rules::USUAL.idle_max),
            drift_max: rule(&validity.drift_max, Rules::USUAL.drift_max),
            counts_max: rule(&validity.counts_max, Rules::USUAL.counts_max),
            little_max: rule(&validity.little_max, Rules::USUAL.little_max),
        },
        figures: figures(&file, &factors, &steps)?,
        claims: claims(&file, &factors, &steps, &arms)?,
        hosts: file.hosts.as_ref().map(hosts).transpose()?,
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

fn deserialize(tree: &Spanned<DeTable<'_>>) -> Result<File, Wrong> {
    Ok(File::deserialize(toml::de::Deserializer::from(tree.clone()))?)
}

/// Reads the factors of a file. Several subjects are a factor too, the first.
fn factors<'i>(tree: &Spanned<DeTable<'i>>, file: &File) -> Result<(Vec<Factor>, Vec<Vec<Level<'i>>>), Wrong> {
    let (mut factors, mut all) = (Vec::new(), Vec::new());
    let names: Vec<String> = file.subject.iter().map(|subject| subject_name(subject.get_ref())).collect();
    for (at, subject) in file.subject.iter().enumerate() {
        if names[..at].contains(&names[at]) {
            let what = format!("a second subject is named {:?}", names[at]);
            return Err(wrong(subject.span(), what, "give one of them another name: name = \"...\""));
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
                "a factor has a name, or sets something",
                "write for example set = \"server.log\"",
            ));
        };
        if factors.iter().any(|factor: &Factor| factor.name == name) || ["rate", "clients"].contains(&name.as_str()) {
            return Err(wrong(
                known.span(),
                format!("the name {name:?} is taken"),
                "give the factor another: name = \"...\"",
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
                "a factor has at least two levels, all different; the first is the baseline's",
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
                wrong(at.clone(), "a level that is a table has a label", "write { label = \"static\", set = { ... } }")
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
                        let what = format!("a level knows no {:?}", key.get_ref());
                        let way =
                            "it has label, set = { \"server.log\" = true }, and value where its factor sets something";
                        return Err(wrong(key.span(), what, way));
                    }
                }
            }
            Ok(Level { label: label.to_owned(), values })
        }
        (_, None) => Err(wrong(at, "a value of what?", "say in the factor what it sets: set = \"server.log\"")),
        (inner, Some(place)) => {
            let label = match inner {
                DeValue::String(text) => text.to_string(),
                DeValue::Boolean(true) => "on".to_owned(),
                DeValue::Boolean(false) => "off".to_owned(),
                DeValue::Integer(number) => number.to_string(),
                DeValue::Float(number) => number.as_str().to_owned(),
                DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                    return Err(wrong(at, "a level is a text, a number, true, false, or a table", ""));
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
            format!("{text:?} cannot be set by a level"),
            format!("it is a key of {SETTABLE}, such as \"server.log\""),
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
    if let Some(DeValue::Table(table)) = tree.get_mut(table.as_str()).map(Spanned::get_mut) {
        table.remove(key.as_str());
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

fn subject_name(subject: &SubjectFile) -> String {
    subject.name.clone().unwrap_or_else(|| subject.kind.name().to_owned())
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

/// Reads the ladder. The short version keeps at most six steps, including the first and the last.
fn steps(file: &File, quick: bool) -> Result<Vec<Step>, Wrong> {
    const QUICK_STEPS: usize = 6;
    let load = file.load.get_ref();
    let (rate, clients) = match (&file.quick.rate, &file.quick.clients) {
        (None, None) => (&load.rate, &load.clients),
        _ if !quick => (&load.rate, &load.clients),
        (rate, clients) => (rate, clients),
    };
    let (ladder, is_rate) = match (rate, clients) {
        (Some(ladder), None) => (ladder, true),
        (None, Some(ladder)) => (ladder, false),
        _ => {
            return Err(wrong(
                file.load.span(),
                "how much load is one ladder",
                "write rate = \"1000..8000/1000\" (connections to begin a second), or clients = [1, 10, 50] (a closed loop)",
            ));
        }
    };
    let mut values = ladder.get_ref().0.clone();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let is_sound = |value: &f64| *value > 0.0 && *value <= 1e6 && (is_rate || value.fract() == 0.0);
    if values.is_empty() || !values.iter().all(is_sound) {
        let way = if is_rate { "rates are above 0 and up to 1000000" } else { "clients are counted: 1, 2, 10" };
        return Err(wrong(ladder.span(), "not a ladder that can be climbed", way));
    }
    if quick && file.quick.rate.is_none() && file.quick.clients.is_none() && values.len() > QUICK_STEPS {
        let last = values.len() - 1;
        values = (0..QUICK_STEPS).map(|at| values[(at * last + (QUICK_STEPS - 1) / 2) / (QUICK_STEPS - 1)]).collect();
    }
    Ok(values.into_iter().map(|value| if is_rate { Step::Rate(value) } else { Step::Clients(value as u32) }).collect())
}

fn arm_settings(file: &File, subject: Option<&str>, wish: Wish) -> Result<Settings, Wrong> {
    let found = file.subject.iter().find(|found| subject.is_none_or(|name| subject_name(found.get_ref()) == name));
    let Some(found) = found else {
        let way = "name a server: [[subject]], and below it kind = \"nginx\"";
        return Err(wrong(0..0, "there is no subject", way));
    };
    if let Some(interleave) = file.interleave.as_ref().filter(|interleave| *interleave.get_ref()) {
        check_interleaved(file, interleave.span())?;
    }
    if let (Some(hosts), true) = (&file.hosts, file.path.is_some()) {
        let way = "leave [path] out, or have ammeter wan make one on the hosts";
        return Err(wrong(hosts.span(), "a path is made on one machine, and these are several", way));
    }
    Ok(Settings {
        subject: arm_subject(found, &file.server)?,
        workload: workload(&file.workload, file.load.span(), file.hosts.is_some())?,
        load: load(file, wish)?,
        path: file.path.clone(),
        limits: limits(&file.limits),
        cores: Cores { server: cores(&file.cores.server)?, clients: cores(&file.cores.clients)? },
        profile: file.monitor.profile,
    })
}

/// Rejects settings that interleaved servers cannot have: they share a machine and have no monitor.
fn check_interleaved(file: &File, at: Range<usize>) -> Result<(), Wrong> {
    let what = match () {
        () if file.hosts.is_some() => "[hosts]",
        () if file.path.is_some() => "[path]",
        () if file.monitor.profile => "a profile",
        () if file.load.get_ref().rate.is_some() => "a rate",
        () if file.load.get_ref().beside.is_some() => "clients beside the load",
        () => return Ok(()),
    };
    let way_out = "leave one of them out; servers are interleaved in closed loops on this machine, without a monitor";
    Err(wrong(at, format!("servers that are interleaved cannot have {what}"), way_out))
}

fn arm_subject(found: &Spanned<SubjectFile>, server: &SettingsFile) -> Result<Subject, Wrong> {
    let (at, file) = (found.span(), found.get_ref());
    let config = match &file.config {
        None => String::new(),
        Some(text) if text.get_ref().contains('\n') => text.get_ref().clone(),
        Some(path) => std::fs::read_to_string(path.get_ref())
            .map_err(|error| wrong(path.span(), format!("cannot read {}: {error}", path.get_ref()), ""))?,
    };
    if (file.kind == Kind::Command) == file.start.is_empty() {
        let what = "`start` is required for kind = \"command\", and allowed for no other kind";
        return Err(wrong(
            at,
            what,
            "write kind = \"command\" and start = [\"prog\", \"--listen\", \"@address@:@port@\", \"@site@\"]",
        ));
    }
    let template = Template::of(file.kind, &config, &file.start);
    let mut settings = BTreeMap::new();
    for (key, value) in file.settings.iter().chain(server) {
        template.check(key.get_ref()).map_err(|way| {
            wrong(key.span(), format!("{} has no setting {:?}", subject_name(file), key.get_ref()), way)
        })?;
        settings.insert(key.get_ref().clone(), value.0.clone());
    }
    Ok(Subject {
        name: subject_name(file),
        kind: file.kind,
        is_optional: file.optional,
        program: file.program.clone(),
        start: file.start.clone(),
        config,
        settings,
    })
}

fn workload(file: &WorkloadFile, at: Range<usize>, is_elsewhere: bool) -> Result<Workload, Wrong> {
    let WorkloadFile { file: single, set, ops, scale, log, site, path } = file;
    if let (None, None, None, Some(log)) = (single, set, site, log) {
        let path = log.get_ref();
        let is_there = is_elsewhere || path.is_file();
        return is_there.then(|| Workload::Log(path.clone())).ok_or_else(|| {
            wrong(log.span(), format!("{} is no file", path.display()), "name an access log, such as \"access.log\"")
        });
    }
    match (single, set, site) {
        (None, None, None) => Ok(Workload::File(Bytes::kib(1))),
        (Some(Text(bytes)), None, None) => Ok(Workload::File(*bytes)),
        (None, Some(Set::Specweb96), None) => match ops {
            None => Ok(Workload::Specweb96(5)),
            Some(ops) if (1..=1_000_000).contains(ops.get_ref()) => Ok(Workload::Specweb96(*ops.get_ref())),
            Some(ops) => Err(wrong(ops.span(), "ops are 1 to 1000000 requests a second", "")),
        },
        (None, Some(Set::Webstone), None) => {
            let scale_text = scale.as_ref().map_or("1", |scale| scale.get_ref());
            if let (Some(scale), false) = (scale, ["1/4", "1/2", "1", "2", "4"].contains(&scale_text)) {
                return Err(wrong(scale.span(), "no scale of WebStone", "1/4, 1/2, 1, 2 or 4"));
            }
            Ok(Workload::Webstone(scale_text.to_owned()))
        }
        (None, None, Some(site)) => {
            let folder = site.get_ref();
            // With hosts, the directory is on the server's host, which reports if it is missing.
            if !is_elsewhere && !folder.is_dir() {
                return Err(wrong(site.span(), format!("{} is no folder", folder.display()), ""));
            }
            Ok(Workload::Site(folder.clone(), path.clone().unwrap_or_else(|| "/".to_owned())))
        }
        _ => Err(wrong(
            at,
            "a workload is one thing",
            "write file = \"1KiB\", set = \"specweb96\" or \"webstone\", log = FILE, or site = DIR",
        )),
    }
}

fn load(file: &File, wish: Wish) -> Result<Load, Wrong> {
    const QUICK: Duration = Duration::from_secs(2);
    let load = file.load.get_ref();
    let given = load.duration.as_ref().map_or(Duration::from_secs(10), |duration| duration.get_ref().0);
    let duration = match (wish.quick, &file.quick.duration) {
        (true, Some(quick)) => quick.get_ref().0,
        (true, None) => given.min(QUICK),
        (false, _) => given,
    };
    if !(Duration::from_millis(200)..=Duration::from_secs(24 * 3600)).contains(&duration) {
        let at = load.duration.as_ref().map_or(file.load.span(), Spanned::span);
        return Err(wrong(at, "a run is measured for 200 ms to a day", "write duration = \"10s\""));
    }
    let clients = load.clients.is_some() || wish.quick && file.quick.clients.is_some();
    let per_connection = match &load.requests_per_connection {
        None => u64::from(!clients),
        Some(count) if *count.get_ref() == 0 && !clients => {
            return Err(wrong(count.span(), "at a rate a connection ends", "write 1 or more"));
        }
        Some(count) => *count.get_ref(),
    };
    let pipeline = match &load.pipeline {
        None => 1,
        Some(count) if (1..=1000).contains(count.get_ref()) => *count.get_ref(),
        Some(count) => return Err(wrong(count.span(), "1 to 1000 requests are sent together", "")),
    };
    let generators = match &load.generators {
        None => 1,
        Some(count) if (1..=64).contains(count.get_ref()) => *count.get_ref(),
        Some(count) => return Err(wrong(count.span(), "there are 1 to 64 generators", "")),
    };
    let timeout = |time: &Option<Spanned<Text<Duration>>>, usual: u64| match time {
        None => Ok(Duration::from_millis(usual)),
        Some(time) if time.get_ref().0.is_zero() => Err(wrong(time.span(), "that leaves no time for anything", "")),
        Some(time) => Ok(time.get_ref().0),
    };
    let arrivals = load.arrivals.as_ref().map_or("poisson", |arrivals| arrivals.get_ref());
    if let Err(error) = ammeter_load::schedule::Arrivals::from_str(arrivals) {
        return Err(wrong(load.arrivals.as_ref().map_or(0..0, Spanned::span), error.to_string(), ""));
    }
    let path = match &load.path {
        Some(path) if !path.get_ref().starts_with('/') => {
            return Err(wrong(path.span(), "a path begins with /", "write path = \"/index.html\""));
        }
        path => path.as_ref().map(|path| path.get_ref().clone()),
    };
    if let Some(field) = load.headers.iter().find(|field| !field.get_ref().contains(": ")) {
        return Err(wrong(field.span(), "no header field", "write headers = [\"Range: bytes=0-1023\"]"));
    }
    if let Some(expect) = &load.expect {
        let read = ammeter_load::workload::Statuses::from_str(expect.get_ref());
        read.map_err(|error| wrong(expect.span(), error, "write expect = \"2xx,404\""))?;
    }
    let beside = match &load.beside {
        Some(count) if file.hosts.is_some() || *count.get_ref() > 10_000 => {
            return Err(wrong(count.span(), "there are 0 to 10000 clients beside the load, on this machine alone", ""));
        }
        count => count.as_ref().map_or(0, |count| *count.get_ref()),
    };
    Ok(Load {
        beside,
        path,
        headers: load.headers.iter().map(|field| field.get_ref().clone()).collect(),
        expect: load.expect.as_ref().map(|expect| expect.get_ref().clone()),
        duration,
        warm_up: load.warm_up.as_ref().map_or(Duration::from_millis(500), |Text(time)| *time),
        arrivals: arrivals.to_owned(),
        requests_per_connection: per_connection,
        pipeline,
        think_time: load.think_time.as_ref().map_or(Duration::ZERO, |Text(time)| *time),
        connect_timeout: timeout(&load.connect_timeout, 500)?,
        timeout: timeout(&load.timeout, 10_000)?,
        generators,
        parked: load.parked.clone(),
    })
}

fn limits(file: &LimitsFile) -> Limits {
    Limits {
        memory: file.memory.as_ref().map(|Text(bytes)| *bytes),
        disk: file.disk.as_ref().map(|Text(bytes)| *bytes),
        cpu: file.cpu.as_ref().map(|Text(Share(share))| *share),
        descriptors: file.descriptors,
    }
}

/// Checks a list of cores for taskset(1): `0`, `0,2`, `1-3`.
fn cores(list: &Option<Spanned<String>>) -> Result<Option<String>, Wrong> {
    let Some(list) = list else { return Ok(None) };
    let text = list.get_ref();
    let is_list = !text.is_empty() && text.split([',', '-']).all(|number| number.parse::<u16>().is_ok());
    if !is_list {
        return Err(wrong(list.span(), format!("{text:?} names no cores"), "write \"0\", \"0,2\" or \"1-3\""));
    }
    Ok(Some(text.clone()))
}

/// Reads the hosts of an experiment.
fn hosts(file: &Spanned<HostsFile>) -> Result<Hosts, Wrong> {
    let HostsFile { server, clients, address, ssh } = file.get_ref();
    // ssh would parse a leading hyphen as a flag.
    let is_name = |name: &str| !name.is_empty() && !name.starts_with('-') && !name.contains(char::is_whitespace);
    if !is_name(server.get_ref()) {
        let what = format!("{:?} is no host", server.get_ref());
        return Err(wrong(server.span(), what, "write it as for ssh: \"server\" or \"user@server\""));
    }
    let names = clients.get_ref();
    if names.is_empty() || names.len() > 100 || !names.iter().all(|name| is_name(name)) {
        let way = "write them as for ssh: clients = [\"c1\", \"user@c2\"], 1 to 100 of them";
        return Err(wrong(clients.span(), "these are no hosts to make load on", way));
    }
    if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
        let way = "each makes its slice of the load once; for more threads there is load.generators";
        return Err(wrong(clients.span(), "a client is named twice", way));
    }
    let ip = |text: &Spanned<String>| {
        let way = "write the server's own address, such as \"10.0.0.1\"; default: the one by which ssh reaches it";
        text.get_ref().parse().map_err(|_| wrong(text.span(), format!("{:?} is no address", text.get_ref()), way))
    };
    let words: Vec<String> =
        ssh.as_ref().map_or("ssh", |ssh| ssh.get_ref()).split_whitespace().map(str::to_owned).collect();
    if let (Some(ssh), true) = (ssh, words.is_empty()) {
        return Err(wrong(ssh.span(), "no program", "write ssh = \"ssh -F FILE\", or leave it out"));
    }
    Ok(Hosts {
        server: server.get_ref().clone(),
        clients: names.clone(),
        address: address.as_ref().map(ip).transpose()?,
        ssh: words,
    })
}

/// Reads the figures of the file, or returns the default: the paper's usual figure (Arlitt and
/// Williamson, figure 2), with latency and CPU time.
fn figures(file: &File, factors: &[Factor], steps: &[Step]) -> Result<Vec<Figure>, Wrong> {
    let axis = steps[0].axis();
    let mut figures = Vec::new();
    for figure in &file.figure {
        let x = figure.x.as_ref().map_or(axis, |x| x.get_ref().as_str());
        if x != axis && !factors.iter().any(|factor| factor.name == x) {
            let known: Vec<&str> =
                [axis].into_iter().chain(factors.iter().map(|factor| factor.name.as_str())).collect();
            let at = figure.x.as_ref().map_or(0..0, Spanned::span);
            return Err(wrong(
                at,
                format!("nothing here is called {x:?}"),
                format!("the axis is one of: {}", known.join(", ")),
            ));
        }
        for y in &figure.y {
            metric(y, file.monitor.profile)?;
        }
        figures.push(Figure {
            title: figure.title.clone(),
            x: x.to_owned(),
            y: figure.y.iter().map(|y| y.get_ref().clone()).collect(),
            at: at(figure.at.as_ref(), steps)?,
            log_x: figure.log_x,
            log_y: figure.log_y,
            paper: figure
                .paper
                .iter()
                .map(|PaperFile { name, points }| PaperCurve { name: name.clone(), points: points.clone() })
                .collect(),
        });
    }
    if figures.is_empty() {
        let usual: [(&str, &[&str]); 3] = [
            ("Connections, requests and responses", &["offered-rate", "request-rate", "rate"]),
            ("Latency", &["p50", "p99"]),
            ("CPU time of the server for a response", &["cpu-per-reply"]),
        ];
        figures.extend(usual.map(|(title, y)| Figure {
            title: title.to_owned(),
            x: axis.to_owned(),
            y: y.iter().map(|&name| name.to_owned()).collect(),
            ..Figure::default()
        }));
    }
    Ok(figures)
}

/// Checks that a metric of this name exists.
fn metric(name: &Spanned<String>, has_profile: bool) -> Result<(), Wrong> {
    let text = name.get_ref().as_str();
    match Summary::described(text) {
        Some(_) if has_profile || !Summary::is_of_profile(text) => Ok(()),
        Some(_) => Err(wrong(
            name.span(),
            format!("{text:?} is of a profile, and none is made"),
            "write [monitor], profile = true",
        )),
        None => {
            let known: Vec<&str> = Summary::METRICS.iter().map(|(name, ..)| *name).collect();
            let shares: Vec<String> = Summary::SHARES.iter().map(|(whole, ..)| format!("{whole}:NAME")).collect();
            Err(wrong(
                name.span(),
                format!("nothing is measured that is called {text:?}"),
                format!(
                    "there are: {}; the columns of `ammeter monitor --csv`; and parts of wholes: {}",
                    known.join(", "),
                    shares.join(", ")
                ),
            ))
        }
    }
}

/// Reads a step, and checks that it is in the ladder.
fn at(at: Option<&Spanned<AtFile>>, steps: &[Step]) -> Result<At, Wrong> {
    let Some(at) = at else { return Ok(At::default()) };
    let AtFile(chosen) = *at.get_ref();
    match chosen {
        At::Step(value) if !steps.iter().any(|step| step.value() == value) => {
            let known: Vec<String> = steps.iter().map(|step| step.value().to_string()).collect();
            Err(wrong(at.span(), format!("the ladder has no {value}"), format!("it has: {}", known.join(", "))))
        }
        chosen => Ok(chosen),
    }
}

fn claims(file: &File, factors: &[Factor], steps: &[Step], arms: &[Arm]) -> Result<Vec<Claim>, Wrong> {
    let chosen = |levels: &LevelsFile, whole: &Range<usize>| {
        let mut chosen = BTreeMap::new();
        for (name, label) in levels {
            let Some(factor) = factors.iter().find(|factor| factor.name == *name.get_ref()) else {
                let known: Vec<&str> = factors.iter().map(|factor| factor.name.as_str()).collect();
                let what = format!("no factor is called {:?}", name.get_ref());
                return Err(wrong(name.span(), what, format!("there are: {}", known.join(", "))));
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
            let what = "no arm has these levels together";
            return Err(wrong(whole.clone(), what, "name levels of one factor, or write design = \"full\""));
        }
        Ok(chosen)
    };
    // A figure or ratio, without bounds.
    let figure = |claim: &Spanned<ClaimFile>| {
        let (whole, claim) = (claim.span(), claim.get_ref());
        metric(&claim.metric, file.monitor.profile)?;
        let of_at = at(claim.at.as_ref(), steps)?;
        let ClaimFile { against, against_at, against_metric, .. } = claim;
        let against = match (against, against_at, against_metric) {
            (None, None, None) => None,
            (levels, step, name) => {
                name.as_ref().map_or(Ok(()), |name| metric(name, file.monitor.profile))?;
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
            let way_out = "write above = ..., below = ..., or both, the first of them the smaller one";
            return Err(wrong(claim.span(), "a claim has a bound within which it holds", way_out));
        }
        Ok(Claim { above: *above, below: *below, ..figure(claim)? })
    };
    let of_file = |claim: &Spanned<ClaimFile>| {
        let (whole, ClaimFile { says, check, evidence, needs, no_longer, self_test, paper, .. }) =
            (claim.span(), claim.get_ref());
        if says.is_empty() {
            return Err(wrong(whole, "a claim without words", "write says = \"...\", as it is to stand in the report"));
        }
        if no_longer.is_empty() && !evidence.is_empty() {
            return Err(wrong(
                whole,
                "evidence of nothing",
                "write no-longer = \"...\": why the claim no longer holds",
            ));
        }
        if let Some(inner) = check.iter().find(|inner| !inner.get_ref().check.is_empty()) {
            return Err(wrong(
                inner.span(),
                "a condition of `check` with conditions of its own",
                "write them side by side",
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

    const SHORT: &str = "title = \"What nginx bears\"\n\n[[subject]]\nkind = \"nginx\"\n\n[workload]\nfile = \"1KiB\"\n\n[load]\nrate = \"1000..3000/1000\"\n";

    fn parsed(text: &str, quick: bool) -> Experiment {
        parse("a/b.toml", text, Wish { quick, seed: Some(7) }).unwrap_or_else(|failure| panic!("{failure}"))
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
    fn example_has_every_key_with_default() {
        let text = include_str!("../../../examples/experiment.toml");
        let example =
            parse("examples/experiment.toml", text, Wish::default()).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!((example.resolved.name.as_str(), example.resolved.arms.len()), ("experiment", 5));
        // Every commented-out key is valid.
        let shown: String = text
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|key| is_key(key)).unwrap_or(line).to_owned() + "\n")
            .collect();
        let tree: toml::Table = shown
            .replace("set = \"specweb96\"", "x = 1")
            .replace("set = \"webstone\"", "y = 1")
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
        let bare = parse("examples/experiment.toml", &bare.to_string(), Wish::default())
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
            if let Err(failure) = parse("x.toml", &strange, Wish { quick: cut % 2 == 0, seed: None }) {
                prop_assert!(failure.to_string().starts_with("x.toml:"), "{}", failure);
            }
        }
    }

    #[test]
    fn hosts_are_named_as_for_ssh() {
        assert_eq!(parsed(SHORT, false).resolved.hosts, None);
        let hosts = |text: &str| parsed(&format!("{SHORT}[hosts]\n{text}"), false).resolved.hosts.unwrap();
        let found = hosts("server = \"me@s\"\nclients = [\"a\", \"b\"]\n");
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!((found.server.as_str(), &found.clients, found.address), ("me@s", &words(&["a", "b"]), None));
        assert_eq!(found.ssh, ["ssh"]);
        let found = hosts("server = \"s\"\nclients = [\"s\"]\naddress = \"fd00::1\"\nssh = \"ssh -F /x\"\n");
        assert_eq!((found.address.unwrap().is_ipv6(), found.ssh), (true, words(&["ssh", "-F", "/x"])));
        let check = |text: &str, place: &str, says: &str| {
            let told = parse("x.toml", &format!("{SHORT}[hosts]\n{text}"), Wish::default()).unwrap_err().to_string();
            assert!(told.starts_with(&format!("x.toml:{place}: ")) && told.contains(says), "{text}\n{told}");
        };
        check("server = \"-oProxyCommand=x\"\nclients = [\"a\"]\n", "12:10", "is no host");
        check("server = \"s\"\nclients = []\n", "13:11", "as for ssh");
        check("server = \"s\"\nclients = [\"a\", \"a\"]\n", "13:11", "named twice");
        check("server = \"s\"\n", "11:1", "clients");
        check("server = \"s\"\nclients = [\"a\"]\naddress = \"s\"\n", "14:11", "10.0.0.1");
        check("server = \"s\"\nclients = [\"a\"]\nssh = \"\"\n", "14:7", "no program");
        check("server = \"s\"\nclients = [\"a\"]\n[path]\nlatency = \"1ms\"\n", "11:1", "on one machine");
    }

    #[test]
    fn settings_round_trip_as_json() {
        let text = include_str!("../../../examples/experiment.toml").replace("file = \"1KiB\"", "file = \"3MiB\"");
        let text = text.replace("descriptors = 20000", "memory = \"64MiB\"\ncpu = \"50%\"");
        let experiment = parse("x.toml", &text, Wish::default()).unwrap_or_else(|failure| panic!("{failure}"));
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
            let failure = parse("x.toml", text, Wish::default()).expect_err(text);
            let told = failure.to_string();
            assert!(failure.exit_status() == 2 && told.starts_with(&format!("x.toml:{place}: ")), "{text}\n{told}");
            assert!(told.contains(says), "{text}\n{told}");
        };
        check("titel = 1\n[load]\nrate = 1\n", "1:1", "titel");
        check("[load]\nrate = 1\n", "1:1", "[[subject]]");
        check(&SHORT.replace("nginx\"\n\n[w", "ngin\"\n\n[w"), "4:8", "apache-prefork");
        check(&SHORT.replace("1KiB", "1 apple"), "7:8", "apple");
        check(&SHORT.replace("1000..3000/1000", "3000..1000/1000"), "10:8", "FROM..TO/STEP");
        check(&SHORT.replace("\"1000..3000/1000\"", "[1, -1]"), "10:8", "above 0");
        check(&SHORT.replace("rate =", "clients = 3\nrate ="), "9:1", "one ladder");
        check(&format!("{SHORT}duration = \"5\"\n"), "11:12", "not a duration");
        check(&format!("{SHORT}duration = \"1ms\"\n"), "11:12", "200 ms");
        check(&format!("{SHORT}arrivals = \"monday\"\n"), "11:12", "monday");
        check(&format!("{SHORT}[server]\nlogg = true\n"), "12:1", "log");
        check(&format!("{SHORT}[[factor]]\nset = \"figure.x\"\nlevels = [1, 2]\n"), "12:7", "server.log");
        check(&format!("{SHORT}[[factor]]\nset = \"server.log\"\nlevels = [true]\n"), "11:1", "at least two");
        check(&format!("{SHORT}[[factor]]\nset = \"load.pipeline\"\nlevels = [1, \"x\"]\n"), "13:14", "u64");
        check(&format!("{SHORT}[[factor]]\nset = \"load.pipeline\"\nlevels = [1, 5000]\n"), "13:14", "1000");
        check(&format!("{SHORT}[[factor]]\nname = \"a\"\nlevels = [1, 2]\n"), "13:11", "set =");
        check(&format!("{SHORT}[[figure]]\ntitle = \"a\"\nx = \"moon\"\ny = [\"rate\"]\n"), "13:5", "one of: rate");
        check(&format!("{SHORT}[[figure]]\ntitle = \"a\"\ny = [\"speed\"]\n"), "13:6", "cpu-per-reply");
        let claim = |rest: &str| format!("{SHORT}[[claim]]\nsays = \"a\"\nmetric = \"rate\"\n{rest}\n");
        check(&claim("above = 1\nof = { log = true }"), "15:8", "no factor");
        check(&claim("of = {}"), "11:1", "a bound within which it holds");
        check(&claim("above = 2\nbelow = 1"), "11:1", "the smaller one");
        check(&claim("above = 1\nat = 1500"), "15:6", "it has: 1000, 2000, 3000");
        check(&claim("above = 1\nagainst-at = \"top\""), "15:14", "or a load of the ladder");
        check(&claim("above = 1\nagainst-metric = \"context:user\""), "15:18", "profile = true");
        let two = "[[factor]]\nset = \"server.log\"\nlevels = [false, true]\n[[factor]]\nset = \"load.pipeline\"\nlevels = [1, 2]\n";
        let both = claim("above = 1\nof = { log = true, pipeline = 2 }") + two;
        check(&both, "11:1", "no arm has these levels");
        check(&format!("{SHORT}[cores]\nserver = \"all\"\n"), "12:10", "names no cores");
        check(&format!("repetitions = 0\n{SHORT}"), "1:15", "1 to 1000");
        check(&format!("{SHORT}[limits]\ncpu = \"x\"\n"), "12:7", "percent");
        check("a = \n", "1:5", "");
    }
}
