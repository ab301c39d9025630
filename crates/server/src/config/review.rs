//! Describes certificates for `amped check`: their names, their expiry, flaws for which clients reject them, their
//! OCSP responses, the CRLs of client certificates, and who can read the ticket secret; and whether the servers to which
//! requests are forwarded can be reached.
//!
//! None of these is an error. A server with an expired certificate starts, because it still serves sites without TLS,
//! and clients that ignore the date; and a backend may be started later.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use amped_core::site::Site;
use amped_sys::{local, process};
use rustls::pki_types::CertificateDer;
use rustls::{SignatureAlgorithm, sign::CertifiedKey};
use x509_cert::certificate::Certificate as X509;
use x509_cert::der::{self, Decode, oid::ObjectIdentifier};
use x509_cert::ext::pkix::{SubjectAltName, name::GeneralName};

use super::checked::Settings;
use super::settings::{AppKind, BackendAddress, BackendServer, Listen, NamedServer, UpstreamSettings};
use crate::backend_tls::{BackendTls, explain, unverified};
use crate::certificate::Staple;
use crate::client_auth::ClientAuth;
use crate::crl::{self, UnusableCrls};
use crate::ocsp::{self, UnusableResponse};

/// Days before its expiry when a certificate should have been renewed, unless it is valid for less than three times
/// this.
const RENEWAL: u64 = 30;

/// Maximum validity in days that browsers accept from a public authority.
const VALIDITY_MAX: u64 = 398;

/// Signature algorithms that browsers reject: MD5 and SHA-1 with RSA, SHA-1 with ECDSA.
const WEAK: [ObjectIdentifier; 3] = [
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.4"),
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.5"),
    ObjectIdentifier::new_unwrap("1.2.840.10045.4.1"),
];

/// The certificate extension by which clients require features of TLS (RFC 7633).
const TLS_FEATURE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.1.24");

/// The feature "stapled OCSP response": the number of the extension of TLS that requests one (RFC 6066, 8).
const STATUS_REQUEST: u16 = 5;

/// Describes the certificates and backends of all sites, with a warning for each flaw, also of the ticket secret and of
/// trusted proxies. `now`:
/// since 1970.
pub(super) fn review(settings: &Settings, now: Duration) -> String {
    let mut text = String::new();
    for network in settings.trusted_proxies.iter().filter(|network| network.is_everything()) {
        let _ = writeln!(
            text,
            "warning: trusted_proxies: {network} trusts every client to name its own address; list only your proxies"
        );
    }
    let default = settings.certificates.iter().find(|own| !own.is_empty());
    for (own, site) in settings.certificates.iter().zip(&settings.site) {
        for one in own {
            describe(&mut text, &one.chain, &one.certified, &site.hosts, now);
            one.ocsp.iter().for_each(|ocsp| describe_response(&mut text, ocsp));
        }
        // A site without a certificate uses that of another site.
        for one in default.filter(|_| own.is_empty() && !site.acme && settings.has_tls()).into_iter().flatten() {
            let covered = names(&one.certified.cert).unwrap_or_default();
            for host in site.hosts.iter().filter(|host| !covers(&covered, host)) {
                warn(
                    &mut text,
                    &one.chain,
                    &format!("also serves {host}, which is not among its names: clients that use this name refuse it"),
                );
            }
        }
    }
    settings.client_auth.iter().for_each(|auth| describe_crls(&mut text, auth));
    if let Some(secret) = &settings.tls.ticket_secret {
        review_secret(&mut text, secret, settings.user.as_deref());
    }
    for (site, number) in settings.apps.iter().zip(0..) {
        let Some(Site { apps: rules, static_rules, .. }) = settings.sites.get(number) else { continue };
        for rule in static_rules.iter().filter(|rule| usize::from(rule.before) >= rules.len()) {
            let pattern = rule.pattern.as_str();
            let way_out = "move its table before that of the application";
            let _ = writeln!(text, "warning: {pattern}: `static` has no effect, as no application follows; {way_out}");
        }
        for (app, rule) in site.iter().zip(rules) {
            if let AppKind::Http(upstream) = &app.kind {
                review_backends(&mut text, rule.pattern.as_str(), upstream, &settings.listen);
            }
        }
    }
    text
}

/// Describes the servers to which a rule forwards requests.
fn review_backends(text: &mut String, pattern: &str, upstream: &UpstreamSettings, listen: &[Listen]) {
    for named in upstream.names.iter().filter(|named| named.addresses.is_empty()) {
        let _ = writeln!(
            text,
            "warning: {pattern}: cannot resolve {}: correct the name, or add it to /etc/hosts",
            named.at
        );
    }
    for server in upstream.servers.iter().cloned().chain(upstream.names.iter().flat_map(NamedServer::known)) {
        let BackendServer { address, share } = server;
        let (shown, result) = match &address {
            BackendAddress::Unix(path) => {
                (format!("unix:{}", path.display()), local::connect(path, REACH_TIMEOUT).map(drop))
            }
            BackendAddress::Tcp(address) => {
                (address.to_string(), TcpStream::connect_timeout(address, REACH_TIMEOUT).map(drop))
            }
            BackendAddress::Tls(address, tls) => (format!("https://{address}"), begin_session(address, tls)),
        };
        let _ = match result {
            Ok(()) => writeln!(text, "{pattern}: forwarded to {shown}{share}"),
            Err(error) => {
                writeln!(text, "warning: {pattern}: cannot connect to {shown}: {error}; start the server there")
            }
        };
        let address = match &address {
            BackendAddress::Unix(_) => continue,
            BackendAddress::Tcp(address) => address,
            BackendAddress::Tls(address, tls) => {
                if !tls.verifies {
                    let _ = writeln!(text, "warning: {pattern}: {}", unverified(&shown));
                }
                address
            }
        };
        let ip = address.ip().to_canonical();
        if !is_near(ip) && !shown.starts_with("https://") {
            let _ = writeln!(text, "warning: {pattern}: requests to {shown} are not encrypted; use a private network");
        }
        let is_own = |listen: &Listen| {
            let own = listen.address.ip();
            listen.address.port() == address.port() && (own == ip || own.is_unspecified() && ip.is_loopback())
        };
        if listen.iter().any(is_own) {
            let _ =
                writeln!(text, "warning: {pattern}: {shown} is this server: a request may be forwarded without end");
        }
    }
}

/// Connects to a backend, and completes a TLS handshake.
fn begin_session(address: &SocketAddr, tls: &BackendTls) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(address, REACH_TIMEOUT)?;
    stream.set_read_timeout(Some(REACH_TIMEOUT))?;
    let mut session = tls.session().map_err(io::Error::other)?;
    while session.is_handshaking() {
        session.complete_io(&mut stream).map_err(|error| {
            let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
            tls.map(|error| io::Error::other(explain(error))).unwrap_or(error)
        })?;
    }
    Ok(())
}

/// Maximum time to connect to a backend.
const REACH_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns whether an address belongs to this machine or to a private network.
fn is_near(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_private() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local(),
    }
}

/// Warns if others can read the secret of ticket keys, or the serving user cannot.
fn review_secret(text: &mut String, secret: &Path, user: Option<&str>) {
    let Ok(file) = secret.metadata() else { return };
    let (shown, name) = (secret.display(), user.unwrap_or_default());
    let account = process::c_string(name).and_then(|name| process::user(&name).ok().flatten());
    let _ = if file.mode() & 0o077 != 0 {
        writeln!(text, "warning: the ticket secret {shown} is accessible to others than its owner: `chmod 600 {shown}`")
    } else if account.is_some_and(|account| account.uid != 0 && account.uid != file.uid()) {
        writeln!(
            text,
            "warning: the user {name} cannot read the ticket secret {shown}, so a reload fails and a new secret requires a \
             restart: `chown {name} {shown}`"
        )
    } else {
        Ok(())
    };
}

fn warn(text: &mut String, file: &Path, what: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "warning: {}: the certificate {what}", file.display());
}

fn describe(text: &mut String, file: &Path, certified: &CertifiedKey, hosts: &[Box<str>], now: Duration) {
    let parsed: der::Result<Vec<X509>> = certified.cert.iter().map(|der| X509::from_der(der)).collect();
    let (Ok(chain), Ok(names)) = (parsed, names(&certified.cert)) else {
        return warn(text, file, "or one after it in the file is malformed");
    };
    let Some((own, above)) = chain.split_first() else { return };
    let validity = own.tbs_certificate().validity();
    let [from, until] = [validity.not_before, validity.not_after].map(|time| days(time.to_unix_duration()));
    let (today, date) = (days(now), validity.not_after.to_date_time().to_string());
    let kind = match certified.key.algorithm() {
        SignatureAlgorithm::RSA => "RSA",
        SignatureAlgorithm::ECDSA => "ECDSA",
        _ => "Ed25519",
    };
    let (left, lasts) = (until.saturating_sub(today), until.saturating_sub(from));
    let _ = writeln!(
        text,
        "{}: {} ({kind}, until {}, {left} days left)",
        file.display(),
        names.join(", "),
        date.split('T').next().unwrap_or_default()
    );
    let mut warn = |what: &str| warn(text, file, what);
    if now >= validity.not_after.to_unix_duration() {
        warn("has expired: clients refuse it");
    } else if left < RENEWAL.min(lasts / 3) {
        warn("expires soon: renew it");
    }
    if now < validity.not_before.to_unix_duration() {
        warn("is not valid yet: clients refuse it until then");
    }
    if lasts > VALIDITY_MAX {
        warn(&format!("is valid for {lasts} days: browsers refuse more than {VALIDITY_MAX} from a public CA"));
    }
    if names.is_empty() {
        warn("has no names (subjectAltName): clients refuse it");
    }
    for host in hosts.iter().filter(|host| !names.is_empty() && !covers(&names, host)) {
        warn(&format!("does not cover the site's name {host}: clients that use this name refuse it"));
    }
    if chain.iter().any(|one| WEAK.contains(&one.signature_algorithm().oid)) {
        warn("or one after it in the file is signed with SHA-1 or MD5: clients refuse it");
    }
    if own.tbs_certificate().issuer() == own.tbs_certificate().subject() {
        warn("is self-signed: only clients that trust it explicitly accept it");
    } else if above.is_empty() {
        warn("has no issuer in the file: clients refuse it unless a root issued it; add the intermediate certificates");
    }
    if must_staple(own) && certified.ocsp.is_none() {
        warn(
            "requires an OCSP response (must-staple), but there is none to send: clients refuse it; see the key `ocsp`",
        );
    }
    let issued =
        chain.iter().zip(above).all(|(one, by)| one.tbs_certificate().issuer() == by.tbs_certificate().subject());
    if !issued {
        warn("or one after it is not followed by its issuer: reorder the certificates in the file");
    }
}

/// Describes the OCSP response of a certificate.
fn describe_response(text: &mut String, ocsp: &Staple) {
    let _ = match (&ocsp.problem, ocsp.next_update) {
        (Some(UnusableResponse { message, help }), _) => writeln!(text, "warning: {message}: {help}; none is sent"),
        (None, Some(end)) => writeln!(text, "{}: OCSP response until {}", ocsp.path.display(), ocsp::date(end)),
        (None, None) => writeln!(text, "{}: OCSP response without an expiry time", ocsp.path.display()),
    };
}

/// Describes the CRLs of client certificates.
fn describe_crls(text: &mut String, auth: &ClientAuth) {
    let Some(crls) = &auth.crls else { return };
    let path = crls.path.display();
    for crl in &crls.lists {
        let (issuer, end) = (crl::shown(&crl.issuer), ocsp::date(crl.next_update));
        let _ = writeln!(text, "{path}: CRL of {issuer} until {end}");
    }
    for UnusableCrls { message, help } in crls.expired() {
        let _ = writeln!(text, "warning: {message}: {help}; client certificates of this CA are refused");
    }
    for name in auth.without_crl() {
        let _ = writeln!(text, "warning: {path} has no CRL of {name}: client certificates of this CA are refused");
    }
}

/// Returns whether clients must reject this certificate without a stapled OCSP response ("must-staple").
fn must_staple(own: &X509) -> bool {
    let mut extensions = own.tbs_certificate().extensions().into_iter().flatten();
    let feature = extensions.find(|extension| extension.extn_id == TLS_FEATURE);
    let features = feature.and_then(|extension| Vec::<u16>::from_der(extension.extn_value.as_bytes()).ok());
    features.is_some_and(|features| features.contains(&STATUS_REQUEST))
}

/// Converts to whole days since 1970.
fn days(time: Duration) -> u64 {
    time.as_secs() / 86_400
}

/// Returns the names in the first certificate: hosts in lower case, and addresses.
fn names(chain: &[CertificateDer<'_>]) -> der::Result<Vec<String>> {
    let Some(own) = chain.first() else { return Ok(Vec::new()) };
    let own = X509::from_der(own)?;
    let names = own.tbs_certificate().get_extension::<SubjectAltName>()?.map(|(_, names)| names.0);
    let name = |name: &GeneralName| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
            four.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok()).map(|address| address.to_string())
        }
        _ => None,
    };
    Ok(names.iter().flatten().filter_map(name).collect())
}

/// Returns whether one of these names covers a host of a site, which may begin with `*.` or be an IPv6 address in
/// brackets. Of hosts that end with `*` one is enough: the actual names are unknown.
fn covers(names: &[String], host: &str) -> bool {
    if let Some(start) = host.strip_suffix('*') {
        return names.iter().any(|name| name.starts_with(start) || name.starts_with("*."));
    }
    let host = host.trim_matches(['[', ']']);
    // RFC 9525, 6.3: a wildcard matches one label.
    let below = host.split_once('.').map(|(_, below)| below);
    names.iter().any(|name| name == host || (name.strip_prefix("*.").is_some_and(|name| below == Some(name))))
}

#[cfg(test)]
mod tests {
    use super::super::settings::Share;
    use super::*;
    use crate::backend_tls::TlsKeys;
    use rcgen::{CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
    use rustls::pki_types::PrivateKeyDer;

    /// 2026-11-25.
    const NOW: Duration = Duration::from_secs(20_782 * 86_400);

    fn issuer(name: &str) -> (CertificateParams, KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        (params, KeyPair::generate().unwrap())
    }

    /// Returns a certificate for these names, valid from this month of 2026 until this month of 2027, and that of its
    /// issuer.
    fn chain(names: &[&str], from: u8, until: u8) -> (Vec<CertificateDer<'static>>, KeyPair) {
        let (params, key) = issuer("intermediate");
        let above = params.self_signed(&key).unwrap();
        let own_key = KeyPair::generate().unwrap();
        let mut own = CertificateParams::new(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap();
        (own.not_before, own.not_after) = (date_time_ymd(2026, from, 1), date_time_ymd(2027, until, 1));
        let own = own.signed_by(&own_key, &Issuer::from_params(&params, &key)).unwrap();
        (vec![own.der().clone(), above.der().clone()], own_key)
    }

    fn reviewed((chain, key): &(Vec<CertificateDer<'static>>, KeyPair), hosts: &[&str]) -> String {
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
        let hosts: Vec<Box<str>> = hosts.iter().map(|&host| host.into()).collect();
        let mut text = String::new();
        describe(&mut text, Path::new("a.pem"), &CertifiedKey::new(chain.clone(), key), &hosts, NOW);
        text
    }

    #[test]
    fn unreachable_and_distant_backends_are_reported() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let server = |address| BackendServer { address, share: Share { weight: 2, is_backup: true } };
        let servers = vec![server(BackendAddress::Tcp(open)), server(BackendAddress::Unix("/none/socket".into()))];
        let mut text = String::new();
        let listen = [Listen {
            address: ([0, 0, 0, 0], open.port()).into(),
            start: crate::config::settings::ConnectionStart::default(),
        }];
        review_backends(&mut text, "/app", &UpstreamSettings { servers, ..UpstreamSettings::default() }, &listen);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("/app: forwarded to {open} weight=2 backup"));
        assert!(lines[1].starts_with(&format!("warning: /app: {open} is this server")), "{text}");
        assert!(lines[2].starts_with("warning: /app: cannot connect to unix:/none/socket: "), "{text}");
        // It ends the connection, which is not how a handshake begins.
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let keys = TlsKeys { ca: None, own: None, verify: false };
        let servers = vec![server(BackendAddress::Tls(open, BackendTls::read(keys).unwrap()))];
        let mut text = String::new();
        review_backends(&mut text, "/app", &UpstreamSettings { servers, ..UpstreamSettings::default() }, &[]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with(&format!("warning: /app: cannot connect to https://{open}: ")), "{text}");
        assert!(lines[1].contains("is not verified"), "{text}");
        for (address, expected) in [
            ("127.0.0.1", true),
            ("10.1.2.3", true),
            ("192.168.1.1", true),
            ("::1", true),
            ("fd00::1", true),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_near(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn sound_certificate_is_described_without_warning() {
        let sound = chain(&["a.example", "*.b.example", "::1"], 10, 2);
        assert_eq!(
            reviewed(&sound, &["a.example", "x.b.example", "*.b.example", "[::1]"]),
            "a.pem: a.example, *.b.example, ::1 (ECDSA, until 2027-02-01, 68 days left)\n"
        );
    }

    #[test]
    fn certificate_problems_are_reported() {
        let check = |chain: &(Vec<CertificateDer<'static>>, KeyPair), hosts: &[&str], expected: &[&str]| {
            let text = reviewed(chain, hosts);
            let warnings: Vec<&str> = text.lines().skip(1).collect();
            assert_eq!(warnings.len(), expected.len(), "{text}");
            for expected in expected {
                assert!(text.contains(expected), "{expected} is not in:\n{text}");
            }
        };
        let names = ["a.example"];
        check(&chain(&names, 12, 2), &[], &["is not valid yet"]);
        check(&chain(&names, 1, 12), &[], &["valid for 699 days"]);
        check(&chain(&[], 10, 2), &["a.example"], &["has no names"]);
        let (params, issuer_key) = issuer("intermediate");
        let (mut own, key) = (CertificateParams::new(["a.example".to_owned()]).unwrap(), KeyPair::generate().unwrap());
        (own.not_before, own.not_after) = (date_time_ymd(2026, 10, 1), date_time_ymd(2027, 2, 1));
        // SEQUENCE OF INTEGER: 5.
        let feature = CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 24], vec![0x30, 3, 2, 1, 5]);
        own.custom_extensions = vec![feature];
        let strict = own.signed_by(&key, &Issuer::from_params(&params, &issuer_key)).unwrap();
        let above = params.self_signed(&issuer_key).unwrap();
        check(&(vec![strict.der().clone(), above.der().clone()], key), &[], &["must-staple"]);
        check(&chain(&names, 10, 2), &["b.example", "x.a.example"], &["name b.example", "name x.a.example"]);
        let (full, key) = chain(&names, 10, 2);
        check(&(full[..1].to_vec(), key), &[], &["has no issuer"]);
        let (mut wrong, key) = chain(&names, 10, 2);
        let (other, other_key) = issuer("another");
        wrong[1] = other.self_signed(&other_key).unwrap().der().clone();
        check(&(wrong, key), &[], &["is not followed by its issuer"]);
        let key = KeyPair::generate().unwrap();
        let mut own = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        (own.not_before, own.not_after) = (date_time_ymd(2026, 6, 1), date_time_ymd(2026, 11, 24));
        let expired = own.self_signed(&key).unwrap().der().clone();
        check(&(vec![expired], key), &[], &["has expired", "is self-signed"]);
        let key = KeyPair::generate().unwrap();
        own.not_after = date_time_ymd(2026, 12, 20);
        let soon = own.self_signed(&key).unwrap().der().clone();
        check(&(vec![soon], key), &[], &["expires soon", "is self-signed"]);
        let key = KeyPair::generate().unwrap();
        check(&(vec![CertificateDer::from(SHA1.to_vec())], key), &[], &["signed with SHA-1", "is self-signed"]);
        let key = KeyPair::generate().unwrap();
        let text = reviewed(&(vec![CertificateDer::from(vec![0x30, 0x80])], key), &[]);
        assert!(text.contains("is malformed"), "{text}");
    }

    /// By OpenSSL: `req -x509 -newkey ec -sha1 -days 90`, for a.example.
    const SHA1: &[u8] = include_bytes!("../../../../tests/golden/sha1.der");
}
