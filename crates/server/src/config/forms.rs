//! Forms of text in the configuration file, each with its message and remedy. Those of the rules of a site are in core.

use std::net::Ipv6Addr;
use std::ops::RangeInclusive;

use amped_core::forms::{is_token, is_value};
use amped_core::site::{BUILT_IN_ERRORS, NEVER_CACHED};
use amped_http::uri::host_of;
use amped_units::{Form, forms, parse_duration};
use rustls::pki_types::ServerName;

use super::settings::{Share, number, parse_listen};

/// Parses a status of an error, such as `404`, or a class of them: `4xx` or `5xx`.
pub(super) fn error_statuses(text: &str) -> Option<RangeInclusive<u16>> {
    match text {
        "4xx" => Some(400..=499),
        "5xx" => Some(500..=599),
        _ => number(text).filter(|status| (400..=599).contains(status)).map(|status| status..=status),
    }
}

/// Parses a status of a response that may be cached, such as `404`, or a class of them, such as `4xx`.
pub(super) fn cached_statuses(text: &str) -> Option<RangeInclusive<u16>> {
    let class = text.strip_suffix("xx").and_then(number).filter(|class| (2..=5).contains(class));
    let status = || number(text).filter(|status| (200..=599).contains(status) && !NEVER_CACHED.contains(status));
    class.map(|class| class * 100..=class * 100 + 99).or_else(|| status().map(|status| status..=status))
}

fn is_built_in(text: &str) -> bool {
    number(text).is_some_and(|status| BUILT_IN_ERRORS.contains(&status))
}

forms! {
    /// Name of a user or group.
    AccountName: |text| !text.is_empty() && !text.contains(|c: char| c.is_control() || c == ':' || c == '/') => text,
        "is not a valid user or group name",
        "write a name as in `/etc/passwd`, or remove the key to keep the current one";

    /// Name of an index page.
    IndexName: |text| !matches!(text, "" | "." | "..") && !text.contains(['/', '\0']) => text,
        "is not a file name",
        "write a file name such as `index.html`, which is looked up in every directory; `index = []` disables index pages";

    /// Directory below a home directory.
    HomeDirectory: |text| !text.starts_with('/') && text.trim_end_matches('/').split('/').all(is_step) => text.trim_end_matches('/'),
        "is not a directory below a home directory",
        "write one such as `public_html`, without `.` and `..`, or remove the key to disable user directories";

    /// Charset, or none.
    Charset: |text| text.is_empty() || is_token(text) => text, "is not a charset", "write `utf-8`, or \"\" for none";

    /// RFC 9110, 8.3.1: type "/" subtype, both tokens, and perhaps parameters.
    MediaType: |text| is_media_type(text.trim()) => text.trim(),
        "is not a media type",
        "write type/subtype, such as `text/html` or `text/html; charset=iso-8859-1`";

    /// Suffix of a file name, kept in lower case without its dot.
    Ending: |text| !bare(text).is_empty() && !bare(text).contains(['.', '/']) => bare(text).to_ascii_lowercase(),
        "is not a file name suffix",
        "write the part after the last dot of a file name, such as `html`";

    /// Status or class of errors for which a site may have a page.
    ErrorStatus: |text| text.len() == 3 && error_statuses(text).is_some() && !is_built_in(text) => text,
        if is_built_in(text) { "always has the built-in page" } else { "is not an error status" },
        if is_built_in(text) {
            "remove it: this error occurs before the site is known, or needs details that only the built-in page has"
        } else {
            "write a status from 400 to 599, such as \"404\", or a class, \"4xx\" or \"5xx\""
        };

    /// Status or class of responses that are cached.
    CachedStatus: |text| text.len() == 3 && cached_statuses(text).is_some() => text,
        "is not the status of a response that may be cached",
        "write a status from 200 to 599, such as \"404\", or a class, such as \"5xx\"; 206, 304, 412, 416, 428, 429, 431 and 511 depend on more of a request";

    /// Time that a response is cached.
    Lifetime: |text| parse_duration(text).is_ok() => text,
        "is not a time",
        "write a number and a unit, such as \"10s\" or \"5m\"";

    /// Path of an error page.
    PagePath: |text| text.starts_with('/') && text.split('/').all(|step| step != "..") && !text.contains(['?', '#', '\0']) => text,
        "is not the path of an error page",
        "write the path of a file below the root, such as \"/404.html\"";

    /// Realm, a quoted string in a header.
    Realm: |text| is_value(text) && !text.contains(['"', '\\']) => text,
        "cannot be a realm",
        "write a line of text without quotes, such as \"Staff\"";

    /// Path or URL of a redirect. The host of a URL is whole before the first `$`, so that no client can choose it.
    RedirectTarget: |text| is_url_or_path(text) && text.bytes().all(|b| b.is_ascii_graphic() && b != b'\\') => text,
        "is not a redirect target",
        "write a path such as \"/new/$1\", or a URL such as \"https://example.org/$1\", percent-encoded";

    /// Path of a rewrite, with a query or without.
    RewriteTarget: |text| is_rewrite(text) => text,
        "is not a rewrite target",
        "write a path of the site, such as \"/new/$1\" or \"/index.php?q=$1\"";

    /// Name of an environment variable. A client's `Proxy` header would become HTTP_PROXY, so applications never get it.
    VariableName: |text| !text.is_empty() && !text.contains(['=', '\0']) && !text.eq_ignore_ascii_case("HTTP_PROXY") => text,
        "is not allowed as a variable name",
        "write a name such as `LANG`, without `=`; HTTP_PROXY is reserved because a client could set it by a `Proxy` header";

    /// Value of an environment variable.
    VariableValue: |text| !text.contains('\0') => text, "contains a NUL", "remove it";

    /// Socket or address of a FastCGI application.
    FastCgiAddress: |text| match text.trim().strip_prefix("unix:") {
            Some(path) => !path.is_empty(),
            None => !text.starts_with('*') && parse_listen(text.trim()).is_ok(),
        } => text.trim(),
        "is neither a socket nor an address and port",
        "write `unix:/run/php/php-fpm.sock`, or an address and port such as `127.0.0.1:9000`";

    /// Socket or address of a server that speaks HTTP, kept without `http://`, and its share of the requests.
    BackendUrl: |text| is_backend(bare_url(Share::split(text).0)) => backend_url(text),
        "is neither a socket nor a host and port",
        "write a host and port without a path, such as `127.0.0.1:3000`, `localhost:3000` or `https://app.internal:8443`, or `unix:/run/app.sock`; \
         then perhaps `weight=2` (1 to 1000) or `backup`";

    /// Name in the certificate of a server.
    ServerNameText: |text| ServerName::try_from(text).is_ok() => text,
        "is not the name of a server",
        "write a host name such as `app.internal`, or an IP address";

    /// Value of Host.
    HostField: |text| host_of(text.as_bytes()).is_some_and(|host| !host.name.is_empty()) => text,
        "is not a host",
        "write a name such as `app.example.org`, with a port if it is not 80";

    /// Name of a field of requests.
    RequestFieldName: |text| is_token(text) => text, "is not the name of a header field", "write one such as `Cookie`";
}

fn bare_url(text: &str) -> &str {
    let text = text.trim();
    let url = text.strip_prefix("http://").or_else(|| text.starts_with("https://").then_some(text));
    url.map_or(text, |url| url.strip_suffix('/').unwrap_or(url))
}

fn backend_url(text: &str) -> String {
    let (url, share) = Share::split(text);
    format!("{}{share}", bare_url(url))
}

fn is_backend(text: &str) -> bool {
    if let Some(path) = text.strip_prefix("unix:") {
        // Of words that are to be options, none may become part of a name.
        let is_option = |word: &str| {
            let word = word.to_ascii_lowercase();
            word.starts_with("weight=") || word == "backup"
        };
        return !path.is_empty() && !path.split(' ').skip(1).any(is_option);
    }
    let text = text.strip_prefix("https://").unwrap_or(text);
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_name = !host.contains('*') && !host.is_empty() && host_name(&host.to_ascii_lowercase()).is_ok();
    is_name && number(port).is_some_and(|port| port > 0)
}

fn is_step(step: &str) -> bool {
    !matches!(step, "" | "." | "..") && !step.contains('\0')
}

fn bare(ending: &str) -> &str {
    ending.strip_prefix('.').unwrap_or(ending)
}

fn is_media_type(text: &str) -> bool {
    let (kind, parameters) = text.split_once(';').unwrap_or((text, ""));
    kind.trim_end().split_once('/').is_some_and(|(top, sub)| is_token(top) && is_token(sub)) && is_value(parameters)
}

fn is_site_path(text: &str) -> bool {
    text.starts_with('/') && !text.starts_with("//")
}

fn is_url_or_path(text: &str) -> bool {
    let url = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    match url.map(|rest| rest.split_once('/').map_or(rest, |(host, _)| host)) {
        Some(host) => !host.is_empty() && !host.contains(['$', '?', '#']),
        None => is_site_path(text),
    }
}

fn is_rewrite(text: &str) -> bool {
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let is_plain = text.bytes().all(|b| b >= b' ' && b != 0x7f && b != b'#');
    let is_clean = path.split('/').all(|step| step != "." && step != "..");
    is_site_path(text) && is_plain && is_clean && query.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Host name as a request has it, in lower case and without its port.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostName;

impl Form for HostName {
    fn parse(text: &str) -> Result<Box<str>, String> {
        let host = text.to_ascii_lowercase();
        match host_name(&host) {
            Ok(()) => Ok(host.into()),
            Err(remedy) => Err(format!("`{}` is not a host name\n{remedy}", text.escape_debug())),
        }
    }
}

/// Checks a host name in lower case; the error is the remedy.
fn host_name(host: &str) -> Result<(), String> {
    if host.starts_with('[') && host.ends_with(']') {
        let address = host[1..host.len() - 1].parse::<Ipv6Addr>();
        return address.map(|_| ()).map_err(|_| "write an IPv6 address in brackets: `[::1]`".to_owned());
    }
    if let Some((name, port)) = host.rsplit_once(':')
        && !name.contains(':')
        && port.bytes().all(|b| b.is_ascii_digit())
    {
        return Err(format!("remove the port: `{name}`; ports belong in `listen`"));
    }
    if !host.is_ascii() {
        return Err("write its ASCII form, which begins with `xn--`".to_owned());
    }
    let name = host.strip_prefix("*.").or_else(|| host.strip_suffix(".*")).unwrap_or(host);
    let good = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if name.len() > 253 || !name.split('.').all(good) {
        return Err("write a name such as `example.org`, `*.example.org` for all names below it, or `www.*` for all that begin so".to_owned());
    }
    Ok(())
}
