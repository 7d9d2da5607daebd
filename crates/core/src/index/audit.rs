//! For checking a volume: nodes verified one copy at a time, and a walk over a
//! tree that goes on past what cannot be read.

use super::node::{Body, Child, Expect, LEVEL_MAX, Node};
use super::{NodeCache, Tree, Value};
use crate::Result;
use nenrin_format::key::Key;
use nenrin_format::node::{NodePtr, TreeId};
use nenrin_format::root::TreeRoot;

/// A node still to be verified: where it is and what its parent knows about it.
#[derive(Clone, Copy, Debug)]
pub struct Unverified {
    /// Where both copies are.
    pub ptr: NodePtr,
    expect: Expect,
}

/// What a verified node holds.
pub enum Verified {
    /// So many items.
    Items(usize),
    /// Children, each to be verified in turn.
    Children(Vec<Unverified>),
}

impl Unverified {
    /// The root node of a tree; `None` when the tree is empty. A root so high
    /// that only damage explains it is left to [`Unverified::is_too_high`].
    #[must_use]
    pub fn root(root: &TreeRoot) -> Option<Self> {
        root.ptr.map(|ptr| Self { ptr, expect: Expect::root(root.level) })
    }

    /// Whether the tree would be higher than inserts can make it.
    #[must_use]
    pub fn is_too_high(&self) -> bool {
        self.expect.level > LEVEL_MAX
    }

    /// Verifies what was read: checksum, tree, level, order, range of keys.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] with the first thing that is wrong.
    pub fn verify(&self, tree: TreeId, bytes: &[u8]) -> Result<Verified> {
        let node = Node::decode(tree, &self.ptr, bytes)?;
        node.check(tree, &self.ptr, &self.expect)?;
        Ok(match &node.body {
            Body::Leaf(v) => Verified::Items(v.len()),
            Body::Inner(v) => {
                let child = |(i, (_, child)): (usize, &(Key, Child))| {
                    child.ptr().map(|ptr| Self { ptr, expect: self.expect.child(v, i) })
                };
                Verified::Children(v.iter().enumerate().filter_map(child).collect())
            }
        })
    }
}

impl Tree {
    /// Calls `each` for all items in order. What lies below a node that cannot be
    /// read is left out. Returns how many such nodes there were.
    ///
    /// # Errors
    /// Those of `each`, which end the walk.
    pub fn walk(&self, cache: &NodeCache, each: &mut dyn FnMut(&Key, &Value) -> Result<()>) -> Result<u64> {
        match self.root_node(cache) {
            Ok(Some((node, way))) => self.walk_below(cache, &node, way.expect(), each),
            Ok(None) => Ok(0),
            Err(_) => Ok(1),
        }
    }

    /// Recursion ends: levels fall by one and begin at most at `LEVEL_MAX`.
    fn walk_below(
        &self,
        cache: &NodeCache,
        node: &Node,
        expect: Expect,
        each: &mut dyn FnMut(&Key, &Value) -> Result<()>,
    ) -> Result<u64> {
        let mut lost = 0;
        match &node.body {
            Body::Leaf(v) => {
                for (key, value) in v {
                    each(key, value)?;
                }
            }
            Body::Inner(v) => {
                for (i, (_, child)) in v.iter().enumerate() {
                    let below = expect.child(v, i);
                    match self.node(cache, child, &below) {
                        Ok(node) => lost += self.walk_below(cache, &node, below, each)?,
                        Err(_) => lost += 1,
                    }
                }
            }
        }
        Ok(lost)
    }
}
