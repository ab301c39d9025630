//! Compression on the fly: later clients get a text file compressed, and no client ever gets anything else than its bytes.
//!
//! gzip is decoded by Python's module, which shares no code with the server; curl decodes Zstandard and Brotli (`peers/curl`).

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::requests::Random;

use super::harness::{Client, Response, Server, SetOnDrop, Site, is_secure, let_files_settle, wait_until};

const COMPRESS: &str = "compress = ['br', 'zstd', 'gzip']";

/// A size whose content is cached in memory, and a size for which the descriptor is cached.
const SIZES: [usize; 2] = [20_000, 300_000];

/// Text of this many bytes, which compresses well.
fn text(version: usize, size: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let mut lines = (0..).map(|line: usize| format!("version {version}, line {}\n", line % 1000));
    while text.len() < size {
        text.extend_from_slice(lines.next().unwrap().as_bytes());
    }
    text.truncate(size);
    text
}

/// Bytes that do not compress.
fn noise(size: usize) -> Vec<u8> {
    let mut random = Random(7);
    (0..size).map(|_| random.below(256) as u8).collect()
}

/// Decodes gzip with Python.
fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let program = "import gzip, sys; sys.stdout.buffer.write(gzip.decompress(sys.stdin.buffer.read()))";
    let mut python = Command::new("python3");
    let mut python =
        python.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
    let (mut input, bytes) = (python.stdin.take().unwrap(), bytes.to_vec());
    let writing = thread::spawn(move || input.write_all(&bytes).unwrap());
    let mut plain = Vec::new();
    python.stdout.take().unwrap().read_to_end(&mut plain).unwrap();
    writing.join().unwrap();
    assert!(python.wait().unwrap().success());
    plain
}

/// Requests a file until it is compressed. Until then it must be sent as it is.
fn wait_for(client: &mut Client, target: &str, coding: &str, plain: &[u8]) -> Response {
    let mut found = None;
    wait_until(&format!("{coding} of {target}"), || {
        let response = client.request("GET", target, &[("Accept-Encoding", coding)]);
        assert_eq!((response.status, response.field("Vary")), (200, Some("Accept-Encoding")), "{target}");
        if response.field("Content-Encoding").is_none() {
            assert!(response.body == plain, "{target}");
            return false;
        }
        assert_eq!(response.field("Content-Encoding"), Some(coding));
        found = Some(response);
        true
    });
    found.unwrap()
}

#[test]
fn text_file_is_compressed_for_later_clients() {
    for size in SIZES {
        let site = Site::new();
        site.file("a.html", text(1, size));
        site.file("d/index.html", text(2, size));
        let server = Server::with_site(&site, COMPRESS);
        let mut client = server.connect();
        for (target, plain) in [("/a.html", text(1, size)), ("/d/", text(2, size))] {
            let first = client.request("GET", target, &[("Accept-Encoding", "gzip")]);
            // Nobody waits: not for the file either, if that was cached.
            assert_eq!((first.field("Content-Encoding"), first.field("Vary")), (None, Some("Accept-Encoding")));
            assert!(first.body == plain);
            let gzip = wait_for(&mut client, target, "gzip", &plain);
            assert!(gunzip(&gzip.body) == plain && gzip.body.len() < size / 4);
            let zstd = wait_for(&mut client, target, "zstd", &plain);
            assert!(zstd.body.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) && zstd.body.len() < size / 4);
            let brotli = wait_for(&mut client, target, "br", &plain);
            assert!(brotli.body.len() < size / 4);
            for (accepted, expected) in [
                ("gzip", &gzip),
                ("gzip, deflate, br, zstd", &brotli),
                ("gzip, zstd", &zstd),
                ("zstd;q=0.5, gzip", &gzip),
                ("deflate", &first),
                ("identity", &first),
                ("gzip;q=0.5, identity", &first),
                ("*;q=0", &first),
            ] {
                for method in ["GET", "HEAD"] {
                    let response = client.request(method, target, &[("Accept-Encoding", accepted)]);
                    assert_eq!(response.lasting_fields(), expected.lasting_fields(), "{method} {accepted}");
                    assert!(method == "HEAD" || response.body == expected.body, "{accepted}");
                }
            }
            assert_eq!(client.get(target).lasting_fields(), first.lasting_fields());
        }
        assert!(server.report("compressions compressed") >= 6);
        assert!(server.report("compression_input_bytes") >= 6 * size as u64);
        assert!((1..server.report("compression_input_bytes") / 4).contains(&server.report("compression_output_bytes")));
    }
}

#[test]
fn other_files_are_not_compressed() {
    let site = Site::new();
    let large = (4 << 20) + 1;
    let files = [
        ("small.txt", text(1, 1023), true),
        ("large.txt", text(1, large), true),
        ("noise.txt", noise(20_000), true),
        ("text.png", text(1, 20_000), false),
    ];
    for (name, bytes, _) in &files {
        site.file(name, bytes);
    }
    let server = Server::with_site(&site, COMPRESS);
    let mut client = server.connect();
    for round in 0..5 {
        for (name, bytes, varies) in &files {
            let response = client.request("GET", &format!("/{name}"), &[("Accept-Encoding", "gzip, zstd")]);
            assert_eq!(response.field("Content-Encoding"), None, "{name}");
            assert_eq!(response.field("Vary"), varies.then_some("Accept-Encoding"), "{name}");
            assert!(response.body == *bytes, "{name}");
        }
        if round == 0 {
            wait_until("noise.txt", || server.report("compressions not_worth_it") == 1);
        }
    }
    // The failure is remembered.
    assert_eq!(server.report("compressions not_worth_it"), 1);
    assert_eq!(server.report("compressions compressed"), 0);
}

#[test]
fn sibling_takes_precedence_over_compression() {
    let site = Site::new();
    site.file("a.css", text(1, 20_000));
    site.file("a.css.gz", "the sibling");
    let server = Server::with_site(&site, COMPRESS);
    let mut client = server.connect();
    for accepted in ["gzip", "gzip, zstd"] {
        for _ in 0..3 {
            let response = client.request("GET", "/a.css", &[("Accept-Encoding", accepted)]);
            assert_eq!((response.field("Content-Encoding"), response.text().as_str()), (Some("gzip"), "the sibling"));
        }
    }
    // A client that accepts none of the siblings.
    wait_for(&mut client, "/a.css", "zstd", &text(1, 20_000));
    wait_for(&mut client, "/a.css", "br", &text(1, 20_000));
    assert_eq!(server.report("compressions compressed"), 2);
}

#[test]
fn compressed_form_has_its_own_tag_and_ranges() {
    for size in SIZES {
        let site = Site::new();
        site.file("a.js", text(1, size));
        let server = Server::with_site(&site, COMPRESS);
        let mut client = server.connect();
        let plain = client.request("GET", "/a.js", &[("Accept-Encoding", "gzip")]);
        let gzip = wait_for(&mut client, "/a.js", "gzip", &plain.body);
        let zstd = wait_for(&mut client, "/a.js", "zstd", &plain.body);
        let tag = |response: &Response| response.field("ETag").unwrap().to_owned();
        let (plain_tag, gzip_tag, zstd_tag) = (tag(&plain), tag(&gzip), tag(&zstd));
        assert!(plain_tag != gzip_tag && gzip_tag != zstd_tag);
        assert!([&plain_tag, &gzip_tag, &zstd_tag].iter().all(|tag| tag.starts_with('"')), "strong");
        // Each copy is current, also the one from before the file was compressed.
        for (of, condition) in [(&gzip, &gzip_tag), (&plain, &plain_tag)] {
            for method in ["GET", "HEAD"] {
                let fields = [("Accept-Encoding", "gzip"), ("If-None-Match", condition.as_str())];
                let response = client.request(method, "/a.js", &fields);
                assert_eq!((response.status, response.field("ETag")), (304, of.field("ETag")));
                assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
            }
        }
        let fields = [("Accept-Encoding", "gzip"), ("If-None-Match", zstd_tag.as_str())];
        assert_eq!(client.request("GET", "/a.js", &fields).status, 200);
        let length = gzip.body.len();
        for condition in [None, Some(&gzip_tag)] {
            let mut fields = vec![("Accept-Encoding", "gzip"), ("Range", "bytes=5-99")];
            fields.extend(condition.map(|tag| ("If-Range", tag.as_str())));
            let part = client.request("GET", "/a.js", &fields);
            assert_eq!((part.status, &part.body[..]), (206, &gzip.body[5..100]));
            assert_eq!(part.field("Content-Range"), Some(&*format!("bytes 5-99/{length}")));
            for name in ["Content-Encoding", "ETag", "Vary", "Content-Type", "Last-Modified"] {
                assert_eq!(part.field(name), gzip.field(name), "{name}");
            }
        }
        // The rest of a download that began before the file was compressed.
        let fields = [("Accept-Encoding", "gzip"), ("Range", "bytes=5-99"), ("If-Range", plain_tag.as_str())];
        let part = client.request("GET", "/a.js", &fields);
        assert_eq!((part.status, &part.body[..]), (206, &plain.body[5..100]));
        assert_eq!((part.field("Content-Encoding"), part.field("ETag")), (None, plain.field("ETag")));
        let fields = [("Accept-Encoding", "gzip"), ("Range", "bytes=5-99"), ("If-Match", plain_tag.as_str())];
        assert_eq!(client.request("GET", "/a.js", &fields).body, &plain.body[5..100]);
        // The date is that of all forms, so it identifies none.
        let date = gzip.field("Last-Modified").unwrap();
        let fields = [("Accept-Encoding", "gzip"), ("Range", "bytes=5-99"), ("If-Range", date)];
        assert_eq!(client.request("GET", "/a.js", &fields).status, 200);
        let beyond = format!("bytes={length}-");
        assert_eq!(client.request("GET", "/a.js", &[("Accept-Encoding", "gzip"), ("Range", &beyond)]).status, 416);
    }
}

#[test]
fn changed_file_is_compressed_again() {
    for size in SIZES {
        let site = Site::new();
        let path = site.file("a.json", text(1, size));
        let server = Server::with_site(&site, &format!("{COMPRESS}\n[cache]\nrevalidate = '20ms'"));
        let mut client = server.connect();
        let old = wait_for(&mut client, "/a.json", "gzip", &text(1, size));
        let old_tag = old.field("ETag").unwrap();
        for version in 2..4 {
            let_files_settle();
            // The same size, in place.
            fs::write(&path, text(version, size)).unwrap();
            let_files_settle();
            wait_until("the change", || client.get("/a.json").body == text(version, size));
            let new = wait_for(&mut client, "/a.json", "gzip", &text(version, size));
            assert!(gunzip(&new.body) == text(version, size) && new.field("ETag") != Some(old_tag));
            let fields = [("Accept-Encoding", "gzip"), ("Range", "bytes=5-99"), ("If-Range", old_tag)];
            let whole = client.request("GET", "/a.json", &fields);
            assert_eq!((whole.status, whole.field("ETag")), (200, new.field("ETag")));
            let fields = [("Accept-Encoding", "gzip"), ("If-None-Match", old_tag)];
            assert_eq!(client.request("GET", "/a.json", &fields).status, 200);
        }
    }
}

/// Clients read a file while it is replaced again and again. Each tag must identify one body, and each body one version.
#[test]
fn changing_file_is_never_mixed() {
    let site = Site::new();
    // Compressed in a moment, even by a thread that gets a hundredth of a processor.
    let size = 40_000;
    let path = site.file("a.txt", text(0, size));
    let server = Server::with_site(&site, &format!("{COMPRESS}\n[cache]\nrevalidate = '10ms'"));
    let bodies: Mutex<BTreeMap<String, (bool, Vec<u8>)>> = Mutex::default();
    let ended = AtomicBool::new(false);
    let enough = || {
        let bodies = bodies.lock().unwrap();
        let (coded, plain): (Vec<_>, Vec<_>) = bodies.values().partition(|(is_coded, _)| *is_coded);
        coded.len() >= 4 && plain.len() >= 4
    };
    thread::scope(|scope| {
        let _ended = SetOnDrop(&ended);
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = server.connect();
                while !ended.load(Ordering::Relaxed) {
                    let response = client.request("GET", "/a.txt", &[("Accept-Encoding", "gzip")]);
                    assert_eq!(response.status, 200);
                    let tag = response.field("ETag").unwrap().to_owned();
                    let is_coded = response.field("Content-Encoding").is_some();
                    if tag.starts_with("W/") {
                        assert!(!is_coded, "a file that was changing");
                        continue;
                    }
                    let mut bodies = bodies.lock().unwrap();
                    let known = bodies.entry(tag).or_insert_with(|| (is_coded, response.body.clone()));
                    assert!(*known == (is_coded, response.body), "two bodies have one tag");
                    drop(bodies);
                    // The compressor gets only what others leave of the processors.
                    thread::sleep(Duration::from_millis(2));
                }
            });
        }
        let mut version = 0;
        wait_until("versions of both kinds", || {
            version += 1;
            let next = site.path().join("next");
            fs::write(&next, text(version, size)).unwrap();
            fs::rename(next, &path).unwrap();
            thread::sleep(Duration::from_millis(300));
            enough()
        });
    });
    for (is_coded, body) in bodies.into_inner().unwrap().into_values() {
        let plain = if is_coded { gunzip(&body) } else { body };
        let start = String::from_utf8_lossy(&plain[..20]).into_owned();
        let version = start["version ".len()..].split(',').next().unwrap().parse().unwrap();
        assert!(plain == text(version, size), "{version}");
    }
}

#[test]
fn application_response_is_not_compressed() {
    let site = Site::new();
    let script = site.file("cgi-bin/text", "#!/bin/sh\nprintf 'Content-Type: text/html\\n\\n'; yes | head -c 20000");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let app = "[[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\ncache = '1m'";
    let server = Server::with_site(&site, &format!("{COMPRESS}\n{app}"));
    let mut client = server.connect();
    for _ in 0..5 {
        let response = client.request("GET", "/cgi-bin/text", &[("Accept-Encoding", "gzip, zstd")]);
        assert_eq!((response.status, response.body.len()), (200, 20_000));
        assert_eq!((response.field("Content-Encoding"), response.field("Vary")), (None, None));
    }
    assert_eq!(server.report("compressions compressed"), 0);
}

#[test]
fn reload_keeps_compressed_files_and_may_end_compression() {
    // The configuration would be another one.
    if is_secure() {
        return;
    }
    let site = Site::new();
    site.file("a.txt", text(1, 20_000));
    let server = Server::with_site(&site, COMPRESS);
    let mut client = server.connect();
    wait_for(&mut client, "/a.txt", "gzip", &text(1, 20_000));
    let config = site.path().with_extension("toml");
    let with = fs::read_to_string(&config).unwrap();
    fs::write(&config, with.replace(COMPRESS, "")).unwrap();
    server.signal("HUP");
    let coding = |client: &mut Client| {
        let response = client.request("GET", "/a.txt", &[("Accept-Encoding", "gzip")]);
        (response.field("Content-Encoding").is_some(), response.field("Vary").is_some())
    };
    wait_until("the configuration without it", || coding(&mut server.connect()) == (false, false));
    fs::write(&config, with).unwrap();
    server.signal("HUP");
    wait_until("the configuration with it", || coding(&mut server.connect()) == (true, true));
}
