//! The command line and the configuration file: both have the same meaning, and errors name their place.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::harness::*;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns what `amped serve --print-config` prints with these arguments.
fn printed(args: &[&str]) -> String {
    let ended = run(&[&["serve", "--print-config"], args].concat());
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{args:?}");
    ended.stdout
}

/// Parses `FILE:LINE:COLUMN: message` for each problem reported about `file`.
fn places(stderr: &str, file: &Path) -> Vec<(usize, usize, String)> {
    let of_file = format!("{}:", file.display());
    let place = |line: &str| {
        let mut parts = line.strip_prefix(&of_file)?.splitn(3, ':');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.trim().to_owned()))
    };
    stderr.lines().filter_map(place).collect()
}

#[test]
fn equivalent_flags_and_file_have_same_effect() {
    let site = Site::new();
    let logs = Site::new();
    let log = logs.path().join("access.log");
    let check = |flags: &[&str], toml: &str| {
        let config = site.file("amped.toml", toml);
        assert_eq!(printed(flags), printed(&["--config", text(&config)]), "{flags:?}");
    };
    let dir = text(site.path());
    check(&[dir], "root = \".\"");
    check(
        &[dir, "--listen", "127.0.0.1:81", "--listen=[::1]:82", "--listen", "*:83"],
        "root = \".\"\nlisten = [\"127.0.0.1:81\", \"[::1]:82\", \"*:83\"]",
    );
    check(&[dir, "--workers", "3", "--helpers", "5"], "root = \".\"\nworkers = 3\n[helpers]\nmax = 5");
    check(&[dir, "--helpers-kind", "processes"], "root = \".\"\n[helpers]\nkind = \"processes\"");
    check(&[dir, "--helpers", "1"], "root = \".\"\n[helpers]\nmax = 1\nmin_spare = 1");
    check(
        &[dir, "--architecture", "amped", "--user", "nobody"],
        "root = \".\"\narchitecture = \"amped\"\nuser = \"nobody\"",
    );
    check(&[dir, "--listing"], "[[site]]\nroot = \".\"\nlisting = true");
    check(
        &[dir, "--access-log", text(&log), "--log-format", "json"],
        &format!("root = \".\"\n[log]\naccess = {:?}\nformat = \"json\"", text(&log)),
    );
    check(&[dir, "--access-log", "-"], "root = \".\"\n[log]\naccess = \"-\"");
    check(&[dir, "--access-log", "off"], "root = \".\"\n[log]\naccess = \"off\"");
}

#[test]
fn flag_overrides_file() {
    let (site, other) = (Site::new(), Site::new());
    let config = site.file(
        "amped.toml",
        "root = \".\"\nlisten = [\"127.0.0.1:81\"]\nworkers = 2\nuser = \"root\"\n[helpers]\nmax = 4\n\
         [log]\naccess = \"a.log\"\nformat = \"common\"\n[limits]\nmax_header_fields = 7\n",
    );
    let page = printed(&[
        text(other.path()),
        "--config",
        text(&config),
        "--listen",
        "127.0.0.1:82",
        "--workers",
        "3",
        "--user",
        "nobody",
        "--helpers",
        "9",
        "--access-log",
        "-",
        "--log-format",
        "json",
        "--listing",
    ]);
    let root = format!("root = {:?}", text(other.path()));
    for line in [
        "listen = [\"127.0.0.1:82\"]",
        "workers = 3",
        "user = \"nobody\"",
        "max = 9",
        "access = \"-\"",
        "format = \"json\"",
        "listing = true",
        &root,
        // Values without a flag stay.
        "max_header_fields = 7",
    ] {
        assert!(page.lines().any(|found| found.split("  #").next().unwrap().trim_end() == line), "{line}:\n{page}");
    }
    assert!(!page.contains(":81") && !page.contains("a.log"), "{page}");
}

#[test]
fn printed_configuration_is_valid_and_stable() {
    let site = Site::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/amped.toml");
    for args in [
        &[text(site.path())][..],
        &["--config", text(&example)],
        &[text(site.path()), "--workers=2", "--listing", "--user=nobody"],
    ] {
        let page = printed(args);
        let file = site.file("printed.toml", &page);
        let ended = run(&["check", "--config", text(&file)]);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
        assert_eq!(printed(&["--config", text(&file)]), page);
    }
}

#[test]
fn check_accepts_valid_file() {
    let site = Site::new();
    let file = site.file("amped.toml", "root = \".\"\nlisten = [\"127.0.0.1:81\", \"[::1]:81\"]");
    let ended = run(&["check", "--config", text(&file)]);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    assert_eq!(ended.stdout, format!("{}: ok\n1 site on 127.0.0.1:81, [::1]:81\n", file.display()));
}

#[test]
fn certificates_are_described() {
    let site = Site::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut certificate = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    certificate.not_after = rcgen::date_time_ymd(2016, 2, 29);
    let pem = site.file("a.pem", certificate.self_signed(&key).unwrap().pem());
    site.file("a.key", key.serialize_pem());
    let config = "listen = [\"127.0.0.1:443 tls\"]\n\
         [[site]]\nroot = \"root\"\nhosts = [\"a.example\"]\ncertificate = [\"a.pem\"]\nkey = [\"a.key\"]\n\
         [[site]]\nroot = \"root\"\nhosts = [\"b.example\"]\n";
    site.file("root/page.html", "");
    let file = site.file("amped.toml", config);
    let ended = run(&["check", "--config", text(&file)]);
    // A server with an expired certificate is better than none.
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    for line in [
        "PEM: a.example (ECDSA, until 2016-02-29, 0 days left)",
        "warning: PEM: the certificate has expired: clients refuse it",
        "warning: PEM: the certificate is self-signed: only clients that trust it explicitly accept it",
        "warning: PEM: the certificate also serves b.example, which is not among its names: clients that use this name \
         refuse it",
    ] {
        let line = line.replace("PEM", text(&pem));
        assert!(ended.stdout.lines().any(|found| found == line), "{line} is not in:\n{}", ended.stdout);
    }
}

#[test]
fn check_warns_about_proxies_that_are_everyone() {
    let site = Site::new();
    let check = |proxies: &str, expected: &[&str]| {
        let file = site.file("amped.toml", format!("root = \".\"\ntrusted_proxies = {proxies}"));
        let ended = run(&["check", "--config", text(&file)]);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
        let warnings: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("warning: ")).collect();
        let expected: Vec<String> = expected
            .iter()
            .map(|network| {
                format!("warning: trusted_proxies: {network} trusts every client to name its own address; list only your proxies")
            })
            .collect();
        assert_eq!(warnings, expected);
    };
    check("[\"10.0.0.0/8\", \"::1\"]", &[]);
    check("[\"10.0.0.0/8\", \"0.0.0.0/0\", \"::/0\"]", &["0.0.0.0/0", "::/0"]);
}

#[test]
fn check_warns_about_static_paths_after_all_applications() {
    let site = Site::new();
    let [files, app] = ["match = '/st/**'\nstatic = true\n", "match = '*.cgi'\ncgi = true\n"];
    for (tables, count) in [([files, app], 0), ([app, files], 1)] {
        let tables = tables.map(|keys| format!("[[site.app]]\n{keys}")).concat();
        let file = site.file("amped.toml", format!("[[site]]\nroot = \".\"\n{tables}"));
        let ended = run(&["check", "--config", text(&file)]);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
        let warning = "warning: /st/**: `static` has no effect";
        assert_eq!(ended.stdout.matches(warning).count(), count, "{}", ended.stdout);
    }
}

#[test]
fn check_warns_about_entries_and_rejects_costly_hash() {
    let (site, folder) = (Site::new(), Site::new());
    let users =
        folder.file("users", "ann:$2y$05$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234\nbob:rqXexS6ZhobKA\n");
    let text_of =
        |users: &Path| format!("[[site]]\nroot = \".\"\n[[site.auth]]\ndirectory = \"/\"\naccounts = {users:?}\n");
    let file = site.file("amped.toml", text_of(&users));
    let ended = run(&["check", "--config", text(&file)]);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    assert!(ended.stdout.contains(&format!("warning: {}:2: invalid entry", users.display())), "{}", ended.stdout);
    let costly = format!("\nann:$6$rounds=999999999$salt${}\n", "a".repeat(86));
    fs::write(&users, costly).unwrap();
    let ended = run(&["check", "--config", text(&file)]);
    assert_eq!((ended.status, ended.stdout.as_str()), (1, ""));
    assert!(ended.stderr.contains(&format!("{}:2: invalid entry", users.display())), "{}", ended.stderr);
    // An accounts file within the root could be downloaded, also through a link.
    let inside = site.file("private/users", "");
    let linked = site.path().join("linked");
    std::os::unix::fs::symlink(&users, &linked).unwrap();
    for users in [inside, linked] {
        let file = folder.file("amped.toml", text_of(&users).replace("\".\"", &format!("{:?}", site.path())));
        let ended = run(&["check", "--config", text(&file)]);
        assert_eq!((ended.status, ended.stdout.as_str()), (1, ""));
        assert!(ended.stderr.contains("amped.toml:5:12: the accounts file"), "{}", ended.stderr);
        assert!(ended.stderr.contains("is below the root"), "{}", ended.stderr);
    }
}

#[test]
fn empty_values_and_too_many_workers_are_rejected_with_hint() {
    let site = Site::new();
    let refused = |toml: &str, says: &[&str]| {
        let file = site.file("amped.toml", toml);
        let ended = run(&["check", "--config", text(&file)]);
        assert_eq!(ended.status, 1, "{toml}");
        assert!(says.iter().all(|says| ended.stderr.contains(says)), "{}", ended.stderr);
    };
    refused(
        "root = \".\"\nworkers = 100000",
        &["amped.toml:2:11: `workers` cannot be 100000", "help: write a value from 1 to 4096"],
    );
    refused("root = \".\"\nlog.access = \"\"", &["amped.toml:2:14: `access` is empty", "\"off\""]);
    let headers = "[[site]]\nroot = \".\"\n[[site.headers]]\nmatch = \"*\"\ncache_control = \"\"";
    refused(headers, &["amped.toml:5:17: `` is not a valid Cache-Control value", "no-cache"]);
    let auth = "[[site]]\nroot = \".\"\n[[site.auth]]\ndirectory = \"/\"\naccounts = \"\"";
    refused(auth, &["amped.toml:5:12: `accounts` is empty", "htpasswd -B"]);
    for (flags, says) in [
        (&["--workers", "100000"][..], "--workers: `workers` cannot be 100000"),
        (&["--access-log", ""], "--access-log: `access` is empty"),
    ] {
        let ended = run(&[&["serve", text(site.path())], flags].concat());
        assert_eq!((ended.status, ended.stderr.contains(says)), (2, true), "{}", ended.stderr);
    }
}

#[test]
fn check_reports_each_error_with_line_and_column() {
    // The tests of the configuration check the reports themselves; this one checks that the program prints them.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/config");
    let mut kinds = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        kinds += 1;
        let ended = run(&["check", "--config", text(&file)]);
        assert_eq!((ended.status, ended.stdout.as_str()), (1, ""), "{}", file.display());
        let length = fs::read_to_string(&file).unwrap().lines().count();
        let found = places(&ended.stderr, &file);
        assert!(!found.is_empty(), "no place in:\n{}", ended.stderr);
        for (line, column, message) in found {
            assert!(
                (1..=length + 1).contains(&line) && column > 0 && !message.is_empty(),
                "{line}:{column}: {message}"
            );
        }
        // The server does not start either.
        let served = run(&["serve", "--config", text(&file)]);
        assert_eq!((served.status, served.stderr), (1, ended.stderr));
    }
    assert!(kinds >= 12, "{kinds}");
}

#[test]
fn each_error_has_position_and_hint() {
    let site = Site::new();
    site.file("a.txt", "");
    let check = |toml: &str, line: usize, column: usize, says: &[&str]| {
        let file = site.file("amped.toml", toml);
        let ended = run(&["check", "--config", text(&file)]);
        assert_eq!((ended.status, ended.stdout.as_str()), (1, ""), "{toml}");
        let found = places(&ended.stderr, &file);
        assert_eq!(
            found.iter().map(|(line, column, _)| (*line, *column)).collect::<Vec<_>>(),
            [(line, column)],
            "{}",
            ended.stderr
        );
        for text in says {
            assert!(ended.stderr.contains(text), "{text:?} is missing:\n{}", ended.stderr);
        }
    };
    check("root = \".\"\n\nworker = 2\n", 3, 1, &["`worker`", "`workers`"]);
    check("root = \".\"\nworkers = 0\n", 2, 11, &["workers"]);
    check("root = \".\"\nworkers = \"two\"\n", 2, 11, &[]);
    check("root = \".\"\n[limits]\nidle_timeout = \"5 parsecs\"\n", 3, 16, &["5 parsecs"]);
    check("root = \"a.txt\"\n", 1, 8, &["is a file", "use its directory"]);
    check("root = \"none\"\n", 1, 8, &["does not exist", "create it, or correct the path"]);
    check("listen = [\"127.0.0.1:81\"]\n", 1, 1, &["no directory to serve", "root = "]);
    // Columns count characters, not bytes.
    check("[[site]]\nroot = \".\"\nindex = [\"é\", \"a/b\"]\n", 3, 15, &["a/b"]);
    // All errors are reported at once.
    let file = site.file("amped.toml", "root = \"none\"\nworkers = 0\n[log]\nformat = \"x\"\n");
    let ended = run(&["check", "--config", text(&file)]);
    assert_eq!(places(&ended.stderr, &file).len(), 3, "{}", ended.stderr);
    assert!(ended.stderr.ends_with("3 problems\n"), "{}", ended.stderr);
}

/// A site that serves everything, with this host name.
fn site_of(host: &str) -> String {
    format!("[[site]]\nhosts = [\"{host}\"]\nroot = \".\"\n")
}

#[test]
fn included_files_are_read_in_name_order() {
    let folder = Site::new();
    let main = folder.file("amped.toml", "include = [\"first.toml\", \"sites/*.toml\"]\n");
    folder.file("first.toml", site_of("first.test"));
    for name in ["b.toml", "a.toml", ".hidden.toml", "c.toml.bak"] {
        folder.file(&format!("sites/{name}"), site_of(&format!("{name}.test")));
    }
    fs::create_dir(folder.path().join("sites/d.toml")).unwrap();
    let ended = run(&["check", "--config", text(&main)]);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    let included: Vec<&str> = ended.stdout.lines().filter_map(|line| line.strip_prefix("included: ")).collect();
    let expected = ["first.toml", "sites/a.toml", "sites/b.toml"].map(|name| folder.path().join(name));
    assert_eq!(included, expected.each_ref().map(|path| text(path)));
    // The printed configuration is one file with all sites, and paths relative to the directory of the main file.
    let page = printed(&["--config", text(&main)]);
    let hosts: Vec<&str> =
        page.lines().filter(|line| line.starts_with("hosts = ")).map(|line| line.split('"').nth(1).unwrap()).collect();
    assert_eq!(hosts, ["first.test", "a.toml.test", "b.toml.test"]);
    assert_eq!(page.matches(&format!("root = {:?}", text(folder.path()))).count(), 3, "{page}");
    let whole = folder.file("whole.toml", &page);
    assert_eq!(printed(&["--config", text(&whole)]), page);
    // A pattern may match nothing, even in a directory that does not exist.
    folder.file("amped.toml", "root = \".\"\ninclude = [\"none/*.toml\", \"sites/*.none\"]\n");
    assert_eq!(run(&["check", "--config", text(&main)]).status, 0);
}

#[test]
fn errors_of_included_files_have_their_position() {
    let folder = Site::new();
    let main = folder.file("amped.toml", "root = \".\"\ninclude = [\"sites/*.toml\"]\n");
    let first = folder.file("sites/a.toml", site_of("a.test"));
    let second = folder.path().join("sites/b.toml");
    let check = |main_text: &str, second_text: &str, file: &Path, expected: &[(usize, usize)], says: &[&str]| {
        fs::write(&main, main_text).unwrap();
        fs::write(&second, second_text).unwrap();
        let ended = run(&["check", "--config", text(&main)]);
        assert_eq!((ended.status, ended.stdout.as_str()), (1, ""), "{main_text}{second_text}");
        let found: Vec<_> = places(&ended.stderr, file).iter().map(|(line, column, _)| (*line, *column)).collect();
        // toml decides where a syntax error is.
        assert!(found == expected || (expected.is_empty() && found.len() == 1), "{}", ended.stderr);
        for text in says {
            assert!(ended.stderr.contains(text), "{text:?} is missing:\n{}", ended.stderr);
        }
    };
    let include = "root = \".\"\ninclude = [\"sites/*.toml\"]\n";
    let b = site_of("b.test");
    check(include, &format!("# é\n{b}indx = []\n"), &second, &[(5, 1)], &["`indx`", "did you mean `index`?"]);
    check(include, &format!("{b}index = [\n"), &second, &[], &[]);
    check(include, "[[site.app]]\ncgi = true\n", &second, &[(1, 3)], &["belongs to no site"]);
    check(include, &format!("workers = 2\n{b}"), &second, &[(1, 1)], &["`workers` cannot be set in an included file"]);
    check(include, &format!("include = []\n{b}"), &second, &[(1, 1)], &["`include` cannot be set"]);
    // The other place of a conflict is in another file.
    let earlier = format!("{}:2:", first.display());
    check(include, &site_of("a.test"), &second, &[(2, 10)], &["a.test", &earlier]);
    // Errors in several files are reported at once, each with its own lines.
    let two = format!("{include}wrkers = 1\n");
    check(&two, &site_of("").replace(".\"", "none\""), &main, &[(3, 1)], &["wrkers = 1", "none"]);
    // What is wrong with `include` itself.
    for (value, says) in [
        ("\"none.toml\"", "cannot read the included file"),
        ("\"sites\"", "name its files: add"),
        ("\"*/a.toml\"", "is a pattern"),
        ("\"sites/\"", "names no file"),
        ("\"sites/{a.toml\"", "invalid pattern"),
    ] {
        check(&format!("root = \".\"\ninclude = [{value}]\n"), &b, &main, &[(2, 12)], &[says]);
    }
    std::os::unix::fs::symlink("nowhere", folder.path().join("sites/c.toml")).unwrap();
    check(include, &b, &main, &[(2, 12)], &["cannot read the included file", "sites/c.toml"]);
}

#[test]
fn wrong_usage_exits_with_2_and_suggests_option() {
    let check = |args: &[&str], says: &[&str]| {
        let ended = run(args);
        assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{args:?} {ended:?}");
        for text in says {
            assert!(ended.stderr.contains(text), "{args:?}: {text:?} is missing:\n{}", ended.stderr);
        }
    };
    check(&["serve", ".", "--lisning"], &["--lisning", "--listing"]);
    check(&["serve", ".", "--listen", "8080"], &["8080", "*:8080"]);
    check(&["serve", ".", "--workers", "0"], &["--workers"]);
    check(&["serve", ".", "--architecture", "best"], &["best", "amped"]);
    check(&["check"], &["--config"]);
    check(&["sevre"], &["sevre", "serve"]);
    check(&["serve"], &["no directory to serve", "amped serve DIRECTORY", "--config FILE"]);
}

#[test]
fn no_arguments_prints_help_with_example() {
    let ended = run(&[]);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    for says in ["Usage: amped", "serve", "check", "Examples:", "amped serve examples/site"] {
        assert!(ended.stdout.contains(says), "{says:?} is missing:\n{}", ended.stdout);
    }
    for args in [&["--help"][..], &["serve", "--help"], &["check", "--help"], &["--version"]] {
        let ended = run(args);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{args:?}");
        assert!(!ended.stdout.is_empty());
    }
}

#[test]
fn closed_output_pipe_is_no_error() {
    let site = Site::new();
    let config = site.file("amped.toml", "root = \".\"");
    for args in [
        &["serve", "--print-config", text(site.path())][..],
        &["check", "--config", text(&config)],
        &["--help"],
        &["serve", "--help"],
        &[],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = program().args(args).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
    // Through a shell, as users run it.
    let output = Command::new("sh")
        .args([
            "-c",
            "\"$0\" serve --print-config \"$1\" | head -n 1",
            text(Path::new(program().get_program())),
            text(site.path()),
        ])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
}

#[test]
fn full_disk_on_standard_output_is_an_error() {
    let site = Site::new();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = program()
        .args(["serve", "--print-config", text(site.path())])
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"));
}

#[test]
fn flags_and_file_give_same_responses() {
    let site = Site::new();
    site.file("folder/a.txt", "hello");
    let flags = Server::start(&[text(site.path()), "--listing"]);
    let file = Server::configured(&site, "[[site]]\nhosts = [\"x.test\"]\nroot = \"/\"\n");
    assert_eq!((flags.get("/folder/a.txt").text(), file.get("/folder/a.txt").text()), ("hello".into(), "hello".into()));
    assert_eq!((flags.get("/folder/").status, file.get("/folder/").status), (200, 403));
}
