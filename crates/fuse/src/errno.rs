//! The one place where the library's errors become the kernel's error numbers.

use nenrin_core::Error;

/// An error number as the kernel knows it, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub i32);

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(match error {
            Error::NotFound => libc::ENOENT,
            Error::Exists => libc::EEXIST,
            Error::NotDirectory => libc::ENOTDIR,
            Error::IsDirectory => libc::EISDIR,
            Error::NotEmpty => libc::ENOTEMPTY,
            Error::NameTooLong => libc::ENAMETOOLONG,
            Error::BadArgument(_) | Error::BadRule(_) | Error::Devices(_) | Error::Loop => libc::EINVAL,
            Error::TooLarge => libc::EFBIG,
            Error::TooManyLinks => libc::EMLINK,
            Error::NoSpace => libc::ENOSPC,
            Error::ReadOnly => libc::EROFS,
            Error::Stale => libc::ESTALE,
            Error::NoAttribute => libc::ENODATA,
            Error::Permission => libc::EACCES,
            Error::NotSupported => libc::EOPNOTSUPP,
            Error::NoSuchOffset => libc::ENXIO,
            Error::Checkpoint(_) | Error::Forget(_) | Error::ForgetInUse(_) => libc::EBUSY,
            // A volume that failed answers EIO rather than EROFS, since that is
            // what programs that call fsync take for the loss that it is.
            Error::Damaged(..) | Error::Corrupt(_) | Error::Device(_) | Error::Open(_) | Error::Failed(_) => libc::EIO,
        })
    }
}
