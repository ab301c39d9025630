//! Folders for those who have a password (RFC 7617), and the file that says who has which.
//!
//! `decide` asks before anything else about a name in such a folder ([`Guard`]); the disk side verifies, in a helper, since
//! that takes tens of milliseconds on purpose (`server/accounts`). A guard is of a folder and not of a pattern: whatever a
//! name in it comes to, its index page, a variant or a sibling, lies in the same folder, so there is no way round.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// A folder, all in it included, that only those in a list may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Its clean path, with the final slash.
    pub folder: Box<str>,
    /// What clients are told that they need a password for.
    pub realm: Box<str>,
    /// Which list of the server's.
    pub accounts: u16,
}

impl Guard {
    /// Whether a clean path leads into the folder, or to it.
    pub fn covers(&self, path: &[u8]) -> bool {
        let folder = self.folder.as_bytes();
        path.starts_with(folder) || path == &folder[..folder.len() - 1]
    }
}

/// Who has which password: the lines of a file as `htpasswd` writes it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Name and hash.
    list: Vec<(Vec<u8>, String)>,
    /// Lines, counted from 1, that say nothing that is understood here.
    pub bad_lines: Vec<usize>,
}

/// How a hash begins that can be verified: bcrypt in its three spellings, and argon2id.
const FORMS: [&str; 4] = ["$2y$", "$2b$", "$2a$", "$argon2id$"];

impl Accounts {
    /// Reads `name:hash` lines. Empty ones and those that begin with `#` say nothing; of two for one name the first counts.
    /// Hashes of other kinds can be guessed too quickly, and are not taken.
    pub fn parse(text: &[u8]) -> Accounts {
        let mut accounts = Accounts::default();
        for (line, text) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let text = text.trim_ascii();
            if text.is_empty() || text.starts_with(b"#") {
                continue;
            }
            let parts = text.iter().position(|&byte| byte == b':').map(|colon| (&text[..colon], &text[colon + 1..]));
            let hash = parts.and_then(|(name, hash)| Some((name, core::str::from_utf8(hash).ok()?)));
            match hash.filter(|(_, hash)| FORMS.iter().any(|form| hash.starts_with(form))) {
                Some((name, hash)) => accounts.list.push((name.to_vec(), hash.into())),
                None => accounts.bad_lines.push(line),
            }
        }
        accounts
    }

    /// The hash of this name's password.
    pub fn hash_of(&self, name: &[u8]) -> Option<&str> {
        self.list.iter().find(|(known, _)| known == name).map(|(_, hash)| &**hash)
    }

    /// Some hash, by which a password of a name that is not there takes as long to be refused as one that is wrong.
    pub fn any_hash(&self) -> Option<&str> {
        self.list.first().map(|(_, hash)| &**hash)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Without hashes.
impl core::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Accounts({}, bad lines {:?})", self.len(), self.bad_lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_guard_covers_its_folder_and_nothing_beside_it() {
        let guard = |folder: &str| Guard { folder: folder.into(), realm: "x".into(), accounts: 0 };
        let check = |folder: &str, path: &str, expected| {
            assert_eq!(guard(folder).covers(path.as_bytes()), expected, "{folder} {path}");
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

    #[test]
    fn lines_of_a_password_file() {
        let text = b"# people\n\nann:$2y$05$abc\r\nbob:$argon2id$v=19$x\n carl:$2b$1 \nann:$2y$05$other\n\
            dora:$apr1$x\nplain\n:$2a$0\nemil:{SHA}x\n\xff:$2y$1\nfritz:$2y$\xff\n";
        let accounts = Accounts::parse(text);
        let check = |name: &[u8], expected| assert_eq!(accounts.hash_of(name), expected, "{}", name.escape_ascii());
        check(b"ann", Some("$2y$05$abc"));
        check(b"bob", Some("$argon2id$v=19$x"));
        check(b"carl", Some("$2b$1"));
        check(b"dora", None);
        check(b"", Some("$2a$0"));
        check(b"\xff", Some("$2y$1"));
        check(b"fritz", None);
        assert_eq!(accounts.bad_lines, [7, 8, 10, 12]);
        assert_eq!((accounts.len(), accounts.any_hash()), (6, Some("$2y$05$abc")));
        assert!(Accounts::parse(b"").is_empty());
    }

    proptest! {
        #[test]
        fn any_file_is_read(text: Vec<u8>, names in prop::collection::vec("[a-z]{0,4}", 0..5)) {
            let _ = Accounts::parse(&text);
            let lines: Vec<String> = names.iter().map(|name| alloc::format!("{name}:$2y$05${name}x\n")).collect();
            let accounts = Accounts::parse(lines.concat().as_bytes());
            prop_assert!(accounts.bad_lines.is_empty());
            for name in &names {
                prop_assert_eq!(accounts.hash_of(name.as_bytes()), Some(&*alloc::format!("$2y$05${name}x")));
            }
        }
    }
}
