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
//!
//! Hosts behind one address share a secret in a file instead ([`TicketSecret`]). The key of a period is derived from it
//! and from the number of the period since 1970, so that all hosts have the same key at the same time, also after a
//! restart. Such a secret is never wiped: it decrypts all tickets that were ever encrypted with its keys. A new file
//! replaces it; tickets of the old one stay valid as long as all others.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use crate::clock;
use crate::reread::{FileStates, Reread};
use crate::say;

/// Seconds after which another key is used.
const PERIOD: u64 = 6 * 60 * 60;

/// The keys of tickets.
pub struct Tickets {
    ring: Arc<RwLock<KeyRing>>,
    /// A ticket can be decrypted only by the keys that are bound to the same.
    bound_to: Box<[u8]>,
}

/// The keys of one period, and the origin of later ones.
struct KeyRing {
    period: u64,
    /// The first one encrypts, all decrypt. Never empty.
    keys: Vec<TicketKey>,
    origin: Origin,
}

#[expect(clippy::large_enum_variant, reason = "there is one for all connections")]
enum Origin {
    /// A secret of this server; `next` is that of all later periods. Periods count from `start`, by a clock that all
    /// processes share.
    Own { start: Instant, next: Prk },
    /// A secret that several hosts share, and the one that it has replaced, with the last period of its tickets. Periods count
    /// from 1970.
    Shared { secret: TicketSecret, replaced: Option<(TicketSecret, u64)> },
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
    pub fn own() -> Result<Tickets, Unspecified> {
        let mut secret = Zeroizing::new([0; 32]);
        rand::fill(&mut *secret)?;
        Tickets::of(&Prk::new_less_safe(HKDF_SHA256, &*secret), Instant::now())
    }

    /// The tickets of this secret, from the first period on.
    fn of(secret: &Prk, start: Instant) -> Result<Tickets, Unspecified> {
        let (key, next) = (TicketKey::derive(secret, &[])?, next(secret)?);
        Ok(Tickets::with(KeyRing { period: 0, keys: vec![key], origin: Origin::Own { start, next } }))
    }

    fn with(ring: KeyRing) -> Tickets {
        Tickets { ring: Arc::new(RwLock::new(ring)), bound_to: Box::default() }
    }

    /// Returns the same keys, bound to this, such as the CRLs by which clients were verified: tickets that are not bound
    /// to the same cannot be decrypted. So all tickets end at once, in all processes, and no key changes.
    pub fn bound_to(&self, this: &[u8]) -> Tickets {
        Tickets { ring: Arc::clone(&self.ring), bound_to: this.into() }
    }

    /// Uses a secret from a file. Tickets of the secret from a file that `old` uses stay valid. `time`: since 1970.
    ///
    /// # Errors
    /// When no keys can be derived.
    pub fn shared(secret: &TicketSecret, old: Option<&Tickets>, time: Duration) -> Result<Tickets, Unspecified> {
        let period = period(time);
        let replaced = old.and_then(|old| match &old.ring().origin {
            Origin::Own { .. } => None,
            Origin::Shared { secret: old, replaced } if old.id == secret.id => replaced.clone(),
            Origin::Shared { secret: old, .. } => Some((old.clone(), period + 1)),
        });
        let keys = shared_keys(secret, replaced.as_ref(), period)?;
        Ok(Tickets::with(KeyRing { period, keys, origin: Origin::Shared { secret: secret.clone(), replaced } }))
    }

    /// Returns whether the secret is from a file.
    pub fn is_shared(&self) -> bool {
        matches!(self.ring().origin, Origin::Shared { .. })
    }

    /// Wipes expired keys, and reads the secret again if its file has changed; returns whether anything changed. Any use
    /// of the keys wipes expired ones too, but a process without clients would keep them. Waits for the disk.
    pub fn refresh(&self, when: Reread) -> bool {
        let time = self.time();
        let is_new = self.reread(when, time);
        self.advance(time) || is_new
    }

    /// Reads the secret again if its file has changed; returns whether there is a new one. No handshake waits for the
    /// file.
    fn reread(&self, when: Reread, time: Duration) -> bool {
        let mut current = match &self.ring().origin {
            Origin::Own { .. } => return false,
            Origin::Shared { secret, .. } => secret.clone(),
        };
        let is_due = current.file.have_changed([&current.path], when);
        let new = is_due.then(|| TicketSecret::read(&current.path)).transpose().unwrap_or_else(|unusable| {
            let UnusableSecret { message, help } = unusable;
            say!("{message}: {help}; keeping the ticket secret in use");
            None
        });
        let is_new = new.as_ref().is_some_and(|new| new.id != current.id);
        if is_new && when == Reread::WhenSettled {
            say!("new ticket secret: {}", current.path.display());
        }
        let mut ring = self.ring_mut();
        let Origin::Shared { secret, replaced } = &mut ring.origin else { return false };
        if let Some(new) = new.filter(|_| is_new) {
            *replaced = Some((std::mem::replace(secret, new), period(time) + 1));
        } else {
            secret.file = current.file;
        }
        is_new && ring.derive_shared(period(time)).is_ok()
    }

    /// Returns the time by which periods are counted.
    fn time(&self) -> Duration {
        match self.ring().origin {
            Origin::Own { start, .. } => start.elapsed(),
            Origin::Shared { .. } => clock::since_1970(),
        }
    }

    /// Advances to the period of this time; returns whether it changed. A clock that runs backwards restores no key, unless
    /// it can be derived from the secret of a file.
    fn advance(&self, time: Duration) -> bool {
        let period = period(time);
        if self.ring().is_at(period) {
            return false;
        }
        let mut ring = self.ring_mut();
        // It fails only for secrets of another length.
        let advanced = match ring.origin {
            Origin::Own { .. } => ring.ratchet(period),
            Origin::Shared { .. } => ring.derive_shared(period),
        };
        advanced.is_ok()
    }

    fn ring(&self) -> RwLockReadGuard<'_, KeyRing> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring_mut(&self) -> RwLockWriteGuard<'_, KeyRing> {
        self.ring.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the key's name, the nonce and the encrypted state.
    fn seal(&self, time: Duration, plain: &[u8]) -> Result<Vec<u8>, Unspecified> {
        self.advance(time);
        let ring = self.ring();
        let TicketKey { name, key } = ring.keys.first().ok_or(Unspecified)?;
        let mut sealed = plain.to_vec();
        let nonce = key.seal_in_place_append_tag(Aad::from(&self.bound_to), &mut sealed)?;
        Ok([name, &nonce.as_ref()[..], &sealed].concat())
    }

    fn open(&self, time: Duration, ticket: &[u8]) -> Option<Vec<u8>> {
        self.advance(time);
        let (name, rest) = ticket.split_first_chunk()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let ring = self.ring();
        let TicketKey { key, .. } = ring.keys.iter().find(|key| key.name == *name)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = key.open_in_place(nonce, Aad::from(&self.bound_to), &mut sealed).ok()?.len();
        sealed.truncate(length);
        Some(sealed)
    }
}

/// Returns the number of the period of this time.
fn period(time: Duration) -> u64 {
    time.as_secs() / PERIOD
}

impl KeyRing {
    /// Returns whether the keys are those of this period.
    fn is_at(&self, period: u64) -> bool {
        match self.origin {
            Origin::Own { .. } => self.period >= period,
            Origin::Shared { .. } => self.period == period,
        }
    }

    /// Derives the keys of this period and the previous one from the server's own secret, and wipes older ones.
    fn ratchet(&mut self, period: u64) -> Result<(), Unspecified> {
        let Origin::Own { next: secret, .. } = &mut self.origin else { return Ok(()) };
        while self.period < period {
            let key = TicketKey::derive(secret, &[])?;
            *secret = next(secret)?;
            self.keys.insert(0, key);
            self.keys.truncate(2);
            self.period += 1;
        }
        Ok(())
    }

    /// Derives the keys of this period from the secret of a file, and forgets a replaced secret whose tickets have expired.
    fn derive_shared(&mut self, period: u64) -> Result<(), Unspecified> {
        let Origin::Shared { secret, replaced } = &mut self.origin else { return Ok(()) };
        replaced.take_if(|(_, last)| *last < period);
        self.keys = shared_keys(secret, replaced.as_ref(), period)?;
        self.period = period;
        Ok(())
    }
}

/// Derives the secret of the next period from that of a period.
fn next(secret: &Prk) -> Result<Prk, Unspecified> {
    Ok(Prk::from(secret.expand(&[b"amped ticket secret"], HKDF_SHA256)?))
}

/// Derives the keys of this period, and for tickets of hosts whose clock differs those of its neighbours.
fn shared_keys(
    secret: &TicketSecret,
    replaced: Option<&(TicketSecret, u64)>,
    period: u64,
) -> Result<Vec<TicketKey>, Unspecified> {
    let secrets = [Some(secret), replaced.map(|(secret, _)| secret)];
    let periods = [period, period.saturating_sub(1), period + 1];
    let keys = secrets.into_iter().flatten().flat_map(|secret| periods.map(|period| secret.key(period)));
    keys.collect()
}

impl TicketKey {
    /// Derives the key of a period from a secret and `context`, which is empty or the number of the period.
    fn derive(secret: &Prk, context: &[u8]) -> Result<TicketKey, Unspecified> {
        let mut name = [0; NAME];
        secret.expand(&[b"amped ticket name", context], Bytes(NAME))?.fill(&mut name)?;
        let mut key = Zeroizing::new([0; 32]);
        secret.expand(&[b"amped ticket key", context], Bytes(key.len()))?.fill(&mut *key)?;
        Ok(TicketKey { name, key: RandomizedNonceKey::new(&AES_256_GCM, &*key)? })
    }
}

/// A secret in a file, which several hosts share. It is wiped from memory when it is dropped.
#[derive(Clone)]
pub struct TicketSecret {
    path: PathBuf,
    /// The state of the file when it was read.
    file: FileStates<1>,
    secret: Prk,
    /// Identifies the content of the file, and discloses nothing.
    id: [u8; NAME],
}

/// Why a file cannot be used as a secret.
#[derive(Debug)]
pub struct UnusableSecret {
    /// The error.
    pub message: String,
    /// The remedy.
    pub help: String,
}

/// Minimum length of a secret in bytes: that of the keys.
const SECRET_BYTES_MIN: usize = 32;

/// Maximum length of a secret in bytes. A longer file is another one, named by mistake, or endless.
const SECRET_BYTES_MAX: usize = 1024;

impl TicketSecret {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or is not a secret.
    pub fn read(path: &Path) -> Result<TicketSecret, UnusableSecret> {
        let shown = path.display();
        let file = FileStates::new([path]);
        // Room for all that is read, so that no copy is left behind when it grows.
        let mut bytes = Zeroizing::new(Vec::with_capacity(2 * SECRET_BYTES_MAX));
        let read = File::open(path).and_then(|file| file.take(SECRET_BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
        let create = format!("create it with `openssl rand -out {shown} 48`, and copy it to all hosts");
        let problem = match read {
            Err(error) => {
                let help = match error.kind() {
                    io::ErrorKind::PermissionDenied => format!(
                        "make it readable by the user that starts the server, and by `user` for renewals; see `namei -l {shown}`"
                    ),
                    _ => create,
                };
                return Err(UnusableSecret {
                    message: format!("cannot read the ticket secret {shown}: {error}"),
                    help,
                });
            }
            Ok(length) if length < SECRET_BYTES_MIN => {
                format!("has {length} bytes, fewer than {SECRET_BYTES_MIN}")
            }
            Ok(length) if length > SECRET_BYTES_MAX => format!("has more than {SECRET_BYTES_MAX} bytes"),
            Ok(_) => {
                let secret = Salt::new(HKDF_SHA256, b"amped ticket secret").extract(&bytes);
                let mut id = [0; NAME];
                let derived = secret.expand(&[b"amped ticket id"], Bytes(NAME)).and_then(|key| key.fill(&mut id));
                match derived {
                    Ok(()) => return Ok(TicketSecret { path: path.to_owned(), file, secret, id }),
                    Err(Unspecified) => "yields no keys".to_owned(),
                }
            }
        };
        Err(UnusableSecret { message: format!("the ticket secret {shown} {problem}"), help: create })
    }

    /// Derives the key of this period since 1970.
    fn key(&self, period: u64) -> Result<TicketKey, Unspecified> {
        TicketKey::derive(&self.secret, &period.to_be_bytes())
    }
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketSecret").field("path", &self.path).finish_non_exhaustive()
    }
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
        self.seal(self.time(), plain).ok()
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.open(self.time(), ticket)
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
        let make = || Tickets::of(&secret, start).expect("derived");
        (make(), make())
    }

    #[test]
    fn ticket_is_valid_in_its_period_and_the_next() {
        let tickets = Tickets::own().expect("random bytes");
        let ticket = tickets.seal(at(1_000, 0), b"state").expect("sealed");
        let open = |age: Duration| tickets.open(age, &ticket);
        assert_eq!(open(at(1_000, 0)), Some(b"state".to_vec()));
        assert_eq!(open(at(1_001, PERIOD - 1)), Some(b"state".to_vec()));
        // Another server's, and damaged ones.
        assert_eq!(Tickets::own().expect("random bytes").open(at(1_001, 0), &ticket), None);
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
        let tickets = Tickets::own().expect("random bytes");
        let ticket = tickets.seal(at(0, 0), b"state").expect("sealed");
        assert!(!tickets.advance(at(0, PERIOD - 1)));
        assert!(tickets.advance(at(2, 0)));
        // An attacker who has the keys can claim any time.
        assert_eq!(tickets.open(at(0, 0), &ticket), None);
        assert!(!tickets.refresh(Reread::Now));
    }

    #[test]
    fn ticket_is_bound_to_crls() {
        let (one, other) = pair();
        let (old, new) = (one.bound_to(b"old"), one.bound_to(b"new"));
        let ticket = old.seal(at(0, 0), b"state").expect("sealed");
        assert_eq!(old.open(at(1, 0), &ticket), Some(b"state".to_vec()));
        assert_eq!(other.bound_to(b"old").open(at(1, 0), &ticket), Some(b"state".to_vec()));
        assert!(new.open(at(1, 0), &ticket).is_none() && one.open(at(1, 0), &ticket).is_none());
        // The keys are the same, and expire for all.
        assert!(one.advance(at(3, 0)));
        assert!(!old.advance(at(3, 0)) && !new.advance(at(3, 0)));
        assert_eq!(old.open(at(3, 0), &ticket), None);
    }

    #[test]
    fn processes_derive_the_same_keys() {
        let (one, other) = pair();
        for age in [at(0, 5), at(3, 0), at(4, 7), at(40, 0)] {
            let ticket = one.seal(age, b"state").expect("sealed");
            assert_eq!(other.open(age, &ticket), Some(b"state".to_vec()), "{age:?}");
        }
    }

    /// A file with this secret, as another host has it.
    fn file(folder: &tempfile::TempDir, name: &str, content: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        // By renaming, so that the inode changes: the time of modification may not, in a test.
        std::fs::write(folder.path().join("new"), content).unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        path
    }

    fn host(path: &Path, time: Duration) -> Tickets {
        Tickets::shared(&TicketSecret::read(path).expect("a secret"), None, time).expect("derived")
    }

    #[test]
    fn hosts_with_the_same_secret_open_tickets_of_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let one = host(&file(&folder, "one", &[1; 48]), at(80_000, 5));
        let ticket = one.seal(at(80_000, 5), b"state").expect("sealed");
        // It starts later.
        let other = host(&file(&folder, "other", &[1; 48]), at(80_001, 0));
        for time in [at(80_001, PERIOD - 1), at(80_000, 7), at(79_999, PERIOD - 1)] {
            assert_eq!(other.open(time, &ticket), Some(b"state".to_vec()), "{time:?}");
        }
        assert_eq!(other.open(at(80_002, 0), &ticket), None);
        assert_ne!(other.seal(at(80_000, 5), b"state").expect("sealed"), ticket);
        let stranger = host(&file(&folder, "stranger", &[2; 48]), at(80_000, 5));
        assert_eq!(stranger.open(at(80_000, 5), &ticket), None);
        assert_eq!(Tickets::own().expect("random bytes").open(at(0, 5), &ticket), None);
    }

    #[test]
    fn replaced_secret_opens_tickets_until_they_expire() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder, "secret", &[1; 48]);
        let now = at(80_000, 5);
        let renewed = host(&path, now);
        let ticket = renewed.seal(now, b"state").expect("sealed");
        assert!(!renewed.reread(Reread::Now, now));
        file(&folder, "secret", &[2; 32]);
        assert!(renewed.reread(Reread::Now, now));
        assert!(!renewed.reread(Reread::Now, now));
        // A host that starts with the new secret, and one whose configuration was reloaded.
        let started = host(&path, now);
        let reloaded = Tickets::shared(&TicketSecret::read(&path).expect("a secret"), Some(&renewed), now);
        let reloaded = reloaded.expect("derived");
        let new = renewed.seal(now, b"new").expect("sealed");
        for (tickets, opens_old) in [(&renewed, true), (&started, false), (&reloaded, true)] {
            assert_eq!(tickets.open(now, &new), Some(b"new".to_vec()));
            for (time, is_valid) in [(now, true), (at(80_001, PERIOD - 1), true), (at(80_002, 0), false)] {
                assert_eq!(tickets.open(time, &ticket).is_some(), opens_old && is_valid, "{time:?}");
            }
        }
        // The old secret is wiped, so a clock that is set back does not restore it.
        assert_eq!(renewed.open(now, &ticket), None);
        // A reload with another file.
        let other = TicketSecret::read(&file(&folder, "other", &[3; 48])).expect("a secret");
        let moved = Tickets::shared(&other, Some(&renewed), now).expect("derived");
        assert_eq!(moved.open(now, &new), Some(b"new".to_vec()));
    }

    #[test]
    fn unusable_secret_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder, "secret", &[1; 48]);
        let now = at(80_000, 5);
        let tickets = host(&path, now);
        let ticket = tickets.seal(now, b"state").expect("sealed");
        for content in [&[1; SECRET_BYTES_MIN - 1][..], &[1; SECRET_BYTES_MAX + 1]] {
            file(&folder, "secret", content);
            let UnusableSecret { message, help } = TicketSecret::read(&path).expect_err("its length");
            assert!(message.contains(" bytes") && help.contains("openssl rand -out"), "{message}: {help}");
            assert!(!tickets.reread(Reread::Now, now));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(!tickets.reread(Reread::Now, now));
        assert_eq!(tickets.open(now, &ticket), Some(b"state".to_vec()));
    }
}
