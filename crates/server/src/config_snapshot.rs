//! The current configuration: the settings, and everything opened for them.
//!
//! `serve` creates one at the start and one at each reload, in the main thread, where blocking is harmless. Event loops
//! share it and replace it as a whole, so that a loop never sees half of a new configuration.

use std::sync::Arc;

use amped_core::cache::SharedCaches;
use amped_core::shared_state::{HttpChallenges, RequestLimiter};

use crate::access_log::Writer;
use crate::app::{AppContext, Apps};
use crate::challenges::Challenges;
use crate::client_counts::ClientCounts;
use crate::config::Settings;
use crate::config::settings::form;
use crate::counters::Snapshot;
use crate::disk::Disk;
use crate::notes::Notes;
use crate::object_store::ObjectStore;
use crate::open_file::OpenFile;
use crate::passwords::verifier::Verifier;
use crate::request_limits::RequestLimits;
use crate::shared_cache::SharedCache;
use crate::tls_config::TlsConfig;

/// The current configuration: the settings, and everything opened for them.
#[derive(Debug)]
pub struct ConfigSnapshot {
    /// The settings.
    pub settings: Settings,
    /// The document roots.
    pub disk: Arc<Disk>,
    /// The object store, if a root is in it.
    pub store: Option<Arc<ObjectStore>>,
    /// Verifies passwords, if a site requires any.
    pub verifier: Option<Verifier>,
    /// The buckets of clients, if a site limits requests.
    pub limiter: Option<Arc<RequestLimits>>,
    /// What each client has open, if that is limited.
    pub client_counts: Option<Arc<ClientCounts>>,
    /// Maximum connections of one loop.
    pub connections_max: usize,
    /// The caches, if threads share them.
    pub caches: Option<SharedCaches<OpenFile>>,
    /// The cache that processes share, if they do.
    pub shared: Option<Arc<SharedCache>>,
    /// The applications.
    pub apps: Apps,
    /// The parameters of new TLS sessions, if an address has TLS.
    pub tls: Option<TlsConfig>,
    /// The answers to ACME challenges, if the server obtains certificates. They outlive a configuration.
    pub challenges: Option<Arc<Challenges>>,
}

impl ConfigSnapshot {
    /// Returns whether the loops form a pool, with one connection each and shared listeners.
    pub fn pooled(&self) -> bool {
        form(self.settings.architecture).pool
    }

    /// Returns whether the loops of a pool wait in accept(2), recv(2) and send(2) instead of epoll.
    pub fn blocks(&self) -> bool {
        self.settings.blocks()
    }

    /// Returns the answers to ACME challenges as a loop needs them.
    pub fn http_challenges(&self) -> Option<Arc<dyn HttpChallenges>> {
        self.challenges.clone().map(|challenges| challenges as _)
    }

    /// Returns the buckets of clients as a loop needs them.
    pub fn request_limiter(&self) -> Option<Arc<dyn RequestLimiter>> {
        self.limiter.clone().map(|limiter| limiter as _)
    }

    /// Returns the parts that applications need.
    pub fn app_context(&self) -> AppContext<'_> {
        let (sites, shares_caches) = (&*self.settings.sites, self.caches.is_some());
        AppContext { apps: &self.apps, sites, disk: &self.disk, shares_caches }
    }

    /// Sums the statistics of loops, and adds those of the process.
    pub fn sum_up(&self, snapshots: &[Snapshot], log: Option<&Writer>) -> Snapshot {
        let mut sum = Snapshot::default()
            .with_log(log.map(Writer::counts))
            .with_watch(self.disk.notes().map(Notes::counts))
            .with_store(self.store.as_ref().map(|store| store.counts()));
        snapshots.iter().for_each(|snapshot| sum += snapshot);
        if let Some(shared) = &self.caches {
            sum += &Snapshot { caches: shared.figures(), ..Snapshot::default() };
        }
        sum.mapped = self.disk.mapped().counts();
        sum.model = self.disk.residency().counts();
        sum
    }
}
