//! Devices that are lost with the cut: what is left alone keeps what was promised.

use super::state::State;
use super::{Cut, Recorded, Tally, open};
use crate::hash;
use crate::members::{Drive, Joins};
use crate::model::Model;
use crate::subject::Subject;
use nenrin_device::{CrashDisk, CrashImage};
use std::sync::Arc;

impl Recorded {
    /// The member that a cut takes along.
    pub(super) fn drawn_member(&self, cut: Cut) -> usize {
        hash::of_words(&[cut.at as u64, cut.choice, 5]) as usize % usize::from(self.config.members.count)
    }

    /// What else may be gone after the cut: what is left alone keeps what was promised. What each of these shows.
    pub(super) fn judge_losses<S: Subject>(
        &self,
        cut: Cut,
        image: &Arc<CrashImage>,
        tally: &mut Tally,
    ) -> Result<Vec<(String, State)>, String> {
        let (model, members) = (self.era(cut.at)?, self.config.members);
        let drawn = self.drawn_member(cut);
        let mut shown = Vec::new();
        let Some(index) = members.joins.and_then(Joins::replaced) else {
            let all = self.whole_from.is_some_and(|from| from <= cut.at) && members.dies.is_none();
            // One misses something: no other can be lost.
            let gone = members.missing().filter(|_| !all).unwrap_or(drawn);
            shown.extend(self.judge_without::<S>(cut, gone, model, image, tally)?);
            return Ok(shown);
        };
        let mut judge = |what: &str, which: &dyn Fn(Drive) -> Drive| {
            shown.push(self.judge_with::<S>(cut, what, model, image, which, tally)?);
            Ok::<(), String>(())
        };
        if !members.of(image).is_spare_used() {
            judge("without the new device", &Drive::without_spare)?;
            let gone = members.missing().unwrap_or(drawn);
            shown.extend(self.judge_without::<S>(cut, gone, model, image, tally)?);
            return Ok(shown);
        }
        judge("without the replaced device", &|d| d.without(index))?;
        if members.bears_a_loss() && drawn != index {
            let both = |d: Drive| d.without(index.max(drawn)).without(index.min(drawn));
            judge("without the replaced and another device", &both)?;
        }
        // Who does not have the new one is refused, or has all of it on the old ones.
        let copy = Arc::new(CrashDisk::from_image(image.content()).without_history());
        if open::<S>(self.config.options(), &self.clock, members.of(&copy).without_spare()).is_ok() {
            judge("with the replaced device", &Drive::without_spare)?;
        }
        Ok(shown)
    }

    /// The power cut takes a device with it: the others alone keep what was promised, and show this, where one may be lost.
    pub(super) fn judge_without<S: Subject>(
        &self,
        cut: Cut,
        gone: usize,
        model: &Model,
        image: &Arc<CrashImage>,
        tally: &mut Tally,
    ) -> Result<Option<(String, State)>, String> {
        if !self.config.members.bears_a_loss() {
            return Ok(None);
        }
        let what = format!("without device {}", gone + 1);
        self.judge_with::<S>(cut, &what, model, image, &|d| d.without(gone), tally).map(Some)
    }

    /// The same with the devices that `which` leaves.
    fn judge_with<S: Subject>(
        &self,
        cut: Cut,
        what: &str,
        model: &Model,
        image: &Arc<CrashImage>,
        which: &dyn Fn(Drive) -> Drive,
        tally: &mut Tally,
    ) -> Result<(String, State), String> {
        // Of its own: what happens to the image is seen by nobody else.
        let copy = Arc::new(CrashDisk::from_image(image.content()).without_history());
        let drive = which(self.config.members.of(&copy));
        let fs = open::<S>(self.config.options(), &self.clock, drive).map_err(|e| format!("{what}: {e}"))?;
        tally.recoveries += 1;
        let state = self.look_into(&fs, cut, model, tally).map_err(|e| format!("{what}: {e}"))?;
        Ok((what.to_owned(), state))
    }
}
