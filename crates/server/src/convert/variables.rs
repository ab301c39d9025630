//! Variables that have one value (`set`): it takes their place.
//!
//! Many configurations name the parts of a backend's address by `set`, so that nginx resolves the name for each request.
//! Directives of the rewrite module are executed in order, those of a server before those of a location; all others see the
//! values at the end. A variable whose value is not certain stays, and the directives that use it are reported; so does one that nginx
//! itself reads.

use std::collections::HashMap;

use amped_http::text::variables;

use super::tree::Directive;

/// Replaces such variables in all servers.
pub(super) fn substitute(directives: &mut [Directive]) {
    for directive in directives {
        match (directive.name.as_str(), &mut directive.block) {
            ("http", Some(block)) => substitute(block),
            ("server", Some(block)) => in_server(block),
            _ => {}
        }
    }
}

/// Values by the names of variables.
type Values = HashMap<String, String>;

fn in_server(block: &mut Vec<Directive>) {
    let mut others = Vec::new();
    block.iter().filter(|inner| inner.name != "set").for_each(|inner| names_set(inner, &mut others));
    let known = own_values(block, &Values::new(), &others);
    replace(block, &known, "");
    in_locations(block, &known);
}

/// Locations have the values of their server, not those of a location around them.
fn in_locations(block: &mut [Directive], of_server: &Values) {
    for location in block.iter_mut().filter(|inner| inner.name == "location") {
        let path = match &location.args[..] {
            [sign, path] if sign == "=" => path.clone(),
            [one] => one.strip_prefix('=').unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        let Some(block) = &mut location.block else { continue };
        let mut others = Vec::new();
        block
            .iter()
            .filter(|inner| !["set", "location"].contains(&&*inner.name))
            .for_each(|inner| names_set(inner, &mut others));
        let mut known = of_server.clone();
        known.extend(own_values(block, of_server, &others));
        replace(block, &known, &path);
        in_locations(block, of_server);
    }
}

/// The names that a directive, or one in its block, gives values to: without the dollar sign.
fn names_set<'a>(directive: &'a Directive, names: &mut Vec<&'a str>) {
    if ["set", "auth_request_set"].contains(&&*directive.name) {
        names.extend(directive.arg(0).strip_prefix('$'));
    }
    directive.args.iter().for_each(|arg| names.extend(captures(arg)));
    directive.inner().iter().for_each(|inner| names_set(inner, names));
}

/// The names of the groups of a regular expression, which are variables too.
fn captures(regex: &str) -> impl Iterator<Item = &str> {
    regex.split("(?").skip(1).filter_map(|group| {
        let name = group.strip_prefix('P').unwrap_or(group).strip_prefix(['<', '\''])?;
        let (name, _) = name.split_once(['>', '\''])?;
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_').then_some(name)
    })
}

/// Variables that nginx itself reads or sets.
const BUILT_IN: [&str; 9] =
    ["args", "document_root", "document_uri", "host", "is_args", "limit_rate", "query_string", "request_uri", "uri"];

/// The variables to which this block itself gives a value, for certain, only once and before it uses them, and which none of
/// `others` is. `outer`: those around it.
fn own_values(block: &[Directive], outer: &Values, others: &[&str]) -> Values {
    let mut known = Values::new();
    // What follows one of these is not executed for every request that needs the value.
    let ends = |inner: &Directive| ["break", "rewrite"].contains(&&*inner.name);
    let may_end = |inner: &Directive| {
        ends(inner) || inner.name == "return" || inner.name == "if" && inner.inner().iter().any(ends)
    };
    let end = block.iter().position(may_end).unwrap_or(block.len());
    for (at, inner) in block[..end].iter().enumerate().filter(|(_, inner)| inner.name == "set") {
        let Some(name) = inner.arg(0).strip_prefix('$') else { continue };
        let is_again = |other: &Directive| other.name == "set" && other.arg(0) == inner.arg(0);
        let is_used = |before: &Directive| ["set", "if"].contains(&&*before.name) && uses(before, name);
        let mut all = outer.clone();
        all.extend(known.clone());
        let value = with_values(inner.arg(1), &all);
        let is_only = block.iter().filter(|other| is_again(other)).count() == 1 && !others.contains(&name);
        if is_only && !BUILT_IN.contains(&name) && !value.contains('$') && !block[..=at].iter().any(is_used) {
            known.insert(name.to_owned(), value);
        }
    }
    known
}

/// Replaces variables in a block, without its locations, and removes the directives that set them. `path`: the only one of
/// the location.
fn replace(block: &mut Vec<Directive>, known: &Values, path: &str) {
    let is_known = |name: &str| name.strip_prefix('$').is_some_and(|name| known.contains_key(name));
    block.retain(|inner| inner.name != "set" || !is_known(inner.arg(0)));
    for inner in block.iter_mut().filter(|inner| inner.name != "location") {
        // The name of a variable stays.
        let first = usize::from(["set", "auth_request_set"].contains(&&*inner.name));
        // With a variable, the URI of `proxy_pass` is sent whatever the path is, which nothing expresses.
        let is_fixed = inner.name == "proxy_pass" && !["", path].contains(&uri(&with_values(inner.arg(0), known)));
        inner.args.iter_mut().skip(first).filter(|_| !is_fixed).for_each(|arg| *arg = with_values(arg, known));
        if let Some(block) = &mut inner.block {
            replace(block, known, path);
        }
    }
}

/// What a URL has beyond an address.
fn uri(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    match rest.strip_prefix("unix:") {
        Some(socket) => socket.split_once(':').map_or("", |(_, uri)| uri),
        None => rest.find('/').map_or("", |at| &rest[at..]),
    }
}

/// A text with the values of these variables; all others stay.
fn with_values(text: &str, known: &Values) -> String {
    let parts = variables(text).unwrap_or_default();
    if !parts.iter().any(|(_, name)| name.is_some_and(|name| known.contains_key(name))) {
        return text.to_owned();
    }
    let mut made = String::new();
    for (text, name) in parts {
        made.push_str(text);
        match name.map(|name| known.get(name).ok_or(name)) {
            Some(Ok(value)) => made.push_str(value),
            Some(Err(name)) => made.extend(["${", name, "}"]),
            None => {}
        }
    }
    made
}

/// Whether a directive, or one in its block, uses this variable.
fn uses(directive: &Directive, name: &str) -> bool {
    let has = |text: &String| variables(text).unwrap_or_default().iter().any(|(_, found)| *found == Some(name));
    let first = usize::from(directive.name == "set");
    directive.args.iter().skip(first).any(has) || directive.inner().iter().any(|inner| uses(inner, name))
}
