//! When room is short: the history of single files that takes more than its share
//! goes before everybody's. See docs/decisions/0020.
//!
//! Invariants
//! 1. What snapshots see stays.
//! 2. Looking for them takes as much memory however many inodes there are, and is done in pieces between which
//!    others work.

use super::account::{self, Counting, Kept, Piece, Place, sees};
use super::background::ToSweep;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::state::SHED_MAX;
use crate::{Error, Result};
use nenrin_format::items::{self, Checkpoint, Extent};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use nenrin_format::{Cno, Ino, Time};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// More than this part of all history that may be shed is too much for one inode.
const SHARE: u64 = 10;
/// History of an inode that is not worth the trouble, in blocks.
const BLOCKS_MIN: u64 = 64;
/// Inodes counted at one time: none with more than one in so many of all blocks is missed.
const COUNTED_MAX: usize = 255;
/// Checkpoints in which something of an inode died that are told apart.
const DEATHS_MAX: usize = 4096;
/// Items looked at under one lock.
const ITEMS_AT_ONCE: usize = 1024;

/// History of a file that was let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShedInfo {
    /// The file.
    pub ino: Ino,
    /// Where it is, or was, from the root of the volume.
    pub path: Vec<u8>,
    /// Of checkpoints before this one only snapshots know what it was, and those that show what it was later.
    pub upto: Cno,
    /// When the newest of these was cut.
    pub upto_wall: Time,
    /// When that was done.
    pub wall: Time,
    /// Blocks that its history had then.
    pub blocks: u64,
}

/// The heaviest of many, by counters for some (Misra and Gries, 1982): each counts at most as much as it is, and less by no
/// more than one in [`COUNTED_MAX`] of all.
#[derive(Default)]
struct Heaviest {
    counted: BTreeMap<Ino, u64>,
    all: u64,
}

impl Heaviest {
    fn add(&mut self, ino: Ino, blocks: u64) {
        self.all += blocks;
        *self.counted.entry(ino).or_default() += blocks;
        if self.counted.len() > COUNTED_MAX {
            let least = self.counted.values().min().copied().unwrap_or(0);
            self.counted.retain(|_, n| {
                *n -= least;
                *n > 0
            });
        }
    }
    /// Those with more than their share, the heaviest first.
    fn too_heavy(&self) -> Vec<(Ino, u64)> {
        let much = |n: u64| n > self.all / SHARE && n >= BLOCKS_MIN;
        let mut out: Vec<_> = self.counted.iter().filter(|(_, n)| much(**n)).map(|(ino, n)| (*ino, *n)).collect();
        out.sort_by_key(|(ino, n)| (u64::MAX - n, *ino));
        out
    }
}

/// Looking for the files that have more than their share, in pieces.
pub(super) struct Survey {
    /// Blocks of history that may be shed, when it began.
    blocks: u64,
    /// History of a file was let go by it.
    any: bool,
    /// The snapshots that it goes by.
    named: Kept,
    stage: Stage,
}

enum Stage {
    /// Whose history there is, in all of it.
    Counting(Place, Heaviest),
    /// When that of these files died, the last one first.
    Weighing(Vec<Weighing>),
}

/// When the history of one file died: a walk over its extents.
struct Weighing {
    ino: Ino,
    trees: Vec<TreeId>,
    from: Key,
    deaths: BTreeMap<Cno, u64>,
}

/// What a piece of a survey found.
pub(super) enum Found {
    /// Nothing yet.
    More,
    /// A file with more than its share, of whose history this is the older half.
    Heavy(Heavy),
    /// All there is.
    All,
}

/// The older half of the history of a file.
pub(super) struct Heavy {
    ino: Ino,
    upto: Cno,
    /// Blocks of all its history.
    blocks: u64,
}

impl Survey {
    /// Whether files with more than their share were found.
    pub(super) fn has_found(&self) -> bool {
        matches!(self.stage, Stage::Weighing(_))
    }

    /// Items that the next piece looks at, at most.
    pub(super) fn piece(&self) -> usize {
        match self.stage {
            Stage::Counting(..) => account::ITEMS_AT_ONCE,
            Stage::Weighing(_) => ITEMS_AT_ONCE,
        }
    }

    /// Whether history of any was let go.
    pub(super) fn has_let_go(&self) -> bool {
        self.any
    }
}

impl Weighing {
    fn new(ino: Ino, trees: Vec<TreeId>) -> Self {
        Self { ino, trees, from: Key::new(ino, Kind::Extent, 0, 0), deaths: BTreeMap::new() }
    }

    /// Coarser: each with the one behind it.
    fn join(&mut self) {
        while self.deaths.len() > DEATHS_MAX {
            let pairs: Vec<_> = std::mem::take(&mut self.deaths).into_iter().collect();
            let joined = |pair: &[(Cno, u64)]| pair.last().map(|l| (l.0, pair.iter().map(|p| p.1).sum()));
            self.deaths = pairs.chunks(2).filter_map(joined).collect();
        }
    }

    /// Up to where the older half is; nothing where there is none.
    fn older_half(&self) -> Option<Heavy> {
        let blocks: u64 = self.deaths.values().sum();
        let mut older = 0;
        let (upto, _) = self.deaths.iter().find(|(_, n)| {
            older += **n;
            older * 2 >= blocks
        })?;
        (blocks > 0).then_some(Heavy { ino: self.ino, upto: *upto, blocks })
    }
}

impl Fs {
    /// Begins to look for files with more than their share; not where none is known to be, or no more can be noted.
    pub(super) fn survey(&self) -> Option<Survey> {
        let inner = self.lock();
        let blocks = inner.unnamed_history();
        let known = inner.none_heavy_at.is_some_and(|then| blocks <= then + then / 8);
        if known || inner.state.shed.len() >= SHED_MAX {
            return None;
        }
        let named = inner.named_kept();
        drop(inner);
        let stage = Stage::Counting(self.history_from(Cno(0)).passing_over(), Heaviest::default());
        Some(Survey { blocks, any: false, named, stage })
    }

    /// Looks on for a piece: some thousand items.
    pub(super) fn survey_some(&self, survey: &mut Survey) -> Result<Found> {
        match &mut survey.stage {
            Stage::Counting(place, heaviest) => {
                let named = &survey.named;
                let mut each = |p: Piece<'_>| {
                    if p.blocks > 0 && p.lives.len() == 1 && !sees(named, p.lives) {
                        heaviest.add(p.ino, p.blocks);
                    }
                };
                if !self.look_at_history(place, &mut each)? {
                    let trees: Vec<_> = self.lock().state.history.iter().map(|t| t.tree.id()).collect();
                    let heavy = heaviest.too_heavy();
                    let lightest_first = heavy.iter().rev().map(|(ino, _)| Weighing::new(*ino, trees.clone()));
                    survey.stage = Stage::Weighing(lightest_first.collect());
                }
                Ok(Found::More)
            }
            Stage::Weighing(files) => {
                let Some(file) = files.last_mut() else {
                    if !survey.any {
                        self.lock().none_heavy_at = Some(survey.blocks);
                    }
                    return Ok(Found::All);
                };
                if self.weigh_some(file, &mut survey.named) {
                    return Ok(Found::More);
                }
                let heavy = file.older_half();
                files.pop();
                Ok(heavy.map_or(Found::More, Found::Heavy))
            }
        }
    }

    /// Looks at some of the history of a file; whether there is more.
    fn weigh_some(&self, file: &mut Weighing, named: &mut Kept) -> bool {
        let Some(id) = file.trees.last().copied() else { return false };
        let inner = self.lock();
        if inner.state.snapshots.iter().ne(named.keys()) {
            // Weighed for others: from the beginning.
            *named = inner.named_kept();
            let trees = inner.state.history.iter().map(|t| t.tree.id()).collect();
            *file = Weighing::new(file.ino, trees);
            return true;
        }
        let (mut left, mut tree) = (ITEMS_AT_ONCE, Some(id));
        while let Some(id) = tree.filter(|_| left > 0) {
            let next = match inner.tree(id) {
                Some(tree) => inner.deaths_of(tree, &file.from, &mut left, named, &mut file.deaths),
                None => None,
            };
            if next.is_none() {
                file.trees.pop();
            }
            file.from = next.unwrap_or(Key::new(file.ino, Kind::Extent, 0, 0));
            tree = file.trees.last().copied();
        }
        drop(inner);
        file.join();
        true
    }

    /// Lets go of the older half of what unnamed checkpoints keep of a file: what is to be swept then, unless it has to wait.
    pub(super) fn let_go_of(&self, survey: &mut Survey, heavy: &Heavy) -> Result<Vec<ToSweep>> {
        let mut inner = self.lock_to_change()?;
        // Such a name counts from the next checkpoint on, and is to count for this, too. And no more may be noted than that.
        if inner.has_new_names() || inner.state.shed.len() >= SHED_MAX {
            return Ok(Vec::new());
        }
        let Heavy { ino, upto, blocks } = *heavy;
        inner.counters.inodes_shed += 1;
        inner.log(&Record::Shed { ino, upto, wall: self.clock.wall(), blocks }, self.clock.monotonic_nanos())?;
        survey.any = true;
        let (from, behind) = (Key::new(ino, Kind::Inode, 0, 0), ino.next());
        let ranges: Vec<_> = inner.state.history.iter().map(|t| ToSweep { tree: t.tree.id(), from, behind }).collect();
        // Who sweeps for room may end early.
        inner.sweep_later(&ranges);
        Ok(ranges)
    }

    /// Lets go of the older half of the history of files that have more than their share, for who waits for room; whether there were any.
    pub(super) fn shed_heavy(&self) -> Result<bool> {
        let under_way = self.lock().survey.take();
        let Some(mut survey) = under_way.or_else(|| self.survey()) else { return Ok(false) };
        let _counting = Counting::begin(self);
        let mut unread = false;
        let found = self.shed_found(&mut survey, &mut unread);
        if unread {
            self.lock().rest_sweep(self.clock.monotonic_nanos());
        }
        found
    }

    /// The same, of what a survey finds.
    fn shed_found(&self, survey: &mut Survey, unread: &mut bool) -> Result<bool> {
        let mut any = false;
        loop {
            let ranges = match self.survey_some(survey)? {
                Found::More => continue,
                Found::Heavy(heavy) => self.let_go_of(survey, &heavy)?,
                Found::All => return Ok(any),
            };
            any |= !ranges.is_empty();
            // The newest first, as items move to older ones.
            for range in ranges.into_iter().rev() {
                match self.sweep_for_room(range) {
                    Ok(true) => {}
                    Ok(false) => return Ok(true),
                    Err(e @ (Error::Failed(_) | Error::ReadOnly)) => return Err(e),
                    // The others can be read, and other files.
                    Err(_) => *unread = true,
                }
            }
        }
    }

    /// What history of single files was let go and may still be asked for, the newest first. The path of a file whose names cannot be
    /// read is a question mark.
    ///
    /// # Errors
    /// None: what cannot be read keeps nothing else from being told.
    pub fn shed(&self) -> Result<Vec<ShedInfo>> {
        let all: Vec<_> = self.lock().state.shed.iter().map(|(ino, shed)| (ino, *shed)).collect();
        let mut out = Vec::with_capacity(all.len());
        for (ino, shed) in all {
            // Others come in between: each has names and directories to look up.
            let inner = self.lock();
            let path = match inner.path_of_shed(ino, shed.upto) {
                Err(why) if broken(Break::ShedListEnds) => return Err(why),
                path => path.unwrap_or_else(|_| b"?".to_vec()),
            };
            let last = inner.state.kept.range(..shed.upto).next_back();
            let upto_wall = last.map_or(shed.wall, |(_, c)| c.wall);
            out.push(ShedInfo { ino, path, upto: shed.upto, upto_wall, wall: shed.wall, blocks: shed.blocks });
        }
        out.sort_by_key(|s| (std::cmp::Reverse(s.wall), s.ino));
        Ok(out)
    }
}

impl Inner {
    /// Where a file is, or was last while less of its history was gone.
    fn path_of_shed(&self, ino: Ino, upto: Cno) -> Result<Vec<u8>> {
        let links = self.state.links(ino)?;
        let now = links.iter().any(|l| l.span.to.is_none());
        self.state.path_in(&links, if now { Cno(u64::MAX) } else { Cno(upto.0.saturating_sub(1)) })
    }

    /// Blocks of history that snapshots do not keep; all of them while it is not known how many these are.
    fn unnamed_history(&self) -> u64 {
        let named = if self.state.past.counted { self.named_history() } else { 0 };
        self.state.history_blocks.saturating_sub(named)
    }

    /// History may be less than when nobody had more than his share: what comes on top of that may be one file's. How much there is when it
    /// has to go is nearly the same each time.
    pub(super) fn note_less_history(&mut self) {
        let now = self.unnamed_history();
        if let Some(then) = self.none_heavy_at.as_mut().filter(|_| !broken(Break::NoneHeavyStays)) {
            *then = now.min(*then);
        }
    }

    /// The snapshots, without their names.
    pub(super) fn named_kept(&self) -> Kept {
        let named = self.state.snapshots.iter().filter_map(|cno| self.state.kept.get_key_value(cno));
        named.map(|(cno, c)| (*cno, Checkpoint { name: Vec::new(), ..*c })).collect()
    }

    /// Whether a checkpoint got its name since the last one was cut.
    fn has_new_names(&self) -> bool {
        self.state.kept.values().any(|c| c.is_named() && c.named_at > self.state.open_cno)
    }

    /// Adds when some extents of one inode died, from a key on, that no snapshot sees; where to go on when no more are `left` to look at.
    /// What cannot be read is passed over: there is that much less to let go.
    fn deaths_of(
        &self,
        tree: &crate::index::Tree,
        from: &Key,
        left: &mut usize,
        named: &Kept,
        deaths: &mut BTreeMap<Cno, u64>,
    ) -> Option<Key> {
        let last = Key::new(Ino(from.ino), Kind::Extent, u32::MAX, u64::MAX).died(u64::MAX);
        let mut go_on = None;
        let state = &self.state;
        tree.scan_readable(&state.cache, from, &last, &mut |k, v| {
            if *left == 0 {
                go_on = Some(*k);
                return ControlFlow::Break(());
            }
            *left -= 1;
            let death = Cno(k.death);
            if let (Ok(e), Ok(keep)) = (Extent::decode(v), items::keep_of(k.kind, v)) {
                let life = (e.birth, death, state.kept_by(k, keep, death));
                if e.stored_blocks() > 0 && !sees(named, &[life]) {
                    *deaths.entry(death).or_default() += u64::from(e.blocks);
                }
            }
            ControlFlow::Continue(())
        });
        go_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{device, mount};

    /// A survey may find several files when there is room to note one, and then none.
    #[test]
    fn no_more_is_noted_than_may_be() {
        let fs = mount(&device(64, 64), MountOptions::default());
        let upto = fs.lock().state.open_cno;
        for n in 0..SHED_MAX as u64 - 1 {
            let shed = Record::Shed { ino: Ino(1000 + n), upto, wall: fs.clock.wall(), blocks: 1 };
            fs.lock().log(&shed, 0).unwrap();
        }
        let mut survey = fs.survey().unwrap();
        for n in 0..4 {
            fs.let_go_of(&mut survey, &Heavy { ino: Ino(10 + n), upto, blocks: 9 }).unwrap();
        }
        assert!(fs.survey().is_none());
        assert_eq!(fs.lock().state.shed.len(), SHED_MAX);
        fs.close().unwrap();
    }

    /// Of very many, those with more than a tenth are found, and nobody else is.
    #[test]
    fn the_heaviest_of_many_are_found() {
        let mut heaviest = Heaviest::default();
        for round in 0..2000u64 {
            for light in 0..20 {
                heaviest.add(Ino(1000 + round * 20 + light), 3);
            }
            heaviest.add(Ino(7), 40);
            heaviest.add(Ino(8), 11);
            heaviest.add(Ino(9), 9);
        }
        // Of 120 in each round: a third, and both others less than a tenth.
        assert_eq!(heaviest.too_heavy().iter().map(|h| h.0).collect::<Vec<_>>(), [Ino(7)]);
        assert!(heaviest.counted.len() <= COUNTED_MAX);
        let told = heaviest.counted[&Ino(7)];
        assert!(told <= 80_000 && told + heaviest.all / COUNTED_MAX as u64 >= 80_000, "{told}");
        assert!(Heaviest::default().too_heavy().is_empty());
    }
}
