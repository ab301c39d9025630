//! The locations of a server in one list, whose first location that matches a path is the one that nginx chooses.
//!
//! nginx takes the exact location, else the longest prefix, and looks among the locations within that; then, unless the
//! prefix has `^~`, it tries the regular expressions around it in order. So a regular expression that precedes all
//! prefixes comes once, before them, and where some prefixes precede it, once for each of the others, limited to the
//! paths of that prefix. A location whose place cannot be expressed is listed no later than its place, with the reason
//! why it must be refused.

use super::location::Location;
use super::paths::Paths;
use super::regexes;
use super::scope::Scope;
use super::tree::Directive;

/// The locations of a server in order, and the named ones, which no request chooses.
pub(super) fn locations<'a>(server: &'a [Directive], scope: &Scope<'a>) -> (Vec<Location<'a>>, Vec<Location<'a>>) {
    let mut nodes = nodes(server, scope);
    let named = nodes.extract_if(.., |node| matches!(node.location.paths, Paths::Named(_)));
    let named = named.map(|node| node.location).collect();
    (level(&nodes), named)
}

/// A location, and those within it.
struct Node<'a> {
    location: Location<'a>,
    inner: Vec<Node<'a>>,
}

fn nodes<'a>(block: &'a [Directive], scope: &Scope<'a>) -> Vec<Node<'a>> {
    let locations = block.iter().filter(|directive| directive.name == "location");
    let nodes = locations.map(|directive| {
        let scope = scope.within(directive.inner());
        let inner = nodes(directive.inner(), &scope);
        Node { location: Location::new(Paths::of(&directive.args), directive, scope), inner }
    });
    nodes.collect()
}

impl<'a> Node<'a> {
    fn prefix(&self) -> Option<&str> {
        match &self.location.paths {
            Paths::Prefix { path, .. } => Some(path),
            Paths::Exact(_) | Paths::Regex { .. } | Paths::Named(_) => None,
        }
    }

    fn is_final(&self) -> bool {
        matches!(self.location.paths, Paths::Prefix { is_final: true, .. })
    }

    /// Whether a location within it precedes the regular expressions around it.
    fn has_early(&self) -> bool {
        self.inner.iter().any(|node| node.prefix().is_none() || node.has_early())
    }

    fn is_early(&self) -> bool {
        self.is_final() || self.has_early()
    }

    /// This location, marked as refused.
    fn refused(&self, why: &'static str) -> Location<'a> {
        Location { refused: Some(why), ..self.location.clone() }
    }

    /// This regular expression, after the locations within it.
    fn regexes(&self) -> Vec<Location<'a>> {
        let prefix = match &self.location.paths {
            Paths::Regex { regex, is_caseless: false, is_exact: true } => regexes::as_prefix(regex),
            _ => None,
        };
        match prefix {
            _ if self.inner.is_empty() => vec![self.location.clone()],
            Some(prefix) => {
                let inner = self.inner.iter().flat_map(Node::regexes);
                let mut all: Vec<_> = inner.filter_map(|location| limited(location, &prefix)).collect();
                all.push(self.location.clone());
                all
            }
            None => vec![self.refused("locations within a regular expression cannot be told from it")],
        }
    }

    /// The locations within it that precede the regular expressions around it.
    fn early(&self) -> Vec<Location<'a>> {
        let prefix = self.prefix().unwrap_or("/");
        let of = |is_exact: bool| self.inner.iter().filter(move |node| node.is_exact() == is_exact);
        let mut all: Vec<_> = of(true).map(|node| node.location.clone()).collect();
        let prefixes = longest_first(&self.inner);
        let has_regexes = of(false).any(|node| node.prefix().is_none());
        for (at, node) in prefixes.iter().enumerate() {
            all.extend(node.early());
            let is_below = prefixes[at + 1..].iter().any(|other| other.has_early() && is_below(node, other));
            if has_regexes && node.is_final() || is_below {
                all.push(node.refused("its precedence over the regular expressions around it cannot be expressed"));
            }
        }
        let regexes = of(false).filter(|node| node.prefix().is_none()).flat_map(Node::regexes);
        all.extend(regexes.filter_map(|location| limited(location, prefix)));
        all
    }

    /// This prefix, after the prefixes within it.
    fn prefixes(&self) -> Vec<Location<'a>> {
        let mut all: Vec<_> = longest_first(&self.inner).into_iter().flat_map(Node::prefixes).collect();
        all.push(self.location.clone());
        all
    }

    fn is_exact(&self) -> bool {
        matches!(self.location.paths, Paths::Exact(_))
    }
}

/// A location limited to the paths of a prefix.
fn limited<'a>(location: Location<'a>, prefix: &str) -> Option<Location<'a>> {
    let paths = location.paths.within(prefix)?;
    Some(Location { paths, ..location })
}

fn is_below(node: &Node<'_>, other: &Node<'_>) -> bool {
    matches!((node.prefix(), other.prefix()), (Some(path), Some(start)) if path.len() > start.len() && path.starts_with(start))
}

fn longest_first<'n, 'a>(nodes: &'n [Node<'a>]) -> Vec<&'n Node<'a>> {
    let mut all: Vec<&Node<'a>> = nodes.iter().filter(|node| node.prefix().is_some()).collect();
    all.sort_by_key(|node| std::cmp::Reverse(node.prefix().map(str::len)));
    all
}

/// The locations of a server.
fn level<'a>(nodes: &[Node<'a>]) -> Vec<Location<'a>> {
    let mut all: Vec<_> = nodes.iter().filter(|node| node.is_exact()).map(|node| node.location.clone()).collect();
    let regexes = nodes.iter().filter(|node| !node.is_exact() && node.prefix().is_none());
    let regexes: Vec<Location<'a>> = regexes.flat_map(Node::regexes).collect();
    let prefixes = longest_first(nodes);
    let mut late = Vec::new();
    for (at, node) in prefixes.iter().enumerate() {
        all.extend(node.early());
        // A path of this prefix does not belong to the shorter one.
        let is_below = prefixes[at + 1..].iter().any(|other| other.is_early() && is_below(node, other));
        if is_below && !node.is_final() {
            let prefix = node.prefix().unwrap_or("/");
            all.extend(regexes.iter().cloned().filter_map(|location| limited(location, prefix)));
        }
        match node.is_final() || is_below {
            true => all.extend(node.prefixes()),
            false => late.extend(node.prefixes()),
        }
    }
    all.extend(regexes);
    all.extend(late);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::tree;

    /// The paths of the locations in order.
    fn order(text: &str) -> Vec<String> {
        let server = tree::parse(text).expect("valid");
        let (all, named) = locations(&server, &Scope::of(&[&server]));
        assert!(named.iter().all(|location| matches!(location.paths, Paths::Named(_))));
        let shown = all.iter().map(|location| {
            let refused = if location.refused.is_some() { " refused" } else { "" };
            location.paths.pattern() + refused
        });
        shown.collect()
    }

    #[test]
    fn locations_are_in_order_of_precedence() {
        let check = |text: &str, expected: &[&str]| assert_eq!(order(text), expected, "{text}");
        check(
            "location / {} location /a/ {} location ~ x {} location ^~ /s/ {} location = / {} location @n {} location ~* y {} location /a/b/ {}",
            &["/", "/s/**", "~x", "~*y", "/a/b/**", "/a/**", "/**"],
        );
        // A prefix that begins with one with `^~` comes after the regular expressions.
        check(
            "location ^~ /s {} location /st/ {} location ~ \\.b$ {}",
            &["~^/st/(?s:.*)(?:\\.b$)", "/st/**", "/s**", "~\\.b$"],
        );
        // Locations within a location precede it.
        check(
            "location ~ \\.a$ {} location ^~ /s/ { location ~ \\.b$ {} location = /s/c {} location /s/d/ {} }",
            &["/s/c", "~^/s/(?s:.*)(?:\\.b$)", "/s/d/**", "/s/**", "~\\.a$"],
        );
        check(
            "location /s/ { location ~ \\.b$ {} } location /s/d/ {} location ~ \\.c$ {}",
            &["~^/s/d/(?s:.*)(?:\\.c$)", "/s/d/**", "~^/s/(?s:.*)(?:\\.b$)", "~\\.c$", "/s/**"],
        );
        check("location ~ ^/a/ { location ~ \\.b$ {} }", &["~^/a/(?s:.*)(?:\\.b$)", "~^/a/"]);
        check("location ~ a { location ~ b {} }", &["~a refused"]);
    }
}
