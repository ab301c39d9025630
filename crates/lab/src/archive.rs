//! The archive of an experiment: one directory that holds everything needed to draw its figures again years later.
//!
//! ```text
//! DIR/experiment.toml    the experiment file, unchanged
//! DIR/resolved.json      arms, steps, rules, figures, programs with their hashes                      Resolved
//! DIR/host.json          the machine and its kernel's settings                                        Host
//! DIR/plan.json          all runs, in execution order                                                 Plan
//! DIR/clients.json       capacity of the clients, against a null server                               Clients
//! DIR/blocks/N.json      the idle machine, before block N                                             Block
//! DIR/runs/ID/run.json   a run: its plan, figures, checks and status                                  Run
//! DIR/runs/ID-2/...      a retry of an attempt that was invalid through no fault of the server; the last is used
//! DIR/runs/ID/hosts.json with several hosts: clock offset and role of each                            Vec<HostRun>
//! DIR/runs/ID/...        load.json load.hlog monitor.zst profile.json server.conf server.log, and the programs' output
//! ```
//!
//! A run's directory is written under a temporary name and renamed when it is complete, so an interrupted
//! experiment loses only the current run. Files never change afterwards: a report is a function of this directory.
//!
//! Times of day are seconds since 1970 (UTC). Field names carry the unit. Unknown values are absent (`None`), never 0.

// The paths are for the fuzz target, which includes this file from elsewhere.
#[path = "archive/name.rs"]
pub(crate) mod name;
#[path = "archive/packed.rs"]
pub(crate) mod packed;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ammeter_load::outcome::{ClassOutcome, Loop, Outcome};
use ammeter_load::tally::{Fault, Spread};
use ammeter_load::window::{Second, Window};
use ammeter_monitor::Replay;
use ammeter_monitor::profile::{Profile, Row};
use amped_measure::host::Machine;
use amped_measure::{Failure, Validity, Verdict};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::channel::SSH;
use crate::values::{Checked, HostName, Setting, Via, share};

/// The format version of the archives that this program writes and reads.
pub(crate) const FORM: u32 = 4;

/// An experiment file, resolved: defaults applied, levels combined into arms, programs found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Resolved {
    /// [`FORM`].
    pub(crate) form: u32,
    /// Name of the experiment, such as `arlitt-figure-5`.
    pub(crate) name: String,
    /// Title, one line.
    pub(crate) title: String,
    /// Description: the paper's statement and findings, in a few sentences. Empty for an experiment without a paper.
    pub(crate) about: String,
    /// Whether this is the short version (`--quick`).
    pub(crate) quick: bool,
    /// Seed of the run order, arrivals and workloads.
    pub(crate) seed: u64,
    /// Repetitions of each point: the number of blocks.
    pub(crate) repetitions: u32,
    /// Measured time of each run, in seconds.
    pub(crate) duration_s: f64,
    /// Warm-up load before the measured time, in seconds.
    pub(crate) warm_up_s: f64,
    /// Both, as the mean over all arms, whose levels may change them.
    #[serde(default)]
    pub(crate) mean_load_s: Option<[f64; 2]>,
    /// Sampling interval of the monitor in the baseline, in milliseconds; 0 disables it.
    pub(crate) interval_ms: f64,
    /// Whether all servers of one load run at the same time, with interleaved measurements.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_interleaved: bool,
    /// Requests per connection; 0 is unlimited.
    pub(crate) requests_per_connection: u64,
    /// Factors, in the order of the file.
    pub(crate) factors: Vec<Factor>,
    /// Arms. The first is the baseline; a repetition of the baseline has `is_again`.
    pub(crate) arms: Vec<Arm>,
    /// Load steps of all arms, ascending.
    pub(crate) steps: Vec<Step>,
    /// Limits for a valid run.
    pub(crate) rules: Rules,
    /// Figures to draw; never empty.
    pub(crate) figures: Vec<Figure>,
    /// Findings of a paper, or expectations of the user, to check against the measurement.
    pub(crate) claims: Vec<Claim>,
    /// The hosts, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hosts: Option<Hosts>,
    /// Programs used, by name: `ammeter`, and those of the subjects.
    pub(crate) programs: BTreeMap<String, Program>,
    /// Start of the experiment.
    pub(crate) began_s: f64,
    /// Commit of the sources in whose tree this program was built, with `-dirty` if they were changed; empty if unknown.
    #[serde(default)]
    pub(crate) commit: String,
}

impl Resolved {
    /// The load steps of an arm, ascending.
    pub(crate) fn steps_of<'a>(&'a self, arm: &'a Arm) -> &'a [Step] {
        if arm.steps.is_empty() { &self.steps } else { &arm.steps }
    }

    /// Whether `other` measures the same: everything is equal except title, description, labels,
    /// figures, claims, start time, commit and programs.
    pub(crate) fn measures_as(&self, other: &Resolved) -> bool {
        let unlabelled = |arm: &Arm| Arm { label: String::new(), ..arm.clone() };
        let measured = |resolved: &Resolved| Resolved {
            name: String::new(),
            title: String::new(),
            about: String::new(),
            // It follows from the arms, and a mean is not read back to the last bit.
            mean_load_s: None,
            arms: resolved.arms.iter().map(unlabelled).collect(),
            figures: Vec::new(),
            claims: Vec::new(),
            programs: BTreeMap::new(),
            began_s: 0.0,
            commit: String::new(),
            ..resolved.clone()
        };
        let settings = |resolved: &Resolved| {
            let arms = resolved.arms.iter().map(|arm| arm.settings.parse::<toml::Table>().map(without_words));
            arms.collect::<Result<Vec<_>, _>>()
        };
        let (mut one, mut two) = (measured(self), measured(other));
        // The settings text contains the title too.
        let alike = settings(&one).is_ok() && settings(&one) == settings(&two);
        if alike {
            [&mut one, &mut two]
                .into_iter()
                .flat_map(|resolved| &mut resolved.arms)
                .for_each(|arm| arm.settings.clear());
        }
        one == two
    }

    /// The version of a claim: a hash of its figures, bounds and conditions, and of the settings that it rests on. Words,
    /// the paper's figure, seed, repetitions and programs are not part of it.
    pub(crate) fn claim_hash(&self, claim: &Claim) -> String {
        const LENGTH: usize = 12;
        let mut definition = String::new();
        self.define(claim, &mut definition);
        let digest = Sha256::digest(definition.as_bytes());
        let mut hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        hash.truncate(LENGTH);
        hash
    }

    /// Appends the canonical form of a claim: a line for each property, then its conditions.
    fn define(&self, claim: &Claim, text: &mut String) {
        let baseline = self.arms.first().map(|arm| arm.levels.clone()).unwrap_or_default();
        for (role, term) in [("of", Some(&claim.of)), ("against", claim.against.as_ref())] {
            let Some(term) = term else { continue };
            let mut levels = baseline.clone();
            levels.extend(term.levels.clone());
            *text += &format!("{role} {} {:?}\n", term.metric, term.at);
            let arm = self.arms.iter().find(|arm| arm.levels == levels);
            let settings = arm.and_then(|arm| arm.settings.parse::<toml::Table>().ok()).unwrap_or_default();
            let mut lines = BTreeMap::new();
            flatten("", &toml::Value::Table(without_words(settings)), &mut lines);
            lines.remove("seed");
            lines.iter().for_each(|(key, value)| *text += &format!("{key} = {value}\n"));
        }
        *text += &format!("above {:?} below {:?}\n", claim.above, claim.below);
        if let Some(Needs { hosts, cores, .. }) = &claim.needs {
            *text += &format!("needs {hosts} hosts {cores} cores\n");
        }
        for condition in &claim.check {
            *text += "check\n";
            self.define(condition, text);
        }
    }

    /// Labels each arm by its subject and levels, including the baseline, so that a reader sees which
    /// server it was. Relabels archives of older versions.
    pub(crate) fn label_arms(&mut self) {
        let Resolved { factors, arms, .. } = self;
        for arm in arms {
            arm.label = label(factors, arm);
        }
    }
}

/// The factor whose levels are the subjects.
pub(crate) const SUBJECT: &str = "subject";

/// Label of an arm: every level of up to two factors; with more factors, the subject and the levels
/// that differ from the baseline.
fn label(factors: &[Factor], arm: &Arm) -> String {
    const FEW: usize = 2;
    let mut parts = Vec::new();
    if factors.is_empty() || factors.len() > FEW && factors.iter().all(|factor| factor.name != SUBJECT) {
        parts.push(arm.subject.clone());
    }
    for Factor { name, levels } in factors {
        let Some(level) = arm.levels.get(name) else { continue };
        if name == SUBJECT {
            parts.push(level.clone());
        } else if factors.len() <= FEW || levels.first() != Some(level) {
            parts.push(format!("{name} {level}"));
        }
    }
    if arm.is_again {
        parts.push("again".to_owned());
    }
    parts.join(", ")
}

/// Removes settings that do not affect the measurement from an arm's settings. Repetitions have a field of their own.
pub(crate) fn without_words(mut settings: toml::Table) -> toml::Table {
    ["title", "about", "claim", "figure", "exhibits", "repetitions"]
        .into_iter()
        .for_each(|key| drop(settings.remove(key)));
    settings
}

/// Writes a table of settings as one line a key, by the path to it.
pub(crate) fn flatten(path: &str, value: &toml::Value, flat: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, flat);
            }
        }
        toml::Value::String(text) => drop(flat.insert(path.to_owned(), text.clone())),
        other => drop(flat.insert(path.to_owned(), other.to_string())),
    }
}

/// The hosts of an experiment, by the names that `via` takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(crate) struct Hosts {
    /// Host of the server.
    pub(crate) server: Checked<HostName>,
    /// Hosts of the load generators; each generates one slice of the load.
    pub(crate) clients: Vec<Checked<HostName>>,
    /// Address at which clients reach the server; `None` uses the one that ssh connects to, or that the server's host
    /// sends from.
    pub(crate) address: Option<IpAddr>,
    /// The program that runs a command on a host, with `{host}` in place of its name; `None` is `ssh {host}`.
    pub(crate) via: Option<Checked<Via>>,
}

impl Hosts {
    /// The program that runs a command on a host.
    pub(crate) fn via(&self) -> &str {
        self.via.as_ref().map_or(SSH, |via| via)
    }
}

/// An executable that took part in an experiment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// First line of its version output; empty if it prints none.
    pub(crate) version: String,
    /// SHA-256 of the file, in hexadecimal; empty if the file could not be read.
    pub(crate) sha256: String,
}

/// A factor of the experiment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Factor {
    pub(crate) name: String,
    /// Labels of its levels; the first is the baseline's.
    pub(crate) levels: Vec<String>,
}

/// A combination of factor levels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Arm {
    /// Short identifier used in run ids, such as `a0`.
    pub(crate) id: String,
    /// Display name, such as `log on`.
    pub(crate) label: String,
    /// Level label, by factor.
    pub(crate) levels: BTreeMap<String, String>,
    /// Whether this arm repeats the baseline, to measure the noise between identical arms (A/A).
    pub(crate) is_again: bool,
    /// Name of the subject.
    pub(crate) subject: String,
    /// Its load steps, if a level sets them; empty for all of the experiment's. See [`Resolved::steps_of`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) steps: Vec<Step>,
    /// Base configuration with this arm's levels applied, as TOML: the text from which the arm can be
    /// run again years later.
    pub(crate) settings: String,
}

/// One load step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    /// Open loop: new connections per second.
    Rate(f64),
    /// Closed loop: number of clients, each of which waits for its response.
    Clients(u32),
}

impl Step {
    /// Position on the load axis.
    pub(crate) fn value(self) -> f64 {
        match self {
            Step::Rate(rate) => rate,
            Step::Clients(clients) => f64::from(clients),
        }
    }

    /// Name of the load axis.
    pub(crate) fn axis(self) -> &'static str {
        match self {
            Step::Rate(_) => "rate",
            Step::Clients(_) => "clients",
        }
    }
}

/// Limits within which a run is valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
pub(crate) struct Rules {
    /// Maximum share of the machine's CPU time that other processes may use during a run.
    #[serde(deserialize_with = "share")]
    pub(crate) others_max: f64,
    /// Maximum share of the machine's CPU time in use while there is no load.
    #[serde(deserialize_with = "share")]
    pub(crate) idle_max: f64,
    /// Maximum drift of the rate over a run, as a share of the rate. Applies only if the drift is
    /// statistically significant.
    #[serde(deserialize_with = "share")]
    pub(crate) drift_max: f64,
    /// Maximum difference between the counts of client, server and network, as a share.
    #[serde(deserialize_with = "share")]
    pub(crate) counts_max: f64,
    /// Maximum deviation from Little's law, as a share.
    #[serde(deserialize_with = "share")]
    pub(crate) little_max: f64,
}

impl Default for Rules {
    fn default() -> Rules {
        let others_max = amped_measure::others::MAX;
        Rules { others_max, idle_max: 0.1, drift_max: 0.1, counts_max: 0.01, little_max: 0.05 }
    }
}

/// A figure to draw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(crate) struct Figure {
    /// Title, such as `Figure 5(a)`.
    pub(crate) title: String,
    /// x axis: `rate` or `clients` (the step), or the name of a factor, whose levels are the values.
    #[serde(default)]
    pub(crate) x: String,
    /// Metrics to draw, by the names of [`Summary::metric`]. With several, each arm has one curve per metric.
    pub(crate) y: Vec<String>,
    /// If x is a factor: the step at which each arm is read.
    #[serde(default)]
    pub(crate) at: At,
    /// Whether the x axis is logarithmic.
    #[serde(default)]
    pub(crate) log_x: bool,
    /// Whether the y axis is logarithmic.
    #[serde(default)]
    pub(crate) log_y: bool,
    /// The paper's curves.
    #[serde(default)]
    pub(crate) paper: Vec<PaperCurve>,
}

/// A curve of a paper, to the extent that the paper's text prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct PaperCurve {
    pub(crate) name: String,
    /// Points (x, y) in the units of the figure. For a factor whose levels are words, x is the index of
    /// the level, from 0.
    pub(crate) points: Vec<[f64; 2]>,
}

/// The step at which an arm is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Setting", into = "String")]
pub(crate) enum At {
    /// The step with the largest value of the metric.
    #[default]
    Peak,
    /// The lowest step.
    First,
    /// The highest step.
    Last,
    /// The step with this value.
    Step(f64),
}

impl TryFrom<Setting> for At {
    type Error = String;

    fn try_from(Setting(text): Setting) -> Result<At, String> {
        Ok(match &text[..] {
            "peak" => At::Peak,
            "first" => At::First,
            "last" => At::Last,
            load => At::Step(load.parse().map_err(|_| {
                format!("{text:?} is not a step; write \"peak\", \"first\", \"last\", or a load of the ladder")
            })?),
        })
    }
}

impl From<At> for String {
    fn from(at: At) -> String {
        match at {
            At::Peak => "peak".to_owned(),
            At::First => "first".to_owned(),
            At::Last => "last".to_owned(),
            At::Step(load) => load.to_string(),
        }
    }
}

/// A paper's finding, as a figure that can be measured again, with the bounds within which it holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// The statement, with its place in the paper.
    pub(crate) says: String,
    /// The measured figure.
    pub(crate) of: Term,
    /// The divisor, taken from the same block; `None` uses the figure itself.
    pub(crate) against: Option<Term>,
    /// Lower bound: the claim holds if the figure or ratio is above it.
    pub(crate) above: Option<f64>,
    /// Upper bound, likewise.
    pub(crate) below: Option<f64>,
    /// The paper's own figure or ratio, if it prints one.
    pub(crate) paper: Option<f64>,
    /// Manipulation checks: conditions which show that the effect under study occurred, such as packet
    /// loss. The claim is judged only if all of them hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) check: Vec<Claim>,
    /// What the claim needs to be testable, if not every machine has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) needs: Option<Needs>,
    /// Why it no longer holds, in a sentence; empty if that is not known, or if it holds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) no_longer: String,
    /// The figures that this sentence rests on; they have no bounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) evidence: Vec<Claim>,
    /// Whether it tests the load generator or the workload: no finding about servers, and not counted as one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_self_test: bool,
    /// [`Resolved::claim_hash`] when the experiment was measured; empty in archives of older versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) hash: String,
    /// Whether the claim was written, or changed, after the archive was measured.
    #[serde(skip)]
    pub(crate) is_later: bool,
}

/// What a claim needs beyond its own settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(crate) struct Needs {
    /// Number of hosts, of server and clients together.
    #[serde(default)]
    pub(crate) hosts: usize,
    /// Number of cores of the server's host.
    #[serde(default)]
    pub(crate) cores: usize,
    /// The reason. If neither hosts nor cores are named, no machine suffices: the claim is not testable.
    pub(crate) because: String,
}

/// A figure of one arm at one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Term {
    /// Name of the metric, as [`Summary::metric`] takes it.
    pub(crate) metric: String,
    /// The arm: level label, by factor. Factors not listed are at their baseline.
    pub(crate) levels: BTreeMap<String, String>,
    /// The step.
    pub(crate) at: At,
}

/// The machine under test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Host {
    /// Processor, cores, kernel, congestion control.
    pub(crate) machine: Machine,
    /// Memory, in bytes.
    pub(crate) memory_bytes: u64,
    /// Kernel settings that matter to servers, by their names in `/proc/sys` (`net.core.somaxconn`),
    /// and others: `clocksource`, `mitigations`, `loopback.mtu`.
    pub(crate) kernel: BTreeMap<String, String>,
    /// Load averages of 1, 5 and 15 minutes at the start of the experiment.
    pub(crate) load_average: String,
    /// Isolation of client and server, as text: cores, namespace, control group.
    pub(crate) test_bed: Vec<String>,
    /// The client machines, by name, if they are separate hosts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) clients: BTreeMap<String, Host>,
}

/// All runs, in execution order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) runs: Vec<Planned>,
    /// Expected duration of all runs, in seconds.
    pub(crate) expected_s: f64,
}

/// A planned run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// Run id, `BLOCK-ARM-LOAD`, such as `1-a0-500`.
    pub(crate) id: String,
    /// Block number, from 1. Each block contains all points, in its own order.
    pub(crate) block: u32,
    /// The arm's id.
    pub(crate) arm: String,
    pub(crate) step: Step,
    /// Seed of its arrivals and workload.
    pub(crate) seed: u64,
}

impl Planned {
    /// Returns attempt `number` (from 1) of this run. Attempts after the first have the number appended
    /// to their id; all have the same arrivals.
    pub(crate) fn attempt(&self, number: usize) -> Planned {
        match number {
            0 | 1 => self.clone(),
            _ => Planned { id: format!("{}-{number}", self.id), ..self.clone() },
        }
    }

    /// Whether both are attempts of the same run.
    pub(crate) fn is_same(&self, other: &Planned) -> bool {
        (self.block, &self.arm, self.step) == (other.block, &other.arm, other.step)
    }
}

/// Results of the clients against a null server (Arlitt and Williamson, 4.4.2).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Clients {
    /// One entry per step, and one at 1.5 times the highest step.
    pub(crate) steps: Vec<ClientStep>,
    /// Reason for skipping the measurement, if it was skipped.
    pub(crate) skipped: Option<String>,
}

/// Result of the clients at one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClientStep {
    pub(crate) step: Step,
    /// Connections started per second.
    pub(crate) offered_rate: f64,
    /// Valid responses per second.
    pub(crate) rate: f64,
    /// 99th percentile of connection start lateness, in milliseconds.
    pub(crate) lateness_p99_ms: f64,
    /// Mean time from connection established to last byte, in milliseconds. This is the clients' own
    /// time, since the null server takes none.
    pub(crate) own_ms: f64,
    /// Whether the clients kept the schedule.
    pub(crate) is_kept: bool,
    /// Reasons if they did not.
    pub(crate) why: Vec<String>,
}

impl ClientStep {
    /// Converts the outcome of a load against the null server.
    pub(crate) fn measured(step: Step, outcome: &Outcome) -> ClientStep {
        let mut why = outcome.verdict.evidence.clone();
        let (ok, failed) = (outcome.ok, outcome.unserved());
        let is_answered = failed.saturating_mul(100) <= ok;
        if !is_answered {
            why.push(format!("{failed} of {} requests were not served", ok.saturating_add(failed)));
        }
        ClientStep {
            step,
            offered_rate: outcome.window.offered_rate,
            rate: outcome.window.completed_rate,
            lateness_p99_ms: outcome.lateness.p99_ms,
            own_ms: (outcome.latency.mean_ms - outcome.connected.mean_ms).max(0.0),
            is_kept: outcome.verdict.validity == Validity::Valid && is_answered,
            why,
        }
    }

    /// An entry for a step without a result.
    pub(crate) fn of(step: Step) -> ClientStep {
        let (offered_rate, rate, lateness_p99_ms, own_ms) = (0.0, 0.0, 0.0, 0.0);
        ClientStep { step, offered_rate, rate, lateness_p99_ms, own_ms, is_kept: false, why: Vec::new() }
    }
}

/// Activity of the idle machine before a block (Arlitt and Williamson, 4.4.1).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Block {
    /// Block number, from 1.
    pub(crate) block: u32,
    /// Start of the observation.
    pub(crate) began_s: f64,
    /// Duration of the observation, in seconds.
    pub(crate) looked_s: f64,
    /// Share of all CPU time in use, by any process.
    pub(crate) busy: f64,
    /// Share of CPU time stolen by a hypervisor.
    pub(crate) stolen: f64,
    /// Packets received per second, on all interfaces.
    pub(crate) packets_per_s: f64,
    /// Disk bytes read and written per second.
    pub(crate) disk_bytes_per_s: f64,
    /// Programs that used the most CPU time: name, and number of cores.
    pub(crate) busiest: Vec<(String, f64)>,
    /// Whether the activity is within the rules.
    pub(crate) is_clean: bool,
    /// With several hosts, the busy share of each. The other figures are those of the busiest host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) hosts: BTreeMap<String, f64>,
}

/// The status of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RunStatus {
    /// No check failed, except that the machine may not have been idle before the block.
    #[default]
    Valid,
    /// A rate is a lower bound ("at least"): the client reached its limit first. Drawn as an open
    /// marker, never dropped.
    Censored,
    /// The run is no evidence about the server. Shown, but not used.
    Invalid,
}

/// A run and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// [`FORM`].
    pub(crate) form: u32,
    /// The plan of this run.
    #[serde(rename = "planned")]
    pub(crate) plan: Planned,
    /// Start of the server.
    pub(crate) began_s: f64,
    /// Start of the measured load. Monitor samples before it belong to startup and warm-up.
    pub(crate) load_began_s: f64,
    /// End of the measured load.
    pub(crate) load_ended_s: f64,
    /// End of the run.
    pub(crate) ended_s: f64,
    pub(crate) status: RunStatus,
    /// Reasons for a status other than valid; empty for a valid run.
    pub(crate) why: Vec<String>,
    /// All checks, passed or failed.
    pub(crate) checks: Vec<Check>,
    /// Figures of the run; `None` if no load was generated because the server did not start or exited.
    pub(crate) summary: Option<Summary>,
}

impl Run {
    /// A run that has just started, without a result.
    pub(crate) fn begun(plan: Planned, began_s: f64) -> Run {
        Run {
            form: FORM,
            plan,
            began_s,
            load_began_s: began_s,
            load_ended_s: began_s,
            ended_s: began_s,
            status: RunStatus::Invalid,
            why: Vec::new(),
            checks: Vec::new(),
            summary: None,
        }
    }
}

/// Offset of a remote clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Offset {
    /// The host's clock minus this machine's, in seconds.
    pub(crate) offset_s: f64,
    /// Maximum error of the offset, in seconds.
    pub(crate) bound_s: f64,
}

impl std::fmt::Display for Offset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.3} ms, to within {:.3} ms", self.offset_s * 1e3, self.bound_s * 1e3)
    }
}

/// One host's part in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostRun {
    /// Host name, as given to ssh.
    pub(crate) host: String,
    /// Role: `server`, or `load 1/2`.
    pub(crate) role: String,
    /// Offset of its clock from the controlling machine's, which stamps all times of the archive except
    /// the monitor's samples: these carry the host's own time.
    pub(crate) clock: Offset,
    /// Share of its CPU time in use during the measured load.
    pub(crate) busy: f64,
    /// Share used by processes other than the load; `None` if unknown, and for the server's host, for
    /// which the run reports it.
    pub(crate) others: Option<f64>,
    /// For a client host, the result of its slice.
    pub(crate) load: Option<SliceRun>,
}

/// Result of one slice of the load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SliceRun {
    /// Connections started per second.
    pub(crate) offered_rate: f64,
    /// Valid responses per second.
    pub(crate) rate: f64,
    /// 99th percentile of connection start lateness, in milliseconds.
    pub(crate) lateness_p99_ms: f64,
    /// The load generator's verdict on itself.
    pub(crate) verdict: Verdict,
}

/// One check of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Check {
    /// Name: one of `clients`, `client`, `idle`, `others`, `stationary`, `little`, `counts`, `bytes`, `path`,
    /// `server`; with HTTP/2 also `protocol`; with several hosts also `clocks`; for a run that could not be made `server`, `client` or `hosts`.
    pub(crate) name: String,
    /// Whether the check held; `None` if it could not be made, in which case `says` gives the reason.
    pub(crate) holds: Option<bool>,
    /// The compared figures, as text.
    pub(crate) says: String,
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// Offered and completed load in the measured window, and the backlog.
    pub(crate) window: Window,
    /// Length of the window, in seconds.
    pub(crate) seconds: f64,
    /// Connections scheduled per second; `None` in a closed loop.
    pub(crate) target_rate: Option<f64>,
    /// Connections started per second.
    pub(crate) offered_rate: f64,
    /// Connections established per second.
    pub(crate) established_rate: f64,
    /// Requests sent per second.
    pub(crate) request_rate: f64,
    /// Valid responses, including those of the drain.
    pub(crate) ok: u64,
    /// Failed connections and requests.
    pub(crate) failed: u64,
    /// Failures by kind, as `ammeter load` names them.
    pub(crate) failures: BTreeMap<String, u64>,
    /// Requests that were not sent, because their connection failed or ended early.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) unsent: u64,
    /// Bytes received by the clients, including response headers.
    pub(crate) received_bytes: u64,
    /// Time from the scheduled start to the last byte of a valid response, in milliseconds.
    pub(crate) latency: Spread,
    /// Time from the scheduled start to the established connection, in milliseconds.
    pub(crate) connected: Spread,
    /// Time from the scheduled start to the SYN, in milliseconds.
    pub(crate) lateness: Spread,
    /// Results of the additional clients, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<Beside>,
    /// Latency of the requests for the small file among those for a file set, if the load mixes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mixed: Option<Mixed>,
    /// Concurrent streams of a connection of HTTP/2: as many as requested, or as the server allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) streams: Option<u64>,
    /// Idle connections held open during the load; each sent one request.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) parked: u64,
    /// Standard deviation of the responses per second, over whole seconds, as a share of their mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unevenness: Option<f64>,
    /// CPU time of the clients, in seconds, without time spent polling the clock.
    pub(crate) client_cpu_s: f64,
    /// Resources used by the server.
    pub(crate) server: ServerUse,
    /// CPU use of the machine.
    pub(crate) host: HostUse,
    /// Kernel counters of the server's network namespace.
    pub(crate) network: NetworkUse,
    /// Monitor columns during the measured load, by column name: means for rates, final values for all others.
    pub(crate) monitor: BTreeMap<String, f64>,
    /// Total bytes of the file set that may be requested, if there is one.
    pub(crate) set_bytes: Option<u64>,
    /// Shares of totals: the server's CPU time, from [`name::PROFILE`] (`category NAME` and
    /// `context NAME`, of its samples), and the requests, from [`name::LOAD`] (`requests CLASS`, of all
    /// requests that were answered or failed). Read from these two files and stored in no other.
    #[serde(skip)]
    pub(crate) shares: BTreeMap<String, f64>,
}

/// Classes of the requests for the small file, and for the files of a set, if a load mixes them.
pub(crate) const CACHED: &str = "cached";
pub(crate) const COLD: &str = "cold";

/// Latency by class of requests on the same connections, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mixed {
    /// Of the requests for the small file.
    pub(crate) cached: Spread,
    /// Of the requests for the files of the set.
    pub(crate) cold: Spread,
}

impl Mixed {
    /// Takes them from the classes of an outcome; `None` without both.
    pub(crate) fn of(outcome: &Outcome) -> Option<Mixed> {
        let class = |name| outcome.classes.iter().find(|class| class.class == name)?.latency;
        Some(Mixed { cached: class(CACHED)?, cold: class(COLD)? })
    }
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

/// Results of the additional clients, which request one small file during the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// Valid responses.
    pub(crate) ok: u64,
    /// Valid responses per second.
    pub(crate) rate: f64,
    /// Bytes received, including response headers.
    pub(crate) received_bytes: u64,
    /// Latency, in milliseconds.
    pub(crate) latency: Spread,
}

/// Resources used by a server during the measured load, over all its processes, including those that exited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerUse {
    /// CPU time, in seconds.
    pub(crate) cpu_s: Option<f64>,
    /// CPU time in user code, in seconds.
    pub(crate) user_s: Option<f64>,
    /// CPU time in the kernel, in seconds.
    pub(crate) system_s: Option<f64>,
    /// Maximum number of processes.
    pub(crate) processes_max: Option<u32>,
    /// Maximum number of threads.
    pub(crate) threads_max: Option<u32>,
    /// Maximum memory, in bytes: of the control group, including page cache; without a group, resident memory.
    pub(crate) memory_max_bytes: Option<u64>,
    /// Maximum length of the accept queue.
    pub(crate) listen_depth_max: Option<u64>,
    /// Page cache of its control group at the end of the load, in bytes, if its memory is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) page_cache_bytes: Option<u64>,
    /// Responses counted by the server itself.
    pub(crate) replies: Option<u64>,
    /// Bytes sent, counted by the server itself.
    pub(crate) sent_bytes: Option<u64>,
    /// Mean time from the event that reports a request until it is parsed, by the server's own clock, over the requests
    /// that it timed, in milliseconds.
    pub(crate) parsing_ms: Option<f64>,
    /// Mean time to find and send the file, likewise.
    pub(crate) processing_ms: Option<f64>,
    /// Mean time to log the request, likewise.
    pub(crate) logging_ms: Option<f64>,
    /// Time from server start to its first response, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start_ms: Option<f64>,
    /// Resident memory before the load, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rest_bytes: Option<u64>,
    /// Maximum resident memory during the load, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resident_max_bytes: Option<u64>,
}

/// CPU use of the machine during the measured load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostUse {
    /// Share of all CPU time in use.
    pub(crate) busy: f64,
    /// Share used by processes other than server, clients and instruments.
    pub(crate) others: Option<f64>,
    /// Share of CPU time stolen by a hypervisor.
    pub(crate) stolen: f64,
}

/// Kernel counters of the server's network namespace during the measured load. Over loopback, both ends are in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NetworkUse {
    /// Whether the namespace has no other users, or belongs to a separate host. Only then must the counts agree.
    pub(crate) is_private: bool,
    /// Connections accepted on the server's side.
    pub(crate) passive_opens: Option<u64>,
    /// Segments sent.
    pub(crate) segments_out: Option<u64>,
    /// Bytes sent by its devices, including IP and TCP headers (over loopback without Ethernet headers).
    pub(crate) out_bytes: Option<u64>,
    /// Established connections at the server's port: the mean of all samples.
    pub(crate) established: Option<f64>,
    /// Connections at the server's port, including those that the server has closed and whose last bytes are not
    /// acknowledged: the mean of all samples.
    #[serde(default)]
    pub(crate) in_flight: Option<f64>,
    /// Established connections that the server has accepted: the mean of all samples.
    #[serde(default)]
    pub(crate) accepted: Option<f64>,
}

/// A metric of a run: name, unit, description, and function.
type Metric = (&'static str, &'static str, &'static str, fn(&Summary) -> Option<f64>);

const MIB: f64 = 1024.0 * 1024.0;

/// `None` if nothing was timed.
fn known(spread: &Spread) -> Option<&Spread> {
    (spread.count > 0).then_some(spread)
}

/// See [`Summary::unevenness`]; `None` for fewer than three whole seconds, or without responses.
fn unevenness(outcome: &Outcome) -> Option<f64> {
    let is_whole = |second: &&Second| second.length_s >= 1.0 && second.at_s + second.length_s <= outcome.seconds;
    let counts: Vec<f64> = outcome.series.iter().filter(is_whole).map(|second| second.ok as f64).collect();
    let mean = counts.iter().sum::<f64>() / counts.len().max(1) as f64;
    let squares: f64 = counts.iter().map(|count| (count - mean).powi(2)).sum();
    (counts.len() >= 3 && mean > 0.0).then(|| (squares / (counts.len() - 1) as f64).sqrt() / mean)
}

impl Summary {
    /// Takes the clients' figures from `outcome`. Server, host and network figures are still missing.
    pub(crate) fn of(outcome: &Outcome) -> Summary {
        // These fail before a request is sent.
        const BEFORE: [Fault; 5] = [Fault::Abandoned, Fault::Refused, Fault::Tls, Fault::Local, Fault::Unsent];
        let failed_before: u64 = BEFORE.iter().map(|fault| outcome.failed_by(*fault)).sum();
        let seconds = outcome.window.seconds.max(1e-9);
        let Outcome { establisher, handler, .. } = outcome;
        Summary {
            window: outcome.window,
            seconds: outcome.window.seconds,
            target_rate: match outcome.load {
                Loop::Open { rate, .. } => Some(rate),
                Loop::Closed { .. } => None,
            },
            offered_rate: outcome.window.offered_rate,
            established_rate: outcome.established as f64 / seconds,
            request_rate: (outcome.ok + outcome.failed() - failed_before) as f64 / seconds,
            ok: outcome.ok,
            failed: outcome.failed(),
            failures: outcome.failures.iter().map(|(fault, count)| (fault.name().to_owned(), *count)).collect(),
            unsent: outcome.unserved() - outcome.failed(),
            received_bytes: outcome.received_bytes,
            latency: outcome.latency,
            connected: outcome.connected,
            lateness: outcome.lateness,
            unevenness: unevenness(outcome),
            client_cpu_s: establisher.cpu_s + handler.cpu_s - establisher.spun_s - handler.spun_s,
            ..Summary::default()
        }
    }

    /// Requests without a correct response: failures, and requests that were not sent.
    pub(crate) fn unserved(&self) -> u64 {
        self.failed.saturating_add(self.unsent)
    }

    /// All metrics: name, unit, description, and the function that computes the value from a run, if it is known.
    pub(crate) const METRICS: &'static [Metric] = &[
        ("target-rate", "1/s", "planned connections", |run| run.target_rate),
        ("offered-rate", "1/s", "started connections", |run| Some(run.offered_rate)),
        ("established-rate", "1/s", "established connections", |run| Some(run.established_rate)),
        ("request-rate", "1/s", "requests sent", |run| Some(run.request_rate)),
        ("rate", "1/s", "responses", |run| Some(run.window.completed_rate)),
        ("completed-share", "%", "completed responses as a share of offered ones", |run| {
            Some(100.0 * run.window.completed_share?)
        }),
        ("backlog", "", "connections still open at the end of the window", |run| Some(run.window.backlog as f64)),
        ("backlog-growth", "1/s", "growth of the backlog during the window", |run| run.window.backlog_growth_rate),
        ("drain", "s", "time to drain the backlog", |run| Some(run.window.drain_s)),
        ("failed-rate", "1/s", "failures", |run| Some(run.window.rate(run.window.failed))),
        ("failed-share", "", "share of failures", |run| {
            Some(run.unserved() as f64 / (run.ok as f64 + run.unserved() as f64).max(1.0))
        }),
        ("throughput", "Mbit/s", "received by clients", |run| Some(run.window.received_mb_per_s() * 8.0)),
        ("mean", "ms", "mean latency", |run| Some(known(&run.latency)?.mean_ms)),
        ("p50", "ms", "median latency", |run| Some(known(&run.latency)?.p50_ms)),
        ("p90", "ms", "90th percentile latency", |run| Some(known(&run.latency)?.p90_ms)),
        ("p95", "ms", "95th percentile latency", |run| Some(known(&run.latency)?.p95_ms)),
        ("p99", "ms", "99th percentile latency", |run| Some(known(&run.latency)?.p99_ms)),
        ("p999", "ms", "99.9th percentile latency", |run| Some(known(&run.latency)?.p999_ms)),
        ("connect-p50", "ms", "median time to connect", |run| Some(known(&run.connected)?.p50_ms)),
        ("connect-mean", "ms", "mean time to connect", |run| Some(known(&run.connected)?.mean_ms)),
        ("lateness-p99", "ms", "99th percentile lateness of the clients", |run| Some(known(&run.lateness)?.p99_ms)),
        ("server-cpu", "cores", "server CPU", |run| Some(run.server.cpu_s? / run.counted_s())),
        ("server-user", "cores", "server CPU in user code", |run| Some(run.server.user_s? / run.counted_s())),
        ("server-system", "cores", "server CPU in the kernel", |run| Some(run.server.system_s? / run.counted_s())),
        ("user-share", "%", "share of server CPU time in user code", |run| {
            Some(100.0 * run.server.user_s? / run.server.cpu_s.filter(|cpu_s| *cpu_s > 0.0)?)
        }),
        ("cpu-per-reply", "us", "server CPU time per response", |run| {
            let replies = run.ok + run.beside.map_or(0, |beside| beside.ok);
            (replies > 0).then_some(run.server.cpu_s? * 1e6 / replies as f64)
        }),
        ("beside-rate", "1/s", "responses to additional clients", |run| Some(run.beside?.rate)),
        ("beside-p50", "ms", "median latency of additional clients", |run| Some(run.beside?.latency.p50_ms)),
        ("beside-p99", "ms", "99th percentile latency of additional clients", |run| Some(run.beside?.latency.p99_ms)),
        ("cached-p50", "ms", "median latency of the small file among others", |run| Some(run.mixed?.cached.p50_ms)),
        ("cached-p99", "ms", "99th percentile latency of the small file among others", |run| {
            Some(run.mixed?.cached.p99_ms)
        }),
        ("cold-p50", "ms", "median latency of the files beside the small one", |run| Some(run.mixed?.cold.p50_ms)),
        ("cold-p99", "ms", "99th percentile latency of the files beside the small one", |run| {
            Some(run.mixed?.cold.p99_ms)
        }),
        ("streams", "", "concurrent streams of a connection", |run| Some(run.streams? as f64)),
        ("client-cpu", "cores", "client CPU", |run| Some(run.client_cpu_s / run.counted_s())),
        ("host-cpu", "%", "machine CPU", |run| Some(run.host.busy * 100.0)),
        ("processes", "", "maximum server processes", |run| run.server.processes_max.map(f64::from)),
        ("threads", "", "maximum server threads", |run| run.server.threads_max.map(f64::from)),
        ("memory", "MiB", "maximum server memory", |run| Some(run.server.memory_max_bytes? as f64 / MIB)),
        ("page-cache", "MiB", "final page cache of the server's control group", |run| {
            Some(run.server.page_cache_bytes? as f64 / MIB)
        }),
        ("start", "ms", "time from server start to first response", |run| run.server.start_ms),
        ("memory-at-rest", "MiB", "resident server memory before the load", |run| {
            Some(run.server.rest_bytes? as f64 / MIB)
        }),
        ("memory-per-parked", "B", "memory per parked connection", |run| {
            let grown = run.server.resident_max_bytes?.saturating_sub(run.server.rest_bytes?);
            (run.parked > 0).then(|| grown as f64 / run.parked as f64)
        }),
        ("listen-depth", "", "maximum connections in the listen queue", |run| {
            Some(run.server.listen_depth_max? as f64)
        }),
        ("listen-drops", "1/s", "connections dropped by the listen queue", |run| {
            // A listener with TCP_DEFER_ACCEPT, such as Apache's, counts every connection as a drop, because
            // of the bare ACK. The counter of a private namespace is exact.
            run.seen(if run.network.is_private { "tcp_listen_drops_per_s" } else { "listen_queue_drops_per_s" })
        }),
        ("established", "", "mean established connections", |run| run.network.established),
        ("in-flight", "", "mean connections open or with unacknowledged data", |run| run.network.in_flight),
        ("accepted", "", "mean accepted and established connections", |run| run.network.accepted),
        ("server-time", "ms", "mean time of an accepted connection in the server (by Little's law)", |run| {
            Some(1e3 * run.network.accepted? / Some(run.established_rate).filter(|rate| *rate > 0.0)?)
        }),
        ("unevenness", "", "relative standard deviation of responses per second", |run| run.unevenness),
        ("syn-rate", "1/s", "SYNs received: connections established or dropped", |run| {
            Some(run.established_rate + run.seen("tcp_listen_drops_per_s").filter(|_| run.network.is_private)?)
        }),
        ("disk-read", "MiB/s", "disk reads", |run| Some(run.seen("disk_read_bytes_per_s")? / MIB)),
        ("disk-share", "%", "disk reads as a share of the bytes sent", |run| {
            let sent_mib_per_s = run.window.received_mb_per_s() * 1e6 / MIB;
            Some(100.0 * run.seen("disk_read_bytes_per_s")? / MIB / Some(sent_mib_per_s).filter(|sent| *sent > 0.0)?)
        }),
        ("disk-transfers", "1/s", "disk transfers (reads and writes)", |run| {
            Some(run.seen("disk_reads_per_s")? + run.seen("disk_writes_per_s")?)
        }),
        ("parsing", "ms", "server time for parsing", |run| run.server.parsing_ms),
        ("processing", "ms", "server time for processing", |run| run.server.processing_ms),
        ("logging", "ms", "server time for logging", |run| run.server.logging_ms),
        ("in-server", "ms", "total server time", |run| {
            Some(run.server.parsing_ms? + run.server.processing_ms? + run.server.logging_ms?)
        }),
        ("set-size", "MiB", "requested files", |run| Some(run.set_bytes? as f64 / MIB)),
    ];

    /// Totals whose shares are metrics as well, such as `category:timers`, or `category:timers+locking` for the
    /// sum of two: the word before the colon, the description of the total, and whether it needs a profile.
    pub(crate) const SHARES: &'static [(&'static str, &'static str, bool)] = &[
        ("category", "the server's CPU time", true),
        ("context", "the server's CPU time", true),
        ("kernel", "the server's time in the kernel", true),
        ("requests", "all requests", false),
    ];

    /// Returns unit and description of a metric of [`METRICS`](Summary::METRICS) or
    /// [`SHARES`](Summary::SHARES), or of a monitor column; `None` for an unknown name.
    pub(crate) fn described(name: &str) -> Option<(&'static str, Cow<'static, str>)> {
        if let Some((_, unit, meaning, _)) = Summary::METRICS.iter().find(|(known, ..)| *known == name) {
            return Some((unit, Cow::Borrowed(meaning)));
        }
        if let Some(figure) = ammeter_monitor::Name::of(name) {
            return Some((figure.unit(), Cow::Owned(figure.words())));
        }
        let (whole, parts) = name.split_once(':').filter(|(_, parts)| !parts.is_empty())?;
        let (_, whole, _) = Summary::SHARES.iter().find(|(known, ..)| *known == whole)?;
        // The distinguishing part comes first: legends cut off the rest.
        Some(("%", Cow::Owned(format!("{}, of {whole}", parts.replace('+', " and ")))))
    }

    /// Whether a metric is a share of a profile.
    pub(crate) fn is_of_profile(name: &str) -> bool {
        let whole = name.split_once(':').map(|(whole, _)| whole);
        Summary::SHARES.iter().any(|(known, _, is_of_profile)| Some(*known) == whole && *is_of_profile)
    }

    /// Returns the value of a [`described`](Summary::described) metric, in its unit; `None` if it is unknown.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        match Summary::METRICS.iter().find(|(known, ..)| *known == name) {
            Some((.., of)) => of(self),
            None => self.seen(name).or_else(|| self.share(name)),
        }
    }

    /// Returns a monitor column, by name.
    fn seen(&self, name: &str) -> Option<f64> {
        self.monitor.get(name).copied()
    }

    /// Time during which server, machine and network were counted: until the end of the drain, in seconds.
    fn counted_s(&self) -> f64 {
        (self.seconds + self.window.drain_s.clamp(0.0, 1e6)).max(1e-9)
    }

    /// Returns a metric of [`SHARES`](Summary::SHARES), in percent; `None` if its total is unknown. A
    /// part without samples is 0.
    fn share(&self, name: &str) -> Option<f64> {
        let (whole, parts) = name.split_once(':')?;
        let view = if whole == "kernel" { "category" } else { whole };
        let is_view = |key: &str| key.strip_prefix(view).is_some_and(|rest| rest.starts_with(' '));
        if !self.shares.keys().any(|key| is_view(key)) {
            return None;
        }
        let of = |part: &str| self.shares.get(&format!("{view} {part}")).copied().unwrap_or(0.0);
        let sum: f64 = parts.split('+').map(of).sum();
        // These two are the categories of user code.
        let all = if whole == "kernel" { (1.0 - of("user") - of("crypto")).max(1e-9) } else { 1.0 };
        Some(100.0 * sum / all)
    }
}

/// An existing archive.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    pub(crate) dir: PathBuf,
    /// The file that it comes from, if it is a packed one, and the temporary directory with its contents: `dir`.
    pub(crate) packed: Option<(PathBuf, Arc<TempDir>)>,
    pub(crate) resolved: Resolved,
    pub(crate) host: Host,
    pub(crate) plan: Plan,
    /// Results of the clients against the null server; `None` until they are measured.
    pub(crate) clients: Option<Clients>,
    /// Activity of the idle machine, for each block that has started.
    pub(crate) blocks: Vec<Block>,
    /// Existing runs in plan order, with all attempts of each in order.
    pub(crate) runs: Vec<Run>,
}

impl Archive {
    /// Reads the archive in `path`: a directory, or a file that [`packed`] has written.
    ///
    /// # Errors
    /// If there is no archive, it has another format version, or it is damaged.
    pub(crate) fn open(path: &Path) -> Result<Archive, Failure> {
        if path.is_dir() || !path.exists() {
            return Self::open_dir(path);
        }
        let dir = packed::unpack(path)?;
        let archive = Self::open_dir(dir.path())?;
        Ok(Archive { packed: Some((path.to_owned(), Arc::new(dir))), ..archive })
    }

    fn open_dir(dir: &Path) -> Result<Archive, Failure> {
        if !dir.join(name::RESOLVED).exists() {
            return Err(Failure::usage(format!(
                "{} is not an archive of an experiment: it has no {}; create one with: ammeter run EXPERIMENT --out {0}",
                dir.display(),
                name::RESOLVED
            )));
        }
        let form: Form = read(&dir.join(name::RESOLVED))?;
        if form.form != FORM {
            return Err(Failure::failed(format!(
                "{} has format version {}, but this ammeter reads version {FORM}; use the ammeter that wrote it, or run the \
                 experiment again",
                dir.display(),
                form.form
            )));
        }
        let mut resolved: Resolved = read(&dir.join(name::RESOLVED))?;
        resolved.label_arms();
        let plan: Plan = read(&dir.join(name::PLAN))?;
        let mut runs = Vec::new();
        for planned in &plan.runs {
            let attempts = (1..).map(|number| dir.join(name::RUNS).join(planned.attempt(number).id));
            for folder in attempts.take_while(|folder| folder.join(name::RUN).exists()) {
                let mut run: Run = read(&folder.join(name::RUN))?;
                if let Some(summary) = &mut run.summary {
                    summary.shares = shares(&folder);
                }
                runs.push(run);
            }
        }
        let begun: BTreeSet<u32> = plan.runs.iter().map(|run| run.block).collect();
        let blocks = begun.into_iter().map(|block| block_path(dir, block)).filter(|path| path.exists());
        Ok(Archive {
            resolved,
            host: read(&dir.join(name::HOST))?,
            clients: read_optional(&dir.join(name::CLIENTS))?,
            blocks: blocks.map(|path| read(&path)).collect::<Result<_, _>>()?,
            plan,
            runs,
            dir: dir.to_owned(),
            packed: None,
        })
    }

    /// The path that the user gave.
    pub(crate) fn path(&self) -> &Path {
        self.packed.as_ref().map_or(&self.dir, |(file, _)| file)
    }

    /// Returns the attempts that are used: the last of each run. Earlier attempts are invalid, and are
    /// drawn and reported as such.
    pub(crate) fn last_attempts(&self) -> impl Iterator<Item = &Run> {
        let next = |at: usize| self.runs.get(at + 1);
        let all = self.runs.iter().enumerate();
        all.filter(move |(at, run)| next(*at).is_none_or(|next| !next.plan.is_same(&run.plan))).map(|(_, run)| run)
    }

    /// Path of a file of a run, by its [`name`]. The file may not exist.
    pub(crate) fn file(&self, run: &str, name: &str) -> PathBuf {
        self.dir.join(name::RUNS).join(run).join(name)
    }

    /// Returns each host's part in a run; empty if one machine did everything.
    ///
    /// # Errors
    /// If the file is damaged.
    pub(crate) fn hosts(&self, run: &str) -> Result<Vec<HostRun>, Failure> {
        read_optional(&self.file(run, name::HOSTS)).map(Option::unwrap_or_default)
    }

    /// Returns the arm with this id.
    pub(crate) fn arm(&self, id: &str) -> Option<&Arm> {
        self.resolved.arms.iter().find(|arm| arm.id == id)
    }

    /// Reads the clients' results of a run.
    ///
    /// # Errors
    /// If the file is missing or damaged.
    pub(crate) fn load(&self, run: &str) -> Result<Outcome, Failure> {
        read(&self.file(run, name::LOAD))
    }

    /// Reads the monitor's samples of server and machine; `ammeter_monitor::Tick::between` computes rates from them.
    ///
    /// # Errors
    /// If the file is missing or damaged.
    pub(crate) fn samples(&self, run: &str) -> Result<Replay<'static>, Failure> {
        ammeter_monitor::replay(&self.file(run, name::MONITOR))
    }

    /// Reads the CPU profile of a run, as `ammeter profile --json` prints it; `None` if no profile was requested.
    ///
    /// # Errors
    /// If the file is damaged.
    pub(crate) fn profile(&self, run: &str) -> Result<Option<Profile>, Failure> {
        read_optional(&self.file(run, name::PROFILE))
    }
}

/// Reads the shares in the files of a run. Skips a missing or damaged file; its own reader reports it.
fn shares(run: &Path) -> BTreeMap<String, f64> {
    let profile: Option<Profile> = read_optional(&run.join(name::PROFILE)).ok().flatten();
    let load: Option<Outcome> = read_optional(&run.join(name::LOAD)).ok().flatten();
    let classes = load.map(|load| load.classes).unwrap_or_default();
    let count = |class: &ClassOutcome| class.ok.saturating_add(class.failed) as f64;
    let all = classes.iter().map(count).sum::<f64>().max(1.0);
    let mut shares: BTreeMap<String, f64> =
        classes.iter().map(|class| (format!("requests {}", class.class), count(class) / all)).collect();
    let mut add = |view: &str, rows: &[Row]| {
        shares.extend(rows.iter().map(|row| (format!("{view} {}", row.name), row.share.share)));
    };
    if let Some(Profile { contexts, categories, .. }) = &profile {
        add("context", contexts);
        add("category", categories);
    }
    shares
}

#[derive(Deserialize)]
struct Form {
    form: u32,
}

/// Path of a block's file.
pub(crate) fn block_path(dir: &Path, block: u32) -> PathBuf {
    dir.join(name::BLOCKS).join(format!("{block}.json"))
}

/// Reads a file of an archive.
///
/// # Errors
/// If it is missing or malformed. The message has its name, line and column.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = fs::read(path).map_err(Failure::io(format_args!("read {}", path.display())))?;
    serde_json::from_slice(&text).map_err(|error| {
        Failure::failed(format!(
            "cannot read {}: {error}; the file is damaged, or was written by another version of ammeter",
            path.display()
        ))
    })
}

/// As [`read`]; `None` if the file does not exist.
fn read_optional<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    if path.exists() { read(path).map(Some) } else { Ok(None) }
}

/// Writes a file of an archive atomically.
///
/// # Errors
/// If it cannot be written, for example because the disk is full.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_vec_pretty(value)
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
    text.push(b'\n');
    write_bytes(path, &text)
}

/// As [`write()`], for raw bytes.
///
/// # Errors
/// Those of [`write()`].
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let beside = path.with_extension("new");
    fs::write(&beside, bytes)
        .and_then(|()| File::open(&beside)?.sync_all())
        .and_then(|()| fs::rename(&beside, path))
        .map_err(Failure::io(format_args!("write {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ammeter_monitor::profile::Share;
    use ammeter_monitor::source::Disk;
    use ammeter_monitor::{Listener, Tick};

    #[test]
    fn archives_differing_only_in_text_are_comparable() {
        let made = crate::report::tests::archive(Path::new("dir"), 2).resolved;
        let check = |change: &dyn Fn(&mut Resolved), expected: bool| {
            let mut other = made.clone();
            change(&mut other);
            assert_eq!(made.measures_as(&other), expected, "{other:?}");
        };
        check(&|_| {}, true);
        check(&|other| other.title = "another".to_owned(), true);
        check(&|other| other.mean_load_s = Some([1.0, 0.2]), true);
        check(&|other| other.claims.clear(), true);
        check(&|other| other.figures.truncate(1), true);
        check(&|other| other.arms[0].settings += "title = \"another\"\n", true);
        check(&|other| other.arms[0].settings += "seed = 3\n", false);
        check(&|other| other.duration_s = 9.0, false);
        check(&|other| other.steps.truncate(1), false);
        check(&|other| other.quick = true, false);
    }

    #[test]
    fn claim_hash_follows_definition_and_settings_but_not_wording() {
        let mut made = crate::report::tests::archive(Path::new("dir"), 2).resolved;
        made.arms[0].settings = "title = \"a\"\nseed = 1\n[load]\nrate = [1, 2]\n[server]\nlog = false\n".to_owned();
        let claim = crate::report::tests::claim_on_rate(None, Some(0.98));
        // Pinned: an archive keeps these for years.
        let hash = made.claim_hash(&claim);
        assert_eq!(hash, "d1fbd3e543f7");
        let check = |is_same: bool, resolved: &dyn Fn(&mut Resolved), change: &dyn Fn(&mut Claim)| {
            let (mut other, mut changed) = (made.clone(), claim.clone());
            resolved(&mut other);
            change(&mut changed);
            assert_eq!(other.claim_hash(&changed) == hash, is_same, "{changed:?}");
        };
        check(true, &|_| {}, &|claim| claim.says = "Another sentence".to_owned());
        check(true, &|_| {}, &|claim| claim.paper = None);
        check(true, &|_| {}, &|claim| claim.no_longer = "Disks are faster".to_owned());
        let reordered = "[server]\nlog = false\n[load]\nrate = [1, 2]\n";
        check(true, &|resolved| resolved.arms[0].settings = reordered.to_owned(), &|_| {});
        check(true, &|resolved| resolved.repetitions = 8, &|_| {});
        // The baseline's level may be named or left out.
        check(true, &|_| {}, &|claim| claim.against.iter_mut().for_each(|term| term.levels.clear()));
        check(false, &|_| {}, &|claim| claim.below = Some(0.99));
        check(false, &|_| {}, &|claim| (claim.above, claim.below) = (claim.below, None));
        check(false, &|_| {}, &|claim| claim.of.metric = "p50".to_owned());
        check(false, &|_| {}, &|claim| claim.of.at = At::Peak);
        check(false, &|_| {}, &|claim| claim.check = vec![claim.clone()]);
        check(false, &|_| {}, &|claim| claim.needs = Some(Needs { hosts: 2, ..Needs::default() }));
        check(false, &|resolved| resolved.arms[0].settings += "workers = 2\n", &|_| {});
    }

    #[test]
    fn archive_of_other_format_version_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name::RESOLVED), r#"{ "form": 1, "name": "old" }"#).unwrap();
        let why = Archive::open(folder.path()).unwrap_err().to_string();
        assert!(why.contains("format version 1") && why.contains("reads version 4"), "{why}");
    }

    #[test]
    fn profile_shares_and_load_parts_are_figures() {
        let folder = tempfile::tempdir().unwrap();
        let (profile, load) = (folder.path().join(name::PROFILE), folder.path().join(name::LOAD));
        let row = |name: &str, share: f64| Row {
            name: name.to_owned(),
            share: Share { share, ..Share::default() },
            ..Row::default()
        };
        let categories =
            vec![row("user", 0.15), row("crypto", 0.05), row("timers", 0.4), row("high-level file system", 0.1)];
        let measured = Profile { contexts: vec![row("accept4", 0.05)], categories, ..Profile::default() };
        write(&profile, &measured).unwrap();
        let mut outcome = Outcome::default();
        for (name, ok) in [("class0", 30), ("class1", 60)] {
            let mut class = ClassOutcome::default();
            (class.class, class.ok, class.failed) = (name.to_owned(), ok, 5);
            outcome.classes.push(class);
        }
        write(&load, &outcome).unwrap();
        let check = |name: &str, expected: Option<f64>| {
            let summary = Summary { shares: shares(folder.path()), ..Summary::default() };
            let found = summary.metric(name).map(|value| (value * 1e6).round() / 1e6);
            assert_eq!(found, expected, "{name}");
        };
        check("category:timers", Some(40.0));
        check("category:timers+high-level file system", Some(50.0));
        check("category:crypto", Some(5.0));
        // Relative to the rest, without user code.
        check("kernel:timers", Some(50.0));
        check("context:accept4", Some(5.0));
        check("context:never seen", Some(0.0));
        check("requests:class0", Some(35.0));
        check("moon:class0", None);
        fs::write(&profile, "{").unwrap();
        check("category:timers", None);
        check("requests:class1", Some(65.0));
        fs::remove_file(&load).unwrap();
        check("requests:class1", None);
        assert_eq!(Summary::described("requests:a+b").unwrap(), ("%", Cow::Borrowed("a and b, of all requests")));
        assert!(Summary::described("requests:").is_none() && Summary::described("rates").is_none());
    }

    #[test]
    fn unevenness_is_relative_deviation_over_whole_seconds() {
        let check = |counts: &[u64], expected: Option<f64>| {
            let second =
                |(at, ok): (usize, &u64)| Second { at_s: at as f64, length_s: 1.0, ok: *ok, ..Second::default() };
            let mut series: Vec<Second> = counts.iter().enumerate().map(second).collect();
            // The drain, and a second that was cut.
            series.push(Second { at_s: counts.len() as f64, length_s: 0.5, ok: 999, ..Second::default() });
            series.push(Second { at_s: counts.len() as f64 + 0.5, length_s: 1.0, ok: 999, ..Second::default() });
            let mut outcome = Outcome::default();
            (outcome.series, outcome.seconds) = (series, counts.len() as f64 + 0.5);
            assert_eq!(unevenness(&outcome), expected, "{counts:?}");
        };
        check(&[100, 100, 100], Some(0.0));
        check(&[50, 100, 150], Some(0.5));
        check(&[0, 0, 0], None);
        check(&[100, 100], None);
    }

    /// Every monitor column that a metric reads exists in the monitor under that name.
    #[test]
    fn monitor_columns_are_metrics() {
        let mut seen = Tick { disks: vec![Disk::default()], listeners: vec![Listener::default()], ..Tick::default() };
        (seen.tcp.retransmits, seen.tcp.listen_drops, seen.listeners[0].drops) = (Some(3.0), Some(5.0), Some(7.0));
        seen.disks[0] = Disk { reads: 1.0, writes: 2.0, read: 1048576.0, ..Disk::default() };
        let mut summary = Summary::default();
        seen.each_figure(|name, value| summary.monitor.extend(value.map(|value| (name.to_string(), value))));
        let metrics = ["tcp_retransmits_per_s", "listen-drops", "disk-read", "disk-transfers", "tcp_time_wait"];
        let values = |summary: &Summary| metrics.map(|name| summary.metric(name));
        assert_eq!(values(&summary), [Some(3.0), Some(7.0), Some(1.0), Some(3.0), None]);
        summary.network.is_private = true;
        assert_eq!(summary.metric("listen-drops"), Some(5.0));
        assert_eq!(Summary::described(metrics[0]).unwrap(), ("1/s", Cow::Borrowed("segments retransmitted")));
    }
}
