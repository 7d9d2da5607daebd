//! The copies of the log behind the older of the two roots that recovery may begin with.
//!
//! Invariants
//! 1. Only what was durable is looked at: of what follows a device may lack its copy, which the next mount writes.

use super::findings::What;
use super::report::{Finding, Log};
use super::roots::{Entered, wrong_copies};
use crate::breaks::{Break, broken};
use crate::recovery::{Walk, chain_of};
use nenrin_format::superblock::Superblock;

/// Looks at each copy of what holds the records. Where the log ends too early, that was said when the volume was opened.
pub fn check(entered: &Entered, older: &Superblock, log: &mut Log<'_>) {
    let storage = &entered.opened.storage;
    if !storage.others_stand_in() || broken(Break::OneCopyChecked) {
        return;
    }
    let (chain, until) = (chain_of(older), entered.opened.report.durable_seq);
    let (mut walk, mut ended) = (Walk::new(storage, &chain), chain.seq >= until);
    while !ended {
        let Ok(Some(f)) = walk.step() else { return };
        let (addr, blocks) = (f.header.addr, f.header.summary_blocks);
        for why in wrong_copies(storage, addr, blocks, f.crc) {
            log.add(Finding::new(What::LogCopyDamaged, format!("partial {}: {why}", f.header.seq)).at(addr));
        }
        ended = f.header.seq >= until;
    }
}
