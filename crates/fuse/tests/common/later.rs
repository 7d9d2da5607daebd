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

/// More than threads serve.
const WRITERS: u8 = 40;
/// More than threads serve, and less than the ring of one processor has entries, on which the kernel may have all of them run: what is
/// asked for there besides waits for an entry, and what lets these go in the test is asked for as well.
const WRITERS_OF_A_RING: u8 = 24;

fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let since = Instant::now();
    while !reached() {
        assert!(since.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whoever writes is kept waiting: others are served meanwhile, what was written is there, and the end waits for nobody.
pub fn writers_are_told_by_others(way: Way) {
    let count = if way == Way::Uring { WRITERS_OF_A_RING } else { WRITERS };
    for cache in [Cache::WriteThrough, Cache::WriteBack] {
        let toy = Arc::new(Toy::telling_later());
        let Some(m) = mount(toy.clone(), At::Live, |_, options| (options.way, options.cache) = (way, cache)) else {
            return;
        };
        if m.way() != way {
            return super::left_out(format_args!("the kernel has no rings"));
        }
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let writers: Vec<_> = (0..count)
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
            let at_once = if way == Way::Uring { 8 } else { usize::from(count) };
            wait_until("few are kept waiting", || toy.kept_waiting() >= at_once);
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
        for n in 0..count {
            let content = toy.content(&format!("f{n}"));
            let right = |(at, byte): (usize, &u8)| *byte == n + (at / 200_000) as u8;
            assert!(content.len() == 600_000 && content.iter().enumerate().all(right), "file {n}");
        }
        m.end();
    }
}
