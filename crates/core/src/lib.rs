//! What a web server decides, apart from how it waits.
//!
//! Bytes and answers from the disk go in as events ([`event::Event`]); replies, disk work and closing come out as actions
//! ([`event::Action`]). All architectures share this crate to the last line; a test runs it on simulated time.
//!
//! Pure: no clock, no randomness, no file, no socket. Time is an argument; an opened file is a type parameter that is
//! passed on and never looked into.
//!
//! Files import downwards only, so that each can be read without those that use it. From the ground up:
//!
//! 1. `limits`, `glob`, `json`, `vary`, `auth`, `record`, `deadline`, `cache::policy`, `cache::backend`: they import nothing of the core.
//! 2. `routes`, `cors`, `pace`; then `site`, which holds all rules of a site.
//! 3. `file`, `traits`, `resource`, `variants`, `listing`: what the disk side finds, and what heads say of it.
//! 4. `cache::uri`, `cache::path`, `cache::head`, `cache::content`, `cache::page`: one cache each.
//! 5. `app`, `reply`: what an application is asked, and responses.
//! 6. `plan`, `pages`, `event`: what a request asks for, what is kept of applications, and what goes in and comes out.
//! 7. `cache`: all caches of a loop; `shared`, what connections of a loop share.
//! 8. `decide`: what becomes of a request.
//! 9. `exchange`: one request until its response is complete; `http1`: a connection, which has them one after another.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod app;
pub mod auth;
pub mod cache;
pub mod cors;
pub mod deadline;
mod decide;
pub mod event;
pub mod exchange;
pub mod file;
pub mod glob;
pub mod http1;
pub mod json;
pub mod limits;
pub mod listing;
mod pace;
pub mod pages;
pub mod plan;
pub mod record;
pub mod reply;
pub mod residency;
pub mod resource;
pub mod routes;
pub mod shared_state;
pub mod site;
pub mod traits;
pub mod variants;
pub mod vary;
