//! What of the index a record needs, read before the record is logged: an error in the middle of applying one ends all writing,
//! while a node that is lost should keep nothing from going but what it held.
//!
//! That is so for names, attributes, and what removes, moves and sweeps. Content is committed later than it is accepted, and who
//! writes it needs no walk down the index: that is looked at before only once a node could not be read. The first to meet a lost leaf
//! may so be a commit, which ends all writing, and its records are not in the log (decision 0025).
//!
//! Invariants
//! 1. What is read here is all that [`State::apply`] reads of the record, whatever that removes first. So nothing may be changed
//!    between the two.

use super::content::extent;
use super::history::Looked;
use super::namespace::{ITEMS_AT_ONCE, xattr_pieces};
use super::{REST_FORK, State, bad_item, is_history, orphan_key, reap_key};
use crate::breaks::{Break, broken};
use crate::index::{Tree, Value};
use crate::{Error, Result, Xattrs};
use nenrin_format::items::{Dirent, Extent, HISTORY_XATTR, KeepRule, Reap, XattrPiece};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::{Addr, Cno, Ino, NODE_BYTES, XATTR_BYTES_MAX};
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

/// Leaves of back references that one step may meet, the first item apart: applying it asks their owners, up to one that is live, while
/// others wait.
const LEAVES_MAX: u64 = 1024;
/// Bytes in a leaf that was split and not merged again.
const LEAF_BYTES_MIN: u64 = NODE_BYTES as u64 / 2;
/// Items that share a leaf when they are next to each other: large ones in leaves hardly filled.
pub const ITEMS_IN_LEAF_MIN: u64 = 8;

/// What an item that goes has to do with back references.
#[derive(Default)]
struct BackRefs {
    /// So many leaves are looked at for other owners.
    asked: u64,
    /// Those that come or go.
    changed: Vec<Key>,
}

/// What the items of one step have to do with the index.
struct Step {
    items: u64,
    asked: u64,
    /// Leaves that these items lie in and that become dirty, and where the last one ends. How many share one depends on how large they
    /// are: thousands of small ones, or two.
    leaves: u64,
    end: Option<Key>,
    /// Bytes of live ones, which go to the newest history tree and lie together there, too.
    buried: u64,
    /// Leaves of back references that become dirty, by where they end: what lies next to each other in a file lies anywhere on the
    /// device, and back references go by that.
    dirtied: BTreeSet<Key>,
    /// Nodes that may become dirty, the first item apart.
    nodes: u64,
}

impl Step {
    const fn new(nodes: u64) -> Self {
        Self { items: 0, asked: 0, leaves: 0, end: None, buried: 0, dirtied: BTreeSet::new(), nodes }
    }

    /// Takes one more item of a tree, in order, if that is not too much. The first one never is.
    fn takes(&mut self, state: &State, tree: &Tree, (key, value): (&Key, &Value), refs: &BackRefs) -> Result<bool> {
        let (mut end, mut leaf) = (self.end, 0);
        if end.is_none_or(|end| *key >= end) {
            let (behind, is_dirty) = tree.leaf_end(&state.cache, key)?;
            (end, leaf) = (Some(behind.unwrap_or(Key::last())), u64::from(!is_dirty));
        }
        let mut more = Vec::new();
        for key in refs.changed.iter().filter(|_| !broken(Break::BackReferencesUncounted)) {
            more.extend(state.space.clean_leaf(&state.cache, key)?.filter(|leaf| !self.dirtied.contains(leaf)));
        }
        more.dedup();
        let leaf = if broken(Break::OwnLeavesUncounted) { 0 } else { leaf };
        let buried = self.buried + if is_history(tree.id()) { 0 } else { (size_of::<Key>() + value.len()) as u64 };
        let dirty = (self.dirtied.len() + more.len()) as u64 + self.leaves + leaf + buried / LEAF_BYTES_MIN;
        let dirties = leaf > 0 || !more.is_empty();
        let fits = self.asked + refs.asked <= LEAVES_MAX && (!dirties || dirty <= self.nodes);
        if self.items > 0 && !fits {
            return Ok(false);
        }
        self.items += 1;
        (self.leaves, self.end, self.buried) = (self.leaves + leaf, end, buried);
        self.asked += refs.asked;
        self.dirtied.extend(more);
        Ok(true)
    }
}

impl State {
    /// How many items a step of the reaper can take, at most `max`; fewer where very many own what they name, or where the back references
    /// of that would make more than so many nodes dirty.
    ///
    /// # Errors
    /// Not even the first one.
    pub fn reap_ahead(&self, ino: Ino, fork: u32, max: u32, nodes: u64) -> Result<u32> {
        let key = reap_key(ino, fork);
        let found = self.space.get(&self.cache, &key)?.filter(|_| !broken(Break::NotReadAhead));
        let Some(v) = found else { return Ok(max) };
        let reap = Reap::decode(&v).map_err(|why| bad_item(&key, why))?;
        self.reaped_ahead(ino, &reap)?;
        let (items, read) = self.dying(ino, &reap, max as usize);
        let mut step = Step::new(nodes);
        for (before, (key, value)) in items.iter().take(max as usize).enumerate() {
            let taken = self.retire_ahead(key, value, reap.death, reap.rule);
            let taken = taken.and_then(|refs| step.takes(self, &self.live, (key, value), &refs));
            match taken {
                Err(_) | Ok(false) if before > 0 => return Ok(before as u32),
                Err(why) => return Err(why),
                Ok(_) => {}
            }
        }
        match read {
            // One more is looked at than is taken.
            Err(_) if items.len() > 1 => Ok(items.len() as u32 - 1),
            other => other.map(|()| max),
        }
    }

    /// That an orphan can be released.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn release_ahead(&self, ino: Ino) -> Result<()> {
        let key = orphan_key(ino);
        let found = self.space.get(&self.cache, &key)?;
        let v = found.ok_or_else(|| Error::Corrupt(format!("inode {ino} is no orphan")))?;
        let reap = Reap::decode(&v).map_err(|why| bad_item(&key, why))?;
        self.drop_ahead(ino, reap.death)
    }

    /// That an inode can go with its last name, or its last use.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn drop_ahead(&self, ino: Ino, death: Cno) -> Result<()> {
        if broken(Break::NotReadAhead) {
            return Ok(());
        }
        let inode = self.need_inode(ino)?;
        self.emptied_ahead(ino, &inode)?;
        let (fork, rule) = (inode.fork, inode.keep_rule());
        // The inode item and that of its name, where it has one, go before the others.
        let at_once = ITEMS_AT_ONCE + 1 + usize::from(inode.nlink > 0);
        let (items, read) = self.dying(ino, &Reap { death, fork, whole: true, rule }, at_once);
        read?;
        items.iter().take(at_once).try_for_each(|(key, value)| self.retire_ahead(key, value, death, rule).map(drop))?;
        if items.len() <= at_once {
            return Ok(());
        }
        [0, REST_FORK].into_iter().try_for_each(|fork| self.space.reach(&self.cache, &reap_key(ino, fork)))
    }

    /// That it can be noted that an inode has no name.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn orphan_ahead(&self, ino: Ino) -> Result<()> {
        if broken(Break::NotReadAhead) { Ok(()) } else { self.space.reach(&self.cache, &orphan_key(ino)) }
    }

    /// Whether there is an inode. Its item can be replaced then.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn inode_ahead(&self, ino: Ino) -> Result<bool> {
        let key = Key::new(ino, Kind::Inode, 0, 0);
        let Some(value) = self.get(&key)? else { return Ok(false) };
        if !broken(Break::NotReadAhead) {
            self.retire_ahead(&key, &value, self.open_cno, KeepRule::default())?;
        }
        Ok(true)
    }

    /// That a name can be taken from an inode.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn name_ahead(&self, parent: Ino, ino: Ino, name: &[u8]) -> Result<()> {
        if broken(Break::NotReadAhead) {
            return Ok(());
        }
        let rule = self.rule_of_name(parent, ino)?;
        for (group, other) in [(self.dirent_key(parent, name), ino), (self.link_key(ino, parent, name), parent)] {
            let is_it = |v: &[u8]| Dirent::decode(v).is_ok_and(|d| d.name == name && d.ino == other);
            let Some((key, value)) = self.find_slot(group, is_it)? else {
                return Err(Error::Corrupt(format!("inode {ino} bears a name that directory {parent} or it lacks")));
            };
            self.retire_ahead(&key, &value, self.open_cno, rule)?;
        }
        self.inode_ahead(parent)?;
        self.inode_ahead(ino).map(drop)
    }

    /// That a name can be given to an inode.
    ///
    /// # Errors
    /// What that needs cannot be read, or as many names as there can be have its hash.
    pub fn new_name_ahead(&self, parent: Ino, ino: Ino, name: &[u8]) -> Result<()> {
        if broken(Break::NotReadAhead) {
            return Ok(());
        }
        self.inode_ahead(ino)?;
        // What has the name goes first.
        if self.dirent(parent, name)?.is_some() {
            self.find_slot(self.dirent_key(parent, name), |_| false)?;
            return self.link_ahead(parent, ino, name);
        }
        self.unused_name_ahead(parent, ino, name)
    }

    /// The same for a name that was just sought in vain, and an inode that does not change or is new.
    ///
    /// # Errors
    /// What that needs cannot be read, or as many names as there can be have its hash.
    pub fn unused_name_ahead(&self, parent: Ino, ino: Ino, name: &[u8]) -> Result<()> {
        if broken(Break::NotReadAhead) {
            return Ok(());
        }
        self.free_slot(self.dirent_key(parent, name))?;
        self.link_ahead(parent, ino, name)
    }

    fn link_ahead(&self, parent: Ino, ino: Ino, name: &[u8]) -> Result<()> {
        self.free_slot(self.link_key(ino, parent, name))?;
        self.inode_ahead(parent).map(drop)
    }

    /// That an extended attribute of an inode can get a value of so many bytes, or go.
    ///
    /// # Errors
    /// What that needs cannot be read, or the inode cannot have it.
    pub fn xattr_ahead(&self, ino: Ino, name: &[u8], value_bytes: Option<usize>) -> Result<()> {
        if broken(Break::NotReadAhead) {
            return Ok(());
        }
        self.inode_ahead(ino)?;
        if name == HISTORY_XATTR {
            return Ok(());
        }
        let rule = self.need_inode(ino)?.keep_rule();
        let group = self.xattr_key(ino, name);
        let first = match self.find_slot(group, |v| XattrPiece::decode(v).is_ok_and(|p| p.name == name))? {
            None => self.free_slot(group)?,
            Some((first, value)) => {
                let piece = XattrPiece::decode(&value).map_err(|why| bad_item(&first, why))?;
                for fork in 0..xattr_pieces((piece.value_bytes as usize).min(XATTR_BYTES_MAX)) {
                    let key = Key { fork, ..first };
                    if let Some(old) = self.get(&key)? {
                        self.retire_ahead(&key, &old, self.open_cno, rule)?;
                    }
                }
                first
            }
        };
        let pieces = value_bytes.map_or(0, xattr_pieces);
        (0..pieces).try_for_each(|fork| self.live.reach(&self.cache, &Key { fork, ..first }))
    }

    /// That an inode that is to be made can get these extended attributes.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn new_xattrs_ahead(&self, ino: Ino, xattrs: Xattrs<'_>) -> Result<()> {
        if broken(Break::NotReadAhead) {
            return Ok(());
        }
        let reach = |name: &[u8], value: &[u8]| {
            let first = self.free_slot(self.xattr_key(ino, name))?;
            (0..xattr_pieces(value.len())).try_for_each(|fork| self.live.reach(&self.cache, &Key { fork, ..first }))
        };
        xattrs.iter().try_for_each(|(name, value)| reach(name, value))
    }

    /// That file blocks `[from, to)` can be written or cut off, and the inode changed with them.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn content_ahead(&self, ino: Ino, from: u64, to: u64) -> Result<()> {
        if !self.inode_ahead(ino)? || from >= to || broken(Break::NotReadAhead) {
            return Ok(());
        }
        let inode = self.need_inode(ino)?;
        let rule = inode.keep_rule();
        let inline = Key::new(ino, Kind::Inline, 0, 0);
        if let Some(old) = self.get(&inline)? {
            self.retire_ahead(&inline, &old, self.open_cno, rule)?;
        }
        // Of shared ones the back references are split before anything else: what that needs is not looked at.
        for (key, e) in self.extents(ino, inode.fork, from, to, usize::MAX)?.into_iter().filter(|(_, e)| !e.is_shared())
        {
            let gone = Key { off: key.off.max(from), ..key };
            let part = e.slice((gone.off - key.off) as u32, e.blocks - (gone.off - key.off) as u32);
            self.retire_ahead(&gone, &part.encode().into(), self.open_cno, rule)?;
        }
        self.live.reach(&self.cache, &Key::new(ino, Kind::Extent, inode.fork, to))
    }

    /// What a sweep of `max` items from `from` on would look at, up to what cannot be read; fewer where very many own what nobody sees, or
    /// where the back references of that would make more than so many nodes dirty.
    pub fn sweep_ahead(&self, tree: TreeId, from: &Key, max: u32, nodes: u64) -> Looked {
        let mut looked = self.unseen(tree, from, max);
        if broken(Break::NotReadAhead) {
            return looked;
        }
        let Some(of) = self.history.iter().find(|t| t.tree.id() == tree).map(|t| &t.tree) else { return looked };
        let (mut step, mut end) = (Step::new(nodes), None);
        for (at, key, value) in &looked.gone {
            end = match self.free_ahead(key, value).and_then(|refs| step.takes(self, of, (key, value), &refs)) {
                Err(why) => Some((*at, key.successor(), Some(why))),
                Ok(false) => Some((*at, Some(*key), None)),
                Ok(true) => continue,
            };
            break;
        }
        if let Some(end) = end {
            (looked.items, looked.go_on, looked.lost) = end;
        }
        looked
    }

    /// Where a step of forgetting from `from` on would end, and how many items it looks at, at most `max`: 0 where it finds nothing, fewer
    /// where very many own what it does, or the back references of that would make more than so many nodes dirty.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn forget_ahead(&self, tree: TreeId, from: &Key, max: u32, nodes: u64) -> Result<(Option<Key>, u32)> {
        let (gone, go_on) = self.forgotten(tree, from, max)?;
        let mut step = Step::new(nodes);
        let past = self.history.iter().find(|t| t.tree.id() == tree).map(|t| &t.tree);
        let of = past.unwrap_or(&self.live);
        for (before, key, value) in gone.iter().filter(|_| !broken(Break::NotReadAhead)) {
            let refs = match is_history(tree) {
                true => self.free_ahead(key, value)?,
                false => self.retire_ahead(key, value, self.open_cno, KeepRule::default())?,
            };
            if !step.takes(self, of, (key, value), &refs)? {
                return Ok((Some(*key), *before));
            }
        }
        Ok((go_on, if gone.is_empty() { 0 } else { max }))
    }

    /// That the item at `key` can name the place where its blocks were copied to.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn relocate_ahead(&self, tree: TreeId, key: &Key, new: &Extent) -> Result<()> {
        if let Some(current) = self.move_ahead(tree, key, new)? {
            self.owners_ahead(current.addr, new.addr, new.blocks)?;
        }
        Ok(())
    }

    /// The same but for [`State::owners_ahead`], which who moves all owners of some blocks has once for them. The item, if it is shared.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn move_ahead(&self, tree: TreeId, key: &Key, new: &Extent) -> Result<Option<Extent>> {
        let past = self.history.iter().map(|t| &t.tree);
        let found = [&self.live].into_iter().chain(past).find(|t| t.id() == tree);
        let Some(tree) = found.filter(|_| !broken(Break::NotReadAhead)) else { return Ok(None) };
        let Some(value) = tree.get(&self.cache, key)? else { return Ok(None) };
        let current = extent(key, &value)?;
        if current.blocks > new.blocks {
            tree.reach(&self.cache, &Key { off: key.off.saturating_add(u64::from(new.blocks)), ..*key })?;
        }
        if !current.is_shared() {
            return Ok(None);
        }
        self.has_backref(key, &current)?;
        self.new_owner_ahead(key, new.addr)?;
        Ok(Some(current))
    }

    /// That the owners of these blocks, all of which are copied to `new`, can be asked, whichever of them went there already.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn owners_ahead(&self, addr: Addr, new: Addr, blocks: u32) -> Result<()> {
        if broken(Break::NotReadAhead) {
            return Ok(());
        }
        [addr, new].into_iter().try_for_each(|addr| self.reach_owners(addr, blocks).map(drop))
    }

    /// That the live extents that overlap these file blocks can be marked as shared.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn share_ahead(&self, ino: Ino, from: u64, blocks: u64) -> Result<()> {
        if broken(Break::NotReadAhead) {
            return Ok(());
        }
        let fork = self.need_inode(ino)?.fork;
        self.unshared(ino, fork, from, blocks)?.iter().try_for_each(|(key, e)| {
            self.live.reach(&self.cache, key)?;
            self.new_owner_ahead(key, e.addr).map(drop)
        })
    }

    /// The same of what a kept checkpoint shows of them.
    ///
    /// # Errors
    /// As there.
    pub fn share_past_ahead(&self, ino: Ino, cno: Cno, from: u64, blocks: u64) -> Result<()> {
        if broken(Break::NotReadAhead) {
            return Ok(());
        }
        self.unshared_past(ino, cno, from, blocks)?.iter().try_for_each(|(tree, key, e)| {
            let past = self.history.iter().map(|t| &t.tree).find(|t| t.id() == *tree);
            past.unwrap_or(&self.live).reach(&self.cache, key)?;
            self.new_owner_ahead(key, e.addr).map(drop)
        })
    }

    /// That what is committed later can name these blocks, too, whoever has them by then.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn join_ahead(&self, addr: Addr, blocks: u32) -> Result<()> {
        if broken(Break::NotReadAhead) { Ok(()) } else { self.reach_owners(addr, blocks).map(drop) }
    }

    /// That an item can leave the live tree; what that has to do with back references.
    fn retire_ahead(&self, key: &Key, old: &Value, death: Cno, rule: KeepRule) -> Result<BackRefs> {
        let (_, keep, extent) = self.burial(key, old, death, rule)?;
        let (past, mut refs) = (key.died(death.0), BackRefs::default());
        if let Some(e) = extent.filter(Extent::is_shared) {
            refs = self.owner_ahead(key, &e)?;
            if keep.is_some() {
                refs.changed.push(self.new_owner_ahead(&past, e.addr)?);
            }
        }
        if let Some(newest) = self.history.last().filter(|t| keep.is_some() && !t.sealed) {
            self.place_ahead(&newest.tree, &past)?;
        }
        Ok(refs)
    }

    fn place_ahead(&self, tree: &Tree, key: &Key) -> Result<()> {
        tree.reach(&self.cache, key)?;
        match tree.get(&self.cache, key)? {
            None => Ok(()),
            Some(_) => Err(Error::Corrupt(format!("two versions of one item died in checkpoint {}", key.death))),
        }
    }

    /// That an item of history can go; what that has to do with back references.
    fn free_ahead(&self, key: &Key, value: &Value) -> Result<BackRefs> {
        if key.kind != Kind::Extent {
            return Ok(BackRefs::default());
        }
        let e = extent(key, value)?;
        if e.is_shared() { self.owner_ahead(key, &e) } else { Ok(BackRefs::default()) }
    }

    /// That an owner of shared blocks can go: its back reference, and that those of the others can be asked.
    fn owner_ahead(&self, owner: &Key, e: &Extent) -> Result<BackRefs> {
        let changed = vec![self.has_backref(owner, e)?];
        let asked = if e.stored_blocks() > 0 { self.reach_owners(e.addr, e.stored_blocks())? } else { 0 };
        Ok(BackRefs { asked, changed })
    }

    /// Where the back reference of a shared extent is.
    fn has_backref(&self, owner: &Key, e: &Extent) -> Result<Key> {
        match self.backref(owner, e.addr)? {
            Some((key, _)) => Ok(key),
            None => {
                let (off, ino) = (owner.off, owner.ino);
                Err(Error::Corrupt(format!("file block {off} of inode {ino} is shared without a back reference")))
            }
        }
    }

    /// That an owner of shared blocks can come; where its back reference will be.
    fn new_owner_ahead(&self, owner: &Key, addr: Addr) -> Result<Key> {
        match self.find_backref(owner, addr)? {
            Err(Some(key)) => self.space.reach(&self.cache, &key).map(|()| key),
            _ => Err(Error::Corrupt(format!("file block {} of inode {} is shared already", owner.off, owner.ino))),
        }
    }
}

impl State {
    /// Adds the leaves of back references that become dirty when the live extent at `key` goes, as far as they are clean.
    fn add_dirtied(&self, key: &Key, e: &Extent, dirtied: &mut BTreeSet<Key>) -> Result<()> {
        if !e.is_shared() || broken(Break::BackReferencesUncounted) {
            return Ok(());
        }
        for owner in [*key, key.died(self.open_cno.0)] {
            dirtied.extend(self.space.clean_leaf(&self.cache, &self.backref_slots(&owner, e.addr))?);
        }
        Ok(())
    }

    /// Leaves of back references that become dirty when these live extents go, as far as that can be read.
    pub fn leaves_of_these(&self, extents: impl Iterator<Item = (Key, Extent)>) -> u64 {
        let mut dirtied = BTreeSet::new();
        for (key, e) in extents {
            let _ = self.add_dirtied(&key, &e, &mut dirtied);
        }
        dirtied.len() as u64
    }

    /// Leaves of back references that become dirty when the live extents go which begin within these file blocks; not counted on beyond
    /// `max`.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn leaves_of_owners(&self, ino: Ino, fork: u32, blocks: Range<u64>, max: u64) -> Result<u64> {
        let Some(last) = blocks.end.checked_sub(1).filter(|last| blocks.start <= *last) else {
            return Ok(0);
        };
        let [first, last] = [blocks.start, last].map(|block| Key::new(ino, Kind::Extent, fork, block));
        let (mut dirtied, mut bad) = (BTreeSet::new(), None);
        self.live.scan(&self.cache, &first, &last, &mut |key, value| {
            let added = extent(key, value).and_then(|e| self.add_dirtied(key, &e, &mut dirtied));
            bad = added.err();
            if bad.is_some() || dirtied.len() as u64 > max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        bad.map_or(Ok(dirtied.len() as u64), Err)
    }

    /// Where the last `max` live extents begin that begin within these file blocks; their end where there are none. Fewer where more than
    /// so many nodes would become dirty, the first one apart.
    ///
    /// # Errors
    /// What that needs cannot be read.
    pub fn last_extents(&self, ino: Ino, fork: u32, blocks: Range<u64>, max: u32, nodes: u64) -> Result<u64> {
        let first = Key::new(ino, Kind::Extent, fork, blocks.start);
        let (mut at, mut dirtied) = (blocks.end, BTreeSet::new());
        for n in 0..u64::from(max) {
            if at <= blocks.start {
                break;
            }
            let Some((key, value)) = self.live.prev(&self.cache, &Key { off: at - 1, ..first })? else { break };
            if key < first {
                break;
            }
            self.add_dirtied(&key, &extent(&key, &value)?, &mut dirtied)?;
            if n > 0 && !dirtied.is_empty() && dirtied.len() as u64 + n / ITEMS_IN_LEAF_MIN > nodes {
                break;
            }
            at = key.off;
        }
        Ok(at)
    }
}
