//! Third-party programs against the real server: curl, h2load, wrk and strace unchanged, nginx and Apache as
//! references.
//!
//! A missing program fails its tests; `cargo xtask setup` installs all of them.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

#[path = "../wire/harness.rs"]
#[allow(dead_code, reason = "shared with the wire tests, which use the rest of it")]
mod harness;

#[path = "../nginx.rs"]
mod started_nginx;

#[path = "../ports.rs"]
mod ports;

#[path = "../php.rs"]
#[allow(dead_code, reason = "shared with the wire tests, which use the rest of it")]
mod php;

#[path = "../requests.rs"]
mod requests;

mod apache;
mod apache_cgi;
mod applications;
mod backends;
mod ceph;
mod convert;
mod convert_access;
mod convert_caching;
mod curl;
mod http2;
mod load;
mod nginx;
mod object_store;
mod proxies;
mod strace;
mod tls;

use std::path::PathBuf;
use std::process::Command;

/// Returns a command for a third-party program.
fn peer(name: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian installs nginx in a directory that a plain user's PATH lacks.
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = dirs.map(|dir| dir.join(name)).find(|file| file.is_file());
    Command::new(found.unwrap_or_else(|| panic!("{name} is not installed: run cargo xtask setup")))
}

/// Returns the output of a program, after checking that it succeeded.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}
