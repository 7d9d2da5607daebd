//! Long work that commands ask for in steps: who begins anew takes over from who began before.

use super::service::{Service, plain, segment_blocks};
use crate::control::Answer;
use crate::error::Fail;
use crate::report;
use std::sync::PoisonError;

/// Bytes read for one answer at most.
const SCRUB_STEP_BYTES_MAX: u64 = 64 << 20;
/// Bytes moved for one answer at most.
const CLEAN_STEP_BYTES_MAX: u64 = 64 << 20;

/// What is under way, and which command asked for it.
pub(super) type Run<T> = Option<(u64, T)>;

/// What this command has under way.
fn of_run<'a, T>(current: &'a mut Run<T>, run: u64, command: &str) -> Result<&'a mut T, Fail> {
    match current {
        Some((of, work)) if *of == run => Ok(work),
        _ => Err(Fail::new(format!("another nenrin {command} of this volume began meanwhile, and does it instead"))),
    }
}

impl Service {
    pub(super) fn scrub(&self, begin: bool, run: u64, bytes: u64) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let mut current = self.scrub.lock().unwrap_or_else(PoisonError::into_inner);
        if begin {
            *current = Some((run, fs.scrub()));
        }
        let scrub = of_run(&mut current, run, "scrub")?;
        fs.scrub_step(scrub, bytes.min(SCRUB_STEP_BYTES_MAX)).map_err(plain)?;
        let data = report::scrub(scrub);
        if data.done {
            *current = None;
            if !data.has_losses {
                fs.damage_is_gone();
            }
            if data.copies_damaged > 0 || data.has_losses {
                let (damaged, mended, lost) = (data.copies_damaged, data.copies_mended, data.extents_damaged);
                self.log
                    .line(&format!("scrub: {damaged} copies damaged, {mended} mended, {lost} pieces of content lost"));
            }
        }
        Ok(Answer::of(data))
    }

    pub(super) fn clean(&self, begin: bool, run: u64, bytes: u64) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let mut current = self.clean.lock().unwrap_or_else(PoisonError::into_inner);
        if begin {
            *current = Some((run, fs.clean()));
        }
        let clean = of_run(&mut current, run, "clean")?;
        let blocks = bytes.min(CLEAN_STEP_BYTES_MAX).div_ceil(nenrin_format::BLOCK_BYTES as u64);
        fs.clean_step(clean, blocks).map_err(plain)?;
        let data = report::clean(clean, segment_blocks(&fs));
        if data.done {
            *current = None;
        }
        Ok(Answer::of(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_taken_over_is_told() {
        let mut current = Some((1, "first"));
        assert_eq!(of_run(&mut current, 1, "scrub").map(|w| *w).ok(), Some("first"));
        current = Some((2, "second"));
        let told = of_run(&mut current, 1, "scrub").unwrap_err().message;
        assert!(told.contains("another nenrin scrub") && of_run(&mut current, 2, "scrub").is_ok(), "{told}");
        current = None;
        assert!(of_run(&mut current, 2, "scrub").is_err());
    }
}
