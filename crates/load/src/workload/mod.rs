//! Workloads: a table of requests, and the order in which a run draws them.
//!
//! Everything is prepared before the run: a workload fills a [`Requests`], and from then on request number `n` of a run
//! is a function of `n` alone. Several threads therefore need no queue between them, the same seed gives the same
//! requests in the same order, and a driver can prepare the bytes of each table entry.

pub mod content;
pub mod fileset;
pub mod log;
pub mod manifest;
pub mod mix;

use std::time::Duration;

use amped_measure::stats::Random;

use crate::slice::Slice;

/// A request, and the reply that it expects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Whether the method is HEAD, whose reply has no body; otherwise GET.
    pub head: bool,
    /// Path and query as in a request line (RFC 9112, 3.2.1).
    pub target: Box<[u8]>,
    /// The expectation for its reply; `None` accepts any status below 400.
    pub expect: Option<Expect>,
    /// Its request class, for results by class: 0, 1, ...
    pub class: u16,
}

/// An expected reply. `None` fields are not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Expect {
    /// The status code.
    pub status: Option<u16>,
    /// Bytes of the body.
    pub length: Option<u64>,
    /// The bytes of the body.
    pub content: Option<ContentCheck>,
}

/// A set of statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(Vec<std::ops::RangeInclusive<u16>>);

impl Default for Statuses {
    /// All below 400.
    fn default() -> Statuses {
        Statuses(vec![0..=399])
    }
}

impl Statuses {
    /// Whether the set contains this status.
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl std::str::FromStr for Statuses {
    type Err = String;

    /// `2xx,404`: classes and single statuses.
    fn from_str(text: &str) -> Result<Statuses, String> {
        let status = |part: &str| {
            let class = part.strip_suffix("xx").or_else(|| part.strip_suffix("XX"));
            let (digits, length, factor) = class.map_or((part, 3, 1), |class| (class, 1, 100));
            let is_number = digits.len() == length && digits.bytes().all(|byte| byte.is_ascii_digit());
            let first = digits.parse::<u16>().ok().filter(|_| is_number)? * factor;
            (200..=599).contains(&first).then(|| first..=first + (factor - 1))
        };
        let wrong = |part: &str| format!("invalid final status {part:?}: write 404, 2xx, or several as 2xx,404");
        text.split(',')
            .map(str::trim)
            .map(|part| status(part).ok_or_else(|| wrong(part)))
            .collect::<Result<_, _>>()
            .map(Statuses)
    }
}

/// The checksum of a body, see [`Digest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentCheck(pub u64);

/// FNV-1a with 64 bits (draft-eastlake-fnv, section 4), computed incrementally. It detects truncated, shifted or
/// swapped content, but is no defence against an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// The checksum of all bytes.
    pub fn finish(self) -> ContentCheck {
        ContentCheck(self.0)
    }
}

/// The requests of a run: a table, and the order of requests 0, 1, 2, ...
#[derive(Clone, Debug)]
pub struct Requests {
    table: Vec<Request>,
    order: Order,
    /// The instant of each request, from the start of the run; for replays. Empty if the schedule decides.
    instants: Vec<Duration>,
    /// The names of the classes, if any.
    classes: Vec<String>,
    /// The maximum number of requests of all slices together, in any order.
    limit: Option<u64>,
    /// The slice of this generator.
    slice: Slice,
}

/// The order in which requests are drawn from a table.
#[derive(Clone, Debug)]
pub enum Order {
    /// In table order, repeated endlessly.
    Cycle,
    /// In table order, once.
    Once,
    /// At these table indices, once: a log requests few files often.
    Listed(Vec<u32>),
    /// Drawn independently in proportion to their weights, endlessly.
    Drawn {
        /// The seed of the draws.
        seed: u64,
        /// The running sums of the weights: one per request, not decreasing, the last above 0.
        sums: Vec<f64>,
    },
}

impl Requests {
    /// # Panics
    /// If the table is empty, or if the number of weights differs from
    /// that of requests; the creator of a workload has checked both.
    pub fn new(table: Vec<Request>, order: Order) -> Requests {
        assert!(!table.is_empty(), "a workload without requests");
        if let Order::Drawn { sums, .. } = &order {
            assert!(sums.len() == table.len() && sums.last().is_some_and(|sum| *sum > 0.0), "invalid weights");
        }
        if let Order::Listed(list) = &order {
            let largest = list.iter().max().map(|at| *at as usize);
            assert!(largest.is_some_and(|at| at < table.len()), "an empty list, or an invalid index");
        }
        Requests { table, order, instants: Vec::new(), classes: Vec::new(), limit: None, slice: Slice::default() }
    }

    /// The same, with names for classes 0, 1, ...
    pub fn with_classes(self, classes: Vec<String>) -> Requests {
        Requests { classes, ..self }
    }

    /// The same, with at most this number of requests over all slices.
    pub fn limit(self, limit: u64) -> Requests {
        Requests { limit: Some(limit), ..self }
    }

    /// One generator's slice of the run: every N-th request.
    pub fn slice(self, slice: Slice) -> Requests {
        Requests { slice, ..self }
    }

    /// The same, with an instant for each request, from the start of the run.
    pub fn with_instants(self, instants: Vec<Duration>) -> Requests {
        Requests { instants, ..self }
    }

    /// The instants of the requests of all slices, from the start of the run; empty if the schedule decides.
    pub fn instants(&self) -> &[Duration] {
        &self.instants
    }

    /// The name of a class, or its number if it has none.
    pub fn class(&self, class: usize) -> String {
        self.classes.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// The same request, repeated endlessly.
    pub fn same(target: &[u8]) -> Requests {
        Requests::new(vec![Request { target: target.into(), ..Request::default() }], Order::Cycle)
    }

    /// The table of distinct requests.
    pub fn table(&self) -> &[Request] {
        &self.table
    }

    /// The table index of request number `n`; `None` after the last.
    pub fn index(&self, n: u64) -> Option<usize> {
        let (n, length) = (self.slice.number(n), self.table.len() as u64);
        if self.limit.is_some_and(|limit| n >= limit) {
            return None;
        }
        match &self.order {
            Order::Cycle => Some((n % length) as usize),
            Order::Once => (n < length).then_some(n as usize),
            Order::Listed(list) => list.get(usize::try_from(n).ok()?).map(|at| *at as usize),
            // A generator per draw: the draws are as independent as the outputs of SplitMix64.
            Order::Drawn { seed, sums } => {
                let mut random = Random(seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
                Some(random.weighted(sums))
            }
        }
    }

    /// Request number `n`; `None` after the last.
    pub fn get(&self, n: u64) -> Option<&Request> {
        self.index(n).map(|index| &self.table[index])
    }

    /// The total number of requests; `None` without an end.
    pub fn len(&self) -> Option<u64> {
        let whole = match &self.order {
            Order::Once => Some(self.table.len() as u64),
            Order::Listed(list) => Some(list.len() as u64),
            Order::Cycle | Order::Drawn { .. } => None,
        };
        let least = whole.into_iter().chain(self.limit).min();
        least.map(|count| self.slice.share(count))
    }

    /// Always false: there is at least one request.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// The running sums for [`Order::Drawn`] of weights that are finite and not negative.
pub fn running_sums(weights: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let add = |sum: &mut f64, weight: f64| {
        *sum += weight;
        Some(*sum)
    };
    weights.into_iter().scan(0.0, add).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(count: u8) -> Vec<Request> {
        (0..count).map(|n| Request { target: vec![b'/', b'a' + n].into(), ..Request::default() }).collect()
    }

    #[test]
    fn order_determines_index() {
        let check = |order: Order, expected: [Option<usize>; 5]| {
            let requests = Requests::new(table(3), order);
            assert_eq!([0, 1, 2, 3, 4].map(|n| requests.index(n)), expected);
        };
        check(Order::Cycle, [Some(0), Some(1), Some(2), Some(0), Some(1)]);
        check(Order::Once, [Some(0), Some(1), Some(2), None, None]);
        check(Order::Listed(vec![2, 0, 2, 1]), [Some(2), Some(0), Some(2), Some(1), None]);
        assert_eq!(&*Requests::same(b"/x").get(7).expect("no end").target, b"/x");
        // A limit applies to endless orders and to longer ones.
        for (order, limit, expected) in [(Order::Cycle, 4, 4), (Order::Once, 2, 2), (Order::Once, 9, 3)] {
            let requests = Requests::new(table(3), order).limit(limit);
            assert_eq!(requests.len(), Some(expected));
            assert!(requests.get(expected - 1).is_some() && requests.get(expected).is_none());
        }
        let half = Requests::same(b"/x").limit(5).slice("2/2".parse().unwrap());
        assert!(half.len() == Some(2) && half.get(1).is_some() && half.get(2).is_none());
        let named = Requests::same(b"/x").with_classes(vec!["small".to_owned()]);
        assert_eq!([named.class(0), named.class(1)], ["small", "1"]);
    }

    #[test]
    fn statuses_are_parsed_as_classes_and_numbers() {
        let check = |text: &str, right: &[u16], wrong: &[u16]| {
            let statuses: Statuses = text.parse().unwrap();
            assert!(right.iter().all(|status| statuses.contains(*status)), "{text}");
            assert!(!wrong.iter().any(|status| statuses.contains(*status)), "{text}");
        };
        check("2xx,404", &[200, 299, 404], &[199, 300, 403, 405, 500]);
        check(" 5XX , 204", &[204, 500, 599], &[200, 499]);
        for bad in ["", "2x", "xx", "1xx", "6xx", "99", "600", "2xx,", "2xxx", "ok", "+200", "0200", "02xx"] {
            let why = bad.parse::<Statuses>().unwrap_err();
            assert!(why.contains("write 404, 2xx"), "{bad}: {why}");
        }
    }

    #[test]
    fn draws_follow_weights_and_seed() {
        let drawn = |seed| Requests::new(table(3), Order::Drawn { seed, sums: vec![0.5, 0.5, 2.0] });
        let of = |requests: &Requests| (0..20_000).map(|n| requests.index(n).expect("no end")).collect::<Vec<_>>();
        let first = of(&drawn(1));
        assert_eq!(first, of(&drawn(1)));
        assert_ne!(first, of(&drawn(2)));
        let count = |which| first.iter().filter(|index| **index == which).count();
        assert_eq!(count(1), 0, "its weight is 0");
        // 5000 expected, standard deviation 61.
        assert!((4750..5250).contains(&count(0)), "{}", count(0));
    }

    #[test]
    fn chunk_size_does_not_change_digest() {
        // Test vectors of the draft, appendix C.
        let of = |pieces: &[&[u8]]| {
            let mut digest = Digest::default();
            pieces.iter().for_each(|piece| digest.update(piece));
            digest.finish()
        };
        assert_eq!(of(&[]), ContentCheck(0xcbf2_9ce4_8422_2325));
        assert_eq!(of(&[b"foobar"]), ContentCheck(0x8594_4171_f739_67e8));
        assert_eq!(of(&[b"foo", b"", b"bar"]), of(&[b"foobar"]));
    }
}
