//! Two hosts that reach the same devices (`mmp`): while one has the volume the other is refused, also in the middle of
//! what the first does; when the first was stopped for long the other gets it, and the first writes nothing any more.
//! All of it is cut.
//!
//! Invariants
//! 1. The hosts have nothing in common but the devices and the time.
//! 2. What either was told to be durable is there after every cut, whole.

use crate::clock::VirtualClock;
use crate::config::{Config, mmp_of};
use crate::content::pattern;
use crate::driver::Tally;
use crate::members::Members;
use crate::prng::Prng;
use crate::subject::{Excused, Subject};
use nenrin_core::{At, Clock, Fs, MountOptions, NewInode};
use nenrin_device::{CrashChoice, CrashDisk};
use nenrin_format::superblock::Profile;
use nenrin_format::{Ino, Time};
use std::sync::{Arc, Mutex};

type Core = Arc<Fs>;

/// Cuts judged of a world.
const CUTS: usize = 60;
/// Steps of the time while a host waits.
const STEP_NANOS: u64 = 250_000_000;

/// A file that a sync has made durable: from this operation on, its number, its bytes.
struct Kept {
    from: usize,
    number: u32,
    bytes: usize,
}

/// What the hosts have in common.
struct World {
    disk: Arc<CrashDisk>,
    members: Members,
    clock: Arc<VirtualClock>,
    rng: Mutex<Prng>,
    kept: Mutex<Vec<Kept>>,
}

impl World {
    fn draw(&self, below: u64) -> u64 {
        self.rng.lock().map_or(0, |mut r| r.below(below))
    }

    /// A host writes a file and makes it durable.
    fn put(&self, fs: &Fs) -> Result<(), String> {
        let text = |e: nenrin_core::Error| e.to_string();
        let mut kept = self.kept.lock().map_err(|e| e.to_string())?;
        let (number, bytes) = (kept.len() as u32, 1 + self.draw(60_000) as usize);
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let ino = fs.create(Ino::ROOT, name(number).as_bytes(), &new).map_err(text)?.ino;
        fs.write(ino, 0, &pattern(number, 0, bytes), 0).map_err(text)?;
        fs.fsync_wait(ino).map_err(text)?;
        kept.push(Kept { from: self.disk.cut_points(), number, bytes });
        Ok(())
    }

    /// Something that a host at work does.
    fn work(&self, fs: &Fs) -> Result<(), String> {
        let done = match self.draw(4) {
            0 => return self.put(fs),
            1 => fs.tick(),
            _ => fs.beat(),
        };
        done.map_err(|e| format!("a host that has the volume is stopped: {e}"))
    }

    fn options(&self, config: &Config, host: &str) -> MountOptions {
        MountOptions { mmp: Some(mmp_of(host, config.seed)), ..config.options() }
    }
}

fn name(number: u32) -> String {
    format!("file {number}")
}

/// The time of a host that mounts: while it waits the other one works, if there is one.
struct Waiting {
    world: Arc<World>,
    other: Option<Core>,
    wrong: Mutex<Option<String>>,
}

impl Clock for Waiting {
    fn wall(&self) -> Time {
        self.world.clock.wall()
    }
    fn monotonic_nanos(&self) -> u64 {
        self.world.clock.monotonic_nanos()
    }
    fn wait(&self, nanos: u64) {
        for _ in 0..nanos.div_ceil(STEP_NANOS) {
            self.world.clock.advance(STEP_NANOS);
            if let Some(Err(e)) = self.other.as_ref().map(|fs| self.world.work(fs)) {
                if let Ok(mut wrong) = self.wrong.lock() {
                    wrong.get_or_insert(e);
                }
            }
        }
    }
}

fn waiting(world: &Arc<World>, other: Option<Core>) -> Arc<Waiting> {
    Arc::new(Waiting { world: world.clone(), other, wrong: Mutex::new(None) })
}

/// The life.
///
/// # Errors
/// What is not as it should be.
pub fn two_hosts(config: &Config, tally: &mut Tally) -> Result<(), String> {
    let all = [(Profile::Single, 1), (Profile::Mirror, 2), (Profile::Stripe, 2), (Profile::Parity, 3)];
    let (profile, count) = all[config.seed as usize % all.len()];
    let members = Members::new(count, profile);
    let config = config.clone().on(members);
    let disk = Arc::new(CrashDisk::new(config.disk_bytes()));
    let (clock, rng) = (Arc::new(VirtualClock::new()), Mutex::new(Prng::stream(config.seed, 25)));
    let time: Arc<dyn Clock> = clock.clone();
    <Core as Subject>::mkfs_on(members.of(&disk), &time, config.segment_blocks).map_err(|e| e.to_string())?;
    let world = Arc::new(World { disk, members, clock, rng, kept: Mutex::default() });
    let open = |host: &str, clock: Arc<Waiting>| Core::open_on(&world, world.options(&config, host), clock);
    let first = open("first", waiting(&world, None))?;
    let begun = world.disk.cut_points();
    for _ in 0..1 + world.draw(4) {
        for _ in 0..world.draw(12) {
            world.clock.advance(world.draw(900_000_000));
            world.work(&first)?;
        }
        let clock = waiting(&world, Some(first.clone()));
        match open("second", clock.clone()) {
            Ok(_) => return Err("two hosts have the volume".into()),
            Err(e) if e.contains("in use on host first") => {}
            Err(e) => return Err(format!("the second host is told something else: {e}")),
        }
        if let Some(e) = clock.wrong.lock().map_err(|e| e.to_string())?.take() {
            return Err(e);
        }
    }
    let asleep = 5_000_000_000 + world.draw(60_000_000_000);
    let late = world.draw(2) == 0;
    if late {
        world.clock.advance(asleep);
    }
    let second = open("second", waiting(&world, None)).map_err(|e| format!("the first one sleeps: {e}"))?;
    for _ in 0..1 + world.draw(3) {
        world.put(&second)?;
    }
    let before = world.disk.cut_points();
    let woken = match world.draw(3) {
        0 => world.put(&first).map(|()| true),
        1 => first.tick().map(|()| true).map_err(|e| e.to_string()),
        _ => first.beat().and_then(|()| first.sync_all()).map(|()| true).map_err(|e| e.to_string()),
    };
    match woken {
        Ok(_) => return Err("a host goes on that was asleep while another took the volume".into()),
        Err(e) if e.contains("in use on host second, too") => {}
        Err(e) => return Err(format!("who was asleep is told something else: {e}")),
    }
    let closed = first.close();
    if closed.is_ok() || world.disk.cut_points() != before {
        return Err("a host wrote after another took the volume".into());
    }
    for _ in 0..2 {
        world.put(&second)?;
    }
    drop(first);
    drop(second);
    judge(&config, &world, begun, tally)
}

/// Every cut keeps what was promised before it, for whoever comes next.
fn judge(config: &Config, world: &Arc<World>, begun: usize, tally: &mut Tally) -> Result<(), String> {
    let history = world.disk.history().ok_or("no history was kept")?;
    let (mut cursor, last) = (history.cursor(), history.cut_points());
    let kept = world.kept.lock().map_err(|e| e.to_string())?;
    for n in 0..=CUTS {
        let at = begun + (last - begun) * n / CUTS;
        cursor.advance_to(at);
        let seed = [CrashChoice::SEED_APPLIED, CrashChoice::SEED_DROPPED, 3 + world.draw(1_000_000)][n % 3];
        let image = cursor.image(&CrashChoice::from_seed(seed));
        tally.count_image(image.content_hash(), "two hosts");
        let after = Arc::new(World {
            disk: Arc::new(CrashDisk::from_image(image.content())),
            members: world.members,
            clock: Arc::new(world.clock.fork()),
            rng: Mutex::new(Prng::stream(config.seed, 26)),
            kept: Mutex::default(),
        });
        let wrong = |e: String| format!("cut {at} of {last}, choice {seed}: {e}");
        let fs = Core::open_on(&after, after.options(config, "third"), waiting(&after, None)).map_err(wrong)?;
        for k in kept.iter().filter(|k| k.from <= at && config.barrier == nenrin_core::Barrier::Sync) {
            let found = fs.lookup(At::Live, Ino::ROOT, name(k.number).as_bytes());
            let bytes =
                found.and_then(|f| fs.read(At::Live, f.ino, 0, k.bytes + 1)).map_err(|e| wrong(e.to_string()))?;
            if bytes != pattern(k.number, 0, k.bytes) {
                return Err(wrong(format!("{} has other bytes", name(k.number))));
            }
        }
        fs.close().map_err(|e| wrong(e.to_string()))?;
        let findings =
            Core::check(after.members.of(&after.disk), Excused::default()).map_err(|e| wrong(e.to_string()))?;
        if !findings.is_empty() {
            return Err(wrong(findings.join("; ")));
        }
    }
    Ok(())
}

trait OpenOn: Sized {
    fn open_on(world: &World, options: MountOptions, clock: Arc<Waiting>) -> Result<Self, String>;
}

impl OpenOn for Core {
    fn open_on(world: &World, options: MountOptions, clock: Arc<Waiting>) -> Result<Self, String> {
        Fs::open(world.members.of(&world.disk).present(), clock, options).map_err(|e| e.to_string())
    }
}
