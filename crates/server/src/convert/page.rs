//! The configuration that a conversion makes, and the list of what it cannot express.
//!
//! The other modules add tables as JSON. Each table is parsed as the type that `amped` itself reads it with, so that one it would
//! not accept becomes a note with its reason instead. Notes become comments where the directive would have had its effect.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use amped_core::access::AccessRule;
use amped_core::authorize::AuthorizeRule;
use amped_core::glob::Glob;
use amped_core::headers::HeaderRule;
use amped_core::request_limit::RequestLimit;
use amped_core::routes::Fallback;
use amped_core::site::Unlogged;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::tree::Directive;
use crate::config::file::{AliasTable, AppTable, AuthTable, File, RouteTable, SiteTable};
use crate::config::print;

/// The configuration so far.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// The keys and tables before the sites.
    pub(super) top: Map<String, Value>,
    notes: Vec<String>,
    pub(super) sites: Vec<SitePage>,
    /// All notes, each once, in the order of the configuration.
    said: BTreeSet<String>,
    /// Directives of which nothing is left, although their kind has no equivalent: their places and texts.
    pub(super) converted: BTreeSet<(String, String)>,
    pub(super) left: Vec<String>,
    pub(super) warnings: Vec<String>,
    /// The zones that count something already, and the place of the rule that does.
    pub(super) counted: BTreeMap<String, String>,
}

/// A site: its keys, then its rules in order, with notes between them.
#[derive(Debug, Default)]
pub(super) struct SitePage {
    pub(super) keys: Map<String, Value>,
    notes: Vec<String>,
    rules: Vec<Item>,
    /// The number of routes that refuse what could not be translated.
    pub(super) refusals: usize,
}

#[derive(Debug)]
enum Item {
    Rule { kind: &'static str, place: String, table: Value },
    Note(String),
}

impl Page {
    /// Sets a key of a table before the sites, such as `["limits", "body_timeout"]`, or notes why that is not possible.
    pub(super) fn set(&mut self, path: &[&str], value: Value, from: &Directive) {
        let whole = path.iter().rev().fold(value.clone(), |inner, key| json!({ *key: inner }));
        if let Err(why) = accepted::<File>(&whole) {
            return self.note(from, &why);
        }
        let (last, tables) = path.split_last().expect("a key");
        let mut table = &mut self.top;
        for name in tables {
            table = table.entry(*name).or_insert_with(|| json!({})).as_object_mut().expect("a table");
        }
        table.insert((*last).to_owned(), value);
    }

    /// Notes that a directive outside sites is not converted.
    pub(super) fn note(&mut self, from: &Directive, why: &str) {
        if let Some(note) = self.said(from, why) {
            self.notes.push(note);
        }
    }

    /// Notes that a directive of a site is not converted.
    pub(super) fn note_in(&mut self, site: &mut SitePage, from: &Directive, why: &str) {
        if let Some(note) = self.said(from, why) {
            site.notes.push(note);
        }
    }

    /// The same, at this place among the rules of the site.
    pub(super) fn note_here(&mut self, site: &mut SitePage, from: &Directive, why: &str) {
        if let Some(note) = self.said(from, why) {
            site.rules.push(Item::Note(note));
        }
    }

    /// The text of a note, unless it was made before: several sites inherit a directive.
    fn said(&mut self, from: &Directive, why: &str) -> Option<String> {
        let note = format!("{}: not converted: `{}`: {why}", from.place(), from.text());
        if self.converted.contains(&(from.place(), from.text())) || !self.said.insert(note.clone()) {
            return None;
        }
        self.left.push(note.clone());
        Some(note)
    }

    /// Warns, at this place among the rules of the site, that a directive is converted to what is less safe than the default.
    pub(super) fn warn_here(&mut self, site: &mut SitePage, from: &Directive, why: &str) {
        let note = format!("{}: warning: `{}`: {why}", from.place(), from.text());
        if self.said.insert(note.clone()) {
            self.warnings.push(note.clone());
            site.rules.push(Item::Note(note));
        }
    }

    /// Sets a key of a site, or notes why that is not possible.
    pub(super) fn site_key(&mut self, site: &mut SitePage, key: &str, value: Value, from: &Directive) -> bool {
        match accepted::<SiteTable>(&json!({ key: value })) {
            Ok(()) => _ = site.keys.insert(key.to_owned(), value),
            Err(why) => {
                self.note_in(site, from, &why);
                return false;
            }
        }
        true
    }

    /// Appends a rule of a site, or a note why that is not possible.
    pub(super) fn rule(&mut self, site: &mut SitePage, kind: &'static str, table: Value, from: &Directive) -> bool {
        let accepted = match kind {
            "route" => accepted::<RouteTable>(&table),
            "alias" => accepted::<AliasTable>(&table),
            "fallback" => accepted::<Fallback>(&table),
            "unlogged" => accepted::<Unlogged>(&table),
            "access" => accepted::<AccessRule>(&table),
            "limit" => accepted::<RequestLimit>(&table),
            "auth" => accepted::<AuthTable>(&table),
            "authorize" => accepted::<AuthorizeRule>(&table),
            "app" => accepted::<AppTable>(&table),
            _ => accepted::<HeaderRule>(&table),
        };
        if let Err(why) = accepted {
            self.note_here(site, from, &why);
            return false;
        }
        site.rules.push(Item::Rule { kind, place: from.place(), table });
        true
    }

    /// Refuses paths with 503, and notes why: nothing else would be sure to refuse what nginx refuses.
    pub(super) fn refuse(&mut self, site: &mut SitePage, pattern: &str, from: &Directive, why: &str) {
        self.note_here(site, from, &format!("{why}; its paths get 503"));
        site.refusals += 1;
        if !self.rule(site, "route", refusal(pattern), from) {
            site.precede("route", refusal("/**"), from);
        }
    }

    /// Refuses all paths of a site with 503.
    pub(super) fn refuse_site(&mut self, site: &mut SitePage, from: &Directive, why: &str) {
        self.note_in(site, from, &format!("{why}; the site responds with 503"));
        site.precede("route", refusal("/**"), from);
    }

    /// Replaces each fallback by a note whose file a route denies, which the server would not accept.
    pub(super) fn deny_fallbacks(&mut self, site: &mut SitePage) {
        let route = |table: &Value| {
            let glob = Glob::parse(table["match"].as_str()?).ok()?;
            Some((glob, table["deny"] == true && table["when"].is_null()))
        };
        let routes: Vec<(Glob, bool)> = site.tables("route").filter_map(route).collect();
        for item in &mut site.rules {
            let Item::Rule { kind: "fallback", place, table } = item else { continue };
            let file = table["file"].as_str().unwrap_or_default();
            if routes.iter().find(|(glob, _)| glob.matches(file.as_bytes())).is_some_and(|(_, is_denied)| *is_denied) {
                let note = format!("{place}: not converted: `try_files`: another location denies {file}");
                self.left.push(note.clone());
                *item = Item::Note(note);
            }
        }
    }

    /// The text of the file.
    pub(super) fn text(&self, source: &str) -> String {
        let mut text = format!(
            "# Converted from {source} by `amped convert`. Check it with   amped check --config FILE\n\
             # docs/configuration.md describes each key; the comments name what could not be converted.\n\n"
        );
        comments(&mut text, &self.notes);
        text += &print::keys_of(&[], &Value::Object(self.top.clone()));
        for site in &self.sites {
            text += "\n[[site]]\n";
            comments(&mut text, &site.notes);
            text += &print::keys_of(&["site"], &Value::Object(site.keys.clone()));
            for item in &site.rules {
                match item {
                    Item::Rule { kind, place, table } => {
                        // Writing to a string cannot fail.
                        let _ = writeln!(text, "\n[[site.{kind}]]  # {place}");
                        text += &print::keys_of(&["site", kind], table);
                    }
                    Item::Note(note) => {
                        text.push('\n');
                        comments(&mut text, std::slice::from_ref(note));
                    }
                }
            }
        }
        text
    }
}

impl SitePage {
    /// Returns whether a rule of this kind has this value.
    pub(super) fn has_rule(&self, wanted: &str, key: &str, value: &str) -> bool {
        self.tables(wanted).any(|table| table[key] == value)
    }

    /// Adds a condition on the scheme to the rules of backends that match a path, but for the first `skip` rules of applications.
    pub(super) fn require_scheme(&mut self, path: &[u8], scheme: &str, skip: usize) {
        let rules = self.rules.iter_mut().filter_map(|item| match item {
            Item::Rule { kind: "app", table, .. } => Some(table),
            Item::Rule { .. } | Item::Note(_) => None,
        });
        for table in rules.skip(skip).filter(|table| !table["http"].is_null() && matches(table, path)) {
            table["when"]["scheme"] = scheme.into();
        }
    }

    /// Inserts a rule before all others.
    pub(super) fn precede(&mut self, kind: &'static str, table: Value, from: &Directive) {
        self.rules.insert(0, Item::Rule { kind, place: from.place(), table });
    }

    /// Whether a rule of this kind matches a path.
    pub(super) fn has_match(&self, wanted: &str, path: &[u8]) -> bool {
        self.tables(wanted).any(|table| matches(table, path))
    }

    /// The rules of a kind.
    pub(super) fn tables(&self, wanted: &str) -> impl Iterator<Item = &Value> {
        self.rules.iter().filter_map(move |item| match item {
            Item::Rule { kind, table, .. } if *kind == wanted => Some(table),
            _ => None,
        })
    }
}

/// A route that refuses paths.
fn refusal(pattern: &str) -> Value {
    json!({ "match": pattern, "deny": true, "status": 503 })
}

/// Whether the pattern of a table matches a path.
fn matches(table: &Value, path: &[u8]) -> bool {
    let pattern = table["match"].as_str().and_then(|text| Glob::parse(text).ok());
    pattern.is_some_and(|glob| glob.matches(path))
}

fn comments(text: &mut String, notes: &[String]) {
    notes.iter().for_each(|note| _ = writeln!(text, "# {note}"));
}

/// Checks that a table is one that the server reads; the error is its reason in one line.
fn accepted<T: DeserializeOwned>(table: &Value) -> Result<(), String> {
    match serde_json::from_value::<T>(table.clone()) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string().lines().collect::<Vec<_>>().join("; ")),
    }
}
