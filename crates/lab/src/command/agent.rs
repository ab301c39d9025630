//! `ammeter agent`: the other side of `ammeter run` with `[hosts]`, on each of them. Hidden: it is started over ssh, and ends with it.

use amped_measure::{Failure, Verdict};

use crate::hosts::agent;

/// No flags: what is to be done comes over standard input.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<Verdict, Failure> {
    agent::run().map(|()| Verdict::valid())
}
