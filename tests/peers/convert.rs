//! A configuration of nginx beside its conversion: both servers give the same responses.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use super::harness::{Client, Response, Server, Site, program, wait_until};
use super::ports::free_addresses;
use super::started_nginx::Nginx;
use super::{peer, said};

/// The servers of a configuration in which locations of all kinds meet.
fn servers(address: SocketAddr, backend: SocketAddr, root: &Path) -> String {
    let root = root.display();
    format!(
        r#"include /etc/nginx/mime.types;
        default_type application/octet-stream;
        absolute_redirect off;
        server {{
            listen {address};
            server_name other.example.org *.example.net;
            root {root};
            return 301 https://example.org$request_uri;
        }}
        server {{
            listen {address} default_server;
            server_name example.org;
            root {root};
            index index.html;
            error_page 404 /404.html;
            add_header X-Site "all";

            if ($arg_action = stop) {{ return 410; }}
            if ($request_method = DELETE) {{ return 403; }}
            if ($http_user_agent ~ ^Old) {{ return 302 /upgrade; }}
            rewrite ^/page/(\d+)$ /pages/$1.html last;
            rewrite ^/user/(\w+)/(\w+)$ /files/$2?by=$1 redirect;

            location = /exact {{ return 200 "exact"; }}
            location /old/ {{ return 301 /new/; }}
            location /go/ {{ return 302 $scheme://example.org$request_uri; }}
            location ^~ /static/ {{ alias {root}/assets/; add_header X-Static "yes" always; }}
            location ~ \.txt$ {{ return 403; }}
            location ~* ^/style\.css$ {{ expires 1h; }}
            location /app/ {{ try_files $uri $uri/ /app/index.html; }}
            location /app/private/ {{ deny all; }}
            location /docs/ {{ root {root}/more; }}
            location /hidden/ {{ internal; }}
            location /gone {{ return 410; }}
            location ^~ /up/ {{ proxy_pass http://{backend}; proxy_set_header Host $host; }}
            location = /up/local.html {{ return 204; }}
            location /mount/ {{
                proxy_pass http://{backend}/inner/;
                proxy_set_header Host $host;
                proxy_set_header X-Real-IP $remote_addr;
                proxy_set_header X-Own "$request_method ${{scheme}} $http_user_agent";
                proxy_set_header Cookie "";
            }}
            location /moved/ {{ proxy_pass http://{backend}/inner/; }}
            location /named/ {{ resolver 127.0.0.1 valid=20s; set $app {backend}; proxy_pass http://$app; }}
        }}
        server {{
            listen {address};
            server_name wiki.*;
            return 200 "wiki";
        }}
        server {{
            listen {address};
            server_name app.example.org;
            root {root};
            location /static/ {{ alias {root}/assets/; }}
            location = /index.html {{ }}
            location / {{ proxy_pass http://{backend}; proxy_set_header Host fixed.example; }}
        }}
        "#
    )
}

/// Host and target of requests.
const REQUESTS: &[(&str, &str)] = &[
    ("example.org", "/"),
    ("example.org", "/index.html"),
    ("unknown.example", "/index.html"),
    ("example.org", "/exact"),
    ("example.org", "/exact/"),
    ("example.org", "/exact?a=1"),
    ("example.org", "/old/"),
    ("example.org", "/old/page?a=1"),
    ("example.org", "/older"),
    ("example.org", "/go/a%20b/c?x=1&y=2"),
    ("example.org", "/go/"),
    ("example.org", "/static/a.txt"),
    ("example.org", "/static/style.css"),
    ("example.org", "/static/none.css"),
    ("example.org", "/static/"),
    ("example.org", "/note.txt"),
    ("example.org", "/docs/note.txt"),
    ("example.org", "/docs/page.html"),
    ("example.org", "/docs/none.html"),
    ("example.org", "/style.css"),
    ("example.org", "/STYLE.CSS"),
    ("example.org", "/app/"),
    ("example.org", "/app"),
    ("example.org", "/app/any/where"),
    ("example.org", "/app/sub"),
    ("example.org", "/app/sub/"),
    ("example.org", "/app/private/a.html"),
    ("example.org", "/hidden/a.html"),
    ("example.org", "/gone"),
    ("example.org", "/gone/too"),
    ("example.org", "/page/12"),
    ("example.org", "/page/none"),
    ("example.org", "/user/me/list?all=1"),
    ("example.org", "/?action=stop"),
    ("example.org", "/note.txt?b=1&action=stop"),
    ("example.org", "/?action=go"),
    ("example.org", "/up/a/b?c=d"),
    ("example.org", "/up/x.txt"),
    ("example.org", "/up/local.html"),
    ("example.org", "/mount/a%20b?c=d"),
    ("example.org", "/mount/"),
    ("example.org", "/mounted/"),
    ("example.org", "/moved/go"),
    ("example.org", "/named/a?b"),
    ("wiki.example.com", "/"),
    ("wiki.example.org", "/a"),
    ("wiki", "/"),
    ("example.org", "/none"),
    ("other.example.org", "/a/b?c=d"),
    ("www.example.net", "/"),
    ("app.example.org", "/"),
    ("app.example.org", "/any/path.css?q=1"),
    ("app.example.org", "/static/style.css"),
    ("app.example.org", "/staticx/style.css"),
    ("app.example.org", "/index.html"),
    ("app.example.org", "/index.html2"),
];

/// The parts of a response that must be equal. The texts of built-in errors and redirects differ.
fn essence(response: &Response) -> impl PartialEq + std::fmt::Debug + use<> {
    let field = |name| response.field(name).map(str::to_owned);
    let has_own_body = matches!(response.status, 200 | 404);
    let body = has_own_body.then(|| (field("Content-Type"), String::from_utf8_lossy(&response.body).into_owned()));
    // nginx sends an error page with the fields of the page's location.
    let own = (response.status < 400).then(|| field("X-Static"));
    (response.status, field("Location"), field("X-Site"), own, body)
}

#[test]
fn converted_configuration_gives_same_responses() {
    let site = Site::new();
    for (name, text) in [
        ("index.html", "home"),
        ("404.html", "not here"),
        ("style.css", "a {}"),
        ("note.txt", "a note"),
        ("assets/a.txt", "an asset"),
        ("assets/style.css", "b {}"),
        ("more/docs/page.html", "a page"),
        ("more/docs/note.txt", "another note"),
        ("app/index.html", "the app"),
        ("app/sub/index.html", "a part"),
        ("app/private/a.html", "private"),
        ("hidden/a.html", "hidden"),
        ("pages/12.html", "twelve"),
    ] {
        site.file(name, text);
    }
    let [address, backend] = free_addresses();
    let servers = servers(address, backend, site.path());
    let folder = tempfile::tempdir().unwrap();
    let (source, result) = (folder.path().join("site"), folder.path().join("amped.toml"));
    fs::write(&source, &servers).unwrap();
    let converted = program().arg("convert").arg(&source).arg("-o").arg(&result).output().unwrap();
    let said = String::from_utf8_lossy(&converted.stderr).into_owned();
    assert_eq!((converted.status.code(), said.as_str()), (Some(0), ""));

    let behind = format!(
        "server {{ listen {backend}; absolute_redirect off; location = /inner/go {{ return 302 http://$http_host/inner/x?y; }}
         location / {{ return 200 \"$host $request_uri $http_x_real_ip $http_x_own $http_cookie\"; }} }}"
    );
    let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &(servers + &behind));
    let server = Server::start(&["--config", result.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let mut different = String::new();
    let mut check = |method: &str, target: &str, fields: &[(&str, &str)]| {
        let ask = |address| Client::connect(address).request(method, target, fields);
        let (theirs, ours) = (essence(&ask(address)), essence(&ask(server.address)));
        if theirs != ours {
            different += &format!("{method} {target} {fields:?}\n  nginx {theirs:?}\n  amped {ours:?}\n");
        }
    };
    for (host, target) in REQUESTS {
        check("GET", target, &[("Host", host)]);
    }
    check("HEAD", "/index.html", &[("Host", "example.org")]);
    check("DELETE", "/index.html", &[("Host", "example.org")]);
    check("GET", "/", &[("Host", "example.org"), ("User-Agent", "Old/1.0")]);
    check("GET", "/", &[("Host", "example.org"), ("User-Agent", "Not Old")]);
    check(
        "GET",
        "/mount/x",
        &[("Host", "example.org"), ("Cookie", "a=b"), ("X-Real-IP", "9.9.9.9"), ("User-Agent", "a")],
    );
    check("POST", "/up/form", &[("Host", "example.org"), ("Content-Length", "0")]);
    let config = fs::read_to_string(&result).unwrap();
    assert!(different.is_empty(), "{different}{config}");
}

#[test]
fn convert_reports_what_it_leaves_with_status_3() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("site.conf");
    let run = |text: &str| {
        fs::write(&source, text).unwrap();
        let output = program().arg("convert").arg(&source).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, stdout, stderr) = run("server {\n listen 80;\n ssi on;\n}\n");
    let note = "site.conf:3: not converted: `ssi on;`: responses are not modified\n";
    assert!(status == Some(3) && stdout.contains(&format!("# {note}")), "{stdout}");
    assert!(stderr.starts_with(&format!("amped: {note}amped: one directive is not")), "{stderr}");
    let (status, stdout, stderr) = run("server {\n listen 80\n}\n");
    assert_eq!((status, stdout.as_str()), (Some(1), ""));
    assert_eq!(stderr, "amped: site.conf:3:1: `listen` has no `;` at its end\n");
}

/// A site with a backend over TLS, whose certificate nobody knows, and with limits.
fn limited(address: SocketAddr, backend: SocketAddr, root: &Path) -> String {
    let root = root.display();
    format!(
        r#"limit_req_zone $binary_remote_addr zone=few:1m rate=1r/m;
        limit_conn_zone $binary_remote_addr zone=one:1m;
        server {{
            listen {address};
            root {root}/public;
            limit_req_status 429;
            limit_conn_status 429;
            # A resumed session has the result of the first verification, that of another location.
            proxy_ssl_session_reuse off;
            location /unverified/ {{ proxy_pass https://{backend}; }}
            location /verified/ {{
                proxy_pass https://{backend};
                proxy_ssl_verify on;
                proxy_ssl_trusted_certificate {root}/certificate;
                proxy_ssl_name localhost;
                proxy_ssl_server_name on;
                proxy_ssl_certificate {root}/certificate;
                proxy_ssl_certificate_key {root}/key;
            }}
            location /other-ca/ {{
                proxy_pass https://{backend};
                proxy_ssl_verify on;
                proxy_ssl_trusted_certificate {root}/other;
                proxy_ssl_name localhost;
            }}
            location /other-name/ {{
                proxy_pass https://{backend};
                proxy_ssl_verify on;
                proxy_ssl_trusted_certificate {root}/certificate;
                proxy_ssl_name other.example;
            }}
            location /few/ {{ limit_req zone=few burst=2 nodelay; }}
            location /slow/ {{ limit_conn one 1; limit_rate 100k; limit_rate_after 1k; }}
        }}
        "#
    )
}

#[test]
fn converted_tls_to_backends_and_limits_act_alike() {
    let site = Site::new();
    for name in ["certificate", "other"] {
        let mut openssl = peer("openssl");
        openssl.args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
        openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        openssl.args(["-addext", "subjectAltName=DNS:localhost", "-keyout"]);
        let key = site.path().join(if name == "other" { "other-key" } else { "key" });
        said(openssl.arg(key).arg("-out").arg(site.path().join(name)));
    }
    site.file("public/few/a", "a");
    site.file("public/slow/small", "small");
    // More than sockets hold, so that the limit counts it while a client reads nothing.
    site.file("public/slow/large", vec![0; 32 << 20]);
    let [address, backend] = free_addresses();
    let servers = limited(address, backend, site.path());
    let folder = tempfile::tempdir().unwrap();
    let (source, result) = (folder.path().join("site"), folder.path().join("amped.toml"));
    fs::write(&source, &servers).unwrap();
    let converted = program().arg("convert").arg(&source).arg("-o").arg(&result).output().unwrap();
    let said = String::from_utf8_lossy(&converted.stderr).into_owned();
    let warning =
        format!("amped: site:10: warning: `proxy_pass https://{backend};`: nginx does not verify the certificate");
    assert!(said.starts_with(&warning) && said.lines().count() == 1, "{said}");
    assert_eq!(converted.status.code(), Some(0));

    let root = site.path().display();
    let behind = format!(
        "server {{ listen {backend} ssl; ssl_certificate {root}/certificate; ssl_certificate_key {root}/key;\n\
         ssl_verify_client optional_no_ca; location / {{ return 200 \"$ssl_client_verify $request_uri\"; }} }}"
    );
    let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &(servers + &behind));
    let server = Server::start(&["--config", result.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let config = fs::read_to_string(&result).unwrap();
    for target in
        ["/unverified/a", "/verified/a", "/other-ca/a", "/other-name/a", "/few/a", "/few/a", "/few/a", "/few/a"]
    {
        let ask = |address| {
            let response = Client::connect(address).request("GET", target, &[("Host", "example.org")]);
            let body = (response.status == 200).then(|| String::from_utf8_lossy(&response.body).into_owned());
            (response.status, body)
        };
        assert_eq!(ask(address), ask(server.address), "{target}\n{config}");
    }
    for address in [address, server.address] {
        let mut first = Client::connect(address);
        first.send("GET /slow/large HTTP/1.1\r\nHost: example.org\r\n\r\n");
        wait_until("the second request is refused", || {
            Client::connect(address).request("GET", "/slow/small", &[("Host", "example.org")]).status == 429
        });
    }
}

#[test]
fn converted_redirect_to_https_leaves_challenges_out() {
    let site = Site::new();
    said(
        peer("openssl")
            .args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=example.org", "-newkey", "ec"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256", "-addext", "subjectAltName=DNS:example.org", "-keyout"])
            .arg(site.path().join("key"))
            .arg("-out")
            .arg(site.path().join("certificate")),
    );
    site.file("certbot/.well-known/acme-challenge/token", "answer");
    site.file("public/index.html", "home");
    let [address, secure, backend] = free_addresses();
    let root = site.path().display();
    let server = |listen: &str, content: &str| {
        format!("server {{ listen {listen}; server_name example.org; root {root}/public; {content} }}\n")
    };
    let challenges = format!("location /.well-known/acme-challenge/ {{ root {root}/certbot; }}");
    let keys = format!("ssl_certificate {root}/certificate; ssl_certificate_key {root}/key;");
    for content in [
        String::new(),
        format!("location / {{ proxy_pass http://{backend}; proxy_set_header Host $host; }}"),
        "location /.well-known/ { return 410; } location / { return 302 /other; }".to_owned(),
    ] {
        let redirect = server(
            &address.to_string(),
            &format!("{challenges} location / {{ return 301 https://$host$request_uri; }}"),
        );
        let servers = redirect + &server(&format!("{secure} ssl"), &format!("{keys} {content}"));
        let folder = tempfile::tempdir().unwrap();
        let (source, result) = (folder.path().join("site"), folder.path().join("amped.toml"));
        fs::write(&source, &servers).unwrap();
        let converted = program().arg("convert").arg(&source).arg("-o").arg(&result).output().unwrap();
        assert_eq!((converted.status.code(), String::from_utf8_lossy(&converted.stderr).as_ref()), (Some(0), ""));
        let behind = format!("server {{ listen {backend}; location / {{ return 200 backend; }} }}");
        let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &(servers + &behind));
        let config = fs::read_to_string(&result).unwrap();
        let listen = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0 tls"];
        let server = Server::start(&[&["--config", result.to_str().unwrap()], &listen[..]].concat());
        for (target, expected) in [
            ("/.well-known/acme-challenge/token", Some(200)),
            ("/.well-known/acme-challenge/none", Some(404)),
            ("/index.html", None),
        ] {
            let ask = |address| Client::connect(address).request("GET", target, &[("Host", "example.org")]);
            let (theirs, ours) = (ask(address), ask(server.address));
            match expected {
                Some(status) => {
                    assert_eq!((theirs.status, ours.status), (status, status), "{target}\n{config}");
                    assert!(status != 200 || (theirs.body == b"answer" && ours.body == b"answer"));
                }
                None => assert_eq!((theirs.status, ours.status), (301, 308), "{target}\n{config}"),
            }
        }
    }
}

/// Directives of one location each. `BACKEND` stands for the address of the backend.
const REDIRECTS: &[&str] = &[
    "proxy_redirect off;",
    "proxy_redirect http:// $scheme://;",
    "proxy_redirect http:// https://;",
    "proxy_redirect http://BACKEND/ /;",
    "proxy_redirect http://BACKEND/ http://$http_host/in/;",
    "proxy_redirect http://BACKEND/a/ /b/; proxy_redirect http://BACKEND/ /;",
    // The second is never reached.
    "proxy_redirect http://BACKEND/ /; proxy_redirect http://BACKEND/a/ /b/;",
    "proxy_redirect / /app/; proxy_redirect http://other.example/ $scheme://${host}:81/other/;",
];

const LOCATIONS: &[&str] = &[
    "/x",
    "/a/x?y=1",
    "http://BACKEND/x",
    "http://BACKEND/a/x?y",
    "http://BACKEND",
    "http://other.example/x",
    "https://other.example/x",
    "HTTP://other.example/x",
    "x",
    "?x",
];

#[test]
fn converted_redirects_of_backends_are_those_of_nginx() {
    let [address, backend] = free_addresses();
    let (root, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut servers = format!(
        "server {{ listen {address}; root {}; absolute_redirect off; proxy_set_header Host $http_host;\n",
        root.path().display()
    );
    for (number, redirect) in REDIRECTS.iter().enumerate() {
        let redirect = redirect.replace("BACKEND", &backend.to_string());
        servers += &format!("location /{number}/ {{ proxy_pass http://{backend}; {redirect} }}\n");
    }
    servers += "}\n";
    let (source, result) = (folder.path().join("site"), folder.path().join("amped.toml"));
    fs::write(&source, &servers).unwrap();
    let converted = program().arg("convert").arg(&source).arg("-o").arg(&result).output().unwrap();
    let said = String::from_utf8_lossy(&converted.stderr).into_owned();
    assert_eq!((converted.status.code(), said.as_str()), (Some(0), ""));
    let behind =
        format!("server {{ listen {backend}; absolute_redirect off; location / {{ return 302 $http_x_to; }} }}");
    let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &(servers + &behind));
    let server = Server::start(&["--config", result.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let (mut different, mut changed) = (String::new(), 0);
    for (number, redirect) in REDIRECTS.iter().enumerate() {
        for to in LOCATIONS {
            let to = to.replace("BACKEND", &backend.to_string());
            let location = |address| {
                let fields = [("Host", "Example.org:82"), ("X-To", to.as_str())];
                let response = Client::connect(address).request("GET", &format!("/{number}/"), &fields);
                response.field("Location").map(str::to_owned)
            };
            let (theirs, ours) = (location(address), location(server.address));
            changed += usize::from(theirs.as_ref() != Some(&to));
            if theirs != ours {
                different += &format!("{redirect} {to}: nginx {theirs:?}, amped {ours:?}\n");
            }
        }
    }
    assert!(different.is_empty(), "{different}{}", fs::read_to_string(&result).unwrap());
    assert!(changed > 10, "{changed}");
}

#[test]
fn converted_header_rules_by_media_type_act_alike() {
    let site = Site::new();
    for name in ["a.html", "a.css", "a.js", "a.svg", "a.png", "a.pdf", "a.json", "a.unknown", "in/b.html", "in/b.css"] {
        site.file(name, "text");
    }
    let [address] = free_addresses();
    let servers = format!(
        r#"include /etc/nginx/mime.types;
        map $sent_http_content_type $expires {{
            default 1M;
            ~*text/css 1y;
            ~*^(text/html|application/json) epoch;
            ~*image/ 90d;
            ~*image/svg 3d;
            application/pdf max;
        }}
        map $sent_http_content_type $frames {{ ~*text/html DENY; }}
        map $sent_http_content_type $policy {{
            ~*text/(html|css)|application/pdf|xml "default-src 'self'";
            ~*javascript "default-src 'none'";
        }}
        server {{
            listen {address};
            root {};
            expires $expires;
            add_header X-Frame-Options $frames always;
            add_header Content-Security-Policy $policy;
            add_header X-All yes;
            location /in/ {{ add_header X-Frame-Options $frames; }}
        }}"#,
        site.path().display()
    );
    let folder = tempfile::tempdir().unwrap();
    let (source, result) = (folder.path().join("site"), folder.path().join("amped.toml"));
    fs::write(&source, &servers).unwrap();
    let converted = program().arg("convert").arg(&source).arg("-o").arg(&result).output().unwrap();
    let said = String::from_utf8_lossy(&converted.stderr).into_owned();
    assert_eq!((converted.status.code(), said.as_str()), (Some(0), ""));
    let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &servers);
    let server = Server::start(&["--config", result.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let mut different = String::new();
    for target in [
        "a.html",
        "a.css",
        "a.js",
        "a.svg",
        "a.png",
        "a.pdf",
        "a.json",
        "a.unknown",
        "in/b.html",
        "in/b.css",
        "missing",
    ] {
        let fields = |address| {
            let response = Client::connect(address).get(&format!("/{target}"));
            let field = |name: &str| response.field(name).map(str::to_owned);
            (response.status, ["Cache-Control", "X-Frame-Options", "Content-Security-Policy", "X-All"].map(field))
        };
        let (theirs, ours) = (fields(address), fields(server.address));
        if theirs != ours {
            different += &format!("{target}: nginx {theirs:?}, amped {ours:?}\n");
        }
    }
    assert!(different.is_empty(), "{different}{}", fs::read_to_string(&result).unwrap());
}
