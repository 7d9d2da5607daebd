//! Failing devices (promise P5): after a failed write or flush nothing is
//! acknowledged any more, and what was acknowledged before is there when the
//! volume is mounted again from the device as it is.

use crate::clock::VirtualClock;
use crate::config::Config;
use crate::driver::{Failure, Recorded, Tally};
use crate::ops::Op;
use crate::oracle::{self, Rules};
use crate::prng::Prng;
use crate::queue::Queue;
use crate::run::{Run, Step};
use crate::subject::Subject;
use crate::walk::walk;
use nenrin_core::{At, Barrier, Error};
use nenrin_device::{CrashChoice, CrashDisk, Fault, Faulty, OpKind};
use std::sync::Arc;

/// Which request of a run fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// Kind of request.
    pub kind: OpKind,
    /// Its number among its kind, from the first mount on; 1 is the first.
    pub number: u64,
    /// The device stays broken; else only this one request fails.
    pub for_good: bool,
}

impl FaultPlan {
    /// The argument that names the plan on the command line.
    #[must_use]
    pub fn argument(&self) -> String {
        let kind = match self.kind {
            OpKind::Read => "read",
            OpKind::Write => "write",
            _ => "flush",
        };
        let all = if self.for_good { "+" } else { "" };
        format!("--fault {kind}:{}{all}", self.number)
    }

    /// Reads [`FaultPlan::argument`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, number) = text.split_once(':')?;
        let kind = match kind {
            "read" => OpKind::Read,
            "write" => OpKind::Write,
            "flush" => OpKind::Flush,
            _ => return None,
        };
        let for_good = number.ends_with('+');
        Some(Self { kind, number: number.trim_end_matches('+').parse().ok()?, for_good })
    }
}

/// Fault plans for the workload of a seed that makes about `operations` device operations.
#[must_use]
pub fn plans(seed: u64, operations: usize, wanted: u64) -> Vec<FaultPlan> {
    let mut rng = Prng::stream(seed, 5);
    let kinds = [OpKind::Write, OpKind::Flush, OpKind::Write, OpKind::Read];
    let plan = |n: u64| {
        let kind = kinds[n as usize % kinds.len()];
        let share = if kind == OpKind::Write { 2 } else { 5 };
        FaultPlan { kind, number: 1 + rng.below(operations as u64 / share + 1), for_good: rng.chance(50) }
    };
    (0..wanted).map(plan).collect()
}

/// What happened in a run with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The request that should fail was never made.
    NotReached,
    /// A read failed and nobody had to know: the second copy was there, or what
    /// was read was not needed. Everything still answers as the model says.
    Mended,
    /// A write failed that no acknowledgement needed; closing the volume reported it.
    AtClose,
    /// A call reported it.
    Reported,
}

/// Runs the workload of `config` on a device on which one request fails.
///
/// # Errors
/// When something was acknowledged after the failure, or something that was
/// acknowledged before is lost.
pub fn run_with_fault<S: Subject>(config: &Config, plan: FaultPlan, tally: &mut Tally) -> Result<Ending, Box<Failure>> {
    let config = Config { remounts: false, clients: false, ..config.clone() };
    let done = Broken::<S>::start(&config, plan).and_then(|mut b| {
        let ending = b.go(&config)?;
        b.aftermath(&config, tally)?;
        tally.recoveries += 3;
        *tally.faults.entry(format!("{:?} fails: {ending:?}", plan.kind)).or_default() += 1;
        Ok(ending)
    });
    done.map_err(|what| {
        let replay = format!("cargo run --release -p nenrin-sim -- replay {} {}", config.arguments(), plan.argument());
        Box::new(Failure { replay, what, detail: String::new() })
    })
}

struct Broken<S> {
    run: Run<S>,
    faults: nenrin_device::Faults,
    plan: FaultPlan,
}

/// Calls whose success promises durability.
const fn acknowledges(op: &Op) -> bool {
    matches!(op, Op::Fsync { .. } | Op::SyncAll | Op::CheckpointCreate { .. })
}

impl<S: Subject> Broken<S> {
    fn start(config: &Config, plan: FaultPlan) -> Result<Self, String> {
        let disk = Arc::new(CrashDisk::new(config.device_bytes));
        let faulty = Arc::new(Faulty::new(disk.clone()));
        let faults = faulty.faults();
        let faulty = Arc::new(Queue::new(faulty, config.seed, config.queued));
        let run = Run::format(disk, faulty, config.segment_blocks, config.options())?;
        let times = if plan.for_good { u64::MAX } else { 1 };
        faults.inject(Fault::Fail { kind: plan.kind, from: plan.number, times });
        Ok(Self { run, faults, plan })
    }

    fn go(&mut self, config: &Config) -> Result<Ending, String> {
        let mut workload = config.workload();
        let mut rest = config.steps;
        while rest > 0 {
            rest -= 1;
            let op = workload.next(self.run.model()?);
            // A write behind the caller's back is noticed when its file is
            // committed, and what a call does after it has acknowledged may
            // fail; that nothing acknowledged was lost is seen at the end.
            let broken = self.plan.kind == OpKind::Flush && self.faults.fired() > 0
                || self.plan.kind != OpKind::Read && self.run.fs()?.failed().is_some();
            let step = match self.run.step(&op) {
                // A past state or a listing that could not be read.
                Err(_) if self.plan.kind == OpKind::Read && self.faults.fired() > 0 => return Ok(Ending::Reported),
                other => other.map_err(|e| format!("{op:?}: {e}"))?,
            };
            match step {
                Step::Failed(_) => {
                    self.nothing_more(&workload)?;
                    return Ok(Ending::Reported);
                }
                Step::Done if broken && acknowledges(&op) => {
                    return Err(format!("{op:?} was acknowledged after a failed {:?}", self.plan.kind));
                }
                Step::Done if matches!(op, Op::Tmpfile { .. }) => workload.opened(self.run.newest_inode()?),
                _ => {}
            }
        }
        if self.faults.fired() == 0 {
            return Ok(Ending::NotReached);
        }
        if self.plan.kind == OpKind::Read {
            self.faults.clear();
            self.run.compare_all().map_err(|e| format!("after a read failed unseen: {e}"))?;
            return Ok(Ending::Mended);
        }
        // Whatever was written behind is waited for at the latest here.
        match self.run.close()? {
            Step::Failed(_) => Ok(Ending::AtClose),
            _ => Err(format!("closed as if nothing had happened, after a failed {:?}", self.plan.kind)),
        }
    }

    /// Whatever is asked of a failed volume, it acknowledges nothing.
    fn nothing_more(&mut self, workload: &crate::workload::Workload) -> Result<(), String> {
        if self.plan.kind == OpKind::Read {
            return Ok(());
        }
        if self.run.fs()?.failed().is_none() {
            return Err("a call reported the failure, and the volume does not say why it is read-only".into());
        }
        let mut workload = workload.clone();
        for _ in 0..20 {
            let op = workload.next(self.run.model()?);
            let Some(ino) = self.run.model()?.tree.inodes.keys().next().copied() else { break };
            let fs = self.run.fs()?;
            let ino = nenrin_format::Ino(ino);
            let answers = match &op {
                Op::Write { offset, .. } => [fs.write(ino, *offset, b"more", 0).map(drop), fs.fsync_wait(ino)],
                Op::CheckpointCreate { .. } => [fs.checkpoint_create(None).map(drop), fs.sync_all()],
                Op::Tick => [fs.tick(), fs.close()],
                _ => [fs.sync_all(), fs.fsync_wait(ino)],
            };
            if answers.iter().any(Result::is_ok) {
                return Err(format!("a failed volume still acknowledges: {op:?}: {answers:?}"));
            }
            if let Some(Err(e)) = answers.into_iter().find(|a| !matches!(a, Err(Error::Failed(_)))) {
                if !matches!(e, Error::IsDirectory | Error::BadArgument(_)) {
                    return Err(format!("a failed volume answers {e:?}"));
                }
            }
        }
        Ok(())
    }

    /// The volume is mounted again: from the device as it is, and as a power cut might leave it.
    fn aftermath(&mut self, config: &Config, tally: &mut Tally) -> Result<(), String> {
        self.run.forget();
        self.faults.clear();
        self.run.disk.complete_all();
        let k = self.run.disk.cut_points();
        let mut rng = Prng::stream(config.seed, 4);
        let choices = [CrashChoice::SEED_APPLIED, CrashChoice::SEED_DROPPED, 3 + rng.below(1000)];
        // Without flushes only a device that loses nothing can be relied on.
        let count = if config.barrier == Barrier::None { 1 } else { choices.len() };
        for choice in choices.into_iter().take(count) {
            let rules = Rules { order: config.order, binds: Recorded::binds(config, choice) };
            let image = self.run.disk.image(&CrashChoice::from_seed(choice));
            tally.count_image(image.content_hash(), "after a failed request");
            let image = Arc::new(image);
            let clock: Arc<VirtualClock> = Arc::new(self.run.clock.fork());
            let fs = S::open(image, clock, config.options()).map_err(|e| format!("mounting after the failure: {e}"))?;
            let found = walk(&fs, At::Live, None).map_err(|e| format!("after the failure: {e}"))?;
            let model = self.run.model()?;
            oracle::judge(model, rules, k, &found).map_err(|e| format!("after the failure, choice {choice}: {e}"))?;
            oracle::judge_checkpoints(model, rules, k, &fs.checkpoints())
                .map_err(|e| format!("after the failure, choice {choice}: {e}"))?;
        }
        Ok(())
    }
}
