//! Addresses of login pages, with variables of the request that led there.

use alloc::vec::Vec;

use amped_http::uri;
use amped_units::forms;

forms! {
    /// Path or URL of a login page, with variables.
    LoginUrl: |text| is_login_url(text) => text,
        "is not the address of a login page",
        "write a path such as `/oauth2/sign_in?rd=$request_uri`, or a URL such as `https://auth.example.org/?rd=$scheme://$host$request_uri`, \
         percent-encoded and with no other variables";
}

/// A client that chose the host could lead others to its own page.
fn is_login_url(text: &str) -> bool {
    let url = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let is_whole = match url {
        Some(rest) => rest.find(['/', '?']).is_some_and(|end| end > 0 && !rest[..end].contains('$')),
        None => text.starts_with('/') && !text.starts_with("//"),
    };
    let is_known = |part: &str| Variable::ALL.iter().any(|variable| part.starts_with(variable.name()));
    is_whole
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"#\\".contains(&byte))
        && text.split('$').skip(1).all(is_known)
}

/// A variable in such an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variable {
    Scheme,
    Host,
    RequestUri,
}

impl Variable {
    pub(crate) const ALL: [Variable; 3] = [Variable::Scheme, Variable::Host, Variable::RequestUri];

    /// Its name after the `$`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Variable::Scheme => "scheme",
            Variable::Host => "host",
            Variable::RequestUri => "request_uri",
        }
    }
}

/// The address for a request. `value`: that of a variable; it is encoded as the value of a query.
pub(crate) fn fill<'v>(address: &str, value: impl Fn(Variable) -> &'v [u8]) -> Vec<u8> {
    let mut parts = address.split('$');
    let mut made = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let variable = Variable::ALL.into_iter().find(|variable| part.starts_with(variable.name()));
        if let Some(variable) = variable {
            uri::encode_query_value(value(variable), &mut made);
        }
        made.extend_from_slice(&part.as_bytes()[variable.map_or(0, |variable| variable.name().len())..]);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_units::Form as _;

    #[test]
    fn address_is_a_path_or_has_a_fixed_host() {
        for (address, is_valid) in [
            ("/login", true),
            ("/login?to=$request_uri", true),
            ("https://sso.example/?rd=$scheme://$host$request_uri&a=b", true),
            ("https://sso.example", false),
            ("https://$host/login", false),
            ("https://sso.$host/login", false),
            ("//sso.example/", false),
            ("login", false),
            ("/login?to=$uri", false),
            ("/login?to=$", false),
            ("/log in", false),
            ("/login#a", false),
            ("/\\sso.example", false),
        ] {
            assert_eq!(LoginUrl::parse(address).is_ok(), is_valid, "{address}");
        }
    }

    #[test]
    fn variables_are_values_of_a_query() {
        let value = |variable| match variable {
            Variable::Scheme => &b"https"[..],
            Variable::Host => b"a.example:1",
            Variable::RequestUri => b"/a%20b?c=d&e=$host",
        };
        let made = fill("/in?rd=$scheme://$host$request_uri&x=$scheme", value);
        assert_eq!(made, b"/in?rd=https://a.example%3A1/a%2520b%3Fc%3Dd%26e%3D%24host&x=https");
    }
}
