//! The model with versions: every state that each stream has been in, and
//! which device operation made each promise about them.
//!
//! Moments are counted in device operations: `start` is how many had been
//! issued when a call began, `end` when it returned. A call can have left a
//! trace on the device at a cut `k` only when `start < k`, and its promise
//! binds when `end <= k`.
//!
//! Invariants
//! 1. Namespace states are numbered by prefix: state `p` is what the first `p`
//!    namespace operations made. State 0 is what the mount found.
//! 2. A state of a file that is held back (DESIGN 4, O_TRUNC) is not visible
//!    before the call that ends the hold, and then only the last one.

use crate::checkpoint_log::{CheckpointLog, NameLog};
use crate::content::Content;
use crate::numbers::Numbers;
use crate::tree::{Outcome, Tree};
use crate::walk::{Found, Part};
use nenrin_core::{CheckpointInfo, FileKind};
use nenrin_format::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A held-back truncation is committed after this long at the latest.
pub const HOLD_NANOS: u64 = 30_000_000_000;

/// The namespace after some operation.
#[derive(Clone, Debug)]
pub struct NamespaceState {
    /// [`Tree::sum`].
    pub sum: u64,
    /// Device operations before the call.
    pub start: usize,
    /// Number of the call in the run.
    pub op: u32,
}

/// A file's content after some operation.
#[derive(Clone, Debug)]
pub struct FileState {
    /// The bytes.
    pub content: Content,
    /// [`Content::fingerprint`] of them.
    pub fingerprint: u64,
    /// Number of the call in the run.
    pub op: u32,
    /// Where in [`FileLog::times`] those begin that it had.
    times_from: u32,
    /// A cut behind this device operation may show the state; never, while held.
    pub visible: Option<usize>,
    /// Number of the call from which on the state before is over: while a
    /// truncation is held back, that of the call that ended the hold.
    pub ends_before: Option<u32>,
}

impl FileState {
    fn new(content: &Content, op: u32, visible: Option<usize>, held: bool) -> Self {
        let ends_before = (!held).then_some(op);
        Self { content: content.clone(), fingerprint: content.fingerprint(), op, times_from: 0, visible, ends_before }
    }
}

/// Times of a file after some operation.
#[derive(Clone, Copy, Debug)]
pub struct FileTimes {
    /// Device operations before the call.
    pub start: usize,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
}

/// A truncation that waits for the file to be closed.
#[derive(Clone, Copy, Debug)]
struct Hold {
    since_nanos: u64,
    /// The last time that the file was emptied: what an earlier hold kept back may have been committed meanwhile.
    again_nanos: u64,
    /// The state before the truncation.
    base: u32,
    /// The stream was clean when it was truncated, so the rule applies for certain.
    sure: bool,
    /// A commit of everything carries what there was before; else perhaps what was closed before that.
    carries: bool,
}

/// Everything a file has been.
#[derive(Clone, Debug)]
pub struct FileLog {
    /// All contents in order.
    pub states: Vec<FileState>,
    /// All times in order.
    pub times: Vec<FileTimes>,
    /// From this device operation on the content is at least this state, and the times at least those.
    pub promised: Vec<(usize, u32, u32)>,
    /// From this namespace prefix on the content is at least this state.
    pub carried: Vec<(u32, u32)>,
    /// From this namespace prefix on somebody may do more with it, and no content older than this state is shown to him.
    pub granted: Vec<(u32, u32)>,
    hold: Option<Hold>,
    /// The state at the last close or sync: nothing of it is missing.
    whole: Option<u32>,
    /// The state that the last sync by another client is about, answered or not: it is committed without a truncation that comes later.
    asked: Option<u32>,
}

impl FileLog {
    /// The times of content that a file had with any of these states.
    pub fn mtimes(&self, states: impl Iterator<Item = usize>) -> Vec<Time> {
        let range = |j: usize| {
            let end = self.states.get(j + 1).map_or(self.times.len(), |s| s.times_from as usize);
            self.times.get(self.states.get(j).map_or(0, |s| s.times_from as usize)..end).unwrap_or_default()
        };
        states.flat_map(range).map(|t| t.mtime).collect()
    }
    fn current(&self) -> u32 {
        self.states.len() as u32 - 1
    }
    fn promised_state(&self) -> u32 {
        self.promised.last().map_or(0, |p| p.1)
    }
    /// What a commit of everything may at least be relied on to carry.
    fn covered(&self) -> u32 {
        match self.hold {
            None => self.current(),
            Some(h) if h.sure && h.carries => h.base.max(self.promised_state()),
            Some(_) => self.promised_state(),
        }
    }
    fn end_hold(&mut self, start: usize, op: u32) {
        if self.hold.take().is_none() {
            return;
        }
        if let Some(s) = self.states.last_mut() {
            s.visible.get_or_insert(start);
            s.ends_before.get_or_insert(op);
        }
    }
    /// From here on the truncation may be committed or be held back further.
    fn unsure_hold(&mut self, start: usize) {
        if let Some(h) = &mut self.hold {
            h.sure = false;
            if let Some(s) = self.states.last_mut() {
                s.visible.get_or_insert(start);
            }
        }
    }
    fn promise(&mut self, end: usize, state: u32) {
        let (_, old_state, old_times) = self.promised.last().copied().unwrap_or_default();
        let times = if state == self.current() { self.times.len() as u32 - 1 } else { old_times };
        if (old_state, old_times) != (state, times) {
            self.promised.push((end, state.max(old_state), times));
        }
    }
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    /// The live state.
    pub tree: Tree,
    /// Namespace states by prefix.
    pub namespace: Vec<NamespaceState>,
    /// From this device operation on the namespace is at least this prefix.
    pub namespace_promised: Vec<(usize, u32)>,
    /// Every regular file that was ever there.
    pub files: BTreeMap<u64, FileLog>,
    /// Checkpoints by number.
    pub checkpoints: BTreeMap<u64, CheckpointLog>,
    /// Checkpoints that were cut and let go within one call, so that their numbers are not known.
    pub passing: Vec<CheckpointLog>,
    /// From this device operation on a root is durable that has what was acknowledged up to that one.
    pub anchors: Vec<(usize, usize)>,
    /// From this device operation on every state is at least that of this call (for `order=strict`).
    pub order_promised: Vec<(usize, u32)>,
    /// Rules for keeping checkpoints, in order.
    pub rules: Vec<RuleLog>,
    /// Inode numbers that were given.
    pub numbers: Numbers,
    /// Device operations before each call; call 0 is the mount.
    pub op_starts: Vec<usize>,
    /// Calls so far.
    pub op: u32,
}

impl Model {
    /// A model that starts from what a mount found; all of that is durable
    /// after `end` device operations.
    #[must_use]
    pub fn new(tree: Tree, end: usize) -> Self {
        let mut this = Self {
            namespace: vec![NamespaceState { sum: tree.sum(), start: 0, op: 0 }],
            tree,
            namespace_promised: vec![(end, 0)],
            files: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            passing: Vec::new(),
            rules: Vec::new(),
            numbers: Numbers::default(),
            order_promised: vec![(end, 0)],
            anchors: vec![(end, end)],
            op_starts: vec![0],
            op: 0,
        };
        this.numbers.had(this.tree.inodes.keys().copied());
        let found: Vec<u64> = this.regular_files().collect();
        for ino in found {
            this.open_log(ino, 0);
        }
        this
    }

    fn regular_files(&self) -> impl Iterator<Item = u64> + '_ {
        self.tree.inodes.iter().filter(|(_, i)| i.attr.kind() == FileKind::Regular).map(|(n, _)| *n)
    }

    fn open_log(&mut self, ino: u64, start: usize) {
        let Some(i) = self.tree.inodes.get(&ino) else { return };
        let state = FileState::new(&i.content, self.op, Some(start), false);
        let times = FileTimes { start, mtime: i.attr.mtime, ctime: i.attr.ctime };
        self.files.insert(
            ino,
            FileLog {
                states: vec![state],
                times: vec![times],
                promised: vec![(start, 0, 0)],
                carried: Vec::new(),
                granted: Vec::new(),
                hold: None,
                whole: None,
                asked: None,
            },
        );
    }

    /// A call begins, after `start` device operations.
    pub fn begin(&mut self, start: usize) {
        self.op += 1;
        self.op_starts.push(start);
    }

    fn log_times(&mut self, ino: u64, start: usize) {
        if let (Some(i), Some(log)) = (self.tree.inodes.get(&ino), self.files.get_mut(&ino)) {
            let now = FileTimes { start, mtime: i.attr.mtime, ctime: i.attr.ctime };
            if log.times.last().is_none_or(|t| (t.mtime, t.ctime) != (now.mtime, now.ctime)) {
                log.times.push(now);
            }
        }
    }

    /// A namespace operation that concerns `inodes`.
    ///
    /// # Errors
    /// What the tree says; then nothing changed.
    pub fn change_namespace<T>(
        &mut self,
        start: usize,
        inodes: &[u64],
        f: impl FnOnce(&mut Tree) -> Outcome<T>,
    ) -> Outcome<T> {
        let value = f(&mut self.tree)?;
        self.namespace.push(NamespaceState { sum: self.tree.sum(), start, op: self.op });
        for ino in inodes {
            let regular = self.tree.inodes.get(ino).is_some_and(|i| i.attr.kind() == FileKind::Regular);
            if regular && !self.files.contains_key(ino) {
                self.open_log(*ino, start);
            }
            self.log_times(*ino, start);
        }
        Ok(value)
    }

    /// The content of `ino` travels with the namespace operation made last,
    /// for certain or as the file system likes.
    pub fn carry(&mut self, ino: u64, start: usize, certain: bool) {
        let prefix = self.prefix();
        let Some(log) = self.files.get_mut(&ino) else { return };
        if certain {
            log.end_hold(start, self.op);
            log.carried.push((prefix, log.current()));
        } else {
            log.unsure_hold(start);
        }
    }

    /// The namespace operation made last allows somebody more of `ino`.
    pub fn grant(&mut self, ino: u64, start: usize) {
        let prefix = self.prefix();
        if let Some(log) = self.files.get_mut(&ino) {
            log.unsure_hold(start);
            log.granted.push((prefix, log.current()));
        }
    }

    /// Namespace operations so far.
    #[must_use]
    pub fn prefix(&self) -> u32 {
        self.namespace.len() as u32 - 1
    }

    /// An operation on a file's content.
    ///
    /// # Errors
    /// What the tree says; then nothing changed.
    pub fn change_content<T>(&mut self, start: usize, ino: u64, f: impl FnOnce(&mut Tree) -> Outcome<T>) -> Outcome<T> {
        let value = f(&mut self.tree)?;
        if let (Some(i), Some(log)) = (self.tree.inodes.get(&ino), self.files.get_mut(&ino)) {
            let visible = if log.hold.is_some_and(|h| h.sure) { None } else { Some(start) };
            log.states.push(FileState::new(&i.content, self.op, visible, log.hold.is_some()));
        }
        self.log_times(ino, start);
        if let Some(log) = self.files.get_mut(&ino) {
            let newest = log.times.len() as u32 - 1;
            log.states.last_mut().into_iter().for_each(|s| s.times_from = newest);
        }
        Ok(value)
    }

    /// The next change of content empties the file as O_TRUNC does.
    pub fn hold(&mut self, ino: u64, now_nanos: u64) {
        let Some(log) = self.files.get_mut(&ino) else { return };
        if let Some(h) = &mut log.hold {
            h.again_nanos = now_nanos;
            return;
        }
        let (base, promised) = (log.current(), log.promised_state());
        let since_promised = log.states.get(promised as usize..).unwrap_or_default();
        if since_promised.iter().any(|s| s.content.size() > 0) {
            // A sync that was asked for while it was empty may have been laid out: then nothing is left to hold back.
            let has_content = log.states.get(base as usize).is_some_and(|s| s.content.size() > 0);
            let carries = promised == base || log.asked == Some(base) && has_content;
            let sure = carries || log.whole == Some(base) && has_content;
            log.hold = Some(Hold { since_nanos: now_nanos, again_nanos: now_nanos, base, sure, carries });
            // What waited already now waits together with the truncation.
            for s in log.states.iter_mut().skip(promised as usize + 1) {
                s.ends_before = None;
            }
        }
    }

    /// Blocks that truncations which are held back will free.
    #[must_use]
    pub fn held_blocks(&self) -> u64 {
        let held = self.files.values().filter(|log| log.hold.is_some());
        let waiting = held.map(|log| log.states.get(log.promised_state() as usize..).unwrap_or_default());
        waiting.map(|all| all.iter().map(|s| s.content.pages().count() as u64).max().unwrap_or(0)).sum()
    }

    /// Another client asks for a sync of this file.
    pub fn ask(&mut self, ino: u64) {
        if let Some(log) = self.files.get_mut(&ino) {
            log.asked = Some(log.current());
        }
    }

    /// close(2): a truncation is held back no longer.
    pub fn flush(&mut self, ino: u64, start: usize) {
        if let Some(log) = self.files.get_mut(&ino) {
            log.end_hold(start, self.op);
            log.whole = Some(log.current());
        }
    }

    /// Everything is about to be committed, held back or not.
    pub fn end_holds(&mut self, start: usize) {
        for log in self.files.values_mut() {
            log.end_hold(start, self.op);
        }
    }

    /// Room is short: everything may be about to be committed, held back or not.
    pub fn end_holds_perhaps(&mut self, start: usize) {
        for log in self.files.values_mut() {
            log.unsure_hold(start);
        }
    }

    /// This file may be about to be committed, held back or not.
    pub fn end_hold_perhaps(&mut self, ino: u64, start: usize) {
        if let Some(log) = self.files.get_mut(&ino) {
            log.unsure_hold(start);
        }
    }

    /// Time has passed: holds that are too old may be committed.
    pub fn expire_holds(&mut self, now_nanos: u64, start: usize) {
        for log in self.files.values_mut() {
            if log.hold.is_some_and(|h| now_nanos.saturating_sub(h.since_nanos) >= HOLD_NANOS) {
                log.unsure_hold(start);
            }
        }
    }

    /// fsync of one file was acknowledged.
    pub fn fsynced(&mut self, ino: u64, end: usize) {
        self.promise_names(end);
        if let Some(log) = self.files.get_mut(&ino) {
            let current = log.current();
            log.promise(end, current);
        }
    }

    fn promise_names(&mut self, end: usize) {
        let prefix = self.prefix();
        self.namespace_promised.push((end, prefix));
        self.order_promised.push((end, self.op));
        self.promise_checkpoints(end);
    }

    /// An index checkpoint was complete after `end` device operations, which began after `moment` of them or later.
    pub fn anchor(&mut self, end: usize, moment: usize) {
        self.anchors.push((end, moment));
    }

    /// Everything received was committed and acknowledged, except what is held back.
    pub fn synced(&mut self, end: usize) {
        self.promise_names(end);
        for log in self.files.values_mut() {
            log.promise(end, log.covered());
        }
    }

    /// The volume was closed: handles and holds are gone, everything is committed.
    pub fn closed(&mut self, start: usize, end: usize) {
        self.end_holds(start);
        self.tree.release_all();
        self.synced(end);
    }

    /// Everything received up to the call before this one.
    #[must_use]
    pub fn mark(&self) -> Mark {
        let files = self.files.iter().map(|(ino, l)| (*ino, l.covered(), l.current())).collect();
        Mark { prefix: self.prefix(), files }
    }

    /// What was received up to `mark` is now promised, `now_nanos`, when everything is committed that waited for
    /// `commit_nanos` since it might be.
    pub fn mark_reached(&mut self, mark: &Mark, end: usize, (now_nanos, commit_nanos): (u64, u64)) {
        self.namespace_promised.push((end, mark.prefix.max(self.promised_prefix())));
        for (ino, covered, received) in &mark.files {
            // Nobody waits for the content of a file that was removed meanwhile.
            let named = self.tree.inodes.get(ino).is_some_and(|i| i.attr.nlink > 0);
            let Some(log) = self.files.get_mut(ino).filter(|_| named) else { continue };
            // What a truncation has replaced meanwhile waits together with it, and no longer than that may.
            let is_over = |h: Hold| now_nanos >= h.again_nanos.saturating_add(HOLD_NANOS + commit_nanos);
            let state = if log.hold.is_some_and(is_over) { *received } else { (*covered).min(log.covered()) };
            if log.promised_state() < state {
                let times = log.promised.last().map_or(0, |p| p.2);
                log.promised.push((end, state, times));
            }
        }
    }

    /// A checkpoint that a mount found, with the state it shows. What its name keeps is not to be seen.
    pub fn adopt_checkpoint(&mut self, info: &CheckpointInfo, found: &Found, end: usize) {
        self.numbers.had(found.parts.keys().chain(&found.unknown).copied());
        let log = CheckpointLog {
            start: 0,
            promised: end,
            asked: info.asked,
            sum: found.sum,
            files: found.files.iter().map(|f| (f.ino, (vec![f.fingerprint], vec![f.mtime]))).collect(),
            // What is not known comes back as little as what it led to.
            parts: (found.unknown.iter().map(|ino| (*ino, Part::UNKNOWN)))
                .chain(found.parts.iter().map(|(ino, part)| (*ino, *part)))
                .collect(),
            names: vec![NameLog { start: 0, promised: Some(end), name: info.name.clone() }],
            is_snapshot: false,
            own: BTreeSet::new(),
            gone: None,
            gone_promised: None,
        };
        self.checkpoints.insert(info.cno.0, log);
    }

    /// Checkpoints that a mount found are those of `earlier`, which died, or was cut with the power.
    pub fn goes_on_from(&mut self, earlier: &Self, is_cut: bool) {
        for (cno, log) in &mut self.checkpoints {
            let Some(earlier) = earlier.checkpoints.get(cno) else { continue };
            if is_cut { log.is_left_of(earlier) } else { log.goes_on_from(earlier) }
        }
    }

    /// A checkpoint was named or unnamed; durable with the next sync.
    pub fn name_checkpoint(&mut self, cno: u64, name: Option<Vec<u8>>, start: usize) {
        // What is as it shows it at that moment is kept from then on.
        let now = self.checkpoint_now(false, None, start, start);
        if let Some(c) = self.checkpoints.get_mut(&cno) {
            c.name(NameLog { start, promised: None, name });
            c.outlived_by(&now);
        }
    }

    /// A checkpoint is not listed any more since the call that began after `start` operations.
    pub fn checkpoint_gone(&mut self, cno: u64, start: usize) {
        if let Some(c) = self.checkpoints.get_mut(&cno) {
            c.gone.get_or_insert(start);
        }
    }

    /// What an fsync of `ino`, or of all files, that begins now promises once it is answered.
    #[must_use]
    pub fn promise(&self, ino: u64, all: bool) -> Promise {
        let files = self.files.iter().filter(|(n, _)| all || **n == ino);
        let files = files.map(|(n, l)| (*n, l.current(), l.times.len() as u32 - 1)).collect();
        Promise { prefix: self.prefix(), op: self.op, files }
    }

    /// A sync was answered after `end` operations, while other calls were made.
    pub fn reached(&mut self, promise: &Promise, end: usize) {
        put_promise(&mut self.namespace_promised, (end, promise.prefix), |a, b| *a = (*a).max(b));
        put_promise(&mut self.order_promised, (end, promise.op), |a, b| *a = (*a).max(b));
        for (ino, state, times) in &promise.files {
            let Some(log) = self.files.get_mut(ino) else { continue };
            let mut all: Vec<(usize, (u32, u32))> = log.promised.iter().map(|p| (p.0, (p.1, p.2))).collect();
            put_promise(&mut all, (end, (*state, *times)), |a, b| *a = (a.0.max(b.0), a.1.max(b.1)));
            log.promised = all.into_iter().map(|(at, (s, t))| (at, s, t)).collect();
        }
    }

    fn promise_checkpoints(&mut self, end: usize) {
        for c in self.checkpoints.values_mut().chain(&mut self.passing) {
            if c.gone.is_some() {
                c.gone_promised.get_or_insert(end);
            }
            for n in &mut c.names {
                n.promised.get_or_insert(end);
            }
        }
    }

    fn promised_prefix(&self) -> u32 {
        self.namespace_promised.last().map_or(0, |p| p.1)
    }

    /// A checkpoint of this moment came to be.
    pub fn checkpoint(&mut self, cno: u64, asked: bool, name: Option<Vec<u8>>, start: usize, end: usize) {
        let made = self.checkpoint_now(asked, name, start, end);
        for earlier in self.checkpoints.values_mut() {
            earlier.outlived_by(&made);
        }
        self.checkpoints.insert(cno, made);
    }

    /// A checkpoint of this moment was cut and let go within one call, or the
    /// call that was to make it failed.
    pub fn passing_checkpoint(&mut self, asked: bool, name: Option<Vec<u8>>, start: usize, end: usize) {
        let made = self.checkpoint_now(asked, name, start, end);
        self.passing.push(CheckpointLog { gone: Some(start), ..made });
    }

    fn checkpoint_now(&self, asked: bool, name: Option<Vec<u8>>, start: usize, end: usize) -> CheckpointLog {
        let tree = &self.tree;
        let files = self
            .files
            .iter()
            .filter(|(ino, _)| tree.inodes.get(ino).is_some_and(|i| i.attr.nlink > 0))
            .map(|(ino, log)| {
                let (first, last) = match log.hold {
                    None => (log.current(), log.current()),
                    Some(h) if h.sure => (log.promised_state().min(h.base), h.base),
                    Some(_) => (log.promised_state(), log.current()),
                };
                let states = log.states.get(first as usize..=last as usize).unwrap_or_default();
                let mtimes = log.mtimes(first as usize..=last as usize);
                (*ino, (states.iter().map(|s| s.fingerprint).collect(), mtimes))
            })
            .collect();
        let is_held = |ino: &u64| self.files.get(ino).is_some_and(|log| log.hold.is_some());
        let part = |(ino, part)| (ino, if is_held(&ino) { Part { ctime: None, ..part } } else { part });
        let parts: BTreeMap<u64, Part> = tree.parts().map(part).collect();
        CheckpointLog {
            start,
            promised: end,
            asked,
            sum: self.tree.sum(),
            files,
            is_snapshot: name.is_some(),
            own: if name.is_some() { parts.keys().copied().collect() } else { BTreeSet::new() },
            parts,
            names: vec![NameLog { start, promised: Some(end), name }],
            gone: None,
            gone_promised: None,
        }
    }
}

/// A point up to which everything was received.
#[derive(Clone, Debug)]
pub struct Mark {
    prefix: u32,
    /// Inode, what a commit of everything carried then, and what had been received.
    files: Vec<(u64, u32, u32)>,
}

/// What a sync under way will have promised.
#[derive(Clone, Debug)]
pub struct Promise {
    prefix: u32,
    op: u32,
    /// Inode, content and times.
    files: Vec<(u64, u32, u32)>,
}

/// Puts a promise where it belongs in time: it is no less than those before, and those behind are no less than it.
fn put_promise<T: Copy>(list: &mut Vec<(usize, T)>, (end, mut value): (usize, T), raise: impl Fn(&mut T, T)) {
    let at = list.partition_point(|p| p.0 <= end);
    if let Some((_, before)) = at.checked_sub(1).and_then(|i| list.get(i)) {
        raise(&mut value, *before);
    }
    list.insert(at, (end, value));
    for (_, later) in list.iter_mut().skip(at + 1) {
        raise(later, value);
    }
}

/// The rule by which checkpoints are kept.
#[derive(Clone, Debug)]
pub struct RuleLog {
    /// Device operations before the call that set it.
    pub start: usize,
    /// From here on an older one must not show.
    pub promised: usize,
    /// The rule.
    pub rule: String,
}

/// The last promise at or before cut `k`.
#[must_use]
pub fn promised_at<T: Copy>(list: &[T], k: usize, moment: impl Fn(&T) -> usize) -> Option<T> {
    let n = list.partition_point(|p| moment(p) <= k);
    n.checked_sub(1).and_then(|i| list.get(i).copied())
}
