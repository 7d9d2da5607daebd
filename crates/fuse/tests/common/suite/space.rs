//! Holes, reservations, copies, and what df(1) says.

use crate::common::{errno, noise, raw};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

fn file(root: &Path, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(root.join(name)).unwrap()
}

pub fn holes(root: &Path) {
    let f = file(root, "sparse");
    f.write_all_at(&[1; 8192], 0).unwrap();
    f.write_all_at(&[2; 4096], 1 << 20).unwrap();
    f.sync_all().unwrap();
    let end = (1 << 20) + 4096;
    assert_eq!(raw::lseek(&f, 0, libc::SEEK_DATA).unwrap(), 0);
    assert_eq!(raw::lseek(&f, 0, libc::SEEK_HOLE).unwrap(), 8192);
    assert_eq!(raw::lseek(&f, 8192, libc::SEEK_DATA).unwrap(), 1 << 20);
    assert_eq!(raw::lseek(&f, 1 << 20, libc::SEEK_HOLE).unwrap(), end);
    assert_eq!(errno(raw::lseek(&f, end as i64, libc::SEEK_DATA)), libc::ENXIO);
    assert_eq!(errno(raw::lseek(&f, end as i64, libc::SEEK_HOLE)), libc::ENXIO);
    assert!(f.metadata().unwrap().blocks() * 512 < 100_000);

    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    raw::fallocate(&f, punch, 4096, 4096).unwrap();
    assert_eq!(raw::lseek(&f, 0, libc::SEEK_HOLE).unwrap(), 4096);
    // Not on block boundaries: only the bytes between are zeroed.
    f.write_all_at(&[3; 12_288], 0).unwrap();
    raw::fallocate(&f, punch, 1000, 9000).unwrap();
    let content = fs::read(root.join("sparse")).unwrap();
    assert!(content[..1000].iter().all(|&b| b == 3));
    assert!(content[1000..10_000].iter().all(|&b| b == 0));
    assert!(content[10_000..12_288].iter().all(|&b| b == 3));
    assert_eq!(content.len() as u64, end);
    assert_eq!(errno(raw::fallocate(&f, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), libc::EOPNOTSUPP);
}

pub fn reservations(root: &Path) {
    let f = file(root, "reserved");
    f.write_all_at(b"data", 0).unwrap();
    raw::fallocate(&f, 0, 0, 100_000).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 100_000);
    raw::fallocate(&f, libc::FALLOC_FL_KEEP_SIZE, 0, 200_000).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 100_000);
    let mut got = vec![1; 100_000];
    f.read_exact_at(&mut got, 0).unwrap();
    assert_eq!(&got[..4], b"data");
    assert!(got[4..].iter().all(|&b| b == 0));
    f.write_all_at(&[5; 100], 50_000).unwrap();
    raw::fallocate(&f, libc::FALLOC_FL_ZERO_RANGE, 50_010, 80).unwrap();
    f.read_exact_at(&mut got[..100], 50_000).unwrap();
    assert!(got[..10].iter().chain(&got[90..100]).all(|&b| b == 5));
    assert!(got[10..90].iter().all(|&b| b == 0));
    raw::fallocate(&f, libc::FALLOC_FL_ZERO_RANGE, 90_000, 20_000).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 110_000);
    let keep = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    raw::fallocate(&f, keep, 100_000, 50_000).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 110_000);
}

pub fn copies(root: &Path) {
    let (a, b) = (file(root, "a"), file(root, "b"));
    let data = noise(300_000, 5);
    a.write_all_at(&data, 0).unwrap();
    b.write_all_at(&[1; 10], 0).unwrap();
    let mut done = 0;
    while done < 300_000 {
        let n = raw::copy_file_range(&a, done as i64, &b, 100 + done as i64, 300_000 - done).unwrap();
        assert_ne!(n, 0);
        done += n as usize;
    }
    let copy = fs::read(root.join("b")).unwrap();
    assert_eq!(copy.len(), 300_100);
    assert!(copy[100..] == data);
    assert_eq!(copy[..12], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    // Whole blocks, which can be shared, and then changing one of the two.
    let c = file(root, "c");
    assert_eq!(raw::copy_file_range(&a, 0, &c, 0, 262_144).unwrap(), 262_144);
    c.write_all_at(&[9; 4096], 8192).unwrap();
    assert!(fs::read(root.join("a")).unwrap() == data);
    let copy = fs::read(root.join("c")).unwrap();
    assert!(copy[..8192] == data[..8192] && copy[12_288..] == data[12_288..262_144]);
    assert!(copy[8192..12_288].iter().all(|&b| b == 9));
    // Nothing behind the end, and std's own copy.
    assert_eq!(raw::copy_file_range(&a, 300_000, &c, 0, 10).unwrap(), 0);
    assert_eq!(fs::copy(root.join("a"), root.join("d")).unwrap(), 300_000);
    assert!(fs::read(root.join("d")).unwrap() == data);
}

pub fn usage(root: &Path) {
    let s = raw::statfs(root).unwrap();
    assert_eq!((s.block_bytes, s.name_bytes_max), (4096, 255));
    assert!(s.blocks > 0 && s.available > 0 && s.available <= s.blocks);
}
