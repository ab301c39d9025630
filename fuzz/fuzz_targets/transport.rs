//! A TLS session whose client sends its bytes in any pieces, some of them damaged: for any input the transport passes
//! on what the client wrote or fails, and keeps a bounded amount of memory.
#![no_main]

use std::io::{ErrorKind, IoSlice, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};

use amped_units::Time;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};

// Modules of the server that depend on no others: the whole crate has a hundred dependencies, which would be
// compiled with the sanitizer for this target alone.
#[allow(dead_code)]
#[path = "../../crates/server/src"]
mod server {
    pub mod clock;
    pub mod counters;
    pub mod transport;
}

use server::transport::tls::{Buffers, Deferral, Tls};
use server::transport::{Received, Transport};
use server::{clock, counters};

/// Encrypted data for a client that does not read and a partial record, doubled for the capacity of vectors.
const HELD_MAX: usize = 2 * (256 + 72 + 32) * 1024;

/// A server and a client that trusts it.
static CONFIGS: LazyLock<(Arc<ServerConfig>, Arc<ClientConfig>)> = LazyLock::new(|| {
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = certificate.self_signed(&key).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).expect("a root");
    let provider = Arc::new(default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let server = server.expect("versions").with_no_client_auth();
    let private = PrivateKeyDer::try_from(key.serialize_der()).expect("a private key");
    let server = server.with_single_cert(vec![certificate.der().clone()], private).expect("a pair");
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let client = client.expect("versions").with_root_certificates(roots).with_no_client_auth();
    (Arc::new(server), Arc::new(client))
});

struct Session {
    client: ClientConnection,
    /// The client's end of the connection.
    socket: UnixStream,
    /// Bytes of the client that have not been sent.
    pending: Vec<u8>,
    /// Plain text that the client has written, and how much of it has arrived.
    written: Vec<u8>,
    arrived: usize,
    /// The client has closed its side: rustls must see no error afterwards.
    is_closed: bool,
    transport: Transport,
    buffers: Buffers,
    plain: Vec<u8>,
}

impl Session {
    fn new(deferral: Deferral) -> Session {
        let (server, client) = &*CONFIGS;
        let (socket, near) = UnixStream::pair().expect("sockets");
        for socket in [&socket, &near] {
            socket.set_nonblocking(true).expect("a nonblocking socket");
        }
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = Box::new(Tls::new(server).expect("a session"));
        Session {
            client: ClientConnection::new(Arc::clone(client), name).expect("a session"),
            socket,
            pending: Vec::new(),
            written: Vec::new(),
            arrived: 0,
            is_closed: false,
            transport: Transport::new(near.into(), Some(tls), Time::START),
            buffers: Buffers::new(deferral),
            plain: vec![0; 64 * 1024],
        }
    }

    /// One action of the client; `false`: the connection is over.
    fn step(&mut self, what: u8, value: u8) -> bool {
        let at = usize::from(value) % self.pending.len().max(1);
        match what {
            // The client reads, and answers messages of the handshake.
            0..64 => {
                while !self.is_closed && matches!(self.client.read_tls(&mut self.socket), Ok(count) if count > 0) {
                    if self.client.process_new_packets().is_err() {
                        return false;
                    }
                }
            }
            64..96 => {
                let request = vec![value; 1 + 200 * usize::from(value)];
                // It accepts only a part while much is pending.
                let taken = self.client.writer().write(&request).unwrap_or(0);
                self.written.extend_from_slice(&request[..taken]);
            }
            96..128 => _ = self.client.refresh_traffic_keys(),
            128..136 => self.pending.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (what % 8)),
            136..140 => self.pending.insert(at, value),
            140..144 => self.pending.truncate(at),
            144..148 => {
                self.client.send_close_notify();
                self.is_closed = true;
            }
            148..152 => _ = self.socket.shutdown(std::net::Shutdown::Write),
            // Pieces of any size.
            _ => {
                let length = (usize::from(what - 151) * (1 + usize::from(value))).min(self.pending.len());
                let sent = self.socket.write(&self.pending[..length]).unwrap_or(0);
                self.pending.drain(..sent);
            }
        }
        while self.client.wants_write() && self.client.write_tls(&mut self.pending).is_ok() {}
        self.serve()
    }

    /// The server receives everything, and sends it back.
    fn serve(&mut self) -> bool {
        loop {
            let _ = self.transport.flush();
            match self.transport.receive(&mut self.plain, &mut self.buffers) {
                Ok(Received::Bytes { count, is_end, .. }) => {
                    let plain = &self.plain[..count];
                    assert!(self.written[self.arrived..].starts_with(plain), "bytes that the client has not written");
                    self.arrived += count;
                    if is_end {
                        return false;
                    }
                    if count > 0 && !self.transport.has_unsent() {
                        let sent = self.transport.send(&[IoSlice::new(plain)], false, &mut self.buffers);
                        assert!(sent.is_ok_and(|sent| sent <= count));
                    }
                }
                Ok(Received::Hello { .. }) => {
                    let (mut session, _connection) = self.transport.hand_over().expect("a hello was received");
                    session.answer_hello();
                    if !self.transport.take_back(session) {
                        return false;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Ok(Received::NotTls { .. }) | Err(_) => return false,
            }
            assert!(self.transport.heap_bytes() <= HELD_MAX, "{} bytes", self.transport.heap_bytes());
        }
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((first, steps)) = bytes.split_first() else { return };
    let deferral = match first % 8 {
        1 | 3 => Deferral::Hello,
        5 | 7 => Deferral::Records,
        _ => Deferral::None,
    };
    let mut session = Session::new(deferral);
    for step in steps.chunks_exact(2) {
        if !session.step(step[0], step[1]) {
            return;
        }
    }
});
