//! Content: OPEN, READ, WRITE, RELEASE, FSYNC, SYNCFS, FALLOCATE, LSEEK,
//! COPY_FILE_RANGE.
//!
//! A file handle is no number of anything: it carries three bits that say what its
//! RELEASE, FALLOCATE and COPY_FILE_RANGE have to do, and the tables are kept by inode.

use super::names::Waiter;
use super::{Result, Server, Syncs, caller};
use crate::errno::Errno;
use crate::init::TRANSFER_BYTES_MAX;
use crate::past;
use crate::perm;
use crate::proto::abi::{CopyFileRangeIn, CopyFileRangeOut, InHeader, LseekOut, OpenOut, WriteIn, WriteOut};
use crate::proto::flags::{OPEN_KILL_SUIDGID, WRITE_CACHE, WRITE_KILL_SUIDGID, fopen};
use crate::transport::Reply;
use nenrin_core::{Accepted, AlignedBuf, AllocateMode, Done, Error, Joined, ReadBytes, Seek, SetAttr, Writer};
use nenrin_format::Ino;
use std::sync::Arc;

/// What a program wrote: in the buffer of its request, or taken out of there.
pub(super) enum Written<'a> {
    Lent(&'a [u8]),
    Given(AlignedBuf),
}

/// The handle may write.
pub(super) const HANDLE_WRITES: u64 = 1;
/// The handle was opened with O_SYNC or O_DSYNC. For writes the kernel asks for
/// the sync; for copies and for what is allocated or punched it does not.
const HANDLE_SYNCS: u64 = 2;
/// The file may be mapped through the handle and written to, which takes one that reads, too.
const HANDLE_MAPS: u64 = 4;
/// Above these bits is the number of a handle that writes.
const HANDLE_BITS: u32 = 3;

/// The number of a handle that writes, among those of its file.
pub(super) const fn handle_number(fh: u64) -> u64 {
    fh >> HANDLE_BITS
}

/// What an open(2) asks for. O_ACCMODE 3 is for device control only.
pub(super) fn wanted(flags: i32) -> u32 {
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => perm::READ,
        libc::O_WRONLY => perm::WRITE,
        _ => perm::READ | perm::WRITE,
    };
    // The kernel's FMODE_EXEC: the file is opened in order to be run.
    const EXECUTES: i32 = 0x20;
    match (flags & EXECUTES != 0, flags & libc::O_TRUNC != 0) {
        (true, _) => perm::EXECUTE,
        (false, true) => access | perm::WRITE,
        (false, false) => access,
    }
}

fn end_of(offset: u64, bytes: u64) -> Result<u64> {
    offset.checked_add(bytes).filter(|&end| end <= i64::MAX as u64).ok_or(Errno(libc::EFBIG))
}

impl Server {
    pub(super) fn open(&self, head: &InHeader, flags: u32, open_flags: u32, reply: Reply) {
        let ino = head.nodeid;
        if let Err(e) = self.prepare_open(head, ino, flags as i32, open_flags) {
            return reply.error(e);
        }
        let open = self.new_handle(head, ino, flags as i32);
        if self.may_wait(ino) {
            self.tell_blocks(ino);
        }
        if !reply.value(&open).0 {
            let _ = self.release(ino, open.fh);
        }
        self.have_writers_ask(ino);
    }

    /// Everything that may fail in opening, truncation included.
    pub(super) fn prepare_open(&self, head: &InHeader, ino: u64, flags: i32, open_flags: u32) -> Result<()> {
        let want = wanted(flags);
        if want & perm::WRITE != 0 {
            self.changeable()?;
        }
        self.check(head, ino, want)?;
        if flags & libc::O_TRUNC != 0 {
            let kill_privileges = open_flags & OPEN_KILL_SUIDGID != 0;
            if kill_privileges {
                self.shed_privileges(&caller(head), ino)?;
            }
            let set = SetAttr { size: Some(0), editor: Some(head.uid), kill_privileges, ..Default::default() };
            self.volume.setattr(Ino(ino), &set)?;
        }
        Ok(())
    }

    pub(super) fn new_handle(&self, head: &InHeader, ino: u64, flags: i32) -> OpenOut {
        let writes = wanted(flags) & perm::WRITE != 0;
        let maps = flags & libc::O_ACCMODE == libc::O_RDWR;
        let number = if writes { self.open_files.open(ino, head.uid, maps) } else { 0 };
        if flags & libc::O_TRUNC != 0 {
            self.open_files.emptied(ino, Some(number));
        }
        // Nobody else changes the volume, so what the kernel has cached is right.
        let open_flags = fopen::KEEP_CACHE | fopen::NOFLUSH;
        let syncs = writes && flags & libc::O_DSYNC != 0;
        let bit = |is: bool, bit: u64| if is { bit } else { 0 };
        let fh = bit(writes, HANDLE_WRITES) | bit(syncs, HANDLE_SYNCS) | bit(maps, HANDLE_MAPS) | number << HANDLE_BITS;
        OpenOut { fh, open_flags, backing_id: 0 }
    }

    /// `flags` are those of the open file that the kernel reads for.
    pub(super) fn read(&self, ino: u64, offset: u64, bytes: u32, flags: u32) -> Result<ReadBytes> {
        let bytes = (bytes as usize).min(TRANSFER_BYTES_MAX);
        let place = self.place(ino)?;
        self.keeps_pages(ino);
        let content = self.volume.read(place.at, place.ino, offset, bytes)?;
        if flags & libc::O_NOATIME as u32 == 0 {
            self.accessed(ino);
        }
        Ok(content)
    }

    /// Who writes much beside others that sync is answered when their bursts are over, and no thread waits for that.
    pub(super) fn write(&self, head: &InHeader, args: &WriteIn, data: Written<'_>, reply: Reply) {
        let accepted = self.accept(head, args, data);
        let answer = |bytes: usize| WriteOut { size: bytes as u32, padding: 0 };
        match accepted {
            Ok(Accepted { bytes, is_told_later: true }) => {
                let done: Done = Box::new(move |result| reply.result(result.map(|()| answer(bytes))));
                self.volume.tell_later(Ino(head.nodeid), done);
            }
            now => reply.result(now.map(|accepted| answer(accepted.bytes))),
        }
    }

    fn accept(&self, head: &InHeader, args: &WriteIn, data: Written<'_>) -> Result<Accepted> {
        self.changeable()?;
        let ino = head.nodeid;
        end_of(args.offset, u64::from(args.size))?;
        if args.write_flags & WRITE_KILL_SUIDGID != 0 {
            self.shed_privileges(&caller(head), ino)?;
        }
        // What comes out of the page cache comes from a thread of the kernel. Under writeback its times do, too: by SETATTR, unless
        // the file had them already.
        let is_cached = args.write_flags & WRITE_CACHE != 0;
        let uid = if is_cached { self.open_files.writer(ino).unwrap_or(head.uid) } else { head.uid };
        let writer = Writer { uid, keeps_times: is_cached && self.agreed.writeback() };
        let accepted = match data {
            Written::Lent(data) => self.volume.accept(Ino(ino), args.offset, data, writer),
            Written::Given(data) => self.volume.accept_buf(Ino(ino), args.offset, data, writer),
        };
        // The kernel drops what is refused, and tells whoever syncs or closes the file at most.
        if is_cached && matches!(accepted, Err(Error::NoSpace)) {
            self.lost_in_cache(ino, args.size);
        }
        Ok(accepted?)
    }

    /// The last copy of a handle was closed. Only then what was written counts as
    /// complete, and not at the first close(2) of one that was inherited, nor where another
    /// handle is the one through which the file was emptied: its content is still to come.
    pub(super) fn release(&self, ino: u64, fh: u64) -> Result<()> {
        let is_complete = self.close(ino, fh)?;
        if is_complete { self.write_closed(ino) } else { Ok(()) }
    }

    /// Of this what waits for nobody: the program goes on when close(2) has returned, and counts on it. Whether the rest is to follow.
    pub(super) fn close(&self, ino: u64, fh: u64) -> Result<bool> {
        if fh & HANDLE_WRITES == 0 {
            return Ok(false);
        }
        let waited = self.may_wait(ino);
        // At once: whoever empties the file next holds it back anew.
        let note = || self.volume.note_closed(Ino(ino));
        let noted = self.open_files.close(ino, handle_number(fh), fh & HANDLE_MAPS != 0, note);
        if waited && !self.may_wait(ino) {
            self.tell_blocks(ino);
        }
        Ok(noted.transpose()?.is_some())
    }

    pub(super) fn write_closed(&self, ino: u64) -> Result<()> {
        Ok(self.volume.write_closed(Ino(ino))?)
    }

    pub(super) fn fsync(&self, ino: u64, reply: Reply, syncs: &Syncs<'_>) {
        if self.changeable().is_err() || past::is_past(ino) {
            return reply.ok();
        }
        // The kernel asks only where all that it kept has come in, and tells what was lost before by itself.
        self.open_files.take_lost(ino);
        self.sync(Ino(ino), Box::new(move |result| reply.done(result)), syncs);
    }

    /// Has a file made durable, as far as the calling thread may see to that.
    fn sync(&self, ino: Ino, done: Done, syncs: &Syncs<'_>) {
        let (leaders, waits) = match syncs {
            Syncs::Led => return self.volume.fsync(ino, done),
            Syncs::Apart => {
                let volume = self.volume.clone();
                return self.apart.run(move || volume.fsync(ino, done));
            }
            Syncs::Once(leaders) => {
                if self.volume.fsync_once(ino, done) {
                    leaders.call();
                }
                return;
            }
            Syncs::Joined(leaders) => (leaders, true),
            Syncs::AtOnce(leaders) => (leaders, false),
        };
        match self.volume.join_sync(ino, done) {
            Joined::Seen => {}
            Joined::Unled => leaders.call(),
            Joined::Waits(done) if waits => self.volume.fsync(ino, done),
            Joined::Waits(done) => {
                let (volume, leaders) = (self.volume.clone(), Arc::clone(leaders));
                // Others count on the helper, too, so it does not lead for as long as somebody asks.
                self.helper.run(move || {
                    if volume.fsync_once(ino, done) {
                        leaders.call();
                    }
                });
            }
        }
    }

    pub(super) fn syncfs(self: &Arc<Self>, reply: Reply) {
        if self.changeable().is_err() {
            return reply.ok();
        }
        let server = self.clone();
        self.helper.run(move || reply.done(server.volume.sync_all()));
    }

    /// Who changes content by another call than WRITE. Under writeback the kernel moves the times before it asks, and sends them later
    /// where they moved: within a tick of its clock they do not.
    fn changes_by(&self, uid: u32) -> Writer {
        Writer { uid, keeps_times: self.agreed.writeback() }
    }

    pub(super) fn fallocate(&self, head: &InHeader, offset: u64, bytes: u64, mode: u32) -> Result<()> {
        self.changeable()?;
        let mode = allocate_mode(mode as i32)?;
        if bytes == 0 {
            return Err(Errno(libc::EINVAL));
        }
        end_of(offset, bytes)?;
        if head.uid != 0 {
            self.shed_privileges(&caller(head), head.nodeid)?;
        }
        Ok(self.volume.allocate(self.changes_by(head.uid), Ino(head.nodeid), mode, offset, bytes)?)
    }

    /// The kernel asks without sending what it keeps: it would be told of holes where data waits, and a copying program would leave
    /// that out. So what would be told as a hole is brought in, and then looked at again. The rest stays in the page cache. Where too
    /// many wait for that, or the file is left alone (`notices.rs`), no hole is told: nor is it refused, since a program may have copied a part by then.
    pub(super) fn lseek(self: &Arc<Self>, ino: u64, offset: u64, whence: u32, reply: Reply) {
        let what = match whence as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno(libc::EINVAL)),
        };
        let answer = |found: Result<u64>, reply: Reply| reply.result(found.map(|offset| LseekOut { offset }));
        let found = self.seek(ino, offset, what);
        let Some((from, to)) = hole_told(offset, what, &found).filter(|_| self.may_wait(ino)) else {
            return answer(found, reply);
        };
        let server = self.clone();
        self.after_pages(Waiter::Seek, move |waits| {
            // Nobody who was shut out is to keep that from becoming known.
            if !waits || !server.drop_pages_of(ino, true, from, to) {
                return answer(server.seek_without_holes(ino, offset, what), reply);
            }
            answer(server.seek(ino, offset, what), reply);
        });
    }

    /// As if all of a file were content.
    fn seek_without_holes(&self, ino: u64, offset: u64, what: Seek) -> Result<u64> {
        all_content(self.attr_of(ino)?.size, self.agreed.writeback(), offset, what)
    }

    fn seek(&self, ino: u64, offset: u64, what: Seek) -> Result<u64> {
        let place = self.place(ino)?;
        Ok(self.volume.seek(place.at, place.ino, offset, what)?)
    }

    /// Whether the kernel may have content of a file that it has not sent.
    pub(super) fn may_wait(&self, ino: u64) -> bool {
        self.open_files.may_wait(ino, self.agreed.writeback())
    }

    pub(super) fn copy_file_range(
        self: &Arc<Self>,
        head: &InHeader,
        args: &CopyFileRangeIn,
        wide: bool,
        reply: Reply,
        syncs: &Syncs<'_>,
    ) {
        let answer = move |copied: Result<u64>| match copied {
            Err(e) => reply.error(e),
            Ok(bytes) if wide => reply.value(&CopyFileRangeOut { bytes }).whatever(),
            // `copy` took no more than this form can say.
            Ok(bytes) => reply.value(&WriteOut { size: bytes as u32, padding: 0 }).whatever(),
        };
        let (server, to) = (self.clone(), args.nodeid_out);
        let (from, asked) = (args.offset_out, args.len);
        self.answer_changed(to, args.fh_out, self.copy(head, args, wide), syncs, move |copied| {
            // One that failed behind what it tells of may have changed some of the rest.
            let told = *copied.as_ref().unwrap_or(&0);
            let rest = (from.saturating_add(told), from.checked_add(asked));
            server.answer_short(to, told < asked, Some(rest), || answer(copied));
        });
    }

    /// Answers a change of which a part may be done where it failed.
    pub(super) fn answer_part<T>(
        self: &Arc<Self>,
        ino: u64,
        pages: Option<(u64, Option<u64>)>,
        changed: Result<T>,
        answer: impl FnOnce(Result<T>),
    ) {
        self.answer_short(ino, changed.is_err(), pages, || answer(changed));
    }

    /// Answers a change. One that is `short` may have done more than the kernel takes it for: so it is told that what it knows of the
    /// attributes is out of date, and has to drop these pages, up to the end that is given, once it has the answer.
    fn answer_short(self: &Arc<Self>, ino: u64, short: bool, pages: Option<(u64, Option<u64>)>, answer: impl FnOnce()) {
        let is_short = short && self.changeable().is_ok();
        if is_short {
            self.drop_attributes(ino);
        }
        answer();
        if let Some((from, to)) = pages.filter(|_| is_short) {
            let server = self.clone();
            self.pages.run(move || _ = server.drop_pages_of(ino, false, from, to));
        }
    }

    /// Answers a change that came through a handle: of one that syncs when it is durable.
    pub(super) fn answer_changed<T: Send + 'static>(
        &self,
        ino: u64,
        fh: u64,
        changed: Result<T>,
        syncs: &Syncs<'_>,
        answer: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        match changed {
            Ok(value) if fh & HANDLE_SYNCS != 0 => {
                let done = move |result: nenrin_core::Result<()>| answer(result.map(|()| value).map_err(Errno::from));
                self.sync(Ino(ino), Box::new(done), syncs);
            }
            changed => answer(changed),
        }
    }

    fn copy(&self, head: &InHeader, args: &CopyFileRangeIn, wide: bool) -> Result<u64> {
        self.changeable()?;
        if args.flags != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let most = if wide { u64::MAX } else { u64::from(u32::MAX) & !0xfff };
        let bytes = args.len.min(most);
        end_of(args.offset_in, bytes)?;
        end_of(args.offset_out, bytes)?;
        if head.uid != 0 {
            self.shed_privileges(&caller(head), args.nodeid_out)?;
        }
        let (from, to) = (self.place(head.nodeid)?, Ino(args.nodeid_out));
        Ok(self.volume.copy_range(
            from.at,
            from.ino,
            args.offset_in,
            to,
            args.offset_out,
            bytes,
            self.changes_by(head.uid),
        )?)
    }
}

/// What an answer to LSEEK says is a hole: from there up to the end that is known, if one is. What is said to be behind the end of the
/// file may have become longer.
fn hole_told(offset: u64, what: Seek, found: &Result<u64>) -> Option<(u64, Option<u64>)> {
    match (found, what) {
        (Ok(found), Seek::Data) => (*found > offset).then_some((offset, Some(*found))),
        (Ok(found), Seek::Hole) => Some((*found, None)),
        (Err(Errno(libc::ENXIO)), _) => Some((offset, None)),
        (Err(_), _) => None,
    }
}

/// Where the next content or hole is if all is content up to this end. Under writeback the kernel alone knows where the file ends, and has
/// no less: so what is asked for from the end on is content, too, of which nobody knows the end; who copies then asks the kernel.
fn all_content(end: u64, writeback: bool, offset: u64, what: Seek) -> Result<u64> {
    match what {
        Seek::Data if offset < end || writeback => Ok(offset),
        Seek::Hole if offset < end => Ok(end),
        Seek::Data | Seek::Hole => Err(Errno(libc::ENXIO)),
    }
}

fn allocate_mode(mode: i32) -> Result<AllocateMode> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match mode {
        0 => Ok(AllocateMode::Reserve),
        KEEP => Ok(AllocateMode::ReserveKeepSize),
        PUNCH => Ok(AllocateMode::Punch),
        ZERO => Ok(AllocateMode::Zero),
        ZERO_KEEP => Ok(AllocateMode::ZeroKeepSize),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opening_asks_for() {
        assert_eq!(wanted(libc::O_RDONLY), perm::READ);
        assert_eq!(wanted(libc::O_WRONLY | libc::O_APPEND), perm::WRITE);
        assert_eq!(wanted(libc::O_RDWR), perm::READ | perm::WRITE);
        assert_eq!(wanted(libc::O_RDONLY | libc::O_TRUNC), perm::READ | perm::WRITE);
        assert_eq!(wanted(0x20), perm::EXECUTE);
    }

    #[test]
    fn ranges_end_where_offsets_do() {
        assert_eq!(end_of(i64::MAX as u64 - 1, 1), Ok(i64::MAX as u64));
        assert!(end_of(i64::MAX as u64, 1).is_err());
        assert!(end_of(u64::MAX, 1).is_err());
    }

    #[test]
    fn holes_that_an_answer_tells_of() {
        let nothing = Err(Errno(libc::ENXIO));
        assert_eq!(hole_told(5, Seek::Data, &Ok(5)), None);
        assert_eq!(hole_told(5, Seek::Data, &Ok(9)), Some((5, Some(9))));
        assert_eq!(hole_told(5, Seek::Data, &nothing), Some((5, None)));
        assert_eq!(hole_told(5, Seek::Hole, &Ok(9)), Some((9, None)));
        assert_eq!(hole_told(5, Seek::Hole, &nothing), Some((5, None)));
        assert_eq!(hole_told(5, Seek::Hole, &Err(Errno(libc::EIO))), None);
    }

    /// Nothing that is asked for in turn, from where the hole was told, is left out.
    #[test]
    fn where_all_is_content_nothing_is_left_out() {
        let nothing = Err(Errno(libc::ENXIO));
        for writeback in [false, true] {
            assert_eq!(all_content(9, writeback, 5, Seek::Data), Ok(5));
            assert_eq!(all_content(9, writeback, 5, Seek::Hole), Ok(9));
            assert_eq!(all_content(9, writeback, 9, Seek::Hole), nothing);
        }
        assert_eq!(all_content(9, false, 9, Seek::Data), nothing);
        assert_eq!(all_content(9, true, 9, Seek::Data), Ok(9), "the kernel may have more");
    }

    #[test]
    fn only_known_ways_to_allocate() {
        assert_eq!(allocate_mode(3), Ok(AllocateMode::Punch));
        assert_eq!(allocate_mode(0x10), Ok(AllocateMode::Zero));
        assert!(allocate_mode(libc::FALLOC_FL_PUNCH_HOLE).is_err());
        assert!(allocate_mode(libc::FALLOC_FL_COLLAPSE_RANGE).is_err());
    }
}
