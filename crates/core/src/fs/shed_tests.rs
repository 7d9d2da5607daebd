//! How long it is remembered what was shed.

use super::Fs;
use super::background::Reaped;
#[cfg(feature = "breaks")]
use crate::breaks::{Break, with};
use crate::state::SHED_MAX;
use crate::testing::{create, device, mount};
use crate::{MountOptions, SetAttr};
use nenrin_format::items::{CHECKPOINT_DAILY, CHECKPOINT_NAMED};
use nenrin_format::records::Record;
use nenrin_format::{Cno, Ino, Time};

fn log(fs: &Fs, record: &Record<'_>) {
    fs.lock().log(record, 0).unwrap();
}

/// A checkpoint with these flags and this name.
fn cut(fs: &Fs, flags: u32, name: &[u8]) -> Cno {
    let cno = fs.lock().state.open_cno;
    let flags = if name.is_empty() { flags } else { flags | CHECKPOINT_NAMED };
    log(fs, &Record::Checkpoint { cno, wall: Time(1), mounted_nanos: 0, flags, name });
    cno
}

fn shed(fs: &Fs, inos: std::ops::Range<u64>) {
    let upto = fs.lock().state.open_cno;
    inos.for_each(|ino| log(fs, &Record::Shed { ino: Ino(ino), upto, wall: Time(1), blocks: 1 }));
}

/// As much as may be remembered, between an old snapshot and checkpoints that go.
fn sheds_behind_a_snapshot() {
    let fs = mount(&device(64, 64), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    cut(&fs, 0, b"old");
    let mut unnamed = Vec::new();
    for n in 0..8 {
        unnamed.push(cut(&fs, 0, b""));
        shed(&fs, 1000 * (n + 1)..1000 * (n + 1) + SHED_MAX as u64 / 8);
    }
    assert_eq!(fs.lock().state.shed.len(), SHED_MAX);
    assert!(fs.survey().is_none(), "no more is looked for");
    log(&fs, &Record::DropCheckpoints { cnos: unnamed[..4].to_vec() });
    let left = fs.lock().state.shed.len();
    assert!(left <= SHED_MAX / 2, "{left} are remembered although nothing is left to ask about");
    log(&fs, &Record::DropCheckpoints { cnos: unnamed });
    assert_eq!(fs.lock().state.shed.len(), 0);
    fs.close().unwrap();
}

#[test]
fn what_was_shed_behind_a_snapshot_is_not_remembered_for_ever() {
    sheds_behind_a_snapshot();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "are remembered although nothing is left to ask about")]
fn sheds_that_pile_up_are_noticed() {
    with(Break::ShedsPileUp, sheds_behind_a_snapshot);
}

/// What was shed before a checkpoint got its name is not there for it, nor what is kept by day where that did not count.
#[test]
fn what_a_late_name_does_not_have_is_remembered() {
    // Flags, named when it is cut, named before something is shed, and whether that is remembered.
    let table = [
        (0, true, false, false),
        (0, false, true, false),
        (0, false, false, true),
        (CHECKPOINT_DAILY, true, false, false),
        (CHECKPOINT_DAILY, false, true, true),
        (CHECKPOINT_DAILY, false, false, true),
    ];
    for (flags, at_once, before, stays) in table {
        let fs = mount(&device(64, 64), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let cno = cut(&fs, flags, if at_once { b"now" } else { b"" });
        if before {
            log(&fs, &Record::NameCheckpoint { cno, name: b"late" });
            cut(&fs, 0, b"");
        }
        cut(&fs, 0, b"");
        shed(&fs, 7..8);
        if !at_once && !before {
            log(&fs, &Record::NameCheckpoint { cno, name: b"too late" });
        }
        let others = fs.checkpoints().iter().map(|c| c.cno).filter(|c| *c != cno).collect();
        log(&fs, &Record::DropCheckpoints { cnos: others });
        assert_eq!(fs.lock().state.shed.len() == 1, stays, "{flags} {at_once} {before}");
        fs.close().unwrap();
    }
}

/// Of a file that was emptied history is shed before it is reaped: blocks of it that are history then, with and without a snapshot.
fn what_is_reaped_after_it_was_shed() {
    for (name, kept) in [(&b""[..], 0), (b"kept", 2000)] {
        let fs = mount(&device(64, 64), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let f = create(&fs, "f");
        assert!(fs.write(f, 0, &vec![7; 2000 << 12], 0).is_ok());
        fs.sync_all().unwrap();
        cut(&fs, 0, name);
        fs.setattr(f, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        fs.fsync_wait(f).unwrap();
        cut(&fs, 0, b"");
        shed(&fs, f.0..f.0 + 1);
        assert_eq!(fs.usage().history_blocks, 0, "it was reaped already");
        while fs.reap_step().unwrap() == Reaped::Some {}
        assert_eq!(fs.lock().state.live_blocks, 0);
        assert_eq!(fs.usage().history_blocks, kept, "blocks that nobody sees go to history");
        fs.close().unwrap();
    }
}

#[test]
fn what_was_shed_is_reaped_for_good() {
    what_is_reaped_after_it_was_shed();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks that nobody sees go to history")]
fn what_was_shed_and_goes_to_history_is_noticed() {
    with(Break::ShedReaped, what_is_reaped_after_it_was_shed);
}
