//! Access in configurations of nginx and in their conversions: amped never serves what nginx refuses, and responds as nginx does where
//! `amped convert` reports nothing.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use super::harness::{Server, Site, program};
use super::php::Php;
use super::ports::free_addresses;
use super::requests::{Draw as _, Random};
use super::started_nginx::Nginx;
use super::{peer, said};

/// A server: its name, its content, and requests. A request is an optional method, a path, and optional fields.
type Row = (&'static str, &'static str, &'static [&'static str]);

/// In the content, `PROXY`, `PHP` and `AUTH` stand for directives.
const ROWS: &[Row] = &[
    // Inherited access.
    (
        "deny-in-nested-regex",
        "location /admin/ { deny all; location ~ \\.php$ { PHP } location ~ \\.txt$ { } }",
        &["/admin/x.php", "/admin/x.txt", "/admin/x.bak", "/x.txt"],
    ),
    (
        "deny-in-nested-prefix",
        "location / { } location /a/ { deny all; location /a/b/ { } }",
        &["/a/x.txt", "/a/b/x.txt", "/x.txt"],
    ),
    (
        "deny-of-all-in-nested",
        "location / { deny all; location /st/ { } location ~ \\.txt$ { } }",
        &["/st/x.bak", "/x.txt", "/x.bak"],
    ),
    (
        "deny-in-nested-proxy",
        "location /admin/ { deny all; location /admin/api/ { PROXY } } location / { PROXY }",
        &["/admin/api/x", "/admin/x", "/x"],
    ),
    (
        "allow-in-nested-exact",
        "location /private/ { deny all; location = /private/x.txt { allow all; } }",
        &["/private/x.txt", "/private/x.bak"],
    ),
    (
        "internal-in-nested",
        "location /private/ { internal; location ~ \\.txt$ { } location /private/sub/ { } }",
        &["/private/x.txt", "/private/sub/x.txt", "/private/x.bak"],
    ),
    ("deny-of-server", "deny all; location /pub/ { allow all; }", &["/pub/x.txt", "/x.txt", "/"]),
    (
        "allow-in-location",
        "allow 10.0.0.0/8; deny all; location /pub/ { allow all; } location /st/ { allow 127.0.0.1; deny all; }",
        &["/pub/x.txt", "/st/x.txt", "/x.txt"],
    ),
    (
        "allow-of-all-paths",
        "location / { allow 10.0.0.0/8; deny all; } location /pub/ { } location /st/ { allow all; }",
        &["/pub/x.txt", "/x.txt", "/st/x.txt"],
    ),
    (
        "deny-then-files-by-regex",
        "location /private/ { deny all; } location ~* \\.(txt|css)$ { expires 1d; }",
        &["/private/x.txt", "/private/x.bak"],
    ),
    (
        "allow-in-nested-php",
        "location ^~ /admin/ { allow 10.0.0.0/8; deny all; location ~ \\.php$ { PHP } } location ~ \\.php$ { PHP }",
        &["/admin/x.php", "/admin/x.txt", "/x.php"],
    ),
    // Order of rules.
    ("deny-before-allow", "location /admin/ { deny all; allow 127.0.0.1; }", &["/admin/x.txt"]),
    (
        "deny-network-before-allow",
        "location /admin/ { deny 127.0.0.0/8; allow 127.0.0.1; } location /pub/ { deny 127.0.0.0/8; allow 127.0.0.1; deny all; }",
        &["/admin/x.txt", "/pub/x.txt"],
    ),
    ("allow-before-deny-network", "location /pub/ { allow 127.0.0.1; deny 127.0.0.0/8; }", &["/pub/x.txt"]),
    ("deny-exception", "location /a/ { deny 127.0.0.2; allow 127.0.0.0/8; deny all; }", &["/a/x.txt"]),
    // Passwords.
    (
        "other-accounts",
        "AUTH location /admin/ { auth_basic_user_file ADMINS; }",
        &["/x.txt", "/x.txt USER", "/admin/x.txt", "/admin/x.txt USER", "/admin/x.txt ADMIN"],
    ),
    ("password-by-regex", "location ~ ^/private/ { AUTH }", &["/private/x.txt", "/private/x.txt USER"]),
    ("password-of-file", "location = /x.txt { AUTH }", &["/x.txt", "/x.txt USER", "/x.bak"]),
    ("password-of-index", "location = /index.html { AUTH }", &["/index.html", "/", "/st/"]),
    (
        "password-in-nested",
        "location /admin/ { AUTH location ~ \\.txt$ { } location ~ \\.bak$ { auth_basic off; } }",
        &["/admin/x.txt", "/admin/x.txt USER", "/admin/x.bak"],
    ),
    ("password-of-prefix", "location ^~ /a { AUTH }", &["/a/x.txt", "/a/x.txt USER", "/admin/x.txt", "/a"]),
    (
        "password-without-regex",
        "location /admin/ { AUTH } location ~ \\.php$ { PHP }",
        &["/admin/x.txt", "/admin/x.php", "/x.php"],
    ),
    (
        "satisfy",
        "location /private/ { satisfy all; allow 127.0.0.1; deny all; AUTH } location /st/ { satisfy any; allow 127.0.0.1; deny all; AUTH }",
        &["/private/x.txt", "/private/x.txt USER", "/st/x.txt"],
    ),
    (
        "satisfy-any",
        "satisfy any; AUTH location /st/ { allow 10.0.0.0/8; } location /pub/ { allow 127.0.0.1; } location /a/ { allow all; } \
         location /admin/ { deny all; }",
        &[
            "/x.txt",
            "/x.txt USER",
            "/st/x.txt",
            "/st/x.txt USER",
            "/pub/x.txt",
            "/a/x.txt",
            "/admin/x.txt",
            "/admin/x.txt USER",
        ],
    ),
    (
        "satisfy-any-in-nested",
        "satisfy any; allow 127.0.0.1; deny all; AUTH location /st/ { satisfy all; } location /a/ { allow 10.0.0.0/8; deny all; }",
        &["/x.txt", "/st/x.txt", "/st/x.txt USER", "/a/x.txt", "/a/x.txt USER"],
    ),
    (
        "satisfy-any-without-equivalent",
        "satisfy any; allow 127.0.0.1; deny all; AUTH location /pub/ { auth_basic off; } location /api/ { auth_request /deny; PROXY } \
         location /a/ { allow 10.0.0.0/8; deny all; location ~ \\.txt$ { satisfy all; } } \
         location /private/ { deny 127.0.0.2; allow 127.0.0.0/8; }",
        &["/pub/x.txt", "/api/x", "/api/x USER", "/a/x.txt", "/a/x.bak USER", "/private/x.txt", "/private/x.txt USER"],
    ),
    (
        "alias-has-own-access",
        "location /pics/ { alias ROOT/st/; } location /st/ { deny all; } location /img/ { alias ROOT/private/; AUTH }",
        &["/pics/x.txt", "/st/x.txt", "/img/x.txt", "/img/x.txt USER"],
    ),
    // Access that only directories have.
    ("allow-by-regex", "location ~ ^/admin/ { allow 10.0.0.0/8; deny all; }", &["/admin/x.txt", "/x.txt"]),
    ("allow-of-file", "location = /x.txt { allow 10.0.0.0/8; deny all; }", &["/x.txt", "/x.bak"]),
    (
        "allow-of-metrics",
        "location / { PROXY } location = /metrics { allow 10.0.0.0/8; deny all; PROXY }",
        &["/metrics", "/x"],
    ),
    ("allow-of-status-page", "location ~ ^/(status|ping)$ { allow 10.0.0.0/8; deny all; PHP }", &["/status", "/x.txt"]),
    (
        "methods",
        "location /api/ { limit_except GET { deny all; } PROXY } location /st/ { limit_except GET POST { allow 10.0.0.0/8; deny all; } }",
        &["/api/x", "POST /api/x", "DELETE /api/x", "/st/x.txt", "DELETE /st/x.txt"],
    ),
    (
        "authorization",
        "location /api/ { auth_request /auth; PROXY } location = /auth { internal; proxy_pass http://BACKEND/deny; }",
        &["/api/x", "/auth"],
    ),
    (
        "authorization-of-files",
        "auth_request /auth; location /private/ { } location = /auth { internal; return 403; }",
        &["/private/x.txt", "/x.txt"],
    ),
    (
        "authorization-by-proxy",
        "location / { auth_request /deny; PROXY } location = /deny { internal; PROXY } location /pub/ { auth_request off; }",
        &["/x", "/deny", "/pub/x.txt"],
    ),
    ("authorization-admits", "location / { auth_request /ask; PROXY } location = /ask { internal; PROXY }", &["/x"]),
    // Scripts.
    (
        "files-of-final-prefix",
        "location ^~ /uploads/ { } location ~ \\.php$ { PHP }",
        &["/uploads/x.php", "/uploads/x.txt", "/x.php"],
    ),
    (
        "files-of-earlier-regex",
        "location ~ ^/uploads/ { } location ~ \\.php$ { PHP }",
        &["/uploads/x.php", "/x.php", "/uploads/x.txt"],
    ),
    ("files-of-exact", "location = /x.php { } location ~ \\.php$ { PHP }", &["/x.php", "/a/x.php"]),
    (
        "files-of-alias",
        "location ^~ /dl/ { alias ROOT/uploads/; } location ~ \\.php$ { PHP }",
        &["/dl/x.php", "/dl/x.txt", "/x.php"],
    ),
    (
        "no-scripts-in-final",
        "location ^~ /uploads/ { location ~ \\.php$ { return 403; } } location ~ \\.php$ { PHP }",
        &["/uploads/x.php", "/uploads/x.txt", "/x.php"],
    ),
    (
        "no-scripts-in-prefix",
        "location /uploads/ { location ~ \\.(php|phtml)$ { deny all; } } location ~ \\.php$ { PHP }",
        &["/uploads/x.php", "/uploads/x.txt", "/x.php"],
    ),
    (
        "scripts-before-denials",
        "location ~ \\.php$ { PHP } location ~ ^/private/ { deny all; }",
        &["/private/x.php", "/private/x.txt"],
    ),
    ("scripts-of-any-case", "location ~* \\.php$ { PHP }", &["/x.php", "/x.PHP"]),
    ("script-of-all-paths", "location / { PHP } location /st/ { }", &["/x.php", "/st/x.txt", "/st/x.php"]),
    (
        "script-is-fixed",
        "location / { PHP fastcgi_param SCRIPT_FILENAME ROOT/index.php; }",
        &["/x.php", "/admin/x.php"],
    ),
    (
        "only-front-controller",
        "location ~ ^/index\\.php(/|$) { internal; PHP } location ~ \\.php$ { return 404; } location / { try_files $uri /index.php$is_args$args; }",
        &["/x.php", "/index.php", "/x.txt"],
    ),
    ("scripts-with-more", "location ~ \\.php { PHP }", &["/x.php", "/x.php~", "/x.txt"]),
    ("look-ahead-of-scripts", "location ~ ^/(?!uploads/).+\\.php$ { PHP }", &["/x.php", "/uploads/x.php"]),
    ("look-ahead-of-denial", "location ~ ^/(?!pub|index).*\\.bak$ { deny all; }", &["/x.bak", "/pub/x.bak", "/x.txt"]),
    // Hidden names.
    (
        "hidden-files",
        "location ~ /\\.(?!well-known) { deny all; } location / { PROXY }",
        &["/.git/config", "/x", "/.htaccess", "/.well-known/x", "/a/.well-known/.x"],
    ),
    (
        "hidden-files-of-laravel",
        "location ~ /\\.(?!well-known).* { deny all; } location / { try_files $uri /index.html; }",
        &["/.git/config", "/x.txt"],
    ),
    ("hidden-access-files", "location ~ /\\.ht { deny all; } location / { PROXY }", &["/.htaccess", "/x"]),
    // Precedence.
    (
        "prefix-like-final",
        "location ^~ /s { } location /st/ { } location ~ \\.bak$ { return 403; }",
        &["/st/x.bak", "/s/x.bak", "/x.bak"],
    ),
    (
        "nested-before-outer",
        "location /a/ { location ~ \\.txt$ { return 403; } } location ~ \\.txt$ { } location /a/b/ { }",
        &["/a/x.txt", "/a/b/x.txt", "/x.txt"],
    ),
    (
        "nested-in-final",
        "location ^~ /media/ { location ~ \\.txt$ { deny all; } } location ~ \\.txt$ { }",
        &["/media/x.txt", "/media/x.bak", "/x.txt"],
    ),
    (
        "regex-in-order",
        "location ~ ^/st/.*\\.txt$ { } location ~ \\.txt$ { deny all; } location ~ ^/s { deny all; }",
        &["/st/x.txt", "/s/x.txt", "/s/x.bak", "/x.txt"],
    ),
    (
        "regex-before-prefix",
        "location ~* ^/api/ { deny all; } location /api/pub/ { } location / { PROXY }",
        &["/API/x", "/api/pub/x", "/x"],
    ),
    (
        "regex-beside-proxy",
        "location /api/ { PROXY } location ~* \\.txt$ { expires 1h; }",
        &["/api/x", "/api/x.txt", "/x.txt"],
    ),
    ("regex-beside-proxy-of-all", "location / { PROXY } location ~* \\.txt$ { expires 1h; }", &["/x", "/x.txt"]),
    (
        "directories-beside-proxy",
        "location / { PROXY } location /st/ { } location = /x.txt { }",
        &["/x", "/st/x.txt", "/x.txt"],
    ),
    ("inner-directory-beside-proxy", "location /api/ { PROXY } location /api/st/ { }", &["/api/x", "/api/st/x.txt"]),
    (
        "refusal-beside-proxy",
        "location / { PROXY } location /admin/ { deny all; } location ~ \\.bak$ { deny all; }",
        &["/admin/x", "/x.bak", "/x"],
    ),
    (
        "unknown-application",
        "location / { uwsgi_pass unix:/none; } location /st/ { return 403; } location ~ \\.bak$ { deny all; }",
        &["/x.txt", "/st/x.txt", "/x.bak"],
    ),
    // Named locations.
    (
        "named-with-access",
        "location / { try_files $uri @b; } location @b { allow 10.0.0.0/8; deny all; PROXY }",
        &["/none", "/x.txt"],
    ),
    ("named-with-password", "location / { try_files /none @b; } location @b { AUTH PROXY }", &["/x", "/x USER"]),
    (
        "fallback-with-password",
        "location / { try_files $uri /private/x.txt; } location /private/ { AUTH }",
        &["/none", "/private/x.txt", "/x.txt"],
    ),
    // Roots and listings.
    (
        "root-of-all-paths",
        "location / { root ROOT/site2; } location /a/ { } location /private/ { }",
        &["/x.txt", "/a/x.txt", "/private/x.txt"],
    ),
    ("root-of-directory", "location /a/ { root ROOT/site2; } location ^~ /a/b/ { }", &["/a/x.txt", "/a/b/x.txt"]),
    (
        "alias-without-slash",
        "location /i/ { alias ROOT/media; } location /j { alias ROOT/media; }",
        &["/i/x.txt", "/j/x.txt"],
    ),
    (
        "alias-of-names-that-begin-alike",
        "location /s { alias ROOT/media/; } location / { PROXY }",
        &["/s/x.txt", "/st/x.txt", "/sx.txt", "/x"],
    ),
    ("alias-of-names-without-proxy", "location /s { alias ROOT/media/; }", &["/s/x.txt", "/st/x.txt", "/x.txt"]),
    (
        "named-rewrite-beside-proxy",
        "location /st/ { try_files $uri @rw; } location @rw { rewrite ^ /st/x.txt; } location / { PROXY }",
        &["/st/none", "/st/x.bak", "/x"],
    ),
    ("names-of-other-roots", "index index.php; location ~ \\.php$ { root ROOT/site2; }", &["/", "/a/x.php"]),
    ("application-of-one-path", "location = / { PROXY } location = /a { PHP }", &["/", "/x.txt", "/a/x.txt"]),
    (
        "directories-are-not-tried",
        "location / { try_files $uri =404; } location /a/ { try_files $uri /a/x.txt; }",
        &["/", "/a/", "/x.txt"],
    ),
    (
        "slash-of-proxy",
        "location /a/ { internal; PROXY } location /st/ { limit_except GET { deny all; } PROXY }",
        &["/a", "/a/x", "/st", "POST /st", "POST /st/x"],
    ),
    (
        "files-before-closed-proxy",
        "location ~ /x\\. { allow all; } location /a/ { deny all; PROXY }",
        &["/a/x.txt", "/a/none", "POST /a/x.txt"],
    ),
    (
        "scripts-in-directory",
        "location ~ ^/a/ { PHP } location ~ /st { PHP }",
        &["/a/x.php", "/a/b/x.php", "/st/x.php", "/st/x.txt"],
    ),
    (
        "access-in-nested-of-prefix",
        "location /a { auth_request /deny; location /admin/ { } location = /a/x.txt { limit_except GET { deny all; } } } location = /deny { internal; PROXY }",
        &["/a/x.txt", "/admin/x.txt", "/a/x.bak"],
    ),
    (
        "one-path-beside-application",
        "location / { limit_except GET { deny all; } PHP } location = /a { }",
        &["/a/x.txt", "/a/x.bak", "/x.php", "POST /none"],
    ),
    (
        "directory-beside-fallback",
        "location / { try_files $uri /x.txt; } location /a/ { }",
        &["/a/", "/a/x.txt", "/", "/none"],
    ),
    (
        "open-directory-without-slash",
        "location / { allow 10.0.0.0/8; deny all; PROXY } location /pub/ { allow all; }",
        &["/pub", "/pub/x.txt", "/x"],
    ),
    (
        "listing-of-one",
        "location / { autoindex on; } location /st/ { } location /private/ { autoindex off; }",
        &["/private/", "/st/"],
    ),
    (
        "alias-of-other-name",
        "location = /f.txt { alias ROOT/st/x.txt; } location ~ ^/u/(.*)$ { alias ROOT/st/$1; }",
        &["/f.txt", "/u/x.txt", "/st/x.txt"],
    ),
    // Conditions and rewrites.
    (
        "methods-by-condition",
        "if ($request_method ~* \"(delete|put)\") { return 403; }",
        &["PUT /x.txt", "DELETE /x.txt", "/x.txt"],
    ),
    ("name-of-server", "if ($server_name !~ other) { return 403; } location / { PROXY }", &["/x"]),
    (
        "methods-by-expression",
        "if ($request_method ~ ^(PUT|REPORT)) { return 403; } location / { PROXY }",
        &["REPORT /x", "PUT /x", "POST /x", "/x"],
    ),
    (
        "hosts-by-negation",
        "location /a/ { if ($host !~* (own|OWN)$) { return 403; } } location /st/ { if ($host != OWN) { return 403; } if ($request_method != GET) { return 405; } }",
        &["/a/x.txt", "/st/x.txt", "POST /st/x.txt", "/x.txt"],
    ),
    (
        "static-beside-proxies",
        "location ^~ /api/ { PROXY } location ~* \\.(txt|bak)$ { } location / { PROXY } location /st/ { location ~ \\.php$ { } }",
        &[
            "/api/x.txt",
            "/x.txt",
            "/a/b/x.bak",
            "/x.php",
            "/st/x.php",
            "/st/x.txt",
            "/a/",
            "/x.txt/more",
            "POST /x.txt",
        ],
    ),
    (
        "static-before-scripts",
        "location ~ \\.php$ { PHP } location = /x.txt { } location ^~ /a/ { } location / { PROXY }",
        &["/x.php", "/a/x.php", "/a/x.txt", "/x.txt", "/x.bak", "/st/x.php", "/a/b/"],
    ),
    (
        "methods-by-negation",
        "if ($request_method !~ ^(GET|HEAD)$ ) { return 405; } location / { PROXY }",
        &["POST /x", "/x"],
    ),
    (
        "agent-by-condition",
        "if ($http_user_agent ~* (bot|spider)) { return 403; } location /a/ { if ($http_x = \"\") { return 403; } }",
        &["/x.txt User-Agent: aBot", "/x.txt User-Agent: a", "/a/x.txt", "/a/x.txt X: 1"],
    ),
    (
        "missing-authorization",
        "if ($http_authorization = \"\") { return 401; } if ($http_x_bad) { return 444; }",
        &["/x.txt", "/x.txt Authorization: x", "/x.txt USER X-Bad: 1"],
    ),
    (
        "token-by-condition",
        "location /a/ { if ($arg_k != s) { return 403; } } location /st/ { if ($http_x_token != s) { return 403; } }",
        &["/a/x.txt", "/a/x.txt?k=s", "/a/x.txt?k=%73", "/st/x.txt", "/st/x.txt X-Token: s", "/st/x.txt X-Token: t"],
    ),
    ("cookie-by-condition", "if ($cookie_user = \"\") { return 302 /login; }", &["/x.txt"]),
    (
        "referer-by-condition",
        "location /st/ { valid_referers server_names; if ($invalid_referer) { return 403; } }",
        &["/st/x.txt Referer: http://other/", "/x.txt"],
    ),
    ("host-by-condition", "if ($host != OWN) { return 403; } location = / { return 302 /st/; }", &["/x.txt", "/"]),
    (
        "rewrite-to-denied",
        "rewrite ^/dl/(.*)$ /private/$1 last; location /private/ { deny all; } location /pub/ { rewrite ^/pub/(.*)$ /private/$1 last; }",
        &["/dl/x.txt", "/private/x.txt", "/pub/x.txt"],
    ),
    (
        "rewrite-to-password",
        "rewrite ^/dl/(.*)$ /files/$1 last; location /files/ { AUTH }",
        &["/dl/x.txt", "/dl/x.txt USER", "/files/x.txt"],
    ),
    (
        "rewrite-to-redirect",
        "location /pub/ { rewrite ^/pub/(.*)$ /st/$1 last; } location /st/ { return 302 /login; }",
        &["/pub/x.txt", "/st/x.txt"],
    ),
    (
        "rewrite-for-proxy",
        "location /api/ { rewrite ^/api/(.*) /$1 break; PROXY }",
        &["/api/x.txt", "/api/none", "/x.txt"],
    ),
    (
        "return-of-other-status",
        "location /a/ { return 405; } location /st/ { return 444; } location ~ \\.bak$ { return 401; }",
        &["/a/x.txt", "/st/x.txt", "/x.bak"],
    ),
    // Configurations of applications.
    (
        "wordpress",
        "index index.php; location = /favicon.ico { access_log off; } location ~ /\\. { deny all; } \
        location ~* /(?:uploads|files)/.*\\.php$ { deny all; } location / { try_files $uri $uri/ /index.php?$args; } location ~ \\.php$ { PHP } \
        location ~* \\.(js|css|png)$ { expires max; } location = /xmlrpc.php { deny all; }",
        &["/x.php", "/", "/none", "/uploads/x.php", "/xmlrpc.php", "/.git/config", "/x.txt"],
    ),
    (
        "laravel",
        "index index.php; location / { try_files $uri $uri/ /index.php?$query_string; } location ~ ^/index\\.php(/|$) { PHP } \
        location ~ /\\.(?!well-known).* { deny all; }",
        &["/", "/none", "/index.php", "/index.php/a", "/x.txt"],
    ),
];

fn tree(site: &Site, folder: &Path) {
    for folder in [
        "",
        "a/",
        "a/b/",
        "admin/",
        "uploads/",
        "files/",
        "private/",
        "private/sub/",
        "pub/",
        "s/",
        "st/",
        "media/",
        "site2/",
        "site2/a/",
        "site2/a/b/",
    ] {
        for name in ["x.txt", "x.bak"] {
            site.file(&format!("{folder}{name}"), format!("{folder}{name}"));
        }
        for name in ["x.php", "x.PHP", "x.php~"] {
            site.file(&format!("{folder}{name}"), "<?php echo 'run ', basename(__DIR__), '/', basename(__FILE__);");
        }
    }
    site.file("index.html", "index");
    site.file("index.php", "<?php echo 'run index';");
    site.file("xmlrpc.php", "<?php echo 'xmlrpc';");
    for name in ["user", "admin"] {
        let hash = said(peer("openssl").args(["passwd", "-5", "pw"]));
        fs::write(folder.join(format!("{name}s")), format!("{name}:{}\n", hash.trim())).unwrap();
    }
}

/// The status and the comparable part of a response; status 0 if the connection is closed without one.
fn ask(address: SocketAddr, host: &str, request: &str) -> (u16, String) {
    let (method, rest) = if request.starts_with('/') { ("GET", request) } else { request.split_once(' ').unwrap() };
    let (path, fields) = rest.split_once(' ').unwrap_or((rest, ""));
    // `user:pw` and `admin:pw`.
    let fields = fields
        .replace("USER", "Authorization: Basic dXNlcjpwdw==")
        .replace("ADMIN", "Authorization: Basic YWRtaW46cHc=");
    let fields = fields.replace(" X-Bad", "\r\nX-Bad");
    let end = if fields.is_empty() { "" } else { "\r\n" };
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {host}\r\n{fields}{end}\r\n").unwrap();
    let mut bytes = Vec::new();
    // nginx closes some connections without a response.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1).map_or(0, |status| status.parse().unwrap());
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    let location = head.lines().find(|line| line.to_ascii_lowercase().starts_with("location:")).unwrap_or_default();
    (status, if status == 200 { body.to_owned() } else { location.to_ascii_lowercase() })
}

/// Converts servers; returns the exit status, the configuration and the messages.
fn convert(folder: &Path, name: &str, text: &str) -> (Option<i32>, String, String) {
    let (source, result) = (folder.join(name), folder.join(format!("{name}.toml")));
    fs::write(&source, text).unwrap();
    let output = program().arg("convert").arg(&source).arg("-o").arg(&result).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), fs::read_to_string(&result).unwrap_or_default(), said)
}

/// Whether a status is a refusal, which the other server must not answer with success.
fn refuses(status: u16) -> bool {
    matches!(status, 0 | 401 | 403 | 404 | 405)
}

/// The fault of amped's response, if there is one, given that of nginx.
fn problem(code: Option<i32>, said: &str, theirs: &(u16, String), ours: &(u16, String)) -> Option<&'static str> {
    // A fallback applies to a whole directory; its file is not restricted.
    let is_fallback = theirs.0 == 404 && said.contains("get the fallback of");
    if refuses(theirs.0) && (200..300).contains(&ours.0) && !is_fallback {
        return Some("amped serves what nginx refuses");
    }
    let is_listing = theirs.0 == ours.0 && theirs.1.contains("<title>Index of");
    // One server may redirect a path without its final slash before it checks access, the other after it.
    let is_redirect = |one: &(u16, String)| one.0 == 301 && one.1.ends_with('/');
    let is_redirect = refuses(ours.0) && is_redirect(theirs) || refuses(theirs.0) && is_redirect(ours);
    // Where several restrictions apply, the order in which they are checked may differ.
    let is_same = theirs == ours || is_listing || is_redirect || refuses(ours.0) && refuses(theirs.0);
    (code == Some(0) && !is_same).then_some("a difference was not reported")
}

/// The directives around all servers.
const AROUND: &str = "types { text/plain txt; } absolute_redirect off; \n\
                      fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_param REQUEST_METHOD $request_method;\n";

/// Both servers with the same servers of nginx, each of which has a name of its own.
struct Compared {
    problems: String,
    /// How many servers were converted without a note.
    exact: usize,
}

/// Asks both for these servers: name, content, requests.
fn compare(rows: &[(&str, String, Vec<String>)]) -> Compared {
    let (site, folder) = (Site::new(), tempfile::tempdir().unwrap());
    tree(&site, folder.path());
    let socket: PathBuf = folder.path().join("php.sock");
    let _php = Php::like_debian(folder.path(), &socket);
    let [address, backend] = free_addresses();
    let root = site.path().display().to_string();
    let accounts = folder.path().display();
    let server = |name: &str, content: &str| {
        let content = content
            .replace("PROXY", &format!("proxy_pass http://{backend}; proxy_set_header Host $host;"))
            .replace("PHP ", &format!("fastcgi_pass unix:{}; ", socket.display()))
            .replace("AUTH", &format!("auth_basic x; auth_basic_user_file {accounts}/users;"))
            .replace("ADMINS", &format!("{accounts}/admins"))
            .replace("BACKEND", &backend.to_string())
            .replace("ROOT", &root)
            .replace("OWN", &format!("{name}.example"));
        format!("server {{ listen {address}; server_name {name}.example; root {root}; {content} }}\n")
    };
    let mut servers = AROUND.to_owned();
    let mut config = format!("[[site]]\nroot = {root:?}\n");
    let mut converted = Vec::new();
    for (name, content, requests) in rows {
        let text = server(name, content);
        let (code, toml, said) = convert(folder.path(), name, &(AROUND.to_owned() + &text));
        assert!(matches!(code, Some(0 | 3)), "{name}: {said}");
        let site = toml.find("\n[[site]]").map_or("", |at| &toml[at..]).to_owned();
        config += &site;
        servers += &text;
        converted.push((name, content, requests, code, site + &said));
    }
    let behind = format!(
        "server {{ listen {backend}; location / {{ return 200 \"proxied $request_uri\"; }} location /deny {{ return 403; }} }}"
    );
    let _nginx = Nginx::start(tempfile::tempdir().unwrap(), address, &(servers + &behind));
    let result = folder.path().join("amped.toml");
    fs::write(&result, &config).unwrap();
    let server = Server::start(&["--config", result.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let (mut problems, mut exact) = (String::new(), 0);
    for (name, content, requests, code, site) in converted {
        exact += usize::from(code == Some(0));
        let before = problems.len();
        for request in requests {
            let host = format!("{name}.example");
            let (theirs, ours) = (ask(address, &host, request), ask(server.address, &host, request));
            if let Some(problem) = problem(code, &site, &theirs, &ours) {
                let _ = writeln!(problems, "{name}: {request}: {problem}: nginx {theirs:?}, amped {ours:?}");
            }
        }
        if problems.len() > before {
            let _ = writeln!(problems, "  {content}\n  {site}");
        }
    }
    Compared { problems, exact }
}

#[test]
fn conversion_never_serves_what_nginx_refuses() {
    let own = |requests: &[&str]| requests.iter().map(|&request| request.to_owned()).collect();
    let rows: Vec<_> =
        ROWS.iter().map(|(name, content, requests)| (*name, (*content).to_owned(), own(requests))).collect();
    let Compared { problems, exact } = compare(&rows);
    assert!(problems.is_empty(), "{problems}");
    // A conversion that refused everything would pass the other checks.
    assert!(exact * 2 > ROWS.len(), "{exact} of {} are exact", ROWS.len());
}

/// Random locations, some of them within others.
fn locations(random: &mut Random, around: &str, depth: usize) -> String {
    const PREFIXES: &[&str] = &["/", "/a/", "/a", "/a/b/", "/admin/", "/ad", "/a/b/x"];
    const NAMES: &[&str] = &["= /x.txt", "= /a/x.php", "= /", "= /a/b/x.txt", "= /a"];
    const REGEXES: &[&str] = &[
        "~ \\.php$",
        "~ \\.txt$",
        "~ ^/a/",
        "~ \\.(txt|bak)$",
        "~* \\.PHP$",
        "~ ^/a/.+\\.php$",
        "~ /b/",
        "~ x",
        "~ ^/(a|admin)/",
        "~ /x\\.",
        "~ [^/]\\.php(/|$)",
        "~ ^/(?!a/).*\\.txt$",
        "~ \\.php",
    ];
    const ACCESS: &[&str] = &[
        "",
        "",
        "",
        "deny all;",
        "allow 10.0.0.0/8; deny all;",
        "allow all;",
        "AUTH",
        "auth_basic off;",
        "internal;",
        "return 403;",
        "deny all; allow 127.0.0.1;",
        "limit_except GET { deny all; }",
        "auth_request /deny;",
        "auth_request off;",
        "satisfy any; allow 127.0.0.1; deny all; AUTH",
        "satisfy any; allow 10.0.0.0/8; deny all; AUTH",
        "satisfy any;",
        "satisfy all;",
    ];
    const CONTENT: &[&str] = &[
        "",
        "",
        "PROXY",
        "PHP ",
        "PHP ",
        "root ROOT/site2;",
        "autoindex on;",
        "try_files $uri /x.txt;",
        "try_files $uri @named;",
    ];
    let mut seen = Vec::new();
    let mut text = String::new();
    for _ in 0..=random.below(4) {
        let kind = random.below(8);
        let (name, is_inner) = match kind {
            0 => (random.one_of(NAMES).to_owned(), false),
            1..=3 => (random.one_of(REGEXES).to_owned(), true),
            4 => (format!("^~ {}", random.one_of(PREFIXES)), true),
            _ => (random.one_of(PREFIXES).to_owned(), true),
        };
        let path = name.trim_start_matches(['=', '^', '~', ' ']).to_owned();
        let is_within = name.starts_with('~') || path.starts_with(around) && path != around;
        if !is_within || around.starts_with('~') && !name.starts_with('~') || seen.contains(&path) {
            continue;
        }
        let inner_around = if name.starts_with('~') { name.as_str() } else { path.as_str() };
        let inner = match is_inner && depth > 0 && random.below(3) == 0 {
            true => locations(random, inner_around, depth - 1),
            false => String::new(),
        };
        text += &format!("location {name} {{ {} {} {inner} }} ", random.one_of(ACCESS), random.one_of(CONTENT));
        seen.push(path);
    }
    text
}

/// A random server: its locations, after directives for all of them.
fn random_server(random: &mut Random) -> String {
    const OF_ALL: &[&str] =
        &["", "", "", "deny all;", "allow 10.0.0.0/8; deny all;", "AUTH", "auth_request /deny;", "index index.php;"];
    const NAMED: &[&str] = &["PROXY", "deny all; PROXY", "rewrite ^ /x.txt;"];
    let (of_all, named) = (random.one_of(OF_ALL), random.one_of(NAMED));
    let own = locations(random, "", 2);
    format!("{of_all} {own} location @named {{ {named} }} location = /deny {{ internal; PROXY }}")
}

#[test]
fn conversion_of_random_locations_never_serves_what_nginx_refuses() {
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut random = Random(seed);
    let mut requests: Vec<String> =
        ["/", "/a", "/a/", "/a/b/", "/none", "/a/none", "/adx", "/a/b/x", "POST /none", "POST /a/none"]
            .map(str::to_owned)
            .into();
    for folder in ["", "a/", "a/b/", "admin/", "st/"] {
        requests.extend(["x.txt", "x.php", "x.PHP", "x.bak", "x.php~"].map(|name| format!("/{folder}{name}")));
    }
    requests.extend(["/x.txt USER", "/a/x.txt USER", "/a/x.php USER", "/admin/x.txt USER"].map(str::to_owned));
    let names: Vec<String> = (0..100).map(|number| format!("r{number}")).collect();
    let rows: Vec<_> = names.iter().map(|name| (name.as_str(), random_server(&mut random), requests.clone())).collect();
    let Compared { problems, exact } = compare(&rows);
    assert!(problems.is_empty(), "SEED={seed}\n{problems}");
    assert!(exact > 0);
}
