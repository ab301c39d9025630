//! Checks the keys about servers behind this one: their addresses, and how TLS sessions with them begin.

use std::net::SocketAddr;

use super::checked::Checker;
use super::file::AppTable;
use super::read::Node;
use super::settings::{AppKind, BACKENDS_MAX, BackendAddress, NamedServer, UpstreamSettings};
use crate::app::names;
use crate::backend_tls::{BackendTls, TlsKeys, UnusableKeys};

impl Checker<'_> {
    /// Returns the addresses of the servers that `http` names.
    pub(super) fn backends(&mut self, app: &mut AppTable, node: Node<'_>) -> Option<AppKind> {
        let mut urls = app.http.take()?;
        let found = self.backend_addresses(app, &mut urls, node);
        let count = urls.len();
        app.http = Some(urls);
        let (addresses, names) = found?;
        if !(1..=BACKENDS_MAX).contains(&count) {
            let message = format!("`http` has {count} addresses");
            self.findings.at(node.get("http").span(), message, format!("write 1 to {BACKENDS_MAX} addresses"));
            return None;
        }
        Some(AppKind::Http(Box::new(UpstreamSettings { addresses, names, ..UpstreamSettings::default() })))
    }

    fn backend_addresses(
        &mut self,
        app: &mut AppTable,
        urls: &mut [Box<str>],
        node: Node<'_>,
    ) -> Option<(Vec<BackendAddress>, Vec<NamedServer>)> {
        let tls = self.backend_tls(app, urls, node)?;
        let node = node.get("http");
        let list: Vec<Node<'_>> = node.elements().collect();
        let nodes = if list.is_empty() { vec![node] } else { list };
        let (mut addresses, mut names) = (Vec::new(), Vec::new());
        for (url, node) in urls.iter_mut().zip(nodes) {
            if let Some(name) = url.strip_prefix("unix:") {
                let path = self.folder.join(name);
                *url = format!("unix:{}", path.display()).into();
                addresses.push(BackendAddress::Unix(path));
                continue;
            }
            let secure = url.strip_prefix("https://");
            let at = secure.unwrap_or(url);
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
            match at.parse::<SocketAddr>() {
                Ok(address) => addresses.push(match tls {
                    Some(tls) => BackendAddress::Tls(address, tls),
                    None => BackendAddress::Tcp(address),
                }),
                // It may be known later.
                Err(_) => {
                    let addresses = names::resolve(at).unwrap_or_default();
                    names.push(NamedServer { at: at.into(), tls, addresses });
                }
            }
        }
        Some((addresses, names))
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
