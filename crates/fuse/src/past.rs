//! States of the past inside the live mount: how their inodes are numbered,
//! and which states somebody looks into (docs/decisions/0013-the-past-in-the-mount.md).
//!
//! Invariants
//! 1. A view lives while the kernel knows an inode of it, and its number is not
//!    given to another meanwhile.
//! 2. At most [`HELD_MAX`] checkpoints are held.

use crate::errno::Errno;
use crate::volume::Volume;
use nenrin_core::Attr;
use nenrin_format::{Cno, Ino};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A directory below whose names states of the past lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shelf {
    /// `.nenrin/at`: by WHEN, as on the command line.
    At,
    /// `.snapshots`: by time, as Samba spells it.
    Snapshots,
}

/// Knows what the names of states mean.
pub trait States: Send + Sync {
    /// The state that a name means.
    fn find(&self, shelf: Shelf, name: &[u8]) -> Option<Cno>;
    /// The names that a listing shows, each with a place that grows and that the name keeps while others come and go.
    fn names(&self, shelf: Shelf) -> Vec<(u64, Vec<u8>)>;
}

/// Whether and how the past is shown inside a live mount.
#[derive(Clone, Default)]
pub struct ShowPast(pub Option<Arc<dyn States>>);

impl std::fmt::Debug for ShowPast {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ShowPast").field(&self.0.is_some()).finish()
    }
}

/// Node ids with this bit are not of the live state.
const PAST: u64 = 1 << 63;
const VIEW_SHIFT: u32 = 48;
const INO_MASK: u64 = (1 << VIEW_SHIFT) - 1;
const VIEW_MAX: u16 = (1 << 15) - 1;

/// Checkpoints that are held because somebody looked into them.
const HELD_MAX: usize = 64;

/// A directory that no volume stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// `.nenrin`
    Home = 1,
    /// `.nenrin/at`
    At = 2,
    /// `.snapshots`
    Snapshots = 3,
}

/// What a node id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// An inode of the state that is mounted.
    Own(Ino),
    /// One of ours.
    Made(Made),
    /// An inode of a view.
    Past(u16, Ino),
    /// Nothing that was ever given out.
    Nothing,
}

impl Node {
    pub const fn of(id: u64) -> Self {
        if !is_past(id) {
            return Self::Own(Ino(id));
        }
        let (view, ino) = (((id & !PAST) >> VIEW_SHIFT) as u16, id & INO_MASK);
        match (view, ino) {
            (0, 1) => Self::Made(Made::Home),
            (0, 2) => Self::Made(Made::At),
            (0, 3) => Self::Made(Made::Snapshots),
            (0, _) => Self::Nothing,
            _ => Self::Past(view, Ino(ino)),
        }
    }
}

/// Whether a node is not of the state that is mounted.
pub(crate) const fn is_past(id: u64) -> bool {
    id & PAST != 0
}

impl Made {
    pub const fn id(self) -> u64 {
        PAST | self as u64
    }
    /// What a name in the root of the volume means.
    pub fn in_root(name: &[u8]) -> Option<Self> {
        match name {
            b".nenrin" => Some(Self::Home),
            b".snapshots" => Some(Self::Snapshots),
            _ => None,
        }
    }
    /// Whose names are those of states.
    pub const fn shelf(self) -> Option<Shelf> {
        match self {
            Self::Home => None,
            Self::At => Some(Shelf::At),
            Self::Snapshots => Some(Shelf::Snapshots),
        }
    }
}

/// The node id of an inode of a view; `None` when the number is too large for one.
pub(crate) const fn id_of(view: u16, ino: Ino) -> Option<u64> {
    if ino.0 > INO_MASK { None } else { Some(PAST | (view as u64) << VIEW_SHIFT | ino.0) }
}

/// The mode of a past inode that is there today, too: to each class of users what both grant.
pub(crate) fn mode_of_both(then: &Attr, now: &Attr, same_acl: bool) -> u32 {
    const WRITES: u32 = 0o222;
    let class = |shift: u32| (now.mode >> shift) & 0o7;
    let (mut owner, mut group, mut others) = (class(6), class(3), class(0));
    // Who was in another class then than now gets what is granted wherever they may be now.
    if then.uid != now.uid {
        others &= owner;
        owner = class(3) & class(0);
    }
    if then.gid != now.gid {
        others &= group;
        group &= class(0);
    }
    if !same_acl {
        (group, others) = (0, 0);
        // A list may say anything of who was the owner.
        if then.uid != now.uid {
            owner = 0;
        }
    }
    // Nothing can be written anyway.
    then.mode & (!0o777 | WRITES | owner << 6 | group << 3 | others)
}

struct View {
    cno: Cno,
    /// By which name it was entered.
    shelf: Shelf,
    name: Vec<u8>,
    /// References that the kernel has.
    known: u64,
    held: bool,
    /// When it was entered last, by count.
    entered: u64,
}

#[derive(Default)]
struct Table {
    views: HashMap<u16, View>,
    last: u16,
    entries: u64,
}

/// The states that the kernel knows something of.
#[derive(Default)]
pub(crate) struct Views(Mutex<Table>);

impl Views {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The view of a checkpoint by this name, with one reference to be given back.
    pub fn enter(&self, volume: &dyn Volume, cno: Cno, shelf: Shelf, name: &[u8]) -> Result<u16, Errno> {
        let mut table = self.lock();
        table.entries += 1;
        let entered = table.entries;
        let is_it = |v: &View| v.cno == cno && v.shelf == shelf && v.name == name;
        let there = table.views.iter().find(|(_, v)| is_it(v)).map(|(number, _)| *number);
        let number = match there {
            Some(number) => number,
            None => table.free_number().ok_or(Errno(libc::ENFILE))?,
        };
        let held = table.views.get(&number).is_some_and(|v| v.held);
        if !held {
            volume.hold_checkpoint(cno)?;
        }
        let view = table.views.entry(number).or_insert_with(|| View {
            cno,
            shelf,
            name: name.to_vec(),
            known: 0,
            held: true,
            entered,
        });
        view.known += 1;
        view.held = true;
        view.entered = entered;
        let others = table.views.values_mut().filter(|v| v.held);
        if let (count, Some(oldest)) = oldest(others) {
            if count > HELD_MAX {
                oldest.held = false;
                volume.let_checkpoint_go(oldest.cno);
            }
        }
        Ok(number)
    }

    /// The checkpoint of a view.
    pub fn cno(&self, view: u16) -> Option<Cno> {
        self.lock().views.get(&view).map(|v| v.cno)
    }

    /// One more reply tells the kernel of an inode of it.
    pub fn remember(&self, view: u16) {
        if let Some(v) = self.lock().views.get_mut(&view) {
            v.known = v.known.saturating_add(1);
        }
    }

    /// The kernel gives back references.
    pub fn forget(&self, volume: &dyn Volume, view: u16, lookups: u64) {
        let mut table = self.lock();
        let Some(v) = table.views.get_mut(&view) else { return };
        v.known = v.known.saturating_sub(lookups);
        if v.known == 0 {
            let (cno, held) = (v.cno, v.held);
            table.views.remove(&view);
            if held {
                volume.let_checkpoint_go(cno);
            }
        }
    }

    /// Gives everything back, when the kernel is gone.
    pub fn drain(&self, volume: &dyn Volume) {
        for (_, v) in self.lock().views.drain().filter(|(_, v)| v.held) {
            volume.let_checkpoint_go(v.cno);
        }
    }
}

/// How many there are, and the one entered the longest ago.
fn oldest<'a>(views: impl Iterator<Item = &'a mut View>) -> (usize, Option<&'a mut View>) {
    let mut count = 0;
    let counted = views.inspect(|_| count += 1);
    let oldest = counted.min_by_key(|v| v.entered);
    (count, oldest)
}

impl Table {
    /// Numbers go round, so that one is not given again soon.
    fn free_number(&mut self) -> Option<u16> {
        for _ in 0..VIEW_MAX {
            self.last = self.last % VIEW_MAX + 1;
            if !self.views.contains_key(&self.last) {
                return Some(self.last);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back() {
        assert_eq!(Node::of(1), Node::Own(Ino::ROOT));
        assert_eq!(Node::of(INO_MASK + 5), Node::Own(Ino(INO_MASK + 5)));
        for made in [Made::Home, Made::At, Made::Snapshots] {
            assert_eq!(Node::of(made.id()), Node::Made(made));
        }
        assert_eq!(Node::of(PAST), Node::Nothing);
        assert_eq!(Node::of(PAST | 4), Node::Nothing);
        for view in [1, VIEW_MAX] {
            for ino in [1, INO_MASK] {
                let id = id_of(view, Ino(ino)).unwrap();
                assert!(is_past(id));
                assert_eq!(Node::of(id), Node::Past(view, Ino(ino)));
            }
        }
        assert_eq!(id_of(1, Ino(INO_MASK + 1)), None);
    }

    #[test]
    fn both_must_grant() {
        let attr = |mode, uid, gid| Attr {
            mode,
            uid,
            gid,
            ..crate::proto::reply::directory_of_ours(Ino(1), nenrin_format::Time(0))
        };
        let both = |then, now| mode_of_both(&then, &now, true);
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_644, 1, 1)), 0o100_644);
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_600, 1, 1)), 0o100_600);
        assert_eq!(both(attr(0o100_600, 1, 1), attr(0o100_644, 1, 1)), 0o100_600, "not more than then");
        assert_eq!(both(attr(0o040_755, 1, 1), attr(0o040_700, 1, 1)), 0o040_700);
        assert_eq!(both(attr(0o100_664, 1, 1), attr(0o100_444, 1, 1)), 0o100_664, "writing is refused anyway");
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_644, 1, 2)), 0o100_644, "all groups may");
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_640, 1, 2)), 0o100_600, "the old group may not any more");
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_604, 1, 2)), 0o100_600, "the new group may not");
        assert_eq!(both(attr(0o100_600, 1, 1), attr(0o100_600, 2, 1)), 0o100_200, "given away");
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_044, 2, 1)), 0o100_640, "not even the new owner");
        let apart = |then, now| mode_of_both(&then, &now, false);
        assert_eq!(apart(attr(0o100_644, 1, 1), attr(0o100_644, 1, 1)), 0o100_600);
        assert_eq!(apart(attr(0o100_644, 1, 1), attr(0o100_644, 1, 2)), 0o100_600);
        assert_eq!(apart(attr(0o100_644, 1, 1), attr(0o100_644, 2, 1)), 0o100_200, "a list may shut the old owner out");
    }
}
