//! The buckets of clients for `[[site.limit]]`, in memory that all loops and processes share.
//!
//! `core/exchange` takes from them, once for each request that a limit covers; the arithmetic is in `core/request_limit`.
//! They are a fixed table of times ([`client_times`](crate::client_times)): memory does not grow with the number of
//! clients, and a new client replaces the one of its set whose bucket is the fullest. An attacker with so many addresses
//! that it fills the table gets as many bursts as it has addresses, as it would with a table of any size.
//!
//! Requests under way are counted exactly ([`client_counts`](crate::client_counts)).
//!
//! A loop holds a lock for a hundred nanoseconds, without a system call unless another loop holds it at that moment.

use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;

use amped_core::record::RequestPermit;
use amped_core::request_limit::{Admission, RequestLimit, Requester};
use amped_core::shared_state::RequestLimiter;
use amped_sys::clock::monotonic_ns;
use amped_sys::shared::{Guard, PATIENCE, Region};

use crate::client_counts::ClientCounts;
use crate::client_times::{Client, TimeTable};
use crate::say;

/// The buckets of all limits of a server.
#[derive(Debug)]
pub struct RequestLimits {
    region: Region,
    table: TimeTable,
    counts: Arc<ClientCounts>,
    /// Hashes of user names: the halves of a key.
    users: [RandomState; 2],
}

/// Parts with a lock each, so that loops seldom meet.
const PARTS: usize = 16;

/// Sets in each part: 65,536 clients in all, 1.5 MiB.
const SETS: usize = 1024;

/// After the table of the first part: when the next line may be written to the error log.
const LOG_AT: usize = TimeTable::bytes(SETS);

/// The time between two lines in the error log.
const LOG_NS: u64 = 60_000_000_000;

impl RequestLimits {
    /// Creates buckets that are full, and limits that count here.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn new(counts: Arc<ClientCounts>) -> io::Result<RequestLimits> {
        let (region, table) = (Region::new(PARTS, LOG_AT + 8)?, TimeTable::new(SETS));
        Ok(RequestLimits { region, table, counts, users: [RandomState::new(), RandomState::new()] })
    }

    fn client(&self, client: Requester<'_>) -> Client {
        match client {
            Requester::Address(address) => Client::new(address),
            Requester::User(name) => Client::of_user(self.users.each_ref().map(|half| half.hash_one(name))),
        }
    }

    fn take_at(&self, limit: &RequestLimit, client: Client, now_ns: u64) -> Admission {
        let key = client.key_under(limit.number);
        let mut admission = Admission::Now;
        let Some(guard) = self.lock(self.table.part_of(key, PARTS)) else { return admission };
        self.table.change(&guard, key, |full_at| {
            let (next, taken) = limit.take(full_at, now_ns);
            admission = taken;
            next
        });
        admission
    }

    /// Returns whether a line may be written to the error log, and if so, that none may be for a minute.
    fn may_log(&self, now_ns: u64) -> bool {
        let Some(guard) = self.lock(0) else { return false };
        let is_due = guard.word(LOG_AT).is_ok_and(|next| next <= now_ns);
        is_due && guard.set_word(LOG_AT, now_ns + LOG_NS).is_ok()
    }

    /// Reports a refused request, unless another one was reported within a minute.
    fn log(&self, limit: &RequestLimit, client: Requester<'_>, exceeded: &dyn Display, now_ns: u64) {
        if self.may_log(now_ns) {
            let client = match client {
                Requester::Address(None) => "an unknown address".to_owned(),
                Requester::Address(Some(address)) => address.to_string(),
                Requester::User(name) => format!("the user `{}`", name.escape_ascii()),
            };
            let pattern = limit.pattern.as_str();
            say!(
                "requests of {client} for {pattern} exceed {exceeded} and get 429; others are counted in \
                 requests_limited"
            );
        }
    }

    /// Returns `None` while a stopped process has the lock: its part of the clients is not limited then. A process that
    /// died with the lock leaves nothing to repair: at worst one bucket is wrong.
    fn lock(&self, part: usize) -> Option<Guard<'_>> {
        self.region.lock_mended(part, PATIENCE, |_| ())
    }
}

impl RequestLimiter for RequestLimits {
    fn take(&self, limit: &RequestLimit, client: Requester<'_>) -> Admission {
        let Some(rate) = limit.requests else { return Admission::Now };
        let now_ns = monotonic_ns();
        let admission = self.take_at(limit, self.client(client), now_ns);
        if matches!(admission, Admission::Refused(_)) {
            self.log(limit, client, &rate, now_ns);
        }
        admission
    }

    fn begin(&self, limit: &RequestLimit, max: usize, client: Requester<'_>) -> Option<RequestPermit> {
        let key = self.client(client).key_under(limit.number);
        let Some(place) = self.counts.take(key, u32::try_from(max).unwrap_or(u32::MAX)) else {
            self.log(limit, client, &format_args!("{max} at a time"), monotonic_ns());
            return None;
        };
        Some(RequestPermit::new(Arc::<ClientCounts>::clone(&self.counts), key, place))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const NOW: u64 = 1_000_000_000_000;

    fn limit(number: u16, requests: &str, burst: usize) -> RequestLimit {
        let text = format!("match = '**'\nrequests = '{requests}'\nburst = {burst}");
        RequestLimit { number, ..toml::from_str(&text).unwrap() }
    }

    fn new() -> RequestLimits {
        RequestLimits::new(Arc::new(ClientCounts::new(false).unwrap())).unwrap()
    }

    fn client(number: u32) -> Client {
        Client::new(Some(IpAddr::from(number.to_be_bytes())))
    }

    /// How many of so many requests are admitted.
    fn admitted(limits: &RequestLimits, limit: &RequestLimit, client: Client, requests: usize) -> usize {
        (0..requests).filter(|_| limits.take_at(limit, client, NOW) == Admission::Now).count()
    }

    #[test]
    fn clients_and_limits_have_buckets_of_their_own() {
        let limits = new();
        let (one, other) = (limit(0, "1/m", 3), limit(1, "1/m", 5));
        assert_eq!(admitted(&limits, &one, client(1), 10), 3);
        assert_eq!(admitted(&limits, &one, client(2), 10), 3);
        assert_eq!(admitted(&limits, &other, client(1), 10), 5);
        assert_eq!(admitted(&limits, &one, client(1), 10), 0);
        assert_eq!(admitted(&limits, &one, Client::new(None), 10), 3);
    }

    #[test]
    fn fullest_buckets_are_evicted_first_and_memory_stays() {
        let limits = new();
        let (strict, mild) = (limit(0, "1/m", 10), limit(1, "100/s", 10));
        assert_eq!(admitted(&limits, &strict, client(1), 20), 10);
        // Four times as many as the table has places.
        for number in 0..4 * (PARTS * SETS * 4) as u32 {
            limits.take_at(&mild, client(number), NOW);
        }
        assert_eq!(admitted(&limits, &strict, client(1), 20), 0);
        assert_eq!(limits.region.part_bytes(), LOG_AT + 8);
    }

    #[test]
    fn one_line_a_minute_may_be_logged() {
        let limits = new();
        let may_log = |seconds: u64| limits.may_log(NOW + seconds * 1_000_000_000);
        assert_eq!([0, 1, 59, 60, 61, 120].map(may_log), [true, false, false, true, false, true]);
    }
}
