//! From the bytes of one request to what it asks for.
//!
//! Invariants
//! 1. The kernel is trusted no further than a device's bytes are: any length
//!    and any content decode to a request or to [`Malformed`], never a panic.
//! 2. Nothing is copied but fixed-size structures; names and data stay in the
//!    receiver's buffer.

use super::abi::{self, InHeader};
use super::flags::{self, GETATTR_FH, Opcode, setattr};
use nenrin_core::{SetAttr, SetTime};
use nenrin_format::Time;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Bytes that are no request of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// One request: its header, and what it asks for.
#[derive(Debug)]
pub struct Request<'a> {
    pub head: InHeader,
    pub op: Op<'a>,
}

/// What a request asks for. The inode it is about is `head.nodeid`.
#[derive(Debug)]
pub enum Op<'a> {
    Init(abi::InitIn),
    Destroy,
    Interrupt,
    Lookup {
        name: &'a [u8],
    },
    Forget {
        nlookup: u64,
    },
    BatchForget(Forgets<'a>),
    /// For this handle, where the kernel says for which.
    Getattr {
        fh: Option<u64>,
    },
    Statx,
    Setattr(Setattr),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        old: &'a [u8],
        to: u64,
        new: &'a [u8],
        flags: u32,
    },
    Link {
        ino: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
        open_flags: u32,
    },
    Create {
        name: &'a [u8],
        new: abi::CreateIn,
    },
    Tmpfile {
        new: abi::CreateIn,
    },
    Read {
        offset: u64,
        bytes: u32,
        flags: u32,
    },
    Write {
        args: abi::WriteIn,
        data: &'a [u8],
    },
    Flush,
    Release {
        fh: u64,
    },
    Fsync,
    Fsyncdir,
    Syncfs,
    Fallocate {
        fh: u64,
        offset: u64,
        bytes: u64,
        mode: u32,
    },
    Lseek {
        offset: u64,
        whence: u32,
    },
    CopyFileRange {
        args: abi::CopyFileRangeIn,
        wide: bool,
    },
    Opendir,
    Readdir {
        cookie: u64,
        bytes: u32,
    },
    Readdirplus {
        cookie: u64,
        bytes: u32,
    },
    Releasedir,
    Statfs,
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        ext_flags: u32,
    },
    Getxattr {
        name: &'a [u8],
        bytes: u32,
    },
    Listxattr {
        bytes: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Access {
        mask: u32,
    },
    Ioctl,
    /// A request that this front end has no use for.
    Other,
}

/// The attributes of a SETATTR.
#[derive(Clone, Copy, Debug)]
pub struct Setattr {
    pub set: SetAttr,
    /// The handle of the open file through which the change comes.
    pub handle: Option<u64>,
    /// Somebody asked for given times, which only the owner may set.
    pub times_given: bool,
}

impl Setattr {
    fn new(raw: &abi::SetattrIn) -> Self {
        let has = |bit: u32| raw.valid & bit != 0;
        let time = |now: u32, given: u32, secs: i64, nanos: u32| match (has(now), has(given)) {
            (true, _) => Some(SetTime::Now),
            (false, true) => Some(SetTime::At(Time::from_parts(secs, nanos))),
            (false, false) => None,
        };
        let set = SetAttr {
            mode: has(setattr::MODE).then_some(raw.mode & 0o7777),
            uid: has(setattr::UID).then_some(raw.uid),
            gid: has(setattr::GID).then_some(raw.gid),
            size: has(setattr::SIZE).then_some(raw.size),
            editor: None,
            closed: false,
            atime: time(setattr::ATIME_NOW, setattr::ATIME, raw.atime, raw.atime_nanos),
            mtime: time(setattr::MTIME_NOW, setattr::MTIME, raw.mtime, raw.mtime_nanos),
            ctime: time(0, setattr::CTIME, raw.ctime, raw.ctime_nanos),
            kill_privileges: has(setattr::KILL_SUIDGID),
        };
        let given = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let handle = has(setattr::FH).then_some(raw.fh);
        // Under writeback the kernel sends times of its own: of an open file those of what was written, and where somebody wants
        // the present one that, as the time of the change, too.
        let own_mtime = set.mtime == set.ctime;
        let times_given = handle.is_none() && (given(set.atime) || given(set.mtime) && !own_mtime);
        Self { set, handle, times_given }
    }
}

/// The inodes of a BATCH_FORGET.
#[derive(Clone, Copy, Debug)]
pub struct Forgets<'a> {
    rest: &'a [u8],
    left: u32,
}

impl Iterator for Forgets<'_> {
    type Item = abi::ForgetOne;
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (one, rest) = abi::ForgetOne::read_from_prefix(self.rest).ok()?;
        self.rest = rest;
        Some(one)
    }
}

/// Takes structures, names and data off the front of a request's body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Malformed)?;
        self.0 = rest;
        Ok(value)
    }
    /// A name, which ends at a zero byte.
    fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|&b| b == 0).ok_or(Malformed)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }
    fn data(&mut self, bytes: u32) -> Result<&'a [u8], Malformed> {
        let bytes = usize::try_from(bytes).map_err(|_| Malformed)?;
        let (data, rest) = self.0.split_at_checked(bytes).ok_or(Malformed)?;
        self.0 = rest;
        Ok(data)
    }
}

/// The header of a request, for answering even one that decodes no further.
pub fn header(bytes: &[u8]) -> Option<InHeader> {
    InHeader::read_from_prefix(bytes).ok().map(|(head, _)| head)
}

/// Decodes one request. `setxattr_ext` says which SETXATTR was agreed on.
#[cfg(test)]
pub fn decode(bytes: &[u8], setxattr_ext: bool) -> Result<Request<'_>, Malformed> {
    decode_apart(bytes, &[], setxattr_ext)
}

/// [`decode`], where the data of a WRITE may lie apart from what is in front of it.
pub fn decode_apart<'a>(bytes: &'a [u8], data: &'a [u8], setxattr_ext: bool) -> Result<Request<'a>, Malformed> {
    let (head, rest) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed)?;
    if head.len as usize != bytes.len() + data.len() {
        return Err(Malformed);
    }
    // Extensions lie behind the body, in units of 8 bytes. We ask for none.
    let ext_bytes = usize::from(head.ext_len) * 8;
    let last = if data.is_empty() { rest } else { data };
    let last = &last[..last.len().checked_sub(ext_bytes).ok_or(Malformed)?];
    let op = if data.is_empty() {
        decode_op(head.opcode, Body(last), setxattr_ext)?
    } else {
        decode_write(head.opcode, Body(rest), Body(last))?
    };
    Ok(Request { head, op })
}

fn decode_write<'a>(opcode: u32, mut args: Body<'a>, mut data: Body<'a>) -> Result<Op<'a>, Malformed> {
    if opcode != Opcode::Write as u32 {
        return Err(Malformed);
    }
    let args: abi::WriteIn = args.take()?;
    Ok(Op::Write { data: data.data(args.size)?, args })
}

fn decode_op<'a>(opcode: u32, mut b: Body<'a>, setxattr_ext: bool) -> Result<Op<'a>, Malformed> {
    let Some(opcode) = Opcode::from_number(opcode) else {
        return Ok(Op::Other);
    };
    Ok(match opcode {
        Opcode::Init => Op::Init(decode_init(&mut b)?),
        Opcode::Destroy => Op::Destroy,
        Opcode::Interrupt => Op::Interrupt,
        Opcode::Lookup => Op::Lookup { name: b.name()? },
        Opcode::Forget => Op::Forget { nlookup: b.take::<abi::ForgetIn>()?.nlookup },
        Opcode::BatchForget => {
            let head: abi::BatchForgetIn = b.take()?;
            Op::BatchForget(Forgets { rest: b.0, left: head.count })
        }
        Opcode::Getattr => {
            let abi::GetattrIn { flags, fh, .. } = b.take()?;
            Op::Getattr { fh: (flags & GETATTR_FH != 0).then_some(fh) }
        }
        Opcode::Statx => Op::Statx,
        Opcode::Setattr => Op::Setattr(Setattr::new(&b.take()?)),
        Opcode::Readlink => Op::Readlink,
        Opcode::Symlink => Op::Symlink { name: b.name()?, target: b.name()? },
        Opcode::Mknod => {
            let abi::MknodIn { mode, rdev, umask, .. } = b.take()?;
            Op::Mknod { name: b.name()?, mode, umask, rdev }
        }
        Opcode::Mkdir => {
            let abi::MkdirIn { mode, umask } = b.take()?;
            Op::Mkdir { name: b.name()?, mode, umask }
        }
        Opcode::Unlink => Op::Unlink { name: b.name()? },
        Opcode::Rmdir => Op::Rmdir { name: b.name()? },
        Opcode::Rename => {
            let abi::RenameIn { newdir } = b.take()?;
            Op::Rename { old: b.name()?, to: newdir, new: b.name()?, flags: 0 }
        }
        Opcode::Rename2 => {
            let abi::Rename2In { newdir, flags, .. } = b.take()?;
            Op::Rename { old: b.name()?, to: newdir, new: b.name()?, flags }
        }
        Opcode::Link => {
            let abi::LinkIn { oldnodeid } = b.take()?;
            Op::Link { ino: oldnodeid, name: b.name()? }
        }
        Opcode::Open => {
            let abi::OpenIn { flags, open_flags } = b.take()?;
            Op::Open { flags, open_flags }
        }
        Opcode::Create => {
            let new = b.take()?;
            Op::Create { new, name: b.name()? }
        }
        Opcode::Tmpfile => Op::Tmpfile { new: b.take()? },
        Opcode::Read => {
            let abi::ReadIn { offset, size, flags, .. } = b.take()?;
            Op::Read { offset, bytes: size, flags }
        }
        Opcode::Write => {
            let args: abi::WriteIn = b.take()?;
            Op::Write { data: b.data(args.size)?, args }
        }
        Opcode::Flush => Op::Flush,
        Opcode::Release => Op::Release { fh: b.take::<abi::ReleaseIn>()?.fh },
        Opcode::Fsync => Op::Fsync,
        Opcode::Fsyncdir => Op::Fsyncdir,
        Opcode::Syncfs => Op::Syncfs,
        Opcode::Fallocate => {
            let abi::FallocateIn { fh, offset, length, mode, .. } = b.take()?;
            Op::Fallocate { fh, offset, bytes: length, mode }
        }
        Opcode::Lseek => {
            let abi::LseekIn { offset, whence, .. } = b.take()?;
            Op::Lseek { offset, whence }
        }
        Opcode::CopyFileRange => Op::CopyFileRange { args: b.take()?, wide: false },
        Opcode::CopyFileRange64 => Op::CopyFileRange { args: b.take()?, wide: true },
        Opcode::Opendir => Op::Opendir,
        Opcode::Readdir => {
            let abi::ReadIn { offset, size, .. } = b.take()?;
            Op::Readdir { cookie: offset, bytes: size }
        }
        Opcode::Readdirplus => {
            let abi::ReadIn { offset, size, .. } = b.take()?;
            Op::Readdirplus { cookie: offset, bytes: size }
        }
        Opcode::Releasedir => Op::Releasedir,
        Opcode::Statfs => Op::Statfs,
        Opcode::Setxattr => decode_setxattr(&mut b, setxattr_ext)?,
        Opcode::Getxattr => {
            let abi::GetxattrIn { size, .. } = b.take()?;
            Op::Getxattr { name: b.name()?, bytes: size }
        }
        Opcode::Listxattr => Op::Listxattr { bytes: b.take::<abi::GetxattrIn>()?.size },
        Opcode::Removexattr => Op::Removexattr { name: b.name()? },
        Opcode::Access => Op::Access { mask: b.take::<abi::AccessIn>()?.mask },
        Opcode::Ioctl => Op::Ioctl,
        Opcode::Getlk
        | Opcode::Setlk
        | Opcode::Setlkw
        | Opcode::Bmap
        | Opcode::Poll
        | Opcode::NotifyReply
        | Opcode::SetupMapping
        | Opcode::RemoveMapping => Op::Other,
    })
}

/// INIT was 16 bytes up to version 7.35 and is 64 since.
fn decode_init(b: &mut Body<'_>) -> Result<abi::InitIn, Malformed> {
    if b.0.len() >= size_of::<abi::InitIn>() {
        return b.take();
    }
    let [major, minor, max_readahead, flags]: [u32; 4] = b.take()?;
    // A kernel without the longer structure offers no flags2.
    let flags = flags & !(flags::init::INIT_EXT as u32);
    Ok(abi::InitIn { major, minor, max_readahead, flags, ..Default::default() })
}

fn decode_setxattr<'a>(b: &mut Body<'a>, ext: bool) -> Result<Op<'a>, Malformed> {
    let (bytes, flags, ext_flags) = if ext {
        let abi::SetxattrIn { size, flags, setxattr_flags, .. } = b.take()?;
        (size, flags, setxattr_flags)
    } else {
        let abi::SetxattrInShort { size, flags } = b.take()?;
        (size, flags, 0)
    };
    Ok(Op::Setxattr { name: b.name()?, value: b.data(bytes)?, flags, ext_flags })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let head = InHeader { len, opcode, unique: 7, nodeid: 1, ..Default::default() };
        [head.as_bytes(), body].concat()
    }

    #[test]
    fn a_write_keeps_its_data_where_it_was() {
        let args = abi::WriteIn { size: 5, offset: 100, ..Default::default() };
        let bytes = request(16, &[args.as_bytes(), b"hello"].concat());
        let Op::Write { args: got, data } = decode(&bytes, true).unwrap().op else { panic!() };
        assert_eq!((got, data), (args, &b"hello"[..]));
        assert_eq!(data.as_ptr() as usize - bytes.as_ptr() as usize, abi::WRITE_PREFIX_BYTES);
    }

    #[test]
    fn the_data_of_a_write_may_lie_apart() {
        let args = abi::WriteIn { size: 5, offset: 100, ..Default::default() };
        let bytes = request(16, &[args.as_bytes(), b"hello"].concat());
        let (front, data) = bytes.split_at(abi::WRITE_PREFIX_BYTES);
        let Op::Write { args: got, data } = decode_apart(front, data, true).unwrap().op else { panic!() };
        assert_eq!((got, data), (args, &b"hello"[..]));
        assert_eq!(decode_apart(front, b"hell", true).unwrap_err(), Malformed);
        assert_eq!(decode_apart(&front[..60], &bytes[60..], true).unwrap_err(), Malformed);
        let other = request(17, &[args.as_bytes(), b"hello"].concat());
        assert_eq!(decode_apart(&other[..80], &other[80..], true).unwrap_err(), Malformed);
    }

    #[test]
    fn names_end_at_a_zero_and_must_have_one() {
        let args = abi::Rename2In { newdir: 9, flags: 2, padding: 0 };
        let bytes = request(45, &[args.as_bytes(), b"a\0bc\0"].concat());
        let Op::Rename { old, to, new, flags } = decode(&bytes, true).unwrap().op else { panic!() };
        assert_eq!((old, to, new, flags), (&b"a"[..], 9, &b"bc"[..], 2));
        assert_eq!(decode(&request(1, b"abc"), true).unwrap_err(), Malformed);
    }

    #[test]
    fn a_setxattr_has_two_shapes() {
        let short = [&3u32.to_ne_bytes()[..], &1u32.to_ne_bytes(), b"user.a\0xyz"].concat();
        let bytes = request(21, &short);
        let Op::Setxattr { name, value, flags, ext_flags } = decode(&bytes, false).unwrap().op else { panic!() };
        assert_eq!((name, value, flags, ext_flags), (&b"user.a"[..], &b"xyz"[..], 1, 0));
        let long = [&3u32.to_ne_bytes()[..], &[0; 4], &1u32.to_ne_bytes(), &[0; 4], b"user.a\0xyz"].concat();
        let Op::Setxattr { ext_flags, .. } = decode(&request(21, &long), true).unwrap().op else { panic!() };
        assert_eq!(ext_flags, 1);
    }

    #[test]
    fn extensions_behind_the_body_are_left_out() {
        let mut bytes = request(1, b"name\0\0\0\0extension!!!!!!!");
        assert_eq!(bytes.len(), 40 + 24);
        bytes[36] = 2;
        let Op::Lookup { name } = decode(&bytes, true).unwrap().op else { panic!() };
        assert_eq!(name, b"name");
        bytes[36] = 200;
        assert!(decode(&bytes, true).is_err());
    }

    #[test]
    fn a_batch_that_lies_about_its_count_ends_early() {
        let one = abi::ForgetOne { nodeid: 5, nlookup: 2 };
        let head = abi::BatchForgetIn { count: u32::MAX, dummy: 0 };
        let bytes = request(42, &[head.as_bytes(), one.as_bytes(), one.as_bytes(), &[1; 7]].concat());
        let Op::BatchForget(forgets) = decode(&bytes, true).unwrap().op else { panic!() };
        assert_eq!(forgets.collect::<Vec<_>>(), [one, one]);
    }

    #[test]
    fn times_come_in_three_ways() {
        let raw = abi::SetattrIn {
            valid: setattr::ATIME | setattr::ATIME_NOW | setattr::MTIME,
            mtime: -1,
            mtime_nanos: 5,
            ..Default::default()
        };
        let got = Setattr::new(&raw);
        assert_eq!(got.set.atime, Some(SetTime::Now));
        assert_eq!(got.set.mtime, Some(SetTime::At(Time(-999_999_995))));
        assert_eq!(got.set.ctime, None);
        assert!(got.times_given);
    }

    #[test]
    fn times_of_the_kernel_are_given_by_nobody() {
        let raw = abi::SetattrIn { mtime: 7, ctime: 7, ..Default::default() };
        let is_given = |raw: &abi::SetattrIn, valid| Setattr::new(&abi::SetattrIn { valid, ..*raw }).times_given;
        let both = setattr::MTIME | setattr::CTIME;
        assert!(!is_given(&raw, both | setattr::SIZE), "truncate");
        assert!(!is_given(&raw, both | setattr::ATIME | setattr::ATIME_NOW), "touch");
        assert!(is_given(&raw, both | setattr::ATIME), "the access time is asked for");
        let older = abi::SetattrIn { ctime_nanos: 1, ..raw };
        assert!(is_given(&older, both));
        assert!(!is_given(&older, both | setattr::FH), "what was written to an open file");
    }

    #[test]
    fn every_opcode_survives_every_short_body() {
        for opcode in 0..64 {
            for bytes in 0..128 {
                let _ = decode(&request(opcode, &vec![0xff; bytes]), opcode % 2 == 0);
                let _ = decode(&request(opcode, &vec![0; bytes]), opcode % 2 == 1);
            }
        }
        for bytes in 0..64 {
            assert!(decode(&vec![0; bytes], true).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(
            opcode in 0u32..60, body in proptest::collection::vec(any::<u8>(), 0..300),
            len in any::<Option<u32>>(), ext: bool,
        ) {
            let mut bytes = request(opcode, &body);
            if let Some(len) = len {
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
            }
            if let Ok(Request { op: Op::BatchForget(forgets), .. }) = decode(&bytes, ext) {
                prop_assert!(forgets.count() <= body.len() / 16);
            }
        }
    }
}
