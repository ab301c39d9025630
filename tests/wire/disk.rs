//! A disk that is slow for the server alone: requests for files in memory must not notice.
//!
//! The server runs in a control group of its own with throttled disk reads, and the tests evict files from the page
//! cache before they request them. The duration of those requests proves that the disk was slow and the files cold.
//! Other latencies in the meantime are compared with it, so nothing here depends on the speed of the machine.
//!
//! Needs root, a disk (not a memory or overlay file system) below the build directory or `/var/tmp`, and the controller
//! `blkio` of control groups v1 or `io` of v2.

use std::fs::{self, File};
use std::net::UdpSocket;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use amped_sys::mapping::Mapping;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::frames::Http2;
use super::harness::{Client, Server, SetOnDrop, Site, children_of, configuration, need_root, program};

/// Bytes of a page.
const PAGE: usize = 4096;

/// Serialises the tests that evict kernel caches, because each would disturb the others. `cargo nextest` runs them
/// alone anyway, because of their names; plain `cargo test` does not.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A control group with a slow disk. Removed when dropped, after the server in it has exited: declare it before the
/// server.
pub struct SlowDisk {
    group: PathBuf,
}

impl SlowDisk {
    /// Throttles the disk of `folder` to this many bytes a second.
    pub fn new(folder: &Path, bytes_a_second: u64) -> SlowDisk {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("amped-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let disk = disk_of(folder);
        let root = Path::new("/sys/fs/cgroup");
        let (group, file, line) = if root.join("blkio/cgroup.procs").exists() {
            let line = format!("{disk} {bytes_a_second}");
            (root.join("blkio").join(name), "blkio.throttle.read_bps_device", line)
        } else {
            // Fails if the controller is enabled already, or does not exist; the next step reports the latter.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+io");
            (root.join(name), "io.max", format!("{disk} rbps={bytes_a_second}"))
        };
        let way_out = "run the tests as root on a machine with control groups v1 (blkio) or v2 (io)";
        fs::create_dir(&group).unwrap_or_else(|error| panic!("cannot create {}: {error}; {way_out}", group.display()));
        let slow = SlowDisk { group };
        let limit = slow.group.join(file);
        fs::write(&limit, line).unwrap_or_else(|error| panic!("cannot write {}: {error}; {way_out}", limit.display()));
        slow
    }

    /// Moves a server into the group, with its processes; processes that they start later are in it too.
    pub fn hold(&self, server: &Server) {
        let mut family = vec![server.pid()];
        let mut at = 0;
        while at < family.len() {
            fs::write(self.group.join("cgroup.procs"), family[at].to_string()).unwrap();
            family.extend(children_of(family[at]));
            at += 1;
        }
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // The last process leaves a group a moment after it was reaped.
        for _ in 0..400 {
            if fs::remove_dir(&self.group).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        eprintln!("{} could not be removed", self.group.display());
    }
}

/// Returns `major:minor` of the whole disk of a directory.
fn disk_of(folder: &Path) -> String {
    let device = fs::metadata(folder).unwrap().dev();
    // makedev(3): the upper and lower halves of both numbers are interleaved.
    let major = (device >> 8) & 0xfff | (device >> 32) & !0xfff;
    let minor = device & 0xff | (device >> 12) & !0xff;
    let block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    assert!(block.exists(), "{} is not on a disk; set CARGO_TARGET_DIR to a directory on one", folder.display());
    // Limits apply to disks, not to partitions.
    let whole = if block.join("partition").exists() { block.join("..") } else { block };
    fs::read_to_string(whole.join("dev")).unwrap().trim().to_owned()
}

/// A site on a disk, readable by every user, with files of root.
fn public_site() -> Site {
    let site = Site::on_disk();
    let open = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o001 != 0;
    // The build directory may be in a home that other users cannot enter; `/var/tmp` survives a reboot, so it is on a
    // disk.
    let site = match site.path().ancestors().skip(1).all(open) {
        true => site,
        false => Site { folder: tempfile::tempdir_in("/var/tmp").unwrap() },
    };
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
    site
}

/// Starts a server with a configuration, as this user.
fn server_as(user: &str, site: &Site, toml: &str) -> Server {
    let config = site.path().with_extension("toml");
    fs::write(&config, configuration(site.path(), &format!("user = '{user}'\n{toml}"))).unwrap();
    Server::start(&["--config", config.to_str().unwrap()])
}

/// Evicts a file from the page cache, after writing it to the disk.
pub fn evict(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_data().unwrap();
    // A page in use is not evicted: one that is being read, or that is still part of a response in a socket.
    for _ in 0..1000 {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if pages_in_memory(&file).is_empty() {
            return;
        }
        free_what_was_received();
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{} stays in memory; is the build directory on a disk?", path.display());
}

/// Makes the kernel release pages that were part of responses. A buffer received on one CPU and sent from another
/// returns to that one, which frees it at the next packet there (`skb_defer_max` of the kernel's sysctl/net.rst): so
/// each CPU gets one packet.
fn free_what_was_received() {
    thread::scope(|scope| {
        for processor in 0..thread::available_parallelism().unwrap().get() {
            scope.spawn(move || {
                let mut only = CpuSet::new();
                only.set(processor);
                // This process may not run on some CPUs; it uses the others.
                if sched_setaffinity(None, &only).is_ok() {
                    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                    socket.send_to(&[0], socket.local_addr().unwrap()).unwrap();
                }
            });
        }
    });
}

/// Numbers of the pages of a file that are in memory.
pub fn pages_in_memory(file: &File) -> Vec<usize> {
    let length = file.metadata().unwrap().len() as usize;
    let mapping = Mapping::new(file, 0, length).unwrap();
    (0..length.div_ceil(PAGE)).filter(|page| mapping.is_resident(page * PAGE..length.min((page + 1) * PAGE))).collect()
}

/// Drops all unused names and inodes from the kernel's caches.
fn drop_names() {
    fs::write("/proc/sys/vm/drop_caches", "2").expect("run the tests as root");
}

/// Creates cold files of one size; each contains its number.
pub fn cold_files(site: &Site, count: usize, length: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|n| format!("cold-{n}.bin")).collect();
    let paths: Vec<PathBuf> =
        names.iter().enumerate().map(|(n, name)| site.file(name, vec![n as u8; length])).collect();
    paths.iter().for_each(|path| evict(path));
    // The server would wait for a file that has just changed, for another reason (see `disk::STILL`).
    thread::sleep(Duration::from_millis(60));
    names
}

/// Latencies of the requests for one file.
#[derive(Debug)]
#[allow(dead_code, reason = "the fields are only printed")]
struct Latencies {
    count: usize,
    p99: Duration,
    max: Duration,
}

/// Requests a file repeatedly until `stop` is set.
fn ask_again_and_again(mut client: Client, target: &str, stop: &AtomicBool) -> Latencies {
    let mut taken = Vec::new();
    while !stop.load(Ordering::Relaxed) || taken.len() < 100 {
        let begin = Instant::now();
        assert_eq!(client.get(target).status, 200);
        taken.push(begin.elapsed());
        thread::sleep(Duration::from_millis(1));
    }
    taken.sort();
    Latencies { count: taken.len(), p99: taken[taken.len() * 99 / 100], max: taken[taken.len() - 1] }
}

/// Requests hot files while `doing` runs; returns its result, and the latencies of the hot files.
fn meanwhile<T>(server: &Server, hot: &[&str], doing: impl FnOnce() -> T) -> (T, Vec<Latencies>) {
    for target in hot {
        assert_eq!(server.get(target).status, 200);
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let set = SetOnDrop(&stop);
        let stop = &stop;
        let askers: Vec<_> =
            hot.iter().map(|target| scope.spawn(move || ask_again_and_again(server.connect(), target, stop))).collect();
        let done = doing();
        drop(set);
        (done, askers.into_iter().map(|asker| asker.join().unwrap()).collect())
    })
}

/// Size of the cold files: more than one window of 256 KiB, each of which takes a second.
const COLD: usize = 320 << 10;

/// A site with two files in memory and four cold ones, whose names are returned, on a disk that is slow for its server.
fn hot_and_cold() -> (Site, Vec<String>, SlowDisk) {
    let site = public_site();
    site.file("hot.txt", "hot");
    site.file("hot.bin", vec![7; 300 << 10]);
    let names = cold_files(&site, 4, COLD);
    let slow = SlowDisk::new(site.path(), 256 << 10);
    (site, names, slow)
}

fn check_cold_downloads(user: &str, toml: &str) {
    let _alone = alone();
    let (site, names, slow) = hot_and_cold();
    let server = server_as(user, &site, toml);
    // The server's own pages must be in memory.
    assert_eq!(server.get("/hot.txt").status, 200);
    slow.hold(&server);
    let (cold, hot) = meanwhile(&server, &["/hot.txt", "/hot.bin"], || {
        thread::scope(|scope| {
            let fetch = |(n, name): (usize, &String)| {
                let mut client = server.connect();
                let target = format!("/{name}");
                scope.spawn(move || {
                    let begin = Instant::now();
                    let response = client.get(&target);
                    assert!(response.status == 200 && response.body == vec![n as u8; COLD], "{target}");
                    begin.elapsed()
                })
            };
            let fetches: Vec<_> = names.iter().enumerate().map(fetch).collect();
            fetches.into_iter().map(|fetch| fetch.join().unwrap()).collect::<Vec<_>>()
        })
    });
    println!("as {user}: cold {cold:?}, hot {hot:?}");
    // One file alone takes 1.25 s, all of them 5 s.
    assert!(cold.iter().all(|cold| *cold > Duration::from_secs(1)), "the disk was not slow: {cold:?}");
    let slowest = *cold.iter().max().unwrap();
    for latencies in hot {
        assert!(latencies.max < slowest / 10, "hot {latencies:?} beside cold {cold:?}");
    }
}

#[test]
fn alone_cold_file_delays_no_stream_of_its_connection() {
    let _alone = alone();
    let (site, names, slow) = hot_and_cold();
    let server = server_as("root", &site, "");
    let mut http2 = Http2::connect(&server);
    for hot in ["/hot.txt", "/hot.bin"] {
        assert_eq!(http2.get(hot).status, 200);
    }
    slow.hold(&server);
    let begin = Instant::now();
    let streams: Vec<_> = names.iter().map(|name| http2.request("GET", &format!("/{name}"), &[])).collect();
    let mut slowest_hot = Duration::ZERO;
    while streams.iter().any(|stream| !http2.completed.contains(&stream.0)) {
        for hot in ["/hot.txt", "/hot.bin"] {
            let begin = Instant::now();
            assert_eq!(http2.get(hot).status, 200);
            slowest_hot = slowest_hot.max(begin.elapsed());
        }
        thread::sleep(Duration::from_millis(1));
    }
    let cold = begin.elapsed();
    for (n, stream) in streams.into_iter().enumerate() {
        assert!(http2.response(stream).body == vec![n as u8; COLD], "file {n}");
    }
    println!("cold {cold:?}, hot at most {slowest_hot:?}");
    assert!(cold > Duration::from_secs(4), "the disk was not slow: {cold:?}");
    assert!(slowest_hot < cold / 10, "hot {slowest_hot:?} beside cold {cold:?}");
}

#[test]
fn alone_cold_downloads_do_not_delay_hot_file() {
    check_cold_downloads("root", "");
}

#[test]
fn alone_cold_downloads_of_other_owner_do_not_delay_hot_file() {
    // mincore(2) and cachestat(2) reveal nothing to a process that may not write the file; the server's probes do.
    check_cold_downloads("nobody", "");
}

#[test]
fn alone_cold_downloads_by_helper_processes_do_not_delay_hot_file() {
    check_cold_downloads("nobody", "[helpers]\nkind = 'processes'");
}

/// Flash's residency test under current kernels: to a process that does not own the files, mincore(2) reports all pages
/// in memory, and the loop blocks.
#[test]
fn alone_mincore_avoids_blocking_only_for_file_owner() {
    // Two windows. A helper always reads the first window of a new file, so residency decides about the second.
    const LENGTH: usize = 512 << 10;
    let _alone = alone();
    // Duration of a cold request, and the longest of a hot one meanwhile.
    let check = |user: &str, residency: &str| {
        let site = public_site();
        site.file("hot.txt", "hot");
        let names = cold_files(&site, 1, LENGTH);
        let slow = SlowDisk::new(site.path(), 256 << 10);
        let server = server_as(user, &site, &format!("[send]\nresidency = '{residency}'"));
        assert_eq!(server.get("/hot.txt").status, 200);
        // The kernel must know that there are no siblings; otherwise a helper would look for them and read the file
        // too.
        for suffix in ["br", "zst", "gz"] {
            assert_eq!(server.get(&format!("/{}.{suffix}", names[0])).status, 404);
        }
        slow.hold(&server);
        let (cold, hot) = meanwhile(&server, &["/hot.txt"], || {
            let begin = Instant::now();
            assert!(server.get(&format!("/{}", names[0])).body == [0; LENGTH]);
            begin.elapsed()
        });
        println!("{residency} as {user}: cold {cold:?}, hot {hot:?}");
        assert!(cold > Duration::from_secs(1), "the disk was not slow: {cold:?}");
        let warned = server.said().contains("residency \"mincore\"");
        assert_eq!(warned, residency == "mincore" && user == "nobody", "{}", server.said());
        (cold, hot[0].max)
    };
    for (user, residency) in [("root", "mincore"), ("nobody", "nowait"), ("nobody", "clock")] {
        let (cold, hot) = check(user, residency);
        assert!(hot < cold / 5, "{residency} as {user}: hot {hot:?} beside cold {cold:?}");
    }
    for (user, residency) in [("nobody", "mincore"), ("root", "none")] {
        let (cold, hot) = check(user, residency);
        assert!(hot > cold / 3, "{residency} as {user}: hot {hot:?} beside cold {cold:?}");
    }
}

/// The loop blocks once for pages that the model of the page cache wrongly assumes to be in memory.
#[test]
fn alone_clock_model_learns_from_blocking_reads() {
    const LENGTH: usize = 256 << 10;
    let _alone = alone();
    let site = public_site();
    let names = cold_files(&site, 8, LENGTH);
    let server = server_as("root", &site, "[send]\nresidency = 'clock'\nsendfile_min_age = '0s'");
    let fetch_all = || {
        for (n, name) in names.iter().enumerate() {
            assert!(server.get(&format!("/{name}")).body == vec![n as u8; LENGTH], "{name}");
        }
    };
    fetch_all();
    fetch_all();
    assert_eq!(
        (server.report("page_cache_faults"), server.report("page_cache_believed_bytes")),
        (0, 8 * LENGTH as u64)
    );
    let before = server.report("page_cache_estimate_bytes");
    names.iter().for_each(|name| evict(&site.path().join(name)));
    let helped = server.report("probe_misses window");
    fetch_all();
    let faults = server.report("page_cache_faults");
    assert!((1..=8).contains(&faults), "{faults}");
    assert!(server.report("page_cache_estimate_bytes") < before);
    assert_eq!(server.report("probe_misses window"), helped, "a window was assumed not to be in memory");
}

#[test]
fn alone_window_with_hole_does_not_delay_hot_file() {
    let _alone = alone();
    let site = public_site();
    site.file("hot.txt", "hot");
    let names = cold_files(&site, 1, 256 << 10);
    let slow = SlowDisk::new(site.path(), 64 << 10);
    // With sendfile the kernel itself would wait for missing pages.
    let server = server_as("root", &site, "[send]\nsendfile_min_age = '0s'");
    let target = format!("/{}", names[0]);
    assert_eq!(server.get(&target).body.len(), 256 << 10);
    // Both ends of the file are in memory; the middle, beyond the kernel's read-ahead, is not.
    evict(&site.path().join(&names[0]));
    let file = File::open(site.path().join(&names[0])).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    for end in [0, 192 << 10] {
        file.read_exact_at(&mut [0; 64 << 10], end).unwrap();
    }
    assert_eq!(pages_in_memory(&file), (0..16).chain(48..64).collect::<Vec<_>>());
    // For a moment the server relies on its last residency check.
    thread::sleep(Duration::from_millis(60));
    slow.hold(&server);
    let (cold, hot) = meanwhile(&server, &["/hot.txt"], || {
        let begin = Instant::now();
        assert_eq!(server.get(&target).body.len(), 256 << 10);
        begin.elapsed()
    });
    println!("a hole of 128 KiB {cold:?}, hot {hot:?}");
    assert!(cold > Duration::from_secs(1), "the disk was not slow, or there was no hole: {cold:?}");
    assert!(hot[0].max < cold / 5, "hot {hot:?} beside {cold:?}");
}

#[test]
fn alone_unresponsive_disk_times_out() {
    let _alone = alone();
    let site = public_site();
    let names = cold_files(&site, 2, 1 << 20);
    // A window of 256 KiB takes two seconds.
    let slow = SlowDisk::new(site.path(), 128 << 10);
    let server = server_as("root", &site, "[limits]\ndisk_timeout = '500ms'");
    let [begun, cold] = [&names[0], &names[1]].map(|name| format!("/{name}"));
    assert_eq!(server.get(&begun).body.len(), 1 << 20);
    // The first half of one file stays in memory.
    let input = format!("if={}", site.path().join(&names[0]).display());
    let range = ["iflag=nocache,skip_bytes,count_bytes", "bs=64K", "skip=524288", "count=524288"];
    let dd = Command::new("dd").args([&input, "of=/dev/null", "status=none"]).args(range).status().unwrap();
    assert!(dd.success());
    slow.hold(&server);

    let mut client = server.connect();
    assert_eq!(client.get(&cold).status, 503);
    let error = server.connect().try_get(&begun);
    assert!(error.is_none(), "a download that cannot continue is not truncated");
    assert_eq!(server.report("connections_broken"), 1);
    assert!(client.get("/missing").status == 404, "the answered connection stays open");
}

#[test]
fn alone_cold_lookups_do_not_delay_hot_file() {
    check_cold_names("");
}

#[test]
fn alone_cold_lookups_by_helper_processes_do_not_delay_hot_file() {
    check_cold_names("[helpers]\nkind = 'processes'");
}

fn check_cold_names(toml: &str) {
    const FOLDERS: usize = 8;
    let _alone = alone();
    let site = public_site();
    site.file("hot.txt", "hot");
    let paths: Vec<PathBuf> =
        (0..FOLDERS).map(|n| site.file(&format!("{n}/deep/deeper/page.html"), n.to_string())).collect();
    let slow = SlowDisk::new(site.path(), 16 << 10);
    // So short that the hot file's name, which is cold too, is revalidated throughout.
    let server = server_as("root", &site, &format!("[cache]\nrevalidate = '50ms'\n{toml}"));
    assert_eq!(server.get("/hot.txt").status, 200);
    slow.hold(&server);
    let (cold, hot) = meanwhile(&server, &["/hot.txt"], || {
        paths.iter().for_each(|path| evict(path));
        thread::sleep(Duration::from_millis(60));
        drop_names();
        let mut client = server.connect();
        let begin = Instant::now();
        for n in 0..FOLDERS {
            let response = client.get(&format!("/{n}/deep/deeper/page.html"));
            assert_eq!((response.status, response.text()), (200, n.to_string()));
        }
        begin.elapsed()
    });
    println!("{FOLDERS} cold names {cold:?}, hot {hot:?}");
    assert!(server.report("helpers_peak") >= 1);
    assert!(cold > Duration::from_millis(500), "the disk was not slow, or the files not cold: {cold:?}");
    assert!(hot[0].max < cold / 5, "hot {hot:?} beside cold names {cold:?}");
}

#[test]
fn alone_requests_beyond_helper_queue_are_shed() {
    const REQUESTS: usize = 24;
    let _alone = alone();
    let site = public_site();
    site.file("hot.txt", "hot");
    let names = cold_files(&site, REQUESTS, 250 << 10);
    let slow = SlowDisk::new(site.path(), 512 << 10);
    let server = server_as("root", &site, "[helpers]\nmax = 1\nmax_queue = 4\n[cache]\nrevalidate = '50ms'");
    slow.hold(&server);
    let (responses, hot) = meanwhile(&server, &["/hot.txt"], || {
        // The hot file's name is cold as well, and no helper is free to look it up: the cached lookup serves.
        drop_names();
        let mut clients: Vec<Client> = (0..REQUESTS).map(|_| server.connect()).collect();
        for (client, name) in clients.iter_mut().zip(&names) {
            client.send_request("GET", &format!("/{name}"), &[]);
        }
        let begin = Instant::now();
        let responses: Vec<_> = clients.iter_mut().map(|client| client.response("GET")).collect();
        (responses, begin.elapsed())
    });
    let (responses, elapsed) = responses;
    let (served, shed): (Vec<_>, Vec<_>) = responses.iter().partition(|response| response.status == 200);
    println!("{} served in {elapsed:?}, {} shed, hot {hot:?}", served.len(), shed.len());
    // Four requests wait, one of which may be the lookup of the hot file's name, and one is in progress if a helper had
    // begun by then; more only if the disk was faster than the requests.
    assert!(served.len() >= 3 && shed.len() >= REQUESTS / 2, "{} served", served.len());
    for response in &shed {
        assert_eq!((response.status, response.field("Retry-After")), (503, Some("1")));
    }
    assert_eq!(server.report("requests_shed"), shed.len() as u64);
    assert!(elapsed > Duration::from_secs(1), "the disk was not slow: {elapsed:?}");
    assert!(hot[0].max < elapsed / 5, "hot {hot:?}, cold {elapsed:?}");
    // No request is shed after the overload.
    assert_eq!(server.get(&format!("/{}", names[0])).status, 200);
}

#[test]
fn alone_downloads_queue_when_helpers_are_busy() {
    const CLIENTS: usize = 6;
    let _alone = alone();
    let site = public_site();
    site.file("hot.txt", "hot");
    let names = cold_files(&site, CLIENTS, 1 << 20);
    let slow = SlowDisk::new(site.path(), 2 << 20);
    let server = server_as("root", &site, "[helpers]\nmax = 1\nmax_queue = 1");
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    // While the disk is fast every request gets its first window, and with it a head: none can be shed any more.
    for (client, name) in clients.iter_mut().zip(&names) {
        let first = client.request("GET", &format!("/{name}"), &[("Range", "bytes=0-9")]);
        assert_eq!(first.status, 206);
        evict(&site.path().join(name));
    }
    slow.hold(&server);
    let begin = Instant::now();
    let used = cpu_time(&server);
    let (lengths, hot) = meanwhile(&server, &["/hot.txt"], || {
        for (client, name) in clients.iter_mut().zip(&names) {
            client.send_request("GET", &format!("/{name}"), &[]);
        }
        clients.iter_mut().map(|client| client.response("GET").body.len()).collect::<Vec<_>>()
    });
    let (used, elapsed) = (cpu_time(&server) - used, begin.elapsed());
    println!("{elapsed:?}, of it {used:?} CPU time, hot {hot:?}");
    assert_eq!(lengths, [1 << 20; CLIENTS]);
    assert!(elapsed > Duration::from_secs(2), "the disk was not slow: {elapsed:?}");
    assert!(hot[0].max < elapsed / 5, "hot {hot:?}, cold {elapsed:?}");
    // A loop that polled the queue for room would use a whole core.
    assert!(used < elapsed / 2, "{used:?} of CPU time in {elapsed:?} of waiting");
}

/// The difference between the architectures (Flash, sections 3 and 6): all of them serve cold files at the speed of the
/// disk, and hot files are delayed where the loop itself waits.
#[test]
fn alone_slow_disk_stalls_only_sped() {
    const LENGTH: usize = 200 << 10;
    let _alone = alone();
    let check = |architecture: &str| {
        let site = public_site();
        site.file("hot.txt", "hot");
        let names = cold_files(&site, 16, LENGTH);
        let slow = SlowDisk::new(site.path(), 1 << 20);
        let server = server_as("nobody", &site, &format!("architecture = '{architecture}'"));
        assert_eq!(server.get("/hot.txt").status, 200);
        slow.hold(&server);
        for child in server.children() {
            fs::write(slow.group.join("cgroup.procs"), child.to_string()).unwrap();
        }
        let (cold, hot) = meanwhile(&server, &["/hot.txt"], || {
            let begin = Instant::now();
            thread::scope(|scope| {
                for (n, names) in names.chunks(4).enumerate() {
                    let mut client = server.connect();
                    scope.spawn(move || {
                        for (m, name) in names.iter().enumerate() {
                            assert!(client.get(&format!("/{name}")).body == vec![(4 * n + m) as u8; LENGTH], "{name}");
                        }
                    });
                }
            });
            begin.elapsed()
        });
        let [hot] = hot.try_into().unwrap();
        println!("{architecture}: cold {cold:?}, hot {hot:?}");
        assert!(cold > Duration::from_secs(2), "the disk was not slow: {cold:?}");
        (cold, hot)
    };
    let [amped, sped, mt, mp] = ["amped", "sped", "mt", "mp"].map(check);
    assert!(amped.1.p99 * 10 < sped.1.p99, "hot requests wait as long as in SPED");
    assert!(amped.1.count > 5 * sped.1.count, "no more hot requests than in SPED");
    for (name, (cold, hot)) in [("mt", mt), ("mp", mp)] {
        assert!(hot.p99 * 10 < sped.1.p99, "{name} stalls");
        assert!(amped.0 < cold * 5 / 4, "the disk is used less than in {name}");
    }
}

/// If the kernel evicted pages of the program for files, the loop would have to wait until they are read again.
#[test]
fn program_pages_stay_locked_in_memory() {
    need_root("starts the server as root, without a limit on locked memory, to drop root");
    // The number of mapped files of the program, or the first one that is not locked.
    let locked = |pid: u32| -> Result<usize, String> {
        let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        let mut files = 0;
        // proc_pid_smaps(5): a line as in maps, then one for each figure, with the flags as the last.
        for mapping in maps.split_inclusive("VmFlags:").collect::<Vec<_>>().windows(2) {
            let (of, flags) = (mapping[0], mapping[1].lines().next().unwrap());
            let line = of.lines().find(|line| line.contains('-')).unwrap();
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            // Libraries that the name service loads later to look up a user are not used in a loop.
            let is_ours = fields.last().is_some_and(|path| path.ends_with("/amped") || path.contains("/libc.so"));
            if !is_ours || !fields[1].starts_with('r') {
                continue;
            }
            let figure = |key: &str| of.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim();
            if figure("Size:") != figure("Rss:") {
                return Err(format!("a mapping is not entirely in memory: {line}"));
            }
            if !flags.split(' ').any(|flag| flag == "lo") {
                return Err(format!("a mapping is not locked: {line}"));
            }
            files += 1;
        }
        Ok(files)
    };
    let check = |architecture: &str| {
        let server = server_as("nobody", &public_site(), &format!("architecture = '{architecture}'"));
        let pid = server.pid();
        let begun = Instant::now();
        let files = loop {
            match locked(pid) {
                Ok(files) => break files,
                Err(why) => assert!(begun.elapsed() < Duration::from_secs(60), "{architecture}: {why}"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert!(files > 4, "{architecture}: too few mapped files: {files}");
    };
    // Not mp: its parent only waits for signals and locks nothing. Its children may lock as much as RLIMIT_MEMLOCK
    // allows, because the parent drops root before it creates them.
    ["amped", "sped", "mt"].into_iter().for_each(check);
}

/// Children of a parent that was root inherit its limit, but not the capability to exceed it.
#[test]
fn processes_that_cannot_lock_memory_are_reported() {
    need_root("starts the server as root, without the right to raise limits");
    let site = public_site();
    site.file("a.txt", "hello");
    let start = |limits: &str| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--memlock={limits}"));
        command.args(["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"]);
        command.arg(program().get_program()).arg("serve").arg(site.path());
        command.args(["--listen", "127.0.0.1:0", "--architecture", "mp", "--workers", "2", "--user", "nobody"]);
        Server::spawn(command)
    };
    let server = start("4096:4096");
    server.wait_for("raise the limit on locked memory (ulimit -l, LimitMEMLOCK=)");
    assert_eq!(server.get("/a.txt").text(), "hello");
    // Every process may raise its limit up to the hard limit.
    let server = start("4096:65536");
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.children()[0])).unwrap();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap();
    assert_eq!(limit.split_ascii_whitespace().next(), Some("65536"), "{limit}");
}

#[test]
fn locked_memory_limit_is_reported_and_server_still_serves() {
    need_root("starts the server as another user");
    let site = public_site();
    site.file("a.txt", "hello");
    let copy = site.file("amped", fs::read(program().get_program()).unwrap());
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("prlimit");
    command.args(["--memlock=4096:4096", "setpriv", "--reuid=65534", "--clear-groups"]).arg(copy);
    let server = Server::spawn({
        command.arg("serve").arg(site.path()).args(["--listen", "127.0.0.1:0"]);
        command
    });
    server.wait_for("raise the limit on locked memory (ulimit -l, LimitMEMLOCK=)");
    assert_eq!(server.get("/a.txt").text(), "hello");
}

/// User and system time of a server so far.
fn cpu_time(server: &Server) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    // proc_pid_stat(5): fields 14 and 15; the name, in parentheses, is the second. 100 ticks a second on Linux.
    let fields: Vec<u64> =
        stat.rsplit_once(')').unwrap().1.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
    Duration::from_millis(10 * (fields[12] + fields[13]))
}

#[test]
fn concurrent_requests_for_one_cold_file_use_one_helper() {
    const CLIENTS: usize = 8;
    let _alone = alone();
    let site = public_site();
    let names = cold_files(&site, 1, 200 << 10);
    let slow = SlowDisk::new(site.path(), 200 << 10);
    let server = server_as("root", &site, "");
    slow.hold(&server);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    let begin = Instant::now();
    for client in &mut clients {
        client.send_request("GET", &format!("/{}", names[0]), &[]);
    }
    for client in &mut clients {
        let response = client.response("GET");
        assert_eq!((response.status, response.body.len()), (200, 200 << 10));
    }
    println!("{CLIENTS} clients in {:?}", begin.elapsed());
    assert!(begin.elapsed() > Duration::from_millis(300), "the disk was not slow: {:?}", begin.elapsed());
    assert_eq!(server.report("disk_questions"), CLIENTS as u64);
    assert_eq!(server.report("helpers_peak"), 1);
    assert_eq!(server.report("cache_insertions file"), 1);
}
