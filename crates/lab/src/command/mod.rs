//! The commands, a file each: the flags as clap reads them, and what is done with them.

pub(crate) mod files;
pub(crate) mod host;
pub(crate) mod load;
