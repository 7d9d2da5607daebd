//! Owners, modes, privileges and ACLs, with several users at a time. Needs root
//! and a mount that others may enter.

use crate::common::{errno, raw};
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn mode(p: &Path) -> u32 {
    fs::symlink_metadata(p).unwrap().mode() & 0o7777
}
fn chmod(p: &Path, mode: u32) {
    fs::set_permissions(p, Permissions::from_mode(mode)).unwrap();
}
/// A list from (tag, permissions, id); tags are 1 owner, 2 user, 4 owning
/// group, 8 group, 16 mask, 32 other.
pub fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}
const NO: u32 = u32::MAX;

pub fn users(root: &Path) {
    let mine = root.join("mine");
    fs::write(&mine, b"secret").unwrap();
    chmod(&mine, 0o640);
    chown(&mine, Some(1000), Some(100)).unwrap();
    raw::as_user(1001, 101, &[], || {
        assert_eq!(errno(fs::read(&mine)), libc::EACCES);
        assert_eq!(errno(fs::write(root.join("new"), b"")), libc::EACCES);
        assert_eq!(errno(fs::set_permissions(&mine, Permissions::from_mode(0o777))), libc::EPERM);
        assert_eq!(errno(chown(&mine, Some(1001), None)), libc::EPERM);
    });
    raw::as_user(1001, 101, &[100], || {
        assert_eq!(fs::read(&mine).unwrap(), b"secret");
        assert_eq!(errno(fs::write(&mine, b"")), libc::EACCES);
    });
    raw::as_user(1000, 101, &[], || {
        fs::write(&mine, b"changed").unwrap();
        fs::set_permissions(&mine, Permissions::from_mode(0o600)).unwrap();
    });
    // A mode that was cached is not believed after a change.
    raw::as_user(1001, 101, &[100], || assert_eq!(errno(fs::read(&mine)), libc::EACCES));
    let dir = root.join("dir");
    fs::create_dir(&dir).unwrap();
    chmod(&dir, 0o1777);
    raw::as_user(1001, 101, &[], || {
        fs::write(dir.join("theirs"), b"").unwrap();
        assert_eq!(fs::metadata(dir.join("theirs")).unwrap().uid(), 1001);
        assert_eq!(fs::metadata(dir.join("theirs")).unwrap().gid(), 101);
    });
    raw::as_user(1000, 100, &[], || {
        assert_eq!(errno(fs::remove_file(dir.join("theirs"))), libc::EPERM);
        assert_eq!(errno(fs::rename(dir.join("theirs"), dir.join("x"))), libc::EPERM);
    });
}

pub fn set_group_id_directories(root: &Path) {
    let dir = root.join("team");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(0), Some(500)).unwrap();
    fs::write(dir.join("before"), b"").unwrap();
    assert_eq!(fs::metadata(dir.join("before")).unwrap().gid(), 0);
    chmod(&dir, 0o2777);
    fs::write(dir.join("after"), b"").unwrap();
    assert_eq!(fs::metadata(dir.join("after")).unwrap().gid(), 500);
    fs::create_dir(dir.join("sub")).unwrap();
    assert_eq!(fs::metadata(dir.join("sub")).unwrap().gid(), 500);
    assert_eq!(mode(&dir.join("sub")) & 0o2000, 0o2000);
    raw::mknod(&dir.join("fifo"), libc::S_IFIFO | 0o644, 0).unwrap();
    assert_eq!(fs::metadata(dir.join("fifo")).unwrap().gid(), 500);
    let f = raw::open(&dir, libc::O_TMPFILE | libc::O_RDWR, 0o600).unwrap();
    assert_eq!(f.metadata().unwrap().gid(), 500);
    raw::as_user(1001, 101, &[], || {
        // Not a member: the bit is not for the taking.
        raw::open(&dir.join("prog"), libc::O_CREAT | libc::O_WRONLY, 0o2755).unwrap();
        assert_eq!(mode(&dir.join("prog")) & 0o2000, 0);
    });
    chmod(&dir, 0o777);
    fs::write(dir.join("again"), b"").unwrap();
    assert_eq!(fs::metadata(dir.join("again")).unwrap().gid(), 0);
}

pub fn privileges_go_with_a_write(root: &Path) {
    let prog = root.join("prog");
    let append = |p: &Path| {
        OpenOptions::new().append(true).open(p).unwrap().write_all(b"x").unwrap();
    };
    fs::write(&prog, b"x").unwrap();
    chown(&prog, Some(1000), Some(100)).unwrap();
    let fresh = || chmod(&prog, 0o6777);
    fresh();
    append(&prog);
    assert_eq!(mode(&prog), 0o6777, "root keeps them");
    raw::as_user(1001, 101, &[], || append(&prog));
    assert_eq!(mode(&prog), 0o777);
    // The same file, written through one handle, and getting them back meanwhile.
    let write_at_turns = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            raw::as_user(1001, 101, &[], || {
                let mut f = OpenOptions::new().append(true).open(&prog).unwrap();
                f.write_all(b"y").unwrap();
                write_at_turns.wait();
                write_at_turns.wait();
                f.write_all(b"z").unwrap();
            });
        });
        write_at_turns.wait();
        fresh();
        write_at_turns.wait();
    });
    assert_eq!(mode(&prog), 0o777);
    fresh();
    raw::as_user(1001, 101, &[], || {
        let f = OpenOptions::new().write(true).open(&prog).unwrap();
        f.set_len(1).unwrap();
    });
    assert_eq!(mode(&prog), 0o777, "truncation");
    fresh();
    raw::as_user(1001, 101, &[], || fs::write(&prog, b"").unwrap());
    assert_eq!(mode(&prog), 0o777, "O_TRUNC");
    fresh();
    raw::as_user(1001, 101, &[], || {
        let f = OpenOptions::new().write(true).open(&prog).unwrap();
        raw::fallocate(&f, 0, 0, 100).unwrap();
    });
    assert_eq!(mode(&prog), 0o777, "fallocate");
    fresh();
    chown(&prog, Some(1002), None).unwrap();
    assert_eq!(mode(&prog), 0o777, "chown");
    // Without group execution the set-group-id bit is none to who could set it: a member of the group.
    let fresh = || chmod(&prog, 0o2666);
    fresh();
    raw::as_user(1001, 101, &[100], || append(&prog));
    assert_eq!(mode(&prog), 0o2666);
    chown(&prog, Some(1002), None).unwrap();
    assert_eq!(mode(&prog), 0o2666, "root could, too");
    raw::as_user(1001, 101, &[], || append(&prog));
    assert_eq!(mode(&prog), 0o666);
    fresh();
    raw::as_user(1001, 101, &[], || raw::truncate(&prog, 1).unwrap());
    assert_eq!(mode(&prog), 0o666, "truncation");
    // Through a handle by which members wrote before, too.
    fresh();
    let open = OpenOptions::new().append(true).open(&prog).unwrap();
    raw::as_user(1001, 100, &[], || (&open).write_all(b"x").unwrap());
    assert_eq!(mode(&prog), 0o2666);
    raw::as_user(1001, 101, &[], || (&open).write_all(b"x").unwrap());
    assert_eq!(mode(&prog), 0o666);
    drop(open);
    // Capabilities go too.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    raw::setxattr(&prog, "security.capability", &capability, 0).unwrap();
    append(&prog);
    assert_eq!(errno(raw::getxattr(&prog, "security.capability")), libc::ENODATA);
}

pub fn access_lists(root: &Path) {
    let f = root.join("shared");
    fs::write(&f, b"text").unwrap();
    chmod(&f, 0o600);
    assert_eq!(errno(raw::getxattr(&f, ACCESS)), libc::ENODATA);
    let list = acl(&[(1, 6, NO), (2, 6, 1001), (4, 0, NO), (16, 6, NO), (32, 0, NO)]);
    raw::setxattr(&f, ACCESS, &list, 0).unwrap();
    assert_eq!(raw::getxattr(&f, ACCESS).unwrap(), list);
    assert_eq!(mode(&f), 0o660, "the group bits are the mask");
    raw::as_user(1001, 101, &[], || fs::write(&f, b"theirs").unwrap());
    raw::as_user(1002, 0, &[], || assert_eq!(errno(fs::read(&f)), libc::EACCES));
    // chmod changes the mask, and the named user with it.
    chmod(&f, 0o640);
    let masked = acl(&[(1, 6, NO), (2, 6, 1001), (4, 0, NO), (16, 4, NO), (32, 0, NO)]);
    assert_eq!(raw::getxattr(&f, ACCESS).unwrap(), masked);
    raw::as_user(1001, 101, &[], || {
        assert_eq!(fs::read(&f).unwrap(), b"theirs");
        assert_eq!(errno(fs::write(&f, b"")), libc::EACCES);
        assert_eq!(errno(raw::setxattr(&f, ACCESS, &list, 0)), libc::EPERM);
    });
    // A list that says no more than the mode is none.
    raw::setxattr(&f, ACCESS, &acl(&[(1, 7, NO), (4, 5, NO), (32, 4, NO)]), 0).unwrap();
    assert_eq!(mode(&f), 0o754);
    assert_eq!(errno(raw::getxattr(&f, ACCESS)), libc::ENODATA);
    assert_eq!(raw::listxattr(&f).unwrap(), Vec::<String>::new());
    assert_eq!(errno(raw::setxattr(&f, ACCESS, &[2, 0, 0, 0, 1], 0)), libc::EINVAL);
    assert_eq!(errno(raw::setxattr(&f, DEFAULT, &list, 0)), libc::EACCES);
    raw::setxattr(&f, ACCESS, &list, 0).unwrap();
    raw::removexattr(&f, ACCESS).unwrap();
    assert_eq!(errno(raw::getxattr(&f, ACCESS)), libc::ENODATA);
    // Where there is none there is none to be missed.
    raw::removexattr(&f, ACCESS).unwrap();
    raw::removexattr(&f, DEFAULT).unwrap();
    // Who is not in the file's group cannot keep its set-group-id bit.
    chown(&f, Some(1000), Some(500)).unwrap();
    chmod(&f, 0o2770);
    raw::as_user(1000, 100, &[500], || raw::setxattr(&f, ACCESS, &list, 0).unwrap());
    assert_eq!(mode(&f), 0o2660);
    raw::as_user(1000, 100, &[], || raw::setxattr(&f, ACCESS, &list, 0).unwrap());
    assert_eq!(mode(&f), 0o660);
}

pub fn default_lists(root: &Path) {
    let dir = root.join("project");
    fs::create_dir(&dir).unwrap();
    chmod(&dir, 0o700);
    fs::write(dir.join("before"), b"").unwrap();
    let default = acl(&[(1, 7, NO), (2, 7, 1001), (4, 5, NO), (16, 7, NO), (32, 0, NO)]);
    raw::setxattr(&dir, DEFAULT, &default, 0).unwrap();
    // The umask, which is 022 or so, does not count here.
    raw::open(&dir.join("file"), libc::O_CREAT | libc::O_WRONLY, 0o666).unwrap();
    assert_eq!(mode(&dir.join("file")), 0o660);
    let want = acl(&[(1, 6, NO), (2, 7, 1001), (4, 5, NO), (16, 6, NO), (32, 0, NO)]);
    assert_eq!(raw::getxattr(&dir.join("file"), ACCESS).unwrap(), want);
    raw::as_user(1001, 101, &[], || fs::write(dir.join("file"), b"").unwrap_err());
    chmod(&dir, 0o711);
    raw::as_user(1001, 101, &[], || fs::write(dir.join("file"), b"x").unwrap());
    fs::create_dir(dir.join("sub")).unwrap();
    assert_eq!(raw::getxattr(&dir.join("sub"), DEFAULT).unwrap(), default);
    assert_eq!(mode(&dir.join("sub")), 0o770);
    raw::as_user(1001, 101, &[], || fs::write(dir.join("sub/x"), b"").unwrap());
    let f = raw::open(&dir, libc::O_TMPFILE | libc::O_RDWR, 0o604).unwrap();
    assert_eq!(f.metadata().unwrap().mode() & 0o777, 0o600);
    std::os::unix::fs::symlink("x", dir.join("link")).unwrap();
    assert_eq!(mode(&dir.join("link")), 0o777);
    // One that is only a mode takes the place of the umask and leaves no list.
    raw::setxattr(&dir, DEFAULT, &acl(&[(1, 7, NO), (4, 7, NO), (32, 5, NO)]), 0).unwrap();
    raw::open(&dir.join("plain"), libc::O_CREAT | libc::O_WRONLY, 0o666).unwrap();
    assert_eq!(mode(&dir.join("plain")), 0o664);
    assert_eq!(errno(raw::getxattr(&dir.join("plain"), ACCESS)), libc::ENODATA);
    raw::removexattr(&dir, DEFAULT).unwrap();
    raw::open(&dir.join("masked"), libc::O_CREAT | libc::O_WRONLY, 0o666).unwrap();
    assert_ne!(mode(&dir.join("masked")), 0o666, "the umask is back");
}

/// As flags of chattr(1): who may write to a directory does not decide what is kept of what others make in it.
pub fn history_is_the_owners(root: &Path) {
    const HISTORY: &str = "user.nenrin.history";
    let [dir, file] = ["shared", "file"].map(|name| root.join(name));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, b"text").unwrap();
    for path in [&dir, &file] {
        chmod(path, 0o777);
        chown(path, Some(1000), Some(100)).unwrap();
        raw::setxattr(path, HISTORY, b"daily", 0).unwrap();
        raw::as_user(1001, 100, &[], || {
            assert_eq!(errno(raw::setxattr(path, HISTORY, b"none", 0)), libc::EPERM);
            assert_eq!(errno(raw::removexattr(path, HISTORY)), libc::EPERM);
            assert_eq!(raw::getxattr(path, HISTORY).unwrap(), b"daily");
            raw::setxattr(path, "user.other", b"none", 0).unwrap();
        });
        raw::as_user(1000, 101, &[], || {
            raw::setxattr(path, HISTORY, b"none", 0).unwrap();
            raw::removexattr(path, HISTORY).unwrap();
        });
    }
}

/// A program that somebody changed runs without the privileges it had, even if
/// nobody asked for its mode in between.
pub fn changed_programs_run_without_privileges(root: &Path) {
    let prog = root.join("id");
    fs::copy("/usr/bin/id", &prog).unwrap();
    chmod(&prog, 0o4777);
    let effective = || {
        let out = Command::new(&prog).arg("-u").uid(1001).gid(101).output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(effective(), "0");
    raw::as_user(1001, 101, &[], || {
        OpenOptions::new().append(true).open(&prog).unwrap().write_all(b"x").unwrap();
    });
    assert_eq!(effective(), "1001");
    // The same for one that was written anew through O_TRUNC.
    let bytes = fs::read("/usr/bin/id").unwrap();
    chmod(&prog, 0o4777);
    assert_eq!(effective(), "0");
    raw::as_user(1001, 101, &[], || fs::write(&prog, &bytes).unwrap());
    assert_eq!(effective(), "1001");
}
