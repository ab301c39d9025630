//! A server under measurement: started in a group of its own on a core of its own, and gone with it.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::group::Group;
use crate::command::Outcome;

/// A busy machine takes its time, a server that does not start does not.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server.
pub(super) struct Server {
    child: Child,
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// Its group, by which its CPU time is read and its disk slowed.
    pub(super) group: Group,
    said: Arc<Mutex<String>>,
}

impl Server {
    /// Starts `binary serve` with this configuration file and these flags; returns once it listens.
    pub(super) fn start(group: Group, core: usize, binary: &Path, config: &Path, flags: &[String]) -> Outcome<Server> {
        let (binary, config) = (binary.to_string_lossy(), config.to_string_lossy());
        let mut words: Vec<&str> = vec![&binary, "serve", "--config", &config];
        words.extend(flags.iter().map(String::as_str));
        let (heard, listens) = mpsc::channel();
        let mut server = Server::spawn(group, core, &words, move |line| {
            // Of a server on all addresses it says localhost.
            if let Some(address) = line.split_once("serving on http://").and_then(|(_, url)| url.split('/').next())
                && let Ok(address) = address.replace("localhost", "127.0.0.1").parse::<SocketAddr>()
            {
                let _ = heard.send(address);
            }
        })?;
        server.address = listens.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Disconnected => server.ended(),
            RecvTimeoutError::Timeout => server.does_not_listen(),
        })?;
        Ok(server)
    }

    /// Starts any server that has been told to listen at `address`; returns once it does.
    pub(super) fn start_at(address: SocketAddr, group: Group, core: usize, words: &[&str]) -> Outcome<Server> {
        let mut server = Server::spawn(group, core, words, |_| ())?;
        server.address = address;
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            server.check()?;
            if begin.elapsed() > PATIENCE {
                return Err(server.does_not_listen());
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(server)
    }

    /// Starts a program, and has each line of its standard error heard.
    fn spawn(
        group: Group,
        core: usize,
        words: &[&str],
        mut hear: impl FnMut(&str) + Send + 'static,
    ) -> Outcome<Server> {
        let mut command = group.command(core, words);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", words.join(" ")))?;
        let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let said = Arc::new(Mutex::new(String::new()));
        let keep = Arc::clone(&said);
        // Read to its end, or a server that has much to say would wait for us.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                hear(&line);
                let mut said = keep.lock().unwrap_or_else(PoisonError::into_inner);
                said.push_str(&line);
                said.push('\n');
            }
        });
        Ok(Server { child, address: SocketAddr::from(([0; 4], 0)), group, said })
    }

    /// That it is still there.
    pub(super) fn check(&mut self) -> Outcome {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    fn does_not_listen(&self) -> String {
        format!("the server does not listen; it said: {}", self.said())
    }

    fn ended(&mut self) -> String {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        format!("the server has ended ({status}); it said: {}", self.said())
    }

    fn said(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).trim_end().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The group ends the others of a pool. There is nothing to finish: all replies have been counted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens on, below those that the kernel gives to clients: one of them would not be free for long.
pub(super) fn free_port() -> Outcome<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    let from = (std::process::id() % u32::from(COUNT)) as u16;
    (0..COUNT)
        .map(|_| FIRST + (from + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or_else(|| format!("no port from {FIRST} on is free"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_given_once() {
        assert_ne!(free_port().unwrap(), free_port().unwrap());
    }
}
