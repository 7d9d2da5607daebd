//! What is done beside requests, on threads of its own.
//!
//! Invariants
//! 1. A mistake in one of them costs what it did this time, and is told: it goes on.
//! 2. What any of them does is over when the volume is closed.
//! 3. With `mmp` one of them beats from before the first write until that.

use super::service::{Event, Service};
use super::{Log, TICK, TICKS_PER_WATCH};
use crate::control::{Presence, Server};
use crate::sys;
use nenrin_core::Fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Longest pause after mistakes in a row.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A thread that does the same again and again, until this goes.
///
/// What it does is waited for, and not for its end: the kernel keeps a thread that has requests under way to a device that does not answer.
struct Repeated {
    stop: Option<mpsc::Sender<()>>,
    over: mpsc::Receiver<()>,
}

impl Repeated {
    /// `tell` gets what a mistake in `work` said.
    fn start(
        name: &str,
        tell: impl Fn(&str) + Send + 'static,
        mut work: impl FnMut() + Send + 'static,
    ) -> std::io::Result<Self> {
        let ((stop, stopped), (ended, over)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
        let repeat = move || {
            sys::set_io_flusher();
            let mut pause = TICK;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                match catch_unwind(AssertUnwindSafe(&mut work)) {
                    Ok(()) => pause = TICK,
                    Err(why) => {
                        let text = why.downcast_ref::<String>().map(String::as_str);
                        tell(text.or(why.downcast_ref::<&str>().copied()).unwrap_or("unknown"));
                        // What is wrong may be so for long.
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
            }
            // With all that it has.
            drop((work, tell));
            drop(ended);
        };
        thread::Builder::new().name(name.into()).spawn(repeat)?;
        Ok(Self { stop: Some(stop), over })
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.over.recv();
    }
}

/// What a thread does each time.
type Work = Box<dyn FnMut(&Arc<Service>) + Send>;

/// All of them.
pub struct Threads {
    _ticker: Repeated,
    /// A tick may be long at other work.
    _committer: Repeated,
    judges: Judges,
}

/// Those that are needed until the volume was closed, which may take its time, and wait for a device.
pub struct Judges {
    /// It may wait for a device that does not answer.
    _judge: Repeated,
    /// It does nothing but show other hosts that this one has the volume: a tick may take its time.
    _beater: Option<Repeated>,
}

/// Beats while a volume comes up, until the other threads do.
pub struct Rising {
    _beater: Repeated,
}

impl Rising {
    /// Starts it, where the volume has a heart. Without a thread for that the volume is as slow to come up as it is, and asks itself
    /// whether it is another's before it writes.
    pub fn start(fs: &Arc<Fs>, log: &Arc<Log>) -> Option<Self> {
        fs.mmp()?;
        // Who opens it may fail, and then nobody is to have it.
        let (beaten, log) = (Arc::downgrade(fs), log.clone());
        let beat = move || drop(beaten.upgrade().map(|fs| fs.beat()));
        let tell = move |what: &str| log.line(&format!("a mistake of this program, in nenrin-mmp: {what}"));
        Repeated::start("nenrin-mmp", tell, beat).ok().map(|beater| Self { _beater: beater })
    }
}

impl Threads {
    /// Starts them.
    ///
    /// # Errors
    /// No threads are left; then none of these is.
    pub fn start(service: &Arc<Service>, server: &Server) -> std::io::Result<Self> {
        let start = |name: &'static str, mut work: Work| {
            let (told, service) = (service.clone(), service.clone());
            Repeated::start(name, move |what| told.note_mistake(name, what), move || work(&service))
        };
        let has_heart = service.fs().is_ok_and(|fs| fs.mmp().is_some());
        let this = Self {
            _ticker: start("nenrin-tick", ticking(server.presence()))?,
            _committer: start("nenrin-commit", Box::new(|s| s.commit_due()))?,
            judges: Judges {
                _judge: start("nenrin-judge", Box::new(|s| s.judge()))?,
                _beater: has_heart.then(|| start("nenrin-mmp", Box::new(|s| s.beat()))).transpose()?,
            },
        };
        let signals = service.clone();
        let waiter = move || loop {
            match sys::wait_for_ending_signal() {
                // As those who move logs away ask for it; there is no terminal that could have gone.
                libc::SIGHUP if signals.log.is_of_background() => signals.log.reopen(),
                signal => signals.send(Event::Signal(signal)),
            }
        };
        thread::Builder::new().name("nenrin-signal".into()).spawn(waiter)?;
        Ok(this)
    }

    /// Ends those that are not needed while the volume is closed.
    pub fn leave(self) -> Judges {
        self.judges
    }
}

fn ticking(presence: Presence) -> Work {
    let (mut count, mut work) = (0, looking_and_ticking());
    Box::new(move |service| {
        count += 1;
        if count % TICKS_PER_WATCH == 0 {
            presence.keep();
        }
        work(service);
    })
}

/// What is looked at comes first: a mistake in a tick keeps none of it from being done.
fn looking_and_ticking() -> Work {
    let mut count = 0;
    Box::new(move |service| {
        count += 1;
        if count % TICKS_PER_WATCH == 0 {
            service.watch();
            service.note_damage();
            service.note_lost_writes();
            service.note_mended(false);
            service.note_let_go();
            service.note_rest();
            service.note_absent();
            service.note_joined();
            service.cut_in_background();
        }
        service.tick();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HostClock;
    use crate::device::{self, Device};
    use crate::options::Options;
    use nenrin_core::heartbeat::{Said, look};
    use nenrin_core::{MkfsOptions, Mmp, MountOptions, NewInode, mkfs_on};
    use nenrin_device::{BlockDevice, Geometry, MemDevice, Op, Ticket};
    use nenrin_format::Ino;
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    use std::time::Instant;

    /// A device whose next flush takes so long.
    struct Slow {
        device: MemDevice,
        millis: AtomicU64,
    }

    impl BlockDevice for Slow {
        fn geometry(&self) -> Geometry {
            self.device.geometry()
        }
        fn submit(&self, op: Op) -> Ticket {
            if matches!(op, Op::Flush) {
                thread::sleep(Duration::from_millis(self.millis.swap(0, Ordering::SeqCst)));
            }
            self.device.submit(op)
        }
    }

    const FLUSH: Duration = Duration::from_secs(6);
    /// Of others, who watch: of a heart that beats five times in a second.
    const PATIENCE: Duration = Duration::from_secs(3);

    /// With a volume, to be mounted with `mmp`.
    fn slow() -> (Arc<Slow>, MountOptions) {
        let slow = Arc::new(Slow { device: MemDevice::new(64 << 20), millis: AtomicU64::new(0) });
        let device: Device = slow.clone();
        mkfs_on(&[device], &HostClock::shared(), &MkfsOptions::default()).unwrap();
        let mmp = Some(Mmp { node: "here".into(), owner: [7; 16], interval_nanos: 200_000_000 });
        (slow, MountOptions { mmp, ..MountOptions::default() })
    }

    impl Slow {
        fn next_flush_takes(&self, time: Duration) {
            self.millis.store(time.as_millis() as u64, Ordering::SeqCst);
        }

        /// How long others saw nothing change while `work` was done, at most, once they had seen anything.
        fn longest_silence(&self, work: impl FnOnce() + Send) -> Duration {
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    work();
                    over.store(true, Ordering::SeqCst);
                });
                let said = || match look(&self.device).unwrap() {
                    Said::InUse(beat) | Said::Ended(beat) => Some(beat.sequence),
                    _ => None,
                };
                let (mut last, mut since, mut longest) = (None, Instant::now(), Duration::ZERO);
                while !over.load(Ordering::SeqCst) {
                    let now = said();
                    if now != last || last.is_none() {
                        (last, since) = (now, Instant::now());
                    }
                    longest = longest.max(since.elapsed());
                    thread::sleep(Duration::from_millis(20));
                }
                longest
            })
        }
    }

    /// The image of one device lies on a host that does not answer. That is told by who judges, and holds up nothing else.
    #[test]
    fn a_look_that_does_not_return_holds_up_nothing() {
        let (slow, options) = slow();
        let log = Arc::new(Log::open(None, false).unwrap());
        let fs = device::open_volume(Path::new("v"), vec![slow], options).unwrap();
        let service = Arc::new(Service::new(fs, "v".into(), &Options::default(), log, mpsc::channel().0));
        let (go, wait) = mpsc::channel::<()>();
        let (wait, looks) = (Mutex::new(wait), Arc::new(AtomicU32::new(0)));
        let looked = looks.clone();
        service.watch_by(move || {
            looked.fetch_add(1, Ordering::SeqCst);
            let _ = wait.lock().unwrap().recv();
        });
        let (ticks, ticked) = (Arc::new(AtomicU32::new(0)), service.clone());
        let counted = ticks.clone();
        let mut work = looking_and_ticking();
        let ticker = Repeated::start(
            "nenrin-tick",
            |_| (),
            move || {
                work(&ticked);
                counted.fetch_add(1, Ordering::SeqCst);
            },
        );
        // Before the others where this fails.
        let go = go;
        let end = Instant::now() + Duration::from_secs(60);
        while ticks.load(Ordering::SeqCst) < 2 * TICKS_PER_WATCH {
            assert!(Instant::now() < end, "ticks go on");
            thread::sleep(TICK / 4);
        }
        let begun = Instant::now();
        thread::scope(|scope| (0..10).for_each(|_| _ = scope.spawn(|| service.problems())));
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(looks.load(Ordering::SeqCst), 1);
        drop(ticker.unwrap());
        service.close().unwrap();
        assert_eq!(looks.load(Ordering::SeqCst), 1);
        drop(go);
    }

    /// A close that waits for a device is no reason to take the volume for that of a host that is gone.
    #[test]
    fn the_heart_beats_while_the_volume_is_closed() {
        let (slow, options) = slow();
        let log = Arc::new(Log::open(None, false).unwrap());
        let fs = device::open_volume(Path::new("v"), vec![slow.clone()], options).unwrap();
        let new = NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };
        fs.create(Ino::ROOT, b"f", &new).unwrap();
        let service = Arc::new(Service::new(fs, "v".into(), &Options::default(), log, mpsc::channel().0));
        let beaten = service.clone();
        let beater = Repeated::start("nenrin-mmp", |_| (), move || beaten.beat()).unwrap();
        slow.next_flush_takes(FLUSH);
        let begun = Instant::now();
        let silence = slow.longest_silence(|| service.close().unwrap());
        assert!(begun.elapsed() >= FLUSH && silence < PATIENCE, "{silence:?}");
        drop((beater, service));
        assert!(matches!(look(&slow.device).unwrap(), Said::Ended(_)));
        assert_eq!(Arc::strong_count(&slow), 1, "somebody has it still");
    }

    /// Nor is it one that it takes long to come up.
    #[test]
    fn the_heart_beats_while_the_volume_comes_up() {
        let (slow, options) = slow();
        let log = Arc::new(Log::open(None, false).unwrap());
        slow.next_flush_takes(FLUSH);
        let mut rising = None;
        let (device, rises) = (slow.clone(), &mut rising);
        let silence = slow.longest_silence(move || {
            let mut begins = |fs: &Arc<Fs>| *rises = Rising::start(fs, &log);
            let fs = device::open_volume_and(Path::new("v"), vec![device], options, &mut begins).unwrap();
            fs.close().unwrap();
        });
        assert!(rising.is_some() && slow.millis.load(Ordering::SeqCst) == 0);
        assert!(silence < PATIENCE, "{silence:?}");
    }

    #[test]
    fn work_goes_on_after_a_mistake_which_is_told() {
        let (count, told) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, heard) = (count.clone(), told.clone());
        let work = move || {
            let n = counted.fetch_add(1, Ordering::SeqCst);
            assert!(n != 1, "the second time");
        };
        let repeated = Repeated::start("work", move |what| heard.lock().unwrap().push(what.to_owned()), work).unwrap();
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while count.load(Ordering::SeqCst) < 5 {
            assert!(std::time::Instant::now() < end, "it goes on");
            thread::sleep(TICK / 4);
        }
        drop(repeated);
        let after = count.load(Ordering::SeqCst);
        thread::sleep(3 * TICK);
        assert_eq!(count.load(Ordering::SeqCst), after, "it has ended");
        assert_eq!(*told.lock().unwrap(), ["the second time"]);
    }
}
