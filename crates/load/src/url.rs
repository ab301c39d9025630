//! Parses the URL of a server (RFC 3986, 3; RFC 9110, 4.2).

use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};

use amped_measure::Failure;

/// An `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether it is `https`.
    pub secure: bool,
    /// Name or address; an IPv6 address without its brackets.
    pub host: String,
    /// The port; by default 80, or 443 for `https`.
    pub port: u16,
    /// Host and port as written in the URL, for the Host field.
    pub authority: String,
    /// Path and query, as in a request line.
    pub target: String,
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// A text that says what to write.
    pub fn parse(text: &str) -> Result<Url, String> {
        let wrong = |why: &str| format!("{text:?} {why}; write, for example, http://127.0.0.1:8080/");
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(wrong("has no scheme"));
        };
        let secure = scheme.eq_ignore_ascii_case("https");
        if !secure && !scheme.eq_ignore_ascii_case("http") {
            return Err(wrong("has a scheme that is neither http nor https"));
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        // A fragment is not sent.
        let target = target.split('#').next().unwrap_or_default();
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("has a character that must be percent-encoded"));
        }
        if authority.contains('@') {
            return Err(wrong("contains a user name, which http does not send"));
        }
        // The last colon, unless it is in the brackets of an IPv6 address.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (authority, None),
        };
        let port = port.filter(|port| !port.is_empty()).map_or(Ok(if secure { 443 } else { 80 }), str::parse);
        let port: u16 = port.ok().filter(|port| *port > 0).ok_or_else(|| wrong("has no port from 1 to 65535"))?;
        // RFC 3986, 3.2.2: only addresses in brackets have colons.
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bare.map_or(host.contains([':', '[', ']']), |bare| bare.parse::<Ipv6Addr>().is_err()) {
            return Err(wrong(
                "has a host that is neither a name nor an address (write an IPv6 address in brackets: [::1])",
            ));
        }
        let host = bare.unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("names no host"));
        }
        Ok(Url { secure, host: host.to_owned(), port, authority: authority.to_owned(), target })
    }

    /// The address of the host: the first from the system's resolver.
    ///
    /// # Errors
    /// When the name does not resolve.
    pub fn resolve(&self) -> Result<SocketAddr, Failure> {
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let found = found.map_err(|error| {
            Failure::failed(format!(
                "{} does not resolve: {error}; use an address, or check with `getent hosts`",
                self.host
            ))
        })?;
        found.into_iter().next().ok_or_else(|| Failure::failed(format!("{} has no address", self.host)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn valid_urls_parse_and_invalid_ones_fail() {
        let check = |text: &str, expected: Option<(&str, u16, &str, &str)>| {
            let found = Url::parse(text).ok();
            let found = found.as_ref().map(|url| (&url.host[..], url.port, &url.authority[..], &url.target[..]));
            assert_eq!(found, expected, "{text:?}");
        };
        check("http://a", Some(("a", 80, "a", "/")));
        check("HTTP://a:8080/b?c=d#e", Some(("a", 8080, "a:8080", "/b?c=d")));
        check("http://a?b", Some(("a", 80, "a", "/?b")));
        check("http://[::1]:81/", Some(("::1", 81, "[::1]:81", "/")));
        check("http://[::1]/", Some(("::1", 80, "[::1]", "/")));
        check("HTTPS://a/b", Some(("a", 443, "a", "/b")));
        check("https://a:8443", Some(("a", 8443, "a:8443", "/")));
        assert!(Url::parse("https://a/").unwrap().secure && !Url::parse("http://a/").unwrap().secure);
        for bad in
            ["", "127.0.0.1:80/", "http:/a", "http://", "http://:80/", "http://a:x/", "http://a:0/", "http://a b/"]
        {
            check(bad, None);
        }
        for bad in ["http://::1:81/", "http://[::1:81/", "http://::1]/", "http://[::1]x/", "http://[a]/", "http://[]/"]
        {
            check(bad, None);
        }
        for bad in ["httpx://a/", "ftp://a/", "http://a:65536/", "http://u@a/", "http://a/\r\nX: y"] {
            check(bad, None);
        }
    }

    proptest! {
        #[test]
        fn parsed_url_has_no_line_break(text in "http://\\PC{0,30}") {
            if let Ok(url) = Url::parse(&text) {
                prop_assert!(url.target.starts_with('/'));
                prop_assert!((url.target + &url.authority).bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
