//! Load by our own generator, for what wrk cannot: runs of less than a second, file sets, requests sent ahead, a schedule
//! that does not wait for the server.

use std::process::{Command, Output};

use serde::Deserialize;

use amped_measure::Verdict;

use crate::command::{Outcome, shown};

/// What it said of a run, as far as it is looked at.
#[derive(Debug, Deserialize)]
pub(super) struct Said {
    /// Connections that were to begin; 0 in a closed loop.
    pub(super) planned: u64,
    /// Right replies.
    pub(super) ok: u64,
    /// Failures by their kind.
    pub(super) failures: Vec<(String, u64)>,
    /// Whole replies by hundreds: 1xx, 2xx, ..., 5xx.
    pub(super) statuses: [u64; 5],
    /// Time in which it asked.
    pub(super) seconds: f64,
    /// Connections begun a second.
    pub(super) offered_rate: f64,
    /// Heads and all.
    pub(super) received_bytes: u64,
    pub(super) latency: Latency,
    /// Second by second; empty for what is shorter.
    pub(super) series: Vec<Second>,
    pub(super) verdict: Verdict,
}

/// A second of a run.
#[derive(Debug, Deserialize)]
pub(super) struct Second {
    /// When it began, from the start of the run.
    pub(super) at_s: f64,
    /// Right replies in it.
    pub(super) ok: u64,
}

/// Of right replies.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Latency {
    pub(super) count: usize,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

/// Waits for `ammeter load`. That replies were not as it expects is no error here.
pub(super) fn said(command: &mut Command) -> Outcome<Said> {
    let ended = command.output().map_err(|error| format!("cannot start `{}`: {error}", shown(command)))?;
    read(&ended).map_err(|text| format!("`{}`: {text}", shown(command)))
}

/// Reads what it has said by its end.
pub(super) fn read(ended: &Output) -> Outcome<Said> {
    let text = String::from_utf8_lossy(&ended.stdout);
    let wrong = |error| format!("{}, said {text}{}: {error}", ended.status, String::from_utf8_lossy(&ended.stderr));
    serde_json::from_str(&text).map_err(wrong)
}

impl Said {
    /// Replies, all of which must be of the class of `status`, and as expected but for that.
    pub(super) fn replies(&self, status: u16) -> Outcome<u64> {
        let class = usize::from(status / 100);
        let right = self.statuses.get(class.wrapping_sub(1)).copied().unwrap_or(0);
        let is_right = |(kind, _): &(String, u64)| class >= 4 && kind == "status";
        if right == 0 || right != self.statuses.iter().sum::<u64>() || !self.failures.iter().all(is_right) {
            let Said { ok, failures, statuses, .. } = self;
            return Err(format!(
                "not everything was answered {status}: {ok} right, {failures:?}, statuses {statuses:?}"
            ));
        }
        Ok(right)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What it says of so many replies, half of which took 1 ms, the longest 3.
    pub(in super::super) fn said(planned: u64, ok: u64, failures: &str, statuses: &str) -> Said {
        let text = format!(
            r#"{{"planned":{planned},"ok":{ok},"failures":{failures},"statuses":{statuses},"seconds":1.0,"offered_rate":2.0,"received_bytes":3,"verdict":{{"validity":"valid","evidence":[],"broken":[]}},"series":[{{"at_s":0.0,"ok":1,"failed":0}}],
            "latency":{{"count":{ok},"mean_ms":1.0,"p50_ms":1.0,"p99_ms":2.0,"max_ms":3.0}},"rate":1.0}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn only_what_was_asked_for_counts() {
        let check = |status, ok, failures, statuses, expected: Option<u64>| {
            assert_eq!(
                said(0, ok, failures, statuses).replies(status).ok(),
                expected,
                "{status} {failures} {statuses}"
            );
        };
        check(200, 7, "[]", "[0,7,0,0,0]", Some(7));
        check(304, 7, "[]", "[0,0,7,0,0]", Some(7));
        check(404, 0, r#"[["status",7]]"#, "[0,0,0,7,0]", Some(7));
        check(404, 0, r#"[["status",7],["reset",1]]"#, "[0,0,0,7,0]", None);
        check(200, 7, r#"[["length",1]]"#, "[0,8,0,0,0]", None);
        check(200, 6, r#"[["status",1]]"#, "[0,6,0,1,0]", None);
        check(200, 0, "[]", "[0,0,0,0,0]", None);
    }
}
