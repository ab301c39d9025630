//! What the keys of the configuration mean together: a [`File`], completed by flags, becomes [`Settings`].
//!
//! Flags go over the file, the file over the defaults; `settle` is where they meet. What it hands out needs no second look: an
//! address can be bound, a root was a folder, a header value cannot break out of its line. What it refuses, it notes with its
//! place, and goes on, so that one run tells everything. The file is left as it is in force, with absolute paths, to be printed.
//!
//! A default that depends on another key (`min_spare` on `max`, say) gives way when only the other one is written; two that are
//! written and contradict each other are a problem.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::Ipv6Addr;
use std::ops::{Deref, DerefMut, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amped_core::auth::Guard;
use amped_core::cors::CorsRule;
use amped_core::glob::Glob;
use amped_core::routes::{FixedResponse, Route, RouteAction};
use amped_core::site::{AppRule, Site, Sites, Types};
use amped_http::status::Status;

use super::cli::Serve;
use super::error::Findings;
use super::file::{AppTable, AuthTable, File, RouteTable, SiteTable};
use super::read::{Node, Read};
use super::settings::{
    Address, AppKind, AppSettings, Form, Listen, LogTarget, SharedSettings, SiteRoot, form, number, parse_listen,
};
use super::types;
use crate::certificate::Certificate;

/// Everything that a server is configured with: the file in force, and what was made from it.
///
/// It never changes: a SIGHUP makes another one.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file as it is in force: completed, with flags in the place of what it says, and with absolute paths.
    pub file: File,
    /// Event loops, threads or processes, 1 or more.
    pub workers: usize,
    /// The cache that processes of MP share, if they do.
    pub shared_cache: Option<SharedSettings>,
    /// The sites; the first is the default one.
    pub sites: Arc<Sites>,
    /// Where each site's files are: `roots[site.number]`.
    pub roots: Vec<SiteRoot>,
    /// Files of names and passwords, absolute paths: those of a guard are at `accounts[guard.accounts]`.
    pub accounts: Vec<PathBuf>,
    /// How each site's applications run: `apps[site.number][rule]`, with the rules of the site.
    pub apps: Vec<Vec<AppSettings>>,
    /// Each site's certificates with their private keys: `certificates[site.number]`. If an address has TLS, a site has one.
    pub certificates: Vec<Vec<Certificate>>,
}

impl Settings {
    /// Returns whether an address has TLS.
    pub fn has_tls(&self) -> bool {
        self.listen.iter().any(|listen| listen.tls)
    }
}

impl Deref for Settings {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl DerefMut for Settings {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.file
    }
}

/// Makes settings of a file and the flags that set no key; paths in the file are relative to `folder`. `None` only with a
/// finding.
pub(super) fn settle(flags: &Serve, read: Read<'_>, folder: &Path, findings: &mut Findings) -> Option<Settings> {
    let whole = findings.is_empty();
    let (file, root) = (read.file.clone(), read.root());
    Checker { folder, whole, findings, accounts: Vec::new() }.settings(flags, file, root)
}

/// The sites, and for each by number: its root, how its applications run, and its certificates.
type OfSites = (Sites, Vec<SiteRoot>, Vec<Vec<AppSettings>>, Vec<Vec<Certificate>>);

pub(super) struct Checker<'a> {
    folder: &'a Path,
    /// Nothing is missing because its shape was wrong. Else the operator did write it, and is not asked for it again.
    pub(super) whole: bool,
    pub(super) findings: &'a mut Findings,
    /// Files of accounts that have been named so far, and where first.
    accounts: Vec<(PathBuf, Range<usize>)>,
}

impl Checker<'_> {
    fn settings(&mut self, flags: &Serve, mut file: File, root: Node<'_>) -> Option<Settings> {
        self.listen(root.get("listen"));
        let form = form(file.architecture);
        // One of a pool has one connection.
        let most = file.limits.max_connections.filter(|_| form.pool).unwrap_or(usize::MAX);
        let workers = file.workers.unwrap_or(form.workers).min(most);
        file.workers = Some(workers);
        self.name(file.user.as_deref(), root.get("user"), "user");
        self.name(file.group.as_deref(), root.get("group"), "group");
        if file.group.is_some() && file.user.is_none() {
            let help = "write `user` too, or take `group` out";
            self.findings.at(root.get("group").span(), "`group` is given without `user`", help);
        }
        self.helpers(&form, &mut file, root.get("helpers"));
        self.log(&mut file, root.get("log"));
        self.limits(&mut file, root.get("limits"));
        self.cache(&mut file, root.get("cache"));
        self.spool(&mut file, root.get("spool"));
        self.control(&mut file, root.get("control"));
        self.metrics(&mut file, root.get("metrics"));
        let (sites, roots, apps, certificates) = self.sites(flags, &mut file, root)?;
        (file.log.delayed, file.log.string_caches) = (file.optimise.delayed_log, file.optimise.string_caches);
        // As much as the processes would have together without it, and files up to the same size.
        let shared = SharedSettings {
            bytes: file.cache.content_bytes,
            file_max: file.cache.max_content_file_bytes,
            entries: file.cache.path_entries,
        };
        let is_shared = file.cache.shared && shared.bytes.0 > 0 && shared.entries > 0;
        let accounts = std::mem::take(&mut self.accounts).into_iter().map(|(path, _)| path).collect();
        let shared_cache = is_shared.then_some(shared);
        Some(Settings { file, workers, shared_cache, sites: Arc::new(sites), roots, accounts, apps, certificates })
    }

    fn listen(&mut self, node: Node<'_>) {
        if node.elements().next().is_none() && node.place().is_some() && self.whole {
            let help = "write an address, or take the key out for the default, [\"127.0.0.1:8080\"]";
            self.findings.at(node.span(), "`listen` is empty", help);
        }
        let mut seen = HashMap::new();
        for text in node.elements() {
            // Port 0 asks the system for a free one, and may well be asked for twice.
            if let Ok(Listen { address, .. }) = Listen::parse(text.text())
                && address.port() != 0
                && let Some(earlier) = seen.insert(address, text.span())
            {
                let message = format!("`{}` is listened on twice", text.text());
                self.findings.against(text.span(), (earlier, "first here"), message, "take one of them out");
            }
        }
    }

    /// A value that must not exceed another; without being written, it gives way.
    fn at_most<T: PartialOrd + Copy>(
        &mut self,
        table: Node<'_>,
        (name, value): (&str, &mut T),
        (other_name, most): (&str, T),
    ) {
        if *value <= most {
            return;
        }
        // A flag was not written with this file in mind.
        let Some(place) = table.get(name).place().filter(|_| !table.get(other_name).is_flag()) else {
            *value = most;
            return;
        };
        let message = format!("`{name}` is more than `{other_name}`");
        let help = format!("lower `{name}` or raise `{other_name}`");
        match table.get(other_name).place() {
            Some(other) => self.findings.against(place, (other, "more than this"), message, help),
            None => self.findings.at(place, message, help),
        }
    }

    fn name(&mut self, name: Option<&str>, node: Node<'_>, what: &str) {
        if let Some(name) = name
            && (name.is_empty() || name.contains(|c: char| c.is_control() || c == ':' || c == '/'))
        {
            let help = "write a name as in `/etc/passwd`, or take the key out to stay who you are";
            self.findings.at(node.span(), format!("{name:?} is not the name of a {what}"), help);
        }
    }

    fn helpers(&mut self, form: &Form, file: &mut File, node: Node<'_>) {
        for key in ["max", "kind"].map(|key| node.get(key)).iter().filter(|key| key.is_flag() && !form.helpers) {
            let help = "remove it, or use `--architecture amped`, whose event loops have helpers";
            self.findings.at(key.span(), "this architecture has no helpers", help);
        }
        self.at_most(node, ("min_spare", &mut file.helpers.min_spare), ("max", file.helpers.max));
    }

    fn log(&mut self, file: &mut File, node: Node<'_>) {
        let LogTarget::File(path) = &mut file.log.access else { return };
        *path = self.absolute(path, node.get("access"));
        if let Err((message, help)) = log_file(path) {
            self.findings.absent(node.get("access").span(), message, help);
        }
    }

    /// The absolute form of a path: relative to the folder of the file, from a flag to the current one.
    pub(super) fn absolute(&self, path: &Path, node: Node<'_>) -> PathBuf {
        let path = if node.is_flag() { path.to_owned() } else { self.folder.join(path) };
        std::path::absolute(&path).unwrap_or(path)
    }

    fn control(&mut self, file: &mut File, node: Node<'_>) {
        let (Some(path), node) = (&mut file.control.socket, node.get("socket")) else { return };
        if path.as_os_str().is_empty() {
            return self.findings.at(node.span(), "`socket` is empty", "take the key out for no socket");
        }
        *path = self.absolute(path, node);
        // unix(7): `sun_path` has 108 bytes, with the NUL at its end.
        if path.as_os_str().len() > 107 {
            let message = format!("the name of the control socket has {} bytes", path.as_os_str().len());
            let help = "the system takes 107 at most: name one in a folder such as /run/amped";
            self.findings.at(node.span(), message, help);
        }
    }

    fn metrics(&mut self, file: &mut File, node: Node<'_>) {
        let (path, listen) = (node.get("file"), node.get("listen"));
        if let Some(file) = &mut file.metrics.file {
            if file.as_os_str().is_empty() {
                self.findings.at(path.span(), "`file` is empty", "take the key out for no file");
            }
            *file = self.absolute(file, path);
        }
        let public = file.metrics.public;
        if let Some(Address(address)) = file.metrics.listen
            && !address.ip().to_canonical().is_loopback()
            && !public
        {
            let message = format!("other machines could ask for the metrics at {address}");
            let help = format!("write 127.0.0.1:{}, or `public = true` in `[metrics]` if they may", address.port());
            self.findings.at(listen.span(), message, help);
        }
        if !cfg!(feature = "metrics") && (file.metrics.file.is_some() || file.metrics.listen.is_some()) {
            let message = "metrics are asked for, and this server was built without them";
            let help = "build it with the feature `metrics`, as by default, or take them out";
            self.findings.at(path.place().unwrap_or(listen.span()), message, help);
        }
    }

    fn spool(&mut self, file: &mut File, node: Node<'_>) {
        let Some(path) = &mut file.spool.directory else { return };
        *path = self.absolute(path, node);
        if !path.is_dir() {
            let help = "create it, or write another one; without the key it is $TMPDIR, else /var/tmp";
            let message = format!("{} is not a directory", path.display());
            self.findings.at(node.get("directory").span(), message, help);
        }
    }

    fn limits(&mut self, file: &mut File, node: Node<'_>) {
        let limits = &mut file.limits;
        if node.get("max_header_bytes").place().is_none() {
            // A longer line was asked for, and it is part of the header.
            limits.max_header_bytes = limits.max_header_bytes.max(limits.max_request_line_bytes);
        }
        let most = limits.max_header_bytes;
        self.at_most(node, ("max_request_line_bytes", &mut limits.max_request_line_bytes), ("max_header_bytes", most));
    }

    fn cache(&mut self, file: &mut File, node: Node<'_>) {
        let cache = &mut file.cache;
        let most = cache.content_bytes;
        self.at_most(node, ("max_content_file_bytes", &mut cache.max_content_file_bytes), ("content_bytes", most));
        if node.get("max_stale").place().is_none() {
            cache.max_stale = cache.max_stale.max(cache.revalidate);
        }
        let most = cache.max_stale;
        self.at_most(node, ("revalidate", &mut cache.revalidate), ("max_stale", most));
    }

    /// The sites and their roots.
    fn sites(&mut self, flags: &Serve, file: &mut File, root: Node<'_>) -> Option<OfSites> {
        let mut places: Vec<Node<'_>> = root.get("site").elements().collect();
        // The shorthand goes first; without it and without any site, the folder of the command line makes one.
        if file.root.is_some() || (file.site.is_empty() && flags.dir.is_some()) {
            let root_of_file = file.root.take();
            file.site.insert(0, SiteTable { root: root_of_file, ..SiteTable::default() });
            places.insert(0, root);
        }
        let keeps_bodies = file.cache.content_bytes.0 > 0;
        let (mut roots, mut sites, mut apps, mut hosts) = (Vec::new(), Vec::new(), Vec::new(), HashMap::new());
        let mut certificates = Vec::new();
        for (number, (site, node)) in file.site.iter_mut().zip(places).enumerate() {
            let dir = flags.dir.as_deref().filter(|_| number == 0);
            if dir.is_none() && site.root.is_none() && self.whole {
                let help = "add `root = \"/var/www\"`, the folder that this site serves";
                self.findings.at(node.span(), "this site has no `root`", help);
            }
            if number > 0 && site.hosts.is_empty() && self.whole {
                let help = "add `hosts = [\"example.org\"]`; only the first site answers to every other name";
                self.findings.at(node.span(), "this site has no `hosts`, so no request would reach it", help);
            }
            site.listing |= flags.listing;
            roots.push(self.root(dir, site, node.get("root")));
            let own = node.get("app").elements();
            let own = site.app.iter_mut().zip(own).filter_map(|(app, node)| self.app(app, node, keeps_bodies));
            let (rules, settings) = own.unzip();
            let made = self.site(site, node, &mut hosts, rules);
            certificates.push(self.certificates(site, node));
            let https_port = self.https_port(&file.listen, site, node);
            let hsts = self.hsts(&file.listen, site, node);
            sites.push(Site { root_names: root_names(roots.last()), https_port, hsts, ..made });
            apps.push(settings);
        }
        self.tls(&file.listen, &certificates, root.get("listen"));
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
        for (file, span) in &self.accounts {
            if let Some(root) = roots.iter().flatten().find(|root| lies_within(file, &root.path)) {
                let message = format!("the accounts in {} lie within the root {}", file.display(), root.path.display());
                let help = "move the file out of every root, so that no client can ask for it";
                self.findings.at(span.clone(), message, help);
            }
        }
        let roots: Option<Vec<SiteRoot>> = roots.into_iter().collect();
        Some((Sites::new(sites)?, roots?, apps, certificates))
    }

    fn root(&mut self, dir: Option<&Path>, site: &mut SiteTable, node: Node<'_>) -> Option<SiteRoot> {
        let path = match (dir, &site.root) {
            (Some(dir), _) => std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()),
            (None, Some(root)) if root.as_os_str().is_empty() => {
                self.findings.at(node.span(), "`root` is empty", "write \".\" for the folder of this file");
                return None;
            }
            (None, Some(root)) => self.absolute(root, node),
            (None, None) => return None,
        };
        if let Err((message, help)) = folder_to_serve(&path) {
            match (dir, &site.root) {
                (None, Some(root)) if root.is_relative() && !help.contains('`') => {
                    let help = format!("{help}; a relative path begins at the folder of this file");
                    self.findings.at(node.span(), message, help);
                }
                (None, Some(_)) => self.findings.at(node.span(), message, help),
                _ => self.findings.outside(message, help),
            }
        }
        site.root = Some(path.clone());
        Some(SiteRoot { path })
    }

    fn site(
        &mut self,
        table: &mut SiteTable,
        node: Node<'_>,
        hosts: &mut HashMap<Box<str>, Range<usize>>,
        apps: Vec<AppRule>,
    ) -> Site {
        for (_, _, page) in node.get("errors").entries() {
            if apps.iter().any(|app| app.pattern.matches(page.text().as_bytes())) {
                let help = "write a page that is a file: an application may be what has failed";
                self.findings.at(page.span(), format!("the error page `{}` is an application's", page.text()), help);
            }
        }
        table.hosts = node.get("hosts").elements().filter_map(|host| self.host(host, hosts)).collect();
        node.get("index").elements().for_each(|name| self.index_name(name));
        self.codings(node.get("precompressed"));
        if let Some(name) = &mut table.user_dirs {
            self.user_dir(node.get("user_dirs"));
            *name = name.trim_end_matches('/').into();
        }
        let routes = table.route.iter_mut().zip(node.get("route").elements());
        let routes: Vec<Route> = routes.filter_map(|(table, node)| self.route(table, node)).collect();
        for fallback in node.get("fallback").elements() {
            self.fallback(fallback, &routes);
        }
        for (rule, node) in table.headers.iter_mut().zip(node.get("headers").elements()) {
            self.headers(node);
            rule.cache_control.iter_mut().chain(rule.set.values_mut()).for_each(|value| *value = trimmed(value));
        }
        node.get("negotiation").elements().for_each(|rule| self.negotiation(rule));
        let guards = table.auth.iter_mut().zip(node.get("auth").elements());
        let guards = guards.filter_map(|(table, node)| self.guard(table, node)).collect();
        let cors = table.cors.iter().zip(node.get("cors").elements());
        let pages = node.get("errors").entries();
        let error_pages = pages.filter_map(|(status, place, page)| self.error_page(status, place, page));
        let mut error_pages: Vec<(Status, Box<str>)> = error_pages.collect();
        error_pages.sort_by_key(|(status, _)| status.0);
        Site {
            number: 0, // `Sites::new` numbers them.
            hosts: table.hosts.clone(),
            index: table.index.clone(),
            listing: table.listing,
            dotfiles: table.dotfiles,
            precompressed: table.precompressed.clone(),
            user_dir: table.user_dirs.clone(),
            apps,
            rules: table.headers.clone(),
            cors: cors.map(|(rule, node)| self.cors(rule, node)).collect(),
            routes,
            fallbacks: table.fallback.clone(),
            guards,
            negotiations: table.negotiation.clone(),
            error_pages,
            etag: table.etag,
            symlinks: table.symlinks,
            types: self.types(table, node),
            root_names: Vec::new(), // The caller knows the root.
            https_port: None,       // And the addresses,
            hsts: None,             // of which one must have TLS.
        }
    }

    fn host(&mut self, key: Node<'_>, hosts: &mut HashMap<Box<str>, Range<usize>>) -> Option<Box<str>> {
        let given = key.text();
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

    fn index_name(&mut self, key: Node<'_>) {
        let name = key.text();
        if name.contains('/') {
            let help = "write the bare name of a file, `index.html`: it is looked for in every folder";
            self.findings.at(key.span(), format!("the index name `{name}` has a slash"), help);
        } else if name.is_empty() || name == "." || name == ".." || name.contains('\0') {
            let help = "write the bare name of a file, `index.html`; `index = []` switches index pages off";
            self.findings.at(key.span(), format!("the index name `{}` names no file", name.escape_debug()), help);
        }
    }

    fn codings(&mut self, list: Node<'_>) {
        for (at, name) in list.elements().enumerate() {
            if name.text() == "identity" {
                self.findings.at(name.span(), "the file itself is no coding of it", "take \"identity\" out");
            }
            if let Some(earlier) = list.elements().take(at).find(|earlier| earlier.text() == name.text()) {
                let earlier = (earlier.span(), "first here");
                self.findings.against(name.span(), earlier, "a coding is named twice", "take one of them out");
            }
        }
    }

    fn user_dir(&mut self, key: Node<'_>) {
        let name = key.text();
        let inside = |step: &str| !matches!(step, "" | "." | "..") && !step.contains('\0');
        if name.is_empty() {
            let help = "write `public_html`, or take the key out to switch the folders of users off";
            self.findings.at(key.span(), "`user_dirs` is empty", help);
        } else if name.starts_with('/') || !name.trim_end_matches('/').split('/').all(inside) {
            let help =
                "write a folder within each user's home, such as `public_html`: no slash first, no `.` and no `..`";
            self.findings.at(key.span(), format!("`user_dirs` leaves the home: `{}`", name.escape_debug()), help);
        }
    }

    fn types(&mut self, table: &SiteTable, node: Node<'_>) -> Types {
        let mut overrides: BTreeMap<Box<str>, (Box<str>, Range<usize>)> = BTreeMap::new();
        for (suffix, place, kind) in node.get("types").entries() {
            let ending = suffix.strip_prefix('.').unwrap_or(suffix).to_ascii_lowercase();
            if ending.is_empty() || ending.contains(['.', '/']) {
                let help = "write what follows the last dot of a file's name, such as `html`";
                self.findings.at(place.clone(), format!("`{suffix}` is not the ending of a name"), help);
            }
            self.media_type(kind);
            let value = (kind.text().trim().into(), place.clone());
            if let Some((_, earlier)) = overrides.insert(ending.into(), value) {
                let message = format!("the ending `{suffix}` has two types");
                self.findings.against(place, (earlier, "first here"), message, "take one of them out");
            }
        }
        if node.get("default_type").place().is_some() {
            self.media_type(node.get("default_type"));
        }
        let charset = &table.charset;
        if !charset.is_empty() && !is_token(charset) {
            let help = "write `utf-8`, or \"\" to name none";
            let message = format!("`{}` is not the name of a charset", charset.escape_debug());
            self.findings.at(node.get("charset").span(), message, help);
        }
        Types {
            overrides: overrides.into_iter().map(|(ending, (kind, _))| (ending, kind)).collect(),
            known: types::known,
            fallback: table.default_type.trim().into(),
            charset: (!charset.is_empty()).then(|| charset.clone()),
        }
    }

    /// RFC 9110, 8.3.1: type "/" subtype, both tokens, and then perhaps parameters.
    fn media_type(&mut self, key: Node<'_>) {
        let text = key.text().trim();
        let (kind, parameters) = text.split_once(';').unwrap_or((text, ""));
        let good = kind.trim_end().split_once('/').is_some_and(|(top, sub)| is_token(top) && is_token(sub));
        if !good || !is_value(parameters) {
            let help = "write type/subtype, such as `text/html` or `text/html; charset=iso-8859-1`";
            self.findings.at(key.span(), format!("`{}` is not a media type", text.escape_debug()), help);
        }
    }

    fn headers(&mut self, rule: Node<'_>) {
        let (cache_control, set) = (rule.get("cache_control"), rule.get("set"));
        if cache_control.place().is_none() && set.entries().next().is_none() && self.whole {
            let help = "add `cache_control = \"max-age=3600\"` or `set = { \"X-Frame-Options\" = \"DENY\" }`";
            self.findings.at(rule.span(), "these headers set nothing", help);
        }
        if cache_control.place().is_some() {
            if cache_control.text().trim().is_empty() {
                let help = "take the key out to send no Cache-Control, or write what caches may do, as in \"no-cache\"";
                self.findings.at(cache_control.span(), "`cache_control` is empty", help);
            }
            self.header_value("Cache-Control", cache_control);
        }
        self.header_fields(set, &[]);
    }

    /// Names and values of fields. The server's own may be set only if they are among `allowed`.
    fn header_fields(&mut self, fields: Node<'_>, allowed: &[&str]) {
        let mut names: HashMap<String, Range<usize>> = HashMap::new();
        for (name, place, value) in fields.entries() {
            if !allowed.iter().any(|allowed| name.eq_ignore_ascii_case(allowed)) {
                self.header_name(name, place.clone());
            }
            if let Some(earlier) = names.insert(name.to_ascii_lowercase(), place.clone()) {
                let message = format!("the header `{name}` is set twice");
                let help = "names of headers are the same in any case: take one of them out";
                self.findings.against(place, (earlier, "first here"), message, help);
            }
            self.header_value(name, value);
        }
    }

    fn cors(&mut self, rule: &CorsRule, node: Node<'_>) -> CorsRule {
        let all = node.get("origins").elements().find(|origin| origin.text() == "*");
        for origin in node.get("origins").elements().filter(|origin| origin.text() != "*") {
            let text = origin.text();
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
            self.findings.at(node.span(), "this rule lets nobody in", help);
        }
        if let Some(all) = all {
            if rule.origins.len() > 1 {
                self.findings.at(all.span(), "`*` is all origins", "take the others out, or this one");
            }
            if rule.credentials {
                let help = "name the origins: browsers refuse the two together (Fetch, 3.2.5)";
                let place = node.get("credentials").span();
                self.findings.against(place, (all.span(), "all origins"), "`credentials` are not for everybody", help);
            }
        }
        for (key, what) in [("methods", "method"), ("headers", "header"), ("expose", "header")] {
            for name in node.get(key).elements().filter(|name| !is_token(name.text())) {
                let message = format!("`{}` is not the name of a {what}", name.text().escape_debug());
                self.findings.at(name.span(), message, "write it as it stands in a request");
            }
        }
        let origins = if all.is_some() { Vec::new() } else { rule.origins.clone() };
        CorsRule { origins, ..rule.clone() }
    }

    fn route(&mut self, table: &mut RouteTable, node: Node<'_>) -> Option<Route> {
        let kinds = ["redirect", "rewrite", "deny", "respond", "internal"];
        let given = kinds.iter().filter_map(|kind| Some((*kind, node.get(kind).place()?)));
        let mut given: Vec<(&str, Range<usize>)> = given.collect();
        given.sort_by_key(|(_, span)| span.start);
        let Some((kind, place)) = given.first().cloned() else {
            if self.whole {
                let help = "add one of `redirect = \"/new/$1\"`, `rewrite = \"/new/$1\"`, `deny = true`, \
                            `respond = \"text\"` and `internal = true`";
                self.findings.at(node.span(), "this route does nothing", help);
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
        if table.deny == Some(false) || table.internal == Some(false) {
            let help = format!("write `{kind} = true`, or take the route out");
            self.findings.at(place, format!("`{kind} = false` does nothing"), help);
        }
        if let Some((_, place, _)) = node.get("headers").entries().next().filter(|_| kind != "respond") {
            let help = "take `headers` out; for other responses there is `[[site.headers]]`";
            self.findings.at(place, format!("`headers` is for `respond`, and this route has `{kind}`"), help);
        }
        let status = node.get("status").place();
        if let (Some(place), "rewrite" | "internal") = (&status, kind) {
            let message = format!("`status` has no meaning beside `{kind}`");
            self.findings.at(place.clone(), message, "take it out");
        }
        let action = match (&table.redirect, &table.rewrite, &table.respond) {
            (Some(to), ..) => {
                self.route_target(to, node.get("redirect"), &table.pattern, true);
                let status =
                    self.route_status(&mut table.status, status, 302, "a redirect", &[301, 302, 303, 307, 308]);
                RouteAction::Redirect { to: to.clone(), status }
            }
            (_, Some(to), _) => {
                self.route_target(to, node.get("rewrite"), &table.pattern, false);
                RouteAction::Rewrite { to: to.clone() }
            }
            (.., Some(_)) => RouteAction::Respond(Arc::new(self.fixed_response(table, node))),
            _ if kind == "deny" => {
                // The others are about the form of a request, or ask for credentials that would change nothing.
                let good = [400, 403, 404, 410, 429, 451, 500, 503];
                RouteAction::Deny(self.route_status(&mut table.status, status, 403, "a refusal", &good))
            }
            _ => RouteAction::Internal,
        };
        Some(Route { pattern: table.pattern.clone(), action })
    }

    /// The status that a route names, or the default.
    fn route_status(
        &mut self,
        status: &mut Option<u16>,
        place: Option<Range<usize>>,
        default: u16,
        what: &str,
        good: &[u16],
    ) -> Status {
        let status = *status.get_or_insert(default);
        if let Some(place) = place.filter(|_| !good.contains(&status)) {
            let others: Vec<String> = good.iter().filter(|code| **code != default).map(u16::to_string).collect();
            let (last, others) = others.split_last().expect("several");
            let help = format!("write {default}, or {} or {last}", others.join(", "));
            self.findings.at(place, format!("{status} is not the status of {what}"), help);
        }
        Status(status)
    }

    /// The other name of a redirect or rewrite.
    fn route_target(&mut self, text: &str, place: Node<'_>, pattern: &Glob, is_redirect: bool) {
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
            self.findings.at(place.span(), format!("`{}` is no place to lead to", text.escape_debug()), help);
        }
        let stars = pattern.stars().min(9);
        for number in text.split('$').skip(1).map(|rest| rest.chars().next().and_then(|c| c.to_digit(10)).unwrap_or(0))
        {
            if number == 0 || number as usize > stars {
                let help =
                    format!("`match` has {stars} stars: write `$1` for what the first stood for, and so on to `$9`");
                self.findings.at(
                    place.span(),
                    format!("`{}` names a star that there is not", text.escape_debug()),
                    help,
                );
                break;
            }
        }
    }

    fn fixed_response(&mut self, table: &mut RouteTable, node: Node<'_>) -> FixedResponse {
        let body = table.respond.clone().unwrap_or_default();
        let status = *table.status.get_or_insert(200);
        if let Some(place) = node.get("status").place() {
            if !(200..=599).contains(&status) || [206, 304, 401, 416].contains(&status) {
                let help = "write one from 200 to 599 that stands by itself, such as 200, 204, 410 or 503";
                self.findings.at(place, format!("{status} is not the status of a fixed response"), help);
            } else if status == 204 && !body.is_empty() {
                let help = "write `respond = \"\"`, or another status";
                let message = "a response with status 204 has no body";
                self.findings.against(node.get("respond").span(), (place, "204"), message, help);
            }
        }
        // Of the server's own fields these are the administrator's to say here.
        self.header_fields(node.get("headers"), &["Content-Type", "Cache-Control", "Location"]);
        let has_type = table.headers.keys().any(|name| name.eq_ignore_ascii_case("Content-Type"));
        if !body.is_empty() && !has_type {
            table.headers.insert("Content-Type".into(), "text/plain; charset=utf-8".into());
        }
        let fields = table.headers.iter().map(|(name, value)| (name.clone(), trimmed(value)));
        FixedResponse { status: Status(status), body: Arc::new(body.into_bytes()), fields: fields.collect() }
    }

    fn fallback(&mut self, node: Node<'_>, routes: &[Route]) {
        let (folder, file) = (node.get("folder"), node.get("file"));
        self.clean_path(folder, true);
        self.clean_path(file, false);
        if !file.text().starts_with(folder.text()) {
            let help = "put it into the folder: who may read the one may then read the other";
            let message = format!("`{}` lies outside the folder that it serves in", file.text().escape_debug());
            self.findings.against(file.span(), (folder.span(), "this folder"), message, help);
        }
        let first = routes.iter().find(|route| route.pattern.matches(file.text().as_bytes()));
        if matches!(first, Some(Route { action: RouteAction::Deny(_), .. })) {
            let help = "write `internal = true` in place of `deny = true` to keep only clients away from it";
            let message = format!("a route denies the fallback file `{}`", file.text().escape_debug());
            self.findings.at(file.span(), message, help);
        }
    }

    /// A path of the site, as it is once it is decoded.
    fn clean_path(&mut self, key: Node<'_>, is_folder: bool) {
        let path = key.text();
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

    fn guard(&mut self, table: &mut AuthTable, node: Node<'_>) -> Option<Guard> {
        self.clean_path(node.get("folder"), true);
        // Within quotes in a header.
        let is_good = |realm: &str| is_value(realm) && !realm.contains(['"', '\\']);
        let default = if is_good(&table.folder) { table.folder.clone() } else { "restricted".into() };
        let realm = table.realm.get_or_insert(default);
        if !is_good(realm) {
            let help = "write a line of text without quotes, such as \"Staff\"";
            let message = format!("`{}` cannot be a realm", realm.escape_debug());
            self.findings.at(node.get("realm").span(), message, help);
        }
        let place = node.get("accounts").span();
        if table.accounts.as_os_str().is_empty() {
            let help = "name a file outside every root that `htpasswd -B -c FILE NAME` has made";
            self.findings.at(place, "`accounts` is empty", help);
            return None;
        }
        table.accounts = self.absolute(&table.accounts, node);
        let file = &table.accounts;
        if let Err(error) = std::fs::metadata(file) {
            let message = format!("the accounts in {} cannot be used: {error}", file.display());
            let help = "make the file with `htpasswd -B -c FILE NAME`, or correct the path";
            self.findings.at(place.clone(), message, help);
        }
        let known = self.accounts.iter().position(|(known, _)| known == file);
        let at = known.unwrap_or_else(|| {
            self.accounts.push((file.clone(), place));
            self.accounts.len() - 1
        });
        Some(Guard { folder: table.folder.clone(), realm: realm.clone(), accounts: u16::try_from(at).ok()? })
    }

    fn negotiation(&mut self, rule: Node<'_>) {
        let mut seen: HashMap<String, Range<usize>> = HashMap::new();
        for (key, what, example) in [("languages", "language", "pt-BR"), ("charsets", "charset", "utf-8")] {
            for name in rule.get(key).elements() {
                let given = name.text();
                // It stands between the dots of a file's name, and in a header.
                if !given.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_+".contains(&b)) || given.is_empty() {
                    let help = format!("write it as it stands in the name of a file, such as `{example}`");
                    self.findings.at(name.span(), format!("`{}` is no {what}", given.escape_debug()), help);
                }
                if let Some(earlier) = seen.insert(given.to_ascii_lowercase(), name.span()) {
                    let message = format!("the ending `{given}` is named twice");
                    self.findings.against(name.span(), (earlier, "first here"), message, "take one of them out");
                }
            }
        }
    }

    fn app(&mut self, app: &mut AppTable, node: Node<'_>, keeps_bodies: bool) -> Option<(AppRule, AppSettings)> {
        let kind = self.app_kind(app, node);
        let is_ours = !matches!(kind, Some(AppKind::Unix(_) | AppKind::Tcp(_)));
        if is_ours {
            app.max_processes.get_or_insert(20);
        }
        let mut min_spare = app.min_spare.unwrap_or(usize::from(is_ours));
        let most = app.max_processes.unwrap_or(usize::MAX);
        self.at_most(node, ("min_spare", &mut min_spare), ("max_processes", most));
        let files = app.files.unwrap_or(app.pattern.as_str().contains('*')) || kind == Some(AppKind::Cgi);
        if kind != Some(AppKind::Cgi) {
            (app.files, app.min_spare) = (Some(files), Some(min_spare));
        }
        if app.cache.is_some() && !keeps_bodies {
            let help = "take one of them out: pages of applications are kept among the contents of files";
            let message = "`cache` has nowhere to keep pages: `content_bytes` is 0";
            self.findings.at(node.get("cache").span(), message, help);
        }
        for (name, place, value) in node.get("env").entries() {
            self.variable(name, place, value);
        }
        let rule = AppRule {
            pattern: mount(&app.pattern, files),
            timeout: app.timeout,
            max_body_bytes: app.max_body_bytes,
            max_response_bytes: app.max_response_bytes,
            cache: app.cache,
        };
        let settings = AppSettings {
            kind: kind?,
            files,
            min_spare,
            max_processes: app.max_processes,
            max_queue: app.max_queue,
            buffer_request: app.buffer_request,
            buffer_response: app.buffer_response,
            env: app.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        };
        Some((rule, settings))
    }

    /// What an application is: one of three keys says it.
    fn app_kind(&mut self, app: &mut AppTable, node: Node<'_>) -> Option<AppKind> {
        let given = ["cgi", "fastcgi", "command"].into_iter();
        let mut given = given.filter_map(|kind| Some((kind, node.get(kind).place()?)));
        let Some((first, place)) = given.next() else {
            if self.whole {
                let help = "write `cgi = true` for a process of the script for each request, `fastcgi = \"unix:/run/php/php-fpm.sock\"` \
                            for a running application, or `command = [\"/srv/app\"]` for one that the server starts";
                self.findings.at(node.span(), "this application does not say how it runs", help);
            }
            return None;
        };
        for (name, span) in given {
            let message = format!("an application has both `{first}` and `{name}`");
            self.findings.against(span, (place.clone(), "first here"), message, "take one of them out");
        }
        if let Some(text) = &mut app.fastcgi {
            let place = node.get("fastcgi").span();
            return match (text.trim().strip_prefix("unix:"), parse_listen(text.trim())) {
                (Some(""), _) => {
                    self.findings.at(place, "`unix:` names no socket", "write `unix:/run/php/php-fpm.sock`");
                    None
                }
                (Some(name), _) => {
                    let path = self.folder.join(name);
                    *text = format!("unix:{}", path.display());
                    Some(AppKind::Unix(path))
                }
                (None, Ok(address)) if !text.trim().starts_with('*') => Some(AppKind::Tcp(address)),
                (None, _) => {
                    let help = "write `unix:/run/php/php-fpm.sock`, or an address and a port, `127.0.0.1:9000`";
                    let message = format!("`{text}` is neither a socket nor an address and port");
                    self.findings.at(place, message, help);
                    None
                }
            };
        }
        if let Some(words) = &mut app.command {
            let bad = words.first().is_none_or(String::is_empty) || words.iter().any(|word| word.contains('\0'));
            if bad {
                let help = "write the program, then its arguments: `[\"/srv/app/serve\", \"--fast\"]`";
                self.findings.at(node.get("command").span(), "`command` names no program", help);
                return None;
            }
            if words[0].contains('/') {
                words[0] = self.folder.join(&words[0]).to_string_lossy().into_owned();
            }
            return Some(AppKind::Command(words.clone()));
        }
        if app.cgi == Some(false) {
            self.findings.at(place, "nothing runs this application", "write `cgi = true`, or take the table out");
        }
        Some(AppKind::Cgi)
    }

    fn variable(&mut self, name: &str, place: Range<usize>, value: Node<'_>) {
        if name.is_empty() || name.contains(['=', '\0']) {
            let help = "write a name such as `LANG`, without `=`";
            self.findings.at(place, format!("`{}` is not the name of a variable", name.escape_debug()), help);
        } else if name.eq_ignore_ascii_case("HTTP_PROXY") {
            let help = "take it out: a client's field of that name would become it, so scripts must not believe it";
            self.findings.at(place, "`HTTP_PROXY` is kept from applications", help);
        }
        if value.text().contains('\0') {
            self.findings.at(value.span(), format!("the value of `{name}` holds a NUL"), "take it out");
        }
    }

    fn header_name(&mut self, name: &str, place: Range<usize>) {
        if !is_token(name) {
            let help = "a name is made of letters, digits and - _ . ! # $ % & ' * + ^ ` | ~";
            let message = format!("`{}` is not the name of a header", name.escape_debug());
            self.findings.at(place, message, help);
        } else if name.eq_ignore_ascii_case("Cache-Control") {
            let help = "write `cache_control = \"...\"` in this table: errors must not be cached by it";
            self.findings.at(place, "Cache-Control has a key of its own", help);
        } else if name.eq_ignore_ascii_case("Content-Type") {
            let help = "use `[site.types]`, `default_type` and `charset`";
            self.findings.at(place, "the header `Content-Type` is the server's own", help);
        } else if OWNED.iter().any(|owned| name.eq_ignore_ascii_case(owned)) {
            let help = "take it out: it follows from the file and the request, and another value would be a lie";
            self.findings.at(place, format!("the header `{name}` is the server's own"), help);
        }
    }

    fn header_value(&mut self, name: &str, value: Node<'_>) {
        if !is_value(&trimmed(value.text())) {
            let help = "a value is one line of text: no line end, no NUL and no other control character but the tab";
            self.findings.at(value.span(), format!("the value of `{name}` has a control character"), help);
        }
    }

    fn error_page(&mut self, key: &str, place: Range<usize>, page: Node<'_>) -> Option<(Status, Box<str>)> {
        let status = number(key).filter(|status| (400..=599).contains(status) && key.len() == 3);
        if status.is_none() {
            let help = "write one from 400 to 599, such as \"404\"";
            self.findings.at(place.clone(), format!("`{}` is not the status of an error", key), help);
        }
        if status.is_some_and(|status| BUILT_IN.contains(&status)) {
            let help = "take it out: this error comes before the site is known, or says what a page of the site cannot";
            self.findings.at(place, format!("the page for {} is always the built-in one", key), help.to_owned());
        }
        let path = page.text();
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
        Some((Status(status?), path.into()))
    }
}

/// The paths of an application. One that knows its own paths and has all beneath `/dav/**` is at `/dav`: so its name
/// (SCRIPT_NAME) is the same for each of them, as it is written into the links of a mounted application.
fn mount(written: &Glob, files: bool) -> Glob {
    let folder = written.as_str().strip_suffix("/**").filter(|_| !files);
    let mount = match folder {
        Some("") => Glob::parse("/").ok(),
        Some(folder) if folder.starts_with('/') => Glob::parse(folder).ok(),
        _ => None,
    };
    mount.unwrap_or_else(|| written.clone())
}

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

/// A header value without the spaces around it, which are not part of it.
fn trimmed(value: &str) -> Box<str> {
    value.trim_matches([' ', '\t']).into()
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
