//! How files write times and amounts of bytes: `"10s"`, `"64KiB"` or `512`, for serde and for a JSON Schema.
//!
//! A field of type `Duration` names its form: `#[serde(with = "Seconds")]`, or `OptionalSeconds` for an `Option`. Units of a
//! time are those that a person writes in a configuration, and what is printed reads back to the same.

extern crate alloc;

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::bytes::Bytes;

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount of bytes such as \"64KiB\", \"10MB\" or 512")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Bytes, E> {
                u64::try_from(n).map(Bytes).map_err(|_| E::invalid_value(de::Unexpected::Signed(n), &self))
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Bytes, E> {
                Ok(Bytes(n))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Bytes {
    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"], "format": "bytes", "pattern": "^[0-9]+ ?([kKMG]|[kKMGT]B|[KMGT]iB|B)?$" })
    }
}

/// The written form of a `Duration`: a whole number and a unit, `"500ms"`, `"10s"`, `"2m"` or `"1h"`.
#[derive(Clone, Copy, Debug)]
pub struct Seconds;

/// Milliseconds in each unit, the largest first.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

impl Seconds {
    /// The text of a time in the largest unit that leaves a whole number; less than a millisecond is dropped.
    pub fn text(time: Duration) -> String {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let fits = |(_, scale): &&(&str, u64)| ms >= *scale && ms.is_multiple_of(*scale);
        let (unit, scale) = UNITS.iter().find(fits).unwrap_or(&("s", 1000));
        format!("{}{unit}", ms / scale)
    }

    /// Writes a time.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Seconds::text(*time))
    }

    /// Reads a time.
    ///
    /// # Errors
    /// For a value that is no text of a time.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"500ms\", \"10s\", \"2m\" or \"1h\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                let wrong = || E::invalid_value(de::Unexpected::Str(text), &self);
                let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
                let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(wrong)?;
                let number: u64 = number.parse().map_err(|_| wrong())?;
                number.checked_mul(*scale).map(Duration::from_millis).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Seconds {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "time", "pattern": "^[0-9]+ ?(ms|s|m|h)$" })
    }
}

/// The written form of an `Option<Duration>`: that of [`Seconds`], or the key is absent.
#[derive(Clone, Copy, Debug)]
pub struct OptionalSeconds;

impl OptionalSeconds {
    /// Writes a time, if there is one.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(|time| Seconds::text(time).to_string()).serialize(serializer)
    }

    /// Reads a time that is there.
    ///
    /// # Errors
    /// For a value that is no text of a time.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Seconds::deserialize(deserializer).map(Some)
    }
}

impl JsonSchema for OptionalSeconds {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Seconds::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::value::{Error, I64Deserializer, StrDeserializer};

    #[test]
    fn sizes_and_durations_are_parsed() {
        let time = |text: &str| Seconds::deserialize(StrDeserializer::<Error>::new(text)).ok();
        let ms = |ms| Some(Duration::from_millis(ms));
        for (text, expected) in [("500ms", 500), ("1s", 1000), ("2m", 120_000), ("1 h", 3_600_000), ("0s", 0)] {
            assert_eq!(time(text), ms(expected), "{text}");
            assert_eq!(time(&Seconds::text(Duration::from_millis(expected))), ms(expected), "{text}");
        }
        for bad in ["10", "-1s", "1.5s", "s", "", "99999999999999999h", "1d"] {
            assert_eq!(time(bad), None, "{bad}");
        }
        let number = |n| Bytes::deserialize(I64Deserializer::<Error>::new(n)).ok();
        assert_eq!((number(512), number(-1)), (Some(Bytes(512)), None));
        let text = |text: &str| Bytes::deserialize(StrDeserializer::<Error>::new(text)).ok();
        assert_eq!((text("64KiB"), text("much")), (Some(Bytes(65_536)), None));
    }
}
