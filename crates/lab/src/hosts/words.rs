//! What is said between this machine and a host: JSON, a line each, over the streams of one ssh.
//!
//! Who asks gets one answer to each question, in their order; questions for the time are answered at once, by themselves, whatever
//! else is being done. A file comes as a line with its name and size, and its bytes behind it. Both sides take what the other
//! says for foreign bytes: what is no such line ends the conversation.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::archive::{Host, Program, Rules};
use crate::experiment::Settings;
use crate::run::{CpuUsage, Watched};
use crate::subject::Subject;

/// The longest line: a manifest of a large file set is in one.
const LINE_MAX: u64 = 256 << 20;

/// The largest file.
const FILE_MAX: u64 = 8 << 30;

/// What a host is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Ask {
    /// The time; the number comes back.
    Time(u64),
    /// To give up what is under way.
    Abort,
    /// Who are you?
    Who,
    /// Which programs these are.
    Programs(Vec<Subject>),
    /// To look at itself at rest.
    Rest(Rules),
    /// To start a server and who watches it.
    Begin(Box<Begin>),
    /// To let pass a look in which nothing is asked of the server.
    Calm,
    /// That the load begins now.
    Measure,
    /// That it has ended: what came of it?
    End,
    /// To make a generator ready.
    Load(Box<LoadOrder>),
    /// To have it begin, at an instant of the host's own clock: seconds since 1970.
    Go(f64),
    /// To end and remove all of a run.
    Clear,
}

/// A server to be started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begin {
    /// What it is, what it serves, and what it may have.
    pub(super) settings: Settings,
    /// From what contents are drawn.
    pub(super) seed: u64,
    /// How often the monitor looks; 0: there is none.
    pub(super) interval: Duration,
    /// The address that clients reach it by.
    pub(super) address: IpAddr,
}

/// What became of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Began {
    /// It answers.
    Ready {
        /// Where.
        address: SocketAddr,
        /// What can be asked for.
        target: String,
        /// What is asked for, if it is a set.
        manifest: Option<String>,
    },
    /// It cannot be run so, and why.
    Refused(String),
}

/// A load to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LoadOrder {
    /// What `ammeter` is told, but for its files.
    pub(super) words: Vec<String>,
    /// On which cores; `None`: where the kernel wants.
    pub(super) cores: Option<String>,
    /// What is asked for, if it is a set.
    pub(super) manifest: Option<String>,
    /// Whom to reach, before anything else.
    pub(super) server: SocketAddr,
    /// How long it may take once it was told to begin.
    pub(super) patience: Duration,
}

/// What became of a load.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Loaded {
    /// What it came to, in the form of `ammeter_load::parts::Parts`; `None`: nothing, and `said` tells why.
    pub(super) parts: Option<String>,
    /// What it printed besides.
    pub(super) said: String,
    /// What the host did meanwhile.
    pub(super) spell: CpuUsage,
}

/// What a host says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Who {
    /// The machine and its kernel.
    pub(super) host: Host,
    /// Whether it is root's there.
    pub(super) is_root: bool,
    /// The address by which ssh reached it (ssh(1), SSH_CONNECTION); `None` where that is not said.
    pub(super) address: Option<IpAddr>,
    /// The `ammeter` that answers.
    pub(super) program: Program,
}

/// What became of a run on the server's side; its files came before.
pub(super) type Ended = Watched;

/// The programs of subjects, by the subjects' names.
pub(super) type Programs = BTreeMap<String, Program>;

/// What a host says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Say {
    /// Its time, in seconds since 1970, for the question of this number.
    Time(u64, f64),
    /// A file: so many bytes follow the line.
    File {
        /// Its name, without a folder.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// An answer.
    Done(serde_json::Value),
    /// What was asked cannot be done, and why.
    Failed(String),
}

/// Writes a line.
///
/// # Errors
/// When the other side is gone.
pub(super) fn write(to: &mut impl Write, words: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(words).map_err(io::Error::other)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads a line; `None` when the other side has ended.
///
/// # Errors
/// What is no such line, or longer than any is.
pub(super) fn read<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\n") {
        return if line.len() as u64 == LINE_MAX { Err(io::Error::other("a line without an end")) } else { Ok(None) };
    }
    serde_json::from_slice(&line).map(Some).map_err(|error| {
        let begin: String = String::from_utf8_lossy(&line).trim().chars().take(200).collect();
        io::Error::other(format!("{begin:?} is not what an ammeter says ({error})"))
    })
}

/// Whether a file of this name and size may be taken: into one folder, and over nothing that is hidden.
pub(super) fn is_file_sound(name: &str, bytes: u64) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.chars().all(plain) && bytes <= FILE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_line_is_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read::<Say>(&mut &bytes[..]);
            let _ = read::<Ask>(&mut &bytes[..]);
        }

        #[test]
        fn a_file_stays_in_its_folder(name in "[a-z./\\\\ \0-]{0,12}") {
            if is_file_sound(&name, 1) {
                let path = std::path::Path::new("/a").join(&name);
                prop_assert_eq!(path.parent(), Some(std::path::Path::new("/a")));
                prop_assert!(!name.starts_with('.'));
            }
        }
    }

    #[test]
    fn lines_come_as_they_went() {
        let mut wire = Vec::new();
        write(&mut wire, &Ask::Time(7)).unwrap();
        write(&mut wire, &Say::Time(7, 1.7e9 + 0.125)).unwrap();
        write(&mut wire, &Say::File { name: "load.hlog".to_owned(), bytes: 3 }).unwrap();
        let mut rest = &wire[..];
        assert!(matches!(read::<Ask>(&mut rest), Ok(Some(Ask::Time(7)))));
        assert!(matches!(read::<Say>(&mut rest), Ok(Some(Say::Time(7, at))) if (at - 1.7e9 - 0.125).abs() < 1e-9));
        assert!(matches!(read::<Say>(&mut rest), Ok(Some(Say::File { bytes: 3, .. }))));
        assert!(matches!(read::<Say>(&mut rest), Ok(None)));
        // Cut within a line.
        assert!(matches!(read::<Say>(&mut &b"{\"done\""[..]), Ok(None)));
        let why = read::<Say>(&mut &b"Welcome to Debian\n"[..]).unwrap_err().to_string();
        assert!(why.contains("Welcome to Debian"), "{why}");
        for (name, bytes, expected) in
            [("load.json", 1, true), ("../x", 1, false), ("", 0, false), ("a", u64::MAX, false)]
        {
            assert_eq!(is_file_sound(name, bytes), expected, "{name} {bytes}");
        }
    }
}
