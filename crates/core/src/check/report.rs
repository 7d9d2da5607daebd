//! What a check says: findings and counts, bounded in memory.

use super::findings::{Severity, What};
use super::paths;
use crate::RecoveryReport;
use crate::state::State;
use nenrin_format::superblock::Scrubbed;
use nenrin_format::{Addr, Ino};
use std::collections::BTreeMap;

/// Findings kept; more are counted only.
pub const FINDINGS_MAX: usize = if cfg!(test) { 100 } else { 10_000 };
/// Steps between two calls of the progress function.
const STRIDE: u64 = 1024;

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing.
    pub what: What,
    /// A path that leads there, now or in the past.
    pub path: Option<Vec<u8>>,
    /// The inode.
    pub ino: Option<Ino>,
    /// The block.
    pub addr: Option<Addr>,
    /// The particulars, in one line.
    pub text: String,
}

impl Finding {
    pub(super) fn new(what: What, text: impl Into<String>) -> Self {
        Self { what, path: None, ino: None, addr: None, text: text.into() }
    }
    pub(super) const fn of(mut self, ino: Ino) -> Self {
        self.ino = Some(ino);
        self
    }
    pub(super) const fn at(mut self, addr: Addr) -> Self {
        self.addr = Some(addr);
        self
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.what.number(), self.what, self.text)?;
        if let Some(path) = &self.path {
            write!(f, "; path {}", String::from_utf8_lossy(path).escape_debug())?;
        }
        if let Some(ino) = self.ino {
            write!(f, "; inode {ino}")?;
        }
        if let Some(addr) = self.addr {
            write!(f, "; block {addr}")?;
        }
        Ok(())
    }
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Inodes of the live state.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names of the live state.
    pub names: u64,
    /// Inodes without names.
    pub orphans: u64,
    /// Items of the live tree.
    pub live_items: u64,
    /// Items of all history trees.
    pub history_items: u64,
    /// Items of the space tree.
    pub space_items: u64,
    /// Index nodes, each with two copies.
    pub nodes: u64,
    /// Blocks of content in the live state.
    pub live_blocks: u64,
    /// Blocks of content that only history needs.
    pub history_blocks: u64,
    /// Checkpoints kept.
    pub checkpoints: u64,
    /// Segments.
    pub segments: u64,
    /// Blocks read and verified.
    pub blocks_verified: u64,
}

/// All findings of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfKind {
    /// How many there are.
    pub count: u64,
    /// The first of them.
    pub first: Finding,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The first [`FINDINGS_MAX`] findings, in the order they were made.
    pub findings: Vec<Finding>,
    /// All of them by kind, those not kept in `findings` too: what a volume needs is judged by these.
    pub kinds: BTreeMap<What, OfKind>,
    /// Errors, those not kept in `findings` too.
    pub errors: u64,
    /// Notes, those not kept in `findings` too.
    pub notes: u64,
    /// How much was looked at.
    pub counts: CheckCounts,
    /// What the last scrub found, as far as it is known.
    pub scrubbed: Option<Scrubbed>,
    /// How the volume was recovered in memory; `None` when it could not be.
    pub recovery: Option<RecoveryReport>,
}

impl CheckReport {
    /// Whether nothing is wrong. There may be notes.
    #[must_use]
    pub const fn clean(&self) -> bool {
        self.errors == 0
    }
    /// How many findings there are of a kind.
    #[must_use]
    pub fn count(&self, what: What) -> u64 {
        self.kinds.get(&what).map_or(0, |k| k.count)
    }
    /// All findings, those not kept too.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.errors + self.notes
    }
}

/// A part of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Every copy of every index node; counts nodes.
    Index,
    /// The live state; counts items.
    Live,
    /// The past; counts items.
    History,
    /// Blocks with two owners, where one pass is not enough; counts items.
    Owners,
    /// All content; counts blocks.
    Data,
    /// The parity of rows; counts blocks.
    Parity,
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The part under way.
    pub step: Step,
    /// What of it is done.
    pub done: u64,
    /// All of it, as far as the volume says.
    pub total: u64,
}

/// Takes findings and progress.
pub(super) struct Log<'p> {
    pub report: CheckReport,
    progress: &'p mut dyn FnMut(Progress),
    at: Progress,
}

impl<'p> Log<'p> {
    pub fn new(progress: &'p mut dyn FnMut(Progress)) -> Self {
        let at = Progress { step: Step::Index, done: 0, total: 0 };
        Self { report: CheckReport::default(), progress, at }
    }

    /// A part begins.
    pub fn step(&mut self, step: Step, total: u64) {
        self.at = Progress { step, done: 0, total };
        (self.progress)(self.at);
    }

    /// A part went on by `n`.
    pub fn advance(&mut self, n: u64) {
        let before = self.at.done / STRIDE;
        self.at.done = self.at.done.saturating_add(n);
        if self.at.done / STRIDE != before {
            (self.progress)(self.at);
        }
    }

    /// Notes a finding for which no path can be known.
    pub fn add(&mut self, finding: Finding) {
        match finding.what.severity() {
            Severity::Error => self.report.errors += 1,
            Severity::Note => self.report.notes += 1,
        }
        match self.report.kinds.get_mut(&finding.what) {
            Some(kind) => kind.count += 1,
            None => drop(self.report.kinds.insert(finding.what, OfKind { count: 1, first: finding.clone() })),
        }
        if !self.is_full() {
            self.report.findings.push(finding);
        }
    }

    /// Notes a finding, with the path of its inode.
    pub fn add_in(&mut self, state: &State, mut finding: Finding) {
        if let (None, Some(ino), true) = (&finding.path, finding.ino, self.is_kept(finding.what)) {
            finding.path = paths::of_inode(state, ino);
        }
        self.add(finding);
    }

    /// Notes a finding about a name.
    pub fn add_name(&mut self, state: &State, parent: Ino, name: &[u8], mut finding: Finding) {
        if self.is_kept(finding.what) {
            finding.path = paths::of_name(state, parent, name);
        }
        self.add(finding);
    }

    /// Whether more than the number of such findings is kept of one.
    fn is_kept(&self, what: What) -> bool {
        !self.is_full() || !self.report.kinds.contains_key(&what)
    }

    fn is_full(&self) -> bool {
        self.report.findings.len() >= FINDINGS_MAX
    }
}
