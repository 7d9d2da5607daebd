//! What is agreed on with the kernel before the first request.
//!
//! Invariants
//! 1. Nothing is asked for that the kernel did not offer, so that one program
//!    serves every kernel from protocol 7.31 (Linux 5.4) on.
//! 2. The umask is ours wherever the kernel offers that, since a default ACL
//!    takes its place, and is obeyed also where the kernel knows of none.
//!    The kernel obeys ACLs only together with that.

use crate::proto::abi::{InitIn, InitOut};
use crate::proto::flags::{MAJOR, MINOR, MINOR_MIN, init};

/// Longest READ and WRITE; also the kernel's own limit by default.
pub(crate) const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// Requests that no program sleeps for, such as read-ahead and those of AIO and io_uring, that may be under way.
const BACKGROUND_MAX: u16 = 128;
/// From how many of them on the device counts as congested.
const CONGESTION_THRESHOLD: u16 = BACKGROUND_MAX / 4 * 3;

/// What this front end asks for beyond what it always does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    pub writeback: bool,
    pub acl: bool,
    /// Requests shall come over io_uring.
    pub rings: bool,
    /// Bytes in a page, which the kernel counts requests in.
    pub page_bytes: usize,
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed(u64);

impl Agreed {
    /// The kernel keeps written pages.
    pub fn writeback(self) -> bool {
        self.has(init::WRITEBACK_CACHE)
    }
    /// The kernel checks ACLs that we store.
    pub fn acl(self) -> bool {
        self.has(init::POSIX_ACL)
    }
    /// We clear set-id bits.
    pub fn kills_privileges(self) -> bool {
        self.has(init::HANDLE_KILLPRIV_V2)
    }
    /// Requests come over io_uring, as soon as there are rings.
    pub fn rings(self) -> bool {
        self.has(init::OVER_IO_URING)
    }
    /// Under writeback, before a write(2) it asks for the mode of a file alone, where it does not know that, and before a read(2) past the
    /// end for nothing: so since Linux 5.16.
    pub fn asks_before_writes(self) -> bool {
        self.writeback() && self.has(init::INIT_EXT)
    }
    /// SETXATTR has its longer form.
    pub fn setxattr_ext(self) -> bool {
        self.has(init::SETXATTR_EXT)
    }
    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
}

/// How to go on after an INIT.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Send this, and serve.
    Serve(InitOut, Agreed),
    /// The kernel's major version is newer: send this, and expect another INIT.
    Again(InitOut),
    /// The kernel is too old.
    Refuse,
}

/// Answers an INIT.
pub(crate) fn negotiate(offer: &InitIn, wishes: Wishes) -> Answer {
    let version = InitOut { major: MAJOR, minor: MINOR, ..Default::default() };
    if offer.major > MAJOR {
        return Answer::Again(version);
    }
    if offer.major < MAJOR || offer.minor < MINOR_MIN {
        return Answer::Refuse;
    }
    let offered = if u64::from(offer.flags) & init::INIT_EXT != 0 {
        u64::from(offer.flags) | u64::from(offer.flags2) << 32
    } else {
        u64::from(offer.flags)
    };
    // Not ATOMIC_O_TRUNC: with it OPEN empties the file before the kernel has
    // looked whether somebody runs it.
    let mut wanted = init::ASYNC_READ
        | init::EXPORT_SUPPORT
        | init::BIG_WRITES
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::MAX_PAGES
        | init::CACHE_SYMLINKS
        | init::NO_OPENDIR_SUPPORT
        | init::HANDLE_KILLPRIV_V2
        | init::SETXATTR_EXT
        | init::INIT_EXT
        | init::DONT_MASK
        | init::DIRECT_IO_ALLOW_MMAP;
    if wishes.writeback {
        wanted |= init::WRITEBACK_CACHE;
    }
    if wishes.rings {
        wanted |= init::OVER_IO_URING;
    }
    if wishes.acl && offered & init::DONT_MASK != 0 {
        wanted |= init::POSIX_ACL;
    }
    let agreed = wanted & offered;
    let out = InitOut {
        max_readahead: offer.max_readahead,
        flags: agreed as u32,
        flags2: (agreed >> 32) as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: CONGESTION_THRESHOLD,
        max_write: TRANSFER_BYTES_MAX as u32,
        time_gran: 1,
        max_pages: (TRANSFER_BYTES_MAX / wishes.page_bytes.max(1)).clamp(1, 256) as u16,
        ..version
    };
    Answer::Serve(out, Agreed(agreed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Wishes = Wishes { writeback: true, acl: true, rings: true, page_bytes: 4096 };

    fn serve(offer: &InitIn, wishes: Wishes) -> (InitOut, Agreed) {
        match negotiate(offer, wishes) {
            Answer::Serve(out, agreed) => (out, agreed),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_asked_for_that_was_not_offered() {
        for bit in 0..64 {
            let offered = 1u64 << bit | init::INIT_EXT;
            let offer = InitIn {
                major: 7,
                minor: 45,
                flags: offered as u32,
                flags2: (offered >> 32) as u32,
                ..Default::default()
            };
            let (out, _) = serve(&offer, ALL);
            let asked = u64::from(out.flags) | u64::from(out.flags2) << 32;
            assert_eq!(asked & !offered, 0, "bit {bit}");
        }
    }

    #[test]
    fn options_are_asked_for_only_when_wanted() {
        let offer = InitIn { major: 7, minor: 36, flags: u32::MAX, flags2: u32::MAX, ..Default::default() };
        let (out, agreed) = serve(&offer, Wishes { writeback: false, acl: false, rings: false, page_bytes: 65536 });
        assert!(!agreed.writeback() && !agreed.acl());
        assert_eq!(out.max_pages, 16);
        let acl_flags = |out: &InitOut| u64::from(out.flags) & (init::DONT_MASK | init::POSIX_ACL);
        assert_eq!(acl_flags(&out), init::DONT_MASK, "a default list takes the place of the umask all the same");
        let unmasked = InitIn { flags: !(init::DONT_MASK as u32), ..offer };
        assert_eq!(acl_flags(&serve(&unmasked, ALL).0), 0);
        assert_eq!(u64::from(out.flags2), init::DIRECT_IO_ALLOW_MMAP >> 32);
        let (out, agreed) = serve(&offer, ALL);
        assert!(agreed.writeback() && agreed.acl() && agreed.setxattr_ext());
        assert_eq!((out.max_write, out.max_pages), (1 << 20, 256));
    }

    /// The row of the table of defaults in docs/DESIGN.md.
    #[test]
    fn design_states_what_is_asked_for() {
        let threads = crate::SessionOptions::default().threads;
        let mib = TRANSFER_BYTES_MAX >> 20;
        let row = format!("up to {mib} MiB, {BACKGROUND_MAX} in the background, {threads} serving threads");
        assert!(
            include_str!("../../../docs/DESIGN.md").contains(&format!("| requests of the kernel | {row} |")),
            "{row}"
        );
    }

    #[test]
    fn an_old_kernel_gets_what_it_knows() {
        let offer = InitIn { major: 7, minor: 31, flags: 0x03ff_ffff, flags2: u32::MAX, ..Default::default() };
        let (out, agreed) = serve(&offer, ALL);
        assert_eq!(out.flags2, 0);
        assert!(!agreed.kills_privileges() && !agreed.setxattr_ext());
        assert!(matches!(negotiate(&InitIn { major: 7, minor: 30, ..offer }, ALL), Answer::Refuse));
        assert!(matches!(negotiate(&InitIn { major: 6, minor: 99, ..offer }, ALL), Answer::Refuse));
        assert!(matches!(negotiate(&InitIn { major: 8, minor: 0, ..offer }, ALL), Answer::Again(_)));
    }
}
