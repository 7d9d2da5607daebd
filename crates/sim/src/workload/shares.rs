//! What a server for several people does: access control lists, listings in pieces while others change the directory, and large
//! writes whose bytes are given away.

use super::{DIRECTORY, Later, Profile, REGULAR, Workload};
use crate::model::Model;
use crate::ops::Op;
use nenrin_core::{FileKind, SetAttr, XattrMode};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
/// Pieces of a listing at a time, and pages of a large write at least.
const PIECES: u64 = 3;
const LARGE_PAGES: u64 = 32;

/// An access control list as the kernel stores it, that lets this user do as much.
fn acl(mode: u32, user: u32) -> Vec<u8> {
    let nobody = u32::MAX;
    let bits = |shift: u32| (mode >> shift & 7) as u16;
    let entries =
        [(1, bits(6), nobody), (2, 6, user), (4, 5, nobody), (0x10, bits(3), nobody), (0x20, bits(0), nobody)];
    let entry =
        |(tag, perm, id): (u16, u16, u32)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    2u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(entry)).collect()
}

impl Workload {
    pub(super) fn share(&mut self, model: &Model) -> Option<Op> {
        let rng = self.shares.as_mut().filter(|_| self.profile != Profile::AppendFsync)?;
        if rng.below(12) > 0 {
            return None;
        }
        let (draw, more) = (rng.below(8), rng.below(1 << 20));
        match draw {
            0..=1 => self.create_in_shared(model, more),
            2..=3 => self.grant_and_chmod(model, more),
            4..=6 => {
                let dir = Self::dirs(model).get(more as usize % Self::dirs(model).len().max(1)).copied()?;
                self.later.extend((0..more % PIECES).map(|_| Later::Do(Op::ListOn { dir })));
                Some(Op::ListOn { dir })
            }
            _ => {
                let files = Self::files(model);
                let ino = files.get(more as usize % files.len().max(1)).copied()?;
                let room = self.live_bytes_max > Self::live_bytes(model) + (2 * LARGE_PAGES * 4096);
                let bytes = (LARGE_PAGES + more % LARGE_PAGES) as usize * 4096;
                let id = self.next_id();
                room.then_some(Op::Write { ino, offset: more % 16 * 4096, bytes, id })
            }
        }
    }

    /// In a directory with a default list: a file with an access list, or a directory with both.
    fn create_in_shared(&mut self, model: &Model, more: u64) -> Option<Op> {
        let dirs = Self::dirs(model);
        let (parent, name) = (*dirs.get(more as usize % dirs.len().max(1))?, self.name());
        let (mode, user) = ([0o640, 0o664, 0o600][more as usize % 3], 1000 + (more >> 8 & 3) as u32);
        let mut xattrs = vec![(ACCESS.to_vec(), acl(mode, user))];
        let is_dir = more >> 12 & 3 == 0 && dirs.len() < super::DIRS_MAX;
        if is_dir {
            xattrs.push((DEFAULT.to_vec(), acl(0o750, user)));
        } else if model.tree.inodes.len() >= self.profile.files_max() + super::DIRS_MAX {
            return None;
        }
        Some(Op::CreateWith { parent, name, mode: mode | if is_dir { DIRECTORY } else { REGULAR }, xattrs })
    }

    /// As setfacl(1) and chmod(1) do: the list and then the mode, in either order; or the list goes.
    fn grant_and_chmod(&mut self, model: &Model, more: u64) -> Option<Op> {
        let fits = |kind| matches!(kind, FileKind::Regular | FileKind::Directory);
        let named = model.tree.inodes.iter().filter(|(_, i)| i.attr.nlink > 0 && fits(i.attr.kind()));
        let all: Vec<(u64, bool)> = named.map(|(ino, i)| (*ino, i.attr.kind() == FileKind::Directory)).collect();
        let (ino, is_dir) = *all.get(more as usize % all.len().max(1))?;
        let name = if is_dir && more >> 8 & 1 == 0 { DEFAULT } else { ACCESS }.to_vec();
        if more >> 10 & 3 == 0 {
            return Some(Op::RemoveXattr { ino, name });
        }
        let mode = [0o640, 0o664, 0o600, 0o666][(more >> 12 & 3) as usize];
        let set = Op::SetXattr { ino, name, value: acl(mode, 1000 + (more >> 14 & 3) as u32), mode: XattrMode::Any };
        let chmod = Op::SetAttr { ino, set: SetAttr { mode: Some(mode), ..SetAttr::default() } };
        let (first, then) = if more >> 16 & 1 == 0 { (set, chmod) } else { (chmod, set) };
        self.later.push_back(Later::Do(then));
        Some(first)
    }
}
