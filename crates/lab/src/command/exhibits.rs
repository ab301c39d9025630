//! `ammeter exhibits`: runs all built-in experiments one after another, and writes one table of their claims.
//!
//! 1. An existing archive is kept, and read with the figures and claims of the current experiment. One with other settings,
//!    with other versions of the claims, or shorter than requested is set aside; an incomplete one is resumed. So the command
//!    may be stopped at any time, and a changed text requires no new measurement.
//! 2. Each experiment is a process of its own, `ammeter run`.
//! 3. After each of them the table in `README.md`, the experiment's figures and its packed archive are written. Text outside the
//!    marks of the table is kept. A packed archive replaces a missing archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use amped_measure::{Failure, Verdict};

use super::report::adopt;
use crate::archive::{Archive, Resolved, name, packed};
use crate::exhibits::{self, Exhibit};
use crate::experiment::{self, Options};
use crate::figure::number;
use crate::report::{self, ClaimStatus, Counts, Judged, Repeats, Report, ReportSummary};
use crate::{plan, say, subject};

/// The flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory of the experiments' archives
    #[arg(long, value_name = "DIR", default_value = "exhibits")]
    out: PathBuf,
    /// Directory for the table, the figures and the packed archives
    #[arg(long, value_name = "DIR", default_value = "experiments")]
    into: PathBuf,
    /// Measure only these experiments (see `ammeter list`); the table includes all existing archives
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Run the full version, which takes hours instead of one hour
    #[arg(long)]
    whole: bool,
    /// Measure nothing; write the table and the figures from the existing archives
    #[arg(long)]
    redraw: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter exhibits                                         all of them, the short versions: about an hour
  ammeter exhibits --only hu-figure-12,server-speed        two of them
  ammeter exhibits --out old --redraw                      the table and the figures of existing archives";

/// The text before the table in its file, and the text after it.
const BEGIN: &str = "<!-- What follows is written anew by each run. -->";
const END: &str = "<!-- From here on it is a person who writes. -->";

/// An experiment, with its archive and report if it is complete.
struct Entry {
    exhibit: Exhibit,
    is_chosen: bool,
    found: Option<(Archive, Report)>,
    /// Share of its runs that are missing.
    missing: f64,
}

/// How an archive can be used.
enum Found {
    /// All runs exist.
    Whole(Box<(Archive, Report)>),
    /// Some runs are missing.
    Begun(Box<(Archive, Report)>),
    /// It measured something else, or cannot be read.
    Other,
    /// No archive exists.
    None,
}

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let chosen: Vec<&str> =
        args.only.iter().map(|name| exhibits::find(name).map(|one| one.name)).collect::<Result<_, _>>()?;
    let entry = |exhibit: &Exhibit| Entry {
        exhibit: *exhibit,
        is_chosen: chosen.is_empty() || chosen.contains(&exhibit.name),
        found: None,
        missing: 1.0,
    };
    let mut entries: Vec<Entry> = exhibits::ALL.iter().map(entry).collect();
    // Existing archives take seconds, and the table has the experiments of an interrupted run from the start.
    for entry in &mut entries {
        match find(args, entry.exhibit.name) {
            Found::Whole(found) => entry.found = Some(*found),
            Found::Begun(found) if args.redraw => entry.found = Some(*found),
            Found::Begun(found) => {
                let Counts { planned, there, .. } = found.1.summary.runs;
                entry.missing = (planned - there) as f64 / planned.max(1) as f64;
            }
            Found::Other | Found::None => {}
        }
        draw(args, entry)?;
    }
    write(args, &entries)?;
    let mut verdict = Verdict::valid();
    let is_left = |entry: &Entry| !args.redraw && entry.found.is_none() && entry.is_chosen;
    let left: Vec<usize> = (0..entries.len()).filter(|at| is_left(&entries[*at])).collect();
    let expected_s: Vec<f64> = left.iter().map(|at| expected_s(args, &entries[*at])).collect::<Result<_, _>>()?;
    for (done, &at) in left.iter().enumerate() {
        let rest_s: f64 = expected_s[done..].iter().sum();
        let name = entries[at].exhibit.name;
        say::plain(&format!("\n==== {name}: {} of {}, {} left ====", done + 1, left.len(), plan::duration(rest_s)));
        match measure(args, name) {
            Ok(found) => entries[at].found = Some(found),
            Err(failure) => verdict.broken.push(failure.to_string()),
        }
        draw(args, &entries[at])?;
        write(args, &entries)?;
    }
    say::plain(&format!("written: {}", args.into.join("README.md").display()));
    Ok(verdict)
}

/// Expected duration of the missing runs of an experiment, in seconds.
fn expected_s(args: &Args, Entry { exhibit, missing, .. }: &Entry) -> Result<f64, Failure> {
    let options = Options { quick: !args.whole, seed: None };
    let resolved = experiment::parse(&exhibit.file(), exhibit.text, options)?.resolved;
    Ok(plan::plan(&resolved).expected_s * missing)
}

fn find(args: &Args, name: &str) -> Found {
    let paths = [args.out.join(name), packed_path(args, name)];
    let Some(path) = paths.into_iter().find(|path| path.exists()) else { return Found::None };
    let read = || {
        let mut archive = Archive::open(&path)?;
        adopt(&mut archive, name)?;
        Ok::<_, Failure>(archive)
    };
    let Ok(archive) = read() else { return Found::Other };
    let Resolved { quick, claims, .. } = &archive.resolved;
    if !args.redraw && (args.whole && *quick || claims.iter().any(|claim| claim.is_later)) {
        return Found::Other;
    }
    let report = report::report(&archive);
    let Counts { planned, there, .. } = report.summary.runs;
    let found = Box::new((archive, report));
    if there == planned { Found::Whole(found) } else { Found::Begun(found) }
}

/// Path of the packed archive of an experiment.
fn packed_path(args: &Args, name: &str) -> PathBuf {
    args.into.join(name).join("archive.tar.zst")
}

/// Runs or resumes one experiment.
fn measure(args: &Args, name: &str) -> Result<(Archive, Report), Failure> {
    let mut ended = None;
    for attempt in 0..2 {
        match find(args, name) {
            Found::Whole(found) => return Ok(*found),
            // Perhaps of another program, which `ammeter run` does not resume.
            Found::Begun(_) if attempt > 0 => put_aside(&args.out, name)?,
            Found::Other => put_aside(&args.out, name)?,
            Found::Begun(_) | Found::None => {}
        }
        let mut command = Command::new(subject::own_program()?);
        command.args(["run", name, "--out"]).arg(args.out.join(name)).args((!args.whole).then_some("--quick"));
        // A point whose runs are all invalid is a result, which the table shows.
        ended = Some(command.status().map_err(Failure::io("start ammeter run"))?);
    }
    match find(args, name) {
        Found::Whole(found) => Ok(*found),
        _ => Err(Failure::failed(format!("{name}: some runs are missing; ammeter run ended with {ended:?}"))),
    }
}

/// Renames an archive that cannot be used to an unused name.
fn put_aside(out: &Path, name: &str) -> Result<(), Failure> {
    let archive = out.join(name);
    if !archive.exists() {
        return Ok(());
    }
    let free = (1..).map(|number| out.join(format!("{name}.before-{number}"))).find(|path| !path.exists());
    let aside = free.unwrap_or_default();
    say::plain(&format!("{}: other settings, or another program; kept as {}", archive.display(), aside.display()));
    fs::rename(&archive, &aside).map_err(Failure::io(format_args!("rename {}", archive.display())))
}

/// Writes an experiment's report beside its archive, and the packed archive and the figures that it asks for into its directory.
fn draw(args: &Args, entry: &Entry) -> Result<(), Failure> {
    let Some((archive, report)) = &entry.found else { return Ok(()) };
    let packed = packed_path(args, entry.exhibit.name);
    if archive.path() != packed {
        let page = archive.dir.join(name::REPORT);
        fs::write(&page, &report.html).map_err(Failure::io(format_args!("write {}", page.display())))?;
        fs::create_dir_all(args.into.join(entry.exhibit.name)).map_err(Failure::io("create a directory"))?;
        packed::pack(&archive.dir, &packed)?;
    }
    let folder = args.into.join(entry.exhibit.name).join("figures");
    let what = format!("write into {}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Failure::io(&what))?;
    }
    fs::create_dir_all(&folder).map_err(Failure::io(&what))?;
    for (name, svg) in report.figures.iter().filter(|(name, _)| report.summary.figures.contains(name)) {
        fs::write(folder.join(format!("{name}.svg")), svg).map_err(Failure::io(&what))?;
    }
    Ok(())
}

/// Writes the table.
fn write(args: &Args, entries: &[Entry]) -> Result<(), Failure> {
    let path = args.into.join("README.md");
    let what = format!("write {}", path.display());
    fs::create_dir_all(&args.into).map_err(Failure::io(&what))?;
    let mut machines: Vec<String> = Vec::new();
    for (archive, _) in entries.iter().filter_map(|entry| entry.found.as_ref()) {
        let machine = &archive.host.machine;
        let words = format!("{}, {} cores, Linux {}", machine.cpu, machine.cores, machine.kernel);
        if !machines.contains(&words) {
            machines.push(words);
        }
    }
    let command = if args.whole { "ammeter exhibits --whole" } else { "ammeter exhibits" };
    let lines = entries.iter().map(Line::of).collect();
    let measured = format!("Made by `{command}`, on {}.\n\n{}", machines.join("; "), table(lines));
    let before = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&path, with_measured(&before, &measured)).map_err(Failure::io(&what))
}

/// Replaces the text between the marks; a new text gets a heading.
fn with_measured(text: &str, measured: &str) -> String {
    let parts = text.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (head, tail) = parts.unwrap_or(("# Experiments\n\n", "\n"));
    format!("{head}{BEGIN}\n\n{}\n\n{END}{tail}", measured.trim_end())
}

/// An experiment in the table.
struct Line<'a> {
    name: &'a str,
    makes: Vec<String>,
    found: Option<Measured<'a>>,
}

/// The results of an archive, and their origin.
struct Measured<'a> {
    runs: &'a Counts,
    claims: Vec<Judged>,
    repeats: &'a Repeats,
    figures: &'a [String],
    /// Commit, date, seed, length.
    origin: String,
    /// Versions of the servers.
    servers: Vec<&'a str>,
}

impl Line<'_> {
    fn of(entry: &Entry) -> Line<'_> {
        let mut makes: Vec<String> = entry.exhibit.makes().into_iter().map(|(name, _)| name).collect();
        if makes.is_empty() {
            makes.push(entry.exhibit.name.to_owned());
        }
        let found = entry.found.as_ref().map(|(archive, report)| Measured::of(&archive.resolved, &report.summary));
        Line { name: entry.exhibit.name, makes, found }
    }
}

impl<'a> Measured<'a> {
    fn of(resolved: &'a Resolved, summary: &'a ReportSummary) -> Measured<'a> {
        let date = ammeter_load::date(resolved.began_s);
        // Without weekday and time of day.
        let date = date.split_whitespace().skip(1).take(3).collect::<Vec<_>>().join(" ");
        let commit = if resolved.commit.is_empty() { "unknown" } else { &resolved.commit };
        let length = if resolved.quick { "short version" } else { "whole" };
        let versions = resolved.programs.iter().filter(|(name, _)| *name != "ammeter");
        let mut servers: Vec<&str> =
            versions.map(|(_, program)| &program.version[..]).filter(|one| !one.is_empty()).collect();
        servers.sort_unstable();
        servers.dedup();
        Measured {
            runs: &summary.runs,
            claims: summary.claims.clone(),
            repeats: &summary.repeats,
            figures: &summary.figures,
            origin: format!("{length}, {date}, commit {commit}, seed {}", resolved.seed),
            servers,
        }
    }

    /// Links to the figures, numbers of runs, origin and repeated arms.
    fn cell(&self, name: &str) -> String {
        let mut cell = String::new();
        for (at, figure) in self.figures.iter().enumerate() {
            let before = if at == 0 { ", figures" } else { "" };
            cell += &format!("{before} [{}]({name}/figures/{figure}.svg)", at + 1);
        }
        let Counts { there, valid, censored, invalid, .. } = self.runs;
        cell += &format!("<br>{there} runs: {valid} valid");
        for (count, what) in [(censored, "at least"), (invalid, "invalid")].into_iter().filter(|(count, _)| **count > 0)
        {
            cell += &format!(", {count} {what}");
        }
        let servers = self.servers.iter().map(|version| format!("<br>{version}")).collect::<String>();
        format!("{cell}<br>{}{servers}<br>{}", self.origin, self.repeats.sentence())
    }
}

/// A line for each claim, under the exhibits whose experiment holds it. All claims but self-tests are decided together.
fn table(mut lines: Vec<Line<'_>>) -> String {
    let claims = lines.iter_mut().filter_map(|line| line.found.as_mut()).flat_map(|found| &mut found.claims);
    report::decide(claims.filter(|claim| !claim.is_self_test));
    let claims = || lines.iter().filter_map(|line| line.found.as_ref()).flat_map(|found| &found.claims);
    let count = |is_counted: &dyn Fn(&Judged) -> bool| {
        claims().filter(|claim| !claim.is_self_test && is_counted(claim)).count()
    };
    let of = |status: ClaimStatus| count(&|claim| claim.status == status);
    let mut text = format!(
        "Of {} claims {} hold, {} no longer hold ({} with a stated reason), {} were not applied, {} are undecided and \
         {} are not testable here. {} self-tests of the load generator and the workloads are not counted. A figure is \
         the median over the blocks of an experiment, with its interval and the coverage of each of its ends; a block \
         measures the compared arms within minutes of each other. A claim is decided if it has at least 6 blocks and \
         the sign test, corrected for all claims of this table (Benjamini-Hochberg), is significant: at most 5 % of \
         the verdicts are expected to be wrong. Without `--whole` an experiment has 2 or 3 blocks, too few for a \
         verdict. The version of a claim is a hash of its definition and set-up; a changed claim is measured again.\n\n\
         | experiment | claim | paper | here | bound | status | why |\n|---|---|---|---|---|---|---|\n",
        count(&|_| true),
        of(ClaimStatus::Holds),
        of(ClaimStatus::NoLonger),
        count(&|claim| claim.status == ClaimStatus::NoLonger && !claim.why.is_empty()),
        of(ClaimStatus::NotApplied),
        of(ClaimStatus::Undecided),
        of(ClaimStatus::NotTestable),
        claims().filter(|claim| claim.is_self_test).count(),
    );
    for Line { name, makes, found } in &lines {
        // Names break lines, so that the column stays narrow.
        let names: Vec<String> = makes.iter().map(|name| format!("`{name}`")).collect();
        let mut first = format!("{}<br>[file]({name}/experiment.toml)", names.join("<br>"));
        let Some(found) = found else {
            text += &format!("| {first} | | | not measured | | | |\n");
            continue;
        };
        first += &found.cell(name);
        for claim in &found.claims {
            text += &format!("| {first} | {} |\n", cells(claim));
            first.clear();
        }
    }
    text
}

fn cells(claim: &Judged) -> String {
    let unit = if claim.unit.is_empty() { String::new() } else { format!(" {}", claim.unit) };
    let here = claim.here.map_or_else(
        || "no usable runs".to_owned(),
        |[low, median, high]| {
            let [median, low, high] = [median, low, high].map(number);
            let (blocks, coverage) = (report::blocks(claim.blocks), claim.coverage * 100.0);
            format!("**{median}**{unit} ({low} to {high}; {blocks}, {coverage:.0} %), {}", claim.compared)
        },
    );
    let status = match claim.status {
        ClaimStatus::NoLonger => "**no longer**",
        status => status.ends(),
    };
    let status = if claim.is_self_test { format!("{status} (self-test)") } else { status.to_owned() };
    let why = if claim.status == ClaimStatus::NoLonger && claim.why.is_empty() { "unknown" } else { &claim.why };
    let paper = claim.paper.map_or(String::new(), |paper| format!("{}{unit}", number(paper)));
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let says = format!("{} `{}`", claim.says, claim.hash);
    [&says, &paper, &here, &claim.holds, &status, why].map(cell).join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{Claim, Plan, Program, RunStatus};
    use crate::report::tests::{archive, claim_on_rate, set_rate, store};

    /// An experiment of six blocks in which the second arm has 0.9 times the rate of the first, with these claims.
    fn found(claims: Vec<Claim>) -> (Archive, Report) {
        let mut archive = archive(Path::new("dir"), 6);
        for run in &mut archive.runs {
            run.status = RunStatus::Valid;
            let noise = if run.plan.block % 2 == 0 { 10.0 } else { -10.0 };
            set_rate(run, if run.plan.arm == "a1" { 900.0 + noise } else { 1000.0 });
        }
        archive.resolved.claims = claims;
        archive.resolved.commit = "0123456789-dirty".to_owned();
        let program = Program { version: "nginx version: nginx/1.26".to_owned(), ..Program::default() };
        archive.resolved.programs.insert("nginx".to_owned(), program);
        let report = report::report(&archive);
        (archive, report)
    }

    fn lines(found: &(Archive, Report)) -> Vec<Line<'_>> {
        let (archive, report) = found;
        let measured = Measured::of(&archive.resolved, &report.summary);
        vec![
            Line { name: "a", makes: vec!["a-1".to_owned(), "a-2".to_owned()], found: None },
            Line { name: "b", makes: vec!["b".to_owned()], found: Some(measured) },
        ]
    }

    #[test]
    fn table_has_line_for_each_claim() {
        let found = found(vec![
            Claim {
                says: "A log takes a|tenth".to_owned(),
                hash: "0a1b".to_owned(),
                ..claim_on_rate(None, Some(0.98))
            },
            Claim { no_longer: "Disks are faster.".to_owned(), ..claim_on_rate(Some(0.95), None) },
            Claim { is_self_test: true, ..claim_on_rate(None, Some(0.98)) },
        ]);
        let text = table(lines(&found));
        let lines: Vec<&str> = text.lines().collect();
        let counts =
            "Of 2 claims 1 hold, 1 no longer hold (1 with a stated reason), 0 were not applied, 0 are undecided and 0";
        assert!(lines[0].starts_with(counts) && lines[0].contains("here. 1 self-tests"), "{text}");
        assert_eq!(lines[4], "| `a-1`<br>`a-2`<br>[file](a/experiment.toml) | | | not measured | | | |");
        for part in [
            "| `b`<br>[file](b/experiment.toml), figures [1](b/figures/",
            "whole, ",
            "commit 0123456789-dirty, seed ",
            "<br>nginx version: nginx/1.26<br>",
            "A log takes a\\|tenth `0a1b` | 0.9 | **0.9** (0.89 to 0.91; 6 blocks, 98 %), responses: ",
            " | below 0.98 | holds |",
        ] {
            assert!(lines[5].contains(part), "{part} is not in {}", lines[5]);
        }
        assert!(lines[6].ends_with(" | above 0.95 | **no longer** | Disks are faster |"), "{}", lines[6]);
        assert!(lines[7].ends_with(" | holds (self-test) |  |"), "{}", lines[7]);
    }

    #[test]
    fn more_claims_take_more_blocks() {
        // Six agreeing blocks decide a claim alone, but not the only such claim among many.
        let undecided = || (0..9).map(|_| claim_on_rate(Some(0.9), None));
        let found = found(std::iter::once(claim_on_rate(None, Some(0.98))).chain(undecided()).collect());
        assert_eq!(found.1.summary.claims[0].status, ClaimStatus::Holds);
        let text = table(lines(&found));
        let line = text.lines().nth(5).unwrap_or_default();
        assert!(
            line.contains("| undecided | 6 of 6 blocks within the bound, p 0.16 among 10 claims; 8 blocks would"),
            "{line}"
        );
    }

    #[test]
    fn packed_archive_stands_in_for_missing_one() {
        let folder = tempfile::tempdir().unwrap();
        let args = |redraw| Args {
            out: folder.path().join("out"),
            into: folder.path().join("into"),
            only: Vec::new(),
            whole: false,
            redraw,
        };
        let name = exhibits::ALL[0].name;
        let (dir, text) = (args(true).out.join(name), exhibits::ALL[0].text);
        let options = Options { quick: true, seed: Some(1) };
        let resolved = experiment::parse(&exhibits::ALL[0].file(), text, options).unwrap().resolved;
        store(&Archive { resolved, plan: Plan::default(), runs: Vec::new(), ..archive(&dir, 1) });
        run(&args(true)).unwrap();
        let table = fs::read_to_string(args(true).into.join("README.md")).unwrap();
        assert!(table.contains("short version, ") && table.contains("seed 1"), "{table}");
        fs::remove_dir_all(&dir).unwrap();
        assert!(matches!(find(&args(false), name), Found::Whole(found) if found.0.packed.is_some()));
        run(&args(true)).unwrap();
        assert_eq!(fs::read_to_string(args(true).into.join("README.md")).unwrap(), table);
    }

    #[test]
    fn text_outside_marks_is_kept() {
        let first = with_measured("", "figures 1");
        assert!(first.starts_with("# Experiments\n") && first.contains("figures 1"));
        let edited = first.replace("# Experiments", "# Mine") + "It agrees.\n";
        let second = with_measured(&edited, "figures 2");
        assert!(second.contains("figures 2") && !second.contains("figures 1"));
        assert!(second.starts_with("# Mine\n") && second.ends_with("It agrees.\n"), "{second}");
    }
}
