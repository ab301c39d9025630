//! A TLS session: records between the socket and the bytes of the protocol.
//!
//! rustls does the cryptography and keeps no buffers (its *unbuffered* interface): bytes are received into a buffer of
//! the loop, decrypted, and passed on at once; bytes to send are encrypted into another one and sent from there. A
//! connection owns memory only for incomplete data: part of a record from the client, or records that the socket did
//! not take. An idle connection owns neither.
//!
//! Only this file uses that interface of rustls, which the next version of rustls replaces.
//!
//! The client sees a record only when all of it has arrived. So records are small at first, one packet each, and grow
//! as the client's congestion window does ([`RecordSize`]).

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use amped_acme_protocol::TLS_ALPN_01_PROTOCOL;
use amped_sys::socket;
use amped_units::Time;
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic,
};
use rustls::{
    AlertDescription, CertificateError, CipherSuite, Error, HandshakeKind, OtherError, PeerIncompatible,
    ProtocolVersion, ServerConfig,
};

use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::clock;
use crate::counters::{Cipher, HandshakeFailure, Negotiated, TlsVersion};

/// The name of HTTP/1.1 in ALPN (RFC 7301, 6).
pub const HTTP1: &[u8] = b"http/1.1";
/// The name of HTTP/2 in ALPN (RFC 9113, 3.1).
pub const HTTP2: &[u8] = b"h2";

/// Maximum bytes of a record from a client that are kept until the rest arrives. A record has at most 16,640 bytes (RFC
/// 8446, 5.2); a handshake message may span several, and the only long one is a client's certificate with its chain.
pub const PARTIAL_MAX: usize = 32 * 1024;

/// Maximum bytes encrypted by one call. They are sent by one system call; what it does not accept is kept for the
/// connection, so this bounds the memory of a client that does not read.
pub const SEALED_MAX: usize = 72 * 1024;

/// Maximum bytes that wait for the socket; a client that causes more without reading is dropped.
const UNSENT_MAX: usize = 256 * 1024;

/// Most that encryption adds to a record: a header, an explicit nonce (TLS 1.2), a content type and a tag.
const OVERHEAD: usize = 64;

/// The result of receiving, with TLS or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, which may be none with TLS.
    Bytes {
        /// Their number.
        count: usize,
        /// The socket had no more.
        is_drained: bool,
        /// The client has closed its side, after these bytes.
        is_end: bool,
    },
    /// So many bytes of a client that does not use TLS where it must. From now on the transport does not use it either,
    /// so that the client can read the error.
    NotTls {
        /// Their number.
        count: usize,
        /// The socket had no more.
        is_drained: bool,
    },
    /// A client's hello, kept in the session: [`Tls::answer_hello`] answers it, in this or another thread. Only as
    /// [`Buffers::deferral`] says.
    Hello {
        /// The socket had no more.
        is_drained: bool,
    },
}

/// The session of one connection.
pub struct Tls {
    session: UnbufferedServerConnection,
    /// Received bytes that are not yet a whole record or handshake message. `partial.len() <= PARTIAL_MAX`
    partial: Vec<u8>,
    /// Records for the client; those before `unsent_at` were taken by the socket.
    unsent: Vec<u8>,
    unsent_at: usize,
    /// Nothing was received yet.
    is_new: bool,
    /// A second hello, which the server had requested, was answered.
    is_second_answered: bool,
    /// The session has failed and must not be used any more: `partial` may not be what rustls left of the input.
    failure: Option<HandshakeFailure>,
    negotiated: Option<Negotiated>,
    size: RecordSize,
}

/// A loop's buffers for sessions. They stay empty while there are none.
#[derive(Default)]
pub struct Buffers {
    /// Received bytes before decryption.
    input: Vec<u8>,
    /// Records to send: `sealed[..filled]`.
    sealed: Vec<u8>,
    filled: usize,
    /// Pieces that together make a record.
    joined: Vec<u8>,
    /// The time of this turn.
    pub now: Time,
    /// What is only reported ([`Received::Hello`]).
    pub deferral: Deferral,
}

/// A handshake failed because a key that is in another process did not sign.
#[derive(Clone, Debug)]
pub struct SigningFailed(pub String);

impl fmt::Display for SigningFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SigningFailed {}

/// What a caller of [`Tls::receive`] leaves to [`Tls::answer_hello`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deferral {
    /// Nothing.
    #[default]
    None,
    /// A client's hello in one record, as clients send it.
    Hello,
    /// Each record while a hello is expected, so that nothing a client may send makes this call sign.
    Records,
}

impl Buffers {
    /// Creates empty buffers.
    pub fn new(deferral: Deferral) -> Buffers {
        Buffers { deferral, ..Buffers::default() }
    }
}

impl Tls {
    /// Begins a session with a client that has just connected.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn new(config: &Arc<ServerConfig>) -> Result<Tls, Error> {
        Ok(Tls {
            session: UnbufferedServerConnection::new(Arc::clone(config))?,
            partial: Vec::new(),
            unsent: Vec::new(),
            unsent_at: 0,
            is_new: true,
            is_second_answered: false,
            failure: None,
            negotiated: None,
            size: RecordSize::default(),
        })
    }

    /// Receives once, and decrypts into `plain`, which must have room for as much as is received.
    pub fn receive(&mut self, socket: &OwnedFd, plain: &mut [u8], buffers: &mut Buffers) -> io::Result<Received> {
        let room = plain.len();
        buffers.input.resize(room.max(buffers.input.len()), 0);
        let input = &mut buffers.input[..room];
        let kept = self.partial.len();
        input[..kept].copy_from_slice(&self.partial);
        let count = socket::receive(socket, &mut input[kept..])?;
        if count == 0 {
            return match self.session.is_handshaking() {
                true => Err(io::ErrorKind::UnexpectedEof.into()),
                // Without close_notify the end may be forged. HTTP determines the length of each request, so an
                // incomplete one is not mistaken for a complete one.
                false => Ok(Received::Bytes { count: 0, is_drained: false, is_end: true }),
            };
        }
        let (filled, is_drained) = (kept + count, kept + count < room);
        // RFC 8446, 5.1: the type of the first record is handshake, 22. HTTP begins with the name of a method.
        if std::mem::take(&mut self.is_new) && input[0].is_ascii_uppercase() {
            plain[..filled].copy_from_slice(&input[..filled]);
            return Ok(Received::NotTls { count: filled, is_drained });
        }
        let is_deferred = match buffers.deferral {
            Deferral::None => false,
            Deferral::Hello => self.expects_hello() && is_hello(&input[..filled]),
            Deferral::Records => self.expects_hello() && has_record(&input[..filled]),
        };
        if is_deferred {
            // Nothing may follow a hello before its answer: the client does not speak TLS.
            if filled > PARTIAL_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.partial.clear();
            self.partial.extend_from_slice(&input[..filled]);
            return Ok(Received::Hello { is_drained });
        }
        let processed = self.process(&mut input[..filled], plain);
        let sent = self.flush(socket);
        let (count, is_end) = processed.map_err(io::Error::other)?;
        match sent {
            Err(error) if !is_transient(&error) => Err(error),
            _ if self.unsent.len() - self.unsent_at > UNSENT_MAX => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(Received::Bytes { count, is_drained, is_end }),
        }
    }

    /// Returns whether a hello is expected: the first, or the second if the server has requested one. Later, an
    /// encrypted record of TLS 1.2 may look like one.
    fn expects_hello(&self) -> bool {
        match self.session.handshake_kind() {
            None => true,
            Some(HandshakeKind::FullWithHelloRetryRequest) => !self.is_second_answered,
            Some(HandshakeKind::Full | HandshakeKind::Resumed) => false,
        }
    }

    /// Answers the hello that [`receive`](Tls::receive) has reported; [`flush`](Tls::flush) then sends the answer, or
    /// an alert if the handshake has [failed](Tls::failure).
    pub fn answer_hello(&mut self) {
        let mut input = std::mem::take(&mut self.partial);
        let is_second = self.session.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
        let before = self.unsent.len();
        // No bytes of the protocol can follow before the client has this answer.
        if let Ok((_, true)) = self.process(&mut input, &mut []) {
            self.failure = Some(HandshakeFailure::Closed);
        }
        // There is no answer if it was incomplete.
        self.is_second_answered |= is_second && self.unsent.len() > before;
    }

    /// Ends the session without an answer.
    pub fn fail(&mut self, why: HandshakeFailure) {
        self.failure = Some(why);
    }

    /// Returns why the session must end, if it must.
    pub fn failure(&self) -> Option<HandshakeFailure> {
        self.failure
    }

    /// Returns the parameters of the session, if the handshake is complete and [`complete`](Tls::complete) was called since.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.as_ref()
    }

    /// Returns whether the client has chosen this protocol (ALPN).
    pub fn has_chosen(&self, protocol: &[u8]) -> bool {
        self.session.alpn_protocol() == Some(protocol)
    }

    /// Checks whether the handshake is complete, and returns the parameters of the session then.
    pub fn complete(&mut self) -> Option<&Negotiated> {
        if self.session.is_handshaking() {
            return None;
        }
        let version = match self.session.protocol_version()? {
            ProtocolVersion::TLSv1_3 => TlsVersion::Tls13,
            _ => TlsVersion::Tls12,
        };
        let (suite, cipher) = named(self.session.negotiated_cipher_suite()?.suite())?;
        let is_resumed = self.session.handshake_kind() == Some(HandshakeKind::Resumed);
        let subject = self.session.peer_certificates().and_then(|chain| subject_of(chain.first()?));
        self.negotiated = Some(Negotiated { version, suite, cipher, is_resumed, subject });
        self.negotiated.as_ref()
    }

    /// Returns whether the client only looks at the certificate (RFC 8737, 3): a CA that verifies control of the name.
    pub fn is_for_validation(&self) -> bool {
        self.session.alpn_protocol() == Some(TLS_ALPN_01_PROTOCOL)
    }

    /// Decrypts `input` into `plain`, and answers messages of the handshake. Returns the number of bytes, and whether the
    /// client has closed its side.
    fn process(&mut self, input: &mut [u8], plain: &mut [u8]) -> Result<(usize, bool), Error> {
        let (was_handshaking, kept) = (self.session.is_handshaking(), self.unsent.len());
        let says_close = was_handshaking && has_plain_close_notify(input);
        let mut processed = self.process_records(input, plain);
        if let Ok((_, is_end)) = &mut processed {
            *is_end |= says_close && self.session.is_handshaking();
        }
        if processed.is_ok() && was_handshaking && self.resumes_expired_certificate() {
            // The last messages contain new tickets.
            self.unsent.truncate(kept);
            processed = Err(CertificateError::Expired.into());
        }
        processed.inspect_err(|error| self.failure = Some(failure_of(error)))
    }

    /// Returns whether a session has been resumed whose client's certificate has expired since it began: a ticket is
    /// accepted without the certificate, and each resumed session would yield new tickets.
    fn resumes_expired_certificate(&self) -> bool {
        !self.session.is_handshaking()
            && self.session.handshake_kind() == Some(HandshakeKind::Resumed)
            && self.session.peer_certificates().and_then(<[_]>::first).is_some_and(|own| {
                Certificate::from_der(own).map_or(true, |own| {
                    clock::since_1970() > own.tbs_certificate().validity().not_after.to_unix_duration()
                })
            })
    }

    fn process_records(&mut self, input: &mut [u8], plain: &mut [u8]) -> Result<(usize, bool), Error> {
        let (mut at, mut count, mut is_end) = (0, 0, false);
        loop {
            let UnbufferedStatus { discard, state } = self.session.process_tls_records(&mut input[at..]);
            let mut is_over = false;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let payload = record?.payload;
                        let end = count + payload.len();
                        let room = plain.get_mut(count..end).ok_or(Error::HandshakeNotComplete)?;
                        room.copy_from_slice(payload);
                        count = end;
                    }
                }
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, &mut self.unsent),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    (is_end, is_over) = (true, true);
                }
                // Early data (0-RTT) is not offered, so it never arrives.
                Ok(_) => is_over = true,
                Err(error) => {
                    self.queue_alert();
                    return Err(error);
                }
            }
            at += discard;
            if is_over {
                break;
            }
        }
        let rest = &input[at..];
        if is_end || rest.is_empty() {
            self.partial = Vec::new();
        } else if rest.len() > PARTIAL_MAX {
            return Err(Error::PeerSentOversizedRecord);
        } else {
            self.partial.clear();
            self.partial.extend_from_slice(rest);
        }
        Ok((count, is_end))
    }

    /// Queues the alert with the reason why the session fails.
    fn queue_alert(&mut self) {
        // Only while there is something to encode: rustls must not see input after it has failed.
        while self.session.wants_write()
            && let Ok(ConnectionState::EncodeTlsData(data)) = self.session.process_tls_records(&mut []).state
        {
            encode(data, &mut self.unsent);
        }
    }

    /// Encrypts the beginning of these pieces and sends it; returns the number of bytes encrypted. Bytes that the
    /// socket does not take at once are sent by [`flush`](Tls::flush), which must have succeeded before this call.
    pub fn send(
        &mut self,
        socket: &OwnedFd,
        pieces: &[IoSlice<'_>],
        more: bool,
        buffers: &mut Buffers,
    ) -> io::Result<usize> {
        buffers.filled = 0;
        let count = self.seal(pieces, buffers).inspect_err(|_| self.failure = Some(HandshakeFailure::Malformed))?;
        let sealed = &buffers.sealed[..buffers.filled];
        let sent = match socket::send(socket, sealed, more) {
            Ok(sent) => sent,
            Err(error) if is_transient(&error) => 0,
            Err(error) => return Err(error),
        };
        self.unsent.extend_from_slice(&sealed[sent..]);
        Ok(count)
    }

    fn seal(&mut self, pieces: &[IoSlice<'_>], buffers: &mut Buffers) -> io::Result<usize> {
        let Tls { session, partial, size, .. } = self;
        let Buffers { sealed, filled, joined, now, .. } = buffers;
        size.begin(*now);
        let (mut count, mut is_done) = (0, false);
        while !is_done {
            let UnbufferedStatus { discard, state } = session.process_tls_records(partial);
            match state.map_err(io::Error::other)? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    let mut pieces = Pieces { pieces, at: 0 };
                    while count < SEALED_MAX {
                        let record = pieces.next(size.next().min(SEALED_MAX - count), joined);
                        if record.is_empty() {
                            break;
                        }
                        encrypt(&mut traffic, record, sealed, filled)?;
                        size.note(record.len());
                        count += record.len();
                    }
                    is_done = true;
                }
                // An answer to a request for new keys; it precedes data encrypted with them.
                ConnectionState::EncodeTlsData(data) => {
                    sealed.truncate(*filled);
                    encode(data, sealed);
                    *filled = sealed.len();
                }
                ConnectionState::TransmitTlsData(data) => data.done(),
                // No data can be sent before the handshake is complete.
                _ => return Err(io::ErrorKind::NotConnected.into()),
            }
            partial.drain(..discard);
        }
        Ok(count)
    }

    /// Sends the records that the socket did not take before.
    ///
    /// # Errors
    /// Those of send(2); [`io::ErrorKind::WouldBlock`] if the socket's buffer is full.
    pub fn flush(&mut self, socket: &OwnedFd) -> io::Result<()> {
        while self.has_unsent() {
            self.unsent_at += socket::send(socket, &self.unsent[self.unsent_at..], false)?;
        }
        (self.unsent, self.unsent_at) = (Vec::new(), 0);
        Ok(())
    }

    /// Returns whether records wait for the socket.
    pub fn has_unsent(&self) -> bool {
        self.unsent_at < self.unsent.len()
    }

    /// Informs the client that nothing follows (close_notify; RFC 8446, 6.1), so that it can distinguish the end of
    /// the stream from a truncation. Best effort: a client that does not read is not waited for.
    pub fn close(&mut self, socket: &OwnedFd) {
        if self.has_unsent() || self.failure.is_some() {
            return;
        }
        let UnbufferedStatus { discard, state } = self.session.process_tls_records(&mut self.partial);
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state {
            let mut alert = [0; 2 * OVERHEAD];
            if let Ok(length @ 1..) = traffic.queue_close_notify(&mut alert) {
                let _ = socket::send(socket, &alert[..length], false);
            }
        }
        self.partial.drain(..discard);
    }

    /// Returns the memory that it uses, bytes, as far as it is known: rustls does not report what a session allocates.
    pub fn heap_bytes(&self) -> usize {
        size_of::<Tls>() + self.partial.capacity() + self.unsent.capacity()
    }
}

/// Returns whether this begins with a whole record of a client's hello (RFC 8446, 4.1.2 and 5.1), whose answer is signed.
fn is_hello(input: &[u8]) -> bool {
    const HANDSHAKE: u8 = 22;
    const CLIENT_HELLO: u8 = 1;
    // It may precede a second hello that the server has requested (RFC 8446, D.4).
    const CHANGE_CIPHER_SPEC: [u8; 6] = [20, 3, 3, 0, 1, 1];
    let input = input.strip_prefix(&CHANGE_CIPHER_SPEC).unwrap_or(input);
    matches!(*input, [HANDSHAKE, _, _, _, _, CLIENT_HELLO, ..] if has_record(input))
}

/// Returns whether this begins with a whole record (RFC 8446, 5.1).
fn has_record(input: &[u8]) -> bool {
    matches!(*input, [_, _, _, high, low, ..] if input.len() >= 5 + usize::from(u16::from_be_bytes([high, low])))
}

/// Returns whether one of these records is an unencrypted close_notify (RFC 8446, 6.1; RFC 5246, 7.2.1). rustls takes it for a
/// warning during the handshake, and waits for a client that has said that it leaves.
fn has_plain_close_notify(mut input: &[u8]) -> bool {
    const ALERT: u8 = 21;
    const CLOSE_NOTIFY: u8 = 0;
    while let [kind, 3, _, high, low, rest @ ..] = input {
        let Some((payload, next)) = rest.split_at_checked(usize::from(u16::from_be_bytes([*high, *low]))) else {
            break;
        };
        // An encrypted one is longer.
        if *kind == ALERT && matches!(payload, [_, CLOSE_NOTIFY]) {
            return true;
        }
        input = next;
    }
    false
}

/// Returns the name of a cipher suite, and its cipher.
fn named(suite: CipherSuite) -> Option<(&'static str, Cipher)> {
    let named = match suite {
        // rustls has a prefix of its own for these.
        CipherSuite::TLS13_AES_128_GCM_SHA256 => ("TLS_AES_128_GCM_SHA256", Cipher::Aes128),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => ("TLS_AES_256_GCM_SHA384", Cipher::Aes256),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => ("TLS_CHACHA20_POLY1305_SHA256", Cipher::ChaCha20),
        other => {
            let name = other.as_str()?;
            let cipher = match name {
                _ if name.contains("AES_128") => Cipher::Aes128,
                _ if name.contains("AES_256") => Cipher::Aes256,
                _ => Cipher::ChaCha20,
            };
            (name, cipher)
        }
    };
    Some(named)
}

/// Returns the distinguished name of a certificate's subject (RFC 4514), without control characters.
fn subject_of(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let certificate = Certificate::from_der(certificate).ok()?;
    Some(certificate.tbs_certificate().subject().to_string().replace(char::is_control, "?").into())
}

/// Returns the reason of a failed handshake.
fn failure_of(error: &Error) -> HandshakeFailure {
    use PeerIncompatible as Peer;
    match error {
        Error::PeerIncompatible(
            Peer::Tls12NotOffered
            | Peer::Tls12NotOfferedOrEnabled
            | Peer::ServerTlsVersionIsDisabledByOurConfig
            | Peer::SupportedVersionsExtensionRequired
            // Older versions do not have this extension.
            | Peer::SignatureAlgorithmsExtensionRequired,
        ) => HandshakeFailure::Version,
        // The latter: no certificate has a signature that the client accepts.
        Error::PeerIncompatible(_) | Error::General(_) => HandshakeFailure::Parameters,
        Error::NoApplicationProtocol => HandshakeFailure::Alpn,
        Error::Other(OtherError(error)) if error.is::<SigningFailed>() => HandshakeFailure::Key,
        Error::AlertReceived(AlertDescription::CloseNotify) => HandshakeFailure::Closed,
        Error::AlertReceived(_) => HandshakeFailure::Rejected,
        Error::NoCertificatesPresented | Error::InvalidCertificate(_) | Error::InvalidCertRevocationList(_) => {
            HandshakeFailure::Certificate
        }
        _ => HandshakeFailure::Malformed,
    }
}

pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Appends an encoded message of the handshake to `out`.
fn encode(mut data: EncodeTlsData<'_, ServerConnectionData>, out: &mut Vec<u8>) {
    let start = out.len();
    if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) = data.encode(&mut []) {
        out.resize(start + required_size, 0);
        // The buffer has the required size.
        let _ = data.encode(&mut out[start..]);
    }
}

/// Encrypts one record into `out` after the first `filled` bytes.
fn encrypt(
    traffic: &mut WriteTraffic<'_, ServerConnectionData>,
    plain: &[u8],
    out: &mut Vec<u8>,
    filled: &mut usize,
) -> io::Result<()> {
    let mut room = plain.len() + OVERHEAD;
    loop {
        if out.len() < *filled + room {
            out.resize(*filled + room, 0);
        }
        match traffic.encrypt(plain, &mut out[*filled..]) {
            Ok(length) => {
                *filled += length;
                return Ok(());
            }
            // A message about new keys precedes the record.
            Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) if required_size > room => {
                room = required_size;
            }
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// The bytes of several pieces, in order.
struct Pieces<'a> {
    pieces: &'a [IoSlice<'a>],
    /// Bytes of the first piece that were taken.
    at: usize,
}

impl<'a> Pieces<'a> {
    /// Takes up to `most` bytes: part of one piece if that has as many, else copied together into `joined`.
    fn next<'b>(&mut self, most: usize, joined: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        let first = self.first();
        if first.len() >= most || self.pieces.len() <= 1 {
            return self.take(most);
        }
        joined.clear();
        while joined.len() < most && !self.first().is_empty() {
            let part = self.take(most - joined.len());
            joined.extend_from_slice(part);
        }
        joined
    }

    /// The rest of the first piece; empty only if all were taken.
    fn first(&mut self) -> &'a [u8] {
        while let [first, rest @ ..] = self.pieces
            && self.at == first.len()
        {
            (self.pieces, self.at) = (rest, 0);
        }
        self.pieces.first().map_or(&[], |piece| &piece[self.at..])
    }

    fn take(&mut self, most: usize) -> &'a [u8] {
        let first = self.first();
        let taken = &first[..most.min(first.len())];
        self.at += taken.len();
        taken
    }
}

/// The size of the next record: one packet for the first 8 KiB, 4 KiB up to 128 KiB, then the maximum of TLS. It starts
/// again after a second of silence, when TCP restarts slowly too.
#[derive(Debug, Default)]
struct RecordSize {
    sent: usize,
    last: Time,
}

/// A payload that fits into one packet: 1,460 bytes less TCP options and the overhead of TLS.
const PACKET: usize = 1_369;

const SILENCE: Duration = Duration::from_secs(1);

impl RecordSize {
    fn begin(&mut self, now: Time) {
        if now.since(self.last) >= SILENCE {
            self.sent = 0;
        }
        self.last = now;
    }

    fn next(&self) -> usize {
        match self.sent {
            ..8_192 => PACKET,
            8_192..131_072 => 4_096,
            _ => 16_384,
        }
    }

    fn note(&mut self, length: usize) {
        self.sent += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_grow_and_shrink_after_silence() {
        let mut size = RecordSize::default();
        let mut sizes = Vec::new();
        let mut send = |at: u64, length: usize| {
            size.begin(Time::from_millis(at));
            let mut left = length;
            while left > 0 {
                let next = size.next().min(left);
                size.note(next);
                left -= next;
                sizes.push(next);
            }
            std::mem::take(&mut sizes)
        };
        assert_eq!(send(1_000, 1_000), [1_000]);
        let sizes = send(1_999, 200_000);
        assert!(sizes.starts_with(&[PACKET; 6]) && sizes[6..36].iter().all(|&size| size == 4_096), "{sizes:?}");
        assert!(sizes[37..sizes.len() - 1].iter().all(|&size| size == 16_384), "{sizes:?}");
        assert_eq!(send(2_998, 20_000), [16_384, 3_616]);
        assert_eq!(send(3_998, 2_000), [PACKET, 2_000 - PACKET]);
    }

    #[test]
    fn complete_record_with_hello_is_recognised() {
        let check = |input: &[u8], expected: bool| assert_eq!(is_hello(input), expected, "{input:?}");
        check(&[22, 3, 1, 0, 4, 1, 0, 0, 0], true);
        check(&[22, 3, 1, 0, 4, 1, 0, 0, 0, 22], true);
        check(&[20, 3, 3, 0, 1, 1, 22, 3, 3, 0, 1, 1], true);
        check(&[22, 3, 1, 0, 4, 1, 0, 0], false);
        check(&[22, 3, 1, 0, 4, 16, 0, 0, 0], false);
        check(&[23, 3, 1, 0, 1, 1], false);
        check(&[20, 3, 3, 0, 1, 1], false);
        check(&[], false);
    }

    #[test]
    fn unencrypted_close_notify_is_recognised() {
        let check = |input: &[u8], expected: bool| assert_eq!(has_plain_close_notify(input), expected, "{input:?}");
        check(&[21, 3, 3, 0, 2, 1, 0], true);
        check(&[21, 3, 1, 0, 2, 2, 0], true);
        check(&[22, 3, 1, 0, 1, 1, 21, 3, 3, 0, 2, 1, 0, 23], true);
        check(&[21, 3, 3, 0, 2, 1, 90], false);
        check(&[21, 3, 3, 0, 2, 1], false);
        check(&[21, 3, 3, 0, 3, 1, 0, 0], false);
        check(&[22, 3, 1, 0, 9, 21, 3, 3, 0, 2, 1, 0], false);
        check(&[], false);
    }

    #[test]
    fn pieces_are_joined_only_within_a_record() {
        let check = |pieces: &[&str], most: usize, expected: &[&str]| {
            let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece.as_bytes())).collect();
            let (mut pieces, mut joined, mut records) = (Pieces { pieces: &slices, at: 0 }, Vec::new(), Vec::new());
            loop {
                let record = pieces.next(most, &mut joined);
                if record.is_empty() {
                    break;
                }
                records.push(String::from_utf8(record.to_vec()).expect("text"));
            }
            assert_eq!(records, expected);
        };
        check(&[], 4, &[]);
        check(&["", ""], 4, &[]);
        check(&["abcdef"], 4, &["abcd", "ef"]);
        check(&["ab", "", "cdefgh", "i"], 4, &["abcd", "efgh", "i"]);
        check(&["abcd", "e"], 4, &["abcd", "e"]);
    }
}
