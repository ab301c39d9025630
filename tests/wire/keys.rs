//! Private keys in a process of their own (`tls.keys = "process"`): no other process has them in its memory, and what happens
//! when it dies, hangs, or gets other keys.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{HandshakeKind, version};

use super::harness::*;
use super::tls::*;

const PROCESS: &str = "tls.keys = \"process\"";

/// A site with certificates of both kinds, of which clients with TLS 1.2 and 1.3 get the second if they accept no ECDSA.
fn place_with_both() -> (Site, Trust) {
    let (site, mut trust) = place();
    site.file("root/a", "a");
    trust.issue(&site, "rsa", &rcgen::PKCS_RSA_SHA256, &["rsa.example"]);
    (site, trust)
}

/// A second site, with the RSA key.
const RSA: &str =
    "[[site]]\nroot = \"root\"\nhosts = [\"rsa.example\"]\ncertificate = [\"rsa.pem\"]\nkey = [\"rsa.key\"]\n";

/// All processes below this one, and itself.
fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut at = 0;
    while at < all.len() {
        all.extend(children_of(all[at]));
        at += 1;
    }
    all
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The key process of a server.
fn key_process(server: &Server) -> Option<u32> {
    family(server.pid()).into_iter().find(|pid| name_of(*pid) == "keys")
}

/// Waits for a key process that is not this one.
fn other_key_process(server: &Server, old: u32) -> u32 {
    wait_until("another key process", || key_process(server).is_some_and(|pid| pid != old));
    key_process(server).unwrap()
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// The contents of the elements of a sequence, in DER (X.690, 8.1).
fn elements(der: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut found) = (content(der).0, Vec::new());
    while !rest.is_empty() {
        let (element, after) = content(rest);
        found.push(element);
        rest = after;
    }
    found
}

/// The content of the first element, and what follows it.
fn content(der: &[u8]) -> (&[u8], &[u8]) {
    let (length, from) = match usize::from(der[1]) {
        short @ ..0x80 => (short, 2),
        long => {
            let from = 2 + (long - 0x80);
            (der[2..from].iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), from)
        }
    };
    der[from..].split_at(length)
}

/// What memory with this key contains: secret numbers, in both orders of bytes, and the file's text.
fn secrets(site: &Site, name: &str) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(site.path().join(name)).unwrap();
    let der = PrivateKeyDer::from_pem_slice(text.as_bytes()).unwrap();
    // RFC 5958, 2: version, algorithm, key.
    let inner = elements(der.secret_der())[2];
    let fields = elements(inner);
    let numbers = match fields.len() {
        // RFC 8017, A.1.2: version, modulus, exponents, primes.
        9 => vec![fields[3], fields[4], fields[5]],
        // RFC 5915, 3: version, key.
        _ => vec![fields[1]],
    };
    let of = |number: &[u8]| {
        // Without a zero for the sign.
        let bytes = number.strip_prefix(&[0]).unwrap_or(number);
        let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
        [bytes[..32].to_vec(), reversed[..32].to_vec()]
    };
    // The first line has the algorithm.
    let line = text.lines().nth(2).unwrap().as_bytes().to_vec();
    numbers.into_iter().flat_map(of).chain([line]).collect()
}

/// Those of these processes whose writable memory contains one of these texts (proc_pid_mem(5)).
fn holders(pids: &[u32], secrets: &[Vec<u8>]) -> Vec<u32> {
    const SCRIPT: &str = "
import sys
secrets = [bytes.fromhex(text) for text in sys.argv[1].split(',')]
for pid in sys.argv[2:]:
    with open(f'/proc/{pid}/maps') as maps, open(f'/proc/{pid}/mem', 'rb', 0) as memory:
        total = 0
        found = False
        for line in maps:
            range_, permissions, *_ = line.split()
            if not permissions.startswith('rw'):
                continue
            start, end = (int(text, 16) for text in range_.split('-'))
            at = start
            while at < end:
                memory.seek(at)
                # Pieces overlap, so that none hides between two.
                piece = memory.read(min(end - at, 1 << 24))
                total += len(piece)
                found = found or any(secret in piece for secret in secrets)
                at += len(piece) if at + len(piece) >= end else len(piece) - 4096
        assert total > 100000, pid
        if found:
            print(pid)
";
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let secrets: Vec<String> = secrets.iter().map(hex).collect();
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT, &secrets.join(",")]).args(pids.iter().map(u32::to_string));
    let ended = run_command(python);
    assert_eq!(ended.status, 0, "{ended:?}");
    ended.stdout.lines().map(|pid| pid.parse().unwrap()).collect()
}

fn handshakes(server: &Server, trust: &Trust) {
    for version in BOTH {
        for name in ["localhost", "rsa.example"] {
            assert_eq!(trust.connect_to(server, name, version).get("/a").text(), "a", "{name}");
        }
    }
}

#[test]
fn private_keys_are_in_memory_of_key_process_alone() {
    need_root("reads the memory of processes");
    let (site, trust) = place_with_both();
    let keys = |server: &Server| {
        let holders = |name: &str| holders(&family(server.pid()), &secrets(&site, name));
        [holders("own.key"), holders("rsa.key")]
    };
    {
        let server = serve(&site, "workers = 2", RSA);
        handshakes(&server, &trust);
        let [ecdsa, rsa] = keys(&server);
        assert!(ecdsa.contains(&server.pid()) && rsa.contains(&server.pid()), "the search finds keys");
    }
    let server = serve(&site, &format!("workers = 2\n{PROCESS}\nstop.deadline = \"1s\""), RSA);
    let check = |what: &str| {
        let own = vec![key_process(&server).unwrap()];
        assert_eq!(keys(&server), [own.clone(), own], "{what}");
    };
    check("at the start");
    handshakes(&server, &trust);
    check("after handshakes");
    server.signal("HUP");
    server.wait_for("the new configuration is in force");
    handshakes(&server, &trust);
    check("after a reload");
    let old = key_process(&server).unwrap();
    signal(old, "KILL");
    other_key_process(&server, old);
    handshakes(&server, &trust);
    check("after its death");
}

#[test]
fn key_process_signs_for_every_version_and_resumes_sessions() {
    let (site, mut trust) = place_with_both();
    // The strictest limits: a call or file that is missing from the lists ends the server.
    let limits = "contain.landlock = true\ncontain.seccomp = \"kill\"";
    let server = serve(&site, &format!("workers = 2\n{PROCESS}\n{limits}"), RSA);
    handshakes(&server, &trust);
    // The server does not support the first key exchange that this client offers, so the client says hello twice.
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = vec![aws_lc_rs::kx_group::MLKEM768, aws_lc_rs::kx_group::X25519];
    let mut twice = server.connect().secure(trust.session("localhost", provider, &version::TLS13));
    assert_eq!((twice.get("/a").text(), twice.get("/a").text()), ("a".to_owned(), "a".to_owned()));
    assert_eq!(twice.tls().unwrap().handshake_kind(), Some(HandshakeKind::FullWithHelloRetryRequest));
    for version in BOTH {
        trust.store_sessions(version);
        for _ in 0..3 {
            assert_eq!(trust.connect(&server).get("/a").text(), "a");
        }
        let mut last = trust.connect(&server);
        last.get("/a");
        assert_eq!(last.tls().unwrap().handshake_kind(), Some(HandshakeKind::Resumed), "{version:?}");
    }
}

#[test]
fn key_process_is_replaced_when_it_dies_and_connections_go_on() {
    let (site, trust) = place_with_both();
    let server = serve(&site, &format!("workers = 2\n{PROCESS}"), RSA);
    let mut kept = trust.connect(&server);
    assert_eq!(kept.get("/a").text(), "a");
    let mut pid = key_process(&server).unwrap();
    for number in 1..=3 {
        signal(pid, "KILL");
        assert_eq!(kept.get("/a").text(), "a");
        pid = other_key_process(&server, pid);
        assert_eq!(server.said().matches("was killed by signal 9 (Killed); starting it again").count(), number);
        // The second and third start after a delay, for which handshakes wait.
        handshakes(&server, &trust);
    }
    assert_eq!(kept.get("/a").text(), "a");
}

#[test]
fn handshakes_fail_while_key_process_hangs_and_nothing_else_does() {
    let (site, trust) = place_with_both();
    let server = serve(&site, &format!("workers = 2\n{PROCESS}"), RSA);
    let mut kept = trust.connect(&server);
    assert_eq!(kept.get("/a").text(), "a");
    let pid = key_process(&server).unwrap();
    signal(pid, "STOP");
    let hello = trust.hello(&version::TLS13);
    let mut refused = server.connect();
    refused.send(&hello);
    if !matches!(architecture(), Some("sped")) {
        // SPED's loop waits for the signature, with all its connections.
        assert_eq!(kept.get("/a").text(), "a");
    }
    wait_until("the failure", || server.report("tls_failures key") == 1);
    server.wait_for("TLS handshakes fail, as the key process does not sign");
    assert_eq!(kept.get("/a").text(), "a");
    signal(pid, "CONT");
    handshakes(&server, &trust);
    server.wait_for("the key process signs again");
    assert_eq!(server.report("tls_failures key"), 1);
}

#[test]
fn loop_of_amped_does_not_wait_for_signature_whatever_the_records_are() {
    if architecture() != Some("amped") {
        return;
    }
    let (site, trust) = place_with_both();
    let server = serve(&site, &format!("workers = {}\n{PROCESS}", processors()), RSA);
    handshakes(&server, &trust);
    assert_eq!(server.report("helper_tasks handshake"), 4, "also of ECDSA keys, without a spare processor");
    // A hello in two records (RFC 8446, 5.1): the thread must get both, as the second one is answered with a signature.
    let hello = trust.hello(&version::TLS12);
    let (version, message) = (&hello[1..3], &hello[5..]);
    let record = |part: &[u8]| [&[22], version, &(part.len() as u16).to_be_bytes(), part].concat();
    let (first, second) = message.split_at(50);
    let mut client = server.connect();
    client.send(record(first));
    wait_until("the first record", || server.report("helper_tasks handshake") == 5);
    client.send(record(second));
    wait_until("the second record", || server.report("helper_tasks handshake") == 6);
}

#[test]
fn certificates_of_key_process_are_renewed_under_load_without_failed_request() {
    renew_certificates_under_load(PROCESS);
}

#[test]
fn reloads_and_deaths_of_key_process_under_load_fail_no_request() {
    let (site, trust) = place_with_both();
    let server = serve(&site, &format!("{PROCESS}\nlimits.idle_timeout = \"1h\""), RSA);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    handshakes(&server, &trust);
                }
            });
        }
        for number in 1..=4 {
            server.signal("HUP");
            wait_until("the reload", || server.said().matches("the new configuration is in force").count() == number);
            let old = key_process(&server).unwrap();
            signal(old, "KILL");
            other_key_process(&server, old);
            // Signals that follow each other at once would be one.
            thread::sleep(Duration::from_millis(1100));
        }
    });
    assert_eq!(server.report("tls_failures key"), 0);
}

#[test]
fn key_that_does_not_belong_to_certificate_is_refused_by_key_process() {
    let (site, mut trust) = place_with_both();
    trust.issue(&site, "other", &rcgen::PKCS_ECDSA_P256_SHA256, &["localhost"]);
    let config = configure(&site, PROCESS, RSA);
    let config = config.to_str().unwrap();
    let (own, other) = (site.path().join("own.key"), site.path().join("other.key"));
    let good = fs::read(&own).unwrap();
    fs::copy(&other, &own).unwrap();
    let message = format!("the private key {} does not belong to the certificate", own.display());
    for command in [&["serve", "--config", config][..], &["check", "--config", config]] {
        let ended = run(command);
        assert!(ended.status != 0 && ended.stderr.contains(&message), "{command:?}: {ended:?}");
    }
    fs::remove_file(&own).unwrap();
    let ended = run(&["serve", "--config", config]);
    let message = format!("cannot read the private key {}: No such file", own.display());
    assert!(ended.status != 0 && ended.stderr.contains(&message), "{ended:?}");
    fs::write(&own, good).unwrap();
    let server = serve(&site, PROCESS, RSA);
    handshakes(&server, &trust);
    fs::copy(&other, &own).unwrap();
    server.signal("HUP");
    server.wait_for("keeping the current configuration");
    assert!(server.said().contains("does not belong to the certificate"), "{}", server.said());
    handshakes(&server, &trust);
}

#[test]
fn holder_of_keys_changes_by_restart_alone() {
    let (site, trust) = place_with_both();
    let server = serve(&site, PROCESS, RSA);
    configure(&site, "", RSA);
    server.signal("HUP");
    server.wait_for("tls.keys cannot change while the server runs");
    handshakes(&server, &trust);
    let config = configure(&site, &format!("{PROCESS}\ntls.sign = \"loop\""), RSA);
    let ended = run(&["check", "--config", config.to_str().unwrap()]);
    assert!(ended.stderr.contains("cannot be used with `keys = \"process\"`"), "{ended:?}");
}

#[test]
fn key_that_only_root_may_read_survives_death_of_key_process() {
    need_root("serves as another user");
    let (site, trust) = place_with_both();
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["own.key", "rsa.key"] {
        fs::set_permissions(site.path().join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let server = serve(&site, &format!("user = \"daemon\"\n{PROCESS}"), RSA);
    handshakes(&server, &trust);
    let old = key_process(&server).unwrap();
    for pid in family(server.pid()) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(!status.contains("Uid:\t0"), "{} is root", name_of(pid));
        assert!(status.contains("CapEff:\t0000000000000000"), "{}: {status}", name_of(pid));
    }
    // Standard streams, the door, the link, and a session for each thread that has signed, but no file.
    let targets = descriptors_of(old);
    let is_expected = |target: &std::path::PathBuf| {
        let target = target.to_string_lossy();
        target == "/dev/null" || target.starts_with("socket:") || target.starts_with("pipe:")
    };
    assert!(targets.iter().all(is_expected), "{targets:?}");
    signal(old, "KILL");
    other_key_process(&server, old);
    handshakes(&server, &trust);
    // A reload cannot open them either, and uses what is open.
    server.signal("HUP");
    server.wait_for("the new configuration is in force");
    handshakes(&server, &trust);
    // But not in place of other files.
    fs::copy(site.path().join("own.key"), site.path().join("new.key")).unwrap();
    fs::rename(site.path().join("new.key"), site.path().join("own.key")).unwrap();
    server.signal("HUP");
    server.wait_for("keeping the current configuration");
    assert!(server.said().contains("own.key: Permission denied"), "{}", server.said());
    handshakes(&server, &trust);
}

fn processors() -> usize {
    thread::available_parallelism().unwrap().get()
}
