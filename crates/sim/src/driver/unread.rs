//! Power cuts after which the device does not give some of the blocks that were being written: what a disk that loses its power
//! in the middle of a sector leaves. Nothing that was acknowledged lies there, so nothing of it may be missing: it is mounted as if
//! these blocks held anything else; or, where one cannot tell that nobody was told of them, what is shown is older and damage is
//! reported, and the repair brings all of it back. Where others have what is on a device, nobody has to know.

use super::{Cut, Failure, Recorded, Tally, choices, failure, guarded_at, open, record};
use crate::config::Config;
use crate::hash;
use crate::members::Drive;
use crate::oracle::{self, Binds, Rules};
use crate::prng::Prng;
use crate::subject::{Excused, Subject};
use crate::walk::walk;
use crate::wrong::alone;
use nenrin_core::{At, Barrier, RepairPlan};
use nenrin_device::{BLOCK_BYTES, BlockDevice, CrashChoice, CrashDisk, Fault, Faulty, HistoryCursor, Image};
use std::sync::Arc;

/// Cuts of a workload.
const CUTS: usize = 24;
/// Bytes of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;

/// What came of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// All that was acknowledged is there, and nothing is wrong.
    Mounted,
    /// An older state, and damage is reported; all is there after the repair.
    Repaired,
    /// The same, and there was no room for the repair.
    NoRoom,
}

/// Runs the workload of `config` and cuts it in some places, or in one, so that blocks which were being written cannot be read.
///
/// # Errors
/// The first cut after which something is missing.
pub fn unread_cuts<S: Subject>(config: &Config, only: Option<Cut>, tally: &mut Tally) -> Result<(), Box<Failure>> {
    let config = &Config { barrier: Barrier::Sync, ..alone(config) };
    let recorded = record::<S>(config, false)?;
    tally.workloads += 1;
    recorded.some_cuts(only, (CUTS, 9), |cut, cursor| {
        if let Some(came) = recorded.cut_unread::<S>(cut, cursor, tally)? {
            *tally.faults.entry(format!("Cut, and not read: {came:?}")).or_default() += 1;
        }
        Ok(())
    })
}

impl Recorded {
    /// About so many cuts from the first to the last, drawn with this salt; or the one that is asked for.
    pub(super) fn some_cuts(
        &self,
        only: Option<Cut>,
        (count, salt): (usize, u64),
        mut each: impl FnMut(Cut, &mut HistoryCursor<'_>) -> Result<(), Box<Failure>>,
    ) -> Result<(), Box<Failure>> {
        let (first, last, config) = (self.first_cut(), self.last_cut(), &self.config);
        let mut cursor = self.history.cursor();
        if let Some(cut) = only {
            cursor.advance_to(cut.at);
            return each(cut, &mut cursor);
        }
        let stride = ((last - first) / count).max(1);
        let jitter = |at: usize| hash::of_words(&[config.seed, at as u64, salt]) as usize % stride;
        for at in (first..=last).step_by(stride).map(|at| (at + jitter(at)).min(last)) {
            cursor.advance_to(at);
            let drawn = choices(config, at as u64, 6, cursor.unflushed());
            if let Some(choice) = drawn.get(at % drawn.len().max(1)) {
                each(Cut { at, choice: *choice }, &mut cursor)?;
            }
        }
        Ok(())
    }

    /// One of them; `None` where nothing is under way.
    fn cut_unread<S: Subject>(
        &self,
        cut: Cut,
        cursor: &mut HistoryCursor<'_>,
        tally: &mut Tally,
    ) -> Result<Option<Came>, Box<Failure>> {
        let image = cursor.image(&CrashChoice::from_seed(cut.choice));
        let bad = self.drawn_blocks(cut, cursor);
        if bad.is_empty() {
            return Ok(None);
        }
        tally.count_image(
            hash::of_words(&[image.content_hash(), hash::of_words(&bad)]),
            "what was written cannot be read",
        );
        let judged = guarded_at(&self.config, &[cut], || {
            let fail = |e: String| {
                let detail = format!(
                    "{}blocks that cannot be read: {bad:?}\n",
                    cursor.describe(&CrashChoice::from_seed(cut.choice))
                );
                failure(&self.config, &[cut], e, detail)
            };
            self.judge_unread::<S>(cut, image.content(), &bad, tally).map_err(fail)
        });
        judged.map(Some).map_err(|mut f| {
            f.replay += " --unread";
            f
        })
    }

    /// Up to three blocks of what is not flushed, more often of what was written last.
    fn drawn_blocks(&self, cut: Cut, cursor: &HistoryCursor<'_>) -> Vec<u64> {
        let mut rng = Prng::stream(self.config.seed ^ hash::of_words(&[cut.at as u64, cut.choice]), 21);
        let under_way = cursor.unflushed_ranges();
        if under_way.is_empty() {
            return Vec::new();
        }
        let mut blocks: Vec<u64> = (0..=rng.below(3))
            .filter_map(|_| {
                let back = if rng.below(2) == 0 { 0 } else { rng.index(under_way.len()) };
                let range = under_way.get(under_way.len() - 1 - back)?;
                Some(range.start / BLOCK + rng.below(((range.end - range.start) / BLOCK).max(1)))
            })
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        // What is on its way to all devices at once may be on none: those of one are hit.
        let of_one = self.config.disk_bytes() / self.config.members.parts() / BLOCK;
        let device = blocks.first().map(|block| block / of_one);
        blocks.retain(|block| Some(block / of_one) == device);
        blocks
    }

    /// The devices, which do not give these blocks until they are written.
    fn with_bad(&self, disk: &Arc<CrashDisk>, bad: &[u64]) -> Drive {
        let mut drive = self.config.members.of(disk);
        let mut from = 0;
        for member in &mut drive.members {
            let blocks = member.geometry().bytes / BLOCK;
            let faulty = Faulty::new(member.clone());
            for block in bad.iter().filter(|b| (from..from + blocks).contains(b)) {
                faulty.faults().inject(Fault::BadUntilWritten { at: (block - from) * BLOCK });
            }
            from += blocks;
            *member = Arc::new(faulty);
        }
        drive
    }

    fn judge_unread<S: Subject>(&self, cut: Cut, image: Image, bad: &[u64], tally: &mut Tally) -> Result<Came, String> {
        let disk = Arc::new(CrashDisk::from_image(image).without_history());
        let drive = self.with_bad(&disk, bad);
        let model = self.era(cut.at)?;
        let fs = open::<S>(self.config.options(), &self.clock, drive.clone())?;
        tally.recoveries += 1;
        tally.verdicts_of_wrong(&fs);
        let Some(damage) = fs.damage() else {
            return self.look_into(&fs, cut, model, tally).map(|_| Came::Mounted);
        };
        if self.config.members.bears_a_loss() {
            return Err(format!("others have what cannot be read, and yet: {damage}"));
        }
        let loosely = Rules { order: self.config.order, binds: Binds::Nothing };
        let found = walk(&fs, At::Live, None).map_err(|e| format!("where {damage}: {e}"))?;
        oracle::judge(model, loosely, cut.at, &found).map_err(|e| format!("where {damage}: {e}"))?;
        drop(fs);
        let clock = Arc::new(self.clock.fork());
        let plan = match RepairPlan::new(&drive.members, clock.as_ref(), &mut |_| {}) {
            Err(e) if e.to_string().contains("free segments and there are") => return Ok(Came::NoRoom),
            plan => plan.map_err(|e| format!("where {damage}: no plan: {e}"))?,
        };
        let told: Vec<String> = plan.report().losses.iter().map(ToString::to_string).collect();
        let repaired = |e: String| format!("where {damage}, repaired: {e}; told were {told:?}");
        plan.carry_out(clock).map_err(|e| repaired(e.to_string()))?;
        let findings = S::check(drive.clone(), Excused::default()).map_err(|e| repaired(format!("check: {e}")))?;
        if !findings.is_empty() {
            return Err(repaired(findings.join("; ")));
        }
        let fs = open::<S>(self.config.options(), &self.clock, drive).map_err(repaired)?;
        self.look_into(&fs, cut, model, tally).map_err(repaired)?;
        Ok(Came::Repaired)
    }
}
