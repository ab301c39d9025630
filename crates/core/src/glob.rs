//! Patterns over paths, as in `.gitignore` and in shells.
//!
//! | pattern | matches |
//! |---|---|
//! | `*` | any bytes within a segment, or none |
//! | `**` | any bytes across segments, or none; in `/**/` also no segment, so that `/a/**/b` matches `/a/b` |
//! | `?` | one byte other than a slash |
//! | `{a,b}` | one of these patterns, which may be nested |
//! | `\\` | the next byte literally: `\\{`, `\\*`, `\\\\` |
//!
//! | `~...`, `~*...` | what the regular expression after it matches somewhere, without regard to ASCII case after `~*` |
//!
//! A pattern without a slash is matched against the last segment alone, so that `*.css` means every style sheet.
//!
//! Regular expressions are those of the crate `regex`, whose search is linear too, without look-around and backreferences. They
//! see the whole path, of any bytes; their groups are the captures.
//!
//! The loop matches paths from untrusted clients, so the work is linear in the path for any pattern: a pattern is
//! compiled, when the configuration is read, into an automaton whose states are the bits of a few words. It runs over
//! the path once, from its end, which also yields the captures of the stars ([`Glob::captures`]). For most paths the
//! automaton need not run: the literal bytes at both ends are compared first.

use alloc::borrow::{Cow, ToOwned};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use amped_units::parse_text;
use regex::bytes::{Regex, RegexBuilder};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A compiled pattern.
#[derive(Clone)]
pub struct Glob {
    pattern: Box<str>,
    scope: Scope,
    matcher: Matcher,
}

#[derive(Clone)]
enum Matcher {
    /// The alternatives after expansion of braces.
    Automata(Box<[Automaton]>),
    Regex(Regex),
}

impl Serialize for Glob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.pattern)
    }
}

impl<'de> Deserialize<'de> for Glob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Glob, D::Error> {
        parse_text(deserializer, |pattern| match pattern {
            "" => Err("the pattern is empty\nwrite `**` to match all paths".into()),
            _ => Glob::parse(pattern).map_err(|why| invalid(pattern, &why)),
        })
    }
}

/// The message about an invalid pattern, and in a second line why it is.
pub(crate) fn invalid(pattern: &str, why: &str) -> String {
    format!("invalid pattern `{}`\n{why}", pattern.escape_debug())
}

impl JsonSchema for Glob {
    fn schema_name() -> Cow<'static, str> {
        "Pattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "pattern", "minLength": 1 })
    }
}

/// What is compared with a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The whole path.
    Path,
    /// The last segment of a path.
    Name,
    /// Any text, in which slashes have no meaning.
    Text,
}

/// Maximum alternatives of a pattern.
const ALTERNATIVES_MAX: usize = 64;

/// Maximum bytes of a compiled regular expression, and of the states that its search caches.
const REGEX_BYTES_MAX: usize = 256 * 1024;

/// Maximum words of a set of states: an alternative has at most 511 items between its first and last wildcard.
const WORDS_MAX: usize = 8;

impl Glob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// Why the pattern is invalid, for the operator.
    pub fn parse(pattern: &str) -> Result<Glob, Cow<'static, str>> {
        Glob::compile(pattern, if pattern.contains('/') { Scope::Path } else { Scope::Name })
    }

    /// Compiles a pattern of any text: `*` and `**` match any bytes, and the empty pattern the empty text.
    ///
    /// # Errors
    /// As [`Glob::parse`].
    pub fn of_text(pattern: &str) -> Result<Glob, Cow<'static, str>> {
        Glob::compile(pattern, Scope::Text)
    }

    fn compile(pattern: &str, scope: Scope) -> Result<Glob, Cow<'static, str>> {
        if let Some(regex) = pattern.strip_prefix('~') {
            return Ok(Glob {
                pattern: pattern.into(),
                scope: Scope::Text,
                matcher: Matcher::Regex(compile_regex(regex)?),
            });
        }
        let mut rest = pattern.as_bytes();
        let sequences = sequence(&mut rest, false)?;
        if !rest.is_empty() {
            return Err("unmatched `}`; write `\\}` for a literal brace".into());
        }
        let compile = |mut items: Vec<Item>| {
            if scope == Scope::Path && items.first() == Some(&Item::Byte(b'/')) {
                items.remove(0);
            }
            if scope == Scope::Text {
                items.iter_mut().filter(|item| **item == Item::Star).for_each(|item| *item = Item::Double);
            }
            Automaton::new(&items)
        };
        let alternatives = sequences.into_iter().map(compile).collect::<Result<_, _>>()?;
        Ok(Glob { pattern: pattern.into(), scope, matcher: Matcher::Automata(alternatives) })
    }

    /// Compiles a built-in pattern.
    ///
    /// # Panics
    /// If the pattern is invalid.
    pub fn new(pattern: &str) -> Glob {
        Glob::parse(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"))
    }

    /// The source text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.pattern
    }

    /// Whether `path`, which begins with a slash, matches.
    pub fn matches(&self, path: &[u8]) -> bool {
        let text = self.text(path);
        match &self.matcher {
            Matcher::Automata(alternatives) => alternatives.iter().any(|automaton| automaton.matches(text)),
            Matcher::Regex(regex) => regex.is_match(text),
        }
    }

    /// The length of the directories with which every matching path begins, up to the last slash before the first wildcard:
    /// at least 1.
    pub fn fixed_directory(&self) -> usize {
        if self.is_regex() {
            return 1;
        }
        let literal = self.pattern.split(['*', '?', '{', '\\']).next().unwrap_or_default();
        let literal = literal.strip_prefix('/').unwrap_or(literal);
        literal.rfind('/').map_or(1, |slash| slash + 2)
    }

    /// Whether it is a regular expression.
    pub fn is_regex(&self) -> bool {
        matches!(self.matcher, Matcher::Regex(_))
    }

    /// Whether it may match several names, unlike a literal path.
    pub fn has_wildcards(&self) -> bool {
        self.is_regex() || self.pattern.contains('*')
    }

    /// The number of stars, the same in each alternative; adjacent stars count as one. Of a regular expression, its groups.
    pub fn stars(&self) -> usize {
        match &self.matcher {
            Matcher::Automata(alternatives) => alternatives.iter().map(Automaton::stars).min().unwrap_or(0),
            Matcher::Regex(regex) => regex.captures_len() - 1,
        }
    }

    /// The text matched by each star, in order, each as short as possible, or by each group of a regular expression, empty
    /// for one that took no part; `None` if `path` does not match.
    pub fn captures<'p>(&self, path: &'p [u8]) -> Option<Vec<&'p [u8]>> {
        let text = self.text(path);
        match &self.matcher {
            Matcher::Automata(alternatives) => alternatives.iter().find_map(|automaton| automaton.captures(text)),
            Matcher::Regex(regex) => {
                let groups = regex.captures(text)?;
                Some(groups.iter().skip(1).map(|group| group.map_or(&b""[..], |group| group.as_bytes())).collect())
            }
        }
    }

    /// The part of a path that is compared.
    fn text<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        match self.scope {
            Scope::Text => path,
            Scope::Path => path.strip_prefix(b"/").unwrap_or(path),
            Scope::Name => &path[memchr::memrchr(b'/', path).map_or(0, |slash| slash + 1)..],
        }
    }
}

impl PartialEq for Glob {
    fn eq(&self, other: &Glob) -> bool {
        (&self.pattern, self.scope) == (&other.pattern, other.scope)
    }
}

impl Eq for Glob {}

impl core::fmt::Debug for Glob {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Glob({:?})", self.pattern)
    }
}

/// Compiles a regular expression, which a star may precede.
fn compile_regex(pattern: &str) -> Result<Regex, Cow<'static, str>> {
    let (is_caseless, pattern) = pattern.strip_prefix('*').map_or((false, pattern), |pattern| (true, pattern));
    // nginx's directives have a space there.
    let pattern = pattern.trim_start();
    if pattern.is_empty() {
        return Err("write a regular expression after `~`, such as `~\\.php$`".into());
    }
    // Without Unicode, so that a path of any bytes can match.
    let mut builder = RegexBuilder::new(pattern);
    builder.unicode(false).case_insensitive(is_caseless).size_limit(REGEX_BYTES_MAX).dfa_size_limit(REGEX_BYTES_MAX);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "the regular expression is too large; write several rules".into(),
        // The last of several lines, below a picture of the pattern.
        error => format!("{error}").lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned().into(),
    })
}

/// An item of a pattern without braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Byte(u8),
    /// `?`
    Any,
    /// `*`
    Star,
    /// `**`
    Double,
}

/// Parses up to the end of the text or, within braces, up to the comma or brace that ends the alternative.
fn sequence(rest: &mut &[u8], within_braces: bool) -> Result<Vec<Vec<Item>>, &'static str> {
    let mut all = Vec::from([Vec::new()]);
    while let Some((&byte, behind)) = rest.split_first() {
        let item = match byte {
            b'}' => break,
            b',' if within_braces => break,
            b'{' => {
                *rest = behind;
                all = multiply(&all, &braces(rest)?)?;
                continue;
            }
            b'\\' => {
                let (&byte, behind) = behind.split_first().ok_or("trailing `\\`; write `\\\\` for a backslash")?;
                *rest = behind;
                all.iter_mut().for_each(|items| items.push(Item::Byte(byte)));
                continue;
            }
            b'?' => Item::Any,
            b'*' => Item::Star,
            byte => Item::Byte(byte),
        };
        *rest = behind;
        all.iter_mut().for_each(|items| push(items, item));
    }
    Ok(all)
}

/// Parses the text between a `{`, which has been consumed, and its `}`.
fn braces(rest: &mut &[u8]) -> Result<Vec<Vec<Item>>, &'static str> {
    let mut alternatives = Vec::new();
    loop {
        alternatives.extend(sequence(rest, true)?);
        let Some((&byte, behind)) = rest.split_first() else {
            return Err("unmatched `{`; write `\\{` for a literal brace");
        };
        *rest = behind;
        if byte == b'}' {
            return Ok(alternatives);
        }
    }
}

/// Concatenates each of the first with each of the second.
fn multiply(all: &[Vec<Item>], alternatives: &[Vec<Item>]) -> Result<Vec<Vec<Item>>, &'static str> {
    if all.len() * alternatives.len() > ALTERNATIVES_MAX {
        return Err("the braces expand to more than 64 patterns; write several rules");
    }
    let pairs = all.iter().flat_map(|items| alternatives.iter().map(move |choice| (items, choice)));
    let joined = pairs.map(|(items, choice)| {
        let mut items = items.clone();
        choice.iter().for_each(|item| push(&mut items, *item));
        items
    });
    Ok(joined.collect())
}

/// Appends an item; adjacent stars become one `**`.
fn push(items: &mut Vec<Item>, item: Item) {
    match (items.last_mut(), item) {
        (Some(last @ (Item::Star | Item::Double)), Item::Star | Item::Double) => *last = Item::Double,
        _ => items.push(item),
    }
}

/// A pattern without braces: literal bytes, a middle, literal bytes.
///
/// The states are positions in the middle; bit `p` is set at a position in the text if the middle from item `p` on
/// matches the text from there to the end of the middle.
#[derive(Clone)]
struct Automaton {
    prefix: Box<[u8]>,
    suffix: Box<[u8]>,
    middle: Box<[Item]>,
    /// Words of a set of states: `middle.len() < 64 * words`.
    words: usize,
    /// For each byte, the literal items that match it: `words` words.
    literal: Box<[u64]>,
    /// The items `*`.
    stars: Box<[u64]>,
    /// The items `**`.
    doubles: Box<[u64]>,
    /// Those of `doubles` whose following slash is optional.
    optional: Box<[u64]>,
}

type States = [u64; WORDS_MAX];

impl Automaton {
    fn new(items: &[Item]) -> Result<Automaton, &'static str> {
        let byte = |item: &Item| match item {
            Item::Byte(byte) => Some(*byte),
            Item::Any | Item::Star | Item::Double => None,
        };
        let prefix: Box<[u8]> = items.iter().map_while(byte).collect();
        let mut end = items.len();
        // The slash after `**` may have to match nothing.
        while end > prefix.len() && byte(&items[end - 1]).is_some() && !is_optional(items, end.wrapping_sub(2)) {
            end -= 1;
        }
        let suffix = items[end..].iter().filter_map(byte).collect();
        let middle: Box<[Item]> = items[prefix.len()..end].into();
        let words = middle.len() / 64 + 1;
        if words > WORDS_MAX {
            return Err("pattern too long: the maximum is 511 bytes between the first and last wildcard");
        }
        let mut literal = alloc::vec![0; 256 * words].into_boxed_slice();
        let [mut stars, mut doubles, mut optional] = [(); 3].map(|()| alloc::vec![0; words].into_boxed_slice());
        for (at, item) in middle.iter().enumerate() {
            let (word, bit) = (at / 64, 1 << (at % 64));
            match item {
                Item::Byte(byte) => literal[usize::from(*byte) * words + word] |= bit,
                Item::Any => (0..256).filter(|byte| *byte != usize::from(b'/')).for_each(|byte| {
                    literal[byte * words + word] |= bit;
                }),
                Item::Star => stars[word] |= bit,
                Item::Double => doubles[word] |= bit,
            }
            if is_optional(&middle, at) {
                optional[word] |= bit;
            }
        }
        Ok(Automaton { prefix, suffix, middle, words, literal, stars, doubles, optional })
    }

    fn stars(&self) -> usize {
        self.middle.iter().filter(|item| matches!(item, Item::Star | Item::Double)).count()
    }

    /// The start and end of the middle in a text with this prefix and suffix.
    fn range(&self, text: &[u8]) -> Option<(usize, usize)> {
        let (start, end) = (self.prefix.len(), text.len().checked_sub(self.suffix.len())?);
        (start <= end && text.starts_with(&self.prefix) && text.ends_with(&self.suffix)).then_some((start, end))
    }

    fn matches(&self, text: &[u8]) -> bool {
        let Some((start, end)) = self.range(text) else { return false };
        match *self.middle {
            [] => start == end,
            [Item::Double] => true,
            [Item::Star] => memchr::memchr(b'/', &text[start..end]).is_none(),
            _ => {
                let states = self.run(text, start, end, |_, _| {});
                states.is_some_and(|states| states[0] & 1 == 1)
            }
        }
    }

    fn captures<'p>(&self, text: &'p [u8]) -> Option<Vec<&'p [u8]>> {
        let (start, end) = self.range(text)?;
        let mut rows = alloc::vec![[0; WORDS_MAX]; end - start + 1];
        self.run(text, start, end, |at, states| rows[at - start] = *states)?;
        let holds = |at: usize, item: usize| rows[at - start][item / 64] >> (item % 64) & 1 == 1;
        if !holds(start, 0) {
            return None;
        }
        let mut captures = Vec::with_capacity(self.stars());
        let (mut item, mut at) = (0, start);
        while item < self.middle.len() {
            match self.middle[item] {
                Item::Byte(_) | Item::Any => at += 1,
                Item::Star | Item::Double => {
                    if is_optional(&self.middle, item) && is_boundary(text, at) && holds(at, item + 2) {
                        captures.push(&text[at..at]);
                        item += 2;
                        continue;
                    }
                    let from = at;
                    at = (at..=end).find(|at| holds(*at, item + 1))?;
                    captures.push(&text[from..at]);
                }
            }
            item += 1;
        }
        Some(captures)
    }

    /// Computes the states at the start of the middle; calls `show` with
    /// each position and its set on the way. `None` if no state is left.
    fn run(&self, text: &[u8], start: usize, end: usize, mut show: impl FnMut(usize, &States)) -> Option<States> {
        let mut states = [0; WORDS_MAX];
        states[self.middle.len() / 64] = 1 << (self.middle.len() % 64);
        self.skip(&mut states, is_boundary(text, end));
        show(end, &states);
        for at in (start..end).rev() {
            let byte = text[at];
            let literal = &self.literal[usize::from(byte) * self.words..][..self.words];
            let mut any = 0;
            for word in 0..self.words {
                let stays = if byte == b'/' { self.doubles[word] } else { self.doubles[word] | self.stars[word] };
                // Until they are overwritten, the higher words are those of the following position.
                states[word] = self.behind(&states, word, 1) & literal[word] | states[word] & stays;
                any |= states[word];
            }
            if any == 0 {
                return None;
            }
            self.skip(&mut states, is_boundary(text, at));
            show(at, &states);
        }
        Some(states)
    }

    /// Lets stars match nothing.
    fn skip(&self, states: &mut States, is_boundary: bool) {
        // Stars are never adjacent.
        for word in 0..self.words {
            states[word] |= self.behind(states, word, 1) & (self.stars[word] | self.doubles[word]);
        }
        // Once per consecutive `**/`, at slashes only.
        let mut goes_on = is_boundary;
        while goes_on {
            goes_on = false;
            for word in 0..self.words {
                let more = self.behind(states, word, 2) & self.optional[word] & !states[word];
                states[word] |= more;
                goes_on |= more != 0;
            }
        }
    }

    /// A word of the states, shifted by `by` positions.
    fn behind(&self, states: &States, word: usize, by: u32) -> u64 {
        let above = if word + 1 < self.words { states[word + 1] } else { 0 };
        states[word] >> by | above << (64 - by)
    }
}

/// Whether this item is a `**` whose following slash is optional.
fn is_optional(items: &[Item], at: usize) -> bool {
    items.get(at) == Some(&Item::Double) && items.get(at + 1) == Some(&Item::Byte(b'/'))
}

/// Whether a segment begins at this position.
fn is_boundary(text: &[u8], at: usize) -> bool {
    at == 0 || text[at - 1] == b'/'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn automata(glob: &Glob) -> Box<[Automaton]> {
        match &glob.matcher {
            Matcher::Automata(alternatives) => alternatives.clone(),
            Matcher::Regex(_) => panic!("{glob:?} is a regular expression"),
        }
    }

    #[test]
    fn regular_expressions_match_anywhere_and_capture_groups() {
        let check = |pattern: &str, path: &[u8], expected: Option<&[&[u8]]>| {
            let glob = Glob::new(pattern);
            let captures = glob.captures(path);
            assert_eq!(captures.as_deref(), expected, "{pattern} {path:?}");
            assert_eq!(glob.matches(path), expected.is_some(), "{pattern} {path:?}");
            assert!(captures.is_none_or(|captures| captures.len() == glob.stars()), "{pattern}");
        };
        check(r"~^/wp-content/uploads/.*\.php$", b"/wp-content/uploads/2024/e.php", Some(&[]));
        check(r"~^/wp-content/uploads/.*\.php$", b"/wp-content/uploads/e.php5", None);
        check(r"~\.php", b"/a/b.php/c", Some(&[]));
        check(r"~\.PHP$", b"/a.php", None);
        check(r"~* \.PHP$", b"/a.php", Some(&[]));
        check(r"~^/(\w+)/(\d+)?(/.*)$", b"/blog//x/y", Some(&[b"blog", b"", b"/x/y"]));
        check(r"~^/.\xff$", b"/\xfe\xff", Some(&[]));
        check(r"~^/[^/]+/\.git", b"/a\nb/.git/config", Some(&[]));
        check(r"\~a", b"/x/~a", Some(&[]));
    }

    #[test]
    fn invalid_regular_expression_is_rejected_with_reason() {
        let check = |pattern: &str, expected: &str| {
            let why = Glob::parse(pattern).expect_err(pattern);
            assert!(why.contains(expected), "{pattern}: {why}");
        };
        check("~", "write a regular expression");
        check("~*", "write a regular expression");
        check("~^/(a", "unclosed group");
        check("~a{2,1}", "repetition");
        check("~(?!a)b", "look-around");
        check("~(a{500}){500}", "too large");
    }

    proptest! {
        /// A search takes as long as the path, whatever the expression: this one makes a backtracking search exponential.
        #[test]
        fn nested_repetitions_end_soon(length in 1_usize..8000) {
            let path = [b"/", &*alloc::vec![b'a'; length], b"!"].concat();
            prop_assert!(!Glob::new("~^/(a+)+$").matches(&path));
        }
    }

    #[test]
    fn fixed_directory_ends_before_first_wildcard() {
        let check = |pattern: &str, expected: &str| {
            assert_eq!(Glob::new(pattern).fixed_directory(), expected.len(), "{pattern}");
        };
        check("/static/**", "/static/");
        check("static/**", "/static/");
        check("/a/b*/c", "/a/");
        check("/a/{b,c}/d", "/a/");
        check("/a/b?", "/a/");
        check("/a/\\*/b", "/a/");
        check("/favicon.ico", "/");
        check("*.png", "/");
        check("**", "/");
    }
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    #[test]
    fn wildcards_match() {
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
    fn wildcards_capture_matched_text() {
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
    fn braces_match_each_alternative() {
        let check = |pattern: &str, path: &str, expected: bool| {
            assert_eq!(Glob::new(pattern).matches(path.as_bytes()), expected, "{pattern} on {path}");
        };
        for (path, expected) in [("/a.css", true), ("/x/b.js", true), ("/a.html", false), ("/a.{css,js}", false)] {
            check("*.{css,js}", path, expected);
        }
        check("/{a,b/**}/x", "/a/x", true);
        check("/{a,b/**}/x", "/b/1/2/x", true);
        check("/{a,b/**}/x", "/c/x", false);
        check("/img{,-large}.{png,jp{e,}g}", "/img-large.jpg", true);
        check("/img{,-large}.{png,jp{e,}g}", "/img.jpeg", true);
        check("/img{,-large}.{png,jp{e,}g}", "/img.jp", false);
        check("a,b", "/a,b", true);
        check(r"\{a,b\}\*\?\\", r"/{a,b}*?\", true);
        check(r"\{a,b\}\*\?\\", r"/{a,b}xx\", false);
        check(r"{a\,b,c}", "/a,b", true);
        check(r"{a\,b,c}", "/a", false);
        let glob = Glob::new("/{old,older/*}/*");
        assert_eq!(glob.stars(), 1);
        assert_eq!(glob.captures(b"/old/a"), Some(Vec::from([&b"a"[..]])));
        assert_eq!(glob.captures(b"/older/a/b"), Some(Vec::from([&b"a"[..], b"b"])));
    }

    #[test]
    fn malformed_pattern_is_rejected_with_reason() {
        let check = |pattern: &str, why: &str| {
            let found = Glob::parse(pattern).expect_err(pattern);
            assert!(found.contains(why), "{pattern}: {found}");
        };
        check("*.{css,js", "unmatched `{`");
        check("{a,{b}", "unmatched `{`");
        check("a}", "unmatched `}`");
        check("{a,b}}", "unmatched `}`");
        check(r"a\", "trailing");
        check(&"{a,b}".repeat(7), "more than 64");
        check(&format!("*{}*", "a".repeat(600)), "too long");
        assert!(Glob::parse(&"{a,b}".repeat(6)).is_ok());
        assert!(Glob::parse(&format!("*{}*", "a".repeat(500))).is_ok());
    }

    /// The automaton takes one step per byte of the path, for any pattern.
    #[test]
    fn match_steps_grow_only_with_path_length() {
        for pattern in
            ["/cgi-bin/**", "/**/*.php", "/**/a*/**/*b/**/a/*.php", "/**a**a**b*?*", "/*a*a*a*b/**/**/**/x.php"]
        {
            for length in [1 << 10, 1 << 13, 1 << 16] {
                let path = |unit: &str| format!("{}/x.php", unit.repeat(length / unit.len()));
                for path in [path("/a"), path("/"), path("a"), path("/cgi-bin/aaaab")] {
                    let automaton = &automata(&Glob::new(pattern))[0];
                    let mut steps = 0;
                    if let Some((start, end)) = automaton.range(&path.as_bytes()[1..]) {
                        automaton.run(&path.as_bytes()[1..], start, end, |_, _| steps += 1);
                    }
                    assert!(steps <= path.len(), "{pattern}: {steps} steps for {} bytes", path.len());
                    assert_eq!(automaton.words, 1);
                }
            }
        }
    }

    #[test]
    fn long_pattern_spans_several_words() {
        let pattern = format!("/*{}*/**/{}?", "ab".repeat(60), "c".repeat(130));
        let path = format!("/x{}y/1/2/{}d", "ab".repeat(60), "c".repeat(130));
        let glob = Glob::new(&pattern);
        assert!(automata(&glob)[0].words > 3);
        assert_eq!(glob.captures(path.as_bytes()), Some(Vec::from([&b"x"[..], b"y", b"1/2"])));
        assert!(glob.matches(path.as_bytes()) && !glob.matches(&path.as_bytes()[..path.len() - 1]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// The oracle is a backtracking search.
        #[test]
        fn automaton_agrees_with_backtracking(pattern in "/?([ab?/]|\\*|\\*\\*[ab?/]){0,8}", path in "(/[ab]{0,2}){1,5}") {
            // Adjacent stars are one `**`, which the oracle does not implement.
            let mut pattern = pattern;
            while pattern.contains("***") {
                pattern = pattern.replace("***", "**");
            }
            let text = |path: &str| match pattern.contains('/') {
                true => String::from(path.strip_prefix('/').unwrap_or(path)),
                false => String::from(path.rsplit('/').next().unwrap_or(path)),
            };
            let glob = Glob::new(&pattern);
            let (text, bare) = (text(&path), pattern.strip_prefix('/').unwrap_or(&pattern));
            let bare = if pattern.contains('/') { bare } else { &pattern };
            let failed = alloc::vec![false; bare.len() * (text.len() + 1)];
            let mut search = Search { pattern: bare.as_bytes(), text: text.as_bytes(), stars: Vec::new(), failed };
            let found = search.go(0, 0);
            prop_assert_eq!(glob.matches(path.as_bytes()), found);
            let stars = found.then(|| search.stars.iter().map(|&(from, to)| &text.as_bytes()[from..to]).collect::<Vec<_>>());
            prop_assert_eq!(glob.captures(path.as_bytes()), stars);
        }

        #[test]
        fn random_pattern_does_not_panic(pattern in "[ab*?{},/\\\\]{0,20}", path in "(/[ab,{}*]{0,3}){1,4}") {
            if let Ok(glob) = Glob::parse(&pattern) {
                let captures = glob.captures(path.as_bytes());
                prop_assert_eq!(captures.is_some(), glob.matches(path.as_bytes()));
                prop_assert!(captures.is_none_or(|captures| captures.len() >= glob.stars()));
            }
        }
    }

    /// A backtracking search for captures. It visits each pair of positions at most once, so it takes at most stars
    /// times bytes steps, each with as many branches as bytes are left.
    struct Search<'a> {
        pattern: &'a [u8],
        text: &'a [u8],
        stars: Vec<(usize, usize)>,
        /// For each pair of positions, whether a star at it was tried and failed.
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
                // As in `matches`: the slash after the stars is optional.
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
}
