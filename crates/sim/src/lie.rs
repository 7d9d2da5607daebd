//! Devices that lie: one write of a run is reported as done and is not, or goes
//! somewhere else. What is read afterwards, in the same life and after the next
//! mount, is what was written, or an error, or an older state that is reported
//! as damage; never other bytes, and never an older state without a word (P4).
//!
//! Or a read of a run comes back with a flipped bit, once or from then on:
//! never returned as data, mended where a second copy exists, and nothing of it
//! gets onto the device, so that the next mount finds everything.
//!
//! Of several devices one lies. Where the others have all that it has, nobody
//! has to know: all is as it should be, with it and without it.

use crate::clock::VirtualClock;
use crate::config::Config;
use crate::driver::{Failure, Tally};
use crate::flip::is_report;
use crate::members::Drive;
use crate::model::Model;
use crate::ops::Op;
use crate::oracle::{self, Binds, Rules};
use crate::prng::Prng;
use crate::run::Step;
use crate::subject::Subject;
use crate::walk::walk;
use crate::wrong::{Wrong, alone};
use nenrin_core::{At, Barrier, CheckpointInfo, MountOptions, Order};
use nenrin_device::{BlockDevice, CrashDisk, Fault};
use nenrin_format::{BLOCK_BYTES, NODE_BYTES, node};
use std::sync::Arc;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A write is not done.
    Lost,
    /// A write goes to another block.
    Misdirected,
    /// A write goes onto the one before it, which it perhaps was to prove.
    Astray,
    /// A read comes back with a flipped bit, once.
    Flipped,
    /// A read comes back with a flipped bit, and so does each later one of that byte.
    Stuck,
}

impl Kind {
    /// All kinds, with their names on the command line.
    const ALL: [(Self, &'static str); 5] = [
        (Self::Lost, "lost"),
        (Self::Misdirected, "misdirected"),
        (Self::Astray, "astray"),
        (Self::Flipped, "flipped"),
        (Self::Stuck, "stuck"),
    ];

    /// Whether it is about reads.
    const fn reads(self) -> bool {
        matches!(self, Self::Flipped | Self::Stuck)
    }
}

/// Which request of a run is lied about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lie {
    /// What becomes of it.
    pub kind: Kind,
    /// Its number, 1 is the first: among writes from the first mount on, among reads from the second on.
    pub number: u64,
}

impl Lie {
    /// The argument that names it on the command line.
    #[must_use]
    pub fn argument(&self) -> String {
        let name = Kind::ALL.iter().find(|k| k.0 == self.kind).map_or("", |k| k.1);
        format!("--lie {name}:{}", self.number)
    }

    /// Reads [`Lie::argument`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, number) = text.split_once(':')?;
        let (kind, _) = *Kind::ALL.iter().find(|k| k.1 == kind)?;
        Some(Self { kind, number: number.parse().ok()? })
    }
}

/// Lies for the workload of a seed that makes about `operations` device operations.
#[must_use]
pub fn lies(seed: u64, operations: usize, wanted: u64) -> Vec<Lie> {
    let mut rng = Prng::stream(seed, 15);
    // Two a seed: a write and a read.
    let lie = |n: u64| {
        let kinds = [Kind::Lost, Kind::Flipped, Kind::Misdirected, Kind::Stuck, Kind::Astray, Kind::Flipped];
        let kind = kinds[((n + 2 * seed) % 6) as usize];
        let share = if kind.reads() { 5 } else { 2 };
        Lie { kind, number: 1 + rng.below(operations as u64 / share + 1) }
    };
    (0..wanted).map(lie).collect()
}

/// How a lie came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// The request was never made.
    NotReached,
    /// Nothing needed it any more, or a second copy was there: all is as it should be.
    Same,
    /// A node of the index was read wrongly, and its second copy was taken; or other devices stood in.
    Mended,
    /// A call said that bytes are damaged.
    InLife,
    /// Mounting or reading afterwards said so.
    Error,
    /// An older state is shown, and reported as damage.
    Damage,
}

/// Runs the workload of `config` on a device that lies once.
///
/// # Errors
/// When the lie went unnoticed, and something is not as it should be.
pub fn run_with_lie<S: Subject>(config: &Config, lie: Lie, tally: &mut Tally) -> Result<Noticed, Box<Failure>> {
    // Without flushes nothing says how far the log should reach.
    let config = Config { barrier: Barrier::Sync, ..alone(config) };
    match live::<S>(&config, lie, tally) {
        Ok(noticed) => {
            let what = if lie.kind.reads() { "Read" } else { "Write" };
            *tally.faults.entry(format!("{what} {:?}: {noticed:?}", lie.kind)).or_default() += 1;
            Ok(noticed)
        }
        Err(what) => {
            let replay =
                format!("cargo run --release -p nenrin-sim -- replay {} {}", config.arguments(), lie.argument());
            Err(Box::new(Failure { replay, what, detail: String::new() }))
        }
    }
}

fn live<S: Subject>(config: &Config, lie: Lie, tally: &mut Tally) -> Result<Noticed, String> {
    // With hardly any memory for them, nodes of the index are read often, too.
    let cache_bytes = if lie.kind.reads() { 1 } else { config.options().cache_bytes };
    let options = MountOptions { cache_bytes, ..config.options() };
    let wrong = Wrong::<S>::format(config, options, lie.number)?;
    let bytes = wrong.run.plain.members.get(wrong.hit).map_or(0, |d| d.geometry().bytes);
    let mut rng = Prng::stream(config.seed ^ lie.number, 16);
    let to = rng.below(bytes / BLOCK_BYTES as u64 / 2) * BLOCK_BYTES as u64;
    let number = lie.number;
    let fault = match lie.kind {
        Kind::Lost => Fault::LoseWrites { from: number, times: 1 },
        Kind::Misdirected => Fault::MisdirectWrite { number, to },
        Kind::Astray => Fault::MisdirectOntoLast { number, block: rng.below(1 << 20) },
        Kind::Flipped | Kind::Stuck => {
            let (byte, mask) = (rng.below(1 << 20), 1 << rng.below(8));
            Fault::FlipRead { number, byte, mask, for_good: lie.kind == Kind::Stuck }
        }
    };
    let mut liar = Liar { wrong, others_stand_in: config.members.bears_a_loss(), settled: 0 };
    // What is in memory is not read: for reads the volume was used before, and is mounted anew.
    let before = if lie.kind.reads() { config.steps / 2 } else { 0 };
    let told = liar.go(config, before, fault)?;
    if liar.wrong.faults.fired() == 0 {
        return Ok(Noticed::NotReached);
    }
    if liar.others_stand_in {
        return liar.stood_in(config, tally);
    }
    if !lie.kind.reads() {
        return if told { Ok(Noticed::InLife) } else { liar.afterwards(config, |d| d, tally) };
    }
    let of_node = liar.hit_a_node()?;
    if told && of_node {
        return Err(
            "a node of the index was read wrongly, it has a second copy, and yet that was told as damage".into()
        );
    }
    liar.wrong.faults.clear();
    match liar.afterwards(config, |d| d, tally)? {
        Noticed::Same if told => Ok(Noticed::InLife),
        Noticed::Same if of_node => Ok(Noticed::Mended),
        Noticed::Same => Ok(Noticed::Same),
        other => Err(format!("only a read was wrong, and the next mount found {other:?}")),
    }
}

/// The volume on a device that lies.
struct Liar<S> {
    wrong: Wrong<S>,
    /// The other devices have all that this one has.
    others_stand_in: bool,
    /// What was acknowledged up to this device operation has been proven durable since.
    settled: usize,
}

impl<S: Subject> Liar<S> {
    /// Makes the calls; the fault comes after so many of them, and a remount.
    /// Returns whether one of them said that bytes are damaged.
    fn go(&mut self, config: &Config, before: usize, fault: Fault) -> Result<bool, String> {
        let mut workload = config.workload();
        if before > 0 {
            if let Some(e) = self.wrong.run.steps(&mut workload, before)? {
                return Err(format!("the volume failed without a fault: {e}"));
            }
            self.wrong.run.step(&Op::Remount)?;
            workload.handles_lost();
        }
        self.wrong.faults.inject(fault);
        // Then the log is told to be durable, so that what is missing of it can be seen.
        let ends = (0..30).flat_map(|_| [Op::Advance { nanos: 100_000_000 }, Op::Tick]);
        let mut ends = std::iter::once(Op::SyncAll).chain(ends);
        let mut rest = config.steps - before;
        loop {
            let op = match rest.checked_sub(1) {
                Some(less) => {
                    rest = less;
                    workload.next(self.wrong.run.model()?)
                }
                None => match ends.next() {
                    Some(op) => op,
                    None => return Ok(false),
                },
            };
            let step = self.wrong.run.step(&op);
            let may_tell = self.wrong.faults.fired() > 0 && !self.others_stand_in;
            match step {
                Err(e) if may_tell && (is_report(&e) || matches!(op, Op::Scrub)) => return Ok(true),
                Err(e) => return Err(format!("{op:?}: {e}")),
                Ok(Step::Failed(e)) if may_tell && is_report(&e.to_string()) => return Ok(true),
                Ok(Step::Failed(e)) => return Err(format!("{op:?}: the volume failed: {e}")),
                Ok(Step::Done) if matches!(op, Op::Tmpfile { .. }) => workload.opened(self.wrong.run.newest_inode()?),
                Ok(_) if matches!(op, Op::SyncAll) => self.settled = self.wrong.run.disk.cut_points(),
                Ok(_) => {}
            }
        }
    }

    /// Whether the read that was altered asked for a node of the index that is still there.
    fn hit_a_node(&self) -> Result<bool, String> {
        let Some(hit) = self.wrong.faults.flipped().filter(|r| r.end - r.start == NODE_BYTES as u64) else {
            return Ok(false);
        };
        let member = self.wrong.run.plain.members.get(self.wrong.hit).ok_or("no such device")?;
        let bytes = member.read(hit.start, NODE_BYTES).map_err(|e| e.to_string())?;
        Ok(node::verify(&bytes))
    }

    /// What others have is found by the next mount, with the device that has lied and without it.
    fn stood_in(&mut self, config: &Config, tally: &mut Tally) -> Result<Noticed, String> {
        let hit = self.wrong.hit;
        let with = self.afterwards(config, |d| d, tally);
        let without = self.afterwards(config, |d| d.without(hit), tally);
        for (what, noticed) in [("with", with), ("without", without)] {
            match noticed.map_err(|e| format!("{what} device {hit}: {e}"))? {
                Noticed::Same => {}
                other => return Err(format!("{what} device {hit}, what the others have: {other:?}")),
            }
        }
        Ok(Noticed::Mended)
    }

    /// What the next mount finds, of the devices that `which` leaves.
    fn afterwards(
        &mut self,
        config: &Config,
        which: impl FnOnce(Drive) -> Drive,
        tally: &mut Tally,
    ) -> Result<Noticed, String> {
        self.wrong.run.forget();
        let disk = Arc::new(CrashDisk::from_image(self.wrong.run.disk.current()));
        let clock: Arc<VirtualClock> = Arc::new(self.wrong.run.clock.fork());
        let options = MountOptions { read_only: true, ..config.options() };
        let opened = S::open(which(config.members.of(&disk)), clock, options).map_err(|e| e.to_string());
        let (fs, found) = match opened.and_then(|fs| Ok((walk(&fs, At::Live, None)?, fs))) {
            Ok((found, fs)) => (fs, found),
            Err(e) if is_report(&e) && !self.others_stand_in => return Ok(Noticed::Error),
            Err(e) => return Err(format!("afterwards: {e}")),
        };
        tally.verdicts_of_wrong(&fs);
        let (k, settled) = (self.wrong.run.disk.cut_points(), self.settled);
        let model = self.wrong.run.model()?;
        let strictly = Rules { order: config.order, binds: Binds::Acknowledged };
        let live = oracle::judge(model, strictly, k, &found).map(drop);
        let past = live.and_then(|()| judge_listed(model, settled, &fs.checkpoints()));
        let past = past.and_then(|()| judge_history(&fs, model, k));
        let missing = match past {
            Ok(None) => return Ok(Noticed::Same),
            Ok(Some(_)) if !self.others_stand_in => return Ok(Noticed::Error),
            Ok(Some(e)) | Err(e) => e,
        };
        let Some(damage) = fs.damage().filter(|_| !self.others_stand_in) else {
            return Err(format!("nothing is said about damage, and {missing}"));
        };
        let loosely = Rules { binds: Binds::Nothing, ..strictly };
        let past = oracle::judge(model, loosely, k, &found).and_then(|_| judge_history(&fs, model, k));
        past.map(|_| Noticed::Damage).map_err(|e| format!("afterwards, where {damage}: {e}"))
    }
}

/// Checkpoints that are there must be listed, but for those that time has brought after the last sync: of these the last may
/// not be proven yet.
pub(crate) fn judge_listed(model: &Model, settled: usize, listed: &[CheckpointInfo]) -> Result<(), String> {
    let mut must = model.checkpoints.iter().filter(|(_, c)| c.promised <= settled && c.gone.is_none());
    match must.find(|(cno, _)| !listed.iter().any(|i| i.cno.0 == **cno)) {
        Some((cno, _)) => Err(format!("checkpoint {cno} was acknowledged and is gone")),
        None => Ok(()),
    }
}

/// Each checkpoint that is listed was made, and shows what it did, or says that bytes are damaged: what it says then.
fn judge_history<S: Subject>(fs: &S, model: &Model, k: usize) -> Result<Option<String>, String> {
    let rules = Rules { order: Order::Relaxed, binds: Binds::Nothing };
    let known = oracle::judge_checkpoints(model, rules, k, &fs.checkpoints())?;
    let mut damage = None;
    let shed = match fs.shed().map_err(|e| e.to_string()) {
        Ok(shed) => shed,
        Err(e) if is_report(&e) => return Ok(Some(e)),
        Err(e) => return Err(format!("what was shed: {e}")),
    };
    for (info, log) in known {
        match walk(fs, At::Past(info.cno), None) {
            Ok(found) => oracle::judge_past(&info, log, &found, &shed)?,
            Err(e) if is_report(&e) => damage = Some(e),
            Err(e) => return Err(format!("checkpoint {}: {e}", info.cno)),
        }
    }
    Ok(damage)
}
