//! The backends of a rule that forwards requests by HTTP: which of them gets a request, and which are out of service.
//!
//! A backend that fails several times in succession gets no requests for a while; then one request tries it, and
//! decides. If all are out of service they get requests all the same, since an attempt costs little and an error is
//! certain otherwise. A rule with a single backend therefore never takes it out of service.
//!
//! In MP processes share the turns, and each counts failures for itself. A backend that active checks have found unhealthy (`health`) gets no
//! requests, and none that tries it, as long as another one is in service.
//!
//! The backends of an [`Upstream`] do not change. If a name gets other addresses (`names`), [`Upstreams`] has another one for
//! the requests that begin from then on.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use amped_http::status::Status;
use amped_sys::words::Words;

use super::backend::{At, Backend};
use super::health::Health;
use super::names::{Names, milliseconds};
use crate::config::settings::{BackendAddress, BackendServer, Balance, UpstreamSettings};
use crate::say;

/// The backends of a rule, as they are now.
#[derive(Debug)]
pub struct Upstreams {
    /// The version of the names' addresses, and the backends with them.
    current: RwLock<(u64, Arc<Upstream>)>,
    names: Option<Names>,
    /// Maximum idle connections to each backend.
    idle_max: usize,
}

impl Upstreams {
    /// Creates the backends.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub(super) fn new(settings: &UpstreamSettings, idle_max: usize) -> io::Result<Upstreams> {
        let UpstreamSettings { servers, names, resolve, health, .. } = settings;
        let names = match names.is_empty() {
            true => None,
            false => Some(Names::new(names, *resolve, servers.len())?),
        };
        let health = health.clone().map(Health::new).transpose()?.map(Arc::new);
        let fixed = servers.iter().cloned().enumerate();
        let all = fixed.chain(names.as_ref().and_then(Names::addresses).into_iter().flatten());
        let members = all.map(|(number, server)| Arc::new(Member::new(number, server, idle_max))).collect();
        let turns = Arc::new(Words::new(1)?);
        let current = Arc::new(Upstream::new(members, settings.clone(), health, turns));
        Ok(Upstreams { current: RwLock::new((0, current)), names, idle_max })
    }

    /// Returns the backends for a request.
    pub(super) fn current(&self) -> Arc<Upstream> {
        let version = self.names.as_ref().map_or(0, Names::version);
        {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            if current.0 == version {
                return Arc::clone(&current.1);
            }
        }
        self.renewed(version)
    }

    /// Takes over the addresses of a version.
    fn renewed(&self, version: u64) -> Arc<Upstream> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let (known, upstream) = &mut *current;
        if *known != version
            && let Some(names) = &self.names
            && let Some(named) = names.addresses()
        {
            *upstream = Arc::new(upstream.with(upstream.settings.servers.len(), named, self.idle_max));
            *known = version;
        }
        Arc::clone(upstream)
    }

    /// Returns the names of the backends.
    pub(super) fn names(&self) -> Option<&Names> {
        self.names.as_ref()
    }
}

/// Backends among which requests are shared.
#[derive(Debug)]
pub struct Upstream {
    members: Vec<Arc<Member>>,
    settings: UpstreamSettings,
    /// The number of requests assigned so far, by all processes.
    turns: Arc<Words>,
    start: Instant,
    /// The results of active checks, if there are any.
    health: Option<Arc<Health>>,
}

#[derive(Debug)]
struct Member {
    /// Its number for active checks, which it keeps while others come and go.
    number: usize,
    server: BackendServer,
    backend: Arc<Backend>,
    name: Arc<str>,
    /// Requests in progress.
    active: AtomicUsize,
    /// Failures since the last success.
    failures: AtomicU32,
    /// When it is tried again, in milliseconds since `start`; 0: it is in service.
    retry_ms: AtomicU64,
}

impl Member {
    /// Creates a backend that is in service.
    fn new(number: usize, server: BackendServer, idle_max: usize) -> Member {
        let new = |at| Backend::new(at, idle_max, 0);
        let backend = Arc::new(match server.address.clone() {
            BackendAddress::Unix(name) => new(At::Unix(name)),
            BackendAddress::Tcp(address) => new(At::Tcp(address)),
            BackendAddress::Tls(address, tls) => new(At::Tcp(address)).with_tls(tls),
        });
        Member {
            number,
            server,
            name: backend.name().into(),
            backend,
            active: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            retry_ms: AtomicU64::new(0),
        }
    }
}

impl Upstream {
    fn new(
        members: Vec<Arc<Member>>,
        settings: UpstreamSettings,
        health: Option<Arc<Health>>,
        turns: Arc<Words>,
    ) -> Upstream {
        Upstream { members, settings, turns, start: Instant::now(), health }
    }

    /// Returns the same backends, except for those with a number from `first` on, which are these instead.
    fn with(&self, first: usize, named: Vec<(usize, BackendServer)>, idle_max: usize) -> Upstream {
        let fixed = self.members.iter().filter(|member| member.number < first).cloned();
        let named = named.into_iter().map(|(number, server)| {
            let is_it = |known: &&Arc<Member>| (known.number, &known.server) == (number, &server);
            let known = self.members.iter().find(is_it).cloned();
            known.unwrap_or_else(|| Arc::new(Member::new(number, server, idle_max)))
        });
        let (settings, health, turns) = (self.settings.clone(), self.health.clone(), Arc::clone(&self.turns));
        Upstream { start: self.start, ..Upstream::new(fixed.chain(named).collect(), settings, health, turns) }
    }

    /// Returns the state of active checks.
    pub(super) fn health(&self) -> Option<&Health> {
        self.health.as_deref()
    }

    /// Returns all backends, with their numbers and names.
    pub(super) fn backends(&self) -> impl Iterator<Item = (usize, &Backend, &str)> {
        self.members.iter().map(|member| (member.number, &*member.backend, &*member.name))
    }

    /// Returns how requests are forwarded.
    pub fn settings(&self) -> &UpstreamSettings {
        &self.settings
    }

    /// Returns a backend.
    pub fn backend(&self, member: usize) -> &Arc<Backend> {
        &self.members[member].backend
    }

    /// Returns the name of a backend.
    pub fn name(&self, member: usize) -> Arc<str> {
        Arc::clone(&self.members[member].name)
    }

    /// Chooses a backend, except those of this set of bits, which were tried. `key`: what the hash is computed of.
    pub fn pick(&self, tried: u64, key: &[u8]) -> Option<usize> {
        if self.members.len() == 1 {
            // It is never out of service.
            return (tried == 0).then_some(0);
        }
        let now_ms = self.now_ms();
        let untried = || (0..self.members.len()).filter(move |member| tried & (1 << member) == 0);
        let is_up = |member: &usize| self.is_up(*member);
        let share = |member: usize| self.members[member].server.share;
        let is_primary = |member: &usize| !share(*member).is_backup;
        // Backups, if there is no other.
        let needs_backups = !untried().filter(is_primary).any(|member| is_up(&member));
        let eligible = || untried().filter(|member| needs_backups || is_primary(member));
        if let Some(trial) =
            eligible().filter(|&member| self.is_healthy(member)).find(|&member| self.takes_trial(member, now_ms))
        {
            return Some(trial);
        }
        let mut candidates: Vec<usize> = eligible().filter(is_up).collect();
        if candidates.is_empty() {
            candidates = untried().filter(is_primary).collect();
        }
        if candidates.is_empty() {
            candidates = untried().collect();
        }
        let weight = |member: usize| u64::from(share(member).weight);
        let turns = &self.turns.all()[0];
        // A retry takes no turn: of two backends the one that fails would otherwise be the first choice for each request.
        let count = if tried == 0 { turns.fetch_add(1, Ordering::Relaxed) } else { turns.load(Ordering::Relaxed) };
        let turn = in_turn(&candidates, weight, count)?;
        let active = |member: usize| self.members[member].active.load(Ordering::Relaxed) as u64;
        match self.settings.balance {
            Balance::RoundRobin => Some(candidates[turn]),
            // Of equals the next in turn.
            Balance::LeastConnections => {
                let from_turn = candidates[turn..].iter().chain(&candidates[..turn]).copied();
                // Those in progress in proportion to the weight, compared without a division.
                from_turn.reduce(|best, member| match active(member) * weight(best) < active(best) * weight(member) {
                    true => member,
                    false => best,
                })
            }
            // The backend with the highest score: if one is out of service, only its requests go elsewhere.
            Balance::Hash => {
                let score = |member: usize| score(key, &self.members[member].name, share(member).weight);
                candidates.iter().copied().max_by(|&one, &other| score(one).total_cmp(&score(other)))
            }
        }
    }

    /// Returns whether a status of this backend may send a request to another one: one that is in service, and none of those in
    /// this set of bits.
    pub fn retries_after_status(&self, tried: u64, member: usize) -> bool {
        let is_left = |other: usize| other != member && tried & 1 << other == 0 && self.is_up(other);
        !self.settings.retry_statuses.is_empty() && (0..self.members.len()).any(is_left)
    }

    /// Returns whether a backend has neither failed too often nor been found unhealthy.
    fn is_up(&self, member: usize) -> bool {
        self.is_healthy(member) && self.members[member].retry_ms.load(Ordering::Relaxed) == 0
    }

    fn is_healthy(&self, member: usize) -> bool {
        self.health().map_or(0, Health::down) & 1 << self.members[member].number == 0
    }

    /// Returns whether a backend is out of service and to be tried now: one caller gets `true`.
    fn takes_trial(&self, member: usize, now_ms: u64) -> bool {
        let retry_ms = &self.members[member].retry_ms;
        let known = retry_ms.load(Ordering::Relaxed);
        let next = self.retry_at(now_ms);
        known != 0
            && now_ms >= known
            && retry_ms.compare_exchange(known, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn retry_at(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add(milliseconds(self.settings.failure_timeout)).max(1)
    }

    fn now_ms(&self) -> u64 {
        milliseconds(self.start.elapsed())
    }

    /// Counts a failure of a backend. Returns whether it is out of service from now on.
    pub fn note_failure(&self, member: usize) -> bool {
        let Member { name, failures, retry_ms, .. } = &*self.members[member];
        let count = failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if count < self.settings.max_failures || self.members.len() == 1 {
            return false;
        }
        let next = self.retry_at(self.now_ms());
        let was_up = retry_ms.swap(next, Ordering::Relaxed) == 0;
        if was_up {
            let time = self.settings.failure_timeout;
            say!("the backend {name} is out of service for {time:?} after {count} failures");
        }
        was_up
    }

    /// A backend has responded. Returns whether it was out of service until now.
    pub fn note_success(&self, member: usize) -> bool {
        let Member { name, failures, retry_ms, .. } = &*self.members[member];
        if failures.load(Ordering::Relaxed) != 0 {
            failures.store(0, Ordering::Relaxed);
        }
        let was_out = retry_ms.load(Ordering::Relaxed) != 0 && retry_ms.swap(0, Ordering::Relaxed) != 0;
        if was_out {
            say!("the backend {name} is in service again");
        }
        was_out
    }
}

/// A request in progress at a backend.
#[derive(Debug)]
pub struct InUse {
    upstream: Arc<Upstream>,
    member: usize,
}

impl InUse {
    /// Counts a request to this backend until it is dropped.
    pub fn new(upstream: &Arc<Upstream>, member: usize) -> InUse {
        upstream.members[member].active.fetch_add(1, Ordering::Relaxed);
        InUse { upstream: Arc::clone(upstream), member }
    }

    /// Returns the name of the backend.
    pub fn name(&self) -> Arc<str> {
        self.upstream.name(self.member)
    }

    /// The backend has responded, with this status unless it has switched protocols. Returns whether it was out of service until now.
    pub fn note_response(&self, status: Option<Status>) -> bool {
        !status.is_some_and(|status| self.upstream.settings.is_failure(status))
            && self.upstream.note_success(self.member)
    }

    /// The backend has failed. Returns whether it is out of service from now on.
    pub fn note_failure(&self) -> bool {
        self.upstream.note_failure(self.member)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.upstream.members[self.member].active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the index of the one whose turn it is. A round has as many turns as the sum of the weights, without a common factor of theirs,
/// and each member has its weight of them. The step between two turns has no common factor with the round, so all of it is covered. It
/// is about the golden section of it, so a member rarely has many turns in succession.
fn in_turn(candidates: &[usize], weight: impl Fn(usize) -> u64, count: u64) -> Option<usize> {
    let factor = candidates.iter().fold(0, |factor, &member| gcd(factor, weight(member))).max(1);
    let weight = |member| weight(member) / factor;
    let round: u64 = candidates.iter().map(|&member| weight(member)).sum();
    let step = (round * 618 / 1000..).find(|&step| gcd(step, round) == 1)?;
    let mut place = (count % round.max(1)) * step % round.max(1);
    candidates.iter().position(|&member| {
        let is_it = place < weight(member);
        place = place.saturating_sub(weight(member));
        is_it
    })
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

/// Weighted rendezvous hashing (Thaler and Ravishankar, 1998; the weights as in draft-ietf-bess-weighted-hrw). The hasher has fixed keys,
/// so that all loops and processes agree.
fn score(key: &[u8], backend: &str, weight: u16) -> f64 {
    let mut hasher = DefaultHasher::new();
    (key, backend).hash(&mut hasher);
    // Between 0 and 1, exclusive.
    let uniform = ((hasher.finish() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
    -f64::from(weight) / uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Share;
    use std::net::SocketAddr;
    use std::time::Duration;

    fn address(number: usize) -> BackendServer {
        shared(number, Share::default())
    }

    fn shared(number: usize, share: Share) -> BackendServer {
        let address = BackendAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], number as u16 + 1)));
        BackendServer { address, share }
    }

    fn checked(count: usize, balance: Balance, failure_timeout: Duration, health: Option<Health>) -> Upstream {
        let settings = UpstreamSettings { balance, max_failures: 2, failure_timeout, ..UpstreamSettings::default() };
        let members = (0..count).map(|number| Arc::new(Member::new(number, address(number), 0))).collect();
        Upstream::new(members, settings, health.map(Arc::new), Arc::new(Words::new(1).unwrap()))
    }

    fn upstream(count: usize, balance: Balance, failure_timeout: Duration) -> Upstream {
        checked(count, balance, failure_timeout, None)
    }

    const LONG: Duration = Duration::from_secs(3600);

    fn counts(upstream: &Upstream, picks: usize) -> Vec<usize> {
        let mut counts = vec![0; upstream.members.len()];
        (0..picks).for_each(|_| counts[upstream.pick(0, b"").unwrap()] += 1);
        counts
    }

    #[test]
    fn requests_are_shared_equally_by_backends_in_service() {
        let upstream = upstream(3, Balance::RoundRobin, LONG);
        assert_eq!(counts(&upstream, 12), [4, 4, 4]);
        assert!(!upstream.note_failure(1));
        assert_eq!(counts(&upstream, 12), [4, 4, 4]);
        assert!(upstream.note_failure(1));
        assert!(!upstream.note_failure(1), "it is out of service already");
        assert_eq!(counts(&upstream, 12), [6, 0, 6]);
        assert!(upstream.note_success(1) && !upstream.note_success(1));
        assert_eq!(counts(&upstream, 12), [4, 4, 4]);
        // A success between two failures.
        assert!(!upstream.note_failure(0));
        upstream.note_success(0);
        assert!(!upstream.note_failure(0));
        assert_eq!(counts(&upstream, 12), [4, 4, 4]);
    }

    #[test]
    fn unhealthy_backends_get_no_requests_unless_all_are() {
        let check = toml::from_str("path = '/'\nhealthy = 2\nunhealthy = 3").unwrap();
        let upstream = checked(3, Balance::RoundRobin, LONG, Some(Health::new(check).unwrap()));
        let note = |member, is_healthy| upstream.health().unwrap().note(member, is_healthy).unwrap();
        // Results in succession count.
        assert_eq!(
            [false, false, true, false, false, false, false].map(|result| note(1, result)).map(u8::from),
            [0, 0, 0, 0, 0, 1, 0]
        );
        assert_eq!(counts(&upstream, 12), [6, 0, 6]);
        // It is not tried either when the timeout of its failures is over.
        (0..2).for_each(|_| _ = upstream.note_failure(1));
        upstream.members[1].retry_ms.store(1, Ordering::Relaxed);
        assert_eq!(counts(&upstream, 12), [6, 0, 6]);
        upstream.note_success(1);
        for member in [0, 2] {
            (0..3).for_each(|_| _ = note(member, false));
        }
        assert_eq!(counts(&upstream, 12), [4, 4, 4]);
        assert_eq!([true, false, true, true].map(|result| note(1, result)), [false, false, false, true]);
        assert_eq!(counts(&upstream, 12), [0, 12, 0]);
    }

    #[test]
    fn backends_that_stay_keep_their_state_when_others_come_and_go() {
        let check = toml::from_str("path = '/'\nunhealthy = 1").unwrap();
        let upstream = checked(3, Balance::RoundRobin, LONG, Some(Health::new(check).unwrap()));
        (0..2).for_each(|_| _ = upstream.note_failure(0));
        upstream.health().unwrap().note(2, false).unwrap();
        // Number 1 has moved, and there is one more.
        let moved = upstream.with(0, vec![(0, address(0)), (1, address(7)), (2, address(2)), (3, address(3))], 0);
        assert_eq!(counts(&moved, 12), [0, 6, 0, 6]);
        let ports: Vec<&str> = moved.backends().map(|(_, _, name)| name).collect();
        assert_eq!(ports, ["127.0.0.1:1", "127.0.0.1:8", "127.0.0.1:3", "127.0.0.1:4"]);
        // Backends without a name stay; a rule without addresses gets no requests.
        assert_eq!(counts(&upstream.with(2, vec![], 0), 4), [0, 4]);
        assert_eq!(upstream.with(0, vec![], 0).pick(0, b""), None);
    }

    #[test]
    fn all_backends_get_requests_if_none_is_in_service() {
        let two = upstream(2, Balance::RoundRobin, LONG);
        (0..4).for_each(|n| _ = two.note_failure(n % 2));
        assert_eq!(counts(&two, 12), [6, 6]);
        let one = upstream(1, Balance::RoundRobin, LONG);
        assert!((0..9).all(|_| !one.note_failure(0)));
        assert_eq!(one.pick(0, b""), Some(0));
    }

    #[test]
    fn one_request_tries_backend_after_its_timeout() {
        let upstream = upstream(2, Balance::RoundRobin, LONG);
        upstream.note_failure(0);
        assert!(upstream.note_failure(0));
        // Its time is over.
        upstream.members[0].retry_ms.store(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(counts(&upstream, 10), [1, 9]);
        assert!(!upstream.note_failure(0));
        assert_eq!(counts(&upstream, 10), [0, 10]);
    }

    #[test]
    fn tried_backends_are_not_chosen_again() {
        for balance in [Balance::RoundRobin, Balance::LeastConnections, Balance::Hash] {
            let upstream = upstream(3, balance, LONG);
            let mut tried = 0;
            for _ in 0..3 {
                let member = upstream.pick(tried, b"key").unwrap();
                assert_eq!(tried & 1 << member, 0);
                tried |= 1 << member;
            }
            assert_eq!((tried, upstream.pick(tried, b"key")), (7, None));
        }
    }

    #[test]
    fn backend_with_fewest_requests_is_chosen() {
        let upstream = Arc::new(upstream(3, Balance::LeastConnections, LONG));
        let mut held: Vec<InUse> = (0..6).map(|_| InUse::new(&upstream, upstream.pick(0, b"").unwrap())).collect();
        let active = || upstream.members.iter().map(|member| member.active.load(Ordering::Relaxed)).collect::<Vec<_>>();
        assert_eq!(active(), [2, 2, 2]);
        let position = held.iter().position(|held| held.member == 1).unwrap();
        held.remove(position);
        assert_eq!(upstream.pick(0, b""), Some(1));
    }

    fn weighted(balance: Balance, shares: &[(u16, bool)]) -> Arc<Upstream> {
        let settings =
            UpstreamSettings { balance, max_failures: 1, failure_timeout: LONG, ..UpstreamSettings::default() };
        let member = |(number, &(weight, is_backup))| {
            Arc::new(Member::new(number, shared(number, Share { weight, is_backup }), 0))
        };
        let (members, turns) = (shares.iter().enumerate().map(member).collect(), Arc::new(Words::new(1).unwrap()));
        Arc::new(Upstream::new(members, settings, None, turns))
    }

    #[test]
    fn requests_are_shared_by_weight() {
        let upstream = weighted(Balance::RoundRobin, &[(5, false), (1, false), (2, false)]);
        assert_eq!(counts(&upstream, 8), [5, 1, 2]);
        // They alternate: never more than two in succession for a bit more than half of them.
        let picks: Vec<usize> = (0..80).map(|_| upstream.pick(0, b"").unwrap()).collect();
        let longest = picks.chunk_by(|one, other| one == other).map(<[usize]>::len).max();
        assert!(longest <= Some(3), "{picks:?}");
        upstream.note_failure(0);
        assert_eq!(counts(&upstream, 9), [0, 3, 6]);
        for (shares, longest) in [([3, 3], 1), ([4, 2], 2), ([2, 4], 2), ([2, 2], 1), ([7, 7], 1), ([1, 5], 5)] {
            let upstream = weighted(Balance::RoundRobin, &shares.map(|weight| (weight, false)));
            let picks: Vec<usize> = (0..60).map(|_| upstream.pick(0, b"").unwrap()).collect();
            let found = picks.chunk_by(|one, other| one == other).map(<[usize]>::len).max();
            assert_eq!(found, Some(longest), "{shares:?}: {picks:?}");
        }
        let large = weighted(Balance::RoundRobin, &[(1000, false), (999, false), (1, false)]);
        assert_eq!(counts(&large, 4000), [2000, 1998, 2]);

        let upstream = weighted(Balance::LeastConnections, &[(4, false), (2, false)]);
        let _held: Vec<InUse> = (0..12).map(|_| InUse::new(&upstream, upstream.pick(0, b"").unwrap())).collect();
        let active: Vec<usize> = upstream.members.iter().map(|member| member.active.load(Ordering::Relaxed)).collect();
        assert_eq!(active, [8, 4]);

        let upstream = weighted(Balance::Hash, &[(1, false), (3, false)]);
        let second = (0..4000_u32).filter(|n| upstream.pick(0, &n.to_be_bytes()) == Some(1)).count();
        assert!((2850..3150).contains(&second), "{second}");
    }

    #[test]
    fn backups_get_requests_while_no_other_is_in_service() {
        for balance in [Balance::RoundRobin, Balance::LeastConnections, Balance::Hash] {
            let upstream = weighted(balance, &[(1, false), (1, true), (1, false)]);
            assert_eq!(counts(&upstream, 12)[1], 0);
            upstream.note_failure(0);
            assert_eq!(counts(&upstream, 6), [0, 0, 6]);
            upstream.note_failure(2);
            assert_eq!(counts(&upstream, 6), [0, 6, 0]);
            // Nobody is: the others first.
            upstream.note_failure(1);
            assert_eq!(counts(&upstream, 6)[1], 0);
            assert_eq!(upstream.pick(0b101, b""), Some(1));
            assert!(upstream.note_success(2));
            // It is not tried either, although its time is over.
            upstream.members[1].retry_ms.store(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(counts(&upstream, 6), [0, 0, 6]);
            upstream.note_failure(2);
            assert_eq!(counts(&upstream, 1), [0, 1, 0]);
        }
    }

    #[test]
    fn retry_takes_no_turn() {
        let upstream = upstream(2, Balance::RoundRobin, LONG);
        let first: Vec<usize> = (0..6)
            .map(|_| {
                let member = upstream.pick(0, b"").unwrap();
                assert_eq!(upstream.pick(1 << member, b""), Some(1 - member));
                member
            })
            .collect();
        assert!(first.windows(2).all(|two| two[0] != two[1]), "{first:?}");
    }

    #[test]
    fn status_sends_request_only_to_a_backend_in_service() {
        let settings = |statuses: &str| UpstreamSettings {
            max_failures: 1,
            failure_timeout: LONG,
            retry_statuses: serde_json::from_str(statuses).unwrap(),
            ..UpstreamSettings::default()
        };
        let members = |count| (0..count).map(|number| Arc::new(Member::new(number, address(number), 0))).collect();
        let upstream =
            |count, statuses| Upstream::new(members(count), settings(statuses), None, Arc::new(Words::new(1).unwrap()));
        assert!(!upstream(3, "[]").retries_after_status(0, 0));
        assert!(!upstream(1, "[503]").retries_after_status(0, 0));
        let three = upstream(3, "[503]");
        assert!(three.retries_after_status(0, 0) && three.retries_after_status(0b10, 0));
        assert!(!three.retries_after_status(0b110, 0));
        three.note_failure(2);
        assert!(three.retries_after_status(0, 0) && !three.retries_after_status(0b10, 0));
    }

    #[test]
    fn hash_keeps_clients_at_their_backend() {
        let upstream = upstream(4, Balance::Hash, LONG);
        let pick = |n: u32| upstream.pick(0, &n.to_be_bytes()).unwrap();
        let before: Vec<usize> = (0..1000).map(pick).collect();
        assert!((0..4).all(|member| before.iter().filter(|&&found| found == member).count() > 150));
        assert_eq!(before, (0..1000).map(pick).collect::<Vec<_>>());
        (0..2).for_each(|_| _ = upstream.note_failure(2));
        for (n, before) in before.into_iter().enumerate() {
            let now = pick(n as u32);
            assert!(now == before || before == 2, "only requests of the failed backend go elsewhere");
            assert_ne!(now, 2);
        }
    }
}
