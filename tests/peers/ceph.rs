//! An object store as it is used: Ceph's gateway, with a monitor and an OSD on a loop device. `cargo xtask cluster` runs this test alone.
//!
//! Objects are replaced while clients read them, small ones whole and large ones in parts. The path between the server
//! and the gateway is slow at times and stalls; the gateway and the server are killed and start again. Each body must be that of one version.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::harness::{Server, SetOnDrop, Site, need_root, program, run_command};
use super::object_store::python_with_boto;
use super::ports::free_addresses;
use super::said;

const KEY: [&str; 2] = ["amped-key", "amped-secret"];

/// A cluster in a directory of its own. Stopped and removed when dropped.
struct Ceph {
    folder: tempfile::TempDir,
    device: String,
    daemons: Vec<Child>,
    gateway: Option<Child>,
    address: SocketAddr,
}

impl Ceph {
    fn start() -> Ceph {
        need_root("runs Ceph's daemons, with a loop device");
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().to_owned();
        let [monitor, address] = free_addresses();
        let disk = path.join("disk");
        fs::File::create(&disk).unwrap().set_len(8 << 30).unwrap();
        let device = said(Command::new("losetup").args(["-f", "--show"]).arg(&disk)).trim().to_owned();
        let fsid = said(&mut Command::new("uuidgen")).trim().to_owned();
        let base = path.display();
        let config = format!(
            "[global]\nfsid = {fsid}\nmon host = [v1:{monitor}]\nms bind msgr2 = false\nauth cluster required = none\n\
             auth service required = none\nauth client required = none\nosd pool default size = 1\n\
             osd pool default min size = 1\nosd pool default pg num = 8\nosd pool default pgp num = 8\n\
             osd crush chooseleaf type = 0\nmon allow pool size one = true\nrun dir = {base}\npid file =\n\
             admin socket = {base}/$name.asok\nlog file = {base}/$name.log\nmon data = {base}/mon\nosd data = {base}/osd\n\
             rgw data = {base}/rgw\ncrash dir = {base}\nbluestore block path = {device}\nosd memory target = 1000000000\n"
        );
        fs::write(path.join("ceph.conf"), config).unwrap();
        for folder in ["mon", "osd", "rgw"] {
            fs::create_dir(path.join(folder)).unwrap();
        }
        let mut ceph = Ceph { folder, device, daemons: Vec::new(), gateway: None, address };
        let map = path.join("monmap").display().to_string();
        said(ceph.command("monmaptool").args([
            "--create",
            "--addv",
            "a",
            &format!("[v1:{monitor}]"),
            "--fsid",
            &fsid,
            &map,
        ]));
        said(ceph.command("ceph-mon").args(["-i", "a", "--mkfs", "--monmap", &map]));
        ceph.run("ceph-mon", &["-i", "a"]);
        let osd = said(&mut Command::new("uuidgen")).trim().to_owned();
        said(ceph.command("ceph").args(["--connect-timeout", "60", "osd", "new", &osd]));
        said(ceph.command("ceph-osd").args(["-i", "0", "--mkfs", "--osd-uuid", &osd]));
        ceph.run("ceph-osd", &["-i", "0"]);
        let user =
            ["user", "create", "--uid", "web", "--display-name", "web", "--access-key", KEY[0], "--secret", KEY[1]];
        said(ceph.command("radosgw-admin").args(user));
        ceph.start_gateway();
        ceph
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.arg("--conf").arg(self.folder.path().join("ceph.conf"));
        command
    }

    /// Starts a daemon.
    fn spawn(&self, name: &str, args: &[&str]) -> Child {
        let mut command = self.command(name);
        command.arg("-f").args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}; run cargo xtask cluster"))
    }

    fn run(&mut self, name: &str, args: &[&str]) {
        let child = self.spawn(name, args);
        self.daemons.push(child);
    }

    fn start_gateway(&mut self) {
        let frontend = format!("beast endpoint={}", self.address);
        self.gateway = Some(self.spawn("radosgw", &["-n", "client.rgw", "--rgw-frontends", &frontend]));
        wait("the gateway to listen", || TcpStream::connect(self.address).is_ok());
    }

    fn kill_gateway(&mut self) {
        self.gateway.take().into_iter().for_each(end);
    }
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl Drop for Ceph {
    fn drop(&mut self) {
        self.kill_gateway();
        self.daemons.drain(..).rev().for_each(end);
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
    }
}

/// A cluster takes its time.
fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(180), "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A path to the gateway, which may be slow: 100 ms in each direction, and a stall of a second for one of a hundred pieces, as after
/// a lost packet.
struct SlowPath {
    address: SocketAddr,
    is_slow: Arc<AtomicBool>,
}

impl SlowPath {
    fn start(to: SocketAddr) -> SlowPath {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let path = SlowPath { address: listener.local_addr().unwrap(), is_slow: Arc::default() };
        let is_slow = Arc::clone(&path.is_slow);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(to) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to, is_slow) =
                        (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(&is_slow));
                    thread::spawn(move || pass(from, to, &is_slow));
                }
            }
        });
        path
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_slow: &AtomicBool) {
    let (mut buffer, mut pieces) = (vec![0; 64 << 10], 0);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if is_slow.load(Ordering::Relaxed) {
            pieces += 1;
            thread::sleep(Duration::from_millis(if pieces % 100 == 50 { 1100 } else { 100 }));
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

const SMALL: usize = 300;
const LARGE: usize = 6;

fn length(object: usize) -> usize {
    if object < SMALL { 200 + object * 31 } else { 9_000_000 + object }
}

/// A byte of a version of an object.
fn byte(object: usize, version: u64, at: usize) -> u8 {
    ((at as u64).wrapping_mul(7) ^ (version * 131 + object as u64 * 17) ^ (at as u64 >> 8)) as u8
}

fn content(object: usize, version: u64) -> Vec<u8> {
    (0..length(object)).map(|at| byte(object, version, at)).collect()
}

/// Whether these bytes, from this one on, are those of one version up to the latest.
fn is_one_version(object: usize, latest: u64, from: usize, bytes: &[u8]) -> bool {
    (0..=latest).rev().any(|version| bytes.iter().zip(from..).all(|(found, at)| *found == byte(object, version, at)))
}

/// A connection, with what is needed of HTTP.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Connection(BufReader::new(stream)))
    }

    /// Returns status and body.
    fn ask(&mut self, head: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let stream = self.0.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (mut status, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            match line.trim_end() {
                "" if line.is_empty() => return Err(cut()),
                "" => break,
                line if status.is_none() => status = line.split(' ').nth(1).and_then(|text| text.parse().ok()),
                line => {
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().map_err(|_| cut())?;
                    }
                }
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((status.ok_or_else(cut)?, body))
    }

    fn get(&mut self, object: usize, range: Option<(usize, usize)>) -> io::Result<(u16, Vec<u8>)> {
        let range = range.map_or(String::new(), |(first, last)| format!("Range: bytes={first}-{last}\r\n"));
        self.ask(&format!("GET /{object} HTTP/1.1\r\nHost: h\r\n{range}\r\n"), b"")
    }

    /// Replaces an object, without the server.
    fn put(&mut self, object: usize, version: u64) -> io::Result<u16> {
        let length = length(object);
        let head = format!(
            "PUT /content/site/{object} HTTP/1.1\r\nHost: h\r\nx-amz-acl: public-read\r\nContent-Length: {length}\r\n\r\n"
        );
        Ok(self.ask(&head, &content(object, version))?.0)
    }
}

/// What became of requests.
#[derive(Debug, Default)]
struct Outcomes {
    right: AtomicUsize,
    /// 503: neither the object nor room for it.
    refused: AtomicUsize,
    /// Ended before the end of the body, or never begun.
    cut: AtomicUsize,
    /// Versions of objects that were stored, or whose request was sent.
    latest: Vec<AtomicU64>,
}

/// Reads objects until there are enough right responses; panics if one is wrong.
fn read(number: usize, server: SocketAddr, outcomes: &Outcomes, enough: usize, is_over: &AtomicBool) {
    let (mut connection, mut step) = (None, number * 7919);
    while outcomes.right.load(Ordering::Relaxed) < enough && !is_over.load(Ordering::Relaxed) {
        step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = step >> 33;
        // One of fifty is a part of a large object, one of a thousand a whole one.
        let (object, range) = match dice % 1000 {
            0 => (SMALL + dice / 1000 % LARGE, None),
            1..20 => {
                let first = dice / 1000 * 4099 % 8_000_000;
                (SMALL + dice % LARGE, Some((first, first + dice / 7 % 900_000)))
            }
            _ => (dice / 1000 % SMALL, None),
        };
        let Some(own) = connection.as_mut() else {
            connection = Connection::open(server).ok();
            thread::sleep(Duration::from_millis(if connection.is_none() { 20 } else { 0 }));
            continue;
        };
        match own.get(object, range) {
            Ok((200 | 206, body)) => {
                let (first, last) = range.unwrap_or((0, length(object) - 1));
                assert_eq!(body.len(), last + 1 - first, "{object} {range:?}");
                let latest = outcomes.latest[object].load(Ordering::SeqCst);
                assert!(
                    is_one_version(object, latest, first, &body),
                    "{object} {range:?}: of no version up to {latest}"
                );
                outcomes.right.fetch_add(1, Ordering::Relaxed);
            }
            Ok((503, _)) => {
                outcomes.refused.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(5));
            }
            Ok((status, _)) => panic!("{object} {range:?}: {status}"),
            Err(_) => {
                outcomes.cut.fetch_add(1, Ordering::Relaxed);
                connection = None;
            }
        }
    }
}

/// Replaces objects, one after the other.
fn replace(gateway: SocketAddr, outcomes: &Outcomes, is_over: &AtomicBool) {
    let mut connection = None;
    for step in 0_usize.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let object = if step % 20 == 19 { SMALL + step / 20 % LARGE } else { step * 13 % SMALL };
        let Some(own): Option<&mut Connection> = connection.as_mut() else {
            connection = Connection::open(gateway).ok();
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        // It may have been stored, even if no response arrives.
        let version = outcomes.latest[object].fetch_add(1, Ordering::SeqCst) + 1;
        if own.put(object, version).is_err() {
            connection = None;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The bytes on the disk of all files in a directory.
fn on_disk(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * 512)).sum()
}

fn serve(site: &Site, listen: SocketAddr, gateway: SocketAddr) -> Server {
    let config = site.path().with_extension("toml");
    let cache = cache_of(site);
    fs::create_dir_all(&cache).unwrap();
    let text = format!(
        "listen = [\"{listen}\"]\n[object_storage]\nendpoint = \"http://{gateway}\"\nwindow = \"1MiB\"\nrevalidate = \"500ms\"\n\
         timeout = \"5s\"\n[cache]\ndisk = {cache:?}\ndisk_bytes = {DISK_BYTES}\n[[site]]\nroot = \"s3://content/site\"\nprecompressed = []\n"
    );
    fs::write(&config, text).unwrap();
    let amped = |command: &str| {
        let mut amped = program();
        amped.arg(command).arg("--config").arg(&config);
        amped.env("AWS_ACCESS_KEY_ID", KEY[0]).env("AWS_SECRET_ACCESS_KEY", KEY[1]);
        amped
    };
    let checked = run_command(amped("check"));
    assert_eq!(checked.status, 0, "{checked:?}");
    Server::spawn(amped("serve"))
}

const DISK_BYTES: u64 = 30_000_000;

fn cache_of(site: &Site) -> PathBuf {
    site.path().join("cache")
}

#[test]
#[ignore = "needs Ceph: `cargo xtask cluster` installs it and runs this test"]
fn responses_are_right_while_ceph_is_changed_slowed_and_killed() {
    let enough = std::env::var("CLUSTER_RESPONSES").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000);
    let mut ceph = Ceph::start();
    let site = Site::new();
    let create = "import boto3, sys; from botocore.config import Config\n\
                  s3 = boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1', aws_access_key_id=sys.argv[2], \
                  aws_secret_access_key=sys.argv[3], config=Config(s3={'addressing_style': 'path'}))\n\
                  s3.create_bucket(Bucket='content', ACL='public-read-write')";
    let script = site.file("create.py", create);
    said(python_with_boto().arg(script).arg(format!("http://{}", ceph.address)).args(KEY));
    let mut direct = Connection::open(ceph.address).unwrap();
    for object in 0..SMALL + LARGE {
        assert_eq!(direct.put(object, 0).unwrap(), 200, "{object}");
    }
    let path = SlowPath::start(ceph.address);
    let [listen] = free_addresses();
    let mut server = Some(serve(&site, listen, path.address));
    let outcomes = Outcomes { latest: (0..SMALL + LARGE).map(|_| AtomicU64::new(0)).collect(), ..Outcomes::default() };
    let (is_over, gateway) = (AtomicBool::new(false), ceph.address);
    let mut most = 0;
    thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        let (outcomes, is_over) = (&outcomes, &is_over);
        let readers: Vec<_> =
            (0..8).map(|number| scope.spawn(move || read(number, listen, outcomes, enough, is_over))).collect();
        scope.spawn(move || replace(gateway, outcomes, is_over));
        let begin = Instant::now();
        let mut step = 0;
        while readers.iter().any(|reader| !reader.is_finished()) {
            assert!(
                !readers.iter().any(|reader| reader.is_finished()) || outcomes.right.load(Ordering::Relaxed) >= enough
            );
            let until = Instant::now() + Duration::from_secs(3);
            while Instant::now() < until {
                most = most.max(on_disk(&cache_of(&site)));
                thread::sleep(Duration::from_millis(50));
            }
            match step % 6 {
                0 => path.is_slow.store(true, Ordering::Relaxed),
                1 => path.is_slow.store(false, Ordering::Relaxed),
                2 => ceph.kill_gateway(),
                3 => ceph.start_gateway(),
                4 => server.take().into_iter().for_each(|server| server.signal("KILL")),
                _ => server = Some(serve(&site, listen, path.address)),
            }
            step += 1;
            let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
            eprintln!(
                "{:4} s: {} right, {} refused, {} cut off",
                begin.elapsed().as_secs(),
                count(&outcomes.right),
                count(&outcomes.refused),
                count(&outcomes.cut)
            );
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    // Records and slots take a page or two each.
    let slack = 3 * 4096 * (SMALL + LARGE) as u64;
    assert!(most <= DISK_BYTES + slack, "{most} bytes in the directory");
    // Everything works again, and each object is the latest.
    path.is_slow.store(false, Ordering::Relaxed);
    if ceph.gateway.is_none() {
        ceph.start_gateway();
    }
    let _server = server.unwrap_or_else(|| serve(&site, listen, path.address));
    let mut direct = Connection::open(ceph.address).unwrap();
    for object in 0..SMALL + LARGE {
        let version = outcomes.latest[object].load(Ordering::SeqCst) + 1;
        assert_eq!(direct.put(object, version).unwrap(), 200);
        let expected = content(object, version);
        wait("the latest version", || {
            Connection::open(listen).and_then(|mut own| own.get(object, None)).is_ok_and(|(_, body)| body == expected)
        });
    }
}
