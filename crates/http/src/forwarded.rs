//! The client of a request that proxies have forwarded: `X-Forwarded-For` and `X-Forwarded-Proto`, or `Forwarded`
//! (RFC 7239).
//!
//! Each proxy appends the address from which it received the request, so the list is read from its end: the client is
//! the last address that is not a trusted proxy's, because only trusted proxies wrote what follows it. What precedes it
//! may be forged.
//!
//! Whether the peer that sent the request is trusted decides `core/client`; the caller supplies the test for addresses.

use alloc::vec::Vec;
use core::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{list, trim_ows};

/// The field that names the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientField {
    /// X-Forwarded-For, and X-Forwarded-Proto for the scheme
    #[default]
    XForwardedFor,
    /// Forwarded (RFC 7239)
    Forwarded,
}

/// The client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address; never an IPv4 address mapped into IPv6.
    pub address: IpAddr,
    /// The field that named it, and the number of its last entries that begin with the client; `None`: it is the peer of
    /// the connection.
    pub named: Option<(ClientField, usize)>,
}

/// What the field of a request says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The address of the client, and the number of entries from it to the end. `None`: none is named.
    pub client: Option<(IpAddr, usize)>,
    /// Whether the client used https, if that is stated.
    pub secure: Option<bool>,
}

/// An entry of the field, written by one proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hop {
    /// `None`: unknown, obfuscated (RFC 7239, 6.2 and 6.3), or malformed.
    address: Option<IpAddr>,
    secure: Option<bool>,
}

/// The `Forwarded` field is malformed: where its entries begin is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Finds the client among the fields of a request. If all addresses are trusted, it is the first one that the others
/// vouch for.
///
/// # Errors
/// [`Malformed`].
pub fn origin<'a, I: Iterator<Item = (&'a [u8], &'a [u8])>>(
    fields: impl Fn() -> I,
    field: ClientField,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Result<Origin, Malformed> {
    let mut origin = Origin::default();
    visit(fields(), field, |hop| match (hop.address, &mut origin.client) {
        (None, client) => {
            // Nobody trusted has seen the addresses before it.
            *client = None;
            origin.secure = hop.secure;
        }
        (Some(address), Some((_, count))) if is_trusted(address) => *count += 1,
        (Some(address), client) => {
            *client = Some((address, 1));
            origin.secure = hop.secure;
        }
    })?;
    if field == ClientField::XForwardedFor {
        // The proxy next to this server wrote the last one.
        let last = fields().filter(|(name, _)| name.eq_ignore_ascii_case(b"x-forwarded-proto")).last();
        origin.secure = last.and_then(|(_, value)| scheme(list(value).last()?));
    }
    Ok(origin)
}

/// The addresses of the last `count` entries, the first of which is the client's.
pub fn chain<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>, field: ClientField, count: usize) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    // The field was well-formed when the client was found, and its last entries are addresses.
    let _ = visit(fields, field, |hop| match hop.address {
        Some(address) => addresses.push(address),
        None => addresses.clear(),
    });
    addresses.drain(..addresses.len().saturating_sub(count));
    addresses
}

/// Visits the entries in order.
fn visit<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    field: ClientField,
    mut take: impl FnMut(Hop),
) -> Result<(), Malformed> {
    let name: &[u8] = match field {
        ClientField::XForwardedFor => b"x-forwarded-for",
        ClientField::Forwarded => b"forwarded",
    };
    for (_, value) in fields.filter(|(found, _)| found.eq_ignore_ascii_case(name)) {
        match field {
            ClientField::XForwardedFor => {
                list(value).for_each(|entry| take(Hop { address: node(entry), secure: None }));
            }
            ClientField::Forwarded => {
                let mut rest = value;
                while let Some(hop) = element(&mut rest)? {
                    take(hop);
                }
            }
        }
    }
    Ok(())
}

/// Reads the next element (RFC 7239, 4): pairs separated by semicolons, up to a comma or the end.
fn element(rest: &mut &[u8]) -> Result<Option<Hop>, Malformed> {
    loop {
        *rest = trim_ows(rest);
        match rest.split_first() {
            None => return Ok(None),
            // RFC 9110, 5.6.1.2: empty elements are ignored.
            Some((b',', after)) => *rest = after,
            Some(_) => break,
        }
    }
    let mut hop = Hop { address: None, secure: None };
    let (mut has_for, mut has_proto) = (false, false);
    loop {
        let equals = rest.iter().position(|byte| matches!(byte, b'=' | b';' | b',' | b'"')).ok_or(Malformed)?;
        let (name, after) = (trim_ows(&rest[..equals]), rest[equals..].strip_prefix(b"=").ok_or(Malformed)?);
        let mut buffer = [0; VALUE_MAX];
        let (value, after) = value(after, &mut buffer)?;
        if name.eq_ignore_ascii_case(b"for") {
            // 4: a parameter must not occur twice in an element.
            if core::mem::replace(&mut has_for, true) {
                return Err(Malformed);
            }
            hop.address = value.and_then(node);
        } else if name.eq_ignore_ascii_case(b"proto") {
            if core::mem::replace(&mut has_proto, true) {
                return Err(Malformed);
            }
            hop.secure = value.and_then(scheme);
        }
        *rest = trim_ows(after);
        match rest.split_first() {
            None => return Ok(Some(hop)),
            Some((b',', after)) => {
                *rest = after;
                return Ok(Some(hop));
            }
            Some((b';', after)) => *rest = after,
            Some(_) => return Err(Malformed),
        }
    }
}

/// The longest value that matters: an IPv6 address in brackets with an embedded IPv4 address and a port.
const VALUE_MAX: usize = 64;

/// Reads a value, a token or a quoted string (RFC 9110, 5.6.4), and returns the bytes after it. The value is `None` if it
/// is longer than any address.
fn value<'a, 'b>(text: &'a [u8], buffer: &'b mut [u8; VALUE_MAX]) -> Result<(Option<&'b [u8]>, &'a [u8]), Malformed>
where
    'a: 'b,
{
    let Some(quoted) = text.strip_prefix(b"\"") else {
        // Many proxies leave out the quotes that an address with colons needs.
        let end = text.iter().position(|byte| matches!(byte, b';' | b',' | b' ' | b'\t' | b'"')).unwrap_or(text.len());
        return if end == 0 { Err(Malformed) } else { Ok((Some(&text[..end]), &text[end..])) };
    };
    let (mut length, mut bytes) = (0, quoted.iter().enumerate());
    while let Some((at, &byte)) = bytes.next() {
        let byte = match byte {
            b'"' => return Ok((buffer.get(..length), &quoted[at + 1..])),
            b'\\' => *bytes.next().ok_or(Malformed)?.1,
            byte => byte,
        };
        if let Some(place) = buffer.get_mut(length) {
            *place = byte;
        }
        length += 1;
    }
    Err(Malformed)
}

/// The address of a node (RFC 7239, 6): `192.0.2.1`, `192.0.2.1:80`, `[2001:db8::1]`, `[2001:db8::1]:80`, and in
/// `X-Forwarded-For` also `2001:db8::1`.
fn node(text: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(text).ok()?;
    let address = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            is_port(port).then(|| address.parse().ok().map(IpAddr::V6))?
        }
        None => text.parse().ok().or_else(|| {
            let (address, _) = text.split_once(':').filter(|(address, _)| is_port(&text[address.len()..]))?;
            address.parse().ok().map(IpAddr::V4)
        }),
    };
    address.map(|address: IpAddr| address.to_canonical())
}

/// Whether this is nothing, or a colon and a port, which may be obfuscated.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text.strip_prefix(':').is_some_and(|port| {
            let is_number = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
            let is_name =
                port.starts_with('_') && port[1..].bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
            !port.is_empty() && (is_number || is_name)
        })
}

/// Whether a scheme is https; `None` for others than http.
fn scheme(text: &[u8]) -> Option<bool> {
    let is_secure = text.eq_ignore_ascii_case(b"https");
    (is_secure || text.eq_ignore_ascii_case(b"http")).then_some(is_secure)
}

/// Appends an address as the node of a `Forwarded` element (RFC 7239, 4 and 6): one of IPv6 in brackets, and quoted.
pub(crate) fn push_node(out: &mut Vec<u8>, address: &str) {
    let (before, after) = if address.contains(':') { ("\"[", "]\"") } else { ("", "") };
    [before, address, after].iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::{String, ToString};
    use proptest::prelude::*;
    use std::vec;

    /// 10.0.0.0/8 and fd00::/8 are trusted.
    fn is_trusted(address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => address.octets()[0] == 10,
            IpAddr::V6(address) => address.octets()[0] == 0xfd,
        }
    }

    fn found(field: ClientField, lines: &[(&str, &str)]) -> String {
        let fields = || lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        match origin(fields, field, is_trusted) {
            Err(Malformed) => "malformed".into(),
            Ok(Origin { client, secure }) => {
                let count = client.map_or(0, |(_, count)| count);
                let chain: Vec<_> = chain(fields(), field, count).iter().map(ToString::to_string).collect();
                assert_eq!(client.map(|(address, _)| address.to_string()), chain.first().cloned());
                let secure = secure.map_or("", |secure| if secure { " https" } else { " http" });
                format!("{}{secure}", chain.join(" "))
            }
        }
    }

    #[test]
    fn last_untrusted_address_of_x_forwarded_for_is_client() {
        let check = |value: &str, expected: &str| {
            assert_eq!(found(ClientField::XForwardedFor, &[("X-Forwarded-For", value)]), expected, "{value}");
            // The same entries in several lines.
            let lines: Vec<_> = value.split(',').map(|entry| ("x-forwarded-for", entry)).collect();
            assert_eq!(found(ClientField::XForwardedFor, &lines), expected, "{value}");
        };
        check("", "");
        check("192.0.2.1", "192.0.2.1");
        check("192.0.2.1, 192.0.2.2", "192.0.2.2");
        check("192.0.2.1, 10.0.0.1, 10.0.0.2", "192.0.2.1 10.0.0.1 10.0.0.2");
        check("10.0.0.9, 192.0.2.1, 10.0.0.1", "192.0.2.1 10.0.0.1");
        check("10.0.0.9,10.0.0.1", "10.0.0.9 10.0.0.1");
        check("2001:db8::1, fd00::1", "2001:db8::1 fd00::1");
        check("::ffff:192.0.2.1", "192.0.2.1");
        check("192.0.2.1:80, [2001:db8::1]:80", "2001:db8::1");
        check("192.0.2.1:80, ,", "192.0.2.1");
        check("192.0.2.1, unknown", "");
        check("192.0.2.1, unknown, 10.0.0.1", "10.0.0.1");
        check("unknown, 192.0.2.1", "192.0.2.1");
        check("192.0.2.1, 300.0.0.1", "");
        check("192.0.2.1, 192.0.2.2:port", "");
        check("192.0.2.1, 010.0.0.1", "");
        check("192.0.2.1, [::1", "");
        check("192.0.2.1, [192.0.2.1]", "");
        check("192.0.2.1, fe80::1%eth0", "");
    }

    #[test]
    fn scheme_is_that_of_nearest_proxy() {
        let check = |protos: &[&str], expected: &str| {
            let mut lines = vec![("X-Forwarded-For", "192.0.2.1"), ("Forwarded", "for=192.0.2.7;proto=https")];
            lines.extend(protos.iter().map(|proto| ("X-Forwarded-Proto", *proto)));
            assert_eq!(found(ClientField::XForwardedFor, &lines), format!("192.0.2.1{expected}"));
        };
        check(&[], "");
        check(&["https"], " https");
        check(&["HTTPS"], " https");
        check(&["http"], " http");
        check(&["https", "http"], " http");
        check(&["http, https"], " https");
        check(&["wss"], "");
        check(&[""], "");
    }

    #[test]
    fn last_untrusted_address_of_forwarded_is_client() {
        let check = |value: &str, expected: &str| {
            let lines = [("Forwarded", value), ("X-Forwarded-For", "192.0.2.9"), ("X-Forwarded-Proto", "https")];
            assert_eq!(found(ClientField::Forwarded, &lines), expected, "{value}");
        };
        check("", "");
        check("for=192.0.2.1", "192.0.2.1");
        check("For=\"192.0.2.1:80\";Proto=https;by=10.0.0.1", "192.0.2.1 https");
        check("for=192.0.2.1;proto=http, for=10.0.0.1;proto=https", "192.0.2.1 10.0.0.1 http");
        check("for=192.0.2.1, for=192.0.2.2 ; proto=https", "192.0.2.2 https");
        check("for=\"[2001:db8::1]:4711\"", "2001:db8::1");
        check("for=\"[2001:db8::1]:_port\"", "2001:db8::1");
        check("for=[2001:db8::1]", "2001:db8::1");
        check("for=\"1\\92.0.2.1\"", "192.0.2.1");
        check("for=192.0.2.1, for=_hidden;proto=https", " https");
        check("for=unknown, for=10.0.0.1", "10.0.0.1");
        check("for=192.0.2.1, proto=https", " https");
        check("host=\"a,b;for=192.0.2.3\";for=192.0.2.1", "192.0.2.1");
        check("for=192.0.2.1,, for=10.0.0.1,", "192.0.2.1 10.0.0.1");
        check(&format!("for=\"{}\"", "1".repeat(100)), "");
        // A client must not hide the proxy's entry in its own.
        for malformed in
            ["for=\"a, for=192.0.2.1", "for=", "for", "=;", "for=a for=b", "for=a;for=b", "for=\"a\"b", "for=\"a\\"]
        {
            check(malformed, "malformed");
        }
        assert_eq!(
            found(ClientField::Forwarded, &[("Forwarded", "for=\"a"), ("Forwarded", "for=192.0.2.1")]),
            "malformed"
        );
    }

    proptest! {
        #[test]
        fn entries_before_last_untrusted_one_are_ignored(
            forged in "[ -~]{0,40}",
            client: [u8; 4],
            proxies in prop::collection::vec(any::<[u8; 3]>(), 0..4),
        ) {
            let client = IpAddr::from(client);
            prop_assume!(!is_trusted(client));
            let mut value = format!("{forged}, {client}");
            for [a, b, c] in &proxies {
                value.push_str(&format!(", 10.{a}.{b}.{c}"));
            }
            let fields = || [(&b"X-Forwarded-For"[..], value.as_bytes())].into_iter();
            let found = origin(fields, ClientField::XForwardedFor, is_trusted).expect("any list");
            prop_assert_eq!(found.client, Some((client, 1 + proxies.len())));
        }

        #[test]
        fn any_text_is_read_without_panic(value: Vec<u8>, trusts: bool) {
            for (name, field) in [("forwarded", ClientField::Forwarded), ("x-forwarded-for", ClientField::XForwardedFor)] {
                let fields = || [(name.as_bytes(), &value[..])].into_iter();
                if let Ok(Origin { client: Some((address, count)), .. }) = origin(fields, field, |_| trusts) {
                    let chain = chain(fields(), field, count);
                    prop_assert_eq!((chain.first(), chain.len()), (Some(&address), count));
                }
            }
        }
    }
}
