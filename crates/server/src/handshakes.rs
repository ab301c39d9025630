//! The thread that does TLS handshakes for an event loop of AMPED.
//!
//! A handshake takes 0.1 to 2 ms of processor time, most of it for a signature. In the loop it would delay all
//! connections, as a read from the disk would, and the remedy is the same: a helper does it. rustls cannot sign
//! asynchronously, but a session does no I/O: it is moved to the thread with the client's hello, and returns through
//! the loop's mailbox with its answer.
//!
//! The thread yields to the loops (nice 5): open connections take precedence over new ones. The queue holds at most one
//! session for each open connection, so it needs no limit of its own. A session whose client has disconnected is
//! dropped.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;

use amped_sys::process;
use amped_units::Time;

use crate::mailbox::Post;
use crate::say;
use crate::token::Token;
use crate::transport::tls::Tls;

/// Handshakes that the loop does itself in one iteration, if no key is slow: handing one over costs 20 us, and two do not delay
/// others noticeably.
const FAST_A_TURN: u32 = 2;

/// The handshakes of one loop.
#[derive(Debug)]
pub struct Handshakes {
    mailbox: Arc<dyn Post<Handshake>>,
    thread: HandshakeThread,
    /// The number of handshakes that the loop has done itself at this time.
    in_loop: (Time, u32),
}

#[derive(Debug)]
enum HandshakeThread {
    NotStarted,
    Running(Sender<Job>),
    /// It could not be started: the loop does all handshakes.
    Failed,
}

/// A session that has answered its client's hello, or failed.
pub struct Handshake {
    /// Its connection.
    pub token: Token,
    /// The session.
    pub session: Box<Tls>,
    /// When it was submitted.
    pub since: Time,
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshake").field("token", &self.token).finish_non_exhaustive()
    }
}

struct Job {
    handshake: Handshake,
    /// Expires when the connection closes.
    connection: Weak<()>,
}

impl Handshakes {
    /// Creates the handshakes of a loop. The thread starts with the first one.
    pub fn new(mailbox: Arc<dyn Post<Handshake>>) -> Handshakes {
        Handshakes { mailbox, thread: HandshakeThread::NotStarted, in_loop: (Time::START, 0) }
    }

    /// Returns whether the loop may do one more handshake itself at this time.
    pub fn may_run_in_loop(&mut self, now: Time) -> bool {
        if self.in_loop.0 != now {
            self.in_loop = (now, 0);
        }
        self.in_loop.1 += 1;
        self.in_loop.1 <= FAST_A_TURN
    }

    /// Hands over a session; it returns as a [`Handshake`], unless the connection closes first.
    ///
    /// # Errors
    /// The session, if there is no thread.
    pub fn submit(&mut self, handshake: Handshake, connection: Weak<()>) -> Result<(), Box<Tls>> {
        if matches!(self.thread, HandshakeThread::NotStarted) {
            self.thread = self.start();
        }
        let job = Job { handshake, connection };
        match &self.thread {
            HandshakeThread::Running(queue) => queue.send(job).map_err(|unsent| unsent.0.handshake.session),
            HandshakeThread::NotStarted | HandshakeThread::Failed => Err(job.handshake.session),
        }
    }

    fn start(&self) -> HandshakeThread {
        let (queue, jobs) = channel();
        let mailbox = Arc::clone(&self.mailbox);
        match thread::Builder::new().name("handshakes".to_owned()).spawn(move || work(&jobs, &*mailbox)) {
            Ok(_) => HandshakeThread::Running(queue),
            Err(error) => {
                say!("cannot start the thread for TLS handshakes: {error}; the event loop does them");
                HandshakeThread::Failed
            }
        }
    }
}

/// The main loop of the thread; it ends with the event loop.
fn work(jobs: &Receiver<Job>, mailbox: &dyn Post<Handshake>) {
    process::lower_priority();
    for mut job in jobs {
        if job.connection.strong_count() > 0 {
            job.handshake.session.answer_hello();
            mailbox.post(job.handshake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::HandshakeFailure;
    use crate::mailbox::Mailbox;
    use crate::transport::tls::{Buffers, Received};
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::sign::CertifiedKey;
    use rustls::version::{TLS12, TLS13};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, SupportedProtocolVersion};
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    /// Simulates a slow signature: each handshake waits for a permit, and then fails for lack of a certificate.
    #[derive(Debug)]
    struct Gate(Mutex<Receiver<()>>);

    impl ResolvesServerCert for Gate {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            self.0.lock().unwrap().recv().unwrap();
            None
        }
    }

    fn server_config(gate: Receiver<()>) -> Arc<ServerConfig> {
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(config.with_cert_resolver(Arc::new(Gate(Mutex::new(gate)))))
    }

    /// A session that has received its client's hello, and the connection.
    fn session(
        config: &Arc<ServerConfig>,
        version: &'static SupportedProtocolVersion,
    ) -> (Box<Tls>, UnixStream, OwnedFd) {
        let client = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let client = client.with_protocol_versions(&[version]).unwrap();
        let client = client.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(client), ServerName::try_from("a.example").unwrap()).unwrap();
        let (mut sender, receiver) = UnixStream::pair().unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        sender.write_all(&hello).unwrap();
        let mut session = Box::new(Tls::new(config).unwrap());
        let receiver = receiver.into();
        let received = session.receive(&receiver, &mut [0; 65536], &mut Buffers::new(true)).unwrap();
        assert_eq!(received, Received::Hello { is_drained: true });
        (session, sender, receiver)
    }

    #[test]
    fn encrypted_record_is_not_taken_for_hello() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new([]).unwrap().self_signed(&key).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = Arc::new(config.with_single_cert(vec![certificate.der().clone()], key).unwrap());
        let (mut session, mut sender, receiver) = session(&config, &TLS12);
        session.answer_hello();
        assert_eq!(session.failure(), None);
        // The first byte of a nonce may be the number of a hello.
        sender.write_all(&[&[22, 3, 3, 0, 40, 1][..], &[0; 39]].concat()).unwrap();
        assert!(session.receive(&receiver, &mut [0; 65536], &mut Buffers::new(true)).is_err());
    }

    #[test]
    fn slow_signature_blocks_no_caller_and_disconnected_client_is_skipped() {
        let (permits, gate) = channel();
        let config = server_config(gate);
        let mailbox = Arc::new(Mailbox::<Handshake>::new().unwrap());
        let mut handshakes = Handshakes::new(Arc::<Mailbox<_>>::clone(&mailbox));
        let mut connections: Vec<Arc<()>> = (0..4).map(|_| Arc::new(())).collect();
        for (number, connection) in (0..).zip(&connections) {
            let (session, ..) = session(&config, &TLS13);
            let handshake = Handshake { token: Token::from_number(number), session, since: Time::START };
            assert!(handshakes.submit(handshake, Arc::downgrade(connection)).is_ok());
        }
        // All were submitted while the first one waits. The client of the second disconnects.
        connections.remove(1);
        (0..3).for_each(|_| permits.send(()).unwrap());
        let (start, mut done, mut messages) = (Instant::now(), Vec::new(), Vec::new());
        while done.len() < 3 {
            assert!(start.elapsed() < Duration::from_secs(60), "{done:?}");
            mailbox.take(&mut messages);
            done.extend(messages.drain(..).map(|Handshake { token, session, .. }| (token, session.failure())));
            thread::sleep(Duration::from_millis(1));
        }
        let expected = [0, 2, 3].map(|number| (Token::from_number(number), Some(HandshakeFailure::Parameters)));
        assert_eq!(done, expected);
    }

    #[test]
    fn loop_runs_two_handshakes_per_iteration() {
        let mut handshakes = Handshakes::new(Arc::new(Mailbox::<Handshake>::new().unwrap()));
        let mut count = |at| (0..5).filter(|_| handshakes.may_run_in_loop(Time::from_millis(at))).count();
        assert_eq!([count(1), count(1), count(2)], [2, 0, 2]);
    }
}
