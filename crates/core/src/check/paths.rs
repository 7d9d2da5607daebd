//! Names for what was found: paths by way of back references, those of
//! history too.
//!
//! Invariants
//! 1. A path costs a bounded number of look-ups and bytes, whatever the volume holds.

use crate::state::State;
use nenrin_format::Ino;
use nenrin_format::items::Dirent;
use nenrin_format::key::{Key, Kind};
use std::collections::BTreeSet;

/// Bytes of a path that are told, as many as a program can give in one: of a longer one its end.
pub const PATH_BYTES_MAX: usize = 4096;
/// What stands for the beginning of such a one.
const BEGINNING: &[u8] = "…".as_bytes();

/// A path of the inode, if it bears or bore a name.
pub fn of_inode(state: &State, ino: Ino) -> Option<Vec<u8>> {
    path(state, ino, Vec::new())
}

/// The path of a name in a directory.
pub fn of_name(state: &State, parent: Ino, name: &[u8]) -> Option<Vec<u8>> {
    path(state, parent, vec![name.to_vec()])
}

/// The path to an inode, and these names below it. None where directories contain each other.
fn path(state: &State, ino: Ino, mut names: Vec<Vec<u8>>) -> Option<Vec<u8>> {
    let mut bytes: usize = names.iter().map(|n| n.len() + 1).sum();
    let mut seen = BTreeSet::new();
    let mut at = ino;
    while at != Ino::ROOT && bytes <= PATH_BYTES_MAX {
        if !seen.insert(at) {
            return None;
        }
        let (parent, name) = parent_of(state, at)?;
        bytes += name.len() + 1;
        names.push(name);
        at = parent;
    }
    let whole: Vec<u8> = names.iter().rev().flat_map(|name| [b"/", &name[..]].concat()).collect();
    Some(if whole.is_empty() { b"/".to_vec() } else { shortened(whole) })
}

/// The end of a path that is too long.
pub fn shortened(path: Vec<u8>) -> Vec<u8> {
    if path.len() <= PATH_BYTES_MAX {
        return path;
    }
    let end = &path[path.len() - (PATH_BYTES_MAX - BEGINNING.len())..];
    let names = end.iter().position(|b| *b == b'/').map_or(end, |slash| &end[slash..]);
    [BEGINNING, names].concat()
}

/// A directory that holds, or last held, a name of the inode; and that name.
fn parent_of(state: &State, ino: Ino) -> Option<(Ino, Vec<u8>)> {
    let from = Key::new(ino, Kind::Link, 0, 0);
    let trees = std::iter::once(&state.live).chain(state.history.iter().rev().map(|t| &t.tree));
    for tree in trees {
        let Ok(Some((key, value))) = tree.next(&state.cache, &from) else { continue };
        if key.ino == ino.0 && key.kind == Kind::Link {
            if let Ok(link) = Dirent::decode(&value) {
                return Some((link.ino, link.name.to_vec()));
            }
        }
    }
    None
}
