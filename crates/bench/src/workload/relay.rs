//! The control of file systems in user space: the raw device's small durable write, made by another thread that is asked for it as the
//! kernel asks a daemon.
//!
//! A write with its sync is two requests: the first is answered at once, the second when 8 KiB are durable. Each is a message to a
//! thread that sleeps, and one back. Nothing is copied, looked up, checked or shared, and the message is a byte in a pipe; the write is
//! one request to the device, durable by itself. So this is about the least that one who is called so can take here.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::thread;

use super::small::{RAW_BLOCK, most, together};
use super::{Turn, Work, Workload};
use crate::aio;
use crate::disk::Aligned;
use crate::error::{Doing, Result};
use crate::site::Site;
use crate::sys;

/// What is asked for.
const ACCEPT: u8 = 1;
const MAKE_DURABLE: u8 = 2;
/// What is answered.
const DONE: u8 = 0;
const FAILED: u8 = 1;

/// The work; `jobs` says the number of threads in each row of the group, `region` how many bytes of the device each has.
pub fn make(jobs: &'static [usize], region: u64) -> Box<dyn Workload> {
    Box::new(Relay { jobs, region, lanes: Vec::new() })
}

struct Relay {
    jobs: &'static [usize],
    region: u64,
    lanes: Vec<Asks>,
}

impl Workload for Relay {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        for job in 0..most(self.jobs) {
            let file = site.disk.open_direct()?;
            let serving = Serves {
                file,
                data: Aligned::noise(RAW_BLOCK, job),
                from: job * self.region,
                at: 0,
                region: self.region,
            };
            self.lanes.push(Asks::of(serving).doing(|| "starting a thread that is asked".to_owned())?);
        }
        Ok(())
    }

    fn slice(&mut self, turn: Turn, _: &mut Site) -> Result<Work> {
        together(&mut self.lanes[..self.jobs[turn.row]], turn.budget, RAW_BLOCK, |lane| {
            lane.ask(ACCEPT)?;
            lane.ask(MAKE_DURABLE)
        })
    }
}

/// Who asks. The other thread ends when this is dropped.
struct Asks {
    requests: File,
    answers: File,
}

impl Asks {
    fn of(mut serving: Serves) -> io::Result<Self> {
        let ((theirs, requests), (answers, ours)) = (sys::pipe()?, sys::pipe()?);
        thread::Builder::new().name("relay".to_owned()).spawn(move || serving.serve(theirs, ours))?;
        Ok(Self { requests, answers })
    }

    fn ask(&mut self, what: u8) -> io::Result<()> {
        let mut answer = [FAILED];
        self.requests.write_all(&[what])?;
        self.answers.read_exact(&mut answer)?;
        if answer == [DONE] { Ok(()) } else { Err(io::Error::other("the thread that was asked could not write")) }
    }
}

/// Who is asked.
struct Serves {
    file: File,
    data: Aligned,
    from: u64,
    at: u64,
    region: u64,
}

impl Serves {
    fn serve(&mut self, mut requests: File, mut answers: File) {
        let mut ring = aio::durable_ring();
        let mut request = [0];
        while requests.read_exact(&mut request).is_ok() {
            let done = if request == [MAKE_DURABLE] { self.make_durable(&mut ring) } else { Ok(()) };
            if answers.write_all(&[if done.is_ok() { DONE } else { FAILED }]).is_err() {
                return;
            }
        }
    }

    fn make_durable(&mut self, ring: &mut Option<aio::DurableRing>) -> io::Result<()> {
        let offset = self.from + self.at;
        self.at = (self.at + RAW_BLOCK as u64) % self.region;
        match ring {
            Some(ring) => ring.write(&self.file, self.data.get(), offset),
            None => {
                self.file.write_all_at(self.data.get(), offset)?;
                self.file.sync_data()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_written_and_goes_round() {
        let path = std::env::temp_dir().join(format!("nenrin-relay-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let (data, region) = (Aligned::noise(RAW_BLOCK, 7), 2 * RAW_BLOCK as u64);
        let want = data.get().to_vec();
        let serving = Serves { file: file.try_clone().unwrap(), data, from: region, at: 0, region };
        let mut asks = Asks::of(serving).unwrap();
        asks.ask(ACCEPT).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        for _ in 0..3 {
            asks.ask(MAKE_DURABLE).unwrap();
        }
        let mut got = vec![0; RAW_BLOCK];
        for part in [2, 3] {
            file.read_exact_at(&mut got, part * RAW_BLOCK as u64).unwrap();
            assert_eq!(got, want);
        }
        assert_eq!(file.metadata().unwrap().len(), 4 * RAW_BLOCK as u64);
        std::fs::remove_file(&path).unwrap();
    }
}
