//! Listings in progress, for threads that do disk work themselves: a thread that needs a listing which another one is
//! creating waits for it and shares the result, rather than read the directory a second time.
//!
//! AMPED does not need this: there the loop tracks which lookups its helpers work on. A single loop does not need it
//! either, and processes do not share listings.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use amped_core::event::{Found, ListWork};
use amped_core::listing::Listing;

/// Listings in progress.
#[derive(Debug, Default)]
pub struct Listings(Mutex<HashMap<ListWork, Arc<InProgress>>>);

/// Locked by the thread that creates the listing; afterwards it contains the result, if that is a listing.
type InProgress = Mutex<Option<Option<Listing>>>;

impl Listings {
    /// Returns the result of `make`, or the result of another thread that is already creating this
    /// listing, and whether it was another's. Blocks.
    pub fn once<F>(&self, work: &ListWork, make: impl FnOnce() -> Found<F>) -> (Found<F>, bool) {
        let all = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let making = Arc::clone(all().entry(work.clone()).or_default());
        let mut made = making.lock().unwrap_or_else(PoisonError::into_inner);
        match &*made {
            Some(Some(listing)) => return (Found::Listing(listing.clone()), true),
            Some(None) => {
                drop(made);
                return (make(), false);
            }
            None => {}
        }
        let found = make();
        *made = Some(if let Found::Listing(listing) = &found { Some(listing.clone()) } else { None });
        all().remove(work);
        (found, false)
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
