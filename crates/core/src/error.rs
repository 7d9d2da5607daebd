//! One error for the whole library: what a caller can act on. The kernel's
//! error numbers are assigned in one place, the front end.

use nenrin_device::DeviceError;
use nenrin_format::{Addr, Invalid};

/// Result of the library's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Clone, Debug)]
pub enum Error {
    /// No such name or inode.
    NotFound,
    /// The name exists already.
    Exists,
    /// Not a directory, where one is needed.
    NotDirectory,
    /// A directory, where none may be.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// The name is longer than 255 bytes, or a link target than 4095.
    NameTooLong,
    /// An argument makes no sense.
    BadArgument(&'static str),
    /// A link count, a file size or a value would become too large.
    TooLarge,
    /// More names for an inode than the format counts.
    TooManyLinks,
    /// No space is left, nor can be made.
    NoSpace,
    /// The volume, or this view of it, is read-only.
    ReadOnly,
    /// The inode belongs to a past that was let go.
    Stale,
    /// No such extended attribute.
    NoAttribute,
    /// The permission bits do not allow it.
    Permission,
    /// Not possible for this kind of file.
    NotSupported,
    /// There is nothing at or behind that offset.
    NoSuchOffset,
    /// A name would move below itself.
    Loop,
    /// A checkpoint or snapshot with this name exists, is in use or is unknown.
    Checkpoint(String),
    /// What is to be forgotten cannot be: it is in use, or a device is absent; the text says why.
    Forget(String),
    /// What is to be forgotten is in use by a program.
    ForgetInUse(String),
    /// Devices of the volume cannot be changed like this; the text says why.
    Devices(String),
    /// A retention rule that makes no sense; the text says why.
    BadRule(String),
    /// Bytes at this address are not what was written there.
    Damaged(Addr, Invalid),
    /// Bytes that no single address accounts for are wrong.
    Corrupt(String),
    /// The device failed. After a failed write or flush the volume stays read-only.
    Device(DeviceError),
    /// An earlier write or flush failed; nothing more is acknowledged.
    Failed(String),
    /// It is no nenrin volume, or one that cannot be opened; the text says what, where and what to do.
    Open(String),
}

impl Error {
    /// Whether something cannot be read that was there: of it nothing is known, and of others as much as before.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged(..) | Self::Corrupt(_) | Self::Device(_))
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound => f.write_str("no such file or directory"),
            Self::Exists => f.write_str("the name exists already"),
            Self::NotDirectory => f.write_str("not a directory"),
            Self::IsDirectory => f.write_str("is a directory"),
            Self::NotEmpty => f.write_str("the directory is not empty"),
            Self::NameTooLong => f.write_str("the name is too long"),
            Self::BadArgument(what) => f.write_str(what),
            Self::TooLarge => f.write_str("too large"),
            Self::TooManyLinks => f.write_str("too many links"),
            Self::NoSpace => f.write_str("no space left on the volume"),
            Self::ReadOnly => f.write_str("the volume is read-only"),
            Self::Stale => f.write_str("this past state was let go"),
            Self::NoAttribute => f.write_str("no such attribute"),
            Self::Permission => f.write_str("permission denied"),
            Self::NotSupported => f.write_str("not supported"),
            Self::NoSuchOffset => f.write_str("nothing at or behind this offset"),
            Self::Loop => f.write_str("a directory cannot be moved into itself"),
            Self::Checkpoint(text)
            | Self::Forget(text)
            | Self::ForgetInUse(text)
            | Self::BadRule(text)
            | Self::Devices(text)
            | Self::Corrupt(text)
            | Self::Open(text) => f.write_str(text),
            Self::Damaged(addr, why) => write!(f, "damage at block {addr}: {why}"),
            Self::Device(e) => write!(f, "device error: {e}"),
            Self::Failed(text) => write!(f, "the volume is read-only since a write failed: {text}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<DeviceError> for Error {
    fn from(e: DeviceError) -> Self {
        Self::Device(e)
    }
}
