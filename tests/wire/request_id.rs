//! IDs of requests (`request_ids`): the same one for the application, the response and the access log.

use std::collections::HashSet;
use std::fs;

use super::frames::*;
use super::harness::*;
use super::http_backends::Backend;

/// Serves a file and an application that returns its requests; the log is at the second name.
fn serve(site: &Site, app: &Backend, recipients: &str) -> (Server, std::path::PathBuf) {
    site.file("a.txt", "static");
    let log = site.path().with_extension("log");
    let toml = format!(
        "listen = [\"127.0.0.1:0\"]\ntrusted_proxies = [\"127.0.0.0/8\", \"::1\"]\n\
         [log]\naccess = {log:?}\nformat = '$request_id'\nflush = '10ms'\n\
         [[site]]\nroot = {:?}\nrequest_ids = \"{recipients}\"\n[[site.app]]\nmatch = \"/app/**\"\nhttp = [\"{}\"]\n",
        site.path(),
        app.address
    );
    let config = site.path().with_extension("toml");
    fs::write(&config, toml).unwrap();
    (Server::start(&["--config", config.to_str().unwrap()]), log)
}

/// The IDs in a request as its application got it.
fn told(response: &Response) -> Vec<String> {
    let text = response.text();
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(name, _)| name.eq_ignore_ascii_case("X-Request-Id")).map(|(_, id)| id.to_owned()).collect()
}

#[test]
fn application_response_and_log_have_same_random_id() {
    let (site, app) = (Site::new(), Backend::echo());
    let (server, log) = serve(&site, &app, "all");
    let mut ids = Vec::new();
    let mut clients = [server.connect(), server.connect()];
    for client in &mut clients {
        // What a client sends is not kept.
        for fields in [&[][..], &[("X-Request-Id", "mine")]] {
            let response = client.request("GET", "/app/x", fields);
            let id = response.field("X-Request-Id").expect("an ID").to_owned();
            assert_eq!(told(&response), std::slice::from_ref(&id));
            ids.push(id);
            for _ in 0..2 {
                let file = client.request("GET", "/a.txt", fields);
                assert_eq!(file.text(), "static");
                ids.push(file.field("X-Request-Id").expect("an ID").to_owned());
            }
            ids.push(client.request("GET", "/none", fields).field("X-Request-Id").expect("an ID").to_owned());
        }
    }
    assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())), "{ids:?}");
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "{ids:?}");
    // Workers write their lines in any order.
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("the log", || lines().lines().count() == ids.len());
    assert_eq!(lines().lines().collect::<HashSet<_>>(), ids.iter().map(String::as_str).collect());
    fs::remove_file(&log).unwrap();
}

#[test]
fn id_of_trusted_proxy_is_kept() {
    let (site, app) = (Site::new(), Backend::echo());
    let (server, log) = serve(&site, &app, "all");
    let mut client = server.connect();
    let proxied = ("X-Forwarded-For", "192.0.2.1");
    let response = client.request("GET", "/app/x", &[proxied, ("X-Request-Id", "Root=1-5f0e")]);
    assert_eq!(
        (response.field("X-Request-Id"), told(&response)),
        (Some("Root=1-5f0e"), vec!["Root=1-5f0e".to_owned()])
    );
    // One that could be something else in a log is replaced.
    let response = client.request("GET", "/app/x", &[proxied, ("X-Request-Id", "a \"b\"")]);
    let id = response.field("X-Request-Id").expect("an ID");
    assert_eq!((id.len(), told(&response)), (32, vec![id.to_owned()]));
    fs::remove_file(&log).unwrap();
}

#[test]
fn streams_of_http2_have_an_id_each() {
    let (site, app) = (Site::new(), Backend::echo());
    let (server, log) = serve(&site, &app, "all");
    let mut http2 = Http2::connect(&server);
    let streams = ["/app/x", "/a.txt", "/app/y", "/a.txt"].map(|path| http2.request("GET", path, &[]));
    let ids: HashSet<String> = streams
        .into_iter()
        .map(|stream| http2.response(stream).field("x-request-id").expect("an ID").to_owned())
        .collect();
    assert_eq!(ids.len(), 4);
    fs::remove_file(&log).unwrap();
}

#[test]
fn ids_are_not_given_to_clients_or_at_all_unless_configured() {
    for (recipients, is_told) in [("off", false), ("applications", true)] {
        let (site, app) = (Site::new(), Backend::echo());
        let (server, log) = serve(&site, &app, recipients);
        let mut client = server.connect();
        let response = client.get("/app/x");
        assert_eq!((response.field("X-Request-Id"), told(&response).len()), (None, usize::from(is_told)));
        assert_eq!(client.get("/a.txt").field("X-Request-Id"), None);
        // Without IDs, an application gets what the client sends.
        let response = client.request("GET", "/app/x", &[("X-Request-Id", "mine")]);
        assert_eq!(told(&response) == ["mine"], !is_told);
        fs::remove_file(&log).unwrap();
    }
}
