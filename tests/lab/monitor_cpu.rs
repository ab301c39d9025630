//! The server's CPU time as `ammeter monitor` reports it, against the kernel's count for processes of known
//! use: threads and children that end between two samples, threads beyond those that are listed, and threads
//! that started between two listings.
//!
//! The server is the test's own process. Its count, `/proc/self/stat`, covers threads and children that have ended.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::until;

/// `ammeter monitor` of this process, whose lines are read by a thread so that a full pipe does not delay it.
struct Watch {
    child: Child,
    lines: Receiver<String>,
}

impl Watch {
    /// Returns after the first tick.
    fn start(interval: &str) -> Watch {
        Watch::of(["--pid", &std::process::id().to_string()], interval)
    }

    fn of(target: [&str; 2], interval: &str) -> Watch {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ammeter"))
            .args(["monitor", "--json", "--budget", "100%", "--duration", "10m", "--interval", interval])
            .args(target)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (to, lines) = channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        let watch = Watch { child, lines };
        watch.line();
        watch
    }

    fn line(&self) -> String {
        self.lines.recv().expect("a tick")
    }

    fn next(&self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// The ticks until the first one that ends after this instant. They are parsed when all are there, since that takes
    /// CPU time of the server.
    fn until_now(&self) -> Vec<Value> {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let end_ms = |line: &String| {
            let (_, rest) = line.split_once("\"wall_ms\":").unwrap();
            rest.split(',').next().unwrap().parse::<u64>().unwrap()
        };
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line| end_ms(line) <= now_ms) {
            lines.push(self.line());
        }
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn errors(&mut self) -> ChildStderr {
        self.child.stderr.take().unwrap()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of the server in these ticks, in seconds.
fn seen_s(ticks: &[Value]) -> f64 {
    let number = |value: &Value| value.as_f64().unwrap();
    let one = |tick: &Value| {
        (number(&tick["server"]["user"]) + number(&tick["server"]["system"])) * number(&tick["interval_s"])
    };
    ticks.iter().map(one).sum()
}

/// CPU time of a process and of its children that it waited for, in seconds (proc_pid_stat(5)).
fn used_s(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = text.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(4);
    fields.map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
}

fn spin(seconds: f64) {
    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap().as_secs_f64();
    let begun = used();
    while used() - begun < seconds {}
}

fn assert_near(seen: f64, truth: f64) {
    assert!((0.9..1.1).contains(&(seen / truth)), "used {truth} s, seen {seen} s");
}

/// Compares the monitor's sum with the kernel's.
fn check(work: impl FnOnce()) {
    let watch = Watch::start("50ms");
    let before = used_s(std::process::id());
    work();
    let truth = used_s(std::process::id()) - before;
    assert_near(seen_s(&watch.until_now()), truth);
}

#[test]
fn threads_that_end_between_samples_are_counted() {
    check(|| (0..60).for_each(|_| thread::spawn(|| spin(0.01)).join().unwrap()));
}

#[test]
fn children_that_end_are_counted_once() {
    let count = "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done";
    check(|| (0..5).for_each(|_| assert!(Command::new("sh").args(["-c", count]).status().unwrap().success())));
}

/// A process that computes until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Busy {
        Busy(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A child without the server's listener, like a CGI program.
#[test]
fn child_is_counted_while_it_runs_and_not_again_when_it_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    check_child(&Watch::of(["--port", &port], "50ms"));
    check_child(&Watch::start("50ms"));
}

fn check_child(watch: &Watch) {
    let own = std::process::id();
    let busy = Busy::start();
    let pid = busy.0.id();
    // The monitor finds it by its number or, if many processes start at the same time, when it lists all, every five seconds. CPU time
    // before that is not counted.
    thread::sleep(Duration::from_secs(6));
    let both = || used_s(pid) + used_s(own);
    let least = both();
    watch.until_now();
    let (most, found) = (both(), used_s(pid));
    until("a child with 0.5 s more of CPU time", || used_s(pid) >= found + 0.5);
    let low = used_s(pid) - found;
    let mut ticks = watch.until_now();
    // Both processes used more before the first of these ticks, and until the last one arrived.
    let high = both() - least + 0.05;
    let seen = seen_s(&ticks);
    assert!(seen > 0.9 * low && seen < 1.1 * high, "used {low} to {high} s, seen {seen} s");
    // Its time is now that of an ended child of this process.
    drop(busy);
    let low = used_s(own) - most;
    ticks.extend(watch.until_now());
    // The time of an ended child would be counted again in this one.
    ticks.push(watch.next());
    let (high, seen) = (used_s(own) - least + 0.05, seen_s(&ticks));
    assert!(seen > 0.9 * low && seen < 1.1 * high, "used {low} to {high} s in all, seen {seen} s");
}

#[test]
fn thread_that_starts_between_listings_runs_on_one_core_at_most() {
    let watch = Watch::start("50ms");
    let enough = Arc::new(());
    let keep_on = Arc::downgrade(&enough);
    // Threads are listed once a second.
    thread::sleep(Duration::from_millis(100));
    let late = thread::Builder::new().name("late".to_owned());
    late.spawn(move || while keep_on.strong_count() > 0 {}).unwrap();
    let of_tick = |tick: Value| {
        let threads = tick["threads"].as_array().unwrap().clone();
        threads.into_iter().find(|thread| thread["name"] == "late")
    };
    let late = std::iter::repeat_with(|| of_tick(watch.next())).flatten().next().unwrap();
    assert!(late["run"].as_f64().unwrap() < 1.2, "{late}");
}

#[test]
fn threads_beyond_the_listed_ones_are_counted_and_reported() {
    const IDLE: usize = 600;
    let started = Arc::new(Barrier::new(IDLE + 1));
    for _ in 0..IDLE {
        let started = started.clone();
        thread::Builder::new().stack_size(64 << 10).spawn(move || (started.wait(), thread::park())).unwrap();
    }
    started.wait();
    let mut watch = Watch::start("200ms");
    let before = used_s(std::process::id());
    thread::spawn(|| spin(0.5)).join().unwrap();
    let truth = used_s(std::process::id()) - before;
    let ticks = watch.until_now();
    assert_near(seen_s(&ticks), truth);
    let threads = ticks[0]["server"]["threads"].as_u64().unwrap();
    assert!(threads > IDLE as u64, "{threads}");
    let line = BufReader::new(watch.errors()).lines().map_while(Result::ok).find(|line| line.contains("threads"));
    assert!(line.as_ref().is_some_and(|line| line.contains("more than 512 threads")), "{line:?}");
}
