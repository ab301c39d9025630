//! Debian's nginx with a configuration of its own on loopback, for several test programs.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A running nginx. Stopped when dropped.
pub struct Nginx {
    child: Child,
    folder: tempfile::TempDir,
}

impl Nginx {
    /// Starts nginx with these `server` blocks; its configuration is in `folder`. Returns when `address` accepts
    /// connections.
    pub fn start(folder: tempfile::TempDir, address: SocketAddr, servers: &str) -> Nginx {
        let own = folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {own}/{name};\n"))
            .concat();
        // One process, so that its id is enough to stop it.
        let text = format!(
            "daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ {temporary} access_log off;\n{servers} }}\n"
        );
        let config = folder.path().join("nginx.conf");
        fs::write(&config, text).unwrap();
        // Debian installs nginx in a directory that a plain user's PATH lacks.
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
        let mut command = Command::new("nginx");
        command.env("PATH", path).args(["-e", &format!("{own}/error.log"), "-p"]).arg(folder.path());
        let child = command.arg("-c").arg(&config).stderr(Stdio::null()).spawn();
        let mut nginx = Nginx { child: child.expect("nginx is not there: run cargo xtask setup"), folder };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = nginx.child.try_wait().unwrap();
            let log = || fs::read_to_string(nginx.folder().join("error.log")).unwrap_or_default();
            assert!(ended.is_none() && begun.elapsed() < Duration::from_secs(60), "nginx does not listen: {}", log());
            thread::sleep(Duration::from_millis(5));
        }
        nginx
    }

    /// The directory with its configuration.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
