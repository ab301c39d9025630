//! `cargo xtask setup`: installs what the tests need beyond Rust, without changing the user's own environment.
//!
//! 1. Rust components (rustfmt, clippy): reported if missing, never installed.
//! 2. Debian packages, by `apt-get`, as root or through a passwordless `sudo`; otherwise it prints the command.
//! 3. Cargo tools at pinned versions, as prebuilt binaries from wheels on PyPI: cargo-nextest alone takes minutes to
//!    compile; and moto, an object store, which is not in Debian. Each tool has a directory under `target/tools` with the version in its name, so an existing directory is
//!    always the right version, and the user's Python environments stay unchanged.
//!
//! A missing requirement is an error that names the remedy: a test that skips itself without its tool proves nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Outcome, cargo, output, program, run as run_command, shown, succeeds, target_dir};

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Install nothing; name what is missing and fail if anything is
    #[arg(long)]
    check: bool,
}

/// A required program, and the Debian package that provides it.
#[derive(Clone, Copy)]
pub(crate) struct Needed {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
    pub(crate) why: &'static str,
}

const NEEDED: &[Needed] = &[
    Needed { program: "curl", package: "curl", why: "an independent HTTP client" },
    Needed { program: "strace", package: "strace", why: "counts the system calls of a request" },
    Needed { program: "perf", package: "linux-perf", why: "an independent profiler" },
    Needed { program: "ip", package: "iproute2", why: "sets up network namespaces" },
    Needed { program: "python3", package: "python3", why: "clients and servers of tests in a network namespace" },
    Needed { program: "unshare", package: "util-linux", why: "runs a test in its own namespaces" },
    Needed { program: "kill", package: "procps", why: "sends signals in tests" },
    Needed { program: "script", package: "bsdutils", why: "provides a terminal for screen tests" },
    Needed { program: "chromium", package: "chromium", why: "renders report pages" },
    Needed {
        program: "/etc/ssl/certs/ca-certificates.crt",
        package: "ca-certificates",
        why: "root certificates, which are part of the image for containers",
    },
    Needed { program: "sshd", package: "openssh-server", why: "the hosts of an experiment, in network namespaces" },
    Needed { program: "ssh", package: "openssh-client", why: "reaches them" },
    Needed { program: "haproxy", package: "haproxy", why: "it speaks the PROXY protocol to the server" },
    Needed { program: "nginx", package: "nginx", why: "responses are compared with it" },
    Needed { program: "openssl", package: "openssl", why: "creates password hashes for tests" },
    Needed { program: "pebble", package: "pebble", why: "a CA that certificates are obtained from" },
    Needed { program: "htpasswd", package: "apache2-utils", why: "creates password hashes for tests" },
    Needed { program: "php-fpm8.2", package: "php8.2-fpm", why: "an independent FastCGI application" },
    Needed { program: "php", package: "php8.2-cli", why: "its development server is a backend" },
    Needed {
        program: "/usr/lib/python3/dist-packages/websockets/__init__.py",
        package: "python3-websockets",
        why: "an independent WebSocket client and server",
    },
    Needed {
        program: "/usr/lib/python3/dist-packages/aiohttp/__init__.py",
        package: "python3-aiohttp",
        why: "an application that requests are forwarded to",
    },
    Needed { program: "git", package: "git", why: "pushes and clones through its CGI program" },
    Needed { program: "apache2", package: "apache2", why: "CGI and content negotiation are compared with it" },
    Needed { program: "lighttpd", package: "lighttpd", why: "a server used in experiments" },
    Needed {
        program: "/usr/lib/lighttpd/mod_openssl.so",
        package: "lighttpd-mod-openssl",
        why: "lighttpd is measured over TLS",
    },
    Needed { program: "h2o", package: "h2o", why: "a server used in experiments" },
    Needed { program: "fcgiwrap", package: "fcgiwrap", why: "a FastCGI wrapper that the server starts" },
    Needed { program: "h2load", package: "nghttp2-client", why: "an independent load generator" },
    Needed { program: "nghttpd", package: "nghttp2-server", why: "an independent server of HTTP/2" },
    Needed { program: "wrk", package: "wrk", why: "an independent load generator" },
    Needed { program: "c++", package: "g++", why: "compiles libFuzzer, which is C++, with each fuzz target" },
];

/// A tool from PyPI.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
    /// Its program, in `bin`.
    program: &'static str,
    /// The package; that of a Cargo tool is `astral-dev-toolchain-NAME`, a wheel with a binary and without dependencies.
    package: Option<&'static str>,
}

const fn cargo_tool(name: &'static str, version: &'static str) -> Tool {
    Tool { name, version, program: name, package: None }
}

pub(crate) const NEXTEST: Tool = cargo_tool("cargo-nextest", "0.9.148");
pub(crate) const DENY: Tool = cargo_tool("cargo-deny", "0.20.2");
pub(crate) const FUZZ: Tool = cargo_tool("cargo-fuzz", "0.13.2");
/// An object store for tests.
const MOTO: Tool = Tool { name: "moto", version: "5.2.5", program: "moto_server", package: Some("moto[server]") };

pub(crate) fn run(args: &Args) -> Outcome {
    let mut troubles = Vec::new();

    for (component, words) in [("rustfmt", ["fmt", "--version"]), ("clippy", ["clippy", "--version"])] {
        if !succeeds(&mut cargo(&words)) {
            troubles.push(format!("Rust's {component} is missing; run: rustup component add {component}"));
        }
    }

    let mut missing = missing(NEEDED);
    // Python is needed only to fetch a tool.
    let pip = Needed { program: "python3 -m pip", package: "python3-pip", why: "fetches the tools from PyPI" };
    if [NEXTEST, DENY, FUZZ, MOTO].iter().any(|tool| !tool.binary().exists()) && !has_pip() {
        missing.push(pip);
    }
    troubles.extend(install_missing(&missing, args.check).err());

    for tool in [NEXTEST, DENY, FUZZ, MOTO] {
        if args.check && !tool.binary().exists() {
            troubles.push(format!("{} {} is missing; run: cargo xtask setup", tool.name, tool.version));
        } else {
            troubles.extend(tool.fetch().err());
        }
    }

    if troubles.is_empty() {
        println!("setup: all test dependencies are installed");
        return Ok(());
    }
    Err(format!("setup is not complete:\n  {}", troubles.join("\n  ")))
}

/// Installs what is missing of these.
pub(crate) fn require(needed: &[Needed]) -> Outcome {
    install_missing(&missing(needed), false)
}

fn missing(needed: &[Needed]) -> Vec<Needed> {
    needed.iter().filter(|needed| find(needed.program).is_none()).copied().collect()
}

/// Installs the missing packages, or reports the command that does.
fn install_missing(missing: &[Needed], check: bool) -> Outcome {
    for Needed { program, package, why } in missing {
        eprintln!("missing: {program} (Debian package {package}): {why}");
    }
    let packages: Vec<&str> = missing.iter().map(|needed| needed.package).collect();
    match (packages.is_empty(), check) {
        (true, _) => Ok(()),
        (false, true) => Err(way_out(&packages)),
        (false, false) => install(&packages),
    }
}

impl Tool {
    fn dir(&self) -> PathBuf {
        target_dir().join("tools").join(format!("{}-{}", self.name, self.version))
    }

    fn binary(&self) -> PathBuf {
        self.dir().join("bin").join(self.program)
    }

    /// The tool as a command; fetches the tool first if it is missing.
    pub(crate) fn command(&self, args: &[&str]) -> Outcome<Command> {
        self.fetch()?;
        let mut command = program(self.binary());
        command.args(args);
        Ok(command)
    }

    fn fetch(&self) -> Outcome {
        let dir = self.dir();
        if self.binary().exists() {
            return Ok(());
        }
        println!("fetching {} {} into {}", self.name, self.version, dir.display());
        // Install under another name first: an interrupted download must not look like an installed tool.
        let half = dir.with_file_name(format!(".{}-{}-{}", self.name, self.version, std::process::id()));
        let package = self.package.map_or_else(|| format!("astral-dev-toolchain-{}", self.name), str::to_owned);
        let wheel = format!("{package}=={}", self.version);
        let mut pip = program("python3");
        // pip permits --target even if the system's Python forbids any other installation (PEP 668). PIP_USER=0
        // overrides `user = true` in a pip.conf, which excludes --target.
        pip.env("PIP_USER", "0")
            .env("PIP_ROOT_USER_ACTION", "ignore")
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(self.package.is_none().then_some("--no-deps"))
            .args(["--only-binary=:all:", "--target"])
            .arg(&half)
            .arg(&wheel);
        let fetched = run_command(&mut pip).and_then(|()| {
            fs::rename(&half, &dir).map_err(|error| format!("cannot put {} in place: {error}", dir.display()))
        });
        let _ = fs::remove_dir_all(&half);
        // Two runs may fetch the tool at the same time; the second finds it installed.
        if self.binary().exists() {
            return Ok(());
        }
        let way_out = format!("needed from PyPI: {wheel} (with the program {})", self.program);
        Err(format!("{}\n    {way_out}", fetched.err().unwrap_or_else(|| "the wheel contains no such binary".into())))
    }
}

/// Finds the file that root's shell would start for `program`. On Debian, the PATH of
/// a plain user lacks the `sbin` directories, which contain `ip` and `nginx`.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(program)).find(|file| file.is_file())
}

fn has_pip() -> bool {
    succeeds(program("python3").args(["-m", "pip", "--version"]))
}

fn way_out(packages: &[&str]) -> String {
    format!("Debian packages are missing; run: sudo apt-get install --no-install-recommends {}", packages.join(" "))
}

/// Installs packages, and keeps Debian from starting their services: such a server would occupy a port and disturb
/// measurements. While `policy-rc.d` exits 101, `invoke-rc.d` starts nothing. The arguments are only packages that were
/// missing, so a web server that the user runs is not affected. The shell itself restores the former state, so that
/// this also happens after an interrupt and under sudo.
const INSTALL: &str = r#"
policy=/usr/sbin/policy-rc.d kept=/usr/sbin/policy-rc.d.amped-setup services=
restore() { rm -f "$policy"; if [ -e "$kept" ]; then mv "$kept" "$policy"; fi; }
trap 'exit 130' INT TERM HUP
trap restore EXIT
if [ -e "$policy" ] && [ ! -e "$kept" ]; then mv "$policy" "$kept"; fi
printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod 755 "$policy" || exit 1
apt() {
    DEBIAN_FRONTEND=noninteractive apt-get --quiet --quiet --yes --option DPkg::Lock::Timeout=300 "$@" < /dev/null
}
for package; do
    # Without "Candidate: <version>" the package lists are empty, as in a fresh container, or too old to know it.
    if ! apt-cache policy "$package" | grep -q 'Candidate: [0-9]'; then apt update || exit 1; break; fi
done
# Lists that are known but old name files that the mirror has replaced, hence the second try.
apt install --no-install-recommends "$@" || { apt update && apt install --no-install-recommends "$@"; } || exit 1
# Not at the next boot either.
for server in nginx haproxy lighttpd h2o apache2 php8.2-fpm fcgiwrap openssh-server; do
    case " $* " in *" $server "*) services="$services $server";; esac
done
# Apache's package brings a second one.
case "$services" in *openssh-server*) services="${services%openssh-server} ssh";; esac
case "$services" in *apache2*) services="$services apache-htcacheclean";; esac
if [ -n "$services" ] && command -v systemctl > /dev/null; then systemctl --quiet disable $services; fi
exit 0
"#;

fn install(packages: &[&str]) -> Outcome {
    if find("apt-get").is_none() {
        return Err(format!(
            "apt-get not found; install the contents of these Debian packages: {}",
            packages.join(" ")
        ));
    }
    let is_root = output(program("id").arg("-u"))?.trim() == "0";
    let mut shell = if is_root {
        program("sh")
    } else if succeeds(program("sudo").args(["-n", "true"])) {
        let mut sudo = program("sudo");
        sudo.args(["-n", "sh"]);
        sudo
    } else {
        return Err(way_out(packages));
    };
    shell.args(["-c", INSTALL, "setup"]).args(packages);
    let servers = ["nginx", "haproxy", "lighttpd", "h2o", "apache2"];
    let ran = servers.map(is_running);
    eprintln!("installing {}", packages.join(" "));
    // `run_command` would print the whole script.
    let status = shell.status().map_err(|error| format!("cannot start `{}`: {error}", shown(&shell)))?;
    if !status.success() {
        return Err(format!("apt-get failed ({status}), see above; {}", way_out(packages)));
    }
    if let Some((server, _)) = servers.iter().zip(ran).find(|(server, ran)| !ran && is_running(server)) {
        return Err(format!(
            "installing {server} has started it, which would disturb measurements; stop it: sudo service {server} stop"
        ));
    }
    match NEEDED.iter().find(|needed| packages.contains(&needed.package) && find(needed.program).is_none()) {
        Some(needed) => Err(format!("package {} is installed but does not contain {}", needed.package, needed.program)),
        None => Ok(()),
    }
}

fn is_running(name: &str) -> bool {
    let is_it = |dir: &Path| fs::read_to_string(dir.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    fs::read_dir("/proc").is_ok_and(|dirs| dirs.flatten().any(|entry| is_it(&entry.path())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_outside_path_are_found() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-of-ours").is_none());
    }

    #[test]
    fn tool_path_contains_version() {
        assert!(NEXTEST.binary().ends_with("tools/cargo-nextest-0.9.148/bin/cargo-nextest"));
    }

    #[test]
    fn nextest_version_matches_its_configuration() {
        let config = fs::read_to_string(crate::command::root().join(".config/nextest.toml")).expect("it is committed");
        assert!(config.contains(&format!("nextest-version = \"{}\"", NEXTEST.version)));
    }
}
