//! `cargo xtask bench exhibits`: the papers' exhibits, each run by `ammeter run`, and one table of what still holds.
//!
//! 1. `ammeter` and `amped` are built; which exhibits there are `ammeter list` says.
//! 2. An archive that is there is taken as it is: its report is made again, by the figures and claims of today's experiment
//!    (`ammeter report --claims`). One that measured by other settings than today's is put aside, one that was not
//!    finished is gone on with. So the command may be stopped at any time, and a changed sentence costs no measurement.
//! 3. After each of them the table in `experiments/README.md` and the exhibit's figures are written.
//!
//! All figures in the table come out of archives by `ammeter report --json`; nothing is worked out here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;

use super::report::with_measured;
use crate::command::{Outcome, cargo, output, program, root, run as run_command, target_dir};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where each experiment's archive goes, or is already [default: target/exhibits, with --whole target/exhibits-whole]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Where the table and the figures go [default: experiments]
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// Measure only these, by their names in `ammeter list`; the table has all that are at hand
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// At length: hours in place of an hour
    #[arg(long)]
    whole: bool,
    /// Measure nothing: draw what the archives at hand tell
    #[arg(long)]
    redraw: bool,
    /// One that is there, with its `amped` beside it [default: both are built]
    #[arg(long, value_name = "FILE")]
    ammeter: Option<PathBuf>,
}

/// A line of `ammeter list --json`.
#[derive(Clone, Debug, Deserialize)]
struct Line {
    name: String,
    experiment: String,
}

/// An experiment, and the exhibits that it makes.
struct Experiment {
    name: String,
    exhibits: Vec<Line>,
    /// Whether it is to be measured if it is not at hand.
    is_chosen: bool,
    told: Option<Told>,
}

/// What `ammeter report --json` says, as far as it is used.
#[derive(Debug, Deserialize)]
struct Told {
    runs: Counts,
    claims: Vec<Claim>,
    figures: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Counts {
    planned: usize,
    there: usize,
    valid: usize,
    censored: usize,
    invalid: usize,
}

#[derive(Debug, Deserialize)]
struct Claim {
    says: String,
    compared: String,
    holds: String,
    paper: Option<f64>,
    here: Option<[f64; 3]>,
    unit: String,
    blocks: usize,
    status: String,
}

/// What an archive is good for.
enum Found {
    /// All runs are there.
    Whole(Told),
    /// Some are not.
    Begun(Told),
    /// It measured something else, or cannot be read.
    Other,
    /// There is none.
    None,
}

pub(crate) fn run(args: &Args) -> Outcome {
    if args.ammeter.is_none() {
        run_command(&mut cargo(&["build", "--release", "--package", "amped", "--package", "ammeter"]))?;
    }
    // Programs are started from the root, wherever this one was.
    let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let usual = if args.whole { "exhibits-whole" } else { "exhibits" };
    let lab = Lab {
        ammeter: args.ammeter.as_ref().map_or_else(|| target_dir().join("release/ammeter"), whole),
        out: args.out.as_ref().map_or_else(|| target_dir().join(usual), whole),
        into: args.into.as_ref().map_or_else(|| root().join("experiments"), whole),
        is_whole: args.whole,
    };
    let mut experiments = experiments(&output(program(&lab.ammeter).args(["list", "--json"]))?, &args.only)?;
    // What is there already costs seconds, and what was measured before a stop is in the table from the start.
    let mut left = Vec::new();
    for (at, experiment) in experiments.iter_mut().enumerate() {
        match lab.found(&experiment.name) {
            Found::Whole(told) => experiment.told = Some(lab.drawn(&experiment.name, told)?),
            Found::Begun(told) if args.redraw => experiment.told = Some(lab.drawn(&experiment.name, told)?),
            Found::Begun(_) | Found::Other | Found::None if experiment.is_chosen => left.push(at),
            Found::Begun(_) | Found::Other | Found::None => {}
        }
    }
    let names = |experiments: &[Experiment]| left.iter().map(|at| experiments[*at].name.clone()).collect::<Vec<_>>();
    println!(
        "{} experiments are at hand; to be measured: {}",
        experiments.iter().filter(|one| one.told.is_some()).count(),
        names(&experiments).join(", ")
    );
    lab.write(&experiments)?;
    let mut troubles = Vec::new();
    for at in left.into_iter().filter(|_| !args.redraw) {
        match lab.measure(&experiments[at].name) {
            Ok(told) => experiments[at].told = Some(told),
            Err(text) => troubles.push(text),
        }
        lab.write(&experiments)?;
    }
    println!("written: {}", lab.into.join("README.md").display());
    if troubles.is_empty() { Ok(()) } else { Err(format!("not everything was measured:\n  {}", troubles.join("\n  "))) }
}

/// The experiments that `ammeter list` names; chosen are all, or those that make these exhibits.
fn experiments(list: &str, only: &[String]) -> Outcome<Vec<Experiment>> {
    let lines: Vec<Line> = serde_json::from_str(list).map_err(|error| format!("ammeter list --json: {error}"))?;
    let is = |line: &Line, name: &String| line.name == *name || line.experiment == *name;
    if let Some(unknown) = only.iter().find(|name| !lines.iter().any(|line| is(line, name))) {
        return Err(format!("there is no exhibit {unknown}; ammeter list has them all"));
    }
    let mut experiments: Vec<Experiment> = Vec::new();
    for line in &lines {
        match experiments.iter_mut().find(|experiment| experiment.name == line.experiment) {
            Some(experiment) => experiment.exhibits.push(line.clone()),
            None => {
                let (name, exhibits) = (line.experiment.clone(), vec![line.clone()]);
                experiments.push(Experiment { name, exhibits, is_chosen: false, told: None });
            }
        }
    }
    for experiment in &mut experiments {
        let mut names = experiment.exhibits.iter().flat_map(|line| only.iter().filter(|name| is(line, name)));
        experiment.is_chosen = only.is_empty() || names.next().is_some();
    }
    Ok(experiments)
}

struct Lab {
    ammeter: PathBuf,
    /// Of archives.
    out: PathBuf,
    /// Of table and figures.
    into: PathBuf,
    is_whole: bool,
}

impl Lab {
    fn archive(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// The report of an archive by today's claims, without its figures.
    fn report(&self, name: &str) -> Command {
        let mut command = program(&self.ammeter);
        command.arg("report").arg(self.archive(name)).args(["--claims", name, "--json"]);
        command
    }

    fn found(&self, name: &str) -> Found {
        if !self.archive(name).exists() {
            return Found::None;
        }
        let said = self.report(name).stdin(Stdio::null()).stderr(Stdio::null()).output();
        let told = said.ok().filter(|said| said.status.success());
        let told: Option<Told> = told.and_then(|said| serde_json::from_slice(&said.stdout).ok());
        match told {
            Some(told) if told.runs.there == told.runs.planned => Found::Whole(told),
            Some(told) => Found::Begun(told),
            None => Found::Other,
        }
    }

    /// Runs one, or goes on with it.
    fn measure(&self, name: &str) -> Outcome<Told> {
        println!("\n==== {name} ====");
        let mut failed = None;
        for attempt in 0..2 {
            match self.found(name) {
                Found::Whole(told) => return self.drawn(name, told),
                // By another program, perhaps, and that one does not go on.
                Found::Begun(_) if attempt > 0 => self.put_aside(name)?,
                Found::Other => self.put_aside(name)?,
                Found::Begun(_) | Found::None => {}
            }
            let mut command = program(&self.ammeter);
            command.args(["run", name, "--out"]).arg(self.archive(name));
            if !self.is_whole {
                command.arg("--quick");
            }
            // That a point has no run that counts is a result, and told in the table.
            failed = run_command(&mut command).err();
        }
        match self.found(name) {
            Found::Whole(told) => self.drawn(name, told),
            _ => Err(failed.unwrap_or_else(|| format!("{name}: not all runs are there"))),
        }
    }

    /// Keeps an archive that is of no use here under a name that is free.
    fn put_aside(&self, name: &str) -> Outcome {
        let archive = self.archive(name);
        let aside = (1..).map(|number| self.out.join(format!("{name}.before-{number}"))).find(|path| !path.exists());
        let aside = aside.unwrap_or_default();
        println!(
            "{} was measured by other settings, or another program; it is kept as {}",
            archive.display(),
            aside.display()
        );
        fs::rename(&archive, &aside).map_err(|error| format!("cannot name {}: {error}", aside.display()))
    }

    /// Puts the figures that an experiment asks for into its folder.
    fn drawn(&self, name: &str, told: Told) -> Outcome<Told> {
        let (all, own) = (self.archive(name).join("figures"), self.into.join(name).join("figures"));
        output(self.report(name).arg("--svg").arg(&all))?;
        let at = |error: std::io::Error| format!("cannot write into {}: {error}", own.display());
        if own.exists() {
            fs::remove_dir_all(&own).map_err(at)?;
        }
        fs::create_dir_all(&own).map_err(at)?;
        for figure in &told.figures {
            let file = format!("{figure}.svg");
            fs::copy(all.join(&file), own.join(&file)).map_err(at)?;
        }
        Ok(told)
    }

    /// Writes the table.
    fn write(&self, experiments: &[Experiment]) -> Outcome {
        let path = self.into.join("README.md");
        let at = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        fs::create_dir_all(&self.into).map_err(at)?;
        let before = fs::read_to_string(&path).unwrap_or_default();
        let machines =
            experiments.iter().filter(|one| one.told.is_some()).filter_map(|one| machine(&self.archive(&one.name)));
        let mut machines: Vec<String> = machines.collect();
        machines.dedup();
        let command = if self.is_whole { "cargo xtask bench exhibits --whole" } else { "cargo xtask bench exhibits" };
        let measured = format!("Made by `{command}`, on {}.\n\n{}", machines.join("; "), table(experiments));
        fs::write(&path, with_measured(&before, "Experiments", &measured)).map_err(at)
    }
}

/// What an archive was measured on.
fn machine(archive: &Path) -> Option<String> {
    let host: Value = serde_json::from_slice(&fs::read(archive.join("host.json")).ok()?).ok()?;
    let machine = &host["machine"];
    Some(format!("{}, {} cores, Linux {}", machine["cpu"].as_str()?, machine["cores"], machine["kernel"].as_str()?))
}

/// The table: a line for each claim, under the exhibits whose experiment holds it.
fn table(experiments: &[Experiment]) -> String {
    let claims = || experiments.iter().filter_map(|one| one.told.as_ref()).flat_map(|told| &told.claims);
    let count = |status: &str| claims().filter(|claim| claim.status == status).count();
    let mut text = format!(
        "Of {} claims {} still hold, {} no longer do, {} were not applied, {} are undecided and {} cannot be told. A figure is the \
         median over the blocks of an experiment, each of which measured what is compared within minutes, with its interval; it \
         holds where all of the interval is within the bound. Fewer than 6 blocks cover less than 95 % and decide nothing; \
         without `--whole` an experiment has 2 or 3.\n\n\
         | exhibit | the paper says | it says | here | holds | so it |\n|---|---|---|---|---|---|\n",
        claims().count(),
        count("still-holds"),
        count("no-longer"),
        count("not-applied"),
        count("undecided"),
        count("cannot-be-told"),
    );
    for Experiment { name, exhibits, told, .. } in experiments {
        // Names break lines, so that the column stays narrow.
        let names: Vec<String> = exhibits.iter().map(|line| format!("`{}`", line.name)).collect();
        let mut first = format!("{}<br>[file]({name}/experiment.toml)", names.join("<br>"));
        let Some(told) = told else {
            text += &format!("| {first} | | | not measured | | |\n");
            continue;
        };
        let figures = told.figures.iter().enumerate();
        let links: Vec<String> =
            figures.map(|(at, figure)| format!("[{}]({name}/figures/{figure}.svg)", at + 1)).collect();
        if !links.is_empty() {
            first += &format!(", figures {}", links.join(" "));
        }
        let Counts { there, valid, censored, invalid, .. } = told.runs;
        first += &format!("<br>{there} runs: {valid} valid");
        for (count, what) in [(censored, "at least"), (invalid, "invalid")] {
            if count > 0 {
                first += &format!(", {count} {what}");
            }
        }
        for claim in &told.claims {
            text += &format!("| {first} | {} |\n", claim.cells());
            first.clear();
        }
    }
    text
}

impl Claim {
    fn cells(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        let here = self.here.map_or_else(
            || "no runs that count".to_owned(),
            |[low, median, high]| {
                let [median, low, high] = [median, low, high].map(number);
                let blocks = if self.blocks == 1 { "1 block".to_owned() } else { format!("{} blocks", self.blocks) };
                format!("**{median}**{unit} ({low} to {high}; {blocks}), {}", self.compared)
            },
        );
        let status = match self.status.as_str() {
            "still-holds" => "still holds",
            "no-longer" => "**no longer** holds",
            "not-applied" => "not applied",
            "undecided" => "undecided",
            _ => "cannot be told",
        };
        let paper = self.paper.map_or(String::new(), |paper| format!("{}{unit}", number(paper)));
        [&self.says, &paper, &here, &self.holds, status].map(cell).join(" | ")
    }
}

/// A text as it may stand in a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Three digits that count.
fn number(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"[{"name": "hu-figure-1", "title": "Memory", "experiment": "hu-figures-1-4", "quick_s": 1, "whole_s": 2},
        {"name": "hu-figure-2", "title": "CPU", "experiment": "hu-figures-1-4", "quick_s": 1, "whole_s": 2},
        {"name": "arlitt-figure-5", "title": "Logging", "experiment": "arlitt-figure-5", "quick_s": 1, "whole_s": 2}]"#;

    #[test]
    fn exhibits_are_chosen_by_their_names() {
        let check = |only: &[&str], expected: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            let chosen = experiments(LIST, &only).unwrap();
            let chosen = chosen.iter().filter(|one| one.is_chosen);
            assert_eq!(chosen.map(|one| one.name.as_str()).collect::<Vec<_>>(), expected, "{only:?}");
        };
        check(&[], &["hu-figures-1-4", "arlitt-figure-5"]);
        check(&["hu-figure-2"], &["hu-figures-1-4"]);
        check(&["arlitt-figure-5", "hu-figures-1-4"], &["hu-figures-1-4", "arlitt-figure-5"]);
        assert!(experiments(LIST, &["moon".to_owned()]).is_err_and(|text| text.contains("no exhibit moon")));
    }

    #[test]
    fn the_table_has_a_line_for_each_claim() {
        let mut experiments = experiments(LIST, &[]).unwrap();
        let told = r#"{"runs": {"planned": 4, "there": 4, "valid": 3, "censored": 1, "invalid": 0}, "figures": ["figure-5-a"], "claims": [
            {"says": "A log takes a|tenth", "compared": "on / off", "holds": "below 0.98", "paper": 0.912, "here": [0.9, 0.923456, 0.95],
             "unit": "", "blocks": 6, "coverage": 0.96875, "status": "still-holds"},
            {"says": "It is lost", "compared": "x", "holds": "above 1", "paper": null, "here": [0, 1, 2], "unit": "", "blocks": 2,
             "coverage": 0.5, "status": "undecided"},
            {"says": "It is slow", "compared": "x", "holds": "above 5 ms", "paper": null, "here": null, "unit": "ms", "blocks": 0,
             "coverage": 0, "status": "cannot-be-told"}]}"#;
        experiments[1].told = Some(serde_json::from_str(told).unwrap());
        let text = table(&experiments);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with(
                "Of 3 claims 1 still hold, 0 no longer do, 0 were not applied, 1 are undecided and 1 cannot be told"
            ),
            "{text}"
        );
        assert_eq!(
            lines[4],
            "| `hu-figure-1`<br>`hu-figure-2`<br>[file](hu-figures-1-4/experiment.toml) | | | not measured | | |"
        );
        assert_eq!(
            lines[5],
            "| `arlitt-figure-5`<br>[file](arlitt-figure-5/experiment.toml), figures [1](arlitt-figure-5/figures/figure-5-a.svg)<br>4 runs: \
             3 valid, 1 at least | A log takes a\\|tenth | 0.912 | **0.923** (0.9 to 0.95; 6 blocks), on / off | below 0.98 | still holds |"
        );
        assert!(lines[6].ends_with("| above 1 | undecided |"), "{text}");
        assert_eq!(lines[7], "|  | It is slow |  | no runs that count | above 5 ms | cannot be told |");
        // Each line has as many cells as the head.
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        assert!(lines[2..].iter().all(|line| cells(line) == 7), "{text}");
    }
}
