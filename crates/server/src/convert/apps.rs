//! Applications: `proxy_pass`, `fastcgi_pass`, `try_files` and limits of requests.

use serde_json::{Value, json};

use super::files::{self, seconds, time};
use super::known;
use super::page::{Page, SitePage};
use super::paths::{self, Paths};
use super::rewrite::field_name;
use super::scope::{Http, Location, Scope};
use super::tree::Directive;

/// The application of a location; returns whether it has one. `before`: the locations that precede it.
pub(super) fn app(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    location: &Location<'_>,
    before: &[Location<'_>],
) -> bool {
    let mut pass = location.scope.own("fastcgi_pass");
    if let Some(directive) = pass.next() {
        fastcgi(page, site, http, location, directive);
        return true;
    }
    let mut pass = location.scope.own("proxy_pass");
    let Some(directive) = pass.next() else {
        // They are left.
        let others = ["uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass"];
        return others.iter().any(|name| location.scope.own(name).next().is_some());
    };
    let Some(pattern) = pattern_beside(page, site, location, before) else { return true };
    proxy(page, site, http, &location.scope, directive, (pattern, &location.paths));
    true
}

/// Locations that serve files, and precede an application that has all other paths.
fn pattern_beside(
    page: &mut Page,
    site: &mut SitePage,
    location: &Location<'_>,
    before: &[Location<'_>],
) -> Option<String> {
    let mut excluded = Vec::new();
    for other in before.iter().filter(|other| {
        !other.has_app()
            && !other.is_answered()
            && other.scope.own("stub_status").next().is_none()
            && other.paths.may_overlap(&location.paths)
    }) {
        match other.paths.first_segment().filter(|_| location.paths.is_all()) {
            Some(segment) => excluded.push(segment),
            None => {
                let why = "the application of a location around it gets these requests too; only a directory or file of \
                           the first level can be served beside an application";
                page.note_here(site, other.directive, why);
            }
        }
    }
    Some(if excluded.is_empty() { location.paths.pattern() } else { paths::all_but(&excluded) })
}

/// Keys that all applications have, by the beginning of the names of their directives.
fn common(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>, table: &mut Value, kind: &str) {
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

/// A size of nginx, such as `10m`, as one of amped.
pub(super) fn size(text: &str) -> String {
    let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let unit = match unit {
        "k" | "K" => "KiB",
        "m" | "M" => "MiB",
        "g" | "G" => "GiB",
        other => other,
    };
    format!("{number}{}", if unit.is_empty() { "B" } else { unit })
}

fn fastcgi(page: &mut Page, site: &mut SitePage, http: &Http<'_>, location: &Location<'_>, directive: &Directive) {
    let scope = &location.scope;
    let pattern = script_pattern(&location.paths);
    let address = match http.upstreams.get(directive.arg(0)) {
        Some(upstream) => {
            let servers: Vec<&Directive> = upstream.inner().iter().filter(|line| line.name == "server").collect();
            if servers.len() > 1 {
                page.note_here(site, servers[1], "a FastCGI application has one address");
            }
            servers.first().map_or("", |server| server.arg(0))
        }
        None => directive.arg(0),
    };
    let address = address.replace("localhost:", "127.0.0.1:");
    let mut table = json!({ "match": pattern, "fastcgi": address });
    if matches!(location.paths, Paths::Exact(_)) {
        table["files"] = true.into();
    }
    common(page, site, scope, &mut table, "fastcgi");
    let mut env = serde_json::Map::new();
    for param in scope.all("fastcgi_param") {
        let (name, value) = (param.arg(0), param.arg(1));
        if STANDARD.contains(&name) {
            continue;
        }
        match value.contains('$') {
            true => page.note_here(site, param, "`env` has no variables"),
            false => _ = env.insert(name.to_owned(), value.into()),
        }
    }
    if !env.is_empty() {
        table["env"] = Value::Object(env);
    }
    page.rule(site, "app", table, directive);
}

/// The variables that the server sets itself (RFC 3875, and those of nginx's `fastcgi_params`).
const STANDARD: &[&str] = &[
    "AUTH_TYPE",
    "CONTENT_LENGTH",
    "CONTENT_TYPE",
    "DOCUMENT_ROOT",
    "DOCUMENT_URI",
    "GATEWAY_INTERFACE",
    "HTTPS",
    "HTTP_PROXY",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "QUERY_STRING",
    "REDIRECT_STATUS",
    "REMOTE_ADDR",
    "REMOTE_PORT",
    "REMOTE_USER",
    "REQUEST_METHOD",
    "REQUEST_SCHEME",
    "REQUEST_URI",
    "SCRIPT_FILENAME",
    "SCRIPT_NAME",
    "SERVER_ADDR",
    "SERVER_NAME",
    "SERVER_PORT",
    "SERVER_PROTOCOL",
    "SERVER_SOFTWARE",
];

/// The pattern of scripts: without the PATH_INFO, which amped splits off itself.
fn script_pattern(paths: &Paths) -> String {
    let Paths::Regex { regex, .. } = paths else { return paths.pattern() };
    let ends = ["(?:$|/)", "(?:/|$)", "(/|$)", "($|/)", "(/.*)?$", "$"];
    let script = ends.iter().find_map(|end| regex.strip_suffix(end)).unwrap_or(regex);
    match script {
        "\\.php" | "[^/]\\.php" | ".php" | "^(.+\\.php)(.*)" | "^(.+\\.php)" | ".+\\.php" | "^/.+\\.php"
        | "^.+\\.php" => "*.php".to_owned(),
        script => Paths::Regex { regex: format!("{script}$"), is_caseless: false, is_nested: false }.pattern(),
    }
}

/// A backend, for the paths of a pattern. `paths`: those of its location.
pub(super) fn proxy(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    scope: &Scope<'_>,
    directive: &Directive,
    (pattern, paths): (String, &Paths),
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
    if !uri.is_empty() && uri != own {
        let why =
            format!("requests are forwarded with their own path, so the backend gets `{own}` where it got `{uri}`");
        page.note_here(site, directive, &why);
    }
    let mut table = json!({ "match": pattern });
    let upstream = http.upstreams.get(address);
    match upstream {
        Some(upstream) => balance(page, site, &mut table, upstream, has_tls),
        None => table["http"] = url(address, if has_tls { 443 } else { 80 }, has_tls).into(),
    }
    if has_tls {
        // nginx's default is what `proxy_pass` names.
        backend_tls(page, site, scope, &mut table, directive, upstream.map(|_| address));
    }
    common(page, site, scope, &mut table, "proxy");
    if let Some(from) = scope.get("proxy_connect_timeout")
        && let Some(time) = time(from.arg(0))
    {
        table["connect_timeout"] = time.into();
    }
    host(page, site, scope, &mut table, address);
    page.rule(site, "app", table, directive);
}

/// The Host that the backend gets: with nginx, its own unless `proxy_set_header` says otherwise.
fn host(page: &mut Page, site: &mut SitePage, scope: &Scope<'_>, table: &mut Value, address: &str) {
    let mut host = Some(address).filter(|address| !address.starts_with("unix:"));
    for field in scope.all("proxy_set_header") {
        let (name, value) = (field.arg(0).to_ascii_lowercase(), field.arg(1));
        let is_own =
            ["upgrade", "connection", "x-real-ip", "x-scheme", "x-client-ip", "proxy", "accept-encoding", "early-data"];
        match name.as_str() {
            "host" => {
                host = match value {
                    "$host" | "$http_host" | "$server_name" | "$host:$server_port" => None,
                    "$proxy_host" => host,
                    value => Some(value),
                }
            }
            name if name.starts_with("x-forwarded-") || name == "forwarded" || is_own.contains(&name) => {}
            _ => page.note_here(site, field, "fields of requests are forwarded unchanged"),
        }
    }
    if let Some(host) = host {
        table["host"] = host.into();
    }
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

/// The servers of an `upstream`.
fn balance(page: &mut Page, site: &mut SitePage, table: &mut Value, upstream: &Directive, has_tls: bool) {
    let mut servers = Vec::new();
    for line in upstream.inner() {
        match line.name.as_str() {
            "server" if line.args.iter().any(|word| word == "down") => {}
            "server" => {
                servers.push(url(line.arg(0), 80, has_tls));
                server_options(page, site, table, line);
            }
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
            "zone" | "keepalive_timeout" | "keepalive_requests" | "keepalive_time" => {}
            _ => page.note_here(site, line, "no equivalent; see `balance` in `[[site.app]]`"),
        }
    }
    table["http"] = json!(servers);
}

fn server_options(page: &mut Page, site: &mut SitePage, table: &mut Value, line: &Directive) {
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
            Some(("weight", "1")) => {}
            _ => page.note_here(site, line, &format!("all servers are equal; there is no `{word}`")),
        }
    }
}

/// `try_files` of a location without an application.
pub(super) fn try_files(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    location: &Location<'_>,
    before: &[Location<'_>],
    named: &[Location<'_>],
) {
    let Location { paths, scope, .. } = location;
    let missing = scope.own("if").find_map(|directive| Some((directive, files::missing_file(directive)?)));
    if let Some((directive, target)) = missing {
        return fallback(page, site, paths, target, directive);
    }
    // That of the server applies to all of its locations.
    let of_all = paths.is_all().then(|| scope.get("try_files")).flatten();
    let Some(directive) = scope.own("try_files").next().or(of_all) else { return };
    let Some((last, tried)) = directive.args.split_last() else { return };
    if tried.iter().any(|name| !["$uri", "$uri/", "$uri/index.html", "$uri/index.php"].contains(&name.as_str())) {
        page.note_here(site, directive, "only the path itself and index pages are tried");
    }
    if last == "=404" || last == "$uri/" || last == "$uri" {
        return;
    }
    if last.starts_with('=') {
        return page.note_here(site, directive, "a missing file gets 404");
    }
    if !last.starts_with('@') {
        return fallback(page, site, paths, last, directive);
    }
    let Some(target) = named.iter().find(|other| matches!(&other.paths, Paths::Named(name) if name == last)) else {
        return page.note_here(site, directive, "no such location");
    };
    if let Some(rewrite) = target.scope.own("rewrite").next() {
        return fallback(page, site, paths, rewrite.arg(1), directive);
    }
    if let Some(pass) = target.scope.own("proxy_pass").next() {
        let why = "the application gets all requests of this location, for files too; it can serve them, or list their \
                   directories as locations";
        page.note_here(site, directive, why);
        if let Some(pattern) = pattern_beside(page, site, location, before) {
            proxy(page, site, http, &target.scope, pass, (pattern, paths));
        }
        return;
    }
    page.note_here(site, directive, "use `[[site.fallback]]`, which names a file or script of the site");
}

/// Serves a file or script instead of missing ones.
fn fallback(page: &mut Page, site: &mut SitePage, paths: &Paths, target: &str, directive: &Directive) {
    let (file, query) = target.split_once(['?', '$']).unwrap_or((target, ""));
    let is_known = site.has_rule("fallback", "file", file);
    let passes = [
        "",
        "args",
        "query_string",
        "is_args",
        "request_uri",
        "$args",
        "$query_string",
        "is_args$args",
        "is_args$query_string",
    ];
    if !passes.contains(&query) {
        page.note_here(site, directive, "a fallback has no query of its own; the script finds the path in REQUEST_URI");
    }
    let Some(directory) = paths.directory() else {
        if !is_known && !site.has_rule("fallback", "directory", "/") {
            page.note_here(site, directive, "a fallback is for a directory");
        }
        return;
    };
    if !file.starts_with(&directory) {
        let why = "the file of a fallback must be in its directory; use `[[site.route]]` with `rewrite`";
        return page.note_here(site, directive, why);
    }
    if !site.has_rule("fallback", "directory", &directory) {
        page.rule(site, "fallback", json!({ "directory": directory, "file": file }), directive);
    }
}

/// The directives of limits.
const LIMITS: [&str; 4] = ["limit_req", "limit_conn", "limit_rate", "limit_rate_after"];

/// Whether the innermost block of a scope has limits.
fn has_own_limits(scope: &Scope<'_>) -> bool {
    LIMITS.iter().any(|name| scope.own(name).next().is_some())
}

/// Whether any limit is in force in a scope.
fn has_limits(scope: &Scope<'_>) -> bool {
    LIMITS[..2].iter().any(|name| scope.get(name).is_some())
        || scope.get("limit_rate").is_some_and(|rate| rate.arg(0) != "0")
}

/// The limits of a location. `after`: those that it precedes.
pub(super) fn limits_of_location(
    page: &mut Page,
    site: &mut SitePage,
    http: &Http<'_>,
    location: &Location<'_>,
    after: &[Location<'_>],
) {
    let Location { paths, scope, directive, .. } = location;
    let shadow = after.iter().find(|other| has_own_limits(&other.scope) && paths.may_overlap(&other.paths));
    if !has_own_limits(scope) && shadow.is_none() {
        return;
    }
    if limits(page, site, http, scope, &paths.pattern()) {
        return;
    }
    if let Some(other) = shadow {
        let why = format!("the limits of {} apply to its paths too", other.directive.place());
        page.note_here(site, directive, &why);
    } else if let Some(from) = scope.get("limit_rate").filter(|_| has_limits(&scope.outer())) {
        page.note_here(site, from, "the limits of the site apply to its paths too");
    }
}

/// The limits in force in a scope as one table for the paths of a pattern, because the first table that matches a path
/// applies. Returns whether there is one.
pub(super) fn limits(page: &mut Page, site: &mut SitePage, http: &Http<'_>, scope: &Scope<'_>, pattern: &str) -> bool {
    let mut table = json!({ "match": pattern });
    let mut first = None;
    let is_dry = |name: &str| scope.get(name).is_some_and(|directive| directive.arg(0) == "on");
    for directive in scope.all("limit_req").filter(|_| !is_dry("limit_req_dry_run")) {
        if !table["requests"].is_null() {
            page.note_here(site, directive, "a path has one limit of requests");
        } else if requests(page, site, http, &mut table, directive) {
            first.get_or_insert(directive);
        }
    }
    for directive in scope.all("limit_conn").filter(|_| !is_dry("limit_conn_dry_run")) {
        let zone = http.connection_zones.get(directive.arg(0)).filter(|zone| is_by_address(zone));
        match (zone, directive.arg(1).parse::<u64>()) {
            (Some(_), Ok(number)) if table["concurrent"].is_null() => {
                counted(page, site, directive, directive.arg(0));
                table["concurrent"] = number.into();
                first.get_or_insert(directive);
            }
            (Some(_), Ok(_)) => page.note_here(site, directive, "a path has one limit of concurrent requests"),
            _ => page.note_here(site, directive, "concurrent requests are counted by client address"),
        }
    }
    if let Some(directive) = scope.get("limit_rate").filter(|directive| directive.arg(0) != "0") {
        if directive.arg(0).contains('$') {
            page.note_here(site, directive, "`rate` has no variables");
        } else {
            table["rate"] = format!("{}/s", size(directive.arg(0))).into();
            first.get_or_insert(directive);
            if let Some(after) = scope.get("limit_rate_after").filter(|after| after.arg(0) != "0") {
                table["rate_after"] = size(after.arg(0)).into();
            }
        }
    }
    first.is_some_and(|from| page.rule(site, "limit", table, from))
}

/// Notes that a zone counts what another table counts already.
fn counted(page: &mut Page, site: &mut SitePage, directive: &Directive, zone: &str) {
    match page.counted.get(zone).cloned() {
        None => _ = page.counted.insert(zone.to_owned(), directive.place()),
        Some(place) => {
            let why = format!("the requests of each `[[site.limit]]` are counted apart, those of {place} too");
            page.note_here(site, directive, &why);
        }
    }
}

fn is_by_address(zone: &Directive) -> bool {
    ["$binary_remote_addr", "$remote_addr"].contains(&zone.arg(0))
}

/// Sets the keys of a `limit_req`; returns whether it did.
fn requests(page: &mut Page, site: &mut SitePage, http: &Http<'_>, table: &mut Value, directive: &Directive) -> bool {
    let option = |name: &str| directive.args.iter().find_map(|word| word.strip_prefix(name));
    let name = option("zone=").unwrap_or_default();
    let Some(zone) = http.zones.get(name).filter(|zone| is_by_address(zone)) else {
        page.note_here(site, directive, "requests are counted by client address");
        return false;
    };
    let rate = zone.args.iter().find_map(|word| word.strip_prefix("rate=")).unwrap_or_default();
    let rate = rate.strip_suffix("r/s").map(|n| (n, "s")).or(rate.strip_suffix("r/m").map(|n| (n, "m")));
    let Some((number, unit)) = rate.and_then(|(number, unit)| Some((number.parse::<u64>().ok()?.max(1), unit))) else {
        page.note_here(site, zone, "a rate is a number of requests by second or minute");
        return false;
    };
    counted(page, site, directive, name);
    table["requests"] = format!("{number}/{unit}").into();
    let number_of = |name: &str| option(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let burst = number_of("burst=");
    let has_no_delay = directive.args.iter().any(|word| word == "nodelay");
    let undelayed = if has_no_delay { burst } else { number_of("delay=").min(burst) };
    if undelayed > 0 {
        table["burst"] = (undelayed + 1).into();
    }
    if burst > undelayed {
        let period_ms = if unit == "s" { 1000 } else { 60_000 };
        table["max_delay"] = format!("{}ms", (burst - undelayed).saturating_mul(period_ms) / number).into();
    }
    true
}
