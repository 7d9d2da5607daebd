//! The names that a directory has no more, with where they were seen last. See docs/decisions/0012.

use super::history::{Named, Resolved, whole_lives};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::state::{Span, State, Version, bad_item};
use crate::{At, Attr, Error, FileKind, Result};
use nenrin_format::items::{Dirent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Cno, Ino};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// A name that a directory had, and has no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoneName {
    /// The name.
    pub name: Vec<u8>,
    /// The newest kept checkpoint that shows it, or the newest of which a landmark keeps it.
    pub last: Cno,
    /// It is the latter: of a directory nothing is left then but the way to single files.
    pub is_landmark: bool,
    /// What it stood for then; none where that cannot be read.
    pub attr: Option<Attr>,
    /// Its path then, from the root of the volume, where that is not the one that was asked for: a directory had another
    /// name.
    pub then: Option<Vec<u8>>,
    /// Where that is now, from the root of the volume, if it still has a name.
    pub now: Option<Vec<u8>>,
    /// Why some of this is not told, or told as "?": the damage that it cannot be read for. A name that is "?" stands for all that
    /// cannot be read for the same reason.
    pub damage: Option<String>,
}

impl Fs {
    /// The names that the directory `path` (its parts, from the root of the volume) had in a kept
    /// checkpoint or by a landmark and has no more, by name. The directory itself may be gone, and what it lost while it
    /// had other names counts, too.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there never was anything of this name, as far as is known; [`Error::NotDirectory`]
    /// when that never was a directory.
    pub fn gone(&self, path: &[&[u8]]) -> Result<Vec<GoneName>> {
        let mut all = Vec::new();
        self.gone_in_parts(path, &mut |some| {
            all.extend(some);
            ControlFlow::Continue(())
        })?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// [`Fs::gone`], some at a time and in any order, or none where all of many are still there, until `each` breaks.
    ///
    /// # Errors
    /// Those of [`Fs::gone`].
    pub fn gone_in_parts(&self, path: &[&[u8]], each: &mut dyn FnMut(Vec<GoneName>) -> ControlFlow<()>) -> Result<()> {
        let Resolved { named, followed } = self.lock().state.resolve(path)?;
        if followed.is_empty() {
            return Err(Error::NotFound);
        }
        let inner = self.lock();
        let mut dirs = Vec::with_capacity(followed.len());
        for n in whole_lives(&followed) {
            if inner.state.was_directory(n.ino)? {
                dirs.push(n);
            }
        }
        drop(inner);
        if dirs.is_empty() {
            return Err(Error::NotDirectory);
        }
        let asked = Asked { named, now: dirs.iter().find(|n| n.span.to.is_none()).map(|n| n.ino) };
        let mut unread = Unread::new();
        for piece in 0..GONE_PIECES {
            // A name is in the same piece of each directory.
            let mut newest: BTreeMap<Vec<u8>, Last> = BTreeMap::new();
            for dir in &dirs {
                // Others get the volume in between.
                let versions = self.lock().gone_in_piece(dir, piece, &mut unread)?;
                for some in versions.chunks(GONE_AT_ONCE) {
                    self.lock().seen_last(dir, some, &mut newest, &mut unread)?;
                }
            }
            let found: Vec<_> = newest.into_iter().collect();
            for some in found.chunks(GONE_AT_ONCE) {
                let gone = self.lock().gone_of(&asked, some)?;
                if each(gone).is_break() {
                    return Ok(());
                }
            }
        }
        if !unread.is_empty() {
            let _ = each(unread.into_iter().map(|(damage, last)| GoneName::unread(damage, last)).collect());
        }
        Ok(())
    }
}

/// Pieces of a directory, by the hashes of its names, and names, that are looked at under one lock.
const GONE_PIECES: u64 = 64;
const GONE_AT_ONCE: usize = 256;
/// Hashes of names have a bit less than a key has room for.
const HASHES: u64 = 1 << 63;

/// The hashes in a piece: the first and the last.
const fn piece_of_hashes(piece: u64) -> (u64, u64) {
    let width = HASHES / GONE_PIECES;
    let last = if piece + 1 == GONE_PIECES { u64::MAX } else { (piece + 1) * width - 1 };
    (piece * width, last)
}

/// Why names cannot be read, and the newest checkpoint that may show one of them.
type Unread = BTreeMap<String, Cno>;

impl GoneName {
    /// One that cannot be read, or several.
    fn unread(damage: String, last: Cno) -> Self {
        Self { name: b"?".to_vec(), last, is_landmark: false, attr: None, then: None, now: None, damage: Some(damage) }
    }
}

/// What a directory that was asked for is and was.
struct Asked {
    /// What the path stood for.
    named: Vec<Named>,
    /// What it stands for.
    now: Option<Ino>,
}

/// Where a name was shown last.
#[derive(Clone, Copy)]
struct Last {
    cno: Cno,
    /// The directory.
    dir: Ino,
    /// What the name stood for.
    ino: Ino,
}

impl Inner {
    /// Those of these names that the directory has no more.
    fn gone_of(&self, asked: &Asked, some: &[(Vec<u8>, Last)]) -> Result<Vec<GoneName>> {
        let mut out = Vec::new();
        for (name, last) in some {
            let mut damage = None;
            let there = asked.now.map(|dir| self.state.dirent(dir, name)).transpose();
            let is_there = readable(there, &mut damage)?.flatten().flatten().is_some();
            if !is_there {
                out.extend(self.gone_name(asked, name, *last, damage)?);
            }
        }
        Ok(out)
    }

    /// What is known of a name that is gone. What cannot be read of it keeps no other from being told.
    fn gone_name(
        &self,
        asked: &Asked,
        name: &[u8],
        Last { cno: last, dir, ino }: Last,
        mut damage: Option<String>,
    ) -> Result<Option<GoneName>> {
        let attr = match self.attr(At::Past(last), ino) {
            // Meanwhile the checkpoint may have been let go.
            Err(Error::Stale | Error::NotFound) => return Ok(None),
            attr => readable(attr, &mut damage)?,
        };
        let now = match readable(self.state.links(ino), &mut damage)? {
            Some(links) if links.iter().any(|l| l.span.to.is_none()) => {
                let path = self.state.path_in(&links, Cno(u64::MAX));
                Some(readable(path, &mut damage)?.unwrap_or_else(|| b"?".to_vec()))
            }
            _ => None,
        };
        let is_landmark = !self.state.kept.contains_key(&last);
        let as_asked = asked.named.iter().any(|n| n.ino == dir && n.span.holds(last));
        let then = match as_asked {
            true => None,
            false => {
                let path = self.state.path_below(dir, name, last);
                Some(readable(path, &mut damage)?.unwrap_or_else(|| [&b"?/"[..], name].concat()))
            }
        };
        Ok(Some(GoneName { name: name.to_vec(), last, is_landmark, attr, then, now, damage }))
    }

    /// The versions of names in a piece of `dir` that ended, or that the directory took along when it lost its own name.
    fn gone_in_piece(&self, dir: &Named, piece: u64, unread: &mut Unread) -> Result<Vec<Version>> {
        let (first, last) = piece_of_hashes(piece);
        let from = Key::new(dir.ino, Kind::Dirent, 0, first);
        let (versions, lost) = self.state.versions_left(&from, &Key { off: last, ..from }, dir.span.to.is_some());
        for why in lost {
            if !why.is_damage() {
                return Err(why);
            }
            // Any may have shown it, also where landmarks alone are left.
            let newest = self.state.kept.last_key_value().map(|(cno, _)| *cno);
            if let Some(cno) = newest.or_else(|| self.state.landmarks.iter().last().map(|(at, _)| at.0)) {
                unread.insert(why.to_string(), cno);
            }
        }
        Ok(versions)
    }

    /// Adds the names of these versions that a checkpoint or a landmark shows.
    fn seen_last(
        &self,
        dir: &Named,
        versions: &[Version],
        newest: &mut BTreeMap<Vec<u8>, Last>,
        unread: &mut Unread,
    ) -> Result<()> {
        for v in versions {
            let Some(span) = v.span.cut(&dir.span) else { continue };
            let entry = match Dirent::decode(&v.value) {
                Ok(entry) => entry,
                Err(why) => {
                    if let Some((_, last)) = self.state.shown_by(&span) {
                        let known = unread.entry(bad_item(&v.key, why).to_string()).or_insert(last);
                        *known = last.max(*known);
                    }
                    continue;
                }
            };
            let is_dir = FileKind::from_mode(u32::from(entry.file_type) << 12) == FileKind::Directory;
            let seen = match self.state.entry_seen(&v.key, &span, entry.ino, is_dir) {
                Err(e) if e.is_damage() && broken(Break::DamageHidesNames) => None,
                // That it cannot be read what it was says nothing against its having been there.
                Err(e) if e.is_damage() => self.state.shown_by(&span).map(|(_, last)| last),
                seen => seen?,
            };
            let Some(cno) = seen else { continue };
            let last = Last { cno, dir: dir.ino, ino: entry.ino };
            let known = newest.entry(entry.name.to_vec()).or_insert(last);
            if known.cno < cno {
                *known = last;
            }
        }
        Ok(())
    }
}

impl State {
    /// Whether an inode is or was a directory, which never changes.
    fn was_directory(&self, ino: Ino) -> Result<bool> {
        let key = Key::new(ino, Kind::Inode, 0, 0);
        let versions = self.versions(&key, &key)?;
        let Some(v) = versions.first() else { return Ok(false) };
        let inode = Inode::decode(&v.value).map_err(|why| bad_item(&v.key, why))?;
        Ok(FileKind::from_mode(inode.mode) == FileKind::Directory)
    }

    /// The newest checkpoint in a span as of which an inode is known. Versions of it may be many, and so may the checkpoints that show each.
    fn newest_known(&self, ino: Ino, span: &Span) -> Result<Option<Cno>> {
        let Some((first, last)) = self.shown_by(span) else { return Ok(None) };
        if broken(Break::EachStateAsked) {
            let known = |(cno, _): (&Cno, _)| self.knows(ino, *cno).map(|known| known.then_some(*cno)).transpose();
            return self.kept.range(first..=last).rev().find_map(known).transpose();
        }
        // Nearly always.
        if self.knows(ino, last)? {
            return Ok(Some(last));
        }
        let (key, mut newest) = (Key::new(ino, Kind::Inode, 0, 0), None);
        for v in self.versions(&key, &key)? {
            let inode = Inode::decode(&v.value).map_err(|why| bad_item(&key, why))?;
            let shown = v.span.cut(span).and_then(|both| self.shown_by(&both)).map(|(_, last)| last);
            if shown > newest && v.span.to.is_none_or(|death| self.is_known(ino, &inode, death)) {
                newest = shown;
            }
        }
        Ok(newest)
    }

    /// The newest checkpoint in a span that shows an entry, or of which a landmark keeps it. Since of a directory
    /// a landmark has a part only, an older checkpoint comes before it.
    fn entry_seen(&self, key: &Key, span: &Span, ino: Ino, is_dir: bool) -> Result<Option<Cno>> {
        let checkpoint = self.newest_known(ino, span)?;
        if is_dir && checkpoint.is_some() {
            return Ok(checkpoint);
        }
        Ok(checkpoint.max(self.landmarks.newest_entry(key, span.from, span.to.unwrap_or(Cno::NEVER))))
    }
}

/// What was read; nothing where there is damage, which is noted.
fn readable<T>(read: Result<T>, damage: &mut Option<String>) -> Result<Option<T>> {
    match read {
        Err(e) if e.is_damage() => {
            damage.get_or_insert_with(|| e.to_string());
            Ok(None)
        }
        read => read.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{create, device, mount};
    use nenrin_format::Time;
    use nenrin_format::records::Record;
    use std::sync::Arc;

    const NAMES: u64 = 200;
    const STATES: u64 = 500;

    /// Files that are gone, of which many checkpoints show the names and in none is known what they were.
    fn names_of_what_is_not_known() -> Arc<Fs> {
        let device = device(64, 64);
        let options = || MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
        let fs = mount(&device, options());
        let made: Vec<Ino> = (0..NAMES).map(|n| create(&fs, &format!("file {n}"))).collect();
        (0..STATES).for_each(|_| drop(fs.checkpoint_create(None).unwrap()));
        (0..NAMES).for_each(|n| fs.unlink(Ino::ROOT, format!("file {n}").as_bytes()).unwrap());
        fs.checkpoint_create(None).unwrap();
        let upto = fs.lock().state.open_cno;
        for ino in made {
            fs.lock().log(&Record::Shed { ino, upto, wall: Time(1), blocks: 1 }, 0).unwrap();
        }
        fs.close().unwrap();
        drop(fs);
        mount(&device, options())
    }

    /// P7: who lists names looks for what each was a few times, however many checkpoints show it.
    fn each_name_is_looked_at() {
        let fs = names_of_what_is_not_known();
        let asked = || {
            let counted = fs.lock().state.cache.counters();
            counted.hits + counted.misses
        };
        let before = asked();
        assert!(fs.gone(&[]).unwrap().is_empty());
        let asked = asked() - before;
        assert!((NAMES..20 * NAMES).contains(&asked), "{asked} nodes were looked up for {NAMES} names");
    }

    #[test]
    fn a_name_is_not_looked_for_in_each_state() {
        each_name_is_looked_at();
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "nodes were looked up")]
    fn each_state_that_is_asked_is_noticed() {
        crate::breaks::with(Break::EachStateAsked, each_name_is_looked_at);
    }

    /// As asking each checkpoint says, of files that are changed, known for some time, and gone.
    #[test]
    fn the_newest_that_is_known_is_found() {
        let fs = mount(&device(64, 64), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let mut random = nenrin_device::Prng::new(11);
        let made: Vec<Ino> = (0..12).map(|n| create(&fs, &format!("file {n}"))).collect();
        let mut last = Cno(0);
        for round in 0..300_u16 {
            let ino = made[random.below(12) as usize];
            match random.below(4) {
                0 if round > 200 => drop(fs.unlink(Ino::ROOT, format!("file {}", random.below(12)).as_bytes())),
                0 | 1 => {
                    let upto = fs.lock().state.open_cno;
                    fs.lock().log(&Record::Shed { ino, upto, wall: Time(1), blocks: 1 }, 0).unwrap();
                }
                _ => drop(fs.write(ino, 0, &[round as u8; 3000], 0)),
            }
            let name = format!("s{round}");
            last = fs.checkpoint_create((round % 60 == 0).then_some(name.as_bytes())).unwrap().cno;
        }
        let inner = fs.lock();
        let (mut found, mut none) = (0, 0);
        for ino in made {
            for _ in 0..100 {
                let from = Cno(random.below(last.0));
                let span = Span { from, to: Some(Cno(from.0 + 1 + random.below(20))) };
                let mut shown = inner.state.kept.keys().filter(|cno| span.holds(**cno)).rev();
                let asked = shown.find(|cno| inner.state.knows(ino, **cno).unwrap()).copied();
                assert_eq!(inner.state.newest_known(ino, &span).unwrap(), asked, "{ino} {span:?}");
                (found, none) = (found + u32::from(asked.is_some()), none + u32::from(asked.is_none()));
            }
        }
        assert!(found > 100 && none > 100, "{found} {none}");
    }

    #[test]
    fn pieces_have_all_hashes_and_as_many_each() {
        let pieces: Vec<_> = (0..GONE_PIECES).map(piece_of_hashes).collect();
        assert_eq!((pieces[0].0, pieces[GONE_PIECES as usize - 1].1), (0, u64::MAX));
        assert!(pieces.windows(2).all(|w| w[0].1 + 1 == w[1].0 && w[0].1 - w[0].0 == HASHES / GONE_PIECES - 1));
        let fs = mount(&device(64, 64), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let mut used = std::collections::BTreeSet::new();
        for n in 0..1000 {
            let hash = fs.lock().state.dirent_key(Ino::ROOT, format!("file {n}").as_bytes()).off;
            used.extend((0..GONE_PIECES).filter(|n| (pieces[*n as usize].0..=pieces[*n as usize].1).contains(&hash)));
        }
        assert_eq!(used.len() as u64, GONE_PIECES, "{used:?}");
    }

    /// P5: what cannot be read of one name hides no other, also where that is the name.
    #[test]
    fn a_name_that_cannot_be_read_hides_no_other() {
        let fs = mount(&device(64, 64), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        (0..10).for_each(|n| assert!(create(&fs, &format!("file {n}")) > Ino::ROOT));
        let shown = fs.checkpoint_create(None).unwrap().cno;
        (0..10).for_each(|n| fs.unlink(Ino::ROOT, format!("file {n}").as_bytes()).unwrap());
        fs.sync_all().unwrap();
        let mut inner = fs.lock();
        let slots = [3, 6].map(|n| inner.state.dirent_key(Ino::ROOT, format!("file {n}").as_bytes()));
        let State { history, cache, .. } = &mut inner.state;
        let tree = &mut history.last_mut().unwrap().tree;
        for (slot, cut_to) in slots.into_iter().zip([12, 4]) {
            let (key, value) = tree.next_within(cache, &slot, &slot.died(u64::MAX)).unwrap().unwrap();
            tree.insert(cache, key, value[..cut_to].into()).unwrap();
        }
        drop(inner);
        let gone = fs.gone(&[]).unwrap();
        let (whole, damaged): (Vec<_>, Vec<_>) = gone.iter().partition(|g| g.damage.is_none());
        assert_eq!(whole.len(), 8, "{gone:?}");
        assert!(whole.iter().all(|g| g.last == shown && g.attr.is_some()));
        assert!(!damaged.is_empty() && damaged.iter().all(|g| g.name == b"?" && g.last == shown), "{damaged:?}");
    }
}
