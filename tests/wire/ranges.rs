//! Range requests (RFC 9110, 14): exactly the requested bytes are sent.
//!
//! Every case runs on a small file, which is sent from memory, and on a large one, which is sent from its descriptor.

use std::fs::File;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use super::harness::{Client, MODES, Response, Server, Site, find, pattern};

const SMALL: usize = 1000;
const LARGE: usize = (3 << 20) + 123;

/// The expected response to a `Range` field.
enum Expected {
    Whole,
    One(Range<usize>),
    Several(Vec<Range<usize>>),
    Unsatisfiable,
}

/// Requests a range of a file with this content and checks the complete response.
fn check(client: &mut Client, target: &str, content: &[u8], field: &str, expected: Expected) {
    let size = content.len();
    let response = client.request("GET", target, &[("Range", field)]);
    let what = format!("{field} of {target}");
    match expected {
        Expected::Whole => {
            assert_eq!((response.status, response.field("Content-Range")), (200, None), "{what}");
            assert!(response.body == content, "{what}: the content");
        }
        Expected::One(range) => {
            let content_range = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            assert_eq!(
                (response.status, response.field("Content-Range")),
                (206, Some(content_range.as_str())),
                "{what}"
            );
            assert_eq!(response.field("Content-Type"), Some("application/octet-stream"), "{what}");
            assert!(response.body == content[range], "{what}: the content");
        }
        Expected::Several(ranges) => {
            // RFC 9110, 15.3.7.2: each part has its Content-Range, the head has none.
            assert_eq!((response.status, response.field("Content-Range")), (206, None), "{what}");
            let parts = parts(&response, size);
            assert_eq!(parts.iter().map(|(range, _)| range.clone()).collect::<Vec<_>>(), ranges, "{what}");
            for (range, body) in parts {
                assert!(body == content[range.clone()], "{what}: the content of {range:?}");
            }
        }
        Expected::Unsatisfiable => {
            let content_range = format!("bytes */{size}");
            assert_eq!(
                (response.status, response.field("Content-Range")),
                (416, Some(content_range.as_str())),
                "{what}"
            );
        }
    }
    if response.status < 300 {
        assert!(response.field("ETag").is_some() && response.field("Last-Modified").is_some(), "{what}");
        assert_eq!(response.field("Accept-Ranges").is_some(), response.status == 200, "{what}");
    }
}

/// Parses the parts of a multipart/byteranges body strictly (RFC 2046, 5.1.1; RFC 9110, 14.6).
fn parts(response: &Response, size: usize) -> Vec<(Range<usize>, Vec<u8>)> {
    let media_type = response.field("Content-Type").unwrap();
    let boundary = media_type.strip_prefix("multipart/byteranges; boundary=").unwrap();
    assert!((1..=70).contains(&boundary.len()) && boundary.bytes().all(|b| b.is_ascii_alphanumeric()), "{boundary}");
    let delimiter = format!("\r\n--{boundary}");
    // The line break before the first delimiter is optional.
    let mut rest = &[b"\r\n", response.body.strip_prefix(b"\r\n").unwrap_or(&response.body)].concat()[..];
    let mut parts = Vec::new();
    loop {
        rest = rest.strip_prefix(delimiter.as_bytes()).expect("a delimiter");
        if rest.starts_with(b"--") {
            assert_eq!(rest, b"--\r\n", "the end");
            return parts;
        }
        rest = rest.strip_prefix(b"\r\n").expect("a line end after the delimiter");
        let end = find(rest, b"\r\n\r\n").expect("the end of a part's head");
        let head = std::str::from_utf8(&rest[..end]).unwrap();
        let [kind, range]: [&str; 2] = head.split("\r\n").collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(kind, "Content-Type: application/octet-stream");
        let range = range.strip_prefix("Content-Range: bytes ").unwrap();
        let (range, whole) = range.split_once('/').unwrap();
        let (first, last) = range.split_once('-').unwrap();
        assert_eq!(whole.parse(), Ok(size));
        let range: Range<usize> = first.parse().unwrap()..last.parse::<usize>().unwrap() + 1;
        let (body, after) = rest[end + 4..].split_at(range.len());
        assert!(find(body, delimiter.as_bytes()).is_none(), "a part contains the boundary");
        parts.push((range, body.to_vec()));
        rest = after;
    }
}

/// Runs every case on one file.
fn check_all(client: &mut Client, target: &str, content: &[u8]) {
    use Expected::{One, Several, Unsatisfiable, Whole};
    let n = content.len();
    let mut check = |field: &str, expected: Expected| check(client, target, content, field, expected);

    check("bytes=0-0", One(0..1));
    check("bytes=0-499", One(0..500));
    check("bytes=500-599", One(500..600));
    check(&format!("bytes={}-{}", n - 1, n - 1), One(n - 1..n));
    check(&format!("bytes={}-{}", n / 2, n / 2 + 99), One(n / 2..n / 2 + 100));
    check("Bytes=1-2", One(1..3));
    check("bytes=01-0002", One(1..3));
    // Open ends, and ends beyond the end of the file.
    check("bytes=0-", One(0..n));
    check("bytes=900-", One(900..n));
    check(&format!("bytes={}-", n - 1), One(n - 1..n));
    check(&format!("bytes=0-{}", n - 1), One(0..n));
    check(&format!("bytes=10-{n}"), One(10..n));
    check("bytes=10-99999999999999999999999999", One(10..n));
    check("bytes=10-18446744073709551615", One(10..n));
    // Suffixes.
    check("bytes=-1", One(n - 1..n));
    check("bytes=-500", One(n - 500..n));
    check(&format!("bytes=-{n}"), One(0..n));
    check(&format!("bytes=-{}", n + 1), One(0..n));
    check("bytes=-99999999999999999999999999", One(0..n));
    // Several ranges, in the requested order.
    check("bytes=0-9,20-29", Several(vec![0..10, 20..30]));
    check("bytes=0-9, 20-29 ,,-10", Several(vec![0..10, 20..30, n - 10..n]));
    check("bytes=-10,0-9", Several(vec![n - 10..n, 0..10]));
    check(&format!("bytes=5-5,900-,{n}-"), Several(vec![5..6, 900..n]));
    check(&format!("bytes=0-0,{}-{}", n - 1, n - 1), Several(vec![0..1, n - 1..n]));
    let sixteen: Vec<String> = (0..16).map(|i| format!("{}-{}", 20 * i, 20 * i + 9)).collect();
    check(&format!("bytes={}", sixteen.join(",")), Several((0..16).map(|i| 20 * i..20 * i + 10).collect()));
    // Overlapping and adjacent ranges are merged (RFC 9110, 15.3.7.2), so that no response is longer than the file.
    check("bytes=0-9,5-19", One(0..20));
    check("bytes=0-9,10-19", One(0..20));
    check("bytes=10-19,0-9", One(0..20));
    check("bytes=0-,0-,0-", One(0..n));
    check("bytes=0-9,5-19,40-49", Several(vec![0..20, 40..50]));
    check("bytes=40-49,5-19,0-9", Several(vec![0..20, 40..50]));
    check("bytes=0-499,-500,100-899", if n == 1000 { One(0..n) } else { Several(vec![0..900, n - 500..n]) });
    // One range too many: the response is the whole file.
    check(&format!("bytes={},600-609", sixteen.join(",")), Whole);
    check(&format!("bytes={}", vec!["0-"; 1000].join(",")), Whole);
    // RFC 9110, 14.1.2 and 15.5.17.
    check(&format!("bytes={n}-"), Unsatisfiable);
    check(&format!("bytes={n}-{}", n + 1), Unsatisfiable);
    check("bytes=99999999999999999999999999-", Unsatisfiable);
    check("bytes=-0", Unsatisfiable);
    check(&format!("bytes={n}-,-0"), Unsatisfiable);
    check(&format!("bytes={n}-,-1"), One(n - 1..n));
    // RFC 9110, 14.2: unknown units and invalid range sets are ignored.
    for field in [
        "bites=0-1",
        "lines=1-2",
        "bytes",
        "bytes=",
        "bytes=,",
        "bytes=-",
        "bytes=1",
        "bytes=2-1",
        "bytes=a-b",
        "bytes=0-1;2-3",
        "bytes=0 - 1",
        "bytes =0-1",
        "bytes=0-1,x",
        "bytes=0x0-0x1",
        "bytes=+0-1",
        "bytes=--1",
        "bytes=0-1-2",
        "0-1",
        "",
    ] {
        check(field, Whole);
    }
}

#[test]
fn ranges_of_small_file_are_served() {
    let site = Site::new();
    site.file("small.bin", pattern(SMALL));
    let server = Server::serve(&site);
    check_all(&mut server.connect(), "/small.bin", &pattern(SMALL));
}

#[test]
fn ranges_of_large_file_are_served() {
    let site = Site::new();
    site.file("large.bin", pattern(LARGE));
    let server = Server::serve(&site);
    let content = pattern(LARGE);
    let mut client = server.connect();
    check_all(&mut client, "/large.bin", &content);
    // Across the boundaries of send windows.
    let window = 256 << 10;
    for range in [window - 1..window + 1, window..2 * window, 1..3 * window + 1, 2 * window - 7..LARGE] {
        let field = format!("bytes={}-{}", range.start, range.end - 1);
        check(&mut client, "/large.bin", &content, &field, Expected::One(range));
    }
}

/// An old file is sent with sendfile or mapped, a new one is copied (see `send.rs`): several ways to the same bytes. No
/// user can set a file's ctime, so the minimum age is zero here.
#[test]
fn ranges_are_equal_for_every_send_method() {
    for mode in MODES {
        let site = Site::new();
        let (small, large) = (pattern(SMALL), pattern(LARGE));
        site.file("small.bin", &small);
        site.file("large.bin", &large);
        let server = Server::with_site(&site, &format!("[send]\nsendfile_min_age = '0s'\ncontent = '{mode}'"));
        let mut client = server.connect();
        for _ in 0..2 {
            assert!(client.get("/large.bin").body == large, "{mode}");
        }
        check_all(&mut client, "/small.bin", &small);
        check_all(&mut client, "/large.bin", &large);
    }
}

#[test]
fn range_of_empty_file_is_whole_or_unsatisfiable() {
    let site = Site::new();
    site.file("empty.bin", "");
    let server = Server::serve(&site);
    let mut client = server.connect();
    check(&mut client, "/empty.bin", b"", "bytes=0-", Expected::Whole);
    check(&mut client, "/empty.bin", b"", "bytes=0-0", Expected::Unsatisfiable);
    check(&mut client, "/empty.bin", b"", "bytes=0-0,5-", Expected::Unsatisfiable);
    // Content-Range cannot express an empty range.
    check(&mut client, "/empty.bin", b"", "bytes=-5", Expected::Whole);
}

#[test]
fn ranges_apply_only_to_get_of_files() {
    let site = Site::new();
    site.file("small.bin", pattern(SMALL));
    site.file("folder/x", "x");
    let server = Server::start(&[site.path().to_str().unwrap(), "--listing"]);
    let mut client = server.connect();
    let mut check = |method: &str, target: &str, status: u16| {
        let response = client.request(method, target, &[("Range", "bytes=0-0")]);
        assert_eq!((response.status, response.field("Content-Range")), (status, None), "{method} {target}");
        response
    };
    let head = check("HEAD", "/small.bin", 200);
    assert_eq!(head.field("Content-Length"), Some("1000"));
    assert_eq!(head.field("Accept-Ranges"), Some("bytes"));
    check("HEAD", "/missing", 404);
    check("OPTIONS", "/small.bin", 204);
    check("POST", "/small.bin", 405);
    check("GET", "/missing", 404);
    check("GET", "/folder", 301);
    check("GET", "/folder/", 200);
}

#[test]
fn if_range_requires_unchanged_file() {
    let site = Site::new();
    for (name, size) in [("small.bin", SMALL), ("large.bin", LARGE)] {
        let path = site.file(name, pattern(size));
        // 2020-09-13 12:26:40 UTC
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }
    let server = Server::serve(&site);
    let mut client = server.connect();
    for (target, size) in [("/small.bin", SMALL), ("/large.bin", LARGE)] {
        let etag = client.get(target).field("ETag").unwrap().to_owned();
        let mut check = |condition: &str, status: u16| {
            let fields = [("Range", "bytes=1-2"), ("If-Range", condition)];
            let response = client.request("GET", target, &fields);
            let length = if status == 206 { 2 } else { size };
            assert_eq!((response.status, response.body.len()), (status, length), "{condition} for {target}");
        };
        check(&etag, 206);
        check("Sun, 13 Sep 2020 12:26:40 GMT", 206);
        check("Sunday, 13-Sep-20 12:26:40 GMT", 206);
        check("Sun Sep 13 12:26:40 2020", 206);
        check(&format!("W/{etag}"), 200);
        check("\"another\"", 200);
        check(etag.trim_matches('"'), 200);
        // RFC 9110, 13.1.5: one tag, not a list, and not the asterisk.
        check(&format!("{etag}, {etag}"), 200);
        check("*", 200);
        // Neither an earlier nor a later date matches.
        check("Sun, 13 Sep 2020 12:26:39 GMT", 200);
        check("Sun, 13 Sep 2020 12:26:41 GMT", 200);
        check("Fri, 01 Jan 2100 00:00:00 GMT", 200);
        check("yesterday", 200);
        check("", 200);
        // If the condition is false, even a range beyond the end is not an error.
        let fields = [("Range", "bytes=99999999-"), ("If-Range", "\"another\"")];
        assert_eq!(client.request("GET", target, &fields).status, 200);
        let fields = [("Range", "bytes=99999999-"), ("If-Range", &etag)];
        assert_eq!(client.request("GET", target, &fields).status, 416);
        // Without a range it has no effect.
        assert_eq!(client.request("GET", target, &[("If-Range", "\"another\"")]).status, 200);
    }
}

#[test]
fn ranges_of_precompressed_sibling_refer_to_sibling() {
    let site = Site::new();
    for (name, size) in [("small.bin", SMALL), ("large.bin", LARGE)] {
        site.file(name, vec![b'x'; 2 * size]);
        site.file(&format!("{name}.gz"), pattern(size));
    }
    let server = Server::serve(&site);
    let mut client = server.connect();
    for (target, size) in [("/small.bin", SMALL), ("/large.bin", LARGE)] {
        let plain = client.get(target).field("ETag").unwrap().to_owned();
        let whole = client.request("GET", target, &[("Accept-Encoding", "gzip")]);
        let etag = whole.field("ETag").unwrap().to_owned();
        assert!(whole.body == pattern(size) && etag != plain);
        for condition in [None, Some(etag.as_str())] {
            let mut fields = vec![("Accept-Encoding", "gzip"), ("Range", "bytes=-7")];
            fields.extend(condition.map(|tag| ("If-Range", tag)));
            let part = client.request("GET", target, &fields);
            assert_eq!((part.status, &part.body[..]), (206, &pattern(size)[size - 7..]));
            assert_eq!(part.field("Content-Range"), Some(&*format!("bytes {}-{}/{size}", size - 7, size - 1)));
            for name in ["Content-Encoding", "ETag", "Vary", "Content-Type", "Last-Modified"] {
                assert_eq!(part.field(name), whole.field(name), "{name}");
            }
        }
        // The tag of another coding identifies another representation.
        let fields = [("Accept-Encoding", "gzip"), ("Range", "bytes=-7"), ("If-Range", &plain)];
        let response = client.request("GET", target, &fields);
        assert_eq!((response.status, response.field("ETag")), (200, Some(&*etag)));
        assert!(response.body == whole.body);
        let fields = [("Accept-Encoding", "gzip"), ("Range", "bytes=0-0,5-6")];
        let several = client.request("GET", target, &fields);
        assert_eq!((several.status, several.field("Content-Encoding")), (206, Some("gzip")));
        assert_eq!(parts(&several, size)[1].1, pattern(size)[5..7]);
        let fields = [("Accept-Encoding", "gzip"), ("Range", &format!("bytes={size}-"))];
        assert_eq!(client.request("GET", target, &fields).status, 416);
    }
}
