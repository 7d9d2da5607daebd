//! When the cleaner works, and how hard. A pure function of a picture of the volume.

use crate::breaks::{Break, broken};

/// Quiet time after which the foreground counts as idle.
pub(super) const QUIET_NANOS: u64 = 5_000_000_000;
/// Blocks moved in a tick in idle time: 4 MiB.
const IDLE_BLOCKS: u64 = 1024;
/// Least and most work in a tick while others write.
const BUSY_BLOCKS: (u64, u64) = (256, 16384);
/// Room, in segments, below which the cleaner works hard, if that is no more than a quarter of the slack.
const PRESSING_SEGMENTS: u64 = 4;

/// Ticks for which there should be room at the rate of those who write: making some takes about as long.
const AHEAD_TICKS: u64 = 5;

/// Blocks from which on somebody is taken to write: who lets the past go by itself writes a few, too, and marks follow.
const BURST_BLOCKS: u64 = 16;

/// Slack that counts while others write: with segments of 16 MiB, 4 GiB of room are always enough to clean in.
const SLACK_SEGMENTS_MAX: u64 = 2048;

/// What the policy looks at. Counts of segments unless said otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Picture {
    /// What writers may take now, and what index checkpoints will add to it.
    pub room: u64,
    /// What room would be without garbage.
    pub slack: u64,
    /// The room in blocks.
    pub room_blocks: u64,
    /// Blocks that others wrote since the last tick.
    pub written_blocks: u64,
    /// And since they were last quiet.
    pub burst_blocks: u64,
    /// Nanoseconds since others wrote.
    pub quiet_nanos: u64,
}

/// Why the cleaner does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rest {
    /// Not asked yet, or the volume is read-only.
    #[default]
    NotStarted,
    /// Enough room is free.
    EnoughRoom,
    /// No segment holds enough garbage.
    NothingToGain,
    /// Too little room is left to copy into.
    NoRoom,
    /// All of it is needed.
    Full,
}

impl Rest {
    /// In words, for users.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NotStarted => "it has not looked yet",
            Self::EnoughRoom => "enough room is free",
            Self::NothingToGain => "no segment holds enough garbage",
            Self::NoRoom => "too little room is left to copy into",
            Self::Full => "the volume is full, and there is no garbage that cleaning could make room of",
        }
    }
}

/// How hard to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Not at all.
    Rest,
    /// In idle time: the batch must gain more than it costs the index.
    Idle,
    /// Keeping up with those who write.
    Busy,
    /// Room is short.
    Pressing,
    /// Nothing else makes room.
    Last,
}

impl Pace {
    /// Least garbage in a victim, as a divisor of the segment.
    pub const fn garbage_divisor(self) -> u32 {
        match self {
            Self::Rest | Self::Idle => 2,
            Self::Busy => 8,
            Self::Pressing => 16,
            Self::Last => 32,
        }
    }
}

/// How hard to work now.
pub(super) const fn pace(p: &Picture) -> Pace {
    let quiet = p.quiet_nanos >= QUIET_NANOS;
    let quarter = p.slack.div_ceil(4);
    let slack = if p.slack < SLACK_SEGMENTS_MAX { p.slack } else { SLACK_SEGMENTS_MAX };
    let few = if quarter < PRESSING_SEGMENTS { quarter } else { PRESSING_SEGMENTS };
    if p.room < few || p.room * 16 < slack {
        Pace::Pressing
    } else if p.room * 8 < slack && !quiet {
        Pace::Busy
    } else if p.room * 2 < p.slack && quiet {
        Pace::Idle
    } else {
        Pace::Rest
    }
}

/// Why nothing is to be done where that is so.
pub(super) const fn rest(p: &Picture) -> Rest {
    // Where all is needed there is as much room as there can be, be it none.
    if p.room == 0 || p.slack == 0 { Rest::Full } else { Rest::EnoughRoom }
}

/// Work to do in this tick, in blocks, of a batch of which so much is left: nearly all of it must be done when half of
/// the room is written, or those who write come to make room themselves.
pub(super) fn blocks(pace: Pace, p: &Picture, left: u64) -> u64 {
    let deadline = (p.room_blocks / 4).max(1);
    let in_time = u64::try_from(u128::from(left) * u128::from(p.written_blocks) / u128::from(deadline));
    let in_time = in_time.unwrap_or(u64::MAX);
    let (least, most) = BUSY_BLOCKS;
    match pace {
        Pace::Rest => 0,
        Pace::Idle => IDLE_BLOCKS,
        Pace::Busy => in_time.clamp(least, most),
        Pace::Pressing if p.quiet_nanos >= QUIET_NANOS => IDLE_BLOCKS * 2,
        Pace::Pressing | Pace::Last => in_time.clamp(2 * least, most),
    }
}

/// Blocks that should be there for those who write before they come to make room themselves.
pub(super) fn ahead(p: &Picture, segment_blocks: u32) -> u64 {
    if p.burst_blocks < BURST_BLOCKS && !broken(Break::AheadOfNobody) {
        return 0;
    }
    let most = p.slack.saturating_mul(u64::from(segment_blocks)) / 16;
    p.written_blocks.saturating_mul(AHEAD_TICKS).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn of(room: u64, quiet_seconds: u64) -> Pace {
        pace(&Picture { room, slack: 160, quiet_nanos: quiet_seconds * SECOND, ..Picture::default() })
    }

    #[test]
    fn the_table_of_the_decision_record() {
        for (room, busy, quiet) in [
            (0, Pace::Pressing, Pace::Pressing),
            (3, Pace::Pressing, Pace::Pressing),
            (9, Pace::Pressing, Pace::Pressing),
            (10, Pace::Busy, Pace::Idle),
            (19, Pace::Busy, Pace::Idle),
            (20, Pace::Rest, Pace::Idle),
            (79, Pace::Rest, Pace::Idle),
            (80, Pace::Rest, Pace::Rest),
            (160, Pace::Rest, Pace::Rest),
        ] {
            assert_eq!((of(room, 0), of(room, 5)), (busy, quiet), "{room} of 160 free");
        }
        // On small volumes a few segments are wanted, on full ones nothing can be.
        let small = |room, slack| pace(&Picture { room, slack, ..Picture::default() });
        assert_eq!([small(1, 8), small(2, 8), small(3, 8)], [Pace::Pressing, Pace::Rest, Pace::Rest]);
        let large = |room| pace(&Picture { room, slack: 100_000, ..Picture::default() });
        assert_eq!([large(127), large(255), large(256)], [Pace::Pressing, Pace::Busy, Pace::Rest]);
        assert_eq!([small(0, 0), small(0, 1), small(1, 1)], [Pace::Rest, Pace::Pressing, Pace::Rest]);
    }

    #[test]
    fn a_full_volume_has_not_enough_room() {
        let of = |room, slack| {
            let p = Picture { room, slack, ..Picture::default() };
            (pace(&p) == Pace::Rest).then(|| rest(&p))
        };
        assert_eq!([of(0, 0), of(5, 0)], [Some(Rest::Full); 2]);
        assert_eq!([of(1, 1), of(80, 160)], [Some(Rest::EnoughRoom); 2]);
        assert_eq!(of(0, 160), None, "there is something to do");
    }

    #[test]
    fn room_is_made_ahead_for_those_who_write() {
        let p = |written_blocks, slack| Picture {
            written_blocks,
            slack,
            burst_blocks: written_blocks,
            ..Picture::default()
        };
        assert_eq!(ahead(&p(0, 160), 512), 0);
        assert_eq!(ahead(&p(100, 160), 512), 500);
        assert_eq!(ahead(&p(100_000, 160), 512), 5120);
        assert_eq!(ahead(&p(u64::MAX, 0), 512), 0);
        assert_eq!((ahead(&p(15, 160), 512), ahead(&p(16, 160), 512)), (0, 80), "somebody writes from 16 blocks on");
    }

    #[test]
    fn a_batch_is_done_before_half_of_the_room_is_written() {
        let p = |room_blocks, written_blocks| Picture { room_blocks, written_blocks, ..Picture::default() };
        assert_eq!(blocks(Pace::Busy, &p(20_000, 1000), 30_000), 6000);
        let mut left = 30_000;
        for room in (10_000..20_000).rev().step_by(1000) {
            left -= blocks(Pace::Busy, &p(room, 1000), left).min(left);
        }
        assert!(left < 3000, "{left}");
        assert_eq!(blocks(Pace::Pressing, &p(0, 1000), 30_000), 16384);
        assert_eq!(blocks(Pace::Busy, &p(20_000, 0), 30_000), 256);
        assert_eq!(blocks(Pace::Busy, &p(1, u64::MAX), u64::MAX), 16384);
        assert_eq!(blocks(Pace::Rest, &p(20_000, 1000), 30_000), 0);
    }
}
