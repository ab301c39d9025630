//! The paths of a location, and patterns of paths that have the same meaning in amped.

use amped_core::glob::Glob;

use super::regexes::{self, Simplified};

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
        /// Whether it is what nginx matches; otherwise it matches more.
        is_exact: bool,
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
                other => Paths::regex(path, other == "~*"),
            },
            [only] => match only.as_bytes() {
                [b'=', ..] => Paths::Exact(own(&only[1..])),
                [b'^', b'~', ..] => Paths::Prefix { path: own(&only[2..]), is_final: true },
                [b'~', b'*', ..] => Paths::regex(&only[2..], true),
                [b'~', ..] => Paths::regex(&only[1..], false),
                [b'@', ..] => Paths::Named(own(only)),
                _ => Paths::Prefix { path: own(only), is_final: false },
            },
            _ => Paths::Prefix { path: own("/"), is_final: false },
        }
    }

    /// Those that a regular expression of nginx matches, or more.
    fn regex(regex: &str, is_caseless: bool) -> Paths {
        let Simplified { regex, is_exact } = regexes::simplified(regex);
        let paths = Paths::Regex { regex, is_caseless, is_exact };
        match Glob::parse(&paths.pattern()) {
            Ok(_) => paths,
            Err(_) => Paths::Regex { regex: "(?s:.*)".to_owned(), is_caseless: false, is_exact: false },
        }
    }

    /// Those of these paths that also begin with a prefix; `None` if there are none.
    pub(super) fn within(&self, prefix: &str) -> Option<Paths> {
        match self {
            Paths::Regex { regex, is_caseless, is_exact } => {
                let within = regexes::within(prefix, regex, *is_caseless)?;
                let is_exact = *is_exact && within.is_exact;
                Some(Paths::Regex { regex: within.regex, is_caseless: false, is_exact })
            }
            Paths::Prefix { path, .. } if prefix.starts_with(path.as_str()) => {
                Some(Paths::Prefix { path: prefix.to_owned(), is_final: false })
            }
            Paths::Exact(path) | Paths::Prefix { path, .. } => path.starts_with(prefix).then(|| self.clone()),
            Paths::Named(_) => None,
        }
    }

    /// The paths of a pattern of amped that a location or a `rewrite` has become.
    pub(super) fn of_pattern(pattern: &str) -> Paths {
        let unescape = |text: &str| text.replace("\\\\", "\0").replace('\\', "").replace('\0', "\\");
        match (pattern.strip_prefix("~*"), pattern.strip_prefix('~'), pattern.strip_suffix("**")) {
            (Some(regex), ..) => Paths::Regex { regex: regex.to_owned(), is_caseless: true, is_exact: true },
            (None, Some(regex), _) => Paths::Regex { regex: regex.to_owned(), is_caseless: false, is_exact: true },
            (None, None, Some(path)) => Paths::Prefix { path: unescape(path), is_final: false },
            (None, None, None) => Paths::Exact(unescape(pattern)),
        }
    }

    /// Whether this is exactly the set of paths that nginx means.
    pub(super) fn is_exact(&self) -> bool {
        !matches!(self, Paths::Regex { is_exact: false, .. })
    }

    /// Whether a path is one of these.
    pub(super) fn matches(&self, path: &str) -> bool {
        Glob::parse(&self.pattern()).map_or(true, |glob| glob.matches(path.as_bytes()))
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

    /// The pattern of an application of these paths.
    pub(super) fn app_pattern(&self) -> String {
        match self {
            // An application of `/` has all paths.
            Paths::Exact(path) if path == "/" => "~^/$".to_owned(),
            other => other.pattern(),
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

    /// Whether these are all paths.
    pub(super) fn is_all(&self) -> bool {
        matches!(self, Paths::Prefix { path, .. } if path == "/")
    }

    /// Whether a directory may be among these.
    pub(super) fn has_directories(&self) -> bool {
        match self {
            Paths::Exact(path) => path.ends_with('/'),
            Paths::Regex { regex, .. } => {
                regexes::ends(regex).is_none_or(|ends| ends.iter().any(|end| end.ends_with('/')))
            }
            Paths::Prefix { .. } | Paths::Named(_) => true,
        }
    }

    /// Whether this is one path whose name has a suffix.
    pub(super) fn is_file(&self) -> bool {
        matches!(self, Paths::Exact(path) if path.rsplit('/').next().is_some_and(|name| name.contains('.')))
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
            (Paths::Exact(path), regex) | (regex, Paths::Exact(path)) => regex.matches(path),
            (Paths::Prefix { path: a, .. }, Paths::Prefix { path: b, .. }) => begins(a, other) || begins(b, self),
            (Paths::Regex { .. }, Paths::Prefix { path, .. }) => self.within(path).is_some(),
            (Paths::Prefix { path, .. }, Paths::Regex { .. }) => other.within(path).is_some(),
            (Paths::Regex { regex: a, is_caseless, .. }, Paths::Regex { regex: b, is_caseless: other, .. }) => {
                !regexes::are_disjoint((a, *is_caseless), (b, *other))
            }
        }
    }
}

/// The text as a pattern that matches only itself.
pub(super) fn escape(text: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '{' | '}' | ',' | '\\');
    let escaped = text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect::<String>();
    // A comma is special only within braces.
    escaped.replace("\\,", ",")
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn paths(text: &str) -> Paths {
        Paths::of(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
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
