//! What a file's name says of it: media type, language, charset.
//!
//! By the endings of the name, in any order, as the site lists them. `resource` asks for a file that is requested by its own
//! name, `variants` for each of those that stand for a name that is not there.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use crate::site::{NegotiationRule, Site, Types};

/// What a file's name says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Content-Type.
    pub media_type: String,
    /// Content-Language.
    pub language: Option<Box<str>>,
    /// The charset, if the name tells one.
    pub charset: Option<Box<str>>,
}

impl Traits {
    /// Of a file of this name, without the ending of its coding. An ending that says nothing is passed over if it is
    /// `asked` for; otherwise, if there are two of a kind, or no media type, the name is not one of a variant.
    pub(crate) fn of(rule: &NegotiationRule, types: &Types, asked: &[&[u8]], endings: &[&[u8]]) -> Option<Traits> {
        let (mut media_type, mut language, mut charset) = (None, None, None);
        for ending in endings {
            let text = core::str::from_utf8(ending).ok();
            let among = |names: &[Box<str>]| {
                names.iter().find(|name| text.is_some_and(|text| text.eq_ignore_ascii_case(name))).cloned()
            };
            // Languages first: `es` is an ending of scripts too.
            let doubled = if let Some(found) = among(&rule.languages) {
                language.replace(found).is_some()
            } else if let Some(found) = among(&rule.charsets) {
                charset.replace(found).is_some()
            } else if let Some(found) = text.and_then(|text| types.by_ending(&text.to_ascii_lowercase())) {
                media_type.replace(found).is_some()
            } else if asked.contains(ending) {
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

    /// Of a file that is asked for by its own name, where that is one of a variant.
    pub fn of_file(site: &Site, path: &[u8]) -> Option<Traits> {
        let rule = site.negotiation(path)?;
        let (_, endings) = split(last_segment(path));
        Traits::of(rule, &site.types, &endings, &endings)
    }
}

/// What a name is before its first dot, and what follows each dot. A dot in front is part of the stem.
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
