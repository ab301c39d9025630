//! The certificate of a server under test, for clients that use TLS.
//!
//! It is made for each start, signed by itself and not verified by the clients: with the same kind of key every server
//! does the same work. All servers also listen for HTTP/1.1 without TLS, where the runner looks whether they answer; TLS is
//! at the next port ([`tls_address`]), and so is HTTP/2 without TLS, for which some servers need a port of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use amped_measure::Failure;
use serde::{Deserialize, Serialize};

use crate::archive;

/// The kind of a server's key, which determines what a full handshake costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KeyKind {
    /// ECDSA with P-256.
    Ecdsa,
    /// RSA with 2,048 bits.
    Rsa,
}

/// The files of a certificate, in PEM format.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Certificate {
    /// The certificate.
    pub(crate) chain: PathBuf,
    /// Its private key.
    pub(crate) key: PathBuf,
}

/// Returns the address where a server speaks TLS, from the one where it does not.
pub(crate) fn tls_address(plain: SocketAddr) -> SocketAddr {
    SocketAddr::new(plain.ip(), plain.port().saturating_add(1))
}

impl Certificate {
    /// Makes a key and a certificate for a server with this address, and writes both into a directory.
    ///
    /// # Errors
    /// If they cannot be written, for example because the disk is full.
    pub(crate) fn create(kind: KeyKind, ip: IpAddr, folder: &Path) -> Result<Certificate, Failure> {
        let algorithm = match kind {
            KeyKind::Ecdsa => &rcgen::PKCS_ECDSA_P256_SHA256,
            KeyKind::Rsa => &rcgen::PKCS_RSA_SHA256,
        };
        let failed = |error: rcgen::Error| Failure::failed(format!("cannot make a certificate: {error}"));
        // For RSA this is a key of 2,048 bits.
        let key = rcgen::KeyPair::generate_for(algorithm).map_err(failed)?;
        let parameters = rcgen::CertificateParams::new([ip.to_string()]).map_err(failed)?;
        let certificate = parameters.self_signed(&key).map_err(failed)?;
        let files = Certificate { chain: folder.join("certificate.pem"), key: folder.join("key.pem") };
        archive::write_bytes(&files.chain, certificate.pem().as_bytes())?;
        archive::write_bytes(&files.key, key.serialize_pem().as_bytes())?;
        Ok(files)
    }
}
