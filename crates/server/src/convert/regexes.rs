//! Regular expressions of nginx (PCRE) as text: without what amped does not have, and within the paths of another location.
//!
//! Each result says whether it has exactly the meaning of the original. If not, it matches more, so a location with it can only be
//! refused.

/// An expression, and whether it matches exactly the same paths as the original; otherwise it matches more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Simplified {
    pub(super) regex: String,
    pub(super) is_exact: bool,
}

/// The expression without look-around and back references.
pub(super) fn simplified(regex: &str) -> Simplified {
    if let Some(regex) = without_final_lookahead(regex) {
        return Simplified { regex, is_exact: true };
    }
    let mut made = String::new();
    let mut rest = regex;
    while let Some(c) = rest.chars().next() {
        if let Some(begin) = LOOKAROUND.iter().find(|begin| rest.starts_with(**begin)) {
            // A condition that is left out only makes more paths match.
            rest = group(rest).map_or("", |group| &rest[group.len().max(begin.len())..]);
            continue;
        }
        let mut escaped = rest[c.len_utf8()..].chars();
        match (c, escaped.next()) {
            ('\\', Some('1'..='9')) => {
                made.push_str(".*");
                rest = escaped.as_str();
            }
            ('\\', Some(next)) => {
                made.extend([c, next]);
                rest = escaped.as_str();
            }
            _ => {
                made.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    Simplified { is_exact: made == regex, regex: made }
}

const LOOKAROUND: [&str; 4] = ["(?=", "(?!", "(?<=", "(?<!"];

/// The group with which a text begins, with both parentheses.
fn group(text: &str) -> Option<&str> {
    let mut depth = 0_usize;
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '(' => depth += 1,
            ')' if depth == 1 => return Some(&text[..=at]),
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// `/\.(?!well-known)` without the look-ahead at its end: literal alternatives, of which none may follow.
fn without_final_lookahead(regex: &str) -> Option<String> {
    let (before, ahead) = regex.split_at(regex.find("(?!")?);
    let group = group(ahead)?;
    let is_at_end = ["", ".*", ".*$"].contains(&&ahead[group.len()..]);
    let inner = group.strip_prefix("(?!")?.strip_suffix(')')?;
    if !is_at_end || simplified(before).regex != before || has_alternatives(before) {
        return None;
    }
    let texts = inner.split('|').map(literal).collect::<Option<Vec<_>>>()?;
    let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    Some(format!("{before}{}", not_beginning(&texts)))
}

/// Matches at the beginning of any text that begins with none of these.
fn not_beginning(texts: &[&[u8]]) -> String {
    let mut firsts: Vec<u8> = texts.iter().filter_map(|text| text.first().copied()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let class: String = firsts.iter().map(|&byte| escaped(byte)).collect();
    let mut choices = vec!["$".to_owned(), format!("[^{class}]")];
    for first in firsts {
        let rests: Vec<&[u8]> =
            texts.iter().filter(|text| text.first() == Some(&first)).map(|text| &text[1..]).collect();
        if rests.iter().all(|rest| !rest.is_empty()) {
            choices.push(format!("{}{}", escaped(first), not_beginning(&rests)));
        }
    }
    format!("(?:{})", choices.join("|"))
}

/// Matches any text but this one.
pub(super) fn other_than_text(text: &str) -> String {
    let other = |rest: String, byte: u8| format!("(?:|[^{0}].*|{0}{rest})", escaped(byte));
    format!("(?s)^{}$", text.bytes().rev().fold("(?:.+)".to_owned(), other))
}

/// The text as a regular expression that matches only itself.
pub(super) fn escape(text: &str) -> String {
    let special = |c: char| c.is_ascii_punctuation() && c != '/';
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

fn escaped(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("\\x{byte:02x}") }
}

/// The text that an expression without any operator matches.
pub(super) fn literal(regex: &str) -> Option<String> {
    let (text, rest) = literal_start(regex);
    rest.is_empty().then_some(text)
}

/// The literal text with which all matches of an expression without alternatives begin, and the rest of the expression.
fn literal_start(regex: &str) -> (String, &str) {
    let mut text = String::new();
    let mut rest = regex;
    loop {
        let mut chars = rest.chars();
        let c = match chars.next() {
            Some('\\') => chars.next().filter(|c| !c.is_alphanumeric()),
            Some(c) if !"^$.|?*+()[]{}".contains(c) => Some(c),
            _ => None,
        };
        // A character that is repeated, or optional, is not literal.
        match c {
            Some(c) if !chars.as_str().starts_with(['?', '*', '+', '{']) => {
                text.push(c);
                rest = chars.as_str();
            }
            _ => return (text, rest),
        }
    }
}

/// The alternatives of an expression, outside groups.
fn alternatives(regex: &str) -> Vec<&str> {
    let (mut all, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    let (mut is_escaped, mut is_class) = (false, false);
    for (at, c) in regex.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '[' => is_class = true,
            ']' => is_class = false,
            '(' if !is_class => depth += 1,
            ')' if !is_class => depth = depth.saturating_sub(1),
            '|' if !is_class && depth == 0 => {
                all.push(&regex[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    all.push(&regex[start..]);
    all
}

/// Whether an expression has alternatives outside groups.
pub(super) fn has_alternatives(regex: &str) -> bool {
    alternatives(regex).len() > 1
}

/// The literal text with which all paths of an expression begin, if it is anchored.
pub(super) fn anchored_start(regex: &str) -> Option<String> {
    let rest = regex.strip_prefix('^')?;
    (!has_alternatives(regex)).then(|| literal_start(rest).0)
}

/// The prefix of paths that an expression stands for: `^/a/` and `^/a/.*` are `/a/`.
pub(super) fn as_prefix(regex: &str) -> Option<String> {
    let (text, rest) = literal_start(regex.strip_prefix('^')?);
    ["", ".*", "(.*)", ".*$", "(.*)$"].contains(&rest).then_some(text)
}

/// The paths that begin with a prefix and that an expression matches, as an expression with regard to case; `None` if there are none.
pub(super) fn within(prefix: &str, regex: &str, is_caseless: bool) -> Option<Simplified> {
    let flags = if is_caseless { "(?i:" } else { "(?:" };
    if prefix == "/" {
        let regex = if is_caseless { format!("(?i:{regex})") } else { regex.to_owned() };
        return Some(Simplified { regex, is_exact: true });
    }
    let (mut all, mut is_exact) = (Vec::new(), true);
    for one in alternatives(regex) {
        match alternative_within(prefix, one, is_caseless) {
            Within::Nothing => {}
            Within::Whole => all.push(format!("(?:{flags}{one}))")),
            Within::Behind(regex) => {
                // The last slash of a directory may be the first byte that the expression matches.
                let (directory, between) = match prefix.strip_suffix('/') {
                    Some(directory) if literal_start(regex).0.starts_with('/') => (directory, "(?s:/.*)?"),
                    _ => (prefix, "(?s:.*)"),
                };
                all.push(format!("^{}{between}{flags}{regex})", escape(directory)));
            }
            Within::Unknown => {
                all.push(format!("^{}", escape(prefix)));
                is_exact = false;
            }
        }
    }
    (!all.is_empty()).then(|| Simplified { regex: all.join("|"), is_exact })
}

/// Where an expression without alternatives matches in paths with a prefix.
enum Within<'a> {
    /// Nowhere.
    Nothing,
    /// All that it matches has the prefix.
    Whole,
    /// Wherever this one matches behind the prefix, or from its last slash.
    Behind(&'a str),
    Unknown,
}

fn alternative_within<'a>(prefix: &str, regex: &'a str, is_caseless: bool) -> Within<'a> {
    let fold = |text: &str| if is_caseless { text.to_ascii_lowercase() } else { text.to_owned() };
    let (prefix, anchored) = (fold(prefix), regex.strip_prefix('^'));
    let behind = match anchored {
        Some(rest) => {
            let (start, rest) = literal_start(rest);
            let start = fold(&start);
            if start.starts_with(&prefix) {
                let is_cased = is_caseless && prefix.bytes().any(|byte| byte.is_ascii_alphabetic());
                return if is_cased { Within::Unknown } else { Within::Whole };
            }
            if !prefix.starts_with(&start) {
                return Within::Nothing;
            }
            // `^/.+\.php$` is `\.php$` behind a prefix that is longer than `/`.
            match rest.strip_prefix(".+").or(rest.strip_prefix(".*")) {
                Some(rest) => rest,
                None => return Within::Unknown,
            }
        }
        None => regex.strip_prefix(".+").or(regex.strip_prefix(".*")).unwrap_or(regex),
    };
    // The byte before it is behind the slash at the end of a directory.
    let searched = behind.strip_prefix("[^/]").filter(|_| prefix.ends_with('/')).unwrap_or(behind);
    let start = fold(&literal_start(searched).0);
    let may_begin = |at: usize| prefix.get(at..).is_some_and(|own| own.starts_with(&start) || start.starts_with(own));
    let is_slash = prefix.ends_with('/') && start.starts_with('/') && behind == searched;
    let length = prefix.len() - usize::from(is_slash);
    match start.is_empty() || (0..length).any(may_begin) {
        true => Within::Unknown,
        false => Within::Behind(behind),
    }
}

/// Whether no path matches both of two expressions, each with whether it disregards case; false if that is unknown.
pub(super) fn are_disjoint((a, a_caseless): (&str, bool), (b, b_caseless): (&str, bool)) -> bool {
    let fold = |text: &String| if a_caseless || b_caseless { text.to_ascii_lowercase() } else { text.clone() };
    if let (Some(a), Some(b)) = (anchored_start(a), anchored_start(b)) {
        let (a, b) = (fold(&a), fold(&b));
        if !a.starts_with(&b) && !b.starts_with(&a) {
            return true;
        }
    }
    let (Some(a), Some(b)) = (ends(a), ends(b)) else { return false };
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (fold(a), fold(b))));
    pairs.into_iter().all(|(a, b)| !a.ends_with(&b) && !b.ends_with(&a))
}

/// The literal ends of all paths that an expression matches: `\.(css|js)$` has `.css` and `.js`.
pub(super) fn ends(regex: &str) -> Option<Vec<String>> {
    let mut rest = regex.strip_suffix('$')?;
    if has_alternatives(regex) {
        return None;
    }
    let mut choices = vec![String::new()];
    if let Some(before) = rest.strip_suffix(')') {
        let open = before.rfind('(')?;
        let inner = before[open + 1..].strip_prefix("?:").unwrap_or(&before[open + 1..]);
        choices = inner.split('|').map(optional_end).collect::<Option<Vec<_>>>()?.concat();
        rest = &before[..open];
    }
    let before = literal_end(rest);
    Some(choices.into_iter().map(|choice| format!("{before}{choice}")).collect::<Vec<_>>())
        .filter(|all| all.iter().all(|end| !end.is_empty()))
}

/// `woff2?` is `woff` and `woff2`.
fn optional_end(regex: &str) -> Option<Vec<String>> {
    let Some(before) = regex.strip_suffix('?') else { return Some(vec![literal(regex)?]) };
    let all = literal(before)?;
    let shorter = all.char_indices().last().map_or("", |(at, _)| &all[..at]).to_owned();
    Some(vec![shorter, all])
}

/// The literal text at the end of an expression.
fn literal_end(regex: &str) -> String {
    let starts = regex.char_indices().map(|(at, _)| at).filter(|&at| !regex[..at].ends_with('\\'));
    starts.map(|at| &regex[at..]).find_map(literal).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_core::glob::Glob;
    use proptest::prelude::*;

    #[test]
    fn look_around_is_left_out_or_replaced() {
        let check = |regex: &str, expected: &str, is_exact: bool| {
            assert_eq!(simplified(regex), Simplified { regex: expected.to_owned(), is_exact }, "{regex}");
        };
        check("\\.php$", "\\.php$", true);
        check("^/(?!uploads/).+\\.php$", "^/.+\\.php$", false);
        check("a(?<!x(y))b(?=c)\\.", "ab\\.", false);
        check("(a)\\1", "(a).*", false);
        check("/\\.(?!ab)", "/\\.(?:$|[^a]|a(?:$|[^b]))", true);
    }

    #[test]
    fn final_look_ahead_keeps_its_meaning() {
        let regex = simplified("/\\.(?!well-known|wellish).*").regex;
        let glob = Glob::new(&format!("~{regex}"));
        for (path, expected) in [
            ("/.git/config", true),
            ("/.well-known/a", false),
            ("/.well", true),
            ("/.", true),
            ("/.wellish", false),
            ("/a/.well-known/.b", true),
        ] {
            assert_eq!(glob.matches(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn ends_are_literal() {
        let check = |regex: &str, expected: Option<&[&str]>| {
            let expected = expected.map(|all| all.iter().map(|&end| end.to_owned()).collect::<Vec<_>>());
            assert_eq!(ends(regex), expected, "{regex}");
        };
        check("\\.php$", Some(&[".php"]));
        check("\\.(?:css|js)$", Some(&[".css", ".js"]));
        check("x+\\.(otf|woff2?)$", Some(&[".otf", ".woff", ".woff2"]));
        check("\\.(css|[a-z])$", None);
        check("\\.php", None);
        check("a$|b$", None);
        check("[ab]$", None);
    }

    proptest! {
        #[test]
        fn expression_within_prefix_matches_no_less(
            prefix in "/[a.]{0,2}(/[ab]{0,2}){0,2}",
            regex in "\\^?(/|a|b|\\\\\\.|\\.\\+|\\.\\*|\\[\\^/\\]|\\(a\\|/\\)|\\|){1,5}\\$?",
            rest in "(/|a|b|\\.){0,5}",
            other in "(/[ab.]{0,2}){1,3}",
        ) {
            let Ok(own) = Glob::parse(&format!("~{regex}")) else { return Ok(()) };
            for path in [format!("{prefix}{rest}"), other] {
                let expected = path.starts_with(&prefix) && own.matches(path.as_bytes());
                match within(&prefix, &regex, false) {
                    None => prop_assert!(!expected, "{}", path),
                    Some(Simplified { regex, is_exact }) => {
                        let found = Glob::new(&format!("~{regex}")).matches(path.as_bytes());
                        prop_assert!(if is_exact { found == expected } else { found || !expected }, "{} {}", path, regex);
                    }
                }
            }
        }

        #[test]
        fn other_text_is_any_but_this(text in "[ab.]{0,3}", other in "[ab.]{0,4}") {
            let glob = Glob::of_text(&format!("~{}", other_than_text(&text))).expect("valid");
            prop_assert_eq!(glob.matches(other.as_bytes()), text != other, "{}", glob.as_str());
        }
    }
}
