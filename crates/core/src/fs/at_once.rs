//! Calls for a thread on which requests of others wait: they wait neither for a device nor for room nor for another
//! commit, and leave the lead of a commit to a thread that may.
//!
//! Invariants
//! 1. A lead that was taken for somebody else is led by whoever calls [`Fs::lead_announced`]; until then
//!    it counts as a thread that leads, and others count on it.

use super::leading::Stay;
use super::space::Room;
use super::{Done, Fs, Inner};
use crate::Order;
use nenrin_device::BLOCK_BYTES;
use nenrin_format::Ino;
use std::ops::ControlFlow;

/// What became of a sync that was asked for by [`Fs::join_sync`].
pub enum Joined {
    /// It is answered, or whoever leads commits sees to it.
    Seen,
    /// Somebody has to call [`Fs::lead_announced`].
    Unled,
    /// It would have to wait; nothing was done.
    Waits(Done),
}

impl std::fmt::Debug for Joined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Seen => "Seen",
            Self::Unled => "Unled",
            Self::Waits(_) => "Waits",
        })
    }
}

impl Fs {
    /// [`Fs::fsync`], without waiting and without leading.
    #[must_use]
    pub fn join_sync(&self, ino: Ino, done: Done) -> Joined {
        if self.options.read_only || self.options.order == Order::Strict {
            return Joined::Waits(done);
        }
        let mut inner = self.lock();
        if !self.joins(&inner, ino) {
            return Joined::Waits(done);
        }
        self.note_sync(&mut inner, ino);
        self.ask(&mut inner, ino, done);
        if inner.leading.announce() { Joined::Unled } else { Joined::Seen }
    }

    /// Whether [`Fs::join_sync`] will hardly have to wait.
    #[must_use]
    pub fn syncs_at_once(&self, ino: Ino) -> bool {
        self.options.order != Order::Strict && self.joins(&self.lock(), ino)
    }

    fn joins(&self, inner: &Inner, ino: Ino) -> bool {
        let few = self.chain_pages_max();
        inner.has_little(ino, few) && inner.check_alive().is_ok() && inner.leading.can_be_announced()
    }

    /// [`Fs::fsync`], which leads one commit at most. True if somebody has to call [`Fs::lead_announced`]: others wait
    /// for the next, or a checkpoint is due.
    #[must_use]
    pub fn fsync_once(&self, ino: Ino, done: Done) -> bool {
        match self.join_sync(ino, done) {
            Joined::Seen => false,
            Joined::Unled => self.lead_once().is_continue(),
            Joined::Waits(done) => {
                let Some(mut inner) = self.settle_and_ask(ino, done) else { return false };
                if !inner.leading.can_be_announced() {
                    // Who leads alone wants to leave.
                    let inner = self.turn(inner);
                    return self.lead_for(inner, None, Stay::Once).is_continue();
                }
                let unled = inner.leading.announce();
                drop(inner);
                unled && self.lead_once().is_continue()
            }
        }
    }

    fn lead_once(&self) -> ControlFlow<()> {
        // Where another host has the volume that is noted, and nothing is laid out.
        drop(self.owns_to_write());
        self.lead_for(self.lock(), None, Stay::Once)
    }

    /// Leads as was announced.
    pub fn lead_announced(&self) {
        drop(self.owns_to_write());
        let inner = self.lock();
        if inner.batch.waiters.is_empty() {
            return self.end_leading(inner);
        }
        self.lead(inner, None, Stay::WhileAsked);
    }

    /// Whether a write of these bytes waits neither for room, memory or a sync nor for content of the file.
    #[must_use]
    pub fn takes_at_once(&self, ino: Ino, offset: u64, bytes: usize) -> bool {
        let block = BLOCK_BYTES as u64;
        if bytes == 0 || offset % block != 0 || bytes % BLOCK_BYTES != 0 || bytes > AT_ONCE_BYTES_MAX {
            return false;
        }
        let blocks = offset / block..(offset / block).saturating_add((bytes / BLOCK_BYTES) as u64);
        let room = Room::Write(ino, blocks.start, blocks.end);
        let inner = self.lock();
        // Half of what is allowed, so that it holds until the write comes.
        let limit = (self.options.dirty_bytes_max / BLOCK_BYTES) as u64 / 2;
        !inner.settling.contains_key(&ino)
            && inner.pages + inner.under_way(|_| true) <= limit
            && inner.has_room(self, room)
            && inner.grows_little(self, room)
            && !inner.makes_burst(self, ino)
            && inner.changes_little(self.options.dirty_nodes_max)
            && inner.pages_of(ino) <= self.chain_pages_max()
    }
}

/// Longer writes may have parts of the file written.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{create, device, mount};
    use crate::{At, MountOptions};
    use std::sync::{Arc, mpsc};

    fn with_file(order: Order) -> (Arc<Fs>, Ino) {
        let fs = mount(&device(64, 64), MountOptions { order, ..MountOptions::default() });
        let ino = create(&fs, "f");
        fs.write(ino, 0, &[7; 4096], 0).unwrap();
        (fs, ino)
    }

    fn answer() -> (Done, mpsc::Receiver<crate::Result<()>>) {
        let (tx, rx) = mpsc::channel();
        (Box::new(move |result| drop(tx.send(result))), rx)
    }

    #[test]
    fn a_lead_that_was_announced_is_led_once_and_others_count_on_it() {
        let (fs, ino) = with_file(Order::Relaxed);
        assert!(fs.syncs_at_once(ino));
        let ((first, told_first), (second, told_second)) = (answer(), answer());
        assert!(matches!(fs.join_sync(ino, first), Joined::Unled));
        assert!(matches!(fs.join_sync(ino, second), Joined::Seen));
        assert!(told_first.try_recv().is_err(), "nothing is durable yet");
        fs.lead_announced();
        told_first.try_recv().unwrap().unwrap();
        told_second.try_recv().unwrap().unwrap();
        assert!(!fs.lock().leading.is_led());
        fs.close().unwrap();
    }

    #[test]
    fn who_leads_once_leads_once() {
        let (fs, ino) = with_file(Order::Relaxed);
        let (done, told) = answer();
        assert!(!fs.fsync_once(ino, done));
        told.try_recv().unwrap().unwrap();
        let (third, told_third) = answer();
        let ((first, _), other) = (answer(), fs.clone());
        let asks_again = Box::new(move |result| {
            first(result);
            assert!(matches!(other.join_sync(ino, third), Joined::Seen), "the one who leads sees to it");
        });
        fs.write(ino, 0, &[8; 4096], 0).unwrap();
        assert!(fs.fsync_once(ino, asks_again), "somebody waits for the next");
        assert!(told_third.try_recv().is_err() && fs.lock().leading.is_led());
        fs.lead_announced();
        told_third.try_recv().unwrap().unwrap();
        assert!(!fs.lock().leading.is_led());
        fs.close().unwrap();
    }

    /// Of those who lead for others only one is ever caught in an index checkpoint, however many find that one is due: it waits for a
    /// lead that others announce meanwhile, and somebody has to be left to lead it.
    #[test]
    fn one_leader_makes_the_checkpoint_and_others_go_on_leading() {
        let (fs, ino) = with_file(Order::Relaxed);
        let lead = || {
            let (done, told) = answer();
            fs.write(ino, 0, &[9; 4096], 0).unwrap();
            fs.lock().window_bytes = 1 << 40;
            assert!(matches!(fs.join_sync(ino, done), Joined::Unled));
            fs.lead_announced();
            told.try_recv().unwrap().unwrap();
            fs.counters().index_checkpoints
        };
        // Another is about to make it.
        fs.lock().checkpoint_claimed = true;
        let before = fs.counters().index_checkpoints;
        assert_eq!(lead(), before);
        fs.lock().checkpoint_claimed = false;
        assert_eq!(lead(), before + 1);
        assert!(!fs.lock().checkpoint_claimed);
        fs.close().unwrap();
    }

    #[test]
    fn what_has_to_wait_is_told_so_and_left_alone() {
        let (strict, ino) = with_file(Order::Strict);
        assert!(!strict.syncs_at_once(ino));
        let (done, told) = answer();
        let Joined::Waits(done) = strict.join_sync(ino, done) else { panic!("it would have to settle all files") };
        strict.fsync(ino, done);
        told.try_recv().unwrap().unwrap();
        strict.close().unwrap();
        let (fs, ino) = with_file(Order::Relaxed);
        fs.write(ino, 1 << 20, &vec![1; 400 << 10], 0).unwrap();
        assert!(matches!(fs.join_sync(ino, answer().0), Joined::Waits(_)), "much is under way");
        fs.close().unwrap();
    }

    #[test]
    fn only_short_writes_of_whole_blocks_are_taken_at_once() {
        let (fs, ino) = with_file(Order::Relaxed);
        assert!(fs.takes_at_once(ino, 8192, 4096) && fs.takes_at_once(ino, 0, 64 << 10));
        for (offset, bytes) in [(1, 4096), (0, 4095), (0, 0), (0, 68 << 10)] {
            assert!(!fs.takes_at_once(ino, offset, bytes), "{offset} {bytes}");
        }
        assert_eq!(fs.getattr(At::Live, ino).unwrap().size, 4096);
        fs.close().unwrap();
    }
}
