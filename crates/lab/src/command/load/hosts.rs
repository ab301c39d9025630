//! `--hosts`: one load from several hosts at the same instant, each of which generates a slice of it.

use std::path::Path;
use std::time::Duration;

use ammeter_load::drive::Stop;
use ammeter_load::outcome::Outcome;
use ammeter_load::parts::Parts;
use amped_measure::{Failure, Verdict};
use serde::Serialize;

use super::args::{Args, files_read};
use super::setup::Setup;
use super::summary::summary;
use super::{hlog, html};
use crate::archive::HostRun;
use crate::environment::TestEnvironment;
use crate::generate::{self, Load, Order};
use crate::hosts::Generators;
use crate::say;

/// Time for connections to end beyond the timeouts of the load.
const REST: Duration = Duration::from_secs(60);

/// The result of a load, and what each host had to do with it.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    outcome: &'a Outcome,
    hosts: &'a [HostRun],
}

/// Runs the load of these flags from all hosts, and judges the merged result.
///
/// # Errors
/// An unreachable or lost host; a generator that fails; an interrupt.
pub(super) fn run(
    args: &Args,
    setup: &Setup,
    stop: &Stop,
    judge: impl FnOnce(&mut Outcome),
) -> Result<Verdict, Failure> {
    let environment = TestEnvironment::new()?;
    // A closed loop has no more slices than clients.
    let count = args.clients.map_or(args.hosts.len(), |clients| args.hosts.len().min(clients));
    let mut hosts = Generators::reach(&args.hosts[..count], &args.via, &environment, stop)?;
    let mut files = Vec::new();
    for (flag, path) in files_read(args) {
        let bytes = std::fs::read(path).map_err(Failure::io(format_args!("read {}", path.display())))?;
        files.push((flag, hosts.put(&name_of(flag, path), &bytes, stop)?));
    }
    let given: Vec<String> = std::env::args_os().skip(2).map(|word| word.to_string_lossy().into_owned()).collect();
    let generators = hosts.generators(|host| {
        let files: Vec<(&str, &str)> = files.iter().map(|(flag, paths)| (*flag, paths[host].as_str())).collect();
        forwarded(&given, &files, setup.seed)
    })?;
    let names: Vec<&str> = args.hosts[..count].iter().map(|name| &**name).collect();
    say::plain(&format!("load from {}; the result follows when it ends", names.join(", ")));
    let folder = environment.folder()?;
    let patience = args.longest().saturating_add(args.connect_timeout + args.timeout + REST);
    let order = Order { patience, into: &folder.path, stem: "load" };
    let load = match generate::load(&mut hosts, &generators, &order, stop) {
        Err(_) if stop.is_stopped() => Err(Failure::failed("interrupted, without a result")),
        load => load,
    }?;
    let mut load = load.map_err(Failure::failed)?;
    judge(&mut load.outcome);
    tell(args, setup, &load)
}

/// Prints the result, and writes it where the flags say.
fn tell(args: &Args, setup: &Setup, load: &Load) -> Result<Verdict, Failure> {
    let Load { outcome, parts, .. } = load;
    let logged = args
        .hlog
        .as_ref()
        .map_or(Ok(()), |path| hlog::write(path, &setup.shown, outcome.began_s, Parts::intervals(parts)));
    let page = html::write(args, setup, |head| Some(html::run(head, outcome)));
    let hosts = &load.hosts(0.0)[1..];
    if args.json {
        say::json(&Whole { outcome, hosts })?;
    } else {
        say::out(&(summary(&setup.shown, outcome) + &table(hosts)))?;
    }
    logged.and(page).map(|()| outcome.verdict.clone())
}

/// A line for each host.
fn table(hosts: &[HostRun]) -> String {
    let mut text = String::from("\nhosts\n");
    for HostRun { host, clock, busy, load, .. } in hosts {
        let (offered, ok) = load.as_ref().map_or((0.0, 0.0), |load| (load.offered_rate, load.rate));
        text += &format!(
            "  {host}: {offered:.1} connections/s, {ok:.1} responses/s, {:.0} % of its CPU time; clock {clock}\n",
            busy * 100.0
        );
    }
    text
}

/// The name of a copied file, which keeps its extension, since some formats are recognised by that.
fn name_of(flag: &str, path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{}-{name}", flag.trim_start_matches('-'))
}

/// The arguments of a host's `ammeter`: those given to this one, without flags that concern the merged result or the hosts, with
/// this host's paths of `files` (flag and path), and with the seed.
fn forwarded(given: &[String], files: &[(&str, &str)], seed: u64) -> Vec<String> {
    const OWN: [&str; 6] = ["--hosts", "--via", "--hlog", "--html", "--fail-if", "--seed"];
    let mut words = ["load", "--json", "--seed"].map(str::to_owned).to_vec();
    words.push(seed.to_string());
    let mut rest = given.iter();
    while let Some(word) = rest.next() {
        if word == "--" {
            words.extend([word.clone()]);
            words.extend(rest.cloned());
            break;
        }
        let (flag, value) = word.split_once('=').map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
        if flag == "--json" {
            continue;
        }
        let file = files.iter().find(|(of, _)| *of == flag);
        if !OWN.contains(&flag) && file.is_none() {
            words.push(word.clone());
            continue;
        }
        if value.is_none() {
            rest.next();
        }
        if let Some((_, path)) = file {
            let path = if flag == "--arrivals" { format!("file:{path}") } else { (*path).to_owned() };
            words.extend([flag.to_owned(), path]);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_hosts_and_outputs_are_not_forwarded_and_files_are_replaced() {
        let given = "http://s/ --rate 50 --hosts=a,b --via ssh\t{host} --json --mix m.txt --seed 7 --fail-if=p99>1s \
                     --html x.html --hlog y --arrivals=file:z -d10 -H A:=b -- --hosts";
        let given: Vec<String> = given.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        let files = [("--mix", "/h/mix-m.txt"), ("--arrivals", "/h/arrivals-z")];
        assert_eq!(
            forwarded(&given, &files, 9).join(" "),
            "load --json --seed 9 http://s/ --rate 50 --mix /h/mix-m.txt --arrivals file:/h/arrivals-z -d10 -H A:=b -- --hosts"
        );
        assert_eq!(name_of("--replay", Path::new("/x/access.log.gz")), "replay-access.log.gz");
    }
}
