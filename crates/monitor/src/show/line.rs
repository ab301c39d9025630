//! A tick as one line of 80 columns under a header, as vmstat has it. What has no room is in CSV, JSON and on the screen.

use super::{bytes, count};
use crate::rates::Tick;

/// The columns: seconds; shares of all processors in percent (user, kernel with interrupts, idle, waiting for disks, stolen); the
/// server's use and its wait for a processor, in percent of one; its resident memory; connections in the listen queue, and
/// dropped by it since the last line; established connections; bytes sent a second; what the monitor uses of one processor, in
/// percent.
pub const HEADER: &str = "       s  us  sy  id  wa  st   cpu  wait    rss  queue  drops  estab  out/s  own";

/// The tick in one line, without its end.
pub fn line(tick: &Tick) -> String {
    let cpu = &tick.cpu;
    let percent = |share: f64| share * 100.0;
    let share = |share: f64| format!("{:4.0}", percent(share).clamp(0.0, 100.0));
    let of_one = |share: f64| format!("{:.0}", percent(share).clamp(0.0, 99_999.0));
    let resident: f64 = tick.processes.iter().map(|process| process.resident_bytes as f64).sum();
    let depth: u64 = tick.listeners.iter().map(|one| u64::from(one.depth)).sum();
    let drops = tick.listeners.iter().map(|one| one.new_drops.map(u64::from)).sum::<Option<u64>>();
    let amount = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), whole);
    let network = tick.network.as_ref();
    format!(
        "{:8.1}{}{}{}{}{}{:>6}{:>6}{:>7}{:>7}{:>7}{:>7}{:>7}{:5.1}",
        tick.at_s.min(999_999.9),
        share(cpu.user),
        share(cpu.system + cpu.interrupt + cpu.softirq),
        share(cpu.idle),
        share(cpu.iowait),
        share(cpu.steal),
        of_one(tick.server_cpu()),
        of_one(tick.server_wait),
        bytes(resident),
        whole(depth),
        amount(drops),
        amount(tick.connections("established").map(u64::from)),
        network.map_or_else(|| "-".to_owned(), |network| bytes(network.out_bytes_per_s)),
        percent(tick.own_cpu_so_far).min(99.9),
    )
}

/// All digits of a number that has room, else three.
fn whole(number: u64) -> String {
    if number < 100_000 { number.to_string() } else { count(number as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{CpuShare, ListenerRate, NetworkRate, ProcessRate};
    use crate::sample::Census;

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
        tick.listeners = vec![ListenerRate { depth: 3, limit: 4, new_drops: Some(2), ..ListenerRate::default() }; 2];
        let found = words(&tick);
        assert_eq!(found.len(), HEADER.split_whitespace().count());
        assert_eq!((&found[1][..], &found[9..12]), ("25", &["6", "4", "5"].map(str::to_owned)[..]));
    }

    #[test]
    fn header_and_lines_have_eighty_columns_whatever_the_figures_are() {
        assert_eq!(HEADER.chars().count(), 80);
        for exponent in 0..=15 {
            for digits in [1.0, 4.99, 9.996, 9.99996] {
                let amount = digits * 10f64.powi(exponent);
                let whole = amount as u32;
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
                    server_user: amount,
                    server_system: amount,
                    server_wait: amount,
                    own_cpu_so_far: amount,
                    census: Some(Census { states: [("established".to_owned(), whole)].into(), ..Census::default() }),
                    listeners: vec![
                        ListenerRate { depth: whole, new_drops: Some(whole), ..ListenerRate::default() };
                        3
                    ],
                    network: Some(NetworkRate { out_bytes_per_s: amount, ..NetworkRate::default() }),
                    processes: vec![ProcessRate { resident_bytes: amount as u64, ..ProcessRate::default() }],
                    ..Tick::default()
                };
                let line = line(&tick);
                assert_eq!(line.chars().count(), 80, "{amount}: {line}");
                assert_eq!(line.split_whitespace().count(), HEADER.split_whitespace().count(), "{amount}: {line}");
            }
        }
    }
}
