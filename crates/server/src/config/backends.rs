//! Checks the keys about servers behind this one: their addresses, and how TLS sessions with them begin.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::checked::Checker;
use super::file::AppTable;
use super::read::Node;
use super::settings::{AppKind, BACKENDS_MAX, BackendAddress, BackendServer, NamedServer, Share, UpstreamSettings};
use crate::app::names;
use crate::backend_tls::{BackendTls, TlsKeys, UnusableKeys};

impl Checker<'_> {
    /// Returns the addresses of the servers that `http` names.
    pub(super) fn backends(&mut self, app: &mut AppTable, node: Node<'_>) -> Option<AppKind> {
        let mut urls = app.http.take()?;
        let found = self.backend_addresses(app, &mut urls, node);
        let count = urls.len();
        app.http = Some(urls);
        let (servers, names) = found?;
        if !(1..=BACKENDS_MAX).contains(&count) {
            let message = format!("`http` has {count} addresses");
            self.findings.at(node.get("http").span(), message, format!("write 1 to {BACKENDS_MAX} addresses"));
            return None;
        }
        Some(AppKind::Http(Box::new(UpstreamSettings { servers, names, ..UpstreamSettings::default() })))
    }

    fn backend_addresses(
        &mut self,
        app: &mut AppTable,
        urls: &mut [Box<str>],
        node: Node<'_>,
    ) -> Option<(Vec<BackendServer>, Vec<NamedServer>)> {
        let tls = self.backend_tls(app, urls, node)?;
        let node = node.get("http");
        let list: Vec<Node<'_>> = node.elements().collect();
        let nodes = if list.is_empty() { vec![node] } else { list };
        let (mut servers, mut names, mut known) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (url, node) in urls.iter_mut().zip(nodes) {
            let (at, share) = Share::split(url);
            if !known.insert(at.to_owned()) {
                let help = "name each address once; `weight=2` gives it twice as many requests";
                self.findings.at(node.span(), format!("duplicate `{at}`"), help);
                return None;
            }
            if let Some(name) = at.strip_prefix("unix:") {
                let path = self.folder.join(name);
                *url = format!("unix:{}{share}", path.display()).into();
                servers.push(BackendServer { address: BackendAddress::Unix(path), share });
                continue;
            }
            let secure = at.strip_prefix("https://");
            let at = secure.unwrap_or(at);
            let tls = match tls.as_ref().filter(|_| secure.is_some()) {
                None => None,
                Some(tls) => {
                    let host = at.rsplit_once(':').map_or(at, |(host, _)| host);
                    let Ok(named) = tls.named(app.tls_name.as_deref().unwrap_or(host)) else {
                        let help = "write the name in the server's certificate as `tls_name`";
                        self.findings.at(node.span(), format!("no certificate can have the name `{host}`"), help);
                        return None;
                    };
                    Some(named)
                }
            };
            let address = at.parse::<SocketAddr>();
            // A name may be known later.
            let addresses = address.as_ref().map_or_else(|_| names::resolve(at).unwrap_or_default(), |_| Vec::new());
            let named = NamedServer { at: at.into(), tls, share, addresses };
            match address {
                Ok(address) => servers.push(named.reached_at(address)),
                Err(_) => names.push(named),
            }
        }
        let mut shares = servers.iter().map(|server| server.share).chain(names.iter().map(|named| named.share));
        if !urls.is_empty() && shares.all(|share| share.is_backup) {
            let help = "remove `backup` from one of them: backups get requests while no other server is in service";
            self.findings.at(node.span(), "all addresses of `http` are backups", help);
            return None;
        }
        Some((servers, names))
    }

    /// Reads how sessions with `https` servers begin. `None`: there is an error.
    fn backend_tls(&mut self, app: &mut AppTable, urls: &[Box<str>], node: Node<'_>) -> Option<Option<BackendTls>> {
        const KEYS: [&str; 5] = ["tls_ca", "tls_name", "tls_certificate", "tls_key", "tls_verify"];
        let files = [&mut app.tls_ca, &mut app.tls_certificate, &mut app.tls_key];
        for path in files.into_iter().flatten() {
            *path = self.absolute(path, node);
        }
        if !urls.iter().any(|url| url.starts_with("https://")) {
            for key in KEYS {
                if let Some(place) = node.get(key).place() {
                    let help = "remove it, or write `https://` before an address of `http`";
                    self.findings.at(place, format!("`{key}` has no effect without TLS"), help);
                }
            }
            return Some(None);
        }
        let pair = ["tls_certificate", "tls_key"].map(|key| node.get(key).place());
        if let [Some(place), None] | [None, Some(place)] = pair {
            let message = "`tls_certificate` and `tls_key` require each other";
            self.findings.at(place, message, "write both, or none");
            return None;
        }
        let verify = *app.tls_verify.get_or_insert(true);
        if let Some(place) = node.get("tls_ca").place().filter(|_| !verify) {
            let help = "remove one of them";
            self.findings.at(place, "`tls_ca` has no effect with `tls_verify = false`", help);
        }
        let own = app.tls_certificate.as_deref().zip(app.tls_key.as_deref());
        let read = BackendTls::read(TlsKeys { ca: app.tls_ca.as_deref(), own, verify });
        let report = |UnusableKeys { key, message, help }| {
            self.findings.at(node.get(key.unwrap_or("http")).span(), message, help);
        };
        let read = read.map(Some).map_err(report).ok();
        let key = app.tls_key.iter().filter(|_| read.is_some());
        self.secrets.extend(key.map(|key| ("private key", key.clone(), node.get("tls_key").span())));
        read
    }
}
