//! `ammeter run`: an experiment from its file to its archive. It prints the plan first, with its duration; completed
//! runs are kept whatever happens, and the same command resumes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use ammeter_load::window::Pace;
use amped_measure::stats::Summary as Spread;
use amped_measure::{Failure, Validity, Verdict};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::archive::{self, Archive, Block, Clients, Planned, Resolved, Run, RunStatus, Step, block_path, name};
use crate::environment::{self, TestEnvironment};
use crate::experiment::{self, Experiment, Options, Settings};
use crate::hosts::Fleet;
use crate::report::{self, Judged};
use crate::{exhibits, plan, run as runs, runner, say, subject, terminal, validate};

/// The command-line flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Experiment file (TOML), or the name of a built-in experiment (see `ammeter list`)
    #[arg(verbatim_doc_comment)]
    experiment: String,
    /// Directory for the archive; an incomplete archive in it is resumed [default: the experiment's name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run the short version: fewer steps, repetitions and seconds
    #[arg(long)]
    quick: bool,
    /// Measure only these levels of the factors, such as servers by name; a factor without a named level keeps all
    #[arg(long, value_name = "LEVEL", value_delimiter = ',')]
    only: Vec<String>,
    /// Random seed of orders and arrivals [default: the file's, or 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Repeat invalid runs that are not the server's fault; earlier attempts stay in the archive
    #[arg(long)]
    retry: bool,
    /// Maximum wait before a block, and before runs are repeated, until the
    /// machine is quiet (idle-max); 0s: do not wait
    #[arg(long, value_name = "TIME", value_parser = ammeter_load::schedule::duration, default_value = "5m")]
    quiet_timeout: Duration,
    /// Print the plan with its duration, and do nothing
    #[arg(long)]
    plan: bool,
    /// Print the result of each point as JSON, on one line
    #[arg(long)]
    json: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter run arlitt-figure-5 --quick --out /tmp/figure-5      an exhibit of a paper; `ammeter list` has them all
  ammeter run mine.toml --plan                                 the runs and how long they take
  ammeter run server-speed --only 1k,new,10k --out /tmp/speed   some rows of an experiment, with all its servers

An experiment of your own, mine.toml (examples/experiment.toml in the sources has every key):
  title = \"Capacity of nginx, and the cost of its log\"
  [[subject]]
  kind = \"nginx\"                    # or amped, apache-event, apache-prefork, lighttpd, command
  [workload]
  file = \"1KiB\"                     # or set = \"specweb96\", set = \"webstone\", site = \"/srv/www\"
  [load]
  rate = \"1000..8000/1000\"          # connections per second; or clients = [1, 10, 50], a closed loop
  [[factor]]
  set = \"server.log\"                # a key of server, workload, load, path, limits, cores or monitor
  levels = [false, true]            # the first is the baseline

With [hosts], server = \"root@server\" and clients = [\"c1\", \"c2\"] in the file, the server runs on one host and load comes from the
others, over your own ssh, or what via = \"kubectl exec -i {host} --\" says; --plan shows which part runs where.

Each point is measured once in each of 3 blocks, in an order drawn from the seed, on a freshly started server. A run is valid,
invalid (with the reason), or censored: a lower bound, because the clients reached their own limit first. Ctrl-C keeps completed
runs, and the same command resumes. Before each block it waits until the machine is quiet (--quiet-timeout). A run that other
processes disturbed is repeated once at the end of its block; with --retry any invalid run is, and those of an archive that
exists are again, unless the server was the cause. All attempts are kept, and the last one is used. Exit
status: 0 if each point was measured, 1 if all runs of a point are invalid, 2 for wrong usage.";

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let (file, text) = exhibits::read(&args.experiment)?;
    let options = Options { quick: args.quick, seed: args.seed };
    let experiment = present(experiment::parse(&file, &text, options)?).only(&args.only)?;
    let plan = plan::plan(&experiment.resolved);
    let list = plan::list(&experiment.resolved, &plan);
    if args.plan {
        return if args.json { say::json(&plan) } else { say::out(&list) }.map(|()| Verdict::valid());
    }
    say::plain(&list);
    let usual = || {
        let mut name = format!("{}{}", experiment.resolved.name, if args.quick { "-quick" } else { "" });
        args.only.iter().for_each(|level| name += &format!("-{}", level.replace(['/', ' '], "-")));
        PathBuf::from(name)
    };
    let dir = args.out.clone().unwrap_or_else(usual);
    // Before any thread starts.
    let stop = Stop::on_signals(terminal::restore)?;
    let environment = TestEnvironment::new()?;
    // Unreachable hosts are reported before anything is created.
    let hosts = experiment.resolved.hosts.as_ref();
    let fleet = hosts.map(|hosts| Fleet::reach(hosts, &environment, &experiment.settings, &stop)).transpose()?;
    let fleet = fleet.map(RefCell::new);
    let _lock = take(&dir)?;
    begin(&environment, fleet.as_ref(), &dir, &text, experiment.resolved.clone(), &experiment.settings, &stop)?;
    let measured = measure(&environment, fleet.as_ref(), &dir, &experiment, args, &stop);
    drop(fleet);
    drop(environment);
    // The report covers the completed runs even if the experiment was stopped; the reason is printed first.
    let reported = Archive::open(&dir).and_then(|archive| report::write(&archive, &dir.join(name::REPORT), None));
    measured.and(reported)?;
    tell(args, &dir)
}

/// An experiment without the servers that it can do without and that this machine does not have.
fn present(experiment: Experiment) -> Experiment {
    let mut absent: Vec<&str> = Vec::new();
    for arm in &experiment.settings {
        let subject = &arm.subject;
        if let (true, false, Err(why)) = (subject.is_optional, absent.contains(&&subject.name[..]), subject.program()) {
            say::plain(&format!("skipped: {why}"));
            absent.push(&subject.name);
        }
    }
    let absent: Vec<String> = absent.into_iter().map(str::to_owned).collect();
    experiment.retained(|factor, level| factor != archive::SUBJECT || !absent.iter().any(|name| name == level))
}

/// Creates the directory and locks it: two programs at once would overwrite each other.
fn take(dir: &Path) -> Result<File, Failure> {
    fs::create_dir_all(dir).map_err(Failure::io(format_args!("create {}", dir.display())))?;
    let lock = File::open(dir).map_err(Failure::io(format_args!("open {}", dir.display())))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(_) => Err(Failure::failed(format!(
            "another `ammeter run` is using {}; choose another directory: --out",
            dir.display()
        ))),
    }
}

/// Writes the experiment and the plan before the first run, or resumes the same experiment.
fn begin(
    environment: &TestEnvironment,
    fleet: Option<&RefCell<Fleet>>,
    dir: &Path,
    text: &str,
    mut resolved: Resolved,
    settings: &[Settings],
    stop: &Stop,
) -> Result<(), Failure> {
    let mut programs = BTreeMap::from([("ammeter".to_owned(), subject::identity(&environment.own, "--version"))]);
    if let Some(fleet) = fleet {
        programs.extend(fleet.borrow().programs(settings, stop)?);
    }
    for arm in settings {
        if !programs.contains_key(&arm.subject.name) {
            programs.insert(arm.subject.name.clone(), arm.subject.identity()?);
        }
    }
    resolved.programs = programs;
    resolved.began_s = runs::now_s();
    resolved.commit = subject::commit(&environment.own);
    let place = dir.join(name::RESOLVED);
    if place.exists() {
        let old: Resolved = archive::read(&place)?;
        return runs::same(&old, &resolved)
            .map_err(|why| Failure::usage(format!("{}: {why}; choose another directory: --out", dir.display())));
    }
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::usage(format!(
            "{} is not empty and not an archive; choose another directory: --out",
            dir.display()
        )));
    }
    for folder in [name::RUNS, name::BLOCKS] {
        fs::create_dir(dir.join(folder)).map_err(Failure::io(format_args!("create {}", dir.join(folder).display())))?;
    }
    let cores = settings.first().map(|arm| environment.words(&arm.cores)).unwrap_or_default();
    let host = fleet.map_or_else(|| environment::host(cores), |fleet| fleet.borrow().host())?;
    archive::write_bytes(&dir.join(name::EXPERIMENT), text.as_bytes())?;
    archive::write(&dir.join(name::HOST), &host)?;
    archive::write(&dir.join(name::PLAN), &plan::plan(&resolved))?;
    // Written last: its presence marks a valid archive.
    archive::write(&place, &resolved)
}

/// Makes the missing runs, and repeats those that others disturbed or, with `retry`, that are invalid through no fault of the server.
fn measure(
    environment: &TestEnvironment,
    fleet: Option<&RefCell<Fleet>>,
    dir: &Path,
    experiment: &Experiment,
    args: &Args,
    stop: &Stop,
) -> Result<(), Failure> {
    let retry = args.retry;
    // Leftovers of runs that were killed.
    for entry in fs::read_dir(dir.join(name::RUNS)).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with('.') {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let Archive { resolved, plan, runs: mut made, clients, .. } = Archive::open(dir)?;
    let is_retried = |_: usize, last: &Run| retry && validate::is_worth_another(last);
    let is_repeated = |attempts: usize, last: &Run| validate::is_repeated(retry, attempts, last);
    let there = plan.runs.len() - plan::left(&plan.runs, &made, |_, _| false).len();
    let again = plan::left(&plan.runs, &made, is_retried).len() + there - plan.runs.len();
    if there > 0 {
        let retried = match (retry, again) {
            (false, _) => String::new(),
            (true, 0) => "; none of them can be repeated".to_owned(),
            (true, 1) => "; 1 invalid run will be repeated".to_owned(),
            (true, _) => format!("; {again} invalid runs will be repeated"),
        };
        say::plain(&format!("{there} of {} runs already exist{retried}", plan.runs.len()));
    }
    if plan::left(&plan.runs, &made, |attempts, last| is_retried(attempts, last) || is_repeated(attempts, last))
        .is_empty()
    {
        return Ok(());
    }
    let progress = Progress::new(plan.runs.len() + again, there, plan::run_s(&resolved));
    let baseline = &experiment.settings[0];
    let clients = match clients {
        Some(clients) => clients,
        None => {
            progress.say("measuring the clients against a null server");
            let clients = runner::try_clients(environment, fleet, baseline, &resolved, stop)?;
            archive::write(&dir.join(name::CLIENTS), &clients)?;
            warn(&clients, &resolved.steps, &progress);
            clients
        }
    };
    let lab = runner::Lab { environment, fleet, dir, resolved: &resolved, clients: &clients, stop };
    for part in plan::parts(&resolved, &plan.runs) {
        make(&lab, experiment, &plan::left(part, &made, is_retried), &mut made, args.quiet_timeout, &progress)?;
        let again = plan::left(part, &made, is_repeated);
        if !again.is_empty() {
            progress.add(again.len());
            let (count, all) = (again.len(), part.len());
            progress.say(&match retry {
                false => format!("other processes disturbed {count} of {all} runs; repeating them once"),
                true => format!("{count} of {all} runs are invalid; repeating them once"),
            });
            make(&lab, experiment, &again, &mut made, args.quiet_timeout, &progress)?;
        }
    }
    progress.finish();
    Ok(())
}

/// Makes runs of a block, in this order, after the machine's idle state was
/// recorded; returns them with the earlier ones.
fn make(
    lab: &runner::Lab<'_>,
    experiment: &Experiment,
    runs: &[Planned],
    made: &mut Vec<Run>,
    quiet_timeout: Duration,
    progress: &Progress,
) -> Result<(), Failure> {
    let Some(first) = runs.first() else { return Ok(()) };
    let runner::Lab { dir, resolved, stop, .. } = lab;
    let block = await_quiet(lab, first.block, quiet_timeout, progress)?;
    // A resumed block keeps the record from before its first run; each run has a record of its own too.
    for number in runs.iter().map(|run| run.block).collect::<BTreeSet<_>>() {
        let path = block_path(dir, number);
        if !path.exists() {
            archive::write(&path, &Block { block: number, ..block.clone() })?;
        }
    }
    let label = |planned: &Planned| resolved.arms.iter().find(|arm| arm.id == planned.arm).map_or("", |arm| &arm.label);
    if resolved.is_interleaved {
        let runs: Vec<(&Settings, &Planned)> = runs
            .iter()
            .map(|planned| Ok((experiment.settings_of(planned)?, planned)))
            .collect::<Result<_, Failure>>()?;
        progress.begin(&format!("{} interleaved servers", runs.len()));
        return runner::make_interleaved(lab, &runs, &block, &mut |run| {
            progress.end(&run, label(&run.plan));
            made.push(run);
        });
    }
    for planned in runs {
        if stop.is_stopped() {
            return Err(environment::interrupted());
        }
        let settings = experiment.settings_of(planned)?;
        progress.begin(&format!("{} at {}", label(planned), planned.step.value()));
        let run = runner::make(lab, settings, planned, &block)?;
        progress.end(&run, label(planned));
        made.push(run);
    }
    Ok(())
}

/// Waits up to `timeout` until the machine is quiet: disturbed runs would be invalid, and would have to be repeated.
fn await_quiet(lab: &runner::Lab<'_>, block: u32, timeout: Duration, progress: &Progress) -> Result<Block, Failure> {
    /// Interval between lines if there is no progress bar.
    const TELL: Duration = Duration::from_secs(30);
    let (mut began, mut shown) = (None::<Instant>, None::<Instant>);
    loop {
        let found = lab.look_at_rest(block)?;
        let waited = began.get_or_insert_with(Instant::now).elapsed();
        if found.is_clean {
            if shown.is_some() {
                progress.say(&format!("block {block}: the machine is quiet after {:.0} s", waited.as_secs_f64()));
            }
            return Ok(found);
        }
        let who: Vec<String> = found.busiest.iter().map(|(name, cores)| format!("{name} {cores:.2}")).collect();
        let busy = format!("{:.0} % of its CPU time is used (cores: {})", found.busy * 100.0, who.join(", "));
        if waited >= timeout {
            progress.say(&format!("block {block}: the machine is busy: {busy}"));
            return Ok(found);
        }
        let left = timeout.saturating_sub(waited).as_secs_f64();
        progress.begin(&format!("waiting up to {left:.0} s for a quiet machine: {busy}"));
        if shown.is_none_or(|shown| shown.elapsed() >= TELL) {
            progress.say(&format!(
                "block {block}: waiting up to {left:.0} s for a quiet machine: {busy}; stop these programs, or start \
                 at once with --quiet-timeout 0s"
            ));
            shown = Some(Instant::now());
        }
    }
}

/// Warns about limits of the clients before the runs.
fn warn(clients: &Clients, steps: &[Step], progress: &Progress) {
    let not_kept = clients.steps.iter().filter(|step| !step.is_kept);
    let Some(step) = not_kept.min_by(|a, b| a.step.value().total_cmp(&b.step.value())) else { return };
    let (at, why) = (step.step.value(), step.why.join("; "));
    progress.say(&if steps.contains(&step.step) {
        format!("at {at}/s and above, the clients limit throughput: {why}; such runs count as lower bounds")
    } else {
        format!("the clients sustain every rate of the ladder, with little reserve: at {at}/s {why}")
    });
}

/// Progress: a bar in a terminal, otherwise a line per run.
struct Progress {
    bar: Option<ProgressBar>,
    count: AtomicUsize,
    at: AtomicUsize,
}

impl Progress {
    fn new(count: usize, done: usize, run_s: f64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left  {msg}");
            let bar = ProgressBar::new(count as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_position(done as u64);
            // An estimate until the first run is complete.
            bar.set_elapsed(Duration::from_secs_f64(run_s * done as f64));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Progress { bar, count: count.into(), at: done.into() }
    }

    /// Adds further runs.
    fn add(&self, count: usize) {
        self.count.fetch_add(count, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.inc_length(count as u64);
        }
    }

    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say::plain(text)),
            None => say::plain(text),
        }
    }

    fn begin(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    fn end(&self, run: &Run, arm: &str) {
        let at = self.at.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
        let status = status_name(run.status);
        let why = if run.why.is_empty() { String::new() } else { format!(": {}", run.why.join("; ")) };
        let figures = run.summary.as_ref().map(|summary| {
            let cpu = summary.metric("cpu-per-reply").map_or(String::new(), |us| {
                format!(
                    ", {us:.1} us of server CPU per \
                     response"
                )
            });
            let behind = match summary.window.pace {
                Pace::FellBehind => format!(", fell behind: backlog {}", summary.window.backlog),
                _ => String::new(),
            };
            format!("  {:.0} completed/s{behind}{cpu}", summary.window.completed_rate)
        });
        let line = format!(
            "{:>3}/{}  {:<24} {arm}{}  {status}{why}",
            at,
            self.count.load(Ordering::Relaxed),
            run.plan.id,
            figures.unwrap_or_default()
        );
        // In a terminal the bar shows the progress, and only unusual runs get a line.
        if self.bar.is_none() || run.status != RunStatus::Valid {
            self.say(&line);
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn status_name(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Valid => "valid",
        RunStatus::Censored => "at least",
        RunStatus::Invalid => "INVALID",
    }
}

/// The result of a point: an arm at a step.
#[derive(Serialize)]
struct Point {
    arm: String,
    label: String,
    step: Step,
    /// Runs of each status, by their last attempts.
    valid: usize,
    censored: usize,
    invalid: usize,
    /// Invalid attempts that were repeated.
    again: usize,
    /// Medians of the runs that are not invalid.
    offered_rate: Option<f64>,
    rate: Option<f64>,
    p99_ms: Option<f64>,
    cpu_us_per_reply: Option<f64>,
}

#[derive(Serialize)]
struct ExperimentReport {
    directory: PathBuf,
    points: Vec<Point>,
    /// The outcomes of the experiment's claims.
    claims: Vec<Judged>,
    verdict: Verdict,
}

/// Prints the result and the verdict: a point without a valid run was not measured.
fn tell(args: &Args, dir: &Path) -> Result<Verdict, Failure> {
    let archive = Archive::open(dir)?;
    let claims = report::claims(&archive);
    let (resolved, runs) = (&archive.resolved, archive.last_attempts().collect::<Vec<_>>());
    let mut points = Vec::new();
    for arm in &resolved.arms {
        for step in resolved.steps_of(arm) {
            let is_of_point = |run: &&Run| run.plan.arm == arm.id && run.plan.step == *step;
            let of_point: Vec<&Run> = runs.iter().copied().filter(is_of_point).collect();
            let count = |status: RunStatus| of_point.iter().filter(|run| run.status == status).count();
            let median = |metric: &str| {
                let counted = of_point.iter().filter(|run| run.status != RunStatus::Invalid);
                let values = counted.filter_map(|run| run.summary.as_ref()?.metric(metric));
                Spread::of(values).map(|spread| spread.median)
            };
            points.push(Point {
                arm: arm.id.clone(),
                label: arm.label.clone(),
                step: *step,
                valid: count(RunStatus::Valid),
                censored: count(RunStatus::Censored),
                invalid: count(RunStatus::Invalid),
                again: archive.runs.iter().filter(is_of_point).count() - of_point.len(),
                offered_rate: median("offered-rate"),
                rate: median("rate"),
                p99_ms: median("p99"),
                cpu_us_per_reply: median("cpu-per-reply"),
            });
        }
    }
    let mut verdict = Verdict::valid();
    let censored: usize = points.iter().map(|point| point.censored).sum();
    if censored > 0 {
        verdict.weaken(Validity::AtLeast, format!("{censored} of {} runs are lower bounds (\"at least\")", runs.len()));
    }
    for point in points.iter().filter(|point| point.valid + point.censored == 0) {
        let of_point = runs.iter().find(|run| run.plan.arm == point.arm && run.plan.step == point.step);
        let why = of_point.map(|run| run.why.join("; ")).unwrap_or_default();
        verdict.broken.push(format!("no valid run of {} at {}: {why}", point.label, point.step.value()));
    }
    let report = ExperimentReport { directory: dir.to_owned(), points, claims, verdict };
    if args.json {
        say::json(&report)?;
    } else {
        say::out(&table(resolved, &report))?;
    }
    Ok(report.verdict)
}

/// The CPU time of interleaved servers, in microseconds per response: a line for each load, a column for each
/// server.
fn turns(resolved: &Resolved, points: &[Point]) -> String {
    let mut subjects: Vec<&str> = Vec::new();
    let mut lines: Vec<(String, Vec<(&str, f64)>)> = Vec::new();
    for point in points {
        let Some(arm) = resolved.arms.iter().find(|arm| arm.id == point.arm) else { continue };
        let subject = if arm.is_again { "again" } else { &arm.subject };
        let others = resolved.factors.iter().filter(|factor| factor.name != archive::SUBJECT);
        let mut words: Vec<String> = others.filter_map(|factor| arm.levels.get(&factor.name).cloned()).collect();
        if resolved.steps.len() > 1 {
            words.push(point.step.value().to_string());
        }
        let name = words.join(", ");
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
        if !lines.iter().any(|(known, _)| *known == name) {
            lines.push((name.clone(), Vec::new()));
        }
        let line = lines.iter_mut().find(|(known, _)| *known == name);
        line.into_iter().for_each(|(_, cells)| cells.extend(point.cpu_us_per_reply.map(|us| (subject, us))));
    }
    let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(12);
    let columns: Vec<usize> = subjects.iter().map(|name| name.chars().count().max(8)).collect();
    let mut text = format!("{:width$}", "server us");
    for (subject, column) in subjects.iter().zip(&columns) {
        text += &format!("  {subject:>column$}");
    }
    for (name, cells) in lines {
        text += &format!("\n{name:width$}");
        for (subject, column) in subjects.iter().zip(&columns) {
            let cell = cells.iter().find(|(of, _)| of == subject).map_or("-".to_owned(), |(_, us)| format!("{us:.2}"));
            text += &format!("  {cell:>column$}");
        }
    }
    text + "\n"
}

/// Formats the offered and the completed load of each arm.
fn table_of_points(resolved: &Resolved, report: &ExperimentReport) -> String {
    let width = report.points.iter().map(|point| point.label.chars().count()).max().unwrap_or(0).max(3);
    let axis = resolved.steps.first().map_or("", |step| step.axis());
    let mut text = format!(
        "{:width$} {axis:>9}{:>12}{:>12}{:>10}{:>12}  valid/at least/invalid\n",
        "arm", "offered/s", "completed/s", "p99 ms", "server us"
    );
    for point in &report.points {
        let show =
            |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
        text += &format!(
            "{:width$} {:>9}{:>12}{:>12}{:>10}{:>12}  {}/{}/{}\n",
            point.label,
            point.step.value(),
            show(point.offered_rate, 0),
            show(point.rate, 0),
            show(point.p99_ms, 2),
            show(point.cpu_us_per_reply, 1),
            point.valid,
            point.censored,
            point.invalid
        );
    }
    text
}

fn table(resolved: &Resolved, report: &ExperimentReport) -> String {
    let mut text = match resolved.is_interleaved {
        true => turns(resolved, &report.points),
        false => table_of_points(resolved, report),
    };
    let again: usize = report.points.iter().map(|point| point.again).sum();
    if again > 0 {
        text += &format!("again    {again} invalid attempts were repeated; all are in the archive\n");
    }
    let claims = [report::claim_summaries(&report.claims), report::open_claims(&report.claims)].concat();
    claims.iter().for_each(|line| text += &format!("{line}\n"));
    let page = report.directory.join(name::REPORT);
    text += &format!("archive  {}\nreport   {}\n", report.directory.display(), page.display());
    match &report.verdict.broken[..] {
        [] => text + &format!("verdict  {}", report.verdict),
        missing => {
            let (missing, count, all) = (missing.join("\n  "), missing.len(), report.points.len());
            text + &format!(
                "verdict  {count} of {all} points have no valid run, which is common with --quick or on a busy \
                 machine; the same command with --retry repeats invalid runs unless the server was the cause\n  \
                 {missing}"
            )
        }
    }
}
