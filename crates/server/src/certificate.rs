//! A certificate with its private key, as they are read from two files.

use std::path::Path;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

/// What is wrong, and what to do about it.
pub(crate) type Problem = (String, String);

/// Reads a chain of certificates.
pub(crate) fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let shown = path.display();
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match chain {
        Ok(chain) if chain.is_empty() => Err(not_there(path, "certificate", "-----BEGIN CERTIFICATE-----")),
        Ok(chain) => Ok(chain),
        Err(error) => Err((format!("cannot read the certificate {shown}: {}", reason(&error)), help(&error, path))),
    }
}

/// Reads a private key.
pub(crate) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Problem> {
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

/// The reason without what the message says already.
fn reason(error: &PemError) -> String {
    match error {
        PemError::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

fn help(error: &PemError, path: &Path) -> String {
    match error {
        PemError::Io(error) if error.kind() == std::io::ErrorKind::PermissionDenied => format!(
            "the user that starts the server must be able to read it, and its `user` for a reload: `namei -l {}`",
            path.display()
        ),
        PemError::Io(_) => "correct the path; a relative one begins at the folder of this file".to_owned(),
        _ => "the file must be PEM".to_owned(),
    }
}

/// Joins a chain and its key, which must belong together.
pub(crate) fn certify(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<CertifiedKey, Error> {
    let certified = CertifiedKey::new(chain, any_supported_type(&key)?);
    match certified.keys_match() {
        // The library cannot tell for some kinds of keys.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(error) => Err(error),
    }
}

/// Says why the two cannot be used.
pub(crate) fn unusable(chain: &Path, key: &Path, error: Error) -> Problem {
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
