//! For repairing a volume: trees without what cannot be read, and counted anew.
//!
//! Invariants
//! 1. Nothing is read or changed below a node that is lost; its neighbours stay
//!    as they are.
//! 2. Nodes that leave the tree because they are lost are noted nowhere: where
//!    they lie is for the caller's count to find unused.

use super::change::Change;
use super::node::{Body, Child, Expect, LEVEL_MAX, child_index};
use super::{NodeCache, Tree};
use crate::{Error, Result};
use nenrin_format::key::Key;
use nenrin_format::node::NodePtr;
use std::sync::Arc;

/// A range of keys of which nothing is known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The first key of it; `None` from the start of the tree on.
    pub low: Option<Key>,
    /// The first key behind it; `None` to the end of the tree.
    pub high: Option<Key>,
    /// Level of the node that is lost.
    pub level: u8,
}

impl LostRange {
    /// Whether any key from `from` to `to`, inclusive, is in it.
    #[must_use]
    pub fn meets(&self, from: &Key, to: &Key) -> bool {
        self.low.is_none_or(|low| low <= *to) && self.high.is_none_or(|high| *from < high)
    }
}

/// What [`Tree::survey`] found.
#[derive(Debug, Default)]
pub struct Survey {
    /// Nodes that cannot be used, in order of keys.
    pub lost: Vec<LostRange>,
    /// Nodes that must be written anew: level, a key in their range, the copy that is bad.
    pub weak: Vec<(u8, Key, NodePtr)>,
}

/// What [`Tree::recount`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCount {
    /// Items in the tree.
    pub items: u64,
    /// Nodes of the tree.
    pub nodes: u64,
}

/// The key that is in every range that begins at the start of a tree.
const FIRST: Key = Key { ino: 0, kind: nenrin_format::key::Kind::Inode, fork: 0, off: 0, death: 0 };

impl Tree {
    /// Looks at every node. `copies` says of a pointer which of its copies are right.
    #[must_use]
    pub fn survey(&self, cache: &NodeCache, copies: &mut dyn FnMut(&NodePtr) -> [bool; 2]) -> Survey {
        let mut out = Survey::default();
        if let Some(root) = &self.root {
            if self.level > LEVEL_MAX {
                out.lost.push(LostRange { low: None, high: None, level: self.level });
            } else {
                self.survey_below(cache, root, Expect::root(self.level), copies, &mut out);
            }
        }
        out
    }

    fn survey_below(
        &self,
        cache: &NodeCache,
        child: &Child,
        expect: Expect,
        copies: &mut dyn FnMut(&NodePtr) -> [bool; 2],
        out: &mut Survey,
    ) {
        let lost = LostRange { low: expect.low, high: expect.high, level: expect.level };
        if let Child::Disk(ptr) = child {
            match copies(ptr) {
                [true, true] if ptr.copies[0].segment() != ptr.copies[1].segment() => {}
                [false, false] => return out.lost.push(lost),
                _ => out.weak.push((expect.level, expect.low.unwrap_or(FIRST), *ptr)),
            }
        }
        let node = match self.node(cache, child, &expect) {
            Ok(node) => node,
            Err(_) => return out.lost.push(lost),
        };
        if let Body::Inner(v) = &node.body {
            for (i, (_, child)) in v.iter().enumerate() {
                self.survey_below(cache, child, expect.child(v, i), copies, out);
            }
        }
    }

    /// Takes the lost nodes of a survey out of the tree, and makes those dirty
    /// that need another copy. The counts of the tree are wrong until
    /// [`Tree::recount`].
    ///
    /// # Errors
    /// A node that could be read before cannot be read any more.
    pub fn prune(&mut self, cache: &NodeCache, survey: &Survey) -> Result<()> {
        if self.level > LEVEL_MAX {
            self.root = None;
            self.level = 0;
            return Ok(());
        }
        for lost in &survey.lost {
            let (root, level, mut change) = self.change(cache);
            change.cut_root(root, level, lost.level, &lost.low.unwrap_or(FIRST))?;
        }
        for (level, key, ptr) in &survey.weak {
            self.touch(cache, *level, key, ptr.copies[0])?;
        }
        Ok(())
    }

    /// Counts items and nodes and makes the counts those of the tree. `placed`
    /// is called for each node version that holds room on the device until the
    /// next checkpoint is written: those of the tree, and those superseded.
    ///
    /// # Errors
    /// A node cannot be read.
    pub fn recount(&mut self, cache: &NodeCache, placed: &mut dyn FnMut(&NodePtr)) -> Result<TreeCount> {
        let mut count = TreeCount::default();
        if let Some(root) = &self.root {
            self.check_level()?;
            self.count_below(cache, root, Expect::root(self.level), placed, &mut count)?;
        }
        for (_, old) in &self.book.superseded {
            if let Some(ptr) = old.ptr() {
                placed(&ptr);
            }
        }
        self.items = count.items;
        self.book.nodes = count.nodes;
        Ok(count)
    }

    /// Places of superseded nodes for which `goes` holds are nobody's concern any more.
    pub fn drop_superseded(&mut self, goes: &dyn Fn(&NodePtr) -> bool) {
        self.book.superseded.retain(|(_, old)| old.ptr().is_none_or(|ptr| !goes(&ptr)));
    }

    fn count_below(
        &self,
        cache: &NodeCache,
        child: &Child,
        expect: Expect,
        placed: &mut dyn FnMut(&NodePtr),
        count: &mut TreeCount,
    ) -> Result<()> {
        if let Child::Disk(ptr) = child {
            placed(ptr);
        }
        count.nodes += 1;
        match &self.node(cache, child, &expect)?.body {
            Body::Leaf(v) => count.items += v.len() as u64,
            Body::Inner(v) => {
                for (i, (_, child)) in v.iter().enumerate() {
                    self.count_below(cache, child, expect.child(v, i), placed, count)?;
                }
            }
        }
        Ok(())
    }
}

impl Change<'_> {
    /// Takes the node on `level` whose range has `key` out of the tree, and
    /// nodes above it that have nothing left.
    fn cut_root(&mut self, root: &mut Option<Child>, root_level: &mut u8, level: u8, key: &Key) -> Result<()> {
        let Some(child) = root else { return Ok(()) };
        if *root_level < level {
            return Err(Error::Corrupt("index: a lost node is above its root".into()));
        }
        let empty = if *root_level == level { true } else { self.cut(child, Expect::root(*root_level), level, key)? };
        if empty {
            self.forget(child);
            *root = None;
            *root_level = 0;
        } else {
            self.shrink(child, root_level);
        }
        Ok(())
    }

    /// As [`Change::cut_root`], below `child`; whether it has nothing left.
    fn cut(&mut self, child: &mut Child, expect: Expect, level: u8, key: &Key) -> Result<bool> {
        let node = self.own(child, &expect)?;
        let Body::Inner(v) = &mut node.body else {
            return Err(Error::Corrupt("index: a lost node is below a leaf".into()));
        };
        let i = child_index(v, key);
        let below = expect.child(v, i);
        let gone = match v.get_mut(i) {
            None => false,
            Some(_) if below.level == level => true,
            Some((_, child)) => self.cut(child, below, level, key)?,
        };
        if gone {
            let (_, child) = v.remove(i);
            self.forget(&child);
        }
        node.bytes = node.body.bytes();
        Ok(node.body.len() == 0)
    }

    /// A node that never was written, or that is lost, leaves the tree.
    fn forget(&mut self, child: &Child) {
        if matches!(child, Child::Mem(node) if Arc::as_ref(node).generation == self.book.generation) {
            self.drop_node();
        }
    }
}
