//! `ammeter session`: the session of `ammeter run` on a remote host. Hidden: it is started over ssh, and ends with it.

use amped_measure::{Failure, Verdict};

use crate::hosts::session;

/// No flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<Verdict, Failure> {
    session::run().map(|()| Verdict::valid())
}
