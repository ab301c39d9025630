//! The decisions of a web server, independent of how it waits.
//!
//! Bytes and results of disk work come in as events ([`event::Event`]); responses, disk work and closes go out as
//! actions ([`event::Action`]). All architectures share this crate in full; a test runs it on simulated time.
//!
//! Pure: no clock, no randomness, no file, no socket. Time is an argument; an
//! opened file is a type parameter that is passed through and never inspected.
//!
//! Modules import downwards only, so that each can be read without its users. From the bottom up:
//!
//! 1. `limits`, `forms`, `glob`, `json`, `network`, `vary`, `auth`, `pacer`, `record`, `request_id`, `deadline`,
//!    `cache::policy`, `cache::backend`: they import nothing from this crate.
//! 2. `condition`; `access`, `authorize`, `request_limit`, `routes`, `cors`, `headers`, `early_hints`, `pace`; then `site`, which holds all rules of a
//!    site; `client`.
//! 3. `file`, `traits`, `resource`, `compress`, `variants`, `listing`: the results
//!    of the disk side, and what response heads say about them.
//! 4. `cache::uri`, `cache::path`, `cache::head`, `cache::content`, `cache::page`: one cache each.
//! 5. `app`, `reply`: requests to applications, and responses.
//! 6. `plan`, `pages`, `app_coding`, `event`: the meaning of a request, cached and compressed responses of applications, and events
//!    and actions.
//! 7. `cache`: all caches of a loop; `shared_state`: the state shared by the connections of a loop.
//! 8. `decide`: how a request is answered.
//! 9. `exchange`: one request until its response is complete; `http1`: a
//!    connection, which processes exchanges one after another; `http2`: one which processes them side by side.
//! 10. `connection`: either of them; `revalidation`: an exchange without a client.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod access;
pub mod app;
mod app_coding;
pub mod auth;
pub mod authorize;
pub mod cache;
mod client;
pub mod compress;
pub mod condition;
pub mod connection;
pub mod cors;
pub mod deadline;
mod decide;
pub mod early_hints;
pub mod event;
pub mod exchange;
pub mod file;
pub mod forms;
pub mod glob;
pub mod headers;
pub mod http1;
pub mod http2;
pub mod json;
pub mod limits;
pub mod listing;
pub mod login;
pub mod network;
mod pace;
pub mod pacer;
pub mod pages;
pub mod plan;
pub mod record;
pub mod reply;
pub mod request_id;
pub mod request_limit;
pub mod residency;
pub mod resource;
pub mod revalidation;
pub mod routes;
pub mod shared_state;
pub mod site;
pub mod traits;
pub mod variants;
pub mod vary;
