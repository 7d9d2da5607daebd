//! What the kernel is told unasked, counted: it takes no notice of attributes that it asked for before, and goes by the ones it has.
//!
//! Invariants
//! 1. Every notice goes by here, and is counted before it is sent and when it was: attributes are taken for known to the kernel only
//!    where it asked for them after the last one, and was answered before the next.
//! 2. A file of which something else than SETATTR changes who may do what with it is left alone, from before the change on until the
//!    kernel knows, by what makes writers ask and by whoever looks for holes. (The answer to SETATTR the kernel takes in any case.)
//! 3. The change is answered when the kernel was told that it does not know: what it asked for before then says nothing, also where it
//!    is answered later.

use super::Server;
use crate::acl;
use crate::proto::abi::InHeader;
use crate::transport::Reply;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a change waits at most for a notice that is being sent, and how often it looks.
const NOTICE_TIME: Duration = Duration::from_secs(10);
const NOTICE_STEP: Duration = Duration::from_millis(1);

impl Server {
    /// What the kernel knows of the attributes of an inode is out of date.
    pub(super) fn drop_attributes(&self, ino: u64) {
        self.notice(ino, false, || _ = self.notifier.drop_attributes(ino));
    }

    /// The same of a file that is open for writing and not left alone.
    pub(super) fn have_it_ask(&self, ino: u64) {
        self.notice(ino, true, || _ = self.notifier.drop_attributes(ino));
    }

    /// Has the kernel send and drop what it keeps of a file. Only for a thread that serves no request (invariant 1 of the module above).
    pub(super) fn drop_pages(&self, ino: u64) {
        self.notice(ino, false, || _ = self.notifier.drop_pages(ino));
    }

    /// The same of a file that is open for writing and not left alone; whether it is.
    pub(super) fn drop_pages_unless_left(&self, ino: u64) -> bool {
        self.notice(ino, true, || _ = self.notifier.drop_pages(ino))
    }

    /// The same of these bytes; `None`: from there on.
    pub(super) fn drop_pages_of(&self, ino: u64, spares: bool, from: u64, to: Option<u64>) -> bool {
        self.notice(ino, spares, || _ = self.notifier.drop_pages_of(ino, from, to))
    }

    /// The kernel refuses only for inodes that it does not know.
    fn notice(&self, ino: u64, spares: bool, send: impl FnOnce()) -> bool {
        let is_sent = self.open_files.begin_notice(ino, spares, Instant::now());
        if is_sent {
            send();
            self.open_files.end_notice(ino, Instant::now());
        }
        is_sent
    }

    /// Who may do what with a file was changed by what is answered next (invariants 2 and 3).
    pub(super) fn permissions_changed(&self, ino: u64) {
        self.open_files.leave_alone(ino, Instant::now());
        self.drop_attributes(ino);
    }

    /// Waits until no notice is being sent that was begun before the file was left alone. Only for a thread that serves no request: what
    /// drops pages waits for those.
    pub(super) fn await_notices(&self, ino: u64) {
        let begun = Instant::now();
        while self.open_files.is_noticed_still(ino) && begun.elapsed() < NOTICE_TIME {
            thread::sleep(NOTICE_STEP);
        }
    }

    pub(super) fn answer_setxattr(
        self: &Arc<Self>,
        head: InHeader,
        name: &[u8],
        value: &[u8],
        (flags, ext_flags): (u32, u32),
        reply: Reply,
    ) {
        let (server, name, value) = (self.clone(), name.to_vec(), value.to_vec());
        let ino = head.nodeid;
        if name == acl::ACCESS {
            self.open_files.leave_alone(ino, Instant::now());
        }
        self.with_pages(&self.granted_by_xattr(ino, &name), move || {
            let set = server.setxattr(&head, &name, &value, flags, ext_flags);
            // Also where that failed: else the kernel has no reason to ask.
            if name == acl::ACCESS {
                server.permissions_changed(ino);
            }
            reply.done(set);
        });
    }
}
