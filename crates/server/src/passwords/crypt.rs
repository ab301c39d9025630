//! Verifies a password against a hash; existing crates do the work, except for the steps of MD5 crypt.

use amped_core::auth::Hash;
use argon2::Argon2;
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use sha_crypt::ShaCrypt;
use sha1::Sha1;

/// A longer password never matches: `htpasswd` accepts 255 bytes, and the cost
/// of some algorithms grows with the length.
const PASSWORD_MAX: usize = 1024;

/// Returns whether `hash` matches this password. Takes equally long if it does not.
pub fn verify(password: &[u8], hash: &Hash) -> bool {
    if password.len() > PASSWORD_MAX {
        return false;
    }
    match hash {
        Hash::Bcrypt(text) => bcrypt::verify(password, text).unwrap_or(false),
        Hash::Argon2(text) => {
            let hash = PasswordHash::new(text);
            hash.is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
        }
        Hash::Md5 { magic, salt, digest } => same(&md5_crypt(password, salt.as_bytes(), magic), digest.as_bytes()),
        Hash::Sha1 { salted, digest } => STANDARD.decode(&**digest).is_ok_and(|known| {
            let (known, salt) = known.split_at_checked(20).unwrap_or_default();
            let made = Sha1::new().chain_update(password).chain_update(salt).finalize();
            (*salted || salt.is_empty()) && same(&made, known)
        }),
        Hash::ShaCrypt(text) => ShaCrypt::default().verify_password(password, &**text).is_ok(),
    }
}

/// Compares in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Computes the digest of MD5 crypt, as in FreeBSD's libcrypt and, with another magic, in Apache.
fn md5_crypt(password: &[u8], salt: &[u8], magic: &str) -> Vec<u8> {
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize();
    let mut outer = Md5::new().chain_update(password).chain_update(magic).chain_update(salt);
    for piece in password.chunks(inner.len()) {
        outer.update(&inner[..piece.len()]);
    }
    let mut left = password.len();
    while left > 0 {
        // For each bit of the length: a zero, or the first byte.
        outer.update(if left & 1 == 1 { &[0] } else { &password[..1] });
        left >>= 1;
    }
    let mut digest = outer.finalize();
    for round in 0..1000 {
        let is_odd = round % 2 == 1;
        let mut next = Md5::new();
        next.update(if is_odd { password } else { &digest });
        if round % 3 != 0 {
            next.update(salt);
        }
        if round % 7 != 0 {
            next.update(password);
        }
        next.update(if is_odd { &digest } else { password });
        digest = next.finalize();
    }
    let order = [(0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5)];
    let mut text = Vec::with_capacity(22);
    for (high, middle, low) in order {
        put_crypt64(&mut text, [digest[high], digest[middle], digest[low]], 4);
    }
    put_crypt64(&mut text, [0, 0, digest[11]], 2);
    text
}

/// Appends three bytes as this many characters of crypt(3)'s alphabet, lowest bits first.
fn put_crypt64(out: &mut Vec<u8>, [high, middle, low]: [u8; 3], count: usize) {
    const ALPHABET: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut bits = u32::from_be_bytes([0, high, middle, low]);
    for _ in 0..count {
        out.push(ALPHABET[(bits & 63) as usize]);
        bits >>= 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(password: &str, hash: &str) {
        let parsed = Hash::parse(hash).unwrap_or_else(|flaw| panic!("{hash}: {flaw}"));
        assert!(verify(password.as_bytes(), &parsed), "{hash}");
        assert!(!verify(format!("{password}x").as_bytes(), &parsed), "{hash}");
        assert!(!verify(b"", &parsed), "{hash}");
    }

    /// From `openssl passwd`, and from the tests of Drepper's SHA crypt.
    #[test]
    fn known_hashes_verify() {
        check("secret", "$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0");
        check("secret", "$1$saltsalt$9xy1btjgzLYfb7hivXtC//");
        check("secret", "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=");
        check("Hello world!", "$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5");
        check("Hello world!", "$5$rounds=10000$saltstringsaltst$3xv.VbSHBb41AL9AvLeujZkZRBAwqFMz2.opqey6IcA");
        check(
            "Hello world!",
            "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1",
        );
    }

    #[test]
    fn long_password_is_rejected_at_once() {
        let long = "x".repeat(PASSWORD_MAX + 1);
        let digest = STANDARD.encode(Sha1::digest(&long));
        assert!(!verify(long.as_bytes(), &Hash::parse(&format!("{{SHA}}{digest}")).unwrap()));
        let digest = STANDARD.encode(Sha1::digest(&long[1..]));
        assert!(verify(&long.as_bytes()[1..], &Hash::parse(&format!("{{SHA}}{digest}")).unwrap()));
    }

    proptest! {
        #[test]
        fn any_salt_and_password_verify(salt in "[./a-zA-Z0-9]{0,8}", password in "\\PC{0,40}") {
            let digest = String::from_utf8(md5_crypt(password.as_bytes(), salt.as_bytes(), "$apr1$")).unwrap();
            let hash = Hash::parse(&format!("$apr1${salt}${digest}")).unwrap();
            prop_assert!(verify(password.as_bytes(), &hash));
        }
    }
}
