//! How TLS sessions with the servers behind this one begin: which certificates the server trusts, which name it expects, and the
//! certificate that it presents.
//!
//! Files are read when the configuration is, as those of sites' certificates are, and again at each reload. A certificate is
//! verified against the authorities of the system or of a file. A file may also hold a backend's own certificate, as
//! `openssl req -x509` makes it: that one is trusted, whatever its issuer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::SingleCertAndKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};
use x509_cert::certificate::Certificate as X509;
use x509_cert::der::Decode;

use crate::certificate::Certificate;
use crate::certified::{Unusable, read_chain};
use crate::clock;
use crate::keys::client::KeySource;
use crate::transport::tls::HTTP1;

/// How sessions with a server begin.
#[derive(Clone, Debug)]
pub struct BackendTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// Whether the server's certificate is verified.
    pub verifies: bool,
    /// A hash of everything that was read.
    identity: [u8; 32],
}

impl PartialEq for BackendTls {
    fn eq(&self, other: &BackendTls) -> bool {
        (&self.name, self.identity) == (&other.name, other.identity)
    }
}

impl Eq for BackendTls {}

/// The keys of a rule about TLS.
#[derive(Clone, Copy, Debug)]
pub struct TlsKeys<'a> {
    /// Certificates that are trusted instead of the system's.
    pub ca: Option<&'a Path>,
    /// The chain and the private key that the server presents.
    pub own: Option<(&'a Path, &'a Path)>,
    /// Whether certificates are verified.
    pub verify: bool,
}

/// Why the keys cannot be used.
#[derive(Debug)]
pub struct UnusableKeys {
    /// The key with the error; `None`: none, the system is at fault.
    pub key: Option<&'static str>,
    /// The error.
    pub message: String,
    /// The remedy.
    pub help: String,
}

/// Maximum sessions kept to be resumed, for each backend.
const SESSIONS: usize = 32;

impl BackendTls {
    /// Reads the files that these keys name. The result is for a server of any name.
    ///
    /// # Errors
    /// A file cannot be read or is invalid, or the system has no authorities.
    pub fn read(keys: TlsKeys<'_>) -> Result<BackendTls, UnusableKeys> {
        let provider = Arc::new(default_provider());
        let mut identity = Context::new(&SHA256);
        let verifier = verifier(keys, &provider, &mut identity)?;
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| unusable(None, format!("cannot set up TLS: {error}"), ""))?;
        let config = config.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match keys.own {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let own = Certificate::read(&KeySource::Files, chain, key, None, clock::since_1970());
                let Certificate { certified, .. } = own.map_err(|Unusable { is_key, message, help }| {
                    unusable(Some(if is_key { "tls_key" } else { "tls_certificate" }), message, &help)
                })?;
                certified.cert.iter().for_each(|one| identity.update(one));
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
            }
        };
        config.alpn_protocols = vec![HTTP1.to_vec()];
        let mut hash = [0; 32];
        hash.copy_from_slice(identity.finish().as_ref());
        let name = ServerName::from(std::net::Ipv4Addr::UNSPECIFIED);
        let read = BackendTls { config: Arc::new(config), name, verifies: keys.verify, identity: hash };
        // The first keys of a process wait for randomness, up to 50 ms: a loop must not create them.
        read.session().map_err(|error| unusable(None, format!("cannot set up TLS: {error}"), ""))?;
        Ok(read)
    }

    /// Returns the same for a server of this name, with sessions of its own.
    ///
    /// # Errors
    /// This is no host name.
    pub fn named(&self, name: &str) -> Result<BackendTls, rustls::pki_types::InvalidDnsNameError> {
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let name = ServerName::try_from(bare.to_owned())?;
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        Ok(BackendTls { config: Arc::new(config), name, ..self.clone() })
    }

    /// Begins a session.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn session(&self) -> Result<ClientConnection, Error> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone())
    }
}

/// Returns the text of an error of a session, with the remedy.
pub fn explain(error: &Error) -> String {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext, Other, UnknownIssuer,
    };
    let help = match error {
        // BadSignature: a trusted certificate has the name of its issuer, and another key. Other: a self-signed one of
        // openssl is that of a CA, which cannot be a server's unless it is trusted itself.
        Error::InvalidCertificate(UnknownIssuer | BadSignature | Other(_)) => {
            "name its CA, or its own certificate, in `tls_ca`"
        }
        Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "write a name of the certificate in `tls_name`"
        }
        Error::InvalidCertificate(Expired | ExpiredContext { .. }) => "renew it",
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it requires a client certificate: set `tls_certificate` and `tls_key`"
        }
        Error::AlertReceived(_) => "its log has the reason",
        Error::InvalidMessage(_) => "it may not use TLS: write `http://` instead of `https://`",
        _ => return format!("TLS: {error}"),
    };
    format!("TLS: {error}; {help}")
}

/// Returns the warning about a server whose certificate is not verified.
pub fn unverified(server: &str) -> String {
    format!("the certificate of {server} is not verified (`tls_verify = false`): name its CA in `tls_ca` instead")
}

fn unusable(key: Option<&'static str>, message: String, help: &str) -> UnusableKeys {
    UnusableKeys { key, message, help: help.to_owned() }
}

/// Returns what verifies certificates, and adds what it trusts to `identity`.
fn verifier(
    keys: TlsKeys<'_>,
    provider: &Arc<CryptoProvider>,
    identity: &mut Context,
) -> Result<Arc<dyn ServerCertVerifier>, UnusableKeys> {
    identity.update(&[u8::from(keys.verify)]);
    let provider = Arc::clone(provider);
    if !keys.verify {
        return Ok(Arc::new(Verifier { inner: None, own: Vec::new(), provider }));
    }
    let trusted = authorities(keys.ca)?;
    let own = if keys.ca.is_some() { trusted.clone() } else { Vec::new() };
    let mut roots = RootCertStore::empty();
    for one in trusted {
        identity.update(&one);
        let added = roots.add(one);
        if let (Err(error), Some(path)) = (added, keys.ca) {
            let message = format!("cannot use the CA certificates in {}: {error}", path.display());
            return Err(unusable(Some("tls_ca"), message, "the file must contain certificates in PEM"));
        }
    }
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
    let inner = inner.map_err(|error| unusable(keys.ca.map(|_| "tls_ca"), format!("cannot verify: {error}"), ""))?;
    Ok(Arc::new(Verifier { inner: Some(inner), own, provider }))
}

/// Returns the certificates that are trusted: those of a file, or else the system's.
///
/// # Errors
/// The file cannot be read or is invalid, or the system has none.
pub fn authorities(ca: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, UnusableKeys> {
    match ca {
        Some(path) => read_chain(path).map_err(|(message, help)| unusable(Some("tls_ca"), message, &help)),
        None => system_authorities(),
    }
}

fn system_authorities() -> Result<Vec<CertificateDer<'static>>, UnusableKeys> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let reason = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        let message = format!("the system has no CA certificates to verify this server with{reason}");
        let help = "install the package ca-certificates, or name the server's CA with `tls_ca = \"FILE\"`";
        return Err(unusable(None, message, help));
    }
    Ok(found.certs)
}

/// Verifies the certificates of servers.
#[derive(Debug)]
struct Verifier {
    /// Verifies against authorities; `None`: no certificate is verified.
    inner: Option<Arc<WebPkiServerVerifier>>,
    /// Servers' own certificates.
    own: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        if !self.own.contains(end_entity) {
            return inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        }
        check_validity(end_entity, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    // A server proves that it has the key, even if its certificate is not verified.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn check_validity(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let parsed = X509::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let validity = parsed.tbs_certificate().validity();
    let now = Duration::from_secs(now.as_secs());
    if now < validity.not_before.to_unix_duration() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > validity.not_after.to_unix_duration() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}
