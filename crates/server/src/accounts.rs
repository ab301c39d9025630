//! Who has which password: files that are read by the disk side, and what was verified a while ago.
//!
//! To verify a password takes tens of milliseconds, on purpose, so a helper does it, and a pair that was good is remembered
//! for a few minutes: by a keyed hash of it, with a key that is drawn at the start and never leaves the process, so that
//! nothing in memory tells the password. The state of the file is part of what is hashed: whoever changes it changes what
//! every remembered pair is remembered by.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use amped_core::auth::Accounts;
use amped_core::file::FileVersion;
use amped_http::auth::Credentials;
use amped_sys::file::{self, Patience};
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};

use crate::disk;
use crate::say;

/// A pair that was good is good for so long without being verified again.
const REMEMBERED: Duration = Duration::from_secs(300);

/// Pairs that are remembered; beyond it those that are too old go, and if there are none, all.
const PAIRS_MAX: usize = 4096;

/// The longest file that is read.
const BYTES_MAX: u64 = 16 << 20;

/// The lists of accounts of a configuration, in their order.
#[derive(Default)]
pub struct AccountFiles {
    paths: Vec<PathBuf>,
    /// A file is looked at again after this time.
    revalidate: Duration,
    key: [u8; 32],
    state: Mutex<State>,
    /// One at a time: a stranger who tries passwords gets no more than one core.
    verifying: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// By the number of the file.
    lists: HashMap<u16, Listed>,
    /// When each was verified.
    pairs: HashMap<[u8; 32], Instant>,
}

/// A file as it was when it was last looked at.
#[derive(Clone, Debug)]
struct Listed {
    checked: Instant,
    version: FileVersion,
    accounts: Arc<Accounts>,
}

/// Without the key.
impl fmt::Debug for AccountFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccountFiles").field(&self.paths).finish()
    }
}

impl AccountFiles {
    /// These files, which are read when they are needed.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn new(paths: Vec<PathBuf>, revalidate: Duration) -> io::Result<AccountFiles> {
        let mut key = [0; 32];
        if !paths.is_empty() {
            File::open("/dev/urandom")?.read_exact(&mut key)?;
        }
        Ok(AccountFiles { paths, revalidate, key, state: Mutex::default(), verifying: Mutex::default() })
    }

    /// Where they lie.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Whether these are somebody's credentials. `Ok(None)`: with [`Patience::Now`], that has to be waited for.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn verify(&self, list: u16, credentials: &Credentials, patience: Patience) -> io::Result<Option<bool>> {
        let known = self.lock().lists.get(&list).filter(|known| known.checked.elapsed() < self.revalidate).cloned();
        let Listed { version, accounts, .. } = match (known, patience) {
            (Some(known), _) => known,
            (None, Patience::Now) => return Ok(None),
            (None, Patience::Wait) => self.look(list)?,
        };
        let pair = self.hash(list, &version, credentials);
        if self.is_remembered(&pair) {
            return Ok(Some(true));
        }
        if patience == Patience::Now {
            return Ok(None);
        }
        let _one = self.verifying.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever was before may have asked the same.
        if self.is_remembered(&pair) {
            return Ok(Some(true));
        }
        let hash = accounts.hash_of(credentials.name());
        let good = hash.or(accounts.any_hash()).is_some_and(|hash| is_of(credentials.password(), hash));
        let good = good && hash.is_some();
        if good {
            let mut state = self.lock();
            if state.pairs.len() >= PAIRS_MAX {
                state.pairs.retain(|_, since| since.elapsed() < REMEMBERED);
            }
            if state.pairs.len() >= PAIRS_MAX {
                state.pairs.clear();
            }
            state.pairs.insert(pair, Instant::now());
        }
        Ok(Some(good))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_remembered(&self, pair: &[u8; 32]) -> bool {
        self.lock().pairs.get(pair).is_some_and(|since| since.elapsed() < REMEMBERED)
    }

    /// Looks at a file, and reads it if it is another one than it was.
    fn look(&self, list: u16) -> io::Result<Listed> {
        let path = self.paths.get(usize::from(list)).ok_or(io::ErrorKind::NotFound)?;
        let checked = Instant::now();
        let opened = File::open(path)?;
        let version = disk::version_of(&file::status(&opened)?);
        let known = self.lock().lists.get(&list).filter(|known| known.version == version).cloned();
        let accounts = match known {
            Some(known) => known.accounts,
            None => {
                let mut text = Vec::new();
                opened.take(BYTES_MAX).read_to_end(&mut text)?;
                let accounts = Accounts::parse(&text);
                complain(path, &accounts);
                Arc::new(accounts)
            }
        };
        let listed = Listed { checked, version, accounts };
        self.lock().lists.insert(list, listed.clone());
        Ok(listed)
    }

    /// What a pair is remembered by.
    fn hash(&self, list: u16, version: &FileVersion, credentials: &Credentials) -> [u8; 32] {
        let FileVersion { device, inode, size, mtime_ns, ctime_ns } = *version;
        let mut mac = Blake2sMac256::new_from_slice(&self.key).expect("a key of 32 bytes is one");
        mac.update(&list.to_le_bytes());
        for word in [device, inode, size, mtime_ns as u64, ctime_ns as u64, credentials.name().len() as u64] {
            mac.update(&word.to_le_bytes());
        }
        mac.update(credentials.name());
        mac.update(credentials.password());
        mac.finalize().into_bytes().into()
    }
}

/// Whether a hash is that of this password; takes as long for one that is not.
fn is_of(password: &[u8], hash: &str) -> bool {
    if hash.starts_with("$argon2") {
        let hash = PasswordHash::new(hash);
        return hash.is_ok_and(|hash| argon2::Argon2::default().verify_password(password, &hash).is_ok());
    }
    bcrypt::verify(password, hash).unwrap_or(false)
}

/// Says what is wrong with a file, once for each state of it.
fn complain(path: &Path, accounts: &Accounts) {
    let shown = path.display();
    if let [first, ..] = accounts.bad_lines[..] {
        say!(
            "{shown}: {} lines have no bcrypt or argon2id hash, the first is line {first}; `htpasswd -B {shown} NAME` writes one",
            accounts.bad_lines.len()
        );
    }
    if accounts.is_empty() {
        say!("{shown}: nobody has a password here; `htpasswd -B {shown} NAME` adds somebody");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn files(path: &Path) -> AccountFiles {
        AccountFiles::new(vec![path.to_owned()], Duration::from_millis(0)).unwrap()
    }

    /// At the least cost.
    fn hash_of(password: &str) -> String {
        bcrypt::hash(password, 4).unwrap()
    }

    fn argon_of(password: &str) -> String {
        use argon2::password_hash::PasswordHasher;
        let params = argon2::Params::new(64, 1, 1, None).unwrap();
        let argon = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let hash: PasswordHash = argon.hash_password_with_salt(password.as_bytes(), b"some salt of ours").unwrap();
        hash.to_string()
    }

    #[test]
    fn passwords_good_and_bad() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        fs::write(&path, format!("ann:{}\nbob:{}\n", hash_of("secret"), argon_of("geheim"))).unwrap();
        let files = files(&path);
        let check = |name: &str, password: &str, expected: bool| {
            let credentials = Credentials::new(name.as_bytes(), password.as_bytes()).unwrap();
            assert_eq!(files.verify(0, &credentials, Patience::Wait).unwrap(), Some(expected), "{name}");
        };
        check("ann", "secret", true);
        check("ann", "secret", true);
        check("ann", "geheim", false);
        check("bob", "geheim", true);
        check("bob", "secret", false);
        check("bob", "", false);
        // Whose name is not there has not the password of another.
        check("carl", "secret", false);
        check("", "secret", false);
        assert!(files.verify(1, &Credentials::new(b"a", b"b").unwrap(), Patience::Wait).is_err());
    }

    #[test]
    fn what_was_good_is_remembered_until_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        fs::write(&path, format!("ann:{}\n", hash_of("secret"))).unwrap();
        let files = AccountFiles { revalidate: Duration::from_secs(3600), ..files(&path) };
        let credentials = Credentials::new(b"ann", b"secret").unwrap();
        let at_once = || files.verify(0, &credentials, Patience::Now).unwrap();
        assert_eq!(at_once(), None, "nothing is known yet");
        assert_eq!(files.verify(0, &credentials, Patience::Wait).unwrap(), Some(true));
        assert_eq!(at_once(), Some(true));
        // That somebody was refused is not remembered.
        let wrong = Credentials::new(b"ann", b"wrong").unwrap();
        assert_eq!(files.verify(0, &wrong, Patience::Wait).unwrap(), Some(false));
        assert_eq!(files.verify(0, &wrong, Patience::Now).unwrap(), None);
        // Neither the name nor the password is in memory as it was.
        let state = format!("{:?}", files.lock().pairs);
        assert!(!state.contains("secret"), "{state}");

        let files = AccountFiles { revalidate: Duration::ZERO, ..files };
        fs::write(&path, format!("ann:{}\n", hash_of("another one"))).unwrap();
        assert_eq!(files.verify(0, &credentials, Patience::Wait).unwrap(), Some(false));
        fs::remove_file(&path).unwrap();
        assert!(files.verify(0, &credentials, Patience::Wait).is_err());
    }

    #[test]
    fn as_many_as_there_may_be_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        fs::write(&path, format!("ann:{}\n", hash_of("secret"))).unwrap();
        let files = files(&path);
        let now = Instant::now();
        let pairs = (0..PAIRS_MAX as u64).map(|n| {
            let mut pair = [0; 32];
            pair[..8].copy_from_slice(&n.to_le_bytes());
            (pair, now)
        });
        files.lock().pairs = pairs.collect();
        let credentials = Credentials::new(b"ann", b"secret").unwrap();
        assert_eq!(files.verify(0, &credentials, Patience::Wait).unwrap(), Some(true));
        assert_eq!(files.lock().pairs.len(), 1);
    }
}
