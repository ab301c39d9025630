//! A server that does as little as possible: it bounds the rate that a load generator can reach.
//!
//! One thread, one fixed reply per receive. For calibration and tests. It does
//! not parse requests: it treats each received piece of data as one.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use amped_measure::Failure;
use amped_sys::epoll::{Epoll, Events, Interest};
use amped_sys::socket;

use crate::drive::Stop;

/// A running null server; stops when dropped.
#[derive(Debug)]
pub struct Null {
    address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const LAST_REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// The listener's token; connections have the index of their slot.
const LISTENER: u64 = u64::MAX;

impl Null {
    /// Starts a server on a port of 127.0.0.1 that the kernel chooses.
    ///
    /// # Errors
    /// When the process is out of descriptors or threads.
    pub fn start() -> Result<Null, Failure> {
        Null::at((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// Starts a server at this address.
    ///
    /// # Errors
    /// When the address is in use, or as [`start`](Null::start).
    pub fn at(address: SocketAddr) -> Result<Null, Failure> {
        let doing = || Failure::io(format!("start a null server at {address}"));
        let listener = socket::listen(address, 4096, false).map_err(doing())?;
        let address = socket::local_address(&listener).map_err(doing())?;
        let poll = Epoll::new().map_err(doing())?;
        poll.add(&listener, LISTENER, Interest::Readable).map_err(doing())?;
        let stop = Stop::default();
        let stopped = stop.clone();
        let serve = move || serve(&listener, &poll, &stopped);
        let thread = thread::Builder::new().name("null-server".to_owned()).spawn(serve).map_err(doing())?;
        Ok(Null { address, stop, thread: Some(thread) })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &OwnedFd, poll: &Epoll, stop: &Stop) {
    let (mut connections, mut free): (Vec<Option<OwnedFd>>, Vec<usize>) = (Vec::new(), Vec::new());
    let (mut events, mut buffer) = (Events::with_capacity(256), [0; 16 * 1024]);
    while !stop.is_stopped() {
        if poll.wait(&mut events, Some(Duration::from_millis(20))).is_err() {
            return;
        }
        for ready in events.iter() {
            if ready.token == LISTENER {
                // A bounded number at a time, so that open connections are served too.
                for _ in 0..64 {
                    let Ok((connection, _)) = socket::accept(listener) else { break };
                    let place = free.pop().unwrap_or(connections.len());
                    if poll.add(&connection, place as u64, Interest::Connection).is_err() {
                        free.push(place);
                        break;
                    }
                    if place == connections.len() {
                        connections.push(None);
                    }
                    connections[place] = Some(connection);
                }
                continue;
            }
            let place = ready.token as usize;
            let Some(connection) = connections.get(place).and_then(Option::as_ref) else { continue };
            let is_over = match socket::receive(connection, &mut buffer) {
                Ok(0) => true,
                Ok(count) => {
                    let is_last = buffer[..count].windows(17).any(|bytes| bytes == b"Connection: close");
                    let sent = socket::send(connection, if is_last { LAST_REPLY } else { REPLY }, false);
                    is_last || sent.is_err() || ready.ended
                }
                Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
            };
            if is_over {
                connections[place] = None;
                free.push(place);
            }
        }
    }
}
