//! `cargo xtask bench ablation`: what each optimisation and each architecture is worth on this machine, as the papers
//! measured it.
//!
//! 1. The server is built, nothing is built afterwards, and a copy of it is what is measured.
//! 2. Each exhibit (`exhibit/`) is a list of servers (arms) and loads (points). In each round every point is
//!    measured with every arm, in an order drawn from a seed; what is compared was measured within seconds. The first arm
//!    goes twice, which shows what the noise alone makes of no difference at all.
//! 3. A measurement starts a server in a control group of its own (`server`, `group`), warms it, puts a load on it (`load`)
//!    and takes CPU time, rate and latency. One that met an error is refused and made again.
//! 4. Medians, intervals and ratios within a round (`amped_measure::stats`) become a table, a plot and a file of all samples
//!    (`report`, `plot`) in `experiments/NAME`. What they mean a person writes there.
//!
//! CPU time for a request is what is compared in the first place: it holds still while neighbours come and go, and can be
//! told where the client is slower than the server, as it is here for small files. A rate stands beside it.

mod ammeter;
mod classes;
mod client;
mod curves;
mod disks;
mod exhibit;
mod exhibits;
mod files;
mod generator;
mod group;
mod host;
mod load;
mod metrics;
mod plot;
mod record;
mod report;
mod rig;
mod s_clients;
mod sample;
mod server;
mod speed;
mod wan;
mod wan_effects;

use std::path::PathBuf;

use amped_measure::host::load_average;

use crate::command::{Outcome, root, target_dir};
use exhibit::{Exhibit, Scale};
use record::{LeftOut, Record};
use rig::{Bench, Build, Progress, REFUSES};

#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// What each optimisation and architecture is worth: Hu's figure 12, Flash's experiments, and ours
    #[command(after_help = EXAMPLES)]
    Ablation(Ablation),
    /// Where the CPU time of amped and nginx goes, by the size of files (Hu, Nanda and Yang, figures 6 to 10)
    Classes(classes::Args),
    /// The papers' exhibits by `ammeter run`, and one table of what still holds
    Exhibits(exhibits::Args),
    /// What a request costs `ammeter load` itself, beside wrk
    Load(generator::Args),
    /// What a request costs `amped`, other servers, and a loop that only moves bytes
    Server(speed::Args),
    /// What it costs the server to count and to time its requests
    Metrics(metrics::Args),
    /// Make tables and plots again from results that are there
    Redraw(Chosen),
    /// The load that simple clients offer to a server, and that of S-Clients (Banga and Druschel, figures 5 and 6)
    SClients(s_clients::Args),
    /// What one core carries through the delay router of `ammeter wan`
    Wan(wan::Args),
    /// What round-trip delay and loss do to amped and to apache2 (Banga and Druschel, figures 9 and 10)
    WanEffects(wan_effects::Args),
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench ablation --quick                                 everything once, in about two minutes
  cargo xtask bench ablation                                         for results, about half an hour on a quiet machine
  cargo xtask bench ablation --only flash-single-file,residency";

#[derive(clap::Args)]
pub(crate) struct Ablation {
    #[command(flatten)]
    chosen: Chosen,
    /// Seed of the files, of what is asked for, and of the order of measurements
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Core of the server; the load generator has the next one
    #[arg(long, value_name = "N", default_value_t = 0)]
    core: usize,
    /// Only that the instrument works, in seconds
    #[arg(long, hide = true, conflicts_with = "quick")]
    smoke: bool,
}

#[derive(clap::Args)]
pub(crate) struct Chosen {
    /// Each arm once and few points: that everything works, not what it is worth
    #[arg(long)]
    quick: bool,
    /// Only these exhibits
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Where each exhibit gets its folder [default: experiments, with --quick target/experiments]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Outcome {
    match args {
        Args::Ablation(args) => ablation(args),
        Args::Classes(args) => classes::run(args),
        Args::Exhibits(args) => exhibits::run(args),
        Args::Load(args) => generator::run(args),
        Args::Server(args) => speed::run(args),
        Args::Metrics(args) => metrics::run(args),
        Args::Redraw(chosen) => redraw(chosen),
        Args::SClients(args) => s_clients::run(args),
        Args::Wan(args) => wan::run(args),
        Args::WanEffects(args) => wan_effects::run(args),
    }
}

/// The short form, as `cargo xtask test` runs it.
pub(crate) fn smoke() -> Outcome {
    let only = vec!["alignment".to_owned(), "flash-data-set".to_owned()];
    let chosen = Chosen { quick: false, only, out: Some(target_dir().join("experiments-smoke")) };
    ablation(&Ablation { chosen, seed: 1, core: 0, smoke: true })?;
    speed::smoke()
}

impl Chosen {
    fn scale(&self) -> Scale {
        if self.quick { Scale::Quick } else { Scale::Full }
    }

    fn out(&self) -> PathBuf {
        let usual = || if self.quick { target_dir().join("experiments") } else { root().join("experiments") };
        self.out.clone().unwrap_or_else(usual)
    }

    fn exhibits(&self, scale: Scale, seed: u64) -> Outcome<Vec<Exhibit>> {
        let mut exhibits = exhibit::all(scale, seed);
        let names: Vec<&str> = exhibits.iter().map(|exhibit| exhibit.name).collect();
        if let Some(unknown) = self.only.iter().find(|name| !names.contains(&&name[..])) {
            return Err(format!("there is no exhibit {unknown}; there are {}", names.join(", ")));
        }
        exhibits.retain(|exhibit| self.only.is_empty() || self.only.iter().any(|name| name == exhibit.name));
        Ok(exhibits)
    }
}

fn ablation(args: &Ablation) -> Outcome {
    let scale = if args.smoke { Scale::Smoke } else { args.chosen.scale() };
    let exhibits = args.chosen.exhibits(scale, args.seed)?;
    let bench = Bench::of(Build::of(args.smoke), args.core)?;
    let mut host = host::Host::now()?;

    let mut troubles = Vec::new();
    let mut able = Vec::new();
    for mut exhibit in exhibits {
        let left_out = bench.leave_out(&mut exhibit)?;
        for LeftOut { arms, why } in &left_out {
            troubles.push(format!("{}: {}: this server {REFUSES}: {why}", exhibit.name, arms.join(", ")));
        }
        if exhibit.arms.len() > 1 {
            able.push((exhibit, left_out));
        }
    }
    troubles.iter().for_each(|trouble| println!("left out: {trouble}"));

    let mut progress = Progress::new(able.iter().map(|(exhibit, _)| exhibit));
    for (exhibit, left_out) in able {
        println!("\n==== {}: {} ====", exhibit.name, exhibit.title);
        host.load_before = load_average()?;
        let measured = bench.measure_all(&exhibit, args.seed, &mut progress);
        host.load_after = load_average()?;
        match measured {
            Err(text) => {
                println!("{}: {text}", exhibit.name);
                troubles.push(format!("{}: {text}", exhibit.name));
            }
            Ok((samples, refused)) => {
                let host = host.clone();
                let quick = scale != Scale::Full;
                let record = Record { quick, seed: args.seed, host, left_out, refused, samples };
                let folder = args.chosen.out().join(exhibit.name);
                println!("\n{}", report::tables(&exhibit, &record));
                report::write(&folder, &exhibit, &record)?;
                println!("written: {}", folder.display());
            }
        }
    }
    match (troubles.len(), args.smoke) {
        (0, _) => Ok(()),
        // What the server cannot do yet is no fault of the instrument.
        (_, true) if troubles.iter().all(|trouble| trouble.contains(REFUSES)) => Ok(()),
        _ => Err(format!("not everything was measured:\n  {}", troubles.join("\n  "))),
    }
}

fn redraw(chosen: &Chosen) -> Outcome {
    for exhibit in chosen.exhibits(chosen.scale(), 1)? {
        let folder = chosen.out().join(exhibit.name);
        if folder.join("result.json").exists() {
            let record = report::read(&folder)?;
            report::write(&folder, &exhibit, &record)?;
            println!("{}", folder.display());
        }
    }
    Ok(())
}
