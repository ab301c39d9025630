//! Debian's nginx with a configuration of its own on loopback, for tests of several programs.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A running nginx. Ended when dropped.
pub struct Nginx {
    child: Child,
    folder: tempfile::TempDir,
}

/// Addresses on which nobody listens: free when they are chosen, and hardly taken in the moment until they are used.
pub fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    let ports = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    ports.each_ref().map(|port| port.local_addr().unwrap())
}

impl Nginx {
    /// With these servers, as they stand in a configuration; it lies in `folder`. Returns once somebody listens at `address`.
    pub fn start(folder: tempfile::TempDir, address: SocketAddr, servers: &str) -> Nginx {
        let own = folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {own}/{name};\n"))
            .concat();
        // One process, so that its id is all there is to end.
        let text = format!(
            "daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ {temporary} access_log off;\n{servers} }}\n"
        );
        let config = folder.path().join("nginx.conf");
        fs::write(&config, text).unwrap();
        // Debian keeps nginx where a plain user's PATH does not look.
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

    /// Where its configuration lies.
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
