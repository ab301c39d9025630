//! Helpers: they wait for the disk in a loop's place (Flash, section 3.4).

mod threads;

pub use threads::{Busy, Done, HelperCounts, Helpers, Task};
