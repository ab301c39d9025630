//! Named networks, each with the source of its figures: data, `profiles.toml`.
//!
//! A profile is a starting point, not a measurement; figures of a particular network belong in a file.

use serde::Deserialize;

use crate::link::LinkSettings;
use crate::path::PathSettings;
use crate::spec::{self, LinkTexts};

/// A named network.
#[derive(Clone, Debug, Deserialize)]
pub struct Profile {
    /// The name.
    pub name: String,
    /// Description, and the source of its figures.
    pub source: String,
    latency: String,
    up: String,
    down: String,
    loss: Option<String>,
}

/// All profiles.
pub fn profiles() -> Vec<Profile> {
    #[derive(Deserialize)]
    struct Table {
        profile: Vec<Profile>,
    }
    toml::from_str::<Table>(include_str!("profiles.toml")).expect("a test reads it").profile
}

impl Profile {
    /// The path of the network of this name.
    ///
    /// # Errors
    /// The names of all profiles.
    pub fn find(name: &str) -> Result<PathSettings, String> {
        let profiles = profiles();
        profiles.iter().find(|profile| profile.name == name).map(Profile::path).ok_or_else(|| {
            let names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
            format!("unknown network {name:?}; known: {}", names.join(", "))
        })
    }

    fn path(&self) -> PathSettings {
        PathSettings { up: self.link(&self.up), down: self.link(&self.down) }
    }

    fn link(&self, bandwidth: &str) -> LinkSettings {
        let (latency, bandwidth) = (Some(self.latency.clone()), Some(bandwidth.to_owned()));
        let mut link = spec::plain_link();
        let texts = LinkTexts { latency, bandwidth, loss: self.loss.clone(), queue: None };
        texts.apply(&mut link, &|_| Err("no trace".to_owned())).expect("a test reads it");
        link
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn profile_names_are_unique() {
        let mut names = BTreeSet::new();
        for profile in profiles() {
            let path = Profile::find(&profile.name).unwrap();
            assert!(path.up.bandwidth.mean() <= path.down.bandwidth.mean(), "{}", profile.name);
            assert!(names.insert(profile.name));
        }
        assert!(Profile::find("lan ").unwrap_err().contains("satellite"));
    }

    #[test]
    fn lossy_network_loss_matches_source() {
        let path = Profile::find("wifi-lossy").unwrap();
        assert!((path.up.loss.mean() - 0.02).abs() < 1e-4, "{}", path.up.loss.mean());
    }
}
