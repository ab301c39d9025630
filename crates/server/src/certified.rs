//! A certificate chain and its private key, opened and read as PEM files.
//!
//! Opening and reading are two steps, as two processes may do them: one that may open the key, and one that holds it (`keys`).

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

/// The open files of a chain and its key, which may be the same file.
#[derive(Debug)]
pub struct OpenPair {
    chain: File,
    key: File,
}

/// Why a certificate cannot be used.
#[derive(Debug, Serialize, Deserialize)]
pub struct Unusable {
    /// Whether the error is in the file of the key, not in that of the chain.
    pub is_key: bool,
    /// The error.
    pub message: String,
    /// The remedy.
    pub help: String,
}

impl OpenPair {
    /// Opens the files of these names.
    ///
    /// # Errors
    /// One of them cannot be opened.
    pub fn open(chain: &Path, key: &Path) -> Result<OpenPair, Unusable> {
        let open = |what: &str, path: &Path| File::open(path).map_err(|error| unreadable(what, path, error));
        Ok(OpenPair {
            chain: open(CHAIN, chain).map_err(Unusable::chain)?,
            key: open(KEY, key).map_err(Unusable::key)?,
        })
    }

    /// Returns whether these names still lead to the same files, whether or not they could be opened.
    pub fn is_of(&self, chain: &Path, key: &Path) -> bool {
        let is = |file: &File, path: &Path| {
            let (Ok(file), Ok(named)) = (file.metadata(), path.metadata()) else { return false };
            (file.dev(), file.ino()) == (named.dev(), named.ino())
        };
        is(&self.chain, chain) && is(&self.key, key)
    }

    /// Returns that of the descriptors that another process has sent.
    pub fn of(chain: OwnedFd, key: OwnedFd) -> OpenPair {
        OpenPair { chain: chain.into(), key: key.into() }
    }

    /// Returns the descriptors, for another process: of the chain, then of the key.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.chain.as_fd(), self.key.as_fd()]
    }

    /// Reads chain and key, which must belong together. The names are those of messages.
    ///
    /// # Errors
    /// One of them cannot be read, or is invalid.
    pub fn certify(&self, chain: &Path, key: &Path) -> Result<CertifiedKey, Unusable> {
        let text = contents(&self.chain).map_err(|error| Unusable::chain(unreadable(CHAIN, chain, error)))?;
        let certificates = parse_chain(&text, chain).map_err(Unusable::chain)?;
        let text = contents(&self.key).map_err(|error| Unusable::key(unreadable(KEY, key, error)))?;
        let mut private = parse_key(&text, key).map_err(Unusable::key)?;
        let certified = certify(certificates, &private);
        private.zeroize();
        certified.map_err(|error| Unusable::key(unusable(chain, key, error)))
    }
}

impl Unusable {
    fn chain((message, help): Problem) -> Unusable {
        Unusable { is_key: false, message, help }
    }

    /// Returns that of a key.
    pub fn key((message, help): Problem) -> Unusable {
        Unusable { is_key: true, message, help }
    }
}

/// What the two files have, in messages.
const CHAIN: &str = "certificate";
const KEY: &str = "private key";

/// Maximum bytes that are read of a file; a chain has some thousand.
const LENGTH_MAX: u64 = 16 << 20;

/// Reads a file, which may contain a key, from its beginning: other processes that have it open may have read it before.
fn contents(mut file: &File) -> io::Result<Zeroizing<Vec<u8>>> {
    // With room for all of it: a vector that grows would leave copies.
    let length = usize::try_from(file.metadata()?.len().min(LENGTH_MAX)).unwrap_or_default();
    let mut bytes = Zeroizing::new(Vec::with_capacity(length + 1024));
    // It fails for a pipe, which is at its beginning.
    let _ = file.rewind();
    file.take(LENGTH_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(what: &str, path: &Path, error: io::Error) -> Problem {
    pem_problem(what, path, &PemError::Io(error))
}

/// An error and its remedy.
pub type Problem = (String, String);

/// Reads all certificates of a file.
///
/// # Errors
/// It cannot be read, or contains none.
pub fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let text = File::open(path).and_then(|file| contents(&file));
    parse_chain(&text.map_err(|error| unreadable(CHAIN, path, error))?, path)
}

fn parse_chain(text: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let chain = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    match chain {
        Ok(chain) if chain.is_empty() => Err(not_there(path, CHAIN, "-----BEGIN CERTIFICATE-----")),
        Ok(chain) => Ok(chain),
        Err(error) => Err(pem_problem(CHAIN, path, &error)),
    }
}

fn parse_key(text: &[u8], path: &Path) -> Result<PrivateKeyDer<'static>, Problem> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        PemError::NoItemsFound => not_there(path, KEY, "-----BEGIN PRIVATE KEY-----"),
        error => pem_problem(KEY, path, &error),
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
        PemError::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => format!(
            "make it readable by the user that starts the server, and by `user` for reloads; see `namei -l {}`",
            path.display()
        ),
        PemError::Io(_) => "correct the path; relative paths start at the directory of the main file".to_owned(),
        _ => "the file must be PEM".to_owned(),
    }
}

/// Joins a chain and its key, which must belong together.
fn certify(chain: Vec<CertificateDer<'static>>, key: &PrivateKeyDer<'static>) -> Result<CertifiedKey, Error> {
    let certified = CertifiedKey::new(chain, any_supported_type(key)?);
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
