//! Named networks, each with the source of its figures.
//!
//! A profile is a starting point, not a measurement; figures of a particular network belong in a file. Latencies are
//! one way: half of the round trip if the source gives that.

use std::time::Duration;

use amped_units::BitsPerSecond;

use crate::link::{Bandwidth, Jitter, Latency, LinkSettings, Shape};
use crate::loss::{GilbertElliott, Loss};
use crate::path::PathSettings;
use crate::spec;

/// A named network.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The name.
    pub name: &'static str,
    /// Description, and the source of its figures.
    pub source: &'static str,
    up_bits: u64,
    down_bits: u64,
    latency_us: u64,
    jitter_us: u64,
    loss: Option<GilbertElliott>,
}

const PLAIN: Profile =
    Profile { name: "", source: "", up_bits: 0, down_bits: 0, latency_us: 0, jitter_us: 0, loss: None };

/// All profiles.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "lan",
        source: "Gigabit Ethernet behind one switch (IEEE 802.3ab); 100 us of latency is an ordinary one",
        up_bits: 1_000_000_000,
        down_bits: 1_000_000_000,
        latency_us: 100,
        ..PLAIN
    },
    Profile {
        name: "cable",
        source: "WebPageTest, connectivity.ini, Cable: 5 and 1 Mbit/s, 28 ms round trip",
        up_bits: 1_000_000,
        down_bits: 5_000_000,
        latency_us: 14_000,
        ..PLAIN
    },
    Profile {
        name: "dsl",
        source: "WebPageTest, connectivity.ini, DSL: 1.5 Mbit/s and 384 kbit/s, 50 ms round trip",
        up_bits: 384_000,
        down_bits: 1_500_000,
        latency_us: 25_000,
        ..PLAIN
    },
    Profile {
        name: "modem-56k",
        source: "WebPageTest, connectivity.ini, 56K Dial-Up: 49 and 30 kbit/s, 120 ms round trip; a home of 1999",
        up_bits: 30_000,
        down_bits: 49_000,
        latency_us: 60_000,
        ..PLAIN
    },
    Profile {
        name: "3g",
        source: "WebPageTest, connectivity.ini, 3G: 1.6 Mbit/s and 768 kbit/s, 300 ms round trip",
        up_bits: 768_000,
        down_bits: 1_600_000,
        latency_us: 150_000,
        ..PLAIN
    },
    Profile {
        name: "4g",
        source: "WebPageTest's former connectivity.ini, 4G: 9 Mbit/s both ways, 170 ms round trip",
        up_bits: 9_000_000,
        down_bits: 9_000_000,
        latency_us: 85_000,
        ..PLAIN
    },
    Profile {
        name: "wifi-lossy",
        source: "chosen for this table: 20 Mbit/s, 3 ms with a Pareto jitter of 2 ms, 2 % loss in bursts of 4 packets (Gilbert 1960)",
        up_bits: 20_000_000,
        down_bits: 20_000_000,
        latency_us: 3_000,
        jitter_us: 2_000,
        // All packets are lost in the bad state: a share of 0.02 = to_bad / (to_bad + 0.25) of the time.
        loss: Some(GilbertElliott { to_bad: 0.0051, to_good: 0.25, lost_in_bad: 1.0, lost_in_good: 0.0 }),
    },
    Profile {
        name: "transatlantic",
        source: "London to New York: 5,570 km at two thirds of the speed of light and a third of way around, 37 ms; 100 Mbit/s",
        up_bits: 100_000_000,
        down_bits: 100_000_000,
        latency_us: 37_000,
        ..PLAIN
    },
    Profile {
        name: "satellite",
        source: "geostationary, 239.6 to 279 ms one way (RFC 2488, section 2): 260 ms; 20 and 3 Mbit/s are chosen for this table",
        up_bits: 3_000_000,
        down_bits: 20_000_000,
        latency_us: 260_000,
        ..PLAIN
    },
];

impl Profile {
    /// The profile of this name.
    pub fn named(name: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// As [`Profile::named`].
    ///
    /// # Errors
    /// The names of all profiles.
    pub fn find(name: &str) -> Result<&'static Profile, String> {
        Profile::named(name).ok_or_else(|| {
            let names: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
            format!("unknown network {name:?}; known: {}", names.join(", "))
        })
    }

    /// The path of this network.
    pub fn path(&self) -> PathSettings {
        PathSettings { up: self.link(self.up_bits), down: self.link(self.down_bits) }
    }

    fn link(&self, bits: u64) -> LinkSettings {
        let (mean, spread) = (Duration::from_micros(self.latency_us), Duration::from_micros(self.jitter_us));
        let bandwidth = Bandwidth::Fixed(BitsPerSecond(bits));
        LinkSettings {
            latency: if spread.is_zero() {
                Latency::Fixed(mean)
            } else {
                Latency::Jitter(Jitter { mean, spread, shape: Shape::Pareto, keeps_order: true })
            },
            queue: spec::default_queue(&bandwidth),
            bandwidth,
            loss: self.loss.map_or(Loss::None, Loss::GilbertElliott),
            framing_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_names_are_unique() {
        for profile in PROFILES {
            assert_eq!(Profile::named(profile.name).map(|found| found.source), Some(profile.source));
            let path = profile.path();
            assert!(path.up.bandwidth.mean() <= path.down.bandwidth.mean(), "{}", profile.name);
        }
        assert!(Profile::named("lan ").is_none());
    }

    #[test]
    fn lossy_network_loss_matches_source() {
        let path = Profile::named("wifi-lossy").expect("there").path();
        assert!((path.up.loss.mean() - 0.02).abs() < 1e-4, "{}", path.up.loss.mean());
    }
}
