//! The experiments, a file each: which servers are compared (arms), under which loads (points), and what is looked at.
//!
//! They are plain data; `bench/mod.rs` carries them out. The first arm of each is what the others are compared with.

mod alignment;
mod content;
mod flash_breakdown;
mod flash_data_set;
mod flash_single_file;
mod hu_figure_12;
mod residency;

use super::files::{FileSpec, of_size};
use super::load::{Load, Targets};
use super::report::Metric;

/// An experiment.
pub(super) struct Exhibit {
    /// What it is called on the command line and in the folder of results.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// What the paper did, and what is different here.
    pub(super) story: &'static str,
    pub(super) files: Vec<FileSpec>,
    /// Of all arms, in TOML, each key with its table before it: `log.hostnames = true`.
    pub(super) config: &'static str,
    pub(super) arms: Vec<Arm>,
    pub(super) points: Vec<Point>,
    pub(super) machine: Option<SmallMachine>,
    /// The first is the one whose ratios are told.
    pub(super) metrics: &'static [Metric],
    pub(super) shape: Shape,
    pub(super) rounds: usize,
}

/// A server that is compared with others.
#[derive(Clone, Debug)]
pub(super) struct Arm {
    pub(super) name: String,
    /// Flags of `amped serve`.
    pub(super) flags: Vec<String>,
    /// More of the configuration, as in [`Exhibit::config`]: for what has no flag.
    pub(super) config: &'static str,
}

/// A load under which all arms are measured.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// Settings of one group are points of one line; empty where there is one group.
    pub(super) group: &'static str,
    /// What makes it different from its neighbours in the group.
    pub(super) label: String,
    /// Where it stands in a plot.
    pub(super) x: f64,
    pub(super) load: Load,
    /// Asked for once before the measuring, in this order; empty where the target is one file.
    pub(super) warm: Vec<String>,
}

/// A machine that is smaller than ours, made by a control group.
#[derive(Clone, Copy, Debug)]
pub(super) struct SmallMachine {
    /// Bytes of memory for the server and the page cache of its files.
    pub(super) memory: u64,
    /// Disks: one is that of the site, more are folders of it (`disks`).
    pub(super) disks: usize,
    /// What each disk reads in a second, in bytes.
    pub(super) disk: u64,
}

/// How it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A bar for each arm, which are steps of one way: each is compared with the one before it as well.
    Steps,
    /// A line for each arm.
    Lines { x_title: &'static str, logarithmic: bool },
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// For results.
    Full,
    /// Each arm once and few points: that everything works.
    Quick,
    /// That the instrument works, in seconds.
    Smoke,
}

impl Scale {
    fn of<T: Clone>(self, full: &[T], quick: &[T]) -> Vec<T> {
        match self {
            Scale::Full => full.to_vec(),
            Scale::Quick => quick.to_vec(),
            Scale::Smoke => quick[..1].to_vec(),
        }
    }

    /// 9 is the least number whose interval is not at the mercy of one outlier: from the 2nd to the 8th value, 96 %.
    fn rounds(self, full: usize) -> usize {
        if self == Scale::Full { full } else { 1 }
    }
}

/// The rounds of an exhibit, unless it says otherwise.
const ROUNDS: usize = 9;

/// Connections of wrk: enough to keep a server busy, and fewer than a pool of 64 has members, each of which takes one.
const CONNECTIONS: usize = 48;

/// All exhibits, in the order in which they are carried out.
pub(super) fn all(scale: Scale, seed: u64) -> Vec<Exhibit> {
    vec![
        hu_figure_12::exhibit(scale, seed),
        flash_breakdown::exhibit(scale),
        flash_single_file::exhibit(scale),
        flash_data_set::exhibit(scale, seed),
        flash_data_set::on_sixteen_disks(scale, seed),
        alignment::exhibit(scale),
        residency::exhibit(scale),
        content::exhibit(scale),
    ]
}

impl Arm {
    fn new(name: impl Into<String>, flags: &[&str]) -> Arm {
        Arm { name: name.into(), flags: flags.iter().map(|flag| (*flag).to_owned()).collect(), config: "" }
    }

    /// The four architectures, AMPED first; and MP with a cache that its processes share, which is Hu, Nanda and Yang's.
    fn architectures() -> Vec<Arm> {
        let mut arms = ["amped", "sped", "mt", "mp"].map(|name| Arm::new(name, &["--architecture", name])).to_vec();
        let shared = Arm::new("mp, shared cache", &["--architecture", "mp"]);
        arms.push(Arm { config: "cache.shared = true\n", ..shared });
        arms
    }
}

impl Point {
    /// One cached file for a second, asked for on connections that persist, or on a new one each time.
    fn one_file(group: &'static str, bytes: u64, fresh: bool) -> Point {
        let targets = Targets::One(format!("/{}", of_size(bytes).name), bytes);
        let load = Load { targets, connections: CONNECTIONS, fresh, seconds: 1, hot: None };
        Point { group, label: size(bytes), x: bytes as f64 / 1024.0, load, warm: Vec::new() }
    }

    /// What a sample of it is called.
    pub(super) fn key(&self) -> String {
        format!("{} {}", self.group, self.label).trim_start().to_owned()
    }
}

/// `512 B`, `8 KiB`, `1 MiB`.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn exhibits_are_sound() {
        for scale in [Scale::Full, Scale::Quick, Scale::Smoke] {
            let exhibits = all(scale, 1);
            assert_eq!(exhibits.iter().map(|e| e.name).collect::<BTreeSet<_>>().len(), exhibits.len());
            for Exhibit { name, files, arms, points, .. } in exhibits {
                assert!(arms.len() >= 2 && !points.is_empty(), "{name}");
                assert_eq!(arms.iter().map(|arm| &arm.name).collect::<BTreeSet<_>>().len(), arms.len(), "{name}");
                assert_eq!(points.iter().map(Point::key).collect::<BTreeSet<_>>().len(), points.len(), "{name}");
                let there: BTreeSet<String> = files.iter().map(|file| format!("/{}", file.name)).collect();
                for Point { load, warm, .. } in points {
                    let asked = match load.targets {
                        Targets::One(path, _) => vec![path],
                        Targets::List(_, paths) => paths,
                    };
                    let lost = asked.iter().chain(&warm).chain(&load.hot).find(|path| !there.contains(*path));
                    assert_eq!(lost, None, "{name}: it is asked for, and there is no such file");
                }
            }
        }
    }
}
