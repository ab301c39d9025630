//! The directives outside servers, and the servers in order.
//!
//! amped chooses a site by the host alone. So a server of nginx that only redirects to https becomes
//! `redirect_to_https` in the site with these names, of two servers with the same name and different ports only the
//! first is translated, and a server at other addresses is left out.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value, json};

use super::challenges;
use super::files::time;
use super::known::{self, Fate};
use super::limits::size;
use super::listens::{self, has_only_tls, has_tls};
use super::media_types;
use super::page::{Page, SitePage};
use super::rewrite::condition_words;
use super::scope::{Http, Scope};
use super::server;
use super::tree::Directive;

/// Translates a whole configuration.
pub(super) fn page(directives: &[Directive]) -> Page {
    let mut page = Page::default();
    for directive in directives {
        match directive.name.as_str() {
            "user" => {
                page.set(&["user"], directive.arg(0).into(), directive);
                if let Some(group) = directive.args.get(1) {
                    page.set(&["group"], group.as_str().into(), directive);
                }
            }
            "worker_processes" => {
                if let Ok(number) = directive.arg(0).parse::<u64>() {
                    page.set(&["workers"], number.into(), directive);
                }
            }
            "worker_shutdown_timeout" => match time(directive.arg(0)) {
                Some(time) => page.set(&["stop", "deadline"], time.into(), directive),
                None => page.note(directive, "no such value"),
            },
            _ => {}
        }
        remark(&mut page, directive);
    }
    // A file of `sites-available` has servers without a block around them.
    let has_http = directives.iter().any(|directive| directive.name == "http");
    let own: Vec<Directive> =
        directives.iter().filter(|directive| directive.name == "http").flat_map(Directive::inner).cloned().collect();
    let block = if has_http { &own[..] } else { directives };
    if has_http {
        block.iter().for_each(|directive| remark(&mut page, directive));
    }
    let servers: Vec<&Directive> = block.iter().filter(|directive| directive.name == "server").collect();
    let servers = with_shared_addresses(&mut page, servers);
    let is_verifier =
        |inner: &&Directive| inner.name == "ssl_verify_client" && ["on", "optional"].contains(&inner.arg(0));
    let all = servers.iter().flat_map(|server| server.inner()).chain(block);
    let verifies = all.clone().any(|inner| is_verifier(&inner));
    globals(&mut page, block, true, verifies);
    log(&mut page, block);
    servers.iter().for_each(|server| globals(&mut page, server.inner(), false, verifies));
    if let Some(from) =
        block.iter().chain(all).find(is_verifier).filter(|_| !block.iter().any(|inner| is_verifier(&inner)))
    {
        let others =
            servers.iter().filter(|server| has_tls(server) && !server.inner().iter().any(|inner| is_verifier(&inner)));
        others.for_each(|server| {
            page.note(server, &format!("`{}` applies to all sites, of which this server is one without", from.text()));
        });
    }
    listens::listen(&mut page, &servers);
    servers.iter().for_each(|server| stub_status(&mut page, server));
    let named = |name: &str, at: fn(&Directive) -> &str| -> HashMap<&str, &Directive> {
        block.iter().filter(|directive| directive.name == name).map(|directive| (at(directive), directive)).collect()
    };
    let http = Http {
        block,
        upstreams: named("upstream", |directive| directive.arg(0)),
        zones: named("limit_req_zone", zone_name),
        connection_zones: named("limit_conn_zone", zone_name),
        caches: block.iter().filter_map(|directive| Some((cache_of(directive)?, directive))).collect(),
    };
    sites(&mut page, &http, servers);
    page
}

/// The servers that can be sites of one configuration; the others are left out, with a note.
fn with_shared_addresses<'s>(page: &mut Page, servers: Vec<&'s Directive>) -> Vec<&'s Directive> {
    let others = servers.iter().copied().filter(|server| redirected(server).is_none()).collect();
    let (_, left) = listens::shared(others);
    for server in &left {
        let why = "a site is reached at all addresses, so one that nginx has at others only is left out; convert it to a configuration of its own";
        page.note(server, why);
    }
    servers.into_iter().filter(|server| !left.iter().any(|other| std::ptr::eq(*other, *server))).collect()
}

/// The name of a zone: `zone=name:10m`.
fn zone_name(directive: &Directive) -> &str {
    let zone = directive.args.iter().find_map(|word| word.strip_prefix("zone=")).unwrap_or_default();
    zone.split_once(':').map_or(zone, |(name, _)| name)
}

/// The kind of applications and the name of the zone of a `..._cache_path`.
fn cache_of(directive: &Directive) -> Option<(&str, &str)> {
    let kind = directive.name.strip_suffix("_cache_path")?;
    let zone = directive.args.iter().find_map(|word| word.strip_prefix("keys_zone="))?;
    Some((kind, zone.split_once(':').map_or(zone, |(name, _)| name)))
}

/// Notes a directive that nothing translates.
fn remark(page: &mut Page, directive: &Directive) {
    // WebSocket needs no variable, and header rules have media types.
    let is_upgrade = directive.name == "map" && directive.arg(0) == "$http_upgrade";
    if let Fate::Left(why) = known::fate(directive)
        && !is_upgrade
        && media_types::values_of(directive).is_none()
    {
        page.note(directive, why);
    }
}

/// Keys of the whole server. In a `server` they would apply to one site only.
///
/// `verifies`: whether a server verifies certificates of clients, without which their CA has no effect.
fn globals(page: &mut Page, block: &[Directive], is_http: bool, verifies: bool) {
    const TIMES: [(&str, &str); 5] = [
        ("client_body_timeout", "body_timeout"),
        ("client_header_timeout", "header_timeout"),
        ("keepalive_timeout", "idle_timeout"),
        ("lingering_timeout", "linger_timeout"),
        ("send_timeout", "send_timeout"),
    ];
    let mut proxies = Vec::new();
    for directive in block {
        let first = directive.arg(0);
        let times = TIMES.iter().find(|(name, _)| *name == directive.name);
        let (path, value): (&[&str], Option<Value>) = match (times, directive.name.as_str()) {
            (Some((_, key)), _) => (&["limits", key], time(first).map(Value::from)),
            (_, "keepalive_requests") => (&["limits", "max_requests"], first.parse::<u64>().ok().map(Value::from)),
            (_, "max_ranges") => (&["limits", "max_ranges"], first.parse::<u64>().ok().map(Value::from)),
            (_, "http2_max_concurrent_streams") => {
                (&["limits", "max_concurrent_streams"], first.parse::<u64>().ok().map(Value::from))
            }
            (_, "lingering_close") if first == "off" => (&["limits", "linger_timeout"], Some("0s".into())),
            (_, "http2") => (&["http2"], Some((first == "on").into())),
            (_, "large_client_header_buffers") => {
                (&["limits", "max_request_line_bytes"], Some(size(directive.arg(1)).into()))
            }
            (_, "ssl_client_certificate") if verifies => (&["tls", "client_ca"], Some(first.into())),
            (_, "ssl_crl") if verifies => (&["tls", "client_crl"], Some(first.into())),
            (_, "ssl_verify_client") if first == "optional" => (&["tls", "client_certificate"], Some(first.into())),
            (_, "ssl_verify_client") if first == "optional_no_ca" => {
                page.note(directive, "a certificate that cannot be verified is refused");
                continue;
            }
            (_, "set_real_ip_from") if first != "unix:" => {
                proxies.push(first);
                (&["trusted_proxies"], Some(json!(proxies)))
            }
            (_, "real_ip_header") => {
                match first.to_ascii_lowercase().as_str() {
                    "x-forwarded-for" | "proxy_protocol" => {}
                    _ => page.note(directive, "trusted proxies name the client in X-Forwarded-For or Forwarded"),
                }
                continue;
            }
            _ => continue,
        };
        let Some(value) = value else {
            page.note(directive, "no such value");
            continue;
        };
        let known = path.iter().try_fold(&Value::Object(page.top.clone()), |table, key| table.get(*key)).cloned();
        if !is_http && path[0] != "trusted_proxies" && known.as_ref().is_some_and(|known| *known != value) {
            page.note(directive, &format!("`{}` applies to all sites, and another value is set", path.join(".")));
            continue;
        }
        page.set(path, value, directive);
    }
}

fn log(page: &mut Page, block: &[Directive]) {
    let mut all = block.iter().filter(|directive| directive.name == "access_log");
    let Some(directive) = all.next() else { return };
    if directive.arg(0) != "off" {
        page.set(&["log", "access"], directive.arg(0).into(), directive);
    }
    if !["", "combined"].contains(&directive.arg(1)) && !directive.arg(1).contains('=') {
        page.note(directive, "the lines have the format `combined`; see `format` in `[log]`");
    }
    all.for_each(|other| page.note(other, "there is one log"));
}

/// Metrics have an address of their own.
fn stub_status(page: &mut Page, block: &Directive) {
    for inner in block.inner() {
        if inner.name == "stub_status" {
            page.set(&["metrics", "listen"], "127.0.0.1:9145".into(), inner);
            page.note(inner, "the metrics are at http://127.0.0.1:9145/metrics (OpenMetrics), with other names");
        }
        stub_status(page, inner);
    }
}

/// The sites; the default server is the first.
fn sites(page: &mut Page, http: &Http<'_>, mut servers: Vec<&Directive>) {
    let is_default = |server: &&Directive| {
        let mut all = server.inner().iter().filter(|inner| inner.name == "listen");
        all.any(|listen| listen.args.iter().any(|word| word == "default_server" || word == "default"))
    };
    servers.sort_by_key(|server| !is_default(server));
    let (redirects, others): (Vec<&Directive>, Vec<&Directive>) =
        servers.into_iter().partition(|server| redirected(server).is_some());
    let tls: BTreeSet<String> =
        others.iter().filter(|server| has_tls(server)).flat_map(|server| names_of(server).0).collect();
    let (mut to_https, mut redirecting) = (BTreeSet::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for server in redirects {
        let names = redirected(server).unwrap_or_default();
        let is_all = names.is_empty();
        for name in names.iter().filter(|name| !tls.contains(*name)) {
            let why = format!("no server with TLS has the name {name}");
            page.note(server, &why);
        }
        // Without names it redirects those of all others.
        to_https.extend(if is_all { tls.clone() } else { names.into_iter().collect() });
        others_of_redirect(page, http, server);
        redirecting.push(server);
    }
    for server in others {
        let (names, strange) = names_of(server);
        let (known, own): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| seen.contains(name));
        let is_first = page.sites.is_empty();
        if !is_first && own.is_empty() {
            let why = match known.first() {
                Some(name) => {
                    format!("another server has the name {name}; a site is chosen by the host, not by the port")
                }
                None => "only the first site serves names that no other has".to_owned(),
            };
            page.note(server, &why);
            continue;
        }
        seen.extend(own.iter().cloned());
        let is_redirected = own.iter().any(|name| to_https.contains(name))
            || (is_first && own.is_empty() && !to_https.is_empty() && has_tls(server));
        let redirect = redirecting.iter().filter(|_| is_redirected).find(|redirect| {
            let names = names_of(redirect).0;
            names.is_empty() || own.is_empty() || names.iter().any(|name| own.contains(name))
        });
        let mut site = server::site(page, http, server, &own, redirect.copied());
        close(page, http, server, &mut site, is_redirected);
        for directive in strange {
            page.note_in(&mut site, directive, "a host is a name, `*.` and a name, or a name and `.*`");
        }
        if is_redirected {
            site.keys.insert("redirect_to_https".to_owned(), true.into());
        }
        page.deny_fallbacks(&mut site);
        page.sites.push(site);
    }
    if page.sites.is_empty() {
        let mut site = SitePage::default();
        site.keys.insert("root".to_owned(), "/usr/share/nginx/html".into());
        page.sites.push(site);
    }
}

/// Closes a site to requests that do not reach its server in nginx.
fn close(page: &mut Page, http: &Http<'_>, server: &Directive, site: &mut SitePage, is_redirected: bool) {
    let has_clear = |listen: &Value| listen.as_array().is_some_and(|all| all.iter().any(|own| !is_tls_address(own)));
    if has_only_tls(server) && !is_redirected && page.top.get("listen").is_some_and(has_clear) {
        let table = json!({ "match": "/**", "when": { "scheme": "http" }, "deny": true });
        site.precede("route", table, server);
        page.warn_here(site, server, "requests for it without TLS get 403; in nginx another server has them");
    }
    let scope = Scope::of(&[http.block, server.inner()]);
    let Some(verify) = scope.get("ssl_verify_client").filter(|verify| verify.arg(0) == "on" && has_tls(server)) else {
        return;
    };
    let tls = page.top.get("tls").cloned().unwrap_or_default();
    let has_own_ca = scope.get("ssl_client_certificate").is_some_and(|ca| tls["client_ca"] == ca.arg(0));
    if !has_own_ca || !tls["client_certificate"].is_null() {
        page.refuse_site(site, verify, "clients are not required to have a certificate of this CA");
    }
}

fn is_tls_address(listen: &Value) -> bool {
    listen.as_str().is_some_and(|text| text.split(' ').any(|word| word == "tls"))
}

/// The host names of a server, and the directives with others.
fn names_of(server: &Directive) -> (Vec<String>, Vec<&Directive>) {
    let (mut names, mut strange): (Vec<String>, Vec<&Directive>) = (Vec::new(), Vec::new());
    for directive in server.inner().iter().filter(|inner| inner.name == "server_name") {
        for name in &directive.args {
            match name.as_str() {
                "_" | "" | "localhost.localdomain" => {}
                name if name.starts_with('~') || name.contains('$') => strange.push(directive),
                name => match name.strip_prefix('.') {
                    Some(domain) => {
                        names.extend([domain.to_ascii_lowercase(), format!("*.{domain}").to_ascii_lowercase()])
                    }
                    None => names.push(name.to_ascii_lowercase()),
                },
            }
        }
    }
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    (names, strange)
}

/// The names that a server without TLS does nothing with but redirect them to https; `None` if it does something else.
fn redirected(server: &Directive) -> Option<Vec<String>> {
    if has_tls(server) {
        return None;
    }
    let names = names_of(server).0;
    let redirects =
        |block: &[Directive]| block.iter().any(|inner| inner.name == "return" && is_to_https(inner, &names));
    let root = server.inner().iter().find(|inner| inner.name == "location" && inner.args == ["/"]);
    if redirects(server.inner()) || root.is_some_and(|root| redirects(root.inner())) {
        return Some(names);
    }
    // certbot: `if ($host = example.org) { return 301 https://$host$request_uri; }`, then `return 404`.
    let conditional = server.inner().iter().filter(|inner| inner.name == "if" && redirects(inner.inner()));
    let hosts: Vec<String> = conditional
        .filter_map(|inner| match condition_words(&inner.args) {
            (variable, operator, host) if variable == "$host" && operator == "=" => Some(host.to_ascii_lowercase()),
            _ => None,
        })
        .collect();
    (!hosts.is_empty() && names.iter().all(|name| hosts.contains(name))).then_some(hosts)
}

/// Whether this redirects to https, with the same host and path.
fn is_to_https(directive: &Directive, names: &[String]) -> bool {
    let target = directive.args.last().map_or("", String::as_str);
    let Some(host) = target.strip_prefix("https://").and_then(|rest| rest.strip_suffix("$request_uri")) else {
        return false;
    };
    let is_own = |name: &str| matches!(names, [only] if only == name);
    ["$host", "$http_host", "${host}"].contains(&host) || is_own(host) || (host == "$server_name" && names.len() == 1)
}

/// Notes what such a server does besides.
fn others_of_redirect(page: &mut Page, http: &Http<'_>, server: &Directive) {
    let challenges = challenges::location(http, server).map(|location| location.directive.place());
    for inner in server.inner().iter().filter(|inner| inner.name == "location" && inner.args != ["/"]) {
        if challenges.as_ref() == Some(&inner.place()) {
            continue;
        }
        let why = "`redirect_to_https` redirects these requests too; add the location to the server with TLS: clients follow the redirect";
        page.note(inner, why);
    }
}
