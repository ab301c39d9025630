//! nginx on the same tree: every difference must have a reason.
//!
//! Both servers receive seeded random requests; status, body and the fields that describe the body must be equal. Each
//! intended difference is an entry of [`DIFFERENCES`], with its reason; an entry that no longer occurs fails too, so
//! the list stays accurate.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use super::harness::{Client, Response, Server, Site};
use super::ports::free_addresses;
use super::requests::{Asked, Draw, Random, tree};
use super::started_nginx::Nginx;

/// Starts nginx, with the semantics of If-Modified-Since that RFC 9110 defines.
fn serve(root: &Path) -> (Nginx, SocketAddr) {
    let [address] = free_addresses();
    let servers = format!(
        "absolute_redirect off; if_modified_since before;\n\
         server {{ listen {address}; root {}; index index.html; }}",
        root.display()
    );
    (Nginx::start(tempfile::tempdir().unwrap(), address, &servers), address)
}

/// A difference: nginx's behaviour, Amped's behaviour, and the reason.
struct Difference {
    reason: &'static str,
    nginx: &'static [u16],
    amped: &'static [u16],
    applies: fn(&Asked) -> bool,
}

fn has(request: &Asked, name: &str) -> bool {
    request.conditions.iter().any(|(field, _)| *field == name)
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        reason: "RFC 9110, 14.2: Range applies to GET only; nginx obeys it in HEAD",
        nginx: &[206, 416],
        amped: &[200],
        applies: |request| request.method == "HEAD" && request.range.is_some(),
    },
    Difference {
        reason: "RFC 9110, 14.2: an invalid range set may be ignored; nginx answers 416",
        nginx: &[416],
        amped: &[200],
        applies: |request| matches!(request.range.as_deref(), Some("bytes=9-3" | "bytes=x-y" | "bytes=" | "bytes=1")),
    },
    Difference {
        reason: "RFC 9110, 13.1.3: If-Modified-Since is ignored beside If-None-Match; nginx requires both",
        nginx: &[200, 206, 416],
        amped: &[304],
        applies: |request| has(request, "If-None-Match") && has(request, "If-Modified-Since"),
    },
    Difference {
        reason: "RFC 9110, 13.1.4: If-Unmodified-Since is ignored beside If-Match; nginx requires both",
        nginx: &[412],
        amped: &[200, 206, 304, 416],
        applies: |request| has(request, "If-Match") && has(request, "If-Unmodified-Since"),
    },
    Difference {
        reason: "RFC 9110, 15.5.17: no range of an empty file is satisfiable; nginx sends the whole file",
        nginx: &[200],
        amped: &[416],
        applies: |request| request.target == "/files/0.txt" && request.range.is_some(),
    },
    Difference {
        reason: "names that begin with a dot are not served unless the site enables it",
        nginx: &[200, 304, 412],
        amped: &[404],
        applies: |request| request.target.contains("/."),
    },
    Difference {
        reason: "RFC 9110, 9.3.7: OPTIONS lists the methods; nginx does not support it for files",
        nginx: &[301, 400, 403, 404, 405],
        amped: &[204],
        applies: |request| request.method == "OPTIONS",
    },
    Difference {
        reason: "files do not accept POST, whether they exist or not; nginx looks up the file first",
        nginx: &[301, 400, 403, 404],
        amped: &[405],
        applies: |request| request.method == "POST",
    },
];

#[test]
fn responses_agree_with_nginx() {
    const REQUESTS: u32 = 6000;
    const SEED: u64 = 3;
    let site = Site::new();
    let files = tree(&site);
    let (_nginx, nginx) = serve(site.path());
    let server = Server::serve(&site);
    let mut random = Random(SEED);
    let mut to_amped = server.connect();
    let mut seen = BTreeSet::new();
    let mut statuses = std::collections::BTreeMap::<u16, u32>::new();
    let mut unexplained = Vec::new();
    for _ in 0..REQUESTS {
        let request = random.request(&files);
        // nginx closes after a 412 that says keep-alive, so it gets a new connection for each request.
        let theirs = ask(&mut Client::connect(nginx), nginx, &request);
        let ours = ask(&mut to_amped, server.address, &request);
        *statuses.entry(ours.status).or_default() += 1;
        if theirs.status != ours.status {
            let difference = DIFFERENCES.iter().position(|difference| {
                difference.nginx.contains(&theirs.status)
                    && difference.amped.contains(&ours.status)
                    && (difference.applies)(&request)
            });
            match difference {
                Some(difference) => _ = seen.insert(difference),
                None => unexplained.push(format!("nginx {}, amped {}: {request:?}", theirs.status, ours.status)),
            }
        } else if essence(&theirs) != essence(&ours) {
            unexplained.push(format!("{request:?}\n  nginx {theirs:?}\n  amped {ours:?}"));
        }
    }
    println!("{statuses:?}, differences {seen:?}");
    let text: String =
        unexplained.iter().take(10).map(|line| line.chars().take(1500).collect::<String>() + "\n").collect();
    assert!(unexplained.is_empty(), "{} unexplained differences, among them\n{text}", unexplained.len());
    for (n, difference) in DIFFERENCES.iter().enumerate() {
        assert!(seen.contains(&n), "this difference no longer occurs: {}", difference.reason);
    }
    for status in [200, 206, 301, 304, 403, 404, 405, 412, 416] {
        assert!(statuses.contains_key(&status), "no {status} among {statuses:?}");
    }
}

/// Sends a request with the server's own validators; reconnects if the server has closed.
fn ask(client: &mut Client, address: SocketAddr, request: &Asked) -> Response {
    let tag = match request.conditions.is_empty() {
        true => String::new(),
        false => Client::connect(address).get(&request.target).field("ETag").unwrap_or("\"none\"").to_owned(),
    };
    let fields = request.fields(&tag);
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    client.send_request(request.method, &request.target, &fields);
    let response = client.try_response(request.method);
    let response = response.unwrap_or_else(|error| panic!("{error}: {request:?} to {address}"));
    if response.field("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
        *client = Client::connect(address);
    }
    response
}

/// The part of a response that must be equal: which bytes of the file it contains. Error texts differ between servers.
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

/// The parts of a multipart body with their ranges, without the parts of the format that servers choose.
fn parts(body: &[u8], boundary: &str) -> Vec<u8> {
    // The files are ASCII and contain no such line.
    let text = std::str::from_utf8(body).unwrap();
    let delimiter = format!("\r\n--{boundary}");
    let mut found = String::new();
    for part in text.split(&delimiter).filter(|part| !part.is_empty() && *part != "--\r\n") {
        let (head, bytes) = part.split_once("\r\n\r\n").expect("the head of a part");
        let range = head.lines().find_map(|line| line.strip_prefix("Content-Range: ")).expect("the range of a part");
        found += &format!("{range}: {bytes}\n");
    }
    found.into_bytes()
}
