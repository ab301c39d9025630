//! Finds import cycles. Within a crate, files import downwards only, so that each file
//! can be read, tested and moved with the files below it, and nothing else.
//!
//! An import is a path to an item of another file of the crate, in a `use` or at the place of use. syn parses the
//! files. It leaves the arguments of macros and attributes as tokens, so paths there are found by their double colons.
//! Code under `#[cfg(test)]` does not count: a test may build its subject from anything. `mod` does not count either:
//! it declares a child and uses nothing of it. `tidy` runs this for each crate.
//!
//! Not detected: methods that another file adds to a type, and items of a child imported through a glob.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, ItemConst, ItemFn, ItemImpl, ItemMod, ItemUse, Macro, Meta, UseTree, VisRestricted};

/// A module's path below the crate root; empty for the root.
type Module = Vec<String>;

/// For each file, the files of the same crate that it imports, with the imported names.
type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Finds the shortest cycle of each set of files that reach each other, a line each.
/// `files`: the files of one crate, each as its path below `src` and its text.
///
/// # Errors
/// If a file is not valid Rust.
pub(crate) fn cycles(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let imports = imports(files)?;
    let mut left: BTreeSet<&str> = imports.keys().map(String::as_str).collect();
    let mut found = Vec::new();
    // Take the shortest cycle, drop all files of its set, and repeat until no cycle is left.
    while let Some(cycle) = left.iter().filter_map(|file| shortest(&imports, file, &left)).min_by_key(Vec::len) {
        let component: BTreeSet<&str> =
            left.iter().copied().filter(|file| is_in_component(&imports, cycle[0], file)).collect();
        left.retain(|file| !component.contains(file));
        found.push(described(&imports, &cycle, component.len()));
    }
    Ok(found)
}

/// Formats a cycle as a line: `a.rs -> b.rs (Name) -> a.rs (Other)`, and how many files reach each other in all.
fn described(imports: &Imports, cycle: &[&str], component: usize) -> String {
    const NAMES_MAX: usize = 4;
    let mut text = cycle[0].to_owned();
    for (from, to) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
        let names: Vec<&str> = imports[*from][*to].iter().map(String::as_str).collect();
        let more = if names.len() > NAMES_MAX { ", ..." } else { "" };
        text += &format!(" -> {to} ({}{more})", names[..names.len().min(NAMES_MAX)].join(", "));
    }
    if component > cycle.len() {
        text += &format!("; {component} files reach each other");
    }
    text
}

/// The shortest path from `file` back to itself through the files of `among`.
fn shortest<'a>(imports: &'a Imports, file: &'a str, among: &BTreeSet<&str>) -> Option<Vec<&'a str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([file]);
    while let Some(at) = queue.pop_front() {
        for next in imports[at].keys().map(String::as_str).filter(|next| among.contains(next)) {
            if next == file {
                let mut way = vec![at];
                while let Some(before) = came_from.get(way[way.len() - 1]) {
                    way.push(before);
                }
                way.reverse();
                return Some(way);
            }
            if !came_from.contains_key(next) {
                came_from.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

/// Whether each of the two files reaches the other.
fn is_in_component(imports: &Imports, one: &str, other: &str) -> bool {
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut queue) = (BTreeSet::from([from]), vec![from]);
        while let Some(at) = queue.pop() {
            queue.extend(imports[at].keys().map(String::as_str).filter(|next| seen.insert(next)));
        }
        seen.contains(to)
    };
    reaches(one, other) && reaches(other, one)
}

/// Collects what the files of a crate import from each other.
fn imports(files: &[(&str, &str)]) -> Result<Imports, String> {
    // The `main.rs` of a package with a library is a crate of its own.
    let has_library = files.iter().any(|(path, _)| *path == "lib.rs");
    let ours = files.iter().filter(|(path, _)| !(has_library && *path == "main.rs"));
    let mut read = Vec::new();
    for (path, text) in ours {
        let module = module_of(path);
        let syntax = syn::parse_file(text).map_err(|error| format!("{path}: cannot be parsed: {error}"))?;
        let mut reader = Reader { module: module.clone(), ..Reader::default() };
        reader.visit_file(&syntax);
        read.push((*path, module, reader));
    }
    let tests: BTreeSet<Module> = read.iter().flat_map(|(.., reader)| reader.tests.iter().cloned()).collect();
    let is_test = |module: &Module| (1..=module.len()).any(|length| tests.contains(&module[..length]));
    read.retain(|(_, module, _)| !is_test(module));
    let modules: BTreeMap<&Module, &str> = read.iter().map(|(path, module, _)| (module, *path)).collect();
    let mut imports = Imports::new();
    for (path, _, reader) in &read {
        let of_file = imports.entry((*path).to_owned()).or_default();
        for (target, name) in reader.targets(&modules) {
            if target != *path {
                of_file.entry(target.to_owned()).or_default().insert(name);
            }
        }
    }
    Ok(imports)
}

/// The module of the file with this path below `src`.
fn module_of(path: &str) -> Module {
    let mut parts: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// Collects the paths of a file.
#[derive(Default)]
struct Reader {
    /// The current module: the file's, or one inside the file.
    module: Module,
    /// Each path as written, with the module that contains it.
    paths: Vec<(Module, Vec<String>)>,
    /// Paths of `use` items, with the name that each imports.
    uses: Vec<(Module, Vec<String>, String)>,
    /// Modules compiled for tests only.
    tests: Vec<Module>,
}

impl Reader {
    /// The files that the paths refer to, and the names imported from them.
    fn targets<'a>(&self, modules: &BTreeMap<&Module, &'a str>) -> Vec<(&'a str, String)> {
        let mut brought: BTreeMap<&str, Module> = BTreeMap::new();
        for (module, path, name) in &self.uses {
            let whole = absolute(module, path, &brought, modules);
            brought.extend(whole.filter(|whole| modules.contains_key(whole)).map(|whole| (name.as_str(), whole)));
        }
        let uses = self.uses.iter().map(|(module, path, _)| (module, path));
        // A single name that is not imported is a variable or a type, even if a module has the same name.
        let paths = self.paths.iter().filter(|(_, path)| path.len() > 1).map(|(module, path)| (module, path));
        let mut found = Vec::new();
        for (module, path) in uses.chain(paths) {
            let Some(whole) = absolute(module, path, &brought, modules) else { continue };
            let target = (0..=whole.len()).rev().find_map(|length| {
                let file = modules.get(&whole[..length].to_vec())?;
                Some((*file, whole.get(length).or(whole.last())?.clone()))
            });
            found.extend(target);
        }
        found
    }

    fn note_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        // Number of colons after the last name in `path`.
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.note_path(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.note_path(&mut path);
                    self.note_tokens(group.stream());
                    colons = 0;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.note_path(&mut path);
                    colons = 0;
                }
            }
        }
        self.note_path(&mut path);
    }

    fn note_path(&mut self, path: &mut Vec<String>) {
        let path = std::mem::take(path);
        if !path.is_empty() {
            self.paths.push((self.module.clone(), path));
        }
    }

    fn note_use(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &dyn ToString| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.note_use(&with(&path.ident), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_use(before, tree)),
            UseTree::Name(name) if name.ident == "self" => {
                let brought = before.last().cloned().unwrap_or_default();
                self.uses.push((self.module.clone(), before.to_vec(), brought));
            }
            UseTree::Name(name) => self.uses.push((self.module.clone(), with(&name.ident), name.ident.to_string())),
            UseTree::Rename(name) => self.uses.push((self.module.clone(), with(&name.ident), name.rename.to_string())),
            UseTree::Glob(_) => self.uses.push((self.module.clone(), with(&"*"), "*".to_owned())),
        }
    }
}

/// Resolves a path written in this module to a path from the crate root; `None` if it leaves the crate.
fn absolute(
    module: &Module,
    path: &[String],
    brought: &BTreeMap<&str, Module>,
    modules: &BTreeMap<&Module, &str>,
) -> Option<Module> {
    let (first, rest) = path.split_first()?;
    Some(match first.as_str() {
        "crate" => rest.to_vec(),
        "self" => [module, rest].concat(),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            [module.get(..module.len().checked_sub(ups)?)?, &path[ups..]].concat()
        }
        name => {
            let child = [module.as_slice(), &[name.to_owned()]].concat();
            if modules.contains_key(&child) { [&child, rest].concat() } else { [brought.get(name)?, rest].concat() }
        }
    })
}

/// Whether the attributes include `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => demands_test(list.tokens.clone()),
        Meta::Path(_) | Meta::List(_) | Meta::NameValue(_) => false,
    })
}

fn demands_test(condition: TokenStream) -> bool {
    let mut is_all = false;
    condition.into_iter().any(|token| match token {
        TokenTree::Ident(name) => {
            is_all = name == "all";
            name == "test"
        }
        TokenTree::Group(group) => is_all && demands_test(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

impl<'a> Visit<'a> for Reader {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        self.module.push(item.ident.to_string());
        if is_for_tests(&item.attrs) {
            self.tests.push(self.module.clone());
        } else {
            visit::visit_item_mod(self, item);
        }
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        // `use ::name` refers to another crate.
        if item.leading_colon.is_none() && !is_for_tests(&item.attrs) {
            self.note_use(&[], &item.tree);
        }
    }

    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_const(&mut self, item: &'a ItemConst) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_const(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.paths.push((self.module.clone(), names));
        }
        // Types within `<>` contain paths of their own.
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a Macro) {
        self.note_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_attribute(&mut self, attribute: &'a Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.note_tokens(list.tokens.clone());
        }
    }

    /// `pub(in path)` imports nothing.
    fn visit_vis_restricted(&mut self, _: &'a VisRestricted) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that these files have exactly the expected cycles.
    fn check(files: &[(&str, &str)], expected: &[&str]) {
        assert_eq!(cycles(files).unwrap(), expected, "{files:#?}");
    }

    #[test]
    fn cycle_of_two_or_three_files_is_reported_with_names() {
        let two = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::{B, Other as Name};"),
            ("b.rs", "use super::c::C; impl A for super::a::A {}"),
            ("c.rs", "pub struct C;"),
        ];
        check(&two, &["a.rs -> b.rs (B, Other) -> a.rs (A)"]);
        let three = [
            ("main.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b; fn f() { b::g() }"),
            ("b.rs", "use crate::c::*; use crate::d::D;"),
            ("c.rs", "fn f() -> Vec<crate::a::A> { vec![] }"),
            ("d.rs", "use crate::a::A;"),
        ];
        check(&three, &["a.rs -> b.rs (b, g) -> c.rs (*) -> a.rs (A); 4 files reach each other"]);
    }

    #[test]
    fn each_component_is_reported_on_its_own_line() {
        let files = [
            ("lib.rs", ""),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::a::A;"),
            ("c.rs", "use crate::{a::A, d::D};"),
            ("d.rs", "use crate::c::C;"),
        ];
        check(&files, &["a.rs -> b.rs (B) -> a.rs (A)", "c.rs -> d.rs (D) -> c.rs (C)"]);
    }

    #[test]
    fn parent_importing_its_child_is_above_it() {
        let parent = "mod child; pub use child::Child; struct Own;";
        check(&[("lib.rs", ""), ("a/mod.rs", parent), ("a/child.rs", "struct Child;")], &[]);
        let cycle = "a/child.rs -> a/mod.rs (Own) -> a/child.rs (Child)";
        check(&[("lib.rs", ""), ("a/mod.rs", parent), ("a/child.rs", "use super::Own;")], &[cycle]);
        let cycle = "a.rs -> a/child.rs (Child) -> a.rs (Own)";
        check(&[("lib.rs", ""), ("a.rs", parent), ("a/child.rs", "use super::Own;")], &[cycle]);
        let root = "mod a; use a::A; fn shared() {}";
        check(&[("lib.rs", root), ("a.rs", "fn f() { crate::shared() }")], &["a.rs -> lib.rs (shared) -> a.rs (A)"]);
    }

    #[test]
    fn paths_in_macros_and_attributes_count() {
        for text in [
            "fn f() { println!(\"{}\", crate::b::g()) }",
            "fn f() { html! { @for x in crate::b::g() { p { (x) } } } }",
            "#[derive(Args)] struct A { #[arg(value_parser = crate::b::g)] a: u8 }",
            "mod inner { fn f() { super::super::b::g() } }",
        ] {
            let files = [("lib.rs", ""), ("a.rs", text), ("b.rs", "use crate::a::A;")];
            check(&files, &["a.rs -> b.rs (g) -> a.rs (A)"]);
        }
    }

    #[test]
    fn test_code_is_ignored() {
        for text in [
            "#[cfg(test)] mod tests { use crate::b::B; }",
            "#[cfg(all(test, feature = \"x\"))] mod tests { use crate::b::B; }",
            "#[cfg(test)] use crate::b::B;",
            "#[cfg(test)] pub(crate) fn made() -> crate::b::B { todo() }",
            "impl A { #[cfg(test)] fn made() -> crate::b::B { todo() } }",
            "/// See [`crate::b::B`].\nstruct A; pub(in crate::b) struct C; // crate::b::B",
        ] {
            check(&[("lib.rs", ""), ("a.rs", text), ("b.rs", "use crate::a::A;")], &[]);
        }
        let files = [
            ("lib.rs", ""),
            ("a.rs", "#[cfg(test)] mod tests;"),
            ("a/tests.rs", "use super::*; use crate::b::B;"),
            ("b.rs", "use crate::a::A;"),
        ];
        check(&files, &[]);
        let other = "#[cfg(not(test))] use crate::b::B;";
        check(&[("lib.rs", ""), ("a.rs", other), ("b.rs", "use crate::a::A;")], &["a.rs -> b.rs (B) -> a.rs (A)"]);
    }

    #[test]
    fn paths_to_other_crates_are_ignored() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("main.rs", "use crate::a::A; mod a {}"),
            ("a.rs", "use ::b::B; use core::a::A; fn f(b: B) -> u8 { b }"),
            ("b.rs", "use crate::a::A; pub fn b() {}"),
        ];
        check(&files, &[]);
    }

    #[test]
    fn invalid_rust_is_an_error() {
        assert!(cycles(&[("lib.rs", "fn (")]).unwrap_err().contains("lib.rs: cannot be parsed"));
    }
}
