//! Devices that lie: one write of a run is reported as done and is not, or goes
//! somewhere else. What is read afterwards, in the same life and after the next
//! mount, is what was written, or an error, or an older state that is reported
//! as damage; never other bytes, and never an older state without a word (P4).

use crate::clock::VirtualClock;
use crate::config::Config;
use crate::driver::{Failure, Tally};
use crate::flip::is_report;
use crate::ops::Op;
use crate::oracle::{self, Rules};
use crate::prng::Prng;
use crate::queue::Queue;
use crate::run::{Run, Step};
use crate::subject::Subject;
use crate::walk::walk;
use nenrin_core::{At, Barrier, MountOptions};
use nenrin_device::{CrashDisk, Fault, Faulty};
use nenrin_format::BLOCK_BYTES;
use std::sync::Arc;

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is not done.
    Lost,
    /// It goes to another block.
    Misdirected,
}

/// Which write of a run is lied about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lie {
    /// What becomes of it.
    pub kind: Kind,
    /// Its number, from the first mount on; 1 is the first.
    pub number: u64,
}

impl Lie {
    /// The argument that names it on the command line.
    #[must_use]
    pub fn argument(&self) -> String {
        let kind = match self.kind {
            Kind::Lost => "lost",
            Kind::Misdirected => "misdirected",
        };
        format!("--lie {kind}:{}", self.number)
    }

    /// Reads [`Lie::argument`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, number) = text.split_once(':')?;
        let kind = match kind {
            "lost" => Kind::Lost,
            "misdirected" => Kind::Misdirected,
            _ => return None,
        };
        Some(Self { kind, number: number.parse().ok()? })
    }
}

/// Lies for the workload of a seed that makes about `operations` device operations.
#[must_use]
pub fn lies(seed: u64, operations: usize, wanted: u64) -> Vec<Lie> {
    let mut rng = Prng::stream(seed, 15);
    let lie = |n: u64| {
        let kind = if n % 2 == 0 { Kind::Lost } else { Kind::Misdirected };
        Lie { kind, number: 1 + rng.below(operations as u64 / 2 + 1) }
    };
    (0..wanted).map(lie).collect()
}

/// How a lie came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// The write was never made.
    NotReached,
    /// Nothing needed it any more, or a second copy was there: all is as it should be.
    Same,
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
            *tally.faults.entry(format!("Write {:?}: {noticed:?}", lie.kind)).or_default() += 1;
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
    let mut run = Run::<S>::format(disk, queue, config.segment_blocks, config.options())?;
    let blocks = config.device_bytes / BLOCK_BYTES as u64;
    // No write is half as long as the device, so none ends behind it.
    let to = Prng::stream(config.seed ^ lie.number, 16).below(blocks / 2) * BLOCK_BYTES as u64;
    faults.inject(match lie.kind {
        Kind::Lost => Fault::LoseWrites { from: lie.number, times: 1 },
        Kind::Misdirected => Fault::MisdirectWrite { number: lie.number, to },
    });
    let mut workload = config.workload();
    // Then the log is told to be durable, so that what is missing of it can be seen.
    let ends = (0..30).flat_map(|_| [Op::Advance { nanos: 100_000_000 }, Op::Tick]);
    let mut ends = std::iter::once(Op::SyncAll).chain(ends);
    let mut rest = config.steps;
    loop {
        let op = match rest.checked_sub(1) {
            Some(less) => {
                rest = less;
                workload.next(run.model()?)
            }
            None => match ends.next() {
                Some(op) => op,
                None => break,
            },
        };
        match run.step(&op) {
            Err(e) if faults.fired() > 0 && is_report(&e) => return Ok(Noticed::InLife),
            Err(e) => return Err(format!("{op:?}: {e}")),
            Ok(Step::Failed(e)) if faults.fired() > 0 && is_report(&e.to_string()) => return Ok(Noticed::InLife),
            Ok(Step::Failed(e)) => return Err(format!("{op:?}: the volume failed: {e}")),
            Ok(Step::Done) if matches!(op, Op::Tmpfile { .. }) => workload.opened(run.newest_inode()?),
            Ok(_) => {}
        }
    }
    if faults.fired() == 0 {
        return Ok(Noticed::NotReached);
    }
    run.forget();
    let image = Arc::new(CrashDisk::from_image(run.disk.current()));
    let clock: Arc<VirtualClock> = Arc::new(run.clock.fork());
    let options = MountOptions { read_only: true, ..config.options() };
    let opened = S::open(image, clock, options).map_err(|e| e.to_string());
    let (fs, found) = match opened.and_then(|fs| Ok((walk(&fs, At::Live, None)?, fs))) {
        Ok((found, fs)) => (fs, found),
        Err(e) if is_report(&e) => return Ok(Noticed::Error),
        Err(e) => return Err(format!("afterwards: {e}")),
    };
    tally.verdicts(&fs);
    let k = run.disk.cut_points();
    let model = run.model()?;
    let strictly = Rules { order: config.order, durable: true };
    let missing = match oracle::judge(model, strictly, k, &found) {
        Ok(_) => return Ok(Noticed::Same),
        Err(e) => e,
    };
    if fs.damage().is_none() {
        return Err(format!("nothing is said about damage, and {missing}"));
    }
    oracle::judge(model, Rules { durable: false, ..strictly }, k, &found).map_err(|e| format!("afterwards: {e}"))?;
    Ok(Noticed::Damage)
}
