//! The state of the volume: trees, counters, use of segments. It changes only
//! by applying records, so that replaying the same records on the same state
//! gives the same state.
//!
//! Invariants
//! 1. [`State::apply`] depends on the state and the record only: no clock, no
//!    knowledge of what is open.
//! 2. An item that leaves the live tree goes to history when a kept checkpoint
//!    sees it, and is freed otherwise; segment counters follow both ways.
//! 3. Every block counts once, whoever names it; see `sharing`.
//! 4. The births in the live tree are at most `open_cno`, the deaths in history
//!    too.
//! 5. No past state shows anything of what is to be forgotten; see `forget`.
//! 6. Of an inode that keeps less history a past state shows all of a moment or
//!    says that it does not know; see `keep`.

mod ahead;
mod content;
mod forget;
mod history;
mod keep;
mod known;
mod landmarks;
mod namespace;
mod past;
mod sharing;
mod shed;
mod versions;

pub use ahead::ITEMS_IN_LEAF_MIN;
pub use history::{HistoryTree, Looked};
pub use keep::KeptFor;
pub use known::{KnownPast, weight};
pub use landmarks::{LANDMARKS_MAX, Landmarks};
pub use namespace::xattr_pieces;
pub use sharing::backref_key;
pub use shed::{SHED_MAX, Sheds};
pub use versions::{Span, Version};

use crate::breaks::{Break, broken, collide};
use crate::index::{NodeCache, Tree, Value};
use crate::segments::Segments;
use crate::{Error, Result};
use nenrin_format::items::{self, Checkpoint, Extent, Inode, Keep, KeepRule};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use nenrin_format::{Addr, Cno, Ino, Invalid};
use sharing::Need;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Everything that records change.
pub struct State {
    /// Decoded nodes, and the way to those on disk.
    pub cache: Arc<NodeCache>,
    /// What is current.
    pub live: Tree,
    /// What concerns the volume.
    pub space: Tree,
    /// What is past, oldest tree first; the last one takes new items.
    pub history: Vec<HistoryTree>,
    /// Use of segments.
    pub segments: Segments,
    /// Kept checkpoints.
    pub kept: BTreeMap<Cno, Checkpoint>,
    /// Those of them that have names: see [`State::note_named`].
    pub snapshots: BTreeSet<Cno>,
    /// Versions of single files that are kept without a checkpoint.
    pub landmarks: Landmarks,
    /// Key of the hash of names.
    pub hash_key: [u8; 16],
    /// Next inode number to give.
    pub next_ino: Ino,
    /// Checkpoint number that items are born in.
    pub open_cno: Cno,
    /// Newest checkpoint ever made.
    pub last_cno: Cno,
    /// Next number for a history tree.
    pub next_tree: u32,
    /// Inodes in the live tree.
    pub inodes: u64,
    /// Blocks of content in the live tree.
    pub live_blocks: u64,
    /// Blocks of content that only history needs.
    pub history_blocks: u64,
    /// What snapshots keep of history, as far as it is known.
    pub past: KnownPast,
    /// Blocks that extents of the live tree name, shared ones once for each owner.
    pub named_blocks: u64,
    /// Blocks that extents of the live tree reserve, with nothing written to them yet.
    pub promised_blocks: u64,
    /// The retention rule as text; empty for the default.
    pub retention: Vec<u8>,
    /// Inodes to be forgotten: what the space tree has of them.
    pub forgetting: BTreeSet<Ino>,
    /// History of single inodes that was let go.
    pub shed: Sheds,
    /// Records applied since it was read.
    pub applied: u64,
    /// Something that users see is in no checkpoint yet, or may be: what is committed behind the newest one.
    pub uncut: bool,
    /// Back references that were looked at since.
    pub owners_asked: Cell<u64>,
    /// Whether there may be any back references, once somebody has asked.
    pub(super) shares: Cell<Option<bool>>,
}

/// An error for an item whose bytes cannot be what they should.
pub fn bad_item(key: &Key, why: Invalid) -> Error {
    Error::Corrupt(format!("index item {:?} of inode {}: {why}", key.kind, key.ino))
}

impl State {
    /// A record's effect. `base` is the address of the first payload block of
    /// the partial segment that carries it.
    ///
    /// # Errors
    /// Failing to read index nodes, or a record that contradicts the state:
    /// both mean damage.
    pub fn apply(&mut self, record: &Record<'_>, base: Addr) -> Result<()> {
        self.applied += 1;
        self.note_uncut(record);
        match record {
            Record::Create { parent, ino, mode, uid, gid, rdev, time, name, target } => {
                self.create(*parent, *ino, [*mode, *uid, *gid, *rdev], *time, name, target)
            }
            Record::Link { parent, ino, time, name } => self.link(*parent, *ino, *time, name),
            Record::Unlink { parent, drop, time, name } => self.unlink(*parent, name, *drop, *time),
            Record::Rename { from, to, flags, drop, time, old, new } => {
                self.rename((*from, old), (*to, new), *flags, *drop, *time)
            }
            Record::SetAttr { ino, mask, mode, uid, gid, atime, mtime, ctime } => {
                self.set_attr(*ino, *mask, [*mode, *uid, *gid], [*atime, *mtime, *ctime])
            }
            Record::SetXattr { ino, ctime, mode, name, value } => {
                self.set_xattr(*ino, name, Some(value), *mode, *ctime)
            }
            Record::RemoveXattr { ino, ctime, name } => self.set_xattr(*ino, name, None, u32::MAX, *ctime),
            Record::Content { ino, size, mtime, ctime, editor_uid, ops } => {
                self.content(*ino, *size, *mtime, *ctime, *editor_uid, ops, base)
            }
            Record::Release { ino } => self.release_orphan(*ino),
            Record::ReapStep { ino, fork, max } => self.reap_step(*ino, *fork, *max),
            Record::Checkpoint { cno, wall, mounted_nanos, flags, name } => {
                let (name, named_at) = (name.to_vec(), if name.is_empty() { Cno(0) } else { *cno });
                let c = Checkpoint { wall: *wall, mounted_nanos: *mounted_nanos, flags: *flags, name, named_at };
                self.cut(*cno, c)
            }
            Record::NameCheckpoint { cno, name } => self.name_checkpoint(*cno, name),
            Record::DropCheckpoints { cnos } => self.drop_checkpoints(cnos),
            Record::Landmark { cno, number, landmark } => self.add_landmark(*cno, *number, landmark),
            Record::DropLandmarks { which } => self.drop_landmarks(which),
            Record::Sweep { tree, from, max } => self.sweep(*tree, from, *max).map(drop),
            Record::Seal { tree } => {
                self.seal_history(*tree);
                Ok(())
            }
            Record::Merge { from, into, behind, max } => self.merge(*from, *into, behind, *max),
            Record::Move { tree, key, old, new } => self.relocate(*tree, key, *old, new),
            Record::OpenSegment { .. } | Record::Mark => Ok(()),
            Record::Retention { value } => {
                self.retention = value.to_vec();
                Ok(())
            }
            Record::Share { ino, from, blocks } => self.share(*ino, *from, *blocks),
            Record::SharePast { ino, cno, from, blocks } => self.share_past(*ino, *cno, *from, *blocks),
            Record::Forget { time, inos } => self.forget(*time, inos),
            Record::ForgetStep { tree, from, max } => self.forget_step(*tree, from, *max).map(drop),
            Record::ForgetEnd { max } => self.end_forget(*max),
            Record::Shed { ino, upto, wall, blocks } => self.shed(*ino, *upto, *wall, *blocks),
        }
    }

    /// Whether a checkpoint of what there is by now is worth cutting.
    fn note_uncut(&mut self, record: &Record<'_>) {
        match record {
            Record::Checkpoint { .. } => self.uncut = false,
            // A truncation that was held back while a checkpoint was cut is in none.
            Record::Content { .. } if broken(Break::HeldUncut) => {}
            record => self.uncut |= shows(record),
        }
    }

    /// Brings the segment items of the space tree up to date.
    pub fn store_segments(&mut self) -> Result<()> {
        for (no, item) in self.segments.take_changed() {
            let key = segment_key(no.0);
            match item {
                Some(item) => drop(self.space.insert(&self.cache, key, item.encode().into())?),
                None => drop(self.space.remove(&self.cache, &key)?),
            }
        }
        Ok(())
    }

    /// Whether some node of this very state could not be read, or was damaged; whoever read it.
    pub fn has_met_damage(&self) -> bool {
        for suspect in self.cache.take_suspects() {
            let history = || self.history.iter().map(|t| &t.tree);
            let tree = [&self.live, &self.space].into_iter().chain(history()).find(|t| t.id() == suspect.tree);
            let now = tree.map_or(Ok(None), |t| t.version_at(&self.cache, suspect.level, &suspect.key));
            if now.map_or(true, |ptr| ptr == Some(suspect.ptr)) {
                self.cache.meets_damage();
            }
        }
        self.cache.met_damage()
    }

    /// The item at `key` of the live tree.
    pub fn get(&self, key: &Key) -> Result<Option<Value>> {
        self.live.get(&self.cache, key)
    }

    /// The inode as the live tree has it.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        let key = Key::new(ino, Kind::Inode, 0, 0);
        let found = self.live.look(&self.cache, &key, |v| Inode::decode(v))?;
        found.transpose().map_err(|why| bad_item(&key, why))
    }

    /// The inode, which must be there.
    pub fn need_inode(&self, ino: Ino) -> Result<Inode> {
        self.inode(ino)?.ok_or_else(|| Error::Corrupt(format!("inode {ino} is missing")))
    }

    /// Replaces the inode item.
    pub fn put_inode(&mut self, ino: Ino, mut inode: Inode) -> Result<()> {
        inode.birth = self.open_cno;
        self.put(Key::new(ino, Kind::Inode, 0, 0), inode.value())
    }

    /// Inserts or replaces an item of the live tree that is no extent.
    pub fn put(&mut self, key: Key, value: impl Into<Value>) -> Result<()> {
        let old = self.live.insert(&self.cache, key, value.into())?;
        match old {
            Some(old) => self.retire(&key, old, self.open_cno, KeepRule::default()),
            None => Ok(()),
        }
    }

    /// Removes an item of the live tree; whether it was there.
    pub fn remove(&mut self, key: &Key, rule: KeepRule) -> Result<bool> {
        self.remove_as_of(key, self.open_cno, rule)
    }

    /// Removes an item of the live tree that was gone from `death` on.
    pub fn remove_as_of(&mut self, key: &Key, death: Cno, rule: KeepRule) -> Result<bool> {
        match self.live.remove(&self.cache, key)? {
            Some(old) => self.retire(key, old, death, rule).map(|()| true),
            None => Ok(false),
        }
    }

    /// An item has left the live tree: history, or nothing. `rule` says how much history is kept of
    /// what it belongs to; an inode item says that itself.
    pub fn retire(&mut self, key: &Key, old: Value, death: Cno, rule: KeepRule) -> Result<()> {
        let extent = (key.kind == Kind::Extent).then(|| Extent::decode(&old)).transpose();
        let extent = extent.map_err(|why| bad_item(key, why))?;
        self.retire_as(key, old, extent.as_ref(), death, rule)
    }

    /// [`State::retire`] of an item that is this extent, if it is one.
    fn retire_as(&mut self, key: &Key, old: Value, extent: Option<&Extent>, death: Cno, rule: KeepRule) -> Result<()> {
        let (birth, kept_for) = self.burial_as(key, &old, extent, death, rule)?;
        let visible = kept_for.is_some();
        if let Some(e) = extent {
            if e.is_shared() {
                self.remove_backref(key, e)?;
            }
            let before = self.history_blocks;
            self.change_need(e, Need::Live, if visible { Need::History } else { Need::None })?;
            let buried = self.history_blocks.saturating_sub(before);
            self.past.buried = self.past.buried.saturating_add(buried);
            // Of shared blocks other items of history may be the last owners: rather too much.
            let unknown = e.is_shared() && self.has_snapshots();
            let named = self.is_named(birth, death);
            if buried > 0 && (unknown || named) {
                self.past.bury(buried, !named);
            }
            if e.is_shared() && visible {
                self.add_backref(&key.died(death.0), e)?;
            }
        }
        if visible && self.is_named(birth, death) {
            self.past.named_bytes = self.past.named_bytes.saturating_add(weight(key, &old));
        }
        match kept_for {
            None => Ok(()),
            Some(Keep::Full) => self.bury(key.died(death.0), old),
            Some(keep) => {
                let mut marked = old.to_vec();
                items::mark_keep(key.kind, &mut marked, keep);
                self.bury(key.died(death.0), marked.into())
            }
        }
    }

    /// Of an item that leaves the live tree: its birth, for which checkpoints it goes to history, and the extent where it is one.
    fn burial(
        &self,
        key: &Key,
        old: &Value,
        death: Cno,
        rule: KeepRule,
    ) -> Result<(Cno, Option<Keep>, Option<Extent>)> {
        let extent = (key.kind == Kind::Extent).then(|| Extent::decode(old)).transpose();
        let extent = extent.map_err(|why| bad_item(key, why))?;
        let (birth, kept_for) = self.burial_as(key, old, extent.as_ref(), death, rule)?;
        Ok((birth, kept_for, extent))
    }

    /// The same of an item that is this extent, if it is one.
    fn burial_as(
        &self,
        key: &Key,
        old: &Value,
        extent: Option<&Extent>,
        death: Cno,
        rule: KeepRule,
    ) -> Result<(Cno, Option<Keep>)> {
        let bad = |why| bad_item(key, why);
        let birth = items::birth(old).map_err(bad)?;
        let kept_for = match self.forgetting.contains(&Ino(key.ino)) {
            true => None,
            false => self.kept_for(key, old, (birth, death), rule).map_err(bad)?,
        };
        // What was only reserved read as zeros, and so does nothing at all. What was lost did not.
        let reads = |e: &Extent| !e.is_unwritten() || e.is_lost() && !broken(Break::LostIsReserved);
        Ok((birth, kept_for.filter(|_| extent.is_none_or(reads))))
    }

    /// Whether a kept checkpoint, or a landmark, sees the item at `key` that lived in `[birth, death)`.
    pub fn is_visible(&self, key: &Key, birth: Cno, death: Cno) -> bool {
        if broken(Break::HistoryFreed) || birth >= death {
            return false;
        }
        self.kept.range(birth..death).next().is_some()
            || !broken(Break::LandmarkUnseen) && self.landmarks.see(key, birth, death)
    }

    /// First item with `key.ino` and `key.kind` in the slots of a hash for which `matches` holds.
    pub fn find_slot(&self, key: Key, matches: impl Fn(&[u8]) -> bool) -> Result<Option<(Key, Value)>> {
        let last = Key { off: key.off | SLOT_MASK, ..key };
        let mut found = None;
        self.live.scan(&self.cache, &key, &last, &mut |k, v| {
            if k.fork == key.fork && matches(v) {
                found = Some((*k, v.clone()));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// First unused slot of a hash.
    pub fn free_slot(&self, key: Key) -> Result<Key> {
        let mut used = [false; SLOT_MASK as usize + 1];
        let last = Key { off: key.off | SLOT_MASK, ..key };
        self.live.scan(&self.cache, &key, &last, &mut |k, _| {
            used[(k.off & SLOT_MASK) as usize] = true;
            ControlFlow::Continue(())
        })?;
        match used.iter().position(|u| !u) {
            Some(slot) => Ok(Key { off: key.off | slot as u64, ..key }),
            None => Err(Error::NoSpace),
        }
    }

    /// The hash of a name, with room for slots in the low bits; never one of
    /// the first sixteen, which stand for "." and "..".
    pub fn name_hash(&self, salt: u64, name: &[u8]) -> u64 {
        use std::hash::Hasher;
        let mut h = siphasher::sip::SipHasher13::new_with_key(&self.hash_key);
        h.write_u64(salt);
        h.write(name);
        let v = collide(&self.hash_key, h.finish()) & 0x7fff_ffff_ffff_ffff & !SLOT_MASK;
        v.max(SLOT_MASK + 1)
    }

    /// Key of the slot group of a directory entry.
    pub fn dirent_key(&self, parent: Ino, name: &[u8]) -> Key {
        Key::new(parent, Kind::Dirent, 0, self.name_hash(0, name))
    }

    /// Key of the slot group of a link item.
    pub fn link_key(&self, ino: Ino, parent: Ino, name: &[u8]) -> Key {
        Key::new(ino, Kind::Link, 0, self.name_hash(parent.0, name))
    }

    /// Orphans, in order.
    pub fn orphans(&self) -> Result<Vec<Ino>> {
        let mut out = Vec::new();
        self.scan_reaps(Kind::Orphan, &mut |k| {
            out.push(Ino(k.off));
            ControlFlow::Continue(())
        })?;
        Ok(out)
    }

    /// What comes first of what is to be reaped, but for what rests.
    pub fn next_reap(&self, rests: &dyn Fn(&Key) -> bool) -> Result<Option<Key>> {
        let mut found = None;
        self.scan_reaps(Kind::Reap, &mut |k| match rests(k) {
            true => ControlFlow::Continue(()),
            false => {
                found = Some(*k);
                ControlFlow::Break(())
            }
        })?;
        Ok(found)
    }

    fn scan_reaps(&self, kind: Kind, each: &mut dyn FnMut(&Key) -> ControlFlow<()>) -> Result<()> {
        let from = Key::space(kind, 0, 0);
        let to = Key { fork: u32::MAX, off: u64::MAX, death: u64::MAX, ..from };
        self.space.scan(&self.cache, &from, &to, &mut |k, _| each(k))
    }
}

/// Whether a record changes what users see: then a checkpoint of it is worth cutting.
const fn shows(record: &Record<'_>) -> bool {
    !matches!(
        record,
        Record::Move { .. }
            | Record::Sweep { .. }
            | Record::Seal { .. }
            | Record::Merge { .. }
            | Record::ReapStep { .. }
            | Record::Release { .. }
            | Record::DropCheckpoints { .. }
            | Record::Landmark { .. }
            | Record::DropLandmarks { .. }
            | Record::NameCheckpoint { .. }
            | Record::Retention { .. }
            | Record::Forget { .. }
            | Record::ForgetStep { .. }
            | Record::ForgetEnd { .. }
            | Record::Shed { .. }
            | Record::OpenSegment { .. }
            | Record::Mark
    )
}

/// Slots of one hash.
pub const SLOT_MASK: u64 = 15;

/// Key of an orphan in the space tree.
pub const fn orphan_key(ino: Ino) -> Key {
    Key::space(Kind::Orphan, 0, ino.0)
}

/// Where the work is that an inode leaves besides a fork 0 that is to be reaped already. No fork that is to be reaped has
/// this number: none comes after it.
pub const REST_FORK: u32 = u32::MAX;

/// Key of reap work in the space tree: of one fork, or of an inode as of fork 0 or [`REST_FORK`].
pub const fn reap_key(ino: Ino, fork: u32) -> Key {
    Key::space(Kind::Reap, fork, ino.0)
}

/// Whether an item of the space tree may have this key.
pub const fn is_space_key(key: &Key) -> bool {
    let forks = matches!(key.kind, Kind::Backref | Kind::Reap | Kind::Landmark | Kind::Shed);
    let inode = matches!(key.kind, Kind::Backref);
    key.kind as u8 >= Kind::Segment as u8 && (key.ino == 0 || inode) && (key.fork == 0 || forks) && key.death == 0
}

/// Key of a segment in the space tree.
pub const fn segment_key(segment: u64) -> Key {
    Key::space(Kind::Segment, 0, segment)
}

/// Key of a checkpoint in the space tree.
pub const fn checkpoint_key(cno: Cno) -> Key {
    Key::space(Kind::Checkpoint, 0, cno.0)
}

/// Key of an inode to be forgotten in the space tree.
pub const fn forget_key(ino: Ino) -> Key {
    Key::space(Kind::Forget, 0, ino.0)
}

/// Which tree an id names.
pub fn is_history(tree: TreeId) -> bool {
    tree >= TreeId::HISTORY
}
