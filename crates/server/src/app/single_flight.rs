//! Pages of applications that are being made, and who waits for them.
//!
//! Of requests for a page that is not kept the first has it made, and the others wait until it is kept, or is not going to be:
//! then each looks again. What they share is the cache that the page is put into, so loops that share one share this, and
//! processes do not. Whoever makes a page and goes, at whatever point, lets the others go on by being dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use amped_core::cache::page::PageName;
use amped_core::event::Ticket;

use crate::mailbox::Post;
use crate::token::Token;

/// Those that are being made.
#[derive(Debug, Default)]
pub struct SingleFlight(Mutex<HashMap<PageName, Followers>>);

/// By request, and by the loop that has it, whose mailbox has that address.
type Followers = HashMap<(Token, Ticket, usize), Arc<dyn Post<Settled>>>;

/// A page for which this request waits is kept now, or is not going to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The connection.
    pub token: Token,
    /// Its request.
    pub ticket: Ticket,
}

/// This request has a page made.
#[derive(Debug)]
pub struct Filling {
    single_flights: Arc<SingleFlight>,
    name: PageName,
}

/// This request waits for a page.
#[derive(Debug)]
pub struct Following {
    single_flights: Arc<SingleFlight>,
    name: PageName,
    key: (Token, Ticket, usize),
}

impl SingleFlight {
    /// The page of this name is to be made by this request, or, as an error, it is being made and this request waits for it.
    /// Then the mailbox is told when it need not wait any more.
    ///
    /// # Errors
    /// If somebody else is at it.
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
    fn one_makes_it_and_the_others_are_told() {
        let single_flights = Arc::new(SingleFlight::default());
        let mailboxes: [Arc<Mailbox<Settled>>; 2] = [(); 2].map(|()| Arc::new(Mailbox::new().expect("made")));
        let posts = mailboxes.clone().map(|mailbox| mailbox as Arc<dyn Post<Settled>>);
        let join = |key: &str, n: u64, loop_number: usize| {
            single_flights.join(name(key), (Token::from_number(n), Ticket(1)), &posts[loop_number])
        };
        let told = |loop_number: usize| {
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
        let first = join("a", 1, 0).expect("nobody is at it");
        let other = join("b", 2, 0).expect("another page");
        let waits = [join("a", 3, 0), join("a", 4, 0), join("a", 3, 1), join("a", 5, 1)];
        let [waits, gone, elsewhere, gone_too] = waits.map(|joined| joined.expect_err("somebody is at it"));
        drop((gone, gone_too));
        drop(first);
        assert_eq!((told(0), told(1)), (vec![3], vec![3]));
        // Who was told late leaves a page alone that is made anew.
        let again = join("a", 3, 0).expect("nobody is at it");
        let late = join("a", 6, 1).expect_err("somebody is at it");
        drop((waits, elsewhere));
        drop(again);
        assert_eq!((told(0), told(1)), (vec![], vec![6]));
        drop((late, other));
        assert!(single_flights.0.lock().unwrap().is_empty());
    }
}
