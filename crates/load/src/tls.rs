//! TLS on the connections of a load, by rustls: certificate verification, and the layer between socket and requests.
//!
//! [`Tls`] is created once, before the run; `drive/handler` gives each connection a [`Session`], and moves bytes as it
//! does without one. A request is queued before the handshake completes, and is sent as soon as it does: a connection
//! whose handshake fails has a failed request, and no further state is needed.
//!
//! By default each connection makes a full handshake, since a connection represents a new client, and since handshakes
//! are most of the cost of a server with TLS: no session is offered, no ticket of TLS 1.2 is requested, and tickets of
//! TLS 1.3 are discarded. With [`Options::resume`] some connections offer a session that an earlier one received; which
//! ones is drawn from a seed by the number of the connection ([`Sessions`]).

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use amped_measure::Failure;
use amped_measure::stats::Random;
use amped_sys::socket;
use amped_units::Time;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue, WebPkiServerVerifier,
    verify_server_name,
};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, CipherSuite, ClientConfig, ClientConnection, DEFAULT_VERSIONS,
    DigitallySignedStruct, Error, HandshakeKind, NamedGroup, RootCertStore, SignatureScheme, SupportedProtocolVersion,
    version,
};

use crate::client::{Connection, Next, Plan};
use crate::handshake::SessionCounts;
use crate::tally::{Fault, Handshake, Tally};

/// The certificates that a client trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust<'a> {
    /// The authorities that this machine trusts.
    System,
    /// The authorities in a file of PEM certificates, and no others.
    /// A server's own certificate in the file is trusted as well.
    File(&'a Path),
    /// All certificates, without verification.
    Anybody,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2 (RFC 5246).
    Tls12,
    /// TLS 1.3 (RFC 8446).
    Tls13,
}

impl TlsVersion {
    fn supported(self) -> &'static SupportedProtocolVersion {
        match self {
            TlsVersion::Tls12 => &version::TLS12,
            TlsVersion::Tls13 => &version::TLS13,
        }
    }
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsVersion::Tls12 => "1.2",
            TlsVersion::Tls13 => "1.3",
        })
    }
}

impl FromStr for TlsVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<TlsVersion, String> {
        let known = [TlsVersion::Tls12, TlsVersion::Tls13].into_iter().find(|version| version.to_string() == text);
        known.ok_or_else(|| format!("invalid TLS version {text:?}: write 1.2 or 1.3"))
    }
}

/// How connections use TLS. By default both versions, with a full handshake for each connection.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// The only version; `None` for both.
    pub version: Option<TlsVersion>,
    /// The share of connections that resume an earlier session, from 0 to 1.
    pub resume: f64,
    /// The seed that determines which ones.
    pub seed: u64,
    /// HTTP/2, not HTTP/1.1, by ALPN (RFC 7301).
    pub http2: bool,
}

/// The TLS properties that all connections of a run share: the server's name, the trusted certificates, and the sessions
/// to resume.
#[derive(Clone, Debug)]
pub struct Tls {
    options: Options,
    name: ServerName<'static>,
    /// The configuration of connections that make a full handshake.
    full: Arc<ClientConfig>,
    /// The sessions, and the configuration of connections that resume one; `None` if none do.
    resuming: Option<(Arc<Sessions>, Arc<ClientConfig>)>,
}

impl Tls {
    /// TLS with a host of this name or address.
    ///
    /// # Errors
    /// When no certificate can be issued for such a host; when the authorities cannot be read, or there are none.
    pub fn new(host: &str, trust: Trust<'_>, options: Options) -> Result<Tls, Failure> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Failure::usage(format!("invalid host name {host:?} for a certificate: write a host name")))?;
        let mut provider = aws_lc_rs::default_provider();
        // Stable: those with AES-128 first, otherwise in rustls' order.
        provider.cipher_suites.sort_by_key(|suite| !is_aes_128(suite.suite()));
        let provider = Arc::new(provider);
        let algorithms = provider.signature_verification_algorithms;
        let listed = match trust {
            Trust::System => Some(of_system()?),
            Trust::File(path) => Some(of_file(path)?),
            Trust::Anybody => None,
        };
        let trusted = listed.map(|listed| {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(listed.iter().cloned());
            let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
            let chains =
                chains.map_err(|_| Failure::failed("none of the trusted certificates can be used; see --ca"))?;
            // Those of the system are authorities, not servers' certificates.
            let own = if trust == Trust::System { Vec::new() } else { listed };
            Ok((chains, own))
        });
        let verifier = Arc::new(Verifier { trusted: trusted.transpose()?, algorithms });
        let versions = options.version.map(|version| [version.supported()]);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions.as_ref().map_or(DEFAULT_VERSIONS, |one| &one[..]))
            .expect("the provider has all that TLS 1.2 and 1.3 need")
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = vec![if options.http2 { H2.to_vec() } else { b"http/1.1".to_vec() }];
        config.resumption = Resumption::disabled();
        let mut resuming = None;
        if options.resume > 0.0 {
            let sessions = Arc::new(Sessions::default());
            // Only a session of a configuration with the same verifier is offered, which a clone has.
            let mut offering = config.clone();
            config.resumption = View { sessions: Arc::clone(&sessions), is_offering: false }.into();
            offering.resumption = View { sessions: Arc::clone(&sessions), is_offering: true }.into();
            resuming = Some((sessions, Arc::new(offering)));
        }
        Ok(Tls { options, name, full: Arc::new(config), resuming })
    }

    /// Drops all sessions, so that each run begins like the first.
    pub(crate) fn forget_sessions(&self) {
        if let Some((sessions, _)) = &self.resuming {
            *sessions.held() = Held::default();
            sessions.issued.store(0, Ordering::Relaxed);
            sessions.offered.store(0, Ordering::Relaxed);
        }
    }

    /// The sessions of the run so far.
    pub(crate) fn sessions(&self) -> SessionCounts {
        let count = |of: fn(&Sessions) -> &AtomicU64| {
            self.resuming.as_ref().map_or(0, |(sessions, _)| of(sessions).load(Ordering::Relaxed))
        };
        SessionCounts {
            requested_share: self.options.resume,
            issued: count(|sessions| &sessions.issued),
            offered: count(|sessions| &sessions.offered),
        }
    }

    /// The configuration of connection number `number` of the run, and whether it resumes a session.
    fn config(&self, number: u64) -> (&Arc<ClientConfig>, bool) {
        // A generator per draw, and not that of the requests: whether a session is resumed does not depend on the file.
        const SALT: u64 = 0x7465_6b63_6974_736c;
        let seed = self.options.seed ^ SALT;
        let mut random = Random(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        match &self.resuming {
            Some((_, offering)) if random.fraction() < self.options.resume => (offering, true),
            Some(_) | None => (&self.full, false),
        }
    }

    /// Explains a TLS failure with this server, and what to do.
    fn explain(&self, error: &Error) -> String {
        let name = self.name.to_str();
        match error {
            Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                format!("the certificate of {name} has expired: renew it, or give --insecure")
            }
            Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
                format!("the certificate of {name} is not valid yet: check this machine's clock, or give --insecure")
            }
            Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }) => {
                // They have the form `DnsName("example.com")`.
                let bare =
                    |name: &String| name.split('(').next_back().unwrap_or(name).trim_matches(['"', ')']).to_owned();
                let whose: Vec<String> = presented.iter().map(bare).collect();
                let whose = if whose.is_empty() { "no name".to_owned() } else { whose.join(", ") };
                format!("the certificate is not for {name} but for {whose}: use that name, or give --insecure")
            }
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => format!(
                "the certificate of {name} is not signed by a trusted authority: give the authority's certificate, or \
                 this one, with --ca FILE, or give --insecure"
            ),
            Error::InvalidCertificate(error) => {
                // Details that only the certificate parser reports, such as an authority used as a server.
                let why = match error {
                    CertificateError::Other(error) => error.to_string(),
                    error => error.to_string(),
                };
                format!(
                    "the certificate of {name} is not accepted ({why}): give it, or its authority's, with --ca FILE, \
                     or give --insecure"
                )
            }
            Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                self.lacks_http2()
            }
            Error::InvalidMessage(_) => format!("{name} does not speak TLS: is its URL http://?"),
            error => match self.options.version {
                None => format!("cannot negotiate TLS 1.2 or 1.3 with {name}: {error}"),
                Some(version) => format!(
                    "cannot negotiate TLS {version} with {name}: {error}; enable this version in the server, or omit \
                     --tls-version"
                ),
            },
        }
    }

    /// Explains that the server did not choose the protocol.
    fn lacks_http2(&self) -> String {
        let name = self.name.to_str();
        let asked = if self.options.http2 { "HTTP/2" } else { "HTTP/1.1" };
        format!("{name} does not speak {asked} over TLS (ALPN); enable it in the server, or change --http2")
    }
}

/// HTTP/2 in ALPN (RFC 9113, 3.2).
const H2: &[u8] = b"h2";

/// Whether a cipher suite encrypts with AES-128. Browsers offer it first, so a server that follows its clients' order
/// does the same work for a browser and in a measurement.
fn is_aes_128(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    )
}

fn of_system() -> Result<Vec<CertificateDer<'static>>, Failure> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(Failure::failed(format!(
            "this machine trusts no authority{why}: install ca-certificates, or give --ca FILE or --insecure"
        )));
    }
    Ok(found.certs)
}

fn of_file(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let place = path.display();
    let text = fs::read(path).map_err(Failure::io(format_args!("read {place}")))?;
    let listed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match listed {
        Ok(listed) if !listed.is_empty() => Ok(listed),
        Ok(_) => Err(Failure::failed(format!(
            "{place} has no certificate in PEM format (-----BEGIN CERTIFICATE-----); `openssl x509 -inform der` \
             converts DER"
        ))),
        Err(error) => Err(Failure::failed(format!("cannot read PEM certificates from {place}: {error}"))),
    }
}

/// Verifies a server's certificate.
#[derive(Debug)]
struct Verifier {
    /// The verifier of chains, and the certificates that are trusted themselves; `None` trusts all.
    trusted: Option<(Arc<WebPkiServerVerifier>, Vec<CertificateDer<'static>>)>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some((chains, own)) = &self.trusted else { return Ok(ServerCertVerified::assertion()) };
        match chains.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // `openssl req -x509` marks its certificate as an authority's, which a server may not use (RFC 5280,
            // 4.2.1.9). Dates have been verified before that.
            Err(Error::InvalidCertificate(CertificateError::Other(_))) if own.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            judged => judged,
        }
    }

    // Verified even if all certificates are trusted: other clients pay
    // that cost too, and the figures stay those of the same protocol.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The sessions with the server that can be resumed. A run has one server, so they have no key.
///
/// A ticket of TLS 1.3 is offered once (RFC 8446, C.4), the newest first, which is the least likely to have expired. A
/// session of TLS 1.2 is offered by all connections until there is a newer one.
#[derive(Debug, Default)]
struct Sessions {
    held: Mutex<Held>,
    /// Sessions received.
    issued: AtomicU64,
    /// Sessions given to connections.
    offered: AtomicU64,
}

/// Maximum number of unused tickets of TLS 1.3; the oldest is dropped. Each takes a few KiB, since it includes the
/// server's certificates.
const TICKETS_MAX: usize = 4096;

#[derive(Debug, Default)]
struct Held {
    /// The group for key exchange that the server chose.
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    /// Newest last.
    tls13: VecDeque<Tls13ClientSessionValue>,
}

impl Sessions {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's view of the sessions: all connections add sessions, and those that resume one take one.
#[derive(Debug)]
struct View {
    sessions: Arc<Sessions>,
    is_offering: bool,
}

impl View {
    fn offer<T>(&self, choose: impl FnOnce(&mut Held) -> Option<T>) -> Option<T> {
        let chosen = if self.is_offering { choose(&mut self.sessions.held()) } else { None };
        self.sessions.offered.fetch_add(u64::from(chosen.is_some()), Ordering::Relaxed);
        chosen
    }
}

impl From<View> for Resumption {
    fn from(view: View) -> Resumption {
        Resumption::store(Arc::new(view))
    }
}

impl ClientSessionStore for View {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.sessions.held().group = Some(group);
    }

    // A new client does not know the server's choice.
    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.is_offering.then(|| self.sessions.held().group).flatten()
    }

    fn set_tls12_session(&self, _: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.sessions.held().tls12 = Some(session);
        self.sessions.issued.fetch_add(1, Ordering::Relaxed);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.offer(|held| held.tls12.clone())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.sessions.held().tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.sessions.issued.fetch_add(1, Ordering::Relaxed);
        let mut held = self.sessions.held();
        if held.tls13.len() == TICKETS_MAX {
            held.tls13.pop_front();
        }
        held.tls13.push_back(ticket);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.offer(|held| held.tls13.pop_back())
    }
}

/// TLS on one connection.
#[derive(Debug)]
pub(crate) struct Session {
    inner: ClientConnection,
    /// The handshake in progress; `None` once it is complete.
    handshake: Option<Handshake>,
}

impl Session {
    /// A session that has not sent anything, on connection number `number` of the run, which was established at `began`.
    pub(crate) fn new(tls: &Tls, number: u64, began: Time) -> Session {
        let (config, wanted) = tls.config(number);
        let inner = ClientConnection::new(Arc::clone(config), tls.name.clone());
        let mut inner = inner.expect("a configuration with versions, suites and a name");
        // A group of requests is queued as a whole; its length is the user's choice.
        inner.set_buffer_limit(None);
        Session { inner, handshake: Some(Handshake { began, wanted, resumed: false }) }
    }

    /// Queues bytes to be sent as soon as there is a key.
    pub(crate) fn say(&mut self, plain: &[u8]) {
        // Writing to unlimited memory does not fail.
        let _ = self.inner.writer().write_all(plain);
    }

    /// Queues the close alert (RFC 8446, 6.1).
    pub(crate) fn say_end(&mut self) {
        self.inner.send_close_notify();
    }

    /// Sends as much as the socket accepts. Errors show again when reading.
    pub(crate) fn send(&mut self, socket: &OwnedFd) {
        while self.inner.wants_write() && self.inner.write_tls(&mut Sink(socket)).is_ok_and(|sent| sent > 0) {}
    }

    /// Processes bytes from the server, and passes on the plain text.
    pub(crate) fn handle_bytes(
        &mut self,
        now: Time,
        mut bytes: &[u8],
        (tls, connection): (&Tls, &mut Connection),
        plan: &Plan,
        tally: &mut Tally,
    ) -> Next {
        let mut next = Next::Bytes;
        while !bytes.is_empty() {
            // The bytes are in memory and all earlier ones were consumed: only a record that is too long fails here.
            let taken = self.inner.read_tls(&mut bytes).map_err(|error| Error::General(error.to_string()));
            let state = match taken.and_then(|_| self.inner.process_new_packets()) {
                Ok(state) => state,
                Err(error) => {
                    tally.explain_tls(|| tls.explain(&error));
                    return connection.handle_fault(Fault::Tls, plan, tally);
                }
            };
            if !self.inner.is_handshaking()
                && let Some(handshake) = self.handshake.take()
            {
                let resumed = self.inner.handshake_kind() == Some(HandshakeKind::Resumed);
                tally.secured(connection.planned(), Handshake { resumed, ..handshake }, now);
                // A server without ALPN would take the preface of HTTP/2 for a request.
                if tls.options.http2 && self.inner.alpn_protocol() != Some(H2) {
                    tally.explain_tls(|| tls.lacks_http2());
                    return connection.handle_fault(Fault::Tls, plan, tally);
                }
            }
            let mut reader = self.inner.reader();
            while let Ok(plain @ [_, ..]) = reader.fill_buf() {
                let length = plain.len();
                next = connection.handle_bytes(now, plain, plan, tally);
                if next == Next::Close {
                    return next;
                }
                reader.consume(length);
            }
            if state.peer_has_closed() {
                connection.handle_end(now, plan, tally);
                return Next::Close;
            }
        }
        next
    }
}

/// Adapts a socket for rustls, which writes all pending records in one call.
struct Sink<'a>(&'a OwnedFd);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket::send(self.0, bytes, false)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        socket::send_vectored(self.0, bytes, false)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(resume: f64, seed: u64) -> Tls {
        Tls::new("localhost", Trust::Anybody, Options { resume, seed, ..Options::default() }).unwrap()
    }

    #[test]
    fn seed_determines_which_connections_resume_sessions() {
        let drawn = |tls: &Tls| (0..10_000).map(|number| tls.config(number).1).collect::<Vec<bool>>();
        let share = |tls: &Tls| drawn(tls).into_iter().filter(|resumes| *resumes).count() as f64 / 1e4;
        for resume in [0.0, 0.01, 0.5, 0.9, 1.0] {
            let found = share(&tls(resume, 7));
            // Three standard deviations.
            assert!((found - resume).abs() <= 3.0 * (resume * (1.0 - resume) / 1e4).sqrt(), "{found} not {resume}");
        }
        assert_eq!(drawn(&tls(0.5, 7)), drawn(&tls(0.5, 7)));
        assert_ne!(drawn(&tls(0.5, 7)), drawn(&tls(0.5, 8)));
        // Every other slice has the same share: the choice is not periodic.
        let even = drawn(&tls(0.5, 7)).into_iter().step_by(2).filter(|resumes| *resumes).count();
        assert!((2300..2700).contains(&even), "{even}");
    }

    #[test]
    fn aes_128_is_offered_before_all_other_ciphers() {
        let tls = tls(0.0, 7);
        let offered = &tls.full.crypto_provider().cipher_suites;
        assert_eq!(offered.len(), aws_lc_rs::default_provider().cipher_suites.len());
        let order: Vec<bool> = offered.iter().map(|suite| is_aes_128(suite.suite())).collect();
        assert_eq!(order.iter().filter(|is_aes_128| **is_aes_128).count(), 3);
        assert!(order[..3].iter().all(|is_aes_128| *is_aes_128), "{offered:?}");
    }

    #[test]
    fn versions_parse() {
        assert_eq!("1.2".parse(), Ok(TlsVersion::Tls12));
        assert_eq!("1.3".parse(), Ok(TlsVersion::Tls13));
        for bad in ["", "1", "1.1", "1.4", "TLSv1.2", "1.2 "] {
            assert!(bad.parse::<TlsVersion>().is_err_and(|why| why.contains("write 1.2 or 1.3")), "{bad}");
        }
    }
}
