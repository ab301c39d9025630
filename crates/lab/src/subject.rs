//! A server under test: its configuration, how it is started, and how its program and its responses are identified.
//!
//! Each kind has a configuration template with placeholders for settings, `@name=value@`. The
//! runner fills in `@port@`, `@address@`, `@site@` and `@run@`. A setting without a placeholder is
//! rejected before anything starts. `amped` takes settings without a placeholder as flags; a user's
//! command has placeholders in its arguments and in the user's own configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use amped_measure::Failure;
use serde::{Deserialize, Serialize};

use crate::archive::Program;
use crate::certificate::{Certificate, tls_address};
use crate::values::scalars;

/// A kind of server, with its own configuration template and command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// This project's server.
    Amped,
    Nginx,
    /// Apache httpd with the event MPM (threads).
    ApacheEvent,
    /// Apache httpd with the prefork MPM (processes).
    ApachePrefork,
    Lighttpd,
    H2o,
    /// The floor server: a loop that only moves bytes, and sends the responses of the first server of
    /// an interleaved experiment.
    Floor,
    /// The null server: responds to any input with two bytes. The capacity of the clients is measured against it.
    Null,
    /// Any program.
    Command,
}

impl Kind {
    /// Name in experiment files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Amped => "amped",
            Kind::Nginx => "nginx",
            Kind::ApacheEvent => "apache-event",
            Kind::ApachePrefork => "apache-prefork",
            Kind::Lighttpd => "lighttpd",
            Kind::H2o => "h2o",
            Kind::Floor => "floor",
            Kind::Null => "null",
            Kind::Command => "command",
        }
    }

    /// Returns the program's name, and how to install it.
    fn program(self) -> (&'static str, &'static str) {
        match self {
            Kind::Amped => ("amped", "build it: cargo build --release"),
            Kind::Nginx => ("nginx", "apt-get install nginx-light"),
            Kind::ApacheEvent | Kind::ApachePrefork => ("apache2", "apt-get install apache2"),
            Kind::Lighttpd => ("lighttpd", "apt-get install lighttpd"),
            Kind::H2o => ("h2o", "apt-get install h2o"),
            Kind::Floor | Kind::Null | Kind::Command => ("", ""),
        }
    }

    /// Returns the default configuration template.
    fn config(self) -> &'static str {
        match self {
            Kind::Nginx => include_str!("subject/nginx.conf"),
            Kind::ApacheEvent => include_str!("subject/apache-event.conf"),
            Kind::ApachePrefork => include_str!("subject/apache-prefork.conf"),
            Kind::Lighttpd => include_str!("subject/lighttpd.conf"),
            Kind::H2o => include_str!("subject/h2o.conf"),
            Kind::Amped => include_str!("subject/amped.toml"),
            Kind::Floor | Kind::Null | Kind::Command => "",
        }
    }

    /// Returns the arguments, without the program.
    fn words(self) -> &'static [&'static str] {
        match self {
            Kind::Amped => &["serve", "@site@", "--listen", "@address@:@port@", "--metrics-file", "@metrics@"],
            Kind::Nginx => &["-e", "stderr", "-p", "@run@", "-c", "@config@"],
            Kind::ApacheEvent | Kind::ApachePrefork => &["-D", "FOREGROUND", "-f", "@config@"],
            Kind::Lighttpd => &["-D", "-f", "@config@"],
            Kind::H2o => &["-c", "@config@"],
            Kind::Floor => &["floor-server", "@address@:@port@", "@replies@"],
            Kind::Null => &["null-server", "@address@:@port@"],
            Kind::Command => &[],
        }
    }
}

/// The settings that a configuration and command line accept.
#[derive(Clone, Debug)]
pub(crate) enum Template {
    /// Every setting is a flag of the program, which reports unknown ones itself.
    Flags,
    /// Only these settings.
    Names(BTreeSet<String>),
}

/// Placeholders that the runner fills in.
const OWN: [&str; 16] = [
    "port",
    "address",
    "site",
    "run",
    "config",
    "metrics",
    "replies",
    "as-root",
    "tls",
    "tls-port",
    "tls-certificate",
    "tls-key",
    "http2",
    "h2c",
    "h2c-port",
    "origin",
];

impl Template {
    /// Returns the settings that a kind accepts. `config`, if not empty, replaces the kind's own template.
    pub(crate) fn of(kind: Kind, config: &str, start: &[String]) -> Template {
        // The floor server replays another server's responses, regardless of settings.
        if matches!(kind, Kind::Amped | Kind::Floor) {
            return Template::Flags;
        }
        Template::Names(Template::names(kind, config, start))
    }

    /// Collects the settings that have a placeholder.
    fn names(kind: Kind, config: &str, start: &[String]) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let text = if config.is_empty() { kind.config() } else { config };
        let mut note = |line: &str| {
            let (condition, rest) = condition(line);
            if condition.is_none() && is_comment(line) {
                return;
            }
            names.extend(condition.map(str::to_owned));
            let _ = places(rest, |name, _| {
                names.insert(name.to_owned());
                Some(String::new())
            });
        };
        text.lines().for_each(&mut note);
        start.iter().for_each(|word| note(word));
        names.retain(|name| !OWN.contains(&name.as_str()));
        names
    }

    /// Checks that a setting is accepted.
    ///
    /// # Errors
    /// If it is not: the settings that are.
    pub(crate) fn check(&self, name: &str) -> Result<(), String> {
        match self {
            Template::Names(names) if !names.contains(name) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                Err(if names.is_empty() {
                    "it has no settings".to_owned()
                } else {
                    format!("it has: {}", names.join(", "))
                })
            }
            Template::Names(_) | Template::Flags => Ok(()),
        }
    }
}

/// Splits `#name#rest`: a line that is used only if the setting is true.
fn condition(line: &str) -> (Option<&str>, &str) {
    let found = || {
        let (name, rest) = line.trim_start().strip_prefix('#')?.split_once('#')?;
        is_name(name).then_some((name, rest))
    };
    found().map_or((None, line), |(name, rest)| (Some(name), rest))
}

/// Placeholders in comments are only mentioned, and are not filled in.
fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// Fills in the placeholders of a line: `value` is called with the name and the default of each.
///
/// # Errors
/// The name of a placeholder without a value.
fn places(line: &str, mut value: impl FnMut(&str, Option<&str>) -> Option<String>) -> Result<String, String> {
    let (mut text, mut rest) = (String::new(), line);
    while let Some((before, behind)) = rest.split_once('@') {
        text += before;
        let place = behind
            .split_once('@')
            .map(|(place, rest)| (place.split_once('=').map_or((place, None), |(n, v)| (n, Some(v))), rest));
        match place {
            Some(((name, default), after)) if is_name(name) => {
                text += &value(name, default).ok_or_else(|| name.to_owned())?;
                rest = after;
            }
            // A literal `@`.
            _ => {
                text.push('@');
                rest = behind;
            }
        }
    }
    Ok(text + rest)
}

/// Addresses and paths for one start of a server.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Address to listen on.
    pub(crate) address: SocketAddr,
    /// Directory of the files to serve.
    pub(crate) site: PathBuf,
    /// Working directory of the server, removed afterwards.
    pub(crate) run: PathBuf,
    /// File in memory for the server's metrics.
    pub(crate) metrics: PathBuf,
    /// File of recorded responses, for the floor server.
    pub(crate) replies: Option<PathBuf>,
    /// Whether the server is started as root.
    pub(crate) is_root: bool,
    /// Its certificate, if it also listens with TLS ([`tls_address`]).
    pub(crate) tls: Option<Certificate>,
    /// Whether it is loaded with HTTP/2; without TLS, at the port that TLS would have.
    pub(crate) http2: bool,
    /// Address of the server that it gets the files from, if there is one.
    pub(crate) origin: Option<SocketAddr>,
}

/// Command line and configuration of a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Start {
    /// Program and arguments.
    pub(crate) words: Vec<String>,
    /// Configuration text, empty if there is none. It is written to `config` in the run's directory.
    pub(crate) config: String,
}

/// A server under test, as its table in the experiment file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(crate) struct Subject {
    /// Name in the experiment; if empty, that of its kind.
    #[serde(default)]
    pub(crate) name: String,
    /// Kind, which determines how it is started.
    pub(crate) kind: Kind,
    /// Path of the program, instead of the default lookup.
    pub(crate) program: Option<PathBuf>,
    /// For [`Kind::Command`]: the program and its arguments.
    #[serde(default)]
    pub(crate) start: Vec<String>,
    /// Configuration template; empty for the kind's own. In the file also the template's path.
    #[serde(default)]
    pub(crate) config: String,
    /// Values for the placeholders.
    #[serde(default, deserialize_with = "scalars")]
    pub(crate) settings: BTreeMap<String, String>,
    /// Whether the experiment skips this server if its program is missing.
    #[serde(default, rename = "optional")]
    pub(crate) is_optional: bool,
}

impl Subject {
    /// Returns the null server, which needs only this program.
    pub(crate) fn null() -> Subject {
        Subject::of(Kind::Null)
    }

    /// Returns a server of this kind, with its defaults.
    pub(crate) fn of(kind: Kind) -> Subject {
        Subject {
            name: kind.name().to_owned(),
            kind,
            program: None,
            start: Vec::new(),
            config: String::new(),
            settings: BTreeMap::new(),
            is_optional: false,
        }
    }

    /// Builds the command line and configuration.
    ///
    /// # Errors
    /// If the program is missing, or a placeholder of the user's has no value.
    pub(crate) fn start(&self, place: &Place) -> Result<Start, Failure> {
        let own = |name: &str| {
            Some(match name {
                "port" => place.address.port().to_string(),
                "address" => place.address.ip().to_string(),
                "site" => place.site.display().to_string(),
                "run" => place.run.display().to_string(),
                "config" => place.run.join("config").display().to_string(),
                "metrics" => place.metrics.display().to_string(),
                "replies" => place.replies.as_ref()?.display().to_string(),
                "as-root" => place.is_root.to_string(),
                "tls" => place.tls.is_some().to_string(),
                "tls-port" | "h2c-port" => tls_address(place.address).port().to_string(),
                "http2" => place.http2.to_string(),
                "h2c" => (place.http2 && place.tls.is_none()).to_string(),
                "tls-certificate" => place.tls.as_ref()?.chain.display().to_string(),
                "tls-key" => place.tls.as_ref()?.key.display().to_string(),
                "origin" => place.origin?.to_string(),
                _ => return None,
            })
        };
        let own_value = |name: &str, _: Option<&str>| own(name);
        let value = |name: &str, default: Option<&str>| {
            own(name).or_else(|| self.settings.get(name).cloned()).or_else(|| default.map(str::to_owned))
        };
        let no_value = |name: String| {
            Failure::usage(format!(
                "{}: the setting {name:?} has no value; set one: settings = {{ {name} = ... }}",
                self.name
            ))
        };
        let program = self.program()?.display().to_string();
        let given: Vec<&str> = match self.kind {
            Kind::Command => self.start.iter().skip(1).map(String::as_str).collect(),
            kind => kind.words().to_vec(),
        };
        let mut words = vec![program];
        // As a flag, the directory of the files would replace the root in the configuration.
        let is_local = |word: &&str| self.kind != Kind::Amped || place.origin.is_none() || *word != "@site@";
        for word in given.into_iter().filter(is_local) {
            words.push(places(word, value).map_err(no_value)?);
        }
        let template = self.template();
        let mut config = String::new();
        for line in template.lines() {
            let (condition, rest) = condition(line);
            if condition.is_none() && is_comment(line) {
                config += line;
            } else if condition.is_none_or(|name| value(name, None).as_deref() == Some("true")) {
                config += &places(rest, value).map_err(no_value)?;
            } else {
                continue;
            }
            config.push('\n');
        }
        if self.kind == Kind::Amped {
            if place.tls.is_some() || place.http2 {
                let option = if place.tls.is_some() { " tls" } else { "" };
                words.extend(["--listen".to_owned(), format!("{}{option}", tls_address(place.address))]);
            }
            if !config.is_empty() {
                words.extend(["--config".to_owned(), place.run.join("config").display().to_string()]);
            }
            let in_config = Template::names(self.kind, &self.config, &[]);
            for (name, value) in self.settings.iter().filter(|(name, _)| !in_config.contains(*name)) {
                match value.as_str() {
                    "false" => {}
                    "true" => words.push(format!("--{name}")),
                    text => words.extend([format!("--{name}"), places(text, own_value).map_err(no_value)?]),
                }
            }
        }
        Ok(Start { words, config })
    }

    /// The template of its configuration.
    fn template(&self) -> &str {
        if self.config.is_empty() { self.kind.config() } else { &self.config }
    }

    /// Whether it can listen with TLS: its configuration or its command line has a place for the certificate.
    pub(crate) fn has_tls(&self) -> bool {
        self.has_place("@tls-certificate@")
    }

    /// Whether it may speak HTTP/2, with or without TLS: its kind does, and without TLS it has a place for the port. A run
    /// shows whether the program does.
    pub(crate) fn has_http2(&self, with_tls: bool) -> bool {
        match self.kind {
            Kind::ApachePrefork | Kind::Floor | Kind::Null => false,
            Kind::Amped => true,
            Kind::Nginx | Kind::ApacheEvent | Kind::Lighttpd | Kind::H2o | Kind::Command => {
                with_tls || self.has_place("@h2c-port@")
            }
        }
    }

    /// Whether it gets the files from another server.
    pub(crate) fn has_origin(&self) -> bool {
        self.has_place("@origin@")
    }

    /// Whether its configuration or its command line has this placeholder.
    fn has_place(&self, place: &str) -> bool {
        self.template().lines().chain(self.start.iter().map(String::as_str)).any(|text| text.contains(place))
    }

    /// Finds the program.
    ///
    /// # Errors
    /// If it is missing; the message says how to install it.
    pub(crate) fn program(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.program {
            return find(&path.display().to_string())
                .ok_or_else(|| Failure::failed(format!("{}: program not found: {}", self.name, path.display())));
        }
        match self.kind {
            Kind::Null | Kind::Floor => own_program(),
            Kind::Command => {
                let name = self.start.first().map_or("", String::as_str);
                find(name).ok_or_else(|| Failure::failed(format!("{}: program not found: {name:?}", self.name)))
            }
            Kind::Amped => {
                // One cargo command builds both into the same directory.
                let beside = own_program()?.with_file_name("amped");
                if beside.exists() { Ok(beside) } else { self.found() }
            }
            _ => self.found(),
        }
    }

    fn found(&self) -> Result<PathBuf, Failure> {
        let (name, way_out) = self.kind.program();
        find(name).ok_or_else(|| {
            Failure::failed(format!(
                "{}: program not found: {name}; {way_out}, or set its path: program = \"/path/to/{name}\"",
                self.name
            ))
        })
    }

    /// Identifies the program, for the archive.
    ///
    /// # Errors
    /// Those of [`program`](Subject::program).
    pub(crate) fn identity(&self) -> Result<Program, Failure> {
        let flag = match self.kind {
            Kind::Nginx | Kind::ApacheEvent | Kind::ApachePrefork | Kind::Lighttpd => "-v",
            Kind::Amped | Kind::H2o | Kind::Floor | Kind::Null => "--version",
            // An unknown program might do anything with a flag.
            Kind::Command => "",
        };
        Ok(identity(&self.program()?, flag))
    }
}

/// Returns the path of this program.
///
/// # Errors
/// If `/proc` is not mounted.
pub(crate) fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(Failure::io("find the path of this program"))
}

/// Returns the commit of the sources in whose tree a program lies, with `-dirty` if they were changed; empty if there is none.
pub(crate) fn commit(program: &Path) -> String {
    let folder = program.parent().unwrap_or(program);
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(["describe", "--always", "--dirty", "--abbrev=10", "--match="]);
    let output = command.stdin(Stdio::null()).output().ok().filter(|output| output.status.success());
    output.map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns version and hash of a program; `flag` makes it print its version, and may be empty.
pub(crate) fn identity(path: &Path, flag: &str) -> Program {
    let first_line = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).lines().next().map(|line| line.trim().to_owned())
    };
    let version = if flag.is_empty() { None } else { first_line(Command::new(path).arg(flag)) };
    let hash = first_line(Command::new("sha256sum").arg(path));
    let hash = hash.and_then(|line| Some(line.split_whitespace().next()?.trim_start_matches('\\').to_owned()));
    Program { path: path.to_owned(), version: version.unwrap_or_default(), sha256: hash.unwrap_or_default() }
}

/// Finds a program by name. Debian installs servers in directories that are not in a normal user's PATH.
fn find(name: &str) -> Option<PathBuf> {
    if name.is_empty() {
        return None;
    }
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Requests a target once; returns the status and the bytes of the response, or `None` without a response.
pub(crate) fn ask(address: SocketAddr, target: &str) -> Option<(u16, Vec<u8>)> {
    let answer = Answer::fetch(address, target, &["Connection: close".to_owned()])?;
    Some((answer.status, [answer.head, answer.body].concat()))
}

/// A complete response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Status line and header fields, including the empty line at the end.
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Requests a target once with these header fields; `None` without a response.
    pub(crate) fn fetch(address: SocketAddr, target: &str, fields: &[String]) -> Option<Answer> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let mut connection = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        connection.set_read_timeout(Some(PATIENCE)).ok()?;
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n{fields}\r\n");
        connection.write_all(request.as_bytes()).ok()?;
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        while !is_whole(&bytes) && bytes.len() < 64 << 20 {
            // A read timeout also ends a response without a length on a connection that the server keeps open.
            match connection.read(&mut piece) {
                Ok(0) | Err(_) => break,
                Ok(count) => bytes.extend_from_slice(&piece[..count]),
            }
        }
        let status = bytes.strip_prefix(b"HTTP/1.")?.get(2..5)?;
        let status = std::str::from_utf8(status).ok()?.parse().ok()?;
        let body = bytes.split_off(head_length(&bytes).unwrap_or(bytes.len()));
        Some(Answer { status, head: bytes, body })
    }

    /// Returns the value of a header field.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        field(&self.head, name)
    }
}

/// Returns the length of the header section once it is complete.
fn head_length(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

fn field(head: &[u8], name: &str) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    let value = |line: &str| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    };
    head.lines().find_map(value)
}

/// Whether the response is complete, if it states its length (RFC 9112, 6.3).
fn is_whole(bytes: &[u8]) -> bool {
    let Some(head) = head_length(bytes) else { return false };
    let length = field(&bytes[..head], "Content-Length").and_then(|length| length.parse::<usize>().ok());
    bytes.get(9..12) == Some(b"304") || length.is_some_and(|length| bytes.len() >= head + length)
}

/// Returns nginx's count of requests (ngx_http_stub_status_module), including this one.
pub(crate) fn stub_status(address: SocketAddr) -> Option<u64> {
    let (status, answer) = ask(address, "/ammeter-status")?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    // "server accepts handled requests\n 4 4 3 \n"
    let line = text.split_once("requests\n")?.1.lines().next()?;
    let requests: u64 = line.split_whitespace().nth(2)?.parse().ok()?;
    (status == 200).then_some(requests)
}

/// Builds a subject with these settings, for tests.
#[cfg(test)]
fn subject(kind: Kind, settings: &[(&str, &str)]) -> Subject {
    Subject {
        name: kind.name().to_owned(),
        kind,
        program: Some(PathBuf::from("/bin/true")),
        start: Vec::new(),
        config: String::new(),
        settings: settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        is_optional: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        let address = "127.0.0.1:8080".parse().unwrap();
        let (site, run, metrics, replies) = ("/s".into(), "/r".into(), "/m".into(), Some("/replies".into()));
        Place { address, site, run, metrics, replies, is_root: true, tls: None, http2: false, origin: None }
    }

    #[test]
    fn settings_fill_placeholders() {
        let start = subject(Kind::Nginx, &[("workers", "2"), ("log", "true")]).start(&place()).unwrap();
        assert_eq!(start.words, ["/bin/true", "-e", "stderr", "-p", "/r", "-c", "/r/config"]);
        for line in [
            "worker_processes 2;",
            "    listen 127.0.0.1:8080 backlog=4096;",
            "access_log /r/access.log combined buffer=64k flush=1s;",
            "user root;",
        ] {
            assert!(start.config.contains(line), "{line}\n{}", start.config);
        }
        assert!(
            !start.config.contains("aio threads")
                && !start.config.lines().any(|line| !line.starts_with('#') && line.contains('@'))
        );
        let without = subject(Kind::Nginx, &[]).start(&place()).unwrap();
        assert!(!without.config.contains("access.log"));
        let amped = subject(
            Kind::Amped,
            &[("access-log", "@run@/log"), ("architecture", "mp"), ("listing", "true"), ("x", "false")],
        )
        .start(&place())
        .unwrap();
        assert_eq!(
            amped.words[2..].join(" "),
            "/s --listen 127.0.0.1:8080 --metrics-file /m --access-log /r/log --architecture mp --listing"
        );
        let config = "#log#log.access = \"@run@/log\"\n".to_owned();
        let amped = Subject { config, ..subject(Kind::Amped, &[("log", "true"), ("workers", "2")]) };
        let start = amped.start(&place()).unwrap();
        assert_eq!(start.config, "log.access = \"/r/log\"\n");
        assert!(start.words.join(" ").ends_with("/m --config /r/config --workers 2"), "{:?}", start.words);
    }

    #[test]
    fn every_kind_of_server_has_complete_configuration() {
        let kinds = [Kind::Nginx, Kind::ApacheEvent, Kind::ApachePrefork, Kind::Lighttpd, Kind::H2o, Kind::Amped];
        let certificate = Certificate { chain: "/r/certificate.pem".into(), key: "/r/key.pem".into() };
        let with_tls = Place { tls: Some(certificate), ..place() };
        for kind in kinds {
            let subject = subject(kind, &[]);
            let Start { config, words } = subject.start(&with_tls).unwrap();
            assert!(
                subject.has_tls() && config.contains("/r/certificate.pem") && config.contains("/r/key.pem"),
                "{config}"
            );
            assert!(config.contains("8081") || words.contains(&"127.0.0.1:8081 tls".to_owned()), "{config}");
            assert!(!subject.start(&place()).unwrap().config.contains("certificate.pem"));
            let Start { config, words } = subject.start(&Place { http2: true, ..place() }).unwrap();
            let has_port = config.contains("8081") || words.contains(&"127.0.0.1:8081".to_owned());
            assert_eq!((has_port, subject.has_http2(false)), (kind != Kind::ApachePrefork, has_port), "{config}");
        }
        for kind in kinds.into_iter().chain([Kind::Floor, Kind::Null]) {
            let Start { config, .. } = subject(kind, &[]).start(&place()).unwrap();
            assert!(
                config.lines().all(|line| line.trim_start().starts_with('#') || !line.contains('@')),
                "{kind:?}\n{config}"
            );
        }
    }

    #[test]
    fn setting_without_placeholder_is_rejected_with_list() {
        let nginx = Template::of(Kind::Nginx, "", &[]);
        assert!(nginx.check("log").is_ok() && nginx.check("workers").is_ok());
        for none in ["port", "logg", "as-root"] {
            let way = nginx.check(none).unwrap_err();
            assert!(way.contains("open-file-cache") && !way.contains("as-root"), "{way}");
        }
        assert!(Template::of(Kind::Amped, "", &[]).check("anything").is_ok());
        let start = ["prog".to_owned(), "--backlog".to_owned(), "@backlog@".to_owned()];
        let own = Template::of(Kind::Command, "", &start);
        assert!(own.check("backlog").is_ok() && own.check("x").unwrap_err() == "it has: backlog");
        let command = Subject { start: start.to_vec(), kind: Kind::Command, ..subject(Kind::Command, &[]) };
        let failure = command.start(&place()).unwrap_err().to_string();
        assert!(failure.contains("backlog = ..."), "{failure}");
    }

    #[test]
    fn other_at_signs_are_kept() {
        let put = |line: &str| places(line, |name, value| Some(format!("<{name}:{}>", value.unwrap_or("-"))));
        let check = |line: &str, expected: &str| assert_eq!(put(line).as_deref(), Ok(expected), "{line}");
        check("a@b.c, d@e", "a@b.c, d@e");
        check("@a@ @b-c=1 2=3@", "<a:-> <b-c:1 2=3>");
        check("me@here.org @port@", "me@here.org <port:->");
        check("@", "@");
        assert_eq!(places("@a@", |_, _| None), Err("a".to_owned()));
    }
}
