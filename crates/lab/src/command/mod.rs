//! The commands, one file each: the flags as clap parses them, and their execution.

pub(crate) mod agent;
pub(crate) mod compare;
pub(crate) mod diagnose;
pub(crate) mod exhibits;
pub(crate) mod files;
pub(crate) mod floor_server;
pub(crate) mod host;
pub(crate) mod list;
pub(crate) mod load;
pub(crate) mod monitor;
pub(crate) mod null_server;
pub(crate) mod overhead;
pub(crate) mod profile;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod wan;

use std::time::Duration;

/// Parses a positive duration: `1s`, `50ms`, `2m`, or a bare number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let read = ammeter_load::schedule::seconds(text)?;
    if read.is_zero() { Err(format!("invalid time {text:?}: write, for example, 50ms or 1s")) } else { Ok(read) }
}

/// Parses a percentage such as `0.5%`, above 0 and up to 100 %.
fn percentage(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let share: Option<f64> = number.parse().ok().map(|percent: f64| percent / 100.0);
    share
        .filter(|share| *share > 0.0 && *share <= 1.0)
        .ok_or_else(|| format!("invalid share {text:?}: write a percentage above 0 and up to 100%, such as 0.5%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_percentages_are_parsed() {
        for (text, expected) in [
            ("50ms", Some(50_000)),
            ("1s", Some(1_000_000)),
            ("1.5 s", Some(1_500_000)),
            ("2m", Some(120_000_000)),
            ("7us", Some(7)),
            ("0s", None),
            ("1", Some(1_000_000)),
            ("0", None),
            ("s", None),
            ("-1s", None),
            ("1e9s", None),
            ("", None),
        ] {
            assert_eq!(duration(text).ok().map(|time| time.as_micros()), expected, "{text}");
        }
        for (text, expected) in [
            ("0.5%", Some(0.005)),
            ("100", Some(1.0)),
            ("0", None),
            ("101%", None),
            ("x", None),
            ("nan", None),
            ("", None),
        ] {
            assert_eq!(percentage(text).ok(), expected, "{text}");
        }
    }
}
