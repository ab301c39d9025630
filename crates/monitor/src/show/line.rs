//! Formats a tick as one line of 80 columns under a header, as vmstat does. All other
//! figures are in CSV, JSON and on the screen.

use super::number::{bytes, count};
use crate::rates::Tick;

/// Heading, width and content.
type Column = (&'static str, usize, fn(&Tick) -> Option<String>);

const COLUMNS: [Column; 14] = [
    ("s", 8, |tick| Some(format!("{:.1}", tick.at_s.min(999_999.9)))),
    // Shares of all processors in percent: user, kernel with interrupts, idle, waiting for disks, stolen.
    ("us", 4, |tick| share(tick.cpu.user)),
    ("sy", 4, |tick| share(tick.cpu.system + tick.cpu.interrupt + tick.cpu.softirq)),
    ("id", 4, |tick| share(tick.cpu.idle)),
    ("wa", 4, |tick| share(tick.cpu.iowait)),
    ("st", 4, |tick| share(tick.cpu.steal)),
    // The server's use and its wait for a processor, in percent of one.
    ("cpu", 6, |tick| of_one(tick.server_cpu())),
    ("wait", 6, |tick| of_one(tick.server.wait)),
    ("rss", 7, |tick| Some(bytes(tick.processes.iter().map(|one| one.resident).sum()))),
    // Connections in the accept queue, and dropped by it since the last line.
    ("queue", 7, |tick| Some(whole(tick.listeners.iter().map(|one| one.depth).sum()))),
    ("drops", 7, |tick| {
        let drops = tick.listeners.iter().map(|one| one.drops).sum::<Option<f64>>();
        drops.map(|drops| whole(drops * tick.interval_s))
    }),
    ("estab", 7, |tick| tick.connections("established").map(f64::from).map(whole)),
    ("out/s", 7, |tick| {
        let sent = tick.interfaces.iter().map(|one| one.sent).sum();
        (!tick.interfaces.is_empty()).then(|| bytes(sent))
    }),
    // The monitor's own CPU use, in percent of one processor.
    ("own", 5, |tick| Some(format!("{:.1}", (tick.own_cpu_so_far * 100.0).min(99.9)))),
];

/// The column headings.
pub fn header() -> String {
    COLUMNS.map(|(heading, width, _)| format!("{heading:>width$}")).concat()
}

/// The line of a tick, without its end.
pub fn line(tick: &Tick) -> String {
    COLUMNS.map(|(_, width, cell)| format!("{:>width$}", cell(tick).as_deref().unwrap_or("-"))).concat()
}

fn share(share: f64) -> Option<String> {
    Some(format!("{:.0}", (share * 100.0).clamp(0.0, 100.0)))
}

fn of_one(share: f64) -> Option<String> {
    Some(format!("{:.0}", (share * 100.0).clamp(0.0, 99_999.0)))
}

/// A number in full if it fits, otherwise in three digits.
fn whole(number: f64) -> String {
    if number.round() < 100_000.0 { format!("{:.0}", number + 0.0) } else { count(number) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{CpuShare, ServerUse};
    use crate::sample::{Census, Listener};
    use crate::source::{Interface, Process};

    fn words(tick: &Tick) -> Vec<String> {
        line(tick).split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn unknown_figures_are_dashes() {
        let empty = words(&Tick::default());
        assert_eq!(empty.iter().filter(|word| *word == "-").count(), 2, "{empty:?}");
        let mut tick = Tick { cpu: CpuShare { user: 0.25, ..CpuShare::default() }, ..Tick::default() };
        tick.census = Some(Census {
            states: [("established".to_owned(), 5), ("syn_received".to_owned(), 3)].into(),
            ..Census::default()
        });
        tick.interval_s = 0.5;
        tick.listeners = vec![Listener { depth: 3.0, limit: 4.0, drops: Some(4.0), ..Listener::default() }; 2];
        let found = words(&tick);
        assert_eq!(found.len(), header().split_whitespace().count());
        assert_eq!((&found[1][..], &found[9..12]), ("25", &["6", "4", "5"].map(str::to_owned)[..]));
    }

    #[test]
    fn header_and_lines_are_eighty_columns_wide() {
        assert_eq!(header().chars().count(), 80);
        for exponent in 0..=15 {
            for digits in [1.0, 4.99, 9.996, 9.99996] {
                let amount = digits * 10f64.powi(exponent);
                let whole = amount as u32;
                let queue = f64::from(whole);
                let tick = Tick {
                    at_s: amount,
                    cpu: CpuShare {
                        user: amount,
                        system: 1.0,
                        idle: 0.995,
                        iowait: 1.0,
                        steal: 1.0,
                        ..CpuShare::default()
                    },
                    interval_s: 1.0,
                    server: ServerUse { user: amount, system: amount, wait: amount, ..ServerUse::default() },
                    own_cpu_so_far: amount,
                    census: Some(Census { states: [("established".to_owned(), whole)].into(), ..Census::default() }),
                    listeners: vec![Listener { depth: queue, drops: Some(queue), ..Listener::default() }; 3],
                    interfaces: vec![Interface { sent: amount, ..Interface::default() }],
                    processes: vec![Process { resident: amount, ..Process::default() }],
                    ..Tick::default()
                };
                let line = line(&tick);
                assert_eq!(line.chars().count(), 80, "{amount}: {line}");
                assert_eq!(line.split_whitespace().count(), header().split_whitespace().count(), "{amount}: {line}");
            }
        }
    }
}
