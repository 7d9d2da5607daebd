//! Failing devices (promise P5): after a failed write or flush nothing is
//! acknowledged any more, and what was acknowledged before is there when the
//! volume is mounted again from the device as it is. What a failed flush left
//! readable is durable once that mount has synced. Where others have all that
//! a device has, nobody has to know: the volume goes on, and says that this one
//! is not well; what is acknowledged then is there without it.

use crate::clock::VirtualClock;
use crate::config::Config;
use crate::driver::{Failure, Recorded, Tally};
use crate::members::Drive;
use crate::ops::Op;
use crate::oracle::{self, Rules};
use crate::prng::Prng;
use crate::run::{Run, Step};
use crate::subject::Subject;
use crate::walk::walk;
use crate::workload::Workload;
use crate::wrong::{Wrong, alone};
use nenrin_core::{At, Barrier, Error, NewInode, RenameMode};
use nenrin_device::{CrashChoice, CrashDisk, Fault, OpKind};
use nenrin_format::Ino;
use std::mem::discriminant;
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
    /// Nobody had to know: a second copy was there, or what was read was not
    /// needed. Everything still answers as the model says.
    Mended,
    /// The same of a read that nobody needed: no device is known to be unwell.
    Unneeded,
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
    let config = alone(config);
    let done = Broken::<S>::start(&config, plan).and_then(|mut b| {
        let ending = b.go(&config)?;
        b.aftermath(&config, tally)?;
        *tally.faults.entry(format!("{:?} fails: {ending:?}", plan.kind)).or_default() += 1;
        Ok(ending)
    });
    done.map_err(|what| {
        let replay = format!("cargo run --release -p nenrin-sim -- replay {} {}", config.arguments(), plan.argument());
        Box::new(Failure { replay, what, detail: String::new() })
    })
}

/// Whether what a call or a comparison ended with says that the device failed.
pub(crate) fn names_the_device(what: &str) -> bool {
    what.contains("os error 5") || what.contains("Device(Os(5))")
}

/// A failed volume says no, and why; what makes no sense it may refuse for that.
fn refused(what: &dyn std::fmt::Debug, answers: [Result<(), Error>; 2]) -> Result<(), String> {
    if answers.iter().any(Result::is_ok) {
        return Err(format!("a failed volume still acknowledges: {what:?}: {answers:?}"));
    }
    let senseless =
        [Error::IsDirectory, Error::BadArgument(""), Error::Checkpoint(String::new())].map(|e| discriminant(&e));
    for e in answers.into_iter().filter_map(Result::err) {
        if !matches!(e, Error::Failed(_)) && !senseless.contains(&discriminant(&e)) {
            return Err(format!("a failed volume answers {e:?} to {what:?}"));
        }
    }
    Ok(())
}

struct Broken<S> {
    run: Run<S>,
    faults: nenrin_device::Faults,
    plan: FaultPlan,
    hit: usize,
    /// The other devices have all that this one has.
    others_stand_in: bool,
}

/// Calls whose success promises durability.
const fn acknowledges(op: &Op) -> bool {
    matches!(op, Op::Fsync { .. } | Op::SyncAll | Op::CheckpointCreate { .. })
}

impl<S: Subject> Broken<S> {
    fn start(config: &Config, plan: FaultPlan) -> Result<Self, String> {
        let Wrong { run, faults, hit } = Wrong::format(config, config.options(), plan.number)?;
        let times = if plan.for_good { u64::MAX } else { 1 };
        faults.inject(Fault::Fail { kind: plan.kind, from: plan.number, times });
        Ok(Self { run, faults, plan, hit, others_stand_in: config.members.bears_a_loss() })
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
            let broken = !self.others_stand_in
                && (self.plan.kind == OpKind::Flush && self.faults.fired() > 0
                    || self.plan.kind != OpKind::Read && self.run.fs()?.failed().is_some());
            let step = match self.run.step(&op) {
                // A past state or a listing that could not be read.
                Err(e) if self.plan.kind == OpKind::Read && names_the_device(&e) => {
                    return self.reported(&workload, &e);
                }
                other => other.map_err(|e| format!("{op:?}: {e}"))?,
            };
            match step {
                Step::Failed(e) => {
                    return self.reported(&workload, &e.to_string()).map_err(|what| format!("{op:?}: {what}"));
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
        if self.others_stand_in {
            return self.gone_on();
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

    /// The others have stood in for the device, which is known to be unwell.
    fn gone_on(&mut self) -> Result<Ending, String> {
        self.run.compare_all().map_err(|e| format!("the other devices have it, and yet: {e}"))?;
        let unwell = self.run.fs()?.unwell();
        let ending = match unwell[..] {
            [] if self.plan.kind == OpKind::Read => Ending::Unneeded,
            [one] if one == self.hit => Ending::Mended,
            _ => return Err(format!("device {} has failed, and unwell are {unwell:?}", self.hit)),
        };
        match self.run.close()? {
            Step::Done => Ok(ending),
            other => Err(format!("closing without a device: {other:?}")),
        }
    }

    /// A call has reported the failure: the volume stops, or only a read failed, and what reported that has changed nothing.
    fn reported(&mut self, workload: &Workload, what: &str) -> Result<Ending, String> {
        if self.faults.fired() == 0 {
            return Err(format!("the volume failed without a fault: {what}"));
        }
        if self.others_stand_in {
            return Err(format!("the other devices have it, and yet: {what}"));
        }
        let (is_read, stopped) = (self.plan.kind == OpKind::Read, self.run.fs()?.failed().is_some());
        if is_read && !names_the_device(what) {
            return Err(format!("a read failed, and what is said is: {what}"));
        }
        if is_read && !stopped {
            self.faults.clear();
            self.run.compare_all().map_err(|e| format!("after {what}: {e}"))?;
        } else if stopped {
            self.nothing_more(workload)?;
        } else {
            return Err("a call reported the failure, and the volume does not say why it is read-only".into());
        }
        Ok(Ending::Reported)
    }

    /// Whatever is asked of a failed volume, it acknowledges nothing.
    fn nothing_more(&mut self, workload: &Workload) -> Result<(), String> {
        let mut workload = workload.clone();
        for _ in 0..20 {
            let op = workload.next(self.run.model()?);
            let Some(ino) = self.run.model()?.tree.inodes.keys().next().copied() else { break };
            let fs = self.run.fs()?;
            let ino = Ino(ino);
            let answers = match &op {
                Op::Write { offset, .. } => [fs.write(ino, *offset, b"more", 0).map(drop), fs.fsync_wait(ino)],
                Op::CheckpointCreate { .. } => [fs.checkpoint_create(None).map(drop), fs.sync_all()],
                Op::Tick => [fs.tick(), fs.close()],
                _ => [fs.sync_all(), fs.fsync_wait(ino)],
            };
            refused(&op, answers)?;
        }
        let names: Vec<Vec<u8>> = self
            .run
            .model()?
            .tree
            .inode(Ino::ROOT.0)
            .map_or_else(|_| Vec::new(), |root| root.entries.keys().cloned().collect());
        let fs = self.run.fs()?;
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        refused(&"creating", [fs.create(Ino::ROOT, b"created late", &new).map(drop), fs.tmpfile(&new).map(drop)])?;
        for name in names {
            let renamed = fs.rename(Ino::ROOT, &name, Ino::ROOT, b"renamed late", RenameMode::Replace);
            refused(&"renaming and removing", [renamed, fs.unlink(Ino::ROOT, &name)])?;
        }
        for cno in fs.checkpoints().into_iter().map(|c| c.cno) {
            let named = fs.checkpoint_name(cno, Some(b"named late"));
            refused(&"naming and deleting", [named, fs.checkpoint_drop(&[cno])])?;
        }
        if fs.retention().is_some() {
            refused(&"a rule", [fs.set_retention("1m:all"), fs.set_retention("5m:30s")])?;
        }
        Ok(())
    }

    /// The volume is mounted again: from the device as it is, and as a power cut might leave it.
    fn aftermath(&mut self, config: &Config, tally: &mut Tally) -> Result<(), String> {
        self.run.forget();
        self.faults.clear();
        self.run.disk.complete_all();
        self.judge_as_it_was_left(config, tally)?;
        if self.plan.kind == OpKind::Flush && !self.others_stand_in && config.barrier == Barrier::Sync {
            tally.recoveries += 1;
            return self.believed(config, tally);
        }
        Ok(())
    }

    /// What was not flushed is in a cache that takes it for written, whatever became of it: what a mount shows of that, and syncs, is durable.
    fn believed(&mut self, config: &Config, tally: &mut Tally) -> Result<(), String> {
        let mut rng = Prng::stream(config.seed, 27);
        let choices = [CrashChoice::SEED_DROPPED, 3 + rng.below(1000)];
        let kept = choices[self.plan.number as usize % choices.len()];
        self.run.disk.lose_unflushed(CrashChoice::from_seed(kept));
        let clock = || Arc::new(self.run.clock.fork());
        let open = |drive: Drive| S::open(drive, clock(), config.options()).map_err(|e| format!("mounting: {e}"));
        let shown = {
            let fs = open(config.members.of(&self.run.disk))?;
            let shown = walk(&fs, At::Live, None)?;
            fs.sync_all().map_err(|e| format!("behind a failed flush: {e}"))?;
            shown
        };
        let image = self.run.disk.image(&CrashChoice::from_seed(CrashChoice::SEED_DROPPED));
        tally.count_image(image.content_hash(), "behind a failed flush");
        let found = walk(&open(config.members.of(&Arc::new(image)))?, At::Live, None)
            .map_err(|e| format!("what a mount showed and synced behind a failed flush, kept {kept}: {e}"))?;
        if found != shown {
            return Err(format!("what a mount showed and synced behind a failed flush is lost, kept {kept}"));
        }
        Ok(())
    }

    fn judge_as_it_was_left(&mut self, config: &Config, tally: &mut Tally) -> Result<(), String> {
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
            // A mount writes to what it is given.
            if self.others_stand_in {
                let copy = Arc::new(CrashDisk::from_image(image.content()).without_history());
                let others = config.members.of(&copy).without(self.hit);
                self.judge(config, others, rules, k)
                    .map_err(|e| format!("without device {}, choice {choice}: {e}", self.hit))?;
                tally.recoveries += 1;
            }
            self.judge(config, config.members.of(&image), rules, k)
                .map_err(|e| format!("after the failure, choice {choice}: {e}"))?;
            tally.recoveries += 1;
        }
        Ok(())
    }

    fn judge(&mut self, config: &Config, drive: Drive, rules: Rules, k: usize) -> Result<(), String> {
        let clock: Arc<VirtualClock> = Arc::new(self.run.clock.fork());
        let fs = S::open(drive, clock, config.options()).map_err(|e| format!("mounting: {e}"))?;
        let found = walk(&fs, At::Live, None)?;
        let model = self.run.model()?;
        oracle::judge(model, rules, k, &found)?;
        let shed = fs.shed().map_err(|e| format!("what was shed: {e}"))?;
        for (info, log) in oracle::judge_checkpoints(model, rules, k, &fs.checkpoints())? {
            let past = walk(&fs, At::Past(info.cno), None).map_err(|e| format!("checkpoint {}: {e}", info.cno))?;
            oracle::judge_past(&info, log, &past, &shed)?;
        }
        Ok(())
    }
}
