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
    /// They come and go: not each of them is a member.
    pub changes: bool,
}

impl From<Arc<dyn BlockDevice>> for Drive {
    fn from(device: Arc<dyn BlockDevice>) -> Self {
        Self { members: vec![device], profile: Profile::Single, changes: false }
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
    /// Those that hold a root; all of them, where they do not change.
    #[must_use]
    pub fn with_roots(self) -> Vec<Arc<dyn BlockDevice>> {
        let has = |d: &Arc<dyn BlockDevice>| nenrin_core::probe(d.as_ref()).is_ok_and(|p| p.newest().is_ok());
        let Self { mut members, changes, .. } = self;
        if changes && members.iter().any(has) {
            members.retain(has);
        }
        members
    }
    /// The same without member number `index`.
    #[must_use]
    pub fn without(mut self, index: usize) -> Self {
        self.members.remove(index);
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

/// How many devices there are, and how the volume lies on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// Devices.
    pub count: u8,
    /// Layout.
    pub profile: Profile,
    /// A device that dies after so many writes to it, if one does.
    pub dies: Option<(u8, u64)>,
    /// Devices are added, removed and resized.
    pub changes: bool,
}

impl Default for Members {
    fn default() -> Self {
        Self { count: 1, profile: Profile::Single, dies: None, changes: false }
    }
}

impl Members {
    /// So many, none of which dies.
    #[must_use]
    pub const fn new(count: u8, profile: Profile) -> Self {
        Self { count, profile, dies: None, changes: false }
    }

    /// Whether any one device may be lost.
    #[must_use]
    pub fn bears_a_loss(&self) -> bool {
        self.profile == Profile::Mirror
    }

    /// Members that a volume begins with: where they change one is left to be added.
    #[must_use]
    pub fn first(&self) -> usize {
        let least = if self.profile == Profile::Single { 1 } else { 2 };
        usize::from(if self.changes { (self.count - 1).max(least).min(self.count) } else { self.count })
    }

    /// Parts of a disk, or of an image of it, as devices.
    #[must_use]
    pub fn of<D: Divisible + 'static>(&self, whole: &Arc<D>) -> Drive {
        if self.count == 1 {
            return Drive { changes: self.changes, ..whole.clone().into() };
        }
        let count = u64::from(self.count);
        let bytes = whole.geometry().bytes / count / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let part = |i: u64| -> Arc<dyn BlockDevice> {
            Arc::new(Window::new(whole.clone(), i * bytes..(i + 1) * bytes, format!("device {}", i + 1)))
        };
        Drive { members: (0..count).map(part).collect(), profile: self.profile, changes: self.changes }
    }

    /// The same, and the one that is to die does.
    #[must_use]
    pub fn of_living<D: Divisible + 'static>(&self, whole: &Arc<D>) -> Drive {
        let mut drive = self.of(whole);
        if let Some((index, writes)) = self.dies {
            if let Some(member) = drive.members.get_mut(usize::from(index)) {
                *member = Arc::new(Mortal { inner: member.clone(), left: AtomicU64::new(writes) });
            }
        }
        drive
    }

    /// The arguments that give these settings again.
    #[must_use]
    pub fn arguments(&self) -> String {
        let changes = if self.changes { " --changes" } else { "" };
        if self.count == 1 {
            return changes.to_owned();
        }
        let dies = self.dies.map_or(String::new(), |(i, n)| format!(" --dies {i}:{n}"));
        format!(" --devices {} --layout {}{dies}{changes}", self.count, self.profile.name())
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
}
