//! Where the CPU time goes: samples of all processors, and three views of them.
//!
//! ```text
//! sys/perf   one ring per processor, cpu-clock at 199 Hz with the call chains of kernel and program
//! symbols    addresses to kernel functions
//! programs   addresses to program functions
//! table      functions to categories: data, `kernel.txt` and `program.txt`
//! classify   a chain to its contexts and its category
//! tally      samples to shares, each with its interval
//! outcome    all of these, with the conditions of sampling and the missing sources
//! text       shares as bars in a terminal, and folded stacks
//! ```
//!
//! Samples are folded on arrival: equal chains of one program are one entry with a count, so memory grows with the code
//! that runs, not with time. Classification and symbol lookup wait until the end.
//!
//! 199 is a prime, so that no timer of the server runs in step with it. With interrupts disabled the clock cannot fire,
//! and it fires when they are enabled again: see `classify`.

mod classify;
mod outcome;
mod programs;
mod symbols;
mod table;
mod tally;
mod text;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use amped_measure::Failure;
use amped_sys::perf::{RING_SAMPLES, Record, Ring};
use amped_sys::process::cpu_time;

use crate::server::{Server, Target};
use crate::source::core_list;
use crate::stop::Stop;
use classify::{USER, classify};
use programs::{Function, Programs};
use symbols::Symbols;
use table::KernelTable;
use tally::Tally;

pub use outcome::{Outcome, Profile, Stack};
pub use tally::{Row, Share};
pub use text::{chosen, end_of, folded, text, views};

/// The settings of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The profiled server; `None` for all non-idle time.
    pub target: Option<Target>,
    /// Duration.
    pub duration: Duration,
    /// Samples per second and processor.
    pub frequency: u32,
    /// The sampler's share of one processor. Beyond it the sampler pauses, and takes fewer samples.
    pub budget: f64,
}

/// Interval at which the rings are emptied.
const ROUND: Duration = Duration::from_millis(500);

/// Samples until the time is over, or the user stops it.
///
/// # Errors
/// Those of [`Server::find`]; when the kernel's functions have no addresses; when there are no samples.
pub fn run(settings: &Settings, stop: &Stop) -> Result<Outcome, Failure> {
    let mut server = settings.target.map(Server::find).transpose()?;
    let mut missing = server.as_ref().map_or_else(Vec::new, |server| server.missing().to_vec());
    if let Some(server) = &server
        && server.pids().is_empty()
    {
        return Err(Failure::failed(missing.pop().unwrap_or_else(|| "no process of the server is visible".to_owned())));
    }
    let mut rings = Vec::new();
    for processor in processors()? {
        match Ring::open(processor, settings.frequency) {
            Ok(ring) => rings.push((processor, ring)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(Outcome::Refused(refused(&error))),
            Err(error) => {
                return Err(Failure::failed(format!(
                    "cannot sample processor {processor} (perf_event_open): {error}; a container may forbid it (seccomp)"
                )));
            }
        }
    }
    // Only now: it takes a while, wasted if sampling is refused.
    let symbols = Symbols::read()?;
    let mut folds = Folds { symbols, samples: HashMap::new(), lost: 0 };
    let mut pids: BTreeSet<u32> = server.as_ref().map_or_else(BTreeSet::new, |server| server.pids().clone());
    let (cpu_before, begun) = (cpu_time(), Instant::now());
    let mut sampled = Duration::ZERO;
    let whole_round = ROUND.min(Duration::from_secs(1) * RING_SAMPLES / settings.frequency.max(1));
    let (mut is_over, mut rest) = (false, Duration::ZERO);
    while !is_over {
        is_over = stop.wait(rest.min(settings.duration.saturating_sub(begun.elapsed())));
        rings.iter().try_for_each(|(_, ring)| ring.enable()).map_err(Failure::io("start sampling"))?;
        let round = Instant::now();
        let left = settings.duration.saturating_sub(begun.elapsed());
        is_over |= stop.wait(left.min(whole_round)) || begun.elapsed() >= settings.duration;
        // While the rings are emptied, sampling pauses; it would sample only that.
        rings.iter().try_for_each(|(_, ring)| ring.disable()).map_err(Failure::io("stop sampling"))?;
        sampled += round.elapsed();
        for (_, ring) in &mut rings {
            ring.take(|record| folds.add(record));
        }
        rest = rest_of(cpu_time().saturating_sub(cpu_before), begun.elapsed(), settings.budget);
    }
    let elapsed = begun.elapsed();
    let own_cpu = cpu_time().saturating_sub(cpu_before).as_secs_f64() / elapsed.as_secs_f64();
    if let Some(server) = &mut server {
        // Workers may have been started meanwhile; processes that have ended count as well.
        let _ = server.look_again();
        pids.extend(server.pids());
    }
    let processors = rings.len() as u32;
    drop(rings);
    let whose = match settings.target {
        None => "all programs".to_owned(),
        Some(Target::Port(port)) => format!("the server at port {port}"),
        Some(Target::Pid(pid)) => format!("process {pid}"),
    };
    let is_one = settings.target.is_some();
    let Settings { frequency, budget, .. } = *settings;
    let head = Head { whose, is_one, elapsed, sampled, frequency, processors, own_cpu, budget, missing };
    let is_chosen = |pid: u32| if is_one { pids.contains(&pid) } else { pid != 0 };
    let programs = Programs::new();
    let functions = |pid, program: &str, addresses: &[u64]| programs.functions(pid, program, addresses);
    profile(head, &folds, is_chosen, functions).map(|profile| Outcome::Sampled(Box::new(profile)))
}

/// The properties of a profile besides its samples.
struct Head {
    whose: String,
    /// Whether it is of one server, rather than of all processes.
    is_one: bool,
    elapsed: Duration,
    sampled: Duration,
    frequency: u32,
    processors: u32,
    own_cpu: f64,
    budget: f64,
    missing: Vec<String>,
}

/// How long the sampler must pause after using this much CPU time.
fn rest_of(used: Duration, elapsed: Duration, budget: f64) -> Duration {
    // No pause is longer than the measurement, whatever the quotient.
    let allowed = Duration::try_from_secs_f64(used.as_secs_f64() / budget).unwrap_or(Duration::MAX);
    allowed.saturating_sub(elapsed)
}

/// Frames of a program that cannot be named, as the process has ended.
const UNNAMED: &str = "[user]";
/// Kernel work on behalf of no program.
const KERNEL: &str = "[kernel]";

fn profile(
    head: Head,
    folds: &Folds,
    is_chosen: impl Fn(u32) -> bool,
    functions_of: impl Fn(u32, &str, &[u64]) -> HashMap<u64, Function>,
) -> Result<Profile, Failure> {
    let table = KernelTable::new();
    let (mut who, mut contexts, mut categories) = (Tally::default(), Tally::default(), Tally::default());
    let mut functions = Tally::default();
    let mut stacks: HashMap<String, u64> = HashMap::new();
    let processes = processes(folds, &is_chosen, functions_of);
    for (fold, &count) in &folds.samples {
        let chain: Vec<&str> = fold.chain.iter().map(|number| folds.symbols.name(*number)).collect();
        let place = if fold.in_kernel { Some(classify(&table, &chain)) } else { None };
        let is_chosen = is_chosen(fold.pid);
        let outermost = place.as_ref().and_then(|place| place.contexts.last()).map(String::as_str);
        let by = match (fold.pid, outermost) {
            (0, _) if place.as_ref().is_some_and(|place| place.contexts.len() > 1) => "interrupts while idle",
            (0, _) => "idle",
            _ if is_chosen && head.is_one => "the server",
            (_, Some("kernel thread")) => "kernel threads",
            _ => "other programs",
        };
        who.add(by, count);
        let Some(process) = processes.get(&fold.pid).filter(|_| is_chosen) else { continue };
        match &place {
            None => {
                contexts.add(USER, count);
                contexts.add_around(USER, count);
                categories.add(process.category(fold), count);
            }
            Some(place) => {
                if let Some(innermost) = place.contexts.first() {
                    contexts.add(innermost, count);
                }
                contexts.add_each_around(place.contexts.iter().map(String::as_str), count);
                categories.add(place.category, count);
            }
        }
        let of_program = process.frames(fold);
        functions.add(of_program.first().copied().unwrap_or(KERNEL), count);
        functions.add_each_around(of_program.iter().copied(), count);
        let callers = of_program.into_iter().rev();
        let frames: Vec<&str> =
            [process.name.as_str()].into_iter().chain(callers).chain(chain.into_iter().rev()).collect();
        *stacks.entry(frames.join(";")).or_default() += count;
    }
    let chosen = categories.total();
    if chosen == 0 {
        return Err(Failure::failed(format!(
            "no sample of {} in {:.1} s: it did not run; put load on it, or sample longer (--duration)",
            head.whose,
            head.elapsed.as_secs_f64()
        )));
    }
    let mut stacks: Vec<Stack> = stacks.into_iter().map(|(frames, samples)| Stack { frames, samples }).collect();
    stacks.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.frames.cmp(&b.frames)));
    let (seconds, sampled_seconds) = (head.elapsed.as_secs_f64(), head.sampled.as_secs_f64());
    Ok(Profile {
        whose: head.whose,
        seconds,
        sampled_seconds,
        frequency: head.frequency,
        processors: head.processors,
        samples: who.total(),
        expected: (sampled_seconds * f64::from(head.frequency) * f64::from(head.processors)) as u64,
        lost: folds.lost,
        unknown: Share::of(categories.count(classify::UNKNOWN), chosen),
        who: who.rows(),
        contexts: contexts.rows(),
        functions: functions.rows(),
        categories: categories.rows(),
        own_cpu: head.own_cpu,
        budget: head.budget,
        missing: head.missing,
        stacks,
    })
}

/// A sampled process.
struct Process {
    /// The name of its program, or its number if it has ended.
    name: String,
    functions: HashMap<u64, Function>,
}

impl Process {
    /// The program's functions on the stack, innermost first; empty if there are none.
    fn frames<'a>(&'a self, fold: &'a Fold) -> Vec<&'a str> {
        let mut frames: Vec<&str> = self.functions(fold).map(|function| function.name.as_str()).collect();
        // Consecutive frames without names are one frame.
        frames.dedup_by(|one, other| one == other && one.starts_with('['));
        if frames.is_empty() && (!fold.in_kernel || !fold.user_chain.is_empty()) {
            frames.push(UNNAMED);
        }
        frames
    }

    /// The category of a sample of user code: that of the innermost function with a category, for which all functions that
    /// it calls work.
    fn category(&self, fold: &Fold) -> &'static str {
        self.functions(fold).find_map(|function| function.category).unwrap_or(USER)
    }

    /// The functions on the stack that are known, innermost first.
    fn functions<'a>(&'a self, fold: &Fold) -> impl Iterator<Item = &'a Function> {
        fold.user_chain.iter().map_while(|address| self.functions.get(address))
    }
}

/// The chosen processes, with the functions of their programs in the samples.
fn processes(
    folds: &Folds,
    is_chosen: impl Fn(u32) -> bool,
    functions_of: impl Fn(u32, &str, &[u64]) -> HashMap<u64, Function>,
) -> HashMap<u32, Process> {
    let mut addresses: HashMap<u32, HashSet<u64>> = HashMap::new();
    for fold in folds.samples.keys().filter(|fold| is_chosen(fold.pid)) {
        addresses.entry(fold.pid).or_default().extend(&fold.user_chain);
    }
    let process = |(pid, addresses): (u32, HashSet<u64>)| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        let name = name.map_or_else(|_| pid.to_string(), |name| name.trim().replace([';', ' '], "_"));
        let addresses: Vec<u64> = addresses.into_iter().collect();
        let functions = functions_of(pid, &name, &addresses);
        (pid, Process { name, functions })
    };
    addresses.into_iter().map(process).collect()
}

/// Equal samples, counted.
struct Folds {
    symbols: Symbols,
    samples: HashMap<Fold, u64>,
    lost: u64,
}

#[derive(PartialEq, Eq, Hash)]
struct Fold {
    pid: u32,
    in_kernel: bool,
    /// Numbers of kernel functions, innermost first.
    chain: Vec<u32>,
    /// Program addresses, innermost first: the instruction, then the return addresses.
    user_chain: Vec<u64>,
}

impl Folds {
    fn add(&mut self, record: Record) {
        match record {
            Record::Lost(count) => self.lost += count,
            Record::Sample(sample) => {
                let find = |address: &u64| self.symbols.find(*address).map(|(number, _)| number);
                let chain = sample.kernel_chain.iter().filter_map(find).collect();
                let mut user_chain = sample.user_chain;
                // A call at the end of a function returns to the address after the function.
                user_chain.iter_mut().skip(1).for_each(|address| *address = address.saturating_sub(1));
                let fold = Fold { pid: sample.pid, in_kernel: sample.in_kernel, chain, user_chain };
                *self.samples.entry(fold).or_default() += 1;
            }
        }
    }
}

/// The online processors.
pub(crate) fn processors() -> Result<Vec<u32>, Failure> {
    let path = "/sys/devices/system/cpu/online";
    let text = fs::read_to_string(path).map_err(Failure::io(format!("read {path}")))?;
    core_list(text.trim())
        .ok_or_else(|| Failure::failed(format!("{path} contains `{}`, which is not a list of processors", text.trim())))
}

pub(crate) fn refused(error: &io::Error) -> String {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    format!(
        "this user may not sample ({error}; kernel.perf_event_paranoid is {}): run as root, or grant it with `setcap \
         cap_perfmon,cap_syslog+ep FILE`",
        level.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_sys::perf::{Sample, records};
    use proptest::prelude::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn sampler_over_budget_pauses() {
        let ms = Duration::from_millis;
        let check = |used, elapsed, expected| {
            assert_eq!(rest_of(ms(used), ms(elapsed), 0.01), ms(expected), "{used} of {elapsed}");
        };
        check(0, 500, 0);
        check(5, 500, 0);
        check(6, 500, 100);
        check(50, 500, 4500);
        assert_eq!(rest_of(ms(1), ms(1), 0.0), Duration::MAX - ms(1));
    }

    fn folds() -> Folds {
        let symbols = Symbols::for_tests(
            "1000 T tcp_v4_rcv\n2000 T net_rx_action\n3000 T handle_softirqs\n\
            4000 T do_writev\n5000 T do_syscall_64\n6000 T qqq\n7000 T do_idle\n",
        );
        Folds { symbols, samples: HashMap::new(), lost: 0 }
    }

    fn head() -> Head {
        Head {
            whose: "process 7".into(),
            is_one: true,
            elapsed: Duration::from_secs(3),
            sampled: Duration::from_secs(2),
            frequency: 4,
            processors: 1,
            own_cpu: 0.0,
            budget: 0.005,
            missing: Vec::new(),
        }
    }

    /// Functions of 16 bytes, with code from 0x100 to 0x200; `f17` is cryptography.
    fn names(_: u32, program: &str, addresses: &[u64]) -> HashMap<u64, Function> {
        let code = addresses.iter().filter(|at| (0x100..0x200).contains(*at));
        let name = |at: u64| if at >= 0x180 { format!("[{program}]") } else { format!("f{:x}", at / 16) };
        let category = |at: u64| (at / 16 == 0x17).then_some("crypto");
        code.map(|at| (*at, Function { name: name(*at), category: category(*at) })).collect()
    }

    #[test]
    fn cryptography_is_a_category_of_user_code() {
        let mut folds = folds();
        let mut add = |in_kernel, kernel_chain: &[u64], user_chain: &[u64], times| {
            for _ in 0..times {
                let (kernel_chain, user_chain) = (kernel_chain.to_vec(), user_chain.to_vec());
                folds.add(Record::Sample(Sample { pid: u32::MAX, in_kernel, kernel_chain, user_chain }));
            }
        };
        // In the function itself; in one that it calls; in its caller; beyond the end of the chain; in the kernel.
        add(false, &[], &[0x174, 0x111], 5);
        add(false, &[], &[0x124, 0x179, 0x111], 3);
        add(false, &[], &[0x111, 0x151], 2);
        add(false, &[], &[0x112, 0x9999, 0x179], 1);
        add(true, &[0x4000, 0x5000], &[0x174, 0x111], 4);
        let found = profile(head(), &folds, |_| true, names).unwrap();
        let rows: Vec<(&str, u64)> =
            found.categories.iter().map(|row| (row.name.as_str(), row.share.samples)).collect();
        assert_eq!(rows[..2], [("crypto", 8), ("high-level file system", 4)], "{rows:?}");
        assert!(rows.contains(&("user", 3)) && rows.len() == 3, "{rows:?}");
        assert_eq!(found.contexts.iter().find(|row| row.name == USER).map(|row| row.share.samples), Some(11));
    }

    /// No process has this number, so that the number is its name.
    #[test]
    fn program_functions_are_below_kernel_functions() {
        let mut folds = folds();
        let mut add = |in_kernel, kernel_chain: &[u64], user_chain: &[u64], times| {
            let (kernel_chain, user_chain) = (kernel_chain.to_vec(), user_chain.to_vec());
            for _ in 0..times {
                let (kernel_chain, user_chain) = (kernel_chain.clone(), user_chain.clone());
                folds.add(Record::Sample(Sample { pid: u32::MAX, in_kernel, kernel_chain, user_chain }));
            }
        };
        // The last call of f12 returns to the first address of f13; then the chain leaves the code.
        add(true, &[0x4000, 0x5000], &[0x110, 0x130, 0x9999, 0x150], 4);
        // Recursion; and code without names.
        add(false, &[], &[0x124, 0x121, 0x121, 0x181, 0x191], 3);
        add(false, &[], &[0x9999], 2);
        add(true, &[0x6000], &[], 1);
        let found = profile(head(), &folds, |_| true, names).unwrap();
        let around = |row: &Row| row.around.map_or(0, |around| around.samples);
        let rows = found.functions.iter().map(|row| (row.name.as_str(), row.share.samples, around(row)));
        let expected = [("f11", 4, 4), ("f12", 3, 7), ("[user]", 2, 2), ("[kernel]", 1, 0), ("[4294967295]", 0, 3)];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
        let stacks: Vec<&str> = found.stacks.iter().map(|stack| stack.frames.as_str()).collect();
        let expected = ["f12;f11;do_syscall_64;do_writev", "[4294967295];f12;f12;f12", "[user]", "qqq"];
        assert_eq!(stacks, expected.map(|frames| format!("4294967295;{frames}")));
    }

    proptest::proptest! {
        /// Rings with records of any kind and length, whole or cut.
        #[test]
        fn each_sample_in_random_ring_counts_once(
            parts in prop::collection::vec((0..12_u32, any::<u8>(), prop::collection::vec(0..9_u64, 0..9), any::<Option<u8>>()), 0..9),
            cut: prop::sample::Index,
        ) {
            let mut bytes = Vec::new();
            for (kind, misc, words, size) in parts {
                let length = size.map_or(8 + 8 * words.len() as u16, u16::from);
                bytes.extend(kind.to_ne_bytes().into_iter().chain([misc, 0]).chain(length.to_ne_bytes()));
                bytes.extend(words.iter().flat_map(|word| (word << 12).to_ne_bytes()));
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            let (mut folds, mut samples, mut lost) = (folds(), 0, 0_u64);
            records(&bytes, &mut |record| {
                match &record {
                    Record::Sample(_) => samples += 1,
                    Record::Lost(count) => lost += count,
                }
                folds.add(record);
            });
            prop_assert!(folds.lost == lost && folds.samples.values().sum::<u64>() == samples);
            if let Ok(found) = profile(head(), &folds, |_| true, names) {
                let sum = |rows: &[Row]| rows.iter().map(|row| row.share.samples).sum::<u64>();
                let (who, contexts, categories) = (sum(&found.who), sum(&found.contexts), sum(&found.categories));
                prop_assert_eq!((who, contexts, categories, sum(&found.functions)), (samples, samples, samples, samples));
                prop_assert!(found.stacks.iter().map(|stack| stack.samples).sum::<u64>() == samples);
            }
        }
    }

    /// Two threads that send each other a byte in turn, until dropped.
    struct Busy(Arc<AtomicBool>);

    impl Busy {
        fn start() -> Busy {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut server = listener.accept().unwrap().0;
            let enough = Arc::new(AtomicBool::new(false));
            let done = enough.clone();
            let mut byte = [0];
            thread::spawn(move || while server.read_exact(&mut byte).and_then(|()| server.write_all(&byte)).is_ok() {});
            thread::spawn(move || {
                while !done.load(Ordering::Relaxed)
                    && client.write_all(&byte).and_then(|()| client.read_exact(&mut byte)).is_ok()
                {}
            });
            Busy(enough)
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// The innermost context by an independent, simple rule: the first name on the way out that denotes a context.
    /// `None` for contexts that `Busy` does not use.
    fn plain_context(chain: &[&str]) -> Option<String> {
        // This rule does not know the names of other soft interrupts.
        let mut kind = "other";
        let context = chain.iter().find_map(|function| {
            kind = if *function == "net_rx_action" { "net_rx" } else { kind };
            let is_softirq =
                function.trim_start_matches('_').starts_with("do_softirq") || *function == "handle_softirqs";
            let call = ["__x64_sys_", "__arm64_sys_"].iter().find_map(|begin| function.strip_prefix(begin));
            call.map(str::to_owned).or_else(|| is_softirq.then(|| format!("softirq {kind}")))
        });
        let is_interrupted = chain.iter().any(|function| function.starts_with("asm_"));
        let is_asked = |context: &String| ["sendto", "recvfrom", "softirq net_rx"].contains(&context.as_str());
        context.filter(|context| !is_interrupted && is_asked(context))
    }

    /// The output of `perf script` for samples of this process that `perf record` took for a second.
    fn perf_script() -> String {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("perf.data");
        let perf = |words: &[&str], more: &[&str]| {
            let output = Command::new("perf").args(words).arg(&data).args(more).output().expect("perf (linux-perf)");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let record = ["record", "-q", "-a", "-g", "--kernel-callchains", "-e", "cpu-clock", "-F", "991", "-o"];
        perf(&record, &["--", "sleep", "1"]);
        perf(&["script", "-F", "pid,ip,sym", "--pid", &std::process::id().to_string(), "-i"], &[])
    }

    /// The very same samples: those of two samplers differ by more than chance, as threads migrate between processors.
    #[test]
    fn contexts_agree_with_perf() {
        let _busy = Busy::start();
        let (symbols, table) = (Symbols::read().unwrap(), KernelTable::new());
        let mut met = BTreeSet::new();
        while !["sendto", "recvfrom", "softirq net_rx"].iter().all(|context| met.contains(*context)) {
            // A line with the process, one line per function from the innermost, and an empty line.
            for sample in perf_script().split("\n\n") {
                let lines = sample.lines().skip(1).filter_map(|line| line.trim().split_once(' '));
                // Kernel addresses only.
                let kernel = lines.filter(|(at, _)| at.len() == 16 && at.starts_with('f'));
                let (addresses, theirs): (Vec<&str>, Vec<&str>) = kernel.unzip();
                let addresses = addresses.iter().map(|at| u64::from_str_radix(at, 16).unwrap());
                let ours: Vec<&str> = addresses.filter_map(|at| symbols.find(at)).map(|(_, name)| name).collect();
                let Some(context) = plain_context(&theirs) else { continue };
                assert_eq!(classify(&table, &ours).contexts[0], context, "{sample}\n{ours:?}");
                met.insert(context);
            }
        }
    }

    #[test]
    fn both_views_count_same_samples() {
        let mut folds = folds();
        let sample = |pid, in_kernel, kernel_chain: &[u64]| {
            let kernel_chain = kernel_chain.to_vec();
            Record::Sample(Sample { pid, in_kernel, kernel_chain, ..Sample::default() })
        };
        for _ in 0..3 {
            folds.add(sample(7, true, &[0x1008, 0x2000, 0x3000, 0x4000, 0x5000]));
        }
        folds.add(sample(7, true, &[0x4000, 0x5000]));
        folds.add(sample(7, false, &[]));
        folds.add(sample(7, false, &[]));
        folds.add(sample(7, true, &[0x6001, 0x4000, 0x5000]));
        folds.add(sample(8, false, &[]));
        folds.add(sample(0, true, &[0x7000]));
        folds.add(sample(0, true, &[0x2000, 0x3000, 0x7000]));
        folds.add(Record::Lost(2));
        let found = profile(head(), &folds, |pid| pid == 7, names).unwrap();
        let of = |rows: &[Row], name: &str| {
            rows.iter()
                .find(|row| row.name == name)
                .map(|row| (row.share.samples, row.around.map(|share| share.samples)))
        };
        assert_eq!((found.samples, found.expected, found.lost), (10, 8, 2));
        assert_eq!(of(&found.who, "the server"), Some((7, None)));
        assert_eq!(of(&found.who, "interrupts while idle"), Some((1, None)));
        assert_eq!(of(&found.contexts, "softirq net_rx"), Some((3, Some(3))));
        // Twice as the innermost context, and around the other three.
        assert_eq!(of(&found.contexts, "writev"), Some((2, Some(5))));
        assert_eq!(of(&found.contexts, "user"), Some((2, Some(2))));
        assert_eq!(of(&found.categories, "tcp/ip and sockets"), Some((3, None)));
        assert_eq!(found.unknown.samples, 0);
        assert_eq!(found.stacks[0].samples, 3);
        assert!(found.stacks[0].frames.ends_with(";do_syscall_64;do_writev;handle_softirqs;net_rx_action;tcp_v4_rcv"));
        let text = profile(head(), &folds, |pid| pid == 99, names).unwrap_err().to_string();
        assert!(text.contains("no sample"), "{text}");
    }
}
