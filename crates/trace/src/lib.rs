//! What reaches a block device: recorded by the kernel's tracepoints, kept in a
//! file, analysed and drawn. Knows no file system; see docs/decisions/0005.
//!
//! Invariants
//! 1. A recording leaves nothing behind in the kernel, however it ends; after
//!    SIGKILL the next recording removes what was left.
//! 2. What could not be recorded is counted: no report is silent about a loss.
//! 3. Bytes from a trace file never panic, and memory does not grow with a
//!    length that a file claims.

pub mod analysis;
pub mod device;
mod error;
pub mod event;
pub mod file;
mod kernel;
pub mod plot;
mod recording;
mod sys;
pub mod text;

pub use device::{BlockDev, Counters, Level};
pub use error::TraceError;
pub use event::{Event, EventKind, Flags, Op};
pub use file::{DeviceInfo, End, Header, Item, Reader, Writer};
pub use recording::{Recording, Totals};

/// Bytes of the sectors that the block layer counts in, whatever the device's own.
pub const SECTOR_BYTES: u64 = 512;
