//! A certificate chain and its private key, read from PEM files.

use std::path::Path;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

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

/// Reads a chain and its key, which must belong together.
///
/// # Errors
/// One of them cannot be read, or is invalid.
pub fn read_pair(chain: &Path, key: &Path) -> Result<CertifiedKey, Unusable> {
    let certificates = read_chain(chain).map_err(|(message, help)| Unusable { is_key: false, message, help })?;
    let unusable_key = |(message, help)| Unusable { is_key: true, message, help };
    let private = read_key(key).map_err(unusable_key)?;
    certify(certificates, private).map_err(|error| unusable_key(unusable(chain, key, error)))
}

/// An error and its remedy.
pub type Problem = (String, String);

/// Reads all certificates of a file.
///
/// # Errors
/// It cannot be read, or contains none.
pub fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match chain {
        Ok(chain) if chain.is_empty() => Err(not_there(path, "certificate", "-----BEGIN CERTIFICATE-----")),
        Ok(chain) => Ok(chain),
        Err(error) => Err(pem_problem("certificate", path, &error)),
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Problem> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        PemError::NoItemsFound => not_there(path, "private key", "-----BEGIN PRIVATE KEY-----"),
        error => pem_problem("private key", path, &error),
    })
}

fn not_there(path: &Path, what: &str, begin: &str) -> Problem {
    let help = format!("the file must be PEM, and contain `{begin}`; an encrypted key must be decrypted first");
    (format!("{} contains no {what}", path.display()), help)
}

/// Describes why this part of a PEM file cannot be read.
pub fn pem_problem(what: &str, path: &Path, error: &PemError) -> Problem {
    let (shown, reason) = (path.display(), reason(error));
    (format!("cannot read the {what} {shown}: {reason}"), help(error, path))
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
        PemError::Io(_) => "correct the path; relative paths start at the directory of the main file".to_owned(),
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
