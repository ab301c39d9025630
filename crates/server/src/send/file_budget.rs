//! Limits the files that responses of HTTP/2 have open: a connection has one descriptor of its own, and may have a file for
//! each of its streams.

use std::sync::Arc;

/// The streams of a loop whose responses have a file open, of which there are at most so many.
#[derive(Debug)]
pub struct FileBudget {
    /// Each holds a reference.
    held: Arc<()>,
    most: usize,
}

impl FileBudget {
    /// At most so many at a time.
    pub fn new(most: usize) -> FileBudget {
        FileBudget { held: Arc::new(()), most }
    }

    /// Changes how many there may be.
    pub fn set(&mut self, most: usize) {
        self.most = most;
    }

    /// Takes one of them, until the permit is dropped; `None` if there are as many already.
    pub(super) fn take(&self) -> Option<FilePermit> {
        (Arc::strong_count(&self.held) <= self.most).then(|| FilePermit { _held: Arc::clone(&self.held) })
    }
}

/// Permits a response to have a file open.
pub(super) struct FilePermit {
    _held: Arc<()>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_limited_until_they_are_dropped() {
        let mut budget = FileBudget::new(2);
        let first = budget.take().expect("one is free");
        let _second = budget.take().expect("one is free");
        assert!(budget.take().is_none());
        drop(first);
        let _third = budget.take().expect("one is free");
        assert!(budget.take().is_none());
        budget.set(3);
        assert!(budget.take().is_some());
    }
}
