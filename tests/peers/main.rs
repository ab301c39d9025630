//! Other people's programs against the real server: curl, h2load, strace.
#![allow(clippy::unwrap_used, missing_docs)]
