//! Extended attributes and access control lists: SETXATTR, GETXATTR, LISTXATTR,
//! REMOVEXATTR.

use super::{Result, Server, caller};
use crate::acl::{self, Acl};
use crate::errno::Errno;
use crate::past;
use crate::perm;
use crate::proto::abi::{GetxattrOut, InHeader};
use crate::proto::flags::SETXATTR_ACL_KILL_SGID;
use crate::transport::Reply;
use nenrin_core::{Error, FileKind, SetAttr, XattrMode};
use nenrin_format::items::HISTORY_XATTR;
use nenrin_format::{Ino, NAME_BYTES_MAX};

const SET_GID: u32 = 0o2000;
/// The kernel's XATTR_LIST_MAX: names of more bytes it gives nobody, and says so (E2BIG).
const LIST_BYTES_MAX: usize = 65_536;
const SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

impl Server {
    fn is_acl(name: &[u8]) -> bool {
        name == acl::ACCESS || name == acl::DEFAULT
    }

    /// Attributes are in one of the known name spaces; ACLs only exist where the
    /// kernel obeys them.
    fn known_xattr(&self, name: &[u8]) -> Result<()> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno(libc::ERANGE));
        }
        let known = if Self::is_acl(name) {
            self.agreed.acl()
        } else {
            SPACES.iter().any(|space| name.starts_with(space) && name.len() > space.len())
        };
        if known { Ok(()) } else { Err(Errno(libc::EOPNOTSUPP)) }
    }

    fn check_xattr(&self, head: &InHeader, name: &[u8], change: bool) -> Result<()> {
        self.known_xattr(name)?;
        if change {
            self.changeable()?;
        }
        // Who may write to a directory is not to decide what is kept of what others make in it: that, as chattr(1), is the owner's.
        if change && name == HISTORY_XATTR && !caller(head).owns(&self.attr_of(head.nodeid)?) {
            return Err(Errno(libc::EPERM));
        }
        if self.behaviour.own_check {
            let attr = self.attr_of(head.nodeid)?;
            let want = perm::may_xattr(&caller(head), &attr, name, change)?;
            if want != 0 {
                self.check_attr(&caller(head), &attr, want)?;
            }
        }
        Ok(())
    }

    /// As [`Server::granted_by_attributes`], of an attribute that is set or removed: the kernel sends nothing before it asks for that.
    pub(super) fn granted_by_xattr(&self, ino: u64, name: &[u8]) -> Vec<u64> {
        let grants = name == acl::ACCESS || name.starts_with(b"security.");
        (grants && self.may_wait(ino)).then_some(ino).into_iter().collect()
    }

    pub(super) fn setxattr(
        &self,
        head: &InHeader,
        name: &[u8],
        value: &[u8],
        flags: u32,
        ext_flags: u32,
    ) -> Result<()> {
        self.check_xattr(head, name, true)?;
        let ino = head.nodeid;
        if name == acl::ACCESS {
            return self.set_access_acl(ino, value, ext_flags & SETXATTR_ACL_KILL_SGID != 0);
        }
        if name == acl::DEFAULT {
            return self.set_default_acl(ino, value);
        }
        let mode = match flags as i32 {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno(libc::EINVAL)),
        };
        Ok(self.volume.setxattr(Ino(ino), name, value, mode)?)
    }

    /// An access list decides the permission bits too. One that says no more
    /// than they can is kept as them alone.
    fn set_access_acl(&self, ino: u64, value: &[u8], kill_setgid: bool) -> Result<()> {
        let Some(acl) = Acl::parse(value)? else {
            return self.remove_acl(ino, acl::ACCESS);
        };
        let old = self.attr_of(ino)?.mode & 0o7777;
        let mut new = old & !0o777 | acl.mode();
        if kill_setgid {
            new &= !SET_GID;
        }
        let changed = if acl.is_mode_only() {
            // The mode first: a list that is still there keeps others out, while
            // a mode without its list would let the group in by the mask.
            if new != old {
                let set = SetAttr { mode: Some(new), ..Default::default() };
                self.volume.setattr(Ino(ino), &set)?;
            }
            self.remove_acl(ino, acl::ACCESS)
        } else {
            self.set_acl(ino, acl::ACCESS, &acl, Some(new))
        };
        if new & 0o6000 != 0 {
            self.privileges_may_have_grown();
        }
        changed
    }

    fn set_default_acl(&self, ino: u64, value: &[u8]) -> Result<()> {
        let acl = Acl::parse(value)?;
        if acl.is_some() && self.attr_of(ino)?.kind() != FileKind::Directory {
            return Err(Errno(libc::EACCES));
        }
        self.plain_directories.remove(ino);
        match acl {
            Some(acl) => self.set_acl(ino, acl::DEFAULT, &acl, None),
            None => self.remove_acl(ino, acl::DEFAULT),
        }
    }

    /// Takes a list away, if there is one.
    fn remove_acl(&self, ino: u64, name: &[u8]) -> Result<()> {
        match self.volume.removexattr(Ino(ino), name) {
            Ok(()) | Err(Error::NoAttribute) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    pub(super) fn removexattr(&self, head: &InHeader, name: &[u8]) -> Result<()> {
        self.check_xattr(head, name, true)?;
        if name == acl::DEFAULT {
            self.plain_directories.remove(head.nodeid);
        }
        if Self::is_acl(name) {
            // As other file systems do: the mode alone is a list, too.
            return self.remove_acl(head.nodeid, name);
        }
        Ok(self.volume.removexattr(Ino(head.nodeid), name)?)
    }

    pub(super) fn getxattr(&self, head: &InHeader, name: &[u8], bytes: u32, reply: Reply) {
        let is = |told: &str| name == told.as_bytes();
        let value = match () {
            () if is(past::STATE) => self.state_told(head.nodeid),
            () if is(past::MODE_THEN) => self.mode_then(head),
            () if is(past::ACL_THEN) => self.acl_then(head),
            () => self.check_xattr(head, name, false).and_then(|()| self.shown_xattr(head.nodeid, name)),
        };
        answer_sized(reply, value, bytes);
    }

    pub(super) fn listxattr(&self, head: &InHeader, bytes: u32, reply: Reply) {
        answer_sized(reply, self.xattr_names(head, bytes), bytes);
    }

    /// The names one after the other, each with a zero byte behind it, for a buffer of so many bytes, or without one; or so many of them
    /// that they are too many.
    fn xattr_names(&self, head: &InHeader, bytes: u32) -> Result<Vec<u8>> {
        let most = if bytes == 0 { LIST_BYTES_MAX } else { LIST_BYTES_MAX.min(bytes as usize) };
        let mut list = Vec::new();
        self.shown_xattrs(head.nodeid, &mut |name| {
            // What is trusted only shows itself to root; an ACL only where it counts.
            let hidden = name.starts_with(b"trusted.") && head.uid != 0 || Self::is_acl(name) && !self.agreed.acl();
            if !hidden {
                list.extend_from_slice(name);
                list.push(0);
            }
            list.len() <= most
        })?;
        Ok(list)
    }
}

/// Answers with a value, or with its size when that is what was asked for.
fn answer_sized(reply: Reply, value: Result<Vec<u8>>, bytes: u32) {
    match value {
        Err(e) => reply.error(e),
        Ok(value) if bytes == 0 => {
            // Values are bounded well below what this form can say, and lists end where they are too long.
            reply.value(&GetxattrOut { size: value.len() as u32, padding: 0 }).whatever();
        }
        Ok(value) if value.len() > bytes as usize => reply.error(Errno(libc::ERANGE)),
        Ok(value) => reply.bytes(&value).whatever(),
    }
}
