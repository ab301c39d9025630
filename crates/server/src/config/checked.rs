//! Checks the keys of the configuration together: a [`File`], completed by flags, becomes [`Settings`].
//!
//! Flags override the file, the file overrides the defaults. [`settle`] checks everything once, so that its users need
//! not: an address can be bound, a root is a directory, a header value has no line end. It records each error with its
//! position and continues, so that one run reports all of them. The file becomes the configuration in force, with
//! absolute paths, to be printed.
//!
//! A default that conflicts with another key (`min_spare` with `max`, for instance) is adapted if only the other key is
//! set; two keys that are both set and conflict are an error.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use amped_acme_protocol::Start;
use amped_core::app;
use amped_core::auth::Guard;
use amped_core::authorize::AuthorizeRule;
use amped_core::cors::CorsRule;
use amped_core::glob::Glob;
use amped_core::request_limit::RequestLimit;
use amped_core::routes::{FixedResponse, Route, RouteAction};
use amped_core::site::{
    Alias, AppRule, CacheRule, HttpRule, Site, Sites, StaticRule, StatusLifetime, TrustedProxies, Types,
};
use amped_http::h1::references::{LocationPrefix, Mount};
use amped_http::h1::request_fields::RequestField;
use amped_http::status::Status;
use amped_http::uri::{clean_path, encode_path};
use amped_units::{Form as _, parse_duration};

use super::cli::Serve;
use super::error::Findings;
use super::file::{AppTable, AuthTable, File, RouteTable, SiteTable};
use super::forms::{Realm, cached_statuses, error_statuses};
use super::read::{Node, Read};
use super::settings::{
    Address, AppKind, AppSettings, Balance, ConnectionStart, Form, Listen, LogTarget, UpstreamSettings, form,
    parse_listen,
};
use super::types;
use crate::certificate::Certificate;
use crate::certified::Unusable;
use crate::client_auth::ClientAuth;
use crate::clock;
use crate::keys::Pair;
use crate::keys::client::KeySource;
use crate::object_store::settings::{Location, StoreSettings};
use crate::tickets::TicketSecret;

/// The complete configuration of a server: the file in force, and everything derived from it.
///
/// It never changes: a SIGHUP creates another one.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file in force: completed with defaults, overridden by flags, with absolute paths.
    pub file: File,
    /// Event loops, threads or processes, 1 or more.
    pub workers: usize,
    /// The sites; the first is the default one.
    pub sites: Arc<Sites>,
    /// The absolute path of each site's root: `roots[site.number]`; then of each alias's: `roots[alias.root]`. Each was an
    /// accessible directory when the settings were created, or is a [`Location`] in the object store.
    pub roots: Vec<PathBuf>,
    /// The object store, if a root is in it.
    pub store: Option<Arc<StoreSettings>>,
    /// Absolute paths of the password files: that of a guard is `accounts[guard.accounts]`.
    pub accounts: Vec<PathBuf>,
    /// How each site's applications run: `apps[site.number][rule]`, with the rules of the site.
    pub apps: Vec<Vec<AppSettings>>,
    /// The certificates of each site: `certificates[site.number]`. If an address has TLS, at least one site has a
    /// certificate, or one to obtain. With `tls.keys = "process"` there are none before [`read_certificates`](Settings::read_certificates).
    pub certificates: Vec<Vec<Certificate>>,
    /// Where they come from.
    pub keys: KeySource,
    /// Verifies clients' certificates, if they are requested.
    pub client_auth: Option<ClientAuth>,
    /// The secret of ticket keys, if it is in a file.
    pub ticket_secret: Option<TicketSecret>,
    /// The certificates to obtain, if a site has `acme = true`.
    pub acme: Option<AcmePlan>,
    /// Names of the included files, in their order. Their sites are in `file`, which includes none.
    pub included: Vec<String>,
}

/// The certificates to obtain.
#[derive(Clone, Debug)]
pub struct AcmePlan {
    /// The configuration of the ACME process.
    pub start: Start,
    /// The file of each site's certificate: `files[site.number]`; `None` if it has none to obtain.
    pub files: Vec<Option<PathBuf>>,
}

impl Settings {
    /// Returns whether an address has TLS.
    pub fn has_tls(&self) -> bool {
        self.listen.iter().any(|listen| listen.start.tls)
    }

    /// Returns whether the loops of a pool wait in accept(2), recv(2) and send(2) instead of epoll.
    pub fn blocks(&self) -> bool {
        form(self.architecture).pool && !self.optimise.pool_epoll
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

impl Settings {
    /// Returns the files of all certificates with their keys, and of those that are obtained.
    pub fn key_pairs(&self) -> Vec<Pair> {
        let own = self.site.iter().flat_map(SiteTable::certificate_files);
        let obtained = self.acme.iter().flat_map(|acme| acme.files.iter().flatten());
        own.map(|(chain, key, _)| Pair::new(chain, key)).chain(obtained.map(|file| Pair::new(file, file))).collect()
    }

    /// Reads the certificates that were left to another process, from this source. Returns those that cannot be used.
    pub fn read_certificates(&mut self, source: &KeySource) -> Vec<Unusable> {
        let Settings { file, certificates, acme, .. } = self;
        let (mut unusable, now) = (Vec::new(), clock::since_1970());
        let obtained = acme.as_ref().map_or(&[][..], |acme| &acme.files);
        for (number, (own, site)) in certificates.iter_mut().zip(&file.site).enumerate() {
            own.clear();
            if let Some(file) = obtained.get(number).and_then(Option::as_deref) {
                // If it cannot be used, another one is obtained.
                own.extend(Certificate::read(source, file, file, None, now));
                continue;
            }
            for (chain, key, ocsp) in site.certificate_files() {
                match Certificate::read(source, chain, key, ocsp, now) {
                    Ok(certificate) => own.push(certificate),
                    Err(why) => unusable.push(why),
                }
            }
        }
        self.keys = source.clone();
        unusable
    }
}

/// The file of the account in the state directory, which `amped-acme` writes.
const ACCOUNT_FILE: &str = "account.json";

impl Settings {
    /// The files that are never served, whatever name or link leads to them: passwords, private keys, and secrets.
    pub fn secrets(&self) -> Vec<PathBuf> {
        let sites = self.site.iter();
        let keys = sites.flat_map(|site| site.key.iter().chain(site.app.iter().flat_map(|app| &app.tls_key)));
        let acme = self.acme.iter().flat_map(|acme| acme.files.iter().flatten());
        let account = self.acme.iter().map(|acme| acme.start.state.join(ACCOUNT_FILE));
        let store = self.store.iter().flat_map(|store| &store.credentials_file);
        let files = self.accounts.iter().chain(keys).chain(&self.tls.ticket_secret).chain(acme).chain(store);
        files.cloned().chain(account).collect()
    }
}

/// Builds the settings from a file and the flags that set no key; paths in the file are relative to `folder`. Returns
/// `None` only if an error was recorded.
pub(super) fn settle(flags: &Serve, read: Read<'_>, folder: &Path, findings: &mut Findings) -> Option<Settings> {
    Checker { folder, read: &read, findings, accounts: Vec::new(), secrets: Vec::new() }.settings(
        flags,
        read.file.clone(),
        read.root(),
    )
}

/// The sites, and for each by number: its root, how its applications run, and its certificates.
type OfSites = (Sites, Vec<PathBuf>, Vec<Vec<AppSettings>>, Vec<Vec<Certificate>>);

pub(super) struct Checker<'a> {
    pub(super) folder: &'a Path,
    pub(super) read: &'a Read<'a>,
    pub(super) findings: &'a mut Findings,
    /// The password files named so far, and where each was named first.
    accounts: Vec<(PathBuf, Range<usize>)>,
    /// Other files, or directories, that no root may contain: what each is, and where it was named.
    pub(super) secrets: Vec<(&'static str, PathBuf, Range<usize>)>,
}

impl Checker<'_> {
    fn settings(&mut self, flags: &Serve, mut file: File, root: Node<'_>) -> Option<Settings> {
        file.include.clear(); // Their sites are among the file's own by now.
        self.listen(root, root.get("listen"));
        let form = form(file.architecture);
        // A worker of a pool has one connection.
        let most = file.limits.max_connections.filter(|_| form.pool).unwrap_or(usize::MAX);
        let workers = file.workers.unwrap_or(form.workers).min(most);
        file.workers = Some(workers);
        if file.group.is_some() && file.user.is_none() {
            let help = "write `user` too, or remove `group`";
            self.findings.at(root.get("group").span(), "`group` is given without `user`", help);
        }
        self.helpers(&form, &mut file, root.get("helpers"));
        self.log(&mut file, root.get("log"));
        self.limits(&mut file, root.get("limits"));
        self.cache(&mut file, root.get("cache"));
        self.spool(&mut file, root.get("spool"));
        self.control(&mut file, root.get("control"));
        self.metrics(&mut file, root.get("metrics"));
        self.key_holder(file.architecture, &file.tls, root.get("tls"));
        let client_auth = self.client_auth(&mut file.tls, root.get("tls"));
        let ticket_secret = self.ticket_secret(&mut file.tls, root.get("tls"));
        let acme = self.acme(&mut file, root);
        let files = acme.as_ref().map_or(&[][..], |acme| &acme.files);
        let (sites, roots, apps, certificates) = self.sites(flags, &mut file, files, root)?;
        let store = self.object_storage(&mut file, &roots, root);
        self.secrets_lie_outside(&roots);
        self.pool_epoll(&form, &file, &apps, root.get("optimise").get("pool_epoll"));
        (file.log.delayed, file.log.string_caches) = (file.optimise.delayed_log, file.optimise.string_caches);
        let accounts = std::mem::take(&mut self.accounts).into_iter().map(|(path, _)| path).collect();
        let proxies = TrustedProxies { networks: file.trusted_proxies.clone(), field: file.client_address };
        let sites = Arc::new(sites.behind((!proxies.networks.is_empty()).then_some(proxies)));
        Some(Settings {
            file,
            workers,
            sites,
            roots,
            store,
            accounts,
            apps,
            certificates,
            keys: KeySource::Files,
            client_auth,
            ticket_secret,
            acme,
            included: Vec::new(),
        })
    }

    fn listen(&mut self, root: Node<'_>, node: Node<'_>) {
        if node.elements().next().is_none() && node.place().is_some() && !self.read.is_taken(root, &["listen"]) {
            let help = "write an address, or remove the key to use the default, [\"127.0.0.1:8080\"]";
            self.findings.at(node.span(), "`listen` is empty", help);
        }
        let mut seen = HashMap::new();
        for text in node.elements() {
            if let Ok(Listen { start: ConnectionStart { proxy: true, .. }, .. }) = Listen::parse(text.text())
                && self.read.file.trusted_proxies.is_empty()
                && !self.read.is_taken(root, &["trusted_proxies"])
            {
                let help = "add `trusted_proxies = [\"10.0.0.0/8\"]`, the addresses of the proxies; others are refused";
                self.findings.at(text.span(), "`proxy` without `trusted_proxies` would refuse all connections", help);
            }
            // Port 0 requests a free port, and may be configured several times.
            if let Ok(Listen { address, .. }) = Listen::parse(text.text())
                && address.port() != 0
                && let Some(earlier) = seen.insert(address, text.span())
            {
                let message = format!("duplicate listen address `{}`", text.text());
                self.findings.against(text.span(), (earlier, "first here"), message, "remove one of them");
            }
        }
    }

    /// Checks that a value does not exceed another; a default is lowered instead.
    fn at_most<T: PartialOrd + Copy>(
        &mut self,
        table: Node<'_>,
        (name, value): (&str, &mut T),
        (other_name, most): (&str, T),
    ) {
        if *value <= most {
            return;
        }
        // A flag was not chosen for this file: it lowers the value without an error.
        let Some(place) = table.get(name).place().filter(|_| !table.get(other_name).is_flag()) else {
            *value = most;
            return;
        };
        let message = format!("`{name}` exceeds `{other_name}`");
        let help = format!("lower `{name}` or raise `{other_name}`");
        match table.get(other_name).place() {
            Some(other) => self.findings.against(place, (other, "more than this"), message, help),
            None => self.findings.at(place, message, help),
        }
    }

    fn helpers(&mut self, form: &Form, file: &mut File, node: Node<'_>) {
        for key in ["max", "kind"].map(|key| node.get(key)).iter().filter(|key| key.is_flag() && !form.helpers) {
            let help = "remove it, or use `--architecture amped`, whose event loops have helpers";
            self.findings.at(key.span(), "this architecture has no helpers", help);
        }
        self.at_most(node, ("min_spare", &mut file.helpers.min_spare), ("max", file.helpers.max));
    }

    /// A worker that blocks in a call for one descriptor cannot wait for another.
    fn pool_epoll(&mut self, form: &Form, file: &File, apps: &[Vec<AppSettings>], node: Node<'_>) {
        if file.optimise.pool_epoll || !form.pool {
            return;
        }
        let cause = match &file.listen[..] {
            [Listen { start: ConnectionStart { tls: true, .. }, .. }] => "TLS",
            [_] if apps.iter().any(|apps| !apps.is_empty()) => "applications",
            [_] if file.site.iter().flat_map(|site| &site.limit).any(|limit| !limit.max_delay.is_zero()) => {
                "delayed requests (`max_delay`)"
            }
            [_] if file.site.iter().flat_map(|site| &site.limit).any(|limit| limit.bandwidth().is_some()) => {
                "limits of bandwidth (`rate`, `connection_rate`)"
            }
            [_] => return,
            _ => "several addresses",
        };
        let help = "remove it, or use `--with pool-epoll`";
        self.findings.at(node.span(), format!("{cause} cannot be served without `pool_epoll`"), help);
    }

    fn log(&mut self, file: &mut File, node: Node<'_>) {
        if file.log.hostnames && !file.log.format.is_named() {
            let help = "remove one of them, or write `format = \"json\"`: only in named formats the place of the address is known";
            let place = node.get("hostnames").span();
            let message = "`hostnames` cannot be combined with a template or list";
            self.findings.against(place, (node.get("format").span(), "this format"), message, help);
        }
        let LogTarget::File(path) = &mut file.log.access else { return };
        *path = self.absolute(path, node.get("access"));
        if let Err((message, help)) = log_file(path) {
            self.findings.absent(node.get("access").span(), message, help);
        }
    }

    /// The absolute form of a path: relative to the directory of the file, from a flag to the current one.
    pub(super) fn absolute(&self, path: &Path, node: Node<'_>) -> PathBuf {
        let path = if node.is_flag() { path.to_owned() } else { self.folder.join(path) };
        std::path::absolute(&path).unwrap_or(path)
    }

    fn control(&mut self, file: &mut File, node: Node<'_>) {
        let (Some(path), node) = (&mut file.control.socket, node.get("socket")) else { return };
        if path.as_os_str().is_empty() {
            return self.findings.at(node.span(), "`socket` is empty", "remove the key to create no socket");
        }
        *path = self.absolute(path, node);
        // unix(7): `sun_path` has 108 bytes, with the NUL at its end.
        if path.as_os_str().len() > 107 {
            let message = format!("the path of the control socket has {} bytes", path.as_os_str().len());
            let help = "the maximum is 107; choose a directory such as /run/amped";
            self.findings.at(node.span(), message, help);
        }
    }

    fn metrics(&mut self, file: &mut File, node: Node<'_>) {
        let (path, listen) = (node.get("file"), node.get("listen"));
        if let Some(file) = &mut file.metrics.file {
            if file.as_os_str().is_empty() {
                self.findings.at(path.span(), "`file` is empty", "remove the key to write no file");
            }
            *file = self.absolute(file, path);
        }
        let public = file.metrics.public;
        if let Some(Address(address)) = file.metrics.listen
            && !address.ip().to_canonical().is_loopback()
            && !public
        {
            let message = format!("the metrics at {address} would be accessible to other machines");
            let help = format!("write 127.0.0.1:{}, or `public = true` in `[metrics]` to allow this", address.port());
            self.findings.at(listen.span(), message, help);
        }
        if !cfg!(feature = "metrics") && (file.metrics.file.is_some() || file.metrics.listen.is_some()) {
            let message = "this server was built without metrics";
            let help = "build it with the default feature `metrics`, or remove the keys";
            self.findings.at(path.place().unwrap_or(listen.span()), message, help);
        }
    }

    fn spool(&mut self, file: &mut File, node: Node<'_>) {
        let Some(path) = &mut file.spool.directory else { return };
        *path = self.absolute(path, node);
        if !path.is_dir() {
            let help = "create it, or choose another; the default is $TMPDIR, or else /var/tmp";
            let message = format!("{} is not a directory", path.display());
            self.findings.at(node.get("directory").span(), message, help);
        }
    }

    fn limits(&mut self, file: &mut File, node: Node<'_>) {
        let limits = &mut file.limits;
        if node.get("max_header_bytes").place().is_none() {
            // The request line is part of the header.
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
    fn sites(
        &mut self,
        flags: &Serve,
        file: &mut File,
        obtained: &[Option<PathBuf>],
        root: Node<'_>,
    ) -> Option<OfSites> {
        let mut places: Vec<Node<'_>> = root.get("site").elements().collect();
        // The shorthand is the first site; without it and without any site, the directory of the command line is a
        // site.
        if file.root.is_some() || (file.site.is_empty() && flags.dir.is_some()) {
            let root_of_file = file.root.take();
            file.site.insert(0, SiteTable { root: root_of_file, ..SiteTable::default() });
            places.insert(0, root);
        }
        let keeps_bodies = file.cache.content_bytes.0 > 0;
        let (mut roots, mut sites, mut apps, mut hosts) = (Vec::new(), Vec::new(), Vec::new(), HashMap::new());
        let (mut certificates, mut alias_roots, root_of_aliases) = (Vec::new(), Vec::new(), file.site.len());
        for (number, (site, node)) in file.site.iter_mut().zip(places).enumerate() {
            let dir = flags.dir.as_deref().filter(|_| number == 0);
            if dir.is_none() && site.root.is_none() && !self.read.is_taken(node, &["root"]) {
                let help = "add `root = \"/var/www\"`, the directory to serve";
                self.findings.at(node.span(), "this site has no `root`", help);
            }
            if number > 0 && site.hosts.is_empty() && !self.read.is_taken(node, &["hosts"]) {
                let help =
                    "add `hosts = [\"example.org\"]`; only the first site may omit `hosts`, and serves all other names";
                self.findings.at(node.span(), "this site has no `hosts`, so it would get no requests", help);
            }
            site.listing |= flags.listing;
            roots.push(self.root(dir, &mut site.root, node.get("root")));
            let (mut aliases, first_alias) = (Vec::new(), alias_roots.len());
            for (table, node) in site.alias.iter_mut().zip(node.get("alias").elements()) {
                // More than 65,535 sites and aliases are an error.
                let root = u16::try_from(root_of_aliases + alias_roots.len()).unwrap_or(u16::MAX);
                aliases.push(Alias { pattern: table.pattern.clone(), root, keep_prefix: table.keep_prefix });
                let mut path = Some(std::mem::take(&mut table.root));
                alias_roots.push(self.root(None, &mut path, node.get("root")));
                table.root = path.unwrap_or_default();
            }
            let (rules, static_rules, settings) = self.apps(&mut site.app, node, keeps_bodies);
            if !site.compress.is_empty() && file.cache.compressed_bytes.0 == 0 {
                let help = "remove `compress`, or raise `compressed_bytes`, which holds the compressed files";
                let message = "`compress` requires a cache, but `compressed_bytes` is 0";
                self.findings.at(node.get("compress").span(), message, help);
            }
            let made = self.site(site, node, &mut hosts, (rules, static_rules));
            let own = obtained.get(number).and_then(Option::as_deref);
            certificates.push(match own {
                Some(file) => self.obtained_certificate(file),
                None => self.certificates(site, node),
            });
            let https_port = self.https_port(&file.listen, site, node);
            let hsts = self.hsts(&file.listen, site, node);
            let own_roots = roots.last().into_iter().chain(&alias_roots[first_alias..]);
            let is_remote = own_roots.flatten().any(|root| Location::of(root).is_some());
            let root_names = root_names(roots.last());
            sites.push(Site { root_names, aliases, is_remote, https_port, hsts, ..made });
            apps.push(settings);
        }
        let has_any = obtained.iter().any(Option::is_some) || file.site.iter().any(|site| !site.certificate.is_empty());
        self.tls(&file.listen, has_any, root.get("listen"));
        if sites.is_empty() && !self.read.is_taken(root, &["root", "site"]) {
            match flags.config {
                None => self.findings.usage(
                    "no directory to serve",
                    "write `amped serve DIRECTORY`, or `amped serve --config FILE` with a `root` in the file",
                ),
                Some(_) => self.findings.at(
                    0..0,
                    "no directory to serve",
                    "write `root = \"/var/www\"` at the top of the file, or give a directory on the command line",
                ),
            }
        }
        roots.extend(alias_roots);
        if roots.len() > usize::from(u16::MAX) {
            self.findings.outside(format!("too many sites and aliases: {}", roots.len()), "the maximum is 65535");
        }
        let roots: Option<Vec<PathBuf>> = roots.into_iter().collect();
        Some((Sites::new(sites)?, roots?, apps, certificates))
    }

    /// Checks that no client can download a file that is secret.
    fn secrets_lie_outside(&mut self, roots: &[PathBuf]) {
        let accounts = self.accounts.iter().map(|(file, span)| ("accounts file", file, span));
        let others = self.secrets.iter().map(|(what, file, span)| (*what, file, span));
        for (what, file, span) in accounts.chain(others) {
            if let Some(root) = roots.iter().find(|root| lies_within(file, root)) {
                let message = format!("the {what} {} is below the root {}", file.display(), root.display());
                let help = "move it outside all roots, so that no client can download it";
                self.findings.at(span.clone(), message, help);
            }
        }
    }

    /// The object store, if a root is in it.
    fn object_storage(&mut self, file: &mut File, roots: &[PathBuf], root: Node<'_>) -> Option<Arc<StoreSettings>> {
        let (keys, node) = (&mut file.object_storage, root.get("object_storage"));
        for (path, key) in [(&mut keys.credentials, "credentials"), (&mut keys.ca, "ca")] {
            path.iter_mut().for_each(|path| *path = self.absolute(path, node.get(key)));
        }
        let place = root.get("cache").get("disk");
        let disk = file.cache.disk.as_deref().map(|disk| self.absolute(Path::new(disk), place));
        file.cache.disk = disk.as_ref().map(|disk| disk.to_string_lossy().into());
        let of_store = roots.iter().find(|root| Location::of(root).is_some())?;
        let Some(disk) = disk else {
            let message = format!("{} needs a directory for local copies of its objects", of_store.display());
            let help =
                "add `disk = \"/var/cache/amped\"` to `[cache]`, and create that directory for the server's user";
            let of_root = |node: Node<'_>| {
                let node = node.get("root");
                node.place().filter(|_| node.text().starts_with("s3://"))
            };
            let sites = || root.get("site").elements().find_map(of_root);
            self.findings.at(of_root(root).or_else(sites).unwrap_or(place.span()), message, help);
            return None;
        };
        if !disk.is_dir() {
            let help = "create it, for the user that serves (`install -d -o USER DIRECTORY`)";
            self.findings.at(place.span(), format!("{} is not a directory", disk.display()), help);
        }
        self.secrets.push(("cache directory", disk.clone(), place.span()));
        let bytes_max = (file.cache.disk_bytes.0, file.cache.max_content_file_bytes.0);
        match StoreSettings::read(keys.clone(), disk, bytes_max, |name| std::env::var_os(name)) {
            Ok(settings) => {
                let credentials = settings.credentials_file.clone();
                let place = node.get("credentials").span();
                self.secrets.extend(credentials.map(|path| ("credentials file", path, place)));
                Some(Arc::new(settings))
            }
            Err((key, message, help)) => {
                let place = key.map_or_else(|| node.span(), |key| node.get(key).span());
                self.findings.at(place, message, help);
                None
            }
        }
    }

    fn root(&mut self, dir: Option<&Path>, root: &mut Option<PathBuf>, node: Node<'_>) -> Option<PathBuf> {
        let path = dir.or(root.as_deref());
        if let Some(path) = path
            && let Some(location) = Location::of(path)
        {
            if let Err(why) = location {
                let (message, help) =
                    (format!("`{}` {why}", path.display()), "write `s3://BUCKET`, or `s3://BUCKET/PREFIX`");
                match dir {
                    None => self.findings.at(node.span(), message, help),
                    Some(_) => self.findings.outside(message, help),
                }
            }
            *root = Some(path.to_owned());
            return root.clone();
        }
        let path = match (dir, &*root) {
            (Some(dir), _) => std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()),
            (None, Some(root)) if root.as_os_str().is_empty() => {
                self.findings.at(node.span(), "`root` is empty", "write \".\" for the directory of the main file");
                return None;
            }
            (None, Some(root)) => self.absolute(root, node),
            (None, None) => return None,
        };
        if let Err((message, help)) = folder_to_serve(&path) {
            match (dir, &*root) {
                (None, Some(root)) if root.is_relative() && !help.contains('`') => {
                    let help = format!("{help}; relative paths start at the directory of the main file");
                    self.findings.at(node.span(), message, help);
                }
                (None, Some(_)) => self.findings.at(node.span(), message, help),
                _ => self.findings.outside(message, help),
            }
        }
        *root = Some(path.clone());
        Some(path)
    }

    fn site(
        &mut self,
        table: &mut SiteTable,
        node: Node<'_>,
        hosts: &mut HashMap<String, Range<usize>>,
        (apps, static_rules): (Vec<AppRule>, Vec<StaticRule>),
    ) -> Site {
        let with_apps = Site { apps, static_rules, ..Site::default() };
        for (_, _, page) in node.get("errors").entries() {
            if app::is_handled(&with_apps, page.text().as_bytes()) {
                let help = "use a static file: the application itself may have failed";
                self.findings.at(
                    page.span(),
                    format!("the error page `{}` is served by an application", page.text()),
                    help,
                );
            }
        }
        for host in node.get("hosts").elements() {
            if let Some(earlier) = hosts.insert(host.text().to_ascii_lowercase(), host.span()) {
                let help = "a host belongs to one site; remove one of them";
                self.findings.against(
                    host.span(),
                    (earlier, "first here"),
                    format!("duplicate host `{}`", host.text()),
                    help,
                );
            }
        }
        if let Some(name) = node.get("precompressed").elements().find(|name| name.text() == "identity") {
            self.findings.at(name.span(), "`precompressed` cannot be \"identity\"", "remove it: it is the file itself");
        }
        let routes = table.route.iter_mut().zip(node.get("route").elements());
        let routes: Vec<Route> = routes.filter_map(|(table, node)| self.route(table, node)).collect();
        for rule in ["route", "headers", "early_hints", "limit", "app", "unlogged"]
            .iter()
            .flat_map(|kind| node.get(kind).elements())
        {
            let when = rule.get("when");
            if when.place().is_some() && when.entries().next().is_none() {
                let help = "write `when = { methods = [\"POST\"] }`, or remove the key";
                self.findings.at(when.span(), "`when` has no condition", help);
            }
            let not = when.get("not");
            if not.place().is_some() && not.elements().next().is_none() {
                let help = "write `not = [{ hosts = [\"example.org\"] }]`, or remove the key";
                self.findings.at(not.span(), "`not` has no condition", help);
            }
            for not in not.elements().filter(|not| not.entries().next().is_none()) {
                let help = "write `not = [{ hosts = [\"example.org\"] }]`, or remove the key";
                self.findings.at(not.span(), "this condition always holds, so `not` never does", help);
            }
        }
        for fallback in node.get("fallback").elements() {
            self.fallback(fallback, &routes);
        }
        for (rule, node) in table.headers.iter().zip(node.get("headers").elements()) {
            if rule.is_empty() && self.read.is_complete(node) {
                let help = "add `cache_control = \"max-age=3600\"` or `set = { \"X-Frame-Options\" = \"DENY\" }`";
                self.findings.at(node.span(), "this header rule sets nothing", help);
            }
        }
        for (rule, node) in table.early_hints.iter().zip(node.get("early_hints").elements()) {
            if rule.links.is_empty() && self.read.is_complete(node) {
                let help = "add `links = [\"</style.css>; rel=preload; as=style\"]`";
                self.findings.at(node.span(), "this table has no link", help);
            }
        }
        for (rule, node) in table.access.iter().zip(node.get("access").elements()) {
            if rule.allow.is_empty() && rule.deny.is_empty() && self.read.is_complete(node) {
                let help = "add `allow = [\"10.0.0.0/8\"]` or `deny = [\"192.0.2.1\"]`";
                self.findings.at(node.span(), "this access rule has neither `allow` nor `deny`", help);
            }
        }
        let guards = table.auth.iter_mut().zip(node.get("auth").elements());
        let guards = guards.filter_map(|(table, node)| self.guard(table, node)).collect();
        table.limit.iter().zip(node.get("limit").elements()).for_each(|(limit, node)| self.request_limit(limit, node));
        let cors = table.cors.iter().zip(node.get("cors").elements());
        // In their order `404` precedes `4xx`.
        let pages = table.errors.iter().filter_map(|(statuses, page)| Some((error_statuses(statuses)?, page.clone())));
        let types = Types {
            overrides: table.types.clone().into_iter().collect(),
            known: types::known,
            fallback: table.default_type.clone(),
            charset: (!table.charset.is_empty()).then(|| table.charset.clone()),
        };
        let site = Site {
            number: 0, // `Sites::new` numbers them.
            hosts: table.hosts.clone(),
            index: table.index.clone(),
            listing: table.listing,
            request_ids: table.request_ids,
            dotfiles: table.dotfiles,
            precompressed: table.precompressed.clone(),
            compress: table.compress.clone(),
            user_dir: table.user_dirs.clone(),
            apps: with_apps.apps,
            static_rules: with_apps.static_rules,
            rules: table.headers.clone(),
            early_hints: table.early_hints.clone(),
            cors: cors.map(|(rule, node)| self.cors(rule, node)).collect(),
            routes,
            fallbacks: table.fallback.clone(),
            guards,
            access: table.access.clone(),
            authorizations: table.authorize.clone(),
            limits: table.limit.clone(),
            negotiations: table.negotiation.clone(),
            unlogged: table.unlogged.clone(),
            error_pages: pages.collect(),
            etag: table.etag,
            symlinks: table.symlinks,
            types,
            aliases: Vec::new(),
            is_remote: false,
            has_conditions: false, // `Sites::new` looks for them.
            conditional_fields: "".into(),
            root_names: Vec::new(), // The caller knows the roots.
            https_port: None,       // And the addresses,
            hsts: None,             // of which one must have TLS.
        };
        for (rule, node) in site.authorizations.iter().zip(node.get("authorize").elements()) {
            self.authorization(rule, node, &site);
        }
        site
    }

    /// Checks that an application is asked, if one should be.
    fn authorization(&mut self, rule: &AuthorizeRule, node: Node<'_>, site: &Site) {
        let Some(request) = &rule.request else { return };
        let mut scratch = Vec::new();
        let path = request.split('?').next().unwrap_or(request);
        let is_handled = clean_path(path.as_bytes(), &mut scratch).is_ok_and(|path| app::is_handled(site, path));
        if !is_handled {
            let help = format!("add `[[site.app]]` with `match = \"{path}\"` and `http` or `fastcgi`");
            let message = format!("no application has the path `{}`", path.escape_debug());
            self.findings.at(node.get("request").span(), message, help);
        }
        let login = rule.login.as_deref().filter(|login| login.starts_with('/'));
        let page = login.and_then(|login| login.split('?').next());
        if page.is_some_and(|page| {
            clean_path(page.as_bytes(), &mut scratch).is_ok_and(|page| site.needs_authorization(page))
        }) {
            let help = "add `[[site.authorize]]` with the directory of the login page and without `request`";
            self.findings.at(node.get("login").span(), "the login page itself needs an authorization", help);
        }
    }

    fn request_limit(&mut self, limit: &RequestLimit, node: Node<'_>) {
        let is_taken = self.read.is_taken(node, &["requests", "concurrent", "rate", "connection_rate"]);
        if limit.requests.is_none() && limit.concurrent.is_none() && limit.bandwidth().is_none() && !is_taken {
            let help = "add `requests = \"10/s\"`, `concurrent = 10` or `rate = \"1MB/s\"`";
            self.findings.at(node.span(), "this table limits nothing", help);
        }
    }

    fn cors(&mut self, rule: &CorsRule, node: Node<'_>) -> CorsRule {
        if rule.origins.is_empty() && !self.read.is_taken(node, &["origins"]) {
            let help = "add `origins = [\"https://example.org\"]`, or `[\"*\"]` for all";
            self.findings.at(node.span(), "this rule allows no origin", help);
        }
        let Some(all) = node.get("origins").elements().find(|origin| origin.text() == "*") else { return rule.clone() };
        if rule.origins.len() > 1 {
            self.findings.at(all.span(), "`*` includes all other origins", "remove the others, or remove `*`");
        }
        if rule.credentials {
            let help = "list the origins: browsers reject credentials with `*` (Fetch, 3.2.5)";
            let place = node.get("credentials").span();
            self.findings.against(place, (all.span(), "all origins"), "`credentials` requires named origins", help);
        }
        CorsRule { origins: Vec::new(), ..rule.clone() }
    }

    fn route(&mut self, table: &mut RouteTable, node: Node<'_>) -> Option<Route> {
        let kinds = ["redirect", "rewrite", "deny", "respond", "internal"];
        let given = kinds.iter().filter_map(|kind| Some((*kind, node.get(kind).place()?)));
        let mut given: Vec<(&str, Range<usize>)> = given.collect();
        given.sort_by_key(|(_, span)| span.start);
        let Some((kind, place)) = given.first().cloned() else {
            if !self.read.is_taken(node, &[&kinds[..], &["static"]].concat()) {
                let help = "add one of `redirect = \"/new/$1\"`, `rewrite = \"/new/$1\"`, `deny = true`, \
                            `respond = \"text\"` and `internal = true`";
                self.findings.at(node.span(), "this route has no action", help);
            }
            return None;
        };
        for (other, span) in &given[1..] {
            let message = format!("this route has both `{kind}` and `{other}`");
            self.findings.against(span.clone(), (place.clone(), "first here"), message, "remove one of them");
        }
        if given.len() > 1 {
            return None;
        }
        if table.deny == Some(false) || table.internal == Some(false) {
            let help = format!("write `{kind} = true`, or remove the route");
            self.findings.at(place, format!("`{kind} = false` has no effect"), help);
        }
        if let Some((_, place, _)) = node.get("headers").entries().next().filter(|_| kind != "respond") {
            let help = "remove `headers`; use `[[site.headers]]` for other responses";
            self.findings.at(place, format!("`headers` requires `respond`, but this route has `{kind}`"), help);
        }
        let status = node.get("status").place();
        if let (Some(place), "rewrite" | "internal") = (&status, kind) {
            let message = format!("`status` has no effect with `{kind}`");
            self.findings.at(place.clone(), message, "remove it");
        }
        if let (Some(place), "deny" | "respond" | "internal") = (node.get("query").place(), kind) {
            let help = "remove it; a redirect or rewrite keeps or drops the query";
            self.findings.at(place, format!("`query` has no effect with `{kind}`"), help);
        }
        let action = match (&table.redirect, &table.rewrite, &table.respond) {
            (Some(to), ..) => {
                self.stars(to, node.get("redirect"), &table.pattern);
                let status =
                    self.route_status(&mut table.status, status, 302, "a redirect", &[301, 302, 303, 307, 308]);
                RouteAction::Redirect { to: to.clone(), status, query: table.query }
            }
            (_, Some(to), _) => {
                self.stars(to, node.get("rewrite"), &table.pattern);
                RouteAction::Rewrite { to: to.clone(), query: table.query.unwrap_or_default() }
            }
            (.., Some(_)) => RouteAction::Respond(Arc::new(self.fixed_response(table, node))),
            _ if kind == "deny" => {
                // Others concern the form of a request, or request credentials that would change nothing.
                let good = [400, 403, 404, 410, 429, 451, 500, 503];
                RouteAction::Deny(self.route_status(&mut table.status, status, 403, "a denial", &good))
            }
            _ => RouteAction::Internal,
        };
        Some(Route { pattern: table.pattern.clone(), when: table.when.clone(), action })
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
            self.findings.at(place, format!("{status} is not a valid status for {what}"), help);
        }
        Status(status)
    }

    /// Checks that each `$1` to `$9` in a target is a star of the pattern.
    fn stars(&mut self, target: &str, place: Node<'_>, pattern: &Glob) {
        let stars = pattern.stars().min(9);
        let mut numbers =
            target.split('$').skip(1).map(|rest| rest.chars().next().and_then(|c| c.to_digit(10)).unwrap_or(0));
        if numbers.any(|number| number == 0 || number as usize > stars) {
            let help = format!("`match` has {stars}: `$1` is the text matched by the first one, up to `$9`");
            self.findings.at(
                place.span(),
                format!("`{}` refers to a wildcard that does not exist", target.escape_debug()),
                help,
            );
        }
    }

    fn fixed_response(&mut self, table: &mut RouteTable, node: Node<'_>) -> FixedResponse {
        let body = table.respond.clone().unwrap_or_default();
        let status = *table.status.get_or_insert(200);
        if let Some(place) = node.get("status").place() {
            if !(200..=599).contains(&status) || [206, 304, 401, 416].contains(&status) {
                let help =
                    "write a final status from 200 to 599 that needs no further fields, such as 200, 204, 410 or 503";
                self.findings.at(place, format!("{status} is not a valid status for a fixed response"), help);
            } else if status == 204 && !body.is_empty() {
                let help = "write `respond = \"\"`, or another status";
                let message = "a response with status 204 cannot have a body";
                self.findings.against(node.get("respond").span(), (place, "204"), message, help);
            }
        }
        let has_type = table.headers.keys().any(|name| name.eq_ignore_ascii_case("Content-Type"));
        if !body.is_empty() && !has_type {
            table.headers.insert("Content-Type".into(), "text/plain; charset=utf-8".into());
        }
        let fields = table.headers.clone().into_iter().collect();
        FixedResponse { status: Status(status), body: Arc::new(body.into_bytes()), fields }
    }

    fn fallback(&mut self, node: Node<'_>, routes: &[Route]) {
        let (directory, file) = (node.get("directory"), node.get("file"));
        if !file.text().starts_with(directory.text()) {
            let help = "move the file into the directory, so that the same access rules apply";
            let message = format!("`{}` is outside the directory of the fallback", file.text().escape_debug());
            self.findings.against(file.span(), (directory.span(), "this directory"), message, help);
        }
        let first = routes.iter().find(|route| route.pattern.matches(file.text().as_bytes()));
        if matches!(first, Some(Route { action: RouteAction::Deny(_), when: None, .. })) {
            let help = "write `internal = true` instead of `deny = true` to hide it from clients only";
            let message = format!("a route denies the fallback file `{}`", file.text().escape_debug());
            self.findings.at(file.span(), message, help);
        }
    }

    fn guard(&mut self, table: &mut AuthTable, node: Node<'_>) -> Option<Guard> {
        let default = || Realm::parse(&table.directory).unwrap_or_else(|_| "restricted".into());
        let realm = table.realm.get_or_insert_with(default);
        let place = node.get("accounts").span();
        if table.accounts.as_os_str().is_empty() {
            let help = "name a file outside all roots, created with `htpasswd -B -c FILE NAME`";
            self.findings.at(place, "`accounts` is empty", help);
            return None;
        }
        table.accounts = self.absolute(&table.accounts, node);
        let file = &table.accounts;
        if let Err(error) = std::fs::metadata(file) {
            let message = format!("cannot read the accounts file {}: {error}", file.display());
            let help = "create it with `htpasswd -B -c FILE NAME`, or correct the path";
            self.findings.at(place.clone(), message, help);
        }
        let known = self.accounts.iter().position(|(known, _)| known == file);
        let at = known.unwrap_or_else(|| {
            self.accounts.push((file.clone(), place));
            self.accounts.len() - 1
        });
        let (directory, exempt) = (table.directory.clone(), table.exempt.clone());
        Some(Guard { directory, realm: realm.clone(), accounts: u16::try_from(at).ok()?, exempt })
    }

    /// The applications of a site, and the paths that are files in spite of them.
    fn apps(
        &mut self,
        tables: &mut [AppTable],
        site: Node<'_>,
        keeps_bodies: bool,
    ) -> (Vec<AppRule>, Vec<StaticRule>, Vec<AppSettings>) {
        let (mut rules, mut static_rules, mut settings) = (Vec::new(), Vec::new(), Vec::new());
        for (app, node) in tables.iter_mut().zip(site.get("app").elements()) {
            match app.is_static {
                Some(true) => {
                    self.only_static(app, node);
                    let before = u16::try_from(rules.len()).unwrap_or(u16::MAX);
                    static_rules.push(StaticRule { pattern: app.pattern.clone(), when: app.when.clone(), before });
                }
                Some(false) => {
                    let help = "write `static = true`, or remove the key";
                    self.findings.at(node.get("static").span(), "`static = false` has no effect", help);
                }
                None => {
                    let (rule, own) = self.app(app, node, keeps_bodies).unzip();
                    rules.extend(rule);
                    settings.extend(own);
                }
            }
        }
        (rules, static_rules, settings)
    }

    /// Reports keys that have no effect with `static`: those with another value than without them.
    fn only_static(&mut self, app: &AppTable, node: Node<'_>) {
        let of = |app: &AppTable| toml::Table::try_from(app).unwrap_or_default();
        let own = of(app);
        let kept = own.iter().filter(|(key, _)| ["match", "when", "static"].contains(&key.as_str()));
        let plain: toml::Table = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
        let plain = plain.try_into().map(|app: AppTable| of(&app)).unwrap_or_default();
        for (key, _) in own.iter().filter(|(key, value)| plain.get(*key) != Some(value)) {
            let help = "remove it: the files of these paths are sent as any file of the site";
            self.findings.at(node.get(key).span(), format!("`{key}` has no effect with `static`"), help);
        }
    }

    fn app(&mut self, app: &mut AppTable, node: Node<'_>, keeps_bodies: bool) -> Option<(AppRule, AppSettings)> {
        let mut kind = self.app_kind(app, node);
        let is_http = app.http.is_some();
        let is_ours = !matches!(kind, Some(AppKind::Unix(_) | AppKind::Tcp(_) | AppKind::Http(_)));
        if is_ours {
            app.max_processes.get_or_insert(20);
        }
        let mut min_spare = app.min_spare.unwrap_or(if is_http { IDLE_CONNECTIONS } else { usize::from(is_ours) });
        let most = app.max_processes.unwrap_or(usize::MAX);
        self.at_most(node, ("min_spare", &mut min_spare), ("max_processes", most));
        let default = app.pattern.has_wildcards() && !is_http;
        let files = app.files.unwrap_or(default) || kind == Some(AppKind::Cgi);
        let http = if is_http { self.http(app, node, kind.as_mut()) } else { self.without_http(node) };
        if kind != Some(AppKind::Cgi) {
            (app.files, app.min_spare) = (Some(files), Some(min_spare));
        }
        if app.cache.is_some() && !keeps_bodies {
            let help = "remove `cache`, or raise `content_bytes`: application pages are stored in the content cache";
            let message = "`cache` requires the content cache, but `content_bytes` is 0";
            self.findings.at(node.get("cache").span(), message, help);
        }
        for key in ["cache_by_status", "stale_while_revalidate", "stale_if_error"] {
            if let Some(place) = node.get(key).place().filter(|_| app.cache.is_none()) {
                let message = format!("`{key}` has no effect without `cache`");
                self.findings.at(
                    place,
                    message,
                    "add `cache = \"0s\"` to cache what responses permit, or remove the key",
                );
            }
        }
        let cache = app.cache.map(|lifetime| CacheRule {
            lifetime,
            by_status: lifetimes(&app.cache_by_status),
            stale_while_revalidate: app.stale_while_revalidate.unwrap_or_default(),
            stale_if_error: app.stale_if_error.unwrap_or_default(),
        });
        if app.user.is_some() && kind.is_some() && kind != Some(AppKind::Cgi) {
            let help = "remove it: only scripts of `cgi` can run as another user; others have their own process managers for that";
            self.findings.at(node.get("user").span(), "`user` has no effect without `cgi`", help);
        }
        let rule = AppRule {
            pattern: mount(&app.pattern, files),
            when: app.when.clone(),
            timeout: app.timeout,
            max_body_bytes: app.max_body_bytes,
            max_response_bytes: app.max_response_bytes,
            cache,
            compress: app.compress.clone(),
            http,
        };
        let settings = AppSettings {
            kind: kind?,
            files,
            min_spare,
            max_processes: app.max_processes,
            max_queue: app.max_queue,
            buffer_request: app.buffer_request,
            buffer_response: app.buffer_response,
            user: app.user.clone(),
            env: app.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        };
        Some((rule, settings))
    }

    /// Checks the keys of a rule that forwards requests, and sets their defaults.
    fn http(&mut self, app: &mut AppTable, node: Node<'_>, kind: Option<&mut AppKind>) -> Option<HttpRule> {
        for (key, help) in [
            ("env", "remove it: environment variables are for CGI and FastCGI"),
            ("files", "remove it: `http` forwards all paths that match"),
        ] {
            let is_set = key != "files" || app.files == Some(true);
            if let Some(place) = node.get(key).place().filter(|_| is_set) {
                self.findings.at(place, format!("`{key}` has no effect with `http`"), help);
            }
        }
        let balance = *app.balance.get_or_insert_default();
        if let Some(place) = node.get("hash_field").place().filter(|_| balance != Balance::Hash) {
            let help = "add `balance = \"hash\"`, or remove the key";
            self.findings.at(place, "`hash_field` has no effect without `balance = \"hash\"`", help);
        }
        let hashed = app.hash_field.as_deref().unwrap_or_default();
        if app.request_fields.keys().any(|name| name.eq_ignore_ascii_case(hashed)) {
            let help = "hash a field that clients send";
            self.findings.at(node.get("hash_field").span(), "`request_fields` sets the field of `hash_field`", help);
        }
        let default = UpstreamSettings::default();
        let connect_timeout = *app.connect_timeout.get_or_insert(default.connect_timeout);
        let failure_timeout = *app.failure_timeout.get_or_insert(default.failure_timeout);
        let max_failures = *app.max_failures.get_or_insert(default.max_failures as usize) as u32;
        let hash_field = app.hash_field.clone();
        if let Some(AppKind::Http(settings)) = kind {
            let (servers, names) = (std::mem::take(&mut settings.servers), std::mem::take(&mut settings.names));
            if let Some(place) = node.get("resolve").place().filter(|_| names.is_empty()) {
                let help = "remove it: no address of `http` has a name";
                self.findings.at(place, "`resolve` has no effect without a name", help);
            }
            let resolve = app.resolve.unwrap_or(default.resolve);
            app.resolve = (!names.is_empty()).then_some(resolve);
            let is_single = servers.len() == 1 && names.is_empty();
            if let Some(place) = node.get("retry_statuses").place().filter(|_| is_single) {
                let help = "remove it, or add servers to `http`";
                self.findings.at(place, "`retry_statuses` has no effect for a single server", help);
            }
            let retry_statuses = app.retry_statuses.clone().unwrap_or_default();
            let health = app.health.clone();
            if let Some(check) = health.as_ref().filter(|check| check.timeout > check.interval) {
                let message =
                    format!("`timeout` ({:?}) is longer than `interval` ({:?})", check.timeout, check.interval);
                self.findings.at(node.get("health").span(), message, "lower `timeout`, or raise `interval`");
            }
            if let Some(place) = node.get("health").place().filter(|_| is_single) {
                let help = "remove it: a single server gets all requests, whatever its state";
                self.findings.at(place, "`health` has no effect for a single server", help);
            }
            **settings = UpstreamSettings {
                servers,
                names,
                resolve,
                balance,
                hash_field,
                connect_timeout,
                max_failures,
                failure_timeout,
                retry_statuses,
                health,
            };
        }
        let (fields, prefixes) = (app.request_fields.iter(), app.map_location.iter());
        Some(HttpRule {
            host: app.host.clone(),
            mount: self.mounted(app, node),
            // Their form was checked.
            request_fields: fields.filter_map(|(name, value)| RequestField::new(name, value).ok()).collect(),
            map_location: prefixes.filter_map(|(from, to)| LocationPrefix::new(from, to).ok()).collect(),
            idle_timeout: *app.idle_timeout.get_or_insert(app.timeout),
            tunnel_timeout: *app.tunnel_timeout.get_or_insert(Duration::from_secs(3600)),
        })
    }

    /// Returns where the server has the paths of a rule.
    fn mounted(&mut self, app: &AppTable, node: Node<'_>) -> Option<Mount> {
        let path = app.backend_path.as_deref()?.trim_end_matches('/');
        let pattern = mount(&app.pattern, false);
        let is_plain = !pattern.is_regex() && !pattern.as_str().contains(['*', '?', '{', '}', '\\']);
        if !is_plain || !pattern.as_str().starts_with('/') {
            let help = "write `match` as a path, such as `/wiki`, or `/wiki/**` for all below it; or use a route with `rewrite`";
            self.findings.at(node.get("backend_path").span(), "`backend_path` requires a path as `match`", help);
            return None;
        }
        let mut prefix = Vec::new();
        encode_path(pattern.as_str().trim_end_matches('/').as_bytes(), &mut prefix);
        Some(Mount { prefix: String::from_utf8_lossy(&prefix).into(), path: path.into() })
    }

    /// Reports keys that only rules with `http` use.
    fn without_http(&mut self, node: Node<'_>) -> Option<HttpRule> {
        for key in HTTP_KEYS {
            if let Some(place) = node.get(key).place() {
                let help = "remove it, or forward requests with `http = \"127.0.0.1:3000\"`";
                self.findings.at(place, format!("`{key}` has no effect without `http`"), help);
            }
        }
        None
    }

    /// Returns the kind of an application, which one of these keys defines.
    fn app_kind(&mut self, app: &mut AppTable, node: Node<'_>) -> Option<AppKind> {
        let kinds = ["cgi", "fastcgi", "command", "http"];
        let mut given = kinds.iter().filter_map(|kind| Some((*kind, node.get(kind).place()?)));
        let Some((first, place)) = given.next() else {
            if !self.read.is_taken(node, &[&kinds[..], &["static"]].concat()) {
                let help = "write `cgi = true` to start the script for each request, `fastcgi = \"unix:/run/php/php-fpm.sock\"` for a \
                            running application, `command = [\"/srv/app\"]` for one that the server starts, \
                            `http = \"127.0.0.1:3000\"` for a server that speaks HTTP, or `static = true` for files";
                let message = "this application has neither `cgi`, `fastcgi`, `command`, `http` nor `static`";
                self.findings.at(node.span(), message, help);
            }
            return None;
        };
        for (name, span) in given {
            let message = format!("an application has both `{first}` and `{name}`");
            self.findings.against(span, (place.clone(), "first here"), message, "remove one of them");
        }
        if let Some(text) = &mut app.fastcgi {
            let Some(name) = text.strip_prefix("unix:") else { return parse_listen(text).map(AppKind::Tcp).ok() };
            let path = self.folder.join(name);
            *text = format!("unix:{}", path.display()).into();
            return Some(AppKind::Unix(path));
        }
        if let Some(words) = &mut app.command {
            let bad = words.first().is_none_or(String::is_empty) || words.iter().any(|word| word.contains('\0'));
            if bad {
                let help = "write the program, then its arguments: `[\"/srv/app/serve\", \"--fast\"]`";
                self.findings.at(node.get("command").span(), "`command` has no program", help);
                return None;
            }
            if words[0].contains('/') {
                words[0] = self.folder.join(&words[0]).to_string_lossy().into_owned();
            }
            return Some(AppKind::Command(words.clone()));
        }
        if app.http.is_some() {
            return self.backends(app, node);
        }
        if app.cgi == Some(false) {
            self.findings.at(place, "`cgi = false` has no effect", "write `cgi = true`, or remove the table");
        }
        Some(AppKind::Cgi)
    }
}

/// The lifetimes of cached responses by status. Their form was checked.
fn lifetimes(table: &BTreeMap<Box<str>, Box<str>>) -> Option<Arc<[StatusLifetime]>> {
    let of = |statuses: &str, time: &str| {
        Some(StatusLifetime { statuses: cached_statuses(statuses)?, lifetime: parse_duration(time).ok()? })
    };
    // In their order `404` precedes `4xx`.
    let all: Arc<[StatusLifetime]> = table.iter().filter_map(|(statuses, time)| of(statuses, time)).collect();
    (!all.is_empty()).then_some(all)
}

/// The keys that only rules with `http` use.
const HTTP_KEYS: [&str; 19] = [
    "health",
    "retry_statuses",
    "host",
    "resolve",
    "backend_path",
    "request_fields",
    "map_location",
    "balance",
    "hash_field",
    "max_failures",
    "failure_timeout",
    "connect_timeout",
    "idle_timeout",
    "tunnel_timeout",
    "tls_ca",
    "tls_name",
    "tls_certificate",
    "tls_key",
    "tls_verify",
];

/// Idle connections kept to each server that speaks HTTP, by default: the requests of a burst that begin within seconds.
const IDLE_CONNECTIONS: usize = 32;

/// Returns the paths of an application. One that is mounted at `/dav/**` (`files = false`) gets the path `/dav`: its
/// SCRIPT_NAME, which it writes into its links, is then the same for all paths below.
fn mount(written: &Glob, files: bool) -> Glob {
    let folder = written.as_str().strip_suffix("/**").filter(|_| !files && !written.is_regex());
    let mount = match folder {
        Some("") => Glob::parse("/").ok(),
        Some(folder) if folder.starts_with('/') => Glob::parse(folder).ok(),
        _ => None,
    };
    mount.unwrap_or_else(|| written.clone())
}

/// Checks that this is a directory that can be served; the error is the message and the remedy.
fn folder_to_serve(path: &Path) -> Result<(), (String, String)> {
    let shown = path.display();
    // The dot tests the directory's own search permission too, without which nothing in it can be opened.
    let reason = match std::fs::metadata(path).map(|root| (root.is_dir(), std::fs::metadata(path.join(".")))) {
        Ok((false, _)) => {
            let holder = path.parent().unwrap_or(path).display();
            return Err((format!("the root {shown} is a file"), format!("use its directory: `{holder}`")));
        }
        Ok((true, Ok(_))) => return Ok(()),
        Ok((true, Err(reason))) | Err(reason) => reason,
    };
    Err(match reason.kind() {
        io::ErrorKind::NotFound => {
            (format!("the root {shown} does not exist"), "create it, or correct the path".to_owned())
        }
        io::ErrorKind::PermissionDenied => {
            let help =
                format!("grant access: `chmod a+x` on it and each directory above it; `namei -l {shown}` lists them");
            (format!("no permission to enter the root {shown}"), help)
        }
        _ => (format!("the root {shown} cannot be used: {reason}"), "correct the path".to_owned()),
    })
}

/// Returns the names by which applications know a root: as configured, and with its symbolic links resolved.
fn root_names(root: Option<&Option<PathBuf>>) -> Vec<Box<[u8]>> {
    let Some(path) = root.and_then(Option::as_ref).filter(|root| Location::of(root).is_none()) else {
        return Vec::new();
    };
    let real = path.canonicalize().ok().filter(|real| real != path);
    [path.clone()].into_iter().chain(real).map(|path| path.as_os_str().as_encoded_bytes().into()).collect()
}

/// Returns whether a file is below a directory, by its own name or by the target of a link.
fn lies_within(file: &Path, folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let name = file.parent().and_then(|parent| parent.canonicalize().ok());
    let is_within = |path: Option<PathBuf>| path.is_some_and(|path| path.starts_with(&folder));
    is_within(name) || is_within(file.canonicalize().ok())
}

/// Checks that a log can be written here; the file itself need not exist yet.
fn log_file(path: &Path) -> Result<(), (String, &'static str)> {
    let shown = path.display();
    if path.is_dir() {
        return Err((format!("the access log {shown} is a directory"), "write a file name such as `access.log`"));
    }
    match path.parent() {
        Some(folder) if !folder.is_dir() => {
            Err((format!("the directory of the access log {shown} does not exist"), "create it, or correct the path"))
        }
        _ => Ok(()),
    }
}
