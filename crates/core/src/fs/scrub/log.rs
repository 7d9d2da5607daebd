//! The log behind the older of the two roots that recovery may begin with: until index nodes have what its records say, they are
//! nowhere else on the device.
//!
//! Invariants
//! 1. Only what was durable before it is looked at, so nothing that is just being written seems damaged.
//! 2. What is damaged there counts only if no root was written since the walk began: behind a newer one it may not be needed,
//!    and its place have been used again.

use super::{Fs, Scrub, ScrubFinding, Stage};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::log::chain::Chain;
use crate::recovery::{Found, Walk, chain_of};
use crate::storage::probe_storage;
use nenrin_format::superblock::Superblock;
use nenrin_format::{Addr, BLOCK_BYTES, Generation, Seq};

/// Partials looked at before others get their turn.
const PARTIALS_AT_ONCE: usize = 256;
/// Times that it is begun anew, since roots were written meanwhile.
const BEGUN_MAX: u32 = 4;

/// How far a walk over the log has come.
pub(super) struct Walked {
    at: Chain,
    /// This was durable when it began.
    until: Seq,
    /// The newest root was this one then.
    generation: Generation,
    /// Copies that were damaged so far, and the first of them.
    damaged: u64,
    first: Option<Addr>,
    /// Something of it is in no copy.
    is_missing: bool,
    begun: u32,
}

impl Fs {
    /// Verifies some of the log, in all copies.
    ///
    /// # Errors
    /// None for what cannot be read.
    pub(super) fn scrub_log(&self, scrub: &mut Scrub, walked: Option<Walked>) -> Result<()> {
        let walked = walked.or_else(|| self.walk_the_log(1)).filter(|_| !broken(Break::LogUnscrubbed));
        let Some(mut walked) = walked else {
            scrub.next_stage();
            return Ok(());
        };
        let mut walk = Walk::new(&self.storage, &walked.at);
        let mut ended = walked.at.seq >= walked.until;
        for _ in 0..PARTIALS_AT_ONCE {
            if ended {
                break;
            }
            match walk.step() {
                Ok(Some(f)) => {
                    scrub.bytes += u64::from(f.header.total_blocks()) * BLOCK_BYTES as u64;
                    let damaged = self.damaged_summaries(&f);
                    let mended = if damaged > 0 { self.mend_summary(&f, walked.generation) } else { 0 };
                    scrub.report.copies_damaged += mended;
                    scrub.report.copies_mended += mended;
                    walked.note(f.header.addr, damaged - mended);
                    ended = f.header.seq >= walked.until;
                }
                // It was durable, and is nowhere.
                Ok(None) | Err(_) => {
                    walked.note(walk.at().last_addr, 1);
                    (walked.is_missing, ended) = (true, true);
                }
            }
        }
        walked.at = walk.at().clone();
        if !ended {
            scrub.go_on_with_log(walked);
            return Ok(());
        }
        if walked.damaged > 0 && self.lock().generation() != walked.generation {
            match self.walk_the_log(walked.begun + 1).filter(|w| w.begun <= BEGUN_MAX) {
                Some(again) => scrub.go_on_with_log(again),
                None => scrub.next_stage(),
            }
            return Ok(());
        }
        self.log_was_walked(scrub, &walked);
        Ok(())
    }

    /// A walk from the older of the roots that recovery may begin with.
    fn walk_the_log(&self, begun: u32) -> Option<Walked> {
        let inner = self.lock();
        // A mount that writes has seen to it that all devices have what counts.
        let until = if self.options.read_only { self.recovery_report().durable_seq } else { inner.durable_seq };
        let generation = inner.generation();
        drop(inner);
        let mut roots: Vec<Superblock> =
            probe_storage(&self.storage).into_iter().flatten().flat_map(|p| p.roots).collect();
        roots.sort_by_key(|r| std::cmp::Reverse(r.generation));
        roots.dedup_by_key(|r| r.generation);
        let older = roots.get(super::ROOTS_USABLE as usize - 1).or(roots.last())?;
        Some(Walked { at: chain_of(older), until, generation, damaged: 0, first: None, is_missing: false, begun })
    }

    /// Copies of what holds the records of this partial that are not right. It was found, so one is.
    fn damaged_summaries(&self, f: &Found) -> u64 {
        let (addr, blocks) = (f.header.addr, f.header.summary_blocks);
        if self.storage.has_parity() {
            let is_it = |bytes: &[u8]| super::summary_crc(bytes) == Some(f.crc);
            return u64::from(!broken(Break::ParityUnverified) && !self.are_right(addr, blocks, is_it));
        }
        let right = |avoid: &u16| {
            let read = self.storage.read_around(addr, blocks, *avoid);
            read.is_ok_and(|bytes| super::summary_crc(&bytes) == Some(f.crc))
        };
        self.storage.ways_around(addr, blocks).iter().filter(|avoid| !right(avoid)).count() as u64
    }

    /// Where rows have parity: whether what holds the records of a partial was written anew where it lies, since the rest of its row may need
    /// it there (1), or not (0).
    fn mend_summary(&self, f: &Found, generation: Generation) -> u64 {
        if !self.storage.has_parity() || !self.may_mend() || self.owns_to_write().is_err() {
            return 0;
        }
        let mut inner = self.lock();
        // Behind a newer root its place may be used for something else.
        if inner.generation() != generation {
            return 0;
        }
        let (addr, blocks) = (f.header.addr, f.header.summary_blocks);
        inner.segments().pin(addr.segment());
        drop(inner);
        let is_it = |bytes: &[u8]| super::summary_crc(bytes) == Some(f.crc);
        let mended = self.storage.mend(addr, blocks, is_it).is_ok_and(|n| n > 0);
        self.lock().segments().unpin(addr.segment());
        u64::from(mended)
    }

    fn log_was_walked(&self, scrub: &mut Scrub, walked: &Walked) {
        scrub.log_damaged = walked.damaged;
        scrub.report.copies_damaged += walked.damaged;
        if let Some(addr) = walked.first.filter(|_| !self.may_mend()) {
            let text = match walked.is_missing {
                true => {
                    "the log is damaged: what it has is in no index yet, and would be missed by a mount for writing"
                }
                false => "a copy of a part of the log is damaged",
            };
            let text = text.to_string();
            scrub.note(ScrubFinding { text, ino: None, path: None, offset: None, addr });
        }
        scrub.next_stage();
    }
}

impl Walked {
    fn note(&mut self, addr: Addr, damaged: u64) {
        self.damaged += damaged;
        self.first = self.first.or((damaged > 0).then_some(addr));
    }
}

impl Scrub {
    fn go_on_with_log(&mut self, walked: Walked) {
        if let Some(stage) = self.stages.front_mut() {
            *stage = Stage::Log(Some(walked));
        }
    }
}
