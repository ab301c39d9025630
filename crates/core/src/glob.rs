//! Patterns over paths, as in `.gitignore` and in shells: `*` within a segment, `**` across segments, `?` for one byte.
//!
//! A pattern without a slash is matched against the last segment alone, so that `*.css` means every style sheet.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pattern: Box<[u8]>,
    whole_path: bool,
}

impl Glob {
    /// Every text is a pattern.
    pub fn new(pattern: &str) -> Glob {
        Glob { pattern: pattern.as_bytes().into(), whole_path: pattern.contains('/') }
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.pattern).expect("made from a str")
    }

    /// Whether `path`, which begins with a slash, matches.
    pub fn matches(&self, path: &[u8]) -> bool {
        if self.whole_path {
            let pattern = self.pattern.strip_prefix(b"/").unwrap_or(&self.pattern);
            return matches(pattern, path.strip_prefix(b"/").unwrap_or(path));
        }
        let start = path.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        matches(&self.pattern, &path[start..])
    }
}

impl Glob {
    /// How many stars it has; two in a row are one.
    pub fn stars(&self) -> usize {
        let (mut rest, mut count) = (&*self.pattern, 0);
        while let Some(at) = rest.iter().position(|&byte| byte == b'*') {
            rest = rest[at + 1..].strip_prefix(b"*").unwrap_or(&rest[at + 1..]);
            count += 1;
        }
        count
    }

    /// What each star stands for in a path that matches, in their order, each as little as it can.
    pub fn captures<'p>(&self, path: &'p [u8]) -> Option<Vec<&'p [u8]>> {
        let (pattern, text) = match self.whole_path {
            true => (self.pattern.strip_prefix(b"/").unwrap_or(&self.pattern), path.strip_prefix(b"/").unwrap_or(path)),
            false => (&*self.pattern, &path[path.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1)..]),
        };
        let failed = alloc::vec![false; pattern.len() * (text.len() + 1)];
        let mut search = Search { pattern, text, stars: Vec::new(), failed };
        let found = search.go(0, 0);
        found.then(|| search.stars.iter().map(|&(from, to)| &text[from..to]).collect())
    }
}

/// A search for what stars stand for. From no place is it made twice, so it takes as many steps as there are places at most:
/// stars times bytes, each with as many ways on as there are bytes left.
struct Search<'a> {
    pattern: &'a [u8],
    text: &'a [u8],
    stars: Vec<(usize, usize)>,
    /// For each place in the pattern and each in the text, whether a star there was tried and nothing came of it.
    failed: Vec<bool>,
}

impl Search<'_> {
    /// Whether the rest of the pattern matches the rest of the text.
    fn go(&mut self, mut p: usize, mut t: usize) -> bool {
        loop {
            match (self.pattern.get(p), self.text.get(t)) {
                (Some(b'*'), _) => break,
                (Some(b'?'), Some(&c)) if c != b'/' => {}
                (Some(&a), Some(&c)) if a == c && a != b'?' => {}
                (None, None) => return true,
                _ => return false,
            }
            (p, t) = (p + 1, t + 1);
        }
        let place = p * (self.text.len() + 1) + t;
        if !self.failed[place] {
            let is_double = self.pattern[p..].starts_with(b"**");
            let after = p + if is_double { 2 } else { 1 };
            // As in `matches`: the slash behind the stars may stand for nothing.
            if is_double && self.pattern.get(after) == Some(&b'/') && (t == 0 || self.text[t - 1] == b'/') {
                self.stars.push((t, t));
                if self.go(after + 1, t) {
                    return true;
                }
                self.stars.pop();
            }
            for end in t..=self.text.len() {
                self.stars.push((t, end));
                if self.go(after, end) {
                    return true;
                }
                self.stars.pop();
                if !is_double && self.text.get(end) == Some(&b'/') {
                    break;
                }
            }
            self.failed[place] = true;
        }
        false
    }
}

/// Backtracks to the last star only for `*`, and to the last double star beyond that: at most quadratic in the path.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    let mut double: Option<(usize, usize)> = None;
    loop {
        if pattern[p..].starts_with(b"**") {
            p += 2;
            // `a/**/b` also means `a/b`: the slash behind the stars may stand for nothing.
            if pattern.get(p) == Some(&b'/')
                && (t == 0 || text[t - 1] == b'/')
                && matches(&pattern[p + 1..], &text[t..])
            {
                return true;
            }
            double = Some((p, t));
            star = None;
            continue;
        }
        match (pattern.get(p), text.get(t)) {
            (Some(b'*'), _) => {
                p += 1;
                star = Some((p, t));
                continue;
            }
            (Some(b'?'), Some(&c)) if c != b'/' => {
                (p, t) = (p + 1, t + 1);
                continue;
            }
            (Some(&a), Some(&c)) if a == c && a != b'?' => {
                (p, t) = (p + 1, t + 1);
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        // A mismatch: let the nearest star take one byte more.
        if let Some((after, from)) = star
            && from < text.len()
            && text[from] != b'/'
        {
            star = Some((after, from + 1));
            (p, t) = (after, from + 1);
        } else if let Some((after, from)) = double
            && from < text.len()
        {
            double = Some((after, from + 1));
            star = None;
            (p, t) = (after, from + 1);
        } else {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_marks() {
        let check = |pattern: &str, path: &str, expected: bool| {
            assert_eq!(Glob::new(pattern).matches(path.as_bytes()), expected, "{pattern} on {path}");
        };
        check("*.css", "/a/b/style.css", true);
        check("*.css", "/a/b/style.css.map", false);
        check("*", "/", true);
        check("**", "/a/b", true);
        check("/assets/**", "/assets/a/b.js", true);
        check("/assets/**", "/other/assets/a", false);
        check("/assets/*", "/assets/a.js", true);
        check("/assets/*", "/assets/a/b.js", false);
        check("/**/x", "/x", true);
        check("/**/x", "/a/b/x", true);
        check("/a/**/b/*.html", "/a/1/2/b/c.html", true);
        check("/a/**/b/*.html", "/a/b/c.html", true);
        check("/a/**/b/*.html", "/a/c.html", false);
        check("/?/x", "/a/x", true);
        check("/?/x", "//x", false);
        check("file-?.txt", "/file-1.txt", true);
        check("a*b*c", "/aXbXbXc", true);
        check("a*b*c", "/aXbXbXd", false);
        check("/exact.html", "/exact.html", true);
        check("/exact.html", "/exact.htm", false);
    }

    #[test]
    fn what_stars_stand_for() {
        let check = |pattern: &str, path: &str, expected: Option<&[&str]>| {
            let found = Glob::new(pattern).captures(path.as_bytes());
            let expected = expected.map(|all| all.iter().map(|text| text.as_bytes()).collect::<Vec<_>>());
            assert_eq!(found, expected, "{pattern} on {path}");
        };
        check("/old/**", "/old/a/b", Some(&["a/b"]));
        check("/old/**", "/old/", Some(&[""]));
        check("/*/x/*.html", "/a/x/b.html", Some(&["a", "b"]));
        check("/**/x/*", "/a/b/x/c", Some(&["a/b", "c"]));
        check("/**/x", "/x", Some(&[""]));
        check("*.css", "/a/style.css", Some(&["style"]));
        check("a*b*", "/aXbYbZ", Some(&["X", "YbZ"]));
        check("/exact", "/exact", Some(&[]));
        check("/a?c", "/abc", Some(&[]));
        check("/old/*", "/old/a/b", None);
    }

    #[test]
    fn a_long_path_is_searched_in_bounded_time() {
        let path = alloc::format!("/{}", "a".repeat(1000));
        assert_eq!(Glob::new("/**a**a**b").captures(path.as_bytes()), None);
    }

    proptest::proptest! {
        #[test]
        fn what_matches_has_captures(pattern in "/?([ab?*/]|\\*\\*){0,6}", path in "(/[ab]{0,2}){1,4}") {
            let glob = Glob::new(&pattern);
            proptest::prop_assert_eq!(glob.captures(path.as_bytes()).is_some(), glob.matches(path.as_bytes()));
        }
    }
}
