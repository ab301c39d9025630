//! An object store that is not ours: moto, filled by Amazon's library. It checks signatures and policies.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::harness::{Server, Site, program, run_command, wait_until};
use super::ports::free_addresses;
use super::said;

/// Where `cargo xtask setup` has installed moto.
fn moto() -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools");
    let found = fs::read_dir(&tools).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found =
        found.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("moto-")));
    found.next().unwrap_or_else(|| panic!("moto is not in {}: run cargo xtask setup", tools.display()))
}

/// Python with Amazon's library, which moto needs too.
pub(super) fn python_with_boto() -> Command {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", moto()).stdin(Stdio::null());
    python
}

/// A running store. Stopped when dropped.
struct Moto {
    child: Child,
    address: SocketAddr,
    key: [String; 2],
}

impl Moto {
    fn start(site: &Site) -> Moto {
        let [address] = free_addresses();
        let mut command = python_with_boto();
        command.arg(moto().join("bin/moto_server")).args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        // The actions that prepare the user.
        command.env("INITIAL_NO_AUTH_ACTION_COUNT", "3").stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let mut store = Moto { child, address, key: [String::new(), String::new()] };
        wait_until("moto to listen", || {
            assert!(store.child.try_wait().unwrap().is_none(), "moto has ended: run cargo xtask setup");
            TcpStream::connect(address).is_ok()
        });
        let script = site.file("fill.py", include_str!("object_store.py"));
        let key = said(python_with_boto().arg(script).arg(format!("http://{address}")));
        let (id, secret) = key.trim().split_once(' ').unwrap();
        store.key = [id.to_owned(), secret.to_owned()];
        store
    }

    /// `amped COMMAND --config` for this store.
    fn amped(&self, site: &Site, command: &str, root: &str, secret: &str) -> Command {
        let config = site.path().with_extension("toml");
        let disk = site.path().join("cache");
        fs::create_dir_all(&disk).unwrap();
        let text = format!(
            "listen = [\"127.0.0.1:0\"]\n[object_storage]\nendpoint = \"http://{}\"\nwindow = \"256KiB\"\n[cache]\ndisk = {disk:?}\n[[site]]\nroot = {root:?}\nlisting = true\n",
            self.address
        );
        fs::write(&config, text).unwrap();
        let mut amped = program();
        amped.arg(command).arg("--config").arg(&config);
        amped.env("AWS_ACCESS_KEY_ID", &self.key[0]).env("AWS_SECRET_ACCESS_KEY", secret);
        amped
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn objects_of_another_store_are_served() {
    let site = Site::new();
    let store = Moto::start(&site);
    let check = |root: &str, secret: &str| run_command(store.amped(&site, "check", root, secret));
    let root = "s3://content/site";
    let ended = check(root, &store.key[1]);
    assert!(ended.status == 0 && ended.stdout.contains(": ok"), "{ended:?}");
    let ended = check("s3://missing", &store.key[1]);
    assert!(ended.status != 0 && ended.stderr.contains("the bucket missing does not exist"), "{ended:?}");
    let ended = check(root, "wrong");
    assert!(ended.status != 0 && ended.stderr.contains("the secret key is wrong"), "{ended:?}");

    let server = Server::spawn(store.amped(&site, "serve", root, &store.key[1]));
    let mut client = server.connect();
    let home = client.get("/");
    assert_eq!((home.status, home.text().as_str()), (200, "<p>home"));
    assert_eq!(home.field("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(home.field("Cache-Control"), Some("max-age=60"));
    let etag = home.field("ETag").unwrap().to_owned();
    assert_eq!(client.request("GET", "/", &[("If-None-Match", &etag)]).status, 304);
    for (target, body) in [
        ("/a%20b+c&d=e.txt", "a b+c&d=e.txt"),
        ("/%C3%BC/%2541.txt", "ü/%41.txt"),
        ("/%C3%BC/~(x)!*'$,;:@.txt", "ü/~(x)!*'$,;:@.txt"),
    ] {
        let response = client.get(target);
        assert_eq!((response.status, response.text().as_str()), (200, body), "{target}");
    }
    let large = client.request("GET", "/large.bin", &[("Range", "bytes=2097150-")]);
    assert_eq!((large.status, &*large.body), (206, &[254, 255][..]));
    let fetched = server.report("store_fetched_bytes");
    assert!(fetched < 300_000, "more than its window: {fetched} bytes");
    let large = client.get("/large.bin").body;
    assert!(large.len() == 256 * 8192 && large.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    let listing = client.request("GET", "/%C3%BC/", &[("Accept", "application/json")]).text();
    assert!(listing.contains("%41.txt") && listing.contains("~(x)!*'$,;:@.txt"), "{listing}");
    assert_eq!(client.get("/none").status, 404);
}
