//! A server started for a diagnosis, by a command with named settings: `amped serve SITE --helpers {helpers}`.
//! Restarting it with another value shows the effect of that setting.

use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use amped_measure::Failure;

use crate::analyse::use_of::Kind;
use crate::environment::{Running, Streams};

/// A setting of a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// Its name, in braces in the command.
    pub(crate) name: String,
    /// Its value.
    pub(crate) value: f64,
}

impl std::str::FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let read = || {
            let (name, value) = text.split_once('=')?;
            let value: f64 = value.parse().ok()?;
            (!name.is_empty() && value > 0.0 && value.is_finite()).then(|| Setting { name: name.to_owned(), value })
        };
        read().ok_or_else(|| format!("invalid setting {text:?}: write, for example, helpers=2"))
    }
}

impl Setting {
    /// The setting multiplied by `times`; a whole number is rounded up to a whole number.
    pub(crate) fn moved(&self, times: f64) -> Setting {
        let value = self.value * times;
        let is_whole = self.value.fract() == 0.0;
        Setting { name: self.name.clone(), value: if is_whole { value.ceil() } else { value } }
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
    running: Option<Running>,
}

/// Timeout for a server to listen, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

impl Subject {
    /// Starts the server, and returns once a process listens on `address`.
    ///
    /// # Errors
    /// A setting is missing in the command, or the other way round; another process listens on the address;
    /// the server exits, or does not listen in time.
    pub(crate) fn start(command: &str, address: SocketAddr, settings: &[Setting]) -> Result<Subject, Failure> {
        if TcpStream::connect(address).is_ok() {
            return Err(Failure::failed(format!(
                "another program already listens on {address}; stop it, or omit --start"
            )));
        }
        let mut subject = Subject { command: command.to_owned(), address, running: None };
        subject.restart(settings)?;
        Ok(subject)
    }

    /// Stops the server and starts it with these settings.
    ///
    /// # Errors
    /// Those of [`start`](Subject::start).
    pub(crate) fn restart(&mut self, settings: &[Setting]) -> Result<(), Failure> {
        let command = filled(&self.command, settings)?;
        self.end();
        // `exec` replaces the shell, so that the child process is the server.
        let words = ["sh", "-c", &format!("exec {command}")].map(str::to_owned);
        let streams = Streams { out: Stdio::null(), err: Stdio::null() };
        let running = self.running.insert(Running::start("the server", &words, streams)?);
        let begun = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = running.ended() {
                return Err(Failure::failed(format!(
                    "the server started by --start exited ({status}): {command}; run it by hand to see its error"
                )));
            }
            if begun.elapsed() > PATIENCE {
                return Err(Failure::failed(format!(
                    "the server started by --start does not listen at {}: {command}",
                    self.address
                )));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn end(&mut self) {
        if let Some(running) = self.running.take() {
            running.end(PATIENCE);
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.end();
    }
}

/// The command with the values of its settings filled in.
fn filled(command: &str, settings: &[Setting]) -> Result<String, Failure> {
    let mut text = command.to_owned();
    for Setting { name, value } in settings {
        let place = format!("{{{name}}}");
        if !text.contains(&place) {
            return Err(Failure::usage(format!(
                "--setting {name}={value} is not used: write {place} in the command of --start"
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
    fn valid_settings_parse_and_invalid_ones_fail() {
        let setting = |text: &str| text.parse::<Setting>();
        assert_eq!(setting("helpers=2").unwrap(), Setting { name: "helpers".into(), value: 2.0 });
        for bad in ["", "helpers", "=2", "a=x", "a=0", "a=-1", "a=inf"] {
            assert!(setting(bad).is_err(), "{bad:?}");
        }
        assert_eq!((setting("a=2").unwrap().moved(1.2).value, setting("a=0.5").unwrap().moved(1.2).value), (3.0, 0.6));
        for (name, kind) in [
            ("backlog=8", Some(Kind::AcceptQueue)),
            ("MaxClients=8", Some(Kind::Pool)),
            ("helpers=2", Some(Kind::Pool)),
            ("nofile=64", Some(Kind::Descriptors)),
            ("cache=64", Some(Kind::Memory)),
            ("colour=1", None),
        ] {
            assert_eq!(setting(name).unwrap().kind(), kind, "{name}");
        }
    }

    #[test]
    fn command_requires_placeholder_for_each_setting() {
        let settings = ["a=2".parse().unwrap(), "b=0.5".parse().unwrap()];
        assert_eq!(filled("x --a {a} --b={b} {a}", &settings).unwrap(), "x --a 2 --b=0.5 2");
        assert!(filled("x --a {a}", &settings).unwrap_err().to_string().contains("{b}"));
    }

    #[test]
    fn failed_start_is_reported() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let text = Subject::start("true", address, &[]).unwrap_err().to_string();
        assert!(text.contains("listens on") && text.contains("already"), "{text}");
        drop(taken);
        let text = Subject::start("false", address, &[]).unwrap_err().to_string();
        assert!(text.contains("exited"), "{text}");
    }
}
