//! The header of the PROXY protocol, versions 1 and 2: the addresses of a client's connection to a proxy, sent by the
//! proxy before anything else on its own connection.
//!
//! Specified in `doc/proxy-protocol.txt` of HAProxy; comments cite its sections. The header has no end mark that a later
//! protocol could not contain, so it is read strictly, and the rest of the connection is left unread.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum length of a header in bytes. Version 2 allows 64 KiB, for vectors (TLVs) that this server does not read; the
/// longest in use contain a certificate.
pub const HEADER_MAX: usize = 4096;

/// Maximum length of a header of version 1, with its line end (2.1).
const LINE_MAX: usize = 107;

/// How a header of version 1 begins.
const LINE: &[u8] = b"PROXY ";

/// How a header of version 2 begins (2.2).
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The part of a header of version 2 before the addresses.
const FIXED: usize = 16;

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Its length in bytes.
    pub length: usize,
    /// The addresses of the client's connection; `None`: those of this connection count (LOCAL, UNKNOWN, and clients that
    /// are not on a network).
    pub ends: Option<ProxiedEnds>,
}

/// The addresses of a client's connection to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxiedEnds {
    /// The client's.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub server: SocketAddr,
}

/// Why a header is invalid. Nothing that follows can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadProxyHeader(pub &'static str);

/// Reads the header at the start of `bytes`; `None`: more bytes are needed, and all of these belong to it.
///
/// # Errors
/// [`BadProxyHeader`], as soon as no further byte can make it valid.
pub fn parse(bytes: &[u8]) -> Result<Option<ProxyHeader>, BadProxyHeader> {
    let begins = |start: &[u8]| bytes.iter().zip(start).all(|(one, other)| one == other);
    match bytes {
        _ if begins(LINE) => line(bytes),
        _ if begins(SIGNATURE) => binary(bytes),
        _ => Err(BadProxyHeader("no PROXY protocol header")),
    }
}

/// Version 1: a line of text (2.1).
fn line(bytes: &[u8]) -> Result<Option<ProxyHeader>, BadProxyHeader> {
    let bad = BadProxyHeader("malformed header of version 1");
    let room = &bytes[..bytes.len().min(LINE_MAX)];
    let Some(end) = memchr::memchr(b'\r', room) else {
        return if bytes.len() >= LINE_MAX { Err(bad) } else { Ok(None) };
    };
    match room.get(end + 1) {
        Some(b'\n') => {}
        None if bytes.len() < LINE_MAX => return Ok(None),
        _ => return Err(bad),
    }
    let length = end + 2;
    // A line end may come before the space.
    let rest = room[..end].strip_prefix(LINE).ok_or(bad)?;
    if rest == b"UNKNOWN" || rest.starts_with(b"UNKNOWN ") {
        return Ok(Some(ProxyHeader { length, ends: None }));
    }
    let mut words = rest.split(|&byte| byte == b' ').map(|word| core::str::from_utf8(word).unwrap_or_default());
    let mut word = || words.next().ok_or(bad);
    let (family, client, server) = (word()?, word()?, word()?);
    let ports = (port(word()?).ok_or(bad)?, port(word()?).ok_or(bad)?);
    if words.next().is_some() {
        return Err(bad);
    }
    let ends = match family {
        "TCP4" => ends::<Ipv4Addr>(client, server, ports),
        "TCP6" => ends::<Ipv6Addr>(client, server, ports),
        _ => None,
    };
    Ok(Some(ProxyHeader { length, ends: Some(ends.ok_or(bad)?) }))
}

fn ends<A: core::str::FromStr + Into<core::net::IpAddr>>(
    client: &str,
    server: &str,
    (client_port, server_port): (u16, u16),
) -> Option<ProxiedEnds> {
    let address = |text: &str, port| Some(SocketAddr::new(text.parse::<A>().ok()?.into(), port));
    Some(ProxiedEnds { client: address(client, client_port)?, server: address(server, server_port)? })
}

/// Digits without leading zeros (2.1).
fn port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    is_number.then(|| text.parse().ok())?
}

/// Version 2: numbers in network byte order (2.2).
fn binary(bytes: &[u8]) -> Result<Option<ProxyHeader>, BadProxyHeader> {
    let bad = BadProxyHeader("malformed header of version 2");
    if bytes.get(SIGNATURE.len()).is_some_and(|byte| !matches!(byte, 0x20 | 0x21)) {
        return Err(bad);
    }
    let Some((&[command, family, high, low], rest)) =
        bytes.get(SIGNATURE.len()..).and_then(|rest| rest.split_first_chunk::<4>())
    else {
        return Ok(None);
    };
    let after = usize::from(u16::from_be_bytes([high, low]));
    if FIXED + after > HEADER_MAX {
        return Err(BadProxyHeader("header of version 2 too long"));
    }
    // The addresses come first; vectors, which may follow, are skipped.
    let addresses = match (command, family) {
        // 2.2: a health check of the proxy itself, for instance; the rest is ignored.
        (0x20, _) | (0x21, 0x00) => 0,
        (0x21, 0x11) => 12,
        (0x21, 0x21) => 36,
        // Sockets of the proxy's machine have no address that counts here.
        (0x21, 0x31) => 216,
        _ => return Err(bad),
    };
    if after < addresses {
        return Err(bad);
    }
    let Some(data) = rest.get(..after) else { return Ok(None) };
    let port = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    let ends = match addresses {
        12 => {
            let address = |at: usize| Ipv4Addr::new(data[at], data[at + 1], data[at + 2], data[at + 3]);
            Some(ProxiedEnds { client: (address(0), port(8)).into(), server: (address(4), port(10)).into() })
        }
        36 => {
            let address = |at: usize| {
                let mut octets = [0; 16];
                octets.copy_from_slice(&data[at..at + 16]);
                Ipv6Addr::from(octets)
            };
            Some(ProxiedEnds { client: (address(0), port(32)).into(), server: (address(16), port(34)).into() })
        }
        _ => None,
    };
    Ok(Some(ProxyHeader { length: FIXED + after, ends }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// The length and the addresses, or the error; every proper prefix needs more bytes, and what follows is not read.
    #[track_caller]
    fn check(bytes: &[u8], expected: &str) {
        let said = |bytes: &[u8]| match parse(bytes) {
            Ok(None) => "more".into(),
            Ok(Some(ProxyHeader { length, ends: None })) => format!("{length}"),
            Ok(Some(ProxyHeader { length, ends: Some(ends) })) => format!("{length} {} {}", ends.client, ends.server),
            Err(BadProxyHeader(why)) => String::from(why),
        };
        assert_eq!(said(bytes), expected, "{}", bytes.escape_ascii());
        if let Ok(Some(header)) = parse(bytes) {
            assert!((0..header.length).all(|length| parse(&bytes[..length]) == Ok(None)));
            assert_eq!(said(&[bytes, b"GET / HTTP/1.1\r\n"].concat()), expected);
        }
    }

    #[test]
    fn lines_of_version_1_are_read_strictly() {
        let bad = "malformed header of version 1";
        check(b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n", "41 192.0.2.1:5000 192.0.2.2:443");
        check(b"PROXY TCP6 2001:db8::1 ::1 0 65535\r\n", "36 [2001:db8::1]:0 [::1]:65535");
        check(b"PROXY UNKNOWN\r\n", "15");
        check(b"PROXY UNKNOWN ffff::1 any thing 1 2\r\n", "37");
        let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(LINE_MAX - 16));
        check(longest.as_bytes(), "107");
        check(longest.replace("x\r", "xx\r").as_bytes(), bad);
        check(b"P", "more");
        check(b"", "more");
        for line in [
            "PROXY\r\n",
            "PROXY \r\n",
            "PROXY UNKNOWNX\r\n",
            "PROXY TCP4\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
            "PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 65536 2\r\n",
            "PROXY TCP4 192.0.2.1 ::1 1 2\r\n",
            "PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\rx",
        ] {
            let expected = if line == "PROXY\r\n" { "no PROXY protocol header" } else { bad };
            check(line.as_bytes(), expected);
        }
        check(&[b"PROXY TCP4 ", &[b'1'; LINE_MAX][..]].concat(), bad);
        for other in ["GET / HTTP/1.1\r\n", "PROXX", "\r\n\r\nG", "\x16\x03\x01", "proxy "] {
            check(other.as_bytes(), "no PROXY protocol header");
        }
    }

    fn v2(command: u8, family: u8, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(data.len()).expect("short").to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, data].concat()
    }

    #[test]
    fn headers_of_version_2_are_read_strictly() {
        let bad = "malformed header of version 2";
        let four = [192, 0, 2, 1, 192, 0, 2, 2, 0x13, 0x88, 0x01, 0xbb];
        check(&v2(0x21, 0x11, &four), "28 192.0.2.1:5000 192.0.2.2:443");
        let vectors = [&four[..], &[0x03, 0, 4, 1, 2, 3, 4, 0x04, 0, 0]].concat();
        check(&v2(0x21, 0x11, &vectors), "38 192.0.2.1:5000 192.0.2.2:443");
        let six = [&Ipv6Addr::LOCALHOST.octets()[..], &Ipv6Addr::UNSPECIFIED.octets(), &[0, 1, 0, 2]].concat();
        check(&v2(0x21, 0x21, &six), "52 [::1]:1 [::]:2");
        check(&v2(0x20, 0x00, &[]), "16");
        check(&v2(0x20, 0x11, &four), "28");
        check(&v2(0x20, 0xff, &[1]), "17");
        check(&v2(0x21, 0x00, &[1, 2]), "18");
        check(&v2(0x21, 0x31, &[0; 216]), "232");
        check(&v2(0x21, 0x11, &four[1..]), bad);
        check(&v2(0x21, 0x21, &four), bad);
        check(&v2(0x21, 0x12, &four), bad);
        check(&v2(0x21, 0x13, &four), bad);
        check(&v2(0x22, 0x11, &four), bad);
        check(&v2(0x11, 0x11, &four), bad);
        check(&v2(0x20, 0x00, &[0; HEADER_MAX - FIXED]), "4096");
        check(&v2(0x20, 0x00, &[0; HEADER_MAX - FIXED + 1]), "header of version 2 too long");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(start in 0..3, bytes: Vec<u8>) {
            let start = [&b""[..], LINE, SIGNATURE][start as usize];
            let bytes = [start, &bytes].concat();
            if let Ok(Some(header)) = parse(&bytes) {
                prop_assert!(header.length <= bytes.len());
                prop_assert_eq!(parse(&bytes[..header.length]), Ok(Some(header)));
            }
        }

        #[test]
        fn written_header_is_read(client: [u8; 4], server: [u8; 4], ports: (u16, u16)) {
            let (client, server) = (SocketAddr::from((client, ports.0)), SocketAddr::from((server, ports.1)));
            let ends = Some(ProxiedEnds { client, server });
            let line = format!("PROXY TCP4 {} {} {} {}\r\n", client.ip(), server.ip(), client.port(), server.port());
            prop_assert_eq!(parse(line.as_bytes()), Ok(Some(ProxyHeader { length: line.len(), ends })));
        }
    }
}
