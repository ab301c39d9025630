//! All samples of a run of an exhibit, and what they come to.

use amped_measure::stats::Summary;
use serde::{Deserialize, Serialize};

use super::exhibit::{Exhibit, Point};
use super::host::Host;
use super::sample::{Metric, Sample};

/// The arm that is the first one once more.
pub(super) const AGAIN: &str = "the same again";

/// All that is known of a run of an exhibit.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) quick: bool,
    pub(super) seed: u64,
    pub(super) host: Host,
    pub(super) left_out: Vec<LeftOut>,
    /// Why measurements were made again.
    pub(super) refused: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) samples: Vec<Sample>,
}

impl Record {
    pub(super) fn samples_of(&self, point: &Point, arm: &str) -> impl Iterator<Item = &Sample> {
        let key = point.key();
        self.samples.iter().filter(move |sample| sample.point == key && sample.arm == arm)
    }

    /// The median of a figure.
    pub(super) fn summary(&self, metric: Metric, point: &Point, arm: &str) -> Option<Summary> {
        Summary::of(self.samples_of(point, arm).filter_map(|sample| metric.of(sample)))
    }

    /// The median of the ratios to another arm, each within a round.
    pub(super) fn ratio(&self, metric: Metric, point: &Point, arm: &str, to: &str) -> Option<Summary> {
        let ratio = |sample: &Sample| {
            let other = self.samples_of(point, to).find(|other| other.round == sample.round)?;
            Some(metric.of(sample)? / metric.of(other)?)
        };
        Summary::of(self.samples_of(point, arm).filter_map(ratio))
    }

    /// The arms that were measured, in the order of the exhibit.
    pub(super) fn arms<'a>(&self, exhibit: &'a Exhibit) -> Vec<&'a str> {
        let names = exhibit.arms.iter().map(|arm| &arm.name[..]);
        names.filter(|name| self.samples.iter().any(|sample| sample.arm == *name)).collect()
    }
}

/// Arms that the server cannot be, and what it says to that.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LeftOut {
    pub(super) arms: Vec<String>,
    pub(super) why: String,
}
