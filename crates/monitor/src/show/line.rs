//! A tick as one line under a header, as vmstat has it: what does not change between ticks is not repeated.

use super::{bytes, count};
use crate::rates::Tick;

/// What the columns are: shares of all processors in percent; the server's use in percent of one processor; connections
/// by state; bytes a second.
pub const HEADER: &str = "\
---time-- -------machine, % of all cpus-------- -----server, % of one cpu---- --listen queue-- -----connections----- -tcp/s-- --disk/s--- -net/s- -own-
     s    user  sys  irq sirq steal  io idle     user   sys  wait threads  rss   depth/limit drops  estab  t_w clos other  seg  rtx  read write    out  %cpu";

/// The tick in one line, without its end.
pub fn line(tick: &Tick) -> String {
    let cpu = &tick.cpu;
    let percent = |share: f64| share * 100.0;
    let resident: f64 = tick.processes.iter().map(|process| process.resident_bytes as f64).sum();
    let (depth, limit) =
        tick.listeners.iter().fold((0, 0), |sum, one| (sum.0 + u64::from(one.depth), sum.1 + u64::from(one.limit)));
    let drops = tick.listeners.iter().map(|one| one.new_drops.map(u64::from)).sum::<Option<u64>>();
    let states = ["established", "time_wait", "close_wait"].map(|state| tick.connections(state).map(u64::from));
    let all: Option<u64> = tick.census.as_ref().map(|census| census.states.values().copied().map(u64::from).sum());
    let other = all.map(|all| all - states.iter().flatten().sum::<u64>());
    let or_dash = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let [established, time_wait, close_wait] = states.map(or_dash);
    let network = tick.network.as_ref();
    let rate = |field: Option<f64>| field.map_or_else(|| "-".to_owned(), count);
    let (read, write) =
        tick.disks.iter().fold((0.0, 0.0), |sum, disk| (sum.0 + disk.read_bytes_per_s, sum.1 + disk.write_bytes_per_s));
    format!(
        "{:9.1} {:4.0} {:4.0} {:4.0} {:4.0} {:5.0} {:3.0} {:4.0}    {:5.0} {:5.0} {:5.0} {:7} {:>5} {:>7}/{:<5} {:>5} {:>6} {:>4} {:>4} \
         {:>5} {:>5} {:>4} {:>5} {:>5} {:>6} {:5.2}",
        tick.at_s,
        percent(cpu.user),
        percent(cpu.system),
        percent(cpu.interrupt),
        percent(cpu.softirq),
        percent(cpu.steal),
        percent(cpu.iowait),
        percent(cpu.idle),
        percent(tick.server_user),
        percent(tick.server_system),
        percent(tick.server_wait),
        tick.threads.len(),
        bytes(resident),
        depth,
        limit,
        or_dash(drops),
        established,
        time_wait,
        close_wait,
        or_dash(other),
        rate(network.map(|network| network.segments_in_per_s)),
        rate(network.map(|network| network.segments_again_per_s)),
        bytes(read),
        bytes(write),
        network.map_or_else(|| "-".to_owned(), |network| bytes(network.out_bytes_per_s)),
        percent(tick.own_cpu_so_far),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{CpuShare, ListenerRate};
    use crate::sample::Census;

    #[test]
    fn what_is_not_known_is_a_dash() {
        let words = |tick: &Tick| line(tick).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let empty = words(&Tick::default());
        assert_eq!(empty.iter().filter(|word| *word == "-").count(), 7, "{empty:?}");
        let mut tick = Tick { cpu: CpuShare { user: 0.25, ..CpuShare::default() }, ..Tick::default() };
        tick.census = Some(Census {
            states: [("established".to_owned(), 5), ("syn_received".to_owned(), 3)].into(),
            ..Census::default()
        });
        tick.listeners = vec![ListenerRate { depth: 3, limit: 4, new_drops: Some(2), ..ListenerRate::default() }; 2];
        let found = words(&tick);
        assert_eq!(found[1], "25");
        assert_eq!(found[13..19], ["6/8", "4", "5", "0", "0", "3"].map(str::to_owned));
    }
}
