//! Generated pages, and the names under which they are cached.
//!
//! Hu, Nanda and Yang (section 5.4) give each generated page a *pseudo-file-name* and cache it with
//! the files. So does this server: a page is an entry of the cache of contents, within its budget.
//! Validity depends on the kind: a listing is valid while its directory is unchanged; a page of an
//! application for the lifetime given by its response or by the configuration ([`crate::pages`]).
//!
//! A response of an application may depend on request fields (RFC 9111, 4.1). Then the entry
//! under the common name lists these fields ([`Page::Varies`]), and the page itself is stored
//! under a name that includes their values. That a response was not cacheable is also cached
//! for a while ([`Page::Uncacheable`]), so that later requests do not wait for each other.

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

/// The name of a generated page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PageName {
    /// A directory's listing.
    Listing {
        /// The number of the configuration, counted from the start.
        generation: u32,
        /// The site's number.
        site: u16,
        /// The clean path, with its final slash.
        path: Arc<[u8]>,
        /// The sort order.
        order: ListOrder,
        /// The format.
        form: ListForm,
    },
    /// A response of an application.
    App {
        /// The number of the configuration, counted from the start.
        generation: u32,
        /// The site's number.
        site: u16,
        /// The rule's index among those of the site.
        rule: u16,
        /// Host and target, then the values of the request fields on which it depends.
        key: Arc<[u8]>,
    },
}

impl PageName {
    /// Heap memory in bytes.
    fn len(&self) -> usize {
        match self {
            PageName::Listing { path, .. } => path.len(),
            PageName::App { key, .. } => key.len(),
        }
    }

    /// The name of the page for requests with the same values of these fields, which
    /// were found at that time to matter; `None` if the values are too long.
    pub(super) fn of_variant(&self, fields: &[String], since: Time, head: &[u8]) -> Option<PageName> {
        let PageName::App { generation, site, rule, key } = self else { return None };
        let mut key = key.to_vec();
        let length = key.len();
        key.extend_from_slice(&since.as_nanos().to_le_bytes());
        for field in fields {
            // Values contain no line end; an absent field differs from an empty one.
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

/// Maximum bytes of request fields in the name of a page.
const VALUES_MAX: usize = 4096;

/// A cached page.
#[derive(Clone, Debug)]
pub enum Page {
    /// A directory's listing.
    Listing {
        /// The listing.
        listing: Listing,
        /// When it was requested.
        requested_at: Time,
        /// The edition of its name at that time.
        edition: u32,
    },
    /// A response of an application, and whether requests wait before they revalidate it.
    App(Arc<AppPage>, Hold),
    /// The response depends on these request fields, in lower case, sorted, known since this time.
    Varies(Arc<Vec<String>>, Time),
    /// Nothing is cached under this name during this period, and no request waits for it.
    Uncacheable {
        /// Responses to requests that started before this are not cached at all.
        since: Time,
        /// The end of the period.
        until: Time,
    },
}

/// A cached response of an application.
#[derive(Clone, Debug)]
pub struct AppPage {
    /// Its status.
    pub status: Status,
    /// Its fields, without length and age.
    pub fields: Vec<(Box<str>, Box<[u8]>)>,
    /// Its body.
    pub body: Arc<Vec<u8>>,
    /// The Date of the response that it came with.
    pub date: [u8; date::LEN],
    /// When it was received.
    pub came: Time,
    /// Its age at that time.
    pub age: Duration,
    /// Maximum age.
    pub lifetime: Duration,
    /// For how long after its lifetime it is sent while it is revalidated (RFC 5861, 3).
    pub stale_while_revalidate: Duration,
    /// For how long after its lifetime it is sent in place of an error (RFC 5861, 4).
    pub stale_if_error: Duration,
    /// Whether it may be sent to requests with credentials.
    pub for_all: bool,
    /// Whether it may be sent to requests with cookies.
    pub with_cookies: bool,
}

impl AppPage {
    /// Its age (RFC 9111, 4.2.3; there is no network between application and cache).
    pub fn age(&self, now: Time) -> Duration {
        self.age + now.since(self.came)
    }

    /// Whether it is fresh (RFC 9111, 4.2).
    pub fn is_fresh(&self, now: Time) -> bool {
        self.age(now) < self.lifetime
    }

    /// Whether it may be sent while it is revalidated (RFC 5861, 3).
    pub fn may_be_sent_before_revalidation(&self, now: Time) -> bool {
        self.age(now) < self.lifetime + self.stale_while_revalidate
    }

    /// Whether it may be sent in place of an error (RFC 5861, 4).
    pub fn may_replace_error(&self, now: Time) -> bool {
        self.age(now) < self.lifetime + self.stale_if_error
    }

    /// The fields by which the application can tell whether it is still the response (RFC 9111, 4.3.1).
    pub fn conditions(&self) -> Vec<(&'static str, &[u8])> {
        // RFC 9110, 13.2.1: conditions apply only if the response without them would be a success.
        let fields = self.fields.iter().filter(|_| self.status == Status::OK);
        fields
            .filter_map(|(name, value)| {
                let (_, condition) = CONDITIONS.iter().find(|(validator, _)| name.eq_ignore_ascii_case(validator))?;
                Some((*condition, &**value))
            })
            .collect()
    }
}

/// Validators of a response, and the conditions that compare them.
const CONDITIONS: [(&str, &str); 2] = [("ETag", "If-None-Match"), ("Last-Modified", "If-Modified-Since")];

/// Until when requests do not revalidate a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The end of the period.
    pub until: Time,
    /// Whether it began with an error of the application, rather than with a request that revalidates the page.
    pub after_error: bool,
}

impl Hold {
    /// None.
    pub const NONE: Hold = Hold { until: Time::START, after_error: false };
}

/// A page that is not fresh.
#[derive(Clone, Debug)]
pub struct StalePage {
    /// The page.
    pub page: Arc<AppPage>,
    /// The name under which it is stored.
    pub name: PageName,
    /// Until when it is not revalidated.
    pub hold: Hold,
}

impl StalePage {
    /// Whether it is the response to a request now: while it is revalidated, or shortly after that failed.
    pub fn may_be_sent(&self, now: Time) -> bool {
        let is_held_after_error = self.hold.after_error && now < self.hold.until;
        self.page.may_be_sent_before_revalidation(now) || is_held_after_error && self.page.may_replace_error(now)
    }
}

/// The result of a cache lookup for an application's response.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// A fresh page.
    Cached(Arc<AppPage>),
    /// A page that is not fresh; the response will be stored under its name.
    Stale(StalePage),
    /// Not cached; the response will be stored under this name.
    Missing(PageName),
    /// Known not to be cacheable.
    Uncacheable,
}

impl Page {
    /// A response of an application.
    pub(super) fn new_app(page: AppPage) -> Page {
        Page::App(Arc::new(page), Hold::NONE)
    }

    /// Its weight under this name, without the overhead of every entry.
    pub(super) fn weight(&self, name: &PageName) -> u64 {
        let bytes = match self {
            Page::Listing { listing, .. } => listing.page.len(),
            Page::App(page, _) => {
                let fields = page.fields.iter().map(|(name, value)| name.len() + value.len() + size_of::<[usize; 4]>());
                fields.sum::<usize>() + page.body.len() + size_of::<AppPage>()
            }
            Page::Varies(fields, _) => fields.iter().map(|field| field.len() + size_of::<String>()).sum(),
            Page::Uncacheable { .. } => 0,
        };
        (bytes + name.len()) as u64
    }
}

/// A page may take at most this fraction of its cache, or of its
/// shard of a shared one: a larger page would displace too much.
pub const PART_MAX: u64 = 4;

/// How long requests do not wait for a page that was found not to be cacheable.
pub const UNCACHEABLE_TIME: Duration = Duration::from_secs(10);

/// The state of a directory covers names, but not the size and date of its files. A listing is therefore regenerated at
/// this multiple of `revalidate`, 10 s by default, even if its directory is unchanged.
const LISTING_AGE: u32 = 10;

/// Maximum age of a listing whose directory is unchanged.
pub(super) fn listing_age_max(revalidate: Duration) -> Duration {
    revalidate.saturating_mul(LISTING_AGE)
}
