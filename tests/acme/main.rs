//! `amped` and `amped-acme` with a real CA: pebble, the test server of Let's Encrypt.
//!
//! Each test has its own CA, with a name server that leads every name to this machine, and its own ports. What is
//! obtained is verified by curl, which trusts only the root of that CA.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]
#![allow(dead_code, reason = "these tests use only part of the harness")]

mod ca;

#[path = "../wire/harness.rs"]
mod harness;

#[path = "../ports.rs"]
mod ports;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use ca::Ca;
use harness::{Client, Ended, Server, need_root, parent_of, run, wait_until};

/// A site that obtains its certificate, and everything that could be in the way of http-01.
const SITE: &str =
    "[[site]]\nroot = \"root\"\nhosts = [\"a.example\", \"www.a.example\"]\nacme = true\nredirect_to_https = true\n";

const HTTP: &str = "challenge = \"http-01\"";
const ALPN: &str = "challenge = \"tls-alpn-01\"";

const LONG: u32 = 90 * 86_400;

const ARCHITECTURES: [&str; 4] = ["amped", "sped", "mt", "mp"];

fn architecture(name: &str) -> String {
    let workers = if matches!(name, "mt" | "mp") { "workers = 8" } else { "workers = 2" };
    format!("architecture = \"{name}\"\n{workers}")
}

/// The ACME process of a server.
fn acme_process(server: &Server) -> Option<u32> {
    let is_acme = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "amped-acme\n");
    server.children().into_iter().find(is_acme)
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

/// Runs `amped acme` with these words.
fn command(ca: &Ca, words: &[&str]) -> Ended {
    run(&[&["acme"], words, &["--control", ca.control().to_str().unwrap()]].concat())
}

fn count(server: &Server, text: &str) -> usize {
    server.said().matches(text).count()
}

const OBTAINED: &str = "acme: obtained a certificate for a.example, www.a.example";

#[test]
fn http_01_obtains_certificate_in_every_architecture() {
    let ca = Ca::running(LONG);
    fs::write(ca.path().join("passwords"), "").unwrap();
    let site = format!("{SITE}[[site.auth]]\ndirectory = \"/.well-known/\"\naccounts = \"passwords\"\n");
    for name in ARCHITECTURES {
        let _ = fs::remove_dir_all(ca.state());
        let server = ca.serve(&architecture(name), HTTP, &site);
        server.wait_for(OBTAINED);
        for host in ["a.example", "www.a.example"] {
            assert_eq!(ca.https(host, "/a").as_deref(), Ok("served"), "{name}");
        }
        // Other requests are redirected.
        let response = Client::connect(server.address).request("GET", "/.well-known/acme-challenge/x", &[]);
        assert_eq!(response.status, 308, "{name}: {}", response.text());
    }
}

#[test]
fn tls_alpn_01_obtains_certificate_in_every_architecture() {
    let ca = Ca::running(LONG);
    for name in ARCHITECTURES {
        let _ = fs::remove_dir_all(ca.state());
        let server = ca.serve(&architecture(name), ALPN, SITE);
        server.wait_for(OBTAINED);
        for host in ["a.example", "www.a.example"] {
            assert_eq!(ca.https(host, "/a").as_deref(), Ok("served"), "{name}");
        }
        // Later handshakes of this kind have no answer.
        let mut openssl = Command::new("openssl");
        let address = format!("127.0.0.1:{}", ca.tls_port);
        openssl.args(["s_client", "-alpn", "acme-tls/1", "-servername", "a.example", "-connect", &address]);
        let ended = harness::run_command(openssl);
        assert!(ended.status != 0 && ended.stderr.contains("alert"), "{name}: {ended:?}");
    }
}

#[test]
fn handshakes_fail_until_certificate_is_there() {
    let ca = Ca::running(LONG);
    let own = rcgen::generate_simple_self_signed(["b.example".to_owned()]).unwrap();
    fs::write(ca.path().join("b.pem"), own.cert.pem()).unwrap();
    fs::write(ca.path().join("b.key"), own.signing_key.serialize_pem()).unwrap();
    let other = "[[site]]\nroot = \"root\"\nhosts = [\"b.example\"]\ncertificate = [\"b.pem\"]\nkey = [\"b.key\"]\n";
    // Nothing listens on the port of http-01, so validation fails.
    let config = ca.configure("", HTTP, &format!("{SITE}{other}"));
    let text = fs::read_to_string(&config).unwrap();
    let plain = ports::listen().local_addr().unwrap().port();
    fs::write(&config, text.replace(&format!("127.0.0.1:{}\"", ca.http_port), &format!("127.0.0.1:{plain}\"")))
        .unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    server.wait_for("cannot obtain a certificate for a.example, www.a.example: ");
    server.wait_for("there is none to serve");
    let refused = ca.https("a.example", "/a").unwrap_err();
    assert!(refused.contains("alert"), "{refused}");
    assert!(ca.https("b.example", "/a").unwrap_err().contains("certificate"), "not by this CA");
    assert_eq!(server.get("/a").status, 308, "served without TLS");
    wait_until("the state", || {
        let status = command(&ca, &["status"]).stdout;
        // The last is what the CA says.
        ["there is none yet", "failures     1", "connection"].iter().all(|part| status.contains(part))
    });
}

#[test]
fn certificate_is_renewed_in_time_and_replaced_in_all_processes() {
    // Renewed after 16 s, or a little earlier.
    let ca = Ca::running(24);
    for name in ["amped", "mp"] {
        let _ = fs::remove_dir_all(ca.state());
        let server = ca.serve(&architecture(name), HTTP, SITE);
        wait_until("two renewals", || count(&server, OBTAINED) >= 3);
        // Every process of a pool has the current one; each request may reach another.
        for _ in 0..16 {
            assert_eq!(ca.https("a.example", "/a").as_deref(), Ok("served"), "{name}");
        }
        assert_eq!(count(&server, "acme: cannot"), 0, "{}", server.said());
    }
}

#[test]
fn key_process_gets_keys_of_new_certificates() {
    let ca = Ca::running(24);
    for name in ["amped", "mp"] {
        let _ = fs::remove_dir_all(ca.state());
        let keys = "tls.keys = \"process\"\ncontain.landlock = true";
        let server = ca.serve(&format!("{}\n{keys}", architecture(name)), ALPN, SITE);
        wait_until("a renewal", || count(&server, OBTAINED) >= 2);
        for _ in 0..16 {
            assert_eq!(ca.https("a.example", "/a").as_deref(), Ok("served"), "{name}: {}", server.said());
        }
        assert_eq!(count(&server, "acme: cannot"), 0, "{}", server.said());
    }
}

#[test]
fn renew_and_revoke_are_carried_out() {
    let ca = Ca::running(LONG);
    let server = ca.serve("metrics.listen = \"127.0.0.1:0\"", HTTP, SITE);
    server.wait_for(OBTAINED);
    let file = ca.file("a.example");
    let first = fs::read(&file).unwrap();
    let renewed = command(&ca, &["renew", "WWW.a.example"]);
    assert_eq!(renewed.status, 0, "{renewed:?}");
    let second = fs::read(&file).unwrap();
    assert_ne!(first, second);
    let kept = ca.path().join("second.pem");
    fs::write(&kept, &second).unwrap();
    assert!(ca.status_of(&kept).contains("Valid"));
    let revoked = command(&ca, &["revoke", "a.example"]);
    assert_eq!(revoked.status, 0, "{revoked:?}");
    assert!(ca.status_of(&kept).contains("Revoked"));
    wait_until("another one", || fs::read(&file).is_ok_and(|third| third != second));
    wait_until("it is served", || ca.https("a.example", "/a").as_deref() == Ok("served"));
    let wrong = command(&ca, &["renew", "b.example"]);
    assert!(wrong.status == 1 && wrong.stderr.contains("b.example"), "{wrong:?}");
    let status = command(&ca, &["status", "--json"]);
    assert!(status.stdout.contains("\"failures\":0") && status.stdout.contains("a.example.pem"), "{status:?}");
    let line = server.said().lines().find_map(|line| Some(line.split_once("metrics on http://")?.1.to_owned()));
    let address = line.unwrap().trim_end_matches("/metrics").parse().unwrap();
    let metrics = Client::connect(address).get("/metrics").text();
    for line in [
        "amped_acme_orders_total 3",
        "amped_acme_certificates_total 3",
        "amped_acme_failures_total{reason=\"refused\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert!(metrics.contains("amped_acme_next_order_seconds{file="), "{metrics}");
}

#[test]
fn restart_keeps_certificate_and_account() {
    let ca = Ca::running(LONG);
    {
        let server = ca.serve("", HTTP, SITE);
        server.wait_for("acme: created the account");
        server.wait_for(OBTAINED);
    }
    let server = ca.serve("", &format!("{HTTP}\nemail = \"admin@a.example\""), SITE);
    assert_eq!(ca.https("a.example", "/a").as_deref(), Ok("served"));
    let renewed = command(&ca, &["renew", "a.example"]);
    assert_eq!(renewed.status, 0, "{renewed:?}");
    assert_eq!((count(&server, "ordering"), count(&server, "created")), (1, 0), "{}", server.said());
    let account = fs::read_to_string(ca.file("a.example").with_file_name("account.json")).unwrap();
    assert!(account.contains("admin@a.example"), "a new address is sent to the CA");
    // A file that was damaged is replaced, and another name is a reason for another certificate.
    drop(server);
    fs::write(ca.file("a.example"), "damaged").unwrap();
    let server = ca.serve("", HTTP, SITE);
    server.wait_for(OBTAINED);
    ca.configure("", HTTP, &SITE.replace("\"www.a.example\"", "\"www.a.example\", \"c.example\""));
    server.signal("HUP");
    server.wait_for("acme: obtained a certificate for a.example, www.a.example, c.example");
    wait_until("it is served", || ca.https("c.example", "/a").as_deref() == Ok("served"));
}

#[test]
fn acme_is_switched_on_and_off_by_reload() {
    let ca = Ca::running(LONG);
    let own = rcgen::generate_simple_self_signed(["b.example".to_owned()]).unwrap();
    fs::write(ca.path().join("b.pem"), own.cert.pem()).unwrap();
    fs::write(ca.path().join("b.key"), own.signing_key.serialize_pem()).unwrap();
    let file = SITE.replace("acme = true", "certificate = [\"b.pem\"]\nkey = [\"b.key\"]");
    for name in ["amped", "mp"] {
        let _ = fs::remove_dir_all(ca.state());
        for challenge in [HTTP, ALPN] {
            let _ = fs::remove_dir_all(ca.state());
            let server = ca.serve(&architecture(name), challenge, &file);
            assert_eq!(acme_process(&server), None);
            ca.configure(&architecture(name), challenge, SITE);
            server.signal("HUP");
            server.wait_for(OBTAINED);
            wait_until("it is served", || ca.https("a.example", "/a").as_deref() == Ok("served"));
            ca.configure(&architecture(name), challenge, &file);
            server.signal("HUP");
            wait_until("the process ends", || acme_process(&server).is_none());
        }
    }
}

#[test]
fn unreachable_ca_is_tried_again() {
    let mut ca = Ca::stopped(LONG);
    let server = ca.serve("", HTTP, SITE);
    server.wait_for("trying again in 1 min; there is none to serve");
    assert_eq!(server.get("/a").status, 308);
    let failed = command(&ca, &["renew", "a.example"]);
    assert!(failed.status == 1 && failed.stderr.contains("refused"), "{failed:?}");
    server.wait_for("trying again in 2 min");
    ca.start(&[]);
    let renewed = command(&ca, &["renew", "a.example"]);
    assert_eq!(renewed.status, 0, "{renewed:?}");
    assert_eq!(ca.https("a.example", "/a").as_deref(), Ok("served"));
}

#[test]
fn ca_that_dies_during_order_and_forgets_account_is_survived() {
    let mut ca = Ca::stopped(LONG);
    ca.start(&[("PEBBLE_VA_SLEEPTIME", "5")]);
    let server = ca.serve("", HTTP, SITE);
    // The order is about to be validated.
    ca.wait_for("Sleeping for");
    ca.stop();
    server.wait_for("cannot obtain a certificate");
    ca.start(&[]);
    let renewed = command(&ca, &["renew", "a.example"]);
    assert_eq!(renewed.status, 0, "{renewed:?} {}", server.said());
    server.wait_for("the CA does not know the account");
    assert_eq!(count(&server, "created the account"), 2);
    assert_eq!(ca.https("a.example", "/a").as_deref(), Ok("served"));
}

#[test]
fn ca_decides_when_to_renew() {
    let mut ca = Ca::running(LONG);
    ca.with_renewal_info("past");
    {
        let server = ca.serve("", HTTP, SITE);
        server.wait_for(OBTAINED);
        server.wait_for("see https://ca.example/why");
        // No order follows another at once, whatever the CA suggests.
        assert_eq!(count(&server, "ordering"), 1);
    }
    let file = ca.file("a.example");
    let first = fs::read(&file).unwrap();
    let two_days_ago = SystemTime::now() - Duration::from_secs(2 * 86_400);
    fs::File::options().write(true).open(&file).unwrap().set_modified(two_days_ago).unwrap();
    let server = ca.serve("", HTTP, SITE);
    server.wait_for(OBTAINED);
    assert_ne!(fs::read(&file).unwrap(), first);
}

#[test]
fn ca_may_suggest_later_renewal() {
    let mut ca = Ca::running(LONG);
    ca.with_renewal_info("future");
    let server = ca.serve("", HTTP, SITE);
    server.wait_for("see https://ca.example/why");
    // Of 90, and not after 60.
    wait_until("the state", || command(&ca, &["status"]).stdout.contains("(in 75 days)"));
}

#[test]
fn delay_that_ca_requests_is_respected() {
    let mut ca = Ca::running(LONG);
    ca.with_renewal_info("limited");
    let server = ca.serve("", HTTP, SITE);
    server.wait_for("trying again in 120 min");
}

#[test]
fn wrong_nonces_and_reused_authorizations_are_survived() {
    for variables in [[("PEBBLE_WFE_NONCEREJECT", "20")], [("PEBBLE_AUTHZREUSE", "100")]] {
        let mut ca = Ca::stopped(LONG);
        ca.start(&variables);
        let server = ca.serve("", ALPN, SITE);
        server.wait_for(OBTAINED);
        let renewed = command(&ca, &["renew", "a.example"]);
        assert_eq!(renewed.status, 0, "{variables:?}: {renewed:?}");
        assert_eq!(ca.https("a.example", "/a").as_deref(), Ok("served"));
    }
}

#[test]
fn death_of_process_during_order_does_not_affect_server() {
    for name in ["amped", "mp"] {
        let mut ca = Ca::stopped(LONG);
        ca.start(&[("PEBBLE_VA_SLEEPTIME", "3")]);
        let server = ca.serve(&architecture(name), HTTP, SITE);
        ca.wait_for("Sleeping for");
        let first = acme_process(&server).unwrap();
        kill(first);
        server.wait_for(&format!("the ACME process {first} is lost"));
        assert_eq!(server.get("/a").status, 308);
        server.wait_for(OBTAINED);
        assert_ne!(acme_process(&server), Some(first));
        assert_eq!(ca.https("a.example", "/a").as_deref(), Ok("served"), "{name}");
        assert_eq!(parent_of(first), None, "it was reaped");
    }
}

#[test]
fn process_ends_with_server() {
    let ca = Ca::running(LONG);
    for name in ["amped", "mp"] {
        for signal in ["TERM", "KILL"] {
            let mut server = ca.serve(&architecture(name), HTTP, SITE);
            wait_until("the process", || acme_process(&server).is_some());
            let process = acme_process(&server).unwrap();
            server.signal(signal);
            server.wait();
            wait_until(&format!("its end, {name}, {signal}"), || {
                parent_of(process).is_none_or(|(state, _)| state == 'Z')
            });
            let _ = fs::remove_file(ca.control());
        }
    }
}

/// A directory that everyone may enter, so that another user can serve from it.
fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn state_is_private_and_belongs_to_serving_user() {
    need_root("changes to another user");
    let ca = Ca::running(LONG);
    open_to_all(ca.path());
    let server = ca.serve("user = \"www-data\"", HTTP, SITE);
    server.wait_for(OBTAINED);
    let uid = ca.state().metadata().unwrap().uid();
    assert_ne!(uid, 0);
    let file = ca.file("a.example");
    let folder = file.parent().unwrap();
    for (path, mode) in [(&*ca.state(), 0o700), (folder, 0o700), (&file, 0o600), (&folder.join("account.json"), 0o600)]
    {
        let status = path.metadata().unwrap();
        assert_eq!((status.uid(), status.mode() & 0o777), (uid, mode), "{}", path.display());
    }
    let process = acme_process(&server).unwrap();
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    assert!(
        status.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")) && status.contains("NoNewPrivs:\t1"),
        "{status}"
    );
    // Standard streams, and what its runtime opens: no listener, log or root of the server.
    let descriptors = harness::descriptors_of(process);
    let own = |path: &Path| {
        path.to_string_lossy().starts_with("socket:[") || path.to_string_lossy().starts_with("anon_inode:")
    };
    let others = descriptors.iter().filter(|path| !own(path) && !path.starts_with("/dev/null"));
    assert!(others.clone().count() <= 1, "standard error alone: {descriptors:?}");
    assert!(
        descriptors.iter().filter(|path| path.to_string_lossy().starts_with("socket:[")).count() <= 6,
        "{descriptors:?}"
    );
    assert_eq!(ca.https("a.example", "/a").as_deref(), Ok("served"));
}

#[test]
fn check_describes_what_is_obtained() {
    let ca = Ca::stopped(LONG);
    let config = ca.configure("", ALPN, SITE);
    let checked = run(&["check", "--config", config.to_str().unwrap()]);
    assert_eq!(checked.status, 0, "{checked:?}");
    for part in [
        "a.example, www.a.example: certificate from https://localhost:",
        "by tls-alpn-01",
        "warning: the CA connects to port 443",
    ] {
        assert!(checked.stdout.contains(part), "{part} is not in {}", checked.stdout);
    }
}

#[test]
fn missing_program_is_an_error_with_remedy() {
    let ca = Ca::stopped(LONG);
    let alone = ca.path().join("amped");
    // By another process: a program that another thread forks would hold the file open for writing (ETXTBSY).
    let copied = Command::new("cp").arg(harness::program().get_program()).arg(&alone).status().unwrap();
    assert!(copied.success());
    let config = ca.configure("", HTTP, SITE);
    let ended = |word: &str| {
        let mut command = Command::new(&alone);
        command.args([word, "--config", config.to_str().unwrap()]);
        harness::run_command(command)
    };
    let served = ended("serve");
    let says = |text: &str| text.contains("amped-acme is missing") && text.contains("cargo build");
    assert!(served.status == 1 && says(&served.stderr), "{served:?}");
    let checked = ended("check");
    assert!(checked.status == 0 && says(&checked.stdout), "{checked:?}");
}

#[test]
fn process_cannot_be_started_by_hand() {
    let ended = harness::run_command(Command::new(env!("CARGO_BIN_EXE_amped-acme")));
    assert!(ended.status == 1 && ended.stderr.contains("only `amped` can start this program"), "{ended:?}");
}
