//! Fields that the operator sets in forwarded requests, in place of the client's.
//!
//! A value is text with variables, which have the names of nginx's. [`RequestField::fill`] replaces those that the request has;
//! `gateway` writes the rest with the head, when the two ends of the client's connection are known.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::request::Request;
use crate::cgi::is_plain_name;
use crate::text::{push_decimal, trim_ows, variables};
use crate::uri::Target;

/// A field with its value; one that is empty only removes the client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestField {
    name: Box<str>,
    value: Template,
}

/// Text with variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(Vec<Part>);

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<[u8]>),
    Variable(Variable),
}

macro_rules! variables {
    ($($name:literal $variant:ident $about:literal,)*) => {
        /// A variable other than a field of the client's request.
        #[derive(Clone, Debug, PartialEq, Eq)]
        enum Variable {
            $(#[doc = $about] $variant,)*
            /// The value of the field with this name, in which `_` stands for `-`.
            Field(Box<str>),
        }

        impl Variable {
            const NAMES: &[&str] = &[$($name),*];

            fn of(name: &str) -> Option<Variable> {
                match name {
                    $($name => Some(Variable::$variant),)*
                    _ => name.strip_prefix("http_").filter(|name| !name.is_empty()).map(|name| Variable::Field(name.into())),
                }
            }
        }
    };
}

variables! {
    "remote_addr" RemoteAddress "The address of the client.",
    "remote_user" User "The user that the server has authenticated.",
    "host" Host "The requested host in lower case, without its port.",
    "http_host" HostField "The Host field as sent.",
    "scheme" Scheme "The scheme of the request.",
    "request_method" Method "The method.",
    "request_uri" Target "The target as sent.",
    "server_port" ServerPort "The port of the connection at the server.",
    "ssl_protocol" TlsVersion "The version of TLS.",
    "ssl_cipher" TlsCipher "The cipher suite.",
    "ssl_client_verify" TlsVerified "Whether the client has presented a certificate: `SUCCESS` or `NONE`.",
    "ssl_client_s_dn" TlsSubject "The subject of the client's certificate.",
}

/// The ends of a client's connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientConnection<'a> {
    /// The address of the other end, without its port, which is the client or a proxy.
    pub peer: Option<&'a str>,
    /// The port of the server.
    pub port: Option<u16>,
    /// Its TLS session.
    pub tls: Option<ClientSession<'a>>,
}

/// A TLS session with a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientSession<'a> {
    /// The version, such as `TLSv1.3`.
    pub version: &'a str,
    /// The cipher suite.
    pub cipher: &'a str,
    /// The subject of the client's certificate, if it has presented one.
    pub subject: Option<&'a str>,
}

impl RequestField {
    /// Parses a value.
    ///
    /// # Errors
    /// For an unknown variable: the message and, in a second line, the remedy.
    pub fn new(name: &str, value: &str) -> Result<RequestField, String> {
        Ok(RequestField { name: name.into(), value: Template::new(value)? })
    }

    /// Whether the value may differ from request to request.
    pub fn is_variable(&self) -> bool {
        self.value.0.iter().any(|part| matches!(part, Part::Variable(_)))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the field with the values of this request, which has these fields, in place of their variables.
    pub(super) fn fill<'a, I: Iterator<Item = (&'a [u8], &'a [u8])>>(
        &self,
        request: &Request<'_>,
        fields: impl Fn() -> I,
        user: Option<&[u8]>,
    ) -> RequestField {
        RequestField { name: self.name.clone(), value: self.value.fill(request, fields, user) }
    }

    /// Returns the value after [`fill`](RequestField::fill).
    pub(super) fn value(&self, client: Option<&str>, connection: &ClientConnection<'_>) -> Vec<u8> {
        trim_ows(&self.value.text(client, connection)).to_owned()
    }
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// For an unknown variable: the message and, in a second line, the remedy.
    pub(super) fn new(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        for (text, name) in variables(text)? {
            if !text.is_empty() {
                parts.push(Part::Text(text.as_bytes().into()));
            }
            if let Some(name) = name {
                let known = Variable::of(name).ok_or_else(|| {
                    format!(
                        "`${}` is not a variable of requests\nwrite one of ${}, or $http_NAME for a field of the client",
                        name.escape_debug(),
                        Variable::NAMES.join(", $")
                    )
                })?;
                parts.push(Part::Variable(known));
            }
        }
        Ok(Template(parts))
    }

    /// Returns the template with the values of this request, which has these fields, in place of their variables.
    pub(super) fn fill<'a, I: Iterator<Item = (&'a [u8], &'a [u8])>>(
        &self,
        request: &Request<'_>,
        fields: impl Fn() -> I,
        user: Option<&[u8]>,
    ) -> Template {
        let values = |name: &str| {
            // A field such as `X_User` is another one, which no backend gets.
            let is_it = |found: &[u8]| {
                found.len() == name.len() && is_plain_name(found) && found.iter().zip(name.bytes()).all(is_same)
            };
            let found: Vec<&[u8]> = fields().filter(|(found, _)| is_it(found)).map(|(_, value)| value).collect();
            found.join(&b", "[..])
        };
        let fill = |part: &Part| {
            let Part::Variable(variable) = part else { return part.clone() };
            let value = match variable {
                Variable::User => user.unwrap_or_default().to_owned(),
                Variable::Host => request.host.to_ascii_lowercase(),
                Variable::HostField => values("host"),
                Variable::Scheme => if request.secure { "https" } else { "http" }.into(),
                Variable::Method => request.method_text.to_owned(),
                Variable::Target => match request.target {
                    Target::Absolute { path, query: Some(query), .. } => [path, b"?", query].concat(),
                    Target::Absolute { path, .. } => path.to_owned(),
                    _ => request.target_text.to_owned(),
                },
                Variable::Field(name) => values(name),
                _ => return part.clone(),
            };
            Part::Text(value.into())
        };
        Template(self.0.iter().map(fill).collect())
    }

    /// Returns the text after [`fill`](Template::fill).
    pub(super) fn text(&self, client: Option<&str>, connection: &ClientConnection<'_>) -> Vec<u8> {
        let mut value = Vec::new();
        let of_tls = |text: fn(&ClientSession<'_>) -> Vec<u8>| connection.tls.as_ref().map(text).unwrap_or_default();
        for part in &self.0 {
            match part {
                Part::Text(text) => value.extend_from_slice(text),
                Part::Variable(Variable::RemoteAddress) => {
                    value.extend_from_slice(client.unwrap_or_default().as_bytes())
                }
                Part::Variable(Variable::ServerPort) => {
                    connection.port.iter().for_each(|port| push_decimal(&mut value, (*port).into()));
                }
                Part::Variable(Variable::TlsVersion) => value.extend(of_tls(|tls| tls.version.into())),
                Part::Variable(Variable::TlsCipher) => value.extend(of_tls(|tls| tls.cipher.into())),
                Part::Variable(Variable::TlsSubject) => {
                    value.extend(of_tls(|tls| tls.subject.unwrap_or_default().into()));
                }
                Part::Variable(Variable::TlsVerified) => {
                    value.extend(of_tls(|tls| if tls.subject.is_some() { "SUCCESS" } else { "NONE" }.into()));
                }
                // They were filled.
                Part::Variable(_) => {}
            }
        }
        value
    }
}

/// Whether a byte of a field's name is this one of a variable's name.
fn is_same((of_field, of_variable): (&u8, u8)) -> bool {
    of_field.eq_ignore_ascii_case(&of_variable) || *of_field == b'-' && of_variable == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::request::{self, HeadLimits};

    fn value(template: &str) -> String {
        value_for(
            "GET /a%20b?c HTTP/1.1\r\nHost: Example.org:81\r\nX-Some: 1\r\nX_Some: 9\r\nX-Some: 2\r\nUser-Agent: a\r\n\r\n",
            template,
        )
    }

    fn value_for(head: &str, template: &str) -> String {
        let head = head.as_bytes();
        let (request, _) = request::parse(head, &HeadLimits::unlimited(true)).expect("good").expect("whole");
        let field = RequestField::new("X-Any", template).expect("valid");
        let filled = field.fill(&request, || request::fields(head), Some(b"ann"));
        let tls = ClientSession { version: "TLSv1.3", cipher: "TLS_AES", subject: None };
        let connection = ClientConnection { peer: Some("192.0.2.9"), port: Some(8443), tls: Some(tls) };
        String::from_utf8(filled.value(Some("192.0.2.1"), &connection)).expect("ASCII")
    }

    #[test]
    fn variables_have_values_of_request_and_connection() {
        for (template, expected) in [
            ("", ""),
            ("text", "text"),
            ("$scheme://$http_host$request_uri", "https://Example.org:81/a%20b?c"),
            ("${host}x", "example.orgx"),
            ("$request_method $remote_user", "GET ann"),
            ("$remote_addr:$server_port", "192.0.2.1:8443"),
            ("$ssl_protocol $ssl_cipher $ssl_client_verify$ssl_client_s_dn", "TLSv1.3 TLS_AES NONE"),
            ("$http_x_some; $http_user_agent", "1, 2; a"),
            (" $http_absent ", ""),
        ] {
            assert_eq!(value(template), expected, "{template}");
        }
    }

    #[test]
    fn target_is_path_and_query_in_absolute_form_too() {
        for (target, expected) in [("http://h/a?b", "/a?b"), ("http://h/a", "/a"), ("*", "*")] {
            let method = if target == "*" { "OPTIONS" } else { "GET" };
            let head = format!("{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(value_for(&head, "$request_uri"), expected, "{target}");
        }
    }

    #[test]
    fn unknown_variable_is_an_error() {
        for template in ["$uri", "a$", "$http_", "${host", "$ host"] {
            RequestField::new("X-Any", template).expect_err(template);
        }
    }
}
