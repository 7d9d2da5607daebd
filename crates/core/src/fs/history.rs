//! The history of a name: what it stood for, and stands for. See
//! docs/decisions/0012.

use super::namespace::attr_of;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::state::{SLOT_MASK, Span, State, bad_item};
use crate::{At, Attr, Error, Result};
use nenrin_format::items::{Dirent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Cno, Ino, NAME_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet};

/// Directories on the way to the root before a loop is assumed.
const DEPTH_MAX: usize = 4096;

/// What set a state apart from the one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was made; or it is the oldest that is left.
    Made,
    /// Its content.
    Content,
    /// Owner, permissions or other attributes.
    Attributes,
    /// It had this path before.
    Renamed(Vec<u8>),
    /// It has this path, too.
    Linked(Vec<u8>),
    /// The name stands for nothing any more; what it stood for went to this path.
    Moved(Vec<u8>),
    /// The name stands for nothing any more.
    Removed,
}

/// What a name stood for during some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameState {
    /// The checkpoints that show it, oldest and newest; `None`: only now.
    pub shown_by: Option<(Cno, Cno)>,
    /// None of them is kept, but this version is, as a landmark of this level.
    pub landmark: Option<u8>,
    /// It is what there is now.
    pub is_now: bool,
    /// Its path in the oldest of them, from the root of the volume, without a slash before it.
    pub path: Vec<u8>,
    /// What it was; `None` when the name stood for nothing.
    pub attr: Option<Attr>,
    /// Who last wrote the content.
    pub editor_uid: u32,
    /// What set it apart.
    pub change: Change,
}

/// A state, from when on, and of which inode, or the end of which.
type Found = (Cno, Ino, NameState);

/// A name that stood for an inode.
#[derive(Clone, Copy)]
pub(super) struct Named {
    /// The directory of the name.
    pub dir: Ino,
    pub ino: Ino,
    pub span: Span,
}

impl Named {
    /// An inode by itself, at all times.
    pub(super) const fn always(ino: Ino) -> Self {
        Self { dir: ino, ino, span: Span::ALWAYS }
    }
}

/// A name that an inode bore.
pub(super) struct Link {
    pub parent: Ino,
    pub name: Vec<u8>,
    pub span: Span,
}

impl Fs {
    /// Every state of `path` (its parts, from the root of the volume) that a kept
    /// checkpoint shows, and what it stands for now; oldest first. Before it got this
    /// name an inode is followed under the names that it had, and so is a directory until it lost the name for the last time: what stood for a
    /// name in it while it had another is told, too.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it never stood for anything, as far as is known.
    pub fn history(&self, path: &[&[u8]]) -> Result<Vec<NameState>> {
        if path.iter().any(|name| name.len() > NAME_BYTES_MAX) {
            return Err(Error::NameTooLong);
        }
        if !self.options.read_only {
            // So that what is there now is a state of its own. On a volume that has
            // failed the past can be read all the same.
            let _ = self.sync_received(false);
        }
        let inner = self.lock();
        let Resolved { named, followed } = inner.state.resolve(path)?;
        let asked = path.join(&b'/');
        let own = by_inode(&named);
        let mut found = Vec::new();
        for (ino, all) in by_inode(&followed) {
            let own = own.get(&ino).map_or(&[][..], |own| own);
            inner.states_of(ino, &times_told(own, &all), &asked, &mut found)?;
        }
        inner.removals(&named, &followed, &asked, &mut found)?;
        // What no kept checkpoint shows may wait to be swept; that it is gone says nothing.
        if found.iter().all(|(_, _, state)| state.attr.is_none()) {
            return Err(Error::NotFound);
        }
        // What replaced the name elsewhere comes behind the end of it here.
        found.sort_by_key(|(from, _, state)| (*from, state.attr.is_some()));
        let mut states: Vec<NameState> = Vec::with_capacity(found.len());
        let mut of = None;
        for (_, ino, state) in found {
            let went_on = of.replace(ino) == Some(ino);
            match states.last_mut() {
                // What came between was seen by nobody; but where it went, and went from there, are two things.
                Some(last)
                    if last.attr.is_none() && state.attr.is_none() && (!went_on || last.change == state.change) =>
                {
                    let oldest = last.shown_by.or(state.shown_by).map(|(oldest, _)| oldest);
                    last.shown_by = oldest.zip(state.shown_by.or(last.shown_by).map(|(_, newest)| newest));
                    last.is_now |= state.is_now;
                }
                _ => states.push(state),
            }
        }
        if broken(Break::SharedStatesUntold) {
            states.retain(|s| s.is_now || s.shown_by.is_none_or(|(oldest, newest)| oldest == newest));
        }
        Ok(states)
    }
}

impl Fs {
    /// Paths, from the root of the volume, of what is none of the inodes that bore `path`, nor of these: of which directories on the way had
    /// other names while these had the same name in them, before or since.
    ///
    /// # Errors
    /// Damage.
    pub fn elsewhere(&self, path: &[&[u8]], but: &[Ino]) -> Result<Vec<Vec<u8>>> {
        let inner = self.lock();
        let mut own: BTreeSet<Ino> = inner.state.resolve(path)?.named.iter().map(|n| n.ino).collect();
        own.extend(but.iter().copied());
        let Some(name) = path.last() else { return Ok(Vec::new()) };
        let mut paths = BTreeSet::new();
        for n in inner.state.whenever(path)?.iter().filter(|n| !own.contains(&n.ino)) {
            let last = n.span.to.map_or(u64::MAX, |end| end.0.saturating_sub(1));
            paths.insert(inner.state.path_below(n.dir, name, Cno(last))?);
        }
        paths.remove(&path.join(&b'/'));
        Ok(paths.into_iter().collect())
    }

    /// Under which path a kept checkpoint, or one of which landmarks are left, has what `path` has to do with, where that is another: what
    /// stood for the name in its directory then, else what the path stood for at other times, of several the last.
    ///
    /// # Errors
    /// Damage.
    pub fn path_then(&self, path: &[&[u8]], cno: Cno) -> Result<Option<Vec<u8>>> {
        let inner = self.lock();
        let Resolved { named, followed } = inner.state.resolve(path)?;
        let (Some(name), asked) = (path.last(), path.join(&b'/')) else { return Ok(None) };
        let is_shown = |path: &Vec<u8>, ino| *path != asked && inner.is_shown(path, ino, cno);
        // Of directories that had the name one after the other, that which has or had it last.
        let dir = named.last().map(|n| n.dir);
        if let Some(n) = followed.iter().filter(|n| n.span.holds(cno)).max_by_key(|n| Some(n.dir) == dir) {
            let then = inner.state.path_below(n.dir, name, cno)?;
            if is_shown(&then, n.ino) {
                return Ok(Some(then));
            }
        }
        for n in named.iter().rev().chain(followed.iter().rev()) {
            let then = inner.state.path_in(&inner.state.links(n.ino)?, cno)?;
            if is_shown(&then, n.ino) {
                return Ok(Some(then));
            }
        }
        Ok(None)
    }
}

/// When each inode bore a name.
fn by_inode(named: &[Named]) -> BTreeMap<Ino, Vec<Named>> {
    let mut out: BTreeMap<Ino, Vec<Named>> = BTreeMap::new();
    for n in named {
        out.entry(n.ino).or_default().push(*n);
    }
    out
}

/// Under which path an inode is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Under {
    /// That which was asked for.
    Asked,
    /// The same name in this directory, which had another name itself, or one above it.
    Below(Ino),
    /// Whatever it had before it got the name.
    Any,
}

/// The times in which an inode is told, in order and without overlap: those before it bore the name, those in which it did (`own`), and those
/// in which it bore it later while a directory above had another name (what of `all` is none of `own`).
fn times_told(own: &[Named], all: &[Named]) -> Vec<(Span, Under)> {
    let until = match own.first() {
        Some(first) => first.span.from,
        // It bore the name, and lost it, while a directory above had another.
        None => all.iter().filter_map(|n| n.span.to).max().unwrap_or(Cno(0)),
    };
    let mut told: Vec<_> = own.iter().map(|n| (n.span, Under::Asked)).collect();
    told.push((Span { from: Cno(0), to: Some(until) }, Under::Any));
    // One time after the other, so that what several directories had counts once.
    let mut at = until;
    'all: for n in all {
        at = at.max(n.span.from);
        while n.span.holds(at) {
            let begun = own.partition_point(|o| o.span.from <= at);
            let end = match own[..begun].last().filter(|o| o.span.holds(at)) {
                Some(o) => o.span.to,
                None => {
                    let other = Span { from: at, to: own.get(begun).map(|o| o.span.from) };
                    let other = other.cut(&n.span).unwrap_or(other);
                    told.push((other, Under::Below(n.dir)));
                    other.to
                }
            };
            let Some(end) = end else { break 'all };
            at = end;
        }
    }
    told.sort_by_key(|(span, _)| span.from);
    told
}

/// When a name stood for anything.
struct Times {
    /// In order.
    begins: Vec<Cno>,
    /// When the last of all ends that began so far; `None`: it has not.
    ends: Vec<Option<Cno>>,
}

impl Times {
    fn of(named: &[Named]) -> Self {
        let mut spans: Vec<Span> = named.iter().map(|n| n.span).collect();
        spans.sort_by_key(|s| s.from);
        let mut last = Some(Cno(0));
        let mut longest = |s: &Span| {
            last = last.zip(s.to).map(|(a, b)| a.max(b));
            last
        };
        let ends = spans.iter().map(&mut longest).collect();
        Self { begins: spans.iter().map(|s| s.from).collect(), ends }
    }
    fn begun(&self, at: Cno) -> usize {
        self.begins.partition_point(|begins| *begins <= at)
    }
    fn hold(&self, at: Cno) -> bool {
        self.begun(at).checked_sub(1).is_some_and(|i| self.ends[i].is_none_or(|end| at < end))
    }
    fn next(&self, after: Cno) -> Option<Cno> {
        self.begins.get(self.begun(after)).copied()
    }
}

/// Directories with all of their lives up to the end of each, under whatever names.
pub(super) fn whole_lives(directories: &[Named]) -> Vec<Named> {
    if broken(Break::DirectoriesNotFollowed) {
        return directories.to_vec();
    }
    let mut ends: BTreeMap<Ino, Option<Cno>> = BTreeMap::new();
    for Named { ino, span, .. } in directories {
        let end = ends.entry(*ino).or_insert(span.to);
        *end = end.zip(span.to).map(|(a, b)| a.max(b));
    }
    ends.into_iter().map(|(ino, to)| Named { span: Span { from: Cno(0), to }, ..Named::always(ino) }).collect()
}

impl Fs {
    /// The newest kept checkpoint or landmark that shows an inode, and in which it is known what it was.
    ///
    /// # Errors
    /// Damage.
    pub fn last_seen(&self, ino: Ino) -> Result<Option<Cno>> {
        let inner = self.lock();
        let key = Key::new(ino, Kind::Inode, 0, 0);
        let versions = inner.state.versions(&key, &key)?;
        let mut newest = None;
        for v in &versions {
            let inode = Inode::decode(&v.value).map_err(|why| bad_item(&key, why))?;
            // As who reads it is told: what is not kept is not known from the moment on in which nothing keeps it.
            let is_let_go = v.span.to.is_some_and(|death| !inner.state.is_known(ino, &inode, death));
            let is_known = !(is_let_go && inode.history_is_inherited()) || broken(Break::LastSeenUnknown);
            let shown = inner.state.shown_by(&v.span).map(|(_, last)| last).filter(|_| is_known);
            let landmark = inner.state.landmarks.newest(ino, v.span.from, v.span.to.unwrap_or(Cno::NEVER));
            newest = newest.max(shown.max(landmark));
        }
        Ok(newest)
    }
}

impl Inner {
    /// The states of one inode in the times in which it is told, in order.
    fn states_of(&self, ino: Ino, told: &[(Span, Under)], asked: &[u8], found: &mut Vec<Found>) -> Result<()> {
        let (links, name) = (self.state.links(ino)?, last_part(asked));
        let key = Key::new(ino, Kind::Inode, 0, 0);
        let mut before: Option<Inode> = None;
        let mut last: Option<(Cno, Under, NameState)> = None;
        for v in self.state.versions(&key, &key)? {
            let inode = Inode::decode(&v.value).map_err(|why| bad_item(&v.key, why))?;
            if v.span.to.is_some_and(|death| !self.state.is_known(ino, &inode, death)) {
                continue;
            }
            // The name may be taken away and given back while nothing else changes.
            for (time, under) in told {
                let Some(span) = time.cut(&v.span) else { continue };
                let (shown_by, landmark) = self.shown(ino, &span);
                let is_now = span.to.is_none() && *under == Under::Asked;
                if shown_by.is_none() && !is_now {
                    continue;
                }
                let begins = match under {
                    Under::Asked if time.from == span.from => Some(asked.to_vec()),
                    Under::Below(dir) if time.from == span.from => Some(self.state.path_below(*dir, name, span.from)?),
                    _ => None,
                };
                let change = self.state.change(&links, span.from, begins.as_deref(), before.as_ref(), &inode)?;
                before = Some(inode);
                match &mut last {
                    // The same as before, for all that can be told.
                    Some((_, as_before, state)) if change.is_none() && *as_before == *under => {
                        let oldest = state.shown_by.or(shown_by).map(|(oldest, _)| oldest);
                        state.shown_by = oldest.zip(shown_by.or(state.shown_by).map(|(_, newest)| newest));
                        state.is_now |= is_now;
                        state.landmark = state.landmark.and(landmark);
                        continue;
                    }
                    _ => found.extend(last.take().map(|(from, _, state)| (from, ino, state))),
                }
                let first = shown_by.map_or(span.from, |(oldest, _)| oldest);
                let path = match under {
                    // Of several names a landmark has one.
                    _ if landmark.is_some() => self.state.path_in(&links, first)?,
                    Under::Asked => asked.to_vec(),
                    Under::Below(dir) => self.state.path_below(*dir, name, first)?,
                    Under::Any => self.state.path_in(&links, first)?,
                };
                let attr = if is_now { self.attr(At::Live, ino)? } else { attr_of(ino, &inode) };
                let (attr, change, editor_uid) = (Some(attr), change.unwrap_or(Change::Attributes), inode.editor_uid);
                let state = NameState { shown_by, landmark, is_now, path, attr, editor_uid, change };
                last = Some((span.from, *under, state));
            }
        }
        found.extend(last.map(|(from, _, state)| (from, ino, state)));
        Ok(())
    }

    /// The checkpoints that show an inode in a part of its time; where there is none the landmark that keeps it, and its level.
    fn shown(&self, ino: Ino, span: &Span) -> (Option<(Cno, Cno)>, Option<u8>) {
        let shown = self.state.shown_by(span);
        if shown.is_some() {
            return (shown, None);
        }
        let kept = self.state.landmarks.of(ino, span.from, span.to.unwrap_or(Cno::NEVER));
        kept.map_or((None, None), |(cno, landmark)| (Some((cno, cno)), Some(landmark.level)))
    }

    /// The times in which the name stood for nothing: while its directories had these names (`named`), and what followed when it ended while
    /// one of them had another (`followed`, which has those of `named` as well, with more of their time).
    fn removals(&self, named: &[Named], followed: &[Named], asked: &[u8], found: &mut Vec<Found>) -> Result<()> {
        let (times, all) = (Times::of(named), Times::of(followed));
        let end = |n: &Named| n.span.to.map(|end| (n.ino, end));
        let here: BTreeSet<(Ino, Cno)> = named.iter().filter_map(end).collect();
        let own = named.iter().filter_map(|n| Some((n, n.span.to.filter(|end| !times.hold(*end))?, false)));
        // What ends here and there at once is told once.
        let elsewhere = followed.iter().filter(|n| end(n).is_some_and(|end| !here.contains(&end)));
        let elsewhere = elsewhere.filter_map(|n| Some((n, n.span.to.filter(|end| !all.hold(*end))?, true)));
        let ended: Vec<(&Named, Cno, bool)> = own.chain(elsewhere).collect();
        let ends: BTreeSet<Cno> = ended.iter().map(|(_, from, _)| *from).collect();
        for (n, from, is_elsewhere) in ended {
            // Then comes another state, or the end of one, whatever the path of that.
            let next_end = ends.range(from.next()..).next().copied();
            let to = times.next(from).into_iter().chain(all.next(from)).chain(next_end).min();
            let gone = Span { from, to };
            let shown_by = self.shown_absent(asked, &gone);
            if shown_by.is_none() && to.is_some() {
                continue;
            }
            let path = asked.to_vec();
            let then = match is_elsewhere {
                true => self.state.path_below(n.dir, last_part(asked), Cno(from.0.saturating_sub(1)))?,
                false => path.clone(),
            };
            let change = match self.state.moved_to(n.ino, from, &then)? {
                Some(to_path) if to.is_none() => self.state.found_now(n.ino, to_path)?,
                moved => moved.map_or(Change::Removed, Change::Moved),
            };
            let state =
                NameState { shown_by, landmark: None, is_now: to.is_none(), path, attr: None, editor_uid: 0, change };
            found.push((from, n.ino, state));
        }
        Ok(())
    }
}

impl Inner {
    /// What a path from the root of the volume stands for in a state.
    fn stands_for(&self, at: At, path: &[u8]) -> Result<Ino> {
        path.split(|b| *b == b'/').try_fold(Ino::ROOT, |dir, name| self.child(at, dir, name))
    }

    /// Whether a checkpoint shows this inode under a path, and knows it.
    fn is_shown(&self, path: &[u8], ino: Ino, cno: Cno) -> bool {
        let at = At::Past(cno);
        self.stands_for(at, path).is_ok_and(|found| found == ino) && self.attr(at, ino).is_ok()
    }

    /// The first and the last kept checkpoint in a span that show that a path stood for nothing.
    fn shown_absent(&self, path: &[u8], span: &Span) -> Option<(Cno, Cno)> {
        let is_absent =
            |cno: &Cno| matches!(self.stands_for(At::Past(*cno), path), Err(Error::NotFound | Error::NotDirectory));
        let (oldest, newest) = self.state.shown_by(span)?;
        let mut kept = self.state.kept.range(oldest..=newest).map(|(cno, _)| *cno);
        let oldest = kept.find(is_absent)?;
        Some((oldest, kept.rfind(is_absent).unwrap_or(oldest)))
    }
}

/// The last name of a path.
fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// What a path stood for.
pub(super) struct Resolved {
    /// While its directories had these names.
    pub named: Vec<Named>,
    /// With each directory on the way taken for all of its life: the same, with more of their time, and others.
    pub followed: Vec<Named>,
}

impl State {
    /// What a path stood for, which begins at the root of the volume.
    pub(super) fn resolve(&self, path: &[&[u8]]) -> Result<Resolved> {
        let root = vec![Named::always(Ino::ROOT)];
        path.iter().try_fold(Resolved { named: root.clone(), followed: root }, |above, name| {
            let followed = self.named(&whole_lives(&above.followed), name)?;
            Ok(Resolved { named: self.named(&above.named, name)?, followed })
        })
    }

    /// What the name of a path stood for in each directory that was ever on the way to it, whatever name that had.
    fn whenever(&self, path: &[&[u8]]) -> Result<Vec<Named>> {
        path.iter().try_fold(vec![Named::always(Ino::ROOT)], |above, name| {
            let inodes: BTreeSet<Ino> = above.iter().map(|n| n.ino).collect();
            self.named(&inodes.into_iter().map(Named::always).collect::<Vec<_>>(), name)
        })
    }

    /// What `name` stood for in these directories.
    pub(super) fn named(&self, directories: &[Named], name: &[u8]) -> Result<Vec<Named>> {
        let mut out = Vec::new();
        for dir in directories {
            let group = self.dirent_key(dir.ino, name);
            for v in self.versions(&group, &Key { off: group.off | SLOT_MASK, ..group })? {
                let entry = Dirent::decode(&v.value).map_err(|why| bad_item(&v.key, why))?;
                if entry.name == name {
                    out.extend(v.span.cut(&dir.span).map(|span| Named { dir: dir.ino, ino: entry.ino, span }));
                }
            }
        }
        out.sort_by_key(|n| n.span.from);
        Ok(out)
    }

    /// All names that an inode bore.
    pub(super) fn links(&self, ino: Ino) -> Result<Vec<Link>> {
        let from = Key::new(ino, Kind::Link, 0, 0);
        let versions = self.versions(&from, &Key { off: u64::MAX, ..from })?;
        let link = |v: &crate::state::Version| {
            let l = Dirent::decode(&v.value).map_err(|why| bad_item(&v.key, why))?;
            Ok(Link { parent: l.ino, name: l.name.to_vec(), span: v.span })
        };
        versions.iter().map(link).collect()
    }

    /// What sets the state of `inode` from checkpoint `from` on apart from the one
    /// before; `None` when nothing does. `begins`: the name that is asked for, if it got that then.
    fn change(
        &self,
        links: &[Link],
        from: Cno,
        begins: Option<&[u8]>,
        before: Option<&Inode>,
        inode: &Inode,
    ) -> Result<Option<Change>> {
        if let (Some(asked), Some(then)) = (begins, from.0.checked_sub(1).map(Cno)) {
            // It stayed, and a directory above it moved.
            let stayed = |l: &&Link| l.span.holds(then) && l.span.holds(from);
            if let Some(link) = self.link_of(links.iter().filter(stayed), asked, from)? {
                return Ok(Some(Change::Renamed(self.path_of(link, then)?)));
            }
            if links.iter().any(|l| l.span.to == Some(from)) {
                return Ok(Some(Change::Renamed(self.path_in(links, then)?)));
            }
            if links.iter().any(|l| stayed(&l)) {
                return Ok(Some(Change::Linked(self.path_in(links, from)?)));
            }
        }
        let Some(old) = before else { return Ok(Some(Change::Made)) };
        let content = |i: &Inode| (i.size, i.mtime, i.fork, i.blocks);
        let others = |i: &Inode| (i.mode, i.uid, i.gid, i.flags, i.nlink, i.ctime);
        Ok(if content(old) != content(inode) {
            Some(Change::Content)
        } else if others(old) != others(inode) {
            Some(Change::Attributes)
        } else {
            None
        })
    }

    /// Where that went which a path stood for until checkpoint `from`; `None` when it was removed.
    fn moved_to(&self, ino: Ino, from: Cno, asked: &[u8]) -> Result<Option<Vec<u8>>> {
        let links = self.links(ino)?;
        let there = || links.iter().filter(|l| l.span.holds(from));
        // It stayed, and a directory above it moved; or it got another name.
        let stayed = self.link_of(there(), asked, Cno(from.0.saturating_sub(1)))?;
        let link = stayed.or_else(|| there().find(|l| l.span.from == from));
        link.map(|l| self.path_of(l, from)).transpose()
    }

    /// Where that is now which went to a path: there, or where it went from there, if it was not removed.
    fn found_now(&self, ino: Ino, path: Vec<u8>) -> Result<Change> {
        let (links, now) = (self.links(ino)?, Cno(u64::MAX));
        let there: Vec<&Link> = links.iter().filter(|l| l.span.to.is_none()).collect();
        if self.link_of(there.iter().copied(), &path, now)?.is_some() {
            return Ok(Change::Moved(path));
        }
        let newest = there.into_iter().max_by_key(|l| l.span.from);
        newest.map_or(Ok(Change::Removed), |link| self.path_of(link, now).map(Change::Moved))
    }

    /// That of the links which has this path as of a checkpoint.
    fn link_of<'a>(&self, links: impl Iterator<Item = &'a Link>, path: &[u8], at: Cno) -> Result<Option<&'a Link>> {
        for link in links.filter(|l| path.ends_with(&l.name)) {
            if self.path_of(link, at)? == path {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }

    /// The oldest path of what has these links, as of a checkpoint; "?" stands for what is
    /// not known any more.
    pub(super) fn path_in(&self, links: &[Link], at: Cno) -> Result<Vec<u8>> {
        let Some(link) = links.iter().filter(|l| l.span.holds(at)).min_by_key(|l| l.span.from) else {
            return Ok(b"?".to_vec());
        };
        self.path_of(link, at)
    }

    /// The path of a name in a directory, as of a checkpoint that shows it.
    pub(super) fn path_below(&self, dir: Ino, name: &[u8], at: Cno) -> Result<Vec<u8>> {
        self.path_of(&Link { parent: dir, name: name.to_vec(), span: Span::ALWAYS }, at)
    }

    /// The path of a link that was there as of a checkpoint, as far as it is known.
    fn path_of(&self, link: &Link, at: Cno) -> Result<Vec<u8>> {
        let mut parts = vec![link.name.clone()];
        let mut dir = link.parent;
        while dir != Ino::ROOT {
            let above = self.links(dir)?;
            let Some(link) = above.into_iter().find(|l| l.span.holds(at)).filter(|_| parts.len() < DEPTH_MAX) else {
                parts.push(b"?".to_vec());
                break;
            };
            parts.push(link.name);
            dir = link.parent;
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_device::Prng;

    /// As going through all of them would say.
    #[test]
    fn times_hold_and_follow() {
        let mut random = Prng::new(1);
        for _ in 0..500 {
            let mut one = || {
                let from = random.below(20);
                let to = (random.below(5) > 0).then(|| Cno(from + 1 + random.below(6)));
                Named { span: Span { from: Cno(from), to }, ..Named::always(Ino::ROOT) }
            };
            let named: Vec<Named> = (0..6).map(|_| one()).collect();
            let times = Times::of(&named);
            for at in (0..30).map(Cno) {
                assert_eq!(times.hold(at), named.iter().any(|n| n.span.holds(at)));
                assert_eq!(times.next(at), named.iter().map(|n| n.span.from).filter(|from| *from > at).min());
            }
        }
        assert!(!Times::of(&[]).hold(Cno(5)) && Times::of(&[]).next(Cno(0)).is_none());
    }
}
