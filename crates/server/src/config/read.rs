//! Reads the configuration file: TOML becomes a [`File`], or a report of all errors in its syntax, types and ranges.
//!
//! This file checks each key by itself: whether it is known, and whether its value has the right type and is in range.
//! `checked` checks keys together and against the machine, and gets the position of each from the [`Node`]s.
//!
//! serde stops at the first error, but an administrator needs all of them. So the text is first parsed into a tree of
//! values with their positions; when serde rejects one, the error is recorded, the value is removed from the tree, and
//! the rest is deserialised again ([`read`]). Each round removes something, so this terminates.

use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue, ValueDeserializer};

use super::cli::Override;
use super::error::{FLAGS, Findings, Source};
use super::file::File;
use super::schema;

/// A position in the file: a value with its span, or nothing for a key that is not set.
#[derive(Clone, Copy)]
pub(super) struct Node<'a>(Option<&'a Spanned<DeValue<'a>>>);

impl<'a> Node<'a> {
    /// Returns the span of the value; `None` if neither the file nor a flag sets it.
    pub(super) fn place(self) -> Option<Range<usize>> {
        self.0.map(Spanned::span)
    }

    /// Returns whether the value comes from a flag.
    pub(super) fn is_flag(self) -> bool {
        self.span().start >= FLAGS
    }

    /// Returns the span of the value; the start of the file if it is not set.
    pub(super) fn span(self) -> Range<usize> {
        self.place().unwrap_or(0..0)
    }

    /// Returns a key of this table.
    pub(super) fn get(self, key: &str) -> Node<'a> {
        Node(self.0.and_then(|value| value.get_ref().get(key)))
    }

    /// Returns the text of this value.
    pub(super) fn text(self) -> &'a str {
        self.0.and_then(|value| value.get_ref().as_str()).unwrap_or_default()
    }

    /// Returns the elements of this list.
    pub(super) fn elements(self) -> impl Iterator<Item = Node<'a>> {
        let array = self.0.and_then(|value| value.get_ref().as_array());
        array.into_iter().flat_map(|array| array.iter()).map(|value| Node(Some(value)))
    }

    /// Returns the keys of this table, each with its span and its value, in the order of the text.
    pub(super) fn entries(self) -> impl Iterator<Item = (&'a str, Range<usize>, Node<'a>)> {
        let table = self.0.and_then(|value| value.get_ref().as_table());
        let mut entries: Vec<_> = table.into_iter().flat_map(|table| table.iter()).collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        entries.into_iter().map(|(key, value)| (key.get_ref().as_ref(), key.span(), Node(Some(value))))
    }
}

/// A parsed file, and the positions of its values.
pub(super) struct Read<'a> {
    /// The file without its invalid values.
    pub(super) file: File,
    tree: Spanned<DeValue<'a>>,
    /// Keys that were removed, entirely or in part, because they were invalid, each with the span of its table.
    taken: Vec<(Range<usize>, String)>,
}

impl Read<'_> {
    /// Returns whether one of these keys of a table was invalid, and so is not really missing.
    pub(super) fn is_taken(&self, table: Node<'_>, keys: &[&str]) -> bool {
        self.taken.iter().any(|(place, key)| *place == table.span() && keys.contains(&key.as_str()))
    }

    /// Returns whether no key of a table was invalid, so that it is complete.
    pub(super) fn is_complete(&self, table: Node<'_>) -> bool {
        self.taken.iter().all(|(place, _)| *place != table.span())
    }

    /// Returns the whole file.
    pub(super) fn root(&self) -> Node<'_> {
        Node(Some(&self.tree))
    }
}

/// Reads the main file, those that it includes, and the keys that flags set, and records each invalid value.
pub(super) fn read<'a>(sources: &'a [Arc<Source>], overrides: &'a [Override], findings: &mut Findings) -> Read<'a> {
    let mut files = sources.iter().map(|source| tree_of(source, findings));
    let mut tree = files.next().flatten().unwrap_or_else(|| Spanned::new(0..0, DeTable::new()));
    let included: Vec<_> = files.flatten().collect();
    for file in included {
        append(tree.get_mut(), file.into_inner(), findings);
    }
    for (number, key) in overrides.iter().enumerate() {
        put(tree.get_mut(), key, FLAGS + number);
    }
    let mut tree = Spanned::new(tree.span(), DeValue::Table(tree.into_inner()));
    let mut taken = Vec::new();
    if !findings.is_empty() {
        taken.push((tree.span(), "site".to_owned()));
    }
    let file = loop {
        let fault = match File::deserialize(ValueDeserializer::from(tree.clone())) {
            Ok(file) => break file,
            Err(fault) => fault,
        };
        let span = fault.span().unwrap_or(0..0);
        let Some(path) = path_to(tree.get_ref(), &span) else {
            findings.at(span, fault.message(), "");
            break File::default();
        };
        let missing = fault.message().strip_prefix("missing field `").map(|name| name.trim_end_matches('`'));
        if !missing.is_some_and(|key| taken.contains(&(span.clone(), key.to_owned()))) {
            let (message, help) = explain(fault.message(), &path);
            findings.at(span, message, help);
        }
        match STAND_INS.iter().find(|(name, _)| missing == Some(name)) {
            Some((name, text)) => insert(&mut tree, &path, name, text),
            None => taken.extend(remove(&mut tree, &path)),
        }
    };
    Read { file, tree, taken }
}

/// Substitutes for missing required keys, compatible with all other keys of the table, so that the rest can be checked.
const STAND_INS: [(&str, &str); 2] = [("match", "/*/*/*/*/*/*/*/*/**"), ("directory", "/")];

/// Returns the tree of one file, with spans that begin at its own start; `None` if its syntax is wrong.
fn tree_of<'a>(source: &'a Source, findings: &mut Findings) -> Option<Spanned<DeTable<'a>>> {
    let mut tree = grammar(source, findings)?;
    report_siteless(source, tree.get_mut(), findings);
    let span = moved(tree.span(), source.start);
    Some(Spanned::new(span, table_at(tree.into_inner(), source.start)))
}

/// Moves the spans of a table and of everything in it.
fn table_at<'a>(table: DeTable<'a>, start: usize) -> DeTable<'a> {
    if start == 0 {
        return table;
    }
    let key_at = |key: Spanned<DeString<'a>>| Spanned::new(moved(key.span(), start), key.into_inner());
    table.into_iter().map(|(key, value)| (key_at(key), value_at(value, start))).collect()
}

fn value_at<'a>(value: Spanned<DeValue<'a>>, start: usize) -> Spanned<DeValue<'a>> {
    let span = moved(value.span(), start);
    let value = match value.into_inner() {
        DeValue::Table(table) => DeValue::Table(table_at(table, start)),
        DeValue::Array(list) => DeValue::Array(list.into_iter().map(|value| value_at(value, start)).collect()),
        other => other,
    };
    Spanned::new(span, value)
}

fn moved(span: Range<usize>, start: usize) -> Range<usize> {
    span.start + start..span.end + start
}

/// Appends the sites of an included file to those of the main file. Other keys are errors: one that is set in a second
/// file would override the first unnoticed.
fn append<'a>(tree: &mut DeTable<'a>, file: DeTable<'a>, findings: &mut Findings) {
    for (key, value) in file {
        let (name, span) = (key.get_ref().to_string(), key.span());
        if name != "site" {
            let help = "write it in the main file; an included file has `[[site]]` tables only";
            findings.at(span, format!("`{name}` cannot be set in an included file"), help);
            continue;
        }
        let Some(all) = tree.get_mut("site").map(Spanned::get_mut) else {
            tree.insert(key, value);
            continue;
        };
        match (all, value.into_inner()) {
            (DeValue::Array(all), DeValue::Array(list)) => list.into_iter().for_each(|site| all.push(site)),
            (_, DeValue::Array(_)) => {} // The main file's own is no list, which is reported.
            (_, _) => findings.at(span, "`site` must be a list of tables", "write `[[site]]`, with double brackets"),
        }
    }
}

/// Returns the elements of `include` in the main file that are text, each with its span. Errors of the file are reported
/// when it is read.
pub(super) fn includes(text: &str) -> Vec<(Range<usize>, String)> {
    let Ok(tree) = DeTable::parse(text) else { return Vec::new() };
    let list = tree.get_ref().get("include").and_then(|list| list.get_ref().as_array());
    let texts = list.into_iter().flat_map(|list| list.iter());
    texts.filter_map(|text| Some((text.span(), text.get_ref().as_str()?.to_owned()))).collect()
}

/// Inserts the value of a flag as the key that it sets. Its span begins at `start`; its end distinguishes elements.
fn put<'a>(tree: &mut DeTable<'a>, key: &'a Override, start: usize) {
    let place = |value: Spanned<DeValue<'a>>| Spanned::new(start..start + 1 + value.span().end, value.into_inner());
    let Ok(mut value) = DeValue::parse(&key.value).map(place) else { return };
    if let DeValue::Array(list) = value.get_mut() {
        *list = std::mem::replace(list, DeArray::new()).into_iter().map(place).collect();
    }
    let name = |name: &'a str| Spanned::new(start..start + 1, name.into());
    let mut table = tree;
    if !key.table.is_empty() {
        if !table.contains_key(key.table) {
            table.insert(name(key.table), Spanned::new(start..start + 1, DeValue::Table(DeTable::new())));
        }
        // Otherwise it is not a table, which is reported.
        let Some(DeValue::Table(inner)) = table.get_mut(key.table).map(Spanned::get_mut) else { return };
        table = inner;
    }
    table.remove(&*key.key);
    table.insert(name(&key.key), value);
}

/// Returns the permitted values of a key, as a remedy.
fn help_for(schema: &Value) -> String {
    let range = match (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
        (Some(least), Some(most)) => format!("write a value from {least} to {most}"),
        (Some(least), None) => format!("write a value of at least {least}"),
        _ if schema["x-positive"] == true => "write a larger value".to_owned(),
        _ => "write another value".to_owned(),
    };
    match &schema["default"] {
        Value::Null => format!("{range}, or remove the key"),
        default => format!("{range}, or remove the key to use the default, {}", super::print::literal(default)),
    }
}

/// Reports a table of a site, such as `[[site.app]]`, above the first `[[site]]`. TOML parses it as a table `site` that
/// is not a list, which would cause an error for everything in it.
fn report_siteless(source: &Source, tree: &mut DeTable<'_>, findings: &mut Findings) {
    let text = &source.text;
    let Some((key, value)) = tree.iter().find(|(key, _)| key.get_ref() == "site") else { return };
    let rest = &text[key.span().end..];
    if !matches!(value.get_ref(), DeValue::Table(_)) || !rest.trim_start().starts_with('.') {
        return;
    }
    let line = text[key.span().start..].lines().next().unwrap_or_default();
    let name = line.split([']', '=', '#']).next().unwrap_or_default().trim();
    let message = format!("`{name}` belongs to no site: there is no `[[site]]` above it");
    findings.at(
        moved(key.span().start..key.span().start + name.len(), source.start),
        message,
        "write `[[site]]`, with its `root`, above it",
    );
    let key = key.clone();
    tree.remove(&key);
}

/// Parses a text as TOML, or records its syntax errors. Then there is no tree: with a missing bracket it would be a
/// guess, and errors in its keys would hide the one that matters.
fn grammar<'a>(source: &'a Source, findings: &mut Findings) -> Option<Spanned<DeTable<'a>>> {
    // Enough for a file written by hand. A file of another kind, named by mistake, has an error in every line.
    const FAULTS_MAX: usize = 10;
    let text = &source.text;
    let (tree, mut faults) = DeTable::parse_recoverable(text);
    if faults.is_empty() {
        return Some(tree);
    }
    // toml continues after an error, but one open bracket then causes an error in every following line. So only the
    // first one is recorded, its line is blanked, and the rest is parsed again.
    let mut rest = text.to_owned();
    for _ in 0..FAULTS_MAX {
        let Some(fault) = faults.iter().min_by_key(|fault| fault.span().map_or(0, |span| span.start)) else { break };
        let span = fault.span().unwrap_or(0..0);
        let is_double = fault.message() == "duplicate key";
        if is_double && text[..span.start].ends_with("[[") && text.get(span.clone()) == Some("site") {
            // A table of a site precedes it.
            let help = "write it above the first table that belongs to it, such as `[[site.app]]` or `[site.types]`";
            let place = moved(span.clone(), source.start);
            findings.at(place, "this `[[site]]` follows a table that belongs to a site", help);
        } else {
            let place = moved(span.clone(), source.start);
            findings.at(place, fault.message(), if is_double { "remove one of them" } else { "" });
        }
        let start = rest.get(..span.start)?.rfind('\n').map_or(0, |end| end + 1);
        let end = rest.get(start..)?.find('\n').map_or(rest.len(), |length| start + length);
        let unclosed = ["unclosed array", "unclosed inline table"];
        if unclosed.iter().any(|text| fault.message().starts_with(text)) {
            // Its intended end is unknown, so nothing after it can be checked.
            findings.forget_behind(source.start + span.start);
            break;
        }
        if rest[start..end].trim().is_empty() {
            break;
        }
        rest.replace_range(start..end, &" ".repeat(end - start));
        faults = DeTable::parse_recoverable(&rest).1;
    }
    None
}

/// A component of the path to a value.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Key(String),
    Element(usize),
}

/// Returns the path to the innermost value at `span`, or whose key is there.
fn path_to(value: &DeValue<'_>, span: &Range<usize>) -> Option<Vec<Step>> {
    let inner: Vec<(Step, Range<usize>, &Spanned<DeValue<'_>>)> = match value {
        DeValue::Table(table) => {
            table.iter().map(|(key, value)| (Step::Key(key.get_ref().to_string()), key.span(), value)).collect()
        }
        DeValue::Array(list) => {
            list.iter().enumerate().map(|(n, value)| (Step::Element(n), value.span(), value)).collect()
        }
        _ => return None,
    };
    let holds = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    let further = inner.iter().find_map(|(step, _, value)| Some((step, path_to(value.get_ref(), span)?)));
    let here = || inner.iter().find(|(_, key, value)| holds(key.clone()) || holds(value.span()));
    let (step, path) = further.or_else(|| here().map(|(step, ..)| (step, Vec::new())))?;
    Some([vec![step.clone()], path].concat())
}

/// Returns the value at the end of the path.
fn at<'t, 'a>(value: &'t mut Spanned<DeValue<'a>>, path: &[Step]) -> Option<&'t mut Spanned<DeValue<'a>>> {
    path.iter().try_fold(value, |value, step| match (value.get_mut(), step) {
        (DeValue::Table(table), Step::Key(key)) => table.get_mut(key.as_str()),
        (DeValue::Array(list), Step::Element(n)) => list.get_mut(*n),
        _ => None,
    })
}

/// Removes the value at the end of the path, and returns the keys on it, each with the span of its table.
fn remove(tree: &mut Spanned<DeValue<'_>>, path: &[Step]) -> Vec<(Range<usize>, String)> {
    let mut keys = Vec::new();
    for (n, step) in path.iter().enumerate() {
        if let (Step::Key(key), Some(table)) = (step, at(tree, &path[..n])) {
            keys.push((table.span(), key.clone()));
        }
    }
    let Some((last, holder)) = path.split_last() else { return keys };
    match (at(tree, holder).map(Spanned::get_mut), last) {
        (Some(DeValue::Table(table)), Step::Key(key)) => drop(table.remove(key.as_str())),
        (Some(DeValue::Array(list)), Step::Element(n)) => {
            let all = std::mem::replace(list, DeArray::new()).into_iter().enumerate();
            *list = all.filter(|(at, _)| at != n).map(|(_, value)| value).collect();
        }
        _ => {}
    }
    keys
}

fn insert(tree: &mut Spanned<DeValue<'_>>, path: &[Step], key: &'static str, text: &'static str) {
    if let Some(value) = at(tree, path) {
        // Its span is empty, so that a later error at the table's position does not seem to be in it.
        let place = value.span().start..value.span().start;
        if let DeValue::Table(table) = value.get_mut() {
            table.insert(Spanned::new(place.clone(), key.into()), Spanned::new(place, DeValue::String(text.into())));
        }
    }
}

/// Translates an error of serde into a message for the author of the file, and a remedy.
fn explain(complaint: &str, place: &[Step]) -> (String, String) {
    let keys: Vec<&str> =
        place.iter().filter_map(|step| if let Step::Key(key) = step { Some(&**key) } else { None }).collect();
    let key = *keys.last().expect("a place ends in an entry of a table");
    // Errors of our own forms have the remedy in a second line.
    if let Some((message, help)) = complaint.split_once('\n') {
        return (message.to_owned(), help.to_owned());
    }
    // The value is out of range.
    if complaint.starts_with("cannot be ") {
        let schema = schema::of(&keys);
        // Of a list, one of its elements is.
        return (format!("`{key}` {complaint}"), help_for(schema.get("items").unwrap_or(schema)));
    }
    let is_list = schema::of(&keys).get("items").is_some_and(schema::is_table);
    if complaint.starts_with("unknown field `") {
        return unknown_key(complaint, &keys, place);
    }
    if let Some(rest) = complaint.strip_prefix("missing field `") {
        let missing = rest.trim_end_matches('`');
        let example = &schema::table(schema::of(&keys))["properties"][missing]["examples"][0];
        let message = format!("`{}` has no `{missing}`", header(&keys, true));
        return (message, format!("add `{missing} = {}`", super::print::literal(example)));
    }
    if let Some(rest) = complaint.strip_prefix("unknown variant `") {
        let given = rest.split("`, expected").next().unwrap_or_default();
        let expected: Vec<String> =
            schema::choices(schema::of(&keys)).into_iter().map(|(name, _)| name.to_owned()).collect();
        let help = match nearest(given, &expected) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => {
                format!("write {}", expected.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" or "))
            }
        };
        return (format!("`{key}` cannot be \"{given}\""), help);
    }
    // toml's message for an enum value that is not text.
    if complaint == "wanted string or table" {
        return (format!("`{key}` must be in quotes"), format!("write {key} = \"...\""));
    }
    let Some((found, expected)) = complaint.split_once(", expected ") else {
        return (format!("`{key}`: {complaint}"), String::new());
    };
    let found = found.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ");
    let found = match found {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        found => found.replacen("string \"", "\"", 1).replacen("integer `", "the number `", 1),
    };
    let expected = match expected {
        "a string" | "a borrowed string" | "path string" => "a string in quotes",
        "a boolean" => "true or false, without quotes",
        "usize" | "u16" | "u32" | "u64" => "a whole number, without quotes",
        "a sequence" if found.starts_with('"') => &format!("a list: [{found}]"),
        "a sequence" => "a list such as [\"a\", \"b\"]",
        "a map" => "a table",
        other => other,
    };
    let help = match is_list {
        true => format!("write `{}`, with double brackets", header(&keys, true)),
        false => format!("write {expected}"),
    };
    (format!("`{key}` cannot be {found}"), help)
}

/// Formats the header of a table.
fn header(keys: &[&str], is_list: bool) -> String {
    let path = keys.join(".");
    if is_list { format!("[[{path}]]") } else { format!("[{path}]") }
}

fn unknown_key(complaint: &str, keys: &[&str], place: &[Step]) -> (String, String) {
    let (key, path) = keys.split_last().expect("a place ends in an entry of a table");
    let expected = expected_names(complaint);
    let table = match place {
        [Step::Key(_)] => "at the top level".to_owned(),
        _ => format!("in `{}`", header(path, schema::of(path).get("items").is_some())),
    };
    let help = match nearest(key, &expected) {
        Some(name) => format!("did you mean `{name}`?"),
        None => match home(key, &mut Vec::new(), schema::schema()) {
            Some(home) => format!("`{key}` belongs {home}"),
            None => format!("valid keys are {}", expected.join(", ")),
        },
    };
    (format!("unknown key `{key}` {table}"), help)
}

/// Returns where a key belongs: in the first table that has one of this name.
fn home(key: &str, path: &mut Vec<&'static str>, schema: &'static Value) -> Option<String> {
    let table = schema::table(schema);
    if schema::keys(table).any(|(name, _)| name == key) {
        return Some(match path.is_empty() {
            true => "at the top of the file, before the first `[table]`".to_owned(),
            false => format!("in `{}`", header(path, schema.get("items").is_some())),
        });
    }
    schema::keys(table).filter(|(_, schema)| schema::is_table(schema)).find_map(|(name, schema)| {
        path.push(name);
        let found = home(key, path, schema);
        path.pop();
        found
    })
}

/// Returns the names that serde lists: "expected one of `a`, `b`".
fn expected_names(complaint: &str) -> Vec<String> {
    let list = complaint.rsplit_once("`, expected ").map_or("", |(_, list)| list);
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the name that was probably intended. A third of its letters may be wrong: enough for `contnt_byts`, but it
/// does not suggest `user` for `index`. Or it may be abbreviated, spelled out or incomplete: `gz`, `maximum`, `head`
/// for
/// `max_header_bytes`.
fn nearest<'a>(given: &str, names: &'a [String]) -> Option<&'a str> {
    let given = given.to_lowercase().replace('-', "_");
    let distance = |name: &str| strsim::osa_distance(&given, name);
    let name = names.iter().min_by_key(|name| distance(name))?;
    if distance(name) <= (name.len() / 3).max(1) {
        return Some(name);
    }
    let inner = format!("_{given}");
    let part = |name: &&String| {
        given.len() > 1 && (name.starts_with(&given) || given.starts_with(name.as_str()) || name.contains(&inner))
    };
    names.iter().find(part).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typo_suggests_nearest_key() {
        let names = |path: &[&str]| -> Vec<String> {
            schema::keys(schema::table(schema::of(path))).map(|(name, _)| name.to_owned()).collect()
        };
        let check = |path: &[&str], given: &str, expected: Option<&str>| {
            assert_eq!(nearest(given, &names(path)), expected, "{given}");
        };
        check(&["site"], "precompresed", Some("precompressed"));
        check(&["site"], "user-dirs", Some("user_dirs"));
        check(&["site"], "Root", Some("root"));
        check(&["site"], "host", Some("hosts"));
        check(&["site"], "index_names", Some("index"));
        check(&["site"], "i", None);
        check(&["site"], "workers", None);
        check(&["limits"], "head", Some("max_header_bytes"));
        check(&["limits"], "requests", Some("max_requests"));
        check(&["limits"], "idle_time", Some("idle_timeout"));
    }
}
