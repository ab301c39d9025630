//! Variables by media type: `map $sent_http_content_type $expires { ... }`.
//!
//! Header rules have `media_type`; of several that set a field, the last one applies.

use amped_core::condition::TextPattern;

use super::scope::Scope;
use super::tree::Directive;

/// Patterns of media types and the values for them; `None`: all. Of several that match, the last one applies.
pub(super) type Values = Vec<(Option<String>, String)>;

/// The values of a variable for files, each of which has a type here.
pub(super) fn values_for_files(scope: &Scope<'_>, variable: &str, off: &[&str]) -> Option<Values> {
    values_if(scope, variable, off, |media_type| media_type != Some(""))
}

/// The values of a variable, if the media type decides it, without those that are `off`: nothing is sent with them.
pub(super) fn values(scope: &Scope<'_>, variable: &str, off: &[&str]) -> Option<Values> {
    values_if(scope, variable, off, |_| true)
}

fn values_if(scope: &Scope<'_>, variable: &str, off: &[&str], occurs: impl Fn(Option<&str>) -> bool) -> Option<Values> {
    let map = scope.directives().find(|map| map.name == "map" && map.arg(1) == variable)?;
    let is_off = |(_, value): &(Option<String>, String)| off.contains(&value.as_str());
    let values: Values = values_of(map)?.into_iter().filter(|(media_type, _)| occurs(media_type.as_deref())).collect();
    let first = values.iter().position(|value| !is_off(value)).unwrap_or(values.len());
    // A rule cannot take back what another one sets.
    let can_be_rules = !values[first..].iter().any(is_off);
    can_be_rules.then(|| values[first..].to_vec())
}

/// The values of the variable of a `map`, if the media type decides it.
pub(super) fn values_of(map: &Directive) -> Option<Values> {
    if map.name != "map" || map.arg(0) != "$sent_http_content_type" {
        return None;
    }
    let (mut default, mut exact, mut regexes): (_, Values, Values) = (String::new(), Vec::new(), Vec::new());
    for entry in map.inner() {
        let (source, value) = (entry.name.as_str(), entry.arg(0).to_owned());
        let is_regex = source.starts_with('~');
        let is_plain =
            !source.contains(['*', '?', '{', '[', '\\', ';']) && !["hostnames", "volatile"].contains(&source);
        match source {
            _ if value.contains('$') => return None,
            "default" => default = value,
            // A rule has the type without its parameters.
            _ if is_regex && !source.contains("charset") && is_pattern(source) => {
                regexes.push((Some(source.to_owned()), value))
            }
            _ if !is_regex && is_plain => exact.push((Some(source.to_ascii_lowercase()), value)),
            _ => return None,
        }
    }
    // Exact strings take precedence, then the first regular expression that matches.
    let all = [(None, default)].into_iter().chain(regexes.into_iter().rev()).chain(exact);
    Some(all.collect())
}

fn is_pattern(text: &str) -> bool {
    serde_json::from_value::<TextPattern>(text.into()).is_ok()
}
