//! Power cuts after which the device fails while the mount recovers: a read once or for good, a write, a flush. The mount says so
//! and shows nothing, or shows what it may, or reports damage; then the power fails again, in the middle of whatever it wrote, and
//! a device fails once more. A mount without a fault finds all that was acknowledged: neither of those that were hurt took
//! what it could not read for the end. Where others have what is on a device, nobody has to know.

use super::{Cut, Failure, Recorded, Tally, choices, failure, guarded_at, open, record};
use crate::config::Config;
use crate::fault::names_the_device;
use crate::flip::is_report;
use crate::hash;
use crate::members::Drive;
use crate::oracle::{self, Binds, Rules};
use crate::prng::Prng;
use crate::subject::Subject;
use crate::walk::walk;
use crate::wrong::alone;
use nenrin_core::{At, Barrier};
use nenrin_device::{CrashChoice, CrashDisk, Fault, Faults, Faulty, HistoryCursor, Image, OpKind};
use std::sync::Arc;

/// Cuts of a workload, and faults tried at each.
const CUTS: usize = 12;
const TRIES: u64 = 6;
/// Mounts with a fault, one after the other.
const ROUNDS: u64 = 2;

/// What came of a mount with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// The mount made fewer requests of the kind.
    NotReached,
    /// No mount.
    Refused,
    /// All that was acknowledged is shown.
    Shown,
    /// Something could not be read, and said so.
    Unread,
    /// Damage is reported.
    Damage,
}

/// Runs the workload of `config` and cuts it in some places, or in one, so that the mounts afterwards meet faults.
///
/// # Errors
/// The first cut after which something is missing or wrong.
pub fn hurt_cuts<S: Subject>(config: &Config, only: Option<Cut>, tally: &mut Tally) -> Result<(), Box<Failure>> {
    let config = &alone(config);
    let barrier = if config.barrier == Barrier::None { Barrier::Sync } else { config.barrier };
    let recorded = record::<S>(&Config { barrier, ..config.clone() }, false)?;
    tally.workloads += 1;
    recorded.some_cuts(only, (CUTS, 42), |cut, cursor| recorded.cut_hurt::<S>(cut, cursor, tally))
}

/// A fault for a mount.
fn drawn_fault(rng: &mut Prng) -> (OpKind, Fault) {
    let fail = |kind, from| (kind, Fault::Fail { kind, from, times: 1 });
    match rng.below(8) {
        0 => fail(OpKind::Write, 1 + rng.below(12)),
        1 => fail(OpKind::Flush, 1 + rng.below(5)),
        n => {
            let (number, block, for_good) = (1 + rng.below(30), rng.below(64), n % 2 == 0);
            (OpKind::Read, Fault::FailRead { number, block, for_good })
        }
    }
}

impl Recorded {
    fn cut_hurt<S: Subject>(
        &self,
        cut: Cut,
        cursor: &mut HistoryCursor<'_>,
        tally: &mut Tally,
    ) -> Result<(), Box<Failure>> {
        let image = cursor.image(&CrashChoice::from_seed(cut.choice));
        for n in 0..TRIES {
            let salt = hash::of_words(&[cut.at as u64, cut.choice, n]);
            tally.count_image(hash::of_words(&[image.content_hash(), salt]), "a request of the next mount fails");
            let judged = guarded_at(&self.config, &[cut], || {
                let fail = |e| failure(&self.config, &[cut], e, String::new());
                self.judge_hurt::<S>(cut, image.content(), salt, tally).map_err(fail)
            });
            judged.map_err(|mut f| {
                f.replay += " --hurt";
                f
            })?;
        }
        Ok(())
    }

    /// Mounts that are hurt and cut, one after the other, and one that is not.
    fn judge_hurt<S: Subject>(&self, cut: Cut, mut image: Image, salt: u64, tally: &mut Tally) -> Result<(), String> {
        let mut rng = Prng::stream(self.config.seed ^ salt, 43);
        let mut told = Vec::new();
        // Who has missed something is needed by nobody: no other may fail then.
        let hit = rng.index(usize::from(self.config.members.count));
        for _ in 0..ROUNDS {
            let (kind, fault) = drawn_fault(&mut rng);
            let about = format!("{fault:?}");
            let (came, left) = self
                .mount_hurt::<S>(cut, image, (fault, hit), &mut rng, tally)
                .map_err(|e| format!("a mount in which {about}, after {told:?}: {e}"))?;
            *tally.faults.entry(format!("{kind:?} of a mount fails: {came:?}")).or_default() += 1;
            told.push((about, came));
            image = left;
        }
        let disk = Arc::new(CrashDisk::from_image(image).without_history());
        let after = |e: String| format!("a mount without a fault, after {told:?}: {e}");
        let fs = open::<S>(self.config.options(), &self.clock, self.config.members.of(&disk)).map_err(after)?;
        tally.recoveries += 1;
        self.look_into(&fs, cut, self.era(cut.at)?, tally).map(drop).map_err(after)
    }

    /// One of the devices meets a fault while they are mounted; what a power cut in the middle of that leaves.
    fn mount_hurt<S: Subject>(
        &self,
        cut: Cut,
        image: Image,
        (fault, hit): (Fault, usize),
        rng: &mut Prng,
        tally: &mut Tally,
    ) -> Result<(Came, Image), String> {
        let disk = Arc::new(CrashDisk::from_image(image));
        let mut drive = self.config.members.of(&disk);
        let faults = one_faulty(&mut drive, hit);
        faults.inject(fault);
        let came = match open::<S>(self.config.options(), &self.clock, drive) {
            Ok(fs) => self.judge_shown(&fs, cut, &faults, tally)?,
            Err(e) if faults.fired() == 0 => return Err(e),
            // What nobody was told of may be whole only with the device that fails now; the next mount goes without it.
            Err(e) if self.config.members.bears_a_loss() && !is_report(&e) => return Err(e),
            Err(e) if says_why(&e) => Came::Refused,
            Err(e) => return Err(format!("that is not what is said: {e}")),
        };
        tally.recoveries += 1;
        let history = disk.history().ok_or("no history was kept")?;
        let mut cursor = history.cursor();
        cursor.advance_to(rng.index(history.cut_points() + 1));
        let drawn = choices(&self.config, rng.below(1 << 40), 6, cursor.unflushed());
        let choice = rng.pick(&drawn).copied().unwrap_or(CrashChoice::SEED_APPLIED);
        Ok((came, cursor.image(&CrashChoice::from_seed(choice)).content()))
    }

    /// What a mount shows that has met a fault, or will.
    fn judge_shown<S: Subject>(&self, fs: &S, cut: Cut, faults: &Faults, tally: &mut Tally) -> Result<Came, String> {
        let (model, alone) = (self.era(cut.at)?, !self.config.members.bears_a_loss());
        if let Some(damage) = fs.damage().filter(|_| alone && faults.fired() > 0) {
            tally.verdicts_of_wrong(fs);
            let loosely = Rules { order: self.config.order, binds: Binds::Nothing };
            let shown = walk(fs, At::Live, None).and_then(|found| oracle::judge(model, loosely, cut.at, &found));
            return match shown {
                Err(e) if !names_the_device(&e) => Err(format!("where {damage}: {e}")),
                _ => Ok(Came::Damage),
            };
        }
        match self.look_into(fs, cut, model, tally) {
            Ok(_) if faults.fired() == 0 => Ok(Came::NotReached),
            Ok(_) => Ok(Came::Shown),
            Err(e) if alone && faults.fired() > 0 && names_the_device(&e) => Ok(Came::Unread),
            Err(e) => Err(e),
        }
    }
}

/// Whether a mount that is refused says that something of the device is to blame.
fn says_why(e: &str) -> bool {
    names_the_device(e) || is_report(e) || e.contains("look for errors of the device")
}

/// Makes one of the devices such that it can meet faults.
fn one_faulty(drive: &mut Drive, hit: usize) -> Faults {
    let faulty = Faulty::new(Arc::clone(&drive.members[hit]));
    let faults = faulty.faults();
    drive.members[hit] = Arc::new(faulty);
    faults
}
