//! Everything in one seeded thread: server core, link, disk and client together, on simulated time.
//!
//! [`world`] drives connections as a server would, [`exchanges`] requests without a connection, [`streams`] connections of HTTP/2, [`files`] is the file
//! system behind its disk, [`client`] parses the responses and trusts nothing, [`oracle`] generates requests and
//! checks the responses, [`application`] simulates applications. The other files are the tests, by what they
//! test. Ten minutes of a connection pass in a millisecond.
//!
//! A failure prints its seed. `SEED=7 cargo test -p amped-core --test sim NAME` reproduces it.

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
mod streams;
mod world;
