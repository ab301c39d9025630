//! How this program runs a command on another host: by `ssh`, or by whatever else starts programs there.

use std::path::Path;

/// The placeholder for the host's name.
pub(crate) const HOST: &str = "{host}";

/// How to reach a host unless the user says otherwise.
pub(crate) const SSH: &str = "ssh {host}";

/// The command that runs another command on a host, such as `ssh {host}` or `docker exec -i {host}`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channel {
    /// The words before the command; none for this machine.
    words: Vec<String>,
}

impl Channel {
    /// Makes a channel to this host from words with [`HOST`] in place of its name.
    pub(crate) fn new(via: &str, host: &str) -> Channel {
        Channel { words: via.split_whitespace().map(|word| word.replace(HOST, host)).collect() }
    }

    /// Whether the program is ssh(1), of whatever directory.
    pub(crate) fn is_ssh(&self) -> bool {
        self.words.first().is_some_and(|program| Path::new(program).file_name().is_some_and(|name| name == "ssh"))
    }

    /// Inserts flags after the program.
    pub(crate) fn with_flags<'a>(&self, flags: impl IntoIterator<Item = &'a str>) -> Channel {
        let (program, rest) = self.words.split_at(self.words.len().min(1));
        let flags = flags.into_iter().map(str::to_owned);
        Channel { words: program.iter().cloned().chain(flags).chain(rest.iter().cloned()).collect() }
    }

    /// The command line that runs these words on the host.
    pub(crate) fn command<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let words = words.into_iter();
        if self.is_ssh() {
            // ssh joins its arguments to a line for the login shell.
            self.words.iter().cloned().chain([format!("exec {}", quoted(words))]).collect()
        } else {
            self.words.iter().cloned().chain(words.map(str::to_owned)).collect()
        }
    }

    /// The words before a command.
    pub(crate) fn words(self) -> Vec<String> {
        self.words
    }

    /// The words before a command, as typed in a shell.
    pub(crate) fn shown(&self) -> String {
        self.words.join(" ")
    }
}

/// Quotes words as one shell command.
pub(crate) fn quoted<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted = words.into_iter().map(|word| format!("'{}'", word.replace('\'', "'\\''")));
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_quoted_for_ssh_only() {
        let words = ["cat", "a b"];
        let line = |via: &str| Channel::new(via, "h").with_flags(["-T"]).command(words).join("|");
        assert_eq!(line("/usr/bin/ssh -F x {host}"), "/usr/bin/ssh|-T|-F|x|h|exec 'cat' 'a b'");
        assert_eq!(line("srun --nodelist={host}"), "srun|-T|--nodelist=h|cat|a b");
        assert_eq!(Channel::default().command(words), words);
        assert!(!Channel::default().is_ssh());
    }
}
