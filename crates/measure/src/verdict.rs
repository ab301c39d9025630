//! What a run is worth: whether its figures speak of the server, or of the instrument.
//!
//! A generator that was late, out of ports or out of CPU has measured itself. The verdict is printed with every result and
//! is the exit status of the program, so that nobody takes such a figure for a server's ceiling.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far the figures of a run can be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Validity {
    /// The instrument did what was asked of it: the figures are the server's.
    #[default]
    Valid,
    /// The instrument reached its own end before the server did: a rate is a lower bound.
    AtLeast,
    /// Others used the machine meanwhile: the figures may be theirs.
    Disturbed,
    /// The instrument did not do what was asked of it: the figures are its own.
    ClientBound,
    /// The network between client and server, where an instrument played it, was not the one asked for:
    /// the figures are that instrument's.
    PathBound,
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Validity::Valid => "valid",
            Validity::AtLeast => "at-least",
            Validity::Disturbed => "disturbed",
            Validity::ClientBound => "client-bound",
            Validity::PathBound => "path-bound",
        })
    }
}

/// How a run ended, with the evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// How far the figures can be believed.
    pub validity: Validity,
    /// Why they are no better than that, a line each; empty for [`Validity::Valid`].
    pub evidence: Vec<String>,
    /// What was demanded of the result and did not hold, a line each.
    pub broken: Vec<String>,
}

impl Verdict {
    /// One that nothing speaks against.
    pub fn valid() -> Verdict {
        Verdict::default()
    }

    /// Something speaks against it. The worst worth counts, and all evidence is kept.
    pub fn weaken(&mut self, validity: Validity, evidence: impl Into<String>) {
        if validity as u8 > self.validity as u8 {
            self.validity = validity;
        }
        self.evidence.push(evidence.into());
    }

    /// What the program ends with: 0, or 1 for a run that is an instrument's own or may be others', or a check that did not hold.
    pub fn exit_status(&self) -> u8 {
        u8::from(
            matches!(self.validity, Validity::Disturbed | Validity::ClientBound | Validity::PathBound)
                || !self.broken.is_empty(),
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.validity)?;
        for (at, line) in self.evidence.iter().enumerate() {
            write!(f, "{}{line}", if at == 0 { ": " } else { "; " })?;
        }
        self.broken.iter().try_for_each(|line| write!(f, "\nnot as it must be: {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_validity_counts_and_all_reasons_are_listed() {
        let mut verdict = Verdict::valid();
        assert_eq!((verdict.exit_status(), verdict.to_string()), (0, "valid".to_owned()));
        verdict.weaken(Validity::AtLeast, "a");
        assert_eq!((verdict.exit_status(), verdict.to_string()), (0, "at-least: a".to_owned()));
        verdict.weaken(Validity::ClientBound, "b");
        verdict.weaken(Validity::AtLeast, "c");
        assert_eq!((verdict.exit_status(), verdict.to_string()), (1, "client-bound: a; b; c".to_owned()));
        let broken = Verdict { broken: vec!["p99>1ms".to_owned()], ..Verdict::valid() };
        assert_eq!((broken.exit_status(), broken.to_string()), (1, "valid\nnot as it must be: p99>1ms".to_owned()));
    }
}
