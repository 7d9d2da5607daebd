//! The suite over a real mount, on the toy and on a volume in memory, each in
//! the modes that matter to it. Skipped, with the reason printed, where nothing
//! can be mounted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::suite::{content, names, owners, space};
use common::toy::Toy;
use common::{Mounted, errno, mount, raw};
use nenrin_core::{At, XattrMode};
use nenrin_format::Ino;
use nenrin_fuse::{Cache, MountOptions, Permissions, SessionOptions, Volume};
use std::fs;
use std::os::unix::fs::MetadataExt;
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

/// Where the front end checks permissions no list can be set, and those that are there are obeyed: nothing is more open than its
/// directory says.
#[test]
fn own_check_obeys_the_default_lists_there_are() {
    const NO: u32 = u32::MAX;
    let toy = Arc::new(Toy::new());
    let default = owners::acl(&[(1, 7, NO), (2, 7, 1001), (4, 5, NO), (16, 7, NO), (32, 0, NO)]);
    toy.setxattr(Ino::ROOT, b"system.posix_acl_default", &default, XattrMode::Any).unwrap();
    let Some(mounted) = mount(toy.clone(), At::Live, own_check) else { return };
    let root = mounted.root();
    assert_eq!(errno(raw::setxattr(root, "system.posix_acl_default", &default, 0)), libc::EOPNOTSUPP);
    // The umask, which is 022 or so, does not count here.
    raw::open(&root.join("file"), libc::O_CREAT | libc::O_WRONLY, 0o666).unwrap();
    fs::create_dir(root.join("dir")).unwrap();
    raw::open(&root.join("dir/below"), libc::O_CREAT | libc::O_WRONLY, 0o666).unwrap();
    let modes = ["file", "dir", "dir/below"].map(|name| fs::metadata(root.join(name)).unwrap().mode() & 0o7777);
    assert_eq!(modes, [0o660, 0o770, 0o660]);
    let dir = toy.lookup(At::Live, Ino::ROOT, b"dir").unwrap().ino;
    assert_eq!(toy.getxattr(At::Live, dir, b"system.posix_acl_default").unwrap(), default);
    toy.removexattr(dir, b"system.posix_acl_default").unwrap();
    toy.removexattr(Ino::ROOT, b"system.posix_acl_default").unwrap();
    let masked = |mode: u32| mode & !umask();
    raw::open(&root.join("dir/masked"), libc::O_CREAT | libc::O_WRONLY, 0o666).unwrap();
    assert_eq!(fs::metadata(root.join("dir/masked")).unwrap().mode() & 0o777, masked(0o666), "the umask is back");
    finish(mounted, &toy);
}

/// Of this process.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let text = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(text.trim(), 8).unwrap()
}
