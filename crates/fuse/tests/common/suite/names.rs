//! Names, links, listings, extended attributes.

use crate::common::{errno, raw};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;

pub fn renames(root: &Path) {
    let [a, b, dir] = ["a", "b", "dir"].map(|n| root.join(n));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    fs::create_dir(&dir).unwrap();
    assert_eq!(errno(raw::renameat2(&a, &b, libc::RENAME_NOREPLACE)), libc::EEXIST);
    raw::renameat2(&a, &b, libc::RENAME_EXCHANGE).unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"b");
    assert_eq!(fs::read(&b).unwrap(), b"a");
    assert_eq!(errno(raw::renameat2(&a, &b, libc::RENAME_WHITEOUT)), libc::EINVAL);
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert_eq!(errno(fs::metadata(&a)), libc::ENOENT);
    fs::rename(&b, dir.join("b")).unwrap();
    assert_eq!(fs::read(dir.join("b")).unwrap(), b"b");
    raw::renameat2(&dir.join("b"), &root.join("c"), libc::RENAME_NOREPLACE).unwrap();
    assert_eq!(errno(fs::rename(&dir, dir.join("below"))), libc::EINVAL);
    // Directories: only an empty one is replaced, and ".." follows.
    fs::create_dir_all(root.join("x/y")).unwrap();
    fs::create_dir(root.join("z")).unwrap();
    fs::write(root.join("z/file"), b"").unwrap();
    assert_eq!(errno(fs::rename(root.join("x"), root.join("z"))), libc::ENOTEMPTY);
    fs::rename(root.join("x/y"), &dir).unwrap();
    assert_eq!(fs::metadata(dir.join("..")).unwrap().ino(), fs::metadata(root).unwrap().ino());
    assert_eq!(fs::metadata(root.join("x")).unwrap().nlink(), 2);
    // A directory in the place of a file and the other way round.
    assert_eq!(errno(fs::rename(root.join("c"), &dir)), libc::EISDIR);
    assert_eq!(errno(fs::rename(&dir, root.join("c"))), libc::ENOTDIR);
}

pub fn links(root: &Path) {
    let [a, b, s] = ["a", "b", "s"].map(|n| root.join(n));
    fs::write(&a, b"shared").unwrap();
    fs::hard_link(&a, &b).unwrap();
    assert_eq!(fs::metadata(&a).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(&a).unwrap().ino(), fs::metadata(&b).unwrap().ino());
    assert_eq!(errno(fs::hard_link(&a, &b)), libc::EEXIST);
    fs::write(&b, b"changed").unwrap();
    fs::remove_file(&a).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"changed");
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 1);
    symlink("b", &s).unwrap();
    assert_eq!(fs::read_link(&s).unwrap(), Path::new("b"));
    assert_eq!(fs::read(&s).unwrap(), b"changed");
    assert!(fs::symlink_metadata(&s).unwrap().is_symlink());
    assert_eq!(fs::symlink_metadata(&s).unwrap().len(), 1);
    let long = "x/".repeat(2000);
    symlink(&long, root.join("long")).unwrap();
    assert_eq!(fs::read_link(root.join("long")).unwrap(), Path::new(&long));
}

pub fn directories(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    assert_eq!(fs::metadata(root.join("a")).unwrap().nlink(), 3);
    assert_eq!(errno(fs::create_dir(root.join("a"))), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(root.join("a"))), libc::ENOTEMPTY);
    fs::write(root.join("f"), b"").unwrap();
    assert_eq!(errno(fs::remove_dir(root.join("f"))), libc::ENOTDIR);
    assert_eq!(errno(fs::remove_file(root.join("a"))), libc::EISDIR);
    assert_eq!(errno(fs::read_dir(root.join("f")).map(drop)), libc::ENOTDIR);
    assert_eq!(errno(fs::metadata(root.join("f/x"))), libc::ENOTDIR);
    fs::remove_dir_all(root.join("a")).unwrap();
    assert_eq!(errno(fs::metadata(root.join("a"))), libc::ENOENT);
}

pub fn odd_names(root: &Path) {
    let names: [&[u8]; 4] = [b"\xff\xfe", "年輪".as_bytes(), b" \n\t\\", &[b'x'; 255]];
    for name in names {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let listed: HashSet<Vec<u8>> =
        fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name().as_bytes().to_vec()).collect();
    assert_eq!(listed, names.iter().map(|n| n.to_vec()).collect());
    for name in names {
        assert_eq!(fs::read(root.join(OsStr::from_bytes(name))).unwrap(), name);
    }
    let long = root.join("x".repeat(256));
    assert_eq!(errno(fs::write(&long, b"")), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::metadata(&long)), libc::ENAMETOOLONG);
}

pub fn special_files(root: &Path) {
    raw::mknod(&root.join("fifo"), libc::S_IFIFO | 0o600, 0).unwrap();
    raw::mknod(&root.join("socket"), libc::S_IFSOCK | 0o600, 0).unwrap();
    assert!(fs::metadata(root.join("fifo")).unwrap().file_type().is_fifo());
    assert!(fs::metadata(root.join("socket")).unwrap().file_type().is_socket());
    let null = libc::makedev(1, 3);
    if raw::mknod(&root.join("null"), libc::S_IFCHR | 0o600, null).is_ok() {
        let meta = fs::metadata(root.join("null")).unwrap();
        assert!(meta.file_type().is_char_device());
        assert_eq!(meta.rdev(), null);
    }
    let big = libc::makedev(259, 70_000);
    if raw::mknod(&root.join("big"), libc::S_IFBLK | 0o600, big).is_ok() {
        assert_eq!(fs::metadata(root.join("big")).unwrap().rdev(), big);
    }
}

/// Ten thousand names, each once, whatever happens in between.
pub fn large_listing(root: &Path) {
    const COUNT: usize = 10_000;
    let dir = root.join("large");
    fs::create_dir(&dir).unwrap();
    for i in 0..COUNT {
        fs::write(dir.join(format!("file-{i}")), b"").unwrap();
    }
    let listed: HashSet<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(listed.len(), COUNT);
    // Again, with what is on the way stat'ed, as ls -l does.
    for entry in fs::read_dir(&dir).unwrap() {
        assert!(entry.unwrap().metadata().unwrap().is_file());
    }
    let mut stream = raw::Dir::open(&dir).unwrap();
    let all: Vec<(i64, Vec<u8>)> = std::iter::from_fn(|| stream.next()).collect();
    assert_eq!(all.len(), COUNT + 2);
    let unique: HashSet<&Vec<u8>> = all.iter().map(|(_, name)| name).collect();
    assert_eq!(unique.len(), COUNT + 2);
    // Each place leads back to its name.
    for i in (0..all.len()).step_by(997).chain([0, all.len() - 1]) {
        stream.seek(all[i].0);
        assert_eq!(stream.next().unwrap().1, all[i].1, "place {i}");
    }
    // Removing while listing neither hides nor repeats what is left.
    let mut stream = raw::Dir::open(&dir).unwrap();
    let mut seen = HashSet::new();
    let mut removed = 0;
    while let Some((_, name)) = stream.next() {
        if name == b"." || name == b".." {
            continue;
        }
        assert!(seen.insert(name.clone()), "{} twice", String::from_utf8_lossy(&name));
        if seen.len() % 2 == 0 {
            fs::remove_file(dir.join(OsStr::from_bytes(&name))).unwrap();
            removed += 1;
        }
    }
    assert_eq!(seen.len(), COUNT);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), COUNT - removed);
    drop(stream);
    fs::remove_dir_all(&dir).unwrap();
}

pub fn xattrs(root: &Path) {
    let path = root.join("file");
    fs::write(&path, b"").unwrap();
    assert_eq!(errno(raw::getxattr(&path, "user.none")), libc::ENODATA);
    raw::setxattr(&path, "user.a", b"1", libc::XATTR_CREATE).unwrap();
    assert_eq!(errno(raw::setxattr(&path, "user.a", b"2", libc::XATTR_CREATE)), libc::EEXIST);
    raw::setxattr(&path, "user.a", b"two", libc::XATTR_REPLACE).unwrap();
    assert_eq!(errno(raw::setxattr(&path, "user.b", b"", libc::XATTR_REPLACE)), libc::ENODATA);
    raw::setxattr(&path, "user.empty", b"", 0).unwrap();
    let large = vec![7; 60_000];
    raw::setxattr(&path, "user.large", &large, 0).unwrap();
    assert_eq!(raw::getxattr(&path, "user.a").unwrap(), b"two");
    assert_eq!(raw::getxattr(&path, "user.empty").unwrap(), b"");
    assert!(raw::getxattr(&path, "user.large").unwrap() == large);
    assert_eq!(raw::getxattr_sized(&path, "user.large", 0).unwrap(), 60_000);
    assert_eq!(errno(raw::getxattr_sized(&path, "user.large", 100)), libc::ERANGE);
    let names: HashSet<String> = raw::listxattr(&path).unwrap().into_iter().collect();
    assert_eq!(names, ["user.a", "user.empty", "user.large"].map(String::from).into());
    raw::removexattr(&path, "user.large").unwrap();
    assert_eq!(errno(raw::removexattr(&path, "user.large")), libc::ENODATA);
    assert_eq!(errno(raw::setxattr(&path, "nowhere.a", b"", 0)), libc::EOPNOTSUPP);
    raw::setxattr(root, "user.dir", b"x", 0).unwrap();
    assert_eq!(raw::getxattr(root, "user.dir").unwrap(), b"x");
    raw::removexattr(root, "user.dir").unwrap();
}
