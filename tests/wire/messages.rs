//! Requests as they are written (RFC 9112): what is answered, and what is refused and closed.

use super::harness::{Server, Site};

#[test]
fn a_file_is_served() {
    let site = Site::new();
    site.file("hello.txt", "hello\n");
    let response = Server::serve(&site).get("/hello.txt");
    assert_eq!((response.status, response.text().as_str()), (200, "hello\n"));
    assert_eq!(response.field("Content-Type"), Some("text/plain; charset=utf-8"));
}
