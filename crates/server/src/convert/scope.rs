//! The blocks around a directive: what is in force there.
//!
//! `files` and `apps` look up the directives in force in each location.

use std::collections::HashMap;

use super::tree::Directive;

/// What all servers share.
pub(super) struct Http<'a> {
    /// The directives of the block `http`.
    pub(super) block: &'a [Directive],
    pub(super) upstreams: HashMap<&'a str, &'a Directive>,
    /// The zones of `limit_req_zone`, by name.
    pub(super) zones: HashMap<&'a str, &'a Directive>,
    /// Those of `limit_conn_zone`.
    pub(super) connection_zones: HashMap<&'a str, &'a Directive>,
    /// The directives `proxy_cache_path` and `fastcgi_cache_path`, by their kind and the name of their zone.
    pub(super) caches: HashMap<(&'a str, &'a str), &'a Directive>,
}

/// Nested blocks, the outermost first; an inner one overrides the directives of the others.
#[derive(Clone)]
pub(super) struct Scope<'a>(Vec<&'a [Directive]>);

impl<'a> Scope<'a> {
    /// The directives of all blocks, the outermost block first.
    pub(super) fn directives(&self) -> impl Iterator<Item = &'a Directive> + use<'a> {
        self.0.clone().into_iter().flatten()
    }

    /// These blocks.
    pub(super) fn of(blocks: &[&'a [Directive]]) -> Scope<'a> {
        Scope(blocks.to_vec())
    }

    /// The innermost block.
    pub(super) fn innermost(&self) -> &'a [Directive] {
        self.0.last().copied().unwrap_or_default()
    }

    /// The innermost block that has a directive with one of these names.
    pub(super) fn nearest(&self, names: &[&str]) -> &'a [Directive] {
        let has = |block: &&&'a [Directive]| block.iter().any(|directive| names.contains(&directive.name.as_str()));
        self.0.iter().rev().find(has).copied().unwrap_or_default()
    }

    /// The directive with this name that is in force.
    pub(super) fn get(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).last()
    }

    /// Those with this name in the innermost block that has any.
    pub(super) fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a Directive> + use<'a, 'n> {
        let has = |block: &&&'a [Directive]| block.iter().any(|directive| directive.name == name);
        let block = self.0.iter().rev().find(has).copied().unwrap_or_default();
        block.iter().filter(move |directive| directive.name == name)
    }

    /// The directives of the innermost block with this name.
    pub(super) fn own<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a Directive> + use<'a, 'n> {
        self.innermost().iter().filter(move |directive| directive.name == name)
    }

    /// Whether the innermost block has an application.
    pub(super) fn has_app(&self) -> bool {
        ["proxy_pass", "fastcgi_pass"].iter().any(|name| self.own(name).next().is_some())
    }

    /// All but the innermost.
    pub(super) fn outer(&self) -> Scope<'a> {
        Scope(self.0.split_last().map_or_else(Vec::new, |(_, outer)| outer.to_vec()))
    }

    /// These, and one within them.
    pub(super) fn within(&self, block: &'a [Directive]) -> Scope<'a> {
        Scope(self.0.iter().copied().chain([block]).collect())
    }
}
