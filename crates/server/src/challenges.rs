//! The answers to ACME challenges, in memory that all loops and processes share.
//!
//! `acme` writes them here, and tells the ACME process only afterwards: the memory was mapped before the first fork, so
//! whichever loop or process accepts the CA's connection knows them. A loop takes the lock only for a request below
//! `/.well-known/acme-challenge/`, and for a client that offers `acme-tls/1` and nothing else.

use std::io;
use std::sync::Arc;

use amped_acme_protocol::Challenge;
use amped_core::shared_state::HttpChallenges;
use amped_sys::shared::{Guard, Outside, PATIENCE, Region};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::portable;

/// The current challenges, in memory that is inherited by forked processes.
#[derive(Debug)]
pub struct Challenges {
    region: Region,
}

/// Before the challenges: their length in bytes.
const HEADER: usize = 8;

/// Maximum bytes of the challenges of an order. One of tls-alpn-01 has less than a kilobyte, and an order at most 100.
const CHALLENGES_MAX: usize = 256 * 1024;

impl Challenges {
    /// Creates an empty set.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn new() -> io::Result<Challenges> {
        Ok(Challenges { region: Region::new(1, HEADER + CHALLENGES_MAX)? })
    }

    /// Replaces all challenges. Returns `false`, and has none afterwards, if they do not fit.
    pub fn publish(&self, challenges: &[Challenge]) -> bool {
        let bytes = if challenges.is_empty() { Vec::new() } else { portable::write(&challenges) };
        let Some(guard) = self.lock() else { return false };
        let written = guard.set_word(0, 0).and_then(|()| guard.write(HEADER, &bytes));
        written.and_then(|()| guard.set_word(0, bytes.len() as u64)).is_ok()
    }

    /// Returns the certificate that proves control of this name, with its key (RFC 8737).
    pub fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let wanted = name;
        self.all().into_iter().find_map(|challenge| match challenge {
            Challenge::TlsAlpn01 { name, certificate, key } if name.eq_ignore_ascii_case(wanted) => {
                let key = any_supported_type(&PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key))).ok()?;
                Some(Arc::new(CertifiedKey::new(vec![CertificateDer::from(certificate)], key)))
            }
            _ => None,
        })
    }

    fn all(&self) -> Vec<Challenge> {
        self.bytes().ok().and_then(|bytes| portable::read(&bytes).ok()).unwrap_or_default()
    }

    fn bytes(&self) -> Result<Vec<u8>, Outside> {
        let Some(guard) = self.lock() else { return Ok(Vec::new()) };
        let length = usize::try_from(guard.word(0)?).map_err(|_| Outside)?.min(CHALLENGES_MAX);
        let mut bytes = vec![0; length];
        guard.read(HEADER, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns `None` while a stopped process has the lock. Only the main process writes; if it has died, so will this one.
    fn lock(&self) -> Option<Guard<'_>> {
        let clear = |guard: &Guard<'_>| {
            let _ = guard.set_word(0, 0);
        };
        self.region.lock_mended(0, PATIENCE, clear)
    }
}

impl HttpChallenges for Challenges {
    fn key_authorization(&self, wanted: &[u8]) -> Option<Vec<u8>> {
        self.all().into_iter().find_map(|challenge| match challenge {
            Challenge::Http01 { token, key_authorization } if token.as_bytes() == wanted => {
                Some(key_authorization.into_bytes())
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(token: &str) -> Challenge {
        Challenge::Http01 { token: token.to_owned(), key_authorization: format!("{token}.key") }
    }

    #[test]
    fn published_challenges_replace_previous_ones() {
        let challenges = Challenges::new().unwrap();
        let known = |token: &str| challenges.key_authorization(token.as_bytes()).is_some();
        assert!(!known("a") && !known(""));
        assert!(challenges.publish(&[token("a"), token("b")]));
        assert_eq!(challenges.key_authorization(b"b").as_deref(), Some(&b"b.key"[..]));
        assert!(known("a") && !known("A"));
        assert!(challenges.publish(&[token("c")]));
        assert!(!known("a") && known("c"));
        assert!(challenges.publish(&[]));
        assert!(!known("c"));
    }

    #[test]
    fn certificate_is_found_by_name() {
        let challenges = Challenges::new().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let (name, certificate) = ("a.example".to_owned(), certificate.der().to_vec());
        assert!(challenges.publish(&[Challenge::TlsAlpn01 { name, certificate, key: key.serialize_der() }]));
        assert!(challenges.certificate("A.example").is_some());
        assert!(challenges.certificate("b.example").is_none());
    }

    #[test]
    fn challenges_that_do_not_fit_are_not_published() {
        let challenges = Challenges::new().unwrap();
        assert!(challenges.publish(&[token("a")]));
        assert!(!challenges.publish(&[token("b"), token(&"x".repeat(CHALLENGES_MAX))]));
        assert!(challenges.key_authorization(b"a").is_none() && challenges.key_authorization(b"b").is_none());
    }
}
