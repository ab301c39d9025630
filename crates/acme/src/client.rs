//! The HTTP client for requests to the CA: every request has a timeout, every response a maximum size, and a
//! `Retry-After` of a refusal is kept, which the ACME library does not report.

use std::error::Error as StdError;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

/// Maximum time until a response is complete.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum bytes of a response. A chain has some kilobytes.
const RESPONSE_MAX: usize = 1 << 20;

/// Maximum delay that a CA may request: its longest rate limits last for a week.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 86_400);

/// The client.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>,
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl Http {
    /// Creates a client that trusts the certificates in this file, or those of the system.
    ///
    /// # Errors
    /// A message with a remedy: there are none.
    pub(crate) fn new(directory_ca: Option<&Path>) -> Result<Http, String> {
        let mut roots = RootCertStore::empty();
        match directory_ca {
            Some(path) => {
                let shown = path.display();
                let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
                let read = read.map_err(|error| format!("cannot read `directory_ca` {shown}: {error}"))?;
                let (added, _) = roots.add_parsable_certificates(read);
                if added == 0 {
                    return Err(format!("`directory_ca` {shown} contains no certificate; it must be PEM"));
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    let help = "install the Debian package ca-certificates, or set `directory_ca`";
                    return Err(format!("the system has no root certificates: {help}"));
                }
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("cannot set up TLS: {error}"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1().build();
        Ok(Http { client: Client::builder(TokioExecutor::new()).build(connector), retry_after: Arc::default() })
    }

    /// Takes the delay that the CA has requested with its last refusal, if it has.
    pub(crate) fn take_retry_after(&self) -> Option<Duration> {
        self.retry_after.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (response, retry_after) = (self.client.request(request), Arc::clone(&self.retry_after));
        Box::pin(async move {
            let whole = async {
                let (parts, body) = response.await.map_err(|error| Error::Other(Box::new(error)))?.into_parts();
                if matches!(parts.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
                    *retry_after.lock().unwrap_or_else(PoisonError::into_inner) =
                        delay(&parts.headers, SystemTime::now());
                }
                let body = Limited::new(body, RESPONSE_MAX).collect().await.map_err(Error::Other)?.to_bytes();
                Ok(BytesResponse { parts, body: Box::new(body) })
            };
            let late = |_| Error::Other(format!("no response within {} s", RESPONSE_TIMEOUT.as_secs()).into());
            timeout(RESPONSE_TIMEOUT, whole).await.map_err(late)?
        })
    }
}

/// The delay that `Retry-After` requests (RFC 9110, 10.2.3): seconds, or a date.
fn delay(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let delay = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(delay.min(RETRY_AFTER_MAX))
}

/// Formats an error with its causes, which the errors of HTTP libraries omit.
pub(crate) fn shown(error: &dyn StdError) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text += &format!(": {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let check = |value: &str, expected: Option<u64>| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().expect("a header value"))]);
            assert_eq!(delay(&headers, now), expected.map(Duration::from_secs), "{value}");
        };
        check("120", Some(120));
        check(" 0 ", Some(0));
        check("Sun, 06 Nov 1994 08:51:37 GMT", Some(120));
        check("Sun, 06 Nov 1994 08:00:00 GMT", Some(0));
        check("99999999999", Some(7 * 86_400));
        check("soon", None);
        assert_eq!(delay(&HeaderMap::new(), now), None);
    }
}
