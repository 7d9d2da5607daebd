//! Records of the namespace stream: names, inodes, attributes.

use super::{REST_FORK, State, orphan_key, reap_key};
use crate::breaks::{Break, broken};
use crate::index::Value;
use crate::{Error, FileKind, Result};
use nenrin_format::items::{
    self, Dirent, HISTORY_XATTR, INODE_ACL, INODE_CAPS, INODE_XATTR, Inode, Keep, Reap, XATTR_PIECE_BYTES, XattrPiece,
};
use nenrin_format::key::{Key, Kind};
use nenrin_format::records::{RENAME_EXCHANGE, attr_mask};
use nenrin_format::{COUNTER_MAX, Cno, Ino, Invalid, Time, XATTR_BYTES_MAX};
use std::ops::ControlFlow;

/// Items that go at once with their inode; more are left to the reaper.
pub(super) const ITEMS_AT_ONCE: usize = 8;

impl State {
    /// The entry of `name` in a directory: its key, the inode it names, and the file type.
    pub fn dirent(&self, parent: Ino, name: &[u8]) -> Result<Option<(Key, Ino, u8)>> {
        let group = self.dirent_key(parent, name);
        let found = self.find_slot(group, |v| Dirent::decode(v).is_ok_and(|d| d.name == name))?;
        Ok(match found {
            Some((key, v)) => {
                let d = Dirent::decode(&v).map_err(|why| super::bad_item(&key, why))?;
                Some((key, d.ino, d.file_type))
            }
            None => None,
        })
    }

    fn add_name(&mut self, parent: Ino, ino: Ino, file_type: u8, name: &[u8]) -> Result<()> {
        let birth = self.open_cno;
        let key = self.free_slot(self.dirent_key(parent, name))?;
        self.put(key, Dirent { birth, ino, file_type, name }.encode())?;
        let key = self.free_slot(self.link_key(ino, parent, name))?;
        self.put(key, Dirent { birth, ino: parent, file_type, name }.encode())
    }

    fn remove_name(&mut self, parent: Ino, ino: Ino, key: &Key, name: &[u8]) -> Result<()> {
        let rule = self.rule_of_name(parent, ino)?;
        self.remove(key, rule)?;
        let group = self.link_key(ino, parent, name);
        let link = self.find_slot(group, |v| Dirent::decode(v).is_ok_and(|d| d.name == name && d.ino == parent))?;
        match link {
            Some((key, _)) => self.remove(&key, rule).map(drop),
            None => Err(Error::Corrupt(format!("inode {ino} has no link item for a name it bears"))),
        }
    }

    fn touch_dir(&mut self, dir: Ino, time: Time, entries: i64, subdirs: i64) -> Result<()> {
        let mut inode = self.need_inode(dir)?;
        inode.mtime = time;
        inode.ctime = time;
        inode.entries = inode.entries.saturating_add_signed(entries);
        inode.nlink = inode.nlink.saturating_add_signed(subdirs as i32);
        self.put_inode(dir, inode)
    }

    pub(super) fn create(
        &mut self,
        parent: Ino,
        ino: Ino,
        [mode, uid, gid, rdev]: [u32; 4],
        time: Time,
        name: &[u8],
        target: &[u8],
    ) -> Result<()> {
        let kind = FileKind::from_mode(mode);
        let is_dir = kind == FileKind::Directory;
        let mut inode = Inode {
            mode,
            uid,
            gid,
            rdev,
            nlink: if parent.0 == 0 { 0 } else { 1 + u32::from(is_dir) },
            size: target.len() as u64,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            editor_uid: uid,
            parent: if is_dir { parent } else { Ino(0) },
            ..Inode::default()
        };
        if self.inode(ino)?.is_some() {
            return Err(Error::Corrupt(format!("inode {ino} is made twice")));
        }
        if ino.0 >= COUNTER_MAX && !broken(Break::CountersBelieved) {
            return Err(Error::Corrupt(format!("inode {ino} is made, and no root can state such a number")));
        }
        if parent.0 != 0 {
            // All history is what an inode has for which nothing is said.
            let above = self.need_inode(parent)?.keep_rule().keep;
            inode.set_history((above != Keep::Full).then_some(above), above != Keep::Full, self.open_cno);
        }
        self.put_inode(ino, inode)?;
        self.inodes = self.inodes.saturating_add(1);
        self.next_ino = self.next_ino.max(ino.next());
        if !target.is_empty() {
            self.put(Key::new(ino, Kind::Symlink, 0, 0), items::encode_bytes(self.open_cno, target))?;
        }
        if parent.0 == 0 {
            let reap = Reap { death: self.open_cno, fork: 0, whole: true, rule: inode.keep_rule() };
            self.space.insert(&self.cache, orphan_key(ino), reap.encode().into())?;
            return Ok(());
        }
        self.add_name(parent, ino, (mode >> 12) as u8, name)?;
        self.touch_dir(parent, time, 1, i64::from(is_dir))
    }

    pub(super) fn link(&mut self, parent: Ino, ino: Ino, time: Time, name: &[u8]) -> Result<()> {
        let mut inode = self.need_inode(ino)?;
        if inode.nlink == 0 {
            self.space.remove(&self.cache, &orphan_key(ino))?;
        }
        inode.nlink = inode.nlink.saturating_add(1);
        inode.ctime = time;
        self.put_inode(ino, inode)?;
        self.add_name(parent, ino, (inode.mode >> 12) as u8, name)?;
        self.touch_dir(parent, time, 1, 0)
    }

    /// One name less for an inode whose name is gone already.
    fn drop_link(&mut self, ino: Ino, drop_inode: bool, time: Time) -> Result<()> {
        let mut inode = self.need_inode(ino)?;
        let is_dir = FileKind::from_mode(inode.mode) == FileKind::Directory;
        inode.nlink = if is_dir { 0 } else { inode.nlink.saturating_sub(1) };
        inode.ctime = time;
        if inode.nlink > 0 {
            return self.put_inode(ino, inode);
        }
        if drop_inode {
            return self.drop_inode(ino, self.open_cno);
        }
        self.put_inode(ino, inode)?;
        let reap = Reap { death: self.open_cno, fork: 0, whole: true, rule: inode.keep_rule() };
        self.space.insert(&self.cache, orphan_key(ino), reap.encode().into()).map(drop)
    }

    /// An inode without names goes: small ones at once, else by the reaper. Older forks that the reaper has not come to
    /// are left to it as they are: they died before.
    fn drop_inode(&mut self, ino: Ino, death: Cno) -> Result<()> {
        let inode = self.need_inode(ino)?;
        self.emptied_ahead(ino, &inode)?;
        let (fork, rule) = (if broken(Break::OldForksDieLate) { 0 } else { inode.fork }, inode.keep_rule());
        self.remove_as_of(&Key::new(ino, Kind::Inode, 0, 0), death, rule)?;
        self.inodes = self.inodes.saturating_sub(1);
        let reap = Reap { death, fork, whole: true, rule };
        if self.reap(ino, &reap, ITEMS_AT_ONCE)? {
            return Ok(());
        }
        let is_taken = fork > 0 && self.space.get(&self.cache, &reap_key(ino, 0))?.is_some();
        let key = reap_key(ino, if is_taken { REST_FORK } else { 0 });
        self.space.insert(&self.cache, key, reap.encode().into()).map(drop)
    }

    /// Removes up to `max` items of a dead inode, or of one fork; whether that was all.
    fn reap(&mut self, ino: Ino, reap: &Reap, max: usize) -> Result<bool> {
        let (items, read) = self.dying(ino, reap, max);
        read?;
        for (k, _) in items.iter().take(max) {
            self.remove_as_of(k, reap.death, reap.rule)?;
        }
        Ok(items.len() <= max)
    }

    /// The first items of a dead inode, or of one fork, as far as they can be read: one more than `max`, unless that is all.
    pub(super) fn dying(&self, ino: Ino, reap: &Reap, max: usize) -> (Vec<(Key, Value)>, Result<()>) {
        let mut items = Vec::new();
        for (from, to) in reaped_ranges(ino, reap) {
            if items.len() > max {
                break;
            }
            let read = self.live.scan(&self.cache, &from, &to, &mut |k, v| {
                items.push((*k, v.clone()));
                if items.len() <= max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            if read.is_err() {
                return (items, read);
            }
        }
        (items, Ok(()))
    }

    pub(super) fn reap_step(&mut self, ino: Ino, fork: u32, max: u32) -> Result<()> {
        let key = reap_key(ino, fork);
        // A log may have more steps than are needed here: once they took all forks of an inode that is removed.
        let Some(v) = self.space.get(&self.cache, &key)? else { return Ok(()) };
        let reap = Reap::decode(&v).map_err(|why| super::bad_item(&key, why))?;
        // Where that cannot be read it was when the step was recorded.
        if let Ok(Some(why)) = self.reaped_in_use(ino, &reap) {
            return Err(why);
        }
        if self.reap(ino, &reap, max as usize)? {
            self.space.remove(&self.cache, &key)?;
        }
        Ok(())
    }

    /// Whether a directory has names in it, whatever its inode says.
    pub fn has_entries(&self, dir: Ino) -> Result<bool> {
        let (from, to) = (Key::new(dir, Kind::Dirent, 0, 0), Key::new(dir, Kind::Dirent, u32::MAX, u64::MAX));
        let mut any = false;
        self.live.scan(&self.cache, &from, &to, &mut |_, _| {
            any = true;
            ControlFlow::Break(())
        })?;
        Ok(any)
    }

    /// That nothing goes with an inode that has names in it: these would be of nothing, and what they name without a name.
    ///
    /// # Errors
    /// There are some, or whether there are cannot be read.
    pub(super) fn emptied_ahead(&self, ino: Ino, inode: &Inode) -> Result<()> {
        let is_dir = FileKind::from_mode(inode.mode) == FileKind::Directory;
        if is_dir && !broken(Break::ChildrenGo) && self.has_entries(ino)? {
            return Err(Error::Corrupt(format!("directory {ino} is to go, and has names in it")));
        }
        Ok(())
    }

    /// Why something listed for the reaper is in use, whatever a damaged volume says.
    fn reaped_in_use(&self, ino: Ino, reap: &Reap) -> Result<Option<Error>> {
        let in_use = |i: Inode| (reap.whole || i.fork <= reap.fork) && !broken(Break::LivingReaped);
        let text = || Error::Corrupt(format!("inode {ino} is listed for removal, and it is in use"));
        Ok(self.inode(ino)?.is_some_and(in_use).then(text))
    }

    /// That nothing is reaped which is in use.
    ///
    /// # Errors
    /// It is, or whether it is cannot be read.
    pub(super) fn reaped_ahead(&self, ino: Ino, reap: &Reap) -> Result<()> {
        self.reaped_in_use(ino, reap)?.map_or(Ok(()), Err)
    }

    /// What is to be reaped of an inode that was removed, besides forks that were to be reaped before.
    pub fn reap_of_inode(&self, ino: Ino) -> Result<Option<Reap>> {
        for key in [reap_key(ino, 0), reap_key(ino, REST_FORK)] {
            let found = self.space.get(&self.cache, &key)?.and_then(|v| Reap::decode(&v).ok());
            if let Some(reap) = found.filter(|r| r.whole) {
                return Ok(Some(reap));
            }
        }
        Ok(None)
    }

    /// Whether the extents of this fork, and only these, are to be reaped.
    pub fn is_fork_reaped(&self, ino: Ino, fork: u32) -> Result<bool> {
        let found = self.space.get(&self.cache, &reap_key(ino, fork))?;
        Ok(found.and_then(|v| Reap::decode(&v).ok()).is_some_and(|r| !r.whole && r.fork == fork))
    }

    pub(super) fn release_orphan(&mut self, ino: Ino) -> Result<()> {
        let key = orphan_key(ino);
        let Some(v) = self.space.remove(&self.cache, &key)? else {
            return Err(Error::Corrupt(format!("inode {ino} is no orphan")));
        };
        let reap = Reap::decode(&v).map_err(|why| super::bad_item(&key, why))?;
        if self.need_inode(ino)?.nlink > 0 {
            return Err(Error::Corrupt(format!("inode {ino} is listed as an orphan, and has names")));
        }
        self.drop_inode(ino, reap.death)
    }

    pub(super) fn unlink(&mut self, parent: Ino, name: &[u8], drop_inode: bool, time: Time) -> Result<()> {
        let Some((key, ino, file_type)) = self.dirent(parent, name)? else {
            return Err(Error::Corrupt(format!("a name removed from directory {parent} is not there")));
        };
        self.remove_name(parent, ino, &key, name)?;
        let is_dir = FileKind::from_mode(u32::from(file_type) << 12) == FileKind::Directory;
        self.touch_dir(parent, time, -1, -i64::from(is_dir))?;
        self.drop_link(ino, drop_inode, time)
    }

    pub(super) fn rename(
        &mut self,
        (from, old): (Ino, &[u8]),
        (to, new): (Ino, &[u8]),
        flags: u8,
        drop_inode: bool,
        time: Time,
    ) -> Result<()> {
        let missing = || Error::Corrupt("a renamed name is not there".into());
        let (old_key, ino, file_type) = self.dirent(from, old)?.ok_or_else(missing)?;
        let target = self.dirent(to, new)?;
        let is_dir = |t: u8| FileKind::from_mode(u32::from(t) << 12) == FileKind::Directory;
        let moved_dir = i64::from(is_dir(file_type));
        self.remove_name(from, ino, &old_key, old)?;
        if let Some((new_key, other, other_type)) = target {
            self.remove_name(to, other, &new_key, new)?;
            let other_dir = i64::from(is_dir(other_type));
            if flags & RENAME_EXCHANGE != 0 {
                self.add_name(from, other, other_type, old)?;
                self.renamed(other, from, time)?;
                self.touch_dir(to, time, -1, -other_dir)?;
                self.touch_dir(from, time, 1, other_dir)?;
            } else {
                self.touch_dir(to, time, -1, -other_dir)?;
                self.drop_link(other, drop_inode, time)?;
            }
        }
        self.add_name(to, ino, file_type, new)?;
        self.renamed(ino, to, time)?;
        self.touch_dir(from, time, -1, -moved_dir)?;
        self.touch_dir(to, time, 1, moved_dir)
    }

    fn renamed(&mut self, ino: Ino, parent: Ino, time: Time) -> Result<()> {
        let mut inode = self.need_inode(ino)?;
        inode.ctime = time;
        if FileKind::from_mode(inode.mode) == FileKind::Directory {
            inode.parent = parent;
        }
        self.put_inode(ino, inode)
    }

    pub(super) fn set_attr(&mut self, ino: Ino, mask: u32, [mode, uid, gid]: [u32; 3], times: [Time; 3]) -> Result<()> {
        let mut inode = self.need_inode(ino)?;
        if mask & attr_mask::MODE != 0 {
            inode.mode = inode.mode & 0o170_000 | mode & 0o7777;
        }
        if mask & attr_mask::UID != 0 {
            inode.uid = uid;
        }
        if mask & attr_mask::GID != 0 {
            inode.gid = gid;
        }
        if mask & attr_mask::ATIME != 0 {
            inode.atime = times[0];
        }
        if mask & attr_mask::MTIME != 0 {
            inode.mtime = times[1];
        }
        if mask & attr_mask::CTIME != 0 {
            inode.ctime = times[2];
        }
        self.put_inode(ino, inode)
    }

    /// Key of the slot group of an extended attribute.
    pub fn xattr_key(&self, ino: Ino, name: &[u8]) -> Key {
        Key::new(ino, Kind::Xattr, 0, self.name_hash(0, name))
    }

    pub(super) fn set_xattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        mode: u32,
        ctime: Time,
    ) -> Result<()> {
        if name == HISTORY_XATTR {
            return self.set_history(ino, value, ctime);
        }
        let rule = self.need_inode(ino)?.keep_rule();
        let group = self.xattr_key(ino, name);
        let found = self.find_slot(group, |v| XattrPiece::decode(v).is_ok_and(|p| p.name == name))?;
        let key = match found {
            Some((key, v)) => {
                let piece = XattrPiece::decode(&v).map_err(|why| super::bad_item(&key, why))?;
                if piece.value_bytes as usize > XATTR_BYTES_MAX {
                    return Err(super::bad_item(&key, Invalid::Bounds));
                }
                let pieces = xattr_pieces(piece.value_bytes as usize);
                for p in 0..pieces {
                    self.remove(&Key { fork: p, ..key }, rule)?;
                }
                key
            }
            None => self.free_slot(group)?,
        };
        let mut inode = self.need_inode(ino)?;
        if let Some(value) = value {
            for p in 0..xattr_pieces(value.len()) {
                let start = p as usize * XATTR_PIECE_BYTES;
                let bytes = &value[start..value.len().min(start + XATTR_PIECE_BYTES)];
                let piece = XattrPiece {
                    birth: self.open_cno,
                    value_bytes: value.len() as u32,
                    name: if p == 0 { name } else { b"" },
                    bytes,
                };
                self.put(Key { fork: p, ..key }, piece.encode())?;
            }
        }
        let bit = match name {
            b"system.posix_acl_access" | b"system.posix_acl_default" => INODE_ACL,
            b"security.capability" => INODE_CAPS,
            _ => 0,
        };
        inode.flags = if value.is_some() { inode.flags | bit | INODE_XATTR } else { inode.flags & !(bit & INODE_CAPS) };
        if mode != u32::MAX {
            inode.mode = inode.mode & 0o170_000 | mode & 0o7777;
        }
        inode.ctime = ctime;
        self.put_inode(ino, inode)
    }
}

impl State {
    /// How much history of an inode is kept from here on; `None`: nothing is said.
    fn set_history(&mut self, ino: Ino, value: Option<&[u8]>, ctime: Time) -> Result<()> {
        let history = match value.map(Keep::parse) {
            Some(None) => {
                let text = format!("a record says of inode {ino} that an impossible part of its history is kept");
                return Err(Error::Corrupt(text));
            }
            Some(keep) => keep,
            None => None,
        };
        let mut inode = self.need_inode(ino)?;
        inode.set_history(history, false, self.open_cno);
        inode.ctime = ctime;
        self.put_inode(ino, inode)
    }
}

/// Keys of the live items that are to be reaped: first and last.
fn reaped_ranges(ino: Ino, reap: &Reap) -> Vec<(Key, Key)> {
    let extents = |last: u32| (Key::new(ino, Kind::Extent, reap.fork, 0), Key::new(ino, Kind::Extent, last, u64::MAX));
    if !reap.whole {
        return vec![extents(reap.fork)];
    }
    let others = (Key::new(ino, Kind::Inode, 0, 0), Key::new(ino, Kind::Link, u32::MAX, u64::MAX));
    vec![others, extents(u32::MAX)]
}

/// Items that a value of this length takes.
pub fn xattr_pieces(value_bytes: usize) -> u32 {
    value_bytes.div_ceil(XATTR_PIECE_BYTES).max(1) as u32
}
