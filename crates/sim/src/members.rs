//! Several devices in one world: parts of one crash disk, each with its own flush, so that one cut hits all of
//! them at once and what is unflushed on one of them may survive without what is unflushed on another.

use nenrin_device::{
    AlignedBuf, BLOCK_BYTES, BlockDevice, DeviceError, Divisible, Geometry, Op, Outcome, Ticket, Window,
};
use nenrin_format::superblock::Profile;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The devices of a volume, in any order.
#[derive(Clone)]
pub struct Drive {
    /// Each of them.
    pub members: Vec<Arc<dyn BlockDevice>>,
    /// How a volume is made on them.
    pub profile: Profile,
    /// A device that may take the place of one of them.
    pub spare: Option<Arc<dyn BlockDevice>>,
    /// They come and go: not each of them is a member.
    pub changes: bool,
    /// They are slow now and then.
    pub slow: bool,
    /// One of them dies.
    pub dies: bool,
    /// Names collide, see [`Members::collides`].
    pub collides: bool,
}

impl From<Arc<dyn BlockDevice>> for Drive {
    fn from(device: Arc<dyn BlockDevice>) -> Self {
        let profile = Profile::Single;
        Self { members: vec![device], profile, spare: None, changes: false, slow: false, dies: false, collides: false }
    }
}

impl<D: BlockDevice + 'static> From<Arc<D>> for Drive {
    fn from(device: Arc<D>) -> Self {
        let device: Arc<dyn BlockDevice> = device;
        device.into()
    }
}

impl Drive {
    /// The only device, for who knows no others.
    ///
    /// # Errors
    /// There are several, or none.
    pub fn only(self) -> nenrin_core::Result<Arc<dyn BlockDevice>> {
        match <[_; 1]>::try_from(self.members) {
            Ok([device]) => Ok(device),
            Err(_) => Err(nenrin_core::Error::Open("one device is needed".into())),
        }
    }
    /// The same without member number `index`.
    #[must_use]
    pub fn without(mut self, index: usize) -> Self {
        self.members.remove(index);
        self
    }
    /// The same without what may take a place.
    #[must_use]
    pub fn without_spare(self) -> Self {
        Self { spare: None, ..self }
    }
    /// Whether what may take a place has a root, and so may have taken it.
    #[must_use]
    pub fn is_spare_used(&self) -> bool {
        self.spare.as_ref().is_some_and(has_root)
    }
    /// All that a mount is given.
    #[must_use]
    pub fn present(self) -> Vec<Arc<dyn BlockDevice>> {
        let mut all = self.members;
        let spare = self.spare.filter(has_root);
        if spare.is_some() || self.changes && all.iter().any(has_root) {
            // The one whose place it has may be none any more, and who comes and goes is none now and then.
            all.retain(has_root);
        }
        // Neither first nor last, where that can be.
        all.splice(all.len() / 2..all.len() / 2, spare);
        all
    }
    /// The same with one of them twice.
    #[must_use]
    pub fn doubled(mut self, which: usize) -> Self {
        if let Some(device) = self.members.get(which % self.members.len().max(1)).cloned() {
            self.members.push(device);
        }
        self
    }
    /// The same in another order.
    #[must_use]
    pub fn rotated(mut self, by: usize) -> Self {
        let count = self.members.len().max(1);
        self.members.rotate_left(by % count);
        self
    }
}

fn has_root(device: &Arc<dyn BlockDevice>) -> bool {
    nenrin_core::probe(device.as_ref()).is_ok_and(|p| p.newest().is_ok())
}

/// A device that is brought up to date while the volume is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joins {
    /// This member missed something, and is back.
    Back(u8),
    /// Another device takes the place of this member.
    Takes(u8),
    /// The same, and the member is gone.
    TakesDead(u8),
}

impl Joins {
    /// From `back:N`, `takes:N` or `takes-dead:N`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (name, index) = text.split_once(':')?;
        let index = index.parse().ok()?;
        match name {
            "back" => Some(Self::Back(index)),
            "takes" => Some(Self::Takes(index)),
            "takes-dead" => Some(Self::TakesDead(index)),
            _ => None,
        }
    }
    fn argument(self) -> String {
        match self {
            Self::Back(i) => format!(" --joins back:{i}"),
            Self::Takes(i) => format!(" --joins takes:{i}"),
            Self::TakesDead(i) => format!(" --joins takes-dead:{i}"),
        }
    }
    /// The same for another member.
    #[must_use]
    pub const fn of(self, index: u8) -> Self {
        match self {
            Self::Back(_) => Self::Back(index),
            Self::Takes(_) => Self::Takes(index),
            Self::TakesDead(_) => Self::TakesDead(index),
        }
    }
    /// The member that misses something at first.
    #[must_use]
    pub const fn missing(self) -> Option<usize> {
        match self {
            Self::Back(i) | Self::TakesDead(i) => Some(i as usize),
            Self::Takes(_) => None,
        }
    }
    /// The member whose place is taken.
    #[must_use]
    pub const fn replaced(self) -> Option<usize> {
        match self {
            Self::Takes(i) | Self::TakesDead(i) => Some(i as usize),
            Self::Back(_) => None,
        }
    }
}

/// How many devices there are, and how the volume lies on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// Devices.
    pub count: u8,
    /// Layout.
    pub profile: Profile,
    /// A device that dies after so many writes to it, if one does.
    pub dies: Option<(u8, u64)>,
    /// A device that is brought up to date, if one is.
    pub joins: Option<Joins>,
    /// Devices are added, removed and resized.
    pub changes: bool,
    /// Devices are slow now and then.
    pub slow: bool,
    /// The volume is made so that its names have few hashes, and collide.
    pub collides: bool,
}

impl Default for Members {
    fn default() -> Self {
        Self::new(1, Profile::Single)
    }
}

impl Members {
    /// So many, none of which dies.
    #[must_use]
    pub const fn new(count: u8, profile: Profile) -> Self {
        Self { count, profile, dies: None, joins: None, changes: false, slow: false, collides: false }
    }

    /// Whether any one device may be lost.
    #[must_use]
    pub fn bears_a_loss(&self) -> bool {
        matches!(self.profile, Profile::Mirror | Profile::Parity)
    }

    /// Members that a volume begins with: where they change one is left to be added.
    #[must_use]
    pub fn first(&self) -> usize {
        let least = match self.profile {
            Profile::Single => 1,
            Profile::Stripe | Profile::Mirror => 2,
            Profile::Parity => 3,
        };
        usize::from(if self.changes { (self.count - 1).max(least).min(self.count) } else { self.count })
    }

    /// Parts of a disk, or of an image of it, as devices.
    #[must_use]
    pub fn of<D: Divisible + 'static>(&self, whole: &Arc<D>) -> Drive {
        let count = self.parts();
        if count == 1 {
            let Self { changes, slow, collides, .. } = *self;
            return Drive { changes, slow, collides, ..whole.clone().into() };
        }
        let bytes = whole.geometry().bytes / count / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let part = |i: u64| -> Arc<dyn BlockDevice> {
            Arc::new(Window::new(whole.clone(), i * bytes..(i + 1) * bytes, format!("device {}", i + 1)))
        };
        let mut members: Vec<_> = (0..count).map(part).collect();
        let spare = if count > u64::from(self.count) { members.pop() } else { None };
        let Self { profile, changes, slow, collides, .. } = *self;
        Drive { members, profile, spare, changes, slow, dies: false, collides }
    }

    /// Devices, those included that may take a place.
    #[must_use]
    pub fn parts(&self) -> u64 {
        u64::from(self.count) + u64::from(self.joins.is_some_and(|j| j.replaced().is_some()))
    }

    /// Whether one may miss something: it dies, or is to be brought up to date.
    #[must_use]
    pub const fn may_miss_something(&self) -> bool {
        self.dies.is_some() || self.joins.is_some()
    }

    /// The member that may be lost before all are up to date.
    #[must_use]
    pub fn missing(&self) -> Option<usize> {
        self.dies.map(|(i, _)| usize::from(i)).or(self.joins.and_then(Joins::missing))
    }

    /// [`Members::of`], and the one that is to die does.
    #[must_use]
    pub fn of_living<D: Divisible + 'static>(&self, whole: &Arc<D>) -> Drive {
        let mut drive = self.of(whole);
        if let Some((index, writes)) = self.dies {
            drive.dies = true;
            if let Some(member) = drive.members.get_mut(usize::from(index)) {
                *member = Arc::new(Mortal { inner: member.clone(), left: AtomicU64::new(writes) });
            }
        }
        drive
    }

    /// The arguments that give these settings again.
    #[must_use]
    pub fn arguments(&self) -> String {
        let joins = self.joins.map_or(String::new(), Joins::argument);
        let changes = if self.changes { " --changes" } else { "" };
        let slow = if self.slow { " --slow" } else { "" };
        let collides = if self.collides { " --collide" } else { "" };
        if self.count == 1 {
            return format!("{joins}{changes}{slow}{collides}");
        }
        let dies = self.dies.map_or(String::new(), |(i, n)| format!(" --dies {i}:{n}"));
        format!(" --devices {} --layout {}{dies}{joins}{changes}{slow}{collides}", self.count, self.profile.name())
    }
}

/// A device that fails everything after so many writes.
struct Mortal {
    inner: Arc<dyn BlockDevice>,
    left: AtomicU64,
}

impl Mortal {
    fn lives(&self, op: &Op) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 && matches!(op, Op::Write { .. }) {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }
}

impl BlockDevice for Mortal {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn submit(&self, op: Op) -> Ticket {
        if self.lives(&op) { self.inner.submit(op) } else { Ticket::done(Err(DeviceError::Os(5))) }
    }
    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.submit(Op::Read { offset, bytes }).wait()
    }
    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.submit(Op::Write { offset, data }).wait().map(drop)
    }
    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        let op = Op::Write { offset, data: Arc::clone(&data) };
        if self.lives(&op) { self.inner.write_durable(offset, data) } else { Err(DeviceError::Os(5)) }
    }
}
