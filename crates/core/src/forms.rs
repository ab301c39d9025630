//! Forms of text in the rules of a site: header names and values, and paths.
//!
//! Each rule names the form of its text, which is checked when the configuration is read, so that no header value has a
//! line end.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use amped_http::h1::references::LocationPrefix;
use amped_http::h1::request_fields::RequestField;
use amped_http::uri::clean_path;
use amped_units::{Form, forms};

/// Headers that follow from the file, the request or the connection. `Server` is not among them: no client acts on it.
const OWNED: &[&str] = &[
    "Accept-Ranges",
    "Allow",
    "Cache-Control",
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Content-Range",
    "Content-Type",
    "Date",
    "ETag",
    "Keep-Alive",
    "Last-Modified",
    "Location",
    "Retry-After",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "Vary",
    "WWW-Authenticate",
];

/// RFC 9110, 5.6.2.
pub fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// RFC 9110, 5.5: visible characters, space, tab, and bytes above ASCII, which recipients treat as opaque data.
pub fn is_value(text: &str) -> bool {
    text.bytes().all(|b| b == b'\t' || (b >= b' ' && b != 0x7f))
}

/// Checks the name of a field, which must not be one that the server sets unless it is `allowed`.
fn field_name(name: &str, allowed: &[&str]) -> Result<Box<str>, String> {
    let is_among = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known));
    let remedy = match () {
        () if !is_token(name) => {
            return Err(format!(
                "`{}` is not a header name\na name consists of letters, digits and - _ . ! # $ % & ' * + ^ ` | ~",
                name.escape_debug()
            ));
        }
        () if is_among(allowed) || !is_among(OWNED) => return Ok(name.into()),
        () if is_among(&["Cache-Control"]) => {
            "use `cache_control = \"...\"` in this table, which does not apply to errors"
        }
        () if is_among(&["Content-Type"]) => "use `[site.types]`, `default_type` and `charset`",
        () => "remove it: the server derives it from the file and the request",
    };
    Err(format!("the header `{name}` is set by the server\n{remedy}"))
}

/// Name of a field that a rule may set.
#[derive(Clone, Copy, Debug)]
pub struct FieldName;

impl Form for FieldName {
    const ANY_CASE: bool = true;

    fn parse(text: &str) -> Result<Box<str>, String> {
        field_name(text, &[])
    }
}

/// Name of a field that a rule may append.
#[derive(Clone, Copy, Debug)]
pub struct AppendedFieldName;

impl Form for AppendedFieldName {
    const ANY_CASE: bool = true;

    fn parse(text: &str) -> Result<Box<str>, String> {
        match text.eq_ignore_ascii_case("Server") {
            true => Err("`Server` cannot be appended: a response has one\nwrite it in `set`, which replaces it".into()),
            false => field_name(text, &[]),
        }
    }
}

/// Name of a field that a rule may remove.
#[derive(Clone, Copy, Debug)]
pub struct RemovedFieldName;

impl Form for RemovedFieldName {
    const ANY_CASE: bool = true;

    fn parse(text: &str) -> Result<Box<str>, String> {
        match text.eq_ignore_ascii_case("Server") {
            true => Err("`Server` cannot be removed\nwrite another value in `set`, such as `\"\"`".into()),
            false => field_name(text, &[]),
        }
    }
}

/// Name of a field of a fixed response, which may also be Cache-Control, Content-Type or Location.
#[derive(Clone, Copy, Debug)]
pub struct ResponseFieldName;

impl Form for ResponseFieldName {
    const ANY_CASE: bool = true;

    fn parse(text: &str) -> Result<Box<str>, String> {
        field_name(text, &["Cache-Control", "Content-Type", "Location"])
    }
}

/// Name of a field that an authorization adds to a request.
#[derive(Clone, Copy, Debug)]
pub struct AuthorizedFieldName;

impl Form for AuthorizedFieldName {
    const ANY_CASE: bool = true;

    fn parse(text: &str) -> Result<Box<str>, String> {
        let is_plain = is_token(text) && !text.contains('_');
        let begins = text.get(..12).is_some_and(|start| start.eq_ignore_ascii_case("X-Forwarded-"));
        let is_own = begins || OF_REQUESTS.iter().any(|known| text.eq_ignore_ascii_case(known));
        match (is_plain, is_own) {
            (false, _) => {
                let remedy = "write a name without underscores, such as `Remote-User`";
                Err(format!("`{}` is not the name of a request header\n{remedy}", text.escape_debug()))
            }
            (true, true) => Err(format!(
                "the header `{text}` of a request is set by the server\nuse a name such as `Remote-User` or `X-Auth-User`"
            )),
            (true, false) => Ok(text.into()),
        }
    }
}

/// Name of a field that a rule sets in forwarded requests.
#[derive(Clone, Copy, Debug)]
pub struct ForwardedFieldName;

impl Form for ForwardedFieldName {
    const ANY_CASE: bool = true;

    fn parse(text: &str) -> Result<Box<str>, String> {
        let is_own = OF_GATEWAY.iter().any(|known| text.eq_ignore_ascii_case(known));
        match () {
            () if !is_token(text) => field_name(text, &[]),
            () if text.eq_ignore_ascii_case("Host") => {
                Err("cannot set `Host` in `request_fields`\nuse `host = \"...\"`".into())
            }
            () if is_own => Err(format!(
                "the header `{text}` of forwarded requests is set by the server\nremove it; a proxy before this server is named in \
                 `trusted_proxies`"
            )),
            () => Ok(text.into()),
        }
    }
}

/// Fields of a forwarded request that the gateway itself sets, or that belong to a connection.
const OF_GATEWAY: &[&str] = &[
    "Connection",
    "Content-Length",
    "Expect",
    "Forwarded",
    "HTTP2-Settings",
    "Keep-Alive",
    "Proxy",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
];

/// Value of such a field, with variables.
#[derive(Clone, Copy, Debug)]
pub struct ForwardedFieldValue;

impl Form for ForwardedFieldValue {
    fn parse(text: &str) -> Result<Box<str>, String> {
        let value = FieldValue::parse(text)?;
        RequestField::new("", &value).map(|_| value)
    }
}

/// Replacement of a prefix of Location, with variables.
#[derive(Clone, Copy, Debug)]
pub struct LocationReplacement;

impl Form for LocationReplacement {
    fn parse(text: &str) -> Result<Box<str>, String> {
        LocationPrefix::new("", text).map(|_| text.into())
    }
}

/// Fields of a request that the server sets or acts upon; and all of `X-Forwarded-`.
const OF_REQUESTS: &[&str] = &[
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Content-Type",
    "Expect",
    "Forwarded",
    "Host",
    "HTTP2-Settings",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "If-Range",
    "If-Unmodified-Since",
    "Keep-Alive",
    "Origin",
    "Proxy",
    "Proxy-Authorization",
    "Proxy-Connection",
    "Range",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "X-Real-IP",
];

/// Name of a field of a denied authorization that the client gets, which may also be Location, Retry-After or WWW-Authenticate.
#[derive(Clone, Copy, Debug)]
pub struct DeniedFieldName;

impl Form for DeniedFieldName {
    const ANY_CASE: bool = true;

    fn parse(text: &str) -> Result<Box<str>, String> {
        field_name(text, &["Location", "Retry-After", "WWW-Authenticate"])
    }
}

/// Returns whether this is a decoded path of a directory or file. An escape would be compared literally, and so would
/// leave a protected directory open.
fn is_path(path: &str, is_directory: bool) -> bool {
    let is_clean = clean_path(path.as_bytes(), &mut Vec::new()) == Ok(path.as_bytes());
    path.starts_with('/') && path.ends_with('/') == is_directory && is_clean
}

/// Returns the value of a header without the spaces around it, which are not part of it.
fn trimmed(value: &str) -> &str {
    value.trim_matches([' ', '\t'])
}

const ONE_LINE: &str = "a value is one line of text, without control characters except the tab";

forms! {
    /// Target of a request.
    HealthPath: |text| text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') => text,
        "is not the path of a request",
        "write a path such as `/health`, percent-encoded";

    /// Path at a backend.
    BackendPath: |text| text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte)) => text,
        "is not a path",
        "write a path such as `/`, percent-encoded, without a query";

    /// Prefix of a Location of a backend.
    BackendLocationPrefix: |text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) => text,
        "is not a prefix of a Location",
        "write a prefix of the URLs that the server sends, such as `http://localhost:3000/`";

    /// Value of a field.
    FieldValue: |text| is_value(trimmed(text)) => trimmed(text), "contains a control character", ONE_LINE;

    /// Value of Link (RFC 8288, 3).
    LinkValue: |text| trimmed(text).starts_with('<') && text.contains('>') && is_value(trimmed(text)) => trimmed(text),
        "is not a value of Link",
        "write a target and its relation, such as `</style.css>; rel=preload; as=style`";

    /// Value of Cache-Control.
    CacheControl: |text| !text.trim().is_empty() && is_value(trimmed(text)) => trimmed(text),
        "is not a valid Cache-Control value",
        "write directives such as \"no-cache\", or remove the key to send no Cache-Control";

    /// Name of a method or header.
    Token: |text| is_token(text) => text, "is not a method or header name", "write it as it appears in a request";

    /// Origin as browsers write it, or `*`.
    Origin: |text| text == "*" || is_origin(text) => text,
        "is not an origin",
        "write scheme and host in lower case, without a path: `https://example.org`; or `*` for all origins";

    /// Suffix of a file name that is also a value in a header: a language or charset.
    Suffix: |text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_+".contains(&b)) => text,
        "is not a language or charset",
        "write it as it appears in file names, such as `pt-BR` or `utf-8`";

    /// Path of a directory of the site.
    FolderPath: |text| is_path(text, true) => text,
        "is not the path of a directory",
        "write the path from the site's root, with a slash at both ends and without escapes, such as \"/private/\"";

    /// Path of a file of the site.
    FilePath: |text| is_path(text, false) => text,
        "is not the path of a file",
        "write the path from the site's root, without escapes, such as \"/app/index.html\"";
}

fn is_origin(text: &str) -> bool {
    let host = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let is_good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-:[]".contains(&b);
    host.is_some_and(|host| !host.is_empty() && host.bytes().all(is_good))
}
