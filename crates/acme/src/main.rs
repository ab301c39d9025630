//! `amped-acme` obtains and renews the certificates of `amped` (ACME, RFC 8555).
//!
//! A process of its own, because the ACME library needs an async runtime, which the server does not have, and because
//! whatever happens here must not disturb serving. The server starts it, with a socket as standard input, and starts it
//! again when it dies.
//!
//! - `link`: the messages to and from the server (`amped-acme-protocol`).
//! - `manager`: what is due, and what has failed; `schedule` computes the times.
//! - `order`: one order; `failure`: why it failed; `client`: its HTTP.
//! - `store`: the files.
#![forbid(unsafe_code)]

mod client;
mod failure;
mod link;
mod manager;
mod order;
mod schedule;
mod store;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use amped_sys::process;
use tokio::runtime::Builder;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("amped-acme: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let socket = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let socket = socket.ok().filter(|socket| socket.local_addr().is_ok());
    let socket = socket.ok_or("only `amped` can start this program, which it does for sites with `acme = true`")?;
    // Keys are in memory from now on.
    process::keep_memory_private().map_err(|error| format!("cannot protect private keys: {error}"))?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the async runtime: {error}"))?;
    runtime.block_on(async {
        let (link, orders) = link::Link::new(socket).map_err(|error| format!("cannot use the socket: {error}"))?;
        manager::run(link, orders).await
    })
}
