//! The caches: everything that a request would otherwise make the server work out twice.
//!
//! Three, as in Flash, each with its own budget: [`path`] (what a name means), [`head`] (ready header blocks), [`content`]
//! (small bodies, descriptors of large files). All keep to one [`policy`]. They are filled in one place, [`Caches::learn`],
//! from what the disk side found.

pub mod content;
pub mod head;
pub mod path;
pub mod policy;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use amped_units::{Bytes, Time};

use crate::event::{Answer, Found, NameWork, Opened, Trouble, Work};
use crate::file::{Content, FileHandle, FileVersion, Stored};
use crate::site::Sites;
use content::ContentCache;
use head::HeadCache;
use path::{Known, Meaning, PathCache, Representation, Resource};
use policy::Hint;

/// What the caches may hold, and for how long an entry is believed.
#[derive(Clone, Debug, PartialEq)]
pub struct Budgets {
    /// Names whose translation is kept, negative ones included. About 300 bytes each; 512 on average at most.
    pub path_entries: usize,
    /// Bytes of ready header blocks. One is 250 to 400 bytes, and each representation may have two (200 and 304).
    pub head_bytes: Bytes,
    /// Bytes of file content in memory.
    pub content_bytes: Bytes,
    /// Files up to this size are kept in memory whole; of larger ones a descriptor is kept and the page cache serves.
    /// One `send` from memory beats sendfile below 32 to 64 KiB (web-server notes of the project: 5.0 against 5.5
    /// microseconds at 16 KiB, 8.7 against 8.5 at 64 KiB).
    pub content_file_max: Bytes,
    /// Most descriptors of large files that are kept open.
    pub descriptors: usize,
    /// An entry is used this long before the file system is asked again.
    pub revalidate: Duration,
    /// While that question waits for the disk, the entry may still be used up to this age: a busy disk must not delay
    /// what is in memory.
    pub stale_max: Duration,
}

impl Default for Budgets {
    fn default() -> Budgets {
        Budgets {
            path_entries: 8192,
            head_bytes: Bytes::mib(4),
            content_bytes: Bytes::mib(64),
            content_file_max: Bytes::kib(32),
            descriptors: 1024,
            revalidate: Duration::from_secs(1),
            stale_max: Duration::from_secs(10),
        }
    }
}

/// All caches of a loop.
pub struct Caches<F> {
    /// What names mean.
    pub paths: PathCache,
    /// Ready header blocks.
    pub heads: HeadCache,
    /// Contents.
    pub contents: ContentCache<F>,
    /// What they may hold.
    pub budgets: Budgets,
    generation: u32,
}

impl<F> Caches<F> {
    /// Empty caches.
    pub fn new(budgets: Budgets) -> Caches<F> {
        Caches {
            paths: PathCache::new(budgets.path_entries),
            heads: HeadCache::new(budgets.head_bytes.0),
            contents: ContentCache::new(budgets.content_bytes.0, budgets.descriptors),
            budgets,
            generation: 0,
        }
    }

    /// Counts the configurations that have been in force.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Another configuration is in force: what names mean and what is said of files must be learnt anew. Contents stay:
    /// they are known by the file's state alone. Counts go on.
    pub fn renew(&mut self, generation: u32) {
        self.generation = generation;
        self.paths.clear();
        self.heads.clear();
    }

    /// The work that asks what a name means.
    pub fn name_work(&mut self, site: u16, path: Arc<[u8]>, known: Option<&Known>) -> NameWork {
        let mut states = Vec::new();
        if let Some(Known { meaning: Meaning::File(resource), .. }) = known {
            let versions = resource.representations.iter().map(|representation| representation.version);
            states.extend(versions.filter(|version| self.contents.holds(version)));
        }
        NameWork { generation: self.generation, site, path, known: states }
    }

    /// Takes note of what was found in answer to a question of the moment `asked`, and makes the answer for those who
    /// asked.
    pub fn learn(&mut self, asked: Time, work: &Work, found: Found<F>, sites: &Sites) -> Answer<F> {
        // From under another configuration: it may be another site's file. Connections know that too, and ask anew.
        if work.generation() != self.generation {
            return Answer::Trouble(Trouble::Failed);
        }
        let mut contents = Vec::new();
        let meaning = match found {
            Found::Trouble(trouble) => return Answer::Trouble(trouble),
            Found::Listing(page) => return Answer::Listing(Arc::new(page)),
            Found::NeedsSlash => Meaning::NeedsSlash,
            Found::Directory => Meaning::Directory,
            Found::Absent => Meaning::Absent,
            Found::Forbidden => Meaning::Forbidden,
            Found::File { name, files } => {
                let site = match work {
                    Work::Name(work) => work.site,
                    Work::List(work) => work.site,
                };
                let site = sites.get(site).unwrap_or(sites.first());
                let mut representations = Vec::with_capacity(files.len());
                for Opened { coding, version, content } in files {
                    let etag = version.etag(site.etag, coding.suffix());
                    let (content_hint, head_hints) = (Hint::default(), Default::default());
                    representations.push(Representation { coding, version, etag, content_hint, head_hints });
                    if let Some(store) = content {
                        let content = Arc::new(Content { version, store });
                        self.contents.learn(&content);
                        contents.push(content);
                    }
                }
                let media_type = site.types.of(&name);
                Meaning::File(Arc::new(Resource { site: site.number, name, media_type, representations }))
            }
        };
        let meaning = match work {
            Work::Name(work) => {
                let (meaning, replaced) = self.paths.learn(asked, work.site, &work.path, meaning);
                if let Some(replaced) = replaced {
                    self.forget_contents(&replaced, &meaning);
                }
                meaning
            }
            Work::List(_) => meaning,
        };
        Answer::Name(meaning, contents)
    }

    /// Lets go of what the name used to mean: memory, and the descriptor of a file that may have been removed and takes its
    /// room on the disk until then.
    fn forget_contents(&mut self, replaced: &Resource, meaning: &Meaning) {
        let still = |version: &FileVersion| match meaning {
            Meaning::File(resource) => resource.representations.iter().any(|one| one.version == *version),
            _ => false,
        };
        for Representation { version, .. } in &replaced.representations {
            if !still(version) {
                self.contents.forget(version);
            }
        }
    }
}

impl<F: FileHandle> Caches<F> {
    /// The content of a representation, if it is held and still is what the representation says.
    pub fn content(&mut self, representation: &Representation) -> Option<Arc<Content<F>>> {
        let in_memory = representation.version.size <= self.budgets.content_file_max.0;
        let content = self.contents.find(&representation.content_hint, &representation.version, in_memory)?;
        if let Stored::File(file) = &content.store
            && !file.has_bytes_of(&content.version)
        {
            self.contents.forget(&content.version);
            return None;
        }
        Some(content)
    }

    /// The content of a file in this state among those that an answer brought, else from the cache.
    pub fn content_among(
        &mut self,
        brought: &[Arc<Content<F>>],
        representation: &Representation,
    ) -> Option<Arc<Content<F>>> {
        let same = |content: &&Arc<Content<F>>| content.version == representation.version;
        match brought.iter().find(same) {
            Some(content) => Some(Arc::clone(content)),
            None => self.content(representation),
        }
    }
}
