//! Response header fields that the operator sets, appends or removes by pattern: `[[site.headers]]`.
//!
//! `reply` calls [`add_to_file`] and [`add`] for each response whose head it makes. The heads of files are cached, so that
//! rules cost a cached response nothing.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use amped_http::h1::request::Request;
use amped_http::h1::response::Head;
use amped_http::status::Status;
use amped_units::Form as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::condition::{Condition, TextPattern};
use crate::forms::{AppendedFieldName, CacheControl, FieldName, FieldValue, RemovedFieldName};
use crate::glob::Glob;

/// Response header fields by pattern
///
/// All tables whose `match` matches apply, in order; a later one replaces the value of an earlier one. A table first removes,
/// then sets, then appends.
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
    /// Requests that the rule applies to; see "Conditions" above
    #[serde(default)]
    #[schemars(extend("examples" = [{ "scheme": "https" }]))]
    pub when: Option<Box<Condition>>,
    /// Media type of responses that the rule applies to, without parameters
    ///
    /// A pattern as in conditions: `text/html`, `image/*`, `'~^(text|font)/'`; `""`: responses without a type.
    #[serde(default)]
    #[schemars(example = "text/html")]
    pub media_type: Option<TextPattern>,
    /// Value of Cache-Control, for files but not for errors
    ///
    /// Sent with status 200, 206 and 304.
    #[serde(default, deserialize_with = "CacheControl::text")]
    #[schemars(example = "max-age=3600")]
    pub cache_control: Option<Box<str>>,
    /// Names and values of fields to set, unless an application has set them
    #[serde(default, deserialize_with = "FieldName::map::<FieldValue, _>")]
    #[schemars(extend("examples" = [{ "X-Frame-Options": "DENY" }]))]
    pub set: BTreeMap<Box<str>, Box<str>>,
    /// Names and values of fields to append, beside others of the same name
    #[serde(default, deserialize_with = "AppendedFieldName::map::<FieldValue, _>")]
    #[schemars(extend("examples" = [{ "Link": "</a.css>; rel=preload; as=style" }]))]
    pub append: BTreeMap<Box<str>, Box<str>>,
    /// Names of fields to remove: of applications and of tables above
    ///
    /// A field in both `remove` and `set` replaces that of an application.
    #[serde(default, deserialize_with = "RemovedFieldName::list")]
    #[schemars(extend("examples" = [["X-Powered-By"]]))]
    pub remove: Vec<Box<str>>,
    /// Apply to errors too, of applications as well; otherwise to statuses below 400 only
    #[serde(default = "always")]
    #[default(true)]
    pub errors: bool,
}

fn always() -> bool {
    true
}

impl HeaderRule {
    /// Returns whether the rule has no effect.
    pub fn is_empty(&self) -> bool {
        let HeaderRule { pattern: _, when: _, media_type: _, cache_control, set, append, remove, errors: _ } = self;
        cache_control.is_none() && set.is_empty() && append.is_empty() && remove.is_empty()
    }

    /// Returns whether `set`, `append` and `remove` apply to a response.
    fn applies(&self, path: &[u8], request: &Request<'_>, status: Status, media_type: &[u8]) -> bool {
        (self.errors || status.0 < 400) && self.matches(path, request, media_type)
    }

    fn matches(&self, path: &[u8], request: &Request<'_>, media_type: &[u8]) -> bool {
        self.pattern.matches(path)
            && self.when.as_ref().is_none_or(|when| when.holds(request))
            && self.media_type.as_ref().is_none_or(|pattern| pattern.matches(media_type))
    }

    fn removes(&self, name: &str) -> bool {
        self.remove.iter().any(|removed| removed.eq_ignore_ascii_case(name))
    }
}

/// The media type of a response, without parameters and in lower case; empty if it has none, or no rule asks for it. `known`: that of
/// the file, if the head has none or another one.
fn type_of(head: &Head, rules: &[HeaderRule], known: Option<&str>) -> Vec<u8> {
    if !has_types(rules) {
        return Vec::new();
    }
    let value = known.map(str::as_bytes).or_else(|| head.values("Content-Type").next()).unwrap_or_default();
    let end = value.iter().position(|&byte| byte == b';').unwrap_or(value.len());
    value[..end].trim_ascii().to_ascii_lowercase()
}

/// Adds the fields of responses with status 200, 206 and 304 for a file: Cache-Control by the last matching rule that has
/// one. Returns whether there is one. `media_type`: that of the file, if the head has none or another one.
pub(crate) fn add_to_file(
    head: &mut Head,
    rules: &[HeaderRule],
    path: &[u8],
    request: &Request<'_>,
    media_type: Option<&str>,
) -> bool {
    let media_type = type_of(head, rules, media_type);
    let mut matching = rules.iter().rev().filter(|rule| rule.matches(path, request, &media_type));
    let value = matching.find_map(|rule| rule.cache_control.as_deref());
    if let Some(value) = value {
        head.field("Cache-Control", value);
    }
    value.is_some()
}

/// Applies the rules to the head of any response. A field that `is_set` by an application is removed by rules, but not
/// set by them. `media_type`: that of the file, if the head has none or another one.
pub(crate) fn add(
    head: &mut Head,
    rules: &[HeaderRule],
    path: &[u8],
    request: &Request<'_>,
    media_type: Option<&str>,
    is_set: impl Fn(&str) -> bool,
) {
    let media_type = type_of(head, rules, media_type);
    let (fields, removed) = fields_of(head.status(), rules, path, request, &media_type, is_set);
    for name in removed {
        head.remove(name);
    }
    for (name, value) in fields {
        // The only field of our own that a rule may set (`forms` rejects the others): replace ours.
        if name.eq_ignore_ascii_case("Server") {
            head.server(value);
        } else {
            head.field(name, value);
        }
    }
}

/// The fields that the rules set and append, and the names that they remove.
fn fields_of<'a>(
    status: Status,
    rules: &'a [HeaderRule],
    path: &[u8],
    request: &Request<'_>,
    media_type: &[u8],
    is_set: impl Fn(&str) -> bool,
) -> (Fields<'a>, Vec<&'a str>) {
    let (mut fields, mut removed): (Fields<'_>, Vec<&str>) = (Vec::new(), Vec::new());
    for rule in rules.iter().filter(|rule| rule.applies(path, request, status, media_type)) {
        fields.retain(|(name, _)| !rule.removes(name));
        removed.extend(rule.remove.iter().map(|name| &**name));
        let is_removed = |name: &str| removed.iter().any(|removed| removed.eq_ignore_ascii_case(name));
        for (name, value) in rule.set.iter().filter(|(name, _)| !is_set(name) || is_removed(name)) {
            replace(&mut fields, name, value);
        }
        fields.extend(rule.append.iter().map(|(name, value)| (&**name, &**value)));
    }
    // The type of an application's 304 is unknown: the client keeps what it has (RFC 9111, 4.3.4).
    if status == Status::NOT_MODIFIED && media_type.is_empty() {
        let names = names_by_type(rules, path);
        fields.retain(|(name, _)| !names.iter().any(|known| known.eq_ignore_ascii_case(name)));
    }
    (fields, removed)
}

/// Whether any rule applies by media type.
fn has_types(rules: &[HeaderRule]) -> bool {
    rules.iter().any(|rule| rule.media_type.is_some())
}

/// The names of the fields that rules set or append by media type.
fn names_by_type<'a>(rules: &'a [HeaderRule], path: &[u8]) -> Vec<&'a str> {
    let by_type = rules.iter().filter(|rule| rule.media_type.is_some() && rule.pattern.matches(path));
    by_type.flat_map(|rule| rule.set.keys().chain(rule.append.keys())).map(|name| &**name).collect()
}

/// Applies the rules by media type to the head of a file that an application sends with a type of its own.
pub(crate) fn change_type(head: &mut Head, rules: &[HeaderRule], path: &[u8], request: &Request<'_>, media_type: &str) {
    if !has_types(rules) {
        return;
    }
    let names = names_by_type(rules, path);
    let is_by_type = |name: &str| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    let of_type = type_of(head, rules, Some(media_type));
    let (fields, _) = fields_of(head.status(), rules, path, request, &of_type, |_| false);
    for name in &names {
        head.remove(name);
    }
    for (name, value) in fields.into_iter().filter(|(name, _)| is_by_type(name)) {
        head.field(name, value);
    }
    if rules.iter().any(|rule| rule.media_type.is_some() && rule.cache_control.is_some()) {
        let cache_control = head.values("Cache-Control").next().map(<[u8]>::to_vec);
        head.remove("Cache-Control");
        if !add_to_file(head, rules, path, request, Some(media_type))
            && let Some(value) = cache_control
        {
            head.field("Cache-Control", value);
        }
    }
}

/// Names and values, in the order of a head.
type Fields<'a> = Vec<(&'a str, &'a str)>;

/// Sets a field: it takes the place of the first one of this name, and the others disappear.
fn replace<'a>(fields: &mut Fields<'a>, name: &'a str, value: &'a str) {
    let is_it = |known: &str| known.eq_ignore_ascii_case(name);
    let Some(first) = fields.iter().position(|(known, _)| is_it(known)) else {
        fields.push((name, value));
        return;
    };
    fields[first].1 = value;
    let mut at = 0;
    fields.retain(|(known, _)| {
        at += 1;
        at - 1 == first || !is_it(known)
    });
}

/// Returns whether rules remove a field that an application sends along with a file, or before its response, from a response with
/// this head.
pub(crate) fn is_removed(rules: &[HeaderRule], path: &[u8], request: &Request<'_>, head: &Head, name: &str) -> bool {
    let media_type = type_of(head, rules, None);
    rules.iter().any(|rule| rule.removes(name) && rule.applies(path, request, head.status(), &media_type))
}
