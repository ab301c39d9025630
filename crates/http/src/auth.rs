//! Basic authentication (RFC 7617): the credentials that a request carries.
//!
//! Before it: the `Authorization` field. After it: `amped-core`, which has
//! the disk side verify them, since verifying a password is slow by design.

use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::text::trim_ows;

/// A user name and a password as sent: any bytes, but no colon in the name.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Credentials {
    text: Vec<u8>,
    /// Offset of the first colon, which ends the name.
    colon: usize,
}

impl Credentials {
    /// Parses an `Authorization` field; `None` if it is malformed or of another scheme.
    ///
    /// RFC 7617, 2: `Basic`, in any case (RFC 9110, 11.1), spaces, and the base64 of name, colon and password. Neither
    /// name nor password contains a control character.
    pub fn parse(field: &[u8]) -> Option<Credentials> {
        let blank = field.iter().position(|&byte| byte == b' ')?;
        let (scheme, token) = field.split_at(blank);
        if !scheme.eq_ignore_ascii_case(b"Basic") {
            return None;
        }
        let text = STANDARD.decode(trim_ows(token)).ok()?;
        let colon = text.iter().position(|&byte| byte == b':')?;
        (!text.iter().any(u8::is_ascii_control)).then_some(Credentials { text, colon })
    }

    /// Builds credentials from their parts; `None` if the name contains a colon.
    pub fn new(name: &[u8], password: &[u8]) -> Option<Credentials> {
        let text = [name, b":", password].concat();
        (!name.contains(&b':')).then_some(Credentials { text, colon: name.len() })
    }

    /// The name.
    pub fn name(&self) -> &[u8] {
        &self.text[..self.colon]
    }

    /// The password.
    pub fn password(&self) -> &[u8] {
        &self.text[self.colon + 1..]
    }
}

/// Omits the password, which must not reach a log.
impl core::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Credentials({})", self.name().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::format;
    use std::string::String;

    #[test]
    fn valid_credentials_parse_and_invalid_ones_fail() {
        let check = |field: &str, expected: Option<(&str, &str)>| {
            let parsed = Credentials::parse(field.as_bytes());
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let parsed = parsed.map(|it| (text(it.name()), text(it.password())));
            assert_eq!(parsed.as_ref().map(|(name, password)| (&**name, &**password)), expected, "{field}");
        };
        // RFC 7617, 2 and 2.1.
        check("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", Some(("Aladdin", "open sesame")));
        check("Basic dGVzdDoxMjPCow==", Some(("test", "123£")));
        check("bAsIc   QWxhZGRpbjpvcGVuIHNlc2FtZQ== ", Some(("Aladdin", "open sesame")));
        check("Basic YTpiOmM=", Some(("a", "b:c")));
        check("Basic Og==", Some(("", "")));
        for bad in [
            "",
            "Basic",
            "Basic ",
            "BasicYTpi",
            "Bearer YTpi",
            "Basic YTpi=",
            "Basic YTp",
            "Basic YT pi",
            "Basic YQ==",
            "Basic YTpi, Basic YTpi",
            "Basic YQo6Yg==",
        ] {
            check(bad, None);
        }
        assert_eq!(format!("{:?}", Credentials::new(b"a", b"secret").unwrap()), "Credentials(a)");
        assert_eq!(Credentials::new(b"a:b", b""), None);
    }

    proptest! {
        #[test]
        fn credentials_round_trip(name in "[^:\\x00-\\x1f\\x7f]{0,20}", password in "[^\\x00-\\x1f\\x7f]{0,20}") {
            let field = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
            let parsed = Credentials::parse(field.as_bytes()).unwrap();
            prop_assert_eq!((parsed.name(), parsed.password()), (name.as_bytes(), password.as_bytes()));
            prop_assert_eq!(Some(parsed), Credentials::new(name.as_bytes(), password.as_bytes()));
        }

        #[test]
        fn never_panics(field: Vec<u8>) {
            let _ = Credentials::parse(&field);
            let _ = Credentials::parse(&[b"Basic ", &field[..]].concat());
        }
    }
}
