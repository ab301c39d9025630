//! Password files: which accounts exist, and whether a name and password match one of them.
//!
//! A pair that was verified is remembered for a few minutes, as a keyed hash; the key is drawn at the start and
//! never leaves the server, so that nothing in memory reveals the password. The version of the file is part of
//! the hashed data: a change of the file invalidates all remembered pairs. The client is part of it too:
//! otherwise any address could compare guesses with the pair at the cost of a lookup, and the limit on attempts
//! would not apply to these guesses.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use amped_core::auth::{AccountError, Accounts};
use amped_core::file::FileVersion;
use amped_http::auth::Credentials;
use amped_sys::clock::monotonic_ns;
use amped_sys::file::{self, Patience};
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};

use super::crypt;
use super::ledger::Ledger;
use crate::client_times::Client;
use crate::open_file;
use crate::say;

/// Maximum size of a password file.
const BYTES_MAX: u64 = 16 << 20;

/// The password files of a configuration, in their order.
pub struct AccountFiles {
    paths: Vec<PathBuf>,
    /// Interval after which a file is checked for changes.
    revalidate: Duration,
    key: [u8; 32],
    /// By the number of the file.
    lists: Mutex<HashMap<u16, Listed>>,
    /// The pairs that were verified.
    ledger: Arc<Ledger>,
}

/// A file as of its last check.
#[derive(Clone, Debug)]
struct Listed {
    checked: Instant,
    version: FileVersion,
    accounts: Arc<Accounts>,
}

/// Omits the key.
impl fmt::Debug for AccountFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccountFiles").field(&self.paths).finish()
    }
}

impl AccountFiles {
    /// Creates the list; files are read when first needed.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn new(paths: Vec<PathBuf>, revalidate: Duration, ledger: Arc<Ledger>) -> io::Result<AccountFiles> {
        let mut key = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        Ok(AccountFiles { paths, revalidate, key, lists: Mutex::default(), ledger })
    }

    /// Returns the path of a file.
    pub fn path(&self, list: u16) -> Option<&Path> {
        self.paths.get(usize::from(list)).map(PathBuf::as_path)
    }

    /// Returns the table of verified pairs.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Returns whether this pair was verified recently for this client, against the current version of the file. Never
    /// waits; returns `false` also if that cannot be checked at once.
    pub fn remembers(&self, list: u16, client: Client, credentials: &Credentials) -> bool {
        let known = self.fresh(list).map(|known| known.version);
        let seen = || {
            let checked = Instant::now();
            let status = file::open_path(self.path(list)?, Patience::Now).and_then(file::status).ok()?;
            let version = open_file::version_of(&status);
            // Saves this check for the next requests.
            if let Some(known) = self.lock().get_mut(&list).filter(|known| known.version == version) {
                known.checked = checked;
            }
            Some(version)
        };
        known.or_else(seen).is_some_and(|version| self.is_remembered(self.hash(list, &version, client, credentials)))
    }

    /// Returns what is known of a file, if it was checked recently.
    fn fresh(&self, list: u16) -> Option<Listed> {
        self.lock().get(&list).filter(|known| known.checked.elapsed() < self.revalidate).cloned()
    }

    /// Returns whether these are the credentials of an account. Reads the file if it has changed, and computes
    /// for as long as the hash takes by design.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn verify(&self, list: u16, client: Client, credentials: &Credentials) -> io::Result<bool> {
        let Listed { version, accounts, .. } = match self.fresh(list) {
            Some(known) => known,
            None => self.look(list)?,
        };
        let pair = self.hash(list, &version, client, credentials);
        // An earlier job in the queue may have verified the same pair.
        if self.is_remembered(pair) {
            return Ok(true);
        }
        let hash = accounts.hash_of(credentials.name());
        let number = self.number_of(credentials.name());
        let is_match = hash.or(accounts.decoy(number)).is_some_and(|hash| crypt::verify(credentials.password(), hash));
        let good = is_match && hash.is_some();
        if good {
            self.ledger.remember(pair, monotonic_ns());
        }
        Ok(good)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Listed>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_remembered(&self, pair: u128) -> bool {
        self.ledger.remembers(pair, monotonic_ns())
    }

    /// Checks a file, and reads it if it has changed.
    fn look(&self, list: u16) -> io::Result<Listed> {
        let path = self.paths.get(usize::from(list)).ok_or(io::ErrorKind::NotFound)?;
        let checked = Instant::now();
        let opened = File::open(path)?;
        let version = open_file::version_of(&file::status(&opened)?);
        let known = self.lock().get(&list).filter(|known| known.version == version).cloned();
        let accounts = match known {
            Some(known) => known.accounts,
            None => {
                let accounts = read_opened(opened)?;
                report_flaws(path, &accounts);
                Arc::new(accounts)
            }
        };
        let listed = Listed { checked, version, accounts };
        self.lock().insert(list, listed.clone());
        Ok(listed)
    }

    /// Returns a number that depends on the name and the key.
    fn number_of(&self, name: &[u8]) -> u64 {
        let mut mac = Blake2sMac256::new_from_slice(&self.key).expect("32 bytes is a valid key length");
        mac.update(b"decoy");
        mac.update(name);
        let hash: [u8; 32] = mac.finalize().into_bytes().into();
        hash.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns the hash by which a pair of a client is remembered.
    fn hash(&self, list: u16, version: &FileVersion, client: Client, credentials: &Credentials) -> u128 {
        let FileVersion { device, inode, size, mtime_ns, ctime_ns, is_changing: _, is_unpacked: _ } = *version;
        let mut mac = Blake2sMac256::new_from_slice(&self.key).expect("32 bytes is a valid key length");
        mac.update(&list.to_le_bytes());
        mac.update(&client.key().to_le_bytes());
        for word in [device, inode, size, mtime_ns as u64, ctime_ns as u64, credentials.name().len() as u64] {
            mac.update(&word.to_le_bytes());
        }
        mac.update(credentials.name());
        mac.update(credentials.password());
        let hash: [u8; 32] = mac.finalize().into_bytes().into();
        hash.first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes))
    }
}

/// Reports invalid entries, once for each version of the file.
fn report_flaws(path: &Path, accounts: &Accounts) {
    let shown = path.display();
    if let [AccountError { line, why, .. }, ..] = accounts.flaws[..] {
        let count = match accounts.flaws.len() {
            1 => "1 invalid entry".to_owned(),
            count => format!("{count} invalid entries"),
        };
        say!("{shown}: {count}, first on line {line}: {why}; `amped check` lists them all");
    }
    if accounts.is_empty() {
        say!("{shown}: the file has no accounts; `htpasswd -B {shown} NAME` adds one");
    }
}

/// Parses a file as [`AccountFiles`] does, for the operator.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> io::Result<Accounts> {
    read_opened(File::open(path)?)
}

fn read_opened(file: File) -> io::Result<Accounts> {
    let mut text = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut text)?;
    Ok(Accounts::parse(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn files(path: &Path) -> AccountFiles {
        let ledger = Arc::new(Ledger::new().unwrap());
        AccountFiles::new(vec![path.to_owned()], Duration::ZERO, ledger).unwrap()
    }

    fn client() -> Client {
        Client::new(Some([192, 0, 2, 1].into()))
    }

    /// At the lowest cost.
    fn hash_of(password: &str) -> String {
        bcrypt::hash(password, 4).unwrap()
    }

    fn argon_of(password: &str) -> String {
        use argon2::password_hash::PasswordHasher;
        use argon2::password_hash::phc::PasswordHash;
        let params = argon2::Params::new(64, 1, 1, None).unwrap();
        let argon = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let hash: PasswordHash = argon.hash_password_with_salt(password.as_bytes(), b"some salt of ours").unwrap();
        hash.to_string()
    }

    #[test]
    fn correct_password_verifies_and_wrong_one_fails() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        fs::write(&path, format!("ann:{}\nbob:{}\n", hash_of("secret"), argon_of("geheim"))).unwrap();
        let files = files(&path);
        let check = |name: &str, password: &str, expected: bool| {
            let credentials = Credentials::new(name.as_bytes(), password.as_bytes()).unwrap();
            assert_eq!(files.verify(0, client(), &credentials).unwrap(), expected, "{name}");
        };
        check("ann", "secret", true);
        check("ann", "secret", true);
        check("ann", "geheim", false);
        check("bob", "geheim", true);
        check("bob", "secret", false);
        check("bob", "", false);
        // An unknown name does not match the password of another account.
        check("carl", "secret", false);
        check("", "secret", false);
        assert!(files.verify(1, client(), &Credentials::new(b"a", b"b").unwrap()).is_err());
    }

    #[test]
    fn verified_password_is_remembered_until_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        fs::write(&path, format!("ann:{}\n", hash_of("secret"))).unwrap();
        let files = AccountFiles { revalidate: Duration::from_secs(3600), ..files(&path) };
        let credentials = Credentials::new(b"ann", b"secret").unwrap();
        let at_once = || files.remembers(0, client(), &credentials);
        assert!(!at_once(), "no password is cached yet");
        assert!(files.verify(0, client(), &credentials).unwrap());
        assert!(at_once());
        // Wrong passwords are not remembered.
        let wrong = Credentials::new(b"ann", b"wrong").unwrap();
        assert!(!files.verify(0, client(), &wrong).unwrap());
        assert!(!files.remembers(0, client(), &wrong));
        let files = AccountFiles { revalidate: Duration::ZERO, ..files };
        assert!(files.remembers(0, client(), &credentials), "the file is seen not to have changed, without waiting");
        fs::write(&path, format!("ann:{}\n", hash_of("another one"))).unwrap();
        assert!(!files.remembers(0, client(), &credentials));
        assert!(!files.verify(0, client(), &credentials).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(files.verify(0, client(), &credentials).is_err());
    }
}
