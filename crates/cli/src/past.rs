//! From WHEN to the checkpoint it means.

use crate::control::CheckpointData;
use crate::error::Fail;
use crate::when::{self, When};
use crate::{clock, report};
use nenrin_core::{CheckpointInfo, Fs};
use nenrin_format::{Cno, Time};
use nenrin_fuse::{Shelf, States};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The checkpoint of `fs` that `text` means: of a time, the newest not later than its end.
///
/// # Errors
/// There is none; what there is instead.
pub fn find(fs: &Fs, text: &str) -> Result<CheckpointInfo, Fail> {
    choose(&fs.checkpoints(), text, clock::now()).map_err(Fail::new)
}

/// As [`find`]; or a checkpoint that is gone, and of whose state landmarks are left. Says which.
///
/// # Errors
/// As there.
pub fn find_or_landmark(fs: &Fs, text: &str) -> Result<(CheckpointInfo, bool), Fail> {
    let why = match find(fs, text) {
        Ok(found) => return Ok((found, false)),
        Err(why) => why,
    };
    let Ok(When::Cno(cno)) = when::parse(text, clock::now()) else { return Err(why) };
    let wall = fs.landmark_at(Cno(cno)).ok_or(why)?;
    Ok((CheckpointInfo { cno: Cno(cno), wall, name: None, asked: false, daily: false }, true))
}

fn choose(list: &[CheckpointInfo], text: &str, now: i64) -> Result<CheckpointInfo, String> {
    let wanted = when::parse(text, now)?;
    let found = match &wanted {
        When::Cno(n) => list.iter().find(|c| c.cno.0 == *n),
        When::Name(name) => list.iter().find(|c| c.name.as_deref() == Some(name.as_bytes())),
        // A clock may have been ahead when a state was made.
        When::Moment(span) if span.from > now && list.iter().all(|c| c.wall < Time(span.from)) => {
            return Err(format!("{} is in the future; {}", when::show_said(span.from, text), reach(list)));
        }
        When::Moment(span) => newest(list, span.to),
    };
    found.cloned().ok_or_else(|| match wanted {
        When::Cno(n) => format!("there is no checkpoint {n} (any more); {}", beside(list, n)),
        When::Name(name) => format!(
            "there is no snapshot {name:?}; nenrin snapshot list shows what there is, and a state is also said as \
             '10 minutes ago', as 2026-01-31 14:00 or as the number of a checkpoint"
        ),
        When::Moment(span) => {
            format!("there is no state as old as {}; {}", when::show_said(span.to, text), reach(list))
        }
    })
}

/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// What the names of states inside a live mount mean.
pub struct Shelves(pub Arc<Fs>);

impl States for Shelves {
    fn find(&self, shelf: Shelf, name: &[u8]) -> Option<Cno> {
        let text = std::str::from_utf8(name).ok()?;
        let list = self.0.checkpoints();
        match shelf {
            Shelf::At => find_or_landmark(&self.0, text).ok().map(|(c, _)| c.cno),
            Shelf::Snapshots => newest(&list, when::parse_gmt(text)?).map(|c| c.cno),
        }
    }

    fn told(&self, cno: Cno) -> Option<Vec<u8>> {
        let (found, landmarks_only) = find_or_landmark(&self.0, &cno.to_string()).ok()?;
        serde_json::to_vec(&CheckpointData { landmarks_only, ..report::checkpoint(&found) }).ok()
    }

    fn names(&self, shelf: Shelf) -> Vec<(u64, Vec<u8>)> {
        let list = self.0.checkpoints();
        match shelf {
            Shelf::At => {
                let both = |c: &CheckpointInfo| {
                    let place = c.cno.0.saturating_mul(2);
                    let named = c.name.clone().map(|name| (place + 1, name));
                    std::iter::once((place, c.cno.to_string().into_bytes())).chain(named)
                };
                list.iter().flat_map(both).collect()
            }
            Shelf::Snapshots => {
                let second = |c: &CheckpointInfo| u64::try_from(c.wall.0).ok().map(|nanos| nanos / SECOND);
                let seconds: BTreeSet<u64> = list.iter().filter_map(second).collect();
                seconds.into_iter().map(|s| (s, when::show_gmt((s * SECOND) as i64).into_bytes())).collect()
            }
        }
    }
}

/// The newest state not later; by number, which is the order in which states
/// came to be, since clocks go back at times.
fn newest(list: &[CheckpointInfo], nanos: i64) -> Option<&CheckpointInfo> {
    list.iter().rev().find(|c| c.wall <= Time(nanos))
}

/// The checkpoints on both sides of one that is not there.
fn beside(list: &[CheckpointInfo], cno: u64) -> String {
    let before = list.iter().rev().find(|c| c.cno.0 < cno);
    let after = list.iter().find(|c| c.cno.0 > cno);
    let one = |c: &CheckpointInfo| format!("{} of {}", c.cno, when::show_zoned(c.wall.0));
    match (before, after) {
        (Some(a), Some(b)) => format!("the nearest are {} and {}", one(a), one(b)),
        _ => reach(list),
    }
}

fn reach(list: &[CheckpointInfo]) -> String {
    match (list.first(), list.last()) {
        (Some(first), Some(last)) => {
            format!("they reach from {} of {} to {}", first.cno, when::show_zoned(first.wall.0), last.cno)
        }
        _ => "the volume has no checkpoints yet".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Vec<CheckpointInfo> {
        let one = |cno, secs: i64, name: Option<&str>| CheckpointInfo {
            cno: Cno(cno),
            wall: Time(secs * 1_000_000_000),
            name: name.map(|n| n.as_bytes().to_vec()),
            asked: name.is_some(),
            daily: false,
        };
        vec![one(3, 100, None), one(5, 200, Some("monday")), one(8, 300, None)]
    }

    #[test]
    fn each_form_finds_its_state() {
        let now = 310 * 1_000_000_000;
        for (text, cno) in [
            ("5", 5),
            ("monday", 5),
            ("10 seconds ago", 8),
            ("11 seconds ago", 5),
            ("200 seconds ago", 3),
            ("1970-01-01T00:03:20Z", 5),
            ("1970-01-01T00:03:19.5Z", 3),
        ] {
            assert_eq!(choose(&list(), text, now).unwrap().cno, Cno(cno), "{text}");
        }
    }

    #[test]
    fn a_state_is_found_by_what_is_shown_of_its_time() {
        let wall = 310_123_456_789;
        let mut all = list();
        all.push(CheckpointInfo { cno: Cno(9), wall: Time(wall), name: None, asked: false, daily: false });
        all.push(CheckpointInfo { cno: Cno(10), wall: Time(400_000_000_000), ..all[3].clone() });
        let shown = when::show(wall);
        let exact = when::show_rfc3339(wall);
        for now in [wall, wall + 1, 500_000_000_000] {
            for text in
                [&shown, &exact, "1970-01-01T00:05:10Z", "1970-01-01T00:05:10.1Z", "1970-01-01T00:05:10.123456789Z"]
            {
                assert_eq!(choose(&all, text, now).unwrap().cno, Cno(9), "{text}");
                let sent = when::for_owner(text, now).unwrap();
                assert_eq!(choose(&all, &sent, now).unwrap().cno, Cno(9), "{text}: {sent}");
            }
            assert_eq!(choose(&all, "1970-01-01T00:05:10.123456788Z", now).unwrap().cno, Cno(8));
        }
        // The oldest, too, and by the whole of a day that is not over.
        assert_eq!(choose(&all, &when::show(100_000_000_000), wall).unwrap().cno, Cno(3));
        assert_eq!(choose(&all, &shown[..10], 450_000_000_000).unwrap().cno, Cno(10));
        assert_eq!(choose(&all, &shown[..16], 450_000_000_000).unwrap().cno, Cno(9));
        // A clock that was ahead when the state was made.
        assert_eq!(choose(&all[3..4], &shown, wall - 10_000_000_000).unwrap().cno, Cno(9));
    }

    #[test]
    fn what_there_is_not_is_said() {
        for (text, part) in [
            ("4", "no checkpoint 4 (any more); the nearest are 3 of"),
            ("2", "no checkpoint 2 (any more); they reach from 3"),
            ("9", "they reach from 3"),
            ("1970-01-01T00:05:11Z", "is in the future; they reach from 3"),
            ("tuesday", "no snapshot \"tuesday\""),
            ("yesterday", "no snapshot \"yesterday\""),
            ("10 minutes", "'10 minutes ago', as 2026-01-31 14:00 or as the number"),
            ("1 hour ago", "no state as old as"),
            ("9999-12-31", "9999-12-31 is in the future; they reach from 3"),
            ("0001-01-01", "no state as old as 0001-01-01; they reach from 3"),
            ("2 months ago", "say it as in"),
        ] {
            let why = choose(&list(), text, 310 * 1_000_000_000).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!(choose(&[], "1", 0).unwrap_err().contains("no checkpoints yet"));
    }
}
