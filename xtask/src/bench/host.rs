//! What a figure depends on besides the program: the machine, its kernel, and who else was using it.

use amped_measure::host::{Machine, load_average};
use serde::{Deserialize, Serialize};

use crate::command::{Outcome, output, program};

/// The machine and the version, as recorded beside each result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Host {
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) kernel: String,
    pub(super) congestion_control: String,
    pub(super) wrk: String,
    /// What else was measured, and its versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) programs: Vec<String>,
    /// The commit that was measured, with `+` where files were changed since.
    pub(super) commit: String,
    /// When the measuring began.
    pub(super) date: String,
    /// 1, 5 and 15 minutes, before the measuring and after it.
    pub(super) load_before: String,
    pub(super) load_after: String,
}

impl Host {
    /// What a result says of where it is from: `uses`, what cores were for, `programs`, those that took part, `network`.
    pub(super) fn sentence(&self, uses: &str, programs: &str, network: &str) -> String {
        let Host { commit, date, cpu, cores, kernel, congestion_control, load_before, load_after, .. } = self;
        format!(
            "commit {commit}, {date}: {cpu}, {cores} cores{uses}, Linux {kernel}{programs}, congestion control \
             {congestion_control}{network}; load average {load_before} before, {load_after} after"
        )
    }

    pub(super) fn now() -> Outcome<Host> {
        let Machine { cpu, cores, kernel, congestion_control } = Machine::this()?;
        let mut describe = program("git");
        describe.args(["-c", "safe.directory=*", "describe", "--always", "--abbrev=10", "--dirty=+"]);
        let version = program("wrk").arg("-v").output().map_err(|error| format!("cannot start wrk: {error}"))?;
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        Ok(Host {
            cpu,
            cores,
            kernel,
            congestion_control,
            wrk: version.split(" [").next().unwrap_or_default().trim().to_owned(),
            programs: Vec::new(),
            commit: output(&mut describe)?.trim().to_owned(),
            date: output(program("date").args(["--utc", "+%F %H:%M UTC"]))?.trim().to_owned(),
            load_before: load_average()?,
            load_after: String::new(),
        })
    }
}
