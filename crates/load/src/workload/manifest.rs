//! The manifest of a file set: its files, the weight of each in the workload, and the seeds of their contents.
//!
//! `fileset` creates it and writes it beside the files, as `manifest.jsonl`; `ammeter load --workload` reads it on the
//! machine of the load generator. One JSON object per line: first [`Head`], then a [`File`] each, in the order of the
//! set. Paths are written as in a request line. The file is the decoded path below the document root; for a path with a
//! final slash, the index page of that directory.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use amped_http::uri::{clean_path, encode_path};
use amped_measure::Failure;
use amped_measure::stats::Random;
use serde::{Deserialize, Serialize};

use super::content::digest;
use super::{Digest, Expect, Order, Request, Requests, running_sums};

/// Name of the manifest in the directory of its set.
pub const NAME: &str = "manifest.jsonl";

/// Version of the format.
const FORMAT: u32 = 1;

/// The index page of a directory, with its usual name.
const INDEX: &str = "index.html";

/// Maximum length of file names and of paths, in bytes: NAME_MAX, and slightly less than PATH_MAX (limits.h).
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 3000;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Version of the format: 1.
    pub ammeter_files: u32,
    /// The arguments of `ammeter files` that produced the set, without directory and seed.
    pub set: String,
    /// The seed from which the seeds of the files derive.
    pub seed: u64,
    /// Number of files, and of further lines.
    pub files: u64,
    /// Total bytes of the files.
    pub bytes: u64,
    /// For a set derived from a log: the number of its requests, from the first, that use files of this set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
}

/// A file of a set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The path as in a request line (RFC 3986, 3.3).
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// The class by which results are grouped.
    pub class: String,
    /// Its relative frequency of requests; 0 means never.
    pub weight: f64,
    /// The seed of its content, see [`Content`](super::content::Content).
    /// Below 2^53, which all JSON readers represent exactly.
    pub seed: u64,
}

/// A parsed manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The properties of the set.
    pub head: Head,
    /// At least one.
    pub files: Vec<File>,
}

impl Manifest {
    /// The manifest of the set named `set`, with files as (path, bytes, class,
    /// weight). The seed of a file derives from the set's seed and the path.
    pub fn new(set: String, seed: u64, files: impl IntoIterator<Item = (String, u64, String, f64)>) -> Manifest {
        let file = |(path, bytes, class, weight): (String, u64, String, f64)| {
            let mut digest = Digest::default();
            digest.update(&seed.to_le_bytes());
            digest.update(path.as_bytes());
            File { seed: Random(digest.finish().0).next() >> 11, path, bytes, class, weight }
        };
        let files: Vec<File> = files.into_iter().map(file).collect();
        let bytes = files.iter().map(|file| file.bytes).sum();
        let head = Head { ammeter_files: FORMAT, set, seed, files: files.len() as u64, bytes, requests: None };
        Manifest { head, files }
    }

    /// Mean reply size in bytes, by weight.
    pub fn mean_bytes(&self) -> f64 {
        let weights: f64 = self.files.iter().map(|file| file.weight).sum();
        self.files.iter().map(|file| file.weight * file.bytes as f64).sum::<f64>() / weights
    }

    /// The names of the classes in order of appearance; `class` of a [`Request`] is an index into it.
    pub fn classes(&self) -> Vec<&str> {
        let mut seen = HashSet::new();
        self.files.iter().map(|file| file.class.as_str()).filter(|class| seen.insert(*class)).collect()
    }

    /// A workload of its files, drawn by weight. Replies are checked for status and length, with `verify` also for
    /// content. Verification generates the content of the whole set once, at about half a second per GiB.
    pub fn requests(&self, seed: u64, verify: bool) -> Requests {
        let names = self.classes();
        let classes: HashMap<&str, u16> = names.iter().copied().zip(0..).collect();
        let table = self.files.iter().map(|file| Request {
            target: file.path.as_bytes().into(),
            expect: Some(file.expect(verify)),
            class: classes[file.class.as_str()],
            ..Request::default()
        });
        let sums = running_sums(self.files.iter().map(|file| file.weight));
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Requests::new(table.collect(), Order::Drawn { seed, sums }).with_classes(names)
    }

    /// The text of the manifest file.
    pub fn to_text(&self) -> String {
        let line = |text: serde_json::Result<String>| text.expect("strings and numbers are JSON") + "\n";
        let lines = self.files.iter().map(|file| line(serde_json::to_string(file)));
        [line(serde_json::to_string(&self.head))].into_iter().chain(lines).collect()
    }

    /// Reads the manifest at `path`; if that is a directory, the one in it.
    ///
    /// # Errors
    /// When it cannot be read or is invalid; the text has the line number.
    pub fn read(path: &Path) -> Result<Manifest, Failure> {
        let path = if path.is_dir() { path.join(NAME) } else { path.to_owned() };
        let text = fs::read_to_string(&path).map_err(|error| {
            let place = path.display();
            Failure::failed(format!(
                "cannot read the manifest {place}: {error}; create a file set with `ammeter files`"
            ))
        })?;
        Manifest::parse(&text).map_err(|trouble| Failure::failed(format!("{}: {trouble}", path.display())))
    }

    /// Parses the text of a manifest.
    ///
    /// # Errors
    /// The error, with the line number.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let mut lines = text.lines().enumerate();
        let at = |number: usize, trouble: String| format!("line {}: {trouble}", number + 1);
        let (number, first) = lines.next().ok_or("the manifest is empty; create one with `ammeter files`")?;
        let head: Head = serde_json::from_str(first)
            .map_err(|error| at(number, format!("not a manifest of `ammeter files`: {error}")))?;
        if head.ammeter_files != FORMAT {
            let form = head.ammeter_files;
            return Err(at(
                number,
                format!(
                    "format version {form}, and this ammeter reads version {FORMAT}: create the \
                 set again"
                ),
            ));
        }
        let (mut files, mut names) = (Vec::new(), HashSet::new());
        for (number, line) in lines {
            let file: File = serde_json::from_str(line).map_err(|error| at(number, error.to_string()))?;
            let name = file_name(file.path.as_bytes()).ok_or_else(|| {
                at(number, format!("invalid path `{}`: write `/name`, encoded as in a URL", file.path))
            })?;
            if !(file.weight.is_finite() && file.weight >= 0.0) {
                return Err(at(number, format!("invalid weight {}: it must be 0 or more", file.weight)));
            }
            if !names.insert(name) {
                return Err(at(number, format!("`{}` is listed twice", file.path)));
            }
            files.push(file);
        }
        let manifest = Manifest { head, files };
        let Manifest { head, files } = &manifest;
        let sum = files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.bytes));
        if files.len() as u64 != head.files || sum != Some(head.bytes) {
            let (count, sum) = (files.len(), sum.map_or("too many".to_owned(), |sum| sum.to_string()));
            return Err(format!(
                "its header has {} files and {} bytes, its lines {count} and {sum}; it was truncated or edited",
                head.files, head.bytes
            ));
        }
        if !files.iter().any(|file| file.weight > 0.0) {
            return Err("no file has a weight above 0, so there is nothing to request".to_owned());
        }
        // Draws use the running sums of the weights.
        if !files.iter().map(|file| file.weight).sum::<f64>().is_finite() {
            return Err("the sum of the weights is too large".to_owned());
        }
        if manifest.classes().len() > usize::from(u16::MAX) {
            return Err(format!("more than {} classes", u16::MAX));
        }
        Ok(manifest)
    }

    /// Files by name, as in [`file_name`].
    pub(super) fn by_name(&self) -> HashMap<PathBuf, &File> {
        self.files.iter().filter_map(|file| Some((file_name(file.path.as_bytes())?, file))).collect()
    }
}

impl File {
    /// The expected reply with this file.
    pub(super) fn expect(&self, verify: bool) -> Expect {
        let content = verify.then(|| digest(self.seed, self.bytes));
        Expect { status: Some(200), length: Some(self.bytes), content }
    }
}

/// The file for a path, below the document root; `None` if there can be none: the path is not a valid request path,
/// leads out of the root, has a name that no file system accepts, or that of the manifest.
pub fn file_name(path: &[u8]) -> Option<PathBuf> {
    let is_written = |byte: &u8| byte.is_ascii_graphic() && !b"?#".contains(byte);
    if path.first() != Some(&b'/') || !path.iter().all(is_written) {
        return None;
    }
    let mut scratch = Vec::new();
    let mut name = clean_path(path, &mut scratch).ok()?.strip_prefix(b"/")?.to_vec();
    if name.is_empty() || name.ends_with(b"/") {
        name.extend_from_slice(INDEX.as_bytes());
    }
    let fits = name.len() <= PATH_MAX && name.split(|byte| *byte == b'/').all(|part| part.len() <= NAME_MAX);
    // `clean_path` removes `.` and `..`, empty names and NUL.
    (fits && name != NAME.as_bytes()).then(|| PathBuf::from(OsString::from_vec(name)))
}

/// The path of a request's target in the form of a manifest:
/// without query and dot segments, percent-encoded where necessary.
pub(super) fn plain_path(target: &[u8]) -> Option<String> {
    let path = target.split(|byte| *byte == b'?').next()?;
    let (mut scratch, mut encoded) = (Vec::new(), Vec::new());
    encode_path(clean_path(path, &mut scratch).ok()?, &mut encoded);
    String::from_utf8(encoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn small() -> Manifest {
        let file = |path: &str, bytes, class: &str, weight| (path.to_owned(), bytes, class.to_owned(), weight);
        Manifest::new("test".to_owned(), 1, [file("/", 10, "a", 1.0), file("/b%20c", 20, "b", 3.0)])
    }

    #[test]
    fn manifest_round_trips() {
        let manifest = small();
        let text = manifest.to_text();
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.starts_with("{\"ammeter_files\":1,\"set\":\"test\",\"seed\":1,\"files\":2,\"bytes\":30}\n"),
            "{text}"
        );
        assert_eq!(Manifest::parse(&text), Ok(manifest));
        assert_eq!(small().mean_bytes(), 17.5);
        assert_eq!(small().classes(), ["a", "b"]);
    }

    #[test]
    fn invalid_manifest_is_reported_with_line() {
        let check = |from: &str, to: &str, says: &str| {
            let text = small().to_text();
            assert!(text.contains(from), "{text}");
            let error = Manifest::parse(&text.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(says), "{error}");
        };
        check("\"ammeter_files\":1", "\"ammeter_files\":2", "line 1: format version 2");
        check("{\"ammeter_files\":1", "[", "line 1: not a manifest");
        check("\"files\":2", "\"files\":3", "truncated or edited");
        check("\"bytes\":30", "\"bytes\":31", "truncated or edited");
        check("\"bytes\":20", "\"bytes\":18446744073709551615", "too many");
        check("\"weight\":3.0", "\"weight\":-3.0", "line 3: invalid weight -3");
        check("/b%20c", "b", "line 3: invalid path `b`");
        check("/b%20c", "/../b", "line 3");
        check("/b%20c", "/index.html", "line 3: `/index.html` is listed twice");
        check("\"class\"", "\"clas\"", "line 2");
        assert!(Manifest::parse("").expect_err("empty").contains("ammeter files"));
        let never = small().to_text().replace("3.0", "0").replace("1.0", "0");
        assert!(Manifest::parse(&never).expect_err("no weight").contains("no file has a weight"));
        let huge = small().to_text().replace("3.0", "1e308").replace("1.0", "1e308");
        assert!(Manifest::parse(&huge).expect_err("too much weight").contains("the sum of the weights is too large"));
    }

    #[test]
    fn path_maps_to_file_name() {
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(file_name(path.as_bytes()), expected.map(PathBuf::from), "{path}");
        };
        check("/", Some("index.html"));
        check("/a/", Some("a/index.html"));
        check("/a//b/./c", Some("a/b/c"));
        check("/a%20b/%7Ec", Some("a b/~c"));
        check("/a/../b", Some("b"));
        check("/a/manifest.jsonl", Some("a/manifest.jsonl"));
        for none in ["/manifest.jsonl", "/..", "/%00", "/a%2Fb", "/%", "a", "", "/a b", "/a\r\n", "/a?b"] {
            check(none, None);
        }
        check(&format!("/{}", "x".repeat(255)), Some(&"x".repeat(255)));
        check(&format!("/{}", "x".repeat(256)), None);
        check(&"/x".repeat(2000), None);
    }

    #[test]
    fn requests_are_drawn_by_weight_and_checked() {
        let requests = small().requests(5, true);
        let of_b = (0..10_000).filter(|n| requests.index(*n) == Some(1)).count();
        // 7500 expected, standard deviation 43.
        assert!((7250..7750).contains(&of_b), "{of_b}");
        let b = &requests.table()[1];
        assert_eq!((&*b.target, b.class), (&b"/b%20c"[..], 1));
        let content = Some(digest(small().files[1].seed, 20));
        assert_eq!(b.expect, Some(Expect { status: Some(200), length: Some(20), content }));
        assert_eq!(small().requests(5, false).table()[0].expect.and_then(|expect| expect.content), None);
    }

    #[test]
    fn seed_and_path_determine_content() {
        let seeds = |seed| {
            let files = ["/a", "/b"].map(|path| (path.to_owned(), 1, String::new(), 1.0));
            Manifest::new(String::new(), seed, files).files.iter().map(|file| file.seed).collect::<Vec<_>>()
        };
        assert_eq!(seeds(1), seeds(1));
        let mut all = [seeds(1), seeds(2)].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4);
        assert!(all.iter().all(|seed| *seed < 1 << 53));
    }

    proptest! {
        #[test]
        fn random_text_does_not_panic(text in "(?s).{0,200}", cut in 0usize..300) {
            let _ = Manifest::parse(&text);
            let whole = small().to_text();
            let cut = cut.min(whole.len());
            prop_assert_eq!(Manifest::parse(&whole[..cut]).is_ok(), cut >= whole.len() - 1);
        }

        #[test]
        fn file_name_cannot_escape_directory(path in "/[a./%250-9F~;-]{0,12}", any: Vec<u8>) {
            for path in [path.as_bytes(), &any] {
                let Some(name) = file_name(path) else { continue };
                prop_assert!(name.is_relative() && name.components().count() > 0);
                prop_assert!(name.components().all(|part| matches!(part, std::path::Component::Normal(_))));
                prop_assert_eq!(plain_path(path).and_then(|path| file_name(path.as_bytes())), Some(name));
            }
        }
    }
}
