//! The files of the state directory: the account, and for each certificate its key and chain in one file.
//!
//! One file, because two cannot be replaced at once: after a crash between them the key would not belong to the
//! certificate. A file is written under another name, flushed to the disk and renamed, so that at any moment, and after
//! a power failure too, it is the old one or the new one as a whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instant_acme::CertificateIdentifier;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_cert::Certificate as X509;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::schedule::Period;

/// A certificate in a file.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) validity: Period,
    /// In lower case.
    pub(crate) names: Vec<String>,
    /// When the file was written, since 1970.
    pub(crate) written: Duration,
}

impl Stored {
    /// Reads the first certificate of a file.
    ///
    /// # Errors
    /// There is no file, or it has no valid certificate.
    pub(crate) fn read(path: &Path) -> io::Result<Stored> {
        let written = path.metadata()?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let der = CertificateDer::from_pem_file(path).map_err(io::Error::other)?;
        let parsed = X509::from_der(&der).map_err(io::Error::other)?;
        let [from, until] = {
            let validity = parsed.tbs_certificate().validity();
            [validity.not_before, validity.not_after].map(|time| time.to_unix_duration())
        };
        let names = parsed.tbs_certificate().get_extension::<SubjectAltName>().map_err(io::Error::other)?;
        let names = names.into_iter().flat_map(|(_, names)| names.0).filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
            _ => None,
        });
        let names = names.collect();
        Ok(Stored { der, validity: Period { from, until }, names, written })
    }

    /// Returns whether it has all these names.
    pub(crate) fn covers(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.names.iter().any(|own| own.eq_ignore_ascii_case(name)))
    }

    /// Returns its identifier for renewal information (RFC 9773, 4.1); `None` if it lacks the fields.
    pub(crate) fn identifier(&self) -> Option<CertificateIdentifier<'static>> {
        CertificateIdentifier::try_from(&self.der).ok().map(CertificateIdentifier::into_owned)
    }
}

/// Writes a file that only this user can read, as a whole or not at all.
///
/// # Errors
/// It cannot be written. The previous one then remains.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    // Left over by a crash, perhaps with another mode. If it cannot be removed, it cannot be created either.
    let _ = std::fs::remove_file(&name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&name, path)?;
    // The new name is on the disk only with its directory.
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Returns the wall clock, since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn file_is_replaced_and_private() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("a.pem");
        // Left over by a crash.
        std::fs::write(folder.path().join("a.pem.new"), "a part of a longer content").expect("written");
        for content in ["1", "22"] {
            write(&path, content.as_bytes()).expect("written");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), content);
            assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("read").count(), 1);
    }

    #[test]
    fn failed_write_leaves_previous_file() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("a.pem");
        write(&path, b"old").expect("written");
        // Nothing can be written under the other name.
        std::fs::create_dir(folder.path().join("a.pem.new")).expect("made");
        write(&path, b"new").expect_err("a directory has this name");
        assert_eq!(std::fs::read(&path).expect("read"), b"old");
    }

    #[test]
    fn stored_certificate_tells_names_and_validity() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("a.pem");
        assert_eq!(Stored::read(&path).expect_err("none").kind(), io::ErrorKind::NotFound);
        write(&path, b"no certificate").expect("written");
        Stored::read(&path).expect_err("no certificate");
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["a.example".to_owned(), "B.example".to_owned()]).expect("names");
        let certificate = params.self_signed(&key).expect("signed");
        write(&path, (key.serialize_pem() + &certificate.pem()).as_bytes()).expect("written");
        let stored = Stored::read(&path).expect("valid");
        let covers = |names: &[&str]| stored.covers(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert!(covers(&["A.example"]) && covers(&["a.example", "b.example"]));
        assert!(!covers(&["a.example", "c.example"]));
        assert!(stored.validity.from < stored.validity.until && stored.written <= now());
    }
}
