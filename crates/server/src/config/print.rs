//! The whole configuration as a file: `amped serve --print-config`.
//!
//! What is printed reads back to the same settings, wherever it is put: its paths are absolute. Each key is there, a
//! key without a value as a comment, so that the page is also the list of everything that can be set.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use amped_core::routes::RouteAction;
use amped_core::site::{EtagForm, NegotiationRule, Site, Symlinks};
use amped_http::negotiate::Coding;
use amped_http::status::Status;
use amped_units::Bytes;
use clap::ValueEnum;

use super::file::TIME_UNITS;
use super::optimise::Optimisation;
use super::settings::{AppKind, AppSettings, LogTarget, Settings};

/// A value as TOML has it.
pub(super) trait Literal {
    /// The text that reads back to this.
    fn literal(&self) -> String;
}

impl Literal for usize {
    fn literal(&self) -> String {
        self.to_string()
    }
}

impl Literal for u32 {
    fn literal(&self) -> String {
        self.to_string()
    }
}

impl Literal for bool {
    fn literal(&self) -> String {
        self.to_string()
    }
}

impl Literal for str {
    fn literal(&self) -> String {
        toml::Value::from(self).to_string()
    }
}

impl Literal for Box<str> {
    fn literal(&self) -> String {
        str::literal(self)
    }
}

impl Literal for Path {
    /// TOML is Unicode, so another path cannot be said in it; it is printed as well as it can be.
    fn literal(&self) -> String {
        self.to_string_lossy().literal()
    }
}

impl Literal for Bytes {
    fn literal(&self) -> String {
        self.to_string().literal()
    }
}

impl Literal for SocketAddr {
    fn literal(&self) -> String {
        self.to_string().literal()
    }
}

impl Literal for Duration {
    /// The largest unit that leaves a whole number.
    fn literal(&self) -> String {
        let ms = u64::try_from(self.as_millis()).unwrap_or(u64::MAX);
        let fits = |(_, scale): &&(&str, u64)| ms >= *scale && ms.is_multiple_of(*scale);
        let (unit, scale) = TIME_UNITS.iter().find(fits).unwrap_or(&("s", 1000));
        format!("{}{unit}", ms / scale).literal()
    }
}

impl Literal for Coding {
    fn literal(&self) -> String {
        match self {
            Coding::Identity => "identity".literal(),
            Coding::Gzip => "gzip".literal(),
            Coding::Zstd => "zstd".literal(),
            Coding::Brotli => "br".literal(),
        }
    }
}

impl<T: Literal> Literal for [T] {
    fn literal(&self) -> String {
        format!("[{}]", self.iter().map(Literal::literal).collect::<Vec<_>>().join(", "))
    }
}

/// The settings as a configuration file.
pub fn print(settings: &Settings) -> String {
    let mut page = Page("# The whole configuration of amped, as it would be used.\n\n".to_owned());
    page.key("listen", &settings.listen[..], "\"[::]:8080\" is every address, IPv4 and IPv6");
    page.key("architecture", &name_of(&settings.architecture)[..], "who waits for the network, who for the disk");
    page.key("workers", &settings.workers, "loops of amped and sped, threads of mt, processes of mp");
    page.maybe("user", settings.user.as_deref(), "www-data", "user to become once the ports are open");
    page.maybe("group", settings.group.as_deref(), "www-data", "group to become; without it the user's own");

    page.table("[helpers]", "of each loop of amped: they wait for the disk in its place");
    page.key("kind", &name_of(&settings.helpers.kind)[..], "threads, or processes beside the server");
    page.key("max", &settings.helpers.max, "most of them");
    page.key("min_spare", &settings.helpers.min_spare, "of these, kept when there is nothing to do");
    page.key("max_queue", &settings.helpers.max_queue, "work that may wait for a helper; beyond it 503");
    page.key("idle_timeout", &settings.helpers.idle_timeout, "one without work ends after this");

    page.table("[log]", "");
    match &settings.log.access {
        LogTarget::Off => page.key("access", "off", "a file, \"-\" for standard output, or \"off\""),
        LogTarget::Stdout => page.key("access", "-", "a file, \"-\" for standard output, or \"off\""),
        LogTarget::File(path) => page.key("access", &**path, "a file, \"-\" for standard output, or \"off\""),
    }
    page.key("format", &name_of(&settings.log.format)[..], "common, combined or json");
    page.key("buffer", &settings.log.buffer, "lines are gathered up to this before they are written");
    page.key("flush", &settings.log.flush, "and no longer than this");
    page.key(
        "hostnames",
        &settings.log.hostnames,
        "call clients by their names in the DNS, where these lead back to them",
    );
    let hostname = &settings.log.hostname;
    page.key("hostname_timeout", &hostname.wait, "a line waits for the name; then it has the address");
    page.key("hostname_entries", &hostname.entries, "names that are kept, of each process; 0 asks for each line");
    page.key("hostname_ttl", &hostname.time, "a name is believed this long");
    page.key("hostname_negative_ttl", &hostname.absent_time, "that there is none, or no answer, this long");

    let limits = &settings.limits;
    page.table("[limits]", "what one client may cost");
    let connections = "of the whole server; without it as many as the descriptor limit bears";
    page.maybe("max_connections", settings.connections.as_ref(), "10000", connections);
    page.key("max_request_line_bytes", &limits.max_request_line_bytes, "beyond it 414");
    page.key("max_header_bytes", &limits.max_header_bytes, "request line and header fields; beyond it 431");
    page.key("max_header_fields", &limits.max_header_fields, "header fields; beyond it 431");
    page.key("max_body_bytes", &limits.max_body_bytes, "a body is read and thrown away up to this; beyond it 413");
    page.key("header_timeout", &limits.header_timeout, "to send the head; then 408");
    page.key("body_timeout", &limits.body_timeout, "a client that sends nothing of a body for this long gets 408");
    page.key("min_body_rate", &limits.min_body_rate, "a second, on average over body_timeout; 0: any rate renews it");
    page.key("body_total_timeout", &limits.body_total_timeout, "to send a body, however fast; then 408");
    page.key("idle_timeout", &limits.idle_timeout, "a connection without a request is closed after this");
    page.key("send_timeout", &limits.send_timeout, "a client that takes nothing for this long is given up");
    page.key("disk_timeout", &limits.disk_timeout, "a disk that does not answer for this long is given up; then 503");
    page.key(
        "linger_timeout",
        &limits.linger_timeout,
        "a refused client that sends on is read this much longer, 30 s at most",
    );
    page.key("max_requests", &limits.max_requests, "on one connection before it is closed");
    let attempts = settings.max_password_attempts.map_or(0, NonZeroU32::get);
    page.key("max_password_attempts", &attempts, "wrong ones from one address a minute; beyond it 429; 0: no limit");
    page.key("max_ranges", &limits.max_ranges, "in one request; beyond it the whole file is sent");
    page.key("max_pipelined", &limits.max_pipelined, "replies for one client before others have their turn");

    let budgets = &settings.budgets;
    page.table("[cache]", "of each worker");
    page.key("uri_entries", &budgets.uri_entries, "targets whose clean path is known, about 200 bytes each");
    page.key("path_entries", &budgets.path_entries, "names whose files are known, about 300 bytes each");
    page.key("negotiation_entries", &budgets.negotiation_entries, "choices among variants, about 250 bytes each");
    page.key("head_bytes", &budgets.head_bytes, "ready header blocks, 250 to 400 bytes each");
    page.key("content_bytes", &budgets.content_bytes, "content of files in memory");
    page.key("max_content_file_bytes", &budgets.max_content_file_bytes, "larger files are sent from the page cache");
    page.key(
        "max_unpacked_file_bytes",
        &budgets.max_unpacked_file_bytes,
        "a lone name.gz is unpacked, in memory, up to this size",
    );
    page.key("descriptors", &budgets.descriptors, "larger files that are kept open");
    page.key("mapped_bytes", &settings.send.mapped_bytes, "parts of files that stay mapped, where files are mapped");
    page.key("revalidate", &budgets.revalidate, "the file system is asked again after this");
    page.key("watch", &settings.watch, "watch folders too, so that a change in one is seen at once");
    page.key("max_stale", &budgets.max_stale, "oldest entry that is used while the disk is busy");

    let shared = "in mp: names and bodies in memory that all processes share";
    page.key("shared", &settings.shared_cache.is_some(), shared);

    page.table("[optimise]", "what the papers' servers were made faster by; also --without and --with");
    for which in Optimisation::value_variants() {
        let value = which.to_possible_value();
        let comment = value.as_ref().and_then(|value| value.get_help()).map(ToString::to_string).unwrap_or_default();
        page.key(&name_of(which).replace('-', "_"), &settings.optimise.has(*which), &comment);
    }

    page.table("[spool]", "bodies that applications or clients are too slow for");
    let directory = settings.spool.directory.as_deref();
    page.maybe("directory", directory, "/var/tmp", "of files without names; default $TMPDIR, else /var/tmp, else /tmp");
    page.key(
        "max_bytes",
        &settings.spool.max_bytes,
        "bytes in them, of each process; a response takes a quarter at most",
    );

    page.table("[send]", "");
    page.key(
        "sendfile_min_age",
        &settings.send.sendfile_min_age,
        "a large file unchanged for so long is lent to sockets; a younger one is copied",
    );
    let tests = "how the loop finds out what is in memory: nowait, mincore, clock or none";
    page.key("residency", &name_of(&settings.send.residency)[..], tests);
    let modes = "where bodies are sent from: mixed, copy, mmap or sendfile";
    page.key("content", &name_of(&settings.send.content)[..], modes);

    page.table("[control]", "");
    let comment = "where `amped preload` reaches the server; its user and root alone may open it";
    page.maybe("socket", settings.control.as_deref(), "/run/amped/control", comment);

    page.table("[metrics]", "");
    let comment = "in memory, as in /run: what the server counts, for `ammeter monitor`";
    page.maybe("file", settings.metrics.file.as_deref(), "/run/amped/metrics", comment);
    let listen = settings.metrics.listen.map(|address| address.to_string());
    page.maybe("listen", listen.as_deref(), "127.0.0.1:9145", "where the same is asked for, as /metrics (OpenMetrics)");
    page.key("public", &settings.metrics.public, "let other machines ask; else `listen` is this one's alone");

    page.table("[stop]", "");
    page.key("deadline", &settings.stop_deadline, "replies under way have this long to end");

    for (number, root) in settings.roots.iter().enumerate() {
        let site = u16::try_from(number).ok().and_then(|number| settings.sites.get(number));
        let apps = settings.apps.get(number).map_or(&[][..], Vec::as_slice);
        site_tables(&mut page, site.expect("a root for each site, no more"), &root.path, (&settings.accounts, apps));
    }
    page.0
}

fn site_tables(page: &mut Page, site: &Site, root: &Path, (accounts, apps): (&[PathBuf], &[AppSettings])) {
    page.table("[[site]]", if site.number == 0 { "the default one: it answers to every other name too" } else { "" });
    page.key("hosts", &site.hosts[..], "\"*.example.org\" is every name below");
    page.key("root", root, "");
    page.key("index", &site.index[..], "names that stand for a folder, the best first");
    page.key("listing", &site.listing, "list folders without one; else 403");
    page.key("dotfiles", &site.dotfiles, "serve names that begin with a dot; /.well-known always is");
    page.key("precompressed", &site.precompressed[..], "siblings such as style.css.br; [] switches them off");
    page.maybe("user_dirs", site.user_dir.as_ref(), "public_html", "folder in a user's home that /~user/ serves");
    page.key("charset", site.types.charset.as_deref().unwrap_or(""), "of text types that name none; \"\" adds nothing");
    page.key("default_type", &site.types.fallback, "of files that no ending tells");
    let etag = match site.etag {
        EtagForm::Full => "full",
        EtagForm::Portable => "portable",
    };
    page.key("etag", etag, "portable: the same on each host behind a balancer");
    let symlinks = match site.symlinks {
        Symlinks::Within => "within",
        Symlinks::Owner => "owner",
        Symlinks::Any => "any",
        Symlinks::None => "none",
    };
    page.key("symlinks", symlinks, "that are followed: within the root, of the target's owner, any, or none");
    page.table("[site.types]", "ending = \"type/subtype\"");
    for (ending, kind) in &site.types.overrides {
        page.key(&ending.literal(), kind, "");
    }
    page.table("[site.errors]", "\"404\" = \"/404.html\"");
    for (status, path) in &site.error_pages {
        page.key(&status.0.to_string().literal(), path, "");
    }
    if site.rules.is_empty() {
        page.0 += "\n# [[site.headers]]\n# match = \"*.css\"\n# cache_control = \"max-age=3600\"\n";
        page.0 += "# set = { \"X-Frame-Options\" = \"DENY\" }\n";
    }
    for rule in &site.rules {
        page.table("[[site.headers]]", "");
        page.key("match", rule.pattern.as_str(), "* within a folder, ** across, ? one character");
        if let Some(value) = &rule.cache_control {
            page.key("cache_control", value, "on files, and on no error");
        }
        if !rule.set.is_empty() {
            let set = rule.set.iter().map(|(name, value)| format!("{} = {}", name.literal(), value.literal()));
            let set = set.collect::<Vec<_>>().join(", ");
            page.line(&format!("set = {{ {set} }}"), "on every reply, errors included");
        }
    }
    if site.cors.is_empty() {
        page.0 += "\n# [[site.cors]]\n# match = \"/fonts/**\"\n# origins = [\"https://example.org\"]\n";
        page.0 += "# methods = [\"GET\", \"HEAD\"]\n# headers = []\n# expose = []\n# credentials = false\n# max_age = \"10m\"\n";
    }
    for rule in &site.cors {
        page.table("[[site.cors]]", "pages of other origins that may read what is here");
        page.key("match", rule.pattern.as_str(), "");
        let all = ["*".into()];
        page.key("origins", if rule.origins.is_empty() { &all[..] } else { &rule.origins[..] }, "or \"*\"");
        page.key("methods", &rule.methods[..], "that they may use");
        page.key("headers", &rule.headers[..], "that they may send");
        page.key("expose", &rule.expose[..], "that they may read");
        page.key("credentials", &rule.credentials, "what the browser knows of the user may go along");
        let max_age = rule.max_age_s.map(Duration::from_secs);
        page.maybe("max_age", max_age.as_ref(), "10m", "a browser may keep what it was told about this");
    }
    if site.routes.is_empty() {
        page.0 += "\n# [[site.route]]\n# match = \"/old/**\"\n# redirect = \"/new/$1\"\n# status = 302\n";
        page.0 += "\n# [[site.route]]\n# match = \"/blog/*\"\n# rewrite = \"/posts/$1.html\"\n";
        page.0 += "\n# [[site.route]]\n# match = \"/uploads/*.php\"\n# deny = true\n# status = 403\n";
        page.0 += "\n# [[site.route]]\n# match = \"/robots.txt\"\n# respond = \"User-agent: *\"\n# status = 200\n";
        page.0 += "# headers = { \"Content-Type\" = \"text/plain\" }\n";
        page.0 += "\n# [[site.route]]\n# match = \"/protected/**\"\n# internal = true\n";
    }
    for route in &site.routes {
        page.table("[[site.route]]", "the first that matches applies");
        page.key("match", route.pattern.as_str(), "");
        let status = |page: &mut Page, status: Status, comment| page.key("status", &usize::from(status.0), comment);
        match &route.action {
            RouteAction::Redirect { to, status: code } => {
                page.key("redirect", to, "$1 is what the first star stood for");
                status(page, *code, "302 for now, 301 for ever; 307 and 308 keep the method");
            }
            RouteAction::Rewrite { to } => page.key("rewrite", to, "the client is not told"),
            RouteAction::Deny(code) => {
                page.key("deny", &true, "nobody gets it, neither as a file nor run as a script");
                status(page, *code, "of the refusal");
            }
            RouteAction::Respond(response) => {
                page.key("respond", &*String::from_utf8_lossy(&response.body), "this body");
                status(page, response.status, "");
                let fields = response.fields.iter();
                let fields = fields.map(|(name, value)| format!("{} = {}", name.literal(), value.literal()));
                let fields = fields.collect::<Vec<_>>().join(", ");
                if !fields.is_empty() {
                    page.line(&format!("headers = {{ {fields} }}"), "");
                }
            }
            RouteAction::Internal => {
                page.key("internal", &true, "404 for clients; a rewrite, a fallback or an application may lead to it")
            }
        }
    }
    if site.fallbacks.is_empty() {
        page.0 += "\n# [[site.fallback]]\n# folder = \"/app/\"\n# file = \"/app/index.html\"\n";
    }
    for fallback in &site.fallbacks {
        page.table("[[site.fallback]]", "what is missing in a folder is this file");
        page.key("folder", &fallback.folder, "");
        page.key("file", &fallback.file, "");
    }
    if site.guards.is_empty() {
        page.0 += "\n# [[site.auth]]\n# folder = \"/private/\"\n# realm = \"Staff\"\n# accounts = \"htpasswd\"\n";
    }
    for guard in &site.guards {
        page.table("[[site.auth]]", "a folder that wants a password (Basic, RFC 7617)");
        page.key("folder", &guard.folder, "all that is in it included");
        page.key("realm", &guard.realm, "what clients are told that the password is for");
        page.key(
            "accounts",
            &*accounts[usize::from(guard.accounts)],
            "names and bcrypt or argon2id hashes, see htpasswd(1)",
        );
    }
    if site.negotiations.is_empty() {
        page.0 += "\n# [[site.negotiation]]\n# match = \"/docs/**\"\n# languages = [\"en\", \"de\"]\n";
        page.0 += "# charsets = [\"utf-8\"]\n# ambiguous = \"first\"\n# unacceptable = \"first\"\n";
    }
    for rule in &site.negotiations {
        negotiation_table(page, rule);
    }
    if apps.is_empty() {
        page.0 += "\n# [[site.app]]\n# match = \"/cgi-bin/**\"\n# cgi = true\n# fastcgi = \"unix:/run/php/php-fpm.sock\"\n# command = [\"/srv/app\"]\n# files = true\n# min_spare = 1\n# timeout = \"1m\"\n# max_body_bytes = \"100MiB\"\n# max_response_bytes = \"1GiB\"\n# buffer_request = true\n# buffer_response = true\n# cache = \"10s\"\n";
        page.0 += "# max_processes = 20\n# max_queue = 1000\n# env = { LANG = \"C.UTF-8\" }\n";
    }
    for (rule, app) in site.apps.iter().zip(apps) {
        page.table("[[site.app]]", "");
        page.key("match", rule.pattern.as_str(), "which paths are its scripts; what follows is PATH_INFO");
        match &app.kind {
            AppKind::Cgi => page.key("cgi", &true, "a process for each request"),
            AppKind::Unix(name) => {
                page.key("fastcgi", &*format!("unix:{}", name.display()), "it lives on, and listens here")
            }
            AppKind::Tcp(address) => page.key("fastcgi", &*address.to_string(), "it lives on, and listens here"),
            AppKind::Command(words) => {
                let words: Vec<Box<str>> = words.iter().map(|word| word.as_str().into()).collect();
                page.key("command", &words[..], "it is started here, and lives on");
            }
        }
        if app.kind != AppKind::Cgi {
            page.key("files", &app.files, "its scripts are files of the site; what is none is 404");
            let what = match &app.kind {
                AppKind::Command(_) => "processes kept while there is nothing to do",
                AppKind::Cgi | AppKind::Unix(_) | AppKind::Tcp(_) => "idle connections kept open",
            };
            page.key("min_spare", &app.min_spare, what);
        }
        page.key("timeout", &rule.timeout, "it may do nothing for so long; then 504");
        page.key("max_body_bytes", &rule.max_body_bytes, "longest body of a request; beyond it 413");
        page.maybe(
            "max_response_bytes",
            rule.max_response_bytes.as_ref(),
            "1GiB",
            "longest response; without it any length",
        );
        page.key("buffer_request", &app.buffer_request, "requests are whole before it gets them");
        page.key("buffer_response", &app.buffer_response, "responses are read as fast as they come");
        match &rule.cache {
            Some(time) => page.key("cache", time, "answers are kept; for so long, if they do not say for how long"),
            None => page.0 += "# cache = \"10s\"\n",
        }
        match &app.max_processes {
            Some(processes) => page.key("max_processes", processes, "most requests at a time, of the whole server"),
            None => page.0 += "# max_processes = 20\n",
        }
        page.key("max_queue", &app.max_queue, "requests that may wait for one; beyond it 503");
        if !app.env.is_empty() {
            let env = app.env.iter().map(|(name, value)| format!("{} = {}", name.literal(), value.literal()));
            page.line(&format!("env = {{ {} }}", env.collect::<Vec<_>>().join(", ")), "besides those of CGI");
        }
    }
}

fn negotiation_table(page: &mut Page, rule: &NegotiationRule) {
    page.table("[[site.negotiation]]", "");
    page.key("match", rule.pattern.as_str(), "names that are asked for, and are not there themselves");
    page.key("languages", &rule.languages[..], "endings that are languages, the best first");
    page.key("charsets", &rule.charsets[..], "endings that are charsets, the best first");
    let ambiguous = if rule.list_ties { "300" } else { "first" };
    page.key("ambiguous", ambiguous, "several are equally good: the first of them, or a list of all (300)");
    let unacceptable = if rule.refuse { "406" } else { "first" };
    page.key("unacceptable", unacceptable, "none is accepted: the one that comes nearest, or a list of all (406)");
}

struct Page(String);

impl Page {
    fn table(&mut self, name: &str, comment: &str) {
        self.0 += "\n";
        self.line(name, comment);
    }

    fn key<T: Literal + ?Sized>(&mut self, name: &str, value: &T, comment: &str) {
        self.line(&format!("{name} = {}", value.literal()), comment);
    }

    /// A key that may have no value: then an example stands there as a comment.
    fn maybe<T: Literal + ?Sized>(&mut self, name: &str, value: Option<&T>, example: &str, comment: &str) {
        match value {
            Some(value) => self.key(name, value, comment),
            None if example.bytes().all(|b| b.is_ascii_digit()) => self.line(&format!("# {name} = {example}"), comment),
            None => self.line(&format!("# {name} = \"{example}\""), comment),
        }
    }

    fn line(&mut self, line: &str, comment: &str) {
        // Writing to a string cannot fail.
        let _ = match comment {
            "" => writeln!(self.0, "{line}"),
            _ => writeln!(self.0, "{line:<32}  # {comment}"),
        };
    }
}

fn name_of<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}
