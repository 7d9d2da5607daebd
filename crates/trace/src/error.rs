//! Why a recording or a report could not be made.

use std::fmt;
use std::io;
use std::path::Path;

/// What went wrong, with the place.
#[derive(Debug)]
pub enum TraceError {
    /// The kernel's tracing may only be used by root.
    NotPermitted,
    /// There is no tracefs, and it could not be mounted.
    NoTracefs(String),
    /// The kernel has no such tracepoint.
    NoEvent(&'static str),
    /// Not a device whose requests can be seen.
    Device {
        /// Its path.
        path: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Not a trace, or none that this version reads.
    File {
        /// Its path.
        path: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The thread that records ended by a panic: what was recorded is not whole.
    Died,
    /// A system call failed.
    Io {
        /// Where.
        path: String,
        /// How.
        error: io::Error,
    },
}

impl TraceError {
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |error| match error.kind() {
            io::ErrorKind::PermissionDenied if path.starts_with("/sys") => Self::NotPermitted,
            _ => Self::Io { path: path.display().to_string(), error },
        }
    }
    pub(crate) fn file(path: &Path, why: impl Into<String>) -> Self {
        Self::File { path: path.display().to_string(), why: why.into() }
    }
    pub(crate) fn device(path: &Path, why: impl Into<String>) -> Self {
        Self::Device { path: path.display().to_string(), why: why.into() }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => {
                f.write_str("recording uses the kernel's tracing, which only root may; run it as root")
            }
            Self::NoTracefs(why) => write!(
                f,
                "tracefs is not mounted and cannot be ({why}); mount -t tracefs tracefs /sys/kernel/tracing, or use a kernel with CONFIG_TRACING"
            ),
            Self::NoEvent(name) => write!(
                f,
                "the kernel has no tracepoint {name}; it needs CONFIG_BLOCK and CONFIG_ENABLE_DEFAULT_TRACERS or CONFIG_FTRACE"
            ),
            Self::Device { path, why } | Self::File { path, why } => write!(f, "{path}: {why}"),
            Self::Died => {
                f.write_str("the recording broke off by a fault of this program; record again, and report it")
            }
            Self::Io { path, error } => write!(f, "{path}: {error}"),
        }
    }
}

impl std::error::Error for TraceError {}
