//! Content of files.

use crate::common::{errno, noise, raw};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

pub fn write_and_read(root: &Path) {
    let path = root.join("file");
    let data = noise(3 << 20, 1);
    let mut file = File::create_new(&path).unwrap();
    assert_eq!(errno(File::create_new(&path)), libc::EEXIST);
    file.write_all(&data).unwrap();
    assert_eq!(file.metadata().unwrap().len(), data.len() as u64);
    assert_eq!(file.metadata().unwrap().blksize(), 1 << 20);
    // At odd places, within and beyond what is there.
    let patch = noise(10_000, 2);
    file.write_all_at(&patch, 4095).unwrap();
    file.write_all_at(&patch, 5_000_001).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mut want = data;
    want.resize(5_010_001, 0);
    want[4095..14_095].copy_from_slice(&patch);
    want[5_000_001..].copy_from_slice(&patch);
    assert!(fs::read(&path).unwrap() == want);
    let mut end = Vec::new();
    let mut file = File::open(&path).unwrap();
    file.seek(SeekFrom::Start(5_000_000)).unwrap();
    file.read_to_end(&mut end).unwrap();
    assert_eq!(end[0], 0);
    assert_eq!(&end[1..], patch);
    assert_eq!(file.read(&mut [0; 10]).unwrap(), 0);
    assert_eq!(errno(file.write(b"x")), libc::EBADF);
}

pub fn append_and_truncate(root: &Path) {
    let path = root.join("log");
    for i in 0..100 {
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        writeln!(file, "line {i}").unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 100);
    assert!(text.ends_with("line 99\n"));

    // O_TRUNC through open, while another handle is there.
    let reader = File::open(&path).unwrap();
    let mut file = File::create(&path).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 0);
    file.write_all(b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    file.set_len(10).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new\0\0\0\0\0\0\0");
    file.set_len(2).unwrap();
    file.set_len(5).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"ne\0\0\0");
    // A writer behind the end after a truncation leaves a hole.
    file.write_all_at(b"x", 9000).unwrap();
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len(), 9001);
    assert!(content[5..9000].iter().all(|&b| b == 0));
}

/// ETXTBSY: nobody empties or writes a program that runs.
pub fn running_programs_stay(root: &Path) {
    let path = root.join("sleep");
    fs::copy("/usr/bin/sleep", &path).unwrap();
    let program = fs::read(&path).unwrap();
    for _ in 0..20 {
        let mut running = start(Command::new(&path).arg("1000"));
        for flags in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR] {
            assert_eq!(errno(raw::open(&path, flags | libc::O_TRUNC, 0)), libc::ETXTBSY, "{flags}");
        }
        assert_eq!(running.try_wait().unwrap(), None, "it runs on");
        running.kill().unwrap();
        running.wait().unwrap();
        assert!(fs::read(&path).unwrap() == program);
    }
    fs::write(&path, b"").unwrap();
}

/// Starts a program that was written a moment ago. A process that another
/// thread of the tests forks meanwhile has the file open until its own exec.
fn start(command: &mut Command) -> Child {
    loop {
        match command.spawn() {
            Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) => std::thread::yield_now(),
            started => return started.unwrap(),
        }
    }
}

pub fn shared_mapping(root: &Path) {
    let path = root.join("mapped");
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.write_all(&vec![b'a'; 20_000]).unwrap();
    raw::with_shared_mapping(&file, 20_000, |bytes| {
        assert!(bytes.iter().all(|&b| b == b'a'));
        bytes[5000..15_000].fill(b'b');
    })
    .unwrap();
    let mut want = vec![b'a'; 20_000];
    want[5000..15_000].fill(b'b');
    assert!(fs::read(&path).unwrap() == want);
    file.sync_data().unwrap();
    drop(file);
    assert!(fs::read(&path).unwrap() == want);
}

pub fn direct_io(root: &Path) {
    let path = root.join("direct");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let data = noise(2 << 20, 3);
    // The allocator aligns large vectors well enough for a copying file system;
    // FUSE itself asks for no alignment.
    file.write_all(&data).unwrap();
    fs::write(root.join("other"), b"x").unwrap();
    let cached = File::open(&path).unwrap();
    let mut got = vec![0; data.len()];
    cached.read_exact_at(&mut got, 0).unwrap();
    assert!(got == data);
    // What goes around the cache must not leave old pages in it.
    file.write_all_at(&[9; 4096], 8192).unwrap();
    cached.read_exact_at(&mut got, 0).unwrap();
    assert_eq!(got[8191], data[8191]);
    assert!(got[8192..12_288].iter().all(|&b| b == 9));
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_exact(&mut got).unwrap();
    assert!(got[8192..12_288].iter().all(|&b| b == 9));
}

pub fn times(root: &Path) {
    let path = root.join("timed");
    let file = File::create(&path).unwrap();
    let far = SystemTime::UNIX_EPOCH + Duration::new(5_000_000_000, 123_456_789);
    let old = SystemTime::UNIX_EPOCH - Duration::from_secs(1_000_000);
    file.set_times(fs::FileTimes::new().set_modified(far).set_accessed(old)).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(meta.modified().unwrap(), far);
    assert_eq!(meta.accessed().unwrap(), old);
    // Writing brings the time of modification back to now.
    file.write_all_at(b"x", 0).unwrap();
    file.sync_all().unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let distance = SystemTime::now().duration_since(modified).unwrap_or_default();
    assert!(modified < far && distance < Duration::from_secs(60));
    let born = raw::btime(&path).unwrap().expect("a time of creation").0;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    assert!((now - 60..=now).contains(&born));
    // A directory's time goes with its entries.
    let dir = root.join("dir");
    fs::create_dir(&dir).unwrap();
    let before = fs::metadata(&dir).unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    fs::write(dir.join("x"), b"").unwrap();
    assert!(fs::metadata(&dir).unwrap().modified().unwrap() > before);
}

pub fn unlinked_but_open(root: &Path) {
    let path = root.join("gone");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(errno(File::open(&path)), libc::ENOENT);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b", and growing").unwrap();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here, and growing");
    // The same name again is another file.
    fs::write(&path, b"new").unwrap();
    assert_ne!(fs::metadata(&path).unwrap().ino(), file.metadata().unwrap().ino());
    file.sync_all().unwrap();
    drop(file);

    // Replaced by another, with two names gone one after the other, or only
    // referred to: in use all the same.
    let [a, b, c] = ["a", "b", "c"].map(|n| root.join(n));
    fs::write(&a, b"old").unwrap();
    fs::hard_link(&a, &b).unwrap();
    fs::write(&c, b"new").unwrap();
    let old = File::open(&a).unwrap();
    let reference = raw::open(&c, libc::O_PATH, 0).unwrap();
    fs::rename(&c, &a).unwrap();
    assert_eq!(old.metadata().unwrap().nlink(), 1);
    fs::remove_file(&b).unwrap();
    fs::remove_file(&a).unwrap();
    assert_eq!(old.metadata().unwrap().nlink(), 0);
    assert_eq!(std::io::read_to_string(&old).unwrap(), "old");
    assert_eq!(reference.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read(format!("/proc/self/fd/{}", reference.as_raw_fd())).unwrap(), b"new");
    let dir = root.join("dir");
    fs::create_dir(&dir).unwrap();
    let handle = File::open(&dir).unwrap();
    fs::remove_dir(&dir).unwrap();
    assert_eq!(handle.metadata().unwrap().nlink(), 0);
    let inside = format!("/proc/self/fd/{}/x", handle.as_raw_fd());
    assert_eq!(errno(File::create(&inside)), libc::ENOENT);
    drop((old, reference, handle));

    // And a file that never had a name gets one.
    let mut file = raw::open(root, libc::O_TMPFILE | libc::O_RDWR, 0o600).unwrap();
    file.write_all(b"unnamed").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    raw::link_fd(&file, &root.join("named")).unwrap();
    assert_eq!(fs::read(root.join("named")).unwrap(), b"unnamed");
    assert_eq!(file.metadata().unwrap().nlink(), 1);
}

/// Many threads at a time, each with files of its own and all in one directory.
pub fn many_at_once(root: &Path) {
    std::thread::scope(|scope| {
        for t in 0..8u64 {
            scope.spawn(move || {
                for i in 0..40u64 {
                    let path = root.join(format!("{t}-{i}"));
                    let data = noise(1000 * (i as usize + 1), t << 32 | i);
                    fs::write(&path, &data).unwrap();
                    assert!(fs::read(&path).unwrap() == data);
                    if i % 8 == 0 {
                        File::open(&path).unwrap().sync_all().unwrap();
                    }
                    let renamed = root.join(format!("r{t}-{i}"));
                    fs::rename(&path, &renamed).unwrap();
                    if i % 2 == 0 {
                        fs::remove_file(&renamed).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(fs::read_dir(root).unwrap().count(), 8 * 20);
    for t in 0..8u64 {
        for i in (1..40u64).step_by(2) {
            let data = noise(1000 * (i as usize + 1), t << 32 | i);
            assert!(fs::read(root.join(format!("r{t}-{i}"))).unwrap() == data);
        }
    }
}
