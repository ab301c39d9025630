//! Seeded random requests, and the tree of files that they name.

use std::fs;
use std::process::Command;

pub use amped_measure::stats::Random;

use super::harness::Site;

/// A request. Its conditions use validators that a server sends.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: &'static str,
    pub target: String,
    pub range: Option<String>,
    pub conditions: Vec<(&'static str, Condition)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Condition {
    /// The validator that the server sent: its tag or its date.
    Own,
    /// A validator that no version had, or the second before.
    Other,
    /// Any tag, or the second after.
    Lenient,
}

impl Asked {
    /// Returns the fields for the range and the conditions; `tag` is the entity tag that the server sent.
    pub fn fields(&self, tag: &str) -> Vec<(&'static str, String)> {
        let mut fields = Vec::new();
        for (name, which) in &self.conditions {
            let date = match which {
                Condition::Own => "Tue, 02 Jan 2024 03:04:05 GMT",
                Condition::Other => "Tue, 02 Jan 2024 03:04:04 GMT",
                Condition::Lenient => "Tue, 02 Jan 2024 03:04:06 GMT",
            };
            let value = match (*name, which) {
                ("If-Modified-Since" | "If-Unmodified-Since" | "If-Range date", _) => date.to_owned(),
                (_, Condition::Own) => tag.to_owned(),
                (_, Condition::Other) => "\"another\"".to_owned(),
                ("If-Range", Condition::Lenient) => format!("W/{tag}"),
                (_, Condition::Lenient) => "*".to_owned(),
            };
            fields.push((name.trim_end_matches(" date"), value));
        }
        if let Some(range) = &self.range {
            fields.push(("Range", range.clone()));
        }
        fields
    }
}

/// Creates files of boundary sizes with one date, in directories with and without an index.
pub fn tree(site: &Site) -> Vec<(String, Option<usize>)> {
    let mut files = Vec::new();
    for size in [0, 1, 10, 5000, 32 << 10, (32 << 10) + 1, 300 << 10] {
        let name = format!("files/{size}.txt");
        let path = site.file(&name, (0..size).map(|n| b'a' + (n % 26) as u8).collect::<Vec<_>>());
        assert!(Command::new("touch").args(["-d", "2024-01-02 03:04:05Z"]).arg(&path).status().unwrap().success());
        files.push((format!("/{name}"), Some(size)));
    }
    let index = site.file("docs/index.html", "an index");
    let spaced = site.file("docs/a b.html", "a space");
    let hidden = site.file("docs/.hidden", "hidden");
    for path in [index, spaced, hidden] {
        assert!(Command::new("touch").args(["-d", "2024-01-02 03:04:05Z"]).arg(&path).status().unwrap().success());
    }
    fs::create_dir(site.path().join("empty")).unwrap();
    let others = [
        "/docs/",
        "/docs",
        "/docs?x=1",
        "/docs/?x=1",
        "/docs/index.html",
        "/docs/a%20b.html",
        "/docs/.hidden",
        "/empty/",
        "/empty",
        "/none",
        "/docs/none",
        "/none/none",
        "/files/10.txt/none",
        "/docs/./index.html",
        "/docs/../files/10.txt",
        "/files//10.txt",
        "/%66iles/10.txt",
        "/files/10.txt?query",
        "/a%00b",
        "/../files/10.txt",
        "/docs/%2e%2e/docs/",
    ];
    files.extend(others.map(|name| (name.to_owned(), None)));
    files
}

/// Random choices of the tests.
pub trait Draw {
    fn one_of<T: Copy>(&mut self, these: &[T]) -> T;

    fn request(&mut self, files: &[(String, Option<usize>)]) -> Asked;
}

impl Draw for Random {
    fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len())]
    }

    fn request(&mut self, files: &[(String, Option<usize>)]) -> Asked {
        let (target, size) = files[self.below(files.len())].clone();
        let method = self.one_of(&["GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "HEAD", "POST", "OPTIONS"]);
        let mut asked = Asked { method, target, range: None, conditions: Vec::new() };
        if let Some(size) = size.filter(|_| self.below(2) == 0) {
            asked.range = Some(range(self, size));
        }
        for _ in 0..self.one_of(&[0, 0, 1, 1, 2]) {
            let names =
                ["If-None-Match", "If-Modified-Since", "If-Match", "If-Unmodified-Since", "If-Range", "If-Range date"];
            let name = self.one_of(&names);
            let clash = asked.conditions.iter().any(|(known, _)| known[..7] == name[..7]);
            if !clash {
                let which = self.one_of(&[Condition::Own, Condition::Other, Condition::Lenient]);
                asked.conditions.push((name, which));
            }
        }
        asked
    }
}

fn range(random: &mut Random, size: usize) -> String {
    if random.below(8) == 0 {
        return random.one_of(&["bytes=9-3", "bytes=x-y", "bytes=", "bytes=1", "lines=1-2"]).to_owned();
    }
    // Ascending and disjoint, because merging is not compared here; it has tests of its own.
    let count = random.one_of(&[1, 1, 2, 3]);
    let mut from = 0;
    let mut ranges = Vec::new();
    for _ in 0..count {
        let start = from + random.below(size / 3 + 3);
        let end = start + random.below(size / 3 + 3);
        ranges.push(match random.below(6) {
            0 if count == 1 => format!("{start}-"),
            1 if count == 1 => format!("-{}", 1 + end),
            _ => format!("{start}-{end}"),
        });
        from = end + 2;
    }
    format!("bytes={}", ranges.join(","))
}
