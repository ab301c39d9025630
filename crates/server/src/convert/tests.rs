//! Conversions of whole configurations: expected outputs in `tests/golden/convert`, and that the server accepts them.

use std::path::{Path, PathBuf};

use super::tree::Directive;
use super::{Converted, convert};
use crate::config;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/convert")
}

/// Checks that the server finds no error in a configuration but that files are absent.
fn check_accepted(text: &str) {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("amped.toml");
    std::fs::write(&path, text).expect("written");
    let Err(error) = config::check(&config::cli::Check { config: path }) else { return };
    let absent = ["does not exist", "cannot read", "No such file", "cannot resolve"];
    for problem in error.problems() {
        assert!(absent.iter().any(|words| problem.message().contains(words)), "{}\n{text}\n{error}", problem.message());
    }
}

#[test]
fn conversions_match_golden_files() {
    let mut number = 0;
    for entry in std::fs::read_dir(golden()).expect("the directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|ending| ending != "conf") {
            continue;
        }
        number += 1;
        let Converted { text, left, warnings } = convert(&path).expect("valid");
        let expected = path.with_extension("toml");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&expected, &text).expect("written");
        }
        let expected = std::fs::read_to_string(&expected).unwrap_or_default();
        assert!(text == expected, "{} differs; run with UPDATE=1 and read the difference\n{text}", path.display());
        for line in left.iter().chain(&warnings) {
            assert!(text.contains(&format!("# {line}\n")), "{line}");
        }
        check_accepted(&text);
    }
    assert!(number >= 4, "{number}");
}

#[test]
fn debian_default_configuration_is_converted() {
    let Converted { text, left, warnings } =
        convert(Path::new("/etc/nginx/nginx.conf")).expect("apt package nginx is installed");
    assert!(left.is_empty() && warnings.is_empty(), "{left:?}");
    for line in ["listen = [\"*:80\"]", "user = \"www-data\"", "root = \"/var/www/html\"", "compress = [\"gzip\"]"] {
        assert!(text.lines().any(|own| own == line), "{line}\n{text}");
    }
    check_accepted(&text);
    let site = convert(Path::new("/etc/nginx/sites-available/default")).expect("it is installed");
    assert!(site.left.is_empty() && site.text.contains("root = \"/var/www/html\""), "{site:?}");
}

#[test]
fn random_configuration_does_not_panic() {
    use proptest::prelude::*;
    let word = "(location|server|listen|return|rewrite|if|root|alias|try_files|error_page|add_header|expires|proxy_pass|fastcgi_pass|upstream\
                |allow|deny|auth_basic|limit_req|limit_req_zone|server_name|http|\\{|\\}|;|;|;|=|~|~\\*|\\^~|/|/a/|@b|=404|\\$uri|\\$host\
                |301|200|https://\\$host\\$request_uri|\"\\(\\$host\"|\"x\\)\"|zone=a:1m|rate=1r/s|unix:|\\[::\\]:1|1m|ö|\\.php\\$|all|off)";
    proptest!(ProptestConfig::with_cases(150), |(words in proptest::collection::vec(word, 0..30))| {
        if let Ok(directives) = directives(&words.join(" ")) {
            super::main_block::page(&directives).text("x");
        }
    });
}

/// The directives of a text, with the values of variables that have one.
fn directives(text: &str) -> Result<Vec<Directive>, String> {
    let mut directives = super::tree::parse(text)?;
    super::variables::substitute(&mut directives);
    Ok(directives)
}

/// The page of a configuration.
fn page(text: &str) -> super::page::Page {
    let page = super::main_block::page(&directives(text).expect("valid"));
    check_accepted(&page.text("nginx.conf"));
    page
}

#[test]
fn directives_that_change_responses_are_not_ignored() {
    let tls = "listen 443 ssl; ssl_certificate a.pem; ssl_certificate_key a.key;";
    for directive in [
        "ssl_protocols TLSv1.2;",
        "ssl_protocols TLSv1 TLSv1.2 TLSv1.3;",
        "ssl_ciphers HIGH;",
        "ssl_ecdh_curve secp521r1;",
        "ssl_conf_command Options KTLS;",
        "ssl_password_file p;",
        "ssl_verify_client on; ssl_client_certificate ca.pem; ssl_verify_depth 1;",
        "ssl_verify_client on; ssl_client_certificate ca.pem; ssl_trusted_certificate b.pem;",
        "ssl_verify_client optional_no_ca;",
        "underscores_in_headers on;",
        "merge_slashes off;",
        "etag off;",
        "if_modified_since off;",
        "client_body_in_file_only on;",
        "client_body_temp_path /x;",
        "gzip_static always;",
        "location /a/ { proxy_pass http://a.test; proxy_next_upstream http_503 timeout; }",
        "location /a/ { proxy_pass http://a.test; proxy_next_upstream error http_502 non_idempotent; }",
        "location /a/ { proxy_pass http://a.test; proxy_next_upstream error timeout invalid_header; }",
        "limit_req_status 503;",
        "ssl_reject_handshake on;",
        "location /a/ { proxy_pass http://10.0.0.1; proxy_redirect ~^http://(.*)$ /$1; }",
        "location /a/ { proxy_pass http://10.0.0.1; proxy_redirect http://a/ /$arg_x; }",
        "location /a/ { proxy_pass http://10.0.0.1; proxy_redirect default; proxy_redirect http://a/ /; }",
        "location /a/ { proxy_pass http://10.0.0.1; proxy_redirect off; }",
        "autoindex_format json;",
        "location /a/ { send_timeout 3s; }",
        "location /a/ { keepalive_timeout 3s; }",
        "if ($arg_a) { break; }",
        "location /a/ { proxy_pass https://10.0.0.1; proxy_ssl_crl c; }",
        "location /a/ { proxy_pass https://10.0.0.1; proxy_ssl_ciphers HIGH; }",
        "location /a/ { proxy_pass https://10.0.0.1; proxy_ssl_server_name off; }",
        "location /a/ { proxy_pass http://10.0.0.1; proxy_send_timeout 3s; }",
    ] {
        let left = page(&format!("server {{ {tls} {directive} }}")).left;
        assert_eq!(left.len(), 1, "{directive}: {left:?}");
    }
    for directive in [
        "ssl_protocols TLSv1.3 TLSv1.2;",
        "ssl_prefer_server_ciphers on;",
        "ssl_session_tickets off;",
        "client_body_buffer_size 1m;",
        "underscores_in_headers off;",
        "merge_slashes on;",
        "chunked_transfer_encoding on;",
        "ssl_reject_handshake off;",
        "location /a/ { proxy_pass http://10.0.0.1; proxy_redirect default; }",
        "location /a/ { proxy_pass http://10.0.0.1; proxy_set_header Host $host; proxy_redirect off; }",
        "proxy_intercept_errors off;",
        "uninitialized_variable_warn off;",
        "http2_chunk_size 4k;",
        "break;",
        "location /a/ { proxy_pass http://10.0.0.1; proxy_send_timeout 60s; }",
    ] {
        let left = page(&format!("server {{ {tls} {directive} }}")).left;
        assert!(left.is_empty(), "{directive}: {left:?}");
    }
    // Without TLS these have no effect.
    assert!(page("ssl_protocols TLSv1; ssl_ciphers HIGH; server { listen 80; }").left.is_empty());
    let text =
        page("server { listen 80; return 410; break; return 411; } worker_shutdown_timeout 5s; http2 off;").text("x");
    assert!(text.contains("deadline = \"5s\"") && text.contains("410") && !text.contains("411"), "{text}");
}

#[test]
fn limits_of_path_are_one_table() {
    let zones = "limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s; limit_conn_zone $remote_addr zone=b:1m;";
    let tables = |inner: &str| {
        let page = page(&format!("{zones} server {{ {inner} }}"));
        let tables: Vec<String> = page.sites[0].tables("limit").map(ToString::to_string).collect();
        (tables.join("\n"), page.left.len())
    };
    let check = |inner: &str, expected: &str, left: usize| {
        let (found, notes) = tables(inner);
        assert_eq!((found.as_str(), notes), (expected, left), "{inner}");
    };
    check(
        "limit_req zone=a burst=5 delay=2; limit_conn b 3; limit_rate 10k; limit_rate_after 1m;",
        r#"{"burst":3,"concurrent":3,"match":"/**","max_delay":"300ms","rate":"10KiB/s","rate_after":"1MiB","requests":"10/s"}"#,
        0,
    );
    // A location inherits those that it has not itself, and its requests are counted apart.
    check(
        "limit_conn b 3; location /a/ { limit_rate 500; }",
        "{\"concurrent\":3,\"match\":\"/a/**\",\"rate\":\"500B/s\"}\n{\"concurrent\":3,\"match\":\"/**\"}",
        1,
    );
    check("limit_rate 500; location /a/ { limit_rate 0; }", r#"{"match":"/**","rate":"500B/s"}"#, 1);
    // The first table that matches applies.
    check("location ~ x { } location /a/ { limit_rate 500; }", r#"{"match":"/a/**","rate":"500B/s"}"#, 1);
    check("limit_req zone=a; limit_req_dry_run on;", "", 1);
    check("limit_rate $slow;", "", 1);
    check("limit_conn c 1;", "", 1);
    let by_user = "limit_req_zone $remote_user zone=u:1m rate=1r/s; server { limit_req zone=u; }";
    let page = page(by_user);
    assert!(page.sites[0].tables("limit").next().is_none() && page.text("x").contains("counts verified users"));
}

#[test]
fn fallback_to_denied_file_is_left() {
    let text = "server { location / { try_files $uri $uri/ /index.php; } location ~ php$ { return 404; } }";
    let page = super::main_block::page(&directives(text).expect("valid"));
    assert_eq!(page.left, ["nginx.conf:1: not converted: `try_files`: another location denies /index.php"]);
    check_accepted(&page.text("nginx.conf"));
}

#[test]
fn servers_at_other_addresses_are_not_served_with_the_rest() {
    let names = |text: &str| {
        let page = super::main_block::page(&directives(text).expect("valid"));
        let names: Vec<String> = page.sites.iter().map(|site| site.keys["hosts"].to_string()).collect();
        (names.concat(), page.top["listen"].to_string(), page.left.len())
    };
    let local = "server { listen 127.0.0.1:8081; server_name localhost; root /srv/private; }";
    let public = "server { listen 80; server_name a.example; root /srv/a; }";
    let expected = (r#"["a.example"]"#.to_owned(), r#"["0.0.0.0:80"]"#.to_owned(), 1);
    assert_eq!(names(&format!("{local} {public}")), expected);
    assert_eq!(names(&format!("{public} {local}")), expected);
    let other_port = local.replace("127.0.0.1:", "");
    assert_eq!(names(&format!("{other_port} {public}")), expected);
    let named = "server { listen [::]:80; server_name a.example; }";
    assert_eq!(names(named), (r#"["a.example"]"#.to_owned(), r#"["*:80"]"#.to_owned(), 1));
}

#[test]
fn site_with_tls_only_is_closed_without_it() {
    let public = "server { listen 80; server_name a.example; }";
    let secure = "listen 443 ssl; server_name b.example; ssl_certificate a.pem; ssl_certificate_key a.key;";
    let routes = |text: &str| {
        let page = super::main_block::page(&directives(text).expect("valid"));
        let routes: Vec<String> = page.sites.last().expect("a site").tables("route").map(ToString::to_string).collect();
        (routes, page.left.len(), page.warnings.len())
    };
    let closed = r#"{"deny":true,"match":"/**","when":{"scheme":"http"}}"#.to_owned();
    let refused = r#"{"deny":true,"match":"/**","status":503}"#.to_owned();
    let verified = "ssl_client_certificate ca.pem; ssl_verify_client on;";
    assert_eq!(routes(&format!("{public} server {{ {secure} }}")), (vec![closed.clone()], 0, 1));
    assert_eq!(routes(&format!("{public} server {{ {secure} {verified} }}")), (vec![closed.clone()], 0, 1));
    assert_eq!(routes(&format!("server {{ {secure} {verified} }}")), (vec![], 0, 0));
    // A certificate that is optional elsewhere would be optional here too.
    let optional = "server { listen 443 ssl; server_name c.example; ssl_certificate a.pem; ssl_certificate_key a.key;\
                    ssl_client_certificate ca.pem; ssl_verify_client optional; }";
    assert_eq!(routes(&format!("{optional} server {{ {secure} {verified} }}")).0, std::slice::from_ref(&refused));
    let other_ca = verified.replace("ca.pem", "other.pem");
    assert_eq!(routes(&format!("{optional} server {{ {secure} {other_ca} }}")).0, [refused]);
    // Without names, requests to http are redirected.
    let redirect = "server { listen 80; server_name b.example; return 301 https://$host$request_uri; }";
    assert_eq!(routes(&format!("{redirect} server {{ {secure} }}")).0, Vec::<String>::new());
}

#[test]
fn restrictions_that_nothing_knows_close_their_paths() {
    let routes = |inner: &str| {
        let page = page(&format!("server {{ {inner} }}"));
        let routes: Vec<String> = page.sites[0].tables("route").map(ToString::to_string).collect();
        (routes.join("\n"), page.left.len())
    };
    let refused = |pattern: &str| format!(r#"{{"deny":true,"match":"{pattern}","status":503}}"#);
    for directive in [
        "auth_digest x;",
        "auth_jwt x;",
        "access_by_lua_block { x; }",
        "allow $x; deny all;",
        "auth_basic $x; auth_basic_user_file y;",
        "auth_request /none;",
        "if ($remote_addr = 1) { return 403; }",
        "uwsgi_pass x;",
    ] {
        let (found, left) = routes(&format!("location /a/ {{ {directive} }}"));
        assert!(found.ends_with(&refused("/a/**")) && left > 0, "{directive} {found}");
    }
    for directive in ["auth_digest x;", "auth_jwt x;", "allow $x; deny all;", "if ($remote_addr = 1) { return 403; }"] {
        let (found, left) = routes(directive);
        assert!(found.starts_with(&refused("/**")) && left > 0, "{directive} {found}");
    }
    let (found, _) = routes("location /a/ { other { allow 10.0.0.1; deny all; } }");
    assert!(found.starts_with(&refused("/**")), "{found}");
}

#[test]
fn fields_that_clients_could_send_are_reported() {
    let left = |fields: &str| {
        page(&format!(
            "server {{ location / {{ proxy_pass http://10.0.0.1; proxy_set_header Host $host; {fields} }} }}"
        ))
        .left
        .len()
    };
    assert_eq!(left("proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Forwarded-For $remote_addr;"), 0);
    assert_eq!(left("proxy_set_header X-Client-IP $remote_addr; proxy_set_header X-Scheme $scheme;"), 0);
    assert_eq!(left("proxy_set_header X-Country $geoip_country; proxy_set_header X-Forwarded-Proto https;"), 2);
    let of_fastcgi = |params: &str| {
        let text = format!("server {{ location ~ \\.php$ {{ fastcgi_pass 10.0.0.1:9000; {params} }} }}");
        page(&text).left.len()
    };
    assert_eq!(of_fastcgi("fastcgi_param HTTPS $https if_not_empty; fastcgi_param REDIRECT_STATUS 200;"), 0);
    assert_eq!(of_fastcgi("fastcgi_param HTTPS on;"), 1);
    assert_eq!(of_fastcgi("fastcgi_param REMOTE_USER x;"), 1);
    assert_eq!(of_fastcgi("fastcgi_param SCRIPT_FILENAME /srv/index.php;"), 2);
}

/// The keys of the only application of a configuration, and how many directives are left.
fn app_of(text: &str) -> (serde_json::Value, usize) {
    let page = page(text);
    let apps: Vec<_> = page.sites[0].tables("app").collect();
    assert_eq!(apps.len(), 1, "{text}");
    (apps[0].clone(), page.left.len())
}

#[test]
fn fields_of_forwarded_requests_are_converted() {
    let fields = "proxy_set_header X-Real-IP $remote_addr; proxy_set_header Accept-Encoding \"\"; proxy_set_header X-A ${scheme}s;";
    let (app, left) = app_of(&format!(
        "server {{ location / {{ proxy_pass http://10.0.0.1; proxy_set_header Host $host; {fields} }} }}"
    ));
    assert_eq!(
        app["request_fields"],
        serde_json::json!({ "X-Real-IP": "$remote_addr", "Accept-Encoding": "", "X-A": "${scheme}s" })
    );
    assert_eq!(left, 0);
}

#[test]
fn first_beginning_of_location_that_matches_is_converted() {
    let (app, left) = app_of(
        "server { proxy_redirect http://a/ /; location / { proxy_pass http://10.0.0.1; proxy_redirect http://b/c/ /d/;
         proxy_redirect http:// $scheme://; proxy_redirect http://b/ /; } }",
    );
    assert_eq!(app["map_location"], serde_json::json!({ "http://b/c/": "/d/", "http://": "$scheme://" }));
    assert_eq!(left, 0);
}

#[test]
fn path_of_backend_is_converted_if_it_replaces_a_directory() {
    let path = |location: &str, pass: &str| {
        let (app, left) = app_of(&format!("server {{ location {location} {{ proxy_pass http://10.0.0.1{pass}; }} }}"));
        (app["backend_path"].as_str().map(str::to_owned), left)
    };
    let converted = |path: &str| (Some(path.to_owned()), 0);
    assert_eq!(path("/a/", "/"), converted("/"));
    assert_eq!(path("/a/", "/b/c/"), converted("/b/c/"));
    assert_eq!(path("/", "/b/"), converted("/b/"));
    assert_eq!(path("/a/", "/a/"), (None, 0));
    assert_eq!(path("/a", "/b"), (None, 1));
    assert_eq!(path("/a/", "/b"), (None, 1));
    // What is below it gets 503, with a note.
    assert_eq!(path("= /a", "/b"), (Some("/b".to_owned()), 1));
    for (location, pass) in [("= /", "/home"), ("= /a/", "/b"), ("= /a", "/b?c=d"), ("/a/", "/b/?c=d/")] {
        let page = page(&format!("server {{ location {location} {{ proxy_pass http://10.0.0.1{pass}; }} }}"));
        let all: Vec<_> = page.sites[0].tables("app").filter(|app| !app["backend_path"].is_null()).collect();
        assert!(all.is_empty() && !page.left.is_empty(), "{location} {pass}");
    }
    let rewritten = "server { location /a/ { rewrite ^/a/b$ /a/c break; proxy_pass http://10.0.0.1/d/; } }";
    assert!(page(rewritten).sites[0].tables("app").all(|app| app["backend_path"].is_null()));
}

#[test]
fn variables_with_one_value_are_replaced() {
    let parts = "set $app web; set $port 81; set $both $app:$port; proxy_pass http://$both;";
    let address = |text: &str| app_of(text).0["http"].as_str().map(str::to_owned);
    assert_eq!(address(&format!("server {{ location / {{ {parts} }} }}")).as_deref(), Some("web:81"));
    assert_eq!(
        address("server { set $a 10.0.0.1; location / { proxy_pass http://${a}:82; } location = /b { set $b 1; return 404; } }")
            .as_deref(),
        Some("10.0.0.1:82")
    );
    assert!(page("server { set $limit_rate 50k; set $args \"\"; }").left.len() == 2, "nginx itself reads them");
    let asked = "location = /auth { set $a 10.0.0.1; proxy_pass http://$a:81/auth; }";
    assert_eq!(address(&format!("server {{ {asked} }}")).as_deref(), Some("10.0.0.1:81"));
    // Each location has its own.
    let two = "location /a/ { set $a 10.0.0.1; proxy_pass http://$a; } location /b/ { set $a 10.0.0.2; proxy_pass http://$a; }";
    let page_of_two = page(&format!("server {{ {two} }}"));
    let addresses: Vec<String> = page_of_two.sites[0].tables("app").map(|app| app["http"].to_string()).collect();
    assert_eq!((addresses.concat().as_str(), page_of_two.left.len()), (r#""10.0.0.1:80""10.0.0.2:80""#, 0));
    for uncertain in [
        "set $a 10.0.0.1; if ($arg_b) { set $a 10.0.0.2; } location / { proxy_pass http://$a; }",
        "set $a 10.0.0.1; location /b { set $a 10.0.0.2; rewrite ^ /c last; } location / { proxy_pass http://$a; }",
        "location / { set $a 10.0.0.1; set $a 10.0.0.2; proxy_pass http://$a; }",
        "location / { set $a $host; proxy_pass http://$a; }",
        "location / { if ($arg_b) { break; } set $a 10.0.0.1; proxy_pass http://$a; }",
        "location / { if ($a) { return 403; } set $a 10.0.0.1; proxy_pass http://$a; }",
        "location / { auth_request_set $a $upstream_http_b; set $a 10.0.0.1; proxy_pass http://$a; }",
        "location / { set $a 10.0.0.1; location /b { proxy_pass http://$a; } }",
        "location / { set $a 10.0.0.1; proxy_pass http://$a/; }",
        "location /a/ { set $a 10.0.0.1; proxy_pass http://$a/b/; }",
        "set $a 10.0.0.1; location ~ ^/t/(?<a>[a-z]+)/ { proxy_pass http://$a; }",
        "set $host 10.0.0.1; location / { proxy_pass http://$host; }",
    ] {
        let page = page(&format!("server {{ {uncertain} }}"));
        assert!(page.sites[0].tables("app").all(|app| app["http"].is_null()) && !page.left.is_empty(), "{uncertain}");
    }
}

#[test]
fn redirect_to_host_of_request_is_for_the_hosts_of_its_condition() {
    let text = "server { server_name a.example www.a.example; if ($host ~ ^www) { return 302 https://$host/x; } }";
    let page = page(text);
    let routes: Vec<String> = page.sites[0].tables("route").map(ToString::to_string).collect();
    let expected = r#"{"match":"/**","query":"drop","redirect":"https://www.a.example/x","status":302,"when":{"hosts":["www.a.example"]}}"#;
    assert_eq!(routes, [expected]);
}

#[test]
fn caches_are_converted_if_their_pages_are_for_the_same_clients() {
    let path = "proxy_cache_path /c keys_zone=p:1m inactive=1h; fastcgi_cache_path /f keys_zone=f:1m;";
    let tables = |text: &str| {
        let page = page(&format!("{path} server {{ location / {{ {text} }} }}"));
        let keys = ["cache", "cache_by_status", "stale_while_revalidate", "stale_if_error", "when"];
        let table = |table: &serde_json::Value| {
            let known = table.as_object().expect("a table").iter().filter(|(key, _)| keys.contains(&key.as_str()));
            serde_json::Value::Object(known.map(|(key, value)| (key.clone(), value.clone())).collect()).to_string()
        };
        let tables: Vec<String> = page.sites[0].tables("app").map(table).collect();
        // Without the notes about the two directories.
        (tables.join("\n"), page.left.len() - 2)
    };
    let check = |text: &str, expected: &str, left: usize| {
        for (kind, zone, pass) in [("proxy", "p", "http://10.0.0.1"), ("fastcgi", "f", "10.0.0.1:9000")] {
            let text = text.replace("X_", &format!("{kind}_")).replace("ZONE", zone);
            let expected = expected.replace("INACTIVE", if kind == "proxy" { "3600s" } else { "600s" });
            let found = tables(&format!("{kind}_pass {pass}; {text}"));
            assert_eq!(found, (expected, left), "{text}");
        }
    };
    let any = "X_cache ZONE; X_cache_valid 200 203 204 300 301 308 404 410 10m;";
    let all = |more: &str| format!("{any} {more}");
    check("X_cache ZONE;", r#"{"cache":"0s"}"#, 0);
    check(&all(""), r#"{"cache":"600s"}"#, 0);
    let some = |by_status: &str| format!(r#"{{"cache":"0s","cache_by_status":{by_status}}}"#);
    check("X_cache ZONE; X_cache_valid 1m;", &some(r#"{"200":"60s","301":"60s","302":"60s"}"#), 0);
    check("X_cache ZONE; X_cache_valid 404 206 1m;", &some(r#"{"404":"60s"}"#), 1);
    let two = "X_cache ZONE; X_cache_valid 404 1m; X_cache_valid any 5s; X_cache_valid 500 1m;";
    check(two, &some(r#"{"2xx":"5s","3xx":"5s","404":"60s","4xx":"5s","5xx":"5s"}"#), 0);
    check("X_cache off; X_cache_valid 1m; X_cache_key $cookie_a;", "{}", 0);
    check("X_cache $zone; X_cache_valid 1m;", "{}", 1);
    check(&all("X_cache_lock on; X_cache_revalidate on; X_cache_methods GET HEAD;"), r#"{"cache":"600s"}"#, 0);
    check(&all("X_cache_key \"$scheme$request_method$host${request_uri}\";"), r#"{"cache":"600s"}"#, 0);
    check(&all("X_cache_min_uses 3;"), r#"{"cache":"600s"}"#, 1);
    check(&all("X_ignore_headers Set-Cookie Cache-Control;"), r#"{"cache":"600s"}"#, 1);
    // Pages of other clients.
    for key in ["$request_uri$cookie_session", "$uri$remote_user", "$host$http_accept_language", "$my_key"] {
        check(&all(&format!("X_cache_key {key};")), "{}", 1);
    }
    for exception in ["$skip", "$request_body", "1", "$args", "\"$cookie_a$cookie_b\""] {
        check(&all(&format!("X_cache_bypass {exception}; X_no_cache {exception};")), "{}", 1);
    }
    // Exceptions.
    let cookie = r#"{"when":{"header":{"Cookie":"~(?i:(^|[;, ])session *= *([^0; ]|0[^; ]))"}}}"#;
    let field = r#"{"when":{"header":{"X-User":"~^([^0]|0.)"}}}"#;
    let cached = r#"{"cache":"600s"}"#;
    check(&all("X_cache_bypass $cookie_session; X_no_cache $cookie_session;"), &format!("{cookie}\n{cached}"), 0);
    check(
        &all("X_cache_bypass $cookie_session $http_x_user; X_no_cache $cookie_session;"),
        &format!("{cookie}\n{field}\n{cached}"),
        1,
    );
    check(
        &all("X_no_cache $upstream_http_set_cookie $arg_a;"),
        &format!("{}\n{cached}", r#"{"when":{"query":{"a":"~^([^0]|0.)"}}}"#),
        1,
    );
    // Stale pages.
    let updating = r#"{"cache":"600s","stale_while_revalidate":"INACTIVE"}"#;
    check(&all("X_cache_use_stale updating; X_cache_background_update on;"), updating, 0);
    check(&all("X_cache_use_stale updating;"), updating, 1);
    let errors = r#"{"cache":"600s","stale_if_error":"INACTIVE"}"#;
    check(&all("X_cache_use_stale error timeout invalid_header http_500 http_502 http_503 http_504;"), errors, 1);
    check(&all("X_cache_use_stale error;"), errors, 2);
    check(&all("X_cache_use_stale error http_404;"), errors, 3);
    check(&all("X_cache_use_stale off;"), cached, 0);
}

#[test]
fn variables_by_media_type_become_header_rules() {
    let rules = |entries: &str, uses: &str| {
        let page = page(&format!("map $sent_http_content_type $v {{ {entries} }} server {{ {uses} }}"));
        let tables: Vec<String> = page.sites[0].tables("headers").map(|table| table.to_string()).collect();
        (tables.join("\n"), page.left.len())
    };
    let (found, left) = rules("default 1M; text/html epoch; ~*^image/ 1y; ~css 2d;", "expires $v;");
    let expected = [
        r#"{"cache_control":"max-age=2592000","match":"/**"}"#,
        r#"{"cache_control":"max-age=172800","match":"/**","media_type":"~css"}"#,
        r#"{"cache_control":"max-age=31536000","match":"/**","media_type":"~*^image/"}"#,
        r#"{"cache_control":"no-cache","match":"/**","media_type":"text/html"}"#,
    ];
    assert_eq!((found.as_str(), left), (expected.join("\n").as_str(), 0));
    let (found, left) = rules("~*text/html DENY;", "add_header X-Frame-Options $v always; add_header X-A b;");
    let expected = [
        r#"{"errors":false,"match":"/**","set":{"X-A":"b"}}"#,
        r#"{"match":"/**","media_type":"~*text/html","set":{"X-Frame-Options":"DENY"}}"#,
    ];
    assert_eq!((found.as_str(), left), (expected.join("\n").as_str(), 0));
    // A file has a type, and an application's response may have none.
    let (found, left) = rules("default 1d; \"\" off; text/css max;", "expires $v;");
    assert_eq!((found.contains("\"media_type\":\"\""), found.lines().count(), left), (false, 2, 0), "{found}");
    let (found, left) = rules("\"\" none; text/css some;", "add_header X-A $v;");
    assert_eq!((found.contains("\"media_type\":\"\""), found.lines().count(), left), (true, 2, 0), "{found}");
    let (found, left) =
        rules("default public; \"\" no-store; text/html private;", "expires 1d; add_header Cache-Control $v;");
    let expected = [
        r#"{"cache_control":"max-age=86400","match":"/**"}"#,
        r#"{"cache_control":"public, max-age=86400","match":"/**"}"#,
        r#"{"cache_control":"private, max-age=86400","match":"/**","media_type":"text/html"}"#,
    ];
    assert_eq!((found.as_str(), left), (expected.join("\n").as_str(), 0));
    // A rule cannot take back a field, has no parameters of a type, and no variables.
    for entries in ["default a; text/html \"\";", "text/html $host;", "\"text/html; charset=utf-8\" a;", "~(?=x) a;"] {
        let (found, left) = rules(entries, "add_header X-A $v;");
        assert!(found.is_empty() && left > 0, "{entries}: {found}");
    }
    assert!(rules("default 1M; text/html off;", "expires $v;").1 > 0);
    assert!(rules("text/html soon;", "expires $v;").1 > 0);
}

#[test]
fn location_replaces_fields_of_the_site() {
    let rules = |location: &str| {
        let page = page(&format!(
            "map $sent_http_content_type $frames {{ text/html DENY; }}
             server {{ add_header X-A site; add_header X-B b; location /a/ {{ {location} }} }}"
        ));
        let tables = page.sites[0].tables("headers").filter(|table| table["match"] == "/a/**");
        (tables.map(|table| table.to_string()).collect::<Vec<_>>().join("\n"), page.left.len())
    };
    let removed = |names: &str| format!(r#"{{"match":"/a/**","remove":[{names}]}}"#);
    let cookie = "auth_request /auth; auth_request_set $c $upstream_http_set_cookie; add_header Set-Cookie $c; }
        location = /auth { internal; proxy_pass http://10.0.0.2; proxy_pass_request_body off;";
    assert_eq!(rules(cookie).0, removed(r#""X-A","X-B""#));
    let typed = r#"{"errors":false,"match":"/a/**","media_type":"text/html","set":{"X-A":"DENY"}}"#;
    let expected = format!("{}\n{typed}", removed(r#""X-A","X-B""#));
    assert_eq!(rules("add_header X-A $frames;"), (expected, 0));
    assert_eq!(rules("add_header X-A 1; add_header X-A 2;").1, 1);
    assert_eq!(rules("proxy_pass http://10.0.0.1; expires 1d;").1, 1);
}

#[test]
fn cache_control_that_a_location_takes_back_is_reported() {
    let left =
        |server: &str, location: &str| page(&format!("server {{ {server} location /a/ {{ {location} }} }}")).left.len();
    for (server, location, expected) in [
        ("expires 1d;", "expires off;", 1),
        ("add_header Cache-Control public;", "add_header X-A b;", 1),
        ("expires 1d;", "add_header X-A b;", 0),
        ("expires 1d;", "expires 2d;", 0),
        ("", "expires off;", 0),
        ("expires off;", "add_header X-A b;", 0),
        ("add_header Cache-Control public;", "expires 1d;", 0),
    ] {
        assert_eq!(left(server, location), expected, "{server} {location}");
    }
    let page = page("server { add_header Cache-Control public; location /a/ { expires 1d; } }");
    let values: Vec<_> = page.sites[0].tables("headers").map(|table| table["cache_control"].as_str()).collect();
    assert_eq!(values, [Some("public"), Some("max-age=86400, public")]);
}

#[test]
fn early_hints_of_applications_reach_all_clients() {
    let left = |value: &str| page(&format!("server {{ location / {{ early_hints {value}; }} }}")).left.len();
    assert_eq!((left("1"), left("$http2$http3")), (0, 1));
}

#[test]
fn field_of_an_authorization_is_copied_and_not_set() {
    let text = "server { location / { auth_request /auth; auth_request_set $user $upstream_http_remote_user;
        proxy_set_header Remote-User $user; proxy_set_header X-Own a; proxy_pass http://10.0.0.1; }
        location = /auth { internal; proxy_pass http://10.0.0.2; proxy_pass_request_body off; } }";
    let page = page(text);
    let fields: Vec<_> = page.sites[0].tables("app").filter_map(|app| app.get("request_fields")).collect();
    assert_eq!((fields, page.left.len()), (vec![&serde_json::json!({ "X-Own": "a" })], 0));
    let copied = page.sites[0].tables("authorize").find_map(|own| Some(own.get("copy_to_request")?.to_string()));
    assert_eq!(copied.as_deref(), Some(r#"["Remote-User"]"#));
}

#[test]
fn field_of_an_authorization_gets_another_name_and_cookies_reach_the_client() {
    let page = page(
        "server { location / { auth_request /auth; auth_request_set $user $upstream_http_x_auth_request_user;
        proxy_set_header X-User $user; auth_request_set $cookie $upstream_http_set_cookie; add_header Set-Cookie $cookie;
        proxy_pass http://10.0.0.1; }
        location = /auth { internal; proxy_pass http://10.0.0.2; proxy_pass_request_body off; } }",
    );
    let fields: Vec<_> = page.sites[0].tables("app").filter_map(|app| app.get("request_fields")).collect();
    let renamed = serde_json::json!({ "X-User": "$http_x_auth_request_user" });
    assert_eq!((fields, page.left.len()), (vec![&renamed], 0), "{:?}", page.left);
    let table = page.sites[0].tables("authorize").find(|own| own["directory"] == "/").unwrap().clone();
    assert_eq!(table["copy_to_request"], serde_json::json!(["x-auth-request-user"]));
    assert_eq!(table["copy_to_response"], serde_json::json!(["Set-Cookie"]));
    // The application that is asked gets nothing that a client claims.
    let page = super::tests::page(
        "server { auth_request /auth; auth_request_set $user $upstream_http_x_auth_request_user; proxy_set_header X-User $user;
        auth_request_set $name $upstream_http_x_name; proxy_set_header X-Name $name;
        location / { proxy_pass http://10.0.0.1; }
        location = /auth { internal; proxy_pass http://10.0.0.2; proxy_pass_request_body off; } }",
    );
    let fields = |pattern: &str| {
        page.sites[0].tables("app").find(|app| app["match"] == pattern).unwrap()["request_fields"].clone()
    };
    assert_eq!(fields("/auth"), serde_json::json!({ "X-User": "", "X-Name": "" }));
    assert_eq!(fields("/**"), renamed);
    // Where none is required, nginx sends an empty field, which is none.
    let (app, _) = app_of(
        "server { auth_request /auth; auth_request_set $user $upstream_http_user; location / { auth_request off;
         proxy_set_header User $user; proxy_pass http://10.0.0.1; } location = /auth { return 404; } }",
    );
    assert_eq!(app["request_fields"], serde_json::json!({ "User": "" }));
}

#[test]
fn servers_of_an_upstream_keep_their_shares() {
    let http = |servers: &str| {
        let text = format!("upstream u {{ {servers} }} server {{ location / {{ proxy_pass http://u; }} }}");
        let page = page(&text);
        let http = page.sites[0].tables("app").find_map(|app| Some(app.get("http")?.to_string())).unwrap();
        (http, page.left.len())
    };
    let check = |servers: &str, expected: &str, left: usize| assert_eq!(http(servers), (expected.to_owned(), left));
    check("server a weight=3; server b:81 backup;", r#"["a:80 weight=3","b:81 backup"]"#, 0);
    // The server would refuse backups alone.
    check("server a down; server b backup weight=2;", r#"["b:80 weight=2"]"#, 0);
    check("server a weight=5000; server b weight=1;", r#"["a:80","b:80"]"#, 1);
    check("server a slow_start=3s; server b;", r#"["a:80","b:80"]"#, 1);
}

#[test]
fn addresses_of_satisfy_any_need_no_password() {
    let check = |rules: &str, exempt: Option<&str>, left: usize| {
        let password = "auth_basic x; auth_basic_user_file f;";
        let page = page(&format!("server {{ root /a; location /a/ {{ satisfy any; {rules} {password} }} }}"));
        let exempts = |table: &serde_json::Value| table["exempt"].to_string();
        let table = page.sites[0].tables("auth").next().map(exempts);
        assert_eq!((table.as_deref(), page.left.len()), (exempt, left), "{rules}: {:?}", page.left);
    };
    check("allow 10.0.0.0/8; deny all;", Some(r#"["10.0.0.0/8"]"#), 0);
    check("allow 10.0.0.0/8; allow 127.0.0.1; deny 10.0.0.0/7;", Some(r#"["10.0.0.0/8","127.0.0.1"]"#), 0);
    check("allow all;", Some(r#"["0.0.0.0/0","::/0"]"#), 0);
    check("deny all; allow 10.0.0.0/8;", Some("null"), 0);
    check("allow unix:; deny all;", Some("null"), 0);
    check("", Some("null"), 0);
    // The location is refused.
    let is_refused = |rules: &str| {
        let text = format!("server {{ root /a; location /a/ {{ satisfy any; {rules} }} location /b/ {{ }} }}");
        let page = page(&text);
        let refused = page.sites[0].tables("route").any(|route| route["match"] == "/a/**" && route["deny"] == true);
        assert!(refused && !page.left.is_empty(), "{rules}: {:?}", page.left);
    };
    let password = "auth_basic x; auth_basic_user_file f;";
    is_refused(&format!("deny 10.0.0.1; allow 10.0.0.0/8; {password}"));
    is_refused(&format!("allow 10.0.0.1/8; deny all; {password}"));
    is_refused(&format!("auth_request /c; {password}"));
}

#[test]
fn statuses_of_retries_are_converted_if_there_is_another_server() {
    let converted = |servers: &str| {
        let text = format!(
            "upstream u {{ {servers} }}
             server {{ location / {{ proxy_pass http://u; proxy_next_upstream error timeout http_502 http_503; }} }}"
        );
        let page = page(&text);
        let statuses = page.sites[0].tables("app").find_map(|app| Some(app.get("retry_statuses")?.to_string()));
        (statuses, page.left)
    };
    let statuses = Some("[502,503]".to_owned());
    for (servers, expected) in [
        ("server 10.0.0.1; server 10.0.0.2;", &statuses),
        ("server 10.0.0.1; server 10.0.0.2 backup;", &statuses),
        ("server a.test;", &statuses),
        ("server 10.0.0.1; server 10.0.0.2 down;", &None),
        ("server 10.0.0.1;", &None),
    ] {
        assert_eq!(converted(servers), (expected.clone(), vec![]), "{servers}");
    }
}

#[test]
fn error_page_for_unauthorized_clients_is_a_login_page() {
    let converted = |page_of_401: &str, rest: &str| {
        let text = format!(
            "server {{ location / {{ auth_request /auth; {page_of_401}; proxy_pass http://10.0.0.1; }}
             location = /auth {{ internal; proxy_pass http://10.0.0.2; proxy_pass_request_body off; }} {rest} }}"
        );
        let page = page(&text);
        let login = page.sites[0].tables("authorize").find_map(|own| Some(own.get("login")?.as_str()?.to_owned()));
        (login, page.left.iter().filter(|note| note.contains("`error_page")).count())
    };
    let check = |page: &str, rest: &str, login: &str| {
        assert_eq!(converted(page, rest), (Some(login.to_owned()), 0), "{page}");
    };
    let proxy = "location /oauth2/ { auth_request off; proxy_pass http://10.0.0.2; }";
    check("error_page 401 /oauth2/sign_in", proxy, "/oauth2/sign_in");
    check("error_page 401 =403 /oauth2/sign_in", proxy, "/oauth2/sign_in");
    for (back, login) in [
        ("$request_uri", "/oauth2/sign_in?rd=$request_uri"),
        ("$scheme://$host$request_uri", "/oauth2/sign_in?rd=$scheme://$host$request_uri"),
        ("$arg_back", "/oauth2/sign_in"),
    ] {
        let field = format!("proxy_set_header X-Auth-Request-Redirect {back};");
        let proxy = format!("location /oauth2/ {{ auth_request off; {field} proxy_pass http://10.0.0.2; }}");
        check("error_page 401 = /oauth2/sign_in", &proxy, login);
    }
    let redirect = |to: &str| format!("location @in {{ return 302 {to}; }} {proxy}");
    let page = "error_page 401 = @in";
    check(page, &redirect("/oauth2/start?rd=$request_uri"), "/oauth2/start?rd=$request_uri");
    check(
        page,
        &redirect("https://$http_host/oauth2/?rd=$scheme://$http_host$request_uri"),
        "/oauth2/?rd=$scheme://$host$request_uri",
    );
    check(page, &redirect("https://sso.example/?to=$request_uri"), "https://sso.example/?to=$request_uri");
    // These are none: a file, a page that needs an authorization itself, an unknown variable.
    for (page, rest) in [
        ("error_page 401 /401.html", "location = /401.html { root /srv; }"),
        ("error_page 401 /in", "location = /in { auth_request /auth; proxy_pass http://10.0.0.2; }"),
        (page, &redirect("$signin_url")),
    ] {
        let (login, left) = converted(page, rest);
        assert!(login.is_none() && left > 0, "{page} {rest}");
    }
    assert_eq!(converted("proxy_buffering on", proxy), (None, 0));
    assert_eq!(converted("error_page 401 404 = @in", &redirect("/oauth2/")), (Some("/oauth2/".to_owned()), 1));
}

#[test]
fn request_for_authorization_has_no_body() {
    let auth =
        "internal; proxy_pass http://10.0.0.2; proxy_pass_request_body off; proxy_set_header Content-Length \"\";";
    let text = format!(
        "server {{ location / {{ auth_request /auth; proxy_pass http://10.0.0.1; }} location = /auth {{ {auth} }}"
    );
    assert_eq!(page(&format!("{text} }}")).left, [""; 0]);
    let other = "location /other/ { proxy_pass http://10.0.0.3; proxy_pass_request_body off; }";
    assert_eq!(page(&format!("server {{ {other} }}")).left.len(), 1);
}
