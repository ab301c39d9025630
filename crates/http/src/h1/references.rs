//! References of a backend to itself, and what clients get in their place (RFC 9110, 10.2.2).

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::request::Request;
use super::request_fields::{ClientConnection, Template};
use crate::text::variables;

/// Where a backend has what clients find below another path. Both are encoded, without a slash at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// The path of the clients.
    pub prefix: Box<str>,
    /// The path at the backend in its place.
    pub path: Box<str>,
}

impl Mount {
    /// Returns the path at the backend of this encoded path; `None` if it is not below the prefix.
    pub fn inner(&self, path: &[u8]) -> Option<Vec<u8>> {
        let path = moved(path, &self.prefix, &self.path)?;
        Some(if path.is_empty() { b"/".to_vec() } else { path })
    }
}

/// Replaces the beginning of a path or of a reference, if it is this one as a whole.
fn moved(path: &[u8], from: &str, to: &str) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(from.as_bytes())?;
    matches!(rest.first(), None | Some(b'/' | b'?' | b'#')).then(|| [to.as_bytes(), rest].concat())
}

/// A prefix of Location, and its replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocationPrefix {
    from: Box<str>,
    to: Template,
}

impl LocationPrefix {
    /// Parses the replacement, a path or the beginning of a URL.
    ///
    /// # Errors
    /// The message and, in a second line, the remedy.
    pub fn new(from: &str, to: &str) -> Result<LocationPrefix, String> {
        const REMEDY: &str = "write a path such as `/`, or the beginning of a URL such as `$scheme://$http_host/`";
        // Those in the keys of cached pages: clients of one page have the same values.
        const VARIABLES: [&str; 3] = ["scheme", "host", "http_host"];
        if let Some(name) =
            variables(to)?.into_iter().find_map(|(_, name)| name.filter(|name| !VARIABLES.contains(name)))
        {
            return Err(format!(
                "`${}` is not a variable of Location\nuse only $scheme, $host and $http_host, which are the same for all clients of a cached page",
                name.escape_debug()
            ));
        }
        let template = Template::new(to)?;
        let is_reference = to.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        let is_path = to.starts_with('/') && !to.starts_with("//");
        let is_url = ["http://", "https://", "$scheme://", "${scheme}://"].iter().any(|scheme| to.starts_with(scheme));
        match is_reference && (is_path || is_url) {
            true => Ok(LocationPrefix { from: from.into(), to: template }),
            false => Err(format!("`{}` cannot replace a prefix of Location\n{REMEDY}", to.escape_debug())),
        }
    }

    /// Returns both for a request with these fields.
    pub(super) fn fill<'a, I: Iterator<Item = (&'a [u8], &'a [u8])>>(
        &self,
        request: &Request<'_>,
        fields: impl Fn() -> I,
    ) -> (Box<str>, Vec<u8>) {
        // Its variables are all of the request.
        let to = self.to.fill(request, fields, None).text(None, &ClientConnection::default());
        (self.from.clone(), to)
    }
}

/// How references of a backend to itself become those of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct References {
    /// Prefixes of Location and their replacements, instead of the fields below. The longest prefix applies.
    prefixes: Vec<(Box<str>, Vec<u8>)>,
    pub(super) mount: Mount,
    /// The Host that the backend gets.
    host: Box<[u8]>,
    /// Whether clients know it by this name.
    is_public: bool,
}

impl References {
    pub(super) fn new(
        mount: Option<&Mount>,
        sent_host: &[u8],
        host: &[u8],
        prefixes: Vec<(Box<str>, Vec<u8>)>,
    ) -> Option<References> {
        let is_public = sent_host.eq_ignore_ascii_case(host);
        (mount.is_some() || !is_public || !prefixes.is_empty()).then(|| References {
            prefixes,
            mount: mount.cloned().unwrap_or_default(),
            host: sent_host.into(),
            is_public,
        })
    }

    /// The Location for the client (RFC 9110, 10.2.2); `None` if that of the backend is right.
    pub(super) fn location(&self, value: &[u8]) -> Option<Vec<u8>> {
        // Browsers take a backslash for a slash, and remove tabs.
        let is_odd = value.iter().any(|byte| *byte <= b' ' || *byte == b'\\');
        match self.prefixes.is_empty() {
            true => self.own(value, is_odd),
            false => self.with_prefix(value).filter(|made| !is_odd && !made.starts_with(b"//")),
        }
    }

    /// The Location with another prefix.
    fn with_prefix(&self, value: &[u8]) -> Option<Vec<u8>> {
        let found = self.prefixes.iter().filter(|(from, _)| value.starts_with(from.as_bytes()));
        let (from, to) = found.max_by_key(|(from, _)| from.len())?;
        Some([to, &value[from.len()..]].concat())
    }

    /// The Location if the backend refers to itself.
    fn own(&self, value: &[u8], is_odd: bool) -> Option<Vec<u8>> {
        let scheme = [&b"http://"[..], b"https://"]
            .into_iter()
            .find(|scheme| value.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
        let start = scheme.map_or(0, |scheme| {
            let rest = &value[scheme.len()..];
            scheme.len() + rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len())
        });
        let (origin, path) = value.split_at(start);
        let is_own = scheme.is_none_or(|scheme| origin[scheme.len()..].eq_ignore_ascii_case(&self.host));
        // `//host` is another host, and `name` is relative to what the client requested.
        let is_relative = scheme.is_none() && (!path.starts_with(b"/") || path.starts_with(b"//"));
        // A backend that knows the prefix has written it.
        let Mount { prefix, path: inner } = &self.mount;
        let has_prefix = inner.is_empty() && !prefix.is_empty() && moved(path, prefix, "").is_some();
        if !is_own || is_relative || is_odd || has_prefix && self.is_public {
            return None;
        }
        let mut path = if has_prefix { path.to_vec() } else { moved(path, inner, prefix)? };
        if !path.starts_with(b"/") {
            path.insert(0, b'/');
        }
        if path.starts_with(b"//") {
            return None;
        }
        Some(if self.is_public { [origin, &path].concat() } else { path })
    }
}
