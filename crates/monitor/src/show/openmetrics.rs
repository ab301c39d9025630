//! A sample as the text of OpenMetrics, for collectors that come when they like.
//!
//! Counters are told as they are and no rates: a collector makes these over its own intervals. What belongs to the server
//! as a whole is summed from tick to tick ([`Totals`]), since a sum over threads falls when one of them ends. What is not
//! known has no samples. What the server tells of itself it tells at an address of its own, with its own names.

use amped_exporter::{Kind, Page, Unit, seconds};
use amped_sys::sock_diag::TcpState;

use crate::rates::Tick;
use crate::sample::{Census, Listener, Sample};
use crate::source::{Cpu, Disk, Interface, Process, SOFTIRQS, Thread};

/// What a page says besides a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Whom it is about.
    pub target: String,
    /// The share of one processor that the monitor may use.
    pub budget: f64,
    /// Ticks since the monitor began.
    pub ticks: u64,
    /// The server's user time in these, in seconds.
    pub user_s: f64,
    /// Its system time.
    pub system_s: f64,
    /// Its waiting for a processor, all threads together.
    pub wait_s: f64,
}

impl Totals {
    /// Adds a tick.
    pub fn add(&mut self, tick: &Tick) {
        self.ticks += 1;
        self.user_s += tick.server_user * tick.interval_s;
        self.system_s += tick.server_system * tick.interval_s;
        self.wait_s += tick.server_wait * tick.interval_s;
    }
}

/// The page; without a sample what there is before the first.
pub fn openmetrics(totals: &Totals, sample: Option<&Sample>) -> String {
    let mut page = Families(Page::new("ammeter"));
    page.0.family("build", Kind::Info, Unit::Things, "The program.");
    page.0.sample(&Page::labels(&[("version", &env!("CARGO_PKG_VERSION"))]), 1);
    page.0.family("watch", Kind::Info, Unit::Things, "Whom all of this is about.");
    page.0.sample(&Page::labels(&[("target", &totals.target)]), 1);
    page.gauge("own_budget", Unit::Ratio, "What the monitor may use of one processor.", Some(totals.budget));
    page.counter("ticks", "Times that the monitor has looked, after the first.", Some(totals.ticks));
    if let Some(sample) = sample {
        page.monitor(sample);
        page.machine(sample);
        page.network(sample);
        page.server(totals, sample);
        page.connections(sample);
    }
    page.0.end()
}

struct Families(Page);

impl Families {
    fn gauge(&mut self, name: &str, unit: Unit, help: &str, value: Option<f64>) {
        self.0.family(name, Kind::Gauge, unit, help);
        value.iter().for_each(|value| self.0.sample("", value));
    }

    fn counter(&mut self, name: &str, help: &str, value: Option<u64>) {
        self.0.family(name, Kind::Counter, Unit::Things, help);
        value.iter().for_each(|value| self.0.sample("", value));
    }

    /// A family with a sample for each of several things; those without a value are left out.
    fn each<'a, T: 'a>(
        &mut self,
        (name, kind, unit, help): (&str, Kind, Unit, &str),
        all: impl IntoIterator<Item = &'a T>,
        labels: impl Fn(&T) -> String,
        value: impl Fn(&T) -> Option<String>,
    ) {
        self.0.family(name, kind, unit, help);
        for one in all {
            if let Some(value) = value(one) {
                self.0.sample(&labels(one), value);
            }
        }
    }

    fn monitor(&mut self, sample: &Sample) {
        let own = &sample.own;
        self.0.family("own_cpu", Kind::Counter, Unit::Seconds, "Processor time that the monitor has used.");
        self.0.sample("", seconds(own.cpu_ns));
        let now = sample.wall_ms as f64 / 1e3;
        self.gauge("sample_timestamp", Unit::Seconds, "When all of this was read, since 1970.", Some(now));
        let next = own.interval_us as f64 / 1e6;
        self.gauge("interval", Unit::Seconds, "From one look to the next, as the budget allows.", Some(next));
        let next = own.census_interval_us as f64 / 1e6;
        self.gauge("census_interval", Unit::Seconds, "From one count of connections to the next.", Some(next));
    }

    fn machine(&mut self, sample: &Sample) {
        let host = &sample.host;
        let Cpu { user, system, idle, iowait, interrupt, softirq, steal } = host.cpu;
        let modes = [
            ("user", user),
            ("system", system),
            ("idle", idle),
            ("iowait", iowait),
            ("interrupt", interrupt),
            ("softirq", softirq),
            ("steal", steal),
        ];
        let cpu = ("cpu", Kind::Counter, Unit::Seconds, "Time of all processors together, by what they did.");
        // The kernel counts in hundredths.
        let mode = |(name, _): &(&str, u64)| Page::labels(&[("mode", name)]);
        self.each(cpu, &modes, mode, |(_, ticks)| Some(seconds(ticks.saturating_mul(10_000_000))));
        self.gauge("cpus", Unit::Things, "Processors.", Some(host.cores.len() as f64));
        self.counter("interrupts", "Interrupts.", Some(host.interrupts));
        let softirqs: Vec<(&str, u64)> = SOFTIRQS.into_iter().zip(host.softirqs.iter().copied()).collect();
        let kind = |(name, _): &(&str, u64)| Page::labels(&[("kind", name)]);
        let family = ("softirqs", Kind::Counter, Unit::Things, "Soft interrupts, by kind.");
        self.each(family, &softirqs, kind, |(_, count)| Some(count.to_string()));
        self.counter("context_switches", "Times that one task followed another.", Some(host.context_switches));
        if let Some(memory) = sample.memory {
            for (name, bytes, help) in [
                ("memory_total", memory.total_bytes, "Memory."),
                ("memory_free", memory.free_bytes, "Memory that is unused."),
                ("memory_available", memory.available_bytes, "Memory that programs could have without swapping."),
                ("memory_cached", memory.cached_bytes, "Memory of the page cache."),
                ("memory_dirty", memory.dirty_bytes, "Memory that is to be written."),
            ] {
                self.gauge(name, Unit::Bytes, help, Some(bytes as f64));
            }
        }
        if let Some(paging) = sample.paging {
            for (name, unit, count, help) in [
                ("paged_in", Unit::Bytes, paging.in_bytes, "Read from block devices."),
                ("paged_out", Unit::Bytes, paging.out_bytes, "Written to block devices."),
                ("swapped_in_pages", Unit::Things, paging.swap_in_pages, "Pages brought back from swap."),
                ("swapped_out_pages", Unit::Things, paging.swap_out_pages, "Pages put into swap."),
                ("page_faults", Unit::Things, paging.faults, "Page faults."),
                ("major_page_faults", Unit::Things, paging.major_faults, "Page faults that waited for a disk."),
            ] {
                self.0.family(name, Kind::Counter, unit, help);
                self.0.sample("", count);
            }
        }
        let disk = |disk: &Disk| Page::labels(&[("disk", &disk.name)]);
        let number = |of: fn(&Disk) -> u64| move |disk: &Disk| Some(of(disk).to_string());
        let time = |of: fn(&Disk) -> u64| move |disk: &Disk| Some(seconds(of(disk).saturating_mul(1_000_000)));
        let (count, now, things) = (Kind::Counter, Kind::Gauge, Unit::Things);
        let disks = &sample.disks;
        self.each(("disk_reads", count, things, "Reads that were completed."), disks, disk, number(|disk| disk.reads));
        let family = ("disk_read", count, Unit::Bytes, "What was read.");
        self.each(family, disks, disk, number(|disk| disk.read_bytes));
        let family = ("disk_read_time", count, Unit::Seconds, "How long reads took, all together.");
        self.each(family, disks, disk, time(|disk| disk.read_ms));
        self.each(
            ("disk_writes", count, things, "Writes that were completed."),
            disks,
            disk,
            number(|disk| disk.writes),
        );
        let family = ("disk_written", count, Unit::Bytes, "What was written.");
        self.each(family, disks, disk, number(|disk| disk.write_bytes));
        let family = ("disk_write_time", count, Unit::Seconds, "How long writes took, all together.");
        self.each(family, disks, disk, time(|disk| disk.write_ms));
        let family = ("disk_busy", count, Unit::Seconds, "Time with at least one request under way.");
        self.each(family, disks, disk, time(|disk| disk.busy_ms));
        let family = ("disk_in_flight", now, things, "Requests under way.");
        self.each(family, disks, disk, number(|disk| disk.in_flight));
        if let Some(pressure) = sample.pressure {
            let stalls = [("cpu", pressure.cpu), ("memory", pressure.memory), ("io", pressure.io)];
            let waits: Vec<(&str, &str, u64)> = stalls
                .into_iter()
                .flat_map(|(name, stall)| [(name, "some", stall.some_us), (name, "full", stall.full_us)])
                .collect();
            let labels = |(name, who, _): &(&str, &str, u64)| Page::labels(&[("resource", name), ("who", who)]);
            let help = "Time in which some or all work waited for a resource.";
            let family = ("pressure_waiting", Kind::Counter, Unit::Seconds, help);
            self.each(family, &waits, labels, |(.., us)| Some(seconds(us.saturating_mul(1000))));
        }
    }

    fn network(&mut self, sample: &Sample) {
        let Some(network) = &sample.network else { return };
        let name = |interface: &Interface| Page::labels(&[("interface", &interface.name)]);
        for (family, unit, of, help) in [
            ("network_received", Unit::Bytes, (|one| one.in_bytes) as fn(&Interface) -> u64, "Received."),
            ("network_sent", Unit::Bytes, |one| one.out_bytes, "Sent."),
            ("network_packets_received", Unit::Things, |one| one.in_packets, "Packets received."),
            ("network_packets_sent", Unit::Things, |one| one.out_packets, "Packets sent."),
            ("network_drops_received", Unit::Things, |one| one.in_drops, "Packets that came and were dropped."),
            ("network_drops_sent", Unit::Things, |one| one.out_drops, "Packets that were dropped before they went."),
        ] {
            let family = (family, Kind::Counter, unit, help);
            self.each(family, &network.interfaces, name, |one| Some(of(one).to_string()));
        }
        let tcp = &network.tcp;
        for (name, count, help) in [
            ("tcp_active_opens", tcp.active_opens, "Connections that this side began."),
            ("tcp_passive_opens", tcp.passive_opens, "Connections that others began."),
            ("tcp_resets", tcp.resets, "Connections that were reset."),
            ("tcp_segments_received", tcp.segments_in, "Segments that came."),
            ("tcp_segments_sent", tcp.segments_out, "Segments that went, without those sent again."),
            ("tcp_segments_sent_again", tcp.segments_again, "Segments that were sent again."),
            ("tcp_listen_overflows", tcp.listen_overflows, "Times that the queue of any listener was full."),
            ("tcp_listen_drops", tcp.listen_drops, "Connections that any listener turned away."),
            ("tcp_timeouts", tcp.timeouts, "Time-outs of retransmission."),
        ] {
            self.counter(name, help, Some(count));
        }
        let help = "Sockets without a descriptor that still have something to send.";
        self.gauge("tcp_orphans", Unit::Things, help, Some(tcp.orphans_now as f64));
        let help = "Sockets of all of the namespace in TIME_WAIT.";
        self.gauge("tcp_time_wait", Unit::Things, help, Some(tcp.time_wait_now as f64));
    }

    fn server(&mut self, totals: &Totals, sample: &Sample) {
        let modes = [("user", totals.user_s), ("system", totals.system_s)];
        let mode = |(name, _): &(&str, f64)| Page::labels(&[("mode", name)]);
        let help =
            "The server's processor time since the monitor began, those of its threads that have ended included.";
        let family = ("server_cpu", Kind::Counter, Unit::Seconds, help);
        self.each(family, &modes, mode, |(_, seconds)| Some(seconds.to_string()));
        let help = "Time that its threads waited for a processor, all together, since the monitor began.";
        self.0.family("server_wait", Kind::Counter, Unit::Seconds, help);
        self.0.sample("", totals.wait_s);
        let (count, now, things, time) = (Kind::Counter, Kind::Gauge, Unit::Things, Unit::Seconds);
        let process = |one: &Process| Page::labels(&[("pid", &one.pid)]);
        let family =
            ("process_resident", now, Unit::Bytes, "Memory of a process that is there, what it shares included.");
        self.each(family, &sample.processes, process, |one| Some(one.resident_bytes.to_string()));
        let family = ("process_read", count, Unit::Bytes, "What a process had read from disks.");
        self.each(family, &sample.processes, process, |one| Some(one.read_bytes?.to_string()));
        let family = ("process_written", count, Unit::Bytes, "What a process had written to disks.");
        self.each(family, &sample.processes, process, |one| Some(one.write_bytes?.to_string()));
        let thread = |one: &Thread| Page::labels(&[("pid", &one.pid), ("tid", &one.tid), ("name", &one.name)]);
        let threads = &sample.threads;
        self.each(("thread_cpu", count, time, "Time that a thread ran."), threads, thread, |one| {
            Some(seconds(one.run_ns))
        });
        let family = ("thread_wait", count, time, "Time that a thread could have run, and waited for a processor.");
        self.each(family, threads, thread, |one| Some(seconds(one.wait_ns)));
        let family = ("thread_major_page_faults", count, things, "Page faults of a thread that waited for a disk.");
        self.each(family, threads, thread, |one| Some(one.major_faults.to_string()));
    }

    fn connections(&mut self, sample: &Sample) {
        // Several sockets may share an address.
        let socket = |one: &Listener| Page::labels(&[("address", &one.address), ("socket", &one.inode)]);
        let (now, things) = (Kind::Gauge, Unit::Things);
        let listeners = &sample.listeners;
        let family = ("listen_queue_depth", now, things, "Connections that wait to be accepted.");
        self.each(family, listeners, socket, |one| Some(one.depth.to_string()));
        let family = ("listen_queue_limit", now, things, "How many may wait; the kernel lets one more in.");
        self.each(family, listeners, socket, |one| Some(one.limit.to_string()));
        let family = ("listen_queue_drops", Kind::Counter, things, "Connections that this listener turned away.");
        self.each(family, listeners, socket, |one| Some(one.drops?.to_string()));
        let Some(Census { at_us, states, limits, .. }) = &sample.census else { return };
        let ago_s = sample.at_us.saturating_sub(*at_us) as f64 / 1e6;
        let help = "When connections were counted last, since 1970.";
        self.gauge("census_timestamp", Unit::Seconds, help, Some(sample.wall_ms as f64 / 1e3 - ago_s));
        // Each state, also of which there is none: a collector cannot tell that from one that is not known.
        let all = TcpState::ALL.into_iter().filter(|state| !matches!(state, TcpState::Listen | TcpState::Close));
        let all: Vec<&str> = all.map(TcpState::name).collect();
        let count = |name: &&str| Some(states.get(*name).copied().unwrap_or(0).to_string());
        let family = ("connections", now, things, "Connections at the server's ports, by state of TCP.");
        self.each(family, &all, |name| Page::labels(&[("state", name)]), count);
        let time = Unit::Seconds;
        let us = |us: u64| us as f64 / 1e6;
        for (name, unit, value, help) in [
            ("open_busy", time, us(limits.busy_us), "Time of open connections in which they had something to send."),
            (
                "open_window_closed",
                time,
                us(limits.receive_window_us),
                "Of that, time in which the client's window was closed.",
            ),
            (
                "open_buffer_full",
                time,
                us(limits.send_buffer_us),
                "Of that, time in which the server's buffer was too small.",
            ),
            ("open_round_trip_max", time, us(limits.round_trip_max_us.into()), "The longest smoothed round trip."),
            (
                "open_sent_again",
                things,
                limits.retransmitted_segments as f64,
                "Segments of open connections sent again.",
            ),
            (
                "open_by_application",
                things,
                limits.by_application.into(),
                "Open connections for which the server had too little to send.",
            ),
            ("open_unread", Unit::Bytes, limits.unread_bytes as f64, "What came and was not read."),
            (
                "open_unacknowledged",
                Unit::Bytes,
                limits.unacknowledged_bytes as f64,
                "What was written and not acknowledged.",
            ),
        ] {
            self.gauge(name, unit, help, Some(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{CensusLimits, Own};
    use crate::source::{Host, Memory, Network, Tcp};

    fn sample() -> Sample {
        Sample {
            at_us: 5_000_000,
            wall_ms: 1_700_000_000_500,
            host: Host {
                cpu: Cpu { user: 150, ..Cpu::default() },
                cores: vec![Cpu::default(); 2],
                softirqs: vec![0, 7],
                ..Host::default()
            },
            memory: Some(Memory { available_bytes: 1 << 40, ..Memory::default() }),
            network: Some(Network {
                tcp: Tcp { listen_drops: 3, ..Tcp::default() },
                interfaces: vec![Interface { name: "lo".into(), in_bytes: 9, ..Interface::default() }],
            }),
            threads: vec![Thread { pid: 1, tid: 2, name: "a\"\n".into(), run_ns: 1_500_000_000, ..Thread::default() }],
            processes: vec![Process { pid: 1, resident_bytes: 4096, ..Process::default() }],
            listeners: vec![Listener { address: "[::]:80".into(), inode: 8, depth: 5, limit: 4, drops: None }],
            census: Some(Census {
                backends: Vec::new(),
                at_us: 4_000_000,
                states: [("established".to_owned(), 6)].into(),
                limits: CensusLimits { busy_us: 250_000, ..CensusLimits::default() },
            }),
            own: Own { cpu_ns: 1_000_000, interval_us: 1_000_000, census_interval_us: 2_000_000 },
            ..Sample::default()
        }
    }

    #[test]
    fn figures_are_said_in_base_units_and_what_is_not_known_is_left_out() {
        let mut totals = Totals { target: "port 80".into(), budget: 0.005, ..Totals::default() };
        let tick = Tick { interval_s: 2.0, server_user: 0.5, server_wait: 0.25, ..Tick::default() };
        totals.add(&tick);
        totals.add(&tick);
        let page = openmetrics(&totals, Some(&sample()));
        for line in [
            "ammeter_watch_info{target=\"port 80\"} 1",
            "ammeter_own_budget_ratio 0.005",
            "ammeter_own_cpu_seconds_total 0.001",
            "ammeter_sample_timestamp_seconds 1700000000.5",
            "ammeter_census_timestamp_seconds 1699999999.5",
            "ammeter_ticks_total 2",
            "# UNIT ammeter_cpu_seconds seconds",
            "ammeter_cpu_seconds_total{mode=\"user\"} 1.5",
            "ammeter_softirqs_total{kind=\"timer\"} 7",
            "ammeter_memory_available_bytes 1099511627776",
            "ammeter_network_received_bytes_total{interface=\"lo\"} 9",
            "ammeter_tcp_listen_drops_total 3",
            "ammeter_server_cpu_seconds_total{mode=\"user\"} 2",
            "ammeter_server_wait_seconds_total 1",
            "ammeter_thread_cpu_seconds_total{pid=\"1\",tid=\"2\",name=\"a\\\"\\n\"} 1.5",
            "ammeter_process_resident_bytes{pid=\"1\"} 4096",
            "ammeter_listen_queue_depth{address=\"[::]:80\",socket=\"8\"} 5",
            "ammeter_connections{state=\"established\"} 6",
            "ammeter_connections{state=\"syn_received\"} 0",
            "ammeter_open_busy_seconds 0.25",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        for name in
            ["listen_queue_drops_total{", "process_read_bytes_total{", "pressure_waiting", "paged_in", "listen\"}"]
        {
            assert!(!page.contains(name), "{name} is in\n{page}");
        }
        assert!(page.ends_with("\n# EOF\n"));
    }

    #[test]
    fn a_family_stands_once_and_its_samples_follow_it() {
        let page = openmetrics(&Totals::default(), Some(&sample()));
        let mut seen = std::collections::BTreeSet::new();
        let (mut family, mut suffix) = ("", "");
        for line in page.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                family = name;
                suffix = match kind {
                    "counter" => "_total",
                    "info" => "_info",
                    _ => "",
                };
                assert!(seen.insert(name.to_owned()), "{name} stands twice");
            } else if let Some(help) = line.strip_prefix("# HELP ") {
                assert!(help.starts_with(&format!("{family} ")) && help.ends_with('.'), "{line}");
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                assert_eq!(name, format!("{family}{suffix}"), "{line}");
            }
        }
        assert!(openmetrics(&Totals::default(), None).ends_with("ammeter_ticks_total 0\n# EOF\n"));
    }
}
