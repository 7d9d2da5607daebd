//! An open file or block device of the host, and requests run on the
//! caller's thread. What [`crate::FileDevice`] and [`crate::UringDevice`] share.
//!
//! Invariants
//! 1. The lock taken at open, also of what lies beneath, lives exactly as long as the `HostFile`.
//! 2. A request returns Ok only when every byte of it was transferred; EINTR
//!    and short transfers are continued at a block boundary, as O_DIRECT needs.
//! 3. Flush is fdatasync: who changes the length has seen to it that it stays.
//! 4. What the host has no memory for is tried again for a while, which says nothing of the device: but for a flush, which may have been
//!    executed, and would be told to have succeeded the second time.

use crate::beneath::Part;
use crate::check::check;
use crate::{AlignedBuf, BLOCK_BYTES, DeviceError, Geometry, HostId, HostPlace, Op, Outcome, beneath, holder, sys};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How to open a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Open for reading only; with `exclusive`, share the lock with other readers.
    pub read_only: bool,
    /// Refuse when another process holds the device, and keep others out.
    pub exclusive: bool,
    /// Who waits alone for a short request may look for its end instead of sleeping until it is there.
    pub polling: bool,
}

impl OpenMode {
    /// Read and write, locked: for the owner of a volume.
    pub const OWNER: Self = Self { read_only: false, exclusive: true, polling: true };
    /// Read only, beside other readers but not beside an owner.
    pub const READER: Self = Self { read_only: true, exclusive: true, polling: false };
}

/// Bytes of zeros written at once.
const ZERO_BYTES_MAX: usize = 1 << 20;
/// Transfers without progress before a request is given up.
const STALLS_MAX: u32 = 16;
/// How often a transfer is tried again that the host had no memory for, and the pause before the first of these; each is twice as long as
/// the one before: half a second in all.
const MEMORY_TRIES: u32 = 9;
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct HostFile {
    file: File,
    /// Invariant 1.
    _locks: beneath::Locks,
    geometry: Geometry,
    /// Its length now, in whole blocks.
    bytes: AtomicU64,
    block_device: bool,
    direct: AtomicBool,
    polling: bool,
    discard: AtomicBool,
    /// Requests that have completed.
    completed: AtomicU64,
}

impl HostFile {
    pub(crate) fn open(path: &Path, mode: OpenMode) -> Result<Self, DeviceError> {
        let kind = fs::metadata(path)?.file_type();
        let block_device = kind.is_block_device();
        if !kind.is_file() && !block_device {
            return Err(DeviceError::NotADevice);
        }
        let (file, locks, direct) = open_locked(path, mode, block_device)?;
        Self::over(path, (file, locks), (block_device, direct), mode)
    }

    /// Makes a file, of no length, and opens it as its owner. Nobody else has it before it is locked, or it is his.
    pub(crate) fn make(path: &Path) -> Result<Self, DeviceError> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let file = locked(file, OpenMode::OWNER).inspect_err(|e| {
            // Where there are no locks nobody else has one.
            if !matches!(e, DeviceError::Busy { .. } | DeviceError::Mounted { .. }) {
                let _ = fs::remove_file(path);
            }
        })?;
        // Not before: to open it so makes the file also where that is refused.
        let direct = sys::set_direct(&file).is_ok();
        Self::over(path, (file, beneath::Locks::default()), (false, direct), OpenMode::OWNER)
    }

    fn over(
        path: &Path,
        (file, locks): (File, beneath::Locks),
        (block_device, direct): (bool, bool),
        mode: OpenMode,
    ) -> Result<Self, DeviceError> {
        let bytes = bytes_of(&file, block_device)?;
        let writable = !mode.read_only;
        let name = path.display().to_string();
        let place = Some(HostPlace { path: path.to_owned(), id: HostId::of(&file.metadata()?) });
        let geometry = Geometry { bytes, writable, discard: writable, name, place };
        let this = Self {
            file,
            _locks: locks,
            geometry,
            bytes: AtomicU64::new(bytes),
            block_device,
            direct: AtomicBool::new(direct),
            polling: mode.polling,
            discard: AtomicBool::new(writable),
            completed: AtomicU64::new(0),
        };
        this.probe_direct()?;
        Ok(this)
    }

    /// Some hosts accept O_DIRECT at open and refuse it at the first read.
    fn probe_direct(&self) -> Result<(), DeviceError> {
        if !self.is_direct() || self.bytes.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        match self.read(0, BLOCK_BYTES) {
            Err(DeviceError::Os(libc::EINVAL)) => {
                sys::clear_direct(&self.file)?;
                self.direct.store(false, Ordering::Relaxed);
                Ok(())
            }
            // Any other failure belongs to whoever reads that block.
            _ => Ok(()),
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let (bytes, discard) = (self.bytes.load(Ordering::SeqCst), self.discard.load(Ordering::Relaxed));
        Geometry { bytes, discard, ..self.geometry.clone() }
    }

    pub(crate) fn remeasure(&self) -> Result<(), DeviceError> {
        match self.bytes.swap(bytes_of(&self.file, self.block_device)?, Ordering::SeqCst) {
            // There was nothing to read until now.
            0 => self.probe_direct(),
            _ => Ok(()),
        }
    }

    /// Whether threads may poll for it, see [`OpenMode::polling`].
    pub(crate) fn may_be_polled(&self) -> bool {
        self.polling
    }

    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    pub(crate) fn note_completed(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_block_device(&self) -> bool {
        self.block_device
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Whether somebody else answers for what is read and written, who may not.
    pub(crate) fn is_answered_for(&self) -> bool {
        sys::is_answered_for(&self.file)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub(crate) fn check(&self, op: &Op) -> Result<(), DeviceError> {
        check(op, self.bytes.load(Ordering::SeqCst), self.geometry.writable)
    }

    /// Runs a request to its end on this thread.
    pub(crate) fn perform(&self, op: &Op) -> Outcome {
        self.check(op)?;
        let outcome = self.run(op);
        self.note_completed();
        outcome
    }

    fn run(&self, op: &Op) -> Outcome {
        match op {
            Op::Read { offset, bytes } => return self.read(*offset, *bytes),
            Op::Write { offset, data } => self.write(*offset, data)?,
            Op::Flush => self.flush()?,
            Op::Discard { offset, bytes } => self.discard(*offset, *bytes)?,
            Op::Zero { offset, bytes } => self.zero(*offset, *bytes)?,
        }
        Ok(AlignedBuf::zeroed(0))
    }

    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        let mut data = AlignedBuf::unset(bytes);
        transfer(bytes, |done| match self.file.read_at(&mut data[done..], offset + done as u64) {
            Ok(0) => Err(DeviceError::Short),
            other => Ok(other),
        })?;
        Ok(data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        transfer(data.len(), |done| Ok(self.file.write_at(&data[done..], offset + done as u64)))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        loop {
            match self.file.sync_data() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return Ok(other?),
            }
        }
    }

    /// A hint: a host that cannot do it is remembered, and is no error.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        if bytes == 0 || !self.discard.load(Ordering::Relaxed) {
            return Ok(());
        }
        let outcome = if self.block_device {
            sys::block_device_discard(&self.file, offset, bytes)
        } else {
            sys::punch_hole(&self.file, offset, bytes)
        };
        match outcome {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                self.discard.store(false, Ordering::Relaxed);
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Real writes, on block devices too: a loop device would pass a cheaper
    /// request on as unwritten extents, and each later sync would pay for them.
    fn zero(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        static ZEROS: OnceLock<AlignedBuf> = OnceLock::new();
        let zeros = ZEROS.get_or_init(|| AlignedBuf::zeroed(ZERO_BYTES_MAX));
        let mut done = 0;
        while done < bytes {
            let now = (bytes - done).min(ZERO_BYTES_MAX as u64);
            self.write(offset + done, &zeros[..now as usize])?;
            done += now;
        }
        Ok(())
    }
}

/// Calls `step(done)` until `bytes` are transferred (invariant 2).
fn transfer(
    bytes: usize,
    mut step: impl FnMut(usize) -> Result<io::Result<usize>, DeviceError>,
) -> Result<(), DeviceError> {
    let mut done = 0;
    let (mut stalls, mut unfed) = (0, 0);
    while done < bytes {
        match step(done)? {
            Ok(n) if done + n == bytes => return Ok(()),
            Ok(n) if n >= BLOCK_BYTES => done += n - n % BLOCK_BYTES,
            Ok(_) if stalls < STALLS_MAX => stalls += 1,
            Ok(_) => return Err(DeviceError::Os(libc::EIO)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) && unfed < MEMORY_TRIES => {
                thread::sleep(MEMORY_PAUSE * 2u32.pow(unfed));
                unfed += 1;
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Length in whole blocks.
fn bytes_of(file: &File, block_device: bool) -> Result<u64, DeviceError> {
    let bytes = if block_device { sys::block_device_bytes(file)? } else { file.metadata()?.len() };
    Ok(bytes - bytes % BLOCK_BYTES as u64)
}

/// How often a file is opened anew that was taken away, or replaced, before it was locked.
const OPEN_TRIES: u32 = 3;

/// Opens `path`, with O_DIRECT where the host allows it, and takes the locks.
fn open_locked(path: &Path, mode: OpenMode, block_device: bool) -> Result<(File, beneath::Locks, bool), DeviceError> {
    for _ in 0..OPEN_TRIES {
        let (file, direct) = open(path, mode, block_device)?;
        if !mode.exclusive {
            return Ok((file, beneath::Locks::default(), direct));
        }
        let file = locked(file, mode)?;
        // Who had the lock until now may have taken away what he made.
        let (opened, there) = (file.metadata()?, fs::metadata(path));
        if there.is_ok_and(|there| HostId::of(&there) == HostId::of(&opened)) {
            return Ok((file, beneath::lock(&opened, mode)?, direct));
        }
    }
    Err(DeviceError::Os(libc::ENOENT))
}

/// Takes the lock on a file or device itself.
fn locked(file: File, mode: OpenMode) -> Result<File, DeviceError> {
    match beneath::take(&file, Part::Whole, mode.read_only) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            let device = file.metadata()?;
            drop(file);
            Err(holder::busy(&device))
        }
        other => Ok(other.map(|()| file)?),
    }
}

/// Opens `path`, and whether with O_DIRECT.
fn open(path: &Path, mode: OpenMode, block_device: bool) -> Result<(File, bool), DeviceError> {
    // O_EXCL keeps out mounts and other nodes of the same device, which flock
    // does not see. Readers leave it away: it would keep out other readers.
    let exclusive = if block_device && mode.exclusive && !mode.read_only { libc::O_EXCL } else { 0 };
    let open = |flags| OpenOptions::new().read(true).write(!mode.read_only).custom_flags(flags | exclusive).open(path);
    let (opened, direct) = match open(libc::O_DIRECT) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (open(0), false),
        other => (other, true),
    };
    match opened {
        Err(e) if exclusive != 0 && e.raw_os_error() == Some(libc::EBUSY) => Err(holder::busy(&fs::metadata(path)?)),
        other => Ok((other?, direct)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made is nobody else's from the beginning, and what was taken away before it was locked is not opened.
    #[test]
    fn a_file_that_is_made_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let is_busy = || matches!(HostFile::open(&path, OpenMode::OWNER), Err(DeviceError::Busy { .. }));
        let made = HostFile::make(&path).unwrap();
        assert!(is_busy());
        assert!(matches!(HostFile::make(&path), Err(DeviceError::Os(libc::EEXIST))));
        OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(made.geometry().bytes, 0);
        made.remeasure().unwrap();
        assert!(made.geometry().bytes == 1 << 20 && is_busy());
        assert_eq!(made.read(0, BLOCK_BYTES).unwrap()[..], [0; BLOCK_BYTES]);
    }

    /// Whoever made a file and failed takes it away as another opens it: that one gets none that has no name.
    #[test]
    fn a_file_that_is_taken_away_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut opened = 0;
        for _ in 0..200 {
            let made = HostFile::make(&path).unwrap();
            let other = path.clone();
            let opening = thread::spawn(move || HostFile::open(&other, OpenMode::OWNER));
            fs::remove_file(&path).unwrap();
            drop(made);
            opened += u32::from(opening.join().unwrap().is_ok());
        }
        assert_eq!(opened, 0);
    }

    /// What comes of a transfer of two blocks of which the second cannot be done for want of memory so many times.
    fn unfed(times: u32) -> Result<u32, DeviceError> {
        let mut tries = 0;
        transfer(2 * BLOCK_BYTES, |done| {
            tries += 1;
            Ok(match done {
                0 => Ok(BLOCK_BYTES),
                _ if tries - 2 < times => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
                _ => Ok(BLOCK_BYTES),
            })
        })?;
        Ok(tries)
    }

    #[test]
    fn what_there_is_no_memory_for_is_tried_again() {
        assert_eq!(unfed(0), Ok(2));
        assert_eq!(unfed(3), Ok(5));
        assert_eq!(unfed(MEMORY_TRIES + 1), Err(DeviceError::Os(libc::ENOMEM)), "for ever");
    }
}
