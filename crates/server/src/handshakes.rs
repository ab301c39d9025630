//! The TLS handshakes of an event loop of AMPED: in the loop, but few per iteration, or in a thread beside it.
//!
//! A handshake takes 0.1 to 2 ms of processor time, most of it for a signature. In the loop it would delay all
//! connections, as a read from the disk would, and the remedy is the same: a helper does it. rustls cannot sign
//! asynchronously, but a session does no I/O: it is moved to the thread with the client's hello, and returns through
//! the loop's mailbox with its answer.
//!
//! Unlike a disk, a thread needs a processor. Without one to spare it competes with the loop, and each switch between them
//! costs more than the loop gains. Then hellos wait in a queue of the loop, which answers one per iteration (of ECDSA keys
//! two), so that none delays others by more than one signature; only long RSA keys use the thread in any case.
//!
//! The thread yields to the loops (nice 5): open connections take precedence over new ones. Both queues hold at most one
//! session for each open connection, so they need no limit of their own. A session whose client has disconnected is
//! dropped.
//!
//! If another process has the keys (`keys`), the thread does all handshakes, since it waits for each signature.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;

use amped_sys::process;
use amped_units::Time;

use crate::counters::HandshakeFailure;
use crate::mailbox::Post;
use crate::say;
use crate::tls_config::SignatureTime;
use crate::token::Token;
use crate::transport::tls::Tls;

/// What handshakes in one iteration of the loop may cost, in short signatures: two of those take less than others notice.
const COST_A_TURN: u32 = 2;

/// The handshakes of one loop.
#[derive(Debug)]
pub struct Handshakes {
    mailbox: Arc<dyn Post<Handshake>>,
    thread: HandshakeThread,
    /// The thread has a processor even if all loops are busy.
    has_spare_processor: bool,
    /// Sessions that later iterations of the loop answer, oldest first.
    queue: VecDeque<Job>,
    /// What the loop's handshakes at this time have cost.
    in_loop: (Time, u32),
}

#[derive(Debug)]
enum HandshakeThread {
    NotStarted,
    Running(Sender<Job>),
    /// It could not be started: the loop does all handshakes.
    Failed,
}

/// A session that has received its client's hello, or answered it, or failed.
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

#[derive(Debug)]
struct Job {
    handshake: Handshake,
    /// Expires when the connection closes.
    connection: Weak<()>,
    time: SignatureTime,
}

impl Handshakes {
    /// Creates the handshakes of one of so many loops. The thread starts with the first handshake for it.
    pub fn new(mailbox: Arc<dyn Post<Handshake>>, loops: usize) -> Handshakes {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Handshakes {
            mailbox,
            thread: HandshakeThread::NotStarted,
            has_spare_processor: processors > loops,
            queue: VecDeque::new(),
            in_loop: (Time::START, 0),
        }
    }

    /// Accepts a session that has received its client's hello; `time` is that of the server's signatures. Returns the session
    /// if the loop is to answer the hello now. Otherwise it returns as a [`Handshake`], from the thread or from
    /// [`next`](Handshakes::next), unless the connection closes first.
    pub fn submit(&mut self, handshake: Handshake, connection: Weak<()>, time: SignatureTime) -> Option<Box<Tls>> {
        let is_for_thread = match time {
            SignatureTime::Short => false,
            SignatureTime::Medium => self.has_spare_processor,
            SignatureTime::Long | SignatureTime::Elsewhere => true,
        };
        if !is_for_thread && self.queue.is_empty() && self.may_run_in_loop(time, handshake.since) {
            return Some(handshake.session);
        }
        let job = Job { handshake, connection, time };
        if is_for_thread || self.has_spare_processor {
            let mut handshake = self.submit_to_thread(job)?;
            if time != SignatureTime::Elsewhere {
                return Some(handshake.session);
            }
            // The loop does not wait for another process.
            handshake.session.fail(HandshakeFailure::Key);
            self.mailbox.post(handshake);
            return None;
        }
        self.queue.push_back(job);
        None
    }

    /// Removes the next session whose hello the loop is to answer in this iteration.
    pub fn next(&mut self, now: Time) -> Option<Handshake> {
        while let Some(job) = self.queue.front() {
            let (time, is_open) = (job.time, job.connection.strong_count() > 0);
            if is_open && !self.may_run_in_loop(time, now) {
                return None;
            }
            let job = self.queue.pop_front()?;
            if is_open {
                return Some(job.handshake);
            }
        }
        None
    }

    /// Returns whether sessions wait for [`next`](Handshakes::next).
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether the loop may do one more handshake at this time, and counts it.
    fn may_run_in_loop(&mut self, time: SignatureTime, now: Time) -> bool {
        if self.in_loop.0 != now {
            self.in_loop = (now, 0);
        }
        let cost = if time == SignatureTime::Short { 1 } else { COST_A_TURN };
        let may_run = self.in_loop.1 + cost <= COST_A_TURN;
        self.in_loop.1 += if may_run { cost } else { 0 };
        may_run
    }

    /// Hands over a session. Returns it if there is no thread.
    fn submit_to_thread(&mut self, job: Job) -> Option<Handshake> {
        if matches!(self.thread, HandshakeThread::NotStarted) {
            self.thread = self.start();
        }
        match &self.thread {
            HandshakeThread::Running(queue) => queue.send(job).err().map(|unsent| unsent.0.handshake),
            HandshakeThread::NotStarted | HandshakeThread::Failed => Some(job.handshake),
        }
    }

    fn start(&self) -> HandshakeThread {
        let (queue, jobs) = channel();
        let mailbox = Arc::clone(&self.mailbox);
        match thread::Builder::new().name("handshakes".to_owned()).spawn(move || work(&jobs, &*mailbox)) {
            Ok(_) => HandshakeThread::Running(queue),
            Err(error) => {
                say!(
                    "cannot start the thread for TLS handshakes: {error}; the event loop does them, unless `tls.keys` is \"process\": \
                     then they fail"
                );
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
    use crate::mailbox::Mailbox;
    use crate::transport::tls::{Buffers, Deferral, Received};
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
        let received = session.receive(&receiver, &mut [0; 65536], &mut Buffers::new(Deferral::Hello)).unwrap();
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
        assert!(session.receive(&receiver, &mut [0; 65536], &mut Buffers::new(Deferral::Hello)).is_err());
    }

    #[test]
    fn slow_signature_blocks_no_caller_and_disconnected_client_is_skipped() {
        let (permits, gate) = channel();
        let config = server_config(gate);
        let mailbox = Arc::new(Mailbox::<Handshake>::new().unwrap());
        let mut handshakes = Handshakes::new(Arc::<Mailbox<_>>::clone(&mailbox), 1);
        let mut connections: Vec<Arc<()>> = (0..4).map(|_| Arc::new(())).collect();
        for (number, connection) in (0..).zip(&connections) {
            let (session, ..) = session(&config, &TLS13);
            let handshake = Handshake { token: Token::from_number(number), session, since: Time::START };
            assert!(handshakes.submit(handshake, Arc::downgrade(connection), SignatureTime::Long).is_none());
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

    /// Handshakes that were submitted for connections 0, 1, ..., and those which the loop is to do at once.
    fn submitted(loops: usize, times: &[SignatureTime]) -> (Handshakes, Vec<Arc<()>>, Vec<usize>) {
        let (_permits, gate) = channel();
        let config = server_config(gate);
        let mut handshakes = Handshakes::new(Arc::new(Mailbox::<Handshake>::new().unwrap()), loops);
        let connections: Vec<Arc<()>> = times.iter().map(|_| Arc::new(())).collect();
        let mut at_once = Vec::new();
        for (number, &time) in times.iter().enumerate() {
            let (session, ..) = session(&config, &TLS13);
            let handshake = Handshake { token: Token::from_number(number as u64), session, since: Time::START };
            let connection = Arc::downgrade(&connections[number]);
            at_once.extend(handshakes.submit(handshake, connection, time).map(|_| number));
        }
        (handshakes, connections, at_once)
    }

    /// The connections whose hellos the loop answers in an iteration at this time.
    fn next(handshakes: &mut Handshakes, at: u64) -> Vec<Token> {
        std::iter::from_fn(|| handshakes.next(Time::from_millis(at))).map(|next| next.token).collect()
    }

    #[test]
    fn without_spare_processor_hellos_wait_for_iterations_of_loop() {
        use SignatureTime::{Long, Medium, Short};
        let token = |number| Token::from_number(number);
        let (mut handshakes, mut connections, at_once) =
            submitted(usize::MAX, &[Medium, Medium, Long, Medium, Short, Short, Short]);
        assert_eq!(at_once, [0], "one signature of an RSA key per iteration");
        assert_eq!(next(&mut handshakes, 0), [], "the iteration that has answered one");
        assert_eq!(next(&mut handshakes, 1), [token(1)]);
        drop(connections.remove(3));
        assert_eq!(next(&mut handshakes, 2), [token(4), token(5)], "two of ECDSA keys, none for a closed connection");
        assert!(handshakes.has_queued());
        assert_eq!(next(&mut handshakes, 3), [token(6)]);
        assert!(!handshakes.has_queued());
        assert!(matches!(handshakes.thread, HandshakeThread::Running(_)), "for the long key");
    }

    #[test]
    fn with_spare_processor_loop_answers_two_hellos_of_ecdsa_keys_and_none_of_rsa_keys() {
        use SignatureTime::{Medium, Short};
        for (times, expected, has_thread) in
            [(&[Short; 2][..], &[0, 1][..], false), (&[Short; 3], &[0, 1], true), (&[Medium], &[], true)]
        {
            let (handshakes, _connections, at_once) = submitted(0, times);
            assert_eq!(at_once, expected, "{times:?}");
            assert!(!handshakes.has_queued(), "{times:?}");
            assert_eq!(matches!(handshakes.thread, HandshakeThread::Running(_)), has_thread, "{times:?}");
        }
    }
}
