//! `ammeter session`: a host of `ammeter run` with `[hosts]`. Hidden: it is started over ssh, and ends with it.

use amped_measure::{Failure, Verdict};

use crate::hosts::session;

/// No flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<Verdict, Failure> {
    session::run().map(|()| Verdict::valid())
}
