//! A store that speaks as much S3 as a server needs to read it, with the faults that a test asks for, for several test programs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// A running store, which ends with the test program.
pub struct Store {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    /// Requests so far: the target, the status of the response, and the range that it has.
    requests: Vec<(String, u16, Range<usize>)>,
    fault: Fault,
    /// Requests for ranges that begin here or later get no response until this is taken away.
    held: Option<usize>,
    ignores_ranges: bool,
    /// What another fault applies to: keys that contain this.
    hanging: Option<String>,
    versions: usize,
    was_signed: bool,
}

#[derive(Clone)]
pub struct Object {
    bytes: Vec<u8>,
    etag: String,
    /// Further fields.
    fields: Vec<(&'static str, &'static str)>,
    modified_seconds: u64,
}

/// What is wrong with a store.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum Fault {
    #[default]
    None,
    /// It closes connections.
    Down,
    /// It answers with this status and this code.
    Status(u16, &'static str),
    /// It closes a connection in the middle of each body.
    Cut,
    /// It sends less than it says, and then nothing.
    Stalls,
}

/// The bucket of all objects.
pub const BUCKET: &str = "bucket";

impl Store {
    pub fn on(listener: TcpListener) -> Store {
        Store::behind(listener, |stream| stream)
    }

    /// Serves what `accept` makes of connections.
    pub fn behind(listener: TcpListener, accept: fn(TcpStream) -> TcpStream) -> Store {
        let (address, state) = (listener.local_addr().unwrap(), Arc::<Mutex<State>>::default());
        let serving = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&serving);
                thread::spawn(move || serve(accept(stream), &state));
            }
        });
        Store { address, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Puts an object, with further fields.
    pub fn put_with(&self, key: &str, bytes: impl Into<Vec<u8>>, fields: &[(&'static str, &'static str)]) {
        let mut state = self.state();
        state.versions += 1;
        let etag = format!("\"v{}\"", state.versions);
        let modified_seconds = 1_000_000_000 + state.versions as u64;
        let object = Object { bytes: bytes.into(), etag, fields: fields.to_vec(), modified_seconds };
        state.objects.insert(key.to_owned(), object);
    }

    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.put_with(key, bytes, &[]);
    }

    /// Changes the fields of an object, and neither its bytes nor its tag.
    pub fn describe(&self, key: &str, fields: &[(&'static str, &'static str)]) {
        let mut state = self.state();
        let object = state.objects.get_mut(key).unwrap();
        object.fields = fields.to_vec();
        object.modified_seconds += 1;
    }

    pub fn remove(&self, key: &str) {
        self.state().objects.remove(key).unwrap();
    }

    pub fn etag(&self, key: &str) -> String {
        self.state().objects[key].etag.clone()
    }

    pub fn fail(&self, fault: Fault) {
        self.state().fault = fault;
    }

    /// Requests for keys that contain this get no response.
    pub fn hang(&self, part: Option<&str>) {
        self.state().hanging = part.map(str::to_owned);
    }

    /// Requests for ranges that begin here or later wait for their response.
    pub fn hold(&self, from: Option<usize>) {
        self.state().held = from;
    }

    /// Ranges are ignored.
    pub fn ignore_ranges(&self) {
        self.state().ignores_ranges = true;
    }

    /// Changes the entity tag of an object.
    pub fn tag(&self, key: &str, etag: &str) {
        etag.clone_into(&mut self.state().objects.get_mut(key).unwrap().etag);
    }

    /// The parts of this object that responses had, in their order.
    pub fn parts(&self, key: &str) -> Vec<Range<usize>> {
        let target = format!("/{BUCKET}/{key}");
        let requests = &self.state().requests;
        let parts = requests.iter().filter(|(found, status, _)| *found == target && matches!(status, 200 | 206));
        parts.map(|(_, _, range)| range.clone()).collect()
    }

    /// Statuses of the responses to requests for this object.
    pub fn statuses(&self, key: &str) -> Vec<u16> {
        let target = format!("/{BUCKET}/{key}");
        self.state().requests.iter().filter(|(found, ..)| *found == target).map(|(_, status, _)| *status).collect()
    }

    /// Whether a request had a signature.
    pub fn was_signed(&self) -> bool {
        self.state().was_signed
    }

    /// Number of requests so far.
    pub fn requests(&self) -> usize {
        self.state().requests.len()
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|&count| count > 0)?;
        let target = line.split(' ').nth(1)?.to_owned();
        let mut wanted = Wanted::default();
        loop {
            let mut field = String::new();
            reader.read_line(&mut field).ok().filter(|&count| count > 0)?;
            let Some((name, value)) = field.split_once(':') else { break };
            match &*name.to_ascii_lowercase() {
                "if-none-match" => wanted.unless = Some(value.trim().to_owned()),
                "if-match" => wanted.only = Some(value.trim().to_owned()),
                "range" => {
                    let (first, last) = value.trim().strip_prefix("bytes=")?.split_once('-')?;
                    wanted.range = Some(first.parse().ok()?..last.parse::<usize>().ok()? + 1);
                }
                _ => {}
            }
            state.lock().unwrap().was_signed |= value.trim().starts_with("AWS4-HMAC-SHA256 Credential=id/");
        }
        let start = wanted.range.as_ref().map_or(0, |range| range.start);
        while state.lock().unwrap().held.is_some_and(|from| start >= from) {
            thread::sleep(Duration::from_millis(2));
        }
        let fault = state.lock().unwrap().fault;
        let response = answer(&mut state.lock().unwrap(), &target, wanted, fault);
        let Some((head, body)) = response else {
            // Until the client closes the connection.
            let _ = reader.read(&mut [0]);
            return None;
        };
        writer.write_all(head.as_bytes()).ok()?;
        match fault {
            Fault::Down => return None,
            Fault::Cut => return writer.write_all(&body[..body.len() / 2]).ok(),
            Fault::Stalls => {
                writer.write_all(&body[..body.len() / 2]).ok()?;
                thread::sleep(Duration::from_secs(3600));
            }
            Fault::None | Fault::Status(..) => writer.write_all(&body).ok()?,
        }
    }
}

/// The conditions and the range of a request.
#[derive(Default)]
struct Wanted {
    unless: Option<String>,
    only: Option<String>,
    range: Option<Range<usize>>,
}

/// Returns the head and the body of a response; `None`: there is none.
fn answer(state: &mut State, target: &str, wanted: Wanted, fault: Fault) -> Option<(String, Vec<u8>)> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = decode(path);
    let (bucket, key) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
    let object = state.objects.get(key).cloned().filter(|_| query.is_empty());
    let range = wanted.range.filter(|_| !state.ignores_ranges);
    let mut part = 0..0;
    let hangs = state.hanging.as_ref().is_some_and(|part| key.contains(part));
    let (status, fields, body) = match object {
        _ if hangs => (0, Vec::new(), Vec::new()),
        _ if fault == Fault::Down => (0, Vec::new(), Vec::new()),
        _ if matches!(fault, Fault::Status(..)) => {
            let Fault::Status(status, code) = fault else { unreachable!() };
            (status, Vec::new(), error(code))
        }
        _ if bucket != BUCKET => (404, Vec::new(), error("NoSuchBucket")),
        _ if !query.is_empty() => (200, Vec::new(), list(&state.objects, query).into_bytes()),
        None => (404, Vec::new(), error("NoSuchKey")),
        Some(object) => {
            let mut fields = vec![format!("ETag: {}", object.etag)];
            fields.push(format!("Last-Modified: {}", date(object.modified_seconds)));
            fields.extend(object.fields.iter().map(|(name, value)| format!("{name}: {value}")));
            let total = object.bytes.len();
            match range {
                _ if wanted.unless.is_some_and(|etag| etag == object.etag) => (304, fields, Vec::new()),
                _ if wanted.only.is_some_and(|etag| etag != object.etag) => (412, fields, error("PreconditionFailed")),
                None => {
                    part = 0..total;
                    (200, fields, object.bytes)
                }
                Some(range) if range.start >= total => (416, fields, error("InvalidRange")),
                Some(range) => {
                    part = range.start..range.end.min(total);
                    fields.push(format!("Content-Range: bytes {}-{}/{total}", part.start, part.end - 1));
                    (206, fields, object.bytes[part.clone()].to_vec())
                }
            }
        }
    };
    state.requests.push((target.to_owned(), status, part));
    if fault == Fault::Down {
        return Some((String::new(), Vec::new()));
    }
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let length = if status == 304 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    (!hangs).then(|| (format!("HTTP/1.1 {status} Status\r\n{length}{fields}\r\n"), body))
}

fn error(code: &str) -> Vec<u8> {
    format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>no</Message></Error>").into_bytes()
}

/// A page of keys up to the next slash, as ListObjectsV2 returns it; the token is the last key of the page before.
fn list(objects: &BTreeMap<String, Object>, query: &str) -> String {
    let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(decode);
    let (prefix, after) = (value("prefix").unwrap(), value("continuation-token").unwrap_or_default());
    let max: usize = value("max-keys").unwrap().parse().unwrap();
    let mut page: Vec<(String, Option<&Object>)> = Vec::new();
    for (key, object) in objects.iter().filter(|(key, _)| key.starts_with(&prefix)) {
        let (name, object) = match key[prefix.len()..].find('/') {
            Some(slash) => (key[..=prefix.len() + slash].to_owned(), None),
            None => (key.clone(), Some(object)),
        };
        if name > after && page.last().is_none_or(|(last, _)| *last != name) {
            page.push((name, object));
        }
    }
    let is_truncated = page.len() > max;
    page.truncate(max);
    let next = page.last().filter(|_| is_truncated).map(|(name, _)| name.clone());
    let items = page.iter().map(|(name, object)| match (encode(name), object) {
        (name, None) => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
        (name, Some(object)) => format!(
            "<Contents><Key>{name}</Key><LastModified>2001-09-09T01:46:41.000Z</LastModified><Size>{}</Size></Contents>",
            object.bytes.len()
        ),
    });
    let items: String = items.collect();
    let next = next.map(|token| format!("<NextContinuationToken>{token}</NextContinuationToken>")).unwrap_or_default();
    format!(
        "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{is_truncated}</IsTruncated>{items}{next}</ListBucketResult>"
    )
}

fn encode(text: &str) -> String {
    let literal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    text.bytes().map(|byte| if literal(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn decode(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'%', [_, _, after @ ..]) => {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&rest[..2]).unwrap(), 16).unwrap());
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// A date on 9 September 2001, as in HTTP.
fn date(seconds: u64) -> String {
    // The day begins 6400 seconds before 10^9.
    let of_day = seconds - 1_000_000_000 + 6400;
    format!("Sun, 09 Sep 2001 {:02}:{:02}:{:02} GMT", of_day / 3600, of_day / 60 % 60, of_day % 60)
}
