//! curl, with options that its users know.

use std::fs;
use std::process::{Command, Stdio};

use super::harness::{Server, Site, wait_until};
use super::{peer, said};

/// Returns curl, silent except for errors, with this format for its last line.
fn curl(args: &[&str]) -> Command {
    let mut command = peer("curl");
    // Without ~/.curlrc, and without a proxy from the environment.
    command.args(["--disable", "--silent", "--show-error", "--noproxy", "*", "--max-time", "20"]).args(args);
    command
}

fn url(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.address)
}

/// Returns bytes that depend on their position.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 31 / 7) as u8).collect()
}

#[test]
fn curl_gets_single_and_multiple_ranges() {
    let site = Site::new();
    site.file("a.txt", "0123456789");
    let server = Server::serve(&site);
    let a = url(&server, "/a.txt");
    assert_eq!(said(&mut curl(&["--range", "2-4", &a])), "234");
    assert_eq!(said(&mut curl(&["--range", "-3", &a])), "789");
    assert_eq!(said(&mut curl(&["--range", "7-", &a])), "789");
    let several = said(&mut curl(&["--range", "0-1,5-6", &a]));
    assert!(several.contains("Content-Range: bytes 0-1/10\r\n\r\n01\r\n--"), "{several}");
    assert!(several.contains("Content-Range: bytes 5-6/10\r\n\r\n56\r\n--"), "{several}");
    assert_eq!(said(&mut curl(&["--range", "10-", "--output", "/dev/null", "--write-out", "%{http_code}", &a])), "416");
}

#[test]
fn curl_resumes_download() {
    let site = Site::new();
    let server = Server::serve(&site);
    for length in [100, 32 << 10, 3 << 20] {
        let whole = bytes(length);
        site.file("whole.bin", &whole);
        for done in [1, length / 2, length - 1] {
            let folder = tempfile::tempdir().unwrap();
            let part = folder.path().join("part");
            fs::write(&part, &whole[..done]).unwrap();
            let name = url(&server, "/whole.bin");
            let output = part.to_str().unwrap();
            let code = said(&mut curl(&["-C", "-", "--output", output, "--write-out", "%{http_code}", &name]));
            assert_eq!(code, "206");
            assert!(fs::read(&part).unwrap() == whole, "resumed at {done} of {length}");
        }
        // Removed first, so that no cache holds the next file under this name.
        fs::remove_file(site.path().join("whole.bin")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
}

#[test]
fn curl_decompresses_precompressed_siblings() {
    let site = Site::new();
    let text = "all work and no play\n".repeat(1000);
    let path = site.file("page.html", &text);
    assert!(peer("gzip").args(["--keep", "--no-name"]).arg(&path).status().unwrap().success());
    let server = Server::serve(&site);
    let page = url(&server, "/page.html");
    assert_eq!(said(&mut curl(&["--compressed", &page])), text);
    let size = |args: &[&str]| {
        let fixed = ["--output", "/dev/null", "--write-out", "%{size_download}", &page];
        said(&mut curl(&[args, &fixed].concat())).parse::<usize>().unwrap()
    };
    assert!(size(&["--compressed"]) < text.len() / 10);
    assert_eq!(size(&[]), text.len());
    assert_eq!(size(&["--compressed", "--http1.0"]), size(&["--compressed"]));
}

#[test]
fn curl_decompresses_files_compressed_on_the_fly() {
    let site = Site::new();
    let text = "all work and no play\n".repeat(5000);
    site.file("page.html", &text);
    for coding in ["br", "zstd", "gzip"] {
        let server = Server::with_site(&site, &format!("compress = ['{coding}']"));
        let page = url(&server, "/page.html");
        let fields = "%{header_json}";
        let is_coded = || {
            let format = ["--compressed", "--output", "/dev/null", "--write-out", fields, &page];
            said(&mut curl(&format)).contains(&format!("\"content-encoding\":[\"{coding}\"]"))
        };
        assert_eq!(said(&mut curl(&["--compressed", &page])), text);
        wait_until("compression", is_coded);
        assert_eq!(said(&mut curl(&["--compressed", &page])), text);
    }
}

#[test]
fn curl_gets_http_1_0_and_head() {
    let site = Site::new();
    site.file("a.txt", "0123456789");
    let server = Server::serve(&site);
    let a = url(&server, "/a.txt");
    assert_eq!(said(&mut curl(&["--http1.0", &a])), "0123456789");
    // Two requests; HTTP/1.0 without keep-alive closes in between.
    let twice = |version: &str| {
        let sink = ["--output", "/dev/null"];
        said(&mut curl(&[&[version, "--write-out", "%{num_connects}", &a, &a][..], &sink, &sink].concat()))
    };
    assert_eq!(twice("--http1.1"), "10");
    assert_eq!(twice("--http1.0"), "11");
    let head = said(&mut curl(&["--head", &a]));
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("\r\nContent-Length: 10\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn curl_conditional_requests_are_honored() {
    let site = Site::new();
    let path = site.file("a.txt", "0123456789");
    assert!(Command::new("touch").args(["-d", "2024-01-02 03:04:05Z"]).arg(&path).status().unwrap().success());
    let server = Server::serve(&site);
    let a = url(&server, "/a.txt");
    let code = |args: &[&str]| {
        said(&mut curl(
            &[args, &["--output", "/dev/null", "--write-out", "%{http_code} %{size_download}", &a]].concat(),
        ))
    };
    assert_eq!(code(&["-z", "Tue, 02 Jan 2024 03:04:05 GMT"]), "304 0");
    assert_eq!(code(&["-z", "Tue, 02 Jan 2024 03:04:04 GMT"]), "200 10");
    // curl itself treats an equal second as not modified.
    assert_eq!(code(&["-z", "-Tue, 02 Jan 2024 03:04:06 GMT"]), "200 10");
    assert_eq!(code(&["-z", "-Tue, 02 Jan 2024 03:04:04 GMT"])[..3], *"412");
    // `-z FILE` sends the file's own time.
    assert_eq!(code(&["-z", path.to_str().unwrap()]), "304 0");
    let folder = tempfile::tempdir().unwrap();
    let tag = folder.path().join("tag");
    let tag = tag.to_str().unwrap();
    assert_eq!(code(&["--etag-save", tag]), "200 10");
    assert_eq!(code(&["--etag-compare", tag]), "304 0");
    site.file("a.txt", "something else");
    // After a second; a busy disk may take longer.
    wait_until("the changed file", || code(&["--etag-compare", tag]) == "200 14");
}

#[test]
fn refused_upload_keeps_connection_open() {
    let site = Site::new();
    site.file("a.txt", "0123456789");
    let server = Server::serve(&site);
    let a = url(&server, "/a.txt");
    let folder = tempfile::tempdir().unwrap();
    let body = folder.path().join("body");
    fs::write(&body, bytes(300_000)).unwrap();
    let format = "%{http_code} %{num_connects}\n";
    let sink = ["--output", "/dev/null", "--write-out", format];
    // `-T -` sends chunks. An empty `Expect:` keeps curl from waiting for 100 Continue.
    let upload = ["--upload-file", "-", "--header", "Expect:", &a];
    let then = ["--next", "--silent", "--noproxy", "*", "--output", "/dev/null", "--write-out", format, &a];
    let text = said(curl(&[&sink[..], &upload, &then].concat()).stdin(Stdio::from(fs::File::open(&body).unwrap())));
    assert_eq!(text, "405 1\n200 0\n");
    // With `Expect: 100-continue`, curl's default: refused before a byte of the body was sent.
    let ask = ["--upload-file", "-", "--header", "Expect: 100-continue", &a];
    let text = said(curl(&[&sink[..], &ask].concat()).stdin(Stdio::from(fs::File::open(&body).unwrap())));
    assert_eq!(text, "405 1\n");
    // More than the server reads of a body that it discards.
    fs::write(&body, bytes(3 << 20)).unwrap();
    let text = said(curl(&[&sink[..], &upload].concat()).stdin(Stdio::from(fs::File::open(&body).unwrap())));
    assert_eq!(text, "413 1\n");
}

#[test]
fn paths_above_root_are_not_served() {
    let site = Site::new();
    site.file("a.txt", "0123456789");
    let server = Server::serve(&site);
    for path in
        ["/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/a.txt/../../../etc/passwd", "/..%2fetc/passwd"]
    {
        let args = ["--path-as-is", "--output", "/dev/null", "--write-out", "%{http_code}", &url(&server, path)];
        let code = said(&mut curl(&args));
        assert!(["400", "403", "404"].contains(&code.as_str()), "{path}: {code}");
    }
}
