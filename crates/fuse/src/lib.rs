//! The front end: a volume as a mounted file system, over the kernel's FUSE
//! protocol, spoken by this crate itself.
//!
//! [`Session::start`] mounts, [`Session::run`] serves until the unmount. What is
//! served is anything that implements [`Volume`], the library's calls.
//!
//! Requests come by read(2) from /dev/fuse (`device`), or over io_uring (`ring`).
//!
//! Deliberately absent: splice, locks of our own (the kernel keeps them, since the
//! volume has one mount), and ioctl.
//!
//! Invariants
//! 1. The kernel protocol stays in this crate, and unsafe code in `sys` and `ring::sys`.
//! 2. No request is trusted for its lengths, and each is answered exactly once.

mod acl;
mod crew;
mod device;
mod dispatch;
mod errno;
mod helper;
mod init;
mod mount;
pub mod mountinfo;
mod nodes;
mod notify;
mod past;
mod perm;
mod proto;
mod requests;
mod ring;
mod session;
#[expect(unsafe_code, reason = "system calls without a safe form in the standard library")]
mod sys;
mod transport;
mod volume;

pub use mount::{MountError, MountOptions, unmount};
pub use past::{ACL_THEN, INO_MASK, MODE_THEN, RESTORING, STATE, Shelf, ShowPast, States, is_of_restore, restoring};
pub use requests::Requests;
pub use session::{Cache, Pages, Permissions, Session, SessionOptions, Stopper, Way};
pub use volume::Volume;
