//! How much of its history an inode keeps: what is dropped instead of going to
//! history, and which past states are known. See docs/decisions/0020.
//!
//! Invariants
//! 1. Whatever changes content, entries or attributes of an inode also replaces its inode item. So all
//!    these items are the same during the whole life of one inode item.
//! 2. The state that an inode item of history is part of is known while an *anchor* lies in its life, when it says that
//!    less is kept; else while any kept checkpoint does. What is known is complete: an anchor of the inode item is one
//!    of everything that lived as long and longer, from its death on.
//! 3. Anchors only become fewer: a checkpoint is one of an item when the item dies, or never.

use super::{State, bad_item};
use crate::breaks::{Break, broken};
use crate::index::Value;
use crate::{Error, Result};
use nenrin_format::items::{self, Checkpoint, Inode, Keep, KeepRule};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Cno, Ino, Invalid};

/// For which checkpoints something is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptFor {
    /// Which.
    pub keep: Keep,
    /// A name counts that was given before this one.
    pub named_by: Cno,
}

impl KeptFor {
    /// Whether this checkpoint is one of them.
    #[must_use]
    pub fn is_anchor(&self, c: &Checkpoint) -> bool {
        match self.keep {
            Keep::Full => true,
            Keep::Daily if c.is_daily() => true,
            _ => c.is_named() && c.named_at <= self.named_by,
        }
    }
}

impl State {
    /// For which checkpoints an item at `key` that says `keep` is kept from its death on.
    pub fn kept_by(&self, key: &Key, keep: Keep, death: Cno) -> KeptFor {
        let is_content = matches!(key.kind, Kind::Inline | Kind::Xattr | Kind::Extent);
        let shed = if is_content { self.shed.covering(Ino(key.ino), death) } else { None };
        match shed {
            Some(shed) if keep == Keep::Full => KeptFor { keep: Keep::Nothing, named_by: shed.at },
            Some(_) => KeptFor { keep: Keep::Nothing, named_by: death },
            None => KeptFor { keep, named_by: death },
        }
    }

    /// Whether an anchor lies in the life `[birth, death)` of something.
    fn is_anchored(&self, kept: KeptFor, birth: Cno, death: Cno) -> bool {
        birth < death && self.kept.range(birth..death).any(|(_, c)| kept.is_anchor(c))
    }

    /// For which checkpoints an item that left the live tree is kept; `None`: it is not.
    pub(super) fn kept_for(
        &self,
        key: &Key,
        value: &[u8],
        (birth, death): (Cno, Cno),
        rule: KeepRule,
    ) -> std::result::Result<Option<Keep>, Invalid> {
        if !self.is_visible(key, birth, death) {
            return Ok(None);
        }
        let rule = match key.kind {
            Kind::Inode => KeepRule { keep: items::keep_of(key.kind, value)?, since: birth },
            _ => rule,
        };
        let before = death.min(rule.since);
        let is_for_all = rule.keep == Keep::Full
            || birth < before && self.kept.range(birth..before).next().is_some()
            || self.landmarks.see(key, birth, death);
        let keep = if is_for_all { Keep::Full } else { rule.keep };
        // What died before its history was shed, and is reaped later, went with that.
        let kept =
            if broken(Break::ShedReaped) { KeptFor { keep, named_by: death } } else { self.kept_by(key, keep, death) };
        let anchored = || self.is_anchored(kept, birth, death) && !broken(Break::AnchorIgnored);
        let stays = kept.keep == Keep::Full || anchored() || self.landmarks.see(key, birth, death);
        Ok(stays.then_some(keep))
    }

    /// Whether anything that is kept sees an item of history.
    ///
    /// # Errors
    /// A value that makes no sense.
    pub fn is_seen(&self, key: &Key, value: &[u8]) -> Result<bool> {
        let bad = |why| bad_item(key, why);
        let (birth, death) = (items::birth(value).map_err(bad)?, Cno(key.death));
        let kept = self.kept_by(key, items::keep_of(key.kind, value).map_err(bad)?, death);
        Ok(match kept.keep {
            Keep::Full => self.is_visible(key, birth, death),
            _ => self.is_anchored(kept, birth, death) || self.landmarks.see(key, birth, death),
        })
    }

    /// Whether what an inode was, while this item of history told of it, is known.
    pub fn is_known(&self, ino: Ino, inode: &Inode, death: Cno) -> bool {
        let kept = self.kept_by(&Key::new(ino, Kind::Extent, 0, 0), inode.keep_rule().keep, death);
        kept.keep == Keep::Full || broken(Break::PartSeemsWhole) || self.is_anchored(kept, inode.birth, death)
    }

    /// How much history is kept of the name of `ino` in a directory: as much as of either.
    pub(super) fn rule_of_name(&self, parent: Ino, ino: Ino) -> Result<KeepRule> {
        let rule = self.need_inode(parent)?.keep_rule();
        if rule.keep == Keep::Full { Ok(rule) } else { Ok(rule.or(self.need_inode(ino)?.keep_rule())) }
    }

    /// The inode item of `ino` as of a checkpoint, and when it died.
    ///
    /// # Errors
    /// Damage.
    pub fn inode_as_of(&self, ino: Ino, cno: Cno) -> Result<Option<(Inode, Option<Cno>)>> {
        let key = Key::new(ino, Kind::Inode, 0, 0);
        let decode = |v: &Value| Inode::decode(v).map_err(|why| bad_item(&key, why));
        if let Some(v) = self.live.get(&self.cache, &key)? {
            let inode = decode(&v)?;
            if inode.birth <= cno {
                return Ok(Some((inode, None)));
            }
        }
        for t in self.history.iter().filter(|t| t.deaths.1 > cno) {
            if let Some((k, v)) = t.tree.next_within(&self.cache, &key.died(cno.next().0), &key.died(u64::MAX))? {
                let inode = decode(&v)?;
                if inode.birth <= cno {
                    return Ok(Some((inode, Some(Cno(k.death)))));
                }
            }
        }
        Ok(None)
    }

    /// Whether what an inode was as of a checkpoint is known, and that it was there.
    ///
    /// # Errors
    /// Damage.
    pub fn knows(&self, ino: Ino, cno: Cno) -> Result<bool> {
        let found = self.inode_as_of(ino, cno)?;
        Ok(found.is_some_and(|(inode, death)| death.is_none_or(|death| self.is_known(ino, &inode, death))))
    }

    /// That content, entries and attributes of an inode as of a checkpoint are known.
    ///
    /// # Errors
    /// [`Error::Stale`] where they are not.
    pub fn need_known(&self, ino: Ino, cno: Cno) -> Result<()> {
        match self.inode_as_of(ino, cno)? {
            Some((inode, Some(death))) if !self.is_known(ino, &inode, death) => Err(Error::Stale),
            _ => Ok(()),
        }
    }
}
