//! The nenrin file system as a library: a log, an index, recovery, past states.
//! It sees no FUSE, no io_uring, no wall clock and no stdout.
#![forbid(unsafe_code)]

pub mod breaks;
pub mod check;
mod content;
mod covered;
mod devices;
mod error;
mod flushes;
mod fs;
pub mod heartbeat;
pub mod index;
mod lease;
mod log;
mod mixture;
mod mkfs;
mod mounts;
mod numbers;
mod per_segment;
mod recovery;
pub mod repair;
mod retention;
mod segments;
mod state;
mod storage;
#[cfg(test)]
mod testing;
mod types;
mod vouched;

pub use check::{CheckOptions, CheckReport, check};
pub use content::ReadBytes;
pub use devices::{DeviceHealth, Standing, go_together};
pub use error::{Error, Result};
pub use fs::{
    Accepted, COMMITS_AT_ONCE, Change, CheckpointsRest, Clean, CleanEstimate, CleanerStatus, Counters, DamagedRead,
    DamagedReads, Done, ForgetName, ForgetPlan, ForgetStatus, Freed, Fs, GoneName, JoinStatus, Joined, LandmarkInfo,
    LayingStatus, LostWrites, NameState, NewDevice, OrderStatus, ReadTicket, Rest, Scrub, ScrubFinding, ScrubReport,
    SegmentInfo, ShedInfo, SyncTicket, WriteTicket, Writer,
};
pub use heartbeat::{BEAT_NANOS, Mmp};
pub use mkfs::{MkfsOptions, SEGMENT_BLOCKS_DEFAULT, SEGMENTS_MIN, bytes_min, mkfs, mkfs_fits, mkfs_on};
pub use recovery::{RecoveryReport, Verdict};
pub use repair::{RepairPlan, RepairReport};
pub use retention::{Kept, Moment, Retention};
pub use segments::SegmentState;
pub use storage::{Probe, SlotState, probe};
pub use types::*;

pub use nenrin_device::AlignedBuf;
pub use nenrin_format as format;
