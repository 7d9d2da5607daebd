//! Records: logical edits of the index, in the chain. Replaying them in order
//! on the trees of the last index checkpoint gives the state at the end of the
//! chain, so a record means the same on every replay: it depends on the trees
//! and on itself only, never on a clock or on what is open.
//!
//! A record is one byte of type and a body; the table in `docs/FORMAT.md`
//! lists the bodies.

use crate::items::{Extent, Landmark};
use crate::key::Key;
use crate::node::TreeId;
use crate::wire::{Put, Reader};
use crate::{Addr, Cno, Ino, Invalid, SegmentNo, Time};

/// Which attributes a [`Record::SetAttr`] changes.
pub mod attr_mask {
    /// Permission bits.
    pub const MODE: u32 = 1;
    /// Owner.
    pub const UID: u32 = 2;
    /// Group.
    pub const GID: u32 = 4;
    /// Access time.
    pub const ATIME: u32 = 8;
    /// Modification time.
    pub const MTIME: u32 = 16;
    /// Change time.
    pub const CTIME: u32 = 32;
}

/// Exchange the two names of a rename.
pub const RENAME_EXCHANGE: u8 = 1;

/// One step of a content commit, applied in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentOp<'a> {
    /// File blocks that hold nothing any more: from, and how many (all ones: to the end).
    Hole(u64, u64),
    /// File blocks that now lie in this extent: first file block, extent. An
    /// address may be a payload index; the birth is set when it is applied.
    Extent(u64, Extent),
    /// The whole content, small enough for the index. Replaces everything.
    Inline(&'a [u8]),
    /// The whole content goes, in constant time: the old fork is reaped later.
    NewFork,
}

/// A logical edit of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // fields carry the names of docs/FORMAT.md
pub enum Record<'a> {
    /// A new inode under a name; with parent 0 one without a name (an orphan).
    Create {
        parent: Ino,
        ino: Ino,
        mode: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        time: Time,
        name: &'a [u8],
        target: &'a [u8],
    },
    /// A further name for an inode.
    Link { parent: Ino, ino: Ino, time: Time, name: &'a [u8] },
    /// A name goes. `drop`: the inode is not in use, so if this was its last
    /// name it goes too; else it becomes an orphan.
    Unlink { parent: Ino, drop: bool, time: Time, name: &'a [u8] },
    /// A name moves or two are exchanged; a replaced inode is treated as in Unlink.
    Rename { from: Ino, to: Ino, flags: u8, drop: bool, time: Time, old: &'a [u8], new: &'a [u8] },
    /// Attributes of the namespace stream.
    SetAttr { ino: Ino, mask: u32, mode: u32, uid: u32, gid: u32, atime: Time, mtime: Time, ctime: Time },
    /// An extended attribute is set. `mode` carries the permission bits that an
    /// ACL changes; all ones for none.
    SetXattr { ino: Ino, ctime: Time, mode: u32, name: &'a [u8], value: &'a [u8] },
    /// An extended attribute goes.
    RemoveXattr { ino: Ino, ctime: Time, name: &'a [u8] },
    /// One commit of a file's content stream.
    Content { ino: Ino, size: u64, mtime: Time, ctime: Time, editor_uid: u32, ops: Vec<ContentOp<'a>> },
    /// An orphan is no longer in use: it and its items go.
    Release { ino: Ino },
    /// The reaper removes up to `max` items of a dead inode or fork.
    ReapStep { ino: Ino, fork: u32, max: u32 },
    /// A checkpoint is cut: items from here on are born in the next cno.
    Checkpoint { cno: Cno, wall: Time, mounted_nanos: u64, flags: u32, name: &'a [u8] },
    /// A checkpoint gets or loses its name.
    NameCheckpoint { cno: Cno, name: &'a [u8] },
    /// Checkpoints are let go.
    DropCheckpoints { cnos: Vec<Cno> },
    /// Up to `max` items of a history tree, from a key on, are freed where no checkpoint sees them.
    Sweep { tree: TreeId, from: Key, max: u32 },
    /// Nothing is added to the newest history tree any more.
    Seal { tree: TreeId },
    /// Up to `max` items of a sealed history tree with keys below `behind` go to an older one.
    Merge { from: TreeId, into: TreeId, behind: Key, max: u32 },
    /// Blocks of an extent were copied elsewhere. Applies only where the item
    /// at `key` still holds `old`; `new` has the same blocks.
    Move { tree: TreeId, key: Key, old: Addr, new: Extent },
    /// The extents that hold these file blocks may get further owners: they get
    /// the flag and a back reference.
    Share { ino: Ino, from: u64, blocks: u64 },
    /// The same of what a kept checkpoint shows of an inode.
    SharePast { ino: Ino, cno: Cno, from: u64, blocks: u64 },
    /// These inodes, which have no name, are to be forgotten: no past state shows them any more.
    Forget { time: Time, inos: Vec<Ino> },
    /// Up to `max` items of the live tree or of a history tree, from a key on, are freed where they
    /// belong to an inode to be forgotten, or name one.
    ForgetStep { tree: TreeId, from: Key, max: u32 },
    /// The devices hold nothing of the first `max` inodes to be forgotten any more.
    ForgetEnd { max: u32 },
    /// Of what died in `upto` or before of this inode's content, only what snapshots see is kept.
    Shed { ino: Ino, upto: Cno, wall: Time, blocks: u64 },
    /// A segment is put to use for data.
    OpenSegment { segment: SegmentNo, kind: u8 },
    /// Nothing: carries a durable mark.
    Mark,
    /// The volume's retention rule, as text.
    Retention { value: &'a [u8] },
    /// A landmark is kept under a checkpoint's number.
    Landmark { cno: Cno, number: u32, landmark: Landmark },
    /// Landmarks are let go: checkpoint and number of each.
    DropLandmarks { which: Vec<(Cno, u32)> },
}

mod tag {
    pub const CREATE: u8 = 1;
    pub const LINK: u8 = 2;
    pub const UNLINK: u8 = 3;
    pub const RENAME: u8 = 4;
    pub const SETATTR: u8 = 5;
    pub const SETXATTR: u8 = 6;
    pub const REMOVEXATTR: u8 = 7;
    pub const CONTENT: u8 = 8;
    pub const RELEASE: u8 = 9;
    pub const REAP_STEP: u8 = 10;
    pub const CHECKPOINT: u8 = 11;
    pub const NAME_CHECKPOINT: u8 = 12;
    pub const DROP_CHECKPOINTS: u8 = 13;
    pub const SWEEP: u8 = 14;
    pub const MOVE: u8 = 15;
    pub const SHARE: u8 = 16;
    pub const OPEN_SEGMENT: u8 = 17;
    pub const MARK: u8 = 18;
    pub const RETENTION: u8 = 19;
    pub const SHARE_PAST: u8 = 20;
    pub const LANDMARK: u8 = 21;
    pub const DROP_LANDMARKS: u8 = 22;
    pub const FORGET: u8 = 23;
    pub const FORGET_STEP: u8 = 24;
    pub const FORGET_END: u8 = 25;
    pub const SHED: u8 = 26;
    pub const SEAL: u8 = 27;
    pub const MERGE: u8 = 28;

    pub const OP_HOLE: u8 = 1;
    pub const OP_EXTENT: u8 = 2;
    pub const OP_INLINE: u8 = 3;
    pub const OP_NEW_FORK: u8 = 4;
}

/// Every record type: number, name, body. The format document is checked
/// against this table.
pub const TABLE: &[(u8, &str, &str)] = &[
    (tag::CREATE, "Create", "parent u64, ino u64, mode u32, uid u32, gid u32, rdev u32, time i64, name, target"),
    (tag::LINK, "Link", "parent u64, ino u64, time i64, name"),
    (tag::UNLINK, "Unlink", "parent u64, drop u8, time i64, name"),
    (tag::RENAME, "Rename", "from u64, to u64, flags u8, drop u8, time i64, old, new"),
    (tag::SETATTR, "SetAttr", "ino u64, mask u32, mode u32, uid u32, gid u32, atime i64, mtime i64, ctime i64"),
    (tag::SETXATTR, "SetXattr", "ino u64, ctime i64, mode u32, name, value (u32 length)"),
    (tag::REMOVEXATTR, "RemoveXattr", "ino u64, ctime i64, name"),
    (tag::CONTENT, "Content", "ino u64, size u64, mtime i64, ctime i64, editor_uid u32, count u32, steps"),
    (tag::RELEASE, "Release", "ino u64"),
    (tag::REAP_STEP, "ReapStep", "ino u64, fork u32, max u32"),
    (tag::CHECKPOINT, "Checkpoint", "cno u64, wall i64, mounted_nanos u64, flags u32, name"),
    (tag::NAME_CHECKPOINT, "NameCheckpoint", "cno u64, name"),
    (tag::DROP_CHECKPOINTS, "DropCheckpoints", "count u32, cnos u64 each"),
    (tag::SWEEP, "Sweep", "tree u32, from key, max u32"),
    (tag::MOVE, "Move", "tree u32, key, old u64, extent"),
    (tag::SHARE, "Share", "ino u64, from u64, blocks u64"),
    (tag::OPEN_SEGMENT, "OpenSegment", "segment u64, kind u8"),
    (tag::MARK, "Mark", ""),
    (tag::RETENTION, "Retention", "value"),
    (tag::SHARE_PAST, "SharePast", "ino u64, cno u64, from u64, blocks u64"),
    (tag::LANDMARK, "Landmark", "cno u64, number u32, landmark (u32 length)"),
    (tag::DROP_LANDMARKS, "DropLandmarks", "count u32, cno u64 and number u32 each"),
    (tag::FORGET, "Forget", "time i64, count u32, inos u64 each"),
    (tag::FORGET_STEP, "ForgetStep", "tree u32, from key, max u32"),
    (tag::FORGET_END, "ForgetEnd", "max u32"),
    (tag::SHED, "Shed", "ino u64, upto u64, wall i64, blocks u64"),
    (tag::SEAL, "Seal", "tree u32"),
    (tag::MERGE, "Merge", "from u32, into u32, behind key, max u32"),
];

fn put_time(out: &mut Vec<u8>, t: Time) {
    out.put_u64(t.0 as u64);
}

fn time(r: &mut Reader<'_>) -> Result<Time, Invalid> {
    Ok(Time(r.u64()? as i64))
}

fn key(r: &mut Reader<'_>) -> Result<Key, Invalid> {
    let mut b = [0; Key::BYTES];
    b.copy_from_slice(r.take(Key::BYTES)?);
    Key::decode(&b)
}

fn extent(r: &mut Reader<'_>) -> Result<Extent, Invalid> {
    let (e, rest) = Extent::decode_prefix(r.rest())?;
    *r = Reader::new(rest);
    Ok(e)
}

/// Puts what a [`Record::Content`] begins with. So many steps follow.
pub fn put_content(out: &mut Vec<u8>, ino: Ino, size: u64, times: (Time, Time), editor_uid: u32, steps: usize) {
    out.put_u8(tag::CONTENT);
    out.put_u64(ino.0);
    out.put_u64(size);
    put_time(out, times.0);
    put_time(out, times.1);
    out.put_u32(editor_uid);
    out.put_u32(steps as u32);
}

/// Puts a [`ContentOp::Extent`] as if it were at this address.
pub fn put_extent(out: &mut Vec<u8>, off: u64, extent: &Extent, addr: Addr) {
    out.put_u8(tag::OP_EXTENT);
    out.put_u64(off);
    extent.encode_at(addr, out);
}

impl ContentOp<'_> {
    /// Appends the step's bytes.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hole(from, blocks) => {
                out.put_u8(tag::OP_HOLE);
                out.put_u64(*from);
                out.put_u64(*blocks);
            }
            Self::Extent(off, e) => put_extent(out, *off, e, e.addr),
            Self::Inline(bytes) => {
                out.put_u8(tag::OP_INLINE);
                out.put_long(bytes);
            }
            Self::NewFork => out.put_u8(tag::OP_NEW_FORK),
        }
    }
}

/// So many steps. Those that may take a few bytes only replace everything, and are there once at most: what is decoded is a few times
/// as long as what was read.
fn content_ops<'a>(r: &mut Reader<'a>, count: u32) -> Result<Vec<ContentOp<'a>>, Invalid> {
    // Most have one; no more is believed before it was read.
    let (mut ops, mut forks, mut inline) = (Vec::with_capacity(count.min(1) as usize), 0, 0);
    for _ in 0..count {
        let op = content_op(r)?;
        forks += u32::from(op == ContentOp::NewFork);
        inline += u32::from(matches!(op, ContentOp::Inline(_)));
        if forks > 1 || inline > 1 {
            return Err(Invalid::Bounds);
        }
        ops.push(op);
    }
    Ok(ops)
}

fn content_op<'a>(r: &mut Reader<'a>) -> Result<ContentOp<'a>, Invalid> {
    Ok(match r.u8()? {
        tag::OP_HOLE => ContentOp::Hole(r.u64()?, r.u64()?),
        tag::OP_EXTENT => ContentOp::Extent(r.u64()?, extent(r)?),
        tag::OP_INLINE => ContentOp::Inline(r.long()?),
        tag::OP_NEW_FORK => ContentOp::NewFork,
        other => return Err(Invalid::Kind(other)),
    })
}

impl<'a> Record<'a> {
    /// Appends the record's bytes.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        match self {
            Self::Create { parent, ino, mode, uid, gid, rdev, time, name, target } => {
                out.put_u8(tag::CREATE);
                out.put_u64(parent.0);
                out.put_u64(ino.0);
                out.put_u32(*mode);
                out.put_u32(*uid);
                out.put_u32(*gid);
                out.put_u32(*rdev);
                put_time(out, *time);
                out.put_short(name);
                out.put_short(target);
            }
            Self::Link { parent, ino, time, name } => {
                out.put_u8(tag::LINK);
                out.put_u64(parent.0);
                out.put_u64(ino.0);
                put_time(out, *time);
                out.put_short(name);
            }
            Self::Unlink { parent, drop, time, name } => {
                out.put_u8(tag::UNLINK);
                out.put_u64(parent.0);
                out.put_u8(u8::from(*drop));
                put_time(out, *time);
                out.put_short(name);
            }
            Self::Rename { from, to, flags, drop, time, old, new } => {
                out.put_u8(tag::RENAME);
                out.put_u64(from.0);
                out.put_u64(to.0);
                out.put_u8(*flags);
                out.put_u8(u8::from(*drop));
                put_time(out, *time);
                out.put_short(old);
                out.put_short(new);
            }
            Self::SetAttr { ino, mask, mode, uid, gid, atime, mtime, ctime } => {
                out.put_u8(tag::SETATTR);
                out.put_u64(ino.0);
                for v in [mask, mode, uid, gid] {
                    out.put_u32(*v);
                }
                for t in [atime, mtime, ctime] {
                    put_time(out, *t);
                }
            }
            Self::SetXattr { ino, ctime, mode, name, value } => {
                out.put_u8(tag::SETXATTR);
                out.put_u64(ino.0);
                put_time(out, *ctime);
                out.put_u32(*mode);
                out.put_short(name);
                out.put_long(value);
            }
            Self::RemoveXattr { ino, ctime, name } => {
                out.put_u8(tag::REMOVEXATTR);
                out.put_u64(ino.0);
                put_time(out, *ctime);
                out.put_short(name);
            }
            Self::Content { ino, size, mtime, ctime, editor_uid, ops } => {
                put_content(out, *ino, *size, (*mtime, *ctime), *editor_uid, ops.len());
                for op in ops {
                    op.encode_into(out);
                }
            }
            Self::Release { ino } => {
                out.put_u8(tag::RELEASE);
                out.put_u64(ino.0);
            }
            Self::ReapStep { ino, fork, max } => {
                out.put_u8(tag::REAP_STEP);
                out.put_u64(ino.0);
                out.put_u32(*fork);
                out.put_u32(*max);
            }
            Self::Checkpoint { cno, wall, mounted_nanos, flags, name } => {
                out.put_u8(tag::CHECKPOINT);
                out.put_u64(cno.0);
                put_time(out, *wall);
                out.put_u64(*mounted_nanos);
                out.put_u32(*flags);
                out.put_short(name);
            }
            Self::NameCheckpoint { cno, name } => {
                out.put_u8(tag::NAME_CHECKPOINT);
                out.put_u64(cno.0);
                out.put_short(name);
            }
            Self::DropCheckpoints { cnos } => {
                out.put_u8(tag::DROP_CHECKPOINTS);
                out.put_u32(cnos.len() as u32);
                for c in cnos {
                    out.put_u64(c.0);
                }
            }
            Self::Landmark { cno, number, landmark } => {
                out.put_u8(tag::LANDMARK);
                out.put_u64(cno.0);
                out.put_u32(*number);
                out.put_long(&landmark.encode());
            }
            Self::DropLandmarks { which } => {
                out.put_u8(tag::DROP_LANDMARKS);
                out.put_u32(which.len() as u32);
                for (cno, number) in which {
                    out.put_u64(cno.0);
                    out.put_u32(*number);
                }
            }
            Self::Sweep { tree, from, max } => {
                out.put_u8(tag::SWEEP);
                out.put_u32(tree.0);
                out.extend_from_slice(&from.encode());
                out.put_u32(*max);
            }
            Self::Seal { tree } => {
                out.put_u8(tag::SEAL);
                out.put_u32(tree.0);
            }
            Self::Merge { from, into, behind, max } => {
                out.put_u8(tag::MERGE);
                out.put_u32(from.0);
                out.put_u32(into.0);
                out.extend_from_slice(&behind.encode());
                out.put_u32(*max);
            }
            Self::Move { tree, key, old, new } => {
                out.put_u8(tag::MOVE);
                out.put_u32(tree.0);
                out.extend_from_slice(&key.encode());
                out.put_u64(old.0);
                new.encode_into(out);
            }
            Self::SharePast { ino, cno, from, blocks } => {
                out.put_u8(tag::SHARE_PAST);
                for v in [ino.0, cno.0, *from, *blocks] {
                    out.put_u64(v);
                }
            }
            Self::Share { ino, from, blocks } => {
                out.put_u8(tag::SHARE);
                for v in [ino.0, *from, *blocks] {
                    out.put_u64(v);
                }
            }
            Self::OpenSegment { segment, kind } => {
                out.put_u8(tag::OPEN_SEGMENT);
                out.put_u64(segment.0);
                out.put_u8(*kind);
            }
            Self::Forget { time, inos } => {
                out.put_u8(tag::FORGET);
                put_time(out, *time);
                out.put_u32(inos.len() as u32);
                for ino in inos {
                    out.put_u64(ino.0);
                }
            }
            Self::ForgetStep { tree, from, max } => {
                out.put_u8(tag::FORGET_STEP);
                out.put_u32(tree.0);
                out.extend_from_slice(&from.encode());
                out.put_u32(*max);
            }
            Self::ForgetEnd { max } => {
                out.put_u8(tag::FORGET_END);
                out.put_u32(*max);
            }
            Self::Shed { ino, upto, wall, blocks } => {
                out.put_u8(tag::SHED);
                out.put_u64(ino.0);
                out.put_u64(upto.0);
                put_time(out, *wall);
                out.put_u64(*blocks);
            }
            Self::Mark => out.put_u8(tag::MARK),
            Self::Retention { value } => {
                out.put_u8(tag::RETENTION);
                out.put_short(value);
            }
        }
    }

    /// The next record.
    ///
    /// # Errors
    /// Short input, unknown types, and values that cannot be.
    pub fn decode(r: &mut Reader<'a>) -> Result<Self, Invalid> {
        let record = Self::read(r)?;
        let names: [&[u8]; 2] = match &record {
            Self::Create { parent, name, .. } if parent.0 != 0 => [name, name],
            Self::Link { name, .. } | Self::Unlink { name, .. } => [name, name],
            Self::Rename { old, new, .. } => [old, new],
            _ => return Ok(record),
        };
        if names.iter().all(|name| crate::can_be_name(name)) { Ok(record) } else { Err(Invalid::Bounds) }
    }

    fn read(r: &mut Reader<'a>) -> Result<Self, Invalid> {
        Ok(match r.u8()? {
            tag::CREATE => Self::Create {
                parent: Ino(r.u64()?),
                ino: Ino(r.u64()?),
                mode: r.u32()?,
                uid: r.u32()?,
                gid: r.u32()?,
                rdev: r.u32()?,
                time: time(r)?,
                name: r.short()?,
                target: r.short()?,
            },
            tag::LINK => Self::Link { parent: Ino(r.u64()?), ino: Ino(r.u64()?), time: time(r)?, name: r.short()? },
            tag::UNLINK => Self::Unlink { parent: Ino(r.u64()?), drop: r.u8()? == 1, time: time(r)?, name: r.short()? },
            tag::RENAME => Self::Rename {
                from: Ino(r.u64()?),
                to: Ino(r.u64()?),
                flags: r.u8()?,
                drop: r.u8()? == 1,
                time: time(r)?,
                old: r.short()?,
                new: r.short()?,
            },
            tag::SETATTR => Self::SetAttr {
                ino: Ino(r.u64()?),
                mask: r.u32()?,
                mode: r.u32()?,
                uid: r.u32()?,
                gid: r.u32()?,
                atime: time(r)?,
                mtime: time(r)?,
                ctime: time(r)?,
            },
            tag::SETXATTR => Self::SetXattr {
                ino: Ino(r.u64()?),
                ctime: time(r)?,
                mode: r.u32()?,
                name: r.short()?,
                value: r.long()?,
            },
            tag::REMOVEXATTR => Self::RemoveXattr { ino: Ino(r.u64()?), ctime: time(r)?, name: r.short()? },
            tag::CONTENT => {
                let (ino, size, mtime, ctime) = (Ino(r.u64()?), r.u64()?, time(r)?, time(r)?);
                let (editor_uid, count) = (r.u32()?, r.u32()?);
                Self::Content { ino, size, mtime, ctime, editor_uid, ops: content_ops(r, count)? }
            }
            tag::RELEASE => Self::Release { ino: Ino(r.u64()?) },
            tag::REAP_STEP => Self::ReapStep { ino: Ino(r.u64()?), fork: r.u32()?, max: r.u32()? },
            tag::CHECKPOINT => Self::Checkpoint {
                cno: Cno(r.u64()?),
                wall: time(r)?,
                mounted_nanos: r.u64()?,
                flags: r.u32()?,
                name: r.short()?,
            },
            tag::NAME_CHECKPOINT => Self::NameCheckpoint { cno: Cno(r.u64()?), name: r.short()? },
            tag::DROP_CHECKPOINTS => {
                let count = r.u32()?;
                let mut cnos = Vec::new();
                for _ in 0..count {
                    cnos.push(Cno(r.u64()?));
                }
                Self::DropCheckpoints { cnos }
            }
            tag::SWEEP => Self::Sweep { tree: TreeId(r.u32()?), from: key(r)?, max: r.u32()? },
            tag::SEAL => Self::Seal { tree: TreeId(r.u32()?) },
            tag::MERGE => {
                Self::Merge { from: TreeId(r.u32()?), into: TreeId(r.u32()?), behind: key(r)?, max: r.u32()? }
            }
            tag::MOVE => Self::Move { tree: TreeId(r.u32()?), key: key(r)?, old: Addr(r.u64()?), new: extent(r)? },
            tag::SHARE => Self::Share { ino: Ino(r.u64()?), from: r.u64()?, blocks: r.u64()? },
            tag::OPEN_SEGMENT => Self::OpenSegment { segment: SegmentNo(r.u64()?), kind: r.u8()? },
            tag::MARK => Self::Mark,
            tag::RETENTION => Self::Retention { value: r.short()? },
            tag::SHARE_PAST => {
                Self::SharePast { ino: Ino(r.u64()?), cno: Cno(r.u64()?), from: r.u64()?, blocks: r.u64()? }
            }
            tag::LANDMARK => {
                Self::Landmark { cno: Cno(r.u64()?), number: r.u32()?, landmark: Landmark::decode(r.long()?)? }
            }
            tag::DROP_LANDMARKS => {
                let count = r.u32()?;
                let mut which = Vec::new();
                for _ in 0..count {
                    which.push((Cno(r.u64()?), r.u32()?));
                }
                Self::DropLandmarks { which }
            }
            tag::FORGET => {
                let (time, count) = (time(r)?, r.u32()?);
                let mut inos = Vec::new();
                for _ in 0..count {
                    inos.push(Ino(r.u64()?));
                }
                Self::Forget { time, inos }
            }
            tag::FORGET_STEP => Self::ForgetStep { tree: TreeId(r.u32()?), from: key(r)?, max: r.u32()? },
            tag::FORGET_END => Self::ForgetEnd { max: r.u32()? },
            tag::SHED => Self::Shed { ino: Ino(r.u64()?), upto: Cno(r.u64()?), wall: time(r)?, blocks: r.u64()? },
            other => return Err(Invalid::Kind(other)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a megabyte of steps that take a byte would be eighty in memory.
    #[test]
    fn what_replaces_everything_is_there_once() {
        let decoded = |ops: &[ContentOp<'_>]| {
            let mut bytes = Vec::new();
            put_content(&mut bytes, Ino(16), 0, (Time(0), Time(0)), 0, ops.len());
            ops.iter().for_each(|op| op.encode_into(&mut bytes));
            Record::decode(&mut Reader::new(&bytes)).map(drop)
        };
        let (fork, inline, hole) = (ContentOp::NewFork, ContentOp::Inline(b""), ContentOp::Hole(0, 1));
        assert_eq!(decoded(&[fork.clone(), hole.clone(), hole, inline.clone()]), Ok(()));
        assert_eq!(decoded(&[fork.clone(), fork]), Err(Invalid::Bounds));
        assert_eq!(decoded(&[inline.clone(), inline]), Err(Invalid::Bounds));
    }
}
