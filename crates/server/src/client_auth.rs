//! Verifies clients' certificates: the CAs that issue them, and the lists of those that they have revoked.
//!
//! The CAs are read with the configuration, the lists also when their file changes. A list that is missing, expired or
//! forged must not let revoked clients in, so such clients are refused as by nginx (`ssl_crl`) and Apache httpd
//! (`SSLCARevocationCheck chain`): each certificate of the chain below a CA of `client_ca` needs a list of its issuer.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use x509_cert::der::Decode;
use x509_cert::name::Name;

use crate::certified::read_chain;
use crate::config::settings::ClientCertificate;
use crate::crl::{Crls, UnusableCrls, shown};
use crate::reread::Reread;

/// How clients' certificates are verified.
#[derive(Clone, Debug)]
pub struct ClientAuth {
    /// Verifies them in new sessions.
    pub verifier: Arc<dyn ClientCertVerifier>,
    /// The CAs.
    roots: Arc<RootCertStore>,
    certificate: ClientCertificate,
    /// The lists of revoked certificates, if a file is configured.
    pub crls: Option<Crls>,
}

/// What has become of CRLs that were checked.
#[derive(Debug)]
pub enum CrlChange {
    /// They were replaced.
    Replaced,
    /// Their file has changed and cannot be used, so the current ones stay in use.
    Unusable(UnusableCrls),
    /// Some have expired, or the clock was set back.
    Expiry,
}

impl CrlChange {
    /// Returns whether clients that were verified before may be refused now.
    pub fn is_change(&self) -> bool {
        matches!(self, CrlChange::Replaced | CrlChange::Expiry)
    }
}

/// Why clients' certificates cannot be verified.
#[derive(Debug)]
pub struct UnusableAuth {
    /// Whether the error is in the file of the CRLs, not in that of the CAs.
    pub is_crl: bool,
    /// The error.
    pub message: String,
    /// The remedy.
    pub help: String,
}

impl ClientAuth {
    /// Reads the CAs and the CRLs. `now`: since 1970.
    ///
    /// # Errors
    /// A file cannot be read, or is invalid.
    pub fn read(
        authorities: &Path,
        certificate: ClientCertificate,
        crls: Option<&Path>,
        now: Duration,
    ) -> Result<ClientAuth, UnusableAuth> {
        let unusable = |(message, help)| UnusableAuth { is_crl: false, message, help };
        let cannot = |why: &dyn fmt::Display| {
            let message = format!("cannot use the CA certificates in {}: {why}", authorities.display());
            unusable((message, "the file must contain CA certificates".to_owned()))
        };
        let mut roots = RootCertStore::empty();
        for authority in read_chain(authorities).map_err(unusable)? {
            roots.add(authority).map_err(|error| cannot(&error))?;
        }
        let roots = Arc::new(roots);
        let verifier = verifier(&roots, certificate, Vec::new()).map_err(|error| cannot(&error))?;
        let mut auth = ClientAuth { verifier, roots, certificate, crls: None };
        if let Some(path) = crls {
            let read = read_crls(path, &auth.roots, certificate, now);
            let (crls, verifier) =
                read.map_err(|UnusableCrls { message, help }| UnusableAuth { is_crl: true, message, help })?;
            (auth.crls, auth.verifier) = (Some(crls), verifier);
        }
        Ok(auth)
    }

    /// Reads the CRLs again if their file has changed, and checks their expiry. An unusable file is reported once. `now`:
    /// since 1970.
    pub fn reread(&mut self, when: Reread, now: Duration) -> Vec<CrlChange> {
        let Some(crls) = &mut self.crls else { return Vec::new() };
        let mut changes = Vec::new();
        if crls.have_changed(when) {
            match read_crls(&crls.path, &self.roots, self.certificate, now) {
                Ok((new, _)) if new.are_same(crls) => {}
                Ok((new, verifier)) => {
                    // An expired list would refuse clients that are accepted now.
                    let are_current = crls.expired().next().is_none();
                    let expired = new.expired().next().filter(|_| are_current);
                    changes.push(expired.map_or(CrlChange::Replaced, CrlChange::Unusable));
                    if let Some(CrlChange::Replaced) = changes.last() {
                        (*crls, self.verifier) = (new, verifier);
                    }
                }
                Err(unusable) => changes.push(CrlChange::Unusable(unusable)),
            }
        }
        if crls.check_expiry(now) {
            changes.push(CrlChange::Expiry);
        }
        changes
    }

    /// Identifies how clients are verified, to bind tickets to it: a resumed session verifies no certificate.
    pub fn identity(&self) -> Vec<u8> {
        self.crls.as_ref().map(Crls::identity).unwrap_or_default()
    }

    /// The names of the CAs that have no CRL, if a file of CRLs is configured.
    pub fn without_crl(&self) -> Vec<String> {
        let Some(crls) = &self.crls else { return Vec::new() };
        let names = self.roots.subjects().into_iter().filter_map(|name| Name::from_der(name.as_ref()).ok());
        names.filter(|name| crls.lists.iter().all(|crl| crl.issuer != *name)).map(|name| shown(&name)).collect()
    }
}

/// Reads CRLs, and returns a verifier that uses them.
fn read_crls(
    path: &Path,
    roots: &Arc<RootCertStore>,
    certificate: ClientCertificate,
    now: Duration,
) -> Result<(Crls, Arc<dyn ClientCertVerifier>), UnusableCrls> {
    let (crls, encoded) = Crls::read(path, now)?;
    match verifier(roots, certificate, encoded) {
        Ok(verifier) => Ok((crls, verifier)),
        Err(VerifierBuilderError::InvalidCrl(error)) => Err(crls.unusable(&error)),
        Err(error) => {
            Err(UnusableCrls { message: format!("cannot verify clients: {error}"), help: "see `client_ca`".to_owned() })
        }
    }
}

fn verifier(
    roots: &Arc<RootCertStore>,
    certificate: ClientCertificate,
    crls: Vec<CertificateRevocationListDer<'static>>,
) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::new(default_provider()));
    let builder = match certificate {
        ClientCertificate::Required => builder,
        ClientCertificate::Optional => builder.allow_unauthenticated(),
    };
    // With lists it checks the whole chain, and refuses a certificate whose issuer has none.
    builder.with_crls(crls).enforce_revocation_expiration().build()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
    use rustls::pki_types::{CertificateDer, UnixTime};
    use rustls::{CertRevocationListError, CertificateError, Error};

    use super::*;

    /// 2026-11-25.
    const NOW: Duration = Duration::from_secs(20_782 * 86_400);

    /// 2027-01-01, when the lists below expire.
    const END: Duration = Duration::from_secs(20_819 * 86_400);

    type Ca = CertifiedIssuer<'static, KeyPair>;

    fn params(name: &str, serial: u64, ca: IsCa) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(rcgen::SerialNumber::from(serial));
        params.is_ca = ca;
        params
    }

    fn root(name: &str) -> Ca {
        let params = params(name, 1, IsCa::Ca(BasicConstraints::Unconstrained));
        Ca::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn below(by: &Ca, name: &str, serial: u64) -> Ca {
        let params = params(name, serial, IsCa::Ca(BasicConstraints::Unconstrained));
        Ca::signed_by(params, KeyPair::generate().unwrap(), by).unwrap()
    }

    fn client(by: &Ca, serial: u64) -> CertificateDer<'static> {
        let mut params = params("client", serial, IsCa::NoCa);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.signed_by(&KeyPair::generate().unwrap(), by).unwrap().der().clone()
    }

    /// A list of these serial numbers, which expires at the beginning of this year.
    fn crl(by: &Ca, revoked: &[u64], end: i32) -> String {
        let revoked = revoked.iter().map(|&serial| rcgen::RevokedCertParams {
            serial_number: rcgen::SerialNumber::from(serial),
            revocation_time: date_time_ymd(2024, 6, 17),
            reason_code: None,
            invalidity_date: None,
        });
        let params = rcgen::CertificateRevocationListParams {
            this_update: date_time_ymd(2025, 6, 17),
            next_update: date_time_ymd(end, 1, 1),
            crl_number: rcgen::SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        params.signed_by(by).unwrap().pem().unwrap()
    }

    /// A directory with the CA in `ca` and these lists in `crl`.
    fn folder(ca: &Ca, crls: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca"), ca.pem()).unwrap();
        fs::write(folder.path().join("crl"), crls).unwrap();
        folder
    }

    fn read(folder: &tempfile::TempDir) -> Result<ClientAuth, UnusableAuth> {
        let [ca, crl] = ["ca", "crl"].map(|name| folder.path().join(name));
        ClientAuth::read(&ca, ClientCertificate::Required, Some(&crl), NOW)
    }

    fn verify(auth: &ClientAuth, chain: &[CertificateDer<'_>], now: Duration) -> Result<(), Error> {
        let now = UnixTime::since_unix_epoch(now);
        auth.verifier.verify_client_cert(&chain[0], &chain[1..], now).map(|_| ())
    }

    fn refused(why: CertificateError) -> Result<(), Error> {
        Err(Error::InvalidCertificate(why))
    }

    #[test]
    fn whole_chain_needs_current_lists() {
        let root = root("root");
        let (good, revoked) = (below(&root, "good", 2), below(&root, "revoked", 3));
        let chain = |by: &Ca, serial| [client(by, serial), by.der().clone()];
        let folder =
            folder(&root, &[crl(&root, &[3], 2027), crl(&good, &[7], 2028), crl(&revoked, &[], 2028)].concat());
        let auth = read(&folder).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(verify(&auth, &chain(&good, 6), NOW), Ok(()));
        assert_eq!(verify(&auth, &chain(&good, 7), NOW), refused(CertificateError::Revoked));
        assert_eq!(verify(&auth, &chain(&revoked, 6), NOW), refused(CertificateError::Revoked));
        assert_eq!(verify(&auth, &[client(&root, 5)], NOW), Ok(()));
        // A CA without a list.
        let other = below(&root, "other", 4);
        assert_eq!(verify(&auth, &chain(&other, 6), NOW), refused(CertificateError::UnknownRevocationStatus));
        // The list of the root has expired.
        let expired = verify(&auth, &chain(&good, 6), END);
        assert!(format!("{expired:?}").contains("ExpiredRevocationList"), "{expired:?}");
        // A list that another CA of this name has signed.
        let forger = below(&root, "good", 2);
        fs::write(folder.path().join("crl"), [crl(&root, &[], 2028), crl(&forger, &[], 2028)].concat()).unwrap();
        let auth = read(&folder).unwrap_or_else(|error| panic!("{error:?}"));
        let forged = Err(Error::InvalidCertRevocationList(CertRevocationListError::BadSignature));
        assert_eq!(verify(&auth, &chain(&good, 6), NOW), forged);
        assert!(auth.without_crl().is_empty());
        fs::write(folder.path().join("crl"), crl(&good, &[], 2028)).unwrap();
        assert_eq!(read(&folder).unwrap_or_else(|error| panic!("{error:?}")).without_crl(), ["CN=root"]);
    }

    #[test]
    fn crls_are_replaced_only_by_usable_ones() {
        let root = root("root");
        let folder = folder(&root, &crl(&root, &[], 2027));
        let mut auth = read(&folder).unwrap_or_else(|error| panic!("{error:?}"));
        let client = [client(&root, 5)];
        // By renaming, so that the inode changes: the time of modification may not, in a test.
        let replace = |content: &str| {
            fs::write(folder.path().join("new"), content).unwrap();
            fs::rename(folder.path().join("new"), folder.path().join("crl")).unwrap();
        };
        let check = |auth: &mut ClientAuth, now: Duration, says: &str| {
            let before = auth.identity();
            let changes = auth.reread(Reread::Now, now);
            assert!(format!("{changes:?}").contains(says), "{says} is not in {changes:?}");
            assert_eq!(auth.identity() != before, changes.iter().any(CrlChange::is_change), "{says}");
            assert!(auth.reread(Reread::Now, now).is_empty(), "{says}, again");
        };
        check(&mut auth, NOW, "[]");
        replace("");
        check(&mut auth, NOW, "contains no CRL");
        replace(&crl(&root, &[5], 2026));
        check(&mut auth, NOW, "expired on 2026-01-01");
        assert_eq!(verify(&auth, &client, NOW), Ok(()));
        replace(&crl(&root, &[5], 2027));
        check(&mut auth, NOW, "Replaced");
        assert_eq!(verify(&auth, &client, NOW), refused(CertificateError::Revoked));
        // The same list in a new file.
        replace(&fs::read_to_string(folder.path().join("crl")).unwrap());
        check(&mut auth, NOW, "[]");
        check(&mut auth, END, "Expiry");
        // Now no client is accepted, so lists of other CAs need not wait for this one.
        replace(&[crl(&root, &[5], 2026), crl(&below(&root, "other", 4), &[], 2028)].concat());
        check(&mut auth, END, "Replaced");
        replace(&crl(&root, &[], 2028));
        check(&mut auth, END, "Replaced");
        assert_eq!(verify(&auth, &client, END), Ok(()));
        fs::remove_file(folder.path().join("crl")).unwrap();
        check(&mut auth, END, "No such file");
    }

    #[test]
    fn list_that_rustls_does_not_accept_is_an_error() {
        // A list of an unknown critical extension: issuingDistributionPoint (2.5.29.28) becomes 2.5.29.127.
        let root = root("root");
        let scope = rcgen::CrlIssuingDistributionPoint {
            distribution_point: rcgen::CrlDistributionPoint { uris: vec!["http://a/b".to_owned()] },
            scope: None,
        };
        let params = rcgen::CertificateRevocationListParams {
            this_update: date_time_ymd(2025, 6, 17),
            next_update: date_time_ymd(2027, 1, 1),
            crl_number: rcgen::SerialNumber::from(1_u64),
            issuing_distribution_point: Some(scope),
            revoked_certs: Vec::new(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        let mut list = params.signed_by(&root).unwrap().der().to_vec();
        let at = list.windows(5).position(|bytes| bytes == [6, 3, 0x55, 0x1d, 28]).expect("the extension");
        list[at + 4] = 127;
        let error = verifier(&roots_of(&root), ClientCertificate::Required, vec![list.into()]).expect_err("unknown");
        let VerifierBuilderError::InvalidCrl(error) = error else { panic!("{error}") };
        let folder = folder(&root, &crl(&root, &[], 2027));
        let crls = read(&folder).ok().and_then(|auth| auth.crls).expect("lists");
        let UnusableCrls { message, help } = crls.unusable(&error);
        assert!(message.contains("has an unknown critical extension") && help.contains("without"), "{message}: {help}");
    }

    fn roots_of(ca: &Ca) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        Arc::new(roots)
    }
}
