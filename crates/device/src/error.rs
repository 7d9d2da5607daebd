//! What can go wrong with a device.

use std::io;

/// A request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// The operating system reported this error number.
    Os(i32),
    /// Fewer bytes than asked for: the device or image became shorter.
    Short,
    /// Offset, length or buffer not aligned, or outside the device: a programmer error seen at run time.
    Misuse(&'static str),
    /// The device was switched off (simulated power cut or fault).
    Off,
    /// Another process holds the device; who, where the host tells.
    Busy {
        /// Process id of the holder.
        pid: Option<u32>,
        /// Its command name.
        command: Option<String>,
    },
    /// The block device carries a mounted file system.
    Mounted {
        /// Where it is mounted.
        at: String,
    },
    /// A write, discard or zero on a device opened for reading only.
    ReadOnly,
    /// The member of the volume that has these blocks is absent.
    Missing,
    /// No answer came for so long, and nobody waits for it any more.
    Unanswered {
        /// In seconds.
        seconds: u64,
    },
    /// A write that came so long after this host has last shown that it has the volume that another one may have it.
    Unowned {
        /// In seconds.
        seconds: u64,
    },
    /// The path is neither a regular file nor a block device.
    NotADevice,
}

impl From<io::Error> for DeviceError {
    fn from(e: io::Error) -> Self {
        Self::Os(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl std::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Os(n) => io::Error::from_raw_os_error(*n).fmt(f),
            Self::Short => f.write_str("the device is shorter than expected"),
            Self::Misuse(what) => write!(f, "bad request: {what}"),
            Self::Off => f.write_str("the device is switched off"),
            Self::Busy { pid: Some(pid), command: Some(command) } => {
                write!(f, "in use by {command} (pid {pid})")
            }
            Self::Busy { pid: Some(pid), .. } => write!(f, "in use by process {pid}"),
            Self::Busy { .. } => f.write_str("in use by another process"),
            Self::Mounted { at } => write!(f, "mounted at {at}"),
            Self::ReadOnly => f.write_str("the device is open for reading only"),
            Self::Missing => f.write_str("the device that holds it is absent"),
            Self::Unanswered { seconds } => write!(f, "the device did not answer for {seconds} s"),
            Self::Unowned { seconds } => write!(
                f,
                "nothing was written: for {seconds} s other hosts were not shown that this one has the volume, and one of them may have it"
            ),
            Self::NotADevice => f.write_str("neither a regular file nor a block device"),
        }
    }
}

impl std::error::Error for DeviceError {}
