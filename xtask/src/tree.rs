//! Trees of files that become packages.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::command::{Outcome, program, root, run};

/// The version of all packages.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Adds a program without its symbols, and the documents about its license.
pub(crate) fn add_program(from: &Path, folder: &Path, doc: &Path) -> Outcome {
    let to = folder.join(from.file_name().ok_or("a program without a name")?);
    install(from, &to, 0o755)?;
    run(program("strip").arg("--strip-unneeded").arg(&to))?;
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        install(&root().join(license), &doc.join(license), 0o644)?;
    }
    write(
        &doc.join("copyright"),
        "Licensed under either of LICENSE-APACHE and LICENSE-MIT in this directory, at your option.\n",
    )
}

/// Copies a file into a tree.
pub(crate) fn install(from: &Path, to: &Path, mode: u32) -> Outcome {
    make_parents(to)?;
    let failed = |error| format!("cannot copy {} to {}: {error}", from.display(), to.display());
    fs::copy(from, to).map_err(failed)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(failed)
}

/// Writes a text into a tree.
pub(crate) fn write(to: &Path, text: &str) -> Outcome {
    make_parents(to)?;
    let failed = |error| format!("cannot write {}: {error}", to.display());
    fs::write(to, text).map_err(failed)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o644)).map_err(failed)
}

/// Creates the directories of a file, which everyone may enter, whatever the umask.
fn make_parents(to: &Path) -> Outcome {
    let missing: Vec<&Path> = to.ancestors().skip(1).take_while(|folder| !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        let failed = |error| format!("cannot create {}: {error}", folder.display());
        fs::create_dir(folder).map_err(failed)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    Ok(())
}

/// A server from a tree, for tests.
#[cfg(test)]
pub(crate) mod served {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use crate::ports::free_addresses;

    /// Ends a process when dropped.
    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Starts a server on a free port, and returns its response to a request for `/`.
    pub(crate) fn first_page(serve: &mut Command) -> String {
        let [address] = free_addresses();
        serve.args(["--listen", &address.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
        let _running = Running(serve.spawn().expect("started"));
        let begin = Instant::now();
        let mut stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) => assert!(begin.elapsed() < Duration::from_secs(30), "the server does not start: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("written");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("read");
        response
    }
}
