//! Bringing a device up to date in the background: which segments are copied, and when.
//!
//! Invariants
//! 1. What is not free is copied. What becomes used later is written by somebody, to this device too.
//! 2. A tick copies a bounded part: little beside others, more when nobody asks for anything.

use super::{Fs, locked};
use crate::breaks::{Break, broken};
use crate::devices::{Apart, Copied};
use crate::segments::{KIND_CHAIN, SegmentState};
use crate::vouched::{self, Vouched};
use crate::{Error, Result};
use nenrin_device::{BlockDevice, DeviceError, Op};
use nenrin_format::superblock::{AREA_BLOCKS, SLOTS_PER_AREA};
use nenrin_format::{Addr, BLOCK_BYTES, SegmentNo};
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Blocks that a tick copies at most beside others: 4 MiB, so about 40 MiB in a second.
const BUSY_BLOCKS: u64 = 1024;
/// The same while nobody asks for anything.
const IDLE_BLOCKS: u64 = 32768;
/// Time after which a tick copies no more.
const TICK_NANOS: u64 = 60_000_000;
/// Ticks that copying everything takes at least beside others.
const TICKS_MIN: u64 = 16;
/// Requests of others in a tick up to which the devices count as idle.
const IDLE_REQUESTS: u64 = 2;
/// Why a device does not take the place of another that somebody gave up.
const ON_REQUEST: &str = "given up on request";
/// Blocks that could be read nowhere: with more, what is copied from is broken.
const UNREADABLE_MAX: u64 = 4096;

/// A device that is to take the place of a member.
#[derive(Clone)]
pub struct NewDevice {
    /// The device. What is on it is lost.
    pub device: Arc<dyn BlockDevice>,
    /// Its identity within the volume: random.
    pub uuid: [u8; 16],
}

/// How far a device is that is brought up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinStatus {
    /// Its place in the device table.
    pub index: u16,
    /// Path of a device that takes the place of another.
    pub replacement: Option<String>,
    /// Identity of such a device.
    pub uuid: Option<[u8; 16]>,
    /// Blocks copied.
    pub blocks: u64,
    /// Blocks to copy, about.
    pub blocks_expected: u64,
    /// Of these, blocks that could be read nowhere.
    pub unreadable_blocks: u64,
}

type Known = Option<(SegmentNo, [Vec<Vouched>; 2])>;

/// What is left to do.
struct Job {
    status: JoinStatus,
    new: Option<NewDevice>,
    /// Segments with the block from which on they are to be copied.
    todo: VecDeque<(SegmentNo, u32)>,
    /// Blocks of the device for each segment, about.
    share: u64,
    /// What is vouched for in the segment that was last looked at: by summaries, and by trees.
    vouched: Known,
}

/// What is known of joining between ticks.
#[derive(Default)]
pub(super) struct Joiner {
    job: Option<Job>,
    /// How far the last job had come when it ended.
    last: Option<JoinStatus>,
    /// Requests to the devices when it last copied.
    requests: u64,
}

impl Joiner {
    /// Nothing is under way any more.
    fn end(&mut self) -> Option<Job> {
        let job = self.job.take()?;
        self.last = Some(job.status.clone());
        Some(job)
    }
}

fn another_joins<T>() -> Result<T> {
    Err(Error::Open("another device is being brought up to date; try again when it is".into()))
}

impl Fs {
    pub(super) fn joiner(&self) -> MutexGuard<'_, Joiner> {
        locked(&self.joiner, self.clock.as_ref()).unwrap_or_else(PoisonError::into_inner)
    }

    /// The device that is brought up to date, if one is.
    #[must_use]
    pub fn join_status(&self) -> Option<JoinStatus> {
        self.storage.devices().joining()?;
        self.joiner().job.as_ref().map(|j| j.status.clone())
    }

    /// How far the last device had come that is not brought up to date any more, since it is that, or was given up.
    #[must_use]
    pub fn joined_last(&self) -> Option<JoinStatus> {
        self.joiner().last.clone()
    }

    /// Whether a device is being brought up to date, or is about to be.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        let devices = self.storage.devices();
        !self.options.read_only && (devices.joining().is_some() || !devices.stale().is_empty())
    }

    /// Why the last device that was to be brought up to date, or to take the place of another, did not.
    #[must_use]
    pub fn join_failed(&self) -> Option<String> {
        self.storage.devices().joining_ended()
    }

    /// Begins to bring `new` up to date, which then takes the place of the member `index`. Until then that one goes on.
    ///
    /// # Errors
    /// [`Error::Device`] when `new` fails, [`Error::Open`] when it is too short, is a member, in use on another host, or
    /// another device is being brought up to date; nothing has changed then.
    pub fn replace_device(&self, index: u16, new: NewDevice) -> Result<()> {
        drop(self.lock_to_accept()?);
        let new = NewDevice { device: self.guarded(new.device), ..new };
        let devices = self.storage.devices();
        let Some(preparing) = devices.prepare(new.device.clone()) else { return another_joins() };
        let ready = self.make_ready(preparing.apart(), index, &new);
        let mut joiner = self.joiner();
        // Before the others see that it begins: who gives it up from then on waits for the joiner, and finds it there.
        if preparing.is_stopped() {
            return Err(Error::Open(format!("it was {ON_REQUEST}")));
        }
        let ready = ready?;
        if self.to_replace(&joiner, index, &new)? != ready {
            return Err(Error::Open("devices were changed meanwhile; try again".into()));
        }
        self.begin_join(&mut joiner, index, Some(new));
        Ok(())
    }

    /// Whatever a device held is cleared, where it may take this place: so many blocks are used of the one that has it. It may take its time, or
    /// not answer, from its first request on: nobody else waits for that, and who gives it up is answered.
    fn make_ready(&self, apart: &Apart, index: u16, new: &NewDevice) -> Result<u64> {
        crate::heartbeat::refuse_to_replace(apart.devices(), self.clock.as_ref())?;
        // That may have waited.
        drop(self.lock_to_accept()?);
        if self.laying_status().is_some() {
            // A look tells whether anything is to be done.
            self.laying_step(1)?;
        }
        let used = self.to_replace(&self.joiner(), index, new)?;
        let _held = broken(Break::NewcomerHeld).then(|| self.joiner());
        self.clear_for_joining(apart, used)?;
        Ok(used)
    }

    /// Whether a device can take this place as things are: so many blocks are used of the one that has it.
    fn to_replace(&self, joiner: &Joiner, index: u16, new: &NewDevice) -> Result<u64> {
        drop(self.lock_to_accept()?);
        if joiner.job.is_some() || self.storage.devices().joining().is_some() {
            return another_joins();
        }
        let health = self.health();
        if self.laying_status().is_some() || health.iter().any(|d| d.target_bytes != d.bytes) {
            return Err(Error::Open("devices are being added, removed or resized; try again when that is done".into()));
        }
        let Some(old) = health.iter().find(|d| d.index == index) else {
            return Err(Error::Open(format!("the volume has no device {}", index + 1)));
        };
        let geometry = new.device.geometry();
        let need = self.superblock().blocks_needed(index) * BLOCK_BYTES as u64;
        if geometry.bytes / BLOCK_BYTES as u64 * (BLOCK_BYTES as u64) < need {
            let text = format!("{} is too small: {} bytes, {need} are needed", geometry.name, geometry.bytes);
            return Err(Error::Open(text));
        }
        if !geometry.writable {
            return Err(Error::Open(format!("{} is read-only", geometry.name)));
        }
        if old.standing != crate::Standing::Active && !self.storage.devices().can_spare(index) {
            let text = format!("device {} is absent, and the others do not have what was on it", index + 1);
            return Err(Error::Open(text));
        }
        Ok(old.bytes / BLOCK_BYTES as u64)
    }

    /// Whatever a device held: it must not be taken for something before it has its place. `used`: so much is used of the one that has it.
    fn clear_for_joining(&self, new: &Apart, used: u64) -> Result<()> {
        let Some(device) = new.device() else { return Err(DeviceError::Missing.into()) };
        let there = device.geometry().bytes / BLOCK_BYTES as u64;
        let zeros = Arc::new(nenrin_device::AlignedBuf::zeroed(AREA_BLOCKS as usize * BLOCK_BYTES));
        let zero = |area: u64| Op::Write { offset: area * BLOCK_BYTES as u64, data: zeros.clone() };
        self.storage.devices().clear_row_log(device)?;
        // Where its end is as long as less is used of it, too.
        Ok(new.carry_out([0, used.min(there) - AREA_BLOCKS, there - AREA_BLOCKS].map(zero))?)
    }

    /// Gives up what [`Fs::replace_device`] began, if it has not ended; whether there was anything. A device that does not answer is not
    /// waited for.
    pub fn stop_replacing(&self) -> bool {
        let (devices, why) = (self.storage.devices(), format!("it was {ON_REQUEST}"));
        // Before what is known of the copying is asked for: who copies has that.
        let was_left = devices.stop_preparing() | devices.leave_hanging(&why);
        let mut joiner = self.joiner();
        let is_new = joiner.job.as_ref().is_some_and(|j| j.new.is_some());
        if is_new {
            devices.stop_joining(&why);
            drop(joiner.end());
        }
        was_left || is_new
    }

    fn begin_join(&self, joiner: &mut Joiner, index: u16, new: Option<NewDevice>) {
        let devices = self.storage.devices();
        devices.begin_joining(index, new.as_ref().map(|n| n.device.clone()));
        // Not before: what is free now gets everything that is written to it.
        let used: Vec<SegmentNo> = {
            let inner = self.lock();
            let all = inner.state.segments.iter();
            all.filter(|(no, s)| s.state != SegmentState::Free && devices.has_part(index, *no))
                .map(|(no, _)| no)
                .collect()
        };
        let half = used.len() / if broken(Break::JoinHalf) { 2 } else { 1 };
        let share = used.first().map_or(1, |no| devices.share_blocks(*no));
        let replacement = new.as_ref().map(|n| n.device.geometry().name);
        let (blocks_expected, uuid) = (share * used.len() as u64, new.as_ref().map(|n| n.uuid));
        let status = JoinStatus { index, replacement, uuid, blocks: 0, blocks_expected, unreadable_blocks: 0 };
        let todo = used[..half].iter().map(|no| (*no, 0)).collect();
        joiner.requests = devices.requests();
        joiner.job = Some(Job { status, new, todo, share, vouched: None });
    }

    /// Copies on, about so many bytes. `None` when no device is to be brought up to date any more.
    ///
    /// # Errors
    /// When a write or flush failed, now or earlier.
    pub fn join_step(&self, bytes: u64) -> Result<Option<JoinStatus>> {
        let _way = super::beside::giving_way();
        drop(self.lock_to_accept()?);
        let mut joiner = self.joiner();
        self.join(&mut joiner, bytes.div_ceil(BLOCK_BYTES as u64), u64::MAX)?;
        Ok(joiner.job.as_ref().map(|j| j.status.clone()))
    }

    /// Some of it in the background.
    pub(super) fn join_some(&self, now: u64) -> Result<()> {
        // Who asked for it does it meanwhile.
        let Ok(mut joiner) = self.joiner.try_lock() else { return Ok(()) };
        let requests = self.storage.devices().requests();
        let busy = requests.saturating_sub(joiner.requests) > IDLE_REQUESTS;
        joiner.requests = requests;
        let all = joiner.job.as_ref().map_or(0, |j| j.status.blocks_expected);
        let blocks = if busy { BUSY_BLOCKS.min(all / TICKS_MIN).max(1) } else { IDLE_BLOCKS };
        self.join(&mut joiner, blocks, now.saturating_add(TICK_NANOS))
    }

    fn join(&self, joiner: &mut Joiner, blocks: u64, until: u64) -> Result<()> {
        let devices = self.storage.devices();
        if joiner.job.is_none() {
            self.owns_to_write()?;
            let Some(index) = devices.stale().first().copied() else { return Ok(()) };
            self.begin_join(joiner, index, None);
        }
        let Some(job) = &mut joiner.job else { return Ok(()) };
        self.lock().reap_writes();
        let mut left = blocks;
        // What is being written is left for later, each segment once.
        let mut turns = job.todo.len();
        while left > 0 && turns > 0 {
            let Some((segment, block)) = job.todo.pop_front() else { break };
            let count = devices.copy_blocks(segment).min(self.storage.segment_blocks - block);
            let is_free = self.lock().state.segments.is_free(segment);
            let copied = match is_free {
                true => Copied::Done { blocks: 0, unreadable: 0 },
                false => self.copy_some(&mut job.vouched, Addr::new(segment, block), count)?,
            };
            match copied {
                // What is vouched for was said.
                Copied::Unlike => break,
                Copied::Busy => {
                    job.todo.push_back((segment, block));
                    turns -= 1;
                }
                Copied::Over => break,
                Copied::Done { blocks, unreadable } => {
                    job.status.blocks += u64::from(blocks);
                    self.lock().counters.joined_blocks += u64::from(blocks);
                    job.status.unreadable_blocks += u64::from(unreadable);
                    left = left.saturating_sub(u64::from(blocks.max(1)));
                    match block + count < self.storage.segment_blocks && !is_free {
                        true => job.todo.push_front((segment, block + count)),
                        false => turns -= 1,
                    }
                }
            }
            if job.status.unreadable_blocks > UNREADABLE_MAX {
                devices.stop_joining("what it is copied from cannot be read");
            }
            if self.clock.monotonic_nanos() >= until {
                break;
            }
        }
        job.status.blocks_expected = job.status.blocks + job.todo.len() as u64 * job.share;
        if devices.joining().is_none() {
            drop(joiner.end());
        } else if job.todo.is_empty() {
            self.end_join(joiner)?;
        }
        Ok(())
    }

    /// Copies these blocks, by what is vouched for in their segment if it takes that.
    fn copy_some(&self, known: &mut Known, first: Addr, count: u32) -> Result<Copied> {
        self.owns_to_write()?;
        let devices = self.storage.devices();
        let of_segment = known.as_ref().filter(|(of, _)| *of == first.segment()).map(|(_, vouched)| vouched);
        let copied = devices.copy(first, count, of_segment)?;
        if copied != Copied::Unlike {
            return Ok(copied);
        }
        let vouched = self.vouched_in(first.segment())?;
        let (_, vouched) = known.insert((first.segment(), vouched));
        Ok(devices.copy(first, count, Some(vouched))?)
    }

    /// What is vouched for in a segment by its summaries, and then, which counts where both say something, by the trees.
    fn vouched_in(&self, segment: SegmentNo) -> Result<[Vec<Vouched>; 2]> {
        let devices = self.storage.devices();
        let read = |addr, blocks| devices.ways_with_own(addr, blocks);
        // Where somebody is writing what lies there may be named by nothing yet.
        let used = self.lock().state.segments.get(segment).copied().filter(|s| s.state == SegmentState::Sealed);
        let is_chain = used.is_some_and(|s| s.item.kind == KIND_CHAIN);
        let (blocks, uuid) = (self.storage.segment_blocks, self.superblock().uuid);
        let of = vouched::in_segment((segment, is_chain), blocks, uuid, read);
        let extents = self.extents_claimed(segment, of.claims)?;
        let mut content: Vec<Vouched> = extents.iter().flat_map(Vouched::of_extent).collect();
        content.sort_by_key(|v| v.addr);
        content.dedup();
        Ok([if used.is_some() { of.ranges } else { Vec::new() }, content])
    }

    fn end_join(&self, joiner: &mut Joiner) -> Result<()> {
        let Some(job) = joiner.end() else { return Ok(()) };
        let flushed = self.storage.flush_joiner();
        flushed.inspect_err(|e| self.lock().fail(&e.to_string()))?;
        self.owns_to_write()?;
        let devices = self.storage.devices();
        let joined = self.storage.end_joining(job.new.map_or([0; 16], |n| n.uuid));
        self.fail_with_flushes()?;
        let joined = joined.inspect_err(|e| self.lock().fail(&e.to_string()))?;
        if joined {
            self.lock().counters.joined += 1;
            // Who still waits for the device that had the place may hold up a checkpoint.
            devices.end_replaced();
            // Its other slots are of before, or empty: the next roots take their places.
            for _ in 1..SLOTS_PER_AREA {
                self.index_checkpoint(false)?;
            }
            self.wipe_soon();
        }
        Ok(())
    }
}
