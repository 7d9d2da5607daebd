//! Requests over io_uring, over a real mount. As root this switches on what the kernel has switched off, and off again; skipped, with the
//! reason printed, where that is impossible. The other tests run so, too, with `NENRIN_TRANSPORT=uring`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::raw;
use common::real::Real;
use common::special::{Gate, Special};
use common::suite::{content, names};
use common::toy::Toy;
use common::{Mounted, errno, mount, noise};
use nenrin_core::{At, MkfsOptions};
use nenrin_fuse::{Cache, SessionOptions, Volume, Way};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The kernel's switch, which one test at a time may touch.
static SWITCHED: Mutex<()> = Mutex::new(());

/// The switch is on; it is put back at the end.
struct On {
    before: String,
    _one: MutexGuard<'static, ()>,
}

impl On {
    fn new() -> Option<Self> {
        let one = SWITCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let before = fs::read_to_string(SWITCH).ok();
        let Some(before) = before else {
            common::left_out(format_args!("this kernel has no FUSE over io_uring"));
            return None;
        };
        if before.trim() != "Y" && fs::write(SWITCH, "Y").is_err() {
            common::left_out(format_args!("only root can switch FUSE over io_uring on"));
            return None;
        }
        Some(Self { before, _one: one })
    }
}

impl Drop for On {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, self.before.trim());
    }
}

/// Mounts over io_uring.
fn mounted(volume: Arc<dyn Volume>) -> Option<(Mounted, On)> {
    let on = On::new()?;
    let mounted = mount(volume, At::Live, |_, options| options.way = Way::Uring)?;
    if mounted.way() != Way::Uring {
        common::left_out(format_args!("io_uring cannot be used here"));
        return None;
    }
    Some((mounted, on))
}

fn real() -> Real {
    Real::new(256 << 20, &MkfsOptions::default())
}

#[test]
fn the_public_suites_hold() {
    let toy = Arc::new(Toy::new());
    let Some((m, on)) = mounted(toy.clone()) else { return };
    let checks: [fn(&Path); 4] =
        [content::write_and_read, content::many_at_once, names::directories, names::large_listing];
    for (number, check) in checks.into_iter().enumerate() {
        let root = m.join(&format!("root{number}"));
        fs::create_dir(&root).unwrap();
        check(&root);
    }
    m.end();
    drop(on);
    assert_eq!((toy.inodes_and_uses().1, toy.unnamed()), (0, 0));
}

/// Each reads back what it synced, whoever led the commit, and it is there after the next mount.
#[test]
fn many_sync_at_once() {
    let world = real();
    let fs = world.open();
    let Some((m, on)) = mounted(fs.clone()) else { return };
    thread::scope(|scope| {
        for job in 0..16 {
            let path = m.join(&format!("f{job}"));
            scope.spawn(move || {
                let mut file = OpenOptions::new().create_new(true).append(true).open(path).unwrap();
                for block in 0..60 {
                    file.write_all(&noise(4096, job * 100 + block)).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    m.end();
    drop(on);
    fs.close().unwrap();
    drop(fs);
    let fs = world.open();
    for job in 0..16 {
        let ino = fs.lookup(At::Live, nenrin_format::Ino::ROOT, format!("f{job}").as_bytes()).unwrap().ino;
        let bytes = fs.read(At::Live, ino, 0, 1 << 20).unwrap();
        let want: Vec<u8> = (0..60).flat_map(|block| noise(4096, job * 100 + block)).collect();
        assert!(bytes[..] == want[..], "{job}");
    }
    fs.close().unwrap();
}

/// One client first, for whom a worker leads; then another beside it; long syncs; syncs of what nothing was written to.
#[test]
fn syncs_of_every_kind_are_answered() {
    let world = real();
    let fs = world.open();
    let Some((m, on)) = mounted(fs.clone()) else { return };
    let file = File::create(m.join("a")).unwrap();
    let alone = |from: u64| {
        for i in from..from + 100 {
            file.write_all_at(&noise(4096, i), i << 12).unwrap();
            file.sync_all().unwrap();
        }
    };
    alone(0);
    thread::scope(|scope| {
        let long = noise(8 << 20, 7);
        let path = m.join("b");
        scope.spawn(move || {
            let file = File::create(path).unwrap();
            for i in 0..4 {
                file.write_all_at(&long, i << 23).unwrap();
                file.sync_all().unwrap();
            }
        });
        alone(100);
    });
    alone(200);
    for _ in 0..50 {
        file.sync_all().unwrap();
    }
    File::open(m.root()).unwrap().sync_all().unwrap();
    drop(file);
    m.end();
    drop(on);
    fs.close().unwrap();
}

#[test]
fn large_transfers_come_whole() {
    let world = real();
    let fs = world.open();
    let Some((m, on)) = mounted(fs.clone()) else { return };
    let data = noise(24 << 20, 3);
    let path = m.join("large");
    let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
    file.write_all(&data).unwrap();
    file.sync_all().unwrap();
    common::slow::forget_pages(&file);
    assert!(fs::read(&path).unwrap() == data);
    drop(file);
    m.end();
    drop(on);
    fs.close().unwrap();
}

/// More than the ring of one processor has entries.
const WAITING: usize = 80;

/// Who asks at once for what needs pages of the kernel, of so many files of which it keeps some, all from one processor: each is
/// answered, though what the kernel sends takes an entry as well.
fn all_are_answered<T: Send>(ask: fn(&Path, &File) -> T) -> Option<Vec<T>> {
    let on = On::new()?;
    // What is started from here on asks one queue.
    raw::stay_on_one_cpu();
    let toy = Arc::new(Toy::telling_later());
    let change = |options: &mut SessionOptions| (options.way, options.cache) = (Way::Uring, Cache::WriteBack);
    let m = mount(toy.clone(), At::Live, |_, options| change(options))?;
    if m.way() != Way::Uring {
        common::left_out(format_args!("io_uring cannot be used here"));
        return None;
    }
    let files: Vec<_> = (0..WAITING)
        .map(|n| {
            let dir = m.join(&format!("d{n}"));
            fs::create_dir(&dir).unwrap();
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(dir.join("f")).unwrap();
            file.write_all_at(&[1; 4096], 1 << 20).unwrap();
            (dir, file)
        })
        .collect();
    let answered = AtomicUsize::new(0);
    let answers = thread::scope(|scope| {
        let asking: Vec<_> = files
            .iter()
            .map(|(dir, file)| {
                scope.spawn(|| {
                    let answer = ask(dir, file);
                    answered.fetch_add(1, Ordering::Relaxed);
                    answer
                })
            })
            .collect();
        // What comes first waits, until all are asking.
        thread::sleep(Duration::from_millis(500));
        let since = Instant::now();
        while answered.load(Ordering::Relaxed) < WAITING {
            toy.tell();
            thread::sleep(Duration::from_millis(1));
            if since.elapsed() > Duration::from_secs(10) {
                let answered = answered.load(Ordering::Relaxed);
                // Lest all wait for ever.
                raw::abort(m.root());
                panic!("{answered} of {WAITING} were answered");
            }
        }
        asking.into_iter().map(|asking| asking.join().unwrap()).collect()
    });
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                toy.tell();
                thread::sleep(Duration::from_millis(1));
            }
        });
        drop(files);
        m.end();
        over.store(true, Ordering::Relaxed);
    });
    drop(on);
    Some(answers)
}

/// Nor are they told of a hole where something is that the kernel has not sent, or refused: a program may have copied a part by then.
#[test]
fn looking_for_holes_leaves_entries_for_what_it_waits_for() {
    let Some(found) = all_are_answered(|_, file| raw::lseek(file, 0, libc::SEEK_DATA)) else { return };
    let is_right = |found: &std::io::Result<u64>| found.as_ref().is_ok_and(|at| *at == 1 << 20);
    let is_safe = |found: &std::io::Result<u64>| found.as_ref().is_ok_and(|at| *at == 0);
    assert!(found.iter().all(|found| is_right(found) || is_safe(found)), "{found:?}");
    assert!(found.iter().filter(|found| is_right(found)).count() >= 8, "{found:?}");
}

#[test]
fn links_leave_entries_for_what_they_wait_for() {
    let Some(linked) = all_are_answered(|dir, _| fs::hard_link(dir.join("f"), dir.join("g"))) else { return };
    linked.into_iter().for_each(Result::unwrap);
}

/// The end comes while requests are under way, and while entries are with workers only.
#[test]
fn the_end_comes_at_any_time() {
    for round in 0..6 {
        let Some((m, on)) = mounted(Arc::new(Toy::new())) else { return };
        thread::scope(|scope| {
            for job in 0..40 {
                let path = m.join(&format!("f{job}"));
                scope.spawn(move || {
                    let mut left = 20;
                    while left > 0 && fs::write(&path, [0; 100]).is_ok() {
                        left -= 1;
                    }
                });
            }
            if round % 2 == 0 {
                m.stopper().stop().unwrap();
            }
        });
        m.end();
        drop(on);
    }
}

/// Who syncs behind a change and then leads for others keeps no answer until they have what they want.
#[test]
fn a_sync_behind_a_change_is_answered_before_others_are_led() {
    let leads = Gate::default();
    let others = leads.clone();
    let volume = Arc::new(Special { after_sync: Box::new(move || others.pass()), ..Special::new() });
    let Some((m, on)) = mounted(volume) else { return };
    let how = libc::O_RDWR | libc::O_CREAT | libc::O_DSYNC;
    let [file, other] = ["f", "g"].map(|name| raw::open(&m.join(name), how, 0o600).unwrap());
    let (told, answered) = std::sync::mpsc::channel();
    // Not awaited if they never are answered.
    thread::spawn(move || {
        told.send(raw::fallocate(&file, 0, 0, 8192).is_ok()).unwrap();
        told.send(raw::copy_file_range(&file, 0, &other, 0, 8192).is_ok())
    });
    let answers: Vec<_> = (0..2).map(|_| answered.recv_timeout(Duration::from_secs(20))).collect();
    leads.open();
    assert_eq!(answers, [Ok(true), Ok(true)]);
    m.end();
    drop(on);
}

#[test]
fn without_the_switch_requests_come_the_classic_way() {
    let Some(on) = On::new() else { return };
    if fs::write(SWITCH, "N").is_err() {
        return;
    }
    let Some(m) = mount(Arc::new(Toy::new()), At::Live, |_, options| options.way = Way::Uring) else { return };
    drop(on);
    assert_eq!(m.way(), Way::Classic);
    fs::write(m.join("f"), b"x").unwrap();
    assert_eq!(errno(fs::create_dir(m.join("f"))), libc::EEXIST);
    m.end();
}

#[test]
fn writers_are_told_by_others() {
    let Some(_on) = On::new() else { return };
    common::later::writers_are_told_by_others(Way::Uring);
}
