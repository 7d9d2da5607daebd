//! The command line of `nenrin-sim`, as a library, so that tests run the same
//! lines that failures print.

use crate::ace;
use crate::config::{Config, Mounted, barrier_named, order_named};
use crate::driver::{Cut, Failure, Plan, Tally, hurt_cuts, record, rot_cuts, run_and_cut, unread_cuts};
use crate::fault::{self, FaultPlan};
use crate::flip;
use crate::hash;
use crate::lie::{self, Lie};
use crate::life::{self, Life};
use crate::members::{Joins, Members};
use crate::scenario::Scenario;
use crate::subject::Subject;
use crate::workload::Profile;
use lexopt::prelude::*;
use nenrin_core::{Barrier, Order};
use nenrin_format::superblock::{AREA_BLOCKS, Profile as Layout};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What `--help` prints.
pub const HELP: &str = "\
nenrin-sim: power cuts against a model

  nenrin-sim run [--seeds A..B] [--minutes M] [--images N] [--json] [SETTINGS] [--choices N] [--deep N]
                 [--each N] [--faults N] [--lies N] [--flips N] [--unreads N] [--hurts N] [--rots N] [--jobs N]
                 [--keep-going]
      Runs the workloads of these seeds and recovers from cuts of them, until the
      seeds, the minutes or the distinct images are used up. Each workload is cut
      everywhere, or in as many places as give about N images (--each, 300).
      --flips N: in the volume of every Nth seed one bit of each block flips.
      --unreads N: the workload of every Nth seed is cut so that blocks which were being written cannot be read.
      --hurts N: that of every Nth seed is cut, and a request of the mount that recovers fails, which is cut, too.
      --rots N: that of every Nth seed is cut, and a bit of what was durable before flips.
  nenrin-sim ace --length N [--sequences A..B | --sample N] [--minutes M] [--images N] [--jobs N] [--json] [SETTINGS]
      Every sequence of N operations, each with every way to sync, cut everywhere.
  nenrin-sim scenarios [--scenario NAME] [--seeds A..B] [--each N] [--jobs N] [--json] [SETTINGS]
      The named scenarios, each with several seeds of settings, cut everywhere, long ones in as many places as
      give about N images (--each; without it some 1,500, 50 where a state is slow to compare).
  nenrin-sim lives [--seeds A..B] [--life NAME] [--jobs N] [--json] [--devices N --layout LAYOUT]
      What goes over several lives of a volume: writes that land late, lost
      roots, and repairs of damaged volumes that are cut everywhere. Several
      devices with --life forget only; --life hosts has its own.
  nenrin-sim replay --seed S [SETTINGS] [--cut K --choice C [--cut2 K --choice2 C]] [--fault KIND:N] [--lie KIND:N]
                    [--flip BLOCK] [--unread | --hurt | --rot] [--life NAME] [--verbose]
      Shows one failure again; with --verbose, the calls that led to it.

  nenrin-sim operations --seed S [SETTINGS] [--cut K]
      Lists the device operations of a run, up to and with operation K.

  nenrin-sim image --seed S [--barrier MODE] --out FILE [--told FILE]
      Writes what a power cut under load leaves of a volume of 1 GiB to a file, and what is promised of it to another.
  nenrin-sim judge --told FILE DIR
      Compares a mount of such an image with that; what it may not show is listed, and ends with 1.

  nenrin-sim breaks [NAME | --list]
      With the feature `breaks`: takes away one thing after another that a
      promise rests on, and shows how it is noticed. Fails when one is not.

SETTINGS: --order relaxed|strict  --barrier sync|checkpoint|none  --steps N  --profile NAME
          --mounted OPTIONS (order=, barrier=, cache= and checkpoint= as `nenrin mount -o` takes them, or defaults; what is not named
          is as a mount has it by itself, but for limits, which are small)
          --device BYTES  --segment-blocks N  --remounts true|false
          --queued true|false  --clients true|false  --writeback true|false  --ace STEP,STEP,...  --scenario NAME
          --devices N --layout single|stripe|mirror|parity  --dies INDEX:WRITES (a device fails after so many writes)
          --changes (devices are added, removed and resized)
          --slow (devices are slow now and then, and nothing new goes there)
          --collide (names have few hashes; with the feature `breaks`)
          --deaths (in each world one of the devices dies, drawn from the seed)
          --joins back:N|takes:N|takes-dead:N (while the work goes on device N, from 0, is brought up to date, or another takes
          its place, which may be gone; N may be any: then it is drawn from the seed)

For example: nenrin-sim run --seeds 0..100 --images 20000
Exit code 0: nothing wrong; 1: a failure, shown with the line that replays it; 2: bad arguments.
";

/// The file system under test.
pub type Core = std::sync::Arc<nenrin_core::Fs>;

/// What goes wrong beside a cut, of some cuts or of one.
type Beside = fn(&Config, Option<Cut>, &mut Tally) -> Result<(), Box<Failure>>;

/// Arguments after the command.
#[derive(Default)]
pub struct Arguments {
    first: u64,
    last: Option<u64>,
    minutes: Option<f64>,
    images: Option<u64>,
    /// Machine-readable summary.
    pub json: bool,
    verbose: bool,
    keep_going: bool,
    faults: u64,
    lies: u64,
    flips: u64,
    unread: u64,
    hurts: u64,
    rots: u64,
    /// What to replay beside the cut.
    beside: Option<Beside>,
    jobs: usize,
    length: u32,
    sequences: Option<(u64, u64)>,
    sample: Option<u64>,
    ace: Vec<u16>,
    scenario: Option<Scenario>,
    life: Option<Life>,
    fault: Option<FaultPlan>,
    lie: Option<Lie>,
    flip: Option<u64>,
    plan: Plan,
    each: Option<u64>,
    cut: [(Option<usize>, Option<u64>); 2],
    order: Option<Order>,
    barrier: Option<Barrier>,
    steps: Option<usize>,
    profile: Option<Profile>,
    device: Option<u64>,
    segment_blocks: Option<u32>,
    remounts: Option<bool>,
    queued: Option<bool>,
    clients: Option<bool>,
    writeback: Option<bool>,
    mounted: Option<u64>,
    devices: Option<u8>,
    layout: Option<Layout>,
    dies: Option<(u8, u64)>,
    deaths: bool,
    joins: Option<Joins>,
    /// Which device joins is drawn.
    joins_any: bool,
    changes: bool,
    slow: bool,
    collides: bool,
}

impl Arguments {
    /// How thoroughly a random workload is cut.
    fn plan_of_world(&self) -> Plan {
        Plan { images_max: self.each.unwrap_or(EACH_IMAGES_MAX), ..self.plan }
    }

    /// Parses them.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self, lexopt::Error> {
        let mut a = Self { faults: 4, lies: 2, jobs: 1, length: 1, ..Self::default() };
        while let Some(arg) = parser.next()? {
            match arg {
                Long("seeds") => {
                    let (from, to) = range(&parser.value()?.string()?)?;
                    a.first = from;
                    a.last = Some(to);
                }
                Long("sequences") => a.sequences = Some(range(&parser.value()?.string()?)?),
                Long("devices") => {
                    a.devices = Some(parser.value()?.parse_with(|n| match n.parse() {
                        Ok(n @ 1..=32) => Ok(n),
                        _ => Err("--devices takes 1 to 32"),
                    })?);
                }
                Long("layout") => {
                    a.layout = Some(match parser.value()?.string()?.as_str() {
                        "single" => Layout::Single,
                        "stripe" => Layout::Stripe,
                        "mirror" => Layout::Mirror,
                        "parity" => Layout::Parity,
                        _ => return Err("--layout takes single, stripe, mirror or parity".into()),
                    });
                }
                Long("dies") => {
                    let text = parser.value()?.string()?;
                    let pair = text.split_once(':').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
                    a.dies = Some(pair.ok_or("--dies takes INDEX:WRITES")?);
                }
                Long("deaths") => a.deaths = true,
                Long("joins") => {
                    let text = parser.value()?.string()?;
                    a.joins_any = text.ends_with(":any");
                    let joins = Joins::parse(&text.replace(":any", ":0"));
                    a.joins = Some(joins.ok_or("--joins takes back:N, takes:N or takes-dead:N")?);
                }
                Long("changes") => a.changes = true,
                Long("slow") => a.slow = true,
                Long("collide") if cfg!(feature = "breaks") => a.collides = true,
                Long("collide") => {
                    return Err("--collide is for a program that was built with --features breaks".into());
                }
                Long("sample") => a.sample = Some(parser.value()?.parse()?),
                Long("length") => {
                    a.length = parser.value()?.parse_with(|n| match n.parse() {
                        Ok(n @ 1..=4) => Ok(n),
                        _ => Err("--length takes 1 to 4"),
                    })?
                }
                Long("ace") => {
                    let text = parser.value()?.string()?;
                    let steps: Result<Vec<u16>, _> = text.split(',').map(str::parse).collect();
                    let steps = steps.ok().filter(|all| all.iter().all(|s| *s < ace::STEPS));
                    a.ace = steps.ok_or("--ace takes the numbers of steps, with commas between")?;
                }
                Long("scenario") => {
                    let name = parser.value()?.string()?;
                    a.scenario = Some(Scenario::named(&name).ok_or("unknown scenario")?);
                }
                Long("life") => {
                    let name = parser.value()?.string()?;
                    a.life = Some(Life::named(&name).ok_or("unknown life")?);
                }
                Long("flips") => a.flips = parser.value()?.parse()?,
                Long("unreads") => a.unread = parser.value()?.parse()?,
                Long("hurts") => a.hurts = parser.value()?.parse()?,
                Long("rots") => a.rots = parser.value()?.parse()?,
                Long("unread") => a.beside = Some(unread_cuts::<Core>),
                Long("hurt") => a.beside = Some(hurt_cuts::<Core>),
                Long("rot") => a.beside = Some(rot_cuts::<Core>),
                Long("flip") => {
                    let text = parser.value()?.string()?;
                    a.flip = Some(if text == "all" {
                        u64::MAX
                    } else {
                        text.parse().map_err(|_| "--flip takes a block")?
                    });
                }
                Long("jobs") => a.jobs = parser.value()?.parse::<usize>()?.max(1),
                Long("seed") => {
                    a.first = parser.value()?.parse()?;
                    a.last = Some(a.first + 1);
                }
                Long("minutes") => a.minutes = Some(parser.value()?.parse()?),
                Long("images") => a.images = Some(parser.value()?.parse()?),
                Long("each") => a.each = Some(parser.value()?.parse()?),
                Long("choices") => a.plan.choices = parser.value()?.parse()?,
                Long("deep") => a.plan.deep_every = parser.value()?.parse()?,
                Long("json") => a.json = true,
                Long("faults") => a.faults = parser.value()?.parse()?,
                Long("lies") => a.lies = parser.value()?.parse()?,
                Long("lie") => {
                    let text = parser.value()?.string()?;
                    a.lie = Some(Lie::parse(&text).ok_or("--lie takes lost|misdirected|astray|flipped|stuck:N")?);
                }
                Long("fault") => {
                    let text = parser.value()?.string()?;
                    a.fault = Some(FaultPlan::parse(&text).ok_or("--fault takes read|write|flush:N or :N+")?);
                }
                Long("keep-going") => a.keep_going = true,
                Long("verbose") => a.verbose = true,
                Long("cut") => a.cut[0].0 = Some(parser.value()?.parse()?),
                Long("choice") => a.cut[0].1 = Some(parser.value()?.parse()?),
                Long("cut2") => a.cut[1].0 = Some(parser.value()?.parse()?),
                Long("choice2") => a.cut[1].1 = Some(parser.value()?.parse()?),
                Long("steps") => a.steps = Some(parser.value()?.parse()?),
                Long("device") => a.device = Some(parser.value()?.parse()?),
                Long("segment-blocks") => a.segment_blocks = Some(parser.value()?.parse()?),
                Long("remounts") => a.remounts = Some(parser.value()?.parse()?),
                Long("queued") => a.queued = Some(parser.value()?.parse()?),
                Long("writeback") => a.writeback = Some(parser.value()?.parse()?),
                Long("clients") => a.clients = Some(parser.value()?.parse()?),
                Long("order") => {
                    a.order = Some(order_named(&parser.value()?.string()?)?);
                }
                Long("barrier") => {
                    a.barrier = Some(barrier_named(&parser.value()?.string()?)?);
                }
                Long("mounted") => {
                    let mounted = Mounted::parse(&parser.value()?.string()?)?;
                    (a.order, a.barrier) = (Some(mounted.order), Some(mounted.barrier));
                    (a.writeback, a.mounted) = (Some(mounted.writeback), Some(mounted.checkpoint_nanos));
                }
                Long("profile") => {
                    let name = parser.value()?.string()?;
                    a.profile = Some(Profile::named(&name).ok_or("unknown profile")?);
                }
                _ => return Err(arg.unexpected()),
            }
        }
        Ok(a)
    }

    /// Whether these lives can be lived on so many devices.
    #[must_use]
    pub fn lives_fit(&self) -> bool {
        self.devices.unwrap_or(1) == 1 || self.life == Some(Life::Forget)
    }

    /// The settings of a seed, with what the arguments say instead.
    #[must_use]
    pub fn config(&self, seed: u64) -> Config {
        let base = Config { profile: self.profile, ..Config::of_seed(seed) }.sized().on(self.members(seed));
        Config {
            seed,
            steps: self.steps.unwrap_or(base.steps),
            order: self.order.unwrap_or(base.order),
            barrier: self.barrier.unwrap_or(base.barrier),
            profile: base.profile,
            device_bytes: self.device.unwrap_or(base.device_bytes),
            segment_blocks: self.segment_blocks.unwrap_or(base.segment_blocks),
            remounts: self.remounts.unwrap_or(base.remounts && self.ace.is_empty()),
            queued: self.queued.unwrap_or(base.queued),
            clients: self.clients.unwrap_or(base.clients),
            writeback: self.writeback.unwrap_or(base.writeback),
            mounted: self.mounted,
            ace: self.ace.clone(),
            scenario: self.scenario,
            life: self.life,
            members: base.members,
        }
    }

    /// The devices of a world. Where a device is to die, which one and when is the seed's, unless it is said.
    fn members(&self, seed: u64) -> Members {
        let count = self.devices.unwrap_or(1);
        let profile = self.layout.unwrap_or(if count > 1 { Layout::Mirror } else { Layout::Single });
        let Self { dies, joins, changes, slow, collides, .. } = *self;
        let mut members = Members { count, profile, dies, joins, changes, slow, collides };
        if self.joins_any {
            let drawn = (hash::of_words(&[seed, 78]) % u64::from(count)) as u8;
            members.joins = members.joins.map(|j| j.of(drawn));
        }
        if self.deaths {
            let drawn = hash::of_words(&[seed, 77]);
            members.dies = Some(((drawn % u64::from(count)) as u8, 8 + (drawn >> 8) % 200));
        }
        members
    }
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let parsed = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text} is no range like 0..100"))
}

/// Runs worlds `from..to` on as many threads as wanted, until there is enough.
/// What they count does not depend on the number of threads, unless minutes or
/// images end the run.
fn worlds(
    a: &Arguments,
    from: u64,
    to: u64,
    world: impl Fn(u64, &mut Tally) -> Result<(), Box<Failure>> + Sync,
) -> Result<Tally, Box<Failure>> {
    let begin = Instant::now();
    let next = AtomicU64::new(from);
    let done = Mutex::new((Tally::default(), None));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let late = a.minutes.is_some_and(|m| begin.elapsed().as_secs_f64() > m * 60.0);
            {
                let done = done.lock().unwrap_or_else(PoisonError::into_inner);
                let enough = a.images.is_some_and(|n| done.0.distinct >= n);
                if late || enough || number >= to || (done.1.is_some() && !a.keep_going) {
                    return;
                }
            }
            let mut tally = Tally::default();
            let result = world(number, &mut tally);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.0.add(tally);
            if let Err(failure) = result {
                if a.keep_going {
                    eprintln!("{failure}");
                }
                done.1 = Some(failure);
            }
        }
    };
    std::thread::scope(|threads| {
        for _ in 1..a.jobs {
            threads.spawn(work);
        }
        work();
    });
    let (tally, failure) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(tally), Err)
}

/// Runs seeds until there is enough.
///
/// # Errors
/// The first failure, or with `--keep-going` the last one.
pub fn run<S: Subject>(a: &Arguments) -> Result<Tally, Box<Failure>> {
    let bounded = a.last.is_some() || a.minutes.is_some() || a.images.is_some();
    let last = a.last.unwrap_or(if bounded { u64::MAX } else { a.first + 100 });
    worlds(a, a.first, last, |seed, tally| one_seed::<S>(a, seed, tally))
}

/// Different images of one random workload, about, at most: a long one cut everywhere says less than several that
/// are cut here and there.
const EACH_IMAGES_MAX: u64 = 300;

fn one_seed<S: Subject>(a: &Arguments, seed: u64, tally: &mut Tally) -> Result<(), Box<Failure>> {
    let config = a.config(seed);
    let recorded = run_and_cut::<S>(&config, &a.plan_of_world(), tally)?;
    // One of the devices gets its share of them.
    let operations = (recorded.last_cut() - recorded.first_cut()) / usize::from(config.members.count);
    for plan in fault::plans(seed, operations, a.faults) {
        fault::run_with_fault::<S>(&config, plan, tally)?;
    }
    for lie in lie::lies(seed, operations, a.lies) {
        lie::run_with_lie::<S>(&config, lie, tally)?;
    }
    if a.flips > 0 && seed % a.flips == 0 {
        flip::flip_all::<S>(&config, tally)?;
    }
    if a.unread > 0 && seed % a.unread == 0 {
        unread_cuts::<S>(&config, None, tally)?;
    }
    if a.hurts > 0 && seed % a.hurts == 0 {
        hurt_cuts::<S>(&config, None, tally)?;
    }
    if a.rots > 0 && seed % a.rots == 0 {
        rot_cuts::<S>(&config, None, tally)?;
    }
    Ok(())
}

/// Runs bounded-exhaustive sequences.
///
/// # Errors
/// The first failure, or with `--keep-going` the last one.
pub fn exhaustive<S: Subject>(a: &Arguments) -> Result<Tally, Box<Failure>> {
    let all = ace::sequences(a.length);
    let (from, to) = a.sequences.unwrap_or((0, a.sample.unwrap_or(all)));
    let plan = Plan { deep_every: 0, ..a.plan };
    worlds(a, from, to.min(all), |number, tally| {
        // A sample is drawn from all of them; its numbers are seeds.
        let number = if a.sample.is_some() { hash::of_words(&[a.first, number]) % all } else { number };
        let steps = Arguments { ace: ace::sequence(number, a.length), ..Arguments::default() };
        let (order, barrier, writeback, mounted) = (a.order, a.barrier, a.writeback, a.mounted);
        let config = Arguments { order, barrier, writeback, mounted, ..steps }.config(number);
        run_and_cut::<S>(&config, &plan, tally).map(drop)
    })
}

/// Seeds of settings with which each named scenario is run.
const SCENARIO_SEEDS: u64 = 6;

/// Runs the named scenarios.
///
/// # Errors
/// The first failure, or with `--keep-going` the last one.
pub fn scenarios<S: Subject>(a: &Arguments) -> Result<Tally, Box<Failure>> {
    let wanted = |s: &Scenario| a.scenario.is_none_or(|w| w == *s);
    let chosen: Vec<Scenario> = Scenario::ALL.into_iter().filter(wanted).collect();
    let (kinds, seeds) = (chosen.len() as u64, a.last.unwrap_or(a.first + SCENARIO_SEEDS) - a.first);
    worlds(a, 0, kinds * seeds, |number, tally| {
        let Some(scenario) = chosen.get((number % kinds) as usize) else { return Ok(()) };
        let base = a.config(a.first + number / kinds);
        let device_bytes = scenario.device_bytes(base.device_bytes);
        let config = Config { scenario: Some(*scenario), device_bytes, remounts: false, ..base };
        let images_max = a.each.unwrap_or_else(|| scenario.images_max(a.plan.images_max));
        run_and_cut::<S>(&config, &Plan { images_max, ..a.plan }, tally).map(drop)
    })
}

/// Seeds with which each life is run.
const LIFE_SEEDS: u64 = 8;

/// Runs what goes over several lives of a volume.
///
/// # Errors
/// The first failure, or with `--keep-going` the last one.
pub fn lives(a: &Arguments) -> Result<Tally, Box<Failure>> {
    let wanted = |l: &&(Life, &str)| a.life.is_none_or(|w| w == l.0);
    let chosen: Vec<Life> = Life::ALL.iter().filter(wanted).map(|l| l.0).collect();
    let (kinds, seeds) = (chosen.len() as u64, a.last.unwrap_or(a.first + LIFE_SEEDS) - a.first);
    worlds(a, 0, kinds * seeds, |number, tally| {
        let Some(life) = chosen.get((number % kinds) as usize) else { return Ok(()) };
        let seed = a.first + number / kinds;
        let (begin, before) = (Instant::now(), tally.distinct);
        let done = life::carry_out(&life.config(seed).on(a.members(seed)), None, tally);
        tally.cutting.0 += begin.elapsed();
        tally.cut += tally.distinct - before;
        done
    })
}

/// Prints a summary.
pub fn report(tally: &Tally, seconds: f64, json: bool) {
    let rate = tally.distinct as f64 / seconds;
    let (cut, cutting) = (tally.cut, tally.cutting.0.as_secs_f64());
    let of_one_core = if cutting > 0.0 { cut as f64 / cutting } else { 0.0 };
    if json {
        let value = serde_json::json!({
            "tally": tally, "seconds": seconds, "distinct_per_second": rate, "distinct_per_core_second": of_one_core
        });
        println!("{value}");
        return;
    }
    println!(
        "workloads          {:>10}   calls {}, refused for want of space {}",
        tally.workloads, tally.calls, tally.refused
    );
    for (what, n) in &tally.activity {
        println!("  {what:<26} {n:>8}");
    }
    println!("crash images       {:>10}   distinct {}", tally.images, tally.distinct);
    for (kind, n) in &tally.by_choice {
        println!("  {kind:<26} {n:>8}");
    }
    println!(
        "recoveries         {:>10}   past states compared {}, landmarks {}, names over time {}",
        tally.recoveries, tally.past_states, tally.landmarks, tally.names_told
    );
    println!("second lives       {:>10}   images cut from them {}", tally.second_lives, tally.second_images);
    for (what, n) in &tally.faults {
        println!("  {what:<26} {n:>8}");
    }
    println!("mounts of crash images, by what recovery decided");
    for (what, n) in &tally.verdicts {
        println!("  {what:<34} {n:>8}");
    }
    for (what, n) in &tally.verdicts_of_wrong {
        println!("  after a lie or a flipped bit: {what:<34} {n:>8}");
    }
    println!("seconds            {seconds:>10.1}   distinct images per second {rate:.0}");
    if cut > 0 {
        println!(
            "of one core        {cutting:>10.1}   for {cut} images of power cuts: {of_one_core:.0} per second and core"
        );
    }
    println!("digest       {:016x}", tally.digest);
}

/// Shows one failure again.
///
/// # Errors
/// The failure.
pub fn replay<S: Subject>(a: &Arguments) -> Result<Tally, Box<Failure>> {
    if let Some(block) = a.flip {
        let config = a.config(a.first);
        let mut tally = Tally::default();
        let fail = |what| Box::new(Failure { replay: String::new(), what, detail: String::new() });
        match block {
            u64::MAX => flip::flip_all::<S>(&config, &mut tally)?,
            block => println!("{:?}", flip::flip_one::<S>(&config, block).map_err(fail)?),
        }
        return Ok(tally);
    }
    if let Some(plan) = a.fault {
        let mut tally = Tally::default();
        println!("{:?}", fault::run_with_fault::<S>(&a.config(a.first), plan, &mut tally)?);
        return Ok(tally);
    }
    if let Some(lie) = a.lie {
        let mut tally = Tally::default();
        println!("{:?}", lie::run_with_lie::<S>(&a.config(a.first), lie, &mut tally)?);
        return Ok(tally);
    }
    let cut = |(at, choice): (Option<usize>, Option<u64>)| at.map(|at| Cut { at, choice: choice.unwrap_or(1) });
    if let Some(beside) = a.beside {
        let mut tally = Tally::default();
        beside(&a.config(a.first), cut(a.cut[0]), &mut tally)?;
        return Ok(tally);
    }
    if a.life.is_some() {
        let mut tally = Tally::default();
        life::carry_out(&a.config(a.first), cut(a.cut[0]), &mut tally)?;
        return Ok(tally);
    }
    let recorded = record::<S>(&a.config(a.first), a.verbose)?;
    for line in &recorded.trace {
        println!("{line}");
    }
    println!("cuts {}..={}", recorded.first_cut(), recorded.last_cut());
    if let Some(first) = cut(a.cut[0]) {
        return recorded.replay::<S>(first, cut(a.cut[1]), &a.plan);
    }
    let mut tally = Tally::default();
    let is_random = a.ace.is_empty() && a.scenario.is_none();
    recorded.cut_all::<S>(&if is_random { a.plan_of_world() } else { a.plan }, &mut tally)?;
    Ok(tally)
}

/// Prints the device operations of a run, with their places on the volume.
///
/// # Errors
/// When the run itself fails.
pub fn operations<S: Subject>(a: &Arguments) -> Result<(), Box<Failure>> {
    let mut out = std::io::stdout().lock();
    let config = a.config(a.first);
    let recorded = record::<S>(&config, false)?;
    let last = a.cut[0].0.map_or(recorded.last_cut(), |k| (k + 1).min(recorded.last_cut()));
    for at in 0..last {
        let line = recorded.operation(at);
        let offset = line.split(" at ").nth(1).and_then(|o| o.parse::<u64>().ok());
        let place = offset.map_or_else(String::new, |o| place(&config, o / 4096));
        if writeln!(out, "{line}{place}").is_err() {
            break;
        }
    }
    Ok(())
}

/// Where a block of the device lies on the volume.
fn place(config: &Config, block: u64) -> String {
    let segment_blocks = u64::from(config.segment_blocks);
    match block.checked_sub(AREA_BLOCKS) {
        Some(b) if block + AREA_BLOCKS < config.device_bytes / 4096 => {
            format!("  segment {}+{}", b / segment_blocks, b % segment_blocks)
        }
        _ => "  slots".to_owned(),
    }
}
