//! Blocks with several owners, and what every block counts as.
//!
//! Invariants
//! 1. An extent item with the flag has exactly one back reference, at its
//!    address, which names it; nothing else has one.
//! 2. When a block has several owners, all of them have the flag.
//! 3. A block counts once: as live while an item of the live tree names it,
//!    else as history while an item of history does.

use super::content::extent;
use super::{SLOT_MASK, State, bad_item};
use crate::breaks::{Break, broken};
use crate::{At, Error, Result};
use nenrin_format::items::{Backref, EXTENT_SHARED, Extent};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::{Addr, Cno, EXTENT_BLOCKS_MAX, Ino};
use std::ops::{ControlFlow, Range};

/// Who needs a block; the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// Nobody.
    None,
    /// Items of history only.
    History,
    /// An item of the live tree.
    Live,
}

/// Owners one behind the other that begin at blocks which are settled: after so many it costs less to look for the next one that is not.
const IN_VAIN_MAX: u32 = 4;

/// Blocks whose owners are asked.
struct Asking<'a> {
    addr: Addr,
    settled: &'a mut [bool],
    /// How many are not.
    left: usize,
    settles: &'a mut dyn FnMut(Range<usize>, &Backref) -> Result<bool>,
    failed: Option<Error>,
}

impl Asking<'_> {
    /// Asks one that begins there.
    fn ask(&mut self, start: Addr, owner: &Backref) -> ControlFlow<()> {
        let end = self.addr.0.saturating_add(self.settled.len() as u64);
        let from = start.0.max(self.addr.0) - self.addr.0;
        let to = start.0.saturating_add(u64::from(owner.blocks)).min(end).saturating_sub(self.addr.0).max(from);
        let has = from as usize..to as usize;
        let new = self.settled[has.clone()].iter().filter(|s| !**s).count();
        let settles = if new > 0 { (self.settles)(has.clone(), owner) } else { Ok(false) };
        match settles {
            Ok(false) => {}
            Ok(true) => {
                self.settled[has].fill(true);
                self.left -= new;
            }
            Err(e) => self.failed = Some(e),
        }
        if self.goes_on() || broken(Break::OwnersAllAsked) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    const fn goes_on(&self) -> bool {
        self.left > 0 && self.failed.is_none()
    }

    fn next_unsettled(&self, from: usize) -> Option<usize> {
        self.settled.iter().skip(from).position(|s| !s).map(|more| from + more)
    }

    /// The first and the last.
    fn unsettled(&self) -> Option<(usize, usize)> {
        self.settled.iter().position(|s| !s).zip(self.settled.iter().rposition(|s| !s))
    }

    fn end(self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }
}

/// Owners of shared extents, where each begins, and where to go on.
type SomeOwners = (Vec<(Addr, Backref)>, Option<Key>);

impl Need {
    /// Who the item at this key is.
    pub(super) const fn of(key: &Key) -> Self {
        if key.death > 0 { Self::History } else { Self::Live }
    }
}

impl State {
    /// One owner needs an extent's blocks otherwise than before. When the
    /// extent is shared, this owner has no back reference meanwhile.
    pub(super) fn change_need(&mut self, e: &Extent, from: Need, to: Need) -> Result<()> {
        // Whether what comes back from history counted as kept by snapshots is not known.
        if self.move_need(e, from, to)? && !broken(Break::BackCountsTwice) {
            self.recount_past();
        }
        Ok(())
    }

    /// The same where the blocks only lie elsewhere; whether any came back from history.
    pub(super) fn move_need(&mut self, e: &Extent, from: Need, to: Need) -> Result<bool> {
        let promised = |need| if need == Need::Live { u64::from(e.promised_blocks()) } else { 0 };
        self.promised_blocks = self.promised_blocks.saturating_add(promised(to)).saturating_sub(promised(from));
        let blocks = e.stored_blocks();
        if blocks == 0 {
            return Ok(false);
        }
        let named = |need| if need == Need::Live { u64::from(blocks) } else { 0 };
        self.named_blocks = self.named_blocks.saturating_add(named(to)).saturating_sub(named(from));
        if !e.is_shared() || broken(Break::OwnersForgotten) {
            return Ok(self.count(e.addr, blocks, from, to));
        }
        let others = self.needs(e.addr, blocks)?;
        let (mut at, mut back) = (0, false);
        while at < others.len() {
            let other = others[at];
            let run = others[at..].iter().take_while(|o| **o == other).count();
            back |= self.count(e.addr.add(at as u32), run as u32, from.max(other), to.max(other));
            at += run;
        }
        Ok(back)
    }

    /// Whether they came back from history.
    fn count(&mut self, addr: Addr, blocks: u32, from: Need, to: Need) -> bool {
        let many = u64::from(blocks);
        match from {
            _ if from == to => return false,
            Need::Live => self.live_blocks = self.live_blocks.saturating_sub(many),
            Need::History => self.history_blocks = self.history_blocks.saturating_sub(many),
            Need::None => {}
        }
        match to {
            Need::Live => self.live_blocks = self.live_blocks.saturating_add(many),
            Need::History => self.history_blocks = self.history_blocks.saturating_add(many),
            Need::None => {}
        }
        match (from, to) {
            (Need::Live, Need::History) => self.segments.live_to_history(addr, blocks),
            (Need::History, Need::Live) => self.segments.history_to_live(addr, blocks),
            (Need::None, Need::Live) => self.segments.add_live(addr, blocks),
            (Need::None, Need::History) => self.segments.add_history(addr, blocks),
            (Need::Live, _) => self.segments.sub_live(addr, blocks),
            (_, _) => self.segments.sub_history(addr, blocks),
        }
        from == Need::History && to == Need::Live
    }

    /// Who needs each of these blocks, as far as back references tell. A block may have very many owners, and one that is live says all.
    fn needs(&self, addr: Addr, blocks: u32) -> Result<Vec<Need>> {
        let mut out = vec![Need::None; blocks as usize];
        self.ask_owners(addr, &mut vec![false; blocks as usize], &mut |has, owner| {
            let need = Need::of(&owner.owner);
            out[has].iter_mut().for_each(|before| *before = need.max(*before));
            Ok(need == Need::Live)
        })?;
        Ok(out)
    }

    /// Asks owners of the blocks from `addr` on that are not settled, of each until it is: `settles` is given which of the blocks an owner
    /// has, and says whether that settles them. A block may have very many owners, and so may blocks beside it, so no more of them are
    /// asked than must be; of one block some may be asked twice.
    ///
    /// # Errors
    /// As [`State::owners`]; what `settles` says.
    pub fn ask_owners(
        &self,
        addr: Addr,
        settled: &mut [bool],
        settles: &mut dyn FnMut(Range<usize>, &Backref) -> Result<bool>,
    ) -> Result<()> {
        let (end, all_asked) = (addr.0.saturating_add(settled.len() as u64), broken(Break::OwnersAllAsked));
        let place = |start: Addr| (start.0 - addr.0) as usize;
        let mut asking = Asking { addr, left: settled.iter().filter(|s| !**s).count(), settled, settles, failed: None };
        // Most owners have the same blocks.
        let mut from = asking.next_unsettled(0);
        while let Some(first) = from.take() {
            let mut in_vain = 0;
            self.each_owner(addr.0 + first as u64..end, &mut |start, owner| {
                in_vain = if asking.settled[place(start)] { in_vain + 1 } else { 0 };
                asking.ask(start, &owner)?;
                if in_vain < IN_VAIN_MAX || all_asked {
                    return ControlFlow::Continue(());
                }
                from = asking.next_unsettled(place(start) + 1);
                ControlFlow::Break(())
            })?;
        }
        // Those that begin before may have none of them. Who begins at one that is not settled was asked.
        let unsettled =
            if all_asked { asking.settled.len().checked_sub(1).map(|last| (0, last)) } else { asking.unsettled() };
        let Some((first, last)) = unsettled.filter(|_| asking.goes_on() || all_asked) else { return asking.end() };
        let behind = if asking.left == asking.settled.len() { addr.0 } else { addr.0 + last as u64 };
        self.each_owner(first_start(addr.add(first as u32))..behind, &mut |start, owner| {
            if start >= addr && !asking.settled[place(start)] && !all_asked {
                return ControlFlow::Continue(());
            }
            asking.ask(start, &owner)
        })?;
        asking.end()
    }

    /// Whether each of these blocks has an owner, as far as back references tell.
    ///
    /// # Errors
    /// As [`State::owners`].
    pub fn has_owners(&self, addr: Addr, blocks: u32) -> Result<bool> {
        Ok(self.needs(addr, blocks)?.iter().all(|need| *need != Need::None))
    }

    /// The owners of shared extents that overlap these blocks: where each begins, and who it is.
    pub fn owners(&self, addr: Addr, blocks: u32) -> Result<Vec<(Addr, Backref)>> {
        let mut out = Vec::new();
        let end = addr.0.saturating_add(u64::from(blocks));
        self.each_owner(first_start(addr)..end, &mut |start, owner| {
            if start.0.saturating_add(u64::from(owner.blocks)) > addr.0 {
                out.push((start, owner));
            }
            ControlFlow::Continue(())
        })?;
        Ok(out)
    }

    /// [`State::owners`], unless live ones have all of these blocks.
    ///
    /// # Errors
    /// As there.
    pub fn owners_unless_live(&self, addr: Addr, blocks: u32) -> Result<Option<Vec<(Addr, Backref)>>> {
        let all_live = self.needs(addr, blocks)?.iter().all(|need| *need == Need::Live);
        if all_live { Ok(None) } else { self.owners(addr, blocks).map(Some) }
    }

    /// The next owners of shared extents that begin from a place on, up to `most`, and where to go on: from the back reference at that key.
    ///
    /// # Errors
    /// A node that cannot be read; a back reference that makes no sense.
    pub fn some_owners(&self, from: &Key, end: Addr, most: usize) -> Result<SomeOwners> {
        let (mut out, mut next) = (Vec::new(), None);
        let Some(last) = end.0.checked_sub(1) else { return Ok((out, next)) };
        self.scan_owners(from, &last_backref_key(Addr(last)), &mut |k, owner| {
            if out.len() == most {
                next = Some(*k);
                return ControlFlow::Break(());
            }
            out.push((Addr(k.ino), owner));
            ControlFlow::Continue(())
        })?;
        Ok((out, next))
    }

    /// That the owners of these blocks can be asked; how many leaves there are of them. Where they all lie next to each other each would
    /// meet all of them.
    pub(super) fn reach_owners(&self, addr: Addr, blocks: u32) -> Result<u64> {
        if broken(Break::OwnersAllAsked) {
            return self.owners(addr, blocks).map(|_| 1);
        }
        let Some(last) = addr.0.saturating_add(u64::from(blocks)).checked_sub(1) else { return Ok(0) };
        let (first, last) = (backref_key(Addr(first_start(addr)), 0), last_backref_key(Addr(last)));
        self.space.reach_all(&self.cache, &first, &last)
    }

    /// The owners of shared extents that begin at these addresses, in order.
    fn each_owner(&self, starts: Range<u64>, each: &mut dyn FnMut(Addr, Backref) -> ControlFlow<()>) -> Result<()> {
        let Some(last) = starts.end.checked_sub(1).filter(|last| *last >= starts.start) else { return Ok(()) };
        let (first, last) = (backref_key(Addr(starts.start), 0), last_backref_key(Addr(last)));
        self.scan_owners(&first, &last, &mut |k, owner| each(Addr(k.ino), owner))
    }

    fn scan_owners(
        &self,
        first: &Key,
        last: &Key,
        each: &mut dyn FnMut(&Key, Backref) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut bad = None;
        self.space.scan(&self.cache, first, last, &mut |k, v| {
            self.owners_asked.set(self.owners_asked.get() + 1);
            if k.kind != Kind::Backref {
                return ControlFlow::Continue(());
            }
            match Backref::decode(v) {
                Ok(b) => each(k, b),
                Err(why) => {
                    bad = Some(bad_item(k, why));
                    ControlFlow::Break(())
                }
            }
        })?;
        bad.map_or(Ok(()), Err)
    }

    /// First key of the slots in which the back reference of this owner lies.
    pub fn backref_slots(&self, owner: &Key, addr: Addr) -> Key {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&owner.fork.to_be_bytes());
        bytes[4..12].copy_from_slice(&owner.off.to_be_bytes());
        bytes[12..].copy_from_slice(&owner.death.to_be_bytes());
        backref_key(addr, self.name_hash(owner.ino, &bytes))
    }

    /// The back reference of the item at `owner`, which lies at `addr`: its key
    /// and value; or the first free slot for it.
    pub(super) fn find_backref(
        &self,
        owner: &Key,
        addr: Addr,
    ) -> Result<std::result::Result<(Key, Backref), Option<Key>>> {
        let first = self.backref_slots(owner, addr);
        let last = Key { off: first.off | SLOT_MASK, ..first };
        let mut found = None;
        let mut used = [false; SLOT_MASK as usize + 1];
        self.space.scan(&self.cache, &first, &last, &mut |k, v| {
            used[(k.off & SLOT_MASK) as usize] = true;
            match Backref::decode(v) {
                Ok(b) if b.owner == *owner => {
                    found = Some((*k, b));
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }
        })?;
        let free = used.iter().position(|u| !u).map(|slot| Key { off: first.off | slot as u64, ..first });
        Ok(found.ok_or(free))
    }

    /// The back reference of the item at `owner`, which lies at `addr`, with its key.
    pub fn backref(&self, owner: &Key, addr: Addr) -> Result<Option<(Key, Backref)>> {
        Ok(self.find_backref(owner, addr)?.ok())
    }

    /// Whether any blocks may have several owners, or had: what nobody has to look for costs nothing.
    pub fn has_backrefs(&self) -> bool {
        self.shares.get().unwrap_or_else(|| {
            // All other items of the space tree come before.
            let last = self.space.prev(&self.cache, &Key::last());
            let shares = last.map_or(true, |last| last.is_some_and(|(key, _)| key.ino != 0));
            self.shares.set(Some(shares));
            shares
        })
    }

    pub(super) fn add_backref(&mut self, owner: &Key, e: &Extent) -> Result<()> {
        self.shares.set(Some(true));
        match self.find_backref(owner, e.addr)? {
            Err(Some(key)) => {
                let value = Backref { owner: *owner, blocks: e.blocks }.encode();
                self.space.insert(&self.cache, key, value.into()).map(drop)
            }
            _ => Err(Error::Corrupt(format!("file block {} of inode {} is shared already", owner.off, owner.ino))),
        }
    }

    pub(super) fn remove_backref(&mut self, owner: &Key, e: &Extent) -> Result<()> {
        let Ok((key, _)) = self.find_backref(owner, e.addr)? else {
            let (off, ino) = (owner.off, owner.ino);
            return Err(Error::Corrupt(format!("file block {off} of inode {ino} is shared without a back reference")));
        };
        self.space.remove(&self.cache, &key).map(drop)
    }

    /// The live extents that overlap these file blocks may be shared from now on.
    pub(super) fn share(&mut self, ino: Ino, from: u64, blocks: u64) -> Result<()> {
        let inode = self.need_inode(ino)?;
        if inode.blocks == 0 || blocks == 0 {
            return Ok(());
        }
        for (key, e) in self.unshared(ino, inode.fork, from, blocks)? {
            let shared = Extent { flags: e.flags | EXTENT_SHARED, ..e };
            self.live.insert(&self.cache, key, shared.encode().into())?;
            self.add_backref(&key, &shared)?;
        }
        Ok(())
    }

    /// The live extents that [`State::share`] of these file blocks marks.
    pub(super) fn unshared(&self, ino: Ino, fork: u32, from: u64, blocks: u64) -> Result<Vec<(Key, Extent)>> {
        let mut found = self.extents(ino, fork, from, from.saturating_add(blocks), usize::MAX)?;
        found.retain(|(_, e)| !e.is_unwritten() && !e.is_shared());
        Ok(found)
    }

    /// The items that [`State::share_past`] of these file blocks marks, with the trees they are in.
    pub(super) fn unshared_past(
        &self,
        ino: Ino,
        cno: Cno,
        from: u64,
        blocks: u64,
    ) -> Result<Vec<(TreeId, Key, Extent)>> {
        let Some(last) = from.checked_add(blocks).and_then(|end| end.checked_sub(1)).filter(|_| blocks > 0) else {
            return Ok(Vec::new());
        };
        let mut found = self.view(At::Past(cno))?.extent_items(ino, from, last)?;
        found.retain(|(_, _, e)| e.stored_blocks() > 0 && !e.is_shared());
        Ok(found)
    }

    /// What a kept checkpoint shows of these file blocks may be shared from now on.
    pub(super) fn share_past(&mut self, ino: Ino, cno: Cno, from: u64, blocks: u64) -> Result<()> {
        if broken(Break::PastNotShared) {
            return Ok(());
        }
        for (tree, key, e) in self.unshared_past(ino, cno, from, blocks)? {
            let shared = Extent { flags: e.flags | EXTENT_SHARED, ..e };
            let value = shared.encode().into();
            match self.history.iter_mut().find(|t| t.tree.id() == tree) {
                Some(t) => t.tree.insert(&self.cache, key, value)?,
                None => self.live.insert(&self.cache, key, value)?,
            };
            self.add_backref(&key, &shared)?;
        }
        Ok(())
    }

    /// The extent at `key` of the live tree is about to be replaced by these parts.
    pub(super) fn split_backref(&mut self, key: &Key, e: &Extent, parts: &[(Key, Extent)]) -> Result<()> {
        if e.is_shared() && parts.len() > 1 {
            self.remove_backref(key, e)?;
            for (key, part) in parts {
                self.add_backref(key, part)?;
            }
        }
        Ok(())
    }

    /// Whether the item that a back reference names is there, at this address
    /// and as long as it says.
    pub fn owner_exists(&self, addr: Addr, b: &Backref) -> Result<bool> {
        let fits = |value: Option<crate::index::Value>| {
            value
                .and_then(|v| extent(&b.owner, &v).ok())
                .is_some_and(|e| e.is_shared() && e.addr == addr && e.blocks == b.blocks)
        };
        if b.owner.death == 0 {
            return Ok(fits(self.get(&b.owner)?));
        }
        for t in &self.history {
            if fits(t.tree.get(&self.cache, &b.owner)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// For repair: drops back references that fit no owner, and makes those
    /// that are missing; how many. Every shared extent says by itself whose it is,
    /// so nothing is lost with them.
    pub fn mend_backrefs(&mut self) -> Result<u64> {
        let mut wrong = Vec::new();
        self.space.walk(&self.cache, &mut |key, value| {
            if key.kind != Kind::Backref {
                return Ok(());
            }
            let right = match Backref::decode(value) {
                Ok(b) if self.owner_exists(Addr(key.ino), &b)? => {
                    matches!(self.find_backref(&b.owner, Addr(key.ino))?, Ok((first, _)) if first == *key)
                }
                _ => false,
            };
            if !right {
                wrong.push(*key);
            }
            Ok(())
        })?;
        for key in &wrong {
            self.space.remove(&self.cache, key)?;
        }
        let mut missing = Vec::new();
        for tree in [&self.live].into_iter().chain(self.history.iter().map(|t| &t.tree)) {
            tree.walk(&self.cache, &mut |key, value| {
                if key.kind != Kind::Extent {
                    return Ok(());
                }
                let Ok(e) = Extent::decode(value) else { return Ok(()) };
                if e.is_shared() && !e.is_unwritten() && self.find_backref(key, e.addr)?.is_err() {
                    missing.push((*key, Extent { crcs: Vec::new(), ..e }));
                }
                Ok(())
            })?;
        }
        for (owner, e) in &missing {
            // More than the slots of one hash hold: the check of the plan refuses.
            match self.add_backref(owner, e) {
                Err(Error::Corrupt(_)) | Ok(()) => {}
                Err(e) => return Err(e),
            }
        }
        Ok((wrong.len() + missing.len()) as u64)
    }
}

/// Where an extent may begin that reaches this block: block 0 of a segment never holds content, and none crosses into another segment.
fn first_start(addr: Addr) -> u64 {
    addr.0 - u64::from(EXTENT_BLOCKS_MAX.saturating_sub(1).min(addr.block().saturating_sub(1)))
}

/// Key of a back reference.
pub const fn backref_key(addr: Addr, off: u64) -> Key {
    Key { ino: addr.0, kind: Kind::Backref, fork: 0, off, death: 0 }
}

/// Behind all of those at an address.
const fn last_backref_key(addr: Addr) -> Key {
    Key { fork: u32::MAX, off: u64::MAX, death: u64::MAX, ..backref_key(addr, 0) }
}
