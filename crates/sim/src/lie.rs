//! Devices that lie: one write of a run is reported as done and is not, or goes
//! somewhere else. What is read afterwards, in the same life and after the next
//! mount, is what was written, or an error, or an older state that is reported
//! as damage; never other bytes, and never an older state without a word (P4).
//!
//! Or a read of a run comes back with a flipped bit, once or from then on:
//! never returned as data, mended where a second copy exists, and nothing of it
//! gets onto the device, so that the next mount finds everything.

use crate::clock::VirtualClock;
use crate::config::Config;
use crate::driver::{Failure, Tally};
use crate::flip::is_report;
use crate::ops::Op;
use crate::oracle::{self, Binds, Rules};
use crate::prng::Prng;
use crate::queue::Queue;
use crate::run::{Run, Step};
use crate::subject::Subject;
use crate::walk::walk;
use nenrin_core::{At, Barrier, MountOptions};
use nenrin_device::{BlockDevice, CrashDisk, Fault, Faults, Faulty};
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
    /// A node of the index was read wrongly, and its second copy was taken.
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
    let config = Config { remounts: false, clients: false, barrier: Barrier::Sync, ..config.clone() };
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
    let disk = Arc::new(CrashDisk::new(config.device_bytes));
    let faulty = Arc::new(Faulty::new(disk.clone()));
    let faults = faulty.faults();
    let queue = Arc::new(Queue::new(faulty, config.seed, config.queued));
    // With hardly any memory for them, nodes of the index are read often, too.
    let cache_bytes = if lie.kind.reads() { 1 } else { config.options().cache_bytes };
    let options = MountOptions { cache_bytes, ..config.options() };
    let run = Run::<S>::format(disk, queue, config.segment_blocks, options)?;
    let mut rng = Prng::stream(config.seed ^ lie.number, 16);
    let to = rng.below(config.device_bytes / BLOCK_BYTES as u64 / 2) * BLOCK_BYTES as u64;
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
    let mut liar = Liar { run, faults };
    // What is in memory is not read: for reads the volume was used before, and is mounted anew.
    let before = if lie.kind.reads() { config.steps / 2 } else { 0 };
    let told = liar.go(config, before, fault)?;
    if liar.faults.fired() == 0 {
        return Ok(Noticed::NotReached);
    }
    if !lie.kind.reads() {
        return if told { Ok(Noticed::InLife) } else { liar.afterwards(config, tally) };
    }
    let of_node = liar.hit_a_node()?;
    if told && of_node {
        return Err(
            "a node of the index was read wrongly, it has a second copy, and yet that was told as damage".into()
        );
    }
    liar.faults.clear();
    match liar.afterwards(config, tally)? {
        Noticed::Same if told => Ok(Noticed::InLife),
        Noticed::Same if of_node => Ok(Noticed::Mended),
        Noticed::Same => Ok(Noticed::Same),
        other => Err(format!("only a read was wrong, and the next mount found {other:?}")),
    }
}

struct Liar<S> {
    run: Run<S>,
    faults: Faults,
}

impl<S: Subject> Liar<S> {
    /// Makes the calls; the fault comes after so many of them, and a remount.
    /// Returns whether one of them said that bytes are damaged.
    fn go(&mut self, config: &Config, before: usize, fault: Fault) -> Result<bool, String> {
        let mut workload = config.workload();
        if before > 0 {
            if let Some(e) = self.run.steps(&mut workload, before)? {
                return Err(format!("the volume failed without a fault: {e}"));
            }
            self.run.step(&Op::Remount)?;
            workload.handles_lost();
        }
        self.faults.inject(fault);
        // Then the log is told to be durable, so that what is missing of it can be seen.
        let ends = (0..30).flat_map(|_| [Op::Advance { nanos: 100_000_000 }, Op::Tick]);
        let mut ends = std::iter::once(Op::SyncAll).chain(ends);
        let mut rest = config.steps - before;
        loop {
            let op = match rest.checked_sub(1) {
                Some(less) => {
                    rest = less;
                    workload.next(self.run.model()?)
                }
                None => match ends.next() {
                    Some(op) => op,
                    None => return Ok(false),
                },
            };
            match self.run.step(&op) {
                Err(e) if self.faults.fired() > 0 && (is_report(&e) || matches!(op, Op::Scrub)) => return Ok(true),
                Err(e) => return Err(format!("{op:?}: {e}")),
                Ok(Step::Failed(e)) if self.faults.fired() > 0 && is_report(&e.to_string()) => return Ok(true),
                Ok(Step::Failed(e)) => return Err(format!("{op:?}: the volume failed: {e}")),
                Ok(Step::Done) if matches!(op, Op::Tmpfile { .. }) => workload.opened(self.run.newest_inode()?),
                Ok(_) => {}
            }
        }
    }

    /// Whether the read that was altered asked for a node of the index that is still there.
    fn hit_a_node(&self) -> Result<bool, String> {
        let Some(hit) = self.faults.flipped().filter(|r| r.end - r.start == NODE_BYTES as u64) else {
            return Ok(false);
        };
        let bytes = self.run.disk.read(hit.start, NODE_BYTES).map_err(|e| e.to_string())?;
        Ok(node::verify(&bytes))
    }

    /// What the next mount finds.
    fn afterwards(&mut self, config: &Config, tally: &mut Tally) -> Result<Noticed, String> {
        self.run.forget();
        let image = Arc::new(CrashDisk::from_image(self.run.disk.current()));
        let clock: Arc<VirtualClock> = Arc::new(self.run.clock.fork());
        let options = MountOptions { read_only: true, ..config.options() };
        let opened = S::open(image, clock, options).map_err(|e| e.to_string());
        let (fs, found) = match opened.and_then(|fs| Ok((walk(&fs, At::Live, None)?, fs))) {
            Ok((found, fs)) => (fs, found),
            Err(e) if is_report(&e) => return Ok(Noticed::Error),
            Err(e) => return Err(format!("afterwards: {e}")),
        };
        tally.verdicts_of_wrong(&fs);
        let k = self.run.disk.cut_points();
        let model = self.run.model()?;
        let strictly = Rules { order: config.order, binds: Binds::Acknowledged };
        let missing = match oracle::judge(model, strictly, k, &found) {
            Ok(_) => return Ok(Noticed::Same),
            Err(e) => e,
        };
        if fs.damage().is_none() {
            return Err(format!("nothing is said about damage, and {missing}"));
        }
        let loosely = Rules { binds: Binds::Nothing, ..strictly };
        oracle::judge(model, loosely, k, &found).map_err(|e| format!("afterwards: {e}"))?;
        Ok(Noticed::Damage)
    }
}
