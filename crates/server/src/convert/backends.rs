//! Backends: `proxy_pass`, `upstream`, and the keys that all applications have.

use std::collections::BTreeSet;

use amped_core::forms::{BackendLocationPrefix, ForwardedFieldName, ForwardedFieldValue, LocationReplacement};
use amped_units::Form as _;
use serde_json::{Value, json};

use super::caching::{self, Bypasses};
use super::files::{seconds, time};
use super::guards;
use super::known;
use super::limits::size;
use super::page::{Page, SitePage};
use super::paths::Paths;
use super::rewrite::field_name;
use super::scope::{Http, Scope};
use super::tree::Directive;
use crate::config::settings::Share;

/// A backend, for the paths of a pattern. `paths`: those of its location. `is_asked`: it authorises requests.
pub(super) fn proxy(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    scope: &Scope<'_>,
    directive: &Directive,
    (pattern, paths, is_asked): (String, &Paths, bool),
) {
    let target = directive.arg(0);
    let (rest, has_tls) = match target.split_once("://") {
        Some(("http", rest)) => (rest, false),
        Some(("https", rest)) => (rest, true),
        _ => return page.note_here(site, directive, "`http` names an address, without variables"),
    };
    // `unix:/run/app.sock:/path`
    let (address, uri) = match rest.strip_prefix("unix:") {
        Some(socket) => socket.split_once(':').map_or((rest, ""), |(path, uri)| (&rest[..path.len() + 5], uri)),
        None => rest.split_at(rest.find('/').unwrap_or(rest.len())),
    };
    if rest.contains('$') {
        return page.note_here(site, directive, "`http` names an address, without variables");
    }
    let own = match paths {
        Paths::Exact(path) | Paths::Prefix { path, .. } => path.as_str(),
        Paths::Regex { .. } | Paths::Named(_) => "",
    };
    let mut table = json!({ "match": pattern });
    if !uri.is_empty() && uri != own {
        // nginx replaces text, so `/a` may also be the beginning of `/ab`.
        let is_mount = match paths {
            Paths::Exact(_) => !own.ends_with('/') && !uri.ends_with('/'),
            _ => own.ends_with('/') && uri.ends_with('/'),
        };
        // A rewritten path is sent as it is. Challenges have a pattern of their own.
        let is_own =
            !uri.contains(['?', '#']) && scope.own("rewrite").next().is_none() && pattern == paths.app_pattern();
        if is_mount && is_own {
            table["backend_path"] = uri.into();
        } else {
            let why =
                format!("`backend_path` replaces a whole directory, so the backend gets `{own}` where it got `{uri}`");
            page.note_here(site, directive, &why);
        }
    }
    let upstream = http.upstreams.get(address);
    match upstream {
        Some(upstream) => balance(page, site, &mut table, upstream, has_tls),
        None => table["http"] = url(address, if has_tls { 443 } else { 80 }, has_tls).into(),
    }
    if has_tls {
        // nginx's default is what `proxy_pass` names.
        backend_tls(page, site, scope, &mut table, directive, upstream.map(|_| address));
    }
    let servers: Vec<&str> = upstream.map_or_else(|| vec![address], |own| servers(own).map(|own| own.arg(0)).collect());
    let are_several = servers.len() > 1 || servers.iter().any(|server| has_name(server));
    if let Some(from) = scope.get("proxy_next_upstream").filter(|_| are_several) {
        retries(page, site, &mut table, from);
    }
    common(page, site, scope, &mut table, "proxy");
    if let Some(from) = scope.get("proxy_connect_timeout")
        && let Some(time) = time(from.arg(0))
    {
        table["connect_timeout"] = time.into();
    }
    request_fields(page, site, scope, &mut table, (address, is_asked));
    location(page, site, scope, &mut table);
    let valid = scope.get("resolver").and_then(|own| own.args.iter().find_map(|arg| arg.strip_prefix("valid=")));
    if let Some(time) = valid.filter(|_| upstream.is_none() && has_name(address)).and_then(time) {
        table["resolve"] = time.into();
    }
    let bypasses = caching::cache(page, site, http, scope, &mut table, "proxy");
    app_rules(page, site, table, bypasses, directive);
}

/// Appends the rule of an application, after one without a cache for each condition of requests that bypass it.
pub(super) fn app_rules(page: &mut Page, site: &mut SitePage, table: Value, bypasses: Bypasses, directive: &Directive) {
    for when in bypasses {
        let mut without = table.clone();
        let keys = without.as_object_mut().expect("a table");
        keys.retain(|key, _| {
            !["cache", "cache_by_status", "stale_while_revalidate", "stale_if_error"].contains(&key.as_str())
        });
        without["when"] = Value::Object(when);
        // The cache would have the pages of these requests too.
        if !page.rule(site, "app", without, directive) {
            return;
        }
    }
    page.rule(site, "app", table, directive);
}

/// The Host that the backend gets: with nginx, its own unless `proxy_set_header` says otherwise. And other fields.
fn request_fields(
    page: &mut Page,
    site: &mut SitePage,
    scope: &Scope<'_>,
    table: &mut Value,
    (address, is_asked): (&str, bool),
) {
    let mut host = Some(address).filter(|address| !address.starts_with("unix:"));
    let mut fields = serde_json::Map::new();
    for field in scope.all("proxy_set_header") {
        let (name, value) = (field.arg(0).to_ascii_lowercase(), field.arg(1));
        let is_own =
            ["upgrade", "connection", "proxy", "early-data", "forwarded", "x-forwarded-for", "x-forwarded-host"];
        // Those that a request for an authorization has already.
        let is_of_authorization = ["x-original-", "x-forwarded-method", "x-forwarded-uri"];
        match name.as_str() {
            "host" => {
                host = match value {
                    "$host" | "$http_host" | "$server_name" | "$host:$server_port" => None,
                    "$proxy_host" => host,
                    value => Some(value),
                }
            }
            // Without a body, which another note may be about, there is no length.
            "content-length" if value.is_empty() && scope.get("proxy_pass_request_body").is_some() => {}
            "x-forwarded-proto" if value.contains('$') => {}
            "x-forwarded-proto" => {
                let why = "the scheme is that of the client; a proxy with TLS before this server is named in `trusted_proxies`";
                page.note_here(site, field, why);
            }
            name if is_own.contains(&name) => {}
            name if is_asked && is_of_authorization.iter().any(|known| name.starts_with(known)) => {}
            // `guards` translates it, if an authorization is required here; otherwise it is empty.
            _ if scope.all("auth_request_set").any(|set| set.arg(0) == value) => {
                let name = guards::field_of_variable(scope, value).unwrap_or_default();
                // The application that authorises is asked before the variable has a value.
                let is_off = is_asked || scope.get("auth_request").is_none_or(|request| request.arg(0) == "off");
                let own = match is_off {
                    true => Some(String::new()),
                    false if name.eq_ignore_ascii_case(&field.arg(0).replace('_', "-")) => None,
                    false => Some(format!("$http_{}", name.to_ascii_lowercase().replace('-', "_"))),
                };
                own.into_iter().for_each(|own| _ = fields.insert(field.arg(0).to_owned(), own.into()));
            }
            "x-request-id" if value == "$request_id" => page.note_here(site, field, "use `request_ids` in `[[site]]`"),
            // The request for an authorization is another one.
            _ if is_asked && value.contains("$request_") => page.note_here(
                site,
                field,
                "the application gets the client's request in X-Original-URI and X-Original-Method",
            ),
            _ => match ForwardedFieldName::parse(field.arg(0)).and_then(|_| ForwardedFieldValue::parse(value)) {
                Ok(value) => _ = fields.insert(field.arg(0).to_owned(), String::from(value).into()),
                Err(why) => page.note_here(site, field, why.split('\n').next().unwrap_or_default()),
            },
        }
    }
    if !fields.is_empty() {
        table["request_fields"] = Value::Object(fields);
    }
    if let Some(host) = host {
        table["host"] = host.into();
    }
}

/// Prefixes of Location. With nginx the first that matches applies, here the longest.
fn location(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>, table: &mut Value) {
    let all: Vec<&Directive> = scope.all("proxy_redirect").collect();
    let is_default = |own: &&Directive| own.args == ["default"];
    if let Some(off) = all.iter().find(|own| own.args == ["off"]) {
        if !table["host"].is_null() || !table["backend_path"].is_null() {
            let why = "Location of a backend that gets another host or path is mapped to those of the client";
            page.note_here(site, off, why);
        }
        return;
    }
    let (defaults, others): (Vec<&Directive>, Vec<&Directive>) = all.into_iter().partition(is_default);
    let mut prefixes = serde_json::Map::new();
    for own in others {
        let (from, to) = (own.arg(0), own.arg(1));
        let is_text = !from.starts_with('~') && !from.contains('$');
        let why =
            match (BackendLocationPrefix::parse(from).and_then(|_| LocationReplacement::parse(to)), defaults.first()) {
                _ if !is_text => "`map_location` has no variables or regular expressions in a prefix".to_owned(),
                (Err(why), _) => why.split('\n').next().unwrap_or_default().to_owned(),
                (Ok(_), Some(_)) => "`map_location` applies in place of the default".to_owned(),
                (Ok(to), None) => {
                    if !prefixes.keys().any(|earlier| from.starts_with(earlier.as_str())) {
                        prefixes.insert(from.to_owned(), String::from(to).into());
                    }
                    continue;
                }
            };
        page.note_here(site, own, &why);
    }
    if !prefixes.is_empty() {
        table["map_location"] = Value::Object(prefixes);
    }
}

/// Whether an address of `proxy_pass` has a name instead of an IP address.
fn has_name(address: &str) -> bool {
    let host = address.split(':').next().unwrap_or_default();
    !address.starts_with(['[', '/']) && host != "unix" && host.contains(|c: char| c.is_ascii_alphabetic())
}

/// TLS to a backend, whose certificate has the name of this upstream if there is one.
fn backend_tls(
    page: &mut Page,
    site: &mut SitePage,
    scope: &Scope<'_>,
    table: &mut Value,
    directive: &Directive,
    upstream: Option<&str>,
) {
    let is_on = |name: &str| scope.get(name).is_some_and(|directive| directive.arg(0) == "on");
    let verifies = is_on("proxy_ssl_verify");
    if verifies {
        if let Some(ca) = scope.get("proxy_ssl_trusted_certificate") {
            table["tls_ca"] = ca.arg(0).into();
        }
    } else {
        table["tls_verify"] = false.into();
        let why = "nginx does not verify the certificate of this server unless `proxy_ssl_verify` is on, so `tls_verify = false`; amped would \
                   verify it: remove that key, or name the CA in `tls_ca` instead";
        page.warn_here(site, directive, why);
    }
    for (name, key) in [("proxy_ssl_certificate", "tls_certificate"), ("proxy_ssl_certificate_key", "tls_key")] {
        match scope.get(name) {
            Some(from) if from.arg(0).contains(['$', ':']) => {
                page.note_here(site, from, "`tls_key` and `tls_certificate` name files")
            }
            Some(from) if !from.arg(0).is_empty() => table[key] = from.arg(0).into(),
            _ => {}
        }
    }
    if verifies || is_on("proxy_ssl_server_name") {
        match scope.get("proxy_ssl_name") {
            Some(from) if from.arg(0) != "$proxy_host" => match from.arg(0).contains('$') {
                true => page.note_here(site, from, "`tls_name` has no variables"),
                false => table["tls_name"] = from.arg(0).into(),
            },
            _ => upstream.into_iter().for_each(|name| table["tls_name"] = name.into()),
        }
    }
    for by_value in known::BACKEND_TLS {
        if let Some(from) = scope.get(by_value.0)
            && let Some(why) = by_value.left(from)
        {
            page.note_here(site, from, why);
        }
    }
}

/// The address of a backend as the server reads it.
fn url(address: &str, default_port: u16, has_tls: bool) -> String {
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let scheme = if has_tls { "https://" } else { "" };
    match has_port || address.starts_with("unix:") {
        true => format!("{scheme}{address}"),
        false => format!("{scheme}{address}:{default_port}"),
    }
}

/// The servers of an `upstream` that are in service.
fn servers(upstream: &Directive) -> impl Iterator<Item = &Directive> {
    let is_down = |line: &Directive| line.args.iter().any(|word| word == "down");
    upstream.inner().iter().filter(move |line| line.name == "server" && !is_down(line))
}

/// How requests are shared among the servers of an `upstream`.
fn balance(page: &mut Page, site: &mut SitePage, table: &mut Value, upstream: &Directive, has_tls: bool) {
    for line in upstream.inner() {
        match line.name.as_str() {
            "least_conn" => table["balance"] = "least-connections".into(),
            "ip_hash" => table["balance"] = "hash".into(),
            "hash" => match line.arg(0).strip_prefix("$http_") {
                Some(field) => {
                    table["balance"] = "hash".into();
                    table["hash_field"] = field_name(field).into();
                }
                None if ["$remote_addr", "$binary_remote_addr"].contains(&line.arg(0)) => {
                    table["balance"] = "hash".into()
                }
                None => page.note_here(site, line, "`balance = \"hash\"` uses the client's address or a field"),
            },
            "keepalive" => table["min_spare"] = line.arg(0).parse::<u64>().unwrap_or(32).into(),
            "server" | "zone" | "keepalive_timeout" | "keepalive_requests" | "keepalive_time" => {}
            _ => page.note_here(site, line, "no equivalent; see `balance` in `[[site.app]]`"),
        }
    }
    let mut share = |line: &Directive| (url(line.arg(0), 80, has_tls), server_options(page, site, table, line));
    let servers: Vec<(String, Share)> = servers(upstream).map(&mut share).collect();
    // The others are `down`.
    let are_all = servers.iter().all(|(_, share)| share.is_backup);
    let texts = servers
        .into_iter()
        .map(|(url, share)| format!("{url}{}", Share { is_backup: share.is_backup && !are_all, ..share }));
    table["http"] = texts.collect();
}

/// After which failures another server gets a request.
fn retries(page: &mut Page, site: &mut SitePage, table: &mut Value, from: &Directive) {
    let status = |word: &str| word.strip_prefix("http_")?.parse::<u16>().ok();
    let statuses: Vec<u16> = from.args.iter().filter_map(|word| status(word)).collect();
    let others: BTreeSet<&str> = from.args.iter().map(String::as_str).filter(|word| status(word).is_none()).collect();
    if others.contains("invalid_header") {
        let why = "a response that is not HTTP is an error; another server does not get the request";
        page.note_here(site, from, why);
    }
    if others.into_iter().filter(|word| *word != "invalid_header").ne(["error", "timeout"]) {
        let why =
            "another server gets a request if none of it was sent, or if it may be repeated and the connection fails";
        page.note_here(site, from, why);
    }
    if !statuses.is_empty() {
        table["retry_statuses"] = json!(statuses);
    }
}

/// The options of a server. Returns its share of the requests.
fn server_options(page: &mut Page, site: &mut SitePage, table: &mut Value, line: &Directive) -> Share {
    let mut share = Share::default();
    for word in line.args.iter().skip(1) {
        match word.split_once('=') {
            // 0: it is never taken out.
            Some(("max_fails", "0")) => table["max_failures"] = 1000.into(),
            Some(("max_fails", number)) => table["max_failures"] = number.parse::<u64>().unwrap_or(3).into(),
            Some(("fail_timeout", value)) => {
                if let Some(time) = time(value) {
                    table["failure_timeout"] = time.into();
                }
            }
            _ => match Share::split(&format!("_ {word}")) {
                ("_", Share { weight, is_backup }) => {
                    share = Share { weight: weight.max(share.weight), is_backup: is_backup || share.is_backup };
                }
                _ if word.starts_with("weight=") => page.note_here(site, line, "weights are 1 to 1000"),
                _ if word.starts_with("max_conns=") => {
                    page.note_here(site, line, "use `max_processes` in `[[site.app]]`, for all servers together")
                }
                _ => page.note_here(site, line, &format!("servers have no `{word}`")),
            },
        }
    }
    share
}

/// Keys that all applications have, by the beginning of the names of their directives.
pub(super) fn common(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>, table: &mut Value, kind: &str) {
    let directive = |name: &str| scope.get(&format!("{kind}_{name}"));
    if let Some(from) = directive("read_timeout") {
        match time(from.arg(0)) {
            Some(time) => {
                table["timeout"] = time.clone().into();
                // It applies to WebSocket connections too.
                if kind == "proxy" && seconds(from.arg(0)).is_some_and(|seconds| seconds > 3600) {
                    table["tunnel_timeout"] = time.into();
                }
            }
            None => page.note_here(site, from, "use `timeout` in `[[site.app]]`"),
        }
    }
    if let Some(from) = directive("send_timeout")
        && time(from.arg(0)).as_deref() != Some(table["timeout"].as_str().unwrap_or("60s"))
    {
        page.note_here(site, from, "`timeout` in `[[site.app]]` is for both directions");
    }
    for (name, key) in [("buffering", "buffer_response"), ("request_buffering", "buffer_request")] {
        if directive(name).is_some_and(|from| from.arg(0) == "off") {
            table[key] = false.into();
        }
    }
    if let Some(from) = scope.get("client_max_body_size") {
        // 0 is no limit.
        table["max_body_bytes"] = if from.arg(0) == "0" { "1024TiB".into() } else { size(from.arg(0)).into() };
    }
}
