//! What df tells does not jump.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::Ino;
use nenrin_core::{At, Fs, MountOptions, SetAttr};
use nenrin_device::Prng;
use std::sync::Arc;

const FILES: u64 = 20_000;
/// Most blocks by which what is available may change with one small change: 4 of 256 MiB.
const JUMP_MAX: u64 = 1024;

/// Looks at what is available after each of many small changes, while time goes on.
fn each(w: &World, fs: &Fs, count: u64, mut change: impl FnMut(u64)) {
    let mut last = fs.usage().available_blocks;
    for n in 0..count {
        change(n);
        if n % 64 == 0 {
            w.pass(100_000_000);
            fs.tick().unwrap();
        }
        let now = fs.usage().available_blocks;
        assert!(now.abs_diff(last) <= JUMP_MAX, "change {n}: {last} blocks available, then {now}");
        last = now;
    }
}

/// Index nodes that wait to be written take no room away from users: who lacks room has them written first.
#[test]
fn df_moves_with_what_is_written() {
    let w = World::new(256 << 20);
    let fs = w.open_with(MountOptions::default());
    let empty = fs.usage().available_blocks;
    each(&w, &fs, FILES, |n| {
        let ino = fs.create(Ino::ROOT, format!("{n}").as_bytes(), &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &[7; 1500], 0).unwrap();
    });
    let full = fs.usage().available_blocks;
    let mut prng = Prng::new(1);
    each(&w, &fs, FILES, |n| {
        let ino = fs.lookup(At::Live, Ino::ROOT, format!("{}", prng.below(FILES)).as_bytes()).unwrap().ino;
        fs.setattr(ino, &SetAttr { mode: Some(0o600 + (n % 7) as u32), ..SetAttr::default() }).unwrap();
    });
    assert!(fs.usage().available_blocks.abs_diff(full) <= JUMP_MAX, "changing modes takes no room");
    let big = fs.create(Ino::ROOT, b"big", &file(0o600)).unwrap().ino;
    each(&w, &fs, 4096, |n| {
        fs.write(big, prng.below(8192) * 4096, &[n as u8; 4096], 0).unwrap();
    });
    fs.setattr(big, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    // Else what it had goes at some time later.
    fs.fsync_wait(big).unwrap();
    w.pass(1_000_000_000);
    fs.tick().unwrap();
    each(&w, &fs, FILES, |n| fs.unlink(Ino::ROOT, format!("{n}").as_bytes()).unwrap());
    assert!(fs.usage().available_blocks + JUMP_MAX >= empty, "{:?}", fs.usage());
}

/// What is written counts at once and once, wherever it is on its way, and what is written in place of it does not count.
#[test]
fn df_tells_what_a_commit_will_leave() {
    let w = World::new(256 << 20);
    let fs = w.open_with(MountOptions::default());
    let big = fs.create(Ino::ROOT, b"big", &file(0o600)).unwrap().ino;
    let megabyte = vec![7; 1 << 20];
    let stays_so = |when: &str, change: &dyn Fn()| {
        let before = fs.usage().available_blocks;
        change();
        let now = fs.usage().available_blocks;
        assert!(now.abs_diff(before) <= JUMP_MAX, "{when}: {before} blocks available, then {now}");
    };
    let empty = fs.usage().available_blocks;
    for n in 0..64 {
        fs.write(big, n << 20, &megabyte, 0).unwrap();
        let (now, expected) = (fs.usage().available_blocks, empty - (n + 1) * 256);
        assert!(now.abs_diff(expected) <= JUMP_MAX, "{n}: {now} blocks available, not {expected}");
    }
    let sync = || {
        fs.fsync_wait(big).unwrap();
        w.pass(1_000_000_000);
        fs.tick().unwrap();
    };
    stays_so("synced", &sync);
    let mut prng = Prng::new(2);
    let blocks: Vec<u64> = (0..8192).map(|_| prng.below(64 << 8)).collect();
    stays_so("overwritten here and there", &|| {
        for n in &blocks {
            fs.write(big, n << 12, &[1; 4096], 0).unwrap();
        }
    });
    stays_so("and synced", &sync);
    stays_so("overwritten from one end to the other", &|| {
        for n in 0..64 {
            fs.write(big, n << 20, &megabyte, 0).unwrap();
        }
    });
    stays_so("and synced again", &sync);
    fs.setattr(big, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert!(fs.usage().available_blocks.abs_diff(empty) <= JUMP_MAX, "emptied");
    stays_so("and that synced", &sync);
}

/// A volume with 64 MiB in one file and many small ones, of which some have a past that nothing names.
struct Past {
    w: World,
    fs: Arc<Fs>,
    big: Ino,
    files: u64,
}

impl Past {
    fn new() -> Self {
        let w = World::new(256 << 20);
        let fs = w.open_with(MountOptions::default());
        let big = fs.create(Ino::ROOT, b"big", &file(0o600)).unwrap().ino;
        let this = Self { w, fs, big, files: 8000 };
        for n in 0..this.files {
            let ino = this.fs.create(Ino::ROOT, format!("{n}").as_bytes(), &file(0o600)).unwrap().ino;
            this.fs.write(ino, 0, &[7; 500], 0).unwrap();
        }
        this.overwrite(0, 64);
        this.fs.checkpoint_create(None).unwrap();
        this.overwrite(0, 16);
        this.rest();
        this
    }
    /// Megabytes of the large file.
    fn overwrite(&self, from: u64, to: u64) {
        for n in from..to {
            self.fs.write(self.big, n << 20, &[n as u8; 1 << 20], 0).unwrap();
        }
        self.fs.fsync_wait(self.big).unwrap();
    }
    /// Time for whatever is done in the background.
    fn rest(&self) {
        for _ in 0..40 {
            self.w.pass(500_000_000);
            self.fs.tick().unwrap();
        }
    }
    fn available(&self) -> u64 {
        self.fs.usage().available_blocks
    }
    /// A change that makes so many blocks more available (or fewer), at once, and none later.
    fn changes_by(&self, when: &str, blocks: i64, change: impl FnOnce(&Self)) {
        let before = self.available();
        change(self);
        let then = before.saturating_add_signed(blocks);
        let now = self.available();
        assert!(now.abs_diff(then) <= JUMP_MAX, "{when}: {before} blocks available, then {now}, not {then}");
        for n in 0..40 {
            self.w.pass(500_000_000);
            self.fs.tick().unwrap();
            let later = self.available();
            assert!(later.abs_diff(then) <= JUMP_MAX, "{when}, tick {n}: {then} blocks available, then {later}");
        }
    }
    /// After unmounting, and after the daemon was killed; counted anew by the first ticks, it stays as it is.
    fn remounted(mut self) -> Self {
        for killed in [false, true] {
            let before = self.available();
            if killed {
                self.fs.sync_all().unwrap();
            } else {
                self.fs.close().unwrap();
            }
            self.fs = self.w.open_with(MountOptions::default());
            let now = self.available();
            assert!(now.abs_diff(before) <= JUMP_MAX, "mounted again: {before} blocks available, then {now}");
            self.changes_by("after a mount", 0, |_| {});
        }
        self
    }
    /// Modes of files here and there.
    fn change_modes(&self) {
        let mut prng = Prng::new(3);
        each(&self.w, &self.fs, self.files, |n| {
            let name = format!("{}", prng.below(self.files));
            let ino = self.fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).unwrap().ino;
            let set = SetAttr { mode: Some(0o600 + (n % 7) as u32), ..SetAttr::default() };
            self.fs.setattr(ino, &set).unwrap();
        });
    }
}

/// A snapshot takes what is overwritten from then on, and gives it back when it goes; a mount, cleaning and time change nothing.
#[test]
fn df_moves_with_what_snapshots_keep() {
    let v = Past::new().remounted();
    v.changes_by("a snapshot", 0, |v| drop(v.fs.checkpoint_create(Some(b"kept")).unwrap()));
    v.changes_by("overwritten", -(24 << 8), |v| v.overwrite(8, 32));
    v.changes_by("overwritten again", 0, |v| v.overwrite(8, 32));
    v.change_modes();
    let v = v.remounted();
    v.changes_by("cleaned", 0, |v| {
        let mut clean = v.fs.clean();
        let before = v.available();
        while !clean.is_done() {
            v.fs.clean_step(&mut clean, 256).unwrap();
            let now = v.available();
            assert!(now.abs_diff(before) <= JUMP_MAX, "cleaning: {before} blocks available, then {now}");
        }
    });
    let kept = v.fs.checkpoint_find(b"kept").unwrap().cno;
    let info = v.fs.usage();
    let keeps = (info.snapshot_blocks + info.snapshot_index_blocks) as i64;
    assert!(keeps >= 24 << 8, "{info:?}");
    v.changes_by("the snapshot goes", keeps, |v| {
        v.fs.checkpoint_name(kept, None).unwrap();
        v.fs.checkpoint_drop(&[kept]).unwrap();
    });
    let v = v.remounted();
    v.change_modes();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks available, then")]
fn df_that_jumps_beside_snapshots_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::DfFallsWithIndex, df_moves_with_what_snapshots_keep);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "mounted again: ")]
fn df_that_falls_at_a_mount_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::PastUntold, df_moves_with_what_snapshots_keep);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks available, ")]
fn df_that_does_not_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::DfCountsTwice, df_tells_what_a_commit_will_leave);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks available, then")]
fn df_that_jumps_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::DfFallsWithIndex, df_moves_with_what_is_written);
}
