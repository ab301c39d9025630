//! Load: wrk asks as fast as it is answered, `ammeter load` asks at a pace and tells how long each answer took.
//!
//! wrk is a closed loop and corrects the latencies that it prints by ones that it invents, so its counts are used alone. The
//! latencies are those of `ammeter`: one cached file is asked for at times that were planned before, each time on a
//! connection of its own, and a latency counts from the planned time. So a stall counts for each request that falls into it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use super::ammeter::{self, Latency, Said};
use super::client::Client;
use super::sample::HotLatency;
use crate::command::{Outcome, output, shown};

/// What is asked of a server.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// One target for all requests, or a file of targets that are asked for in their order, again and again.
    pub(super) targets: Targets,
    /// Requests under way at once, each on its own connection.
    pub(super) connections: usize,
    /// A new connection for each request.
    pub(super) fresh: bool,
    /// Whole seconds: wrk knows no others.
    pub(super) seconds: u32,
    /// A cached target whose latency is measured beside the load.
    pub(super) hot: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Targets {
    /// The path, and how many bytes its body has.
    One(String, u64),
    /// A name for the list, and its paths.
    List(String, Vec<String>),
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    /// Answered, the paced ones included.
    pub(super) requests: u64,
    /// Of the load, without the paced ones.
    pub(super) seconds: f64,
    pub(super) bytes: u64,
    /// How long the paced ones took.
    pub(super) hot: Option<HotLatency>,
}

/// Paced requests a second, each on a connection of its own: the server's state decides nothing about when they are made.
const PACE: u32 = 200;

impl Client {
    /// Asks for each of these on one of so many connections.
    pub(super) fn warm(&self, address: SocketAddr, targets: &[String], connections: usize) -> Outcome {
        self.write("warm.txt", &(targets.join("\n") + "\n"))?;
        let [count, connections] = [targets.len(), connections].map(|number| number.to_string());
        let base = format!("http://{address}/");
        let list = self.path("warm.txt");
        let words = ["h2load", "--h1", "-c", &connections, "-n", &count, "-B", &base, "-i", &list];
        let said = output(&mut self.group.command(self.core, &words))?;
        if said.contains(&format!("status codes: {count} 2xx")) { Ok(()) } else { Err(unanswered(&said)) }
    }

    /// Puts the load on the server, from the request number `from` of a list on. What is not a whole answer is an error.
    pub(super) fn run(&self, address: SocketAddr, load: &Load, from: usize) -> Outcome<Heard> {
        let paced = load.hot.as_ref().map(|hot| self.start_paced(address, hot, load.seconds)).transpose()?;
        let counted = self.run_wrk(address, load, from);
        // Waited for whatever wrk said: it would be in the next measurement.
        let hot = paced.map(paced_latency).transpose();
        let (heard, hot) = (counted?, hot?);
        Ok(Heard { requests: heard.requests + hot.map_or(0, |hot| hot.count as u64), hot, ..heard })
    }

    fn run_wrk(&self, address: SocketAddr, load: &Load, from: usize) -> Outcome<Heard> {
        let (connections, duration) = (load.connections.to_string(), format!("{}s", load.seconds));
        let mut words = vec!["wrk", "-t", "1", "-c", &connections, "-d", &duration, "--timeout", "30s"];
        if load.fresh {
            words.extend(["-H", "Connection: close"]);
        }
        let script = self.path(if matches!(load.targets, Targets::One(..)) { "one.lua" } else { "list.lua" });
        let (url, list, from) = match &load.targets {
            Targets::One(path, _) => (format!("http://{address}{path}"), None, from),
            Targets::List(name, paths) => {
                let file = format!("{name}.txt");
                if !Path::new(&self.path(&file)).exists() {
                    self.write(&file, &(paths.join("\n") + "\n"))?;
                }
                (format!("http://{address}/"), Some(self.path(&file)), from)
            }
        };
        let from = from.to_string();
        words.extend(["-s", &script, &url]);
        if let Some(list) = &list {
            words.extend(["--", list, &from]);
        }
        let heard = counted(&output(&mut self.group.command(self.core, &words))?)?;
        match load.targets {
            Targets::One(_, bytes) if heard.bytes < heard.requests * bytes => {
                Err(format!("bodies were cut: {} bytes in {} answers of {bytes}", heard.bytes, heard.requests))
            }
            _ => Ok(heard),
        }
    }

    fn start_paced(&self, address: SocketAddr, hot: &str, seconds: u32) -> Outcome<Child> {
        let (pace, seconds) = (PACE.to_string(), format!("{seconds}s"));
        // What is late is late since it was planned, and is waited for when the time is over.
        let flags = ["--rate", &pace, "--arrivals", "constant", "--duration", &seconds, "--timeout", "30s"];
        let mut command = self.load(address, hot, &flags);
        command.spawn().map_err(|error| format!("cannot start `{}`: {error}", shown(&command)))
    }
}

/// The lines of h2load that count.
fn unanswered(said: &str) -> String {
    let lines = said.lines().filter(|line| line.starts_with("requests:") || line.starts_with("status codes:"));
    format!("h2load was not answered everything: {}", lines.collect::<Vec<_>>().join(", "))
}

/// Reads the line that `done` printed.
fn counted(said: &str) -> Outcome<Heard> {
    let line = said.lines().find_map(|line| line.strip_prefix("counted ")).ok_or_else(|| format!("wrk said {said}"))?;
    let figure = |key: &str| -> Outcome<u64> {
        let value = line.split(' ').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('=')?.parse().ok());
        value.ok_or_else(|| format!("no {key} in what wrk said: {line}"))
    };
    for what in ["connect", "read", "write", "status", "timeout"] {
        if figure(what)? > 0 {
            return Err(format!("wrk met errors: {line}"));
        }
    }
    let duration = Duration::from_micros(figure("us")?);
    match figure("requests")? {
        0 => Err("wrk was answered nothing".to_owned()),
        requests => Ok(Heard { requests, seconds: duration.as_secs_f64(), bytes: figure("bytes")?, hot: None }),
    }
}

/// Waits for the paced requests. That some were made late is no fault of a measurement that counts from when they were planned,
/// so the generator's own verdict is not asked.
fn paced_latency(child: Child) -> Outcome<HotLatency> {
    let ended = child.wait_with_output().map_err(|error| format!("ammeter: {error}"))?;
    latency_of(&ammeter::read(&ended)?)
}

/// Of a run in which everything was answered.
fn latency_of(said: &Said) -> Outcome<HotLatency> {
    let Said { planned, ok, failures, latency, .. } = said;
    let us = |ms: f64| (ms * 1e3).round() as u64;
    let Latency { p50_ms, p99_ms, max_ms, .. } = *latency;
    match usize::try_from(*ok) {
        Ok(count @ 1..) if ok == planned => Ok(HotLatency { count, p50: us(p50_ms), p99: us(p99_ms), max: us(max_ms) }),
        _ => Err(format!("of the hot file {ok} of {planned} were answered, {failures:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_wrk_counted() {
        let good =
            "Running 1s test\ncounted requests=10 us=2000000 bytes=5000 connect=0 read=0 write=0 status=0 timeout=0";
        let heard = counted(good).unwrap();
        assert_eq!((heard.requests, heard.seconds, heard.bytes), (10, 2.0, 5000));
        let check = |from: &str, to: &str, says: &str| {
            let error = counted(&good.replace(from, to)).unwrap_err();
            assert!(error.contains(says), "{error}");
        };
        check("status=0", "status=3", "status=3");
        check("read=0", "read=1", "errors");
        check("requests=10", "requests=0", "answered nothing");
        check("bytes", "octets", "no bytes");
        check("counted", "", "wrk said");
    }

    #[test]
    fn the_hot_file_is_answered_each_time_or_nothing_was_measured() {
        let said = |ok: u32| latency_of(&ammeter::tests::said(7, ok.into(), "[]", "[0,7,0,0,0]"));
        let HotLatency { count, p50, p99, max } = said(7).unwrap();
        assert_eq!((count, p50, p99, max), (7, 1000, 2000, 3000));
        assert!(said(6).is_err(), "one was not answered");
        assert!(said(0).is_err(), "nothing was");
    }
}
