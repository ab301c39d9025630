//! The directives of an nginx configuration, with those of included files in their place.
//!
//! `lex` has split the text into words; the modules after this one translate the directives. Unlike nginx, this knows no directive but
//! `include`: a directive is any word, its arguments, and `;` or a block.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use amped_core::glob::Glob;

use super::lex::{self, Kind, Token};

/// A directive.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) args: Vec<String>,
    /// The directives in its block; `None` if it ends with `;`.
    pub(super) block: Option<Vec<Directive>>,
    /// The name of its file, relative to the directory of the main file.
    pub(super) file: Rc<str>,
    pub(super) line: usize,
}

impl Directive {
    /// The argument at this index, or the empty text.
    pub(super) fn arg(&self, index: usize) -> &str {
        self.args.get(index).map_or("", String::as_str)
    }

    /// The directives in its block.
    pub(super) fn inner(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    /// `nginx.conf:12`
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }

    /// The directive as text in one line, its block omitted.
    pub(super) fn text(&self) -> String {
        let end = if self.block.is_some() { " { ... }" } else { ";" };
        let words: Vec<&str> = std::iter::once(&self.name).chain(&self.args).map(String::as_str).collect();
        // A line of a comment and of a message.
        words.join(" ").replace(char::is_control, " ") + end
    }
}

/// Maximum depth of blocks, and of files that include each other.
const DEPTH_MAX: usize = 32;

/// Files that nginx installs and that have nothing to convert. They may be missing where the conversion runs.
pub(super) const KNOWN_FILES: [&str; 8] = [
    "mime.types",
    "fastcgi_params",
    "fastcgi.conf",
    "fastcgi-php.conf",
    "proxy_params",
    "uwsgi_params",
    "scgi_params",
    "options-ssl-nginx.conf",
];

/// Reads a file and all that it includes. The error is `file:line:column: message`.
pub(super) fn read(path: &Path) -> Result<Vec<Directive>, String> {
    let folder = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    Reader { folder }.file(path, 0)
}

/// Parses a text without a directory to include from.
#[cfg(test)]
pub(super) fn parse(text: &str) -> Result<Vec<Directive>, String> {
    Reader { folder: "/none".into() }.text(text, "nginx.conf", 0)
}

struct Reader {
    /// The directory of the main file, to which paths are relative.
    folder: PathBuf,
}

impl Reader {
    fn file(&self, path: &Path, depth: usize) -> Result<Vec<Directive>, String> {
        let bytes = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let name = path.strip_prefix(&self.folder).unwrap_or(path).display().to_string();
        self.text(&String::from_utf8_lossy(&bytes), &name, depth)
    }

    fn text(&self, text: &str, name: &str, depth: usize) -> Result<Vec<Directive>, String> {
        let at = |(message, line, column): (&str, usize, usize)| format!("{name}:{line}:{column}: {message}");
        let all = lex::tokens(text).map_err(at)?;
        let mut parser = Parser { reader: self, rest: &all, file: name.into(), includes: depth };
        let directives = parser.block(0)?;
        match parser.rest.first() {
            Some(token) => Err(parser.error(token, "this `}` ends no block")),
            None => Ok(directives),
        }
    }

    /// The files that an `include` names, in order.
    fn included(&self, pattern: &str) -> Result<Vec<PathBuf>, String> {
        let path = self.folder.join(pattern);
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(format!("`{pattern}` names no file"));
        };
        if !is_pattern(&path.to_string_lossy()) {
            let is_missing = KNOWN_FILES.contains(&name) && !path.exists();
            return Ok(if is_missing { Vec::new() } else { vec![path] });
        }
        let mut found = vec![PathBuf::new()];
        for part in path.components() {
            let text = part.as_os_str().to_string_lossy();
            if !is_pattern(&text) {
                found.iter_mut().for_each(|folder| folder.push(part));
                continue;
            }
            // The complement of a class. Regular expressions have only one of its two forms.
            if let Some(form) = ["[!", "[^"].into_iter().find(|form| text.contains(form)) {
                return Err(format!("`{pattern}`: write a pattern without `{form}`"));
            }
            let glob = Glob::parse(&pattern_of_shell(&text)).map_err(|why| format!("`{pattern}`: {why}"))?;
            let mut inner = Vec::new();
            for folder in &found {
                inner.extend(matching(folder, &glob)?);
            }
            found = inner;
        }
        Ok(found.into_iter().filter(|path| path.is_file()).collect())
    }
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Converts a pattern of glob(3), which has character classes and no braces, to a regular expression.
fn pattern_of_shell(text: &str) -> String {
    let mut regex = "~^/".to_owned();
    let mut is_class = false;
    for c in text.chars() {
        match c {
            '*' if !is_class => regex.push_str("(?s:.*)"),
            '?' if !is_class => regex.push_str("(?s:.)"),
            '[' | ']' => {
                is_class = c == '[';
                regex.push(c);
            }
            '-' if is_class => regex.push(c),
            c if c.is_ascii_punctuation() => regex.extend(['\\', c]),
            c => regex.push(c),
        }
    }
    regex + "$"
}

/// The entries of a directory that match, by name.
fn matching(folder: &Path, glob: &Glob) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("cannot list {}: {error}", folder.display());
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        // Nothing matches, as in an empty directory.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name().into_string();
        let name =
            name.map_err(|name| format!("cannot read {}: its name is not UTF-8", folder.join(name).display()))?;
        // glob(3): a star matches no hidden file.
        if !name.starts_with('.') && glob.matches(format!("/{name}").as_bytes()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

struct Parser<'a> {
    reader: &'a Reader,
    rest: &'a [Token],
    file: Rc<str>,
    includes: usize,
}

impl Parser<'_> {
    fn error(&self, token: &Token, message: &str) -> String {
        format!("{}:{}:{}: {message}", self.file, token.line, token.column)
    }

    /// Parses directives up to the `}` that ends their block, or the end of the file.
    fn block(&mut self, depth: usize) -> Result<Vec<Directive>, String> {
        let mut all = Vec::new();
        while let Some((token, rest)) = self.rest.split_first() {
            let name = match &token.kind {
                Kind::Close => break,
                Kind::End => return Err(self.error(token, "a directive is missing before `;`")),
                Kind::Open => return Err(self.error(token, "a directive is missing before `{`")),
                Kind::Word(name) => name.clone(),
            };
            self.rest = rest;
            let directive = self.directive(token, name, depth)?;
            match directive.name.as_str() {
                "include" => all.extend(self.include(token, &directive)?),
                _ => all.push(directive),
            }
        }
        Ok(all)
    }

    fn directive(&mut self, start: &Token, name: String, depth: usize) -> Result<Directive, String> {
        let mut args = Vec::new();
        let block = loop {
            let Some((token, rest)) = self.rest.split_first() else {
                return Err(self.error(start, &format!("`{name}` has no `;` at its end")));
            };
            match &token.kind {
                Kind::Close => return Err(self.error(token, &format!("`{name}` has no `;` at its end"))),
                Kind::End => {
                    self.rest = rest;
                    break None;
                }
                Kind::Word(word) => args.push(word.clone()),
                Kind::Open if depth == DEPTH_MAX => return Err(self.error(token, "too many nested blocks")),
                Kind::Open => {
                    self.rest = rest;
                    let inner = self.block(depth + 1)?;
                    // A block ends at a `}` or at the end of the file.
                    let Some((_, rest)) = self.rest.split_first() else {
                        return Err(self.error(start, &format!("the block of `{name}` has no `}}` at its end")));
                    };
                    self.rest = rest;
                    break Some(inner);
                }
            }
            self.rest = rest;
        };
        Ok(Directive { name, args, block, file: Rc::clone(&self.file), line: start.line })
    }

    fn include(&self, token: &Token, directive: &Directive) -> Result<Vec<Directive>, String> {
        if self.includes == DEPTH_MAX {
            return Err(self.error(token, "too many nested includes"));
        }
        let files = self.reader.included(directive.arg(0)).map_err(|why| self.error(token, &why))?;
        let mut all = Vec::new();
        for file in files {
            let inner = self.reader.file(&file, self.includes + 1);
            all.extend(inner.map_err(|why| match why.starts_with("cannot read") {
                true => self.error(token, &why),
                false => why,
            })?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_have_file_line_and_column() {
        let check = |text: &str, expected: &str| assert_eq!(parse(text).expect_err(text), expected);
        check("a b", "nginx.conf:1:1: `a` has no `;` at its end");
        check("a;\n ;", "nginx.conf:2:2: a directive is missing before `;`");
        check("a { b; ", "nginx.conf:1:1: the block of `a` has no `}` at its end");
        check("a { b }", "nginx.conf:1:7: `b` has no `;` at its end");
        check("a; }", "nginx.conf:1:4: this `}` ends no block");
        check("a \"b", "nginx.conf:1:3: this quote has no end");
        check(&"a {".repeat(40), "nginx.conf:1:99: too many nested blocks");
        check(
            "x;\n include absent.conf;",
            "nginx.conf:2:2: cannot read /none/absent.conf: No such file or directory (os error 2)",
        );
    }

    #[test]
    fn included_directives_replace_include() {
        let folder = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        write("nginx.conf", "a; include conf.d-*; include mime.types; d;");
        write("conf.d-2", "c { x; }");
        write("conf.d-1", "b;");
        let all = read(&folder.path().join("nginx.conf")).expect("valid");
        let shown: Vec<_> = all.iter().map(|directive| format!("{} {}", directive.place(), directive.text())).collect();
        assert_eq!(shown, ["nginx.conf:1 a;", "conf.d-1:1 b;", "conf.d-2:1 c { ... }", "nginx.conf:1 d;"]);
        write("conf.d-1", "include nginx.conf;");
        assert!(read(&folder.path().join("nginx.conf")).expect_err("a cycle").contains("too many nested includes"));
    }

    #[test]
    fn pattern_of_include_may_be_in_directories() {
        let folder = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("created");
            std::fs::write(path, text).expect("written");
        };
        for name in [
            "sites/b/x.conf",
            "sites/a/x.conf",
            "sites/a/y{1}.conf",
            "sites/.c/x.conf",
            "sites/a/z.txt",
            "other/x.conf",
        ] {
            write(name, "x;");
        }
        let check = |pattern: &str, expected: &[&str]| {
            write("nginx.conf", &format!("include {pattern};"));
            let all = read(&folder.path().join("nginx.conf")).expect("valid");
            let files: Vec<&str> = all.iter().map(|directive| &*directive.file).collect();
            assert_eq!(files, expected, "{pattern}");
        };
        check("sites/*/*.conf", &["sites/a/x.conf", "sites/a/y{1}.conf", "sites/b/x.conf"]);
        check("*/?/x.conf", &["sites/a/x.conf", "sites/b/x.conf"]);
        check("sites/[ab]/x.c*", &["sites/a/x.conf", "sites/b/x.conf"]);
        check("\"sites/a/y{1}.*\"", &["sites/a/y{1}.conf"]);
        check("none/*/x.conf", &[]);
        for form in ["[!", "[^"] {
            write("nginx.conf", &format!("include sites/{form}a]/*.conf;"));
            let error = read(&folder.path().join("nginx.conf")).expect_err("unknown");
            assert!(error.ends_with(&format!("write a pattern without `{form}`")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn random_text_does_not_panic(text in "([a-z ;{}'\"\\\\#\n]|include |\\$\\{){0,80}") {
            let _ = parse(&text);
        }
    }
}
