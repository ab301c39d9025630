//! Conditional requests (RFC 9110, 13): 200, 304 or 412.

use std::fs::File;
use std::time::{Duration, SystemTime};

use super::harness::{Client, Response, Server, Site, pattern};

/// Modification time of the files, and the seconds before and after it.
const THEN: &str = "Sun, 13 Sep 2020 12:26:40 GMT";
const BEFORE: &str = "Sun, 13 Sep 2020 12:26:39 GMT";
const AFTER: &str = "Sun, 13 Sep 2020 12:26:41 GMT";
const LONG_AFTER: &str = "Fri, 01 Jan 2100 00:00:00 GMT";

/// A file served from memory, a file served from its descriptor, and both with compressed siblings.
fn site() -> Site {
    let site = Site::new();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    for name in ["small.txt", "page.html", "page.html.gz"] {
        File::options().write(true).open(site.file(name, name)).unwrap().set_modified(time).unwrap();
    }
    let large = site.file("large.bin", pattern(1 << 20));
    File::options().write(true).open(large).unwrap().set_modified(time).unwrap();
    site
}

#[test]
fn conditions_are_evaluated_in_rfc_order() {
    let site = site();
    let server = Server::serve(&site);
    let mut client = server.connect();
    for target in ["/small.txt", "/page.html", "/large.bin"] {
        let etag = client.get(target).field("ETag").unwrap().to_owned();
        let (other, weak) = ("\"other\"", format!("W/{etag}"));
        // RFC 9110, 13.2.2: each step's condition true, false and absent; an earlier step takes precedence.
        let table: &[(&[(&str, &str)], u16)] = &[
            (&[], 200),
            // Step 1.
            (&[("If-Match", &etag)], 200),
            (&[("If-Match", other)], 412),
            (&[("If-Match", &weak)], 412),
            (&[("If-Match", "*")], 200),
            (&[("If-Match", "")], 412),
            // Step 2, only without step 1.
            (&[("If-Unmodified-Since", THEN)], 200),
            (&[("If-Unmodified-Since", AFTER)], 200),
            (&[("If-Unmodified-Since", BEFORE)], 412),
            (&[("If-Unmodified-Since", "never")], 200),
            (&[("If-Match", &etag), ("If-Unmodified-Since", BEFORE)], 200),
            (&[("If-Match", other), ("If-Unmodified-Since", AFTER)], 412),
            // Step 3.
            (&[("If-None-Match", other)], 200),
            (&[("If-None-Match", &etag)], 304),
            (&[("If-None-Match", &weak)], 304),
            (&[("If-None-Match", "*")], 304),
            (&[("If-Match", &etag), ("If-None-Match", &etag)], 304),
            (&[("If-Match", other), ("If-None-Match", &etag)], 412),
            (&[("If-Match", other), ("If-None-Match", other)], 412),
            (&[("If-Unmodified-Since", THEN), ("If-None-Match", &etag)], 304),
            (&[("If-Unmodified-Since", BEFORE), ("If-None-Match", &etag)], 412),
            // Step 4, only without step 3.
            (&[("If-Modified-Since", THEN)], 304),
            (&[("If-Modified-Since", AFTER)], 304),
            (&[("If-Modified-Since", LONG_AFTER)], 304),
            (&[("If-Modified-Since", BEFORE)], 200),
            (&[("If-Modified-Since", "never")], 200),
            (&[("If-None-Match", other), ("If-Modified-Since", THEN)], 200),
            (&[("If-None-Match", &etag), ("If-Modified-Since", BEFORE)], 304),
            (&[("If-None-Match", ""), ("If-Modified-Since", THEN)], 200),
            (&[("If-Match", "*"), ("If-Modified-Since", THEN)], 304),
            (&[("If-Unmodified-Since", BEFORE), ("If-Modified-Since", THEN)], 412),
            (&[("If-Unmodified-Since", THEN), ("If-Modified-Since", THEN)], 304),
            // Step 5, only for GET.
            (&[("Range", "bytes=0-0")], 206),
            (&[("Range", "bytes=0-0"), ("If-Range", &etag)], 206),
            (&[("Range", "bytes=0-0"), ("If-Range", other)], 200),
            (&[("Range", "bytes=0-0"), ("If-Match", other), ("If-Range", &etag)], 412),
            (&[("Range", "bytes=0-0"), ("If-None-Match", &etag), ("If-Range", &etag)], 304),
            (&[("Range", "bytes=0-0"), ("If-Modified-Since", THEN), ("If-Range", &etag)], 304),
            (&[("Range", "bytes=9999999-"), ("If-None-Match", &etag)], 304),
            (&[("Range", "bytes=9999999-"), ("If-Match", other)], 412),
            (&[("Range", "bytes=9999999-"), ("If-Match", &etag)], 416),
        ];
        for &(fields, status) in table {
            assert_eq!(client.request("GET", target, fields).status, status, "GET {target} {fields:?}");
            let for_head = if status == 206 || status == 416 { 200 } else { status };
            assert_eq!(client.request("HEAD", target, fields).status, for_head, "HEAD {target} {fields:?}");
        }
    }
}

#[test]
fn etag_lists_are_searched_to_the_end() {
    let site = site();
    let server = Server::serve(&site);
    let mut client = server.connect();
    let etag = client.get("/small.txt").field("ETag").unwrap().to_owned();
    // Checks the status with these values of If-None-Match and of If-Match.
    let mut check = |lines: &[&str], none_match: u16, matches: u16| {
        for (name, status) in [("If-None-Match", none_match), ("If-Match", matches)] {
            let fields: Vec<_> = lines.iter().map(|line| (name, *line)).collect();
            assert_eq!(client.request("GET", "/small.txt", &fields).status, status, "{name} {lines:?}");
        }
    };
    check(&[&format!("\"a\", \"b\",{etag}")], 304, 200);
    check(&[&format!("{etag},\"a\"")], 304, 200);
    check(&[&format!(" ,, {etag} ,")], 304, 200);
    check(&[&format!("\"a,b\", W/\"c\"\t,\t{etag}")], 304, 200);
    check(&[&format!("W/\"a\", W/{etag}")], 304, 412);
    check(&["\"a\"", &etag], 304, 200);
    check(&["\"a\"", "\"b\""], 200, 412);
    check(&["\"a\", \"b\", W/\"c\""], 200, 412);
    // A tag within another tag does not match; comparison is exact.
    check(&[&format!("\"{}x\"", etag.trim_matches('"'))], 200, 412);
    check(&[&etag.to_ascii_uppercase().replace("\"", "\"X")], 200, 412);
    check(&[etag.trim_matches('"')], 200, 412);
    check(&[&format!("w/{etag}")], 200, 412);
}

#[test]
fn three_date_formats_are_accepted() {
    let site = site();
    let server = Server::serve(&site);
    let mut client = server.connect();
    assert_eq!(client.get("/small.txt").field("Last-Modified"), Some(THEN));
    let mut check = |date: &str, status: u16| {
        let response = client.request("GET", "/small.txt", &[("If-Modified-Since", date)]);
        assert_eq!(response.status, status, "{date}");
    };
    // RFC 9110, 5.6.7.
    check("Sun, 13 Sep 2020 12:26:40 GMT", 304);
    check("Sunday, 13-Sep-20 12:26:40 GMT", 304);
    check("Sun Sep 13 12:26:40 2020", 304);
    check("Sun, 13 Sep 2020 12:26:39 GMT", 200);
    check("Sunday, 13-Sep-20 12:26:39 GMT", 200);
    check("Sun Sep 13 12:26:39 2020", 200);
    check("Sat Sep  5 12:26:39 2020", 200);
    check("Mon Oct  5 12:26:39 2020", 304);
    // A two-digit year more than 50 years ahead belongs to the previous century: 1994.
    check("Sunday, 06-Nov-94 08:49:37 GMT", 200);
    // Invalid dates are ignored.
    for date in ["2100-01-01T00:00:00Z", "Fri, 01 Jan 2100 00:00:00", "Fri, 01 Jan 2100 00:00:00 CET", "4102444800", ""]
    {
        check(date, 200);
    }
    for date in ["Fri, 31 Feb 2100 00:00:00 GMT", "Fri, 1 Jan 2100 00:00:00 GMT", "Fri, 01 Jan 2100 24:00:00 GMT"] {
        check(date, 200);
    }
}

/// The fields of a 200 response that RFC 9110, 15.4.5 requires in a 304.
fn fields_of_304(response: &Response) -> Vec<(String, String)> {
    let names = ["Cache-Control", "Content-Location", "ETag", "Expires", "Last-Modified", "Vary", "X-Kept"];
    let mut fields = response.fields.clone();
    fields.retain(|(name, _)| names.contains(&name.as_str()));
    fields.sort();
    fields
}

#[test]
fn not_modified_has_fields_of_200_and_no_body() {
    let site = site();
    let server = Server::with_site(
        &site,
        "[[site.headers]]\nmatch = \"**\"\ncache_control = \"max-age=60\"\nset = { \"X-Kept\" = \"yes\" }",
    );
    let mut client = server.connect();
    let check = |client: &mut Client, target: &str, coding: &str| {
        let accept = ("Accept-Encoding", coding);
        let whole = client.request("GET", target, &[accept]);
        let etag = whole.field("ETag").unwrap().to_owned();
        // Once from the disk and once from the caches. The connection stays synchronised, so there was no body.
        for method in ["GET", "HEAD", "GET", "HEAD"] {
            let same = client.request(method, target, &[accept, ("If-None-Match", &etag)]);
            assert_eq!((same.status, fields_of_304(&same)), (304, fields_of_304(&whole)), "{method} {target} {coding}");
            assert!(same.field("Date").is_some());
            // RFC 9110, 15.4.5: no other representation metadata, because a cache might store it.
            for name in ["Content-Type", "Content-Encoding", "Content-Range", "Transfer-Encoding"] {
                assert_eq!(same.field(name), None, "{name}");
            }
        }
        assert_eq!(fields_of_304(&whole).len(), if target == "/page.html" { 5 } else { 4 }, "{whole:?}");
    };
    check(&mut client, "/small.txt", "identity");
    check(&mut client, "/large.bin", "gzip");
    check(&mut client, "/page.html", "identity");
    check(&mut client, "/page.html", "gzip");

    // Each coding has a tag of its own, which matches no other coding.
    let plain = client.get("/page.html").field("ETag").unwrap().to_owned();
    let fields = [("Accept-Encoding", "gzip"), ("If-None-Match", plain.as_str())];
    assert_eq!(client.request("GET", "/page.html", &fields).status, 200);
}

#[test]
fn conditions_apply_only_to_existing_files() {
    let site = site();
    site.file("folder/index.html", "index");
    let server = Server::serve(&site);
    let mut client = server.connect();
    let mut check = |method: &str, target: &str, status: u16| {
        // RFC 9110, 13.2.1: ignored if the response without them would be neither a success nor a 412.
        for field in [("If-Match", "\"x\""), ("If-None-Match", "*"), ("If-Modified-Since", LONG_AFTER)] {
            assert_eq!(client.request(method, target, &[field]).status, status, "{method} {target} {field:?}");
        }
    };
    check("GET", "/missing", 404);
    check("GET", "/folder", 301);
    check("POST", "/small.txt", 405);
    check("BREW", "/small.txt", 501);
    check("OPTIONS", "/small.txt", 204);
    assert_eq!(client.request("GET", "/folder/", &[("If-None-Match", "*")]).status, 304);
}

#[test]
fn precondition_failed_keeps_connection_open() {
    let site = site();
    let server = Server::with_site(&site, "[[site.headers]]\nmatch = \"**\"\ncache_control = \"max-age=60\"");
    let mut client = server.connect();
    let response = client.request("GET", "/small.txt", &[("If-Match", "\"x\"")]);
    assert_eq!((response.status, response.field("Cache-Control"), response.field("ETag")), (412, None, None));
    assert!(response.text().contains("412 Precondition Failed"), "{}", response.text());
    assert_eq!(client.get("/small.txt").text(), "small.txt");
}
