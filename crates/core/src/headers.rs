//! Response header fields that the operator sets by pattern: `[[site.headers]]`.
//!
//! A new field is a key of [`HeaderRule`] and a line in [`add_to_file`] or [`add`], which `reply` calls for each response.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use amped_http::h1::response::Head;
use amped_units::Form as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::forms::{CacheControl, FieldName, FieldValue};
use crate::glob::Glob;

/// Response header fields by pattern
///
/// All tables whose `match` matches apply, in order; a later one replaces the value of an earlier one.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct HeaderRule {
    /// Paths that the rule applies to
    ///
    /// `*` matches within a directory, `**` across, `?` one character, `{a,b}` either; without a slash, a file's name anywhere.
    #[serde(rename = "match")]
    #[schemars(example = "*.css")]
    #[default(Glob::new("**"))]
    pub pattern: Glob,
    /// Value of Cache-Control, for files but not for errors
    ///
    /// Sent with status 200, 206 and 304.
    #[serde(default, deserialize_with = "CacheControl::text")]
    #[schemars(example = "max-age=3600")]
    pub cache_control: Option<Box<str>>,
    /// Names and values of fields on every response, errors included
    #[serde(default, deserialize_with = "FieldName::map::<FieldValue, _>")]
    #[schemars(extend("examples" = [{ "X-Frame-Options": "DENY" }]))]
    pub set: BTreeMap<Box<str>, Box<str>>,
}

impl HeaderRule {
    /// Returns whether the rule has no effect.
    pub fn is_empty(&self) -> bool {
        let HeaderRule { pattern: _, cache_control, set } = self;
        cache_control.is_none() && set.is_empty()
    }
}

/// Adds the fields of responses with status 200, 206 and 304 for a file: Cache-Control by the last matching rule that has
/// one. Returns whether there is one.
pub(crate) fn add_to_file(head: &mut Head, rules: &[HeaderRule], path: &[u8]) -> bool {
    let mut matching = rules.iter().rev().filter(|rule| rule.pattern.matches(path));
    let value = matching.find_map(|rule| rule.cache_control.as_deref());
    if let Some(value) = value {
        head.field("Cache-Control", value);
    }
    value.is_some()
}

/// Adds the fields of every response, except those that are already set. All matching rules apply in order; a later value
/// replaces an earlier one.
pub(crate) fn add(head: &mut Head, rules: &[HeaderRule], path: &[u8], is_set: impl Fn(&str) -> bool) {
    let mut fields: Vec<(&str, &str)> = Vec::new();
    for (name, value) in rules.iter().filter(|rule| rule.pattern.matches(path)).flat_map(|rule| &rule.set) {
        match fields.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some(field) => field.1 = value,
            None => fields.push((name, value)),
        }
    }
    for (name, value) in fields.into_iter().filter(|(name, _)| !is_set(name)) {
        // The only field of our own that a rule may set (`forms` rejects the others): replace ours.
        if name.eq_ignore_ascii_case("Server") {
            head.server(value);
        } else {
            head.field(name, value);
        }
    }
}
