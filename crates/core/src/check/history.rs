//! The past: history trees and checkpoints.

use super::content::check_place;
use super::findings::What;
use super::report::{Finding, Log, Step};
use super::roots::Entered;
use super::usage::Usage;
use crate::Result;
use crate::state::{HistoryTree, State};
use nenrin_format::items::{self, Dirent, Extent, Inode, XattrPiece};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Cno, Ino, Invalid};
use std::collections::BTreeSet;

/// Checks all history trees; counts into `usage`.
pub fn check(entered: &Entered, usage: &mut Usage, log: &mut Log<'_>) -> Result<()> {
    let state = &entered.opened.state;
    let total = state.history.iter().fold(0, |n: u64, t| n.saturating_add(t.tree.items()));
    log.step(Step::History, total);
    for tree in &state.history {
        check_tree(entered, tree, usage, log)?;
    }
    Ok(())
}

fn check_tree(entered: &Entered, tree: &HistoryTree, usage: &mut Usage, log: &mut Log<'_>) -> Result<()> {
    let (state, storage) = (&entered.opened.state, &entered.opened.storage);
    let whole = entered.audit.lost == 0;
    let mut before: Option<Key> = None;
    let (mut unseen_items, mut unseen_blocks) = (0u64, 0u64);
    tree.tree.walk(&state.cache, &mut |key, value| {
        log.advance(1);
        log.report.counts.history_items += 1;
        let (ino, death) = (Ino(key.ino), Cno(key.death));
        let mut bad = |what: What, text: String| {
            let text = format!("{:?} at {} in tree {}: {text}", key.kind, key.off, tree.tree.id().0);
            log.add_in(state, Finding::new(what, text).of(ino));
        };
        if key.kind > Kind::Extent || key.death == 0 {
            bad(What::ItemMisplaced, format!("death {death}"));
            return Ok(());
        }
        if key.ino >= state.next_ino.0 {
            bad(What::InodeNumberWrong, format!("the next inode will be {}", state.next_ino));
        }
        let birth = match decode(key.kind, value) {
            Ok(birth) => birth,
            Err(why) => {
                bad(What::ItemInvalid, why.to_string());
                return Ok(());
            }
        };
        if birth >= death || death > state.open_cno {
            bad(What::HistoryLifeWrong, format!("from {birth} to {death}, {} is open", state.open_cno));
        } else if death < tree.deaths.0 || death > tree.deaths.1 {
            bad(What::HistoryOutsideTree, format!("died in {death}, covers {} to {}", tree.deaths.0, tree.deaths.1));
        }
        // The version before, or what is current, must not have lived meanwhile.
        if before.is_some_and(|b| b.living() == key.living() && b.death > birth.0) {
            bad(What::HistoryOverlap, format!("born in {birth}, before its forerunner died"));
        }
        before = Some(*key);
        if whole {
            let current = state.get(&key.living())?.and_then(|v| items::birth(&v).ok());
            if current.is_some_and(|c| c < death) {
                bad(What::HistoryOverlap, format!("died in {death}, after what is current was born"));
            }
        }
        let visible = state.is_seen(key, value)?;
        unseen_items += u64::from(!visible);
        if let (Kind::Extent, Ok(e)) = (key.kind, Extent::decode(value)) {
            if check_place(state, storage, key, &e, log) {
                usage.add(state, key, &e, log);
                if whole {
                    usage.check_backref(state, key, &e, log)?;
                }
            }
            usage.add_total(key, &e);
            if !visible {
                unseen_blocks += u64::from(e.stored_blocks());
            }
        }
        Ok(())
    })?;
    if unseen_items > 0 {
        let text = format!("tree {}: {unseen_items} items, {unseen_blocks} blocks", tree.tree.id().0);
        log.add(Finding::new(What::HistorySweepable, text));
    }
    Ok(())
}

/// The birth, if the value means something.
fn decode(kind: Kind, value: &[u8]) -> std::result::Result<Cno, Invalid> {
    match kind {
        Kind::Inode => Inode::decode(value).map(drop)?,
        Kind::Inline | Kind::Symlink => items::decode_bytes(value).map(drop)?,
        Kind::Xattr => XattrPiece::decode(value).map(drop)?,
        Kind::Dirent | Kind::Link => Dirent::decode(value).map(drop)?,
        _ => Extent::decode(value).map(drop)?,
    }
    items::birth(value)
}

/// Checks the checkpoints kept.
pub fn check_checkpoints(state: &State, log: &mut Log<'_>) {
    log.report.counts.checkpoints = state.kept.len() as u64;
    let mut names = BTreeSet::new();
    for (cno, c) in &state.kept {
        let mut bad = |text: String| {
            log.add(Finding::new(What::CheckpointWrong, format!("checkpoint {cno}: {text}")));
        };
        if cno.0 == 0 || *cno > state.last_cno {
            bad(format!("the newest ever made is {}", state.last_cno));
        }
        if c.is_named() == c.name.is_empty() {
            bad("a snapshot without name, or a name without snapshot".into());
        }
        if c.is_named() && !names.insert(&c.name) {
            bad(format!("the name {} is taken", String::from_utf8_lossy(&c.name).escape_debug()));
        }
    }
}
