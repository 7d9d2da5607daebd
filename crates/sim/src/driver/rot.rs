//! Power cuts after which a bit is wrong in what was durable before. What is damaged may be an error, or damage that is
//! reported; it is never shown, and everything else is there. What has a second copy is all there. Only what nothing proves yet
//! to have been acknowledged, the last commits, cannot be told from what was being written: the mount goes on before it.
//! In rows with parity a block may be lost: a mount makes the parity of a row anew that the row log has something of, and of a column
//! of which that has one block it cannot know whether the others are what the parity was made of.

use super::{Cut, Failure, Recorded, Tally, failure, guarded_at, open, record};
use crate::config::Config;
use crate::flip::{is_report, twice};
use crate::hash;
use crate::oracle::{self, Binds, Rules};
use crate::prng::Prng;
use crate::subject::Subject;
use crate::walk::{walk, walk_past_damage};
use crate::wrong::alone;
use nenrin_core::{At, Barrier};
use nenrin_device::{BLOCK_BYTES, BlockDevice, CrashChoice, CrashDisk, HistoryCursor, Image};
use nenrin_format::superblock::Profile as Layout;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Cuts of a workload, and bits at each.
const CUTS: usize = 12;
const BITS: usize = 12;
/// Bytes of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;

/// What a mount shows of a rotten bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noticed {
    /// Nothing: all is there.
    Same,
    /// The last commits, of which nothing proves that they were acknowledged, are not.
    Unproven,
    /// Reading something says that it is damaged, and all else is there.
    Error,
    /// Damage is reported, and an older state is shown.
    Damage,
}

/// Runs the workload of `config` and cuts it in some places, or in one; then some bits flip, one at a time.
///
/// # Errors
/// The first bit after which something is missing or wrong.
pub fn rot_cuts<S: Subject>(config: &Config, only: Option<Cut>, tally: &mut Tally) -> Result<(), Box<Failure>> {
    // Without flushes nothing says how far the log should reach.
    let config = &Config { barrier: Barrier::Sync, ..alone(config) };
    let recorded = record::<S>(config, false)?;
    tally.workloads += 1;
    recorded.some_cuts(only, (CUTS, 44), |cut, cursor| recorded.cut_rotten::<S>(cut, cursor, tally))
}

/// What is known of the blocks of an image.
struct Blocks {
    /// Durable before the cut, and something.
    durable: Vec<u64>,
    /// With a second copy.
    twice: BTreeSet<u64>,
    /// Those that a mount writes once more before anything else, since nothing proves that they were acknowledged.
    unproven: BTreeSet<u64>,
}

fn blocks_of(ranges: Vec<Range<u64>>) -> impl Iterator<Item = u64> {
    ranges.into_iter().flat_map(|r| r.start / BLOCK..r.end.div_ceil(BLOCK))
}

impl Recorded {
    fn cut_rotten<S: Subject>(
        &self,
        cut: Cut,
        cursor: &mut HistoryCursor<'_>,
        tally: &mut Tally,
    ) -> Result<(), Box<Failure>> {
        let image = cursor.image(&CrashChoice::from_seed(cut.choice));
        let (id, content) = (image.content_hash(), image.content());
        let rotten = |e: String| {
            let mut f = failure(&self.config, &[cut], e, String::new());
            f.replay += " --rot";
            f
        };
        let blocks = self.blocks::<S>(&content, cursor).map_err(rotten)?;
        let mut rng = Prng::stream(self.config.seed ^ hash::of_words(&[cut.at as u64, cut.choice]), 45);
        for _ in 0..BITS {
            // What was written last lies where the log goes on: that is hit more often than by its share.
            let near: Vec<u64> = blocks.durable.iter().copied().filter(|b| blocks.unproven.contains(b)).collect();
            let pool = if rng.chance(20) && !near.is_empty() { &near } else { &blocks.durable };
            let Some(block) = rng.pick(pool).copied() else { continue };
            let bit = rng.below(BLOCK * 8);
            tally.count_image(hash::of_words(&[id, block, bit]), "a bit of what was durable is wrong");
            let noticed = guarded_at(&self.config, &[cut], || {
                let judged = self.judge_rotten::<S>(cut, flipped(&content, block, bit), block, &blocks, tally);
                judged.map_err(|e| rotten(format!("bit {bit} of block {block}: {e}")))
            })?;
            *tally.faults.entry(format!("Cut, and a bit wrong: {noticed:?}")).or_default() += 1;
        }
        Ok(())
    }

    fn blocks<S: Subject>(&self, content: &Image, cursor: &HistoryCursor<'_>) -> Result<Blocks, String> {
        let under_way: BTreeSet<u64> = blocks_of(cursor.unflushed_ranges()).collect();
        let disk = Arc::new(CrashDisk::from_image(content.clone()));
        let mut durable = Vec::new();
        for block in (0..self.config.disk_bytes() / BLOCK).filter(|b| !under_way.contains(b)) {
            let bytes = disk.read(block * BLOCK, BLOCK_BYTES).map_err(|e| e.to_string())?;
            if bytes.iter().any(|b| *b != 0) {
                durable.push(block);
            }
        }
        let twice = twice(&self.config, &disk)?;
        drop(open::<S>(self.config.options(), &self.clock, self.config.members.of(&disk))?);
        let history = disk.history().ok_or("no history was kept")?;
        let first_flush = (0..history.cut_points()).find(|at| history.is_flush(*at)).unwrap_or(history.cut_points());
        let mut cursor = history.cursor();
        cursor.advance_to(first_flush);
        Ok(Blocks { durable, twice, unproven: blocks_of(cursor.unflushed_ranges()).collect() })
    }

    fn judge_rotten<S: Subject>(
        &self,
        cut: Cut,
        image: Image,
        block: u64,
        blocks: &Blocks,
        tally: &mut Tally,
    ) -> Result<Noticed, String> {
        let whole = blocks.twice.contains(&block) && self.config.members.profile != Layout::Parity;
        let unproven = blocks.unproven.contains(&block) && !self.config.members.bears_a_loss();
        let disk = Arc::new(CrashDisk::from_image(image).without_history());
        let fs = open::<S>(self.config.options(), &self.clock, self.config.members.of(&disk))?;
        tally.recoveries += 1;
        tally.verdicts_of_wrong(&fs);
        let model = self.era(cut.at)?;
        let (strictly, loosely) = (self.rules(cut.choice), Rules { order: self.config.order, binds: Binds::Nothing });
        let damage = fs.damage();
        if let Some(damage) = damage.as_ref().filter(|_| whole) {
            return Err(format!("there is a second copy, and yet: {damage}"));
        }
        let found = walk_past_damage(&fs, At::Live)?;
        if whole && !found.damaged.is_empty() {
            return Err(format!("there is a second copy, and yet this cannot be read: {:?}", found.damaged));
        }
        let judged = |rules| oracle::judge(model, rules, cut.at, &found).map(drop);
        let noticed = match judged(strictly) {
            _ if damage.is_some() => judged(loosely).map(|()| Noticed::Damage),
            Ok(()) if found.damaged.is_empty() => Ok(Noticed::Same),
            Ok(()) => Ok(Noticed::Error),
            Err(_) if unproven => judged(loosely).map(|()| Noticed::Unproven),
            Err(e) => Err(format!("nothing is said about damage, and {e}")),
        }?;
        let rules = if matches!(noticed, Noticed::Same | Noticed::Error) && !unproven { strictly } else { loosely };
        let past_is_damaged = self.judge_rotten_past(&fs, cut, rules, whole)?;
        Ok(if past_is_damaged && noticed == Noticed::Same { Noticed::Error } else { noticed })
    }

    /// Each checkpoint that is listed shows what it did, or says that bytes are damaged; whether one says so.
    fn judge_rotten_past<S: Subject>(&self, fs: &S, cut: Cut, rules: Rules, whole: bool) -> Result<bool, String> {
        let mut damaged = false;
        let shed = match fs.shed().map_err(|e| e.to_string()) {
            Err(e) if is_report(&e) && !whole => return Ok(true),
            shed => shed?,
        };
        for (info, log) in oracle::judge_checkpoints(self.era(cut.at)?, rules, cut.at, &fs.checkpoints())? {
            match walk(fs, At::Past(info.cno), None) {
                Ok(found) => oracle::judge_past(&info, log, &found, &shed)?,
                Err(e) if is_report(&e) && !whole => damaged = true,
                Err(e) => return Err(format!("checkpoint {}: {e}", info.cno)),
            }
        }
        Ok(damaged)
    }
}

/// The image with one bit of a block wrong.
fn flipped(content: &Image, block: u64, bit: u64) -> Image {
    let disk = CrashDisk::from_image(content.clone()).without_history();
    if let Ok(mut bytes) = disk.read(block * BLOCK, BLOCK_BYTES) {
        bytes[bit as usize / 8] ^= 1 << (bit % 8);
        // Of a device in memory no write fails.
        let _ = disk.write(block * BLOCK, Arc::new(bytes));
    }
    disk.current()
}
