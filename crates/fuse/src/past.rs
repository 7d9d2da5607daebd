//! States of the past inside the live mount: how their inodes are numbered,
//! and which states somebody looks into (docs/decisions/0013-the-past-in-the-mount.md).
//!
//! Invariants
//! 1. A view lives while the kernel knows an inode of it, and its number is not
//!    given to another meanwhile.
//! 2. At most [`HELD_MAX`] checkpoints are held.
//!    A file handle of it that outlives the view, or the mount, leads to no other: each view has a generation of its own.
//! 3. Names are many and anybody's to make up: where they have taken their share of the numbers, a state gets one for all of them.

use crate::errno::Errno;
use crate::volume::Volume;
use nenrin_core::Attr;
use nenrin_format::{Cno, Ino};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A directory below whose names states of the past lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// What is told of a state by the attribute [`STATE`] of its root.
    fn told(&self, cno: Cno) -> Option<Vec<u8>>;
}

/// An attribute that the root of every state of the past has, and no list shows.
pub const STATE: &str = "system.nenrin.checkpoint";
/// Attributes of what is seen of the past, in no list either: the permissions that it had, in octal, and the access list, whatever they
/// are now. Told to whom they were or could be given back: root, who mounted the volume, and the owner of then and now.
pub const MODE_THEN: &str = "system.nenrin.mode";
/// See [`MODE_THEN`].
pub const ACL_THEN: &str = "system.nenrin.acl";

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
/// The inode number within a node id, which is the same in all states.
pub const INO_MASK: u64 = (1 << VIEW_SHIFT) - 1;
const VIEW_MAX: u16 = (1 << 15) - 1;
/// Views from which on names share those of their states: half of the numbers are left for states.
const OWN_VIEWS_MAX: usize = 1 << 14;

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

/// What the names of directories begin with in which a restore makes its copy.
pub const RESTORING: &str = ".restoring-";

/// The name of the directory in which a process that restores makes its copy. What is `random` of it nobody has by accident: a directory
/// of such a name is left out of what is listed and brought back.
#[must_use]
pub fn restoring(pid: u32, random: u128) -> String {
    format!("{RESTORING}{pid}-{random:032x}")
}

/// Whether a name is that of a directory in which a restore makes its copy.
#[must_use]
pub fn is_of_restore(name: &[u8]) -> bool {
    let is_hex = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    let mut parts = name.strip_prefix(RESTORING.as_bytes()).unwrap_or_default().split(|b| *b == b'-');
    let (Some(pid), Some(random), None) = (parts.next(), parts.next(), parts.next()) else { return false };
    !pid.is_empty() && pid.iter().all(u8::is_ascii_digit) && random.len() == 32 && random.iter().all(is_hex)
}

/// The node id of an inode of a view; `None` when the number is too large for one.
pub(crate) const fn id_of(view: u16, ino: Ino) -> Option<u64> {
    if ino.0 > INO_MASK { None } else { Some(PAST | (view as u64) << VIEW_SHIFT | ino.0) }
}

/// Whether an inode has a name, or somebody has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Alive,
    /// What is known of it is how it was last.
    Over,
}

/// The mode of a past inode that is there today, too: to each class of users what both grant. Its owner, then and now, may change what
/// is granted now as long as it lives, so that nothing is kept from him by that: who took too much away by mistake finds the past as it
/// was.
pub(crate) fn mode_of_both(then: &Attr, (now, life): (&Attr, Life), same_acl: bool) -> u32 {
    const WRITES: u32 = 0o222;
    let class = |shift: u32| (now.mode >> shift) & 0o7;
    let (mut owner, mut group, mut others) = (class(6), class(3), class(0));
    // Who was in another class then than now gets what is granted wherever they may be now.
    if then.uid == now.uid {
        owner |= if life == Life::Alive { 0o7 } else { 0 };
    } else {
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
    /// Which state, and by which name it was entered first.
    entrance: Entrance,
    generation: u32,
    /// References that the kernel has.
    known: u64,
    held: bool,
}

/// The name of a state on a shelf.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Entrance {
    cno: Cno,
    shelf: Shelf,
    name: Vec<u8>,
}

#[derive(Default)]
struct Table {
    views: HashMap<u16, View>,
    by_entrance: HashMap<Entrance, u16>,
    /// One of the views of a state, on each shelf, for names to share. A state whose one was forgotten has none here, also where it
    /// has other views, until the next is added.
    by_state: HashMap<(Cno, Shelf), u16>,
    /// Those that are held, in the order in which they were entered.
    held: VecDeque<u16>,
    last: u16,
    /// That of the next view: the first one of a mount is drawn, the others follow.
    generation: u32,
}

/// The states that the kernel knows something of.
pub(crate) struct Views(Mutex<Table>);

impl Views {
    /// None yet; `generation`: one that no other mount is likely to begin with.
    pub fn new(generation: u32) -> Self {
        Self(Mutex::new(Table { generation, ..Table::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The view of a checkpoint by this name, with one reference to be given back.
    pub fn enter(&self, volume: &dyn Volume, cno: Cno, shelf: Shelf, name: &[u8]) -> Result<u16, Errno> {
        let mut table = self.lock();
        let entrance = Entrance { cno, shelf, name: name.to_vec() };
        let there = table.there(&entrance, OWN_VIEWS_MAX);
        let is_held = there.and_then(|number| table.views.get(&number)).is_some_and(|v| v.held);
        if !is_held {
            volume.hold_checkpoint(cno)?;
        }
        let Some(number) = there.or_else(|| table.add(entrance)) else {
            volume.let_checkpoint_go(cno);
            return Err(Errno(libc::ENFILE));
        };
        if let Some(gone) = table.enter(number) {
            volume.let_checkpoint_go(gone);
        }
        Ok(number)
    }

    /// The checkpoint of a view.
    pub fn cno(&self, view: u16) -> Option<Cno> {
        self.lock().views.get(&view).map(|v| v.entrance.cno)
    }

    /// What tells a view from others that had its number.
    pub fn generation(&self, view: u16) -> u32 {
        self.lock().views.get(&view).map_or(0, |v| v.generation)
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
            if let Some(held) = table.remove(view) {
                volume.let_checkpoint_go(held);
            }
        }
    }

    /// Gives everything back, when the kernel is gone.
    pub fn drain(&self, volume: &dyn Volume) {
        let table = std::mem::take(&mut *self.lock());
        for v in table.views.into_values().filter(|v| v.held) {
            volume.let_checkpoint_go(v.entrance.cno);
        }
    }
}

impl Table {
    /// The view that a name has; or another one of its state, where names have as many as they may.
    fn there(&self, entrance: &Entrance, own_max: usize) -> Option<u16> {
        let shared = || {
            let state = self.by_state.get(&(entrance.cno, entrance.shelf));
            state.filter(|_| self.views.len() >= own_max)
        };
        self.by_entrance.get(entrance).or_else(shared).copied()
    }

    /// A new view, of which nobody knows yet; `None` when there is no number for it.
    fn add(&mut self, entrance: Entrance) -> Option<u16> {
        let number = self.free_number()?;
        self.by_state.entry((entrance.cno, entrance.shelf)).or_insert(number);
        self.by_entrance.insert(entrance.clone(), number);
        self.generation = self.generation.wrapping_add(1);
        self.views.insert(number, View { entrance, generation: self.generation, known: 0, held: false });
        Some(number)
    }

    /// One more reference to a view, whose checkpoint is held from now on. The one that was entered the longest ago is let go for
    /// that, where they are too many.
    fn enter(&mut self, number: u16) -> Option<Cno> {
        if let Some(view) = self.views.get_mut(&number) {
            view.known += 1;
            view.held = true;
        }
        self.held.retain(|held| *held != number);
        self.held.push_back(number);
        let oldest = if self.held.len() > HELD_MAX { self.held.pop_front() } else { None };
        let oldest = self.views.get_mut(&oldest?)?;
        oldest.held = false;
        Some(oldest.entrance.cno)
    }

    /// Nobody knows of a view any more. Its checkpoint, if that was held.
    fn remove(&mut self, number: u16) -> Option<Cno> {
        let View { entrance, held, .. } = self.views.remove(&number)?;
        self.held.retain(|held| *held != number);
        self.by_entrance.remove(&entrance);
        let state = (entrance.cno, entrance.shelf);
        if self.by_state.get(&state) == Some(&number) {
            self.by_state.remove(&state);
        }
        held.then_some(entrance.cno)
    }

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

    /// A number that goes round, or is given by the next mount, is told from what it was.
    #[test]
    fn each_view_has_a_generation_of_its_own() {
        let generations = |first| {
            let mut table = Table { generation: first, ..Table::default() };
            let mut enter = |name: u8| {
                let number = table.add(Entrance { cno: Cno(1), shelf: Shelf::At, name: vec![name] }).unwrap();
                table.last = 0;
                let generation = table.views[&number].generation;
                table.remove(number);
                (number, generation)
            };
            [enter(b'a'), enter(b'b')]
        };
        let all = [generations(u32::MAX), generations(7)].concat();
        assert!(all.iter().all(|(number, _)| *number == 1));
        let mut distinct: Vec<u32> = all.iter().map(|(_, generation)| *generation).collect();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
    }

    /// However many names somebody makes up, they do not take the numbers that other states need.
    #[test]
    fn names_share_views_where_they_are_many() {
        const OWN_MAX: usize = 100;
        let mut table = Table::default();
        let mut enter = |cno, shelf, name: usize| {
            let entrance = Entrance { cno: Cno(cno), shelf, name: name.to_string().into_bytes() };
            let number = table.there(&entrance, OWN_MAX).or_else(|| table.add(entrance)).unwrap();
            table.enter(number);
            (number, table.views.len())
        };
        let alone: Vec<u16> = (0..OWN_MAX).map(|name| enter(name as u64 % 3, Shelf::At, name).0).collect();
        for name in 0..40_000 {
            let (number, count) = enter(name as u64 % 3, Shelf::At, name);
            assert!(count == OWN_MAX && (name >= OWN_MAX || alone.get(name) == Some(&number)));
        }
        // Each directory stays on its shelf, and a state that nobody looked into yet gets a view.
        let (other, count) = enter(0, Shelf::Snapshots, 0);
        assert!(count == OWN_MAX + 1 && !alone.contains(&other));
        assert_eq!(enter(7, Shelf::At, 50_000).1, OWN_MAX + 2);
        assert_eq!(table.held.len(), HELD_MAX);
        let all: Vec<u16> = table.views.keys().copied().collect();
        let held = all.into_iter().filter_map(|number| table.remove(number)).count();
        assert_eq!(held, HELD_MAX);
        assert!(table.by_entrance.is_empty() && table.by_state.is_empty() && table.held.is_empty());
    }

    #[test]
    fn both_must_grant() {
        let attr = |mode, uid, gid| Attr {
            mode,
            uid,
            gid,
            ..crate::proto::reply::directory_of_ours(Ino(1), nenrin_format::Time(0))
        };
        let both = |then, now| mode_of_both(&then, (&now, Life::Alive), true);
        let over = |then, now| mode_of_both(&then, (&now, Life::Over), true);
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_644, 1, 1)), 0o100_644);
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_600, 1, 1)), 0o100_600);
        assert_eq!(both(attr(0o100_600, 1, 1), attr(0o100_644, 1, 1)), 0o100_600, "not more than then");
        assert_eq!(both(attr(0o040_755, 1, 1), attr(0o040_000, 1, 1)), 0o040_700, "the owner could grant it");
        assert_eq!(over(attr(0o040_755, 1, 1), attr(0o040_000, 1, 1)), 0o040_200, "nobody can any more");
        assert_eq!(over(attr(0o100_644, 1, 1), attr(0o100_600, 1, 1)), 0o100_600);
        assert_eq!(both(attr(0o040_755, 1, 1), attr(0o040_700, 1, 1)), 0o040_700);
        assert_eq!(both(attr(0o100_664, 1, 1), attr(0o100_444, 1, 1)), 0o100_664, "writing is refused anyway");
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_644, 1, 2)), 0o100_644, "all groups may");
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_640, 1, 2)), 0o100_600, "the old group may not any more");
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_604, 1, 2)), 0o100_600, "the new group may not");
        assert_eq!(both(attr(0o100_600, 1, 1), attr(0o100_600, 2, 1)), 0o100_200, "given away");
        assert_eq!(both(attr(0o100_644, 1, 1), attr(0o100_044, 2, 1)), 0o100_640, "not even the new owner");
        let apart = |then, now| mode_of_both(&then, (&now, Life::Alive), false);
        assert_eq!(apart(attr(0o100_644, 1, 1), attr(0o100_644, 1, 1)), 0o100_600);
        assert_eq!(apart(attr(0o100_644, 1, 1), attr(0o100_644, 1, 2)), 0o100_600);
        assert_eq!(apart(attr(0o100_644, 1, 1), attr(0o100_644, 2, 1)), 0o100_200, "a list may shut the old owner out");
    }
}
