//! The servers: how each is started, and its configuration, which lies in `experiments/server-speed` with the reason for each
//! line.
//!
//! In configurations and command lines `@site@` stands for the folder that is served, `@port@` for the port of 127.0.0.1 to
//! listen on, `@run@` for a folder of this server alone, `@amped@` and `@floor@` for programs of ours. A line that begins
//! with `#NAME# ` is one where the row has that name, and a comment elsewhere.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use super::super::group::Group;
use super::super::server::{Server, free_port};
use crate::command::{Outcome, program};

/// A server.
pub(in super::super) struct Program {
    pub(in super::super) name: &'static str,
    words: &'static [&'static str],
    /// Its name in the folder of its own, and its text.
    config: Option<(&'static str, &'static str)>,
    /// Prints the version in its first line.
    version: &'static [&'static str],
}

macro_rules! config {
    ($name:literal) => {
        Some(($name, include_str!(concat!("../../../../experiments/server-speed/", $name))))
    };
}

pub(in super::super) const AMPED: Program = Program {
    name: "amped",
    words: &["@amped@", "serve", "--config", "@run@/amped.toml"],
    config: config!("amped.toml"),
    version: &[],
};

/// The loop of `crates/sys/examples/floor.rs`; the bench writes its replies into `@run@/replies`.
pub(in super::super) const FLOOR: Program =
    Program { name: "floor", words: &["@floor@", "127.0.0.1:@port@", "@site@"], config: None, version: &[] };

pub(in super::super) const NGINX: Program = Program {
    name: "nginx",
    words: &["nginx", "-e", "stderr", "-p", "@run@", "-c", "@run@/nginx.conf"],
    config: config!("nginx.conf"),
    version: &["nginx", "-v"],
};

/// All rivals.
pub(in super::super) const RIVALS: &[Program] = &[
    NGINX,
    Program {
        name: "lighttpd",
        words: &["lighttpd", "-D", "-f", "@run@/lighttpd.conf"],
        config: config!("lighttpd.conf"),
        version: &["lighttpd", "-v"],
    },
    Program {
        name: "h2o",
        words: &["h2o", "-c", "@run@/h2o.conf"],
        config: config!("h2o.conf"),
        version: &["h2o", "--version"],
    },
    Program {
        name: "apache",
        // It refuses to be root, and as somebody else it could not enter a folder of root's, where a checkout may lie. So it
        // is www-data with that one right of root's.
        words: &[
            "setpriv",
            "--reuid=www-data",
            "--regid=www-data",
            "--clear-groups",
            "--inh-caps=+dac_override",
            "--ambient-caps=+dac_override",
            "apache2",
            "-DFOREGROUND",
            "-f",
            "@run@/apache.conf",
        ],
        config: config!("apache.conf"),
        version: &["apache2", "-v"],
    },
];

/// What a server is started with.
pub(in super::super) struct Place<'a> {
    /// The folder of the server alone, which is there.
    pub(in super::super) run: &'a Path,
    /// What it serves; for the floor, the file of its replies.
    pub(in super::super) site: &'a Path,
    pub(in super::super) amped: &'a Path,
    pub(in super::super) floor: &'a Path,
    pub(in super::super) core: usize,
}

impl Program {
    /// Starts it in `group`, with the lines of its configuration that these names stand before. Returns once it listens.
    pub(in super::super) fn start(&self, group: Group, place: &Place<'_>, names: &[&str]) -> Outcome<Server> {
        let port = free_port()?;
        let fill = |text: &str| {
            let known = [("site", place.site), ("run", place.run), ("amped", place.amped), ("floor", place.floor)];
            let put =
                |text: String, (name, path): (&str, &Path)| text.replace(&format!("@{name}@"), &path.to_string_lossy());
            known.into_iter().fold(text.replace("@port@", &port.to_string()), put)
        };
        if let Some((name, text)) = self.config {
            let path = place.run.join(name);
            let written = fs::write(&path, fill(&with_lines(text, names)));
            written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        let words: Vec<String> = self.words.iter().map(|word| fill(word)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Server::start_at(address, group, place.core, &words).map_err(|text| format!("{}: {text}", self.name))
    }

    /// Its version, as it says it.
    pub(in super::super) fn version(&self) -> Option<String> {
        let (first, others) = self.version.split_first()?;
        let said = program(*first).args(others).output().ok()?;
        let text = [said.stdout, said.stderr].concat();
        let line = String::from_utf8_lossy(&text).lines().next()?.to_owned();
        Some(line.trim_start_matches("Server version: ").trim_start_matches("nginx version: ").to_owned())
    }
}

/// Takes the mark from the lines that one of these names stands before.
fn with_lines(text: &str, names: &[&str]) -> String {
    let line = |line: &str| {
        let marks = names.iter().map(|name| format!("#{name}# "));
        let indent = line.len() - line.trim_start().len();
        let rest = marks.into_iter().find_map(|mark| line[indent..].strip_prefix(&*mark).map(str::to_owned));
        rest.map_or_else(|| line.to_owned(), |rest| line[..indent].to_owned() + &rest) + "\n"
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hold_where_their_name_is_given() {
        let text = "a\n  #log# b \"#log# c\"\n#threads# d\n# e\n";
        let check = |names: &[&str], expected: &str| assert_eq!(with_lines(text, names), expected, "{names:?}");
        check(&[], text);
        check(&["log"], "a\n  b \"#log# c\"\n#threads# d\n# e\n");
        check(&["log", "threads"], "a\n  b \"#log# c\"\nd\n# e\n");
    }

    #[test]
    fn every_configuration_says_where_to_listen_what_to_serve_and_how_to_log() {
        for Program { name, config, .. } in RIVALS.iter().chain([&AMPED]) {
            let text = config.expect("each has one").1;
            assert!(text.contains("@port@") && text.contains("@site@") && text.contains("#log# "), "{name}");
        }
        assert!(NGINX.config.expect("it has one").1.contains("#threads# aio threads;"));
    }
}
