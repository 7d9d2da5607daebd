//! What a check can find. Numbers are part of the interface: one is never used
//! again for something else.
//!
//! 1xx superblocks, roots and log; 2xx index; 3xx names; 4xx inodes and
//! content; 5xx space; 6xx history and checkpoints; 7xx bytes of content.

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Something is wrong.
    Error,
    /// Nothing is wrong, but worth knowing.
    Note,
}

macro_rules! findings {
    ($($number:literal $severity:ident $what:ident $name:literal $meaning:literal;)*) => {
        /// A kind of finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum What {
            $(#[doc = $meaning] $what,)*
        }

        impl What {
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
            /// How much it matters.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$what => Severity::$severity,)* }
            }
            /// What it means, in one line.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$what => $meaning,)* }
            }
        }
    };
}

findings! {
    101 Error SlotDamaged "slot-damaged" "A superblock slot is damaged; its twin at the other end of the device is used.";
    102 Error SlotStale "slot-stale" "A superblock slot does not hold the generation that belongs there: a write was lost.";
    103 Note SlotUnfinished "slot-unfinished" "A superblock slot was being written when the last mount ended, or before the next could begin; it is written again.";
    104 Error SlotForeign "slot-foreign" "A superblock slot belongs to another volume.";
    105 Error RootCopyDamaged "root-copy-damaged" "One copy of a root cannot be read; the other is used.";
    106 Error RootLost "root-lost" "Neither copy of a root can be read.";
    107 Error RootUnusable "root-unusable" "The volume cannot be opened from a root that recovery may choose; the older of the two is tried only where the newer cannot be used.";
    108 Error RootInvalid "root-invalid" "A root states something impossible.";
    109 Error LogDamaged "log-damaged" "The log is damaged before its end: a later part proves that more was durable.";
    110 Error DeviceAbsent "device-absent" "A device of the volume is not there or misses something: what it has has no second copy.";
    111 Error LogCopyDamaged "log-copy-damaged" "A copy of a part of the log on one device is damaged; that of another is used.";

    201 Error NodeCopyDamaged "node-copy-damaged" "One copy of an index node is damaged; the other is used.";
    202 Error NodeLost "node-lost" "Neither copy of an index node can be read.";
    203 Error NodeInvalid "node-invalid" "An index node is intact but does not belong where it is: tree, level, order or range of keys.";
    204 Error NodeCopiesTogether "node-copies-together" "Both copies of an index node lie in one segment.";
    205 Error TreeCountWrong "tree-count-wrong" "A root states another number of nodes or items than its tree has.";
    206 Error ItemInvalid "item-invalid" "The value of an index item cannot be decoded or is impossible.";
    207 Error ItemMisplaced "item-misplaced" "An index item has a kind or key that its tree cannot hold.";
    208 Note ChecksSkipped "checks-skipped" "Part of the index cannot be read, so what relates items to each other was not checked.";
    209 Error ItemUnborn "item-unborn" "An item was born in a checkpoint that is still to come.";

    301 Error RootDirectoryMissing "root-directory-missing" "The root directory is missing or is no directory.";
    302 Error EntryDangling "entry-dangling" "A directory entry names an inode that does not exist.";
    303 Error EntryTypeWrong "entry-type-wrong" "A directory entry states another file type than the inode has.";
    304 Error NameInvalid "name-invalid" "A name is empty, is . or .., or contains a slash or a zero byte.";
    305 Error NameMisplaced "name-misplaced" "A name is not where its hash says and cannot be looked up.";
    306 Error NameTwice "name-twice" "A name occurs twice in a directory, or a back reference twice in an inode.";
    307 Error LinkMissing "link-missing" "An inode has no back reference for a name it bears.";
    308 Error LinkDangling "link-dangling" "An inode has a back reference to a name that does not exist or names another inode.";
    309 Error LinkCountWrong "link-count-wrong" "The link count of an inode differs from its names, or of a directory from its subdirectories.";
    310 Error EntryCountWrong "entry-count-wrong" "A directory states another number of entries than it has.";
    311 Error ParentWrong "parent-wrong" "A directory states another parent than the directory that names it.";
    312 Error DirectoryCycle "directory-cycle" "Directories contain each other and cannot be reached from the root.";
    313 Error DirectoryNames "directory-names" "A directory has no name or more than one.";
    314 Error OrphanUnlisted "orphan-unlisted" "An inode without names is not listed as an orphan, so nothing would free it.";
    315 Error OrphanWrong "orphan-wrong" "An inode is listed as an orphan but has names or does not exist.";
    316 Error EntriesInFile "entries-in-file" "An inode that is no directory has directory entries.";
    317 Note DirectoriesUncounted "directories-uncounted" "There are too many directories to look for cycles in memory; this was not checked.";

    401 Error StrayItems "stray-items" "Items of an inode that does not exist and is not being removed.";
    402 Error StrayFork "stray-fork" "Extents of earlier content of a file that is not being removed.";
    403 Error ReapWrong "reap-wrong" "Something is to be removed that is in use.";
    410 Error ExtentOutside "extent-outside" "An extent points outside the volume or across the end of a segment.";
    411 Error ExtentCrossing "extent-crossing" "An extent crosses an aligned boundary of 256 file blocks.";
    412 Error ExtentOverlap "extent-overlap" "Two extents of a file overlap.";
    413 Error BlocksWrong "blocks-wrong" "An inode states another number of blocks than its extents have.";
    414 Error ExtentBeyondEnd "extent-beyond-end" "A written extent begins behind the end of its file.";
    415 Error InlineWithExtents "inline-with-extents" "A file has both inline content and extents.";
    416 Error InlineSizeWrong "inline-size-wrong" "Inline content has another length than its file, or more than may be inline.";
    417 Error ContentOfOther "content-of-other" "An inode that is no regular file has content, or one that is no symbolic link has a target.";
    418 Error SymlinkWrong "symlink-wrong" "The target of a symbolic link is missing or has another length than stated.";
    419 Error XattrIncomplete "xattr-incomplete" "An extended attribute lacks a piece, has one too many, or one of the wrong length.";
    420 Error XattrMisplaced "xattr-misplaced" "An extended attribute has an impossible name, is not where its hash says, or occurs twice.";
    421 Error XattrUnflagged "xattr-unflagged" "An inode has extended attributes that its flags deny.";

    501 Error BlockOwnedTwice "block-owned-twice" "A block belongs to two extents that do not say they share it.";
    502 Error LiveCountWrong "live-count-wrong" "A segment states another number of live blocks than it has.";
    503 Error HistoryCountWrong "history-count-wrong" "A segment states another number of history blocks than it has.";
    504 Error NodeCountWrong "node-count-wrong" "The root states another number of node copies in a segment than it reaches.";
    505 Error FreeInUse "free-in-use" "A segment counts as free and holds something that is needed.";
    506 Error ChainUnmarked "chain-unmarked" "A segment with a part of the log that recovery needs is not marked so, or is marked wrongly.";
    507 Error SegmentMixed "segment-mixed" "A segment holds both index nodes and content.";
    508 Error TotalWrong "total-wrong" "A total of the volume differs from what was counted.";
    509 Error InodeNumberWrong "inode-number-wrong" "An inode has a number that is still to be given.";
    510 Error BackrefMissing "backref-missing" "An extent says that it is shared, and no back reference names it.";
    511 Error BackrefDangling "backref-dangling" "A back reference names an extent that does not exist, lies elsewhere or says that it is not shared.";
    512 Error EmptiedWrong "emptied-wrong" "A segment counts as emptied by a root that was never written, and would not become free.";

    601 Error HistoryLifeWrong "history-life-wrong" "An item of history died before it was born, or dies in the future.";
    602 Error HistoryOutsideTree "history-outside-tree" "An item of history died outside the range its tree covers.";
    603 Error HistoryOverlap "history-overlap" "Two versions of an item were alive at the same time.";
    604 Note HistorySweepable "history-sweepable" "History holds items that no kept checkpoint sees; sweeping frees them.";
    605 Error CheckpointWrong "checkpoint-wrong" "A checkpoint has an impossible number, or a name without being a snapshot, or another's name.";

    701 Error ContentDamaged "content-damaged" "A block of content does not have its checksum.";
    702 Error ContentUnreadable "content-unreadable" "The device cannot read a block of content.";
    703 Error TailNotZero "tail-not-zero" "Bytes behind the end of a file in its last block are not zero.";
    704 Error ContentLost "content-lost" "A range of a file was lost to damage; a repair has marked it, and reading it is an error.";
    705 Error ContentCopyDamaged "content-copy-damaged" "A copy of a block of content on one device is damaged; that of another is used.";
    706 Error ParityWrong "parity-wrong" "The parity of a row is not that of what lies in it, or cannot be read: were a device lost now, that could not be rebuilt.";
    707 Note ContentCopyUnproven "content-copy-unproven" "A copy of a block of content on one device is not what the log names, and nothing proves that it was told to be durable: the next mount writes it.";
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
