//! The metrics endpoint: an HTTP listener that a collector scrapes every few seconds.
//!
//! It never blocks: its owner polls its descriptors and timeouts (`await_in`), and calls it when one is due. Each
//! connection carries one request; every response is generated when it is requested.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use amped_http::date;
use amped_http::h1::request::{self, HeadLimits};
use amped_http::h1::response::{Connection, Head};
use amped_http::method::Method;
use amped_http::status::Status;
use amped_http::uri::Target;
use amped_sys::poll::Awaited;
use amped_sys::{file, socket};

/// The media type of OpenMetrics.
const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The path of the metrics.
const PATH: &[u8] = b"/metrics";

/// Maximum concurrent clients; others wait to be accepted.
const CLIENTS_MAX: usize = 8;

/// Timeout of a client, for sending its request and receiving the response.
const TIME: Duration = Duration::from_secs(10);

/// Maximum pieces of 4 KiB read from a client in a turn.
const PIECES_MAX: usize = 16;

/// Delay before accepting again when the process is out of descriptors.
const REST: Duration = Duration::from_millis(100);

/// Limits of a request's head.
const LIMITS: HeadLimits = HeadLimits { request_line: 4096, head: 16 * 1024, fields: 64, secure: false };

/// The listener and its clients.
#[derive(Debug)]
pub struct Exporter {
    listener: OwnedFd,
    address: SocketAddr,
    clients: Vec<Client>,
    /// No connection is accepted before this: the process was out of descriptors.
    rests_until: Option<Instant>,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// `received.len() <= LIMITS.head`
    received: Vec<u8>,
    /// The response, and how much of it was sent. Empty until the request is complete.
    answer: Vec<u8>,
    sent: usize,
    since: Instant,
    /// The connection can be closed.
    over: bool,
}

impl Exporter {
    /// Creates an endpoint on a nonblocking listening socket.
    ///
    /// # Errors
    /// When it is not such a socket.
    pub fn new(listener: OwnedFd) -> io::Result<Exporter> {
        let address = socket::local_address(&listener)?;
        Ok(Exporter { listener, address, clients: Vec::new(), rests_until: None })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the listener.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Adds the descriptors and timeouts that it waits for.
    pub fn await_in<'a>(&'a self, awaited: &mut Awaited<'a>) {
        match self.rests_until {
            Some(until) => awaited.until(until),
            None if self.clients.len() < CLIENTS_MAX => awaited.readable(self.listener.as_fd()),
            None => {}
        }
        for client in &self.clients {
            awaited.until(client.since + TIME);
            if client.sent < client.answer.len() {
                awaited.writable(client.socket.as_fd());
            } else {
                awaited.readable(client.socket.as_fd());
            }
        }
    }

    /// Handles everything that is ready, without blocking. `text` generates the metrics.
    pub fn turn(&mut self, text: impl Fn() -> String) {
        self.rests_until = self.rests_until.filter(|until| Instant::now() < *until);
        while self.clients.len() < CLIENTS_MAX && self.rests_until.is_none() {
            match socket::accept(&self.listener) {
                Ok((socket, _)) => {
                    let (received, answer, since) = (Vec::new(), Vec::new(), Instant::now());
                    self.clients.push(Client { socket, received, answer, sent: 0, since, over: false });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if file::is_exhaustion(&error) => self.rests_until = Some(Instant::now() + REST),
                // The client has already disconnected, accept(2).
                Err(_) => {}
            }
        }
        for client in &mut self.clients {
            client.receive();
            if client.answer.is_empty() {
                client.answer = answer(&client.received, &text).unwrap_or_default();
            }
            client.send();
        }
        self.clients.retain(|client| !client.over && client.since.elapsed() < TIME);
    }
}

impl Client {
    fn receive(&mut self) {
        let mut piece = [0; 4096];
        // The rest of a client that sends endlessly is read in the next turn, so that no turn is endless.
        for _ in 0..PIECES_MAX {
            if self.over {
                return;
            }
            match socket::receive(&self.socket, &mut piece) {
                Ok(0) => self.over = true,
                // Data after the request are useless, but are read so that closing does
                // not reset the connection (RFC 9112, 9.6).
                Ok(_) if !self.answer.is_empty() => {}
                Ok(count) => {
                    let most = count.min(LIMITS.head - self.received.len());
                    self.received.extend_from_slice(&piece[..most]);
                    if most < count {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.over = true,
            }
        }
    }

    fn send(&mut self) {
        while self.sent < self.answer.len() {
            match socket::send(&self.socket, &self.answer[self.sent..], false) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.over = true;
                    return;
                }
            }
            if self.sent == self.answer.len() {
                // Wait for the client to close, so that data that it still sends do not cause a reset.
                self.over |= socket::half_close(&self.socket).is_err();
            }
        }
    }
}

/// Returns the response to a request, or `None` if the request is incomplete.
fn answer(received: &[u8], text: impl Fn() -> String) -> Option<Vec<u8>> {
    let refused = |status: Status, why: &str| reply(status, "text/plain; charset=utf-8", &format!("{why}\n"), false);
    let request = match request::parse(&received[request::blank_lines(received)..], &LIMITS) {
        Ok(Some((request, _))) => request,
        Ok(None) if received.len() < LIMITS.head => return None,
        Ok(None) => return Some(refused(Status::HEAD_TOO_LARGE, "the request head is too long")),
        Err(bad) => return Some(refused(bad.status, bad.why)),
    };
    let is_head = request.method == Some(Method::Head);
    Some(match (request.method, &request.target) {
        (Some(Method::Get | Method::Head), Target::Origin { path: PATH, .. } | Target::Absolute { path: PATH, .. }) => {
            reply(Status::OK, MEDIA_TYPE, &text(), is_head)
        }
        (Some(Method::Get | Method::Head), _) => {
            reply(Status::NOT_FOUND, "text/plain; charset=utf-8", "the metrics are at /metrics\n", is_head)
        }
        _ => refused(Status::METHOD_NOT_ALLOWED, "the metrics support GET and HEAD only"),
    })
}

fn reply(status: Status, media_type: &str, body: &str, is_head: bool) -> Vec<u8> {
    let mut head = Head::new(status);
    head.field("Content-Type", media_type).number("Content-Length", body.len() as u64);
    if status == Status::METHOD_NOT_ALLOWED {
        // RFC 9110, 15.5.6.
        head.field("Allow", "GET, HEAD");
    }
    let mut reply = Vec::with_capacity(head.len() + body.len() + 32);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    head.write(&mut reply, &date::format(since.cast_signed()), Connection::Close, None, 1);
    if !is_head {
        reply.extend_from_slice(body.as_bytes());
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn text() -> String {
        // More than a socket accepts at once.
        "figure 1\n".repeat(1 << 20)
    }

    #[test]
    fn valid_requests_are_answered_and_invalid_ones_rejected() {
        let check = |sent: &str, expected: Option<(u16, bool)>| {
            let said = answer(sent.as_bytes(), || "figure 1\n".to_owned());
            let said = said.map(|bytes| {
                let text = String::from_utf8(bytes).expect("ours");
                (text[9..12].parse().expect("a status"), text.ends_with("figure 1\n"))
            });
            assert_eq!(said, expected, "{sent:?}");
        };
        let host = "HTTP/1.1\r\nHost: a\r\n\r\n";
        check(&format!("GET /metrics {host}"), Some((200, true)));
        check(&format!("GET /metrics?name=x {host}"), Some((200, true)));
        check(&format!("HEAD /metrics {host}"), Some((200, false)));
        check("GET /metrics HTTP/1.0\r\n\r\n", Some((200, true)));
        check(&format!("GET / {host}"), Some((404, false)));
        check(&format!("GET /metricss {host}"), Some((404, false)));
        check(&format!("DELETE /metrics {host}"), Some((405, false)));
        check("GET /metrics HTTP/1.1\r\n\r\n", Some((400, false)));
        check("GET /metrics HTTP/1.1\r\nHost", None);
        check("", None);
        check(&format!("GET /{}", "x".repeat(LIMITS.head)), Some((414, false)));
        check(&"x".repeat(LIMITS.head), Some((501, false)));
    }

    #[test]
    fn flooding_client_is_read_in_bounded_portions() {
        let listener = socket::listen(SocketAddr::from(([127, 0, 0, 1], 0)), 16, false).expect("listens");
        let mut exporter = Exporter::new(listener).expect("listens");
        let mut client = TcpStream::connect(exporter.address()).expect("connected");
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        client.set_nonblocking(true).expect("set");
        // As much as the socket buffers hold.
        let noise = vec![b'x'; 1 << 20];
        let mut sent = 0;
        for _ in 0..1000 {
            match client.write(&noise) {
                Ok(count) => sent += count,
                Err(_) => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        assert!(sent > 4096 * PIECES_MAX, "{sent}");
        exporter.turn(|| "figure 1\n".to_owned());
        let left = socket::receive(&exporter.clients[0].socket, &mut [0; 4096]);
        assert!(left.as_ref().is_ok_and(|count| *count > 0), "{left:?}");
        // After its timeout it gets no response.
        exporter.clients[0].since = Instant::now().checked_sub(TIME).expect("long ago");
        exporter.turn(|| "figure 1\n".to_owned());
        assert!(exporter.clients.is_empty());
    }

    #[test]
    fn slow_reader_gets_whole_page_without_delaying_others() {
        let listener = socket::listen(SocketAddr::from(([127, 0, 0, 1], 0)), 16, false).expect("listens");
        let mut exporter = Exporter::new(listener).expect("listens");
        let address = exporter.address();
        let ask = || {
            let mut client = TcpStream::connect(address).expect("connected");
            client.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
            client
        };
        let (slow, silent, quick) = (ask(), TcpStream::connect(address).expect("connected"), ask());
        let readers = [slow, quick].map(|mut client| {
            std::thread::spawn(move || {
                let mut said = Vec::new();
                client.read_to_end(&mut said).expect("read");
                said.len()
            })
        });
        while !readers.iter().all(|reader| reader.is_finished()) {
            let mut awaited = Awaited::default();
            awaited.readable(silent.as_fd());
            exporter.await_in(&mut awaited);
            awaited.wait(Duration::from_millis(5));
            exporter.turn(text);
        }
        let lengths = readers.map(|reader| reader.join().expect("ends"));
        assert!(lengths[0] == lengths[1] && lengths[0] > text().len(), "{lengths:?}");
        // Clients that are done have closed; one that has sent nothing stays for a while.
        drop(ask());
        let begun = Instant::now();
        while exporter.clients.len() != 1 {
            assert!(begun.elapsed() < TIME, "{} clients", exporter.clients.len());
            exporter.turn(text);
        }
        exporter.clients[0].since = Instant::now().checked_sub(TIME).expect("long ago");
        exporter.turn(text);
        assert!(exporter.clients.is_empty());
    }
}
