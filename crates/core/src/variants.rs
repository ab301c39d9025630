//! Documents with several variants: `page.en.html` and `page.fr.html` for a request for `/page`.
//!
//! Before it, the disk side has found that a name does not exist, and which files share its
//! stem. This module parses their names: which of them are variants, their traits, and the
//! site's order of preference. After it, `decide` has the choice made (`http/negotiate`),
//! once per combination of `Accept` fields: choices are cached ([`NegotiationCache`]).
//!
//! A name that exists is served as it is, so each variant has its own URL, which `Content-Location` gives.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_http::h1::request::{Lines, Request};
use amped_http::negotiate::{self, AcceptFields, Choice, Coding, Variant};

use crate::cache::policy::{KeyRef, Store};
use crate::file::FileVersion;
use crate::resource::Resource;
use crate::site::{Ambiguous, Site, Unacceptable};
use crate::traits::{Traits, last_segment, split};
use crate::vary::Vary;

/// Maximum extensions after the stem of a variant's name.
const ENDINGS_MAX: usize = 5;

/// Maximum files considered for one name: the first ones by name. Each is opened and, if small, read.
pub const CANDIDATES_MAX: usize = 64;

/// Whether a sibling with these times of modification and change was made from the current file, which was modified at
/// `mtime_ns`. gzip and zstd copy the file's time to the sibling; brotli drops its fraction of a second. A sibling
/// modified at the whole second is therefore current, unless its status last changed before the file was modified.
pub fn is_current((sibling_mtime_ns, sibling_ctime_ns): (i64, i64), mtime_ns: i64) -> bool {
    let second = mtime_ns.div_euclid(1_000_000_000) * 1_000_000_000;
    sibling_mtime_ns >= mtime_ns || (sibling_mtime_ns == second && sibling_ctime_ns >= mtime_ns)
}

/// Whether a file of this name may be a variant of the requested name, both without their folder: it has the same stem,
/// and has the requested extensions in their order, among others.
pub fn may_be_variant(requested: &[u8], name: &[u8]) -> bool {
    let ((requested_stem, requested), (stem, endings)) = (split(requested), split(name));
    let mut left = endings.iter();
    stem == requested_stem
        && endings.len() > requested.len()
        && endings.len() <= ENDINGS_MAX
        && requested.iter().all(|ending| left.any(|known| known == ending))
}

/// Calls `f` with all requested names for which [`may_be_variant`] accepts this file.
pub fn each_requested_name(name: &[u8], mut f: impl FnMut(&[u8])) {
    let (stem, endings) = split(name);
    if endings.is_empty() || endings.len() > ENDINGS_MAX {
        return;
    }
    for chosen in 0..(1_u32 << endings.len()) - 1 {
        let mut requested = stem.to_vec();
        for (_, ending) in endings.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1) {
            requested.push(b'.');
            requested.extend_from_slice(ending);
        }
        f(&requested);
    }
}

/// The variants of a document.
#[derive(Debug)]
pub struct Variants {
    /// The variants, at least one, in the site's order of preference.
    pub list: Vec<VariantFile>,
    /// The request fields on which a response depends.
    pub vary: Vary,
    list_ties: bool,
    refuse: bool,
}

/// One variant.
#[derive(Debug)]
pub struct VariantFile {
    /// The file, without the extension of its coding, in all its codings.
    pub resource: Arc<Resource>,
    charset: Option<Box<str>>,
    codings: Vec<Coding>,
}

/// The result of a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negotiated {
    /// Send this variant.
    Variant(usize),
    /// Let the client choose: 300.
    List,
    /// No variant is acceptable: 406.
    Refused,
}

impl Variants {
    /// Finds the variants among these files, which were found for the requested `path`; `None` if there are none.
    ///
    /// A file and its other codings are one variant. As for the siblings of any
    /// file, a compressed one that is older than the plain one is ignored.
    pub fn of(site: &Site, path: &[u8], files: &[(Arc<[u8]>, FileVersion)]) -> Option<Variants> {
        let rule = site.negotiation(path)?;
        /// A name without the extension of its coding, and its codings and states.
        type Plain = (Arc<[u8]>, Vec<(Coding, FileVersion)>);
        let mut plain: Vec<Plain> = Vec::new();
        for (name, version) in files {
            let coded = |coding: &Coding| Some((*coding, name.strip_suffix(coding.suffix().as_bytes())?));
            let (coding, name) = site.precompressed.iter().find_map(coded).unwrap_or((Coding::Identity, &**name));
            match plain.iter_mut().find(|(known, _)| **known == *name) {
                Some((_, states)) => states.push((coding, *version)),
                None => plain.push((name.into(), alloc::vec![(coding, *version)])),
            }
        }
        let mut found: Vec<(VariantFile, Traits)> = Vec::new();
        for (name, mut states) in plain {
            // For a directory, the request is for its index file, which may have several names.
            let stood_for = |index: &&[u8]| last_segment(&name) == *index || may_be_variant(index, last_segment(&name));
            let requested = match path.ends_with(b"/") {
                true => site.index.iter().map(|index| index.as_bytes()).find(stood_for),
                false => Some(last_segment(path)),
            };
            let Some(requested) = requested else { continue };
            let ((_, requested), (_, endings)) = (split(requested), split(last_segment(&name)));
            let Some(traits) = Traits::of(rule, &site.types, &requested, &endings) else { continue };
            // The plain file first, then the others in the site's order.
            let place = |coding: Coding| site.precompressed.iter().position(|known| *known == coding);
            states.sort_by_key(|(coding, _)| place(*coding).map_or(0, |at| at + 1));
            if let [(Coding::Identity, version), ..] = states[..] {
                states.retain(|(_, state)| is_current((state.mtime_ns, state.ctime_ns), version.mtime_ns));
            }
            let resource = Resource::of_variant(site, name, states.iter().copied(), &traits);
            let codings = states.iter().map(|(coding, _)| *coding).collect();
            found
                .push((VariantFile { resource: Arc::new(resource), charset: traits.charset.clone(), codings }, traits));
        }
        // Order for variants that match equally: the site's preferences, then size, then the name, so that the
        // order never depends on that of the directory.
        let rank = |names: &[Box<str>], which: &Option<Box<str>>| {
            let at = which.as_ref().and_then(|which| names.iter().position(|name| name == which));
            at.unwrap_or(names.len())
        };
        found.sort_by_cached_key(|(file, traits)| {
            let size = file.resource.representations[0].version.size;
            let (language, charset) = (rank(&rule.languages, &traits.language), rank(&rule.charsets, &traits.charset));
            (language, charset, size, Arc::clone(&file.resource.name))
        });
        let (_, first) = found.first()?;
        let refuse = rule.unacceptable == Unacceptable::Refuse;
        // A 406 depends on every field by which another variant could have been chosen.
        let differ = |same: &dyn Fn(&Traits) -> bool| found.iter().any(|(_, other)| !same(other));
        let has_charset = found.iter().any(|(_, traits)| traits.charset.is_some());
        let has_language = found.iter().any(|(_, traits)| traits.language.is_some());
        let is_coded = found.iter().any(|(file, _)| file.codings.iter().any(|coding| *coding != Coding::Identity));
        let vary = Vary::NOTHING
            .and_if(Vary::ACCEPT, refuse || differ(&|other| essence(other) == essence(first)))
            .and_if(Vary::LANGUAGE, has_language && (refuse || differ(&|other| other.language == first.language)))
            .and_if(Vary::CHARSET, has_charset && (refuse || differ(&|other| other.charset == first.charset)))
            .and_if(Vary::ENCODING, is_coded);
        let list = found
            .into_iter()
            .map(|(mut file, _)| {
                let resource = Arc::get_mut(&mut file.resource).expect("just created, so not shared yet");
                // That of one variant may depend on more, if it is compressed on the fly.
                resource.vary = vary.and(resource.vary);
                file
            })
            .collect();
        Some(Variants { list, vary, list_ties: rule.ambiguous == Ambiguous::List, refuse })
    }

    /// Whether both have the same variants in the same states.
    pub fn is_same_as(&self, other: &Variants) -> bool {
        let mut pairs = self.list.iter().zip(&other.list);
        self.list.len() == other.list.len()
            && self.vary == other.vary
            && pairs.all(|(one, other)| one.resource.is_same_as(&other.resource))
    }

    /// Chooses a variant by these fields.
    fn choose(&self, fields: &AcceptFields<'_>) -> Negotiated {
        let variants: Vec<Variant<'_>> = self
            .list
            .iter()
            .map(|VariantFile { resource, charset, codings }| Variant {
                media_type: &resource.media_type,
                language: resource.language.as_deref(),
                charset: charset.as_deref(),
                codings,
            })
            .collect();
        // No variant is acceptable, but one is sent anyway: drop the fields one by one. For a client that prefers text,
        // a text in another language is more useful than a picture.
        let AcceptFields { accept, charset, encoding, .. } = *fields;
        let less = [
            *fields,
            AcceptFields { accept, charset, encoding, language: None },
            AcceptFields { accept, encoding, ..AcceptFields::default() },
            AcceptFields { encoding, ..AcceptFields::default() },
            AcceptFields::default(),
        ];
        let tried = if self.refuse { &less[..1] } else { &less[..] };
        for fields in tried {
            match negotiate::choose_variant(&variants, fields) {
                Choice::One(at) => return Negotiated::Variant(at),
                Choice::Tie(_) if self.list_ties => return Negotiated::List,
                Choice::Tie(at) => return Negotiated::Variant(at),
                Choice::Nothing => {}
            }
        }
        Negotiated::Refused
    }
}

/// The media type without its parameters.
fn essence(traits: &Traits) -> &str {
    traits.media_type.split(';').next().unwrap_or_default().trim_end()
}

/// Cached choices among variants. The key is the fields on which the response depends, in
/// normal form, and no others. Equivalent requests, however spelled, share an entry; a
/// choice among other variants, or among these in another state, is never used.
///
/// Hu, Nanda and Yang left this open (section 5.4): their URI cache could not hold a URI with several files.
pub struct NegotiationCache {
    pub(crate) store: Store<(usize, Box<[u8]>), Chosen>,
    /// The fields of the current request, concatenated, and their positions.
    fields: Vec<u8>,
}

/// A cached choice, by the address of its variants, which it keeps alive there, and the fields.
type Chosen = (Arc<Variants>, Negotiated);

/// Maximum average weight of an entry in bytes. Those of browsers are far lighter.
const MEAN_BYTES: u64 = 512;

/// Bytes of an entry in addition to its fields.
const OVERHEAD: u64 = 120;

impl NegotiationCache {
    /// Creates an empty cache of at most this many choices; 0 disables it.
    pub fn new(entries_max: usize) -> NegotiationCache {
        let store = Store::new(entries_max, (entries_max as u64).saturating_mul(MEAN_BYTES));
        NegotiationCache { store, fields: Vec::new() }
    }

    /// Chooses a variant for this request.
    pub fn choose(&mut self, request: &Request<'_>, variants: &Arc<Variants>) -> Negotiated {
        let requested: [(Vary, &Lines<'_>); 4] = [
            (Vary::ACCEPT, &request.accept),
            (Vary::LANGUAGE, &request.accept_language),
            (Vary::CHARSET, &request.accept_charset),
            (Vary::ENCODING, &request.accept_encoding),
        ];
        let fields = &mut self.fields;
        fields.clear();
        // Each field ends with a line end, which no field contains; a present field starts with a colon.
        let places = requested.map(|(which, lines)| {
            let is_there = variants.vary.has(which) && lines.is_present();
            if is_there {
                fields.push(b':');
            }
            let start = fields.len();
            if is_there {
                negotiate::normalise(lines.iter(), fields);
            }
            fields.push(b'\n');
            is_there.then_some((start, fields.len() - 1))
        });
        let at = Arc::as_ptr(variants) as usize;
        if self.store.is_on()
            && let Some((_, known)) = self.store.get(&KeyRef(at, fields))
        {
            return *known;
        }
        let [accept, language, charset, encoding] = places.map(|place| place.map(|(start, end)| &fields[start..end]));
        let chosen = variants.choose(&AcceptFields { accept, language, charset, encoding });
        if self.store.is_on() {
            let weight = OVERHEAD + fields.len() as u64;
            self.store.insert((at, fields[..].into()), (Arc::clone(variants), chosen), weight);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::Glob;
    use crate::site::{NegotiationRule, Types};
    use alloc::string::String;
    use alloc::{format, vec};
    use amped_http::h1::request::{self, HeadLimits};
    use proptest::prelude::*;

    fn types() -> Types {
        let known = |ending: &str| match ending {
            "html" => Some("text/html"),
            "txt" => Some("text/plain"),
            "pdf" => Some("application/pdf"),
            "es" | "js" => Some("text/javascript"),
            "gz" => Some("application/gzip"),
            _ => None,
        };
        Types { overrides: Vec::new(), known, fallback: "text/plain".into(), charset: Some("utf-8".into()) }
    }

    fn site() -> Site {
        let rule = NegotiationRule {
            pattern: Glob::new("/docs/**"),
            languages: vec!["fr".into(), "en".into(), "es".into(), "pt-BR".into()],
            charsets: vec!["utf-8".into(), "latin1".into()],
            ambiguous: Ambiguous::First,
            unacceptable: Unacceptable::First,
        };
        let precompressed = vec![Coding::Brotli, Coding::Gzip];
        let index = vec!["index.html".into(), "start.html".into()];
        Site { types: types(), negotiations: vec![rule], precompressed, index, ..Site::default() }
    }

    fn file(name: &str, size: u64, mtime_ns: i64) -> (Arc<[u8]>, FileVersion) {
        (
            name.as_bytes().into(),
            FileVersion {
                device: 1,
                inode: size,
                size,
                mtime_ns,
                ctime_ns: 9_000_000_000,
                is_changing: false,
                is_unpacked: false,
            },
        )
    }

    /// The variants of `requested` among these names, in the site's order, each as its name, type, language and codings.
    fn shown(site: &Site, requested: &str, names: &[&str]) -> (Vec<String>, String) {
        let files: Vec<_> = (1..).zip(names).map(|(size, name)| file(name, size, 5)).collect();
        let Some(variants) = Variants::of(site, requested.as_bytes(), &files) else { return Default::default() };
        let one = |VariantFile { resource, codings, .. }: &VariantFile| {
            let name = String::from_utf8_lossy(&resource.name).into_owned();
            let codings: Vec<&str> = codings.iter().map(|coding| coding.token()).collect();
            let language = resource.language.as_deref().unwrap_or("-");
            format!("{name} {} {language} {}", resource.media_type.replace("; charset=", ","), codings.join("+"))
        };
        (variants.list.iter().map(one).collect(), variants.vary.value())
    }

    #[test]
    fn variant_names_extend_requested_name() {
        let check = |requested: &str, name: &str, expected| {
            assert_eq!(may_be_variant(requested.as_bytes(), name.as_bytes()), expected, "{requested} {name}");
        };
        check("page", "page.en.html", true);
        check("page", "page.html", true);
        check("page", "page", false);
        check("page", "pages.html", false);
        check("page", "page2.html", false);
        check("page.html", "page.html.en", true);
        check("page.html", "page.en.html", true);
        check("page.html", "page.en.txt", false);
        check("page.html", "page.html", false);
        check("page.en.html", "page.html.en", false);
        check("page.en.html", "page.en.html.gz", true);
        check("page", "page.a.b.c.d.e", true);
        check("page", "page.a.b.c.d.e.f", false);
        check(".page", ".page.html", true);
        check("", ".html", false);
        check("a..b", "a..b.c", true);
    }

    #[test]
    fn name_extensions_describe_variant() {
        let site = site();
        let check = |requested: &str, names: &[&str], expected: &[&str], vary: &str| {
            let (found, varies) = shown(&site, requested, names);
            let found: Vec<&str> = found.iter().map(|text| &**text).collect();
            assert_eq!((&found[..], &*varies), (expected, vary), "{requested}");
        };
        // In the order of the site's languages, independent of the directory's.
        check(
            "/docs/page",
            &["/docs/page.en.html", "/docs/page.fr.html"],
            &["/docs/page.fr.html text/html,utf-8 fr identity", "/docs/page.en.html text/html,utf-8 en identity"],
            "Accept-Language",
        );
        // Languages take precedence over media types with the same extension.
        check("/docs/page", &["/docs/page.es.html"], &["/docs/page.es.html text/html,utf-8 es identity"], "");
        check("/docs/page", &["/docs/page.js"], &["/docs/page.js text/javascript,utf-8 - identity"], "");
        check("/docs/page", &["/docs/page.html.PT-br"], &["/docs/page.html.PT-br text/html,utf-8 pt-BR identity"], "");
        // Extensions without a meaning, with two of a kind, or without a media type.
        check(
            "/docs/page",
            &["/docs/page.html.bak", "/docs/page.en.fr.html", "/docs/page.en", "/docs/page..html"],
            &[],
            "",
        );
        check("/docs/page.bak", &["/docs/page.bak.html"], &["/docs/page.bak.html text/html,utf-8 - identity"], "");
        // Types, charsets, codings.
        check(
            "/docs/page",
            &["/docs/page.pdf", "/docs/page.html.latin1", "/docs/page.html.utf-8", "/docs/page.pdf.gz"],
            &[
                "/docs/page.html.utf-8 text/html,utf-8 - identity",
                "/docs/page.html.latin1 text/html,latin1 - identity",
                "/docs/page.pdf application/pdf - identity+gzip",
            ],
            "Accept, Accept-Charset, Accept-Encoding",
        );
        check(
            "/docs/page",
            &["/docs/page.html.gz", "/docs/page.html.br"],
            &["/docs/page.html text/html,utf-8 - br+gzip"],
            "Accept-Encoding",
        );
        // The smaller one comes first if nothing else distinguishes them.
        check(
            "/docs/page",
            &["/docs/page.pdf", "/docs/page.html"],
            &["/docs/page.pdf application/pdf - identity", "/docs/page.html text/html,utf-8 - identity"],
            "Accept",
        );
        // For a directory, the variants of one index file.
        check(
            "/docs/",
            &["/docs/index.en.html", "/docs/index.html.fr", "/docs/other.html"],
            &["/docs/index.html.fr text/html,utf-8 fr identity", "/docs/index.en.html text/html,utf-8 en identity"],
            "Accept-Language",
        );
        check("/elsewhere/page", &["/elsewhere/page.html"], &[], "");
    }

    #[test]
    fn sibling_is_current_if_made_from_this_state() {
        let ms = |ms: i64| ms * 1_000_000;
        let check = |sibling: i64, changed: i64, file: i64, expected: bool| {
            let is_current = is_current((ms(sibling), ms(changed)), ms(file));
            assert_eq!(is_current, expected, "{sibling}, {changed}, {file}");
        };
        // With the time of the file, or later.
        check(5_350, 5_500, 5_350, true);
        check(5_351, 5_351, 5_350, true);
        check(6_000, 6_000, 5_350, true);
        check(5_000, 5_000, 5_000, true);
        // With the time of the file, without its fraction.
        check(5_000, 9_000, 5_350, true);
        check(-5_000, 0, -4_650, true);
        // Made from an earlier state in the same second.
        check(5_050, 5_200, 5_350, false);
        check(5_000, 5_200, 5_350, false);
        check(4_999, 9_000, 5_350, false);
        check(4_000, 9_000, 5_350, false);
    }

    #[test]
    fn coded_variant_older_than_plain_one_is_skipped() {
        let site = site();
        let codings = |plain_ms: i64, coded_ms: i64| {
            let (plain, coded) = (plain_ms * 1_000_000, coded_ms * 1_000_000);
            let files = [file("/docs/page.html", 9, plain), file("/docs/page.html.gz", 4, coded)];
            Variants::of(&site, b"/docs/page", &files).expect("some").list[0].codings.clone()
        };
        assert_eq!(codings(5_000, 5_000), [Coding::Identity, Coding::Gzip]);
        // Compressors drop the fraction of a second.
        assert_eq!(codings(5_900, 5_000), [Coding::Identity, Coding::Gzip]);
        assert_eq!(codings(6_000, 5_999), [Coding::Identity]);
    }

    fn ask(negotiations: &mut NegotiationCache, variants: &Arc<Variants>, fields: &str) -> Negotiated {
        let limits = HeadLimits { request_line: 1000, head: 4000, fields: 50, secure: false };
        let text = format!("GET /docs/page HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let (request, _) = request::parse(text.as_bytes(), &limits).expect("good").expect("whole");
        negotiations.choose(&request, variants)
    }

    #[test]
    fn choice_is_cached_per_accept_fields() {
        let site = site();
        let files = [file("/docs/page.en.html", 1, 5), file("/docs/page.fr.html", 2, 5)];
        let variants = Arc::new(Variants::of(&site, b"/docs/page", &files).expect("some"));
        let mut negotiations = NegotiationCache::new(10);
        let (fr, en) = (Negotiated::Variant(0), Negotiated::Variant(1));
        let mut check = |fields: &str, expected, hits: u64, misses: u64| {
            assert_eq!(ask(&mut negotiations, &variants, fields), expected, "{fields}");
            let counts = negotiations.store.counts();
            assert_eq!((counts.hits, counts.misses), (hits, misses), "{fields}");
        };
        check("", fr, 0, 1);
        check("", fr, 1, 1);
        check("Accept-Language: en\r\n", en, 1, 2);
        check("Accept-Language:  EN\t\r\n", en, 2, 2);
        check("Accept-Language: en, fr;q=0.5\r\n", en, 2, 3);
        check("Accept-Language: en\r\nAccept-Language: fr ; q=0.5\r\n", en, 3, 3);
        // Only languages differ, so no other field is part of the key.
        check("Accept: image/png\r\nAccept-Language: en\r\nAccept-Encoding: br\r\nAccept-Charset: x\r\n", en, 4, 3);
        check("Accept-Language:\r\n", fr, 4, 4);
        // Another state of the files is another key; the order in which they were found does not matter.
        let files = [file("/docs/page.fr.html", 2, 5), file("/docs/page.en.html", 1, 5)];
        let found = Variants::of(&site, b"/docs/page", &files).expect("some");
        assert!(found.is_same_as(&variants));
        let changed = Variants::of(&site, b"/docs/page", &files[..1]).expect("some");
        assert!(!changed.is_same_as(&variants));
        assert_eq!(ask(&mut negotiations, &Arc::new(changed), "Accept-Language: en\r\n"), Negotiated::Variant(0));
        assert_eq!((negotiations.store.counts().hits, negotiations.store.len()), (4, 5));
        // As many as the budget allows, and no more.
        for n in 0..100 {
            ask(&mut negotiations, &variants, &format!("Accept-Language: x-{n}\r\n"));
        }
        assert_eq!(negotiations.store.len(), 10);
        negotiations.store.clear();
        assert!(negotiations.store.is_empty());
    }

    fn set(rule: &mut NegotiationRule, list_ties: bool, refuse: bool) {
        rule.ambiguous = if list_ties { Ambiguous::List } else { Ambiguous::First };
        rule.unacceptable = if refuse { Unacceptable::Refuse } else { Unacceptable::First };
    }

    #[test]
    fn ambiguous_choice_follows_configuration() {
        let mut site = site();
        let files =
            [file("/docs/page.en.html", 1, 5), file("/docs/page.fr.html", 2, 5), file("/docs/page.en.pdf", 3, 5)];
        let mut check = |list_ties: bool, refuse: bool, fields: &str, expected: Negotiated| {
            set(&mut site.negotiations[0], list_ties, refuse);
            let variants = Arc::new(Variants::of(&site, b"/docs/page", &files).expect("some"));
            assert_eq!(ask(&mut NegotiationCache::new(0), &variants, fields), expected, "{fields}");
            variants.vary.value()
        };
        // The site's order: fr, en, en.pdf.
        let (first, second, third) = (Negotiated::Variant(0), Negotiated::Variant(1), Negotiated::Variant(2));
        check(false, false, "", first);
        check(true, false, "", Negotiated::List);
        check(true, true, "Accept-Language: en\r\nAccept: text/html\r\n", second);
        check(true, true, "Accept-Language: en\r\n", Negotiated::List);
        check(false, true, "Accept-Language: de\r\n", Negotiated::Refused);
        // The language is dropped first, then the media type.
        check(false, false, "Accept-Language: de\r\nAccept: application/pdf\r\n", third);
        check(false, false, "Accept-Language: en\r\nAccept: image/png\r\n", first);
        check(true, false, "Accept-Language: de\r\nAccept: application/pdf\r\n", third);
        // A 406 also depends on fields in which the variants do not differ.
        let alone = [file("/docs/page.en.html", 1, 5)];
        let vary = |refuse: bool| {
            let mut site = self::site();
            set(&mut site.negotiations[0], false, refuse);
            Variants::of(&site, b"/docs/page", &alone).expect("some").vary.value()
        };
        assert_eq!([vary(false), vary(true)], ["", "Accept, Accept-Language"]);
    }

    #[test]
    fn variant_has_its_own_etag() {
        let mut site = site();
        site.etag = crate::site::EtagForm::Portable;
        let version = FileVersion {
            device: 1,
            inode: 1,
            size: 1,
            mtime_ns: 5,
            ctime_ns: 5,
            is_changing: false,
            is_unpacked: false,
        };
        let files = ["/docs/page.en.html", "/docs/page.fr.html"].map(|name| (name.as_bytes().into(), version));
        let variants = Variants::of(&site, b"/docs/page", &files).expect("some");
        let tag = |at: usize| variants.list[at].resource.representations[0].etag.clone();
        assert_ne!(tag(0), tag(1));
        assert!(tag(0).starts_with("\"1-5-") && tag(0).ends_with('"'), "{}", tag(0));
    }

    proptest! {
        /// A change of a file invalidates all names through which it is reached.
        #[test]
        fn name_is_found_under_each_negotiated_spelling(
            requested in "[a-c]{0,2}(\\.[a-c]{0,1}){0,3}",
            name in "[a-c]{0,2}(\\.[a-c]{0,1}){0,6}",
        ) {
            let mut spellings = Vec::new();
            each_requested_name(name.as_bytes(), |spelling| spellings.push(spelling.to_vec()));
            let found = spellings.iter().any(|spelling| spelling == requested.as_bytes());
            prop_assert_eq!(may_be_variant(requested.as_bytes(), name.as_bytes()), found, "{:?}", spellings);
        }
    }
}
