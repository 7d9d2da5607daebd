//! The simulator on the core and on the toy. One program, since each costs seconds to link; one file for each area.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod crash;
mod devices;
mod exhaustive;
mod faults;
mod forget;
mod found;
mod harness;
mod help;
mod hurt;
mod lies;
mod lives;
mod mend;
mod mounted;
mod seeds;
