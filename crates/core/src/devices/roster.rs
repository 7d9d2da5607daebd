//! Who takes part in requests, and which writes are under way.
//!
//! Invariants
//! 1. A write is registered, and learns who takes part, in one step. So of a write and the moment in which a
//!    device begins to join, or takes a place, one is first.
//! 2. A write that overlaps what is being copied is known for that: registered before, it is under way when the
//!    copying looks; registered later, it has touched the window.

use super::layout::Place;
use super::rows::Rows;
use super::unread::Unread;
use super::watched::Watch;
use super::{Devices, Layout, Member};
use crate::breaks::{Break, broken};
use nenrin_device::DeviceError;
use nenrin_format::Addr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

/// The members, where segments lie on them, and who is about to be one. Replaced as a whole when that changes.
#[derive(Clone)]
pub(super) struct Roster {
    pub layout: Arc<Layout>,
    /// In the order of the device table.
    pub members: Vec<Arc<Member>>,
    /// How many there should be.
    pub count: usize,
    /// A device that is brought up to date: a member that missed something, or one that takes the place of a member.
    pub joining: Option<Arc<Member>>,
    /// Rows with parity that are not at rest.
    pub rows: Arc<Rows>,
    /// What some device did not give.
    pub unread: Arc<Unread>,
}

impl Roster {
    pub fn new(layout: Layout, members: Vec<Arc<Member>>, count: usize, rows: Arc<Rows>) -> Self {
        let this = Self { layout: Arc::new(layout), members, count, joining: None, rows, unread: Arc::default() };
        this.watch();
        this
    }
    /// Requests are watched where there is more than one device.
    fn watch(&self) {
        if self.solo().is_none() {
            self.all().for_each(|m| m.watch.switch_on());
        }
    }
    pub fn member(&self, index: u16) -> Option<&Arc<Member>> {
        self.members.get(usize::from(index))
    }
    pub fn is_active(&self, index: u16) -> bool {
        self.member(index).is_some_and(|m| m.is_active())
    }
    pub fn active(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.iter().filter(|m| m.is_active())
    }
    /// Members, and who joins if that is none.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.iter().chain(self.joining.iter().filter(|j| !self.has(j)))
    }
    /// What goes with each of their devices, to the end of it.
    fn watches(&self) -> impl Iterator<Item = &Arc<Watch>> {
        self.all().filter(|m| m.device.is_some()).map(|m| &m.watch)
    }
    /// Whether this very device is a member.
    pub fn has(&self, member: &Arc<Member>) -> bool {
        self.member(member.index).is_some_and(|m| Arc::ptr_eq(m, member))
    }
    /// The others.
    pub fn without(&self, index: u16) -> Self {
        let members = self.members.iter().filter(|m| m.index != index).cloned().collect();
        Self { members, joining: None, ..self.clone() }
    }
    /// Who joins in this place.
    pub fn joins(&self, index: u16) -> Option<&Arc<Member>> {
        self.joining.as_ref().filter(|j| j.index == index)
    }
    /// Who gets what is written to this place: its member, if that is active, and whoever joins there and is not that member. By who
    /// takes part, as this roster knows it: a device that has its place since stands as a member, and is none here.
    pub fn receivers(&self, index: u16) -> (Option<&Arc<Member>>, Option<&Arc<Member>>) {
        let member = self.member(index).filter(|m| m.is_active());
        let another = |j: &&Arc<Member>| match broken(Break::SeatedDeaf) {
            true => !j.is_active(),
            false => member.is_none_or(|m| !Arc::ptr_eq(m, j)),
        };
        (member, self.joins(index).filter(|j| !broken(Break::JoinDeaf) && another(j)))
    }
    /// The only device of the volume, while nothing else takes part.
    pub fn solo(&self) -> Option<&Arc<Member>> {
        let mut there = self.members.iter().filter(|m| m.device.is_some());
        match (self.count, &self.joining, there.next(), there.next()) {
            (1, None, Some(m), None) => Some(m),
            _ => None,
        }
    }
    /// That device, and where these blocks lie on it.
    pub fn alone(&self, addr: Addr) -> Option<(&Arc<Member>, Place)> {
        Some((self.solo()?, self.layout.alone(addr)?))
    }
    /// Whether a write may be made durable without the others: nobody joins, no parity depends on them, and what was there when the
    /// volume was opened is covered.
    pub fn may_leave_others(&self) -> bool {
        (self.joining.is_none() || broken(Break::EnteringLeft))
            && !self.layout.has_parity()
            && self.all().filter(|m| m.is_flushed()).all(|m| m.was_flushed())
    }
    /// Whether these blocks lie in rows with parity.
    pub fn in_rows(&self, addr: Addr) -> bool {
        self.layout.has_parity() && self.layout.rows_of(addr.segment()) > 0
    }
    /// Whether each block has a copy on an active device, also without some of them.
    pub fn is_whole_without(&self, gone: &[u16]) -> bool {
        self.layout.is_whole(|i| !gone.contains(&i) && self.is_active(i))
    }
}

/// What is copied at the moment.
struct Window {
    first: Addr,
    blocks: u32,
    /// Something was written there meanwhile.
    touched: bool,
}

/// Writes under way.
pub(super) struct UnderWay {
    roster: Arc<Roster>,
    next: u64,
    writes: Vec<(u64, Addr, u32)>,
    window: Option<Window>,
    /// Requests since the volume was opened, but for those of copying.
    requests: u64,
    /// Of devices that take part no more; what was under way then may still have them. Theirs is dropped last, when they are closed:
    /// that a device itself has no owner any more would be seen before.
    left: Vec<Weak<Watch>>,
}

impl UnderWay {
    pub fn new(roster: Roster) -> Self {
        Self { roster: Arc::new(roster), next: 0, writes: Vec::new(), window: None, requests: 0, left: Vec::new() }
    }

    /// Whether a write to some of these blocks is under way.
    fn is_written(&self, first: Addr, blocks: u32) -> bool {
        self.writes.iter().any(|(_, addr, n)| overlap(first, blocks, *addr, *n))
    }

    fn register(&mut self, addr: Addr, blocks: u32) -> u64 {
        let number = self.next;
        self.next += 1;
        self.requests += 1;
        self.writes.push((number, addr, blocks));
        if let Some(w) = self.window.as_mut().filter(|w| overlap(w.first, w.blocks, addr, blocks)) {
            w.touched = true;
        }
        number
    }
}

fn overlap(a: Addr, a_blocks: u32, b: Addr, b_blocks: u32) -> bool {
    a.segment() == b.segment() && a.block() < b.block() + b_blocks && b.block() < a.block() + a_blocks
}

/// A registered write. One whose end nobody waits for stays under way: nothing is known of it.
#[must_use]
pub(super) struct Entry {
    devices: Arc<Devices>,
    number: u64,
    pub roster: Arc<Roster>,
}

impl Entry {
    /// [`Entry::end`] of a write to the only device, which may not stay that.
    pub fn end_alone(self, outcome: &Result<(), DeviceError>) {
        if let (Some(member), Ok(())) = (self.roster.solo(), outcome) {
            member.completed.fetch_add(1, SeqCst);
        }
        self.end();
    }

    /// The write has completed, everywhere.
    pub fn end(self) {
        self.devices.leave_of(self.number);
    }
}

impl Devices {
    pub(super) fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who takes part at the moment.
    pub(super) fn roster(&self) -> Arc<Roster> {
        self.under_way().roster.clone()
    }

    /// Where segments lie.
    pub fn layout(&self) -> Arc<Layout> {
        self.under_way().roster.layout.clone()
    }

    /// Segments of the volume.
    pub fn segments(&self) -> u64 {
        self.under_way().roster.layout.segments()
    }

    /// Who takes part, for a read.
    pub(super) fn readers(&self) -> Arc<Roster> {
        let mut under_way = self.under_way();
        under_way.requests += 1;
        under_way.roster.clone()
    }

    /// Registers a write that is about to be submitted.
    pub(super) fn enter(self: &Arc<Self>, addr: Addr, blocks: u32) -> Entry {
        let mut under_way = self.under_way();
        let number = under_way.register(addr, blocks);
        Entry { devices: Arc::clone(self), number, roster: under_way.roster.clone() }
    }

    /// The same, for who ends it with [`Devices::leave_of`].
    pub(super) fn enter_of(&self, addr: Addr, blocks: u32) -> u64 {
        self.under_way().register(addr, blocks)
    }

    /// The same, unless a write to some of these blocks is under way.
    pub(super) fn enter_alone(&self, addr: Addr, blocks: u32) -> Option<u64> {
        let mut under_way = self.under_way();
        let beside = under_way.is_written(addr, blocks) && !broken(Break::ParityBesideWrites);
        (!beside).then(|| under_way.register(addr, blocks))
    }

    /// Ends a [`Devices::enter_of`].
    pub(super) fn leave_of(&self, number: u64) {
        let mut under_way = self.under_way();
        if let Some(i) = under_way.writes.iter().position(|w| w.0 == number) {
            under_way.writes.swap_remove(i);
        }
    }

    /// Changes who takes part in requests from now on.
    pub(super) fn change_roster(&self, change: impl FnOnce(&mut Roster)) {
        let mut under_way = self.under_way();
        let mut roster = Roster::clone(&under_way.roster);
        change(&mut roster);
        roster.watch();
        let stays = |watch: &Arc<Watch>| roster.watches().any(|w| Arc::ptr_eq(w, watch));
        let left: Vec<_> = under_way.roster.watches().filter(|w| !stays(w)).map(Arc::downgrade).collect();
        under_way.left.extend(left);
        under_way.roster = Arc::new(roster);
    }

    /// How many devices that take part no more are still in somebody's hands, be it for a request that was under way.
    pub fn left_in_use(&self) -> usize {
        let mut under_way = self.under_way();
        under_way.left.retain(|watch| watch.strong_count() > 0);
        under_way.left.len()
    }

    /// Begins to copy these blocks, unless a write to some of them is under way.
    pub(super) fn open_window(&self, first: Addr, blocks: u32) -> bool {
        let mut under_way = self.under_way();
        if under_way.is_written(first, blocks) {
            return false;
        }
        under_way.window = Some(Window { first, blocks, touched: false });
        true
    }

    /// They are copied: whether nothing was written to them meanwhile.
    pub(super) fn close_window(&self) -> bool {
        self.under_way().window.take().is_some_and(|w| !w.touched)
    }

    /// Whether a write is under way.
    pub(super) fn is_writing(&self) -> bool {
        !self.under_way().writes.is_empty()
    }

    /// Requests since the volume was opened, but for those of copying.
    pub fn requests(&self) -> u64 {
        self.under_way().requests
    }
}
