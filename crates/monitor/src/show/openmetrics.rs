//! Formats a sample as OpenMetrics text, for collectors.
//!
//! Exports counters, not rates: a collector computes these over its own intervals. Figures of the server as a whole are
//! summed from tick to tick ([`Totals`]), since a sum over threads decreases when a thread ends. Unknown figures have
//! no samples. The server's own figures are not exported here: it has an endpoint of its own, with its own names.

use std::slice;

use amped_exporter::{Kind, Page, Unit, seconds};

use crate::figure::{Figure, Figures};
use crate::rates::{CpuShare, ServerUse, Tick, connection_states};
use crate::sample::{Census, Sample};
use crate::source::{Cpu, SOFTIRQS};

/// The content of a page besides a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// The monitored server.
    pub target: String,
    /// The monitor's share of one processor.
    pub budget: f64,
    /// Ticks since the monitor began.
    pub ticks: u64,
    /// The server's resource use over these.
    pub server: ServerUse,
}

impl Totals {
    /// Adds a tick.
    pub fn add(&mut self, tick: &Tick) {
        let ns = |share: f64| (share * tick.interval_s * 1e9).round() as u64;
        self.ticks += 1;
        self.server.user = self.server.user.saturating_add(ns(tick.server.user));
        self.server.system = self.server.system.saturating_add(ns(tick.server.system));
        self.server.wait = self.server.wait.saturating_add(ns(tick.server.wait));
        (self.server.processes, self.server.threads) = (tick.processes.len() as u64, tick.server.threads as u64);
    }
}

/// The page; without a sample, the part that is known before the first.
pub fn openmetrics(totals: &Totals, sample: Option<&Sample>) -> String {
    let mut page = Families(Page::new("ammeter"));
    let version = env!("CARGO_PKG_VERSION");
    page.family("build", Kind::Info, Unit::Things, "The program.", [(Page::labels(&[("version", &version)]), 1)]);
    let target = Page::labels(&[("target", &totals.target)]);
    page.family("watch", Kind::Info, Unit::Things, "The monitored server.", [(target, 1)]);
    page.gauge("own_budget", Unit::Ratio, "The monitor's budget, as a share of one processor.", totals.budget);
    let ticks = [(String::new(), totals.ticks)];
    page.family("ticks", Kind::Counter, Unit::Things, "Samples since the first.", ticks);
    if let Some(sample) = sample {
        let now = sample.wall_ms as f64 / 1e3;
        page.gauge("sample_timestamp", Unit::Seconds, "Time of this sample, since 1970.", now);
        page.one(&sample.own);
        page.processors(sample);
        page.one(&sample.host.system);
        page.one(&sample.memory);
        page.one(&sample.paging);
        page.all(&sample.disks);
        page.one(&sample.pressure);
        page.all(&sample.interfaces);
        page.one(&sample.tcp);
        page.one(&totals.server);
        page.all(&sample.processes);
        page.all(&sample.threads);
        page.all(&sample.groups);
        page.all(&sample.group_disks);
        page.all(&sample.listeners);
        sample.census.iter().for_each(|census| page.census(sample, census));
    }
    page.0.end()
}

struct Families(Page);

impl Families {
    fn family<V: std::fmt::Display>(
        &mut self,
        name: &str,
        kind: Kind,
        unit: Unit,
        help: &str,
        samples: impl IntoIterator<Item = (String, V)>,
    ) {
        self.0.family(name, kind, unit, help);
        samples.into_iter().for_each(|(labels, value)| self.0.sample(&labels, value));
    }

    fn gauge(&mut self, name: &str, unit: Unit, help: &str, value: f64) {
        self.family(name, Kind::Gauge, unit, help, [(String::new(), value)]);
    }

    fn one<T: Figures<u64>>(&mut self, of: &T) {
        self.all(slice::from_ref(of));
    }

    /// A family for each figure that is known for any of these.
    fn all<T: Figures<u64>>(&mut self, of: &[T]) {
        let labels: Vec<String> = of.iter().map(T::labels).collect();
        for (at, Figure { name, kind, unit, help, .. }) in T::FIGURES.iter().enumerate() {
            let values = of.iter().map(|one| one.values().nth(at).flatten());
            let samples = labels.iter().zip(values).filter_map(|(labels, value)| {
                let text = if *unit == Unit::Seconds { seconds(value?) } else { value?.to_string() };
                Some((labels.clone(), text))
            });
            let mut samples = samples.peekable();
            if samples.peek().is_some() {
                let name = if T::PREFIX.is_empty() { (*name).to_owned() } else { format!("{}_{name}", T::PREFIX) };
                self.family(&name, *kind, *unit, help, samples);
            }
        }
    }

    fn processors(&mut self, sample: &Sample) {
        let Cpu { user, system, interrupt, softirq, steal, iowait, idle } = sample.host.cpu;
        // The kernel counts in hundredths of a second.
        let ns = |ticks: u64| ticks.saturating_mul(10_000_000);
        let times = CpuShare { user, system, interrupt, softirq, steal, iowait, idle };
        let modes = <CpuShare as Figures<u64>>::FIGURES.iter().zip(times.values().flatten());
        let modes = modes.map(|(mode, ticks)| (Page::labels(&[("mode", &mode.name)]), seconds(ns(ticks))));
        let help = "Time of all processors together, by mode.";
        self.family("cpu", Kind::Counter, Unit::Seconds, help, modes);
        self.gauge("cpus", Unit::Things, "Processors.", sample.host.cores.len() as f64);
        let softirqs = SOFTIRQS.iter().zip(&sample.host.softirqs);
        let softirqs = softirqs.map(|(kind, count)| (Page::labels(&[("kind", kind)]), count));
        self.family("softirqs", Kind::Counter, Unit::Things, "Soft interrupts, by kind.", softirqs);
    }

    fn census(&mut self, sample: &Sample, census: &Census) {
        let ago_s = sample.at_us.saturating_sub(census.at_us) as f64 / 1e6;
        let help = "Time of the last census of connections, since 1970.";
        self.gauge("census_timestamp", Unit::Seconds, help, sample.wall_ms as f64 / 1e3 - ago_s);
        // All states, including empty ones: a collector cannot distinguish a missing state from an unknown one.
        let count = |state: &str| census.states.get(state).copied().unwrap_or(0);
        let states = connection_states().map(|state| (Page::labels(&[("state", &state)]), count(state)));
        let help = "Connections at the server's ports, by TCP state.";
        self.family("connections", Kind::Gauge, Unit::Things, help, states);
        self.one(&census.limits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{CensusLimits, Listener, Own};
    use crate::source::{Host, Interface, Memory, Process, Tcp, Thread};

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
            memory: Memory { available: Some(1 << 40), ..Memory::default() },
            tcp: Tcp { listen_drops: Some(3), ..Tcp::default() },
            interfaces: vec![Interface { device: "lo".into(), received: 9, ..Interface::default() }],
            threads: vec![Thread { pid: 1, tid: 2, name: "a\"\n".into(), run: 1_500_000_000, ..Thread::default() }],
            processes: vec![Process { pid: 1, resident: 4096, ..Process::default() }],
            listeners: vec![Listener {
                address: "[::]:80".into(),
                inode: 8,
                depth: 5,
                limit: 4,
                ..Listener::default()
            }],
            census: Some(Census {
                backends: Vec::new(),
                at_us: 4_000_000,
                states: [("established".to_owned(), 6)].into(),
                limits: CensusLimits { busy: 250_000_000, ..CensusLimits::default() },
            }),
            own: Own { cpu: 1_000_000, interval: 1_000_000_000, census_interval: 2_000_000_000 },
            ..Sample::default()
        }
    }

    #[test]
    fn figures_are_in_base_units_and_unknown_ones_are_omitted() {
        let mut totals = Totals { target: "port 80".into(), budget: 0.005, ..Totals::default() };
        let server = ServerUse { user: 0.5, wait: 0.25, ..ServerUse::default() };
        let tick = Tick { interval_s: 2.0, server, ..Tick::default() };
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
            "ammeter_network_received_bytes_total{device=\"lo\"} 9",
            "ammeter_tcp_listen_drops_total 3",
            "ammeter_server_user_seconds_total 2.0",
            "ammeter_server_wait_seconds_total 1.0",
            "ammeter_thread_run_seconds_total{pid=\"1\",tid=\"2\",name=\"a\\\"\\n\"} 1.5",
            "ammeter_process_resident_bytes{pid=\"1\"} 4096",
            "ammeter_listen_queue_depth{address=\"[::]:80\",inode=\"8\"} 5",
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
    fn samples_follow_their_family() {
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
                assert!(seen.insert(name.to_owned()), "{name} occurs twice");
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
