//! From requests to calls of the library, and back. One file for each area.
//!
//! Invariants
//! 1. A serving thread waits for nothing but the library: what may take the
//!    kernel to finish (dropping pages) or long by itself (whole-volume syncs)
//!    goes to a helper thread, and fsync answers when its commit is done. What
//!    may wait for room takes a seat, of which there are fewer than threads, or
//!    goes to a helper, as what FORGET lets go does.
//! 2. Every reply that gives the kernel a reference to an inode was counted
//!    before it was sent, and is counted back if the kernel did not take it.
//! 3. A session over a past state, or a read-only one, reaches no call of the
//!    library that changes anything.
//! 4. The kernel serializes changes of one inode (it holds the inode's lock over
//!    each request that makes one), which is what makes reading a mode or an
//!    ACL here and writing it back sound. O_TMPFILE alone comes without the lock
//!    of its directory: it changes nothing there, and nothing that it sees of
//!    the directory is kept.

mod attrs;
mod create;
mod crowd;
mod dirs;
mod files;
mod names;
mod notices;
mod past;
mod seats;
#[cfg(test)]
mod testing;
mod xattrs;

pub(crate) use past::PAST_VALID;

use crate::acl::Acl;
use crate::errno::Errno;
use crate::helper::{Apart, Helper};
use crate::init::Agreed;
use crate::nodes::{Nodes, OpenFiles};
use crate::notify::Notifier;
use crate::past::{Node, States, Views};
use crate::perm::{self, Caller};
use crate::proto::abi::{EntryOut, InHeader, WriteIn};
use crate::proto::flags::{Opcode, ROOT_NODE, WRITE_CACHE, WRITE_KILL_SUIDGID};
use crate::proto::reply;
use crate::proto::request::{self, Op, Request};
use crate::requests::Requests;
use crate::ring::Leaders;
use crate::transport::{Reply, RequestBuffer, Sink};
use crate::volume::Volume;
use create::PlainDirectories;
use files::Written;
use nenrin_core::{At, Attr, Error, Fs, XattrMode};
use nenrin_format::{Ino, NAME_BYTES_MAX, Time};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use zerocopy::FromBytes;

/// Inode numbers are node ids, and the root's is given by the protocol.
const _: () = assert!(Ino::ROOT.0 == ROOT_NODE);

type Result<T> = std::result::Result<T, Errno>;

/// What the calling thread may do for a sync.
pub(crate) enum Syncs<'a> {
    /// Lead commits, for as long as others ask.
    Led,
    /// Nothing: others count on it, so another does.
    Apart,
    /// Lead one, and have these lead what is left.
    Once(&'a Arc<Leaders>),
    /// Wait, but not lead.
    Joined(&'a Arc<Leaders>),
    /// Neither.
    AtOnce(&'a Arc<Leaders>),
}

/// Whether reading moves access times.
pub(crate) struct AccessTimes {
    /// They are kept.
    kept: bool,
    /// The mount was made read-only since.
    rest: AtomicBool,
}

impl AccessTimes {
    pub const fn new(kept: bool) -> Self {
        Self { kept, rest: AtomicBool::new(false) }
    }

    fn move_now(&self) -> bool {
        self.kept && !self.rest.load(Ordering::Acquire)
    }
}

/// How a session answers.
pub(crate) struct Behaviour {
    /// Which state of the volume it shows.
    pub at: At,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Reading moves access times, where they are kept.
    pub access_times: AccessTimes,
    /// Permissions are checked here and not by the kernel.
    pub own_check: bool,
    /// How long the kernel may believe what it was told.
    pub valid: Duration,
    /// Memory for requests that wait for a thread.
    pub left_bytes_max: usize,
    /// Knows the states that are shown inside a live mount, if they are.
    pub past: Option<Arc<dyn States>>,
}

/// The serving side of a session, shared by its threads.
pub(crate) struct Server {
    volume: Arc<dyn Volume>,
    behaviour: Behaviour,
    agreed: Agreed,
    notifier: Notifier,
    helper: Helper,
    /// For names that first need pages of their files: they wait for nobody's syncs and questions, since the kernel locks directories
    /// meanwhile.
    names: Helper,
    /// For what else first needs pages, or has some dropped: syncs do not wait for those.
    pages: Helper,
    /// Requests that wait for pages.
    bringing: [AtomicUsize; names::Waiter::KINDS],
    /// Something that the kernel kept was lost for want of room, and there is little still.
    crowded: AtomicBool,
    requests: Requests,
    nodes: Nodes,
    /// What it knows of states of the past, and of which of that it may keep pages (the held ones).
    past_nodes: Nodes,
    views: Views,
    open_files: OpenFiles,
    plain_directories: PlainDirectories,
    /// Raised whenever some file may have got set-id bits.
    privilege_epoch: AtomicU64,
    /// Serving threads that are busy with requests which may wait for long.
    changing: AtomicUsize,
    /// Takes what they are too many for.
    behind: Helper,
    /// Requests with data that it has taken.
    left_with_data: AtomicUsize,
    /// Leads commits for what it was left.
    apart: Apart,
    /// Lets inodes go that the kernel knows no more: that may wait for long, and there are as many as there were removals.
    letting_go: Helper,
}

fn caller(head: &InHeader) -> Caller {
    Caller { uid: head.uid, gid: head.gid, pid: head.pid }
}

/// What tells an inode from others that had its number.
fn birth(btime: Time) -> u32 {
    let nanos = btime.0 as u64;
    (nanos >> 32) as u32 ^ nanos as u32
}

fn checked_name(name: &[u8]) -> Result<&[u8]> {
    if name.len() > NAME_BYTES_MAX { Err(Errno(libc::ENAMETOOLONG)) } else { Ok(name) }
}

impl Server {
    pub fn new(volume: Arc<dyn Volume>, behaviour: Behaviour, agreed: Agreed, notifier: Notifier) -> Self {
        let past_nodes = Nodes::new();
        if behaviour.at != At::Live {
            // The root it knows without asking.
            past_nodes.remember(ROOT_NODE);
        }
        Self {
            volume,
            behaviour,
            agreed,
            notifier,
            helper: Helper::new(),
            names: Helper::new(),
            pages: Helper::new(),
            bringing: [const { AtomicUsize::new(0) }; names::Waiter::KINDS],
            crowded: AtomicBool::new(false),
            requests: Requests::new(),
            nodes: Nodes::new(),
            past_nodes,
            views: Views::new(RandomState::new().hash_one(ROOT_NODE) as u32),
            open_files: OpenFiles::new(),
            plain_directories: PlainDirectories::new(),
            privilege_epoch: AtomicU64::new(0),
            changing: AtomicUsize::new(0),
            behind: Helper::new(),
            left_with_data: AtomicUsize::new(0),
            apart: Apart::default(),
            letting_go: Helper::new(),
        }
    }

    /// Starts the threads behind those that serve: what is left to one that cannot be started later, when there can be no more, is
    /// not done, or by who is needed elsewhere.
    ///
    /// # Errors
    /// There can be no more by now.
    pub fn start_helpers(&self) -> io::Result<()> {
        [&self.helper, &self.names, &self.pages, &self.behind, &self.letting_go].into_iter().try_for_each(Helper::start)
    }

    /// The mount was made read-only, or writable again.
    pub fn became_read_only(&self, is_so: bool) {
        self.behaviour.access_times.rest.store(is_so, Ordering::Release);
    }

    /// What came so far.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Answers one request, now or later.
    pub fn handle(self: &Arc<Self>, received: &mut RequestBuffer, sink: &Arc<dyn Sink>, syncs: &Syncs<'_>) {
        if let Some(reply) = self.begin(received, sink) {
            self.answer(received, reply, syncs);
        }
    }

    /// Counts a request. Its answer, which is an error where nobody gives another.
    fn begin(&self, received: &RequestBuffer, sink: &Arc<dyn Sink>) -> Option<Reply> {
        let head = request::header(received.front())?;
        self.requests.count(head.opcode);
        Some(Reply::new(sink.clone(), head.unique).asked_at(self.open_files.asked()))
    }

    fn answer(self: &Arc<Self>, received: &mut RequestBuffer, reply: Reply, syncs: &Syncs<'_>) {
        match request::decode_apart(received.front(), received.data(), self.agreed.setxattr_ext()) {
            Ok(Request { head, op: Op::Write { args, .. } }) if Fs::takes_buf(args.offset, args.size as usize) => {
                match received.take_data(args.size as usize) {
                    Some(data) => self.write(&head, &args, Written::Given(data), reply),
                    None => reply.error(Errno(libc::EINVAL)),
                }
            }
            Ok(request) => self.dispatch(request, reply, syncs),
            Err(request::Malformed) => reply.error(Errno(libc::EINVAL)),
        }
    }

    /// Whether a request, by its header and what is special to its kind, can be answered without waiting.
    pub fn takes_at_once(&self, head: &InHeader, args: &[u8]) -> bool {
        if self.changeable().is_err() || crate::past::is_past(head.nodeid) {
            return false;
        }
        match Opcode::from_number(head.opcode) {
            Some(Opcode::Fsync) => self.volume.syncs_at_once(Ino(head.nodeid)),
            Some(Opcode::Write) => WriteIn::read_from_prefix(args).is_ok_and(|(args, _)| {
                let plain = args.write_flags & (WRITE_KILL_SUIDGID | WRITE_CACHE) == 0;
                plain && self.volume.takes_at_once(Ino(head.nodeid), args.offset, args.size as usize)
            }),
            _ => false,
        }
    }

    /// Leads a commit, as was announced.
    pub fn lead(&self) {
        self.volume.lead_announced();
    }

    fn dispatch(self: &Arc<Self>, Request { head, op }: Request<'_>, reply: Reply, syncs: &Syncs<'_>) {
        let node = head.nodeid;
        if let Some(why) = self.refused(&head, &op) {
            return reply.error(why);
        }
        match op {
            Op::Lookup { name } => match self.shelf(node) {
                Some(shelf) if name != b"." => self.answer_state(reply, shelf, name),
                _ => self.answer_lookup(reply, self.lookup(&head, name)),
            },
            Op::Forget { nlookup } => {
                self.forget(node, nlookup);
                reply.none();
            }
            Op::BatchForget(forgets) => {
                forgets.for_each(|one| self.forget(one.nodeid, one.nlookup));
                reply.none();
            }
            Op::Getattr { fh } => self.answer_getattr(node, fh, reply),
            Op::Statx => {
                let asked = reply.asked();
                reply.result(self.statx(node));
                self.told_attributes(node, asked);
            }
            Op::Setattr(change) => {
                let (server, cut) = (self.clone(), change.set.size.map(|size| (size, None)));
                let set = change.set;
                self.with_pages_for(node, &set, move || {
                    let asked = reply.asked();
                    server.open_files.begin_change(node);
                    server.answer_part(node, cut, server.setattr(&head, &change), |result| reply.result(result));
                    // What the kernel sends of the times alone it asks nothing by.
                    if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some() {
                        server.open_files.answered(node, asked);
                    }
                    server.have_writers_ask(node);
                    server.open_files.end_change(node);
                });
            }
            Op::Access { mask } => reply.done(self.access(&head, mask)),
            Op::Readlink => reply.result_bytes(self.readlink(node)),
            Op::Symlink { name, target } => {
                self.answer_entry(reply, self.symlink(&head, name, target));
            }
            Op::Mknod { name, mode, umask, rdev } => {
                self.answer_entry(reply, self.mknod(&head, name, mode, umask, rdev));
            }
            Op::Mkdir { name, mode, umask } => {
                let mode = libc::S_IFDIR | mode & 0o7777;
                self.answer_entry(reply, self.mknod(&head, name, mode, umask, 0));
            }
            Op::Link { ino, name } => self.link(&head, ino, name, reply),
            Op::Unlink { name } => reply.done(self.unlink(&head, name)),
            Op::Rmdir { name } => reply.done(self.rmdir(&head, name)),
            Op::Rename { old, to, new, flags } => self.rename(&head, old, to, new, flags, reply),
            Op::Open { flags, open_flags } => self.open(&head, flags, open_flags, reply),
            Op::Create { name, new } => self.create(&head, name, &new, reply),
            Op::Tmpfile { new } => self.tmpfile(&head, &new, reply),
            Op::Read { offset, bytes, flags } => reply.result_content(self.read(node, offset, bytes, flags)),
            Op::Write { args, data } => self.write(&head, &args, Written::Lent(data), reply),
            Op::Release { fh } => reply.done(self.release(node, fh)),
            Op::Fsync | Op::Fsyncdir => self.fsync(node, reply, syncs),
            Op::Syncfs => self.syncfs(reply),
            Op::Fallocate { fh, offset, bytes, mode } => {
                let allocated = self.fallocate(&head, offset, bytes, mode);
                let (server, range) = (self.clone(), Some((offset, offset.checked_add(bytes))));
                self.answer_changed(node, fh, allocated, syncs, move |result| {
                    server.answer_part(node, range, result, |result| reply.done(result));
                });
            }
            Op::Lseek { offset, whence } => self.lseek(node, offset, whence, reply),
            Op::CopyFileRange { args, wide } => self.copy_file_range(&head, &args, wide, reply, syncs),
            Op::Readdir { cookie, bytes } => {
                reply.result_bytes(self.readdir(&head, cookie, bytes));
            }
            Op::Readdirplus { cookie, bytes } => self.readdirplus(&head, cookie, bytes, reply),
            Op::Releasedir | Op::Destroy => reply.ok(),
            Op::Statfs => reply.value(&reply::statfs(&self.volume.usage())).whatever(),
            Op::Setxattr { name, value, flags, ext_flags } => {
                self.answer_setxattr(head, name, value, (flags, ext_flags), reply);
            }
            Op::Getxattr { name, bytes } => self.getxattr(&head, name, bytes, reply),
            Op::Listxattr { bytes } => self.listxattr(&head, bytes, reply),
            Op::Removexattr { name } => {
                let (server, name) = (self.clone(), name.to_vec());
                self.with_pages(&self.granted_by_xattr(node, &name), move || {
                    reply.done(server.removexattr(&head, &name))
                });
            }
            Op::Ioctl => reply.error(Errno(libc::ENOTTY)),
            // ENOSYS tells the kernel to do without from now on: without asking
            // whether a directory may be listed; without FLUSH, since it writes
            // its pages out before RELEASE and that does the rest; and without
            // INTERRUPT, since nothing here waits for long.
            Op::Flush | Op::Opendir | Op::Interrupt | Op::Other => reply.error(Errno(libc::ENOSYS)),
            Op::Init(_) => reply.error(Errno(libc::EIO)),
        }
    }

    /// Ends what is still under way and gives back what the kernel still held,
    /// when it is gone.
    pub fn let_go(&self) {
        // It may still leave something to the others.
        self.behind.finish();
        self.apart.finish();
        self.names.finish();
        self.pages.finish();
        self.helper.finish();
        // The others may have given it something.
        self.letting_go.finish();
        self.nodes.drain().into_iter().for_each(|ino| self.volume.release(Ino(ino)));
        self.views.drain(&*self.volume);
    }

    /// Counts a reply that tells the kernel of an inode. A past state keeps its
    /// inodes by itself.
    fn remember(&self, id: u64) {
        match Node::of(id) {
            Node::Own(_) if self.behaviour.at == At::Live => self.nodes.remember(id),
            Node::Own(_) => self.past_nodes.remember(id),
            Node::Past(view, _) => {
                self.past_nodes.remember(id);
                self.views.remember(view);
            }
            _ => {}
        }
    }

    /// Counts back. FORGET comes unasked and without end, so nothing is waited for: not for room, by which the space of what was removed
    /// is let go.
    fn forget(&self, id: u64, lookups: u64) {
        match Node::of(id) {
            Node::Own(ino) if self.behaviour.at == At::Live => {
                let was_held = self.nodes.forget(id, lookups);
                if was_held {
                    let volume = self.volume.clone();
                    // Nobody asks for it again.
                    self.letting_go.run_anyhow(move || volume.release(ino));
                }
            }
            Node::Own(_) => _ = self.past_nodes.forget(id, lookups),
            Node::Past(view, _) => {
                let _ = self.past_nodes.forget(id, lookups);
                self.views.forget(&*self.volume, view, lookups);
            }
            _ => {}
        }
    }

    /// Has the library keep an inode that is about to lose a name, for as long
    /// as the kernel may use it without one.
    fn hold(&self, ino: Ino) {
        if self.nodes.hold(ino.0) {
            self.volume.retain(ino);
        }
    }

    /// Answers with an inode, under invariant 2.
    fn answer_entry(&self, reply: Reply, made: Result<Attr>) {
        self.answer_entry_with(reply, made.map(|attr| (self.entry(&attr), attr)));
    }

    /// The same with the reply, in which the name may hold for another time.
    fn answer_entry_with(&self, reply: Reply, made: Result<(EntryOut, Attr)>) {
        match made {
            Ok((entry, attr)) => {
                self.remember(attr.ino.0);
                let asked = reply.asked();
                if !reply.value(&entry).0 {
                    self.forget(attr.ino.0, 1);
                }
                self.told_attributes(attr.ino.0, asked);
            }
            Err(e) => reply.error(e),
        }
    }

    /// The same for a lookup, where an absent name is an answer.
    fn answer_lookup(&self, reply: Reply, found: Result<Attr>) {
        match found {
            Err(Errno(libc::ENOENT)) => {
                reply.value(&reply::no_entry(self.behaviour.valid)).whatever();
            }
            found => self.answer_entry(reply, found),
        }
    }

    fn entry(&self, attr: &Attr) -> EntryOut {
        let generation = match Node::of(attr.ino.0) {
            Node::Past(view, _) => self.views.generation(view),
            // The kernel knows the root without asking; ours are always the same.
            Node::Own(Ino::ROOT) | Node::Made(_) | Node::Nothing => 0,
            // Numbers are not reused, but for those of what a crash took before it was committed: who has a file handle of that must not
            // find what got the number since.
            Node::Own(_) => birth(attr.btime),
        };
        reply::entry(attr, generation, self.valid(attr.ino.0))
    }

    /// Attributes of a node, with its id as inode number.
    fn attr_of(&self, id: u64) -> Result<Attr> {
        if let Node::Made(made) = Node::of(id) {
            return Ok(reply::directory_of_ours(Ino(made.id()), past::now()));
        }
        let place = self.place(id)?;
        self.seen(place, self.volume.getattr(place.at, place.ino)?)
    }

    /// What was read has been answered for; a volume that failed can still be
    /// read, and its access times stay as they are.
    fn accessed(&self, id: u64) {
        if let (true, Node::Own(ino)) = (self.behaviour.access_times.move_now(), Node::of(id)) {
            drop(self.volume.accessed(ino));
        }
    }

    /// Invariant 3.
    fn changeable(&self) -> Result<()> {
        if self.behaviour.read_only || self.behaviour.at != At::Live { Err(Errno(libc::EROFS)) } else { Ok(()) }
    }

    /// An access list, if the inode has one.
    fn acl_of(&self, at: At, ino: u64, name: &[u8]) -> Result<Option<Acl>> {
        match self.volume.getxattr(at, Ino(ino), name) {
            Ok(bytes) => Acl::parse(&bytes),
            Err(Error::NoAttribute | Error::NotSupported) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Keeps an access list, and in the same step the mode that it means.
    fn set_acl(&self, ino: u64, name: &[u8], acl: &Acl, mode: Option<u32>) -> Result<()> {
        Ok(self.volume.setxattr_with_mode(Ino(ino), name, &acl.to_bytes(), XattrMode::Any, mode)?)
    }

    /// Our own check that the caller has these permissions on an inode.
    fn check(&self, head: &InHeader, ino: u64, want: u32) -> Result<()> {
        if !self.behaviour.own_check {
            return Ok(());
        }
        self.check_attr(&caller(head), &self.attr_of(ino)?, want)
    }

    fn check_attr(&self, caller: &Caller, attr: &Attr, want: u32) -> Result<()> {
        let acl = if caller.owns(attr) { None } else { self.shown_acl(attr.ino.0)? };
        perm::may(caller, attr, acl.as_ref(), want)
    }
}
