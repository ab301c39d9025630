//! The optimisations of the papers, each with a switch, so that its effect can be measured.
//!
//! The comment of each key describes its switch, and the code names it again where it takes effect. With a switch off,
//! the server works as that of the paper did without the optimisation: slower, with the same responses.

use std::time::Duration;

use amped_core::cache::Budgets;
use amped_units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

/// Optimisations of the papers, as switches for experiments; also `--without` and `--with`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Optimise {
    /// Cache name lookups (Flash 5.2); off: a lookup per request
    #[default(true)]
    pub path_cache: bool,
    /// Cache response headers (Flash 5.3); off: formatted per response
    #[default(true)]
    pub header_cache: bool,
    /// Cache contents and open files (Flash 5.4, Hu 5.2); off: open and read per request
    #[default(true)]
    pub content_cache: bool,
    /// Cache file states for `revalidate` (Hu 5.2); off: stat per request
    #[default(true)]
    pub file_state_cache: bool,
    /// Cache decoded targets (Hu 5.4), which costs more than it saves
    pub uri_cache: bool,
    /// Format date, time and status once (Hu 5.3.2); off: per response and log line
    #[default(true)]
    pub string_caches: bool,
    /// Buffer log lines (Hu 5.3.3); off: a write(2) per line, in the event loop
    #[default(true)]
    pub delayed_log: bool,
    /// Cache host names (Hu 5.3.1); off: a query per line
    #[default(true)]
    pub dns_cache: bool,
    /// Compute entity tag and media type when a file is opened (Hu 6); off: per response
    #[default(true)]
    pub ready_headers: bool,
    /// Cache listings, and application responses with `cache` (Hu 5.4); off: generated per request
    #[default(true)]
    pub made_pages: bool,
    /// Send from the page cache without a copy; off: read and send
    #[default(true)]
    pub sendfile: bool,
    /// Wait in epoll in mt and mp; off: in accept(2), recv(2) and send(2), as in Flash 3.1 and 3.2
    ///
    /// When off, the server serves only files, at one address, without TLS. Changing it requires a restart.
    #[default(true)]
    pub pool_epoll: bool,
    /// Pad response headers to a multiple of 32 bytes (Flash 5.5)
    pub header_alignment: bool,
}

impl Optimise {
    /// The names of the switches.
    pub(super) fn names() -> Vec<String> {
        toml::Table::try_from(Optimise::default()).map(|table| table.keys().cloned().collect()).unwrap_or_default()
    }

    /// Returns the cache budgets, zero for caches that are switched off.
    #[must_use]
    pub fn budgets(&self, mut budgets: Budgets) -> Budgets {
        if !self.uri_cache {
            budgets.uri_entries = 0;
        }
        if !self.path_cache {
            // A choice is made among the variants of a cached name.
            (budgets.path_entries, budgets.negotiation_entries) = (0, 0);
        }
        if !self.header_cache {
            budgets.head_bytes = Bytes(0);
        }
        if !self.content_cache {
            (budgets.content_bytes, budgets.descriptors, budgets.compressed_bytes) = (Bytes(0), 0, Bytes(0));
        }
        if !self.file_state_cache {
            budgets.revalidate = Duration::ZERO;
        }
        budgets.ready_headers = self.ready_headers;
        budgets.made_pages = self.made_pages;
        budgets
    }
}
