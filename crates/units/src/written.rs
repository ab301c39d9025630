//! The notation of times and amounts of bytes in files: `"10s"`, `"64KiB"` or `512`, for serde and for a JSON Schema.
//!
//! A field names its form, and with it its range: `#[serde(with = "Seconds")]` for a `Duration`, `with = "Positive"`
//! for a number from 1. Times have the units that are usual in configurations, and printed values parse back without
//! loss.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
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

/// The written form of an amount of bytes that must not be zero.
#[derive(Clone, Copy, Debug)]
pub struct PositiveBytes;

impl PositiveBytes {
    /// Writes an amount.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        bytes.serialize(serializer)
    }

    /// Reads an amount.
    ///
    /// # Errors
    /// For a value that is not an amount of bytes, or is zero.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        match Bytes::deserialize(deserializer)? {
            Bytes(0) => Err(de::Error::custom("cannot be zero")),
            bytes => Ok(bytes),
        }
    }
}

impl JsonSchema for PositiveBytes {
    fn schema_name() -> Cow<'static, str> {
        "PositiveBytes".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Bytes::json_schema(generator);
        schema.insert("x-positive".into(), true.into());
        schema
    }
}

/// The written form of a `usize`, or of an `Option<usize>` whose key may be absent, from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug)]
pub struct Count<const MIN: usize, const MAX: usize>;

/// The written form of a number that must not be zero.
pub type Positive = Count<1, { usize::MAX }>;

impl<const MIN: usize, const MAX: usize> Count<MIN, MAX> {
    /// Writes a number.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: Copy + Into<Option<usize>>, S: Serializer>(
        number: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        (*number).into().serialize(serializer)
    }

    /// Reads a number.
    ///
    /// # Errors
    /// For a value that is not a number, or is out of range.
    pub fn deserialize<'de, T: From<usize>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        let number = usize::deserialize(deserializer)?;
        match (MIN..=MAX).contains(&number) {
            true => Ok(number.into()),
            false => Err(de::Error::custom(format!("cannot be {number}"))),
        }
    }
}

impl<const MIN: usize, const MAX: usize> JsonSchema for Count<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("Count{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({ "type": "integer", "minimum": MIN });
        if MAX < usize::MAX {
            schema.insert("maximum".into(), MAX.into());
        }
        schema
    }
}

/// The written form of a `Duration`, or of an `Option<Duration>` whose key may be absent, of at least `MIN_MS`: a whole
/// number and a unit, `"500ms"`, `"10s"`, `"2m"` or `"1h"`.
#[derive(Clone, Copy, Debug)]
pub struct TimeFrom<const MIN_MS: u64>;

/// The written form of any `Duration`.
pub type Seconds = TimeFrom<0>;

/// The written form of a `Duration` that must not be zero.
pub type PositiveSeconds = TimeFrom<1>;

/// Milliseconds in each unit, the largest first.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

impl<const MIN_MS: u64> TimeFrom<MIN_MS> {
    /// Formats a time in the largest unit that leaves a whole number; fractions of a millisecond are dropped.
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
    pub fn serialize<T: Copy + Into<Option<Duration>>, S: Serializer>(
        time: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        (*time).into().map(Self::text).serialize(serializer)
    }

    /// Reads a time.
    ///
    /// # Errors
    /// For a value that is not a time, or a time that is too short.
    pub fn deserialize<'de, T: From<Duration>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"500ms\", \"10s\", \"2m\" or \"1h\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
                let wrong = || E::invalid_value(de::Unexpected::Str(text), &self);
                let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
                let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(wrong)?;
                let number: u64 = number.parse().map_err(|_| wrong())?;
                number.checked_mul(*scale).ok_or_else(wrong)
            }
        }
        match deserializer.deserialize_any(Reader)? {
            ms if ms < MIN_MS => Err(de::Error::custom("cannot be zero")),
            ms => Ok(Duration::from_millis(ms).into()),
        }
    }
}

impl<const MIN_MS: u64> JsonSchema for TimeFrom<MIN_MS> {
    fn schema_name() -> Cow<'static, str> {
        format!("TimeFrom{MIN_MS}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({ "type": "string", "format": "time", "pattern": "^[0-9]+ ?(ms|s|m|h)$" });
        if MIN_MS > 0 {
            schema.insert("x-positive".into(), true.into());
        }
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::value::{Error, I64Deserializer, StrDeserializer};

    #[test]
    fn sizes_and_durations_are_parsed() {
        let time = |text: &str| Seconds::deserialize::<Duration, _>(StrDeserializer::<Error>::new(text)).ok();
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
    #[test]
    fn values_outside_their_range_are_rejected() {
        let number = |n| Count::<2, 3>::deserialize::<usize, _>(I64Deserializer::<Error>::new(n)).ok();
        assert_eq!([1, 2, 3, 4].map(number), [None, Some(2), Some(3), None]);
        let time = |text: &str| PositiveSeconds::deserialize(StrDeserializer::<Error>::new(text)).ok();
        assert_eq!((time("0s"), time("1ms")), (None, Some(Some(Duration::from_millis(1)))));
        let bytes = |n| PositiveBytes::deserialize(I64Deserializer::<Error>::new(n)).ok();
        assert_eq!([0, 1].map(bytes), [None, Some(Bytes(1))]);
    }
}
