//! Newtypes for every address and counter, so that a sequence can never be
//! passed where a checkpoint number belongs.

/// Bytes in a block, the smallest unit of addressing and of checksums.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes in an index node.
pub const NODE_BYTES: usize = 16384;
/// Blocks in an index node.
pub const NODE_BLOCKS: u32 = (NODE_BYTES / BLOCK_BYTES) as u32;
/// An extent never crosses a file offset that is a multiple of this many blocks.
pub const EXTENT_BLOCKS_MAX: u32 = 256;
/// Largest value of a counter that is believed: none gets there by counting,
/// and sums of a few never overflow.
pub const COUNTER_MAX: u64 = 1 << 54;
/// Longest file name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Whether these bytes can be a name in a directory: not empty nor too long, no slash, no zero byte, not "." or "..".
#[must_use]
pub fn can_be_name(bytes: &[u8]) -> bool {
    !matches!(bytes, b"" | b"." | b"..")
        && bytes.len() <= NAME_BYTES_MAX
        && !bytes.iter().any(|b| matches!(b, 0 | b'/'))
}
/// Longest symbolic link target in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Longest extended attribute value in bytes.
pub const XATTR_BYTES_MAX: usize = 65536;
/// Files up to this many bytes live inside the index.
pub const INLINE_BYTES_MAX: usize = 2048;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
        impl $name {
            /// The value after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

unit! {
    /// Inode number. Never reused within a volume.
    Ino
}
unit! {
    /// Checkpoint number: a past state a user can go back to.
    Cno
}
unit! {
    /// Sequence of a partial segment in the chain.
    Seq
}
unit! {
    /// Counts read-write mounts. Blocks of another epoch never fit the chain.
    Epoch
}
unit! {
    /// Generation of the superblock: one per index checkpoint.
    Generation
}
unit! {
    /// Number of a segment of the volume (not of a device).
    SegmentNo
}

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
    /// The first number given to a user's file.
    pub const FIRST: Self = Self(16);
}

impl Cno {
    /// Death of an item that is alive.
    pub const NEVER: Self = Self(u64::MAX);
}

/// Address of a block of the volume: segment number and block in it.
///
/// The two highest bits are flags in records only: [`Addr::PAYLOAD`] marks an
/// index into the payload of the partial segment that carries the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(pub u64);

impl Addr {
    /// Bits of the block number within a segment.
    pub const BLOCK_BITS: u32 = 20;
    /// No address.
    pub const NONE: Self = Self(u64::MAX);
    /// Flag: the low bits are a block index into the record's own payload.
    pub const PAYLOAD: u64 = 1 << 62;

    /// The block `block` of segment `segment`.
    #[must_use]
    pub const fn new(segment: SegmentNo, block: u32) -> Self {
        Self(segment.0 << Self::BLOCK_BITS | block as u64)
    }
    /// Block `index` of the payload of the partial segment around the record.
    #[must_use]
    pub const fn payload(index: u32) -> Self {
        Self(Self::PAYLOAD | index as u64)
    }
    /// Segment that holds the block.
    #[must_use]
    pub const fn segment(self) -> SegmentNo {
        SegmentNo(self.0 >> Self::BLOCK_BITS)
    }
    /// Block within its segment.
    #[must_use]
    pub const fn block(self) -> u32 {
        (self.0 & ((1 << Self::BLOCK_BITS) - 1)) as u32
    }
    /// Whether this is an index into the record's own payload.
    #[must_use]
    pub const fn is_payload(self) -> bool {
        self.0 >> 62 == 1
    }
    /// The address as seen from outside the record: payload indices become
    /// addresses relative to `base`, the address of the first payload block.
    #[must_use]
    pub const fn resolve(self, base: Self) -> Self {
        if self.is_payload() { Self(base.0.saturating_add(self.0 & 0xffff_ffff)) } else { self }
    }
    /// The address `blocks` further on in the same segment.
    #[must_use]
    pub const fn add(self, blocks: u32) -> Self {
        Self(self.0.saturating_add(blocks as u64))
    }
}

impl core::fmt::Display for Addr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if *self == Self::NONE { f.write_str("none") } else { write!(f, "{}+{}", self.segment(), self.block()) }
    }
}

/// A moment: nanoseconds since 1970-01-01 UTC, signed. Reaches the years 1678
/// to 2262, so that 2038 is nothing special.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    /// From seconds and nanoseconds as the kernel gives them, saturating.
    #[must_use]
    pub fn from_parts(secs: i64, nanos: u32) -> Self {
        let total = i128::from(secs) * 1_000_000_000 + i128::from(nanos);
        Self(total.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
    }
    /// Whole seconds, rounded down.
    #[must_use]
    pub const fn secs(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }
    /// Nanoseconds within the second.
    #[must_use]
    pub const fn nanos(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }
    /// To the second, as people read it: `2025-06-01 14:00:30 UTC`.
    #[must_use]
    pub fn utc(self) -> String {
        let (days, second) = (self.secs().div_euclid(86_400), self.secs().rem_euclid(86_400));
        let (y, m, d) = date_of(days);
        format!("{y:04}-{m:02}-{d:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
    }
}

/// The date of the Gregorian calendar that many days after 1970-01-01: year, month and day.
#[must_use]
pub const fn date_of(days: i64) -> (i64, u32, u32) {
    // Of years that begin in March, in eras of 400.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (year + era * 400, month as u32, day as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::Dirent;
    use crate::records::Record;
    use crate::wire::Reader;

    #[test]
    fn moments_are_told_as_people_read_them() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_750_000_000, "2025-06-15 15:06:40 UTC"),
        ] {
            assert_eq!(Time(secs * 1_000_000_000 + 999_999_999).utc(), text);
        }
        assert_eq!([date_of(-719_468), date_of(11_017)], [(0, 3, 1), (2000, 3, 1)]);
    }

    #[test]
    fn what_no_file_can_be_called_is_no_name() {
        let long = [b'n'; NAME_BYTES_MAX + 1];
        let wrong: [&[u8]; 7] = [b"", b".", b"..", b"../x", b"a/", b"a\0b", &long];
        let right: [&[u8]; 5] = [b"a", b"...", b".a", &[0xff, b'\n'], &long[1..]];
        for (names, good) in [(&wrong[..], false), (&right[..], true)] {
            for name in names {
                assert_eq!(can_be_name(name), good, "{name:?}");
                let entry = Dirent { birth: Cno(1), ino: Ino(9), file_type: 8, name }.encode();
                assert_eq!(Dirent::decode(&entry).is_ok(), good, "{name:?}");
                let (parent, ino, time) = (Ino(1), Ino(9), Time(0));
                for record in [
                    Record::Link { parent, ino, time, name },
                    Record::Unlink { parent, drop: true, time, name },
                    Record::Rename { from: parent, to: parent, flags: 0, drop: true, time, old: b"x", new: name },
                    Record::Rename { from: parent, to: parent, flags: 0, drop: true, time, old: name, new: b"x" },
                ] {
                    let mut bytes = Vec::new();
                    record.encode_into(&mut bytes);
                    assert_eq!(Record::decode(&mut Reader::new(&bytes)).is_ok(), good, "{record:?}");
                }
            }
        }
    }
}
