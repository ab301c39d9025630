//! The format of lines of the access log: a named one, a template with variables, or a list of fields.
//!
//! Templates and lists are compiled when the configuration is read, into literal text and fields. `access_log` writes them.
//! The fields have the names of nginx's variables.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use amped_http::text::variables;
use amped_units::parse_text;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Line format of the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Common Log Format
    Common,
    /// Common, with Referer and User-Agent
    #[default]
    Combined,
    /// One JSON object per line
    Json,
    /// A template.
    Template(Arc<Template>),
    /// One JSON object per line, with these fields.
    Fields(Arc<[LogField]>),
}

/// The names of formats, and what they are.
const NAMED: [(&str, LogFormat, &str); 3] = [
    ("common", LogFormat::Common, "Common Log Format"),
    ("combined", LogFormat::Combined, "Common, with Referer and User-Agent"),
    ("json", LogFormat::Json, "One JSON object per line"),
];

/// A compiled template.
#[derive(Debug, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    /// Its parts in order.
    pub parts: Vec<LogPart>,
}

/// A part of a template.
#[derive(Debug, PartialEq, Eq)]
pub enum LogPart {
    /// This text.
    Literal(Box<str>),
    /// The value of this field.
    Field(LogField),
}

macro_rules! fields {
    ($($name:literal $variant:ident $about:literal,)*) => {
        /// A field of a line.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LogField {
            $(#[doc = $about] $variant,)*
        }

        const FIELDS: &[(&str, LogField)] = &[$(($name, LogField::$variant)),*];
    };
}

fields! {
    "remote_addr" RemoteAddr "The address of the client.",
    "realip_remote_addr" PeerAddr "The address of the peer: that of the client, or of the proxy that has named it.",
    "remote_user" RemoteUser "The user name.",
    "time_local" TimeLocal "The local time, as in Common.",
    "time_iso8601" TimeIso "The local time by ISO 8601.",
    "host" Host "The requested host.",
    "scheme" Scheme "The scheme of the request.",
    "request" Request "The request line.",
    "request_id" RequestId "The ID of the request.",
    "request_method" Method "The method.",
    "request_uri" Target "The target as sent.",
    "server_protocol" Protocol "The version of HTTP.",
    "status" Status "The status.",
    "body_bytes_sent" BodyBytes "Bytes of the body that were sent.",
    "bytes_sent" Bytes "Bytes that were sent, with the head.",
    "request_time" RequestTime "Seconds from the first byte of the request to the last one of the response.",
    "http_referer" Referer "The Referer field.",
    "http_user_agent" UserAgent "The User-Agent field.",
    "ssl_protocol" TlsVersion "The version of TLS.",
    "ssl_cipher" TlsCipher "The cipher suite.",
    "ssl_client_s_dn" TlsSubject "The subject of the client's certificate.",
    "upstream_addr" Upstream "The `http` server that responded.",
    "upstream_header_time" UpstreamTime "Seconds until the application's response began.",
    "upstream_cache_status" Cache "How the response was found.",
}

impl LogField {
    /// Its name.
    pub fn name(self) -> &'static str {
        FIELDS.iter().find(|(_, field)| *field == self).map_or("", |(name, _)| name)
    }

    fn of(name: &str) -> Result<LogField, String> {
        let known = FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| *field);
        known.ok_or_else(|| {
            let names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
            format!("`{}` is not a field of the log\nwrite one of {}", name.escape_debug(), names.join(", "))
        })
    }
}

impl LogFormat {
    /// Whether lines have the time that a request took, for which the clock is read.
    pub fn has_duration(&self) -> bool {
        match self {
            LogFormat::Common | LogFormat::Combined => false,
            LogFormat::Json => true,
            LogFormat::Template(template) => template.parts.contains(&LogPart::Field(LogField::RequestTime)),
            LogFormat::Fields(fields) => fields.contains(&LogField::RequestTime),
        }
    }

    /// Whether it is one of the named formats.
    pub fn is_named(&self) -> bool {
        !matches!(self, LogFormat::Template(_) | LogFormat::Fields(_))
    }
}

impl Template {
    /// Compiles a template; the error is the message and the remedy.
    fn parse(text: &str) -> Result<Template, String> {
        if text.contains(char::is_control) && text.chars().any(|c| c.is_control() && c != '\t') {
            return Err("the template contains a control character\nwrite one line; only tabs are allowed".into());
        }
        let mut parts = Vec::new();
        for (text, variable) in variables(text)? {
            if !text.is_empty() {
                parts.push(LogPart::Literal(text.into()));
            }
            if let Some(name) = variable {
                parts.push(LogPart::Field(LogField::of(name)?));
            }
        }
        Ok(Template { text: text.into(), parts })
    }
}

impl Serialize for LogField {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for LogField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LogField, D::Error> {
        parse_text(deserializer, LogField::of)
    }
}

impl Serialize for LogFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            LogFormat::Template(template) => serializer.serialize_str(&template.text),
            LogFormat::Fields(fields) => serializer.collect_seq(fields.iter()),
            named => {
                serializer.serialize_str(NAMED.iter().find(|(_, it, _)| it == named).map_or("", |(name, ..)| name))
            }
        }
    }
}

impl<'de> Deserialize<'de> for LogFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LogFormat, D::Error> {
        deserializer.deserialize_any(FormatVisitor)
    }
}

struct FormatVisitor;

impl<'de> Visitor<'de> for FormatVisitor {
    type Value = LogFormat;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<LogFormat, E> {
        if let Some((_, format, _)) = NAMED.iter().find(|(name, ..)| *name == text) {
            return Ok(format.clone());
        }
        if !text.contains('$') {
            return Err(E::unknown_variant(text, &["common", "combined", "json"]));
        }
        Template::parse(text).map(|template| LogFormat::Template(Arc::new(template))).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LogFormat, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = list.next_element()? {
            fields.push(field);
        }
        if fields.is_empty() {
            let why =
                "`format` is empty\nwrite fields such as [\"time_iso8601\", \"remote_addr\", \"request\", \"status\"]";
            return Err(serde::de::Error::custom(why));
        }
        Ok(LogFormat::Fields(fields.into()))
    }
}

impl JsonSchema for LogFormat {
    fn schema_name() -> Cow<'static, str> {
        "LogFormat".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let named = NAMED.iter().map(|(name, _, about)| json_schema!({ "const": name, "description": about }));
        let names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
        let others = [
            json_schema!({ "type": "string", "pattern": "\\$" }),
            json_schema!({ "type": "array", "items": { "enum": names } }),
        ];
        json_schema!({ "oneOf": named.chain(others).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_is_split_into_literals_and_fields() {
        let literal = |text: &str| LogPart::Literal(text.into());
        let check = |text: &str, expected: &[LogPart]| {
            assert_eq!(Template::parse(text).expect(text).parts, expected, "{text}");
        };
        check("$status", &[LogPart::Field(LogField::Status)]);
        check(
            "a $host:\"${request}\"s\t$status$scheme",
            &[
                literal("a "),
                LogPart::Field(LogField::Host),
                literal(":\""),
                LogPart::Field(LogField::Request),
                literal("\"s\t"),
                LogPart::Field(LogField::Status),
                LogPart::Field(LogField::Scheme),
            ],
        );
        for text in ["$", "a$ b", "$nothing", "${status", "$status\n", "$http_x"] {
            assert!(Template::parse(text).expect_err(text).contains('\n'), "{text}");
        }
    }
}
