//! Private keys in a process of their own, `tls.keys = "process"`: all others have certificates, and ask it for signatures.
//!
//! Three parties. The *signer* (`signer`) holds the keys and does nothing but sign. The *key manager* (`manager`) opens the
//! files and starts the signer, and starts it again when it dies; it never reads a key. Both run from before ports are opened, as
//! the user that serves, with the limits of the server, and no other process can read their memory. The *client* (`client`) is
//! what the server's own processes have instead of keys: a [`SigningKey`](rustls::sign::SigningKey) that sends what is to be signed.
//!
//! ```text
//!  main thread --- control: read these files ---> key manager -- link: open files --> signer
//!  loops, threads, MP's processes --- door: here is my socket ------------------------> |
//!                                 --- session: sign this with that key ---------------> |
//! ```
//!
//! The signer is the only reader of the door, so each session is a connection to one signer: it ends with it, and what waits at the
//! door is for the next one. A key is named by its public half, which no restart or renewal can confuse.
//!
//! A server whose memory can be read by an attacker loses no key then; one that an attacker controls can still have signatures made, as
//! long as the attack lasts.

pub mod client;
pub mod manager;
mod signer;

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::certified::Unusable;

/// The names of the files of a chain and its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pair {
    chain: OsString,
    key: OsString,
}

impl Pair {
    /// Creates it for these names.
    pub fn new(chain: &Path, key: &Path) -> Pair {
        Pair { chain: chain.into(), key: key.into() }
    }

    fn names(&self) -> (&Path, &Path) {
        (Path::new(&self.chain), Path::new(&self.key))
    }
}

/// What others know of a pair: the certificates, and the public half of the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PublicPair {
    /// In DER.
    chain: Vec<Vec<u8>>,
    key: PublicKey,
}

/// The public half of a key, and what the key can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PublicKey {
    /// SubjectPublicKeyInfo (RFC 5280, 4.1.2.7), which names the key.
    info: Vec<u8>,
    /// RFC 5246, 7.4.1.4.1.
    algorithm: u8,
    /// The signature schemes (RFC 8446, 4.2.3), in order of preference.
    schemes: Vec<u16>,
}

/// What has come of reading a pair.
type Found = Result<PublicPair, Unusable>;

/// A message from the main thread to the key manager.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Open and read these files; [`Found`] is sent back with the number.
    Read(u64, Pair),
    /// A new configuration is in force: forget the pairs that were not read since the last one was.
    Commit,
}

/// A message from the key manager to the signer, on its link.
#[derive(Debug, Serialize, Deserialize)]
enum Task {
    /// Read the files that are sent along; [`Found`] is sent back.
    Read(Pair),
    /// Forget this pair.
    Forget(Pair),
}

/// A message on a session.
#[derive(Debug, Serialize, Deserialize)]
enum Request<'a> {
    /// Describe this pair as it was last read: [`Found`].
    Find(Cow<'a, Pair>),
    /// Sign with the key of this name, in this scheme, this message: an [`Signed`].
    Sign(Cow<'a, [u8]>, u16, Cow<'a, [u8]>),
}

/// The answer to [`Request::Sign`].
type Signed = Result<Vec<u8>, NotSigned>;

/// Why the signer has not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum NotSigned {
    /// It does not have the key.
    NoKey,
    /// The key cannot sign this.
    Refused,
}

/// Maximum bytes of a request: two names of files, or a public key and what is signed in a handshake, some hundred bytes.
const REQUEST_MAX: usize = 16 * 1024;

/// Maximum bytes of an answer with a signature, which has 1,024 bytes with the longest keys.
const SIGNED_MAX: usize = 2048;
