//! Host names of clients: a DNS cache (Hu, Nanda, Yang 1997, section 5.3.1), and the lookups that fill it.
//!
//! 1. The log needs the name of an address for a line ([`HostnameCache::ask`]). The cache returns it, or queues a
//!    lookup whose result the line can collect later. Lines about one address share a lookup.
//! 2. A thread that may block takes the lookup ([`HostnameCache::next_lookup`])
//!    and reports its result ([`HostnameCache::learn`]).
//! 3. The line collects its name ([`HostnameCache::collect`]), or
//!    receives its deadline; after that it is written without.
//!
//! Pure, as its siblings: the caller does the waiting and the lookups. Unlike them there is one
//! per process, next to the log writer. The lifetime of an entry is a setting, because the C
//! library does not report DNS TTLs. Negative results and timeouts are cached too, for a shorter
//! time: otherwise a failed name server would be queried for each line (RFC 2308, 5 and 7.1).
//!
//! Names are untrusted: the owner of an address chooses its name. [`clean`] accepts valid host names only; the caller
//! must verify that the name resolves back to the address.

use core::net::IpAddr;
use core::time::Duration;

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;

use amped_units::Time;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::policy::Store;

/// Maximum lookups queued or in progress: one per line of a full log buffer (64 KiB), for the case that the cache is
/// disabled or each line has another client. Further lines are written with their address.
const LOOKUPS_MAX: usize = 1024;

/// A lookup that has been queued for this long is dropped unless lines still wait for it: the name server does not
/// respond, and the lines that needed the name have been written.
const STALE: Duration = Duration::from_secs(30);

/// Size of the cache, lifetimes of its entries, and the timeout of a lookup.
#[derive(Clone, Debug, PartialEq, Eq, SmartDefault)]
pub struct HostnameLimits {
    /// Maximum addresses, with or without a name, about 150 bytes each. "Several hundred" suffice according to the
    /// paper, since a client makes a dozen requests per visit. Zero disables the cache: each line then starts a lookup.
    #[default(512)]
    pub entries: usize,
    /// How long a line waits for its name. 5 s is one full attempt of the C library
    /// (resolv.conf(5), `timeout`); a later response would come from a second name
    /// server, or not at all. With zero no line waits; it gets the name if cached.
    #[default(Duration::from_secs(5))]
    pub wait: Duration,
    /// Lifetime of a name: one visit, and the next.
    #[default(Duration::from_secs(600))]
    pub time: Duration,
    /// Lifetime of a negative result or a timeout. RFC 2308 (7.1) allows 5 minutes for the latter.
    #[default(Duration::from_secs(60))]
    pub absent_time: Duration,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostnameCounts {
    /// Lines whose address was in the cache, with or without a name.
    pub hits: u64,
    /// Lines whose address was not in the cache.
    pub misses: u64,
    /// Lookups started.
    pub lookups: u64,
    /// Lookups without a name, for any reason.
    pub failed: u64,
    /// Lines whose wait for a name timed out.
    pub timed_out: u64,
    /// Lines without a lookup, because too many were pending.
    pub refused: u64,
    /// Addresses in the cache.
    pub entries: u64,
}

/// A name; `None` if the address has none.
pub type Hostname = Option<Arc<str>>;

/// A lookup that a line waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LookupId(u64);

/// The result of asking for the name of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostnameAnswer {
    /// The cached name.
    Known(Hostname),
    /// Pass this to [`collect`](HostnameCache::collect) later, once.
    Later(LookupId),
}

/// The cache, and its pending lookups.
pub struct HostnameCache {
    limits: HostnameLimits,
    store: Store<IpAddr, Entry>,
    lookups: HashMap<LookupId, Lookup, RandomState>,
    /// The lookup shared by lines about the same address. Empty while the cache is disabled.
    shared: HashMap<IpAddr, LookupId, RandomState>,
    /// Lookups not yet taken.
    queue: VecDeque<LookupId>,
    /// Lookups without a result: `queue.len() <= unanswered <= LOOKUPS_MAX`.
    unanswered: usize,
    next: u64,
    counts: HostnameCounts,
}

struct Entry {
    name: Hostname,
    until: Time,
}

/// Exists until it has a result and all its lines have collected it.
struct Lookup {
    address: IpAddr,
    requested_at: Time,
    /// Lines that will collect the result.
    lines: usize,
    answer: Option<Hostname>,
}

impl HostnameCache {
    /// Creates an empty cache.
    pub fn new(limits: HostnameLimits) -> HostnameCache {
        HostnameCache {
            store: Store::new(limits.entries, u64::MAX),
            limits,
            lookups: HashMap::default(),
            shared: HashMap::default(),
            queue: VecDeque::new(),
            unanswered: 0,
            next: 0,
            counts: HostnameCounts::default(),
        }
    }

    /// Applies other limits. If the size changes, the cache is cleared; pending lookups continue.
    pub fn renew(&mut self, limits: HostnameLimits) {
        if limits.entries != self.limits.entries {
            self.store = Store::new(limits.entries, u64::MAX);
            self.shared.clear();
        }
        self.limits = limits;
    }

    /// Looks up the name of this address for a line.
    pub fn ask(&mut self, now: Time, address: IpAddr) -> HostnameAnswer {
        if let Some(entry) = self.store.get(&address)
            && now < entry.until
        {
            self.counts.hits += 1;
            return HostnameAnswer::Known(entry.name.clone());
        }
        self.counts.misses += 1;
        if let Some(id) = self.shared.get(&address)
            && let Some(lookup) = self.lookups.get_mut(id)
        {
            lookup.lines += 1;
            return HostnameAnswer::Later(*id);
        }
        if self.unanswered == LOOKUPS_MAX {
            self.counts.refused += 1;
            return HostnameAnswer::Known(None);
        }
        let id = LookupId(self.next);
        self.next += 1;
        self.unanswered += 1;
        self.lookups.insert(id, Lookup { address, requested_at: now, lines: 1, answer: None });
        self.queue.push_back(id);
        if self.limits.entries > 0 {
            self.shared.insert(address, id);
        }
        HostnameAnswer::Later(id)
    }

    /// Collects the name for a line, which ends the line's claim on
    /// the lookup. [`Time::NEVER`] collects the current state.
    ///
    /// # Errors
    /// There is no result yet, and the line may wait until the returned time. That counts from the first line's
    /// request: behind a silent name server only the first line waits the full time.
    pub fn collect(&mut self, now: Time, id: LookupId) -> Result<Hostname, Time> {
        let Some(lookup) = self.lookups.get_mut(&id) else { return Ok(None) };
        let until = lookup.requested_at + self.limits.wait;
        if lookup.answer.is_none() {
            if now < until {
                return Err(until);
            }
            self.counts.timed_out += 1;
        }
        lookup.lines -= 1;
        let name = lookup.answer.clone().flatten();
        if lookup.lines == 0 && lookup.answer.is_some() {
            self.lookups.remove(&id);
        }
        Ok(name)
    }

    /// The number of lookups not yet taken.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Takes the oldest lookup; the caller reports its result with [`learn`](HostnameCache::learn).
    pub fn next_lookup(&mut self, now: Time) -> Option<(LookupId, IpAddr)> {
        loop {
            let id = self.queue.pop_front()?;
            let Some(lookup) = self.lookups.get(&id) else { continue };
            let address = lookup.address;
            if lookup.lines > 0 || now.since(lookup.requested_at) < STALE {
                self.counts.lookups += 1;
                return Some((id, address));
            }
            self.end(id, address);
            self.lookups.remove(&id);
        }
    }

    /// Records the result of a lookup; a name must have passed [`clean`].
    pub fn learn(&mut self, now: Time, id: LookupId, name: Hostname) {
        let Some(lookup) = self.lookups.get_mut(&id).filter(|lookup| lookup.answer.is_none()) else { return };
        let (address, lines) = (lookup.address, lookup.lines);
        lookup.answer = Some(name.clone());
        if lines == 0 {
            self.lookups.remove(&id);
        }
        self.end(id, address);
        if name.is_none() {
            self.counts.failed += 1;
        }
        let time = if name.is_some() { self.limits.time } else { self.limits.absent_time };
        self.store.insert(address, Entry { name, until: now + time }, 1);
    }

    /// Ends the sharing of this lookup: the next line about the address starts another.
    fn end(&mut self, id: LookupId, address: IpAddr) {
        self.unanswered -= 1;
        if self.shared.get(&address) == Some(&id) {
            self.shared.remove(&address);
        }
    }

    /// Counters and sizes.
    pub fn counts(&self) -> HostnameCounts {
        HostnameCounts { entries: self.store.len() as u64, ..self.counts }
    }
}

/// Normalises a name for the log, in lower case; `None` if it is not a valid host name.
///
/// Letters, digits, hyphens and dots (RFC 1123, 2.1), underscores, which are common, 253 bytes at most (RFC 1035,
/// 2.3.4): this rejects names that would look like several fields or lines. A name that ends in a number is rejected
/// too, because it is an address in some notation (`0x7f.1`), and would resolve to itself regardless of the DNS.
pub fn clean(name: &str) -> Option<String> {
    let is_good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let last = name.rsplit('.').next().unwrap_or_default();
    let digits = last.strip_prefix("0x").map_or_else(
        || !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()),
        |rest| rest.bytes().all(|b| b.is_ascii_hexdigit()),
    );
    let is_name = (1..=253).contains(&name.len()) && name.bytes().all(is_good) && !name.split('.').any(str::is_empty);
    (is_name && !digits).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap as Map;
    use std::vec::Vec;

    fn address(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn cache(entries: usize) -> HostnameCache {
        HostnameCache::new(HostnameLimits { entries, ..HostnameLimits::default() })
    }

    fn later(requested_at: HostnameAnswer) -> LookupId {
        match requested_at {
            HostnameAnswer::Later(id) => id,
            HostnameAnswer::Known(name) => panic!("{name:?} is known already"),
        }
    }

    fn name(text: &str) -> Hostname {
        Some(text.into())
    }

    #[test]
    fn lines_of_one_address_share_lookup() {
        let mut cache = cache(8);
        let lines: Vec<_> = (0..3).map(|n| later(cache.ask(at(n), address(1)))).collect();
        assert!(lines.iter().all(|&id| id == lines[0]));
        assert_eq!(cache.next_lookup(at(3)), Some((lines[0], address(1))));
        assert_eq!(cache.next_lookup(at(3)), None);
        assert_eq!(later(cache.ask(at(3), address(1))), lines[0], "the lookup is shared");
        assert_eq!(cache.collect(at(4), lines[0]), Err(at(5)));
        cache.learn(at(4), lines[0], name("a.test"));
        // At any time: the result is available.
        (0..4).for_each(|n| assert_eq!(cache.collect(at(4 + 100 * n), lines[0]), Ok(name("a.test"))));
        assert!(cache.lookups.is_empty() && cache.shared.is_empty());
        assert_eq!(cache.ask(at(603), address(1)), HostnameAnswer::Known(name("a.test")));
        later(cache.ask(at(604), address(1)));
        let expected = HostnameCounts { hits: 1, misses: 5, lookups: 1, entries: 1, ..HostnameCounts::default() };
        assert_eq!(cache.counts(), expected);
    }

    #[test]
    fn missing_name_expires_sooner() {
        let mut cache = cache(8);
        let id = later(cache.ask(at(0), address(1)));
        cache.next_lookup(at(0));
        cache.learn(at(1), id, None);
        assert_eq!(cache.collect(at(1), id), Ok(None));
        assert_eq!(cache.ask(at(60), address(1)), HostnameAnswer::Known(None));
        later(cache.ask(at(61), address(1)));
        assert_eq!((cache.counts().failed, cache.counts().timed_out), (1, 0));
    }

    #[test]
    fn lookup_times_out_for_waiting_line() {
        let mut cache = cache(8);
        let id = later(cache.ask(at(0), address(1)));
        cache.next_lookup(at(0));
        assert_eq!(cache.collect(at(4), id), Err(at(5)));
        assert_eq!(cache.collect(at(5), id), Ok(None));
        // The next line finds the lookup with its original age.
        assert_eq!(later(cache.ask(at(6), address(1))), id);
        assert_eq!(cache.collect(at(6), id), Ok(None));
        assert_eq!(cache.counts().timed_out, 2);
        // A result that is too late for them serves others.
        cache.learn(at(7), id, name("slow.test"));
        assert_eq!(cache.ask(at(7), address(1)), HostnameAnswer::Known(name("slow.test")));
        assert!(cache.lookups.is_empty());
    }

    #[test]
    fn abandoned_lookup_is_dropped() {
        let mut cache = cache(8);
        let (given_up, waited_for) = (later(cache.ask(at(0), address(1))), later(cache.ask(at(0), address(2))));
        assert_eq!(cache.collect(Time::NEVER, given_up), Ok(None));
        assert_eq!(cache.next_lookup(at(30)), Some((waited_for, address(2))));
        assert_eq!((cache.unanswered, cache.counts().lookups), (1, 1));
        assert_ne!(later(cache.ask(at(31), address(1))), given_up, "a new lookup");
    }

    #[test]
    fn disabled_cache_looks_up_each_line() {
        let mut cache = cache(0);
        let ids: Vec<_> = (0..2).map(|_| later(cache.ask(at(0), address(1)))).collect();
        assert_ne!(ids[0], ids[1]);
        for (n, &id) in ids.iter().enumerate() {
            assert_eq!(cache.next_lookup(at(0)), Some((id, address(1))));
            cache.learn(at(0), id, name(["a.test", "b.test"][n]));
        }
        assert_eq!(cache.collect(at(0), ids[1]), Ok(name("b.test")));
        assert_eq!(cache.collect(at(0), ids[0]), Ok(name("a.test")));
        later(cache.ask(at(0), address(1)));
        assert_eq!((cache.counts().hits, cache.counts().entries), (0, 0));
    }

    #[test]
    fn lookups_are_bounded() {
        let mut cache = cache(0);
        for _ in 0..LOOKUPS_MAX {
            later(cache.ask(at(0), address(1)));
        }
        assert_eq!(cache.ask(at(0), address(1)), HostnameAnswer::Known(None));
        assert_eq!((cache.waiting(), cache.counts().refused), (LOOKUPS_MAX, 1));
        let (id, _) = cache.next_lookup(at(0)).unwrap();
        assert_eq!(cache.ask(at(0), address(1)), HostnameAnswer::Known(None), "the lookup is in progress");
        cache.learn(at(0), id, None);
        later(cache.ask(at(0), address(1)));
    }

    #[test]
    fn renewed_limits_apply_to_later_lookups() {
        let mut cache = cache(8);
        let id = later(cache.ask(at(0), address(1)));
        cache.next_lookup(at(0));
        cache.renew(HostnameLimits { wait: Duration::from_secs(50), entries: 9, ..HostnameLimits::default() });
        assert_eq!(cache.collect(at(9), id), Err(at(50)));
        cache.learn(at(9), id, name("a.test"));
        assert_eq!(cache.collect(at(9), id), Ok(name("a.test")));
        assert_eq!(cache.ask(at(9), address(1)), HostnameAnswer::Known(name("a.test")));
        cache.renew(HostnameLimits { entries: 0, ..HostnameLimits::default() });
        later(cache.ask(at(9), address(1)));
        assert_eq!(cache.counts().entries, 0);
    }

    #[test]
    fn valid_host_names_are_kept_and_invalid_ones_rejected() {
        let check = |text: &str, expected: Option<&str>| assert_eq!(clean(text).as_deref(), expected, "{text:?}");
        check("host.example.org", Some("host.example.org"));
        check("Host-1.Example.ORG.", Some("host-1.example.org"));
        check("_srv.a_b.test", Some("_srv.a_b.test"));
        check("localhost", Some("localhost"));
        check("1.2.3.4.dyn.test", Some("1.2.3.4.dyn.test"));
        check("xn--bcher-kva.test", Some("xn--bcher-kva.test"));
        check(&"a.".repeat(126), Some(&"a.".repeat(126)[..251]));
        for bad in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a b",
            "a\"b",
            "a\\b",
            "a\nb",
            "a\0b",
            "a\x1b[31m",
            "\u{e4}.test",
            "a/b",
            "a:b",
        ] {
            check(bad, None);
        }
        for address in ["10.0.0.1", "167772161", "0xa000001", "10.0.0.0x1", "0X7F.1", "a.1", "::1", "0x"] {
            check(address, None);
        }
        check(&"a.".repeat(127), Some(&"a.".repeat(127)[..253]));
        check(&"a.".repeat(128), None);
    }

    proptest! {
        // The result is the last one learnt about the address, according to a model that remembers everything.
        #[test]
        fn cache_agrees_with_plain_map(
            entries in 0usize..4,
            steps in prop::collection::vec((0u8..6, 0u8..6, 0u64..40), 0..300),
        ) {
            let mut cache = cache(entries);
            let mut now = 0;
            let mut learnt: Map<IpAddr, (Hostname, u64)> = Map::new();
            let (mut lines, mut taken) = (Vec::new(), Vec::new());
            let mut answers: Map<LookupId, Hostname> = Map::new();
            for (n, (step, which, seconds)) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => match cache.ask(at(now), address(which)) {
                        HostnameAnswer::Known(found) => {
                            let (name, when) = &learnt[&address(which)];
                            prop_assert_eq!(&found, name);
                            let lifetime = if found.is_some() { 600 } else { 60 };
                            prop_assert!(entries > 0 && now - when < lifetime);
                        }
                        HostnameAnswer::Later(id) => lines.push((id, now)),
                    },
                    2 => taken.extend(cache.next_lookup(at(now))),
                    3 if !taken.is_empty() => {
                        let (id, address) = taken.remove(usize::from(which) % taken.len());
                        let found = (which != 0).then(|| Arc::from(std::format!("{n}.test")));
                        cache.learn(at(now), id, found.clone());
                        learnt.insert(address, (found.clone(), now));
                        answers.insert(id, found);
                    }
                    4 => now += seconds,
                    5 if !lines.is_empty() => {
                        let (id, since) = lines[usize::from(which) % lines.len()];
                        match (cache.collect(at(now), id), answers.get(&id)) {
                            (Ok(found), Some(answer)) => prop_assert_eq!(&found, answer),
                            (Ok(found), None) => prop_assert_eq!(found, None),
                            (Err(until), answer) => {
                                prop_assert!(answer.is_none() && until > at(now) && until <= at(since + 5));
                                continue;
                            }
                        }
                        lines.remove(usize::from(which) % lines.len());
                    }
                    _ => {}
                }
                prop_assert!(cache.counts().entries <= entries as u64);
                prop_assert!(cache.waiting() <= cache.unanswered && cache.unanswered <= cache.lookups.len());
                prop_assert_eq!(cache.waiting() + taken.len(), cache.unanswered, "none is forgotten");
                if entries > 0 {
                    prop_assert_eq!(cache.shared.len(), cache.unanswered, "one for each address");
                }
            }
            // In the end nothing remains.
            lines.iter().for_each(|&(id, _)| drop(cache.collect(Time::NEVER, id)));
            taken.extend(std::iter::from_fn(|| cache.next_lookup(at(now))));
            taken.iter().for_each(|&(id, _)| cache.learn(at(now), id, None));
            prop_assert!(cache.lookups.is_empty() && cache.shared.is_empty() && cache.unanswered == 0);
        }
    }
}
