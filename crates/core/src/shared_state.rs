//! The state shared by all connections of a loop: configuration, caches, clock, spare records, counters.
//!
//! A connection borrows it for the length of one call, so AMPED and SPED need no locks for it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use amped_http::h2::fields::FieldList;
use amped_http::h2::head::FlatHead;
use serde::{Deserialize, Serialize};

use crate::cache::{Budgets, Caches, SharedCaches};
use crate::compress::STREAMS_MAX;
use crate::limits::Limits;
use crate::record::{Records, RequestPermit};
use crate::reply::{ReadyErrors, WallClock};
use crate::request_id::IdSource;
use crate::request_limit::{Admission, RequestLimit, Requester};
use crate::site::Sites;

/// The answers to challenges by which a CA verifies that this server controls a name (ACME; RFC 8555, 8.3).
pub trait HttpChallenges: Send + Sync {
    /// Returns the body for this token; `None` if it is unknown.
    fn key_authorization(&self, token: &[u8]) -> Option<Vec<u8>>;
}

/// The buckets of clients from which limits of requests take, for all loops of a server together, and their requests
/// under way.
pub trait RequestLimiter: fmt::Debug + Send + Sync {
    /// Takes a request of a client from its bucket of this limit; clients without an address share one.
    fn take(&self, limit: &RequestLimit, client: Requester<'_>) -> Admission;

    /// Counts another request of a client under this limit; `None` if as many as this are under way.
    fn begin(&self, limit: &RequestLimit, max: usize, client: Requester<'_>) -> Option<RequestPermit>;
}

/// The shared state of one loop.
pub struct SharedState<F> {
    /// The sites, shared with the other loops.
    pub sites: Arc<Sites>,
    /// The limits of a client.
    pub limits: Limits,
    /// The answers to challenges of a CA, if the server obtains certificates.
    pub challenges: Option<Arc<dyn HttpChallenges>>,
    /// The buckets of clients, if a site limits requests.
    pub limiter: Option<Arc<dyn RequestLimiter>>,
    /// The caches.
    pub caches: Caches<F>,
    /// The time of day, updated by the driver once a second.
    pub wall: WallClock,
    /// Records for reuse.
    pub records: Records,
    /// Counters.
    pub counts: Counts,
    /// Timestamp of the request head, for a request that is timed.
    pub lap: PhaseTimes,
    /// Whether connections may speak HTTP/2.
    pub http2: bool,
    /// Whether another process serves new connections, so that clients should use one of these.
    pub is_draining: bool,
    /// The other end of the connection that is handled, if [`Sites::need_clients`].
    pub peer: Option<IpAddr>,
    /// The verified subject of its certificate, if [`Sites::need_subjects`].
    pub subject: Option<Arc<str>>,
    /// Makes the IDs of requests.
    pub ids: IdSource,
    /// Scratch space for cleaning paths.
    pub(crate) scratch: Vec<u8>,
    /// Scratch space for the decoded head of a request of HTTP/2.
    pub(crate) fields: FieldList,
    pub(crate) flat_head: FlatHead,
    /// One reference more than responses of applications that are being compressed.
    pub(crate) streams: Arc<()>,
    /// One reference more than pages that are being revalidated in the background.
    pub(crate) revalidations: Arc<()>,
    /// Prepared error responses.
    pub(crate) errors: ReadyErrors,
}

/// Maximum pages that a loop revalidates in the background at a time. Beyond that a page stays stale until a later request.
const REVALIDATIONS_MAX: usize = 16;

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests whose head was parsed.
    pub requests: u64,
    /// Requests that were malformed or timed out.
    pub bad_requests: u64,
    /// Requests served from the caches alone.
    pub hits: u64,
    /// Requests served from an expired entry, because revalidation would have waited for the disk.
    pub stale_hits: u64,
    /// Lookups on the disk side. One request may cause several: its name, then a listing or an error page.
    pub disk_questions: u64,
    /// Requests rejected with 503 because the disk queue was full or the disk timed out.
    pub shed: u64,
    /// Requests refused with 429 because their client exceeded a limit of requests.
    pub limited: u64,
    /// Requests that waited until such a limit permitted them.
    pub delayed: u64,
    /// Lookups of generated pages (listings and responses of applications) that found one.
    pub page_hits: u64,
    /// Lookups of generated pages that found none.
    pub page_misses: u64,
    /// Requests that waited for a page already being generated for another request.
    pub page_collapsed: u64,
    /// Requests answered with a page that was not fresh, before it was revalidated.
    pub pages_stale_before_revalidation: u64,
    /// Requests answered with a page that was not fresh, in place of an error of the application.
    pub pages_stale_for_error: u64,
    /// Revalidations of pages in the background.
    pub page_revalidations: u64,
    /// Pages that applications have confirmed (304).
    pub pages_confirmed: u64,
    /// Responses of applications that were sent uncompressed, because as many as possible were being compressed.
    pub streams_refused: u64,
    /// What is particular to HTTP/2.
    pub http2: Http2Counts,
}

/// Counters of HTTP/2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Http2Counts {
    /// Connections that began.
    pub connections: u64,
    /// Streams opened by clients, including refused ones.
    pub streams: u64,
    /// Streams that clients have reset before their responses were complete.
    pub cancelled: u64,
    /// Streams reset because of an error, by the client or the server.
    pub failed: u64,
    /// Streams refused because too many were open.
    pub refused: u64,
    /// Connections closed because of an error of the client.
    pub connection_errors: u64,
    /// Connections closed because the client had spent its budget of resets and empty frames.
    pub floods: u64,
}

/// The timestamp at which a request's head was parsed, the one phase boundary inside a call. The core has no clock; the
/// caller that times a request supplies one.
#[derive(Clone, Copy, Debug, Default)]
pub struct PhaseTimes {
    /// Reads a clock, in nanoseconds since an arbitrary start.
    pub clock: Option<fn() -> u64>,
    /// Its reading when the first head was parsed since this was last taken.
    pub head_ns: Option<u64>,
}

impl PhaseTimes {
    pub(crate) fn note_head(&mut self) {
        if let (Some(clock), None) = (self.clock, self.head_ns) {
            self.head_ns = Some(clock());
        }
    }
}

impl<F> SharedState<F> {
    /// Creates a shared state with empty caches.
    pub fn new(sites: Arc<Sites>, limits: Limits, budgets: Budgets, wall: WallClock) -> SharedState<F> {
        SharedState::with_caches(sites, limits, Caches::new(budgets), wall)
    }

    /// Creates a shared state with these caches.
    pub fn with_caches(sites: Arc<Sites>, limits: Limits, caches: Caches<F>, wall: WallClock) -> SharedState<F> {
        SharedState {
            sites,
            limits,
            challenges: None,
            limiter: None,
            caches,
            wall,
            records: Records::default(),
            counts: Counts::default(),
            lap: PhaseTimes::default(),
            http2: true,
            is_draining: false,
            peer: None,
            subject: None,
            ids: IdSource::default(),
            scratch: Vec::new(),
            fields: FieldList::new(0, 0),
            flat_head: FlatHead::new(),
            streams: Arc::default(),
            revalidations: Arc::default(),
            errors: ReadyErrors::default(),
        }
    }

    /// Takes a place among the responses of applications that are being compressed, if there is one.
    pub(crate) fn take_stream(&mut self) -> Option<Arc<()>> {
        let is_free = Arc::strong_count(&self.streams) <= STREAMS_MAX;
        self.counts.streams_refused += u64::from(!is_free);
        is_free.then(|| Arc::clone(&self.streams))
    }

    /// Takes a place among the pages that are being revalidated in the background, if there is one.
    pub(crate) fn take_revalidation(&mut self) -> Option<Arc<()>> {
        (Arc::strong_count(&self.revalidations) <= REVALIDATIONS_MAX).then(|| Arc::clone(&self.revalidations))
    }

    /// Switches to another configuration. If the budgets change, the counters of the caches restart from zero; shared
    /// caches are replaced by those made for the new configuration.
    pub fn renew(&mut self, sites: Arc<Sites>, limits: Limits, budgets: Budgets, shared: Option<&SharedCaches<F>>) {
        let generation = self.caches.generation().wrapping_add(1);
        if let Some(shared) = shared {
            self.caches = Caches::shared(shared, budgets, generation);
        } else {
            if self.caches.budgets != budgets {
                self.caches = Caches::new(budgets);
            }
            self.caches.renew(generation);
        }
        self.sites = sites;
        self.limits = limits;
    }
}
