//! Rows that are no matter of CPU time for a request: idle connections, what is needed at rest, a slow disk, overload.
//!
//! Each fills samples of points of its own; `told` knows which of them are set against which.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use amped_measure::Validity;

use super::super::ammeter::{Latency, said};
use super::super::files::{self, FileSpec, disk_of};
use super::super::group::Group;
use super::super::rig::{Clocks, rounded};
use super::super::sample::{HotLatency, Sample};
use super::super::server::Server;
use super::pairs::Speed;
use super::program::{AMPED, NGINX, Program};
use super::talk::Talk;
use crate::command::Outcome;

/// A row of its own kind.
pub(super) struct Single {
    pub(super) name: &'static str,
    /// How many steps of progress it has, and how long they take together, in seconds.
    pub(super) count: fn(&Speed) -> usize,
    pub(super) seconds: fn(&Speed) -> f64,
    pub(super) measure: fn(&mut Speed) -> Outcome,
}

/// In the order in which they are measured: those that fill the disk's queue and the tables of sockets last.
pub(super) const SINGLES: &[Single] = &[
    Single {
        name: "connections",
        count: |speed| 2 * LEVELS.len() * speed.pairs as usize,
        seconds: |speed| 2.0 * f64::from(speed.pairs) * LEVELS_S,
        measure: connections,
    },
    Single {
        name: "idle",
        count: |speed| rounds(speed) * (speed.rivals.len() + 1),
        seconds: |speed| (rounds(speed) * (speed.rivals.len() + 1)) as f64 * IDLE_S,
        measure: idle,
    },
    Single {
        name: "start",
        count: |speed| speed.pairs as usize,
        seconds: |speed| f64::from(speed.pairs) * START_S,
        measure: start,
    },
    Single {
        name: "disk",
        count: |speed| 3 * rounds(speed),
        seconds: |speed| (3 * rounds(speed)) as f64 * DISK_S,
        measure: disk,
    },
    Single { name: "overload", count: |_| 2, seconds: |_| 2.0 * OVERLOAD_S, measure: overload },
];

/// Times that what takes seconds is measured.
fn rounds(speed: &Speed) -> usize {
    speed.pairs.min(3) as usize
}

/// What all of them take for a server, in seconds.
const LEVELS_S: f64 = 2.5;

/// Connections, of which [`ACTIVE`] at most ask.
pub(super) const LEVELS: [usize; 4] = [10, ACTIVE, 1000, 10_000];

pub(super) const ACTIVE: usize = 64;

/// What a sample with so many connections is called.
pub(super) fn with_connections(count: usize) -> String {
    format!("{count} connections")
}

/// What connections cost that do nothing, beside some that ask.
fn connections(speed: &mut Speed) -> Outcome {
    let site = speed.bench.site();
    let mut servers = Vec::new();
    for program in [&AMPED, &NGINX] {
        let names: &[&str] = if program.name == AMPED.name { &["log"] } else { &[] };
        servers.push((program.name, speed.start(program, Group::new(None)?, &site, names)?));
    }
    for pair in 0..speed.pairs {
        let mut order: Vec<(usize, usize)> =
            (0..servers.len()).flat_map(|at| LEVELS.map(|level| (at, level))).collect();
        speed.random.shuffle(&mut order);
        for (at, level) in order {
            let (name, server) = &mut servers[at];
            let point = with_connections(level);
            speed.progress.begin(&format!("{point:18} pair {:<3} {name:8}", pair + 1));
            let active = level.min(ACTIVE);
            let held = hold(server.address, level - active)?;
            settle(&server.group)?;
            let clients = active.to_string();
            let flags = ["--clients", &clients, "--duration", "200ms", "--timeout", "30s"];
            let sample = speed.sample(server, "/1024.html", 200, &flags)?;
            drop(held);
            settle(&server.group)?;
            speed.progress.end(LEVELS_S / LEVELS.len() as f64, &sample.shown());
            speed.push(&point, name, pair, sample);
        }
    }
    Ok(())
}

/// So many connections that have been answered once and now do nothing.
fn hold(address: SocketAddr, count: usize) -> Outcome<Vec<Talk>> {
    let one = |_| {
        let mut talk = Talk::to(address)?;
        talk.ask("/1024.html", "").map(|_| talk)
    };
    (0..count).map(one).collect::<Outcome<_>>().map_err(|text| {
        format!("{count} idle connections are not to be had: {text}; a limit on open files (`ulimit -Hn`) of 20000 is enough")
    })
}

/// Waits until a server is done with whatever it has been told.
fn settle(group: &Group) -> Outcome {
    const LOOK: Duration = Duration::from_millis(10);
    // A server that never rests is measured as it is.
    for _ in 0..500 {
        let before = group.cpu_ns()?;
        thread::sleep(LOOK);
        if group.cpu_ns()? - before < LOOK.as_nanos() as u64 / 20 {
            break;
        }
    }
    Ok(())
}

/// What a round of these takes, in seconds.
const IDLE_S: f64 = 1.5;
const START_S: f64 = 0.4;

/// The points of what is needed at rest, with their units.
pub(super) const IDLE: &str = "memory of an idle connection, B";
pub(super) const START: &str = "start to first reply, ms";
pub(super) const RESIDENT: &str = "resident with empty caches, MiB";

/// Memory that a connection holds while nothing happens on it: 8000 of them, each answered once.
fn idle(speed: &mut Speed) -> Outcome {
    const COUNT: usize = 8000;
    let site = speed.bench.site();
    for round in 0..rounds(speed) {
        for program in [&AMPED].into_iter().chain(speed.rivals) {
            speed.progress.begin(&format!("{IDLE} {:8}", program.name));
            let mut server = speed.start(program, Group::new(None)?, &site, &[])?;
            // What a loop needs for its work is no connection's.
            speed.sample(&mut server, "/1024.html", 200, &["--clients", "64", "--duration", "100ms"])?;
            settle(&server.group)?;
            let before = server.group.resident_bytes()?;
            let held = hold(server.address, COUNT)?;
            settle(&server.group)?;
            let grown = server.group.resident_bytes()?.saturating_sub(before);
            server.check()?;
            drop(held);
            let value = rounded(grown as f64 / COUNT as f64);
            speed.progress.end(IDLE_S, &format!("{value:.0} B"));
            speed.push(IDLE, program.name, round as u32, Sample { value: Some(value), ..Sample::default() });
        }
    }
    Ok(())
}

/// From the start of a program to its first whole reply, and how much memory it has then. The shell and `taskset` that put it
/// into its group and on its core are in it, some 2 ms.
fn start(speed: &mut Speed) -> Outcome {
    let site = speed.bench.site();
    for pair in 0..speed.pairs {
        speed.progress.begin(&format!("{START:24} pair {:<3}", pair + 1));
        let mut programs: Vec<&Program> = [&AMPED].into_iter().chain(speed.rivals).collect();
        speed.random.shuffle(&mut programs);
        let mut shown = Vec::new();
        for program in programs {
            let group = Group::new(None)?;
            let begin = Instant::now();
            let server = speed.start(program, group, &site, &[])?;
            Talk::to(server.address)?.ask("/1024.html", "").map_err(|text| format!("{}: {text}", program.name))?;
            let ms = rounded(begin.elapsed().as_secs_f64() * 1e3);
            let resident = rounded(server.group.resident_bytes()? as f64 / f64::from(1 << 20));
            for (point, value) in [(START, ms), (RESIDENT, resident)] {
                speed.push(point, program.name, pair, Sample { value: Some(value), ..Sample::default() });
            }
            shown.push(format!("{} {ms:.1}", program.name));
        }
        speed.progress.end(START_S, &(shown.join("  ") + " ms"));
    }
    Ok(())
}

/// The point of the slow disk, and the server that is beside `amped` in it.
pub(super) const DISK: &str = "disk";
pub(super) const NGINX_THREADS: &str = "nginx, threads";

/// Files of 1 MiB, and what a second of the disk brings.
const FILES: usize = 512;
const DISK_BYTES_A_SECOND: u64 = 30_000_000;
const MEMORY: u64 = 128 << 20;
const DISK_RUN: &str = "6s";
const DISK_S: f64 = 8.0;

/// Files that are in no memory, over 16 connections, beside a small one that is, over 8.
fn disk(speed: &mut Speed) -> Outcome {
    let site = speed.bench.folder.join("cold");
    let cold: Vec<FileSpec> =
        (0..FILES).map(|n| FileSpec { name: format!("cold/{n:03}.html"), bytes: 1 << 20 }).collect();
    files::write(&site, &[&cold[..], &[files::of_size(1024)]].concat(), true)?;
    let mix = speed.bench.folder.join("cold.txt");
    let lines: String = cold.iter().map(|file| format!("1 /{}\n", file.name)).collect();
    fs::write(&mix, lines).map_err(|error| format!("cannot write {}: {error}", mix.display()))?;
    let mut arms: [(&str, &Program, &[&str]); 3] =
        [("amped", &AMPED, &["log"]), (NGINX_THREADS, &NGINX, &["threads"]), ("nginx", &NGINX, &[])];
    for round in 0..rounds(speed) {
        speed.random.shuffle(&mut arms);
        for (name, program, names) in arms {
            speed.progress.begin(&format!("{DISK:8} {name:16}"));
            let mut server = speed.start(program, Group::new(Some(MEMORY))?, &site, names)?;
            Talk::to(server.address)?.ask("/1024.html", "").map_err(|text| format!("{name}: {text}"))?;
            server.group.slow_disk(&disk_of(&site)?, DISK_BYTES_A_SECOND)?;
            let sample = cold_and_hot(speed, &mut server, &mix, round).map_err(|text| format!("{name}: {text}"))?;
            speed.progress.end(DISK_S, &sample.shown());
            speed.push(DISK, name, round as u32, sample);
        }
    }
    // Nobody needs them any more, and there may be little room.
    fs::remove_dir_all(&site).map_err(|error| format!("cannot remove {}: {error}", site.display()))
}

fn cold_and_hot(speed: &Speed, server: &mut Server, mix: &Path, round: usize) -> Outcome<Sample> {
    let clients = &speed.bench.client.group;
    let (mix, seed) = (mix.to_string_lossy(), round.to_string());
    let flags = ["--clients", "16", "--mix", &mix, "--seed", &seed, "--duration", DISK_RUN, "--timeout", "60s"];
    let mut cold = speed.bench.client.load(server.address, "/", &flags);
    let flags = ["--clients", "8", "--duration", DISK_RUN, "--timeout", "60s"];
    let mut hot = speed.bench.client.load(server.address, "/1024.html", &flags);
    let clocks = Clocks::read(&server.group, clients)?;
    let (cold, hot) = thread::scope(|scope| {
        let cold = scope.spawn(|| said(&mut cold));
        let hot = said(&mut hot);
        (cold.join(), hot)
    });
    let (cold, hot) = (cold.map_err(|_| "the thread that waits for cold files has panicked")??, hot?);
    let requests = cold.replies(200)? + hot.replies(200)?;
    let sample = clocks.sample(&server.group, clients, requests, cold.seconds, cold.received_bytes)?;
    server.check()?;
    let us = |ms: f64| (ms * 1e3) as u64;
    let Latency { count, p50_ms, p99_ms, max_ms } = hot.latency;
    let hot_us = Some(HotLatency { count, p50: us(p50_ms), p99: us(p99_ms), max: us(max_ms) });
    Ok(Sample { rate: rounded(hot.ok as f64 / hot.seconds), hot_us, ..sample })
}

/// The points of overload: what a server does at its best, and what it still does beyond.
pub(super) const PEAK: &str = "peak";
pub(super) const OVERLOAD: &str = "overload";

/// A generator beside its server on two cores makes some 25,000 connections a second, fewer than ten times what a server on a
/// core of its own can take. So the server gets a fortieth of its core.
const SHARE: f64 = 0.025;
const TIMES: f64 = 10.0;
const OVERLOAD_RUN_S: u32 = 30;
const OVERLOAD_S: f64 = 45.0;

/// Ten times as many new connections as a server can take.
fn overload(speed: &mut Speed) -> Outcome {
    let site = speed.bench.site();
    let mut programs = [&AMPED, &NGINX];
    speed.random.shuffle(&mut programs);
    for program in programs {
        speed.progress.begin(&format!("{OVERLOAD:8} {:8}", program.name));
        let mut group = Group::new(None)?;
        group.slow_core(SHARE)?;
        let names: &[&str] = if program.name == AMPED.name { &["log"] } else { &[] };
        let mut server = speed.start(program, group, &site, names)?;
        let flags = ["--clients", "64", "--requests-per-connection", "1", "--duration", "3s"];
        let peak = speed.sample(&mut server, "/1024.html", 200, &flags)?;
        let (rate, duration) = ((peak.rate * TIMES).round().to_string(), format!("{OVERLOAD_RUN_S}s"));
        let flags = ["--rate", &rate, "--duration", &duration, "--seed", "1"];
        let found = said(&mut speed.bench.client.load(server.address, "/1024.html", &flags))?;
        server.check()?;
        if found.verdict.validity == Validity::ClientBound {
            let why = found.verdict.evidence.join("; ");
            speed.refused.push(format!("{OVERLOAD}, {}, which stands all the same: {why}", program.name));
        }
        // What was answered in that time; those behind have still been waiting when nobody came any more.
        let ok: u64 =
            found.series.iter().filter(|second| second.at_s < f64::from(OVERLOAD_RUN_S)).map(|second| second.ok).sum();
        let goodput = rounded(ok as f64 / f64::from(OVERLOAD_RUN_S));
        let offered = rounded(found.offered_rate / peak.rate);
        speed.progress.end(OVERLOAD_S, &format!("{goodput:.0}/s of {:.0}/s, offered {offered:.1} times", peak.rate));
        speed.push(PEAK, program.name, 0, peak);
        speed.push(OVERLOAD, program.name, 0, Sample { rate: goodput, value: Some(offered), ..Sample::default() });
    }
    Ok(())
}
