//! The parameters of new TLS sessions: protocol versions, certificates by name, tickets.
//!
//! Each configuration has its own; existing sessions keep theirs. The server supports TLS 1.2 and 1.3 with forward
//! secrecy and authenticated encryption, as Mozilla's *intermediate* profile requires, and nothing weaker, so none of
//! this is configurable.
//!
//! Certificates, OCSP responses, CRLs and the ticket secret are replaced when their files change, and ticket keys after
//! some hours ([`TlsConfig::refresh`]), without a new configuration: connections, caches and processes are not affected.
//!
//! A site whose certificate is still to be obtained (ACME) refuses handshakes: a certificate that browsers do not accept would
//! train users to ignore warnings.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use amped_acme_protocol::{ChallengeKind, TLS_ALPN_01_PROTOCOL};
use amped_core::site::Sites;
use amped_exporter::Page;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{KeyLogFile, ServerConfig, SignatureAlgorithm};

use crate::certificate::{Certificate, Renewal};
use crate::certified::Unusable;
use crate::challenges::Challenges;
use crate::client_auth::{ClientAuth, CrlChange};
use crate::clock;
use crate::config::Settings;
use crate::crl::{self, Crl, Crls, UnusableCrls};
use crate::keys::client::KeySource;
use crate::metrics::{Expiry, TlsExpiries};
use crate::ocsp::UnusableResponse;
use crate::reread::Reread;
use crate::say;
use crate::tickets::Tickets;
use crate::transport::tls::{HTTP1, HTTP2, Tls};

/// The parameters of new TLS sessions.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// Locked only to begin a session or for a replacement.
    new_sessions: Arc<RwLock<NewSessions>>,
    certificates: Arc<Certificates>,
    tickets: Arc<Tickets>,
    verifies_clients: bool,
    http2: bool,
}

/// How long a signature of the server takes, by its kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SignatureTime {
    /// ECDSA and Ed25519: below 0.1 ms.
    Short,
    /// RSA with up to 2,048 bits: 0.2 to 0.5 ms.
    Medium,
    /// RSA with more: milliseconds.
    Long,
    /// Another process signs: its time is not known.
    Elsewhere,
}

/// Length of the public key (SubjectPublicKeyInfo) of an RSA key with 2,048 bits and the usual exponent, bytes.
const SHORT_RSA_KEY: usize = 294;

impl SignatureTime {
    fn of_slowest(keys: &KeySource, by_site: &[Vec<Certificate>]) -> SignatureTime {
        if keys.process().is_some() {
            return SignatureTime::Elsewhere;
        }
        let times = by_site.iter().flatten().map(|one| SignatureTime::of(&*one.certified.key));
        times.max().unwrap_or(SignatureTime::Short)
    }

    fn of(key: &dyn SigningKey) -> SignatureTime {
        match key.algorithm() {
            SignatureAlgorithm::RSA if key.public_key().is_some_and(|public| public.len() <= SHORT_RSA_KEY) => {
                SignatureTime::Medium
            }
            SignatureAlgorithm::RSA => SignatureTime::Long,
            _ => SignatureTime::Short,
        }
    }
}

/// What new sessions begin with.
#[derive(Debug)]
struct NewSessions {
    /// Replaced together with the CRLs: a handshake that began before then gets a ticket that is no longer valid.
    config: Arc<ServerConfig>,
    client_auth: Option<ClientAuth>,
}

impl TlsConfig {
    /// Creates it for these settings; `None` if no address has TLS. Tickets of the previous configuration stay valid, unless
    /// one of them verifies clients, or only one has a ticket secret in a file.
    ///
    /// # Errors
    /// When the system has no random bytes for the ticket keys, or SSLKEYLOGFILE is not set.
    pub fn new(
        settings: &Settings,
        challenges: Option<&Arc<Challenges>>,
        old: Option<&TlsConfig>,
    ) -> Result<Option<TlsConfig>, String> {
        if !settings.has_tls() {
            return Ok(None);
        }
        let cannot = |error: rustls::Error| format!("cannot set up TLS: {error}");
        // A ticket of a client that was not verified would resume its session.
        let old = old.filter(|old| !old.verifies_clients && settings.client_auth.is_none());
        let tickets = match (&settings.ticket_secret, old) {
            (None, Some(old)) if !old.tickets.is_shared() => Arc::clone(&old.tickets),
            (None, _) => Arc::new(Tickets::own().map_err(|_| "cannot set up TLS: the system has no random bytes")?),
            (Some(secret), old) => {
                let tickets = Tickets::shared(secret, old.map(|old| &*old.tickets), clock::since_1970());
                Arc::new(
                    tickets.map_err(|_| "cannot set up TLS: no ticket keys can be derived from `tls.ticket_secret`")?,
                )
            }
        };
        let certificates = Arc::new(Certificates::new(settings, challenges));
        let client_auth = settings.client_auth.clone();
        client_auth.iter().filter_map(|auth| auth.crls.as_ref()).for_each(report_expired);
        let mut config =
            server_config(&certificates, &tickets, client_auth.as_ref(), settings.http2).map_err(cannot)?;
        if settings.tls.key_log {
            let path = env::var_os("SSLKEYLOGFILE");
            let path = path.ok_or("`tls.key_log` needs a path in the environment variable SSLKEYLOGFILE")?;
            say!("anyone who can read {} can decrypt TLS connections (`tls.key_log`)", path.display());
            config.key_log = Arc::new(KeyLogFile::new());
        }
        let verifies_clients = client_auth.is_some();
        let new_sessions = Arc::new(RwLock::new(NewSessions { config: Arc::new(config), client_auth }));
        Ok(Some(TlsConfig { new_sessions, certificates, tickets, verifies_clients, http2: settings.http2 }))
    }

    /// Returns how long a signature with the slowest of the keys takes.
    pub fn signature_time(&self) -> SignatureTime {
        *self.certificates.signature_time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the certificates, OCSP responses and CRLs in use expire.
    pub fn expiries(&self) -> TlsExpiries {
        let mut expiries = TlsExpiries::default();
        let by_site = self.certificates.by_site.read().unwrap_or_else(PoisonError::into_inner);
        for (site, own) in by_site.iter().enumerate() {
            let labels = |file: &Path| Page::labels(&[("site", &site), ("file", &file.display())]);
            for one in own {
                let certificate = one.end().map(|at| Expiry { labels: labels(&one.chain), at });
                expiries.certificates.extend(certificate);
                let response = one.ocsp.as_ref().and_then(|ocsp| Some((&ocsp.path, ocsp.next_update?)));
                expiries.ocsp_responses.extend(response.map(|(path, at)| Expiry { labels: labels(path), at }));
            }
        }
        let new_sessions = self.new_sessions();
        if let Some(crls) = new_sessions.client_auth.as_ref().and_then(|auth| auth.crls.as_ref()) {
            let labels =
                |crl: &Crl| Page::labels(&[("file", &crls.path.display()), ("issuer", &crl::shown(&crl.issuer))]);
            expiries.crls.extend(crls.lists.iter().map(|crl| Expiry { labels: labels(crl), at: crl.next_update }));
        }
        expiries
    }

    /// Begins a session with a client that has just connected.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn session(&self) -> Result<Tls, rustls::Error> {
        Tls::new(&self.new_sessions().config)
    }

    fn new_sessions(&self) -> RwLockReadGuard<'_, NewSessions> {
        self.new_sessions.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wipes expired ticket keys, reads files that have changed, and drops expired OCSP responses. Returns whether anything
    /// changed: other processes must then do the same. Waits for the disk, so loops must not call it.
    pub fn refresh(&self, when: Reread) -> bool {
        let are_tickets_new = self.tickets.refresh(when);
        let are_certificates_new = self.certificates.refresh(when);
        self.refresh_crls(when) || are_tickets_new || are_certificates_new
    }

    /// Reads the CRLs again if their file has changed, and checks their expiry; returns whether clients that were verified
    /// before may be refused now. No session that began before is resumed then.
    fn refresh_crls(&self, when: Reread) -> bool {
        let Some(mut client_auth) = self.new_sessions().client_auth.clone() else { return false };
        let changes = client_auth.reread(when, clock::since_1970());
        if let Some(crls) = &client_auth.crls {
            // Of the processes of a server, only the first one reports what all of them do.
            changes.iter().for_each(|change| report_crls(crls, change, when == Reread::WhenSettled));
        }
        let is_change = changes.iter().any(CrlChange::is_change);
        let config =
            is_change.then(|| server_config(&self.certificates, &self.tickets, Some(&client_auth), self.http2));
        let mut new_sessions = self.new_sessions.write().unwrap_or_else(PoisonError::into_inner);
        match config {
            Some(Ok(mut config)) => {
                config.key_log = Arc::clone(&new_sessions.config.key_log);
                new_sessions.config = Arc::new(config);
            }
            // It fails only without a protocol version in common with the provider, and then also at the start.
            Some(Err(error)) => {
                say!("cannot set up TLS: {error}; keeping the CRLs in use");
                return false;
            }
            None => {}
        }
        new_sessions.client_auth = Some(client_auth);
        is_change
    }
}

/// Returns the parameters of sessions, without a key log.
fn server_config(
    certificates: &Arc<Certificates>,
    tickets: &Tickets,
    client_auth: Option<&ClientAuth>,
    http2: bool,
) -> Result<ServerConfig, rustls::Error> {
    let config =
        ServerConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions()?;
    let config = match client_auth {
        Some(auth) => config.with_client_cert_verifier(Arc::clone(&auth.verifier)),
        None => config.with_no_client_auth(),
    };
    let mut config = config.with_cert_resolver(Arc::clone(certificates) as _);
    // RFC 7301, 3.2: the first one that the client offers too is chosen.
    config.alpn_protocols = if http2 { vec![HTTP2.to_vec(), HTTP1.to_vec()] } else { vec![HTTP1.to_vec()] };
    if certificates.challenges.is_some() {
        config.alpn_protocols.push(TLS_ALPN_01_PROTOCOL.to_vec());
    }
    // A ticket resumes a session without verifying the client again.
    config.ticketer = Arc::new(tickets.bound_to(&client_auth.map(ClientAuth::identity).unwrap_or_default()));
    // Sessions are resumed by tickets, which all loops and processes can decrypt.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// Reports what has become of the CRLs; changes only if `is_first`.
fn report_crls(crls: &Crls, change: &CrlChange, is_first: bool) {
    match change {
        CrlChange::Unusable(UnusableCrls { message, help }) => say!("{message}: {help}; keeping the CRLs in use"),
        CrlChange::Replaced if is_first => {
            say!("new CRLs: {}", crls.path.display());
            report_expired(crls);
        }
        CrlChange::Expiry if is_first => report_expired(crls),
        CrlChange::Replaced | CrlChange::Expiry => {}
    }
}

/// Reports the CRLs that have expired.
fn report_expired(crls: &Crls) {
    for UnusableCrls { message, help } in crls.expired() {
        say!("{message}: {help}; client certificates of this CA are refused");
    }
}

/// The certificates by site, and which of them a client gets.
struct Certificates {
    sites: Arc<Sites>,
    /// In order of preference: `by_site[site.number]`. Locked only for a lookup or a replacement.
    by_site: RwLock<Vec<Vec<Certificate>>>,
    keys: KeySource,
    /// That of the slowest of their keys, which each handshake needs.
    signature_time: Mutex<SignatureTime>,
    /// The file of the certificate that is obtained for each site, if one is.
    obtained: Vec<Option<PathBuf>>,
    /// The answers to challenges of tls-alpn-01, if these are used.
    challenges: Option<Arc<Challenges>>,
}

impl Certificates {
    fn new(settings: &Settings, challenges: Option<&Arc<Challenges>>) -> Certificates {
        let mut by_site = settings.certificates.clone();
        by_site.iter_mut().for_each(|own| sort(own));
        by_site.iter().flatten().for_each(report_response);
        let (sites, acme) = (Arc::clone(&settings.sites), settings.acme.as_ref());
        let obtained = acme.map_or_else(|| vec![None; by_site.len()], |acme| acme.files.clone());
        let is_used = acme.is_some_and(|acme| acme.start.challenge == ChallengeKind::TlsAlpn01);
        let challenges = challenges.filter(|_| is_used).cloned();
        let signature_time = Mutex::new(SignatureTime::of_slowest(&settings.keys, &by_site));
        let (keys, by_site) = (settings.keys.clone(), RwLock::new(by_site));
        Certificates { sites, by_site, keys, signature_time, obtained, challenges }
    }

    /// Reads those whose files have changed, and drops expired OCSP responses; returns whether anything was replaced. No
    /// handshake waits for the files.
    fn refresh(&self, when: Reread) -> bool {
        let mut by_site = self.by_site.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut is_new = false;
        let now = clock::since_1970();
        for certificate in by_site.iter_mut().flatten() {
            let Some(renewal) = certificate.reread(when, now) else { continue };
            is_new |= renewal.is_change();
            // Of the processes of a server, only the first one reports what all of them do.
            report(certificate, renewal, when == Reread::WhenSettled);
        }
        for (own, file) in by_site.iter_mut().zip(&self.obtained) {
            // It is written as a whole. One that cannot be used is replaced by another order.
            if let (true, Some(file)) = (own.is_empty(), file)
                && file.exists()
                && let Ok(certificate) = Certificate::read(&self.keys, file, file, None, now)
            {
                report(&certificate, Renewal::Certificate, when == Reread::WhenSettled);
                own.push(certificate);
                is_new = true;
            }
        }
        by_site.iter_mut().for_each(|own| sort(own));
        *self.signature_time.lock().unwrap_or_else(PoisonError::into_inner) =
            SignatureTime::of_slowest(&self.keys, &by_site);
        *self.by_site.write().unwrap_or_else(PoisonError::into_inner) = by_site;
        is_new
    }
}

/// Reports what has become of a certificate; changes only if `is_first`.
fn report(certificate: &Certificate, renewal: Renewal, is_first: bool) {
    let (chain, ocsp) = (certificate.chain.display(), certificate.ocsp.as_ref().map(|ocsp| ocsp.path.display()));
    match (renewal, ocsp) {
        (Renewal::UnusableCertificate(Unusable { message, help, .. }), _) => {
            say!("{message}: {help}; keeping the certificate in use");
        }
        (Renewal::UnusableResponse(UnusableResponse { message, help }), _) => match certificate.certified.ocsp {
            Some(_) => say!("{message}: {help}; keeping the response in use"),
            None => say!("{message}: {help}; sending none"),
        },
        (Renewal::Certificate, _) if is_first => {
            say!("new certificate: {chain}");
            report_response(certificate);
        }
        (Renewal::Response, Some(ocsp)) if is_first => say!("new OCSP response: {ocsp}"),
        (Renewal::ResponseExpired, Some(ocsp)) if is_first => {
            say!("the OCSP response {ocsp} has expired: replace it in time; sending none for {chain}");
        }
        (Renewal::Certificate | Renewal::Response | Renewal::ResponseExpired, _) => {}
    }
}

/// Reports an OCSP response that could not be used when its certificate was read.
fn report_response(certificate: &Certificate) {
    if let Some(UnusableResponse { message, help }) = certificate.ocsp.as_ref().and_then(|ocsp| ocsp.problem.as_ref()) {
        say!("{message}: {help}; sending none");
    }
}

/// Sorts the certificates of a site: ECDSA signs in a tenth of the time of RSA.
fn sort(own: &mut [Certificate]) {
    own.sort_by_key(|one| one.certified.key.algorithm() != SignatureAlgorithm::ECDSA);
}

impl ResolvesServerCert for Certificates {
    /// Returns the site's first certificate whose signatures the client accepts. A client that names no site or an
    /// unknown one gets that of the default site, as does a client of a site without a certificate. A client that offers
    /// only the protocol of tls-alpn-01 gets the certificate with the answer to the challenge, and no other. For a client
    /// that accepts none of the signatures the handshake fails (`handshake_failure`).
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(challenges) = &self.challenges
            && hello.alpn().is_some_and(|protocols| protocols.eq([TLS_ALPN_01_PROTOCOL]))
        {
            return challenges.certificate(hello.server_name()?);
        }
        let site = hello.server_name().map_or(self.sites.first(), |name| self.sites.for_host(name.as_bytes()));
        let by_site = self.by_site.read().unwrap_or_else(PoisonError::into_inner);
        let own = by_site.get(usize::from(site.number)).filter(|own| !own.is_empty());
        if own.is_none() && self.obtained.get(usize::from(site.number)).is_some_and(Option::is_some) {
            return None;
        }
        let own = own.or_else(|| by_site.iter().find(|own| !own.is_empty()))?;
        let mut keys = own.iter().map(|one| &one.certified);
        let key = keys.find(|key| key.key.choose_scheme(hello.signature_schemes()).is_some());
        // Without a certificate, the client would be told that access is denied.
        key.or_else(|| own.first().map(|one| &one.certified)).cloned()
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}
