//! The client of the key process: where certificates with their keys come from, and keys that sign elsewhere.
//!
//! Each signature takes a session of its own from the idle ones, so threads do not wait for each other; there are at most as many as
//! threads that have signed at the same time. If the signer dies, its sessions end; the request is then repeated on a new session, which
//! waits at the door for the next signer. No wait exceeds [`ANSWER_TIME`], and the loops of AMPED never wait: their handshakes are done by
//! their threads (`handshakes`).

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use amped_sys::file::Patience;
use amped_sys::{poll, process, socket};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{Error, OtherError, SignatureAlgorithm, SignatureScheme};
use serde::de::DeserializeOwned;

use super::{Found, NotSigned, Order, Pair, PublicPair, Request, SIGNED_MAX, Signed};
use crate::certified::{OpenPair, Unusable};
use crate::portable;
use crate::say;
use crate::transport::tls::SigningFailed;

/// How long a signature may take, with the start of another signer if one has died.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// How long the key manager may take to open files and have them read.
const READ_TIME: Duration = Duration::from_secs(10);

/// Delay before a request is repeated on another new session, if one has ended at once.
const RETRY: Duration = Duration::from_millis(10);

/// Where certificates with their keys come from.
#[derive(Clone, Debug, Default)]
pub enum KeySource {
    /// This process reads the files.
    #[default]
    Files,
    /// The key process does.
    Process(Arc<KeyProcess>),
}

impl KeySource {
    /// Reads a chain and its key, which must belong together.
    ///
    /// # Errors
    /// Chain or key cannot be read, or are invalid.
    pub fn read(&self, chain: &Path, key: &Path) -> Result<CertifiedKey, Unusable> {
        match self {
            KeySource::Files => OpenPair::open(chain, key)?.certify(chain, key),
            KeySource::Process(process) => process.read(&Pair::new(chain, key)),
        }
    }

    /// Returns the key process.
    pub fn process(&self) -> Option<&Arc<KeyProcess>> {
        match self {
            KeySource::Files => None,
            KeySource::Process(process) => Some(process),
        }
    }
}

/// The key process, as others see it.
#[derive(Debug)]
pub struct KeyProcess {
    /// The process ID of the key manager.
    manager: u32,
    /// To the key manager; only the process that has started it has this.
    control: Mutex<Option<OwnedFd>>,
    /// Where the signer receives its end of a session.
    door: OwnedFd,
    idle: Mutex<Vec<OwnedFd>>,
    /// The number of the last order.
    last_order: AtomicU64,
    /// The last signature has failed, which was reported.
    is_failing: AtomicBool,
}

impl KeyProcess {
    pub(super) fn new(manager: u32, control: OwnedFd, door: OwnedFd) -> KeyProcess {
        KeyProcess {
            manager,
            control: Mutex::new(Some(control)),
            door,
            idle: Mutex::default(),
            last_order: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
        }
    }

    /// Returns the process ID of the key manager, which ends with the server.
    pub fn manager(&self) -> u32 {
        self.manager
    }

    /// Returns how the key manager has ended, if it has.
    pub fn has_ended(&self) -> Option<process::Ending> {
        process::has_ended(self.manager)
    }

    /// Gives up what belongs to the parent of a process that was just forked: the key manager obeys the parent alone, and an answer on
    /// a session must not be received by another process.
    pub fn leave_to_parent(&self) {
        drop(lock(&self.control).take());
        lock(&self.idle).clear();
    }

    /// Forgets the keys that neither the configuration in force nor the one before it has.
    pub fn commit(&self) {
        if let Some(control) = &*lock(&self.control) {
            // If the key manager has ended, so does the server.
            let _ = portable::send(control, &Order::Commit, &[], Patience::Now);
        }
    }

    fn read(self: &Arc<KeyProcess>, pair: &Pair) -> Result<CertifiedKey, Unusable> {
        let control = lock(&self.control);
        let found = match &*control {
            Some(control) => self.order_to_read(control, pair),
            // The parent has had the files read before it told this process of a change.
            None => self.request(&Request::Find(Cow::Borrowed(pair)), &mut vec![0; portable::MESSAGE_MAX]),
        };
        let PublicPair { chain, key } = found.unwrap_or_else(|error| {
            let message = format!("cannot read the private key {}: {error}", pair.names().1.display());
            Err(Unusable::key((message, "see the server's log about the key process".to_owned())))
        })?;
        let key = Remote {
            process: Arc::clone(self),
            info: key.info,
            algorithm: key.algorithm.into(),
            schemes: key.schemes.into_iter().map(SignatureScheme::from).collect(),
        };
        let chain = chain.into_iter().map(CertificateDer::from).collect();
        Ok(CertifiedKey::new(chain, Arc::new(RemoteKey(Arc::new(key)))))
    }

    fn order_to_read(&self, control: &OwnedFd, pair: &Pair) -> io::Result<Found> {
        let number = self.last_order.fetch_add(1, Relaxed) + 1;
        let until = Instant::now() + READ_TIME;
        portable::send(control, &Order::Read(number, pair.clone()), &[], Patience::Now)?;
        loop {
            wait(control, until)?;
            let (of, found): (u64, Found) = portable::receive(control, &mut Vec::new(), Patience::Now)?;
            // A late answer to an earlier order is dropped.
            if of == number {
                return Ok(found);
            }
        }
    }

    fn sign(&self, key: &[u8], scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, SigningFailed> {
        let request = Request::Sign(Cow::Borrowed(key), scheme.into(), Cow::Borrowed(message));
        let signed = match self.request::<Signed>(&request, &mut [0; SIGNED_MAX]) {
            Ok(Ok(signature)) => Ok(signature),
            Ok(Err(NotSigned::NoKey)) => {
                Err("it does not have the key of a certificate, whose file has changed".to_owned())
            }
            Ok(Err(NotSigned::Refused)) => Err("it cannot sign with the key of a certificate".to_owned()),
            Err(error) => Err(format!("it does not answer: {error}")),
        };
        // Once for each failure of the process, not for each client.
        match &signed {
            Ok(_) if self.is_failing.load(Relaxed) && self.is_failing.swap(false, Relaxed) => {
                say!("the key process signs again");
            }
            Err(why) if !self.is_failing.swap(true, Relaxed) => {
                say!("TLS handshakes fail, as the key process does not sign: {why}");
            }
            Ok(_) | Err(_) => {}
        }
        signed.map_err(SigningFailed)
    }

    /// Sends a request, and receives the answer into `buffer`.
    fn request<T: DeserializeOwned>(&self, request: &Request<'_>, buffer: &mut [u8]) -> io::Result<T> {
        let (bytes, until) = (portable::write(request), Instant::now() + ANSWER_TIME);
        loop {
            let idle = lock(&self.idle).pop();
            let is_new = idle.is_none();
            let session = idle.map_or_else(|| self.begin_session(), Ok)?;
            match exchange(&session, &bytes, buffer, until) {
                Ok(count) => {
                    lock(&self.idle).push(session);
                    return portable::read(&buffer[..count]).map_err(io::Error::other);
                }
                // The signer has died.
                Err(error) if is_end(&error) && Instant::now() < until => {
                    if is_new {
                        thread::sleep(RETRY);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn begin_session(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = socket::packet_pair()?;
        socket::send_with_descriptors(&self.door, &[0], &[theirs.as_fd()], Patience::Now)?;
        Ok(ours)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn exchange(session: &OwnedFd, request: &[u8], buffer: &mut [u8], until: Instant) -> io::Result<usize> {
    socket::send_with_descriptors(session, request, &[], Patience::Now)?;
    wait(session, until)?;
    match socket::receive_with_descriptors(session, buffer, &mut Vec::new(), Patience::Now)?.bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}

/// Waits until a message or the end of the socket has arrived.
fn wait(socket: &OwnedFd, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if poll::wait_readable(&[socket.as_fd()], left)? == [true] {
            return Ok(());
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Returns whether the other side of a socket has ended.
pub(super) fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// A key that the key process has.
#[derive(Clone, Debug)]
struct RemoteKey(Arc<Remote>);

#[derive(Debug)]
struct Remote {
    process: Arc<KeyProcess>,
    /// SubjectPublicKeyInfo, in DER.
    info: Vec<u8>,
    algorithm: SignatureAlgorithm,
    /// In order of preference.
    schemes: Vec<SignatureScheme>,
}

impl SigningKey for RemoteKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = *self.0.schemes.iter().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(RemoteSigner { key: self.clone(), scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(self.0.info.as_slice().into())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm
    }
}

#[derive(Debug)]
struct RemoteSigner {
    key: RemoteKey,
    scheme: SignatureScheme,
}

impl Signer for RemoteSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let Remote { process, info, .. } = &*self.key.0;
        process.sign(info, self.scheme, message).map_err(|failed| Error::Other(OtherError(Arc::new(failed))))
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}
