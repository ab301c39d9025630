//! Everything in one seeded thread: server core, link, disk and client together, on simulated time.
//!
//! [`world`] drives connections as a server would, [`exchanges`] requests without one, [`files`] is the file system that its disk looks at, [`client`] reads
//! what comes back and believes nothing, [`oracle`] makes requests and knows what may be answered, [`application`] has
//! applications and what is to come of them. The other files are the tests, by what they doubt. Ten minutes of a connection pass in a millisecond.
//!
//! A failure prints its seed. `SEED=7 cargo test -p amped-core --test sim NAME` runs that one again.

mod application;
mod apps;
mod client;
mod closing;
mod exchanges;
mod files;
mod freshness;
mod limits;
mod oracle;
mod pipelines;
mod random_input;
mod seed;
mod world;
