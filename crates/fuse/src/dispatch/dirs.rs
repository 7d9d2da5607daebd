//! Listings: READDIR and READDIRPLUS. OPENDIR is answered with ENOSYS once, and
//! from then on a listing costs no request to begin or to end.

use super::{Result, Server};
use crate::init::TRANSFER_BYTES_MAX;
use crate::past::Node;
use crate::perm;
use crate::proto::abi::{EntryOut, InHeader};
use crate::proto::reply::Listing;
use crate::transport::Reply;
use nenrin_core::DirEntry;

/// "." and "..", of which the kernel has its own idea.
fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl Server {
    pub(super) fn readdir(&self, head: &InHeader, cookie: u64, bytes: u32) -> Result<Vec<u8>> {
        self.check(head, head.nodeid, perm::READ)?;
        let mut listing = Listing::new((bytes as usize).min(TRANSFER_BYTES_MAX));
        self.keeps_pages(head.nodeid);
        self.entries(head.nodeid, cookie, &mut |e: DirEntry| listing.push(e.ino.0, e.cookie, e.kind, &e.name))?;
        self.listed(head.nodeid, cookie);
        Ok(listing.into_bytes())
    }

    pub(super) fn readdirplus(&self, head: &InHeader, cookie: u64, bytes: u32, reply: Reply) {
        let (listing, told) = match self.list_plus(head, cookie, bytes) {
            Ok(listed) => listed,
            Err(e) => return reply.error(e),
        };
        let asked = reply.asked();
        if !reply.bytes(&listing.into_bytes()).0 {
            told.iter().for_each(|ino| self.forget(*ino, 1));
        }
        told.into_iter().for_each(|ino| self.told_attributes(ino, asked));
    }

    /// Once for a listing, however many requests it takes.
    fn listed(&self, ino: u64, cookie: u64) {
        if cookie == 0 {
            self.accessed(ino);
        }
    }

    /// A listing with attributes, and the inodes that it tells the kernel of.
    fn list_plus(&self, head: &InHeader, cookie: u64, bytes: u32) -> Result<(Listing, Vec<u64>)> {
        self.check(head, head.nodeid, perm::READ)?;
        // Attributes of an entry are a lookup of it.
        let may_look_up = self.check(head, head.nodeid, perm::EXECUTE).is_ok();
        let bytes = (bytes as usize).min(TRANSFER_BYTES_MAX);
        // The library is not called from within its own call.
        let mut entries = Vec::new();
        let mut left = bytes;
        self.keeps_pages(head.nodeid);
        self.entries(head.nodeid, cookie, &mut |e: DirEntry| {
            match left.checked_sub(Listing::bytes_for(&e.name, true)) {
                Some(rest) => left = rest,
                None => return false,
            }
            entries.push(e);
            true
        })?;
        self.listed(head.nodeid, cookie);
        let mut listing = Listing::new(bytes);
        let mut told = Vec::with_capacity(entries.len());
        for e in entries {
            // Without an inode the kernel takes the entry for a name only, which
            // is also right for one that went away meanwhile.
            let mut entry = EntryOut::default();
            if may_look_up && !is_dots(&e.name) && !matches!(Node::of(head.nodeid), Node::Made(_)) {
                if let Ok(attr) = self.attr_of(e.ino.0) {
                    entry = self.entry(&attr);
                }
            }
            if !listing.push_plus(entry, e.ino.0, e.cookie, e.kind, &e.name) {
                break;
            }
            if entry.nodeid != 0 {
                self.remember(entry.nodeid);
                told.push(entry.nodeid);
            }
        }
        Ok((listing, told))
    }
}
