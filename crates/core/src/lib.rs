//! The nenrin file system as a library: a log, an index, recovery, past states.
//! It sees no FUSE, no io_uring, no wall clock and no stdout.
#![forbid(unsafe_code)]

mod error;
pub mod index;
mod types;

pub use error::{Error, Result};
pub use types::*;
