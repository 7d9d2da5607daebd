//! The suite over a real mount of a real volume on a device in memory. After
//! each check the volume is closed, opened again, and must show the same.

mod common;

use common::mount;
use common::real::{Real, contents};
use common::suite::{content, names, owners, space};
use nenrin_core::{At, MkfsOptions};
use nenrin_fuse::{Cache, MountOptions, SessionOptions};
use std::path::Path;
use std::sync::Arc;

const VOLUME_BYTES: usize = 256 << 20;

fn run(check: fn(&Path), change: impl FnOnce(&mut MountOptions, &mut SessionOptions)) {
    let world = Real::new(VOLUME_BYTES, &MkfsOptions::default());
    let fs = world.open();
    let Some(mounted) = mount(fs.clone(), At::Live, change) else { return };
    check(mounted.root());
    mounted.end();
    let before = contents(&fs, At::Live);
    assert_eq!(fs.failed(), None);
    fs.close().unwrap();
    assert_eq!(Arc::strong_count(&fs), 1, "the session has let go of the volume");
    drop(fs);
    let fs = world.open();
    assert!(fs.recovery_report().clean);
    assert_eq!(contents(&fs, At::Live), before);
    fs.close().unwrap();
}

fn allow_other(mount: &mut MountOptions, _: &mut SessionOptions) {
    mount.allow_other = true;
    mount.suid = true;
    mount.dev = true;
}
fn writeback(_: &mut MountOptions, options: &mut SessionOptions) {
    options.cache = Cache::WriteBack;
}

macro_rules! suite {
    ($($mode:ident: $($area:ident::$check:ident),*;)*) => {$(
        mod $mode {
            use super::*;
            $(#[test] fn $check() { run($area::$check, super::$mode) })*
        }
    )*};
}
suite! {
    allow_other:
        content::write_and_read, content::append_and_truncate, content::shared_mapping,
        content::direct_io, content::times, content::unlinked_but_open, content::many_at_once,
        names::renames, names::links, names::directories, names::odd_names, names::special_files,
        names::large_listing, names::xattrs,
        space::holes, space::reservations, space::copies, space::usage,
        owners::users, owners::set_group_id_directories, owners::privileges_go_with_a_write,
        owners::access_lists, owners::default_lists;
    writeback:
        content::write_and_read, content::append_and_truncate, content::shared_mapping,
        content::direct_io, content::times, content::unlinked_but_open, content::many_at_once,
        names::renames, names::links, names::directories, names::large_listing, names::xattrs,
        space::holes, space::reservations, space::copies;
}
