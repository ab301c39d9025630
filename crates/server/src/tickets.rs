//! Session tickets (RFC 8446, 4.6.1; RFC 5077): a client that comes again shows one, and the server saves a signature.
//!
//! A ticket is the state of the session, encrypted with a key that only the server has. All loops and processes must
//! have the same keys, also after hours and after a reload, or a client would be resumed only where it was before. So
//! there is one master key, made before the first process starts, and each key is derived from it and the time: from
//! that alone every process knows the keys of this period and the one before.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;

/// Seconds after which another key is used.
const PERIOD: u64 = 6 * 60 * 60;

/// The master key of all tickets.
pub struct Tickets {
    master: Prk,
}

impl Tickets {
    /// Makes a new master key.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn new() -> Result<Tickets, Unspecified> {
        let mut bytes = [0; 32];
        rand::fill(&mut bytes)?;
        Ok(Tickets { master: Prk::new_less_safe(HKDF_SHA256, &bytes) })
    }

    /// Returns the key of a period.
    fn key(&self, period: u64) -> Result<RandomizedNonceKey, Unspecified> {
        let mut key = [0; 32];
        self.master.expand(&[b"amped session tickets", &period.to_be_bytes()], HKDF_SHA256)?.fill(&mut key)?;
        RandomizedNonceKey::new(&AES_256_GCM, &key)
    }

    /// Returns period, nonce and encrypted state.
    fn seal(&self, now: u64, plain: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let period = now / PERIOD;
        let mut sealed = plain.to_vec();
        let nonce = self.key(period)?.seal_in_place_append_tag(Aad::empty(), &mut sealed)?;
        Ok([&period.to_be_bytes()[..], nonce.as_ref(), &sealed].concat())
    }

    fn open(&self, now: u64, ticket: &[u8]) -> Option<Vec<u8>> {
        let (period, rest) = ticket.split_first_chunk()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let period = u64::from_be_bytes(*period);
        let age = (now / PERIOD).checked_sub(period)?;
        if age > 1 {
            return None;
        }
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = self.key(period).ok()?.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?.len();
        sealed.truncate(length);
        Some(sealed)
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    /// A ticket is valid at least for the rest of its period and the next one.
    fn lifetime(&self) -> u32 {
        PERIOD as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(unix_time()?, plain).ok()
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.open(unix_time()?, ticket)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

fn unix_time() -> Option<u64> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_is_valid_in_its_period_and_the_next() {
        let tickets = Tickets::new().expect("random bytes");
        let now = 1_000 * PERIOD;
        let ticket = tickets.seal(now, b"state").expect("sealed");
        let open = |now: u64| tickets.open(now, &ticket);
        assert_eq!(open(now), Some(b"state".to_vec()));
        assert_eq!(open(now + 2 * PERIOD - 1), Some(b"state".to_vec()));
        assert_eq!(open(now + 2 * PERIOD), None);
        assert_eq!(open(now - 1), None);
        // Another server's, and damaged ones.
        assert_eq!(Tickets::new().expect("random bytes").open(now, &ticket), None);
        for at in 0..ticket.len() {
            let mut damaged = ticket.clone();
            damaged[at] ^= 1;
            assert_eq!(tickets.open(now, &damaged), None, "{at}");
            assert_eq!(tickets.open(now, &ticket[..at]), None, "{at}");
        }
        assert_ne!(tickets.seal(now, b"state").expect("sealed"), ticket);
    }
}
