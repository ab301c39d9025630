//! Tests from flags and text to settings or an error report.
//!
//! Invalid configurations are in `tests/golden/config`: each `NAME.toml` has its report in `NAME.txt`. `UPDATE=1 cargo
//! test` rewrites the reports; review the differences before committing them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use amped_core::cache::hostname::HostnameLimits;
use amped_core::site::StatusLifetime;
use amped_http::status::Status;
use amped_units::Bytes;

use super::cli::Serve;
use super::log_format::LogFormat;
use super::page as page_of;
use super::settings::{AppKind, BackendAddress, LogTarget, Residency, UpstreamSettings};
use super::*;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Parses `text` as a file in a directory that does not exist, so that no report depends on the machine.
fn read(text: &str) -> Result<Settings, Error> {
    read_with(&Serve::default(), text)
}

fn read_with(flags: &Serve, text: &str) -> Result<Settings, Error> {
    let flags = Serve { config: Some("test.toml".into()), ..flags.clone() };
    parse(&flags, source("test.toml", text), Path::new("/srv/none"))
}

fn source(name: &str, text: &str) -> Option<Source> {
    Some(Source::new(name.into(), text.into()))
}

/// Parses the arguments of `amped serve`.
fn flags(args: &[&str]) -> Serve {
    let args = ["amped", "serve"].iter().chain(args).map(Into::into);
    match cli::parse(args).unwrap_or_else(|error| panic!("{error}")) {
        cli::Command::Serve(flags) => *flags,
        other => panic!("{other:?}"),
    }
}

#[test]
fn error_reports_match_golden_files() {
    let folder = repository().join("tests/golden/config");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "toml"));
    files.sort();
    assert!(files.len() >= 12);
    let mut different = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let flags = Serve { config: Some(file.clone()), ..Serve::default() };
        let text = fs::read_to_string(&file).unwrap();
        let error = parse(&flags, source(name, &text), Path::new("/srv/none")).expect_err(name);
        let report = error.to_string();
        for problem in error.problems() {
            let (_, line, column) = problem.place().expect(name);
            let plain = format!("{name}:{line}:{column}: {}", problem.message());
            assert!(report.lines().any(|line| line == plain), "no line for tools: {plain}");
        }
        let golden = file.with_extension("txt");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&golden, &report).unwrap();
        } else if fs::read_to_string(&golden).unwrap_or_default() != report {
            different.push(format!("{name} is now reported as:\n{report}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Asserts that both are equal, including the fallback type, which the `Debug` of core omits.
fn assert_same(a: &Settings, b: &Settings) {
    assert_eq!(format!("{a:#?}"), format!("{b:#?}"));
    for number in 0..a.apps.len() {
        let fallback = |s: &Settings| s.sites.get(number as u16).unwrap().types.fallback.clone();
        assert_eq!(fallback(a), fallback(b));
    }
}

#[test]
fn printed_configuration_round_trips() {
    let check = |settings: Settings| {
        let page = print::print(&settings.file);
        let again = read(&page).unwrap_or_else(|error| panic!("{page}\n{error}"));
        assert_same(&settings, &again);
        assert_eq!(print::print(&again.file), page);
        again
    };
    check(load(&Serve { dir: Some(repository()), ..Serve::default() }).unwrap());
    check(load(&Serve { config: Some(repository().join("examples/amped.toml")), ..Serve::default() }).unwrap());
    // Every key with a value other than its default.
    let text = r#"
        listen = ["*:80", "[::1]:81 proxy", "10.0.0.1:82"]
        trusted_proxies = ["10.0.0.0/8", "::1"]
        client_address = "forwarded"
        workers = 3
        user = "www-data"
        group = "web"
        root = "/usr"
        [helpers]
        max = 5
        min_spare = 1
        max_queue = 7
        idle_timeout = "1500ms"
        [log]
        access = "/access \"quoted\".log"
        format = "json"
        buffer = 5000
        flush = "2m"
        hostnames = true
        hostname_timeout = "0s"
        hostname_entries = 0
        hostname_ttl = "2h"
        hostname_negative_ttl = "3s"
        [limits]
        max_connections = 77
        max_request_line_bytes = "9KiB"
        max_header_bytes = 20000
        max_header_fields = 50
        max_body_bytes = 0
        header_timeout = "21s"
        body_timeout = "31s"
        min_body_rate = 0
        body_total_timeout = "1h"
        idle_timeout = "1h"
        send_timeout = "61s"
        disk_timeout = "62s"
        linger_timeout = "0s"
        max_requests = 9
        max_password_attempts = 7
        max_ranges = 0
        max_pipelined = 8
        [cache]
        path_entries = 0
        negotiation_entries = 7
        head_bytes = 0
        content_bytes = 7
        compressed_bytes = 8
        max_content_file_bytes = 0
        descriptors = 0
        revalidate = "0s"
        max_stale = "0s"
        watch = true
        [spool]
        directory = "/usr"
        max_bytes = 0
        [send]
        mapped_bytes = 0
        sendfile_min_age = "0s"
        residency = "mincore"
        content = "mmap"
        [control]
        socket = "/run/amped/control"
        [metrics]
        file = "/run/amped/metrics"
        listen = "[::]:9145"
        public = true
        [stop]
        deadline = "0s"
        [[site]]
        hosts = ["Example.org", "*.example.org", "[::1]"]
        root = "/etc"
        index = []
        listing = true
        dotfiles = true
        precompressed = ["gzip", "br"]
        compress = ["gzip"]
        user_dirs = "public_html/"
        charset = ""
        default_type = "text/plain; a=\"b\""
        symlinks = "owner"
        etag = "portable"
        [site.types]
        ".MD" = "text/html"
        [site.errors]
        404 = "/not found.html"
        503 = "/busy.html"
        [[site.headers]]
        match = "**"
        cache_control = "no-store"
        [[site.headers]]
        match = "*.css"
        set = { "X-A" = "\"q\"\tb", Server = "amped" }
        [[site.negotiation]]
        match = "/docs/**"
        languages = ["en", "pt-BR"]
        charsets = ["utf-8"]
        ambiguous = "300"
        unacceptable = "406"
        [[site.auth]]
        directory = "/private/"
        realm = "Staff"
        accounts = "/dev/null"
        [[site.route]]
        match = "/old/**"
        redirect = "https://b.example/$1"
        query = "drop"
        when = { methods = ["GET"], hosts = ["*.example.org"], query = { a = "b*", c = "" }, header = { Cookie = "*x=y*" }, scheme = "https" }
        status = 308
        [[site.route]]
        match = "/a/*/*"
        rewrite = "/b/$2/$1"
        [[site.route]]
        match = "/uploads/*.php"
        deny = true
        [[site.route]]
        match = "/secret/**"
        deny = true
        status = 404
        [[site.route]]
        match = "/teapot"
        respond = "a \"pot\"\n"
        status = 410
        headers = { "X-A" = "b", "Content-Type" = "text/x-a" }
        [[site.route]]
        match = "/ping"
        respond = ""
        status = 204
        [[site.route]]
        match = "/protected/**"
        internal = true
        [[site.unlogged]]
        match = "/health"
        when = { header = { User-Agent = "probe*" } }
        errors = true
        [[site.alias]]
        match = "/static/**"
        root = "/usr"
        keep_prefix = true
        [[site.access]]
        directory = "/inner/"
        allow = ["10.0.0.0/8", "::1"]
        deny = ["10.0.0.1"]
        [[site.limit]]
        match = "/login/**"
        requests = "30/m"
        burst = 5
        max_delay = "1500ms"
        [[site.limit]]
        match = "*.php"
        requests = "10/s"
        [[site.fallback]]
        directory = "/app/"
        file = "/app/index.html"
        [[site.cors]]
        match = "**"
        origins = ["*"]
        [[site.cors]]
        match = "/api/**"
        origins = ["https://b.example", "http://[::1]:8080"]
        methods = ["GET", "PUT"]
        headers = ["X-A"]
        expose = ["ETag"]
        credentials = true
        max_age = "5s"
        [[site.app]]
        match = "*.cgi"
        cgi = true
        timeout = "1500ms"
        max_body_bytes = 0
        max_response_bytes = "3KiB"
        buffer_request = false
        buffer_response = false
        cache = "7s"
        max_processes = 1
        max_queue = 0
        env = { LANG = "C", A = "\"b\" = c" }
        [[site.app]]
        match = "*.php"
        fastcgi = "unix:php.sock"
        files = false
        min_spare = 0
        [[site.app]]
        match = "/app"
        fastcgi = "[::1]:9000"
        [[site.app]]
        match = "/other"
        command = ["serve", "--a", "b c"]
        [[site.app]]
        match = "/one"
        http = "http://127.0.0.1:3000/"
        timeout = "7s"
        [[site.app]]
        match = "/several/**"
        http = ["unix:app.sock", "[::1]:3000", "127.0.0.1:3001"]
        host = "app.internal:80"
        balance = "hash"
        hash_field = "X-User"
        max_failures = 2
        failure_timeout = "3s"
        connect_timeout = "1s"
        idle_timeout = "2s"
        tunnel_timeout = "4s"
        min_spare = 5
    "#;
    let settings = check(read(text).unwrap_or_else(|error| panic!("{error}")));
    let [wait, time, absent_time] = [0, 7200, 3].map(Duration::from_secs);
    assert!(settings.log.hostnames);
    assert_eq!(settings.log.hostname_limits(), HostnameLimits { entries: 0, wait, time, absent_time });
    let site = settings.sites.get(1).unwrap();
    assert_eq!(site.hosts, ["example.org", "*.example.org", "[::1]"].map(Box::from));
    assert_eq!(site.user_dir.as_deref(), Some("public_html"));
    assert_eq!(site.types.overrides, [("md".into(), "text/html".into())]);
    assert_eq!(site.types.charset, None);
    assert_eq!(site.error_pages[0], (404..=404, "/not found.html".into()));
    assert_eq!(site.rules[1].set.get("Server").map(|value| &**value), Some("amped"));
}

#[test]
fn backends_are_configured_with_defaults() {
    let text = "[[site]]\nroot = '/'\n[[site.app]]\nmatch = '/api/**'\ntimeout = '7s'\nhttp = ";
    let read = |http: &str| read(&[text, http].concat()).unwrap_or_else(|error| panic!("{error}"));
    let settings = read("'http://localhost:3000'");
    let app = &settings.apps[0][0];
    let AppKind::Http(upstream) = &app.kind else { panic!("{app:?}") };
    let [named] = &upstream.names[..] else { panic!("{upstream:?}") };
    assert!(
        &*named.at == "localhost:3000" && named.addresses.contains(&"127.0.0.1:3000".parse().unwrap()),
        "{named:?}"
    );
    let names = upstream.names.clone();
    assert_eq!(**upstream, UpstreamSettings { names, ..UpstreamSettings::default() });
    assert_eq!((app.files, app.min_spare, app.max_processes), (false, 32, None));
    let rule = &settings.sites.get(0).unwrap().apps[0];
    assert_eq!(rule.pattern.as_str(), "/api");
    let http = rule.http.as_ref().unwrap();
    let times = (http.idle_timeout.as_secs(), http.tunnel_timeout.as_secs());
    assert_eq!((&http.host, times), (&None, (7, 3600)));
    let settings = read("['unix:a.sock', '[::1]:1', '127.0.0.1:2']\nbalance = 'hash'\nhash_field = 'X-User'");
    let AppKind::Http(upstream) = &settings.apps[0][0].kind else { panic!() };
    assert_eq!(upstream.servers[0].address, BackendAddress::Unix("/srv/none/a.sock".into()));
    assert_eq!((upstream.servers.len(), upstream.hash_field.as_deref()), (3, Some("X-User")));
    let settings =
        read("['unix:a b.sock  weight=2', 'http://127.0.0.1:2/ backup weight=1000', 'localhost:3 weight=7']");
    let AppKind::Http(upstream) = &settings.apps[0][0].kind else { panic!() };
    assert_eq!(upstream.servers[0].address, BackendAddress::Unix("/srv/none/a b.sock".into()));
    let shares: Vec<String> = upstream.servers.iter().map(|server| server.share.to_string()).collect();
    assert_eq!(
        (&shares[..], upstream.names[0].share.weight),
        (&[" weight=2".into(), " weight=1000 backup".into()][..], 7)
    );
}

#[test]
fn lifetimes_by_status_are_checked() {
    let table = "[[site]]\nroot = '/'\n[[site.app]]\nmatch = '/**'\nhttp = '127.0.0.1:1'\n";
    let read = |keys: &str| read(&[table, keys].concat());
    let settings = read("cache = '10s'\ncache_by_status = { 4xx = '2s', 404 = '1s', 302 = '0s' }").unwrap();
    let rule = settings.sites.get(0).unwrap().apps[0].cache.clone().unwrap();
    let found: Vec<_> = rule.by_status.iter().flat_map(|all| all.iter()).collect();
    // The first that has a status applies.
    let expected = [(302..=302, 0), (404..=404, 1), (400..=499, 2)];
    let expected =
        expected.map(|(statuses, seconds)| StatusLifetime { statuses, lifetime: Duration::from_secs(seconds) });
    assert_eq!(found, expected.iter().collect::<Vec<_>>());
    assert_eq!(read("cache = '10s'").unwrap().sites.get(0).unwrap().apps[0].cache.as_ref().unwrap().by_status, None);
    for (keys, message) in [
        ("cache = '1s'\ncache_by_status = { 206 = '1s' }", "`206` is not the status of a response that may be cached"),
        ("cache = '1s'\ncache_by_status = { 1xx = '1s' }", "`1xx` is not the status"),
        ("cache = '1s'\ncache_by_status = { 404 = 'soon' }", "`soon` is not a time"),
        ("cache_by_status = { 404 = '1s' }", "`cache_by_status` has no effect without `cache`"),
    ] {
        let error = read(keys).expect_err(keys).to_string();
        assert!(error.contains(message), "{keys}: {error}");
    }
}

#[test]
fn statuses_of_retries_are_checked() {
    let table = "[[site]]\nroot = '/'\n[[site.app]]\nmatch = '/**'\n";
    let read = |keys: &str| read(&[table, keys].concat());
    let settings = read("http = ['127.0.0.1:1', '127.0.0.1:2']\nretry_statuses = [503, 400]").unwrap();
    let AppKind::Http(upstream) = &settings.apps[0][0].kind else { panic!() };
    let found = [400, 404, 503].map(|status| upstream.retry_statuses.iter().any(|retry| *retry == Status(status)));
    assert_eq!(found, [true, false, true]);
    for (keys, message) in [
        ("http = ['127.0.0.1:1', '127.0.0.1:2']\nretry_statuses = [200]", "cannot be 200"),
        ("http = ['127.0.0.1:1', '127.0.0.1:2']\nretry_statuses = [600]", "write a value from 400 to 599"),
        ("http = ['127.0.0.1:1']\nretry_statuses = [503]", "no effect for a single server"),
        ("cgi = true\nretry_statuses = [503]", "no effect without `http`"),
    ] {
        let error = read(keys).expect_err(keys).to_string();
        assert!(error.contains(message), "{keys}: {error}");
    }
}

#[test]
fn each_backend_has_tls_or_not() {
    let text = "[[site]]\nroot = '/'\n[[site.app]]\nmatch = '/**'\nhttp = ['https://127.0.0.1:1/', '127.0.0.1:2']\n";
    let read = |keys: &str| read(&[text, keys].concat()).unwrap_or_else(|error| panic!("{error}"));
    let addresses = |keys: &str| {
        let AppKind::Http(upstream) = &read(keys).apps[0][0].kind else { panic!() };
        upstream.servers.iter().map(|server| server.address.clone()).collect::<Vec<_>>()
    };
    let found = addresses("");
    let [BackendAddress::Tls(address, tls), BackendAddress::Tcp(plain)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((address.port(), plain.port(), tls.verifies), (1, 2, true));
    // A reload keeps a backend only if all of this is unchanged.
    assert_eq!(found, addresses("tls_verify = true"));
    assert_ne!(found, addresses("tls_name = 'a.example'"));
    assert_ne!(found, addresses("tls_verify = false"));
}

#[test]
fn application_without_files_is_mounted_at_its_directory() {
    let pattern = |pattern: &str, files: bool| {
        let app = format!("match = \"{pattern}\"\nfiles = {files}\nfastcgi = \"127.0.0.1:9\"\n");
        let settings =
            read(&format!("[[site]]\nroot = \"/\"\n[[site.app]]\n{app}")).unwrap_or_else(|error| panic!("{error}"));
        settings.sites.get(0).unwrap().apps[0].pattern.as_str().to_owned()
    };
    for (written, mount) in [("/dav/**", "/dav"), ("/**", "/"), ("/{a,b}/**", "/{a,b}"), ("/dav", "/dav"), ("**", "**")]
    {
        assert_eq!(pattern(written, false), mount);
        assert_eq!(pattern(written, true), written);
    }
    // Unchanged: `dav` alone would match any path that ends in it.
    for written in ["dav/**", "*.php"] {
        assert_eq!(pattern(written, false), written);
    }
}

#[test]
fn flags_have_descriptions_and_defaults_of_keys() {
    let help = cli::command().find_subcommand_mut("serve").unwrap().render_long_help().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        "[default: 127.0.0.1:8080]",
        "Maximum disk helpers per event loop [default: 16]",
        "Kind of helper [default: threads]",
        "Line format [default: combined]",
        "path-cache: Cache name lookups (Flash 5.2)",
    ] {
        assert!(help.contains(text), "{text} is not in:\n{help}");
    }
}

/// `UPDATE=1` rewrites the pages.
#[test]
fn generated_pages_are_current() {
    for (name, page) in [
        ("examples/amped.toml", cli::Page::Example),
        ("examples/amped.schema.json", cli::Page::Schema),
        ("docs/configuration.md", cli::Page::Reference),
    ] {
        let (file, page) = (repository().join(name), page_of(page));
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, &page).unwrap();
        }
        let written = fs::read_to_string(&file).unwrap_or_default();
        assert!(written == page, "{name} is not what `amped config` prints: run this test with UPDATE=1");
    }
}

#[test]
fn every_key_is_printed_and_in_example() {
    fn check(table: &serde_json::Value, way: &str, pages: &[String]) {
        for (key, inner) in schema::keys(table) {
            let (name, inner) = (format!("{way}{key}"), schema::table(inner));
            for page in pages {
                let line = |line: &str| {
                    let line = line.trim_start_matches(['#', ' ']);
                    line.starts_with(&format!("{key} = "))
                        || line.trim_start_matches('[').starts_with(&format!("{name}]"))
                };
                assert!(page.lines().any(line), "`{name}` is not in:\n{page}");
            }
            if schema::is_table(inner) {
                check(inner, &format!("{name}."), pages);
            }
        }
    }
    let settings = load(&Serve { dir: Some(repository()), ..Serve::default() }).unwrap();
    check(schema::schema(), "", &[print::print(&settings.file), print::example()]);
}

#[test]
fn printed_log_formats_round_trip() {
    for format in ["'$remote_addr \"${request}\" $status'", "[\"host\", \"status\"]", "\"json\""] {
        let settings = read(&format!("root = '/'\n[log]\nformat = {format}")).unwrap_or_else(|error| panic!("{error}"));
        let again = read(&print::print(&settings.file)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.log.format, settings.log.format, "{format}");
    }
}

#[test]
fn flag_overrides_file() {
    let text = "listen = ['10.0.0.1:1']\nworkers = 2\nuser = 'a'\nroot = '/nowhere'\nhelpers = { max = 8, min_spare = 4 }\n\
                log = { access = '/gone/log', format = 'json' }\n[[site]]\nroot = '/'\nhosts = ['b.example']";
    let folder = repository();
    let flags = flags(&[
        folder.to_str().unwrap(),
        "--listen=10.0.0.2:2",
        "--listen=10.0.0.3:3",
        "--workers=5",
        "--helpers=3",
        "--access-log=-",
        "--log-format=common",
        "--listing",
        "--user=b",
        "--residency=clock",
        "--metrics-listen=127.0.0.1:9145",
        "--without=all,path-cache",
        "--with=dns-cache",
    ]);
    let settings = read_with(&flags, text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(settings.listen.iter().map(|listen| listen.address.port()).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(settings.send.residency, Residency::Clock);
    assert_eq!(settings.metrics.listen.map(|address| address.0.port()), Some(9145));
    assert_eq!((settings.optimise.path_cache, settings.optimise.dns_cache), (false, true));
    assert_eq!((settings.workers, settings.helpers.max, settings.helpers.min_spare), (5, 3, 3));
    assert_eq!((&settings.log.access, &settings.log.format), (&LogTarget::Stdout, &LogFormat::Common));
    assert_eq!(settings.user.as_deref(), Some("b"));
    assert_eq!(settings.roots, [repository(), "/".into()]);
    assert!(settings.sites.get(0).unwrap().listing && settings.sites.get(1).unwrap().listing);
}

#[test]
fn unset_keys_adapt_to_set_keys() {
    let settings = read(
        "root = '/'\nhelpers = { max = 1 }\nlimits = { max_header_bytes = '4KiB' }\n\
         cache = { content_bytes = 0, revalidate = '1m' }",
    );
    let settings = settings.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(settings.helpers.min_spare, 1);
    assert_eq!(settings.limits.max_request_line_bytes, Bytes::kib(4));
    assert_eq!(settings.cache.max_content_file_bytes, Bytes(0));
    assert_eq!(settings.cache.max_stale, Duration::from_secs(60));
    let settings = read("root = '/'\nlimits = { max_request_line_bytes = '64KiB' }\ncache = { max_stale = '10ms' }");
    let settings = settings.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(settings.limits.max_header_bytes, Bytes::kib(64));
    assert_eq!(settings.cache.revalidate, Duration::from_millis(10));
}

#[test]
fn paths_are_relative_to_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("www")).unwrap();
    let config = folder.path().join("amped.toml");
    fs::write(&config, "root = './www'\nlog = { access = 'log' }").unwrap();
    let flags = Serve { config: Some(config.clone()), ..Serve::default() };
    let settings = load(&flags).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(settings.roots, [folder.path().join("www")]);
    assert_eq!(settings.log.access, LogTarget::File(folder.path().join("log")));
    // Errors at the next read have positions, as at the first.
    fs::write(&config, "root = 'www'\nworkers = 0").unwrap();
    let error = load(&flags).expect_err("no workers");
    assert_eq!(error.problems()[0].place(), Some((&*config.display().to_string(), 2, 11)));
}

#[test]
fn unusable_roots_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let check = |dir: &Path, says: &str| {
        let error = load(&Serve { dir: Some(dir.into()), ..Serve::default() }).expect_err(says);
        assert_eq!(error.exit_status(), 1);
        assert!(error.to_string().contains(says), "{says} is not in:\n{error}");
    };
    check(&folder.path().join("none"), "does not exist");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    check(&file, "is a file\n  help: use its directory");
    check(&file.join("below"), "cannot be used: Not a directory");
}

#[test]
fn unreadable_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, says: &str| {
        let error = load(&Serve { config: Some(folder.path().join(name)), ..Serve::default() }).expect_err(says);
        assert!(error.to_string().contains(says), "{says} is not in:\n{error}");
    };
    check("none.toml", "No such file or directory");
    check("", "Is a directory");
    fs::write(folder.path().join("latin1.toml"), b"user = \"M\xfcller\"").unwrap();
    check("latin1.toml", "it is not UTF-8 text, at byte 9");
}

#[test]
fn no_root_is_wrong_usage() {
    let error = load(&Serve::default()).expect_err("no folder");
    assert_eq!(error.exit_status(), 2);
    assert!(error.to_string().contains("`amped serve DIRECTORY`"), "{error}");
}

#[test]
fn example_is_valid() {
    let config = repository().join("examples/amped.toml");
    let summary = check(&cli::Check { config: config.clone() }).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(summary, format!("{}: ok\n1 site on 127.0.0.1:8080, [::1]:8080\n", config.display()));
}

#[test]
fn header_page_and_host_limits_are_checked() {
    let good = |text: &str| {
        let whole = format!("[[site]]\nroot = '/'\n{text}");
        read(&whole).unwrap_or_else(|error| panic!("{text}\n{error}"));
    };
    let bad = |text: &str, says: &str| {
        let error = read(&format!("[[site]]\nroot = '/'\n{text}")).expect_err(text);
        assert!(error.to_string().contains(says), "{says} is not in:\n{error}");
    };
    good("hosts = ['a-b_c.example', 'localhost', '*.a.b', '127.0.0.1']");
    for host in ["", "*", "*.", "a..b", ".a", "a.", "a/b", "http://a", "[::1", "[::1]:80", "a:80"] {
        bad(&format!("hosts = ['{host}']"), "is not a host name");
    }
    let owned = "date Content-Length TRANSFER-ENCODING Connection ETag Last-Modified Content-Type Content-Range Vary \
                 Accept-Ranges Cache-Control";
    for name in owned.split_whitespace() {
        bad(&format!("[[site.headers]]\nmatch='*'\nset = {{ '{name}' = 'x' }}"), "is set by the server");
    }
    good("[[site.headers]]\nmatch='*'\nset = { 'X!#$%&*+-.^_`|~' = '' }");
    bad("[[site.headers]]\nmatch='*'\nset = { 'x-ü' = 'a' }", "is not a header name");
    good("[[site.headers]]\nmatch='*'\nset = { 'X' = 'ü\\t' }");
    bad("[[site.headers]]\nmatch='*'\nset = { 'X' = \"a\\u007f\" }", "control character");
    good("errors = { 400 = '/a', 599 = '/b' }");
    for status in ["399", "600", "-1", "x", "+404", "0404"] {
        bad(&format!("errors = {{ '{status}' = '/a' }}"), "is not an error status");
    }
    good("types = { a = 'text/x; charset=utf-8', b = 'application/vnd.a+json' }");
    for kind in ["", "text", "text/", "/x", "te xt/x", "text/x/y", "text/x, a/b"] {
        bad(&format!("default_type = '{kind}'"), "is not a media type");
    }
}

/// Any prefix of a file gives settings or a report and no panic; the content of the report is not checked.
#[test]
fn truncated_file_does_not_panic() {
    let whole = fs::read_to_string(repository().join("examples/amped.toml")).unwrap().replace("\n# ", "\n");
    let try_out = |text: &str| {
        if let Err(error) = read(text) {
            assert!(!error.report(true).is_empty());
        }
    };
    for text in ["", "\n", "\u{feff}", "ü", "ü = 'ü", "[", "[[site]]", "site = [1]", "site.types.a = 1", "[site.types]"]
    {
        try_out(text);
    }
    let cuts = (0..whole.len()).filter(|at| whole.is_char_boundary(*at)).step_by(41);
    cuts.for_each(|at| try_out(&whole[..at]));
    let lines: Vec<&str> = whole.lines().collect();
    for at in (0..lines.len()).step_by(3) {
        try_out(&[&lines[..at], &lines[at + 1..]].concat().join("\n"));
    }
}

#[test]
fn listen_addresses_are_parsed() {
    let check = |text: &str, expected: Result<&str, &str>| match (settings::Listen::parse(text), expected) {
        (Ok(address), Ok(expected)) => assert_eq!(address.to_string(), expected, "{text}"),
        (Err(help), Err(says)) => assert!(help.contains(says), "{text}: {help}"),
        (read, _) => panic!("{text} was read as {read:?}"),
    };
    check("127.0.0.1:8080", Ok("127.0.0.1:8080"));
    check("0.0.0.0:0", Ok("0.0.0.0:0"));
    check("[::1]:80", Ok("[::1]:80"));
    check("*:80", Ok("[::]:80"));
    check("*:443 tls", Ok("[::]:443 tls"));
    check(" *:443  tls ", Ok("[::]:443 tls"));
    check("*:443 ssl", Err("`*:443 tls`"));
    check("8080", Err("`127.0.0.1:8080`"));
    check(":8080", Err("`*:8080`"));
    check("10.0.0.1", Err("`10.0.0.1:8080`"));
    check("::1", Err("`[::1]:8080`"));
    for text in ["", "*", "*:", "*:+80", "*:65536", "localhost:80", "[::1]", "unix:/run/amped"] {
        check(text, Err("write an IP address and a port"));
    }
}

#[test]
fn optimisations_can_be_disabled_and_enabled() {
    let on = |args: &[&str]| -> Vec<String> {
        let settings = read_with(&flags(args), "root = '/'").unwrap_or_else(|error| panic!("{error}"));
        let switches = toml::Table::try_from(settings.optimise).unwrap();
        switches.into_iter().filter(|(_, on)| on.as_bool() == Some(true)).map(|(name, _)| name).collect()
    };
    for name in optimise::Optimise::names() {
        let flag = name.replace('_', "-");
        assert!(!on(&["--without", &flag]).contains(&name));
        assert_eq!(on(&["--without", "all", "--with", &flag]), [name]);
    }
}

#[test]
fn invalid_flag_value_is_wrong_usage() {
    let check = |args: &[&str], says: &str| {
        let error = read_with(&flags(args), "root = '/'\nlisten = ['10.0.0.1:1']").expect_err(says);
        assert_eq!((error.exit_status(), error.problems().len()), (2, 1), "{error}");
        assert!(error.to_string().contains(says), "{says} is not in:\n{error}");
    };
    check(&["--workers=0"], "error: --workers: `workers` cannot be 0\n  help: write a value from 1 to 4096");
    check(&["--workers=two"], "--workers: `workers` cannot be \"two\"");
    check(
        &["--listen=*:80", "--listen=8080"],
        "--listen: `8080` is not an address and port\n  help: add the address: `*:8080`",
    );
    check(&["--listen=*:80", "--listen=*:80"], "--listen: duplicate listen address `*:80`");
    check(&["--architecture=ample"], "amped");
    check(&["--architecture=mt", "--helpers=2"], "--helpers: this architecture has no helpers");
    check(&["--log-format=combine"], "did you mean \"combined\"?");
    check(&["--access-log="], "--access-log: `access` is empty");
    check(&["--metrics-listen=10.0.0.1:9145"], "would be accessible to other machines");
    check(
        &["--without=path-cash"],
        "--without: unknown key `path_cash` in `[optimise]`\n  help: did you mean `path_cache`?",
    );
}

#[test]
fn certificates_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    for name in ["a", "b"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec![format!("{name}.example")]).unwrap();
        write(&format!("{name}.pem"), &certificate.self_signed(&key).unwrap().pem());
        write(&format!("{name}.key"), &key.serialize_pem());
    }
    fs::create_dir(folder.path().join("root")).unwrap();
    write("empty", "");
    write("text", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n");
    write("encrypted.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
    write("short.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    let load_with = |certificate: &str, key: &str| {
        let text = format!(
            "listen = ['*:443 tls']\n[[site]]\nroot = 'root'\ncertificate = ['{certificate}']\nkey = ['{key}']\n\
             redirect_to_https = true\nhsts = ' max-age=9; includeSubDomains '\n"
        );
        write("amped.toml", &text);
        load(&Serve { config: Some(folder.path().join("amped.toml")), ..Serve::default() })
    };
    let settings = load_with("a.pem", "a.key").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((settings.certificates.len(), settings.certificates[0].len()), (1, 1));
    assert_eq!(settings.sites.first().https_port, Some(443));
    assert_eq!(settings.sites.first().hsts.as_deref(), Some("max-age=9; includeSubDomains"));
    let check = |certificate: &str, key: &str, says: &str| {
        let error = load_with(certificate, key).expect_err(says).to_string();
        assert!(error.contains(says), "{says} is not in:\n{error}");
    };
    check("none.pem", "a.key", "No such file or directory");
    check("empty", "a.key", "contains no certificate");
    check("a.key", "a.key", "contains no certificate");
    check("text", "a.key", "cannot read the certificate");
    check("a.pem", "b.key", "does not belong to the certificate");
    check("a.pem", "empty", "contains no private key");
    check("a.pem", "a.pem", "contains no private key");
    check("a.pem", "encrypted.key", "an encrypted key must be");
    check("a.pem", "short.key", "cannot be used");
}

#[test]
fn ocsp_responses_belong_to_certificates_and_may_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| fs::write(folder.path().join(name), content).unwrap();
    fs::create_dir(folder.path().join("root")).unwrap();
    for (name, serial) in [("a", &[0x8a, 0x11, 0x0c, 0x5b][..]), ("b", &[1])] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut certificate = rcgen::CertificateParams::new(vec![format!("{name}.example")]).unwrap();
        certificate.serial_number = Some(serial.to_vec().into());
        write(&format!("{name}.pem"), certificate.self_signed(&key).unwrap().pem().as_bytes());
        write(&format!("{name}.key"), key.serialize_pem().as_bytes());
    }
    write("a.ocsp", &fs::read(repository().join("tests/golden/ocsp/good.der")).unwrap());
    let config = folder.path().join("amped.toml");
    let flags = Serve { config: Some(config.clone()), ..Serve::default() };
    let write_with = |responses: &str| {
        let text = format!(
            "[[site]]\nroot = 'root'\ncertificate = ['b.pem', 'a.pem']\nkey = ['b.key', 'a.key']\nocsp = {responses}\n"
        );
        write("amped.toml", text.as_bytes());
    };
    let expect = |responses: &str, expected: [bool; 2], warnings: &[&str]| {
        write_with(responses);
        let settings = load(&flags).unwrap_or_else(|error| panic!("{error}"));
        let has_response = |at: usize| settings.certificates[0][at].certified.ocsp.is_some();
        assert_eq!([has_response(0), has_response(1)], expected, "{responses}");
        // Paths in force are absolute, and an empty one stays empty.
        let page = print::print(&settings.file);
        assert_eq!(print::print(&read(&page).unwrap_or_else(|error| panic!("{error}")).file), page);
        let summary = check(&cli::Check { config: config.clone() }).unwrap_or_else(|error| panic!("{error}"));
        let found: Vec<&str> = summary.lines().filter(|line| line.contains("OCSP")).collect();
        assert_eq!(found.len(), warnings.len(), "{summary}");
        for (found, expected) in found.iter().zip(warnings) {
            assert!(found.contains(expected), "{expected} is not in:\n{summary}");
        }
    };
    expect("[]", [false, false], &[]);
    expect("['', 'a.ocsp']", [false, true], &["a.ocsp: OCSP response until 2126-"]);
    expect("['a.ocsp']", [false, false], &["is not about the certificate"]);
    expect("['none', 'a.ocsp']", [false, true], &["warning: cannot read the OCSP response", "until 2126-"]);
    write_with("['', '', 'a.ocsp']");
    let error = load(&flags).expect_err("too many").to_string();
    assert!(error.contains("the site has 3 OCSP responses and 2 certificates"), "{error}");
}

#[test]
fn root_in_object_store_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("site/disk")).unwrap();
    fs::create_dir(path("disk")).unwrap();
    fs::write(path("s3"), "aws_access_key_id = id\naws_secret_access_key = secret\n").unwrap();
    fs::write(path("half"), "aws_access_key_id = id\n").unwrap();
    let load_with = |text: &str| {
        let always = "root = 's3://bucket/site'\nobject_storage.endpoint = 'http://127.0.0.1:9000/'\n";
        fs::write(path("amped.toml"), format!("{always}{text}")).unwrap();
        load(&Serve { config: Some(path("amped.toml")), ..Serve::default() })
    };
    let good = "cache.disk = 'disk'\nobject_storage.credentials = 's3'\n";
    for (text, says) in [
        ("", "amped.toml:1:8: s3://bucket/site needs a directory for local copies"),
        ("cache.disk = 'none'\n", "none is not a directory"),
        ("cache.disk = 'disk'\nobject_storage.credentials = 'none'\n", "cannot read the credentials file"),
        ("cache.disk = 'disk'\nobject_storage.credentials = 'half'\n", "has no aws_secret_access_key"),
        (&format!("{good}[[site]]\nhosts = ['a']\nroot = 's3://b'\n"), "`s3://b` has no valid name of a bucket"),
        (&format!("{good}[[site]]\nhosts = ['a']\nroot = '.'\n"), "the cache directory"),
        (&format!("{good}object_storage.region = ''\n"), "is not a region"),
    ] {
        let error = load_with(text).expect_err(says).to_string();
        assert!(error.contains(says), "{says} is not in:\n{error}");
    }
    let settings = load_with(good).unwrap_or_else(|error| panic!("{error}"));
    let store = settings.store.as_ref().expect("a root is in it");
    assert_eq!((store.endpoint().as_str(), &*store.directory), ("http://127.0.0.1:9000", &*path("disk")));
    assert!(settings.secrets().contains(&path("s3")));
    let shown = format!("{settings:?}");
    assert!(!shown.contains("secret_key") && !shown.contains("\"secret\""), "the secret is in {shown}");
}

#[test]
fn ticket_secret_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("root")).unwrap();
    let load_with = |content: &[u8]| {
        fs::write(path("secret"), content).unwrap();
        fs::write(path("amped.toml"), "root = 'root'\ntls.ticket_secret = 'secret'\n").unwrap();
        load(&Serve { config: Some(path("amped.toml")), ..Serve::default() })
    };
    for (length, says) in [(0, "has 0 bytes"), (31, "has 31 bytes"), (1025, "has more than 1024 bytes")] {
        let error = load_with(&vec![7; length]).expect_err(says).to_string();
        assert!(error.contains(says) && error.contains("openssl rand -out"), "{says} is not in:\n{error}");
    }
    // A byte that no path has.
    let settings = load_with(&[0xf5; 32]).unwrap_or_else(|error| panic!("{error}"));
    assert!(settings.ticket_secret.is_some());
    let shown = format!("{settings:?}");
    assert!(!shown.contains("245, 245"), "the secret is in {shown}");
    let review = |user: &str, mode: u32| {
        fs::write(path("amped.toml"), format!("{user}root = 'root'\ntls.ticket_secret = 'secret'\n")).unwrap();
        fs::set_permissions(path("secret"), fs::Permissions::from_mode(mode)).unwrap();
        check(&cli::Check { config: path("amped.toml") }).unwrap_or_else(|error| panic!("{error}"))
    };
    for mode in [0o640, 0o604] {
        let summary = review("user = 'nobody'\n", mode);
        assert!(summary.contains("secret is accessible to others than its owner: `chmod 600 "), "{summary}");
    }
    let summary = review("user = 'nobody'\n", 0o600);
    assert!(summary.contains("warning: the user nobody cannot read the ticket secret "), "{summary}");
    let summary = review("", 0o600);
    assert!(!summary.contains("warning"), "{summary}");
}

#[test]
fn secrets_below_root_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("root")).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
    for place in ["", "root/"] {
        let write = |name: &str, text: &str| fs::write(folder.path().join(format!("{place}{name}")), text).unwrap();
        write("pem", &certificate.pem());
        write("key", &key.serialize_pem());
        write("secret", &"x".repeat(32));
    }
    std::os::unix::fs::symlink("root/key", folder.path().join("linked")).unwrap();
    let config = folder.path().join("amped.toml");
    let message_of = |tls: &str, site: &str| {
        let listen = "listen = ['127.0.0.1:80', '127.0.0.1:443 tls']";
        fs::write(&config, format!("{listen}\n[tls]\n{tls}\n[[site]]\nroot = 'root'\n{site}\n")).unwrap();
        load(&Serve { config: Some(config.clone()), ..Serve::default() }).err().map(|error| error.to_string())
    };
    let of_site = |key: &str| format!("certificate = ['root/pem']\nkey = ['{key}']");
    let of_app = |key: &str| {
        let files = format!("tls_certificate = 'pem'\ntls_key = '{key}'\ntls_verify = false");
        format!("{}\n[[site.app]]\nmatch = '/a'\nhttp = 'https://127.0.0.1:1'\n{files}", of_site("key"))
    };
    assert_eq!(message_of("ticket_secret = 'secret'", &of_app("key")), None);
    for (tls, site, what) in [
        ("", of_site("root/key"), "private key"),
        ("", of_site("linked"), "private key"),
        ("", of_app("root/key"), "private key"),
        ("ticket_secret = 'root/secret'", of_site("key"), "ticket secret"),
        (
            "acme = { agree_to_terms = true, state = 'root/state' }",
            "hosts = ['a.example']\nacme = true".to_owned(),
            "directory of ACME keys",
        ),
    ] {
        let message = message_of(tls, &site).unwrap_or_else(|| panic!("{what} is accepted"));
        assert!(message.contains(&format!("the {what} ")) && message.contains("is below the root"), "{message}");
    }
}

#[test]
fn client_crl_file_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let authority = |name: &str| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap()
    };
    let (one, other) = (authority("one"), authority("other"));
    let list = |end: i32| {
        let params = rcgen::CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2024, 6, 17),
            next_update: rcgen::date_time_ymd(end, 1, 1),
            crl_number: rcgen::SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        params.signed_by(&one).unwrap().pem().unwrap()
    };
    write("ca.pem", &[one.pem(), other.pem()].concat());
    write("a.crl", &list(2126));
    write("expired.crl", &list(2025));
    let config = folder.path().join("amped.toml");
    let write_with = |keys: &str| write("amped.toml", &format!("{keys}\n[[site]]\nroot = '.'\n"));
    for (list, expected) in [
        ("a.crl", ["a.crl: CRL of CN=one until 2126-01-01", "a.crl has no CRL of CN=other"].as_slice()),
        ("expired.crl", &["until 2025-01-01", "expired.crl expired on 2025-01-01", "has no CRL of CN=other"]),
    ] {
        write_with(&format!("tls.client_ca = 'ca.pem'\ntls.client_crl = '{list}'"));
        let summary = check(&cli::Check { config: config.clone() }).unwrap_or_else(|error| panic!("{error}"));
        let found: Vec<&str> = summary.lines().filter(|line| line.contains("CRL")).collect();
        assert_eq!(found.len(), expected.len(), "{summary}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{expected} is not in:\n{summary}");
        }
    }
    for (keys, says) in [
        ("tls.client_crl = 'a.crl'", "`client_crl` is given without `client_ca`"),
        ("tls.client_ca = 'ca.pem'\ntls.client_crl = 'none.crl'", "cannot read the CRL"),
        ("tls.client_ca = 'ca.pem'\ntls.client_crl = 'ca.pem'", "ca.pem contains no CRL"),
    ] {
        write_with(keys);
        let flags = Serve { config: Some(config.clone()), ..Serve::default() };
        let error = load(&flags).expect_err(says).to_string();
        assert!(error.contains(says), "{says} is not in:\n{error}");
    }
}

#[test]
fn client_ca_file_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    write("ca.pem", &rcgen::CertificateParams::new([]).unwrap().self_signed(&key).unwrap().pem());
    fs::create_dir(folder.path().join("root")).unwrap();
    write("empty", "");
    write("text", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let load_with = |authority: &str| {
        write("amped.toml", &format!("tls.client_ca = '{authority}'\n[[site]]\nroot = '.'\n"));
        load(&Serve { config: Some(folder.path().join("amped.toml")), ..Serve::default() })
    };
    assert!(load_with("ca.pem").unwrap_or_else(|error| panic!("{error}")).client_auth.is_some());
    for (authority, says) in [
        ("none.pem", "No such file or directory"),
        ("empty", "contains no certificate"),
        ("text", "cannot use the CA certificates"),
    ] {
        let error = load_with(authority).expect_err(says).to_string();
        assert!(error.contains(says), "{says} is not in:\n{error}");
    }
}
