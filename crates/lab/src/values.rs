//! Values of an experiment file: how each is written, and its range.
//!
//! serde calls these while it reads the file, so that an invalid value is reported at its line and column. The same types
//! are written to the archive and sent to other hosts, and read back equal.

use std::fmt::Display;
use std::marker::PhantomData;
use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

use amped_units::{Bytes, parse_duration};
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::channel::HOST;

/// A text that `T` can parse, passed on as it was written.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Checked<T>(String, #[serde(skip)] PhantomData<fn() -> T>);

impl<T> Checked<T> {
    /// A text of this program, which is not checked.
    pub(crate) fn new(text: &str) -> Checked<T> {
        Checked(text.to_owned(), PhantomData)
    }
}

impl<T> Clone for Checked<T> {
    fn clone(&self) -> Checked<T> {
        Checked(self.0.clone(), PhantomData)
    }
}

impl<T> PartialEq for Checked<T> {
    fn eq(&self, other: &Checked<T>) -> bool {
        self.0 == other.0
    }
}

impl<T> Display for Checked<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl<T> Deref for Checked<T> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<T: FromStr<Err: Display>> FromStr for Checked<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Checked<T>, T::Err> {
        T::from_str(text).map(|_| Checked(text.to_owned(), PhantomData))
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Checked<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Checked<T>, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Defines a form of [`Checked`] text by a test and an error message.
macro_rules! forms {
    ($($(#[$doc:meta])* $name:ident($text:ident) { $is_sound:expr } else $message:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name;

        impl FromStr for $name {
            type Err = String;

            fn from_str($text: &str) -> Result<$name, String> {
                if $is_sound { Ok($name) } else { Err(format!($message, $text)) }
            }
        }
    )*};
}

forms! {
    /// The path of a request target.
    TargetPath(text) { text.starts_with('/') } else "{:?} is not a path; write \"/index.html\"";
    /// A header field of a request.
    HeaderField(text) { text.contains(": ") } else "{:?} is not a header field; write \"Range: bytes=0-1023\"";
    /// A list of cores for taskset(1).
    CoreList(text) {
        !text.is_empty() && text.split([',', '-']).all(|number| number.parse::<u16>().is_ok())
    } else "{:?} is not a list of cores; write \"0\", \"0,2\" or \"1-3\"";
    /// A duration.
    DurationText(text) { parse_duration(text).is_ok() } else "{:?} is not a duration; write \"10ms\"";
    /// A host, as ssh(1) and others take it, which would parse a leading hyphen as a flag.
    HostName(text) {
        !text.is_empty() && !text.starts_with('-') && !text.contains(char::is_whitespace)
    } else "{:?} is not a host; write it as for ssh: \"server\" or \"user@server\"";
    /// The program that runs a command on a host, and its arguments, of which one contains the host's name.
    Via(text) { text.split_whitespace().skip(1).any(|word| word.contains(HOST)) } else "{:?} does not say where the host's name belongs: \"ssh {{host}}\", \"docker exec -i {{host}}\"";
}

/// Reads a whole number from `MIN` to `MAX`.
pub(crate) fn within<'de, const MIN: u64, const MAX: u64, T, D>(from: D) -> Result<T, D::Error>
where
    T: TryFrom<u64>,
    D: Deserializer<'de>,
{
    let number = u64::deserialize(from)?;
    let found = T::try_from(number).ok().filter(|_| (MIN..=MAX).contains(&number));
    found.ok_or_else(|| D::Error::custom(format!("{number} is not in the range {MIN} to {MAX}")))
}

/// The form of a duration from `MIN` to `MAX` milliseconds: `"5s"`.
pub(crate) struct Time<const MIN: u64, const MAX: u64>;

/// Milliseconds of a day.
pub(crate) const DAY: u64 = 24 * 3600 * 1000;

impl<const MIN: u64, const MAX: u64> Time<MIN, MAX> {
    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{}ns", time.as_nanos()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        let time = parse_duration(&text).map_err(|error| D::Error::custom(format!("{text:?} is {error}")))?;
        if !(Duration::from_millis(MIN)..=Duration::from_millis(MAX)).contains(&time) {
            return Err(D::Error::custom(format!("{text:?} is not in the range {MIN} ms to {MAX} ms")));
        }
        Ok(time)
    }
}

/// Reads a share: percent as a text, or a number.
pub(crate) fn share<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    struct Reader;
    impl Visitor<'_> for Reader {
        type Value = f64;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("percent, such as \"50%\"")
        }

        fn visit_f64<E: Error>(self, share: f64) -> Result<f64, E> {
            let is_share = share > 0.0 && share <= 100.0;
            is_share.then_some(share).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Float(share), &self))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
            let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
            percent
                .filter(|percent| *percent > 0.0 && *percent <= 10_000.0)
                .map(|percent| percent / 100.0)
                .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
        }
    }
    from.deserialize_any(Reader)
}

/// The same for an optional share.
pub(crate) fn some_share<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    share(from).map(Some)
}

/// Reads bytes per second: `"32MiB/s"`.
pub(crate) fn some_bytes_per_s<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
    let Setting(text) = Setting::deserialize(from)?;
    text.strip_suffix("/s")
        .unwrap_or(&text)
        .parse()
        .map(Some)
        .map_err(|error| D::Error::custom(format!("{text:?} is {error}")))
}

/// The load steps: a number, a list, or `FROM..TO/STEP`; ascending, and never empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "LadderText")]
pub(crate) struct Ladder(pub(crate) Vec<f64>);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, a list of numbers, or \"FROM..TO/STEP\"")]
enum LadderText {
    One(f64),
    List(Vec<f64>),
    Range(String),
}

impl TryFrom<LadderText> for Ladder {
    type Error = String;

    fn try_from(text: LadderText) -> Result<Ladder, String> {
        let mut values = match text {
            LadderText::One(value) => vec![value],
            LadderText::List(values) => values,
            LadderText::Range(text) => range(&text).ok_or_else(|| {
                format!("{text:?} is not a ladder; write \"FROM..TO/STEP\", such as \"1000..8000/1000\", of at most 1000 steps")
            })?,
        };
        values.sort_by(f64::total_cmp);
        values.dedup();
        let is_sound = !values.is_empty() && values.iter().all(|value| *value > 0.0 && *value <= 1e6);
        if is_sound {
            Ok(Ladder(values))
        } else {
            Err("the loads of a ladder must be above 0 and at most 1000000".to_owned())
        }
    }
}

impl Ladder {
    /// Keeps at most `count` steps, including the first and the last.
    pub(crate) fn thin(&mut self, count: usize) {
        let Ladder(values) = self;
        let last = values.len() - 1;
        if last >= count {
            *values = (0..count).map(|at| values[(at * last + (count - 1) / 2) / (count - 1)]).collect();
        }
    }
}

/// Expands `FROM..TO/STEP`.
fn range(text: &str) -> Option<Vec<f64>> {
    let (from, rest) = text.split_once("..")?;
    let (to, step) = rest.split_once('/')?;
    let [from, to, step] = [from, to, step].map(|part| part.trim().parse::<f64>().ok());
    let (from, to, step) = (from?, to?, step?);
    let is_sound = from > 0.0 && to >= from && step > 0.0 && (to - from) / step < 1000.0;
    let steps = (0..).map(|n| from + f64::from(n) * step).take_while(|value| *value <= to * (1.0 + 1e-9));
    is_sound.then(|| steps.collect())
}

/// A scalar as text: the value of a server's setting, or the name of a level.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Scalar")]
pub(crate) struct Setting(pub(crate) String);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string, a number, true or false")]
enum Scalar {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

impl From<Scalar> for Setting {
    fn from(value: Scalar) -> Setting {
        Setting(match value {
            Scalar::Bool(value) => value.to_string(),
            Scalar::Integer(value) => value.to_string(),
            Scalar::Float(value) => value.to_string(),
            Scalar::Text(value) => value,
        })
    }
}

/// Reads a table of scalars.
pub(crate) fn scalars<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<std::collections::BTreeMap<String, String>, D::Error> {
    let values = std::collections::BTreeMap::<String, Setting>::deserialize(from)?;
    Ok(values.into_iter().map(|(key, Setting(value))| (key, value)).collect())
}
