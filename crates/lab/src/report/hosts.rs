//! The hosts of an experiment: what each did in each run, and how precisely its clock is known.

use maud::{Markup, html};

use super::figures::percent;
use crate::archive::{Archive, HostRun};
use crate::figure::number;

/// A table of all runs; `None` if everything ran on one machine. Appends
/// a line to `missing` for each file that it cannot read.
pub(super) fn hosts(archive: &Archive, missing: &mut Vec<String>) -> Option<Markup> {
    archive.resolved.hosts.as_ref()?;
    let mut rows: Vec<(&str, HostRun)> = Vec::new();
    for run in &archive.runs {
        match archive.hosts(&run.plan.id) {
            Ok(hosts) => rows.extend(hosts.into_iter().map(|host| (&run.plan.id[..], host))),
            Err(why) => missing.push(format!("{}: {why}", run.plan.id)),
        }
    }
    Some(html! {
        p.faint {
            "All times are by the clock of the controlling machine. The offset of each host's clock was measured \
             before and after each run, by the shortest of many round trips, and the host's records are shifted by it. \
             The error bound is half of that round trip, plus half of the change of the offset during the run."
        }
        div.scroll { table {
            tr {
                th.text { "run" } th.text { "host" } th.text { "role" } th { "clock offset, ms" } th { "error bound, ms" } th { "offered/s" }
                th { "responses/s" } th { "lateness p99, ms" } th { "CPU used" } th { "by others" } th.text { "load generator" }
            }
            @for (run, HostRun { host, role, clock, busy, others, load }) in &rows {
                tr {
                    td.text.word { (run) } td.text.word { (host) } td.text.word { (role) }
                    td { (format!("{:+.3}", clock.offset_s * 1e3)) } td { (format!("{:.3}", clock.bound_s * 1e3)) }
                    @match load {
                        Some(load) => {
                            td { (number(load.offered_rate)) } td { (number(load.rate)) } td { (number(load.lateness_p99_ms)) }
                        }
                        None => { td { "–" } td { "–" } td { "–" } }
                    }
                    td { (percent(*busy)) } td { (others.map_or_else(|| "–".to_owned(), percent)) }
                    td.text { @if let Some(load) = load { (load.verdict) } }
                }
            }
        } }
    })
}
