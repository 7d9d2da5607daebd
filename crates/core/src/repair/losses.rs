//! What a repair says: losses by path, and what it mended without any. Numbers
//! are part of the interface: one is never used again for something else.
//!
//! 8xx losses; 9xx what is mended and lost nothing.

use crate::check::{of_name, path_of, shortened};
use crate::state::State;
use nenrin_format::Ino;
use std::collections::BTreeMap;

/// Losses told one by one; more are only counted.
pub const LOSSES_MAX: usize = 100_000;
/// Bytes of paths in them; the rest are told by number.
const PATHS_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };

macro_rules! kinds {
    ($(#[$about:meta])* $kind:ident: $($number:literal $what:ident $name:literal $meaning:literal;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $kind {
            $(#[doc = $meaning] $what,)*
        }

        impl $kind {
            /// All kinds, by number.
            pub const ALL: &'static [Self] = &[$(Self::$what,)*];

            /// Its stable number.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self { $(Self::$what => $number,)* }
            }
            /// Its stable short name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$what => $name,)* }
            }
            /// What it means, in one line.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$what => $meaning,)* }
            }
        }
    };
}

kinds! {
    /// A kind of loss.
    LossKind:
    801 RangeUnreadable "range-unreadable" "Content is damaged on the device and has no second copy: reading the range is an error.";
    802 RangeLost "range-lost" "The index no longer says where the content of a range is: reading it is an error.";
    803 NameLost "name-lost" "A name is gone, because nothing is left of what it named, or not enough to vouch for it.";
    804 FileFound "file-found" "A file or directory without a name is now in lost+found.";
    805 ContentFound "content-found" "Content that belonged to a lost file or range was found in the log and put into lost+found: perhaps not its newest.";
    806 AttributesLost "attributes-lost" "Owner, permissions, times or extended attributes are not known any more.";
    807 LogGap "log-gap" "Part of the log is missing: any file may lack what was committed in it.";
    808 ChangeLost "change-lost" "A change behind a gap in the log, or to what was lost, could not be made.";
    809 FileUncertain "file-uncertain" "A file was changed behind a gap in the log: it may lack earlier changes and mix two commits.";
    810 InodesLost "inodes-lost" "Part of the index is gone: files with these inode numbers may have vanished without a trace.";
    811 PastIncomplete "past-incomplete" "Past states lack something, or all of the past is gone.";
    812 CheckpointsLost "checkpoints-lost" "The list of checkpoints has a gap: some may be gone.";
    813 ItemDropped "item-dropped" "An entry of the index meant nothing, or contradicted others, and was dropped.";
    814 TailLeft "tail-left" "Bytes behind the end of a file in its last block are not zero and show when it grows: a copy of the file has none.";
}

kinds! {
    /// A kind of mending that loses nothing.
    MendKind:
    901 NodesRewritten "nodes-rewritten" "Index nodes with one damaged copy are written anew.";
    902 SlotsRewritten "slots-rewritten" "All superblock slots are written anew.";
    903 NamesRestored "names-restored" "Directory entries and back references are made anew, each from the other.";
    904 CountsCorrected "counts-corrected" "Counts in inodes agree with the index again.";
    905 SpaceRecounted "space-recounted" "The use of segments is recounted.";
    906 OrphansListed "orphans-listed" "What has no name and is not in use is listed for removal.";
    907 OlderRoot "older-root" "The newest root is damaged; the log behind an older one holds everything since.";
    908 RolledForward "rolled-forward" "Partial segments of the log are taken into the index.";
    909 SharingRestored "sharing-restored" "Who shares which blocks is counted anew from the files themselves.";
    910 IndexFound "index-found" "No root leads to a whole index; one was found by searching for its nodes.";
    911 CopiesRewritten "copies-rewritten" "Copies on single devices that are wrong are written anew from those of others.";
}

/// What a loss is about.
#[derive(Clone, Debug)]
pub(super) enum About {
    /// The volume.
    Volume,
    /// An inode.
    Inode(Ino),
    /// A name in a directory.
    Name(Ino, Vec<u8>),
}

/// One thing lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What kind of loss.
    pub kind: LossKind,
    /// The path, as it is or would be after the repair.
    pub path: Option<Vec<u8>>,
    /// The inode.
    pub ino: Option<Ino>,
    /// First byte of the range, and the first behind it.
    pub range: Option<(u64, u64)>,
    /// The particulars, in one line.
    pub text: String,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.number(), self.kind.name())?;
        if let Some(path) = &self.path {
            write!(f, " {}", String::from_utf8_lossy(path).escape_debug())?;
        } else if let Some(ino) = self.ino {
            write!(f, " inode {ino}")?;
        }
        if let Some((from, to)) = self.range {
            write!(f, " bytes {from} to {to}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// A loss, with bytes of a file, before its path is known.
type Noted = (LossKind, About, Option<(u64, u64)>, String);

/// Collects losses and mends.
#[derive(Default)]
pub(super) struct Losses {
    noted: Vec<Noted>,
    pub total: u64,
    pub mends: BTreeMap<MendKind, u64>,
}

impl Losses {
    pub fn add(&mut self, kind: LossKind, about: About, text: impl Into<String>) {
        self.add_range(kind, about, None, text);
    }
    pub fn add_range(&mut self, kind: LossKind, about: About, range: Option<(u64, u64)>, text: impl Into<String>) {
        self.total += 1;
        if self.noted.len() < LOSSES_MAX {
            self.noted.push((kind, about, range, text.into()));
        }
    }
    pub fn mended(&mut self, kind: MendKind, n: u64) {
        if n > 0 {
            *self.mends.entry(kind).or_default() += n;
        }
    }
    /// With paths as they are in the repaired state.
    pub fn tell(&self, state: &State) -> Vec<Loss> {
        let mut left = PATHS_BYTES_MAX;
        let mut all = Vec::with_capacity(self.noted.len());
        for noted in &self.noted {
            let loss = told((left > 0).then_some(state), noted);
            left = left.saturating_sub(loss.path.as_ref().map_or(0, Vec::len));
            all.push(loss);
        }
        all.sort_by_key(|l| l.kind);
        all
    }
}

/// With its path where there is a state to take it from.
fn told(state: Option<&State>, (kind, about, range, text): &Noted) -> Loss {
    let (path, ino) = match about {
        About::Volume => (None, None),
        About::Inode(ino) => (state.and_then(|s| path_of(s, *ino)), Some(*ino)),
        About::Name(parent, name) => {
            let path = state.and_then(|s| of_name(s, *parent, name)).unwrap_or_else(|| {
                // The directory itself has no way to the root that is known.
                shortened([format!("#{parent}/").as_bytes(), name].concat())
            });
            (Some(path), None)
        }
    };
    Loss { kind: *kind, path, ino, range: *range, text: text.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::recover;
    use crate::testing::{FILE, device, mount};
    use crate::{MountOptions, NewInode};

    /// Names so deep and so many that their paths together would take very much memory.
    #[test]
    fn of_very_many_long_paths_the_rest_are_told_by_number() {
        let device = device(64, 64);
        let fs = mount(&device, MountOptions::default());
        let mut dir = Ino::ROOT;
        for _ in 0..20 {
            dir = fs.create(dir, &[b'n'; 255], &NewInode { mode: 0o040_700, ..FILE }).unwrap().ino;
        }
        fs.close().unwrap();
        drop(fs);
        let opened = recover(&[device], &MountOptions::default()).unwrap();
        let mut losses = Losses::default();
        for i in 0..500 {
            losses.add(LossKind::ChangeLost, About::Name(dir, format!("{i}").into_bytes()), "");
        }
        let told = losses.tell(&opened.state);
        let paths: Vec<&[u8]> = told.iter().filter_map(|l| l.path.as_deref()).collect();
        assert_eq!(paths.len(), 500);
        let long = paths.iter().take_while(|p| p.starts_with("…/".as_bytes())).count();
        assert!((256..300).contains(&long), "{long} long paths");
        assert!(paths[long..].iter().all(|p| p.starts_with(format!("#{dir}/").as_bytes())));
    }
}
