//! The space tree: segments, checkpoints, orphans, work for the reaper.

use super::findings::What;
use super::report::{Finding, Log};
use super::roots::Entered;
use crate::Result;
use nenrin_format::Ino;
use nenrin_format::items::{BackrefDisk, Checkpoint, Reap, Segment};
use nenrin_format::key::{Key, Kind};

/// Checks every item of the space tree.
pub fn check(entered: &Entered, log: &mut Log<'_>) -> Result<()> {
    let state = &entered.opened.state;
    let whole = entered.audit.lost == 0;
    state.space.walk(&state.cache, &mut |key, value| {
        log.report.counts.space_items += 1;
        let misplaced = key.kind < Kind::Segment
            || key.ino != 0 && key.kind != Kind::Backref
            || key.death != 0
            || key.kind == Kind::Segment && key.off >= state.segments.count();
        if misplaced {
            let text = format!("{:?} at {} of the space tree", key.kind, key.off);
            log.add(Finding::new(What::ItemMisplaced, text));
            return Ok(());
        }
        let decoded = match key.kind {
            Kind::Segment => Segment::decode(value).map(|_| None),
            Kind::Checkpoint => Checkpoint::decode(value).map(|_| None),
            Kind::Backref => BackrefDisk::read_prefix(value).map(|_| None),
            _ => Reap::decode(value).map(Some),
        };
        match decoded {
            Err(why) => {
                let text = format!("{:?} at {} of the space tree: {why}", key.kind, key.off);
                log.add(Finding::new(What::ItemInvalid, text));
            }
            Ok(Some(reap)) if whole => check_reap(entered, key, &reap, log)?,
            Ok(_) => {}
        }
        Ok(())
    })?;
    Ok(())
}

fn check_reap(entered: &Entered, key: &Key, reap: &Reap, log: &mut Log<'_>) -> Result<()> {
    let state = &entered.opened.state;
    let ino = Ino(key.off);
    // An inode item that means nothing was noted with the live tree.
    let Ok(inode) = state.inode(ino) else { return Ok(()) };
    let mut bad = |what: What, text: String| log.add_in(state, Finding::new(what, text).of(ino));
    if reap.death > state.open_cno {
        bad(What::ItemUnborn, format!("gone from checkpoint {}, {} is open", reap.death, state.open_cno));
    }
    if key.kind == Kind::Orphan {
        match inode {
            None => bad(What::OrphanWrong, "it does not exist".into()),
            Some(i) if i.nlink > 0 => bad(What::OrphanWrong, format!("{} names", i.nlink)),
            Some(_) => {}
        }
        return Ok(());
    }
    // That a whole inode to be removed still exists is noted with the inode.
    if !reap.whole && (reap.fork != key.fork || inode.is_some_and(|i| i.fork <= reap.fork)) {
        bad(What::ReapWrong, format!("fork {}, which is in use", reap.fork));
    }
    Ok(())
}
