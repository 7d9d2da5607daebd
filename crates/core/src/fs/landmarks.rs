//! Landmarks: when checkpoints are let go, the versions of single files that
//! stand out among those that only they showed are kept on. See docs/decisions/0017.

use super::history::Named;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::retention::{Kept, Mark, Moment, Retention, levels};
use crate::state::{LANDMARKS_MAX, SLOT_MASK, Span, State, bad_item};
use crate::{Error, Result};
use nenrin_format::items::{Dirent, Inode, Keep, Landmark};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use nenrin_format::{Cno, Ino, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Versions that are looked at each time that checkpoints are let go.
const VERSIONS_MAX: usize = LANDMARKS_MAX;
/// Of fewer versions none stands out: what was there once, for some seconds, is no landmark.
const STAGES_MIN: usize = 3;
/// Items that are looked at under one lock.
const ITEMS_AT_ONCE: usize = 256;
/// Landmarks let go by one record.
const DROPS_MAX: usize = 512;

/// A version of a file that is kept without a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LandmarkInfo {
    /// The checkpoint that showed it.
    pub cno: Cno,
    /// When that was cut.
    pub wall: Time,
    /// The file.
    pub ino: Ino,
    /// How much it stands out, from 1.
    pub level: u8,
    /// Nanoseconds that it is kept for from now on; `None` for ever.
    pub left: Option<u64>,
}

/// A version that nothing but checkpoints that go shows.
struct Vanishing {
    ino: Ino,
    /// The newest of them that shows it.
    cno: Cno,
}

/// What a name stood for, until its content changed.
struct Stage {
    ino: Ino,
    span: Span,
    /// What tells content apart.
    content: (u64, Time, u32),
    /// When it became so.
    since: Time,
    stood: u64,
    level: u8,
}

/// The stages of names that were asked for, by directory and name.
type Known = BTreeMap<(Ino, Vec<u8>), Vec<Stage>>;

impl Fs {
    /// All landmarks, in the order of their checkpoints.
    #[must_use]
    pub fn landmarks(&self) -> Vec<LandmarkInfo> {
        let inner = self.lock();
        let kept = inner.kept(|_, is_named| is_named);
        let moment = inner.moment(self);
        let marks = inner.marks();
        let left = match inner.retention() {
            Some(rule) => rule.keeps_marks_for(moment, &kept, &marks),
            None => vec![None; marks.len()],
        };
        let all = inner.state.landmarks.iter().zip(left);
        all.map(|(((cno, _), l), left)| LandmarkInfo { cno: *cno, wall: l.wall, ino: l.ino, level: l.level, left })
            .collect()
    }

    /// When a checkpoint was cut of which landmarks are kept.
    #[must_use]
    pub fn landmark_at(&self, cno: Cno) -> Option<Time> {
        self.lock().state.landmarks.at(cno).map(|l| l.wall)
    }

    /// Keeps, of the versions of files that only `drops` show, those that stand out. What cannot be read has none, and is told when all
    /// others have theirs: the checkpoints go all the same.
    pub(super) fn keep_landmarks(&self, rule: &Retention, drops: &[Cno]) -> Result<()> {
        let most = rule.levels();
        if most == 0 || drops.is_empty() {
            return Ok(());
        }
        let gone: BTreeSet<Cno> = drops.iter().copied().collect();
        let mut known = Known::new();
        let (vanishing, mut lost) = self.vanishing(&gone);
        for vanishing in vanishing {
            if lost.is_some() && broken(Break::LandmarksStop) {
                break;
            }
            let now = self.clock.wall();
            let mut inner = self.room_to_let_go()?;
            let found = inner.landmark(&vanishing, &gone, most, now, &mut known).unwrap_or_else(|why| {
                lost.get_or_insert(why);
                None
            });
            if inner.state.landmarks.len() >= 2 * LANDMARKS_MAX {
                break;
            }
            if let Some(landmark) = found {
                let number = inner.state.landmarks.next_number(vanishing.cno);
                let record = Record::Landmark { cno: vanishing.cno, number, landmark };
                inner.log(&record, self.clock.monotonic_nanos())?;
            }
        }
        lost.map_or(Ok(()), Err)
    }

    /// The versions of files that only these checkpoints show, and why there may be more.
    fn vanishing(&self, gone: &BTreeSet<Cno>) -> (Vec<Vanishing>, Option<Error>) {
        let (mut out, mut lost) = (Vec::new(), None);
        let (Some(first), Some(last)) = (gone.first().copied(), gone.last().copied()) else { return (out, lost) };
        let inner = self.lock();
        // What died behind the next one that stays is shown by that one.
        let stays = inner.state.kept.range(last.next()..).map(|(cno, _)| *cno).find(|cno| !gone.contains(cno));
        let may_hold = |deaths: (Cno, Cno)| deaths.1 > first && stays.is_none_or(|s| deaths.0 <= s);
        // The newest first, as items move to older ones.
        let trees: Vec<TreeId> =
            inner.state.history.iter().rev().filter(|t| may_hold(t.deaths)).map(|t| t.tree.id()).collect();
        drop(inner);
        for tree in trees {
            let mut from = Some(Key::new(Ino(0), Kind::Inode, 0, 0));
            while let Some(key) = from.filter(|_| out.len() < VERSIONS_MAX) {
                from = self.lock().vanishing_in(tree, key, gone, (&mut out, &mut lost));
            }
        }
        (out, lost)
    }

    /// Lets go the landmarks that the rule does not keep any more, and what is too many.
    pub(super) fn drop_landmarks(&self, rule: &Retention, kept: &[Kept], moment: Moment) -> Result<()> {
        let inner = self.lock();
        let left = rule.keeps_marks_for(moment, kept, &inner.marks());
        let all: Vec<((Cno, u32), u8)> = inner.state.landmarks.iter().map(|(at, l)| (*at, l.level)).collect();
        let used: BTreeSet<Cno> = inner.held.keys().copied().collect();
        drop(inner);
        let is_over = |left: &Option<u64>| *left == Some(0);
        let over = all.iter().zip(&left).filter(|(_, left)| is_over(left)).map(|((at, _), _)| *at);
        let mut which: Vec<(Cno, u32)> = over.collect();
        let mut others: Vec<_> =
            all.iter().zip(&left).filter(|(_, left)| !is_over(left)).map(|(one, _)| *one).collect();
        others.sort_by_key(|(at, level)| (*level, *at));
        let excess = others.len().saturating_sub(LANDMARKS_MAX);
        which.extend(others.iter().take(excess).map(|(at, _)| *at));
        which.retain(|(cno, _)| !used.contains(cno));
        for which in which.chunks(DROPS_MAX) {
            let mut inner = self.room_to_let_go()?;
            inner.log(&Record::DropLandmarks { which: which.to_vec() }, self.clock.monotonic_nanos())?;
            inner.sweep_wanted = true;
        }
        Ok(())
    }
}

impl Inner {
    /// The landmarks as the rule wants to have them.
    fn marks(&self) -> Vec<Mark> {
        let mark = |((cno, _), l): (&(Cno, u32), &Landmark)| {
            (*cno, Moment { wall: l.wall.0, mounted: l.mounted_nanos, mount: 0 }, l.level)
        };
        self.state.landmarks.iter().map(mark).collect()
    }

    /// Looks at some items of a tree; where to go on. What cannot be read is passed over.
    fn vanishing_in(
        &self,
        tree: TreeId,
        from: Key,
        gone: &BTreeSet<Cno>,
        (out, lost): (&mut Vec<Vanishing>, &mut Option<Error>),
    ) -> Option<Key> {
        let t = self.state.history.iter().find(|t| t.tree.id() == tree)?;
        let mut from = Some(from);
        for _ in 0..ITEMS_AT_ONCE {
            let mut next = None;
            let unread = t.tree.scan_readable(&self.state.cache, &from?, &Key::last(), &mut |k, v| {
                next = Some((*k, v.clone()));
                ControlFlow::Break(())
            });
            *lost = lost.take().or(unread);
            let (key, value) = next?;
            if key.kind != Kind::Inode {
                from = key.ino.checked_add(1).map(|ino| Key::new(Ino(ino), Kind::Inode, 0, 0));
                continue;
            }
            from = key.successor();
            let inode = match Inode::decode(&value) {
                Ok(inode) => inode,
                Err(why) => {
                    lost.get_or_insert(bad_item(&key, why));
                    continue;
                }
            };
            let (ino, birth, death) = (Ino(key.ino), inode.birth, Cno(key.death));
            // Of what keeps less, nothing is to outlive its checkpoints.
            let keeps_less = inode.keep_rule().keep != Keep::Full;
            if inode.mode & TYPE_MASK != TYPE_REGULAR || birth >= death || keeps_less {
                continue;
            }
            let mut shown = self.state.kept.range(birth..death).map(|(cno, _)| *cno).rev().peekable();
            let newest = shown.peek().copied();
            let only_gone = shown.all(|cno| gone.contains(&cno));
            if let (Some(cno), true) = (newest, only_gone) {
                out.push(Vanishing { ino, cno });
            }
        }
        from
    }

    /// The landmark to keep of a version, if it stands out.
    fn landmark(
        &self,
        v: &Vanishing,
        gone: &BTreeSet<Cno>,
        most: u8,
        now: Time,
        known: &mut Known,
    ) -> Result<Option<Landmark>> {
        let state = &self.state;
        // Meanwhile it may have been let go, or kept by name.
        let Some(checkpoint) = state.kept.get(&v.cno).filter(|c| !c.is_named()) else { return Ok(None) };
        // Or its history was shed: then its content is not all there.
        if !state.knows(v.ino, v.cno)? {
            return Ok(None);
        }
        let links = state.links(v.ino)?;
        let Some(link) = links.iter().filter(|l| l.span.holds(v.cno)).min_by_key(|l| l.span.from) else {
            return Ok(None);
        };
        let name = (link.parent, link.name.clone());
        if !known.contains_key(&name) {
            known.insert(name.clone(), state.stages(link.parent, &link.name, most, now)?);
        }
        let stage = known.get(&name).and_then(|all| all.iter().find(|s| s.ino == v.ino && s.span.holds(v.cno)));
        let Some(stage) = stage.filter(|s| s.level > 0) else { return Ok(None) };
        let (from, to) = (stage.span.from, stage.span.to.unwrap_or(Cno::NEVER));
        // Its content may be shown with other attributes.
        let stays = state.kept.range(from..to).any(|(cno, _)| !gone.contains(cno));
        if stays || state.landmarks.of(v.ino, from, to).is_some() {
            return Ok(None);
        }
        let Some(steps) = state.way_to(v.ino, v.cno)? else { return Ok(None) };
        Ok(Some(Landmark {
            ino: v.ino,
            wall: checkpoint.wall,
            mounted_nanos: checkpoint.mounted_nanos,
            stood_nanos: stage.stood,
            level: stage.level,
            steps,
        }))
    }
}

impl State {
    /// What a name stood for, stage by stage, as far as it is known.
    fn stages(&self, parent: Ino, name: &[u8], most: u8, now: Time) -> Result<Vec<Stage>> {
        let mut stages: Vec<Stage> = Vec::new();
        for named in self.named(&[Named::always(parent)], name)? {
            let key = Key::new(named.ino, Kind::Inode, 0, 0);
            for v in self.versions(&key, &key)? {
                let Some(span) = v.span.cut(&named.span) else { continue };
                let inode = Inode::decode(&v.value).map_err(|why| bad_item(&v.key, why))?;
                let content = (inode.size, inode.mtime, inode.fork);
                match stages.last_mut() {
                    Some(s) if s.ino == named.ino && s.content == content && s.span.to == Some(span.from) => {
                        s.span.to = span.to;
                    }
                    _ => stages.push(Stage { ino: named.ino, span, content, since: inode.ctime, stood: 0, level: 0 }),
                }
            }
        }
        if stages.len() < STAGES_MIN {
            return Ok(stages);
        }
        for i in 0..stages.len() {
            let (s, next) = (&stages[i], stages.get(i + 1));
            let until = next.map_or(now, |n| n.since);
            let told = self.landmarks.of(s.ino, s.span.from, s.span.to.unwrap_or(Cno::NEVER));
            let stood = match told {
                // What came next is not known any more.
                Some((_, l)) if next.is_some_and(|n| Some(n.span.from) != s.span.to) => l.stood_nanos,
                _ => u64::try_from(until.0.saturating_sub(s.since.0)).unwrap_or(0),
            };
            stages[i].stood = stood;
        }
        let stood: Vec<u64> = stages.iter().map(|s| s.stood).collect();
        for (stage, level) in stages.iter_mut().zip(levels(&stood, most)) {
            stage.level = level;
        }
        Ok(stages)
    }

    /// The directories on the way to an inode as of a checkpoint, each with the `off` of its entry, from the root on.
    fn way_to(&self, ino: Ino, cno: Cno) -> Result<Option<Vec<(Ino, u64)>>> {
        let (mut steps, mut at) = (Vec::new(), ino);
        while at != Ino::ROOT {
            let links = self.links(at)?;
            let link = links.iter().filter(|l| l.span.holds(cno)).min_by_key(|l| l.span.from);
            let Some(link) = link.filter(|_| steps.len() < DEPTH_MAX) else { return Ok(None) };
            let group = self.dirent_key(link.parent, &link.name);
            let mut off = None;
            for v in self.versions(&group, &Key { off: group.off | SLOT_MASK, ..group })? {
                let entry = Dirent::decode(&v.value).map_err(|why| bad_item(&v.key, why))?;
                if entry.ino == at && entry.name == link.name.as_slice() && v.span.holds(cno) {
                    off = Some(v.key.off);
                }
            }
            let Some(off) = off else { return Ok(None) };
            steps.push((link.parent, off));
            at = link.parent;
        }
        steps.reverse();
        Ok(Some(steps))
    }
}

/// Directories above a file before none of its versions becomes a landmark.
const DEPTH_MAX: usize = 64;
/// The type in a mode, and that of a regular file.
const TYPE_MASK: u32 = 0o170_000;
const TYPE_REGULAR: u32 = 0o100_000;
