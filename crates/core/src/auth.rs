//! Password-protected directories (RFC 7617), and the file of accounts.
//!
//! `decide` checks for a [`Guard`] before anything else about a name in such a directory; the server
//! verifies the password in a dedicated helper, because that takes tens of milliseconds by design
//! (`server/passwords`). A guard covers a directory rather than a pattern: an index page, variant or
//! sibling lies in the same directory as the requested name, so the check cannot be bypassed.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use amped_http::h1::request::Request;

use crate::network::Network;

/// A directory, including everything below it, that requires authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Its clean path, with the final slash.
    pub directory: Box<str>,
    /// The realm that clients show when they ask for a password.
    pub realm: Box<str>,
    /// The index of the account list.
    pub accounts: u16,
    /// Clients with these addresses need no password.
    pub exempt: Vec<Network>,
}

impl Guard {
    /// Whether this client needs no password.
    pub fn exempts(&self, request: &Request<'_>) -> bool {
        let is_among = |address| self.exempt.iter().any(|network| network.contains(address));
        request.client.is_some_and(|client| is_among(client.address))
    }

    /// Whether it admits exactly those that another one admits.
    pub fn is_like(&self, other: &Guard) -> bool {
        (self.accounts, &self.exempt) == (other.accounts, &other.exempt)
    }

    /// Whether a clean path is the directory or lies below it.
    pub fn covers(&self, path: &[u8]) -> bool {
        is_within(path, &self.directory)
    }
}

/// Whether a clean path is a directory, written with a final slash, or lies below it.
pub(crate) fn is_within(path: &[u8], directory: &str) -> bool {
    let directory = directory.as_bytes();
    path.starts_with(directory) || path == &directory[..directory.len() - 1]
}

/// The result of verifying a name and password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The password matches the account.
    Good,
    /// The password is wrong, or the account does not exist.
    Wrong,
    /// Not verified: too many wrong passwords from this client's address (429).
    Limited,
    /// Not verified: too many verifications are queued (503).
    Busy,
    /// Not verified: the accounts could not be read (500).
    Failed,
}

/// The accounts of a file in `htpasswd` format.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    list: Vec<(Vec<u8>, Hash)>,
    /// The unusable entries.
    pub flaws: Vec<AccountError>,
}

/// An unusable entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountError {
    /// Line number, from 1.
    pub line: usize,
    /// The reason.
    pub why: &'static str,
    /// The hash is valid, but verifying it would take too much time or memory.
    pub costs_too_much: bool,
}

impl Accounts {
    /// Parses `name:hash` lines. Empty lines and lines that begin with
    /// `#` are skipped; of two entries with one name the first counts.
    pub fn parse(text: &[u8]) -> Accounts {
        let mut accounts = Accounts::default();
        let mut seen = BTreeSet::new();
        for (line, text) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let text = text.trim_ascii();
            if text.is_empty() || text.starts_with(b"#") {
                continue;
            }
            let why = match entry(text) {
                Ok((name, _)) if !seen.insert(name) => "duplicate name; the first entry counts",
                Ok((name, hash)) => {
                    accounts.list.push((name.to_vec(), hash));
                    continue;
                }
                Err(why) => why,
            };
            accounts.flaws.push(AccountError { line, why, costs_too_much: TOO_COSTLY.contains(&why) });
        }
        accounts
    }

    /// The hash of this account's password.
    pub fn hash_of(&self, name: &[u8]) -> Option<&Hash> {
        self.list.iter().find(|(known, _)| known == name).map(|(_, hash)| hash)
    }

    /// A hash for a name without an account, so that rejecting it takes as long as
    /// rejecting a wrong password. `number` must depend on the name in a way that
    /// clients cannot predict, so that unknown names vary in cost as existing ones do.
    pub fn decoy(&self, number: u64) -> Option<&Hash> {
        let at = number.checked_rem(self.list.len() as u64)?;
        Some(&self.list[at as usize].1)
    }

    /// The number of usable accounts.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no usable accounts.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Omits the hashes.
impl core::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Accounts({}, flaws {:?})", self.len(), self.flaws)
    }
}

/// Splits a line into name and hash, or returns why it is unusable.
fn entry(line: &[u8]) -> Result<(&[u8], Hash), &'static str> {
    let colon = line.iter().position(|&byte| byte == b':').ok_or("missing colon between name and hash")?;
    let hash = core::str::from_utf8(&line[colon + 1..]).map_err(|_| UNKNOWN)?;
    Ok((&line[..colon], Hash::parse(hash)?))
}

/// A password hash in a supported format.
#[derive(Clone, PartialEq, Eq)]
pub enum Hash {
    /// bcrypt: `$2y$`, `$2b$` or `$2a$`.
    Bcrypt(Box<str>),
    /// Argon2id, as a PHC string.
    Argon2(Box<str>),
    /// MD5 crypt, of Apache (`$apr1$`) or of BSD (`$1$`).
    Md5 {
        /// The prefix, including both dollar signs.
        magic: &'static str,
        /// 8 characters at most.
        salt: Box<str>,
        /// 22 characters.
        digest: Box<str>,
    },
    /// `{SHA}` or `{SSHA}`: the base64 of the SHA-1 of password and salt, followed by the salt.
    Sha1 {
        /// Whether there is a salt.
        salted: bool,
        /// Base64.
        digest: Box<str>,
    },
    /// SHA-256 crypt (`$5$`) or SHA-512 crypt (`$6$`).
    ShaCrypt(Box<str>),
}

const UNKNOWN: &str = "unsupported hash format (DES crypt or plain text?); use `htpasswd -B`";

const TOO_COSTLY: [&str; 3] = [
    "bcrypt cost too high: the maximum is 16",
    "Argon2id cost too high: the maximum is 256 MiB, and 4 GiB over all passes",
    "SHA crypt cost too high: the maximum is 1,000,000 rounds",
];

/// bcrypt doubles its work with each step; 16 takes about five seconds.
const BCRYPT_COST_MAX: u64 = 16;
/// Maximum memory of an Argon2 hash, in KiB.
const ARGON2_MEMORY_MAX: u64 = 256 * 1024;
/// Maximum product of memory in KiB and passes of an Argon2 hash: about five seconds.
const ARGON2_WORK_MAX: u64 = 4 * 1024 * 1024;
/// Maximum rounds of SHA crypt: about a second.
const SHA_ROUNDS_MAX: u64 = 1_000_000;

impl Hash {
    /// Parses the part of an entry after the colon. Work and memory are limited: an entry beyond a limit is rejected.
    ///
    /// # Errors
    /// Why the entry is unusable.
    pub fn parse(text: &str) -> Result<Hash, &'static str> {
        if text.is_empty() {
            return Err("missing hash");
        }
        if let Some(digest) = text.strip_prefix("{SHA}") {
            let is_good = digest.len() == 28 && digest.ends_with('=') && digest[..27].bytes().all(is_base64);
            return if is_good { Ok(Hash::Sha1 { salted: false, digest: digest.into() }) } else { Err(MALFORMED_SHA1) };
        }
        if let Some(digest) = text.strip_prefix("{SSHA}") {
            let is_good = (28..=128).contains(&digest.len()) && digest.trim_end_matches('=').bytes().all(is_base64);
            return if is_good { Ok(Hash::Sha1 { salted: true, digest: digest.into() }) } else { Err(MALFORMED_SHA1) };
        }
        let (kind, rest) = text.strip_prefix('$').and_then(|text| text.split_once('$')).ok_or(UNKNOWN)?;
        match kind {
            "2y" | "2b" | "2a" => bcrypt(text, rest),
            "argon2id" => argon2(text, rest),
            "apr1" => md5("$apr1$", rest),
            "1" => md5("$1$", rest),
            "5" => sha_crypt(text, 43, rest),
            "6" => sha_crypt(text, 86, rest),
            "argon2i" | "argon2d" => Err("Argon2i and Argon2d are not supported; use Argon2id"),
            "y" | "gy" | "7" => Err("yescrypt and scrypt are not supported; use `htpasswd -B` (bcrypt)"),
            _ => Err(UNKNOWN),
        }
    }
}

/// Omits the hash itself.
impl core::fmt::Debug for Hash {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Hash::Bcrypt(_) => "bcrypt",
            Hash::Argon2(_) => "argon2id",
            Hash::Md5 { magic, .. } => magic,
            Hash::Sha1 { .. } => "SHA-1",
            Hash::ShaCrypt(_) => "SHA crypt",
        })
    }
}

const MALFORMED_SHA1: &str = "malformed SHA-1 hash";

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/')
}

/// The alphabet of crypt(3).
fn is_crypt64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/')
}

/// Parses a number of digits only.
fn number(text: &str) -> Option<u64> {
    (text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

fn bcrypt(text: &str, rest: &str) -> Result<Hash, &'static str> {
    let (cost, digest) = rest.split_once('$').ok_or("malformed bcrypt hash")?;
    match number(cost) {
        Some(4..=31) if cost.len() != 2 || digest.len() != 53 || !digest.bytes().all(is_crypt64) => {
            Err("malformed bcrypt hash")
        }
        Some(4..=BCRYPT_COST_MAX) => Ok(Hash::Bcrypt(text.into())),
        Some(4..=31) => Err(TOO_COSTLY[0]),
        _ => Err("malformed bcrypt hash"),
    }
}

fn argon2(text: &str, rest: &str) -> Result<Hash, &'static str> {
    const MALFORMED: &str = "malformed Argon2id hash";
    let parts: Vec<&str> = rest.split('$').collect();
    let [parameters, salt, digest] = match parts[..] {
        ["v=19" | "v=16", parameters, salt, digest] | [parameters, salt, digest] => [parameters, salt, digest],
        _ => return Err(MALFORMED),
    };
    let mut values = [None; 3];
    for parameter in parameters.split(',') {
        let (name, value) = parameter.split_once('=').ok_or(MALFORMED)?;
        let at = ["m", "t", "p"].iter().position(|known| *known == name).ok_or(MALFORMED)?;
        values[at] = number(value);
    }
    let [Some(memory), Some(passes), Some(lanes)] = values else { return Err(MALFORMED) };
    // RFC 9106, 3.1: the salt has at least 8 bytes, and the tag at least 4.
    let is_good = [(salt, 11..=86), (digest, 14..=86)]
        .iter()
        .all(|(text, lengths)| lengths.contains(&text.len()) && text.bytes().all(is_base64));
    if !is_good || passes == 0 || !(1..=255).contains(&lanes) || memory < 8 * lanes {
        return Err(MALFORMED);
    }
    if memory > ARGON2_MEMORY_MAX || memory.saturating_mul(passes) > ARGON2_WORK_MAX {
        return Err(TOO_COSTLY[1]);
    }
    Ok(Hash::Argon2(text.into()))
}

fn md5(magic: &'static str, rest: &str) -> Result<Hash, &'static str> {
    let (salt, digest) = rest.split_once('$').ok_or("malformed MD5 hash")?;
    if salt.len() > 8 || digest.len() != 22 || !digest.bytes().all(is_crypt64) {
        return Err("malformed MD5 hash");
    }
    Ok(Hash::Md5 { magic, salt: salt.into(), digest: digest.into() })
}

fn sha_crypt(text: &str, digest_length: usize, rest: &str) -> Result<Hash, &'static str> {
    const MALFORMED: &str = "malformed SHA crypt hash";
    let (rounds, rest) = match rest.strip_prefix("rounds=") {
        Some(rest) => {
            let (rounds, rest) = rest.split_once('$').ok_or(MALFORMED)?;
            (number(rounds).ok_or(MALFORMED)?, rest)
        }
        None => (5000, rest),
    };
    if rounds > SHA_ROUNDS_MAX {
        return Err(TOO_COSTLY[2]);
    }
    let (salt, digest) = rest.split_once('$').ok_or(MALFORMED)?;
    if rounds < 1000 || salt.len() > 16 || digest.len() != digest_length || !digest.bytes().all(is_crypt64) {
        return Err(MALFORMED);
    }
    Ok(Hash::ShaCrypt(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    #[test]
    fn guard_covers_only_its_directory() {
        let guard =
            |directory: &str| Guard { directory: directory.into(), realm: "x".into(), accounts: 0, exempt: Vec::new() };
        let check = |directory: &str, path: &str, expected| {
            assert_eq!(guard(directory).covers(path.as_bytes()), expected, "{directory} {path}");
        };
        check("/private/", "/private/", true);
        check("/private/", "/private", true);
        check("/private/", "/private/a/b", true);
        check("/private/", "/private2", false);
        check("/private/", "/", false);
        check("/private/", "/a/private/", false);
        check("/", "/", true);
        check("/", "/a", true);
    }

    const BCRYPT: &str = "$2y$05$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234";
    const ARGON2: &str = "$argon2id$v=19$m=64,t=1,p=1$c29tZSBzYWx0$aGFzaCBvZiBpdCBhbGw";

    #[test]
    fn valid_account_lines_parse_and_invalid_ones_fail() {
        let text = format!(
            "# people\n\nann:{BCRYPT}\r\nbob:{ARGON2}\n carl:$apr1$saltsalt$abcdefghijklmnopqrstuv \nann:{BCRYPT}\n\
             dora:rqXexS6ZhobKA\nplain\n:{{SHA}}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\nemil:\nfritz:$y$j9T$abc$def\n"
        );
        let mut text = text.into_bytes();
        text.extend_from_slice(b"gerd:\xff\n");
        let accounts = Accounts::parse(&text);
        let check = |name: &str, expected: Option<&str>| {
            let found = accounts.hash_of(name.as_bytes()).map(|hash| format!("{hash:?}"));
            assert_eq!(found.as_deref(), expected, "{name}");
        };
        check("ann", Some("bcrypt"));
        check("bob", Some("argon2id"));
        check("carl", Some("$apr1$"));
        check("", Some("SHA-1"));
        for name in ["dora", "plain", "emil", "fritz", "gerd"] {
            check(name, None);
        }
        let lines: Vec<usize> = accounts.flaws.iter().map(|flaw| flaw.line).collect();
        assert_eq!(lines, [6, 7, 8, 10, 11, 12]);
        assert_eq!(accounts.len(), 4);
        assert_eq!(accounts.decoy(6), accounts.hash_of(b"carl"));
        assert_eq!(Accounts::parse(b"").decoy(0), None);
    }

    #[test]
    fn costly_hash_is_rejected() {
        let check = |text: &str, expected: &str| {
            let parsed = Hash::parse(text).map(|hash| format!("{hash:?}"));
            let found = parsed.unwrap_or_else(|flaw| flaw.into());
            assert!(found.contains(expected), "{text}: {found}");
        };
        let with = |text: &str, from: &str, to: &str| text.replace(from, to);
        check(&with(BCRYPT, "$05$", "$16$"), "bcrypt");
        check(&with(BCRYPT, "$05$", "$17$"), "cost too high");
        check(&with(BCRYPT, "$05$", "$31$"), "cost too high");
        check(&with(BCRYPT, "$05$", "$32$"), "malformed");
        check(&with(BCRYPT, "$05$", "$5$"), "malformed");
        check(&BCRYPT[..59], "malformed");
        check(&with(ARGON2, "m=64", "m=262144"), "argon2id");
        check(&with(ARGON2, "m=64", "m=262145"), "cost too high");
        check(&with(ARGON2, "t=1", "t=99999"), "cost too high");
        check(&with(ARGON2, "t=1", "t=0"), "malformed");
        check(&with(ARGON2, "m=64", "m=7"), "malformed");
        check(&with(ARGON2, "m=64", "m=99999999999999999999"), "malformed");
        check(&with(ARGON2, "$v=19", ""), "argon2id");
        check(&with(ARGON2, "argon2id", "argon2d"), "not supported");
        let digest = "a".repeat(86);
        for (rounds, expected) in [
            ("", "SHA"),
            ("rounds=10$", "malformed"),
            ("rounds=999999999$", "cost too high"),
            ("rounds=-1$", "malformed"),
        ] {
            check(&format!("$6${rounds}salt${digest}"), expected);
        }
        check(&format!("$6$toolongsaltstring${digest}"), "malformed");
        check(&format!("$5$salt${}", &digest[..43]), "SHA crypt");
        check("$5$salt$short", "malformed");
        check("$apr1$saltsaltsalt$abcdefghijklmnopqrstuv", "malformed");
        check("{SHA}short", "malformed");
        check("{SSHA}short", "malformed");
    }

    proptest! {
        #[test]
        fn random_accounts_file_does_not_panic(text: Vec<u8>, names in prop::collection::vec("[a-z]{0,4}", 0..5)) {
            let _ = Accounts::parse(&text);
            let lines: Vec<String> = names.iter().map(|name| format!("{name}:{BCRYPT}\n")).collect();
            let accounts = Accounts::parse(lines.concat().as_bytes());
            prop_assert_eq!(accounts.len() + accounts.flaws.len(), names.len());
            for name in &names {
                prop_assert!(accounts.hash_of(name.as_bytes()).is_some());
            }
        }

        #[test]
        fn random_hash_does_not_panic(text in "(\\$(2y|argon2id|apr1|1|5|6|y)\\$|\\{SHA\\}|\\{SSHA\\})?[a-z0-9=$,./é]{0,100}") {
            let _ = Hash::parse(&text);
        }
    }
}
