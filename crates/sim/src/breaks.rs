//! The hunt for deliberate breaks: for each thing that a promise rests on, the
//! kind of test that defends it is run with that thing taken away, and must
//! fail. A test that never fails proves nothing.

use crate::cli::Core;
use crate::config::Config;
use crate::driver::{Failure, Plan, Tally, hurt_cuts, record, rot_cuts, unread_cuts};
use crate::fault::{FaultPlan, run_with_fault};
use crate::flip;
use crate::lie::{Kind, Lie, run_with_lie};
use crate::life::{self, Life};
use crate::members::{Joins, Members};
use crate::mend::Damage;
use crate::scenario::Scenario;
use crate::workload::Profile;
use nenrin_core::breaks::{self, Break};
use nenrin_core::{Barrier, Order};
use nenrin_device::OpKind;
use nenrin_format::superblock::Profile as Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a break is hunted.
#[derive(Clone, Copy, Debug)]
enum Hunt {
    /// Power cuts in random workloads of a kind.
    Cuts(Profile),
    /// Power cuts in a named scenario under order=strict, with other clients.
    Strict(Scenario),
    /// Random workloads of a kind, without a cut.
    Calls(Profile),
    /// Power cuts in a named scenario.
    Scenario(Scenario),
    /// Requests of this kind that fail.
    Faults(OpKind),
    /// Bits that flip.
    Flips,
    /// Writes that are lost, or go elsewhere.
    Lies,
    /// Writes that go onto the one before.
    Astray,
    /// Reads that come back with a flipped bit.
    Reads,
    /// Power cuts under barrier=checkpoint.
    Barrier,
    /// Random workloads through a kernel that caches writes, without a cut.
    PageCache,
    /// Power cuts after which what was being written cannot be read.
    Unread,
    /// Power cuts after which a request of the mount that recovers fails.
    Hurt,
    /// Power cuts after which a bit is wrong in what was durable before.
    Rot,
    /// Power cuts in random workloads through a kernel that caches writes.
    CachedCuts,
    /// Something over several lives of a volume.
    Life(Life),
    /// Cuts of [`Life::Forget`] where a sync does not flush.
    ForgetUnflushed,
    /// Power cuts in random workloads on several devices, and the loss of one.
    Devices(Members),
}

/// A break, what it breaks, and how that is noticed.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    what: Break,
    /// The promises that rest on it.
    pub promises: &'static str,
    hunt: Hunt,
}

/// How a break was noticed.
#[derive(Clone, Debug)]
pub struct Noticed {
    /// Crash images, flips or runs with a fault until then.
    pub images: u64,
    /// Seeds until then, of [`SEEDS_MAX`] at most.
    pub seeds: u64,
    /// What was said.
    pub what: String,
}

/// Seeds after which a hunt gives up.
pub const SEEDS_MAX: u64 = 400;

const fn trial(what: Break, promises: &'static str, hunt: Hunt) -> Trial {
    Trial { what, promises, hunt }
}

const fn joining(count: u8, layout: Layout, joins: Joins) -> Members {
    Members { joins: Some(joins), ..Members::new(count, layout) }
}

/// Three devices that are slow now and then.
const SLOW: Members = Members { slow: true, ..Members::new(3, Layout::Stripe) };

/// Three devices that come and go.
const CHANGING: Members = Members { changes: true, ..Members::new(3, Layout::Stripe) };

/// Every break. Those of numbers on the device belong to the tests of hostile bytes.
pub const TRIALS: [Trial; 111] = [
    trial(Break::NoFlush, "P1", Hunt::Cuts(Profile::General)),
    trial(Break::UncoveredLeft, "P1", Hunt::Cuts(Profile::Content)),
    trial(Break::NamedLeft, "P1", Hunt::Cuts(Profile::Content)),
    trial(Break::AckEarly, "P1", Hunt::Cuts(Profile::AppendFsync)),
    trial(Break::SharedTooEarly, "P1", Hunt::Scenario(Scenario::Clients)),
    trial(Break::EndsOutOfTurn, "P1", Hunt::Cuts(Profile::Content)),
    trial(Break::AskedLeftOut, "P1", Hunt::Scenario(Scenario::TwoClients)),
    trial(Break::ReadTooEarly, "P3", Hunt::Cuts(Profile::Content)),
    trial(Break::DataNotAwaited, "P1", Hunt::Cuts(Profile::Content)),
    trial(Break::HeldForgotten, "P1", Hunt::Cuts(Profile::Content)),
    trial(Break::WritersUntold, "P8", Hunt::Scenario(Scenario::WritersBesideSyncs)),
    trial(Break::NamesOutOfOrder, "P2", Hunt::Cuts(Profile::Names)),
    trial(Break::PastHole, "P2", Hunt::Barrier),
    trial(Break::HalfLogical, "P2", Hunt::Cuts(Profile::Savers)),
    trial(Break::TornPayload, "P2", Hunt::Cuts(Profile::Content)),
    trial(Break::ForgetEpoch, "P2", Hunt::Life(Life::LateWrite)),
    trial(Break::RootBeforeFlush, "P2", Hunt::Cuts(Profile::General)),
    trial(Break::OneSlotAtClose, "P2", Hunt::Cuts(Profile::General)),
    trial(Break::RootsUnflushed, "P2", Hunt::Barrier),
    trial(Break::ReadOnlyBehind, "P1", Hunt::Cuts(Profile::General)),
    trial(Break::ReadOnlyClaims, "P2", Hunt::Cuts(Profile::General)),
    trial(Break::KernelTimesDropped, "P1", Hunt::PageCache),
    trial(Break::NoHold, "P3", Hunt::Scenario(Scenario::TruncateBesideFsync)),
    trial(Break::HoldNeverEnds, "P1", Hunt::Scenario(Scenario::TruncateBesideFsync)),
    trial(Break::ClosedNotOwed, "P3", Hunt::Scenario(Scenario::SavedAgain)),
    trial(Break::GrantedAhead, "P3", Hunt::Cuts(Profile::Savers)),
    trial(Break::TimesAhead, "P3", Hunt::CachedCuts),
    trial(Break::NoCarry, "P3", Hunt::Scenario(Scenario::RenameNotClosed)),
    trial(Break::StaleTail, "P3", Hunt::Cuts(Profile::Content)),
    trial(Break::ReuseEarly, "P3", Hunt::Cuts(Profile::Fill)),
    trial(Break::MoveBlind, "P3", Hunt::Scenario(Scenario::OrderBesideSyncs)),
    trial(Break::VictimReused, "P1", Hunt::Cuts(Profile::Clean)),
    trial(Break::OwnersForgotten, "P3", Hunt::Cuts(Profile::Copies)),
    trial(Break::PastNotShared, "P3", Hunt::Cuts(Profile::Past)),
    trial(Break::StrictForgets, "P2", Hunt::Strict(Scenario::Waiting)),
    trial(Break::ChangedWhileSettling, "P3", Hunt::Scenario(Scenario::EmptiedInSync)),
    trial(Break::CopyNotHeld, "P3", Hunt::Scenario(Scenario::ReflinkHeld)),
    trial(Break::UnreadBeatLeft, "P2", Hunt::Unread),
    trial(Break::UnreadIsEnd, "P1", Hunt::Hurt),
    trial(Break::UnreadIsMissing, "P1", Hunt::Hurt),
    trial(Break::NoVerify, "P4", Hunt::Rot),
    trial(Break::OneCopy, "P4", Hunt::Rot),
    trial(Break::DamageIsEnd, "P4", Hunt::Rot),
    trial(Break::UpperHalfLost, "P2", Hunt::Cuts(Profile::Wide)),
    trial(Break::NoVerify, "P4", Hunt::Flips),
    trial(Break::UnreadableIsZeros, "P4", Hunt::Faults(OpKind::Read)),
    trial(Break::OneCopy, "P4", Hunt::Flips),
    trial(Break::NoVerify, "P4", Hunt::Reads),
    trial(Break::OneCopy, "P4", Hunt::Reads),
    trial(Break::DamageIsEnd, "P4", Hunt::Flips),
    trial(Break::DamageIsEnd, "P4", Hunt::Lies),
    trial(Break::AstrayUnread, "P4", Hunt::Astray),
    trial(Break::WentBackUnseen, "P4", Hunt::Life(Life::LostRoot)),
    trial(Break::RepairOverOld, "P4", Hunt::Life(Life::Repair(Damage::Leaf))),
    trial(Break::FailureForgotten, "P5", Hunt::Faults(OpKind::Write)),
    trial(Break::FlushRetried, "P5", Hunt::Faults(OpKind::Flush)),
    trial(Break::NumbersAnew, "P6", Hunt::Cuts(Profile::Past)),
    trial(Break::ThinnedTooMuch, "P6", Hunt::Calls(Profile::Past)),
    trial(Break::DeletedBesides, "P6", Hunt::Calls(Profile::Past)),
    trial(Break::HeldThinned, "P6", Hunt::Calls(Profile::Past)),
    trial(Break::ShedForNothing, "P6", Hunt::Calls(Profile::Past)),
    trial(Break::HistoryFreed, "P6", Hunt::Cuts(Profile::Past)),
    trial(Break::AnchorIgnored, "P6", Hunt::Cuts(Profile::Keep)),
    trial(Break::LateNameIgnored, "P6", Hunt::Cuts(Profile::Keep)),
    trial(Break::LateNameActsBack, "P6", Hunt::Cuts(Profile::Keep)),
    trial(Break::PartSeemsWhole, "P6", Hunt::Cuts(Profile::Keep)),
    trial(Break::PastUnnamed, "P6", Hunt::Cuts(Profile::Past)),
    trial(Break::LandmarkUnseen, "P6", Hunt::Cuts(Profile::Past)),
    trial(Break::LandmarkIsAll, "P6", Hunt::Cuts(Profile::Past)),
    trial(Break::SnapshotsShed, "P6", Hunt::Cuts(Profile::Fill)),
    trial(Break::SharedStatesUntold, "P6", Hunt::Cuts(Profile::Past)),
    trial(Break::MergedUnseen, "P6", Hunt::Cuts(Profile::Past)),
    trial(Break::MergeLoses, "P6", Hunt::Cuts(Profile::Past)),
    trial(Break::RuleNotSynced, "P1", Hunt::Cuts(Profile::Past)),
    trial(Break::DeletedUnsynced, "P1", Hunt::Cuts(Profile::Past)),
    trial(Break::DeletedInHalves, "P6", Hunt::Cuts(Profile::Past)),
    trial(Break::PagesWithoutRoom, "P7", Hunt::Calls(Profile::Fill)),
    trial(Break::RemovalsWait, "P7", Hunt::Calls(Profile::Fill)),
    trial(Break::HoldsOutlast, "P7", Hunt::Scenario(Scenario::EmptiedWhenFull)),
    trial(Break::NoReserve, "P7", Hunt::Cuts(Profile::Fill)),
    trial(Break::MirrorHalf, "P1", Hunt::Devices(Members::new(2, Layout::Mirror))),
    trial(Break::FlushHalf, "P1", Hunt::Devices(Members::new(2, Layout::Stripe))),
    trial(Break::FlushHalf, "P1", Hunt::Devices(Members::new(2, Layout::Mirror))),
    trial(Break::PastNeedsAll, "P6", Hunt::Devices(Members::new(2, Layout::Mirror))),
    trial(Break::CopiesUnequal, "P1", Hunt::Devices(Members::new(2, Layout::Mirror))),
    trial(Break::ParityUnwritten, "P1", Hunt::Devices(Members::new(3, Layout::Parity))),
    trial(Break::RowsUncopied, "P1", Hunt::Devices(Members::new(3, Layout::Parity))),
    trial(Break::ParityInPlace, "P1", Hunt::Devices(Members::new(3, Layout::Parity))),
    trial(Break::RowsUnsettled, "P1", Hunt::Devices(Members::new(3, Layout::Parity))),
    trial(Break::JoinHalf, "P1", Hunt::Devices(joining(2, Layout::Mirror, Joins::Back(1)))),
    trial(Break::JoinDeaf, "P1", Hunt::Devices(joining(2, Layout::Mirror, Joins::Back(1)))),
    trial(Break::WindowIgnored, "P1", Hunt::Devices(joining(3, Layout::Mirror, Joins::Back(1)))),
    trial(Break::JoinUnflushed, "P1", Hunt::Devices(joining(2, Layout::Mirror, Joins::Back(0)))),
    trial(Break::JoinUnflushed, "P1", Hunt::Devices(joining(2, Layout::Stripe, Joins::Takes(0)))),
    trial(Break::UnflushedBelieved, "P1", Hunt::Faults(OpKind::Flush)),
    trial(Break::MmpUnwatched, "P1", Hunt::Life(Life::Hosts)),
    trial(Break::MmpDeaf, "P1", Hunt::Life(Life::Hosts)),
    trial(Break::MmpLate, "P1", Hunt::Life(Life::Hosts)),
    trial(Break::OldEndedEarly, "P1", Hunt::Devices(joining(1, Layout::Single, Joins::Takes(0)))),
    trial(Break::LeftOutUnseen, "P1", Hunt::Devices(SLOW)),
    trial(Break::BandCutEarly, "P1", Hunt::Devices(CHANGING)),
    trial(Break::BandUsedEarly, "P1", Hunt::Devices(CHANGING)),
    trial(Break::RemovedEarly, "P1", Hunt::Devices(CHANGING)),
    trial(Break::DevicesHeld, "P7", Hunt::Devices(CHANGING)),
    trial(Break::PromisesTaken, "P7", Hunt::Scenario(Scenario::Reserve)),
    trial(Break::ForgetKeepsNames, "P6", Hunt::Life(Life::Forget)),
    trial(Break::ForgetDropsSnapshots, "P6", Hunt::Life(Life::Forget)),
    trial(Break::ForgetSkipsFree, "P6", Hunt::Life(Life::Forget)),
    trial(Break::ForgetSkipsTails, "P6", Hunt::Life(Life::Forget)),
    trial(Break::ForgetNotDurable, "P6", Hunt::ForgetUnflushed),
    trial(Break::ForgetNotResumed, "P6", Hunt::Life(Life::Forget)),
];

impl Noticed {
    /// More than a tenth of the seeds were needed: any change of what a seed means may let the break go unnoticed.
    #[must_use]
    pub const fn was_close(&self) -> bool {
        self.seeds > SEEDS_MAX / 10
    }
}

impl Trial {
    /// The break's name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{:?}", self.what)
    }

    /// Hunts the break; first that nothing is found without it, in as many images.
    ///
    /// # Errors
    /// When it goes unnoticed, or something is found without it.
    pub fn run(&self) -> Result<Noticed, String> {
        let mut tally = Tally::default();
        let broken = breaks::with(self.what, || self.hunt(SEEDS_MAX, &mut tally));
        let Some((seed, what)) = broken else {
            return Err(format!("went unnoticed in {} images of {SEEDS_MAX} seeds", tally.images));
        };
        if let Some((seed, what)) = self.hunt(seed + 1, &mut Tally::default()) {
            return Err(format!("seed {seed} fails without it: {what}"));
        }
        Ok(Noticed { images: tally.images, seeds: seed + 1, what })
    }

    /// The first seed below `seeds` that notices something, and what.
    fn hunt(&self, seeds: u64, tally: &mut Tally) -> Option<(u64, String)> {
        for seed in 0..seeds {
            let result = catch_unwind(AssertUnwindSafe(|| self.seed(seed, tally)));
            let what = match result {
                Ok(Ok(())) => continue,
                Ok(Err(failure)) => failure.what,
                Err(_) => "a panic".to_owned(),
            };
            return Some((seed, what.lines().next().unwrap_or_default().chars().take(110).collect()));
        }
        None
    }

    fn seed(&self, seed: u64, tally: &mut Tally) -> Result<(), Box<Failure>> {
        let base = Config { barrier: Barrier::Sync, order: Order::Relaxed, ..Config::of_seed(seed) };
        let base = Config { steps: base.steps.min(200), writeback: false, ..base };
        let plan = Plan { images_max: 400, ..Plan::default() };
        match self.hunt {
            Hunt::Cuts(profile) => {
                let steps = if matches!(profile, Profile::Fill | Profile::Clean) { 300 } else { base.steps };
                let config = Config { profile: Some(profile), steps, ..base }.sized();
                record::<Core>(&config, false)?.cut_all::<Core>(&plan, tally)
            }
            Hunt::Devices(members) => {
                let plan = Plan { deep_every: 5, second_cuts: 12, ..plan };
                record::<Core>(&base.on(members), false)?.cut_all::<Core>(&plan, tally)
            }
            Hunt::Strict(scenario) => {
                let config =
                    Config { scenario: Some(scenario), order: Order::Strict, clients: true, remounts: false, ..base };
                record::<Core>(&config, false)?.cut_all::<Core>(&plan, tally)
            }
            Hunt::Calls(profile) => {
                tally.images += 1;
                record::<Core>(&Config { profile: Some(profile), steps: 600, ..base }, false).map(drop)
            }
            Hunt::Scenario(scenario) => {
                let config = Config { scenario: Some(scenario), remounts: false, ..base };
                record::<Core>(&config, false)?.cut_all::<Core>(&plan, tally)
            }
            Hunt::Faults(kind) => {
                let number = 1 + seed % 40;
                let fault = FaultPlan { kind, number, for_good: false };
                tally.images += 1;
                run_with_fault::<Core>(&base, fault, tally).map(drop)
            }
            Hunt::Flips => flip::flip_all::<Core>(&base, tally),
            Hunt::Lies => {
                let kind = if seed % 2 == 0 { Kind::Lost } else { Kind::Misdirected };
                tally.images += 1;
                run_with_lie::<Core>(&base, Lie { kind, number: 1 + seed % 40 }, tally).map(drop)
            }
            Hunt::Astray => {
                for number in 2..42 {
                    tally.images += 1;
                    run_with_lie::<Core>(&base, Lie { kind: Kind::Astray, number }, tally)?;
                }
                Ok(())
            }
            Hunt::Life(life) => {
                if !matches!(life, Life::Repair(_) | Life::Forget) {
                    tally.images += 1;
                }
                life::carry_out(&life.config(seed), None, tally)
            }
            Hunt::ForgetUnflushed => {
                let config = Config { barrier: Barrier::Checkpoint, ..Life::Forget.config(seed) };
                life::carry_out(&config, None, tally)
            }
            Hunt::Barrier => {
                let config = Config { barrier: Barrier::Checkpoint, ..base };
                record::<Core>(&config, false)?.cut_all::<Core>(&plan, tally)
            }
            Hunt::PageCache => {
                tally.images += 1;
                record::<Core>(&Config { writeback: true, ..base }, false).map(drop)
            }
            Hunt::Hurt => hurt_cuts::<Core>(&base, None, tally),
            Hunt::Rot => rot_cuts::<Core>(&base, None, tally),
            Hunt::Unread => unread_cuts::<Core>(&base, None, tally),
            Hunt::CachedCuts => {
                record::<Core>(&Config { writeback: true, ..base }, false)?.cut_all::<Core>(&plan, tally)
            }
            Hunt::Reads => {
                let kind = if seed % 2 == 0 { Kind::Flipped } else { Kind::Stuck };
                for number in 1..40 {
                    tally.images += 1;
                    run_with_lie::<Core>(&base, Lie { kind, number }, tally)?;
                }
                Ok(())
            }
        }
    }
}
