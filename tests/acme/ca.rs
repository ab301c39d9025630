//! A CA for tests: pebble, with a name server that knows every name, and certificates that curl verifies.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::harness::{Server, run_command, wait_until};
use crate::ports::listen;

/// A CA, its name server, and the ports of the server that it validates.
pub struct Ca {
    folder: TempDir,
    directory_port: u16,
    management_port: u16,
    dns_port: u16,
    pub http_port: u16,
    pub tls_port: u16,
    validity_s: u32,
    dns: Child,
    pebble: Option<Child>,
    renewal_info: Option<Child>,
}

fn found(program: &str) -> Command {
    let exists = |folder: PathBuf| folder.join(program).exists();
    let path = std::env::var_os("PATH").unwrap_or_default();
    assert!(std::env::split_paths(&path).any(exists), "{program} is missing: cargo xtask setup");
    Command::new(program)
}

impl Ca {
    /// A CA that does not run yet, whose certificates are valid for this long.
    pub fn stopped(validity_s: u32) -> Ca {
        let folder = tempfile::tempdir().unwrap();
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        fs::write(folder.path().join("ca.pem"), own.cert.pem()).unwrap();
        fs::write(folder.path().join("ca.key"), own.signing_key.serialize_pem()).unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        fs::write(folder.path().join("root/a"), "served").unwrap();
        // All at once, so that no two are the same.
        let listeners = [(); 6].map(|()| listen());
        let [directory_port, management_port, dns_port, dns_management, http_port, tls_port] =
            listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
        drop(listeners);
        let log = File::create(folder.path().join("dns.log")).unwrap();
        let dns = found("pebble-challtestsrv")
            .args(["-dns01", &format!("127.0.0.1:{dns_port}"), "-management", &format!("127.0.0.1:{dns_management}")])
            .args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Ca {
            folder,
            directory_port,
            management_port,
            dns_port,
            http_port,
            tls_port,
            validity_s,
            dns,
            pebble: None,
            renewal_info: None,
        }
    }

    /// A running CA.
    pub fn running(validity_s: u32) -> Ca {
        let mut ca = Ca::stopped(validity_s);
        ca.start(&[]);
        ca
    }

    /// Starts it with these variables. It remembers nothing of an earlier run.
    pub fn start(&mut self, variables: &[(&str, &str)]) {
        assert!(self.pebble.is_none());
        let at = |name: &str| self.folder.path().join(name).to_str().unwrap().to_owned();
        let config = format!(
            "{{\"pebble\": {{\"listenAddress\": \"127.0.0.1:{}\", \"managementListenAddress\": \"127.0.0.1:{}\", \
             \"certificate\": {:?}, \"privateKey\": {:?}, \"httpPort\": {}, \"tlsPort\": {}, \"certificateValidityPeriod\": {}}}}}",
            self.directory_port,
            self.management_port,
            at("ca.pem"),
            at("ca.key"),
            self.http_port,
            self.tls_port,
            self.validity_s
        );
        fs::write(at("pebble.json"), config).unwrap();
        let log = File::create(at("pebble.log")).unwrap();
        let mut command = found("pebble");
        command.args(["-config", &at("pebble.json"), "-dnsserver", &format!("127.0.0.1:{}", self.dns_port), "-strict"]);
        if !variables.iter().any(|(name, _)| *name == "PEBBLE_VA_SLEEPTIME") {
            command.env("PEBBLE_VA_NOSLEEP", "1");
        }
        command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.pebble = Some(command.spawn().unwrap());
        self.wait_for("ACME directory available");
        // It says so before it listens.
        for port in [self.directory_port, self.management_port] {
            wait_until("pebble", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        }
    }

    /// From now on servers use a directory with renewal information, which pebble lacks; see `renewal_info.py`. `mode`: what it
    /// says.
    pub fn with_renewal_info(&mut self, mode: &str) {
        let port = listen().local_addr().unwrap().port();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/acme/renewal_info.py");
        let at = |name: &str| self.folder.path().join(name);
        let mut command = found("python3");
        command.arg(script).args([port.to_string(), self.directory_port.to_string(), mode.to_owned()]);
        command.args([at("ca.pem"), at("ca.key")]).stdin(Stdio::null());
        self.renewal_info = Some(command.spawn().unwrap());
        wait_until("the directory", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        self.directory_port = port;
    }

    /// Kills it.
    pub fn stop(&mut self) {
        let mut pebble = self.pebble.take().unwrap();
        pebble.kill().unwrap();
        pebble.wait().unwrap();
    }

    /// What it has logged since its start.
    pub fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("pebble.log")).unwrap_or_default()
    }

    pub fn wait_for(&self, text: &str) {
        wait_until(&format!("{text:?} in the log of pebble"), || self.said().contains(text));
    }

    /// The directory of the server's state, with one for this CA in it.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The file of the certificate of a site.
    pub fn file(&self, name: &str) -> PathBuf {
        self.state().join(format!("localhost-{}-dir", self.directory_port)).join(format!("{name}.pem"))
    }

    pub fn control(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a server that obtains certificates here. `keys`: at the top; `acme`: in `[tls.acme]`; `sites`: after it.
    pub fn serve(&self, keys: &str, acme: &str, sites: &str) -> Server {
        let config = self.configure(keys, acme, sites);
        // Workers of an earlier server that was killed end a moment after it.
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        wait_until("the ports of an earlier server", || is_free(self.http_port) && is_free(self.tls_port));
        Server::start(&["--config", config.to_str().unwrap()])
    }

    /// Writes its configuration.
    pub fn configure(&self, keys: &str, acme: &str, sites: &str) -> PathBuf {
        let Ca { http_port, tls_port, directory_port, .. } = self;
        let text = format!(
            "listen = [\"127.0.0.1:{http_port}\", \"127.0.0.1:{tls_port} tls\"]\n{keys}\n\
             control.socket = \"control\"\n\
             [tls.acme]\nagree_to_terms = true\ndirectory = \"https://localhost:{directory_port}/dir\"\n\
             directory_ca = \"ca.pem\"\nstate = \"state\"\n{acme}\n{sites}\n"
        );
        let config = self.folder.path().join("amped.toml");
        fs::write(&config, text).unwrap();
        config
    }

    /// Requests a path by https as this name, with curl, which verifies the certificate. The error is what curl says.
    pub fn https(&self, name: &str, path: &str) -> Result<String, String> {
        let (management, own) = (self.management_port, self.folder.path().join("ca.pem"));
        let root = self.folder.path().join("issuer.pem");
        let mut command = Command::new("curl");
        command.args(["-sS", "-o", root.to_str().unwrap(), "--cacert", own.to_str().unwrap()]);
        command.arg(format!("https://localhost:{management}/roots/0"));
        let fetched = run_command(command);
        assert_eq!(fetched.status, 0, "{fetched:?}");
        let port = self.tls_port;
        let mut command = Command::new("curl");
        command.args(["-sS", "--cacert", root.to_str().unwrap(), "--resolve", &format!("{name}:{port}:127.0.0.1")]);
        command.arg(format!("https://{name}:{port}{path}"));
        let ended = run_command(command);
        if ended.status == 0 { Ok(ended.stdout) } else { Err(ended.stderr) }
    }

    /// What the CA says about the status of this certificate: `Valid` or `Revoked`.
    pub fn status_of(&self, file: &Path) -> String {
        let mut command = Command::new("openssl");
        command.args(["x509", "-noout", "-serial", "-in", file.to_str().unwrap()]);
        let serial = run_command(command).stdout;
        let serial = serial.trim().strip_prefix("serial=").unwrap().trim_start_matches('0').to_lowercase();
        let mut command = Command::new("curl");
        command.args(["-sS", "--cacert", self.folder.path().join("ca.pem").to_str().unwrap()]);
        command.arg(format!("https://localhost:{}/cert-status-by-serial/{serial}", self.management_port));
        run_command(command).stdout
    }
}

impl Drop for Ca {
    fn drop(&mut self) {
        for child in self.pebble.iter_mut().chain(&mut self.renewal_info).chain([&mut self.dns]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
