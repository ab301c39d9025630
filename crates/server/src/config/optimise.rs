//! The optimisations of the papers, each a switch, so that its worth can be measured.
//!
//! What a switch does is said with its variant, and where it takes effect the code names it again. Off, the server does
//! what the server of the paper did without it, which is slower and never wrong.

use std::time::Duration;

use amped_core::cache::Budgets;
use amped_core::cache::hostname::HostnameLimits;
use amped_units::Bytes;
use clap::ValueEnum;

/// An optimisation that can be switched on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Optimisation {
    /// Keep what names mean (Flash 5.2); off: look each up for each request
    PathCache,
    /// Keep whole header blocks (Flash 5.3); off: write each anew
    HeaderCache,
    /// Keep contents and opened files (Flash 5.4, Hu 5.2); off: open and read for each request
    ContentCache,
    /// Believe a file's state for `revalidate` (Hu 5.2); off: ask the file system for each request
    FileStateCache,
    /// Keep what targets stand for (Hu 5.4); off, the default: decode and clean each
    UriCache,
    /// Make the texts of date, time and status once (Hu 5.3.2); off: for each reply and line
    StringCaches,
    /// Gather lines of the log (Hu 5.3.3); off: a write(2) for each, in the loop
    DelayedLog,
    /// Keep names of hosts (Hu 5.3.1); off: ask for each line
    DnsCache,
    /// Work out entity tag and media type when a file is opened (Hu 6); off: for each reply
    ReadyHeaders,
    /// Keep listings, and pages of applications that have `cache` (Hu 5.4); off: make each anew
    MadePages,
    /// Send from the page cache without a copy; off: read and send
    Sendfile,
    /// Pad heads to a multiple of 32 bytes (Flash 5.5); off, the default: as they are
    HeaderAlignment,
}

/// Which optimisations are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimise([bool; 12]);

impl Default for Optimise {
    /// All but those that cost more here than they save.
    fn default() -> Optimise {
        let mut all = Optimise([true; 12]);
        all.set(Optimisation::UriCache, false);
        all.set(Optimisation::HeaderAlignment, false);
        all
    }
}

impl Optimise {
    /// Whether this one is on.
    pub fn has(&self, which: Optimisation) -> bool {
        self.0[which as usize]
    }

    fn set(&mut self, which: Optimisation, on: bool) {
        self.0[which as usize] = on;
    }

    /// What the file says, then what is taken away, then what is added.
    pub(super) fn settle(
        file: [(Optimisation, Option<bool>); 12],
        without: &[Without],
        with: &[Optimisation],
    ) -> Optimise {
        let mut optimise = Optimise::default();
        for (which, said) in file {
            if let Some(on) = said {
                optimise.set(which, on);
            }
        }
        for which in without {
            match which {
                Without::All => optimise = Optimise([false; 12]),
                Without::One(which) => optimise.set(*which, false),
            }
        }
        with.iter().for_each(|&which| optimise.set(which, true));
        optimise
    }

    /// What the caches may hold, with those that are off left empty.
    #[must_use]
    pub fn budgets(&self, mut budgets: Budgets) -> Budgets {
        let off = |which| !self.has(which);
        if off(Optimisation::UriCache) {
            budgets.uri_entries = 0;
        }
        if off(Optimisation::PathCache) {
            // A choice is one among what a name means.
            (budgets.path_entries, budgets.negotiation_entries) = (0, 0);
        }
        if off(Optimisation::HeaderCache) {
            budgets.head_bytes = Bytes(0);
        }
        if off(Optimisation::ContentCache) {
            (budgets.content_bytes, budgets.descriptors) = (Bytes(0), 0);
        }
        if off(Optimisation::FileStateCache) {
            budgets.revalidate = Duration::ZERO;
        }
        budgets.ready_headers = self.has(Optimisation::ReadyHeaders);
        budgets.made_pages = self.has(Optimisation::MadePages);
        budgets
    }

    /// What the log may keep of hosts' names.
    #[must_use]
    pub fn hostnames(&self, limits: HostnameLimits) -> HostnameLimits {
        let entries = if self.has(Optimisation::DnsCache) { limits.entries } else { 0 };
        HostnameLimits { entries, ..limits }
    }
}

/// What `--without` takes: one of them, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// This one.
    One(Optimisation),
    /// All there are: the server of the papers before any of it.
    All,
}

impl ValueEnum for Without {
    fn value_variants<'a>() -> &'a [Without] {
        use Optimisation as O;
        use Without::One;
        &[
            One(O::PathCache),
            One(O::HeaderCache),
            One(O::ContentCache),
            One(O::FileStateCache),
            One(O::UriCache),
            One(O::StringCaches),
            One(O::DelayedLog),
            One(O::DnsCache),
            One(O::ReadyHeaders),
            One(O::MadePages),
            One(O::Sendfile),
            One(O::HeaderAlignment),
            Without::All,
        ]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        match self {
            Without::One(which) => which.to_possible_value(),
            Without::All => Some(clap::builder::PossibleValue::new("all").help("All of them")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_optimisation_can_be_disabled() {
        assert_eq!(Without::value_variants().len(), Optimisation::value_variants().len() + 1);
        let file = std::array::from_fn(|n| (Optimisation::value_variants()[n], None));
        for (n, which) in Optimisation::value_variants().iter().enumerate() {
            assert_eq!(*which as usize, n);
            assert_eq!(Without::value_variants()[n], Without::One(*which));
            assert!(!Optimise::settle(file, &[Without::One(*which)], &[]).has(*which));
            let only = Optimise::settle(file, &[Without::All], &[*which]);
            assert!(Optimisation::value_variants().iter().all(|other| only.has(*other) == (other == which)));
        }
    }
}
