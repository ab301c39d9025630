//! The optimisations of the papers, each a switch, so that its worth can be measured.
//!
//! What a switch does is said with its key, and where it takes effect the code names it again. Off, the server does what the
//! server of the paper did without it, which is slower and never wrong.

use std::time::Duration;

use amped_core::cache::Budgets;
use amped_units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Optimisations of the papers, as switches for experiments; also `--without` and `--with`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Optimise {
    /// Keep what names mean (Flash 5.2); off: a lookup per request
    pub path_cache: bool,
    /// Keep whole response headers (Flash 5.3); off: written per response
    pub header_cache: bool,
    /// Keep contents and open files (Flash 5.4, Hu 5.2); off: open and read per request
    pub content_cache: bool,
    /// Trust a file's state for `revalidate` (Hu 5.2); off: stat per request
    pub file_state_cache: bool,
    /// Keep decoded targets (Hu 5.4), which costs more than it saves
    pub uri_cache: bool,
    /// Format date, time and status once (Hu 5.3.2); off: per response and log line
    pub string_caches: bool,
    /// Buffer log lines (Hu 5.3.3); off: a write(2) per line, in the event loop
    pub delayed_log: bool,
    /// Cache host names (Hu 5.3.1); off: a query per line
    pub dns_cache: bool,
    /// Compute entity tag and media type when a file is opened (Hu 6); off: per response
    pub ready_headers: bool,
    /// Keep listings and application responses with `cache` (Hu 5.4); off: made per request
    pub made_pages: bool,
    /// Send from the page cache without a copy; off: read and send
    pub sendfile: bool,
    /// Pad response headers to a multiple of 32 bytes (Flash 5.5)
    pub header_alignment: bool,
}

impl Default for Optimise {
    /// All but those that cost more here than they save.
    fn default() -> Optimise {
        Optimise {
            path_cache: true,
            header_cache: true,
            content_cache: true,
            file_state_cache: true,
            uri_cache: false,
            string_caches: true,
            delayed_log: true,
            dns_cache: true,
            ready_headers: true,
            made_pages: true,
            sendfile: true,
            header_alignment: false,
        }
    }
}

impl Optimise {
    /// The names of the switches.
    pub(super) fn names() -> Vec<String> {
        toml::Table::try_from(Optimise::default()).map(|table| table.keys().cloned().collect()).unwrap_or_default()
    }

    /// What the caches may hold, with those that are off left empty.
    #[must_use]
    pub fn budgets(&self, mut budgets: Budgets) -> Budgets {
        if !self.uri_cache {
            budgets.uri_entries = 0;
        }
        if !self.path_cache {
            // A choice is one among what a name means.
            (budgets.path_entries, budgets.negotiation_entries) = (0, 0);
        }
        if !self.header_cache {
            budgets.head_bytes = Bytes(0);
        }
        if !self.content_cache {
            (budgets.content_bytes, budgets.descriptors) = (Bytes(0), 0);
        }
        if !self.file_state_cache {
            budgets.revalidate = Duration::ZERO;
        }
        budgets.ready_headers = self.ready_headers;
        budgets.made_pages = self.made_pages;
        budgets
    }
}
