//! A certificate with its private key, read from two files: at the start before root is dropped, at each reload, and
//! when the files have changed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};
use x509_cert::certificate::Certificate as X509;
use x509_cert::der::Decode;

use crate::config::settings::ClientCertificate;
use crate::reread::{FileStates, Reread};

/// A certificate with its private key.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The chain and the key, ready for use.
    pub certified: Arc<CertifiedKey>,
    /// The file of the chain.
    pub chain: PathBuf,
    /// The file of the key.
    pub key: PathBuf,
    /// Their state when they were read.
    files: FileStates<2>,
}

/// Why a certificate cannot be used.
#[derive(Debug)]
pub struct Unusable {
    /// Whether the error is in the file of the key, not in that of the chain.
    pub is_key: bool,
    /// The error.
    pub message: String,
    /// The remedy.
    pub help: String,
}

impl Certificate {
    /// Reads a chain and its key, which must belong together.
    ///
    /// # Errors
    /// The files cannot be read, or are invalid.
    pub fn read(chain: &Path, key: &Path) -> Result<Certificate, Unusable> {
        let files = FileStates::new([chain, key]);
        let certificates = read_chain(chain).map_err(|(message, help)| Unusable { is_key: false, message, help })?;
        let unusable_key = |(message, help)| Unusable { is_key: true, message, help };
        let private = read_key(key).map_err(unusable_key)?;
        let certified = certify(certificates, private).map_err(|error| unusable_key(unusable(chain, key, error)))?;
        let (chain, key) = (chain.to_owned(), key.to_owned());
        Ok(Certificate { certified: Arc::new(certified), chain, key, files })
    }

    /// Returns when it ends, since 1970; `None` if it is malformed.
    pub fn end(&self) -> Option<Duration> {
        let own = X509::from_der(self.certified.cert.first()?).ok()?;
        Some(own.tbs_certificate().validity().not_after.to_unix_duration())
    }

    /// Reads it again if its files have changed. `None`: there is no new certificate. An unusable one is reported once,
    /// and the current one stays in use.
    pub fn reread(&mut self, when: Reread) -> Option<Result<(), Unusable>> {
        if !self.files.have_changed([&self.chain, &self.key], when) {
            return None;
        }
        let new = match Certificate::read(&self.chain, &self.key) {
            Ok(new) => new,
            Err(unusable) => return Some(Err(unusable)),
        };
        let is_same = new.certified.cert == self.certified.cert;
        *self = new;
        (!is_same).then_some(Ok(()))
    }
}

/// Returns a verifier for client certificates issued by the authorities in this file.
///
/// # Errors
/// The file cannot be read, or is invalid.
pub fn client_verifier(
    authorities: &Path,
    certificate: ClientCertificate,
) -> Result<Arc<dyn ClientCertVerifier>, Unusable> {
    let unusable = |(message, help)| Unusable { is_key: false, message, help };
    let cannot = |why: &dyn fmt::Display| {
        let message = format!("cannot use the CA certificates in {}: {why}", authorities.display());
        unusable((message, "the file must contain CA certificates".to_owned()))
    };
    let mut roots = RootCertStore::empty();
    for authority in read_chain(authorities).map_err(unusable)? {
        roots.add(authority).map_err(|error| cannot(&error))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()));
    let builder = match certificate {
        ClientCertificate::Required => builder,
        ClientCertificate::Optional => builder.allow_unauthenticated(),
    };
    builder.build().map_err(|error| cannot(&error))
}

type Problem = (String, String);

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let shown = path.display();
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match chain {
        Ok(chain) if chain.is_empty() => Err(not_there(path, "certificate", "-----BEGIN CERTIFICATE-----")),
        Ok(chain) => Ok(chain),
        Err(error) => Err((format!("cannot read the certificate {shown}: {}", reason(&error)), help(&error, path))),
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Problem> {
    let shown = path.display();
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        PemError::NoItemsFound => not_there(path, "private key", "-----BEGIN PRIVATE KEY-----"),
        error => (format!("cannot read the private key {shown}: {}", reason(&error)), help(&error, path)),
    })
}

fn not_there(path: &Path, what: &str, begin: &str) -> Problem {
    let help = format!("the file must be PEM, and contain `{begin}`; an encrypted key must be decrypted first");
    (format!("{} contains no {what}", path.display()), help)
}

/// Formats the reason without text that the message already has.
fn reason(error: &PemError) -> String {
    match error {
        PemError::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

fn help(error: &PemError, path: &Path) -> String {
    match error {
        PemError::Io(error) if error.kind() == std::io::ErrorKind::PermissionDenied => format!(
            "make it readable by the user that starts the server, and by `user` for reloads; see `namei -l {}`",
            path.display()
        ),
        PemError::Io(_) => "correct the path; relative paths start at the directory of this file".to_owned(),
        _ => "the file must be PEM".to_owned(),
    }
}

/// Joins a chain and its key, which must belong together.
fn certify(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<CertifiedKey, Error> {
    let certified = CertifiedKey::new(chain, any_supported_type(&key)?);
    match certified.keys_match() {
        // The library cannot compare some kinds of keys.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(error) => Err(error),
    }
}

fn unusable(chain: &Path, key: &Path, error: Error) -> Problem {
    let (chain, key) = (chain.display(), key.display());
    match error {
        Error::InconsistentKeys(_) => {
            let help =
                "the first certificate of the file must be the site's own, and the key the one it was issued for";
            (format!("the private key {key} does not belong to the certificate {chain}"), help.to_owned())
        }
        Error::InvalidCertificate(error) => {
            (format!("the certificate {chain} is invalid: {error}"), "have it issued again".to_owned())
        }
        error => {
            let help = "use an ECDSA key (P-256, P-384), an RSA key of 2048 to 8192 bits, or Ed25519";
            (format!("the private key {key} cannot be used: {error}"), help.to_owned())
        }
    }
}
