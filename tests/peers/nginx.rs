//! nginx on the same tree: where two servers disagree, one of them should have a reason.
//!
//! Seeded random requests go to both; status, body, and what the head says about the body must be the same. Each
//! difference that is meant is one entry of [`DIFFERENCES`], with its reason; one that does not occur any more fails too,
//! so that the list stays true.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::harness::{Client, Response, Server, Site, wait_until};
use super::peer;

/// nginx with a configuration of its own on loopback. Ended when dropped.
struct Nginx {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Nginx {
    fn serve(root: &Path) -> Nginx {
        let folder = tempfile::tempdir().unwrap();
        // The port is free when it is chosen, and hardly taken in the moment until it is used.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let own = folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {own}/{name};\n"))
            .concat();
        // One process, so that its id is all there is to end. `before`: the reading of If-Modified-Since that RFC 9110 has.
        let text = format!(
            "daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;\n\
             events {{ worker_connections 64; }}\n\
             http {{ {temporary} access_log off; absolute_redirect off; if_modified_since before;\n\
             server {{ listen {address}; root {}; index index.html; }} }}\n",
            root.display()
        );
        let config = folder.path().join("nginx.conf");
        fs::write(&config, text).unwrap();
        let mut child = peer("nginx")
            .args(["-e", &format!("{own}/error.log"), "-p"])
            .arg(folder.path())
            .arg("-c")
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("nginx to listen", || {
            let ended = child.try_wait().unwrap();
            let log = || fs::read_to_string(folder.path().join("error.log")).unwrap_or_default();
            assert!(ended.is_none(), "nginx has ended: {}", log());
            TcpStream::connect(address).is_ok()
        });
        Nginx { child, address, _folder: folder }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request to both; conditions are made from each server's own validators.
#[derive(Clone, Debug)]
struct Asked {
    method: &'static str,
    target: String,
    range: Option<String>,
    conditions: Vec<(&'static str, Condition)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Condition {
    /// The validator that the server gave: its tag or its date.
    Own,
    /// One that never was, or the second before.
    Other,
    /// Any tag at all, or the second after.
    Lenient,
}

/// What nginx does, what we do, and why.
struct Difference {
    reason: &'static str,
    nginx: &'static [u16],
    amped: &'static [u16],
    applies: fn(&Asked) -> bool,
}

fn has(asked: &Asked, name: &str) -> bool {
    asked.conditions.iter().any(|(field, _)| *field == name)
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        reason: "RFC 9110, 14.2: Range is for GET alone; nginx obeys it in HEAD",
        nginx: &[206, 416],
        amped: &[200],
        applies: |asked| asked.method == "HEAD" && asked.range.is_some(),
    },
    Difference {
        reason: "RFC 9110, 14.2: an invalid range set may be ignored; nginx says 416",
        nginx: &[416],
        amped: &[200],
        applies: |asked| matches!(asked.range.as_deref(), Some("bytes=9-3" | "bytes=x-y" | "bytes=" | "bytes=1")),
    },
    Difference {
        reason: "RFC 9110, 13.1.3: If-Modified-Since is ignored beside If-None-Match; nginx wants both to hold",
        nginx: &[200, 206, 416],
        amped: &[304],
        applies: |asked| has(asked, "If-None-Match") && has(asked, "If-Modified-Since"),
    },
    Difference {
        reason: "RFC 9110, 13.1.4: If-Unmodified-Since is ignored beside If-Match; nginx wants both to hold",
        nginx: &[412],
        amped: &[200, 206, 304, 416],
        applies: |asked| has(asked, "If-Match") && has(asked, "If-Unmodified-Since"),
    },
    Difference {
        reason: "RFC 9110, 15.5.17: no range lies inside an empty file; nginx sends all of it",
        nginx: &[200],
        amped: &[416],
        applies: |asked| asked.target == "/files/0.txt" && asked.range.is_some(),
    },
    Difference {
        reason: "names with a dot in front are not served unless a site says so",
        nginx: &[200, 304, 412],
        amped: &[404],
        applies: |asked| asked.target.contains("/."),
    },
    Difference {
        reason: "RFC 9110, 9.3.7: OPTIONS tells the methods; nginx does not know it for files",
        nginx: &[301, 400, 403, 404, 405],
        amped: &[204],
        applies: |asked| asked.method == "OPTIONS",
    },
    Difference {
        reason: "no file takes a POST, whether it is there or not; nginx looks for it first",
        nginx: &[301, 400, 403, 404],
        amped: &[405],
        applies: |asked| asked.method == "POST",
    },
];

#[test]
fn answers_agree_with_those_of_nginx() {
    const REQUESTS: u32 = 6000;
    const SEED: u64 = 3;
    let site = Site::new();
    let files = tree(&site);
    let nginx = Nginx::serve(site.path());
    let server = Server::serve(&site);
    let mut random = Random(SEED);
    let mut to_amped = server.connect();
    let mut seen = BTreeSet::new();
    let mut statuses = std::collections::BTreeMap::<u16, u32>::new();
    let mut unexplained = Vec::new();
    for _ in 0..REQUESTS {
        let asked = random.request(&files);
        // nginx closes behind a 412 that says keep-alive, so it gets a connection for each request.
        let theirs = ask(&mut Client::connect(nginx.address), nginx.address, &asked);
        let ours = ask(&mut to_amped, server.address, &asked);
        *statuses.entry(ours.status).or_default() += 1;
        if theirs.status != ours.status {
            let difference = DIFFERENCES.iter().position(|difference| {
                difference.nginx.contains(&theirs.status)
                    && difference.amped.contains(&ours.status)
                    && (difference.applies)(&asked)
            });
            match difference {
                Some(difference) => _ = seen.insert(difference),
                None => unexplained.push(format!("nginx {}, amped {}: {asked:?}", theirs.status, ours.status)),
            }
        } else if essence(&theirs) != essence(&ours) {
            unexplained.push(format!("{asked:?}\n  nginx {theirs:?}\n  amped {ours:?}"));
        }
    }
    println!("{statuses:?}, differences {seen:?}");
    let text: String =
        unexplained.iter().take(10).map(|line| line.chars().take(1500).collect::<String>() + "\n").collect();
    assert!(unexplained.is_empty(), "{} differences nobody explained, among them\n{text}", unexplained.len());
    for (n, difference) in DIFFERENCES.iter().enumerate() {
        assert!(seen.contains(&n), "this difference does not occur any more: {}", difference.reason);
    }
    for status in [200, 206, 301, 304, 403, 404, 405, 412, 416] {
        assert!(statuses.contains_key(&status), "no {status} among {statuses:?}");
    }
}

/// Files of sizes that matter, all of one date, folders with and without an index.
fn tree(site: &Site) -> Vec<(String, Option<usize>)> {
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

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len())]
    }

    fn request(&mut self, files: &[(String, Option<usize>)]) -> Asked {
        let (target, size) = files[self.below(files.len())].clone();
        let method = self.one_of(&["GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "HEAD", "POST", "OPTIONS"]);
        let mut asked = Asked { method, target, range: None, conditions: Vec::new() };
        if let Some(size) = size.filter(|_| self.below(2) == 0) {
            asked.range = Some(self.range(size));
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

    fn range(&mut self, size: usize) -> String {
        if self.below(8) == 0 {
            return self.one_of(&["bytes=9-3", "bytes=x-y", "bytes=", "bytes=1", "lines=1-2"]).to_owned();
        }
        // In order and apart, so that what is merged and what is left alone is no question; that has tests of its own.
        let count = self.one_of(&[1, 1, 2, 3]);
        let mut from = 0;
        let mut ranges = Vec::new();
        for _ in 0..count {
            let start = from + self.below(size / 3 + 3);
            let end = start + self.below(size / 3 + 3);
            ranges.push(match self.below(6) {
                0 if count == 1 => format!("{start}-"),
                1 if count == 1 => format!("-{}", 1 + end),
                _ => format!("{start}-{end}"),
            });
            from = end + 2;
        }
        format!("bytes={}", ranges.join(","))
    }
}

/// Asks a server, with its own validators; connects anew where it has closed.
fn ask(client: &mut Client, address: SocketAddr, asked: &Asked) -> Response {
    let mut fields = Vec::new();
    if !asked.conditions.is_empty() {
        let known = Client::connect(address).get(&asked.target);
        let tag = known.field("ETag").unwrap_or("\"none\"").to_owned();
        for (name, which) in &asked.conditions {
            let date = match which {
                Condition::Own => "Tue, 02 Jan 2024 03:04:05 GMT",
                Condition::Other => "Tue, 02 Jan 2024 03:04:04 GMT",
                Condition::Lenient => "Tue, 02 Jan 2024 03:04:06 GMT",
            };
            let value = match (*name, which) {
                ("If-Modified-Since" | "If-Unmodified-Since" | "If-Range date", _) => date.to_owned(),
                (_, Condition::Own) => tag.clone(),
                (_, Condition::Other) => "\"another\"".to_owned(),
                ("If-Range", Condition::Lenient) => format!("W/{tag}"),
                (_, Condition::Lenient) => "*".to_owned(),
            };
            fields.push((name.trim_end_matches(" date"), value));
        }
    }
    if let Some(range) = &asked.range {
        fields.push(("Range", range.clone()));
    }
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    client.send_request(asked.method, &asked.target, &fields);
    let response = client.try_response(asked.method);
    let response = response.unwrap_or_else(|error| panic!("{error}: {asked:?} to {address}"));
    if response.field("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
        *client = Client::connect(address);
    }
    response
}

/// What must be the same: what the file's bytes are and which of them these are. Texts of errors are each server's own.
fn essence(response: &Response) -> (Option<String>, Option<String>, Vec<u8>) {
    let field = |name| response.field(name).map(str::to_owned);
    match response.status {
        200 => (field("Content-Length"), None, response.body.clone()),
        206 => {
            let kind = field("Content-Type").unwrap_or_default();
            match kind.strip_prefix("multipart/byteranges; boundary=") {
                Some(boundary) => (None, None, parts(&response.body, boundary)),
                None => (field("Content-Length"), field("Content-Range"), response.body.clone()),
            }
        }
        301 => (field("Location"), None, Vec::new()),
        416 => (None, field("Content-Range"), Vec::new()),
        _ => (None, None, Vec::new()),
    }
}

/// The parts of a multipart body with their ranges, without what each server writes in its own way.
fn parts(body: &[u8], boundary: &str) -> Vec<u8> {
    // The files are ASCII and have no such line.
    let text = std::str::from_utf8(body).unwrap();
    let delimiter = format!("\r\n--{boundary}");
    let mut found = String::new();
    for part in text.split(&delimiter).filter(|part| !part.is_empty() && *part != "--\r\n") {
        let (head, bytes) = part.split_once("\r\n\r\n").expect("a part has a head");
        let range = head.lines().find_map(|line| line.strip_prefix("Content-Range: ")).expect("a part has its range");
        found += &format!("{range}: {bytes}\n");
    }
    found.into_bytes()
}
