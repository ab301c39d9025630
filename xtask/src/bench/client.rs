//! The generators of load, wrk and a copy of `ammeter`, in a group of their own on a core of their own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::group::Group;
use crate::command::Outcome;

/// Prints what wrk has counted in one line. wrk counts as `status` what is neither 2xx nor 3xx.
const DONE: &str = r#"
function done(summary, latency, requests)
   local e = summary.errors
   print(string.format("counted requests=%d us=%d bytes=%d connect=%d read=%d write=%d status=%d timeout=%d",
      summary.requests, summary.duration, summary.bytes, e.connect, e.read, e.write, e.status, e.timeout))
end
"#;

/// Asks for the lines of a file in their order, from the one whose number is given.
const LIST: &str = r#"
local requests, at = {}, 0
function init(args)
   for line in io.lines(args[1]) do requests[#requests + 1] = wrk.format("GET", line) end
   at = tonumber(args[2]) % #requests
end
function request()
   at = at % #requests + 1
   return requests[at]
end
"#;

/// The program of the laboratory, a copy of which generates too.
pub(super) const AMMETER: &str = "ammeter";

/// The generators, in a group of their own on a core of their own.
pub(super) struct Client {
    pub(super) group: Group,
    pub(super) core: usize,
    folder: PathBuf,
}

impl Client {
    /// Writes what wrk needs into `folder`. `built`: where `ammeter` is.
    pub(super) fn new(built: &Path, folder: &Path, core: usize) -> Outcome<Client> {
        let built = built.join(AMMETER);
        let ammeter = folder.join(AMMETER);
        fs::copy(&built, &ammeter).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
        let client = Client { group: Group::new(None)?, core, folder: folder.to_owned() };
        client.write("one.lua", DONE)?;
        client.write("list.lua", &format!("{LIST}{DONE}"))?;
        Ok(client)
    }

    /// A command of `ammeter`, of which there is a copy that nobody builds anew in the midst of a measurement.
    pub(super) fn ammeter(&self, words: &[&str]) -> Command {
        self.group.command(self.core, &[&[self.path(AMMETER).as_str()][..], words].concat())
    }

    /// `ammeter load` on this target of a server, with these flags.
    pub(super) fn load(&self, address: SocketAddr, target: &str, flags: &[&str]) -> Command {
        let url = format!("http://{address}{target}");
        let mut command = self.ammeter(&[&["load", &url, "--json", "--others-max", "100%"][..], flags].concat());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A file among ours.
    pub(super) fn path(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Outcome {
        fs::write(self.path(name), text).map_err(|error| format!("cannot write {}: {error}", self.path(name)))
    }
}
