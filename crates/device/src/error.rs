//! What can go wrong with a device.

use std::io;

/// A request failed.
#[derive(Clone, Debug)]
pub enum DeviceError {
    /// The operating system reported this error number.
    Os(i32),
    /// Fewer bytes than asked for: the device or image became shorter.
    Short,
    /// Offset, length or buffer not aligned, or outside the device: a programmer error seen at run time.
    Misuse(&'static str),
    /// The device was switched off (simulated power cut or fault).
    Off,
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
        }
    }
}

impl std::error::Error for DeviceError {}
