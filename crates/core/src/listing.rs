//! Listings of directories: a page for people, sorted by links and without a script, or JSON for programs.
//!
//! Made by the disk side, since reading a directory blocks and a page of thousands of lines takes milliseconds; kept in the
//! cache of contents (`cache/page`) until the directory changes.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt::Write;

use amped_http::date::Civil;
use amped_http::uri;
use serde::{Deserialize, Serialize};

use crate::file::{FileVersion, digest_of};
use crate::json;

/// What a listing is made as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ListForm {
    /// A page.
    Html,
    /// An object with an array of entries.
    Json,
}

impl ListForm {
    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            ListForm::Html => "text/html; charset=utf-8",
            ListForm::Json => "application/json",
        }
    }
}

/// By what a listing is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ListKey {
    /// The name, byte by byte without regard to ASCII case.
    Name,
    /// The size.
    Size,
    /// The time of the last modification.
    Time,
}

/// In which order a listing stands. Directories always go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListOrder {
    /// By what.
    pub key: ListKey,
    /// Largest or last first.
    pub descending: bool,
}

impl ListOrder {
    /// What a query asks for: `sort=name|size|time` and `order=asc|desc`. All else is ignored.
    pub fn of(query: Option<&[u8]>) -> ListOrder {
        let mut order = ListOrder { key: ListKey::Name, descending: false };
        for pair in query.unwrap_or(b"").split(|&b| b == b'&') {
            match pair {
                b"sort=name" => order.key = ListKey::Name,
                b"sort=size" => order.key = ListKey::Size,
                b"sort=time" => order.key = ListKey::Time,
                b"order=asc" => order.descending = false,
                b"order=desc" => order.descending = true,
                _ => {}
            }
        }
        order
    }

    fn compare(self, a: &Entry, b: &Entry) -> Ordering {
        let names = || a.name.to_ascii_lowercase().cmp(&b.name.to_ascii_lowercase()).then_with(|| a.name.cmp(&b.name));
        let by_key = match self.key {
            ListKey::Name => names(),
            ListKey::Size => a.size.cmp(&b.size).then_with(names),
            ListKey::Time => a.modified_seconds.cmp(&b.modified_seconds).then_with(names),
        };
        let by_key = if self.descending { by_key.reverse() } else { by_key };
        b.is_directory.cmp(&a.is_directory).then(by_key)
    }
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file's name, any bytes but a slash.
    pub name: Vec<u8>,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Bytes; without meaning for a directory.
    pub size: u64,
    /// Time of the last modification, seconds since 1970.
    pub modified_seconds: i64,
}

/// A listing as it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The page itself.
    #[serde(with = "page_bytes")]
    pub page: Arc<Vec<u8>>,
    /// A number that follows from its bytes.
    pub digest: u64,
    /// When what it shows changed last, the directory and all that is in it: nanoseconds since 1970.
    pub changed_ns: i64,
    /// The state of the directory that it shows; `None` if that was changing meanwhile, so that nobody can tell.
    pub folder: Option<FileVersion>,
}

/// As bytes, not as a sequence of numbers: pages may be of megabytes.
mod page_bytes {
    use super::{Arc, Vec};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(page: &Arc<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(page)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Vec<u8>>, D::Error> {
        serde_bytes::deserialize(deserializer).map(Arc::new)
    }
}

impl Listing {
    /// This page. Goes through all of it.
    pub fn new(page: Vec<u8>, changed_ns: i64, folder: Option<FileVersion>) -> Listing {
        Listing { digest: digest_of(&page), page: Arc::new(page), changed_ns, folder }
    }

    /// A strong entity tag, with its quotes: by the bytes alone, so that a listing which is made again and says the same has
    /// the same.
    pub fn etag(&self) -> String {
        alloc::format!("\"{:x}-{:016x}\"", self.page.len(), self.digest)
    }
}

/// Makes the page of the directory at the clean path `path`.
pub fn render(path: &[u8], mut entries: Vec<Entry>, order: ListOrder, form: ListForm) -> Vec<u8> {
    entries.sort_by(|a, b| order.compare(a, b));
    match form {
        ListForm::Html => html(path, &entries, order).into_bytes(),
        ListForm::Json => json(path, &entries),
    }
}

const STYLE: &str = "body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
    h1{font-size:1.3rem;overflow-wrap:anywhere}table{border-collapse:collapse;width:100%}\
    th{text-align:left}th,td{padding:.25rem .75rem .25rem 0;border-bottom:1px solid color-mix(in srgb,currentColor 15%,transparent)}\
    td:first-child{overflow-wrap:anywhere}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
    a{text-decoration:none}a:hover{text-decoration:underline}";

fn html(path: &[u8], entries: &[Entry], order: ListOrder) -> String {
    let title = escape_html(&String::from_utf8_lossy(path));
    let mut page = alloc::format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Index of {title}</title>\n<style>{STYLE}</style>\n<h1>Index of {title}</h1>\n<table>\n<thead><tr>"
    );
    for (key, word, label, class) in [
        (ListKey::Name, "name", "Name", ""),
        (ListKey::Size, "size", "Size", " class=\"n\""),
        (ListKey::Time, "time", "Modified (UTC)", " class=\"n\""),
    ] {
        let sorted = order.key == key;
        let (next, mark, aria) = match (sorted, order.descending) {
            (true, false) => ("desc", " \u{2191}", " aria-sort=\"ascending\""),
            (true, true) => ("asc", " \u{2193}", " aria-sort=\"descending\""),
            (false, _) => ("asc", "", ""),
        };
        // Writing to a String cannot fail.
        let _ = write!(page, "<th{class}{aria}><a href=\"?sort={word}&amp;order={next}\">{label}{mark}</a></th>");
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    if path != b"/" {
        page.push_str("<tr><td><a href=\"../\">../</a></td><td class=\"n\"></td><td class=\"n\"></td></tr>\n");
    }
    let mut link = Vec::new();
    for entry in entries {
        link.clear();
        // `./` in front: a name with a colon in it would otherwise read as a scheme (RFC 3986, 4.2).
        link.extend_from_slice(b"./");
        uri::encode_path(&entry.name, &mut link);
        let slash = if entry.is_directory { "/" } else { "" };
        let size = if entry.is_directory { String::from("\u{2013}") } else { size_for_people(entry.size) };
        let _ = writeln!(
            page,
            "<tr><td><a href=\"{}{slash}\">{}{slash}</a></td><td class=\"n\">{size}</td><td class=\"n\">{}</td></tr>",
            escape_html(&String::from_utf8_lossy(&link)),
            escape_html(&String::from_utf8_lossy(&entry.name)),
            minute(entry.modified_seconds),
        );
    }
    page.push_str("</tbody>\n</table>\n</html>\n");
    page
}

/// `{"path": ..., "entries": [{"name", "type", "size", "modified"}]}`: sizes in bytes, times as RFC 3339 has them in UTC.
fn json(path: &[u8], entries: &[Entry]) -> Vec<u8> {
    let mut page = b"{\"path\":".to_vec();
    json::push_string(&mut page, path);
    page.extend_from_slice(b",\"entries\":[");
    for (n, entry) in entries.iter().enumerate() {
        page.extend_from_slice(if n == 0 { b"\n{\"name\":" } else { b",\n{\"name\":" });
        json::push_string(&mut page, &entry.name);
        let (kind, size) = match entry.is_directory {
            true => ("directory", String::new()),
            false => ("file", alloc::format!(",\"size\":{}", entry.size)),
        };
        let modified = Civil::from_unix(entry.modified_seconds);
        let rest = alloc::format!(",\"type\":\"{kind}\"{size},\"modified\":\"{modified}Z\"}}");
        page.extend_from_slice(rest.as_bytes());
    }
    page.extend_from_slice(b"\n]}\n");
    page
}

fn minute(seconds: i64) -> String {
    let at = Civil::from_unix(seconds);
    alloc::format!("{:04}-{:02}-{:02} {:02}:{:02}", at.year, at.month, at.day, at.hour, at.minute)
}

fn size_for_people(bytes: u64) -> String {
    let mut scaled = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if scaled < 1024.0 {
            return if unit == "B" { alloc::format!("{bytes} B") } else { alloc::format!("{scaled:.1} {unit}") };
        }
        scaled /= 1024.0;
    }
    alloc::format!("{scaled:.1} TiB")
}

pub(crate) fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn entry(name: &str, is_directory: bool, size: u64, modified_seconds: i64) -> Entry {
        Entry { name: name.as_bytes().to_vec(), is_directory, size, modified_seconds }
    }

    fn names(query: &str) -> Vec<String> {
        let mut entries = vec![entry("b", false, 1, 30), entry("A", false, 2, 20), entry("z", true, 0, 10)];
        let order = ListOrder::of(Some(query.as_bytes()));
        entries.sort_by(|a, b| order.compare(a, b));
        entries.into_iter().map(|entry| String::from_utf8(entry.name).expect("ascii")).collect()
    }

    #[test]
    fn query_selects_order() {
        let check = |query: &str, expected: [&str; 3]| assert_eq!(names(query), expected, "{query}");
        check("", ["z", "A", "b"]);
        check("sort=name&order=desc", ["z", "b", "A"]);
        check("sort=size", ["z", "b", "A"]);
        check("order=desc&sort=size", ["z", "A", "b"]);
        check("sort=time", ["z", "A", "b"]);
        check("sort=nonsense&x", ["z", "A", "b"]);
    }

    #[test]
    fn names_are_escaped_in_html_and_json() {
        let evil = vec![entry("\"><script>&'\\\u{1}", false, 5, 0), entry("javascript:x", false, 1, 0)];
        let order = ListOrder::of(None);
        let page = String::from_utf8(render(b"/<b>/", evil.clone(), order, ListForm::Html)).expect("utf-8");
        assert!(!page.contains("<script>") && !page.contains("<b>") && !page.contains("href=\"javascript"), "{page}");
        let json = String::from_utf8(render(b"/", evil, order, ListForm::Json)).expect("utf-8");
        assert!(json.contains(r#""name":"\"><script>&'\\\u0001","type":"file","size":5"#), "{json}");
    }

    #[test]
    fn sizes_are_human_readable() {
        let check = |bytes, expected: &str| assert_eq!(size_for_people(bytes), expected);
        check(0, "0 B");
        check(1023, "1023 B");
        check(1536, "1.5 KiB");
        check(5 << 30, "5.0 GiB");
        check(3 << 40, "3.0 TiB");
    }
}
