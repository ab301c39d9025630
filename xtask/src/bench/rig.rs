//! What measurements share: the programs as they are built and copied, a folder that goes with the process, the control groups'
//! clocks, and what is told on the way.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use amped_measure::host::busy_ns;
use amped_measure::stats::Random;
use amped_sys::signal::{Signal, Signals};

use super::client::Client;
use super::exhibit::{Arm, Exhibit, Point};
use super::group::{self, Group};
use super::load::Targets;
use super::record::{AGAIN, LeftOut};
use super::sample::Sample;
use super::server::Server;
use super::{disks, files};
use crate::command::{Outcome, cargo, root, run as run_command, target_dir};

/// What each experiment with a folder of its own can be told.
#[derive(clap::Args)]
pub(super) struct Common {
    /// Seed of what is left to chance: the order of measurements, and what is asked for
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Core of the servers; who loads them has the next one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) core: usize,
    /// The folder of the result [default: that of the experiment]
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}

impl Common {
    /// Where the result of the experiment of this name goes.
    pub(super) fn folder(&self, name: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| root().join("experiments").join(name))
    }
}

/// How it is said that a server does not know a flag.
pub(super) const REFUSES: &str = "cannot be so";

/// What all measurements share. Dropped, it takes its files along.
pub(super) struct Bench {
    /// The copy of the server that is measured.
    pub(super) binary: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) core: usize,
    pub(super) client: Client,
}

/// The access log of exhibits that have one, beside the configuration.
const LOG: &str = "access.log";

/// What the names of our folders begin with; the number of the process follows.
const FOLDER: &str = "bench-";

/// How what is measured is built.
#[derive(Clone, Copy)]
pub(super) enum Build {
    Release,
    /// As the tests have built it: for a look at whether the instruments work.
    Debug,
}

impl Build {
    /// For a smoke test or not.
    pub(super) fn of(smoke: bool) -> Build {
        if smoke { Build::Debug } else { Build::Release }
    }

    /// Builds it, by these words of `cargo build`, and returns the folder in which it then is.
    pub(super) fn make(self, words: &[&str]) -> Outcome<PathBuf> {
        let (profile, folder) = match self {
            Build::Release => ("release", "release"),
            Build::Debug => ("dev", "debug"),
        };
        run_command(&mut cargo(&[&["build", "--profile", profile], words].concat()))?;
        Ok(target_dir().join(folder))
    }

    /// Builds the two programs. All that the tests have built goes by what the whole workspace asks of what they share.
    fn programs(self) -> Outcome<PathBuf> {
        match self {
            Build::Release => self.make(&["--package", "amped", "--package", "ammeter"]),
            Build::Debug => self.make(&["--workspace"]),
        }
    }
}

impl Bench {
    pub(super) fn new(core: usize) -> Outcome<Bench> {
        Bench::of(Build::Release, core)
    }

    pub(super) fn of(build: Build, core: usize) -> Outcome<Bench> {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        if core + 1 >= cores {
            return Err(format!("the server is to have core {core} and its load {}, but there are {cores}", core + 1));
        }
        let built = build.programs()?;
        group::end_stale();
        end_stale_folders();
        let folder = target_dir().join(format!("{FOLDER}{}", std::process::id()));
        end_on_signals(folder.clone())?;
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let binary = folder.join("amped");
        let amped = built.join("amped");
        let copied = fs::copy(&amped, &binary).map_err(|error| format!("cannot copy {}: {error}", amped.display()));
        let bench = Bench { binary, core, client: Client::new(&built, &folder, core + 1)?, folder };
        copied.map(|_| bench)
    }

    pub(super) fn site(&self) -> PathBuf {
        self.folder.join("site")
    }

    /// Writes the configuration of an arm.
    fn configure(&self, exhibit: &Exhibit, arm: &Arm) -> Outcome<PathBuf> {
        let path = self.folder.join("amped.toml");
        // Files that were just written would otherwise be copied for a minute in place of being lent (`send.sendfile_min_age`).
        let common = format!("root = {:?}\nlisten = ['127.0.0.1:0']\nsend.sendfile_min_age = '0s'\n", self.site());
        let text = format!("{common}{}{}", exhibit.config, arm.config);
        fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(path)
    }

    /// Takes out of an exhibit the arms that this server cannot be, and says why, in the server's own words.
    pub(super) fn leave_out(&self, exhibit: &mut Exhibit) -> Outcome<Vec<LeftOut>> {
        fs::create_dir_all(self.site()).map_err(|error| format!("cannot make {}: {error}", self.site().display()))?;
        let mut left_out = Vec::new();
        for arm in std::mem::take(&mut exhibit.arms) {
            let config = self.configure(exhibit, &arm)?;
            let mut command = Command::new(&self.binary);
            command.args(["serve", "--print-config", "--config"]).arg(&config).args(&arm.flags);
            let said = command.output().map_err(|error| format!("cannot start {}: {error}", self.binary.display()))?;
            if said.status.success() {
                exhibit.arms.push(arm);
                continue;
            }
            let text = String::from_utf8_lossy(&said.stderr);
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            // What follows is clap's guess at what was meant instead.
            let why = lines.take_while(|line| !line.starts_with("tip:") && !line.starts_with("Usage:"));
            let why = why.take(3).collect::<Vec<_>>().join(" ");
            match left_out.iter_mut().find(|known: &&mut LeftOut| known.why == why) {
                Some(known) => known.arms.push(arm.name),
                None => left_out.push(LeftOut { arms: vec![arm.name], why }),
            }
        }
        Ok(left_out)
    }

    /// Carries an exhibit out; also returns why measurements were refused.
    pub(super) fn measure_all(
        &self,
        exhibit: &Exhibit,
        seed: u64,
        progress: &mut Progress,
    ) -> Outcome<(Vec<Sample>, Vec<String>)> {
        disks::release(&self.folder);
        let _ = fs::remove_dir_all(self.site());
        if let Some(machine) = exhibit.machine.filter(|machine| machine.disks > 1) {
            // Room for all files on one, since nobody says how they are spread.
            let bytes = exhibit.files.iter().map(|file| file.bytes + 4096).sum::<u64>() + (16 << 20);
            disks::make(&self.folder, &self.site(), machine.disks, bytes)?;
        }
        files::write(&self.site(), &exhibit.files, exhibit.machine.is_some())?;
        let mut random = Random(seed);
        let mut arms: Vec<(&str, &Arm)> = exhibit.arms.iter().map(|arm| (&arm.name[..], arm)).collect();
        arms.push((AGAIN, &exhibit.arms[0]));
        let mut points: Vec<&Point> = exhibit.points.iter().collect();
        let (mut samples, mut refused) = (Vec::new(), Vec::new());
        for round in 0..exhibit.rounds {
            random.shuffle(&mut points);
            for point in &points {
                // The same requests for all arms, others in each round.
                let from = random.below(10_000);
                random.shuffle(&mut arms);
                for (name, arm) in &arms {
                    let key = point.key();
                    progress.begin(&format!("{key:24} {name:24}"));
                    let sample = retried(&mut refused, || self.measure(exhibit, point, arm, from))
                        .map_err(|text| format!("{key}, {name}: {text}"))?;
                    progress.end(seconds_of(point), &sample.shown());
                    samples.push(Sample { round, point: key, arm: (*name).to_owned(), ..sample });
                }
            }
        }
        Ok((samples, refused))
    }

    fn measure(&self, exhibit: &Exhibit, point: &Point, arm: &Arm, from: usize) -> Outcome<Sample> {
        let config = self.configure(exhibit, arm)?;
        // Where there is a log, each server begins one, so that the last has no more to write than the first.
        let _ = fs::remove_file(self.folder.join(LOG));
        let group = Group::new(exhibit.machine.map(|machine| machine.memory))?;
        let mut server = Server::start(group, self.core, &self.binary, &config, &arm.flags)?;
        match &point.load.targets {
            // Each of a pool keeps what it has learnt to itself.
            Targets::One(path, _) => self.client.warm(server.address, &vec![path.clone(); 480], 48)?,
            Targets::List(..) => self.client.warm(server.address, &point.warm, 1)?,
        }
        if let Some(machine) = exhibit.machine {
            for folder in disks::folders(&self.site(), machine.disks) {
                server.group.slow_disk(&files::disk_of(&folder)?, machine.disk)?;
            }
        }

        let clocks = Clocks::read(&server.group, &self.client.group)?;
        let heard = self.client.run(server.address, &point.load, from)?;
        let sample = clocks.sample(&server.group, &self.client.group, heard.requests, heard.seconds, heard.bytes)?;
        server.check()?;
        Ok(Sample { hot_us: heard.hot, ..sample })
    }
}

/// Where everything stood that counts time.
pub(super) struct Clocks {
    begin: Instant,
    /// CPU time of the server, of its clients, and of all together.
    ns: [u64; 3],
}

impl Clocks {
    pub(super) fn read(server: &Group, clients: &Group) -> Outcome<Clocks> {
        Ok(Clocks { begin: Instant::now(), ns: [server.cpu_ns()?, clients.cpu_ns()?, busy_ns()?] })
    }

    /// What so many requests have cost since then. `seconds`: in which they were answered.
    pub(super) fn sample(
        self,
        server: &Group,
        clients: &Group,
        requests: u64,
        seconds: f64,
        bytes: u64,
    ) -> Outcome<Sample> {
        let after = Clocks::read(server, clients)?;
        let elapsed = after.begin - self.begin;
        let [cpu, client, busy] = std::array::from_fn(|at| after.ns[at].saturating_sub(self.ns[at]) as f64);
        let share = |ns: f64| rounded(ns / elapsed.as_nanos() as f64);
        Ok(Sample {
            cpu_us: rounded(cpu / 1e3 / requests as f64),
            rate: rounded(requests as f64 / seconds),
            mib_s: rounded(bytes as f64 / seconds / f64::from(1 << 20)),
            server_share: share(cpu),
            client_share: share(client),
            others_share: share(busy - cpu - client).max(0.0),
            ..Sample::default()
        })
    }
}

/// To four decimals: more is not known, and makes files long.
pub(super) fn rounded(figure: f64) -> f64 {
    (figure * 1e4).round() / 1e4
}

impl Drop for Bench {
    fn drop(&mut self) {
        disks::release(&self.folder);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Times a measurement is made before its exhibit is given up.
const TRIES: usize = 3;

/// What met an error is no measurement: it is made again, and told.
pub(super) fn retried<T>(refused: &mut Vec<String>, mut measure: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    for _ in 1..TRIES {
        match measure() {
            Ok(sample) => return Ok(sample),
            Err(text) => refused.push(text),
        }
    }
    measure()
}

/// What a run that was killed left behind.
fn end_stale_folders() {
    for entry in fs::read_dir(target_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(FOLDER)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            disks::release(&entry.path());
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Ctrl-C ends everything that was started, not only us.
fn end_on_signals(folder: PathBuf) -> Outcome {
    let signals = Signals::block().map_err(|error| format!("cannot take signals: {error}"))?;
    thread::spawn(move || {
        while !matches!(signals.wait(), Signal::Interrupt | Signal::Terminate | Signal::HangUp) {}
        // Twice: the other thread may be about to start something.
        group::end_all();
        thread::sleep(Duration::from_millis(100));
        group::end_all();
        disks::release(&folder);
        let _ = fs::remove_dir_all(folder);
        std::process::exit(130);
    });
    Ok(())
}

/// What a measurement is expected to take, in seconds: its load, the start of a server, the warming.
fn seconds_of(point: &Point) -> f64 {
    f64::from(point.load.seconds) + 0.2 + point.warm.len() as f64 * 0.000_3
}

/// What is done and what is left, told before and after each measurement.
pub(super) struct Progress {
    began: Instant,
    count: usize,
    done: usize,
    seconds: f64,
    seconds_done: f64,
}

impl Progress {
    pub(super) fn new<'a>(exhibits: impl Iterator<Item = &'a Exhibit>) -> Progress {
        let (mut count, mut seconds) = (0, 0.0);
        for exhibit in exhibits {
            let times = exhibit.rounds * (exhibit.arms.len() + 1);
            count += times * exhibit.points.len();
            seconds += times as f64 * exhibit.points.iter().map(seconds_of).sum::<f64>();
        }
        Progress::over(count, seconds)
    }

    /// Over so many measurements, which are expected to take so long together.
    pub(super) fn over(count: usize, seconds: f64) -> Progress {
        Progress { began: Instant::now(), count, done: 0, seconds, seconds_done: 0.0 }
    }

    pub(super) fn begin(&mut self, what: &str) {
        self.done += 1;
        eprint!("[{:>4}/{}] {what} ", self.done, self.count);
    }

    pub(super) fn end(&mut self, seconds: f64, result: &str) {
        self.seconds_done += seconds;
        let left = self.began.elapsed().as_secs_f64() / self.seconds_done * (self.seconds - self.seconds_done);
        eprintln!("{result}  {:>2.0} min {:02.0} s left", (left / 60.0).floor(), left % 60.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_again_and_told() {
        let mut refused = Vec::new();
        let mut results = vec![Ok(7), Err("second".to_owned()), Err("first".to_owned())];
        assert_eq!(retried(&mut refused, || results.pop().unwrap()), Ok(7));
        assert_eq!(refused, ["first", "second"]);
        let always: Outcome = retried(&mut refused, || Err("always".to_owned()));
        assert_eq!((always, refused.len()), (Err("always".to_owned()), 4));
    }
}
