//! The configuration file: its tables in their order, and the keys of a site. `settings` has the other tables.
//!
//! serde reads [`File`], and `--print-config` prints it; see `settings` for how a key is defined. serde's `flatten` and
//! `untagged` are not used anywhere, because errors in such values would have no position in the text.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use amped_core::access::AccessRule;
use amped_core::authorize::AuthorizeRule;
use amped_core::cache::Budgets;
use amped_core::condition::Condition;
use amped_core::cors::CorsRule;
use amped_core::early_hints::EarlyHints;
use amped_core::forms::{
    BackendLocationPrefix, BackendPath, FieldValue, FolderPath, ForwardedFieldName, ForwardedFieldValue,
    LocationReplacement, ResponseFieldName,
};
use amped_core::glob::Glob;
use amped_core::headers::HeaderRule;
use amped_core::limits::Limits;
use amped_core::network::Network;
use amped_core::request_id::RequestIds;
use amped_core::request_limit::RequestLimit;
use amped_core::routes::{Fallback, QueryRule};
use amped_core::site::{EtagForm, NegotiationRule, Symlinks, Unlogged};
use amped_http::forwarded::ClientField;
use amped_http::negotiate::Coding;
use amped_units::{Bytes, Count, Form, PositiveSeconds, Seconds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::forms::{
    AccountName, BackendUrl, CachedStatus, Charset, Ending, ErrorStatus, FastCgiAddress, HomeDirectory, HostField,
    HostName, IndexName, Lifetime, MediaType, PagePath, Realm, RedirectTarget, RequestFieldName, RewriteTarget,
    ServerNameText, VariableName, VariableValue,
};
use super::optimise::Optimise;
use super::settings::{
    Architecture, Balance, ConnectionStart, ContainSettings, ControlSettings, HealthCheck, HelperSettings, Listen,
    LogSettings, MetricsSettings, ObjectStorageSettings, RetryStatus, SendSettings, SpoolSettings, StopSettings,
    TlsSettings,
};

/// Configuration of amped
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct File {
    /// Addresses and ports to listen on, such as `[::1]:8080`, or `*:8080` for every address of IPv4 and IPv6; `*:443 tls` serves
    /// https, and `*:443 tls proxy` expects the PROXY protocol before it
    #[schemars(length(min = 1))]
    #[default(vec![Listen { address: ([127, 0, 0, 1], 8080).into(), start: ConnectionStart::default() }])]
    pub listen: Vec<Listen>,
    /// HTTP/2 for clients that choose it: by ALPN with TLS, by prior knowledge without
    #[default(true)]
    pub http2: bool,
    /// Addresses and networks of proxies and load balancers that name the client of a request
    ///
    /// From these, the client's address and scheme are those in `client_address`, and in the PROXY protocol. The client is the last
    /// address in the field that is not listed here. Only list machines that set the field themselves: any other could forge
    /// addresses. Fields from other machines are ignored.
    #[schemars(extend("examples" = [["10.0.0.0/8", "::1"]]))]
    pub trusted_proxies: Vec<Network>,
    /// Field in which trusted proxies name the client
    pub client_address: ClientField,
    /// Server architecture
    ///
    /// Changing it requires a restart.
    pub architecture: Architecture,
    /// Event loops of amped and sped, threads of mt, processes of mp; default 1, in mt and mp 64
    ///
    /// One event loop per core is enough: a loop serves thousands of clients. A thread or process serves one client at a time.
    /// Changing it requires a restart.
    #[serde(with = "Count::<1, 4096>")]
    #[schemars(example = 1)]
    pub workers: Option<usize>,
    /// User to switch to after the ports are bound
    ///
    /// Ports below 1024 require starting as root, or CAP_NET_BIND_SERVICE; root should not serve clients.
    /// Changing it requires a restart.
    #[schemars(example = "www-data")]
    #[serde(deserialize_with = "AccountName::text")]
    pub user: Option<Box<str>>,
    /// Group to switch to; default: the group of `user`
    #[schemars(example = "www-data")]
    #[serde(deserialize_with = "AccountName::text")]
    pub group: Option<Box<str>>,
    /// Files with further `[[site]]` tables, such as `sites/*.toml`; only the name of a file may be a pattern
    ///
    /// Their sites follow those of this file, in the order of the list, and of the names that a pattern matches. Each file is read once; a
    /// pattern may match none. Hidden files are ignored. Paths in them are relative to the directory of this file. A reload reads all again.
    #[schemars(extend("examples" = [["sites/*.toml"]]))]
    pub include: Vec<Box<str>>,
    /// Shorthand for a first site with only a root
    #[schemars(example = "/var/www")]
    pub root: Option<PathBuf>,
    pub helpers: HelperSettings,
    pub log: LogSettings,
    pub limits: Limits,
    pub cache: Budgets,
    pub object_storage: ObjectStorageSettings,
    pub optimise: Optimise,
    pub spool: SpoolSettings,
    pub send: SendSettings,
    pub tls: TlsSettings,
    pub control: ControlSettings,
    pub metrics: MetricsSettings,
    pub stop: StopSettings,
    pub contain: ContainSettings,
    pub site: Vec<SiteTable>,
}

/// Site; the first is the default one
///
/// The default site serves all host names that no other site has.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct SiteTable {
    /// Host names; "*.example.org" is every name below example.org, "www.*" every name that begins with "www."
    ///
    /// Required for every site but the first. An exact name takes precedence, then the longest with a star at its beginning, then at
    /// its end.
    #[schemars(extend("examples" = [["example.org", "*.example.org"]]))]
    #[serde(deserialize_with = "HostName::list")]
    pub hosts: Vec<Box<str>>,
    /// Directory that the site serves, or `s3://BUCKET/PREFIX` for a bucket of the store in `[object_storage]`
    ///
    /// Required, unless given on the command line.
    #[schemars(example = "/var/www")]
    pub root: Option<PathBuf>,
    /// Certificate chains (PEM), the site's own certificate first in each file
    ///
    /// With an ECDSA and an RSA certificate, clients get the first that they accept. A site without certificates uses
    /// those of the first site that has any.
    #[schemars(extend("examples" = [["example.org.pem"]]))]
    pub certificate: Vec<PathBuf>,
    /// Private keys (PEM) of these certificates, in their order
    ///
    /// Read before the server switches to `user`, and again when they change: that user must be able to read them.
    #[schemars(extend("examples" = [["example.org.key"]]))]
    pub key: Vec<PathBuf>,
    /// Obtain the certificate for `hosts` from a CA, and renew it in time (ACME), instead of `certificate` and `key`
    ///
    /// Requires `agree_to_terms` in `[tls.acme]`, an address with TLS, and that port 80 or 443 of all `hosts` leads here. Until the
    /// first certificate is there, TLS handshakes with the site fail. Names with `*` cannot be proved this way.
    pub acme: bool,
    /// OCSP responses (DER) of these certificates, in their order; "" for a certificate without one
    ///
    /// Sent to clients in the handshake (stapling), and read again when they change. One that is missing, has expired, or does
    /// not say that the certificate is good is not sent, which the server and `amped check` report.
    #[schemars(extend("examples" = [["example.org.ocsp"]]))]
    pub ocsp: Vec<PathBuf>,
    /// Redirect requests without TLS to https
    ///
    /// Challenges of CAs, below `/.well-known/acme-challenge/`, are not redirected unless they require a password, so that any ACME
    /// client can write its answers into the site.
    pub redirect_to_https: bool,
    /// Value of Strict-Transport-Security: browsers then use https only (RFC 6797)
    ///
    /// `max-age` in seconds, optionally `includeSubDomains` and `preload`. Sent with every response over TLS, and never without TLS.
    /// Browsers comply until `max-age` has passed; a response with `max-age=0` ends it.
    #[schemars(example = "max-age=31536000; includeSubDomains")]
    pub hsts: Option<Box<str>>,
    /// Recipients of an ID of each request: "off", "applications" (X-Request-Id) or "all", with responses; and the access log
    ///
    /// Random, or what a trusted proxy has sent in X-Request-Id. A template of the log has it as `$request_id`.
    pub request_ids: RequestIds,
    /// Index pages of a directory, in order of preference
    #[serde(deserialize_with = "IndexName::list")]
    #[default(["index.html", "index.htm"].map(Box::from).into())]
    pub index: Vec<Box<str>>,
    /// List directories without an index page; otherwise 403
    pub listing: bool,
    /// Serve names that begin with a dot; /.well-known is always served
    pub dotfiles: bool,
    /// Codings of precompressed siblings to serve, such as style.css.br; [] for none
    ///
    /// A sibling older than its original is ignored.
    #[default(Coding::SIBLINGS.into())]
    pub precompressed: Vec<Coding>,
    /// Codings in which text files without such a sibling are compressed on the fly, such as ["br", "zstd", "gzip"]
    ///
    /// Types `text/*`, JSON, JavaScript, XML, SVG and WebAssembly, from 1 KiB to 4 MiB, with Brotli's level 5, Zstandard's 12 or gzip's 6. The first client gets the file itself; a
    /// thread of low priority compresses it for later ones. Responses of applications have a key of their own.
    #[schemars(extend("examples" = [["br", "zstd", "gzip"]]))]
    pub compress: Vec<Coding>,
    /// Directory in a user's home that /~user/ serves
    #[schemars(example = &"public_html")]
    #[serde(deserialize_with = "HomeDirectory::text")]
    pub user_dirs: Option<Box<str>>,
    /// Charset of text types without one; "": none
    #[serde(deserialize_with = "Charset::text")]
    #[default("utf-8".into())]
    pub charset: Box<str>,
    /// Media type of files with an unknown suffix
    #[serde(deserialize_with = "MediaType::text")]
    #[default("application/octet-stream".into())]
    pub default_type: Box<str>,
    /// Entity tags
    pub etag: EtagForm,
    /// Symbolic links to follow
    pub symlinks: Symlinks,
    /// Media types by suffix
    #[schemars(extend("examples" = [{ "log": "text/plain" }]))]
    #[serde(deserialize_with = "Ending::map::<MediaType, _>")]
    pub types: BTreeMap<Box<str>, Box<str>>,
    /// Error pages by status or class (`4xx`, `5xx`), as paths of the site; a status precedes its class
    #[schemars(extend("examples" = [{ "404": "/404.html", "5xx": "/error.html" }]))]
    #[serde(deserialize_with = "ErrorStatus::map::<PagePath, _>")]
    pub errors: BTreeMap<Box<str>, Box<str>>,
    pub headers: Vec<HeaderRule>,
    pub early_hints: Vec<EarlyHints>,
    pub cors: Vec<CorsRule>,
    pub route: Vec<RouteTable>,
    pub alias: Vec<AliasTable>,
    pub fallback: Vec<Fallback>,
    pub unlogged: Vec<Unlogged>,
    pub access: Vec<AccessRule>,
    pub limit: Vec<RequestLimit>,
    pub auth: Vec<AuthTable>,
    pub authorize: Vec<AuthorizeRule>,
    pub negotiation: Vec<NegotiationRule>,
    pub app: Vec<AppTable>,
}

/// Redirect, rewrite, denial or fixed response by pattern
///
/// The first table whose `match` matches applies. It has exactly one of `redirect`, `rewrite`, `deny`, `respond`, `internal`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct RouteTable {
    /// Paths that the route applies to
    #[serde(rename = "match")]
    #[schemars(example = "/old/**")]
    pub pattern: Glob,
    /// Requests that the route applies to; see "Conditions" above
    #[serde(default)]
    #[schemars(extend("examples" = [{ "query": { "action": "register" } }]))]
    pub when: Option<Box<Condition>>,
    /// Redirect to this path or URL; $1 is the text matched by the first wildcard, or group of a regular expression
    #[schemars(example = "/new/$1")]
    #[serde(default, deserialize_with = "RedirectTarget::text")]
    pub redirect: Option<Box<str>>,
    /// Serve this path instead, invisibly to the client; may have a query
    #[schemars(example = "/posts/$1.html")]
    #[serde(default, deserialize_with = "RewriteTarget::text")]
    pub rewrite: Option<Box<str>>,
    /// Query of the request, with a redirect or rewrite; default: kept, unless a redirect has a query of its own
    #[schemars(example = &"drop")]
    pub query: Option<QueryRule>,
    /// Deny access: neither served as a file nor run as a script
    #[schemars(example = true)]
    pub deny: Option<bool>,
    /// Respond with this body
    #[schemars(example = "User-agent: *")]
    pub respond: Option<String>,
    /// 404 for clients; a rewrite, a fallback or an application may lead to it
    #[schemars(example = true)]
    pub internal: Option<bool>,
    /// Status of a redirect (default 302), a denial (403) or a fixed response (200)
    #[schemars(example = 302)]
    pub status: Option<u16>,
    /// Header fields of a fixed response
    #[serde(default, deserialize_with = "ResponseFieldName::map::<FieldValue, _>")]
    #[schemars(extend("examples" = [{ "Content-Type": "text/plain" }]))]
    pub headers: BTreeMap<Box<str>, Box<str>>,
}

/// Paths whose files are in another directory than the site's root, by pattern
///
/// The first table whose `match` matches applies. Everything else about the site applies to them too: routes, applications, passwords,
/// header rules, `index`, `listing`, `symlinks`, `dotfiles`. Listings of the root do not show them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct AliasTable {
    /// Paths that the table applies to
    #[serde(rename = "match")]
    #[schemars(example = "/static/**")]
    pub pattern: Glob,
    /// Directory that has their files, or `s3://BUCKET/PREFIX`
    #[schemars(example = "/srv/static")]
    pub root: PathBuf,
    /// Look up the whole path below it
    ///
    /// Otherwise without the directories with which `match` begins: with `/static/**`, `/static/css/a.css` is `css/a.css`. These end at the last
    /// slash before the first wildcard.
    #[serde(default)]
    pub keep_prefix: bool,
}

/// Directory that requires a password (Basic, RFC 7617)
///
/// Of nested directories, the innermost table applies. If a route rewrites a path, the password must be valid in both.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct AuthTable {
    /// Path of the directory, with a slash at both ends; includes everything below it
    #[schemars(example = "/private/")]
    #[serde(deserialize_with = "FolderPath::text")]
    pub directory: Box<str>,
    /// Name that browsers show; default: the directory
    #[schemars(example = &"Staff")]
    #[serde(default, deserialize_with = "Realm::text")]
    pub realm: Option<Box<str>>,
    /// File of names and password hashes (bcrypt or argon2id), see htpasswd(1)
    #[schemars(example = &"htpasswd")]
    pub accounts: PathBuf,
    /// Addresses and networks of clients that need no password
    #[serde(default)]
    #[schemars(extend("examples" = [["10.0.0.0/8"]]))]
    pub exempt: Vec<Network>,
}

/// Application (CGI, FastCGI or HTTP) by pattern
///
/// The first table whose `match` matches a path, or the beginning of one, applies. It has exactly one of `cgi`, `fastcgi`,
/// `command`, `http` and `static`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct AppTable {
    /// Paths of its scripts; the rest of a path is PATH_INFO
    ///
    /// `/cgi-bin/**` for a directory, `*.php` for a suffix, `/app` for one script.
    #[serde(rename = "match")]
    #[schemars(example = "/cgi-bin/**")]
    pub pattern: Glob,
    /// Requests that the application gets; see "Conditions" above
    ///
    /// Others get 403, so that the source of a script is never sent; with `http` they are served as if the table were absent.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "methods": ["GET", "HEAD"] }]))]
    pub when: Option<Box<Condition>>,
    /// Run the script, an executable file, for each request
    #[schemars(example = true)]
    pub cgi: Option<bool>,
    /// User that scripts of `cgi` run as; default: the server's
    ///
    /// Requires that the server is started as root. Scripts then cannot signal the server, nor read what only its user may.
    #[schemars(example = &"scripts")]
    #[serde(default, deserialize_with = "AccountName::text")]
    pub user: Option<Box<str>>,
    /// Socket or address of a running FastCGI application
    ///
    /// `unix:PATH` or `ADDR:PORT`.
    #[schemars(example = "unix:/run/php/php-fpm.sock")]
    #[serde(default, deserialize_with = "FastCgiAddress::text")]
    pub fastcgi: Option<Box<str>>,
    /// FastCGI application that the server starts: program and arguments
    #[schemars(extend("examples" = [["/srv/app/serve"]]))]
    pub command: Option<Vec<String>>,
    /// Address of a server to which requests are forwarded by HTTP/1.1, or a list of several that serve the same
    ///
    /// `HOST:PORT`, `https://HOST:PORT` for TLS, or `unix:PATH`. All addresses of a name are used. After an address of a list, `weight=3`
    /// gives it three times as many requests as one without, and `backup` requests only while no other one is in service.
    #[schemars(example = "127.0.0.1:3000", extend("type" = ["string", "array", "null"]))]
    #[serde(default, deserialize_with = "BackendUrl::one_or_list")]
    pub http: Option<Vec<Box<str>>>,
    /// Interval at which names in `http` are resolved again; default 30s
    ///
    /// A name that cannot be resolved keeps its addresses; while it has none, requests get 502.
    #[schemars(example = "30s")]
    #[serde(default, with = "PositiveSeconds")]
    pub resolve: Option<Duration>,
    /// Host of requests forwarded by `http`; default: the client's, which X-Forwarded-Host always has
    #[schemars(example = "app.internal")]
    #[serde(default, deserialize_with = "HostField::text")]
    pub host: Option<Box<str>>,
    /// Path at the `http` server in place of that of `match`, which is a path, or a path and `/**`; default: the same path
    ///
    /// With `match = "/wiki/**"` and `backend_path = "/"` the server gets `/a` for `/wiki/a`, and `X-Forwarded-Prefix: /wiki`. Location is
    /// changed back; links in pages and paths of cookies are not.
    #[schemars(example = "/")]
    #[serde(default, deserialize_with = "BackendPath::text")]
    pub backend_path: Option<Box<str>>,
    /// Fields of requests forwarded by `http`, in place of the client's; `""` removes one
    ///
    /// Variables, as in nginx: `$remote_addr`, `$remote_user`, `$host`, `$http_host`, `$scheme`, `$request_method`, `$request_uri`,
    /// `$server_port`, `$ssl_protocol`, `$ssl_cipher`, `$ssl_client_verify`, `$ssl_client_s_dn`, and `$http_NAME` for a field of the client.
    #[serde(default, deserialize_with = "ForwardedFieldName::map::<ForwardedFieldValue, _>")]
    #[schemars(extend("examples" = [{ "X-Real-IP": "$remote_addr" }]))]
    pub request_fields: BTreeMap<Box<str>, Box<str>>,
    /// Prefixes of Location in responses, and their replacements; the longest prefix applies (`proxy_redirect` of nginx)
    ///
    /// Default: URLs of the server itself are rewritten to the client's host and path, as `host` and `backend_path` require; this key
    /// replaces that. The variables are `$scheme`, `$host` and `$http_host`. A result that begins with `//` is not used: it would name
    /// another host.
    #[serde(default, deserialize_with = "BackendLocationPrefix::map::<LocationReplacement, _>")]
    #[schemars(extend("examples" = [{ "http://": "$scheme://" }]))]
    pub map_location: BTreeMap<Box<str>, Box<str>>,
    /// Which of several `http` servers gets a request; default round-robin
    #[schemars(example = "round-robin")]
    pub balance: Option<Balance>,
    /// Field of requests whose value `balance = "hash"` uses instead of the client's address
    #[schemars(example = "X-User")]
    #[serde(default, deserialize_with = "RequestFieldName::text")]
    pub hash_field: Option<Box<str>>,
    /// Failures in succession after which one of several `http` servers gets no requests; default 3
    #[schemars(example = 3)]
    #[serde(default, with = "Count::<1, 1000>")]
    pub max_failures: Option<usize>,
    /// Time that it gets none; then one request tries it; default 10s
    #[schemars(example = "10s")]
    #[serde(default, with = "PositiveSeconds")]
    pub failure_timeout: Option<Duration>,
    /// Statuses after which a request is retried on another of several `http` servers, 400 to 599; default: none
    ///
    /// Only idempotent requests without a body, and as long as a server in service is left; then the response is passed on. A status from
    /// 500 on, and 429, counts as a failure of the server.
    #[schemars(extend("examples" = [[502, 503, 504]]))]
    pub retry_statuses: Option<Vec<RetryStatus>>,
    /// Requests by which each of several `http` servers shows whether it works; default: none
    #[schemars(extend("examples" = [{ "path": "/health" }]))]
    pub health: Option<HealthCheck>,
    /// Maximum time to connect to an `http` server; then another one, or 504; default 5s
    #[schemars(example = "5s")]
    #[serde(default, with = "PositiveSeconds")]
    pub connect_timeout: Option<Duration>,
    /// Maximum time without data in the body of an `http` response; then it is cut off; default: `timeout`
    #[schemars(example = "60s")]
    #[serde(default, with = "PositiveSeconds")]
    pub idle_timeout: Option<Duration>,
    /// Maximum time without data in either direction of a WebSocket connection to an `http` server; default 1h
    #[schemars(example = "1h")]
    #[serde(default, with = "PositiveSeconds")]
    pub tunnel_timeout: Option<Duration>,
    /// Certificates of the CAs that `https` servers are verified against, or of the servers themselves; default: the system's CAs
    ///
    /// A file in PEM. Read when the configuration is read.
    #[schemars(example = "/etc/ssl/internal-ca.pem")]
    pub tls_ca: Option<PathBuf>,
    /// Name that certificates of `https` servers must have; default: the host in the address
    #[schemars(example = "app.internal")]
    #[serde(default, deserialize_with = "ServerNameText::text")]
    pub tls_name: Option<Box<str>>,
    /// Certificate that `https` servers get, with its chain: a file in PEM
    #[schemars(example = "/etc/amped/client.pem")]
    pub tls_certificate: Option<PathBuf>,
    /// Its private key
    #[schemars(example = "/etc/amped/client.key")]
    pub tls_key: Option<PathBuf>,
    /// Verify the certificates of `https` servers; default true
    ///
    /// Without it, an attacker who can redirect the connection can read and change what is forwarded.
    #[schemars(example = true)]
    pub tls_verify: Option<bool>,
    /// Serve these paths as files of the site, although a later table matches them
    ///
    /// `match` then means whole paths: `/static/**` has everything in that directory. The table has no other keys than these two and `when`.
    /// A file that exists in compressed form only (`a.txt.gz`) is served as `/a.txt` if a table has its own name too: else it belongs to the application.
    #[serde(rename = "static")]
    #[schemars(example = true)]
    pub is_static: Option<bool>,
    /// Whether scripts are files of the site, so that other paths get 404; default: for patterns with a star
    ///
    /// With `false`, everything below `/dav` or `/dav/**` gets `/dav` as SCRIPT_NAME. Always `false` for `http`.
    #[schemars(example = true)]
    pub files: Option<bool>,
    /// Idle processes of `command` (default 1), or connections of `fastcgi` (default 0) or to each server of `http` (32), to keep
    ///
    /// An idle connection may occupy a process of the application that other clients need. At most `max_processes`.
    #[schemars(example = 1)]
    pub min_spare: Option<usize>,
    /// Maximum time without progress; then 504
    #[serde(default = "minute", with = "PositiveSeconds")]
    pub timeout: Duration,
    /// Maximum request body; a longer one gets 413
    #[serde(default = "hundred_mib")]
    pub max_body_bytes: Bytes,
    /// Maximum response; default: any length
    #[schemars(example = "1GiB")]
    pub max_response_bytes: Option<Bytes>,
    /// Receive a request completely before it takes a process
    ///
    /// Slow uploads then hold no process. Otherwise bodies are forwarded as they arrive, except chunked ones to CGI and FastCGI.
    #[serde(default = "yes")]
    pub buffer_request: bool,
    /// Read a response at full speed and buffer it
    ///
    /// Slow downloads then hold no process. Otherwise, or with `X-Accel-Buffering: no` in a response, it is read as fast as the
    /// client receives it.
    #[serde(default = "yes")]
    pub buffer_response: bool,
    /// Cache responses to GET (RFC 9111); for this long if they set no lifetime
    ///
    /// Cache-Control, Expires and `X-Accel-Expires` (seconds, or `@` and a Unix time) set one; `0` forbids it.
    #[serde(default, with = "Seconds")]
    #[schemars(example = "10s")]
    pub cache: Option<Duration>,
    /// Other times by status, or by class (`2xx` to `5xx`), which a status precedes; `0s`: not cached
    ///
    /// A class does not include 400, 408, 413, 417, 421 and 425, which a client can cause by what it sends besides the target.
    /// Without it, responses with 200, 203, 204, 300, 301, 308, 404 or 410 are cached, and redirects that set a lifetime.
    #[serde(default, deserialize_with = "CachedStatus::map::<Lifetime, _>")]
    #[schemars(extend("examples" = [{ "404": "1m", "302": "10m" }]))]
    pub cache_by_status: BTreeMap<Box<str>, Box<str>>,
    /// Use a cached response this much longer, while it is renewed in the background, if it says nothing about that
    ///
    /// As `stale-while-revalidate` of its Cache-Control (RFC 5861), which takes precedence.
    #[serde(default, with = "Seconds")]
    #[schemars(example = "30s")]
    pub stale_while_revalidate: Option<Duration>,
    /// Use a cached response this much longer in place of 500, 502, 503 or 504, if it says nothing about that
    ///
    /// As `stale-if-error` of its Cache-Control (RFC 5861), which takes precedence. Also if the application cannot be reached,
    /// or its timeout expires. For a second after an error, all requests get the response at once.
    #[serde(default, with = "Seconds")]
    #[schemars(example = "1h")]
    pub stale_if_error: Option<Duration>,
    /// Codings in which text responses are compressed, such as ["zstd", "gzip"]; only if no page has a secret beside text of its request
    ///
    /// Types as for `compress` of a site, from 1 KiB if the length is known, unless the application has chosen a coding or says
    /// `Cache-Control: no-transform`. With Zstandard's level 3, gzip's 4 or Brotli's 4.
    #[serde(default)]
    #[schemars(extend("examples" = [["zstd", "gzip"]]))]
    pub compress: Vec<Coding>,
    /// Maximum concurrent requests across the whole server; default 20, for `fastcgi` and `http` no limit
    #[serde(default, with = "Count::<1, 4096>")]
    #[schemars(example = 20)]
    pub max_processes: Option<usize>,
    /// Maximum requests that wait for a process; further ones get 503
    #[serde(default = "thousand")]
    pub max_queue: usize,
    /// Environment variables in addition to those of CGI; none are inherited
    #[serde(default, deserialize_with = "VariableName::map::<VariableValue, _>")]
    #[schemars(extend("examples" = [{ "LANG": "C.UTF-8" }]))]
    pub env: BTreeMap<Box<str>, Box<str>>,
}

fn minute() -> Duration {
    Duration::from_secs(60)
}

fn hundred_mib() -> Bytes {
    Bytes::mib(100)
}

fn thousand() -> usize {
    1000
}

fn yes() -> bool {
    true
}
