//! A tick as a row of CSV (RFC 4180): one number a column, sums over threads, disks and listeners. What is not known is
//! empty, which is not 0. Lists are in the JSON.

use crate::rates::Tick;

macro_rules! columns {
    ($($name:literal: $value:expr,)*) => {
        /// The names of the columns; units are in them, and shares are of 1.
        pub const HEADER: &str = concat!("wall_ms", $(",", $name),*);

        /// The tick as a row, without a line end.
        pub fn row(tick: &Tick) -> String {
            let columns: &[fn(&Tick) -> Option<f64>] = &[$($value),*];
            let mut row = tick.wall_ms.to_string();
            for column in columns {
                row.push(',');
                if let Some(value) = column(tick) {
                    // As exact as it is known, and no longer.
                    // A sum of nothing is -0, which is said as 0.
                    row.push_str(&((value * 1e6).round() / 1e6 + 0.0).to_string());
                }
            }
            row
        }
    };
}

/// A rate that the server tells, by its name.
fn module_rate(tick: &Tick, key: &str) -> Option<f64> {
    tick.module.as_ref()?.per_s.get(key).copied()
}

columns! {
    "at_s": |tick| Some(tick.at_s),
    "interval_s": |tick| Some(tick.interval_s),
    "cpu_user": |tick| Some(tick.cpu.user),
    "cpu_system": |tick| Some(tick.cpu.system),
    "cpu_interrupt": |tick| Some(tick.cpu.interrupt),
    "cpu_softirq": |tick| Some(tick.cpu.softirq),
    "cpu_steal": |tick| Some(tick.cpu.steal),
    "cpu_iowait": |tick| Some(tick.cpu.iowait),
    "cpu_idle": |tick| Some(tick.cpu.idle),
    "busiest_core": |tick| Some(tick.busiest_core),
    "interrupts_per_s": |tick| Some(tick.interrupts_per_s),
    "context_switches_per_s": |tick| Some(tick.context_switches_per_s),
    "server_user_cpus": |tick| Some(tick.server_user),
    "server_system_cpus": |tick| Some(tick.server_system),
    "server_wait_cpus": |tick| Some(tick.server_wait),
    "server_processes": |tick| Some(tick.processes.len() as f64),
    "server_threads": |tick| Some(tick.threads.len() as f64),
    "server_resident_bytes": |tick| Some(tick.processes.iter().map(|one| one.resident_bytes as f64).sum()),
    "server_read_bytes_per_s": |tick| tick.processes.iter().map(|one| one.read_bytes_per_s).sum(),
    "server_write_bytes_per_s": |tick| tick.processes.iter().map(|one| one.write_bytes_per_s).sum(),
    "listen_depth": |tick| Some(tick.listeners.iter().map(|one| f64::from(one.depth)).sum()),
    "listen_limit": |tick| Some(tick.listeners.iter().map(|one| f64::from(one.limit)).sum()),
    "listen_drops": |tick| tick.listeners.iter().map(|one| Some(f64::from(one.drops?))).sum(),
    "established": |tick| tick.connections("established").map(f64::from),
    "syn_received": |tick| tick.connections("syn_received").map(f64::from),
    "fin_wait_1": |tick| tick.connections("fin_wait_1").map(f64::from),
    "fin_wait_2": |tick| tick.connections("fin_wait_2").map(f64::from),
    "time_wait": |tick| tick.connections("time_wait").map(f64::from),
    "close_wait": |tick| tick.connections("close_wait").map(f64::from),
    "last_ack": |tick| tick.connections("last_ack").map(f64::from),
    "closing": |tick| tick.connections("closing").map(f64::from),
    "segments_in_per_s": |tick| Some(tick.network?.segments_in_per_s),
    "segments_out_per_s": |tick| Some(tick.network?.segments_out_per_s),
    "segments_again_per_s": |tick| Some(tick.network?.segments_again_per_s),
    "host_listen_drops_per_s": |tick| Some(tick.network?.listen_drops_per_s),
    "net_in_bytes_per_s": |tick| Some(tick.network?.in_bytes_per_s),
    "net_out_bytes_per_s": |tick| Some(tick.network?.out_bytes_per_s),
    "disk_read_bytes_per_s": |tick| Some(tick.disks.iter().map(|one| one.read_bytes_per_s).sum()),
    "disk_write_bytes_per_s": |tick| Some(tick.disks.iter().map(|one| one.write_bytes_per_s).sum()),
    "module_requests_per_s": |tick| module_rate(tick, "requests"),
    "module_sent_bytes_per_s": |tick| module_rate(tick, "sent_bytes"),
    "module_loop_busy_cpus": |tick| Some(module_rate(tick, "loop_busy_ns")? / 1e9),
    "module_loop_stalls_per_s": |tick| module_rate(tick, "loop_stalls"),
    "module_helper_queue": |tick| Some(*tick.module.as_ref()?.gauges.get("helper_queue")? as f64),
    "major_faults_per_s": |tick| Some(tick.paging?.major_faults_per_s),
    "memory_available_bytes": |tick| Some(tick.memory?.available_bytes as f64),
    "pressure_cpu_some": |tick| Some(tick.pressure?.cpu_some),
    "pressure_memory_some": |tick| Some(tick.pressure?.memory_some),
    "pressure_io_some": |tick| Some(tick.pressure?.io_some),
    "monitor_cpus": |tick| Some(tick.own_cpu),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_for_each_name() {
        let names: Vec<&str> = HEADER.split(',').collect();
        let tick = Tick { wall_ms: 7, at_s: 1.5, own_cpu: 0.001_234_567, ..Tick::default() };
        let row = row(&tick);
        let values: Vec<&str> = row.split(',').collect();
        assert_eq!(names.len(), values.len(), "{row}");
        let of = |name: &str| values[names.iter().position(|one| *one == name).unwrap()];
        assert_eq!((of("wall_ms"), of("at_s"), of("monitor_cpus")), ("7", "1.5", "0.001235"));
        assert_eq!((of("established"), of("segments_in_per_s"), of("cpu_user")), ("", "", "0"));
        assert_eq!((of("disk_read_bytes_per_s"), of("listen_depth"), of("server_read_bytes_per_s")), ("0", "0", "0"));
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), names.len(), "a name is there twice");
    }
}
