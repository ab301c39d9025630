//! A strict client: parses responses and rejects whatever RFC 9110 and 9112 forbid a server to send.
//!
//! It is given only which requests were HEAD, because the
//! length of a response depends on that (RFC 9112, 6.3).

use amped_http::date;

/// A response as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the whole body arrived. Only the last response of a closed connection may be cut.
    pub(crate) complete: bool,
    /// Its end offset in the stream.
    pub(crate) end: usize,
}

impl Response {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Whether it announces that it is the last.
    pub(crate) fn closes(&self) -> bool {
        self.field("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    pub(crate) fn length(&self) -> Option<u64> {
        self.field("Content-Length").map(|value| value.parse().expect("checked when it was read"))
    }
}

/// Parses all responses in `bytes`, including interim ones (1xx). `head_only`: for each request in order, whether it
/// was HEAD. `ended`: whether the connection has closed, so that a response may be cut.
///
/// # Panics
/// If the bytes violate the protocol.
pub(crate) fn read_all(bytes: &[u8], head_only: &[bool], ended: bool) -> Vec<Response> {
    let mut responses: Vec<Response> = Vec::new();
    let mut at = 0;
    let mut finals = 0;
    while at < bytes.len() {
        if let Some(last) = responses.last() {
            assert!(!last.closes(), "data after the last response: {:?}", text(&bytes[at..]));
            assert!(last.complete, "data after a truncated response");
        }
        let head_only = head_only.get(finals).copied();
        let Some(response) = read_one(bytes, at, head_only.unwrap_or(false)) else {
            assert!(ended, "an incomplete head on an open connection: {:?}", text(&bytes[at..]));
            break;
        };
        if response.status >= 200 {
            assert!(head_only.is_some(), "a response without a request: {response:?}");
            finals += 1;
        }
        at = response.end;
        responses.push(response);
    }
    if let Some(last) = responses.last() {
        assert!(last.complete || ended, "an incomplete body on an open connection: {:?}", last.fields);
    }
    responses
}

fn read_one(bytes: &[u8], start: usize, head_only: bool) -> Option<Response> {
    let length = bytes[start..].windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[start..start + length]).expect("the server's heads are ASCII");
    let mut lines = head[..length - 4].split("\r\n");
    let status_line = lines.next().expect("split returns at least one line");
    // RFC 9112, 4: the space after the code is required even without a phrase.
    let rest = status_line.strip_prefix("HTTP/1.1 ").unwrap_or_else(|| panic!("not a status line: {status_line:?}"));
    let (code, phrase) = rest.split_once(' ').expect("a space after the status");
    assert!(code.len() == 3 && code.bytes().all(|b| b.is_ascii_digit()), "status {code:?}");
    let status: u16 = code.parse().expect("three digits");
    assert!((100..600).contains(&status) && !phrase.is_empty() && phrase.is_ascii(), "{status_line:?}");

    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("not a field: {line:?}"));
        assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{line:?}");
        assert!(!value.bytes().any(|b| b.is_ascii_control()) && value.trim() == value, "{line:?}");
        let doubled = fields.iter().any(|(known, _): &(String, String)| known.eq_ignore_ascii_case(name));
        assert!(!doubled, "{name} occurs twice in {head}");
        fields.push((name.to_owned(), value.to_owned()));
    }
    let mut response = Response { status, fields, body: Vec::new(), complete: true, end: start + length };
    if status < 200 {
        assert!(response.fields.is_empty(), "an interim response has no fields: {response:?}");
        return Some(response);
    }
    let date_text = response.field("Date").expect("a server with a clock sends Date (RFC 9110, 6.6.1)");
    assert!(date_text.len() == date::LEN && date::parse(date_text.as_bytes(), 0).is_some(), "{date_text:?}");
    let modified = response.field("Last-Modified");
    assert!(modified.is_none_or(|text| date::parse(text.as_bytes(), 0).is_some()), "{modified:?}");
    if let Some(connection) = response.field("Connection") {
        assert!(["close", "keep-alive"].contains(&connection), "{connection}");
    }
    // Only an application may not know its length in advance.
    let is_app = response.field("X-App").is_some();
    if let Some(coding) = response.field("Transfer-Encoding") {
        assert!(coding == "chunked" && is_app && !head_only, "chunked, although the length is known");
        assert!(![204, 304].contains(&status) && response.field("Content-Length").is_none());
        let (body, length) = read_chunks(&bytes[response.end..]);
        response.complete = length.is_some();
        response.end = length.map_or(bytes.len(), |length| response.end + length);
        response.body = body;
        return Some(response);
    }
    // RFC 9110, 15: the required fields of each status.
    let must = match status {
        206 if !response.field("Content-Type").is_some_and(|kind| kind.starts_with("multipart/byteranges")) => {
            &["Content-Range", "ETag"][..]
        }
        206 | 304 => &["ETag"],
        301 => &["Location"],
        401 => &["WWW-Authenticate"],
        405 => &["Allow"],
        416 => &["Content-Range"],
        _ => &[],
    };
    for name in must {
        assert!(response.field(name).is_some(), "{status} without {name}: {response:?}");
    }
    let announced = response.field("Content-Length").map(|value| {
        assert!(value.bytes().all(|b| b.is_ascii_digit()) && (value == "0" || !value.starts_with('0')), "{value}");
        value.parse::<usize>().expect("a length")
    });
    // RFC 9112, 6.3.
    let expected = match (status, announced) {
        (204, length) => {
            assert_eq!(length, None, "RFC 9110, 8.6: no Content-Length in a 204");
            0
        }
        (304, _) => 0,
        (_, None) if is_app && head_only => 0,
        // Until close, for clients that do not support chunks.
        (_, None) if is_app && response.closes() => usize::MAX,
        (_, None) => panic!("missing length: {response:?}"),
        (_, Some(_)) if head_only => 0,
        (_, Some(length)) => length,
    };
    let rest = &bytes[response.end..];
    response.complete = rest.len() >= expected;
    response.body = rest[..expected.min(rest.len())].to_vec();
    response.end += response.body.len();
    Some(response)
}

/// The data of the chunks, and their length including framing, if the last one has arrived.
fn read_chunks(bytes: &[u8]) -> (Vec<u8>, Option<usize>) {
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        let Some(line) = bytes[at..].windows(2).position(|two| two == b"\r\n") else {
            return (data, None);
        };
        let size = std::str::from_utf8(&bytes[at..at + line]).expect("ASCII");
        assert!(size.bytes().all(|b| b.is_ascii_hexdigit()) && !size.is_empty(), "invalid chunk size {size:?}");
        let size = usize::from_str_radix(size, 16).expect("a number");
        at += line + 2;
        let rest = &bytes[at..];
        data.extend_from_slice(&rest[..size.min(rest.len())]);
        if rest.len() < size + 2 {
            return (data, None);
        }
        assert_eq!(&rest[size..size + 2], b"\r\n", "no line end after a chunk");
        at += size + 2;
        if size == 0 {
            return (data, Some(at));
        }
    }
}

/// Formats bytes for a failure message.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned()
}
