//! CGI/1.1 (RFC 3875): the meta-variables made from a request's fields, and the parser of a script's response head.
//!
//! Before it, `h1::request` has validated the head; this module walks its fields once more, because a script gets them
//! all. After it, `amped-core` builds a response from the script's output. The head is parsed as it arrives: too few
//! bytes are not an error, but a malformed or endless head is one as soon as no further byte can repair it.
//!
//! Stricter than older servers where a script could otherwise inject a field: a duplicate
//! field that must be unique, a folded line, a control character. Lenient in one rule of
//! RFC 3875, 6.2 that scripts ignore: a document need not declare its type.

use alloc::vec::Vec;

use crate::status::Status;
use crate::text::{push_decimal, trim_ows};

/// Maximum bytes of a script's response head.
pub const HEAD_MAX: usize = 64 * 1024;

/// Names and values of meta-variables (RFC 3875, 4.1).
pub type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// Fields that belong to this connection alone (RFC 9110, 7.6.1), or that a script must not see.
///
/// `Proxy` would become `HTTP_PROXY`, which the HTTP libraries of scripts take for
/// their outgoing proxy. The lengths and codings of the message are those of the
/// connection; the script has its own in `CONTENT_LENGTH` and `CONTENT_TYPE`.
const KEPT_BACK: &[&[u8]] = &[
    b"connection",
    b"content-length",
    b"content-type",
    b"expect",
    b"keep-alive",
    b"proxy",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// Maps a request's fields to meta-variables: `CONTENT_TYPE`, and an `HTTP_` variable for each field that a script may
/// see (RFC 3875, 4.1.18). Lines of the same name are joined into one variable.
///
/// A name with any other byte than letters, digits and dashes is left out: `X_Real_IP` would pass for `X-Real-IP`,
/// which a trusted proxy in front may have set.
pub fn field_variables<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Variables {
    let mut variables = Variables::new();
    for (name, value) in fields {
        let variable = if name.eq_ignore_ascii_case(b"content-type") {
            b"CONTENT_TYPE".to_vec()
        } else if !is_plain_name(name) || KEPT_BACK.iter().any(|kept| name.eq_ignore_ascii_case(kept)) {
            continue;
        } else {
            let upper = name.iter().map(|&byte| if byte == b'-' { b'_' } else { byte.to_ascii_uppercase() });
            b"HTTP_".iter().copied().chain(upper).collect()
        };
        match variables.iter_mut().find(|(known, _)| *known == variable) {
            // RFC 9110, 5.3, and RFC 6265, 5.4 for cookies, which are joined by semicolons.
            Some((_, known)) => {
                known.extend_from_slice(if variable == b"HTTP_COOKIE" { b"; " } else { b", " });
                known.extend_from_slice(value);
            }
            None => variables.push((variable, value.to_vec())),
        }
    }
    variables
}

/// Whether the name of a field consists of letters, digits and dashes, so that no other name has the same variable.
pub fn is_plain_name(name: &[u8]) -> bool {
    name.iter().all(|&byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Writes a number as the value of a variable.
pub fn decimal(number: u64) -> Vec<u8> {
    let mut text = Vec::new();
    push_decimal(&mut text, number);
    text
}

/// The head of a script's response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptHead<'a> {
    /// The value of its `Status` field.
    pub status: Option<Status>,
    /// Its reason phrase; empty if it gives none.
    pub reason: &'a [u8],
    /// Its `Location`: a redirect for the client, or a local path.
    pub location: Option<&'a [u8]>,
    /// The file to send instead of the body.
    pub send: Option<SendFile<'a>>,
    /// Its `Content-Length`.
    pub length: Option<u64>,
    /// Send the response to the client as it arrives (`X-Accel-Buffering: no`, nginx's field).
    pub unbuffered: bool,
    /// All other permitted fields, in order.
    pub fields: Vec<(&'a str, &'a [u8])>,
}

/// A file that the server sends on behalf of a script. Not
/// standardised; the fields are those of nginx, Apache and lighttpd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFile<'a> {
    /// `X-Accel-Redirect`: a path of the site, escaped as in a request, with an optional query.
    Path(&'a [u8]),
    /// `X-Sendfile`: the absolute name of a file.
    File(&'a [u8]),
}

/// How the server responds to a script's head (RFC 3875, 6.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// With this status and the script's fields, `Location` included.
    Reply(Status),
    /// With the response to this path and query: a local redirect (6.2.2).
    Instead(&'a [u8]),
}

/// The head is malformed, for this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadScript(pub &'static str);

impl<'a> ScriptHead<'a> {
    /// Decides how to respond.
    pub fn answer(&self) -> Answer<'a> {
        match (self.status, self.location) {
            (Some(status), _) => Answer::Reply(status),
            // Two leading slashes begin a host name (RFC 3986, 4.2), which a browser can follow itself.
            (None, Some(path)) if path.starts_with(b"/") && !path.starts_with(b"//") => Answer::Instead(path),
            (None, Some(_)) => Answer::Reply(Status::FOUND),
            (None, None) => Answer::Reply(Status::OK),
        }
    }
}

/// Fields that are ignored in a script's head: they belong to the connection or to the server.
const OURS: &[&str] = &[
    "connection",
    "date",
    "keep-alive",
    "proxy-connection",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Parses the head at the start of a script's output: `None` needs more bytes, `Some` is the head and its length.
///
/// Lines end with LF or CR LF (RFC 3875, 6.3, `NL`).
///
/// # Errors
/// [`BadScript`] as soon as no further byte can repair the head.
pub fn parse(bytes: &[u8]) -> Result<Option<(ScriptHead<'_>, usize)>, BadScript> {
    let mut head = ScriptHead {
        status: None,
        reason: b"",
        location: None,
        send: None,
        length: None,
        unbuffered: false,
        fields: Vec::new(),
    };
    let (mut at, mut lines) = (0, 0);
    for newline in memchr::memchr_iter(b'\n', bytes) {
        if newline >= HEAD_MAX {
            break;
        }
        let line = &bytes[at..newline];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        at = newline + 1;
        if !line.is_empty() {
            lines += 1;
            take_line(&mut head, line)?;
        } else if lines == 0 {
            return Err(BadScript("the response begins with an empty line instead of a header field"));
        } else {
            return Ok(Some((head, at)));
        }
    }
    match bytes.len() {
        ..HEAD_MAX => Ok(None),
        _ => Err(BadScript("the response head is too long")),
    }
}

fn take_line<'a>(head: &mut ScriptHead<'a>, line: &'a [u8]) -> Result<(), BadScript> {
    let colon = memchr::memchr(b':', line).ok_or(BadScript("malformed header line in the response"))?;
    let (name, value) = (&line[..colon], trim_ows(&line[colon + 1..]));
    let is_token = |&byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let name = match core::str::from_utf8(name) {
        Ok(text) if !name.is_empty() && name.iter().all(is_token) => text,
        _ => return Err(BadScript("malformed header name in the response")),
    };
    if value.iter().any(|&byte| byte != b'\t' && (byte < b' ' || byte == 0x7f)) {
        return Err(BadScript("control character in a header value of the response"));
    }
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    if is("status") {
        let status = status_of(value).ok_or(BadScript("Status is not a number from 200 to 599"))?;
        head.reason = trim_ows(&value[3..]);
        return set_once(&mut head.status, status, "duplicate Status");
    }
    if is("content-length") {
        let length = length_of(value).ok_or(BadScript("Content-Length is not a number"))?;
        return set_once(&mut head.length, length, "duplicate Content-Length");
    }
    if is("x-accel-buffering") {
        head.unbuffered |= value.eq_ignore_ascii_case(b"no");
        return Ok(());
    }
    if is("location") {
        set_once(&mut head.location, value, "duplicate Location")?;
    }
    let send = if is("x-accel-redirect") {
        Some(SendFile::Path(value))
    } else if is("x-sendfile") || is("x-lighttpd-send-file") {
        Some(SendFile::File(value))
    } else {
        None
    };
    if let Some(send) = send {
        return set_once(&mut head.send, send, "more than one file to send");
    }
    if is("content-type") && head.fields.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
        return Err(BadScript("duplicate Content-Type"));
    }
    if !OURS.iter().any(|ours| is(ours)) {
        head.fields.push((name, value));
    }
    Ok(())
}

fn set_once<T>(field: &mut Option<T>, value: T, why: &'static str) -> Result<(), BadScript> {
    if field.replace(value).is_some() { Err(BadScript(why)) } else { Ok(()) }
}

/// RFC 3875, 6.3.3: three digits and an optional reason. A script cannot announce an interim response (1xx).
fn status_of(value: &[u8]) -> Option<Status> {
    let digits = value.split(|&byte| byte == b' ').next()?;
    let code = u16::try_from(length_of(digits).filter(|_| digits.len() == 3)?).ok()?;
    (200..=599).contains(&code).then_some(Status(code))
}

fn length_of(value: &[u8]) -> Option<u64> {
    let is_number = (1..=18).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| value.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn fields_become_variables() {
        let fields: [(&[u8], &[u8]); 12] = [
            (b"Host", b"example.org"),
            (b"Proxy", b"http://evil.example"),
            (b"X-Real-IP", b"1"),
            (b"X_Real_IP", b"2"),
            (b"Accept", b"a"),
            (b"accept", b"b"),
            (b"Cookie", b"c=1"),
            (b"Cookie", b"d=2"),
            (b"Content-Type", b"text/plain"),
            (b"Content-Length", b"5"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Connection", b"close"),
        ];
        let variables = field_variables(fields.into_iter());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let shown: Vec<String> = variables.iter().map(|(name, value)| [text(name), text(value)].join("=")).collect();
        let expected = [
            "HTTP_HOST=example.org",
            "HTTP_X_REAL_IP=1",
            "HTTP_ACCEPT=a, b",
            "HTTP_COOKIE=c=1; d=2",
            "CONTENT_TYPE=text/plain",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn script_headers_are_parsed() {
        let check = |text: &str, expected: Answer<'_>, fields: &[&str], length: Option<u64>| {
            for text in [String::from(text), text.replace('\n', "\r\n")] {
                let whole = [text.as_bytes(), b"body\n\n"].concat();
                let (head, end) = parse(&whole).expect("good").expect("whole");
                assert_eq!(end, text.len(), "{text:?}");
                assert_eq!(head.answer(), expected, "{text:?}");
                let names: Vec<&str> = head.fields.iter().map(|(name, _)| *name).collect();
                assert_eq!((&names[..], head.length), (fields, length), "{text:?}");
                for cut in 0..text.len() {
                    assert_eq!(parse(&text.as_bytes()[..cut]), Ok(None), "{text:?} to {cut}");
                }
            }
        };
        let reply = |status| Answer::Reply(Status(status));
        check("Content-Type: text/plain\n\n", reply(200), &["Content-Type"], None);
        check("Status: 404 Not Found\nContent-Type: a/b\n\n", reply(404), &["Content-Type"], None);
        check("status:201\nX: y\nContent-Length: 12\n\n", reply(201), &["X"], Some(12));
        check("Location: http://a/\n\n", reply(302), &["Location"], None);
        check("Location: //a/\n\n", reply(302), &["Location"], None);
        check("Status: 301 Moved\nLocation: /b\n\n", reply(301), &["Location"], None);
        check("Location: /b?c\n\n", Answer::Instead(b"/b?c"), &["Location"], None);
        check("X: y\nServer: z\nDate: q\nConnection: close\nTransfer-Encoding: chunked\n\n", reply(200), &["X"], None);
        check("X-Accel-Buffering: no\nX: y\n\n", reply(200), &["X"], None);
        check("Set-Cookie: a\nSet-Cookie: b\n\n", reply(200), &["Set-Cookie", "Set-Cookie"], None);
    }

    #[test]
    fn sendfile_fields_are_recognized() {
        let check = |text: &str, expected: Option<SendFile<'_>>| {
            let text = alloc::format!("Content-Type: a/b\n{text}\n");
            let (head, _) = parse(text.as_bytes()).expect("good").expect("whole");
            assert_eq!((head.send, head.fields.len()), (expected, 1), "{text}");
        };
        check("", None);
        check("x-accel-redirect: /a%20b?c\n", Some(SendFile::Path(b"/a%20b?c")));
        check("X-Sendfile: /srv/a b\n", Some(SendFile::File(b"/srv/a b")));
        check("X-LIGHTTPD-send-file: /srv/a\n", Some(SendFile::File(b"/srv/a")));
        assert!(parse(b"X-Sendfile: /a\nX-Accel-Redirect: /b\n\n").is_err());
    }

    #[test]
    fn reason_phrase_is_kept() {
        let check = |status: &str, expected: &str| {
            let text = alloc::format!("Status: {status}\n\n");
            let (head, _) = parse(text.as_bytes()).expect("good").expect("whole");
            assert_eq!(head.reason, expected.as_bytes(), "{status}");
        };
        check("201 Made", "Made");
        check("404  Not there at all ", "Not there at all");
        check("200", "");
        check("200 ", "");
    }

    #[test]
    fn malformed_header_is_rejected() {
        for bad in [
            "\n",
            "\r\nbody",
            "<html>\n",
            "HTTP/1.1 200 OK\n",
            "A b: c\n",
            ": c\n",
            " folded: c\n",
            "A: b\n c\n",
            "A: b\rc\n",
            "A: b\0\n",
            "Status: 99\n",
            "Status: 100 Continue\n",
            "Status: 600\n",
            "Status: 0200\n",
            "Status: OK\n",
            "Status: 200\nStatus: 200\n",
            "Location: /a\nLocation: /b\n",
            "Content-Type: a/b\nContent-Type: a/b\n",
            "Content-Length: -1\n",
            "Content-Length: 1\nContent-Length: 1\n",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(parse(&vec![b'x'; HEAD_MAX]).is_err());
        assert_eq!(parse(&vec![b'x'; HEAD_MAX - 1]), Ok(None));
        assert!(parse(&"A: b\n".repeat(HEAD_MAX / 5 + 1).into_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..40) {
            let head = b"Status: 200 OK\nLocation: /a\nX: y\n\n";
            let mixed = [&head[..cut.min(head.len())], &bytes[..]].concat();
            let at_once = parse(&mixed);
            if let Ok(Some((head, length))) = &at_once {
                prop_assert!(*length <= mixed.len());
                prop_assert!(head.fields.iter().all(|(_, value)| !value.iter().any(|byte| b"\r\n\0".contains(byte))));
            }
            // The verdict on a prefix holds whatever follows.
            for end in 0..mixed.len() {
                match parse(&mixed[..end]) {
                    Ok(None) => {}
                    earlier => prop_assert_eq!(&earlier, &at_once),
                }
            }
        }
    }
}
