//! What is measured in pairs: the servers of a row are started, asked and compared, each in a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};

use amped_measure::stats::Random;
use amped_sys::process::raise_descriptor_limit;
use serde_json::Value;

use super::super::ammeter::said;
use super::super::files;
use super::super::group::Group;
use super::super::record::AGAIN;
use super::super::rig::{Bench, Build, Clocks, Progress, retried};
use super::super::sample::Sample;
use super::super::server::Server;
use super::program::{AMPED, FLOOR, Place, Program, RIVALS};
use super::row::{Asks, Field, Logs, Row, SIZES};
use super::talk::Talk;
use crate::command::{Outcome, output, root};

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only these rows
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) rows: Vec<String>,
    /// Pairs: how often each server is measured in each row
    #[arg(long, value_name = "N", default_value_t = PAIRS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) pairs: u32,
    /// Access log whose files are served in the row `log` [default: an excerpt of NASA's, 1995]
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// Seed of what is asked for, and of the order of measurements
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Core of the servers; the client has the next one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) core: usize,
    /// The result as JSON in place of tables
    #[arg(long)]
    pub(super) json: bool,
    /// Where result.json and README.md go [default: experiments/server-speed; below target with --rows or few pairs]
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Only that the instrument works, in seconds
    #[arg(long, hide = true)]
    pub(super) smoke: bool,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench server                                  all rows, in about nine minutes on a quiet machine
  cargo xtask bench server --rows 1k,new --pairs 20         a closer look at two
  cargo xtask bench server --rows log --log access.log      the files of a log of your own

Rows of CPU time for a request: 0b, 1k, 1k-no-logs, 1k-logs, 10k, 100k, 1m, new, pipelined, 304, 404, 206, rules, long, long-rules,
specweb96, log.
Others: connections, idle, start, disk, overload. The servers that are not there are installed, as by cargo xtask setup.";

/// Enough for an interval of 95 % that leaves out the two values at each end.
pub(super) const PAIRS: u32 = 10;

/// For how long each server is measured in each pair.
const RUN_MS: u32 = 200;

/// What all rows share.
pub(super) struct Speed {
    pub(super) bench: Bench,
    pub(super) floor: PathBuf,
    /// Those that are measured.
    pub(super) rivals: &'static [Program],
    pub(super) pairs: u32,
    pub(super) run_ms: u32,
    log: PathBuf,
    pub(super) random: Random,
    pub(super) progress: Progress,
    pub(super) samples: Vec<Sample>,
    pub(super) refused: Vec<String>,
    /// Servers that have been started.
    started: usize,
}

/// A server that is measured in a row.
struct Arm {
    name: &'static str,
    server: Server,
    /// Flags of `ammeter load`.
    flags: Vec<String>,
    target: String,
}

impl Speed {
    pub(super) fn new(args: &Args) -> Outcome<Speed> {
        let build = Build::of(args.smoke);
        let built = build.make(&["--package", "amped-sys", "--example", "floor"])?.join("examples/floor");
        let bench = Bench::of(build, args.core)?;
        let floor = bench.folder.join("floor");
        fs::copy(&built, &floor).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
        let sizes: Vec<_> = SIZES.iter().map(|bytes| files::of_size(*bytes)).collect();
        files::write(&bench.site(), &sizes, false)?;
        let log = args.log.clone().unwrap_or_else(|| root().join("tests/golden/log/nasa-excerpt.log"));
        let log = std::path::absolute(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        // For thousands of idle connections that are held here.
        raise_descriptor_limit();
        Ok(Speed {
            bench,
            floor,
            rivals: if args.smoke { &RIVALS[..1] } else { RIVALS },
            pairs: args.pairs,
            run_ms: if args.smoke { 100 } else { RUN_MS },
            log,
            random: Random(args.seed),
            progress: Progress::over(0, 0.0),
            samples: Vec::new(),
            refused: Vec::new(),
            started: 0,
        })
    }

    /// What a pair is expected to take, in seconds: runs, and the start of each generator.
    pub(super) fn pair_s(&self) -> f64 {
        (self.rivals.len() + 3) as f64 * (f64::from(self.run_ms) / 1e3 + 0.06)
    }

    /// Starts a server in a folder of its own.
    pub(super) fn start(&mut self, program: &Program, group: Group, site: &Path, names: &[&str]) -> Outcome<Server> {
        let run = self.folder_of_next();
        fs::create_dir_all(&run).map_err(|error| format!("cannot make {}: {error}", run.display()))?;
        let (amped, floor, core) = (&*self.bench.binary, &*self.floor, self.bench.core);
        program.start(group, &Place { run: &run, site, amped, floor, core }, names)
    }

    pub(super) fn folder_of_next(&mut self) -> PathBuf {
        self.started += 1;
        self.bench.folder.join(format!("run-{}", self.started))
    }

    /// Measures a row with all servers. A rival that cannot be measured is left out of it, and the others go on.
    pub(super) fn measure_row(&mut self, row: &Row) -> Outcome {
        let (site, targets) = self.site_of(row)?;
        let mut arms = self.start_arms(row, &site, &targets)?;
        // Beyond its first requests, each server has done whatever it does once.
        let mut at = 0;
        while at < arms.len() {
            match retried(&mut Vec::new(), || self.run_once(row, &mut arms[at])) {
                Ok(_) => at += 1,
                Err(text) => self.leave_out(row, &mut arms, at, &text)?,
            }
        }
        for pair in 0..self.pairs {
            let mut failed = Vec::new();
            let mut order: Vec<usize> = (0..=arms.len()).collect();
            self.random.shuffle(&mut order);
            self.progress.begin(&format!("{:12} pair {:<3}", row.name, pair + 1));
            let mut shown = vec![String::new(); arms.len()];
            for at in order {
                // One more than there are: the first, again.
                let (name, at) = if at == arms.len() { (AGAIN, 0) } else { (arms[at].name, at) };
                let mut refused = Vec::new();
                let sample = retried(&mut refused, || self.run_once(row, &mut arms[at]));
                self.refused.extend(refused.into_iter().map(|text| format!("{}, {name}: {text}", row.name)));
                match sample {
                    Ok(sample) => {
                        shown[at] = format!("{} {:.2}", arms[at].name, sample.cpu_us);
                        self.push(row.name, name, pair, sample);
                    }
                    Err(text) => failed.push((at, text)),
                }
            }
            failed.sort_unstable();
            for (at, text) in failed.iter().rev() {
                self.leave_out(row, &mut arms, *at, text)?;
            }
            let seconds = self.pair_s();
            self.progress.end(seconds, &(shown.join("  ") + " µs"));
        }
        Ok(())
    }

    /// A server whose measurement failed: of a rival nothing remains in the row but the reason; without the others there is
    /// no row.
    fn leave_out(&mut self, row: &Row, arms: &mut Vec<Arm>, at: usize, text: &str) -> Outcome {
        let name = arms[at].name;
        if [AMPED.name, FLOOR.name].contains(&name) {
            return Err(format!("{name}: {text}"));
        }
        arms.remove(at);
        self.samples.retain(|sample| (sample.point.as_str(), sample.arm.as_str()) != (row.name, name));
        self.refused.push(format!("{}, without {name}: {text}", row.name));
        Ok(())
    }

    pub(super) fn push(&mut self, point: &str, arm: &str, round: u32, sample: Sample) {
        self.samples.push(Sample { round: round as usize, point: point.to_owned(), arm: arm.to_owned(), ..sample });
    }

    /// The folder that is served in a row, and what is asked for in it. File sets are made when they are first needed.
    fn site_of(&self, row: &Row) -> Outcome<(PathBuf, Vec<String>)> {
        let log = self.log.to_string_lossy();
        let words: &[&str] = match row.asks {
            Asks::Target(target) => return Ok((self.bench.site(), vec![target.to_owned()])),
            Asks::Deep(segments) => return Ok((self.bench.site(), vec!["/a".repeat(segments)])),
            // 20 folders.
            Asks::Specweb96 => &["specweb96", "--ops", "20"],
            Asks::Log => &["log", &log],
        };
        let folder = self.bench.folder.join(row.name);
        let path = folder.to_string_lossy();
        let words = [&["files"][..], words, &[&path]].concat();
        output(&mut self.bench.client.ammeter(&words))?;
        let manifest = folder.join("manifest.jsonl");
        let text =
            fs::read_to_string(&manifest).map_err(|error| format!("cannot read {}: {error}", manifest.display()))?;
        // The first line says what set it is.
        let target = |line: &str| {
            let file: Value = serde_json::from_str(line).map_err(|error| format!("{}: {error}", manifest.display()))?;
            file["path"].as_str().map(str::to_owned).ok_or_else(|| format!("{}: no path in {line}", manifest.display()))
        };
        let targets = text.lines().skip(1).map(target).collect::<Outcome<_>>()?;
        Ok((folder, targets))
    }

    /// Starts all servers of a row, and looks at what they answer. `amped` is the first, since the floor sends its replies.
    fn start_arms(&mut self, row: &Row, site: &Path, targets: &[String]) -> Outcome<Vec<Arm>> {
        let mut arms = Vec::new();
        let (ours, theirs): (&[&str], &[&str]) = match row.logs {
            Logs::Ours => (&["log"], &[]),
            Logs::Nobody => (&[], &[]),
            Logs::Everybody => (&["log"], &["log"]),
        };
        let rules: &[&str] = if row.rules { &["rules"] } else { &[] };
        let server = self.start(&AMPED, Group::new(None)?, site, &[ours, rules].concat())?;
        arms.push(self.arm(row, AMPED.name, server, site, targets)?);
        let replies = self.bench.folder.join("replies");
        record(row, &arms[0], site, targets, &replies)?;
        let server = self.start(&FLOOR, Group::new(None)?, &replies, &[])?;
        arms.push(self.arm(row, FLOOR.name, server, site, targets)?);
        for rival in self.rivals {
            let server = self.start(rival, Group::new(None)?, site, theirs)?;
            arms.push(self.arm(row, rival.name, server, site, targets)?);
        }
        Ok(arms)
    }

    /// Asks a server for everything once, and looks at what it answers.
    fn arm(&self, row: &Row, name: &'static str, server: Server, site: &Path, targets: &[String]) -> Outcome<Arm> {
        let wrong = |text: String| format!("{name}: {text}");
        let mut talk = Talk::to(server.address).map_err(wrong)?;
        let mut flags: Vec<String> = row.flags.iter().map(|flag| (*flag).to_owned()).collect();
        let field = match row.field {
            Field::None => None,
            Field::Range(range) => Some(format!("Range: {range}")),
            Field::Validator => {
                let answer = talk.ask(&targets[0], "").map_err(wrong)?;
                // The floor looks at nothing.
                answer.field("ETag").map(|etag| format!("If-None-Match: {etag}"))
            }
        };
        let fields = field.as_ref().map_or_else(String::new, |field| format!("{field}\r\n"));
        flags.extend(field.into_iter().flat_map(|field| ["-H".to_owned(), field]));
        for target in targets {
            let answer = talk.ask(target, &fields).map_err(wrong)?;
            if answer.status != row.status {
                let head = String::from_utf8_lossy(&answer.head);
                return Err(wrong(format!("{target} was answered {head}, and not {}", row.status)));
            }
            if let Some(expected) = body(row, site, target)?
                && answer.body != expected
            {
                let (found, length) = (answer.body.len(), expected.len());
                return Err(wrong(format!("{target} was answered with {found} bytes that are not its {length}")));
            }
        }
        let target = match row.asks {
            Asks::Target(_) | Asks::Deep(_) => targets[0].clone(),
            Asks::Specweb96 | Asks::Log => {
                flags.extend(["--workload".to_owned(), site.to_string_lossy().into_owned()]);
                "/".to_owned()
            }
        };
        Ok(Arm { name, server, flags, target })
    }

    /// Puts the load of a row on a server once.
    fn run_once(&self, row: &Row, arm: &mut Arm) -> Outcome<Sample> {
        let duration = format!("{}ms", self.run_ms);
        let mut flags: Vec<&str> = arm.flags.iter().map(String::as_str).collect();
        flags.extend(["--duration", &duration, "--seed", "1", "--timeout", "30s"]);
        self.sample(&mut arm.server, &arm.target, row.status, &flags)
    }

    /// Runs `ammeter load` on a server: what it cost both.
    pub(super) fn sample(&self, server: &mut Server, target: &str, status: u16, flags: &[&str]) -> Outcome<Sample> {
        let clients = &self.bench.client.group;
        let clocks = Clocks::read(&server.group, clients)?;
        let found = said(&mut self.bench.client.load(server.address, target, flags))?;
        let replies = found.replies(status)?;
        let sample = clocks.sample(&server.group, clients, replies, found.seconds, found.received_bytes)?;
        server.check()?;
        Ok(sample)
    }
}

/// What the body of an answer is to be; `None` where each server has its own.
fn body(row: &Row, site: &Path, target: &str) -> Outcome<Option<Vec<u8>>> {
    let path = site.join(target.trim_start_matches('/'));
    let range = match (row.status, row.field) {
        (404, _) => return Ok(None),
        (304, _) => return Ok(Some(Vec::new())),
        (_, Field::Range(range)) => range.trim_start_matches("bytes=").split_once('-'),
        // A name of a file set may be encoded, or be a folder's; of these `ammeter load` looks at the lengths.
        _ if !path.is_file() => return Ok(None),
        _ => None,
    };
    let mut bytes = fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if let Some((first, last)) = range
        && let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>())
    {
        bytes = bytes[first..=last].to_vec();
    }
    Ok(Some(bytes))
}

/// From this length on a body goes out from its file, which is cheaper than from memory (4 to 8 % at 64 to 1024 KiB).
const FROM_FILE: usize = 64 << 10;

/// Writes what `amped` answers for the floor, see `crates/sys/examples/floor.rs`.
fn record(row: &Row, amped: &Arm, site: &Path, targets: &[String], path: &Path) -> Outcome {
    let header = amped.flags.iter().skip_while(|flag| *flag != "-H").nth(1);
    let mut fields = header.map_or_else(String::new, |header| format!("{header}\r\n"));
    let closes = row.flags.contains(&"--requests-per-connection");
    if closes {
        fields += "Connection: close\r\n";
    }
    let mut text = Vec::new();
    let mut talk = Talk::to(amped.server.address)?;
    for target in targets {
        let answer = talk.ask(target, &fields)?;
        if closes {
            talk = Talk::to(amped.server.address)?;
        }
        let file = site.join(target.trim_start_matches('/'));
        let from_file = row.status == 200 && answer.body.len() >= FROM_FILE && file.is_file();
        let place = if from_file { file.to_string_lossy() } else { "-".into() };
        let line = format!("{target} {} {} {place}\n", answer.head.len(), answer.body.len());
        text.extend_from_slice(line.as_bytes());
        text.extend_from_slice(&answer.head);
        if !from_file {
            text.extend_from_slice(&answer.body);
        }
    }
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
