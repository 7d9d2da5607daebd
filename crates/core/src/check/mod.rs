//! Verifying a volume without changing it: everything that promises are built
//! on, and with `data` every block of content.
//!
//! The volume is recovered in memory as a mount would, and nothing is written.
//! What a root reaches is verified as it lies on the device; what relates items
//! to each other is verified in the state after roll-forward.
//!
//! Invariants
//! 1. Nothing is written.
//! 2. No image makes it panic, loop or recurse beyond the levels of a tree.
//! 3. Memory is bounded: see `usage`, `names`, `data` and `report` for
//!    the parts that grow, and how far.

mod content;
mod data;
mod findings;
mod history;
mod live;
mod log;
mod names;
mod nodes;
mod parity;
mod paths;
mod report;
mod roots;
mod space;
#[cfg(test)]
mod tests;
mod usage;

pub use findings::{Severity, What};
pub(crate) use paths::{of_inode as path_of, of_name, shortened};
pub use report::{CheckCounts, CheckReport, FINDINGS_MAX, Finding, OfKind, Progress, Step};

use crate::Result;
use crate::breaks::{Break, broken};
use crate::fs::Opened;
use crate::per_segment::PerSegment;
use nenrin_device::BlockDevice;
use nenrin_format::SegmentNo;
use report::Log;
use std::sync::Arc;
use usage::Usage;

/// What to check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Read all content too and verify it, and compare the parity of rows where there is any.
    pub data: bool,
}

/// Checks a volume that nobody has mounted, without writing to it. `progress`
/// is called now and then.
///
/// # Errors
/// [`Error::Open`] when it is no nenrin volume, or one this program cannot
/// read; device errors while the index is read. Damage is no error: the report
/// tells it.
pub fn check(
    devices: &[Arc<dyn BlockDevice>],
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<CheckReport> {
    let mut log = Log::new(progress);
    let Some(entered) = roots::enter(devices, &mut log)? else {
        return Ok(log.report);
    };
    if let Some(older) = &entered.older {
        log::check(&entered, older, &mut log);
    }
    check_entered(&entered, options.data, &mut log)?;
    if options.data {
        parity::check(&entered, &mut log)?;
    }
    Ok(log.report)
}

/// Checks a state that is only in memory as if it had been written.
pub(crate) fn check_planned(opened: Opened, progress: &mut dyn FnMut(Progress)) -> Result<(Opened, CheckReport)> {
    let mut log = Log::new(progress);
    let mut copies = PerSegment::of(opened.storage.numbers());
    for (i, (no, s)) in opened.state.segments.iter().enumerate() {
        let at = if broken(Break::CountsInOrder) { SegmentNo(i as u64) } else { no };
        copies.change(at, |count| *count = s.nodes);
    }
    let audit = nodes::Audit { copies, ..nodes::Audit::default() };
    let mut superblock = opened.superblock.clone();
    superblock.chain = (opened.chain.segment, opened.chain.block);
    superblock.chain_seq = opened.chain.seq;
    let entered = roots::Entered { opened, audit, superblock, older: None };
    check_entered(&entered, true, &mut log)?;
    Ok((entered.opened, log.report))
}

fn check_entered(entered: &roots::Entered, data: bool, log: &mut Log<'_>) -> Result<()> {
    let state = &entered.opened.state;
    log.report.recovery = Some(entered.opened.report.clone());
    log.report.scrubbed = entered.superblock.scrubbed;
    let mut usage = Usage::new(&entered.opened.storage);
    log.report.counts.segments = state.segments.count();
    live::check(entered, &mut usage, log)?;
    history::check(entered, &mut usage, log)?;
    space::check(entered, log)?;
    history::check_checkpoints(state, log);
    usage::check_chain(entered, log);
    usage.other_windows(entered, log)?;
    log.report.counts.live_blocks = usage.live_blocks;
    log.report.counts.history_blocks = usage.history_blocks;
    if entered.audit.lost == 0 {
        usage.compare(entered, log);
    } else {
        let text = format!("{} nodes cannot be used", entered.audit.lost);
        log.add(report::Finding::new(What::ChecksSkipped, text));
    }
    if data {
        data::check(entered, log)?;
    }
    Ok(())
}
