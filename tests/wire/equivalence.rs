//! The same requests to all architectures: every byte of the responses must be equal.
//!
//! Each seeded script is a connection with several pipelined requests, valid and invalid, sent in pieces. Responses are
//! compared byte by byte, except `Date`. `SEED=7` in the environment runs one seed again.

use std::fs;
use std::net::Shutdown;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::ARCHITECTURES;
use crate::harness::{Server, Site, find, let_files_settle};
use crate::requests::{Draw, Random, tree};

/// Scripts per seed, of 4 requests on average.
const SCRIPTS: usize = 300;

/// Requests that are unusual, invalid, or no requests.
const ODD: [&str; 22] = [
    "GET /files/10.txt HTTP/1.0\r\n\r\n",
    "GET /files/10.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "GET /files/10.txt HTTP/1.1\r\n\r\n",
    "GET /files/10.txt HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET /files/10.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "GET /files/10.txt HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "GET /files/10.txt HTTP/1.9\r\nHost: localhost\r\n\r\n",
    "GET  /files/10.txt HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /files/10.txt HTTP/1.1\nHost: localhost\n\n",
    "GET /files/10.txt HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n",
    "GET /files/10.txt HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "GET http://localhost/files/10.txt HTTP/1.1\r\nHost: other\r\n\r\n",
    "GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "\r\n\r\nGET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "DELETE /files/10.txt HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "BREW /pot HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /docs/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    "GET /docs/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "GET /docs/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "GET /docs/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
    "\x16\x03\x01\x02\x00\x01",
];

/// The bytes sent on a connection, and where they are split.
struct Script {
    bytes: Vec<u8>,
    cuts: Vec<usize>,
}

fn script(random: &mut Random, files: &[(String, Option<usize>)], tags: &[String]) -> Script {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(7) {
        if random.below(8) == 0 {
            bytes.extend_from_slice(random.one_of(&ODD).as_bytes());
            continue;
        }
        let request = random.request(files);
        let tag = &tags[files.iter().position(|(target, _)| *target == request.target).unwrap()];
        let mut text = format!("{} {} HTTP/1.1\r\nHost: localhost\r\n", request.method, request.target);
        for (name, value) in request.fields(tag) {
            text += &format!("{name}: {value}\r\n");
        }
        // ann:pass, and another user.
        if random.below(2) == 0 {
            let pair = random.one_of(&["YW5uOnBhc3M=", "YW5uOnBhc3M=", "Ym9iOnBhc3M=", "?"]);
            text += &format!("Authorization: Basic {pair}\r\n");
        }
        if random.below(3) == 0 {
            let language = random.one_of(&["fr", "en-GB, fr;q=0.5", "*;q=0.1, fr;q=0", "x, ,;", "de"]);
            text += &format!("Accept-Language: {language}\r\n");
            let coding = random.one_of(&["gzip", "gzip;q=0, *", "br, gzip;q=0.5", "identity;q=0", "x, ,;"]);
            text += &format!("Accept-Encoding: {coding}\r\n");
        }
        bytes.extend_from_slice((text + "\r\n").as_bytes());
    }
    if random.below(6) == 0 {
        let at = random.below(bytes.len());
        bytes[at] = random.below(256) as u8;
    }
    let mut cuts: Vec<usize> = (0..random.one_of(&[0, 0, 1, 5])).map(|_| random.below(bytes.len())).collect();
    cuts.sort_unstable();
    Script { bytes, cuts }
}

/// Returns the complete response to a script, with its times masked.
fn reply(server: &Server, script: &Script) -> Vec<u8> {
    let mut client = server.connect();
    let mut sent = 0;
    for &cut in script.cuts.iter().chain([&script.bytes.len()]) {
        client.send(&script.bytes[sent..cut]);
        sent = cut;
        thread::yield_now();
    }
    // The server may have closed the connection already.
    let _ = client.stream().shutdown(Shutdown::Write);
    let mut reply = client.read_to_end();
    let (mut at, field) = (0, b"\r\nDate: ");
    while let Some(found) = find(&reply[at..], field) {
        at += found + field.len();
        let end = reply.len().min(at + "Tue, 02 Jan 2024 03:04:05 GMT".len());
        reply[at..end].fill(b'-');
    }
    reply
}

#[test]
fn same_requests_get_same_bytes_on_all_architectures() {
    let site = Site::new();
    let mut files = tree(&site);
    site.file("docs/page.css", "plain".repeat(100));
    site.file("docs/page.css.gz", "packed");
    site.file("docs/page.css.br", "tight");
    site.file("docs/text.en.html", "english");
    site.file("docs/text.fr.html", "le français");
    site.file("docs/text.fr.html.gz", "serré");
    site.file("private/secret.txt", "for some");
    let elsewhere = Site::new();
    let users = elsewhere.file("users", format!("ann:{}\n", bcrypt::hash("pass", 4).unwrap()));
    let others = ["/", "/files/", "/docs/text", "/docs/text", "/docs/text.fr", "/private/secret.txt", "/private/"];
    files.push(("/docs/page.css".to_owned(), Some(500)));
    files.extend(others.map(|target| (target.to_owned(), None)));
    let_files_settle();
    let config = site.path().with_extension("toml");
    let tables =
        "[[site.negotiation]]\nmatch = '/docs/**'\nlanguages = ['en', 'fr']\nunacceptable = '406'\n[[site.auth]]";
    let root = site.path();
    let text = format!(
        "listen = ['127.0.0.1:0']\n[[site]]\nroot = {root:?}\n{tables}\ndirectory = '/private/'\naccounts = {users:?}\n"
    );
    fs::write(&config, text).unwrap();
    let serve = |architecture: &&str| {
        let args = ["--architecture", architecture, "--workers", "2", "--listing"];
        Server::start(&[&["--config", config.to_str().unwrap()], &args[..]].concat())
    };
    let servers: Vec<Server> = ARCHITECTURES.iter().map(serve).collect();
    let tag = |target: &str| servers[0].get(target).field("ETag").unwrap_or("\"none\"").to_owned();
    let tags: Vec<String> = files.iter().map(|(target, _)| tag(target)).collect();

    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => vec![1, clock],
    };
    for seed in seeds {
        println!("reproduce with SEED={seed}");
        let mut random = Random(seed);
        let mut statuses = std::collections::BTreeMap::<Vec<u8>, u32>::new();
        for n in 0..SCRIPTS {
            let script = script(&mut random, &files, &tags);
            let expected = reply(&servers[0], &script);
            for line in expected.windows(12).filter(|window| window.starts_with(b"HTTP/1.1 ")) {
                *statuses.entry(line[9..].to_vec()).or_default() += 1;
            }
            for (server, architecture) in servers.iter().zip(ARCHITECTURES).skip(1) {
                let found = reply(server, &script);
                assert!(
                    found == expected,
                    "script {n}, {architecture} and {}:\n{}\n--- cut at {:?}, got\n{}\n--- instead of\n{}",
                    ARCHITECTURES[0],
                    script.bytes.escape_ascii(),
                    script.cuts,
                    start_of_difference(&found, &expected),
                    start_of_difference(&expected, &found),
                );
            }
        }
        // A new seed may not produce all of them.
        let known: &[&str] = match seed {
            1 => &["200", "204", "206", "301", "304", "400", "401", "404", "405", "406", "412", "416", "501", "505"],
            _ => &["200", "401"],
        };
        for status in known {
            assert!(statuses.contains_key(status.as_bytes()), "no {status} among {:?}", statuses.len());
        }
    }
}

/// Returns the part of `this` around the first difference from `other`.
fn start_of_difference(this: &[u8], other: &[u8]) -> String {
    let at = this.iter().zip(other).take_while(|(a, b)| a == b).count();
    let part = &this[at.saturating_sub(400)..this.len().min(at + 400)];
    format!("{} bytes, from {at} on: {}", this.len(), part.escape_ascii())
}
