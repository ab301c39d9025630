//! The caches: everything that a request would otherwise make the server compute again.
//!
//! Three, as in Flash, each with its own budget: [`path`] (name lookups), [`head`] (prepared header blocks),
//! [`content`] (small bodies, descriptors of large files); and, after Hu, Nanda and Yang, [`uri`] (targets to sites and
//! clean paths), and generated pages ([`page`]), which share the cache of contents. All use one [`policy`].
//! [`Caches::learn`] alone fills them, from results of the disk side. Each is private to a loop or shared by threads
//! ([`backend`]). Another cache, of client host names ([`hostname`]), belongs to the access log.

pub mod backend;
pub mod content;
pub mod head;
pub mod hostname;
pub mod page;
pub mod path;
pub mod policy;
pub mod uri;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use amped_http::negotiate::Coding;
use amped_units::{Bytes, PositiveBytes, Seconds, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::compress::{CompressWork, Compressed};
use crate::event::{Answer, Found, ListWork, Missing, NameWork, Opened, Work};
use crate::file::{Content, FileHandle, FileVersion, Stored};
use crate::listing::{ListForm, ListOrder, Listing};
use crate::pages::VARY_MAX;
use crate::resource::{Representation, Resource};
use crate::site::{Site, Sites};
use crate::variants::{self, NegotiationCache, Variants};
use backend::{CacheBackend, Shards, Shared};
use content::{ContentCache, Encoding};
use head::HeadCache;
use page::{AppPage, Hold, Lookup, PART_MAX, Page, PageName, StalePage};
use path::{CachedEntry, LookupResult, PathCache};
use policy::StoreCounts;
use uri::UriCache;

/// Caches, of each worker
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Budgets {
    /// Maximum request targets whose decoded path is cached, if `[optimise] uri_cache` is on
    ///
    /// About 200 bytes each.
    #[default(8192)]
    pub uri_entries: usize,
    /// Maximum cached name lookups, about 300 bytes each
    ///
    /// Names of files that do not exist are included.
    #[default(8192)]
    pub path_entries: usize,
    /// Maximum cached results of content negotiation, about 250 bytes each
    #[default(4096)]
    pub negotiation_entries: usize,
    /// Bytes of response headers, 250 to 400 bytes each
    ///
    /// A file has up to two: for status 200 and for 304.
    #[default(Bytes::mib(4))]
    pub head_bytes: Bytes,
    /// Bytes of file contents
    ///
    /// In the server's memory; includes application responses with `cache`.
    #[default(Bytes::mib(64))]
    pub content_bytes: Bytes,
    /// Bytes of files compressed on the fly, if a site has `compress`
    #[default(Bytes::mib(64))]
    pub compressed_bytes: Bytes,
    /// Maximum size of a cached file; larger ones are sent from the page cache of the system
    ///
    /// Below 32 to 64 KiB one send(2) from memory costs less than sendfile(2): 5.0 against 5.5 microseconds at 16 KiB, 8.7
    /// against 8.5 at 64 KiB.
    #[default(Bytes::kib(32))]
    pub max_content_file_bytes: Bytes,
    /// Maximum size to which a lone name.gz is unpacked
    ///
    /// For clients that do not accept gzip. The changelogs of Debian packages, the typical use, reach 7 MB.
    #[default(Bytes::mib(16))]
    pub max_unpacked_file_bytes: Bytes,
    /// Maximum number of larger files kept open
    #[default(1024)]
    pub descriptors: usize,
    /// Maximum delay until a changed file is noticed
    ///
    /// A cache entry is used this long before the file is checked again.
    #[serde(with = "Seconds")]
    #[default(Duration::from_secs(1))]
    pub revalidate: Duration,
    /// Maximum age of a cache entry that is used while the disk is busy
    #[serde(with = "Seconds")]
    #[default(Duration::from_secs(10))]
    pub max_stale: Duration,
    /// Share names and contents among the processes of architecture mp
    ///
    /// They then share one cache of this size instead of a part of it each.
    pub shared: bool,
    /// Directory of local copies of objects, for sites whose `root` is `s3://BUCKET/PREFIX`
    ///
    /// It should be on a local disk, belong to the server's user and contain nothing else. It survives restarts.
    #[schemars(example = &"/var/cache/amped")]
    pub disk: Option<Box<str>>,
    /// Maximum bytes of these copies, with those being fetched
    #[serde(with = "PositiveBytes")]
    #[default(Bytes::mib(10 * 1024))]
    pub disk_bytes: Bytes,
    /// Watch directories (inotify) to notice changes at once
    ///
    /// Costs a watch for each directory, in mp once for each process, which the system limits per user, and
    /// wakes workers for each change in a busy directory. Changes on other hosts of a network file system are not reported.
    pub watch: bool,
    /// Whether entity tag and media type are computed once, when a file is opened, rather than for each response.
    #[serde(skip)]
    #[default(true)]
    pub ready_headers: bool,
    /// Whether generated pages are kept, among the contents.
    #[serde(skip)]
    #[default(true)]
    pub made_pages: bool,
}

impl Budgets {
    /// The budget of one of `parts` caches, so that all together stay
    /// within this budget. Limits on a single file are unchanged.
    #[must_use]
    pub fn split(&self, parts: usize) -> Budgets {
        let bytes = |bytes: Bytes| Bytes(bytes.0 / parts as u64);
        Budgets {
            uri_entries: self.uri_entries / parts,
            negotiation_entries: self.negotiation_entries / parts,
            path_entries: self.path_entries / parts,
            head_bytes: bytes(self.head_bytes),
            content_bytes: bytes(self.content_bytes),
            compressed_bytes: bytes(self.compressed_bytes),
            descriptors: self.descriptors / parts,
            ..self.clone()
        }
    }
}

/// Maximum files that wait for the driver to take them.
const COMPRESSIONS_MAX: usize = 16;

/// The caches shared by several threads.
pub struct SharedCaches<F> {
    paths: Shared<PathCache>,
    heads: Shared<HeadCache>,
    contents: Shared<ContentCache<F>>,
}

impl<F> SharedCaches<F> {
    /// Creates caches of these shards.
    pub fn new(
        paths: Arc<dyn Shards<PathCache>>,
        heads: Arc<dyn Shards<HeadCache>>,
        contents: Arc<dyn Shards<ContentCache<F>>>,
    ) -> SharedCaches<F> {
        SharedCaches { paths: Shared::new(paths), heads: Shared::new(heads), contents: Shared::new(contents) }
    }

    /// Counters and sizes.
    pub fn figures(&self) -> Figures {
        Caches::shared(self, Budgets::default(), 0).figures()
    }

    /// Takes over the contents of `others`: their keys are file states, which do not depend on the configuration.
    #[must_use]
    pub fn with_contents_of(self, others: &SharedCaches<F>) -> SharedCaches<F> {
        SharedCaches { contents: others.contents.clone(), ..self }
    }
}

impl<F> core::fmt::Debug for SharedCaches<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.figures().fmt(f)
    }
}

impl<F> Clone for SharedCaches<F> {
    fn clone(&self) -> SharedCaches<F> {
        SharedCaches { paths: self.paths.clone(), heads: self.heads.clone(), contents: self.contents.clone() }
    }
}

/// Counters and sizes of the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The URI cache.
    pub uris: StoreCounts,
    /// Entries in it.
    pub uri_entries: u64,
    /// The cache of choices among variants.
    pub negotiations: StoreCounts,
    /// Entries in it.
    pub negotiation_entries: u64,
    /// The path cache.
    pub paths: StoreCounts,
    /// Entries in it.
    pub path_entries: u64,
    /// The head cache.
    pub heads: StoreCounts,
    /// Bytes in it.
    pub head_bytes: u64,
    /// The content cache: bodies in memory.
    pub bodies: StoreCounts,
    /// Bytes in it.
    pub body_bytes: u64,
    /// The content cache: descriptors.
    pub files: StoreCounts,
    /// Descriptors in it.
    pub open_files: u64,
    /// The content cache: files compressed on the fly.
    pub encodings: StoreCounts,
    /// Bytes in it.
    pub encoding_bytes: u64,
}

/// A name whose file may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The site's number.
    pub site: u16,
    /// The clean path.
    pub path: Arc<[u8]>,
    /// Whether names below it may have changed too: it is, was or becomes a directory, or leads to one.
    pub beneath: bool,
}

/// Calls `f` with all names through which a request can reach or list the file at
/// `path`: itself, with and without a final slash; the names of which it is a sibling or
/// the index; for a directory, its index; and with listings enabled, its directory.
pub fn each_spelling(site: &Site, path: &[u8], mut f: impl FnMut(&[u8])) {
    let bare = path.strip_suffix(b"/").unwrap_or(path);
    let originals = site.precompressed.iter().filter_map(|coding| bare.strip_suffix(coding.suffix().as_bytes()));
    for name in core::iter::once(bare).chain(originals) {
        f(name);
        f(&[name, b"/"].concat());
        let last = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        // The directory that lists it.
        if site.listing && last > 0 {
            f(&name[..last]);
        }
        let is_index = |name: &[u8]| site.index.iter().any(|index| index.as_bytes() == name);
        if is_index(&name[last..]) {
            f(&name[..last]);
        }
        // The name of which it may be a variant.
        if !site.negotiations.is_empty() {
            variants::each_requested_name(&name[last..], |requested| {
                f(&[&name[..last], requested].concat());
                if is_index(requested) {
                    f(&name[..last]);
                }
            });
        }
    }
    if path.ends_with(b"/") {
        site.index.iter().for_each(|index| f(&[path, index.as_bytes()].concat()));
    }
}

/// All caches of a loop.
pub struct Caches<F> {
    /// Resolved targets. Always private to the loop: entries never change, so loops need not share them.
    pub uris: UriCache,
    /// Choices among variants. Private to the loop for the same reason.
    pub negotiations: NegotiationCache,
    /// Resolutions of names.
    pub paths: CacheBackend<PathCache>,
    /// Prepared header blocks.
    pub heads: CacheBackend<HeadCache>,
    /// Contents of files, and generated pages.
    pub contents: CacheBackend<ContentCache<F>>,
    /// Files to compress, for the driver to take. `compressions.len() <= COMPRESSIONS_MAX`
    pub compressions: Vec<CompressWork<F>>,
    /// Their sizes and lifetimes.
    pub budgets: Budgets,
    generation: u32,
}

impl<F> Caches<F> {
    /// Creates empty private caches.
    pub fn new(budgets: Budgets) -> Caches<F> {
        Caches {
            uris: UriCache::of(budgets.uri_entries),
            negotiations: NegotiationCache::new(budgets.negotiation_entries),
            paths: CacheBackend::Own(PathCache::new(budgets.path_entries)),
            heads: CacheBackend::Own(HeadCache::of(budgets.head_bytes.0)),
            contents: CacheBackend::Own(ContentCache::new(
                budgets.content_bytes.0,
                budgets.descriptors,
                budgets.compressed_bytes.0,
            )),
            compressions: Vec::new(),
            budgets,
            generation: 0,
        }
    }

    /// Creates caches on top of shared ones; `budgets` are those of all shards together. The shared ones are cleared
    /// when the configuration changes; `generation` counts the configurations.
    pub fn shared(shared: &SharedCaches<F>, budgets: Budgets, generation: u32) -> Caches<F> {
        Caches {
            uris: UriCache::of(budgets.uri_entries),
            negotiations: NegotiationCache::new(budgets.negotiation_entries),
            paths: CacheBackend::Shared(shared.paths.clone()),
            heads: CacheBackend::Shared(shared.heads.clone()),
            contents: CacheBackend::Shared(shared.contents.clone()),
            compressions: Vec::new(),
            budgets,
            generation,
        }
    }

    /// Counters and sizes of the private caches.
    pub fn own_figures(&self) -> Figures {
        let (uris, uri_entries) = (self.uris.counts(), self.uris.len() as u64);
        let (negotiations, negotiation_entries) =
            (self.negotiations.store.counts(), self.negotiations.store.len() as u64);
        Figures { uris, uri_entries, negotiations, negotiation_entries, ..Figures::default() }
    }

    /// Counters and sizes of all caches, shared ones in full.
    pub fn figures(&self) -> Figures {
        let mut figures = self.own_figures();
        self.paths.each(|cache| {
            figures.paths += &cache.store.counts();
            figures.path_entries += cache.store.len() as u64;
        });
        self.heads.each(|cache| {
            figures.heads += &cache.counts();
            figures.head_bytes += cache.weight();
        });
        self.contents.each(|cache| {
            figures.bodies += &cache.memory.counts();
            figures.files += &cache.files.counts();
            figures.body_bytes += cache.memory.weight();
            figures.open_files += cache.files.len() as u64;
            figures.encodings += &cache.encodings.counts();
            figures.encoding_bytes += cache.encodings.weight();
        });
        figures
    }

    /// The number of the current configuration, counted from the start.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Switches to another configuration: resolutions and heads are cleared.
    /// Contents stay, because their keys are file states alone. Counters continue.
    pub fn renew(&mut self, generation: u32) {
        self.generation = generation;
        self.uris.clear();
        self.negotiations.store.clear();
        self.paths.change(|paths| paths.store.clear());
        self.heads.change(HeadCache::clear);
    }

    /// Looks up the resolution of `path`.
    pub fn find(&mut self, now: Time, site: u16, path: &[u8]) -> Option<CachedEntry> {
        self.paths.at((site, path), |paths| paths.find(now, site, path))
    }

    /// Whether a resolution of `path` is cached, at any age. Does not count as a use.
    pub fn holds_name(&mut self, site: u16, path: &[u8]) -> bool {
        self.paths.at((site, path), |paths| paths.meaning(site, path).is_some())
    }

    /// Builds the disk work that resolves a name.
    pub fn name_work(&mut self, site: &Site, path: Arc<[u8]>, known: Option<&CachedEntry>) -> NameWork {
        self.name_work_after(site, path, known.map(|known| &known.meaning))
    }

    /// The same, with decompression of a file that exists only in compressed form.
    pub fn unpack_work(&mut self, site: &Site, path: Arc<[u8]>, meaning: &LookupResult) -> NameWork {
        NameWork { unpack: true, ..self.name_work_after(site, path, Some(meaning)) }
    }

    fn name_work_after(&mut self, site: &Site, path: Arc<[u8]>, known: Option<&LookupResult>) -> NameWork {
        let mut states = Vec::new();
        for resource in known.iter().flat_map(|meaning| meaning.resources()) {
            let versions = resource.representations.iter().map(|representation| representation.version);
            states
                .extend(versions.filter(|version| self.contents.at(version.inode, |contents| contents.holds(version))));
        }
        self.work(site, path, states, None)
    }

    /// When the name of this work was last invalidated: results obtained elsewhere before that must not be used.
    pub fn forgotten_at(&mut self, work: &NameWork) -> Time {
        self.paths.at((work.site, &*work.path), |paths| paths.forgotten_at(work.site, &work.path))
    }

    /// Builds the disk work that opens one representation of a resolved name.
    pub fn content_work(
        &mut self,
        site: &Site,
        path: Arc<[u8]>,
        resource: &Resource,
        one: &Representation,
    ) -> NameWork {
        let missing = Missing { name: Arc::clone(&resource.name), coding: one.coding, version: one.version };
        self.work(site, path, Vec::new(), Some(missing))
    }

    /// Builds the disk work that lists a directory.
    pub fn list_work(&mut self, site: u16, path: Arc<[u8]>, order: ListOrder, form: ListForm) -> ListWork {
        let edition = self.paths.at((site, &*path), |paths| paths.edition(site, &path));
        ListWork { generation: self.generation, site, path, edition, order, form }
    }

    /// Looks up the listing that this work would generate, if it is
    /// recent enough and the state of the directory is unchanged.
    pub fn listing(&mut self, now: Time, work: &ListWork, folder: Option<&FileVersion>) -> Option<Listing> {
        let name = work.page_name();
        let Some(Page::Listing { listing, requested_at, edition }) = self.page(&name) else { return None };
        let holds = folder.is_some()
            && listing.folder.as_ref() == folder
            && edition == work.edition
            && now.since(requested_at) < page::listing_age_max(self.budgets.revalidate);
        holds.then_some(listing)
    }

    fn page(&mut self, name: &PageName) -> Option<Page> {
        self.contents.at(name, |contents| contents.page(name))
    }

    fn keep(&mut self, name: PageName, page: Page) {
        self.contents.at(name.clone(), |contents| contents.keep_page(name, page));
    }

    /// Looks up the cached page of this name for a request with this head.
    pub fn app_page(&mut self, now: Time, name: &PageName, head: &[u8]) -> Lookup {
        let lookup = |page, name: PageName| match page {
            Some(Page::App(page, _)) if page.is_fresh(now) => Lookup::Cached(page),
            Some(Page::App(page, hold)) => Lookup::Stale(StalePage { page, name, hold }),
            Some(Page::Uncacheable { until, .. }) if now < until => Lookup::Uncacheable,
            _ => Lookup::Missing(name),
        };
        match self.page(name) {
            Some(Page::Varies(fields, since)) => match name.of_variant(&fields, since, head) {
                Some(variant) => lookup(self.page(&variant), variant),
                None => Lookup::Uncacheable,
            },
            page => lookup(page, name.clone()),
        }
    }

    /// Caches an application's response to a request with this head
    /// that started at that time; it depends on these request fields.
    pub fn keep_app_page(
        &mut self,
        (began, now): (Time, Time),
        name: &PageName,
        (head, mut vary): (&[u8], Vec<String>),
        page: AppPage,
    ) {
        let known = self.page(name);
        let is_of_this = matches!(name, PageName::App { generation, .. } if *generation == self.generation);
        if !is_of_this || matches!(known, Some(Page::Uncacheable { since, .. }) if since > began) {
            return;
        }
        if vary.is_empty() {
            return self.keep(name.clone(), Page::new_app(page));
        }
        // Responses may vary by different fields: any field on which one of them depends matters for the name.
        let (known, mut since) = match known {
            Some(Page::Varies(fields, since)) => (fields, since),
            _ => (Arc::default(), now),
        };
        vary.extend(known.iter().cloned());
        vary.sort_unstable();
        vary.dedup();
        if vary != *known {
            if vary.len() > VARY_MAX {
                return self.mark_uncacheable(now, name, page::UNCACHEABLE_TIME);
            }
            // Pages stored under fewer fields are no longer found.
            since = now;
            self.keep(name.clone(), Page::Varies(Arc::new(vary.clone()), since));
        }
        if let Some(variant) = name.of_variant(&vary, since, head) {
            self.keep(variant, Page::new_app(page));
        }
    }

    /// Claims the revalidation of a page until then; `false` if another request has done so.
    pub fn claim_revalidation(&mut self, now: Time, stale: &StalePage, until: Time) -> bool {
        self.change_hold(stale, Hold { until, after_error: false }, |known| now >= known.until)
    }

    /// Has nobody revalidate a page until then, because the application has failed.
    pub fn hold_after_error(&mut self, stale: &StalePage, until: Time) {
        self.change_hold(stale, Hold { until, after_error: true }, |_| true);
    }

    /// Changes the hold of a page, if that is still cached and `may_change` its hold so far.
    fn change_hold(&mut self, stale: &StalePage, hold: Hold, may_change: impl FnOnce(Hold) -> bool) -> bool {
        let StalePage { page, name, .. } = stale;
        // Loops that share the cache do not pass between the two.
        self.contents.at(name.clone(), |contents| match contents.page(name) {
            Some(Page::App(known, before)) if Arc::ptr_eq(&known, page) && may_change(before) => {
                contents.keep_page(name.clone(), Page::App(known, hold));
                true
            }
            _ => false,
        })
    }

    /// Replaces a page by one with the same body, which the application has confirmed in response to a request that
    /// began at that time. `name`: the name of both before any `Vary`.
    pub fn renew_app_page(&mut self, began: Time, name: &PageName, stale: &StalePage, page: Arc<AppPage>) {
        let is_of_this = matches!(name, PageName::App { generation, .. } if *generation == self.generation);
        let is_invalid = matches!(self.page(name), Some(Page::Uncacheable { since, .. }) if since > began);
        if is_of_this && !is_invalid {
            self.keep(stale.name.clone(), Page::App(page, Hold::NONE));
        }
    }

    /// Caches nothing under this name for `time`, nor any response to an earlier request.
    pub fn mark_uncacheable(&mut self, now: Time, name: &PageName, time: Duration) {
        self.keep(name.clone(), Page::Uncacheable { since: now, until: now + time });
    }

    /// Looks up a file in this state in a coding in which it is compressed on the fly.
    pub fn encoding(&mut self, now: Time, version: &FileVersion, coding: Coding) -> Option<Encoding<F>> {
        self.contents.at(version.inode, |contents| contents.encoding(now, version, coding))
    }

    /// Has the driver compress a file, unless enough others wait for it.
    pub fn want_encoding(&mut self, now: Time, content: &Arc<Content<F>>, coding: Coding) {
        let version = &content.version;
        if self.compressions.len() < COMPRESSIONS_MAX
            && self.contents.at(version.inode, |contents| contents.begin_encoding(now, version, coding))
        {
            self.compressions.push(CompressWork { content: Arc::clone(content), coding });
        }
    }

    /// Caches the result of compressing a file in this state.
    pub fn learn_encoding(&mut self, version: &FileVersion, coding: Coding, result: Compressed<F>) {
        self.contents.at(version.inode, |contents| contents.learn_encoding(version, coding, result));
    }

    /// Maximum size of a generated page in bytes; 0: generated pages are not cached.
    pub fn page_max(&self) -> u64 {
        let part = self.budgets.content_bytes.0 / self.contents.parts() as u64;
        if self.budgets.made_pages { part / PART_MAX } else { 0 }
    }

    fn work(&mut self, site: &Site, path: Arc<[u8]>, known: Vec<FileVersion>, missing: Option<Missing>) -> NameWork {
        let variants = site.negotiation(&path).is_some();
        let site = site.number;
        let edition = self.paths.at((site, &*path), |paths| paths.edition(site, &path));
        NameWork { generation: self.generation, site, path, edition, known, variants, unpack: false, missing, from: 0 }
    }

    /// Caches the result of disk work that was requested at `requested_at`, and returns the result for the requesters.
    pub fn learn(&mut self, requested_at: Time, work: &Work, found: Found<F>, sites: &Sites) -> Answer<F> {
        // From another configuration: it may be another site's file.
        if work.generation() != self.generation {
            return Answer::Outdated;
        }
        let mut contents = Vec::new();
        let meaning = match found {
            Found::Trouble(trouble) => return Answer::Trouble(trouble),
            Found::Listing(listing) => {
                self.learn_listing(requested_at, work, &listing);
                return Answer::Listing(listing);
            }
            Found::Missing(opened) => return self.learn_missing(work, opened),
            Found::NeedsSlash => LookupResult::NeedsSlash,
            Found::Directory(version) => LookupResult::Directory(Some(version)),
            Found::Absent => LookupResult::Absent,
            Found::Forbidden => LookupResult::Forbidden,
            Found::File { name, files, not_unpacked } => {
                let states = files.iter().map(|file| (file.coding, file.version));
                let objects: Vec<_> = files.iter().map(|file| file.object.clone()).collect();
                let site = site_of(work, sites);
                let resource = match files.first() {
                    Some(first) if first.coding != Coding::Identity => {
                        Resource::of_lone(site, name, states, not_unpacked)
                    }
                    _ => Resource::new(site, name, states),
                };
                let resource = resource.of_objects(objects);
                contents = self.learn_contents(files);
                LookupResult::File(Arc::new(resource))
            }
            Found::Variants { names, files } => {
                let found: Vec<_> = names.into_iter().zip(files.iter().map(|file| file.version)).collect();
                let variants = match work {
                    Work::Name(name) => Variants::of(site_of(work, sites), &name.path, &found),
                    Work::List(_) => None,
                };
                contents = self.learn_contents(files);
                match (variants, work) {
                    (Some(variants), _) => LookupResult::Variants(Arc::new(variants)),
                    // The directory was read, so it exists.
                    (None, Work::Name(work)) if work.path.ends_with(b"/") => LookupResult::Directory(None),
                    (None, _) => LookupResult::Absent,
                }
            }
        };
        let meaning = match work {
            Work::Name(work) => {
                let key = (work.site, &*work.path);
                let (meaning, replaced) = self
                    .paths
                    .at(key, |paths| paths.learn((requested_at, work.edition), work.site, &work.path, meaning));
                if let Some(replaced) = replaced {
                    self.release_contents(&replaced, &meaning);
                }
                meaning
            }
            Work::List(_) => meaning,
        };
        Answer::Name(meaning, contents)
    }

    /// Caches a listing, if the state of the directory is known and the name was not invalidated meanwhile.
    fn learn_listing(&mut self, requested_at: Time, work: &Work, listing: &Listing) {
        let Work::List(work) = work else { return };
        let edition = self.paths.at((work.site, &*work.path), |paths| paths.edition(work.site, &work.path));
        if listing.folder.is_none() || edition != work.edition || listing.page.len() as u64 > self.page_max() {
            return;
        }
        let name = work.page_name();
        let page = Page::Listing { listing: listing.clone(), requested_at, edition };
        self.keep(name, page);
    }

    /// Caches the contents of opened files.
    fn learn_contents(&mut self, files: Vec<Opened<F>>) -> Vec<Arc<Content<F>>> {
        let contents = files.into_iter().filter_map(|Opened { version, content, .. }| {
            let content = Arc::new(Content { version, store: content? });
            self.contents.at(version.inode, |contents| contents.learn(&content));
            Some(content)
        });
        contents.collect()
    }

    /// Caches a missing content; the resolution of its name may have been evicted.
    fn learn_missing(&mut self, work: &Work, Opened { version, content, .. }: Opened<F>) -> Answer<F> {
        let (Work::Name(work), Some(store)) = (work, content) else {
            return Answer::Outdated;
        };
        let content = Arc::new(Content { version, store });
        self.contents.at(version.inode, |contents| contents.learn(&content));
        let key = (work.site, &*work.path);
        match self.paths.at(key, |paths| paths.meaning(work.site, &work.path)) {
            Some(meaning) => Answer::Name(meaning, alloc::vec![content]),
            None => Answer::Outdated,
        }
    }

    /// Invalidates the resolutions of all names that these changes may affect, so that the next request for one
    /// consults the file system, however young the entry was. Results of earlier lookups are not cached.
    pub fn invalidate(&mut self, now: Time, changes: &[Change], sites: &Sites) {
        let mut meanings = Vec::new();
        let mut beneath = Vec::new();
        for Change { site, path, beneath: all } in changes {
            let Some(site) = sites.get(*site) else { continue };
            each_spelling(site, path, |path| {
                let key = (site.number, path);
                meanings.extend(self.paths.at(key, |paths| paths.invalidate(now, site.number, path)));
            });
            if *all {
                beneath.push((site.number, [path.strip_suffix(b"/").unwrap_or(path), b"/"].concat()));
            }
        }
        if !beneath.is_empty() {
            let below = |site, path: &[u8]| beneath.iter().any(|(of, folder)| *of == site && path.starts_with(folder));
            self.paths.change(|paths| meanings.extend(paths.invalidate_if(now, below)));
        }
        self.release(meanings);
    }

    /// Invalidates all resolutions, as [`invalidate`](Caches::invalidate) does.
    pub fn flush(&mut self, now: Time) {
        let mut meanings = Vec::new();
        self.paths.change(|paths| meanings.extend(paths.invalidate_if(now, |_, _| true)));
        self.release(meanings);
    }

    fn release(&mut self, meanings: Vec<LookupResult>) {
        for meaning in meanings {
            self.release_contents(&meaning, &LookupResult::Absent);
        }
    }

    /// Releases the contents of a replaced resolution: memory, and the descriptor of a file that may have been deleted
    /// and occupies disk space until it is closed.
    fn release_contents(&mut self, replaced: &LookupResult, meaning: &LookupResult) {
        let still = |version: &FileVersion| {
            meaning.resources().any(|resource| resource.representations.iter().any(|one| one.version == *version))
        };
        for Representation { version, .. } in replaced.resources().flat_map(|resource| &resource.representations) {
            if !still(version) {
                self.contents.at(version.inode, |contents| contents.invalidate(version));
            }
        }
    }
}

fn site_of<'a>(work: &Work, sites: &'a Sites) -> &'a Site {
    let number = match work {
        Work::Name(work) => work.site,
        Work::List(work) => work.site,
    };
    sites.get(number).unwrap_or(sites.first())
}

impl<F: FileHandle> Caches<F> {
    /// Drops the content of a file in this state. Responses that have it continue.
    pub fn forget_content(&mut self, version: &FileVersion) {
        self.contents.at(version.inode, |contents| contents.invalidate(version));
    }

    /// Looks up the content of a representation, if it is cached and its file is unchanged.
    pub fn content(&mut self, representation: &Representation) -> Option<Arc<Content<F>>> {
        let in_memory = representation.version.size <= self.budgets.max_content_file_bytes.0;
        let Representation { version, content_hint, .. } = representation;
        let content = self.contents.at(version.inode, |contents| contents.find(content_hint, version, in_memory))?;
        if let Stored::File(file) = &content.store
            && !file.has_bytes_of(&content.version)
        {
            self.contents.at(version.inode, |contents| contents.invalidate(version));
            return None;
        }
        Some(content)
    }

    /// Finds the content of a file in this state among the contents of a result, else in the cache.
    pub fn content_among(
        &mut self,
        contents: &[Arc<Content<F>>],
        representation: &Representation,
    ) -> Option<Arc<Content<F>>> {
        let same = |content: &&Arc<Content<F>>| content.version == representation.version;
        match contents.iter().find(same) {
            Some(content) => Some(Arc::clone(content)),
            None => self.content(representation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites() -> Sites {
        let one = Site { precompressed: alloc::vec![Coding::Gzip], ..Site::default() };
        Sites::new(alloc::vec![one.clone(), one]).expect("some")
    }

    /// A new cache in which these names of the first site are
    /// absent; returns the names that are still cached after `f`.
    fn known_after<'a>(names: &[&'a str], f: impl FnOnce(&mut Caches<()>, &Sites)) -> Vec<&'a str> {
        let (mut caches, sites) = (Caches::new(Budgets::default()), sites());
        for name in names {
            let work = Work::Name(caches.name_work(sites.first(), name.as_bytes().into(), None));
            caches.learn(Time::START, &work, Found::Absent, &sites);
        }
        f(&mut caches, &sites);
        names.iter().copied().filter(|name| caches.find(Time::START, 0, name.as_bytes()).is_some()).collect()
    }

    #[test]
    fn change_invalidates_every_spelling() {
        let all = ["/", "/index.html", "/a", "/a/", "/a.gz", "/a/index.html", "/a/b", "/a/b/c", "/ab"];
        let check = |path: &str, beneath: bool, left: &[&str]| {
            let change = Change { site: 0, path: path.as_bytes().into(), beneath };
            let known = known_after(&all, |caches, sites| {
                caches.invalidate(Time::START, core::slice::from_ref(&change), sites)
            });
            assert_eq!(known, left, "{change:?}");
            let elsewhere = Change { site: 1, ..change };
            assert_eq!(known_after(&all, |caches, sites| caches.invalidate(Time::START, &[elsewhere], sites)), all);
        };
        check("/a", false, &["/", "/index.html", "/a.gz", "/a/index.html", "/a/b", "/a/b/c", "/ab"]);
        check("/a/", false, &["/", "/index.html", "/a.gz", "/a/b", "/a/b/c", "/ab"]);
        check("/a.gz", false, &["/", "/index.html", "/a/index.html", "/a/b", "/a/b/c", "/ab"]);
        check("/a/index.html", false, &["/", "/index.html", "/a", "/a.gz", "/a/b", "/a/b/c", "/ab"]);
        check("/index.html.gz", false, &["/a", "/a/", "/a.gz", "/a/index.html", "/a/b", "/a/b/c", "/ab"]);
        check("/a", true, &["/", "/index.html", "/a.gz", "/ab"]);
        check("/a/b", true, &["/", "/index.html", "/a", "/a/", "/a.gz", "/a/index.html", "/ab"]);
        check("/", true, &[]);
        assert!(known_after(&all, |caches, _| caches.flush(Time::START)).is_empty());
    }

    #[test]
    fn listing_is_valid_while_directory_is_unchanged() {
        let site = Site { listing: true, ..Site::default() };
        let sites = Sites::new(alloc::vec![site]).expect("one");
        let state = |ctime_ns| FileVersion {
            device: 1,
            inode: 2,
            size: 3,
            mtime_ns: 4,
            ctime_ns,
            is_changing: false,
            is_unpacked: false,
        };
        let order = ListOrder::of(None);
        let change = |path: &str| Change { site: 0, path: path.as_bytes().into(), beneath: false };
        let whole = Budgets::default;
        let at = Time::from_millis;
        // Generated at 1000 ms for a directory with the state `kept`; looked up at `now` with the state 5, after `f`.
        let check = |budgets: Budgets, kept: Option<i64>, now: u64, f: &dyn Fn(&mut Caches<()>), expected: bool| {
            let mut caches = Caches::new(budgets);
            let work = caches.list_work(0, b"/a/"[..].into(), order, ListForm::Html);
            let listing = Listing::new(alloc::vec![b'x'; 1000], 0, kept.map(state));
            caches.learn(at(1000), &Work::List(work), Found::Listing(listing), &sites);
            f(&mut caches);
            let work = caches.list_work(0, b"/a/"[..].into(), order, ListForm::Html);
            let found = caches.listing(at(now), &work, Some(&state(5)));
            assert_eq!(found.is_some(), expected, "{kept:?} at {now}");
            assert!(caches.listing(at(now), &work, None).is_none(), "the state of the directory is unknown");
            for other in [ListWork { form: ListForm::Json, ..work.clone() }, ListWork { site: 1, ..work.clone() }] {
                assert!(caches.listing(at(now), &other, Some(&state(5))).is_none(), "{other:?}");
            }
        };
        let nothing = |_: &mut Caches<()>| {};
        check(whole(), Some(5), 1000, &nothing, true);
        check(whole(), Some(5), 10_999, &nothing, true);
        check(whole(), Some(5), 11_000, &nothing, false);
        check(whole(), Some(6), 1000, &nothing, false);
        check(whole(), None, 1000, &nothing, false);
        let invalidate = |path: &'static str| {
            let sites = sites.clone();
            move |caches: &mut Caches<()>| caches.invalidate(at(1000), &[change(path)], &sites)
        };
        check(whole(), Some(5), 1000, &invalidate("/a/b"), false);
        check(whole(), Some(5), 1000, &invalidate("/a"), false);
        check(whole(), Some(5), 1000, &|caches| caches.flush(at(1000)), false);
        check(whole(), Some(5), 1000, &|caches| caches.renew(1), false);
        check(Budgets { revalidate: Duration::ZERO, ..whole() }, Some(5), 1000, &nothing, false);
        check(Budgets { content_bytes: Bytes(4000), ..whole() }, Some(5), 1000, &nothing, true);
        check(Budgets { content_bytes: Bytes(3999), ..whole() }, Some(5), 1000, &nothing, false);
        check(Budgets { made_pages: false, ..whole() }, Some(5), 1000, &nothing, false);
    }

    /// The head of a request with these fields.
    fn head(fields: &str) -> Vec<u8> {
        alloc::format!("GET /x HTTP/1.1\r\n{fields}\r\n").into_bytes()
    }

    #[test]
    fn one_request_revalidates_page_until_its_hold_ends() {
        let name = PageName::App { generation: 0, site: 0, rule: 0, key: b"h\n/x"[..].into() };
        let at = Time::from_millis;
        let page = |ms: u64| AppPage {
            status: amped_http::status::Status::OK,
            fields: Vec::new(),
            body: Arc::default(),
            date: *b"Sun, 06 Nov 1994 08:49:37 GMT",
            came: at(ms),
            age: Duration::ZERO,
            lifetime: Duration::from_secs(1),
            stale_while_revalidate: Duration::from_secs(1),
            stale_if_error: Duration::from_secs(10),
            for_all: false,
            with_cookies: false,
        };
        let mut caches = Caches::<()>::new(Budgets::default());
        let stale = |caches: &mut Caches<()>, ms: u64| match caches.app_page(at(ms), &name, b"") {
            Lookup::Stale(stale) => Some(stale),
            Lookup::Cached(_) | Lookup::Missing(_) | Lookup::Uncacheable => None,
        };
        caches.keep_app_page((at(0), at(0)), &name, (b"", Vec::new()), page(0));
        assert!(stale(&mut caches, 999).is_none());
        let found = stale(&mut caches, 1000).expect("stale");
        assert!(caches.claim_revalidation(at(1000), &found, at(1500)));
        assert!(!caches.claim_revalidation(at(1499), &found, at(9999)), "another request has claimed it");
        assert!(caches.claim_revalidation(at(1500), &found, at(1600)), "that one has not finished in time");
        // Sent by its own time, or as long as the application has just failed.
        let may_be_sent = |caches: &mut Caches<()>, ms: u64| stale(caches, ms).expect("stale").may_be_sent(at(ms));
        assert_eq!([1999, 2000].map(|ms| may_be_sent(&mut caches, ms)), [true, false]);
        caches.hold_after_error(&found, at(3000));
        assert_eq!([2999, 3000].map(|ms| may_be_sent(&mut caches, ms)), [true, false]);
        // Another page is not held for that.
        caches.keep_app_page((at(3000), at(3000)), &name, (b"", Vec::new()), page(3000));
        caches.hold_after_error(&found, at(9999));
        let found = stale(&mut caches, 5500).expect("stale");
        assert!(caches.claim_revalidation(at(5500), &found, at(6000)));
        // A change since its request began invalidates what confirms the page.
        caches.mark_uncacheable(at(5600), &name, Duration::ZERO);
        caches.renew_app_page(at(5500), &name, &found, Arc::new(page(5700)));
        assert!(matches!(caches.app_page(at(5700), &name, b""), Lookup::Missing(_)));
        caches.renew_app_page(at(5650), &name, &found, Arc::new(page(5700)));
        assert!(matches!(caches.app_page(at(5700), &name, b""), Lookup::Cached(_)));
    }

    #[test]
    fn application_pages_have_distinct_keys() {
        let name = PageName::App { generation: 0, site: 0, rule: 0, key: b"h\n/x"[..].into() };
        let at = Time::from_millis;
        let page = |text: &str, ms: u64| AppPage {
            status: amped_http::status::Status::OK,
            fields: Vec::new(),
            body: Arc::new(text.as_bytes().to_vec()),
            date: *b"Sun, 06 Nov 1994 08:49:37 GMT",
            came: at(ms),
            age: Duration::ZERO,
            lifetime: Duration::from_secs(10),
            stale_while_revalidate: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            for_all: false,
            with_cookies: false,
        };
        let mut caches = Caches::<()>::new(Budgets::default());
        let keep = |caches: &mut Caches<()>, ms: u64, fields: &str, vary: &[&str], text: &str| {
            let vary = vary.iter().map(|&name| String::from(name)).collect();
            caches.keep_app_page((at(ms), at(ms)), &name, (&head(fields), vary), page(text, ms));
        };
        // The page found by a request with these fields: its text, `missing` or `unkept`.
        let look = |caches: &mut Caches<()>, ms: u64, fields: &str| match caches.app_page(at(ms), &name, &head(fields))
        {
            Lookup::Cached(page) => String::from_utf8(page.body.to_vec()).expect("text"),
            Lookup::Missing(_) | Lookup::Stale(_) => "missing".into(),
            Lookup::Uncacheable => "unkept".into(),
        };
        let check = |caches: &mut Caches<()>, ms: u64, expected: &[(&str, &str)]| {
            for (fields, expected) in expected {
                assert_eq!(look(caches, ms, fields), *expected, "{fields:?} at {ms}");
            }
        };
        check(&mut caches, 1000, &[("", "missing")]);
        keep(&mut caches, 1000, "", &[], "one for all");
        check(&mut caches, 10_999, &[("", "one for all"), ("A: 1\r\n", "one for all")]);
        check(&mut caches, 11_000, &[("", "missing")]);
        // By one field, then also by another.
        keep(&mut caches, 1001, "A: 1\r\n", &["a"], "by a");
        check(
            &mut caches,
            1001,
            &[("a:1\r\nB: 1\r\n", "by a"), ("A: 2\r\n", "missing"), ("", "missing"), ("A:\r\n", "missing")],
        );
        keep(&mut caches, 1002, "", &["a"], "without");
        check(&mut caches, 1002, &[("", "without"), ("A:\r\n", "missing"), ("A: 1\r\n", "by a")]);
        keep(&mut caches, 1003, "A: 1\r\nB: 1\r\n", &["b"], "by both");
        check(&mut caches, 1003, &[("A: 1\r\nB: 1\r\n", "by both"), ("A: 1\r\n", "missing"), ("", "missing")]);
        keep(&mut caches, 1004, "A: 1\r\n", &["a"], "by both, too");
        check(&mut caches, 1004, &[("A: 1\r\nB: 1\r\n", "by both"), ("A: 1\r\n", "by both, too")]);
        let long = alloc::format!("A: {}\r\n", "x".repeat(5000));
        keep(&mut caches, 1005, &long, &["a"], "too long");
        check(&mut caches, 1005, &[(&long, "unkept"), ("A: 1\r\n", "by both, too")]);
        let many = ["c", "d", "e", "f", "g", "h", "i"];
        keep(&mut caches, 1006, "", &many, "by nine fields");
        check(&mut caches, 1006, &[("", "unkept"), ("A: 1\r\n", "unkept")]);
        check(&mut caches, 11_006, &[("", "missing")]);
        // Responses to requests from before the end are not cached, and earlier pages are not found again.
        keep(&mut caches, 20_000, "A: 1\r\n", &["a"], "before");
        caches.mark_uncacheable(at(20_001), &name, Duration::ZERO);
        check(&mut caches, 20_001, &[("A: 1\r\n", "missing")]);
        keep(&mut caches, 20_000, "A: 1\r\n", &["a"], "late");
        check(&mut caches, 20_001, &[("A: 1\r\n", "missing")]);
        keep(&mut caches, 20_002, "A: 2\r\n", &["a"], "after");
        check(&mut caches, 20_002, &[("A: 2\r\n", "after"), ("A: 1\r\n", "missing")]);
        // Another configuration.
        caches.renew(1);
        keep(&mut caches, 20_003, "", &[], "of the one before");
        check(&mut caches, 20_003, &[("", "missing"), ("A: 2\r\n", "after")]);
    }

    #[test]
    fn listing_requested_before_invalidation_is_not_cached() {
        let sites = Sites::new(alloc::vec![Site { listing: true, ..Site::default() }]).expect("one");
        let mut caches = Caches::<()>::new(Budgets::default());
        let state = FileVersion {
            device: 1,
            inode: 2,
            size: 3,
            mtime_ns: 4,
            ctime_ns: 5,
            is_changing: false,
            is_unpacked: false,
        };
        let ask = |caches: &mut Caches<()>| caches.list_work(0, b"/a/"[..].into(), ListOrder::of(None), ListForm::Html);
        let before = ask(&mut caches);
        caches.invalidate(Time::START, &[Change { site: 0, path: b"/a/b"[..].into(), beneath: false }], &sites);
        let after = ask(&mut caches);
        assert_ne!(before, after, "a new request must not wait for the old lookup");
        let listing = Listing::new(Vec::new(), 0, Some(state));
        caches.learn(Time::START, &Work::List(before), Found::Listing(listing), &sites);
        assert!(caches.listing(Time::START, &after, Some(&state)).is_none());
    }

    #[test]
    fn lookup_requested_before_invalidation_is_not_cached() {
        let sites = sites();
        let change = |path: &str, beneath| Change { site: 0, path: path.as_bytes().into(), beneath };
        for invalidate in [
            |caches: &mut Caches<()>, sites: &Sites, (exact, _): &(Change, Change)| {
                caches.invalidate(Time::START, core::slice::from_ref(exact), sites);
            },
            |caches: &mut Caches<()>, sites: &Sites, (_, above): &(Change, Change)| {
                caches.invalidate(Time::START, core::slice::from_ref(above), sites);
            },
            |caches: &mut Caches<()>, _: &Sites, _: &(Change, Change)| caches.flush(Time::START),
        ] {
            let changes = (change("/a/b", false), change("/a", true));
            let mut caches = Caches::new(Budgets::default());
            let ask = |caches: &mut Caches<()>| Work::Name(caches.name_work(sites.first(), b"/a/b"[..].into(), None));
            let before = ask(&mut caches);
            invalidate(&mut caches, &sites, &changes);
            let after = ask(&mut caches);
            assert_ne!(before, after, "a new request must not wait for the old lookup");
            // The later lookup finishes first, and both results arrive at the same time.
            let meaning = |caches: &mut Caches<()>| caches.find(Time::START, 0, b"/a/b").map(|known| known.meaning);
            caches.learn(Time::START, &after, Found::Absent, &sites);
            let answer = caches.learn(Time::START, &before, Found::Forbidden, &sites);
            assert!(matches!(answer, Answer::Name(LookupResult::Forbidden, _)), "the requesters get it");
            assert!(matches!(meaning(&mut caches), Some(LookupResult::Absent)));
            // The earlier lookup finishes first.
            invalidate(&mut caches, &sites, &changes);
            caches.learn(Time::START, &after, Found::Forbidden, &sites);
            assert!(meaning(&mut caches).is_none());
        }
    }
}
