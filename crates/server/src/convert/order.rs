//! The locations of a server, with those within them.

use super::paths::Paths;
use super::scope::{Location, Scope};
use super::tree::Directive;

/// Appends the locations of a block, and those within them.
pub(super) fn collect<'a>(
    block: &'a [Directive],
    scope: &Scope<'a>,
    around: Option<&Paths>,
    all: &mut Vec<Location<'a>>,
) {
    for directive in block.iter().filter(|directive| directive.name == "location") {
        let scope = scope.within(directive.inner());
        let paths = Paths::of(&directive.args).within(around);
        collect(directive.inner(), &scope, Some(&paths), all);
        all.push(Location { paths, directive, scope, routes: Vec::new() });
    }
}
