//! Power cuts: runs a workload once, then recovers from every cut that the
//! recorded history allows and judges what is found.
//!
//! Invariants
//! 1. Everything depends on the [`Config`] and the [`Plan`] only.
//! 2. An image that was recovered before is not recovered again: what was
//!    found in it is judged again under the promises of the new cut.

mod hurt;
mod losses;
mod rot;
mod shown;
mod state;
mod unread;

pub use hurt::hurt_cuts;
pub use rot::rot_cuts;
pub use unread::unread_cuts;

use crate::ace;
use crate::clock::VirtualClock;
use crate::config::Config;
use crate::hash;
use crate::joins;
use crate::members::Drive;
use crate::model::Model;
use crate::oracle::{self, Binds, Rules};
use crate::queue::Queue;
use crate::run::{Clients, Run, Step};
use crate::scenario::Scenario;
use crate::subject::{Excused, Subject, WAITS_LOCKED};
use crate::tree::Tree;
use crate::turns::Turns;
use crate::walk::walk;
use crate::workload::{self, Profile, Workload};
use nenrin_core::{At, Barrier, MountOptions};
use nenrin_device::{BlockDevice, CrashChoice, CrashDisk, CrashImage, History, HistoryCursor, Image};
use state::State;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How thoroughly a workload is cut.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Choices of what survives, at each cut where there is a choice.
    pub choices: u64,
    /// Every how many distinct images the recovered volume is used further,
    /// cut again during and after recovery, closed and checked; 0 for never.
    pub deep_every: u64,
    /// Cuts of such a second life.
    pub second_cuts: u64,
    /// Distinct images of a workload, about, at most; the cuts are spread over all of it.
    pub images_max: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { choices: 6, deep_every: 40, second_cuts: 6, images_max: 1500 }
    }
}

/// Memory for index nodes where a recovered state is only read.
const LOOK_CACHE_BYTES: usize = 4 << 20;

/// A cut: where, and the seed of what survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Device operations before it.
    pub at: usize,
    /// Seed of [`CrashChoice`].
    pub choice: u64,
}

/// Something is wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The command that shows it again.
    pub replay: String,
    /// What is wrong, in one line.
    pub what: String,
    /// More for whoever looks into it.
    pub detail: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "FAILED: {}", self.what)?;
        write!(f, "{}", self.replay)
    }
}

impl std::error::Error for Failure {}

/// Hashes of images; told by their number only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hashes(HashSet<u64>);

impl std::fmt::Debug for Hashes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} hashes", self.0.len())
    }
}

/// Time that something took; equal to any other, since no two runs take the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent(pub Duration);

impl PartialEq for Spent {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Spent {}

/// What was done, for summaries.
#[derive(Clone, Debug, Default, serde::Serialize, PartialEq, Eq)]
pub struct Tally {
    /// Making, recovering and judging crash images, workloads included, on one core; without failed requests, lies
    /// and flipped bits.
    #[serde(skip)]
    pub cutting: Spent,
    /// Images that came of it, different within their workload.
    #[serde(skip)]
    pub cut: u64,
    /// Workloads run.
    pub workloads: u64,
    /// Calls made by them.
    pub calls: u64,
    /// Crash images judged.
    pub images: u64,
    /// Of these, different from all others.
    pub distinct: u64,
    /// Hashes of all images.
    #[serde(skip)]
    pub hashes: Hashes,
    /// Mounts that recovered.
    pub recoveries: u64,
    /// Images mounted read-only before.
    pub shown_only: u64,
    /// Past states read back and compared.
    pub past_states: u64,
    /// Landmarks read back and compared.
    pub landmarks: u64,
    /// Names whose history was compared with what checkpoints show.
    pub names_told: u64,
    /// Recovered volumes used further, closed and checked.
    pub second_lives: u64,
    /// Images cut from those (counted in `images` too).
    pub second_images: u64,
    /// Images by kind of choice.
    pub by_choice: BTreeMap<String, u64>,
    /// Calls by kind.
    pub by_call: BTreeMap<String, u64>,
    /// Runs in which a request of the device failed, by what came of it.
    pub faults: BTreeMap<String, u64>,
    /// Calls refused for want of space.
    pub refused: u64,
    /// What the file system did inside.
    pub activity: BTreeMap<String, u64>,
    /// Mounts of crash images, by the rows of recovery's decision table that applied.
    pub verdicts: BTreeMap<String, u64>,
    /// The same of volumes in which something was wrong: a lie of the device, a flipped bit.
    pub verdicts_of_wrong: BTreeMap<String, u64>,
    /// Hash of everything that was seen.
    pub digest: u64,
}

impl Tally {
    /// Counts an image.
    fn image(&mut self, hash: u64) {
        self.images += 1;
        self.distinct += u64::from(self.hashes.0.insert(hash));
    }
    /// Counts what recovery decided.
    pub fn verdicts<S: Subject>(&mut self, fs: &S) {
        for verdict in fs.verdicts() {
            *self.verdicts.entry(verdict.to_owned()).or_default() += 1;
        }
    }

    /// The same, where the device has lied or a bit has flipped.
    pub fn verdicts_of_wrong<S: Subject>(&mut self, fs: &S) {
        for verdict in fs.verdicts() {
            *self.verdicts_of_wrong.entry(verdict.to_owned()).or_default() += 1;
        }
    }

    /// Counts an image that was judged elsewhere.
    pub fn count_image(&mut self, hash: u64, kind: &str) {
        self.image(hash);
        *self.by_choice.entry(kind.to_owned()).or_default() += 1;
    }

    /// Takes in what another world has counted. Order does not matter.
    pub fn add(&mut self, other: Self) {
        self.cutting.0 += other.cutting.0;
        self.cut += other.cut;
        self.workloads += other.workloads;
        self.calls += other.calls;
        self.images += other.images;
        for hash in other.hashes.0 {
            self.distinct += u64::from(self.hashes.0.insert(hash));
        }
        self.recoveries += other.recoveries;
        self.shown_only += other.shown_only;
        self.past_states += other.past_states;
        self.landmarks += other.landmarks;
        self.names_told += other.names_told;
        self.second_lives += other.second_lives;
        self.second_images += other.second_images;
        self.refused += other.refused;
        self.digest = self.digest.wrapping_add(other.digest);
        let pairs = [
            (&mut self.by_choice, other.by_choice),
            (&mut self.by_call, other.by_call),
            (&mut self.faults, other.faults),
            (&mut self.activity, other.activity),
            (&mut self.verdicts, other.verdicts),
            (&mut self.verdicts_of_wrong, other.verdicts_of_wrong),
        ];
        for (mine, theirs) in pairs {
            for (what, n) in theirs {
                *mine.entry(what).or_default() += n;
            }
        }
    }

    fn see(&mut self, words: &[u64]) {
        self.digest = hash::of_words(&[self.digest, hash::of_words(words)]);
    }
}

/// A workload that was run once, with everything needed to cut it.
pub struct Recorded {
    /// How it was made.
    pub config: Config,
    history: History,
    /// Cuts begin here.
    first: usize,
    /// From here on every member is up to date.
    whole_from: Option<usize>,
    eras: Vec<(usize, Model)>,
    clock: Arc<VirtualClock>,
    digest: u64,
    calls: BTreeMap<&'static str, (u64, u64)>,
    activity: BTreeMap<&'static str, u64>,
    /// The calls, when they were kept.
    pub trace: Vec<String>,
}

/// What recoveries of one image found.
struct Seen {
    state: State,
    /// Without devices that may be lost with the power, by what is missing.
    without: Vec<(String, State)>,
}

/// A failure, with the line that replays it.
pub(crate) fn failure(config: &Config, cuts: &[Cut], what: String, detail: String) -> Box<Failure> {
    let mut replay = format!("cargo run --release -p nenrin-sim -- replay {}", config.arguments());
    for (n, cut) in cuts.iter().enumerate() {
        let second = if n == 0 { "" } else { "2" };
        replay += &format!(" --cut{second} {} --choice{second} {}", cut.at, cut.choice);
    }
    Box::new(Failure { replay, what, detail })
}

/// Runs the world of `config`; a panic in it is a failure like any other, with the line that replays it.
///
/// # Errors
/// Those of `world`, and its panic.
pub fn guarded<T>(config: &Config, world: impl FnOnce() -> Result<T, Box<Failure>>) -> Result<T, Box<Failure>> {
    guarded_at(config, &[], world)
}

/// [`guarded`], for what is done about these cuts.
fn guarded_at<T>(
    config: &Config,
    cuts: &[Cut],
    world: impl FnOnce() -> Result<T, Box<Failure>>,
) -> Result<T, Box<Failure>> {
    catch_unwind(AssertUnwindSafe(world)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(failure(config, cuts, format!("a panic: {}", text.unwrap_or("without a text")), String::new()))
    })
}

/// The kind of a choice, for counting.
const fn choice_name(choice: u64) -> &'static str {
    match choice {
        CrashChoice::SEED_DROPPED => "dropped",
        CrashChoice::SEED_APPLIED => "applied",
        CrashChoice::SEED_LAST_TORN => "last torn",
        _ => "mixed, torn and reordered",
    }
}

/// Runs the workload of `config` once.
///
/// # Errors
/// When a call gives a wrong answer.
pub fn record<S: Subject>(config: &Config, keep_trace: bool) -> Result<Recorded, Box<Failure>> {
    let fail = |what: String| failure(config, &[], what, String::new());
    let disk = Arc::new(CrashDisk::new(config.disk_bytes()));
    let (device, clients) = with_clients(config, config.members.of_living(&disk));
    let plain = config.members.of(&disk);
    let run = match config.members.joins {
        Some(joins) => joins::prepare::<S>(disk, device, plain, config, joins),
        None => Run::<S>::format_on(disk, device, plain, config.segment_blocks, config.options()),
    };
    let mut run = run.map_err(fail)?;
    clients.decide_turns(&run.clock);
    run.clients = clients;
    run.trace = keep_trace.then(Vec::new);
    record_run(config, run, |run| whole_workload(run, config))
}

/// Runs the workload of `config` once and cuts it as planned; a panic is a failure like any other.
///
/// # Errors
/// The first wrong answer, or the first state that is not allowed.
pub fn run_and_cut<S: Subject>(config: &Config, plan: &Plan, tally: &mut Tally) -> Result<Recorded, Box<Failure>> {
    let (begin, before) = (Instant::now(), tally.distinct);
    let recorded = guarded(config, || {
        let recorded = record::<S>(config, false)?;
        recorded.cut_all::<S>(plan, tally)?;
        Ok(recorded)
    });
    tally.cutting.0 += begin.elapsed();
    tally.cut += tally.distinct - before;
    recorded
}

/// The devices as the file system sees them: each behind a queue, and perhaps with other clients.
fn with_clients(config: &Config, drive: Drive) -> (Drive, Clients) {
    let queue = |(i, member)| Arc::new(Queue::new(member, config.seed.wrapping_add(i as u64), config.queued));
    let count = drive.members.len();
    let queues: Vec<_> = drive.members.iter().cloned().chain(drive.spare.clone()).enumerate().map(queue).collect();
    let with_others = [
        Scenario::Clients,
        Scenario::Waiting,
        Scenario::EmptiedInSync,
        Scenario::WritersBesideSyncs,
        Scenario::OrderBesideSyncs,
    ];
    let clients = config.clients || config.scenario.is_some_and(|s| with_others.contains(&s));
    let turns = clients.then(|| Turns::new(config.seed));
    let mut members: Vec<_> = queues.iter().map(|q| Arc::clone(q) as Arc<dyn BlockDevice>).collect();
    let spare = if members.len() > count { members.pop() } else { None };
    (Drive { members, spare, ..drive }, Clients::new(queues, turns))
}

/// Runs `calls` on a volume as an earlier life has left it, to be cut like any workload.
///
/// # Errors
/// When a call gives a wrong answer.
pub fn record_on<S: Subject>(
    config: &Config,
    image: Image,
    clock: &VirtualClock,
    calls: impl FnOnce(&mut Run<S>) -> Result<(), String>,
) -> Result<Recorded, Box<Failure>> {
    let fail = |what: String| failure(config, &[], what, String::new());
    let disk = Arc::new(CrashDisk::from_image(image));
    let drive = config.members.of(&disk);
    let clock = Arc::new(clock.fork());
    let run = Run::<S>::mount_on(disk, drive.clone(), drive, clock, config.options(), None).map_err(fail)?;
    record_run(config, run, |run| {
        let first = run.eras.first().map_or(0, |e| e.0);
        calls(run).map(|()| first)
    })
}

/// Carries out `calls`, which say from where on cuts are possible.
fn record_run<S: Subject>(
    config: &Config,
    mut run: Run<S>,
    calls: impl FnOnce(&mut Run<S>) -> Result<usize, String>,
) -> Result<Recorded, Box<Failure>> {
    let fail = |what: String| failure(config, &[], what, String::new());
    let done = calls(&mut run);
    let trace = run.trace.take().unwrap_or_default();
    let first = done.map_err(|e| failure(config, &[], e, trace.join("\n")))?;
    for (what, n) in run.clients.activity() {
        *run.activity.entry(what).or_default() += n;
    }
    run.forget();
    if run.activity.get(WAITS_LOCKED).is_some_and(|waits| *waits > 0) {
        return Err(fail("a write or a flush was waited for under the lock that all operations take".into()));
    }
    let history = run.disk.history().ok_or_else(|| fail("no history was kept".into()))?;
    Ok(Recorded {
        config: config.clone(),
        history,
        first,
        whole_from: run.whole_from,
        clock: Arc::clone(&run.clock),
        digest: run.digest,
        calls: std::mem::take(&mut run.calls),
        activity: std::mem::take(&mut run.activity),
        trace,
        eras: run.eras,
    })
}

/// The workload that the settings mean; cuts are possible from the operation returned.
fn whole_workload<S: Subject>(run: &mut Run<S>, config: &Config) -> Result<usize, String> {
    let mut first = run.eras.first().map_or(0, |e| e.0);
    if !config.ace.is_empty() {
        first = ace::setup(run)?;
        ace::carry_out(run, &config.ace)?;
    } else if let Some(scenario) = config.scenario {
        scenario.carry_out(run)?;
    } else if let Some(joins) = config.members.joins {
        joins::carry_out(run, config, joins)?;
    } else {
        if config.profile == Some(Profile::Wide) {
            first = workload::prefill(run, config.seed)?;
        }
        if let Some(e) = run.steps(&mut config.workload(), config.steps)? {
            return Err(format!("the volume failed without a fault: {e}"));
        }
    }
    run.compare_all()?;
    if config.seed % 2 == 0 {
        close_and_compare(run, config)?;
    }
    Ok(first)
}

/// Closes the volume, looks for findings, and mounts it again.
fn close_and_compare<S: Subject>(run: &mut Run<S>, config: &Config) -> Result<(), String> {
    if !matches!(run.close()?, Step::Done) {
        return Err("the volume could not be closed".into());
    }
    run.forget();
    let excused = Excused { absent: config.members.may_miss_something(), ..Excused::default() };
    let findings = S::check(run.plain.clone(), excused).map_err(|e| format!("check: {e}"))?;
    if !findings.is_empty() {
        return Err(format!("check after close: {}", findings.join("; ")));
    }
    run.reopen()
}

impl Recorded {
    /// Cuts are possible from here on: mkfs has been acknowledged.
    #[must_use]
    pub fn first_cut(&self) -> usize {
        self.first
    }
    /// A clock that shows what the run's showed at its end.
    #[must_use]
    pub fn clock(&self) -> VirtualClock {
        self.clock.fork()
    }
    /// The last cut, after everything.
    #[must_use]
    pub fn last_cut(&self) -> usize {
        self.history.cut_points()
    }

    /// The image of a cut, to look at.
    #[must_use]
    pub fn image_at(&self, at: usize, choice: u64) -> CrashImage {
        let mut cursor = self.history.cursor();
        cursor.advance_to(at);
        cursor.image(&CrashChoice::from_seed(choice))
    }

    /// What device operation `at` was, in one line.
    #[must_use]
    pub fn operation(&self, at: usize) -> String {
        if self.history.is_flush(at) {
            return format!("{at}: flush");
        }
        let mut cursor = self.history.cursor();
        cursor.advance_to(at + 1);
        let all = cursor.describe(&CrashChoice::from_seed(CrashChoice::SEED_APPLIED));
        all.lines().last().unwrap_or_default().trim().replace(": applied", "")
    }

    fn era(&self, k: usize) -> Result<&Model, String> {
        let era = self.eras.iter().rev().find(|e| e.0 <= k).or(self.eras.first());
        era.map(|e| &e.1).ok_or_else(|| "no era".to_owned())
    }

    /// Which acknowledgements bind: all, in cuts that leave the device's cache
    /// alone; with fewer flushes, fewer in others.
    #[must_use]
    pub fn binds(config: &Config, choice: u64) -> Binds {
        match config.barrier {
            _ if choice == CrashChoice::SEED_APPLIED => Binds::Acknowledged,
            Barrier::Sync => Binds::Acknowledged,
            Barrier::Checkpoint => Binds::Checkpointed,
            Barrier::None => Binds::Nothing,
        }
    }

    /// What was promised before the cut is known to the model that begins behind it.
    fn goes_on<S: Subject>(&self, run: &mut Run<S>, cut: Cut) -> Result<(), String> {
        let (earlier, model) = (self.era(cut.at)?, run.model()?);
        model.goes_on_from(earlier, true);
        let prefix = oracle::promised_prefix(earlier, self.rules(cut.choice), cut.at);
        model.numbers.had(earlier.numbers.up_to(prefix));
        Ok(())
    }

    fn rules(&self, choice: u64) -> Rules {
        Rules { order: self.config.order, binds: Self::binds(&self.config, choice) }
    }

    /// Now and then: with one of its devices twice a volume is refused.
    fn refuse_twice<S: Subject>(&self, cut: Cut, image: &Arc<CrashImage>) -> Result<(), String> {
        let members = &self.config.members;
        if members.count < 2 || members.changes || members.joins.is_some() || cut.at % 8 != 3 {
            return Ok(());
        }
        let twice = members.of(image).doubled(cut.at / 8).rotated(cut.at);
        match open::<S>(self.config.options(), &self.clock, twice) {
            Ok(_) => Err("a volume was mounted with one of its devices twice".to_owned()),
            Err(_) => Ok(()),
        }
    }

    /// Recovers the image and judges it. The image is written by that.
    fn recover<S: Subject>(&self, cut: Cut, image: CrashImage, tally: &mut Tally) -> Result<Seen, String> {
        let image = Arc::new(image);
        let without = self.judge_losses::<S>(cut, &image, tally)?;
        self.refuse_twice::<S>(cut, &image)?;
        let shown = self.show_only::<S>(cut, &image, tally)?;
        let drive = self.config.members.of(&image).rotated(cut.at);
        // Who only looks needs no small cache; second lives have that of the world.
        let options = MountOptions { cache_bytes: LOOK_CACHE_BYTES, ..self.config.options() };
        let fs = open::<S>(options, &self.clock, drive)?;
        tally.recoveries += 1;
        tally.verdicts(&fs);
        let state = self.look_into(&fs, cut, self.era(cut.at)?, tally)?;
        if shown.is_some_and(|shown| shown != state) {
            return Err("mounted read-only the volume has shown another state than now".to_owned());
        }
        Ok(Seen { state, without })
    }

    /// Judges what was found in an equal image before, under the promises of another cut.
    fn judge_again(&self, cut: Cut, seen: &Seen) -> Result<(), String> {
        let (model, rules) = (self.era(cut.at)?, self.rules(cut.choice));
        seen.state.judge(model, rules, cut.at)?;
        for (what, state) in &seen.without {
            state.judge(model, rules, cut.at).map_err(|e| format!("{what}: {e}"))?;
        }
        Ok(())
    }

    /// Where the run is cut: everywhere, or spread over all of it, with the first place and the last.
    #[must_use]
    pub fn places(&self, plan: &Plan) -> Vec<usize> {
        let (first, last) = (self.first_cut(), self.last_cut());
        let stride = ((last - first + 1) as u64 * plan.choices / 3 / plan.images_max.max(1)).max(1) as usize;
        // Not evenly: what the workload does may repeat itself as evenly.
        let jitter = |from: usize| hash::of_words(&[self.config.seed, from as u64]) as usize % stride;
        let mut places = vec![first];
        places.extend((first..last).step_by(stride).map(|from| (from + jitter(from)).min(last)));
        places.push(last);
        places.dedup();
        places
    }

    /// Cuts the run at the places of the plan.
    ///
    /// # Errors
    /// The first state that is not allowed.
    pub fn cut_all<S: Subject>(&self, plan: &Plan, tally: &mut Tally) -> Result<(), Box<Failure>> {
        tally.workloads += 1;
        for (what, n) in &self.activity {
            *tally.activity.entry((*what).to_owned()).or_default() += n;
        }
        for (kind, (made, refused)) in &self.calls {
            tally.calls += made;
            tally.refused += refused;
            *tally.by_call.entry((*kind).to_owned()).or_default() += made;
        }
        tally.see(&[self.digest, self.last_cut() as u64]);
        let mut seen: HashMap<u64, Seen> = HashMap::new();
        let mut cursor = self.history.cursor();
        let places = self.places(plan);
        let is_part = places.len() <= self.last_cut() - self.first_cut();
        for (i, at) in places.iter().copied().enumerate() {
            cursor.advance_to(at);
            let mut choices = choices(&self.config, at as u64, plan.choices, cursor.unflushed());
            if is_part {
                // No kind of choice is the first everywhere.
                let first = hash::of_words(&[self.config.seed, at as u64, 7]) as usize % choices.len().max(1);
                choices.rotate_left(first);
            }
            let enough = plan.images_max * (i as u64 + 1) / places.len() as u64;
            for (nth, choice) in choices.into_iter().enumerate() {
                // One at each place, and no place takes what others need.
                if nth > 0 && seen.len() as u64 >= enough {
                    break;
                }
                let cut = Cut { at, choice };
                guarded_at(&self.config, &[cut], || self.cut_once::<S>(cut, &mut cursor, &mut seen, plan, tally))?;
            }
        }
        Ok(())
    }

    /// One image, unless an equal one was looked at before.
    fn cut_once<S: Subject>(
        &self,
        cut: Cut,
        cursor: &mut HistoryCursor<'_>,
        seen: &mut HashMap<u64, Seen>,
        plan: &Plan,
        tally: &mut Tally,
    ) -> Result<(), Box<Failure>> {
        let image = cursor.image(&CrashChoice::from_seed(cut.choice));
        let id = image.content_hash();
        tally.image(id);
        *tally.by_choice.entry(choice_name(cut.choice).to_owned()).or_default() += 1;
        if let Some(known) = seen.get(&id) {
            return self.judge_again(cut, known).map_err(|e| self.explain::<S>(cut, e));
        }
        let content = image.content();
        let now = self.recover::<S>(cut, image, tally).map_err(|e| self.explain::<S>(cut, e))?;
        tally.see(&[id, now.state.found.sum]);
        if plan.deep_every > 0 && (seen.len() as u64 + 1) % plan.deep_every == 0 {
            self.second_life::<S>(cut, content, &now.state, plan, None, tally)?;
        }
        seen.insert(id, now);
        Ok(())
    }

    /// One cut, as a failure's line names it.
    ///
    /// # Errors
    /// When the state is not allowed.
    pub fn replay<S: Subject>(&self, cut: Cut, second: Option<Cut>, plan: &Plan) -> Result<Tally, Box<Failure>> {
        guarded_at(&self.config, &[cut], || self.replay_once::<S>(cut, second, plan))
    }

    fn replay_once<S: Subject>(&self, cut: Cut, second: Option<Cut>, plan: &Plan) -> Result<Tally, Box<Failure>> {
        let mut tally = Tally::default();
        let mut cursor = self.history.cursor();
        cursor.advance_to(cut.at);
        let image = cursor.image(&CrashChoice::from_seed(cut.choice));
        let content = image.content();
        let seen = self.recover::<S>(cut, image, &mut tally).map_err(|e| self.explain::<S>(cut, e))?;
        self.second_life::<S>(cut, content, &seen.state, plan, second, &mut tally)?;
        Ok(tally)
    }

    /// The recovered volume is used further, closed, checked and mounted; and
    /// everything it did, recovery included, is cut again.
    fn second_life<S: Subject>(
        &self,
        cut: Cut,
        content: Image,
        first: &State,
        plan: &Plan,
        only: Option<Cut>,
        tally: &mut Tally,
    ) -> Result<(), Box<Failure>> {
        tally.second_lives += 1;
        let fail = |e: String| failure(&self.config, &[cut], format!("after recovery: {e}"), String::new());
        let disk = Arc::new(CrashDisk::from_image(content));
        let drive = self.config.members.of(&disk);
        let excused = Excused { slots: true, absent: self.config.members.may_miss_something() };
        let findings = S::check(drive.clone(), excused).map_err(|e| fail(format!("check: {e}")))?;
        if !findings.is_empty() {
            return Err(self.explain::<S>(cut, format!("check before recovery: {}", findings.join("; "))));
        }
        let clock = Arc::new(self.clock.fork());
        let options = self.config.options();
        let run = Run::<S>::mount_on(disk.clone(), drive.clone(), drive, clock, options, None);
        let mut run = run.map_err(fail)?;
        self.goes_on(&mut run, cut).map_err(fail)?;
        run.trace = only.map(|_| Vec::new());
        let seed = hash::of_words(&[self.config.seed, cut.at as u64, cut.choice]);
        let allow = crate::workload::Allow { remount: false, kill: false };
        let mut workload = Workload::new(seed, self.config.capacity_bytes(), allow, None);
        if seed % 2 == 0 {
            // Or the work goes on meanwhile.
            joins::bring_up(&mut run).map_err(fail)?;
        }
        if let Some(e) = run.steps(&mut workload, 14).map_err(fail)? {
            return Err(fail(format!("the volume failed: {e}")));
        }
        run.compare_all().map_err(fail)?;
        close_and_compare(&mut run, &self.config).map_err(fail)?;
        run.forget();
        let history = disk.history().ok_or_else(|| fail("no history was kept".into()))?;
        let mut cursor = history.cursor();
        let (settled, model) = run.eras.first().ok_or_else(|| fail("no era".into()))?;
        let last = history.cut_points() as u64;
        for n in 0..plan.second_cuts {
            let at = (last * n + seed % (last + 1)) / plan.second_cuts;
            let at = if n % 2 == 0 { at.min(last) } else { (seed >> n) % (*settled as u64 + 1) };
            let drawn = choices(&self.config, seed ^ n, 4, 9);
            let choice = drawn.get(n as usize % drawn.len().max(1)).copied().unwrap_or(CrashChoice::SEED_APPLIED);
            let cut2 = only.unwrap_or(Cut { at: at as usize, choice });
            cursor.advance_to(cut2.at);
            let image = cursor.image(&CrashChoice::from_seed(cut2.choice));
            let id = image.content_hash();
            tally.see(&[id]);
            tally.image(id);
            tally.second_images += 1;
            let before = (cut2.at < *settled).then_some(first);
            let whole = run.whole_from.is_some_and(|from| from <= cut2.at);
            self.recover_second::<S>(cut2, model, (before, whole), image, tally).map_err(|e| {
                let mut detail = run.trace.clone().unwrap_or_default().join("\n");
                detail += &format!("\nmounted after {settled} device operations\n");
                let choice = CrashChoice::from_seed(cut2.choice);
                detail += &cursor.describe(&choice);
                detail += &self.found_instead::<S>(model, cursor.image(&choice));
                failure(&self.config, &[cut, cut2], format!("second cut: {e}"), detail)
            })?;
            if only.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn recover_second<S: Subject>(
        &self,
        cut: Cut,
        model: &Model,
        (before, whole): (Option<&State>, bool),
        image: CrashImage,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let image = Arc::new(image);
        if before.is_none() {
            // What the first mount has shown must not depend on a device that goes now.
            let gone = self.config.members.missing().filter(|_| !whole).unwrap_or_else(|| self.drawn_member(cut));
            self.judge_without::<S>(cut, gone, model, &image, tally)?;
        }
        let fs = open::<S>(self.config.options(), &self.clock, self.config.members.of(&image))?;
        tally.recoveries += 1;
        tally.verdicts(&fs);
        match before {
            Some(first) if State::of(&fs)? != *first => {
                Err("recovery was interrupted, and another state was found afterwards".into())
            }
            Some(_) => Ok(()),
            None => self.look_into(&fs, cut, model, tally).map(drop),
        }
    }

    /// Recovers the image once more, keeping everything, and says where wrong bytes come from.
    fn explain<S: Subject>(&self, cut: Cut, what: String) -> Box<Failure> {
        let mut cursor = self.history.cursor();
        cursor.advance_to(cut.at);
        let choice = CrashChoice::from_seed(cut.choice);
        let mut detail = cursor.describe(&choice);
        if let Ok(model) = self.era(cut.at) {
            detail += &self.found_instead::<S>(model, cursor.image(&choice));
        }
        failure(&self.config, &[cut], what, detail)
    }

    fn found_instead<S: Subject>(&self, model: &Model, image: CrashImage) -> String {
        let mut tree = Tree::default();
        match open::<S>(self.config.options(), &self.clock, self.config.members.of(&Arc::new(image))) {
            Ok(fs) if walk(&fs, At::Live, Some(&mut tree)).is_ok() => oracle::difference(model, &tree),
            _ => String::new(),
        }
    }
}

/// The choices tried at a cut.
fn choices(config: &Config, salt: u64, wanted: u64, unflushed: usize) -> Vec<u64> {
    if config.barrier == Barrier::None || unflushed == 0 {
        return vec![CrashChoice::SEED_APPLIED];
    }
    let fixed = [CrashChoice::SEED_APPLIED, CrashChoice::SEED_DROPPED, CrashChoice::SEED_LAST_TORN];
    let random = |n: u64| 3 + hash::of_words(&[config.seed, salt, n]) % 1_000_000;
    let fixed = fixed.into_iter().take(if unflushed == 0 { 1 } else { 3 });
    fixed.chain((3..wanted).map(random)).collect()
}

fn open<S: Subject>(options: MountOptions, clock: &VirtualClock, drive: Drive) -> Result<S, String> {
    let clock = Arc::new(clock.fork());
    S::open(drive, clock, options).map_err(|e| format!("recovery: {e}"))
}
