//! Reports of synthetic archives, also as Chromium renders them.

use std::collections::BTreeMap;

use ammeter_load::outcome::Outcome;
use ammeter_load::tally::{Distribution, Spread};
use ammeter_load::window::{Pace, Second, Window};
use ammeter_monitor::profile::{Profile, Row, Share};
use ammeter_monitor::{Head, Listener, Recorder, Sample};
use amped_measure::host::Machine;
use proptest::prelude::*;
use serde_json::Value;

use super::ClaimStatus;
use super::*;
use crate::archive::{
    self, At, Block, Claim, ClientStep, Clients, Factor, Figure, Host, HostUse, PaperCurve, Plan, Planned, Program,
    Resolved, ServerUse, Step, Summary as RunSummary, Term,
};
use crate::page::chromium::{self, Seen};

/// An experiment with two arms and the repeated baseline, at three rates in `blocks` blocks.
/// The server sustains up to 1100/s, and needs a tenth more CPU with the log on. At the highest
/// rate the clients reach their limit, and one run is invalid.
pub(crate) fn archive(dir: &Path, blocks: u32) -> Archive {
    let word = str::to_owned;
    let arm = |id: &str, label: &str, level: &str| Arm {
        steps: Vec::new(),
        id: word(id),
        label: word(label),
        levels: BTreeMap::from([(word("log"), word(level))]),
        is_again: id == "aa",
        subject: word("nginx"),
        settings: format!("workers = 1\nlog = {:?}\n", level),
    };
    let steps = [500.0, 1000.0, 1500.0].map(Step::Rate).to_vec();
    let resolved = Resolved {
        form: archive::FORM,
        name: word("logging"),
        title: word("What logging costs"),
        about: word("Arlitt and Williamson, figure 5."),
        repetitions: blocks,
        duration_s: 5.0,
        warm_up_s: 1.0,
        interval_ms: 100.0,
        requests_per_connection: 1,
        factors: vec![Factor { name: word("log"), levels: vec![word("off"), word("on")] }],
        arms: vec![arm("a0", "log off", "off"), arm("a1", "log on", "on"), arm("aa", "log off, again", "off")],
        steps: steps.clone(),
        figures: vec![
            Figure {
                title: word("Rates"),
                x: word("rate"),
                y: ["offered-rate", "request-rate", "rate"].map(word).to_vec(),
                paper: vec![PaperCurve { name: word("Apache 1.3"), points: vec![[1000.0, 1000.0], [1500.0, 1250.0]] }],
                ..Figure::default()
            },
            Figure {
                title: word("Peak"),
                x: word("log"),
                y: vec![word("rate")],
                paper: vec![PaperCurve { name: word("Apache 1.3"), points: vec![[0.0, 5700.0], [1.0, 5200.0]] }],
                ..Figure::default()
            },
        ],
        claims: vec![Claim {
            says: word("Logging costs a tenth (5.1.2)."),
            of: Term {
                metric: word("cpu-per-reply"),
                levels: BTreeMap::from([(word("log"), word("on"))]),
                at: At::First,
            },
            against: Some(Term { metric: word("cpu-per-reply"), at: At::First, ..Term::default() }),
            above: Some(1.02),
            paper: Some(1.1),
            ..Claim::default()
        }],
        programs: BTreeMap::from([(word("nginx"), Program { version: word("nginx/1.22"), ..Program::default() })]),
        began_s: 1_795_000_000.0,
        ..Resolved::default()
    };
    let mut plan = Plan::default();
    for block in 1..=blocks {
        for arm in &resolved.arms {
            for step in &steps {
                let id = format!("{block}-{}-{}", arm.id, step.value());
                plan.runs.push(Planned { id, block, arm: arm.id.clone(), step: *step, seed: 1 });
            }
        }
    }
    let runs = plan.runs.iter().enumerate().map(|(at, planned)| run(at, planned)).collect();
    let step = |step: &Step| ClientStep {
        step: *step,
        offered_rate: step.value(),
        rate: step.value(),
        lateness_p99_ms: 0.1,
        own_ms: 0.0,
        is_kept: true,
        why: Vec::new(),
    };
    let block =
        |block| Block { block, busy: 0.01, busiest: vec![(word("sshd"), 0.01)], is_clean: true, ..Block::default() };
    Archive {
        dir: dir.to_owned(),
        packed: None,
        host: Host {
            machine: Machine { cpu: word("a processor"), cores: 2, ..Machine::default() },
            test_bed: vec![word("server on core 0")],
            ..Host::default()
        },
        plan,
        clients: Some(Clients { steps: steps.iter().map(step).collect(), skipped: None }),
        blocks: (1..=blocks).map(block).collect(),
        runs,
        resolved,
    }
}

/// Sets the completed responses per second of a synthetic run.
pub(crate) fn set_rate(run: &mut Run, rate: f64) {
    run.summary.as_mut().unwrap().window.completed_rate = rate;
}

/// A claim on the rate at the highest step, with a log over without.
pub(crate) fn claim_on_rate(above: Option<f64>, below: Option<f64>) -> Claim {
    let term = |level: &str| Term {
        metric: "rate".to_owned(),
        levels: BTreeMap::from([("log".to_owned(), level.to_owned())]),
        at: At::Last,
    };
    let says = "A log takes a tenth of the rate (5.1.2).".to_owned();
    Claim { says, of: term("on"), against: Some(term("off")), above, below, paper: Some(0.9), ..Claim::default() }
}

fn run(at: usize, planned: &Planned) -> Run {
    // Pseudo-random, and the same in every run.
    let noise = 1.0 + ((at * 7919) % 100) as f64 / 10_000.0;
    let target = planned.step.value();
    let rate = target.min(1100.0 * noise);
    let cpu_us = 400.0 * noise * if planned.arm == "a1" { 1.1 } else { 1.0 };
    let (ok, failed) = ((rate * 5.0) as u64, ((target - rate) * 5.0) as u64);
    let cpu_s = ok as f64 * cpu_us * 1e-6;
    let status = match planned.id.as_str() {
        "1-a1-1000" => RunStatus::Invalid,
        "1-a0-1500" => RunStatus::Censored,
        _ => RunStatus::Valid,
    };
    let ms = if target > 1100.0 { 80.0 } else { 1.0 };
    let latency = Spread {
        count: ok,
        mean_ms: ms,
        p50_ms: ms * noise,
        p90_ms: 2.0 * ms,
        p95_ms: 3.0 * ms,
        p99_ms: 4.0 * ms,
        p999_ms: 5.0 * ms,
        max_ms: 9.0 * ms,
    };
    let began_s = 1_795_000_000.0 + 10.0 * at as f64;
    Run {
        form: archive::FORM,
        plan: planned.clone(),
        began_s,
        load_began_s: began_s + 2.0,
        load_ended_s: began_s + 7.0,
        ended_s: began_s + 8.0,
        status,
        why: if status == RunStatus::Valid { Vec::new() } else { vec!["1 % of connections began late".to_owned()] },
        checks: vec![Check {
            name: "client".to_owned(),
            holds: Some(status == RunStatus::Valid),
            says: "3 ms late".to_owned(),
        }],
        summary: Some(RunSummary {
            seconds: 5.0,
            target_rate: Some(target),
            offered_rate: target,
            established_rate: rate,
            request_rate: rate,
            window: Window {
                seconds: 5.0,
                offered_rate: target,
                completed_rate: rate,
                completed_share: Some(rate / target),
                pace: if failed > 0 { Pace::Failed } else { Pace::Kept },
                ..Window::default()
            },
            ok,
            failed,
            failures: if failed > 0 { BTreeMap::from([("abandoned".to_owned(), failed)]) } else { BTreeMap::new() },
            received_bytes: ok * 1300,
            latency,
            client_cpu_s: cpu_s / 4.0,
            server: ServerUse {
                cpu_s: Some(cpu_s),
                user_s: Some(cpu_s * 0.3),
                system_s: Some(cpu_s * 0.7),
                ..ServerUse::default()
            },
            host: HostUse { busy: 0.5, others: Some(0.01), ..HostUse::default() },
            ..RunSummary::default()
        }),
    }
}

/// Writes an archive to disk, with the series of its runs.
pub(crate) fn store(archive: &Archive) {
    let dir = &archive.dir;
    for folder in [name::BLOCKS, name::RUNS] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    fs::write(dir.join(name::EXPERIMENT), "title = \"What logging costs\"\n").unwrap();
    archive::write(&dir.join(name::RESOLVED), &archive.resolved).unwrap();
    archive::write(&dir.join(name::HOST), &archive.host).unwrap();
    archive::write(&dir.join(name::PLAN), &archive.plan).unwrap();
    archive::write(&dir.join(name::CLIENTS), &archive.clients).unwrap();
    archive.blocks.iter().for_each(|block| archive::write(&archive::block_path(dir, block.block), block).unwrap());
    for run in &archive.runs {
        let folder = dir.join(name::RUNS).join(&run.plan.id);
        fs::create_dir_all(&folder).unwrap();
        archive::write(&folder.join(name::RUN), run).unwrap();
        archive::write(&folder.join(name::LOAD), &load(run)).unwrap();
        let mut recorder =
            Recorder::create(&folder.join(name::MONITOR), &Head { version: Head::VERSION, ..Head::default() }).unwrap();
        (0..70).for_each(|at| recorder.add(&sample(run, at)).unwrap());
        recorder.finish().unwrap();
        let row = |name: &str, share: f64| Row {
            name: name.to_owned(),
            share: Share { samples: 10, share, high: 1.0, ..Share::default() },
            ..Row::default()
        };
        let profile = Profile {
            contexts: vec![row("user", 0.3), row("writev", 0.5), row("softirq net_rx", 0.2)],
            categories: (0..10).map(|at| row(&format!("category {at}"), 0.1)).collect(),
            ..Profile::default()
        };
        archive::write(&folder.join(name::PROFILE), &profile).unwrap();
    }
}

fn load(run: &Run) -> Outcome {
    let summary = run.summary.as_ref().unwrap();
    let second = |at: u64| Second {
        at_s: at as f64,
        length_s: 1.0,
        started: summary.offered_rate as u64 + at,
        ok: summary.window.completed_rate as u64,
        failed: summary.failed / 5,
        p50_ms: 1.0 + at as f64,
        p90_ms: 2.0,
        p99_ms: 4.0,
        max_ms: 9.0,
        ..Second::default()
    };
    let mut outcome = Outcome::default();
    (outcome.began_s, outcome.series) = (run.load_began_s, (0..5).map(second).collect());
    outcome.distribution = Distribution { quantiles: vec![0.0], latency_ms: vec![1.0], ..Distribution::default() };
    outcome
}

fn sample(run: &Run, at: u64) -> Sample {
    let mut sample =
        Sample { at_us: at * 100_000, wall_ms: (run.began_s * 1e3) as u64 + at * 100, ..Sample::default() };
    let depth = if run.plan.step.value() > 1100.0 { 100 + at % 7 } else { at % 3 };
    let address = "0.0.0.0:80".to_owned();
    let drops = Some(3 * at);
    sample.listeners.push(Listener { address, inode: 1, depth, limit: 511, drops, ..Listener::default() });
    sample
}

#[test]
fn repeated_run_is_marked_and_last_attempt_counts() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = archive(folder.path(), 2);
    let at = archive.runs.iter().position(|run| run.plan.id == "1-a1-1000").unwrap();
    let (mut second, mut third) = (archive.runs[at].clone(), archive.runs[at].clone());
    (second.plan, third.plan) = (second.plan.attempt(2), third.plan.attempt(3));
    (third.status, third.why) = (RunStatus::Valid, Vec::new());
    set_rate(&mut third, 987.0);
    archive.runs.splice(at + 1..=at, [second, third]);
    store(&archive);
    let again = Archive::open(folder.path()).unwrap();
    let ids = |archive: &Archive| archive.runs.iter().map(|run| run.plan.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&again), ids(&archive), "attempts are read in their order");
    let rendered = report(&again);
    let Counts { planned, there, again, valid, censored, invalid } = rendered.summary.runs;
    assert_eq!((planned, there, again, valid, censored, invalid), (18, 18, 2, 17, 1, 0));
    for part in [
        "; 2 earlier attempts were invalid and repeated",
        "1-a1-1000: invalid, repeated: 1 % of connections began late",
        "1-a1-1000-2: invalid, repeated: ",
    ] {
        assert!(rendered.html.contains(part), "{part} is not in the page");
    }
    // The page draws each attempt over time and lists it among all runs.
    // Only the last one counts; the others are drawn crossed out.
    assert_eq!(data(&rendered.html)["runs"].as_array().unwrap().len(), 20);
    let (_, knee) = &rendered.figures[0];
    // Two points and the legend's.
    assert_eq!(knee.matches("class=\"bad\" d=").count(), 3, "{knee}");
    assert!(
        rendered.summary.against_baseline.iter().all(|one| one.left_out.iter().all(|line| !line.contains("a1-1000")))
    );
}

/// The data embedded in a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn report_is_deterministic_and_starts_with_verdict() {
    let folder = tempfile::tempdir().unwrap();
    store(&archive(folder.path(), 4));
    let open = || Archive::open(folder.path()).unwrap();
    let (one, other) = (report(&open()), report(&open()));
    assert!(one.html == other.html && one.figures == other.figures, "the same archive, another report");
    let ReportSummary { verdict, runs, claims, missing, .. } = &one.summary;
    assert!(verdict[0].starts_with("log off sustains 1000/s but not 1500/s; its highest rate is 11"), "{verdict:?}");
    assert_eq!(verdict.len(), 2, "undecided claims are not in the verdict: {verdict:?}");
    assert!(one.html.contains("Undecided: Logging costs a tenth (5.1.2) (1.1"));
    assert_eq!((runs.planned, runs.there, runs.valid, runs.censored, runs.invalid, runs.again), (36, 36, 34, 1, 1, 0));
    assert_eq!((claims[0].status, claims[0].blocks, claims[0].coverage), (ClaimStatus::Undecided, 4, 0.9375));
    assert!(missing.is_empty(), "{missing:?}");
    let place = |part: &str| one.html.find(part).unwrap_or_else(|| panic!("{part} is not in the page"));
    let order = [
        "log off sustains 1000/s",
        "<table class=\"overview\">",
        "<h2>Results by load",
        "<h2>Figures",
        "<h2>Claims",
        "<h3>Bottleneck",
        "<h3>Comparison",
        "Processor time",
        "Validity",
        "Each run over time",
        "Metrics by arm and step",
        "All runs",
        "<h3>Settings",
    ];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])));
    // The paper's values are named by the levels.
    place("Apache 1.3: 5700 at off, 5200 at on.");
    place("Apache 1.3: 1000 at 1000, 1250 at 1500.");
    // The page shows runs that are not valid: crossed out or open, and with the reason.
    for part in [
        "1-a1-1000: invalid: 1 % of connections began late",
        "1-a0-1500: at least",
        "class=\"bad\" d=",
        "class=\"open\"",
    ] {
        place(part);
    }
    // Clients, listen queue and processors of each run share one x axis.
    let data = data(&one.html);
    let runs = data["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 36);
    let labels: Vec<&str> = runs[0]["charts"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|chart| chart["series"].as_array().unwrap())
        .map(|series| series["label"].as_str().unwrap())
        .collect();
    for label in ["offered", "answered", "p99", "user", "waiting to be accepted", "dropped"] {
        assert!(labels.contains(&label), "{label} is not in {labels:?}");
    }
    let (x, range) = (&runs[0]["charts"][2]["x"], &runs[0]["range"]);
    assert_eq!((x[0].as_f64(), range[0].as_f64(), range[1].as_f64()), (Some(-1.95), Some(-1.95), Some(5.0)));
    let names: Vec<&str> = one.figures.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "rate",
            "p50",
            "p95",
            "p99",
            "failed-share",
            "cpu-per-reply",
            "rates-started-connections",
            "rates-requests-sent",
            "rates-responses",
            "peak",
            "cpu-time-of-the-machine",
            "cpu-time-of-the-server-by-context",
            "cpu-time-of-the-server-by-category",
        ]
    );
    // One legend serves all figures of the page; in a file, the figure names its curves itself.
    assert_eq!(one.html.matches("data-toggles=").count(), 2);
    assert!(!one.html.contains("baseline"), "an arm is identified by its name");
    assert!(one.figures.iter().all(|(_, svg)| svg.contains("<style>") && svg.contains("xmlns=")));
}

#[test]
fn missing_runs_are_named_and_rest_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    store(&archive(dir, 2));
    fs::remove_dir_all(dir.join("runs/2-a1-1500")).unwrap();
    fs::remove_file(dir.join(name::CLIENTS)).unwrap();
    fs::remove_file(dir.join("blocks/2.json")).unwrap();
    fs::remove_file(dir.join("runs/1-a0-500").join(name::MONITOR)).unwrap();
    fs::write(dir.join("runs/1-a0-1000").join(name::LOAD), "{").unwrap();
    fs::write(dir.join("runs/1-a1-500").join(name::PROFILE), "[").unwrap();
    let record = dir.join("runs/2-a0-500").join(name::MONITOR);
    let bytes = fs::read(&record).unwrap();
    fs::write(&record, &bytes[..bytes.len() / 2]).unwrap();
    let rendered = report(&Archive::open(dir).unwrap());
    let missing = rendered.summary.missing.join("\n");
    for part in [
        "1 of 18 runs are missing",
        "no clients.json",
        "for 1 of 2 blocks",
        "no monitor.zst of 1-a0-500",
        "1-a0-1000: ",
        "load.json: EOF while parsing",
        "1-a1-500: ",
        "2-a0-500/monitor.zst is truncated",
    ] {
        assert!(missing.contains(part), "{part} is not in {missing}");
        assert!(rendered.html.contains("Missing: "));
    }
    // An archive that holds nothing but the plan.
    fs::remove_dir_all(dir.join(name::RUNS)).unwrap();
    let rendered = report(&Archive::open(dir).unwrap());
    assert!(rendered.summary.missing[0].starts_with("18 of 18 runs are missing"), "{:?}", rendered.summary.missing);
    assert_eq!(rendered.summary.verdict[0], "No run is valid, so there is no result.");
    assert_eq!(rendered.summary.claims[0].why, "step 500/s of log on has no valid run");
}

#[test]
fn requested_rate_is_drawn_only_where_it_applies() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = archive(folder.path(), 4);
    let named = |title: &str, y: &str| Figure {
        title: title.to_owned(),
        y: vec![y.to_owned()],
        paper: Vec::new(),
        ..archive.resolved.figures[0].clone()
    };
    archive.resolved.figures = vec![named("Connections", "established-rate"), named("Disk", "disk-transfers")];
    let rendered = report(&archive);
    let has_line =
        |name: &str| rendered.figures.iter().find(|(found, _)| found == name).unwrap().1.contains(">as offered<");
    assert!(has_line("connections") && !has_line("disk"));
    assert!(
        rendered.html.contains("<h3>More figures") && !rendered.html.contains("<h2>Figures"),
        "no paper printed them"
    );
    assert!(!verdict::bears_all(&archive, "log off") && !verdict::bears_all(&archive, "no such arm"));
    archive.resolved.steps.pop();
    assert!(verdict::bears_all(&archive, "log off"));
}

#[test]
fn many_arms_name_baseline_and_best_in_one_table() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = archive(folder.path(), 4);
    let long = "a cache of names that is longer than its place on the axis";
    archive.resolved.factors[0].levels.extend([long.to_owned(), "third".to_owned()]);
    for (id, level, times) in [("a2", long, 0.9), ("a3", "third", 1.5)] {
        let like = archive.resolved.arms[1].clone();
        let levels = BTreeMap::from([("log".to_owned(), level.to_owned())]);
        archive.resolved.arms.push(Arm { id: id.to_owned(), label: format!("log {level}"), levels, ..like });
        let of_a1 = archive.runs.iter().filter(|run| run.plan.arm == "a1").cloned();
        let more = of_a1.map(|mut run| {
            run.plan.arm = id.to_owned();
            run.plan.id = run.plan.id.replace("a1", id);
            let rate = run.summary.as_ref().unwrap().window.completed_rate;
            set_rate(&mut run, rate * times);
            run
        });
        let more: Vec<Run> = more.collect();
        archive.runs.extend(more);
    }
    let rendered = report(&archive);
    let verdict = &rendered.summary.verdict;
    assert!(verdict.len() == 2 && verdict[0].starts_with("log off sustains"), "{verdict:?}");
    assert!(verdict[1].starts_with("Best of 4 arms: log third"), "{verdict:?}");
    assert_eq!(rendered.summary.against_baseline.len(), 3);
    assert_eq!(rendered.html.matches("Bold: a difference").count(), 1);
    // The level names do not overlap.
    let (_, peak) = rendered.figures.iter().find(|(name, _)| name == "peak").unwrap();
    assert!(peak.contains("rotate(-30") && peak.contains("a cache of names that i…"), "{peak}");
}

#[test]
fn arm_is_compared_with_first_subject_at_same_levels() {
    let arm = |id: &str, subject: &str, log: &str| Arm {
        id: id.to_owned(),
        levels: [("subject", subject), ("log", log)]
            .map(|(factor, level)| (factor.to_owned(), level.to_owned()))
            .into(),
        ..Arm::default()
    };
    let all =
        [arm("a0", "nginx", "off"), arm("a1", "amped", "off"), arm("a2", "nginx", "on"), arm("a3", "amped", "on")];
    let arms: Vec<&Arm> = all.iter().collect();
    for (at, expected) in [(1, "a0"), (2, "a0"), (3, "a2")] {
        assert_eq!(counterpart(&arms, arms[at]).id, expected);
    }
    // In a one-at-a-time design, the first subject may be missing at a level.
    assert_eq!(counterpart(&[&all[0], &all[3]], &all[3]).id, "a0");
}

#[test]
fn corrupt_archive_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let page = dir.join(name::REPORT);
    let fails = |part: &str| {
        let error = Archive::open(dir).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    fails("is not an archive of an experiment");
    store(&archive(dir, 1));
    let run = dir.join("runs/1-a0-500/run.json");
    let whole = fs::read_to_string(&run).unwrap();
    fs::write(&run, &whole[..whole.len() / 2]).unwrap();
    fails("run.json: EOF while parsing");
    fs::write(&run, whole).unwrap();
    let summary = write(&Archive::open(dir).unwrap(), &page, Some(&dir.join("figures"))).unwrap();
    assert!(summary.files.iter().all(|file| fs::metadata(file).unwrap().len() > 100), "{:?}", summary.files);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    /// Names from an archive appear as text in the page: no name creates an element or a script.
    #[test]
    fn names_are_escaped(
        word in "\\PC{0,20}",
        bad in prop::sample::select(vec!["<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "\"><svg onload=alert(1)>",
            "</title><b>", "<!--", "]]>", "' onclick='alert(1)", "\u{0}\u{1b}"]),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = archive(folder.path(), 1);
        let name = format!("{word}{bad}");
        let plain = report(&archive).html;
        let resolved = &mut archive.resolved;
        let texts = [&mut resolved.title, &mut resolved.about, &mut resolved.name, &mut archive.host.machine.cpu];
        texts.into_iter().for_each(|text| text.clone_from(&name));
        resolved.factors[0].levels[1].clone_from(&name);
        for arm in &mut resolved.arms {
            if arm.id == "a1" {
                arm.levels.insert("log".to_owned(), name.clone());
            }
            for text in [&mut arm.label, &mut arm.subject, &mut arm.settings] {
                text.clone_from(&name);
            }
        }
        for figure in &mut resolved.figures {
            figure.title.clone_from(&name);
            figure.paper.iter_mut().for_each(|curve| curve.name.clone_from(&name));
        }
        resolved.claims[0].says.clone_from(&name);
        resolved.programs.insert(name.clone(), Program { version: name.clone(), ..Program::default() });
        archive.host.kernel.insert(name.clone(), name.clone());
        archive.blocks[0].busiest[0].0.clone_from(&name);
        for run in &mut archive.runs {
            run.why = vec![name.clone()];
            run.checks[0].name.clone_from(&name);
            run.checks[0].says.clone_from(&name);
            run.summary.as_mut().unwrap().failures.insert(name.clone(), 1);
        }
        let rendered = report(&archive);
        for element in ["<script", "</script", "<img", "<b>", "<!--", "<title", "</title", "<svg"] {
            let (found, expected) = (rendered.html.matches(element).count(), plain.matches(element).count());
            // A run with a reason adds a paragraph, but none of these elements.
            prop_assert_eq!(found, expected, "{}", element);
        }
        for (file, svg) in &rendered.figures {
            prop_assert!(file.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') && !file.is_empty());
            prop_assert!(!svg.contains("<script") && !svg.contains("<img") && !svg.contains("<!--"), "{}", svg);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]
    /// A truncated file or a corrupt byte gives a report, or an error that names a file.
    #[test]
    fn corrupt_file_is_reported_or_harmless(file: prop::sample::Index, place: prop::sample::Index, byte: Option<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = archive(folder.path(), 1);
        archive.runs.truncate(2);
        archive.plan.runs.truncate(2);
        store(&archive);
        let mut files = Vec::new();
        let mut folders = vec![folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        let path = file.get(&files);
        let mut bytes = fs::read(path).unwrap();
        let at = place.index(bytes.len());
        match byte {
            Some(byte) => bytes[at] = byte,
            None => bytes.truncate(at),
        }
        fs::write(path, bytes).unwrap();
        match Archive::open(folder.path()) {
            Ok(archive) => prop_assert!(report(&archive).html.ends_with("</html>")),
            Err(error) => prop_assert!(error.to_string().contains(folder.path().to_str().unwrap()), "{}", error),
        }
    }
}

/// All locations in a document, as JSON pointers (RFC 6901).
fn places(value: &Value, at: &str, into: &mut Vec<String>) {
    into.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| places(value, &format!("{at}/{}", name.replace('/', "~1")), into));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(number, value)| places(value, &format!("{at}/{number}"), into));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    /// Arbitrary values in a few locations of an archive make it either
    /// unreadable or reportable, with finite coordinates in every figure.
    #[test]
    fn random_archive_values_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..4),
    ) {
        let odd = [
            json!(null), json!(0), json!(-1), json!(1e308), json!(-1e308), json!(5e-324), json!(u64::MAX), json!(i64::MIN), json!(true),
            json!(""), json!("aa"), json!("rate"), json!([]), json!({}), json!([[1e308, -1e308]]),
        ];
        let folder = tempfile::tempdir().unwrap();
        let Archive { resolved, host, plan, clients, blocks, runs, dir, packed } = archive(folder.path(), 1);
        let mut whole = json!({
            "resolved": resolved, "host": host, "plan": plan, "clients": clients, "blocks": blocks, "runs": runs,
        });
        for (place, value) in changes {
            let mut all = Vec::new();
            places(&whole, "", &mut all);
            if let Some(found) = whole.pointer_mut(&all[place.index(all.len())]) {
                found.clone_from(value.get(&odd));
            }
        }
        fn part<T: serde::de::DeserializeOwned>(whole: &Value, name: &str) -> Option<T> {
            serde_json::from_value(whole.get(name)?.clone()).ok()
        }
        let read = || Some(Archive {
            resolved: part(&whole, "resolved")?,
            host: part(&whole, "host")?,
            plan: part(&whole, "plan")?,
            clients: part(&whole, "clients")?,
            blocks: part(&whole, "blocks")?,
            runs: part(&whole, "runs")?,
            dir,
            packed,
        });
        if let Some(archive) = read() {
            let rendered = report(&archive);
            prop_assert!(rendered.html.ends_with("</html>"));
            for (name, svg) in &rendered.figures {
                let places = svg.split(['"', ' ']).filter(|word| word.starts_with("NaN") || word.ends_with("inf"));
                prop_assert_eq!(places.collect::<Vec<_>>(), Vec::<&str>::new(), "{}", name);
            }
        }
    }
}

#[test]
fn chromium_draws_every_plot_without_network() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    store(&archive(dir, 2));
    let rendered = report(&Archive::open(dir).unwrap());
    let runs = &data(&rendered.html)["runs"];
    let charts: usize = runs.as_array().unwrap().iter().map(|run| run["charts"].as_array().unwrap().len()).sum();
    assert_eq!(chromium::sound(&rendered.html, dir), Seen { plots: charts, figures: rendered.figures.len() });
    // The legend hides a curve in every figure over the load, and nowhere else.
    let click = "<script>addEventListener('load', () => {
        const button = document.querySelector('[data-toggles=\"1\"]');
        button.click();
        const all = [...document.querySelectorAll('[data-curve]')];
        const hidden = all.filter(curve => getComputedStyle(curve).display === 'none');
        const plots = document.querySelectorAll('.overlay svg').length;
        console.warn(hidden.length === plots && hidden.every(curve => curve.dataset.curve === '1') && button.getAttribute('aria-pressed'));
        button.click();
        console.warn(all.filter(curve => getComputedStyle(curve).display === 'none').length);
    });</script></body>";
    let (seen, _) = chromium::seen(&rendered.html.replacen("</body>", click, 1), dir, &[]);
    assert_eq!(seen["troubles"], json!(["warn: false", "warn: 0"]), "aria-pressed is false while it is hidden");
    // The harness detects failures: a page that has them.
    let wrong = "<script>undefined.x;</script><img src=\"http://127.0.0.1:9/\"><svg width=\"90\" height=\"60\"><text y=\"30\">one</text>\
                 <text y=\"30\" x=\"4\">other</text><text y=\"30\" x=\"80\">outside</text></svg></body>";
    let (seen, _) = chromium::seen(&rendered.html.replacen("</body>", wrong, 1), dir, &[]);
    let troubles = seen["troubles"].to_string();
    assert!(troubles.contains("error: ") && troubles.contains("policy: http://127.0.0.1:9"), "{troubles}");
    assert_eq!((&seen["overlapping"], &seen["outside"]), (&json!(["one / other"]), &json!(["outside"])));
}
