//! The environment of a run: the machine's capabilities (namespaces, control groups, cores), a working
//! directory for servers, the files that they serve, and child processes that exit with this process.
//!
//! Leftovers of killed processes are found by names that identify their owner: control groups (`group.rs`), namespaces
//! (the marks of `ammeter wan`) and directories. [`TestEnvironment::new`] kills and removes them all first.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ammeter_load::drive::Stop;
use ammeter_load::workload::manifest::{File as ManifestFile, Manifest};
use ammeter_wan::place::{self, Mark};
use amped_measure::Failure;
use amped_measure::host::Machine;
use amped_sys::process;

use crate::archive::{self, CACHED, COLD, Host};
use crate::certificate::tls_address;
use crate::experiment::{Cores, Limits, Settings, Workload};
use crate::group::{self, Group};
use crate::subject::own_program;
use crate::values::{Checked, CoreList};

/// Prefix of our directory names: `ammeter-run-PID-BIRTH`.
const PREFIX: &str = "ammeter-run-";

/// Working directories of servers: on disk, accessible to every user.
const SCRATCH: &str = "/var/tmp";

/// Directory of the servers' metrics files: in memory.
const SHARED: &str = "/dev/shm";

/// Capabilities of this machine, and paths.
#[derive(Debug)]
pub(crate) struct TestEnvironment {
    /// Path of this program.
    pub(crate) own: PathBuf,
    /// Whether a run can have a network namespace of its own.
    pub(crate) is_private: bool,
    /// Whether servers can be put into control groups.
    pub(crate) has_groups: bool,
    /// Whether this process runs as root.
    pub(crate) is_root: bool,
    /// Whether server and clients share this machine's cores.
    pub(crate) is_shared: bool,
    /// Number of cores.
    cores: usize,
    /// Working directory of the experiment.
    pub(crate) scratch: PathBuf,
    /// Whether dropping this removes the working directory.
    owns_scratch: bool,
    /// Its block device, `major:minor`.
    disk: String,
    /// Unique prefix of this process's file names.
    word: String,
}

impl TestEnvironment {
    /// Removes leftovers of killed processes, and detects the capabilities of this machine.
    ///
    /// # Errors
    /// If `/var/tmp` is not writable.
    pub(crate) fn new() -> Result<TestEnvironment, Failure> {
        clear();
        let scratch = Path::new(SCRATCH).join(own_word()?);
        fs::create_dir_all(&scratch)
            .and_then(|()| fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755)))
            .map_err(Failure::io(format_args!("create {}", scratch.display())))?;
        let mut environment = TestEnvironment::within(&scratch)?;
        environment.owns_scratch = true;
        Ok(environment)
    }

    /// As [`new`](TestEnvironment::new), in the directory of another process, which removes it.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub(crate) fn within(scratch: &Path) -> Result<TestEnvironment, Failure> {
        let device = fs::metadata(scratch).map(|meta| meta.st_dev()).unwrap_or_default();
        let mark = Mark::own()?;
        Ok(TestEnvironment {
            own: own_program()?,
            is_private: place::in_thread(move || place::unshare(mark)).is_ok(),
            has_groups: Group::new(&Limits::default(), "").is_ok(),
            is_root: process::is_root(),
            is_shared: true,
            cores: Machine::this()?.cores,
            disk: whole_disk(device),
            scratch: scratch.to_owned(),
            owns_scratch: false,
            word: own_word()?,
        })
    }

    /// Returns the cores of server and clients: as configured; otherwise the first and the last core,
    /// if there are at least two and they are shared.
    pub(crate) fn cores(&self, cores: &Cores) -> Cores {
        let usual = |core: usize| (self.cores > 1 && self.is_shared).then(|| Checked::new(&core.to_string()));
        Cores {
            server: cores.server.clone().or_else(|| usual(0)),
            clients: cores.clients.clone().or_else(|| usual(self.cores - 1)),
        }
    }

    /// Describes the isolation of client and server, for the archive.
    pub(crate) fn words(&self, cores: &Cores) -> Vec<String> {
        let Cores { server, clients } = self.cores(cores);
        let on = |who: &str, list: Option<Checked<CoreList>>| match list {
            Some(list) => format!("{who} on core {list}"),
            None => format!("{who} on any core"),
        };
        vec![
            on("server", server),
            on("clients and instruments", clients),
            match self.is_private && self.is_shared {
                true => "a network namespace for each run".to_owned(),
                false if !self.is_shared => "the network between the hosts, which must carry no other traffic: the kernel's counters include all of it".to_owned(),
                false => "the network of this host, since namespaces require root: the kernel's counters include other \
                     programs".to_owned(),
            },
            match self.has_groups {
                true => "a control group for each server: CPU time of all its processes, to the nanosecond".to_owned(),
                false => "no control groups, since they require root: CPU time is that of threads that existed \
                     throughout the run".to_owned(),
            },
        ]
    }

    /// Creates a control group for a server, if control groups are available.
    ///
    /// # Errors
    /// If limits are requested but groups are unavailable, or a limit cannot be set.
    pub(crate) fn group(&self, limits: &Limits) -> Result<Option<Group>, Failure> {
        let is_limited = limits.memory.is_some() || limits.disk.is_some() || limits.cpu.is_some();
        if self.has_groups || is_limited { Group::new(limits, &self.disk).map(Some) } else { Ok(None) }
    }

    /// Creates an empty directory for a run; dropping it removes it.
    ///
    /// # Errors
    /// If it cannot be created, for example because the disk is full.
    pub(crate) fn folder(&self) -> Result<Folder, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.scratch.join(format!("run-{}-{number}", std::process::id()));
        // Servers that switch to another user write there too.
        fs::create_dir(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o777)))
            .map_err(Failure::io(format_args!("create {}", path.display())))?;
        Ok(Folder { path, metrics: Path::new(SHARED).join(format!("{}-{number}", self.word)) })
    }

    /// As [`site`](TestEnvironment::site), with the small file among the requests if the load wants it. If the server's memory or disk is limited, also evicts the
    /// files from the page cache.
    ///
    /// # Errors
    /// Those of [`site`](TestEnvironment::site).
    pub(crate) fn site_for(&self, settings: &Settings, seed: u64) -> Result<Site, Failure> {
        let mut site = self.site(&settings.workload, seed)?;
        if let Some(share) = settings.load.cached_share {
            site.mix(share)?;
        }
        if settings.limits.memory.is_some() || settings.limits.disk.is_some() {
            site.cool();
        }
        Ok(site)
    }

    /// Creates the files of a workload, once per workload; returns their directory and the manifest, if there is one.
    ///
    /// # Errors
    /// If they cannot be written, for example because the disk is full.
    pub(crate) fn site(&self, workload: &Workload, seed: u64) -> Result<Site, Failure> {
        let word = match workload {
            Workload::File(bytes) => format!("file-{}", bytes.0),
            Workload::Specweb96(ops) => format!("specweb96-{ops}"),
            Workload::Webstone(scale) => format!("webstone-{}", scale.replace('/', "of")),
            Workload::Log(path) => format!("log-{}", path.to_string_lossy().replace('/', "-")),
            Workload::Site(folder) => {
                let folder =
                    fs::canonicalize(folder).map_err(Failure::io(format_args!("find {}", folder.display())))?;
                return Ok(Site { folder, target: "/".to_owned(), manifest: None, replies: None });
            }
        };
        let folder = self.scratch.join(word);
        let manifest = folder.join("manifest.jsonl");
        let site = |target: &str, manifest| Site {
            folder: folder.clone(),
            target: target.to_owned(),
            manifest,
            replies: None,
        };
        let words: Vec<String> = match workload {
            Workload::File(bytes) => {
                if !folder.exists() {
                    write_beside(&folder)?;
                    write_file(&folder.join("file"), bytes.0)
                        .map_err(Failure::io(format_args!("write {}", folder.display())))?;
                }
                return Ok(site("/file", None));
            }
            Workload::Specweb96(ops) => ["files", "specweb96", "--ops", &ops.to_string()].map(str::to_owned).to_vec(),
            Workload::Webstone(scale) => ["files", "webstone", "--scale", scale].map(str::to_owned).to_vec(),
            Workload::Log(path) => vec!["files".to_owned(), "log".to_owned(), path.display().to_string()],
            Workload::Site(..) => Vec::new(),
        };
        if !manifest.exists() {
            let output = Command::new(&self.own)
                .args(words)
                .args(["--json", "--seed", &seed.to_string()])
                .arg(&folder)
                .stdin(Stdio::null())
                .output()
                .map_err(Failure::io("create a file set"))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(Failure::failed(format!("cannot create the file set: {said}")));
            }
            write_beside(&folder)?;
        }
        Ok(site("/", Some(manifest)))
    }
}

impl Drop for TestEnvironment {
    fn drop(&mut self) {
        if self.owns_scratch {
            let _ = fs::remove_dir_all(&self.scratch);
        }
    }
}

/// Returns the unique prefix of this process's names.
fn own_word() -> Result<String, Failure> {
    let own = std::process::id();
    let born = place::birth(own).ok_or_else(|| Failure::failed("cannot read /proc/self/stat; is /proc mounted?"))?;
    Ok(format!("{PREFIX}{own}-{born}"))
}

/// Kills and removes leftovers of processes that no longer exist.
pub(crate) fn clear() {
    Mark::end_orphans();
    group::end_orphans();
    for place in [SCRATCH, SHARED] {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| group::is_orphan(name, PREFIX)) {
                let path = entry.path();
                // It may belong to another user.
                let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            }
        }
    }
}

/// Returns the disk of a device: limits apply to whole disks, while a file system may be on a partition.
fn whole_disk(device: u64) -> String {
    // makedev(3).
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
    let own = format!("{major}:{minor}");
    let folder = fs::canonicalize(format!("/sys/dev/block/{own}")).unwrap_or_default();
    if !folder.join("partition").exists() {
        return own;
    }
    let whole = folder.parent().map(|disk| disk.join("dev")).and_then(|dev| fs::read_to_string(dev).ok());
    whole.map_or(own, |text| text.trim().to_owned())
}

/// Path of the file that the additional clients request.
pub(crate) const BESIDE: &str = "/beside.html";

/// Size of that file.
const BESIDE_BYTES: u64 = 1024;

/// Adds that file to the directory of a workload.
fn write_beside(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder)
        .and_then(|()| write_file(&folder.join(&BESIDE[1..]), BESIDE_BYTES))
        .map_err(Failure::io(format_args!("write {}", folder.display())))
}

fn write_file(path: &Path, bytes: u64) -> io::Result<()> {
    const BLOCK: u64 = 1 << 16;
    let block: Vec<u8> = (0..BLOCK).map(|at| b' ' + (at * 7 % 95) as u8).collect();
    let mut file = File::create(path)?;
    for from in (0..bytes).step_by(BLOCK as usize) {
        file.write_all(&block[..BLOCK.min(bytes - from) as usize])?;
    }
    file.sync_all()
}

/// Files to serve.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// Their directory.
    pub(crate) folder: PathBuf,
    /// A path that can be requested.
    pub(crate) target: String,
    /// Manifest of the requests, if this is a file set.
    pub(crate) manifest: Option<PathBuf>,
    /// Recorded responses of another server, for the floor server.
    pub(crate) replies: Option<PathBuf>,
}

impl Site {
    /// Mixes requests for the file [`BESIDE`] into those for the file set: this share of all requests, between 0 and 1.
    ///
    /// # Errors
    /// If the manifest cannot be read or written.
    fn mix(&mut self, share: f64) -> Result<(), Failure> {
        let Some(path) = &self.manifest else { return Ok(()) };
        let mut manifest = Manifest::read(path)?;
        manifest.files.iter_mut().for_each(|file| COLD.clone_into(&mut file.class));
        let others: f64 = manifest.files.iter().map(|file| file.weight).sum();
        manifest.files.push(ManifestFile {
            path: BESIDE.to_owned(),
            bytes: BESIDE_BYTES,
            class: CACHED.to_owned(),
            weight: others * share / (1.0 - share),
            seed: 0,
        });
        (manifest.head.files, manifest.head.bytes) = (manifest.head.files + 1, manifest.head.bytes + BESIDE_BYTES);
        let mixed = self.folder.join(format!("mixed-{share}.jsonl"));
        archive::write_bytes(&mixed, manifest.to_text().as_bytes())?;
        self.manifest = Some(mixed);
        Ok(())
    }

    /// Total size of the file set; `None` if this is not one.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let manifest = Manifest::read(self.manifest.as_ref()?).ok()?;
        Some(manifest.files.iter().map(|file| file.bytes).sum())
    }

    /// Evicts the files from the page cache, so that they are read from disk.
    pub(crate) fn cool(&self) {
        // dd(1), `nocache`: applies to the whole file if nothing is copied.
        let words = [
            "-type",
            "f",
            "-exec",
            "dd",
            "if=/dev/null",
            "of={}",
            "oflag=nocache",
            "conv=notrunc,fdatasync",
            "count=0",
            "status=none",
            ";",
        ];
        // A page that stays is not read from disk: harmless, and visible in the disk figures.
        let _ = Command::new("find").arg(&self.folder).args(words).stdin(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Directory of a run.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Path of its metrics file, in memory.
    pub(crate) metrics: PathBuf,
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
        let _ = fs::remove_file(&self.metrics);
    }
}

/// Finds two consecutive unused ports on this IP address, in the namespace of the calling thread, and returns the
/// first: the second is for TLS.
///
/// # Errors
/// If no such ports are found.
pub(crate) fn free_address(ip: std::net::IpAddr) -> Result<SocketAddr, Failure> {
    const ATTEMPTS: usize = 1000;
    // Outgoing connections get ports from this one on (ip_sysctl): one of those could be taken before the server has it.
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|low| low.parse().ok()).filter(|low| *low >= 4096);
    let end: u64 = end.unwrap_or(32768);
    let pair = || {
        let port = end / 2 + RandomState::new().hash_one(0) % (end / 2 - 1);
        let first = TcpListener::bind((ip, u16::try_from(port).unwrap_or_default()))?;
        let address = first.local_addr()?;
        TcpListener::bind(tls_address(address)).map(|_| address)
    };
    let found = (1..ATTEMPTS).map(|_| pair()).find(Result::is_ok).unwrap_or_else(pair);
    found.map_err(Failure::io(format_args!("find two free ports of {ip}")))
}

/// A child process. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    name: String,
}

/// Destinations of a child's output.
pub(crate) struct Streams {
    /// Standard output.
    pub(crate) out: Stdio,
    /// Standard error.
    pub(crate) err: Stdio,
}

impl Streams {
    /// Standard output (or none) and standard error to new files.
    ///
    /// # Errors
    /// If they cannot be created, for example because the disk is full.
    pub(crate) fn to(out: Option<&Path>, err: &Path) -> Result<Streams, Failure> {
        let create = |path: &Path| {
            File::create(path).map(Stdio::from).map_err(Failure::io(format_args!("write {}", path.display())))
        };
        Ok(Streams { out: out.map_or(Ok(Stdio::null()), create)?, err: create(err)? })
    }
}

impl Running {
    /// Starts a program in a process group of its own, so that only this process receives Ctrl-C. The
    /// child is killed when the calling thread ends.
    ///
    /// # Errors
    /// If the program does not exist.
    pub(crate) fn start(name: &str, words: &[String], streams: Streams) -> Result<Running, Failure> {
        Running::begin(name, words, streams, Stdio::null(), process::end_with_this_thread)
    }

    /// As [`start`](Running::start), for a program that ends, and tidies up, at the end of its standard input, however this
    /// process ends.
    ///
    /// # Errors
    /// Those of [`start`](Running::start).
    pub(crate) fn start_fed(name: &str, words: &[String], streams: Streams) -> Result<Running, Failure> {
        Running::begin(name, words, streams, Stdio::piped(), process::handle_signals)
    }

    fn begin(
        name: &str,
        words: &[String],
        streams: Streams,
        input: Stdio,
        prepare: fn(&mut Command),
    ) -> Result<Running, Failure> {
        let (program, arguments) =
            words.split_first().ok_or_else(|| Failure::failed(format!("{name}: the command is empty")))?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0).stdin(input).stdout(streams.out).stderr(streams.err);
        prepare(&mut command);
        let child =
            command.spawn().map_err(|error| Failure::failed(format!("cannot start {name} ({program}): {error}")))?;
        Ok(Running { child, name: name.to_owned() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status, if the process has exited.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Takes the standard output, if it is a pipe.
    pub(crate) fn take_output(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Takes the standard input, if it is a pipe.
    pub(crate) fn take_input(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Takes the standard error, if it is a pipe.
    pub(crate) fn take_errors(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Waits until the process exits.
    ///
    /// # Errors
    /// On a timeout or an interrupt; the process is then killed.
    pub(crate) fn wait(mut self, patience: Duration, stop: &Stop) -> Result<ExitStatus, Failure> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            if stop.is_stopped() {
                return Err(interrupted());
            }
            if begin.elapsed() > patience {
                return Err(Failure::failed(format!("{} did not end within {patience:?}, and was killed", self.name)));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM, and kills the process if it has not exited after `patience`.
    pub(crate) fn end(mut self, patience: Duration) {
        process::terminate(self.pid());
        self.await_end(patience);
    }

    /// Waits up to `patience` until the process exits; returns the exit status.
    pub(crate) fn await_end(&mut self, patience: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        while self.ended().is_none() && begin.elapsed() < patience {
            thread::sleep(Duration::from_millis(5));
        }
        self.ended()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The last lines that a process printed to standard error.
#[derive(Debug)]
pub(crate) struct Said {
    text: Arc<Mutex<String>>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

impl Said {
    /// Starts a thread that collects them.
    pub(crate) fn by(errors: Option<ChildStderr>) -> Said {
        const BYTES_MAX: usize = 4096;
        let text = Arc::new(Mutex::new(String::new()));
        let here = Arc::clone(&text);
        let reader = thread::spawn(move || {
            for line in errors.into_iter().flat_map(|errors| BufReader::new(errors).lines().map_while(Result::ok)) {
                let mut text = here.lock().unwrap_or_else(PoisonError::into_inner);
                text.extend([line.trim_end(), "\n"]);
                while text.len() > BYTES_MAX {
                    let end = text.find('\n').map_or(text.len(), |end| end + 1);
                    text.drain(..end);
                }
            }
        });
        Said { text, reader: Mutex::new(Some(reader)) }
    }

    /// Returns the output so far.
    pub(crate) fn so_far(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the output of an exited process, without the prefix `ammeter: `.
    pub(crate) fn whole(&self) -> String {
        if let Some(reader) = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = reader.join();
        }
        self.so_far().trim().trim_start_matches("ammeter: ").to_owned()
    }
}

/// The failure reported after Ctrl-C.
pub(crate) fn interrupted() -> Failure {
    Failure::failed("interrupted; completed measurements are kept, and the same command resumes")
}

/// Records the machine and its kernel settings.
///
/// # Errors
/// If `/proc` is not mounted.
pub(crate) fn host(test_bed: Vec<String>) -> Result<Host, Failure> {
    const SETTINGS: [&str; 16] = [
        "net.core.somaxconn",
        "net.core.rmem_max",
        "net.core.wmem_max",
        "net.core.default_qdisc",
        "net.core.netdev_max_backlog",
        "net.ipv4.tcp_congestion_control",
        "net.ipv4.tcp_max_syn_backlog",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
        "net.ipv4.tcp_tw_reuse",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.ip_local_port_range",
        "fs.file-max",
        "vm.swappiness",
        "kernel.randomize_va_space",
    ];
    let read = |path: String| Some(fs::read_to_string(path).ok()?.trim().replace('\t', " "));
    let mut kernel: std::collections::BTreeMap<String, String> = SETTINGS
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), read(format!("/proc/sys/{}", name.replace('.', "/")))?)))
        .collect();
    for (name, path) in [
        ("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        ("loopback.mtu", "/sys/class/net/lo/mtu"),
        ("transparent-hugepages", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ] {
        kernel.extend(read(path.to_owned()).map(|text| (name.to_owned(), text)));
    }
    for entry in fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten().flatten() {
        let name = format!("mitigation.{}", entry.file_name().to_string_lossy());
        kernel.extend(read(entry.path().display().to_string()).map(|text| (name, text)));
    }
    Ok(Host {
        machine: Machine::this()?,
        memory_bytes: process::memory_bytes(),
        kernel,
        load_average: amped_measure::host::load_average()?,
        test_bed,
        clients: std::collections::BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_environment_is_set_up_and_removed() {
        let environment = TestEnvironment::new().unwrap();
        let site = environment.site(&Workload::File(amped_units::Bytes(70_000)), 1).unwrap();
        assert_eq!(fs::metadata(site.folder.join("file")).unwrap().len(), 70_000);
        assert_eq!(environment.site(&Workload::File(amped_units::Bytes(70_000)), 1).unwrap().folder, site.folder);
        site.cool();
        let folder = environment.folder().unwrap();
        let (path, scratch) = (folder.path.clone(), environment.scratch.clone());
        // A concurrent cleanup must leave the files of a running process alone.
        clear();
        assert!(path.exists());
        drop(folder);
        assert!(!path.exists() && scratch.exists());
        drop(environment);
        assert!(!scratch.exists());
    }

    #[test]
    fn child_exits_with_its_parent() {
        let start = || {
            let streams = Streams { out: Stdio::null(), err: Stdio::null() };
            Running::start("sleep", &["sleep".to_owned(), "600".to_owned()], streams)
        };
        let pid = place::in_thread(move || Ok(std::mem::ManuallyDrop::new(start()?).pid())).unwrap();
        let begin = Instant::now();
        let is_there = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        while is_there() {
            assert!(begin.elapsed() < Duration::from_secs(20), "it still exists");
            thread::sleep(Duration::from_millis(5));
        }
        let failure = start().unwrap().wait(Duration::from_millis(20), &Stop::default()).unwrap_err();
        assert!(failure.to_string().contains("did not end"), "{failure}");
    }

    #[test]
    fn machine_is_recorded() {
        let host = host(Vec::new()).unwrap();
        assert!(host.memory_bytes > 1 << 20 && host.kernel.contains_key("net.core.somaxconn"), "{host:?}");
    }
}
