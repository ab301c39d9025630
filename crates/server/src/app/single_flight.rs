//! Pages of applications that are being generated, and the requests that wait for them.
//!
//! Of several requests for a page that is not cached, the first one runs the application. The others wait until the
//! page is cached, or turns out not to be cacheable; then each looks again. They share the cache that stores the page,
//! so loops that share one share this, and processes do not. A request that ends at any point, even with an error,
//! releases those that wait by being dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use amped_core::cache::page::PageName;
use amped_core::event::Ticket;

use crate::mailbox::Post;
use crate::token::Token;

/// The pages being generated.
#[derive(Debug, Default)]
pub struct SingleFlight(Mutex<HashMap<PageName, Followers>>);

/// Waiting requests, by connection, ticket, and the address of their loop's mailbox.
type Followers = HashMap<(Token, Ticket, usize), Arc<dyn Post<Settled>>>;

/// Message: the page that a request waits for is cached now, or will not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The connection.
    pub token: Token,
    /// The ticket of its request.
    pub ticket: Ticket,
}

/// A request that generates a page.
#[derive(Debug)]
pub struct Filling {
    single_flights: Arc<SingleFlight>,
    name: PageName,
}

/// A request that waits for a page.
#[derive(Debug)]
pub struct Following {
    single_flights: Arc<SingleFlight>,
    name: PageName,
    key: (Token, Ticket, usize),
}

impl SingleFlight {
    /// Makes this request generate the page of this name, or, as an error, wait for the request that does. The
    /// mailbox is notified when the wait is over.
    ///
    /// # Errors
    /// If another request generates the page.
    pub fn join(
        self: &Arc<SingleFlight>,
        name: PageName,
        (token, ticket): (Token, Ticket),
        mailbox: &Arc<dyn Post<Settled>>,
    ) -> Result<Filling, Following> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let single_flights = Arc::clone(self);
        match all.get_mut(&name) {
            Some(followers) => {
                let key = (token, ticket, Arc::as_ptr(mailbox).addr());
                followers.insert(key, Arc::clone(mailbox));
                Err(Following { single_flights, name, key })
            }
            None => {
                all.insert(name.clone(), Followers::new());
                Ok(Filling { single_flights, name })
            }
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        let followers = self.single_flights.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
        for ((token, ticket, _), mailbox) in followers.into_iter().flatten() {
            mailbox.post(Settled { token, ticket });
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if let Some(followers) =
            self.single_flights.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&self.name)
        {
            followers.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::Mailbox;

    fn name(key: &str) -> PageName {
        PageName::App { generation: 0, site: 0, rule: 0, key: key.as_bytes().into() }
    }

    #[test]
    fn leader_makes_request_and_followers_are_notified() {
        let single_flights = Arc::new(SingleFlight::default());
        let mailboxes: [Arc<Mailbox<Settled>>; 2] = [(); 2].map(|()| Arc::new(Mailbox::new().expect("made")));
        let posts = mailboxes.clone().map(|mailbox| mailbox as Arc<dyn Post<Settled>>);
        let join = |key: &str, n: u64, loop_number: usize| {
            single_flights.join(name(key), (Token::from_number(n), Ticket(1)), &posts[loop_number])
        };
        let notified = |loop_number: usize| {
            let mut messages = Vec::new();
            mailboxes[loop_number].take(&mut messages);
            let numbers = messages.iter().map(|Settled { token, ticket }| {
                assert_eq!(*ticket, Ticket(1));
                token.to_number()
            });
            let mut numbers: Vec<u64> = numbers.collect();
            numbers.sort_unstable();
            numbers
        };
        let first = join("a", 1, 0).expect("no other request");
        let other = join("b", 2, 0).expect("another page");
        let waits = [join("a", 3, 0), join("a", 4, 0), join("a", 3, 1), join("a", 5, 1)];
        let [waits, gone, elsewhere, gone_too] = waits.map(|joined| joined.expect_err("another request generates it"));
        drop((gone, gone_too));
        drop(first);
        assert_eq!((notified(0), notified(1)), (vec![3], vec![3]));
        // A late notification leaves the page alone when it is generated again.
        let again = join("a", 3, 0).expect("no other request");
        let late = join("a", 6, 1).expect_err("another request generates it");
        drop((waits, elsewhere));
        drop(again);
        assert_eq!((notified(0), notified(1)), (vec![], vec![6]));
        drop((late, other));
        assert!(single_flights.0.lock().unwrap().is_empty());
    }
}
