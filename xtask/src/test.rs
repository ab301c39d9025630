//! `cargo xtask test`: runs all checks of CI, in the order that reveals mistakes soonest.
//!
//! A failed step does not end the run: a developer who waits for CI wants to see all failures
//! at once. Only `setup` ends it, since later steps depend on its tools. The output of each
//! step is inherited, because CI reads the last line of nextest.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::command::{Outcome, cargo, output, program, root, run as run_command, shown, target_dir};
use crate::setup::{DENY, NEXTEST};
use crate::{fuzz, setup, tidy};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Skip steps that rarely fail alone: tests that measure latency, whole experiments, all architectures but the
    /// default, the tests over TLS, documentation, a short measurement, disabled features, licences, and fuzzing
    #[arg(long, conflicts_with = "fuzz_seconds")]
    quick: bool,

    /// Time for each fuzz target, in seconds
    #[arg(long, value_name = "N", default_value_t = 5)]
    fuzz_seconds: u32,
}

/// The steps of `--quick`.
const QUICK: &[&str] = &["setup", "format", "tidy", "clippy", "tests", "dependencies of the server"];

/// The tests of `--quick`, as nextest's filter.
const QUICK_TESTS: &str = "not test(/(^|::)alone_/) and not (binary(wire) and test(/^(sped|mt|mp)::/)) \
                           and not (binary(lab) and test(/^(diagnose|hosts|run)::/))";

/// A step: its heading and its function.
type Step<'a> = (&'static str, Box<dyn Fn() -> Outcome + 'a>);

pub(crate) fn run(args: &Args) -> Outcome {
    let fuzz_seconds = args.fuzz_seconds;
    let deny = ["deny", "check", "bans", "licenses", "sources"];
    let mut steps: Vec<Step<'_>> = vec![
        ("setup", Box::new(|| setup::run(&setup::Args::default()))),
        ("format", Box::new(format)),
        ("tidy", Box::new(tidy::run)),
        ("clippy", Box::new(|| run_cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))),
        ("clippy without features", Box::new(|| run_cargo(WITHOUT_FEATURES))),
        ("deny", Box::new(move || run_command(&mut DENY.command(&deny)?))),
        ("tests", Box::new(|| tests(args.quick))),
        ("tests over TLS", Box::new(tests_over_tls)),
        ("tests over HTTP/2", Box::new(tests_over_http2)),
        ("tests in documentation", Box::new(|| run_cargo(&["test", "--doc", "--workspace"]))),
        ("dependencies of the server", Box::new(server_dependencies)),
        ("measuring", Box::new(measuring)),
        ("fuzz", Box::new(move || fuzz::smoke(fuzz_seconds, &[]))),
    ];

    steps.retain(|(name, _)| !args.quick || QUICK.contains(name));

    let begin = Instant::now();
    let mut done: Vec<(&str, Duration, Outcome)> = Vec::new();
    for (name, step) in steps {
        println!("\n==== {name} ====");
        let began = Instant::now();
        let outcome = step();
        let took = began.elapsed();
        match &outcome {
            Ok(()) => println!("---- {name}: ok, {:.1} s", took.as_secs_f64()),
            Err(text) => println!("---- {name}: FAILED, {:.1} s: {text}", took.as_secs_f64()),
        }
        let fatal = outcome.is_err() && name == "setup";
        done.push((name, took, outcome));
        if fatal {
            break;
        }
    }

    println!("\n==== summary ====");
    for (name, took, outcome) in &done {
        println!("{:>8.1} s  {:6}  {name}", took.as_secs_f64(), if outcome.is_ok() { "ok" } else { "FAILED" });
    }
    println!("{:>8.1} s  in all", begin.elapsed().as_secs_f64());
    let failed: Vec<&str> = done.iter().filter(|(_, _, outcome)| outcome.is_err()).map(|(name, _, _)| *name).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Runs the tests.
fn tests(is_quick: bool) -> Outcome {
    let mut command = nextest()?;
    if is_quick {
        command.args(["--filterset", QUICK_TESTS]);
    }
    run_command(&mut command)
}

/// The command that runs tests, six per core: most of them wait for a server or for time to pass.
fn nextest() -> Outcome<Command> {
    let threads = 6 * std::thread::available_parallelism().map_or(1, usize::from);
    NEXTEST.command(&["nextest", "run", "--workspace", "--test-threads", &threads.to_string()])
}

/// The tests of the wire suite that run again with TLS at all addresses of their servers: those of requests, responses
/// and slow clients, except those that open hundreds of connections and would measure handshakes.
const TLS_TESTS: &str = "binary(wire) and test(/^(amped|sped|mt|mp)::(files|ranges|conditions|messages|bodies|apps|limits)::/) \
     and not test(/(ranges_are_equal|requests_may_be_split|scripts_killed|max_processes)/)";

/// Those that run once more with private keys in a process of their own, except those that count descriptors: each
/// thread that has had something signed keeps one.
const KEY_PROCESS_TESTS: &str = "binary(wire) and test(/^mp::(files|ranges|conditions|messages|bodies|apps|limits)::/) \
     and not test(/(ranges_are_equal|requests_may_be_split|scripts_killed|max_processes|kills_process_group)/)";

/// Runs part of the wire suite over TLS. The programs are those of the tests without it, so nothing is compiled again.
fn tests_over_tls() -> Outcome {
    run_command(nextest()?.args(["--filterset", TLS_TESTS]).env("AMPED_TEST_TLS", "1"))?;
    run_command(nextest()?.args(["--filterset", KEY_PROCESS_TESTS]).env("AMPED_TEST_TLS", "process"))
}

/// The tests of the wire suite that run again with clients that translate to HTTP/2: those of requests and responses,
/// except for what is particular to HTTP/1: the reason phrase, Connection, the case of names, upgrades, the end of a
/// connection as a signal.
const HTTP2_TESTS: &str = "binary(wire) and \
     test(/^(amped|sped|mt|mp)::(files|ranges|conditions|negotiation|cors|auth|routes|pages|apps|fastcgi|https?_backends|caches|bodies)::/) \
     and not test(/::(odd_paths_are_rejected|body_waits_for_authentication|script_(receives_cgi|status_and|response_is)|complete_response_has_content_length|download_of_edited|(incomplete_body|body_over_limit|upload_below)_)/) \
     and not test(/::https?_backends::.*(tunnel|of_new_requests_only|without_fields_of_connection|and_no_password)/)";

/// Runs part of the wire suite over HTTP/2.
fn tests_over_http2() -> Outcome {
    run_command(nextest()?.args(["--filterset", HTTP2_TESTS]).env("AMPED_TEST_HTTP2", "1"))
}

/// Runs a few rows of an experiment for some seconds, to check that servers, floor and load still work together. The
/// figures do not matter here: an invalid run passes, a run without load fails.
fn measuring() -> Outcome {
    const LEVELS: &str = "amped,floor,nginx,1k,new,304";
    run_cargo(&["build", "--workspace"])?;
    let archive = target_dir().join("experiments-smoke");
    if archive.exists() {
        std::fs::remove_dir_all(&archive).map_err(|error| format!("cannot remove {}: {error}", archive.display()))?;
    }
    let mut command = program(target_dir().join("debug/ammeter"));
    command.args(["run", "server-speed", "--quick", "--only", LEVELS, "--quiet-timeout", "0s", "--out"]).arg(&archive);
    let status = command.status().map_err(|error| format!("cannot start `{}`: {error}", shown(&command)))?;
    let runs = std::fs::read_dir(archive.join("runs")).into_iter().flatten().flatten();
    let made = runs.filter(|run| run.path().join("load.json").exists()).count();
    // Three rows in two blocks, each with three servers and the first of them again.
    if made < 3 * 2 * 4 || !archive.join("report.html").exists() {
        return Err(format!("`{}` ended with {status}, and {made} runs had a load", shown(&command)));
    }
    Ok(())
}

/// Arguments that lint packages without their default features: the server's baseline for the cost of counters, and what
/// the fuzz targets use. They have no features of each other, so that one call compiles the dependencies of all.
const WITHOUT_FEATURES: &[&str] = &[
    "clippy",
    "--package=amped",
    "--package=ammeter-load",
    "--package=ammeter-monitor",
    "--no-default-features",
    "--",
    "-D",
    "warnings",
];

fn run_cargo(args: &[&str]) -> Outcome {
    run_command(&mut cargo(args))
}

/// Checks the format. The fuzz targets are a workspace of their own, which `--all` does not cover.
fn format() -> Outcome {
    let hint = |text| format!("{text}; run: cargo fmt --all");
    run_cargo(&["fmt", "--all", "--check"]).map_err(hint)?;
    if root().join("fuzz/Cargo.toml").exists() {
        run_cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])
            .map_err(|text| format!("{text}; run: cargo fmt --manifest-path fuzz/Cargo.toml"))?;
    }
    Ok(())
}

/// Async runtimes, which would replace the event loop that is the subject of the project.
const RUNTIMES: &[&str] =
    &["actix-rt", "async-executor", "async-io", "async-std", "compio", "glommio", "mio", "monoio", "smol", "tokio"];

/// Maximum number of crates in the server's tree, including its own. The tree had 136 when this was written: 28 verify
/// passwords, 20 are for TLS, nine compress, four match regular expressions, three are for Landlock, six ask object stores, one is for seccomp, and most others belong to miette, clap, schemars and toml. Versions
/// of textwrap after 0.16.2, which Cargo.lock pins for miette, add 23. Raise it deliberately: each crate lengthens the
/// build, which is a newcomer's first impression.
const SERVER_CRATES_MAX: usize = 136;

/// Checks the server's dependencies alone. cargo-deny covers the whole
/// workspace, where a measuring tool may need a runtime.
fn server_dependencies() -> Outcome {
    let tree = output(&mut cargo(&["tree", "--package", "amped", "--edges", "normal", "--prefix", "none"]))?;
    let count = check_tree(&tree)?;
    println!("{count} crates, at most {SERVER_CRATES_MAX}; no async runtime");
    Ok(())
}

/// Counts the crates in the output of `cargo tree --prefix none`: one per line, `name v1.2.3 (*)`, repeated if shared.
fn check_tree(tree: &str) -> Outcome<usize> {
    let crates = tree.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.is_empty());
    let crates: std::collections::BTreeSet<&str> = crates.collect();
    for line in &crates {
        let name = line.split(' ').next().unwrap_or(line);
        if RUNTIMES.contains(&name) {
            let way_out = format!("find what depends on it: cargo tree -p amped -i {name}");
            return Err(format!(
                "the server depends on the async runtime {name}, but it has its own event loop; {way_out}"
            ));
        }
    }
    if crates.len() > SERVER_CRATES_MAX {
        return Err(format!("the server has {} crates, more than {SERVER_CRATES_MAX}", crates.len()));
    }
    Ok(crates.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn async_runtime_in_tree_is_reported() {
        let check = |tree: &str, expected: Result<usize, &str>| match (check_tree(tree), expected) {
            (Ok(count), Ok(expected)) => assert_eq!(count, expected, "{tree}"),
            (Err(text), Err(part)) => assert!(text.contains(part), "{text}"),
            (found, _) => panic!("{found:?} for {tree}"),
        };
        check("amped v0.1.0 (/a)\nlibc v0.2.1\nclap v4.0.0\nlibc v0.2.1 (*)\n", Ok(3));
        check("amped v0.1.0 (/a)\ntokio v1.0.0\n", Err("runtime tokio"));
        check("amped v0.1.0 (/a)\ntokio-not-quite v1.0.0\n", Ok(2));
        let many: String = (0..=SERVER_CRATES_MAX).map(|n| format!("c{n} v1.0.0\n")).collect();
        check(&many, Err("more than"));
    }
}
