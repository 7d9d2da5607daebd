//! What is known of how much snapshots keep: counted by a walk over history, kept up to date from then on, and stated by roots
//! (`fs/account.rs`).

use super::{HistoryTree, KeptFor, State};
use crate::breaks::{Break, broken};
use crate::index::Value;
use nenrin_format::key::Key;
use nenrin_format::packed::entry_bytes;
use nenrin_format::root::Past;
use nenrin_format::{COUNTER_MAX, Cno};

/// How much of history snapshots keep, as far as it went there since it was counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownPast {
    /// Blocks of content that they keep; rather too much where blocks are shared.
    pub named_blocks: u64,
    /// Blocks that came to history since the volume was opened, whoever keeps them.
    pub buried: u64,
    /// Bytes of items that they keep.
    pub named_bytes: u64,
    /// Bytes of all items in the history trees that may hold such.
    pub bytes: u64,
    /// That is right: it was counted for the snapshots there are.
    pub counted: bool,
    /// It is to be counted anew, while what is known is good enough: the first snapshot was made, files were forgotten, or the
    /// volume was mounted.
    pub recount: bool,
    /// How often that was asked for, and how often when the last count that was done began.
    asked: u64,
    answered: u64,
    /// How often blocks were added that perhaps no snapshot keeps, and how often when it was counted last.
    doubts: [u64; 2],
    /// Changes with each count that is done, and when what is counted is no longer what it was.
    pub epoch: u64,
    /// The oldest and the newest snapshot.
    named: Option<(Cno, Cno)>,
}

impl KnownPast {
    /// Blocks came to history that a snapshot keeps, or perhaps none.
    pub fn bury(&mut self, blocks: u64, doubtful: bool) {
        self.named_blocks = self.named_blocks.saturating_add(blocks);
        self.doubts[0] += u64::from(doubtful);
    }

    /// A count that began `before` is done.
    pub fn end_count(&mut self, before: &Self, found: &Self) {
        self.add_since(before, found);
        // What asked for another one meanwhile may not have been seen.
        (self.counted, self.recount) = (true, self.asked != before.asked);
        self.answered = before.asked;
        self.doubts[1] = before.doubts[0];
        self.epoch += 1;
    }

    /// Whether what had been asked for `then` is counted, or is for others to count, who have changed names since.
    pub fn answers(&self, then: &Self) -> bool {
        if self.counted { self.answered >= then.asked } else { self.epoch != then.epoch }
    }

    /// Blocks were added that perhaps no snapshot keeps, and that may have gone since: whoever would be refused because of them
    /// counts before.
    pub fn is_doubtful(&self) -> bool {
        self.doubts[0] != self.doubts[1]
    }

    /// `found` was counted since it was `before`; what came meanwhile counts as well, and of all bytes what went does not: df must not
    /// tell too much.
    fn add_since(&mut self, before: &Self, found: &Self) {
        let since = |now: u64, then: u64, counted: u64| counted + now.saturating_sub(then);
        self.named_blocks = since(self.named_blocks, before.named_blocks, found.named_blocks);
        self.named_bytes = since(self.named_bytes, before.named_bytes, found.named_bytes);
        self.bytes = (found.bytes + self.bytes).saturating_sub(before.bytes);
    }
}

/// Bytes of the distance to the first key and of a death, about: the same for an item that is live and when it died.
const DISTANCE_AND_DEATH: usize = 4;

/// What an item of history takes of a leaf, about.
pub fn weight(key: &Key, value: &[u8]) -> u64 {
    let key = key.living();
    (entry_bytes(&key, &key, value) + DISTANCE_AND_DEATH) as u64
}

impl State {
    /// What a root states of it, or what follows where it states nothing.
    pub fn load_past(&mut self, stated: Option<Past>) {
        self.note_named();
        if let Some(p) = stated.filter(|_| self.has_snapshots()) {
            self.past.counted = true;
            (self.past.named_blocks, self.past.named_bytes, self.past.bytes) = (p.blocks, p.bytes, p.all_bytes);
        }
    }

    /// For a root.
    #[must_use]
    pub fn stated_past(&self) -> Option<Past> {
        let p = &self.past;
        let stated = Past { blocks: p.named_blocks, bytes: p.named_bytes, all_bytes: p.bytes };
        let fits = [stated.blocks, stated.bytes, stated.all_bytes].iter().all(|n| *n <= COUNTER_MAX);
        (p.counted && self.has_snapshots() && fits && !broken(Break::PastUntold)).then_some(stated)
    }

    /// Looks which snapshots there are.
    pub fn note_named(&mut self) {
        self.snapshots = self.kept.iter().filter(|(_, c)| c.is_named()).map(|(cno, _)| *cno).collect();
        self.past.named = self.snapshots.first().copied().zip(self.snapshots.last().copied());
        if self.past.named.is_none() {
            let (asked, buried, epoch) = (self.past.asked, self.past.buried, self.past.epoch + 1);
            self.past = KnownPast { counted: true, asked, buried, epoch, ..KnownPast::default() };
        }
    }

    /// Other checkpoints have names now.
    pub(super) fn named_changed(&mut self) {
        self.past.counted = false;
        self.past.epoch += 1;
        self.note_named();
    }

    /// What is known is too much now, or too little by what is new.
    pub(crate) fn recount_past(&mut self) {
        self.past.recount = self.has_snapshots();
        self.past.asked += 1;
    }

    /// Whether there are snapshots.
    pub fn has_snapshots(&self) -> bool {
        self.past.named.is_some()
    }

    /// Whether a history tree may hold what a snapshot keeps.
    pub fn may_be_named(&self, tree: &HistoryTree) -> bool {
        self.past.named.is_some_and(|(first, _)| tree.may_hold(first))
    }

    /// Whether a snapshot lies in the life `[birth, death)`.
    pub(super) fn is_named(&self, birth: Cno, death: Cno) -> bool {
        match self.past.named {
            None => false,
            // Nearly all that dies does so in the open checkpoint.
            Some((_, newest)) if newest < death => birth <= newest,
            Some(_) => birth < death && self.snapshots.range(birth..death).next().is_some(),
        }
    }

    /// Whether a snapshot for which something is kept lies in its life `[birth, death)`.
    pub fn is_kept_by_name(&self, birth: Cno, death: Cno, kept: KeptFor) -> bool {
        let mut named = (birth < death).then(|| self.snapshots.range(birth..death)).into_iter().flatten();
        named.any(|cno| self.kept.get(cno).is_some_and(|c| kept.is_anchor(c)))
    }

    /// Whether a snapshot sees what appeared then and is live.
    pub fn newest_name_sees(&self, birth: Cno) -> bool {
        self.past.named.is_some_and(|(_, newest)| birth <= newest)
    }

    /// An item came to history.
    pub(super) fn weigh_buried(&mut self, key: &Key, value: &Value) {
        self.past.bytes = self.past.bytes.saturating_add(weight(key, value));
    }

    /// An item went from the history tree at this place.
    pub(super) fn weigh_freed(&mut self, key: &Key, value: &Value, index: usize) {
        if self.history.get(index).is_some_and(|t| self.may_be_named(t)) {
            self.past.bytes = self.past.bytes.saturating_sub(weight(key, value));
        }
    }
}
