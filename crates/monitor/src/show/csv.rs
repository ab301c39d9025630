//! Formats a tick as a row of CSV (RFC 4180): one number per column, with sums over processes, disks and listeners.
//! Unknown values are empty, which differs from 0. Lists are only in the JSON.

use crate::rates::Tick;

/// The column names, with units; times per second are shares, and have none.
pub fn header() -> String {
    let mut header = "wall_ms".to_owned();
    Tick::default().each_figure(|name, _| header.extend([",".to_owned(), name.to_string()]));
    header
}

/// The row of a tick, without a line end.
pub fn row(tick: &Tick) -> String {
    let mut row = tick.wall_ms.to_string();
    tick.each_figure(|_, value| {
        row.push(',');
        if let Some(value) = value {
            // Six decimals at most. A sum may be -0, which is written as 0.
            row += &((value * 1e6).round() / 1e6 + 0.0).to_string();
        }
    });
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{Name, ServerUse};
    use crate::sample::Own;
    use crate::source::{Process, Tcp};

    #[test]
    fn row_has_value_for_each_column() {
        let header = header();
        let names: Vec<&str> = header.split(',').collect();
        let process = |read| Process { resident: 1.0, read, descriptors: Some(3.0), ..Process::default() };
        let tick = Tick {
            wall_ms: 7,
            at_s: 1.5,
            own: Own { cpu: 0.001_234_567, ..Own::default() },
            server: ServerUse { wait: 2.5, ..ServerUse::default() },
            tcp: Tcp { retransmits: Some(9.0), ..Tcp::default() },
            processes: vec![process(None), process(Some(1.0))],
            ..Tick::default()
        };
        let row = row(&tick);
        let values: Vec<&str> = row.split(',').collect();
        assert_eq!(names.len(), values.len(), "{row}");
        for (name, expected) in [
            ("wall_ms", "7"),
            ("at_s", "1.5"),
            ("own_cpu", "0.001235"),
            ("cpu_user", "0"),
            ("server_wait", "2.5"),
            ("tcp_retransmits_per_s", "9"),
            ("process_resident_bytes", "2"),
            ("process_read_bytes_per_s", ""),
            ("process_descriptors", "6"),
            ("tcp_segments_in_per_s", ""),
            ("connections_established", ""),
            ("disk_read_bytes_per_s", ""),
            ("open_busy_s", ""),
        ] {
            let at = names.iter().position(|one| *one == name).expect(name);
            assert_eq!(values[at], expected, "{name} in {row}");
            assert_eq!(Name::of(name).is_some(), name != "wall_ms", "{name}");
        }
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), names.len(), "duplicate name");
    }
}
