//! Which other origins' pages may read what is here (Fetch standard, 3.2: the CORS protocol).
//!
//! A browser sends `Origin` along, and hands the reply to the page only if it says so. What the reply says is the rule's, for
//! one of the origins that it lists or for all; nothing that a client sends is put into it. So a head depends on the place of
//! the origin in the list ([`CorsOrigin`]) and can be kept ready.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use amped_http::h1::request::Request;
use amped_http::h1::response::Head;
use amped_http::text::push_decimal;

use crate::glob::Glob;
use crate::vary::Vary;

/// Who may read paths that match. Of a site's rules the last that matches applies.
#[derive(Clone, Debug)]
pub struct CorsRule {
    /// Which paths.
    pub pattern: Glob,
    /// Origins as browsers write them, such as `https://example.org`; none means all (`*`).
    pub origins: Vec<Box<str>>,
    /// Methods that a page may use, for preflights.
    pub methods: Vec<Box<str>>,
    /// Fields that a page may send, for preflights.
    pub headers: Vec<Box<str>>,
    /// Fields of replies that a page may read beside those that it always may.
    pub expose: Vec<Box<str>>,
    /// Whether a page may have the browser send what it knows of the user. Only with a list of origins.
    pub credentials: bool,
    /// For how many seconds a browser may keep what a preflight said; `None` leaves that to it.
    pub max_age_s: Option<u64>,
}

/// Which of a rule's origins asks; the default: none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CorsOrigin(u16);

impl CorsRule {
    /// Which of its origins asks.
    pub fn cors_origin(&self, request: &Request<'_>) -> CorsOrigin {
        let at = |origin: &[u8]| self.origins.iter().position(|known| known.as_bytes() == origin);
        let number = request.origin.and_then(at).and_then(|at| u16::try_from(at + 1).ok());
        CorsOrigin(number.unwrap_or_default())
    }

    /// Fetch, 3.2.5, and RFC 9110, 12.5.5: where one origin is told what another is not, the reply depends on it.
    pub fn vary(&self) -> Vary {
        Vary::NOTHING.and_if(Vary::ORIGIN, !self.origins.is_empty())
    }

    /// What is said of whose page may read the reply; `None`: not this one's.
    fn allowed(&self, cors_origin: CorsOrigin) -> Option<&str> {
        match usize::from(cors_origin.0).checked_sub(1) {
            Some(at) => self.origins.get(at).map(|origin| &**origin),
            None => self.origins.is_empty().then_some("*"),
        }
    }

    /// Whether this one's page may read the reply.
    pub fn allows(&self, cors_origin: CorsOrigin) -> bool {
        self.allowed(cors_origin).is_some()
    }

    /// Fetch, 3.2.3: the fields of any reply.
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

    /// The fields of a reply to a preflight (Fetch, 3.2.2): the browser compares.
    pub fn preflight(&self, head: &mut Head) {
        head.field("Access-Control-Allow-Methods", joined(&self.methods));
        if !self.headers.is_empty() {
            head.field("Access-Control-Allow-Headers", joined(&self.headers));
        }
        if let Some(seconds) = self.max_age_s {
            let mut text = Vec::new();
            push_decimal(&mut text, seconds);
            head.field("Access-Control-Max-Age", text);
        }
    }
}

fn joined(names: &[Box<str>]) -> String {
    names.join(", ")
}
