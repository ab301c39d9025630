//! What becomes of each directive of nginx: some are translated, some need nothing, and others have no equivalent.
//!
//! A directive needs nothing only if no response differs without it, which the tables justify.

use super::tree::Directive;

/// What becomes of a directive.
pub(super) enum Fate {
    /// A module here translates it.
    Translated,
    /// amped does this by itself, or has no need for it.
    Satisfied,
    /// It has no equivalent, for this reason, or with this remedy.
    Left(&'static str),
}

/// What becomes of this directive.
pub(super) fn fate(directive: &Directive) -> Fate {
    let name = directive.name.as_str();
    if TRANSLATED.contains(&name) {
        return Fate::Translated;
    }
    if NEEDLESS.iter().any(|(_, names)| names.contains(&name)) || name.starts_with("open_file_cache") {
        return Fate::Satisfied;
    }
    match BY_VALUE.iter().find(|by_value| by_value.0 == name) {
        Some(by_value) => by_value.left(directive).map_or(Fate::Satisfied, Fate::Left),
        None => {
            let hint = HINTS.iter().find(|(names, _)| names.contains(&name));
            Fate::Left(hint.map_or("no equivalent", |(_, hint)| hint))
        }
    }
}

/// A directive, its arguments that need nothing, and why others are left.
pub(super) struct ByValue(pub(super) &'static str, &'static [&'static str], &'static str);

impl ByValue {
    /// Why this directive is left, if it is.
    pub(super) fn left(&self, directive: &Directive) -> Option<&'static str> {
        let ByValue(_, needless, why) = self;
        (!needless.contains(&directive.args.join(" ").as_str())).then_some(why)
    }
}

/// Directives about TLS with clients, which have an effect only where a server has a certificate.
pub(super) const TLS: &[ByValue] = &[
    ByValue(
        "ssl_protocols",
        &["TLSv1.2 TLSv1.3", "TLSv1.3 TLSv1.2"],
        "TLS 1.2 and 1.3 are always offered, and no older version",
    ),
    ByValue(
        "ssl_ciphers",
        &[],
        "the cipher suites are those of TLS 1.3, and ECDHE with AES-GCM or ChaCha20-Poly1305; clients without any of them are refused",
    ),
    ByValue("ssl_ecdh_curve", &["auto"], "the groups are fixed"),
    ByValue("ssl_conf_command", &[], "OpenSSL is not used"),
    ByValue("ssl_password_file", &[], "decrypt the private key: `openssl pkey -in KEY -out KEY`"),
];

/// Those that have an effect only where certificates of clients are verified.
pub(super) const CLIENT_CERTIFICATES: &[ByValue] = &[
    ByValue("ssl_verify_depth", &[], "chains of up to six certificates of CAs are accepted"),
    ByValue("ssl_trusted_certificate", &[], "append these certificates to the file of `client_ca`"),
];

/// Those about TLS with backends.
pub(super) const BACKEND_TLS: &[ByValue] = &[
    ByValue(
        "proxy_ssl_protocols",
        &["TLSv1.2 TLSv1.3", "TLSv1.3 TLSv1.2"],
        "TLS 1.2 and 1.3 are always offered, and no older version",
    ),
    ByValue("proxy_ssl_server_name", &["on"], "the name is always sent (SNI)"),
];

/// Keys that apply to all sites and paths, whose directives may be in a `location`.
pub(super) const OF_ALL_PATHS: &[(&str, &str)] = &[
    ("client_body_timeout", "limits.body_timeout"),
    ("keepalive_requests", "limits.max_requests"),
    ("keepalive_timeout", "limits.idle_timeout"),
    ("lingering_close", "limits.linger_timeout"),
    ("lingering_timeout", "limits.linger_timeout"),
    ("max_ranges", "limits.max_ranges"),
    ("real_ip_header", "client_address"),
    ("send_timeout", "limits.send_timeout"),
    ("set_real_ip_from", "trusted_proxies"),
];

const TRANSLATED: &[&str] = &[
    "access_log",
    "add_header",
    "alias",
    "allow",
    "auth_basic",
    "auth_basic_user_file",
    "auth_request",
    "auth_request_set",
    "autoindex",
    "break",
    "brotli",
    "charset",
    "client_body_timeout",
    "client_header_timeout",
    "client_max_body_size",
    "default_type",
    "deny",
    "error_page",
    "expires",
    "fastcgi_buffering",
    "fastcgi_cache",
    "fastcgi_cache_background_update",
    "fastcgi_cache_bypass",
    "fastcgi_cache_key",
    "fastcgi_cache_use_stale",
    "fastcgi_cache_valid",
    "fastcgi_hide_header",
    "fastcgi_no_cache",
    "fastcgi_param",
    "fastcgi_pass",
    "fastcgi_read_timeout",
    "fastcgi_request_buffering",
    "fastcgi_send_timeout",
    "gzip",
    "http",
    "http2",
    "http2_max_concurrent_streams",
    "if",
    "index",
    "internal",
    "keepalive_requests",
    "keepalive_timeout",
    "large_client_header_buffers",
    "limit_conn",
    "limit_conn_zone",
    "limit_except",
    "limit_rate",
    "limit_rate_after",
    "limit_req",
    "limit_req_zone",
    "lingering_close",
    "lingering_timeout",
    "listen",
    "location",
    "max_ranges",
    "proxy_buffering",
    "proxy_cache",
    "proxy_cache_background_update",
    "proxy_cache_bypass",
    "proxy_cache_key",
    "proxy_cache_use_stale",
    "proxy_cache_valid",
    "proxy_connect_timeout",
    "proxy_hide_header",
    "proxy_next_upstream",
    "proxy_no_cache",
    "proxy_pass",
    "proxy_read_timeout",
    "proxy_request_buffering",
    "proxy_send_timeout",
    "proxy_redirect",
    "proxy_set_header",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "proxy_ssl_name",
    "proxy_ssl_protocols",
    "proxy_ssl_server_name",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_verify",
    "real_ip_header",
    "return",
    "rewrite",
    "root",
    "satisfy",
    "send_timeout",
    "server",
    "server_name",
    "set_real_ip_from",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_ciphers",
    "ssl_client_certificate",
    "ssl_conf_command",
    "ssl_crl",
    "ssl_ecdh_curve",
    "ssl_password_file",
    "ssl_protocols",
    "ssl_trusted_certificate",
    "ssl_verify_client",
    "ssl_verify_depth",
    "stub_status",
    "try_files",
    "types",
    "upstream",
    "user",
    "worker_processes",
    "worker_shutdown_timeout",
    "zstd",
];

/// Directives without which no response differs: why, and their names.
const NEEDLESS: &[(&str, &[&str])] = &[
    (
        "sizes of buffers, which have no effect on what is sent",
        &[
            "client_body_buffer_size",
            "client_header_buffer_size",
            "connection_pool_size",
            "fastcgi_buffer_size",
            "fastcgi_buffers",
            "fastcgi_busy_buffers_size",
            "fastcgi_temp_file_write_size",
            "gzip_buffers",
            "http2_chunk_size",
            "http2_recv_buffer_size",
            "output_buffers",
            "postpone_output",
            "proxy_buffer_size",
            "proxy_buffers",
            "proxy_busy_buffers_size",
            "proxy_headers_hash_bucket_size",
            "proxy_headers_hash_max_size",
            "proxy_temp_file_write_size",
            "read_ahead",
            "request_pool_size",
            "sendfile_max_chunk",
            "server_names_hash_bucket_size",
            "server_names_hash_max_size",
            "ssl_buffer_size",
            "subrequest_output_buffer_size",
            "types_hash_bucket_size",
            "types_hash_max_size",
            "variables_hash_bucket_size",
            "variables_hash_max_size",
        ],
    ),
    (
        "how nginx reads, writes, and waits for events; each server has its own ways",
        &[
            "aio",
            "aio_write",
            "directio",
            "events",
            "fastcgi_socket_keepalive",
            "multi_accept",
            "pcre_jit",
            "proxy_socket_keepalive",
            "reset_timedout_connection",
            "sendfile",
            "tcp_nodelay",
            "tcp_nopush",
            "timer_resolution",
        ],
    ),
    (
        "the process of nginx; the service manager starts amped, which writes errors to standard error",
        &[
            "daemon",
            "error_log",
            "log_not_found",
            "log_subrequest",
            "pid",
            "rewrite_log",
            "uninitialized_variable_warn",
        ],
    ),
    ("severities of messages about clients beyond a limit", &["limit_conn_log_level", "limit_req_log_level"]),
    ("a directive of the module that is loaded is reported itself", &["load_module"]),
    ("the limit on open files, which amped raises to its maximum", &["worker_connections", "worker_rlimit_nofile"]),
    ("where a log has this format, that is reported", &["log_format"]),
    (
        "the form of a Location field, which clients resolve",
        &["absolute_redirect", "port_in_redirect", "server_name_in_redirect"],
    ),
    ("the look of a listing", &["autoindex_exact_size", "autoindex_localtime"]),
    (
        "which text is compressed, and how well: it is the same text for each client",
        &[
            "brotli_comp_level",
            "brotli_min_length",
            "brotli_types",
            "gzip_comp_level",
            "gzip_disable",
            "gzip_http_version",
            "gzip_min_length",
            "gzip_proxied",
            "gzip_types",
            "gzip_vary",
            "zstd_comp_level",
            "zstd_min_length",
            "zstd_types",
        ],
    ),
    ("no charset is added unless `charset` is on, and then to the types of text", &["charset_types"]),
    ("workarounds for browsers that are extinct", &["keepalive_disable", "msie_padding", "msie_refresh"]),
    ("a lingering close takes 30 s at most", &["lingering_time"]),
    ("an error page is a file, so no error page leads to another", &["recursive_error_pages"]),
    ("without `ssi on` it has no effect", &["ssi_types"]),
    (
        "names of backends are resolved again every 30 s, or as often as `valid` says; what needs a variable is reported",
        &["resolver", "resolver_timeout"],
    ),
    (
        "amped finds the script, its PATH_INFO and the index page of a directory itself; connections are reused if the application permits it",
        &["fastcgi_index", "fastcgi_keep_conn", "fastcgi_split_path_info"],
    ),
    ("requests are forwarded by HTTP/1.1, and responses of HTTP/1.0 understood", &["proxy_http_version"]),
    (
        "requests for a page that is not cached wait for one response; pages are renewed by their ETag or Last-Modified",
        &[
            "fastcgi_cache_lock",
            "fastcgi_cache_lock_age",
            "fastcgi_cache_lock_timeout",
            "fastcgi_cache_revalidate",
            "proxy_cache_lock",
            "proxy_cache_lock_age",
            "proxy_cache_lock_timeout",
            "proxy_cache_revalidate",
        ],
    ),
    ("all sessions with backends are resumed", &["proxy_ssl_session_reuse"]),
    ("all suites are strong, so a client may choose the fastest", &["ssl_prefer_server_ciphers"]),
    ("no suite uses them", &["ssl_dhparam"]),
    ("a client whose early data are refused sends them again after the handshake", &["ssl_early_data"]),
    (
        "how sessions are resumed; keys of tickets are replaced every 6 hours, so tickets need not be turned off",
        &["ssl_session_cache", "ssl_session_tickets", "ssl_session_timeout"],
    ),
];

/// Directives that need nothing with these arguments.
const BY_VALUE: &[ByValue] = &[
    ByValue("autoindex_format", &["html"], "listings are HTML"),
    ByValue(
        "brotli_static",
        &["on"],
        "`precompressed` in `[[site]]` is on by default, and serves those that the client accepts",
    ),
    ByValue("chunked_transfer_encoding", &["on"], "responses of unknown length are chunked"),
    ByValue("client_body_in_file_only", &["off", "clean"], "bodies are removed after the request"),
    ByValue(
        "early_hints",
        &["1", "on"],
        "hints of applications are passed on to all clients of HTTP/1.1 and later, as RFC 9110, 15.2 requires; `[[site.early_hints]]` has links that browsers get",
    ),
    ByValue("etag", &["on"], "files always have an entity tag"),
    ByValue(
        "fastcgi_cache_methods",
        &["GET HEAD", "HEAD GET", "GET", "HEAD"],
        "responses to GET and HEAD are cached, and no others",
    ),
    ByValue("fastcgi_cache_min_uses", &["1"], "a page is cached when it is first requested"),
    ByValue("fastcgi_ignore_client_abort", &["off"], "a request whose client leaves is ended"),
    ByValue("fastcgi_intercept_errors", &["off"], "errors of applications are sent as they are"),
    ByValue("fastcgi_store", &["off"], "responses are not stored as files; use `cache` in `[[site.app]]`"),
    ByValue(
        "gzip_static",
        &["on"],
        "`precompressed` in `[[site]]` is on by default, and serves those that the client accepts",
    ),
    ByValue("if_modified_since", &["exact", "before"], "conditions of requests are always evaluated"),
    ByValue("ignore_invalid_headers", &["on"], "a request with an invalid field name gets 400"),
    ByValue("keepalive_time", &["1h"], "a connection ends after `max_requests`, or when it is idle"),
    ByValue("limit_conn_dry_run", &["off"], "the requests are not limited"),
    ByValue("limit_conn_status", &["429"], "the status is 429"),
    ByValue("limit_req_dry_run", &["off"], "the requests are not limited"),
    ByValue("limit_req_status", &["429"], "the status is 429"),
    ByValue("merge_slashes", &["on"], "slashes are always merged"),
    ByValue("proxy_bind", &["off"], "the kernel chooses the address"),
    ByValue("proxy_cache_convert_head", &["on"], "a cached response to GET answers HEAD too"),
    ByValue(
        "proxy_cache_methods",
        &["GET HEAD", "HEAD GET", "GET", "HEAD"],
        "responses to GET and HEAD are cached, and no others",
    ),
    ByValue("proxy_cache_min_uses", &["1"], "a page is cached when it is first requested"),
    ByValue("proxy_force_ranges", &["off"], "the application decides about ranges"),
    ByValue("proxy_ignore_client_abort", &["off"], "a request whose client leaves is ended"),
    ByValue("proxy_intercept_errors", &["off"], "errors of applications are sent as they are"),
    ByValue("proxy_pass_request_body", &["on"], "bodies are forwarded"),
    ByValue("proxy_pass_request_headers", &["on"], "fields of requests are forwarded"),
    ByValue("proxy_store", &["off"], "responses are not stored as files; use `cache` in `[[site.app]]`"),
    ByValue("real_ip_recursive", &["on"], "the client is the last address that is not a trusted proxy's"),
    ByValue("server_tokens", &["off"], "the version is not sent"),
    ByValue(
        "ssl_reject_handshake",
        &["off"],
        "a client that asks for an unknown name gets the certificate of the first site",
    ),
    ByValue("ssl_stapling", &["off"], "use `ocsp` in `[[site]]`, which names a file with the response"),
    ByValue(
        "underscores_in_headers",
        &["off"],
        "fields with an underscore are forwarded by HTTP, and never become variables of CGI and FastCGI",
    ),
    ByValue(
        "zstd_static",
        &["on"],
        "`precompressed` in `[[site]]` is on by default, and serves those that the client accepts",
    ),
];

const HINTS: &[(&[&str], &str)] = &[
    (
        &["map", "geo", "split_clients"],
        "there are no variables of your own; use conditions (`when`) in the rules that use it",
    ),
    (&["set"], "only a variable that always has the same value is replaced by it; write the value where it is used"),
    (
        &["fastcgi_cache_path", "proxy_cache_path"],
        "pages are kept in memory, within `content_bytes` of `[cache]`, and not over a restart",
    ),
    (&["fastcgi_cache_purge", "proxy_cache_purge"], "a reload of the configuration removes all cached pages"),
    (
        &["fastcgi_ignore_headers", "proxy_ignore_headers"],
        "Cache-Control, Expires, Set-Cookie, Vary and X-Accel-Expires of responses are always obeyed",
    ),
    (&["http2_push", "http2_push_preload"], "use `[[site.early_hints]]` for links that clients load early"),
    (&["ssl_stapling_verify", "ssl_stapling_file"], "use `ocsp` in `[[site]]`, which names a file with the response"),
    (
        &[
            "sub_filter",
            "sub_filter_once",
            "sub_filter_types",
            "ssi",
            "addition_types",
            "add_before_body",
            "add_after_body",
        ],
        "responses are not modified",
    ),
    (&["auth_jwt"], "use `[[site.authorize]]`, or let the application decide"),
    (&["stream", "mail"], "amped serves HTTP only"),
    (&["uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass"], "use `fastcgi` or `http` in `[[site.app]]`"),
    (&["mirror"], "requests are sent to one application only"),
    (
        &["valid_referers", "secure_link", "secure_link_md5"],
        "use `when = { header = { Referer = \"...\" } }` in a rule",
    ),
    (&["disable_symlinks"], "use `symlinks` in `[[site]]`"),
    (&["proxy_ssl_ciphers", "proxy_ssl_conf_command"], "the cipher suites are fixed"),
    (&["proxy_ssl_crl", "proxy_ssl_verify_depth"], "certificates of backends are checked by `tls_ca` and `tls_name`"),
    (&["proxy_ssl_password_file"], "decrypt the private key: `openssl pkey -in KEY -out KEY`"),
    (&["ssl_session_ticket_key"], "use `ticket_secret` in `[tls]`"),
    (&["http3", "quic_gso", "quic_retry"], "no HTTP/3"),
    (&["proxy_cookie_domain", "proxy_cookie_flags", "proxy_cookie_path"], "responses are not modified"),
    (&["proxy_limit_rate"], "use `rate` in `[[site.limit]]`"),
    (&["auth_delay"], "use `max_password_attempts` in `[limits]`"),
    (&["dav_methods", "create_full_put_path", "dav_access"], "files are not changed by requests; use an application"),
    (
        &[
            "client_body_temp_path",
            "fastcgi_max_temp_file_size",
            "fastcgi_temp_path",
            "proxy_max_temp_file_size",
            "proxy_temp_path",
        ],
        "use `directory` and `max_bytes` in `[spool]`",
    ),
    (&["fastcgi_connect_timeout"], "`timeout` in `[[site.app]]` includes connecting"),
    (&["worker_cpu_affinity", "worker_priority"], "use `CPUAffinity` and `Nice` of the service"),
    (&["worker_rlimit_core"], "use `core_dumps` in `[contain]`"),
];
