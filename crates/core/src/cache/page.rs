//! Pages that are made and not read from a file, under the names by which they are kept.
//!
//! Hu, Nanda and Yang (section 5.4) give each such page a *pseudo-file-name* and keep it with the files. So it is here: a page
//! is an entry of the cache of contents, within its budget, and goes when that needs the room. What makes an entry good is
//! another matter for each kind: a listing is, as long as its directory has not changed.

use alloc::sync::Arc;
use core::time::Duration;

use amped_units::Time;

use crate::event::ListWork;
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
}

impl PageName {
    /// That of the listing which this work makes.
    pub fn of_listing(work: &ListWork) -> PageName {
        let ListWork { generation, site, ref path, edition: _, order, form } = *work;
        PageName::Listing { generation, site, path: Arc::clone(path), order, form }
    }

    /// Bytes of memory that it is, beside itself.
    fn len(&self) -> usize {
        match self {
            PageName::Listing { path, .. } => path.len(),
        }
    }
}

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
}

impl Page {
    /// What it weighs under this name, but for what every entry costs.
    pub(super) fn weight(&self, name: &PageName) -> u64 {
        let bytes = match self {
            Page::Listing { listing, .. } => listing.page.len(),
        };
        (bytes + name.len()) as u64
    }
}

/// A page may fill this part of its cache, or of its shard of one that is shared: a larger one would push out too much else.
pub const PART_MAX: u64 = 4;

/// A directory's state tells what names there are, not how large the files are, nor of when. So a listing is made anew at the
/// age of so many times `revalidate`, 10 s by default, though its directory is as it was.
const LISTING_AGE: u32 = 10;

/// For how long a listing may be believed whose directory has not changed.
pub(super) fn listing_age_max(revalidate: Duration) -> Duration {
    revalidate.saturating_mul(LISTING_AGE)
}
