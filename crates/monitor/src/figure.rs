//! The definition of figures. Each figure of the monitor is declared once, in the module
//! of `source` that reads it, by an entry of [`figures!`]: its help text, name, kind and
//! unit, and the kernel's name for it. Records, JSON, the columns of CSV, the families of
//! OpenMetrics, the lines of the screen and the metrics of the lab derive from that entry.
//!
//! ```text
//! /// Segments retransmitted.
//! retransmits: Option<N> => Counter Things "TcpRetransSegs" as "retransmits",
//! ```
//!
//! The doc sentence is the help text. A `Counter` only rises, a `Gauge` is a current value. Units are `Things`, `Bytes`
//! and `Seconds`. `Option<N>` is for figures that some kernel, user or older record lacks. The first string is the
//! kernel's name, for files in which figures have names; the one after `as` shows it on the screen under this word.
//!
//! The same struct is a sample with `N = u64`: totals from the kernel, times in nanoseconds. With `N = f64` it is part
//! of a tick: counters are per second, which makes counters of time a share; gauges are in base units.

use amped_exporter::{Kind, Unit};
use serde::ser::SerializeMap;

/// The definition of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Name in a sample, without a unit.
    pub name: &'static str,
    /// Name in a tick, with its unit.
    pub tick_name: &'static str,
    /// Help text, one sentence.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// Unit.
    pub unit: Unit,
    /// Word on the screen, if it is shown.
    pub word: Option<&'static str>,
}

/// Figures that are read together, of the machine or of one of several things, such as a disk.
pub trait Figures<N> {
    /// The prefix of their names among other figures.
    const PREFIX: &'static str;
    /// The definitions.
    const FIGURES: &'static [Figure];

    /// The values, in the order of the definitions.
    fn values(&self) -> impl Iterator<Item = Option<N>>;

    /// Labels of OpenMetrics that distinguish several of a kind.
    fn labels(&self) -> String;
}

impl<N, T: Figures<N>> Figures<N> for &T {
    const PREFIX: &'static str = T::PREFIX;
    const FIGURES: &'static [Figure] = T::FIGURES;

    fn values(&self) -> impl Iterator<Item = Option<N>> {
        T::values(self)
    }

    fn labels(&self) -> String {
        T::labels(self)
    }
}

/// The number type of a sample or of a tick.
pub trait Number: Copy {
    /// Writes it under its name as an entry of a JSON object.
    ///
    /// # Errors
    /// Those of the writer.
    fn write<M: SerializeMap>(self, figure: &Figure, to: &mut M) -> Result<(), M::Error>;
}

impl Number for u64 {
    fn write<M: SerializeMap>(self, figure: &Figure, to: &mut M) -> Result<(), M::Error> {
        to.serialize_entry(figure.name, &self)
    }
}

impl Number for f64 {
    fn write<M: SerializeMap>(self, figure: &Figure, to: &mut M) -> Result<(), M::Error> {
        match (figure.kind, figure.unit) {
            (Kind::Gauge, Unit::Things | Unit::Bytes) => to.serialize_entry(figure.tick_name, &(self as u64)),
            _ => to.serialize_entry(figure.tick_name, &self),
        }
    }
}

/// Converts a field of a sample to that of a tick.
pub(crate) trait Sampled: Copy {
    type InTick;

    fn in_tick(self, from: Option<Self>, kind: Kind, unit: Unit, seconds: f64) -> Self::InTick;
}

impl Sampled for u64 {
    type InTick = f64;

    fn in_tick(self, from: Option<u64>, kind: Kind, unit: Unit, seconds: f64) -> f64 {
        let base = if unit == Unit::Seconds { 1e9 } else { 1.0 };
        match kind {
            Kind::Counter => self.saturating_sub(from.unwrap_or(0)) as f64 / base / seconds,
            _ => self as f64 / base,
        }
    }
}

impl Sampled for Option<u64> {
    type InTick = Option<f64>;

    fn in_tick(self, from: Option<Self>, kind: Kind, unit: Unit, seconds: f64) -> Option<f64> {
        let from = from.flatten();
        // The increase of a counter without an earlier value is unknown.
        (kind != Kind::Counter || from.is_some()).then(|| Some(self?.in_tick(from, kind, unit, seconds))).flatten()
    }
}

/// Declares [`Figures`]: a struct with a field for each. Labels distinguish several of a kind; facts are not numbers.
macro_rules! figures {
    (
        $(#[doc = $about:literal])*
        $group:ident $prefix:literal
        $({ $( $(#[doc = $label_about:literal])* $label:ident: $label_type:ty, )* })?
        $([ $( $(#[doc = $fact_about:literal])* $fact:ident: $fact_type:ty, )* ])?
        $( #[doc = $help:literal] $(#[doc = $more:literal])*
            $figure:ident: $type:ty => $kind:ident $unit:ident $($kernel:literal)? $(as $word:literal)?, )+
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(default)]
        pub struct $group<N = u64> {
            $($( $(#[doc = $label_about])* pub $label: $label_type, )*)?
            $($( $(#[doc = $fact_about])* pub $fact: $fact_type, )*)?
            $( #[doc = $help] $(#[doc = $more])* pub $figure: $type, )+
        }

        impl<N: Copy> $crate::figure::Figures<N> for $group<N> {
            const PREFIX: &'static str = $prefix;
            const FIGURES: &'static [$crate::figure::Figure] = &[$($crate::figure::Figure {
                name: stringify!($figure),
                tick_name: concat!(stringify!($figure), $crate::figure::unit!($kind $unit)),
                help: $help.trim_ascii(),
                kind: amped_exporter::Kind::$kind,
                unit: amped_exporter::Unit::$unit,
                word: [$(Some($word),)? None][0],
            }),+];

            fn values(&self) -> impl Iterator<Item = Option<N>> {
                [$(Option::<N>::from(self.$figure)),+].into_iter()
            }

            fn labels(&self) -> String {
                amped_exporter::Page::labels(&[$($((stringify!($label), &self.$label)),*)?])
            }
        }

        impl $group {
            /// The figures of a tick from `from` to this sample.
            pub fn since(&self, from: Option<&$group>, seconds: f64) -> $group<f64> {
                use $crate::figure::Sampled;
                use amped_exporter::{Kind, Unit};
                $group {
                    $($($label: self.$label.clone(),)*)?
                    $($($fact: self.$fact.clone(),)*)?
                    $($figure: self.$figure.in_tick(from.map(|from| from.$figure), Kind::$kind, Unit::$unit, seconds)),+
                }
            }

            /// Sets a figure by the kernel's name for it, if there is one.
            pub fn take(&mut self, kernel: &str, value: u64) {
                match kernel {
                    $($($kernel => self.$figure = value.into(),)?)+
                    _ => _ = value,
                }
            }
        }

        impl<N: $crate::figure::Number> serde::Serialize for $group<N> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use $crate::figure::Figures;
                use serde::ser::SerializeMap;
                let mut map = serializer.serialize_map(None)?;
                $($(map.serialize_entry(stringify!($label), &self.$label)?;)*)?
                $($(map.serialize_entry(stringify!($fact), &self.$fact)?;)*)?
                for (figure, value) in Self::FIGURES.iter().zip(self.values()) {
                    if let Some(value) = value {
                        value.write(figure, &mut map)?;
                    }
                }
                map.end()
            }
        }
    };
}

/// The suffix of a figure's name in a tick.
macro_rules! unit {
    (Counter Things) => {
        "_per_s"
    };
    (Counter Bytes) => {
        "_bytes_per_s"
    };
    (Gauge Bytes) => {
        "_bytes"
    };
    (Gauge Seconds) => {
        "_s"
    };
    ($kind:ident $unit:ident) => {
        ""
    };
}

pub(crate) use {figures, unit};
