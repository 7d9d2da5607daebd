//! Every inode against its items: counts that follow from them, content that
//! is missing, and what nobody would remove.
//!
//! Invariants
//! 1. A file block of which nothing is known never reads as zeros: it gets an
//!    extent that says so, in the past too as far as no past version is known.

use super::losses::{About, LossKind, MendKind};
use super::mender::Mender;
use super::regain::{count_blocks, forks_being_removed, newest_fork};
use super::salvage::lost_extent;
use crate::breaks::{Break, broken};
use crate::fs::CAPABILITY;
use crate::state::{SLOT_MASK, orphan_key, reap_key, xattr_pieces};
use crate::{FileKind, Result};
use nenrin_format::items::{
    self, Dirent, Extent, INODE_ACL, INODE_CAPS, INODE_XATTR, Inode, KeepRule, Reap, XattrPiece,
};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{BLOCK_BYTES, EXTENT_BLOCKS_MAX, INLINE_BYTES_MAX, Ino, XATTR_BYTES_MAX};
use std::ops::ControlFlow;

/// Extents that say a range is lost, in one repair: 1 TiB of them. They are in memory, so they are bounded. A gap at the
/// end of a file takes no more than half of what is left: the file can end in it, and leaves room for others.
pub(super) const LOST_EXTENTS_MAX: u64 = if cfg!(test) { 1 << 12 } else { 1 << 20 };
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Who may do what with the inode itself.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// What the items of an inode amount to.
#[derive(Default)]
struct Group {
    ino: u64,
    inode: Option<Inode>,
    entries: u64,
    subdirectories: u64,
    links: u64,
    parent: Option<Ino>,
    inline: Option<u64>,
    target: Option<u64>,
    xattrs: u64,
    /// Its own access control list is there; or that, or the one for what is made in it.
    has_acl: bool,
    has_any_acl: bool,
    has_capability: bool,
    blocks: u64,
    /// Forks other than the current one that have extents.
    forks: Vec<u32>,
}

impl Mender {
    /// All of it.
    pub(super) fn inodes(&mut self) -> Result<()> {
        let mut group = Group::default();
        self.sweep(&mut |this, key, value| {
            if key.ino != group.ino {
                let done = std::mem::take(&mut group);
                this.inode_of(&done)?;
                group.ino = key.ino;
            }
            group.add(key, value);
            Ok(())
        })?;
        self.inode_of(&group)
    }

    fn inode_of(&mut self, g: &Group) -> Result<()> {
        let Some(before) = g.inode else { return Ok(()) };
        let ino = Ino(g.ino);
        let mut inode = before;
        let kind = FileKind::from_mode(inode.mode);
        if kind == FileKind::Directory {
            let dead = g.links == 0 && ino != Ino::ROOT;
            inode.nlink = if dead { 0 } else { 2 + g.subdirectories as u32 };
            inode.entries = g.entries;
            inode.parent = if ino == Ino::ROOT { ino } else { g.parent.unwrap_or(inode.parent) };
        } else {
            let links = g.links as u32;
            // How many names one had that was made anew is not known.
            if links > 0 && links < inode.nlink && !self.unproven.contains(&g.ino) {
                let text = format!("{} of {} names are lost", inode.nlink - links, inode.nlink);
                self.losses.add(LossKind::NameLost, About::Inode(ino), text);
            }
            inode.nlink = links;
            // Whose it was is not known, so nobody's rights go with it, also where the log gave the file these bits.
            if self.unproven.contains(&g.ino) {
                inode.mode &= !0o6000;
                if g.has_capability && !broken(Break::CapabilitiesStay) {
                    self.drop_capability(ino)?;
                    inode.flags &= !INODE_CAPS;
                }
            }
        }
        self.content(g, ino, &mut inode, kind)?;
        self.attributes(g, ino, &mut inode);
        if inode != before {
            self.losses.mended(MendKind::CountsCorrected, 1);
            inode.birth = self.state.open_cno;
            self.change(Key::new(ino, Kind::Inode, 0, 0), inode.encode())?;
        }
        if inode.nlink == 0 {
            self.list_orphan(ino)?;
        }
        let stated = (g.blocks > 0).then_some(before.fork);
        for fork in g.forks.iter().copied().chain(stated).filter(|f| *f != inode.fork) {
            let reap = self.state.space.get(&self.state.cache, &reap_key(ino, fork))?;
            if reap.is_none_or(|v| Reap::decode(&v).is_err()) {
                self.list_for_removal(ino, fork, false)?;
            }
        }
        Ok(())
    }

    fn attributes(&mut self, g: &Group, ino: Ino, inode: &mut Inode) {
        if g.xattrs > 0 {
            inode.flags |= INODE_XATTR;
        }
        // An inode that was made anew does not know what is left of it.
        if g.has_any_acl {
            inode.flags |= INODE_ACL;
        }
        if g.has_capability && !self.unproven.contains(&g.ino) {
            inode.flags |= INODE_CAPS;
        }
        let (from, to) = (Key::new(ino, Kind::Xattr, 0, 0), Key::new(ino, Kind::Xattr, u32::MAX, u64::MAX));
        if inode.flags & INODE_XATTR == 0 || !self.may_be_lost(&from, &to) {
            return;
        }
        let mut text = "extended attributes may be lost".to_owned();
        let acl = self.state.xattr_key(ino, ACCESS_ACL);
        let is_lost = !g.has_acl && self.may_be_lost(&acl, &Key { off: acl.off | SLOT_MASK, ..acl });
        if inode.flags & INODE_ACL != 0 && is_lost && !(broken(Break::AnyAclCounts) && g.has_any_acl) {
            // The group's bits were the mask of the ACL: without it they would give the group too much.
            inode.mode &= !0o070;
            if !g.has_any_acl {
                inode.flags &= !INODE_ACL;
            }
            text.push_str(", an access control list among them: the group has no access now");
        }
        self.losses.add(LossKind::AttributesLost, About::Inode(ino), text);
    }

    /// Whose program it is nobody knows.
    fn drop_capability(&mut self, ino: Ino) -> Result<()> {
        let group = self.state.xattr_key(ino, CAPABILITY);
        let found = self.state.find_slot(group, |v| XattrPiece::decode(v).is_ok_and(|p| p.name == CAPABILITY))?;
        let Some((key, value)) = found else { return Ok(()) };
        let bytes = XattrPiece::decode(&value).map_or(0, |p| p.value_bytes as usize).min(XATTR_BYTES_MAX);
        for piece in 0..xattr_pieces(bytes) {
            self.remove(&Key { fork: piece, ..key })?;
        }
        let text = "its owner is lost, so the program has no capabilities any more";
        self.losses.add(LossKind::AttributesLost, About::Inode(ino), text);
        Ok(())
    }

    fn list_orphan(&mut self, ino: Ino) -> Result<()> {
        let key = orphan_key(ino);
        if self.state.space.get(&self.state.cache, &key)?.is_some_and(|v| Reap::decode(&v).is_ok()) {
            return Ok(());
        }
        let reap = Reap { death: self.state.open_cno, fork: 0, whole: true, rule: KeepRule::default() };
        self.losses.mended(MendKind::OrphansListed, 1);
        self.state.space.insert(&self.state.cache, key, reap.encode().into()).map(drop)
    }

    fn content(&mut self, g: &Group, ino: Ino, inode: &mut Inode, kind: FileKind) -> Result<()> {
        let inline = Key::new(ino, Kind::Inline, 0, 0);
        let symlink = Key::new(ino, Kind::Symlink, 0, 0);
        if kind != FileKind::Regular {
            if g.blocks > 0 {
                self.drop_extents(ino, inode.fork)?;
            }
            if g.inline.is_some() {
                self.unset(&inline)?;
            }
            inode.blocks = 0;
        }
        match g.target {
            Some(_) if kind != FileKind::Symlink => self.unset(&symlink)?,
            Some(length) => inode.size = length,
            None => {}
        }
        if kind != FileKind::Regular {
            return Ok(());
        }
        if let Some(length) = g.inline {
            if g.blocks > 0 {
                return self.drop_item(&inline, "the file has blocks too").map(|()| inode.blocks = g.blocks);
            }
            if length != inode.size && !self.unproven.contains(&ino.0) {
                let text = format!("the file has {length} bytes, {} were stated", inode.size);
                self.losses.add(LossKind::RangeLost, About::Inode(ino), text);
            }
            inode.size = length;
            inode.blocks = 0;
            return Ok(());
        }
        if self.unproven.contains(&ino.0) {
            self.unproven_size(ino, inode)?;
            if !broken(Break::FoundReadsZeros) {
                let gaps = self.gaps(ino, inode, true)?;
                self.mark_lost(ino, inode, &gaps)?;
            }
            return self.cut_behind_end(ino, inode);
        }
        let stated = inode.blocks;
        inode.blocks = g.blocks;
        let gaps = self.gaps(ino, inode, stated > g.blocks)?;
        self.mark_lost(ino, inode, &gaps)?;
        self.cut_behind_end(ino, inode)
    }

    /// The size of a file of which only extents are left; what the log says of it stays.
    fn unproven_size(&mut self, ino: Ino, inode: &mut Inode) -> Result<()> {
        let stated = inode.fork;
        inode.fork = stated.max(newest_fork(&self.state, ino, &forks_being_removed(&self.state)?)?);
        inode.blocks = count_blocks(&self.state, ino, inode.fork)?;
        if inode.blocks == 0 && inode.fork > stated {
            self.losses.add(LossKind::RangeLost, About::Inode(ino), "nothing of its content is left");
        }
        if inode.size == 0 && inode.blocks > 0 {
            let last = Key::new(ino, Kind::Extent, inode.fork, u64::MAX);
            let found = self.state.live.prev(&self.state.cache, &last)?;
            let end = found.map_or(0, |(k, v)| k.off + Extent::decode(&v).map_or(0, |e| u64::from(e.blocks)));
            inode.size = end.saturating_mul(BLOCK);
        }
        Ok(())
    }

    /// Ranges of file blocks that nothing is known of. `missing`: the inode
    /// states more blocks than there are.
    fn gaps(&self, ino: Ino, inode: &Inode, missing: bool) -> Result<Vec<(u64, u64)>> {
        let end = inode.size.div_ceil(BLOCK);
        let mut ranges: Vec<(u64, u64)> = self
            .holes
            .range((ino.0, inode.fork, 0, 0)..=(ino.0, inode.fork, u64::MAX, u64::MAX))
            .map(|(_, _, from, to)| (*from, (*to).min(end)))
            .collect();
        let (first, last) =
            (Key::new(ino, Kind::Extent, inode.fork, 0), Key::new(ino, Kind::Extent, inode.fork, u64::MAX));
        if missing {
            for l in self.lost.iter().filter(|l| l.meets(&first, &last)) {
                let from = l.low.map_or(first, |k| k.max(first)).off;
                let to = l.high.map_or(last, |k| k.min(last)).off;
                ranges.push((from, to.min(end)));
            }
        }
        // Content so small that it was no extent.
        let inline = Key::new(ino, Kind::Inline, 0, 0);
        if inode.blocks == 0
            && (1..=INLINE_BYTES_MAX as u64).contains(&inode.size)
            && self.may_be_lost(&inline, &inline)
        {
            ranges.push((0, 1));
        }
        ranges.sort_unstable();
        let mut out: Vec<(u64, u64)> = Vec::new();
        for (from, to) in ranges {
            let mut at = from.max(out.last().map_or(0, |g| g.1));
            if at >= to {
                continue;
            }
            for (key, e) in self.state.extents(ino, inode.fork, at, to, usize::MAX)? {
                if key.off > at {
                    out.push((at, key.off));
                }
                at = at.max(key.off + u64::from(e.blocks));
            }
            if at < to {
                out.push((at, to));
            }
        }
        Ok(out)
    }

    fn mark_lost(&mut self, ino: Ino, inode: &mut Inode, gaps: &[(u64, u64)]) -> Result<()> {
        let window = u64::from(EXTENT_BLOCKS_MAX);
        for (from, to) in gaps {
            let mut at = *from;
            // Where nothing is known behind it the file can end there: the end of a file is no zeros.
            let ends = *to >= inode.size.div_ceil(BLOCK) && !broken(Break::LostMarksUsedUp);
            let left = LOST_EXTENTS_MAX.saturating_sub(self.marked);
            let most = self.marked + if ends { left.div_ceil(2) } else { left };
            'parts: for (first, behind, birth) in self.since_known(ino, inode.fork, (*from, *to))? {
                at = first;
                while at < behind {
                    if self.marked >= most {
                        break 'parts;
                    }
                    let end = ((at / window + 1) * window).min(behind);
                    let blocks = (end - at) as u32;
                    let extent = lost_extent(birth, blocks);
                    self.set(Key::new(ino, Kind::Extent, inode.fork, at), extent.encode())?;
                    inode.blocks += u64::from(blocks);
                    self.marked += 1;
                    at = end;
                }
            }
            let range = Some((from * BLOCK, (at * BLOCK).min(inode.size)));
            self.losses.add_range(LossKind::RangeLost, About::Inode(ino), range, "reading it is an error");
            if at < *to {
                let range = Some((at * BLOCK, inode.size.min(to * BLOCK)));
                let text = if ends { "the file ends before it now" } else { "it reads as zeros" };
                let text = format!("too long to be marked: {text}");
                self.losses.add_range(LossKind::RangeLost, About::Inode(ino), range, text);
                if ends {
                    inode.size = at * BLOCK;
                }
            }
            self.missing.insert(ino.0);
        }
        Ok(())
    }

    /// Written extents that begin behind the end of their file go.
    fn cut_behind_end(&mut self, ino: Ino, inode: &mut Inode) -> Result<()> {
        let end = inode.size.div_ceil(BLOCK);
        let (from, to) =
            (Key::new(ino, Kind::Extent, inode.fork, end), Key::new(ino, Kind::Extent, inode.fork, u64::MAX));
        let mut cut = Vec::new();
        self.state.live.scan(&self.state.cache, &from, &to, &mut |k, v| {
            if let Ok(e) = Extent::decode(v) {
                if !e.is_unwritten() {
                    cut.push((*k, e.blocks));
                }
            }
            ControlFlow::Continue(())
        })?;
        for (key, blocks) in cut {
            inode.blocks = inode.blocks.saturating_sub(u64::from(blocks));
            self.drop_item(&key, "it begins behind the end of its file")?;
        }
        Ok(())
    }

    fn drop_extents(&mut self, ino: Ino, fork: u32) -> Result<()> {
        let (from, to) = (Key::new(ino, Kind::Extent, fork, 0), Key::new(ino, Kind::Extent, fork, u64::MAX));
        loop {
            let some = self.some(&from, &to, 256)?;
            for (key, _) in &some {
                self.drop_item(key, "its inode is no regular file")?;
            }
            if some.is_empty() {
                return Ok(());
            }
        }
    }
}

impl Group {
    fn add(&mut self, key: &Key, value: &[u8]) {
        match key.kind {
            Kind::Inode => self.inode = Inode::decode(value).ok(),
            Kind::Inline => self.inline = items::decode_bytes(value).ok().map(|b| b.len() as u64),
            Kind::Symlink => self.target = items::decode_bytes(value).ok().map(|b| b.len() as u64),
            Kind::Xattr => {
                if let Ok(p) = XattrPiece::decode(value) {
                    self.xattrs += u64::from(key.fork == 0);
                    self.has_acl |= p.name == ACCESS_ACL;
                    self.has_capability |= p.name == CAPABILITY;
                    self.has_any_acl |= p.name.starts_with(b"system.posix_acl_");
                }
            }
            Kind::Dirent => {
                self.entries += 1;
                let is_dir = Dirent::decode(value).is_ok_and(|d| d.file_type == 0o04);
                self.subdirectories += u64::from(is_dir);
            }
            Kind::Link => {
                self.links += 1;
                self.parent = self.parent.or(Dirent::decode(value).ok().map(|l| l.ino));
            }
            Kind::Extent => {
                let blocks = Extent::decode(value).map_or(0, |e| u64::from(e.blocks));
                if self.inode.is_some_and(|i| i.fork == key.fork) {
                    self.blocks += blocks;
                } else if self.forks.last() != Some(&key.fork) {
                    self.forks.push(key.fork);
                }
            }
            _ => {}
        }
    }
}
