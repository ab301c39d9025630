//! `cargo xtask bench server`: what a request costs `amped`, beside nginx, lighttpd, h2o, Apache, and a loop that does nothing
//! but move bytes.
//!
//! 1. Everything is built or installed; the servers and their configurations are in `program`.
//! 2. A row (`row`) starts all of them on one core, asks each and looks at the answer (`talk`); the floor gets those of `amped`
//!    for its own, so that both send the same bytes.
//! 3. In each pair all servers are measured for a fifth of a second each, in an order drawn from a seed, `amped` twice: what
//!    it makes with itself is the noise. The client is `ammeter load` on the other core, a closed loop, since what is compared
//!    is the server's CPU time for a request, by its control group, and not the rate (`pairs`).
//! 4. What is no matter of CPU time for a request (overload, a slow disk, memory, the start) is in `single`.
//! 5. `told` sets medians, intervals and ratios within a pair beside the targets.

mod pairs;
pub(super) mod program;
mod row;
mod single;
mod talk;
mod told;

use amped_measure::host::load_average;

pub(crate) use self::pairs::Args;
use self::pairs::{PAIRS, Speed};
use self::program::Program;
use self::row::{ROWS, Row};
use self::single::SINGLES;
use super::record::Record;
use super::rig::Progress;
use super::{host, report};
use crate::command::{Outcome, root, target_dir};
use crate::setup;

/// Of the smoke test, which has two rivals' worth of time in all.
const SMOKE_ROWS: &[&str] = &["1k", "100k", "new", "pipelined", "304", "404", "206", "start"];

pub(super) fn run(args: &Args) -> Outcome {
    let names: Vec<&str> = ROWS.iter().map(|row| row.name).chain(SINGLES.iter().map(|single| single.name)).collect();
    if let Some(unknown) = args.rows.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("there is no row {unknown}; there are {}", names.join(", ")));
    }
    let is_chosen = |name: &str| {
        let smoke = !args.smoke || SMOKE_ROWS.contains(&name);
        smoke && (args.rows.is_empty() || args.rows.iter().any(|row| row == name))
    };
    let rows: Vec<&Row> = ROWS.iter().filter(|row| is_chosen(row.name)).collect();
    let singles: Vec<_> = SINGLES.iter().filter(|single| is_chosen(single.name)).collect();

    if !args.smoke {
        setup::bring_rivals()?;
    }
    let mut speed = Speed::new(args)?;
    let mut host = host::Host::now()?;
    host.programs = speed.rivals.iter().filter_map(Program::version).collect();

    let pairs = rows.len() * args.pairs as usize;
    let seconds = speed.pair_s() * pairs as f64 + singles.iter().map(|single| (single.seconds)(&speed)).sum::<f64>();
    let count = pairs + singles.iter().map(|single| (single.count)(&speed)).sum::<usize>();
    speed.progress = Progress::over(count, seconds);

    let mut troubles = Vec::new();
    for row in &rows {
        troubles.extend(speed.measure_row(row).err().map(|text| format!("{}: {text}", row.name)));
    }
    for single in &singles {
        troubles.extend((single.measure)(&mut speed).err().map(|text| format!("{}: {text}", single.name)));
    }
    host.load_after = load_average()?;
    let whole = args.rows.is_empty() && args.pairs >= PAIRS && !args.smoke;
    let Speed { samples, refused, .. } = speed;
    let record = Record { quick: !whole, seed: args.seed, host, left_out: Vec::new(), refused, samples };
    if args.json {
        println!("{}", report::json(&record)?)
    } else {
        println!("{}", told::tables(&record, args.pairs))
    }
    if troubles.is_empty() {
        let usual = || if whole { root().join("experiments/server-speed") } else { target_dir().join("server-speed") };
        let folder = args.out.clone().unwrap_or_else(usual);
        told::write(&folder, &record, args.pairs)?;
        eprintln!("written: {}", folder.display());
        return Ok(());
    }
    Err(format!("not everything was measured:\n  {}", troubles.join("\n  ")))
}

/// The short form, as `cargo xtask test` runs it: each kind of row once, with the one rival that tests need anyway.
pub(super) fn smoke() -> Outcome {
    let out = Some(target_dir().join("experiments-smoke/server-speed"));
    run(&Args { rows: Vec::new(), pairs: 1, log: None, seed: 1, core: 0, json: false, out, smoke: true })
}
