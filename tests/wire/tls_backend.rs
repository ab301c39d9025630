//! TLS for the backends of tests: a certificate, and a relay that does TLS in front of a backend without it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;

use rcgen::{CertifiedKey, KeyPair};
use rustls::ServerConnection;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::harness::Site;

/// A self-signed certificate for 127.0.0.1 and `localhost`.
pub static CERTIFICATE: LazyLock<CertifiedKey<KeyPair>> = LazyLock::new(|| signed_for(&["127.0.0.1", "localhost"]));

static CONFIG: LazyLock<Arc<rustls::ServerConfig>> = LazyLock::new(|| {
    let (chain, key) = identity(&CERTIFICATE);
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let mut config = config.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
});

/// Returns a self-signed certificate with these names.
pub fn signed_for(names: &[&str]) -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap()
}

/// Returns a chain and its key, as rustls takes them.
pub fn identity(certified: &CertifiedKey<KeyPair>) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    (vec![certified.cert.der().clone()], key)
}

/// Writes the certificate to a file beside a site.
pub fn authorities(site: &Site) -> PathBuf {
    let path = site.path().with_extension("ca.pem");
    if !path.exists() {
        std::fs::write(&path, CERTIFICATE.cert.pem()).unwrap();
    }
    path
}

/// Returns a connection that carries the bytes of this one without TLS.
pub fn terminate(secure: TcpStream) -> TcpStream {
    terminate_as(secure, &CONFIG, |_| {})
}

/// The same with another configuration; `note` gets the session when its handshake is complete.
pub fn terminate_as(
    secure: TcpStream,
    config: &Arc<rustls::ServerConfig>,
    note: impl FnOnce(&ServerConnection) + Send + 'static,
) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plain = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    let mut session = ServerConnection::new(Arc::clone(config)).unwrap();
    session.set_buffer_limit(None);
    let session = Arc::new(Mutex::new(session));
    let (inward, outward) = (Arc::clone(&session), (secure.try_clone().unwrap(), plain.try_clone().unwrap()));
    thread::spawn(move || {
        pass_in(&inward, &secure, &plain, note);
        let _ = plain.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        pass_out(&session, &outward.0, &outward.1);
        let _ = outward.0.shutdown(Shutdown::Write);
    });
    theirs
}

/// Decrypts until the end.
fn pass_in(
    session: &Mutex<ServerConnection>,
    mut secure: &TcpStream,
    mut plain: &TcpStream,
    note: impl FnOnce(&ServerConnection),
) {
    let (mut buffer, mut note) = (vec![0; 65536], Some(note));
    while let Ok(count @ 1..) = secure.read(&mut buffer) {
        let mut session = session.lock().unwrap();
        let mut bytes = &buffer[..count];
        while !bytes.is_empty() {
            let read = session.read_tls(&mut bytes);
            let state = session.process_new_packets();
            while session.wants_write() {
                if session.write_tls(&mut secure).is_err() {
                    return;
                }
            }
            let (Ok(_), Ok(state)) = (read, state) else { return };
            let mut decrypted = vec![0; state.plaintext_bytes_to_read()];
            session.reader().read_exact(&mut decrypted).unwrap();
            if !session.is_handshaking()
                && let Some(note) = note.take()
            {
                note(&session);
            }
            if plain.write_all(&decrypted).is_err() || state.peer_has_closed() {
                return;
            }
        }
    }
}

/// Encrypts until the end, and announces it.
fn pass_out(session: &Mutex<ServerConnection>, mut secure: &TcpStream, mut plain: &TcpStream) {
    let mut buffer = vec![0; 65536];
    loop {
        let count = plain.read(&mut buffer).unwrap_or(0);
        let mut session = session.lock().unwrap();
        if count == 0 {
            session.send_close_notify();
        }
        session.writer().write_all(&buffer[..count]).unwrap();
        while session.wants_write() {
            if session.write_tls(&mut secure).is_err() {
                return;
            }
        }
        if count == 0 {
            return;
        }
    }
}
