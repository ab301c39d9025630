//! File names within an archive.

pub(crate) const EXPERIMENT: &str = "experiment.toml";
pub(crate) const RESOLVED: &str = "resolved.json";
pub(crate) const HOST: &str = "host.json";
pub(crate) const PLAN: &str = "plan.json";
pub(crate) const CLIENTS: &str = "clients.json";
pub(crate) const BLOCKS: &str = "blocks";
pub(crate) const RUNS: &str = "runs";
/// In a run's directory.
pub(crate) const RUN: &str = "run.json";
/// Clock, role and load of each host, with several hosts.
pub(crate) const HOSTS: &str = "hosts.json";
/// Output of `ammeter load --json`.
pub(crate) const LOAD: &str = "load.json";
/// The same for the warm-up load, which is not counted.
pub(crate) const WARM_UP: &str = "warm-up.json";
/// The same for the additional clients.
pub(crate) const BESIDE: &str = "beside.json";
/// Output of `ammeter load --hlog`.
pub(crate) const HLOG: &str = "load.hlog";
/// Output of `ammeter monitor --record`.
pub(crate) const MONITOR: &str = "monitor.zst";
/// Output of `ammeter profile --json`, if a profile was requested.
pub(crate) const PROFILE: &str = "profile.json";
pub(crate) const SERVER_CONFIG: &str = "server.conf";
pub(crate) const SERVER_LOG: &str = "server.log";
pub(crate) const REPORT: &str = "report.html";
