//! One order, from the request to the CA until the certificate is there (RFC 8555, 7.4).
//!
//! All challenges of an order are published at once, and every loop of the server answers them before the CA is asked to
//! validate the first. `manager` withdraws them at the end, however it ends.

use std::time::Duration;

use amped_acme_protocol::{Challenge, ChallengeKind, Reason, Wanted};
use instant_acme::{
    Account, AuthorizationStatus, ChallengeHandle, ChallengeType, Error, Identifier, NewOrder, Order, OrderStatus,
    Problem, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};

use crate::failure::Failure;
use crate::link::Link;
use crate::store::Stored;

/// How long a CA may take to validate an order, and then to issue its certificate.
const POLL: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));

/// What is the same for all orders.
pub(crate) struct Terms<'a> {
    pub(crate) account: &'a Account,
    pub(crate) challenge: ChallengeKind,
    pub(crate) profile: Option<&'a str>,
    pub(crate) link: &'a Link,
}

/// Obtains a certificate; returns its key and its chain (PEM). `replaced`: the one that it replaces, if the CA gives
/// renewal information.
pub(crate) async fn obtain(terms: &Terms<'_>, wanted: &Wanted, replaced: Option<&Stored>) -> Result<String, Failure> {
    let mut order = begin(terms, wanted, replaced).await?;
    let challenges = challenges(&mut order, terms.challenge).await?;
    if !challenges.is_empty() {
        terms.link.publish(challenges).await?;
        set_ready(&mut order, terms.challenge).await?;
    }
    // All names may still be authorized by an earlier order.
    if order.state().status != OrderStatus::Ready {
        match order.poll_ready(&POLL).await {
            Ok(OrderStatus::Ready) => {}
            Ok(_) => return Err(why_invalid(&mut order, None).await),
            Err(Error::Api(problem)) => return Err(why_invalid(&mut order, Some(problem)).await),
            Err(error) => return Err(error.into()),
        }
    }
    // A new key for each certificate, so that one that leaked is not used for ever.
    let key = KeyPair::generate().map_err(Failure::internal)?;
    let mut params = CertificateParams::new(wanted.names.clone()).map_err(Failure::internal)?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).map_err(Failure::internal)?;
    order.finalize_csr(request.der()).await?;
    Ok(key.serialize_pem() + &order.poll_certificate(&POLL).await?)
}

async fn begin(terms: &Terms<'_>, wanted: &Wanted, replaced: Option<&Stored>) -> Result<Order, Failure> {
    let names: Vec<Identifier> = wanted.names.iter().cloned().map(Identifier::Dns).collect();
    let order = || match terms.profile {
        Some(profile) => NewOrder::new(&names).profile(profile),
        None => NewOrder::new(&names),
    };
    if let Some(identifier) = replaced.and_then(Stored::identifier) {
        match terms.account.new_order(&order().replaces(identifier)).await {
            // RFC 9773, 5: it was replaced already, or the CA does not know it. It is only a hint, so whatever is wrong
            // with it, an order without it decides.
            Err(Error::Api(Problem { status: Some(400 | 404 | 409), .. }) | Error::Other(_)) => {}
            other => return Ok(other?),
        }
    }
    Ok(terms.account.new_order(&order()).await?)
}

/// Returns the answers to the challenges of all names whose control is not proved yet.
async fn challenges(order: &mut Order, kind: ChallengeKind) -> Result<Vec<Challenge>, Failure> {
    let mut challenges = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let name = authorization.identifier().to_string();
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            status => {
                return Err(Failure::new(Reason::Refused, format!("the authorization of {name} is {status:?}")));
            }
        }
        let Some(challenge) = authorization.challenge(type_of(kind)) else {
            return Err(Failure::new(Reason::Refused, format!("the CA does not offer {kind} for {name}")));
        };
        challenges.push(answer(&challenge, &name, kind)?);
    }
    Ok(challenges)
}

/// Tells the CA to validate the challenges.
async fn set_ready(order: &mut Order, kind: ChallengeKind) -> Result<(), Failure> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Pending
            && let Some(mut challenge) = authorization.challenge(type_of(kind))
        {
            challenge.set_ready().await?;
        }
    }
    Ok(())
}

fn type_of(kind: ChallengeKind) -> ChallengeType {
    match kind {
        ChallengeKind::Http01 => ChallengeType::Http01,
        ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
    }
}

fn answer(challenge: &ChallengeHandle<'_>, name: &str, kind: ChallengeKind) -> Result<Challenge, Failure> {
    let authorization = challenge.key_authorization();
    match kind {
        ChallengeKind::Http01 => {
            let (token, key_authorization) = (challenge.token.clone(), authorization.as_str().to_owned());
            Ok(Challenge::Http01 { token, key_authorization })
        }
        // RFC 8737, 3: a self-signed certificate with the digest in an extension.
        ChallengeKind::TlsAlpn01 => {
            let key = KeyPair::generate().map_err(Failure::internal)?;
            let mut params = CertificateParams::new([name.to_owned()]).map_err(Failure::internal)?;
            params.distinguished_name = DistinguishedName::new();
            params.custom_extensions = vec![CustomExtension::new_acme_identifier(authorization.digest().as_ref())];
            let certificate = params.self_signed(&key).map_err(Failure::internal)?;
            let name = name.to_ascii_lowercase();
            Ok(Challenge::TlsAlpn01 { name, certificate: certificate.der().to_vec(), key: key.serialize_der() })
        }
    }
}

/// Returns what the CA says about the challenges of an order that has failed; `otherwise`: what it says about the order.
async fn why_invalid(order: &mut Order, otherwise: Option<Problem>) -> Failure {
    let mut failures = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else { continue };
        for problem in state.challenges.iter().filter_map(|challenge| challenge.error.as_ref()) {
            let failure = Failure::of_problem(problem, Reason::Validation);
            failures.push(Failure { message: format!("{name}: {}", failure.message), ..failure });
        }
    }
    let join = |one: Failure, other: Failure| Failure { message: format!("{}; {}", one.message, other.message), ..one };
    failures.into_iter().reduce(join).unwrap_or_else(|| match &otherwise {
        Some(problem) => Failure::of_problem(problem, Reason::Validation),
        None => Failure::new(Reason::Validation, "the CA has rejected the order and gives no reason"),
    })
}
