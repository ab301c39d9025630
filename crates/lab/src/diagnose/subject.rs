//! A server started for a diagnosis, by a command with named settings: `amped serve SITE --helpers {helpers}`.
//! Restarting it with another value shows the effect of that setting.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use amped_measure::Failure;
use amped_sys::process;

use crate::analyse::use_of::Kind;

/// A setting of a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Knob {
    /// Its name, which the command has in braces.
    pub(crate) name: String,
    /// Its value.
    pub(crate) value: f64,
}

impl std::str::FromStr for Knob {
    type Err = String;

    fn from_str(text: &str) -> Result<Knob, String> {
        let read = || {
            let (name, value) = text.split_once('=')?;
            let value: f64 = value.parse().ok()?;
            (!name.is_empty() && value > 0.0 && value.is_finite()).then(|| Knob { name: name.to_owned(), value })
        };
        read().ok_or_else(|| format!("invalid setting {text:?}: write for example helpers=2"))
    }
}

impl Knob {
    /// The setting multiplied by `times`; a whole number is rounded up to a whole number.
    pub(crate) fn moved(&self, times: f64) -> Knob {
        let value = self.value * times;
        let is_whole = self.value.fract() == 0.0;
        Knob { name: self.name.clone(), value: if is_whole { value.ceil() } else { value } }
    }

    /// The kind of resource that this setting sizes, by its name.
    pub(crate) fn kind(&self) -> Option<Kind> {
        let name = self.name.to_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        if has(&["backlog", "listen"]) {
            Some(Kind::AcceptQueue)
        } else if has(&["descriptor", "nofile", "files", "connections"]) {
            Some(Kind::Descriptors)
        } else if has(&["helper", "worker", "thread", "pool", "process", "children", "clients"]) {
            Some(Kind::Pool)
        } else if has(&["cache", "memory"]) {
            Some(Kind::Memory)
        } else {
            None
        }
    }
}

/// A server started by its command. Dropping it stops the server.
#[derive(Debug)]
pub(crate) struct Subject {
    command: String,
    address: SocketAddr,
    child: Option<Child>,
}

/// Timeout for a server to listen, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

impl Subject {
    /// Starts the server, and returns once a process listens on `address`.
    ///
    /// # Errors
    /// A setting of `knobs` is missing in the command, or the other way round; another process listens on the address;
    /// the server exits, or does not listen in time.
    pub(crate) fn start(command: &str, address: SocketAddr, knobs: &[Knob]) -> Result<Subject, Failure> {
        if TcpStream::connect(address).is_ok() {
            return Err(Failure::failed(format!(
                "another program already listens at {address}, so the server of --start cannot; stop that program, or omit --start"
            )));
        }
        let mut subject = Subject { command: command.to_owned(), address, child: None };
        subject.restart(knobs)?;
        Ok(subject)
    }

    /// Stops the server and starts it with these settings.
    ///
    /// # Errors
    /// As [`start`](Subject::start).
    pub(crate) fn restart(&mut self, knobs: &[Knob]) -> Result<(), Failure> {
        let command = filled(&self.command, knobs)?;
        self.end();
        // `exec` replaces the shell, so that the child process is the server.
        let mut words = Command::new("sh");
        words.args(["-c", &format!("exec {command}")]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        process::end_with_this_thread(&mut words);
        let child = words.spawn().map_err(Failure::io("start a shell (sh)"))?;
        let child = self.child.insert(child);
        let begun = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = child.try_wait().map_err(Failure::io("wait for the server"))? {
                return Err(Failure::failed(format!(
                    "the server of --start has ended ({status}): {command}; try it by hand"
                )));
            }
            if begun.elapsed() > PATIENCE {
                return Err(Failure::failed(format!(
                    "the server of --start does not listen at {}: {command}",
                    self.address
                )));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn end(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        process::terminate(child.id());
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.end();
    }
}

/// The command with the values of its settings filled in.
fn filled(command: &str, knobs: &[Knob]) -> Result<String, Failure> {
    let mut text = command.to_owned();
    for Knob { name, value } in knobs {
        let place = format!("{{{name}}}");
        if !text.contains(&place) {
            return Err(Failure::usage(format!(
                "--knob {name}={value} is not used: write {place} in the command of --start"
            )));
        }
        text = text.replace(&place, &value.to_string());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn valid_knobs_parse_and_invalid_ones_fail() {
        let knob = |text: &str| text.parse::<Knob>();
        assert_eq!(knob("helpers=2").unwrap(), Knob { name: "helpers".into(), value: 2.0 });
        for bad in ["", "helpers", "=2", "a=x", "a=0", "a=-1", "a=inf"] {
            assert!(knob(bad).is_err(), "{bad:?}");
        }
        assert_eq!((knob("a=2").unwrap().moved(1.2).value, knob("a=0.5").unwrap().moved(1.2).value), (3.0, 0.6));
        for (name, kind) in [
            ("backlog=8", Some(Kind::AcceptQueue)),
            ("MaxClients=8", Some(Kind::Pool)),
            ("helpers=2", Some(Kind::Pool)),
            ("nofile=64", Some(Kind::Descriptors)),
            ("cache=64", Some(Kind::Memory)),
            ("colour=1", None),
        ] {
            assert_eq!(knob(name).unwrap().kind(), kind, "{name}");
        }
    }

    #[test]
    fn command_requires_placeholder_for_each_knob() {
        let knobs = ["a=2".parse().unwrap(), "b=0.5".parse().unwrap()];
        assert_eq!(filled("x --a {a} --b={b} {a}", &knobs).unwrap(), "x --a 2 --b=0.5 2");
        assert!(filled("x --a {a}", &knobs).unwrap_err().to_string().contains("{b}"));
    }

    #[test]
    fn failed_start_is_reported() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let text = Subject::start("true", address, &[]).unwrap_err().to_string();
        assert!(text.contains("listens at") && text.contains("already"), "{text}");
        drop(taken);
        let text = Subject::start("false", address, &[]).unwrap_err().to_string();
        assert!(text.contains("has ended"), "{text}");
    }
}
