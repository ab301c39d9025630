//! Links that clients get before a response is known: `[[site.early_hints]]` (status 103, RFC 8297).
//!
//! `exchange` sends them once a request has to wait, for an application or for a cold file; a response that is ready at
//! once has none, and costs nothing more.
//!
//! Only where a browser uses them: in HTTP/2, and in a response that becomes a page (`Sec-Fetch-Mode: navigate`). Browsers
//! ignore them otherwise, and some programs that speak HTTP/1.1 take an interim response for the final one (RFC 8297, 3).

use alloc::boxed::Box;
use alloc::vec::Vec;

use amped_http::h1::request::{self, Request, Version};
use amped_http::interim::Interim;
use amped_http::method::Method;
use amped_http::status::Status;
use amped_units::Form as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::forms::LinkValue;
use crate::glob::Glob;

/// Links for browsers before the response is known (103 Early Hints)
///
/// Sent while a page waits for an application or the disk, over HTTP/2 only. All tables whose `match` matches apply, in order.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct EarlyHints {
    /// Requested paths that the table applies to
    #[serde(rename = "match")]
    #[schemars(example = "/shop/**")]
    pub pattern: Glob,
    /// Requests that the table applies to; see "Conditions" above
    #[serde(default)]
    #[schemars(extend("examples" = [{ "hosts": ["example.org"] }]))]
    pub when: Option<Box<Condition>>,
    /// Values of Link
    ///
    /// Browsers use `rel=preload` and `rel=preconnect`. `[[site.headers]]` can append the same to the response.
    #[serde(deserialize_with = "LinkValue::list")]
    #[schemars(extend("examples" = [["</style.css>; rel=preload; as=style"]]))]
    pub links: Vec<Box<str>>,
}

impl EarlyHints {
    fn matches(&self, path: &[u8], request: &Request<'_>) -> bool {
        self.pattern.matches(path) && self.when.as_ref().is_none_or(|when| when.holds(request))
    }
}

/// The response by which a client gets the links of these rules for this path, if it uses them.
pub(crate) fn hints(rules: &[EarlyHints], path: &[u8], request: &Request<'_>) -> Option<Interim> {
    if rules.is_empty() || request.version != Version::Http2 || request.method != Some(Method::Get) {
        return None;
    }
    let mut fields = request::fields(request.head).filter(|(name, _)| name.eq_ignore_ascii_case(b"sec-fetch-mode"));
    if fields.next().is_none_or(|(_, mode)| mode != b"navigate") {
        return None;
    }
    let matching = rules.iter().filter(|rule| rule.matches(path, request));
    let mut links = matching.flat_map(|rule| &rule.links).map(|link| (&b"Link"[..], link.as_bytes())).peekable();
    links.peek()?;
    Some(Interim::new(Status::EARLY_HINTS, links))
}
