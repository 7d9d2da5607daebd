//! Rot: one bit of one block flips, in every block in turn, and the volume is
//! mounted and read (promise P4). What is found is the state without the flip,
//! or an error, or an older state together with the report of damage; never
//! other bytes, and never an older state without a word. What has a second copy
//! (root slots, root partials, index nodes; everything, where a device may be
//! lost) is mended: there a flip changes nothing. The past is read, too.

use crate::config::Config;
use crate::driver::{Failure, Tally};
use crate::hash;
use crate::lie::judge_listed;
use crate::members::Members;
use crate::ops::Op;
use crate::oracle::{self, Binds, Rules};
use crate::prng::Prng;
use crate::run::Run;
use crate::subject::Subject;
use crate::walk::{Found, walk};
use crate::wrong::alone;
use nenrin_core::{At, Barrier, CheckpointInfo, MountOptions};
use nenrin_device::{AlignedBuf, BLOCK_BYTES, BlockDevice, CrashDisk, DeviceError, Image};
use nenrin_format::partial::{Header, PartialKind};
use nenrin_format::superblock::AREA_BLOCKS;
use nenrin_format::{Addr, NODE_BYTES, SegmentNo, node};

use std::collections::BTreeSet;
use std::sync::Arc;

/// Blocks of a node.
const NODE_BLOCKS: u64 = (NODE_BYTES / BLOCK_BYTES) as u64;

/// What a flip came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// The state is the one without the flip: nothing needed the block, or a second copy did.
    Same,
    /// Reading or mounting reported an error.
    Error,
    /// Recovery reported damage, and shows an older state.
    Damage,
}

/// Runs the workload of `config`, on devices with which nothing else happens, lets the durable mark be written, and flips a
/// bit in every block that is not all zeros.
///
/// # Errors
/// The first flip that went unnoticed.
pub fn flip_all<S: Subject>(config: &Config, tally: &mut Tally) -> Result<(), Box<Failure>> {
    let config = &alone(config);
    let replay = |block: Option<u64>| {
        let which = block.map_or_else(|| "all".to_owned(), |b| b.to_string());
        format!("cargo run --release -p nenrin-sim -- replay {} --flip {which}", config.arguments())
    };
    let fail = |block, what: String| Box::new(Failure { replay: replay(block), what, detail: String::new() });
    let mut rotten = Rotten::<S>::new(config).map_err(|e| fail(None, e))?;
    tally.workloads += 1;
    for block in 0..config.device_bytes / BLOCK_BYTES as u64 {
        if let Some(noticed) = rotten.flip(block, tally).map_err(|e| fail(Some(block), e))? {
            let id = hash::of_words(&[rotten.image_hash, block, rotten.at(block)]);
            tally.count_image(id, "one bit flipped");
            *tally.faults.entry(format!("Bit flipped: {noticed:?}")).or_default() += 1;
        }
    }
    Ok(())
}

/// One block of [`flip_all`], as a failure's line names it.
///
/// # Errors
/// When the flip went unnoticed.
pub fn flip_one<S: Subject>(config: &Config, block: u64) -> Result<Option<Noticed>, String> {
    Rotten::<S>::new(&alone(config))?.flip(block, &mut Tally::default())
}

struct Rotten<S> {
    run: Run<S>,
    image: Image,
    image_hash: u64,
    whole: Found,
    /// What each checkpoint shows.
    past: Vec<(CheckpointInfo, Found)>,
    options: MountOptions,
    members: Members,
    seed: u64,
    order: nenrin_core::Order,
    /// Blocks that have a second copy elsewhere.
    twice: BTreeSet<u64>,
    /// What was acknowledged up to this device operation has been proven durable since.
    settled: usize,
}

impl<S: Subject> Rotten<S> {
    fn new(config: &Config) -> Result<Self, String> {
        let disk = Arc::new(CrashDisk::new(config.disk_bytes()));
        let drive = config.members.of(&disk);
        let mut run = Run::<S>::format_on(disk, drive.clone(), drive, config.segment_blocks, config.options())?;
        if let Some(e) = run.steps(&mut config.workload(), config.steps)? {
            return Err(format!("the volume failed without a fault: {e}"));
        }
        // From the durable mark on, every flip before it is damage. Without
        // flushes there is no mark, only the index checkpoint of an idle volume.
        // The daemon ticks ten times a second; background work may delay the mark.
        let ticks = if config.barrier == Barrier::Sync { 30 } else { 450 };
        run.step(&Op::SyncAll)?;
        let settled = run.disk.cut_points();
        for _ in 0..ticks {
            run.step(&Op::Advance { nanos: 100_000_000 })?;
            run.step(&Op::Tick)?;
        }
        run.forget();
        let image = run.disk.current();
        let options = MountOptions { read_only: true, ..config.options() };
        let mut this = Self {
            image_hash: config.seed,
            image,
            whole: Found::default(),
            past: Vec::new(),
            options,
            members: config.members,
            seed: config.seed,
            order: config.order,
            twice: twice(config, run.disk.as_ref())?,
            settled,
            run,
        };
        let fs = this.mount(None)?;
        this.whole = walk(&fs, At::Live, None)?;
        for info in fs.checkpoints() {
            let found = walk(&fs, At::Past(info.cno), None)?;
            this.past.push((info, found));
        }
        Ok(this)
    }

    /// The byte of the block that is hit, and its bit.
    fn at(&self, block: u64) -> u64 {
        Prng::stream(self.seed ^ block, 6).below(BLOCK_BYTES as u64 * 8)
    }

    fn mount(&self, flip: Option<u64>) -> Result<S, String> {
        let disk = CrashDisk::from_image(self.image.clone()).without_history();
        if let Some(block) = flip {
            let (offset, text) = (block * BLOCK_BYTES as u64, |e: DeviceError| e.to_string());
            let mut bytes = disk.read(offset, BLOCK_BYTES).map_err(text)?;
            bytes[self.at(block) as usize / 8] ^= 1 << (self.at(block) % 8);
            disk.write(offset, Arc::new(bytes)).map_err(text)?;
        }
        let clock = Arc::new(self.run.clock.fork());
        S::open(self.members.of(&Arc::new(disk)), clock, self.options.clone()).map_err(|e| e.to_string())
    }

    fn flip(&mut self, block: u64, tally: &mut Tally) -> Result<Option<Noticed>, String> {
        let bytes: AlignedBuf =
            self.run.disk.read(block * BLOCK_BYTES as u64, BLOCK_BYTES).map_err(|e| e.to_string())?;
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let (fs, found) = match self.mount(Some(block)).and_then(|fs| Ok((walk(&fs, At::Live, None)?, fs))) {
            Ok((found, fs)) => (fs, found),
            Err(e) if self.twice.contains(&block) => {
                return Err(format!("block {block} has a second copy, and yet: {e}"));
            }
            Err(e) if is_report(&e) => return Ok(Some(Noticed::Error)),
            Err(e) => return Err(format!("block {block}: {e}")),
        };
        tally.verdicts_of_wrong(&fs);
        let (listed, settled) = (fs.checkpoints(), self.settled);
        let unproven = judge_listed(self.run.model()?, settled, &listed).is_ok() && !self.twice.contains(&block);
        let is_same = listed.len() == self.past.len() || unproven;
        if found == self.whole && is_same && listed.iter().all(|l| self.past.iter().any(|(info, _)| info == l)) {
            return self.judge_past(&fs, &listed, block).map(Some);
        }
        if self.twice.contains(&block) {
            return Err(format!("block {block} has a second copy, and yet another state is shown"));
        }
        if fs.damage().is_none() {
            return Err(format!("block {block}: another state is shown, and nothing is said about damage"));
        }
        let rules = Rules { order: self.order, binds: Binds::Nothing };
        let (k, model) = (self.run.disk.cut_points(), self.run.model()?);
        let judged = oracle::judge(model, rules, k, &found);
        let judged = judged.and_then(|_| oracle::judge_checkpoints(model, rules, k, &listed).map(drop));
        judged.map(|()| Some(Noticed::Damage)).map_err(|e| format!("block {block}: {e}"))
    }

    /// With a flip that neither what lives nor the list of checkpoints shows: each checkpoint shows what it did, or an error.
    fn judge_past(&self, fs: &S, listed: &[CheckpointInfo], block: u64) -> Result<Noticed, String> {
        let mut noticed = Noticed::Same;
        for (info, was) in self.past.iter().filter(|(info, _)| listed.contains(info)) {
            let cno = info.cno;
            match walk(fs, At::Past(cno), None) {
                Ok(found) if found == *was => {}
                Ok(_) => return Err(format!("block {block}: checkpoint {cno} shows another state")),
                Err(e) if self.twice.contains(&block) || !is_report(&e) => {
                    return Err(format!("block {block}: checkpoint {cno}: {e}"));
                }
                Err(_) => noticed = Noticed::Error,
            }
        }
        Ok(noticed)
    }
}

/// The blocks of root slots, root partials and index partials; all, where others have what is on a device.
pub(crate) fn twice(config: &Config, disk: &CrashDisk) -> Result<BTreeSet<u64>, String> {
    let device_blocks = config.device_bytes / BLOCK_BYTES as u64;
    if config.members.bears_a_loss() {
        return Ok((0..device_blocks).collect());
    }
    let mut blocks: BTreeSet<u64> = (0..AREA_BLOCKS).chain(device_blocks - AREA_BLOCKS..device_blocks).collect();
    if config.members.count > 1 {
        // Where segments lie on several devices is not known here.
        return Ok(blocks);
    }
    let segment_blocks = u64::from(config.segment_blocks);
    for block in AREA_BLOCKS..device_blocks - AREA_BLOCKS {
        let bytes = disk.read(block * BLOCK_BYTES as u64, BLOCK_BYTES).map_err(|e| e.to_string())?;
        let Ok(header) = Header::peek(&bytes) else { continue };
        let at = block - AREA_BLOCKS;
        let here = Addr::new(SegmentNo(at / segment_blocks), (at % segment_blocks) as u32);
        if header.addr != here {
            continue;
        }
        let end = block + u64::from(header.total_blocks());
        match header.kind {
            PartialKind::Root => blocks.extend(block..end),
            // A segment that was emptied and is filled anew keeps the header of before until
            // that of its data is written: only what is still a node counts.
            PartialKind::Index => {
                let nodes = (block + u64::from(header.summary_blocks)..end).step_by(NODE_BLOCKS as usize);
                for node in nodes.filter(|n| n + NODE_BLOCKS <= device_blocks) {
                    let bytes = disk.read(node * BLOCK_BYTES as u64, NODE_BYTES).map_err(|e| e.to_string())?;
                    if node::verify(&bytes) {
                        blocks.extend(node..node + NODE_BLOCKS);
                    }
                }
            }
            PartialKind::Chain | PartialKind::Data => {}
        }
    }
    Ok(blocks)
}

/// Whether mounting or a walk ended with the file system saying that bytes are damaged.
pub(crate) fn is_report(text: &str) -> bool {
    text.contains("damage at block") || text.contains("Damaged(Addr")
}
