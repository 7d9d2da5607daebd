//! What the threads of a daemon share: the volume, its mounts, and the answers
//! to commands.

use super::cutting;
use super::devices::Cut;
use super::forgetting::Planned;
use super::letting_go::InUse;
use super::log::Log;
use super::mounting::paths_are_right;
use super::steps::Run;
use super::watch::{Problem, Watch};
use crate::control::{Answer, CheckpointData, DiffResult, Hello, MountData, Parts, Request, VolumeInfo};
use crate::error::Fail;
use crate::mended::Mended;
use crate::mounts::{self, Mount};
use crate::options::Options;
use crate::output::printable;
use crate::{diff, past, report, states, when};
use nenrin_core::{At, Clean, Counters, Error, Fs, Scrub};
use nenrin_format::Cno;
use nenrin_format::superblock::Profile;
use nenrin_fuse::{MountError, MountOptions, Pages, Session, SessionOptions, Stopper};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Most that one request for wiping reads and writes.
const FORGET_STEP_BYTES_MAX: u64 = 64 << 20;

/// How long whoever asks waits for a look at the images: where one stands still that does not return.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// That checkpoints rest is logged no more often than this.
const REST_LOGGED_EVERY: Duration = Duration::from_secs(600);
/// And what devices did wrong, after the first time.
const MENDED_LOGGED_EVERY: Duration = Duration::from_secs(60);

fn watches_of(fs: &Fs, before: &[Watch]) -> Arc<[Watch]> {
    let there = fs.health().into_iter();
    let stands_in = matches!(fs.superblock().profile, Profile::Mirror | Profile::Parity);
    there.filter_map(|d| Some(Watch::anew(before, d.place.as_ref()?, d.uuid, (d.index, d.bytes), stands_in))).collect()
}

/// What wakes the daemon's main thread.
pub enum Event {
    /// A mount has ended.
    Ended,
    /// A signal came that asks for the end.
    Signal(#[expect(dead_code, reason = "every ending signal means the same")] i32),
}

/// A past state in use, until it is dropped.
struct Hold(Option<(Arc<Fs>, Cno)>);

impl Hold {
    fn new(fs: Arc<Fs>, at: At) -> nenrin_core::Result<Self> {
        match at {
            At::Live => Ok(Self(None)),
            At::Past(cno) => fs.hold_checkpoint(cno).map(|()| Self(Some((fs, cno)))),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((fs, cno)) = self.0.take() {
            fs.let_checkpoint_go(cno);
        }
    }
}

/// One mount that is served.
pub(super) struct Mounted {
    pub number: u64,
    at: At,
    pub stopper: Stopper,
    pub pages: Pages,
    /// As the list of mounts has it; empty where it could not be seen there.
    pub device: String,
}

pub(super) struct State {
    /// Gone once the volume is being closed.
    pub(super) fs: Option<Arc<Fs>>,
    pub mounts: Vec<Mounted>,
    next_number: u64,
    closing: bool,
    /// All mounts are being taken away, so that there is to be no new one.
    stopping: bool,
    /// How closing went, once it did.
    pub closed: Option<Result<(), Fail>>,
    /// What is wrong with devices, besides what the library knows.
    problems: Vec<Problem>,
    /// Failure of the library that was logged.
    logged: Option<String>,
    /// Files of which it was logged that they are damaged.
    damage_logged: usize,
    /// What went wrong in the background last, by thread.
    mistakes: BTreeMap<String, String>,
    /// Files whose content was lost for want of room, which is logged.
    losses_logged: usize,
    /// What had been done when it was last looked at.
    counters: Counters,
    /// What of this was logged of blocks that devices gave wrong or not at all, and when that was.
    mended: (Mended, Option<Instant>),
    /// When it was last logged that checkpoints rest.
    rest_logged: Option<Instant>,
    /// Devices that were slow when it was last looked at.
    slow: Vec<u16>,
    /// Devices that were absent, or not up to date, then.
    absent: Vec<u16>,
    /// The device that was being brought up to date then, and where it is if it takes the place of another.
    joining: Option<(u16, Option<String>)>,
}

/// See the module.
pub struct Service {
    state: Mutex<State>,
    pub(super) changed: Condvar,
    pub(super) path: PathBuf,
    /// Its devices as they were when they were opened or last changed. Nobody looks at a device with this locked: where
    /// one stands still that does not return.
    watches: Mutex<Arc<[Watch]>>,
    /// Held by who finds out what the watches are by now: of two at once the later one has to be right.
    watching_anew: Mutex<()>,
    /// Images that are to be cut. Held while a device is resized.
    pub(super) to_cut: Mutex<Vec<Cut>>,
    /// Held by who commits for a mount that has left: the volume is not closed meanwhile.
    committing: Mutex<()>,
    /// The states that are mounted.
    pub(super) in_use: InUse,
    /// The volume until it is closed, also while that takes its time.
    judged: Mutex<Weak<Fs>>,
    /// The same, for who does nothing but beat, and waits for nobody.
    beaten: Mutex<Weak<Fs>>,
    events: Mutex<Sender<Event>>,
    pub(super) scrub: Mutex<Run<Scrub>>,
    pub(super) clean: Mutex<Run<Clean>>,
    /// What was to be forgotten when that was asked about last.
    pub(super) forget: Mutex<Option<Planned>>,
    /// What is asked for by [`Request::Lasting`].
    lasting: BTreeMap<String, String>,
    /// Devices that are added may be polled for ([`OpenMode::polling`]).
    pub(super) polling: bool,
    pub(super) log: Arc<Log>,
}

impl Service {
    pub fn new(fs: Arc<Fs>, path: PathBuf, options: &Options, log: Arc<Log>, events: Sender<Event>) -> Self {
        let watches = Mutex::new(watches_of(&fs, &[]));
        let [judged, beaten] = [(); 2].map(|()| Mutex::new(Arc::downgrade(&fs)));
        // What devices did before this mount was told by that one.
        let mended = (Mended::of(&fs), None);
        let state = State {
            fs: Some(fs),
            mounts: Vec::new(),
            next_number: 0,
            closing: false,
            stopping: false,
            closed: None,
            problems: Vec::new(),
            logged: None,
            damage_logged: 0,
            mistakes: BTreeMap::new(),
            losses_logged: 0,
            counters: Counters::default(),
            mended,
            rest_logged: None,
            slow: Vec::new(),
            absent: Vec::new(),
            joining: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            path,
            watches,
            judged,
            beaten,
            watching_anew: Mutex::default(),
            to_cut: Mutex::default(),
            committing: Mutex::default(),
            in_use: InUse::default(),
            events: Mutex::new(events),
            scrub: Mutex::default(),
            clean: Mutex::default(),
            forget: Mutex::default(),
            lasting: options.lasting(),
            polling: !options.nopoll,
            log,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Everything under this lock is replaced whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volume, while it is open.
    pub fn fs(&self) -> Result<Arc<Fs>, Fail> {
        self.lock().fs.clone().ok_or_else(|| Fail::at(self.path.display(), "the volume is being released"))
    }

    /// Wakes the main thread.
    pub fn send(&self, event: Event) {
        let _ = self.events.lock().unwrap_or_else(PoisonError::into_inner).send(event);
    }

    /// Mounts the state `at`, and serves it on threads of its own.
    pub fn add(self: &Arc<Self>, at: At, how: &MountOptions, options: &SessionOptions) -> Result<(), Fail> {
        let fs = self.fs()?;
        // What is mounted is not thinned away, nor let go.
        let used = self.in_use.begin(at);
        let hold = Hold::new(fs.clone(), at).map_err(plain)?;
        let mut options = options.clone();
        options.left_bytes_max = fs.options().dirty_bytes_max / 2;
        if fs.health().len() < 2 {
            // One device is kept busy by few threads, and more only change places (decision 0022): but for
            // those that wait for it with a commit.
            options.threads_max = options.threads + nenrin_core::COMMITS_AT_ONCE as usize;
        }
        let session = Session::start(fs, at, how, &options).map_err(|e| describe_mount(&e))?;
        if session.way() != options.way {
            self.log.line("requests come over /dev/fuse: the kernel does not offer io_uring for them (enable_uring of the module fuse), or forbids it");
        }
        let (stopper, pages) = (session.stopper(), session.pages());
        let mount = mounts::of_point(stopper.directory());
        let mut state = self.lock();
        if state.closing || state.stopping {
            return Err(Fail::at(self.path.display(), "the volume is being released"));
        }
        let number = state.next_number;
        state.next_number += 1;
        let device = mount.map(|m| m.device).unwrap_or_default();
        state.mounts.push(Mounted { number, at, stopper, pages, device });
        drop(state);
        // Who waits for the release waits in vain now.
        self.changed.notify_all();
        let this = self.clone();
        let body = move || {
            let ended = session.run();
            drop((hold, used));
            if let Err(e) = ended {
                this.log.line(&format!("serving ended with an error: {e}"));
            }
            this.lock().mounts.retain(|m| m.number != number);
            this.changed.notify_all();
            this.send(Event::Ended);
        };
        let spawned = thread::Builder::new().name("nenrin-session".into()).spawn(body);
        if let Err(e) = spawned {
            self.lock().mounts.retain(|m| m.number != number);
            return Err(Fail::at("a thread", e));
        }
        Ok(())
    }

    /// Takes all mounts away, for good; programs that still use them are served on.
    pub fn stop_all(&self) {
        let mut state = self.lock();
        // One that is being made now would be there still when nobody serves it any more.
        state.stopping = true;
        let stoppers: Vec<Stopper> = state.mounts.iter().map(|m| m.stopper.clone()).collect();
        drop(state);
        for stopper in stoppers {
            if let Err(e) = stopper.stop() {
                self.log.line(&format!("{}: cannot be unmounted: {e}", stopper.directory().display()));
            }
        }
    }

    /// Has the kernel send what it keeps of files that are open: what is said to be there then has it.
    pub(super) fn bring_in(&self) {
        self.each_pages(Pages::bring_in);
    }

    pub(super) fn each_pages(&self, what: fn(&Pages)) {
        let all: Vec<Pages> = self.lock().mounts.iter().map(|m| m.pages.clone()).collect();
        all.iter().for_each(what);
    }

    /// Whether no mount is left; from then on there will be none.
    pub fn close_if_unused(&self) -> bool {
        let mut state = self.lock();
        state.closing |= state.mounts.is_empty();
        state.closing
    }

    /// Commits everything, writes a clean root, closes the device.
    pub fn close(&self) -> Result<(), Fail> {
        self.note_damage();
        self.note_lost_writes();
        self.note_mended(true);
        let mut state = self.lock();
        state.closing = true;
        let fs = state.fs.take();
        drop(state);
        drop(self.committing());
        let result = match fs {
            Some(fs) => {
                // Where that fails closing says why.
                let _ = fs.cut_at_end();
                let closed = fs.close().map_err(|e| Fail::at(self.path.display(), e));
                *self.judged() = Weak::new();
                *self.beaten() = Weak::new();
                // Who cuts an image in the background has it, too.
                drop(self.to_cut());
                drop(fs);
                closed
            }
            None => Ok(()),
        };
        match &result {
            Ok(()) => self.log.line(&format!("{} released", self.path.display())),
            Err(fail) => self.log.line(&fail.to_string()),
        }
        self.lock().closed = Some(result.clone());
        self.changed.notify_all();
        result
    }

    /// Shows other hosts that this one has the volume, when that is due. What went wrong is logged by the next tick.
    pub fn beat(&self) {
        // Also while it is closed, and held until that is done, as by who judges.
        let beaten = self.beaten();
        if let Some(fs) = beaten.upgrade() {
            let _ = fs.beat();
        }
    }

    fn beaten(&self) -> MutexGuard<'_, Weak<Fs>> {
        self.beaten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the library do what is due, and logs a failure once.
    pub fn tick(&self) {
        let Ok(fs) = self.fs() else { return };
        let failed = match fs.tick() {
            Ok(()) => fs.failed(),
            Err(e) => Some(fs.failed().unwrap_or_else(|| e.to_string())),
        };
        let mut state = self.lock();
        if failed.is_some() && failed != state.logged {
            state.logged.clone_from(&failed);
            drop(state);
            let why = report::failure(&failed.unwrap_or_default());
            self.log.line(&format!("{}: {why}", self.path.display()));
        }
    }

    /// Has the library commit what would else wait for too long. A failure is logged by the next tick.
    pub fn commit_due(&self) {
        if let Ok(fs) = self.fs() {
            drop(fs.commit_due());
        }
    }

    /// Has the library look which devices are slow or do not answer, and logs what changed.
    pub fn judge(&self) {
        // Held until that is done: when closing lets go of the volume nobody else has it.
        let judged = self.judged();
        if let Some(fs) = judged.upgrade() {
            fs.judge_devices();
            self.note_slow(&fs);
        }
    }

    fn judged(&self) -> MutexGuard<'_, Weak<Fs>> {
        self.judged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs which devices became slow, and which are fast again.
    fn note_slow(&self, fs: &Fs) {
        let now = fs.slow_devices();
        let before = std::mem::replace(&mut self.lock().slow, now.clone());
        if before != now {
            report::became_slow(fs, &before, &now).iter().for_each(|text| self.log.line(text));
        }
    }

    pub(super) fn watches(&self) -> Arc<[Watch]> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn committing(&self) -> MutexGuard<'_, ()> {
        self.committing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn to_cut(&self) -> MutexGuard<'_, Vec<Cut>> {
        self.to_cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The devices have changed, or how much of them is used.
    pub(super) fn watch_anew(&self, fs: &Fs) {
        let _alone = self.watching_anew.lock().unwrap_or_else(PoisonError::into_inner);
        let watches = watches_of(fs, &self.watches());
        *self.watches.lock().unwrap_or_else(PoisonError::into_inner) = watches;
    }

    /// As if there were one image, which is looked at so.
    #[cfg(test)]
    pub(super) fn watch_by(&self, look: impl Fn() + Send + Sync + 'static) {
        let how = move |_: &_| {
            look();
            None
        };
        *self.watches.lock().unwrap() = Arc::from([Watch::by(how)]);
    }

    /// Has somebody look whether the images are still what was opened, and notes what was seen before.
    pub fn watch(&self) {
        drop(self.look(Duration::ZERO));
    }

    /// What is wrong with devices now, as far as that can be seen within [`LOOK_TIME`].
    pub(super) fn problems(&self) -> Vec<Problem> {
        self.look(LOOK_TIME)
    }

    /// Has all images be looked at, and waits for that, but no longer than `most`; what was seen by then.
    fn look(&self, most: Duration) -> Vec<Problem> {
        let (watches, end) = (self.watches(), Instant::now() + most);
        let asked: Vec<u64> = watches.iter().map(Watch::ask).collect();
        watches.iter().zip(asked).for_each(|(watch, number)| watch.wait(number, end));
        let problems: Vec<Problem> = watches.iter().filter_map(Watch::seen).collect();
        // A device that was taken out meanwhile may well be gone.
        if Arc::ptr_eq(&watches, &self.watches()) {
            self.note_problems(problems.clone());
        }
        problems
    }

    /// Notes that work in the background stopped at a mistake of this program. It goes on; what it did not do this time it may never do.
    pub(super) fn note_mistake(&self, thread: &str, what: &str) {
        let text = format!("a mistake of this program, in {thread}: {what}; unmount and mount again, and report it");
        let is_first = self.lock().mistakes.insert(thread.to_owned(), text.clone()).is_none();
        if is_first {
            self.log.line(&text);
        }
    }

    /// Notes what is wrong with images; a new problem is logged.
    fn note_problems(&self, problems: Vec<Problem>) {
        let before = std::mem::replace(&mut self.lock().problems, problems.clone());
        for problem in problems.iter().filter(|p| !before.contains(p)) {
            self.log.line(&problem.text);
        }
    }

    /// Logs what could not be read because of damage: of each file once.
    pub fn note_damage(&self) {
        let Ok(fs) = self.fs() else { return };
        let files = fs.damaged_reads().first;
        let logged = std::mem::replace(&mut self.lock().damage_logged, files.len());
        // Those of before may have been found whole again.
        for read in files.iter().skip(if logged > files.len() { 0 } else { logged }) {
            self.log.line(&format!("{}: {}", self.path.display(), printable(&report::damaged_read(&fs, read))));
        }
    }

    /// Logs that content was lost for want of room, again where other files have lost some.
    pub fn note_lost_writes(&self) {
        let Ok(fs) = self.fs() else { return };
        let files = fs.lost_writes().files.len();
        let is_new = std::mem::replace(&mut self.lock().losses_logged, files) < files;
        if let Some(text) = report::lost_writes(&fs).filter(|_| is_new) {
            self.log.line(&format!("{}: {}", self.path.display(), printable(&text)));
        }
    }

    /// Logs what was let go for want of room.
    pub fn note_let_go(&self) {
        let Ok(fs) = self.fs() else { return };
        let before = std::mem::replace(&mut self.lock().counters, fs.counters());
        if let Some(text) = report::let_go(&fs, &before) {
            self.log.line(&format!("{}: {text}", self.path.display()));
        }
    }

    /// Logs blocks that devices gave wrong or not at all, and how many were written anew: at once, and then no more often than
    /// [`MENDED_LOGGED_EVERY`]; where it is the last time, what is left.
    pub fn note_mended(&self, is_last: bool) {
        let Ok(fs) = self.fs() else { return };
        let now = Mended::of(&fs);
        let mut state = self.lock();
        let (before, logged) = &state.mended;
        let is_due = is_last || logged.is_none_or(|at| at.elapsed() >= MENDED_LOGGED_EVERY);
        let Some(text) = now.since(before).filter(|_| is_due) else { return };
        state.mended = (now, Some(Instant::now()));
        drop(state);
        self.log.line(&format!("{}: {text}", self.path.display()));
    }

    /// Logs that no checkpoints are made by themselves: once, however often that changes meanwhile.
    pub fn note_rest(&self) {
        let Ok(fs) = self.fs() else { return };
        let Some(text) = report::resting(&fs) else { return };
        let mut state = self.lock();
        if state.rest_logged.is_none_or(|at| at.elapsed() >= REST_LOGGED_EVERY) {
            state.rest_logged = Some(Instant::now());
            drop(state);
            self.log.line(&format!("{}: {text}", self.path.display()));
        }
    }

    /// Logs once which devices are missing, so that what is written has no second copy.
    pub fn note_absent(&self) {
        let Ok(fs) = self.fs() else { return };
        let now = report::absent(&fs);
        let before = std::mem::replace(&mut self.lock().absent, now.iter().map(|(index, _)| *index).collect());
        now.iter().filter(|(index, _)| !before.contains(index)).for_each(|(_, text)| self.log.line(text));
    }

    /// Logs what became of a device that was brought up to date, or was to take the place of another.
    pub fn note_joined(&self) {
        let Ok(fs) = self.fs() else { return };
        let now = fs.join_status().map(|s| (s.index, s.replacement));
        let before = std::mem::replace(&mut self.lock().joining, now.clone());
        let Some((index, replacement)) = before.filter(|before| now.as_ref() != Some(before)) else { return };
        let number = index + 1;
        self.log.line(&match (fs.join_failed(), replacement) {
            (Some(why), Some(path)) => format!("device {number} stays, and {path} is not used: {why}"),
            (Some(why), None) => format!("device {number} was not brought up to date: {why}"),
            (None, Some(path)) => format!("device {number} is {path} now"),
            (None, None) => format!("device {number} is up to date"),
        });
    }

    pub(super) fn mounts(&self) -> Vec<MountData> {
        // Without a descriptor to read it by they are where they were.
        let listed = mounts::all().ok();
        self.lock().mounts.iter().map(|m| data(m, listed.as_deref())).collect()
    }

    /// Answers a command.
    pub fn answer(self: &Arc<Self>, request: Request, parts: &mut Parts<'_>) -> Result<Answer, Fail> {
        match request {
            Request::Hello => Ok(Answer::of(self.hello())),
            Request::Info => Ok(Answer::of(self.info()?)),
            Request::Lasting => Ok(Answer::of(self.lasting.clone())),
            Request::Sync => {
                self.bring_in();
                self.fs()?.sync_all().map_err(plain)?;
                Ok(Answer::of(()))
            }
            Request::Checkpoints => Ok(Answer::of(report::checkpoints(&*self.fs()?))),
            Request::Snapshots => Ok(Answer::of(report::snapshots(&*self.fs()?).map_err(plain)?)),
            Request::CheckpointCreate { name } => {
                name.as_deref().map_or(Ok(()), when::check_name).map_err(Fail::usage)?;
                self.bring_in();
                Ok(Answer::of(cutting::cut(&*self.fs()?, name.as_deref())?))
            }
            Request::CheckpointDelete { from, to } => self.delete_checkpoints(from, to),
            Request::SnapshotName { cno, name } => self.name(Cno(cno), &name),
            Request::SnapshotDelete { name } => self.delete(&name),
            Request::Retention => Ok(Answer::of(self.fs()?.retention())),
            Request::History { path } => {
                let fs = self.fs()?;
                Ok(Answer::of(crate::states::of(&fs, &path)?))
            }
            Request::PathThen { path, cno } => {
                Ok(Answer::of(self.fs()?.path_then(&states::parts(&path), Cno(cno)).map_err(plain)?))
            }
            Request::Gone { path } => {
                let fs = self.fs()?;
                Ok(Answer::of(crate::states::gone(&fs, &path, &mut |some| parts.send(&some))?))
            }
            Request::Reach { path } => Ok(Answer::of(states::reach(&*self.fs()?, &path))),
            Request::Find { when } => {
                let fs = self.fs()?;
                let (found, landmarks_only) = past::find_or_landmark(&fs, &when)?;
                Ok(Answer::of(CheckpointData { landmarks_only, ..report::checkpoint(&found) }))
            }
            Request::Diff { path, from, to } => self.diff(&path, &from, to.as_deref(), parts),
            Request::SetRetention { rule } => {
                let fs = self.fs()?;
                fs.set_retention(&rule).map_err(|e| match e {
                    Error::BadRule(text) => Fail::usage(text),
                    e => plain(e),
                })?;
                Ok(Answer::of(fs.retention()))
            }
            Request::Segments => Ok(Answer::of(report::segments(&*self.fs()?, &mut |some| parts.send(&some))?)),
            Request::Scrub { begin, run, bytes } => self.scrub(begin, run, bytes),
            Request::CleanEstimate => {
                let fs = self.fs()?;
                let order = fs.order_estimate().map_err(plain)?;
                Ok(Answer::of(report::clean_estimate(&fs.clean_estimate(), &order, segment_blocks(&fs))))
            }
            Request::Clean { begin, run, bytes } => self.clean(begin, run, bytes),
            Request::ForgetPlan { path, only_tell } => self.forget_plan(path, only_tell),
            Request::Forget { path, plan } => self.forget(&path, &plan),
            Request::ForgetStep { bytes } => {
                let fs = self.fs()?;
                let status = fs.forget_step(bytes.min(FORGET_STEP_BYTES_MAX)).map_err(plain)?;
                let data = report::forget(&fs, status);
                if data.done {
                    // What was listed or read as it was forgotten was answered after that.
                    self.each_pages(Pages::drop_past);
                }
                Ok(Answer::of(data))
            }
            Request::Replace { old, new, uuid, space } => {
                paths_are_right(space.as_deref())?;
                self.replace(&old, &new, uuid)
            }
            Request::ReplaceCancel => self.stop_replacing(),
            Request::JoinStatus { uuid } => self.join_data(uuid),
            Request::DeviceAdd { device, uuid, space } => {
                paths_are_right(space.as_deref())?;
                self.device_add(&device, uuid)
            }
            Request::DeviceForgive { device } => self.device_forgive(&device),
            Request::DeviceRemove { device, keep } => self.device_remove(&device, keep),
            Request::Resize { device, bytes } => self.resize(device.as_deref(), bytes),
            Request::LayingStep { bytes, order } => self.lay(bytes, order.as_ref()),
            Request::MountPast(how) => self.mount_past(&how),
            Request::Umount { directory, force } => self.umount(&directory, force),
            Request::MayLeave { directory } => Ok(Answer::of(self.may_leave(&directory, false)?)),
            Request::Remounted { device, read_only } => self.remounted(&device, read_only),
            Request::Closing => self.await_closing(parts),
            Request::Left { device } => self.left(&device),
            Request::Failure => Ok(Answer::of(report::why_read_only(&*self.fs()?))),
        }
    }

    fn hello(&self) -> Hello {
        let mounts = self.mounts();
        let fs = self.fs().ok();
        Hello {
            identities: self.watches().iter().flat_map(Watch::identities).cloned().collect(),
            pid: std::process::id(),
            read_only: fs.as_ref().is_none_or(|fs| fs.options().read_only),
            closing: self.lock().closing,
            mounts,
            space: mounts::space(),
            hears_remounts: true,
        }
    }

    fn info(&self) -> Result<VolumeInfo, Fail> {
        let mut info = report::volume(&*self.fs()?, &self.path);
        info.pid = Some(std::process::id());
        info.mounts = self.mounts();
        for problem in self.problems() {
            let uuid = report::show_uuid(&problem.uuid);
            for device in info.devices.iter_mut().filter(|d| d.uuid == uuid) {
                device.why = device.why.take().or_else(|| Some(problem.text.clone()));
            }
            info.problems.push(problem.text);
        }
        info.problems.extend(self.lock().mistakes.values().cloned());
        Ok(info)
    }

    fn name(&self, cno: Cno, name: &str) -> Result<Answer, Fail> {
        when::check_name(name).map_err(Fail::usage)?;
        let fs = self.fs()?;
        fs.checkpoint_name(cno, Some(name.as_bytes())).map_err(plain)?;
        let info = fs.checkpoint_find(name.as_bytes()).ok_or_else(|| Fail::new("the checkpoint was let go"))?;
        Ok(Answer::of(report::checkpoint(&info)))
    }

    /// Both states are held meanwhile; programs go on.
    fn diff(&self, path: &Path, from: &str, to: Option<&str>, parts: &mut Parts<'_>) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let old = past::find(&fs, from)?;
        let new = to.map(|to| past::find(&fs, to)).transpose()?;
        if new.is_none() {
            self.bring_in();
        }
        let (old_at, new_at) = (At::Past(old.cno), new.as_ref().map_or(At::Live, |c| At::Past(c.cno)));
        let held = [Hold::new(fs.clone(), old_at).map_err(plain)?, Hold::new(fs.clone(), new_at).map_err(plain)?];
        let differences = {
            let wanted = parts.wanted();
            diff::between(&fs, path, (old_at, new_at), &mut |some| parts.send(&some), &|| wanted.is_so())?
        };
        drop(held);
        let (from, to) = (report::checkpoint(&old), new.as_ref().map(report::checkpoint));
        Ok(Answer::of(DiffResult { from, to, differences }))
    }
}

pub(super) fn segment_blocks(fs: &Fs) -> u64 {
    u64::from(fs.superblock().segment_blocks)
}

/// A mount, where the list of mounts shows it now: it may be bound elsewhere, and have left where it was.
fn data(m: &Mounted, listed: Option<&[Mount]>) -> MountData {
    let own = m.stopper.directory();
    let points: Vec<&Path> =
        listed.unwrap_or_default().iter().filter(|l| l.device == m.device).map(|l| &*l.point).collect();
    let shown = points.iter().find(|p| **p == own).or(points.first());
    MountData {
        directory: shown.unwrap_or(&own).display().to_string(),
        device: m.device.clone(),
        checkpoint: match m.at {
            At::Live => None,
            At::Past(cno) => Some(cno.0),
        },
        detached: listed.is_some() && shown.is_none() && !m.device.is_empty(),
    }
}

pub(super) fn plain(e: nenrin_core::Error) -> Fail {
    Fail::new(e.to_string())
}

/// The front end's words, which say what, where and what to do.
pub(super) fn describe_mount(e: &MountError) -> Fail {
    match e {
        MountError::Io(_, path, error) if error.kind() == std::io::ErrorKind::PermissionDenied => Fail::at(
            path.display(),
            "permission denied; mount as root, or on a directory that is yours with fuse3 installed",
        ),
        _ => Fail::new(e.to_string()),
    }
}
