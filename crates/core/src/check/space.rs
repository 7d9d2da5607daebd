//! The space tree: segments, checkpoints, orphans, work for the reaper.

use super::findings::What;
use super::report::{Finding, Log};
use super::roots::Entered;
use super::usage::died;
use crate::Result;
use crate::state::{REST_FORK, is_space_key};
use nenrin_format::items::{Backref, Checkpoint, Forget, Landmark, Reap, Segment, Shed};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Addr, Ino, SegmentNo};

/// Checks every item of the space tree.
pub fn check(entered: &Entered, log: &mut Log<'_>) -> Result<()> {
    let state = &entered.opened.state;
    let whole = entered.audit.lost == 0;
    state.space.walk(&state.cache, &mut |key, value| {
        log.report.counts.space_items += 1;
        let misplaced =
            !is_space_key(key) || key.kind == Kind::Segment && state.segments.get(SegmentNo(key.off)).is_none();
        if misplaced {
            let text = format!("{:?} at {} of the space tree", key.kind, key.off);
            log.add(Finding::new(What::ItemMisplaced, text));
            return Ok(());
        }
        let decoded = match key.kind {
            Kind::Segment => Segment::decode(value).map(|s| {
                check_emptied(entered, SegmentNo(key.off), &s, log);
                None
            }),
            Kind::Checkpoint => Checkpoint::decode(value).map(|_| None),
            Kind::Landmark => Landmark::decode(value).map(|_| None),
            Kind::Forget => match Forget::decode(value) {
                Ok(_) if whole => return check_forget(entered, Ino(key.off), log),
                other => other.map(|_| None),
            },
            Kind::Shed => Shed::decode(value).map(|_| None),
            Kind::Backref => match Backref::decode(value) {
                Ok(b) if whole => return check_backref(entered, key, &b, log),
                other => other.map(|_| None),
            },
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

/// The owner must be there, and this its only back reference.
fn check_backref(entered: &Entered, key: &Key, b: &Backref, log: &mut Log<'_>) -> Result<()> {
    let state = &entered.opened.state;
    let addr = Addr(key.ino);
    let first = state.backref(&b.owner, addr)?;
    if first.is_none_or(|(k, _)| k != *key) || !state.owner_exists(addr, b)? {
        let text = format!("{} blocks of file block {}{}", b.blocks, b.owner.off, died(&b.owner));
        log.add_in(state, Finding::new(What::BackrefDangling, text).of(Ino(b.owner.ino)).at(addr));
    }
    Ok(())
}

/// It cannot have been emptied for a root that is still to come.
fn check_emptied(entered: &Entered, no: SegmentNo, segment: &Segment, log: &mut Log<'_>) {
    let (emptied, next) = (segment.emptied_generation, entered.opened.state.segments.next_generation);
    if emptied > next.0 {
        let text = format!("segment {no}: emptied for generation {emptied}, the next is {next}");
        log.add(Finding::new(What::EmptiedWrong, text).at(Addr::new(no, 0)));
    }
}

/// What is to be forgotten was removed before.
fn check_forget(entered: &Entered, ino: Ino, log: &mut Log<'_>) -> Result<()> {
    let state = &entered.opened.state;
    if let Ok(Some(_)) = state.inode(ino) {
        log.add_in(state, Finding::new(What::ReapWrong, "to be forgotten, and it exists").of(ino));
    }
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
    let text = match (reap.whole, inode) {
        (true, Some(_)) => "all of it, and it exists".to_owned(),
        (true, None) if key.fork != 0 && key.fork != REST_FORK => format!("all of it, listed as fork {}", key.fork),
        (false, _) if reap.fork != key.fork => format!("fork {}, listed as fork {}", reap.fork, key.fork),
        (false, Some(i)) if i.fork <= reap.fork => format!("fork {}, which is in use", reap.fork),
        _ => return Ok(()),
    };
    bad(What::ReapWrong, text);
    Ok(())
}
