//! Cached responses under a configuration of nginx and under its conversion: amped never sends a page to a client to which nginx would
//! not send it, and caches what nginx caches.

use std::fs;
use std::net::SocketAddr;

use super::harness::{Client, Server, program};
use super::ports::free_addresses;
use super::started_nginx::Nginx;

/// Locations of the proxy, each before the same backend.
fn servers(address: SocketAddr, backend: SocketAddr, folder: &str) -> String {
    format!(
        r#"proxy_cache_path {folder} keys_zone=pages:1m inactive=5m;
        server {{
            listen {address};
            root {folder};
            proxy_set_header Host $http_host;
            proxy_cache pages;
            proxy_cache_key $scheme$http_host$request_uri;
            location / {{ proxy_pass http://{backend}; proxy_cache_valid 1m; }}
            location /own/ {{ proxy_pass http://{backend}; }}
            location /off/ {{ proxy_pass http://{backend}; proxy_cache off; proxy_cache_valid 1m; }}
            location /by-user/ {{
                proxy_pass http://{backend};
                proxy_cache_valid 1m;
                proxy_cache_key $scheme$http_host$request_uri$cookie_user;
            }}
            location /by-session/ {{
                proxy_pass http://{backend};
                proxy_cache_valid 1m;
                proxy_cache_bypass $cookie_session $arg_fresh $http_x_user;
                proxy_no_cache $cookie_session $arg_fresh $http_x_user;
            }}
            location /by-agent/ {{
                proxy_pass http://{backend};
                proxy_cache_valid 1m;
                proxy_cache_bypass $is_known;
                proxy_no_cache $is_known;
            }}
        }}
        map $remote_user $is_known {{ default 1; "" 0; }}
        "#
    )
}

/// The backend: each response has another body, and the fields of its name.
const RESPONSES: &[(&str, &str)] = &[
    ("plain", ""),
    ("cookie", "add_header Set-Cookie a=b;"),
    ("cookie-public", "add_header Set-Cookie a=b; add_header Cache-Control \"public, max-age=60\";"),
    ("private", "add_header Cache-Control private;"),
    ("private-for-a-minute", "add_header Cache-Control \"private, max-age=60\";"),
    ("no-store", "add_header Cache-Control no-store;"),
    ("no-cache", "add_header Cache-Control no-cache;"),
    ("max-age", "add_header Cache-Control max-age=60;"),
    ("max-age-0", "add_header Cache-Control max-age=0;"),
    ("expired", "add_header Expires \"Sun, 06 Nov 1994 08:49:37 GMT\";"),
    ("accel", "add_header X-Accel-Expires 60;"),
    ("accel-0", "add_header X-Accel-Expires 0;"),
    ("accel-0-public", "add_header X-Accel-Expires 0; add_header Cache-Control \"public, max-age=60\";"),
    ("accel-past", "add_header X-Accel-Expires @1;"),
    ("accel-private", "add_header X-Accel-Expires 60; add_header Cache-Control private;"),
    ("vary", "add_header Vary X-Key;"),
    ("vary-cookie", "add_header Vary Cookie; add_header Cache-Control max-age=60;"),
    ("vary-any", "add_header Vary *; add_header Cache-Control max-age=60;"),
];

/// Fields of two requests for the same URL.
const PAIRS: &[(&str, &str)] = &[
    ("", ""),
    ("Cookie: user=a; session=1", ""),
    ("", "Cookie: user=b; session=0"),
    ("Cookie: user=a; session=1", "Cookie: user=b; session=2"),
    ("Cookie: session=; user=a", "Cookie: user=a"),
    ("Authorization: Basic dXNlcjpwdw==", ""),
    ("X-Key: 1", "X-Key: 2"),
    ("X-Key: 1", "X-Key: 1"),
    ("X-User: a", "X-User: b"),
    ("X-User: 0", "X-User:"),
    ("Cache-Control: no-cache", "Cache-Control: no-cache"),
];

#[test]
fn converted_cache_shares_no_page_that_nginx_does_not_share() {
    let [address, backend] = free_addresses();
    let folder = tempfile::tempdir().unwrap();
    let pages = tempfile::tempdir().unwrap();
    let servers = servers(address, backend, &pages.path().display().to_string());
    let (source, result) = (folder.path().join("site"), folder.path().join("amped.toml"));
    fs::write(&source, &servers).unwrap();
    let converted = program().arg("convert").arg(&source).arg("-o").arg(&result).output().unwrap();
    assert_eq!(converted.status.code(), Some(3));
    let said = String::from_utf8_lossy(&converted.stderr).into_owned();
    for why in ["not by `$cookie_user`", "no condition on `$is_known`", "pages are kept in memory"] {
        assert!(said.contains(why), "{why}\n{said}");
    }
    let mut behind = format!("server {{ listen {backend}; add_header X-None $request_id;\n");
    for (name, fields) in RESPONSES {
        // `add_header` of nginx before 1.29 repeats no field, so each location has its own.
        behind += &format!("location ~ /{name}$ {{ {fields} return 200 $request_id; }}\n");
    }
    behind += "location ~ /missing$ { return 404; } }";
    let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &(servers + &behind));
    let server = Server::start(&["--config", result.to_str().unwrap(), "--listen", "127.0.0.1:0"]);

    let config = fs::read_to_string(&result).unwrap();
    let mut number = 0;
    let (mut wrong, mut shared) = (String::new(), [0, 0]);
    for place in ["", "own/", "off/", "by-user/", "by-session/", "by-agent/"] {
        for (name, _) in RESPONSES {
            for query in ["", "?fresh=1", "?fresh=0"] {
                for (first, second) in PAIRS {
                    number += 1;
                    let is_shared = |address| {
                        let ask = |fields: &str| {
                            // A host of its own, so that no other pair has these pages.
                            let end = if fields.is_empty() { "" } else { "\r\n" };
                            let mut client = Client::connect(address);
                            client.send(format!(
                                "GET /{place}{name}{query} HTTP/1.1\r\nHost: h{number}\r\nConnection: close\r\n{fields}{end}\r\n"
                            ));
                            let response = client.response("GET");
                            assert_eq!(response.status, 200, "{place}{name} {fields}");
                            response.body
                        };
                        ask(first) == ask(second)
                    };
                    let (theirs, ours) = (is_shared(address), is_shared(server.address));
                    shared = [shared[0] + usize::from(theirs), shared[1] + usize::from(ours)];
                    // Equal requests without credentials.
                    let is_plain =
                        !first.contains(": u") && first == second && !["by-user/", "by-agent/"].contains(&place);
                    let is_stricter = *name == "accel-private";
                    if ours && !theirs || is_plain && !is_stricter && ours != theirs {
                        wrong +=
                            &format!("/{place}{name}{query} {first:?}, {second:?}: nginx {theirs}, amped {ours}\n");
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}{config}");
    assert!(shared.into_iter().all(|count| count > 100), "{shared:?}");
}

/// Locations by what they cache.
const PLACES: &[(&str, &str)] = &[
    ("nothing", ""),
    ("pages", "proxy_cache_valid 1m;"),
    ("some", "proxy_cache_valid 404 302 1m; proxy_cache_valid 500 10m;"),
    ("all", "proxy_cache_valid 404 1m; proxy_cache_valid any 2m;"),
    ("default", "proxy_cache_valid 200 203 204 300 301 308 404 410 1m;"),
];

#[test]
fn converted_cache_keeps_responses_by_status_as_nginx_does() {
    // Without those that amped never caches for all, because one client can cause them.
    const STATUSES: [u16; 14] = [200, 201, 203, 204, 301, 302, 303, 307, 308, 403, 404, 410, 500, 503];
    let [address, backend] = free_addresses();
    let (folder, pages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut servers = format!(
        "proxy_cache_path {} keys_zone=pages:1m inactive=60m;\n\
         server {{ listen {address}; root {0}; proxy_set_header Host $http_host; proxy_cache pages;\n\
         proxy_cache_key $scheme$http_host$request_uri;\n",
        pages.path().display()
    );
    for (place, valid) in PLACES {
        servers += &format!("location /{place}/ {{ proxy_pass http://{backend}; {valid} }}\n");
    }
    servers += "}\n";
    let mut behind = format!("server {{ listen {backend};\n");
    for status in STATUSES {
        let field = "add_header X-Number $request_id always;";
        behind += &format!("location ~ /{status}$ {{ {field} return {status}; }}\n");
    }
    behind += "}";
    let (source, result) = (folder.path().join("site"), folder.path().join("amped.toml"));
    fs::write(&source, &servers).unwrap();
    let converted = program().arg("convert").arg(&source).arg("-o").arg(&result).output().unwrap();
    // Only the directory of the pages is left.
    let said = String::from_utf8_lossy(&converted.stderr).into_owned();
    assert!(said.contains("one directive is not converted"), "{said}");
    let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &(servers + &behind));
    let server = Server::start(&["--config", result.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let (mut wrong, mut cached) = (String::new(), 0);
    for (place, _) in PLACES {
        for status in STATUSES {
            let is_cached = |address| {
                let ask = || {
                    let response = Client::connect(address).get(&format!("/{place}/{status}"));
                    assert_eq!(response.status, status);
                    response.field("X-Number").unwrap().to_owned()
                };
                ask() == ask()
            };
            let (theirs, ours) = (is_cached(address), is_cached(server.address));
            cached += usize::from(theirs);
            if theirs != ours {
                wrong += &format!("/{place}/{status}: nginx {theirs}, amped {ours}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}{}", fs::read_to_string(&result).unwrap());
    assert!(cached > STATUSES.len(), "{cached}");
}
