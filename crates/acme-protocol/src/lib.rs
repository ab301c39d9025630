//! The messages between `amped` and `amped-acme`, the process that obtains certificates.
//!
//! They are exchanged over a stream socket that `amped-acme` has as standard input. Each is a frame: its length in four
//! bytes (little-endian), then the message in postcard's format. Both programs come from one build, so there is no
//! version; a frame that cannot be decoded ends the process.
//!
//! The server begins with [`Order::Start`]. The end of the stream means that the other side has ended: `amped-acme`
//! exits then. It writes the files of certificates itself; the server reads them as it reads those of other clients.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Maximum bytes of a message. One challenge of tls-alpn-01 has about a kilobyte, and an order at most [`NAMES_MAX`].
pub const MESSAGE_MAX: usize = 1 << 20;

/// Maximum names of one certificate: the limit of Let's Encrypt.
pub const NAMES_MAX: usize = 100;

/// The only protocol that a client of tls-alpn-01 offers (RFC 8737, 3).
pub const TLS_ALPN_01_PROTOCOL: &[u8] = b"acme-tls/1";

/// A message from the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Obtain and renew these certificates.
    Start(Start),
    /// All loops now answer the challenges of this number ([`Report::Publish`]).
    Published(u64),
    /// Renew the certificate of this name now; answered by [`Report::Done`] with the same number.
    Renew {
        /// The number of the command.
        number: u64,
        /// A name of the certificate.
        name: String,
    },
    /// Revoke the certificate of this name, and obtain another one; answered by [`Report::Done`].
    Revoke {
        /// The number of the command.
        number: u64,
        /// A name of the certificate.
        name: String,
    },
}

/// What to obtain, from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The URL of the CA's directory (RFC 8555, 7.1.1).
    pub directory: String,
    /// A file of root certificates (PEM) that verify the directory's own TLS, instead of the system's.
    pub directory_ca: Option<PathBuf>,
    /// The address to which the CA may send warnings.
    pub email: Option<String>,
    /// The profile to request, if the CA has several.
    pub profile: Option<String>,
    /// The directory of the account and the certificates. It exists, and belongs to the user of the process.
    pub state: PathBuf,
    /// How to prove control of the names.
    pub challenge: ChallengeKind,
    /// The certificates.
    pub certificates: Vec<Wanted>,
}

/// How control of a name is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChallengeKind {
    /// A response on port 80 (RFC 8555, 8.3).
    Http01,
    /// A certificate on port 443 (RFC 8737).
    TlsAlpn01,
}

impl fmt::Display for ChallengeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChallengeKind::Http01 => "http-01",
            ChallengeKind::TlsAlpn01 => "tls-alpn-01",
        })
    }
}

/// A certificate to obtain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Its names; the first also identifies it. `1 <= names.len() <= NAMES_MAX`
    pub names: Vec<String>,
    /// The file for its key and chain (PEM).
    pub file: PathBuf,
}

/// A message from `amped-acme`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// Answer these challenges from now on, and no others; answered by [`Order::Published`] with the same number.
    Publish(u64, Vec<Challenge>),
    /// A line for the operator.
    Log(String),
    /// An order begins.
    Ordered,
    /// A certificate was obtained and written to its file.
    Obtained,
    /// An order failed.
    Failed(Reason),
    /// The state of all certificates, after each change.
    Status(Vec<Status>),
    /// The result of a command: a text for the operator.
    Done(u64, Result<String, String>),
}

/// The answer to a challenge. Keys and tokens are secrets until the CA has asked for them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Challenge {
    /// The body for this token.
    Http01 {
        /// The last segment of the path.
        token: String,
        /// The body (RFC 8555, 8.1).
        key_authorization: String,
    },
    /// The certificate for this name.
    TlsAlpn01 {
        /// The name, in lower case.
        name: String,
        /// The certificate (DER), with the digest that the CA expects.
        certificate: Vec<u8>,
        /// Its key (PKCS #8).
        key: Vec<u8>,
    },
}

impl fmt::Debug for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Challenge::Http01 { .. } => f.write_str("Http01"),
            Challenge::TlsAlpn01 { name, .. } => f.debug_tuple("TlsAlpn01").field(name).finish(),
        }
    }
}

/// Why an order failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// The CA cannot be reached, or did not answer in time.
    Unreachable,
    /// The CA has refused because of its rate limits.
    RateLimited,
    /// The CA could not verify control of a name.
    Validation,
    /// The CA has refused for another reason.
    Refused,
    /// The certificate or the account could not be written.
    Storage,
    /// `amped-acme` has failed.
    Internal,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 6] = [
        Reason::Unreachable,
        Reason::RateLimited,
        Reason::Validation,
        Reason::Refused,
        Reason::Storage,
        Reason::Internal,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Unreachable => "unreachable",
            Reason::RateLimited => "rate_limited",
            Reason::Validation => "validation",
            Reason::Refused => "refused",
            Reason::Storage => "storage",
            Reason::Internal => "internal",
        }
    }
}

/// The state of a certificate. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its names.
    pub names: Vec<String>,
    /// Its file.
    pub file: PathBuf,
    /// When the current one expires; `None`: there is none yet.
    pub expires: Option<u64>,
    /// When the next order is due.
    pub next_order: u64,
    /// Failures since the last success.
    pub failures: u32,
    /// The last failure since then.
    pub last_error: Option<String>,
}

/// A frame that is too long, or cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid message")
    }
}

impl std::error::Error for Malformed {}

/// Encodes a message as a frame.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let bytes =
        postcard::to_allocvec(message).expect("these types can be encoded, and memory is there or the process aborts");
    let length = u32::try_from(bytes.len()).expect("a message is much shorter than 4 GiB");
    [&length.to_le_bytes()[..], &bytes].concat()
}

/// Divides received bytes into messages.
#[derive(Debug, Default)]
pub struct Decoder {
    received: Vec<u8>,
}

impl Decoder {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// Takes the next message; `None`: it is not complete.
    ///
    /// # Errors
    /// It is invalid, and so is everything after it.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Malformed> {
        let Some((length, rest)) = self.received.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_MAX {
            return Err(Malformed);
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let message = postcard::from_bytes(message).map_err(|_| Malformed)?;
        self.received.drain(..size_of::<u32>() + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_however_they_are_divided() {
        let messages = [
            Report::Log("a".to_owned()),
            Report::Publish(7, vec![Challenge::Http01 { token: "t".to_owned(), key_authorization: "t.k".to_owned() }]),
            Report::Done(1, Err("b".to_owned())),
        ];
        let bytes: Vec<u8> = messages.iter().flat_map(encode).collect();
        for step in 1..bytes.len() {
            let (mut decoder, mut decoded) = (Decoder::default(), Vec::new());
            for piece in bytes.chunks(step) {
                decoder.push(piece);
                while let Some(message) = decoder.take::<Report>().expect("valid") {
                    decoded.push(message);
                }
            }
            assert_eq!(decoded, messages, "{step} bytes at a time");
        }
    }

    #[test]
    fn overlong_and_undecodable_frames_are_errors() {
        let check = |bytes: &[u8]| {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            assert_eq!(decoder.take::<Order>(), Err(Malformed), "{bytes:?}");
        };
        check(&u32::MAX.to_le_bytes());
        check(&[1, 0, 0, 0, 0xff]);
    }

    #[test]
    fn debug_output_has_no_secret() {
        let challenge = Challenge::Http01 { token: "token".to_owned(), key_authorization: "secret".to_owned() };
        assert!(!format!("{challenge:?}").contains("secret"));
    }
}
