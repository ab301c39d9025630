//! A file as responses show it: its representations, and all that their heads say of it.
//!
//! Made when the disk side has found a file, kept as a meaning of its name (`cache/path`), and read by `reply`. It holds
//! neither descriptor nor content, only where those were last found.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_http::negotiate::Coding;

use crate::cache::policy::Hint;
use crate::file::{FileVersion, NotUnpacked, digest};
use crate::site::{EtagForm, Site};
use crate::traits::Traits;
use crate::vary::Vary;

/// A file and its precompressed siblings.
#[derive(Debug)]
pub struct Resource {
    /// The site it belongs to.
    pub site: u16,
    /// The clean path of the file itself: for a directory, that of its index file.
    pub name: Arc<[u8]>,
    /// Content-Type.
    pub media_type: String,
    /// Content-Language.
    pub language: Option<Box<str>>,
    /// On what it depends that this, in this coding, is what is sent (RFC 9110, 12.5.5).
    pub vary: Vary,
    /// Whether it was chosen among variants, so that the reply says which it is (RFC 9110, 8.7).
    pub is_chosen: bool,
    /// The file itself first (identity), then its siblings; of a variant there may be siblings alone. Of a lone sibling: that
    /// first, then, once somebody wanted it, what it unpacks to. Never empty.
    pub representations: Vec<Representation>,
    /// There is no file of this name, but its sibling.
    pub lone: Option<PrecompressedOnly>,
}

/// A sibling without its original.
#[derive(Clone, Debug)]
pub struct PrecompressedOnly {
    /// Its clean path.
    pub name: Arc<[u8]>,
    /// Why it cannot be unpacked, if that was tried in vain.
    pub not_unpacked: Option<NotUnpacked>,
}

impl Resource {
    /// A file of this name in these codings and states, with all that heads say of it.
    pub fn new(site: &Site, name: Arc<[u8]>, states: impl Iterator<Item = (Coding, FileVersion)>) -> Resource {
        let traits = Traits::of_file(site, &name);
        let media_type = || site.types.of(&name);
        let (media_type, language) = traits.map_or_else(|| (media_type(), None), |it| (it.media_type, it.language));
        Resource::describe(site, name, states, (media_type, language), false)
    }

    /// A file that is there compressed alone, and perhaps unpacked.
    pub fn of_lone(
        site: &Site,
        name: Arc<[u8]>,
        states: impl Iterator<Item = (Coding, FileVersion)>,
        not_unpacked: Option<NotUnpacked>,
    ) -> Resource {
        let resource = Resource::new(site, name, states);
        let suffix = resource.representations[0].coding.suffix();
        let name = [&resource.name, suffix.as_bytes()].concat().into();
        Resource { vary: Vary::ENCODING, lone: Some(PrecompressedOnly { name, not_unpacked }), ..resource }
    }

    /// One of several variants, each of which has a name of its own.
    pub fn of_variant(
        site: &Site,
        name: Arc<[u8]>,
        states: impl Iterator<Item = (Coding, FileVersion)>,
        traits: &Traits,
    ) -> Resource {
        Resource::describe(site, name, states, (traits.media_type.clone(), traits.language.clone()), true)
    }

    fn describe(
        site: &Site,
        name: Arc<[u8]>,
        states: impl Iterator<Item = (Coding, FileVersion)>,
        (media_type, language): (String, Option<Box<str>>),
        is_chosen: bool,
    ) -> Resource {
        let representations = states.map(|(coding, version)| {
            let mut etag = version.etag(site.etag, coding.suffix());
            if is_chosen && site.etag == EtagForm::Portable {
                // Variants of one size may be of one date as well, and are different representations all the same.
                etag = alloc::format!("{}-{:x}\"", etag.trim_end_matches('"'), digest_of(&name)).into();
            }
            let (content_hint, head_hints) = (Hint::default(), Default::default());
            Representation { coding, version, etag, content_hint, head_hints }
        });
        let representations: Vec<Representation> = representations.collect();
        let vary = Vary::NOTHING.and_if(Vary::ENCODING, representations.len() > 1);
        Resource { site: site.number, name, media_type, language, vary, is_chosen, representations, lone: None }
    }

    /// The same once more, made again from its name and its states.
    pub fn worked_out_anew(&self, site: &Site) -> Resource {
        let states = self.representations.iter().map(|one| (one.coding, one.version));
        if let Some(lone) = &self.lone {
            return Resource::of_lone(site, Arc::clone(&self.name), states, lone.not_unpacked);
        }
        if !self.is_chosen {
            return Resource::new(site, Arc::clone(&self.name), states);
        }
        let said = (self.media_type.clone(), self.language.clone());
        Resource { vary: self.vary, ..Resource::describe(site, Arc::clone(&self.name), states, said, true) }
    }

    /// Whether both have the same representations in the same state.
    pub fn is_same_as(&self, other: &Resource) -> bool {
        let states = |resource: &Resource| -> Vec<_> {
            resource.representations.iter().map(|one| (one.coding, one.version)).collect()
        };
        let verdict = |resource: &Resource| resource.lone.as_ref().map(|lone| lone.not_unpacked);
        self.name == other.name && states(self) == states(other) && verdict(self) == verdict(other)
    }

    /// Whether both are the same compressed file in the same state, of which this one says no less.
    pub(crate) fn says_no_less_than(&self, other: &Resource) -> bool {
        let packed = |resource: &Resource| (resource.representations[0].coding, resource.representations[0].version);
        let (Some(lone), Some(others)) = (&self.lone, &other.lone) else { return false };
        lone.name == others.name
            && packed(self) == packed(other)
            && !packed(self).1.is_changing
            && self.representations.len() >= other.representations.len()
            && lone.not_unpacked.is_some() >= others.not_unpacked.is_some()
    }
}

/// A file in one coding and one state.
#[derive(Debug)]
pub struct Representation {
    /// How it is coded.
    pub coding: Coding,
    /// Which file, in which state.
    pub version: FileVersion,
    /// Its entity tag, with quotes.
    pub etag: Box<str>,
    /// Where its content was last found.
    pub content_hint: Hint,
    /// Where its heads were last found: that of a 200, that of a 304.
    pub head_hints: [Hint; 2],
}

/// A number for a name, the same everywhere.
fn digest_of(name: &[u8]) -> u64 {
    let words: Vec<u64> = name.iter().map(|&byte| u64::from(byte)).collect();
    digest(&words)
}
