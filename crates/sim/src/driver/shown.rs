//! One cut in eight is mounted read-only first: that shows what was promised, writes nothing, and what the mount that writes shows
//! is the same.

use super::state::State;
use super::{Cut, LOOK_CACHE_BYTES, Recorded, Tally, open};
use crate::hash;
use crate::members::Drive;
use crate::subject::Subject;
use nenrin_core::MountOptions;
use nenrin_device::{BlockDevice, CrashImage, Observed, Observer};
use std::sync::Arc;

/// Of so many cuts one.
const EVERY: u64 = 8;

impl Recorded {
    /// What a read-only mount of the image shows, where this cut has one.
    pub(super) fn show_only<S: Subject>(
        &self,
        cut: Cut,
        image: &Arc<CrashImage>,
        tally: &mut Tally,
    ) -> Result<Option<State>, String> {
        if !S::READS_ONLY || hash::of_words(&[cut.at as u64, cut.choice, 8]) % EVERY > 0 {
            return Ok(None);
        }
        let (drive, observers) = observed(self.config.members.of(image).rotated(cut.at));
        let options = MountOptions { read_only: true, cache_bytes: LOOK_CACHE_BYTES, ..self.config.options() };
        let only = |e: String| format!("read-only: {e}");
        let fs = open::<S>(options, &self.clock, drive).map_err(only)?;
        tally.shown_only += 1;
        let state = State::of(&fs).map_err(only)?;
        state.judge(self.era(cut.at)?, self.rules(cut.choice), cut.at).map_err(only)?;
        fs.close().map_err(|e| format!("read-only: close: {e}"))?;
        drop(fs);
        for (n, observer) in observers.iter().enumerate() {
            let seen = observer.counters();
            if seen.writes + seen.discards + seen.zeros > 0 {
                return Err(format!("a read-only mount has written to device {}: {seen:?}", n + 1));
            }
        }
        Ok(Some(state))
    }
}

/// The same devices, and what has been asked of each.
fn observed(mut drive: Drive) -> (Drive, Vec<Observer>) {
    let mut observers = Vec::new();
    for member in drive.members.iter_mut().chain(&mut drive.spare) {
        let device = Observed::new(Arc::clone(member));
        observers.push(device.observer());
        *member = Arc::new(device) as Arc<dyn BlockDevice>;
    }
    (drive, observers)
}
