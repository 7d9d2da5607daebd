//! Repair of a volume that nobody has mounted: a whole plan in memory first,
//! then an index checkpoint into free segments, the root slot last.
//!
//! The decision record docs/decisions/0006-repair.md has the cases. The plan is
//! the repaired state itself, not a list of edits; before anything is written
//! it has to pass the same check that an unrepaired volume fails.
//!
//! Invariants
//! 1. Nothing is written before the plan is complete and checked.
//! 2. Nothing is written to a segment that a usable root, or the log behind it,
//!    may need: until the new root slot is there, the volume is what it was.
//! 3. Whatever is not as it was is listed as a loss.

mod base;
mod behind_gap;
mod forgotten;
mod inodes;
mod items;
#[cfg(test)]
mod items_tests;
mod losses;
#[cfg(test)]
mod lost_ranges_tests;
mod mender;
mod names;
#[cfg(test)]
mod nodes_tests;
mod owners;
mod past;
mod past_gaps;
mod pieces;
mod regain;
mod salvage;
#[cfg(test)]
mod salvage_tests;
#[cfg(test)]
mod shared_tests;
mod slots;
mod space;
#[cfg(test)]
mod tests;
mod unknown;

pub use losses::{LOSSES_MAX, Loss, LossKind, MendKind};

use crate::breaks::{Break, broken};
use crate::check::{self, CheckOptions, CheckReport, Finding, Progress, Severity, What};
use crate::devices::assemble;
use crate::fs::Opened;
use crate::recovery::{Unproven, pin_roots, start_epoch, with_newest_generation};
use crate::state::KnownPast;
use crate::storage::Probe;
use crate::{Clock, Error, Fs, MountOptions, RecoveryReport, Result, heartbeat};
use base::Base;
use losses::Losses;
use mender::Mender;
use nenrin_device::BlockDevice;
use nenrin_format::Time;
use nenrin_format::superblock::{SLOTS_PER_AREA, Superblock};
use slots::Slots;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a repair found, and does or would do.
#[derive(Clone, Debug, Default)]
pub struct RepairReport {
    /// Something is to be written.
    pub needed: bool,
    /// What is lost, the first [`LOSSES_MAX`] of it, by kind.
    pub losses: Vec<Loss>,
    /// All losses, those not kept too.
    pub losses_total: u64,
    /// What is mended without any loss: how many.
    pub mends: Vec<(MendKind, u64)>,
    /// Index nodes to be written, each counted once although there are two copies.
    pub nodes: u64,
    /// Segments that may be needed for that, at most.
    pub segments_needed: u64,
    /// Segments that are free.
    pub segments_free: u64,
    /// Devices that the volume does without, one line each: they are brought up to date when they are back.
    pub absent: Vec<String>,
    /// Copies on single devices that were written anew in the end, from those of others.
    pub copies_mended: u64,
}

impl RepairReport {
    /// Whether a check ends with an error before and after the repair, too: something cannot be read, or is behind the end of
    /// a file.
    #[must_use]
    pub fn leaves_damage(&self) -> bool {
        let is_left = |kind| matches!(kind, LossKind::RangeUnreadable | LossKind::RangeLost | LossKind::TailLeft);
        self.losses.iter().any(|l| is_left(l.kind))
    }
}

/// A repair, complete but not carried out.
pub struct RepairPlan {
    report: RepairReport,
    ready: Ready,
    planned: Planned,
}

/// What the plan was made for.
struct Planned {
    devices: Vec<Arc<dyn BlockDevice>>,
    roots: Vec<Superblock>,
}

impl Planned {
    /// Reading all content and asking may have taken hours, and another host may have mounted the volume meanwhile.
    fn is_still_so(&self, clock: &dyn Clock) -> Result<()> {
        if broken(Break::PlanOutdated) {
            return Ok(());
        }
        heartbeat::refuse_if_in_use(&assemble(&self.devices, true)?, clock)?;
        // Who ended while that was waited for has left a newer root.
        if assemble(&self.devices, true)?.found.roots == self.roots {
            return Ok(());
        }
        Err(Error::Open(
            "the volume was written to since the repair was planned; nothing was changed, plan it again".into(),
        ))
    }
}

/// What is to be written.
enum Ready {
    Nothing,
    /// The slots alone.
    Slots(Box<Slots>),
    /// A whole state, and what of the log counts although nothing proves that every device has its copy.
    State(Box<Opened>, Vec<Unproven>),
}

/// Bytes that are scrubbed at once.
const SCRUB_BYTES: u64 = 64 << 20;

impl std::fmt::Debug for RepairPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RepairPlan").field("report", &self.report).finish_non_exhaustive()
    }
}

impl RepairPlan {
    /// Plans the repair of a volume that nobody has mounted. All content is
    /// read; nothing is written. `progress` is called now and then.
    ///
    /// # Errors
    /// [`Error::Open`] when it is no nenrin volume, or damaged in a way that
    /// cannot be repaired: says what, and that nothing was changed. Device errors.
    pub fn new(
        devices: &[Arc<dyn BlockDevice>],
        clock: &dyn Clock,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        // Before anything else is read: what another host writes from here on is noticed.
        let planned = Planned { devices: devices.to_vec(), roots: assemble(devices, true)?.found.roots };
        let before = check::check(devices, &CheckOptions { data: false }, progress)?;
        let mut copies = 0;
        if before.recovery.is_some() && first_of_structure(&before).is_none() {
            let whole = check::check(devices, &CheckOptions { data: true }, progress)?;
            copies = whole.count(What::ContentCopyDamaged) + whole.count(What::ParityWrong);
            if copies == 0 {
                copies = wrong_copies(devices)?;
            }
            if copies == 0 {
                let mut report = RepairReport::default();
                report.add_content(&whole);
                return Ok(Self { report, ready: Ready::Nothing, planned });
            }
        }
        // Without a device that the others can stand in for: what it misses it gets when it is back.
        let assembly = assemble(devices, true)?;
        heartbeat::refuse_if_in_use(&assembly, clock)?;
        if let Some((slots, report)) = slots::alone(&assembly, &before, devices, progress)? {
            return Ok(Self { report, ready: Ready::Slots(Box::new(slots)), planned });
        }
        let slots = before.kinds.iter().filter(|(what, _)| matches!(what.number(), 101..=107));
        let slots = slots.map(|(_, k)| k.count).sum();
        let mut begin = base::Begin::NewestTree;
        let (mut report, ready) = loop {
            let mut losses = Losses::default();
            losses.mended(MendKind::CopiesRewritten, copies);
            losses.mended(MendKind::SlotsRewritten, slots);
            let Some(base) = base::find(&assembly, begin, &mut losses)? else {
                return Err(Error::Open(
                    "no root can be read, and neither nodes of the index nor parts of the log were found; nothing was changed".into(),
                ));
            };
            let has_root = base.has_root;
            match plan(base, &assembly.found, losses, clock, progress) {
                // What is right leads from that root perhaps.
                Err(Error::Open(_)) if has_root => begin = base::Begin::Root,
                other => break other?,
            }
        };
        report.absent = assembly.notes;
        Ok(Self { report, ready, planned })
    }

    /// What was found, and what is to be done.
    #[must_use]
    pub fn report(&self) -> &RepairReport {
        &self.report
    }

    /// Writes the repaired state: into free segments, then its root slots. A
    /// cut leaves the volume as it was or repaired. Where there are copies on several devices, all are verified then, and
    /// those that are wrong written anew.
    ///
    /// # Errors
    /// [`Error::Open`] when another host has the volume, or it was written to since it was planned: nothing was changed then.
    /// When a write or flush failed. The volume is as it was, or repaired.
    pub fn carry_out(mut self, clock: Arc<dyn Clock>) -> Result<RepairReport> {
        if !matches!(self.ready, Ready::Nothing) {
            self.planned.is_still_so(clock.as_ref())?;
        }
        let (opened, to_equalize) = match self.ready {
            Ready::Nothing => return Ok(self.report),
            Ready::Slots(slots) => return slots.write(clock.as_ref()).map(|()| self.report),
            Ready::State(opened, to_equalize) => (*opened, to_equalize),
        };
        let others = opened.storage.others_stand_in();
        let fs = Fs::assemble(opened, clock, MountOptions::default());
        // What the plan took from one device must not depend on that.
        fs.before_repairing(&to_equalize)?;
        // The first root is the repair; the others take the places of the roots of before.
        for _ in 0..SLOTS_PER_AREA {
            fs.index_checkpoint_as_is(true)?;
        }
        if others {
            let mut scrub = fs.scrub();
            while !scrub.is_done() {
                fs.scrub_step(&mut scrub, SCRUB_BYTES)?;
            }
            self.report.copies_mended = scrub.report().copies_mended + fs.counters().mended_blocks;
            fs.index_checkpoint_as_is(true)?;
        }
        Ok(self.report)
    }
}

/// A clock that stands, for who only reads.
struct Still;

impl Clock for Still {
    fn wall(&self) -> Time {
        Time(0)
    }
    fn monotonic_nanos(&self) -> u64 {
        0
    }
}

/// Copies on single devices that are wrong, where a check that reads one of each has found none. After a crash the next
/// mount sees to what devices may lack.
fn wrong_copies(devices: &[Arc<dyn BlockDevice>]) -> Result<u64> {
    let options = MountOptions { read_only: true, degraded: true, ..MountOptions::default() };
    let fs = Fs::open(devices.to_vec(), Arc::new(Still), options)?;
    if !fs.others_stand_in() || !fs.recovery_report().clean {
        return Ok(0);
    }
    let mut scrub = fs.scrub();
    while !scrub.is_done() {
        fs.scrub_step(&mut scrub, SCRUB_BYTES)?;
    }
    Ok(scrub.report().copies_damaged)
}

/// The first finding that is about more than bytes of content, whether it is listed or not.
fn first_of_structure(report: &CheckReport) -> Option<&Finding> {
    if broken(Break::ListedIsAll) {
        return report.findings.iter().find(|f| is_of_structure(f.what));
    }
    report.kinds.iter().find(|(what, _)| is_of_structure(**what)).map(|(_, kind)| &kind.first)
}

/// Whether a finding is about more than bytes of content. A device that is absent is missed, and nothing that a repair
/// could bring back.
fn is_of_structure(what: What) -> bool {
    what.severity() == Severity::Error && !is_of_content(what) && what != What::DeviceAbsent
}

fn is_of_content(what: What) -> bool {
    what.number() >= 700
}

fn plan(
    base: Base,
    found: &Probe,
    losses: Losses,
    clock: &dyn Clock,
    progress: &mut dyn FnMut(Progress),
) -> Result<(RepairReport, Ready)> {
    let Base {
        storage,
        superblock,
        state,
        mut chain,
        lost,
        space_lost,
        sheds_lost,
        past_lost,
        held,
        segment_items,
        gap_from,
        unproven,
        holes,
        to_equalize,
        has_root: _,
    } = base;
    if let Some(l) = lost.iter().find(|l| l.level > 0) {
        return Err(Error::Open(format!(
            "a node at level {} of the index is lost, which this version cannot repair; nothing was changed",
            l.level
        )));
    }
    // What a scrub found is mended, or given up.
    let superblock = Superblock { scrubbed: None, ..with_newest_generation(&superblock, found) };
    let mut mender = Mender {
        state,
        storage: storage.clone(),
        losses,
        now: clock.wall(),
        lost,
        gone: BTreeSet::new(),
        holes,
        gap_from,
        unproven,
        missing: BTreeSet::new(),
        marked: 0,
        space_lost,
        sheds_lost,
        past_lost,
        held,
        segment_items,
    };
    mender.tell_ranges();
    mender.items()?;
    mender.names()?;
    mender.inodes()?;
    mender.past()?;
    mender.past_gaps()?;
    mender.space_items()?;
    mender.owners()?;
    mender.sharing()?;
    mender.nodes_apart()?;
    mender.recount(superblock.generation.next())?;
    let Mender { mut state, losses, .. } = mender;
    // The next mount counts what snapshots keep now.
    state.past = KnownPast::default();
    let root_pins = pin_roots(&mut state.segments, found, &superblock);
    let free = state.segments.free_count();
    let (nodes, needed) = space::room(&mut state, storage.segment_blocks)?;
    let mut report =
        RepairReport { needed: true, nodes, segments_needed: needed, segments_free: free, ..RepairReport::default() };
    if free < needed {
        return Err(space::no_room(needed, free));
    }
    start_epoch(&mut state, &mut chain, &storage, found, true)?;
    let opened = Opened {
        storage,
        state,
        chain,
        superblock,
        report: RecoveryReport::default(),
        window_bytes: 0,
        root_pins,
        index: Default::default(),
        unproven: Vec::new(),
    };
    let (opened, after) = check::check_planned(opened, progress)?;
    if let Some(f) = first_of_structure(&after) {
        return Err(Error::Open(format!("this damage cannot be repaired yet ({f}); nothing was changed")));
    }
    report.losses = losses.tell(&opened.state);
    report.losses_total = losses.total;
    report.mends = losses.mends.iter().map(|(k, n)| (*k, *n)).collect();
    report.add_content(&after);
    Ok((report, Ready::State(Box::new(opened), to_equalize)))
}

/// What is lost where a check finds this.
const fn loss_of(what: What) -> Option<LossKind> {
    match what {
        What::ContentDamaged | What::ContentUnreadable => Some(LossKind::RangeUnreadable),
        What::ContentLost => Some(LossKind::RangeLost),
        What::TailNotZero => Some(LossKind::TailLeft),
        _ => None,
    }
}

impl RepairReport {
    /// Adds what a check says of content: ranges that cannot be read.
    fn add_content(&mut self, check: &CheckReport) {
        let told: BTreeSet<_> = self.losses.iter().filter(|l| l.kind == LossKind::RangeLost).map(|l| l.ino).collect();
        let mut ranges: BTreeMap<_, (u64, &Finding)> = BTreeMap::new();
        let all = check.kinds.iter().filter(|(what, _)| loss_of(**what).is_some());
        let mut unlisted: u64 = all.map(|(_, k)| k.count).sum();
        for (f, kind) in check.findings.iter().filter_map(|f| Some((f, loss_of(f.what)?))) {
            unlisted -= 1;
            if kind != LossKind::RangeLost || !told.contains(&f.ino) {
                ranges.entry((kind, f.ino)).or_insert((0, f)).0 += 1;
            }
        }
        for ((kind, ino), (pieces, f)) in ranges {
            let text = match pieces {
                1 => f.text.clone(),
                n => format!("{}, and {} more pieces", f.text, n - 1),
            };
            self.losses.push(Loss { kind, path: f.path.clone(), ino, range: None, text });
            self.losses_total += 1;
        }
        if unlisted > 0 {
            let text = format!("{unlisted} more pieces of content, of files that may not be listed");
            let kind = LossKind::RangeUnreadable;
            self.losses.push(Loss { kind, path: None, ino: None, range: None, text });
            self.losses_total += 1;
        }
        self.losses.sort_by_key(|l| l.kind);
    }
}
