//! The verdict on a run: whether its figures describe the server or the instrument.
//!
//! A load generator that was late, out of ports or out of CPU has measured itself. The verdict is printed with every
//! result and is the program's exit status, so that such a figure is not taken for a server's capacity.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The validity of a run's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Validity {
    /// The instrument kept up: the figures describe the server.
    #[default]
    Valid,
    /// The instrument saturated before the server did: rates are lower bounds.
    AtLeast,
    /// Other processes used the machine during the run: they may have affected the results.
    Disturbed,
    /// The instrument did not keep up: the figures describe the load generator.
    ClientBound,
    /// The emulated network between client and server was not the
    /// one that was configured: the figures describe the emulator.
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

/// The verdict on a run, with the evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The validity of the figures.
    pub validity: Validity,
    /// Why the validity is not better, one line each; empty for [`Validity::Valid`].
    pub evidence: Vec<String>,
    /// Conditions on the result that did not hold, one line each.
    pub broken: Vec<String>,
}

impl Verdict {
    /// A verdict without objections.
    pub fn valid() -> Verdict {
        Verdict::default()
    }

    /// Adds an objection. The worst validity is used, and all evidence is kept.
    pub fn weaken(&mut self, validity: Validity, evidence: impl Into<String>) {
        if validity as u8 > self.validity as u8 {
            self.validity = validity;
        }
        self.evidence.push(evidence.into());
    }

    /// The exit status of the program: 0, or 1 if the figures describe the
    /// instrument or may be disturbed, or if a condition did not hold.
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
        self.broken.iter().try_for_each(|line| write!(f, "\ncheck failed: {line}"))
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
        assert_eq!((broken.exit_status(), broken.to_string()), (1, "valid\ncheck failed: p99>1ms".to_owned()));
    }
}
