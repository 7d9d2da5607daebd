//! The parity of rows, compared with what lies in them.
//!
//! Invariants
//! 1. Compared is what is needed, as far as it is right itself: of what nobody needs the parity may be anything.
//! 2. Only after a clean unmount: what a crash left of a row gets its parity with the next mount.
//! 3. Memory: the rows that are wrong.

use super::findings::What;
use super::report::{Finding, Log, Step};
use super::roots::Entered;
use crate::Result;
use crate::covered;
use crate::devices::RowId;
use crate::index::Tree;
use crate::storage::Storage;
use nenrin_format::items::Extent;
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Addr, Ino, NODE_BLOCKS, node};
use std::collections::BTreeSet;

/// Nodes looked up at once.
const NODES: usize = 1024;

/// Rows that are not as they should be.
#[derive(Default)]
struct Unlike {
    /// All of them.
    rows: BTreeSet<RowId>,
    /// Those in which it is the bytes that are wrong: these were told.
    bytes: BTreeSet<RowId>,
}

impl Unlike {
    /// Looks at blocks that are needed, and `right` if they are as they should be.
    fn look(&mut self, storage: &Storage, addr: Addr, blocks: u32, right: impl Fn(&[u8]) -> bool) {
        let unlike = storage.rows_unlike(addr, blocks);
        if unlike.is_empty() {
            return;
        }
        if !storage.read(addr, blocks).is_ok_and(|bytes| right(&bytes)) {
            self.bytes.extend(&unlike);
        }
        self.rows.extend(unlike);
    }

    /// Looks at everything that a tree needs.
    fn look_at(&mut self, entered: &Entered, tree: &Tree, log: &mut Log<'_>) -> Result<()> {
        let (storage, cache) = (&entered.opened.storage, &entered.opened.state.cache);
        let mut from = Some(Key::new(Ino(0), Kind::Inode, 0, 0));
        while let Some(key) = from {
            let mut nodes = Vec::new();
            from = tree.nodes_from(cache, &key, NODES, &mut nodes)?;
            for n in &nodes {
                let right = |bytes: &[u8]| node::stored_crc(bytes) == Some(n.ptr.crc) && node::verify(bytes);
                n.ptr.copies.iter().for_each(|addr| self.look(storage, *addr, NODE_BLOCKS, right));
                log.advance(2 * u64::from(NODE_BLOCKS));
            }
        }
        // What of it cannot be read was told already.
        let _ = tree.walk(cache, &mut |key, value| {
            let extent = (key.kind == Kind::Extent).then(|| Extent::decode(value).ok()).flatten();
            if let Some(e) = extent.filter(|e| !e.is_unwritten()) {
                let (first, blocks) = covered::place(&e);
                self.look(storage, first, blocks, |bytes| covered::verify(&e, bytes).is_ok());
                log.advance(u64::from(e.blocks));
            }
            Ok(())
        });
        Ok(())
    }
}

/// Compares the parity of all that is needed.
pub fn check(entered: &Entered, log: &mut Log<'_>) -> Result<()> {
    let (state, storage) = (&entered.opened.state, &entered.opened.storage);
    if !storage.has_parity() || !entered.opened.report.clean {
        return Ok(());
    }
    let trees = || [&state.live, &state.space].into_iter().chain(state.history.iter().map(|t| &t.tree));
    let nodes: u64 = trees().map(Tree::nodes).fold(0, u64::saturating_add);
    let blocks = state.live_blocks.saturating_add(state.history_blocks);
    log.step(Step::Parity, blocks.saturating_add(nodes.saturating_mul(2 * u64::from(NODE_BLOCKS))));
    let mut unlike = Unlike::default();
    for tree in trees() {
        unlike.look_at(entered, tree, log)?;
    }
    for row in unlike.rows.difference(&unlike.bytes) {
        let (segment, number) = row;
        let text = format!("row {number} of segment {segment}: its parity is not that of what lies there");
        let first = storage.row_begin(*row).unwrap_or(Addr::new(*segment, 0));
        log.add(Finding::new(What::ParityWrong, text).at(first));
    }
    Ok(())
}
