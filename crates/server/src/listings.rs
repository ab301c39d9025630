//! Listings in progress, for threads that do disk work themselves: a thread that needs a listing which another one is
//! creating waits for it and shares the result, rather than read the directory a second time.
//!
//! AMPED does not need this: there the loop knows which questions its helpers work on. Neither does a single loop,
//! and processes know nothing of each other.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use amped_core::event::{Found, ListWork};
use amped_core::listing::Listing;

/// Listings in progress.
#[derive(Debug, Default)]
pub struct Listings(Mutex<HashMap<ListWork, Arc<Making>>>);

#[derive(Debug, Default)]
struct Making {
    /// `None` while in progress; then the result, if it is a listing.
    made: Mutex<Option<Option<Listing>>>,
    bell: Condvar,
}

/// The thread that creates a listing; dropping it notifies the others.
struct Maker<'a> {
    listings: &'a Listings,
    work: &'a ListWork,
    making: Arc<Making>,
    listing: Option<Listing>,
}

impl Listings {
    /// Returns the result of `make`, or the result of another thread that is already creating this
    /// listing, and whether it was another's. Blocks.
    pub fn once<F>(&self, work: &ListWork, make: impl FnOnce() -> Found<F>) -> (Found<F>, bool) {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = lock();
        if let Some(making) = all.get(work).map(Arc::clone) {
            drop(all);
            let made = making.made.lock().unwrap_or_else(PoisonError::into_inner);
            let made = making.bell.wait_while(made, |made| made.is_none()).unwrap_or_else(PoisonError::into_inner);
            return match made.as_ref().and_then(Option::as_ref) {
                Some(listing) => (Found::Listing(listing.clone()), true),
                None => {
                    drop(made);
                    (make(), false)
                }
            };
        }
        let making = Arc::default();
        all.insert(work.clone(), Arc::clone(&making));
        drop(all);
        let mut maker = Maker { listings: self, work, making, listing: None };
        let found = make();
        if let Found::Listing(listing) = &found {
            maker.listing = Some(listing.clone());
        }
        (found, false)
    }
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        self.listings.0.lock().unwrap_or_else(PoisonError::into_inner).remove(self.work);
        *self.making.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.listing.take());
        self.making.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_core::event::Trouble;
    use amped_core::listing::{ListForm, ListOrder};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    fn work(path: &str) -> ListWork {
        let (order, form) = (ListOrder::of(None), ListForm::Html);
        ListWork { generation: 0, site: 0, path: path.as_bytes().into(), edition: 0, order, form }
    }

    fn waiting(listings: &Listings, path: &str) -> usize {
        // The map and the creating thread hold references too.
        listings.0.lock().unwrap().get(&work(path)).map_or(0, Arc::strong_count).saturating_sub(2)
    }

    #[test]
    fn concurrent_listing_requests_share_one_result() {
        for (comes_to_something, expected) in [(true, 1), (false, 6)] {
            let (listings, made) = (Listings::default(), AtomicUsize::new(0));
            let make = || {
                if made.fetch_add(1, Ordering::Relaxed) == 0 {
                    while waiting(&listings, "/a/") < 5 {
                        thread::yield_now();
                    }
                }
                match comes_to_something {
                    true => Found::<()>::Listing(Listing::new(b"page".to_vec(), 0, None)),
                    false => Found::Trouble(Trouble::Failed),
                }
            };
            let others = thread::scope(|scope| {
                let threads: Vec<_> = (0..6).map(|_| scope.spawn(|| listings.once(&work("/a/"), make).1)).collect();
                // A different listing does not wait.
                assert!(!listings.once(&work("/b/"), || Found::<()>::Absent).1);
                threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
            });
            assert_eq!((made.into_inner(), others), (expected, 6 - expected));
            assert!(listings.0.lock().unwrap().is_empty());
        }
    }
}
