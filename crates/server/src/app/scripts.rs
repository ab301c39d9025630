//! Which names of a site are scripts, as far as this loop has looked them up: what a request for an application that lives on
//! needs to know of the disk.
//!
//! A name is believed as long as any other ([`Disk::believes`], `revalidate`), so a script that is asked for often is looked up
//! once in a while by a thread that may wait, and else costs no system call. Names that are no scripts are not kept.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use amped_core::app::AppWork;

use crate::disk::Disk;

/// Names that one loop knows.
#[derive(Default)]
pub(super) struct Scripts {
    /// By site, then by the beginning of the path. Of one configuration's disk.
    names: HashMap<u16, Names>,
    disk: Option<Arc<Disk>>,
    count: usize,
}

/// What each is, and since when.
type Names = HashMap<Box<[u8]>, (Known, Instant)>;

#[derive(Clone)]
enum Known {
    Folder,
    Script(Arc<Path>),
}

/// A script, for an application: where its name ends in the path, and its absolute name.
pub(super) type Found = (usize, Arc<Path>);

/// Names at most. Beyond it all are forgotten, as a site of so many scripts is asked for each of them rarely.
const NAMES_MAX: usize = 4096;

impl Scripts {
    /// The script that this request is for, if that is known.
    pub(super) fn find(&self, disk: &Arc<Disk>, work: &AppWork) -> Option<Found> {
        if !self.disk.as_ref().is_some_and(|known| Arc::ptr_eq(known, disk)) {
            return None;
        }
        let names = self.names.get(&work.site)?;
        for &end in &work.ends {
            match names.get(&work.path[..end])? {
                (_, asked) if !disk.believes(*asked) => return None,
                (Known::Folder, _) => {}
                (Known::Script(path), _) => return Some((end, Arc::clone(path))),
            }
        }
        None
    }

    /// Keeps what a lookup that began at `asked` has found.
    pub(super) fn learn(&mut self, disk: &Arc<Disk>, work: &AppWork, (end, path): &Found, asked: Instant) {
        if self.count >= NAMES_MAX || !self.disk.as_ref().is_some_and(|known| Arc::ptr_eq(known, disk)) {
            self.forget();
            self.disk = Some(Arc::clone(disk));
        }
        let names = self.names.entry(work.site).or_default();
        for &earlier in work.ends.iter().take_while(|earlier| *earlier <= end) {
            let known = if earlier == *end { Known::Script(Arc::clone(path)) } else { Known::Folder };
            self.count += usize::from(names.insert(work.path[..earlier].into(), (known, asked)).is_none());
        }
    }

    /// Looks all names up again.
    pub(super) fn forget(&mut self) {
        self.names.clear();
        self.count = 0;
    }
}
