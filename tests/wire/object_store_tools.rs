//! What an operator does about an object store: `amped check`, `amped preload`, credentials in files, a reload.

use std::fs;
use std::process::Command;

use super::harness::{Server, Site, program, run, run_command, wait_until};
use crate::object_store::{BUCKET, Fault, Store};
use crate::ports;

/// A store, and the directory of local copies.
struct Setup {
    store: Store,
    site: Site,
}

impl Setup {
    fn new() -> Setup {
        Setup { store: Store::on(ports::listen()), site: Site::new() }
    }

    /// A configuration with this store; `last` are further tables.
    fn command(&self, architecture: &str, last: &str) -> Command {
        let config = self.site.path().with_extension("toml");
        let text = format!(
            "architecture = {architecture:?}\nworkers = 4\nlisten = [\"127.0.0.1:0\"]\nroot = \"s3://{BUCKET}/site\"\n[object_storage]\n\
             endpoint = \"http://{}\"\nrevalidate = \"1h\"\n[cache]\ndisk = {:?}\n{last}\n",
            self.store.address,
            self.site.path(),
        );
        fs::write(&config, text).unwrap();
        let mut command = program();
        command.arg("serve").arg("--config").arg(&config);
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("CREDENTIALS_DIRECTORY");
        command
    }
}

#[test]
fn confined_server_reaches_its_store() {
    for architecture in super::ARCHITECTURES {
        let setup = Setup::new();
        setup.store.put("site/a.txt", "one");
        let server = Server::spawn(setup.command(architecture, "[contain]\nlandlock = true\nseccomp = \"kill\""));
        assert_eq!(server.get("/a.txt").text(), "one", "{architecture}");
        // Fetched, replaced and removed.
        setup.store.put("site/b.txt", "two");
        assert_eq!(server.get("/b.txt").text(), "two", "{architecture}");
        assert_eq!(server.get("/none.txt").status, 404, "{architecture}");
    }
}

#[test]
fn preload_asks_the_store_and_credentials_may_be_in_a_file() {
    for architecture in super::ARCHITECTURES {
        let setup = Setup::new();
        setup.store.put("site/a.txt", "one");
        setup.store.put("site/b.txt", "one");
        let beside = tempfile::tempdir().unwrap();
        let at = |name: &str| beside.path().join(name);
        fs::write(at("s3"), "[default]\naws_access_key_id = id\naws_secret_access_key = secret\n").unwrap();
        let mut command = setup.command(architecture, &format!("[control]\nsocket = {:?}", at("control")));
        command.env("CREDENTIALS_DIRECTORY", beside.path());
        let server = Server::spawn(command);
        assert_eq!((server.get("/a.txt").text(), server.get("/b.txt").text()), ("one".to_owned(), "one".to_owned()));
        assert!(setup.store.was_signed(), "the credentials were not used");
        setup.store.put("site/a.txt", "two");
        setup.store.put("site/b.txt", "two");
        let socket = at("control");
        let ended = run(&["preload", "--control", socket.to_str().unwrap(), "/a.txt"]);
        assert!(ended.status == 0 && ended.stdout.contains("200 3 bytes"), "{architecture}: {ended:?}");
        for _ in 0..20 {
            assert_eq!(
                (server.get("/a.txt").text(), server.get("/b.txt").text()),
                ("two".to_owned(), "one".to_owned())
            );
        }
        // A reload keeps what is known.
        let before = setup.store.statuses("site/b.txt");
        server.signal("HUP");
        server.wait_for("the new configuration is in force");
        assert_eq!(server.get("/b.txt").text(), "one");
        assert_eq!(setup.store.statuses("site/b.txt"), before, "{architecture}");
    }
}

#[test]
fn wrong_credentials_are_reported_and_corrected_by_reload() {
    let setup = Setup::new();
    setup.store.put("site/a.txt", "a");
    setup.store.fail(Fault::Status(403, "SignatureDoesNotMatch"));
    let server = Server::spawn(setup.command("amped", ""));
    assert_eq!(server.get("/a.txt").status, 503);
    server.wait_for("the secret key is wrong, or `region` is: check the credentials");
    setup.store.fail(Fault::Status(403, "AccessDenied"));
    assert_eq!(server.get("/a.txt").status, 403);
    server.wait_for("the store denies access to objects of bucket");
    setup.store.fail(Fault::None);
    wait_until("the object", || server.get("/a.txt").text() == "a");
}

/// Runs `amped check` with these keys of `[object_storage]`.
fn check(setup: &Setup, root: &str, keys: &str, id: &str) -> (i32, String) {
    let config = setup.site.path().with_extension("toml");
    let text = format!("root = {root:?}\n[cache]\ndisk = {:?}\n[object_storage]\n{keys}\n", setup.site.path());
    fs::write(&config, text).unwrap();
    let mut command: Command = program();
    command.arg("check").arg("--config").arg(&config);
    command.env_remove("CREDENTIALS_DIRECTORY");
    match id {
        "" => command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY"),
        _ => command.env("AWS_ACCESS_KEY_ID", id).env("AWS_SECRET_ACCESS_KEY", "secret"),
    };
    let ended = run_command(command);
    (ended.status, ended.stdout + &ended.stderr)
}

#[test]
fn check_says_what_is_wrong_with_a_store() {
    let setup = Setup::new();
    setup.store.put("site/index.html", "home");
    let endpoint = format!("endpoint = \"http://{}\"", setup.store.address);
    let try_it = |root: &str, keys: &str, fault: Fault, status: i32, expected: &[&str]| {
        setup.store.fail(fault);
        let (found, text) = check(&setup, root, keys, "id");
        assert_eq!(found == 0, status == 0, "{text}");
        expected.iter().for_each(|part| assert!(text.contains(part), "{part} is not in:\n{text}"));
    };
    let site = "s3://bucket/site";
    try_it(site, &endpoint, Fault::None, 0, &["bucket bucket at http://127.0.0.1:", ": ok"]);
    try_it("s3://bucket/nothing", &endpoint, Fault::None, 0, &["warning", "no key begins with \"nothing/\""]);
    try_it(
        "s3://another",
        &endpoint,
        Fault::None,
        1,
        &["the bucket another does not exist", "correct the name in `root`"],
    );
    try_it(
        site,
        &endpoint,
        Fault::Status(403, "InvalidAccessKeyId"),
        1,
        &["InvalidAccessKeyId", "check the credentials"],
    );
    try_it(site, &endpoint, Fault::Status(403, "SignatureDoesNotMatch"), 1, &["the secret key is wrong"]);
    try_it(site, &endpoint, Fault::Status(403, "RequestTimeTooSkewed"), 1, &["the clock of this machine is wrong"]);
    try_it(
        site,
        &endpoint,
        Fault::Status(403, "AccessDenied"),
        1,
        &["denies access", "s3:GetObject and s3:ListBucket"],
    );
    try_it(site, &endpoint, Fault::Status(301, "PermanentRedirect"), 1, &["is elsewhere", "set `region`"]);
    let closed = ports::free_addresses::<1>()[0];
    let nobody = format!("endpoint = \"http://{closed}\"");
    try_it(site, &endpoint, Fault::Status(404, ""), 1, &["does not answer with a listing", "does not speak S3"]);
    // It may be down now, and local copies can be served.
    try_it(site, &nobody, Fault::None, 0, &["warning: cannot reach", "no server listens there: correct `endpoint`"]);
    try_it(
        site,
        "endpoint = \"http://unknown.invalid\"",
        Fault::None,
        0,
        &["its host name is unknown: correct `endpoint`"],
    );
    try_it(site, &endpoint, Fault::Status(500, "InternalError"), 0, &["warning: cannot reach", "500 InternalError"]);
    try_it(site, "endpoint = \"ftp://x\"", Fault::None, 1, &["is not the URL of a store"]);
    try_it("s3://a/../b", &endpoint, Fault::None, 1, &["has no valid name of a bucket"]);
    setup.store.fail(Fault::None);
    let (status, text) = check(&setup, site, &endpoint, "");
    assert_eq!(status, 0, "{text}");
}
