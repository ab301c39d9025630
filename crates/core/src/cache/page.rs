//! Pages that are made and not read from a file, under the names by which they are kept.
//!
//! Hu, Nanda and Yang (section 5.4) give each such page a *pseudo-file-name* and keep it with the files. So it is here: a page
//! is an entry of the cache of contents, within its budget, and goes when that needs the room. What makes an entry good is
//! another matter for each kind: a listing is, as long as its directory has not changed; a page of an application, as long as
//! that has said, or the configuration for it ([`crate::pages`]).
//!
//! What an application answers may depend on fields of the request (RFC 9111, 4.1). Then what is kept under the name that all
//! such requests have are the names of these fields ([`Page::Varies`]), and the page itself under one that their values are
//! part of. And that an answer was not to be kept is itself kept for a while ([`Page::Unkept`]): who asks for it must not wait
//! for others.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use amped_http::date;
use amped_http::h1::request;
use amped_http::status::Status;
use amped_units::Time;

use crate::listing::{ListForm, ListOrder, Listing};

/// The name of a page that is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PageName {
    /// A directory's listing.
    Listing {
        /// Counts the configurations that have been in force.
        generation: u32,
        /// The site's number.
        site: u16,
        /// The clean path, with its final slash.
        path: Arc<[u8]>,
        /// In which order.
        order: ListOrder,
        /// As what.
        form: ListForm,
    },
    /// What an application answers.
    App {
        /// Counts the configurations that have been in force.
        generation: u32,
        /// The site's number.
        site: u16,
        /// The rule's place among those of the site.
        rule: u16,
        /// Host and target, then what of the request it depends on.
        key: Arc<[u8]>,
    },
}

impl PageName {
    /// Bytes of memory that it is, beside itself.
    fn len(&self) -> usize {
        match self {
            PageName::Listing { path, .. } => path.len(),
            PageName::App { key, .. } => key.len(),
        }
    }

    /// That of the page for requests with the same values of these fields, which were found at that time to matter; `None` if
    /// the values are too long.
    pub(super) fn of_variant(&self, fields: &[String], since: Time, head: &[u8]) -> Option<PageName> {
        let PageName::App { generation, site, rule, key } = self else { return None };
        let mut key = key.to_vec();
        let length = key.len();
        key.extend_from_slice(&since.as_nanos().to_le_bytes());
        for field in fields {
            // No value holds a line end, and a field that is not there is another thing than an empty one.
            key.push(b'\n');
            key.extend_from_slice(field.as_bytes());
            for (_, value) in request::fields(head).filter(|(name, _)| name.eq_ignore_ascii_case(field.as_bytes())) {
                key.push(b':');
                key.extend_from_slice(value);
            }
        }
        let (generation, site, rule) = (*generation, *site, *rule);
        (key.len() - length <= VALUES_MAX).then(|| PageName::App { generation, site, rule, key: key.into() })
    }
}

/// Bytes of a request's fields that the name of a page may have.
const VALUES_MAX: usize = 4096;

/// A page that is kept.
#[derive(Clone, Debug)]
pub enum Page {
    /// A directory's listing.
    Listing {
        /// The listing.
        listing: Listing,
        /// When it was asked for.
        asked: Time,
        /// How often its name had been forgotten then.
        edition: u32,
    },
    /// What an application has answered.
    App(Arc<AppPage>),
    /// The answer depends on these fields of the request, in lower case, sorted, as has been known since then.
    Varies(Arc<Vec<String>>, Time),
    /// Since then, and until then, nothing is kept of what this name stands for, and nobody waits for it.
    Unkept {
        /// What was begun before this is not kept at all.
        since: Time,
        /// The end of it.
        until: Time,
    },
}

/// An answer of an application.
#[derive(Clone, Debug)]
pub struct AppPage {
    /// Its status.
    pub status: Status,
    /// What its head says, but for its length and its age.
    pub fields: Vec<(Box<str>, Box<[u8]>)>,
    /// Its body.
    pub body: Arc<Vec<u8>>,
    /// The Date of the reply that it came with.
    pub date: [u8; date::LEN],
    /// When it came, and how old it was then.
    pub came: Time,
    /// The same.
    pub age: Duration,
    /// It is good up to this age.
    pub lifetime: Duration,
    /// It may be sent to those who have shown a password.
    pub for_all: bool,
    /// It may be sent to those who have cookies.
    pub with_cookies: bool,
}

impl AppPage {
    /// How old it is (RFC 9111, 4.2.3; between application and cache there is no network).
    pub fn age(&self, now: Time) -> Duration {
        self.age + now.since(self.came)
    }

    /// Whether it may still be sent (RFC 9111, 4.2).
    pub fn is_fresh(&self, now: Time) -> bool {
        self.age(now) < self.lifetime
    }
}

/// What is known of an answer before the application is asked.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// This is it.
    Kept(Arc<AppPage>),
    /// It is not kept; once it is, it will be under this name.
    Missing(PageName),
    /// It is not going to be kept, as far as is known.
    Unkept,
}

impl Page {
    /// What it weighs under this name, but for what every entry costs.
    pub(super) fn weight(&self, name: &PageName) -> u64 {
        let bytes = match self {
            Page::Listing { listing, .. } => listing.page.len(),
            Page::App(page) => {
                let fields = page.fields.iter().map(|(name, value)| name.len() + value.len() + size_of::<[usize; 4]>());
                fields.sum::<usize>() + page.body.len() + size_of::<AppPage>()
            }
            Page::Varies(fields, _) => fields.iter().map(|field| field.len() + size_of::<String>()).sum(),
            Page::Unkept { .. } => 0,
        };
        (bytes + name.len()) as u64
    }
}

/// A page may fill this part of its cache, or of its shard of one that is shared: a larger one would push out too much else.
pub const PART_MAX: u64 = 4;

/// What was found not to be for keeping is for nobody to wait for, for so long.
pub const UNKEPT_TIME: Duration = Duration::from_secs(10);

/// A directory's state tells what names there are, not how large the files are, nor of when. So a listing is made anew at the
/// age of so many times `revalidate`, 10 s by default, though its directory is as it was.
const LISTING_AGE: u32 = 10;

/// For how long a listing may be believed whose directory has not changed.
pub(super) fn listing_age_max(revalidate: Duration) -> Duration {
    revalidate.saturating_mul(LISTING_AGE)
}
