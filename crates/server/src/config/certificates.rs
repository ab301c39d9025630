//! Certificates and private keys of sites, and what the keys about TLS mean together.
//!
//! They are read with the configuration: at the start before root is given up, and at each reload.

use std::path::Path;
use std::sync::Arc;

use amped_http::h1::response::HSTS;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

use super::checked::{Checker, SiteCertificates};
use super::file::SiteTable;
use super::read::Node;
use super::settings::Listen;

/// The port of https, which URLs leave out.
const HTTPS_PORT: u16 = 443;

impl Checker<'_> {
    /// Reads the certificates of a site, and makes their paths absolute.
    pub(super) fn certificates(&mut self, site: &mut SiteTable, node: Node<'_>) -> Vec<Arc<CertifiedKey>> {
        let (certificates, keys) = (node.get("certificate"), node.get("key"));
        for path in site.certificate.iter_mut().chain(&mut site.key) {
            *path = self.absolute(path, certificates);
        }
        if site.certificate.len() != site.key.len() {
            let span = if site.certificate.is_empty() { keys.span() } else { certificates.span() };
            let message =
                format!("the site has {} certificates and {} private keys", site.certificate.len(), site.key.len());
            self.findings.at(span, message, "write one of each, in the same order");
            return Vec::new();
        }
        let files = site.certificate.iter().zip(&site.key).zip(certificates.elements().zip(keys.elements()));
        let mut read = Vec::new();
        for ((chain, key), (chain_node, key_node)) in files {
            let certified = read_chain(chain).map_err(|problem| (problem, chain_node.span()));
            let certified = certified.and_then(|chain| {
                let key = read_key(key).map_err(|problem| (problem, key_node.span()))?;
                Ok((chain, key))
            });
            let certified = certified.and_then(|(certificates, private)| {
                certify(certificates, private).map_err(|why| (unusable(chain, key, why), key_node.span()))
            });
            match certified {
                Ok(certified) => read.push(Arc::new(certified)),
                Err(((message, help), span)) => self.findings.at(span, message, help),
            }
        }
        read
    }

    /// The port to which a site redirects requests without TLS.
    pub(super) fn https_port(&mut self, listen: &[Listen], site: &SiteTable, node: Node<'_>) -> Option<u16> {
        if !site.redirect_to_https {
            return None;
        }
        let ports: Vec<u16> = listen.iter().filter(|listen| listen.tls).map(|listen| listen.address.port()).collect();
        if ports.is_empty() && self.whole {
            let help = "add one to `listen`: `\"*:443 tls\"`";
            self.findings.at(node.get("redirect_to_https").span(), "no address has TLS to redirect requests to", help);
        }
        // Port 0 is one that the system chooses, which is known only later.
        let is_default = ports.iter().any(|port| matches!(port, 0 | &HTTPS_PORT));
        if is_default { Some(HTTPS_PORT) } else { ports.first().copied() }
    }

    /// The value of a site's Strict-Transport-Security field.
    pub(super) fn hsts(&mut self, listen: &[Listen], site: &SiteTable, node: Node<'_>) -> Option<Arc<str>> {
        let value = site.hsts.as_deref()?.trim();
        let key = node.get("hsts");
        if !listen.iter().any(|listen| listen.tls) && self.whole {
            let help = "add an address to `listen`: `\"*:443 tls\"`; behind a proxy with TLS, set the field in `[[site.headers]]`";
            self.findings.at(key.span(), "`hsts` without TLS: no address has it", help);
        }
        if let Err(help) = strict_transport_security(value) {
            let message = format!("`{}` is not a value of {HSTS}", value.escape_debug());
            self.findings.at(key.span(), message, help);
        }
        let rules = node.get("headers").elements().chain(node.get("route").elements());
        let fields = rules.flat_map(|rule| rule.get("set").entries().chain(rule.get("headers").entries()));
        for (_, place, _) in fields.filter(|(name, ..)| name.eq_ignore_ascii_case(HSTS)) {
            let help = "take one of them out: a header rule applies without TLS too, where browsers ignore the field";
            self.findings.against(place, (key.span(), "and here"), format!("{HSTS} is set twice"), help);
        }
        Some(value.into())
    }

    /// An address with TLS requires a certificate.
    pub(super) fn tls(&mut self, listen: &[Listen], sites: &SiteCertificates, node: Node<'_>) {
        let Some(first) = listen.iter().find(|listen| listen.tls) else { return };
        if self.findings.is_empty() && sites.iter().all(Vec::is_empty) {
            let message = format!("`{first}` has TLS, and no site has a certificate");
            let help = "add `certificate = [\"FILE\"]` and `key = [\"FILE\"]` to a site";
            self.findings.at(node.span(), message, help);
        }
    }
}

/// Checks a value of Strict-Transport-Security (RFC 6797, 6.1); the error is the way out.
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

/// Minimum `max-age` of a site in the lists of browsers, seconds: a year.
const PRELOAD_AGE_MIN: u64 = 31_536_000;

type Problem = (String, String);

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let shown = path.display();
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match chain {
        Ok(chain) if chain.is_empty() => Err(not_there(path, "certificate", "-----BEGIN CERTIFICATE-----")),
        Ok(chain) => Ok(chain),
        Err(error) => Err((format!("cannot read the certificate {shown}: {}", reason(&error)), help(&error, path))),
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Problem> {
    let shown = path.display();
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        PemError::NoItemsFound => not_there(path, "private key", "-----BEGIN PRIVATE KEY-----"),
        error => (format!("cannot read the private key {shown}: {}", reason(&error)), help(&error, path)),
    })
}

fn not_there(path: &Path, what: &str, begin: &str) -> Problem {
    let help = format!("the file must be PEM, and contain `{begin}`; an encrypted key must be decrypted first");
    (format!("{} contains no {what}", path.display()), help)
}

/// The reason without what the message says already.
fn reason(error: &PemError) -> String {
    match error {
        PemError::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

fn help(error: &PemError, path: &Path) -> String {
    match error {
        PemError::Io(error) if error.kind() == std::io::ErrorKind::PermissionDenied => format!(
            "the user that starts the server must be able to read it, and its `user` for a reload: `namei -l {}`",
            path.display()
        ),
        PemError::Io(_) => "correct the path; a relative one begins at the folder of this file".to_owned(),
        _ => "the file must be PEM".to_owned(),
    }
}

/// Joins a chain and its key, which must belong together.
fn certify(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<CertifiedKey, Error> {
    let certified = CertifiedKey::new(chain, any_supported_type(&key)?);
    match certified.keys_match() {
        // The library cannot tell for some kinds of keys.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(error) => Err(error),
    }
}

fn unusable(chain: &Path, key: &Path, error: Error) -> Problem {
    let (chain, key) = (chain.display(), key.display());
    match error {
        Error::InconsistentKeys(_) => {
            let help =
                "the first certificate of the file must be the site's own, and the key the one it was issued for";
            (format!("the private key {key} does not belong to the certificate {chain}"), help.to_owned())
        }
        Error::InvalidCertificate(error) => {
            (format!("the certificate {chain} is invalid: {error}"), "have it issued again".to_owned())
        }
        error => {
            let help = "use an ECDSA key (P-256, P-384), an RSA key of 2048 to 8192 bits, or Ed25519";
            (format!("the private key {key} cannot be used: {error}"), help.to_owned())
        }
    }
}
