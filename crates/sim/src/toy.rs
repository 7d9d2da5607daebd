//! A file system that is right by construction, or wrong in one chosen way:
//! the harness is tried on it, so that an oracle that notices nothing shows.
//!
//! Every commit writes a whole new state to the other of two slots and
//! flushes. What the slot holds is noise that names the state and fills as
//! many blocks as the state would; the states themselves are kept in memory,
//! by name, for the life of the process.

use crate::content::Content;
use crate::hash;
use crate::members::Drive;
use crate::model::HOLD_NANOS;
use crate::subject::{Excused, Subject};
use crate::tree::{Fresh, Inode, Outcome, Tree};
use nenrin_core::{
    AllocateMode, At, Attr, CheckpointInfo, Clock, DirEntry, Done, Error, FileKind, MountOptions, NewInode, Order,
    RenameMode, Result, Seek, SetAttr, XattrMode,
};
use nenrin_device::{AlignedBuf, BLOCK_BYTES, BlockDevice};
use nenrin_format::{Cno, Ino};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Ways to be wrong.
pub mod broken {
    /// Not at all.
    pub const NOT: u8 = 0;
    /// fsync does not flush.
    pub const NO_FLUSH: u8 = 1;
    /// A file's commit takes the new size and leaves the first page.
    pub const MIXED: u8 = 2;
    /// The oldest namespace operation of a commit comes with the next one.
    pub const NAMESPACE_ORDER: u8 = 3;
    /// Every commit carries truncations that should be held back.
    pub const NO_HOLD: u8 = 4;
    /// A rename over a name does not carry content.
    pub const NO_CARRY: u8 = 5;
    /// A checkpoint shows the present.
    pub const PAST_IS_PRESENT: u8 = 6;
    /// `order=strict` is taken for `relaxed`.
    pub const NOT_STRICT: u8 = 7;
    /// Both states lie in one slot.
    pub const ONE_SLOT: u8 = 8;
    /// The slot is believed without its checksum, and what is torn reads as an empty file.
    pub const TORN: u8 = 9;
    /// Recovery forgets one attribute and nothing else.
    pub const FORGETFUL: u8 = 10;
    /// A failed write is ignored.
    pub const DEAF: u8 = 11;
    /// Recovery panics once there is more than a little to recover.
    pub const PANICS: u8 = 12;
    /// A truncation is held back until its file is closed, if it never is.
    pub const HOLDS_FOREVER: u8 = 13;
}

const MAGIC: u64 = 0x796f_7420_6e69_7265;
const SLOT_BLOCKS: u64 = 64;

/// What one slot stands for.
#[derive(Clone, Debug, Default)]
struct State {
    tree: Tree,
    checkpoints: Vec<(CheckpointInfo, Arc<Tree>)>,
    next_ino: u64,
    next_cno: u64,
}

struct Inner {
    live: State,
    committed: State,
    dirty: BTreeSet<u64>,
    /// Since when a truncation is held back, by file.
    held: BTreeMap<u64, u64>,
    number: u64,
    changed: bool,
    failed: Option<String>,
    last_cut_nanos: u64,
    cut: u64,
}

/// The toy; `WRONG` is one of [`broken`].
pub struct Toy<const WRONG: u8> {
    inner: Mutex<Inner>,
    device: Arc<dyn BlockDevice>,
    clock: Arc<dyn Clock>,
    options: MountOptions,
}

fn states() -> MutexGuard<'static, HashMap<u64, State>> {
    static STATES: OnceLock<Mutex<HashMap<u64, State>>> = OnceLock::new();
    STATES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn slot_bytes(number: u64, id: u64, blocks: u64) -> Vec<u8> {
    let mut out = vec![0; blocks as usize * BLOCK_BYTES];
    for (i, cell) in out.chunks_exact_mut(8).enumerate() {
        cell.copy_from_slice(&hash::of_words(&[id, i as u64]).to_le_bytes());
    }
    for (i, v) in [MAGIC, number, id, blocks].into_iter().enumerate() {
        out[i * 8..i * 8 + 8].copy_from_slice(&v.to_le_bytes());
    }
    out
}

fn slot_offset(wrong: u8, number: u64) -> u64 {
    let slot = if wrong == broken::ONE_SLOT { 0 } else { number % 2 };
    slot * SLOT_BLOCKS * BLOCK_BYTES as u64
}

fn write_slot(device: &dyn BlockDevice, wrong: u8, number: u64, state: &State) -> Result<()> {
    let pages: usize = state.tree.inodes.values().map(|i| i.content.pages().count()).sum();
    let blocks = (1 + pages as u64 / 4).min(SLOT_BLOCKS);
    let mut parts = vec![u64::from(wrong), number, state.tree.sum(), state.next_ino, state.next_cno];
    for i in state.tree.inodes.values() {
        parts.extend([i.content.fingerprint(), i.attr.mtime.0 as u64, i.attr.ctime.0 as u64]);
    }
    for (info, tree) in &state.checkpoints {
        let name = hash::of_bytes(0, info.name.as_deref().unwrap_or_default());
        parts.extend([info.cno.0, name, tree.sum(), u64::from(wrong)]);
        parts.extend(tree.inodes.values().map(|i| i.content.fingerprint()));
    }
    let id = hash::of_words(&parts);
    states().insert(id, state.clone());
    let data = Arc::new(AlignedBuf::padded(&slot_bytes(number, id, blocks)));
    device.write(slot_offset(wrong, number), data)?;
    Ok(())
}

/// The state in a slot and whether all of it is there.
fn read_slot(device: &dyn BlockDevice, offset: u64) -> Result<Option<(u64, State, bool)>> {
    let bytes = device.read(offset, SLOT_BLOCKS as usize * BLOCK_BYTES)?;
    let word = |i: usize| {
        let mut w = [0; 8];
        w.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
        u64::from_le_bytes(w)
    };
    let (number, id, blocks) = (word(1), word(2), word(3));
    if word(0) != MAGIC || blocks > SLOT_BLOCKS {
        return Ok(None);
    }
    let whole = slot_bytes(number, id, blocks);
    let state = states().get(&id).cloned();
    Ok(state.map(|s| (number, s, bytes[..whole.len()] == whole[..])))
}

impl<const WRONG: u8> Toy<WRONG> {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the namespace and the content of `which`, flushes.
    fn commit(&self, s: &mut Inner, which: &BTreeSet<u64>) -> Result<()> {
        if let Some(why) = &s.failed {
            return Err(Error::Failed(why.clone()));
        }
        let mut next = s.live.clone();
        next.tree = Tree::default();
        let old_names = WRONG == broken::NAMESPACE_ORDER && s.number % 3 == 1;
        for (ino, inode) in s.live.tree.inodes.iter().filter(|(_, i)| i.attr.nlink > 0) {
            let before = s.committed.tree.inodes.get(ino);
            let mut i = inode.clone();
            i.uses = 0;
            if let (true, Some(b)) = (old_names, before) {
                i.attr.mode = b.attr.mode;
                i.attr.uid = b.attr.uid;
            }
            if s.dirty.contains(ino) && !which.contains(ino) {
                i.content = before.map(|b| b.content.clone()).unwrap_or_default();
                i.attr.mtime = before.map_or(i.attr.btime, |b| b.attr.mtime);
                i.attr.ctime = before.map_or(i.attr.btime, |b| b.attr.ctime);
            } else if let (broken::MIXED, true, Some(b)) = (WRONG, s.dirty.contains(ino), before) {
                i.content.write(0, &b.content.read(0, BLOCK_BYTES.min(i.content.size() as usize)));
            }
            i.attr.size = if i.attr.kind() == FileKind::Regular { i.content.size() } else { i.attr.size };
            next.tree.insert(i);
        }
        s.number += 1;
        let done = write_slot(&*self.device, WRONG, s.number, &next)
            .and_then(|()| if WRONG == broken::NO_FLUSH { Ok(()) } else { Ok(self.device.flush()?) });
        match done {
            Err(e) if WRONG != broken::DEAF => {
                s.failed = Some(e.to_string());
                return Err(e);
            }
            _ => {}
        }
        s.committed = next;
        s.dirty.retain(|i| !which.contains(i));
        s.changed = false;
        Ok(())
    }

    fn commit_all(&self, s: &mut Inner) -> Result<()> {
        let holds = WRONG != broken::NO_HOLD;
        let which = s.dirty.iter().filter(|i| !holds || !s.held.contains_key(i)).copied().collect();
        self.commit(s, &which)
    }

    fn commit_one(&self, s: &mut Inner, ino: u64) -> Result<()> {
        s.held.remove(&ino);
        if self.options.order == Order::Strict && WRONG != broken::NOT_STRICT || WRONG == broken::NO_HOLD {
            return self.commit_all(s);
        }
        self.commit(s, &BTreeSet::from([ino]))
    }

    fn content<T>(&self, ino: Ino, f: impl FnOnce(&mut Tree) -> Outcome<T>) -> Result<T> {
        let mut s = self.lock();
        if let Some(why) = &s.failed {
            return Err(Error::Failed(why.clone()));
        }
        let value = f(&mut s.live.tree)?;
        s.dirty.insert(ino.0);
        s.changed = true;
        Ok(value)
    }

    fn namespace<T>(&self, f: impl FnOnce(&mut State) -> Outcome<T>) -> Result<T> {
        let mut s = self.lock();
        if let Some(why) = &s.failed {
            return Err(Error::Failed(why.clone()));
        }
        let value = f(&mut s.live)?;
        s.changed = true;
        Ok(value)
    }

    fn view<T>(&self, at: At, f: impl FnOnce(&Tree) -> Outcome<T>) -> Result<T> {
        let s = self.lock();
        match at {
            At::Live => f(&s.live.tree),
            At::Past(cno) => {
                let found = s.live.checkpoints.iter().find(|(i, _)| i.cno == cno);
                let (_, tree) = found.ok_or(Error::Stale)?;
                f(if WRONG == broken::PAST_IS_PRESENT { &s.live.tree } else { tree })
            }
        }
    }

    fn cut(&self, s: &mut Inner, name: Option<&[u8]>, asked: bool) -> Result<CheckpointInfo> {
        self.commit_all(s)?;
        s.live.next_cno += 1;
        s.cut += 1;
        let name = name.map(<[u8]>::to_vec);
        let info = CheckpointInfo { cno: Cno(s.live.next_cno), wall: self.clock.wall(), name, asked, daily: false };
        s.live.checkpoints.push((info.clone(), Arc::new(s.committed.tree.clone())));
        self.commit_all(s)?;
        Ok(info)
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.getattr(At::Live, ino)
    }
}

fn attr_of(i: &Inode) -> Attr {
    i.attr
}

impl<const WRONG: u8> Subject for Toy<WRONG> {
    const NAME: &'static str = "toy";
    const CARRIES: bool = false;
    const LISTS_ON: bool = false;
    const READS_ONLY: bool = false;

    fn mkfs(device: &Arc<dyn BlockDevice>, clock: &Arc<dyn Clock>, _segment_blocks: u32) -> Result<()> {
        let mut state = State { next_ino: Ino::FIRST.0, ..State::default() };
        let root = Fresh { ino: Ino::ROOT.0, mode: 0o040_755, uid: 0, gid: 0, rdev: 0, target: Vec::new() };
        state.tree.create(None, &root, clock.wall())?;
        if let Some(mut i) = state.tree.inodes.get(&Ino::ROOT.0).cloned() {
            i.attr.nlink = 2;
            state.tree.insert(i);
        }
        write_slot(device.as_ref(), WRONG, 0, &state)?;
        device.flush()?;
        Ok(())
    }

    fn open(drive: impl Into<Drive>, clock: Arc<dyn Clock>, options: MountOptions) -> Result<Self> {
        let device = drive.into().only()?;
        let mut best: Option<(u64, State)> = None;
        for number in 0..2 {
            let Some((n, mut state, whole)) = read_slot(&*device, slot_offset(WRONG, number))? else { continue };
            if best.as_ref().is_some_and(|b| b.0 >= n) || !whole && WRONG != broken::TORN {
                continue;
            }
            if let (false, Some(i)) = (whole, state.tree.inodes.values_mut().last()) {
                i.content = Content::default();
                i.attr.size = 0;
            }
            best = Some((n, state));
        }
        let Some((number, mut state)) = best else { return Err(Error::Open("no state".into())) };
        assert!(WRONG != broken::PANICS || number < 6, "the toy panics at state {number}");
        if WRONG == broken::FORGETFUL && number > 3 {
            let victim = state.tree.inodes.values().rfind(|i| !i.xattrs.is_empty()).cloned();
            if let Some(mut i) = victim {
                i.xattrs.pop_last();
                state.tree.inodes.remove(&i.attr.ino.0);
                state.tree = rebuilt(state.tree, i);
            }
        }
        let inner = Inner {
            committed: state.clone(),
            live: state,
            dirty: BTreeSet::new(),
            held: BTreeMap::new(),
            number,
            changed: false,
            failed: None,
            last_cut_nanos: clock.monotonic_nanos(),
            cut: 0,
        };
        let this = Self { inner: Mutex::new(inner), device, clock, options };
        this.commit_all(&mut this.lock())?;
        Ok(this)
    }

    fn checkpoints_cut(&self) -> u64 {
        self.lock().cut
    }
    fn check(drive: impl Into<Drive>, _excused: Excused) -> Result<Vec<String>> {
        let device = drive.into().only()?;
        let slots = [read_slot(&*device, slot_offset(WRONG, 0))?, read_slot(&*device, slot_offset(WRONG, 1))?];
        Ok(if slots.iter().flatten().any(|s| s.2) { Vec::new() } else { vec!["no whole slot".into()] })
    }
    fn close(&self) -> Result<()> {
        let mut s = self.lock();
        s.held.clear();
        self.commit_all(&mut s)
    }
    fn lookup(&self, at: At, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.view(at, |t| {
            let child = t.inode(parent.0)?.entries.get(name).ok_or(Error::NotFound)?;
            t.inode(*child).map(attr_of)
        })
    }
    fn getattr(&self, at: At, ino: Ino) -> Result<Attr> {
        self.view(at, |t| t.inode(ino.0).map(attr_of))
    }
    fn readlink(&self, at: At, ino: Ino) -> Result<Vec<u8>> {
        self.view(at, |t| Ok(t.inode(ino.0)?.target.clone()))
    }
    fn read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        self.view(at, |t| Ok(t.inode(ino.0)?.content.read(offset, bytes)))
    }
    fn readdir(&self, at: At, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let all = self.view(at, |t| {
            let d = t.inode(dir.0)?;
            let up = if dir == Ino::ROOT { dir.0 } else { d.parent };
            let dots = [(b".".to_vec(), dir.0), (b"..".to_vec(), up)];
            let names = dots.into_iter().chain(d.entries.iter().map(|(n, i)| (n.clone(), *i)));
            let entry = |(name, ino): (Vec<u8>, u64)| {
                let kind = t.inode(ino)?.attr.kind();
                Ok(DirEntry { name, ino: Ino(ino), kind, cookie: 0 })
            };
            names.map(entry).collect::<Outcome<Vec<_>>>()
        })?;
        for (n, e) in all.into_iter().enumerate().skip(cookie as usize) {
            if !each(DirEntry { cookie: n as u64 + 1, ..e }) {
                break;
            }
        }
        Ok(())
    }
    fn getxattr(&self, at: At, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.view(at, |t| t.inode(ino.0)?.xattrs.get(name).cloned().ok_or(Error::NoAttribute))
    }
    fn listxattr(&self, at: At, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.view(at, |t| Ok(t.inode(ino.0)?.xattrs.keys().cloned().collect()))
    }
    fn seek(&self, at: At, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.view(at, |t| {
            let c = &t.inode(ino.0)?.content;
            let page = |p: u64| c.page(p) != 0;
            let mut here = offset;
            while here < c.size() {
                if page(here / 4096) == (what == Seek::Data) {
                    return Ok(here);
                }
                here = (here / 4096 + 1) * 4096;
                if what == Seek::Data {
                    let next = c.pages().find(|p| p * 4096 >= here);
                    here = next.map_or(c.size(), |p| p * 4096);
                }
            }
            if what == Seek::Hole && offset < c.size() { Ok(c.size()) } else { Err(Error::NoSuchOffset) }
        })
    }
    fn create(&self, parent: Ino, name: &[u8], new: &NewInode<'_>) -> Result<Attr> {
        let ino = self.namespace(|s| s.make(Some((parent.0, name)), new, self.clock.wall()))?;
        self.attr(ino)
    }
    fn tmpfile(&self, new: &NewInode<'_>) -> Result<Attr> {
        let ino = self.namespace(|s| s.make(None, new, self.clock.wall()))?;
        self.retain(ino);
        self.attr(ino)
    }
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.namespace(|s| s.tree.link(ino.0, parent.0, name, self.clock.wall()))?;
        self.commit_one(&mut self.lock(), ino.0)?;
        self.attr(ino)
    }
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.namespace(|s| s.tree.unlink(parent.0, name, self.clock.wall()).map(drop))
    }
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.namespace(|s| s.tree.rmdir(parent.0, name, self.clock.wall()).map(drop))
    }
    fn rename(&self, from: Ino, old: &[u8], to: Ino, new: &[u8], mode: RenameMode) -> Result<()> {
        let both = [self.lookup(At::Live, from, old), self.lookup(At::Live, to, new)];
        let now = self.clock.wall();
        self.namespace(|s| s.tree.rename(from.0, old, to.0, new, mode, now))?;
        let [Ok(a), Ok(b)] = both else { return Ok(()) };
        if a.ino == b.ino || WRONG == broken::NO_CARRY {
            return Ok(());
        }
        let mut s = self.lock();
        s.held.remove(&a.ino.0);
        s.held.remove(&b.ino.0);
        if self.options.order == Order::Strict {
            return self.commit_all(&mut s);
        }
        self.commit(&mut s, &BTreeSet::from([a.ino.0, b.ino.0]))
    }
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let now = self.clock.wall();
        if set.size.is_none() {
            self.namespace(|s| s.tree.setattr(ino.0, set, now))?;
            return self.attr(ino);
        }
        let mut s = self.lock();
        let full = s.live.tree.inode(ino.0)?.content.size() > 0;
        if set.size == Some(0) && full && !s.dirty.contains(&ino.0) {
            s.held.entry(ino.0).or_insert_with(|| self.clock.monotonic_nanos());
        }
        drop(s);
        self.content(ino, |t| t.setattr(ino.0, set, now))?;
        self.attr(ino)
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.namespace(|s| s.tree.setxattr(ino.0, name, value, mode, self.clock.wall()))
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.namespace(|s| s.tree.removexattr(ino.0, name, self.clock.wall()))
    }
    fn retain(&self, ino: Ino) {
        self.lock().live.tree.retain(ino.0);
    }
    fn release(&self, ino: Ino) {
        self.lock().live.tree.release(ino.0);
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8], _uid: u32) -> Result<usize> {
        self.content(ino, |t| t.write(ino.0, offset, data, self.clock.wall()))?;
        Ok(data.len())
    }
    fn allocate(&self, ino: Ino, mode: AllocateMode, offset: u64, bytes: u64) -> Result<()> {
        self.content(ino, |t| t.allocate(ino.0, mode, offset, bytes, self.clock.wall()))
    }
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), bytes: u64, _uid: u32) -> Result<u64> {
        let now = self.clock.wall();
        let data = self.lock().live.tree.copy_source((from.0.0, from.1), (to.0.0, to.1), bytes)?;
        if !data.is_empty() {
            self.content(to.0, |t| t.write(to.0.0, to.1, &data, now))?;
        }
        Ok(data.len() as u64)
    }
    fn flush(&self, ino: Ino) -> Result<()> {
        self.lock().held.remove(&ino.0);
        Ok(())
    }
    fn fsync(&self, ino: Ino, done: Done) {
        done(self.fsync_wait(ino));
    }
    fn fsync_wait(&self, ino: Ino) -> Result<()> {
        self.attr(ino)?;
        let mut s = self.lock();
        if self.options.order == Order::Strict {
            s.held.clear();
        }
        self.commit_one(&mut s, ino.0)
    }
    fn sync_all(&self) -> Result<()> {
        let mut s = self.lock();
        s.held.clear();
        self.commit_all(&mut s)
    }
    fn checkpoint_create(&self, name: Option<&[u8]>) -> Result<CheckpointInfo> {
        if name.is_some_and(|n| self.checkpoint_find(n).is_some()) {
            return Err(Error::Checkpoint("the name is taken".into()));
        }
        self.cut(&mut self.lock(), name, true)
    }
    fn checkpoints(&self) -> Vec<CheckpointInfo> {
        self.lock().live.checkpoints.iter().map(|c| c.0.clone()).collect()
    }
    fn checkpoint_name(&self, cno: Cno, name: Option<&[u8]>) -> Result<()> {
        if name.and_then(|n| self.checkpoint_find(n)).is_some_and(|c| c.cno != cno) {
            return Err(Error::Checkpoint("the name is taken".into()));
        }
        self.namespace(|s| {
            let mut found = s.checkpoints.iter_mut().filter(|c| c.0.cno == cno);
            let found = found.next().ok_or(Error::Stale)?;
            if name.is_some() && found.0.name.as_deref().is_some_and(|has| Some(has) != name) {
                return Err(Error::Checkpoint("it has another name".into()));
            }
            found.0.name = name.map(<[u8]>::to_vec);
            Ok(())
        })?;
        self.commit_all(&mut self.lock())
    }
    fn checkpoint_drop(&self, cnos: &[Cno]) -> Result<()> {
        self.namespace(|s| {
            if s.checkpoints.iter().any(|c| cnos.contains(&c.0.cno) && c.0.name.is_some()) {
                return Err(Error::Checkpoint("it has a name".into()));
            }
            s.checkpoints.retain(|c| !cnos.contains(&c.0.cno));
            Ok(())
        })?;
        self.commit_all(&mut self.lock())
    }
    fn checkpoint_find(&self, name: &[u8]) -> Option<CheckpointInfo> {
        self.checkpoints().into_iter().find(|c| c.name.as_deref() == Some(name))
    }
    fn failed(&self) -> Option<String> {
        self.lock().failed.clone()
    }
    fn tick(&self) -> Result<()> {
        let mut s = self.lock();
        if let Some(why) = &s.failed {
            return Err(Error::Failed(why.clone()));
        }
        let now = self.clock.monotonic_nanos();
        if WRONG != broken::HOLDS_FOREVER {
            s.held.retain(|_, since| now.saturating_sub(*since) < HOLD_NANOS);
        }
        let every = self.options.checkpoint_nanos;
        if s.changed && every > 0 && now - s.last_cut_nanos >= every {
            s.last_cut_nanos = now;
            self.cut(&mut s, None, false)?;
        }
        let waiting = s.changed || s.dirty.iter().any(|i| !s.held.contains_key(i));
        if waiting { self.commit_all(&mut s) } else { Ok(()) }
    }
}

impl State {
    fn make(&mut self, place: Option<(u64, &[u8])>, new: &NewInode<'_>, now: nenrin_format::Time) -> Outcome<Ino> {
        let ino = self.next_ino;
        let (mode, uid, gid, rdev) = (new.mode, new.uid, new.gid, new.rdev);
        self.tree.create(place, &Fresh { ino, mode, uid, gid, rdev, target: new.target.to_vec() }, now)?;
        self.next_ino += 1;
        Ok(Ino(ino))
    }
}

/// `tree` with `inode` put back, its sum computed anew.
fn rebuilt(tree: Tree, inode: Inode) -> Tree {
    let mut out = Tree::default();
    for i in tree.inodes.into_values() {
        out.insert(i);
    }
    out.insert(inode);
    out
}
