//! Which directories need an address, a password or an authorization, as `[[site.access]]`, `[[site.auth]]` and
//! `[[site.authorize]]`.
//!
//! These tables are for directories, of which the innermost applies, while nginx's directives are for locations. So each location
//! that restricts access is checked against all tables that may apply to its paths, and refused unless each of them refuses all
//! that the location does.

use serde_json::json;

use super::guards::{Access, Guards, Password};
use super::location::Location;
use super::page::{Page, SitePage};
use super::paths::Paths;
use super::tree::Directive;

/// A directory with tables of its own.
struct Cover<'a> {
    directory: String,
    /// The index of its location; `None` for the server.
    location: Option<usize>,
    /// What the tables enforce there.
    guards: Guards<'a>,
}

/// The directories of a site, the outer ones first.
pub(super) struct Covers<'a> {
    all: Vec<Cover<'a>>,
    /// Restricted locations such as `/a`, for which the first routes refuse all other paths that begin with this name.
    closed: Vec<(String, &'a Directive)>,
}

/// The file names of index pages and fallbacks, which requests for other paths lead to.
pub(super) fn other_names<'a>(locations: &[Location<'a>]) -> Vec<&'a str> {
    let of = |location: &Location<'a>| {
        let scope = location.scope.clone();
        let names =
            ["index", "try_files", "error_page"].into_iter().flat_map(move |name| scope.all(name).collect::<Vec<_>>());
        names.flat_map(|directive| directive.args.iter().map(String::as_str)).collect::<Vec<_>>()
    };
    locations.iter().flat_map(of).chain(["index.html"]).collect()
}

impl<'a> Covers<'a> {
    /// The directories of these locations and of the server around them. `names`: see [`other_names`]; `around`: the server.
    pub(super) fn of(server: Guards<'a>, locations: &[Location<'a>], names: &[&str], around: &Directive) -> Covers<'a> {
        let first = Cover { directory: "/".to_owned(), location: None, guards: server.without_routes() };
        let mut covers = Covers { all: vec![first], closed: closed(locations) };
        let mut all: Vec<(String, usize)> = locations
            .iter()
            .enumerate()
            .filter_map(|(at, location)| match &location.paths {
                Paths::Prefix { path, .. } => Some((format!("{}/", path.trim_end_matches('/')), at)),
                Paths::Exact(path) => {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let is_other = name.is_empty() || names.iter().any(|other| [name, path].contains(other));
                    (!is_other).then(|| (format!("{path}/"), at))
                }
                Paths::Regex { .. } | Paths::Named(_) => None,
            })
            .filter(|(_, at)| locations[*at].refused.is_none() && !locations[*at].is_rest(around))
            .collect();
        // Of `/a/` and `/a`, the first sets the tables of the directory.
        let is_inexact = |at: usize| !matches!(&locations[at].paths, Paths::Prefix { path, .. } if path.ends_with('/'));
        all.sort_by_key(|(directory, at)| (directory.len(), is_inexact(*at)));
        for (directory, at) in all {
            covers.add(directory, at, &locations[at]);
        }
        covers
    }

    /// Appends the routes that refuse what is not in a restricted directory.
    pub(super) fn routes(&self, page: &mut Page, site: &mut SitePage) {
        for (path, from) in &self.closed {
            let why = "only the directory is protected, so other paths that begin with its name get 503";
            page.note_here(site, from, why);
            let pattern = format!("~^{}[^/]", super::regexes::escape(path));
            page.rule(site, "route", json!({ "match": pattern, "deny": true, "status": 503 }), from);
        }
    }

    /// Appends redirects to directories that are open within restricted ones, since their tables also apply to the path
    /// without the slash, which belongs to another location.
    pub(super) fn redirects(&self, page: &mut Page, site: &mut SitePage, locations: &[Location<'a>]) {
        for (at, cover) in self.all.iter().enumerate().filter(|(at, _)| *at > 0) {
            let outer = Covers::innermost_of(&self.all[..at], &cover.directory);
            let path = cover.directory.trim_end_matches('/');
            let other = locations.iter().find(|location| location.paths.matches(path));
            let Some(other) = other.filter(|_| !path.is_empty() && !cover.guards.are_as_strict_as(&outer.guards))
            else {
                continue;
            };
            if cover.guards.are_as_strict_as(&other.guards) {
                continue;
            }
            if other.has_app() {
                let why = format!("{path} is redirected to {}, which is open", cover.directory);
                page.note_here(site, other.directive, &why);
            }
            let pattern = Paths::Exact(path.to_owned()).pattern();
            let table = json!({ "match": pattern, "redirect": cover.directory, "status": 301 });
            page.rule(site, "route", table, other.directive);
        }
    }

    fn add(&mut self, directory: String, at: usize, location: &Location<'a>) {
        let own = &location.guards;
        let is_known = self.all.iter().any(|cover| cover.location.is_some() && cover.directory == directory);
        let outer = &self.innermost(&directory).guards;
        let is_exact = matches!(location.paths, Paths::Exact(_));
        // Its table would open all paths below it, unless it is internal, which no client can request.
        if is_known || is_exact && !own.is_internal && !own.are_as_strict_as(outer) {
            return;
        }
        let mut guards = own.clone();
        if guards.access == Access::None {
            (guards.access, guards.from[0]) = (outer.access.clone(), outer.from[0]);
        }
        // A table cannot lift the password of the directory around it.
        if guards.password.is_none() {
            (guards.password, guards.from[1]) = (outer.password.clone(), outer.from[1]);
        }
        let is_needed = guards.access != outer.access
            || guards.password != outer.password
            || guards.authorization != outer.authorization;
        let location = Some(at);
        match self.all.iter_mut().find(|cover| cover.directory == directory) {
            // The location `/` replaces the server.
            Some(cover) => *cover = Cover { directory, location, guards },
            None if is_needed || !is_exact => self.all.push(Cover { directory, location, guards }),
            None => {}
        }
    }

    /// The innermost directory that has this path.
    fn innermost(&self, path: &str) -> &Cover<'a> {
        let has =
            |cover: &&Cover<'a>| path.starts_with(&cover.directory) || cover.directory.strip_suffix('/') == Some(path);
        self.all.iter().filter(has).max_by_key(|cover| cover.directory.len()).unwrap_or(&self.all[0])
    }

    /// The guards of all directories that may have paths of the location at this place, unless another location precedes it for all of
    /// such a directory.
    fn over<'c>(&'c self, at: usize, locations: &[Location<'a>]) -> Vec<&'c Guards<'a>> {
        // The directory of a single path restricts no less than the one around it, and contains no other path.
        let is_others = |cover: &&Cover<'a>| {
            let is_exact = |index: usize| matches!(locations[index].paths, Paths::Exact(_));
            cover.location.is_none_or(|index| index >= at && !is_exact(index))
        };
        let within = |path: &str| {
            let inner = self.all.iter().filter(is_others).filter(move |cover| cover.directory.starts_with(path));
            std::iter::once(self.innermost(path)).chain(inner).map(|cover| &cover.guards).collect()
        };
        match &locations[at].paths {
            Paths::Exact(path) => vec![&self.innermost(path).guards],
            Paths::Prefix { path, .. } if path.ends_with('/') => within(path),
            Paths::Prefix { path, .. } => {
                let mut all: Vec<&Guards<'a>> = within(&format!("{path}/"));
                all.push(&self.innermost(path).guards);
                // In the directory around it, other paths begin with this prefix too.
                if !self.closed.iter().any(|(own, _)| own == path) {
                    let directory = path.rfind('/').map_or("/", |slash| &path[..=slash]);
                    all.push(&self.innermost(directory).guards);
                }
                all
            }
            Paths::Regex { regex, is_caseless: false, .. } => {
                let start = super::regexes::anchored_start(regex).unwrap_or_default();
                match self.closed.iter().any(|(path, _)| *path == start) {
                    true => within(&format!("{start}/")),
                    false => within(start.rfind('/').map_or("/", |slash| &start[..=slash])),
                }
            }
            Paths::Regex { .. } => within("/"),
            Paths::Named(_) => Vec::new(),
        }
    }

    /// Whether the tables refuse all that the location at this place does.
    pub(super) fn suffice(&self, at: usize, locations: &[Location<'a>]) -> bool {
        self.over(at, locations).iter().all(|guards| guards.are_as_strict_as(&locations[at].guards))
    }

    /// A directive that the tables enforce although the location at this place does not require it.
    pub(super) fn excess(&self, at: usize, locations: &[Location<'a>]) -> Option<&'a Directive> {
        self.over(at, locations).iter().find_map(|guards| guards.excess_over(&locations[at].guards))
    }

    /// Appends the tables of the location at this place, or of the server (`None`). Returns whether each was accepted.
    pub(super) fn tables(&self, page: &mut Page, site: &mut SitePage, location: Option<usize>) -> bool {
        let Some(at) = self.all.iter().position(|cover| cover.location == location) else { return true };
        let Cover { directory, guards, .. } = &self.all[at];
        let outer = match directory.as_str() {
            "/" => None,
            own => Some(&Covers::innermost_of(&self.all[..at], own).guards),
        };
        let mut is_accepted = true;
        let [access, password, authorization] = guards.from;
        if guards.access != outer.map_or(Access::All, |outer| outer.access.clone())
            && let Some(from) = access.or(outer.and_then(|outer| outer.from[0]))
        {
            is_accepted &= access_table(page, site, directory, &guards.access, from);
        }
        if guards.password.as_ref() != outer.and_then(|outer| outer.password.as_ref())
            && let (Some(Password { realm, file, exempt }), Some(from)) = (&guards.password, password)
        {
            let mut table = json!({ "directory": directory, "realm": realm, "accounts": file });
            if !exempt.is_empty() {
                table["exempt"] = json!(exempt);
            }
            is_accepted &= page.rule(site, "auth", table, from);
        }
        if guards.authorization.as_ref() != outer.and_then(|outer| outer.authorization.as_ref())
            && let Some(from) = authorization.or(outer.and_then(|outer| outer.from[2]))
        {
            let mut table = json!({ "directory": directory });
            if let Some(own) = &guards.authorization {
                table["request"] = own.path.as_str().into();
                if !own.copied.is_empty() {
                    table["copy_to_request"] = json!(own.copied);
                }
                if !own.added.is_empty() {
                    table["copy_to_response"] = json!(own.added);
                }
                if let Some(login) = &guards.login {
                    table["login"] = (**login).into();
                }
            }
            is_accepted &= page.rule(site, "authorize", table, from);
        }
        is_accepted
    }

    fn innermost_of<'c>(covers: &'c [Cover<'a>], path: &str) -> &'c Cover<'a> {
        let outer = covers.iter().filter(|cover| path.starts_with(&cover.directory));
        outer.max_by_key(|cover| cover.directory.len()).unwrap_or(&covers[0])
    }
}

fn access_table(page: &mut Page, site: &mut SitePage, directory: &str, access: &Access, from: &Directive) -> bool {
    let mut table = json!({ "directory": directory });
    match access {
        // The inner table opens the directory.
        Access::All => table["allow"] = json!(["0.0.0.0/0", "::/0"]),
        Access::None => return true,
        Access::Some { allow, deny } => {
            for (key, list) in [("allow", allow), ("deny", deny)] {
                if !list.is_empty() {
                    table[key] = json!(list);
                }
            }
        }
    }
    page.rule(site, "access", table, from)
}

/// Restricted locations that are not directories, unless other locations begin with their names.
fn closed<'a>(locations: &[Location<'a>]) -> Vec<(String, &'a Directive)> {
    let own = locations.iter().filter(|location| !location.is_answered() && location.guards.have_tables());
    let paths = own.filter_map(|location| match &location.paths {
        Paths::Prefix { path, .. } if !path.ends_with('/') => Some((path.clone(), location.directive)),
        _ => None,
    });
    let is_other = |location: &Location<'_>, own: &str| match &location.paths {
        Paths::Prefix { path, .. } | Paths::Exact(path) => {
            path.strip_prefix(own).is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
        }
        Paths::Regex { .. } | Paths::Named(_) => false,
    };
    paths.filter(|(own, _)| !locations.iter().any(|location| is_other(location, own))).collect()
}
