//! Serves the monitor's figures by HTTP: `/metrics`, the last sample as OpenMetrics.
//!
//! A separate thread serves it, so that no tick waits for a client. The page is rendered on request,
//! from the last sample. Clients cost CPU time, and their number is unbounded, so they have a part
//! of the budget: after each turn the thread sleeps for as long as that part requires. A client that
//! requests continuously is answered slowly, without effect on the server or the ticks.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use amped_exporter::Exporter;
use amped_measure::Failure;
use amped_sys::clock;
use amped_sys::eventfd::EventFd;
use amped_sys::poll::{self, Awaited};
use amped_sys::socket;

use crate::rates::Tick;
use crate::sample::Sample;
use crate::show::{Totals, openmetrics};

/// The endpoint, served until dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    latest: Mutex<(Totals, Option<Arc<Sample>>)>,
    is_over: AtomicBool,
    bell: EventFd,
}

/// Maximum connections that wait while others are served.
const BACKLOG: i32 = 64;
/// Maximum sleep, whatever a turn cost.
const REST_MAX: Duration = Duration::from_secs(1);

impl Endpoint {
    /// The clients' share of the monitor's budget.
    pub const PART: f64 = 0.2;

    /// Listens at `address`. `target` names the monitored server; `budget` is the monitor's share of a processor, of
    /// which clients have [`Endpoint::PART`].
    ///
    /// # Errors
    /// When the address is in use or not this machine's, or its port requires root.
    pub fn open(address: SocketAddr, target: &str, budget: f64) -> Result<Endpoint, Failure> {
        let listener = socket::listen(address, BACKLOG, false).map_err(|error| taken(address, &error))?;
        let doing = || Failure::io(format!("serve http://{address}/metrics"));
        let mut exporter = Exporter::new(listener).map_err(doing())?;
        let bell = EventFd::new().map_err(doing())?;
        let totals = Totals { target: target.to_owned(), budget, ..Totals::default() };
        let shared = Shared { latest: Mutex::new((totals, None)), is_over: AtomicBool::new(false), bell };
        let (address, shared) = (exporter.address(), Arc::new(shared));
        let served = shared.clone();
        let serve = move || serve(&mut exporter, &served, budget * Endpoint::PART);
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(serve).map_err(doing())?;
        Ok(Endpoint { address, shared, thread: Some(thread) })
    }

    /// The address it listens on, with the port that the kernel chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Publishes this sample; `tick` is the difference to the previous one.
    pub fn tell(&self, sample: Arc<Sample>, tick: Option<&Tick>) {
        let mut latest = self.shared.latest.lock().unwrap_or_else(PoisonError::into_inner);
        tick.iter().for_each(|tick| latest.0.add(tick));
        latest.1 = Some(sample);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves clients. `share` is their share of a processor.
fn serve(exporter: &mut Exporter, shared: &Shared, share: f64) {
    while !shared.is_over.load(Ordering::Relaxed) {
        let mut awaited = Awaited::default();
        awaited.readable(shared.bell.as_fd());
        exporter.await_in(&mut awaited);
        awaited.wait(Duration::MAX);
        let before = clock::cpu_time();
        exporter.turn(|| {
            // Rendering does not hold the lock.
            let (totals, sample) = shared.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
            openmetrics(&totals, sample.as_deref())
        });
        let cost = clock::cpu_time().saturating_sub(before).as_secs_f64();
        let rest = Duration::try_from_secs_f64(cost / share).unwrap_or(REST_MAX).min(REST_MAX);
        // The next wait reports an error again, after a sleep.
        let _ = poll::wait_readable(&[shared.bell.as_fd()], rest);
    }
}

fn taken(address: SocketAddr, error: &io::Error) -> Failure {
    let way_out = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program listens there (`ss -ltnp` shows which): choose another port, or 0 for any free one"
        }
        io::ErrorKind::PermissionDenied => "; ports below 1024 require root: choose a higher one",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address: `ip address` lists its addresses",
        _ => "",
    };
    Failure::failed(format!("cannot listen on {address}: {error}{way_out}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn ask(address: SocketAddr) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn final_sample_is_served_and_address_is_released() {
        let endpoint = Endpoint::open(([127, 0, 0, 1], 0).into(), "port 80", 1.0).unwrap();
        let address = endpoint.address();
        let text = ask(address);
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("openmetrics-text; version=1.0.0"), "{text}");
        assert!(text.contains("target=\"port 80\"") && !text.contains("sample_timestamp"), "{text}");
        for number in 1..=2 {
            let sample = Sample { wall_ms: number * 1000, ..Sample::default() };
            let server = crate::rates::ServerUse { user: 0.5, ..Default::default() };
            let tick = Tick { interval_s: 1.0, server, ..Tick::default() };
            endpoint.tell(Arc::new(sample), (number > 1).then_some(&tick));
            let text = ask(address);
            assert!(text.contains(&format!("\nammeter_sample_timestamp_seconds {number}\n")), "{text}");
            let used = if number > 1 { "0.5" } else { "0.0" };
            assert!(text.contains(&format!("\nammeter_server_user_seconds_total {used}\n")), "{text}");
        }
        let error = Endpoint::open(address, "", 1.0).unwrap_err().to_string();
        assert!(error.contains("another program listens there"), "{error}");
        drop(endpoint);
        assert!(TcpStream::connect(address).is_err());
    }
}
