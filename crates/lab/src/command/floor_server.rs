//! `ammeter floor-server`: the cost of a response on a server that only moves bytes. Hidden: `ammeter run` starts it.
//!
//! One loop: accept, receive, count the ends of request headers, send a prepared response. It parses, checks, times and
//! logs nothing, and closes a connection whose request arrives in two pieces. No HTTP server can be cheaper with these
//! system calls, so an experiment measures it (`kind = "floor"`) beside the others. It sends the same bytes as the
//! first of them, which `interleave` records.
//!
//! The file of responses has for each a line, `TARGET HEAD-BYTES BODY-BYTES FILE`, followed by the bytes of header and
//! body. If FILE is not `-`, the body is in that file and is sent by sendfile, which is cheaper for large bodies. A
//! single response answers every request, whatever its target.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use amped_measure::{Failure, Verdict};
use amped_sys::epoll::{Epoll, Events, Interest, Ready};
use amped_sys::{file, process, socket};
use memchr::memmem;

/// The flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Address to listen on
    #[arg(value_name = "ADDR:PORT")]
    address: SocketAddr,
    /// File of prepared responses
    #[arg(value_name = "FILE")]
    replies: PathBuf,
}

/// A prepared response.
struct Reply {
    /// The header, and the body unless it is in a file.
    bytes: Vec<u8>,
    body: Option<(File, u64)>,
    /// Whether the header has `Connection: close`.
    closes: bool,
}

struct Connection {
    socket: OwnedFd,
    /// Bytes that the socket has not accepted yet.
    unsent: Vec<u8>,
    /// The index of the response whose file is being sent, and the offset in it.
    file: Option<(usize, u64)>,
    closes: bool,
}

struct Floor {
    replies: Vec<Reply>,
    /// The index of the response by target.
    numbers: HashMap<Vec<u8>, usize>,
    /// By descriptor.
    connections: Vec<Option<Connection>>,
    buffer: Vec<u8>,
    batch: Vec<u8>,
}

/// The end of a header section (RFC 9112, 2.1).
const END: &[u8] = b"\r\n\r\n";

/// The connection must be closed.
struct Closed;

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    process::raise_descriptor_limit();
    let path = args.replies.display();
    let text = fs::read(&args.replies).map_err(Failure::io(format_args!("read {path}")))?;
    let floor = Floor::new(&text).ok_or_else(|| Failure::failed(format!("{path} is not a file of responses")))?;
    serve(floor, args.address).map_err(Failure::io(format_args!("serve on {}", args.address)))?;
    Ok(Verdict::valid())
}

/// Serves until the process is killed.
fn serve(mut floor: Floor, address: SocketAddr) -> io::Result<()> {
    let listener = socket::listen(address, 4096, false)?;
    let epoll = Epoll::new()?;
    epoll.add(&listener, u64::MAX, Interest::Readable)?;
    let mut events = Events::with_capacity(256);
    loop {
        epoll.wait(&mut events, None)?;
        for ready in events.iter() {
            if ready.token == u64::MAX {
                while let Ok((socket, _)) = socket::accept(&listener) {
                    let number = socket.as_raw_fd() as usize;
                    epoll.add(&socket, number as u64, Interest::Connection)?;
                    floor.connections.resize_with(floor.connections.len().max(number + 1), || None);
                    let unsent = Vec::new();
                    floor.connections[number] = Some(Connection { socket, unsent, file: None, closes: false });
                }
            } else if floor.serve(ready).is_err() {
                floor.connections[ready.token as usize] = None;
            }
        }
    }
}

impl Floor {
    /// Parses the file of responses.
    fn new(mut text: &[u8]) -> Option<Floor> {
        let (mut replies, mut numbers) = (Vec::new(), HashMap::new());
        while !text.is_empty() {
            let end = text.iter().position(|byte| *byte == b'\n')?;
            let line = std::str::from_utf8(&text[..end]).ok()?;
            let mut words = line.splitn(4, ' ');
            let (target, head, body, path) = (words.next()?, words.next()?, words.next()?, words.next()?);
            let (head, body): (usize, u64) = (head.parse().ok()?, body.parse().ok()?);
            let here = if path == "-" { head + body as usize } else { head };
            let bytes = text.get(end + 1..end + 1 + here)?.to_owned();
            text = &text[end + 1 + here..];
            let closes = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase().contains("connection: close");
            let body = if path == "-" { None } else { Some((File::open(path).ok()?, body)) };
            numbers.insert(target.as_bytes().to_owned(), replies.len());
            replies.push(Reply { bytes, body, closes });
        }
        let (connections, buffer, batch) = (Vec::new(), vec![0; 64 << 10], Vec::new());
        (!replies.is_empty()).then_some(Floor { replies, numbers, connections, buffer, batch })
    }

    /// Handles an event on a connection.
    fn serve(&mut self, ready: Ready) -> Result<(), Closed> {
        let Some(Some(connection)) = self.connections.get_mut(ready.token as usize) else { return Ok(()) };
        if !connection.unsent.is_empty() || connection.file.is_some() {
            return connection.resume(&self.replies);
        }
        if !ready.readable {
            return Ok(());
        }
        let count = match socket::receive(&connection.socket, &mut self.buffer) {
            Ok(0) => return Err(Closed),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return Err(Closed),
        };
        let request = &self.buffer[..count];
        if !request.ends_with(END) {
            return Err(Closed);
        }
        let number = if self.replies.len() == 1 {
            0
        } else {
            // After `GET `.
            let target = request[4..].split(|byte| *byte == b' ').next().unwrap_or_default();
            *self.numbers.get(target).ok_or(Closed)?
        };
        let reply = &self.replies[number];
        connection.closes = reply.closes;
        connection.file = reply.body.is_some().then_some((number, 0));
        let requests = memmem::find_iter(request, END).count();
        let bytes = if requests == 1 {
            &reply.bytes
        } else {
            self.batch.clear();
            (0..requests).for_each(|_| self.batch.extend_from_slice(&reply.bytes));
            &self.batch
        };
        let sent = socket::send(&connection.socket, bytes, reply.body.is_some()).map_err(|_| Closed)?;
        if sent == bytes.len() && reply.body.is_none() {
            return if reply.closes { Err(Closed) } else { Ok(()) };
        }
        connection.unsent.extend_from_slice(&bytes[sent..]);
        connection.resume(&self.replies)
    }
}

impl Connection {
    /// Sends the remaining bytes, as far as the socket accepts them.
    fn resume(&mut self, replies: &[Reply]) -> Result<(), Closed> {
        let sent = self.send_rest(replies);
        match sent {
            Ok(()) if self.closes => Err(Closed),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(Closed),
            _ => Ok(()),
        }
    }

    fn send_rest(&mut self, replies: &[Reply]) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let sent = socket::send(&self.socket, &self.unsent, self.file.is_some())?;
            self.unsent.drain(..sent);
        }
        if let Some((number, offset)) = &mut self.file
            && let Some((file, length)) = &replies[*number].body
        {
            while *offset < *length {
                // 0: the file was truncated.
                if file::send_file(&self.socket, file, offset, (*length - *offset) as usize)? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            self.file = None;
        }
        Ok(())
    }
}
