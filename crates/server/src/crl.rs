//! Certificate revocation lists (CRLs; RFC 5280, 5): a CA's signed and dated list of the certificates that it has revoked.
//!
//! The server verifies clients' certificates with lists from a file. It does not fetch lists: the operator does, and
//! writes them to the file. `client_auth` decides which lists are in use. Here only the fields are parsed that are
//! reported; rustls parses the rest, and verifies the signature of a list whenever it uses one.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::CertRevocationListError;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{self, Tag};
use x509_cert::ext::Extensions;
use x509_cert::name::Name;
use x509_cert::time::Time;

use crate::certified::pem_problem;
use crate::elements::{Elements, explicit};
use crate::ocsp::date;
use crate::reread::{FileStates, Reread};

/// The extension that limits a list to some certificates of its CA, issuingDistributionPoint (RFC 5280, 5.2.5).
const SCOPE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.28");

/// The lists in a file.
#[derive(Clone, Debug)]
pub struct Crls {
    /// The file.
    pub path: PathBuf,
    /// Its state when it was read.
    file: FileStates<1>,
    /// The newest list of each CA and scope.
    pub lists: Vec<Crl>,
    /// SHA-256 of the lists.
    digest: [u8; 32],
    /// When their expiry was checked, since 1970.
    checked: Duration,
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crl {
    /// The CA.
    pub issuer: Name,
    /// When the CA issued it, since 1970.
    this_update: Duration,
    /// When it expires, since 1970.
    pub next_update: Duration,
    /// The certificates that it is about, as encoded; `None`: all of the CA.
    scope: Option<Vec<u8>>,
}

/// Why lists cannot be used.
#[derive(Clone, Debug)]
pub struct UnusableCrls {
    /// The error.
    pub message: String,
    /// The remedy.
    pub help: String,
}

impl Crls {
    /// Reads a file, and returns also the lists for rustls. An expired list is no error here. `now`: since 1970.
    ///
    /// # Errors
    /// The file cannot be read, has no list, or has one that is malformed.
    pub fn read(
        path: &Path,
        now: Duration,
    ) -> Result<(Crls, Vec<CertificateRevocationListDer<'static>>), UnusableCrls> {
        let shown = path.display();
        let file = FileStates::new([path]);
        let read = CertificateRevocationListDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let read = read.map_err(|error| {
            let (message, help) = pem_problem("CRL", path, &error);
            UnusableCrls { message, help }
        })?;
        if read.is_empty() {
            let help = "the file must be PEM, and contain `-----BEGIN X509 CRL-----`; `openssl crl -inform DER` \
                        converts a list in DER";
            return Err(UnusableCrls { message: format!("{shown} contains no CRL"), help: help.to_owned() });
        }
        let mut parsed = Vec::new();
        for (number, list) in (1..).zip(read) {
            let crl = parse(&list).map_err(|flaw| {
                let (problem, help) = flaw.described();
                UnusableCrls { message: format!("CRL {number} in {shown} {problem}"), help: help.to_owned() }
            })?;
            parsed.push((crl, list));
        }
        // rustls uses the first list of a CA and scope, whatever its date.
        parsed.sort_by_key(|(crl, _)| Reverse(crl.this_update));
        let (mut lists, mut encoded) = (Vec::<Crl>::new(), Vec::new());
        let mut digest = Context::new(&SHA256);
        for (crl, list) in parsed {
            if lists.iter().any(|newer| newer.issuer == crl.issuer && newer.scope == crl.scope) {
                continue;
            }
            digest.update(&list);
            lists.push(crl);
            encoded.push(list);
        }
        let mut crls = Crls { path: path.to_owned(), file, lists, digest: [0; 32], checked: now };
        crls.digest.copy_from_slice(digest.finish().as_ref());
        Ok((crls, encoded))
    }

    /// Returns whether the file must be read again; see [`FileStates::have_changed`].
    pub fn have_changed(&mut self, when: Reread) -> bool {
        self.file.have_changed([&self.path], when)
    }

    /// Returns whether these are the same lists.
    pub fn are_same(&self, other: &Crls) -> bool {
        self.digest == other.digest
    }

    /// Checks which lists have expired; returns whether it is another number of them than before. `now`: since 1970.
    pub fn check_expiry(&mut self, now: Duration) -> bool {
        let before = self.expired().count();
        self.checked = now;
        self.expired().count() != before
    }

    /// The lists that had expired at the last check, each with the error and the remedy.
    pub fn expired(&self) -> impl Iterator<Item = UnusableCrls> {
        let expired = self.lists.iter().filter(|crl| crl.next_update <= self.checked);
        expired.map(|crl| {
            let (issuer, path, end) = (shown(&crl.issuer), self.path.display(), date(crl.next_update));
            let message = format!("the CRL of {issuer} in {path} expired on {end}");
            UnusableCrls { message, help: "replace it by the current one of this CA".to_owned() }
        })
    }

    /// Identifies the lists and which of them had expired at the last check: clients that were verified by other ones
    /// may be refused now.
    pub fn identity(&self) -> Vec<u8> {
        [&self.digest[..], &self.expired().count().to_be_bytes()].concat()
    }

    /// Describes lists that rustls does not accept.
    pub fn unusable(&self, error: &CertRevocationListError) -> UnusableCrls {
        use CertRevocationListError as Error;
        let (problem, help) = match error {
            Error::UnsupportedDeltaCrl => ("is a delta CRL", "write the complete list of the CA to the file"),
            Error::UnsupportedIndirectCrl => ("is indirect", "write a list of each CA to the file"),
            Error::UnsupportedCriticalExtension => ("has an unknown critical extension", "have it issued without"),
            _ => ("is malformed", "have it issued again"),
        };
        let message = format!("a CRL in {} {problem} ({error:?})", self.path.display());
        UnusableCrls { message, help: help.to_owned() }
    }
}

/// Formats the name of a CA (RFC 4514), without control characters.
pub fn shown(name: &Name) -> String {
    name.to_string().replace(char::is_control, "?")
}

/// Why a list is not used.
#[derive(Debug, PartialEq, Eq)]
enum Flaw {
    Malformed,
    /// It has version 1, or an unknown one.
    Version,
    /// It has no nextUpdate.
    Endless,
}

impl Flaw {
    /// The error and the remedy.
    fn described(&self) -> (&'static str, &'static str) {
        match self {
            Flaw::Malformed => ("is malformed", "have it issued again"),
            Flaw::Version => (
                "does not have version 2",
                "have it issued with extensions: `openssl ca` needs `crl_extensions` and `crlnumber` in its configuration",
            ),
            Flaw::Endless => {
                ("has no nextUpdate", "have it issued with an end, for instance by `openssl ca -gencrl -crldays 7`")
            }
        }
    }
}

impl From<der::Error> for Flaw {
    fn from(_: der::Error) -> Flaw {
        Flaw::Malformed
    }
}

fn parse(list: &[u8]) -> Result<Crl, Flaw> {
    // RFC 5280, 5.1: CertificateList ::= SEQUENCE { tbsCertList, signatureAlgorithm, signatureValue }
    let mut whole = Elements::of(list)?;
    let mut fields = whole.enter(Tag::Sequence)?.enter(Tag::Sequence)?;
    whole.finish()?;
    // TBSCertList ::= SEQUENCE { version INTEGER OPTIONAL, signature SEQUENCE, issuer Name, thisUpdate Time,
    // nextUpdate Time OPTIONAL, revokedCertificates SEQUENCE OPTIONAL, crlExtensions [0] EXPLICIT OPTIONAL }
    if fields.peek() != Some(Tag::Integer) || fields.take(Tag::Integer)? != [1] {
        // A list of version 1 begins with its signature algorithm.
        return Err(if matches!(fields.peek(), Some(Tag::Sequence)) { Flaw::Version } else { Flaw::Malformed });
    }
    fields.take(Tag::Sequence)?;
    let issuer = fields.decode::<Name>()?;
    let this_update = fields.decode::<Time>()?.to_unix_duration();
    if !matches!(fields.peek(), Some(Tag::UtcTime | Tag::GeneralizedTime)) {
        return Err(Flaw::Endless);
    }
    let next_update = fields.decode::<Time>()?.to_unix_duration();
    if fields.peek() == Some(Tag::Sequence) {
        fields.element()?;
    }
    let mut scope = None;
    if fields.peek() == Some(explicit(0)) {
        let extensions = fields.enter(explicit(0))?.decode::<Extensions>()?;
        let limit = extensions.into_iter().find(|extension| extension.extn_id == SCOPE);
        scope = limit.map(|limit| limit.extn_value.as_bytes().to_vec());
    }
    Ok(Crl { issuer, this_update, next_update, scope })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, KeyPair, date_time_ymd};

    /// 2026-11-25.
    const NOW: Duration = Duration::from_secs(20_782 * 86_400);

    fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// A list that was issued on this day of November 2026, and expires at the end of the year.
    fn list(by: &CertifiedIssuer<'static, KeyPair>, day: u8, scope: Option<&str>) -> rcgen::CertificateRevocationList {
        let scope = scope.map(|uri| rcgen::CrlIssuingDistributionPoint {
            distribution_point: rcgen::CrlDistributionPoint { uris: vec![uri.to_owned()] },
            scope: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 11, day),
            next_update: date_time_ymd(2026, 12, 31),
            crl_number: rcgen::SerialNumber::from(1_u64),
            issuing_distribution_point: scope,
            revoked_certs: Vec::new(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        params.signed_by(by).unwrap()
    }

    #[test]
    fn newest_list_of_each_ca_and_scope_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crl");
        let (one, other) = (authority("one"), authority("other"));
        let (old, new, part) = (list(&one, 1, None), list(&one, 3, None), list(&one, 2, Some("http://a/b")));
        let own = list(&other, 4, None);
        let text: String = [&old, &own, &part, &new].iter().map(|list| list.pem().unwrap()).collect();
        fs::write(&path, text).unwrap();
        let (mut crls, encoded) = Crls::read(&path, NOW).unwrap_or_else(|error| panic!("{error:?}"));
        let issuers: Vec<String> = crls.lists.iter().map(|crl| shown(&crl.issuer)).collect();
        assert_eq!(issuers, ["CN=other", "CN=one", "CN=one"]);
        assert_eq!(encoded, [own.der().clone(), new.der().clone(), part.der().clone()]);
        assert_eq!(date(crls.lists[0].next_update), "2026-12-31T00:00:00Z");
        // The lists are the same in another order, and differ once they have expired.
        let text: String = [&new, &part, &own].iter().map(|list| list.pem().unwrap()).collect();
        fs::write(&path, text).unwrap();
        let (same, _) = Crls::read(&path, NOW).unwrap_or_else(|error| panic!("{error:?}"));
        assert!(crls.are_same(&same) && crls.identity() == same.identity());
        let end = crls.lists[0].next_update;
        assert!(!crls.check_expiry(end - Duration::from_secs(1)) && crls.expired().count() == 0);
        assert!(crls.check_expiry(end) && !crls.check_expiry(end));
        let expired: Vec<String> = crls.expired().map(|problem| problem.message).collect();
        assert_eq!(expired.len(), 3);
        assert!(expired[0].contains("the CRL of CN=other in ") && expired[0].ends_with("on 2026-12-31T00:00:00Z"));
        assert!(crls.are_same(&same) && crls.identity() != same.identity());
    }

    #[test]
    fn damaged_list_does_not_panic() {
        let whole = list(&authority("one"), 1, Some("http://a/b")).der().to_vec();
        assert!(parse(&whole).is_ok());
        for place in 0..whole.len() {
            assert_eq!(parse(&whole[..place]), Err(Flaw::Malformed), "{place}");
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[place] ^= 1 << bit;
                let _ = parse(&damaged);
            }
        }
    }

    #[test]
    fn unusable_file_is_rejected_with_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crl");
        let check = |text: &str, says: &str, remedy: &str| {
            fs::write(&path, text).unwrap();
            let UnusableCrls { message, help } = Crls::read(&path, NOW).expect_err(says);
            assert!(message.contains(says) && help.contains(remedy), "{message}: {help}");
        };
        let missing = Crls::read(&path, NOW).expect_err("no file");
        assert!(missing.message.contains("cannot read the CRL") && missing.help.contains("correct the path"));
        let authority = authority("one");
        let good = list(&authority, 1, None).pem().unwrap();
        check("", "contains no CRL", "openssl crl -inform DER");
        check(&authority.pem(), "contains no CRL", "X509 CRL");
        check("-----BEGIN X509 CRL-----\n!\n-----END X509 CRL-----\n", "cannot read the CRL", "must be PEM");
        check(&format!("{good}{}", pem(&[0x30, 0])), "CRL 2 in ", "issued again");
        // TBSCertLists: a signature algorithm without a version before it, and one whose list ends after thisUpdate.
        check(&pem(&[0x30, 4, 0x30, 2, 0x30, 0]), "does not have version 2", "crl_extensions");
        let times = [&b"\x30\x16\x02\x01\x01\x30\x00\x30\x00\x17\x0d"[..], b"261101000000Z"].concat();
        check(&pem(&[&[0x30, 0x18], &times[..]].concat()), "has no nextUpdate", "-crldays");
    }

    fn pem(der: &[u8]) -> String {
        format!("-----BEGIN X509 CRL-----\n{}\n-----END X509 CRL-----\n", STANDARD.encode(der))
    }
}
