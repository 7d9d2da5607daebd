//! The suite over a real mount, on the toy and on a volume in memory, each in
//! the modes that matter to it. Skipped, with the reason printed, where nothing
//! can be mounted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::suite::{content, names, owners, space};
use common::toy::Toy;
use common::{Mounted, mount};
use nenrin_core::At;
use nenrin_fuse::{Cache, MountOptions, Permissions, SessionOptions};
use std::path::Path;
use std::sync::Arc;

fn run(check: fn(&Path), change: impl FnOnce(&mut MountOptions, &mut SessionOptions)) {
    let toy = Arc::new(Toy::new());
    let Some(mounted) = mount(toy.clone(), At::Live, change) else { return };
    check(mounted.root());
    finish(mounted, &toy);
}

/// Whatever was done, in the end nothing is in use, and nothing unnamed is left.
fn finish(mounted: Mounted, toy: &Toy) {
    mounted.end();
    let (_, uses) = toy.inodes_and_uses();
    assert_eq!(uses, 0);
    assert_eq!(toy.unnamed(), 0);
}

fn allow_other(mount: &mut MountOptions, _: &mut SessionOptions) {
    mount.allow_other = true;
    mount.suid = true;
    mount.dev = true;
}
fn writeback(_: &mut MountOptions, options: &mut SessionOptions) {
    options.cache = Cache::WriteBack;
}
fn own_check(_: &mut MountOptions, options: &mut SessionOptions) {
    options.permissions = Permissions::Own;
}
fn two_threads(_: &mut MountOptions, options: &mut SessionOptions) {
    options.threads = 2;
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
        content::write_and_read, content::append_and_truncate, content::running_programs_stay, content::shared_mapping,
        content::direct_io, content::times, content::unlinked_but_open, content::many_at_once,
        names::renames, names::links, names::directories, names::odd_names, names::special_files,
        names::large_listing, names::xattrs,
        space::holes, space::reservations, space::copies, space::usage,
        owners::users, owners::set_group_id_directories, owners::privileges_go_with_a_write,
        owners::access_lists, owners::default_lists, owners::changed_programs_run_without_privileges;
    writeback:
        content::write_and_read, content::append_and_truncate, content::running_programs_stay, content::shared_mapping,
        content::direct_io, content::times, content::unlinked_but_open, content::many_at_once,
        names::renames, names::links, names::directories, names::large_listing, names::xattrs,
        space::holes, space::reservations, space::copies;
    own_check:
        content::write_and_read, content::append_and_truncate, content::running_programs_stay, content::unlinked_but_open,
        content::many_at_once, names::renames, names::links, names::directories, names::xattrs;
    two_threads: content::write_and_read, content::many_at_once, names::directories;
}
