//! The built-in experiments: each is a directory of `experiments/` with its file. An experiment that
//! reproduces several exhibits of a paper lists each of them with a description in its table
//! `[exhibits]`, and is found by these names too.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use amped_measure::Failure;
use serde::Deserialize;

/// A built-in experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exhibit {
    /// Name of the experiment and of its directory.
    pub(crate) name: &'static str,
    /// Text of the experiment file.
    pub(crate) text: &'static str,
}

impl Exhibit {
    /// Path of the file, for error messages.
    pub(crate) fn file(&self) -> String {
        format!("experiments/{}/experiment.toml", self.name)
    }

    /// Returns the exhibits it reproduces, with descriptions, in numerical order; empty if the
    /// experiment is itself one exhibit.
    pub(crate) fn makes(&self) -> Vec<(String, String)> {
        #[derive(Deserialize)]
        struct File {
            #[serde(default)]
            exhibits: BTreeMap<String, String>,
        }
        let file: File = toml::from_str(self.text).unwrap_or(File { exhibits: BTreeMap::new() });
        let mut exhibits: Vec<(String, String)> = file.exhibits.into_iter().collect();
        let number = |name: &str| name.rsplit('-').next().and_then(|number| number.parse::<u32>().ok());
        exhibits.sort_by_key(|(name, _)| number(name));
        exhibits
    }

    /// Returns all names by which it is found, without duplicates.
    fn names(&self) -> Vec<String> {
        let mut names = vec![self.name.to_owned()];
        names.extend(self.makes().into_iter().map(|(name, _)| name).filter(|name| name != self.name));
        names
    }
}

macro_rules! exhibits {
    ($($name:literal),* $(,)?) => {
        /// All built-in experiments, in the order of the papers.
        pub(crate) const ALL: &[Exhibit] = &[$(Exhibit {
            name: $name,
            text: include_str!(concat!("../../../experiments/", $name, "/experiment.toml")),
        }),*];
    };
}

exhibits![
    "hu-tables-1-2",
    "hu-section-2-2",
    "hu-figures-1-4",
    "hu-section-4-2",
    "hu-figure-5",
    "hu-figures-6-10",
    "hu-section-5-2",
    "hu-section-5-3",
    "hu-figure-12",
    "hu-figure-13",
    "yates-section-2",
    "yates-figure-1",
    "yates-figure-2",
    "yates-section-4-2",
    "yates-figure-6",
    "flash-single-file",
    "flash-traces",
    "flash-data-set-size",
    "flash-data-set-disks",
    "flash-breakdown",
    "flash-concurrent-clients",
    "banga-figure-2",
    "banga-figure-5",
    "banga-figure-6",
    "banga-figure-7",
    "banga-figure-8",
    "banga-figures-9-10",
    "banga-section-5-5",
    "banga-section-5-6",
    "arlitt-figure-2",
    "arlitt-figure-3",
    "arlitt-figure-4",
    "arlitt-figure-5",
    "arlitt-figure-6",
    "arlitt-figure-7",
    "arlitt-figure-8",
    "arlitt-figure-9",
    "arlitt-figure-10",
    "arlitt-figure-11",
    "arlitt-section-5-1-7",
    "alignment",
    "content",
    "residency",
    "server-speed",
    "server-connections",
    "server-at-rest",
    "server-slow-disk",
    "server-overload",
    "server-tls",
    "server-tls-storm",
    "server-http2",
    "server-cold-streams",
    "server-object-store",
];

/// Finds the experiment with this name, or the one that reproduces the exhibit with this name.
///
/// # Errors
/// If there is none; the message suggests the closest name, or lists all.
pub(crate) fn find(name: &str) -> Result<Exhibit, Failure> {
    if let Some(exhibit) = ALL.iter().find(|exhibit| exhibit.names().iter().any(|known| known == name)) {
        return Ok(*exhibit);
    }
    let names: Vec<String> = ALL.iter().flat_map(Exhibit::names).collect();
    let nearest = names.iter().min_by_key(|known| strsim::osa_distance(name, known));
    // With more than a third of the name wrong, a suggestion would be a guess.
    let nearest = nearest.filter(|known| strsim::osa_distance(name, known) * 3 <= name.len());
    let way_out =
        nearest.map_or_else(|| format!("known: {}", names.join(", ")), |known| format!("did you mean {known}?"));
    Err(Failure::usage(format!("no file {name}, and no built-in experiment of that name; {way_out}")))
}

/// Reads the experiment file at this path, or the built-in experiment of this name: file name and text.
///
/// # Errors
/// If neither exists.
pub(crate) fn read(experiment: &str) -> Result<(String, String), Failure> {
    let path = Path::new(experiment);
    if path.is_file() {
        let text = fs::read_to_string(path).map_err(Failure::io(format_args!("read {experiment}")))?;
        return Ok((experiment.to_owned(), text));
    }
    let exhibit = find(experiment)?;
    Ok((exhibit.file(), exhibit.text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{self, Options};
    use crate::plan;
    use std::collections::BTreeSet;

    #[test]
    fn exhibits_parse_and_short_versions_are_short() {
        for exhibit in ALL {
            for quick in [false, true] {
                let experiment = experiment::parse(&exhibit.file(), exhibit.text, Options { quick, seed: None });
                let resolved = experiment.unwrap_or_else(|failure| panic!("{failure}")).resolved;
                assert!(
                    resolved.name == exhibit.name && !resolved.title.is_empty() && resolved.about.len() > 100,
                    "{}",
                    exhibit.name
                );
                let expected_s = plan::plan(&resolved).expected_s;
                assert!(!quick || expected_s < 600.0, "{} takes {expected_s} s", exhibit.name);
                // Parsing has checked all references: arms, loads and metrics.
                assert!(!resolved.claims.is_empty(), "{} has no claims", exhibit.name);
                assert!(!quick || resolved.repetitions > 1, "{}: one block is too few for a verdict", exhibit.name);
            }
        }
    }

    #[test]
    fn exhibit_names_are_unique_and_typos_get_suggestion() {
        let mut names = BTreeSet::new();
        for exhibit in ALL {
            assert_eq!(find(exhibit.name).unwrap().name, exhibit.name);
            let made = exhibit.makes();
            for (name, shows) in &made {
                assert!(find(name).unwrap().name == exhibit.name && !shows.is_empty(), "{name}");
                assert!(names.insert(name.clone()), "two experiments produce {name}");
            }
            assert!(!made.is_empty() || names.insert(exhibit.name.to_owned()), "{}", exhibit.name);
        }
        // The exhibits that each paper must have.
        for (paper, figures) in
            [("hu", 1..=10), ("hu", 12..=13), ("yates", 1..=6), ("arlitt", 2..=11), ("banga", 5..=10)]
        {
            for figure in figures {
                assert!(names.contains(&format!("{paper}-figure-{figure}")), "{paper}, figure {figure}");
            }
        }
        for name in ["hu-table-1", "hu-table-2", "yates-table-3", "banga-section-5-6", "flash-data-set-size"] {
            assert!(names.contains(name), "{name}");
        }
        let makes: Vec<String> = find("hu-figures-6-10").unwrap().makes().into_iter().map(|(name, _)| name).collect();
        assert_eq!(makes.first().map(String::as_str), Some("hu-figure-6"));
        assert_eq!(makes.last().map(String::as_str), Some("hu-figure-10"));
        let check = |name: &str, part: &str| {
            let error = find(name).unwrap_err();
            assert!(error.exit_status() == 2 && error.to_string().contains(part), "{error}");
        };
        check("arlit-figure-5", "did you mean arlitt-figure-5?");
        check("yates-tabel-3", "did you mean yates-table-3?");
        check("x", "known: ");
        check("x", ", hu-figure-13, yates-section-2, yates-figure-1, yates-figure-4, yates-figure-2, yates-figure-3, ");
    }
}
