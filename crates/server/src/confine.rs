//! The files that a confined server may open (`[contain] landlock`), which follow from its configuration, and the system calls that it may
//! make (`seccomp`), which do not.
//!
//! `serve` enforces both once ports, log and sockets are open, before there is a second thread; threads, MP's processes and helper
//! processes inherit the limits. They last as long as the process, so a reload first tests whether its files are among
//! them ([`Confinement::admits`]).
//!
//! A rule of Landlock belongs to a file, not to its name: where files are replaced by others of the same name, as certificates and the
//! configuration are, it must be that of their directory.

use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use amped_core::site::Symlinks;
use amped_sys::landlock::{self, Access};
use amped_sys::process::{self, Identity, User};
use amped_sys::seccomp::{self, Refusal};

use crate::acme;
use crate::app::launch::{Permitted, variable};
use crate::config::Settings;
use crate::config::settings::{AppKind, KeyHolder, LogTarget};
use crate::upgrade::Program;

/// What the server needs whatever its configuration says: its own state, random numbers, time zone, and names of hosts.
const SYSTEM: [&str; 13] = [
    "/proc",
    "/dev/urandom",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/run/systemd/resolve",
    // Modules of nsswitch.conf(5).
    "/etc/ld.so.cache",
    "/usr/lib",
    "/lib64",
];

/// Where systems have their root certificates, which backends with TLS are verified against.
const AUTHORITIES: [&str; 6] = [
    "/etc/ssl/certs",
    "/etc/pki",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/etc/ca-certificates",
    "/var/lib/ca-certificates",
];

/// The files that a server may open, the system calls that it may make, and the programs that it may have started.
#[derive(Debug)]
pub struct Confinement {
    /// The files are limited (`contain.landlock`).
    pub limits_files: bool,
    /// System calls are limited (`contain.seccomp`). Without both only programs are, as the process manager may change users.
    pub limits_calls: Option<Refusal>,
    rules: Vec<Rule>,
    /// For the process manager, which is not limited itself.
    pub programs: Permitted,
}

/// Permits access to a file, or to everything in a directory.
#[derive(Debug)]
struct Rule {
    path: PathBuf,
    access: Access,
    /// Device and inode; `None`: it does not exist, and the rule is omitted.
    file: Option<(u64, u64)>,
}

impl Confinement {
    /// Returns those of these settings, whose main file is at this path, for this program.
    pub fn new(settings: &Settings, config: Option<&Path>, program: &Program) -> Confinement {
        let mut files = Confinement {
            limits_files: settings.contain.landlock,
            limits_calls: settings.contain.seccomp.refusal(),
            rules: Vec::new(),
            programs: programs(settings, program),
        };
        files.add_system();
        AUTHORITIES.iter().for_each(|path| files.add(path, Access::Read));
        // Read again at a reload.
        let of_store = settings.store.iter().flat_map(|store| [&store.credentials_file, &store.keys.ca]).flatten();
        of_store.for_each(|path| files.add_replaceable(path, Access::Read));
        let variables = ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(std::env::var_os);
        variables.iter().flatten().for_each(|path| files.add(path, Access::Read));
        let included = settings.included.iter().map(Path::new);
        config.into_iter().chain(included).for_each(|path| files.add_replaceable(path, Access::Read));
        settings.roots.iter().for_each(|root| files.add(root, Access::Read));
        if settings.site.iter().any(|site| site.symlinks == Symlinks::Any) {
            // Their links may lead anywhere.
            files.add("/", Access::Read);
            files.programs.scripts.push("/".into());
        }
        files.add_secrets(settings);
        files.add_written(settings);
        files
    }

    /// Returns those of the key process.
    pub fn of_keys(settings: &Settings) -> Confinement {
        let mut files = Confinement {
            limits_files: settings.contain.landlock,
            limits_calls: settings.contain.seccomp.refusal(),
            rules: Vec::new(),
            programs: Permitted::default(),
        };
        files.add_system();
        files.add_keys(settings);
        files
    }

    fn add_system(&mut self) {
        SYSTEM.iter().for_each(|path| self.add(path, Access::Read));
    }

    /// Certificates with their keys.
    fn add_keys(&mut self, settings: &Settings) {
        settings.site.iter().flat_map(|site| site.certificate.iter().chain(&site.key)).for_each(|path| {
            self.add_replaceable(path, Access::Read);
        });
        if let Some(acme) = &settings.acme {
            // Written by the ACME process, which is not confined.
            self.add(&settings.tls.acme.state, Access::Read);
            self.add(&acme.start.state, Access::Read);
        }
    }

    /// Certificates, keys and passwords.
    fn add_secrets(&mut self, settings: &Settings) {
        let tls = &settings.tls;
        for path in [&tls.client_ca, &tls.client_crl, &tls.ticket_secret].into_iter().flatten() {
            self.add_replaceable(path, Access::Read);
        }
        for site in &settings.site {
            let of_apps = site.app.iter().flat_map(|app| [&app.tls_ca, &app.tls_certificate, &app.tls_key]).flatten();
            for path in site.ocsp.iter().chain(of_apps).filter(|path| !path.as_os_str().is_empty()) {
                self.add_replaceable(path, Access::Read);
            }
        }
        settings.accounts.iter().for_each(|path| self.add_replaceable(path, Access::Read));
        if tls.keys == KeyHolder::Server {
            self.add_keys(settings);
        }
        if settings.acme.is_some() {
            tls.acme.directory_ca.iter().for_each(|path| self.add_replaceable(path, Access::Read));
        }
    }

    /// Logs, spooled bodies, and names of sockets and of the metrics file.
    fn add_written(&mut self, settings: &Settings) {
        if let LogTarget::File(path) = &settings.log.access {
            self.add_replaceable(path, Access::Create);
        }
        if settings.tls.key_log {
            let path = std::env::var_os("SSLKEYLOGFILE");
            path.iter().for_each(|path| self.add_replaceable(Path::new(path), Access::Create));
        }
        for path in [&settings.control.socket, &settings.metrics.file].into_iter().flatten() {
            path.parent().iter().for_each(|folder| self.add(folder, Access::Name));
        }
        settings.store.iter().for_each(|store| self.add(&store.directory, Access::Manage));
        if settings.apps.iter().any(|apps| !apps.is_empty()) && settings.spool.max_bytes.0 > 0 {
            settings.spool.directories().iter().for_each(|folder| self.add(folder, Access::Write));
        }
    }

    /// Adds a file that another may replace: the directory of its name, and that of the file if its name is a link.
    fn add_replaceable(&mut self, path: &Path, access: Access) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let target = path.canonicalize().unwrap_or_else(|_| path.clone());
        for path in [&path, &target] {
            match path.parent() {
                // Everything is in `/`, and every device in `/dev`.
                Some(folder) if folder != Path::new("/") && !folder.starts_with("/dev") => self.add(folder, access),
                _ => self.add(path, access),
            }
        }
    }

    fn add(&mut self, path: impl AsRef<Path>, access: Access) {
        let path = path.as_ref();
        if !self.rules.iter().any(|rule| rule.path == path && rule.access.includes(access)) {
            self.rules.push(Rule { path: path.to_owned(), access, file: file_of(path) });
        }
    }

    /// Looks again which files the paths are, since some may have been created.
    pub fn look_again(&mut self) {
        self.rules.iter_mut().for_each(|rule| rule.file = file_of(&rule.path));
    }

    /// Looks up the users of scripts.
    ///
    /// # Errors
    /// A message with a remedy.
    pub fn look_up_users(&mut self) -> Result<(), String> {
        self.programs.users.iter_mut().try_for_each(|(name, identity)| {
            *identity = Some(identity_of(name)?);
            Ok(())
        })
    }

    /// Returns whether anything is limited for which the process manager must start programs.
    pub fn is_needed(&self) -> bool {
        self.limits_files || self.limits_calls.is_some() || !self.programs.users.is_empty()
    }

    /// Limits this thread, and all that it starts, forever, in what is limited and the kernel can limit. Returns a message for what it cannot,
    /// which is then not limited. Must be called while there is one thread.
    ///
    /// # Errors
    /// A message.
    pub fn enforce(&mut self) -> Result<Vec<&'static str>, String> {
        let mut missing = Vec::new();
        if self.limits_files {
            let rules = self.rules.iter().map(|rule| (rule.path.as_path(), rule.access));
            let enforced = landlock::restrict(rules);
            self.limits_files =
                enforced.map_err(|error| format!("cannot limit the files of this server (Landlock): {error}"))?;
            if !self.limits_files {
                missing.push(
                    "Landlock is not in force, as this kernel does not support it: it needs Linux 5.13 with CONFIG_SECURITY_LANDLOCK, and \
                     `landlock` in `lsm=` of its command line",
                );
            }
        }
        // Last, as the limits on files are system calls too.
        if let Some(refusal) = self.limits_calls {
            let enforced = seccomp::restrict(refusal);
            if !enforced.map_err(|error| format!("cannot limit the system calls of this server (seccomp): {error}"))? {
                self.limits_calls = None;
                missing.push(
                    "seccomp is not in force, as this kernel does not support it: it needs CONFIG_SECCOMP_FILTER",
                );
            }
        }
        Ok(missing)
    }

    /// Tests whether a server that is limited to these files may open those of another configuration.
    ///
    /// # Errors
    /// A message with a remedy: a file that it may not open.
    pub fn admits(&self, other: &Confinement) -> Result<(), String> {
        let is_new = |rule: &&Rule| self.limits_files && rule.file.is_some() && !self.includes(rule);
        match other.rules.iter().find(is_new) {
            None if !self.programs.includes(&other.programs) => Err(
                "applications, and variables, users and directories of scripts are limited to those at the start of this server \
                 (`contain.landlock`, `contain.seccomp`, or `user` in `[[site.app]]`): restart it, or `amped upgrade`"
                    .to_owned(),
            ),
            None => Ok(()),
            Some(rule) => Err(format!(
                "{} is not among the files that this server was limited to at its start (`contain.landlock`), or was replaced since \
                 then: restart it, or `amped upgrade`",
                rule.path.display()
            )),
        }
    }

    fn includes(&self, other: &Rule) -> bool {
        let Ok(path) = other.path.canonicalize() else { return false };
        path.ancestors().any(|folder| {
            let file = file_of(folder);
            file.is_some() && self.rules.iter().any(|rule| rule.file == file && rule.access.includes(other.access))
        })
    }
}

/// Returns device and inode.
fn file_of(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|file| (file.dev(), file.ino()))
}

fn identity_of(name: &str) -> Result<Identity, String> {
    if !process::is_root() {
        return Err(format!(
            "only root can start scripts as user {name}: start the server as root, with `user` for the server itself, or remove `user` in \
             `[[site.app]]`; an upgrade cannot have it"
        ));
    }
    let (c_name, user) = look_up_user(name, " of scripts")?;
    if user.uid == 0 {
        return Err(format!("scripts cannot run as {name}: use a user without privileges"));
    }
    Identity::of(&c_name, &user).map_err(|error| format!("cannot look up user {name} of scripts: {error}"))
}

/// Looks up a user. `whose`: what a message says after the name.
///
/// # Errors
/// A message with a remedy.
pub fn look_up_user(name: &str, whose: &str) -> Result<(CString, User), String> {
    let c_name = process::c_string(name).ok_or_else(|| format!("{name:?} is not a valid name"))?;
    let user = process::user(&c_name).map_err(|error| format!("cannot look up user {name}{whose}: {error}"))?;
    let user = user.ok_or_else(|| format!("user {name}{whose} does not exist (`getent passwd` lists all users)"))?;
    Ok((c_name, user))
}

/// Returns the programs of these settings.
fn programs(settings: &Settings, program: &Program) -> Permitted {
    let mut programs = Permitted { successor: program.command(), ..Permitted::default() };
    programs.acme = acme::program().unwrap_or_default();
    for app in settings.apps.iter().flatten() {
        match &app.kind {
            AppKind::Cgi => {
                let variables = app.env.iter().map(|(name, value)| variable(name.as_bytes(), value.as_bytes()));
                programs.variables.extend(variables);
                programs.users.extend(app.user.iter().map(|user| (user.clone(), None)));
                programs.scripts = settings.roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
            }
            AppKind::Command(command) => programs.applications.push((command.clone(), app.env.clone())),
            AppKind::Unix(_) | AppKind::Tcp(_) | AppKind::Http(_) => {}
        }
    }
    programs
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn rules(list: &[(&Path, Access)]) -> Confinement {
        let (limits_calls, programs) = (None, Permitted::default());
        let mut files = Confinement { limits_files: true, limits_calls, rules: Vec::new(), programs };
        list.iter().for_each(|(path, access)| files.add(path, *access));
        files
    }

    #[test]
    fn only_files_of_the_start_are_admitted() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a/inner", "b", "c"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        symlink(at("b"), at("link")).unwrap();
        let mut start = rules(&[(&at("a"), Access::Read), (&at("link"), Access::Read), (&at("late"), Access::Read)]);
        // Created after the rules were made, and before they are enforced.
        fs::create_dir(at("late")).unwrap();
        assert!(start.admits(&rules(&[(&at("late"), Access::Read)])).is_err());
        start.look_again();
        let check = |name: &str, access: Access| start.admits(&rules(&[(&at(name), access)])).is_ok();
        for name in ["a", "a/inner", "b", "link", "late", "missing"] {
            assert!(check(name, Access::Read), "{name}");
        }
        assert!(!check("c", Access::Read) && !check("a", Access::Write) && !check("", Access::Read));
        // Neither one that another has replaced, nor a link that leads elsewhere.
        fs::rename(at("a"), at("old")).unwrap();
        fs::create_dir(at("a")).unwrap();
        fs::remove_file(at("link")).unwrap();
        symlink(at("c"), at("link")).unwrap();
        assert!(!check("a", Access::Read) && !check("link", Access::Read) && check("old", Access::Read));
    }

    #[test]
    fn replaceable_file_admits_directory_of_name_and_of_target() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        for name in ["live", "archive"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("archive/cert1"), "").unwrap();
        symlink("../archive/cert1", at("live/cert")).unwrap();
        let mut files = rules(&[]);
        files.add_replaceable(&at("live/cert"), Access::Read);
        files.add_replaceable(Path::new("/dev/null"), Access::Create);
        files.add_replaceable(Path::new("/file"), Access::Create);
        let paths: Vec<_> = files.rules.iter().map(|rule| rule.path.clone()).collect();
        assert_eq!(paths, [at("live"), at("archive"), "/dev/null".into(), "/file".into()]);
    }
}
