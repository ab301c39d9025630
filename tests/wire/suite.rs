//! What all architectures must do alike. `main` makes a module of this for each, and `harness` starts that one.
//!
//! Where an architecture must differ, the test says so and why: there only, so that what is not said is the same.

mod harness;

mod apps;
mod auth;
mod bodies;
mod caches;
mod conditions;
mod connections;
mod cors;
mod fastcgi;
mod files;
mod limits;
mod log;
mod messages;
mod metrics;
mod mirror;
mod negotiation;
mod pages;
mod ranges;
mod routes;
mod stop;
mod torture;
