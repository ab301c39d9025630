//! `ammeter wan`: a command, or a whole test bed, behind paths with latency, bandwidth, queue and loss.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use ammeter_wan::behind;
use ammeter_wan::join::{self, Invitation, Key};
use ammeter_wan::link::ETHERNET_BYTES;
use ammeter_wan::path::PathSettings;
use ammeter_wan::place::be_allowed;
use ammeter_wan::profile::{self, Profile};
use ammeter_wan::router::{LinkReport, Report};
use ammeter_wan::selftest::{self, LATE_MAX, Trial, TrialSettings};
use ammeter_wan::spec::{self, LinkTexts};
use ammeter_wan::testbed::{self, Net};
use amped_measure::{Failure, Verdict};
use amped_units::parse_duration;
use clap::Subcommand;
use serde::Serialize;

use crate::generate::PATH_CPU;
use crate::say;

/// The command-line flags.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    path: PathFlags,
    #[command(flatten)]
    router: RouterFlags,
    /// Capture packets, including dropped ones with the reason, to this file (pcapng)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Print packet statistics as JSON, on one line, on standard error
    #[arg(long)]
    json: bool,
    /// Command with its arguments; in its namespace this host is 10.77.0.1 and fd77::1
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// List the named networks, with the source of each value
    Profiles,
    /// Set up a namespace for the server and one for each class of clients, joined by the router, until `down`
    #[command(after_help = UP_EXAMPLES)]
    Up(Up),
    /// Run a command in the namespace of a class, or of `server`
    Exec(Exec),
    /// Print the command with which another host joins a class of the test bed
    Invite(Invite),
    /// Run a command in a class of a test bed on another host
    #[command(after_help = JOIN_EXAMPLES)]
    Join(Join),
    /// Print packet statistics of the test bed
    Status(At),
    /// Change the bandwidth of all paths of a class, in both directions
    Set(Set),
    /// Stop the test bed and all processes in it
    Down(At),
    /// Compare requested and measured properties of paths on this machine
    #[command(after_help = SELFTEST_EXAMPLES)]
    Selftest(Selftest),
}

/// The test bed to control.
#[derive(clap::Args, Debug)]
struct At {
    /// Control socket of the test bed
    #[arg(long, value_name = "SOCKET", default_value = "/run/ammeter-wan.sock")]
    control: PathBuf,
    /// Print the result as JSON, on one line
    #[arg(long)]
    json: bool,
}

/// The flags of `ammeter wan up`.
#[derive(clap::Args, Debug)]
struct Up {
    /// Description of the test bed
    #[arg(value_name = "NET.toml")]
    file: PathBuf,
    /// Control socket of the test bed
    #[arg(long, value_name = "SOCKET", default_value = "/run/ammeter-wan.sock")]
    control: PathBuf,
    /// Stay in the foreground, until Ctrl-C or `down`
    #[arg(long)]
    foreground: bool,
    /// Capture packets, including dropped ones with the reason, to this file (pcapng)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

/// The flags of `ammeter wan exec`.
#[derive(clap::Args, Debug)]
struct Exec {
    /// Control socket of the test bed
    #[arg(long, value_name = "SOCKET", default_value = "/run/ammeter-wan.sock")]
    control: PathBuf,
    /// Class, or `server`
    class: String,
    /// Command with its arguments; the server is 10.77.0.1 and fd77::1
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The flags of `ammeter wan invite`.
#[derive(clap::Args, Debug)]
struct Invite {
    /// Control socket of the test bed
    #[arg(long, value_name = "SOCKET", default_value = "/run/ammeter-wan.sock")]
    control: PathBuf,
    /// Class that has `listen`
    class: String,
}

/// The flags of `ammeter wan join`.
#[derive(clap::Args, Debug)]
struct Join {
    /// Address of the class (`listen`)
    #[arg(value_name = "ADDR:PORT")]
    address: SocketAddr,
    /// Key, which `ammeter wan invite` prints on the test bed's host
    #[arg(long, value_name = "KEY")]
    key: Key,
    /// TCP congestion control
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion_control: String,
    /// Print the CPU time that moving packets has taken, on standard error
    #[arg(long)]
    cpu: bool,
    /// Command with its arguments; the server is 10.77.0.1
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const JOIN_EXAMPLES: &str = "\
Example, with a class on the test bed's host that accepts other hosts:
  [[class]]
  name = \"home\"
  profile = \"cable\"
  shared = true                # with the hosts that join
  listen = \"192.0.2.1:7700\"  # an address of this host, for datagrams (UDP)

  ammeter wan invite home      there: prints the next line with its key
  ammeter wan join 192.0.2.1:7700 --key KEY -- curl http://10.77.0.1/

Packets reach the test bed in datagrams, and take its path there: the time between the two hosts is added to its latency. IPv4 only,
and packets have at most 1400 bytes. Key and packets are not encrypted, and users of this host see the key in its list of processes:
use it in a network that you trust. At most 250 hosts join a class within a minute.

Exit status: the command's own; 128 + N if signal N ended it; 126 if it cannot be executed, 127 if it is not found; 125 if the test
bed could not be joined.";

/// The flags of `ammeter wan set`.
#[derive(clap::Args, Debug)]
struct Set {
    /// Control socket of the test bed
    #[arg(long, value_name = "SOCKET", default_value = "/run/ammeter-wan.sock")]
    control: PathBuf,
    /// Class to change
    class: String,
    /// New bandwidth
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    bandwidth: String,
}

const UP_EXAMPLES: &str = "\
Example:
  cat > net.toml <<END
  seed = 1                     # all of these four lines are optional
  congestion-control = \"cubic\"
  mtu = 1500

  [[class]]
  name = \"lan\"
  profile = \"lan\"
  clients = 20                 # addresses 10.78.0.1 to 10.78.0.20, each with a path of its own

  [[class]]
  name = \"home\"
  profile = \"cable\"
  shared = true                # all of 10.79.0.0/16 over one path
  loss = \"0.1%\"              # both ways
  down.bandwidth = \"20mbit\"  # this way alone
  END
  ammeter wan up net.toml
  ammeter wan exec server -- amped serve examples/site --listen '*:80' &
  ammeter wan exec home -- curl http://10.77.0.1/
  ammeter wan set home --bandwidth 1mbit
  ammeter wan status
  ammeter wan down";

/// The flags of `ammeter wan selftest`.
#[derive(clap::Args, Debug)]
struct Selftest {
    #[command(flatten)]
    path: PathFlags,
    #[command(flatten)]
    router: RouterFlags,
    /// Duration of the TCP test on each path
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    tcp: Duration,
    /// Maximum attempts per path, if the machine delayed the router or a hypervisor took CPU time and the result is off
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100), verbatim_doc_comment)]
    attempts: u32,
    /// Print the result as JSON, on one line
    #[arg(long)]
    json: bool,
}

const SELFTEST_EXAMPLES: &str = "\
Examples:
  ammeter wan selftest                                      typical paths, from 56 kbit/s to 1 Gbit/s
  ammeter wan selftest --profile satellite                  one named network
  ammeter wan selftest --latency 10ms --bandwidth 300mbit --loss 2%

Sets up two namespaces with a router between them. Delays are medians, from the sender to the kernel at the other end; `late` is the
lateness of the router, with single packets and trains, and while TCP sends at full speed. Rates count packets at layer 3 (layer 2
with --layer2); that of TCP counts data. The test of a path that the machine disturbed is repeated, which is reported.

Exit status: 0 if all values are as requested, 1 if not.";

/// The properties of a path.
#[derive(clap::Args, Debug, Default)]
struct PathFlags {
    /// Named network (see `ammeter wan profiles`); the flags below override it
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// One-way latency: `50ms`, `50ms±10ms` followed by uniform, normal or pareto (and reorder, to let packets
    /// overtake), or `trace:FILE` [default: 0]
    #[arg(long, allow_hyphen_values = true, value_name = "TIME", verbatim_doc_comment)]
    latency: Option<String>,
    /// Bandwidth: `10mbit`, unlimited, or `trace:FILE` in mahimahi's format [default: unlimited]
    #[arg(long, allow_hyphen_values = true, value_name = "RATE")]
    bandwidth: Option<String>,
    /// Packet loss: `1%`, `gilbert:0.5%,25%` (to bad, to good), `pattern:...x`, or `trace:FILE` [default: 0]
    #[arg(long, allow_hyphen_values = true, value_name = "LOSS")]
    loss: Option<String>,
    /// Queue limit: 100 packets, 64KiB, unlimited, codel or `codel:5ms,100ms` [default: 100 ms of
    /// the bandwidth, at least 30 KB]
    #[arg(long, allow_hyphen_values = true, value_name = "QUEUE", verbatim_doc_comment)]
    queue: Option<String>,
    /// Count the 38 bytes that Ethernet adds to each packet [default: IP bytes only]
    #[arg(long)]
    layer2: bool,
}

/// The properties of the router.
#[derive(clap::Args, Debug)]
struct RouterFlags {
    /// Random seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// TCP congestion control on both sides
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion_control: String,
    /// MTU, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65_535))]
    mtu: u32,
    /// Maximum lateness of packets at p99; beyond it the run is path-bound [default: 1ms; for `selftest` 5us with
    /// SCHED_FIFO, 1ms without and for TCP]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, verbatim_doc_comment)]
    late_max: Option<Duration>,
}

const EXAMPLES: &str = "\
Examples:
  ammeter wan --latency 50ms --bandwidth 10mbit --loss 1% -- curl http://10.77.0.1:8080/
  ammeter wan --profile modem-56k -- curl -o /dev/null -w '%{time_total}\\n' http://10.77.0.1:8080/
  ammeter wan --latency '40ms±10ms normal' --queue codel --pcap run.pcapng -- sh

Each value applies to each direction, so a latency of 50ms adds 100 ms to a round trip. The command can reach only this host, at
10.77.0.1 or [fd77::1]; the server must listen there or on all addresses, not on 127.0.0.1. Packet statistics go to standard
error. Several can run at once.

Exit status: the command's own; 128 + N if signal N ended it; 126 if it cannot be executed, 127 if it is not found. 125 if the
command succeeded but the path was not as requested (path-bound), or if the path could not be set up; the reason is on
standard error. A command that fails on a path-bound path keeps its own status; the text and --json name both. 2 for wrong usage
of ammeter itself.";

/// The exit status for a path that was not as configured; that of env(1) and timeout(1) for failures of their own.
const PATH_FAILED: u8 = 125;

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let verdict = match &args.action {
        None => return behind_path(args),
        Some(Action::Exec(args)) => return exec(args),
        Some(Action::Join(args)) => return join(args),
        Some(Action::Invite(args)) => invite(args),
        Some(Action::Profiles) => profiles(),
        Some(Action::Selftest(args)) => selftest(args),
        Some(Action::Up(args)) => up(args),
        Some(Action::Status(at)) => passed(&testbed::status(&at.control)?, at.json),
        Some(Action::Down(at)) => passed(&testbed::down(&at.control)?, at.json),
        Some(Action::Set(args)) => {
            testbed::set_bandwidth(&args.control, &args.class, &args.bandwidth).map(|()| Verdict::valid())
        }
    };
    verdict.map(|verdict| verdict.exit_status())
}

/// Runs a command behind a path.
fn behind_path(args: &Args) -> Result<u8, Failure> {
    if args.command.is_empty() {
        return Err(Failure::usage("no command; write it after two dashes: ammeter wan --latency 50ms -- curl ..."));
    }
    let RouterFlags { seed, congestion_control, mtu, late_max } = &args.router;
    let late_max = late_max.unwrap_or(LATE_MAX);
    let outcome = behind::run(behind::Settings {
        command: args.command.clone(),
        path: args.path.settings()?,
        seed: *seed,
        mtu: *mtu,
        congestion_control: congestion_control.clone(),
        capture: args.pcap.clone(),
    })
    .map_err(|failure| failure.or_status(PATH_FAILED))?;
    let verdict = outcome.report.verdict(late_max);
    let status = exit_status(outcome.status, &verdict);
    if args.json {
        let command = Ended { code: outcome.status.code(), signal: outcome.status.signal() };
        let report = PathReport { report: &outcome.report, verdict: &verdict, command, exit_status: status };
        say::plain(&say::as_json(&report)?);
    } else {
        say::plain(&summary(&outcome.report));
        say::plain(&format!("ammeter wan: {verdict}"));
        if !outcome.status.success() {
            say::plain(&format!("ammeter wan: the command exited with {}", outcome.status));
        }
    }
    Ok(status)
}

#[derive(Serialize)]
struct PathReport<'a> {
    report: &'a Report,
    verdict: &'a Verdict,
    command: Ended,
    exit_status: u8,
}

/// The exit of the command: one of the two is `None`.
#[derive(Serialize)]
struct Ended {
    code: Option<i32>,
    signal: Option<i32>,
}

/// The command's own status, as env(1) and the shells give it. It takes precedence: scripts check the status for the
/// command's failures, and figures of a failed command are not used anyway.
fn exit_status(command: ExitStatus, path: &Verdict) -> u8 {
    match (command.code(), command.signal()) {
        (Some(0), _) if path.exit_status() != 0 => PATH_FAILED,
        (Some(code), _) => code as u8,
        (None, signal) => 128u8.wrapping_add(signal.unwrap_or(0) as u8),
    }
}

/// Starts a test bed: in a background copy of this program, unless this is the copy.
fn up(args: &Up) -> Result<Verdict, Failure> {
    if !args.foreground {
        return up_in_background();
    }
    let name = args.file.display();
    let text = fs::read_to_string(&args.file)
        .map_err(|error| Failure::usage(format!("cannot read {name}: {error}; its format: ammeter wan up --help")))?;
    let net = Net::parse(&text, &read_file).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let report = testbed::run(&net, args.pcap.clone(), &args.control, || {
        // A closed pipe is no error.
        let _ = say::out("up");
    })?;
    say::plain(&summary(&report));
    Ok(report.verdict(LATE_MAX))
}

fn up_in_background() -> Result<Verdict, Failure> {
    let program = std::env::current_exe().map_err(Failure::io("find this program"))?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--foreground");
    // Ctrl-C only concerns the foreground.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(Failure::io("start the test bed"))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(Failure::io("wait for the test bed"))?;
    }
    if line.trim() == "up" {
        return Ok(Verdict::valid());
    }
    // It has printed its error and ended.
    let output = child.wait_with_output().map_err(Failure::io("wait for the test bed"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim().strip_prefix("ammeter: ").unwrap_or(text.trim()).to_owned();
    Err(if output.status.code() == Some(2) { Failure::Usage(text) } else { Failure::Failed(text) })
}

fn exec(args: &Exec) -> Result<u8, Failure> {
    let (program, arguments) = args.command.split_first().ok_or_else(|| Failure::usage("no command"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    match testbed::exec(&args.control, &args.class, command).map_err(|failure| failure.or_status(PATH_FAILED))? {}
}

/// Runs a command in a test bed on another host.
fn join(args: &Join) -> Result<u8, Failure> {
    let Join { address, key, congestion_control, cpu, command } = args;
    let settings = join::Settings {
        address: *address,
        key: *key,
        command: command.clone(),
        congestion_control: congestion_control.clone(),
    };
    let (status, cpu_time) = join::run(&settings).map_err(|failure| failure.or_status(PATH_FAILED))?;
    if *cpu {
        say::plain(&format!("{PATH_CPU}{}", cpu_time.as_secs_f64()));
    }
    Ok(exit_status(status, &Verdict::valid()))
}

/// Prints how another host joins.
fn invite(args: &Invite) -> Result<Verdict, Failure> {
    let Invitation { address, key, congestion_control } = testbed::invitation(&args.control, &args.class)?;
    let flags = format!("--key {key} --congestion-control {congestion_control}");
    say::out(&format!("ammeter wan join {address} {flags} -- COMMAND"))?;
    Ok(Verdict::valid())
}

/// Prints the statistics of a test bed.
fn passed(report: &Report, json: bool) -> Result<Verdict, Failure> {
    if json {
        say::json(report)?
    } else {
        say::out(&summary(report))?
    }
    Ok(Verdict::valid())
}

/// The default paths of `selftest`: (name, latency, bandwidth, loss).
const USUAL: &[(&str, &str, &str, &str)] = &[
    ("56 kbit/s", "50ms", "56kbit", "0"),
    ("1 Mbit/s", "20ms", "1mbit", "0"),
    ("10 Mbit/s, 1 % lost", "20ms", "10mbit", "1%"),
    ("100 Mbit/s", "5ms", "100mbit", "0"),
    ("1 Gbit/s", "1ms", "1gbit", "0"),
    ("no limit", "0", "unlimited", "0"),
];

fn selftest(args: &Selftest) -> Result<Verdict, Failure> {
    let chosen = args.path.settings()?;
    be_allowed()?;
    let plain = PathSettings { up: spec::plain_link(), down: spec::plain_link() };
    let paths: Vec<(String, PathSettings)> = if chosen == plain {
        let usual = USUAL.iter().map(|(name, latency, bandwidth, loss)| {
            let some = |text: &&str| Some((*text).to_owned());
            let flags = PathFlags {
                latency: some(latency),
                bandwidth: some(bandwidth),
                loss: some(loss),
                layer2: args.path.layer2,
                ..PathFlags::default()
            };
            flags.settings().map(|path| ((*name).to_owned(), path))
        });
        usual.collect::<Result<_, _>>()?
    } else {
        vec![("as requested".to_owned(), chosen)]
    };
    let settings = TrialSettings {
        seed: args.router.seed,
        mtu: args.router.mtu,
        congestion_control: args.router.congestion_control.clone(),
        late_max: args.router.late_max,
        tcp: args.tcp,
    };
    let mut verdict = Verdict::valid();
    let mut trials = Vec::new();
    for (name, path) in &paths {
        let mut trial = selftest::trial(name, path, &settings)?;
        for attempt in 2..=args.attempts {
            if !trial.is_disturbed() {
                break;
            }
            say::plain(&format!(
                "{name}, attempt {attempt} of {}; the previous one was {}",
                args.attempts, trial.verdict
            ));
            trial = selftest::trial(name, path, &settings)?;
        }
        for evidence in &trial.verdict.evidence {
            verdict.weaken(trial.verdict.validity, format!("{name}: {evidence}"));
        }
        if !args.json {
            // Printed one by one, since all of them take a while.
            say::out(&text(&trial, trials.is_empty()))?;
        }
        trials.push(trial);
    }
    if args.json {
        say::json(&trials)?;
    }
    say::plain(&format!("ammeter wan: {verdict}"));
    Ok(verdict)
}

/// A line of the table; the first one has the heading before it.
fn text(trial: &Trial, is_first: bool) -> String {
    let head = format!(
        "router  {}\n{:21} {:>17}  {:>19}  {:>19}  {:>13}  {:>15}  {:>17}\n{:21} {:>17}  {:>19}  {:>19}  {:>13}  {:>15}  {:>17}",
        trial.scheduling,
        "",
        "delay, ms",
        "rate, Mbit/s",
        "spacing, us",
        "lost, %",
        "late, us",
        "TCP",
        "path",
        "target   actual",
        "target    actual",
        "target    actual",
        "target actual",
        "p50       p99",
        "Mbit/s   late p99"
    );
    let line = format!(
        "{:21} {:8.3} {:8.3}  {:9.3} {:9.3}  {:9.1} {:9.1}  {:6.2} {:6.2}  {:7.1} {:7.1}  {:8.1} {:8.1}",
        trial.name,
        trial.delay_asked_ms,
        trial.delay_got_ms,
        trial.rate_asked_mbit,
        trial.rate_got_mbit,
        trial.spacing_asked_us,
        trial.spacing_got_us,
        trial.loss_asked * 100.0,
        trial.loss_got * 100.0,
        trial.lateness.p50_us,
        trial.lateness.p99_us,
        trial.tcp_mbit,
        trial.tcp_lateness.p99_us
    );
    if is_first { format!("{head}\n{line}") } else { line }
}

impl PathFlags {
    fn settings(&self) -> Result<PathSettings, Failure> {
        let mut path = match &self.profile {
            None => PathSettings { up: spec::plain_link(), down: spec::plain_link() },
            Some(name) => Profile::find(name).map_err(Failure::Usage)?,
        };
        let texts = LinkTexts {
            latency: self.latency.clone(),
            bandwidth: self.bandwidth.clone(),
            loss: self.loss.clone(),
            queue: self.queue.clone(),
        };
        for link in [&mut path.up, &mut path.down] {
            texts.apply(link, &read_file).map_err(|error| Failure::usage(format!("--{error}")))?;
            link.framing_bytes = if self.layer2 { ETHERNET_BYTES } else { 0 };
        }
        Ok(path)
    }
}

/// Maximum length of a trace; rules out `/dev/zero`.
const FILE_BYTES_MAX: u64 = 256 << 20;

fn read_file(name: &str) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(name).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(|error| format!("cannot read {name}: {error}"))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{name} is larger than 256 MiB and cannot be a trace"));
    }
    Ok(text)
}

/// Packet statistics as text: a line per direction of all paths of one name.
fn summary(report: &Report) -> String {
    let (late, congestion_control) = (&report.lateness, &report.congestion_control);
    let mut text = format!(
        "router    {}; {} packets left {:.1} us late at p50, {:.1} at p99, {:.1} maximum; TCP {congestion_control}",
        report.scheduling, late.packets, late.p50_us, late.p99_us, late.max_us
    );
    text.push_str(&report.machine());
    for (count, what) in [
        (report.overflow, "packets were dropped by the router's full queue"),
        (report.kernel_dropped, "packets were dropped by the kernel before the router read them"),
        (report.lost_between_hosts, "packets were lost between the hosts, not on the path"),
        (report.strained_ms, "ms long, packets waited between device and network because the machine was busy"),
        (report.refused, "packets were dropped because the device was down"),
        (report.no_path, "packets were from or to addresses without a path"),
        (report.not_ip, "packets were neither IPv4 nor IPv6"),
        (report.capture_left_out, "blocks of 1 MiB are missing from the capture because the disk was too slow"),
    ] {
        if count > 0 {
            text.push_str(&format!("\n          {count} {what}"));
        }
    }
    for paths in report.paths.chunk_by(|a, b| a.name == b.name) {
        let name = &paths[0].name;
        for (direction, links) in [
            ("up", paths.iter().map(|path| path.up).collect::<Vec<_>>()),
            ("down", paths.iter().map(|path| path.down).collect()),
        ] {
            let sum = |of: fn(&LinkReport) -> u64| links.iter().map(of).sum::<u64>();
            let causes = [
                (sum(|link| link.packets.lost), "lost"),
                (sum(|link| link.packets.queue_full), "queue full"),
                (sum(|link| link.packets.codel), "codel"),
            ];
            let dropped: Vec<String> = causes
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, cause)| format!("{count} {cause}"))
                .collect();
            let dropped = if dropped.is_empty() { "none".to_owned() } else { dropped.join(", ") };
            let left = sum(|link| link.packets.left);
            let delay: f64 = links.iter().map(|link| link.delay_mean_ms * link.packets.left as f64).sum();
            text.push_str(&format!(
                "\n{name:9} {direction:4} {} packets in, {left} out, {} in it ({} in the queue), dropped: {dropped}; \
                 delay {:.2} ms on average, {:.2} maximum",
                sum(|link| link.packets.entered),
                sum(|link| link.held),
                sum(|link| link.queue_packets),
                delay / left.max(1) as f64,
                links.iter().map(|link| link.delay_max_ms).fold(0.0, f64::max)
            ));
        }
    }
    text
}

fn profiles() -> Result<Verdict, Failure> {
    let lines = profile::profiles().into_iter().map(|profile| format!("{:14} {}", profile.name, profile.source));
    say::out(&lines.collect::<Vec<_>>().join("\n"))?;
    Ok(Verdict::valid())
}
