//! Devices that are lost with the cut: what is left alone keeps what was promised.

use super::{Cut, Recorded, Tally, open};
use crate::hash;
use crate::members::{Drive, Joins};
use crate::model::Model;
use crate::oracle;
use crate::subject::Subject;
use crate::walk::walk;
use nenrin_core::At;
use nenrin_device::{CrashDisk, CrashImage};
use std::sync::Arc;

impl Recorded {
    /// The member that a cut takes along.
    pub(super) fn drawn_member(&self, cut: Cut) -> usize {
        hash::of_words(&[cut.at as u64, cut.choice, 5]) as usize % usize::from(self.config.members.count)
    }

    /// What else may be gone after the cut: what is left alone keeps what was promised.
    pub(super) fn judge_losses<S: Subject>(
        &self,
        cut: Cut,
        image: &Arc<CrashImage>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let (model, members) = (self.era(cut.at)?, self.config.members);
        let drawn = self.drawn_member(cut);
        let Some(index) = members.joins.and_then(Joins::replaced) else {
            let all = self.whole_from.is_some_and(|from| from <= cut.at) && members.dies.is_none();
            // One misses something: no other can be lost.
            let gone = members.missing().filter(|_| !all).unwrap_or(drawn);
            return self.judge_without::<S>(cut, gone, model, image, tally);
        };
        if !members.of(image).is_spare_used() {
            let gone = members.missing().unwrap_or(drawn);
            self.judge_with::<S>(cut, "without the new device", model, image, Drive::without_spare, tally)?;
            return self.judge_without::<S>(cut, gone, model, image, tally);
        }
        self.judge_with::<S>(cut, "without the replaced device", model, image, |d| d.without(index), tally)?;
        if members.bears_a_loss() && drawn != index {
            let both = |d: Drive| d.without(index.max(drawn)).without(index.min(drawn));
            self.judge_with::<S>(cut, "without the replaced and another device", model, image, both, tally)?;
        }
        // Who does not have the new one is refused, or has all of it on the old ones.
        let copy = Arc::new(CrashDisk::from_image(image.content()).without_history());
        match open::<S>(self.config.options(), &self.clock, members.of(&copy).without_spare()) {
            Ok(_) => self.judge_with::<S>(cut, "with the replaced device", model, image, Drive::without_spare, tally),
            Err(_) => Ok(()),
        }
    }

    /// The power cut takes a device with it: the others alone keep what was promised.
    pub(super) fn judge_without<S: Subject>(
        &self,
        cut: Cut,
        gone: usize,
        model: &Model,
        image: &Arc<CrashImage>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        if !self.config.members.bears_a_loss() {
            return Ok(());
        }
        let what = format!("without device {}", gone + 1);
        self.judge_with::<S>(cut, &what, model, image, |d| d.without(gone), tally)
    }

    /// The same with the devices that `which` leaves.
    fn judge_with<S: Subject>(
        &self,
        cut: Cut,
        what: &str,
        model: &Model,
        image: &Arc<CrashImage>,
        which: impl FnOnce(Drive) -> Drive,
        tally: &mut Tally,
    ) -> Result<(), String> {
        // Of its own: what happens to the image is seen by nobody else.
        let copy = Arc::new(CrashDisk::from_image(image.content()).without_history());
        let drive = which(self.config.members.of(&copy));
        let fs = open::<S>(self.config.options(), &self.clock, drive).map_err(|e| format!("{what}: {e}"))?;
        tally.recoveries += 1;
        let found = walk(&fs, At::Live, None);
        let judged = found.and_then(|found| oracle::judge(model, self.rules(cut.choice), cut.at, &found));
        judged.map(drop).map_err(|e| format!("{what}: {e}"))
    }
}
