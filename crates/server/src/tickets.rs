//! Session tickets (RFC 8446, 4.6.1; RFC 5077): a returning client presents one, which saves the server a signature.
//!
//! A ticket is the state of the session, encrypted with a key that only the server has. All loops and processes must
//! have the same keys, even after hours and after a reload; otherwise a session could be resumed only by the worker
//! that began it. So one secret is generated before the first process starts. The key of the first period and the
//! secret of the next one are derived from it, and so on: every process derives the same keys at the same time, without
//! communication.
//!
//! A secret is wiped once the next one is derived, and cannot be recovered from it. Keys stolen from memory decrypt the
//! tickets of this period, the previous one, and later ones, but no older ones.

use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

/// Seconds after which another key is used.
const PERIOD: u64 = 6 * 60 * 60;

/// The keys of tickets.
pub struct Tickets {
    /// The start of the first period, by a clock that all processes share.
    start: Instant,
    chain: RwLock<Chain>,
}

/// The keys of one period, and the secret of all later ones.
struct Chain {
    period: u64,
    key: TicketKey,
    previous: Option<TicketKey>,
    next: Prk,
}

struct TicketKey {
    /// Identifies the key that a ticket was encrypted with. Derived like the key, so it discloses nothing.
    name: [u8; NAME],
    key: RandomizedNonceKey,
}

/// Bytes of a key's name.
const NAME: usize = 16;

impl Tickets {
    /// Generates a new secret.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn new() -> Result<Tickets, Unspecified> {
        let mut secret = Zeroizing::new([0; 32]);
        rand::fill(&mut *secret)?;
        let (key, next) = derive(&Prk::new_less_safe(HKDF_SHA256, &*secret))?;
        Ok(Tickets { start: Instant::now(), chain: RwLock::new(Chain { period: 0, key, previous: None, next }) })
    }

    /// Wipes expired keys; returns whether there were any. Any use of the keys does this too, but a process without
    /// clients would keep them.
    pub fn wipe_expired(&self) -> bool {
        self.advance(self.age())
    }

    /// Returns the time since the first period began.
    fn age(&self) -> Duration {
        self.start.elapsed()
    }

    /// Advances to the period of this age; returns whether it changed. A clock that runs backwards restores no key.
    fn advance(&self, age: Duration) -> bool {
        let period = age.as_secs() / PERIOD;
        if self.chain().period >= period {
            return false;
        }
        let mut chain = self.chain.write().unwrap_or_else(PoisonError::into_inner);
        while chain.period < period {
            // It fails only for secrets of another length.
            let Ok((key, next)) = derive(&chain.next) else { return false };
            chain.previous = Some(std::mem::replace(&mut chain.key, key));
            chain.next = next;
            chain.period += 1;
        }
        true
    }

    fn chain(&self) -> RwLockReadGuard<'_, Chain> {
        self.chain.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the key's name, the nonce and the encrypted state.
    fn seal(&self, age: Duration, plain: &[u8]) -> Result<Vec<u8>, Unspecified> {
        self.advance(age);
        let chain = self.chain();
        let TicketKey { name, key } = &chain.key;
        let mut sealed = plain.to_vec();
        let nonce = key.seal_in_place_append_tag(Aad::empty(), &mut sealed)?;
        Ok([name, &nonce.as_ref()[..], &sealed].concat())
    }

    fn open(&self, age: Duration, ticket: &[u8]) -> Option<Vec<u8>> {
        self.advance(age);
        let (name, rest) = ticket.split_first_chunk()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let chain = self.chain();
        let mut keys = [Some(&chain.key), chain.previous.as_ref()].into_iter().flatten();
        let TicketKey { key, .. } = keys.find(|key| key.name == *name)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = key.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?.len();
        sealed.truncate(length);
        Some(sealed)
    }
}

/// Derives the key of a period from its secret, and the secret of the next period.
fn derive(secret: &Prk) -> Result<(TicketKey, Prk), Unspecified> {
    let mut name = [0; NAME];
    secret.expand(&[b"amped ticket name"], Bytes(NAME))?.fill(&mut name)?;
    let mut key = Zeroizing::new([0; 32]);
    secret.expand(&[b"amped ticket key"], Bytes(key.len()))?.fill(&mut *key)?;
    let key = RandomizedNonceKey::new(&AES_256_GCM, &*key)?;
    let next = Prk::from(secret.expand(&[b"amped ticket secret"], HKDF_SHA256)?);
    Ok((TicketKey { name, key }, next))
}

/// A length of derived bytes.
struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
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
        self.seal(self.age(), plain).ok()
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.open(self.age(), ticket)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(periods: u64, seconds: u64) -> Duration {
        Duration::from_secs(periods * PERIOD + seconds)
    }

    /// Tickets of the same secret, as another process has them.
    fn pair() -> (Tickets, Tickets) {
        let secret = Prk::new_less_safe(HKDF_SHA256, &[1; 32]);
        let start = Instant::now();
        let make = || {
            let (key, next) = derive(&secret).expect("derived");
            Tickets { start, chain: RwLock::new(Chain { period: 0, key, previous: None, next }) }
        };
        (make(), make())
    }

    #[test]
    fn ticket_is_valid_in_its_period_and_the_next() {
        let tickets = Tickets::new().expect("random bytes");
        let ticket = tickets.seal(at(1_000, 0), b"state").expect("sealed");
        let open = |age: Duration| tickets.open(age, &ticket);
        assert_eq!(open(at(1_000, 0)), Some(b"state".to_vec()));
        assert_eq!(open(at(1_001, PERIOD - 1)), Some(b"state".to_vec()));
        // Another server's, and damaged ones.
        assert_eq!(Tickets::new().expect("random bytes").open(at(1_001, 0), &ticket), None);
        for place in 0..ticket.len() {
            let mut damaged = ticket.clone();
            damaged[place] ^= 1;
            assert_eq!(tickets.open(at(1_001, 0), &damaged), None, "{place}");
            assert_eq!(tickets.open(at(1_001, 0), &ticket[..place]), None, "{place}");
        }
        assert_ne!(tickets.seal(at(1_001, 0), b"state").expect("sealed"), ticket);
        assert_eq!(open(at(1_002, 0)), None);
    }

    #[test]
    fn keys_in_memory_do_not_open_older_tickets() {
        let tickets = Tickets::new().expect("random bytes");
        let ticket = tickets.seal(at(0, 0), b"state").expect("sealed");
        assert!(!tickets.advance(at(0, PERIOD - 1)));
        assert!(tickets.advance(at(2, 0)));
        // An attacker who has the keys can claim any time.
        assert_eq!(tickets.open(at(0, 0), &ticket), None);
        assert!(!tickets.wipe_expired());
    }

    #[test]
    fn processes_derive_the_same_keys() {
        let (one, other) = pair();
        for age in [at(0, 5), at(3, 0), at(4, 7), at(40, 0)] {
            let ticket = one.seal(age, b"state").expect("sealed");
            assert_eq!(other.open(age, &ticket), Some(b"state".to_vec()), "{age:?}");
        }
    }
}
