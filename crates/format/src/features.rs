//! Format versions and feature bits: which volumes this program may open.
//!
//! | set | an unknown bit means |
//! |---|---|
//! | compat | nothing: mount read-write |
//! | ro_compat | mount read-only |
//! | incompat | refuse |

/// The format this program writes. Until the first release it is 1 and may
/// change freely.
pub const VERSION: u16 = 1;

/// Every format version, its number and why it exists.
pub const VERSIONS: &[(u16, &str)] = &[(1, "before the first release")];

/// Compatible features known here.
pub const COMPAT_KNOWN: u64 = 0;
/// Read-only compatible features known here.
pub const RO_COMPAT_KNOWN: u64 = 0;
/// Incompatible features known here.
pub const INCOMPAT_KNOWN: u64 = 0;

/// What the feature bits of a volume allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything is known.
    ReadWrite,
    /// These read-only compatible bits are unknown.
    ReadOnly(u64),
    /// These incompatible bits are unknown.
    Refuse(u64),
}

/// Decides how a volume with these bits may be opened.
#[must_use]
pub const fn access(ro_compat: u64, incompat: u64) -> Access {
    if incompat & !INCOMPAT_KNOWN != 0 {
        Access::Refuse(incompat & !INCOMPAT_KNOWN)
    } else if ro_compat & !RO_COMPAT_KNOWN != 0 {
        Access::ReadOnly(ro_compat & !RO_COMPAT_KNOWN)
    } else {
        Access::ReadWrite
    }
}
