//! One measurement, and the figures of it that are looked at.

use serde::{Deserialize, Serialize};

/// One measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sample {
    /// What has the same number and point was measured within seconds of each other, and is compared in pairs.
    pub(super) round: usize,
    pub(super) point: String,
    pub(super) arm: String,
    /// CPU time of the server for a request, user and system, in microseconds.
    pub(super) cpu_us: f64,
    /// Requests a second.
    pub(super) rate: f64,
    /// What came over the sockets, in MiB/s.
    pub(super) mib_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hot_us: Option<HotLatency>,
    /// What else was measured, in the unit that the point names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<f64>,
    /// Of one core; both have one.
    pub(super) server_share: f64,
    pub(super) client_share: f64,
    /// Of one core, all others together, the kernel's own work included.
    pub(super) others_share: f64,
}

impl Sample {
    /// In a line, while it is measured.
    pub(super) fn shown(&self) -> String {
        let hot = self.hot_us.map_or(String::new(), |hot| format!("  p99 {:>8.2} ms", hot.p99 as f64 / 1e3));
        format!("{:>8.2} µs {:>7.1} k/s {:>7.1} MiB/s{hot}", self.cpu_us, self.rate / 1e3, self.mib_s)
    }
}

/// How long a cached file took beside the load, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct HotLatency {
    pub(super) count: usize,
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

/// A figure that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    /// Server CPU time a request.
    Cpu,
    /// Requests a second.
    Rate,
    /// Bytes a second.
    Throughput,
    /// The 99th percentile of the cached file beside the load.
    HotP99,
    /// What the point names.
    Value,
}

impl Metric {
    pub(super) fn title(self) -> &'static str {
        match self {
            Metric::Cpu => "server CPU, µs a request",
            Metric::Rate => "rate, 1000 requests/s",
            Metric::Throughput => "throughput, MiB/s",
            Metric::HotP99 => "99th percentile of a cached file, ms",
            Metric::Value => "figure",
        }
    }

    pub(super) fn of(self, sample: &Sample) -> Option<f64> {
        match self {
            Metric::Cpu => Some(sample.cpu_us),
            Metric::Rate => Some(sample.rate / 1e3),
            Metric::Throughput => Some(sample.mib_s),
            Metric::HotP99 => Some(sample.hot_us?.p99 as f64 / 1e3),
            Metric::Value => sample.value,
        }
    }

    /// Whether it spans orders of magnitude.
    pub(super) fn is_wide(self) -> bool {
        matches!(self, Metric::Throughput | Metric::HotP99)
    }

    /// Whether a client that has no time left is what limits it.
    pub(super) fn has_ceiling(self) -> bool {
        matches!(self, Metric::Rate | Metric::Throughput)
    }
}

/// Three digits that count.
pub(super) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        100.0.. => 0,
        10.0..100.0 => 1,
        1.0..10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}
