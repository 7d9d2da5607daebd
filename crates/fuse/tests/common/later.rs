//! Writes that are answered by another thread, later than they were taken.

use super::mount;
use super::toy::Toy;
use nenrin_core::At;
use nenrin_fuse::{Cache, Way};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// More than threads serve, and than a ring has entries for each of two processors.
const WRITERS: u8 = 40;

fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let since = Instant::now();
    while !reached() {
        assert!(since.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whoever writes is kept waiting: others are served meanwhile, what was written is there, and the end waits for nobody.
pub fn writers_are_told_by_others(way: Way) {
    for cache in [Cache::WriteThrough, Cache::WriteBack] {
        let toy = Arc::new(Toy::telling_later());
        let Some(m) = mount(toy.clone(), At::Live, |_, options| (options.way, options.cache) = (way, cache)) else {
            return;
        };
        if m.way() != way {
            return eprintln!("skipped: the kernel has no rings");
        }
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|n| {
                    let path = m.join(&format!("f{n}"));
                    scope.spawn(move || {
                        let file = fs::File::create(path).unwrap();
                        for k in 0..3_u64 {
                            file.write_all_at(&vec![n + k as u8; 200_000], k * 200_000).unwrap();
                        }
                        file.sync_all().unwrap();
                    })
                })
                .collect();
            // As many as there may be at once wait, and somebody serves others.
            let at_once = if way == Way::Uring { 8 } else { usize::from(WRITERS) };
            wait_until("few are kept waiting", || toy.kept_waiting() >= at_once.min(WRITERS.into()));
            fs::create_dir(m.join("served")).unwrap();
            let tells = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    toy.tell();
                    thread::yield_now();
                }
            });
            writers.into_iter().for_each(|w| w.join().unwrap());
            over.store(true, Ordering::Relaxed);
            tells.join().unwrap();
        });
        for n in 0..WRITERS {
            let content = toy.content(&format!("f{n}"));
            let right = |(at, byte): (usize, &u8)| *byte == n + (at / 200_000) as u8;
            assert!(content.len() == 600_000 && content.iter().enumerate().all(right), "file {n}");
        }
        m.end();
    }
}
