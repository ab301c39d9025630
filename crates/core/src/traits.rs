//! The traits of a file derived from its name: media type, language, charset.
//!
//! They follow from the name's extensions, in any order, as configured for the site. `resource` derives them for a file
//! that is requested by its own name, `variants` for each variant of a requested name that does not exist.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use crate::site::{NegotiationRule, Site, Types};

/// The traits of a file derived from its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Content-Type.
    pub media_type: String,
    /// Content-Language.
    pub language: Option<Box<str>>,
    /// The charset, if the name has an extension for one.
    pub charset: Option<Box<str>>,
}

impl Traits {
    /// Derives the traits of a file name, given without the extension of its coding. An
    /// extension that is in `requested` may have no meaning; any other such extension, two
    /// extensions of one kind, or a missing media type mean that the file is not a variant.
    pub(crate) fn of(rule: &NegotiationRule, types: &Types, requested: &[&[u8]], endings: &[&[u8]]) -> Option<Traits> {
        let (mut media_type, mut language, mut charset) = (None, None, None);
        for ending in endings {
            let text = core::str::from_utf8(ending).ok();
            let among = |names: &[Box<str>]| {
                names.iter().find(|name| text.is_some_and(|text| text.eq_ignore_ascii_case(name))).cloned()
            };
            // Languages first: `es` is also an extension of scripts.
            let doubled = if let Some(found) = among(&rule.languages) {
                language.replace(found).is_some()
            } else if let Some(found) = among(&rule.charsets) {
                charset.replace(found).is_some()
            } else if let Some(found) = text.and_then(|text| types.by_ending(&text.to_ascii_lowercase())) {
                media_type.replace(found).is_some()
            } else if requested.contains(ending) {
                false
            } else {
                return None;
            };
            if doubled {
                return None;
            }
        }
        let media_type = types.with_charset(media_type?, charset.as_deref());
        Some(Traits { media_type, language, charset })
    }

    /// Derives the traits of a file that is requested by its own name, if the name is that of a variant.
    pub fn of_file(site: &Site, path: &[u8]) -> Option<Traits> {
        let rule = site.negotiation(path)?;
        let (_, endings) = split(last_segment(path));
        Traits::of(rule, &site.types, &endings, &endings)
    }
}

/// Media types of text, in addition to `text/*`, `*+json` and `*+xml`; WebAssembly shrinks as much.
const TEXTS: [&str; 4] = ["application/json", "application/javascript", "application/xml", "application/wasm"];

/// Whether files of this media type usually become much smaller by compression. Its parameters are ignored.
pub(crate) fn is_compressible(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    essence.starts_with("text/")
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
        || TEXTS.contains(&&*essence)
}

/// Splits a name into its stem, before the first dot, and the part after each dot. A leading dot belongs to the stem.
pub(crate) fn split(name: &[u8]) -> (&[u8], Vec<&[u8]>) {
    match name.iter().skip(1).position(|&byte| byte == b'.') {
        Some(dot) => (&name[..=dot], name[dot + 2..].split(|&byte| byte == b'.').collect()),
        None => (name, Vec::new()),
    }
}

/// The last segment of a path.
pub(crate) fn last_segment(path: &[u8]) -> &[u8] {
    &path[path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_compressible() {
        let text = ["text/html; charset=utf-8", "TEXT/css", "application/json", "application/ld+json", "image/svg+xml"];
        for media_type in text.into_iter().chain(["Application/WASM ;a=b", "application/javascript"]) {
            assert!(is_compressible(media_type), "{media_type}");
        }
        for media_type in ["", "text", "image/png", "application/gzip", "font/woff2", "application/octet-stream"] {
            assert!(!is_compressible(media_type), "{media_type}");
        }
    }
}
