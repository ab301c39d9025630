//! Why an order failed, and how it is repeated.

use amped_acme_protocol::Reason;
use instant_acme::{Error, Problem};

use crate::client::shown;

/// Why an order failed, for the operator.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    pub(crate) message: String,
    pub(crate) retry: Retry,
}

/// How a failed order is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// After a delay.
    Later,
    /// At once: only the nonces were wrong, which says nothing about the order (RFC 8555, 6.5).
    Now,
    /// At once, with a new account: the CA does not know this one.
    WithNewAccount,
}

impl Failure {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Failure {
        Failure { reason, message: message.into(), retry: Retry::Later }
    }

    pub(crate) fn internal(error: rcgen::Error) -> Failure {
        Failure::new(Reason::Internal, format!("cannot create a key or certificate: {error}"))
    }

    pub(crate) fn of_problem(problem: &Problem, default: Reason) -> Failure {
        let kind = problem.r#type.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
        let reason = match kind {
            Some("rateLimited") => Reason::RateLimited,
            // RFC 8555, 6.7: of the validation of a challenge.
            Some("caa" | "connection" | "dns" | "incorrectResponse" | "tls" | "unauthorized") => Reason::Validation,
            Some("serverInternal") => Reason::Unreachable,
            _ => default,
        };
        let detail = problem.detail.as_deref().unwrap_or("no details");
        let mut message = format!("{detail} ({})", kind.or(problem.r#type.as_deref()).unwrap_or("unknown error"));
        for part in &problem.subproblems {
            message += &format!("; {part}");
        }
        let retry = match kind {
            Some("badNonce") => Retry::Now,
            Some("accountDoesNotExist") => Retry::WithNewAccount,
            _ => Retry::Later,
        };
        Failure { reason, message, retry }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match &error {
            Error::Api(problem) => Failure::of_problem(problem, Reason::Refused),
            Error::Unsupported(_) => Failure::new(Reason::Refused, shown(&error)),
            Error::Crypto | Error::KeyRejected => Failure::new(Reason::Internal, shown(&error)),
            // No answer, or one that is not ACME's, such as the error page of a proxy.
            _ => Failure::new(Reason::Unreachable, shown(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_of_ca_have_reasons() {
        let check = |kind: &str, default: Reason, expected: Reason| {
            let problem = Problem {
                r#type: Some(format!("urn:ietf:params:acme:error:{kind}")),
                detail: Some("no".to_owned()),
                status: Some(400),
                subproblems: Vec::new(),
            };
            let failure = Failure::of_problem(&problem, default);
            assert_eq!((failure.reason, failure.message), (expected, format!("no ({kind})")));
        };
        check("rateLimited", Reason::Refused, Reason::RateLimited);
        check("dns", Reason::Refused, Reason::Validation);
        check("serverInternal", Reason::Refused, Reason::Unreachable);
        check("rejectedIdentifier", Reason::Refused, Reason::Refused);
        check("malformed", Reason::Validation, Reason::Validation);
    }
}
