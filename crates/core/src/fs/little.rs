//! Who writes little does not wait while room is made for those who write much.
//!
//! A writer who comes to the end of the room makes some, which takes the cleaner's reads and writes and two index
//! checkpoints: a second or two on a slow device. A database that commits a few blocks meanwhile may take them from the reserve,
//! down to [`Inner::little_segments`], where garbage is known to be there that will give them back. What is kept for
//! removing, for index checkpoints and for going on at all stays untouched.

use super::space::Room;
use super::{Fs, Inner};
use nenrin_format::Ino;

/// An eighth of what lies between the room for removing and that for content is kept from who writes little, too.
const KEPT: u64 = 8;
/// There is garbage for so many times what may be taken.
const GIVEN_BACK: u64 = 2;
/// Who syncs is expected to do so again for so long; where nobody does, nobody is in a hurry.
const SYNCS_NANOS: u64 = 10_000_000_000;

impl Inner {
    /// Segments at which those stop who write little while others make room.
    pub(super) fn little_segments(&self, fs: &Fs) -> u64 {
        let removal = self.removal_segments(fs);
        removal + self.reserve_segments(fs).saturating_sub(removal) / KEPT
    }

    /// Blocks beyond that, for this room: none for those who do not write little, and where nothing would give them back.
    pub(super) fn blocks_for_little(&self, fs: &Fs, room: Room) -> Option<u64> {
        if !self.recent_syncs.any_within(SYNCS_NANOS, fs.clock.monotonic_nanos()) {
            return None;
        }
        let is_little = match room {
            Room::Content(blocks) | Room::Passing(blocks) => blocks <= fs.chain_pages_max() as u64,
            // Pages of the range that were loaded for this write count once: else it would no longer be little, and wait for
            // a commit that takes them away again, for ever.
            Room::Write(ino, from, to) => {
                let beside = self.waiting_of(ino).saturating_sub(self.pages_in(ino, from, to));
                beside + (to - from) <= fs.chain_pages_max() as u64
            }
            Room::Promise(_) | Room::Removal => false,
        };
        let least = self.little_segments(fs);
        let lent = self.reserve_segments(fs).saturating_sub(least);
        let given_back = is_little && self.garbage_segments >= GIVEN_BACK * lent;
        // What others were promised is theirs.
        given_back.then(|| self.free_blocks(fs, least).saturating_sub(fs.kept_for(self.promised())))
    }

    /// Blocks of a file that no commit has taken yet, about.
    fn waiting_of(&self, ino: Ino) -> u64 {
        let content = self.files.get(&ino).and_then(|f| f.content.as_ref());
        content.map_or(0, |c| c.pages.len() as u64 + c.placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{create, device, mount};
    use crate::{AllocateMode, MountOptions};

    /// P7: what others were promised is not lent, nor what removing needs; and nothing without a sync or without garbage.
    #[test]
    fn what_is_lent_is_nobody_elses() {
        let fs = mount(&device(256, 0), MountOptions::default());
        let ino = create(&fs, "f");
        let lent = |few: u64, garbage: u64| {
            let mut inner = fs.lock();
            inner.garbage_segments = garbage;
            inner.blocks_for_little(&fs, Room::Content(few))
        };
        assert_eq!(lent(1, u64::MAX), None, "nobody syncs");
        fs.fsync_wait(ino).unwrap();
        let before = lent(1, u64::MAX).unwrap();
        assert_eq!((lent(1, 0), lent(65, u64::MAX)), (None, None));
        let inner = fs.lock();
        assert!(before < inner.free_blocks(&fs, inner.removal_segments(&fs)));
        drop(inner);
        fs.allocate(ino, AllocateMode::Reserve, 0, 100 << 20).unwrap();
        let after = lent(1, u64::MAX).unwrap();
        assert!(before - after >= 100 << 8, "{before} {after}");
    }

    /// Seed 57 of the simulator, profile `fill`: a write that is little stays so when the blocks it covers in part have been read.
    #[test]
    fn what_a_write_reads_first_makes_it_no_larger() {
        let fs = mount(&device(256, 0), MountOptions::default());
        let ino = create(&fs, "f");
        fs.write(ino, 0, &[1; 100 * 4096], 0).unwrap();
        fs.fsync_wait(ino).unwrap();
        let room = Room::Write(ino, 3, 3 + fs.chain_pages_max() as u64);
        let mut inner = fs.lock();
        inner.garbage_segments = u64::MAX;
        assert!(inner.blocks_for_little(&fs, room).is_some());
        let mut inner = fs.load_pages(inner, ino, &[3]).unwrap();
        assert!(inner.blocks_for_little(&fs, room).is_some());
        // Another one that waits counts.
        inner = fs.load_pages(inner, ino, &[1]).unwrap();
        assert!(inner.blocks_for_little(&fs, room).is_none());
    }
}
