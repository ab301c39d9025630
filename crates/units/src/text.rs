//! Forms of text in configuration files, checked when the text is parsed.
//!
//! A field names its form: `#[serde(deserialize_with = "HostName::text")]`, `list` for a list, `map` for a table. The
//! error has the position of the text, and two lines: the message and the remedy.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A form of text.
pub trait Form: Sized {
    /// Whether texts that differ only in case are equal.
    const ANY_CASE: bool = false;

    /// Checks a text and returns its stored form.
    ///
    /// # Errors
    /// The message and, in a second line, the remedy.
    fn parse(text: &str) -> Parsed;

    /// Reads a text, or an optional one.
    ///
    /// # Errors
    /// For a value of another form.
    fn text<'de, T: From<Box<str>>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        parse_text(deserializer, Self::parse).map(T::from)
    }

    /// Reads a list of texts.
    ///
    /// # Errors
    /// For a value of another form, or a duplicate.
    fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Box<str>>, D::Error> {
        deserializer.deserialize_seq(List(PhantomData::<Self>))
    }

    /// Reads a text as a list of one, or a list of texts; an optional one.
    ///
    /// # Errors
    /// For a value of another form, or a duplicate.
    fn one_or_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Box<str>>>, D::Error> {
        deserializer.deserialize_any(OneOrList(PhantomData::<Self>)).map(Some)
    }

    /// Reads a table whose values have the form `V`.
    ///
    /// # Errors
    /// For a name or value of another form, or a duplicate name.
    fn map<'de, V: Form, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<Box<str>, Box<str>>, D::Error> {
        deserializer.deserialize_map(Table(PhantomData::<(Self, V)>))
    }
}

/// Reads a text by `parse`, whose error is the message and, in a second line, the remedy.
///
/// # Errors
/// That of `parse`, with the position of the text even if it is in a list: unlike an error after `String::deserialize`,
/// it occurs within the text.
pub fn parse_text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(Parse(parse))
}

/// Implements the notation of a type in files, for serde and for a JSON Schema: it is written as it is displayed, and read by
/// a function as [`parse_text`] takes it. Further arguments: the keywords of its schema besides the type.
#[macro_export]
macro_rules! written_as_text {
    ($type:ident, $parse:expr, $($schema:tt)+) => {
        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                $crate::text::parse_text(deserializer, $parse)
            }
        }

        impl ::schemars::JsonSchema for $type {
            fn schema_name() -> $crate::text::SchemaName {
                stringify!($type).into()
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                ::schemars::json_schema!({ "type": "string", $($schema)+ })
            }
        }
    };
}

/// The name of a type in a JSON Schema.
pub type SchemaName = Cow<'static, str>;

struct Parse<P>(P);

impl<T, P: FnOnce(&str) -> Result<T, String>> Visitor<'_> for Parse<P> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }
}

/// Reads a text that must differ from those before it.
struct Text<'a, F>(&'a [Box<str>], PhantomData<F>);

impl<'de, F: Form> DeserializeSeed<'de> for Text<'_, F> {
    type Value = Box<str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Box<str>, D::Error> {
        parse_text(deserializer, |text| {
            let kept = F::parse(text)?;
            let is_same = |earlier: &str| *earlier == *kept || F::ANY_CASE && earlier.eq_ignore_ascii_case(&kept);
            match self.0.iter().any(|earlier| is_same(earlier)) {
                true => Err(format!("duplicate `{}`\nremove one of them", text.escape_debug())),
                false => Ok(kept),
            }
        })
    }
}

struct List<F>(PhantomData<F>);

impl<'de, F: Form> Visitor<'de> for List<F> {
    type Value = Vec<Box<str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut read = Vec::new();
        while let Some(text) = list.next_element_seed(Text::<F>(&read, PhantomData))? {
            read.push(text);
        }
        Ok(read)
    }
}

struct OneOrList<F>(PhantomData<F>);

impl<'de, F: Form> Visitor<'de> for OneOrList<F> {
    type Value = Vec<Box<str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        F::parse(text).map(|text| Vec::from([text])).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        List(PhantomData::<F>).visit_seq(list)
    }
}

struct Table<K, V>(PhantomData<(K, V)>);

impl<'de, K: Form, V: Form> Visitor<'de> for Table<K, V> {
    type Value = BTreeMap<Box<str>, Box<str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Self::Value, A::Error> {
        let (mut names, mut values) = (Vec::new(), Vec::new());
        while let Some(name) = table.next_key_seed(Text::<K>(&names, PhantomData))? {
            names.push(name);
            values.push(table.next_value_seed(Text::<V>(&[], PhantomData))?);
        }
        Ok(names.into_iter().zip(values).collect())
    }
}

/// The stored form of a text, or the message and, in a second line, the remedy.
pub type Parsed = Result<Box<str>, String>;

/// Returns the error for a text of another form.
///
/// # Errors
/// Always.
pub fn wrong(text: &str, message: &str, remedy: &str) -> Parsed {
    Err(format!("`{}` {message}\n{remedy}", text.escape_debug()))
}

/// Defines forms of text: `Name: |text| condition => stored text, message, remedy;`. The message continues the text.
#[macro_export]
macro_rules! forms {
    ($($(#[$doc:meta])* $name:ident: |$text:ident| $good:expr => $kept:expr, $message:expr, $remedy:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl $crate::text::Form for $name {
            fn parse($text: &str) -> $crate::text::Parsed {
                match $good {
                    true => Ok($kept.into()),
                    false => $crate::text::wrong($text, $message, $remedy),
                }
            }
        }
    )+};
}
