//! The target for repairing: an image is changed, and repaired if it can be.
//! Whatever is on it, a plan writes nothing; a plan that is carried out leaves
//! a volume in which `check` finds nothing and a second repair has nothing to do.

use crate::guard::Guard;
use crate::image::watched;
use crate::volume::Steps;
use nenrin_core::check::{Finding, Severity};
use nenrin_core::{CheckOptions, RepairPlan, check};
use nenrin_device::{BlockDevice, CrashDisk, Image};
use std::sync::Arc;

/// Findings from here on are about bytes of content, which no repair brings back.
const OF_CONTENT: u16 = 700;

/// The target.
///
/// # Errors
/// What is wrong.
pub fn repair(case: &[u8]) -> Result<(), String> {
    watched(case, try_repair)
}

/// Plans a repair of an image, and carries it out.
///
/// # Errors
/// What is wrong.
pub fn try_repair(image: &Image) -> Result<(), String> {
    let guard = Arc::new(Guard::new(Arc::new(CrashDisk::from_image(image.clone()).without_history())));
    let device: Arc<dyn BlockDevice> = guard.clone();
    let wrong = |when: &str| guard.wrong().map_or(Ok(()), |e| Err(format!("{when}: {e}")));
    let clock = Arc::new(Steps::default());
    let planned = RepairPlan::new(std::slice::from_ref(&device), clock.as_ref(), &mut |_| {});
    wrong("planning")?;
    if guard.changes() > 0 {
        return Err("the plan of a repair wrote to the device".into());
    }
    // A refusal is an answer: it says what cannot be repaired.
    let Ok(plan) = planned else { return Ok(()) };
    if !plan.report().needed {
        return Ok(());
    }
    let told: Vec<String> = plan.report().losses.iter().take(4).map(ToString::to_string).collect();
    plan.carry_out(clock.clone()).map_err(|e| format!("the repair stopped: {e}; told were {told:?}"))?;
    wrong("repairing")?;
    let report = check(std::slice::from_ref(&device), &CheckOptions { data: true }, &mut |_| {});
    let report = report.map_err(|e| format!("what was repaired cannot be checked: {e}"))?;
    let bad = |f: &&Finding| f.what.severity() == Severity::Error && f.what.number() < OF_CONTENT;
    if let Some(f) = report.findings.iter().find(bad) {
        return Err(format!("what was repaired is not in order: {f}; told were {told:?}"));
    }
    let again = RepairPlan::new(std::slice::from_ref(&device), clock.as_ref(), &mut |_| {});
    let again = again.map_err(|e| format!("what was repaired cannot be planned again: {e}"))?;
    if again.report().needed {
        return Err(format!("a second repair is needed: {:?}", again.report()));
    }
    wrong("looking again")
}
