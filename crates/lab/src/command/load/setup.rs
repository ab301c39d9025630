//! Converts the flags to a server, requests and settings.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ammeter_load::Version;
use ammeter_load::client::Plan;
use ammeter_load::drive::parked::IdlePool;
use ammeter_load::drive::{Settings, Stop, Target};
use ammeter_load::tls::{Options, Tls, Trust};
use ammeter_load::url::Url;
use ammeter_load::workload::log::{Log, ResponseCheck, Spacing, Tally};
use ammeter_load::workload::manifest::Manifest;
use ammeter_load::workload::{Requests, mix};
use amped_measure::Failure;

use super::args::{Args, parked};
use crate::generate::READY;
use crate::say;

/// The load that the flags describe.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) url: String,
    /// The URL, and the protocol if it is not the usual one.
    pub(super) shown: String,
    pub(super) settings: Settings,
    pub(super) plan: Plan,
    /// The request of parked connections: the URL, without any workload.
    pub(super) parked_plan: Plan,
    pub(super) seed: u64,
}

impl Setup {
    pub(super) fn new(args: &Args, text: &str) -> Result<Setup, Failure> {
        let url = Url::parse(text).map_err(Failure::usage)?;
        let (mut fields, mut authority) = (String::new(), url.authority.as_str());
        for field in &args.header {
            let parts = field.split_once(':').filter(|(name, _)| {
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()) && !field.contains(['\r', '\n'])
            });
            let Some((name, value)) = parts else {
                return Err(Failure::usage(format!("invalid --header {field:?}: write 'Name: value'")));
            };
            if name.eq_ignore_ascii_case("Host") {
                // Replaces the URL's: a server rejects a request with two (RFC 9112, 3.2).
                authority = value.trim();
            } else if args.http2
                && ["Connection", "Keep-Alive", "Upgrade"].iter().any(|known| name.eq_ignore_ascii_case(known))
            {
                // RFC 9113, 8.2.2.
                return Err(Failure::usage(format!(
                    "--header {field:?} does not exist in HTTP/2; omit it, or omit --http2"
                )));
            } else if ["Content-Length", "Transfer-Encoding"].iter().any(|known| name.eq_ignore_ascii_case(known)) {
                return Err(Failure::usage(format!(
                    "--header {field:?} is set automatically; give the body with --body or --body-file"
                )));
            } else {
                fields.push_str(field);
                fields.push_str("\r\n");
            }
        }
        if args.replay.is_some() && args.speed != Spacing::Max {
            let pace = [
                ("--rate", args.rate.is_some()),
                ("--clients", args.clients.is_some()),
                ("--sweep", args.sweep.is_some()),
            ];
            if let Some((flag, _)) = pace.iter().find(|(_, is_given)| *is_given) {
                return Err(Failure::usage(format!(
                    "a log is replayed at its own times; give --speed max with {flag}, or omit {flag}"
                )));
            }
        }
        let target = match &args.unix {
            Some(path) => {
                // Waiting helps if the server starts later, but not if the name is wrong.
                let is_socket = std::fs::metadata(path).map(|found| found.file_type().is_socket());
                match is_socket.and_then(|is| SocketAddr::from_pathname(path).map(|_| is)) {
                    Ok(true) => Target::Unix(path.clone()),
                    Ok(false) => {
                        return Err(Failure::failed(format!(
                            "--unix {} is not a socket; name the server's socket",
                            path.display()
                        )));
                    }
                    Err(error) => {
                        return Err(Failure::failed(format!(
                            "cannot connect to --unix {}: {error}; is the server running, and is this its socket?",
                            path.display()
                        )));
                    }
                }
            }
            // Only the hosts need to know the name.
            None if !args.hosts.is_empty() => Target::Tcp(url.resolve().unwrap_or(([0, 0, 0, 0], url.port).into())),
            None => Target::Tcp(url.resolve()?),
        };
        let trust = match &args.ca {
            Some(path) => Trust::File(path),
            None if args.insecure => Trust::Anybody,
            None => Trust::System,
        };
        if trust != Trust::System && !url.secure {
            return Err(Failure::usage(format!(
                "--ca and --insecure require https, but {text} is not; write https://"
            )));
        }
        if !url.secure && (args.tls_version.is_some() || args.tls_resume > 0.0) {
            return Err(Failure::usage(format!(
                "--tls-version and --tls-resume require https, but {text} is not; write https://"
            )));
        }
        if url.secure && !args.parked.is_empty() {
            return Err(Failure::usage("parked connections do not support TLS; omit --parked, or use an http URL"));
        }
        for (what, time) in [("--connect-timeout", args.connect_timeout), ("--timeout", args.timeout)] {
            if time.is_zero() {
                return Err(Failure::usage(format!("{what} must not be zero; write, for example, 500ms")));
            }
        }
        let per_connection = match (args.requests_per_connection, args.clients) {
            (Some(0), Some(_)) | (None, Some(_)) => u64::MAX,
            (Some(0), None) => {
                return Err(Failure::usage(
                    "unlimited requests per connection require --clients; with a rate, give --requests-per-connection \
                     1 or more",
                ));
            }
            (None, None) if args.replay.is_some() => 1,
            // Each stream is used once, as by a client that requests a page.
            (None, None) => args.streams,
            (Some(count), _) => count,
        };
        let (version, at_once) = match (args.http10, args.http2) {
            (true, _) => (Version::Http10, args.pipeline),
            (false, false) => (Version::Http11, args.pipeline),
            (false, true) => (Version::Http2, args.streams),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if args.seed.is_none() && !args.slice.is_whole() {
            return Err(Failure::usage(
                "slices share one plan, which depends on the seed: give all of them the same --seed N",
            ));
        }
        let seed = args.seed.unwrap_or(u64::from(now.subsec_nanos()));
        let options = Options { version: args.tls_version, resume: args.tls_resume, seed, http2: args.http2 };
        let tls = url.secure.then(|| Tls::new(&url.host, trust, options)).transpose()?;
        let requests = requests(args, &url, seed)?;
        // With a rate, a slice consists of whole connections, with all of their requests.
        let requests = if let Some(limit) = args.requests { requests.limit(limit) } else { requests };
        let requests = if args.clients.is_some() { requests.slice(args.slice) } else { requests };
        let (method, body) = args.method_and_body()?;
        let plan = Plan::new(requests, version, authority, &fields, per_connection, at_once)
            .over_tls(url.secure)
            .with_method(&method, &body)
            .with_statuses(args.expect.clone().unwrap_or_default());
        let same = Requests::same(url.target.as_bytes());
        let parked_plan = Plan::new(same, version, authority, &fields, u64::MAX, 1);
        let settings = Settings {
            target,
            tls,
            connect_timeout: args.connect_timeout,
            timeout: args.timeout,
            // A longer spin would be a real-time thread that never sleeps.
            spin: args.spin.min(Duration::from_millis(1)),
            lanes: usize::from(args.generators),
            parked: parked(args).iter().map(|wanted| wanted.count).sum(),
            start: args.await_start.then_some(start_time as fn() -> _),
        };
        let shown = match version {
            Version::Http2 => format!("{text}  HTTP/2, {at_once} streams"),
            Version::Http10 | Version::Http11 => text.to_owned(),
        };
        Ok(Setup { url: text.to_owned(), shown, settings, plan, parked_plan, seed })
    }

    /// Opens the parked connections, and announces it if it may take a while.
    pub(super) fn park(&self, args: &Args, stop: &Stop) -> Result<Option<IdlePool>, Failure> {
        if parked(args).is_empty() {
            return Ok(None);
        }
        if !args.json {
            say::plain(&format!("parking {} connections", self.settings.parked));
        }
        let pool = IdlePool::open(&self.settings, &self.parked_plan, &parked(args), stop)?;
        if stop.is_stopped() {
            return Err(Failure::failed("interrupted while opening parked connections, before the load began"));
        }
        Ok(Some(pool))
    }
}

/// The requests: one URL, unless flags say otherwise.
fn requests(args: &Args, url: &Url, seed: u64) -> Result<Requests, Failure> {
    let manifest = args.workload.as_deref().map(Manifest::read).transpose()?;
    if let Some(path) = &args.replay {
        let log = Log::read(path)?;
        let Tally { lines, odd, cut, .. } = log.tally();
        if !odd.is_empty() {
            let odd: Vec<String> = odd.iter().map(|(odd, count)| format!("{} {count}", odd.name())).collect();
            say::plain(&format!("{}: {lines} lines, not replayed: {}", path.display(), odd.join(", ")));
        }
        if let Some(why) = cut {
            say::plain(&format!("{}: read up to the truncation: {why}", path.display()));
        }
        let response_check = match &manifest {
            Some(manifest) => ResponseCheck::Manifest { manifest, verify: args.verify },
            None if args.as_logged => ResponseCheck::Log,
            None => ResponseCheck::Files,
        };
        return Ok(log.requests(args.speed, response_check, seed));
    }
    if let Some(manifest) = manifest {
        return Ok(manifest.requests(seed, args.verify));
    }
    let Some(path) = &args.mix else { return Ok(Requests::same(url.target.as_bytes())) };
    let text = std::fs::read_to_string(path).map_err(Failure::io(format_args!("read {}", path.display())))?;
    mix::parse(&text, seed).map_err(|why| Failure::failed(format!("{}: {why}", path.display())))
}

/// Reads the start time from a coordinator that waits until all generators are ready.
fn start_time() -> Result<SystemTime, Failure> {
    say::plain(READY);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(Failure::io("read the start time"))?;
    // The load ends with the program that requested it.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
    let unix_s = line.trim().parse::<f64>().ok().filter(|unix_s| (0.0..1e11).contains(unix_s));
    unix_s
        .map(|unix_s| UNIX_EPOCH + Duration::from_secs_f64(unix_s))
        .ok_or_else(|| Failure::usage(format!("invalid instant {:?}; write seconds since 1970", line.trim())))
}
