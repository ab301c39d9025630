//! The signer: the only process that reads private keys.
//!
//! Its main thread receives open files from the key manager, and sessions at the door. Each session is a thread, which signs one message
//! after the other: as many at a time as there are handshakes that wait for it, on all processors. It opens nothing, and ends with the key
//! manager.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::exit;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use amped_sys::file::Patience;
use amped_sys::{poll, process, socket};
use rustls::SignatureScheme;
use rustls::sign::{CertifiedKey, SigningKey};

use super::{Found, NotSigned, Pair, PublicKey, PublicPair, REQUEST_MAX, Request, Signed, Task};
use crate::certified::{OpenPair, Unusable};
use crate::portable;
use crate::say;
use crate::say::die;

/// The signer's end of what it shares with others.
#[derive(Clone, Copy)]
pub(super) struct Ends<'a> {
    /// From the key manager.
    pub link: &'a OwnedFd,
    /// From those that want signatures.
    pub door: &'a OwnedFd,
}

/// The main function of the signer, with the files that it reads at the start. `yields`: loops take precedence.
pub(super) fn run(ends: Ends<'_>, pairs: impl Iterator<Item = (Pair, Rc<OpenPair>)>, yields: bool) -> ! {
    process::keep_memory_private().unwrap_or_else(|error| die(&format!("cannot protect private keys: {error}")));
    process::set_name(c"keys");
    if yields {
        process::lower_priority();
    }
    let mut keys = Keys::default();
    for (pair, files) in pairs {
        // A pair that cannot be used is reported when the server asks for it.
        let _ = keys.read(&pair, &files);
    }
    match serve(ends, &Arc::new(RwLock::new(keys))) {
        Ok(()) => exit(0),
        Err(error) => die(&format!("the key process failed: {error}")),
    }
}

/// The keys, by their public halves, and the pairs that they belong to.
#[derive(Debug, Default)]
struct Keys {
    keys: HashMap<Vec<u8>, Arc<dyn SigningKey>>,
    pairs: HashMap<Pair, Known>,
}

/// What is known of a pair.
#[derive(Debug)]
struct Known {
    current: PublicPair,
    /// The key that it had before: another process may not know of the current one yet.
    previous: Option<Vec<u8>>,
}

impl Keys {
    fn read(&mut self, pair: &Pair, files: &OpenPair) -> Found {
        let (chain, key) = pair.names();
        let certified = files.certify(chain, key)?;
        let public = describe(&certified).ok_or_else(|| {
            Unusable::key((format!("the private key {} cannot be used: no public half", key.display()), String::new()))
        })?;
        self.keys.insert(public.key.info.clone(), certified.key);
        let before = self.pairs.remove(pair);
        let previous = before.and_then(|Known { current, previous }| match current.key.info == public.key.info {
            true => previous,
            false => Some(current.key.info),
        });
        self.pairs.insert(pair.clone(), Known { current: public.clone(), previous });
        self.drop_unused();
        Ok(public)
    }

    fn forget(&mut self, pair: &Pair) {
        self.pairs.remove(pair);
        self.drop_unused();
    }

    fn drop_unused(&mut self) {
        let used = |info: &Vec<u8>| {
            self.pairs.values().any(|known| known.current.key.info == *info || known.previous.as_ref() == Some(info))
        };
        self.keys.retain(|info, _| used(info));
    }

    fn find(&self, pair: &Pair) -> Found {
        let known = self.pairs.get(pair).map(|known| known.current.clone());
        known.ok_or_else(|| {
            let message = format!("the private key {} was not read by the key process", pair.names().1.display());
            Unusable::key((message, "see the server's log".to_owned()))
        })
    }
}

/// Describes the public half of a key. `None` if it has none.
fn describe(certified: &CertifiedKey) -> Option<PublicPair> {
    let info = certified.key.public_key()?.as_ref().to_vec();
    let mut left = ALL_SCHEMES.to_vec();
    let mut schemes = Vec::new();
    // In order of preference.
    while let Some(signer) = certified.key.choose_scheme(&left) {
        let scheme = signer.scheme();
        left.retain(|other| *other != scheme);
        schemes.push(scheme.into());
    }
    let algorithm = certified.key.algorithm().into();
    let chain = certified.cert.iter().map(|one| one.to_vec()).collect();
    Some(PublicPair { chain, key: PublicKey { info, algorithm, schemes } })
}

/// The signature schemes of TLS 1.2 and 1.3 that any key may support.
const ALL_SCHEMES: [SignatureScheme; 11] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::ED448,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PKCS1_SHA512,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA256,
];

/// Serves until the key manager or the server has ended.
fn serve(ends: Ends<'_>, keys: &Arc<RwLock<Keys>>) -> io::Result<()> {
    loop {
        let ready = poll::wait_readable(&[ends.link.as_fd(), ends.door.as_fd()], Duration::MAX)?;
        if ready[0] && !execute_task(ends.link, keys) {
            return Ok(());
        }
        if ready[1] && !accept(ends.door, keys) {
            return Ok(());
        }
    }
}

/// Executes a task of the key manager; `false`: it has ended.
fn execute_task(link: &OwnedFd, keys: &RwLock<Keys>) -> bool {
    let mut files = Vec::new();
    let Ok(task) = portable::receive(link, &mut files, Patience::Wait) else { return false };
    // Reading takes longer than a signature, but a renewal is rare.
    let mut keys = keys.write().unwrap_or_else(PoisonError::into_inner);
    match task {
        Task::Read(pair) => {
            let found = match <[OwnedFd; 2]>::try_from(files) {
                Ok([chain, key]) => keys.read(&pair, &OpenPair::of(chain, key)),
                Err(_) => {
                    let help = "raise the limit on open files (ulimit -n, LimitNOFILE=)";
                    Err(Unusable::key(("the key process is out of file descriptors".to_owned(), help.to_owned())))
                }
            };
            answer(link, &found)
        }
        Task::Forget(pair) => {
            keys.forget(&pair);
            true
        }
    }
}

/// Sends what was found; `false`: the other side has ended.
fn answer(socket: &OwnedFd, found: &Found) -> bool {
    match portable::send(socket, found, &[], Patience::Wait) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let help = "remove the certificates that are not the site's own or of its issuers";
            let found: Found =
                Err(Unusable::key(("the certificates are longer than 128 KiB".to_owned(), help.to_owned())));
            portable::send(socket, &found, &[], Patience::Wait).is_ok()
        }
        sent => sent.is_ok(),
    }
}

/// Takes a session from the door; `false`: nobody has the other side any more.
fn accept(door: &OwnedFd, keys: &Arc<RwLock<Keys>>) -> bool {
    let mut sessions: Vec<OwnedFd> = Vec::new();
    match socket::receive_with_descriptors(door, &mut [0; 1], &mut sessions, Patience::Now) {
        Ok(received) if received.bytes == 0 => return false,
        Ok(_) => {}
        Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
    }
    for session in sessions {
        let keys = Arc::clone(keys);
        let thread = thread::Builder::new().name("session".to_owned()).stack_size(256 * 1024);
        // Without it the session ends, which its owner notices.
        if let Err(error) = thread.spawn(move || serve_session(&session, &keys)) {
            say!("cannot start a thread of the key process: {error}");
        }
    }
    true
}

/// Serves a session until it ends.
fn serve_session(session: &OwnedFd, keys: &RwLock<Keys>) {
    let mut buffer = vec![0; REQUEST_MAX];
    while let Ok(received) = socket::receive_with_descriptors(session, &mut buffer, &mut Vec::new(), Patience::Wait) {
        // An empty message is the end, and is not valid.
        let is_sent = match portable::read(&buffer[..received.bytes]) {
            Ok(Request::Find(pair)) => {
                answer(session, &keys.read().unwrap_or_else(PoisonError::into_inner).find(&pair))
            }
            Ok(Request::Sign(key, scheme, message)) => {
                let signed = sign(keys, &key, scheme, &message);
                portable::send(session, &signed, &[], Patience::Wait).is_ok()
            }
            Err(_) => false,
        };
        if !is_sent {
            return;
        }
    }
}

fn sign(keys: &RwLock<Keys>, key: &[u8], scheme: u16, message: &[u8]) -> Signed {
    let key = keys.read().unwrap_or_else(PoisonError::into_inner).keys.get(key).cloned().ok_or(NotSigned::NoKey)?;
    let signer = key.choose_scheme(&[scheme.into()]).ok_or(NotSigned::Refused)?;
    signer.sign(message).map_err(|_| NotSigned::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Writes a new pair of this algorithm, and opens it.
    fn issue(folder: &Path, algorithm: &'static rcgen::SignatureAlgorithm) -> (Pair, OpenPair) {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let certificate = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let (chain, file) = (folder.join("a.pem"), folder.join("a.key"));
        fs::write(&chain, certificate.pem()).unwrap();
        fs::write(&file, key.serialize_pem()).unwrap();
        (Pair::new(&chain, &file), OpenPair::open(&chain, &file).unwrap())
    }

    #[test]
    fn previous_key_of_pair_signs_until_pair_is_renewed_again_or_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let keys = RwLock::new(Keys::default());
        let scheme = SignatureScheme::ECDSA_NISTP256_SHA256.into();
        let read = || {
            let (pair, files) = issue(folder.path(), &rcgen::PKCS_ECDSA_P256_SHA256);
            let public = keys.write().unwrap().read(&pair, &files).unwrap();
            assert_eq!(keys.read().unwrap().find(&pair).unwrap(), public);
            // Files that are read again are no renewal.
            assert_eq!(keys.write().unwrap().read(&pair, &files).unwrap(), public);
            (pair, public.key.info)
        };
        let signs = |info: &[u8]| sign(&keys, info, scheme, b"message").is_ok();
        let (_, first) = read();
        let (_, second) = read();
        assert!(signs(&first) && signs(&second));
        let (pair, third) = read();
        assert!(!signs(&first) && signs(&second) && signs(&third));
        assert_eq!(sign(&keys, &third, SignatureScheme::ED25519.into(), b"message"), Err(NotSigned::Refused));
        keys.write().unwrap().forget(&pair);
        assert_eq!(sign(&keys, &third, scheme, b"message"), Err(NotSigned::NoKey));
        assert!(keys.read().unwrap().find(&pair).is_err());
    }

    #[test]
    fn schemes_are_in_order_of_preference_of_key() {
        let folder = tempfile::tempdir().unwrap();
        for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_RSA_SHA256] {
            let (pair, files) = issue(folder.path(), algorithm);
            let (chain, key) = pair.names();
            let certified = files.certify(chain, key).unwrap();
            let schemes = describe(&certified).unwrap().key.schemes;
            assert!(!schemes.is_empty(), "{algorithm:?}");
            for first in 0..ALL_SCHEMES.len() {
                let offered: Vec<SignatureScheme> = ALL_SCHEMES[first..].iter().rev().copied().collect();
                let chosen = certified.key.choose_scheme(&offered).map(|signer| signer.scheme());
                let preferred = schemes.iter().map(|scheme| SignatureScheme::from(*scheme));
                assert_eq!(preferred.into_iter().find(|scheme| offered.contains(scheme)), chosen, "{algorithm:?}");
            }
        }
    }
}
