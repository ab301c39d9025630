//! OCSP responses (RFC 6960): a CA's signed and dated statement that a certificate has not been revoked.
//!
//! The server sends a certificate's response in the handshake ("stapling"; RFC 6066, 8), so that clients need not query
//! the CA. It does not fetch responses: the operator's renewal writes them to a file. `certificate` reads the file and
//! decides which response is in use.
//!
//! A response that clients would reject is worse than none, so a response is used only if it says that this very
//! certificate is good, and has not expired. Its signature is not verified: clients do that, and the file is as
//! trustworthy as that of the certificate.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use x509_cert::certificate::Certificate as X509;
use x509_cert::der::asn1::{GeneralizedTime, ObjectIdentifier};
use x509_cert::der::{self, DateTime, Decode, Tag, TagNumber, Tagged};

use crate::elements::{Elements, explicit};

/// Maximum size of a response. Common ones have 300 bytes to 3 KiB; TLS 1.3 has no room for more than 64 KiB.
const RESPONSE_BYTES_MAX: usize = 16 << 10;

/// `id-pkix-ocsp-basic` (RFC 6960, 4.2.1), the only type of response in use.
const BASIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1.1");

/// A response that says that its certificate is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OcspResponse {
    /// The whole response, as sent.
    pub der: Vec<u8>,
    /// When it expires, since 1970; `None`: it does not say.
    pub next_update: Option<Duration>,
}

/// Why a response cannot be used.
#[derive(Clone, Debug)]
pub struct UnusableResponse {
    /// The error.
    pub message: String,
    /// The remedy.
    pub help: String,
}

impl OcspResponse {
    /// Reads the response about the first of these certificates, which are from the file `chain`. `now`: since 1970.
    ///
    /// # Errors
    /// The file cannot be read, or the response is not one that clients accept.
    pub fn read(
        path: &Path,
        certificates: &[CertificateDer<'_>],
        chain: &Path,
        now: Duration,
    ) -> Result<OcspResponse, UnusableResponse> {
        let shown = path.display();
        let fetch = |verb: &str| fetch(verb, path, chain);
        let unusable = |message: String, help: String| UnusableResponse { message, help };
        let mut der = Vec::new();
        let read = File::open(path).and_then(|file| file.take(RESPONSE_BYTES_MAX as u64 + 1).read_to_end(&mut der));
        read.map_err(|error| {
            let help = match error.kind() {
                io::ErrorKind::PermissionDenied => format!(
                    "make it readable by the user that starts the server, and by `user` for renewals; see `namei -l {shown}`"
                ),
                _ => fetch("fetch it"),
            };
            unusable(format!("cannot read the OCSP response {shown}: {error}"), help)
        })?;
        let problem = match parse(&der, &certificates.first().map(serial_of).unwrap_or_default()) {
            _ if der.is_empty() => "is empty".to_owned(),
            _ if der.len() > RESPONSE_BYTES_MAX => format!("is longer than {} KiB", RESPONSE_BYTES_MAX >> 10),
            Ok(Some(end)) if end <= now => format!("expired on {}", date(end)),
            Ok(next_update) => return Ok(OcspResponse { der, next_update }),
            Err(Flaw::Malformed) => "is not DER, as `openssl ocsp -respout` writes it, or is malformed".to_owned(),
            Err(Flaw::Refused(status)) => format!("is an error of the CA: {}", refusal(status)),
            Err(Flaw::Foreign) => format!("is not about the certificate {}", chain.display()),
            Err(Flaw::Unknown) => "says that the CA does not know the certificate".to_owned(),
            Err(Flaw::Revoked) => {
                let help = format!("replace the certificate {}, which clients may refuse", chain.display());
                return Err(unusable(format!("the OCSP response {shown} says that the certificate is revoked"), help));
            }
        };
        Err(unusable(format!("the OCSP response {shown} {problem}"), fetch("fetch another")))
    }
}

/// Formats how to fetch a response.
fn fetch(verb: &str, path: &Path, chain: &Path) -> String {
    let (path, chain) = (path.display(), chain.display());
    format!(
        "{verb} with `openssl ocsp -no_nonce -issuer ISSUER -cert {chain} -url URL -respout {path}`, \
         where `openssl x509 -noout -ocsp_uri -in {chain}` prints URL"
    )
}

/// Formats a time since 1970.
pub fn date(time: Duration) -> String {
    DateTime::from_unix_duration(time).map_or_else(|_| "an unknown date".to_owned(), |date| date.to_string())
}

/// Why a response is not used.
#[derive(Debug, PartialEq, Eq)]
enum Flaw {
    Malformed,
    /// OCSPResponseStatus, other than successful (0).
    Refused(u8),
    /// It is about other certificates.
    Foreign,
    Revoked,
    Unknown,
}

impl From<der::Error> for Flaw {
    fn from(_: der::Error) -> Flaw {
        Flaw::Malformed
    }
}

/// Names an OCSPResponseStatus (RFC 6960, 4.2.1).
fn refusal(status: u8) -> &'static str {
    match status {
        1 => "malformed request",
        2 => "internal error",
        3 => "try later",
        5 => "signature required",
        6 => "unauthorized",
        _ => "unknown status",
    }
}

/// Returns the serial number of a certificate, without leading zeros; empty if it is malformed.
fn serial_of(certificate: &CertificateDer<'_>) -> Vec<u8> {
    let own = X509::from_der(certificate);
    own.map(|own| unsigned(own.tbs_certificate().serial_number().as_bytes()).to_vec()).unwrap_or_default()
}

fn unsigned(number: &[u8]) -> &[u8] {
    &number[number.iter().take_while(|byte| **byte == 0).count()..]
}

/// Checks a response about the certificate of this serial number, and returns when it expires.
///
/// The CA is not compared: a response of another one could match only by chance, and clients reject it.
fn parse(response: &[u8], serial: &[u8]) -> Result<Option<Duration>, Flaw> {
    // RFC 6960, 4.2.1: OCSPResponse ::= SEQUENCE { responseStatus ENUMERATED, responseBytes [0] EXPLICIT OPTIONAL }
    let mut whole = Elements::of(response)?;
    let mut fields = whole.enter(Tag::Sequence)?;
    whole.finish()?;
    match fields.take(Tag::Enumerated)? {
        [0] => {}
        status => return Err(Flaw::Refused(status.first().copied().unwrap_or(u8::MAX))),
    }
    let mut bytes = fields.enter(explicit(0))?.enter(Tag::Sequence)?;
    if bytes.decode::<ObjectIdentifier>()? != BASIC {
        return Err(Flaw::Malformed);
    }
    let mut basic = bytes.enter(Tag::OctetString)?.enter(Tag::Sequence)?;
    // ResponseData ::= SEQUENCE { version [0] DEFAULT v1, responderID, producedAt, responses SEQUENCE OF SingleResponse, ... }
    let mut data = basic.enter(Tag::Sequence)?;
    if data.peek() == Some(explicit(0)) {
        data.element()?;
    }
    data.element()?;
    data.take(Tag::GeneralizedTime)?;
    let mut responses = data.enter(Tag::Sequence)?;
    while !responses.is_finished() {
        // SingleResponse ::= SEQUENCE { certID, certStatus, thisUpdate, nextUpdate [0] EXPLICIT OPTIONAL, ... }
        let mut single = responses.enter(Tag::Sequence)?;
        // CertID ::= SEQUENCE { hashAlgorithm, issuerNameHash, issuerKeyHash, serialNumber }
        let mut id = single.enter(Tag::Sequence)?;
        for tag in [Tag::Sequence, Tag::OctetString, Tag::OctetString] {
            id.take(tag)?;
        }
        let is_own = unsigned(id.take(Tag::Integer)?) == serial;
        let status = single.element()?.tag();
        single.take(Tag::GeneralizedTime)?;
        let next_update = match single.peek() {
            Some(tag) if tag == explicit(0) => Some(single.enter(tag)?.decode::<GeneralizedTime>()?),
            _ => None,
        };
        if !is_own {
            continue;
        }
        // CertStatus ::= CHOICE { good [0] NULL, revoked [1] RevokedInfo, unknown [2] NULL }, all IMPLICIT.
        return match status {
            Tag::ContextSpecific { number: TagNumber(0), .. } => Ok(next_update.map(|time| time.to_unix_duration())),
            Tag::ContextSpecific { number: TagNumber(1), .. } => Err(Flaw::Revoked),
            Tag::ContextSpecific { number: TagNumber(2), .. } => Err(Flaw::Unknown),
            _ => Err(Flaw::Malformed),
        };
    }
    Err(Flaw::Foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By OpenSSL, see `tests/golden/ocsp/README.md`.
    const GOOD: &[u8] = include_bytes!("../../../tests/golden/ocsp/good.der");
    const EXPIRED: &[u8] = include_bytes!("../../../tests/golden/ocsp/expired.der");
    const ENDLESS: &[u8] = include_bytes!("../../../tests/golden/ocsp/endless.der");
    const REVOKED: &[u8] = include_bytes!("../../../tests/golden/ocsp/revoked.der");
    const UNKNOWN: &[u8] = include_bytes!("../../../tests/golden/ocsp/unknown.der");
    const SERIAL: &[u8] = &[0x8a, 0x11, 0x0c, 0x5b];

    /// 2026-11-25.
    const NOW: Duration = Duration::from_secs(20_782 * 86_400);

    #[test]
    fn response_is_parsed() {
        let end = parse(GOOD, SERIAL).unwrap().unwrap();
        assert!(end > NOW + Duration::from_secs(50 * 365 * 86_400), "{}", date(end));
        assert!(parse(EXPIRED, SERIAL).unwrap().unwrap() < NOW);
        assert_eq!(parse(ENDLESS, SERIAL), Ok(None));
        assert_eq!(parse(REVOKED, SERIAL), Err(Flaw::Revoked));
        assert_eq!(parse(UNKNOWN, SERIAL), Err(Flaw::Unknown));
        assert_eq!(parse(GOOD, &SERIAL[1..]), Err(Flaw::Foreign));
        // Unauthorized; RFC 6960, 4.2.1.
        assert_eq!(parse(&[0x30, 3, 0x0a, 1, 6], SERIAL), Err(Flaw::Refused(6)));
    }

    #[test]
    fn damaged_response_does_not_panic() {
        for length in 0..GOOD.len() {
            assert_eq!(parse(&GOOD[..length], SERIAL), Err(Flaw::Malformed), "{length}");
            let mut damaged = GOOD.to_vec();
            for bit in 0..8 {
                damaged[length] ^= 1 << bit;
                let _ = parse(&damaged, SERIAL);
            }
        }
        assert_eq!(parse(&[GOOD, &[0]].concat(), SERIAL), Err(Flaw::Malformed));
    }

    #[test]
    fn unusable_response_is_rejected_with_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ocsp");
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.serial_number = Some(SERIAL.to_vec().into());
        let certificate = params.self_signed(&key).unwrap();
        let read = || OcspResponse::read(&path, &[certificate.der().clone()], Path::new("a.pem"), NOW);
        let check = |content: &[u8], says: &str, remedy: &str| {
            std::fs::write(&path, content).unwrap();
            let UnusableResponse { message, help } = read().expect_err(says);
            assert!(message.contains(says) && help.contains(remedy), "{message}: {help}");
        };
        let missing = read().expect_err("no file");
        assert!(missing.message.contains("No such file or directory"), "{missing:?}");
        check(b"", "is empty", "-respout");
        check(&[0x30; RESPONSE_BYTES_MAX + 1], "is longer than 16 KiB", "-respout");
        check(b"-----BEGIN", "is not DER", "-respout");
        check(EXPIRED, "expired on 2026-11-", "-cert a.pem");
        check(REVOKED, "is revoked", "replace the certificate a.pem");
        check(UNKNOWN, "does not know the certificate", "-respout");
        check(&[0x30, 3, 0x0a, 1, 6], "unauthorized", "-respout");
        std::fs::write(&path, GOOD).unwrap();
        assert_eq!(read().unwrap().der, GOOD);
        params.serial_number = Some(vec![1].into());
        let other = params.self_signed(&key).unwrap();
        let foreign =
            OcspResponse::read(&path, &[other.der().clone()], Path::new("a.pem"), NOW).expect_err("another serial");
        assert!(foreign.message.contains("is not about the certificate a.pem"), "{foreign:?}");
    }
}
