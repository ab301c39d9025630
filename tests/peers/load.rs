//! h2load and wrk: load generators with parsers of their own and many concurrent connections.

use super::harness::{Server, Site};
use super::{peer, said};

fn served() -> (Site, Server) {
    let site = Site::new();
    site.file("small.txt", "small\n");
    site.file("large.bin", vec![7; 200 << 10]);
    let server = Server::serve(&site);
    (site, server)
}

/// Pipelined requests on ten connections.
#[test]
fn h2load_gets_every_response() {
    let (_site, server) = served();
    for ahead in ["1", "8", "100"] {
        let url = format!("http://{}/small.txt", server.address);
        let text = said(peer("h2load").args(["--h1", "-n", "2000", "-c", "10", "-m", ahead, &url]));
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
        let requests = "requests: 2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout";
        assert_eq!(line("requests:"), requests);
        assert_eq!(line("status codes:"), "status codes: 2000 2xx, 0 3xx, 0 4xx, 0 5xx");
    }
    assert_eq!(server.report("connections_broken"), 0);
}

#[test]
fn wrk_sees_no_errors() {
    let (_site, server) = served();
    for file in ["small.txt", "large.bin"] {
        let url = format!("http://{}/{file}", server.address);
        let text = said(peer("wrk").args(["-t", "1", "-c", "20", "-d", "1s", &url]));
        assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
        let line = text.lines().find(|line| line.contains("requests in")).unwrap_or_else(|| panic!("{text}"));
        let count: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
        assert!(count > 100, "{text}");
        println!("{file}: {}", line.trim());
    }
}
