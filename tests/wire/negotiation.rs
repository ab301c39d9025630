//! Documents in variants: the variant that is sent, the fields of the response, and that a choice is cached.

use std::fs;

use super::harness::{Client, Response, Server, Site, let_files_settle, one_set_of_caches, wait_until};

/// Starts a server with a rule for all paths.
fn serve(site: &Site, caches: &str, rule: &str) -> Server {
    let text = format!(
        "{}cache = {{ {caches} }}\n[[site]]\nroot = {:?}\n[[site.negotiation]]\nmatch = '**'\n\
         languages = ['en', 'fr', 'pt-BR']\n{rule}\n",
        one_set_of_caches(),
        site.path()
    );
    let config = site.path().with_extension("toml");
    fs::write(&config, format!("listen = ['127.0.0.1:0']\n{text}")).unwrap();
    let_files_settle();
    Server::start(&["--config", config.to_str().unwrap()])
}

const SETTLED: &str = "revalidate = '1h', max_stale = '1h'";

fn get(client: &mut Client, target: &str, language: &str) -> Response {
    client.request("GET", target, &[("Accept-Language", language)])
}

#[test]
fn preferred_variant_is_sent_with_content_location() {
    let site = Site::new();
    site.file("page.en.html", "english");
    site.file("page.fr.html", "le français");
    site.file("page.fr.html.gz", "serré");
    site.file("other.html", "alone");
    let server = serve(&site, SETTLED, "");
    let mut client = server.connect();
    let mut check = |target: &str, language: &str, text: &str, location: &str, said: Option<&str>| {
        let response = get(&mut client, target, language);
        assert_eq!((response.status, &*response.text()), (200, text), "{target} {language}");
        assert_eq!(response.field("Content-Location"), Some(location), "{target} {language}");
        assert_eq!(response.field("Content-Language"), said, "{target} {language}");
        assert_eq!(response.field("Content-Type"), Some("text/html; charset=utf-8"));
        response
    };
    let (en, fr) = ("/page.en.html", "/page.fr.html");
    let response = check("/page", "fr", "le français", fr, Some("fr"));
    assert_eq!(response.field("Vary"), Some("Accept-Encoding, Accept-Language"));
    check("/page", "en, fr;q=0.9", "english", en, Some("en"));
    check("/page", "fr-CH", "le français", fr, Some("fr"));
    check("/page", "en-GB, fr-CH;q=0.9, *;q=0.1", "english", en, Some("en"));
    check("/page", "de", "english", en, Some("en"));
    check("/page.html", "fr", "le français", fr, Some("fr"));
    check("/page.fr", "en", "le français", fr, Some("fr"));
    let alone = check("/other", "fr", "alone", "/other.html", None);
    assert_eq!(alone.field("Vary"), None);

    // Everything else that works for a file.
    let coded = client.request("GET", "/page", &[("Accept-Language", "fr"), ("Accept-Encoding", "gzip")]);
    assert_eq!((coded.field("Content-Encoding"), coded.text().as_str()), (Some("gzip"), "serré"));
    let head = client.request("HEAD", "/page", &[("Accept-Language", "fr")]);
    assert_eq!(head.lasting_fields(), response.lasting_fields());
    let tag = response.field("ETag").unwrap();
    let unchanged = client.request("GET", "/page", &[("Accept-Language", "fr"), ("If-None-Match", tag)]);
    assert_eq!(unchanged.status, 304);
    for name in ["Vary", "Content-Location", "ETag"] {
        assert_eq!(unchanged.field(name), response.field(name), "{name}");
    }
    let other = client.request("GET", "/page", &[("Accept-Language", "en"), ("If-None-Match", tag)]);
    assert_eq!((other.status, other.text().as_str()), (200, "english"));
    let part = client.request("GET", "/page", &[("Accept-Language", "en"), ("Range", "bytes=0-2")]);
    assert_eq!((part.status, part.text().as_str()), (206, "eng"));
    assert_eq!(part.field("Content-Location"), Some(en));

    // Under its own name a variant is an ordinary file, with the same fields.
    let own = get(&mut client, "/page.fr.html", "en");
    assert_eq!((own.status, own.field("Content-Location"), own.field("Content-Language")), (200, None, Some("fr")));
    assert_eq!((own.field("ETag"), own.field("Vary")), (Some(tag), Some("Accept-Encoding")));
    assert_eq!(get(&mut client, "/nothing", "fr").status, 404);
}

#[test]
fn existing_name_is_served_without_negotiation() {
    let site = Site::new();
    site.file("page.html", "plain");
    site.file("page.fr.html", "le français");
    site.file("folder/index.fr.html", "l'index");
    site.file("folder/index.en.html", "the index");
    site.file("folder.en.html", "no folder");
    site.file("outside/page.html.bak", "old");
    let server = serve(&site, SETTLED, "");
    let mut client = server.connect();
    assert_eq!(get(&mut client, "/page.html", "fr").text(), "plain");
    assert_eq!(get(&mut client, "/page", "fr").text(), "le français");
    assert_eq!(get(&mut client, "/page", "en").text(), "plain");
    assert_eq!(get(&mut client, "/folder", "en").status, 301);
    // An index page may have variants too.
    let index = get(&mut client, "/folder/", "fr");
    assert_eq!((index.text().as_str(), index.field("Content-Location")), ("l'index", Some("/folder/index.fr.html")));
    // Unknown extensions do not make a variant.
    assert_eq!(get(&mut client, "/outside/page", "en").status, 404);
    assert_eq!(get(&mut client, "/outside/", "en").status, 403);
}

#[test]
fn media_types_and_charsets_are_negotiated() {
    let site = Site::new();
    site.file("page.html", "<p>");
    site.file("page.pdf", "%PDF and more");
    site.file("text.txt.utf-8", "ü");
    site.file("text.txt.iso-8859-1", b"\xfc and so on");
    let server = serve(&site, SETTLED, "charsets = ['utf-8', 'iso-8859-1']");
    let mut client = server.connect();
    let mut check = |target: &str, name: &str, value: &str, location: &str, media_type: &str, vary: &str| {
        let response = client.request("GET", target, &[(name, value)]);
        assert_eq!(response.field("Content-Location"), Some(location), "{value}");
        assert_eq!(response.field("Content-Type"), Some(media_type), "{value}");
        assert_eq!(response.field("Vary"), Some(vary), "{value}");
    };
    let (html, pdf) = ("text/html; charset=utf-8", "application/pdf");
    check("/page", "Accept", "application/pdf", "/page.pdf", pdf, "Accept");
    check("/page", "Accept", "application/pdf;q=0.5, text/*;q=0.6", "/page.html", html, "Accept");
    check("/page", "Accept", "application/pdf, */*", "/page.pdf", pdf, "Accept");
    check("/page", "Accept", "image/png", "/page.html", html, "Accept");
    let (utf8, latin) = ("text/plain; charset=utf-8", "text/plain; charset=iso-8859-1");
    check("/text", "Accept-Charset", "ISO-8859-1", "/text.txt.iso-8859-1", latin, "Accept-Charset");
    check("/text", "Accept-Charset", "iso-8859-1;q=0.5, *", "/text.txt.utf-8", utf8, "Accept-Charset");
    check("/text", "Accept-Charset", "utf-16", "/text.txt.utf-8", utf8, "Accept-Charset");
}

#[test]
fn no_preference_or_no_match_is_answered_as_configured() {
    let site = Site::new();
    site.file("page.en.html", "english");
    site.file("page.fr.html", "le français");
    site.file("a&b.en.html", "odd");
    site.file("a&b.fr.html", "étrange");
    let server = serve(&site, SETTLED, "ambiguous = '300'\nunacceptable = '406'");
    let mut client = server.connect();
    for (status, response) in [
        (300, client.get("/page")),
        (300, get(&mut client, "/page", "*")),
        (406, get(&mut client, "/page", "de")),
        (406, client.request("GET", "/page", &[("Accept", "image/png")])),
    ] {
        assert_eq!(response.status, status);
        let text = response.text();
        assert!(text.contains("<a href=\"/page.fr.html\" hreflang=\"fr\">page.fr.html</a>"), "{text}");
        assert_eq!(response.field("Vary"), Some("Accept, Accept-Language"));
        assert_eq!(response.field("Content-Location"), None);
    }
    let head = client.request("HEAD", "/page", &[]);
    assert_eq!((head.status, head.body.len()), (300, 0));
    assert_eq!(get(&mut client, "/page", "fr").text(), "le français");
    let odd = client.get("/a&b");
    assert!(odd.text().contains("<a href=\"/a&amp;b.en.html\" hreflang=\"en\">a&amp;b.en.html</a>"), "{}", odd.text());
}

#[test]
fn choice_is_cached_and_counted() {
    let site = Site::new();
    site.file("page.en.html", "english");
    site.file("page.fr.html", "le français");
    let server = serve(&site, &format!("{SETTLED}, negotiation_entries = 8"), "");
    let mut client = server.connect();
    let figures = || ["hits", "misses", "entries"].map(|what| server.report(&format!("cache_{what} choice")));
    assert_eq!(get(&mut client, "/page", "fr, en;q=0.5").text(), "le français");
    let first = figures();
    // In any spelling, and whatever the other fields.
    for language in ["fr, en;q=0.5", "FR,EN ; q=0.5", " fr ,\ten; q=0.5 "] {
        for _ in 0..10 {
            let fields = [("Accept-Language", language), ("Accept", "text/html"), ("Accept-Encoding", "br")];
            assert_eq!(client.request("GET", "/page", &fields).text(), "le français");
        }
    }
    let then = figures();
    assert_eq!([then[0] - first[0], then[1] - first[1], then[2]], [30, 0, first[2]]);
    // Choices are cached per name, up to a total limit.
    for n in 0..50 {
        assert_eq!(get(&mut client, "/page", &format!("x-{n}, fr")).text(), "le français");
    }
    let [_, misses, entries] = figures();
    assert_eq!((misses - then[1], entries), (50, 8));
    assert!(server.report("cache_evictions choice") >= 40);
}

#[test]
fn added_or_removed_variant_is_detected() {
    let site = Site::new();
    site.file("page.en.html", "english");
    let server = serve(&site, "revalidate = '20ms'", "");
    let mut client = server.connect();
    let mut wait_for = |text: &str| {
        wait_until(text, || {
            let response = get(&mut client, "/page", "fr");
            response.text() == text || response.status == 404 && text == "none"
        });
    };
    wait_for("english");
    let french = site.file("page.fr.html", "le français");
    wait_for("le français");
    fs::write(&french, "autrement").unwrap();
    wait_for("autrement");
    fs::remove_file(french).unwrap();
    wait_for("english");
    fs::remove_file(site.path().join("page.en.html")).unwrap();
    wait_for("none");
    site.file("page.html", "again");
    wait_for("again");
}

/// Without caches, with small caches and with large files the choice is the same.
#[test]
fn cache_settings_do_not_change_choice() {
    let site = Site::new();
    for (language, size) in [("en", 100), ("fr", 200_000)] {
        site.file(&format!("page.{language}.html"), language.repeat(size));
    }
    let none = "revalidate = '0s', path_entries = 0, head_bytes = 0, content_bytes = 0, max_content_file_bytes = 0, \
                descriptors = 0, negotiation_entries = 0";
    for caches in [
        none,
        "path_entries = 1, negotiation_entries = 1",
        "content_bytes = 0, max_content_file_bytes = 0, descriptors = 0",
    ] {
        let server = serve(&site, caches, "");
        let mut client = server.connect();
        for _ in 0..3 {
            assert_eq!(get(&mut client, "/page", "en").text(), "en".repeat(100), "{caches}");
            assert_eq!(get(&mut client, "/page", "fr").text(), "fr".repeat(200_000), "{caches}");
        }
    }
}
