//! `amped acme`: shows, renews and revokes the certificates that a running server obtains.
//!
//! The other side is `control`: one line for the command, one for its reply.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use amped_acme_protocol::Status;
use amped_http::date;
use amped_sys::local;

use crate::clock;
use crate::config::cli::{self, AcmeAction};
use crate::preload::cannot_connect;
use crate::{say, serve};

/// How long a command may take: the CA validates and issues meanwhile, and an earlier order may be in progress.
const PATIENCE: Duration = Duration::from_secs(1500);

/// Maximum length of a reply.
const REPLY_MAX: u64 = 16 << 20;

/// Executes the command.
pub fn run(flags: &cli::Acme) -> ExitCode {
    match try_run(flags) {
        Ok(text) => serve::print(&text),
        Err(message) => {
            say!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(flags: &cli::Acme) -> Result<String, String> {
    let command = match &flags.action {
        AcmeAction::Status { .. } => "acme status\n".to_owned(),
        AcmeAction::Renew { name } => format!("acme renew {}\n", checked(name)?),
        AcmeAction::Revoke { name } => format!("acme revoke {}\n", checked(name)?),
    };
    let text = ask(&flags.control, &command, PATIENCE)?;
    match &flags.action {
        AcmeAction::Status { json: false } => {
            let status: Vec<Status> = serde_json::from_str(&text)
                .map_err(|error| format!("invalid reply: {error}; does the server have another version?"))?;
            Ok(table(&status, clock::since_1970().as_secs()))
        }
        AcmeAction::Status { .. } | AcmeAction::Renew { .. } | AcmeAction::Revoke { .. } => Ok(format!("{text}\n")),
    }
}

/// Sends a command, which is one line, to a server; returns the text of its reply.
///
/// # Errors
/// A message: the server cannot be reached, or refuses.
pub fn ask(control: &Path, command: &str, patience: Duration) -> Result<String, String> {
    let mut stream = local::connect(control, patience).map_err(|error| cannot_connect(control, &error))?;
    let reply = stream.write_all(command.as_bytes()).and_then(|()| {
        let mut line = String::new();
        BufReader::new(stream.take(REPLY_MAX)).read_line(&mut line)?;
        Ok(line)
    });
    let reply = reply.map_err(|error: io::Error| format!("no reply from the server: {error}"))?;
    match reply.trim_end().split_once(' ') {
        Some(("200", text)) => Ok(text.to_owned()),
        Some((_, why)) => Err(why.to_owned()),
        None => Err("the server has closed the connection; was it stopped?".to_owned()),
    }
}

/// Checks a host name, which must be one word of the command.
fn checked(name: &str) -> Result<&str, String> {
    let is_word = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control());
    if is_word { Ok(name) } else { Err(format!("{name:?} is not a host name")) }
}

/// Describes each certificate. `now`: seconds since 1970.
fn table(status: &[Status], now: u64) -> String {
    let mut text = String::new();
    if status.is_empty() {
        text += "nothing is known yet: the ACME process is starting, or fails to (see the server's log)\n";
    }
    for Status { names, file, expires, next_order, failures, last_error } in status {
        let _ = writeln!(text, "{}", names.join(", "));
        let _ = writeln!(text, "  file         {}", file.display());
        let expires = expires.map_or("there is none yet".to_owned(), |at| shown(at, now));
        let _ = writeln!(text, "  expires      {expires}");
        let _ = writeln!(text, "  next order   {}", shown(*next_order, now));
        if let Some(error) = last_error {
            let _ = writeln!(text, "  failures     {failures}; the last: {error}");
        }
    }
    text
}

/// Formats a time, and how far it is from now.
fn shown(at: u64, now: u64) -> String {
    let seconds = i64::try_from(at).unwrap_or(i64::MAX);
    let date = String::from_utf8_lossy(&date::format(seconds)).into_owned();
    let span = |seconds: u64| match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    };
    match at.checked_sub(now) {
        Some(left) => format!("{date} (in {})", span(left)),
        None => format!("{date} ({} ago)", span(now - at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_described() {
        let status = Status {
            names: ["a.example", "b.example"].map(str::to_owned).into(),
            file: "/state/a.example.pem".into(),
            expires: Some(784_111_777),
            next_order: 784_111_777 - 40 * 86_400,
            failures: 2,
            last_error: Some("no".to_owned()),
        };
        let text = table(std::slice::from_ref(&status), 784_111_777 - 90 * 86_400);
        for part in
            ["a.example, b.example\n", "06 Nov 1994 08:49:37 GMT (in 90 days)", "(in 50 days)", "2; the last: no"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let new = Status { expires: None, next_order: 1000, failures: 0, last_error: None, ..status };
        let text = table(&[new], 1090);
        assert!(
            text.contains("there is none yet") && text.contains("(90 s ago)") && !text.contains("failures"),
            "{text}"
        );
        assert!(table(&[], 0).contains("starting"));
    }

    #[test]
    fn name_is_one_word() {
        assert!(checked("a.example").is_ok());
        for bad in ["", "a b", "a\nrevoke"] {
            checked(bad).unwrap_err();
        }
    }
}
