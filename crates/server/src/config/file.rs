//! The configuration file as it was typed: TOML into structs, every key optional.
//!
//! Only shape is judged here: is the key known, is the value of the right kind. What values mean, and whether they fit
//! each other and the machine, is for `checked`, which needs the place of each: hence [`Key`]. serde's `flatten` and
//! `untagged` are not used anywhere, because what passes through them loses its place.
//!
//! serde stops at the first mistake, and an administrator wants all of them. So the text is first read into a tree of
//! values that know their places; when serde refuses one, that one is noted, taken out of the tree, and the rest is
//! read again (`read`). Each round takes something out, so the rounds end.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use amped_core::site::{EtagForm, Symlinks};
use amped_http::negotiate::Coding;
use amped_units::Bytes;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, de::DeserializeOwned};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::error::{Findings, Source};
use super::optimise::Optimisation;
use super::settings::{Architecture, ContentMode, HelperKind, LogFormat, Residency};

/// A key that may be absent, and where its value stands.
pub type Key<T> = Option<Spanned<T>>;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct File {
    /// Addresses and ports, `ADDR:PORT`.
    pub listen: Key<Vec<Spanned<String>>>,
    /// Who waits for what.
    pub architecture: Option<Architecture>,
    /// Event loops.
    pub workers: Key<usize>,
    /// User to become.
    pub user: Key<String>,
    /// Group to become.
    pub group: Key<String>,
    /// Short for a first site with nothing but a root.
    pub root: Key<String>,
    /// `[helpers]`
    pub helpers: Helpers,
    /// `[log]`
    pub log: Log,
    /// `[limits]`
    pub limits: Limits,
    /// `[cache]`
    pub cache: Cache,
    /// `[optimise]`
    pub optimise: Optimise,
    /// `[send]`
    pub send: Send,
    /// `[spool]`
    pub spool: Spool,
    /// `[control]`
    pub control: Control,
    /// `[metrics]`
    pub metrics: Metrics,
    /// `[stop]`
    pub stop: Stop,
    /// `[[site]]`, the first is the default one.
    pub site: Vec<Spanned<Site>>,
}

/// `[helpers]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Helpers {
    /// What they are.
    pub kind: Option<HelperKind>,
    /// Most of them.
    pub max: Key<usize>,
    /// Those that stay when there is nothing to do.
    pub min_spare: Key<usize>,
    /// Longest queue before them.
    pub max_queue: Key<usize>,
    /// An idle one ends after this.
    pub idle_timeout: Key<Lasting>,
}

/// `[log]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Log {
    /// `-`, `off` or a path.
    pub access: Key<String>,
    /// Form of a line.
    pub format: Option<LogFormat>,
    /// Bytes that are gathered before a write.
    pub buffer: Key<Size>,
    /// Longest time that a line is gathered.
    pub flush: Key<Lasting>,
    /// Whether clients are called by their names.
    pub hostnames: Option<bool>,
    /// Longest time that a line waits for the name.
    pub hostname_timeout: Key<Lasting>,
    /// Names that are kept.
    pub hostname_entries: Key<usize>,
    /// A name is believed this long.
    pub hostname_ttl: Key<Lasting>,
    /// That there is none is believed this long.
    pub hostname_negative_ttl: Key<Lasting>,
}

/// `[spool]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Spool {
    /// Directory of the files.
    pub directory: Key<String>,
    /// Most bytes in them.
    pub max_bytes: Key<Size>,
}

/// `[limits]`: the fields of core's `Limits`, by the same names, and `connections`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
#[allow(missing_docs, reason = "core's Limits says what each means")]
pub struct Limits {
    pub max_connections: Key<usize>,
    pub max_request_line_bytes: Key<Size>,
    pub max_header_bytes: Key<Size>,
    pub max_header_fields: Key<usize>,
    pub max_body_bytes: Key<Size>,
    pub header_timeout: Key<Lasting>,
    pub body_timeout: Key<Lasting>,
    pub min_body_rate: Key<Size>,
    pub body_total_timeout: Key<Lasting>,
    pub idle_timeout: Key<Lasting>,
    pub send_timeout: Key<Lasting>,
    pub disk_timeout: Key<Lasting>,
    pub linger_timeout: Key<Lasting>,
    pub max_requests: Key<u32>,
    /// Wrong passwords from one address within a minute; 0: no limit.
    pub max_password_attempts: Key<u32>,
    pub max_ranges: Key<usize>,
    pub max_pipelined: Key<usize>,
}

/// `[cache]`: the fields of core's `Budgets`, by the same names, and `mapped_bytes`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
#[allow(missing_docs, reason = "core's Budgets says what each means")]
pub struct Cache {
    pub uri_entries: Key<usize>,
    pub path_entries: Key<usize>,
    pub negotiation_entries: Key<usize>,
    pub head_bytes: Key<Size>,
    pub content_bytes: Key<Size>,
    pub max_content_file_bytes: Key<Size>,
    pub max_unpacked_file_bytes: Key<Size>,
    pub descriptors: Key<usize>,
    pub mapped_bytes: Key<Size>,
    pub revalidate: Key<Lasting>,
    pub max_stale: Key<Lasting>,
    pub shared: Option<bool>,
    pub watch: Option<bool>,
}

/// `[optimise]`: the switches, by the names of [`Optimisation`].
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
#[allow(missing_docs, reason = "`Optimisation` says what each means")]
pub struct Optimise {
    pub path_cache: Option<bool>,
    pub header_cache: Option<bool>,
    pub content_cache: Option<bool>,
    pub file_state_cache: Option<bool>,
    pub uri_cache: Option<bool>,
    pub string_caches: Option<bool>,
    pub delayed_log: Option<bool>,
    pub dns_cache: Option<bool>,
    pub ready_headers: Option<bool>,
    pub made_pages: Option<bool>,
    pub sendfile: Option<bool>,
    pub header_alignment: Option<bool>,
}

impl Optimise {
    /// Each switch and what is said of it.
    pub(super) fn switches(&self) -> [(Optimisation, Option<bool>); 12] {
        use Optimisation as O;
        [
            (O::PathCache, self.path_cache),
            (O::HeaderCache, self.header_cache),
            (O::ContentCache, self.content_cache),
            (O::FileStateCache, self.file_state_cache),
            (O::UriCache, self.uri_cache),
            (O::StringCaches, self.string_caches),
            (O::DelayedLog, self.delayed_log),
            (O::DnsCache, self.dns_cache),
            (O::ReadyHeaders, self.ready_headers),
            (O::MadePages, self.made_pages),
            (O::Sendfile, self.sendfile),
            (O::HeaderAlignment, self.header_alignment),
        ]
    }
}

/// `[send]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Send {
    /// A file that has not changed for so long is lent to sockets.
    pub sendfile_min_age: Key<Lasting>,
    /// How the loop finds out what is in memory.
    pub residency: Option<Residency>,
    /// Where bodies are sent from.
    pub content: Option<ContentMode>,
}

/// `[control]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Control {
    /// Where `amped preload` reaches the server.
    pub socket: Key<String>,
}

/// `[metrics]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Metrics {
    /// Where what is counted is published.
    pub file: Key<String>,
    /// Where it is asked for, `ADDR:PORT`.
    pub listen: Key<String>,
    /// Whether other machines may ask.
    pub public: Option<bool>,
}

/// `[stop]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Stop {
    /// Replies under way have this long to end.
    pub deadline: Key<Lasting>,
}

/// `[[site]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Site {
    /// Names it answers to.
    pub hosts: Vec<Spanned<String>>,
    /// The folder it serves.
    pub root: Key<String>,
    /// Names that stand for a folder.
    pub index: Option<Vec<Spanned<String>>>,
    /// Whether folders without one are listed.
    pub listing: Option<bool>,
    /// Whether names that begin with a dot are served.
    pub dotfiles: Option<bool>,
    /// Codings of siblings.
    pub precompressed: Option<Vec<Spanned<CodingName>>>,
    /// Folder in a user's home.
    pub user_dirs: Key<String>,
    /// Charset of text types.
    pub charset: Key<String>,
    /// Type of files that no ending tells.
    pub default_type: Key<String>,
    /// What a validator is made of.
    pub etag: Option<EtagName>,
    /// Which symbolic links are followed.
    pub symlinks: Key<SymlinksName>,
    /// Ending and media type.
    pub types: BTreeMap<Spanned<String>, Spanned<String>>,
    /// Status and page.
    pub errors: BTreeMap<Spanned<String>, Spanned<String>>,
    /// Headers by pattern.
    pub headers: Vec<Spanned<Headers>>,
    /// Pages of other origins that may read what is here.
    pub cors: Vec<Spanned<Cors>>,
    /// Names that stand for others.
    pub route: Vec<Spanned<Route>>,
    /// Files in place of what is missing.
    pub fallback: Vec<Spanned<Fallback>>,
    /// Folders that want a password.
    pub auth: Vec<Spanned<Auth>>,
    /// Documents in variants, by pattern.
    pub negotiation: Vec<Spanned<Negotiation>>,
    /// Applications by pattern.
    pub app: Vec<Spanned<App>>,
}

/// `[[site.app]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct App {
    /// Which paths are its scripts.
    #[serde(rename = "match")]
    pub pattern: Key<String>,
    /// Whether each request gets a process of the script that it names.
    pub cgi: Key<bool>,
    /// Where one that lives on listens: `unix:PATH` or `ADDR:PORT`.
    pub fastcgi: Key<String>,
    /// The program, and its arguments, that is started here and lives on.
    pub command: Key<Vec<Spanned<String>>>,
    /// Whether its scripts are files of the site.
    pub files: Option<bool>,
    /// Of these, kept when there is nothing to do.
    pub min_spare: Key<usize>,
    /// It may do nothing for so long.
    pub timeout: Key<Lasting>,
    /// Longest body of a request.
    pub max_body_bytes: Key<Size>,
    /// Longest response.
    pub max_response_bytes: Key<Size>,
    /// Whether requests are whole before it gets them.
    pub buffer_request: Option<bool>,
    /// Whether responses are read further than clients have taken them.
    pub buffer_response: Option<bool>,
    /// Its answers are kept where they may be, for so long if they do not say for how long.
    pub cache: Key<Lasting>,
    /// Most of them at a time.
    pub max_processes: Key<usize>,
    /// Requests that may wait for one.
    pub max_queue: Key<usize>,
    /// Variables that it gets besides.
    pub env: BTreeMap<Spanned<String>, Spanned<String>>,
}

/// `[[site.headers]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Headers {
    /// Which paths.
    #[serde(rename = "match")]
    pub pattern: Key<String>,
    /// Value of Cache-Control.
    pub cache_control: Key<String>,
    /// Name and value.
    pub set: BTreeMap<Spanned<String>, Spanned<String>>,
}

/// `[[site.cors]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Cors {
    /// Which paths.
    #[serde(rename = "match")]
    pub pattern: Key<String>,
    /// Origins, or `*`.
    pub origins: Vec<Spanned<String>>,
    /// Methods that their pages may use.
    pub methods: Option<Vec<Spanned<String>>>,
    /// Fields that they may send.
    pub headers: Vec<Spanned<String>>,
    /// Fields that they may read.
    pub expose: Vec<Spanned<String>>,
    /// Whether what the browser knows of the user may go along.
    pub credentials: Key<bool>,
    /// For how long a browser may keep what it was told.
    pub max_age: Key<Lasting>,
}

/// `[[site.route]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Route {
    /// Which paths.
    #[serde(rename = "match")]
    pub pattern: Key<String>,
    /// Where the client is sent.
    pub redirect: Key<String>,
    /// Which path is meant.
    pub rewrite: Key<String>,
    /// Whether nobody gets it.
    pub deny: Key<bool>,
    /// The body of a fixed response.
    pub respond: Key<String>,
    /// Whether clients do not get it, and rewrites, fallbacks and applications do.
    pub internal: Key<bool>,
    /// The status of a redirect, a refusal or a fixed response.
    pub status: Key<u16>,
    /// Names and values of fields of a fixed response.
    pub headers: BTreeMap<Spanned<String>, Spanned<String>>,
}

/// `[[site.fallback]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Fallback {
    /// The folder in which it serves.
    pub folder: Key<String>,
    /// The file that does.
    pub file: Key<String>,
}

/// `[[site.auth]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Auth {
    /// The folder, as it is asked for.
    pub folder: Key<String>,
    /// What clients are told that they need a password for.
    pub realm: Key<String>,
    /// The file of names and passwords.
    pub accounts: Key<String>,
}

/// `[[site.negotiation]]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Negotiation {
    /// Which paths, as they are asked for.
    #[serde(rename = "match")]
    pub pattern: Key<String>,
    /// Endings that are languages.
    pub languages: Vec<Spanned<String>>,
    /// Endings that are charsets.
    pub charsets: Vec<Spanned<String>>,
    /// What those get to whom several variants are equally good.
    pub ambiguous: Option<Ambiguous>,
    /// What those get who accept none.
    pub unacceptable: Option<Unacceptable>,
}

/// What a client gets to whom several variants are equally good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Ambiguous {
    /// The first of them.
    #[serde(rename = "first")]
    First,
    /// A list of all.
    #[serde(rename = "300")]
    List,
}

/// What a client gets that accepts no variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Unacceptable {
    /// The one that comes nearest.
    #[serde(rename = "first")]
    First,
    /// A list of all, as an error.
    #[serde(rename = "406")]
    Refuse,
}

/// How the file names a content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs, reason = "the names are the ones of the Content-Encoding header")]
pub enum CodingName {
    #[serde(rename = "br")]
    Brotli,
    #[serde(rename = "zstd")]
    Zstd,
    #[serde(rename = "gzip")]
    Gzip,
}

impl From<CodingName> for Coding {
    fn from(name: CodingName) -> Coding {
        match name {
            CodingName::Brotli => Coding::Brotli,
            CodingName::Zstd => Coding::Zstd,
            CodingName::Gzip => Coding::Gzip,
        }
    }
}

/// How the file names core's `EtagForm`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "core's EtagForm says what each means")]
pub enum EtagName {
    Full,
    Portable,
}

impl From<EtagName> for EtagForm {
    fn from(name: EtagName) -> EtagForm {
        match name {
            EtagName::Full => EtagForm::Full,
            EtagName::Portable => EtagForm::Portable,
        }
    }
}

/// How the file names core's `Symlinks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "core's Symlinks says what each means")]
pub enum SymlinksName {
    Within,
    Owner,
    Any,
    None,
}

impl From<SymlinksName> for Symlinks {
    fn from(name: SymlinksName) -> Symlinks {
        match name {
            SymlinksName::Within => Symlinks::Within,
            SymlinksName::Owner => Symlinks::Owner,
            SymlinksName::Any => Symlinks::Any,
            SymlinksName::None => Symlinks::None,
        }
    }
}

/// An amount of bytes: `"64KiB"` or an integer.
#[derive(Clone, Copy, Debug)]
pub struct Size(Bytes);

impl From<Size> for Bytes {
    fn from(size: Size) -> Bytes {
        size.0
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount of bytes such as \"64KiB\", \"10MB\" or 512")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map(Size).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Size, E> {
                let n = u64::try_from(n).map_err(|_| E::invalid_value(de::Unexpected::Signed(n), &self))?;
                Ok(Size(Bytes(n)))
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Size, E> {
                Ok(Size(Bytes(n)))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A length of time: `"500ms"`, `"1s"`, `"2m"`, `"1h"`.
#[derive(Clone, Copy, Debug)]
pub struct Lasting(Duration);

impl From<Lasting> for Duration {
    fn from(lasting: Lasting) -> Duration {
        lasting.0
    }
}

/// Milliseconds in each unit; the larger one first, so that `print` finds the largest that fits.
pub(super) const TIME_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

impl<'de> Deserialize<'de> for Lasting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lasting, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Lasting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"500ms\", \"10s\", \"2m\" or \"1h\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Lasting, E> {
                let wrong = || E::invalid_value(de::Unexpected::Str(text), &self);
                let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
                let (_, scale) = TIME_UNITS.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(wrong)?;
                let number: u64 = number.parse().map_err(|_| wrong())?;
                number.checked_mul(*scale).map(|ms| Lasting(Duration::from_millis(ms))).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Reads a file, noting what is wrong with its shape. What was wrong is missing in the result.
pub(super) fn read(source: &Source, findings: &mut Findings) -> File {
    let Some(mut tree) = grammar(&source.text, findings) else { return File::default() };
    refuse_homeless(&source.text, tree.get_mut(), findings);
    loop {
        let fault = match File::deserialize(toml::de::Deserializer::from(tree.clone())) {
            Ok(file) => return file,
            Err(fault) => fault,
        };
        let span = fault.span().unwrap_or(0..0);
        let Some(place) = set_aside(tree.get_mut(), &span) else {
            findings.at(span, fault.message(), "");
            return File::default();
        };
        let (message, help) = explain(fault.message(), &place);
        findings.at(span, message, help);
    }
}

/// Of a site's table above the first `[[site]]`, such as `[[site.app]]`, TOML makes a table `site` that is no list; what is
/// wrong with it then would be told of everything in it.
fn refuse_homeless(text: &str, tree: &mut DeTable<'_>, findings: &mut Findings) {
    let Some((key, value)) = tree.iter().find(|(key, _)| key.get_ref() == "site") else { return };
    let rest = &text[key.span().end..];
    if !matches!(value.get_ref(), DeValue::Table(_)) || !rest.trim_start().starts_with('.') {
        return;
    }
    let line = text[key.span().start..].lines().next().unwrap_or_default();
    let name = line.split([']', '=', '#']).next().unwrap_or_default().trim();
    let message = format!("`{name}` is of no site: there is no `[[site]]` above it");
    findings.at(
        key.span().start..key.span().start + name.len(),
        message,
        "write `[[site]]`, with its `root`, above it",
    );
    let key = key.clone();
    tree.remove(&key);
}

/// The tree of a text that is TOML; else its faults are noted. No tree is made then: with a bracket missing it would be
/// a guess, and complaints about its keys would hide the one that matters.
fn grammar<'a>(text: &'a str, findings: &mut Findings) -> Option<Spanned<DeTable<'a>>> {
    // Enough for what a person writes. Another kind of file, given by mistake, has a fault in every line.
    const FAULTS_MAX: usize = 10;
    let (tree, mut faults) = DeTable::parse_recoverable(text);
    if faults.is_empty() {
        return Some(tree);
    }
    // toml goes on behind a fault, but one open bracket then brings a complaint about every line that follows. So only
    // the first is believed, its line is made blank, and the rest is read again.
    let mut rest = text.to_owned();
    for _ in 0..FAULTS_MAX {
        let Some(fault) = faults.iter().min_by_key(|fault| fault.span().map_or(0, |span| span.start)) else { break };
        let span = fault.span().unwrap_or(0..0);
        let is_double = fault.message() == "duplicate key";
        if is_double && text[..span.start].ends_with("[[") && text.get(span.clone()) == Some("site") {
            // Above it there was one, of what belongs to it.
            let help = "write it above the first table that belongs to it, such as `[[site.app]]` or `[site.types]`";
            findings.at(span.clone(), "this `[[site]]` stands below a table of a site", help);
        } else {
            findings.at(span.clone(), fault.message(), if is_double { "take one of them out" } else { "" });
        }
        let start = rest.get(..span.start)?.rfind('\n').map_or(0, |end| end + 1);
        let end = rest.get(start..)?.find('\n').map_or(rest.len(), |length| start + length);
        let unclosed = ["unclosed array", "unclosed inline table"];
        if unclosed.iter().any(|text| fault.message().starts_with(text)) {
            // Where it should end nobody knows, so nothing behind it can be judged.
            findings.forget_behind(span.start);
            break;
        }
        if rest[start..end].trim().is_empty() {
            break;
        }
        rest.replace_range(start..end, &" ".repeat(end - start));
        faults = DeTable::parse_recoverable(&rest).1;
    }
    None
}

/// A step on the way to a value.
#[derive(Debug, PartialEq)]
enum Step {
    Key(String),
    Element,
}

/// Takes the innermost entry that holds `span` out of the table, and says which it was.
fn set_aside(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<Vec<Step>> {
    for (key, value) in table.iter_mut() {
        if let Some(mut place) = set_aside_within(value.get_mut(), span) {
            place.insert(0, Step::Key(key.get_ref().to_string()));
            return Some(place);
        }
    }
    let holds = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    let key = table.iter().find(|(key, value)| holds(key.span()) || holds(value.span()))?.0.clone();
    table.remove(&key);
    Some(vec![Step::Key(key.into_inner().into_owned())])
}

fn set_aside_within(value: &mut DeValue<'_>, span: &Range<usize>) -> Option<Vec<Step>> {
    match value {
        DeValue::Table(table) => set_aside(table, span),
        DeValue::Array(array) => {
            for element in array.iter_mut() {
                if let Some(mut place) = set_aside_within(element.get_mut(), span) {
                    place.insert(0, Step::Element);
                    return Some(place);
                }
            }
            let holds = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
            let at = array.iter().position(|element| holds(element.span()))?;
            let mut number = 0..;
            let all = std::mem::replace(array, DeArray::new());
            *array = all.into_iter().filter(|_| number.next() != Some(at)).collect();
            Some(vec![Step::Element])
        }
        _ => None,
    }
}

/// Tables of which there may be several: each is written with two brackets each side.
const LISTED: [&str; 8] = ["site", "headers", "cors", "route", "fallback", "auth", "negotiation", "app"];

/// A complaint of serde in the words of someone who writes the file, and the way out.
fn explain(complaint: &str, place: &[Step]) -> (String, String) {
    let complaint = complaint.lines().next().unwrap_or_default();
    let keys: Vec<&str> =
        place.iter().filter_map(|step| if let Step::Key(key) = step { Some(&**key) } else { None }).collect();
    let key = *keys.last().expect("a place ends in an entry of a table");
    if complaint.starts_with("unknown field `") {
        let expected = expected_names(complaint);
        let table = match place {
            [Step::Key(_)] => "at the top level".to_owned(),
            [.., Step::Element, Step::Key(_)] => format!("in `[[{}]]`", keys[..keys.len() - 1].join(".")),
            _ => format!("in `[{}]`", keys[..keys.len() - 1].join(".")),
        };
        let help = match nearest(key, &expected) {
            Some(name) => format!("did you mean `{name}`?"),
            None => match tables().into_iter().find(|(_, keys)| keys.iter().any(|name| name == key)) {
                Some((home, _)) => format!("`{key}` belongs {home}"),
                None => format!("keys here are {}", expected.join(", ")),
            },
        };
        return (format!("unknown key `{key}` {table}"), help);
    }
    if let Some(rest) = complaint.strip_prefix("unknown variant `") {
        let given = rest.split("`, expected").next().unwrap_or_default();
        let expected = expected_names(complaint);
        let help = match nearest(given, &expected) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => {
                format!("write {}", expected.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" or "))
            }
        };
        return (format!("`{key}` cannot be \"{given}\""), help);
    }
    // What toml says of an enum that is no text.
    if complaint == "wanted string or table" {
        return (format!("`{key}` is not in quotes"), format!("write it as text: {key} = \"...\""));
    }
    let Some((found, expected)) = complaint.split_once(", expected ") else {
        return (format!("`{key}`: {complaint}"), String::new());
    };
    let found = found.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ");
    let found = match found {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        found => found.replacen("string \"", "\"", 1).replacen("integer `", "the number `", 1),
    };
    let expected = match expected {
        "a string" => "text in quotes",
        "a boolean" => "true or false, without quotes",
        "usize" | "u16" | "u32" | "u64" => "a whole number, without quotes",
        "a sequence" if LISTED.contains(&key) => "a list of tables",
        "a sequence" if found.starts_with('"') => &format!("a list: [{found}]"),
        "a sequence" => "a list such as [\"a\", \"b\"]",
        "a map" => "a table",
        other => other,
    };
    let help = match key {
        key if LISTED.contains(&key) => format!("write `[[{}]]`, with two brackets each side", keys.join(".")),
        _ => format!("write {expected}"),
    };
    (format!("`{key}` cannot be {found}"), help)
}

/// The names that serde lists: "expected one of `a`, `b`".
fn expected_names(complaint: &str) -> Vec<String> {
    let list = complaint.rsplit_once("`, expected ").map_or("", |(_, list)| list);
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The name that was probably meant. A third of its letters may be wrong, which lets `contnt_byts` find its way but
/// does not offer `user` for `index`; or it may be cut short or spelled out: `gz`, `maximum`.
fn nearest<'a>(given: &str, names: &'a [String]) -> Option<&'a str> {
    let given = given.to_lowercase().replace('-', "_");
    let distance = |name: &str| strsim::osa_distance(&given, name);
    let name = names.iter().min_by_key(|name| distance(name))?;
    if distance(name) <= (name.len() / 3).max(1) {
        return Some(name);
    }
    let part = |name: &&String| given.len() > 1 && (name.starts_with(&given) || given.starts_with(name.as_str()));
    names.iter().find(part).map(String::as_str)
}

/// Where each key belongs.
pub(super) fn tables() -> [(&'static str, Vec<String>); 19] {
    [
        ("at the top of the file, before the first `[table]`", keys_of::<File>()),
        ("in `[helpers]`", keys_of::<Helpers>()),
        ("in `[log]`", keys_of::<Log>()),
        ("in `[limits]`", keys_of::<Limits>()),
        ("in `[cache]`", keys_of::<Cache>()),
        ("in `[send]`", keys_of::<Send>()),
        ("in `[spool]`", keys_of::<Spool>()),
        ("in `[control]`", keys_of::<Control>()),
        ("in `[metrics]`", keys_of::<Metrics>()),
        ("in `[stop]`", keys_of::<Stop>()),
        ("in `[optimise]`", keys_of::<Optimise>()),
        ("in `[[site]]`", keys_of::<Site>()),
        ("in `[[site.headers]]`", keys_of::<Headers>()),
        ("in `[[site.cors]]`", keys_of::<Cors>()),
        ("in `[[site.route]]`", keys_of::<Route>()),
        ("in `[[site.fallback]]`", keys_of::<Fallback>()),
        ("in `[[site.auth]]`", keys_of::<Auth>()),
        ("in `[[site.negotiation]]`", keys_of::<Negotiation>()),
        ("in `[[site.app]]`", keys_of::<App>()),
    ]
}

/// The keys of a table. serde tells them only to someone who gets one wrong, so that is done.
fn keys_of<T: DeserializeOwned>() -> Vec<String> {
    let complaint = toml::from_str::<T>("'?' = 0").err().map(|error| error.message().to_owned());
    expected_names(&complaint.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_parsed() {
        #[derive(Deserialize)]
        struct Line {
            size: Option<Size>,
            time: Option<Lasting>,
        }
        let check = |text: &str, expected: Option<u64>| {
            let line = toml::from_str::<Line>(text).ok();
            let read = line.and_then(|line| line.size.map(|s| s.0.0).or(line.time.map(|t| t.0.as_millis() as u64)));
            assert_eq!(read, expected, "{text}");
        };
        check("size = 512", Some(512));
        check("size = '64KiB'", Some(65_536));
        check("size = -1", None);
        check("size = 1.5", None);
        check("size = 'much'", None);
        check("time = '500ms'", Some(500));
        check("time = '1s'", Some(1000));
        check("time = '2m'", Some(120_000));
        check("time = '1 h'", Some(3_600_000));
        check("time = '0s'", Some(0));
        for bad in ["10", "'10'", "'-1s'", "'1.5s'", "'s'", "''", "'99999999999999999h'", "'1d'"] {
            check(&format!("time = {bad}"), None);
        }
    }

    #[test]
    fn every_table_lists_its_keys() {
        for (home, keys) in tables() {
            assert!(!keys.is_empty(), "{home}");
        }
        assert_eq!(keys_of::<Stop>(), ["deadline"]);
        assert_eq!(keys_of::<Headers>(), ["match", "cache_control", "set"]);
    }

    #[test]
    fn typo_suggests_nearest_key() {
        let names = keys_of::<Site>();
        let check = |given: &str, expected: Option<&str>| assert_eq!(nearest(given, &names), expected, "{given}");
        check("precompresed", Some("precompressed"));
        check("user-dirs", Some("user_dirs"));
        check("Root", Some("root"));
        check("host", Some("hosts"));
        check("index_names", Some("index"));
        check("i", None);
        check("workers", None);
    }
}
