//! Pages that are made and kept, in every architecture: listings, for as long as their folders do not change.
//!
//! What was made is counted, by the server's own figures or by the application; nobody measures time.

use std::fs;
use std::thread;

use super::harness::*;

const EAGER: &str = "[cache]\nrevalidate = \"20ms\"";
const NEVER: &str = "[cache]\nrevalidate = \"1h\"\nstale_max = \"1h\"";

/// Serves a site whose folders are listed, with one set of caches.
fn serve_listings(site: &Site, toml: &str) -> Server {
    let root = site.path();
    let text = format!(
        "{}listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = {root:?}\nlisting = true\n{toml}\n",
        one_set_of_caches()
    );
    let config = site.path().with_extension("toml");
    fs::write(&config, text).unwrap();
    Server::start(&["--config", config.to_str().unwrap()])
}

/// Hits and misses among pages that are made.
fn pages(server: &Server) -> [u64; 2] {
    ["hits", "misses"].map(|key| server.report("made pages", key))
}

#[test]
fn a_listing_is_kept_in_each_form() {
    let site = Site::new();
    site.file("folder/b", "bb");
    site.file("folder/a", "a");
    let_files_settle();
    let server = serve_listings(&site, NEVER);
    let mut client = server.connect();
    let json = [("Accept", "application/json")];
    let forms: [(&str, &[(&str, &str)]); 4] =
        [("", &[]), ("?sort=size", &[]), ("", &json), ("?sort=time&order=desc", &json)];
    let first: Vec<_> =
        forms.iter().map(|(query, fields)| client.request("GET", &format!("/folder/{query}"), fields)).collect();
    assert_eq!(pages(&server), [0, 4]);
    for _ in 0..3 {
        for ((query, fields), first) in forms.iter().zip(&first) {
            let again = client.request("GET", &format!("/folder/{query}"), fields);
            assert_eq!((again.status, again.lasting_fields()), (200, first.lasting_fields()), "{query} {fields:?}");
            assert!(again.body == first.body, "{query} {fields:?}");
        }
    }
    assert_eq!(pages(&server), [12, 4]);
    let tags: std::collections::HashSet<_> = first.iter().map(|page| page.field("ETag").unwrap()).collect();
    assert_eq!(tags.len(), 4, "{tags:?}");
    assert!(first.iter().all(|page| page.field("Vary") == Some("Accept")));
}

#[test]
fn conditions_about_a_listing_are_obeyed_from_the_cache() {
    let site = Site::new();
    site.file("folder/a", "a");
    let_files_settle();
    let server = serve_listings(&site, NEVER);
    let mut client = server.connect();
    let page = client.get("/folder/");
    let (tag, modified) = (page.field("ETag").unwrap(), page.field("Last-Modified").unwrap());
    let length = page.body.len().to_string();
    let mut check = |method: &str, fields: &[(&str, &str)], status: u16| {
        let response = client.request(method, "/folder/", fields);
        assert_eq!(response.status, status, "{method} {fields:?}");
        if status == 304 {
            let told = |name: &str| response.field(name).map(str::to_owned);
            assert_eq!((told("ETag"), told("Last-Modified")), (Some(tag.into()), Some(modified.into())));
            assert_eq!((told("Vary").as_deref(), told("Content-Length")), (Some("Accept"), None));
        }
        if status == 200 {
            assert_eq!(response.field("Content-Length"), Some(&*length), "{method} {fields:?}");
            assert_eq!(response.body.is_empty(), method == "HEAD");
        }
    };
    for method in ["GET", "HEAD"] {
        check(method, &[], 200);
        check(method, &[("If-None-Match", tag)], 304);
        check(method, &[("If-None-Match", "\"other\"")], 200);
        check(method, &[("If-Modified-Since", modified)], 304);
        check(method, &[("If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT")], 200);
        check(method, &[("If-Match", tag)], 200);
        check(method, &[("If-Match", "\"other\"")], 412);
        check(method, &[("If-Unmodified-Since", "Sun, 06 Nov 1994 08:49:37 GMT")], 412);
        check(method, &[("Range", "bytes=0-3")], 200);
    }
    assert_eq!(pages(&server), [18, 1]);
}

#[test]
fn a_listing_changes_with_its_folder() {
    let site = Site::new();
    let path = site.file("folder/first", "");
    let_files_settle();
    let server = serve_listings(&site, EAGER);
    let mut client = server.connect();
    let mut seen = |shown: &[&str], gone: &[&str]| {
        wait_until(&format!("{shown:?} without {gone:?}"), || {
            let text = client.get("/folder/").text();
            shown.iter().all(|name| text.contains(name)) && !gone.iter().any(|name| text.contains(name))
        });
        let_files_settle();
        // Now it is kept.
        client.get("/folder/");
    };
    seen(&["./first"], &[]);
    site.file("folder/second", "");
    seen(&["./first", "./second"], &[]);
    fs::rename(&path, path.with_file_name("third")).unwrap();
    seen(&["./second", "./third"], &["./first"]);
    // That a file has grown the folder does not tell; its listing is made anew after ten times `revalidate`.
    site.file("folder/second", pattern(5 << 10));
    seen(&["5.0 KiB"], &[]);
    fs::remove_file(site.path().join("folder/third")).unwrap();
    seen(&["./second"], &["./third"]);
    fs::remove_dir_all(site.path().join("folder")).unwrap();
    wait_until("it to be gone", || client.get("/folder/").status == 404);
}

#[test]
fn without_made_pages_each_listing_is_made_anew() {
    let site = Site::new();
    site.file("folder/a", "a");
    let_files_settle();
    let server = serve_listings(&site, &format!("{NEVER}\n[optimise]\nmade_pages = false"));
    let mut client = server.connect();
    let first = client.get("/folder/");
    for _ in 0..4 {
        assert_eq!(client.get("/folder/").lasting_fields(), first.lasting_fields());
    }
    assert_eq!(pages(&server), [0, 5]);
}

#[test]
fn who_asks_for_a_listing_at_once_gets_the_same() {
    let site = Site::new();
    (0..500).for_each(|n| drop(site.file(&format!("folder/a file of the number {n}"), "")));
    let_files_settle();
    let server = serve_listings(&site, NEVER);
    let clients = if has_processes() { 1 } else { 20 };
    let bodies: Vec<Vec<u8>> = thread::scope(|scope| {
        let ask = || {
            let response = server.get("/folder/");
            assert_eq!(response.status, 200);
            response.body
        };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(bodies.iter().all(|body| *body == bodies[0] && body.len() > 500 * 60));
    let [hits, misses] = pages(&server);
    assert_eq!(hits + misses, clients);
    assert_eq!(server.get("/folder/").body, bodies[0]);
    assert_eq!(pages(&server), [hits + 1, misses], "it is kept");
}
