//! `cargo xtask package`: Debian packages of the server and the laboratory, an archive for other systems, and an image of
//! the server for containers (`image`).
//!
//! Each package is a tree of files, which `dpkg-deb` packs. The files that are not built are in `packaging`; manual pages and
//! completions are those of `cargo xtask man`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Outcome, cargo, output, program, root, run as run_command, target_dir};
use crate::tree::{VERSION, add_program, install, write};
use crate::{image, man};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Package the programs of the debug profile, which a test needs
    #[arg(long)]
    debug: bool,
    /// Write into DIR [default: package in the target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Files of the server's package from `packaging`: name there, name in the package, mode.
const FILES: &[(&str, &str, u32)] = &[
    ("packaging/amped.toml", "etc/amped/amped.toml", 0o644),
    ("packaging/sites/00-default.toml", "etc/amped/sites/00-default.toml", 0o644),
    ("packaging/amped.logrotate", "etc/logrotate.d/amped", 0o644),
    ("packaging/amped.service", "lib/systemd/system/amped.service", 0o644),
    ("packaging/html/index.html", "usr/share/amped/html/index.html", 0o644),
    ("packaging/debian/postinst", "DEBIAN/postinst", 0o755),
    ("packaging/debian/prerm", "DEBIAN/prerm", 0o755),
    ("packaging/debian/postrm", "DEBIAN/postrm", 0o755),
];

pub(crate) fn run(args: &Args) -> Outcome {
    let out = args.out.clone().unwrap_or_else(|| target_dir().join("package"));
    let mut build = cargo(&["build", "-p", "amped", "-p", "amped-acme", "-p", "ammeter", "--bins"]);
    if !args.debug {
        build.arg("--release");
    }
    run_command(&mut build)?;
    let programs = target_dir().join(if args.debug { "debug" } else { "release" });
    let mut files = package(&programs, &out, "xz")?;
    files.push(archive(&out)?);
    files.push(image::make(&programs, &out)?);
    for file in files {
        println!("{}", file.display());
    }
    Ok(())
}

/// Packs the programs of a directory with this compression of dpkg-deb(1), and returns the packages.
fn package(programs: &Path, out: &Path, compression: &str) -> Outcome<Vec<PathBuf>> {
    let (server, laboratory) = (out.join("amped"), out.join("ammeter"));
    for tree in [&server, &laboratory] {
        // An earlier run may have left files that do not belong to it any more.
        let _ = fs::remove_dir_all(tree);
    }
    for (tree, names) in [(&server, &["amped", "amped-acme"][..]), (&laboratory, &["ammeter"])] {
        for name in names {
            let doc = tree.join("usr/share/doc").join(names[0]);
            add_program(&programs.join(name), &tree.join("usr/bin"), &doc)?;
        }
        add_manual(out, tree, names[0])?;
    }
    for (from, to, mode) in FILES {
        install(&root().join(from), &server.join(to), *mode)?;
    }
    let about = "Web server whose event loop never waits for the disk\n HTTP/1 and HTTP/2, TLS with certificates that renew themselves, \
                 CGI, FastCGI and\n reverse proxy.";
    let conffiles = FILES.iter().filter(|(_, to, _)| to.starts_with("etc/")).map(|(_, to, _)| format!("/{to}\n"));
    write(&server.join("DEBIAN/conffiles"), &conffiles.collect::<String>())?;
    let server_deb = pack(
        &server,
        ["amped", "libc6 (>= 2.36), libgcc-s1, passwd", "ca-certificates, logrotate", about],
        out,
        compression,
    )?;
    let about = "Laboratory for web servers\n Load generator, monitor and emulated network, with experiments and their reports.";
    let laboratory_deb =
        pack(&laboratory, ["ammeter", "libc6 (>= 2.36), libgcc-s1", "amped", about], out, compression)?;
    Ok(vec![server_deb, laboratory_deb])
}

/// Adds manual pages and completions of a program.
fn add_manual(out: &Path, tree: &Path, name: &str) -> Outcome {
    let generated = out.join("generated");
    let _ = fs::remove_dir_all(&generated);
    for file in man::write(name, &generated)? {
        let page = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let to = match file.extension().and_then(|extension| extension.to_str()) {
            Some("1") => format!("usr/share/man/man1/{page}"),
            Some("bash") => format!("usr/share/bash-completion/completions/{name}"),
            Some("fish") => format!("usr/share/fish/vendor_completions.d/{page}"),
            _ => format!("usr/share/zsh/vendor-completions/{page}"),
        };
        let to = tree.join(to);
        install(&file, &to, 0o644)?;
        if page.ends_with(".1") {
            run_command(program("gzip").args(["-9", "--no-name", "--force"]).arg(&to))?;
        }
    }
    fs::remove_dir_all(&generated).map_err(|error| format!("cannot remove {}: {error}", generated.display()))
}

/// Makes a Debian package of a tree.
fn pack(tree: &Path, [name, depends, recommends, about]: [&str; 4], out: &Path, compression: &str) -> Outcome<PathBuf> {
    let architecture = output(program("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let control = format!(
        "Package: {name}\nVersion: {VERSION}\nArchitecture: {architecture}\nSection: httpd\nPriority: optional\n\
         Maintainer: The Amped developers <amped@localhost>\nDepends: {depends}\nRecommends: {recommends}\nDescription: {about}\n"
    );
    write(&tree.join("DEBIAN/control"), &control)?;
    let deb = out.join(format!("{name}_{VERSION}_{architecture}.deb"));
    run_command(
        program("dpkg-deb").args(["--build", "--root-owner-group"]).arg(format!("-Z{compression}")).arg(tree).arg(&deb),
    )?;
    Ok(deb)
}

/// Makes an archive of the programs with their pages and the files of the configuration.
fn archive(out: &Path) -> Outcome<PathBuf> {
    let name = format!("amped-{VERSION}-{}-linux", std::env::consts::ARCH);
    let file = out.join(format!("{name}.tar.xz"));
    let mut tar = program("tar");
    tar.args(["--create", "--xz", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--exclude=DEBIAN"]);
    tar.arg(format!("--transform=s,^\\.,{name},")).arg("--file").arg(&file);
    for tree in [out.join("amped"), out.join("ammeter")] {
        tar.arg("--directory").arg(tree).arg(".");
    }
    run_command(&mut tar)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::served::first_page;
    use std::process::Command;

    fn do_run(command: &mut Command) -> String {
        output(command).unwrap_or_else(|error| panic!("{error} (this test must run as root)"))
    }

    /// All files below a directory, without dpkg's own and the copies that useradd(8) makes; and all accounts.
    fn everything(root: &Path) -> String {
        let find = "cd \"$0\" && find . -path ./var/lib/dpkg -prune -o ! -name 'passwd-' ! -name 'group-' ! -name 'shadow-' \
                    ! -name 'gshadow-' ! -name .pwd.lock -print | sort && cat etc/passwd etc/group";
        do_run(Command::new("sh").args(["-c", find]).arg(root))
    }

    #[test]
    fn package_is_installed_serves_a_page_and_is_purged_without_trace() {
        let folder = std::env::temp_dir().join(format!("amped-package-{}", std::process::id()));
        let (out, root) = (folder.join("out"), folder.join("root"));
        let profile = std::env::current_exe().expect("this program");
        // target/debug/deps/xtask-...
        let programs = profile.ancestors().nth(2).expect("the directory of the profile");
        let files = package(programs, &out, "none").expect("`cargo build --workspace` has built all programs");
        for name in ["etc", "run/amped", "tmp", "var/log", "var/lib/dpkg/info", "var/lib/dpkg/updates"] {
            fs::create_dir_all(root.join(name)).expect("created");
        }
        for name in
            ["var/lib/dpkg/status", "var/lib/dpkg/available", "etc/passwd", "etc/group", "etc/shadow", "etc/gshadow"]
        {
            fs::write(root.join(name), "").expect("written");
        }
        // What the package depends on.
        let libraries = do_run(Command::new("ldd").arg(programs.join("amped")));
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            install(Path::new(library), &root.join(&library[1..]), 0o755).expect("copied");
        }
        let before = everything(&root);
        let dpkg = |arguments: &[&str]| {
            let mut dpkg = Command::new("dpkg");
            dpkg.arg(format!("--root={}", root.display())).args(["--force-script-chrootless", "--force-depends"]);
            do_run(dpkg.arg("--log=/dev/null").args(arguments));
        };
        dpkg(&["--install", files[0].to_str().expect("text"), files[1].to_str().expect("text")]);

        let passwd = fs::read_to_string(root.join("etc/passwd")).expect("read");
        let ids: Vec<&str> = passwd.strip_prefix("amped:").expect("the user").split(':').collect();
        let ids = format!("{}:{}", ids[1], ids[2]);
        // systemd does so (`RuntimeDirectory`).
        do_run(Command::new("chown").arg(ids).arg(root.join("run/amped")));
        let mut serve = Command::new("chroot");
        serve.arg(&root).args(["/usr/bin/amped", "serve", "--config", "/etc/amped/amped.toml", "--user", "amped"]);
        let response = first_page(&mut serve);
        assert!(response.starts_with("HTTP/1.1 200 ") && response.contains("amped is running"), "{response}");
        // A server that is killed leaves it; /run is empty after a restart.
        let _ = fs::remove_file(root.join("run/amped/control"));

        dpkg(&["--remove", "amped", "ammeter"]);
        assert!(root.join("etc/amped/amped.toml").exists(), "the configuration stays until the purge");
        dpkg(&["--purge", "amped"]);
        assert_eq!(everything(&root), before);
        fs::remove_dir_all(folder).expect("removed");
    }

    /// Runs a script of the package, as dpkg(1) does on a machine with systemd, in a mount namespace of its own.
    /// Commands that would change the machine are only recorded. Returns them, and the script's standard error.
    /// `failing`: the commands that fail.
    fn run_script(folder: &Path, script: &str, arguments: &[&str], failing: &[&str]) -> (String, String) {
        let commands = folder.join("commands");
        let fake = "#!/bin/sh\necho \"${0##*/} $*\" >>\"$COMMANDS\"\ncase \"$FAILING\" in *\"<${0##*/} $*>\"*) exit 1;; esac\n";
        for name in ["amped", "chown", "runuser", "systemctl", "useradd"] {
            let path = folder.join("bin").join(name);
            write(&path, fake).expect("written");
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
        }
        fs::create_dir_all(folder.join("etc")).expect("created");
        let _ = fs::remove_file(&commands);
        let prepare = "for path in /etc /run /var/lib /var/log; do mount -t tmpfs none $path; done\n\
                       mkdir -p /run/systemd/system /etc/amped; touch /etc/passwd; mount --bind \"$0/etc\" /etc/amped\n\
                       exec sh \"$@\"";
        let mut run = Command::new("unshare");
        run.args(["--mount", "sh", "-ec", prepare]).arg(folder);
        run.arg(root().join("packaging/debian").join(script)).args(arguments);
        let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let failing: String = failing.iter().map(|command| format!("<{command}>")).collect();
        run.env("PATH", path).env("COMMANDS", &commands).env("FAILING", failing).env_remove("DPKG_ROOT");
        let done = run.output().expect("started");
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{stderr} (this test must run as root)");
        (fs::read_to_string(&commands).unwrap_or_default(), stderr)
    }

    #[test]
    fn upgrade_of_package_never_stops_server_that_would_not_start_again() {
        let folder = std::env::temp_dir().join(format!("amped-postinst-{}", std::process::id()));
        let upgrade = |failing: &[&str]| run_script(&folder, "postinst", &["configure", "0.0.9"], failing);
        let restart = "systemctl restart amped.service";
        let (commands, _) = upgrade(&[]);
        assert!(commands.contains("amped upgrade\n") && !commands.contains(restart), "{commands}");
        let (commands, _) = upgrade(&["amped upgrade"]);
        assert!(commands.contains(restart), "{commands}");
        let check = "runuser -u amped -- amped check --config /etc/amped/amped.toml";
        let (commands, stderr) = upgrade(&["amped upgrade", check]);
        assert!(commands.contains(check) && !commands.contains(restart), "{commands}");
        assert!(stderr.contains("was not upgraded"), "{stderr}");
        let (commands, _) = upgrade(&["systemctl --quiet is-active amped.service"]);
        assert!(!commands.contains("amped upgrade") && !commands.contains("systemctl start"), "{commands}");
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn package_that_was_removed_is_enabled_and_started_by_next_installation() {
        let folder = std::env::temp_dir().join(format!("amped-prerm-{}", std::process::id()));
        let run =
            |script: &str, arguments: &[&str], failing: &[&str]| run_script(&folder, script, arguments, failing).0;
        let is_started = |commands: &str| {
            ["enable", "start"].map(|order| commands.contains(&format!("systemctl {order} amped.service")))
        };
        assert_eq!(is_started(&run("postinst", &["configure", ""], &[])), [true; 2]);
        assert!(run("prerm", &["remove"], &[]).contains("systemctl disable --now amped.service"));
        assert_eq!(is_started(&run("postinst", &["configure", "0.0.9"], &[])), [true; 2]);
        assert_eq!(is_started(&run("postinst", &["configure", "0.0.9"], &[])), [false; 2]);
        // The administrator had disabled it.
        run("prerm", &["remove"], &["systemctl --quiet is-enabled amped.service"]);
        assert_eq!(is_started(&run("postinst", &["configure", "0.0.9"], &[])), [false; 2]);
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn only_server_itself_is_signalled() {
        let text = |name: &str| fs::read_to_string(root().join(name)).expect("read");
        for name in ["packaging/amped.service", "docs/operating.md"] {
            assert!(text(name).contains("\nKillMode=mixed\n"), "{name}");
        }
        for name in ["packaging/amped.logrotate", "docs/operating.md"] {
            let text = text(name);
            let mut lines = text.lines().filter(|line| line.contains("systemctl kill"));
            assert!(lines.all(|line| line.contains("--kill-whom=main")), "{name}");
        }
    }

    #[test]
    fn unit_is_valid_and_confined() {
        let unit = root().join("packaging/amped.service");
        // In tenths: 2.0 of 10.
        do_run(
            program("systemd-analyze").args(["security", "--offline=true", "--threshold=20", "--no-pager"]).arg(&unit),
        );
        // `verify` requires that the programs exist.
        let folder = std::env::temp_dir().join(format!("amped-unit-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("created");
        let text = fs::read_to_string(&unit).expect("read").replace("/usr/bin/amped", "/bin/true");
        fs::write(folder.join("amped.service"), text).expect("written");
        // With the drop-in of the manual.
        let manual = fs::read_to_string(root().join("docs/operating.md")).expect("read");
        let drop_in =
            manual.split("```ini\n").find(|block| block.contains("User=root")).expect("a drop-in for scripts");
        let drop_in: String =
            drop_in.lines().take_while(|line| line.trim() != "```").map(|line| format!("{}\n", line.trim())).collect();
        write(&folder.join("amped.service.d/scripts.conf"), &drop_in).expect("written");
        let mut verify = Command::new("systemd-analyze");
        let verified = verify.args(["verify", "--man=no"]).arg(folder.join("amped.service")).output().expect("started");
        // For unknown keys and values it prints only a warning.
        let said = String::from_utf8_lossy(&verified.stderr);
        assert!(verified.status.success() && !said.contains("ignoring"), "{said}");
        fs::remove_dir_all(folder).expect("removed");
    }
}
