//! Locations: nginx's precedence, and patterns of paths that have the same meaning in amped.
//!
//! nginx takes the exact location, else the longest prefix, and that only if it has `^~` or no regular expression matches, which are tried
//! in order. amped takes the first rule that matches, so the locations are sorted by this precedence.

use std::cmp::Reverse;

use amped_core::glob::Glob;

/// The paths of a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Paths {
    /// `= /path`
    Exact(String),
    /// `/path`, or with `^~` before it.
    Prefix { path: String, is_final: bool },
    /// `~ regex`, or `~*`.
    Regex {
        regex: String,
        is_caseless: bool,
        /// Within another location, whose regular expressions precede those outside.
        is_nested: bool,
    },
    /// `@name`
    Named(String),
}

impl Paths {
    /// The paths of a location with these arguments.
    pub(super) fn of(args: &[String]) -> Paths {
        let own = |text: &str| text.to_owned();
        match args {
            [modifier, path] => match modifier.as_str() {
                "=" => Paths::Exact(own(path)),
                "^~" => Paths::Prefix { path: own(path), is_final: true },
                other => Paths::Regex { regex: own(path), is_caseless: other == "~*", is_nested: false },
            },
            [only] => match only.as_bytes() {
                [b'=', ..] => Paths::Exact(own(&only[1..])),
                [b'^', b'~', ..] => Paths::Prefix { path: own(&only[2..]), is_final: true },
                [b'~', b'*', ..] => Paths::Regex { regex: own(&only[2..]), is_caseless: true, is_nested: false },
                [b'~', ..] => Paths::Regex { regex: own(&only[1..]), is_caseless: false, is_nested: false },
                [b'@', ..] => Paths::Named(own(only)),
                _ => Paths::Prefix { path: own(only), is_final: false },
            },
            _ => Paths::Prefix { path: own("/"), is_final: false },
        }
    }

    /// These paths, of a location within another one.
    pub(super) fn within(self, around: Option<&Paths>) -> Paths {
        match (self, around) {
            (Paths::Regex { regex, is_caseless, .. }, Some(Paths::Prefix { path, .. })) => {
                let is_narrow = path == "/" || regex.starts_with('^');
                let directory = regex_escape(path.trim_end_matches('/'));
                let between = if path.ends_with('/') { "(?:/.*)?" } else { ".*" };
                let regex = if is_narrow { regex } else { format!("^{directory}{between}(?:{regex})") };
                Paths::Regex { regex, is_caseless, is_nested: true }
            }
            (paths, _) => paths,
        }
    }

    /// The pattern of these paths.
    pub(super) fn pattern(&self) -> String {
        match self {
            Paths::Exact(path) => escape(path),
            Paths::Prefix { path, .. } => escape(path) + "**",
            Paths::Regex { regex, is_caseless: true, .. } => format!("~*{regex}"),
            Paths::Regex { regex, .. } => format!("~{regex}"),
            Paths::Named(_) => "/**".to_owned(),
        }
    }

    /// A route that applies to these paths and changes nothing, so that none after it does: its pattern and target.
    pub(super) fn stop(&self) -> (String, String) {
        match self {
            Paths::Exact(path) => (escape(path), path.clone()),
            Paths::Prefix { path, .. } => (self.pattern(), format!("{path}$1")),
            Paths::Regex { regex, is_caseless, .. } => {
                let star = if *is_caseless { "*" } else { "" };
                // The group begins with the slash of the path; two slashes of a rewritten path become one.
                (format!("~{star}(?s)^(.*(?:{}).*)$", ungrouped(regex)), "/$1".to_owned())
            }
            Paths::Named(_) => ("/**".to_owned(), "/$1".to_owned()),
        }
    }

    /// The directory with these paths, if they are one: `/a/` and `/a` are `/a/`.
    pub(super) fn directory(&self) -> Option<String> {
        match self {
            Paths::Prefix { path, .. } => Some(format!("{}/", path.trim_end_matches('/'))),
            _ => None,
        }
    }

    /// Whether these are the names that begin with a dot, but for `/.well-known`.
    pub(super) fn is_hidden_files(&self) -> bool {
        matches!(self, Paths::Regex { regex, .. } if regex.trim_start_matches('^').starts_with("/\\.(?!well-known"))
    }

    /// Whether these are all paths.
    pub(super) fn is_all(&self) -> bool {
        matches!(self, Paths::Prefix { path, .. } if path == "/")
    }

    /// The directory or file of the root that these paths are: `static` of `/static/`; the root itself is the empty text.
    pub(super) fn first_segment(&self) -> Option<&str> {
        let segment = match self {
            Paths::Exact(path) => path.strip_prefix('/')?,
            Paths::Prefix { path, .. } => path.strip_prefix('/')?.strip_suffix('/')?,
            Paths::Regex { .. } | Paths::Named(_) => return None,
        };
        (!segment.contains('/') && segment.is_ascii()).then_some(segment)
    }

    /// Whether a path may be among both; true if that is unknown.
    pub(super) fn may_overlap(&self, other: &Paths) -> bool {
        let begins = |path: &str, prefix: &Paths| matches!(prefix, Paths::Prefix { path: start, .. } if path.starts_with(start.as_str()));
        match (self, other) {
            (Paths::Named(_), _) | (_, Paths::Named(_)) => false,
            (Paths::Exact(a), Paths::Exact(b)) => a == b,
            (Paths::Exact(path), paths @ Paths::Prefix { .. }) | (paths @ Paths::Prefix { .. }, Paths::Exact(path)) => {
                begins(path, paths)
            }
            (Paths::Exact(path), Paths::Regex { .. }) => {
                Glob::parse(&other.pattern()).map_or(true, |glob| glob.matches(path.as_bytes()))
            }
            (Paths::Prefix { path: a, .. }, Paths::Prefix { path: b, .. }) => begins(a, other) || begins(b, self),
            (Paths::Regex { .. }, _) | (_, Paths::Regex { .. }) => true,
        }
    }
}

/// Sorts by precedence; `paths` are those of an element. Named locations, which no request chooses, come last.
pub(super) fn sort<T>(all: &mut [T], paths: impl Fn(&T) -> &Paths) {
    let finals: Vec<String> = all
        .iter()
        .filter_map(|one| match paths(one) {
            Paths::Prefix { path, is_final: true } => Some(path.clone()),
            _ => None,
        })
        .collect();
    all.sort_by_key(|one| match paths(one) {
        Paths::Exact(_) => (0, Reverse(0)),
        // One below a final prefix has to precede it. Regular expressions are then not tried before it.
        Paths::Prefix { path, .. } if finals.iter().any(|start| path.starts_with(start)) => (1, Reverse(path.len())),
        Paths::Regex { is_nested, .. } => (2, Reverse(usize::from(*is_nested))),
        Paths::Prefix { path, .. } => (3, Reverse(path.len())),
        Paths::Named(_) => (4, Reverse(0)),
    });
}

/// The text as a pattern that matches only itself.
pub(super) fn escape(text: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '{' | '}' | ',' | '\\');
    let escaped = text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect::<String>();
    // A comma is special only within braces.
    escaped.replace("\\,", ",")
}

/// The text as a regular expression that matches only itself.
fn regex_escape(text: &str) -> String {
    let special = |c: char| c.is_ascii_punctuation() && c != '/';
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// The regular expression without groups that are captured, if that is simple.
fn ungrouped(regex: &str) -> String {
    let mut made = String::new();
    let (mut is_escaped, mut is_class) = (false, false);
    let mut rest = regex.chars().peekable();
    while let Some(c) = rest.next() {
        made.push(c);
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '[' => is_class = true,
            ']' => is_class = false,
            '(' if !is_class && rest.peek() != Some(&'?') => made.push_str("?:"),
            _ => {}
        }
    }
    made
}

/// A regular expression that matches all paths but those whose first segment is one of these. amped gives an application all
/// paths of which it has the beginning, so a path is excluded by its first segment or not at all.
pub(super) fn all_but(segments: &[&str]) -> String {
    format!("~^/{}(/|$)", other_than(segments))
}

/// Matches any segment but these. The alternatives are: the next byte is none of theirs; or it is, and the rest is not.
fn other_than(segments: &[&str]) -> String {
    let mut firsts: Vec<u8> = segments.iter().filter_map(|segment| segment.bytes().next()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let class: String = firsts.iter().map(|&byte| literal(byte)).collect();
    let mut choices = vec![format!("[^/{class}][^/]*")];
    for first in firsts {
        let rests: Vec<&str> =
            segments.iter().filter(|text| text.bytes().next() == Some(first)).map(|text| &text[1..]).collect();
        choices.push(format!("{}{}", literal(first), other_than(&rests)));
    }
    // The segment may end here, if none of them does.
    let end = if segments.iter().any(|segment| segment.is_empty()) { "" } else { "?" };
    format!("({}){end}", choices.join("|"))
}

fn literal(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("\\x{byte:02x}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn paths(text: &str) -> Paths {
        Paths::of(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn locations_are_sorted_by_precedence() {
        let mut all: Vec<Paths> =
            ["/", "/a/", "~ x", "^~ /s/", "= /", "@name", "~* y", "/a/b/", "/s/t/"].map(paths).into();
        sort(&mut all, |one| one);
        let patterns: Vec<String> = all.iter().map(Paths::pattern).collect();
        assert_eq!(patterns, ["/", "/s/t/**", "/s/**", "~x", "~*y", "/a/b/**", "/a/**", "/**", "/**"]);
    }

    #[test]
    fn nested_regex_applies_within_its_location() {
        let check = |around: &str, path: &str, expected: bool| {
            let nested = paths("~ \\.php$").within(Some(&paths(around)));
            assert_eq!(Glob::new(&nested.pattern()).matches(path.as_bytes()), expected, "{around} {path}");
        };
        check("/pma.d/", "/pma.d/a/b.php", true);
        check("/pma.d/", "/b.php", false);
        check("/pma.d/", "/pma-d/b.php", false);
        check("/pma", "/pma/b.php", true);
        check("/", "/b.php", true);
        let mut all = [paths("~ x"), paths("~ y").within(Some(&paths("/a/")))];
        sort(&mut all, |one| one);
        assert_eq!(all[1], paths("~ x"));
    }

    #[test]
    fn pattern_of_location_matches_its_paths() {
        let check = |location: &str, path: &str, expected: bool| {
            let pattern = paths(location).pattern();
            assert_eq!(Glob::new(&pattern).matches(path.as_bytes()), expected, "{location} {path}");
        };
        check("/a", "/abc/d", true);
        check("/a/", "/a", false);
        check("/a/", "/a/", true);
        check("= /a{b}*", "/a{b}*", true);
        check("= /a", "/a/", false);
        check("~* \\.PHP$", "/a.php", true);
        check("~ \\.PHP$", "/a.php", false);
    }

    proptest! {
        #[test]
        fn complement_matches_all_other_segments(
            segments in proptest::collection::vec("[a-c.]{0,3}", 1..4),
            segment in "[a-c.]{0,4}",
            rest in "(/[a-c]{0,2})?",
        ) {
            let list: Vec<&str> = segments.iter().map(String::as_str).collect();
            let glob = Glob::new(&all_but(&list));
            prop_assert_eq!(glob.matches(format!("/{segment}{rest}").as_bytes()), !segments.contains(&segment), "{}", glob.as_str());
        }

        #[test]
        fn stop_matches_the_same_paths(regex in "\\^?(/|[ab]|\\(a\\|b\\)|\\.){1,4}\\$?", path in "(/[ab]{0,2}){1,3}") {
            let location = paths(&format!("~ {regex}"));
            let (own, stop) = (Glob::new(&location.pattern()), Glob::new(&location.stop().0));
            prop_assert_eq!(own.matches(path.as_bytes()), stop.matches(path.as_bytes()));
            if let Some(captures) = stop.captures(path.as_bytes()) {
                prop_assert_eq!(&captures[..], &[path.as_bytes()]);
            }
        }
    }
}
