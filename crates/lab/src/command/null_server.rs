//! `ammeter null-server`: a server that does as little as possible, against which `ammeter run` tests its clients.
//! Hidden: users test a machine's clients with `ammeter load --calibrate`.

use std::net::SocketAddr;

use ammeter_load::null::Null;
use amped_measure::{Failure, Verdict};

use crate::say;

/// The command-line flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Address to listen on
    #[arg(value_name = "ADDR:PORT")]
    address: SocketAddr,
}

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let server = Null::at(args.address)?;
    say::plain(&format!("serving on http://{}/; stop with Ctrl-C", server.address()));
    loop {
        // A signal ends the program.
        std::thread::park();
    }
}
