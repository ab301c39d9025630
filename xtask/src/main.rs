//! `cargo xtask`: what a developer of the project runs, in one place.
fn main() {}
