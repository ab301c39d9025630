//! A file as responses present it: its representations and the contents of their heads.
//!
//! Made when the disk side has found a file, cached as the resolution of its name (`cache/path`), and read by `reply`.
//! It holds neither descriptors nor content, only hints where they were last cached.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_http::negotiate::Coding;

use crate::cache::policy::Hint;
use crate::file::{self, FileVersion, NotUnpacked, ObjectHead, digest};
use crate::site::{EtagForm, Site};
use crate::traits::{Traits, is_compressible};
use crate::vary::Vary;

/// A file and its precompressed siblings.
#[derive(Debug)]
pub struct Resource {
    /// The site it belongs to.
    pub site: u16,
    /// The clean path of the file itself; for a directory, that of its index file.
    pub name: Arc<[u8]>,
    /// Content-Type.
    pub media_type: String,
    /// Content-Language.
    pub language: Option<Box<str>>,
    /// The request fields that selected this file and coding (RFC 9110, 12.5.5).
    pub vary: Vary,
    /// Whether it was selected among variants, so that the response must identify it (RFC 9110, 8.7).
    pub is_chosen: bool,
    /// The file itself first (identity), then its siblings; a variant may have siblings alone. With `lone`: the sibling
    /// first, then its decompressed form once a client has needed it. Never empty.
    pub representations: Vec<Representation>,
    /// Whether the site compresses files of this type on the fly, if a client accepts it.
    pub is_compressible: bool,
    /// Set if only the compressed sibling of this name exists.
    pub lone: Option<PrecompressedOnly>,
    /// The metadata of the representations, in their order, if they are objects of an object store; otherwise empty.
    pub(crate) objects: Box<[Option<Arc<ObjectHead>>]>,
}

/// A compressed sibling without its original.
#[derive(Clone, Debug)]
pub struct PrecompressedOnly {
    /// Its clean path.
    pub name: Arc<[u8]>,
    /// Why decompression failed, if it was tried.
    pub not_unpacked: Option<NotUnpacked>,
}

impl Resource {
    /// A file in these codings and states.
    pub fn new(site: &Site, name: Arc<[u8]>, states: impl Iterator<Item = (Coding, FileVersion)>) -> Resource {
        let traits = Traits::of_file(site, &name);
        let media_type = || site.types.of(&name);
        let (media_type, language) = traits.map_or_else(|| (media_type(), None), |it| (it.media_type, it.language));
        Resource::describe(site, name, states, (media_type, language), false)
    }

    /// A file that exists only in compressed form, with its decompressed form if that exists.
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

    /// The same with the metadata of the objects that its representations are, in their order.
    #[must_use]
    pub fn of_objects(mut self, objects: impl IntoIterator<Item = Option<Arc<ObjectHead>>>) -> Resource {
        self.objects = objects.into_iter().collect();
        if self.objects.iter().all(Option::is_none) {
            self.objects = Box::default();
            return self;
        }
        for (representation, object) in self.representations.iter_mut().zip(&self.objects) {
            if let Some(etag) = object.as_ref().and_then(|object| object.etag.as_ref()) {
                representation.etag = etag.clone();
            }
        }
        // The type of a compressed sibling is often that of its coding.
        let itself = self.objects.first().cloned().flatten().filter(|_| self.lone.is_none());
        if let Some(media_type) = itself.as_ref().and_then(|object| object.media_type.as_deref()) {
            self.media_type = media_type.into();
            self.is_compressible &= is_compressible(media_type);
        }
        self.is_compressible &= itself.is_none_or(|object| object.encoding.is_none());
        self
    }

    /// The metadata of the object itself, if it is one.
    pub(crate) fn object(&self) -> Option<&ObjectHead> {
        self.objects.first()?.as_deref()
    }

    /// One of several variants, each with its own name.
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
                // Variants of equal size and date are still different representations.
                etag = alloc::format!("{}-{:x}\"", etag.trim_end_matches('"'), digest_of(&name)).into();
            }
            let (content_hint, head_hints) = (Hint::default(), Default::default());
            Representation { coding, version, etag, content_hint, head_hints }
        });
        let representations: Vec<Representation> = representations.collect();
        let is_compressible = !site.compress.is_empty() && is_compressible(&media_type);
        let vary = Vary::NOTHING.and_if(Vary::ENCODING, representations.len() > 1 || is_compressible);
        let (site, lone) = (site.number, None);
        let objects = Box::default();
        Resource { site, name, media_type, language, vary, is_chosen, representations, is_compressible, lone, objects }
    }

    /// Rebuilds the resource from its name and its states.
    pub fn rebuilt(&self, site: &Site) -> Resource {
        let states = self.representations.iter().map(|one| (one.coding, one.version));
        let objects = self.objects.iter().cloned();
        if let Some(lone) = &self.lone {
            return Resource::of_lone(site, Arc::clone(&self.name), states, lone.not_unpacked).of_objects(objects);
        }
        if !self.is_chosen {
            return Resource::new(site, Arc::clone(&self.name), states).of_objects(objects);
        }
        let said = (self.media_type.clone(), self.language.clone());
        Resource { vary: self.vary, ..Resource::describe(site, Arc::clone(&self.name), states, said, true) }
    }

    /// Whether both have the same representations in the same states.
    pub fn is_same_as(&self, other: &Resource) -> bool {
        let states = |resource: &Resource| -> Vec<_> {
            resource.representations.iter().map(|one| (one.coding, one.version)).collect()
        };
        let verdict = |resource: &Resource| resource.lone.as_ref().map(|lone| lone.not_unpacked);
        self.name == other.name && states(self) == states(other) && verdict(self) == verdict(other)
    }

    /// Whether both are the same compressed file in the same state, and this one contains all that `other` does.
    pub(crate) fn contains_all_of(&self, other: &Resource) -> bool {
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
    /// Its content coding.
    pub coding: Coding,
    /// The file and its state.
    pub version: FileVersion,
    /// Its entity tag, with quotes.
    pub etag: Box<str>,
    /// Cache position of its content, as of the last lookup.
    pub content_hint: Hint,
    /// Cache positions of its heads, as of the last lookup: 200, then 304.
    pub head_hints: [Hint; 2],
}

impl Representation {
    /// These bytes, the compressed form of a file in this state. The tag is derived from the bytes alone: another compressor,
    /// or another release of it, may make other bytes of the same file, and a strong tag must distinguish them (RFC 9110, 8.8.1).
    pub(crate) fn encoded(of: &FileVersion, coding: Coding, bytes: &[u8]) -> Representation {
        let version = FileVersion { size: bytes.len() as u64, ..*of };
        let suffix = coding.suffix().trim_start_matches('.');
        let etag = alloc::format!("\"{:x}-{:016x}-{suffix}\"", bytes.len(), file::digest_of(bytes)).into_boxed_str();
        Representation { coding, version, etag, content_hint: Hint::default(), head_hints: Default::default() }
    }
}

/// A digest of a name, the same on every machine.
fn digest_of(name: &[u8]) -> u64 {
    let words: Vec<u64> = name.iter().map(|&byte| u64::from(byte)).collect();
    digest(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_objects_take_precedence() {
        let site = Site { compress: alloc::vec![Coding::Gzip], ..Site::default() };
        let states =
            || [(Coding::Identity, FileVersion::default()), (Coding::Brotli, FileVersion::default())].into_iter();
        let plain = || Resource::new(&site, b"/a.txt"[..].into(), states());
        let object = |etag: &str| ObjectHead { etag: Some(etag.into()), ..ObjectHead::default() };
        let itself =
            ObjectHead { media_type: Some("text/x".into()), cache_control: Some("no-cache".into()), ..object("\"a\"") };
        let sibling = ObjectHead { media_type: Some("application/x-br".into()), ..object("\"b\"") };
        let objects = [Some(Arc::new(itself.clone())), Some(Arc::new(sibling))];
        let found = plain().of_objects(objects.clone());
        for found in [found.rebuilt(&site), found] {
            let tags: Vec<&str> = found.representations.iter().map(|one| &*one.etag).collect();
            assert_eq!((tags, found.media_type.as_str()), (alloc::vec!["\"a\"", "\"b\""], "text/x"));
            assert!(found.is_compressible && found.object() == Some(&itself));
        }
        // Its bytes are encoded already, or it is no text.
        for itself in [
            ObjectHead { encoding: Some("gzip".into()), ..ObjectHead::default() },
            ObjectHead { media_type: Some("image/png".into()), ..ObjectHead::default() },
        ] {
            assert!(!plain().of_objects([Some(Arc::new(itself)), None]).is_compressible);
        }
        // Files have none.
        let files = plain().of_objects([None, None]);
        assert!(files.object().is_none() && files.is_compressible);
        assert_eq!(files.representations[0].etag, plain().representations[0].etag);
    }
}
