//! TLS on the connections of a load, by rustls: certificate verification, and the layer between socket and requests.
//!
//! [`Tls`] is created once, before the run; `drive/handler` gives each connection a [`Session`], and moves bytes as it
//! does without one. A request is queued before the handshake completes, and is sent as soon as it does: a connection
//! whose handshake fails has a failed request, and no further state is needed.
//!
//! Each connection makes a full handshake. Sessions are not resumed, since a connection stands for a new client, and
//! since the cost of a handshake is most of the cost of a server with TLS.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use amped_measure::Failure;
use amped_sys::socket;
use amped_units::Time;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DEFAULT_VERSIONS, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme, SupportedProtocolVersion, version,
};

use crate::client::{Connection, Next, Plan};
use crate::tally::{Fault, Tally};

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

/// How connections use TLS. By default both versions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// The only version; `None` for both.
    pub version: Option<TlsVersion>,
}

/// The TLS properties that all connections of a run share: the server's name, and the trusted certificates.
#[derive(Clone, Debug)]
pub struct Tls {
    options: Options,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// TLS with a host of this name or address, with HTTP/1.1 by ALPN (RFC 7301).
    ///
    /// # Errors
    /// When no certificate can be issued for such a host; when the authorities cannot be read, or there are none.
    pub fn new(host: &str, trust: Trust<'_>, options: Options) -> Result<Tls, Failure> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Failure::usage(format!("invalid host name {host:?} for a certificate: write a host name")))?;
        let provider = Arc::new(aws_lc_rs::default_provider());
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
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Tls { options, config: Arc::new(config), name })
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
                // Details that only the certificate parser knows, such as an authority used as a server.
                let why = match error {
                    CertificateError::Other(error) => error.to_string(),
                    error => error.to_string(),
                };
                format!(
                    "the certificate of {name} is not accepted ({why}): give it, or its authority's, with --ca FILE, \
                     or give --insecure"
                )
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

/// TLS on one connection.
#[derive(Debug)]
pub(crate) struct Session {
    inner: ClientConnection,
    /// Whether the handshake is in progress.
    shaking: bool,
}

impl Session {
    /// A session that has not sent anything.
    pub(crate) fn new(tls: &Tls) -> Session {
        let inner = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone());
        let mut inner = inner.expect("a configuration with versions, suites and a name");
        // A group of requests is queued as a whole; its length is the user's choice.
        inner.set_buffer_limit(None);
        Session { inner, shaking: true }
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
            if self.shaking && !self.inner.is_handshaking() {
                self.shaking = false;
                tally.secured(connection.planned(), now);
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

/// A socket as rustls writes to it: all records that are ready, in one call.
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

    #[test]
    fn versions_parse() {
        assert_eq!("1.2".parse(), Ok(TlsVersion::Tls12));
        assert_eq!("1.3".parse(), Ok(TlsVersion::Tls13));
        for bad in ["", "1", "1.1", "1.4", "TLSv1.2", "1.2 "] {
            assert!(bad.parse::<TlsVersion>().is_err_and(|why| why.contains("write 1.2 or 1.3")), "{bad}");
        }
    }
}
