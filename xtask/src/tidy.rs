//! `cargo xtask tidy`: checks the house rules that a machine can check, and gives the reason for each.
//!
//! It reads all files that git tracks or would add into [`Tree`]. Each rule is a function from the tree to complaints,
//! so that its test is a few lines of text. It prints all complaints, not only the first.
//!
//! Not a linter: rustc, clippy and Cargo check what they can (see `[workspace.lints]`). These rules cover relations
//! between files: documents and code, crates and the layering, and things that must exist exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::command::{Outcome, cargo, output, program, root};
use crate::cycles::cycles;

pub(crate) fn run() -> Outcome {
    let tree = Tree::read(&root())?;
    // Cargo reports the layering, as it resolves the features and inheritance of the manifests.
    let edges = ["tree", "--workspace", "--all-features", "--edges", "normal,build"];
    let shape = ["--depth", "1", "--prefix", "depth", "--no-dedupe"];
    let mut complaints = layers(&output(cargo(&edges).args(shape))?);
    for rule in RULES {
        complaints.extend(rule(&tree));
    }

    for complaint in &complaints {
        println!("{complaint}");
    }
    match complaints.len() {
        0 => {
            println!("{} files are tidy", tree.files.len());
            Ok(())
        }
        n => Err(format!("{n} rules are violated, see above")),
    }
}

const RULES: &[fn(&Tree) -> Vec<String>] =
    &[documents, story, unsafe_code, no_std, imports, stops, unfinished, whitespace, size, links, promises, rows, map];

/// The project's files by their path from the root, with slashes.
#[derive(Default)]
struct Tree {
    files: BTreeMap<String, File>,
}

struct File {
    length: u64,
    /// The content; `None` if it is not text.
    text: Option<String>,
}

impl Tree {
    fn read(root: &Path) -> Outcome<Tree> {
        // In CI the checkout may belong to another user, which git does not trust by default.
        let mut git = program("git");
        git.args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let names = output(&mut git).map_err(|text| format!("cannot list the project's files with git: {text}"))?;
        let mut files = BTreeMap::new();
        for name in names.split_terminator('\0') {
            let path = root.join(name);
            // Skip files deleted but not yet committed, and links: their targets are checked under their own names.
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if !meta.is_file() {
                continue;
            }
            let text = if meta.len() > SIZE_MAX {
                None
            } else {
                let bytes = fs::read(&path).map_err(|error| format!("cannot read {name}: {error}"))?;
                String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
            };
            files.insert(name.to_owned(), File { length: meta.len(), text });
        }
        Ok(Tree { files })
    }

    fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, file)| Some((path.as_str(), file.text.as_deref()?)))
    }

    fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(|(path, _)| path.ends_with(".rs"))
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.text.as_deref()
    }

    /// The names of the directories in `crates`.
    fn crates(&self) -> BTreeSet<&str> {
        self.files
            .keys()
            .filter_map(|path| path.strip_prefix("crates/")?.split_once('/').map(|(name, _)| name))
            .collect()
    }
}

/// The documents that others refer to exist.
fn documents(tree: &Tree) -> Vec<String> {
    ["README.md", "ARCHITECTURE.md", "SPECIFICATION.md", "GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        .into_iter()
        .filter(|path| tree.text(path).is_none())
        .map(|path| format!("{path}: missing; see the list of documents in CONTRIBUTING.md"))
        .collect()
}

/// Each file opens with a module comment.
fn story(tree: &Tree) -> Vec<String> {
    tree.rust()
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| format!("{path}: does not begin with `//!`; say what this is, what comes before and after it"))
        .collect()
}

/// Only `sys` holds unsafe code.
fn unsafe_code(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| !path.starts_with("crates/sys/")) {
        let is_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
        if is_root && !text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]") {
            complaints.push(format!("{path}: lacks `#![forbid(unsafe_code)]`; only crates/sys may omit it"));
        }
        // The attribute covers only its own crate; tests, examples and fuzz targets are separate crates.
        for (number, line) in numbered(text) {
            let code = line.split("//").next().unwrap_or(line);
            let opens = |rest: &str| {
                let rest = rest.trim_start();
                ["{", "fn ", "impl", "trait ", "extern ", "("].iter().any(|next| rest.starts_with(next))
            };
            // Joined at compile time, so that this file does not match its own rule.
            if code.split(concat!("un", "safe")).skip(1).any(opens) {
                complaints.push(format!(
                    "{path}:{number}: unsafe code; move the primitive to crates/sys, with a safe interface"
                ));
            }
        }
    }
    complaints
}

/// Crates without access to clock, files, sockets and randomness.
const PURE: &[&str] = &["units", "http", "core"];

/// The pure crates are `no_std`, so that they cannot name what they must not use.
fn no_std(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for name in PURE {
        let path = format!("crates/{name}/src/lib.rs");
        let Some(text) = tree.text(&path) else {
            complaints.push(format!("{path}: missing, but it is one of the pure crates"));
            continue;
        };
        if !text.lines().any(|line| line.trim() == "#![no_std]") {
            complaints
                .push(format!("{path}: lacks `#![no_std]`, by which the compiler rejects the use of clock and files"));
        }
        let prefix = format!("crates/{name}/src/");
        for (path, text) in tree.rust().filter(|(path, _)| path.starts_with(&prefix)) {
            let mut before = "";
            for (number, line) in numbered(text) {
                let line = line.trim();
                if line.starts_with("extern crate std") && before != "#[cfg(test)]" {
                    complaints.push(format!("{path}:{number}: `std` is linked in a pure crate outside tests"));
                }
                before = line;
            }
        }
    }
    complaints
}

/// The permitted dependencies among our own crates. `xtask` may depend on all: nothing that ships depends on it.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("amped-units", &[]),
    ("amped-http", &["amped-units"]),
    ("amped-core", &["amped-http", "amped-units"]),
    ("amped-sys", &["amped-units"]),
    ("amped-exporter", &["amped-http", "amped-sys"]),
    ("amped", &["amped-acme-protocol", "amped-core", "amped-exporter", "amped-http", "amped-sys", "amped-units"]),
    ("amped-acme-protocol", &[]),
    ("amped-acme", &["amped-acme-protocol", "amped-sys"]),
    ("amped-measure", &["amped-units"]),
    ("ammeter-load", &["amped-http", "amped-measure", "amped-sys", "amped-units"]),
    ("ammeter-wan", &["amped-measure", "amped-sys", "amped-units"]),
    ("ammeter-monitor", &["amped-exporter", "amped-measure", "amped-sys", "amped-units"]),
    ("ammeter", &["ammeter-load", "ammeter-monitor", "ammeter-wan", "amped-measure", "amped-sys", "amped-units"]),
];

/// Crates for system calls, which only `sys` may use.
const SYS_ONLY: &[&str] = &["libc", "nix", "rustix"];

/// Checks the output of `cargo tree --depth 1 --prefix depth`:
/// `0name v1.2.3 (path)`, then its dependencies as `1name ...`.
fn layers(tree: &str) -> Vec<String> {
    let parsed = tree.lines().filter_map(|line| {
        let (depth, rest) = line.split_at_checked(1)?;
        Some((depth, rest.split(' ').next()?))
    });
    let parsed: Vec<(&str, &str)> = parsed.collect();
    let ours: BTreeSet<&str> = parsed.iter().filter(|(depth, _)| *depth == "0").map(|(_, name)| *name).collect();

    let mut complaints = Vec::new();
    if ours.is_empty() {
        complaints.push("Cargo.toml: `cargo tree` names no crate, so the layering cannot be checked".to_owned());
    }
    let mut crate_name = "";
    for (depth, name) in parsed {
        if depth == "0" {
            crate_name = name;
            if name != "xtask" && !MAY_KNOW.iter().any(|(known, _)| *known == name) {
                complaints
                    .push(format!("{name}: new crate; list its allowed dependencies in MAY_KNOW of xtask/src/tidy.rs"));
            }
            continue;
        }
        let Some((_, allowed)) = MAY_KNOW.iter().find(|(known, _)| *known == crate_name) else { continue };
        if ours.contains(name) && !allowed.contains(&name) {
            complaints.push(format!(
                "{crate_name}: may not depend on {name}, only on [{}]; ARCHITECTURE.md explains the layers",
                allowed.join(", ")
            ));
        }
        if SYS_ONLY.contains(&name) && crate_name != "amped-sys" {
            complaints.push(format!("{crate_name}: depends on {name}; system calls go through amped-sys"));
        }
    }
    complaints
}

/// The files of a crate import downwards only.
fn imports(tree: &Tree) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (path, text) in tree.rust() {
        let is_ours = |folder: &str| folder == "xtask" || folder.starts_with("crates/");
        if let Some((folder, file)) = path.split_once("/src/").filter(|(folder, _)| is_ours(folder)) {
            crates.entry(folder).or_default().push((file, text));
        }
    }
    let mut complaints = Vec::new();
    for (folder, files) in crates {
        match cycles(&files) {
            Ok(cycles) => complaints.extend(cycles.into_iter().map(|cycle| {
                format!("{folder}: {cycle}. Files of a crate import downwards only: move what these share below them")
            })),
            Err(text) => complaints.push(format!("{folder}/src/{text}")),
        }
    }
    complaints
}

/// The ten stops of a request: `grep -rn "Stop [0-9]* of 10" crates` prints the path of one through the sources.
fn stops(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for stop in 1..=10 {
        let marker = format!("Stop {stop} of 10");
        let mut places = Vec::new();
        for (path, text) in tree.rust().filter(|(path, _)| path.starts_with("crates/")) {
            for (number, line) in numbered(text).filter(|(_, line)| line.contains(&marker)) {
                places.push(format!("{path}:{number}"));
                if !line.starts_with("//!") {
                    complaints.push(format!("{path}:{number}: `{marker}` belongs in the module comment"));
                }
            }
        }
        if places.len() != 1 {
            let places = if places.is_empty() { "nowhere".to_owned() } else { places.join(", ") };
            complaints.push(format!("crates: `{marker}` must occur once, but is {places}; readers search for it"));
        }
    }
    complaints
}

/// The repository contains no unfinished code. Open work belongs where developers look for it, not in the code.
fn unfinished(tree: &Tree) -> Vec<String> {
    // Joined at compile time, so that this file does not match its own rule.
    const NOTES: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];
    const MACROS: &[&str] = &[concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")];
    let mut complaints = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| !is_data(path)) {
        for (number, line) in numbered(text) {
            for note in NOTES.iter().filter(|note| has_word(line, note)) {
                complaints.push(format!("{path}:{number}: `{note}`; finish it, or document what is missing and why"));
            }
            for call in MACROS.iter().filter(|call| path.ends_with(".rs") && line.contains(**call)) {
                complaints.push(format!("{path}:{number}: `{call})` is for debugging, and must not be committed"));
            }
        }
    }
    complaints
}

/// Files have no stray whitespace, so that a diff shows only intended changes.
fn whitespace(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| !is_data(path)) {
        for (number, _) in numbered(text).filter(|(_, line)| line.ends_with([' ', '\t'])) {
            complaints.push(format!("{path}:{number}: trailing space"));
        }
        if !text.is_empty() && !text.ends_with('\n') {
            complaints.push(format!("{path}: no newline at the end of the file"));
        }
    }
    complaints
}

const SIZE_MAX: u64 = 1 << 20;

/// No file is large: git keeps every version, and every clone fetches them all.
fn size(tree: &Tree) -> Vec<String> {
    tree.files
        .iter()
        .filter(|(path, file)| file.length > SIZE_MAX && !path.starts_with("fuzz/seeds/"))
        .map(|(path, file)| format!("{path}: {} bytes, more than 1 MiB; generate it when needed instead", file.length))
        .collect()
}

/// Links to files of the project resolve. The part after `#` is not checked.
fn links(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md") && !is_data(path)) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut in_code = false;
        for (number, line) in numbered(text) {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            if in_code {
                continue;
            }
            for target in link_targets(line) {
                let target = target.split('#').next().unwrap_or(target);
                // A scheme (`https:`, `mailto:`) is an external link; an empty target is this file.
                if target.is_empty() || target.contains(':') {
                    continue;
                }
                let found = resolve(folder, target).is_some_and(|full| {
                    let below = format!("{full}/");
                    full.is_empty() || tree.files.keys().any(|file| *file == full || file.starts_with(&below))
                });
                if !found {
                    complaints.push(format!("{path}:{number}: broken link to `{target}`"));
                }
            }
        }
    }
    complaints
}

/// The link targets of a line: the text between `](` and `)`, without a title.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    // Text in backticks is not a link: every second piece between backticks is outside.
    line.split('`').step_by(2).flat_map(|outside| {
        outside.split("](").skip(1).filter_map(|rest| rest.split_once(')')?.0.split_whitespace().next())
    })
}

/// Resolves `target` relative to `folder` to a path from the root; `None` if it leaves the project.
fn resolve(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Each promise of the specification names existing tests, as `file::test_name`.
fn promises(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let text = tree.text("SPECIFICATION.md").unwrap_or_default();
    for (number, line) in numbered(text) {
        for (file, test) in line.split('`').skip(1).step_by(2).filter_map(test_name) {
            let mut files = tree.rust().filter(|(path, _)| is_named(path, file)).peekable();
            if files.peek().is_none() {
                complaints.push(format!("SPECIFICATION.md:{number}: `{file}::{test}`: file {file} not found"));
            } else if !files.any(|(_, text)| has_function(text, test)) {
                complaints.push(format!("SPECIFICATION.md:{number}: `{file}::{test}`: no such test in {file}"));
            }
        }
    }
    complaints
}

/// Each promise is short enough to read in a line, and names a test.
fn rows(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut in_table = false;
    for (number, line) in numbered(tree.text("SPECIFICATION.md").unwrap_or_default()) {
        in_table = line == PROMISES || (in_table && line.starts_with('|'));
        if in_table && line != PROMISES && !line.starts_with("|---") {
            complaints.extend(row(line).into_iter().map(|text| format!("SPECIFICATION.md:{number}: {text}")));
        }
    }
    complaints
}

/// Checks the row of a promise.
fn row(line: &str) -> Vec<String> {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let [promise, tests] = cells[..] else {
        return vec!["a promise has two cells: promise and tests".to_owned()];
    };
    let mut complaints = Vec::new();
    let length = promise.chars().count();
    if length > PROMISE_CHARS_MAX {
        complaints
            .push(format!("{length} characters, {PROMISE_CHARS_MAX} are allowed; shorten it, or make it two promises"));
    }
    if !tests.split('`').skip(1).step_by(2).any(|code| test_name(code).is_some()) {
        complaints.push("no test; name one, or move the text to \"Not promised\"".to_owned());
    }
    complaints
}

/// The header of a table of promises.
const PROMISES: &str = "| promise | tests |";

/// Maximum length of a promise, in characters.
const PROMISE_CHARS_MAX: usize = 160;

/// Splits `wire::serves_a_file`, `tests/wire.rs::serves_a_file` or `core/conn::tests::serves` into file and test. Types
/// and constants (`Conn::handle`, `Time::NEVER`) are not tests: neither half may contain an upper-case letter.
fn test_name(code: &str) -> Option<(&str, &str)> {
    let (file, rest) = code.split_once("::")?;
    let test = rest.rsplit("::").next()?;
    let is_path = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-./".contains(c);
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    (!file.is_empty() && !test.is_empty() && file.chars().all(is_path) && test.chars().all(is_name))
        .then_some((file, test))
}

/// Whether `name` is a short name of the file at `path`: its last
/// components, without `.rs` and without `src`, or its directory.
fn is_named(path: &str, name: &str) -> bool {
    let plain = |path: &str| format!("/{}/", path.trim_end_matches(".rs").replace("/src/", "/"));
    plain(path).contains(&plain(name))
}

fn has_function(text: &str, name: &str) -> bool {
    text.match_indices(&format!("fn {name}")).any(|(at, found)| {
        let after = text[at + found.len()..].chars().next();
        matches!(after, Some('(' | '<'))
    })
}

/// The map in the architecture lists every crate.
fn map(tree: &Tree) -> Vec<String> {
    let Some(text) = tree.text("ARCHITECTURE.md") else { return Vec::new() };
    let named = |name: &str| {
        let (folder, bare) = (format!("crates/{name}"), format!("{name}/"));
        has_word(text, &folder) || text.match_indices(&bare).any(|(at, _)| !text[..at].ends_with(is_word))
    };
    tree.crates()
        .into_iter()
        .filter(|name| !named(name))
        .map(|name| {
            format!("ARCHITECTURE.md: crates/{name} is missing from the map; describe what it does and must never do")
        })
        .collect()
}

/// Data files, which the rules do not cover: inputs of fuzz targets, expected outputs of tests, a site to serve.
fn is_data(path: &str) -> bool {
    let fuzz = path.starts_with("fuzz/seeds/") || path.starts_with("fuzz/regressions/");
    fuzz || path.starts_with("examples/site/") || path.split('/').any(|part| part == "golden") && !path.ends_with(".rs")
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n').enumerate().map(|(index, line)| (index + 1, line))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_word) && !text[at + word.len()..].starts_with(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let file = |text: &str| File { length: text.len() as u64, text: Some(text.to_owned()) };
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect() }
    }

    /// Asserts that `rule` on `files` yields one complaint for each part of
    /// `expected`, and that each contains its part.
    fn check(rule: fn(&Tree) -> Vec<String>, files: &[(&str, &str)], expected: &[&str]) {
        same(&rule(&tree(files)), expected);
    }

    fn same(complaints: &[String], expected: &[&str]) {
        let fits =
            complaints.len() == expected.len() && complaints.iter().zip(expected).all(|(c, part)| c.contains(part));
        assert!(fits, "complaints {complaints:#?}, expected {expected:?}");
    }

    #[test]
    fn files_import_downwards_only() {
        let files = |a: &'static str| {
            [
                ("crates/one/src/lib.rs", "mod a;\nmod b;\n"),
                ("crates/one/src/a.rs", a),
                ("crates/one/src/b.rs", "use crate::a::A;\n"),
                ("crates/two/src/b.rs", "use crate::b::B;\n"),
                ("tests/one/a.rs", "use crate::b::B;\n"),
            ]
        };
        check(imports, &files("struct A;\n"), &[]);
        check(imports, &files("use crate::b::B;\n"), &["crates/one: a.rs -> b.rs (B) -> a.rs (A)"]);
        check(imports, &files("struct\n"), &["crates/one/src/a.rs: cannot be parsed"]);
    }

    #[test]
    fn documents_exist() {
        let all = ["README", "ARCHITECTURE", "SPECIFICATION", "GLOSSARY", "CONTRIBUTING", "CHANGELOG"];
        let names: Vec<String> = all.iter().map(|name| format!("{name}.md")).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x\n")).collect();
        check(documents, &files, &[]);
        check(documents, &files[1..], &["README.md: missing"]);
    }

    #[test]
    fn file_opens_with_module_documentation() {
        check(story, &[("a.rs", "//! This.\n"), ("b.md", "x")], &[]);
        check(story, &[("a.rs", "// This.\n"), ("b.rs", "")], &["a.rs", "b.rs"]);
    }

    #[test]
    fn unsafe_code_is_confined_to_sys() {
        let forbid = "//! x\n#![forbid(unsafe_code)]\n";
        check(unsafe_code, &[("crates/core/src/lib.rs", forbid), ("crates/core/src/a.rs", "//! x\n")], &[]);
        check(unsafe_code, &[("crates/core/src/lib.rs", "//! x\n")], &["lacks"]);
        let block = format!("{} {{ f() }}\n", concat!("un", "safe"));
        check(unsafe_code, &[("crates/sys/src/lib.rs", &block)], &[]);
        check(unsafe_code, &[("tests/wire.rs", &block)], &["tests/wire.rs:1"]);
        check(unsafe_code, &[("tests/wire.rs", &format!("// {block}"))], &[]);
    }

    #[test]
    fn pure_crates_do_not_use_std() {
        let good = "#![no_std]\n#[cfg(test)]\nextern crate std;\n";
        let bad = "#![no_std]\nextern crate std;\n";
        let files = |core: &'static str| {
            [("crates/core/src/lib.rs", core), ("crates/http/src/lib.rs", good), ("crates/units/src/lib.rs", good)]
        };
        check(no_std, &files(good), &[]);
        check(no_std, &files("//! x\n"), &["core/src/lib.rs: lacks"]);
        check(no_std, &files(bad), &["core/src/lib.rs:2"]);
        check(no_std, &files(good)[1..], &["core/src/lib.rs: missing"]);
    }

    #[test]
    fn crates_depend_only_on_lower_layers() {
        let good = "0amped-core v0.1.0 (/x)\n1amped-http v0.1.0 (/x)\n1memchr v2.0.0\n\n0amped-http v0.1.0 (/x)\n\n\
                    0amped-sys v0.1.0 (/x)\n1libc v0.2.0\n\n0xtask v0.1.0 (/x)\n1amped-core v0.1.0 (/x)\n";
        same(&layers(good), &[]);
        let upward = "0amped-http v0.1.0 (/x)\n1amped-core v0.1.0 (/x)\n\n0amped-core v0.1.0 (/x)\n";
        same(&layers(upward), &["amped-http: may not depend on amped-core"]);
        same(&layers("0amped-new v0.1.0 (/x)\n"), &["new crate"]);
        same(&layers("0amped v0.1.0 (/x)\n1libc v0.2.0\n"), &["go through amped-sys"]);
        same(&layers(""), &["names no crate"]);
    }

    #[test]
    fn each_stop_is_marked_once() {
        let marked: String = (1..=10).map(|stop| format!("//! Stop {stop} of 10.\n")).collect();
        check(stops, &[("crates/a.rs", &marked), ("xtask/a.rs", &marked)], &[]);
        let without = marked.replace("Stop 3", "Then");
        check(stops, &[("crates/a.rs", &without)], &["`Stop 3 of 10` must occur once, but is nowhere"]);
        check(
            stops,
            &[("crates/a.rs", &marked), ("crates/b.rs", "//! Stop 3 of 10\n")],
            &["crates/a.rs:3, crates/b.rs:1"],
        );
        let late = marked.replace("//! Stop 3", "/// Stop 3");
        check(stops, &[("crates/a.rs", &late)], &["module comment"]);
    }

    #[test]
    fn unfinished_code_is_reported() {
        let note = concat!("// TO", "DO: more\n");
        check(unfinished, &[("a.rs", note), ("examples/site/a.js", note)], &["a.rs:1"]);
        check(unfinished, &[("a.rs", concat!("const TO", "DOS: u8 = 1;\n"))], &[]);
        let call = concat!("x\ntodo", "!();\n");
        check(unfinished, &[("a.rs", call), ("a.md", call)], &["a.rs:2"]);
    }

    #[test]
    fn stray_spaces_are_reported() {
        check(
            whitespace,
            &[("a.md", "x\n"), ("empty", ""), ("fuzz/seeds/h1/a", "GET / "), ("a/golden/x.txt", "y ")],
            &[],
        );
        check(whitespace, &[("a.md", "x \ny\t\n"), ("b.md", "x")], &["a.md:1", "a.md:2", "b.md: no newline"]);
    }

    #[test]
    fn large_files_are_reported() {
        let mut tree = tree(&[]);
        tree.files.insert("a.bin".into(), File { length: SIZE_MAX, text: None });
        tree.files.insert("fuzz/seeds/a".into(), File { length: SIZE_MAX + 1, text: None });
        same(&size(&tree), &[]);
        tree.files.insert("b.bin".into(), File { length: SIZE_MAX + 1, text: None });
        same(&size(&tree), &["b.bin"]);
    }

    #[test]
    fn broken_links_are_reported() {
        let files = |text| [("docs/a.md", text), ("README.md", ""), ("docs/b/c.md", "")];
        let good = "[a](b/c.md) [b](../README.md#x) [c](#here) [d](https://x.org/y) [e](b/) `[f](none)`\n";
        check(links, &files(good), &[]);
        check(links, &files("```\n[a](none)\n```\n"), &[]);
        check(links, &files("[a](c.md \"title\")\n[b](../../x)\n"), &["a.md:1: broken link to `c.md`", "a.md:2"]);
    }

    #[test]
    fn promises_name_tests() {
        let files = |text| {
            [
                ("SPECIFICATION.md", text),
                ("crates/server/tests/wire/files.rs", "fn serves() {}\n"),
                ("crates/core/src/conn.rs", "mod tests { fn closes() {} fn closes_late() {} }\n"),
            ]
        };
        check(promises, &files("`wire::serves` `core/conn::tests::closes` `wire/files.rs::serves` `Time::NEVER`"), &[]);
        check(promises, &files("`wire::serve` `conn::closes_lat`"), &["no such test in wire", "no such test in conn"]);
        check(promises, &files("`wires::serves`"), &["file wires not found"]);
    }

    #[test]
    fn promises_are_short_and_tested() {
        let check = |text: &str, expected: &[&str]| {
            let page = format!("{PROMISES}\n|---|---|\n{text}\n\n| another table |\n");
            check(rows, &[("SPECIFICATION.md", page.as_str())], expected);
        };
        check("| It serves | `wire::serves` |\n| It closes | `wire::closes` |", &[]);
        check("| It serves | review, `Time::NEVER` |", &["no test"]);
        check("| It serves |", &["two cells"]);
        check(&format!("| {} | `wire::serves` |", "x".repeat(PROMISE_CHARS_MAX + 1)), &["161 characters"]);
    }

    #[test]
    fn every_crate_is_on_map() {
        let files = |text| [("ARCHITECTURE.md", text), ("crates/http/src/lib.rs", ""), ("crates/core/Cargo.toml", "")];
        check(map, &files("`crates/http` and `core/`"), &[]);
        check(map, &files("crates/https and core"), &["crates/core", "crates/http"]);
    }
}
