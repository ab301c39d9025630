//! Hu, Nanda and Yang, figure 12: optimisations of Apache, added one after the other, and after them ours.

use amped_measure::stats::Random;

use super::super::files::{specweb96, specweb96_targets};
use super::super::load::{Load, Targets};
use super::super::sample::Metric;
use super::spec::{Arm, CONNECTIONS, Exhibit, Point, ROUNDS, Scale, Shape};

/// A step: what it is called, and what it adds, by the name of the switch. Mapping is none, but a way to read files, which
/// the content cache replaces.
const STEPS: &[(&str, &str)] = &[
    ("nothing", ""),
    ("DNS cache", "dns-cache"),
    ("string caches", "string-caches"),
    (MAPPED, ""),
    ("file-state cache", "file-state-cache"),
    (CACHED, "content-cache"),
    ("URI cache", "uri-cache"),
    ("ready headers", "ready-headers"),
    // What follows is not in their figure.
    ("path cache", "path-cache"),
    ("header cache", "header-cache"),
    ("delayed log", "delayed-log"),
    ("sendfile", "sendfile"),
];

const MAPPED: &str = "files mapped";
const CACHED: &str = "content cache";

const STORY: &str = "\
Hu, Nanda and Yang added six optimisations to Apache 1.2 one after the other, and drew the SPECweb96 throughput of
each step: a cache of host names +14 %, of converted strings +4 %, files mapped rather than read +9 %, a cache of file
states +3 %, of the contents of small files +11 %, of URIs +10 %; together +61 %. They announced ready headers as the
next step.

Here the same order is walked by one server, from `--without all` on; ready headers and what Flash and later servers
added come after theirs, and at last the default, which does without the URI cache. They went on mapping large files
once small ones were cached; this server maps all or none, so from the content cache on large files are copied, until
sendfile is added. The files have the sizes and the frequencies of SPECweb96's classes (within a class every file is
as likely as another, which it is not there), all in memory. Each request is logged with the name of its client, which
`/etc/hosts` knows, so a look-up costs as little as it can. Connections persist, those of 1997 did not.";

pub(super) fn exhibit(scale: Scale, seed: u64) -> Exhibit {
    let files = specweb96(if scale == Scale::Full { 10 } else { 2 });
    let targets = specweb96_targets(&files, 20_000, &mut Random(seed));
    let load = Load {
        targets: Targets::List("specweb96".to_owned(), targets),
        connections: CONNECTIONS,
        fresh: false,
        seconds: 1,
        hot: None,
    };
    let warm = files.iter().map(|file| format!("/{}", file.name)).collect();
    Exhibit {
        name: "hu-figure-12",
        title: "Optimisations added one after the other",
        story: STORY,
        files,
        config: "log.access = 'access.log'\nlog.hostnames = true\n",
        arms: arms(),
        points: vec![Point { group: "", label: "SPECweb96".to_owned(), x: 0.0, load, warm }],
        machine: None,
        metrics: &[Metric::Cpu, Metric::Rate],
        shape: Shape::Steps,
        rounds: scale.rounds(ROUNDS),
    }
}

fn arms() -> Vec<Arm> {
    let step = |number: usize| {
        let added = |name: &str| STEPS[..=number].iter().any(|step| step.0 == name);
        let with: Vec<&str> = STEPS[..=number].iter().map(|step| step.1).filter(|name| !name.is_empty()).collect();
        let with = with.join(",");
        let mut flags = vec!["--without", "all"];
        if !with.is_empty() {
            flags.extend(["--with", &with]);
        }
        if added(MAPPED) && !added(CACHED) {
            flags.extend(["--content", "mmap"]);
        }
        let plus = if number == 0 { "" } else { "+ " };
        Arm::new(format!("{plus}{}", STEPS[number].0), &flags)
    };
    (0..STEPS.len()).map(step).chain([Arm::new("the default", &[])]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_what_those_before_it_had() {
        let arms = arms();
        let check = |at: usize, flags: &str| assert_eq!(arms[at].flags.join(" "), flags, "{}", arms[at].name);
        check(0, "--without all");
        check(2, "--without all --with dns-cache,string-caches");
        check(3, "--without all --with dns-cache,string-caches --content mmap");
        check(4, "--without all --with dns-cache,string-caches,file-state-cache --content mmap");
        assert!(arms[11].flags[3].ends_with("delayed-log,sendfile") && arms[11].flags.len() == 4);
        check(12, "");
    }
}
