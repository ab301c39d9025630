//! `ammeter host`: the machine's properties, as recorded with each result.

use amped_measure::host::{Machine, load_average};
use amped_measure::{Failure, Verdict};
use serde::Serialize;

use crate::say;

/// The command-line flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print the record as JSON, on one line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Host {
    machine: Machine,
    /// Of 1, 5 and 15 minutes.
    load_average: String,
}

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let host = Host { machine: Machine::this()?, load_average: load_average()? };
    if args.json {
        say::json(&host)?;
    } else {
        let Machine { cpu, cores, kernel, congestion_control } = &host.machine;
        let load = &host.load_average;
        say::out(&format!(
            "processor           {cpu}, {cores} cores\nkernel              {kernel}\n\
             congestion control  {congestion_control}\nload average        {load}"
        ))?;
    }
    Ok(Verdict::valid())
}
