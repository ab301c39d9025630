//! The connection to the server: its orders, and the reports to it.
//!
//! One task receives and one sends, so that the end of the server is noticed whatever else is going on: this process
//! then exits at once. Nothing is lost by that, since files are replaced as a whole (`store`).

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amped_acme_protocol::{Challenge, Decoder, Order, Reason, Report, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::failure::Failure;

/// How long the server may take to publish challenges. It does so at once, unless its machine is overloaded.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);

/// The connection to the server.
pub(crate) struct Link {
    reports: UnboundedSender<Report>,
    /// The number of the challenges that all loops answer.
    published: watch::Receiver<u64>,
    last: AtomicU64,
}

impl Link {
    /// Begins to receive and send. Also returns the orders, except [`Order::Published`].
    ///
    /// # Errors
    /// The socket cannot be used.
    pub(crate) fn new(socket: StdUnixStream) -> io::Result<(Link, UnboundedReceiver<Order>)> {
        socket.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(socket)?.into_split();
        let (reports, to_send) = unbounded_channel();
        let (to_take, orders) = unbounded_channel();
        let (note, published) = watch::channel(0);
        tokio::spawn(receive(read, to_take, note));
        tokio::spawn(send(write, to_send));
        Ok((Link { reports, published, last: AtomicU64::new(0) }, orders))
    }

    /// Sends a report.
    pub(crate) fn report(&self, report: Report) {
        // The task that sends ends only with the process.
        let _ = self.reports.send(report);
    }

    /// Sends a line to the operator.
    pub(crate) fn log(&self, line: impl Into<String>) {
        self.report(Report::Log(line.into()));
    }

    /// Waits until every loop of the server answers these challenges, and no others.
    pub(crate) async fn publish(&self, challenges: Vec<Challenge>) -> Result<(), Failure> {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.report(Report::Publish(number, challenges));
        let mut published = self.published.clone();
        let done = timeout(PUBLISH_TIMEOUT, published.wait_for(|last| *last >= number)).await;
        match done {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Failure::new(Reason::Internal, "the server does not publish the challenges")),
        }
    }
}

async fn receive(mut socket: OwnedReadHalf, orders: UnboundedSender<Order>, published: watch::Sender<u64>) {
    let (mut decoder, mut piece) = (Decoder::default(), [0; 4096]);
    loop {
        match socket.read(&mut piece).await {
            Ok(count) if count > 0 => decoder.push(&piece[..count]),
            // The server has ended, or no longer wants certificates.
            _ => std::process::exit(0),
        }
        loop {
            match decoder.take() {
                Ok(Some(Order::Published(number))) => drop(published.send(number)),
                Ok(Some(order)) => drop(orders.send(order)),
                Ok(None) => break,
                Err(error) => {
                    eprintln!("amped-acme: {error} from the server: both must come from one build");
                    std::process::exit(1);
                }
            }
        }
    }
}

async fn send(mut socket: OwnedWriteHalf, mut reports: UnboundedReceiver<Report>) {
    while let Some(report) = reports.recv().await {
        if socket.write_all(&encode(&report)).await.is_err() {
            std::process::exit(0);
        }
    }
}
