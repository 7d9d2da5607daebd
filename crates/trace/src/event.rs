//! One event of the block layer, whoever recorded it.

use crate::SECTOR_BYTES;

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// It was handed to the driver.
    Issue = 1,
    /// The driver is done with it, or with a part of it.
    Complete = 2,
    /// The driver gave it back; it will be issued again.
    Requeue = 3,
}

impl EventKind {
    /// From its number in a file.
    #[must_use]
    pub const fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            1 => Self::Issue,
            2 => Self::Complete,
            3 => Self::Requeue,
            _ => return None,
        })
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Op {
    /// Reads.
    Read = 0,
    /// Writes.
    Write = 1,
    /// Empties the device's cache.
    Flush = 2,
    /// Says that a range holds nothing of value.
    Discard = 3,
    /// Has the device write zeros by itself.
    Zeroes = 4,
    /// Anything else: zones, commands of the driver.
    Other = 5,
}

impl Op {
    /// All, in the order of reports.
    pub const ALL: [Self; 6] = [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::Zeroes, Self::Other];

    /// From its number in a file.
    #[must_use]
    pub const fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Flush,
            3 => Self::Discard,
            4 => Self::Zeroes,
            5 => Self::Other,
            _ => return None,
        })
    }
    /// A word for people and for JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::Zeroes => "zeroes",
            Self::Other => "other",
        }
    }
}

/// Properties of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The device's cache is emptied first.
    pub const PREFLUSH: u8 = 1;
    /// Durable when complete.
    pub const FUA: u8 = 2;
    /// Somebody waits for it.
    pub const SYNC: u8 = 4;
    /// The file system calls it metadata.
    pub const META: u8 = 8;
    /// Read ahead of any question.
    pub const AHEAD: u8 = 16;

    /// Whether the flag is set.
    #[must_use]
    pub const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
    /// As the letters of the kernel, without the operation.
    #[must_use]
    pub fn letters(self) -> String {
        let all = [(Self::PREFLUSH, 'P'), (Self::FUA, 'F'), (Self::AHEAD, 'A'), (Self::SYNC, 'S'), (Self::META, 'M')];
        all.iter().filter(|(flag, _)| self.has(*flag)).map(|(_, letter)| *letter).collect()
    }
}

/// One event. Sectors are 512 bytes, absolute on the whole device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Index in the header's devices.
    pub device: u8,
    /// What the request does.
    pub op: Op,
    /// Its properties.
    pub flags: Flags,
    /// Its length in sectors.
    pub sectors: u32,
    /// Its first sector.
    pub sector: u64,
    /// Nanoseconds since the recording began.
    pub nanos: u64,
    /// The process that issued it (seldom the one that wanted it).
    pub pid: u32,
    /// Index of the process's name.
    pub name: u16,
    /// Of a completion: 0, or a negative errno.
    pub error: i16,
}

impl Event {
    /// Its length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.sectors as u64 * SECTOR_BYTES
    }
    /// The end of a write that the kernel took apart around flushes. If there was
    /// data, its completion was seen before, and the place is not zero.
    #[must_use]
    pub const fn is_empty_end(&self) -> bool {
        matches!(self.kind, EventKind::Complete) && matches!(self.op, Op::Write) && self.sectors == 0
    }
    /// The sector after its last.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.sector.saturating_add(self.sectors as u64)
    }
}

/// The letters in which the kernel tells operation and flags: an `F` when the
/// cache is emptied first, the operation, then flags. `FF` is a flush by
/// itself, `FWFS` a write with everything.
#[must_use]
pub fn parse_rwbs(text: &[u8]) -> Option<(Op, Flags)> {
    let mut flags = 0;
    let mut rest = text;
    if let [b'F', b'W' | b'R' | b'D' | b'N' | b'F' | b'Z', ..] = rest {
        flags |= Flags::PREFLUSH;
        rest = &rest[1..];
    }
    let (op, mut rest) = match rest {
        [b'W', b'Z', rest @ ..] => (Op::Zeroes, rest),
        [b'Z', b'A', rest @ ..] => (Op::Write, rest),
        [b'Z', ..] => (Op::Other, &[][..]),
        [b'D', b'E', rest @ ..] | [b'D', rest @ ..] => (Op::Discard, rest),
        [b'R', rest @ ..] => (Op::Read, rest),
        [b'W', rest @ ..] => (Op::Write, rest),
        [b'F', rest @ ..] => (Op::Flush, rest),
        [b'N', rest @ ..] => (Op::Other, rest),
        _ => return None,
    };
    while let [letter, tail @ ..] = rest {
        flags |= match letter {
            b'F' => Flags::FUA,
            b'S' => Flags::SYNC,
            b'M' => Flags::META,
            b'A' => Flags::AHEAD,
            _ => 0,
        };
        rest = tail;
    }
    Some((op, Flags(flags)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_the_kernel() {
        let f = |bits| Flags(bits);
        for (text, op, flags) in [
            ("R", Op::Read, 0),
            ("RA", Op::Read, Flags::AHEAD),
            ("RSM", Op::Read, Flags::SYNC | Flags::META),
            ("W", Op::Write, 0),
            ("WS", Op::Write, Flags::SYNC),
            ("WFS", Op::Write, Flags::FUA | Flags::SYNC),
            ("FWS", Op::Write, Flags::PREFLUSH | Flags::SYNC),
            ("FWFSM", Op::Write, Flags::PREFLUSH | Flags::FUA | Flags::SYNC | Flags::META),
            ("FF", Op::Flush, Flags::PREFLUSH),
            ("F", Op::Flush, 0),
            ("FS", Op::Flush, Flags::SYNC),
            ("D", Op::Discard, 0),
            ("DE", Op::Discard, 0),
            ("DS", Op::Discard, Flags::SYNC),
            ("N", Op::Other, 0),
            ("WZS", Op::Zeroes, Flags::SYNC),
            ("ZAS", Op::Write, Flags::SYNC),
            ("ZRA", Op::Other, 0),
        ] {
            assert_eq!(parse_rwbs(text.as_bytes()), Some((op, f(flags))), "{text}");
        }
        for text in ["", "X", "5"] {
            assert_eq!(parse_rwbs(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn numbers_come_back() {
        for op in Op::ALL {
            assert_eq!(Op::from_u8(op as u8), Some(op));
        }
        assert_eq!(Op::from_u8(6), None);
        for kind in [EventKind::Issue, EventKind::Complete, EventKind::Requeue] {
            assert_eq!(EventKind::from_u8(kind as u8), Some(kind));
        }
        assert_eq!(EventKind::from_u8(0), None);
        assert_eq!(Flags(Flags::FUA | Flags::META).letters(), "FM");
    }
}
