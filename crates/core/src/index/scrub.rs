//! For scrubbing: where the nodes of a tree lie on the device, a piece at a
//! time, while the tree goes on changing.

use super::node::{Body, Child, Expect};
use super::{NodeCache, Tree};
use crate::Result;
use nenrin_format::key::Key;
use nenrin_format::node::NodePtr;

/// A node on the device.
#[derive(Clone, Copy, Debug)]
pub struct NodeAt {
    /// Both copies.
    pub ptr: NodePtr,
    /// Its level; 0 is a leaf.
    pub level: u8,
    /// A key in its range.
    pub key: Key,
}

impl Tree {
    /// Appends about `max` nodes whose ranges begin at `from` or behind it, parents before their
    /// children; nodes that are not on the device are left out, and so is what is below a node that
    /// cannot be read. Returns where to go on, unless that was all. Leaves are not read.
    ///
    /// # Errors
    /// The tree claims an impossible height.
    pub fn nodes_from(&self, cache: &NodeCache, from: &Key, max: usize, out: &mut Vec<NodeAt>) -> Result<Option<Key>> {
        self.check_level()?;
        let Some(root) = &self.root else { return Ok(None) };
        let low = Key { ino: 0, kind: nenrin_format::key::Kind::Inode, fork: 0, off: 0, death: 0 };
        Ok(self.nodes_below(cache, root, Expect::root(self.level), &low, from, max, out))
    }

    fn nodes_below(
        &self,
        cache: &NodeCache,
        child: &Child,
        expect: Expect,
        low: &Key,
        from: &Key,
        max: usize,
        out: &mut Vec<NodeAt>,
    ) -> Option<Key> {
        if let Child::Disk(ptr) = child {
            if low >= from {
                out.push(NodeAt { ptr: *ptr, level: expect.level, key: *low });
            }
        }
        if expect.level == 0 {
            return None;
        }
        // One that cannot be read is in `out`, or was before.
        let node = self.node(cache, child, &expect).ok()?;
        let Body::Inner(v) = &node.body else { return None };
        let first = super::node::child_index(v, from);
        for (i, (key, child)) in v.iter().enumerate().skip(first) {
            if out.len() >= max && i > first {
                return Some(*key);
            }
            let go_on = self.nodes_below(cache, child, expect.child(v, i), key, from, max, out);
            if go_on.is_some() {
                return go_on;
            }
        }
        None
    }
}
