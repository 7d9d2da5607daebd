//! The serving side of a new volume, for a kernel that is told and asks nothing.

use super::{Behaviour, Server};
use crate::init::{self, Answer, TRANSFER_BYTES_MAX, Wishes};
use crate::notify::Notifier;
use crate::proto::abi::{InHeader, InitIn, OutHeader, WRITE_PREFIX_BYTES};
use crate::proto::flags::Opcode;
use crate::transport::{Reply, RequestBuffer, Sink};
use nenrin_core::{At, Clock, Fs, MkfsOptions, MountOptions, mkfs_on};
use nenrin_device::{BlockDevice, MemDevice};
use nenrin_format::Time;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

struct StandingClock;

impl Clock for StandingClock {
    fn wall(&self) -> Time {
        Time(0)
    }
    fn monotonic_nanos(&self) -> u64 {
        0
    }
}

/// What is sent to the kernel.
#[derive(Default)]
pub(super) struct Kept(Mutex<Vec<Vec<u8>>>);

impl Sink for Kept {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.lock().unwrap().push(parts.iter().flat_map(|part| part.to_vec()).collect());
        Ok(())
    }
}

impl Kept {
    /// Takes what came so far: of answers their number and error, of notices 0 and their code.
    pub fn take(&self) -> Vec<(u64, i32)> {
        let all = std::mem::take(&mut *self.0.lock().unwrap());
        let head = |message: Vec<u8>| OutHeader::read_from_prefix(&message).unwrap().0;
        all.into_iter().map(head).map(|head| (head.unique, head.error)).collect()
    }
    /// A request that comes now.
    pub fn request(self: &Arc<Self>, server: &Server, unique: u64) -> Reply {
        Reply::new(self.clone(), unique).asked_at(server.open_files.asked())
    }
}

/// A request as it comes from the kernel, with what is behind its header.
pub(super) fn request(unique: u64, opcode: Opcode, nodeid: u64, body: &[u8]) -> RequestBuffer {
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let head = InHeader { len, opcode: opcode as u32, unique, nodeid, ..Default::default() };
    let all = [head.as_bytes(), body].concat();
    let mut request = RequestBuffer::new(TRANSFER_BYTES_MAX);
    let (front, rest) = all.split_at(all.len().min(WRITE_PREFIX_BYTES));
    let fill = |parts: &mut [IoSliceMut<'_>]| {
        parts[0][..front.len()].copy_from_slice(front);
        parts[1][..rest.len()].copy_from_slice(rest);
        Ok(all.len())
    };
    request.fill(fill).unwrap();
    request
}

/// A volume, its serving side, and what that sends.
pub(super) fn server(wishes: Wishes) -> (Arc<Fs>, Arc<Server>, Arc<Kept>) {
    server_with(wishes, |_| ())
}

/// The same, with what is `special` to it.
pub(super) fn server_with(wishes: Wishes, special: impl FnOnce(&mut Behaviour)) -> (Arc<Fs>, Arc<Server>, Arc<Kept>) {
    let devices: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(MemDevice::new(64 << 20))];
    let clock: Arc<dyn Clock> = Arc::new(StandingClock);
    mkfs_on(&devices, &clock, &MkfsOptions::default()).unwrap();
    let fs = Fs::open(devices, clock, MountOptions::default()).unwrap();
    let mut behaviour = Behaviour {
        left_bytes_max: 0,
        at: At::Live,
        read_only: false,
        access_times: super::AccessTimes::new(false),
        own_check: false,
        valid: Duration::from_secs(3600),
        past: None,
    };
    special(&mut behaviour);
    let offer = InitIn { major: 7, minor: 45, flags: u32::MAX, flags2: u32::MAX, ..Default::default() };
    let Answer::Serve(_, agreed) = init::negotiate(&offer, wishes) else { panic!("refused") };
    let kept = Arc::new(Kept::default());
    let server = Server::new(fs.clone(), behaviour, agreed, Notifier::new(kept.clone()));
    (fs, Arc::new(server), kept)
}
