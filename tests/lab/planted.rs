//! A web server with a known limit: `planted [--SWITCH NUMBER]...`, for the tests of `ammeter diagnose`.
//!
//! ```text
//! --port N          port to listen on (0: the kernel chooses)
//! --threads N       workers, each of which accepts by itself (1)
//! --compute-us N    CPU time of a request
//! --inside-ms N     read requests at once, but answer them one at a time, each after this time: a lock within the
//!                   program, as in Go, which the kernel does not see
//! --lock-ms N       sleep under a lock that all workers share
//! --helpers N       threads to which workers pass their connections
//! --sleep-ms N      sleep within a request, in the helper if there are helpers
//! --hold 1          serve each connection in a thread of its own
//! --backlog N       connections that may wait to be accepted (32)
//! --nap-ms N        sleep of the worker between two looks at its queue
//! --read-bytes N    bytes of a request that are read from the file in PLANTED_FILE, bypassing the page cache
//! --body N          bytes of a response (100)
//! ```
//!
//! It listens on all addresses and prints its port.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use rustix::time::{ClockId, clock_gettime};

struct Switches {
    compute: Duration,
    lock: Duration,
    sleep: Duration,
    inside: Duration,
    nap: Duration,
    threads: usize,
    helpers: usize,
    is_held: bool,
    backlog: i32,
    read_bytes: usize,
    body: Vec<u8>,
    file: Option<File>,
    locked: Mutex<()>,
}

/// Reads that bypass the page cache start and end at whole blocks.
const BLOCK: usize = 4096;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: u64| {
        let at = words.iter().position(|word| word == name);
        at.map_or(default, |at| words[at + 1].parse().unwrap())
    };
    let millis = |name| Duration::from_millis(number(name, 0));
    let file = std::env::var_os("PLANTED_FILE")
        .map(|path| File::from(open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).unwrap()));
    let body = vec![b'x'; number("--body", 100) as usize];
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let switches = Arc::new(Switches {
        compute: Duration::from_micros(number("--compute-us", 0)),
        lock: millis("--lock-ms"),
        sleep: millis("--sleep-ms"),
        inside: millis("--inside-ms"),
        nap: millis("--nap-ms"),
        threads: number("--threads", 1) as usize,
        helpers: number("--helpers", 0) as usize,
        is_held: number("--hold", 0) > 0,
        backlog: number("--backlog", 32) as i32,
        read_bytes: number("--read-bytes", 0) as usize,
        body: [head.into_bytes(), body].concat(),
        file,
        locked: Mutex::new(()),
    });
    let listener = Arc::new(bound(number("--port", 0) as u16, &switches));
    println!("{}", listener.local_addr().unwrap().port());

    // The queue holds as many connections as there are helpers.
    let (give, take) = sync_channel::<TcpStream>(switches.helpers.max(1));
    let take = Arc::new(Mutex::new(take));
    for number in 0..switches.helpers {
        let (switches, take) = (switches.clone(), take.clone());
        named(format!("helper-{number}"), move || help(&switches, &take));
    }
    let (pass, taken) = std::sync::mpsc::channel::<TcpStream>();
    if !switches.inside.is_zero() {
        let switches = switches.clone();
        named("runtime".to_owned(), move || one_at_a_time(&switches, &taken));
    }
    let workers: Vec<_> = (0..switches.threads)
        .map(|number| {
            let (switches, listener, give, pass) = (switches.clone(), listener.clone(), give.clone(), pass.clone());
            named(format!("worker-{number}"), move || work(&switches, &listener, &give, &pass))
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

fn named(name: String, what: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().name(name).spawn(what).unwrap()
}

/// The standard library sets a backlog of its own.
fn bound(port: u16, switches: &Switches) -> TcpListener {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    // After a restart, connections of the earlier server may still be in TIME_WAIT.
    set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).unwrap();
    listen(&socket, switches.backlog).unwrap();
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(!switches.nap.is_zero()).unwrap();
    listener
}

fn work(switches: &Arc<Switches>, listener: &TcpListener, give: &SyncSender<TcpStream>, pass: &Sender<TcpStream>) {
    loop {
        match listener.accept() {
            Ok((mut stream, _)) if !switches.inside.is_zero() => {
                if is_read(&mut stream) {
                    pass.send(stream).unwrap();
                }
            }
            Ok((stream, _)) if switches.is_held => {
                let switches = switches.clone();
                named("connection".to_owned(), move || answer(&switches, stream));
            }
            Ok((stream, _)) if switches.helpers > 0 => give.send(stream).unwrap(),
            Ok((stream, _)) => answer(switches, stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(switches.nap),
            // For example out of file descriptors: some will be free soon.
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn help(switches: &Switches, take: &Mutex<Receiver<TcpStream>>) {
    loop {
        let stream = take.lock().unwrap().recv().unwrap();
        answer(switches, stream);
    }
}

/// Waits in the same place as when idle: a runtime's threads sleep in one place in the kernel, whatever they wait for.
fn one_at_a_time(switches: &Switches, taken: &Receiver<TcpStream>) {
    let (never, place) = (Mutex::new(()), Condvar::new());
    while let Ok(mut stream) = taken.recv() {
        let _ = place.wait_timeout_while(never.lock().unwrap(), switches.inside, |()| true).unwrap();
        let _ = stream.write_all(&switches.body);
    }
}

/// Reads a request; returns `false` if there is none.
fn is_read(stream: &mut TcpStream) -> bool {
    // A connection accepted from a non-blocking socket does not inherit that flag.
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return false,
            Ok(count) => request.extend_from_slice(&part[..count]),
        }
    }
    true
}

fn answer(switches: &Switches, mut stream: TcpStream) {
    if !is_read(&mut stream) {
        return;
    }
    if !switches.lock.is_zero() {
        let _held = switches.locked.lock().unwrap();
        thread::sleep(switches.lock);
    }
    thread::sleep(switches.sleep);
    compute(switches.compute);
    if let Some(file) = &switches.file {
        read(switches, file);
    }
    let _ = stream.write_all(&switches.body);
}

/// Uses CPU time, however long that takes.
fn compute(time: Duration) {
    let used = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let end = used() + time;
    while !time.is_zero() && used() < end {
        (0..100).for_each(|_| std::hint::spin_loop());
    }
}

/// Reads a part of the file, bypassing the page cache.
fn read(switches: &Switches, file: &File) {
    let mut buffer = vec![0; switches.read_bytes + BLOCK];
    let begin = buffer.as_ptr().align_offset(BLOCK);
    let blocks = file.metadata().unwrap().len() as usize / switches.read_bytes;
    let now = clock_gettime(ClockId::Monotonic).tv_nsec as usize;
    let offset = (now / 1000 % blocks * switches.read_bytes) as u64;
    file.read_exact_at(&mut buffer[begin..begin + switches.read_bytes], offset).unwrap();
}
