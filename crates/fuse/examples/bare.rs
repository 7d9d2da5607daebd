//! The control of what is mounted by this front end: a volume that keeps names and sizes in memory, and whose syncs write as much as
//! a log does, a block for the record and one for each of those that share it, durably.
//!
//! Requests come and are answered, and the device is asked, by the same code as nenrin's; but nothing is copied, encoded, checksummed,
//! indexed, cleaned or kept in order, nor could any of it be read back. So hardly any file system behind this front end does more in
//! the same time. With `content` what is written is kept in memory, for programs that read it.
//!
//! `cargo run --release -p nenrin-fuse --example bare -- [-o transport=uring,nopoll,content] DEVICE DIRECTORY` (root)
//! OVERWRITES the device, if nobody uses it, and serves until the directory is unmounted.

#[allow(dead_code, unreachable_pub, clippy::unwrap_used)] // what the tests ask of it, and they stop where something is wrong
#[path = "../tests/common/toy.rs"]
mod toy;

use nenrin_core::{AlignedBuf, At, COMMITS_AT_ONCE, Done, Error, Joined};
use nenrin_device::{BlockDevice, OpenMode, open_best};
use nenrin_fuse::{MountOptions, Session, SessionOptions, Way};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toy::{Log, Toy};

const BLOCK: usize = 4096;
/// Most syncs that share a record.
const SHARED_MAX: usize = 64;

/// Who waits for the next record, and who writes one.
#[derive(Default)]
struct Batch {
    waiting: Vec<Done>,
    leaders: u32,
    /// Leaders that tell those who waited, and look at the batch after that.
    telling: u32,
    /// Where the next record goes.
    at: u64,
}

impl Batch {
    /// Whether the calling thread, or another for it, has to lead.
    fn announce(&mut self) -> bool {
        let leads = self.leaders < COMMITS_AT_ONCE && self.telling == 0;
        self.leaders += u32::from(leads);
        leads
    }
}

struct Records {
    device: Box<dyn BlockDevice>,
    noise: Arc<AlignedBuf>,
    batch: Mutex<Batch>,
}

impl Records {
    fn new(device: Box<dyn BlockDevice>) -> Self {
        let noise = AlignedBuf::padded(&[0xa5; BLOCK * (1 + SHARED_MAX)]);
        Self { device, noise: Arc::new(noise), batch: Mutex::default() }
    }

    fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one record.
    fn write(&self, at: u64, shared_by: usize) -> Result<(), Error> {
        let record = AlignedBuf::shared(&self.noise, 0, BLOCK * (1 + shared_by));
        Ok(self.device.write_durable(at, Arc::new(record))?)
    }
}

impl Log for Records {
    fn sync(&self, done: Done) {
        if matches!(self.join(done), Joined::Unled) {
            self.lead();
        }
    }

    fn join(&self, done: Done) -> Joined {
        let mut batch = self.batch();
        batch.waiting.push(done);
        if batch.announce() { Joined::Unled } else { Joined::Seen }
    }

    fn lead(&self) {
        let mut batch = self.batch();
        while !batch.waiting.is_empty() {
            let shared_by = batch.waiting.len().min(SHARED_MAX);
            let told: Vec<Done> = batch.waiting.drain(..shared_by).collect();
            let bytes = (BLOCK * (1 + shared_by)) as u64;
            let at = if batch.at + bytes > self.device.geometry().bytes { 0 } else { batch.at };
            batch.at = at + bytes;
            drop(batch);
            let outcome = self.write(at, shared_by);
            self.batch().telling += 1;
            for done in told {
                done(outcome.clone());
            }
            batch = self.batch();
            batch.telling -= 1;
        }
        batch.leaders -= 1;
    }
}

fn serve(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let (options, device, directory) = match arguments {
        [device, directory] => ("", device, directory),
        [o, options, device, directory] if o == "-o" => (options.as_str(), device, directory),
        _ => return Err("usage: bare [-o transport=uring,nopoll,content] DEVICE DIRECTORY".into()),
    };
    let (mut way, mut mode, mut keeps_content) = (Way::Classic, OpenMode::OWNER, false);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option {
            "transport=uring" => way = Way::Uring,
            "nopoll" => mode.polling = false,
            "content" => keeps_content = true,
            other => {
                return Err(format!("unknown option {other}: there are transport=uring, nopoll and content").into());
            }
        }
    }
    let records = Records::new(open_best(device, mode).map_err(|e| format!("{device}: {e}"))?);
    let toy = Toy::with_log(records, keeps_content);
    let mut mount = MountOptions::new(device, directory);
    mount.allow_other = true;
    let session =
        Session::start(Arc::new(toy), At::Live, &mount, &SessionOptions { way, ..SessionOptions::default() })?;
    if session.way() != way {
        return Err("this kernel has no io_uring for FUSE, or it is not switched on".into());
    }
    Ok(session.run()?)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bare: {e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_device::{MemDevice, Observed};
    use std::sync::mpsc;

    #[test]
    fn each_sync_is_answered_when_a_record_is_durable_and_some_share_one() {
        let device = Observed::new(MemDevice::new(1 << 20));
        let observer = device.observer();
        let records = Records::new(Box::new(device));
        let (tell, told) = mpsc::channel();
        let done = || -> Done {
            let tell = tell.clone();
            Box::new(move |outcome| tell.send(outcome).unwrap())
        };
        assert!(matches!(records.join(done()), Joined::Unled));
        // As many as may lead, and two more.
        for _ in 1..COMMITS_AT_ONCE {
            assert!(matches!(records.join(done()), Joined::Unled));
        }
        for _ in 0..2 {
            assert!(matches!(records.join(done()), Joined::Seen));
        }
        assert!(told.try_recv().is_err(), "nobody has written anything");
        (0..COMMITS_AT_ONCE).for_each(|_| records.lead());
        drop(tell);
        assert_eq!(told.iter().filter(Result::is_ok).count(), COMMITS_AT_ONCE as usize + 2);
        let counters = observer.counters();
        let bytes = (BLOCK * (1 + COMMITS_AT_ONCE as usize + 2)) as u64;
        assert_eq!((counters.writes, counters.write_bytes), (1, bytes), "{counters:?}");
        assert!(records.batch().announce(), "nobody leads any more");
    }
}
