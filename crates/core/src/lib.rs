//! What a web server decides, apart from how it waits.
//!
//! Bytes and answers from the disk go in as events ([`event::Event`]); replies, disk work and closing come out as actions
//! ([`event::Action`]). All architectures share this crate to the last line; a test runs it on simulated time.
//!
//! Pure: no clock, no randomness, no file, no socket. Time is an argument; an opened file is a type parameter that is
//! passed on and never looked into.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod app;
pub mod auth;
pub mod cache;
pub mod conn;
pub mod cors;
pub mod deadline;
mod decide;
pub mod desk;
pub mod event;
pub mod file;
pub mod glob;
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
pub mod site;
pub mod traits;
pub mod variants;
pub mod vary;
