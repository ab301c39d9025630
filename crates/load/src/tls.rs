//! TLS on the connections of a load, by rustls: whom a client believes, and what lies between its socket and its requests.
//!
//! [`Tls`] is made once, before the run; `drive/handler` gives each connection a [`Session`], and goes on to move bytes as it
//! does without one. A request is handed over before the handshake is done, and goes out as soon as it is: so a connection
//! whose handshake fails has asked something that came to nothing, and no further state is needed.
//!
//! Each connection shakes hands in full. Sessions are not resumed, since a connection stands for somebody who has not been
//! here before, and since what a handshake costs is most of what is to be known of a server with TLS.

use std::fs;
use std::io::{self, BufRead, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
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
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::client::{Connection, Next, Plan};
use crate::tally::{Fault, Tally};

/// Whose word about a server's certificate is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust<'a> {
    /// That of the authorities which this machine trusts.
    System,
    /// That of the authorities in a file of PEM certificates, and of no others. A server's own certificate that is in the
    /// file is believed as well.
    File(&'a Path),
    /// Anybody's: certificates are not looked at.
    Anybody,
}

/// What all connections of a run have in common: the server's name, and what is believed about it.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// TLS 1.2 and 1.3 towards the host of that name or address, with HTTP/1.1 as what is spoken (RFC 7301).
    ///
    /// # Errors
    /// When no certificate can be for such a host; when the authorities cannot be read, or there are none.
    pub fn new(host: &str, trust: Trust<'_>) -> Result<Tls, Failure> {
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
            // Those of the system are authorities, and no server's own.
            let own = if trust == Trust::System { Vec::new() } else { listed };
            Ok((chains, own))
        });
        let verifier = Arc::new(Verifier { trusted: trusted.transpose()?, algorithms });
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has all that TLS 1.2 and 1.3 need")
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Tls { config: Arc::new(config), name })
    }

    /// Why there is no TLS with this server, and the way out.
    fn explain(&self, error: &Error) -> String {
        let name = self.name.to_str();
        match error {
            Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                format!("the certificate of {name} has expired: renew it, or give --insecure")
            }
            Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
                format!("the certificate of {name} is not valid yet: look at this machine's clock, or give --insecure")
            }
            Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }) => {
                // They come as `DnsName("example.com")`.
                let bare =
                    |name: &String| name.split('(').next_back().unwrap_or(name).trim_matches(['"', ')']).to_owned();
                let whose: Vec<String> = presented.iter().map(bare).collect();
                let whose = if whose.is_empty() { "nobody".to_owned() } else { whose.join(", ") };
                format!("the certificate is not for {name} but for {whose}: ask for what it is for, or give --insecure")
            }
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => format!(
                "the certificate of {name} is not signed by a trusted authority: give the one of its authority, or itself, \
                 by --ca FILE, or give --insecure"
            ),
            Error::InvalidCertificate(error) => {
                // What only the reader of certificates knows, such as that an authority's is no server's.
                let why = match error {
                    CertificateError::Other(error) => error.to_string(),
                    error => error.to_string(),
                };
                format!(
                    "the certificate of {name} is not accepted ({why}): give it, or that of its authority, by --ca FILE, or \
                     give --insecure"
                )
            }
            Error::InvalidMessage(_) => format!("what answers for {name} speaks no TLS: is its URL http://?"),
            error => format!("{name} and this client do not agree on TLS 1.2 or 1.3: {error}"),
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
            "{place} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----); `openssl x509 -inform der` makes it of DER"
        ))),
        Err(error) => Err(Failure::failed(format!("cannot read PEM certificates from {place}: {error}"))),
    }
}

/// Looks at a server's certificate.
#[derive(Debug)]
struct Verifier {
    /// Who judges chains, and certificates that are trusted themselves; `None`: all are.
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
            // What `openssl req -x509` makes says of itself that it is an authority, and by the rules that is no server's
            // (RFC 5280, 4.2.1.9). Dates have been looked at before that.
            Err(Error::InvalidCertificate(CertificateError::Other(_))) if own.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            judged => judged,
        }
    }

    // Also where anybody is believed: it costs what it costs other clients, and the figures are not another protocol's.
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
    /// The handshake is under way.
    shaking: bool,
}

impl Session {
    /// One that has not sent anything yet.
    pub(crate) fn new(tls: &Tls) -> Session {
        let inner = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone());
        let mut inner = inner.expect("a configuration with versions, suites and a name");
        // A group of requests is handed over as a whole, and what is long is the user's wish.
        inner.set_buffer_limit(None);
        Session { inner, shaking: true }
    }

    /// Takes what is to be sent, as soon as there is a key for it.
    pub(crate) fn say(&mut self, plain: &[u8]) {
        // Into memory without a limit.
        let _ = self.inner.writer().write_all(plain);
    }

    /// The last that is said (RFC 8446, 6.1).
    pub(crate) fn say_end(&mut self) {
        self.inner.send_close_notify();
    }

    /// Sends what there is room for. What goes wrong, reading will tell again.
    pub(crate) fn send(&mut self, socket: &OwnedFd) {
        while self.inner.wants_write() && self.inner.write_tls(&mut Sink(socket)).is_ok_and(|sent| sent > 0) {}
    }

    /// Takes what the server sent, and hands on what was in it.
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
            // From memory, with nothing left of what was read before: only a record that is too long cannot be taken.
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

/// A socket, as rustls writes to it: all records that are ready in one call.
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
