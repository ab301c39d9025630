//! Patterns over paths, as in `.gitignore` and in shells: `*` within a segment, `**` across segments, `?` for one byte.
//!
//! A pattern without a slash is matched against the last segment alone, so that `*.css` means every style sheet.

use alloc::boxed::Box;

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
}
