//! Tests of the behaviour common to all architectures. `main` instantiates this module for each, and `harness` starts
//! it.
//!
//! A test that allows an architecture to differ states where and why; everywhere else the behaviour must be the same.

mod harness;

mod app_compression;
mod apps;
mod auth;
mod authorize;
mod backend_names;
mod backend_tls;
mod bandwidth;
mod bodies;
mod caches;
mod client_limits;
mod compression;
mod conditions;
mod connections;
mod cors;
mod early_hints;
mod fastcgi;
mod files;
mod frames;
mod http2;
mod http_backends;
#[path = "http_backends.rs"]
mod https_backends;
mod keys;
mod limits;
mod log;
mod messages;
mod metrics;
mod mirror;
mod negotiation;
mod object_store;
mod object_windows;
mod pages;
mod proxies;
mod ranges;
mod request_id;
mod request_limits;
mod revalidation;
mod routes;
mod service;
mod stop;
mod tls;
mod tls_backend;
mod torture;
mod upgrade;
