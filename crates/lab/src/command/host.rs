//! `ammeter host`: the machine's properties, as recorded with each result.

use ammeter_load::drive::Stop;
use amped_measure::host::{Machine, load_average};
use amped_measure::{Failure, Verdict};
use serde::Serialize;

use crate::run::look_at_rest;
use crate::say;

/// The command-line flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print the record as JSON, in one line
    #[arg(long)]
    json: bool,
    /// Measure for a second how busy the machine is, and print it as JSON
    #[arg(long)]
    rest: bool,
}

#[derive(Serialize)]
struct Host {
    machine: Machine,
    /// Of 1, 5 and 15 minutes.
    load_average: String,
}

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    if args.rest {
        return say::json(&look_at_rest(&Stop::default())?).map(|()| Verdict::valid());
    }
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
