//! A location of a server, with what is in force there.

use super::guards::{Access, Guards};
use super::paths::Paths;
use super::rewrite::Routes;
use super::scope::Scope;
use super::tree::Directive;

/// A location, with the blocks around it.
#[derive(Clone)]
pub(super) struct Location<'a> {
    pub(super) paths: Paths,
    pub(super) directive: &'a Directive,
    pub(super) scope: Scope<'a>,
    pub(super) routes: Vec<(&'a Directive, Routes)>,
    pub(super) guards: Guards<'a>,
    /// The path at which its application is asked for authorizations, if it is.
    pub(super) asked_at: Option<String>,
    /// Why it cannot be translated.
    pub(super) refused: Option<&'static str>,
}

impl<'a> Location<'a> {
    /// A location without routes.
    pub(super) fn new(paths: Paths, directive: &'a Directive, scope: Scope<'a>) -> Location<'a> {
        let guards = Guards::of(&scope);
        Location { paths, directive, scope, routes: Vec::new(), guards, asked_at: None, refused: None }
    }

    /// Whether it stands for all paths without a location.
    pub(super) fn is_rest(&self, server: &Directive) -> bool {
        std::ptr::eq(self.directive, server)
    }

    /// Whether it forwards its requests.
    pub(super) fn has_app(&self) -> bool {
        self.scope.has_app()
    }

    /// Whether its routes answer all its requests.
    pub(super) fn is_answered(&self) -> bool {
        self.scope.own("return").next().is_some() || self.is_closed()
    }

    /// Whether a route refuses all its requests.
    pub(super) fn is_closed(&self) -> bool {
        self.refused.is_some() || self.guards.access == Access::None
    }

    /// Whether it sends files.
    pub(super) fn has_files(&self) -> bool {
        !self.has_app() && !self.is_answered() && self.scope.own("stub_status").next().is_none()
    }

    /// Whether a route applies to some of its requests.
    pub(super) fn has_routes(&self) -> bool {
        !self.routes.is_empty()
            || self.is_closed()
            || self.guards.is_internal
            || self.guards.methods.is_some()
            || self.leaves_directories_out()
    }

    /// Whether `try_files` does not try directories; a route then handles them.
    fn leaves_directories_out(&self) -> bool {
        self.scope.get("try_files").is_some_and(|tried| !tried.args.iter().any(|name| name == "$uri/"))
    }
}
