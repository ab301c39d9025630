//! Checks the keys about TLS together. The certificates are read with the configuration.

use std::iter;
use std::path::Path;
use std::sync::Arc;

use amped_http::h1::response::HSTS;

use super::checked::Checker;
use super::file::SiteTable;
use super::read::Node;
use super::settings::{Architecture, KeyHolder, Listen, Signing, TlsSettings};
use crate::certificate::Certificate;
use crate::certified::Unusable;
use crate::client_auth::{ClientAuth, UnusableAuth};
use crate::clock;
use crate::keys::client::KeySource;
use crate::tickets::{TicketSecret, UnusableSecret};

/// The default port of https, which URLs omit.
const HTTPS_PORT: u16 = 443;

impl SiteTable {
    /// Returns the files of each certificate: of the chain, of the key, and of the OCSP response if it has one.
    pub(super) fn certificate_files(&self) -> impl Iterator<Item = (&Path, &Path, Option<&Path>)> {
        let responses = self.ocsp.iter().map(|path| Some(&**path).filter(|path| !path.as_os_str().is_empty()));
        let files = self.certificate.iter().zip(&self.key).zip(responses.chain(iter::repeat(None)));
        files.map(|((chain, key), ocsp)| (&**chain, &**key, ocsp))
    }
}

impl Checker<'_> {
    /// Reads the certificates of a site, and makes their paths absolute.
    pub(super) fn certificates(&mut self, site: &mut SiteTable, node: Node<'_>) -> Vec<Certificate> {
        let (certificates, keys) = (node.get("certificate"), node.get("key"));
        let responses = site.ocsp.iter_mut().filter(|path| !path.as_os_str().is_empty());
        for path in site.certificate.iter_mut().chain(&mut site.key).chain(responses) {
            *path = self.absolute(path, certificates);
        }
        if self.read.is_taken(node, &["certificate", "key", "ocsp"]) {
            return Vec::new();
        }
        if site.certificate.len() != site.key.len() {
            let span = if site.certificate.is_empty() { keys.span() } else { certificates.span() };
            let message =
                format!("the site has {} certificates and {} private keys", site.certificate.len(), site.key.len());
            self.findings.at(span, message, "write one of each, in the same order");
            return Vec::new();
        }
        if site.ocsp.len() > site.certificate.len() {
            let message =
                format!("the site has {} OCSP responses and {} certificates", site.ocsp.len(), site.certificate.len());
            let help = "write one for each certificate, in the same order; \"\" for a certificate without one";
            self.findings.at(node.get("ocsp").span(), message, help);
            return Vec::new();
        }
        let nodes = certificates.elements().zip(keys.elements());
        let now = clock::since_1970();
        let mut read = Vec::new();
        for ((chain, key, ocsp), (chain_node, key_node)) in site.certificate_files().zip(nodes) {
            if self.read.file.tls.keys == KeyHolder::Process {
                // The key process reads them.
                self.secrets.push(("private key", key.to_owned(), key_node.span()));
                continue;
            }
            match Certificate::read(&KeySource::Files, chain, key, ocsp, now) {
                Ok(certificate) => {
                    self.secrets.push(("private key", key.to_owned(), key_node.span()));
                    read.push(certificate);
                }
                Err(Unusable { is_key, message, help }) => {
                    let node = if is_key { key_node } else { chain_node };
                    self.findings.at(node.span(), message, help);
                }
            }
        }
        read
    }

    /// A loop of AMPED never waits for another process.
    pub(super) fn key_holder(&mut self, architecture: Architecture, settings: &TlsSettings, node: Node<'_>) {
        if (architecture, settings.sign, settings.keys) == (Architecture::Amped, Signing::Loop, KeyHolder::Process) {
            let (place, other) = (node.get("sign").span(), (node.get("keys").span(), "the key process"));
            let message = "`sign = \"loop\"` cannot be used with `keys = \"process\"`";
            let help = "remove one of them: the event loop would wait for another process";
            self.findings.against(place, other, message, help);
        }
    }

    /// Reads the authorities of clients' certificates, and their CRLs.
    pub(super) fn client_auth(&mut self, settings: &mut TlsSettings, node: Node<'_>) -> Option<ClientAuth> {
        let (authorities, crls) = (node.get("client_ca"), node.get("client_crl"));
        if let Some(path) = &mut settings.client_crl {
            *path = self.absolute(path, crls);
            if settings.client_ca.is_none() {
                let help = "write `client_ca` too, or remove `client_crl`";
                self.findings.at(crls.span(), "`client_crl` is given without `client_ca`", help);
            }
        }
        let path = settings.client_ca.as_mut()?;
        *path = self.absolute(path, authorities);
        let read =
            ClientAuth::read(path, settings.client_certificate, settings.client_crl.as_deref(), clock::since_1970());
        let place = |is_crl: bool| if is_crl { crls.span() } else { authorities.span() };
        read.map_err(|UnusableAuth { is_crl, message, help }| self.findings.at(place(is_crl), message, help)).ok()
    }

    /// Reads the secret of ticket keys.
    pub(super) fn ticket_secret(&mut self, settings: &mut TlsSettings, node: Node<'_>) -> Option<TicketSecret> {
        let (path, place) = (settings.ticket_secret.as_mut()?, node.get("ticket_secret"));
        *path = self.absolute(path, place);
        if settings.client_ca.is_some() {
            // A ticket resumes a session without another verification of the client, and would also do so on hosts and
            // after restarts with other CAs.
            let help = "remove it: with it a client could resume a session without a certificate of these CAs";
            let client_ca = (node.get("client_ca").span(), "client certificates");
            self.findings.against(place.span(), client_ca, "`ticket_secret` cannot be used with `client_ca`", help);
            return None;
        }
        match TicketSecret::read(path) {
            Ok(secret) => {
                self.secrets.push(("ticket secret", path.clone(), place.span()));
                Some(secret)
            }
            Err(UnusableSecret { message, help }) => {
                self.findings.at(place.span(), message, help);
                None
            }
        }
    }

    /// The port to which a site redirects requests without TLS.
    pub(super) fn https_port(&mut self, listen: &[Listen], site: &SiteTable, node: Node<'_>) -> Option<u16> {
        if !site.redirect_to_https {
            return None;
        }
        let with_tls = listen.iter().filter(|listen| listen.start.tls);
        let ports: Vec<u16> = with_tls.map(|listen| listen.address.port()).collect();
        if ports.is_empty() && !self.may_have_https() {
            let help = "add one to `listen`: `\"*:443 tls\"`; behind a proxy with TLS, set `trusted_proxies`";
            self.findings.at(node.get("redirect_to_https").span(), "no address has TLS to redirect requests to", help);
        }
        // Port 0 is one that the system chooses, which is known only later. That of a proxy is the default one.
        let is_default = ports.is_empty() || ports.iter().any(|port| matches!(port, 0 | &HTTPS_PORT));
        if is_default { Some(HTTPS_PORT) } else { ports.first().copied() }
    }

    /// Whether https requests may arrive although no address in the checked configuration has TLS: from a proxy, or
    /// because of a key that was invalid.
    fn may_have_https(&self) -> bool {
        let read = self.read;
        !read.file.trusted_proxies.is_empty() || read.is_taken(read.root(), &["listen", "trusted_proxies"])
    }

    /// The value of a site's Strict-Transport-Security field.
    pub(super) fn hsts(&mut self, listen: &[Listen], site: &SiteTable, node: Node<'_>) -> Option<Arc<str>> {
        let value = site.hsts.as_deref()?.trim();
        let key = node.get("hsts");
        if !listen.iter().any(|listen| listen.start.tls) && !self.may_have_https() {
            let help = "add an address to `listen`: `\"*:443 tls\"`; behind a proxy with TLS, set `trusted_proxies`";
            self.findings.at(key.span(), "`hsts` requires TLS, but no listen address uses it", help);
        }
        if let Err(help) = strict_transport_security(value) {
            let message = format!("`{}` is not a valid {HSTS} value", value.escape_debug());
            self.findings.at(key.span(), message, help);
        }
        let rules = node.get("headers").elements().chain(node.get("route").elements());
        let fields = rules.flat_map(|rule| rule.get("set").entries().chain(rule.get("headers").entries()));
        for (_, place, _) in fields.filter(|(name, ..)| name.eq_ignore_ascii_case(HSTS)) {
            let help = "remove one of them: header rules also apply without TLS, where browsers ignore the field";
            self.findings.against(place, (key.span(), "and here"), format!("duplicate header {HSTS}"), help);
        }
        Some(value.into())
    }

    /// An address with TLS requires a certificate.
    pub(super) fn tls(&mut self, listen: &[Listen], has_certificate: bool, node: Node<'_>) {
        let Some(first) = listen.iter().find(|listen| listen.start.tls) else { return };
        if self.findings.is_empty() && !has_certificate {
            let message = format!("`{first}` has TLS, and no site has a certificate");
            let help = "add `certificate = [\"FILE\"]` and `key = [\"FILE\"]` to a site, or `acme = true`";
            self.findings.at(node.span(), message, help);
        }
    }
}

/// Checks a value of Strict-Transport-Security (RFC 6797, 6.1); the error is the remedy.
fn strict_transport_security(value: &str) -> Result<(), &'static str> {
    let (mut max_age, mut subdomains, mut preload) = (None, 0, 0);
    for directive in value.split(';').map(str::trim) {
        if let Some(("max-age", seconds)) = directive.split_once('=')
            && max_age.is_none()
        {
            max_age = seconds.parse::<u64>().ok().filter(|_| seconds.bytes().all(|b| b.is_ascii_digit()));
        } else if directive == "includeSubDomains" {
            subdomains += 1;
        } else if directive == "preload" {
            preload += 1;
        } else {
            max_age = None;
            break;
        }
    }
    match max_age {
        None => Err("write `max-age=31536000`, and perhaps `; includeSubDomains` and `; preload` after it"),
        Some(_) if subdomains > 1 || preload > 1 => Err("write each directive once"),
        Some(age) if preload > 0 && (subdomains == 0 || age < PRELOAD_AGE_MIN) => {
            Err("`preload` requires `includeSubDomains` and a `max-age` of at least 31536000 (hstspreload.org)")
        }
        Some(_) => Ok(()),
    }
}

/// Minimum `max-age` of a site in the preload lists of browsers, in seconds: a year.
const PRELOAD_AGE_MIN: u64 = 31_536_000;
