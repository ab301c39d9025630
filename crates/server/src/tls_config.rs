//! How TLS sessions begin: protocol versions, certificates by name, tickets.
//!
//! Each configuration has its own; sessions that have begun keep theirs. The server supports TLS 1.2 and 1.3 with forward
//! secrecy and authenticated encryption, as Mozilla's *intermediate* profile demands, and nothing that is weaker, so none
//! of it is configurable.

use std::fmt;
use std::sync::Arc;

use amped_core::site::Sites;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SignatureAlgorithm};

use crate::config::Settings;
use crate::tickets::Tickets;
use crate::transport::tls::Tls;

/// How TLS sessions begin.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    config: Arc<ServerConfig>,
}

impl TlsConfig {
    /// Creates it for these settings; `None` if no address has TLS. Tickets of the previous configuration stay valid.
    ///
    /// # Errors
    /// When the system has no random bytes for the keys of tickets.
    pub fn new(settings: &Settings, old: Option<&TlsConfig>) -> Result<Option<TlsConfig>, String> {
        if !settings.has_tls() {
            return Ok(None);
        }
        let cannot = |error: rustls::Error| format!("cannot set up TLS: {error}");
        let ticketer: Arc<dyn ProducesTickets> = match old {
            Some(old) => Arc::clone(&old.config.ticketer),
            None => Arc::new(Tickets::new().map_err(|_| "cannot set up TLS: the system has no random bytes")?),
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(cannot)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Certificates::new(settings)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ticketer = ticketer;
        // Sessions are resumed by tickets, which all loops and processes understand.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Some(TlsConfig { config: Arc::new(config) }))
    }

    /// Begins a session with a client that has just connected.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn session(&self) -> Result<Tls, rustls::Error> {
        Tls::new(&self.config)
    }
}

/// The certificates by site, and which of them a client gets.
struct Certificates {
    sites: Arc<Sites>,
    /// In the order of preference: `keys[site.number]`.
    keys: Vec<Vec<Arc<CertifiedKey>>>,
}

impl Certificates {
    fn new(settings: &Settings) -> Certificates {
        let mut keys = settings.certificates.clone();
        for keys in &mut keys {
            // ECDSA signs in a tenth of the time of RSA.
            keys.sort_by_key(|key| key.key.algorithm() != SignatureAlgorithm::ECDSA);
        }
        Certificates { sites: Arc::clone(&settings.sites), keys }
    }
}

impl ResolvesServerCert for Certificates {
    /// Returns the site's first certificate whose signatures the client accepts. A client that names no site, or an unknown
    /// one, gets that of the default site; a site without one gets it too.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let site = hello.server_name().map_or(self.sites.first(), |name| self.sites.for_host(name.as_bytes()));
        let own = self.keys.get(usize::from(site.number)).filter(|keys| !keys.is_empty());
        let keys = own.or_else(|| self.keys.iter().find(|keys| !keys.is_empty()))?;
        keys.iter().find(|key| key.key.choose_scheme(hello.signature_schemes()).is_some()).cloned()
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}
