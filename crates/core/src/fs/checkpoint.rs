//! Checkpoints that users see, and index checkpoints, from which recovery starts.

use super::beside::{FewWrites, Pace, hurrying};
use super::bursts::Who;
use super::commit::{Commit, Cut};
use super::guard::Guard;
use super::leading::{Answers, Ended, Lost, Stay};
use super::space::Room;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::devices::Avoided;
use crate::index::Frozen;
use crate::log::chain::Chain;
use crate::log::index::IndexStamp;
use crate::segments::KIND_INDEX;
use crate::state::State;
use crate::{Barrier, CheckpointInfo, Error, Order, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::items::{CHECKPOINT_ASKED, CHECKPOINT_NAMED, Checkpoint};
use nenrin_format::key::Key;
use nenrin_format::node::{NodePtr, TreeId};
use nenrin_format::records::Record;
use nenrin_format::root::{Root, TreeRoot};
use nenrin_format::superblock::Superblock;
use nenrin_format::{Addr, BLOCK_BYTES, Cno, Generation, NODE_BLOCKS, SegmentNo};
use std::sync::{Arc, mpsc};

/// Whether the device is told to flush before and after a superblock is written.
fn flushes_roots(barrier: Barrier) -> bool {
    match barrier {
        Barrier::Sync => true,
        Barrier::Checkpoint => !broken(Break::RootsUnflushed),
        Barrier::None => false,
    }
}

/// The state at the moment of an index checkpoint.
struct Freeze {
    generation: Generation,
    chain: Chain,
    root: Root,
    /// Each tree with what only history trees have: deaths, sealed.
    trees: Vec<(TreeId, Frozen, (Cno, Cno), bool)>,
    stamp: IndexStamp,
}

fn info(cno: Cno, c: &Checkpoint) -> CheckpointInfo {
    CheckpointInfo {
        cno,
        wall: c.wall,
        name: c.is_named().then(|| c.name.clone()),
        asked: c.flags & (CHECKPOINT_ASKED | CHECKPOINT_NAMED) != 0,
        daily: c.is_daily(),
    }
}

impl Fs {
    /// Cuts a checkpoint of everything received, durably; with a name, a snapshot.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when the name is taken or impossible.
    pub fn checkpoint_create(&self, name: Option<&[u8]>) -> Result<CheckpointInfo> {
        if let Some(n) = name {
            check_name(n)?;
        }
        let flags = CHECKPOINT_ASKED | if name.is_some() { CHECKPOINT_NAMED } else { 0 };
        drop(self.room(Room::Passing(1))?);
        self.cut(flags, name.unwrap_or(b""), &|inner| name.map_or(Ok(()), |n| inner.name_is_free(n, None)))
    }

    /// Cuts an unnamed checkpoint because time has passed.
    pub(super) fn cut_unnamed(&self) -> Result<()> {
        self.cut(0, b"", &|_| Ok(())).map(drop)
    }

    /// Cuts a checkpoint, with what is done before under the same lock: unless that is refused.
    fn cut(&self, flags: u32, name: &[u8], before: &dyn Fn(&mut Inner) -> Result<()>) -> Result<CheckpointInfo> {
        drop(self.lock_to_change()?);
        self.settle_all(Pace::BesideSyncs(Who::Commits), false)?;
        let mut inner = self.turn(self.lock_to_change()?);
        if let Err(e) = inner.check_alive().and_then(|()| before(&mut inner)) {
            self.leave(inner);
            return Err(e);
        }
        let (tx, rx) = mpsc::channel();
        inner.join_all(false);
        inner.batch.waiters.push(Box::new(move |r| drop(tx.send(r))));
        inner.last_cut_at = self.clock.monotonic_nanos();
        inner.changed_since_cut = false;
        let cno = inner.state.open_cno;
        let cut = Cut { wall: self.clock.wall(), flags, name: name.to_vec() };
        self.lead(inner, Some(cut), Stay::Briefly);
        self.answer(&rx)?;
        let inner = self.lock();
        inner.state.kept.get(&cno).map(|c| info(cno, c)).ok_or(Error::Stale)
    }

    /// All kept checkpoints, oldest first.
    #[must_use]
    pub fn checkpoints(&self) -> Vec<CheckpointInfo> {
        self.lock().state.kept.iter().map(|(cno, c)| info(*cno, c)).collect()
    }

    /// How many checkpoints were cut so far, whatever became of them.
    #[must_use]
    pub fn checkpoints_cut(&self) -> u64 {
        self.lock().state.open_cno.0.saturating_sub(1)
    }

    /// The snapshot of this name.
    #[must_use]
    pub fn checkpoint_find(&self, name: &[u8]) -> Option<CheckpointInfo> {
        let inner = self.lock();
        inner.state.kept.iter().find(|(_, c)| c.is_named() && c.name == name).map(|(cno, c)| info(*cno, c))
    }

    /// Names a checkpoint, which makes it a snapshot; `None` takes the name away.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when the checkpoint is unknown or has another name, or the name is taken.
    pub fn checkpoint_name(&self, cno: Cno, name: Option<&[u8]>) -> Result<()> {
        if let Some(n) = name {
            check_name(n)?;
        }
        let mut inner = self.room_to_let_go()?;
        inner.may_be_named(cno, name)?;
        match name {
            // What dies in the open checkpoint may have done so before, and a name counts for what dies later: one that is cut with it
            // lets nothing die in between.
            Some(name) if !inner.is_snapshot(cno) && !broken(Break::LateNameUncut) => {
                drop(inner);
                self.cut(0, b"", &|inner| {
                    inner.may_be_named(cno, Some(name))?;
                    inner.log(&Record::NameCheckpoint { cno, name }, self.clock.monotonic_nanos())
                })?;
            }
            name => {
                inner.log(&Record::NameCheckpoint { cno, name: name.unwrap_or(b"") }, self.clock.monotonic_nanos())?;
                drop(inner);
                self.sync_received(false)?;
            }
        }
        // Where that cannot be read, all of history counts as kept.
        drop(self.recount_named_history());
        Ok(())
    }

    /// Lets checkpoints go. What only they saw is freed in the background.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when one is unknown or named.
    pub fn checkpoint_drop(&self, cnos: &[Cno]) -> Result<()> {
        let inner = self.room_to_let_go()?;
        for cno in cnos {
            match inner.state.kept.get(cno) {
                None => return Err(Error::Checkpoint(format!("there is no checkpoint {cno}"))),
                Some(c) if c.is_named() => {
                    let name = String::from_utf8_lossy(&c.name).into_owned();
                    return Err(Error::Checkpoint(format!(
                        "checkpoint {cno} is kept as snapshot {name}; delete that first"
                    )));
                }
                Some(_) => {}
            }
        }
        self.let_go(inner, cnos)
    }

    /// As [`Fs::checkpoint_drop`], of those that are still there, have no name, and do not stay as `stays` says at the last moment: others
    /// may let some go, or name or mount them, at any time, and that keeps the rest from nothing. How many went.
    ///
    /// # Errors
    /// Where that cannot be committed.
    pub fn checkpoint_drop_unnamed(&self, cnos: &[Cno], stays: &dyn Fn(Cno) -> bool) -> Result<usize> {
        let inner = self.room_to_let_go()?;
        let goes = |cno: &Cno| inner.state.kept.get(cno).is_some_and(|c| !c.is_named()) && !stays(*cno);
        let going: Vec<Cno> = cnos.iter().copied().filter(goes).collect();
        // What somebody else has just let go is gone for good, too, when this returns.
        self.let_go(inner, &going).map(|()| going.len())
    }

    /// Takes a snapshot's name away and lets it go, both or neither. What it was; none where `cno` is no such snapshot (any more), or stays
    /// as `stays` says at the last moment.
    ///
    /// # Errors
    /// Where that cannot be committed.
    pub fn snapshot_drop(&self, cno: Cno, name: &[u8], stays: &dyn Fn(Cno) -> bool) -> Result<Option<CheckpointInfo>> {
        let mut inner = self.room_to_let_go()?;
        let is_it = |c: &&Checkpoint| c.is_named() && c.name == name && !stays(cno);
        let found = inner.state.kept.get(&cno).filter(is_it).map(|c| info(cno, c));
        if found.is_some() {
            inner.log(&Record::NameCheckpoint { cno, name: b"" }, self.clock.monotonic_nanos())?;
        }
        if broken(Break::DeletedInHalves) {
            drop(inner);
            self.sync_received(false)?;
            inner = self.room_to_let_go()?;
        }
        self.let_go(inner, found.as_ref().map(|found| found.cno).as_slice())?;
        // Where that cannot be read, all of history counts as kept.
        drop(self.recount_named_history());
        Ok(found)
    }

    /// Lets checkpoints go that are there and have no name.
    fn let_go(&self, mut inner: Guard<'_>, cnos: &[Cno]) -> Result<()> {
        inner.log_drops(cnos, self.clock.monotonic_nanos())?;
        if broken(Break::DeletedBesides) {
            let oldest = inner.state.kept.iter().find(|(_, c)| !c.is_named()).map(|(cno, _)| *cno);
            inner.log_drops(oldest.as_slice(), self.clock.monotonic_nanos())?;
        }
        inner.sweep_wanted |= !cnos.is_empty();
        drop(inner);
        if broken(Break::DeletedUnsynced) { Ok(()) } else { self.sync_received(false) }
    }

    /// Commits everything, writes the index and a clean superblock. Nothing
    /// can be changed afterwards.
    ///
    /// # Errors
    /// When a write or flush failed, now or earlier.
    pub fn close(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.thin_at_end();
        // What was accepted before is part of the commit, and nothing is after.
        self.lock().closing = true;
        // Nobody commits by time from now on, and what is under way may wait for a device for long.
        let committed = if broken(Break::ClosesLate) { Ok(()) } else { self.sync_all() };
        self.stop_cleaning();
        // What it has under way must have ended before another may own the devices.
        drop(self.wiper());
        drop(self.joiner());
        self.stop_laying();
        committed?;
        self.sync_all()?;
        let mut inner = self.lock();
        let stamp = inner.data_stamp(self.clock.wall());
        let closed = {
            let Inner { data, hot, cold, state, .. } = &mut *inner;
            [data, hot, cold].map(|log| log.finish(stamp, &self.storage, &mut state.segments)).into_iter().flatten()
        };
        inner.start_summaries(self, closed)?;
        drop(inner);
        self.index_checkpoint(true)?;
        self.end_beats()?;
        self.lock().closed = true;
        Ok(())
    }

    /// Writes dirty index nodes and a new root: recovery starts there from then on.
    pub(crate) fn index_checkpoint(&self, clean: bool) -> Result<()> {
        let _way = super::beside::giving_way();
        self.tidy_index()?;
        self.index_checkpoint_as_is(clean)
    }

    /// [`Fs::index_checkpoint`], of nothing but what is dirty already.
    pub(crate) fn index_checkpoint_as_is(&self, clean: bool) -> Result<()> {
        // Summaries and data under way must be on the device before the root is.
        // Most are waited for here, while others go on committing.
        let writes = self.lock().take_writes(|_| true);
        self.finish_writes(writes)?;
        self.owns_to_write()?;
        let _lost = Lost(self);
        let mut inner = self.lock();
        while inner.checkpointing && inner.failed.is_none() {
            inner = self.wait_idle(inner);
        }
        inner.check_alive()?;
        inner.checkpointing = true;
        inner = self.turn(inner);
        if self.options.order == Order::Strict {
            // Names received after content must not be committed before it.
            inner.join_all(false);
        }
        let mut sealed = inner.seal(self, None);
        let freeze =
            if sealed.is_ok() { inner.freeze(self) } else { Err(Error::Failed("the log could not be written".into())) };
        if let Ok(commit) = &mut sealed {
            // Not one may be under way when segments are given out anew.
            commit.wait_for_all(&mut inner);
            inner.leading.may_be_relieved();
        }
        drop(inner);
        let committed = self.end_commit(sealed);
        let result = committed.and_then(|()| self.write_freeze(&freeze?, clean));
        let mut inner = self.lock();
        if let Err(e) = &result {
            inner.fail(&e.to_string());
        }
        inner.checkpointing = false;
        self.wake_idle(&inner);
        drop(inner);
        result
    }

    /// Carries out a commit sealed by an index checkpoint, and leads those
    /// that came meanwhile.
    fn end_commit(&self, sealed: std::result::Result<Commit, Answers>) -> Result<()> {
        let _hurry = hurrying();
        let answers = match sealed.map(|commit| self.carry_out(commit)) {
            Ok(Ended::Now(answers)) => answers,
            Err(answers) => vec![answers],
            // None is under way beside it, and it cannot count on what it waits for.
            Ok(Ended::Later(inner)) => {
                self.leave(inner);
                return Err(Error::Failed("a commit was under way beside an index checkpoint".into()));
            }
        };
        let result = answers.iter().try_for_each(|a| a.result.clone());
        self.leave(self.tell(answers));
        result
    }

    fn write_freeze(&self, freeze: &Freeze, clean: bool) -> Result<()> {
        let mut writes = FewWrites::default();
        let mut roots: Vec<TreeRoot> = Vec::new();
        for (id, frozen, deaths, sealed) in &freeze.trees {
            let mut root = frozen.write(freeze.generation.0, &mut |node, level, first| {
                self.owns_to_write()?;
                let places = self.place_node(*id, node, level, first, freeze.stamp, &mut writes)?;
                self.hold_background(&mut writes)?;
                Ok(places)
            })?;
            root.deaths = *deaths;
            root.sealed = *sealed;
            roots.push(root);
        }
        self.owns_to_write()?;
        let mut inner = self.lock();
        for copy in 0..2 {
            if let Some((addr, bytes)) = inner.index[copy].take(freeze.stamp) {
                self.start_index_write(addr, bytes, &mut writes)?;
            }
        }
        let empty: Vec<TreeId> = roots.iter().filter(|r| r.ptr.is_none() && r.sealed).map(|r| r.tree).collect();
        inner.settle(freeze, &empty);
        let mut root = freeze.root.clone();
        root.trees = roots;
        root.index_segments = inner.state.segments.index_segments(freeze.generation);
        let bytes = root.encode();
        if Root::decode(&bytes).is_err() && !broken(Break::CountersBelieved) {
            return Err(Error::Corrupt("a counter of the volume is beyond what a root can state".into()));
        }
        let blocks = nenrin_format::partial::summary_blocks(bytes.len(), 0);
        let mut places = [(Addr::NONE, 0); 2];
        for (copy, place) in places.iter_mut().enumerate() {
            let avoided = self.ensure_index_room(&mut inner, copy, blocks, freeze.stamp, &mut writes)?;
            let (log, where_to) = (&mut inner.index[copy], (&*self.storage, avoided));
            let (addr, data, crc) = log.root(&bytes, blocks, freeze.stamp, where_to).ok_or(Error::NoSpace)?;
            *place = (addr, crc);
            self.start_index_write(addr, data, &mut writes)?;
        }
        inner.frozen_nodes = 0;
        let mut superblock = inner.superblock.clone();
        drop(inner);
        writes.wait(&self.storage)?;
        self.lock().unload(freeze);
        if flushes_roots(self.options.barrier) && !broken(Break::RootBeforeFlush) {
            self.flush_device()?;
        }
        superblock.generation = freeze.generation;
        superblock.epoch = freeze.chain.epoch;
        superblock.mount_id = freeze.chain.mount_id;
        superblock.clean = clean;
        superblock.written_at = freeze.stamp.now;
        superblock.root = places;
        superblock.root_blocks = blocks;
        superblock.chain = (freeze.chain.segment, freeze.chain.block);
        superblock.chain_next = freeze.chain.next;
        superblock.chain_seq = freeze.chain.seq;
        superblock.chain_last = freeze.chain.last_addr;
        superblock.chain_crc = freeze.chain.last_crc;
        self.publish(superblock, freeze)
    }

    /// Writes the superblock, and frees what no usable root needs any more.
    fn publish(&self, mut superblock: Superblock, freeze: &Freeze) -> Result<()> {
        let now = self.clock.monotonic_nanos();
        let (before, suspended) = {
            let mut inner = self.lock();
            let suspended = inner.suspended.note(&*self.clock);
            superblock.mounted_nanos = inner.mounted_nanos(now);
            superblock.scrubbed = inner.superblock.scrubbed;
            (inner.generation(), suspended)
        };
        if !flushes_roots(self.options.barrier) {
            self.owns_to_write()?;
            self.storage.protect_unflushed()?;
        }
        self.still_owns()?;
        self.storage.write_slots(&superblock)?;
        if flushes_roots(self.options.barrier) {
            self.flush_device()?;
        }
        let mut inner = self.lock();
        for (addr, _) in &superblock.root {
            inner.segments().pin(addr.segment());
        }
        inner.root_pins.push_back(superblock.root.map(|(addr, _)| addr.segment()));
        while inner.root_pins.len() > 2 {
            for segment in inner.root_pins.pop_front().into_iter().flatten() {
                inner.segments().unpin(segment);
            }
        }
        // What was found meanwhile the next root says.
        inner.superblock = Superblock { scrubbed: inner.superblock.scrubbed, ..superblock };
        inner.mounted_at = now;
        inner.suspended.take_off(suspended);
        if self.options.barrier != Barrier::None {
            inner.durable_seq = inner.durable_seq.max(freeze.chain.seq);
        }
        inner.counters.index_checkpoints += 1;
        if self.options.discard {
            let ready = inner.segments().promotable(before);
            drop(inner);
            self.discard(&ready)?;
            inner = self.lock();
        }
        inner.segments().promote(before);
        inner.share_to_let_go(self);
        Ok(())
    }

    /// Tells the device that segments hold nothing of value, and waits: a
    /// discard under way must never meet a write to the same segment.
    pub(super) fn discard(&self, segments: &[SegmentNo]) -> Result<()> {
        self.owns_to_write()?;
        let tickets = segments.iter().map(|s| self.storage.submit_discard(*s)).collect::<Result<Vec<_>>>()?;
        for t in tickets.into_iter().flatten() {
            // Advice only: a device that refuses it keeps working.
            drop(t.wait());
        }
        Ok(())
    }

    fn start_index_write(&self, addr: Addr, bytes: AlignedBuf, writes: &mut FewWrites) -> Result<()> {
        let blocks = (bytes.len() / BLOCK_BYTES) as u32;
        writes.push(self.storage.submit_write(addr, Arc::new(bytes))?, blocks);
        Ok(())
    }

    /// Gives a node its two places; full partials are written on the way.
    fn place_node(
        &self,
        tree: TreeId,
        node: &[u8],
        level: u8,
        first: &Key,
        stamp: IndexStamp,
        writes: &mut FewWrites,
    ) -> Result<[Addr; 2]> {
        let mut inner = self.lock();
        inner.counters.nodes += 1;
        inner.counters.upper_nodes += u64::from(level > 1);
        inner.frozen_nodes = inner.frozen_nodes.saturating_sub(1);
        let mut out = [Addr::NONE; 2];
        for (copy, addr) in out.iter_mut().enumerate() {
            if inner.index[copy].is_full() {
                if let Some((at, bytes)) = inner.index[copy].take(stamp) {
                    self.start_index_write(at, bytes, writes)?;
                }
            }
            let avoided = self.ensure_index_room(&mut inner, copy, NODE_BLOCKS, stamp, writes)?;
            let where_to = (&*self.storage, avoided);
            *addr = inner.index[copy].push(tree, level, first, node, where_to).ok_or(Error::NoSpace)?;
            let segment = addr.segment();
            inner.segments().add_node(segment);
        }
        Ok(out)
    }

    fn ensure_index_room(
        &self,
        inner: &mut Inner,
        copy: usize,
        blocks: u32,
        stamp: IndexStamp,
        writes: &mut FewWrites,
    ) -> Result<Avoided> {
        let storage = &*self.storage;
        let mut avoided = inner.steer(self);
        let all = inner.index[copy].segment.is_some_and(|s| storage.is_avoided(s, avoided));
        // What fits nowhere else goes where it would have gone.
        if storage.longest_run(avoided) < 1 + blocks || all && !inner.segments().has_better() {
            avoided = Avoided::NONE;
        }
        if inner.index[copy].has_room(blocks, storage, avoided) {
            return Ok(avoided);
        }
        if let Some((at, bytes)) = inner.index[copy].take(stamp) {
            self.start_index_write(at, bytes, writes)?;
        }
        if inner.index[copy].has_room(blocks, storage, avoided) {
            return Ok(avoided);
        }
        if blocks + 1 > self.storage.segment_blocks {
            return Err(Error::TooLarge);
        }
        let fresh = inner.segments().allocate(KIND_INDEX, stamp.now).ok_or(Error::NoSpace)?;
        self.storage.begin_segment(fresh);
        if let Some(old) = inner.index[copy].segment {
            let block = inner.index[copy].block;
            self.storage.end_segment(old, block);
            inner.segments().seal(old);
        }
        inner.index[copy].start_segment(fresh);
        // There may have been none but on a slow device.
        let fits = inner.index[copy].has_room(blocks, storage, avoided);
        Ok(if fits { avoided } else { Avoided::NONE })
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    let bad = name.is_empty()
        || name.len() > 255
        || name.contains(&b'/')
        || name.contains(&0)
        || name.iter().all(u8::is_ascii_digit);
    if bad {
        return Err(Error::Checkpoint("a snapshot's name has 1 to 255 bytes, no slash, and is not a number".into()));
    }
    Ok(())
}

impl Inner {
    fn is_snapshot(&self, cno: Cno) -> bool {
        self.state.kept.get(&cno).is_some_and(Checkpoint::is_named)
    }

    /// That no other checkpoint than this one has the name.
    fn name_is_free(&self, name: &[u8], of: Option<Cno>) -> Result<()> {
        if self.state.kept.iter().any(|(c, k)| Some(*c) != of && k.is_named() && k.name == name) {
            return Err(Error::Checkpoint(format!("a snapshot named {} exists", String::from_utf8_lossy(name))));
        }
        Ok(())
    }

    /// That a checkpoint is there, and may get this name or lose the one it has.
    fn may_be_named(&self, cno: Cno, name: Option<&[u8]>) -> Result<()> {
        let Some(kept) = self.state.kept.get(&cno) else {
            return Err(Error::Checkpoint(format!("there is no checkpoint {cno}")));
        };
        let Some(name) = name else { return Ok(()) };
        if kept.is_named() && kept.name != name {
            let has = String::from_utf8_lossy(&kept.name);
            return Err(Error::Checkpoint(format!(
                "checkpoint {cno} is the snapshot {has} already, and has one name: use that, or make a new snapshot of what there is now"
            )));
        }
        self.name_is_free(name, Some(cno))
    }

    /// Freezes trees and counters. The batch was sealed just before, so the
    /// state is exactly what the chain says up to its last partial.
    fn freeze(&mut self, fs: &Fs) -> Result<Freeze> {
        let generation = self.state.segments.next_generation;
        let seq = self.chain.seq;
        self.state.segments.chain_contained(seq);
        self.state.store_segments()?;
        self.state.segments.next_generation = generation.next();
        // Others must not take meanwhile what these nodes need.
        self.frozen_nodes = self.dirty_nodes();
        self.window_bytes = 0;
        self.flushed_blocks = self.named_blocks;
        let s = &mut self.state;
        let root = Root {
            next_ino: s.next_ino,
            open_cno: s.open_cno,
            last_cno: s.last_cno,
            next_tree: s.next_tree,
            inodes: s.inodes,
            live_blocks: s.live_blocks,
            history_blocks: s.history_blocks,
            named_blocks: s.named_blocks,
            promised_blocks: s.promised_blocks,
            retention: s.retention.clone(),
            past: s.stated_past(),
            trees: Vec::new(),
            index_segments: Vec::new(),
        };
        let none = (Cno(0), Cno(0));
        let mut trees =
            vec![(TreeId::LIVE, s.live.freeze(), none, false), (TreeId::SPACE, s.space.freeze(), none, false)];
        for t in &mut s.history {
            trees.push((t.tree.id(), t.tree.freeze(), t.deaths, t.sealed));
        }
        let stamp = IndexStamp {
            uuid: self.chain.uuid,
            epoch: self.chain.epoch,
            seq,
            open_cno: self.state.open_cno,
            now: fs.clock.wall(),
        };
        Ok(Freeze { generation, chain: self.chain.clone(), root, trees, stamp })
    }

    /// The frozen trees have their places: node versions that this root does
    /// not need stop counting.
    fn settle(&mut self, freeze: &Freeze, empty: &[TreeId]) {
        let State { live, space, history, cache, segments, .. } = &mut self.state;
        let mut freed: Vec<NodePtr> = live.settle(cache);
        freed.extend(space.settle(cache));
        for t in history.iter_mut() {
            if freeze.trees.iter().any(|(id, ..)| *id == t.tree.id()) {
                freed.extend(t.tree.settle(cache));
            }
        }
        history.retain(|t| !(empty.contains(&t.tree.id()) && t.tree.items() == 0));
        // Emptied by this root, not by the next one.
        let next = std::mem::replace(&mut segments.next_generation, freeze.generation);
        for ptr in freed {
            for addr in ptr.copies {
                segments.sub_node(addr.segment());
            }
        }
        segments.next_generation = next;
    }
    /// The device has the frozen trees: memory may let their nodes go.
    fn unload(&mut self, freeze: &Freeze) {
        let State { live, space, history, cache, .. } = &mut self.state;
        live.unload(cache);
        space.unload(cache);
        for t in history.iter_mut() {
            if freeze.trees.iter().any(|(id, ..)| *id == t.tree.id()) {
                t.tree.unload(cache);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::MountOptions;
    use crate::fs::Fs;
    use crate::testing::{create, device, mount};
    use nenrin_format::Ino;
    use std::sync::Arc;

    fn volume() -> Arc<Fs> {
        mount(&device(64, 64), MountOptions::default())
    }

    /// P7: while an index checkpoint gives its nodes their places, the
    /// segments it needs stay reserved for it.
    #[test]
    fn what_is_frozen_keeps_its_reserve() {
        let fs = volume();
        for i in 0..2000 {
            create(&fs, &format!("file number {i}"));
        }
        fs.sync_all().unwrap();
        let needed = fs.lock().checkpoint_segments(&fs);
        assert!(needed > 4, "{needed}");
        drop(fs.lock().freeze(&fs).unwrap());
        assert!(fs.lock().checkpoint_segments(&fs) >= needed, "the reserve was given away");
    }

    /// Under order=strict an index checkpoint commits content with the names
    /// that were received after it: what it seals is a sync like any other.
    #[test]
    fn strict_order_holds_for_what_an_index_checkpoint_commits() {
        let device = device(64, 64);
        let options = MountOptions { order: crate::Order::Strict, ..MountOptions::default() };
        let fs = mount(&device, options.clone());
        let first = create(&fs, "first");
        fs.sync_all().unwrap();
        fs.write(first, 0, &[7; 9000], 0).unwrap();
        create(&fs, "second");
        fs.index_checkpoint(false).unwrap();
        drop(fs);
        let fs = mount(&device, options);
        fs.lookup(crate::At::Live, Ino::ROOT, b"second").unwrap();
        assert_eq!(fs.read(crate::At::Live, first, 0, 10_000).unwrap(), [7; 9000]);
    }

    /// When it is done, nothing stays reserved.
    #[test]
    fn what_was_written_needs_no_reserve() {
        let fs = volume();
        fs.index_checkpoint(false).unwrap();
        assert_eq!(fs.lock().frozen_nodes, 0);
    }
}
