//! `ammeter exhibits`: every experiment that is built in, run one after another, and one table of what holds.
//!
//! 1. An archive that is there is taken as it is: it is read by the figures and claims of today's experiment. One that measured by
//!    other settings is put aside, one that was not finished is gone on with. So the command may be stopped at any time, and a
//!    changed sentence costs no measurement.
//! 2. Each experiment is a process of its own, `ammeter run`.
//! 3. After each of them the table in `README.md` and the experiment's figures are written. What stands outside the marks of the
//!    table is a person's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use amped_measure::{Failure, Verdict};

use super::report::adopt;
use crate::archive::{Archive, name};
use crate::exhibits::{self, Exhibit};
use crate::figure::number;
use crate::report::{self, ClaimStatus, Counts, Judged, Report};
use crate::{say, subject};

/// The flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where each experiment's archive goes, or is already
    #[arg(long, value_name = "DIR", default_value = "exhibits")]
    out: PathBuf,
    /// Where the table and the figures go
    #[arg(long, value_name = "DIR", default_value = "experiments")]
    into: PathBuf,
    /// Measure only these, by their names in `ammeter list`; the table has all that are at hand
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// At length: hours in place of an hour
    #[arg(long)]
    whole: bool,
    /// Measure nothing: write what the archives at hand say
    #[arg(long)]
    redraw: bool,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  ammeter exhibits                                         all of them, the short versions: about an hour
  ammeter exhibits --only hu-figure-12,server-speed        two of them
  ammeter exhibits --out old --redraw                      the table and the figures of what was measured";

/// The text before the table in its file, and the text after it.
const BEGIN: &str = "<!-- What follows is written anew by each run. -->";
const END: &str = "<!-- From here on it is a person who writes. -->";

/// An experiment, and what its archive says if all of its runs are there.
struct Entry {
    exhibit: Exhibit,
    is_chosen: bool,
    found: Option<(Archive, Report)>,
}

/// What an archive is good for.
enum Found {
    /// All runs are there.
    Whole(Box<(Archive, Report)>),
    /// Some are not.
    Begun(Box<(Archive, Report)>),
    /// It measured something else, or cannot be read.
    Other,
    /// There is none.
    None,
}

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let chosen: Vec<&str> =
        args.only.iter().map(|name| exhibits::find(name).map(|one| one.name)).collect::<Result<_, _>>()?;
    let entry = |exhibit: &Exhibit| Entry {
        exhibit: *exhibit,
        is_chosen: chosen.is_empty() || chosen.contains(&exhibit.name),
        found: None,
    };
    let mut entries: Vec<Entry> = exhibits::ALL.iter().map(entry).collect();
    // Existing archives take seconds, and the table has the experiments of an interrupted run from the start.
    for entry in &mut entries {
        match find(args, entry.exhibit.name) {
            Found::Whole(found) => entry.found = Some(*found),
            Found::Begun(found) if args.redraw => entry.found = Some(*found),
            Found::Begun(_) | Found::Other | Found::None => {}
        }
        draw(args, entry)?;
    }
    write(args, &entries)?;
    let mut verdict = Verdict::valid();
    for at in 0..entries.len() {
        if args.redraw || entries[at].found.is_some() || !entries[at].is_chosen {
            continue;
        }
        match measure(args, entries[at].exhibit.name) {
            Ok(found) => entries[at].found = Some(found),
            Err(failure) => verdict.broken.push(failure.to_string()),
        }
        draw(args, &entries[at])?;
        write(args, &entries)?;
    }
    say::plain(&format!("written: {}", args.into.join("README.md").display()));
    Ok(verdict)
}

fn find(args: &Args, name: &str) -> Found {
    let dir = args.out.join(name);
    if !dir.exists() {
        return Found::None;
    }
    let read = || {
        let mut archive = Archive::open(&dir)?;
        adopt(&mut archive, name)?;
        Ok::<_, Failure>(archive)
    };
    let Ok(archive) = read() else { return Found::Other };
    let report = report::report(&archive);
    let Counts { planned, there, .. } = report.told.runs;
    let found = Box::new((archive, report));
    if there == planned { Found::Whole(found) } else { Found::Begun(found) }
}

/// Runs one, or goes on with it.
fn measure(args: &Args, name: &str) -> Result<(Archive, Report), Failure> {
    say::plain(&format!("\n==== {name} ===="));
    let mut ended = None;
    for attempt in 0..2 {
        match find(args, name) {
            Found::Whole(found) => return Ok(*found),
            // By another program, perhaps, and that one does not go on.
            Found::Begun(_) if attempt > 0 => put_aside(&args.out, name)?,
            Found::Other => put_aside(&args.out, name)?,
            Found::Begun(_) | Found::None => {}
        }
        let mut command = Command::new(subject::own_program()?);
        command.args(["run", name, "--out"]).arg(args.out.join(name)).args((!args.whole).then_some("--quick"));
        // That a point has no run that counts is a result, and is in the table.
        ended = Some(command.status().map_err(Failure::io("start ammeter run"))?);
    }
    match find(args, name) {
        Found::Whole(found) => Ok(*found),
        _ => Err(Failure::failed(format!("{name}: not all runs are there; ammeter run ended with {ended:?}"))),
    }
}

/// Keeps an archive that is of no use here under a name that is free.
fn put_aside(out: &Path, name: &str) -> Result<(), Failure> {
    let archive = out.join(name);
    let free = (1..).map(|number| out.join(format!("{name}.before-{number}"))).find(|path| !path.exists());
    let aside = free.unwrap_or_default();
    say::plain(&format!("{}: other settings, or another program; kept as {}", archive.display(), aside.display()));
    fs::rename(&archive, &aside).map_err(Failure::io(format_args!("name {}", aside.display())))
}

/// Writes an experiment's report beside its archive, and the figures that it asks for into its folder.
fn draw(args: &Args, entry: &Entry) -> Result<(), Failure> {
    let Some((archive, report)) = &entry.found else { return Ok(()) };
    let page = archive.dir.join(name::REPORT);
    fs::write(&page, &report.html).map_err(Failure::io(format_args!("write {}", page.display())))?;
    let folder = args.into.join(entry.exhibit.name).join("figures");
    let what = format!("write into {}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Failure::io(&what))?;
    }
    fs::create_dir_all(&folder).map_err(Failure::io(&what))?;
    for (name, svg) in report.figures.iter().filter(|(name, _)| report.told.figures.contains(name)) {
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
    let told: Vec<Line<'_>> = entries.iter().map(Line::of).collect();
    let measured = format!("Made by `{command}`, on {}.\n\n{}", machines.join("; "), table(&told));
    let before = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&path, with_measured(&before, &measured)).map_err(Failure::io(&what))
}

/// Puts what was measured between the marks of a text; a new one gets a heading.
fn with_measured(text: &str, measured: &str) -> String {
    let parts = text.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (head, tail) = parts.unwrap_or(("# Experiments\n\n", "\n"));
    format!("{head}{BEGIN}\n\n{}\n\n{END}{tail}", measured.trim_end())
}

/// An experiment as the table has it.
struct Line<'a> {
    name: &'a str,
    makes: Vec<String>,
    found: Option<(&'a Counts, &'a [Judged], &'a [String])>,
}

impl Line<'_> {
    fn of(entry: &Entry) -> Line<'_> {
        let mut makes: Vec<String> = entry.exhibit.makes().into_iter().map(|(name, _)| name).collect();
        if makes.is_empty() {
            makes.push(entry.exhibit.name.to_owned());
        }
        let told = entry.found.as_ref().map(|(_, report)| &report.told);
        Line {
            name: entry.exhibit.name,
            makes,
            found: told.map(|told| (&told.runs, &told.claims[..], &told.figures[..])),
        }
    }
}

/// A line for each claim, under the exhibits whose experiment holds it.
fn table(lines: &[Line<'_>]) -> String {
    let claims = || lines.iter().filter_map(|line| line.found).flat_map(|(_, claims, _)| claims);
    let count = |status: ClaimStatus| claims().filter(|claim| claim.status == status).count();
    let mut text = format!(
        "Of {} claims {} hold, {} do not, {} were not applied, {} are undecided and {} cannot be told. A figure is the median over the \
         blocks of an experiment, each of which measured what is compared within minutes, with its interval; it holds where all of the \
         interval is within the bound. Fewer than 6 blocks cover less than 95 % and decide nothing; without `--whole` an experiment has \
         2 or 3.\n\n\
         | experiment | claim | there | here | holds | status |\n|---|---|---|---|---|---|\n",
        claims().count(),
        count(ClaimStatus::StillHolds),
        count(ClaimStatus::NoLonger),
        count(ClaimStatus::NotApplied),
        count(ClaimStatus::Undecided),
        count(ClaimStatus::CannotBeTold),
    );
    for Line { name, makes, found } in lines {
        // Names break lines, so that the column stays narrow.
        let names: Vec<String> = makes.iter().map(|name| format!("`{name}`")).collect();
        let mut first = format!("{}<br>[file]({name}/experiment.toml)", names.join("<br>"));
        let Some((Counts { there, valid, censored, invalid, .. }, claims, figures)) = found else {
            text += &format!("| {first} | | | not measured | | |\n");
            continue;
        };
        for (at, figure) in figures.iter().enumerate() {
            let before = if at == 0 { ", figures" } else { "" };
            first += &format!("{before} [{}]({name}/figures/{figure}.svg)", at + 1);
        }
        first += &format!("<br>{there} runs: {valid} valid");
        for (count, what) in [(censored, "at least"), (invalid, "invalid")].into_iter().filter(|(count, _)| **count > 0)
        {
            first += &format!(", {count} {what}");
        }
        for claim in *claims {
            text += &format!("| {first} | {} |\n", cells(claim));
            first.clear();
        }
    }
    text
}

fn cells(claim: &Judged) -> String {
    let unit = if claim.unit.is_empty() { String::new() } else { format!(" {}", claim.unit) };
    let here = claim.here.map_or_else(
        || "no runs that count".to_owned(),
        |[low, median, high]| {
            let [median, low, high] = [median, low, high].map(number);
            let blocks = if claim.blocks == 1 { "1 block".to_owned() } else { format!("{} blocks", claim.blocks) };
            format!("**{median}**{unit} ({low} to {high}; {blocks}), {}", claim.compared)
        },
    );
    let status = match claim.status {
        ClaimStatus::StillHolds => "holds",
        ClaimStatus::NoLonger => "**does not** hold",
        ClaimStatus::NotApplied => "not applied",
        ClaimStatus::Undecided => "undecided",
        ClaimStatus::CannotBeTold => "cannot be told",
    };
    let paper = claim.paper.map_or(String::new(), |paper| format!("{}{unit}", number(paper)));
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    [&claim.says, &paper, &here, &claim.holds, status].map(cell).join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_line_for_each_claim() {
        let claim = |says: &str, here, status| Judged {
            says: says.to_owned(),
            compared: "on / off".to_owned(),
            holds: "below 0.98".to_owned(),
            paper: Some(0.912),
            here,
            unit: "",
            blocks: 6,
            coverage: 0.97,
            status,
            why: String::new(),
        };
        let claims = [
            claim("A log takes a|tenth", Some([0.9, 0.923_456, 0.95]), ClaimStatus::StillHolds),
            claim("It is lost", None, ClaimStatus::CannotBeTold),
        ];
        let counts = Counts { planned: 4, there: 4, again: 0, valid: 3, censored: 1, invalid: 0 };
        let figures = ["figure-5-a".to_owned()];
        let lines = [
            Line { name: "a", makes: vec!["a-1".to_owned(), "a-2".to_owned()], found: None },
            Line { name: "b", makes: vec!["b".to_owned()], found: Some((&counts, &claims, &figures)) },
        ];
        let text = table(&lines);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("Of 2 claims 1 hold, 0 do not, 0 were not applied, 0 are undecided and 1 "),
            "{text}"
        );
        assert_eq!(lines[4], "| `a-1`<br>`a-2`<br>[file](a/experiment.toml) | | | not measured | | |");
        assert_eq!(
            lines[5],
            "| `b`<br>[file](b/experiment.toml), figures [1](b/figures/figure-5-a.svg)<br>4 runs: 3 valid, 1 at least \
             | A log takes a\\|tenth | 0.912 | **0.923** (0.9 to 0.95; 6 blocks), on / off | below 0.98 | holds |"
        );
        assert_eq!(lines[6], "|  | It is lost | 0.912 | no runs that count | below 0.98 | cannot be told |");
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
