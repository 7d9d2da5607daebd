//! P5: names that a directory has no more are told, each of them, also where what some of them stood for cannot be read.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::applied::rot;
use crate::common::{World, file};
use nenrin_core::format::Ino;
use nenrin_core::format::key::Kind;
use nenrin_core::{GoneName, MountOptions};
use std::sync::Arc;

const FILES: usize = 600;

/// All of them are gone, and a leaf with the inode of one of them, and of its neighbours, is lost.
fn with_a_lost_leaf(moved: bool) -> (World, Ino) {
    let w = World::new(64 << 20);
    let options = || MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = w.open_with(options());
    let names: Vec<String> = (0..FILES).map(|i| format!("file {i}")).collect();
    let made: Vec<Ino> =
        names.iter().map(|name| fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino).collect();
    let elsewhere = fs.create(Ino::ROOT, b"elsewhere", &crate::common::dir()).unwrap().ino;
    fs.checkpoint_create(None).unwrap();
    for name in &names {
        match moved {
            true => {
                let mode = nenrin_core::RenameMode::Replace;
                fs.rename(Ino::ROOT, name.as_bytes(), elsewhere, name.as_bytes(), mode).unwrap();
            }
            false => fs.unlink(Ino::ROOT, name.as_bytes()).unwrap(),
        }
    }
    fs.close().unwrap();
    drop(fs);
    let lost = made[FILES / 2];
    rot(&w, |key| key.ino == lost.0 && key.kind == Kind::Inode && (moved || key.death != 0));
    (w, lost)
}

fn names_with_a_lost_leaf() {
    for moved in [false, true] {
        let (w, lost) = with_a_lost_leaf(moved);
        let fs: Arc<_> = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let gone = fs.gone(&[]).unwrap();
        assert_eq!(gone.len(), FILES, "names are gone and not told, moved: {moved}");
        let (whole, damaged): (Vec<&GoneName>, Vec<_>) = gone.iter().partition(|g| g.damage.is_none());
        assert!(whole.iter().all(|g| g.attr.is_some() && g.now.is_some() == moved), "{whole:?}");
        assert!((1..FILES / 2).contains(&damaged.len()), "{}", damaged.len());
        let of_lost = damaged.iter().any(|g| g.name == format!("file {}", FILES / 2).as_bytes());
        assert!(of_lost && damaged.iter().all(|g| g.damage.as_deref().is_some_and(|why| why.contains("damage"))));
        assert!(gone.iter().all(|g| g.attr.is_none_or(|a| a.ino != lost)));
    }
}

#[test]
fn what_cannot_be_read_of_one_name_hides_no_other() {
    names_with_a_lost_leaf();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "names are gone and not told")]
fn names_that_damage_hides_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::DamageHidesNames, names_with_a_lost_leaf);
}
