//! The experiments that are built in: exhibits of the papers, each a folder of `experiments/` with the file that makes it.

use amped_measure::Failure;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exhibit {
    /// Its name, that of its folder.
    pub(crate) name: &'static str,
    /// The file.
    pub(crate) text: &'static str,
}

impl Exhibit {
    /// What the file is called, for errors.
    pub(crate) fn file(&self) -> String {
        format!("experiments/{}/experiment.toml", self.name)
    }
}

macro_rules! exhibits {
    ($($name:literal),* $(,)?) => {
        /// All of them, in the order of the papers.
        pub(crate) const ALL: &[Exhibit] = &[$(Exhibit {
            name: $name,
            text: include_str!(concat!("../../../experiments/", $name, "/experiment.toml")),
        }),*];
    };
}

exhibits![
    "hu-figures-1-4",
    "hu-figures-6-10",
    "hu-figure-12",
    "yates-figure-1",
    "yates-figure-2",
    "flash-single-file",
    "flash-data-set-size",
    "flash-breakdown",
    "flash-concurrent-clients",
    "banga-figures-5-6",
    "banga-figure-7",
    "banga-figure-8",
    "banga-figures-9-10",
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
];

/// The one of this name.
///
/// # Errors
/// There is none; the names that there are.
pub(crate) fn find(name: &str) -> Result<Exhibit, Failure> {
    ALL.iter().find(|exhibit| exhibit.name == name).copied().ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|exhibit| exhibit.name).collect();
        Failure::usage(format!(
            "there is no file {name}, and no experiment of that name is built in; there are: {}",
            names.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{self, Wish};
    use crate::plan;

    #[test]
    fn all_of_them_can_be_read_and_the_short_ones_are_short() {
        for exhibit in ALL {
            for quick in [false, true] {
                let experiment = experiment::parse(&exhibit.file(), exhibit.text, Wish { quick, seed: None });
                let resolved = experiment.unwrap_or_else(|failure| panic!("{failure}")).resolved;
                assert!(
                    resolved.name == exhibit.name && !resolved.title.is_empty() && resolved.about.len() > 100,
                    "{}",
                    exhibit.name
                );
                let expected_s = plan::plan(&resolved).expected_s;
                assert!(!quick || expected_s < 600.0, "{} takes {expected_s} s", exhibit.name);
            }
        }
        assert!(find("arlitt-figure-5").is_ok() && find("x").unwrap_err().to_string().contains("arlitt-figure-5"));
    }
}
