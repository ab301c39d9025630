//! Checks the keys about certificates that the server obtains itself: `[tls.acme]`, and `acme` of a site.
//!
//! The result is the configuration of the ACME process, and the file of each site's certificate. The files are below a directory
//! for each CA, so that a certificate of a staging directory is never served when another directory is configured.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use amped_acme_protocol::{ChallengeKind, NAMES_MAX, Start, Wanted};

use super::checked::{AcmePlan, Checker};
use super::file::File;
use super::read::Node;
use super::settings::{AcmeChallenge, AcmeSettings, ClientCertificate, KeyHolder, Listen};
use crate::acme;
use crate::certificate::Certificate;
use crate::clock;
use crate::keys::client::KeySource;

/// The staging directory of Let's Encrypt.
const STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";

/// The ports to which a CA connects: of http-01 (RFC 8555, 8.3) and of tls-alpn-01 (RFC 8737, 3).
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

impl Checker<'_> {
    /// Checks what is to be obtained; `None` if no site has `acme = true`.
    pub(super) fn acme(&mut self, file: &mut File, root: Node<'_>) -> Option<AcmePlan> {
        let table = root.get("tls").get("acme");
        let settings = &mut file.tls.acme;
        settings.state = self.absolute(&settings.state, table.get("state"));
        if let Some(path) = &mut settings.directory_ca {
            *path = self.absolute(path, table.get("directory_ca"));
        }
        if let Some(email) = settings.email.as_deref().filter(|email| !is_email(email)) {
            let message = format!("`{}` is not an e-mail address", email.escape_debug());
            self.findings.at(
                table.get("email").span(),
                message,
                "write one such as `admin@example.org`, or remove the key",
            );
        }
        if !is_https_url(&settings.directory) {
            let message = format!("`{}` is not the URL of an ACME directory", settings.directory.escape_debug());
            let help = "write one such as `https://acme.example.org/directory`; ACME requires https";
            self.findings.at(table.get("directory").span(), message, help);
        }
        if settings.staging {
            if let Some(place) = table.get("directory").place() {
                let help = "remove one of them: `staging` is the staging directory of Let's Encrypt";
                let message = "`directory` has no effect with `staging`";
                self.findings.against(place, (table.get("staging").span(), "and here"), message, help);
            }
            settings.directory = STAGING.into();
            // In the configuration that is printed, the directory says it.
            settings.staging = false;
        }
        let settings = file.tls.acme.clone();
        let state = settings.state.join(directory_name(&settings.directory));
        // A `root` at the top is a first site, without other keys.
        let shorthand = usize::from(file.root.is_some());
        let (mut wanted, mut files, mut is_first, mut key_of_first) = (Vec::new(), vec![None; shorthand], true, None);
        for (site, node) in file.site.iter().zip(root.get("site").elements()) {
            let key = node.get("acme");
            let has_names = site.acme && self.are_provable(&site.hosts, node);
            if site.acme && std::mem::take(&mut is_first) {
                key_of_first = key.place();
                self.requirements(&settings, file, root, key);
            }
            for other in ["certificate", "key"].map(|name| node.get(name)) {
                if let Some(place) = other.place().filter(|_| site.acme) {
                    let help =
                        "remove one of them: the server obtains the certificate, or reads it from a file of yours";
                    let message = "the site has `acme` and a certificate of its own";
                    self.findings.against(place, (key.span(), "`acme`"), message, help);
                }
            }
            if let Some(place) = node.get("ocsp").place().filter(|_| site.acme) {
                let help = "remove it: CAs that offer ACME have short-lived certificates or CRLs instead";
                self.findings.at(place, "`ocsp` cannot be used with `acme`", help);
            }
            let file = site.hosts.first().filter(|_| has_names).map(|name| state.join(format!("{name}.pem")));
            if let Some(file) = &file {
                let names = site.hosts.iter().map(|name| name.to_string()).collect();
                wanted.push(Wanted { names, file: file.clone() });
            }
            files.push(file);
        }
        if wanted.is_empty() {
            return None;
        }
        let place = table.get("state").place().or(key_of_first).unwrap_or_else(|| table.span());
        self.secrets.push(("directory of ACME keys", settings.state.clone(), place));
        let challenge = challenge(settings.challenge, &file.listen);
        let AcmeSettings { email, directory, directory_ca, profile, .. } = settings;
        let start = Start { directory, directory_ca, email, profile, state, challenge, certificates: wanted };
        Some(AcmePlan { start, files })
    }

    /// Checks what obtaining any certificate requires. `key`: the first that asks for one.
    fn requirements(&mut self, settings: &AcmeSettings, file: &File, root: Node<'_>, key: Node<'_>) {
        let table = root.get("tls").get("acme");
        if !settings.agree_to_terms && !self.read.is_taken(table, &["agree_to_terms"]) {
            let place = table.get("agree_to_terms").place().unwrap_or(key.span());
            let message = "a CA issues certificates only to those who agree to its terms of service";
            let help = "read them (Let's Encrypt: https://letsencrypt.org/repository/), then write `agree_to_terms = true` in \
                        `[tls.acme]`";
            self.findings.at(place, message, help);
        }
        if self.read.is_taken(root, &["listen"]) {
            return;
        }
        if !file.listen.iter().any(|listen| listen.start.tls) {
            let help = "add one to `listen`: `\"*:443 tls\"`";
            self.findings.at(key.span(), "`acme` obtains a certificate, but no listen address uses TLS", help);
        }
        let place = table.get("challenge").place().unwrap_or(key.span());
        let is_plain = |listen: &Listen| !listen.start.tls;
        match challenge(settings.challenge, &file.listen) {
            ChallengeKind::Http01 if !file.listen.iter().any(is_plain) => {
                let help = "add one to `listen`: `\"*:80\"`";
                self.findings.at(place, "http-01 requires an address without TLS", help);
            }
            ChallengeKind::TlsAlpn01
                if file.tls.client_ca.is_some() && file.tls.client_certificate == ClientCertificate::Required =>
            {
                let help = "use http-01: add `\"*:80\"` to `listen`, or `challenge = \"http-01\"` in `[tls.acme]`";
                let message = "tls-alpn-01 is impossible where clients must have certificates: the CA has none";
                self.findings.at(place, message, help);
            }
            ChallengeKind::Http01 | ChallengeKind::TlsAlpn01 => {}
        }
    }

    /// Checks that control of all these names can be proved.
    fn are_provable(&mut self, hosts: &[Box<str>], node: Node<'_>) -> bool {
        let mut are_good = !hosts.is_empty();
        if hosts.is_empty() && !self.read.is_taken(node, &["hosts"]) {
            let help = "add `hosts = [\"example.org\", \"www.example.org\"]`";
            self.findings.at(node.get("acme").span(), "`acme` requires the names of the certificate", help);
        }
        if hosts.len() > NAMES_MAX {
            let message = format!("the site has {} names, and a certificate at most {NAMES_MAX}", hosts.len());
            self.findings.at(node.get("hosts").span(), message, "divide the site into several");
            are_good = false;
        }
        for host in node.get("hosts").elements() {
            let name = host.text();
            let is_address = name.starts_with('[') || name.parse::<IpAddr>().is_ok();
            are_good &= !is_address && !name.contains('*');
            if name.contains('*') {
                let message =
                    format!("cannot obtain a certificate for `{name}`: only dns-01 proves control of a wildcard");
                let help =
                    "list the names instead; or obtain it with another ACME client, and write `certificate` and `key`";
                self.findings.at(host.span(), message, help);
            } else if is_address {
                let message = format!("cannot obtain a certificate for the address `{name}`");
                self.findings.at(host.span(), message, "write a host name, or use `certificate` and `key`");
            }
        }
        are_good
    }

    /// Reads the certificate that was obtained earlier, if there is one that can be used.
    pub(super) fn obtained_certificate(&self, file: &Path) -> Vec<Certificate> {
        match self.read.file.tls.keys {
            // If it cannot be used, another one is obtained.
            KeyHolder::Server => {
                Certificate::read(&KeySource::Files, file, file, None, clock::since_1970()).into_iter().collect()
            }
            KeyHolder::Process => Vec::new(),
        }
    }
}

/// Returns whether a CA can use this in a `mailto` URL: one address without header fields (RFC 8555, 7.3).
fn is_email(text: &str) -> bool {
    let is_plain = text.bytes().all(|b| b.is_ascii_graphic() && !b"?#%,<>\"".contains(&b));
    let parts = text.split_once('@');
    is_plain && parts.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty() && !host.contains('@'))
}

/// Returns whether this is a https URL, with a host. It begins with a letter, a digit or a bracket, so its directory is
/// not that of another name.
fn is_https_url(text: &str) -> bool {
    let host = text.strip_prefix("https://").map(|rest| rest.split('/').next().unwrap_or_default());
    host.is_some_and(|host| host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[') && !host.contains('@'))
        && text.bytes().all(|b| b.is_ascii_graphic() && !b"?#".contains(&b))
}

/// The challenge that is used.
fn challenge(configured: AcmeChallenge, listen: &[Listen]) -> ChallengeKind {
    match configured {
        AcmeChallenge::Http01 => ChallengeKind::Http01,
        AcmeChallenge::TlsAlpn01 => ChallengeKind::TlsAlpn01,
        AcmeChallenge::Auto if is_heard(listen, ChallengeKind::Http01) => ChallengeKind::Http01,
        AcmeChallenge::Auto => ChallengeKind::TlsAlpn01,
    }
}

/// Returns whether a CA's connection for such a challenge reaches an address of this server directly.
fn is_heard(listen: &[Listen], challenge: ChallengeKind) -> bool {
    let (port, tls) = place(challenge);
    listen.iter().any(|listen| listen.address.port() == port && listen.start.tls == tls)
}

fn place(challenge: ChallengeKind) -> (u16, bool) {
    match challenge {
        ChallengeKind::Http01 => (HTTP_PORT, false),
        ChallengeKind::TlsAlpn01 => (HTTPS_PORT, true),
    }
}

/// The name of the directory for this CA: its URL without the scheme, as one path segment.
fn directory_name(url: &str) -> String {
    let rest = url.strip_prefix("https://").unwrap_or(url);
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    rest.trim_end_matches('/').chars().map(plain).collect()
}

/// Describes what will be obtained, for `amped check`.
pub(super) fn describe(plan: &AcmePlan, listen: &[Listen]) -> String {
    let Start { directory, challenge, certificates, .. } = &plan.start;
    let mut text = String::new();
    for Wanted { names, file } in certificates {
        let (names, file) = (names.join(", "), file.display());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{names}: certificate from {directory}, by {challenge}, in {file}");
    }
    if !is_heard(listen, *challenge) {
        let (port, tls) = place(*challenge);
        let with = if tls { "with" } else { "without" };
        let _ = writeln!(
            text,
            "warning: the CA connects to port {port} of the names, and no listen address has it {with} TLS: make sure that \
             something forwards it here"
        );
    }
    if let Err(message) = acme::program() {
        let _ = writeln!(text, "warning: {message}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_has_its_own_state() {
        assert_eq!(
            directory_name("https://acme-v02.api.letsencrypt.org/directory"),
            "acme-v02.api.letsencrypt.org-directory"
        );
        assert_eq!(directory_name("https://127.0.0.1:14000/dir/"), "127.0.0.1-14000-dir");
        assert!(is_https_url("https://a.example/b") && is_https_url("https://[::1]:1/"));
        for bad in ["http://a.example/b", "https://", "https://../../etc", "https://a@b/", "https://a?b", "a b"] {
            assert!(!is_https_url(bad), "{bad}");
        }
    }

    #[test]
    fn email_is_one_address() {
        assert!(is_email("a.b+c@d.example"));
        for bad in ["", "a", "@b", "a@", "a@b,c@d", "a@b?subject=c", "a@b@c", "mailto: a@b"] {
            assert!(!is_email(bad), "{bad}");
        }
    }

    #[test]
    fn challenge_follows_ports() {
        let check = |configured, listen: &[&str], expected| {
            let listen: Vec<Listen> = listen.iter().map(|text| Listen::parse(text).expect("valid")).collect();
            assert_eq!(challenge(configured, &listen), expected, "{listen:?}");
        };
        check(AcmeChallenge::Auto, &["*:80", "*:443 tls"], ChallengeKind::Http01);
        check(AcmeChallenge::Auto, &["*:8080", "*:443 tls"], ChallengeKind::TlsAlpn01);
        check(AcmeChallenge::Auto, &["*:80 tls"], ChallengeKind::TlsAlpn01);
        check(AcmeChallenge::Http01, &["*:443 tls"], ChallengeKind::Http01);
        check(AcmeChallenge::TlsAlpn01, &["*:80", "*:443 tls"], ChallengeKind::TlsAlpn01);
    }
}
