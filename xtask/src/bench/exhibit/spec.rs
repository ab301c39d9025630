//! What an experiment is: servers, loads, and how much of them is measured.

use super::super::files::{FileSpec, of_size};
use super::super::load::{Load, Targets};
use super::super::sample::Metric;

/// An experiment.
pub(in super::super) struct Exhibit {
    /// What it is called on the command line and in the folder of results.
    pub(in super::super) name: &'static str,
    pub(in super::super) title: &'static str,
    /// What the paper did, and what is different here.
    pub(in super::super) story: &'static str,
    pub(in super::super) files: Vec<FileSpec>,
    /// Of all arms, in TOML, each key with its table before it: `log.hostnames = true`.
    pub(in super::super) config: &'static str,
    pub(in super::super) arms: Vec<Arm>,
    pub(in super::super) points: Vec<Point>,
    pub(in super::super) machine: Option<SmallMachine>,
    /// The first is the one whose ratios are told.
    pub(in super::super) metrics: &'static [Metric],
    pub(in super::super) shape: Shape,
    pub(in super::super) rounds: usize,
}

/// A server that is compared with others.
#[derive(Clone, Debug)]
pub(in super::super) struct Arm {
    pub(in super::super) name: String,
    /// Flags of `amped serve`.
    pub(in super::super) flags: Vec<String>,
    /// More of the configuration, as in [`Exhibit::config`]: for what has no flag.
    pub(in super::super) config: &'static str,
}

impl Arm {
    pub(super) fn new(name: impl Into<String>, flags: &[&str]) -> Arm {
        Arm { name: name.into(), flags: flags.iter().map(|flag| (*flag).to_owned()).collect(), config: "" }
    }

    /// The four architectures, AMPED first; and MP with a cache that its processes share, which is Hu, Nanda and Yang's.
    pub(super) fn architectures() -> Vec<Arm> {
        let mut arms = ["amped", "sped", "mt", "mp"].map(|name| Arm::new(name, &["--architecture", name])).to_vec();
        let shared = Arm::new("mp, shared cache", &["--architecture", "mp"]);
        arms.push(Arm { config: "cache.shared = true\n", ..shared });
        arms
    }
}

/// A load under which all arms are measured.
#[derive(Clone, Debug)]
pub(in super::super) struct Point {
    /// Settings of one group are points of one line; empty where there is one group.
    pub(in super::super) group: &'static str,
    /// What makes it different from its neighbours in the group.
    pub(in super::super) label: String,
    /// Where it stands in a plot.
    pub(in super::super) x: f64,
    pub(in super::super) load: Load,
    /// Asked for once before the measuring, in this order; empty where the target is one file.
    pub(in super::super) warm: Vec<String>,
}

impl Point {
    /// One cached file for a second, asked for on connections that persist, or on a new one each time.
    pub(super) fn one_file(group: &'static str, bytes: u64, fresh: bool) -> Point {
        let targets = Targets::One(format!("/{}", of_size(bytes).name), bytes);
        let load = Load { targets, connections: CONNECTIONS, fresh, seconds: 1, hot: None };
        Point { group, label: size(bytes), x: bytes as f64 / 1024.0, load, warm: Vec::new() }
    }

    /// What a sample of it is called.
    pub(in super::super) fn key(&self) -> String {
        format!("{} {}", self.group, self.label).trim_start().to_owned()
    }
}

/// A machine that is smaller than ours, made by a control group.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct SmallMachine {
    /// Bytes of memory for the server and the page cache of its files.
    pub(in super::super) memory: u64,
    /// Disks: one is that of the site, more are folders of it (`disks`).
    pub(in super::super) disks: usize,
    /// What each disk reads in a second, in bytes.
    pub(in super::super) disk: u64,
}

/// How it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Shape {
    /// A bar for each arm, which are steps of one way: each is compared with the one before it as well.
    Steps,
    /// A line for each arm.
    Lines { x_title: &'static str, logarithmic: bool },
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Scale {
    /// For results.
    Full,
    /// Each arm once and few points: that everything works.
    Quick,
    /// That the instrument works, in seconds.
    Smoke,
}

impl Scale {
    pub(super) fn of<T: Clone>(self, full: &[T], quick: &[T]) -> Vec<T> {
        match self {
            Scale::Full => full.to_vec(),
            Scale::Quick => quick.to_vec(),
            Scale::Smoke => quick[..1].to_vec(),
        }
    }

    /// 9 is the least number whose interval is not at the mercy of one outlier: from the 2nd to the 8th value, 96 %.
    pub(super) fn rounds(self, full: usize) -> usize {
        if self == Scale::Full { full } else { 1 }
    }
}

/// The rounds of an exhibit, unless it says otherwise.
pub(super) const ROUNDS: usize = 9;

/// Connections of wrk: enough to keep a server busy, and fewer than a pool of 64 has members, each of which takes one.
pub(super) const CONNECTIONS: usize = 48;

/// `512 B`, `8 KiB`, `1 MiB`.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
