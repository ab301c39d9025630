//! A certificate with its private key and its OCSP response, read from files: at the start before root is dropped, at
//! each reload, and when the files have changed.
//!
//! Certificate and key are replaced together. The response has a life of its own: it is renewed every few days, perhaps
//! by a user who may not read the key, and is dropped when it expires.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::sign::CertifiedKey;
use x509_cert::certificate::Certificate as X509;
use x509_cert::der::Decode;

use crate::certified::Unusable;
use crate::keys::client::KeySource;
use crate::ocsp::{OcspResponse, UnusableResponse};
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
    source: KeySource,
    /// Its OCSP response, if a file is configured. The response in use is in `certified`.
    pub ocsp: Option<Staple>,
}

/// The OCSP response of a certificate.
#[derive(Clone, Debug)]
pub struct Staple {
    /// The file.
    pub path: PathBuf,
    /// Its state when it was read.
    file: FileStates<1>,
    /// When the response in use expires, since 1970; `None`: never, or there is none.
    pub next_update: Option<Duration>,
    /// Why there was no response to use when the certificate was read.
    pub problem: Option<UnusableResponse>,
}

/// What has become of a certificate whose files were checked.
#[derive(Debug)]
pub enum Renewal {
    /// It was replaced, and so was its OCSP response.
    Certificate,
    /// Its files have changed and cannot be used, so the current certificate stays in use.
    UnusableCertificate(Unusable),
    /// Its OCSP response was replaced.
    Response,
    /// The file of the response has changed and cannot be used, so the current response, if any, stays in use.
    UnusableResponse(UnusableResponse),
    /// Its OCSP response has expired, and is no longer used.
    ResponseExpired,
}

impl Renewal {
    /// Returns whether new sessions differ from earlier ones.
    pub fn is_change(&self) -> bool {
        matches!(self, Renewal::Certificate | Renewal::Response | Renewal::ResponseExpired)
    }
}

impl Certificate {
    /// Reads a chain and its key from `source`, and the OCSP response if there is a file of it. A response
    /// that cannot be used is no error: most clients do not need it. `now`: since 1970.
    ///
    /// # Errors
    /// Chain or key cannot be read, or are invalid.
    pub fn read(
        source: &KeySource,
        chain: &Path,
        key: &Path,
        ocsp: Option<&Path>,
        now: Duration,
    ) -> Result<Certificate, Unusable> {
        let files = FileStates::new([chain, key]);
        let mut certified = source.read(chain, key)?;
        let ocsp = ocsp.map(|path| {
            let file = FileStates::new([path]);
            let (response, problem) = match OcspResponse::read(path, &certified.cert, chain, now) {
                Ok(response) => (Some(response), None),
                Err(problem) => (None, Some(problem)),
            };
            let next_update = response.as_ref().and_then(|response| response.next_update);
            certified.ocsp = response.map(|response| response.der);
            Staple { path: path.to_owned(), file, next_update, problem }
        });
        let (chain, key, source) = (chain.to_owned(), key.to_owned(), source.clone());
        Ok(Certificate { certified: Arc::new(certified), chain, key, files, source, ocsp })
    }

    /// Returns when it ends, since 1970; `None` if it is malformed.
    pub fn end(&self) -> Option<Duration> {
        let own = X509::from_der(self.certified.cert.first()?).ok()?;
        Some(own.tbs_certificate().validity().not_after.to_unix_duration())
    }

    /// Reads the files again that have changed, and drops an OCSP response that has expired; `None`: nothing has changed.
    /// Unusable files are reported once. `now`: since 1970.
    pub fn reread(&mut self, when: Reread, now: Duration) -> Option<Renewal> {
        if self.files.have_changed([&self.chain, &self.key], when) {
            let ocsp = self.ocsp.as_ref().map(|ocsp| &*ocsp.path);
            match Certificate::read(&self.source, &self.chain, &self.key, ocsp, now) {
                Ok(new) if new.certified.cert != self.certified.cert => {
                    *self = new;
                    return Some(Renewal::Certificate);
                }
                Ok(_) => {}
                Err(unusable) => return Some(Renewal::UnusableCertificate(unusable)),
            }
        }
        self.reread_response(when, now)
    }

    fn reread_response(&mut self, when: Reread, now: Duration) -> Option<Renewal> {
        // The response of a certificate that is about to be replaced belongs to the next one.
        let ocsp = self.ocsp.as_mut().filter(|_| !self.files.are_changing())?;
        if ocsp.file.have_changed([&ocsp.path], when) {
            let read = OcspResponse::read(&ocsp.path, &self.certified.cert, &self.chain, now);
            let OcspResponse { der, next_update } = match read {
                Ok(response) => response,
                Err(unusable) => return Some(Renewal::UnusableResponse(unusable)),
            };
            ocsp.next_update = next_update;
            let is_same = self.certified.ocsp.as_ref() == Some(&der);
            self.staple(Some(der));
            return (!is_same).then_some(Renewal::Response);
        }
        if ocsp.next_update.is_none_or(|end| now < end) {
            return None;
        }
        ocsp.next_update = None;
        self.staple(None);
        Some(Renewal::ResponseExpired)
    }

    /// Sends this OCSP response, or none, in new sessions.
    fn staple(&mut self, response: Option<Vec<u8>>) {
        self.certified = Arc::new(CertifiedKey { ocsp: response, ..(*self.certified).clone() });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// See `tests/golden/ocsp/README.md`.
    const GOOD: &[u8] = include_bytes!("../../../tests/golden/ocsp/good.der");
    const EXPIRED: &[u8] = include_bytes!("../../../tests/golden/ocsp/expired.der");
    const SERIAL: [u8; 4] = [0x8a, 0x11, 0x0c, 0x5b];

    #[test]
    fn ocsp_response_is_used_until_it_expires() {
        // 2026-11-25, and 150 years later.
        let [now, late] = [20_782, 75_569].map(|days| Duration::from_secs(days * 86_400));
        let folder = tempfile::tempdir().unwrap();
        let [chain, key, ocsp] = ["a.pem", "a.key", "a.ocsp"].map(|name| folder.path().join(name));
        // By renaming, so that the inode changes: the time of modification may not, in a test.
        let replace = |path: &Path, content: &[u8]| {
            fs::write(folder.path().join("new"), content).unwrap();
            fs::rename(folder.path().join("new"), path).unwrap();
        };
        let issue = |serial: &[u8]| {
            let pair = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
            params.serial_number = Some(serial.to_vec().into());
            replace(&chain, params.self_signed(&pair).unwrap().pem().as_bytes());
            replace(&key, pair.serialize_pem().as_bytes());
        };
        issue(&SERIAL);
        let mut certificate = Certificate::read(&KeySource::Files, &chain, &key, Some(&ocsp), now).unwrap();
        let problem = certificate.ocsp.as_ref().and_then(|ocsp| ocsp.problem.as_ref()).map(|problem| &*problem.message);
        assert!(problem.is_some_and(|message| message.starts_with("cannot read the OCSP response")), "{problem:?}");
        let check = |certificate: &mut Certificate, now: Duration, says: &str, response: Option<&[u8]>| {
            let renewal = format!("{:?}", certificate.reread(Reread::Now, now));
            assert!(renewal.contains(says), "{says} is not in {renewal}");
            assert_eq!(certificate.certified.ocsp.as_deref(), response, "{says}");
            assert!(certificate.reread(Reread::Now, now).is_none(), "{says}, again");
        };
        replace(&ocsp, GOOD);
        check(&mut certificate, now, "Response", Some(GOOD));
        replace(&ocsp, EXPIRED);
        check(&mut certificate, now, "UnusableResponse", Some(GOOD));
        check(&mut certificate, late, "ResponseExpired", None);
        replace(&ocsp, GOOD);
        check(&mut certificate, now, "Response", Some(GOOD));
        // The same certificate in a new file.
        replace(&chain, &fs::read(&chain).unwrap());
        check(&mut certificate, now, "None", Some(GOOD));
        // The response is about the old certificate.
        issue(&[1]);
        check(&mut certificate, now, "Certificate", None);
        issue(&SERIAL);
        check(&mut certificate, now, "Certificate", Some(GOOD));
        // A key that cannot be used delays no response.
        replace(&key, b"");
        check(&mut certificate, now, "UnusableCertificate", Some(GOOD));
        check(&mut certificate, late, "ResponseExpired", None);
    }
}
