//! A loop's cache of script names: the only information from the disk that a request to a persistent application needs.
//!
//! An entry is valid as long as any other name ([`Disk::trusts`], `revalidate`), so a popular
//! script is looked up once in a while by a thread that may block, and otherwise costs no system
//! call. Names that are not scripts are not cached.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use amped_core::app::AppWork;

use crate::disk::Disk;

/// The script names that one loop has cached.
#[derive(Default)]
pub(super) struct Scripts {
    /// By site, then by the beginning of the path. They belong to one configuration's disk.
    names: HashMap<u16, Names>,
    disk: Option<Arc<Disk>>,
    count: usize,
}

/// The script of each name, and when it was looked up.
type Names = HashMap<Box<[u8]>, (Known, Instant)>;

#[derive(Clone)]
enum Known {
    Folder,
    Script(Arc<Path>),
}

/// A script, for an application: where its name ends in the path, and its absolute path.
pub(super) type Found = (usize, Arc<Path>);

/// Maximum names. When it is exceeded all are dropped, as each script of such a large site is requested rarely.
const NAMES_MAX: usize = 4096;

impl Scripts {
    /// Returns the script of a request, if it is known.
    pub(super) fn find(&self, disk: &Arc<Disk>, work: &AppWork) -> Option<Found> {
        if !self.disk.as_ref().is_some_and(|known| Arc::ptr_eq(known, disk)) {
            return None;
        }
        let names = self.names.get(&work.site)?;
        for &end in &work.ends {
            match names.get(&work.path[..end])? {
                (_, looked_up) if !disk.trusts(*looked_up) => return None,
                (Known::Folder, _) => {}
                (Known::Script(path), _) => return Some((end, Arc::clone(path))),
            }
        }
        None
    }

    /// Caches the result of a lookup that began at `looked_up`.
    pub(super) fn learn(&mut self, disk: &Arc<Disk>, work: &AppWork, (end, path): &Found, looked_up: Instant) {
        if self.count >= NAMES_MAX || !self.disk.as_ref().is_some_and(|known| Arc::ptr_eq(known, disk)) {
            self.clear();
            self.disk = Some(Arc::clone(disk));
        }
        let names = self.names.entry(work.site).or_default();
        for &earlier in work.ends.iter().take_while(|earlier| *earlier <= end) {
            let known = if earlier == *end { Known::Script(Arc::clone(path)) } else { Known::Folder };
            self.count += usize::from(names.insert(work.path[..earlier].into(), (known, looked_up)).is_none());
        }
    }

    /// Drops all names.
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.count = 0;
    }
}
