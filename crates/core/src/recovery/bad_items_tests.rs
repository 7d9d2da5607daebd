//! An item of the space tree means nothing, in a leaf that is right: what lives is shown, read-only, and a repair ends that.

use super::*;
use crate::testing::{self, TestClock};
use crate::{At, RepairPlan};
use nenrin_format::key::{Key, Kind};

const BYTES: usize = 3 * BLOCK_BYTES;

fn clock() -> Arc<dyn Clock> {
    Arc::new(TestClock::default())
}

/// What of it is in the log alone is there, too.
fn assert_lives(fs: &Fs, what: &str) {
    let f = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap().ino;
    assert!(fs.read(At::Live, f, 0, BYTES).unwrap() == vec![3; BYTES], "{what}");
}

/// A file with two snapshots, in which it was another; this item means nothing then, in both usable roots, and more comes with the log.
fn with_bad_item(key: impl Fn(&[Cno; 2], Ino) -> Key) -> (Arc<dyn BlockDevice>, [Cno; 2]) {
    let device = testing::device(32, 64);
    let fs = Fs::open(vec![device.clone()], clock(), MountOptions::default()).unwrap();
    let f = testing::create(&fs, "f");
    let write = |byte: u8| {
        fs.write(f, 0, &vec![byte; BYTES], 0).unwrap();
        fs.fsync_wait(f).unwrap();
    };
    let kept = [1, 2].map(|byte| {
        write(byte);
        fs.checkpoint_create(Some(format!("as of {byte}").as_bytes())).unwrap().cno
    });
    fs.checkpoint_create(None).unwrap();
    fs.put_bad_space_item(key(&kept, f));
    for _ in 0..2 {
        write(9);
        fs.index_checkpoint(false).unwrap();
    }
    write(3);
    drop(fs);
    (device, kept)
}

fn items_that_mean_nothing() {
    let keys: [fn(&[Cno; 2], Ino) -> Key; 4] = [
        |kept, _| checkpoint_key(kept[0]),
        |_, _| segment_key(100),
        |kept, _| Key::space(Kind::Landmark, 0, kept[0].0),
        |_, f| Key::space(Kind::Shed, 0, f.0),
    ];
    for key in keys {
        let (device, kept) = with_bad_item(key);
        let kind = key(&kept, Ino::ROOT).kind;
        let open = |options| Fs::open(vec![device.clone()], clock(), options);
        let options = |read_only, no_recovery| MountOptions { read_only, no_recovery, ..MountOptions::default() };
        for (read_only, no_recovery) in [(false, false), (true, false), (true, true)] {
            let fs =
                open(options(read_only, no_recovery)).unwrap_or_else(|e| panic!("no mount comes past {kind:?}: {e}"));
            if !no_recovery {
                assert_lives(&fs, "mounted");
            }
            assert!(fs.recovery_report().damage.is_some(), "{kind:?}");
            assert!(matches!(fs.create(Ino::ROOT, b"new", &testing::FILE), Err(Error::ReadOnly)));
            let f = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap().ino;
            let past = fs.read(At::Past(kept[1]), f, 0, BYTES);
            match kind == Kind::Shed || no_recovery {
                true => assert!(past.is_err() && fs.checkpoints().is_empty(), "the past is shown: {kind:?}"),
                false => assert_eq!(past.unwrap(), vec![2; BYTES], "{kind:?}"),
            }
        }
        let plan = RepairPlan::new(std::slice::from_ref(&device), clock().as_ref(), &mut |_| {}).unwrap();
        plan.carry_out(clock()).unwrap();
        let fs = open(MountOptions::default()).unwrap();
        assert_eq!(fs.recovery_report().damage, None, "{kind:?}");
        let has_unnamed = fs.checkpoints().iter().any(|c| c.name.is_none());
        assert!(!has_unnamed || kind != Kind::Shed, "what was shed may be shown otherwise");
        assert_lives(&fs, "repaired");
        testing::create(&fs, "new");
        fs.close().unwrap();
    }
}

#[test]
fn an_item_that_means_nothing_ends_no_volume() {
    items_that_mean_nothing();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "no mount comes past")]
fn an_item_that_ends_a_volume_is_noticed() {
    crate::breaks::with(Break::BadItemEnds, items_that_mean_nothing);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the past is shown")]
fn a_past_of_which_an_item_may_forbid_something_is_noticed() {
    crate::breaks::with(Break::SpacelessPast, items_that_mean_nothing);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was shed may be shown otherwise")]
fn a_bad_item_after_which_what_was_shed_is_unknown_is_noticed() {
    crate::breaks::with(Break::ShedUnknown, items_that_mean_nothing);
}

/// What says that an inode is to be forgotten says so by its key.
fn a_bad_item_names_what_is_to_be_forgotten() {
    let key = Key::space(Kind::Forget, 0, 5000);
    let (device, _) = with_bad_item(|_, _| key);
    let plan = RepairPlan::new(std::slice::from_ref(&device), clock().as_ref(), &mut |_| {}).unwrap();
    plan.carry_out(clock()).unwrap();
    let options = crate::check::CheckOptions::default();
    let report = crate::check::check(std::slice::from_ref(&device), &options, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let fs = Fs::open(vec![device], clock(), MountOptions::default()).unwrap();
    assert_eq!(fs.recovery_report().damage, None);
    assert!(fs.forget_status().is_some(), "it is on the list no more");
    fs.close().unwrap();
}

#[test]
fn what_a_bad_item_names_is_still_forgotten() {
    a_bad_item_names_what_is_to_be_forgotten();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "it is on the list no more")]
fn a_bad_item_that_goes_with_what_it_names_is_noticed() {
    crate::breaks::with(Break::BadForgetGoes, a_bad_item_names_what_is_to_be_forgotten);
}
