//! Deliberate breaks: each takes one thing away that a promise of DESIGN
//! section 3 rests on, so that the tests which defend it can be seen to fail.
//!
//! Without the feature `breaks`, which no program enables, [`broken`] is a
//! constant `false` and nothing of this is compiled in.

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "breaks"), allow(dead_code))]
pub enum Break {
    /// A sync writes and does not flush.
    NoFlush,
    /// A commit is made durable alone, whatever else was written before it and not flushed.
    UncoveredLeft,
    /// A commit is made durable alone although it names data that was written elsewhere and not flushed.
    NamedLeft,
    /// Of a commit of several partials the last one alone is made durable.
    PartialsLeft,
    /// The first commit of a mount is made durable alone, whatever a process that died left in the device's cache.
    FirstLeft,
    /// A commit on one device of a stripe is made durable alone while another device enters.
    EnteringLeft,
    /// A flush of the only device counts for what completed while it was under way, too.
    CoversBeside,
    /// Callers are told before the commit is written.
    AckEarly,
    /// Who asks for a sync while a commit is under way is told with that one.
    SharedTooEarly,
    /// A commit that is done before the one laid out before it is told at once.
    EndsOutOfTurn,
    /// A commit is written before what it changes is applied, and fails afterwards where that cannot be.
    WrittenUnapplied,
    /// Who commits waits for the device under the lock that all operations take.
    CommitLocked,
    /// What is on its way to the device is read from there.
    ReadTooEarly,
    /// A commit does not wait for the data that it names.
    DataNotAwaited,
    /// Data that was held back beside syncs counts as written when it is waited for.
    HeldForgotten,
    /// Data beside syncs is held back on rows with parity, too.
    RowsHeld,
    /// Whoever waits for data that was held back has it written without asking whether another host has the volume.
    HeldUnowned,
    /// Data and nodes are handed to a device, however long ago it was looked whether another host has the volume.
    BehindUnowned,
    /// What comes to a device after the end of a lease is written.
    LeaseOpen,
    /// Who was kept waiting for bursts of others is forgotten when they are over.
    WritersUntold,
    /// The oldest namespace operation of a commit comes with the next one.
    NamesOutOfOrder,
    /// Recovery follows the chain without asking whether a partial fits the one before.
    PastHole,
    /// Recovery accepts a logical segment without its end.
    HalfLogical,
    /// Recovery believes payload that nobody acknowledged without its checksum.
    TornPayload,
    /// Recovery accepts partials of any epoch.
    ForgetEpoch,
    /// Where a record cannot be applied recovery stops in the midst of its commit, and shows what of it is there.
    StoppedWithin,
    /// A volume that has no room to go on in is taken for damaged, and an older state of it is shown.
    FullIsDamage,
    /// A mount begins segments for the index where there are none.
    MountsBeginSegments,
    /// Leaves of the space tree that are lost end every mount.
    SpaceEnds,
    /// An item of the space tree that means nothing ends every mount.
    BadItemEnds,
    /// The past is shown although it is not known what of it is forgotten, or was shed.
    SpacelessPast,
    /// The root slot is written before what it names was flushed.
    RootBeforeFlush,
    /// Who closes a volume writes the last root slot at one end of each device only.
    OneSlotAtClose,
    /// Under barrier=checkpoint roots are written without any flush, as under barrier=none.
    RootsUnflushed,
    /// The change time that a kernel sends which caches writes is taken for that of the call.
    KernelTimesDropped,
    /// A truncation to nothing is not held back.
    NoHold,
    /// A truncation is held back until its file is closed or synced, if it never is.
    HoldNeverEnds,
    /// A rename over a name does not carry the content.
    NoCarry,
    /// The tail of a block that a truncation cuts keeps its bytes.
    StaleTail,
    /// A segment is handed out as soon as it is empty.
    ReuseEarly,
    /// Blocks that were read are not verified.
    NoVerify,
    /// Content that the device does not give reads as zeros.
    UnreadableIsZeros,
    /// The second copy of an index node is never read.
    OneCopy,
    /// A read-only mount shows what the newest root has, without the log behind it.
    ReadOnlyBehind,
    /// A read-only mount claims the volume for its host, as one that writes does.
    ReadOnlyClaims,
    /// Damage in the chain is taken for its end.
    DamageIsEnd,
    /// A place of the log that the device does not give is taken for its end.
    UnreadIsEnd,
    /// Where no root is used, the list of what is to be forgotten is not sought.
    SalvageRemembers,
    /// Of what is forgotten in a salvage, who stays for what is in it stays when that is gone.
    ForgottenOnce,
    /// An item that says what is to be forgotten, and whose value means nothing, goes in a repair.
    BadForgetGoes,
    /// Each place behind the log is asked for, however many no device gives.
    EachBadPlaceAsked,
    /// Where many of them are not given, so much is passed over that what lies among them is missed.
    IslandsPassed,
    /// Places that were passed over prove nothing, whatever lies where the log ends.
    PassedIsNothing,
    /// What proves that more of the log was durable is sought on one device alone.
    OneWayBehind,
    /// What a header proves counts only where it belongs, not where a device misplaced it.
    AstrayUnread,
    /// Where the newest root cannot be read, the log behind the one before is believed to be all there was.
    WentBackUnseen,
    /// A failed write or flush is told once and then forgotten.
    FailureForgotten,
    /// A failed flush is tried again.
    FlushRetried,
    /// A mount gives the numbers of removed files anew that were the last ones, whoever else has them.
    NumbersAnew,
    /// An item that leaves the live tree is freed, whoever sees it.
    HistoryFreed,
    /// What leaves the live tree of an inode that keeps less history is dropped, whatever snapshot sees it.
    AnchorIgnored,
    /// A name that a checkpoint gets later keeps nothing of such an inode.
    LateNameIgnored,
    /// It counts for what was dropped before it was given, too.
    LateNameActsBack,
    /// What is left of a past state of such an inode is taken for all of it.
    PartSeemsWhole,
    /// In a past state no name can be looked up: it says that it does not know.
    PastUnnamed,
    /// Ages go by the wall clock, whatever it says.
    JumpBelieved,
    /// What only a landmark keeps is freed.
    LandmarkUnseen,
    /// What landmarks left of a state passes for all of it.
    LandmarkIsAll,
    /// Forgetting is acknowledged as other changes are, where a sync does not flush.
    ForgetNotDurable,
    /// Snapshots are let go like any checkpoint when room is short.
    SnapshotsShed,
    /// The rule lets the newest checkpoint without a name go, too.
    ThinnedTooMuch,
    /// The rule lets checkpoints go that somebody reads from, too.
    HeldThinned,
    /// Who deletes something of the past takes the oldest checkpoint without a name along.
    DeletedBesides,
    /// Who asks for room has the oldest checkpoint go, whether room is short or not.
    ShedForNothing,
    /// Deleting a snapshot, or checkpoints, is acknowledged before it is committed.
    DeletedUnsynced,
    /// A snapshot that is deleted loses its name with one commit, and goes with the next.
    DeletedInHalves,
    /// A rule for keeping checkpoints is acknowledged before it is committed.
    RuleNotSynced,
    /// A lost range that is written leaves no trace in the past, as a reservation does.
    LostIsReserved,
    /// A branch of a tree that was found passes for the whole tree.
    FragmentIsWhole,
    /// Pages that a write has to read first are loaded without asking for their room.
    PagesWithoutRoom,
    /// Content is accepted without room for it.
    NoReserve,
    /// Room is made ahead of the few blocks that letting the past go writes.
    AheadOfNobody,
    /// df counts what summaries take of small segments as room.
    SummariesAreRoom,
    /// Segments that hold hardly any garbage are left as they are, also where nothing else makes room.
    LittleGarbageKept,
    /// A truncation is held back no longer when a copy over the file is of many ranges.
    RangesEndHolds,
    /// An orphan that was closed when there was no room to remove anything waits for the next mount.
    OrphansLeft,
    /// What is reserved is reserved in one piece, however much it is.
    ReservedAtOnce,
    /// What is zeroed is a hole: its room is for whoever comes first.
    ZeroedGivenAway,
    /// Who looks for a hole holds the lock up to where it is.
    SeeksLocked,
    /// A search of a file of the past finds nothing where less of its history is kept.
    UnkeptIsHole,
    /// Small content that cannot be understood is none.
    GarbledIsZeros,
    /// A truncation, or a hole, cuts off all extents in its way at once, however many they are.
    CutAtOnce,
    /// Files grow as long as there are free segments, whatever df says.
    GrowsBeyondDf,
    /// Who grows is refused before what waits is committed.
    GrowthCommitsNothing,
    /// Attributes in place of smaller ones are no growth.
    LargerAttributes,
    /// Attributes in place of others are growth.
    AttributesGrow,
    /// Filling a file again that was emptied is growth.
    RewritingGrows,
    /// What is copied from a snapshot counts as if nothing kept it.
    KeptCopiesGrow,
    /// What is written and shared before its commit is not counted until then.
    SharedUncounted,
    /// A copy that waits is no reason why what it is of stays when it is written over.
    CopiesForgotten,
    /// Blocks that come back from history count as kept by snapshots, too.
    BackCountsTwice,
    /// A piece of what is reserved is refused for the block that it shares with the piece before, which a snapshot keeps.
    PiecesRefused,
    /// Writing over what a snapshot or another file keeps is no growth.
    KeptWrittenOver,
    /// Who grows is refused before what was removed is reaped.
    GrowthReapsNothing,
    /// Who grows is refused before what snapshots keep is counted.
    GrowthCountsNothing,
    /// Removing stops where writing does.
    RemovalsWait,
    /// A truncation is held back even where what it frees is all the room there is.
    HoldsOutlast,
    /// What was let go of is no room before it is swept in the background.
    SweepLeft,
    /// Space that was reserved is given to whoever comes first.
    PromisesTaken,
    /// Files are put in order although they are.
    OrderEndless,
    /// Putting files in order takes all the room there is.
    OrderBeyondRoom,
    /// The cleaner moves an item whatever it holds by then.
    MoveBlind,
    /// A segment that cleaning emptied is handed out at once.
    VictimReused,
    /// A shared block counts as nobody's as soon as one of its owners lets go of it.
    OwnersForgotten,
    /// What a copy from the past names is not marked as shared there.
    PastNotShared,
    /// Under order=strict a sync that waited for its turn takes names along, and no content received before them.
    StrictForgets,
    /// Blocks that a copy is to share are not held until its commit names them.
    CopyNotHeld,
    /// Numbers on the device are believed.
    BelieveNumbers,
    /// What has two copies is written to one device only.
    MirrorHalf,
    /// Without one of its devices a volume shows zeros in the past.
    PastNeedsAll,
    /// A sync flushes one of the devices that have something to flush.
    FlushHalf,
    /// What recovery accepted without proof that every device has it is left as it is.
    CopiesUnequal,
    /// What recovery accepted counts as written where it can be read, whatever became of the flush that was to cover it.
    UnflushedBelieved,
    /// The parity of a row is not written when it is full.
    ParityUnwritten,
    /// What is synced of a row that is not full has no copy in the row log.
    RowsUncopied,
    /// The parity of a row is written, and written over, while it is being filled.
    ParityInPlace,
    /// The row log goes on naming rows of segments that are used again.
    RowLogKept,
    /// Parity that is made anew is no write for who copies it to a device that joins.
    ParityUnregistered,
    /// Scrubbing makes parity of a row that is just being written.
    ParityBesideWrites,
    /// Places that somebody is about to write to become zeros when that takes long.
    HeldFilled,
    /// A number of the row log is given again where a cut left entries of it and no claim.
    ClaimsReused,
    /// A claim on a slot of the row log is ended while it is being written.
    ClaimsCross,
    /// What a device did not give in its place, and the rest of the row did, is not written anew.
    UnreadLeft,
    /// A device that is to leave is brought up to date, and gets its place when it has left.
    LeavingJoins,
    /// A flush that fails while the device table is changed is told to who changes it, and to nobody else.
    TableUnwatched,
    /// Where a length changes by little the area at the new end lies over the one that counts, and is cleared with that.
    TailsOverlap,
    /// Of each device as much has to be there as bands take.
    TailUnmeasured,
    /// Bringing a device up to date ends where all of what is copied at once can be read nowhere.
    UnreadableEnds,
    /// Of a summary of which a part is missing another device's is taken, whatever that belongs to.
    AnySummary,
    /// Whatever looks like a partial of the chain proves what it says, whichever mount wrote it, or none.
    ContentProves,
    /// A payload, or data, of the last partials that no device gives counts as not written.
    UnreadIsMissing,
    /// A repair says nothing of content of the past that was lost with how the file is now.
    PastReadsZeros,
    /// To a member that comes back everything is copied, whatever it still has.
    JoinUnjudged,
    /// Of a device that joins is said what became of the one before.
    EndedBefore,
    /// Roots do not say what devices have done wrong.
    TroubleUntold,
    /// A device that is brought up to date keeps what its row log said of before.
    StaleRowLog,
    /// A flush fails that needs more slots of the row log than are free.
    RowLogFullFails,
    /// What wipes the row log takes all slots that are free at once.
    WipeTakesAll,
    /// The checksums of what the row log has are not looked at.
    RowLogBelieved,
    /// Scrubbing makes parity of what it has not verified: of log, and of nodes that are wrong where they lie.
    ParityUnverified,
    /// Scrubbing makes parity of rows without a look at what is named in them by then.
    RowsBelieved,
    /// A copy that is refused ends what is reserved where it was to go.
    RefusedTakesPromise,
    /// The rule lets go what it did not keep when that was last looked at.
    ThinnedUnlooked,
    /// What recovery found in the row log gets no parity.
    RowsUnsettled,
    /// Who wipes does not see that a device has come to take part meanwhile.
    JoinUncounted,
    /// A device that joins counts as up to date when half is copied.
    JoinHalf,
    /// What is copied to a device that joins is not copied again when it was written meanwhile.
    WindowIgnored,
    /// A device that joins gets its place before what is on it was flushed.
    JoinUnflushed,
    /// Syncs wait for the first flush of a device that joins.
    EnteringAtOnce,
    /// What a member that comes back shows is on it, whatever became of the flush that was to cover it.
    AlikeBelieved,
    /// A device that is brought up to date and does not answer is waited for, where one of the others would be.
    JoinerAwaited,
    /// A device that is made ready to become a member, and does not answer, is waited for.
    NewcomerAwaited,
    /// Who changes devices, or closes the volume, waits for a device that is made ready.
    NewcomerHeld,
    /// Who closes a volume commits what was accepted when nothing else is under way any more.
    ClosesLate,
    /// A device that joins gets copies only, and nothing of what is written meanwhile.
    JoinDeaf,
    /// A write that was registered while a device joined goes to it only if it has not taken its place by then.
    SeatedDeaf,
    /// The roots of a device that is replaced end before those of the new one are durable.
    OldEndedEarly,
    /// A device that was to be added counts as about to come, whatever became of that.
    ExpectedForEver,
    /// Nobody goes on before the roots of a device that is replaced are ended, however long it takes.
    OldAwaited,
    /// The slots at the end of a device are read all at once, or it keeps its length.
    TailWhole,
    /// A slot at the end of a device that is read nowhere is empty where that is next.
    TailGuessed,
    /// A mount with `mmp` neither waits nor looks whether another host has the volume.
    MmpUnwatched,
    /// An owner writes its heartbeat over that of another.
    MmpDeaf,
    /// An owner that could not beat for long goes on without a look.
    MmpLate,
    /// A device that took no claim is a member all the same.
    ClaimUnheard,
    /// A beat that arrives on one device is good for all of them, however late.
    LeaseShared,
    /// Beats of all devices wait for each of them.
    BeatsAwaited,
    /// With `mmp` no member is given up.
    MemberAwaited,
    /// Of several members that may have to be given up only the first is looked at.
    FirstSuspectOnly,
    /// What a member answers who asks whether it does is what it gets done.
    ProbesCount,
    /// Scrubbing looks at the history trees that there were when it began.
    ScrubTreesOfBefore,
    /// Nothing is shown on a device that misses something, or joins.
    JoinerUnshown,
    /// The number of segments that a superblock states is believed, whatever the device has room for.
    SizeBelieved,
    /// A node of which no copy is right is read again, until one is.
    ReadAgain,
    /// A file whose data a sync waits for may be changed meanwhile.
    ChangedWhileSettling,
    /// Names in the past of what is forgotten stay where they are.
    ForgetKeepsNames,
    /// Forgetting deletes the snapshots, in which something may be forgotten.
    ForgetDropsSnapshots,
    /// Free segments are taken for wiped without a look at them.
    ForgetSkipsFree,
    /// A full segment is taken for wiped without a look at what is behind its last partial.
    ForgetSkipsTails,
    /// What was cut off a file, and was not reaped before the file is removed, dies with the file.
    OldForksDieLate,
    /// A mount does not go on with what was being forgotten.
    ForgetNotResumed,
    /// A band loses segments as soon as no content is in them, whatever of the index or the log is.
    BandCutEarly,
    /// What a band adds is used before a root says where it lies.
    BandUsedEarly,
    /// A device that is to be removed is cleared before what lies on it was moved.
    RemovedEarly,
    /// No device is let go or made shorter, however much room the others have.
    DevicesHeld,
    /// Room in the open index segments is not counted where something of the past is to be let go.
    OpenSegmentsUncounted,
    /// History may crowd out the cleaner.
    CrowdingUnseen,
    /// Room is made only when somebody who writes has to wait for it.
    RoomNotAhead,
    /// What snapshots keep of the index is not counted.
    PastIndexUncounted,
    /// What waits to be written to the index makes df fall.
    DfFallsWithIndex,
    /// df counts what is overwritten twice until its commit, and what is on its way to the device not at all.
    DfCountsTwice,
    /// The first flush of a mount goes to those devices only that it wrote to.
    FirstFlushPartial,
    /// States that several checkpoints show are left out of what is told of a name.
    SharedStatesUntold,
    /// Of a run that is wrong on two devices, in different units, nothing is put together.
    UnitsUnmixed,
    /// A repair starts from a root with a gap in the log behind it, whatever whole tree of later is there.
    NewerTreeLeft,
    /// Scrubbing leaves the log out.
    LogUnscrubbed,
    /// A check reads one copy of what a mirror has twice.
    OneCopyChecked,
    /// A commit by time begins when its time is over.
    CommitsLate,
    /// A mount that writes does not look whether the root directory can be read.
    RootUnread,
    /// A history tree that got items of a newer one is not looked into for these.
    MergedUnseen,
    /// The last item of a piece of history that is merged gets lost.
    MergeLoses,
    /// A repair writes wherever its own state needs nothing, over the state it repairs.
    RepairOverOld,
    /// A repair of slots alone writes an index, for which one that was cut may have left no room.
    SlotsTakeRoom,
    /// A repair takes in the log without the directories and files whose inodes were in lost leaves.
    LostNotRegained,
    /// An inode that a repair makes for the log begins without the extents that are left of it.
    RegainedBlind,
    /// An inode that a repair makes for the log has one name, however many name it.
    RegainedOneName,
    /// A file with large lost ranges takes all the marks that a repair has for such.
    LostMarksUsedUp,
    /// Behind a gap in the log a repair drops a file with the last name that was known before the gap.
    GapDropsLast,
    /// Behind a gap in the log a repair brings back what was forgotten, since it seems to have a name.
    GapForgetsNothing,
    /// A repair keeps checkpoints of which it is not known whether something they saw was shed.
    ShedUnknown,
    /// A mount that does not apply all of the log shows landmarks of what the rest says is to be forgotten.
    LandmarksNotHidden,
    /// What a repair finds of a file whose inode was in a lost leaf reads as zeros where the leaf had its extents.
    FoundReadsZeros,
    /// What a file got in a gap in the log reads as zeros, and what was cut off there comes back when it grows.
    GapReadsZeros,
    /// What was found counts only as far as it is listed.
    ListedIsAll,
    /// A repair starts from an older root only where nothing at all of that is lost.
    RootAllOrNone,
    /// A repair is carried out without a look at what became of the volume since it was planned.
    PlanOutdated,
    /// Any access control list stands for the one that is lost.
    AnyAclCounts,
    /// Where extents overlap, what only the second one had reads as zeros.
    OverlapReadsZeros,
    /// Of two files with one block the first keeps it, whosever it is.
    FirstOwnerKeeps,
    /// A file keeps its privileges, whatever was written to it in a gap in the log.
    GapKeepsPrivileges,
    /// A commit tells submitted syncs of other files that they are durable, and leaves their content out.
    AskedLeftOut,
    /// A commit of all files tells submitted syncs of those held back that they are durable, and leaves these out.
    HeldAskedLeftOut,
    /// In strict order such a commit tells them, and leaves out what is held back of other files.
    AskedAheadOfHeld,
    /// Reads that are submitted begin at once, however many are under way.
    ReadsUnbounded,
    /// Recovery looks for the next partial of the log nowhere but right behind the last one.
    LeftOutUnseen,
    /// What an earlier life of a segment left in units that are left out is taken for what is there.
    StaleBelieved,
    /// What is left out before a run that begins at a unit is not written where rows have parity.
    LeftOutUnwritten,
    /// A sync flushes devices also because root slots were written to them.
    CommitAwaitsRoots,
    /// Letting go of the past asks for the room that removing asks for.
    LettingGoNeedsRoom,
    /// Index segments of which less than a quarter is garbage stay as they are, also where nothing else makes room.
    HardlySparseKept,
    /// All that is available may be taken before it is counted again.
    GrantsLast,
    /// A flush that succeeds proves what was written, whatever became of one that was under way when it began.
    FlushesTrusted,
    /// Who was kept from beating for the length of a lease commits without looking who has the volume.
    MmpSyncsLate,
    /// Nobody is told when a thread that leads panics.
    LeadersLost,
    /// Nor when one panics that makes room for others, or settles a file.
    AwaitedLost,
    /// Commits behind that of a thread that is lost wait for it.
    LostHoldsOthers,
    /// Nobody empties index segments that are hardly sparse again after a try that gained anything.
    GainsInVain,
    /// Shared blocks wait for three leaves for each owner, and all other shared blocks with them.
    SharedHoldUp,
    /// What was too much to move at once is not looked at again when its owners go.
    BeyondForEver,
    /// What snapshots keep is counted for those of the beginning and of the end of a count.
    CountMixed,
    /// What was forgotten counts as kept by snapshots until the next mount.
    ForgottenCounts,
    /// History goes because it crowds out the cleaner while somebody sweeps what was let go before.
    SweepUnseen,
    /// A beat that arrived late is taken for one that nobody came before.
    LateBeatBelieved,
    /// What a scrub found is forgotten with the mount.
    ScrubForgotten,
    /// A device whose heartbeat cannot be read is not claimed, as if it were not there.
    UnreadBeatLeft,
    /// What was made in a directory that a gap in the log hides goes with it.
    GapLosesDirectories,
    /// Where a later mount is known to have gone on with the log, what it dropped is followed.
    CutOffFollowed,
    /// That a later mount went on vouches for what lies where it went on, which it may have dropped.
    LaterVouches,
    /// The life of a mount begins with the first that is found of it, whatever roots say.
    LivesByFound,
    /// Where the log names no segment to go on in and a root is lost, it ends.
    UnnamedUnsought,
    /// A later mount that is known to have gone on is sought only where the log names a segment.
    GoneOnByName,
    /// Counters of an image are believed, however high they are.
    CountersBelieved,
    /// An item that was born in the future is right in everything else.
    FutureUnchecked,
    /// Times are committed ahead of the content that they are of.
    TimesAhead,
    /// Who is allowed more of a file that was written anew may find what it was before.
    GrantedAhead,
    /// What waits for no data waits for that of others when it is committed by time.
    LittleWaits,
    /// Records that wait for a commit may take all memory.
    RecordsUnbounded,
    /// What was closed and is not committed yet is gone when the file is emptied to be written anew.
    ClosedNotOwed,
    /// Truncations of small files are held back no longer where those of large ones are not.
    SmallHoldsEnd,
    /// Truncations are held back no longer as soon as somebody needs room.
    HoldsEndFirst,
    /// However many files find no room, one step of putting files in order looks at all of them.
    OrderStepsLong,
    /// Blocks with checksums of two kinds become one run of the payload map.
    KindsMixed,
    /// Roots do not state what snapshots keep.
    PastUntold,
    /// What was changed and not committed yet is no reason to try again to make room.
    ChangesUnseen,
    /// Who wants the log to go on elsewhere does not look whether there is a next segment.
    RolledNowhere,
    /// The cleaner leaves alone what one device has wrong, whatever others have.
    CopiesUntried,
    /// However many checkpoints go at once, one record says so.
    DropsUnbounded,
    /// Nodes whose partials cannot be read in an index segment are not looked for.
    HeadersBelieved,
    /// What the background records is not read before.
    NotReadAhead,
    /// Looking for files with much history ends at what cannot be read.
    SurveyStops,
    /// Emptying a file that is empty asks for room as if it grew.
    EmptyNeedsRoom,
    /// Who looks at each copy is given the other where one cannot be read.
    AvoidedReadAnyway,
    /// What a repair would leave is checked as if segments had no numbers but those by which they follow each other.
    CountsInOrder,
    /// Forgetting what no state has wipes nothing.
    ForgetFreeSkipped,
    /// Forgetting ends with whatever lies where no segment does.
    OutsideUnwiped,
    /// A block there that takes no zeros is the end of its device.
    OutsideFailsDevice,
    /// What is being forgotten waits for a device that is absent and to be removed.
    AwaitsWhatLeaves,
    /// A device is cut, where no segment lies, before what is there was wiped.
    CutWhileForgetting,
    /// What comes out of a kernel's cache moves the times that this kernel has.
    CacheMovesTimes,
    /// What comes out of a kernel's cache and of which no time follows leaves the file as old as it was.
    CacheUnseen,
    /// What a directory had and lost while it had another name is told of that name only.
    DirectoriesNotFollowed,
    /// A name is not told as gone where it cannot be read what it stood for.
    DamageHidesNames,
    /// A repair leaves nodes where they are in segments that hold content.
    NodesNotApart,
    /// It goes on to count places there which its rewritten nodes had.
    SupersededCounts,
    /// Where a device takes the place of one of which something cannot be read, nothing more is read from that.
    JoinReadsElsewhere,
    /// Recovery takes a copy that lies with others on devices of which each has lost a part for lost.
    WalkReadsElsewhere,
    /// Of the two copies of a node each is taken whole, or not at all.
    NodesUnmixed,
    /// Of a unit that has a bad block in each copy nothing is taken.
    BlocksUnmixed,
    /// What lies in rows is read in units or not at all, where a block of one is bad.
    RowsInUnits,
    /// Blocks of a row that cannot be read where they lie stay as they are when its parity is written.
    RowsUnwritten,
    /// An extent is right in a copy, or in a mixture of copies, as a whole or not at all.
    GranulesTogether,
    /// What copies have of a part is put together only where there are few ways to do so.
    FewMixtures,
    /// Any whole summary is taken for the one that a root names.
    SummaryUnknown,
    /// What is wrong is read again where there is no other copy.
    ReadInVain,
    /// A commit is written to every device only where its summary and its payload can be put together as one.
    PartialsWhole,
    /// A device whose place another takes is asked for each block, however many it fails.
    PatienceEndless,
    /// What was verified of rows that a crash left is read again for their parity.
    VerifiedForgotten,
    /// What the row log has is not put back where its column is lost.
    TornLeft,
    /// What was written ahead and written over again keeps its segments from others until the commit.
    DeadPinned,
    /// History goes while a truncation is held back that would free as much as is wanted.
    HoldsOutlastHistory,
    /// What is moved counts as coming back from history where an owner that is live follows one of history.
    MovesCountBack,
    /// Who else has a block is asked of all its owners, also where one has said it.
    OwnersAllAsked,
    /// The retention rule is first applied ten minutes after a mount.
    ShortMountsKeep,
    /// Nothing is cut with a name that comes later, so that it does not count for what dies before the next checkpoint.
    LateNameUncut,
    /// Segments in which uncommitted content has blocks are let go of with those in which it has none.
    NamedUnpinned,
    /// What a newer program wrote to the volume is passed over where an older root can be read.
    NewerPassedOver,
    /// Whether the volume may be written to is asked of the root that is used alone.
    OneRootAsked,
    /// Where a newer program went on with the log it ends.
    NewerIsEnd,
    /// What is listed to be forgotten goes although it is there.
    LivingForgotten,
    /// What is listed for the reaper goes although it is in use.
    LivingReaped,
    /// A directory without a name goes although there are names in it.
    ChildrenGo,
    /// A segment waits for the root that its item says it was emptied by, whichever that is.
    EmptiedBelieved,
    /// Once nobody had more than his share of history, files are looked for again only where there is more of it than then.
    NoneHeavyStays,
    /// What was shed is remembered as long as any older checkpoint is kept, also where only snapshots are left, which have all of it.
    ShedsPileUp,
    /// What the cleaner finds the index unreadable for keeps all that it moves at once where it is.
    BatchStuck,
    /// What was cut off a file goes to history when it is reaped, although that of the file was shed meanwhile.
    ShedReaped,
    /// Of a node with inner nodes below it that is split the right half is lost.
    UpperHalfLost,
    /// A mount makes the parity of a row anew also where nothing is known of it, of what may be rotten.
    ParityOfUnknown,
    /// Counting what snapshots keep ends at what cannot be read.
    CountStops,
    /// A state that shows a file that is gone counts as the last of it, also where nothing is known of it there.
    LastSeenUnknown,
    /// What goes or is cut off makes leaves of back references dirty that nobody counts.
    BackReferencesUncounted,
    /// Steps that let go or forget count a leaf of their own items for so many items, however large these are.
    OwnLeavesUncounted,
    /// Who lets go leaves nothing to who empties index segments.
    LettingGoTakesAll,
    /// Who needs what was removed has as much of it reaped as may be let go until the next index checkpoint.
    ReapsHalf,
    /// Index checkpoints are written at the floor, too, where nothing waits for one.
    FloorWrittenAway,
    /// Within one mount a jump of the clock by less than a day counts as a pause.
    PausesWithinMounts,
    /// All of the time counts for which the machine is said to have been suspended.
    SuspendsBelieved,
    /// Who waits for what snapshots keep counts for all who ask meanwhile.
    CountsForOthers,
    /// A search for files with much history that does not go on, since a sweep rests, keeps history from being merged.
    SurveysStay,
    /// Of checkpoints that go no landmarks are kept where something of the past cannot be read.
    LandmarksStop,
    /// Where one of two copies is mended both are written.
    MendedOverRight,
    /// What nothing proves to have been flushed is written anew on all devices at once.
    AnewAtOnce,
    /// What a change of length that was cut left at the end of a device stays there.
    OldEndsLeft,
    /// Of a root whose two slots have different device tables the older one stays.
    OldTwinsKept,
    /// That others went on is seen by a newer root alone, not by a newer table.
    MarkedUnseen,
    /// A table whose numbers are lower than those of the newest is of the same line.
    LinesByNumber,
    /// An absent device counts as left out by whatever was last said of it.
    LeftAnew,
    /// Content that goes with a name is committed as it is: whoever syncs next waits for its data.
    CarriedUnsettled,
    /// Segments stay closed that were to go when the device table was another.
    ClosedForGone,
    /// What a truncation held back while a checkpoint was cut asks for none when it is committed.
    HeldUncut,
    /// A version of the past is looked for beyond the leaf in which it would be, up to whatever comes next.
    NextLeafNeeded,
    /// A path that cannot be read ends the list of what was shed.
    ShedListEnds,
    /// Holes of up to 16 MiB are copied without asking what they cut off.
    CopiedHolesUnasked,
    /// A node that a state of the past had in a place where now another is counts as damage.
    StaleIsDamage,
    /// What a file is allowed behind a gap in the log is applied to what it held before, and not told.
    GapGrants,
    /// A file that is made anew keeps a capability that the log, or what is left, has for it.
    CapabilitiesStay,
    /// All access times that wait are logged under one hold of the lock.
    AccessesAtOnce,
    /// What a mount found behind the newest checkpoint asks for none.
    ReplayedUncut,
    /// A commit that shares content counts only where that is right, however long it was durable before.
    SharedJudged,
    /// Content that is shared counts as durable, also where it was written with the commit that shares it.
    SharedBelieved,
    /// Who reserves room in a file of very many pieces overlooks some of those that are reserved.
    PiecesOverlooked,
    /// Of a file that is written here and there any number of ranges waits for its commit.
    RangesUnbounded,
    /// What was written ahead counts as waiting once more when it is written over.
    RewrittenCountsAgain,
    /// Leaves of back references that go with what is written over or copied are not counted before the commit.
    OwnersOfWrittenUncounted,
    /// A file whose truncation is held back may add any number of items to the index.
    HeldItemsUnbounded,
    /// Nodes that the index grows by when what was copied or written ahead is committed have no room kept for them.
    NewNodesUnreserved,
    /// Of a name that is gone each checkpoint is asked whether it is known there what it stood for.
    EachStateAsked,
    /// A restore removes what it replaces before it has made the copy.
    ReplacedGoesFirst,
    /// A restore removes what it replaces whatever became of the checkpoint that keeps it.
    UnkeptRemoved,
}

#[cfg(feature = "breaks")]
mod switch;

#[cfg(feature = "breaks")]
pub use switch::{broken, now, with};

/// Whether this is broken: never.
#[cfg(not(feature = "breaks"))]
pub const fn broken(_: Break) -> bool {
    false
}

/// A volume with this key gives names one of few hashes, so that they collide all the time: for tests, in no program.
#[cfg(feature = "breaks")]
pub const COLLIDING: [u8; 16] = *b"many names a few";

/// The hash of a name on a volume with this key.
#[cfg(feature = "breaks")]
pub(crate) fn collide(key: &[u8; 16], hash: u64) -> u64 {
    if *key == COLLIDING { hash & 0x70 } else { hash }
}

/// The hash of a name on a volume with this key: itself.
#[cfg(not(feature = "breaks"))]
pub(crate) const fn collide(_: &[u8; 16], hash: u64) -> u64 {
    hash
}
