//! Forms of text in the rules of a site: what the configuration may put into a header or compare with a path.
//!
//! They are checked when the configuration is read, and the rules name them, so that no header value has a line end.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

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

/// RFC 9110, 5.5: visible characters, space, tab, and bytes above ASCII, which recipients take as they are.
pub fn is_value(text: &str) -> bool {
    text.bytes().all(|b| b == b'\t' || (b >= b' ' && b != 0x7f))
}

/// A name of a field, which must not be one of the server's own unless it is `allowed`.
fn field_name(name: &str, allowed: &[&str]) -> Result<Box<str>, String> {
    let is_among = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known));
    let remedy = match () {
        () if !is_token(name) => {
            return Err(format!(
                "`{}` is not a header name\na name is made of letters, digits and - _ . ! # $ % & ' * + ^ ` | ~",
                name.escape_debug()
            ));
        }
        () if is_among(allowed) || !is_among(OWNED) => return Ok(name.into()),
        () if is_among(&["Cache-Control"]) => {
            "use `cache_control = \"...\"` in this table: errors must not be cached by it"
        }
        () if is_among(&["Content-Type"]) => "use `[site.types]`, `default_type` and `charset`",
        () => "remove it: it follows from the file and the request",
    };
    Err(format!("the header `{name}` is the server's own\n{remedy}"))
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

/// Name of a field of a fixed response, which may also say what the body is and where to go.
#[derive(Clone, Copy, Debug)]
pub struct ResponseFieldName;

impl Form for ResponseFieldName {
    const ANY_CASE: bool = true;

    fn parse(text: &str) -> Result<Box<str>, String> {
        field_name(text, &["Cache-Control", "Content-Type", "Location"])
    }
}

/// Whether this is the path of a folder or file as it is once it is decoded. An escape would be taken for the characters that
/// it is written in, and a protected folder would stand open.
fn is_path(path: &str, is_folder: bool) -> bool {
    let is_clean = clean_path(path.as_bytes(), &mut Vec::new()) == Ok(path.as_bytes());
    path.starts_with('/') && path.ends_with('/') == is_folder && is_clean
}

/// The value of a header without the spaces around it, which are no part of it.
fn trimmed(value: &str) -> &str {
    value.trim_matches([' ', '\t'])
}

const ONE_LINE: &str = "a value is one line of text: no line end, no NUL and no other control character but the tab";

forms! {
    /// Value of a field.
    FieldValue: |text| is_value(trimmed(text)) => trimmed(text), "has a control character", ONE_LINE;

    /// Value of Cache-Control.
    CacheControl: |text| !text.trim().is_empty() && is_value(trimmed(text)) => trimmed(text),
        "is not a value of Cache-Control",
        "write what caches may do, such as \"no-cache\", or remove the key to send no Cache-Control";

    /// Name of a method or header.
    Token: |text| is_token(text) => text, "is not a name of a method or header", "write it as in a request";

    /// Origin as browsers write it, or `*`.
    Origin: |text| text == "*" || is_origin(text) => text,
        "is not an origin",
        "write it as browsers do, in lower case, without a path: `https://example.org`; or `*` for all";

    /// Suffix of a file name that is also a value in a header: a language or charset.
    Suffix: |text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_+".contains(&b)) => text,
        "is not a language or charset",
        "write it as in the names of files, such as `pt-BR` or `utf-8`";

    /// Path of a folder of the site.
    FolderPath: |text| is_path(text, true) => text,
        "is not a folder's path",
        "write it from the site's root, with a slash at both ends, such as \"/private/\", and without escapes";

    /// Path of a file of the site.
    FilePath: |text| is_path(text, false) => text,
        "is not a file's path",
        "write it from the site's root, such as \"/app/index.html\", and without escapes";
}

fn is_origin(text: &str) -> bool {
    let host = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let is_good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-:[]".contains(&b);
    host.is_some_and(|host| !host.is_empty() && host.bytes().all(is_good))
}
