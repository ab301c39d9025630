//! The archive of an experiment: one directory that holds all that is needed to draw its figures again years later.
//!
//! ```text
//! DIR/experiment.toml    the file as it was given
//! DIR/resolved.json      what it came to: arms, steps, rules, figures, programs with their hashes     Resolved
//! DIR/host.json          the machine and its kernel's settings                                        Host
//! DIR/plan.json          all runs, in the order in which they are made                                Plan
//! DIR/clients.json       what the clients can do, against a server that does nothing                  Clients
//! DIR/blocks/N.json      the machine at rest, before block N                                          Block
//! DIR/runs/ID/run.json   a run: what was asked, what came of it, what it is worth                     Run
//! DIR/runs/ID-2/...      another attempt at it, where the one before was invalid for no fault of the server; the last counts
//! DIR/runs/ID/hosts.json with several hosts: their clocks, and what each did                          Vec<HostRun>
//! DIR/runs/ID/...        load.json load.hlog monitor.zst profile.json server.conf server.log, and what the programs printed
//! ```
//!
//! A directory of a run is made under another name and gets its own when it is whole, so that who is killed loses the run under
//! way and nothing else. Nothing is changed afterwards: a report is a function of this directory.
//!
//! Times of day are seconds since 1970 (UTC); names of fields carry the unit. What is not known is absent (`None`), never 0.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ammeter_load::outcome::{ClassOutcome, Loop, Outcome};
use ammeter_load::tally::{Fault, Spread};
use ammeter_load::window::Window;
use ammeter_monitor::Replay;
use ammeter_monitor::profile::{Profile, Row};
use amped_measure::host::Machine;
use amped_measure::{Failure, Validity, Verdict};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The format version of the archives that this program writes and reads.
pub(crate) const FORM: u32 = 2;

/// The names of the files.
pub(crate) mod name {
    pub(crate) const EXPERIMENT: &str = "experiment.toml";
    pub(crate) const RESOLVED: &str = "resolved.json";
    pub(crate) const HOST: &str = "host.json";
    pub(crate) const PLAN: &str = "plan.json";
    pub(crate) const CLIENTS: &str = "clients.json";
    pub(crate) const BLOCKS: &str = "blocks";
    pub(crate) const RUNS: &str = "runs";
    /// Within a run's directory.
    pub(crate) const RUN: &str = "run.json";
    /// What each of several hosts did.
    pub(crate) const HOSTS: &str = "hosts.json";
    /// What `ammeter load --json` printed.
    pub(crate) const LOAD: &str = "load.json";
    /// Likewise of the load before, which is not counted.
    pub(crate) const WARM_UP: &str = "warm-up.json";
    /// Likewise of the clients beside the load.
    pub(crate) const BESIDE: &str = "beside.json";
    /// What `ammeter load --hlog` wrote.
    pub(crate) const HLOG: &str = "load.hlog";
    /// What `ammeter monitor --record` wrote.
    pub(crate) const MONITOR: &str = "monitor.zst";
    /// What `ammeter profile --json` printed, where a profile was asked for.
    pub(crate) const PROFILE: &str = "profile.json";
    pub(crate) const SERVER_CONFIG: &str = "server.conf";
    pub(crate) const SERVER_LOG: &str = "server.log";
    pub(crate) const REPORT: &str = "report.html";
}

/// What an experiment's file came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Resolved {
    /// [`FORM`].
    pub(crate) form: u32,
    /// The experiment's name, a word such as `arlitt-figure-5`.
    pub(crate) name: String,
    /// What it is about, in a line.
    pub(crate) title: String,
    /// What the paper says and found, in a few sentences; empty for an experiment of its own.
    pub(crate) about: String,
    /// Whether it is the short version.
    pub(crate) quick: bool,
    /// From which orders, arrivals and workloads are drawn.
    pub(crate) seed: u64,
    /// How often each point is measured: the number of blocks.
    pub(crate) repetitions: u32,
    /// How long load is measured in a run, in seconds.
    pub(crate) duration_s: f64,
    /// How long there is load before that, in seconds.
    pub(crate) warm_up_s: f64,
    /// How often the monitor looks, in milliseconds; 0: there is none.
    pub(crate) interval_ms: f64,
    /// Whether all servers of one load are alive at once and measured in turns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_interleaved: bool,
    /// Requests on a connection; 0: without end.
    pub(crate) requests_per_connection: u64,
    /// What is varied, in the order of the file.
    pub(crate) factors: Vec<Factor>,
    /// What is compared. The first is the baseline; one that is a repetition of the baseline says so.
    pub(crate) arms: Vec<Arm>,
    /// The ladder of load, in rising order.
    pub(crate) steps: Vec<Step>,
    /// When a run counts as valid.
    pub(crate) rules: Rules,
    /// What is to be drawn; never empty.
    pub(crate) figures: Vec<Figure>,
    /// What a paper found, or its user expects, to be held against what is found here.
    pub(crate) claims: Vec<Claim>,
    /// The hosts, where it is several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hosts: Option<Hosts>,
    /// The programs that took part, by their names: `ammeter`, and the subjects'.
    pub(crate) programs: BTreeMap<String, Program>,
    /// When it was begun.
    pub(crate) began_s: f64,
}

impl Resolved {
    /// Whether the other measures the same: all is alike but title, description, labels, figures, claims, start time and
    /// programs.
    pub(crate) fn measures_as(&self, other: &Resolved) -> bool {
        let unlabelled = |arm: &Arm| Arm { label: String::new(), ..arm.clone() };
        let measured = |resolved: &Resolved| Resolved {
            name: String::new(),
            title: String::new(),
            about: String::new(),
            arms: resolved.arms.iter().map(unlabelled).collect(),
            figures: Vec::new(),
            claims: Vec::new(),
            programs: BTreeMap::new(),
            began_s: 0.0,
            ..resolved.clone()
        };
        let settings = |resolved: &Resolved| {
            let arms = resolved.arms.iter().map(|arm| arm.settings.parse::<toml::Table>().map(without_words));
            arms.collect::<Result<Vec<_>, _>>()
        };
        let (mut one, mut two) = (measured(self), measured(other));
        // A settings text holds the title too.
        let alike = settings(&one).is_ok() && settings(&one) == settings(&two);
        if alike {
            [&mut one, &mut two]
                .into_iter()
                .flat_map(|resolved| &mut resolved.arms)
                .for_each(|arm| arm.settings.clear());
        }
        one == two
    }

    /// Labels each arm by its subject and levels, the baseline as well: a reader must not look up which server it was.
    /// Archives of older programs are labelled anew.
    pub(crate) fn label_arms(&mut self) {
        let Resolved { factors, arms, .. } = self;
        for arm in arms {
            arm.label = label(factors, arm);
        }
    }
}

/// The factor whose levels are the subjects.
pub(crate) const SUBJECT: &str = "subject";

/// The name of an arm: every level of up to two factors; of more, the subject and the levels that are not the baseline's.
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

/// The settings of an arm without what says nothing of what is measured; how often has a field of its own.
pub(crate) fn without_words(mut settings: toml::Table) -> toml::Table {
    ["title", "about", "claim", "figure", "exhibits", "repetitions"]
        .into_iter()
        .for_each(|key| drop(settings.remove(key)));
    settings
}

/// The hosts of an experiment, each as the user's ssh knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hosts {
    /// Where the server runs.
    pub(crate) server: String,
    /// Where load is made: a slice of it on each.
    pub(crate) clients: Vec<String>,
    /// Under which address clients reach the server; `None`: the one by which ssh does.
    pub(crate) address: Option<IpAddr>,
    /// The ssh program and its flags, a word each.
    pub(crate) ssh: Vec<String>,
}

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// What it says of its version, the first line of it; empty if it says nothing.
    pub(crate) version: String,
    /// SHA-256 of the file, in hexadecimal digits; empty if it could not be had.
    pub(crate) sha256: String,
}

/// Something that is varied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Factor {
    /// Its name.
    pub(crate) name: String,
    /// The labels of its levels; the first is that of the baseline.
    pub(crate) levels: Vec<String>,
}

/// A combination of levels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Arm {
    /// A short word that is in the ids of runs, such as `a0`.
    pub(crate) id: String,
    /// As it is shown, such as `log on`.
    pub(crate) label: String,
    /// The level's label of each factor.
    pub(crate) levels: BTreeMap<String, String>,
    /// Whether it is the baseline once more, for the noise between what is the same (A/A).
    pub(crate) is_again: bool,
    /// The subject's name.
    pub(crate) subject: String,
    /// The base configuration with the levels of this arm in it, as TOML: what is done again years later.
    pub(crate) settings: String,
}

/// How much load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    /// An open loop: connections to begin a second.
    Rate(f64),
    /// A closed loop: clients that each wait for their reply.
    Clients(u32),
}

impl Step {
    /// Where it stands on the axis.
    pub(crate) fn value(self) -> f64 {
        match self {
            Step::Rate(rate) => rate,
            Step::Clients(clients) => f64::from(clients),
        }
    }

    /// What the axis is called.
    pub(crate) fn axis(self) -> &'static str {
        match self {
            Step::Rate(_) => "rate",
            Step::Clients(_) => "clients",
        }
    }
}

/// When a run is valid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rules {
    /// The share of the machine's CPU time that others may use in a run.
    pub(crate) others_max: f64,
    /// The share of the machine's CPU time that may be used while nothing is asked of it.
    pub(crate) idle_max: f64,
    /// How far the rate may drift over a run, as a share of it, when the drift is more than chance.
    pub(crate) drift_max: f64,
    /// How far counts of client, server and network may differ, as a share.
    pub(crate) counts_max: f64,
    /// How far Little's law may be missed, as a share.
    pub(crate) little_max: f64,
}

impl Rules {
    /// What holds where an experiment says nothing else.
    pub(crate) const USUAL: Rules = Rules {
        others_max: amped_measure::others::MAX,
        idle_max: 0.1,
        drift_max: 0.1,
        counts_max: 0.01,
        little_max: 0.05,
    };
}

/// A figure to draw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// What it is called, such as `Figure 5(a)`.
    pub(crate) title: String,
    /// `rate` or `clients` (the step), or the name of a factor, whose levels are the values.
    pub(crate) x: String,
    /// What is drawn: names of [`Summary::metric`]. With several there is one curve for each in each arm.
    pub(crate) y: Vec<String>,
    /// Where x is a factor: of the steps, which one counts.
    pub(crate) at: At,
    /// Whether the axes are logarithmic.
    pub(crate) log_x: bool,
    /// See there.
    pub(crate) log_y: bool,
    /// What the paper drew.
    pub(crate) paper: Vec<PaperCurve>,
}

/// A curve of a paper, as far as its text prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PaperCurve {
    /// What it is called.
    pub(crate) name: String,
    /// Points: x and y, in the units of the figure. Of a factor whose levels are words x is the level's number, from 0.
    pub(crate) points: Vec<[f64; 2]>,
}

/// Which step of an arm's ladder speaks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum At {
    /// The one at which the metric is largest.
    #[default]
    Peak,
    /// The lowest.
    First,
    /// The highest.
    Last,
    /// The one with this value.
    Step(f64),
}

/// What a paper says, as a figure that can be measured again, and the bound within which it still holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// What it says, and where.
    pub(crate) says: String,
    /// What is measured.
    pub(crate) of: Term,
    /// What it is divided by, within a block; `None`: nothing, the figure itself is meant.
    pub(crate) against: Option<Term>,
    /// It holds where the figure, or the ratio, is above this.
    pub(crate) above: Option<f64>,
    /// And below this.
    pub(crate) below: Option<f64>,
    /// The paper's own figure or ratio, where it prints one.
    pub(crate) paper: Option<f64>,
    /// Manipulation checks: conditions that show that what the claim is about happened, such as that packets were lost. The
    /// claim is judged only where all of them hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) acted: Vec<Claim>,
}

/// A figure of one arm at one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Term {
    /// Its name, one of those that [`Summary::metric`] knows.
    pub(crate) metric: String,
    /// The arm: factor and label. Factors that are not named are at their baseline.
    pub(crate) levels: BTreeMap<String, String>,
    /// At which step.
    pub(crate) at: At,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Host {
    /// Processor, cores, kernel, congestion control.
    pub(crate) machine: Machine,
    /// Memory, in bytes.
    pub(crate) memory_bytes: u64,
    /// Settings of the kernel that matter to servers, by their names in `/proc/sys` (`net.core.somaxconn`), and others:
    /// `clocksource`, `mitigations`, `loopback.mtu`.
    pub(crate) kernel: BTreeMap<String, String>,
    /// Load averages of 1, 5 and 15 minutes when it was begun.
    pub(crate) load_average: String,
    /// How client and server were kept apart, in words: cores, namespace, group.
    pub(crate) test_bed: Vec<String>,
    /// The clients, by their names, where they are other machines.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) clients: BTreeMap<String, Host>,
}

/// All runs, in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The runs.
    pub(crate) runs: Vec<Planned>,
    /// How long all of them are expected to take, in seconds.
    pub(crate) expected_s: f64,
}

/// A run that is to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// Its name, `BLOCK-ARM-LOAD`, such as `1-a0-500`.
    pub(crate) id: String,
    /// The block, from 1: each has all points, in an order of its own.
    pub(crate) block: u32,
    /// The arm's id.
    pub(crate) arm: String,
    /// The load.
    pub(crate) step: Step,
    /// What its arrivals and its workload are drawn from.
    pub(crate) seed: u64,
}

impl Planned {
    /// An attempt at it, from 1. The first has its name, and those after it a number behind that; all have the same arrivals.
    pub(crate) fn attempt(&self, number: usize) -> Planned {
        match number {
            0 | 1 => self.clone(),
            _ => Planned { id: format!("{}-{number}", self.id), ..self.clone() },
        }
    }

    /// Whether both are attempts at the same.
    pub(crate) fn is_same(&self, other: &Planned) -> bool {
        (self.block, &self.arm, self.step) == (other.block, &other.arm, other.step)
    }
}

/// What the clients did against a server that does nothing (Arlitt and Williamson, 4.4.2).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Clients {
    /// At each step, and at one of 1.5 times the highest.
    pub(crate) steps: Vec<ClientStep>,
    /// Why there are none, if there are none.
    pub(crate) skipped: Option<String>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClientStep {
    /// The load.
    pub(crate) step: Step,
    /// Connections begun a second.
    pub(crate) offered_rate: f64,
    /// Right replies a second.
    pub(crate) rate: f64,
    /// How late 1 % of connections or more began, in milliseconds.
    pub(crate) lateness_p99_ms: f64,
    /// From established to the last byte, in milliseconds, in the mean: what the clients take for themselves, since such a server
    /// takes nothing.
    pub(crate) own_ms: f64,
    /// Whether the schedule was kept.
    pub(crate) is_kept: bool,
    /// Why not.
    pub(crate) why: Vec<String>,
}

impl ClientStep {
    /// What the clients did at this step, against a server that does nothing.
    pub(crate) fn measured(step: Step, outcome: &Outcome) -> ClientStep {
        let mut why = outcome.verdict.evidence.clone();
        let (ok, failed) = (outcome.ok, outcome.failed());
        let is_answered = failed.saturating_mul(100) <= ok;
        if !is_answered {
            why.push(format!("{failed} of {} requests failed", ok + failed));
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

    /// One at which nothing came of it.
    pub(crate) fn of(step: Step) -> ClientStep {
        let (offered_rate, rate, lateness_p99_ms, own_ms) = (0.0, 0.0, 0.0, 0.0);
        ClientStep { step, offered_rate, rate, lateness_p99_ms, own_ms, is_kept: false, why: Vec::new() }
    }
}

/// The machine at rest before a block (Arlitt and Williamson, 4.4.1).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Block {
    /// Its number, from 1.
    pub(crate) block: u32,
    /// When it was begun.
    pub(crate) began_s: f64,
    /// How long was looked, in seconds.
    pub(crate) looked_s: f64,
    /// The share of all CPU time that was used, by anybody.
    pub(crate) busy: f64,
    /// The share that a hypervisor took.
    pub(crate) stolen: f64,
    /// Packets received a second, all interfaces.
    pub(crate) packets_per_s: f64,
    /// Bytes a second from and to disks.
    pub(crate) disk_bytes_per_s: f64,
    /// Programs that used the most CPU time: name, and cores' worth.
    pub(crate) busiest: Vec<(String, f64)>,
    /// Whether that is within the rules.
    pub(crate) is_clean: bool,
    /// With several hosts, the share that was used on each: the other figures are those of the busiest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) hosts: BTreeMap<String, f64>,
}

/// How far a run can be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RunStatus {
    /// Nothing speaks against it.
    #[default]
    Valid,
    /// A rate of it is a lower bound ("at least"): the client reached its own end first. Drawn open, never dropped.
    Censored,
    /// It says nothing of the server. Shown, and not counted.
    Invalid,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// [`FORM`].
    pub(crate) form: u32,
    /// What was planned.
    #[serde(rename = "planned")]
    pub(crate) plan: Planned,
    /// When the server was started.
    pub(crate) began_s: f64,
    /// When the measured load began: what the monitor recorded before is start and warm-up.
    pub(crate) load_began_s: f64,
    /// When the measured load had ended.
    pub(crate) load_ended_s: f64,
    /// When all was over.
    pub(crate) ended_s: f64,
    /// What it is worth.
    pub(crate) status: RunStatus,
    /// Why it is no better; empty for a valid one.
    pub(crate) why: Vec<String>,
    /// Each check, whether it held or not.
    pub(crate) checks: Vec<Check>,
    /// What came of it; absent if there was no load, as the server did not start or ended.
    pub(crate) summary: Option<Summary>,
}

impl Run {
    /// One that began now and has come to nothing yet.
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

/// How far a clock is ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Offset {
    /// The host's clock less this machine's, in seconds.
    pub(crate) offset_s: f64,
    /// The true value is no farther away than this.
    pub(crate) bound_s: f64,
}

impl std::fmt::Display for Offset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.3} ms, to within {:.3} ms", self.offset_s * 1e3, self.bound_s * 1e3)
    }
}

/// What a host did in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostRun {
    /// As the user's ssh knows it.
    pub(crate) host: String,
    /// What it was for: `server`, or `load 1/2`.
    pub(crate) role: String,
    /// How far its clock was ahead of that of the machine that had it all done, whose clock the archive's times are by. Only what
    /// the monitor recorded is by the host's own.
    pub(crate) clock: Offset,
    /// The share of its CPU time that was used while load was measured.
    pub(crate) busy: f64,
    /// The share that others used than the load; `None` where it is not known, and of the server's host, of which the run tells.
    pub(crate) others: Option<f64>,
    /// Of a client, what its slice came to.
    pub(crate) load: Option<SliceRun>,
}

/// What a slice came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SliceRun {
    /// Connections begun a second.
    pub(crate) offered_rate: f64,
    /// Right replies a second.
    pub(crate) rate: f64,
    /// How late 1 % of its connections or more began, in milliseconds.
    pub(crate) lateness_p99_ms: f64,
    /// What its generator says of itself.
    pub(crate) verdict: Verdict,
}

/// One check of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Check {
    /// What is checked, one of `clients`, `client`, `idle`, `others`, `stationary`, `little`, `counts`, `bytes`, `path`, `server`,
    /// and with several hosts `clocks`; of a run that could not be made `server`, `client` or `hosts`.
    pub(crate) name: String,
    /// Whether it held; `None`: it could not be made, and `says` why.
    pub(crate) holds: Option<bool>,
    /// The figures that were compared, in words.
    pub(crate) says: String,
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// What was offered and completed within the measured window, and what was left behind.
    pub(crate) window: Window,
    /// The length of the window, in seconds.
    pub(crate) seconds: f64,
    /// Connections that were to begin a second; `None` in a closed loop.
    pub(crate) asked_rate: Option<f64>,
    /// Connections begun a second.
    pub(crate) offered_rate: f64,
    /// Connections established a second.
    pub(crate) established_rate: f64,
    /// Requests sent a second.
    pub(crate) request_rate: f64,
    /// Right replies, also those of the drain.
    pub(crate) ok: u64,
    /// Connections and requests that came to nothing.
    pub(crate) failed: u64,
    /// The same by kind, as `ammeter load` names them.
    pub(crate) failures: BTreeMap<String, u64>,
    /// Bytes received by the clients, heads and all.
    pub(crate) received_bytes: u64,
    /// Last byte of right replies since the planned instant, in milliseconds.
    pub(crate) latency: Spread,
    /// Connection established, since the planned instant, in milliseconds.
    pub(crate) connected: Spread,
    /// SYN sent, since the planned instant, in milliseconds.
    pub(crate) lateness: Spread,
    /// What clients beside the load had, where there were some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<Beside>,
    /// Connections held open beside the load, each of which asked once.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) parked: u64,
    /// CPU time of the clients, in seconds, without what they spent looking at the clock.
    pub(crate) client_cpu_s: f64,
    /// What the server used.
    pub(crate) server: ServerUse,
    /// What the machine did.
    pub(crate) host: HostUse,
    /// What its kernel counted in the server's network namespace.
    pub(crate) network: NetworkUse,
    /// What the monitor saw while load was measured, by the names of its columns: rates are means, the rest is as it was at the end.
    pub(crate) monitor: BTreeMap<String, f64>,
    /// Bytes of all files that could be asked for, where they are a set.
    pub(crate) set_bytes: Option<u64>,
    /// Parts of wholes: where the server's CPU time went, by [`name::PROFILE`] (`category NAME` and `context NAME`, of its
    /// samples), and what was asked for, by [`name::LOAD`] (`asked CLASS`, of all requests that were answered or failed). They are
    /// read with these files, and stand in no other.
    #[serde(skip)]
    pub(crate) shares: BTreeMap<String, f64>,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

/// What clients had that asked for one small file beside the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// Right replies.
    pub(crate) ok: u64,
    /// Of them in a second.
    pub(crate) rate: f64,
    /// Heads and all.
    pub(crate) received_bytes: u64,
    /// How long they took, in milliseconds.
    pub(crate) latency: Spread,
}

/// What a server used while load was measured, with all its processes, also those that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerUse {
    /// CPU time, in seconds.
    pub(crate) cpu_s: Option<f64>,
    /// Of it in user code.
    pub(crate) user_s: Option<f64>,
    /// Of it in the kernel.
    pub(crate) system_s: Option<f64>,
    /// The most processes that it had at once.
    pub(crate) processes_max: Option<u32>,
    /// The most threads.
    pub(crate) threads_max: Option<u32>,
    /// The most memory, in bytes: of the group, page cache included; without one, resident memory.
    pub(crate) memory_max_bytes: Option<u64>,
    /// The longest queue of connections that wait to be accepted.
    pub(crate) listen_depth_max: Option<u64>,
    /// Replies that it counted itself.
    pub(crate) replies: Option<u64>,
    /// Bytes that it counted as sent.
    pub(crate) sent_bytes: Option<u64>,
    /// What a request took in the server by its own clock, the mean of those that it timed: to read and to understand it, in
    /// milliseconds.
    pub(crate) parsing_ms: Option<f64>,
    /// Likewise to find the file and to send it.
    pub(crate) processing_ms: Option<f64>,
    /// Likewise to log it.
    pub(crate) logging_ms: Option<f64>,
    /// From its start to its first answer, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start_ms: Option<f64>,
    /// Its memory before there was load, in bytes, resident.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rest_bytes: Option<u64>,
    /// The most resident memory while there was load, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resident_max_bytes: Option<u64>,
}

/// What the machine did while load was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostUse {
    /// The share of all CPU time that was used.
    pub(crate) busy: f64,
    /// The share that others used than server, clients and instruments.
    pub(crate) others: Option<f64>,
    /// The share that a hypervisor took.
    pub(crate) stolen: f64,
}

/// What the kernel counted in the server's network namespace while load was measured. Over loopback both ends are in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NetworkUse {
    /// Whether nobody else was in it, or it is that of a host of its own: then counts must agree.
    pub(crate) is_private: bool,
    /// Connections that the server's side took.
    pub(crate) passive_opens: Option<u64>,
    /// Segments sent.
    pub(crate) segments_out: Option<u64>,
    /// Bytes that left by its devices, with the heads of IP and TCP (over loopback without those of Ethernet).
    pub(crate) out_bytes: Option<u64>,
    /// Connections that were established at the server's port, the mean of all counts.
    pub(crate) established: Option<f64>,
}

/// A figure of a run: name, unit, what it is, and how it is made.
type Metric = (&'static str, &'static str, &'static str, fn(&Summary) -> Option<f64>);

const MIB: f64 = 1024.0 * 1024.0;

/// `None` where nothing was timed.
fn known(spread: &Spread) -> Option<&Spread> {
    (spread.count > 0).then_some(spread)
}

impl Summary {
    /// The clients' figures of a run; those of server, host and network are still missing.
    pub(crate) fn of(outcome: &Outcome) -> Summary {
        // These failed before a request could be sent.
        const BEFORE: [Fault; 5] = [Fault::Abandoned, Fault::Refused, Fault::Tls, Fault::Local, Fault::Unsent];
        let failed_before: u64 = BEFORE.iter().map(|fault| outcome.failed_by(*fault)).sum();
        let seconds = outcome.window.seconds.max(1e-9);
        let Outcome { establisher, handler, .. } = outcome;
        Summary {
            window: outcome.window,
            seconds: outcome.window.seconds,
            asked_rate: match outcome.asked {
                Loop::Open { rate, .. } => Some(rate),
                Loop::Closed { .. } => None,
            },
            offered_rate: outcome.window.offered_rate,
            established_rate: outcome.established as f64 / seconds,
            request_rate: (outcome.ok + outcome.failed() - failed_before) as f64 / seconds,
            ok: outcome.ok,
            failed: outcome.failed(),
            failures: outcome.failures.iter().map(|(fault, count)| (fault.name().to_owned(), *count)).collect(),
            received_bytes: outcome.received_bytes,
            latency: outcome.latency,
            connected: outcome.connected,
            lateness: outcome.lateness,
            client_cpu_s: establisher.cpu_s + handler.cpu_s - establisher.spun_s - handler.spun_s,
            ..Summary::default()
        }
    }

    /// What can be drawn: name, unit, what it is, and how it is made of a run, where it is known.
    pub(crate) const METRICS: &'static [Metric] = &[
        ("asked-rate", "1/s", "connections to begin", |run| run.asked_rate),
        ("offered-rate", "1/s", "connections begun", |run| Some(run.offered_rate)),
        ("established-rate", "1/s", "connections established", |run| Some(run.established_rate)),
        ("request-rate", "1/s", "requests sent", |run| Some(run.request_rate)),
        ("rate", "1/s", "responses", |run| Some(run.window.completed_rate)),
        ("completed-share", "%", "responses completed, of what was offered", |run| {
            Some(100.0 * run.window.completed_share?)
        }),
        ("backlog", "", "connections that were not over at the window's end", |run| Some(run.window.backlog as f64)),
        ("backlog-growth", "1/s", "growth of the backlog through the window", |run| run.window.backlog_growth_rate),
        ("drain", "s", "time to drain the backlog", |run| Some(run.window.drain_s)),
        ("failed-rate", "1/s", "failed", |run| Some(run.window.rate(run.window.failed))),
        ("failed-share", "", "failed, of all", |run| {
            Some(run.failed as f64 / (run.ok as f64 + run.failed as f64).max(1.0))
        }),
        ("throughput", "Mbit/s", "received by clients", |run| Some(run.window.received_mb_per_s() * 8.0)),
        ("mean", "ms", "latency, mean", |run| Some(known(&run.latency)?.mean_ms)),
        ("p50", "ms", "latency, median", |run| Some(known(&run.latency)?.p50_ms)),
        ("p90", "ms", "latency, 90 %", |run| Some(known(&run.latency)?.p90_ms)),
        ("p95", "ms", "latency, 95 %", |run| Some(known(&run.latency)?.p95_ms)),
        ("p99", "ms", "latency, 99 %", |run| Some(known(&run.latency)?.p99_ms)),
        ("p999", "ms", "latency, 99.9 %", |run| Some(known(&run.latency)?.p999_ms)),
        ("connect-p50", "ms", "time to connect, median", |run| Some(known(&run.connected)?.p50_ms)),
        ("connect-mean", "ms", "time to connect, mean", |run| Some(known(&run.connected)?.mean_ms)),
        ("lateness-p99", "ms", "lateness of the clients, 99 %", |run| Some(known(&run.lateness)?.p99_ms)),
        ("server-cpu", "cores", "CPU of the server", |run| Some(run.server.cpu_s? / run.counted_s())),
        ("server-user", "cores", "CPU of the server in user code", |run| Some(run.server.user_s? / run.counted_s())),
        ("server-system", "cores", "CPU of the server in the kernel", |run| {
            Some(run.server.system_s? / run.counted_s())
        }),
        ("user-share", "%", "CPU time of the server that is in user code", |run| {
            Some(100.0 * run.server.user_s? / run.server.cpu_s.filter(|cpu_s| *cpu_s > 0.0)?)
        }),
        ("cpu-per-reply", "us", "CPU of the server for a response", |run| {
            let replies = run.ok + run.beside.map_or(0, |beside| beside.ok);
            (replies > 0).then_some(run.server.cpu_s? * 1e6 / replies as f64)
        }),
        ("beside-rate", "1/s", "responses to clients beside the load", |run| Some(run.beside?.rate)),
        ("beside-p50", "ms", "latency of clients beside the load, median", |run| Some(run.beside?.latency.p50_ms)),
        ("beside-p99", "ms", "latency of clients beside the load, 99 %", |run| Some(run.beside?.latency.p99_ms)),
        ("client-cpu", "cores", "CPU of the clients", |run| Some(run.client_cpu_s / run.counted_s())),
        ("host-cpu", "%", "CPU of the machine", |run| Some(run.host.busy * 100.0)),
        ("processes", "", "processes of the server, at most", |run| run.server.processes_max.map(f64::from)),
        ("threads", "", "threads of the server, at most", |run| run.server.threads_max.map(f64::from)),
        ("memory", "MiB", "memory of the server, at most", |run| Some(run.server.memory_max_bytes? as f64 / MIB)),
        ("start", "ms", "time from the start of the server to its first answer", |run| run.server.start_ms),
        ("memory-at-rest", "MiB", "memory of the server before the load, resident", |run| {
            Some(run.server.rest_bytes? as f64 / MIB)
        }),
        ("memory-per-parked", "B", "memory that a parked connection takes", |run| {
            let grown = run.server.resident_max_bytes?.saturating_sub(run.server.rest_bytes?);
            (run.parked > 0).then(|| grown as f64 / run.parked as f64)
        }),
        ("listen-depth", "", "connections in the listen queue, at most", |run| {
            Some(run.server.listen_depth_max? as f64)
        }),
        ("listen-drops", "1/s", "connections dropped by the listen queue", |run| {
            // A listener with TCP_DEFER_ACCEPT, as Apache's, counts every connection among its drops: the bare ACK is one. What a
            // namespace of its own counts is exact.
            run.seen(if run.network.is_private { "tcp_listen_drops_per_s" } else { "listen_queue_drops_per_s" })
        }),
        ("established", "", "connections established, mean", |run| run.network.established),
        ("disk-read", "MiB/s", "read from disks", |run| Some(run.seen("disk_read_bytes_per_s")? / MIB)),
        ("disk-transfers", "1/s", "reads and writes of disks", |run| {
            Some(run.seen("disk_reads_per_s")? + run.seen("disk_writes_per_s")?)
        }),
        ("parsing", "ms", "in the server, parsing", |run| run.server.parsing_ms),
        ("processing", "ms", "in the server, processing", |run| run.server.processing_ms),
        ("logging", "ms", "in the server, logging", |run| run.server.logging_ms),
        ("in-server", "ms", "in the server, all of it", |run| {
            Some(run.server.parsing_ms? + run.server.processing_ms? + run.server.logging_ms?)
        }),
        ("set-size", "MiB", "files that are asked for", |run| Some(run.set_bytes? as f64 / MIB)),
    ];

    /// Wholes whose parts are metrics as well, such as `category:timers`, or `category:timers+locking` for two of them together:
    /// the word before the colon, what the whole is, and whether it is a profile's.
    pub(crate) const SHARES: &'static [(&'static str, &'static str, bool)] = &[
        ("category", "the server's CPU time", true),
        ("context", "the server's CPU time", true),
        ("kernel", "the server's time in the kernel", true),
        ("asked", "all requests", false),
    ];

    /// Unit and meaning of a metric of [`METRICS`](Summary::METRICS) or [`SHARES`](Summary::SHARES), or of a column of the monitor;
    /// `None` if it is none.
    pub(crate) fn described(name: &str) -> Option<(&'static str, Cow<'static, str>)> {
        if let Some((_, unit, meaning, _)) = Summary::METRICS.iter().find(|(known, ..)| *known == name) {
            return Some((unit, Cow::Borrowed(meaning)));
        }
        if let Some(figure) = ammeter_monitor::Name::of(name) {
            return Some((figure.unit(), Cow::Owned(figure.words())));
        }
        let (whole, parts) = name.split_once(':').filter(|(_, parts)| !parts.is_empty())?;
        let (_, whole, _) = Summary::SHARES.iter().find(|(known, ..)| *known == whole)?;
        // What tells them apart comes first: a legend has no room for more.
        Some(("%", Cow::Owned(format!("{}, of {whole}", parts.replace('+', " and ")))))
    }

    /// Whether a metric is a part of a profile.
    pub(crate) fn is_of_profile(name: &str) -> bool {
        let whole = name.split_once(':').map(|(whole, _)| whole);
        Summary::SHARES.iter().any(|(known, _, is_of_profile)| Some(*known) == whole && *is_of_profile)
    }

    /// The value of what is [`described`](Summary::described), in its unit; `None` where it is not known, or no metric.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        match Summary::METRICS.iter().find(|(known, ..)| *known == name) {
            Some((.., of)) => of(self),
            None => self.seen(name).or_else(|| self.share(name)),
        }
    }

    /// What the monitor saw, by the name of its column.
    fn seen(&self, name: &str) -> Option<f64> {
        self.monitor.get(name).copied()
    }

    /// For how long server, machine and network counted: until the drain was over, in seconds.
    fn counted_s(&self) -> f64 {
        (self.seconds + self.window.drain_s.clamp(0.0, 1e6)).max(1e-9)
    }

    /// The value of a metric of [`SHARES`](Summary::SHARES), in percent; `None` where its whole is not known. A part that was
    /// never seen is 0.
    fn share(&self, name: &str) -> Option<f64> {
        let (whole, parts) = name.split_once(':')?;
        let view = if whole == "kernel" { "category" } else { whole };
        let is_view = |key: &str| key.strip_prefix(view).is_some_and(|rest| rest.starts_with(' '));
        if !self.shares.keys().any(|key| is_view(key)) {
            return None;
        }
        let of = |part: &str| self.shares.get(&format!("{view} {part}")).copied().unwrap_or(0.0);
        let sum: f64 = parts.split('+').map(of).sum();
        let all = if whole == "kernel" { (1.0 - of("user")).max(1e-9) } else { 1.0 };
        Some(100.0 * sum / all)
    }
}

/// An archive that is there.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// What was to be done.
    pub(crate) resolved: Resolved,
    /// On what.
    pub(crate) host: Host,
    /// In which order.
    pub(crate) plan: Plan,
    /// What the clients can do; `None` until that is known.
    pub(crate) clients: Option<Clients>,
    /// The machine at rest, for each block that was begun.
    pub(crate) blocks: Vec<Block>,
    /// The runs that are there, in the order of the plan, with all attempts at each in theirs.
    pub(crate) runs: Vec<Run>,
}

impl Archive {
    /// Reads one.
    ///
    /// # Errors
    /// When there is none, one of another form, or one that was damaged.
    pub(crate) fn open(dir: &Path) -> Result<Archive, Failure> {
        if !dir.join(name::RESOLVED).exists() {
            return Err(Failure::usage(format!(
                "{} is no archive of an experiment: it has no {}; make one with: ammeter run EXPERIMENT --out {0}",
                dir.display(),
                name::RESOLVED
            )));
        }
        let form: Form = read(&dir.join(name::RESOLVED))?;
        if form.form != FORM {
            return Err(Failure::failed(format!(
                "{} has format version {}, and this ammeter reads version {FORM}; read it with the ammeter that wrote it, or run the \
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
        })
    }

    /// The attempts that count: the last of each run. Those before it are invalid, and are drawn and told as such.
    pub(crate) fn last_attempts(&self) -> impl Iterator<Item = &Run> {
        let next = |at: usize| self.runs.get(at + 1);
        let all = self.runs.iter().enumerate();
        all.filter(move |(at, run)| next(*at).is_none_or(|next| !next.plan.is_same(&run.plan))).map(|(_, run)| run)
    }

    /// A file of a run, by its [`name`]; it need not be there.
    pub(crate) fn file(&self, run: &str, name: &str) -> PathBuf {
        self.dir.join(name::RUNS).join(run).join(name)
    }

    /// What each host did in a run; empty where it was all on one machine.
    ///
    /// # Errors
    /// When the file is damaged.
    pub(crate) fn hosts(&self, run: &str) -> Result<Vec<HostRun>, Failure> {
        read_optional(&self.file(run, name::HOSTS)).map(Option::unwrap_or_default)
    }

    /// The arm of a run.
    pub(crate) fn arm(&self, id: &str) -> Option<&Arm> {
        self.resolved.arms.iter().find(|arm| arm.id == id)
    }

    /// The clients' view of a run.
    ///
    /// # Errors
    /// When the file is not there or damaged.
    pub(crate) fn load(&self, run: &str) -> Result<Outcome, Failure> {
        read(&self.file(run, name::LOAD))
    }

    /// The server's and the machine's view of a run: samples, of which `ammeter_monitor::Tick::between` makes rates.
    ///
    /// # Errors
    /// When the file is not there or damaged.
    pub(crate) fn samples(&self, run: &str) -> Result<Replay<'static>, Failure> {
        ammeter_monitor::replay(&self.file(run, name::MONITOR))
    }

    /// Where CPU time went in a run, as `ammeter profile --json` tells it; `None` where no profile was asked for.
    ///
    /// # Errors
    /// When the file is damaged.
    pub(crate) fn profile(&self, run: &str) -> Result<Option<Profile>, Failure> {
        read_optional(&self.file(run, name::PROFILE))
    }
}

/// The parts of wholes in the files of a run; nothing of a file that is missing or damaged, which its own reader reports.
fn shares(run: &Path) -> BTreeMap<String, f64> {
    let profile: Option<Profile> = read_optional(&run.join(name::PROFILE)).ok().flatten();
    let load: Option<Outcome> = read_optional(&run.join(name::LOAD)).ok().flatten();
    let classes = load.map(|load| load.classes).unwrap_or_default();
    let asked = |class: &ClassOutcome| class.ok.saturating_add(class.failed) as f64;
    let all = classes.iter().map(asked).sum::<f64>().max(1.0);
    let mut shares: BTreeMap<String, f64> =
        classes.iter().map(|class| (format!("asked {}", class.class), asked(class) / all)).collect();
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

/// Where a block is described.
pub(crate) fn block_path(dir: &Path, block: u32) -> PathBuf {
    dir.join(name::BLOCKS).join(format!("{block}.json"))
}

/// Reads a file of an archive.
///
/// # Errors
/// When it is not there, or not as it was written: with its name, line and column.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = fs::read(path).map_err(Failure::io(format_args!("read {}", path.display())))?;
    serde_json::from_slice(&text).map_err(|error| {
        Failure::failed(format!(
            "cannot read {}: {error}; the file is damaged, or another version of ammeter wrote it",
            path.display()
        ))
    })
}

/// As [`read`]; `None` where there is no such file.
fn read_optional<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    if path.exists() { read(path).map(Some) } else { Ok(None) }
}

/// Writes a file of an archive: whole, or not at all.
///
/// # Errors
/// When the disk is full, for one.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_vec_pretty(value)
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
    text.push(b'\n');
    write_bytes(path, &text)
}

/// As [`write`], of bytes.
///
/// # Errors
/// As [`write`].
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
        check(&|other| other.claims.clear(), true);
        check(&|other| other.figures.truncate(1), true);
        check(&|other| other.arms[0].settings += "title = \"another\"\n", true);
        check(&|other| other.arms[0].settings += "seed = 3\n", false);
        check(&|other| other.duration_s = 9.0, false);
        check(&|other| other.steps.truncate(1), false);
        check(&|other| other.quick = true, false);
    }

    #[test]
    fn archive_of_other_format_version_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name::RESOLVED), r#"{ "form": 1, "name": "old" }"#).unwrap();
        let why = Archive::open(folder.path()).unwrap_err().to_string();
        assert!(why.contains("format version 1") && why.contains("reads version 2"), "{why}");
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
        let categories = vec![row("user", 0.2), row("timers", 0.4), row("high-level file system", 0.1)];
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
        // Of what is left when user code is taken out.
        check("kernel:timers", Some(50.0));
        check("context:accept4", Some(5.0));
        check("context:never seen", Some(0.0));
        check("asked:class0", Some(35.0));
        check("moon:class0", None);
        fs::write(&profile, "{").unwrap();
        check("category:timers", None);
        check("asked:class1", Some(65.0));
        fs::remove_file(&load).unwrap();
        check("asked:class1", None);
        assert_eq!(Summary::described("asked:a+b").unwrap(), ("%", Cow::Borrowed("a and b, of all requests")));
        assert!(Summary::described("asked:").is_none() && Summary::described("rates").is_none());
    }

    /// What is read by the name of a column of the monitor has that name there.
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
