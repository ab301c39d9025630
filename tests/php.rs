//! php-fpm, an application that is started before the server.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::wait_until;

/// A pool at a socket of its own. Stopped when dropped.
pub struct Php(Child);

impl Php {
    /// Starts a pool of four processes that accepts large uploads.
    pub fn start(folder: &Path, socket: &Path) -> Php {
        let pool = "pm = static\npm.max_children = 4\nphp_admin_value[post_max_size] = 100M\n\
                    php_admin_value[upload_max_filesize] = 100M\nphp_admin_value[memory_limit] = 256M\n";
        Php::with(folder, socket, pool)
    }

    /// Starts a pool like Debian's: dynamic, with at most five processes.
    pub fn like_debian(folder: &Path, socket: &Path) -> Php {
        let pool = "pm = dynamic\npm.max_children = 5\npm.start_servers = 2\npm.min_spare_servers = 1\n\
                    pm.max_spare_servers = 3\n";
        Php::with(folder, socket, pool)
    }

    fn with(folder: &Path, socket: &Path, pool: &str) -> Php {
        let (config, log, listen) = (folder.join("fpm.conf"), folder.join("fpm.log"), socket.display());
        let text = format!(
            "[global]\nerror_log = {}\ndaemonize = no\n[www]\nuser = root\ngroup = root\nlisten = {listen}\n{pool}",
            log.display()
        );
        fs::write(&config, text).unwrap();
        // Debian installs it in a directory that a plain user's PATH lacks.
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
        let mut command = Command::new("php-fpm8.2");
        command.args(["--nodaemonize", "--allow-to-run-as-root", "--fpm-config"]).arg(&config).env("PATH", path);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.expect("php-fpm8.2; `cargo xtask setup` brings it (Debian package php8.2-fpm)");
        // The socket has its name before php-fpm listens on it.
        wait_until("php-fpm to listen", || UnixStream::connect(socket).is_ok());
        Php(child)
    }
}

impl Drop for Php {
    fn drop(&mut self) {
        // It stops its children when it ends.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}
