//! Directories that only some addresses may access.
//!
//! `decide` checks the rule before anything else about a name in such a directory. As a [`Guard`](crate::auth::Guard),
//! a rule covers a directory rather than a pattern: an index page, variant or script lies in the same directory as the
//! requested name, so the check cannot be bypassed.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

use amped_units::Form as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::forms::FolderPath;
use crate::network::Network;

/// Directory that only clients with certain addresses may access; others get 403
///
/// Of nested directories, the innermost table applies. `deny` takes precedence over `allow`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct AccessRule {
    /// Path of the directory, with a slash at both ends; includes everything below it
    #[schemars(example = "/admin/")]
    #[serde(deserialize_with = "FolderPath::text")]
    pub directory: Box<str>,
    /// Addresses and networks that may access it; empty: all that `deny` does not have
    #[serde(default)]
    #[schemars(extend("examples" = [["10.0.0.0/8", "2001:db8::/32"]]))]
    pub allow: Vec<Network>,
    /// Addresses and networks that may not
    #[serde(default)]
    #[schemars(extend("examples" = [["10.0.0.1"]]))]
    pub deny: Vec<Network>,
}

impl AccessRule {
    /// Whether a client with this address may access the directory.
    pub fn admits(&self, address: IpAddr) -> bool {
        let is_among = |networks: &[Network]| networks.iter().any(|network| network.contains(address));
        !is_among(&self.deny) && (self.allow.is_empty() || is_among(&self.allow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_and_not_allowed_addresses_are_refused() {
        let networks = |list: &[&str]| list.iter().map(|text| Network::parse(text).expect("valid")).collect();
        let check = |allow: &[&str], deny: &[&str], address: &str, expected: bool| {
            let rule = AccessRule { directory: "/".into(), allow: networks(allow), deny: networks(deny) };
            assert_eq!(rule.admits(address.parse().expect("valid")), expected, "{allow:?} {deny:?} {address}");
        };
        check(&["10.0.0.0/8"], &[], "10.1.2.3", true);
        check(&["10.0.0.0/8"], &[], "::ffff:10.1.2.3", true);
        check(&["10.0.0.0/8"], &[], "11.1.2.3", false);
        check(&["10.0.0.0/8"], &[], "::1", false);
        check(&["10.0.0.0/8", "::1"], &["10.0.0.1"], "10.0.0.1", false);
        check(&["10.0.0.0/8", "::1"], &["10.0.0.1"], "::1", true);
        check(&[], &["10.0.0.1"], "10.0.0.1", false);
        check(&[], &["10.0.0.1"], "10.0.0.2", true);
        check(&["10.0.0.1"], &["10.0.0.0/8"], "10.0.0.1", false);
    }
}
