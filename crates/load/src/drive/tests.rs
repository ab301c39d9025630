//! S-Clients and closed loops against small servers in this process. No timing is asserted.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use super::accounting::refusing;
use super::parked::{IdleMode, IdlePool, Parked, Wanted};
use super::*;
use crate::client::Plan;
use crate::schedule::{Arrivals, Schedule};
use crate::tally::Fault;
use crate::tls::{Options, Tls, TlsVersion, Trust};
use crate::window::Second;
use crate::workload::{Order, Request, Requests};
use amped_http::h1::request::Version;

/// Answers each request on all connections of a listener, with a thread per connection, until the process ends.
fn answer<S: Read + Write + Send + 'static>(mut accept: impl FnMut() -> io::Result<S> + Send + 'static) {
    thread::spawn(move || {
        while let Ok(mut stream) = accept() {
            thread::spawn(move || {
                let (mut held, mut buffer) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    held.extend_from_slice(&buffer[..count]);
                    while let Some(end) = held.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                        let head = String::from_utf8(held.drain(..end + 4).collect()).unwrap();
                        let close = head.contains("Connection: close");
                        let status = if head.starts_with("GET /missing") { "404 Not Found" } else { "200 OK" };
                        let connection = if close { "Connection: close\r\n" } else { "" };
                        let reply = format!("HTTP/1.1 {status}\r\n{connection}Content-Length: 2\r\n\r\nok");
                        if stream.write_all(reply.as_bytes()).is_err() || close {
                            return;
                        }
                    }
                }
            });
        }
    });
}

fn server() -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    answer(move || listener.accept().map(|(stream, _)| stream));
    Target::Tcp(address)
}

fn settings(target: Target) -> Settings {
    let (connect_timeout, timeout) = (Duration::from_secs(20), Duration::from_secs(20));
    Settings { target, tls: None, connect_timeout, timeout, spin: Duration::ZERO, lanes: 1, parked: 0, start: None }
}

fn plan(requests: Requests, per_connection: u64, pipeline: u64) -> Plan {
    Plan::new(requests, Version::Http11, "test", "", per_connection, pipeline)
}

fn run(settings: &Settings, plan: &Plan, rate: f64, ms: u64) -> Outcome {
    let schedule = Schedule::new(&Arrivals::Constant, rate, Duration::from_millis(ms), 1).unwrap();
    let shape = schedule.shape();
    let load = Loop::Open { arrivals: "constant".to_owned(), rate, seed: 1, shape };
    open(settings, plan, &schedule, load, &Stop::default(), &|_| {}).unwrap()
}

#[test]
fn each_arrival_is_answered() {
    let target = server();
    for (lanes, per_connection, pipeline) in [(1, 1, 1), (2, 1, 1), (1, 5, 1), (1, 5, 2), (3, 4, 4)] {
        let settings = Settings { lanes, ..settings(target.clone()) };
        let outcome = run(&settings, &plan(Requests::same(b"/"), per_connection, pipeline), 200.0, 500);
        assert_eq!((outcome.planned, outcome.started, outcome.established), (100, 100, 100), "{lanes} lanes");
        assert_eq!((outcome.ok, outcome.failed()), (100 * per_connection, 0), "{:?}", outcome.failures);
        assert_eq!(outcome.latency.count, outcome.ok);
        let total = |count: fn(&Second) -> u64| outcome.series.iter().map(count).sum::<u64>();
        assert_eq!((total(|second| second.started), total(|second| second.ok)), (100, outcome.ok));
        assert_eq!(outcome.statuses, [0, outcome.ok, 0, 0, 0]);
    }
}

#[test]
fn list_is_requested_once_and_counted_by_class() {
    let request = |target: &str, class| Request { target: target.as_bytes().into(), class, ..Request::default() };
    let table = vec![request("/", 0), request("/missing", 1), request("/", 1), request("/", 1)];
    let requests = Requests::new(table, Order::Once).with_classes(vec!["there".to_owned(), "mixed".to_owned()]);
    let outcome = run(&settings(server()), &plan(requests, 1, 1), 100.0, 40);
    assert_eq!((outcome.ok, outcome.failed_by(Fault::Status)), (3, 1));
    let classes = outcome.classes.iter().map(|class| {
        let timed = class.latency.as_ref().unwrap().count;
        (&class.class[..], class.ok, class.failed, timed)
    });
    assert_eq!(classes.collect::<Vec<_>>(), [("there", 1, 0, 1), ("mixed", 2, 1, 2)]);
}

#[test]
fn load_starts_at_given_time() {
    fn soon() -> Result<SystemTime, Failure> {
        Ok(SystemTime::now() + Duration::from_millis(200))
    }
    fn over() -> Result<SystemTime, Failure> {
        Ok(UNIX_EPOCH)
    }
    let asked_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let target = server();
    let waiting = Settings { start: Some(soon), ..settings(target.clone()) };
    let outcome = run(&waiting, &plan(Requests::same(b"/"), 1, 1), 200.0, 500);
    assert!(outcome.began_s >= asked_s + 0.2 && outcome.ok == 100, "{} from {asked_s}", outcome.began_s);
    let schedule = Schedule::new(&Arrivals::Constant, 1.0, Duration::from_secs(1), 1).unwrap();
    let load = Loop::Open { arrivals: String::new(), rate: 1.0, seed: 1, shape: schedule.shape() };
    let late = Settings { start: Some(over), ..settings(target) };
    let why = open(&late, &plan(Requests::same(b"/"), 1, 1), &schedule, load, &Stop::default(), &|_| {}).unwrap_err();
    assert!(why.to_string().contains(TOO_LATE), "{why}");
}

#[test]
fn closed_loop_slices_request_each_target_once() {
    let table: Vec<Request> =
        (0..60).map(|n| Request { target: b"/".as_slice().into(), class: n, ..Request::default() }).collect();
    let requests = Requests::new(table, Order::Once);
    let mut served = vec![0; 60];
    for index in 0..3 {
        let slice = crate::slice::Slice::new(index, 3).unwrap();
        let plan = plan(requests.clone().slice(slice), u64::MAX, 2);
        let long = Duration::from_secs(60);
        let outcome = closed(&settings(server()), &plan, 2, Duration::ZERO, long, &Stop::default(), &|_| {}).unwrap();
        assert_eq!(outcome.ok, 20, "{slice}: {:?}", outcome.failures);
        served.iter_mut().zip(&outcome.classes).for_each(|(count, class)| *count += class.ok);
    }
    assert_eq!(served, [1; 60]);
}

#[test]
fn refused_connection_is_counted() {
    let address = refusing();
    let outcome = run(&settings(Target::Tcp(address)), &plan(Requests::same(b"/"), 1, 1), 200.0, 500);
    assert_eq!((outcome.started, outcome.ok, outcome.failed_by(Fault::Refused)), (100, 0, 100));
}

#[test]
fn connect_and_response_timeouts_are_counted() {
    // It never accepts: its queue fills, and the kernel does not answer further clients.
    let deaf = amped_sys::socket::listen("127.0.0.1:0".parse().unwrap(), 10, false).unwrap();
    let target = Target::Tcp(amped_sys::socket::local_address(&deaf).unwrap());
    let short = Duration::from_millis(300);
    let settings = Settings { connect_timeout: short, timeout: 2 * short, ..settings(target) };
    let outcome = run(&settings, &plan(Requests::same(b"/"), 1, 1), 200.0, 500);
    let (abandoned, timed_out) = (outcome.failed_by(Fault::Abandoned), outcome.failed_by(Fault::TimedOut));
    // Connections that this machine could not begin in time were counted as unsent.
    let unsent = outcome.failed_by(Fault::Unsent);
    assert_eq!((outcome.started + unsent, outcome.ok, outcome.failed()), (100, 0, 100), "{:?}", outcome.failures);
    assert_eq!(abandoned + timed_out, outcome.started, "{:?}", outcome.failures);
    assert!(abandoned >= 20 && timed_out >= 5, "{:?}", outcome.failures);
}

/// Runs S-Clients with descriptors in place of a schedule.
fn run_descriptors(settings: &Settings, rate: f64, ms: u64) -> Outcome {
    let schedule = Schedule::new(&Arrivals::Descriptors, rate, Duration::from_millis(ms), 1).unwrap();
    let load = Loop::Open { arrivals: "descriptors".to_owned(), rate, seed: 1, shape: schedule.shape() };
    open(settings, &plan(Requests::same(b"/"), 1, 1), &schedule, load, &Stop::default(), &|_| {}).unwrap()
}

#[test]
fn free_descriptors_start_connections() {
    for lanes in [1, 2] {
        // Each connection is established at once, so its descriptor is free again long before T.
        let fast = Settings { lanes, ..settings(server()) };
        let outcome = run_descriptors(&fast, 0.1, 2000);
        assert!(outcome.started > 2, "2 descriptors, one of them later, began {}", outcome.started);
        assert_eq!((outcome.planned, outcome.ok, outcome.failed()), (outcome.started, outcome.started, 0));
        // It never accepts: once its queue is full, each descriptor is free when T is over.
        let deaf = amped_sys::socket::listen("127.0.0.1:0".parse().unwrap(), 10, false).unwrap();
        let target = Target::Tcp(amped_sys::socket::local_address(&deaf).unwrap());
        let short = Duration::from_millis(100);
        let settings = Settings { lanes, connect_timeout: short, timeout: short, ..settings(target) };
        let outcome = run_descriptors(&settings, 200.0, 1000);
        let (abandoned, timed_out) = (outcome.failed_by(Fault::Abandoned), outcome.failed_by(Fault::TimedOut));
        // Those that this machine could not begin within T were not sent.
        let unsent = outcome.failed_by(Fault::Unsent);
        assert_eq!((abandoned + timed_out + unsent, outcome.ok), (outcome.planned, 0), "{:?}", outcome.failures);
        // 20 descriptors, ten times T, and the queue with its slack; fewer if the machine does not run the threads.
        assert!(abandoned <= 20 * 11 + 32, "{:?}", outcome.failures);
    }
}

#[test]
fn closed_loop_completes_every_request() {
    let target = server();
    for (lanes, per_connection, pipeline, think_ms) in [(1, u64::MAX, 1, 0), (2, 3, 2, 0), (1, 1, 1, 5), (2, 4, 1, 1)] {
        let settings = Settings { lanes, ..settings(target.clone()) };
        let think = Duration::from_millis(think_ms);
        let plan = plan(Requests::same(b"/"), per_connection, pipeline);
        let outcome =
            closed(&settings, &plan, 4, think, Duration::from_millis(300), &Stop::default(), &|_| {}).unwrap();
        assert!(outcome.ok >= 4 && outcome.failed() == 0, "{} {:?}", outcome.ok, outcome.failures);
        if per_connection == u64::MAX {
            assert_eq!(outcome.started, 4, "they stay connected");
        } else {
            assert!(outcome.ok.div_ceil(per_connection) <= outcome.started);
        }
        assert_eq!(outcome.load, Loop::Closed { clients: 4, think_ms: think_ms as f64 });
    }
}

#[test]
fn client_starting_after_end_sends_one_request() {
    let (settings, plan) = (settings(server()), plan(Requests::same(b"/"), u64::MAX, 1));
    let (lane, next, clock) = (Lane::new(3).unwrap(), [0, 0].map(AtomicU64::new), Clock::start());
    let (mut cutters, _seconds) = seconds::seconds(1, Time::START, Duration::from_secs(1), 0.0);
    let connector =
        Connector { target: &settings.target, sources: source::Sources::new(&settings.target, 0, 1, 0).unwrap() };
    let handler = handler::Handler::new(&lane, &settings, &plan, clock, Time::START, Tally::new(1));
    let handler = handler.closed(connector, Duration::ZERO, Time::START + Duration::from_nanos(1), &next[0], &next[1]);
    let tally = handler.run(cutters.pop().unwrap(), &Stop::default()).tally;
    assert_eq!((tally.ok(), tally.all_failed()), (3, 0));
}

#[test]
fn end_of_list_ends_closed_loop() {
    let target = server();
    for (lanes, per_connection, pipeline) in [(1, u64::MAX, 1), (1, 1, 1), (2, 4, 2), (1, 3, 2), (3, 5, 3)] {
        let settings = Settings { lanes, ..settings(target.clone()) };
        let table = vec![Request { target: b"/".as_slice().into(), ..Request::default() }; 50];
        let plan = plan(Requests::new(table, Order::Once), per_connection, pipeline);
        // A minute, unless it ends by itself.
        let long = Duration::from_secs(60);
        let outcome = closed(&settings, &plan, 4, Duration::ZERO, long, &Stop::default(), &|_| {}).unwrap();
        assert_eq!((outcome.ok, outcome.failed()), (50, 0), "{lanes} lanes: {:?}", outcome.failures);
        assert!(outcome.started <= 50 + 4 && outcome.seconds < 60.0, "{} {}", outcome.started, outcome.seconds);
    }
}

#[test]
fn closed_loop_survives_missing_server() {
    let address = refusing();
    let settings = settings(Target::Tcp(address));
    let plan = plan(Requests::same(b"/"), 1, 1);
    let outcome =
        closed(&settings, &plan, 2, Duration::ZERO, Duration::from_millis(200), &Stop::default(), &|_| {}).unwrap();
    // Each client pauses 10 ms after each refusal.
    assert!((2..=44).contains(&outcome.failed_by(Fault::Refused)), "{:?}", outcome.failures);
}

#[test]
fn unix_socket_is_supported() {
    let folder = std::env::temp_dir().join(format!("ammeter-load-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    answer(move || listener.accept().map(|(stream, _)| stream));
    let outcome = run(&settings(Target::Unix(path)), &plan(Requests::same(b"/"), 2, 1), 100.0, 200);
    fs::remove_dir_all(folder).unwrap();
    assert_eq!((outcome.ok, outcome.failed()), (40, 0), "{:?}", outcome.failures);
}

#[test]
fn stopped_run_reports_partial_result() {
    let (target, stop) = (server(), Stop::default());
    let schedule = Schedule::new(&Arrivals::Constant, 50.0, Duration::from_secs(600), 1).unwrap();
    let load = Loop::Open { arrivals: "constant".to_owned(), rate: 50.0, seed: 1, shape: schedule.shape() };
    let on_second = |_: &Interval| stop.stop();
    let outcome =
        open(&settings(target), &plan(Requests::same(b"/"), 1, 1), &schedule, load, &stop, &on_second).unwrap();
    assert!(outcome.interrupted && outcome.ok > 0 && outcome.planned < 30_000, "{}", outcome.planned);
    assert!(outcome.planned <= outcome.started + 1);
}

#[test]
fn descriptor_shortage_is_reported_with_count() {
    let schedule = Schedule::at(&vec![Duration::ZERO; 40_000_000]).unwrap();
    let load = Loop::Closed { clients: 0, think_ms: 0.0 };
    let plan = plan(Requests::same(b"/"), 1, 1);
    let refused = open(&settings(server()), &plan, &schedule, load, &Stop::default(), &|_| {}).unwrap_err();
    let text = refused.to_string();
    assert!(refused.exit_status() == 1 && text.contains("40000064") && text.contains("ulimit -n"), "{text}");
}

/// Waits until the counts of a pool satisfy a condition.
fn until(pool: &IdlePool, holds: impl Fn(&[Parked]) -> bool) -> Vec<Parked> {
    let begun = std::time::Instant::now();
    let mut all = pool.take();
    while !holds(&all) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{all:?}");
        thread::sleep(Duration::from_millis(5));
        for (sum, new) in all.iter_mut().zip(pool.take()) {
            (sum.closed, sum.reopened, sum.failed) =
                (sum.closed + new.closed, sum.reopened + new.reopened, sum.failed + new.failed);
            sum.received_bytes += new.received_bytes;
            (sum.open_least, sum.open_at_end) = (sum.open_least.min(new.open_least), new.open_at_end);
        }
    }
    all
}

#[test]
fn parked_connections_are_counted_separately_from_load() {
    let settings = Settings { parked: 60, ..settings(server()) };
    let plan = plan(Requests::same(b"/"), u64::MAX, 1);
    let wanted = [Wanted { count: 40, mode: IdleMode::Idle }, Wanted { count: 20, mode: IdleMode::SlowRead }];
    let pool = IdlePool::open(&settings, &plan, &wanted, &Stop::default()).unwrap();
    pool.take();
    let mut outcome = run(&settings, &self::plan(Requests::same(b"/"), 1, 1), 200.0, 500);
    outcome.park(pool.take());
    assert_eq!((outcome.started, outcome.ok, outcome.failed()), (100, 100, 0), "{:?}", outcome.failures);
    for (parked, count) in outcome.parked.iter().zip([40, 20]) {
        let Parked { open_at_start, open_least, open_at_end, closed, failed, .. } = *parked;
        assert_eq!((open_at_start, open_least, open_at_end, closed, failed), (count, count, count, 0, 0));
    }
    assert!(outcome.verdict.broken.is_empty(), "{:?}", outcome.verdict);
    // They receive complete replies, and then send again: 40 bytes at 16 per second.
    until(&pool, |parked| parked[1].received_bytes > 20 * 41);
    // Two missing parked connections fail a check of the run.
    let mut few = outcome.parked.clone();
    few[0].open_at_start = 38;
    outcome.park(few);
    assert!(
        outcome.verdict.to_string().contains("only 38 of 40 parked connections (idle) were open"),
        "{}",
        outcome.verdict
    );
}

#[test]
fn parked_connections_closed_by_server_are_counted_and_reopened() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::Tcp(listener.local_addr().unwrap());
    // The first ten are closed after their request; later ones stay open.
    thread::spawn(move || {
        let mut kept = Vec::new();
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            if number >= 10 {
                kept.push(stream);
            }
        }
    });
    let settings = Settings { parked: 10, ..settings(target) };
    let wanted = [Wanted { count: 10, mode: IdleMode::Idle }];
    let pool = IdlePool::open(&settings, &plan(Requests::same(b"/"), u64::MAX, 1), &wanted, &Stop::default()).unwrap();
    let found = until(&pool, |parked| parked[0].reopened == 10 && parked[0].open_at_end == 10);
    assert_eq!((found[0].closed, found[0].failed), (10, 0), "{found:?}");
    assert!(found[0].open_least < 10, "{found:?}");
    let text = found[0].to_string();
    assert!(text.contains("the server closed 10, 10 were reopened"), "{text}");
}

#[test]
fn parked_connections_without_server_do_not_block_run() {
    let address = refusing();
    let settings = Settings { timeout: Duration::from_millis(50), parked: 3, ..settings(Target::Tcp(address)) };
    let wanted = [Wanted { count: 3, mode: IdleMode::Idle }];
    let pool = IdlePool::open(&settings, &plan(Requests::same(b"/"), u64::MAX, 1), &wanted, &Stop::default()).unwrap();
    let found = until(&pool, |parked| parked[0].failed >= 3);
    assert_eq!((found[0].open_at_end, found[0].closed), (0, 0));
}

#[test]
fn parked_connections_beyond_descriptor_limit_are_rejected() {
    let wanted = [Wanted { count: 40_000_000, mode: IdleMode::Idle }];
    let settings = Settings { parked: 40_000_000, ..settings(server()) };
    let plan = plan(Requests::same(b"/"), u64::MAX, 1);
    let why = IdlePool::open(&settings, &plan, &wanted, &Stop::default()).unwrap_err().to_string();
    assert!(why.contains("40000032") && why.contains("ulimit -n"), "{why}");
}

/// A self-signed certificate for `localhost`, changed by `change`, and its key.
fn certificate(change: impl FnOnce(&mut rcgen::CertificateParams)) -> (rcgen::Certificate, rcgen::KeyPair) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    change(&mut parameters);
    (parameters.self_signed(&key).unwrap(), key)
}

/// As [`server`], with TLS.
fn secure_server((certificate, key): &(rcgen::Certificate, rcgen::KeyPair)) -> Target {
    serve_securely(server_config(certificate, key))
}

fn serve_securely(config: Arc<rustls::ServerConfig>) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    answer(move || {
        let (stream, _) = listener.accept()?;
        Ok(rustls::StreamOwned::new(rustls::ServerConnection::new(Arc::clone(&config)).unwrap(), stream))
    });
    Target::Tcp(address)
}

fn server_config(certificate: &rcgen::Certificate, key: &rcgen::KeyPair) -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let chain = vec![certificate.der().clone()];
    let mut config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn secure(target: Target, host: &str, trust: Trust<'_>) -> Settings {
    Settings { tls: Some(Tls::new(host, trust, Options::default()).unwrap()), ..settings(target) }
}

#[test]
fn each_arrival_is_answered_over_tls() {
    let certificate = certificate(|_| {});
    let target = secure_server(&certificate);
    for (lanes, per_connection, pipeline) in [(1, 1, 1), (2, 5, 2)] {
        let settings = Settings { lanes, ..secure(target.clone(), "localhost", Trust::Anybody) };
        let plan = plan(Requests::same(b"/"), per_connection, pipeline);
        let outcome = run(&settings, &plan, 100.0, 300);
        assert_eq!((outcome.established, outcome.secured.count), (30, 30), "{:?}", outcome.tls);
        assert_eq!((outcome.ok, outcome.failed()), (30 * per_connection, 0), "{:?}", outcome.failures);
        assert!(outcome.secured.p50_ms >= outcome.connected.p50_ms);
        let handshakes = &outcome.handshakes;
        assert_eq!((handshakes.full.count, handshakes.resumed.count, handshakes.issued), (30, 0, 0));
        assert!(handshakes.all.p50_ms > 0.0 && handshakes.all.p50_ms <= outcome.secured.p50_ms, "{handshakes:?}");
        let outcome =
            closed(&settings, &plan, 3, Duration::ZERO, Duration::from_millis(200), &Stop::default(), &|_| {}).unwrap();
        assert!(outcome.ok >= 3 && outcome.failed() == 0, "{:?} {:?}", outcome.failures, outcome.tls);
    }
    // More than one record, one receive and the socket's buffer hold.
    let long = format!("X: {}\r\n", "x".repeat(10_000));
    let plan = Plan::new(Requests::same(b"/"), Version::Http11, "test", &long, 200, 200);
    let outcome = run(&secure(target, "localhost", Trust::Anybody), &plan, 10.0, 100);
    assert_eq!((outcome.ok, outcome.failed()), (200, 0), "{:?} {:?}", outcome.failures, outcome.tls);
}

/// A closed loop with one client, whose next connection begins after the response to the last one.
fn one_after_the_other(target: &Target, options: Options) -> Outcome {
    let tls = Tls::new("localhost", Trust::Anybody, options).unwrap();
    let settings = Settings { tls: Some(tls), ..settings(target.clone()) };
    let plan = plan(Requests::same(b"/").limit(60), 1, 1);
    let hour = Duration::from_secs(3600);
    let outcome = closed(&settings, &plan, 1, Duration::ZERO, hour, &Stop::default(), &|_| {}).unwrap();
    assert_eq!((outcome.ok, outcome.failed()), (60, 0), "{:?} {:?}", outcome.failures, outcome.tls);
    outcome
}

#[test]
fn requested_share_of_sessions_is_resumed_in_both_versions() {
    let target = secure_server(&certificate(|_| {}));
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        let counts = |resume, seed| {
            let handshakes =
                one_after_the_other(&target, Options { version: Some(version), resume, seed, ..Options::default() })
                    .handshakes;
            assert_eq!(handshakes.warning, None, "{handshakes:?}");
            (handshakes.full.count, handshakes.resumed.count)
        };
        assert_eq!(counts(0.0, 1), (60, 0));
        // The first has no session yet.
        assert_eq!(counts(1.0, 1), (1, 59));
        let half = counts(0.5, 1);
        assert!((15..45).contains(&half.1) && half.0 + half.1 == 60, "{half:?}");
        assert_eq!(half, counts(0.5, 1), "the seed determines it");
    }
}

#[test]
fn each_run_begins_without_sessions() {
    let target = secure_server(&certificate(|_| {}));
    let options = Options { resume: 1.0, ..Options::default() };
    let settings = Settings { tls: Some(Tls::new("localhost", Trust::Anybody, options).unwrap()), ..settings(target) };
    for _ in 0..2 {
        // The second connection begins long after the first has ended, even on a busy machine.
        let outcome = run(&settings, &plan(Requests::same(b"/"), 1, 1), 2.0, 1000);
        let handshakes = &outcome.handshakes;
        assert_eq!((handshakes.full.count, handshakes.resumed.count, handshakes.wanted), (1, 1, 2), "{handshakes:?}");
    }
}

#[test]
fn server_without_tickets_is_reported() {
    let (certificate, key) = certificate(|_| {});
    let check = |change: fn(&mut rustls::ServerConfig), versions: &[TlsVersion], says: &str| {
        let mut config = Arc::unwrap_or_clone(server_config(&certificate, &key));
        change(&mut config);
        let target = serve_securely(Arc::new(config));
        for version in versions {
            let options = Options { version: Some(*version), resume: 1.0, seed: 1, ..Options::default() };
            let handshakes = one_after_the_other(&target, options).handshakes;
            assert_eq!((handshakes.full.count, handshakes.wanted), (60, 60), "{version}");
            let warning = handshakes.warning.unwrap();
            assert!(warning.contains("resumed 0 % of the 60 sessions") && warning.contains(says), "{warning}");
        }
    };
    let without = |config: &mut rustls::ServerConfig| {
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    };
    check(without, &[TlsVersion::Tls12, TlsVersion::Tls13], "it issues no tickets");
}

#[test]
fn only_the_requested_version_is_offered() {
    let (certificate, key) = certificate(|_| {});
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider);
    let config = config.with_protocol_versions(&[&rustls::version::TLS12]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let target = serve_securely(Arc::new(config));
    let outcome = |version| {
        let tls = Tls::new("localhost", Trust::Anybody, Options { version, ..Options::default() }).unwrap();
        let settings = Settings { tls: Some(tls), ..settings(target.clone()) };
        run(&settings, &plan(Requests::same(b"/"), 1, 1), 100.0, 50)
    };
    for version in [None, Some(TlsVersion::Tls12)] {
        assert_eq!(outcome(version).ok, 5, "{version:?}");
    }
    let refused = outcome(Some(TlsVersion::Tls13));
    assert_eq!(refused.failed_by(Fault::Tls), 5, "{:?}", refused.failures);
    let why = refused.tls.unwrap();
    assert!(why.contains("cannot negotiate TLS 1.3 with localhost") && why.contains("omit --tls-version"), "{why}");
}

#[test]
fn certificates_are_verified() {
    fn is_ca(parameters: &mut rcgen::CertificateParams) {
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trusted.pem");
    let check = |certificate: &(rcgen::Certificate, rcgen::KeyPair), host: &str, own: bool, says: Option<&str>| {
        // Another authority's certificate beside it: files may have several.
        let other = self::certificate(|parameters| {
            is_ca(parameters);
            parameters.distinguished_name.push(rcgen::DnType::CommonName, "another");
        });
        let trusted = if own { certificate.0.pem() } else { String::new() } + &other.0.pem();
        fs::write(&path, trusted).unwrap();
        let plan = plan(Requests::same(b"/"), 2, 2);
        let outcome = run(&secure(secure_server(certificate), host, Trust::File(&path)), &plan, 100.0, 50);
        match says {
            None => assert_eq!((outcome.ok, outcome.tls), (10, None)),
            Some(says) => {
                assert_eq!((outcome.ok, outcome.failed_by(Fault::Tls)), (0, 10), "{:?}", outcome.failures);
                let why = outcome.tls.unwrap();
                assert!(why.contains(says) && why.contains("--insecure"), "{why}");
            }
        }
    };
    let good = certificate(|_| {});
    check(&good, "localhost", true, None);
    check(&good, "localhost", false, Some("the certificate of localhost is not signed by a trusted authority"));
    check(&good, "example.com", true, Some("is not for example.com but for localhost: use that name"));
    check(&good, "127.0.0.1", true, Some("is not for 127.0.0.1"));
    // As `openssl req -x509` makes it.
    let own_authority = certificate(is_ca);
    check(&own_authority, "localhost", true, None);
    check(&own_authority, "example.com", true, Some("is not for example.com"));
    check(&own_authority, "localhost", false, Some("is not accepted (CaUsedAsEndEntity): give it,"));
    let old = certificate(|parameters| {
        is_ca(parameters);
        parameters.not_after = rcgen::date_time_ymd(2001, 1, 1);
    });
    check(&old, "localhost", true, Some("has expired"));
    let early = certificate(|parameters| parameters.not_before = rcgen::date_time_ymd(2999, 1, 1));
    check(&early, "localhost", true, Some("is not valid yet"));
    // Signed by a trusted authority.
    let (authority_key, key) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    is_ca(&mut authority);
    fs::write(&path, authority.self_signed(&authority_key).unwrap().pem()).unwrap();
    let signed = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let signed = signed.signed_by(&key, &rcgen::Issuer::from_params(&authority, &authority_key)).unwrap();
    let settings = secure(secure_server(&(signed, key)), "127.0.0.1", Trust::File(&path));
    let outcome = run(&settings, &plan(Requests::same(b"/"), 1, 1), 100.0, 50);
    assert_eq!((outcome.ok, outcome.tls), (5, None));
}

#[test]
fn peer_without_tls_is_reported() {
    let outcome = |says: &'static str| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::Tcp(listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // All that is sent at first: with unread data, closing would send a reset.
                let _ = stream.read(&mut [0; 65536]);
                let _ = stream.write_all(says.as_bytes());
            }
        });
        run(&secure(target, "localhost", Trust::Anybody), &plan(Requests::same(b"/"), 1, 1), 100.0, 50)
    };
    let plain = outcome("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(plain.failed_by(Fault::Tls), 5, "{:?}", plain.failures);
    assert!(plain.tls.as_ref().is_some_and(|why| why.contains("is its URL http://?")), "{:?}", plain.tls);
    let silent = outcome("");
    assert_eq!((silent.failed_by(Fault::Closed), silent.tls), (5, None), "{:?}", silent.failures);
}

#[test]
fn tls_end_without_close_notify_is_an_error() {
    let certificate = certificate(|_| {});
    let config = server_config(&certificate.0, &certificate.1);
    for announced in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let config = Arc::clone(&config);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let tls = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = rustls::StreamOwned::new(tls, stream.unwrap());
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                // The end of the connection ends the body.
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbody").unwrap();
                if announced {
                    stream.conn.send_close_notify();
                }
                stream.flush().unwrap();
            }
        });
        let settings = secure(Target::Tcp(address), "localhost", Trust::Anybody);
        let outcome = run(&settings, &plan(Requests::same(b"/"), 1, 1), 100.0, 50);
        let expected = if announced { (5, 0) } else { (0, 5) };
        assert_eq!((outcome.ok, outcome.failed_by(Fault::Short)), expected, "{:?}", outcome.failures);
    }
}
