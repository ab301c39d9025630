//! The words of an nginx configuration, as nginx splits them: after it `tree` makes directives of them.
//!
//! White space separates words; `;`, `{` and `}` end one; `#` at the beginning of a word starts a comment. Within quotes all of these are
//! text. A backslash keeps the next character from ending a word, and stays, except before a quote or another backslash; `\t`, `\r` and `\n`
//! are the characters. The brace of `${name}` belongs to the word.

/// A word or a sign, and where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// From 1.
    pub(super) line: usize,
    /// In characters, from 1.
    pub(super) column: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Word(String),
    /// `{`
    Open,
    /// `}`
    Close,
    /// `;`
    End,
}

/// Splits a text; the error is a message and its line and column.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, (&'static str, usize, usize)> {
    let mut lexer = Lexer { rest: text.chars().peekable(), line: 1, column: 1 };
    let mut all = Vec::new();
    while let Some(&first) = lexer.rest.peek() {
        let (line, column) = (lexer.line, lexer.column);
        let kind = match first {
            _ if first.is_whitespace() || first == '\u{feff}' => {
                lexer.next();
                continue;
            }
            '#' => {
                while lexer.rest.peek().is_some_and(|&c| c != '\n') {
                    lexer.next();
                }
                continue;
            }
            '{' | '}' | ';' => {
                lexer.next();
                match first {
                    '{' => Kind::Open,
                    '}' => Kind::Close,
                    _ => Kind::End,
                }
            }
            '"' | '\'' => {
                lexer.next();
                Kind::Word(lexer.quoted(first).ok_or(("this quote has no end", line, column))?)
            }
            _ => Kind::Word(lexer.bare()),
        };
        all.push(Token { kind, line, column });
    }
    Ok(all)
}

struct Lexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    line: usize,
    column: usize,
}

impl Lexer<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        (self.line, self.column) = if c == '\n' { (self.line + 1, 1) } else { (self.line, self.column + 1) };
        Some(c)
    }

    /// The text up to this quote, which is consumed; `None` if there is none.
    fn quoted(&mut self, quote: char) -> Option<String> {
        let mut word = String::new();
        loop {
            match self.next()? {
                c if c == quote => return Some(word),
                '\\' => self.escape(&mut word),
                c => word.push(c),
            }
        }
    }

    fn bare(&mut self) -> String {
        let mut word = String::new();
        while let Some(&c) = self.rest.peek() {
            let is_variable = c == '{' && word.ends_with('$');
            if !is_variable && (c.is_whitespace() || matches!(c, ';' | '{' | '}')) {
                // `}` within a word ends only a variable.
                if c != '}' || !is_within_variable(&word) {
                    break;
                }
            }
            self.next();
            if c == '\\' { self.escape(&mut word) } else { word.push(c) }
        }
        word
    }

    fn escape(&mut self, word: &mut String) {
        match self.next() {
            Some(c @ ('"' | '\'' | '\\')) => word.push(c),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(c) => word.extend(['\\', c]),
            None => word.push('\\'),
        }
    }
}

fn is_within_variable(word: &str) -> bool {
    word.rfind("${").is_some_and(|start| !word[start..].contains('}'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_split_as_in_nginx() {
        let check = |text: &str, expected: &[&str]| {
            let shown = tokens(text).expect("valid").into_iter().map(|token| match token.kind {
                Kind::Word(word) => word,
                Kind::Open => "<{>".to_owned(),
                Kind::Close => "<}>".to_owned(),
                Kind::End => "<;>".to_owned(),
            });
            assert_eq!(shown.collect::<Vec<_>>(), expected, "{text}");
        };
        check("a b;c{d }", &["a", "b", "<;>", "c", "<{>", "d", "<}>"]);
        check("# all\na#b # c\n;", &["a#b", "<;>"]);
        check("log 'a \"b\" ; {' \"it's\" '';", &["log", "a \"b\" ; {", "it's", "", "<;>"]);
        check(r"~ \.php$ \; a\'b 'x\'y' \\", &["~", r"\.php$", r"\;", "a'b", "x'y", r"\"]);
        check("https://${host}/a;", &["https://${host}/a", "<;>"]);
    }

    #[test]
    fn position_of_token_is_line_and_column() {
        let all = tokens("a\n  bö c;").expect("valid");
        let places: Vec<_> = all.iter().map(|token| (token.line, token.column)).collect();
        assert_eq!(places, [(1, 1), (2, 3), (2, 6), (2, 7)]);
        assert_eq!(tokens("a;\n 'b"), Err(("this quote has no end", 2, 2)));
    }

    proptest! {
        #[test]
        fn random_text_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = tokens(&String::from_utf8_lossy(&bytes));
        }
    }
}
