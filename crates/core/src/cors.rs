//! Cross-origin access to the site's responses (Fetch standard, 3.2: the CORS protocol).
//!
//! A browser sends `Origin`, and passes the response to the page only if the response permits it. The permission comes
//! from the rule, for one of its listed origins or for all; nothing that a client sends is copied into it. A head
//! therefore depends only on the index of the origin in the list ([`CorsOrigin`]), and can be cached.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use amped_http::h1::request::Request;
use amped_http::h1::response::Head;
use amped_http::text::push_decimal;
use amped_units::{Form as _, Seconds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::forms::{Origin, Token};
use crate::glob::Glob;
use crate::vary::Vary;

/// Cross-origin access (CORS) by pattern
///
/// The last table whose `match` matches applies.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct CorsRule {
    /// Paths that the rule applies to
    #[serde(rename = "match")]
    #[schemars(example = "/fonts/**")]
    pub pattern: Glob,
    /// Origins whose pages may read the responses, or "*"
    ///
    /// As browsers write them: scheme, host and port in lower case, without a path. In a site, an empty list means all.
    #[serde(deserialize_with = "Origin::list")]
    #[schemars(extend("examples" = [["https://example.org"]]))]
    pub origins: Vec<Box<str>>,
    /// Methods that those pages may use
    #[serde(default = "read_only", deserialize_with = "Token::list")]
    pub methods: Vec<Box<str>>,
    /// Request header fields that those pages may send
    #[serde(default, deserialize_with = "Token::list")]
    pub headers: Vec<Box<str>>,
    /// Response header fields that those pages may read
    #[serde(default, deserialize_with = "Token::list")]
    pub expose: Vec<Box<str>>,
    /// Allow cookies and passwords; not with origin "*"
    #[serde(default)]
    pub credentials: bool,
    /// Time that browsers may cache the answer to a preflight request
    #[serde(default, with = "Seconds")]
    #[schemars(example = "10m")]
    pub max_age: Option<Duration>,
}

fn read_only() -> Vec<Box<str>> {
    ["GET", "HEAD"].map(Box::from).into()
}

/// The index of the request's origin in a rule's list; the default means that it is not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CorsOrigin(u16);

impl CorsRule {
    /// Finds the origin of a request in the list.
    pub fn cors_origin(&self, request: &Request<'_>) -> CorsOrigin {
        let at = |origin: &[u8]| self.origins.iter().position(|known| known.as_bytes() == origin);
        let number = request.origin.and_then(at).and_then(|at| u16::try_from(at + 1).ok());
        CorsOrigin(number.unwrap_or_default())
    }

    /// Fetch, 3.2.5, and RFC 9110, 12.5.5: if the response differs between origins, it depends on `Origin`.
    pub fn vary(&self) -> Vary {
        Vary::NOTHING.and_if(Vary::ORIGIN, !self.origins.is_empty())
    }

    /// The value of `Access-Control-Allow-Origin`; `None` if the origin is not allowed.
    fn allowed(&self, cors_origin: CorsOrigin) -> Option<&str> {
        match usize::from(cors_origin.0).checked_sub(1) {
            Some(at) => self.origins.get(at).map(|origin| &**origin),
            None => self.origins.is_empty().then_some("*"),
        }
    }

    /// Whether pages of this origin may read the response.
    pub fn allows(&self, cors_origin: CorsOrigin) -> bool {
        self.allowed(cors_origin).is_some()
    }

    /// Fetch, 3.2.3: adds the fields of any response.
    pub fn allow(&self, head: &mut Head, cors_origin: CorsOrigin) {
        let Some(origin) = self.allowed(cors_origin) else { return };
        head.field("Access-Control-Allow-Origin", origin);
        if self.credentials {
            head.field("Access-Control-Allow-Credentials", "true");
        }
        if !self.expose.is_empty() {
            head.field("Access-Control-Expose-Headers", joined(&self.expose));
        }
    }

    /// Adds the fields of a response to a preflight (Fetch, 3.2.2); the browser compares them with its request.
    pub fn preflight(&self, head: &mut Head) {
        head.field("Access-Control-Allow-Methods", joined(&self.methods));
        if !self.headers.is_empty() {
            head.field("Access-Control-Allow-Headers", joined(&self.headers));
        }
        if let Some(max_age) = self.max_age {
            let mut text = Vec::new();
            push_decimal(&mut text, max_age.as_secs());
            head.field("Access-Control-Max-Age", text);
        }
    }
}

fn joined(names: &[Box<str>]) -> String {
    names.join(", ")
}
