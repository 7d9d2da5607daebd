//! Every node that a root reaches, in both copies.
//!
//! Invariants
//! 1. The walk ends on any image: levels fall, and ranges of keys of siblings
//!    do not meet, so no node is reached twice within a tree.
//! 2. Memory: nodes still to be read, at most a few hundred for each level;
//!    one counter for each segment.

use super::findings::What;
use super::report::{Finding, Log, Step};
use crate::Error;
use crate::breaks::{Break, broken};
use crate::index::{NodeSource, Unverified, Verified};
use crate::per_segment::PerSegment;
use crate::storage::Storage;
use nenrin_device::{DeviceError, Ticket};
use nenrin_format::node::{self, TreeId};
use nenrin_format::root::{Root, TreeRoot};
use nenrin_format::{Addr, Invalid, NODE_BLOCKS};
use std::collections::BTreeSet;

/// Nodes read at once.
const BATCH: usize = 32;

/// Reads of one copy of a node, from each device that has it, each with the device that it does without.
type Reads = Vec<(Option<u16>, Result<Ticket, Error>)>;

/// Starts reading a node, from each device that has it; what lies in rows has no copy.
fn reads_of(storage: &Storage, addr: Addr) -> Reads {
    let ways = storage.ways_around(addr, NODE_BLOCKS);
    if ways.len() < 2 || storage.has_parity() || broken(Break::OneCopyChecked) {
        return vec![(None, storage.submit_read(addr, NODE_BLOCKS))];
    }
    ways.into_iter().map(|avoid| (Some(avoid), storage.submit_read_around(addr, NODE_BLOCKS, avoid))).collect()
}

/// What the nodes of a root amount to.
#[derive(Default)]
pub struct Audit {
    /// Node copies in each segment.
    pub copies: PerSegment<u32>,
    /// Nodes of all trees.
    pub nodes: u64,
    /// Nodes that cannot be used; the index is not whole when there are any.
    pub lost: u64,
}

/// Verifies all trees of a root.
pub fn audit(storage: &Storage, root: &Root, log: &mut Log<'_>) -> Audit {
    let mut this = Audit { copies: PerSegment::of(storage.numbers()), ..Audit::default() };
    let total = root.trees.iter().fold(0, |n: u64, t| n.saturating_add(t.nodes));
    log.step(Step::Index, total);
    let mut seen = BTreeSet::new();
    for t in &root.trees {
        // A tree listed twice would be walked twice; that it is was noted.
        if seen.insert(t.tree) {
            this.tree(storage, t, log);
        }
    }
    log.report.counts.nodes = this.nodes;
    this
}

impl Audit {
    fn tree(&mut self, storage: &Storage, root: &TreeRoot, log: &mut Log<'_>) {
        let (nodes_before, lost_before) = (self.nodes, self.lost);
        let mut items = 0u64;
        let mut waiting: Vec<Unverified> = Unverified::root(root).into_iter().collect();
        if waiting.first().is_some_and(Unverified::is_too_high) {
            let text = format!("tree {} claims a root at level {}", root.tree.0, root.level);
            log.add(Finding::new(What::NodeInvalid, text));
            self.lost += 1;
            waiting.clear();
        }
        while !waiting.is_empty() {
            let batch = waiting.split_off(waiting.len().saturating_sub(BATCH));
            let reads: Vec<[Reads; 2]> =
                batch.iter().map(|n| n.ptr.copies.map(|addr| reads_of(storage, addr))).collect();
            for (n, reads) in batch.iter().zip(reads) {
                self.nodes += 1;
                log.advance(1);
                match self.node(storage, root.tree, n, reads, log) {
                    Some(Verified::Items(n)) => items += n as u64,
                    Some(Verified::Children(children)) => waiting.extend(children),
                    None => self.lost += 1,
                }
            }
        }
        let nodes = self.nodes - nodes_before;
        if self.lost == lost_before && (nodes != root.nodes || items != root.items) {
            let text = format!(
                "tree {} has {nodes} nodes and {items} items, its root says {} and {}",
                root.tree.0, root.nodes, root.items
            );
            log.add(Finding::new(What::TreeCountWrong, text));
        }
    }

    fn node(
        &mut self,
        storage: &Storage,
        tree: TreeId,
        n: &Unverified,
        reads: [Reads; 2],
        log: &mut Log<'_>,
    ) -> Option<Verified> {
        let mut good = None;
        let mut bad: Vec<(usize, Addr, String)> = Vec::new();
        for (i, (addr, reads)) in n.ptr.copies.into_iter().zip(reads).enumerate() {
            self.copies.change(addr.segment(), |count| *count = count.saturating_add(1));
            let mut wrong = None;
            for (avoid, read) in reads {
                let here = |why: String| match storage.named_around(addr, NODE_BLOCKS, avoid) {
                    Some(device) => format!("{why} on {device}"),
                    None => why,
                };
                match read.and_then(|t| t.wait().map_err(|e: DeviceError| Error::Device(e))) {
                    Ok(bytes) if node::stored_crc(&bytes) == Some(n.ptr.crc) && node::verify(&bytes) => {
                        good = good.or(Some((addr, bytes.to_vec())));
                    }
                    Ok(_) => wrong = wrong.or_else(|| Some(here(Invalid::Checksum.to_string()))),
                    Err(Error::Damaged(_, why)) => wrong = wrong.or_else(|| Some(here(why.to_string()))),
                    Err(e) => wrong = wrong.or_else(|| Some(here(e.to_string()))),
                }
            }
            bad.extend(wrong.map(|why| (i, addr, why)));
        }
        // Of several copies each may have a part.
        let of_parts = || Some((n.ptr.copies[0], storage.read_node(&n.ptr).ok()?));
        let good = if good.is_none() && !broken(Break::OneCopyChecked) { of_parts() } else { good };
        let Some((addr, bytes)) = good else {
            let why = bad.first().map_or("", |b| b.2.as_str());
            log.add(Finding::new(What::NodeLost, format!("tree {}: {why}", tree.0)).at(n.ptr.copies[0]));
            return None;
        };
        for (i, addr, why) in bad {
            log.add(Finding::new(What::NodeCopyDamaged, format!("tree {}, copy {}: {why}", tree.0, i + 1)).at(addr));
        }
        if n.ptr.copies[0].segment() == n.ptr.copies[1].segment() {
            log.add(Finding::new(What::NodeCopiesTogether, format!("tree {}", tree.0)).at(n.ptr.copies[1]));
        }
        match n.verify(tree, &bytes) {
            Ok(found) => Some(found),
            Err(e) => {
                let why = if let Error::Damaged(_, why) = e { why.to_string() } else { e.to_string() };
                log.add(Finding::new(What::NodeInvalid, format!("tree {}: {why}", tree.0)).at(addr));
                None
            }
        }
    }
}
