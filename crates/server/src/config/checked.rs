//! The configuration as the server uses it: flags over file over defaults, checked once and then believed.
//!
//! `settle` is the one place where these three meet. What it hands out needs no second look: an address can be
//! bound, a root was a folder, a header value cannot break out of its line. What it refuses, it notes with its place,
//! and goes on, so that one run tells everything.
//!
//! A default that depends on another key (`min_spare` on `max`, say) gives way when only the other one is written; two
//! that are written and contradict each other are a problem.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use amped_core::auth::Guard;
use amped_core::cache::Budgets;
use amped_core::cache::hostname::HostnameLimits;
use amped_core::cors::CorsRule;
use amped_core::glob::Glob;
use amped_core::limits::Limits;
use amped_core::routes::{Fallback, FixedResponse, Route, RouteAction};
use amped_core::site::{AppRule, EtagForm, HeaderRule, NegotiationRule, Site, Sites, Symlinks, Types};
use amped_http::h1::request;
use amped_http::negotiate::Coding;
use amped_http::status::Status;
use amped_units::Bytes;
use clap::ValueEnum;
use toml::Spanned;

use super::cli::Serve;
use super::error::Findings;
use super::file::{self, File, Key};
use super::optimise::{Optimisation, Optimise};
use super::print::Literal;
use super::settings::{
    AppKind, AppSettings, Form, HelperSettings, LogSettings, LogTarget, MetricsSettings, SendSettings, Settings,
    SharedSettings, SiteRoot, SpoolSettings, form, number, parse_listen,
};
use super::types;

/// Targets of the URI cache, once that is switched on.
const URI_ENTRIES: usize = 8192;

/// Makes the settings of flags and file; `folder` is where the file lies, to which its paths are relative. `None` only
/// with something noted in `findings`.
pub(super) fn settle(flags: &Serve, file: &File, folder: &Path, findings: &mut Findings) -> Option<Settings> {
    let mut check =
        Checker { folder, whole: findings.is_empty(), findings, accounts: Vec::new(), keeps_no_bodies: false };
    let listen = check.listen(&flags.listen, &file.listen);
    let architecture = flags.architecture.or(file.architecture).unwrap_or_default();
    let form = form(architecture);
    let workers = check.workers(flags, &file.workers, &form);
    let user = flags.user.clone().or_else(|| check.name(&file.user, "user"));
    let group = check.name(&file.group, "group");
    if let Some(key) = file.group.as_ref().filter(|_| user.is_none()) {
        let help = "write `user` too, or take `group` out".to_owned();
        check.findings.at(key.span(), "`group` is given without `user`".to_owned(), help);
    }
    let helpers = check.helpers(flags, &file.helpers);
    let given = [("--helpers", flags.helpers.is_some()), ("--helpers-as", flags.helpers_as.is_some())];
    for (flag, _) in given.iter().filter(|(_, is_given)| *is_given && !form.helpers) {
        let help = "take it out, or serve with `--architecture amped`, whose loops have helpers";
        let name = architecture.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned());
        check.findings.usage(format!("`{flag}` is given, but the architecture {name} has no helpers"), help);
    }
    let optimise = Optimise::settle(file.optimise.switches(), &flags.without, &flags.with);
    let log = check.log(flags, &file.log, &optimise);
    let limits = check.limits(&file.limits);
    let connections = file
        .limits
        .max_connections
        .is_some()
        .then(|| check.positive(&file.limits.max_connections, "max_connections", 1));
    // One of a pool has one connection.
    let workers = if form.pool { workers.min(connections.unwrap_or(usize::MAX)) } else { workers };
    let budgets = check.budgets(&file.cache);
    check.keeps_no_bodies = budgets.content_bytes.0 == 0;
    // As much as the processes would have together without it, and files up to the same size.
    let shared = SharedSettings {
        bytes: budgets.content_bytes,
        file_max: budgets.max_content_file_bytes,
        entries: budgets.path_entries,
    };
    let holds_any = shared.bytes.0 > 0 && shared.entries > 0;
    let shared_cache = (holds_any && file.cache.shared.unwrap_or(false)).then_some(shared);
    let spool = check.spool(&file.spool);
    let send = SendSettings {
        sendfile_min_age: or(&file.send.sendfile_min_age, Duration::from_secs(60)),
        residency: flags.residency.or(file.send.residency).unwrap_or_default(),
        content: flags.content.or(file.send.content).unwrap_or_default(),
        mapped_bytes: or(&file.cache.mapped_bytes, Bytes::mib(64)),
    };
    let stop_deadline = or(&file.stop.deadline, Duration::from_secs(10));
    let control = check.control(flags, &file.control.socket);
    let metrics = check.metrics(flags, &file.metrics);
    let (sites, roots, apps) = check.sites(flags, file)?;
    Some(Settings {
        listen,
        architecture,
        workers,
        user,
        group,
        helpers,
        log,
        limits,
        connections,
        budgets,
        shared_cache,
        optimise,
        send,
        spool,
        stop_deadline,
        watch: file.cache.watch.unwrap_or(false),
        control,
        metrics,
        sites: Arc::new(sites),
        roots,
        accounts: check.accounts.into_iter().map(|(path, _)| path).collect(),
        max_password_attempts: NonZeroU32::new(or(&file.limits.max_password_attempts, 20)),
        apps,
    })
}

/// A key's value, or its default.
fn or<T: Copy + Into<U>, U>(key: &Key<T>, default: U) -> U {
    key.as_ref().map_or(default, |key| (*key.get_ref()).into())
}

struct Checker<'a> {
    folder: &'a Path,
    /// Nothing is missing because its shape was wrong. Else the operator did write it, and is not asked for it again.
    whole: bool,
    findings: &'a mut Findings,
    /// Files of accounts that have been named so far, and where first.
    accounts: Vec<(PathBuf, Range<usize>)>,
    /// The configuration says so.
    keeps_no_bodies: bool,
}

impl Checker<'_> {
    fn listen(&mut self, flags: &[SocketAddr], key: &Key<Vec<Spanned<String>>>) -> Vec<SocketAddr> {
        if !flags.is_empty() {
            return flags.to_vec();
        }
        let Some(key) = key else { return vec![SocketAddr::from(([127, 0, 0, 1], 8080))] };
        if key.get_ref().is_empty() {
            self.findings.at(key.span(), "`listen` is empty, so no one could connect", "write [\"127.0.0.1:8080\"]");
        }
        let mut seen = HashMap::new();
        for text in key.get_ref() {
            match parse_listen(text.get_ref().trim()) {
                Err(help) => {
                    self.findings.at(text.span(), format!("`{}` is not an address and port", text.get_ref()), help);
                }
                // Port 0 asks the system for a free one, and may well be asked for twice.
                Ok(address) if address.port() != 0 => {
                    if let Some(earlier) = seen.insert(address, text.span()) {
                        let message = format!("`{}` is listened on twice", text.get_ref());
                        self.findings.against(text.span(), (earlier, "first here"), message, "take one of them out");
                    }
                }
                Ok(_) => {}
            }
        }
        key.get_ref().iter().filter_map(|text| parse_listen(text.get_ref().trim()).ok()).collect()
    }

    /// The number of loops, threads or processes.
    fn workers(&mut self, flags: &Serve, key: &Key<usize>, form: &Form) -> usize {
        let workers = flags.workers.map_or_else(|| self.positive(key, "workers", form.workers), NonZeroUsize::get);
        if workers > WORKERS_MAX {
            let help = match form.pool {
                true => format!("write {WORKERS_MAX} or less: each is a {} and has one client at a time", form.worker),
                false => "one for each core is enough: a loop serves thousands of clients".to_owned(),
            };
            match (flags.workers, key) {
                (None, Some(key)) => {
                    self.findings.at(key.span(), format!("`workers` is more than {WORKERS_MAX}"), help);
                }
                _ => self.findings.usage(format!("`--workers {workers}` is more than {WORKERS_MAX}"), help),
            }
        }
        workers
    }

    /// A value that must not be zero.
    fn positive<T, U>(&mut self, key: &Key<T>, name: &str, default: U) -> U
    where
        T: Copy + Into<U>,
        U: Default + PartialEq + Literal,
    {
        let Some(key) = key else { return default };
        let value = (*key.get_ref()).into();
        if value == U::default() {
            let help = match name {
                "max_connections" => "take the key out for as many as there is room for".to_owned(),
                _ => format!("write more, or take the key out for the default, {}", default.literal()),
            };
            self.findings.at(key.span(), format!("`{name}` cannot be zero"), help);
        }
        value
    }

    /// The number of header fields, of which the reader of heads has a limit of its own.
    fn fields(&mut self, key: &Key<usize>, default: usize) -> usize {
        let fields = self.positive(key, "max_header_fields", default);
        if let Some(key) = key.as_ref().filter(|_| fields > request::FIELDS_MAX) {
            let message =
                format!("`max_header_fields` is more than {}, which is the most that are read", request::FIELDS_MAX);
            self.findings.at(key.span(), message, format!("write {} or less", request::FIELDS_MAX));
        }
        fields
    }

    /// A value that must not exceed another; without being written, it gives way. `key` is already in `value`.
    fn at_most<T, U: PartialOrd + Copy>(
        &mut self,
        (name, key, value): (&str, &Key<T>, &mut U),
        (other_name, other, most): (&str, Option<Range<usize>>, U),
    ) {
        if *value <= most {
            return;
        }
        let Some(key) = key else {
            *value = most;
            return;
        };
        let message = format!("`{name}` is more than `{other_name}`");
        let help = format!("lower `{name}` or raise `{other_name}`");
        match other {
            Some(other) => self.findings.against(key.span(), (other, "more than this"), message, help),
            None => self.findings.at(key.span(), message, help),
        }
    }

    fn name(&mut self, key: &Key<String>, what: &str) -> Option<String> {
        let key = key.as_ref()?;
        let name = key.get_ref();
        if name.is_empty() || name.contains(|c: char| c.is_control() || c == ':' || c == '/') {
            let help = "write a name as in `/etc/passwd`, or take the key out to stay who you are";
            self.findings.at(key.span(), format!("{name:?} is not the name of a {what}"), help);
        }
        Some(name.clone())
    }

    fn helpers(&mut self, flags: &Serve, file: &file::Helpers) -> HelperSettings {
        let max = flags.helpers.map_or_else(|| self.positive(&file.max, "max", 16), |n| n.get());
        let mut reserve = or(&file.min_spare, 2);
        let max_place = file.max.as_ref().map(Spanned::span);
        if flags.helpers.is_some() {
            // The flag was not written with this file in mind: what it contradicts gives way.
            reserve = reserve.min(max);
        }
        self.at_most(("min_spare", &file.min_spare, &mut reserve), ("max", max_place, max));
        HelperSettings {
            kind: flags.helpers_as.or(file.kind).unwrap_or_default(),
            max,
            min_spare: reserve,
            max_queue: self.positive(&file.max_queue, "max_queue", 512),
            idle_timeout: self.positive(&file.idle_timeout, "idle_timeout", Duration::from_secs(10)),
        }
    }

    fn log(&mut self, flags: &Serve, file: &file::Log, optimise: &Optimise) -> LogSettings {
        let access = match (&flags.access_log, &file.access) {
            (Some(LogTarget::File(path)), _) if path.as_os_str().is_empty() => {
                self.findings.usage("`--access-log` is empty", NO_LOG_FILE);
                LogTarget::Off
            }
            (Some(LogTarget::File(path)), _) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                if let Err((message, help)) = log_file(&path) {
                    self.findings.outside(message, help);
                }
                LogTarget::File(path)
            }
            (Some(target), _) => target.clone(),
            (None, None) => LogTarget::Off,
            (None, Some(key)) if key.get_ref().is_empty() => {
                self.findings.at(key.span(), "`access` is empty", NO_LOG_FILE);
                LogTarget::Off
            }
            (None, Some(key)) => match LogTarget::from(std::ffi::OsStr::new(key.get_ref())) {
                LogTarget::File(path) => {
                    let path = self.folder.join(path);
                    if let Err((message, help)) = log_file(&path) {
                        self.findings.at(key.span(), message, help);
                    }
                    LogTarget::File(path)
                }
                target => target,
            },
        };
        let default = HostnameLimits::default();
        LogSettings {
            access,
            format: flags.log_format.or(file.format).unwrap_or_default(),
            buffer: self.positive(&file.buffer, "buffer", Bytes::kib(64)),
            flush: self.positive(&file.flush, "flush", Duration::from_secs(1)),
            delayed: optimise.has(Optimisation::DelayedLog),
            string_caches: optimise.has(Optimisation::StringCaches),
            hostnames: file.hostnames.unwrap_or_default(),
            hostname: HostnameLimits {
                entries: or(&file.hostname_entries, default.entries),
                wait: or(&file.hostname_timeout, default.wait),
                time: or(&file.hostname_ttl, default.time),
                absent_time: or(&file.hostname_negative_ttl, default.absent_time),
            },
        }
    }

    fn control(&mut self, flags: &Serve, key: &Key<String>) -> Option<PathBuf> {
        let path = match (&flags.control, key) {
            (Some(path), _) => path.clone(),
            (None, Some(key)) if key.get_ref().is_empty() => {
                self.findings.at(key.span(), "`socket` is empty", "take the key out for no socket");
                return None;
            }
            (None, Some(key)) => self.folder.join(key.get_ref()),
            (None, None) => return None,
        };
        let path = std::path::absolute(&path).unwrap_or(path);
        // unix(7): `sun_path` has 108 bytes, with the NUL at its end.
        if path.as_os_str().len() > 107 {
            let message = format!("the name of the control socket has {} bytes", path.as_os_str().len());
            let help = "the system takes 107 at most: name one in a folder such as /run/amped";
            match key.as_ref().filter(|_| flags.control.is_none()) {
                Some(key) => self.findings.at(key.span(), message, help),
                None => self.findings.outside(message, help),
            }
        }
        Some(path)
    }

    fn metrics(&mut self, flags: &Serve, file: &file::Metrics) -> MetricsSettings {
        let public = file.public.unwrap_or(false);
        let path = match (&flags.metrics_file, &file.file) {
            (Some(path), _) => Some(path.clone()),
            (None, Some(key)) if key.get_ref().is_empty() => {
                self.findings.at(key.span(), "`file` is empty", "take the key out for no file");
                None
            }
            (None, Some(key)) => Some(self.folder.join(key.get_ref())),
            (None, None) => None,
        };
        let mut listen = flags.metrics_listen;
        let mut place = None;
        if let (None, Some(key)) = (listen, &file.listen) {
            place = Some(key.span());
            match parse_listen(key.get_ref().trim()) {
                Ok(address) => listen = Some(address),
                Err(help) => {
                    self.findings.at(key.span(), format!("`{}` is not an address and port", key.get_ref()), help);
                }
            }
        }
        if let Some(address) = listen.filter(|address| !address.ip().to_canonical().is_loopback() && !public) {
            let message = format!("other machines could ask for the metrics at {address}");
            let help = format!("write 127.0.0.1:{}, or `public = true` in `[metrics]` if they may", address.port());
            match place.clone() {
                Some(place) => self.findings.at(place, message, help),
                None => self.findings.usage(message, &help),
            }
        }
        if !cfg!(feature = "metrics") && (path.is_some() || listen.is_some()) {
            let message = "metrics are asked for, and this server was built without them";
            let help = "build it with the feature `metrics`, as by default, or take them out";
            match file.file.as_ref().map(Spanned::span).or(place).filter(|_| flags.metrics_file.is_none()) {
                Some(place) => self.findings.at(place, message, help),
                None => self.findings.usage(message.to_owned(), help),
            }
        }
        MetricsSettings { file: path.map(|path| std::path::absolute(&path).unwrap_or(path)), listen, public }
    }

    fn spool(&mut self, file: &file::Spool) -> SpoolSettings {
        let directory = file.directory.as_ref().map(|key| {
            let path = self.folder.join(key.get_ref());
            if !path.is_dir() {
                let help = "create it, or write another one; without the key it is $TMPDIR, else /var/tmp";
                self.findings.at(key.span(), format!("{} is not a directory", path.display()), help);
            }
            path
        });
        // Zero has a meaning: nothing is stored but in memory.
        SpoolSettings { directory, max_bytes: or(&file.max_bytes, Bytes::mib(4096)) }
    }

    fn limits(&mut self, file: &file::Limits) -> Limits {
        let default = Limits::default();
        let mut limits = Limits {
            max_request_line_bytes: self.positive(
                &file.max_request_line_bytes,
                "max_request_line_bytes",
                default.max_request_line_bytes,
            ),
            max_header_bytes: self.positive(&file.max_header_bytes, "max_header_bytes", default.max_header_bytes),
            max_header_fields: self.fields(&file.max_header_fields, default.max_header_fields),
            // Zero has a meaning here: refuse every body, send no ranges, close without waiting.
            max_body_bytes: or(&file.max_body_bytes, default.max_body_bytes),
            max_ranges: or(&file.max_ranges, default.max_ranges),
            linger_timeout: or(&file.linger_timeout, default.linger_timeout),
            header_timeout: self.positive(&file.header_timeout, "header_timeout", default.header_timeout),
            body_timeout: self.positive(&file.body_timeout, "body_timeout", default.body_timeout),
            min_body_rate: or(&file.min_body_rate, default.min_body_rate),
            body_total_timeout: self.positive(
                &file.body_total_timeout,
                "body_total_timeout",
                default.body_total_timeout,
            ),
            idle_timeout: self.positive(&file.idle_timeout, "idle_timeout", default.idle_timeout),
            send_timeout: self.positive(&file.send_timeout, "send_timeout", default.send_timeout),
            disk_timeout: self.positive(&file.disk_timeout, "disk_timeout", default.disk_timeout),
            max_requests: self.positive(&file.max_requests, "max_requests", default.max_requests),
            max_pipelined: self.positive(&file.max_pipelined, "max_pipelined", default.max_pipelined),
        };
        let head = file.max_header_bytes.as_ref().map(Spanned::span);
        if head.is_none() {
            // A longer line was asked for, and it is part of the head.
            limits.max_header_bytes = limits.max_header_bytes.max(limits.max_request_line_bytes);
        }
        self.at_most(
            ("max_request_line_bytes", &file.max_request_line_bytes, &mut limits.max_request_line_bytes),
            ("max_header_bytes", head, limits.max_header_bytes),
        );
        limits
    }

    fn budgets(&mut self, file: &file::Cache) -> Budgets {
        let default = Budgets::default();
        // Zero switches a cache off, which experiments want.
        let mut budgets = Budgets {
            uri_entries: or(&file.uri_entries, URI_ENTRIES),
            path_entries: or(&file.path_entries, default.path_entries),
            negotiation_entries: or(&file.negotiation_entries, default.negotiation_entries),
            head_bytes: or(&file.head_bytes, default.head_bytes),
            content_bytes: or(&file.content_bytes, default.content_bytes),
            max_content_file_bytes: or(&file.max_content_file_bytes, default.max_content_file_bytes),
            max_unpacked_file_bytes: or(&file.max_unpacked_file_bytes, default.max_unpacked_file_bytes),
            descriptors: or(&file.descriptors, default.descriptors),
            revalidate: or(&file.revalidate, default.revalidate),
            max_stale: or(&file.max_stale, default.max_stale),
            ready_headers: default.ready_headers,
            made_pages: default.made_pages,
        };
        let content = file.content_bytes.as_ref().map(Spanned::span);
        self.at_most(
            ("max_content_file_bytes", &file.max_content_file_bytes, &mut budgets.max_content_file_bytes),
            ("content_bytes", content, budgets.content_bytes),
        );
        let stale = file.max_stale.as_ref().map(Spanned::span);
        if stale.is_none() {
            budgets.max_stale = budgets.max_stale.max(budgets.revalidate);
        }
        self.at_most(
            ("revalidate", &file.revalidate, &mut budgets.revalidate),
            ("max_stale", stale, budgets.max_stale),
        );
        budgets
    }

    /// The sites and their roots.
    fn sites(&mut self, flags: &Serve, file: &File) -> Option<(Sites, Vec<SiteRoot>, Vec<Vec<AppSettings>>)> {
        let plain = file::Site::default();
        let mut roots = Vec::new();
        let mut sites = Vec::new();
        let mut apps = Vec::new();
        let mut hosts = HashMap::new();
        // The shorthand goes first; without it and without any site, the folder of the command line makes one.
        if file.root.is_some() || (file.site.is_empty() && flags.dir.is_some()) {
            roots.push(self.root(flags.dir.as_deref(), &file.root));
            let made = self.site(flags, &plain, &mut hosts, Vec::new());
            sites.push(Site { root_names: root_names(roots.last()), ..made });
            apps.push(Vec::new());
        }
        for table in &file.site {
            let site = table.get_ref();
            let dir = flags.dir.as_deref().filter(|_| sites.is_empty());
            if dir.is_none() && site.root.is_none() && self.whole {
                let help = "add `root = \"/var/www\"`, the folder that this site serves";
                self.findings.at(table.span(), "this site has no `root`", help);
            }
            if !sites.is_empty() && site.hosts.is_empty() && self.whole {
                let help = "add `hosts = [\"example.org\"]`; only the first site answers to every other name";
                self.findings.at(table.span(), "this site has no `hosts`, so no request would reach it", help);
            }
            roots.push(self.root(dir, &site.root));
            let (rules, settings) = site.app.iter().filter_map(|table| self.app(table)).unzip();
            let made = self.site(flags, site, &mut hosts, rules);
            sites.push(Site { root_names: root_names(roots.last()), ..made });
            apps.push(settings);
        }
        if sites.is_empty() && self.whole {
            match flags.config {
                None => self.findings.usage(
                    "there is no folder to serve",
                    "give one: `amped serve FOLDER`, or `amped serve --config FILE` with a `root` in the file",
                ),
                Some(_) => self.findings.at(
                    0..0,
                    "there is no folder to serve",
                    "write `root = \"/var/www\"` at the top of the file, or give a folder on the command line",
                ),
            }
        }
        if sites.len() > usize::from(u16::MAX) {
            self.findings.outside(format!("{} sites are too many", sites.len()), "at most 65535 fit in one server");
        }
        for (file, span) in std::mem::take(&mut self.accounts) {
            if let Some(root) = roots.iter().flatten().find(|root| lies_within(&file, &root.path)) {
                let message = format!("the accounts in {} lie within the root {}", file.display(), root.path.display());
                let help = "move the file out of every root, so that no client can ask for it";
                self.findings.at(span.clone(), message, help);
            }
            self.accounts.push((file, span));
        }
        let roots: Option<Vec<SiteRoot>> = roots.into_iter().collect();
        Some((Sites::new(sites)?, roots?, apps))
    }

    fn root(&mut self, dir: Option<&Path>, key: &Key<String>) -> Option<SiteRoot> {
        let path = match (dir, key) {
            (Some(dir), _) => std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()),
            (None, Some(key)) if key.get_ref().is_empty() => {
                self.findings.at(key.span(), "`root` is empty", "write \".\" for the folder of this file");
                return None;
            }
            (None, Some(key)) => {
                let path = self.folder.join(key.get_ref());
                std::path::absolute(&path).unwrap_or(path)
            }
            (None, None) => return None,
        };
        if let Err((message, help)) = folder_to_serve(&path) {
            match (dir, key) {
                (None, Some(key)) if Path::new(key.get_ref()).is_relative() && !help.contains('`') => {
                    let help = format!("{help}; a relative path begins at the folder of this file");
                    self.findings.at(key.span(), message, help);
                }
                (None, Some(key)) => self.findings.at(key.span(), message, help),
                _ => self.findings.outside(message, help),
            }
        }
        Some(SiteRoot { path })
    }

    fn site(
        &mut self,
        flags: &Serve,
        file: &file::Site,
        hosts: &mut HashMap<Box<str>, Range<usize>>,
        apps: Vec<AppRule>,
    ) -> Site {
        for page in file.errors.values() {
            if apps.iter().any(|app| app.pattern.matches(page.get_ref().as_bytes())) {
                let help = "write a page that is a file: an application may be what has failed";
                self.findings.at(page.span(), format!("the error page `{}` is an application's", page.get_ref()), help);
            }
        }
        let index = match &file.index {
            None => ["index.html", "index.htm"].map(Box::from).to_vec(),
            Some(names) => names.iter().map(|name| self.index_name(name)).collect(),
        };
        let precompressed = match &file.precompressed {
            None => vec![Coding::Brotli, Coding::Zstd, Coding::Gzip],
            Some(names) => self.codings(names),
        };
        let routes: Vec<Route> = file.route.iter().filter_map(|table| self.route(table)).collect();
        for file in file.fallback.iter().filter_map(|table| table.get_ref().file.as_ref()) {
            let first = routes.iter().find(|route| route.pattern.matches(file.get_ref().as_bytes()));
            if matches!(first, Some(Route { action: RouteAction::Deny(_), .. })) {
                let help = "write `internal = true` in place of `deny = true` to keep only clients away from it";
                let message = format!("a route denies the fallback file `{}`", file.get_ref().escape_debug());
                self.findings.at(file.span(), message, help);
            }
        }
        Site {
            number: 0, // `Sites::new` numbers them.
            hosts: file.hosts.iter().filter_map(|host| self.host(host, hosts)).collect(),
            index,
            listing: flags.listing || file.listing.unwrap_or(false),
            dotfiles: file.dotfiles.unwrap_or(false),
            precompressed,
            user_dir: file.user_dirs.as_ref().map(|name| self.user_dir(name)),
            types: self.types(file),
            apps,
            rules: file.headers.iter().filter_map(|table| self.rule(table)).collect(),
            cors: file.cors.iter().filter_map(|table| self.cors(table)).collect(),
            routes,
            fallbacks: file.fallback.iter().filter_map(|table| self.fallback(table)).collect(),
            guards: file.auth.iter().filter_map(|table| self.guard(table)).collect(),
            negotiations: file.negotiation.iter().filter_map(|table| self.negotiation(table)).collect(),
            error_pages: file.errors.iter().filter_map(|(status, page)| self.error_page(status, page)).collect(),
            etag: file.etag.map_or(EtagForm::default(), EtagForm::from),
            symlinks: file.symlinks.as_ref().map_or(Symlinks::default(), |key| Symlinks::from(*key.get_ref())),
            root_names: Vec::new(), // The caller knows the root.
        }
    }

    fn host(&mut self, key: &Spanned<String>, hosts: &mut HashMap<Box<str>, Range<usize>>) -> Option<Box<str>> {
        let given = key.get_ref();
        let host = given.to_ascii_lowercase();
        if let Err(help) = host_name(&host) {
            self.findings.at(key.span(), format!("`{given}` is not the name of a host"), help);
            return None;
        }
        let host: Box<str> = host.into();
        if let Some(earlier) = hosts.get(&host) {
            let message = format!("`{given}` is named twice");
            let help = "a host belongs to one site: take one of them out";
            self.findings.against(key.span(), (earlier.clone(), "first here"), message, help);
            return None;
        }
        hosts.insert(host.clone(), key.span());
        Some(host)
    }

    fn index_name(&mut self, key: &Spanned<String>) -> Box<str> {
        let name = key.get_ref();
        if name.contains('/') {
            let help = "write the bare name of a file, `index.html`: it is looked for in every folder";
            self.findings.at(key.span(), format!("the index name `{name}` has a slash"), help);
        } else if name.is_empty() || name == "." || name == ".." || name.contains('\0') {
            let help = "write the bare name of a file, `index.html`; `index = []` switches index pages off";
            self.findings.at(key.span(), format!("the index name `{}` names no file", name.escape_debug()), help);
        }
        name.as_str().into()
    }

    fn codings(&mut self, names: &[Spanned<file::CodingName>]) -> Vec<Coding> {
        for (at, name) in names.iter().enumerate() {
            if let Some(earlier) = names[..at].iter().find(|earlier| earlier.get_ref() == name.get_ref()) {
                let earlier = (earlier.span(), "first here");
                self.findings.against(name.span(), earlier, "a coding is named twice", "take one of them out");
            }
        }
        names.iter().map(|name| Coding::from(*name.get_ref())).collect()
    }

    fn user_dir(&mut self, key: &Spanned<String>) -> Box<str> {
        let name = key.get_ref();
        let inside = |step: &str| !matches!(step, "" | "." | "..") && !step.contains('\0');
        if name.is_empty() {
            let help = "write `public_html`, or take the key out to switch the folders of users off";
            self.findings.at(key.span(), "`user_dirs` is empty", help);
        } else if name.starts_with('/') || !name.trim_end_matches('/').split('/').all(inside) {
            let help =
                "write a folder within each user's home, such as `public_html`: no slash first, no `.` and no `..`";
            self.findings.at(key.span(), format!("`user_dirs` leaves the home: `{}`", name.escape_debug()), help);
        }
        name.trim_end_matches('/').into()
    }

    fn types(&mut self, file: &file::Site) -> Types {
        let mut overrides: BTreeMap<Box<str>, (Box<str>, Range<usize>)> = BTreeMap::new();
        for (key, kind) in &file.types {
            let ending = key.get_ref().strip_prefix('.').unwrap_or(key.get_ref()).to_ascii_lowercase();
            if ending.is_empty() || ending.contains(['.', '/']) {
                let help = "write what follows the last dot of a file's name, such as `html`";
                self.findings.at(key.span(), format!("`{}` is not the ending of a name", key.get_ref()), help);
            }
            self.media_type(kind);
            let value = (kind.get_ref().trim().into(), key.span());
            if let Some((_, earlier)) = overrides.insert(ending.into(), value) {
                let (earlier, later) = in_order(earlier, key.span());
                let message = format!("the ending `{}` has two types", key.get_ref());
                self.findings.against(later, (earlier, "first here"), message, "take one of them out");
            }
        }
        if let Some(kind) = &file.default_type {
            self.media_type(kind);
        }
        let charset = file.charset.as_ref().map_or("utf-8", |key| key.get_ref());
        if let Some(key) = file.charset.as_ref().filter(|key| !key.get_ref().is_empty() && !is_token(key.get_ref())) {
            let help = "write `utf-8`, or \"\" to name none";
            self.findings.at(
                key.span(),
                format!("`{}` is not the name of a charset", key.get_ref().escape_debug()),
                help,
            );
        }
        Types {
            overrides: overrides.into_iter().map(|(ending, (kind, _))| (ending, kind)).collect(),
            known: types::known,
            fallback: file
                .default_type
                .as_ref()
                .map_or("application/octet-stream", |kind| kind.get_ref().trim())
                .into(),
            charset: (!charset.is_empty()).then(|| charset.into()),
        }
    }

    /// RFC 9110, 8.3.1: type "/" subtype, both tokens, and then perhaps parameters.
    fn media_type(&mut self, key: &Spanned<String>) {
        let text = key.get_ref().trim();
        let (kind, parameters) = text.split_once(';').unwrap_or((text, ""));
        let good = kind.trim_end().split_once('/').is_some_and(|(top, sub)| is_token(top) && is_token(sub));
        if !good || !is_value(parameters) {
            let help = "write type/subtype, such as `text/html` or `text/html; charset=iso-8859-1`";
            self.findings.at(key.span(), format!("`{}` is not a media type", text.escape_debug()), help);
        }
    }

    fn rule(&mut self, table: &Spanned<file::Headers>) -> Option<HeaderRule> {
        let rule = table.get_ref();
        if rule.cache_control.is_none() && rule.set.is_empty() && self.whole {
            let help = "add `cache_control = \"max-age=3600\"` or `set = { \"X-Frame-Options\" = \"DENY\" }`";
            self.findings.at(table.span(), "these headers set nothing", help);
        }
        if let Some(key) = rule.cache_control.as_ref().filter(|key| key.get_ref().trim().is_empty()) {
            let help = "take the key out to send no Cache-Control, or write what caches may do, as in \"no-cache\"";
            self.findings.at(key.span(), "`cache_control` is empty", help);
        }
        let cache_control = rule.cache_control.as_ref().map(|value| self.header_value("Cache-Control", value));
        let mut names: HashMap<String, Range<usize>> = HashMap::new();
        let mut set = Vec::new();
        for (name, value) in &rule.set {
            self.header_name(name);
            if let Some(earlier) = names.insert(name.get_ref().to_ascii_lowercase(), name.span()) {
                let (earlier, later) = in_order(earlier, name.span());
                let message = format!("the header `{}` is set twice", name.get_ref());
                let help = "names of headers are the same in any case: take one of them out";
                self.findings.against(later, (earlier, "first here"), message, help);
            }
            set.push((name.get_ref().as_str().into(), self.header_value(name.get_ref(), value)));
        }
        let pattern = self.pattern(table.span(), &rule.pattern, "these headers do", "*.css")?;
        Some(HeaderRule { pattern, cache_control, set })
    }

    fn glob(&mut self, pattern: &Spanned<String>) -> Option<Glob> {
        match Glob::parse(pattern.get_ref()) {
            Ok(glob) => Some(glob),
            Err(why) => {
                let message = format!("`{}` is not a pattern", pattern.get_ref().escape_debug());
                self.findings.at(pattern.span(), message, why);
                None
            }
        }
    }

    /// Which paths a table is about.
    fn pattern(&mut self, table: Range<usize>, key: &Key<String>, who: &str, example: &str) -> Option<Glob> {
        let Some(pattern) = key else {
            let help = format!("add `match = \"{example}\"`, or `match = \"**\"` for everything");
            if self.whole {
                self.findings.at(table, format!("{who} not say for which paths"), help);
            }
            return None;
        };
        if pattern.get_ref().is_empty() {
            self.findings.at(pattern.span(), "an empty pattern matches nothing", "write `**` for everything");
        }
        self.glob(pattern)
    }

    fn cors(&mut self, table: &Spanned<file::Cors>) -> Option<CorsRule> {
        let rule = table.get_ref();
        let pattern = self.pattern(table.span(), &rule.pattern, "these origins do", "/fonts/**");
        let all = rule.origins.iter().find(|origin| origin.get_ref() == "*");
        for origin in rule.origins.iter().filter(|origin| origin.get_ref() != "*") {
            let text = origin.get_ref();
            let host = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
            let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-:[]".contains(&b);
            if !host.is_some_and(|host| !host.is_empty() && host.bytes().all(good)) {
                let help =
                    "write it as browsers do, in lower case, without a path: `https://example.org`; or `*` for all";
                self.findings.at(origin.span(), format!("`{}` is not an origin", text.escape_debug()), help);
            }
        }
        if rule.origins.is_empty() && self.whole {
            let help = "add `origins = [\"https://example.org\"]`, or `[\"*\"]` for all";
            self.findings.at(table.span(), "this rule lets nobody in", help);
        }
        if let (Some(all), true) = (all, rule.origins.len() > 1) {
            self.findings.at(all.span(), "`*` is all origins", "take the others out, or this one");
        }
        if let (Some(all), Some(key)) = (all, rule.credentials.as_ref().filter(|key| *key.get_ref())) {
            let help = "name the origins: browsers refuse the two together (Fetch, 3.2.5)";
            self.findings.against(key.span(), (all.span(), "all origins"), "`credentials` are not for everybody", help);
        }
        let mut names = |names: &[Spanned<String>], what: &str| -> Vec<Box<str>> {
            for name in names.iter().filter(|name| !is_token(name.get_ref())) {
                let message = format!("`{}` is not the name of a {what}", name.get_ref().escape_debug());
                self.findings.at(name.span(), message, "write it as it stands in a request");
            }
            names.iter().map(|name| name.get_ref().as_str().into()).collect()
        };
        let methods = match &rule.methods {
            Some(methods) => names(methods, "method"),
            None => ["GET", "HEAD"].map(Box::from).to_vec(),
        };
        let (headers, expose) = (names(&rule.headers, "header"), names(&rule.expose, "header"));
        let listed = rule.origins.iter().filter(|_| all.is_none());
        Some(CorsRule {
            pattern: pattern?,
            origins: listed.map(|origin| origin.get_ref().as_str().into()).collect(),
            methods,
            headers,
            expose,
            credentials: or(&rule.credentials, false),
            max_age_s: rule.max_age.as_ref().map(|key| Duration::from(*key.get_ref()).as_secs()),
        })
    }

    fn route(&mut self, table: &Spanned<file::Route>) -> Option<Route> {
        let route = table.get_ref();
        let pattern = self.pattern(table.span(), &route.pattern, "this route does", "/old/**");
        let mut given: Vec<(&str, Range<usize>)> = [
            route.redirect.as_ref().map(|key| ("redirect", key.span())),
            route.rewrite.as_ref().map(|key| ("rewrite", key.span())),
            route.deny.as_ref().map(|key| ("deny", key.span())),
            route.respond.as_ref().map(|key| ("respond", key.span())),
            route.internal.as_ref().map(|key| ("internal", key.span())),
        ]
        .into_iter()
        .flatten()
        .collect();
        given.sort_by_key(|(_, span)| span.start);
        let Some((kind, place)) = given.first().cloned() else {
            if self.whole {
                let help = "add one of `redirect = \"/new/$1\"`, `rewrite = \"/new/$1\"`, `deny = true`, \
                            `respond = \"text\"` and `internal = true`";
                self.findings.at(table.span(), "this route does nothing", help);
            }
            return None;
        };
        for (other, span) in &given[1..] {
            let message = format!("this route has both `{kind}` and `{other}`");
            self.findings.against(span.clone(), (place.clone(), "first here"), message, "take one of them out");
        }
        if given.len() > 1 {
            return None;
        }
        for (name, key) in [("deny", &route.deny), ("internal", &route.internal)] {
            if let Some(key) = key.as_ref().filter(|key| !*key.get_ref()) {
                let help = format!("write `{name} = true`, or take the route out");
                self.findings.at(key.span(), format!("`{name} = false` does nothing"), help);
            }
        }
        if let Some((name, _)) = route.headers.iter().next().filter(|_| kind != "respond") {
            let help = "take `headers` out; for other responses there is `[[site.headers]]`";
            self.findings.at(name.span(), format!("`headers` is for `respond`, and this route has `{kind}`"), help);
        }
        let action = match (&route.redirect, &route.rewrite, &route.respond) {
            (Some(to), ..) => {
                let status = self.route_status(route, 302, "a redirect", &[301, 302, 303, 307, 308]);
                RouteAction::Redirect { to: self.route_target(to, pattern.as_ref(), true), status }
            }
            (_, Some(to), _) => {
                self.no_route_status(route, kind);
                RouteAction::Rewrite { to: self.route_target(to, pattern.as_ref(), false) }
            }
            (.., Some(body)) => RouteAction::Respond(Arc::new(self.fixed_response(route, body))),
            _ if kind == "deny" => {
                // The others are about the form of a request, or ask for credentials that would change nothing.
                RouteAction::Deny(self.route_status(route, 403, "a refusal", &[400, 403, 404, 410, 429, 451, 500, 503]))
            }
            _ => {
                self.no_route_status(route, kind);
                RouteAction::Internal
            }
        };
        Some(Route { pattern: pattern?, action })
    }

    /// The status that a route names, or the default.
    fn route_status(&mut self, route: &file::Route, default: u16, what: &str, good: &[u16]) -> Status {
        let status = route.status.as_ref().map_or(default, |key| *key.get_ref());
        if let Some(key) = route.status.as_ref().filter(|_| !good.contains(&status)) {
            let others: Vec<String> = good.iter().filter(|code| **code != default).map(u16::to_string).collect();
            let (last, others) = others.split_last().expect("several");
            let help = format!("write {default}, or {} or {last}", others.join(", "));
            self.findings.at(key.span(), format!("{status} is not the status of {what}"), help);
        }
        Status(status)
    }

    fn no_route_status(&mut self, route: &file::Route, kind: &str) {
        if let Some(key) = &route.status {
            let message = format!("`status` has no meaning beside `{kind}`");
            self.findings.at(key.span(), message, "take it out");
        }
    }

    /// The other name of a redirect or rewrite.
    fn route_target(&mut self, to: &Spanned<String>, pattern: Option<&Glob>, is_redirect: bool) -> Box<str> {
        let text = to.get_ref();
        // The host of a URL is whole before the first of what was matched: nobody who asks may choose it.
        let url = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        let host = url.map(|rest| rest.split_once('/').map_or(rest, |(host, _)| host));
        let is_good = match (host, is_redirect) {
            (Some(host), true) => !host.is_empty() && !host.contains(['$', '?', '#']),
            _ => text.starts_with('/') && !text.starts_with("//"),
        };
        let is_plain =
            text.bytes().all(|b| b.is_ascii_graphic() && b != b'\\' || (!is_redirect && b >= b' ' && b != 0x7f));
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let is_odd = !is_redirect
            && (text.contains('#')
                || path.split('/').any(|step| step == "." || step == "..")
                || !query.bytes().all(|byte| byte.is_ascii_graphic()));
        if !is_good || !is_plain || is_odd {
            let help = match is_redirect {
                true => {
                    "write a path, \"/new/$1\", or a URL, \"https://example.org/$1\", as it is to stand in a header"
                }
                false => "write a path within the site, such as \"/new/$1\" or \"/index.php?q=$1\"",
            };
            self.findings.at(to.span(), format!("`{}` is no place to lead to", text.escape_debug()), help);
        }
        let stars = pattern.map_or(9, Glob::stars).min(9);
        for number in text.split('$').skip(1).map(|rest| rest.chars().next().and_then(|c| c.to_digit(10)).unwrap_or(0))
        {
            if number == 0 || number as usize > stars {
                let help =
                    format!("`match` has {stars} stars: write `$1` for what the first stood for, and so on to `$9`");
                self.findings.at(to.span(), format!("`{}` names a star that there is not", text.escape_debug()), help);
                break;
            }
        }
        text.as_str().into()
    }

    fn fixed_response(&mut self, route: &file::Route, body: &Spanned<String>) -> FixedResponse {
        let status = route.status.as_ref().map_or(200, |key| *key.get_ref());
        if let Some(key) = &route.status {
            if !(200..=599).contains(&status) || [206, 304, 401, 416].contains(&status) {
                let help = "write one from 200 to 599 that stands by itself, such as 200, 204, 410 or 503";
                self.findings.at(key.span(), format!("{status} is not the status of a fixed response"), help);
            } else if status == 204 && !body.get_ref().is_empty() {
                let help = "write `respond = \"\"`, or another status";
                let message = "a response with status 204 has no body";
                self.findings.against(body.span(), (key.span(), "204"), message, help);
            }
        }
        let mut fields: Vec<(Box<str>, Box<str>)> = Vec::new();
        for (name, value) in &route.headers {
            let is_known = |known: &str| name.get_ref().eq_ignore_ascii_case(known);
            // Of the server's own fields these two are the administrator's to say here.
            if !is_known("Content-Type") && !is_known("Cache-Control") && !is_known("Location") {
                self.header_name(name);
            }
            if let Some((first, _)) = fields.iter().find(|(first, _)| is_known(first)) {
                let help = "names of headers are the same in any case: take one of them out";
                self.findings.at(name.span(), format!("the header `{first}` is set twice"), help);
            }
            fields.push((name.get_ref().as_str().into(), self.header_value(name.get_ref(), value)));
        }
        let has_type = fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("Content-Type"));
        if !body.get_ref().is_empty() && !has_type {
            fields.insert(0, ("Content-Type".into(), "text/plain; charset=utf-8".into()));
        }
        FixedResponse { status: Status(status), body: Arc::new(body.get_ref().clone().into_bytes()), fields }
    }

    fn fallback(&mut self, table: &Spanned<file::Fallback>) -> Option<Fallback> {
        let Some((folder, file)) = table.get_ref().folder.as_ref().zip(table.get_ref().file.as_ref()) else {
            if self.whole {
                let help = "add `folder = \"/app/\"` and `file = \"/app/index.html\"`";
                self.findings.at(table.span(), "this fallback lacks its `folder` or its `file`", help);
            }
            return None;
        };
        self.clean_path(folder, true);
        self.clean_path(file, false);
        if !file.get_ref().starts_with(folder.get_ref().as_str()) {
            let help = "put it into the folder: who may read the one may then read the other";
            let message = format!("`{}` lies outside the folder that it serves in", file.get_ref().escape_debug());
            self.findings.against(file.span(), (folder.span(), "this folder"), message, help);
        }
        Some(Fallback { folder: folder.get_ref().as_str().into(), file: file.get_ref().as_str().into() })
    }

    /// A path of the site, as it is once it is decoded.
    fn clean_path(&mut self, key: &Spanned<String>, is_folder: bool) {
        let path = key.get_ref();
        let mut scratch = Vec::new();
        // An escape would be taken for the characters it is written in, and a guarded folder would stand open.
        let is_clean = amped_http::uri::clean_path(path.as_bytes(), &mut scratch) == Ok(path.as_bytes());
        if !path.starts_with('/') || path.ends_with('/') != is_folder || !is_clean {
            let (what, help) = match is_folder {
                true => ("a folder", "with a slash at both ends, such as \"/private/\", and without escapes"),
                false => ("a file", "such as \"/app/index.html\", and without escapes"),
            };
            let message = format!("`{}` is not {what}'s path", path.escape_debug());
            self.findings.at(key.span(), message, format!("write it from the site's root, {help}"));
        }
    }

    fn guard(&mut self, table: &Spanned<file::Auth>) -> Option<Guard> {
        let guard = table.get_ref();
        let (Some(folder), Some(accounts)) = (&guard.folder, &guard.accounts) else {
            let (missing, help) = match guard.folder {
                None => ("which folder it is about", "add `folder = \"/private/\"`, or `\"/\"` for the whole site"),
                Some(_) => ("who may come in", "add `accounts = \"htpasswd\"`, a file that `htpasswd -B` writes"),
            };
            if self.whole {
                self.findings.at(table.span(), format!("this `auth` does not say {missing}"), help);
            }
            return None;
        };
        let path = folder.get_ref();
        self.clean_path(folder, true);
        // Within quotes in a header.
        let is_good = |realm: &str| is_value(realm) && !realm.contains(['"', '\\']);
        let realm = match &guard.realm {
            Some(key) => {
                if !is_good(key.get_ref()) {
                    let help = "write a line of text without quotes, such as \"Staff\"";
                    let message = format!("`{}` cannot be a realm", key.get_ref().escape_debug());
                    self.findings.at(key.span(), message, help);
                }
                key.get_ref().as_str()
            }
            None if is_good(path) => path,
            None => "restricted",
        };
        if accounts.get_ref().is_empty() {
            let help = "name a file outside every root that `htpasswd -B -c FILE NAME` has made";
            self.findings.at(accounts.span(), "`accounts` is empty", help);
            return None;
        }
        let file = self.folder.join(accounts.get_ref());
        let file = std::path::absolute(&file).unwrap_or(file);
        if let Err(error) = std::fs::metadata(&file) {
            let message = format!("the accounts in {} cannot be used: {error}", file.display());
            self.findings.at(
                accounts.span(),
                message,
                "make the file with `htpasswd -B -c FILE NAME`, or correct the path",
            );
        }
        let known = self.accounts.iter().position(|(known, _)| *known == file);
        let at = known.unwrap_or_else(|| {
            self.accounts.push((file, accounts.span()));
            self.accounts.len() - 1
        });
        Some(Guard { folder: path.as_str().into(), realm: realm.into(), accounts: u16::try_from(at).ok()? })
    }

    fn negotiation(&mut self, table: &Spanned<file::Negotiation>) -> Option<NegotiationRule> {
        let rule = table.get_ref();
        let mut seen: HashMap<String, Range<usize>> = HashMap::new();
        let mut endings =
            |check: &mut Checker<'_>, names: &[Spanned<String>], what: &str, example: &str| -> Vec<Box<str>> {
                for name in names {
                    let given = name.get_ref();
                    // It stands between the dots of a file's name, and in a header.
                    if !given.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_+".contains(&b)) || given.is_empty() {
                        let help = format!("write it as it stands in the name of a file, such as `{example}`");
                        check.findings.at(name.span(), format!("`{}` is no {what}", given.escape_debug()), help);
                    }
                    if let Some(earlier) = seen.insert(given.to_ascii_lowercase(), name.span()) {
                        let message = format!("the ending `{given}` is named twice");
                        check.findings.against(name.span(), (earlier, "first here"), message, "take one of them out");
                    }
                }
                names.iter().map(|name| name.get_ref().as_str().into()).collect()
            };
        let languages = endings(self, &rule.languages, "language", "pt-BR");
        let charsets = endings(self, &rule.charsets, "charset", "utf-8");
        Some(NegotiationRule {
            pattern: self.pattern(table.span(), &rule.pattern, "these variants do", "/docs/**")?,
            languages,
            charsets,
            list_ties: rule.ambiguous == Some(file::Ambiguous::List),
            refuse: rule.unacceptable == Some(file::Unacceptable::Refuse),
        })
    }

    fn app(&mut self, table: &Spanned<file::App>) -> Option<(AppRule, AppSettings)> {
        let app = table.get_ref();
        let kind = self.app_kind(table);
        let pattern = app.pattern.as_ref().map_or("", |pattern| pattern.get_ref());
        let is_ours = !matches!(kind, Some(AppKind::Unix(_) | AppKind::Tcp(_)));
        let processes =
            (is_ours || app.max_processes.is_some()).then(|| self.positive(&app.max_processes, "max_processes", 20));
        let mut reserve = or(&app.min_spare, usize::from(is_ours));
        let most = app.max_processes.as_ref().map(Spanned::span);
        self.at_most(
            ("min_spare", &app.min_spare, &mut reserve),
            ("max_processes", most, processes.unwrap_or(PROCESSES_MAX)),
        );
        let settings = AppSettings {
            files: app.files.unwrap_or(pattern.contains('*')) || kind == Some(AppKind::Cgi),
            kind: kind.unwrap_or(AppKind::Cgi),
            min_spare: reserve,
            max_processes: processes,
            max_queue: or(&app.max_queue, 1000),
            buffer_request: app.buffer_request.unwrap_or(true),
            buffer_response: app.buffer_response.unwrap_or(true),
            env: app.env.iter().filter_map(|(name, value)| self.variable(name, value)).collect(),
        };
        if let Some(key) = app.max_processes.as_ref().filter(|_| settings.max_processes > Some(PROCESSES_MAX)) {
            let help = format!("write {PROCESSES_MAX} or less");
            self.findings.at(key.span(), format!("`max_processes` is more than {PROCESSES_MAX}"), help);
        }
        let time = self.positive(&app.timeout, "timeout", Duration::from_secs(60));
        let (body, output) = (
            or(&app.max_body_bytes, Bytes::mib(100)),
            app.max_response_bytes.as_ref().map(|_| or(&app.max_response_bytes, Bytes(0))),
        );
        let Some(pattern) = &app.pattern else {
            let help = "add `match = \"/cgi-bin/**\"` for a folder, or `match = \"*.php\"` for an ending";
            if self.whole {
                self.findings.at(table.span(), "this application does not say which paths are its", help);
            }
            return None;
        };
        if pattern.get_ref().is_empty() {
            let help = "write `/cgi-bin/**`, `*.php`, or `/` for every path";
            self.findings.at(pattern.span(), "an empty pattern matches nothing", help);
        }
        if let Some(key) = &app.cache
            && self.keeps_no_bodies
        {
            let help = "take one of them out: pages of applications are kept among the contents of files";
            self.findings.at(key.span(), "`cache` has nowhere to keep pages: `content_bytes` is 0", help);
        }
        let cache = app.cache.as_ref().map(|_| or(&app.cache, Duration::ZERO));
        let pattern = self.paths_of_app(pattern, settings.files)?;
        Some((AppRule { pattern, timeout: time, max_body_bytes: body, max_response_bytes: output, cache }, settings))
    }

    /// The paths of an application. One that knows its own paths and has all beneath `/dav/**` is at `/dav`: so its name
    /// (SCRIPT_NAME) is the same for each of them, as it is written into the links of a mounted application.
    fn paths_of_app(&mut self, pattern: &Spanned<String>, files: bool) -> Option<Glob> {
        let written = self.glob(pattern)?;
        let folder = pattern.get_ref().strip_suffix("/**").filter(|_| !files);
        let mount = match folder {
            Some("") => Glob::parse("/").ok(),
            Some(folder) if folder.starts_with('/') => Glob::parse(folder).ok(),
            _ => None,
        };
        Some(mount.unwrap_or(written))
    }

    /// What an application is: one of three keys says it.
    fn app_kind(&mut self, table: &Spanned<file::App>) -> Option<AppKind> {
        let app = table.get_ref();
        let given = [
            app.cgi.as_ref().map(|key| ("cgi", key.span())),
            app.fastcgi.as_ref().map(|key| ("fastcgi", key.span())),
            app.command.as_ref().map(|key| ("command", key.span())),
        ];
        let mut given = given.into_iter().flatten();
        let help = "write `cgi = true` for a process of the script for each request, `fastcgi = \"unix:/run/php/php-fpm.sock\"` \
                    for an application that is there, or `command = [\"/srv/app\"]` for one that is to be started";
        let Some((first, place)) = given.next() else {
            if self.whole {
                self.findings.at(table.span(), "this application does not say how it runs", help);
            }
            return None;
        };
        for (name, span) in given {
            let message = format!("an application has both `{first}` and `{name}`");
            self.findings.against(span, (place.clone(), "first here"), message, "take one of them out");
        }
        if let Some(key) = &app.fastcgi {
            let text = key.get_ref().trim();
            return match (text.strip_prefix("unix:"), parse_listen(text)) {
                (Some(""), _) => {
                    self.findings.at(key.span(), "`unix:` names no socket", "write `unix:/run/php/php-fpm.sock`");
                    None
                }
                (Some(name), _) => Some(AppKind::Unix(self.folder.join(name))),
                (None, Ok(address)) if !text.starts_with('*') => Some(AppKind::Tcp(address)),
                (None, _) => {
                    let help = "write `unix:/run/php/php-fpm.sock`, or an address and a port, `127.0.0.1:9000`";
                    let message = format!("`{text}` is neither a socket nor an address and port");
                    self.findings.at(key.span(), message, help);
                    None
                }
            };
        }
        if let Some(key) = &app.command {
            let mut words: Vec<String> = key.get_ref().iter().map(|word| word.get_ref().clone()).collect();
            let bad = words.first().is_none_or(String::is_empty) || words.iter().any(|word| word.contains('\0'));
            if bad {
                let help = "write the program, then its arguments: `[\"/srv/app/serve\", \"--fast\"]`";
                self.findings.at(key.span(), "`command` names no program", help);
                return None;
            }
            if words[0].contains('/') {
                words[0] = self.folder.join(&words[0]).to_string_lossy().into_owned();
            }
            return Some(AppKind::Command(words));
        }
        if let Some(key) = app.cgi.as_ref().filter(|key| !*key.get_ref()) {
            self.findings.at(key.span(), "nothing runs this application", help);
        }
        Some(AppKind::Cgi)
    }

    fn variable(&mut self, name: &Spanned<String>, value: &Spanned<String>) -> Option<(Box<str>, Box<str>)> {
        let (given, said) = (name.get_ref(), value.get_ref());
        if given.is_empty() || given.contains(['=', '\0']) {
            let help = "write a name such as `LANG`, without `=`";
            self.findings.at(name.span(), format!("`{}` is not the name of a variable", given.escape_debug()), help);
            return None;
        }
        if given.eq_ignore_ascii_case("HTTP_PROXY") {
            let help = "take it out: a client's field of that name would become it, so scripts must not believe it";
            self.findings.at(name.span(), "`HTTP_PROXY` is kept from applications", help);
        }
        if said.contains('\0') {
            self.findings.at(value.span(), format!("the value of `{given}` holds a NUL"), "take it out");
        }
        Some((given.as_str().into(), said.as_str().into()))
    }

    fn header_name(&mut self, key: &Spanned<String>) {
        let name = key.get_ref();
        if !is_token(name) {
            let help = "a name is made of letters, digits and - _ . ! # $ % & ' * + ^ ` | ~";
            let message = format!("`{}` is not the name of a header", name.escape_debug());
            self.findings.at(key.span(), message, help);
        } else if name.eq_ignore_ascii_case("Cache-Control") {
            let help = "write `cache_control = \"...\"` in this table: errors must not be cached by it";
            self.findings.at(key.span(), "Cache-Control has a key of its own", help);
        } else if name.eq_ignore_ascii_case("Content-Type") {
            let help = "use `[site.types]`, `default_type` and `charset`";
            self.findings.at(key.span(), "the header `Content-Type` is the server's own", help);
        } else if OWNED.iter().any(|owned| name.eq_ignore_ascii_case(owned)) {
            let help = "take it out: it follows from the file and the request, and another value would be a lie";
            self.findings.at(key.span(), format!("the header `{name}` is the server's own"), help);
        }
    }

    fn header_value(&mut self, name: &str, key: &Spanned<String>) -> Box<str> {
        let value = key.get_ref().trim_matches([' ', '\t']);
        if !is_value(value) {
            let help = "a value is one line of text: no line end, no NUL and no other control character but the tab";
            self.findings.at(key.span(), format!("the value of `{name}` has a control character"), help);
        }
        value.into()
    }

    fn error_page(&mut self, key: &Spanned<String>, page: &Spanned<String>) -> Option<(Status, Box<str>)> {
        let status = number(key.get_ref()).filter(|status| (400..=599).contains(status) && key.get_ref().len() == 3);
        if status.is_none() {
            let help = "write one from 400 to 599, such as \"404\"";
            self.findings.at(key.span(), format!("`{}` is not the status of an error", key.get_ref()), help);
        }
        if status.is_some_and(|status| BUILT_IN.contains(&status)) {
            let help = "take it out: this error comes before the site is known, or says what a page of the site cannot";
            self.findings.at(
                key.span(),
                format!("the page for {} is always the built-in one", key.get_ref()),
                help.to_owned(),
            );
        }
        let path = page.get_ref();
        if !path.starts_with('/') {
            let help = format!("write it from the site's root: \"/{path}\"");
            self.findings.at(page.span(), format!("the error page `{path}` is not an absolute path"), help);
        } else if path.split('/').any(|step| step == "..") || path.contains(['?', '#', '\0']) {
            let help = "write the path of a file within the site, such as \"/404.html\"";
            self.findings.at(
                page.span(),
                format!("the error page `{}` is not a file's path", path.escape_debug()),
                help,
            );
        }
        Some((Status(status?), path.as_str().into()))
    }
}

/// Most processes of one rule; beyond it somebody is mistaken, or wants an application that lives on.
const PROCESSES_MAX: usize = 4096;

/// Errors that no site has a page for: of a head or body that could not be read, and of conditions and ranges.
const BUILT_IN: &[u16] = &[406, 408, 412, 413, 414, 416, 431, 505];

/// Headers that follow from the file, the request or the connection. `Server` is not among them: it says nothing that
/// a client acts on.
const OWNED: &[&str] = &[
    "Accept-Ranges",
    "Allow",
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Content-Range",
    "Date",
    "ETag",
    "Keep-Alive",
    "Last-Modified",
    "Location",
    "Retry-After",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "Vary",
    "WWW-Authenticate",
];

/// RFC 9110, 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// RFC 9110, 5.5: visible characters, space, tab, and bytes above ASCII, which recipients take as they are.
fn is_value(text: &str) -> bool {
    text.bytes().all(|b| b == b'\t' || (b >= b' ' && b != 0x7f))
}

/// A host as a request names it, in lower case and without its port; the error is the way out.
fn host_name(host: &str) -> Result<(), String> {
    if host.starts_with('[') && host.ends_with(']') {
        let address = host[1..host.len() - 1].parse::<Ipv6Addr>();
        return address.map(|_| ()).map_err(|_| "write an IPv6 address in brackets: `[::1]`".to_owned());
    }
    if let Some((name, port)) = host.rsplit_once(':')
        && !name.contains(':')
        && port.bytes().all(|b| b.is_ascii_digit())
    {
        return Err(format!("leave the port out: `{name}`; ports are in `listen`"));
    }
    if !host.is_ascii() {
        return Err("write its ASCII form, which begins with `xn--`, as requests do".to_owned());
    }
    let name = host.strip_prefix("*.").unwrap_or(host);
    let good = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if name.len() > 253 || !name.split('.').all(good) {
        return Err("write a name such as `example.org`, or `*.example.org` for every name below it".to_owned());
    }
    Ok(())
}

/// Whether this is a folder that can be served: what is wrong, and the way out.
fn folder_to_serve(path: &Path) -> Result<(), (String, String)> {
    let shown = path.display();
    // The dot asks for the folder's own search permission too, without which nothing in it can be opened.
    let reason = match std::fs::metadata(path).map(|root| (root.is_dir(), std::fs::metadata(path.join(".")))) {
        Ok((false, _)) => {
            let holder = path.parent().unwrap_or(path).display();
            return Err((format!("the root {shown} is a file"), format!("give the folder that holds it: `{holder}`")));
        }
        Ok((true, Ok(_))) => return Ok(()),
        Ok((true, Err(reason))) | Err(reason) => reason,
    };
    Err(match reason.kind() {
        io::ErrorKind::NotFound => {
            (format!("the root {shown} does not exist"), "make it, or correct the path".to_owned())
        }
        io::ErrorKind::PermissionDenied => {
            let help =
                format!("allow it: `chmod a+x` on it and on each folder above it; `namei -l {shown}` shows them");
            (format!("the root {shown} may not be entered"), help)
        }
        _ => (format!("the root {shown} cannot be used: {reason}"), "correct the path".to_owned()),
    })
}

const NO_LOG_FILE: &str = "give a file, `-` for standard output, or `off` for no log";

/// Most workers. Each has a thread or process, epoll set and mailbox; a machine for more of them is not in sight.
const WORKERS_MAX: usize = 4096;

/// The names by which applications know a root: as it is configured, and without the symbolic links in it.
fn root_names(root: Option<&Option<SiteRoot>>) -> Vec<Box<[u8]>> {
    let Some(path) = root.and_then(Option::as_ref).map(|root| root.path.clone()) else {
        return Vec::new();
    };
    let real = path.canonicalize().ok().filter(|real| *real != path);
    [path].into_iter().chain(real).map(|path| path.as_os_str().as_encoded_bytes().into()).collect()
}

/// Whether a file lies in a folder, by its own name or by where that leads.
fn lies_within(file: &Path, folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let name = file.parent().and_then(|parent| parent.canonicalize().ok());
    let is_within = |path: Option<PathBuf>| path.is_some_and(|path| path.starts_with(&folder));
    is_within(name) || is_within(file.canonicalize().ok())
}

/// Whether a log can be written here; the file itself need not be there yet.
fn log_file(path: &Path) -> Result<(), (String, &'static str)> {
    let shown = path.display();
    if path.is_dir() {
        return Err((format!("the access log {shown} is a folder"), "give a file, as in `access.log`"));
    }
    match path.parent() {
        Some(folder) if !folder.is_dir() => {
            Err((format!("the folder of the access log {shown} does not exist"), "make it, or correct the path"))
        }
        _ => Ok(()),
    }
}

fn in_order(a: Range<usize>, b: Range<usize>) -> (Range<usize>, Range<usize>) {
    if a.start <= b.start { (a, b) } else { (b, a) }
}
