//! Divides the limit on open files among workers, connections and cached files.
//!
//! A server that runs out of descriptors while it is running answers 503, or fails to start. So each architecture is
//! sized at the start by what its workers need: fewer workers, cached files and connections if the limit is low.

/// The needs of a configuration, as far as it uses descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Workers form a pool, with one connection each.
    pub pool: bool,
    /// Workers are processes.
    pub processes: bool,
    /// Configured workers.
    pub workers: usize,
    /// Addresses to listen on.
    pub addresses: usize,
    /// Roots of sites.
    pub roots: usize,
    /// Maximum helpers of a worker.
    pub helpers: usize,
    /// Helpers are processes.
    pub helper_processes: bool,
    /// Maximum files that one set of caches keeps open.
    pub files: usize,
    /// Maximum concurrent requests to applications, and to an object store.
    pub exchanges: usize,
    /// Private keys are in another process.
    pub key_process: bool,
}

/// The numbers that the limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Workers; as many as configured unless the limit is low.
    pub workers: usize,
    /// Files that one set of caches keeps open.
    pub files: usize,
    /// Connections of the whole server, or of one process of a pool.
    pub connections: usize,
}

/// Descriptors of a process, whatever its architecture: standard streams, the log and its replacement, signals, the
/// control socket, the metrics endpoint, and clients of both.
const OWN: usize = 12;

/// Descriptors of a worker: epoll and its mailbox.
const WORKER: usize = 2;

/// Files that a worker of a pool has open for its request: the file and the sibling under test.
const IN_FLIGHT: usize = 2;

/// Below this limit each connection is counted with files of its own: all may request different ones at a time.
const CROWDED: usize = 512;

/// Descriptors of a script's request: three pipes and the process. A persistent application uses one of them.
const EXCHANGE: usize = 4;

/// Reserved if the limit is high enough: for resolvers, directories, and what helpers open for a moment.
const ROOMY: usize = 64;

/// Divides `limit` descriptors of each process.
///
/// # Errors
/// The lowest limit that would suffice.
pub fn share(limit: usize, needs: &Needs) -> Result<Share, usize> {
    // The sockets to the key process, and of each thread that has it sign.
    let (keys, session) = if needs.key_process { (2, 1) } else { (0, 0) };
    let own = OWN + keys + needs.roots + needs.addresses;
    let exchanges = EXCHANGE.saturating_mul(needs.exchanges);
    let listening = WORKER + session + needs.addresses;
    // For a worker of a pool: its connection, its files, and its script.
    let serving = 1 + IN_FLIGHT + exchanges.min(EXCHANGE);
    if needs.processes {
        // The parent has a socket to each child, after a reload to twice as many, and a pair while it starts one;
        // a child has its end of the socket twice.
        let child = own + listening + serving + 2;
        let least = (own + 4).max(child + 1);
        let workers = limit.saturating_sub(own + 2) / 2;
        let files = needs.files.min(limit / 4).min(limit.saturating_sub(child));
        return fit(limit, least, Share { workers: needs.workers.min(workers), files, connections: 1 });
    }
    if needs.pool {
        let worker = listening + serving;
        let files = needs.files.min(limit / 8).min(limit.saturating_sub(own + worker));
        let workers = needs.workers.min(limit.saturating_sub(own + files) / worker);
        let left = limit.saturating_sub(own + workers * worker);
        let files = needs.files.min(left).min((limit / 4).max(files));
        return fit(limit, own + worker + 1, Share { workers, files, connections: 1 });
    }
    let worker = listening + if needs.helper_processes { 1 + needs.helpers } else { 0 };
    // At least one connection and one file.
    let least = own + worker + IN_FLIGHT + 2;
    let workers = needs.workers.min((limit / 2).max(least).saturating_sub(own + IN_FLIGHT) / worker);
    let helpers = needs.helpers.min(limit / 16).max(IN_FLIGHT);
    let exchanges = exchanges.min(limit / 8);
    let left = limit.saturating_sub(own + workers * (worker + 1) + helpers + exchanges);
    let files = needs.files.min(left.min(limit / 4) / workers.max(1));
    let tight = own + workers * (worker + files) + exchanges + if limit < CROWDED { 0 } else { helpers };
    let roomy = ROOMY + workers.saturating_mul(worker + files + needs.helpers) + exchanges;
    // If the limit is low, files and connections share it equally.
    let mut connections = limit.saturating_sub(tight.max(roomy.min(limit / 2)));
    if limit < CROWDED {
        connections = connections.min(limit.saturating_sub(tight) / (1 + IN_FLIGHT));
    }
    fit(limit, least, Share { workers, files, connections: connections.max(workers) })
}

fn fit(limit: usize, least: usize, share: Share) -> Result<Share, usize> {
    if limit >= least && share.workers > 0 { Ok(share) } else { Err(least) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(workers: usize) -> Needs {
        Needs { workers, addresses: 1, roots: 1, helpers: 16, files: 1024, ..Needs::default() }
    }

    #[test]
    fn shares_fit_any_limit() {
        let forms = [(false, false), (true, false), (true, true)];
        for (pool, processes) in forms {
            for (limit, workers, exchanges) in
                (0..2000).flat_map(|limit| [(limit, 1, 0), (limit, 64, 0), (limit, 500, 40), (limit * 500, 64, 9)])
            {
                for helper_processes in [false, true] {
                    let helper_processes = helper_processes && !pool;
                    let needs = Needs { pool, processes, exchanges, helper_processes, ..needs(workers) };
                    let found = share(limit, &needs);
                    let Ok(share) = found else {
                        let least = found.unwrap_err();
                        assert!(
                            limit < least && least < 100,
                            "{limit} is refused, but the minimum is {least}: {needs:?}"
                        );
                        continue;
                    };
                    let Share { workers, files, connections } = share;
                    assert!(workers >= 1 && connections >= 1 && files <= 1024, "{limit}: {share:?}");
                    let each = WORKER + 1 + if helper_processes { 17 } else { 0 };
                    let used = match (pool, processes) {
                        (true, true) => (14 + 2 * workers).max(17 + files),
                        (true, false) => 14 + workers * (each + 3) + files,
                        _ => 14 + workers * (each + files) + connections,
                    };
                    assert!(used <= limit, "{limit}: {share:?} uses {used} of {needs:?}");
                }
            }
        }
    }

    #[test]
    fn high_limit_grants_full_request() {
        for (pool, processes) in [(false, false), (true, false), (true, true)] {
            let share = share(1 << 20, &Needs { pool, processes, ..needs(64) }).expect("enough");
            assert_eq!((share.workers, share.files), (64, 1024), "{pool} {processes}");
        }
    }

    #[test]
    fn pool_under_low_limit_has_fewer_workers() {
        let check = |processes: bool, limit: usize, expected: usize| {
            let share = share(limit, &Needs { pool: true, processes, ..needs(64) }).expect("enough");
            assert_eq!(share.workers, expected, "{limit}");
        };
        check(false, 64, 7);
        check(false, 128, 16);
        check(false, 256, 35);
        check(false, 1024, 64);
        check(true, 64, 24);
        check(true, 256, 64);
    }
}
