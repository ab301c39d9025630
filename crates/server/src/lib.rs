//! The web server: an event loop that never waits for the disk, and everything around it.
//!
//! A request passes through `event_loop`, `turn`, `disk` and `send` here; `amped-core` parses, plans and answers it in
//! between. [`config`] runs before all of them: the settings that it returns are checked and never change.
//!
//! Files import downwards only, so that each can be read without its users. From the ground up:
//!
//! 1. `say`, `clock`, `token`, `slots`, `few`, `mailbox`, `counters`, `client_times`, `client_counts`: used everywhere;
//!    they import nothing of the server but each other.
//! 2. `config::settings`: the checked values that all others read; `backend_tls`, which is one of them, with the files of TLS
//!    below it.
//! 3. `open_file`, `notes`, `residency`, `object_store`, `metrics`, `access_log`, `passwords`, `request_limits`:
//!    parts of a loop that do not know each other.
//! 4. `disk`, and what passes its results to other processes and threads: `portable`, `shared_cache`, `locked`.
//! 5. `app`: applications, whose scripts it finds through `disk`.
//! 6. `challenges`; `transport`; `certified`, `keys`; `reread`, `elements`, `ocsp`, `certificate`, `crl`, `client_auth`, `tickets`, `tls_config`: TLS
//!    sessions; `config_snapshot`: the current configuration, with everything opened for it.
//! 7. `send`; `compress`, `handshakes`, `helper`, the helpers and their tasks; `message`, the messages
//!    to a loop, also from helpers, `watch` and `heartbeat`.
//! 8. `turn`: one connection's turn; `background`: one revalidation's; `worker`: the connections of a loop.
//! 9. `event_loop`: the loop.
//! 10. `arch`: the four architectures.
//! 11. `config`, which builds the settings from flags and file; `acme`, `confine`, `control`, `upgrade`, `admin`, `processes`,
//!     `service_manager`, `serve`; `preload`, `acme_command`, `upgrade_command`, `convert`: the program.
#![forbid(unsafe_code)]

pub mod access_log;
pub mod acme;
pub mod acme_command;
pub mod admin;
pub mod app;
pub mod arch;
pub mod backend_tls;
pub mod background;
pub mod certificate;
pub mod certified;
pub mod challenges;
pub mod client_auth;
pub mod client_counts;
pub mod client_times;
pub mod clock;
pub mod compress;
pub mod config;
pub mod config_snapshot;
pub mod confine;
pub mod control;
pub mod convert;
pub mod counters;
pub mod crl;
pub mod descriptors;
pub mod disk;
pub mod elements;
pub mod event_loop;
pub mod few;
pub mod handshakes;
pub mod heartbeat;
pub mod helper;
pub mod keys;
pub mod listen;
pub mod listings;
pub mod locked;
pub mod mailbox;
pub mod message;
pub mod metrics;
pub mod notes;
pub mod object_store;
pub mod ocsp;
pub mod open_file;
pub mod passwords;
pub mod portable;
pub mod preload;
pub mod processes;
pub mod request_limits;
pub mod reread;
pub mod residency;
pub mod say;
pub mod send;
pub mod serve;
pub mod service_manager;
pub mod shared_cache;
pub mod slots;
pub mod tickets;
pub mod tls_config;
pub mod token;
pub mod transport;
pub mod turn;
pub mod unpack;
pub mod upgrade;
pub mod upgrade_command;
pub mod watch;
pub mod worker;
